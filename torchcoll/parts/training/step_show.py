"""Shows steps of a training: one as tables, as records and as a picture, and all as a trace for
Perfetto.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.errors import UsageError, cut_text, one_line
from torchcoll.core.intervals import Span, Union, merged, uncovered
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import format_ns, format_ranges, format_size, format_time
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.whole_step import (
    COMPUTING,
    EXPOSED,
    IDLE,
    UNKNOWN_CALLS,
    RankStep,
    StepCall,
    WholeStep,
    aligned_spans,
)
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.report.pictures import (
    WrittenPicture,
    literal,
    new_figure,
    write_caption,
    write_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIGURES = (
    "computing + exposed + idle = the step, of each rank on its own clock; exposed: communication "
    "with no computation running meanwhile; wait: for the last rank of a call, while no call of "
    "the group was moving data"
)
_FIGURES_WITHOUT_COMPUTATION = (
    "communicating: some call was in flight; wait: for the last rank of a call, while no call of "
    "the group was moving data"
)
_ALL_EXPOSED_TEXT = "exposed: the program waited for every call, so that all of it is"
_LAST_TEXT = (
    "last: of all steady steps' calls those in which the rank came last; even: if all did alike; "
    "caused: the waiting of all other ranks in these calls, a mean over the steps"
)
_PATH_TEXT = "path: its share of the critical path, from the end of the step back to its begin"


def show_step(step: WholeStep, format: str = "table", file: TextIO | None = None) -> None:
    """Prints the step. Raises UsageError for an unknown format."""
    names = {COMPUTING: COMPUTING, EXPOSED: "communication", IDLE: IDLE, "": "not_told"}
    document = {
        "schema": "torchcoll-step/1",
        **select_fields(step, "traffic source step=number steps=total marked"),
        "critical_path": {names[kind]: share for kind, share in step.path.items()},
        "clocks": {
            **select_fields(step.offsets, "text problem? agree_ns"),
            "added_ns": {str(rank): ns for rank, ns in step.offsets.added_ns.items()},
            "error_ns": {str(rank): ns for rank, ns in step.offsets.error_ns.items()},
        },
        "notes": step.notes,
        "rows": [
            select_fields(
                rank,
                "rank step_ns computing_ns communicating_ns hidden_ns exposed_ns idle_ns wait_ns "
                "came_last=last even caused_ns path",
            )
            for rank in step.ranks
        ],
        "late_ranks": [row.rank for row in step.arrivals.late] if step.arrivals else None,
    }
    print_results([Forms(_grids(step), document)], format, file)


def step_title(step: WholeStep, brief: bool = False) -> str:
    """Returns the title of the step.

    - brief: name the file without its folders.
    """
    who = f"{len(step.ranks)} of {step.world} ranks" if len(step.ranks) < step.world else ""
    which = f"step {step.number} of {step.total}" if step.marked else "one step, not marked"
    longest = max(rank.step_ns for rank in step.ranks)
    facts = [one_line(step.source), who or f"{step.world} ranks", which]
    name = os.path.basename(step.traffic) if brief else step.traffic
    slowest = " (slowest rank)" * (len(step.ranks) > 1)
    return f"{one_line(name)}: {', '.join(facts)}, {format_ns(longest, 3)}{slowest}"


def answer_lines(step: WholeStep) -> list[str]:
    """Returns sentences on what the step consists of, who came last, and the critical path."""
    lines = []
    total = sum(rank.step_ns for rank in step.ranks)
    if step.computation_known and total:
        times_ns = {
            "computing": sum(rank.computing_ns or 0 for rank in step.ranks),
            "exposed communication": sum(rank.exposed_ns or 0 for rank in step.ranks),
            "idle": sum(rank.idle_ns or 0 for rank in step.ranks),
        }
        shares = [f"{_percent(ns / total)} {name}" for name, ns in times_ns.items()]
        lines.append(f"{', '.join(shares)} (of all ranks' time)")
    elif total:
        share = sum(rank.communicating_ns for rank in step.ranks) / total
        lines.append(f"{_percent(share)} communicating (of all ranks' time); the rest is unknown")
    if step.arrivals and step.arrivals.late:
        lines.append(one_line(step.arrivals.answer.headline))
    if step.path:
        names = {EXPOSED: "communication", IDLE: "idle", "": "unknown (computation or idle)"}
        order = sorted(step.path.items(), key=lambda pair: -pair[1])
        shares = [f"{_percent(share)} {names.get(kind, kind)}" for kind, share in order]
        longest = max(step.ranks, key=lambda rank: rank.path or 0)
        suffix = f"; {_percent(longest.path)} of it on rank {longest.rank}" * (len(step.ranks) > 1)
        lines.append(f"critical path: {', '.join(shares)}{suffix}")
    return lines


def _grids(step: WholeStep) -> list[Grid]:
    above = [
        step_title(step),
        *answer_lines(step),
        _FIGURES if step.computation_known else _FIGURES_WITHOUT_COMPUTATION,
    ]
    exposed_known = any(row.exposed_ns is not None for row in step.ranks)
    above += [_ALL_EXPOSED_TEXT] * (exposed_known and not step.computation_known)
    above += [_LAST_TEXT] * any(row.last is not None for row in step.ranks)
    above += [_PATH_TEXT] * (bool(step.path) and len(step.ranks) > 1)
    columns: list[tuple[Head, Callable[[RankStep], str]]] = [
        (Head("rank", repeat=True), lambda row: str(row.rank)),
        (Head("step"), lambda row: format_time(row.step_ns)),
        (Head("computing"), lambda row: format_time(row.computing_ns)),
        (Head("communicating", drop=1), lambda row: format_time(row.communicating_ns)),
        (Head("hidden", drop=2), lambda row: format_time(row.hidden_ns)),
        (Head("exposed"), lambda row: format_time(row.exposed_ns)),
        (Head("idle"), lambda row: format_time(row.idle_ns)),
        (Head("wait"), lambda row: format_time(row.wait_ns)),
        (Head("last"), lambda row: _percent(row.last)),
        (Head("even", drop=3), lambda row: _percent(row.even)),
        (Head("caused", drop=4), lambda row: format_time(row.caused_ns)),
        (Head("path"), lambda row: _percent(row.path) if len(step.ranks) > 1 else "-"),
    ]
    # Communication by group, on the rank with the most of it.
    names = list(dict.fromkeys(c.call.group for row in step.ranks for c in row.calls))
    heads = [Head("group", left=True), Head("ranks", left=True), Head("calls"), Head("in flight")]
    heads += [Head("exposed")] * step.computation_known
    rows = []
    for name in names:
        calls_by_rank = {
            row.rank: [c for c in row.calls if c.call.group == name] for row in step.ranks
        }
        flight, exposed = [], []
        for row in step.ranks:
            spans = [
                (max(c.start, row.start), min(c.end, row.end)) for c in calls_by_rank[row.rank]
            ]
            union = Union(spans)
            computing = row.computing or []
            exposed_ns = Union([*spans, *computing]).total - Union(computing).total
            flight.append(union.total)
            exposed.append(exposed_ns)
        ranks = format_ranges(rank for rank, calls in calls_by_rank.items() if calls)
        calls = max(map(len, calls_by_rank.values()))
        cells = [one_line(step.groups.get(name) or name or "-"), ranks, str(calls)]
        cells += [format_time(max(flight)), *[format_time(max(exposed))] * step.computation_known]
        rows.append(cells)
    by_group = ["communication by group: calls and times of the rank with most"]
    return [
        make_grid(columns, step.ranks, above),
        Grid(heads, rows, by_group),
        Grid([], [], below=[one_line(note) for note in step.notes]),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def call_text(call: TrafficCall) -> str:
    """Returns for example ``all_gather 1M layers.3``."""
    size = call.bytes_in or call.bytes_out
    texts = (call.collective, format_size(size) if size else "", call.module)
    return one_line(" ".join(filter(None, texts)))


MAX_RANKS_DRAWN = 16  # more could not be read
_MAX_LANES = 4  # further groups share the last line of a rank
_OTHER_GROUPS = "other groups"
_LONGEST_NAME = 16
# Gaps far below the resolution of a screen (width / _RESOLUTION) are closed. Bars are not widened
# and have no edges, because a thousand short kernels would show as nothing but edges.
_RESOLUTION = 20_000
_LETTER_WIDTH = 1 / 125  # share of the width that one letter of a label takes
_LINE_INCHES = 0.24  # height of a line
# Distinguishable in greyscale as light, medium and dark; waiting is hatched.
_STYLES: dict[str, dict[str, Any]] = {
    "computing": {"facecolor": "#b9d9ee", "linewidth": 0},
    "hidden": {"facecolor": "#4a9bd0", "linewidth": 0},
    "exposed": {"facecolor": "#a63c00", "linewidth": 0},
    "untold": {"facecolor": "#e8b48f", "linewidth": 0},
    "wait": {"facecolor": "none", "edgecolor": "white", "linewidth": 0, "hatch": "///////"},
}
_NAMES = {
    "computing": "computation",
    "hidden": "communication during computation (hidden)",
    "exposed": "communication alone (exposed)",
    "untold": "communication (unknown whether hidden)",
    "wait": "of it, waiting for the last rank",
}
_TEXT_COLOURS = {"exposed": "white", "untold": "black", "hidden": "black"}


def draw_step(step: WholeStep, path: str | os.PathLike[str]) -> WrittenPicture:
    """Draws the step into a file and returns the drawing.

    Raises UsageError for a path that cannot be written, UnavailableError without matplotlib.
    """
    figure, axes = new_figure(1, 1)
    drawing = _StepDrawing(axes[0][0], step)
    ranks = _ranks_to_draw(step)
    for rank in ranks:
        drawing.add(rank)
    drawing.finish()
    figure.set_size_inches(11.0, max(3.2, 2.2 + _LINE_INCHES * drawing.height))
    lines = list(answer_lines(step))
    if len(ranks) < len(step.ranks):
        lines.append(
            f"{len(ranks)} of {len(step.ranks)} ranks are drawn: the first, and the latest"
        )
    waits = [rank.wait_ns for rank in step.ranks if rank.wait_ns]
    if waits:
        lines.append(f"longest wait of a rank: {format_ns(max(waits), 3)}")
    write_caption(figure, [*lines, *step.notes[:4]])
    return write_figure(figure, path)


def _ranks_to_draw(step: WholeStep) -> list[RankStep]:
    """Returns all ranks; of many, the first ones and the one that caused most waiting."""
    if len(step.ranks) <= MAX_RANKS_DRAWN:
        return step.ranks
    late = max(step.ranks, key=lambda rank: rank.caused_ns or 0)
    first = [rank for rank in step.ranks if rank is not late][: MAX_RANKS_DRAWN - 1]
    return sorted([*first, late], key=lambda rank: rank.rank)


class _StepDrawing:
    """The axes of the picture, filled from top to bottom.

    - height: the number of lines so far.
    """

    def __init__(self, axis: Axes, step: WholeStep) -> None:
        self.axis, self.step, self.height = axis, step, 0.0
        stamps = aligned_spans(step)
        self._low = min(start for start, _ in stamps.values())
        self._stamps = stamps
        self._width = max(end for _, end in stamps.values()) - self._low
        # The groups with a line of their own, as they are called; most calls first.
        count = Counter(self._name(call) for rank in step.ranks for call in rank.calls)
        names = [name for name, _ in count.most_common()]
        self._lanes = (
            names if len(names) <= _MAX_LANES else [*names[: _MAX_LANES - 1], _OTHER_GROUPS]
        )
        self._used: dict[str, None] = {}
        self._ticks: list[tuple[float, str]] = []

    def _name(self, step_call: StepCall) -> str:
        return self.step.groups.get(step_call.call.group) or step_call.call.group or "communication"

    def add(self, rank: RankStep) -> None:
        top, shift = self.height, self._stamps[rank.rank][0] - self._low - rank.start
        if rank.computing is not None:
            self._bars(rank.computing, shift, "computing")
            self._line("computation")
        exposed = None if rank.exposed is None else merged(rank.exposed)
        for name in self._lanes:
            lane_calls = [
                call
                for call in rank.calls
                if self._name(call) == name
                or (name == _OTHER_GROUPS and self._name(call) not in self._lanes)
            ]
            spans = merged((max(c.start, rank.start), min(c.end, rank.end)) for c in lane_calls)
            if exposed is None:
                self._bars(spans, shift, "untold")
            else:
                hidden = uncovered(spans, exposed)
                self._bars(hidden, shift, "hidden")
                self._bars(uncovered(spans, hidden), shift, "exposed")
            waits = (rank.waits[group] for group in {c.call.group for c in lane_calls})
            self._bars(merged(itertools.chain.from_iterable(waits)), shift, "wait")
            self._labels(lane_calls, rank, shift, exposed)
            self._line(name)
        for edge in (rank.start, rank.end):
            self.axis.plot([(edge + shift) / 1e6] * 2, [top, self.height], color="0.2", lw=1)
        middle = (top + self.height) / 2
        self._text(-0.155, middle, f"rank {rank.rank}", "right", "bold")
        self._text(1.008, middle, _rank_summary(rank), "left", "normal")
        self.height += 0.55

    def _line(self, name: str) -> None:
        self._ticks.append((self.height + 0.5, literal(cut_text(name, _LONGEST_NAME))))
        self.height += 1

    def _text(self, x: float, y: float, text: str, side: str, weight: str) -> None:
        transform = self.axis.get_yaxis_transform()
        self.axis.text(
            x, y, text, transform=transform, va="center", ha=side, fontsize="small", weight=weight
        )

    def _bars(self, spans: Iterable[Span], shift: int, kind: str) -> None:
        near: list[list[int]] = []
        for start, end in spans:
            if near and start - near[-1][1] < self._width / _RESOLUTION:
                near[-1][1] = max(near[-1][1], end)
            else:
                near.append([start, end])
        if near:
            self._used[kind] = None
            bars = [((start + shift) / 1e6, (end - start) / 1e6) for start, end in near]
            order = 4 if kind == "wait" else 3
            self.axis.broken_barh(bars, (self.height + 0.08, 0.84), zorder=order, **_STYLES[kind])

    def _labels(
        self, calls: Sequence[StepCall], rank: RankStep, shift: int, exposed: Sequence[Span] | None
    ) -> None:
        """Writes labels on the bars that have room for them.

        Overlapping calls are one bar and get one label.
        """
        for overlapping in _group_overlapping(calls):
            start = max(overlapping[0].start, rank.start)
            end = min(max(call.end for call in overlapping), rank.end)
            text = _label(overlapping)
            if (end - start) / self._width < len(text) * _LETTER_WIDTH:
                continue
            bar = [(start, end)]
            hidden = uncovered(bar, exposed or [])
            alone = sum(b - a for a, b in uncovered(bar, hidden))
            kind = "untold" if exposed is None else "hidden"
            kind = "exposed" if exposed is not None and 2 * alone > end - start else kind
            box = {"facecolor": _STYLES[kind]["facecolor"], "edgecolor": "none", "pad": 0.8}
            self.axis.text(
                ((start + end) / 2 + shift) / 1e6,
                self.height + 0.5,
                literal(text),
                ha="center", va="center", fontsize=7, color=_TEXT_COLOURS[kind], zorder=5, bbox=box
            )  # fmt: skip

    def finish(self) -> None:
        from matplotlib.patches import Patch

        axis, margin = self.axis, 0.004 * self._width / 1e6
        axis.set_xlim(-margin, self._width / 1e6 + margin)
        axis.set_ylim(self.height - 0.4, -0.2)
        axis.set_yticks([at for at, _ in self._ticks], [name for _, name in self._ticks])
        axis.tick_params(axis="y", length=0, labelsize="x-small")
        axis.grid(True, axis="x", color="0.9")
        axis.set_axisbelow(True)
        aligned = not self.step.offsets.problem
        begin = "the step's first begin" if aligned else "EACH RANK'S NATIVE begin of the step"
        axis.set_xlabel(f"ms from {begin}")
        axis.set_title(
            literal(step_title(self.step, brief=True)), loc="left", fontsize="medium", pad=24
        )
        shown = [kind for kind in _STYLES if kind in self._used]
        patches = []
        for kind in shown:
            style = dict(_STYLES[kind])
            if kind == "wait":
                style |= {
                    "facecolor": _STYLES[next(k for k in _TEXT_COLOURS if k in self._used)][
                        "facecolor"
                    ]
                }
            patches.append(Patch(label=_NAMES[kind], **style))
        axis.legend(
            handles=patches, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(patches),
            frameon=False, fontsize=7.5, borderaxespad=0.1, handlelength=1.6, columnspacing=1.2
        )  # fmt: skip


def _group_overlapping(calls: Iterable[StepCall]) -> list[list[StepCall]]:
    """Returns the calls in lists of those that overlap."""
    groups: list[list[StepCall]] = []
    reached = float("-inf")
    for call in sorted(calls, key=lambda call: call.start):
        if call.start >= reached:
            groups.append([])
        groups[-1].append(call)
        reached = max(reached, call.end)
    return groups


def _label(calls: Sequence[StepCall]) -> str:
    if len(calls) == 1:
        return call_text(calls[0].call)
    names = {one_line(step_call.call.collective) for step_call in calls}
    total = sum(step_call.call.bytes_in or step_call.call.bytes_out for step_call in calls)
    what = names.pop() if len(names) == 1 else "calls"
    return f"{len(calls)} {what}" + f", together {format_size(total)}" * bool(total)


def _rank_summary(rank: RankStep) -> str:
    """Returns the figures of a rank, shown at the end of its lines."""
    total = rank.step_ns or 1
    shares = []
    if rank.exposed_ns is not None:
        shares.append(f"exposed {100 * (rank.exposed_ns / total):.0f} %")
    else:
        shares.append(f"communicating {100 * (rank.communicating_ns / total):.0f} %")
    if rank.idle_ns is not None:
        shares.append(f"idle {100 * (rank.idle_ns / total):.0f} %")
    lines = [", ".join(shares)]
    if rank.last is not None:
        lines.append(f"last in {100 * rank.last:.0f} % of calls")
    return "\n".join(lines)


_US = 1e3  # ns; the format counts microseconds
_FIELDS = {
    *("collective", "bytes_in", "bytes_out", "dtype", "op", "root", "peer", "group", "sequence"),
    *("step", "asynchronous", "clock", "exposed_ns", "algorithm", "module"),
}


def traffic_trace(ledger: Ledger) -> tuple[str, list[str]]:
    """Returns the trace of all steps for Perfetto (Trace Event Format) and notes on its clocks.

    Each rank is a process with tracks for its steps, its computation and the calls of each group;
    overlapping calls are on separate tracks. Raises UsageError if no call has begin and end.
    """
    traffic, offsets = ledger.traffic, ledger.offsets
    if not any(call.span for calls in traffic.calls.values() for call in calls):
        raise UsageError("perfetto", "no call with times", "a capture or a trace")
    events: list[dict[str, Any]] = []
    for rank, calls in traffic.calls.items():
        shift = offsets.added_ns.get(rank, 0)
        events.append(_named_track("process_name", rank, f"rank {rank}"))
        tracks = _Tracks(rank, events)
        steps = traffic.steps.get(rank, ())
        plain = [
            *(("steps", f"step {number}", "step", span) for number, span in enumerate(steps)),
            *(("computing",) * 3 + (span,) for span in traffic.computing.get(rank, ())),
            *(
                (UNKNOWN_CALLS, UNKNOWN_CALLS, "communication", span)
                for span in traffic.apart.get(rank, ())
            ),
        ]
        for track, name, category, (start, end) in plain:
            thread = tracks.assign_thread(track, start, end)
            event = _complete_event(name, category, rank, start + shift, end - start, {})
            events.append({**event, "tid": thread})
        labels = _labels(traffic, calls)
        spans = [(call.span, number, call) for number, call in enumerate(calls) if call.span]
        for (start, end), number, call in sorted(spans, key=lambda entry: entry[:2]):
            thread = tracks.assign_thread(f"group {one_line(labels[call.group])}", start, end)
            fields = {name: value for name, value in call.to_json().items() if name in _FIELDS}
            args = {
                **fields,
                "wait_ns": ledger.wait_ns(rank, number),
                "error_ns": offsets.error_ns.get(rank),
            }
            kept = {name: value for name, value in args.items() if value is not None}
            call_event = _complete_event(
                call_text(call), "communication", rank, start + shift, end - start, kept, thread
            )
            events.append(call_event)
    text = offsets.text
    if offsets.problem:
        text = f"{offsets.problem}; their events are right among themselves only"
    clocks = [text] if text else []
    about = {"clocks": list(dict.fromkeys(clocks))}  # a sentence each
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}), clocks


def _labels(traffic: Traffic, calls: Sequence[TrafficCall]) -> dict[str, str]:
    """Returns a label for each group of a rank; with its name, if several would have the same."""
    names = dict.fromkeys(call.group for call in calls)
    labels = {name: traffic.groups.get(name, Group(name)).label for name in names}
    counts = Counter(labels.values())
    return {
        name: label if counts[label] == 1 else f"{label} ({name})" for name, label in labels.items()
    }


class _Tracks:
    """The threads of a process, without overlapping events on any of them: Perfetto cannot show
    those.
    """

    def __init__(self, process: int, events: list[dict[str, Any]]) -> None:
        self._process, self._events = process, events
        self._ends: dict[str, list[tuple[int, int]]] = {}  # name -> (thread, its last end)
        self._count = 0

    def assign_thread(self, name: str, start: int, end: int) -> int:
        """Returns a thread for the event; events must come in the order of their start."""
        threads = self._ends.setdefault(name, [])
        for index, (thread, last) in enumerate(threads):
            if last <= start:
                threads[index] = (thread, end)
                return thread
        self._count += 1
        threads.append((self._count, end))
        text = name if len(threads) == 1 else f"{name} ({len(threads)})"
        self._events.append(_named_track("thread_name", self._process, text, self._count))
        return self._count


def _named_track(kind: str, process: int, name: str, thread: int = 0) -> dict[str, Any]:
    """kind: ``process_name`` or ``thread_name``."""
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _complete_event(
    name: str,
    category: str,
    process: int,
    start_ns: float,
    time_ns: float,
    args: Mapping[str, Any],
    thread: int = 0,
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": start_ns / _US,
        "dur": time_ns / _US,
        "args": dict(args),
    }
