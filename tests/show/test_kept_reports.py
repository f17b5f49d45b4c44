"""results/*/report.md: made by results/report.sh, which makes them again."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from torchcoll.cli import main
from torchcoll.questions.page import page_draft

ROOT = Path(__file__).parents[2]
# One for each of the five documents that the project grew from.
SEEDS = {
    "a100-8gpu-baseline",
    "h200-8gpu-kernels",
    "nccl-transitions",
    "oneccl-cold-scaling",
    "simulator-hgx-h100",
}
KEPT = sorted(path.parent.name for path in (ROOT / "results").glob("*/report.md"))

pytest.importorskip("matplotlib")


def headings(text):
    return re.findall(r"(?m)^#+ .*", text)


def tables(text):
    return [line for line in text.splitlines() if line.startswith("| ")]


def pictures(text):
    return [line for line in text.splitlines() if line.startswith("![")]


def test_the_script_makes_a_kept_report_again(python, tmp_path):
    """Of the smallest: the same sections, tables and claims as the kept one, and its pictures."""
    words = ["bash", str(ROOT / "results/report.sh"), "nccl-transitions", str(tmp_path)]
    environment = os.environ | {"PYTHON": python}
    subprocess.run(words, check=True, capture_output=True, env=environment)
    made = (tmp_path / "nccl-transitions/report.md").read_text()
    kept = (ROOT / "results/nccl-transitions/report.md").read_text()
    assert headings(made) == headings(kept)
    assert tables(made) == tables(kept)
    assert (tmp_path / "nccl-transitions/report-1.svg").exists()


@pytest.mark.parametrize("name", sorted(SEEDS - {"nccl-transitions"}))
def test_the_command_of_a_kept_report_makes_its_tables(name, tmp_path, monkeypatch):
    """And pictures with the same captions: these are not laid out, which is most of the work."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(page_draft, "svg_text", lambda figure: "<svg></svg>")
    kept = (ROOT / "results" / name / "report.md").read_text()
    command = re.findall(r"(?m)^    torchcoll report .*$", kept)[-1]
    words = shlex.split(command)[1:]
    words[words.index("-o") + 1] = str(tmp_path / "report.md")
    assert main(words) == 0
    made = (tmp_path / "report.md").read_text()
    claims = (ROOT / "results" / name / "claims.md").read_text()
    assert tables(made) + tables(claims) == tables(kept)
    assert pictures(made) == pictures(kept) != []


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_the_claims_of_the_document_stand_beside_ours(name):
    kept = (ROOT / "results" / name / "report.md").read_text()
    about, claims = (
        (ROOT / "results" / name / file).read_text() for file in ("about.md", "claims.md")
    )
    assert kept.splitlines()[2] == about.splitlines()[0]  # before any figure
    assert kept.endswith(claims)
    assert f"({name}/report.md)" in (ROOT / "results/README.md").read_text()
    rows = [line for line in claims.splitlines() if line.startswith("| ")][1:]
    words = ("reproduced", "corrected", "implausible", "unknowable", "of another")
    assert rows and all(row.split(" | ")[1].lstrip().startswith(words) for row in rows)


def test_what_is_synthetic_is_named_so_and_is_what_the_scripts_make(tmp_path):
    folder = ROOT / "results/oneccl-cold-scaling"
    files = sorted(folder.glob("*.txt"))
    assert len(files) == 7
    subprocess.run([sys.executable, folder / "make.py", tmp_path], check=True)
    for file in files:
        assert file.name.startswith("synthetic-")
        assert file.read_text().startswith("# SYNTHETIC") and (
            file.read_text() == (tmp_path / file.name).read_text()
        )
    assert "**Synthetic**" in (folder / "report.md").read_text().splitlines()[2]
    folder = ROOT / "results/simulator-hgx-h100"
    subprocess.run([sys.executable, folder / "make.py", tmp_path / "a.csv"], check=True)
    assert (tmp_path / "a.csv").read_text() == (folder / "analytical.csv").read_text()
    # A ring of 8: 14 messages of S / 8, two hops of 936.25 ns each, at 400 GiB/s.
    assert "all_reduce,8,1048576,30.487" in (tmp_path / "a.csv").read_text()
    assert pytest.approx(30487, abs=1) == 14 * (2 * 936.25 + 131072 / (400 * 2**30 / 1e9))


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_report_names_its_command_and_has_its_pictures(name):
    text = (ROOT / "results" / name / "report.md").read_text()
    assert f"-o results/{name}/report.md" in text
    pictures = re.findall(r"\]\((report-\d+\.svg)\)", text)
    assert pictures
    assert all((ROOT / "results" / name / picture).exists() for picture in pictures)
    assert name in (ROOT / "results/report.sh").read_text()


def test_all_of_them_are_kept():
    assert {*KEPT} == SEEDS | {"gloo-oneccl-2ranks"}


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
