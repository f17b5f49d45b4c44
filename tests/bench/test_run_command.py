"""``torchcoll run``: arguments are checked before torchrun starts, and then it is torchrun."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from error_form import error_text
from ranks import NO_NAMES, without_names

from torchcoll import load
from torchcoll.cli import main


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("-n 2 allreduce --size 8", ("--size 8", "Did you mean --sizes?")),
        ("-n 2 allreduce --sizes 1KB", ("1KB",)),
        ("-n 2 alreduce", (error_text("collective", "alreduce"), "all_reduce")),
        ("-n 0 allreduce", (error_text("n", "0"), "a whole number from 1 on")),
        ("-n two allreduce", (error_text("n", "two"),)),
        ("-n 2", (error_text("collective", "none"), "torchcoll run -n 2 allreduce")),
        ("allreduce -n 2", (error_text("n", "none"), "before the collective")),
        ("-n 2 suite --collectives x", ("x",)),
    ],
)
def test_wrong_arguments_are_one_line_and_start_nothing(monkeypatch, capsys, words, parts):
    monkeypatch.setattr(os, "execv", None)
    assert main(["run", *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("torchcoll: error: ") and all(part in line for part in parts)


def test_the_check_loads_no_torch():
    code = (
        "import sys; from torchcoll.cli import main\n"
        "assert main(['run', '-n', '2', 'allreduce', '--size', '8']) == 2\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_it_becomes_torchrun(tmp_path):
    words = ["-n", "2", "allreduce", "--sizes", "8,1K", "-n", "5", "-J", "run.jsonl"]
    done = subprocess.run(
        [sys.executable, "-m", "torchcoll", "run", *words],
        cwd=tmp_path,
        env={**os.environ, **NO_NAMES},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert without_names(done.stderr) == "result file: run.jsonl\n"
    run = load(tmp_path / "run.jsonl")
    assert run.complete and run.ranks == 2 and run.header["launcher"] == "torchrun"
    assert [result.case.size_bytes for result in run.results] == [8, 1024]
