"""Notices that a rank makes no progress in its collectives, and writes where its threads stand.

Each rank judges itself, by a clock of its own: a rank that waits in a call and a rank that never
makes the call both have no new call and no end of one. A thread cannot run, and so writes nothing,
while the process is stopped or other code holds the GIL.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from datetime import datetime, timezone

import torch
import torch.distributed as dist

from torchcoll.core.call_ring import STACKS_FILE, STACKS_HEAD
from torchcoll.parts.training.ring_file import RingFile

LONGEST_WAIT_S = 30.0  # without a call that begins or ends, until stacks are written
_TICK_S = 1.0
_MOST_BYTES = 1 << 18  # of the file with stacks: then it begins anew
_MOST_FRAMES = 60  # of a thread


class StallWatch(threading.Thread):
    """Sets the time in the ring once a second, and writes ``stacks-rank{r}.txt`` in a stall.

    The first stacks of a stall are written after ``wait_s`` seconds, then after twice the time, and
    so on.
    """

    def __init__(self, ring: RingFile, capture: str | None) -> None:
        super().__init__(name="torchcoll-stall-watch", daemon=True)
        self._ring = ring
        self._capture = capture
        self._path = ring.path.with_name(f"{STACKS_FILE}{ring.rank}.txt")
        self._ended = threading.Event()
        self.wait_s = min(LONGEST_WAIT_S, _group_timeout_s() / 2)
        self.start()

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        stall_ns, next_s = self._ring.last_event_ns, self.wait_s
        while not self._ended.wait(min(_TICK_S, self.wait_s / 4)):
            self._ring.set_alive()
            if stall_ns != self._ring.last_event_ns:
                stall_ns, next_s = self._ring.last_event_ns, self.wait_s
            idle_s = (time.time_ns() - stall_ns) / 1e9
            if idle_s >= next_s:
                next_s = 2 * idle_s
                with contextlib.suppress(OSError):  # a full disk
                    self._dump(idle_s)
                    self._ring.sync()

    def _dump(self, idle_s: float) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        last_call = "none"
        if self._ring.last_call:
            number, group, collective = self._ring.last_call
            last_call = f"number {number} of group {group}, {collective}"
        lines = [
            f"{STACKS_HEAD} {now}: rank {self._ring.rank} of {self._ring.ranks} on "
            f"{self._ring.host}, process {os.getpid()}",
            f"capture: {self._capture or ''}",
            f"no call began or ended for {idle_s:.1f} s; last call: {last_call}",
        ]
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for thread, frame in sys._current_frames().items():
            if thread == self.ident:
                continue
            # The form of faulthandler, which other tools read.
            name = names.get(thread, "unknown")
            lines.append(f"Thread 0x{thread:016x} [{name}] (most recent call first):")
            at = frame
            for _ in range(_MOST_FRAMES):
                code = at.f_code
                lines.append(f'  File "{code.co_filename}", line {at.f_lineno} in {code.co_name}')
                if at.f_back is None:
                    break
                at = at.f_back
        text = "\n".join(lines) + "\n\n"
        again = self._path.exists() and self._path.stat().st_size > _MOST_BYTES
        with open(self._path, "w" if again else "a", encoding="utf-8", errors="replace") as file:
            file.write(text)


def _group_timeout_s() -> float:
    """Returns the timeout of the default group: its ranks raise an exception after it."""
    try:
        group = dist.distributed_c10d._get_default_group()
        device = dist.distributed_c10d._get_object_coll_device(group)
        backend = group._get_backend(torch.device(device))
        return float(backend.options._timeout.total_seconds())
    except Exception:  # a backend without options
        return 2 * LONGEST_WAIT_S
