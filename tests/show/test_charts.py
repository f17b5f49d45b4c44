"""What the interactive charts draw where, and what they reduce."""

import numpy as np
import pytest
from handmade import MIB, case, result, run
from made_pairs import pairs_run
from made_runs import measured
from made_runs import run as launch

from torchcoll.core.soak_windows import SoakCase, SoakWindow
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.speed_up_charts import speed_up_charts
from torchcoll.questions.contention.show import soak_chart
from torchcoll.questions.contention.soaked import soaked
from torchcoll.questions.page.charts import (
    calls_chart,
    chosen,
    ranks_chart,
)
from torchcoll.questions.pairs.matches import read_pairs
from torchcoll.questions.pairs.pairs_charts import pairs_charts
from torchcoll.questions.show.size_charts import curves_charts, line_names, picture_of
from torchcoll.reading.inputs import load_all
from torchcoll.report.chart import PALETTE, WAITING, bars, heat_map, reduced
from torchcoll.stats.sides import Side


def traces(chart):
    return {trace.get("name"): trace for trace in chart.traces if trace.get("showlegend", True)}


def test_calls_in_order_of_the_slowest_rank_and_of_each():
    times = {"host": [[400, 100, 300, 200], [500, 500, 500, 900]]}
    one = result(2, time_ns=times, cold=(5000,))
    chart = calls_chart(run(one, ranks=2), one, key="0.0")
    drawn = traces(chart)
    assert (drawn["cold"]["x"], drawn["cold"]["y"]) == ([0], [5e-6])
    assert (drawn["steady"]["x"], drawn["steady"]["y"]) == ([1, 2, 3, 4], [5e-7, 5e-7, 5e-7, 9e-7])
    slowest, first, _second = chart.selectors[0].options
    assert [slowest.text, first.text] == ["slowest rank", "rank 0"]
    names = [trace["name"] for trace in chart.traces]
    assert first.traces["y"][names.index("steady")] == [4e-7, 1e-7, 3e-7, 2e-7]
    assert first.traces["y"][names.index("cold")] == [5e-6]
    assert chart.key == "0.0"
    picture = calls_chart(run(one, ranks=2), one, most_ranks=None)
    assert picture.layout["yaxis"]["title"]["text"] == "slowest rank"


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
    (line,) = soak_chart(soaked(of), of).traces
    assert line["x"] == [0.5, 1.5, 2.5, 3.5]
    assert line["y"] == [1.0, 1.0, 2.0, 1.0]
    assert line["name"] == "all_reduce 64M"


def test_two_modes_have_bands_and_far_calls_are_outliers():
    """40 calls of 100 us, 20 of 300 us, and one of 50 ms."""
    calls = [100_000 + n for n in range(40)] + [300_000 + n for n in range(20)] + [50_000_000]
    one = result(1, time_ns={"host": [calls]}, cold=())
    chart = calls_chart(run(one, ranks=1), one)
    drawn = traces(chart)
    assert (drawn["outliers"]["x"], drawn["outliers"]["y"]) == (
        [60],
        [0.05],
    )
    assert len(drawn["steady"]["x"]) == 60
    fast, slow = chart.layout["shapes"]
    assert 1e-4 <= fast["y0"] <= fast["y1"] <= 1.001e-4
    assert 3e-4 <= slow["y0"] <= slow["y1"]


def test_of_many_calls_the_extremes_remain_and_it_is_said():
    """Every 250 calls: one of them is the shortest, one the longest."""
    calls = [1000] * 10_000
    calls[4321], calls[8765] = 10, 1_000_000
    assert {4321, 8765} <= set(reduced(calls, 80))
    assert len(reduced(calls, 80)) <= 80
    assert reduced([3, 1, 2], 3) == [0, 1, 2]
    one = result(1, time_ns={"host": [calls]})
    chart = calls_chart(run(one, ranks=1), one, most_points=80)
    drawn = traces(chart)
    assert len(drawn["steady"]["x"]) + len(drawn["outliers"]["x"]) <= 80
    assert 0.001 in drawn["outliers"]["y"]
    assert any("of every 250 calls" in line for line in chart.caption)
    (histogram,) = [trace for trace in chart.traces if trace.get("xaxis") == "x2"]
    assert sum(histogram["x"]) == 10_000


def test_of_many_ranks_the_slow_and_the_fast_can_be_chosen():
    samples = [[100 + rank] * 3 for rank in range(40)]
    samples[7] = [107, 107, 9000]
    one = result(40, time_ns={"host": samples})
    chart = calls_chart(run(one, ranks=40), one, most_ranks=4)
    assert [option.text for option in chart.selectors[0].options] == [
        "slowest rank", "rank 0", "rank 7", "rank 20", "rank 39",
    ]  # fmt: skip
    assert "reduced: 4 of 40 ranks can be chosen" in chart.caption


def test_curves_have_both_figures_and_know_their_cases():
    """1 MiB in 1 ms on 4 ranks: 1.048576 GB/s, times 2 (n - 1) / n of all_reduce = 1.572864."""
    one = result(4, case=case(size_bytes=MIB), time_ns={"host": [[1_000_000] * 5] * 4})
    (chart,) = curves_charts(picture_of([Side("", [run(one, ranks=4)])]), keys={id(one): "0.0"})
    line = chart.traces[-1]
    figure = chart.selectors[0]
    assert (line["x"], line["y"], line["customdata"]) == ([MIB], [0.001], ["0.0"])
    assert [option.text for option in figure.options] == ["time", "bus bandwidth"]
    assert figure.options[1].traces["y"][-1] == [1.573]
    assert "1M: 1.000 ms" in line["text"][0] and "1.573 GB/s busbw" in line["text"][0]


def test_speed_ups_with_their_intervals():
    old = [launch(measured(ns)) for ns in (1000, 1010, 990)]
    new = [launch(measured(ns)) for ns in (2000, 2020, 1980)]
    (chart,) = speed_up_charts(compare(Side("old", old), Side("new", new)))
    (slower,) = chart.traces
    assert slower["name"] == "slower"
    assert slower["x"] == pytest.approx([0.5], rel=0.05)
    assert 0 < slower["error_x"]["arrayminus"][0] < 0.5
    axis = chart.layout["xaxis"]
    assert axis["title"]["text"] == "new against old"
    assert axis["ticktext"] == ["2x<br>slower", "1.5x<br>slower", "1.2x<br>slower", "1x"]
    assert chart.layout["yaxis"]["ticktext"] == ["all_reduce 1K"]


def test_the_worst_cases_are_the_first_rows():
    """Of 8 sizes, one is twice as slow, one 10 % slower, and one twice as fast."""

    def runs(factors):
        return [
            launch(
                *(measured(1000 * factors.get(n, 1) + noise, size_bytes=1 << n) for n in range(8))
            )
            for noise in (0, 1, 2)
        ]

    old, new = runs({}), runs({2: 2, 4: 0.5, 6: 1.1})
    (chart,) = speed_up_charts(compare(Side("old", old), Side("new", new)))
    names = [name.removeprefix("all_reduce ") for name in chart.layout["yaxis"]["ticktext"]]
    assert names[:3] == ["4", "16", "64"]
    (label,) = chart.layout["annotations"]
    assert (label["text"], label["x"]) == ("same", 0)


def test_rows_are_sorted_by_difference_below_the_case_that_the_answer_names():
    """Of 6 sizes, 5 are 2 to 6 times faster, and one is not decided."""

    def runs(factors, noise):
        return [
            launch(
                *(
                    measured((1000 + shift * (40 if n == 3 else 1)) / factor, size_bytes=1 << n)
                    for n, factor in enumerate(factors)
                )
            )
            for shift in noise
        ]

    old = runs([1] * 6, (-10, 0, 10))
    new = runs([2, 4, 3, 1.1, 6, 5], (12, -8, 1))
    comparison = compare(Side("old", old), Side("new", new))
    assert "not decided: 8 1.02x faster" in comparison.answer.text
    (chart,) = speed_up_charts(comparison)
    names = [name.removeprefix("all_reduce ") for name in chart.layout["yaxis"]["ticktext"]]
    assert names == ["8", "16", "32", "2", "4", "1"]
    assert any(
        line.startswith("the cases that the answer names are on top") for line in chart.caption
    )


def test_the_map_of_ranks_is_relative_to_the_other_ranks():
    """Of 100, 200, 300 ns the others have the medians 250, 200, 150 ns."""
    one = result(3, time_ns={"host": [[100] * 3, [200] * 3, [300] * 3]})
    chart = ranks_chart(run(one, ranks=3), {id(one): "0.0"})
    (trace,) = chart.traces
    assert trace["z"] == [[0.4], [1.0], [2.0]]
    assert trace["text"] == [["-60 %"], ["+0 %"], ["+100 %"]]
    assert trace["meta"]["keys"] == ["0.0"]
    assert ranks_chart(run(result(1), ranks=1)) is None


def test_a_large_map_shows_the_slowest_of_neighbours():
    samples = [[100] * 3 for _ in range(1024)]
    samples[600] = [150] * 3
    one = result(1024, time_ns={"host": samples})
    chart = ranks_chart(run(one, ranks=1024))
    (trace,) = chart.traces
    assert len(trace["z"]) == 256
    assert trace["z"][150] == [1.5] and trace["y"][150] == 600
    assert sum(row != [1.0] for row in trace["z"]) == 1
    assert "reduced: each row is the slowest of 4 neighbouring ranks" in chart.caption


def test_pairs_are_symmetric_and_blank_on_the_diagonal():
    pairs = read_pairs(pairs_run(5, slow=3))
    for chart in pairs_charts(pairs):
        z = chart.traces[0]["z"]
        assert all(z[n][n] is None for n in range(5))
        assert len(z) == 5
    first = pairs_charts(pairs)[0].traces[0]["z"]
    assert first[0][1] == first[1][0] is not None


def test_a_slow_rank_of_pairs_has_a_frame_around_its_row_and_its_column():
    chart = pairs_charts(read_pairs(pairs_run(5, slow=3)))[0]
    frames = [[shape[end] for end in ("x0", "x1", "y0", "y1")] for shape in chart.layout["shapes"]]
    assert sorted(frames) == [[-0.5, 4.5, 2.5, 3.5], [2.5, 3.5, -0.5, 4.5]]
    assert [name for name in chart.traces[0]["y"] if "slow" in name] == ["3 (n3), slow"]
    assert "rank 3 (n3)" in chart.caption[0]
    # 1 MiB in 0.1 ms.
    assert chart.traces[0]["text"][0][1] == "10.5"


def test_a_slow_link_has_a_frame_around_its_two_cells():
    one = pairs_run(8, slow=None)
    for each in one.results:
        if each.members == [1, 4]:
            each.time_ns = {"host": [[4 * ns for ns in times] for times in each.time_ns["host"]]}
    chart = next(c for c in pairs_charts(read_pairs(one)) if "both ways" in c.title)
    frames = [[shape[end] for end in ("x0", "x1", "y0", "y1")] for shape in chart.layout["shapes"]]
    assert sorted(frames) == [[0.5, 1.5, 3.5, 4.5], [3.5, 4.5, 0.5, 1.5]]
    assert "link of rank 1 (n1) and rank 4 (n4)" in chart.caption[0]
    assert len(chart.caption) == 1
    # Alone, the link is as fast as the pairs beside it.
    again = read_pairs(one)
    pairs = ((1, 4), (4, 1), (0, 2), (2, 0))
    again.alone = [
        {
            key: dict.fromkeys(times.keys() & pairs, times[0, 2])
            for key, times in again.times.items()
        }
    ]
    chart = next(c for c in pairs_charts(again) if "both ways" in c.title)
    assert chart.layout["shapes"] == []
    assert chart.caption[1:] == [
        "fine when measured again alone: link of rank 1 (n1) and rank 4 (n4)",
        "measured while other pairs ran; the answer: slow pairs alone",
    ]
    assert not any("alone" in each.title for each in pairs_charts(again)[: len(again.times)])
    (healthy, *_) = pairs_charts(read_pairs(pairs_run(8, slow=None)))
    assert healthy.layout["shapes"] == [] and "would be" in healthy.caption[0]


def test_heat_maps_can_be_read_on_both_backgrounds():
    """Black figures have a contrast of 4.5 on each colour, and each colour 3 on dark paper."""
    chart = heat_map("", np.ones((2, 2)), [0, 1], [0, 1], "", "")
    for _, colour in chart.traces[0]["colorscale"]:
        assert (luminance(colour) + 0.05) / 0.05 >= 4.5
        assert (luminance(colour) + 0.05) / (luminance("#14171a") + 0.05) >= 3


@pytest.mark.parametrize("named", [False, True])
def test_files_that_name_no_device_are_not_pooled(tmp_path, named):
    """Two tables of nccl-tests of the same cases, without their lines of devices."""
    for name, time_us in (("a.txt", 100), ("b.txt", 300)):
        rows = [f"{n} {n // 4} float sum -1 {time_us} 1 1 0 {time_us} 1 1 0" for n in (1024, 4096)]
        head = "# nccl-tests version 2.17.6\n# Collective test starting: all_reduce_perf\n"
        columns = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        (tmp_path / name).write_text(head + columns + "\n".join(rows) + "\n")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    runs = load_all(map(str, files), ranks=8)
    picture = picture_of([Side("mine" if named else "", runs)])
    panel = picture.panels["all_reduce"]
    lines = {
        name: [point.time_ns for point in line.points]
        for line, name in zip(panel, line_names(panel), strict=True)
    }
    note = "mine: 2 files name no device and may be of several machines"
    if named:  # the reader says that they belong together
        assert note in picture.notes and len(lines) == 2
    else:
        assert picture.notes == [] and len(lines) == 4
        assert lines["in place, file b.txt"] == [300_000, 300_000]


def test_lines_are_in_the_order_of_their_ranks():
    runs = [run(result(n, case=case(size_bytes=MIB)), ranks=n) for n in (8, 128, 16)]
    (lines,) = picture_of([Side("", runs)]).panels.values()
    assert [line.values["ranks"] for line in lines] == [8, 16, 128]


def luminance(colour):
    """Of W3C's WCAG 2.1."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", PALETTE)
def test_lines_have_contrast_on_both_backgrounds(colour):
    assert 1.05 / (luminance(colour) + 0.05) >= 3
    assert (luminance(colour) + 0.05) / (luminance("#14171a") + 0.05) >= 3


def test_waiting_differs_from_what_is_beside_it_without_colours():
    waiting, computing = (
        bars("", [1, 2], ["", ""], colour, [False, True]) for colour in (WAITING, PALETTE[2])
    )
    assert waiting["marker"]["pattern"] == {"shape": [".", "/"]}
    assert computing["marker"]["pattern"] == {"shape": ["", "/"]}
    assert bars("", [1, 2], ["", ""], WAITING)["marker"]["pattern"] == {"shape": [".", "."]}


def test_a_chart_is_a_figure_of_plotly_with_its_controls():
    pytest.importorskip("plotly")
    one = result(2, time_ns={"host": [[400, 100], [500, 900]]})
    figure = calls_chart(run(one, ranks=2), one).figure()
    assert [button.label for button in figure.layout.updatemenus[0].buttons][1] == "rank 0"


def test_the_map_of_pairs_that_ran_alone_is_first_if_they_are_slow():
    measured_alone = read_pairs(*load_all(["results/pairs-6hosts/slow-link.jsonl"]))
    first = pairs_charts(measured_alone)[0]
    assert first.title == "4M both ways, slow pairs alone"
    speeds = np.array(first.traces[0]["z"], dtype=float)
    others = np.delete(np.delete(speeds, 4, 0), 4, 1)
    assert np.nanmax(speeds[4]) < np.nanmin(others)
    assert np.nanmedian(speeds[4]) == pytest.approx(56, abs=0.5)  # % in the answer
    assert first.caption[-1] == "% of the median of the other pairs; blank: not measured again"
