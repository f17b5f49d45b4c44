"""The Spec that measures each call of a Traffic alone (``Traffic.spec``), and one call of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torchcoll.core.case import partition, partition_text, partitions
from torchcoll.core.collectives import BOTH, COLLECTIVES, DTYPES, OPS, Collective, Layout
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import ExactCall, Spec
from torchcoll.core.units import counted

if TYPE_CHECKING:
    from torchcoll.core.traffic import Traffic, TrafficCall

# Fields of a Spec that its points replace.
OF_POINTS = (
    "points",
    "collectives",
    "dtypes",
    "ops",
    "asynchronous",
    "sizes",
    "min_bytes",
    "max_bytes",
    "factor",
    "step_bytes",
)


def _size_of(entry: Collective, call: TrafficCall, ranks: int) -> int:
    """S of a call of even blocks: the side that has all of it, or else a multiple of the other."""
    whole = entry.parts(ranks)
    held = entry.elements(Layout(0, ranks, 1))  # of the root, which holds most
    sides = list(zip((call.bytes_in, call.bytes_out), held, strict=True))
    largest = max(size_bytes for size_bytes, parts in sides if parts == whole)
    return largest or max(size_bytes * whole // parts for size_bytes, parts in sides)


def point_of(call: TrafficCall, ranks: int) -> tuple[ExactCall | None, str]:
    """(the call as it is measured alone on a group of ``ranks`` ranks, what that changes); (None,
    the reason) if it cannot be measured. The size S is that of nccl-tests (doc/PERFORMANCE.md).
    """
    name = call.collective
    if call.point_to_point:
        return None, "not measured: a message between two ranks is no collective"
    if name not in COLLECTIVES:
        return None, f"not measured: {name} is not in the table of collectives"
    entry = COLLECTIVES[name]
    if not entry.has_data:
        return ExactCall(name, 0, asynchronous=bool(call.asynchronous)), ""
    remarks = []
    alike = COLLECTIVES[entry.even] if entry.has_splits else entry
    size_bytes = _size_of(alike, call, ranks)
    if not size_bytes:
        return None, "not measured: the call moves no bytes"
    if entry.has_splits:
        name = entry.even
        # Sizes may have been given that are all alike.
        sides_differ = entry.blocks == BOTH and call.bytes_in != call.bytes_out
        if len(set(call.splits)) != 1 or sides_differ:
            remarks.append(f"measured as an even {name} of the larger of bytes in and out")
    dtype = (call.dtype or "").removeprefix("torch.")
    if dtype not in DTYPES:
        recorded = dtype or "unknown"
        dtype = "float32" if entry.has_op and size_bytes % 4 == 0 else "uint8"
        remarks.append(f"dtype {recorded}: measured as {dtype} of the same bytes")
    op = None
    if entry.has_op:
        op = call.op if call.op in OPS else "sum"
        if call.op not in OPS:
            remarks.append(f"reduce op {call.op or 'unknown'}: measured as sum")
    if call.tensors > 1:
        remarks.append("several tensors in one call: measured as one tensor of all their bytes")
    return ExactCall(name, size_bytes, dtype, op, bool(call.asynchronous)), "; ".join(remarks)


def spec_of(traffic: Traffic, groups: str | None, changes: Mapping[str, Any]) -> Spec:
    """``Traffic.spec``."""
    taken = [name for name in OF_POINTS if name in changes]
    if taken:
        value = f"{taken[0]} with a traffic, which says what is sent"
        raise UsageError("spec", value, "fields that say how to measure")
    chosen = _choose(traffic, groups)
    members = set(chosen or [tuple(range(traffic.ranks))])
    points: dict[ExactCall, None] = {}
    remarks: Counter[str] = Counter()
    for call in _calls(traffic):
        group = traffic.members(call)
        if group not in members and not call.point_to_point:
            where = "one rank sends nothing" if len(group) == 1 else "other ranks, not chosen here"
            remarks[f"{call.collective}: not measured: a group of {where}"] += 1
            continue
        point, remark = point_of(call, len(group))
        if remark:
            remarks[f"{call.collective}: {remark}"] += 1
        if point:
            points[point] = None
    for remark, count in remarks.items():
        note = f"{counted(count, 'call')} of {remark}"
        if note not in traffic.notes:
            traffic.notes.append(note)
    if not points:
        reasons = "; ".join(remarks) or "none"
        raise UsageError("traffic", f"no call that can be measured ({reasons})", "at least one")
    first = {key: place for place, key in enumerate(dict.fromkeys(map(_kind, points)))}
    ordered = sorted(points, key=lambda point: (first[_kind(point)], point.size_bytes))
    text = partition_text(chosen) if chosen else None
    return Spec(points=tuple(ordered), groups=text, **changes)


def _calls(traffic: Traffic) -> Iterable[TrafficCall]:
    return (call for calls in traffic.calls.values() for call in calls)


def _kind(point: ExactCall) -> tuple[Any, ...]:
    return point.collective, point.dtype, point.op, point.asynchronous


_EACH = "Measure each in a run of its own."


def _choose(traffic: Traffic, groups: str | None) -> tuple[tuple[int, ...], ...]:
    """The partition to measure on; () for one group of all ranks. Raises UsageError."""
    whole = tuple(range(traffic.ranks))
    used = {traffic.members(call) for call in _calls(traffic) if not call.point_to_point}
    choices: list[tuple[tuple[int, ...], ...]] = [()] if whole in used else []
    parts = {group for group in used if group != whole and len(group) > 1}
    # Sorted: each rank sees its own groups, in its own order, and all must name the same choices.
    choices += sorted(partitions(parts, traffic.ranks, set(traffic.calls)))
    named = " or ".join(f"groups={partition_text(choice or (whole,))!r}" for choice in choices)
    if groups is None:
        if len(choices) > 1:
            value = f"calls on {len(choices)} ways to divide the ranks"
            raise UsageError("groups", value, f"one of them: {named}", _EACH)
        return choices[0] if choices else ()
    asked = partition(groups, traffic.ranks)
    for division in choices:
        if set(division or (whole,)) == set(asked):
            return division
    raise UsageError("groups", groups, named or "no groups: the traffic has no calls")
