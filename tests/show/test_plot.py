"""Pictures: what their lines, axes and captions say, and the command that draws them."""

import sys
from pathlib import Path

import pytest
from error_form import error_tail, error_text
from handmade import MIB, case, result, run

import torchcoll
from torchcoll import cli
from torchcoll.core.errors import UnavailableError, UsageError
from torchcoll.core.file import save
from torchcoll.parts.curves.curves_charts import transitions_charts
from torchcoll.parts.curves.transitions import transitions
from torchcoll.questions.check.rules import Limit
from torchcoll.questions.show.size_charts import curves_charts, picture_charts, picture_of
from torchcoll.questions.startup.cold import cold
from torchcoll.questions.startup.cold_charts import cold_charts, start_charts
from torchcoll.report.shown import shown
from torchcoll.stats.sides import side

pytest.importorskip("matplotlib")


def charts_of(*runs, limits=(), **sides):
    named = {name: [one] for name, one in sides.items()} or {"": list(runs)}
    picture = picture_of([side(name, own) for name, own in named.items()])
    return curves_charts(picture, "max", limits)


def lines(chart):
    return {t["name"]: t for t in chart.traces if t["mode"] != "lines"}


def busbw(chart):
    """The bus bandwidths of each trace."""
    return next(o for o in chart.selectors[0].options if o.text == "bus bandwidth").traces["y"]


def sweep(ranks=8, **changed):
    sizes = (MIB, 4 * MIB, 64 * MIB)
    return run(*(result(ranks, case=case(size_bytes=n, **changed)) for n in sizes), ranks=ranks)


def test_a_plot_is_a_picture(tmp_path, capsys):
    save(sweep(), tmp_path / "x.jsonl")
    assert cli.main(["plot", str(tmp_path / "x.jsonl"), "-o", "-"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "picture" in line and ".png" in line
    assert not (tmp_path / "-").exists()


def test_the_headline_of_two_sides_says_which_is_faster(tmp_path):
    fast = result(8, case=case(size_bytes=MIB), time_ns={"host": [[500_000] * 5] * 8})
    sides = {"old": sweep(), "new": run(fast, ranks=8)}
    written = torchcoll.plot(sides, tmp_path / "a.png")
    headline = "new lacks 2 of 3 cases (4M, 64M); new looks 2.0x faster than old at 1M"
    assert written.text == headline


def test_time_and_busbw_of_every_size():
    (chart,) = charts_of(sweep())
    (line,) = lines(chart).values()
    assert line["x"] == [MIB, 4 * MIB, 64 * MIB]
    assert line["y"] == [1e-3] * 3
    # 64 MiB in 1 ms are 67.108864 GB/s; 8 ranks: times 2 x 7 / 8.
    assert busbw(chart)[-1][-1] == pytest.approx(67.108864 * 1.75, rel=1e-3)
    assert chart.layout["xaxis"]["ticktext"] == ["1M", "2M", "4M", "8M", "16M", "32M", "64M"]
    assert not chart.layout["showlegend"]  # one line needs no name
    assert [*chart.caption, *chart.notes] == [
        "all_reduce, float32, sum, in place; gloo on cpu, 8 ranks; clock host; mode synchronized; "
        "time = max over ranks, the slowest rank; line: median over calls; "
        "band: p5 to p95 of the calls of a run"
    ]


def test_the_spread_of_times_is_that_of_the_bandwidth_upside_down():
    (chart,) = charts_of(sweep())
    # The 5th and 95th percentile of the calls: see handmade.steady.
    times = chart.traces[0]["y"]
    assert (min(times), max(times)) == pytest.approx((910e-6, 1090e-6))
    # 64 MiB in 0.91 and (1 MiB) in 1.09 ms, times 1.75.
    widths = busbw(chart)[0]
    assert max(widths) == pytest.approx(67.108864 * 1.75 / 0.91, rel=1e-3)
    assert min(widths) == pytest.approx(1.048576 * 1.75 / 1.09, rel=1e-3)


def test_one_size_has_a_bar_for_a_band():
    (chart,) = charts_of(run(result(case=case(size_bytes=MIB))))
    bar = chart.traces[0]
    assert (bar["x"], bar["y"]) == ([MIB] * 2, pytest.approx([910e-6, 1090e-6]))
    assert bar["line"]["width"] == 1


def test_lines_are_named_by_what_they_differ_in():
    types = [result(case=case(size_bytes=MIB)), result(case=case(size_bytes=MIB, dtype="bfloat16"))]
    (chart,) = charts_of(run(*types))
    assert [*lines(chart)] == ["float32", "bfloat16"]
    (chart,) = charts_of(before=sweep(), after=sweep(dtype="bfloat16"))
    assert [*lines(chart)] == ["before, float32", "after, bfloat16"]


def test_a_chart_for_each_collective():
    results = [result(case=case(collective=name)) for name in ("all_reduce", "broadcast", "reduce")]
    titles = [chart.title for chart in charts_of(run(*results))]
    assert titles == ["all_reduce", "broadcast", "reduce"]


def test_what_is_wrong_is_a_cross_beside_the_line():
    bad = result(case=case(size_bytes=MIB), status="wrong")
    (chart,) = charts_of(run(bad, result(case=case(size_bytes=4 * MIB))))
    line, cross = lines(chart).values()
    assert line["x"] == [4 * MIB]
    assert (cross["x"], cross["mode"]) == ([MIB], "markers")
    assert cross["marker"]["symbol"] == "x-thin-open"
    assert cross["name"] == "all_reduce: wrong"


def test_one_rank_shows_no_bandwidth():
    (chart,) = charts_of(sweep(ranks=1))
    assert [selector.label for selector in chart.selectors] == ["scale", "spread"]
    assert chart.notes == ["no bandwidth: one rank, or nothing was communicated"]


def test_limits_stand_where_they_hold():
    limit = Limit("ring", ("all_reduce",), 370.0, "somebody")
    results = [result(case=case(collective=name)) for name in ("all_reduce", "broadcast")]
    reduced, sent = charts_of(run(*results), limits=[("a-fabric", limit)])
    assert reduced.traces[-1]["name"] == "ring limit of a-fabric: 370 GB/s"
    assert busbw(reduced)[-1] == [370, 370]
    assert [option.text for option in reduced.selectors[0].options] == ["bus bandwidth", "time"]
    assert reduced.selectors[0].options[1].traces["y"][-1] == [None, None]
    assert not any("limit" in trace.get("name", "") for trace in sent.traces)


def test_many_collectives_share_a_chart_with_their_limits():
    """Five charts would be longer than a screen; with 20 lines each has its bandwidth alone."""
    names = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
    ring, tree = Limit("ring", names, 370.0, "a"), Limit("tree", names[:2], 370.0, "b")
    limits = [("x", ring), ("x", tree), ("x", Limit("NVLS", names[:1], 475.0, "c"))]
    picture = picture_of([side("", [run(*(result(case=case(collective=n)) for n in names))])])
    (chart,) = picture_charts(picture, "max", limits)
    assert chart.title == "5 collectives" and [*lines(chart)] == [*names]
    assert not any("fill" in trace for trace in chart.traces)
    assert [trace["name"] for trace in chart.traces[-2:]] == [
        "ring and tree limit of x: 370 GB/s",
        "NVLS limit of x, all_reduce: 475 GB/s",
    ]
    runs = [sweep(collective=n, dtype=t) for n in names for t in ("int8", "int32", "int64", "half")]
    charts = picture_charts(picture_of([side("", runs)]))
    assert [chart.title for chart in charts] == [*names]
    assert {o.text for chart in charts for o in chart.selectors[0].options} == {"bus bandwidth"}


def test_the_first_calls_over_ranks():
    runs = [
        run(result(n, (n * 1_000_000, 2_000_000, 500_000)), ranks=n, header={"start_utc": str(n)})
        for n in (2, 8)
    ]
    (chart,) = cold_charts(cold(runs))
    assert {name: line["y"] for name, line in lines(chart).items()} == {
        "1st call": [2e-3, 8e-3],
        "2nd call": [2e-3] * 2,
        "3rd call": [5e-4] * 2,
        "steady": [1e-3] * 2,
    }
    assert chart.layout["xaxis"]["ticktext"] == ["2", "8"]
    assert chart.notes[1] == "time = max over ranks, the slowest rank"


def test_first_calls_on_one_number_of_ranks_are_those_of_each_run():
    runs = [
        run(result(2, (ns, 2_000_000, 500_000)), ranks=2, header={"start_utc": str(ns)})
        for ns in (2_000_000, 8_000_000)
    ]
    (chart,) = cold_charts(cold(runs))
    assert [*lines(chart)] == ["1st call", "2nd call", "3rd call", "steady"]
    first, second, *_ = lines(chart).values()
    assert first["y"] == [2e-3, 8e-3]
    assert second["y"] == [2e-3] * 2
    assert first["x"] == [1, 2]
    assert {trace["mode"] for trace in chart.traces} == {"markers"}  # the order says nothing


def test_the_start_is_a_bar_of_its_steps_on_their_slowest_ranks():
    phases = {"import_torch": [2_000_000, 3_000_000], "rendezvous": [500_000, 400_000]}
    one = run(result(2, (7_000_000, 1_000_000)), ranks=2, phases=phases)
    chart, *first_calls = shown(cold([one, one])).charts(cold([one, one]))
    assert len(first_calls) == 1
    assert {trace["name"]: trace["x"] for trace in chart.traces} == {
        "import torch 3.00 ms": [3e-3] * 2,
        "rendezvous 500 us": [5e-4] * 2,
        "first call 7.00 ms": [7e-3] * 2,
    }
    assert len({trace["marker"]["color"] for trace in chart.traces}) == 3
    assert len({*chart.traces[0]["y"]}) == 2  # bars of one name would be one bar
    assert start_charts(cold(run(result(2, (7_000_000, 1_000_000)), ranks=2, phases={}))) == []


def test_laws_and_transitions():
    # 10 us + n / 1 GB/s up to 64K; from 128K on twice as much time.
    sizes = [1024 << k for k in range(14)]
    times = [(10_000 + n) * (1 if n <= 65536 else 2) for n in sizes]
    results = [
        result(2, case=case(size_bytes=n), time_ns={"host": [[t] * 3] * 2})
        for n, t in zip(sizes, times, strict=True)
    ]
    (chart,) = transitions_charts(transitions(run(*results, ranks=2)))
    measured, below, above = chart.traces
    assert measured["y"] == pytest.approx([t * 1e-9 for t in times], rel=1e-3)
    assert [line["x"][0] for line in (below, above)] == pytest.approx([1024, 131072])
    assert above["y"][-1] == pytest.approx(2e-9 * (10_000 + sizes[-1]), rel=0.01)
    (span,) = chart.layout["shapes"]
    assert (span["x0"], span["x1"]) == (65536, 131072)
    assert any(line.startswith("64K to 128K: jumps 2.0x") for line in chart.notes)
    assert chart.selectors[0].options[1].layout["yaxis.title.text"] == "GB/s algbw"


def test_places_in_a_job_are_charts_of_their_own():
    runs = [
        run(result(n, (ns, 1, 1)), ranks=n, header={"job_id": str(n), "start_utc": str(place)})
        for n in (2, 8)
        for place, ns in enumerate((9_000_000, 1_000_000))
    ]
    first, second = cold_charts(cold(runs))
    assert [chart.title[-8:] for chart in (first, second)] == ["in job 1", "in job 2"]
    assert [lines(chart)["1st call"]["y"] for chart in (first, second)] == [[9e-3] * 2, [1e-3] * 2]
    # One scale for both, so that they can be compared by eye.
    assert first.shared and second.shared


@pytest.mark.parametrize(
    ("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_console_command(tmp_path, capsys, suffix, magic):
    save(sweep(), tmp_path / "run.jsonl")
    picture = tmp_path / f"a.{suffix}"
    assert cli.main(["plot", str(tmp_path / "run.jsonl"), "-o", str(picture)]) == 0
    # 64 MiB in 1 ms, times 1.75.
    assert capsys.readouterr().out == (
        "all_reduce on 8 gloo ranks takes 1.00 ms at 1M and reaches 117 GB/s of busbw at 64M\n"
        f"picture: {picture}\n"
    )
    assert picture.read_bytes().startswith(magic)
    assert cli.main(["plot", f"new={tmp_path}/run.jsonl", "-o", str(picture), "--force"]) == 0


def _sizes():
    """Three sizes on 2 ranks, each with a slow first call."""
    cold_ns = (3_000_000, 2_000_000, 1_000_000)
    return [result(2, cold_ns, case=case(size_bytes=MIB << k)) for k in range(3)]


@pytest.mark.parametrize(("command", "word"), [("cold", "1st"), ("curve", "range")])
def test_commands_that_draw_beside_their_tables(tmp_path, capsys, command, word):
    save(run(*_sizes()), tmp_path / "run.jsonl")
    picture = tmp_path / "a.png"
    assert cli.main([command, str(tmp_path / "run.jsonl"), "--plot", str(picture)]) == 0
    stated = capsys.readouterr()
    assert word in stated.out and stated.err == f"torchcoll: picture: {picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_files_are_named_after_themselves(tmp_path):
    from torchcoll.questions.show.command import _name

    assert _name("some/where/run.jsonl.gz", []) == "run"
    assert _name("some/where/run.jsonl", ["run"]) == "where/run"
    assert _name("some/where/run.jsonl", ["run", "where/run"]) == "some/where/run.jsonl"
    assert _name("some/where", []) == "where"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["-o", "a.bmp"],
            error_text("picture", "a.bmp", "a name that ends in"),
        ),
        (["-o", "no/such/a.png"], error_text("picture", "no/such/a.png", "a folder that exists")),
        (["--over-ranks", "sum"], error_text("over-ranks", "sum", "one of max, mean, min, rank0")),
        (["--filter", "dtype=int8"], "none with a time and a size with dtype=int8"),
        (["--fabric", "nvlink"], error_text("fabric", "nvlink", "one of")),
    ],
)
def test_bad_input(tmp_path, monkeypatch, capsys, words, text):
    monkeypatch.chdir(tmp_path)
    save(sweep(), "run.jsonl")
    assert cli.main(["plot", "run.jsonl", *words]) == 2
    error = capsys.readouterr().err
    assert text in error and len(error.splitlines()) == 1
    assert [p.name for p in Path().iterdir()] == ["run.jsonl"]


def test_a_picture_that_cannot_be_written(tmp_path):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(UsageError, match=error_tail(r"a\.png", "a file that can be written")):
        torchcoll.plot(sweep(), tmp_path / "a.png")


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"fabric": "ib-ndr:8"}, error_text("fabric", "ib-ndr:8", "runs or files with it")),
        ({"over_ranks": "mean"}, error_text("over-ranks", "mean", "runs or files with it")),
    ],
)
def test_what_was_found_is_drawn_as_it_was_read(tmp_path, choices, text):
    first = run(*_sizes())
    for found in (cold([first]), transitions([first])):
        with pytest.raises(UsageError, match=f"^{text}"):
            torchcoll.plot(found, tmp_path / "a.png", **choices)


def test_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnavailableError, match=r"matplotlib\. In .*pip install '\.\[plot\]'"):
        torchcoll.plot(sweep(), tmp_path / "a.png")


def test_more_lines_than_can_be_told_apart_say_how_to_filter(tmp_path):
    results = [result(2, case=case(group=f"mod:{n}/0")) for n in range(2, 60)]
    with pytest.raises(UsageError, match=error_text("lines", "58 in one panel", "at most 48")):
        torchcoll.plot(run(*results), tmp_path / "a.png")


def test_the_title_says_how_far_it_is_to_the_limits(tmp_path):
    asked = case(size_bytes=1 << 30, backend="nccl", device="cuda")
    reached = result(8, case=asked, time_ns={"device": [[5_071_000] * 3] * 8})
    picture = torchcoll.plot(run(reached), tmp_path / "x.svg", fabric="nvswitch-h200")
    assert picture.text.endswith(": 99.9 % of the ring limit and 78 % of the NVLS limit")
