"""What a terminal or a spreadsheet would obey reaches neither."""

from __future__ import annotations

import csv
import io
import json

import pytest
from handmade import Terminal, case, result, run

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.reading.inputs import load
from torchcoll.report.destination import Destination
from torchcoll.report.formats import records_csv
from torchcoll.report.grid import Grid, Head, print_grid
from torchcoll.report.pictures import literal

EVIL = "a\x1b[31m\x07\x00\x9b2J\u202eb\nc\ud800"  # ESC, BEL, NUL, C1, bidi, a line end, a surrogate


def clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_error_lines():
    for error in (
        UsageError("file", EVIL, "x"),
        UsageError(f"trace {EVIL}", "y", "x"),
        UsageError("file", "y", f"a {EVIL}", f"See {EVIL}."),
    ):
        assert error.line().isprintable()


@pytest.mark.parametrize(
    "arguments",
    [[f"a{EVIL}"], ["show", "a\x1b]0;b\x07.jsonl"], ["show", "x", "--columns", "\x9bz"]],
)
def test_arguments(capsys, arguments):
    assert main(arguments) in (2, 3)
    stated = capsys.readouterr().err
    assert stated.startswith("torchcoll: error: ") and stated.count("\n") == 1 and clean(stated)


def _file(folder, name="run.jsonl"):
    asked = {"collective": "all_reduce", "size_bytes": 8, "backend": "gl\x1boo", "dtype": "float32"}
    records = [
        {
            "record": "header",
            "schema": "torchcoll/2",
            "ranks": 2,
            "run_id": EVIL,
            "start_utc": EVIL,
            "spec": {"labels": {EVIL: EVIL, "formula": "=1+1"}},
            "environment": {"host": EVIL, "torch": EVIL},
        },
        {
            "record": "ranks",
            "ranks": [{"rank": r, "host": f"h{EVIL}", "device": "cpu"} for r in (0, 1)],
        },
        {
            "record": "case",
            "case": asked,
            "status": "ok",
            "ranks": 2,
            "size_bytes": 8,
            "reason": EVIL,
            "time_ns": {"host": [[5], [6]]},
            "warnings": [EVIL],
            "stop": EVIL,
        },
        {
            "record": "case",
            "case": asked | {"size_bytes": 16},
            "status": "failed",
            "ranks": 2,
            "reason": EVIL,
        },
        {"record": "event", "kind": "warning", "message": EVIL},
    ]
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--format", "markdown"],
        ["--format", "csv"],
        ["--view", "ranks"],
        ["--view", "calls"],
        ["--view", "pivot:backend"],
    ],
)
def test_what_a_file_holds(tmp_path, capsys, words):
    assert main(["show", str(_file(tmp_path, "r\x1b[1m.jsonl")), *words]) == 0
    stated = capsys.readouterr()
    assert clean(stated.out) and clean(stated.err)


def test_a_table_on_a_terminal():
    out = Terminal()
    print_grid(Grid([Head("h")], [[EVIL]], styles=["red"]), Destination(out))
    Destination(out).write(EVIL)
    assert clean(out.text())


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-a", "'-a"),
        ("'=1", "''=1"),
        (["=a", "b"], "'=a,b"),
        # Numbers are no formulas.
        (-5, "-5"),
        (-0.25, "-0.25"),
        ("-5", "-5"),
        ("+1.5e-3", "+1.5e-3"),
        ([-1, 2], "-1,2"),
        ("a=1", "a=1"),
    ],
)
def test_cells_that_a_spreadsheet_would_run(value, cell):
    (row,) = csv.DictReader(io.StringIO(records_csv([{"x": value}])))
    assert row["x"] == cell


def test_a_cell_comes_back_as_it_was(tmp_path):
    """``torchcoll convert`` reads CSV: the types and operations of foreign texts too."""
    rows = [{"collective": "all_reduce", "size": 1024, "time_us": 3.5, "ranks": 2, "op": "=sum"}]
    path = tmp_path / "a.csv"
    path.write_text(records_csv(rows))
    assert "'=sum" in path.read_text()
    assert main(["convert", str(path), "-o", str(tmp_path / "a.jsonl")]) == 0
    assert load(tmp_path / "a.jsonl").results[0].case.op == "=sum"


def test_a_surrogate_in_the_name_of_a_side_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "run.jsonl"
    save(run(*(result(case=case(size_bytes=1 << n)) for n in (10, 12))), path)
    assert main(["plot", f"a\ud800={path}", "-o", str(tmp_path / "a.svg")]) == 0


def test_a_label_that_is_drawn():
    """matplotlib refuses half of a surrogate pair, and reads what stands between $ as a formula."""
    drawn = literal("a\ud800$x$\x1b[2J")
    assert drawn.isprintable() and drawn.encode() and drawn.count(r"\$") == 2
