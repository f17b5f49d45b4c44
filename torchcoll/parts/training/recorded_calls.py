"""Records the calls of a training while they run, and turns them into those of a Traffic."""

from __future__ import annotations

import contextlib
import platform
import socket
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.traffic import POINT_TO_POINT, Group, Traffic, TrafficCall, leave_unmarked
from torchcoll.parts.training.decode import reduction, to_world_ranks
from torchcoll.parts.training.ring_file import BATCH, CaptureFile, RingEntry, warn


class GroupNames:
    """Names the process groups of one Traffic and adds them to it.

    torch reuses the name of a destroyed group. A group with the same name and other members becomes
    ``NAME@2`` (``join`` separates ranks that saw different ones).
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        # By id, with a weak reference, so that a process group can be freed. A WeakKeyDictionary
        # is slower.
        self._groups: dict[int, tuple[ref[Any], Group]] = {}

    def group(self, group: Any, device: torch.device) -> Group:
        """Returns a process group as the traffic has it; called before its first captured call.

        - device: the device of the tensors, which determines the backend that serves them.
        """
        seen = self._groups.get(id(group))
        if seen is None or seen[0]() is not group:
            try:
                ranks = tuple(dist.get_process_group_ranks(group))
            except (KeyError, ValueError, RuntimeError):  # made without torch.distributed
                ranks = ()
            try:
                backend = str(group._get_backend(device).name())
            except RuntimeError:
                backend = ""
            if backend in ("", "custom"):  # a third-party backend may not give its name
                backend = str(dist.get_backend(group)) if ranks else ""
            new = Group(
                str(group.group_name),
                ranks,
                backend,
                str(group.group_desc),
                self._calls_before(group),
            )
            named = self._traffic.groups[self._traffic.add_group(new)]
            seen = self._groups[id(group)] = (ref(group), named)
        return seen[1]

    def _calls_before(self, group: Any) -> int:
        """Returns how many collectives torch has counted on a group, the same on all its ranks.

        gloo counts messages too, so ranks may have different counts: that of the first rank counts
        for all. Without it, the numbers of calls would differ from those in a Flight Recorder.
        """
        try:
            count = int(group._get_sequence_number_for_group())
        except Exception:  # not all backends count
            count = 0
        if capture := self._traffic.environment.get("capture"):
            key = f"torchcoll/calls_before/{capture}/{group.group_name}"
            with contextlib.suppress(Exception):  # a lost store is no reason to end the training
                store = dist.distributed_c10d._get_default_store()
                count = int(store.compare_set(key, "", str(count)))
        return count


def unbox_group(group: Any) -> Any:
    """Returns the ProcessGroup of an operator's argument: itself, boxed, or its name; None if
    unknown.
    """
    try:
        if isinstance(group, str):
            return dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
        return dist.ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group
    except (RuntimeError, TypeError, ValueError):
        return None


def environment() -> dict[str, Any]:
    """Returns the facts about this process for the header of the Traffic."""
    from torchcoll import __version__

    return {
        "torchcoll": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "backend": str(dist.get_backend()),
        "seen_by": "capture",
    }


_CALLBACK_S = 1.0
# Limits of a capture. In memory a kept call takes 500 bytes, one that has not ended 1000 bytes.
KEPT_CALLS = 100_000
OPEN_CALLS = 20_000
_WRITE_NS = 1_000_000_000  # how long ended calls wait for the file at most, while calls are made
# Notes; {} stands for the number of calls.
_UNKNOWN_OP = f"{{}} reductions: torch {torch.__version__} does not tell which (sum, max, ...)"
_UNENDED = "{} calls had not ended when the capture did: how long they took is not known"
_IN_FLIGHT = "{} calls are missing: they had not returned when the capture ended"
_UNKNOWN = "{} calls of {}, which torchcoll does not know: their bytes are those of its tensors"
_LATE = (
    "{} calls are asynchronous: their end is recorded up to 5 ms late while Python is busy with "
    "something else (sys.getswitchinterval)"
)
_NOT_WAITED = "{} calls have no duration: a step later the program had not waited for them"
_TOO_OLD = f"{{}} calls have no duration: {OPEN_CALLS} calls after them they had not ended"


def _clock_name() -> str:
    """Returns the name of perf_counter_ns; all processes of a machine share this clock until it
    reboots.
    """
    try:
        return f"monotonic {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    except OSError:  # not Linux
        return f"monotonic {socket.gethostname()}"


@dataclass(eq=False, slots=True)
class RecordedCall:
    """A call that was issued and may not have ended. Stamps are of perf_counter_ns.

    - fields: the fields of its TrafficCall that say what was sent; None while the call has not
      returned; {} if it is dropped.
    - op: torch's own reduce op.
    - no_time_reason: why its duration will never be known; '' while it may still be.
    - future: a future that calls ``end``.
    - work: kept if the program's wait for it is the end of the call, or if torch returns only
      afterwards which rank a message came from.
    - wait_note: a note, if that wait is the end of the call.
    - entry: its record in the ring file, if there is one.
    - waited_from: when the program began to wait for its end; None if that is not known.
    - pending: its module, or whether the program waits for it, is still to be learned.
    - module: whose parameters or gradients it moves, see TrafficCall.
    """

    step: int
    fields: dict[str, Any] | None = None
    op: Any = None
    no_time_reason: str = ""
    future: Any = None
    work: Any = None
    wait_note: str = ""
    entry: RingEntry | None = None
    waited_from: int | None = None
    pending: bool = False
    module: str = ""
    clock: str = "host"
    time_ns: int | None = None
    start: int = field(default_factory=time.perf_counter_ns)

    def end(self, future: Any = None) -> None:
        """Stamps the end of the call; also the callback of its future, which may come later."""
        if self.time_ns is not None:
            return
        self.time_ns = time.perf_counter_ns() - self.start
        self.future = None
        if self.entry:
            try:
                if future is not None:
                    future.value()  # raises what the call has ended with
                self.entry.complete()
            except Exception as error:
                self.entry.fail(error)

    @property
    def due(self) -> bool:
        """Whether the call has ended but ``end`` has not run yet; a future wakes those who wait
        first.
        """
        future = self.future  # another thread may reset it
        return future is not None and future.done()


class CallRecorder:
    """Adds the calls of this rank to a traffic, in the order of issue, when they have ended."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.rank = dist.get_rank()
        self._open: deque[RecordedCall] = deque()
        self._calls = traffic.calls.setdefault(self.rank, [])
        self._steps = traffic.steps.setdefault(self.rank, [])
        self._sequence: Counter[tuple[Any, ...]] = Counter()
        self._notes: Counter[str] = Counter()
        traffic.ranks = dist.get_world_size()
        traffic.environment |= environment()
        traffic.mark_step = self.step
        self.on_mark: Callable[[], object] = lambda: None  # called at each mark of a step
        self.begun = time.perf_counter_ns()
        self._step_began = 0  # ns since the capture began
        self.marked = 0  # number of captured steps that were marked
        self._file: CaptureFile | None = None
        self._full = False  # further calls are in the file alone
        self._ended_calls = 0
        self._waited_until = 0  # the end of the last call that the program waited for
        self._write_at_ns = 0
        self._flushing = threading.Lock()
        # The steps for ``take_step`` by their number: spans and calls.
        self._spans: dict[int, tuple[int, int]] | None = None
        self._calls_of: defaultdict[int, list[TrafficCall]] = defaultdict(list)

    def begin_capture(self, file: CaptureFile | None) -> None:
        """Writes calls into the file as they end from now on; memory keeps the first of them."""
        self.begun, self._file = time.perf_counter_ns(), file
        self.traffic.clocks[self.rank] = (_clock_name(), self.begun)
        if file:
            file.begin(self.rank)

    def keep_steps(self) -> None:
        """Keeps the calls of each step for ``take_step`` from now on."""
        self._spans = {}

    def take_step(self, number: int) -> tuple[tuple[int, int], list[TrafficCall]] | None:
        """Returns begin and end of a kept step and its calls, once; None while a call is open."""
        self._flush()
        if any(call.step == number for call in self._open):
            return None
        assert self._spans is not None
        return self._spans.pop(number), self._calls_of.pop(number, [])

    def begin(self) -> RecordedCall:
        """Adds a call that is issued now, perhaps in another thread."""
        call = RecordedCall(self.marked)
        self._open.append(call)
        return call

    def drop(self, call: RecordedCall) -> None:
        """Drops a call that failed or cannot be read."""
        call.fields = {}

    def add_parameters(self, module: str, names: tuple[str, ...]) -> None:
        """Adds the names of the parameters that calls of a module move."""
        self.traffic.parameters[module] = names
        if self._file:
            self._file.add("parameters", {"module": module, "names": names})

    def add(self, call: RecordedCall, fields: dict[str, Any], op: Any) -> None:
        """Sets what was sent by a call.

        - fields: what ``Schema.fields`` returned for it.
        - op: torch's own reduce op; None if it has none.
        """
        call.op = op
        call.fields = fields
        overdue = self._file is not None and call.start >= self._write_at_ns
        if overdue or len(self._open) >= BATCH:
            self._flush()

    def begin_step(self) -> None:
        """Begins a captured step; calls before it belong to no step."""
        self._step_began = time.perf_counter_ns() - self.begun

    def step(self) -> None:
        """Ends a step and begins the next one."""
        now = time.perf_counter_ns() - self.begun
        span = self._step_began, now
        if not self._full:
            self._steps.append(span)
        if self._file:
            self._file.add("step", {"rank": self.rank, "spans_ns": [span]})
        if self._spans is not None:
            self._spans[self.marked] = span
        self.marked += 1
        self._step_began = now
        self.on_mark()
        for call in self._open:  # otherwise such a call would hold back all later ones
            call.pending = False
            if call.wait_note and call.time_ns is None and call.step < self.marked - 1:
                call.no_time_reason = _NOT_WAITED
        self._flush(write=True)

    def finish(self) -> list[str]:
        """Ends the capture and returns the notes on what was seen.

        Calls that have not ended are kept without a duration.
        """
        self.traffic.mark_step = None
        self.wait_for_ends()
        self._flush(final=True)
        leave_unmarked(self._calls, len(self._steps))
        if not self._steps:
            del self.traffic.steps[self.rank]
        notes = [text.format(count) for text, count in self._notes.items()]
        self.traffic.notes += notes
        if self._full:
            of_steps = (
                f"the first {len(self._steps)} of {self.marked} steps, " if self.marked else ""
            )
            file_text = f"; {self._file.path} has those that it could take" if self._file else ""
            self.traffic.notes.append(
                f"memory keeps {of_steps}{len(self._calls)} of {self._ended_calls} calls{file_text}"
            )
        return notes

    def wait_for_ends(self) -> None:
        """Waits until the callbacks of the calls that have ended have run."""
        deadline = time.monotonic() + _CALLBACK_S
        while any(call.due for call in self._open) and time.monotonic() < deadline:
            time.sleep(1e-4)

    def note(self, text: str) -> None:
        """Counts one more call for the note ``text``, in which {} stands for the count."""
        self._notes[text] += 1

    def _flush(self, final: bool = False, write: bool = False) -> None:
        """Moves the calls that have ended into the traffic, in the order of issue.

        Runs in whichever thread comes first.

        - final: include the calls that have not ended.
        - write: write to the file even if it is less than a batch.
        """
        if not self._flushing.acquire(blocking=final):
            return
        try:
            while self._open:
                call = self._open[0]
                if len(self._open) > OPEN_CALLS and call.time_ns is None:
                    call.no_time_reason = call.no_time_reason or _TOO_OLD
                complete = call.fields == {} or (
                    call.fields
                    and (call.no_time_reason or call.time_ns is not None)
                    and not (call.pending and self._may_wait(call))
                )
                if not (complete or final):
                    break
                self._open.popleft()
                if call.fields:
                    number = self._number(call, call.fields)
                    self._keep(self._traffic_call(call, call.fields, number))
                elif call.fields is None:
                    self.note(_IN_FLIGHT)
            if self._file and not final:  # the last records follow
                now = time.perf_counter_ns()
                if write or self._file.full or now >= self._write_at_ns:
                    self._file.write()
                    self._write_at_ns = now + _WRITE_NS
        finally:
            self._flushing.release()

    def _may_wait(self, call: RecordedCall) -> bool:
        """Returns whether a call that has ended may stay open until more is known about it."""
        return len(self._open) < BATCH and time.perf_counter_ns() < call.start + _WRITE_NS

    def _keep(self, call: TrafficCall) -> None:
        self._ended_calls += 1
        if self._file:
            self._file.add_call(self.rank, call)
        if self._spans is not None and call.step is not None:
            self._calls_of[call.step].append(call)
        if self._full:
            return
        self._calls.append(call)
        if len(self._calls) > KEPT_CALLS:
            # Memory filled up in this step: keep the complete steps before it. If it is the first
            # step, keep what fits.
            self._full, step = True, call.step or 0
            self._calls.pop()
            while step and self._calls[-1].step == step:
                self._calls.pop()
            del self._steps[step:]
            if self._file is None or self._file.broken:
                warn(
                    f"more than {KEPT_CALLS} calls",
                    "a capture without a file",
                    "capture(FOLDER), which writes them as they end",
                    f"the first {len(self._calls)} are kept",
                )

    def _number(self, call: RecordedCall, fields: dict[str, Any]) -> int:
        """Returns the call's sequence number in its group: see TrafficCall.sequence."""
        key: tuple[Any, ...] = (fields["group"],)
        if fields["collective"] in POINT_TO_POINT:
            if call.work is not None and fields["peer"] is None:
                fields["peer"] = self._source(call.work, fields["group"])
            key = (*key, fields["collective"], fields["peer"])
        number = self._sequence[key]
        self._sequence[key] += 1
        call.work = None
        return number

    def _traffic_call(self, call: RecordedCall, fields: dict[str, Any], number: int) -> TrafficCall:
        op = None if call.op is None else reduction(call.op)
        # Count what is unknown about the call, for the notes.
        collective = fields["collective"]
        if ":" in collective:
            self.note(_UNKNOWN.format("{}", collective))
        if op is None and collective in COLLECTIVES and COLLECTIVES[collective].has_op:
            self.note(_UNKNOWN_OP)
        if call.no_time_reason:
            self.note(call.no_time_reason)
        elif call.time_ns is None:
            self.note(_UNENDED)
        elif call.wait_note:
            self.note(call.wait_note)
        elif call.clock == "host" and fields["asynchronous"] is not False:
            self.note(_LATE)
        return TrafficCall.of_fields(
            {
                **fields,
                "op": op,
                "sequence": number,
                "step": call.step,
                "start_ns": call.start - self.begun,
                "time_ns": call.time_ns,
                "exposed_ns": self._exposed_ns(call),
                "clock": call.clock,
                "module": call.module,
            }
        )

    def _exposed_ns(self, call: RecordedCall) -> int | None:
        """Returns how long the program waited for a call, less what it waited for earlier ones."""
        if call.waited_from is None or call.time_ns is None or call.clock != "host":
            return None
        end = call.start + call.time_ns
        exposed = max(0, end - max(call.start, call.waited_from, self._waited_until))
        if exposed:
            self._waited_until = end
        return exposed

    def _source(self, work: Any, group: str) -> int | None:
        """Returns the rank of the world that a message came from; None if it has not arrived."""
        fields: dict[str, Any] = {"peer": work._source_rank() if work.is_completed() else None}
        to_world_ranks(fields, self.traffic.groups[group].ranks)
        peer: int | None = fields["peer"]
        return peer
