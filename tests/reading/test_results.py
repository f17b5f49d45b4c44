"""results/: all published figures are read exactly, and what follows from them."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from torchcoll.cli import main
from torchcoll.core.plausibility import summarise_run
from torchcoll.reading.inputs import load

RESULTS = Path(__file__).parents[2] / "results"
TABLES = RESULTS / "h200-8gpu-kernels"
CURVES = RESULTS / "a100-8gpu-baseline"
SIZES = {
    f"{n}{unit}B": n << shift for unit, shift in (("M", 20), ("G", 30)) for n in (1, 4, 16, 64, 256)
}
# nccl-tests doc/PERFORMANCE.md for 8 ranks; hypercube's algbw counts 7/8 of the size.
FACTORS = {"all_reduce": 14 / 8} | dict.fromkeys(
    ("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter"), 7 / 8
)


def published():
    """(collective, bytes) -> the two figures, read from the tables by other means."""
    figures, name = {}, ""
    for line in (TABLES / "tables.md").read_text().splitlines():
        if match := re.match(r"### \d+\. (\w+)", line):
            name = match[1].lower()
        if match := re.match(r"\| (\d+[MG]B)\s*\| ([\d.]+)\s*\| ([\d.]+)\s*\|", line):
            figures[name, SIZES[match[1]]] = (float(match[2]), float(match[3]))
    return figures


@pytest.mark.parametrize(("index", "name"), [(0, "generic"), (1, "nvidia")])
def test_every_figure_and_its_bus_bandwidth(index, name):
    run = load(TABLES / f"{name}.jsonl")
    assert (run.problems, run.ranks) == ([], 8)
    rows = {(row.collective, row.size_bytes): row for row in summarise_run(run)}
    figures = published()
    assert len(figures) == 80 and set(rows) == set(figures)
    for key, pair in figures.items():
        assert rows[key].algbw_gbps == pytest.approx(pair[index], rel=1e-12)
        assert rows[key].busbw_gbps == pytest.approx(pair[index] * FACTORS.get(key[0], 1))
        assert (rows[key].statistic, rows[key].dtype, rows[key].in_place) == ("mean", None, None)
        assert (rows[key].backend, rows[key].device) == ("nccl", "cuda")  # NCCL has no other


def test_the_files_are_what_the_importer_makes_of_the_tables(tmp_path):
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(RESULTS.parent)}
    done = subprocess.run(
        ["bash", str(RESULTS / "import.sh"), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for folder, names in ((TABLES, ("generic", "nvidia")), (CURVES, ("curve", "curve-3gpu"))):
        for name in names:
            written = (tmp_path / f"{name}.jsonl").read_text()
            assert written == (folder / f"{name}.jsonl").read_text()


# The table of the report: 1 to 64 MiB, then 128.
EIGHT = (229.85, 375.12, 531.90, 676.52, 749.75, 755, 808)
THREE = (226.50, 364.85, 537.90, 674.92, 735.26, 767.89, 830.00, 832.22)


@pytest.mark.parametrize(
    ("name", "ranks", "figures", "law", "times", "ring"),
    [
        ("curve", 8, EIGHT, "3.2 us + S / 857 GB/s", "6.3", 137),
        ("curve-3gpu", 3, THREE, "3.3 us + S / 864 GB/s", "4.8", 180),
    ],
)
def test_the_curve_of_the_a100_is_no_all_reduce(name, ranks, figures, law, times, ring, capsys):
    path = str(CURVES / f"{name}.jsonl")
    run = load(path)
    assert [row.algbw_gbps for row in summarise_run(run)] == pytest.approx(figures)
    assert main(["show", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("implausible [1]" in line for line in lines) == len(figures)
    (note,) = (line for line in lines if line.startswith("[1] "))
    # A ring of n: 240 GB/s over 2 (n - 1) / n.
    assert round(240 / (2 * (ranks - 1) / ranks)) == ring
    assert note == (
        f"[1] {len(figures)} sizes follow {law}, as a copy within one A100 does (memory of 2039 "
        f"GB/s), {times} times the {ring} GB/s algbw of a ring of {ranks}: likely one rank only "
        "(no MPI in the build?), a wrong number of ranks, the time of enqueueing alone or data "
        "that never left a cache"
    )
    factor = 2 * (ranks - 1) / ranks
    assert lines[-1] == (
        f"FAIL {len(figures)} of {len(figures)} cases implausible: busbw up to "
        f"{figures[-1] * factor:.0f} GB/s, "
        f"{figures[-1] * factor / 240:.1f} times the 240 GB/s limit of the links of one A100"
    )
    assert main(["check", path, "--gate"]) == 1


def test_the_curve_of_the_a100_has_one_range_and_no_hand_over(capsys):
    for name, last in (("curve", "64M"), ("curve-3gpu", "128M")):
        assert main(["curve", str(CURVES / f"{name}.jsonl"), "--format", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["rows"] == []
        (curve,) = document["curves"]
        (size_range,) = curve["ranges"]
        assert (size_range["low_bytes"], size_range["misfit"] < 0.06) == (1 << 20, True)
        assert curve["doubt"].startswith(f"{curve['sizes']} sizes follow 3.")
        assert main(["curve", str(CURVES / f"{name}.jsonl")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert f"1M to {last}" in " ".join(lines)
        assert lines[-1].startswith("implausible: ")


def test_copies_enter_no_comparison(capsys):
    assert main(["compare", *(str(CURVES / f"{n}.jsonl") for n in ("curve", "curve-3gpu"))]) == 0
    text = capsys.readouterr().out
    first = text.replace("\n  ", " ").splitlines()[0]
    assert first.startswith("implausible figures in curve-3gpu (1M, 2M, 4M, ..., 128M); ")
    assert first.endswith("; none of 7 cases can be compared")
    assert "not comparable (implausible in base: 7 sizes follow 3.2 us + S / 857 GB/s" in text
    assert "no MPI" not in text  # causes are show's to tell
    # Their figures are shown, for what the report says of them can be seen: all within 3 %.
    rows = [line.split() for line in text.splitlines() if re.match(r" *\d+M +\d", line)]
    assert rows[0] == ["1M", "4.562", "us", "4.629", "us"]  # 1 MiB at 229.85 and 226.50 GB/s
    ratios = [float(row[3]) / float(row[1]) for row in rows]
    assert len(ratios) == 7
    assert all(abs(ratio - 1) < 0.03 for ratio in ratios)
    assert "ratio" not in text


# What the arithmetic of the page must come to, as its tables have it.
SUMS = {
    "12*2*25, 12*20": "600 240",
    "12*25*2": "600",
    "18*25*2": "900",
    "6*2": "12",
    "741.34/2, 741.34/900": "370.67 0.8237111111111112",  # 82 % of 450
    "8*106, 3*277": "848 831",
    "8*80": "640",
    "850/1280, 240/(2*7/8)": "0.6640625 137.14285714285714",
    "850/1280, 860/1280": "0.6640625 0.671875",
    "[12*2**i for i in range(7)]": "[12, 24, 48, 96, 192, 384, 768]",
    "[round(S/(3.2e3+S/857)) for S in (1<<20,1<<22,1<<24,1<<28)]": "[237, 518, 737, 848]",
}


def commands():
    """The commands of results/README.md that can run here, so not `torchcoll convert` alone, nor
    the command on FILE.
    """
    text = (RESULTS / "README.md").read_text()
    listed = set(re.findall(r"`((?:torchcoll|python3 -c) [^`]+)`", text))
    return sorted(listed - {"torchcoll convert", "torchcoll show FILE --view calls"})


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_readme_works(command, capsys):
    generic, nvidia = (str(TABLES / f"{name}.jsonl") for name in ("generic", "nvidia"))
    names = {
        "G": generic,
        "N": nvidia,
        "generic=G": f"generic={generic}",
        "nvidia=N": f"nvidia={nvidia}",
        **{str(p.relative_to(RESULTS.parent)): str(p) for p in CURVES.glob("*.jsonl")},
    }
    program, *arguments = shlex.split(command)
    if program == "python3":
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
        expected = SUMS[command.removeprefix('python3 -c "print(').removesuffix(')"')]
        assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{expected}\n")
    else:
        assert main([names.get(argument, argument) for argument in arguments]) == 0
        assert capsys.readouterr().out
