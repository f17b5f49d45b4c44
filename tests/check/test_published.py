"""Published figures: their sources, whether they can be, and what a run is told of them."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from error_form import error_text
from judged import case_of, launch

from torchcoll.cli import main
from torchcoll.core.file import save
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.units import parse_size
from torchcoll.questions.check.limits import check_labels
from torchcoll.questions.check.published import alike, publications, standings
from torchcoll.questions.check.published_show import published_lines
from torchcoll.questions.page.document import page_of

ROOT = Path(__file__).parents[2]
HERE = ROOT / "results" / "published"
# GB/s that all links of one GPU carry in one direction, by the vendors' data sheets: NVLink 150,
# 300, 450, 900; seven xGMI links of 64; PCIe 4.0 x16; Xe Link of a Max 1550, 16 of 26.5 GB/s; of
# GB10 its interface of 200 Gbit/s.
WIRE = {"V100": 150, "A100": 300, "H100": 450, "H200": 450, "GH200": 450, "B200": 900,
        "GB200": 900, "MI250X": 400, "MI300X": 448, "Max 1550": 424, "GB10": 25}  # fmt: skip
SWITCHED = {"H100", "H200", "GH200", "B200", "GB200"}  # NVLS: S goes once each way
FACTOR = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "sendrecv": lambda n: 1.0,
}


def table(name):
    with open(HERE / name, newline="") as file:
        return list(csv.DictReader(file))


MACHINES = {line["id"]: line for line in table("machines.csv")}
KEPT = {name: line for name, line in MACHINES.items() if not line["left_out"]}
FIGURES = table("figures.csv")


def test_the_file_is_what_the_script_makes(tmp_path):
    made = tmp_path / "made.toml"
    subprocess.run([sys.executable, HERE / "make.py", made], check=True, cwd=ROOT)
    assert made.read_text() == (ROOT / "torchcoll/questions/check/published.toml").read_text()


def test_every_machine_has_its_source_date_and_versions():
    for line in MACHINES.values():
        assert re.fullmatch(r"https://(gist\.)?github\.com/\S+", line["source"]), line["id"]
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?|unknown", line["date"]), line["id"]
        needed = ("machine", "gpu", "network", "library", "versions", "tool", "who", "ranks")
        assert all(line[name] for name in needed), line["id"]
        assert any(figure["machine"] == line["id"] for figure in FIGURES), line["id"]
    assert {figure["machine"] for figure in FIGURES} == set(MACHINES)


def test_the_kinds_that_were_asked_for_are_there():
    kinds = {(line["gpu"], line["machine"], line["hosts"]) for line in KEPT.values()}
    assert len(kinds) >= 25
    gpus = {line["gpu"] for line in KEPT.values()}
    assert {"A100", "H100", "H200", "GB200", "MI250X", "MI300X", "Max 1550"} <= gpus
    networks = " ".join(line["network"] for line in KEPT.values())
    assert "InfiniBand" in networks and "Ethernet" in networks


@pytest.mark.parametrize("name", KEPT)
def test_no_figure_is_beyond_what_the_machine_carries(name):
    line = KEPT[name]
    ranks, hosts, gpu = int(line["ranks"]), int(line["hosts"]), line["gpu"]
    assert ranks % hosts == 0
    for figure in (one for one in FIGURES if one["machine"] == name):
        factor = FACTOR[figure["collective"]](ranks)
        texts = (figure["out_of_place_gbps"], figure["in_place_gbps"])
        known = [float(text) for text in texts if text]
        known += [int(figure["size_bytes"]) / float(figure["time_us"]) / 1e3 * factor
                  for _ in [0] if figure["time_us"]]  # fmt: skip
        assert known and min(known) > 0
        reduced = figure["collective"] == "all_reduce" and gpu in SWITCHED
        assert max(known) < WIRE[gpu] * (factor if reduced else 1), figure
        stated = re.search(r"(?:(\d+) x )?(\d+) Gbit/s a host", line["network"])
        if stated and hosts > 1 and figure["collective"] == "all_reduce":
            # S must leave each host and S must come: GB/s of its interfaces bound S / t.
            most = int(stated[1] or 1) * int(stated[2]) / 8
            assert max(known) / factor <= most, figure
        if algbw := figure["out_of_place_algbw_gbps"]:
            # Both were printed: their ratio tells the ranks. Digits after the point are few.
            error = 0.005 / float(algbw) + 0.005 / known[0]
            assert known[0] / float(algbw) == pytest.approx(factor, rel=1.1 * error), figure


def test_what_was_left_out_says_why():
    reasons = {name: line["left_out"] for name, line in MACHINES.items() if line["left_out"]}
    assert "six times a ring" in reasons["skampere1-a100"]
    sources = {one.source for one in publications()}
    assert MACHINES["skampere1-a100"]["source"] not in sources
    assert len(publications()) == len(KEPT)


def a_launch(device, ranks, hosts, busbw_gbps, size="8G", **labels):
    case = case_of(busbw_gbps, size_bytes=parse_size(size), ranks=ranks)
    return launch(case, hosts=hosts, device=device, labels=labels)


def line_of(run):
    return "".join(published_lines(run, summarise_run(run)))


def test_a_run_of_a_known_kind_is_told_where_it_stands():
    # 8G on eight H200: Azure 479.98 in place, stas00 473.1 (results/published/figures.csv).
    text = line_of(a_launch("NVIDIA H200", 8, 1, 475.0))
    assert text == (
        "2 published runs on 8 H200 reach 473.1 to 480 GB/s busbw in all_reduce 8G; this "
        "run's 475 is below 1 of 2 (torchcoll show --published)"
    )
    assert "this run's 490 is as high as the best" in line_of(a_launch("NVIDIA H200", 8, 1, 490.0))
    text = line_of(a_launch("NVIDIA H200", 8, 1, 720.0))
    assert "this run's 720 is 1.50x the best: are these really 8 H200?" in text


def test_one_publication_alone():
    # Alps, 128M: 123.11 in place.
    text = line_of(a_launch("NVIDIA GH200 120GB", 8, 2, 60.0, "128M"))
    assert (
        "1 published run on 2x4 GH200 reaches 123.1 GB/s" in text
        and "this run's 60 is low: 49 % of it" in text
    )


def test_the_size_that_most_have_published_speaks():
    run = a_launch("NVIDIA H100 80GB HBM3", 16, 2, 400.0, "16G")
    few = standings(run, summarise_run(run))[0]
    assert few.text("a.log").endswith("in all_reduce 16G; a.log's 400 is below 3 of 3")
    other = a_launch("NVIDIA H100 80GB HBM3", 16, 2, 400.0, "1G")
    run.results += other.results
    found = standings(run, summarise_run(run))
    assert len(found[0].published) > len(few.published)
    assert found[0].row.size_bytes == 1 << 30


@pytest.mark.parametrize(
    ("device", "ranks", "hosts", "size"),
    [
        ("NVIDIA H100 PCIe", 8, 1, "8G"),  # other links
        ("NVIDIA H100 NVL", 8, 1, "8G"),
        ("NVIDIA A100-PCIE-40GB", 8, 1, "8G"),
        ("NVIDIA H100 80GB HBM3", 7, 1, "8G"),  # another number
        ("NVIDIA H100 80GB HBM3", 8, 4, "8G"),  # of hosts
        ("NVIDIA H100 80GB HBM3", 8, 1, "6G"),  # another size
        ("NVIDIA GeForce RTX 5090", 8, 1, "8G"),
        ("", 8, 1, "8G"),
    ],
)
def test_another_kind_of_machine_is_told_nothing(device, ranks, hosts, size):
    assert line_of(a_launch(device, ranks, hosts, 100.0, size)) == ""


def test_the_label_names_the_gpu_of_a_log_that_does_not():
    run = a_launch("", 8, 1, 200.0, gpu="H200")
    assert "on 8 H200" in line_of(run)


def test_an_impossible_figure_stands_nowhere():
    assert line_of(a_launch("NVIDIA A100-SXM4-80GB", 8, 1, 1400.0)) == ""
    assert alike(a_launch("NVIDIA A100-SXM4-80GB", 8, 1, 1400.0))


# show --published


def test_show_published_names_each_figure_and_its_source(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    save(a_launch("NVIDIA H200", 8, 1, 475.0), path)
    assert main(["show", "--published", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 published runs on 8 H200 reach 473.1 to 480 GB/s")
    line = next(line for line in text.splitlines() if "Azure ND H200 v5" in line)
    assert line.split()[:4] == ["all_reduce", "8G", "479.980", "475.000"]
    assert "azure-nd-h200-v5" in text and "no verdict" in text

    assert main(["show", "--published", "--format", "json", str(path)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert sorted(row["busbw_gbps"] for row in rows) == [473.1, 479.98]
    assert [row["own_busbw_gbps"] for row in rows] == pytest.approx([475.0] * 2)


def test_show_published_without_a_file_is_all_of_it(capsys):
    assert main(["show", "--published", "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    assert all(line["machine"] in text and f"{name} [" in text for name, line in KEPT.items())
    assert main(["show", "--published", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["id"]: row["source"] for row in rows} == {
        name: line["source"] for name, line in KEPT.items()
    }


@pytest.mark.parametrize("columns", [80, 100])
def test_the_list_fits_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["show", "--published"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    assert all(f"{name} [" in text for name in KEPT)


def test_a_machine_that_nobody_published(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    save(a_launch("NVIDIA GeForce RTX 5090", 8, 1, 20.0), path)
    assert main(["show", "--published", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("nothing is published of 8 NVIDIA GeForce RTX 5090\nNext: torchcoll ")
    save(a_launch("", 8, 1, 20.0), tmp_path / "b.jsonl")
    assert main(["show", "--published", str(tmp_path / "b.jsonl")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("which GPUs are these? the file names no GPUs; it reaches 20 GB/s busbw ")
    assert f"\nNext: torchcoll convert {tmp_path / 'b.jsonl'} --label gpu=" in out
    assert "8 MI300X" in out and "8 H100" in out and "2x" not in out


TABLE = """# NCCL version 2.21.5+cuda12.4
# Collective test starting: all_reduce_perf
{ranks}
#  size   count    type redop root   time  algbw   busbw #wrong   time  algbw   busbw #wrong
#   (B)                              (us) (GB/s)  (GB/s)          (us) (GB/s)  (GB/s)
1048576    262144 float   sum   -1  164.3   6.38   11.17      0  187.8   5.58    9.77      0
16777216  4194304 float   sum   -1  461.7  36.34   63.59      0  454.0  36.95   64.67      0
134217728 33554432 float   sum   -1 {out}      0 1907.9  70.35  123.11      0
"""


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (
            "1916.3   70.04  122.57",
            "this is the published run cscs-alps-2 of CSCS, the only one of 2x4 GH200\n",
        ),
        ("1976.0   67.92  118.87", "1 published run on 2x4 GH200 reaches 123.1 GB/s busbw in all_"),
    ],
)
def test_a_published_run_is_not_compared_with_itself(out, text, tmp_path, capsys):
    """The figures of Alps in results/published/figures.csv, and the same with one that differs."""
    ranks = [
        f"#  Rank {rank:2} Group  0 Pid {4000 + rank} on node{rank // 4:02} device {rank % 4} "
        "[0x01] NVIDIA GH200 120GB"
        for rank in range(8)
    ]
    path = tmp_path / "log.txt"
    path.write_text(TABLE.format(ranks="\n".join(ranks), out=out))
    assert main(["show", str(path), "--published"]) == 0
    assert capsys.readouterr().out.startswith(text)


def test_the_report_says_it(tmp_path):
    path = tmp_path / "run.jsonl"
    save(a_launch("NVIDIA H200", 8, 1, 475.0), path)
    page = page_of([str(path)])
    section = next(one for one in page.sections if one.title == "What others publish")
    assert section.commands == [f"torchcoll show --published {path}"]
    assert any(answer.text.startswith("2 published runs on 8 H200") for answer in page.answers)


def imported(tmp_path, *labels):
    """A table of eight GPUs as torchcoll convert makes a result file of it."""
    table, made = tmp_path / "t.csv", tmp_path / "t.jsonl"
    table.write_text("collective,size,busbw\nall_reduce,8G,475\n")
    words = [word for label in labels for word in ("--label", label)]
    made.unlink(missing_ok=True)
    assert main(["convert", str(table), "--from", "plain", "--ranks", "8", "--backend", "nccl",
                 "--statistic", "mean", *words, "-o", str(made)]) == 0  # fmt: skip
    return str(made)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["gpu=H200", "hosts=1"], "2 published runs on 8 H200 reach 473.1 to 480 GB/s busbw in "
                                  "all_reduce 8G; this run's 475 is below 1 of 2"),
        (["gpu=H200", "hosts=2"], "nothing is published of 2x4 H200\n"),
        (["gpu=H200"], "which GPUs are these? the file names no hosts; it reaches 475 GB/s busbw "),
        ([], "which GPUs are these? the file names no GPUs and no hosts; it reaches 475 GB/s "
             "busbw in all_reduce 8G"),
    ],
)  # fmt: skip
def test_the_hosts_of_an_imported_table_are_stated_by_a_label(labels, said, tmp_path, capsys):
    run = imported(tmp_path, *labels)
    capsys.readouterr()
    assert main(["show", run, "--published"]) == 0
    assert capsys.readouterr().out.startswith(said)


def test_hosts_by_name_are_no_problem_of_a_run_whose_ranks_tell_theirs(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    case = case_of(475.0, size_bytes=parse_size("8G"), ranks=8)
    save(launch(case, hosts=1, device="NVIDIA H200", labels={"hosts": "n1,n2"}), path)
    assert main(["show", str(path)]) == 0
    assert "label hosts" not in capsys.readouterr().out
    check_labels({"hosts": "n1,n2", "link_gbps": "50"})


def test_hosts_that_are_no_number(tmp_path, capsys):
    run = imported(tmp_path, "gpu=H200", "hosts=one")
    capsys.readouterr()
    assert main(["show", run]) == 0
    out = capsys.readouterr().out.replace("\n  ", " ")
    assert error_text("label hosts", "'one'", "a whole number from 1 on") in out


def test_a_filter_selects_published_figures(capsys):
    assert (
        main(["show", "--published", "--filter", "collective=all_to_all", "--format", "csv"]) == 0
    )
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows and {row["collective"] for row in rows} == {"all_to_all"}
    options = ["--filter", "size>=1G,ranks=8", "--format", "json"]
    assert main(["show", "--published", *options]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows and all(row["size_bytes"] >= 1 << 30 and row["ranks"] == 8 for row in rows)
    for text, got, expected in (
        ("size<1", "none of the figures", "conditions that one fulfils"),
        ("dtype=float32", "dtype=float32", "conditions on collective, size or ranks, which"),
    ):
        assert main(["show", "--published", "--filter", text]) == 2
        assert error_text("filter", got, expected) in capsys.readouterr().err
