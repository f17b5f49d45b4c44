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
        found = self.args.get("External id")
        return found if isinstance(found, (int, str)) else None


@dataclass(eq=False)
class Issued:
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
        own = [one for one in (self.event, self.inner) if one and one.name == PARAM]
        return [one.id for one in own if one.id is not None]

    @property
    def has_param(self) -> bool:
        return "Collective name" in self.event.args


def event_of(one: object) -> Event | None:
    """A complete event, from ts 0; None for one that tells nothing here, as most do not."""
    if not isinstance(one, dict) or one.get("ph") != "X":
        return None
    category, name = one.get("cat"), one.get("name")
    if not (isinstance(name, str) and isinstance(category, str)):
        category, name = str(category), str(name)
    if category not in _WANTED and not (
        name.startswith("gloo:") or (category in _RUNTIME and "Launch" in name)
    ):
        return None
    begin, duration, args = one.get("ts"), one.get("dur"), one.get("args")
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
    pid, tid = one.get("pid"), one.get("tid")
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
        same = args.get("External id") == args.get("correlation")
        if category in _RUNTIME:
            return {"correlation": args["correlation"]} if same and "correlation" in args else {}
        keys = ("correlation" if same else "External id", "device")
        return {key: args[key] for key in keys if key in args}
    if category == "user_annotation" and _ANNOTATION.match(name):
        return args
    return _NO_ARGS


def events_of(data: Mapping[str, Any]) -> list[Event]:
    """The complete events (``ph`` X), outer ones before what they hold; broken ones are left out.

    ``ts`` and ``dur`` are microseconds with three decimals. ``traceEvents`` has them as objects of
    the JSON, or as ``event_of`` has made them.
    """
    listed = data["traceEvents"]
    made = (one if isinstance(one, Event) else event_of(one) for one in listed)
    found = [event for event in made if event]
    found.sort(key=lambda event: (event.start, -event.end, _within(event.name)))
    first = found[0].start if found else 0
    for event in found:
        event.start, event.end = event.start - first, event.end - first
    return found


def _within(name: str) -> int:
    """Of events of the same microsecond what stands in which."""
    return 1 if name == PARAM else 2 if _ANNOTATION.match(name) else 0


def issued(events: Iterable[Event]) -> tuple[list[Issued], list[Span]]:
    """(every call once, by start; when the host computed: operators that hold no communication)."""
    threads: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.category == "cpu_op" or (
            event.category == "user_annotation" and _ANNOTATION.match(event.name)
        ):
            threads[event.thread].append(event)
    found: list[Issued] = []
    computing: list[Span] = []
    for own in threads.values():
        calls, spans = _of_thread(own)
        found += calls
        computing += spans
    return sorted(found, key=lambda one: one.event.start), computing


def _of_thread(events: Sequence[Event]) -> tuple[list[Issued], list[Span]]:
    found: dict[Event, Issued] = {}
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
            for one in reversed(open_):
                if one in busy:  # and so is what is around it
                    break
                busy.add(one)
            param = event.name == PARAM
            if param and event.args.get("Collective name") in _NO_CALLS:
                pass
            elif param and "Collective name" not in event.args:  # an old one
                if around in found:
                    found[around].inner = found[around].inner or event
                elif not around:
                    found[event] = Issued(event)
                    counted.add(event)
            elif param and around and around.name != PARAM:  # the same call told better
                found.pop(around, None)
                found[event] = Issued(event, around)
                counted.add(event)
            elif not around and not event.name.startswith("_c10d_functional::"):
                found[event] = Issued(event)
                counted.add(event)
        elif event.category != "cpu_op":
            busy.add(event)
            if around in found:
                found[around].annotation = found[around].annotation or event
        if len(open_) < _DEEPEST:
            open_.append(event)
            calls.append(event if event in counted else around)
    calls_made = [one for one in found.values() if one.event.name != PARAM or _tells(one)]
    return calls_made, [(e.start, e.end) for e in events if e not in busy]


def _tells(one: Issued) -> bool:
    """False for an old record_param_comms that was a wait, or the frame of several calls."""
    return one.has_param or one.annotation is not None


def kernels_of(
    events: Sequence[Event], calls: Sequence[Issued]
) -> tuple[dict[Issued, list[Event]], dict[str, list[Span]], list[Event]]:
    """(kernels of each call; computation by device; other communication).

    A kernel names its call by the External id, else it is that around its launch. The last are
    kernels of coalesced calls, which belong to several, and those whose call was issued before the
    trace began.
    """
    ids = {number: call for call in calls for number in call.ids}
    launched = _launched(events, calls)
    own: dict[Issued, list[Event]] = defaultdict(list)
    computing: dict[str, list[Span]] = defaultdict(list)
    others: list[Event] = []
    for event in events:
        if event.category not in _ON_DEVICE:
            continue
        number = event.args.get("correlation") if launched else None
        call = ids.get(event.id) or (launched.get(number) if _plain(number) else None)
        if call:
            own[call].append(event)
        elif "Collective name" in event.args or _LIBRARY.search(event.name):
            others.append(event)
        else:
            computing[device_of(event)].append((event.start, event.end))
    return own, computing, others


def _plain(value: object) -> bool:
    return isinstance(value, (int, str))


def _launched(events: Iterable[Event], calls: Sequence[Issued]) -> dict[object, Issued]:
    """Correlation -> the call around the launch of a kernel, on the thread of the host."""
    by_thread: dict[tuple[str, str], list[Issued]] = defaultdict(list)
    for call in calls:
        by_thread[call.event.thread].append(call)
    starts = {thread: [one.event.start for one in own] for thread, own in by_thread.items()}
    found: dict[object, Issued] = {}
    for event in events:
        if event.category in _RUNTIME and event.thread in starts:
            place = bisect_right(starts[event.thread], event.start) - 1
            call = by_thread[event.thread][place]
            number = event.args.get("correlation")
            if place >= 0 and event.end <= call.event.end and _plain(number):
                found[number] = call
    return found


def device_of(event: Event) -> str:
    return str(event.args.get("device", event.thread[0]))


def steps_of(events: Iterable[Event]) -> dict[int, Span]:
    """Number of the step -> its span, as ``profiler.step()`` marks it."""
    return {
        int(match[1]): (event.start, event.end)
        for event in events
        if event.category == "user_annotation" and (match := _STEP.match(event.name))
    }
