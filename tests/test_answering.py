"""``torchcoll PATH...``: inputs in the shape of public files, and the command that answers each."""

import gzip
import io
import json
import shlex
import sys

import pytest
from made_runs import measured, run

from torchcoll.cli import main
from torchcoll.core.file import save

NCCL_TESTS = """\
# nThread 1 nGpus 8 minBytes 8388608 maxBytes 8388608 step: 2(factor) warmup iters: 5 iters: 20
#       size         count      type   redop    root     time   algbw   busbw #wrong
     8388608       2097152     float     sum      -1    95.32   88.00  154.00      0
# Avg bus bandwidth    : 154.185
"""
OSU = """\
# OSU MPI Allreduce Latency Test v7.4
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)
4                       2.31
1024                    9.80
"""
IMB = """\
#----------------------------------------------------------------
# Benchmarking Allreduce
# #processes = 4
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1024         1000         4.10         4.90         4.50
"""
NCCL_LOG = """\
node7:1417:1417 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>
node7:1417:1502 [0] NCCL INFO comm 0x55d0 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE
"""
ONECCL_LOG = """\
2024:03:07-10:11:12:(14120) |CCL_WARN| did not find MPI-launcher specific variables
"""
TOPOLOGY = """\
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="106">
    <pci busid="0000:00:00.0" class="0x060400" link_speed="16 GT/s" link_width="16"/>
  </cpu>
</system>
"""
WATCHDOG = """\
[rank3]:[E ProcessGroupNCCL.cpp:523] [Rank 3] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=1800000) \
ran for 1800012 milliseconds before timing out.
"""
KILLED = """\
WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 4712 closing signal SIGTERM
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 \
(pid: 4711) of binary: /usr/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2024-03-07_10:11:12
  host      : node3
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4711
============================================================
"""
DEATH_AFTER_ROWS = NCCL_TESTS + WATCHDOG
CONFIG = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_hidden_layers": 2,
        "num_key_value_heads": 8,
        "vocab_size": 1000,
        "max_position_embeddings": 128,
        "torch_dtype": "bfloat16",
    }
)
TABLE = """\
| collective | size | busbw (GB/s) |
|---|---|---|
| all_reduce | 64M | 180.1 |
| all_reduce | 1G | 350.2 |
"""
# (content, its command, what its first line contains)
FILES = {
    "nccl-tests": (NCCL_TESTS, "show", ""),
    "osu": (OSU, "show", ""),
    "imb": (IMB, "show", ""),
    "nccl-log": (NCCL_LOG, "log", "NCCL"),
    "oneccl-log": (ONECCL_LOG, "log", "oneCCL of unknown version; 1 harmless warning"),
    "topology": (TOPOLOGY, "log", ""),
    "watchdog": (WATCHDOG, "postmortem", "rank 3 waits in all_reduce number 808"),
    "killed": (KILLED, "postmortem", "was killed by SIGKILL"),
    "death-after-rows": (DEATH_AFTER_ROWS, "postmortem", ""),
    "config": (CONFIG, "plan", "on 8 ranks (fsdp=8) sends"),
    "table": (TABLE, "show", ""),
}


def answered_by(out):
    return [
        line.removeprefix("answered by: torchcoll ")
        for line in out.splitlines()
        if line.startswith("answered by: ")
    ]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_answered_by_the_command_that_fits(name, tmp_path, capsys):
    content, command, says = FILES[name]
    path = tmp_path / "input.txt"
    path.write_text(content)
    assert main([str(path)]) == 0
    out, err = capsys.readouterr()
    arguments = "--ranks 8 " if command == "plan" else ""
    assert answered_by(out) == [f"{command} {arguments}{path}"], err
    assert says in out.split("\n\n")[0].replace("\n  ", " ")
    assert "error" not in err


def test_other_answers_of_a_file_are_named(tmp_path, capsys):
    path = tmp_path / "rows.txt"
    path.write_text(DEATH_AFTER_ROWS)
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"answered by: torchcoll postmortem {path}\nalso: torchcoll show {path}\n")


def test_compressed_and_from_stdin(tmp_path, capsys, monkeypatch):
    path = tmp_path / "rows.txt.gz"
    path.write_bytes(gzip.compress(NCCL_TESTS.encode()))
    assert main([str(path)]) == 0
    assert answered_by(capsys.readouterr().out) == [f"show {path}"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OSU.encode())))
    monkeypatch.setattr("torchcoll.core.opening._stdin", [])  # read once by each process
    assert main(["-"]) == 0
    assert answered_by(capsys.readouterr().out) == ["show -"]


def test_a_folder_has_one_answer_for_each_kind_the_most_urgent_first(tmp_path, capsys):
    for name in ("watchdog", "nccl-tests", "topology"):
        (tmp_path / f"{name}.txt").write_text(FILES[name][0])
    assert main([str(tmp_path)]) == 0
    assert answered_by(capsys.readouterr().out) == [
        f"postmortem {tmp_path}",
        f"show {tmp_path}/nccl-tests.txt",
        f"log {tmp_path}/topology.txt",
    ]


def test_several_files_are_answered_together_by_kind(tmp_path, capsys):
    for name in ("osu", "imb"):
        (tmp_path / f"{name}.txt").write_text(FILES[name][0])
    files = [f"{tmp_path}/imb.txt", f"{tmp_path}/osu.txt"]
    assert main(files) == 0
    assert answered_by(capsys.readouterr().out) == [f"show {files[0]} {files[1]}"]
    assert main([f"{tmp_path}/*.txt"]) == 0
    assert answered_by(capsys.readouterr().out) == [f"show '{tmp_path}/*.txt'"]


def test_what_nobody_reads_says_what_was_seen_and_one_thing_to_try(tmp_path, capsys):
    path = tmp_path / "poem.txt"
    path.write_text("\n  The fog comes\non little cat feet.\n")
    assert main([str(path)]) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "It begins with 'The fog comes'." in err
    good = tmp_path / "osu.txt"
    good.write_text(OSU)
    assert main([str(path), str(good)]) == 3
    out, err = capsys.readouterr()
    assert answered_by(out) == [f"show {good}"] and "'The fog comes'" in err


def test_a_reason_of_the_reader_is_said(tmp_path, capsys):
    """Times of two ranks: the reader knows the format, and what to do instead."""
    path = tmp_path / "rows.txt"
    path.write_text("# OSU MPI Multi Latency Test v7.4\n# Size    Latency (us)\n1      1.51\n")
    assert main([str(path)]) == 3
    err = capsys.readouterr().err
    assert "expected results of a benchmark" not in err and "pairs" in err


def test_files_of_several_tools_are_not_pooled(tmp_path, capsys):
    """A sentence over gloo runs of one machine and a log of another one says nothing."""
    save(run(measured(50_000)), tmp_path / "own.jsonl")
    (tmp_path / "osu.txt").write_text(OSU)
    files = [f"{tmp_path}/osu.txt", f"{tmp_path}/own.jsonl"]
    assert main(files) == 0
    assert answered_by(capsys.readouterr().out) == [f"show {files[1]}", f"show {files[0]}"]


def test_a_folder_of_versus_is_compared_and_shown_if_it_cannot_be(tmp_path, capsys):
    save(run(measured(50_000)), tmp_path / "a-1.jsonl")
    (tmp_path / "manifest.jsonl").write_text('{"schema": "torchcoll-matrix/1"}\n')  # cut off
    assert main([str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert answered_by(out) == [f"show {tmp_path}"], err


def test_a_list_of_pairs_names_nodes_and_no_ranks(tmp_path, capsys):
    path = tmp_path / "pairs.txt"
    path.write_text("a,b 49.36\na,c 49.1\na,d 24.2\nb,c 49.2\nb,d 24.5\nc,d 24.1\n")
    assert main([str(path)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("node d is slow: it has 49 % of the speed of the other nodes (")
    assert "check the devices and cables of d, or go on with a, b, c " in text


def test_a_folder_of_folders_is_listed(tmp_path, capsys):
    """`torchcoll results` answered a dozen measurements with a hundred lines of postmortems."""
    for name, content in (("a", OSU), ("b", IMB)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.txt").write_text(content)
    (tmp_path / "notes.txt").write_text(WATCHDOG)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path} has 2 folders of results. Next: torchcoll {tmp_path}/NAME answers one",
        "",
        f"{tmp_path}/a: 1 file for show",
        f"{tmp_path}/b: 1 file for show",
    ]


def test_few_logs_among_many_results_are_not_the_first_answer(tmp_path, capsys):
    for name, content in (("a", OSU), ("b", IMB), ("dead", WATCHDOG)):
        (tmp_path / f"{name}.txt").write_text(content)
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert answered_by(out) == [f"show {tmp_path}"]
    assert out.endswith(f"also: torchcoll postmortem {tmp_path}\n")


def test_a_missing_file_is_named_with_the_nearest_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own1.jsonl").write_text("")
    assert main(["own1.jsonll"]) == 3
    assert (
        capsys.readouterr().err
        == "torchcoll: error: file: got own1.jsonll, expected a file that exists. "
        "Did you mean own1.jsonl?\n"
    )
    assert main(["own1.jsonl", "no/such.xml"]) == 3
    assert "no/such.xml" in capsys.readouterr().err


def test_a_word_that_is_no_path_is_an_unknown_command(capsys):
    assert main(["nosuchthing"]) == 2
    assert "command: got nosuchthing" in capsys.readouterr().err


def test_the_line_that_came_nearest_is_shown(tmp_path, capsys):
    path = tmp_path / "mine.txt"
    path.write_text("my benchmark\nchunk 12 5.2 17.3\nbye\n")
    assert main([str(path)]) == 3
    err = capsys.readouterr().err
    assert "Line 2 came nearest: 'chunk 12 5.2 17.3'." in err
    assert f"torchcoll convert {path} --map size=NAME,time=NAME" in err


def test_the_command_for_a_table_has_the_names_and_the_collective_of_the_file(tmp_path, capsys):
    path = tmp_path / "note.md"
    table = "| {} | GB/s | Elapsed (us) |\n|---|---|---|\n| 2 MiB | 61.0 | 34.4 |\n"
    path.write_text("Our all_gather, 4x L40S:\n\n" + table.format("Chunk"))
    assert main([str(path)]) == 3
    err = capsys.readouterr().err
    options = "--map 'size=Chunk,time=Elapsed (us)' --collective all_gather"
    assert f"torchcoll convert {path} {options} -o RUN.jsonl." in err
    words = shlex.split(options)
    assert main(["convert", str(path), *words, "-o", str(tmp_path / "run.jsonl")]) == 0
    path.write_text("Our all_gather, 4x L40S:\n\n" + table.format("Message"))
    assert main([str(path)]) == 0
    assert "\nall_gather takes 34.4 us" in capsys.readouterr().out


def test_without_a_path_it_says_what_is_here_and_what_is_next(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0
    first, machine, following = capsys.readouterr().out.splitlines()
    assert first == "in this folder: nothing that torchcoll reads"
    assert machine.startswith("on this machine: ") and "core" in machine
    assert following.startswith("next: torchrun --nproc-per-node ")
    for name in ("watchdog", "nccl-tests", "osu"):
        (tmp_path / f"{name}.txt").write_text(FILES[name][0])
    assert main([]) == 0
    first, _, following = capsys.readouterr().out.splitlines()
    assert "2 files for torchcoll show" in first and "1 file for torchcoll postmortem" in first
    assert following.startswith("next: torchcoll . ")


ISSUE = """\
Slower since the upgrade, and then it hangs.

**NCCL 2.27**
```
{before}```
**NCCL 2.30**
```
{after}```
```
{log}```
"""


def test_each_part_of_an_issue_is_answered(tmp_path, capsys, monkeypatch):
    after = NCCL_TESTS.replace("95.32   88.00  154.00", "190.64   44.00   77.00")
    text = ISSUE.format(before=NCCL_TESTS, after=after, log=NCCL_LOG)
    path = tmp_path / "issue.txt"
    path.write_text(text)
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert answered_by(out) == [f"compare {path}", f"log {path}"]
    assert "NCCL 2.30 looks 2.0x slower than NCCL 2.27 at 8M; " in out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    monkeypatch.setattr("torchcoll.core.opening._stdin", [])
    assert main(["-"]) == 0
    assert answered_by(capsys.readouterr().out) == ["compare -", "log -"]


def test_a_failed_table_of_two_is_shown_and_not_compared(tmp_path, capsys):
    after = NCCL_TESTS.replace("154.00      0", "154.00      7")
    path = tmp_path / "two.txt"
    path.write_text(f"Before:\n{NCCL_TESTS}After:\n{after}")
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert answered_by(out) == [f"show {path}"] and "FAIL" in out.split("\n\n")[0]
