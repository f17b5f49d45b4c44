"""Pictures of a run's calls, ranks, pairs and hours, and of the ratios of a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import one_line
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import completions, default_clock, has_period, median
from torchcoll.core.units import format_ns, format_size
from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.comparison.results import tables_of
from torchcoll.questions.comparison.show import titles_of
from torchcoll.questions.comparison.speed_up_charts import drawable_interval
from torchcoll.questions.comparison.wording import side_names, speed_of
from torchcoll.questions.contention.soaked import Soaked
from torchcoll.questions.pairs.matches import EXCHANGE, Pairs
from torchcoll.report.header import case_text
from torchcoll.report.pictures import (
    PALETTE,
    line_style,
    literal,
    new_figure,
    size_axis,
    time_axis,
    write_caption,
)
from torchcoll.report.sample_views import calls_in_order, rank_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchcoll.questions.comparison.results import Compared

_NAMED = 8  # ranks that have a line with a name each; of more the extremes
_CASES = 3  # of a run: the smallest size, a middle one, the largest
_CELLS = 64  # ranks of a heat map; more are merged
_PANELS = 8  # tables of a comparison, and lines of a soak, that are drawn


def sampled(run: Run) -> list[CaseResult]:
    return [result for result in run.results if result.is_right and result.time_ns]


def steady_samples(result: CaseResult) -> Sequence[Sequence[int]]:
    return result.time_ns[default_clock(result) or ""]


def chosen(run: Run) -> list[CaseResult]:
    """The cases that are drawn call by call: of the first kind of case its smallest, middle and
    largest size.
    """
    every = sampled(run)
    if not every:
        return []
    first = every[0].case
    alike = [r for r in every if replace(r.case, size_bytes=first.size_bytes) == first]
    alike.sort(key=lambda r: r.case.size_bytes)
    places = dict.fromkeys((0, len(alike) // 2, len(alike) - 1))
    return [alike[place] for place in places][:_CASES]


def calls_figure(run: Run, results: Sequence[CaseResult]) -> Figure:
    """A row a case: how its steady calls are distributed on each rank, and its calls in order."""
    figure, axes = new_figure(len(results), 2)
    for result, (left, right) in zip(results, axes, strict=True):
        period = has_period(result, default_clock(result))
        what = "interval between calls" if period else "time of a call"
        _draw_distributions(left, result)
        left.set_title(f"{case_text(result.case)}: {what}, by rank", loc="left")
        _draw_calls(right, result)
        right.set_title(f"{case_text(result.case)}: calls in order", loc="left")
    return figure


def _draw_distributions(axis: Axes, result: CaseResult) -> None:
    samples = steady_samples(result)
    middles = [median(times) if times else 0.0 for times in samples]
    order = sorted(range(len(samples)), key=middles.__getitem__)
    shown = order if len(order) <= _NAMED else [order[0], order[len(order) // 2], order[-1]]
    for place in order:
        times = sorted(samples[place])
        if not times:
            continue
        shares = [(n + 1) / len(times) for n in range(len(times))]
        if place not in shown:
            axis.step(times, shares, where="post", color="0.8", linewidth=0.5, zorder=1)
            continue
        number = shown.index(place)
        axis.step(times, shares, where="post", zorder=3, **line_style(number))
        height = (number + 1) / (len(shown) + 1)  # the names stand one below the other
        at = times[min(len(times) - 1, int(height * len(times)))]
        axis.annotate(
            f"rank {rank_of(result, place)}",
            (at, height),
            xytext=(4, -3),
            textcoords="offset points",
            fontsize="small",
            color=PALETTE[number % len(PALETTE)],
        )
    axis.set_xscale("log")
    _times(axis.xaxis, axis.get_xlim())
    axis.set_ylim(0, 1.02)
    axis.set_ylabel("share of the calls")
    axis.set_xlabel("at most so long")
    axis.grid(True, color="0.9")


def _times(axis: Any, limits: tuple[float, float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = limits
    every = tuple(range(1, 10)) if high / max(low, 1) < 8 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=every, numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda ns, _: format_ns(ns, 2)))
    axis.set_minor_formatter(NullFormatter())


_MARKS = {"cold": ("o", PALETTE[1]), "warmup": ("s", PALETTE[5]), "ramp_up": ("x", PALETTE[3])}
_MOST_CALLS = 2000  # points of one panel; of more the slowest of neighbours


def _draw_calls(axis: Axes, result: CaseResult) -> None:
    points: dict[str, list[tuple[float, float]]] = {}
    for name in dict.fromkeys(("host", default_clock(result))):
        for kind, numbers, samples in calls_in_order(result, name):
            times = completions(result, samples)
            points.setdefault(kind, []).extend(
                (call.start, ns) for call, ns in zip(numbers, times, strict=False)
            )
    for kind, calls in points.items():
        step = -(-len(calls) // _MOST_CALLS)
        merged = [max(calls[n : n + step], key=lambda p: p[1]) for n in range(0, len(calls), step)]
        if not merged:
            continue
        xs, ys = zip(*sorted(merged), strict=True)
        mark, colour = _MARKS.get(kind, (".", PALETTE[0]))
        axis.plot(xs, ys, linestyle="", marker=mark, markersize=3.5, color=colour)
        if kind in ("cold", "steady"):
            place = 0 if kind == "cold" else -1
            axis.annotate(
                f"{kind} calls",
                (xs[place], ys[place]),
                xytext=(5, 4) if kind == "cold" else (-5, 6),
                ha="left" if kind == "cold" else "right",
                textcoords="offset points",
                fontsize="small",
                color=colour,
            )
    axis.set_xlabel("number of the call (o cold, x lead)")
    time_axis(axis)
    axis.set_ylabel("slowest rank")
    axis.grid(True, color="0.9")


def rank_shares(run: Run, most: int) -> tuple[list[CaseResult], int, list[list[float]]]:
    """The map of ranks by cases: all cases with samples of every rank, how many neighbouring ranks
    are one row, and a column for each of the first ``most`` cases.

    most: rows and columns of the map. A value is a rank's own median over that of the median rank,
    of several ranks the largest; NaN where a rank has no samples.
    """
    results = [r for r in sampled(run) if len(steady_samples(r)) == run.ranks > 1]
    step = max(1, -(-run.ranks // most))
    columns = []
    for result in results[:most]:
        middles = [median(times) if times else math.nan for times in steady_samples(result)]
        present = [ns for ns in middles if not math.isnan(ns)]
        middle = (median(present) if present else 0.0) or 1.0
        rows = (middles[n : n + step] for n in range(0, len(middles), step))
        shares = ([ns / middle for ns in row if not math.isnan(ns)] for row in rows)
        columns.append([max(of_row, default=math.nan) for of_row in shares])
    return results, step, columns


def ranks_figure(run: Run) -> Figure | None:
    """A row a rank, a column a case. None where fewer than two ranks or no samples are there."""
    every, step, columns = rank_shares(run, _CELLS)
    if not every:
        return None
    results = every[:_CELLS]
    figure, axes = new_figure(1, 1)
    rows = [list(row) for row in zip(*columns, strict=True)]
    mesh = axes[0][0].pcolormesh(rows, cmap="cividis", edgecolors="none")
    axis = axes[0][0]
    names = _column_names(results)
    axis.set_xticks([n + 0.5 for n in names], list(names.values()), rotation=40, ha="right")
    places = range(0, len(rows), -(-len(rows) // 16))
    axis.set_yticks([n + 0.5 for n in places], [str(n * step) for n in places])
    axis.invert_yaxis()
    axis.set_ylabel("rank" if step == 1 else f"rank, the slowest of {step}")
    axis.tick_params(length=0)
    axis.set_title("own time of each rank / that of the median rank", loc="left")
    figure.colorbar(mesh, ax=axis, label="ratio")
    caption = ["a rank that arrives last waits least, so its time is the shortest"]
    if len(results) < len(every):
        caption.append(f"the first {len(results)} of {len(every)} cases")
    write_caption(figure, caption)
    if len(results) <= _NUMBERED and len(rows) <= _NUMBERED:
        middle = (mesh.norm.vmin + mesh.norm.vmax) / 2
        for y, row in enumerate(rows):
            for x, value in enumerate(row):
                # Black and white are those of the map, which is no part of the paper.
                colour = "#010101" if value > middle else "#fefefe"
                axis.text(x + 0.5, y + 0.5, f"{value:.2f}", ha="center", va="center",
                          fontsize="x-small", color=colour)  # fmt: skip
    return figure


_NUMBERED = 16  # columns and rows of a map whose cells have their figure in them


def _column_names(results: Sequence[CaseResult]) -> dict[int, str]:
    """Every case by its size where they are few; else where a collective or backend begins."""
    several = len({result.case.backend for result in results}) > 1
    names: dict[int, str] = {}
    before = ""
    for place, result in enumerate(results):
        backend = f" {one_line(result.case.backend)}" if several else ""
        if len(results) <= _NUMBERED:
            names[place] = case_text(result.case) + backend
        elif (name := result.case.collective) != before:
            names[place] = before = name
    return names


def pairs_figure(pairs: Pairs) -> Figure:
    """A map a measurement: row and column are units, colours what their pair reached."""
    keys = list(pairs.times)
    figure, axes = new_figure(-(-len(keys) // 2), min(2, len(keys)))
    places = [axis for row in axes for axis in row]
    count = len(pairs.units)
    for axis, key in zip(places, keys, strict=False):
        kind, size_bytes = key
        rows = [[float("nan")] * count for _ in range(count)]
        for (a, b), timing in pairs.times[key].items():
            ns = timing.median_ns
            value = pairs.gbps(key, (a, b), ns) if kind == EXCHANGE else ns / 1e3
            rows[a][b] = value
            if (b, a) not in pairs.times[key]:
                rows[b][a] = value
        mesh = axis.pcolormesh(rows, cmap="cividis")
        axis.invert_yaxis()
        axis.set_aspect("equal")
        each = -(-count // 16)
        ticks = range(0, count, each)
        axis.set_xticks([n + 0.5 for n in ticks], list(map(str, ticks)))
        axis.set_yticks([n + 0.5 for n in ticks], list(map(str, ticks)))
        axis.set_xlabel(pairs.by)
        axis.set_ylabel(pairs.by)
        what = f"{format_size(size_bytes)} both ways" if kind == EXCHANGE else f"{kind}"
        axis.set_title(what, loc="left")
        figure.colorbar(mesh, ax=axis, label="GB/s" if kind == EXCHANGE else "us")
    for axis in places[len(keys) :]:
        axis.set_visible(False)
    return figure


_RESULT_MARKS = {
    "slower": ("v", PALETTE[1]),
    "faster": ("^", PALETTE[2]),
    "same": ("o", PALETTE[0]),
    "inconclusive": ("x", "0.4"),
}


def speed_up_figure(comparison: Comparison) -> Figure | None:
    """How many times as fast the new side is over sizes, with the 95 % interval, a panel for each
    table of the comparison. None without a ratio.
    """
    matched = [row for row in comparison.rows if row.matched and row.ratio]
    every = [table for table in tables_of(matched) if table]
    tables = every[:_PANELS]
    if not tables:
        return None
    titles = titles_of([table[0].pair for table in tables])
    figure, axes = new_figure(-(-len(tables) // 2), min(2, len(tables)))
    places = [axis for row in axes for axis in row]
    base, new = side_names(comparison)
    for axis, table, title in zip(places, tables, titles, strict=False):
        _draw_speed_ups(axis, table, comparison)
        name = title or table[0].row.collective
        axis.set_title(literal(f"{name}: {new} against {base}"), loc="left", fontsize="small")
    for axis in places[len(tables) :]:
        axis.set_visible(False)
    if len(tables) < len(every):
        write_caption(figure, [f"the first {len(tables)} of {len(every)} tables"])
    return figure


def _draw_speed_ups(axis: Axes, table: Sequence[Compared], comparison: Comparison) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    same = 1 + comparison.threshold
    axis.axhspan(1 / same, same, color="0.85", linewidth=0)
    axis.axhline(1, color="0.4", linewidth=1)
    labelled: set[str] = set()
    sizes = [max(1, row.pair.size_bytes) for row in table]
    for row, size in zip(table, sizes, strict=True):
        speed, interval = speed_of(comparison, row), drawable_interval(comparison, row)
        mark, colour = _RESULT_MARKS.get(row.result, ("x", "0.4"))
        axis.plot([size], [speed], marker=mark, color=colour, linestyle="")
        if interval:
            axis.vlines([size], [interval[0]], [interval[1]], color=colour, linewidth=1.5)
        if row.result not in labelled:
            labelled.add(row.result)
            axis.annotate(
                row.result, (size, speed), xytext=(6, 4), textcoords="offset points",
                fontsize="small", color=colour,
            )  # fmt: skip
    size_axis(axis, sizes)
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    # Equal steps within a decade, where powers of ten would leave one tick or none.
    ticks = (
        LogLocator(subs=(1, 2, 5))
        if high > 10 * low
        else MaxNLocator(7, steps=(1, 2, 5, 10), min_n_ticks=3)
    )
    axis.yaxis.set_major_locator(ticks)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylabel("speed-up")


def soak_figure(soak: Soaked, run: Run) -> Figure:
    """A line a case: the median of each window over that of all, against hours since the start."""
    figure, axes = new_figure(1, 1)
    axis = axes[0][0]
    start = run.windows[0].start_wall_us
    cases = sorted(soak.cases, key=lambda c: -c.worst_over_median)[:_PANELS]
    ends = []
    for number, case in enumerate(cases):
        at = [
            ((w.start_wall_us + w.end_wall_us) / 2 - start) / 3.6e9
            for w in run.windows
            if any(soak_case.case == case.case for soak_case in w.cases)
        ]
        middle = median(list(case.medians_ns)) or 1.0
        shares = [ns / middle for ns in case.medians_ns]
        mark = {"marker": "o", "markersize": 3} if len(shares) < 60 else {}
        axis.plot(at, shares, **mark, **line_style(number))
        ends.append((shares[-1], at[-1], case_text(case.case), number))
    low, high = axis.get_ylim()
    height, least = float("-inf"), 0.05 * (high - low)
    for value, x, text, number in sorted(ends):
        height = max(value, height + least)  # names that would overlap move up
        axis.annotate(text, (x, height), xytext=(5, -3), textcoords="offset points",
                      fontsize="small", color=PALETTE[number % len(PALETTE)])  # fmt: skip
    axis.margins(x=0.12)
    axis.set_xlabel("hours since the first window")
    axis.set_ylabel("median / that of all windows")
    axis.set_title("time of each window, the cases that vary most", loc="left")
    axis.grid(True, color="0.9")
    return figure
