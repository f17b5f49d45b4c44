"""Finds the steps of a training that send alike, and describes how the others differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from torchcoll.core.collectives import has_splits
from torchcoll.core.errors import UsageError
from torchcoll.core.summary import median
from torchcoll.core.traffic import Group, Span, Traffic, TrafficCall
from torchcoll.core.units import format_ranges, plural

_MAX_STEPS = 1_000_000  # a broken step number must not start an endless loop


class Kind(NamedTuple):
    """What the calls of one row of a table have in common.

    - bytes_in, bytes_out: None for all_to_all_v, whose sizes vary by nature.
    - group: description, size and index of the group among the similar groups of this rank, see
      ``call_kinds``.
    """

    collective: str
    bytes_in: int | None
    bytes_out: int | None
    dtype: str | None
    op: str | None
    asynchronous: bool | None
    group: tuple[str, int, int]


def call_kinds(calls: Sequence[TrafficCall], groups: Mapping[str, Group]) -> list[Kind]:
    """Returns the kind of each call of one rank.

    On a mesh every rank has its own group for each dimension, and all of these are used alike. A
    group is therefore identified by its description, size and index among those that share both.
    """
    places: dict[str, tuple[str, int, int]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    kinds = []
    for call in calls:
        if call.group not in places:
            group = groups.get(call.group) or Group(call.group)
            alike = (group_description(group), len(group.ranks))
            places[call.group] = (*alike, seen[alike])
            seen[alike] += 1
        vary = has_splits(call.collective)
        kind = Kind(
            call.collective,
            None if vary else call.bytes_in,
            None if vary else call.bytes_out,
            call.dtype,
            call.op,
            call.asynchronous,
            places[call.group],
        )
        kinds.append(kind)
    return kinds


def group_description(group: Group) -> str:
    """Returns what the program calls a group; torch sets ``undefined`` if it has no description."""
    return "" if group.description == "undefined" else group.description


def group_labels(groups: Mapping[str, Group], names: Iterable[str]) -> dict[str, str]:
    """Returns the labels of groups by their names; with the ranks where several share a label, or
    else with the name.
    """
    texts = {}
    for name in dict.fromkeys(names):
        group = groups.get(name, Group(name))
        texts[name] = group.label, f"{group.label} {format_ranges(group.ranks)}".rstrip()
    counts = Counter(text for of_group in texts.values() for text in {*of_group})
    return {
        name: next((text for text in of_group if counts[text] == 1), f"{of_group[0]} ({name})")
        for name, of_group in texts.items()
    }


@dataclass
class Steps:
    """The steps of a traffic.

    - steady: numbers of the steps that send alike, or of all steps if ``varying``.
    - total: number of steps.
    - marked: False if no step was marked; all calls are then step 0.
    - varying: less than half of the steps are alike.
    - kinds: kinds[rank] is the kind of each call.
    - at: at[rank][step] lists the indices of the step's calls in ``traffic.calls[rank]``.
    - marks: marks[rank][step] is the span of the step.
    - duration_ns: the median duration of a steady step on each rank, mean over the ranks; None
      without marks.
    - notes: which steps differ, and what is left out.
    """

    steady: tuple[int, ...]
    total: int
    marked: bool
    varying: bool
    kinds: dict[int, list[Kind]]
    at: dict[int, dict[int, list[int]]]
    marks: Mapping[int, Sequence[Span]]
    duration_ns: float | None = None
    notes: list[str] = field(default_factory=list)

    def reduce(self, of_step: Callable[[int], float | None]) -> float | None:
        """Returns the median of a figure over the steady steps, or its mean if the steps vary.

        None if no step has it.
        """
        values = [value for step in self.steady if (value := of_step(step)) is not None]
        if not values:
            return None
        return sum(values) / len(values) if self.varying else median(values)


def find_steps(traffic: Traffic) -> Steps:
    """Finds the steady steps: those that send what most steps send.

    DDP's first step sends everything in one bucket, and the last step may be cut off. If several
    contents are equally common, the latest counts. Steps that send nothing (gradient accumulation)
    count only if all steps do. If less than half of the steps are alike, the figures are means.
    """
    kinds = {rank: call_kinds(calls, traffic.groups) for rank, calls in traffic.calls.items()}
    marked = any(traffic.steps.values()) or any(
        call.step is not None for calls in traffic.calls.values() for call in calls
    )
    at: dict[int, dict[int, list[int]]] = {}
    for rank, calls in traffic.calls.items():
        by_step: dict[int, list[int]] = defaultdict(list)
        for index, call in enumerate(calls):
            if call.step is not None or not marked:
                by_step[call.step or 0].append(index)
        at[rank] = by_step
    total = _total(traffic, at) if marked else 1
    sent: list[Sent] = [
        {
            rank: Counter(kinds[rank][i] for i in by_step.get(step, ()))
            for rank, by_step in at.items()
        }
        for step in range(total)
    ]
    usual = _most_common_step(sent)
    alike = tuple(step for step, step_sent in enumerate(sent) if step_sent == usual)
    busy = sum(any(step_sent.values()) for step_sent in sent)
    varying = 2 * len(alike) < busy
    steady = tuple(range(total)) if varying else alike
    result = Steps(steady, total, marked, varying, kinds, at, traffic.steps)
    result.notes = _notes(traffic, result, sent, alike)
    spans = (
        {number: end - start for number, (start, end) in enumerate(of_rank)}
        for of_rank in traffic.steps.values()
    )
    durations = [ns for of_rank in spans if (ns := result.reduce(of_rank.get)) is not None]
    result.duration_ns = fmean(durations) if durations else None
    return result


Sent = dict[int, Counter[Kind]]  # rank -> what it sends in a step


def _total(traffic: Traffic, at: Mapping[int, Mapping[int, Sequence[int]]]) -> int:
    """Returns the number of steps marked on every rank that marks any; an interrupted rank has
    fewer.
    """
    marked = [len(spans) for spans in traffic.steps.values() if spans]
    if marked:
        return min(marked)
    total = max((s + 1 for by_step in at.values() for s in by_step), default=1)
    if total > _MAX_STEPS:
        name = traffic.path or "the traffic"
        raise UsageError(f"steps of {name}", total, f"{_MAX_STEPS} at most where none is marked")
    return total


def _most_common_step(sent: Sequence[Sent]) -> Sent:
    """Returns what most steps send; steps that send something are preferred, then the latest."""
    groups: dict[object, list[int]] = defaultdict(list)
    for step, step_sent in enumerate(sent):
        content = (
            (rank, kind, n) for rank, counts in step_sent.items() for kind, n in counts.items()
        )
        groups[frozenset(content)].append(step)
    steps = max(
        groups.values(),
        key=lambda numbers: (any(sent[numbers[0]].values()), len(numbers), numbers[-1]),
    )
    return sent[steps[0]]


def _notes(
    traffic: Traffic, result: Steps, sent: Sequence[Sent], alike: Sequence[int]
) -> list[str]:
    if not result.marked:
        text = "no step is marked: all calls are one step"
        return [text] if traffic.source != "plan" else []
    notes = []
    if result.varying:
        notes.append(
            f"the steps vary: at most {len(alike)} of {result.total} send alike; "
            "figures are means over all of them"
        )
    else:
        empty = [step for step, step_sent in enumerate(sent) if not any(step_sent.values())]
        odd = [step for step in range(len(sent)) if step not in (*alike, *empty)]
        notes += [
            f"left out: {plural(len(steps), 'step')} {format_ranges(steps)} of {len(sent)}, {what}"
            for steps, what in ((odd, "with other calls than most steps"), (empty, "without calls"))
            if steps and steps != list(alike)
        ]
    counts = {len(spans) for spans in traffic.steps.values() if spans}
    if len(counts) > 1:
        notes.append(
            f"the ranks marked {min(counts)} to {max(counts)} steps: the first {min(counts)} count"
        )
    outside = sum(
        call.step is None or call.step >= result.total
        for calls in traffic.calls.values()
        for call in calls
    )
    if outside:
        ranks = f" of {len(traffic.calls)} ranks" if len(traffic.calls) > 1 else ""
        calls = "1 call" if outside == 1 else f"{outside} calls"
        notes.append(f"{calls}{ranks} outside of the marked steps: left out")
    return notes
