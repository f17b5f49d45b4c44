"""Show ranges and transitions as tables, markdown, CSV and JSON."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core import units
from torchcoll.core.answer import CANNOT_TELL, Answer, Caveat, format_quantity
from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import CHECK_RANKS, IMPLAUSIBLE, LIKELY
from torchcoll.report.formats import Forms, print_results, select_fields, without_none
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import kind_texts
from torchcoll.report.notes import footer_lines

if TYPE_CHECKING:
    from torchcoll.parts.curves.ranges import SizeRange
    from torchcoll.parts.curves.transitions import (
        CurveRanges,
        Leap,
        SizePoint,
        Transition,
        Transitions,
    )


TRANSITIONS_SCHEMA = "torchcoll-transitions/1"
_WORDS = {
    "cliff": "time jumps up by {0} at once",
    "drop": "time drops to {0} at once",
    "kink": "the slope changes without a jump",
    "inconclusive": "a change, but too few sizes {1} it for a law or jump",
}

_SCATTER = "one=run_error point=point_error runs=from_runs"
LEGEND = (
    "in each range of sizes time = latency + size / algbw; a transition is the interval of sizes "
    "between two ranges (95 %)"
)


def show_transitions(
    results: Sequence[Transitions],
    format: str = "table",
    file: TextIO | None = None,
) -> None:
    """Print the results of ``transitions``. Raises UsageError for an unknown format."""
    curves = [curve for result in results for curve in result.curves]
    curve_objects = []
    # The rows of CSV: the ranges of each curve, then its transitions.
    flat: list[dict[str, Any]] = []
    for curve in curves:
        sizes = [point.size_bytes for point in curve.points]
        ranges = [
            {
                "low_bytes": sizes[size_range.first],
                "high_bytes": sizes[size_range.last],
                "latency_ns": size_range.latency_ns,
                "algbw_gbps": curve.algbw_gbps(size_range),
                "misfit": size_range.misfit,
                "misfit_bytes": sizes[size_range.misfit_at],
            }
            for size_range in curve.curve.ranges
        ]
        slow_sizes = curve.curve.slow_sizes.items()
        curve_object = {
            **without_none(curve.common),
            "sizes": len(sizes),
            **select_fields(curve, "noise=curve.noise note? doubt?"),
            "ranges": ranges,
            "known_scatter": select_fields(curve.scatter, _SCATTER) if curve.scatter else None,
            "slow_sizes": [{"size_bytes": sizes[i], "ratio": ratio} for i, ratio in slow_sizes],
            "falls": [{**vars(fall), "ratio": fall.ratio} for fall in curve.falls],
            "handovers": [vars(handover) for handover in curve.handovers],
        }
        curve_objects.append(curve_object)
        common = {"row": "range", **without_none(curve.common)}
        flat += [{**common, **range_record} for range_record in ranges]
        flat += [{"row": "transition", **record} for record in transition_records(curve)]
    document = {
        "schema": TRANSITIONS_SCHEMA,
        "rows": [record for curve in curves for record in transition_records(curve)],
        "curves": curve_objects,
        "notes": note_lines(results),
    }
    print_results([Forms(transitions_grids(results), document, flat)], format, file)


def transitions_grids(results: Sequence[Transitions]) -> list[Grid]:
    """One table with a row for each range of sizes; lines on the curve where there is one."""
    curves = [curve for result in results for curve in result.curves]
    titles = kind_texts([curve.common for curve in curves])
    answer = transitions_answer(curves, titles)
    rest, common = split_titles(titles)
    above = [", ".join(common)] if common else []
    detailed = [] if len(curves) > 1 else zip(curves, rest, strict=True)
    details = [
        f"{title}: {line}" if title and len(curves) > 1 else line
        for curve, title in detailed
        for line in [_sizes_line(curve), *lines_below(curve)]
    ]
    heads = [
        Head("curve", left=True, repeat=True, numbered=3),
        Head("sizes", left=True),
        Head("latency"),
        Head("algbw", "(GB/s)"),
        Head("maximum", "error"),
        Head("notable", left=True),
    ]
    labelled = any(point.algorithm for curve in curves for point in curve.points)
    if labelled:
        heads.insert(5, Head("log", left=True))
    rows = []
    for curve, title in zip(curves, rest, strict=True):
        notable = "; ".join(notable_texts(curve)) or "-"
        for number, size_range in enumerate(curve.curve.ranges):
            row = [title or "-", *_range_cells(curve, size_range)]
            if labelled:
                inside = curve.points[size_range.first : size_range.last + 1]
                names = dict.fromkeys(one_line(p.algorithm) for p in inside if p.algorithm)
                row.append(", ".join(names) or "-")
            rows.append([*row, notable if not number else ""])
        if not curve.curve.ranges:
            rows.append([title or "-", *["-"] * (len(heads) - 2), notable])
    if len(curves) == 1:
        heads, rows = heads[1:], [row[1:] for row in rows]
    if not {row[-1] for row in rows} - {"-", ""}:
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    table = Grid(heads, rows, above=[LEGEND, *above], below=[*details, *note_lines(results)])
    return [replace(table, answer=answer)]


def split_titles(titles: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is particular to each title ('' for one alone), and the phrases that all have."""
    phrases = [title.split(", ") for title in titles]
    common = set(phrases[0]).intersection(*phrases) if phrases else set()
    rest = [" ".join(phrase for phrase in each if phrase not in common) for each in phrases]
    if not all(rest) and len(titles) > 1:  # several of the same curve
        return [*titles], []
    return rest, [phrase for phrase in phrases[0] if phrase in common] if phrases else []


def _sizes_line(curve: CurveRanges) -> str:
    runs = max(point.runs for point in curve.points)
    text = f"{units.counted(len(curve.points), 'size')}, "
    if curve.sizes > len(curve.points):
        text = f"{len(curve.points)} of {curve.sizes} sizes (more are too many), "
    text += units.counted(runs, "run") + (" (their median)" if runs > 2 else "")
    return f"{text}, residual scatter {100 * curve.curve.noise:.1f} %"


def _range_cells(curve: CurveRanges, size_range: SizeRange) -> list[str]:
    """Sizes, latency, bandwidth and the largest error of a range."""
    first, last, worst = (
        units.format_size(curve.points[i].size_bytes)
        for i in (size_range.first, size_range.last, size_range.misfit_at)
    )
    return [
        f"{first} to {last}",
        units.format_time(size_range.latency_ns if size_range.latency_ns >= 0 else None),
        units.format_bandwidth(curve.algbw_gbps(size_range)),
        f"{100 * size_range.misfit:.1f} % at {worst}",
    ]


_SHORT = {
    "cliff": "jumps {0}",
    "drop": "drops to {0}",
    "kink": "slope changes",
    "inconclusive": "changes",
}


def _jump(transition: Transition) -> str:
    return "" if transition.jump is None else units.format_factor(transition.jump)


def notable_texts(curve: CurveRanges) -> list[str]:
    """What is notable of a curve, a few words each: ``4M 3.1x slow``, ``64K to 256K: jumps 2x``."""
    texts = [IMPLAUSIBLE] if curve.doubt else []
    for index, ratio in curve.curve.slow_sizes.items():
        size = units.size_text(curve.points[index].size_bytes)
        speed = "slow" if ratio > 1 else "fast"
        texts.append(f"{size} {units.format_factor(max(ratio, 1 / ratio))} {speed}")
    for transition in curve.transitions:
        if leap := curve.leap(transition):
            ends = f"{units.size_text(leap.low_bytes)} to {units.size_text(leap.high_bytes)}"
            texts.append(f"{ends}: {units.format_factor(leap.factor)} the time")
            continue
        span = _span(transition.low_bytes, transition.high_bytes).replace(" and ", " to ")
        texts.append(f"{span}: {_SHORT[transition.kind].format(_jump(transition))}")
    if sizes := [units.size_text(fall.high_bytes) for fall in curve.falls]:
        texts.append(f"time falls at {units.shorten(sizes, _MOST_TOLD)}")
    if curve.note:
        # The column of the maximum error has the figures.
        texts.append(one_line(curve.note.partition(":")[0]))
    return texts


_MOST_TOLD = 3  # transitions, or slow sizes, in the sentence


def _sizes_to_measure(curves: Sequence[CurveRanges]) -> str:
    """What would narrow the transitions."""
    sizes = sorted({size for curve in curves for size in curve.refining})
    if not sizes:
        return "measure twice as many sizes (-f 2), 3 runs or more"
    return f"measure these sizes too: --sizes {','.join(map(str, sizes))}"


def _slow_texts(curves: Sequence[CurveRanges], titles: Sequence[str]) -> list[str]:
    """``broadcast 4M takes 3.1x the fitted time``, the worst size first."""
    slow = sorted(
        (-factor, title, curve.points[index].size_bytes)
        for curve, title in zip(curves, titles, strict=True)
        for index, factor in curve.curve.slow_sizes.items()
    )
    texts = [
        f"{f'{title} ' if len(curves) > 1 else ''}{units.size_text(size)} takes "
        f"{units.format_factor(-factor)} the fitted time"
        for factor, title, size in slow
    ]
    return units.shorten_list(texts, _MOST_TOLD, "{} more such sizes")


def _leap_text(leaps: Sequence[Leap]) -> str:
    """``8M takes 2.4x to 2.5x the time of 4M``, of curves that leap between the same sizes."""
    factors = [leap.factor for leap in leaps]
    ends = dict.fromkeys(map(units.format_factor, (min(factors), max(factors))))
    low, high = map(units.size_text, (leaps[0].low_bytes, leaps[0].high_bytes))
    return f"{high} takes {' to '.join(ends)} the time of {low}"


def _where_text(spans: Mapping[int, Sequence[tuple[int, int]]], curves: int) -> str:
    """``between 4M and 64M in 10 of 20 curves``. spans: the sizes between ranges, by curve."""
    lows, highs = zip(*(ends for of_curve in spans.values() for ends in of_curve), strict=True)
    return f"between {_span(min(lows), max(highs))} in {len(spans)} of {curves} curves"


def transitions_answer(curves: Sequence[CurveRanges], titles: Sequence[str]) -> Answer:
    """Fit, transitions and slow sizes, or why times are implausible."""
    if doubts := [curve.doubt for curve in curves if curve.doubt]:
        what, likely, causes = doubts[0].partition(LIKELY)
        details = (f"likely {causes}",) if likely else ()
        return Answer(
            Caveat(what, f"{IMPLAUSIBLE}: "), "bad", details=details, next_step=CHECK_RANKS
        )
    titles, _ = split_titles(titles)
    fit = _fit_texts(curves[0]) if len(curves) == 1 else []
    texts = _slow_texts(curves, titles)
    slow = bool(texts)
    changes: dict[str, list[str]] = {}  # what changes, and between which sizes
    # Of several curves those that only bend or have too few sizes to say, with their spans.
    bent: dict[int, list[tuple[int, int]]] = {}
    vague: dict[int, list[tuple[int, int]]] = {}
    leaps: dict[tuple[int, int], list[Leap]] = {}  # by their sizes
    for number, (curve, title) in enumerate(zip(curves, titles, strict=True)):
        which = f"{title}: " if len(curves) > 1 else ""
        for transition in curve.transitions:
            ends = transition.low_bytes, transition.high_bytes
            if leap := curve.leap(transition):
                leaps.setdefault((leap.low_bytes, leap.high_bytes), []).append(leap)
            elif transition.kind == "inconclusive":
                vague.setdefault(number, []).append(ends)
            elif transition.kind == "kink" and len(curves) > 1:
                bent.setdefault(number, []).append(ends)
            else:
                what = f"{which}{_WORDS[transition.kind].format(_jump(transition), '')}"
                changes.setdefault(what, []).append(f"between {_span(*ends)}")
    steepest = sorted(leaps.values(), key=lambda alike: -max(leap.steepness for leap in alike))
    jumps = [_leap_text(alike) for alike in steepest]
    if len(curves) > 1:
        jumps = [
            f"{text} in {len(alike)} of {len(curves)} curves"
            for text, alike in zip(jumps, steepest, strict=True)
        ]
    texts = [*units.shorten_list(jumps, _MOST_TOLD, "{} more such jumps"), *texts]
    every = [f"{what} {', and '.join(spans)}" for what, spans in changes.items()]
    texts += units.shorten_list(every, _MOST_TOLD, "{} more such changes")
    if bent:
        texts.append(f"{_WORDS['kink']} {_where_text(bent, len(curves))}")
    next_step = _sizes_to_measure(curves) if vague else ""
    if vague and len(curves) == 1:
        spans = [f"between {_span(*ends)}" for ends in vague[0]]
        texts.append(f"the law changes {', and '.join(spans)}, with too few sizes there to fit it")
    elif vague:
        texts.append(
            f"the law (time = latency + size / algbw) changes {_where_text(vague, len(curves))}; "
            "too few sizes on one side of the change to fit it"
        )
    if changes or bent or vague or leaps:
        first, *others = ["; ".join(fit), *texts] if fit else texts
        return Answer(first, "doubt", details=tuple(others), next_step=next_step)
    short = sum(bool(curve.note) for curve in curves)
    steady = [curve for curve in curves if not curve.note]
    worst = max((range_.misfit for curve in steady for range_ in curve.curve.ranges), default=0.0)
    if not short:
        fits = f"no change of behaviour: the law fits all sizes within {units.format_share(worst)}"
        return Answer("; ".join([*fit, fits, *texts]), "doubt" if slow else "")
    reason = "too few sizes, or too much scatter"
    fitted = (
        f"one law fits {units.counted(len(steady), 'curve')} within {units.format_share(worst)}"
    )
    steady_texts = [fitted] if steady else []
    if short == 1:
        reason = next(curve.note for curve in curves if curve.note)
    where = f"in {short} of {units.counted(len(curves), 'curve')}" if len(curves) > 1 else ""
    where = f"in any of {short} curves" if short == len(curves) > 1 else where
    return Answer(
        "the behaviour",
        "doubt",
        verb="changes",
        scope=f"{where} ({reason})".lstrip(),
        certainty=CANNOT_TELL,
        next_step=_sizes_to_measure(curves),
        details=(*steady_texts, *fit, *texts),
    )


def _fit_texts(curve: CurveRanges) -> list[str]:
    """``latency 35.1 us up to 512K, algbw 133 GB/s from 16M on``, of the first and last range."""
    if not curve.curve.ranges:
        return []
    first, last = curve.curve.ranges[0], curve.curve.ranges[-1]
    places = (first.last, last.first, last.last)
    to, start, end = (units.size_text(curve.points[i].size_bytes) for i in places)
    until = "on" if last.last == len(curve.points) - 1 else f"to {end}"
    texts, gbps = [], curve.algbw_gbps(last)
    if first.latency_ns >= 0:
        latency = f"latency {units.format_ns(first.latency_ns, 3)}"
        texts.append(latency if first is last else f"{latency} up to {to}")
    if gbps is not None:
        texts.append(f"algbw {format_quantity(gbps, 'GB/s')} from {start} {until}")
    return [", ".join(texts)] if texts else []


def note_lines(results: Sequence[Transitions]) -> list[str]:
    lines = [line for result in results for line in footer_lines(result.notes, result.runs)]
    return list(dict.fromkeys(lines))


def transition_records(curve: CurveRanges) -> list[dict[str, Any]]:
    """One object for each transition of a curve.

    A latency below 0 is the intercept of a law that is steeper than the one before, not a latency.
    """
    return [
        {
            **without_none(curve.common),
            **select_fields(
                transition, "low_bytes high_bytes before=handover.before after=handover.after"
            ),
            **select_fields(transition, "kind jump before_latency_ns=before.latency_ns"),
            "before_algbw_gbps": curve.algbw_gbps(transition.before) if transition.before else None,
            "after_latency_ns": transition.after.latency_ns if transition.after else None,
            "after_algbw_gbps": curve.algbw_gbps(transition.after) if transition.after else None,
            **select_fields(transition, "agreement?"),
        }
        for transition in curve.transitions
    ]


def lines_below(curve_ranges: CurveRanges) -> list[str]:
    """What the table of ranges does not have: the runs, the log, and why the fit is doubtful."""
    lines = []
    if uneven := _uneven(curve_ranges.points):
        lines.append(uneven)
    if curve_ranges.disagreeing_sizes:
        odd = [units.format_size(point.size_bytes) for point in curve_ranges.disagreeing_sizes]
        sizes = ", ".join(odd)
        lines.append(f"runs disagree at {sizes}: repeat them; in the fit it weighs little")
    if curve_ranges.note:
        lines.append(curve_ranges.note)
    if curve_ranges.doubt:
        lines.append(Caveat(one_line(curve_ranges.doubt), f"{IMPLAUSIBLE}: "))
    seen = {transition.handover: transition for transition in curve_ranges.transitions}
    for handover in curve_ranges.handovers:
        transition = seen.get(handover)
        text = "the times show no change there" if transition is None else transition.agreement
        lines.append(
            f"the log: {one_line(handover.before)} to {one_line(handover.after)} between "
            f"{_span(handover.low_bytes, handover.high_bytes)}; {text}"
        )
    lines += [
        f"between {_span(transition.low_bytes, transition.high_bytes)}: {transition.agreement}"
        for transition in curve_ranges.transitions
        if transition.agreement and not transition.handover
    ]
    return lines


def _uneven(points: Sequence[SizePoint]) -> str:
    """A warning if the number of runs changes with the size (``1 from 1K, 2 from 64K``), or ''."""
    spans = [list(span) for _, span in itertools.groupby(points, key=lambda p: p.runs)]
    if len(spans) < 2:
        return ""
    texts = [f"{span[0].runs} from {units.format_size(span[0].size_bytes)}" for span in spans]
    shown = texts if len(texts) < 5 else [*texts[:3], "..."]
    return (
        f"the runs disagree in their sizes ({', '.join(shown)}): a step there may be that of "
        "another run"
    )


def _span(low: int, high: int) -> str:
    return f"{units.size_text(low)} and {units.size_text(high)}"
