"""Compares the calls of one number across the ranks of a group: do all make the same call?"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from torchcoll.parts.postmortem.evidence import CallSeen
from torchcoll.parts.postmortem.standing import GroupStanding
from torchcoll.reading.torch_names import product

# Collectives that require the same number of elements of all ranks. Others may differ: a root has
# an output that the others lack, and splits may be uneven.
_SAME_SIZE = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather")
_WITHOUT_DTYPE = ("barrier", "monitored_barrier")
# Ranks that completed so many calls alike after a difference were not stopped by it; more where
# the source does not record what completed, since ranks issue calls ahead.
_HARMLESS_AFTER, _HARMLESS_WITHOUT_STATES = 1, 16
_MAJORITY = 2  # times as many ranks as the others together


@dataclass(frozen=True)
class CallDifference:
    """Ranks that made different calls with the same number.

    what: ``collective``, ``size``, ``dtype`` or ``order`` (the ranks made the same two calls in
    another order) or ``skipped`` (a rank is ahead by the calls that it left out). calls: one of
    each kind, the most frequent first. ranks: those of each kind. minority: ranks that differ from
    a majority of at least 2 to 1; () if there is no such majority.
    """

    group: GroupStanding
    number: int
    what: str
    calls: tuple[CallSeen, ...]
    ranks: tuple[tuple[int, ...], ...]

    @property
    def minority(self) -> tuple[int, ...]:
        others = [rank for ranks in self.ranks[1:] for rank in ranks]
        return tuple(sorted(others)) if len(self.ranks[0]) >= _MAJORITY * len(others) else ()

    @property
    def all_ranks(self) -> tuple[int, ...]:
        return tuple(sorted(rank for ranks in self.ranks for rank in ranks))


def signature(call: CallSeen) -> tuple[str, int | None, str | None]:
    """What has to be equal on all ranks: collective, elements, dtype; None where not comparable."""
    elements = None
    sizes = call.sizes_out if call.collective == "broadcast" else call.sizes_in
    sizes = sizes or call.sizes_in
    if call.collective in _SAME_SIZE and sizes:
        counts = [product(shape) for shape in sizes]
        elements = None if None in counts else sum(count or 0 for count in counts)
    dtype = None if call.collective in _WITHOUT_DTYPE else call.dtype
    return call.collective, elements, dtype


def _differ(a: CallSeen, b: CallSeen) -> str:
    """In what two calls of one number differ; '' if they agree, as far as is known."""
    first, second = signature(a), signature(b)
    # gloo's Flight Recorder has an all_reduce for each reduce_scatter.
    if {first[0], second[0]} == {"all_reduce", "reduce_scatter"} and first[1:] == second[1:]:
        return ""
    for what, mine, other in zip(("collective", "size", "dtype"), first, second, strict=True):
        if mine is not None and other is not None and mine != other:
            return what
    return ""


def find_difference(group: GroupStanding) -> CallDifference | None:
    """The first call of the group that its ranks made differently, if they did not go on alike."""
    by_number: dict[int, list[int]] = defaultdict(list)
    for rank, calls in sorted(group.calls.items()):
        for number in calls:
            by_number[number].append(rank)
    numbers = sorted(number for number, ranks in by_number.items() if len(ranks) > 1)
    differing = [number for number in numbers if _any_differ(group, number, by_number[number])]
    if not differing:
        return None
    last = differing[-1]
    alike_after = [
        [group.calls[rank][number] for rank in by_number[number]]
        for number in numbers
        if number > last
    ]
    completed = [all(_is_completed(call) for call in calls) for calls in alike_after]
    reliable = any(call.reliable_state for calls in alike_after for call in calls)
    if sum(completed) >= _HARMLESS_AFTER:
        return None
    if not reliable and len(alike_after) >= _HARMLESS_WITHOUT_STATES:
        return None
    for number in differing:
        calls_at = {rank: group.calls[rank][number] for rank in by_number[number]}
        if not all(_is_completed(call) for call in calls_at.values()):
            return _difference(group, number, calls_at)
    return None


def _is_completed(call: CallSeen) -> bool:
    return call.reliable_state and call.state == "completed"


def _any_differ(group: GroupStanding, number: int, ranks: list[int]) -> bool:
    example = group.calls[ranks[0]][number]
    return any(_differ(example, group.calls[rank][number]) for rank in ranks[1:])


def _difference(group: GroupStanding, number: int, calls: dict[int, CallSeen]) -> CallDifference:
    kinds: list[tuple[CallSeen, list[int]]] = []
    frequent = Counter(signature(call) for call in calls.values())
    for rank in sorted(calls, key=lambda r: (-frequent[signature(calls[r])], r)):
        for example, ranks in kinds:
            if not _differ(example, calls[rank]):
                ranks.append(rank)
                break
        else:
            kinds.append((calls[rank], [rank]))
    kinds.sort(key=lambda kind: -len(kind[1]))
    what = _differ(kinds[0][0], kinds[1][0])
    usual, odd = kinds[0][1][0], kinds[1][1][0]
    what = _exchanged(group, number, usual, odd) or what
    return CallDifference(
        group,
        number,
        what,
        tuple(example for example, _ in kinds),
        tuple(tuple(ranks) for _, ranks in kinds),
    )


def _exchanged(group: GroupStanding, number: int, usual: int, odd: int) -> str:
    """``order`` if two calls are exchanged, ``skipped`` if one rank left a call out, as far as the
    calls after this one tell.
    """
    at = [[group.call(rank, n) for n in range(number, number + 3)] for rank in (usual, odd)]
    (u0, u1, u2), (o0, o1, o2) = at
    if u0 and o0 and u1 and o1 and not _differ(u0, o1) and not _differ(u1, o0):
        return "order"
    for ahead, behind in (((o0, o1), (u1, u2)), ((u0, u1), (o1, o2))):
        if all(a and b and not _differ(a, b) for a, b in zip(ahead, behind, strict=True)):
            return "skipped"
    return ""
