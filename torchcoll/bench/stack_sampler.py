"""What the measuring thread of this rank does while nothing moves, seen from the watchdog's thread.

A rank that sleeps in somebody's code, one that spins and one that waits inside the collective have
made the same number of steps. Their Python stacks differ, and what the kernel says of the thread.
It is looked at while nothing moves, not afterwards: who was late may have come meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import sys
import threading
import time
from collections import Counter
from typing import Any

from torchcoll.core.units import shorten

# Kinds of places. Of the first two nobody else is the cause; in the last two a rank waits for
# others.
CODE, BUSY, COLLECTIVE, EXCHANGE = "code", "busy", "collective", "exchange"

# torchcoll's own modules that have the call of the backend on top where torch has no frame for it.
_CALLERS = ("machine.devices", "bench.calls", "parts.training.player")
# Numbers of nanosleep and clock_nanosleep, with which /proc/self/task/TID/syscall begins.
_SLEEPS = {"x86_64": ("35", "230"), "aarch64": ("101", "115")}.get(platform.machine(), ())
_SHORTEST_S = 1.0  # a stop that is over is told of if it lasted so long


class _Stretch:
    """A time without progress, as looks have seen it. cpu_s: of the thread, when it began."""

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
        """sleeps, spins, waits; '' where the kernel does not tell. One that has Python's lock is
        seen waiting for it, for the lock is ours while we look: its CPU time tells it.
        """
        looks, used = self.looks.total(), None
        if self.cpu_s is not None and self.began_cpu_s is not None and self.seconds:
            used = (self.cpu_s - self.began_cpu_s) / self.seconds
        if (used or 0) > 0.5 or self.states["R"] > looks / 2:
            return "spins"
        if self.states["sleep"] > looks / 2:
            return "sleeps"
        return "waits" if self.states else ""


class StackSampler:
    """Looks at the thread that made it; ``look`` and ``moved`` are of one other thread."""

    def __init__(self) -> None:
        self._ident, self._native = threading.get_ident(), threading.get_native_id()
        self._now = _Stretch(time.monotonic(), self._cpu_s())
        self._last = self._now

    def moved(self) -> None:
        """There was progress: what was seen is over."""
        if self._now.seconds >= _SHORTEST_S:
            self._last = self._now
        self._now = _Stretch(time.monotonic(), self._cpu_s())

    def look(self) -> None:
        """Costs some 50 us."""
        place = place_of(sys._current_frames().get(self._ident))
        if place is None:
            return
        now = self._now
        now.looks[place] += 1
        now.seen, now.cpu_s = time.monotonic(), self._cpu_s()
        if state := self._state():
            now.states[state] += 1

    def stated(self, within_s: float) -> dict[str, Any]:
        """place, text, how and seconds of the stop that lasts, or of a longer one that ended less
        than ``within_s`` ago; {} where nothing was seen.
        """
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
        """``sleep``, else the letter of proc(5)."""
        folder = f"/proc/self/task/{self._native}"
        if _SLEEPS and _text(f"{folder}/syscall").split(" ")[0] in _SLEEPS:
            return "sleep"
        return _letter(_text(f"{folder}/stat"))


def place_of(frame: Any) -> tuple[str, str] | None:
    """(kind of place, words for it) of the innermost frame that tells it; None for the watchdog's
    own.
    """
    while frame:
        module = str(frame.f_globals.get("__name__", ""))
        root, _, rest = module.partition(".")
        if root == "torch":
            return _in_torch(frame)
        if root == "torchcoll":
            if module == "torchcoll.bench.watchdog":
                return None
            if module == "torchcoll.bench.control":
                return EXCHANGE, _outermost(frame, module)
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
    """Calls of torch.distributed and what waits for the device are where collectives wait."""
    name, waits = "", False
    while frame and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "torch":
        module, function = frame.f_globals["__name__"], frame.f_code.co_name
        waits = waits or module.startswith("torch.distributed") or function == "synchronize"
        name = name if function == "wrapper" and name else function  # c10d_logger's
        frame = frame.f_back
    return (COLLECTIVE, name) if waits else (BUSY, f"torch, {name}")


def _outermost(frame: Any, module: str) -> str:
    name = ""
    while frame and frame.f_globals.get("__name__") == module:
        name, frame = frame.f_code.co_name, frame.f_back
    return name


def last_calls(group: str, begun: int) -> list[str]:
    """What this process gave to its last three calls on ``group`` after the call number ``begun``,
    as torch has recorded it below torchcoll (its Flight Recorder; of gloo alone). Without barriers,
    which stand between the timed calls. [] where this torch keeps none. 2,000 calls: some 0.1 s.
    """
    with contextlib.suppress(Exception):  # an inner function of torch, in somebody's last seconds
        from torch._C import _distributed_c10d as c10d

        data = c10d._dump_fr_trace(includeStackTraces=False)  # type: ignore[attr-defined]
        entries = [e for e in pickle.loads(data)["entries"]
               if e["process_group"][0] == group and e["collective_seq_id"] > begun]  # fmt: skip
        calls = [e for e in entries if not e["is_p2p"] and e["input_sizes"]]
        return [_given(entry) for entry in calls[-3:]]
    return []


def _given(entry: dict[str, Any]) -> str:
    """``all_reduce of 2 Float``."""
    buffers = zip(entry["input_sizes"], entry["input_dtypes"], strict=True)
    texts = [f"{'x'.join(map(str, sizes)) or 1} {dtype}" for sizes, dtype in buffers]
    return f"{entry['profiling_name'].rpartition(':')[2]} of {shorten(texts, 2)}"


def seen_from_outside(pid: int) -> str:
    """What a process of this host does that does not answer for itself; '' where nobody tells."""
    # Of its main thread: those of the library may use a little whatever that one does.
    path = f"/proc/{pid}/task/{pid}/stat"
    first = _text(path)
    letter = _letter(first)
    if letter in ("T", "t"):
        return "its process is stopped"
    if letter == "D":
        return "its process waits for a disk or a device"
    time.sleep(0.2)
    last = _text(path)
    ticks = [_ticks(text) for text in (first, last)]
    if None in ticks or not letter:
        return ""
    # Its threads cannot run Python where native code keeps the lock.
    used = (ticks[1] or 0) > (ticks[0] or 0) or "R" in (letter, _letter(last))
    return f"its process {'spins' if used else 'sleeps or waits'} in native code"


def _ticks(stat: str) -> int | None:
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else None


def _letter(stat: str) -> str:
    return stat.rpartition(")")[2].strip()[:1]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
