"""Reads traces of torch.profiler (Kineto): the calls of one rank, their times and exposed parts.

On an accelerator the time of a call is that of the kernels with the same ``External id``. gloo's
work is in separate threads as ``gloo:*`` events, each assigned to the first c10d operator before it
with the same operation and size. The exposed part of a call is the time in which nothing else ran:
no other kernel on the device, or no other operator on the host.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from torchcoll.core.collectives import exchange_with_splits, uneven
from torchcoll.core.errors import UnreadableError
from torchcoll.core.traffic import ROOT, Group, Span, Traffic, TrafficCall
from torchcoll.core.units import counted
from torchcoll.libraries.nccl.algorithms import kernel_choice
from torchcoll.parts.training import kineto_events
from torchcoll.parts.training.flight_dump import check_ranks, clock_of_rank
from torchcoll.parts.training.intervals import Union, exposed, merged
from torchcoll.reading.base import itemsize, whole
from torchcoll.reading.torch_names import (
    Numbers,
    parse_rank_list,
    product,
    rank_in_name,
    torch_collective,
    torch_dtype,
)

# Arguments of the c10d operators, by torch's schema (torch/csrc/distributed/c10d/Ops.cpp).
_OUT_FIRST = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
_ROOT_INDEX = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3}
_PEER_INDEX = 2
UNKNOWN = -1  # in place of a number of bytes


@dataclass
class Calls:
    """Makes calls from the events of one rank. unknown: what is not known -> number of calls."""

    rank: int
    groups: Mapping[str, Group]
    unknown: Counter[str] = field(default_factory=Counter)

    @property
    def _only_group(self) -> str:
        """The group of a call that does not name its own; '' if there are several."""
        return next(iter(self.groups)) if len(self.groups) == 1 else ""

    def make(self, issued: kineto_events.IssuedCall, dtype: str | None) -> TrafficCall:
        """Make a call without time, step and number; both sizes are UNKNOWN if one is."""
        return self._from_param(issued) if issued.has_param else self._from_operator(issued, dtype)

    def _from_param(self, issued: kineto_events.IssuedCall) -> TrafficCall:
        args = issued.event.args
        name = str(args["Collective name"])
        collective = torch_collective(name)
        dtype = torch_dtype(args.get("dtype"))
        group = args.get("Process Group Name")
        group = group if isinstance(group, str) else self._only_group
        # `Rank` is the root of a rooted collective, or else this rank. Both are ranks of the group.
        root = self._world(whole(args.get("Rank")), group) if collective in _ROOT_INDEX else None
        peer = whole(args.get("Dst Rank" if collective == "send" else "Src Rank"))
        sizes = [whole(args.get(f"{side} msg nelems")) for side in ("In", "Out")]
        splits = [parse_rank_list(args.get(f"{side} split size")) for side in ("In", "Out")]
        if name == "all_to_allv":  # the profiler omits lists that are too long
            collective = "all_to_all_v"
        tensors = 1
        if "coalesced" in name and issued.outer:
            tensors = max(1, len(_Arguments(issued.outer).dims(_data_index(collective))))
        return self._call(
            collective, sizes, dtype, group, root, peer, splits, _asynchronous(issued), tensors
        )

    def _from_operator(self, issued: kineto_events.IssuedCall, dtype: str | None) -> TrafficCall:
        event, name = issued.event, issued.event.name
        collective = torch_collective(name)
        arguments = _Arguments(event)
        group = self._only_group
        ranks = len(self.groups[group].ranks) if group else 0
        index = _data_index(collective)
        sizes = [arguments.elements(index), arguments.elements(0)]
        root = arguments.whole(_ROOT_INDEX[collective]) if collective in _ROOT_INDEX else None
        root = self._world(root, group)
        # torch has no shapes of lists of lists. They follow from the other side.
        if collective in ("all_gather", "gather"):
            sizes[1] = sizes[1] or (None if sizes[0] is None or not ranks else sizes[0] * ranks)
        if collective in ("reduce_scatter", "scatter"):
            sizes[0] = sizes[0] or (None if sizes[1] is None or not ranks else sizes[1] * ranks)
        peer = arguments.whole(_PEER_INDEX) if collective in ("send", "recv") else None
        splits: list[tuple[int, ...]] = [(), ()]
        if collective == "all_to_all":
            splits = arguments.splits()
        tensors = len(arguments.dims(index)) if "coalesced" in name else 1
        return self._call(
            collective,
            sizes,
            arguments.dtype(index) or arguments.dtype(0) or dtype,
            group,
            root,
            self._world(peer, group),
            splits,
            _asynchronous(issued),
            max(1, tensors),
        )

    def _call(
        self,
        collective: str,
        elements: Sequence[int | None],
        dtype: str | None,
        group: str,
        root: int | None,
        peer: int | None,
        splits: Sequence[tuple[int, ...]],
        asynchronous: bool | None,
        tensors: int,
    ) -> TrafficCall:
        if collective in ("barrier", "monitored_barrier"):
            return TrafficCall(collective, 0, 0, group=group, asynchronous=asynchronous)
        sides = list(elements)
        if collective in ("send", "recv"):
            sides[collective == "send"] = 0
        if root is not None and root != self.rank:  # only the root has both
            sides[1] = 0 if collective == "gather" else sides[1]
            sides[0] = 0 if collective == "scatter" else sides[0]
        each = itemsize(dtype)
        sizes_known = each is not None and all(n is not None and n * each < 1 << 62 for n in sides)
        size_bytes = [(n or 0) * (each or 0) if sizes_known else UNKNOWN for n in sides]
        if not sizes_known:
            self.unknown[f"{collective}: {'dtype' if each is None else 'sizes'} not known"] += 1
        # A call with split sizes counts as uneven, as in a capture: other ranks may have other
        # sizes.
        if any(splits):
            collective = exchange_with_splits(collective) or collective
        elif sizes_known:
            collective = uneven(collective, size_bytes[:1], size_bytes[1:])
        # Rows for each rank; without a list all are equal.
        sent = splits[0] or (1,) * len(splits[1])
        shares = tuple(max(size_bytes[0], 0) * rows // (sum(sent) or 1) for rows in sent)
        return TrafficCall(
            collective,
            size_bytes[0],
            size_bytes[1],
            dtype,
            root=root,
            peer=peer,
            group=group,
            asynchronous=asynchronous,
            tensors=tensors,
            splits=shares,
        )

    def _world(self, rank: int | None, group: str) -> int | None:
        """The world rank of a rank in a group; None if it is not known."""
        ranks = self.groups[group].ranks if group in self.groups else ()
        return ranks[rank] if rank is not None and rank < len(ranks) else None


def _data_index(collective: str) -> int:
    return 1 if collective in _OUT_FIRST else 0


def _asynchronous(issued: kineto_events.IssuedCall) -> bool | None:
    """Whether the call is asynchronous, by its operator, or by newer torch's record_param_comms."""
    values = _Arguments(issued.outer or issued.event).values
    values = [*values, str(issued.event.args.get("Is asynchronized op")).capitalize()]
    recorded = next((value for value in values if value in ("True", "False")), None)
    return None if recorded is None else bool(recorded == "True")


class _Arguments:
    """The arguments of an operator as record_shapes records them."""

    def __init__(self, event: kineto_events.Event) -> None:
        names = ("Input type", "Input Dims", "Concrete Inputs")
        lists = (event.args.get(name) for name in names)
        self.types, self._dims, self.values = (
            values if isinstance(values, list) else [] for values in lists
        )

    def dims(self, index: int) -> list[Sequence[int]]:
        """The shape of each tensor in an argument; [] if it is not a tensor, or has no shape."""
        if index >= min(len(self._dims), len(self.types)) or not self.types[index]:
            return []
        dims = self._dims[index]
        if not isinstance(dims, list) or self.types[index] in ("Scalar", "ScalarList"):
            return []
        shapes = dims if self.types[index] == "TensorList" else [dims]
        good = all(isinstance(s, list) and all(type(n) is int for n in s) for s in shapes)
        return shapes if good else []

    def elements(self, index: int) -> int | None:
        """Elements of all tensors in an argument; None without any, or if a shape is not valid."""
        counts = [product(shape) for shape in self.dims(index)]
        valid = [count for count in counts if count is not None]
        return sum(valid) if valid and len(valid) == len(counts) else None

    def dtype(self, index: int) -> str | None:
        recorded = index < len(self.types) and self.dims(index)
        return torch_dtype(self.types[index]) if recorded else None

    def whole(self, index: int) -> int | None:
        return whole(self.values[index]) if index < len(self.values) else None

    def splits(self) -> list[tuple[int, ...]]:
        """What an all_to_all sends to each rank and receives from it; () if all are equal."""
        lists = [parse_rank_list(self.values[i]) if i < len(self.values) else () for i in (4, 3)]
        if self.types[:1] != ["TensorList"]:
            return lists
        shapes = [tuple(product(s) or 0 for s in self.dims(index)) for index in (1, 0)]
        return shapes if len({*shapes[0], *shapes[1]}) > 1 else [(), ()]


SOURCE = "kineto"


def is_trace(data: object) -> bool:
    """Whether this is Chrome's JSON format, of any tool."""
    return isinstance(data, dict) and isinstance(data.get("traceEvents"), list)


def read_trace(data: Mapping[str, Any], path: Path) -> tuple[Traffic, int | None]:
    """Read the calls of one rank: (traffic, number of the first step that the profiler marked).

    A gloo profile without record_shapes has no sizes: its calls have 0 bytes and no dtype, and a
    note says so. Raises UnreadableError for a trace without communication or without a rank.
    """
    events, zero = kineto_events.read_events(data)
    calls, computing = kineto_events.find_issued(events)
    kernels, on_device, unassigned = kineto_events.assign_kernels(events, calls)
    if not any(call.has_param for call in calls):
        # Without events of the host the kernels themselves have the parameters.
        alone = [event for event in unassigned if "Collective name" in event.args]
        only = set(alone)
        calls += map(kineto_events.IssuedCall, alone)
        kernels.update((call, [call.event]) for call in calls if call.event in only)
        unassigned = [event for event in unassigned if event not in only]
    if not calls:
        expected = "record_param_comms or c10d:: events"
        raise UnreadableError(
            f"trace {path}", "no communication", expected, "Profile a step that has some."
        )
    info = data.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank = rank_in_name(path) if whole(info.get("rank")) is None else whole(info.get("rank"))
    if rank is None:
        expected = "distributedInfo in it, or a name such as trace_rank0.json"
        raise UnreadableError(f"trace {path}", "no rank", expected)
    maker = Calls(rank, kineto_events.make_groups(info, calls))
    ranks = max((len(group.ranks) for group in maker.groups.values()), default=1)
    works = _assign_works(calls, [e for e in events if e.name.startswith("gloo:")], ranks)
    pairs = [(issued, maker.make(issued, _dtype(works.get(issued, ())))) for issued in calls]
    some_size = any(call.bytes_in > 0 or call.bytes_out > 0 for _, call in pairs)
    unsized = bool(maker.unknown) and not some_size
    if unsized:  # how often and how long remain
        maker.unknown.clear()
        pairs = [(issued, replace(call, bytes_in=0, bytes_out=0)) for issued, call in pairs]
    steps = sorted(kineto_events.read_steps(events).items())
    spans = [span for _, span in steps]
    timed = _timed(pairs, works, computing, kernels, on_device)
    units = kineto_events.find_units(events, calls)
    timed = [
        replace(call, module=units[issued] or ROOT) if issued in units else call
        for call, (issued, _) in zip(timed, pairs, strict=True)
    ]
    numbered = _numbered(pairs, _in_steps(timed, spans))
    traffic_calls = [call for call in numbered if call.bytes_in != UNKNOWN]
    traffic = Traffic(SOURCE, path=path, groups=dict(maker.groups), calls={rank: traffic_calls})
    members = {member for group in traffic.groups.values() for member in group.ranks}
    check_ranks([rank, (whole(info.get("world_size")) or 1) - 1, *members], path)
    traffic.ranks = max(whole(info.get("world_size")) or 1, rank + 1, *(m + 1 for m in members))
    traffic.steps = {rank: spans} if spans else {}
    if zero is not None:
        traffic.clocks = {rank: (clock_of_rank(rank), zero)}
    busy = [span for device_spans in on_device.values() for span in device_spans]
    if not busy and all(call.clock == "host" for call in traffic_calls):
        busy = list(computing)
    traffic.computing = {rank: merged(busy)} if busy else {}
    copies = kineto_events.find_copies(events)
    traffic.copies = {rank: merged(copies)} if copies else {}
    # The time of dropped calls, and of kernels that belong to no single call.
    left = [call.span for call in timed if call.bytes_in == UNKNOWN]
    ran = [(event.start, event.end) for event in unassigned]
    traffic.apart = {rank: merged([*filter(None, left), *ran])} if ran or any(left) else {}
    traffic.notes = _notes(traffic_calls, maker, unassigned)
    if unsized:
        traffic.notes.insert(0, "the trace has no sizes: profile again with record_shapes=True")
    traffic.left_out = maker.unknown.total()
    return traffic, steps[0][0] if steps else None


def _dtype(works: Sequence[kineto_events.Event]) -> str | None:
    types = works[0].args.get("Input type") if works else None
    return torch_dtype(types[0]) if isinstance(types, list) and types else None


def _assign_works(
    calls: Sequence[kineto_events.IssuedCall], works: Sequence[kineto_events.Event], ranks: int
) -> dict[kineto_events.IssuedCall, list[kineto_events.Event]]:
    """The gloo events of each c10d operator: the first after it with its operation and size."""
    waiting: dict[str, deque[kineto_events.Event]] = defaultdict(deque)
    for work in works:
        waiting[torch_collective(work.name)].append(work)
    works_by_call: dict[kineto_events.IssuedCall, list[kineto_events.Event]] = {}
    for issued in calls:
        if issued.has_param:
            continue
        collective, arguments = torch_collective(issued.event.name), _Arguments(issued.event)
        sizes = {n for index in (0, 1) if (n := arguments.elements(index)) is not None}
        several = issued.event.name == "c10d::reduce_scatter_"
        queue = waiting["all_reduce" if collective == "reduce_scatter" else collective]
        # It cannot belong to a later call either.
        while queue and queue[0].start < issued.event.start:
            queue.popleft()
        fitting = (w for w in queue if _fits(w, sizes))
        works_by_call[issued] = list(islice(fitting, ranks if several else 1))
        for work in works_by_call[issued]:
            queue.remove(work)
    return {call: events for call, events in works_by_call.items() if events}


def _fits(work: kineto_events.Event, sizes: set[int]) -> bool:
    """Whether the numbers of elements agree, of all tensors or of one; True if unknown."""
    dims = work.args.get("Input Dims")
    if not sizes or not isinstance(dims, list) or not dims:
        return True
    shapes = [shape for shape in dims if isinstance(shape, list)]
    each = [product(n for n in shape if isinstance(n, int)) or 0 for shape in shapes]
    return bool(sizes & {sum(each), *each})


Pair = tuple[kineto_events.IssuedCall, TrafficCall]


def _timed(
    pairs: Sequence[Pair],
    works: Mapping[kineto_events.IssuedCall, Sequence[kineto_events.Event]],
    computing: Sequence[Span],
    kernels: Mapping[kineto_events.IssuedCall, Sequence[kineto_events.Event]],
    on_device: Mapping[str, Sequence[Span]],
) -> list[TrafficCall]:
    """The calls with start, duration and exposed part, if the trace has them."""
    spans: dict[int, Span] = {}
    devices: dict[int, str] = {}
    algorithms: dict[int, str] = {}
    for index, (issued, _) in enumerate(pairs):
        call_kernels = kernels.get(issued, ())
        if call_kernels:
            spans[index] = min(k.start for k in call_kernels), max(k.end for k in call_kernels)
            devices[index] = kineto_events.event_device(call_kernels[0])
            algorithms[index] = _algorithm(call_kernels)
        elif issued in works:
            spans[index] = issued.event.start, max(work.end for work in works[issued])
    open_: dict[int, int] = {}
    for device in {devices.get(index) for index in spans}:
        indices = [index for index in spans if devices.get(index) == device]
        hiding = Union(computing if device is None else on_device.get(device, ()))
        open_.update(zip(indices, exposed([spans[i] for i in indices], hiding), strict=True))
    return [
        replace(
            call,
            start_ns=issued.event.start,
            time_ns=spans[index][1] - spans[index][0] if index in spans else None,
            began_ns=spans[index][0] if index in devices else None,
            clock="device" if index in devices else "host",
            exposed_ns=open_.get(index),
            algorithm=algorithms.get(index, ""),
        )
        for index, (issued, call) in enumerate(pairs)
    ]


def _algorithm(kernels: Sequence[kineto_events.Event]) -> str:
    choices = (kernel_choice(kernel.name) for kernel in kernels)
    return ", ".join(dict.fromkeys(choice.label for choice in choices if choice))


def _in_steps(calls: Sequence[TrafficCall], steps: Sequence[Span]) -> list[TrafficCall]:
    """The calls with the index of the step in which they were issued."""
    begins = [begin for begin, _ in steps]
    placed = []
    for call in calls:
        start = call.start_ns or 0
        index = bisect_right(begins, start) - 1
        inside = index >= 0 and start < steps[index][1]
        placed.append(replace(call, step=index) if inside else call)
    return placed


def _numbered(pairs: Sequence[Pair], calls: Sequence[TrafficCall]) -> list[TrafficCall]:
    """The calls with sequence numbers: torch's ``Seq``, or else counted from the first call."""
    recorded = [whole(issued.event.args.get("Seq")) or 0 for issued, _ in pairs]
    last: dict[str, int] = defaultdict(int)
    counted: set[str] = set()
    for number, call in zip(recorded, calls, strict=True):
        if not call.point_to_point:
            if number <= last[call.group]:  # missing, or the same for several calls
                counted.add(call.group)
            last[call.group] = number
    numbers, numbered = Numbers(), []
    for number, call in zip(recorded, calls, strict=True):
        sequence = numbers.next(call.collective, call.group, call.peer)
        if call.group not in counted and not call.point_to_point:
            sequence = number - 1  # torch counts from 1
        numbered.append(replace(call, sequence=sequence))
    return numbered


def _notes(
    calls: Sequence[TrafficCall], maker: Calls, unassigned: Sequence[kineto_events.Event]
) -> list[str]:
    notes = [f"left out: {counted(count, 'call')} of {why}" for why, count in maker.unknown.items()]
    if any(not call.group for call in calls):
        which = f"which of its {len(maker.groups)} groups" if maker.groups else "the groups that"
        notes.append(f"the trace does not tell {which} its calls are of")
    coalesced = sum("Collective name" not in e.args or e.id is not None for e in unassigned)
    without = sum(call.time_ns is None for call in calls)
    if without:
        why = "the trace has no kernels of them"
        if coalesced:
            why = "the trace does not tell which kernels are theirs, as of coalesced calls"
        notes.append(f"{without} of {len(calls)} calls have no time: {why}")
    return notes
