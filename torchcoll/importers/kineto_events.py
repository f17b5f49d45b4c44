"""The events of a Kineto trace (Chrome's JSON), and which of them are communication.

Two kinds tell of a call that was issued. ``record_param_comms`` (nccl, xccl and others on
accelerators) tells collective, group, sizes and dtype. ``c10d::*`` operators are there on every
backend; one that holds a ``record_param_comms`` is the same call. Functional collectives
(``_c10d_functional::*``) hold the c10d operator that they call. In traces before torch 2.2 (seen
in those of HolisticTraceAnalysis, of 2022 and 2023) record_param_comms tells nothing: the
annotation within it (``nccl:all_reduce``) has the name and, with record_shapes, what was sent.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern
from typing import Any

from torchcoll.core.intervals import Span
from torchcoll.importers.base import (
    number,
)

PARAM = "record_param_comms"
# What record_param_comms tells beside calls: waiting for one, and the frame of several.
_NO_CALLS = ("wait", "init", "startCoalescing", "endCoalescing")
_STEP = re.compile(r"ProfilerStep#(\d{1,9})$")
_DEEPEST = 1000  # operators in each other
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_WANTED = {"cpu_op", "user_annotation", *_ON_DEVICE}
_RUNTIME = ("cuda_runtime", "cuda_driver")  # calls of the host; Kineto calls ROCm's so, too
_ANNOTATION = re.compile(r"(?:nccl|rccl|xccl|hccl|ucc|mpi):\w")
# Names of events whose arguments count.
_TELL = (PARAM, "c10d::", "_c10d_functional::", "gloo:")
_NO_ARGS: Mapping[str, Any] = {}
_LIBRARY = re.compile(r"nccl|rccl|oneccl|xccl", re.IGNORECASE)


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
    """A call as it was issued. outer: the c10d operator that a record_param_comms stands in.
    inner: a record_param_comms that tells nothing; annotation: of the library's work.
    """

    event: Event
    outer: Event | None = None
    inner: Event | None = None
    annotation: Event | None = None

    @property
    def ids(self) -> list[object]:
        """By which kernels name it."""
        params = [event for event in (self.event, self.inner) if event and event.name == PARAM]
        return [event.id for event in params if event.id is not None]

    @property
    def has_param(self) -> bool:
        return "Collective name" in self.event.args


def make_event(record: object) -> Event | None:
    """A complete event, from ts 0; None for one that tells nothing here, as most do not."""
    if not isinstance(record, dict) or record.get("ph") != "X":
        return None
    category, name = record.get("cat"), record.get("name")
    if not (isinstance(name, str) and isinstance(category, str)):
        category, name = str(category), str(name)
    if category not in _WANTED and not (
        name.startswith("gloo:") or (category in _RUNTIME and "Launch" in name)
    ):
        return None
    begin, duration, args = record.get("ts"), record.get("dur"), record.get("args")
    if type(duration) not in (int, float):
        duration = number(duration)
    if not isinstance(begin, (int, float)) or not abs(begin) < 1e18:
        return None
    if duration is None or not 0 <= duration < 1e18:
        return None
    args = _wanted_args(name, category, args) if args and isinstance(args, dict) else _NO_ARGS
    if category in _RUNTIME and not args:
        return None
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
    """Of an operator that is no communication nobody asks for shapes and stacks, which are most of
    what a large trace would take in memory.
    """
    if "Collective name" in args or name.startswith(_TELL):
        return args
    if category in _ON_DEVICE or category in _RUNTIME:
        # In the same old traces an External id is no operator's but that of the launch.
        is_correlation = args.get("External id") == args.get("correlation")
        if category in _RUNTIME:
            return (
                {"correlation": args["correlation"]}
                if is_correlation and "correlation" in args
                else {}
            )
        keys = ("correlation" if is_correlation else "External id", "device")
        return {key: args[key] for key in keys if key in args}
    if category == "user_annotation" and _ANNOTATION.match(name):
        return args
    return _NO_ARGS


def read_events(data: Mapping[str, Any]) -> list[Event]:
    """The complete events (``ph`` X), outer ones before what they hold; broken ones are left out.

    ``ts`` and ``dur`` are microseconds with three decimals. ``traceEvents`` has them as objects of
    the JSON, or as ``make_event`` has made them.
    """
    listed = data["traceEvents"]
    made_events = (record if isinstance(record, Event) else make_event(record) for record in listed)
    events = [event for event in made_events if event]
    events.sort(key=lambda event: (event.start, -event.end, _within(event.name)))
    first = events[0].start if events else 0
    for event in events:
        event.start, event.end = event.start - first, event.end - first
    return events


def _within(name: str) -> int:
    """Of events of the same microsecond what stands in which."""
    return 1 if name == PARAM else 2 if _ANNOTATION.match(name) else 0


def find_issued(events: Iterable[Event]) -> tuple[list[IssuedCall], list[Span]]:
    """(every call once, by start; when the host computed: operators that hold no communication)."""
    threads: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.category == "cpu_op" or (
            event.category == "user_annotation" and _ANNOTATION.match(event.name)
        ):
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
    open_: list[Event] = []  # operators around the present one
    calls: list[Event | None] = []  # for each of them the innermost call that it is or stands in
    counted: set[Event] = set()
    busy: set[Event] = set()  # communication, and what holds it
    for event in events:
        while open_ and open_[-1].end <= event.start:
            open_.pop()
            calls.pop()
        around = calls[-1] if calls else None
        if event.name == PARAM or event.name.startswith(("c10d::", "_c10d_functional::")):
            busy.add(event)
            for outer in reversed(open_):
                if outer in busy:  # and so is what is around it
                    break
                busy.add(outer)
            param = event.name == PARAM
            if param and event.args.get("Collective name") in _NO_CALLS:
                pass
            elif param and "Collective name" not in event.args:  # an old one
                if around in issued_calls:
                    issued_calls[around].inner = issued_calls[around].inner or event
                elif not around:
                    issued_calls[event] = IssuedCall(event)
                    counted.add(event)
            elif param and around and around.name != PARAM:  # the same call told better
                issued_calls.pop(around, None)
                issued_calls[event] = IssuedCall(event, around)
                counted.add(event)
            elif not around and not event.name.startswith("_c10d_functional::"):
                issued_calls[event] = IssuedCall(event)
                counted.add(event)
        elif event.category != "cpu_op":
            busy.add(event)
            if around in issued_calls:
                issued_calls[around].annotation = issued_calls[around].annotation or event
        if len(open_) < _DEEPEST:
            open_.append(event)
            calls.append(event if event in counted else around)
    calls_made = [
        outer for outer in issued_calls.values() if outer.event.name != PARAM or _has_call(outer)
    ]
    return calls_made, [(e.start, e.end) for e in events if e not in busy]


def _has_call(issued: IssuedCall) -> bool:
    """False for an old record_param_comms that was a wait, or the frame of several calls."""
    return issued.has_param or issued.annotation is not None


def assign_kernels(
    events: Sequence[Event], calls: Sequence[IssuedCall]
) -> tuple[dict[IssuedCall, list[Event]], dict[str, list[Span]], list[Event]]:
    """(kernels of each call; computation by device; other communication).

    A kernel names its call by the External id, else it is that around its launch. The last are
    kernels of coalesced calls, which belong to several, and those whose call was issued before the
    trace began.
    """
    ids = {number: call for call in calls for number in call.ids}
    launched = _launching_calls(events, calls)
    call_kernels: dict[IssuedCall, list[Event]] = defaultdict(list)
    computing: dict[str, list[Span]] = defaultdict(list)
    unassigned: list[Event] = []
    for event in events:
        if event.category not in _ON_DEVICE:
            continue
        number = event.args.get("correlation") if launched else None
        call = ids.get(event.id) or (launched.get(number) if _plain(number) else None)
        if call:
            call_kernels[call].append(event)
        elif "Collective name" in event.args or _LIBRARY.search(event.name):
            unassigned.append(event)
        else:
            computing[event_device(event)].append((event.start, event.end))
    return call_kernels, computing, unassigned


def _plain(value: object) -> bool:
    return isinstance(value, (int, str))


def _launching_calls(
    events: Iterable[Event], calls: Sequence[IssuedCall]
) -> dict[object, IssuedCall]:
    """Correlation -> the call around the launch of a kernel, on the thread of the host."""
    by_thread: dict[tuple[str, str], list[IssuedCall]] = defaultdict(list)
    for call in calls:
        by_thread[call.event.thread].append(call)
    starts = {
        thread: [call.event.start for call in thread_calls]
        for thread, thread_calls in by_thread.items()
    }
    launched: dict[object, IssuedCall] = {}
    for event in events:
        if event.category in _RUNTIME and event.thread in starts:
            index = bisect_right(starts[event.thread], event.start) - 1
            call = by_thread[event.thread][index]
            number = event.args.get("correlation")
            if index >= 0 and event.end <= call.event.end and _plain(number):
                launched[number] = call
    return launched


def event_device(event: Event) -> str:
    return str(event.args.get("device", event.thread[0]))


def read_steps(events: Iterable[Event]) -> dict[int, Span]:
    """Number of the step -> its span, as ``profiler.step()`` marks it."""
    return {
        int(match[1]): (event.start, event.end)
        for event in events
        if event.category == "user_annotation" and (match := _STEP.match(event.name))
    }
