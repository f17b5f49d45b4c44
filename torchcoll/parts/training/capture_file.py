"""The file of a rank's capture, written while the training runs; disk errors never end it."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

from torchcoll.core.errors import TorchcollError, tell
from torchcoll.core.file import Writer
from torchcoll.core.opening import DISK_REFUSES
from torchcoll.core.traffic import RANK_FILE, Traffic, TrafficCall, header_of

BATCH = 256  # calls that may wait to be written
# Errors of a full or broken disk. The path is right, so they are no reason to refuse the training.
NO_ROOM = {*DISK_REFUSES, errno.EMFILE, errno.ENFILE}


def warn(actual: object, target: object, expected: str, action: str) -> None:
    """Prints one line on stderr, in place of an error that would end the training."""
    print_warning(
        f"got {actual} for {target}, expected {expected}. The training goes on; {action}."
    )


def print_warning(text: str) -> None:
    """Prints a warning if stderr accepts it; stderr may be a file on the same full disk."""
    with contextlib.suppress(OSError, ValueError):
        tell(f"torchcoll: warning: capture: {text}")


def open_rank_file(folder: Path, rank: int) -> Writer | None:
    """Opens a new file of this rank, next to those of earlier captures.

    Returns None, with a warning, if there is no room for it. Raises UsageError for a folder that
    cannot be written.
    """
    number = 1
    while True:
        name = f"{RANK_FILE}{rank}.jsonl" if number == 1 else f"{RANK_FILE}{rank}-{number}.jsonl"
        if not os.path.lexists(folder / name):
            try:
                return Writer(folder / name, "Name another folder.")
            except TorchcollError as error:
                reason = error.__context__
                if not isinstance(reason, OSError):
                    raise
                if not isinstance(reason, FileExistsError) or not os.path.lexists(folder / name):
                    if reason.errno not in NO_ROOM:
                        raise
                    room = "room for a new file"
                    warn(reason.strerror, folder / name, room, "its calls are in memory alone")
                    return None
        number += 1


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
