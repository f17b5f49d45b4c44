"""Exact calls to measure, in place of a product: those that a training sends, above all.

A Point is one call as nccl-tests would size it; ``point_of`` makes it of a call of a Traffic, and
``spec_of`` a Spec of the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from torchcoll.core.collectives import COLLECTIVES, OPS, find_collective, find_op
from torchcoll.core.dtypes import DTYPES, find_dtype
from torchcoll.core.errors import UsageError
from torchcoll.core.groups import partition, partition_text, partitions
from torchcoll.core.spec import Spec
from torchcoll.core.units import parse_size

if TYPE_CHECKING:
    from torchcoll.core.traffic import Traffic, TrafficCall


@dataclass(frozen=True)
class Point:
    """One call: ``nbytes`` is its size S as in Case; dtype and op are None where it has none.

    Rooted collectives run from the ``roots`` of the Spec, all from its ``in_place`` and so on.
    """

    collective: str
    nbytes: int
    dtype: str | None = None
    op: str | None = None
    asynchronous: bool = False


_EXPECTED = "(collective, nbytes, dtype, op, asynchronous)"


def read_points(points: Any) -> tuple[Point, ...]:
    """The points, each once: Points, sequences of their fields, or mappings (a file's header).

    Names are read as everywhere; a dtype and an op that are left out are float32 and sum. Raises
    UsageError.
    """
    if isinstance(points, str) or not isinstance(points, Iterable):
        raise UsageError("points", points, f"a list of {_EXPECTED}")
    return tuple(dict.fromkeys(map(_read_point, points)))


def _read_point(given: Any) -> Point:
    try:
        point = given
        if not isinstance(given, Point):
            point = Point(**given) if isinstance(given, Mapping) else Point(*given)
    except TypeError:
        raise UsageError("points", given, f"{_EXPECTED} each") from None
    if not isinstance(point.asynchronous, bool):
        raise UsageError("points", given, "True or False for asynchronous")
    entry = find_collective(point.collective)
    nbytes = parse_size(point.nbytes, "points")
    if entry.has_data and not nbytes:
        raise UsageError("points", f"{entry.name} of 0 bytes", "at least 1 byte")
    return Point(
        entry.name,
        nbytes if entry.has_data else 0,
        find_dtype(point.dtype or "float32").name if entry.has_data else None,
        find_op(point.op or "sum") if entry.has_op else None,
        point.asynchronous,
    )


def fields_of(points: Iterable[Point]) -> dict[str, tuple[Any, ...]]:
    """What the fields of a Spec that are a product hold then: the values that the points have."""
    columns = zip(*map(astuple, points), strict=True)
    collectives, sizes, dtypes, ops, _ = (dict.fromkeys(column) for column in columns)
    found = {"collectives": collectives, "sizes": sorted(sizes), "dtypes": dtypes, "ops": ops}
    kept = {name: tuple(value for value in values if value) for name, values in found.items()}
    return {name: values for name, values in kept.items() if values}


# -- of a Traffic ------------------------------------------------------------------------------

# Fields of a Spec that the points take the place of.
_OF_POINTS = (
    *("points", "collectives", "dtypes", "ops", "asynchronous"),
    *("sizes", "min_bytes", "max_bytes", "factor", "step_bytes"),
)


def point_of(call: TrafficCall, ranks: int) -> tuple[Point | None, str]:
    """The call as it is measured alone on a group of ``ranks`` ranks, and what that leaves out.

    Size S as in nccl-tests (reference: its doc/PERFORMANCE.md): all_gather what a rank gets,
    reduce_scatter what it puts in, gather and scatter all that the root holds, the others the
    larger of both. None with the reason where the call has no such size.
    """
    name = call.collective
    if call.point_to_point:
        return None, "not measured: a message between two ranks is no collective"
    if name not in COLLECTIVES:
        return None, f"not measured: {name} is not in the table of collectives"
    entry = COLLECTIVES[name]
    if not entry.has_data:
        return Point(name, 0, asynchronous=bool(call.asynchronous)), ""
    if name == "all_gather":
        nbytes = call.nbytes_out or call.nbytes_in * ranks
    elif name == "reduce_scatter":
        nbytes = call.nbytes_in or call.nbytes_out * ranks
    elif name == "gather":
        nbytes = max(call.nbytes_in * ranks, call.nbytes_out)
    elif name == "scatter":
        nbytes = max(call.nbytes_in, call.nbytes_out * ranks)
    else:
        nbytes = max(call.nbytes_in, call.nbytes_out)
    if not nbytes:
        return None, "not measured: the call moves no bytes"
    remarks = []
    if name == "all_to_all_v":
        name = "all_to_all"
        # Sizes may have been given that are all alike.
        if len(set(call.splits)) != 1 or call.nbytes_in != call.nbytes_out:
            remarks.append("measured as an even all_to_all of the larger of bytes in and out")
    dtype = (call.dtype or "").removeprefix("torch.")
    if dtype not in DTYPES:
        known = dtype or "unknown"
        dtype = "float32" if entry.has_op and nbytes % 4 == 0 else "uint8"
        remarks.append(f"dtype {known}: measured as {dtype} of the same bytes")
    op = None
    if entry.has_op:
        op = call.op if call.op in OPS else "sum"
        if call.op not in OPS:
            remarks.append(f"reduce op {call.op or 'unknown'}: measured as sum")
    if call.tensors > 1:
        remarks.append("several tensors in one call: measured as one tensor of all their bytes")
    return Point(name, nbytes, dtype, op, bool(call.asynchronous)), "; ".join(remarks)


def spec_of(traffic: Traffic, groups: str | None, changes: Mapping[str, Any]) -> Spec:
    """``Traffic.spec``."""
    taken = [name for name in _OF_POINTS if name in changes]
    if taken:
        got = f"{taken[0]} beside a traffic, which says what is sent"
        raise UsageError("spec", got, "fields that say how to measure")
    chosen = _choose(traffic, groups)
    members = set(chosen or [tuple(range(traffic.ranks))])
    points: dict[Point, None] = {}
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
        note = f"{count} call{'s' if count > 1 else ''} of {remark}"
        if note not in traffic.notes:
            traffic.notes.append(note)
    if not points:
        told = "; ".join(remarks) or "none"
        raise UsageError("traffic", f"no call that can be measured ({told})", "at least one")
    first = {key: place for place, key in enumerate(dict.fromkeys(map(_kind, points)))}
    ordered = sorted(points, key=lambda point: (first[_kind(point)], point.nbytes))
    text = partition_text(chosen) if chosen else None
    return Spec(points=tuple(ordered), groups=text, **changes)


def _calls(traffic: Traffic) -> Iterable[TrafficCall]:
    return (call for calls in traffic.calls.values() for call in calls)


def _kind(point: Point) -> tuple[Any, ...]:
    return point.collective, point.dtype, point.op, point.asynchronous


_EACH = "Measure each in a run of its own: torchcoll.cost takes a list of runs."


def _choose(traffic: Traffic, groups: str | None) -> tuple[tuple[int, ...], ...]:
    """The partition of the world on which to measure; () is one group of all. Raises UsageError."""
    whole = tuple(range(traffic.ranks))
    used = {traffic.members(call) for call in _calls(traffic) if not call.point_to_point}
    choices: list[tuple[tuple[int, ...], ...]] = [()] if whole in used else []
    parts = {group for group in used if group != whole and len(group) > 1}
    # Sorted: each rank sees its own groups, in its own order, and all must name the same choices.
    choices += sorted(partitions(parts, traffic.ranks, set(traffic.calls)))
    named = " or ".join(f"groups={partition_text(choice or (whole,))!r}" for choice in choices)
    if groups is None:
        if len(choices) > 1:
            got = f"calls on {len(choices)} ways to divide the ranks"
            raise UsageError("groups", got, f"one of them: {named}", _EACH)
        return choices[0] if choices else ()
    asked = partition(groups, traffic.ranks)
    for choice in choices:
        if set(choice or (whole,)) == set(asked):
            return choice
    raise UsageError("groups", groups, named or "no groups: the traffic has no calls")
