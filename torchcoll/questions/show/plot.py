"""A picture of time and bus bandwidth over sizes, and ``plot``, which draws any finding."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torchcoll.core.display import Displayed
from torchcoll.core.errors import UnusableError, UsageError, choice
from torchcoll.core.plausibility import device_of, summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, CaseResult, Run
from torchcoll.core.summary import OVER_RANKS, Row
from torchcoll.core.units import counted
from torchcoll.report.columns import distinct_values
from torchcoll.report.destination import free_name
from torchcoll.report.header import common_text, kind_texts, reading
from torchcoll.report.pictures import (
    CONCURRENT,
    WrittenPicture,
    check_path,
    draw_band,
    legend,
    line_style,
    literal,
    new_figure,
    size_axis,
    time_axis,
    write_caption,
    write_figure,
)
from torchcoll.report.shown import shown
from torchcoll.stats.differences import hidden_among, hidden_note, kept_separate
from torchcoll.stats.filters import conditions
from torchcoll.stats.matching import NAMES, value_of
from torchcoll.stats.ratios import geometric
from torchcoll.stats.side_faults import faults_of_items
from torchcoll.stats.sides import Measured, Reading, Side, known_of, value_of_fact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchcoll.questions.check.rules import Limit
    from torchcoll.reading.inputs import Source


@dataclass(frozen=True)
class PlotPoint:
    """One size of a line; times in ns, busbw in GB/s.

    low_ns, high_ns: of one run the 5th and 95th percentile of its calls, of several the least
    and the largest of their medians; None where a source does not tell them. busbw: None where
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
        notes.append(
            hidden_note(hidden_among([facts_of_run for _, facts_of_run in facts], separate), runs)
        )
        groups: dict[str, tuple[dict[str, Any], list[Measured]]] = {}
        measured: list[Measured] = []
        without_time = 0
        for item in side.measured("time", Reading(over_ranks)):
            if not all(filter_term.holds(item) for filter_term in wanted):
                continue
            measured.append(item)
            if not item.figure:
                without_time += item.row.outcome in EXPECTED_STATUSES
            elif item.row.size_bytes:  # a barrier has no size
                values = {name: value_of(item, name) for name in NAMES}
                values |= {name: value_of_fact(item.facts, name) for name in separate}
                values["statistic"] = item.row.statistic
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
    lines = {name: list(facts_of_run.values()) for name, facts_of_run in panels.items()}
    return Picture(lines, [note for note in notes if note])


def _line(side: str, values: dict[str, Any], items: Sequence[Measured]) -> PlotLine:
    line = PlotLine(side, values, rows=[item.row for item in items])
    for size_bytes in sorted({item.row.size_bytes for item in items}):
        of_size = [item for item in items if item.row.size_bytes == size_bytes]
        right = [item for item in of_size if item.row.is_right]
        if right:
            line.points.append(_point(size_bytes, right))
        if len(right) < len(of_size):
            line.doubted.append(
                _point(size_bytes, [item for item in of_size if not item.row.is_right])
            )
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


_MOST_LINES = 48  # of one panel: more names than fit beside it
_NOTHING_MOVED = "one rank, or nothing was communicated"


def check_lines(picture: Picture, most: int) -> None:
    """Raises UsageError if a panel has more lines than ``most``."""
    number = max(map(len, picture.panels.values()))
    if number > most:
        action = "--filter collective=NAME,dtype=NAME,... leaves fewer."
        raise UsageError("lines", f"{number} in one panel", f"at most {most}", action)


def lines_figure(
    picture: Picture, over_ranks: str = "max", limits: Sequence[tuple[str, Limit]] = ()
) -> Figure:
    """A row for each collective: time on the left, bus bandwidth on the right.

    limits: (fabric, limit) whose busbw is drawn in the panels of the collectives that it holds for.
    Raises UnavailableError without matplotlib, UsageError for more lines than can be told apart.
    """
    check_lines(picture, _MOST_LINES)
    figure, axes = new_figure(len(picture.panels), 2)
    for (collective, lines), (left, right) in zip(picture.panels.items(), axes, strict=True):
        for number, (line, name) in enumerate(zip(lines, line_names(lines), strict=True)):
            _draw(left, right, line, literal(name), line_style(number))
        here = [(name, limit) for name, limit in limits if collective in limit.collectives]
        for name, limit in here:
            right.axhline(limit.busbw_gbps, color="0.4", linestyle=(0, (6, 3)), linewidth=1)
            right.annotate(
                literal(f"{limit.algorithm} limit of {name}, {limit.busbw_gbps:.4g}"),
                (0.01, limit.busbw_gbps),
                xycoords=("axes fraction", "data"),
                xytext=(0, 2),
                textcoords="offset points",
                fontsize="small",
                color="0.3",
            )
        sizes = [p.size_bytes for line in lines for p in (*line.points, *line.doubted)]
        for axis in (left, right):
            size_axis(axis, sizes)
        time_axis(left)
        left.set_title(f"{collective}: time", loc="left")
        right.set_title(f"{collective}: bus bandwidth", loc="left")
        _bandwidth_axis(right, lines)
        legend(left if len(lines) <= CONCURRENT else right, len(lines))
    write_caption(figure, picture_caption(picture, over_ranks))
    return figure


def line_names(lines: Sequence[PlotLine]) -> list[str]:
    """Each line by its side, where there are several, and by what the lines differ in."""
    sides = len({line.side for line in lines}) > 1
    texts = kind_texts([line.values for line in lines], always=())
    name_parts = [
        [line.side if sides else "", text] for line, text in zip(lines, texts, strict=True)
    ]
    return [", ".join(filter(None, parts_of_line)) for parts_of_line in name_parts]


def _draw(left: Axes, right: Axes, line: PlotLine, name: str, style: dict[str, Any]) -> None:
    points = line.points
    if points:
        sizes = [p.size_bytes for p in points]
        many: dict[str, Any] = {"marker": "o", "markersize": 3.5 if len(points) < 40 else 0}
        left.plot(sizes, [p.time_ns for p in points], label=name, **many, **style)
        intervals = [(p.size_bytes, p.low_ns, p.high_ns) for p in points if p.low_ns and p.high_ns]
        draw_band(left, intervals, style["color"])
        wide = [(p.size_bytes, p.busbw_gbps) for p in points if p.busbw_gbps]
        if wide:
            right.plot(*zip(*wide, strict=True), label=name, **many, **style)
        # busbw is size / time x a factor: the longest time is the lowest.
        spread = [
            (
                p.size_bytes,
                p.busbw_gbps * p.time_ns / p.high_ns,
                p.busbw_gbps * p.time_ns / p.low_ns,
            )
            for p in points
            if p.busbw_gbps and p.low_ns and p.high_ns
        ]
        draw_band(right, spread, style["color"])
    for axis, key in ((left, "time_ns"), (right, "busbw_gbps")):
        doubted = [(p.size_bytes, value) for p in line.doubted if (value := getattr(p, key))]
        if doubted:
            doubts = " and ".join(dict.fromkeys(_doubt(row) for row in line.rows if _doubt(row)))
            axis.plot(
                *zip(*doubted, strict=True),
                linestyle="",
                marker="x",
                color="red" if not points else style["color"],
                label=f"{name}: {doubts}".removeprefix(": "),
            )


def _doubt(row: Any) -> str:
    return "" if row.is_right else str(row.outcome)


def _bandwidth_axis(axis: Axes, lines: Sequence[PlotLine]) -> None:
    axis.set_ylabel("GB/s busbw")
    axis.set_ylim(bottom=0)
    axis.set_ylim(top=1.06 * axis.get_ylim()[1])  # the name of a limit stands above its line
    if not any(p.busbw_gbps for line in lines for p in (*line.points, *line.doubted)):
        unknown = not all(row.ranks for line in lines for row in line.rows)
        text = "ranks unknown: torchcoll convert --ranks N" if unknown else _NOTHING_MOVED
        axis.text(0.5, 0.5, f"no bandwidth: {text}", transform=axis.transAxes,
                  ha="center", color="0.4")  # fmt: skip


def picture_caption(picture: Picture, over_ranks: str) -> list[str]:
    rows = [row for lines in picture.panels.values() for line in lines for row in line.rows]
    sampled = any(row.low_ns for row in rows)
    several = any(p.runs > 1 for lines in picture.panels.values() for x in lines for p in x.points)
    where = " on ".join(", ".join(distinct_values(rows, name)) for name in ("backend", "device"))
    ranks = [str(n) for n in distinct_values(rows, "ranks") if n] or ["an unknown number of"]
    parts = [common_text(rows), f"{where}, {', '.join(ranks)} ranks"]
    parts += [f"{name} {', '.join(distinct_values(rows, name))}" for name in ("clock", "mode")]
    parts.append(reading(rows, over_ranks) if sampled else "")
    statistics = [f"{statistic} over calls" for statistic in distinct_values(rows, "statistic")]
    bands = ["p5 to p95 of the calls of a run"] if sampled else []
    bands += ["least to largest of the runs' medians where there are several"] if several else []
    parts.append(f"line: {' or '.join(statistics)}, geometric mean over runs" if several else
                 f"line: {' or '.join(statistics)}")  # fmt: skip
    parts.append(f"band: {'; '.join(bands)}" if bands else "no band: the source has no samples")
    return ["; ".join(filter(None, parts)), *picture.notes]


def plot(
    what: Source | Displayed | Mapping[str, Source | Sequence[Source]],
    path: str | os.PathLike[str] | None = None,
    *,
    over_ranks: str = "max",
    filter: str = "",
    fabric: str | None = None,
    rules: Sequence[str | os.PathLike[str]] = (),
) -> WrittenPicture:
    """Draw to ``path`` (.png, .svg, .pdf; a file that is there is replaced); what is given back
    shows itself in a notebook. None: ``torchcoll.png``, or ``torchcoll-2.png``, ... where that is
    there.

    what: a Run, a file, a folder or a glob; several by name, each a side with lines of its own; or
    what ``cold`` (first calls over ranks), ``transitions`` (laws and transitions) or ``scaling``
    (time and speed-up over ranks) found. Runs and files: time and busbw over sizes, a row for each
    collective, a line for what differs in nothing but the size; runs of one side are pooled
    (geometric mean of their medians). over_ranks: max, mean, min, rank0. filter: as of ``compare``.
    fabric, rules: whose limits are drawn; without them those of the fabric that the run is known to
    be of.

    Raises UnavailableError without matplotlib, UsageError for choices that do not exist and where
    there is nothing to draw, UnreadableError for a file.
    """
    from torchcoll.stats.sides import named_side

    path = free_name("torchcoll.png") if path is None else path
    check_path(path)
    choice(over_ranks, "over-ranks", OVER_RANKS)
    if not isinstance(what, Run) and (how := shown(what)) and how.figure:
        over = "" if over_ranks == "max" else over_ranks
        reported = {"over-ranks": over, "filter": filter, "fabric": fabric, "rules": rules}
        for name, value in reported.items():
            if value:
                raise UsageError(name, value, "runs or files with it, not what was found in them")
        return write_figure(how.figure(what), path)
    named: Mapping[str, Any] = what if isinstance(what, Mapping) else {"": what}
    sides = [named_side(name, sources) for name, sources in named.items()]
    picture = picture_of(sides, over_ranks, filter)
    limits = _limits([part for side in sides for part in side.parts], fabric, rules)
    return write_figure(lines_figure(picture, over_ranks, limits), path)


def _limits(
    runs: Sequence[Run], fabric_name: str | None, rules: Sequence[str | os.PathLike[str]]
) -> list[tuple[str, Limit]]:
    """(name of the fabric, limit) of the runs whose fabric is stated or recognised, once each."""
    from torchcoll.questions.check.limits import fabric_of
    from torchcoll.questions.check.rules import capped, read_rules

    own_rules = read_rules(rules)
    limits: dict[str, tuple[str, Limit]] = {}
    for run in runs:
        fabric = fabric_of(run, fabric_name, own_rules)
        if fabric is None:
            continue
        rows = [row for row in summarise_run(run) if fabric.connects(row)]
        for limit in fabric.limits:
            # At whatever size: the line says how far there is to go.
            reached = (replace(row, size_bytes=limit.least(row.ranks)) for row in rows)
            if any(map(limit.holds, reached)):
                busbw, source = capped(limit, device_of(run) if fabric.several_hosts else None)
                named_limit = fabric.name, replace(limit, busbw_gbps=busbw, source=source)
                limits[repr(named_limit)] = named_limit
    return list(limits.values())
