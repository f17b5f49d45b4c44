"""Watches this rank from a thread of its own: its progress, what its measuring thread does, pauses
of its process, and signals. It reads counters in memory four times a second, and asks the store
only if nothing moved. Where something is wrong bench/departure.py ends this rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import platform
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

from torchcoll.bench.control import ALL_ASK, Control
from torchcoll.bench.culprit import BUSY, CODE, COLLECTIVE, EXCHANGE
from torchcoll.bench.departure import Departure, FinalReport, readable, state_letter, text_of
from torchcoll.core.errors import tell
from torchcoll.core.variables import masked

_POLL_S = 0.25
STOP_S = 60.0  # after SIGUSR1: a call that has not ended by then will not
_LATENESSES = 40  # looks, which are 10 s
_MOST_QUESTIONS = 8000  # for an alarm, a second, of all ranks: a store answers 20 times as many
_QUIET_S = 1.0  # without progress for so long, the store is asked whether another rank saw trouble
_AFTERMATH_S = 10.0  # after a pause calls of the others may still come to their end
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # as torchrun forwards


def no_progress(_: str) -> None:
    """Report progress to nobody."""


@dataclass
class Progress:
    """How far this rank is: equal on ranks that are in step, smaller on a rank that is behind."""

    doing: str = "start-up"
    steps: int = 0  # how many are done
    # Only its length is read, so that the timed loop pays nothing for being watched.
    samples: Sized = field(default_factory=list)
    beats: int = 0  # signs of life within a step, which differ from rank to rank
    groups: Sequence[Any] = ()  # the process groups of the case: torch counts their calls
    subgroup: int = 0  # the first rank of this rank's sub-group
    begun: int | None = None  # calls of the first group when the case began
    halted: bool = False  # this rank is leaving: nothing new is begun
    on_progress: Callable[[str], None] = no_progress  # called with the description of each step
    phases: dict[str, int] = field(default_factory=dict)  # durations of the setup in ns

    def begin(self) -> None:
        """Begin a case on ``groups``."""
        self.begun = None
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):  # backends without
            self.begun = int(self.groups[0]._get_sequence_number_for_group())

    def last(self) -> list[str]:
        """What this rank gave to the last calls of the case; takes some 0.1 s."""
        if self.begun is None or not self.groups:
            return []
        return last_calls(self.groups[0].group_name, self.begun)

    def beat(self) -> None:
        self.beats += 1

    def step(self, doing: str, samples: Sized = ()) -> None:
        while self.halted:  # else the other ranks would go on with this one, and notice nothing
            time.sleep(1)
        self.doing = doing
        self.steps += 1 + len(self.samples)
        self.samples = samples
        self.on_progress(doing)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A step of the setup, which is timed."""
        self.step(name)
        start = time.perf_counter_ns()
        yield
        self.phases[name] = time.perf_counter_ns() - start

    @property
    def done(self) -> int:
        return self.steps + len(self.samples)

    def stated(self) -> str:
        """What this rank does, with the number of the call."""
        calls = f", call {len(self.samples)}" if self.samples else ""
        return self.doing + calls

    def status(self) -> dict[str, Any]:
        """steps, doing, subgroup and calls of this rank's Status (bench/culprit.py)."""
        status = {"steps": self.done, "doing": self.stated(), "subgroup": self.subgroup}
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):  # backends without
            counts = [int(group._get_sequence_number_for_group()) for group in self.groups]
            status["calls"] = sum(counts) if counts else None
        return status


# torchcoll's own modules that have the call of the backend on top where torch has no frame for it.
_CALLERS = ("machine.devices", "bench.calls", "parts.training.player")
# Numbers of nanosleep and clock_nanosleep, with which /proc/self/task/TID/syscall begins.
_SLEEPS = {"x86_64": ("35", "230"), "aarch64": ("101", "115")}.get(platform.machine(), ())
_SHORTEST_S = 1.0  # a stall that is over is reported if it lasted so long


class _Stall:
    """A time without progress. cpu_s: CPU time of the thread when it began."""

    def __init__(self, began: float, cpu_s: float | None) -> None:
        self.began = self.seen = began
        self.began_cpu_s = self.cpu_s = cpu_s
        self.looks: Counter[tuple[str, str]] = Counter()
        self.states: Counter[str] = Counter()

    @property
    def seconds(self) -> float:
        return self.seen - self.began

    def stated(self) -> dict[str, Any]:
        place, text = max(self.looks, key=self.looks.__getitem__)
        return {"place": place, "text": text, "how": self._how(), "s": round(self.seconds, 1)}

    def _how(self) -> str:
        """``sleeps``, ``spins`` or ``waits``; '' if unknown. CPU time shows who has the GIL."""
        looks, used = self.looks.total(), None
        if self.cpu_s is not None and self.began_cpu_s is not None and self.seconds:
            used = (self.cpu_s - self.began_cpu_s) / self.seconds
        if (used or 0) > 0.5 or self.states["R"] > looks / 2:
            return "spins"
        if self.states["sleep"] > looks / 2:
            return "sleeps"
        return "waits" if self.states else ""


class StackSampler:
    """Samples what the thread that made it does while there is no progress: a late rank may have
    come afterwards. Ranks that sleep, spin or wait in the collective differ in their Python stacks
    and in their states in the kernel. ``look`` and ``moved`` are called by one other thread.
    """

    def __init__(self) -> None:
        self._ident, self._native = threading.get_ident(), threading.get_native_id()
        self._now = _Stall(time.monotonic(), self._cpu_s())
        self._last = self._now

    def moved(self) -> None:
        """There was progress: the stall is over."""
        if self._now.seconds >= _SHORTEST_S:
            self._last = self._now
        self._now = _Stall(time.monotonic(), self._cpu_s())

    def look(self) -> None:
        """Take a sample; takes some 50 us."""
        place = place_of(sys._current_frames().get(self._ident))
        if place is None:
            return
        now = self._now
        now.looks[place] += 1
        now.seen, now.cpu_s = time.monotonic(), self._cpu_s()
        if state := self._state():
            now.states[state] += 1

    def stated(self, within_s: float) -> dict[str, Any]:
        """place, text, how and s of the present stall, or a longer recent one; {} without."""
        if not self._now.looks:
            self.look()
        sample = self._now
        recent = time.monotonic() - self._last.seen < within_s
        if recent and self._last.looks and self._last.seconds > sample.seconds:
            sample = self._last
        return sample.stated() if sample.looks else {}

    def _cpu_s(self) -> float | None:
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(self._ident))
        except (AttributeError, OSError):
            return None

    def _state(self) -> str:
        """``sleep``, or the letter of proc(5)."""
        folder = f"/proc/self/task/{self._native}"
        if _SLEEPS and text_of(f"{folder}/syscall").split(" ")[0] in _SLEEPS:
            return "sleep"
        return state_letter(text_of(f"{folder}/stat"))


def place_of(frame: Any) -> tuple[str, str] | None:
    """(kind, description) of the innermost frame that says where a thread is; None: leaving."""
    while frame:
        module = str(frame.f_globals.get("__name__", ""))
        root, _, rest = module.partition(".")
        if root == "torch":
            return _in_torch(frame)
        if root == "torchcoll":
            if module in ("torchcoll.bench.watchdog", "torchcoll.bench.departure"):
                return None
            if module == "torchcoll.bench.control":
                name = ""  # of the outermost function there
                while frame and frame.f_globals.get("__name__") == module:
                    name, frame = frame.f_code.co_name, frame.f_back
                return EXCHANGE, name
            if rest in _CALLERS:
                return COLLECTIVE, frame.f_code.co_name
            return BUSY, f"{rest}, {frame.f_code.co_name}"
        if root not in sys.stdlib_module_names:
            code = frame.f_code
            name = os.path.basename(code.co_filename)
            return CODE, f"{code.co_name}, {name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _in_torch(frame: Any) -> tuple[str, str]:
    """Collectives wait in calls of torch.distributed and in those that wait for the device."""
    name, waits = "", False
    while frame and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "torch":
        module, function = frame.f_globals["__name__"], frame.f_code.co_name
        waits = waits or module.startswith("torch.distributed") or function == "synchronize"
        name = name if function == "wrapper" and name else function  # c10d_logger's
        frame = frame.f_back
    return (COLLECTIVE, name) if waits else (BUSY, f"torch, {name}")


def last_calls(group: str, begun: int) -> list[str]:
    """The buffers of this process's last three calls on ``group`` after call number ``begun``,
    barriers aside, by torch's Flight Recorder, for gloo alone. Takes some 0.1 s.
    """
    with contextlib.suppress(Exception):  # an inner function of torch, in the last seconds of a run
        from torch._C import _distributed_c10d as c10d

        data = c10d._dump_fr_trace(includeStackTraces=False)  # type: ignore[attr-defined]
        calls = [
            entry
            for entry in pickle.loads(data)["entries"]
            if entry["process_group"][0] == group
            and entry["collective_seq_id"] > begun
            and not entry["is_p2p"]
            and entry["input_sizes"]
        ]
        return [_given(call) for call in calls[-3:]]
    return []


def _given(entry: dict[str, Any]) -> str:
    """The buffers of one call: ``all_reduce of 2 Float``."""
    buffers = zip(entry["input_sizes"], entry["input_dtypes"], strict=True)
    texts = [f"{'x'.join(map(str, sizes)) or 1} {dtype}" for sizes, dtype in buffers]
    more = f" and {len(texts) - 2} more" if len(texts) > 2 else ""
    return f"{entry['profiling_name'].rpartition(':')[2]} of {', '.join(texts[:2])}{more}"


class Pauses:
    """How long this process stood still (``start_up_s`` before), and how late threads wake."""

    def __init__(self, start_up_s: float) -> None:
        self._began = self._looked = time.monotonic()
        # The longest time without a look, and when it ended.
        self._longest_s, self._ended = start_up_s, self._began
        self._late_s: deque[float] = deque(maxlen=_LATENESSES)

    def look(self) -> float:
        """How long ago any thread of this process looked before."""
        now = time.monotonic()
        pause_s, self._looked = now - self._looked, now
        if pause_s > self._longest_s:
            self._longest_s, self._ended = pause_s, now
        return pause_s

    def progressed(self) -> None:
        if time.monotonic() - self._ended > _AFTERMATH_S:
            self._longest_s = 0.0

    def all_started(self) -> None:
        """All ranks have met since this one began to look: its start-up is no pause."""
        if self._ended == self._began:
            self._longest_s = 0.0

    def woke_late(self, late_s: float) -> None:
        self._late_s.append(late_s)

    @property
    def latest_s(self) -> float:
        """By how much the watchdog has woken up late at most in the last looks."""
        return max(self._late_s, default=0.0)

    def stated(self, patience_s: float) -> dict[str, Any]:
        """``still_s`` for the status, if this process stood still longer than others wait."""
        self.look()
        return {} if self._longest_s < patience_s else {"still_s": round(self._longest_s)}


class Watchdog:
    """Watches ``progress`` of this rank, from the thread that makes it; ``close`` ends it.

    signals: handle the signals that end a run, except those that are ignored. A command does.
    stops: handle SIGUSR1 too, with which Slurm warns: STOP_S later the run is ended.
    start_up_s: how long nobody has looked before.

    Raises RuntimeError if this process can have no more threads.
    """

    def __init__(
        self,
        control: Control,
        store: Any,
        progress: Progress,
        final_report: FinalReport,
        signals: bool = False,
        stops: bool = False,
        start_up_s: float = 0.0,
    ) -> None:
        self.control = control
        self.progress = progress
        self.pauses = Pauses(start_up_s)
        self._sampler = StackSampler()
        # Many ranks that wait for a long call must not keep the store busy with their questions.
        ask_every_s = control.ranks / _MOST_QUESTIONS if control.ranks > ALL_ASK else 0.0
        self.departure = Departure(
            control, store, final_report, progress, self._sampler, self.pauses, ask_every_s
        )
        self._closed = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.departure.signals = self._read
        self._thread = threading.Thread(target=self._watch, name="torchcoll-watchdog", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self.departure.client.close()
            raise
        self._handlers: dict[int, Any] = {}
        self._old_fd: int | None = None
        self._stop_at: float | None = None  # monotonic: when SIGUSR1 came
        if signals:
            self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in (*_ENDING, *([signal.SIGUSR1] if stops else [])):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                    self._handlers[number] = signal.signal(number, lambda *_: None)

    @property
    def asked_to_stop(self) -> bool:
        return self._stop_at is not None

    def close(self) -> None:
        """End the threads and restore the signals' handlers."""
        self._closed = True
        os.write(self._write, b"\0")
        self._thread.join()
        self.departure.client.close()
        if self._old_fd is not None:
            signal.set_wakeup_fd(self._old_fd)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _watch(self) -> None:
        departure = self.departure
        last, since = self._signs(), time.monotonic()
        while not self._closed:
            began = time.monotonic()
            signalled = readable(self._read, _POLL_S)
            if self.pauses.look() >= self.control.timeout_s:
                since = time.monotonic()  # a rank that stood still has waited for nobody
            if signalled:
                for number in os.read(self._read, 16):
                    if number in self._handlers:  # others have handlers of their own
                        self._on_signal(number)
                continue
            now = time.monotonic()
            stopping = self._stop_at and now - self._stop_at > STOP_S
            if stopping and not departure.parting.is_set():
                self._on_signal(signal.SIGUSR1)
            if now - began < self.control.timeout_s:  # else this process was paused
                self.pauses.woke_late(now - began - _POLL_S)
            if self._signs() != last:
                last, since = self._signs(), now
                self._sampler.moved()
                self.pauses.progressed()
                continue
            self._sampler.look()
            if now - since > self.control.timeout_s:
                departure.abort(f"no progress for {self.control.timeout_s:g} s", "hang")
            elif now - since > _QUIET_S and departure.others_in_trouble():
                departure.abort(None)

    def _signs(self) -> tuple[int, int]:
        return self.progress.done, self.progress.beats

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGUSR1:
            # This thread hears of it also where the other one is blocked in a collective. Some
            # launchers send it twice.
            self._stop_at = self._stop_at or time.monotonic()
            if time.monotonic() - self._stop_at <= STOP_S:
                return
        self.departure.interrupt(number)


def print_error(line: str, rank: int, speaks: bool) -> None:
    """Print the error on the rank that ``speaks``, and write it for torchrun, masked."""
    line = masked(line)
    if speaks:
        with contextlib.suppress(OSError):  # a terminal that is gone
            tell(line)
    write_error_file(line, rank)


def write_error_file(message: str, rank: int) -> None:
    """Write the message for torchrun, which shows the failure with the earliest time last: that of
    rank 0, as the times of other ranks are two seconds later.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        data = {"message": message, "timestamp": int(time.time()) + (2 if rank else 0)}
        # Whole or not at all: torchrun may end this process at any time. Not where there is one.
        begun = f"{path}.{os.getpid()}"
        with contextlib.suppress(OSError):
            with open(begun, "x") as file:
                json.dump(data, file)
            with contextlib.suppress(FileExistsError):
                os.link(begun, path)
            os.unlink(begun)
