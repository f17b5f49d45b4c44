"""The files that a capture writes while the training runs: the traffic of a rank, its ring
(core/call_ring.py), and the stacks of a stall. Disk errors never end the training.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import mmap
import os
import socket
import sys
import threading
import time
import traceback
import zlib
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from torchcoll.core.call_ring import (
    CALL,
    CALL_BODY,
    CALL_TAIL,
    CALLS_AT,
    CAPACITY,
    MAGIC,
    PENDING,
    PREFIX,
    RING_FILE,
    SCHEMA,
    STACKS_FILE,
    STACKS_HEAD,
    STATE,
    STATE_AT,
    TEXTS_AT,
    UNCERTAIN,
)
from torchcoll.core.errors import TorchcollError, UsageError, one_line, tell
from torchcoll.core.file import Writer
from torchcoll.core.jsonl import LineWriter
from torchcoll.core.opening import DISK_REFUSES, open_to_write
from torchcoll.core.traffic import POINT_TO_POINT, RANK_FILE, Group, Traffic, TrafficCall, header_of
from torchcoll.core.variables import masked

BATCH = 256  # calls that may wait to be written
# Errors of a full or broken disk. The path is right, so they are no reason to refuse the training.
NO_ROOM = {*DISK_REFUSES, errno.EMFILE, errno.ENFILE}


def warn(actual: object, target: object, expected: str, action: str) -> None:
    """Prints one line on stderr, in place of an error that would end the training.

    stderr may be a file on the same full disk, and then there is no line.
    """
    text = f"got {actual} for {target}, expected {expected}. The training goes on; {action}."
    with contextlib.suppress(OSError, ValueError):
        tell(f"torchcoll: warning: capture: {text}")


def _new_path(folder: Path, stem: str, suffix: str) -> Path:
    """Returns the path of a new file of this rank, next to those of earlier captures."""
    names = (f"{stem}-{number}{suffix}" for number in itertools.count(2))
    paths = (folder / name for name in itertools.chain([f"{stem}{suffix}"], names))
    return next(path for path in paths if not os.path.lexists(path))


class CaptureFile:
    """Writes the records of a capture in batches.

    The first batch that the disk refuses is reported on stderr, and the file stays as it is. A
    process that was forked from this one writes nothing.
    """

    def __init__(self, writer: Writer, traffic: Traffic) -> None:
        self.path = writer.path
        self._writer = writer
        self._traffic = traffic
        self._process = os.getpid()
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self._groups: set[str] = set()  # groups that are in the file
        self._header_names: set[str] = set()  # environment names in its header
        self._calls = 0  # number of calls in the file
        self.broken = False

    @classmethod
    def open(cls, folder: Path, rank: int, traffic: Traffic) -> CaptureFile | None:
        """Opens a new file of this rank, which becomes the path of the traffic.

        Returns None, with a warning, if there is no room for it. Raises UsageError for a folder
        that cannot be written.
        """
        path = _new_path(folder, f"{RANK_FILE}{rank}", ".jsonl")
        try:
            writer = Writer(path, "Name another folder.")
        except TorchcollError as error:
            reason = error.__context__
            if not isinstance(reason, OSError) or reason.errno not in NO_ROOM:
                raise
            warn(reason.strerror, path, "room for a new file", "its calls are in memory alone")
            return None
        traffic.path = path
        return cls(writer, traffic)

    def begin(self, rank: int) -> None:
        """Writes the header and the clock of the rank."""
        self._header_names = set(self._traffic.environment)
        self.add("header", header_of(self._traffic))
        self.add("step", {"rank": rank, "spans_ns": [], "clock": self._traffic.clocks[rank]})
        self.write()

    def add(self, record: str, data: dict[str, Any]) -> None:
        """Adds a record for the next ``write``."""
        if not self.broken:
            self._waiting.append((record, data))

    def add_call(self, rank: int, call: TrafficCall) -> None:
        """Adds a call, and its group if the file does not have it yet."""
        if call.group not in self._groups and call.group in self._traffic.groups:
            self._groups.add(call.group)
            self.add("group", self._traffic.groups[call.group].to_json())
        self.add("call", {"rank": rank, **call.to_json()})

    @property
    def full(self) -> bool:
        """Whether a whole batch is waiting to be written."""
        return len(self._waiting) >= BATCH

    def write(self) -> None:
        """Writes the waiting records; never raises.

        The operating system has them then, even if the process is killed.
        """
        waiting, self._waiting = self._waiting, []
        if self.broken or not waiting or os.getpid() != self._process:
            return
        try:
            self._writer.append(waiting)
            self._calls += sum(record == "call" for record, _ in waiting)
        except Exception as error:  # no failure of the file may end the training
            self.broken = True
            actual = error.strerror if isinstance(error, OSError) else type(error).__name__
            action = f"the file keeps its first {self._calls} calls"
            warn(actual, self.path, "a disk that takes the next record", action)

    def end(self, notes: list[str]) -> None:
        """Writes the last records of a capture that wrote its calls as they ended."""
        for text in notes:
            self.add("note", {"text": text})
        environment = self._traffic.environment
        later = {name: environment[name] for name in environment if name not in self._header_names}
        if later:
            self.add("environment", {"environment": later})
        self.add("end", self._traffic.end)
        self.close()

    def close(self) -> None:
        """Writes the waiting records and closes the file.

        A broken file has no end record and loads as one that was cut off.
        """
        self.write()
        if not self.broken and not self._writer.there():
            self.broken = True
            action = "traffic.save(PATH) writes what is in memory"
            warn("nothing", self.path, "the file that the capture writes", action)
        self._writer.close()


_FOR_THE_END = 4096  # bytes of the texts that names leave free
_LONGEST_TEXT = 300
_MOST_RANKS_LISTED = 2000  # a group with more ranks at irregular distances is written without them
_LIBRARY_FOLDERS = tuple(
    os.path.join(os.path.dirname(path), "") for path in (torch.__file__, os.path.dirname(__file__))
)


class RingEntry:
    """A call in the ring, to be told how it ended."""

    __slots__ = ("_ring", "_serial")

    def __init__(self, ring: RingFile, serial: int) -> None:
        self._ring, self._serial = ring, serial

    def complete(self) -> None:
        self._ring.set_state(self._serial, time.time_ns())

    def fail(self, error: BaseException) -> None:
        self._ring.set_state(self._serial, -time.time_ns())
        self._ring.write_text({"record": "error", "serial": self._serial, "text": _text(error)})

    def set_uncertain(self) -> None:
        """Records that the end of this call will be noticed only later, or never."""
        self._ring.set_state(self._serial, UNCERTAIN)


class RingFile:
    """The ring file of this rank. A forked process writes nothing; any thread may write.

    A record is stored into a memory map. A system call would take four times as long, and wait for
    milliseconds whenever the kernel writes that page to the disk. All blocks of the file are
    written when it is made, so that a disk that fills up later has room for every record.
    """

    def __init__(self, file_map: mmap.mmap, path: Path, capture: str | None) -> None:
        self.path = path
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.last_event_ns = time.time_ns()  # when a call began or ended
        self.last_call: tuple[int, str, str] | None = None  # number, group, collective
        self.host = socket.gethostname()
        self._map: mmap.mmap | None = file_map
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._serial = 0
        self._numbers: dict[Any, int] = {}  # of the last call of a group, or with a peer
        self._ids: dict[tuple[str, str, str | None], tuple[int, int, int]] = {}
        self._groups: dict[str, int] = {}
        self._names: dict[str, int] = {"": 0}
        self._name_numbers = itertools.count(1)
        self._callers: dict[tuple[str, int], int] = {}  # file and line
        self._is_library: dict[str, bool] = {}  # whether a file is of torch or ours
        self._lines = LineWriter()
        self._texts_end = TEXTS_AT
        self.set_alive()
        header = {
            "record": "header",
            "schema": SCHEMA,
            "rank": self.rank,
            "ranks": self.ranks,
            "host": self.host,
            "pid": self._process,
            "start_ns": time.time_ns(),
            "capture": capture,
            "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
            "torchelastic_run_id": os.environ.get("TORCHELASTIC_RUN_ID"),
        }
        self.write_text(header)

    @property
    def _writable(self) -> bool:
        """Whether the file is open, in the process that opened it and not in one forked from it."""
        return self._map is not None and os.getpid() == self._process

    @classmethod
    def open(cls, folder: Path, capture: str | None) -> RingFile | None:
        """Opens a new ring of this rank.

        Returns None, with a warning, if there is no room for it. Raises UsageError for a folder
        that cannot be written.
        """
        path = _new_path(folder, f"{RING_FILE}{dist.get_rank()}", ".ring")
        try:
            file = open_to_write(path, "x+b", buffering=0)
        except OSError as error:
            if error.errno in NO_ROOM:
                _warn_no_room(path, error)
                return None
            expected = f"a folder that can be written ({error.strerror})"
            raise UsageError("path", folder, expected, "Name another folder.") from None
        try:
            with file:
                rest = memoryview(bytes(CALLS_AT + CAPACITY * CALL.size))
                while rest:
                    rest = rest[file.write(rest) :]
                file_map = mmap.mmap(file.fileno(), CALLS_AT + CAPACITY * CALL.size)
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                path.unlink()
            _warn_no_room(path, error)
            return None
        return cls(file_map, path, capture)

    def begin(self, group: Group, fields: dict[str, Any], certain: bool) -> RingEntry | None:
        """Adds a call that is about to be issued.

        - fields: what ``decode`` returned, with ranks of the world.
        - certain: whether the end of the call will be noticed at once.
        """
        if not self._writable:
            return None
        collective, peer, root = fields["collective"], fields.get("peer"), fields.get("root")
        point_to_point = collective in POINT_TO_POINT
        numbered = (group.name, collective, peer) if point_to_point else group.name
        named = group.name, collective, fields["dtype"]
        # What is the same in most calls is looked up at once: this code runs once or twice in a
        # step, from memory that no cache holds.
        ids = self._ids.get(named)
        if ids is None:
            ids = self._ids[named] = (
                self._group(group),
                self._name(collective),
                self._name(fields["dtype"] or ""),
            )
        caller = self._caller()
        self.last_event_ns = now = time.time_ns()
        with self._lock:
            self._serial = serial = self._serial + 1
            number = self._numbers.get(numbered, 0 if point_to_point else group.calls_before) + 1
            self._numbers[numbered] = number
            body = CALL_BODY.pack(
                serial,
                now,
                fields["bytes_in"],
                fields["bytes_out"],
                number,
                *ids,
                caller,
                -1 if peer is None else peer,
                -1 if root is None else root,
            )
            tail = CALL_TAIL.pack(zlib.crc32(body), PENDING if certain else UNCERTAIN)
            self.last_call = number, group.name, collective
            self._write(body + tail, _offset(serial))
        return RingEntry(self, serial)

    def set_state(self, serial: int, state: int) -> None:
        self.last_event_ns = time.time_ns()
        with self._lock:
            if serial > self._serial - CAPACITY:  # otherwise a later call has its record
                self._write(STATE.pack(state), _offset(serial) + STATE_AT)

    def set_alive(self) -> None:
        with self._lock:
            self._write(PREFIX.pack(MAGIC, time.time_ns()), 0)

    def write_text(self, record: dict[str, Any]) -> bool:
        """Appends a record to the texts; returns whether there was room."""
        if not self._writable:
            return False
        named = record["record"] in ("group", "text")
        with self._lock:
            lines = copy.copy(self._lines)
            line = lines.line(record)
            at = self._texts_end
            if at + len(line) > CALLS_AT - (_FOR_THE_END if named else 0):
                return False
            self._texts_end += len(line)
            self._lines = lines
            self._write(line, at)
        return True

    def end(self, status: str, error: BaseException | None) -> None:
        """Records how the capture ended, and closes the file."""
        if not self._writable:
            return
        reason = type(error).__name__ if error is not None else None
        text = None if error is None else _text(error)
        self.write_text({"record": "end", "status": status, "reason": reason, "text": text})
        self.set_alive()
        with self._lock:
            file_map, self._map = self._map, None
            if file_map:
                file_map.close()

    def sync(self) -> None:
        """Sends what was written to the disk or file server, where other nodes see it."""
        with self._lock:
            if self._map:
                self._map.flush()

    def _write(self, data: bytes, offset: int) -> None:
        """Writes with the lock held, unless the capture has ended."""
        if self._map is not None and self._writable:
            self._map[offset : offset + len(data)] = data

    def _group(self, group: Group) -> int:
        """Returns the number of a group in the file; 0, which no group has, where it is full."""
        number = self._groups.get(group.name)
        if number is None:
            number = self._groups[group.name] = len(self._groups) + 1
            ranks: list[int] = list(group.ranks)
            step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
            spaced = len(ranks) > 2 and step > 0
            spaced = spaced and ranks == list(range(ranks[0], ranks[-1] + 1, step))
            if spaced:
                ranks = [ranks[0], ranks[-1] + 1, step]
            record = {
                "record": "group",
                "id": number,
                "name": group.name,
                "spaced": spaced,
                "ranks": ranks if len(ranks) <= _MOST_RANKS_LISTED else [],
                "backend": group.backend,
                "description": group.description,
            }
            if not self.write_text(record):
                self._groups[group.name] = number = 0
        return number

    def _name(self, text: str) -> int:
        """Returns the number of a text in the file; 0, which is '', where the file is full."""
        number = self._names.get(text)
        if number is None:
            number = next(self._name_numbers)
            record = {"record": "text", "id": number, "text": text[:_LONGEST_TEXT]}
            self._names[text] = number if self.write_text(record) else 0
        return self._names[text]

    def _caller(self) -> int:
        """Returns the number of the line of code that made the call; 0 if it came from C++."""
        frame: FrameType | None = sys._getframe(2)
        is_library = self._is_library
        while frame:
            path = frame.f_code.co_filename
            library = is_library.get(path)
            if library is None:
                library = is_library[path] = path.startswith(_LIBRARY_FOLDERS)
            if not library:
                break
            frame = frame.f_back
        if frame is None:
            return 0
        key = path, frame.f_lineno
        number = self._callers.get(key)
        if number is None:
            text = f"{path[-_LONGEST_TEXT // 2 :]}:{frame.f_lineno} {frame.f_code.co_name}"
            number = self._callers[key] = self._name(text)
        return number


def _offset(serial: int) -> int:
    return CALLS_AT + serial % CAPACITY * CALL.size


def _text(error: BaseException) -> str:
    return masked(one_line(f"{type(error).__name__}: {error}"))[:_LONGEST_TEXT]


def _warn_no_room(path: Path, error: Exception) -> None:
    action = "a hang leaves no calls of this rank"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    warn(reason, path, "room for a new file", action)


LONGEST_WAIT_S = 30.0  # without a call that begins or ends, until stacks are written
_TICK_S = 1.0
_MOST_BYTES = 1 << 18  # of the file with stacks: then it begins anew
_MOST_FRAMES = 60  # of a thread


class StallWatch(threading.Thread):
    """Notices that this rank makes no progress in its collectives, and writes where its threads
    stand: sets the time in the ring once a second, and writes ``stacks-rank{r}.txt`` in a stall.

    The first stacks of a stall are written after ``wait_s`` seconds, then after twice the time, and
    so on.

    A rank that waits in a call and a rank that never makes it both have no new call and no end of
    one. A thread writes nothing while the process is stopped or other code holds the GIL.
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
            for at, line in itertools.islice(traceback.walk_stack(frame), _MOST_FRAMES):
                code = at.f_code
                lines.append(f'  File "{code.co_filename}", line {line} in {code.co_name}')
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
