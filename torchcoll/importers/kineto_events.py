"""The events of a Kineto trace (Chrome's JSON), and which of them are communication.

Two kinds tell of a call that was issued. ``record_param_comms`` (nccl, xccl and others on
accelerators) tells collective, group, sizes and dtype. ``c10d::*`` operators are there on every
backend; one that holds a ``record_param_comms`` is the same call. Functional collectives
(``_c10d_functional::*``) hold the c10d operator that they call.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import Any

from torchcoll.core.intervals import Span
from torchcoll.importers.base import number

PARAM = "record_param_comms"
# What record_param_comms tells beside calls: waiting for one, and the frame of several.
_NO_CALLS = ("wait", "init", "startCoalescing", "endCoalescing")
_STEP = re.compile(r"ProfilerStep#(\d{1,9})$")
_DEEPEST = 1000  # operators in each other
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_WANTED = {"cpu_op", "user_annotation", *_ON_DEVICE}
_TELL = (PARAM, "c10d::", "_c10d_functional::", "gloo:")  # names of events whose arguments count
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
    """A call as it was issued. outer: the c10d operator that a record_param_comms stands in."""

    event: Event
    outer: Event | None = None

    @property
    def has_param(self) -> bool:
        return "Collective name" in self.event.args


def event_of(one: object) -> Event | None:
    """A complete event, from ts 0; None for one that tells nothing here, as most do not."""
    if not isinstance(one, dict) or one.get("ph") != "X":
        return None
    category, name = str(one.get("cat")), str(one.get("name"))
    if category not in _WANTED and not name.startswith("gloo:"):
        return None
    begin, duration, args = one.get("ts"), number(one.get("dur")), one.get("args")
    if not isinstance(begin, (int, float)) or not abs(begin) < 1e18 or duration is None:
        return None
    start = round(begin * 1000)
    thread = intern(str(one.get("pid"))), intern(str(one.get("tid")))
    end = start + round(duration * 1000)
    args = _wanted_args(name, category, args) if isinstance(args, dict) else _NO_ARGS
    return Event(intern(name), intern(category), thread, start, end, args)


def _wanted_args(name: str, category: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of an operator that is no communication nobody asks for shapes and stacks, which are most of
    what a large trace would take in memory.
    """
    if "Collective name" in args or name.startswith(_TELL):
        return args
    if category in _ON_DEVICE:
        return {key: args[key] for key in ("External id", "device") if key in args}
    return _NO_ARGS


def events_of(data: Mapping[str, Any]) -> list[Event]:
    """The complete events (``ph`` X), outer ones before what they hold; broken ones are left out.

    ``ts`` and ``dur`` are microseconds with three decimals. ``traceEvents`` has them as objects of
    the JSON, or as ``event_of`` has made them.
    """
    listed = data["traceEvents"]
    made = (one if isinstance(one, Event) else event_of(one) for one in listed)
    found = [event for event in made if event]
    found.sort(key=lambda event: (event.start, -event.end))
    first = found[0].start if found else 0
    for event in found:
        event.start, event.end = event.start - first, event.end - first
    return found


def issued(events: Iterable[Event]) -> tuple[list[Issued], list[Span]]:
    """(every call once, by start; when the host computed: operators that hold no communication)."""
    threads: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.category == "cpu_op":
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
            elif param and around and around.name != PARAM:  # the same call told better
                found.pop(around, None)
                found[event] = Issued(event, around)
                counted.add(event)
            elif not around and not event.name.startswith("_c10d_functional::"):
                found[event] = Issued(event)
                counted.add(event)
        if len(open_) < _DEEPEST:
            open_.append(event)
            calls.append(event if event in counted else around)
    return list(found.values()), [(e.start, e.end) for e in events if e not in busy]


def kernels_of(
    events: Iterable[Event], calls: Sequence[Issued]
) -> tuple[dict[object, list[Event]], dict[str, list[Span]], list[Event]]:
    """(kernels of each call by its External id; computation by device; other communication).

    The last are kernels of coalesced calls, which belong to several, and those whose call was
    issued before the trace began.
    """
    ids = {
        call.event.id for call in calls if call.event.name == PARAM and call.event.id is not None
    }
    own: dict[object, list[Event]] = defaultdict(list)
    computing: dict[str, list[Span]] = defaultdict(list)
    others: list[Event] = []
    for event in events:
        if event.category not in _ON_DEVICE:
            continue
        if event.id in ids:
            own[event.id].append(event)
        elif "Collective name" in event.args or _LIBRARY.search(event.name):
            others.append(event)
        else:
            computing[device_of(event)].append((event.start, event.end))
    return own, computing, others


def device_of(event: Event) -> str:
    return str(event.args.get("device", event.thread[0]))


def steps_of(events: Iterable[Event]) -> dict[int, Span]:
    """Number of the step -> its span, as ``profiler.step()`` marks it."""
    return {
        int(match[1]): (event.start, event.end)
        for event in events
        if event.category == "user_annotation" and (match := _STEP.match(event.name))
    }
