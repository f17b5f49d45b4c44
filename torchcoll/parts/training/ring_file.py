"""Writes the ring file of a capture (core/call_ring.py), call by call; disk errors never end the
training.

A record is stored into a memory map. A system call would take four times as long, and wait for
milliseconds whenever the kernel writes that page to the disk. All blocks of the file are written
when it is made, so that a disk that fills up later has room for every record.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import mmap
import os
import socket
import sys
import threading
import time
import zlib
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakSet

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
    STATE,
    STATE_AT,
    TEXTS_AT,
    UNCERTAIN,
)
from torchcoll.core.checksums import LineWriter
from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.opening import open_to_write
from torchcoll.core.traffic import POINT_TO_POINT, Group
from torchcoll.core.variables import masked
from torchcoll.parts.training.capture_file import NO_ROOM, warn

_FOR_THE_END = 4096  # bytes of the texts that names leave free
_LONGEST_TEXT = 300
_MOST_RANKS_LISTED = 2000  # a group with more ranks at irregular distances is written without them
_LIBRARY_FOLDERS = tuple(
    os.path.join(os.path.dirname(path), "") for path in (torch.__file__, os.path.dirname(__file__))
)


_rings: WeakSet[RingFile] = WeakSet()


def _leave_rings_to_parent() -> None:
    for ring in _rings:
        ring.leave_to_parent()


os.register_at_fork(after_in_child=_leave_rings_to_parent)


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
    """The ring file of this rank. A forked process writes nothing; any thread may write."""

    def __init__(self, file_map: mmap.mmap, path: Path, capture: str | None) -> None:
        self.path = path
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.last_event_ns = time.time_ns()  # when a call began or ended
        self.last_call: tuple[int, str, str] | None = None  # number, group, collective
        self.host = socket.gethostname()
        self._map: mmap.mmap | None = file_map
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
            "pid": os.getpid(),
            "start_ns": time.time_ns(),
            "capture": capture,
            "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
            "torchelastic_run_id": os.environ.get("TORCHELASTIC_RUN_ID"),
        }
        self.write_text(header)
        _rings.add(self)

    def leave_to_parent(self) -> None:
        """In a process that was forked from this one: writes nothing from now on."""
        self._map = None

    @classmethod
    def open(cls, folder: Path, capture: str | None) -> RingFile | None:
        """Opens a new ring of this rank, next to those of earlier captures.

        Returns None, with a warning, if there is no room for it. Raises UsageError for a folder
        that cannot be written.
        """
        number = 1
        while True:
            suffix = "" if number == 1 else f"-{number}"
            path = folder / f"{RING_FILE}{dist.get_rank()}{suffix}.ring"
            try:
                file = open_to_write(path, "x+b", buffering=0)
                break
            except FileExistsError:
                number += 1
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
        if self._map is None:
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
        """Appends a record to the texts, if there is room: names leave some for errors and the end.
        Returns whether it was written.
        """
        if self._map is None:
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
        if self._map is None:
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
        if self._map is not None:
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
