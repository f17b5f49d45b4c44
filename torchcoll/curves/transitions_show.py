"""Ranges and transitions as tables, markdown, CSV and JSON, and as a picture."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import IMPLAUSIBLE
from torchcoll.core.units import (
    format_bandwidth,
    format_size,
    format_time,
    time_text,
)
from torchcoll.report.answer import Answer, Caveat
from torchcoll.report.formats import Forms, known, picked, show_found
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import kind_texts
from torchcoll.report.notes import found_lines
from torchcoll.report.pictures import (
    legend,
    literal,
    new_figure,
    size_axis,
    style_of,
    time_axis,
    write_caption,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchcoll.curves.ranges import SizeRange
    from torchcoll.curves.transitions import CurveRanges, SizePoint, Transition, Transitions


TRANSITIONS_SCHEMA = "torchcoll-transitions/1"
_WORDS = {
    "cliff": "time jumps up by {0:.2f}x at once",
    "drop": "time drops to {0:.2f}x at once",
    "kink": "the slope changes, no jump is shown",
    "inconclusive": "a change, but too few sizes {1} it for a law or jump; --refine proposes some",
}

LEGEND = (
    "a range follows time = latency + size / algbw; a transition is where one ends: sizes that the "
    "times cannot tell apart (95 %)"
)


def show_transitions(
    found: Sequence[Transitions],
    format: str = "table",
    file: TextIO | None = None,
    refine: bool = False,
) -> None:
    """Print what ``transitions`` found; refine: also the sizes that would narrow each transition.
    Raises UsageError for an unknown format.
    """
    curves = [curve for one in found for curve in one.curves]
    curve_objects = []
    flat: list[dict[str, Any]] = []  # the rows of csv: of each curve its ranges, then transitions
    for curve in curves:
        sizes = [point.size_bytes for point in curve.points]
        ranges = [
            {
                "low_bytes": sizes[one.first],
                "high_bytes": sizes[one.last],
                "latency_ns": one.latency_ns,
                "algbw_gbps": curve.algbw_gbps(one),
                "misfit": one.misfit,
                "misfit_bytes": sizes[one.misfit_at],
            }
            for one in curve.curve.ranges
        ]
        slow_sizes = curve.curve.slow_sizes.items()
        curve_object = {
            **known(curve.common),
            "sizes": len(sizes),
            **picked(curve, "noise=curve.noise note? doubt?"),
            "ranges": ranges,
            "known_scatter": picked(curve.known, "one point runs") if curve.known else None,
            "slow_sizes": [{"size_bytes": sizes[i], "ratio": ratio} for i, ratio in slow_sizes],
            "falls": [{**vars(one), "ratio": one.ratio} for one in curve.falls],
            "handovers": [vars(one) for one in curve.handovers],
            "forced": [vars(one) for one in curve.forced],
        }
        curve_objects.append(curve_object)
        common = {"row": "range", **known(curve.common)}
        flat += [{**common, **one} for one in ranges]
        flat += [{"row": "transition", **one} for one in records(curve)]
    thing = {
        "schema": TRANSITIONS_SCHEMA,
        "rows": [record for curve in curves for record in records(curve)],
        "curves": curve_objects,
        "notes": notes_of(found),
    }
    show_found([Forms(transitions_grids(found, refine), thing, flat)], format, file)


def transitions_grids(found: Sequence[Transitions], refine: bool = False) -> list[Grid]:
    curves = [curve for one in found for curve in one.curves]
    titles = kind_texts([one.common for one in curves])
    grids = [_grid(one, title, refine) for one, title in zip(curves, titles, strict=True)]
    last = Grid([], [], below=notes_of(found), answer=transitions_answer(curves, titles))
    return [Grid([], [], above=[LEGEND]), *grids, last]


_MOST_TOLD = 4  # transitions, or laws, in the sentence


def _slow_texts(curves: Sequence[CurveRanges], titles: Sequence[str]) -> list[str]:
    """``broadcast 4M takes 3.1x its law``: sizes that contradict their law, the worst first."""
    slow = sorted(
        (
            (-factor, title, curve.points[index].size_bytes)
            for curve, title in zip(curves, titles, strict=True)
            for index, factor in curve.curve.slow_sizes.items()
        ),
    )
    texts = [
        f"{f'{title} ' if len(curves) > 1 else ''}{format_size(size)} takes {-factor:.3g}x its law"
        for factor, title, size in slow[:_MOST_TOLD]
    ]
    return texts + [f"{len(slow) - _MOST_TOLD} more such sizes"] * (len(slow) > _MOST_TOLD)


def transitions_answer(curves: Sequence[CurveRanges], titles: Sequence[str]) -> Answer:
    """How many transitions, and where; of figures that cannot be, why."""
    if doubts := [curve.doubt for curve in curves if curve.doubt]:
        return Answer(Caveat(doubts[0], f"{IMPLAUSIBLE}: "), "bad")
    words = [title.split(", ") for title in titles]
    common = set(words[0]).intersection(*words) if words else set()
    titles = [" ".join(word for word in own if word not in common) for own in words]
    texts = _slow_texts(curves, titles)
    slow = bool(texts)
    changes: list[str] = []
    vague: list[tuple[int, int]] = []  # spans of changes with too few sizes to say what they are
    vague_curves: dict[str, None] = {}
    for curve, title in zip(curves, titles, strict=True):
        which = f"{title}: " if len(curves) > 1 else ""
        for one in curve.transitions:
            if one.kind == "inconclusive":
                vague.append((one.low_bytes, one.high_bytes))
                vague_curves[title] = None
                continue
            what = _WORDS[one.kind].format(one.jump, "")
            changes.append(f"{which}{what} between {_span(one.low_bytes, one.high_bytes)}")
    texts += changes[:_MOST_TOLD]
    if len(changes) > _MOST_TOLD:
        texts.append(f"{len(changes) - _MOST_TOLD} more transitions")
    if vague:
        span = _span(min(low for low, _ in vague), max(high for _, high in vague))
        where = f" in {len(vague_curves)} of {len(curves)} curves" if len(curves) > 1 else ""
        texts.append(f"the law changes between {span}{where}, with too few sizes to say how")
    if changes or vague:
        return Answer("; ".join(texts), "doubt")
    aside = "".join(f"; {text}" for text in texts)
    short = sum(bool(curve.note) for curve in curves)
    if short == len(curves):
        return Answer(f"no law can be fitted: too few sizes, or too much scatter{aside}", "doubt")
    unread = f" ({short} of {len(curves)} curves have too few sizes)" if short else ""
    return Answer(f"no change of behaviour found{unread}{aside}", "doubt" if slow else "good")


def notes_of(found: Sequence[Transitions]) -> list[str]:
    lines = [line for one in found for line in found_lines(one.notes, one.runs)]
    return list(dict.fromkeys(lines))


def records(found: CurveRanges) -> list[dict[str, Any]]:
    """One object a transition: low_bytes, high_bytes, before and after. A latency below 0 is the
    intercept of a law that goes on steeper from another, not a latency.
    """
    return [
        {
            **known(found.common),
            **picked(one, "low_bytes high_bytes before=handover.before after=handover.after"),
            **picked(one, "kind jump before_latency_ns=before.latency_ns"),
            "before_algbw_gbps": found.algbw_gbps(one.before) if one.before else None,
            "after_latency_ns": one.after.latency_ns if one.after else None,
            "after_algbw_gbps": found.algbw_gbps(one.after) if one.after else None,
            **picked(one, "agreement?"),
        }
        for one in found.transitions
    ]


def _grid(found: CurveRanges, title: str, refine: bool) -> Grid:
    points, curve = found.points, found.curve
    runs = max(point.runs for point in points)
    words = f"{len(points)} size{'s' * (len(points) > 1)}, "
    if found.sizes > len(points):
        words = f"{len(points)} of {found.sizes} sizes (more are too many), "
    words += f"{runs} run{'s' * (runs > 1)}{' (their median)' * (runs > 2)}"
    above = [f"{title}: {words}, points scatter by {100 * curve.noise:.1f} % about their law"]
    heads = [Head("range", repeat=True), Head("sizes", left=True), Head("latency")]
    heads += [Head("algbw", "(GB/s)"), Head("maximum", "error", left=True)]
    labelled = any(point.algorithm for point in points)
    if labelled:
        heads.append(Head("log", left=True))
    rows = []
    for number, one in enumerate(curve.ranges, 1):
        first, last = (format_size(points[i].size_bytes) for i in (one.first, one.last))
        row = [
            str(number),
            f"{first} to {last}",
            format_time(one.latency_ns if one.latency_ns >= 0 else None),
        ]
        off = f"{100 * one.misfit:.1f} % at {format_size(points[one.misfit_at].size_bytes)}"
        row += [format_bandwidth(found.algbw_gbps(one)), off]
        if labelled:
            inside = [p.algorithm for p in points[one.first : one.last + 1] if p.algorithm]
            row.append(", ".join(map(one_line, dict.fromkeys(inside))) or "-")
        rows.append(row)
    return Grid(heads, rows, above, lines_below(found, refine))


def lines_below(found: CurveRanges, refine: bool = False) -> list[str]:
    lines = [_transition_line(one, found.curve.ranges) for one in found.transitions]
    if uneven := _uneven(found.points):
        lines.append(uneven)
    if found.disagreeing:
        sizes = ", ".join(format_size(point.size_bytes) for point in found.disagreeing)
        lines.append(f"runs disagree at {sizes}: repeat them; in the fit it weighs little")
    lines += _separate_lines(found)
    if found.note:
        lines.append(found.note)
    elif not found.transitions:
        which = "the other sizes are one range" if found.curve.slow_sizes else "one range"
        separate = " apart from that" if found.falls else ""
        lines.append(f"{which}: no change of behaviour is shown{separate}")
    lines += [Caveat(one_line(found.doubt), f"{IMPLAUSIBLE}: ")] if found.doubt else []
    seen = [one.handover for one in found.transitions]
    for one in found.handovers:
        if one not in seen:
            lines.append(
                f"the log: {one_line(one.before)} to {one_line(one.after)} between "
                f"{_span(one.low_bytes, one.high_bytes)}; the times show no change there"
            )
    for one in found.forced:
        spans = ((t.low_bytes, t.high_bytes) for t in found.transitions)
        meets = any(low <= one.high_bytes and one.low_bytes <= high for low, high in spans)
        lines.append(
            f"forced cells: the best goes from {one_line(one.before)} to {one_line(one.after)} "
            f"between {_span(one.low_bytes, one.high_bytes)}; these times "
            + ("change there too" if meets else "show no change there")
        )
    if refine:
        sizes = ",".join(map(str, found.refining))
        lines.append(f"to narrow: --sizes {sizes}" if sizes else "nothing to narrow")
    return lines


def _separate_lines(found: CurveRanges) -> list[str]:
    """Sizes that contradict the law of the others, and where time falls as the size grows."""
    points, slow_sizes = found.points, found.curve.slow_sizes
    lines = []
    for index, ratio in slow_sizes.items():
        size, ns = format_size(points[index].size_bytes), points[index].time_ns
        words = (
            f"{'slow size' if ratio > 1 else 'fast'} at {size}: {ratio:.2f}x the time of its law"
        )
        after = points[index + 1] if index + 1 < len(points) else None
        if after and after.time_ns < ns:
            more = format_size(after.size_bytes)
            words += f" ({time_text(ns)}; {more} takes less, {time_text(after.time_ns)})"
        words += "; in no fit"
        # Up to an end of the sizes all are apart: a law of their own may begin there.
        to_start = all(i in slow_sizes for i in range(index))
        if to_start or all(i in slow_sizes for i in range(index, len(points))):
            words += "; at the end of the sizes another law may begin"
        lines.append(words)
    for one in found.falls:
        low, high = format_size(one.low_bytes), format_size(one.high_bytes)
        lines.append(
            f"time falls from {time_text(one.low_ns)} at {low} to {time_text(one.high_ns)} at "
            f"{high}"
        )
    if lines and not found.note and max(point.runs for point in points) == 1:
        lines.append("1 run: only others show whether these times stay")
    return lines


def _uneven(points: Sequence[SizePoint]) -> str:
    """Where the number of runs changes, so may the time: ``1 from 1K, 2 from 64K``."""
    spans = [list(own) for _, own in itertools.groupby(points, key=lambda p: p.runs)]
    if len(spans) < 2:
        return ""
    texts = [f"{own[0].runs} from {format_size(own[0].size_bytes)}" for own in spans]
    shown = texts if len(texts) < 5 else [*texts[:3], "..."]
    return (
        f"the runs disagree in their sizes ({', '.join(shown)}): a step there may be that of "
        "another run"
    )


def _span(low: int, high: int) -> str:
    return f"{format_size(low)} and {format_size(high)}"


def _transition_line(one: Transition, ranges: Sequence[SizeRange]) -> str:
    before = ranges.index(one.before) + 1 if one.before else None
    after = ranges.index(one.after) + 1 if one.after else None
    if before and after:
        where, few = f"{before} to {after} ", ""
    elif before:
        where, few = f"after {before}, ", "after"
    elif after:
        where, few = f"before {after}, ", "before"
    else:
        where, few = "", "before or after"
    words = _WORDS[one.kind].format(one.jump, few)
    line = f"{where}between {_span(one.low_bytes, one.high_bytes)}: {words}"
    if one.handover:
        hand = one.handover
        line += (
            f"; the log: {one_line(hand.before)} to {one_line(hand.after)} between "
            f"{_span(hand.low_bytes, hand.high_bytes)}"
        )
    return line + (f"; {one.agreement}" if one.agreement else "")


_STEPS = 32  # of a law between its ends: a straight line is a curve on logarithmic axes


def ranges_figure(found: Transitions) -> Figure:
    """A row for each curve: time on the left, algorithm bandwidth on the right.

    Raises UnavailableError without matplotlib.
    """
    titles = kind_texts([curve.common for curve in found.curves])
    figure, axes = new_figure(len(found.curves), 2)
    caption = [LEGEND]
    for curve, title, (left, right) in zip(found.curves, titles, axes, strict=True):
        _draw(left, right, curve)
        left.set_title(literal(title), loc="left", fontsize="small")
        which = f"{title}: " if len(found.curves) > 1 else ""
        caption += [f"{which}{line}" for line in lines_below(curve)]
    write_caption(figure, [*caption, *notes_of([found])])
    return figure


def _draw(left: Axes, right: Axes, curve: CurveRanges) -> None:
    sizes = [point.size_bytes for point in curve.points]
    times = [point.time_ns for point in curve.points]
    dots: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 3.0, "color": "0.3"}
    left.plot(sizes, times, label="measured", **dots)
    share = curve.share or 1.0  # what algbw counts of a size
    right.plot(sizes, [share * n / t for n, t in zip(sizes, times, strict=True)], **dots)
    for number, size_range in enumerate(curve.curve.ranges):
        low, high = math.log(sizes[size_range.first]), math.log(sizes[size_range.last])
        steps = [math.exp(low + (high - low) * k / _STEPS) for k in range(_STEPS + 1)]
        law = [size_range.time_ns(n) for n in steps]
        name = f"range {number + 1}"
        left.plot(steps, law, label=name, **style_of(number))
        algbw = [share * n / t for n, t in zip(steps, law, strict=True)]
        right.plot(steps, algbw, **style_of(number))
    for axis in (left, right):
        for one in curve.transitions:
            axis.axvspan(one.low_bytes, one.high_bytes, color="0.85", linewidth=0)
        for number, stated in enumerate((*curve.handovers, *curve.forced)):
            middle = math.sqrt(stated.low_bytes * stated.high_bytes)
            label = "hand-over (log, forced cells)" if number == 0 else None
            axis.axvline(middle, color="red", linestyle=":", linewidth=1, label=label)
        size_axis(axis, sizes)
    time_axis(left)
    right.set_ylabel("GB/s algbw" if curve.share else "GB/s, size / time")
    right.set_ylim(bottom=0)
    legend(left, len(curve.curve.ranges))
