"""results/*/report.md: made by results/report.sh, which makes them again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchcoll.cli import main

ROOT = Path(__file__).parents[2]
KEPT = sorted(path.parent.name for path in (ROOT / "results").glob("*/report.md"))

pytest.importorskip("matplotlib")


def headings(text):
    return re.findall(r"(?m)^#+ .*", text)


def test_the_command_makes_a_kept_report_again(tmp_path):
    """Of the smallest: its sections, its first answer and its tables are those of the kept one."""
    words = ["bash", str(ROOT / "results/report.sh"), "a100-8gpu-baseline", str(tmp_path)]
    environment = os.environ | {"PYTHON": sys.executable}
    subprocess.run(words, check=True, capture_output=True, env=environment)
    made = (tmp_path / "a100-8gpu-baseline/report.md").read_text()
    kept = (ROOT / "results/a100-8gpu-baseline/report.md").read_text()
    assert headings(made) == headings(kept)
    assert [t for t in made.splitlines() if t[:2] == "| "] == [
        t for t in kept.splitlines() if t[:2] == "| "
    ]
    assert "FAIL" in kept.split("\n")[2]
    assert (tmp_path / "a100-8gpu-baseline/report-1.svg").exists()


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_report_names_its_command_and_has_its_pictures(name):
    text = (ROOT / "results" / name / "report.md").read_text()
    assert f"-o results/{name}/report.md" in text
    pictures = re.findall(r"\]\((report-\d+\.svg)\)", text)
    assert pictures
    assert all((ROOT / "results" / name / picture).exists() for picture in pictures)
    assert name in (ROOT / "results/report.sh").read_text()


def test_all_of_them_are_kept():
    assert KEPT == ["a100-8gpu-baseline", "gloo-oneccl-2ranks", "h200-8gpu-kernels"]


def test_a_report_that_lies_with_its_results_is_not_read(tmp_path):
    """Its tables look like another tool's."""
    (tmp_path / "a.jsonl").write_bytes(
        (ROOT / "results/a100-8gpu-baseline/curve.jsonl").read_bytes()
    )
    texts = []
    for _ in range(2):
        assert main(["report", str(tmp_path), "-o", str(tmp_path / "report.md"), "--force"]) == 0
        texts.append((tmp_path / "report.md").read_text())
    assert texts[0] == texts[1]
