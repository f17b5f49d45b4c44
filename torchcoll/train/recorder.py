"""Calls that are recorded while training runs, and how they become those of a Traffic."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

import torch
import torch.distributed as dist

from torchcoll.core.traffic import POINT_TO_POINT, Traffic, TrafficCall
from torchcoll.train.decode import of_world
from torchcoll.train.groups import GroupNames, environment

_CALLBACK_S = 1.0
_REDUCES = ("all_reduce", "reduce", "reduce_scatter")
# Notes; {} is how many calls it is about.
_HIDDEN = f"{{}} reductions: torch {torch.__version__} does not tell which (sum, max, ...)"
_UNENDED = "{} calls had not ended when the capture did: how long they took is not known"
_IN_FLIGHT = "{} calls are missing: they had not returned when the capture ended"
_UNKNOWN = "{} calls of {}, which torchcoll does not know: their bytes are those of its tensors"
_LATE = (
    "{} calls end when Python hears of it: up to 5 ms late where it is busy with something else "
    "(sys.getswitchinterval)"
)


class Call:
    """A call that was issued and may not have ended. Stamps are of perf_counter_ns.

    fields: of its TrafficCall; None while it has not returned; {} where there is none to be made.
    untold: why its duration will never be known; "" while it may. future: that calls ``end``.
    work: kept where torch tells only afterwards from whom a message came.
    """

    __slots__ = ("clock", "fields", "future", "start", "step", "time_ns", "untold", "work")

    def __init__(self, step: int) -> None:
        self.step = step
        self.fields: dict[str, Any] | None = None
        self.clock, self.untold = "host", ""
        self.future: Any = None
        self.work: Any = None
        self.time_ns: int | None = None
        self.start = time.perf_counter_ns()

    def end(self, _: Any = None) -> None:
        """It ends now. A callback of a future."""
        self.time_ns = time.perf_counter_ns() - self.start
        self.future = None

    @property
    def due(self) -> bool:
        """It has ended, and ``end`` is still to be called: a future tells those who wait first."""
        future = self.future  # which another thread may take away
        return future is not None and future.done()


class Recorder:
    """Fills the calls of this rank in a traffic: in the order of issue, when they have ended."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.rank = dist.get_rank()
        self._groups = GroupNames(traffic)
        self._open: deque[Call] = deque()
        self._calls = traffic.calls.setdefault(self.rank, [])
        self._steps = traffic.steps.setdefault(self.rank, [])
        self._sequence: Counter[tuple[Any, ...]] = Counter()
        self._notes: Counter[str] = Counter()
        traffic.ranks = dist.get_world_size()
        traffic.environment |= environment("capture")
        traffic.mark_step = self.step
        self.begun = time.perf_counter_ns()

    def begin(self) -> Call:
        """A call that is issued now, perhaps in another thread."""
        call = Call(len(self._steps))
        self._open.append(call)
        return call

    def drop(self, call: Call) -> None:
        """A call that failed, or cannot be read."""
        call.fields = {}

    def add(self, call: Call, fields: dict[str, Any], group: Any, device: torch.device) -> None:
        """fields: what ``decode`` tells of it; group: its process group."""
        name = self._groups.of(group, device)
        of_world(fields, self.traffic.groups[name].ranks)
        call.fields = {**fields, "group": name}

    def step(self) -> None:
        """The end of a step, and the begin of the next one."""
        now = time.perf_counter_ns() - self.begun
        self._steps.append((self._steps[-1][1] if self._steps else 0, now))
        self._flush()

    def finish(self) -> None:
        """The end of the capture. Calls that have not ended are kept without a duration."""
        self.traffic.mark_step = None
        deadline = time.monotonic() + _CALLBACK_S
        while any(call.due for call in self._open) and time.monotonic() < deadline:
            time.sleep(1e-4)
        self._flush(final=True)
        if not self._steps:
            del self.traffic.steps[self.rank]
        self.traffic.notes += [text.format(count) for text, count in self._notes.items()]

    def note(self, text: str) -> None:
        """Counts one more call that the sentence is about; {} in it is how many."""
        self._notes[text] += 1

    def _flush(self, final: bool = False) -> None:
        while self._open:
            call = self._open[0]
            known = call.fields == {} or (call.fields and (call.untold or call.time_ns is not None))
            if not (known or final):
                break
            self._open.popleft()
            if call.fields:
                self._calls.append(self._made(call, call.fields))
            elif call.fields is None:
                self.note(_IN_FLIGHT)

    def _made(self, call: Call, fields: dict[str, Any]) -> TrafficCall:
        key: tuple[Any, ...] = (fields["group"],)
        if fields["collective"] in POINT_TO_POINT:
            if call.work is not None:
                fields["peer"] = self._source(call.work, fields["group"])
            key = (*key, fields["collective"], fields["peer"])
        number = self._sequence[key]
        self._sequence[key] += 1
        self._judge(call, fields)
        return TrafficCall(
            **fields,
            sequence=number,
            step=call.step if call.step < len(self._steps) else None,
            start_ns=call.start - self.begun,
            time_ns=call.time_ns,
            clock=call.clock,
        )

    def _source(self, work: Any, group: str) -> int | None:
        """Rank of the world that a message came from; None while it has not."""
        found: dict[str, Any] = {"peer": work._source_rank() if work.is_completed() else None}
        of_world(found, self.traffic.groups[group].ranks)
        return found["peer"]

    def _judge(self, call: Call, fields: dict[str, Any]) -> None:
        """Notes what is not known of it."""
        collective = fields["collective"]
        if ":" in collective:
            self.note(_UNKNOWN.format("{}", collective))
        if collective in _REDUCES and fields["op"] is None:
            self.note(_HIDDEN)
        if call.untold:
            self.note(call.untold)
        elif call.time_ns is None:
            self.note(_UNENDED)
        elif call.clock == "host" and fields["asynchronous"] is not False:
            self.note(_LATE)
