"""What docs/nightly.md and docs/baseline.md quote of made nights is what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from made_fleet import made_fleet

import torchcoll
from torchcoll.cli import main

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    """16 nodes, 22 nights: node007 is slow from October 15, all_reduce of all from the 18th."""

    def factor(node: int, night: int, case: int) -> float:
        slow_node = 1.08 if node == 7 and night >= 14 else 1.0
        return slow_node * (1.06 if night >= 17 and case < 5 else 1.0)

    folder = tmp_path_factory.mktemp("nightly")
    runs = made_fleet(
        16,
        22,
        factor,
        labels=lambda node, night: {"rack": f"r{node // 4}"},
        environment=lambda node, night: {"nccl": "2.27.7" if night >= 17 else "2.27.5"},
    )
    (folder / "spool").mkdir()
    for run in runs:
        torchcoll.save(run, folder / "spool" / f"{run.header['run_id']}.jsonl")
    path = str(folder / "store.sqlite")
    assert main(["collect", str(folder / "spool"), "--into", path]) == 0
    return path


def quoted(page: str) -> list[str]:
    """The blocks of output on the page."""
    return re.findall(r"^```text\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


def printed(python: str, *arguments: str, folder: Path | None = None, code: int = 1) -> str:
    """At 120 columns, by a process of its own: within a test the output is wider."""
    done = subprocess.run(
        [python, "-m", "torchcoll", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "120", "PYTHONPATH": str(DOCS.parent)},
    )
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


@pytest.mark.parametrize(
    "options",
    [(), ("--drain-command", "scontrol update nodename={node} state=drain reason={reason}")],
)
def test_what_nightly_quotes(python, store, options):
    out = printed(python, "nightly", store, "--night", "last", *options)
    if options:  # the page quotes what follows the table
        out = "".join(out.splitlines(keepends=True)[-2:])
    assert out in quoted("nightly.md"), out
    assert len(quoted("nightly.md")) == 2


@pytest.fixture(scope="module")
def good_runs(tmp_path_factory) -> Path:
    """A folder nightly/ with 4 nodes and 6 nights, node002 slow in the fifth; and tonight.jsonl of
    node003, 6 % slower.
    """
    folder = tmp_path_factory.mktemp("baseline")
    (folder / "nightly").mkdir()
    slow = made_fleet(4, 6, lambda node, night, case: 1.09 if (node, night) == (2, 4) else 1.0)
    for number, run in enumerate(slow):
        name = f"{run.header['start_utc'][:10]}-node{number % 4:03}.jsonl"
        torchcoll.save(run, folder / "nightly" / name)
    tonight = made_fleet(4, 1, lambda node, night, case: 1.06, seed=40)[3]
    tonight.header["run_id"] = "tonight"
    torchcoll.save(tonight, folder / "tonight.jsonl")
    return folder


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("check", "--learn", "nightly/", "-o", "good.json"), 0),
        (("check", "tonight.jsonl", "--baseline", "good.json"), 1),
    ],
)
def test_what_the_page_of_baseline_quotes(python, good_runs, command, code):
    out = printed(python, *command, folder=good_runs, code=code)
    # A line of three dots stands for the lines that the page leaves out.
    parts = [re.split(r"^\.\.\.\n", text, flags=re.M) for text in quoted("baseline.md")]
    of_page = ["(?:.*\n)*?".join(map(re.escape, texts)) for texts in parts]
    assert any(re.fullmatch(pattern, out) for pattern in of_page), out


def test_nightly_is_short():
    page = (DOCS / "nightly.md").read_text()
    prose = re.sub(r"^```text\n.*?^```|<!-- power.*end -->", "", page, flags=re.M | re.S)
    assert len(prose.split()) < 1020
