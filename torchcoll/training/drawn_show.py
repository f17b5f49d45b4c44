"""One step of a training as a picture: the ranks below each other, one scale of time."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import one_line
from torchcoll.core.intervals import Span, merged
from torchcoll.core.units import format_size, time_text
from torchcoll.report.pictures import Drawn, literal, new_figure, write_caption, write_figure
from torchcoll.training.step_show import answer_lines, call_text, step_title
from torchcoll.training.whole_step import RankStep, StepCall, WholeStep, common, uncovered

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DRAWN = 16  # ranks: more lines could not be read
_GROUPS = 4  # so many have a line of their own, the rest share the last
_OTHERS = "other groups"
_LONGEST_NAME = 16
# Gaps far below what a screen shows are closed; nothing is made wider than it is, and bars have no
# edges: of a thousand short kernels a picture would show nothing but edges.
_FINEST = 20_000
_LETTER = 1 / 125  # of the width: what one of a label takes
_INCHES = 0.24  # of a line
# In grey: light, middle and dark; what is not told is dotted, waiting is hatched.
_STYLES: dict[str, dict[str, Any]] = {
    "computing": {"facecolor": "#b9d9ee", "linewidth": 0},
    "hidden": {"facecolor": "#4a9bd0", "linewidth": 0},
    "exposed": {"facecolor": "#a63c00", "linewidth": 0},
    "untold": {"facecolor": "#e8b48f", "linewidth": 0},
    "wait": {"facecolor": "none", "edgecolor": "white", "linewidth": 0, "hatch": "///////"},
}
_NAMES = {
    "computing": "computation",
    "hidden": "communication beside computation (hidden)",
    "exposed": "communication alone (exposed)",
    "untold": "communication (what ran beside it is not told)",
    "wait": "of it, waiting for the last rank",
}
_ON = {"exposed": "white", "untold": "black", "hidden": "black"}  # colour of labels


def draw_step(found: WholeStep, path: str | os.PathLike[str]) -> Drawn:
    """Raises UsageError for a path that cannot be written, UnavailableError without matplotlib."""
    figure, axes = new_figure(1, 1)
    drawing = _StepDrawing(axes[0][0], found)
    ranks = _drawn(found)
    for one in ranks:
        drawing.add(one)
    drawing.finish()
    figure.set_size_inches(11.0, max(3.2, 2.2 + _INCHES * drawing.height))
    lines = list(answer_lines(found))
    if len(ranks) < len(found.ranks):
        lines.append(
            f"{len(ranks)} of {len(found.ranks)} ranks are drawn: the first, and the latest"
        )
    waits = [one.wait_ns for one in found.ranks if one.wait_ns]
    if waits:
        lines.append(f"longest wait of a rank: {time_text(max(waits), 3)}")
    write_caption(figure, [*lines, *found.notes[:4]])
    return write_figure(figure, path)


def _drawn(found: WholeStep) -> list[RankStep]:
    """All ranks; of many the first, and the one that came last most often."""
    if len(found.ranks) <= MOST_DRAWN:
        return found.ranks
    late = max(found.ranks, key=lambda one: (one.last or 0) - (one.even or 0))
    first = [one for one in found.ranks if one is not late][: MOST_DRAWN - 1]
    return sorted([*first, late], key=lambda one: one.rank)


class _StepDrawing:
    """The axes, filled from above. height: lines so far."""

    def __init__(self, axis: Axes, found: WholeStep) -> None:
        self.axis, self.found, self.height = axis, found, 0.0
        stamps = common(found)
        self._low = min(start for start, _ in stamps.values())
        self._stamps = stamps
        self._width = max(end for _, end in stamps.values()) - self._low
        # The groups with a line of their own, as they are called; most calls first.
        count = Counter(self._name(call) for one in found.ranks for call in one.calls)
        names = [name for name, _ in count.most_common()]
        self._lanes = names if len(names) <= _GROUPS else [*names[: _GROUPS - 1], _OTHERS]
        self._used: dict[str, None] = {}
        self._ticks: list[tuple[float, str]] = []

    def _name(self, one: StepCall) -> str:
        return self.found.groups.get(one.call.group) or one.call.group or "communication"

    def add(self, one: RankStep) -> None:
        top, shift = self.height, self._stamps[one.rank][0] - self._low - one.start
        if one.computing is not None:
            self._bars(one.computing, shift, "computing")
            self._line("computation")
        exposed = None if one.exposed is None else merged(one.exposed)
        for name in self._lanes:
            own = [
                call
                for call in one.calls
                if self._name(call) == name
                or (name == _OTHERS and self._name(call) not in self._lanes)
            ]
            spans = merged((max(c.start, one.start), min(c.end, one.end)) for c in own)
            if exposed is None:
                self._bars(spans, shift, "untold")
            else:
                hidden = uncovered(spans, exposed)
                self._bars(hidden, shift, "hidden")
                self._bars(uncovered(spans, hidden), shift, "exposed")
            waits = (one.waits[group] for group in {c.call.group for c in own})
            self._bars(merged(itertools.chain.from_iterable(waits)), shift, "wait")
            self._labels(own, one, shift, exposed)
            self._line(name)
        for edge in (one.start, one.end):
            self.axis.plot([(edge + shift) / 1e6] * 2, [top, self.height], color="0.2", lw=1)
        middle = (top + self.height) / 2
        self._text(-0.155, middle, f"rank {one.rank}", "right", "bold")
        self._text(1.008, middle, _concurrent(one), "left", "normal")
        self.height += 0.55

    def _line(self, name: str) -> None:
        short = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."
        self._ticks.append((self.height + 0.5, literal(short)))
        self.height += 1

    def _text(self, x: float, y: float, text: str, side: str, weight: str) -> None:
        where = self.axis.get_yaxis_transform()
        self.axis.text(
            x, y, text, transform=where, va="center", ha=side, fontsize="small", weight=weight
        )

    def _bars(self, spans: Iterable[Span], shift: int, kind: str) -> None:
        near: list[list[int]] = []
        for start, end in spans:
            if near and start - near[-1][1] < self._width / _FINEST:
                near[-1][1] = max(near[-1][1], end)
            else:
                near.append([start, end])
        if near:
            self._used[kind] = None
            places = [((start + shift) / 1e6, (end - start) / 1e6) for start, end in near]
            order = 4 if kind == "wait" else 3
            self.axis.broken_barh(places, (self.height + 0.08, 0.84), zorder=order, **_STYLES[kind])

    def _labels(
        self, calls: Sequence[StepCall], one: RankStep, shift: int, exposed: Sequence[Span] | None
    ) -> None:
        """Where there is room, none on another's: one for calls that overlap, which are one bar."""
        for own in _together(calls):
            start = max(own[0].start, one.start)
            end = min(max(call.end for call in own), one.end)
            text = _label(own)
            if (end - start) / self._width < len(text) * _LETTER:
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
                ha="center", va="center", fontsize=7, color=_ON[kind], zorder=5, bbox=box,
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
        aligned = not self.found.offsets.problem
        begin = "the step's first begin" if aligned else "EACH RANK'S OWN begin of the step"
        axis.set_xlabel(f"ms from {begin}")
        axis.set_title(
            literal(step_title(self.found, brief=True)), loc="left", fontsize="medium", pad=24
        )
        shown = [kind for kind in _STYLES if kind in self._used]
        patches = []
        for kind in shown:
            style = dict(_STYLES[kind])
            if kind == "wait":
                style |= {
                    "facecolor": _STYLES[next(k for k in _ON if k in self._used)]["facecolor"]
                }
            patches.append(Patch(label=_NAMES[kind], **style))
        axis.legend(
            handles=patches, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(patches),
            frameon=False, fontsize=7.5, borderaxespad=0.1, handlelength=1.6, columnspacing=1.2,
        )  # fmt: skip


def _together(calls: Iterable[StepCall]) -> list[list[StepCall]]:
    """Calls that overlap, in one list."""
    found: list[list[StepCall]] = []
    reached = float("-inf")
    for call in sorted(calls, key=lambda call: call.start):
        if call.start >= reached:
            found.append([])
        found[-1].append(call)
        reached = max(reached, call.end)
    return found


def _label(calls: Sequence[StepCall]) -> str:
    if len(calls) == 1:
        return call_text(calls[0].call)
    names = {one_line(one.call.collective) for one in calls}
    total = sum(one.call.bytes_in or one.call.bytes_out for one in calls)
    what = names.pop() if len(names) == 1 else "calls"
    return f"{len(calls)} {what}" + f", together {format_size(total)}" * bool(total)


def _concurrent(one: RankStep) -> str:
    """The figures of a rank, at the end of its lines."""
    total = one.step_ns or 1
    words = []
    if one.exposed_ns is not None:
        words.append(f"exposed {100 * (one.exposed_ns / total):.0f} %")
    else:
        words.append(f"communicating {100 * (one.communicating_ns / total):.0f} %")
    if one.idle_ns is not None:
        words.append(f"idle {100 * (one.idle_ns / total):.0f} %")
    lines = [", ".join(words)]
    if one.last is not None:
        lines.append(f"last in {100 * one.last:.0f} % of calls")
    return "\n".join(lines)
