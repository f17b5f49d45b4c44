"""Pictures: what the lines, axes and captions of a figure say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from error_form import error_tail, error_text
from handmade import MIB, case, result, run

import torchcoll
from torchcoll import cli
from torchcoll.core.errors import UnavailableError, UsageError
from torchcoll.core.file import save
from torchcoll.parts.curves.transitions import transitions
from torchcoll.parts.curves.transitions_show import ranges_figure
from torchcoll.questions.check.rules import Limit
from torchcoll.questions.show.plot import lines_figure, picture_of
from torchcoll.questions.startup.cold import cold
from torchcoll.questions.startup.show import cold_figure
from torchcoll.stats.sides import side

pytest.importorskip("matplotlib")


def figure_of(*runs, limits=(), **sides):
    named = {name: [one] for name, one in sides.items()} or {"": list(runs)}
    return lines_figure(picture_of([side(name, own) for name, own in named.items()]), "max", limits)


def legend(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()] if axis.get_legend() else []


def caption(figure):
    return " ".join(figure.get_supxlabel().split())


def sweep(ranks=8, **changed):
    sizes = (MIB, 4 * MIB, 64 * MIB)
    return run(*(result(ranks, case=case(size_bytes=n, **changed)) for n in sizes), ranks=ranks)


def test_a_plot_is_a_picture(tmp_path, capsys):
    save(sweep(), tmp_path / "x.jsonl")
    assert cli.main(["plot", str(tmp_path / "x.jsonl"), "-o", "-"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "picture" in line and ".png" in line
    assert not (tmp_path / "-").exists()


def test_time_and_busbw_of_every_size():
    figure = figure_of(sweep())
    left, right = figure.axes
    times, widths = left.get_lines()[0], right.get_lines()[0]
    assert list(times.get_xdata()) == [MIB, 4 * MIB, 64 * MIB]
    assert list(times.get_ydata()) == [1_000_000] * 3
    # 64 MiB in 1 ms are 67.108864 GB/s; 8 ranks: times 2 x 7 / 8.
    assert widths.get_ydata()[-1] == pytest.approx(67.108864 * 1.75)
    assert [tick.get_text() for tick in left.get_xticklabels()] == [
        *("1M", "2M", "4M", "8M", "16M", "32M", "64M")
    ]
    assert left.get_title("left") == "all_reduce: time"
    assert right.get_ylabel() == "GB/s busbw" and right.get_ylim()[0] == 0
    # One line needs no name.
    assert legend(left) == []
    assert caption(figure) == (
        "all_reduce, float32, sum, in place; gloo on cpu, 8 ranks; clock host; mode synchronized; "
        "time = max over ranks, the slowest rank; line: median over calls; "
        "band: p5 to p95 of the calls of a "
        "run"
    )


def test_the_spread_of_times_is_that_of_the_bandwidth_upside_down():
    left, right = figure_of(sweep()).axes
    (times,), (widths,) = left.collections, right.collections
    (low, high) = times.get_paths()[0].get_extents().intervaly
    # The 5th and 95th percentile of the calls: see handmade.steady.
    assert (low, high) == pytest.approx((910_000, 1_090_000))
    # 64 MiB in 0.91 and (1 MiB) in 1.09 ms, times 1.75.
    (low, high) = widths.get_paths()[0].get_extents().intervaly
    assert high == pytest.approx(67.108864 * 1.75 / 0.91)
    assert low == pytest.approx(1.048576 * 1.75 / 1.09)


def test_one_size_has_bars_for_a_band():
    left, right = figure_of(run(result(case=case(size_bytes=MIB)))).axes
    for axis, ends in ((left, (910_000, 1_090_000)), (right, (1.835008 / 1.09, 1.835008 / 0.91))):
        (bar,) = axis.collections[1].get_segments()
        assert sorted(bar[:, 1]) == pytest.approx(ends)


def test_lines_are_named_by_what_they_differ_in():
    (left, _) = figure_of(
        run(result(case=case(size_bytes=MIB)), result(case=case(size_bytes=MIB, dtype="bfloat16")))
    ).axes
    assert legend(left) == ["float32", "bfloat16"]
    (left, _) = figure_of(before=sweep(), after=sweep(dtype="bfloat16")).axes
    assert legend(left) == ["before, float32", "after, bfloat16"]


def test_names_are_no_formulas_and_none_is_hidden(tmp_path):
    figure = figure_of(**{"a$x^$b": sweep(), "_hidden": sweep(dtype="bfloat16"), r"$\q$": sweep()})
    assert [name.strip() for name in legend(figure.axes[0])] == [
        r"a\$x^\$b, float32",
        "_hidden, bfloat16",
        r"\$\q\$, float32",
    ]
    figure.savefig(tmp_path / "a.png")  # where matplotlib reads them


def test_many_names_stand_beside_the_picture():
    ops = ("sum", "max", "min", "prod", "avg")
    results = [
        result(case=case(size_bytes=MIB, op=op, dtype=dtype))
        for op in ops
        for dtype in ("int8", "bf")
    ]
    left, right = figure_of(run(*results)).axes
    assert (legend(left), len(legend(right))) == ([], 10)
    # Six colours, then again with other dashes: see test_figures.py.
    assert len({x.get_color() for x in left.get_lines()}) == 6


def test_a_row_for_each_collective():
    results = [result(case=case(collective=name)) for name in ("all_reduce", "broadcast", "reduce")]
    titles = [axis.get_title("left") for axis in figure_of(run(*results)).axes]
    assert titles[::2] == [f"{n}: time" for n in ("all_reduce", "broadcast", "reduce")]


def test_what_is_wrong_is_a_cross_beside_the_line():
    bad = result(case=case(size_bytes=MIB), status="wrong")
    left, _ = figure_of(run(bad, result(case=case(size_bytes=4 * MIB)))).axes
    line, cross = left.get_lines()
    assert list(line.get_xdata()) == [4 * MIB]
    assert (list(cross.get_xdata()), cross.get_linestyle(), cross.get_marker()) == (
        [MIB],
        "None",
        "x",
    )
    assert legend(left)[-1] == "wrong"


def test_one_rank_shows_no_bandwidth():
    _, right = figure_of(sweep(ranks=1)).axes
    assert list(right.get_lines()) == []
    assert "one rank, or nothing was communicated" in right.texts[0].get_text()


def test_limits_stand_where_they_hold():
    limit = Limit("ring", ("all_reduce",), 370.0, "somebody")
    results = [result(case=case(collective=name)) for name in ("all_reduce", "broadcast")]
    _, reduced, _, sent = figure_of(run(*results), limits=[("a-fabric", limit)]).axes
    assert [text.get_text() for text in reduced.texts] == ["ring limit of a-fabric, 370"]
    assert list(reduced.get_lines()[-1].get_ydata()) == [370, 370]
    assert reduced.get_ylim()[1] > 370
    assert list(sent.texts) == []


def test_the_first_calls_over_ranks():
    runs = [
        run(result(n, (n * 1_000_000, 2_000_000, 500_000)), ranks=n, header={"start_utc": str(n)})
        for n in (2, 8)
    ]
    figure = cold_figure(cold(runs))
    (axis,) = figure.axes
    calls = {line.get_label(): list(line.get_ydata()) for line in axis.get_lines()}
    assert calls == {
        "1st": [2_000_000, 8_000_000],
        "2nd": [2_000_000] * 2,
        "3rd": [500_000] * 2,
        "steady": [1_000_000] * 2,
    }
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["2", "8"]
    assert (
        "time = max over ranks, the slowest rank; geometric means over runs, 1 at most"
        in caption(figure)
    )


def test_first_calls_on_one_number_of_ranks_are_strips_of_launches():
    """2 and 8 ms, whose geometric mean is 4 ms; the axis ends near the data."""
    runs = [
        run(result(2, (ns, 2_000_000, 500_000)), ranks=2, header={"start_utc": str(ns)})
        for ns in (2_000_000, 8_000_000)
    ]
    (axis,) = cold_figure(cold(runs)).axes
    names = [tick.get_text() for tick in axis.get_xticklabels()]
    assert names == ["1st call", "2nd call", "3rd call", "steady"]
    first, second, *_ = axis.get_lines()
    assert sorted(first.get_ydata()) == [2_000_000, 8_000_000]
    assert list(second.get_ydata()) == [2_000_000] * 2
    assert len(set(first.get_xdata())) == 2  # side by side
    assert axis.collections[0].get_segments()[0][0][1] == pytest.approx(4_000_000)
    assert 100_000 < axis.get_ylim()[0] < 500_000


def test_laws_and_transitions():
    # 10 us + n / 1 GB/s up to 64K; from 128K on twice as much time.
    sizes = [1024 << k for k in range(14)]
    times = [(10_000 + n) * (1 if n <= 65536 else 2) for n in sizes]
    results = [
        result(2, case=case(size_bytes=n), time_ns={"host": [[t] * 3] * 2})
        for n, t in zip(sizes, times, strict=True)
    ]
    figure = ranges_figure(transitions(run(*results, ranks=2)))
    left, right = figure.axes
    measured, below, above = left.get_lines()
    assert list(measured.get_ydata()) == pytest.approx(times)
    assert [line.get_xdata()[0] for line in (below, above)] == pytest.approx([1024, 131072])
    assert above.get_ydata()[-1] == pytest.approx(2 * (10_000 + sizes[-1]), rel=0.01)
    (span,) = left.patches
    assert (span.get_x(), span.get_x() + span.get_width()) == (65536, 131072)
    assert "1 to 2 between 64K and 128K" in caption(figure)
    assert right.get_ylabel() == "GB/s algbw"


def test_places_in_a_job_are_panels_of_their_own():
    runs = [
        run(result(n, (ns, 1, 1)), ranks=n, header={"job_id": str(n), "start_utc": str(place)})
        for n in (2, 8)
        for place, ns in enumerate((9_000_000, 1_000_000))
    ]
    first, second = cold_figure(cold(runs)).axes
    assert [axis.get_title(loc="left")[-8:] for axis in (first, second)] == ["in job 1", "in job 2"]
    assert [list(axis.get_lines()[0].get_ydata()) for axis in (first, second)] == [
        [9_000_000] * 2,
        [1_000_000] * 2,
    ]
    # One scale for both, so that they can be compared by eye.
    assert first.get_ylim() == second.get_ylim()
    assert first.get_ylim()[1] >= 9_000_000
    assert first.get_xlim() == second.get_xlim()
    assert [len(legend(axis)) for axis in (first, second)] == [4, 0]


@pytest.mark.parametrize(
    ("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_console_command(tmp_path, capsys, suffix, magic):
    save(sweep(), tmp_path / "run.jsonl")
    picture = tmp_path / f"a.{suffix}"
    assert cli.main(["plot", str(tmp_path / "run.jsonl"), "-o", str(picture)]) == 0
    assert capsys.readouterr().out == f"picture: {picture}\n"
    assert picture.read_bytes().startswith(magic)
    assert cli.main(["plot", f"new={tmp_path}/run.jsonl", "-o", str(picture), "--force"]) == 0


@pytest.mark.parametrize(("command", "word"), [("cold", "1st"), ("curve", "range")])
def test_commands_that_draw_beside_their_tables(tmp_path, capsys, command, word):
    save(run(result(2, (3_000_000, 2_000_000, 1_000_000)), ranks=2), tmp_path / "run.jsonl")
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
        ({"over_ranks": "sum"}, error_text("over-ranks", "sum", "one of max, mean, min, rank0")),
    ],
)
def test_what_was_found_is_drawn_as_it_was_read(tmp_path, choices, text):
    first = run(result(2), ranks=2)
    for found in (cold([first]), transitions([first])):
        with pytest.raises(UsageError, match=f"^{text}"):
            torchcoll.plot(found, tmp_path / "a.png", **choices)


def test_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnavailableError, match=r"matplotlib. Install torchcoll\[plot\]"):
        torchcoll.plot(sweep(), tmp_path / "a.png")


def test_more_lines_than_can_be_told_apart_say_how_to_filter():
    results = [result(2, case=case(group=f"mod:{n}/0")) for n in range(2, 60)]
    with pytest.raises(UsageError, match=error_text("lines", "58 in one panel", "at most 48")):
        figure_of(run(*results))
