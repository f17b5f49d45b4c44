"""Time and bus bandwidth over sizes: the lines, and their charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.result import EXPECTED_STATUSES, CaseResult
from torchcoll.core.summary import Row
from torchcoll.core.units import counted, format_bandwidth, format_digits, format_ns, format_size
from torchcoll.report import chart
from torchcoll.report.columns import distinct_values
from torchcoll.report.header import common_text, kind_texts, reading
from torchcoll.stats.differences import hidden_among, hidden_note, kept_separate
from torchcoll.stats.filters import conditions
from torchcoll.stats.matching import NAMES, value_of
from torchcoll.stats.ratios import geometric
from torchcoll.stats.side_faults import faults_of_items
from torchcoll.stats.sides import (
    Measured,
    Reading,
    Side,
    known_of,
    unnamed_files,
    unnamed_note,
    value_of_fact,
)

if TYPE_CHECKING:
    from torchcoll.questions.check.rules import Limit


_BANDWIDTH = "bus bandwidth"
_MOST_ROWS = 4  # charts below each other in a picture
_MOST_TOGETHER = 16  # lines of several collectives in one chart
_FEW = 3  # collectives that the name of a limit does not list


@dataclass(frozen=True)
class PlotPoint:
    """One size of a line; times in ns, busbw in GB/s.

    low_ns, high_ns: of one run the 5th and 95th percentile of its calls, of several the least
    and the largest of their medians; None where a source does not tell them. busbw_gbps: None where
    nothing was communicated. results: what it was read from.
    """

    size_bytes: int
    time_ns: float
    low_ns: float | None
    high_ns: float | None
    busbw_gbps: float | None
    runs: int
    results: tuple[CaseResult, ...] = field(default=(), compare=False, repr=False)


@dataclass
class PlotLine:
    """Cases of one side that differ in nothing but the size.

    values: what they are, and the variables and labels that make lines of a side.
    doubted: those whose figure is not possible, or whose result was wrong: drawn, never joined.
    rows: what the points were read from.
    """

    side: str
    values: dict[str, Any]
    points: list[PlotPoint] = field(default_factory=list)
    doubted: list[PlotPoint] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


@dataclass
class Picture:
    """The lines of each collective, in the order measured, and what must stand beside them."""

    panels: dict[str, list[PlotLine]]
    notes: list[str]


def picture_of(sides: Sequence[Side], over_ranks: str = "max", filter: str = "") -> Picture:
    """Raises UsageError where no case has a time and a size."""
    wanted = conditions(filter)
    panels: dict[str, dict[str, PlotLine]] = {}
    notes = []
    for side in sides:
        which = f"{side.name}: " if side.name else ""
        facts = [(part.ranks, known_of(part)) for part in side.parts]
        separate = kept_separate(facts)
        runs = f"the runs of {side.name}" if side.name else "the runs"
        names = {name for part in side.parts for name in part.environment.get("libraries") or ()}
        shown = [*separate, "device_name", *names]
        notes.append(hidden_note(hidden_among([fact for _, fact in facts], shown), runs))
        unnamed = unnamed_files(side.runs)
        notes.append(unnamed_note(side) if side.name else "")
        groups: dict[str, tuple[dict[str, Any], list[Measured]]] = {}
        measured: list[Measured] = []
        without_time = 0
        items_of_side = side.measured("time", Reading(over_ranks))
        libraries: dict[str, set[str | None]] = {}
        for item in items_of_side:
            libraries.setdefault(item.row.backend, set()).add(item.row.library)
        for item in items_of_side:
            if not all(filter_term.holds(item) for filter_term in wanted):
                continue
            measured.append(item)
            if not item.figure:
                without_time += item.row.outcome in EXPECTED_STATUSES
            elif item.row.size_bytes:  # a barrier has no size
                values = {name: value_of(item, name) for name in NAMES}
                values |= {name: value_of_fact(item.facts, name) for name in separate}
                values["statistic"] = item.row.statistic
                # A mean over two machines or libraries is the figure of none.
                values["device_name"] = item.facts.get("device_name", "unknown")
                if not side.name and item.run in unnamed:
                    values["file"] = unnamed[item.run]
                if len(libraries[item.row.backend]) > 1:
                    values["library"] = item.row.library or "unknown"
                groups.setdefault(repr(values), (values, []))[1].append(item)
        if without_time:
            notes.append(f"{which}{counted(without_time, 'case')} not drawn: no time")
        notes += faults_of_items(side.name, len(side.runs), measured).texts
        for key, (values, items) in groups.items():
            panel = panels.setdefault(values["collective"], {})
            panel[f"{side.name} {key}"] = _line(side.name, values, items)
    if not panels:
        such = f" with {filter}" if filter else ""
        error = UsageError if filter else UnusableError
        raise error("cases", f"none with a time and a size{such}", "at least one")
    between = [known_of(part) for side in sides for part in side.parts[:1]]
    if len(sides) > 1 and (text := hidden_among(between, ())):
        notes.append(f"the sides are not alike in {text}")
    notes += dict.fromkeys(side.rehearsal_note for side in sides)
    order = [side.name for side in sides]
    lines = {
        name: sorted(
            panel.values(), key=lambda x: (order.index(x.side), x.values.get("ranks") or 0)
        )
        for name, panel in panels.items()
    }
    return Picture(lines, [note for note in notes if note])


def _line(side: str, values: dict[str, Any], items: Sequence[Measured]) -> PlotLine:
    line = PlotLine(side, values, rows=[item.row for item in items])
    for size_bytes in sorted({item.row.size_bytes for item in items}):
        of_size = [item for item in items if item.row.size_bytes == size_bytes]
        if right := [item for item in of_size if item.row.is_right]:
            line.points.append(_point(size_bytes, right))
        if wrong := [item for item in of_size if not item.row.is_right]:
            line.doubted.append(_point(size_bytes, wrong))
    return line


def _point(size_bytes: int, items: Sequence[Measured]) -> PlotPoint:
    by_run: dict[int, list[float]] = {}
    for item in items:
        by_run.setdefault(item.run, []).append(item.figure or 0.0)
    medians = [geometric(times_of_run) or 0.0 for times_of_run in by_run.values()]
    low: float | None
    high: float | None
    if len(medians) > 1:
        low, high = min(medians), max(medians)
    else:
        lows = [item.row.low_ns for item in items]
        highs = [item.row.high_ns for item in items]
        low = None if None in lows else min(x for x in lows if x is not None)
        high = None if None in highs else max(x for x in highs if x is not None)
    busbw = geometric([item.row.busbw_gbps for item in items])
    time_ns = geometric(medians) or 0.0
    results = tuple(item.result for item in items)
    return PlotPoint(size_bytes, time_ns, low, high, busbw or None, len(medians), results)


def check_lines(picture: Picture, most: int) -> None:
    """Raises UsageError if a panel has more lines than ``most``."""
    number = max(map(len, picture.panels.values()))
    if number > most:
        action = "--filter collective=NAME,dtype=NAME,... leaves fewer."
        raise UsageError("lines", f"{number} in one panel", f"at most {most}", action)


def line_names(lines: Sequence[PlotLine]) -> list[str]:
    """Each line by its side, where there are several, and by what the lines differ in."""
    sides = len({line.side for line in lines}) > 1
    texts = kind_texts([line.values for line in lines], always=())
    return [
        ", ".join(filter(None, [line.side if sides else "", text]))
        for line, text in zip(lines, texts, strict=True)
    ]


def picture_caption(picture: Picture, over_ranks: str) -> list[str]:
    rows = [row for lines in picture.panels.values() for line in lines for row in line.rows]
    points = [p for lines in picture.panels.values() for line in lines for p in line.points]
    sampled = any(row.low_ns for row in rows)
    drawn = any(p.low_ns for p in points)
    several = any(p.runs > 1 for p in points)
    where = " on ".join(", ".join(distinct_values(rows, name)) for name in ("backend", "device"))
    ranks = [str(n) for n in sorted(filter(None, {row.ranks for row in rows}))] or [
        "an unknown number of"
    ]
    parts = [common_text(rows), f"{where}, {', '.join(ranks)} ranks"]
    parts += [f"{name} {', '.join(distinct_values(rows, name))}" for name in ("clock", "mode")]
    parts.append(reading(rows, over_ranks) if sampled else "")
    statistics = [f"{statistic} over calls" for statistic in distinct_values(rows, "statistic")]
    bands = ["p5 to p95 of the calls of a run"] if sampled and drawn else []
    if several and drawn:
        bands.append("least to largest of the runs' medians where there are several")
    over_runs = ", geometric mean over runs" if several else ""
    parts.append(f"line: {' or '.join(statistics)}{over_runs}")
    if bands or not sampled:
        parts.append(f"band: {'; '.join(bands)}" if bands else "no band: the source has no samples")
    return ["; ".join(filter(None, parts)), *picture.notes]


def picture_charts(
    picture: Picture, over_ranks: str = "max", limits: Sequence[tuple[str, Limit]] = ()
) -> list[chart.Chart]:
    """The charts of a picture, whose reader cannot choose between them.

    More collectives than fit below each other share one chart, without the spread of each line.
    If they have too many lines for that, each has a chart of its bandwidth alone.
    """
    if len(picture.panels) <= _MOST_ROWS:
        return curves_charts(picture, over_ranks, limits)
    lines = [line for of_collective in picture.panels.values() for line in of_collective]
    action = "torchcoll plot --filter collective=NAME"
    if len(lines) <= _MOST_TOGETHER:
        shared = Picture({f"{len(picture.panels)} collectives": [*map(_without_spread, lines)]}, [])
        [drawn] = curves_charts(shared, over_ranks, limits)
        drawn.caption = [*picture_caption(shared, over_ranks), *picture.notes]
        drawn.notes = [*drawn.notes, f"one collective alone: {action}"]
        return [drawn]
    charts = curves_charts(picture, over_ranks, limits)
    for drawn in charts:
        figures = drawn.selectors[0]
        bandwidth = [option for option in figures.options if option.text == _BANDWIDTH]
        if bandwidth:
            drawn.selectors[0] = replace(figures, options=bandwidth)
    charts[0].caption.append(f"one collective with its times: {action}")
    return charts


def _without_spread(line: PlotLine) -> PlotLine:
    points, doubted = (
        [replace(point, low_ns=None, high_ns=None) for point in of_line]
        for of_line in (line.points, line.doubted)
    )
    return replace(line, points=points, doubted=doubted)


def curves_charts(
    picture: Picture,
    over_ranks: str = "max",
    limits: Sequence[tuple[str, Limit]] = (),
    keys: Mapping[int, str] = {},
) -> list[chart.Chart]:
    """Time and bus bandwidth over sizes, a chart for each collective, a line for each PlotLine.

    limits: (fabric, limit) whose busbw is drawn in the charts of the collectives that it holds for.
    keys: as of ``questions/page/charts.py``.
    """
    charts = []
    for collective, lines in picture.panels.items():
        drawn = _curves_chart(collective, lines, limits, keys)
        drawn.caption = picture_caption(picture, over_ranks)
        charts.append(drawn)
    return charts


def _curves_chart(
    collective: str,
    lines: Sequence[PlotLine],
    limits: Sequence[tuple[str, Limit]],
    keys: Mapping[int, str],
) -> chart.Chart:
    traces: list[dict[str, Any]] = []
    times: list[list[float | None]] = []
    bandwidths: list[list[float | None]] = []
    bands: list[int] = []
    several_runs = any(point.runs > 1 for line in lines for point in line.points)
    for number, (line, name) in enumerate(zip(lines, line_names(lines), strict=True)):
        name = chart.plain(name) or chart.plain(collective)
        intervals = [p for p in line.points if p.low_ns and p.high_ns]
        ends = [(p.size_bytes, p.low_ns, p.high_ns) for p in intervals]
        for spread in chart.time_bands(ends, number, name):
            bands.append(len(traces))
            traces.append(spread)
            times.append(spread["y"])
            # busbw is size / time x a factor: the longest time is the lowest bandwidth.
            there = [_busbw_at(p, p.high_ns) for p in intervals]
            back = [_busbw_at(p, p.low_ns) for p in reversed(intervals)]
            bandwidths.append([*there, *back])
        doubts = " or ".join(dict.fromkeys(filter(None, map(_doubt, line.rows))))
        kinds = [(line.points, "lines+markers", name)]
        if line.doubted:
            kinds.append((line.doubted, "markers", f"{name}: {chart.plain(doubts)}"))
        for points, mode, label in kinds:
            trace = chart.line(
                label,
                number,
                [p.size_bytes for p in points],
                [chart.seconds(p.time_ns) for p in points],
                [_point_text(label, p, several_runs) for p in points],
                mode=mode,
                legendgroup=name,
                customdata=[chart.keys_of(p.results, keys) for p in points],
            )
            if points is line.doubted:
                colour = trace.pop("line")["color"]
                trace["marker"] = {"symbol": "x-thin-open", "size": 11, "color": colour}
            traces.append(trace)
            times.append(trace["y"])
            bandwidths.append([chart.rounded(p.busbw_gbps) for p in points])
    sizes = [p.size_bytes for line in lines for p in (*line.points, *line.doubted)]
    limits_here = _limit_lines(lines, limits)
    for text, busbw_gbps in limits_here.items():
        traces.append(chart.reference(busbw_gbps, sizes, chart.plain(text)))
        times.append([None, None])
        bandwidths.append(traces[-1]["y"])
    selectors = []
    notes = []
    if any(value is not None for values in bandwidths for value in values):
        selectors.append(chart.time_or(_BANDWIDTH, "GB/s busbw", times, bandwidths))
    else:
        unknown = not all(row.ranks for line in lines for row in line.rows)
        why = "ranks unknown: torchcoll convert --ranks N" if unknown else _NOTHING_MOVED
        notes.append(f"no bandwidth: {why}")
    scales, yaxis = chart.SCALES, chart.time_axis()
    if limits and selectors:  # the question is how far it is to the limits, in every chart
        selectors[0] = replace(selectors[0], options=selectors[0].options[::-1])
        scales = replace(scales, options=scales.options[::-1])
        yaxis = {"title": {"text": "GB/s busbw"}, "type": "linear", "rangemode": "tozero"}
        traces = [trace | {"y": y} for trace, y in zip(traces, bandwidths, strict=True)]
    selectors.append(scales)
    if bands:
        options = [
            chart.Option(text, {"opacity": [value] * len(bands)}, {}, bands)
            for text, value in (("shown", 1), ("hidden", 0))
        ]
        selectors.append(chart.Selector("spread", options))
    layout = {
        "xaxis": chart.size_axis(sizes),
        "yaxis": yaxis,
        "showlegend": len(lines) > 1 or bool(limits_here),
    }
    return chart.Chart(chart.plain(collective), traces, layout, selectors, notes=notes)


def _limit_lines(
    lines: Sequence[PlotLine], limits: Sequence[tuple[str, Limit]]
) -> dict[str, float]:
    """The name and busbw of each limit that holds for these lines; equal limits are one."""
    drawn = dict.fromkeys(line.values["collective"] for line in lines)
    equal: dict[tuple[str, float], tuple[list[str], set[str]]] = {}
    for fabric, limit in limits:
        if held := set(drawn) & set(limit.collectives):
            algorithms, names = equal.setdefault((fabric, limit.busbw_gbps), ([], set()))
            algorithms.append(limit.algorithm)
            names |= held
    texts = {}
    for (fabric, busbw_gbps), (algorithms, names) in equal.items():
        of = f", {' and '.join(names)}" if len(names) < min(_FEW, len(drawn)) else ""
        text = f"{' and '.join(dict.fromkeys(algorithms))} limit of {fabric}{of}"
        texts[f"{text}: {format_digits(busbw_gbps, 4)} GB/s"] = busbw_gbps
    return texts


def bandwidth_map(
    picture: Picture, keys: Mapping[int, str], limits: Sequence[tuple[str, Limit]] = ()
) -> chart.Chart | None:
    """Bus bandwidth of several collectives over sizes. None if there are fewer than two rows.

    limits: as of ``curves_charts``, of one fabric. Colours and cells are shares of the largest
    limit of a collective, and collectives without a limit have no row. Without limits, cells are
    GB/s.
    """
    most: dict[str, float] = {}
    for _, limit in limits:
        for name in limit.collectives:
            most[name] = max(most.get(name, 0.0), limit.busbw_gbps)
    absent = [name for name in picture.panels if most and name not in most]
    uneven = len({most[name] for name in picture.panels if name in most}) > 1
    rows = {}
    full: list[list[float]] = []
    for collective in [name for name in picture.panels if name not in absent]:
        lines = picture.panels[collective]
        for line, name in zip(lines, line_names(lines), strict=True):
            if points := {p.size_bytes: p for p in line.points if p.busbw_gbps}:
                limit_text = f"of {format_digits(most[collective])}" if uneven else ""
                rows[", ".join(filter(None, (collective, name, limit_text)))] = points
                full.append([most.get(collective, 0.0)])
    if len(rows) < 2:
        return None
    sizes = sorted({size for points in rows.values() for size in points})
    figures = [[getattr(points.get(n), "busbw_gbps", math.nan) for n in sizes]
               for points in rows.values()]  # fmt: skip
    what = "limit" if most else "largest"
    shares = np.array(figures) / (np.array(full) if most else np.nanmax(figures))
    drawn = chart.heat_map(
        "bus bandwidth",
        shares,
        [format_size(size) for size in sizes],
        list(map(chart.plain, rows)),
        f"share of the {what}",
        f"%{{y}} %{{x}}: %{{customdata}} GB/s busbw<br>%{{z:.0%}} of the {what}<extra></extra>",
    )
    texts = [["" if math.isnan(x) else format_digits(x) for x in row] for row in figures]
    cells = [list(map(_share_text, row)) for row in shares] if most else texts
    results = [[r for points in rows.values() if n in points for r in points[n].results]
               for n in sizes]  # fmt: skip
    meta = {"keys": [chart.keys_of(of_size, keys) for of_size in results]}
    drawn.traces[0] |= {"text": cells, "customdata": texts, "meta": meta}
    if chart.texts_fit(cells):
        drawn.traces[0]["texttemplate"] = "%{text}"
    drawn.layout |= {"height": 150 + 40 * len(rows)}
    if most:
        drawn.caption = [
            f"cells and colours: the share of the limit of {limits[0][0]}, blue is slow; "
            "small sizes are bound by latency, not by this limit"
        ]
        if np.nanmax(shares) > _OVER:
            drawn.caption.append("!: above the limit: the limit or the measured time is too low")
    else:
        drawn.caption = ["GB/s of bus bandwidth; colours: its share of the largest, blue is slow"]
    drawn.caption += [f"without a limit, and no row: {', '.join(absent)}"] if absent else []
    return drawn


_OVER = 1.005  # a share that is more than 100 % when it is rounded


def _share_text(share: float) -> str:
    """``78 %`` of a limit, ``102 %!`` above it, '' for NaN."""
    if math.isnan(share):
        return ""
    mark = "!" if share > _OVER else ""
    return f"{100 * share:.{0 if share >= 0.01 else 1}f} %{mark}"


_NOTHING_MOVED = "one rank, or nothing was communicated"


def _busbw_at(point: PlotPoint, time_ns: float | None) -> float | None:
    if not (point.busbw_gbps and time_ns):
        return None
    return chart.rounded(point.busbw_gbps * point.time_ns / time_ns)


def _point_text(name: str, point: PlotPoint, several_runs: bool) -> str:
    lines = [name, f"{format_size(point.size_bytes)}: {format_ns(point.time_ns, 4)}"]
    if point.low_ns and point.high_ns:
        lines.append(f"spread {format_ns(point.low_ns, 4)} to {format_ns(point.high_ns, 4)}")
    if point.busbw_gbps:
        lines.append(f"{format_bandwidth(point.busbw_gbps)} GB/s busbw")
    if several_runs:
        lines.append(counted(point.runs, "run"))
    return "<br>".join(lines)


def _doubt(row: Row) -> str:
    return "" if row.is_right else row.outcome
