"""``torchcoll log``: tables, other formats, and files that are not logs."""

import csv
import gzip
import io
import json

import pytest
from error_form import error_line, error_text

from torchcoll.cli import main

RANK = "node{0}:1{0}:1{0} [0] NCCL INFO "
START = "ncclCommInitRank comm 0x5{0} rank {0} nranks 2 cudaDev 0 busId 1a000 commId 0xa - Init "
LINES = [
    ("NCCL version 2.27.5+cuda12.9", 0),
    ("NCCL_ALGO set by environment to Ring", 0),
    (START + "START", 0),
    (START + "START", 1),
    ("comm 0x50 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0", 0),
    ("Channel 00/02 : 0 1", 0),
    ("Channel 01/02 : 0 1", 0),
    ("Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1", 0),
    ("Pattern 4, crossNic 0, nChannels 2, bw 12.0/12.0, type LOC/PIX, sameChannels 1", 0),
    ("  Algorithm   |              Ring               |", 0),
    ("    AllReduce |   16.6/   1.2 |  31.0/   0.0 |  36.4/   2.4 |", 0),
    ("2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels", 0),
    (START + "COMPLETE", 0),
    (START + "COMPLETE", 1),
    (
        "Init timings - ncclCommInitRank: rank {0} nranks 2 total 0.3{0} (kernels 0.01, "
        "alloc 0.02, bootstrap 0.25, allgathers 0.00, topo 0.00, graphs 0.00, "
        "connections 0.03, rest 0.00)",
        1,
    ),
    ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA", 0),
    ("AllGather: 1024 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..0}}", 0),
    ("AllGather: 4096 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..1}}", 0),
    ("AllGather: 65536 Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..1}}", 0),
]
TEXT = "".join((RANK + text).format(rank) + "\n" for text, rank in LINES)
WARNING = "\n[2026-11-20 15:39:39] node0:10:10 [0] x.cc:9 NCCL WARN No memory\n"


@pytest.fixture
def log(in_tmp_path):
    (in_tmp_path / "a.log").write_text(TEXT + WARNING)
    return "a.log"


def test_the_whole_table(log, capsys):
    assert main(["log", log]) == 0
    out = capsys.readouterr()
    assert out.err == ""
    assert [line.rstrip() for line in out.out.splitlines()] == [
        "1 warning of the library: No memory (x.cc:9); NCCL 2.27.5 chose RING/LL for AllGather to "
        "4K and RING/SIMPLE from 64K (1 to 2 channels); NCCL_ALGO=Ring is forced; 2 ranks on 2 "
        "hosts",
        "",
        "NCCL 2.27.5+cuda12.9: 2 processes on 2 hosts (node0 node1), 2 ranks",
        "set by the environment: NCCL_ALGO=Ring",
        "",
        "communicator  made by           ranks  nodes     init    on  largest           channels  "
        "     p2p  state",
        "                                              slowest  rank  part of it                  "
        "channels",
        "           0  ncclCommInitRank      2      2   310 ms     1  bootstrap 250 ms         2  "
        "       2  complete",
        "",
        "init: 'Init timings' of the slowest rank that the log has",
        "",
        "channels  ring",
        "0-1       0 1",
        "",
        "transport      connections  pairs of",
        "                               ranks",
        "NET/IB/GDRDMA            1         1",
        "",
        "one for each line of the log: both ends log a connection between hosts",
        "",
        "function   algorithm  protocol   latency  algbw",
        "                                           GB/s",
        "AllReduce  RING       LL        16.60 us  1.200",
        "AllReduce  RING       SIMPLE    36.40 us  2.400",
        "",
        "what NCCL's cost model expects; combinations that are not listed cannot be used",
        "",
        "chosen for  sizes     algorithm/protocol  channels  calls",
        "AllGather   1K to 4K  RING/LL               1 to 2      2",
        "AllGather   64K       RING/SIMPLE                2      1",
        "",
        "sizes of AllGather and ReduceScatter are per rank here, as this version logs them",
        "",
        "warning: No memory (x.cc:9)",
        "",
        "a.log: 21 lines: 18 understood, 2 known and not needed, 1 of other programs",
        "1 warning of the library: No memory (x.cc:9); NCCL 2.27.5 chose RING/LL for AllGather to "
        "4K and RING/SIMPLE from 64K (1 to 2 channels); NCCL_ALGO=Ring is forced; 2 ranks on 2 "
        "hosts",
    ]


def test_json_has_numbers_and_all_of_it(log, capsys):
    assert main(["log", log, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "torchcoll-log/1"
    (job,) = document["jobs"]
    assert job["communicators"][0]["largest_part_s"] == 0.25
    ring = {"channels": "0-1", "of_channels": 2, "order": [0, 1], "whole": True}
    assert job["rings"] == [{"communicator": 0, **ring}]
    assert job["choices"][0] == {
        "function": "AllGather",
        "low": 1024,
        "high": 4096,
        "unit": "bytes",
        "size_basis": "per rank",
        "sizes": 2,
        "choice": ["RING/LL"],
        "channels": [1, 2],
        "calls": 2,
    }
    assert job["warnings"] == [{"text": "No memory (x.cc:9)", "count": 1}]
    (file,) = document["files"]
    assert (file["lines"], file["understood"], file["other"]) == (21, 18, 1)


def test_csv_names_the_table_of_each_row(log, capsys):
    assert main(["log", log, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    tables = ["communicators", "rings", "transports", "tuning", "choices"]
    assert list(dict.fromkeys(row["table"] for row in rows)) == tables
    assert [row["choice"] for row in rows if row["table"] == "choices"] == [
        "RING/LL",
        "RING/SIMPLE",
    ]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (  # NVIDIA/nccl#514
            ["Channel 00/02 :    0   7   6   5   4   3   2   1   8  15"],
            "NCCL built 2 rings over at least 16 ranks (the log shows 1 of them, cut off after 10 "
            "ranks), logged by 1 process on 1",
        ),
        (  # NVIDIA/nccl-tests#89, NCCL 2.8.3 on T4
            [
                "Latency/AlgBw | Tree/ LL | Tree/Simple | Ring/ LL | Ring/Simple |",
                "Broadcast | 0.0/ 0.0 | 0.0/ 0.0 | 6.3/ 0.0 | 18.0/ 9.0 |",
            ],
            "NCCL expects 9.000 GB/s of algbw for Broadcast by RING/SIMPLE, logged by 1",
        ),
    ],
)
def test_an_excerpt_is_answered_by_what_it_has(lines, sentence, tmp_path, capsys):
    path = tmp_path / "excerpt.log"
    path.write_text("".join(f"ip-1:48:49 [0] NCCL INFO {line}\n" for line in lines))
    assert main(["log", str(path)]) == 0
    assert capsys.readouterr().out.startswith(sentence)


def test_markdown(log, capsys):
    assert main(["log", log, "--format", "markdown"]) == 0
    assert "| AllGather | 64K | RING/SIMPLE | 2 | 1 |\n" in capsys.readouterr().out


def test_several_jobs_packed_files_folders_and_oneccl(log, tmp_path, capsys):
    folder = tmp_path / "b.logs"
    folder.mkdir()
    for rank in (0, 1):
        rank_lines = "".join((RANK + t).format(r) + "\n" for t, r in LINES if r == rank)
        rank_lines = rank_lines.replace("commId 0xa", "commId 0xb").replace("node", "other")
        (folder / f"nccl-rank{rank}.log.gz").write_bytes(gzip.compress(rank_lines.encode()))
    ccl = "2026:11:20-10:39:35:( 8707) |CCL_DEBUG| selected algo: coll bcast, count 4, algo ring\n"
    (tmp_path / "c.txt").write_text(ccl)
    assert main(["log", log, "b.logs", "c.txt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "1 warning of the library: No memory (x.cc:9); 3 jobs in 4 logs: 3 of them log their "
        "choices: RING/LL for AllGather to 4K and RING/SIMPLE from 64K (1 to 2 channels); and 1 "
        "more; NCCL_ALGO=Ring is forced in 2"
    )
    assert lines[2:5] == [
        "a.log: 1 warning of the library: No memory (x.cc:9); NCCL 2.27.5 chose RING/LL for "
        "AllGather to 4K and RING/SIMPLE from 64K (1 to 2 channels); NCCL_ALGO=Ring is forced; "
        "2 ranks on 2 hosts",
        "nccl-rank0.log.gz nccl-rank1.log.gz: NCCL 2.27.5 chose RING/LL for AllGather to 4K and "
        "RING/SIMPLE from 64K (1 to 2 channels); NCCL_ALGO=Ring is forced; 2 ranks on 2 hosts",
        "c.txt: oneCCL chose ring for bcast",
    ]
    names = ("a.log", "b.logs/nccl-rank0.log.gz b.logs/nccl-rank1.log.gz", "c.txt")
    assert [line for line in lines if line in names] == list(names)
    assert "NCCL 2.27.5+cuda12.9: 2 processes on 2 hosts (other0 other1), 2 ranks" in lines
    assert "bcast       4      ring                    1" in lines
    assert "sizes are counts of elements, as oneCCL logs them" in lines


def test_a_long_ring_and_one_that_the_log_cuts(tmp_path, capsys):
    """Up to 2.23 only the first ranks of a ring are printed."""
    order = " ".join(map(str, range(100)))
    lines = [
        START.format(0).replace("nranks 2", "nranks 100") + "START",
        f"Channel 00/02 : {order}",
        "Channel 01/02 : 0 2 1",
    ]
    path = tmp_path / "ring.log"
    path.write_text("".join(f"n:1:1 [0] NCCL INFO {line}\n" for line in lines))
    assert main(["log", str(path)]) == 0
    rings = [line for line in capsys.readouterr().out.splitlines() if "..." in line]
    assert [ring.split()[-2:] for ring in rings] == [["63", "..."], ["1", "..."]]


def test_the_folder_of_results(log, tmp_path, capsys):
    (tmp_path / "D" / "ring-1.jsonl.logs").mkdir(parents=True)
    (tmp_path / "D" / "ring-1.jsonl").write_text("{}\n")
    assert main(["log", "D"]) == 3
    expected = error_line("log", "D", "a file, or a folder with logs. A run with ")
    assert capsys.readouterr().err == f"{expected}--library-log writes such a log.\n"
    (tmp_path / log).rename(tmp_path / "D" / "ring-1.jsonl.logs" / "rank0.log")
    assert main(["log", "D"]) == 0
    out, err = capsys.readouterr()
    assert "NCCL 2.27.5" in out and err == ""


def test_files_that_are_no_log(log, tmp_path, capsys):
    (tmp_path / "b.txt").write_text("The NCCL backend is used.\n|CCL_| is a bar.\n")
    assert main(["log", "b.txt", log, "none.log"]) == 1
    out = capsys.readouterr()
    expected = "lines of NCCL, RCCL or oneCCL. A run with --library-log writes such a log."
    assert out.err.splitlines() == [
        f"torchcoll: skipped: {error_text('log', 'b.txt', expected)}",
        "torchcoll: skipped: file: got none.log, expected a file that exists",
    ]
    assert "NCCL 2.27.5" in out.out  # the other is shown
    assert main(["log", log, "--format", "xml"]) == 2
    expected = error_line("format", "xml", "one of table, markdown, csv, json")
    assert capsys.readouterr().err.splitlines() == [expected]


def test_a_folder_without_a_log_of_nccl_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").mkdir()
    for rank in range(3):
        (tmp_path / "job" / f"rank{rank}.log").write_text("step 1 loss 2.0\n")
    assert main(["log", "job"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "none in 3 files. torchcoll job says what is in it" in line


def test_a_packed_file_that_is_cut(tmp_path, capsys):
    path = tmp_path / "cut.log.gz"
    path.write_bytes(gzip.compress((TEXT * 50).encode())[:-9])
    assert main(["log", str(path)]) == 0
    out = capsys.readouterr()
    assert out.err.startswith(f"torchcoll: warning: {path}: cut off or damaged: ")
    assert "chosen for" in out.out


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_secrets_of_a_log_are_not_shown(tmp_path, monkeypatch, capsys, form):
    """Secrets may be in variables, warnings, unknown lines, and lines of other programs."""
    monkeypatch.chdir(tmp_path)
    lines = [
        "NCCL_NET_PLUGIN set by environment to hf" + "_aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeF",
        "NCCL_PSK set by environment to canary1",
        "Something unknown: Authorization: Bearer canary2",
        'Something unknown: {"api_key": "canary3"}',
        "Something unknown http://h/x?token=canary4&n=1",
    ]
    warning = WARNING.replace("No memory", "no proxy at http://bob:canary5@h:80")
    text = "".join(RANK.format(0) + line + "\n" for line in lines)
    (tmp_path / "a.log").write_text(TEXT + text + warning + "X-Api-Key: canary6\n")
    assert main(["log", "a.log", "--format", form]) == 0
    shown = capsys.readouterr().out
    assert "canary" not in shown and "hf_a" not in shown
    if form in ("table", "json"):
        assert "http://***@h:80" in shown and "Authorization: Bearer ***" in shown


def answer_of(tmp_path, capsys, text):
    path = tmp_path / "input.log"
    path.write_text(text)
    assert main(["log", str(path)]) == 0
    return capsys.readouterr().out.split("\n\n")[0].replace("\n  ", " ")


TUNING = """\
lab:4984:4984 [0] NCCL INFO NCCL version 2.29.7+cuda12.9
lab:4984:4984 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1
lab:4984:4984 [0] NCCL INFO Broadcast: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
lab:4984:4984 [0] NCCL INFO Broadcast: 16384 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
lab:4984:4984 [0] NCCL INFO Broadcast: 32768 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}
lab:4985:4985 [0] NCCL INFO NCCL version 2.29.7+cuda12.9
lab:4985:4985 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1
"""
TORCHRUN = """\
2026:11:20-10:39:35:( 8707) |CCL_WARN| value of CCL_WORKER_OFFLOAD changed to be 0 (default:1)
2026:11:20-10:39:35:( 8707) |CCL_WARN| did not find MPI-launcher specific variables, switch to \
ATL/OFI, to force enable ATL/MPI set CCL_ATL_TRANSPORT=mpi
2026:11:20-10:39:36:( 8707) |CCL_INFO| provider: tcp
2026:11:20-10:39:36:( 8707) |CCL_INFO| library version: Gold-2021.14.0 2024-10-16T 10:56:37Z (HEAD)
"""


ONE_OF_TWO = """\
node01:21:21 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
node01:21:25 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xa - \
Init START
node01:21:25 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
"""


def test_the_log_of_one_of_two_ranks(tmp_path, capsys):
    assert answer_of(tmp_path, capsys, ONE_OF_TWO) == (
        "NCCL 2.21.5 with 1 of 2 ranks logged (node01) over NET/Socket"
    )


def test_what_was_chosen_and_forced_is_the_answer(tmp_path, capsys):
    assert answer_of(tmp_path, capsys, TUNING) == (
        "NCCL 2.29.7 chose RING/LL for Broadcast to 16K and RING/SIMPLE from 32K (1 to 4 "
        "channels); P2P is switched off by NCCL_P2P_DISABLE=1; 2 processes on 1 host"
    )


def test_a_harmless_warning_is_not_the_answer(tmp_path, capsys):
    text = answer_of(tmp_path, capsys, TORCHRUN)
    assert text.startswith("oneCCL 2021.14.0")
    assert text.endswith("CCL_WORKER_OFFLOAD=0 (default 1); 1 harmless warning")
