"""Charts of first calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_ns
from torchcoll.questions.startup.show import READING, calls_line
from torchcoll.report import chart
from torchcoll.report.header import kind_texts

if TYPE_CHECKING:
    from torchcoll.questions.startup.cold import Cold, ColdRow, Scale


_MOST_STARTS = 16  # bars
_FIRST_CALL = chart.PALETTE[1]
_PHASES = [colour for colour in (*chart.PALETTE, chart.NEUTRAL) if colour != _FIRST_CALL]
_STEPS = {"first": "1st call", "second": "2nd call", "third": "3rd call", "steady": "steady"}


def cold_charts(finding: Cold) -> list[chart.Chart]:
    """What starting cost, a chart for each kind of run: over the number of ranks if there are
    several, otherwise the calls of each run side by side.
    """
    kinds: dict[str, list[Scale]] = {}
    for scale in finding.scales:
        kinds.setdefault(repr((scale.kind, scale.in_job)), []).append(scale)
    several = any(scale.in_job for scale in finding.scales)
    titles = kind_texts(
        [{**first.kind, "in job": first.in_job or None} for first, *_ in kinds.values()],
        always=("collective", "size_bytes", "dtype", "op", "backend", *(["in job"] * several)),
    )
    most = max((scale.runs for scale in finding.scales), default=0)
    charts = []
    for title, scales in zip(titles, kinds.values(), strict=True):
        if len({scale.ranks for scale in scales}) > 1:
            drawn = _cold_over_ranks(scales)
            how = ""
            if most > 1:
                how = f"geometric means over up to {most} runs; band: the least and the largest "
                how += "first call"
        else:
            kind = (repr(scales[0].kind), scales[0].in_job)
            drawn = _cold_runs([r for r in finding.rows if (repr(r.kind), r.in_job) == kind])
            how = ""
        drawn.title = chart.plain(title)
        reading = "; ".join(filter(None, (READING, how)))
        drawn.notes = [calls_line(finding.rows), reading, *finding.notes]
        drawn.shared = True
        charts.append(drawn)
    return charts


def start_charts(finding: Cold) -> list[chart.Chart]:
    """What each run does until its first call ends, as a stacked bar; [] if no run recorded it."""
    rows = [row for row in finding.rows if row.phases and row.first_ns][:_MOST_STARTS]
    if not rows:
        return []
    phases = dict.fromkeys(name for row in rows for name in row.phases)
    parts = {
        one_line(name).replace("_", " "): [
            row.phases[name].ns if name in row.phases else 0.0 for row in rows
        ]
        for name in phases
    }
    colours = [_PHASES[number % len(_PHASES)] for number in range(len(parts))] + [_FIRST_CALL]
    parts["first call"] = [row.first_ns or 0.0 for row in rows]
    bars = [
        chart.bars(
            f"{chart.plain(name)} {format_ns(max(times), 3)}",
            [chart.seconds(ns) for ns in times],
            [f"{chart.plain(name)}: {format_ns(ns, 3)}" for ns in times],
            colour,
        )
        for colour, (name, times) in zip(colours, parts.items(), strict=True)
    ]
    kinds = kind_texts([{**row.kind, "ranks": row.ranks} for row in rows], always=("backend",))
    names = [
        f"{number}. {chart.plain(row.name)}<br>{chart.plain(kind)}"
        for number, (row, kind) in enumerate(zip(rows, kinds, strict=True), 1)
    ]
    axis = {"tickformat": "~s", "ticksuffix": "s", "rangemode": "tozero"}
    caption = ["each step on its slowest rank; with the longest time of all runs"]
    return [chart.bar_chart("Where the start goes", names, bars, axis, caption)]


def _cold_over_ranks(scales: Sequence[Scale]) -> chart.Chart:
    scales = sorted(scales, key=lambda scale: scale.ranks)
    traces = chart.time_bands([(s.ranks, s.low_ns, s.high_ns) for s in scales], 0, "1st call")
    for number, (name, title) in enumerate(_STEPS.items()):
        points = [(s, ns) for s in scales if (ns := getattr(s, f"{name}_ns"))]
        texts = [
            f"{title} on {counted(s.ranks, 'rank')}: {format_ns(ns, 4)}<br>{counted(s.runs, 'run')}"
            for s, ns in points
        ]
        ranks, times = [s.ranks for s, _ in points], [chart.seconds(ns) for _, ns in points]
        traces.append(chart.line(title, number, ranks, times, texts, legendgroup=title))
    layout = {
        "xaxis": chart.ranks_axis([scale.ranks for scale in scales]),
        "yaxis": chart.time_axis() | {"type": "linear", "rangemode": "tozero"},
        "showlegend": True,
    }
    caption = ["the first calls and a steady call over the number of ranks; lower is faster"]
    linear_first = replace(chart.SCALES, options=chart.SCALES.options[::-1])
    return chart.Chart("", traces, layout, [linear_first], caption)


def _cold_runs(rows: Sequence[ColdRow]) -> chart.Chart:
    drawn = rows[: chart.MOST_POINTS]
    traces = []
    for number, (step, name) in enumerate(_STEPS.items()):
        times = [(row, getattr(row, f"{step}_ns")) for row in drawn]
        points = [(n, row, ns) for n, (row, ns) in enumerate(times) if ns]
        traces.append(
            chart.line(
                name,
                number,
                [n + 1 for n, _, _ in points],
                [chart.seconds(ns) for _, _, ns in points],
                [f"{chart.plain(row.name)}<br>{name}: {format_ns(ns, 4)}" for _, row, ns in points],
                mode="markers",
            )
        )
    layout = {
        "xaxis": {"title": {"text": "run"}, "tickformat": "d", "nticks": min(12, len(drawn) + 1)},
        "yaxis": chart.time_axis(),
        "showlegend": True,
    }
    caption = ["each run: its first calls, and its steady calls; lower is faster"]
    if len(drawn) < len(rows):
        caption.append(f"the first {len(drawn)} of {len(rows)} runs")
    return chart.Chart("", traces, layout, [chart.SCALES], caption)
