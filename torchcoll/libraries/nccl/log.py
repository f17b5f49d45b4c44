"""NCCL's and RCCL's own log (NCCL_DEBUG=INFO): what each process tells of itself.

A pure reader, line by line. Nothing is anchored: launchers put their own texts in front. Lines of
several processes may stand in one another (stdout of a node), be cut (a buffer of 1024 bytes, a
full disk) or edited; what stands in them whole is taken, and every line is counted once.

Formats: src/debug.cc, init.cc, graph/tuning.cc and transport/*.cc of NCCL 2.8 to 2.32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchcoll.core.bounds import MOST_PROCESSES
from torchcoll.core.errors import UnreadableError
from torchcoll.libraries.calls import Tally
from torchcoll.libraries.nccl import said
from torchcoll.libraries.nccl.known import is_known
from torchcoll.libraries.nccl.members import Member, Process
from torchcoll.libraries.nccl.tuning_table import Column

_MARK = b" NCCL "
_LONGEST = 4096  # NCCL's own buffer has 1024
_LEVELS = frozenset((b"INFO", b"WARN", b"TRAC", b"CALL"))
_PREFIX = re.compile(rb"([\w.-]{0,255}):(\d{1,10}):(\d{1,10}) \[-?\w*\]")
# A whole prefix, to find one inside another line.
_INSIDE = re.compile(
    rb"(?:\[[\d :.-]{1,64}\] )?([\w.-]{1,255}):(\d{1,10}):(\d{1,10}) \[-?\w*\] "
    rb"(?:\S{1,255}:\d{1,9} (?:\(\w+\) )?)?NCCL (?:INFO|WARN) "
)
_BARE_VERSION = re.compile(rb"NCCL version (\d+\.\d+[\w.+-]*)")


class Reader:
    """Reads one file: ``read`` takes its lines, any number of times; ``processes`` has the rest."""

    def __init__(self, file: str = "") -> None:
        self.file = file
        self.tally = Tally()
        self.processes: list[Process] = []
        self.version = ""  # of a line without a process: NCCL <= 2.23 prints it so, once a job
        self._known: dict[tuple[str, int], Process] = {}
        self.open: dict[tuple[int, int], Member] = {}  # (process, thread) -> its last communicator
        self.columns: dict[int, list[Column]] = {}  # id of a Member -> those of its tuning table
        self.prefixes: dict[bytes, tuple[Process, int]] = {}
        self._hosts: set[str] = set()
        self.process = Process("", 0)
        self.thread = 0

    def read(self, lines: Iterable[bytes]) -> None:
        mark, levels, counts = _MARK, _LEVELS, self.tally.counts
        for raw in lines:
            place = raw.find(mark)
            if place < 0 or raw[place + 6 : place + 10] not in levels:
                kind = self._other(raw)
            else:
                further = raw.find(mark, place + 6)
                if further > 0 and raw[further + 6 : further + 10] in levels:
                    kind = self._spliced(raw)
                elif raw.find(b": opCount ", place) > 0:  # most lines of a large log
                    kind = "known"
                else:
                    kind = self._line(raw, place)
            counts[kind] += 1
            if kind == "cut" or kind == "unknown":
                self.tally.note(raw)

    def _other(self, raw: bytes) -> str:
        """A line of no process; the tables of functions that NCCL prints without a prefix."""
        if b"NCCL version " in raw and (found := _BARE_VERSION.search(raw)):
            self.version = self.version or found[1].decode()
            return "understood"
        if b" | " in raw and raw.split(None, 1)[0].decode("latin-1") in said.MATRIX:
            return "known"
        return "other"

    def _spliced(self, raw: bytes) -> str:
        """Messages of several processes in one line: all but the last end where the next begins."""
        places = [match.start() for match in _INSIDE.finditer(raw)]
        starts = [0, *(place for place in places if place)]
        for start, end in zip(starts, [*starts[1:], len(raw)], strict=True):
            piece = raw[start:end]
            place = piece.find(_MARK)
            if place >= 0:
                self._line(piece, place, start > 0, whole=end == len(raw))
        return "cut"

    def _line(self, raw: bytes, place: int, inside: bool = False, whole: bool = True) -> str:
        """A message of one process; how it counts in the tally. ``inside``: of another line."""
        level = raw[place + 6 : place + 10]
        self.process, self.thread = self._source(raw[:place], inside)
        message = raw[place + 6 :].partition(b" ")[2].decode("utf-8", "replace").rstrip()
        if len(message) > _LONGEST:
            return "cut"
        if level == b"WARN":
            where = raw[:place].rsplit(b"]", 1)[-1].strip().decode("utf-8", "replace")
            self.process.warnings[f"{message} ({where})" if where else message] += 1
            return "understood"
        if level == b"CALL":
            return "known"
        word = message.split(None, 1)[0] if message else ""
        handler = said.HANDLERS.get(word)
        if handler is None:
            if " set by environment to " in message:
                handler = said.variable
            elif " coll channels" in message:
                handler = said.counts
            elif " Bytes -> " in message:
                handler = said.call
            elif "comm 0x" in message and word.startswith(("ncclComm", "[Rank")):
                handler = said.communicator
            else:
                traced = level == b"TRAC"  # of which there is no list
                return "known" if traced or is_known(word, message) else "unknown"
        # What another line interrupts may have lost its end: only what shows its end is taken.
        if (whole or handler in said.SHOW_THEIR_END) and handler(self, message):
            return "understood"
        return "known" if is_known(word, message) else "cut"

    # -- who speaks --------------------------------------------------------------------------

    def _source(self, prefix: bytes, inside: bool) -> tuple[Process, int]:
        """The process and thread of a line; one unnamed process where a prefix was edited away."""
        known = self.prefixes.get(prefix)
        if known:
            return known
        found = _PREFIX.search(prefix)
        host, pid, thread = (
            (found[1].decode(), int(found[2]), int(found[3])) if found else ("", 0, 0)
        )
        if inside and host not in self._hosts:
            # `busId 86node1:12:12 [0]`: the text before it ends where a known name begins.
            ends = [name for name in self._hosts if name and host.endswith(name)]
            host = max(ends, key=len) if ends else host
        self._hosts.add(host)
        process = self._known.get((host, pid))
        if process is None:
            process = self.made(host, pid)
        if len(self.prefixes) > 65536:  # time stamps before each line: then no two are equal
            self.prefixes.clear()
        self.prefixes[prefix] = process, thread
        return process, thread

    def made(self, host: str, pid: int) -> Process:
        """A process that nothing was read of yet."""
        if len(self._known) >= MOST_PROCESSES:
            raise UnreadableError("log", self.file, f"at most {MOST_PROCESSES} processes")
        process = self._known[host, pid] = Process(host, pid, self.file)
        self.processes.append(process)
        return process

    def member(self) -> Member:
        """The communicator that this thread is making, or made last."""
        key = id(self.process), self.thread
        member = self.open.get(key)
        if member is None and self.process.members:
            # Another thread of the process: NCCL connects late, in threads of their own.
            return self.process.members[-1]
        # Without 'Init START' (<= 2.17) only what comes next tells that one was complete.
        if member is None or (member.complete and not member.started):
            member = self.open[key] = Member()
            self.process.members.append(member)
        return member

    def of_handle(self, handle: str) -> Member | None:
        members = self.process.members
        return next((m for m in reversed(members) if m.handle == handle), None)

    def begun(self, fields: dict[str, str], start: bool) -> Member:
        """The communicator of a handle that is new; start: its line says that it begins here."""
        key = id(self.process), self.thread
        member = self.open.get(key)
        if start or member is None or member.handle:
            member = self.open[key] = Member()
            self.process.members.append(member)
        member.handle, member.started = fields["comm"], start
        return member
