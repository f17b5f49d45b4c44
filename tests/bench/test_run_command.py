"""``torchcoll run``: arguments are checked before torchrun starts. That it then is torchrun shows
tests/bench/test_bench_torchrun.py.
"""

import os
import subprocess
import sys

import pytest
from error_form import error_text

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
