"""Regimes and transitions as tables, markdown, CSV and JSON."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.plausibility import IMPLAUSIBLE
from torchcoll.core.units import format_bandwidth, format_size, format_time
from torchcoll.report.found import Found, show_found
from torchcoll.report.grid import Grid, Head
from torchcoll.report.kinds import kind_texts
from torchcoll.report.notes import found_lines
from torchcoll.report.output import one_line

if TYPE_CHECKING:
    from torchcoll.analysis.regimes import Regime
    from torchcoll.analysis.scatter import Known
    from torchcoll.analysis.transitions import Point, Regimes, Transition, Transitions

SCHEMA = "torchcoll-transitions/1"
_WORDS = {
    "cliff": "time jumps up by {0:.2f}x at once",
    "drop": "time drops to {0:.2f}x at once",
    "kink": "the slope changes, no jump is shown",
    "unclear": "a change, with too few sizes {1} it for a law or a jump; --refine proposes some",
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
    curves = [curve for one in found for curve in one.curves]
    notes = notes_of(found)
    rows = [record for one in curves for record in records(one)]
    titles = kind_texts([one.common for one in curves])
    grids = [_grid(one, title, refine) for one, title in zip(curves, titles, strict=True)]
    thing = {
        "schema": SCHEMA,
        "rows": rows,
        "curves": list(map(_curve_object, curves)),
        "notes": notes,
    }
    grids = [Grid([], [], above=[LEGEND]), *grids, Grid([], [], below=notes)]
    flat = [record for one in curves for record in _flat(one)]
    show_found([Found(grids, flat, thing)], format, file)


def notes_of(found: Sequence[Transitions]) -> list[str]:
    lines = [line for one in found for line in found_lines(one.notes, one.runs)]
    return list(dict.fromkeys(lines))


def records(found: Regimes) -> list[dict[str, Any]]:
    """One object a transition: low_nbytes, high_nbytes, before and after. A latency below 0 is the
    intercept of a law that goes on steeper from another, not a latency.
    """
    return [
        {
            **{k: v for k, v in found.common.items() if v is not None},
            "low_nbytes": one.low_nbytes,
            "high_nbytes": one.high_nbytes,
            "before": one.handover.before if one.handover else None,
            "after": one.handover.after if one.handover else None,
            "kind": one.kind,
            "jump": one.jump,
            "before_latency_ns": one.before.latency_ns if one.before else None,
            "before_algbw_gbps": found.algbw_gbps(one.before) if one.before else None,
            "after_latency_ns": one.after.latency_ns if one.after else None,
            "after_algbw_gbps": found.algbw_gbps(one.after) if one.after else None,
            "agreement": one.agreement or None,
        }
        for one in found.transitions
    ]


def _flat(found: Regimes) -> list[dict[str, Any]]:
    """The rows of csv: of each curve its regimes, then what is between them."""
    common = {k: v for k, v in found.common.items() if v is not None}
    regimes = [{"row": "regime", **common, **one} for one in _regime_objects(found)]
    return regimes + [{"row": "transition", **one} for one in records(found)]


def _regime_objects(found: Regimes) -> list[dict[str, Any]]:
    sizes = [point.nbytes for point in found.points]
    return [
        {
            "low_nbytes": sizes[one.first],
            "high_nbytes": sizes[one.last],
            "latency_ns": one.latency_ns,
            "algbw_gbps": found.algbw_gbps(one),
            "misfit": one.misfit,
            "misfit_nbytes": sizes[one.misfit_at],
        }
        for one in found.curve.regimes
    ]


def _curve_object(found: Regimes) -> dict[str, Any]:
    sizes = [point.nbytes for point in found.points]
    return {
        **{k: v for k, v in found.common.items() if v is not None},
        "sizes": len(sizes),
        "noise": found.curve.noise,
        "note": found.note or None,
        "doubt": found.doubt or None,
        "regimes": _regime_objects(found),
        "known_scatter": _known(found.known),
        "dips": [{"nbytes": sizes[i], "ratio": r} for i, r in found.curve.dips.items()],
        "falls": [{**vars(one), "ratio": one.ratio} for one in found.falls],
        "handovers": [vars(one) for one in found.handovers],
        "forced": [vars(one) for one in found.forced],
    }


def _known(known: Known | None) -> dict[str, Any] | None:
    if known is None:
        return None
    return {"one": known.one, "point": known.point, "launches": known.launches}


def _grid(found: Regimes, title: str, refine: bool) -> Grid:
    points, curve = found.points, found.curve
    launches = max(point.launches for point in points)
    words = f"{len(points)} size{'s' * (len(points) > 1)}, "
    if found.sizes > len(points):
        words = f"{len(points)} of {found.sizes} sizes (more are too many), "
    words += f"{launches} launch{'es' * (launches > 1)}{' (their median)' * (launches > 2)}"
    above = [f"{title}: {words}, points scatter by {100 * curve.noise:.1f} % about their law"]
    heads = [Head("regime", repeat=True), Head("sizes", left=True), Head("latency")]
    heads += [Head("algbw", "(GB/s)"), Head("off by", "(at most)", left=True)]
    labelled = any(point.algorithm for point in points)
    if labelled:
        heads.append(Head("log", left=True))
    rows = []
    for number, one in enumerate(curve.regimes, 1):
        first, last = (format_size(points[i].nbytes) for i in (one.first, one.last))
        row = [
            str(number),
            f"{first} to {last}",
            format_time(one.latency_ns if one.latency_ns >= 0 else None),
        ]
        off = f"{100 * one.misfit:.1f} % at {format_size(points[one.misfit_at].nbytes)}"
        row += [format_bandwidth(found.algbw_gbps(one)), off]
        if labelled:
            inside = [p.algorithm for p in points[one.first : one.last + 1] if p.algorithm]
            row.append(", ".join(map(one_line, dict.fromkeys(inside))) or "-")
        rows.append(row)
    return Grid(heads, rows, above, lines_below(found, refine))


def lines_below(found: Regimes, refine: bool = False) -> list[str]:
    lines = [_transition_line(one, found.curve.regimes) for one in found.transitions]
    if uneven := _uneven(found.points):
        lines.append(uneven)
    if found.disagreeing:
        sizes = ", ".join(format_size(point.nbytes) for point in found.disagreeing)
        lines.append(f"launches disagree at {sizes}: repeat them; in the fit it weighs little")
    lines += _apart_lines(found)
    if found.note:
        lines.append(found.note)
    elif not found.transitions:
        which = "the other sizes are one regime" if found.curve.dips else "one regime"
        apart = " apart from that" if found.falls else ""
        lines.append(f"{which}: no change of behaviour is shown{apart}")
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
    if refine:
        sizes = ",".join(map(str, found.refining))
        lines.append(f"to narrow: --sizes {sizes}" if sizes else "nothing to narrow")
    return lines


def _apart_lines(found: Regimes) -> list[str]:
    """Sizes that contradict the law of the others, and where time falls as the size grows."""
    points, dips = found.points, found.curve.dips
    lines = []
    for index, ratio in dips.items():
        size, ns = format_size(points[index].nbytes), points[index].time_ns
        words = f"{'dip' if ratio > 1 else 'fast'} at {size}: {ratio:.2f}x the time of its law"
        after = points[index + 1] if index + 1 < len(points) else None
        if after and after.time_ns < ns:
            more = format_size(after.nbytes)
            words += f" ({_time(ns)}; {more} takes less, {_time(after.time_ns)})"
        lines.append(f"{words}; in no fit{_at_end(index, len(points), dips)}")
    for one in found.falls:
        low, high = format_size(one.low_nbytes), format_size(one.high_nbytes)
        lines.append(
            f"time falls from {_time(one.low_ns)} at {low} to {_time(one.high_ns)} at {high}"
        )
    if lines and not found.note and max(point.launches for point in points) == 1:
        lines.append("1 launch: only others show whether these times stay")
    return lines


def _at_end(index: int, number: int, dips: Mapping[int, float]) -> str:
    """At an end a law of its own may begin: up to the end all sizes are apart."""
    to_start = all(i in dips for i in range(index))
    to_end = all(i in dips for i in range(index, number))
    return "; at the end of the sizes another law may begin" if to_start or to_end else ""


def _time(ns: float) -> str:
    return format_time(ns).strip()


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


def _transition_line(one: Transition, regimes: Sequence[Regime]) -> str:
    before = regimes.index(one.before) + 1 if one.before else None
    after = regimes.index(one.after) + 1 if one.after else None
    if before and after:
        where, few = f"{before} to {after} ", ""
    elif before:
        where, few = f"after {before}, ", "after"
    elif after:
        where, few = f"before {after}, ", "before"
    else:
        where, few = "", "before or after"
    words = _WORDS[one.kind].format(one.jump, few)
    line = f"{where}between {_zone(one.low_nbytes, one.high_nbytes)}: {words}"
    if one.handover:
        hand = one.handover
        line += (
            f"; the log: {one_line(hand.before)} to {one_line(hand.after)} between "
            f"{_zone(hand.low_nbytes, hand.high_nbytes)}"
        )
    return line + (f"; {one.agreement}" if one.agreement else "")
