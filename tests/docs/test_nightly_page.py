"""docs/nightly.md: the outputs that it quotes are what the commands print for its example."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_fleet import made_fleet

import torchcoll
from torchcoll.cli import main

PAGE = (Path(__file__).parents[2] / "docs/nightly.md").read_text()


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    """16 nodes, 14 nights: node007 is slow from October 7, all nodes in two cases from the 10th."""

    def factor(node: int, night: int, case: int) -> float:
        slow_node = 1.08 if node == 7 and night >= 6 else 1.0
        return slow_node * (1.06 if night >= 9 and case in (3, 4) else 1.0)

    folder = tmp_path_factory.mktemp("nightly")
    runs = made_fleet(
        16,
        14,
        factor,
        labels=lambda node, night: {"rack": f"r{node // 4}"},
        environment=lambda node, night: {"nccl": "2.27.7" if night >= 9 else "2.27.5"},
    )
    (folder / "spool").mkdir()
    for run in runs:
        torchcoll.save(run, folder / "spool" / f"{run.header['run_id']}.jsonl")
    path = str(folder / "store.sqlite")
    assert main(["collect", str(folder / "spool"), "--into", path]) == 0
    return path


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("fleet", ()),
        ("history", ()),
        (
            "fleet",
            ("--drain-command", "scontrol update nodename={node} state=drain reason={reason}"),
        ),
    ],
)
def test_what_the_page_quotes(store, monkeypatch, command, options):
    monkeypatch.setenv("COLUMNS", "120")
    # Not main(): within a test it prints wider.
    arguments = [sys.executable, "-m", "torchcoll", command, store, *options]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    printed = done.stdout
    quoted = re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S)
    if options:  # the page quotes what follows the table
        printed = "".join(printed.splitlines(keepends=True)[-2:])
    assert printed in quoted, printed
    assert len(quoted) == 3


def test_the_page_is_short():
    prose = re.sub(r"^```text\n.*?^```", "", PAGE, flags=re.M | re.S)
    assert len(prose.split()) < 900
