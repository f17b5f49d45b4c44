"""The table of the fields of a Spec and its cases: one entry there makes an option of a run."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from error_form import error_line

from torchcoll.core.case import DIMENSIONS, FIELDS, SETTINGS, Case
from torchcoll.core.spec import Spec
from torchcoll.core.summary import Row
from torchcoll.stats.matching import NAMES

ROOT = Path(__file__).parents[2]


def test_every_field_of_a_spec_is_in_the_table():
    """Labels belong to one run, and points are calls that a traffic file has."""
    assert {field.name for field in dataclasses.fields(Spec)} == {*FIELDS, "labels", "points"}


def test_a_setting_is_the_same_in_every_class():
    for setting in SETTINGS:
        for kind in (Spec, Case):
            assert kind.__dataclass_fields__[setting.name].default == setting.default
        for kind in (Case, Row):
            assert kind.__dataclass_fields__[setting.name].type == setting.kind.__name__


def test_every_field_of_a_case_distinguishes_it():
    """A rehearsal is never compared; the rest are what the ranks add to a case."""
    assert {field.name for field in dataclasses.fields(Case)} - {"size_bytes"} == {*DIMENSIONS} - {
        "ranks",
        "communicator",
        "clock",
    }
    assert {*NAMES} == {*DIMENSIONS} - {"rehearsal"}


ENTRY = 'Setting("pause_ms", "wait first ({default})", int, default=0, head=("pause", "ms")),'
PROGRAM = """
import contextlib, io, json

import torchcoll
from torchcoll.bench.options import _parser, parse
from torchcoll.cli import main
from torchcoll.core.file import save


def printed(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(list(words))
    return int(code), out.getvalue()


asked = parse(["--pause-ms", "5", "--sizes", "8", "-n", "2"], "all_reduce", "torchcoll.allreduce")
spec = asked.spec
save(torchcoll.run(spec), "paused.jsonl")
save(torchcoll.run(torchcoll.Spec(sizes="8", iters=2)), "plain.jsonl")
print(json.dumps({
    "recorded": [torchcoll.load(f"{name}.jsonl").results[0].case.pause_ms
                 for name in ("paused", "plain")],
    "again": printed("again", "paused.jsonl", "--dry-run"),
    "columns": printed("show", "paused.jsonl", "--columns", "pause_ms", "--format", "csv"),
    "frame": torchcoll.table(torchcoll.load("paused.jsonl")).pause_ms.tolist(),
    "compare": printed("compare", "plain.jsonl", "paused.jsonl"),
    "help": next(a.help for a in _parser("", False)._actions if a.dest == "pause_ms"),
}))
"""


def test_one_entry_makes_an_option(tmp_path):
    """In a copy, whose table has one more line."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "torchcoll", tmp_path / "torchcoll", ignore=ignored)
    table = tmp_path / "torchcoll/core/case.py"
    before, after = table.read_text().split("\n)\nFIELDS =")
    table.write_text(f"{before}\n    {ENTRY}\n)\nFIELDS ={after}")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["recorded"] == [5, 0]
    code, text = printed["again"]
    assert code == 0 and " --pause-ms 5 " in text
    assert printed["columns"] == [0, "pause_ms\n5\n"]
    assert printed["frame"] == [5]
    actual = "nothing in common in pause_ms (0; 5)"
    line = error_line("cases", actual, "cases that both sides have")
    assert printed["compare"] == [2, f"{line}\n"]
    assert printed["help"] == "wait first (0)"
