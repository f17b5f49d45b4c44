"""Starts and curves over ranks on terminals: nothing is cut, whatever the width."""

import pytest
from handmade import Terminal, case, result, run

from torchcoll.parts.curves.scaling import scaling
from torchcoll.parts.curves.scaling_show import show_scaling
from torchcoll.questions.startup.cold import cold
from torchcoll.questions.startup.show import show_cold
from torchcoll.report.grid import Head, make_grid
from torchcoll.report.header import kind_texts
from torchcoll.report.notes import runs_lines


def recorded_runs():
    """Two runs of a job on each of 2, 4 and 8 ranks; a later case that is cold again."""
    later = {"case": case(size_bytes=8), "cold": (90_000_000, 1_000_000, 1_000_000), "ordinal": 20}
    return [
        run(
            result(ranks, (5_000_000 * ranks, 2_000_000, 1_000_000)),
            result(ranks, **later),
            ranks=ranks,
            header={"run_id": f"run-{ranks}-{k}", "job_id": str(ranks), "start_utc": str(k)},
        )
        for ranks in (2, 4, 8)
        for k in (1, 2)
    ]


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("what", ["cold", "scaling"])
def test_nothing_is_cut(what, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    if what == "cold":
        show_cold([cold(recorded_runs())], file=terminal)
        words = ["run-8-2", "90.00 ms", "2 of 2", "2nd run", "import torch"]
        words += ["library", "excess over"] if columns == 200 else []
    else:
        show_scaling([scaling(recorded_runs())], file=terminal)
        words = ["time to first result", "busbw", "constant"]
        words += ["90 % within 10 %", "maximum"] if columns == 200 else []
    shown = terminal.text()
    assert max(map(len, shown.splitlines())) <= columns
    # Rows stay whole: columns are left out, and named.
    assert ("wider terminal" in shown) is (columns == 80)
    assert [word for word in words if word not in shown] == []


def test_columns_that_nothing_fills_are_left_out():
    columns = [(Head("a"), str), (Head("b"), lambda n: "-"), (Head("c"), lambda n: "-" * (n > 1))]
    grid = make_grid(columns, [1, 2], above=["above"], below=["below"])
    assert ([head.first for head in grid.heads], grid.rows) == (["a", "c"], [["1", ""], ["2", "-"]])
    assert (grid.above, grid.below) == (["above"], ["below"])
    assert make_grid(columns, [], above=["above"]).above == []


def test_a_kind_is_named_by_the_usual_and_by_what_differs():
    common = {"collective": "all_reduce", "ranks": 4, "mode": "synchronized"}
    kinds = [common | {"size_bytes": n, "label=kernel": k} for n, k in ((8, "old"), (4096, "new"))]
    assert kind_texts(kinds) == [
        "all_reduce, 8 bytes, 4 ranks, kernel old",
        "all_reduce, 4K, 4 ranks, kernel new",
    ]


def test_what_several_launches_tell_stands_once():
    one, two, three = recorded_runs()[:3]
    one.events = [{"kind": "warning", "message": "busy"}]
    two.events = [{"kind": "warning", "message": "busy"}, {"kind": "warning", "message": "hot"}]
    lines = ["2 of 3 runs: warning: busy", "run-2-2: warning: hot"]
    assert runs_lines([one, two, three]) == lines
    assert runs_lines([one]) == ["warning: busy"]
