"""Draws one step of a training: the ranks below each other, on one time scale."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import one_line
from torchcoll.core.intervals import Span, merged, uncovered
from torchcoll.core.units import format_ns, format_size
from torchcoll.parts.training.step_show import answer_lines, call_text, step_title
from torchcoll.parts.training.whole_step import RankStep, StepCall, WholeStep, aligned_spans
from torchcoll.report.pictures import (
    WrittenPicture,
    literal,
    new_figure,
    write_caption,
    write_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        short = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."
        self._ticks.append((self.height + 0.5, literal(short)))
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
                ha="center", va="center", fontsize=7, color=_TEXT_COLOURS[kind], zorder=5, bbox=box,
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
            frameon=False, fontsize=7.5, borderaxespad=0.1, handlelength=1.6, columnspacing=1.2,
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
