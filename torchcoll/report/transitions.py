"""Regimes and transitions as tables, markdown, CSV and JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.plausibility import IMPLAUSIBLE
from torchcoll.core.units import format_bandwidth, format_size, format_time
from torchcoll.report.csv import records_csv
from torchcoll.report.grid import Grid, Head
from torchcoll.report.kinds import kind_texts
from torchcoll.report.notes import runs_lines
from torchcoll.report.output import Output, one_line
from torchcoll.report.text import print_grids
from torchcoll.report.view import choice

if TYPE_CHECKING:
    from torchcoll.analysis.transitions import Point, Regimes, Transition, Transitions

FORMATS = ("table", "markdown", "csv", "json")
SCHEMA = "torchcoll-transitions/1"
_WORDS = {
    "cliff": "time jumps up by {0:.2f}x at once",
    "drop": "time drops to {0:.2f}x at once",
    "kink": "the slope changes, no jump",
}

LEGEND = (
    "a regime follows time = latency + size / algbw; a zone is where one ends: sizes that the "
    "times cannot tell apart (95 %)"
)


def show_transitions(
    found: Sequence[Transitions],
    format: str = "table",
    file: TextIO | None = None,
    refine: bool = False,
) -> None:
    """Print what ``transitions`` found; refine: also the sizes that would narrow each zone. Raises
    UsageError for an unknown format.
    """
    choice(format, "format", FORMATS)
    out = Output(file)
    curves = [curve for one in found for curve in one.curves]
    if format == "json":
        rows = [record for one in curves for record in records(one)]
        objects = [_curve_object(one) for one in curves]
        out.write(
            json.dumps(
                {"schema": SCHEMA, "rows": rows, "curves": objects, "notes": notes_of(found)},
                indent=1,
            )
            + "\n"
        )
    elif format == "csv":
        out.write(records_csv([record for one in curves for record in records(one)]))
    else:
        titles = kind_texts([one.common for one in curves])
        grids = [_grid(one, title, refine) for one, title in zip(curves, titles, strict=True)]
        print_grids(
            [("", [Grid([], [], above=[LEGEND]), *grids, Grid([], [], below=notes_of(found))])],
            format,
            out,
        )
    out.flush()


def notes_of(found: Sequence[Transitions]) -> list[str]:
    lines = [line for one in found for line in (*one.notes, *runs_lines(one.runs))]
    return list(dict.fromkeys(map(one_line, lines)))


def records(found: Regimes) -> list[dict[str, Any]]:
    """One object a transition: low_nbytes, high_nbytes, before and after (DESIGN section 8)."""
    return [
        {
            **{k: v for k, v in found.common.items() if v is not None},
            "low_nbytes": one.low_nbytes,
            "high_nbytes": one.high_nbytes,
            "before": one.handover.before if one.handover else None,
            "after": one.handover.after if one.handover else None,
            "kind": one.kind,
            "jump": one.jump,
            "before_latency_ns": one.before.latency_ns,
            "before_algbw_gbps": one.before.bandwidth_gbps,
            "after_latency_ns": one.after.latency_ns,
            "after_algbw_gbps": one.after.bandwidth_gbps,
            "agreement": one.agreement or None,
        }
        for one in found.transitions
    ]


def _curve_object(found: Regimes) -> dict[str, Any]:
    sizes = [point.nbytes for point in found.points]
    return {
        **{k: v for k, v in found.common.items() if v is not None},
        "sizes": len(sizes),
        "noise": found.curve.noise,
        "note": found.note or None,
        "doubt": found.doubt or None,
        "regimes": [
            {
                "low_nbytes": sizes[one.first],
                "high_nbytes": sizes[one.last],
                "latency_ns": one.latency_ns,
                "algbw_gbps": one.bandwidth_gbps,
                "misfit": one.misfit,
            }
            for one in found.curve.regimes
        ],
        "dips": [{"nbytes": sizes[i], "ratio": r} for i, r in found.curve.dips.items()],
        "handovers": [vars(one) for one in found.handovers],
        "forced": [vars(one) for one in found.forced],
    }


def _grid(found: Regimes, title: str, refine: bool) -> Grid:
    points, curve = found.points, found.curve
    launches = max(point.launches for point in points)
    words = f"{len(points)} size{'s' * (len(points) > 1)}, "
    if found.sizes > len(points):
        words = f"{len(points)} of {found.sizes} sizes (more are too many), "
    words += f"{launches} launch{'es' * (launches > 1)}"
    above = [f"{title}: {words}, points scatter by {100 * curve.noise:.1f} % about their law"]
    heads = [Head("regime", repeat=True), Head("sizes", left=True), Head("latency")]
    heads += [Head("algbw", "(GB/s)"), Head("off by", "(at most)")]
    labelled = any(point.algorithm for point in points)
    if labelled:
        heads.append(Head("log", left=True))
    rows = []
    for number, one in enumerate(curve.regimes, 1):
        first, last = (format_size(points[i].nbytes) for i in (one.first, one.last))
        row = [str(number), f"{first} to {last}", format_time(one.latency_ns)]
        row += [format_bandwidth(one.bandwidth_gbps), f"{100 * one.misfit:.1f} %"]
        if labelled:
            inside = [p.algorithm for p in points[one.first : one.last + 1] if p.algorithm]
            row.append(", ".join(map(one_line, dict.fromkeys(inside))) or "-")
        rows.append(row)
    return Grid(heads, rows, above, lines_below(found, refine))


def lines_below(found: Regimes, refine: bool = False) -> list[str]:
    lines = [_transition_line(n, one) for n, one in enumerate(found.transitions, 1)]
    if uneven := _uneven(found.points):
        lines.append(uneven)
    if found.note:
        lines.append(found.note)
    elif not found.transitions:
        lines.append("one regime: no change of behaviour is shown")
    lines += [f"{IMPLAUSIBLE}: {one_line(found.doubt)}"] if found.doubt else []
    seen = {id(one.handover) for one in found.transitions}
    for one in found.handovers:
        if id(one) not in seen:
            lines.append(
                f"the log: {one_line(one.before)} to {one_line(one.after)} between "
                f"{_zone(one.low_nbytes, one.high_nbytes)}; the times show no change there"
            )
    for one in found.forced:
        zones = ((t.low_nbytes, t.high_nbytes) for t in found.transitions)
        meets = any(low <= one.high_nbytes and one.low_nbytes <= high for low, high in zones)
        lines.append(
            f"forced cells: the best goes from {one_line(one.before)} to {one_line(one.after)} "
            f"between {_zone(one.low_nbytes, one.high_nbytes)}; these times "
            + ("change there too" if meets else "show no change there")
        )
    for index, ratio in found.curve.dips.items():
        size = format_size(found.points[index].nbytes)
        lines.append(f"dip at {size}: {ratio:.2f}x the time of its law; in no fit")
    if refine:
        sizes = ",".join(map(str, found.refining))
        lines.append(f"to narrow: --sizes {sizes}" if sizes else "nothing to narrow")
    return lines


def _uneven(points: Sequence[Point]) -> str:
    """Where the number of launches changes, so may the time: ``1 from 1K, 2 from 64K``."""
    spans = [list(own) for _, own in itertools.groupby(points, key=lambda p: p.launches)]
    if len(spans) < 2:
        return ""
    texts = [f"{own[0].launches} from {format_size(own[0].nbytes)}" for own in spans]
    shown = texts if len(texts) < 5 else [*texts[:3], "..."]
    return (
        f"the launches disagree in their sizes ({', '.join(shown)}): a step there may be that of "
        "another launch"
    )


def _zone(low: int, high: int) -> str:
    return f"{format_size(low)} and {format_size(high)}"


def _transition_line(number: int, one: Transition) -> str:
    words = _WORDS[one.kind].format(one.jump)
    line = f"{number} to {number + 1} between {_zone(one.low_nbytes, one.high_nbytes)}: {words}"
    if one.handover:
        hand = one.handover
        line += (
            f"; the log: {one_line(hand.before)} to {one_line(hand.after)} between "
            f"{_zone(hand.low_nbytes, hand.high_nbytes)}"
        )
    return line + (f"; {one.agreement}" if one.agreement else "")
