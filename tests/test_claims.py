"""results/*/claims.md: the commands of each row run, and their first sentence is its verdict."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from torchcoll.cli import main

ROOT = Path(__file__).parents[1]
SEEDS = sorted(path.parent.name for path in ROOT.glob("results/*/claims.md"))
# (folder, beginning of the statement) -> what the first sentence has to say, taken from the
# verdict in claims.md; 0.31 is 3.2x slower.
VERDICTS = {
    ("a100-8gpu-baseline", "contention"): "^implausible figures",
    ("a100-8gpu-baseline", "peak all-reduce"): r"^FAIL 7 of 7 cases implausible: .* 5\.9 times",
    ("h200-8gpu-kernels", '"not much'): "in 6 of 80 cases, all at 1M and 4M: broadcast 4M 3.2x",
    ("h200-8gpu-kernels", "nvidia kernel slightly"): "within 4 % .* furthest: 1M 1.04x faster",
    ("h200-8gpu-kernels", "... in reduce_scatter"): "within 5 % .* furthest: 4M 1.05x faster",
    ("h200-8gpu-kernels", "... in scatter"): "is within 2 % of generic in algbw at all sizes",
    (
        "simulator-hgx-h100",
        "geomean errors",
    ): r"mean error of 19\.6 % \(18\.0 % geometric mean\) .* worst 43\.4 %",
    ("nccl-transitions", "230-700"): "^FAIL 7 of 7 cases implausible",
    ("nccl-transitions", "the zone of"): "changes between .* and 16M",
}
# Rows whose first sentence does not say the verdict, and why.
NOT_FIRST = {
    ("h200-8gpu-kernels", "160 algorithm"): "the table has the figures; the answer is the verdict",
    ("h200-8gpu-kernels", "8 GPUs; 1M"): "a pivot has no answer",
    ("oneccl-cold-scaling", "second call"): "cold answers what the first call takes",
}


def rows() -> list[tuple[str, str, list[str]]]:
    """Folder, statement and commands of each row of claims.md that names a command of torchcoll."""
    found = []
    for name in SEEDS:
        for line in (ROOT / "results" / name / "claims.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            commands = re.findall(r"`torchcoll (\w+ [^`]+)`", cells[-1])
            if line.startswith("| ") and commands:
                found.append((name, cells[0], commands))
    return found


def named(table: dict[tuple[str, str], str], folder: str, statement: str) -> str:
    fitting = [v for (f, start), v in table.items() if f == folder and statement.startswith(start)]
    return fitting[0] if fitting else ""


@pytest.mark.parametrize(("folder", "statement", "commands"), rows())
def test_the_first_sentence_is_the_verdict(folder, statement, commands, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    for command in commands:
        assert main(shlex.split(command)) in (0, 1)
        out, err = capsys.readouterr()
        assert "skipped" not in err
        first = " ".join(out.split("\n\n")[0].split())
        expected = named(VERDICTS, folder, statement)
        assert bool(expected) != bool(named(NOT_FIRST, folder, statement)), (statement, first)
        assert re.search(expected, first), first


def test_no_verdict_is_left_over():
    for folder, start in [*VERDICTS, *NOT_FIRST]:
        assert any(f == folder and statement.startswith(start) for f, statement, _ in rows())


@pytest.mark.parametrize("folder", SEEDS)
def test_a_folder_with_a_report_is_reported(folder, tmp_path, monkeypatch, capsys):
    """Its report, pictures, notes and claims are neither read nor named."""
    monkeypatch.chdir(ROOT)
    output = tmp_path / "page.md"
    assert main(["report", f"results/{folder}", "-o", str(output)]) == 0
    assert "skipped" not in capsys.readouterr().err
    assert "skipped: " not in output.read_text()
    assert not re.search(r"report\.md|claims\.md|about\.md|make\.py", output.read_text())
