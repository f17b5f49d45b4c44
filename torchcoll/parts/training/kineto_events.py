"""Reads the events of a Kineto trace (Chrome's JSON): issued calls, their groups, kernels, copies.

Two kinds of events show that a call was issued. ``record_param_comms`` (nccl, xccl and others on
accelerators) has collective, group, sizes and dtype. ``c10d::*`` operators exist on every backend;
one that contains a ``record_param_comms`` is the same call. Functional collectives
(``_c10d_functional::*``) contain the c10d operator that they call. Traces of torch 2.1 and earlier,
in which record_param_comms has no parameters, have no sizes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from sys import intern
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.traffic import Group, Span
from torchcoll.reading.base import number, whole
from torchcoll.reading.torch_names import parse_rank_list

PARAM = "record_param_comms"
# record_param_comms events that are not calls: waiting for a call, and the frame of several calls.
_NO_CALLS = ("wait", "init", "startCoalescing", "endCoalescing")
_STEP = re.compile(r"ProfilerStep#(\d{1,9})$")
_DEEPEST = 1000  # nested operators
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
# Operators whose kernels are FSDP2's copies.
_COPYING = ("fsdp::", "aten::_foreach_copy_", "aten::_chunk_cat", "aten::split_with_sizes_copy")
_WANTED = {"cpu_op", "user_annotation", *ON_DEVICE}
# Names of events whose arguments are needed.
_WITH_ARGS = (PARAM, "c10d::", "_c10d_functional::", "gloo:")
_NO_ARGS: Mapping[str, Any] = {}
_LIBRARY = re.compile(r"nccl|rccl|oneccl|xccl", re.IGNORECASE)


# Ranges in which FSDP2 issues calls, with the name of the unit (FSDPParamGroup._with_fqn of torch);
# the outermost module has none.
_UNIT = re.compile(r"FSDP::(?:all_gather|post_backward_reduce)(?: \((.+)\))?$")


@dataclass(eq=False, slots=True)
class Event:
    """A complete event. start, end: ns from the first event of the trace."""

    name: str
    category: str
    thread: tuple[str, str]
    start: int
    end: int
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> object:
        value = self.args.get("External id")
        return value if isinstance(value, (int, str)) else None


@dataclass(eq=False)
class IssuedCall:
    """A call as it was issued.

    event: its record_param_comms, or else its c10d operator.
    outer: the c10d operator around a record_param_comms.
    """

    event: Event
    outer: Event | None = None

    @property
    def has_param(self) -> bool:
        return "Collective name" in self.event.args


def make_event(record: object) -> Event | None:
    """Make a complete event, with times from ts 0; None for one that is not needed, as most are."""
    if not isinstance(record, dict) or record.get("ph") != "X":
        return None
    category, name = record.get("cat"), record.get("name")
    if not (isinstance(name, str) and isinstance(category, str)):
        category, name = str(category), str(name)
    if category not in _WANTED and not name.startswith("gloo:"):
        return None
    begin, duration, args = record.get("ts"), record.get("dur"), record.get("args")
    if type(duration) not in (int, float):
        duration = number(duration)
    if not isinstance(begin, (int, float)) or not abs(begin) < 1e18:
        return None
    if duration is None or not 0 <= duration < 1e18:
        return None
    args = _wanted_args(name, category, args) if args and isinstance(args, dict) else _NO_ARGS
    start = round(begin * 1000)
    pid, tid = record.get("pid"), record.get("tid")
    if type(pid) not in (int, str) or type(tid) not in (int, str):
        pid, tid = str(pid), str(tid)
    return Event(
        intern(name),
        intern(category),
        _thread(pid, tid),
        start,
        start + round(duration * 1000),
        args,
    )


@lru_cache(maxsize=1 << 12)
def _thread(pid: int | str, tid: int | str) -> tuple[str, str]:
    return str(pid), str(tid)


def _wanted_args(name: str, category: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of an event that are needed: others would fill the memory for a large trace."""
    if "Collective name" in args or name.startswith(_WITH_ARGS):
        return args
    if category in ON_DEVICE:
        return {key: args[key] for key in ("External id", "device") if key in args}
    if name.startswith(_COPYING) and "External id" in args:
        return {"External id": args["External id"]}
    return _NO_ARGS


def read_events(data: Mapping[str, Any]) -> tuple[list[Event], int | None]:
    """(complete events, outer ones first; when the first began, in ns since 1970, or None).

    ``ts`` and ``dur`` are in microseconds. Since torch 2.4 they are from ``baseTimeNanoseconds``.
    """
    listed = data["traceEvents"]
    made_events = (record if isinstance(record, Event) else make_event(record) for record in listed)
    events = [event for event in made_events if event]
    events.sort(key=lambda event: (event.start, -event.end, event.name == PARAM))
    if not events:
        return [], None
    first, base = events[0].start, whole(data.get("baseTimeNanoseconds"))
    for event in events:
        event.start, event.end = event.start - first, event.end - first
    return events, None if base is None and first < _IN_2015_NS else (base or 0) + first


_IN_2015_NS = 1_420_070_400_000_000_000


def find_issued(events: Iterable[Event]) -> tuple[list[IssuedCall], list[Span]]:
    """(all calls by start, spans of operators without communication: the host computed)."""
    threads: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.category == "cpu_op":
            threads[event.thread].append(event)
    all_calls: list[IssuedCall] = []
    computing: list[Span] = []
    for thread_events in threads.values():
        calls, spans = _thread_calls(thread_events)
        all_calls += calls
        computing += spans
    return sorted(all_calls, key=lambda call: call.event.start), computing


def _thread_calls(events: Sequence[Event]) -> tuple[list[IssuedCall], list[Span]]:
    issued_calls: dict[Event, IssuedCall] = {}
    open_: list[Event] = []  # operators around the current event
    calls: list[Event | None] = []  # for each of them the innermost call that it is or is within
    counted: set[Event] = set()
    busy: set[Event] = set()  # communication, and the operators around it
    for event in events:
        while open_ and open_[-1].end <= event.start:
            open_.pop()
            calls.pop()
        around = calls[-1] if calls else None
        if event.name == PARAM or event.name.startswith(("c10d::", "_c10d_functional::")):
            busy.add(event)
            for outer in reversed(open_):
                if outer in busy:  # all operators around it are already busy
                    break
                busy.add(outer)
            param = event.name == PARAM
            if param and event.args.get("Collective name", "wait") in _NO_CALLS:
                pass
            elif param and around and around.name != PARAM:  # the same call with more information
                issued_calls.pop(around, None)
                issued_calls[event] = IssuedCall(event, around)
                counted.add(event)
            elif not around and not event.name.startswith("_c10d_functional::"):
                issued_calls[event] = IssuedCall(event)
                counted.add(event)
        if len(open_) < _DEEPEST:
            open_.append(event)
            calls.append(event if event in counted else around)
    return [*issued_calls.values()], [(e.start, e.end) for e in events if e not in busy]


def find_units(events: Iterable[Event], calls: Iterable[IssuedCall]) -> dict[IssuedCall, str]:
    """The unit of FSDP2 that issued each call, '' for the outermost module; {} without any name."""
    ranges: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    for event in events:
        if event.category == "user_annotation" and (match := _UNIT.match(event.name)):
            ranges[event.thread].append((event.start, event.end, match[1] or ""))
    if not any(name for of_thread in ranges.values() for _, _, name in of_thread):
        return {}
    units = {}
    for call in calls:
        of_thread = ranges.get(call.event.thread, [])
        # They do not contain each other.
        index = bisect_right(of_thread, call.event.start, key=itemgetter(0)) - 1
        if index >= 0 and call.event.end <= of_thread[index][1]:
            units[call] = of_thread[index][2]
    return units


def assign_kernels(
    events: Sequence[Event], calls: Sequence[IssuedCall]
) -> tuple[dict[IssuedCall, list[Event]], dict[str, list[Span]], list[Event]]:
    """(kernels of each call, spans of computation by device, other communication kernels).

    A kernel belongs to the call with its External id. The other communication kernels are those of
    coalesced calls, which belong to several calls, and those of calls that were issued before the
    trace began.
    """
    ids = {call.event.id: call for call in calls if call.event.name == PARAM}
    ids.pop(None, None)
    call_kernels: dict[IssuedCall, list[Event]] = defaultdict(list)
    computing: dict[str, list[Span]] = defaultdict(list)
    unassigned: list[Event] = []
    for event in events:
        if event.category not in ON_DEVICE:
            continue
        if call := ids.get(event.id):
            call_kernels[call].append(event)
        elif "Collective name" in event.args or _LIBRARY.search(event.name):
            unassigned.append(event)
        else:
            computing[event_device(event)].append((event.start, event.end))
    return call_kernels, computing, unassigned


def event_device(event: Event) -> str:
    """The device of a kernel, or else its process."""
    return str(event.args.get("device", event.thread[0]))


def read_steps(events: Iterable[Event]) -> dict[int, Span]:
    """Number of the step -> its span, as ``profiler.step()`` marks it."""
    return {
        int(match[1]): (event.start, event.end)
        for event in events
        if event.category == "user_annotation" and (match := _STEP.match(event.name))
    }


# FSDP2 copies shards, parameters and gradients into and out of the buffers of its collectives
# (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
_COPIES = ("fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", "fsdp::chunk_cat")


def find_copies(events: Sequence[Event]) -> list[Span]:
    """When the copies ran: on the device their kernels, on a CPU the operators."""
    copies: dict[object, list[Event]] = defaultdict(list)  # by thread
    for event in events:
        if event.category == "cpu_op" and event.name in _COPIES:
            copies[event.thread].append(event)
    if not copies:
        return []
    starts = {thread: [copy.start for copy in ran] for thread, ran in copies.items()}
    ids = set()  # of the operators in them, which a kernel has as its External id
    for event in events:
        if event.category != "cpu_op" or event.thread not in copies:
            continue
        index = bisect_right(starts[event.thread], event.start) - 1
        if index >= 0 and event.end <= copies[event.thread][index].end:
            ids.add(event.id)
    kernels = [e for e in events if e.category in ON_DEVICE]
    if kernels:
        return [(e.start, e.end) for e in kernels if e.id is not None and e.id in ids]
    return [(copy.start, copy.end) for ran in copies.values() for copy in ran]


def make_groups(info: Mapping[str, Any], calls: Iterable[IssuedCall]) -> dict[str, Group]:
    """The groups that the profiler lists, and those that are only named by calls."""
    calls = list(calls)
    on_device = any(call.has_param for call in calls)
    listed = info.get("pg_config")
    groups = {}
    for config in listed if isinstance(listed, list) else ():
        if isinstance(config, dict) and isinstance(config.get("pg_name"), str):
            ranks = _complete(config.get("ranks"), config.get("pg_size"))
            backend = _backend(str(config.get("backend_config") or ""), on_device)
            groups[config["pg_name"]] = Group(
                config["pg_name"], ranks, backend, str(config.get("pg_desc") or "")
            )
    for call in calls:
        args = call.event.args
        name = args.get("Process Group Name")
        group = groups.get(name) if isinstance(name, str) else None
        if isinstance(name, str) and (group is None or not group.ranks):
            ranks = _complete(args.get("Process Group Ranks"), args.get("Group size"))
            description = str(args.get("Process Group Description") or "")
            groups[name] = Group(
                name, ranks or _regular(args), group.backend if group else "", description
            )
    return _merge_groups(groups) if not on_device else groups


def _merge_groups(groups: dict[str, Group]) -> dict[str, Group]:
    """Merge groups with the same ranks and backend, as c10d operators do not name theirs."""
    if len(groups) < 2 or len({(g.ranks, g.backend) for g in groups.values()}) > 1:
        return groups
    first = next(iter(groups.values()))
    name = " or ".join(groups)
    return {name: Group(name, first.ranks, first.backend)}


def _complete(ranks: object, size: object) -> tuple[int, ...]:
    """The ranks; () if the profiler has shortened the list."""
    listed = parse_rank_list(ranks)
    return listed if whole(size) in (None, len(listed)) else ()


def _regular(args: Mapping[str, Any]) -> tuple[int, ...]:
    """Ranks from start, stride and size, which torch records beside the list."""
    start, stride = whole(args.get("Global rank start")), whole(args.get("Global rank stride"))
    size = whole(args.get("Group size"))
    if start is None or not stride or not size or size > MOST_RANKS:
        return ()
    return tuple(range(start, start + size * stride, stride))


def _backend(config: str, on_device: bool) -> str:
    """The backend in a text like ``cpu:gloo,cuda:nccl`` for calls on the device, or on the host."""
    pairs = [entry.split(":") for entry in config.split(",") if ":" in entry]
    fitting = [pair[1] for pair in pairs if (pair[0] != "cpu") == on_device]
    return (fitting or [pair[1] for pair in pairs] or [config])[0]
