"""Pictures of charts: each kind of chart is drawn, and its names, units and limits are in it."""

from __future__ import annotations

import numpy as np
import pytest

from torchcoll.report import chart
from torchcoll.report.chart import heat_map
from torchcoll.report.chart_matplotlib import MOST_CHARTS, caption_of, draw_charts, write_charts
from torchcoll.report.pictures import svg_text

pytest.importorskip("matplotlib")

SIZES = [1024, 4096, 16384]


def curve(*names, title="all_reduce", limit=None, notes=()):
    """Of 10 us, 20 us and 40 us: 1, 2 and 4 GB/s."""
    traces, times, widths = [], [], []
    for number, name in enumerate(names):
        traces += chart.time_bands([(n, 9e3, 5e4) for n in SIZES], number, name)
        widths.append([0.5] * 6)
        traces.append(chart.line(name, number, SIZES, [1e-5, 2e-5, 4e-5]))
        widths.append([1, 2, 4])
    times = [trace["y"] for trace in traces]
    if limit:
        traces.append(chart.reference(limit, SIZES, f"limit {limit}"))
        times.append([None, None])
        widths.append([limit, limit])
    layout = {"xaxis": chart.size_axis(SIZES), "yaxis": chart.time_axis(), "showlegend": True}
    figure = chart.time_or("bus bandwidth", "GB/s busbw", times, widths)
    return chart.Chart(title, traces, layout, [figure, chart.SCALES], ["line: median"], notes=notes)


def legend(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()] if axis.get_legend() else []


def ticks(axis):
    low, high = sorted(axis.get_view_interval())
    return [
        label.get_text()
        for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        if low <= at <= high
    ]


def test_time_and_bandwidth_are_side_by_side():
    left, right = draw_charts([curve("one", "two")]).axes
    assert [a.get_title("left") for a in (left, right)] == [
        "all_reduce: time",
        "all_reduce: bus bandwidth",
    ]
    assert list(left.get_lines()[1].get_ydata()) == [1e-5, 2e-5, 4e-5]
    assert list(right.get_lines()[1].get_ydata()) == [1, 2, 4]
    assert (left.get_yscale(), right.get_yscale()) == ("log", "linear")
    assert (left.get_ylabel(), right.get_ylabel()) == ("time of a call", "GB/s busbw")
    assert ticks(left.yaxis) == ["10 us", "20 us", "30 us", "40 us", "50 us"]
    assert ticks(left.xaxis) == ["1K", "2K", "4K", "8K", "16K"]
    assert right.get_ylim()[0] == 0
    assert [legend(axis) for axis in (left, right)] == [["one", "two"], []]
    assert len(left.patches) == 2  # a band of each


def test_a_row_for_each_chart():
    figure = draw_charts([curve("one", title=name) for name in ("all_reduce", "broadcast")])
    titles = [axis.get_title("left") for axis in figure.axes]
    assert titles[::2] == ["all_reduce: time", "broadcast: time"]
    assert figure.get_figheight() == pytest.approx(7.2)


def test_many_names_stand_beside_the_panels():
    left, right = draw_charts([curve(*map(str, range(16)))]).axes
    assert (legend(left), legend(right)) == ([], list(map(str, range(16))))


def test_a_limit_has_its_name_at_its_line():
    left, right = draw_charts([curve("one", limit=370)]).axes
    assert [text.get_text() for text in right.texts] == ["limit 370"]
    assert list(right.get_lines()[-1].get_ydata()) == [370, 370]
    assert right.get_ylim()[1] > 370
    assert list(left.texts) == []


def test_names_are_no_formulas_no_markup_and_none_is_hidden():
    names = ["a$x^$b", "_hidden", r"$\q$", "<b>"]
    figure = draw_charts([curve(*map(chart.plain, names))])
    assert [name.strip() for name in legend(figure.axes[0])] == [
        r"a\$x^\$b",
        "_hidden",
        r"\$\q\$",
        "<b>",
    ]
    svg_text(figure)  # where matplotlib reads them


def test_captions_are_printed_once_and_say_what_is_left_out():
    several = [curve("one", notes=["its note"])] * (MOST_CHARTS + 1)
    assert caption_of(several) == ["line: median", "its note", "the first 32 of 33 charts"]


def test_charts_of_one_scale():
    low, high = curve("one"), curve("one")
    for drawn in (low, high):
        drawn.selectors, drawn.shared = [], True
    high.traces[-1]["y"] = [0.1, 0.2, 0.4]
    first, second = draw_charts([low, high]).axes
    assert first.get_ylim() == second.get_ylim()
    assert ticks(second.yaxis) == ticks(first.yaxis)


def test_a_heat_map_has_names_and_numbers():
    drawn = heat_map("a map", np.array([[1.0, np.nan], [0.25, 3]]), ["x", "y"], [0, 1], "us", "")
    axis, scale = draw_charts([drawn]).axes
    assert [text.get_text() for text in axis.texts] == ["1", "", "0.25", "3"]
    assert (ticks(axis.xaxis), ticks(axis.yaxis)) == (["x", "y"], ["0", "1"])
    assert axis.get_ylim() == (2, 0)  # the first row is at the top
    assert scale.get_ylabel() == "us"
    many = heat_map("many", np.ones((2, 40)), range(40), [0, 1], "us", "")
    axis, _ = draw_charts([many]).axes
    assert ticks(axis.xaxis) == [str(n) for n in range(0, 40, 3)] and not axis.texts


def test_bars_errors_shapes_and_a_histogram():
    layout = {
        "xaxis": {"title": {"text": "number"}},
        "xaxis2": {"title": {"text": "calls"}, "rangemode": "tozero", "nticks": 3},
        "yaxis": {**chart.time_axis(), "zeroline": False},
        "shapes": [
            {"type": "rect", "xref": "paper", "y0": 1, "y1": 2, "fillcolor": "rgba(0,114,178,0.5)"},
            {"type": "line", "xref": "x", "x0": 3, "line": {"color": "#000000", "width": 1}},
        ],
    }
    layout["shapes"][1]["x1"] = 3
    points = {
        "mode": "markers", "name": "points", "x": [1, 2], "y": [1.0, None],
        "marker": {"symbol": "circle-open", "color": "#000000"},
    }  # fmt: skip
    errors = {"array": [1], "arrayminus": [0.5], "symmetric": False}
    histogram = {"xaxis": "x2", "x": [1, 2], "y": [1, 2], "line": {"color": "#000000"}}
    steps = chart.line("steps", 1, [1, 2], [1, 2], mode="lines")
    steps["line"]["shape"] = "hv"
    hidden = {**points, "visible": "legendonly", "name": "hidden"}
    calls = chart.Chart("calls", [points, steps, histogram, hidden], layout)
    calls.more_traces = [{**points, "x": [1], "y": [1.0], "error_y": errors, "name": ""}]
    (axis,) = draw_charts([calls]).axes
    assert axis.get_legend_handles_labels()[1] == ["points", "steps"]
    assert list(axis.get_lines()[0].get_xdata()) == [1]
    assert axis.get_lines()[1].get_drawstyle() == "steps-post"
    (segment,) = axis.collections[0].get_segments()
    assert list(segment[:, 1]) == [0.5, 2]
    (side,) = axis.child_axes
    assert side.get_xlabel() == "calls" and side.get_ylim() == axis.get_ylim()
    bars = {"type": "bar", "name": "total", "x": [3, None], "y": ["a", "b"]}
    bars["marker"] = {"color": "#000000"}
    layout = {"xaxis": {"ticksuffix": "s"}, "yaxis": {"autorange": "reversed", "automargin": True}}
    (axis,) = draw_charts([chart.Chart("bars", [bars], layout)]).axes
    assert [bar.get_width() for bar in axis.patches] == [3, 0]
    assert axis.yaxis_inverted()


def test_the_same_picture_is_the_same_text_without_a_script():
    texts = [
        svg_text(draw_charts([curve("one", title="</svg><script>x</script>")])) for _ in range(2)
    ]
    assert "<script" not in texts[0]
    assert texts[0] == texts[1]


def test_a_picture_has_its_caption(tmp_path):
    drawn = write_charts([curve("one", notes=["a note"])], tmp_path / "a.svg")
    svg = drawn.path.read_text()
    assert svg.startswith("<?xml") and "<!-- a note -->" in svg
