"""Show ranges and transitions as tables, markdown, CSV and JSON."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core import units
from torchcoll.core.answer import Answer, Caveat
from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import IMPLAUSIBLE
from torchcoll.report.formats import Forms, print_results, select_fields, without_none
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import kind_texts
from torchcoll.report.notes import footer_lines

if TYPE_CHECKING:
    from torchcoll.parts.curves.ranges import SizeRange
    from torchcoll.parts.curves.transitions import CurveRanges, SizePoint, Transition, Transitions


TRANSITIONS_SCHEMA = "torchcoll-transitions/1"
_WORDS = {
    "cliff": "time jumps up by {0:.2f}x at once",
    "drop": "time drops to {0:.2f}x at once",
    "kink": "the slope changes, no jump is shown",
    "inconclusive": "a change, but too few sizes {1} it for a law or jump; --refine proposes some",
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
    refine: bool = False,
) -> None:
    """Print the results of ``transitions``. Raises UsageError for an unknown format.

    refine: also print the sizes that would narrow each transition.
    """
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
            "forced": [vars(handover) for handover in curve.forced],
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
    print_results([Forms(transitions_grids(results, refine), document, flat)], format, file)


def transitions_grids(results: Sequence[Transitions], refine: bool = False) -> list[Grid]:
    curves = [curve for result in results for curve in result.curves]
    titles = kind_texts([curve.common for curve in curves])
    grids = [_grid(curve, title, refine) for curve, title in zip(curves, titles, strict=True)]
    last = Grid([], [], below=note_lines(results), answer=transitions_answer(curves, titles))
    return [Grid([], [], above=[LEGEND]), *grids, last]


_MOST_TOLD = 4  # transitions, or laws, in the sentence


def _slow_texts(curves: Sequence[CurveRanges], titles: Sequence[str]) -> list[str]:
    """``broadcast 4M takes 3.1x the fitted time``, the worst size first."""
    slow = sorted(
        (-factor, title, curve.points[index].size_bytes)
        for curve, title in zip(curves, titles, strict=True)
        for index, factor in curve.curve.slow_sizes.items()
    )
    texts = [
        f"{f'{title} ' if len(curves) > 1 else ''}{units.format_size(size)} takes {-factor:.3g}x "
        "the fitted time"
        for factor, title, size in slow
    ]
    return units.shorten_list(texts, _MOST_TOLD, "{} more such sizes")


def transitions_answer(curves: Sequence[CurveRanges], titles: Sequence[str]) -> Answer:
    """The transitions and slow sizes in a sentence; if times are implausible, the reason."""
    if doubts := [curve.doubt for curve in curves if curve.doubt]:
        return Answer(Caveat(doubts[0], f"{IMPLAUSIBLE}: "), "bad")
    title_phrases = [title.split(", ") for title in titles]
    common = set(title_phrases[0]).intersection(*title_phrases) if title_phrases else set()
    titles = [
        " ".join(phrase for phrase in phrases if phrase not in common) for phrases in title_phrases
    ]
    texts = _slow_texts(curves, titles)
    slow = bool(texts)
    changes: list[str] = []
    vague: list[tuple[int, int]] = []  # spans of changes with too few sizes to say what they are
    vague_curves: dict[str, None] = {}
    for curve, title in zip(curves, titles, strict=True):
        which = f"{title}: " if len(curves) > 1 else ""
        for transition in curve.transitions:
            if transition.kind == "inconclusive":
                vague.append((transition.low_bytes, transition.high_bytes))
                vague_curves[title] = None
                continue
            what = _WORDS[transition.kind].format(transition.jump, "")
            span = _span(transition.low_bytes, transition.high_bytes)
            changes.append(f"{which}{what} between {span}")
    texts += units.shorten_list(changes, _MOST_TOLD, "{} more transitions")
    if vague:
        span = _span(min(low for low, _ in vague), max(high for _, high in vague))
        where_text = f" in {len(vague_curves)} of {len(curves)} curves" if len(curves) > 1 else ""
        texts.append(
            f"the law (time = latency + size / algbw) changes between {span}{where_text}; too few "
            "sizes on one side of the change to fit it"
        )
    if changes or vague:
        return Answer("; ".join(texts), "doubt")
    aside = "".join(f"; {text}" for text in texts)
    short = sum(bool(curve.note) for curve in curves)
    if short == len(curves):
        text = "no boundary can be found in any curve: too few sizes, or too much scatter"
        return Answer(f"{curves[0].note if short == 1 else text}{aside}", "doubt")
    unread = f" ({short} of {len(curves)} curves have too few sizes)" if short else ""
    return Answer(f"no change of behaviour found{unread}{aside}", "doubt" if slow else "good")


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


def _grid(curve_ranges: CurveRanges, title: str, refine: bool) -> Grid:
    points, curve = curve_ranges.points, curve_ranges.curve
    runs = max(point.runs for point in points)
    sizes_text = f"{units.counted(len(points), 'size')}, "
    if curve_ranges.sizes > len(points):
        sizes_text = f"{len(points)} of {curve_ranges.sizes} sizes (more are too many), "
    sizes_text += units.counted(runs, "run") + (" (their median)" if runs > 2 else "")
    above = [f"{title}: {sizes_text}, residual scatter {100 * curve.noise:.1f} %"]
    heads = [Head("range", repeat=True), Head("sizes", left=True), Head("latency")]
    heads += [Head("algbw", "(GB/s)"), Head("maximum", "error", left=True)]
    labelled = any(point.algorithm for point in points)
    if labelled:
        heads.append(Head("log", left=True))
    rows = []
    for number, size_range in enumerate(curve.ranges, 1):
        first, last = (
            units.format_size(points[i].size_bytes) for i in (size_range.first, size_range.last)
        )
        row = [
            str(number),
            f"{first} to {last}",
            units.format_time(size_range.latency_ns if size_range.latency_ns >= 0 else None),
        ]
        worst_size = units.format_size(points[size_range.misfit_at].size_bytes)
        error = f"{100 * size_range.misfit:.1f} % at {worst_size}"
        row += [units.format_bandwidth(curve_ranges.algbw_gbps(size_range)), error]
        if labelled:
            inside = points[size_range.first : size_range.last + 1]
            names = dict.fromkeys(one_line(p.algorithm) for p in inside if p.algorithm)
            row.append(", ".join(names) or "-")
        rows.append(row)
    return Grid(heads, rows, above, lines_below(curve_ranges, refine))


def lines_below(curve_ranges: CurveRanges, refine: bool = False) -> list[str]:
    laws = curve_ranges.curve.ranges
    lines = [_transition_line(transition, laws) for transition in curve_ranges.transitions]
    if uneven := _uneven(curve_ranges.points):
        lines.append(uneven)
    if curve_ranges.disagreeing_sizes:
        odd = [units.format_size(point.size_bytes) for point in curve_ranges.disagreeing_sizes]
        sizes = ", ".join(odd)
        lines.append(f"runs disagree at {sizes}: repeat them; in the fit it weighs little")
    lines += _separate_lines(curve_ranges)
    if curve_ranges.note:
        lines.append(curve_ranges.note)
    elif not curve_ranges.transitions:
        which = "the other sizes are one range" if curve_ranges.curve.slow_sizes else "one range"
        separate = " apart from that" if curve_ranges.falls else ""
        lines.append(f"{which}: no change of behaviour is shown{separate}")
    if curve_ranges.doubt:
        lines.append(Caveat(one_line(curve_ranges.doubt), f"{IMPLAUSIBLE}: "))
    seen = [transition.handover for transition in curve_ranges.transitions]
    for handover in curve_ranges.handovers:
        if handover not in seen:
            lines.append(
                f"the log: {one_line(handover.before)} to {one_line(handover.after)} between "
                f"{_span(handover.low_bytes, handover.high_bytes)}; the times show no change there"
            )
    for handover in curve_ranges.forced:
        spans = ((t.low_bytes, t.high_bytes) for t in curve_ranges.transitions)
        meets = any(
            low <= handover.high_bytes and handover.low_bytes <= high for low, high in spans
        )
        lines.append(
            f"forced cells: the best goes from {one_line(handover.before)} to "
            f"{one_line(handover.after)} between "
            f"{_span(handover.low_bytes, handover.high_bytes)}; these times "
            + ("change there too" if meets else "show no change there")
        )
    if refine:
        sizes = ",".join(map(str, curve_ranges.refining))
        lines.append(f"to narrow: --sizes {sizes}" if sizes else "nothing to narrow")
    return lines


def _separate_lines(curve_ranges: CurveRanges) -> list[str]:
    """Sizes that contradict the law of the others, and where time falls as the size grows."""
    points, slow_sizes = curve_ranges.points, curve_ranges.curve.slow_sizes
    lines = []
    for index, ratio in slow_sizes.items():
        size, ns = units.format_size(points[index].size_bytes), points[index].time_ns
        text = f"{'slow size' if ratio > 1 else 'fast'} at {size}: {ratio:.2f}x the time of its law"
        after = points[index + 1] if index + 1 < len(points) else None
        if after and after.time_ns < ns:
            more = units.format_size(after.size_bytes)
            text += f" ({units.format_ns(ns)}; {more} takes less, {units.format_ns(after.time_ns)})"
        text += "; in no fit"
        # If all sizes up to an end are slow (or fast), another law may begin there.
        to_start = all(i in slow_sizes for i in range(index))
        if to_start or all(i in slow_sizes for i in range(index, len(points))):
            text += "; at the end of the sizes another law may begin"
        lines.append(text)
    for fall in curve_ranges.falls:
        low, high = units.format_size(fall.low_bytes), units.format_size(fall.high_bytes)
        lines.append(
            f"time falls from {units.format_ns(fall.low_ns)} at {low} to "
            f"{units.format_ns(fall.high_ns)} at {high}"
        )
    if lines and not curve_ranges.note and max(point.runs for point in points) == 1:
        lines.append("1 run: only others show whether these times stay")
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
    return f"{units.format_size(low)} and {units.format_size(high)}"


def _transition_line(transition: Transition, ranges: Sequence[SizeRange]) -> str:
    before = ranges.index(transition.before) + 1 if transition.before else None
    after = ranges.index(transition.after) + 1 if transition.after else None
    if before and after:
        position, missing_side = f"{before} to {after} ", ""
    elif before:
        position, missing_side = f"after {before}, ", "after"
    elif after:
        position, missing_side = f"before {after}, ", "before"
    else:
        position, missing_side = "", "before or after"
    change = _WORDS[transition.kind].format(transition.jump, missing_side)
    line = f"{position}between {_span(transition.low_bytes, transition.high_bytes)}: {change}"
    if transition.handover:
        handover = transition.handover
        line += (
            f"; the log: {one_line(handover.before)} to {one_line(handover.after)} between "
            f"{_span(handover.low_bytes, handover.high_bytes)}"
        )
    return line + (f"; {transition.agreement}" if transition.agreement else "")
