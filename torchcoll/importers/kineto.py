"""Traces of torch.profiler: the calls of one rank, their times, and how much of them was exposed.

On an accelerator the kernels that carry a call's ``External id`` tell its time, and NCCL's by their
names the algorithm, which is a hint. What gloo runs
stands on threads of its own as ``gloo:*``, without a link to the call: it is put to the first c10d
operator before it of the same operation and size, and gives it its end, and the dtype that torch
hides there. Exposed is what nothing else ran under: other kernels of the device; on the host other
operators.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UnreadableError
from torchcoll.core.intervals import Span, Union, exposed
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.importers.base import whole
from torchcoll.importers.kineto_calls import UNKNOWN, Calls, elements_of, groups_of
from torchcoll.importers.kineto_events import (
    Event,
    Issued,
    device_of,
    events_of,
    issued,
    kernels_of,
    steps_of,
)
from torchcoll.importers.torch_words import (
    Numbers,
    check_ranks,
    collective_of,
    dtype_of,
    hidden_op,
    product,
    rank_in,
)
from torchcoll.libraries.nccl.calls import choice_of_kernel

SOURCE = "kineto"


def is_trace(data: object) -> bool:
    """True for Chrome's JSON of any tool."""
    return isinstance(data, dict) and isinstance(data.get("traceEvents"), list)


def read_trace(data: Mapping[str, Any], path: Path) -> tuple[Traffic, int | None]:
    """The calls of one rank, and the number of the first step that the profiler marked.

    Raises UnreadableError for a trace without communication, without sizes, or of no known rank.
    """
    events = events_of(data)
    calls, computing = issued(events)
    kernels, on_device, others = kernels_of(events, calls)
    if not any(call.has_param for call in calls):
        # Without the host's events there are the kernels alone, which tell the same.
        alone = [event for event in others if "Collective name" in event.args]
        calls += map(Issued, alone)
        kernels.update((event.id, [event]) for event in alone)
    if not calls:
        expected = "record_param_comms or c10d:: events"
        raise _unreadable(path, "no communication", expected, "Profile a step that has some.")
    info = data.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank = rank_in(path) if whole(info.get("rank")) is None else whole(info.get("rank"))
    if rank is None:
        expected = "distributedInfo in it, or a name such as trace_rank0.json"
        raise _unreadable(path, "no rank", expected)
    maker = Calls(rank, groups_of(info, calls))
    ranks = max((len(group.ranks) for group in maker.groups.values()), default=1)
    works = _works(calls, [e for e in events if e.name.startswith("gloo:")], ranks)
    pairs = [(one, maker.make(one, _dtype(works.get(one, ())))) for one in calls]
    if all(call.nbytes_in == UNKNOWN for _, call in pairs):
        told = "; ".join(maker.left)
        raise _unreadable(path, told, "sizes of its calls", "Profile with record_shapes=True.")
    steps = sorted(steps_of(events).items())
    spans = [span for _, span in steps]
    timed = _timed(pairs, works, computing, kernels, on_device)
    own = _numbered(pairs, _in_steps(timed, spans))
    own = [call for call in own if call.nbytes_in != UNKNOWN]  # after they were counted
    traffic = Traffic(SOURCE, path=path, groups=dict(maker.groups), calls={rank: own})
    members = {member for group in traffic.groups.values() for member in group.ranks}
    check_ranks([rank, (whole(info.get("world_size")) or 1) - 1, *members], path)
    traffic.ranks = max(whole(info.get("world_size")) or 1, rank + 1, *(m + 1 for m in members))
    traffic.steps = {rank: spans} if spans else {}
    traffic.notes = _notes(own, maker, works, others)
    return traffic, steps[0][0] if steps else None


def _unreadable(path: Path, got: str, expected: str, action: str = "") -> UnreadableError:
    # Not in `got`, which is cut where it is long.
    return UnreadableError(f"trace {path}", got, expected, action)


def _dtype(works: Sequence[Event]) -> str | None:
    types = works[0].args.get("Input type") if works else None
    return dtype_of(types[0]) if isinstance(types, list) and types else None


def _works(
    calls: Sequence[Issued], works: Sequence[Event], ranks: int
) -> dict[Issued, list[Event]]:
    """What gloo ran for each c10d operator: the first of its operation and size after it.

    gloo has no reduce_scatter: it runs all_reduce, of the whole input, or of the tensors of a list
    one by one, of which there are as many as ``ranks``.
    """
    waiting: dict[str, deque[Event]] = defaultdict(deque)
    for work in works:
        waiting[collective_of(work.name)].append(work)
    found: dict[Issued, list[Event]] = {}
    for one in calls:
        if one.has_param:
            continue
        collective, sizes = collective_of(one.event.name), elements_of(one.event)
        several = one.event.name == "c10d::reduce_scatter_"
        own = waiting["all_reduce" if collective == "reduce_scatter" else collective]
        while own and own[0].start < one.event.start:  # nor is it of a later call
            own.popleft()
        fitting = (w for w in own if _fits(w, sizes))
        found[one] = list(islice(fitting, ranks if several else 1))
        for work in found[one]:
            own.remove(work)
    return {one: own for one, own in found.items() if own}


def _fits(work: Event, sizes: set[int]) -> bool:
    """Elements of the work, all tensors together, where both sides tell them."""
    dims = work.args.get("Input Dims")
    if not sizes or not isinstance(dims, list) or not dims:
        return True
    shapes = [shape for shape in dims if isinstance(shape, list)]
    each = [product(n for n in shape if isinstance(n, int)) or 0 for shape in shapes]
    return bool(sizes & {sum(each), *each})


Pair = tuple[Issued, TrafficCall]


def _timed(
    pairs: Sequence[Pair],
    works: Mapping[Issued, Sequence[Event]],
    computing: Sequence[Span],
    kernels: Mapping[object, Sequence[Event]],
    on_device: Mapping[str, Sequence[Span]],
) -> list[TrafficCall]:
    """The calls with start, duration and exposed part, as far as the trace has them."""
    spans: dict[int, Span] = {}
    devices: dict[int, str] = {}
    algorithms: dict[int, str] = {}
    for place, (one, _) in enumerate(pairs):
        own = kernels.get(one.event.id, ())
        if own:
            spans[place] = min(k.start for k in own), max(k.end for k in own)
            devices[place] = device_of(own[0])
            algorithms[place] = _algorithm(own)
        elif one in works:
            spans[place] = one.event.start, max(work.end for work in works[one])
    open_: dict[int, int] = {}
    for device in {devices.get(place) for place in spans}:
        places = [place for place in spans if devices.get(place) == device]
        hiding = Union(computing if device is None else on_device.get(device, ()))
        open_.update(zip(places, exposed([spans[i] for i in places], hiding), strict=True))
    return [
        dataclasses.replace(
            call,
            start_ns=one.event.start,
            time_ns=spans[place][1] - spans[place][0] if place in spans else None,
            clock="device" if place in devices else "host",
            exposed_ns=open_.get(place),
            algorithm=algorithms.get(place, ""),
        )
        for place, (one, call) in enumerate(pairs)
    ]


def _algorithm(kernels: Sequence[Event]) -> str:
    choices = (choice_of_kernel(kernel.name) for kernel in kernels)
    return ", ".join(dict.fromkeys(choice.label for choice in choices if choice))


def _in_steps(calls: Sequence[TrafficCall], steps: Sequence[Span]) -> list[TrafficCall]:
    """Each in the step in which it was issued."""
    begins = [begin for begin, _ in steps]
    found = []
    for call in calls:
        start = call.start_ns or 0
        place = bisect_right(begins, start) - 1
        inside = place >= 0 and start < steps[place][1]
        found.append(dataclasses.replace(call, step=place) if inside else call)
    return found


def _numbered(pairs: Sequence[Pair], calls: Sequence[TrafficCall]) -> list[TrafficCall]:
    """``Seq`` where torch tells it, so that ranks need not begin alike; else counted."""
    told = [whole(one.event.args.get("Seq")) or 0 for one, _ in pairs]
    last: dict[str, int] = defaultdict(int)
    counted: set[str] = set()
    for place, call in zip(told, calls, strict=True):
        if not call.point_to_point:
            if place <= last[call.group]:  # not told, or the same for several
                counted.add(call.group)
            last[call.group] = place
    numbers, found = Numbers(), []
    for place, call in zip(told, calls, strict=True):
        sequence = numbers.next(call.collective, call.group, call.peer)
        if call.group not in counted and not call.point_to_point:
            sequence = place - 1  # torch counts from 1
        found.append(dataclasses.replace(call, sequence=sequence))
    return found


def _notes(
    calls: Sequence[TrafficCall],
    maker: Calls,
    works: Mapping[Issued, Sequence[Event]],
    others: Sequence[Event],
) -> list[str]:
    notes = [
        f"left out: {count} call{'s' * (count > 1)} of {why}" for why, count in maker.left.items()
    ]
    if any(not call.group for call in calls):
        notes.append(
            f"the trace does not tell which of the {len(maker.groups)} groups calls on gloo are of"
        )
    if works:
        notes.append(
            "a gloo trace does not link what was run to its call: times are put to calls by "
            "operation, size and order"
        )
    coalesced = sum("Collective name" not in e.args or e.id is not None for e in others)
    without = sum(call.time_ns is None for call in calls)
    if without:
        why = "coalesced calls share kernels" if coalesced else "the trace has no kernels of them"
        notes.append(f"{without} of {len(calls)} calls have no time: {why}")
    return [*notes, *hidden_op(calls)]
