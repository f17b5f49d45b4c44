"""Pictures of calls, ranks, hours and ratios: what is drawn where."""

from __future__ import annotations

import pytest
from handmade import MIB, case, result, run
from made_runs import measured
from made_runs import run as launch

from torchcoll.core.soak_windows import SoakCase, SoakWindow
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.contention.soaked import soaked
from torchcoll.questions.show.figures import (
    calls_figure,
    chosen,
    ranks_figure,
    soak_figure,
    speed_up_figure,
)
from torchcoll.report.pictures import line_style, new_figure, svg_text
from torchcoll.stats.sides import Side

pytest.importorskip("matplotlib")


def texts(axis):
    return [one.get_text() for one in axis.texts]


def test_the_distribution_of_each_rank_and_its_calls_in_order():
    times = {"host": [[400, 100, 300, 200], [500, 500, 500, 900]]}
    one = result(2, time_ns=times, cold=(5000,))
    left, right = calls_figure(run(one, ranks=2), [one]).axes
    first, second = left.get_lines()
    assert list(first.get_xdata()) == [100, 200, 300, 400]  # the faster rank comes first
    assert list(first.get_ydata()) == [0.25, 0.5, 0.75, 1.0]
    assert list(second.get_xdata()) == [500, 500, 500, 900]
    assert texts(left) == ["rank 0", "rank 1"]
    cold, steady = right.get_lines()
    assert [list(cold.get_xdata()), list(cold.get_ydata())] == [[0], [5000]]
    assert list(steady.get_xdata()) == [1, 2, 3, 4]
    assert list(steady.get_ydata()) == [500, 500, 500, 900]  # the slowest rank of each
    assert right.get_ylabel() == "slowest rank"


def test_of_many_ranks_the_extremes_have_names():
    one = result(12, time_ns={"host": [[100 + rank] * 3 for rank in range(12)]})
    left = calls_figure(run(one, ranks=12), [one]).axes[0]
    assert len(left.get_lines()) == 12
    assert texts(left) == ["rank 0", "rank 6", "rank 11"]


def test_the_smallest_a_middle_and_the_largest_size_are_drawn():
    sizes = [MIB << n for n in range(5)]
    of = [result(case=case(size_bytes=n)) for n in reversed(sizes)]
    of.append(result(case=case(size_bytes=1024, dtype="int32")))  # of another kind
    assert [r.case.size_bytes for r in chosen(run(*of))] == [MIB, 4 * MIB, 16 * MIB]
    # By torch's symmetric memory: as much another kind, below one title with the backend's own.
    own = [result(case=case(size_bytes=n)) for n in sizes]
    other = [result(case=case(size_bytes=n * 2, implementation="two_shot")) for n in sizes]
    assert {r.case.implementation for r in chosen(run(*own, *other))} == {"own"}
    assert chosen(run()) == []


def test_the_map_of_ranks_is_relative_to_the_median_rank():
    one = result(3, time_ns={"host": [[100] * 3, [200] * 3, [300] * 3]})
    axis, _bar = ranks_figure(run(one, ranks=3)).axes
    assert texts(axis) == ["0.50", "1.00", "1.50"]
    assert ranks_figure(run(result(1), ranks=1)) is None


def test_speed_ups_with_their_intervals():
    old = [launch(measured(ns)) for ns in (1000, 1010, 990)]
    new = [launch(measured(ns)) for ns in (2000, 2020, 1980)]
    found = compare(Side("old", old), Side("new", new))
    (axis,) = [axis for axis in speed_up_figure(found).axes if axis.get_visible()]
    drawn = [one for one in axis.get_lines() if one.get_marker() == "v"]
    assert [next(iter(one.get_ydata())) for one in drawn] == pytest.approx([0.5], rel=0.05)
    assert "slower" in texts(axis)
    assert axis.get_title("left") == "all_reduce: new against old"
    low, high = axis.collections[0].get_segments()[0][:, 1]
    assert low < 0.5 < high
    bottom, top = axis.get_ylim()
    assert len([tick for tick in axis.get_yticks() if bottom <= tick <= top]) >= 3


def test_hours_of_a_soak():
    hour = 3_600_000_000
    asked = case()
    windows = [
        SoakWindow(
            n, n, n * hour, (n + 1) * hour, (SoakCase(asked, 5, ns, ns, ns, {"80": 5}, {"0": 5}),)
        )
        for n, ns in enumerate((1000.0, 1000.0, 2000.0, 1000.0))
    ]
    of = run(windows=windows)
    (axis,) = soak_figure(soaked(of), of).axes
    (line,) = axis.get_lines()
    assert list(line.get_xdata()) == [0.5, 1.5, 2.5, 3.5]
    assert list(line.get_ydata()) == [1.0, 1.0, 2.0, 1.0]
    assert texts(axis) == ["all_reduce 64M"]


def test_thirty_lines_are_all_of_another_style():
    assert len({str(line_style(number)) for number in range(30)}) == 30


def test_the_same_picture_is_the_same_text_without_a_script():
    figure, axes = new_figure(1, 1)
    axes[0][0].plot([1, 2], [1, 2], **line_style(0))
    axes[0][0].set_title("</svg><script>x</script>")
    text = svg_text(figure)
    assert "<script" not in text
    assert text == svg_text(figure)
