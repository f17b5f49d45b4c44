"""Reads NCCL's and RCCL's own log (NCCL_DEBUG=INFO), line by line, into its messages.

No pattern is anchored, because launchers prepend their own texts. A line may contain a part of
another process's line (stdout of a node), be cut (a buffer of 1024 bytes, a full disk) or edited.
The reader takes what is complete in it, and counts each line once.

Formats: src/debug.cc, init.cc, graph/tuning.cc and transport/*.cc of NCCL 2.8 to 2.32.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from torchcoll.libraries.logged import Tally
from torchcoll.libraries.nccl import messages

_MARK = b" NCCL "
_MOST_HOSTS = 64  # hosts with the same process id that are compared
_FEW_LINES, _MANY_LINES = 2, 20  # complete lines of a process; see ``processes``
# How many messages are remembered whose kind does not depend on the process, and their length.
_MOST_SKIPPED, _MOST_SKIPPED_BYTES = 4096, 512
_LEVELS = frozenset((b"INFO", b"WARN", b"TRAC", b"CALL"))
# What follows the name of the host. A pattern that began with the name would try each length of the
# name at each position, which took 20 s for a compressed log of 10 KB.
_PREFIX = re.compile(rb":(\d{1,10}):(\d{1,10}) \[-?\w*\]")
# A complete prefix, to find messages within other lines.
_INSIDE = re.compile(
    rb":\d{1,10}:\d{1,10} \[-?\w*\] (?:\S{1,255}:\d{1,9} (?:\(\w+\) )?)?NCCL (?:INFO|WARN) "
)
_STAMP = re.compile(rb"\[[\d :.-]{1,64}\] ")
_LONGEST_STAMP = 67
_NAME, _LONGEST_NAME = (string.ascii_letters + string.digits + "_.-").encode(), 255
_BARE_VERSION = re.compile(rb"NCCL version (\d+\.\d+[\w.+-]*)")


def _host(raw: bytes, first: int, end: int) -> bytes:
    """The host name that ends at ``end`` and begins at ``first`` or later."""
    before = raw[max(first, end - _LONGEST_NAME) : end]
    return before[len(before.rstrip(_NAME)) :]


class NcclLogReader(messages.MessageReader):
    """Reads one file: ``read`` takes lines, repeatedly, and ``processes`` has the result."""

    def __init__(self, file: str = "") -> None:
        super().__init__(file)
        self.tally = Tally()
        self.version = ""  # of a line without a process: NCCL <= 2.23 prints it so, once per job
        # Text of a line from ' NCCL ' on -> its kind in the tally, for lines that have nothing of
        # interest whatever their process is. A log has many of them, and most are equal.
        self._skipped: dict[bytes, str] = {}
        self._hosts: set[str] = set()

    @property
    def processes(self) -> list[messages.NcclProcess]:
        """The processes of the file, in the order of their first lines.

        Where the outputs of several processes run into each other, fragments of lines look like
        prefixes of processes that do not exist. So a process without a complete line is dropped if
        others have one. In a file with cut lines whose processes usually have _MANY_LINES lines or
        more, a process with less than a twentieth of the usual number is dropped as well, and so
        are lines without a readable prefix. A host gets the name that most complete lines have.
        """
        whole = [process for process in self._processes if process.names]
        lines = sorted(process.names.total() for process in whole if process.pid)
        usual = lines[len(lines) // 2] if lines else 0
        if self.tally.counts["cut"] and usual >= _MANY_LINES:
            minimum = max(_FEW_LINES, usual // 20)
            whole = [p for p in whole if p.pid and p.names.total() > minimum]
        for process in whole:
            process.host = process.names.most_common(1)[0][0]
        return whole or list(self._processes)

    def read(self, lines: Iterable[bytes]) -> None:
        mark, levels, counts = _MARK, _LEVELS, self.tally.counts
        prefixes, passed = self._prefixes, self._skipped
        for raw in lines:
            position = raw.find(mark)
            if position < 0 or raw[position + 6 : position + 10] not in levels:
                kind = self._read_unprefixed(raw)
            elif skipped := passed.get(raw[position:]):
                kind = skipped
                process, _, host = prefixes.get(raw[:position]) or self._read_prefix(
                    raw[:position], False
                )
                process.names[host] += 1
            else:
                further = raw.find(mark, position + 6)
                if further > 0 and raw[further + 6 : further + 10] in levels:
                    kind = self._read_spliced(raw)
                elif raw.find(b": opCount ", position) > 0:  # most lines of a large log have it
                    kind = "known"
                else:
                    kind = self._read_message(raw, position)
            counts[kind] += 1
            if kind == "cut" or kind == "unknown":
                self.tally.note(raw)

    def _read_unprefixed(self, raw: bytes) -> str:
        """The kind of a line without a process: NCCL may print its version and tables so."""
        if b"NCCL version " in raw and (match := _BARE_VERSION.search(raw)):
            self.version = self.version or match[1].decode()
            return "understood"
        if b" | " in raw and raw.split(None, 1)[0].decode("latin-1") in messages.TABLE_ROWS:
            return "known"
        return "other"

    def _read_spliced(self, raw: bytes) -> str:
        """Read a line with messages of several processes, each up to the next."""
        positions, past = [], 0
        for match in _INSIDE.finditer(raw):
            name = match.start()
            start = name - len(_host(raw, past, name))
            if start < name:
                stamp = raw.rfind(b"[", max(past, start - _LONGEST_STAMP), start)
                positions.append(stamp if _STAMP.fullmatch(raw, max(stamp, 0), start) else start)
                past = match.end()
        starts = [0, *(position for position in positions if position)]
        for start, end in zip(starts, [*starts[1:], len(raw)], strict=True):
            piece = raw[start:end]
            position = piece.find(_MARK)
            if position >= 0:
                self._read_message(piece, position, start > 0, whole=end == len(raw))
        return "cut"

    def _read_message(
        self, raw: bytes, position: int, inside: bool = False, whole: bool = True
    ) -> str:
        """The kind in the tally of one process's message. position: of ' NCCL '. inside: begun
        within another line. whole: not interrupted.
        """
        level = raw[position + 6 : position + 10]
        self.process, self._thread, host = self._read_prefix(raw[:position], inside)
        if whole and not inside:
            self.process.names[host] += 1
        message = raw[position + 6 :].partition(b" ")[2].decode("utf-8", "replace").rstrip()
        if len(message) > messages.LONGEST:
            return "cut"
        if level == b"WARN":
            source = raw[:position].rsplit(b"]", 1)[-1].strip().decode("utf-8", "replace")
            text = f"{message} ({source})" if source else message
            if text not in self.process.warnings:
                self.account(1, 4 * len(text))
            self.process.warnings[text] += 1
            return "understood"
        if level == b"CALL":
            return "known"
        first_word = message.split(None, 1)[0] if message else ""
        handler = self.HANDLERS.get(first_word)
        if handler is None:
            if " set by environment to " in message:
                handler = messages.MessageReader.read_variable
            elif " coll channels" in message:
                handler = messages.MessageReader.read_channel_counts
            elif " Bytes -> " in message:
                handler = messages.MessageReader.read_choice
            elif "comm 0x" in message and first_word.startswith(("ncclComm", "[Rank")):
                handler = messages.MessageReader.read_communicator
            else:
                traced = level == b"TRAC"  # there is no list of TRACE messages
                kind = "known" if traced or messages.is_known(first_word, message) else "unknown"
                if not inside and whole and len(raw) - position <= _MOST_SKIPPED_BYTES:
                    if len(self._skipped) >= _MOST_SKIPPED:
                        self._skipped.clear()
                    self._skipped[raw[position:]] = kind
                return kind
        # An interrupted message may have lost its end: only handlers that check the end take it.
        if (whole or handler in self.CHECK_THEIR_END) and handler(self, message):
            return "understood"
        return "known" if messages.is_known(first_word, message) else "cut"

    def _read_prefix(self, prefix: bytes, inside: bool) -> tuple[messages.NcclProcess, int, str]:
        """The process, thread and host of a line. Lines without a prefix share a process."""
        cached = self._prefixes.get(prefix)
        if cached:
            return cached
        # A line that was cut within its prefix is followed by another prefix: the message's own.
        *_, match = (None, *_PREFIX.finditer(prefix))
        host, pid, thread = (
            (_host(prefix, 0, match.start()).decode(), int(match[1]), int(match[2]))
            if match
            else ("", 0, 0)
        )
        if inside and host not in self._hosts:
            # `busId 86node1:12:12 [0]`: the text before it ends where a known name begins.
            ends = (host[start:] for start in range(1, len(host)))
            host = next((name for name in ends if name in self._hosts), host)
        process = self._process_by_id.get((host, pid)) or self._match_damaged(host, pid)
        if process is None:
            process = self.add_process(host, pid)
        if not inside:
            self._hosts.add(process.host)
        if len(self._prefixes) > 65536:  # with time stamps no two prefixes are equal
            self._prefixes.clear()
        self._prefixes[prefix] = process, thread, host
        return process, thread, host

    def _match_damaged(self, host: str, pid: int) -> messages.NcclProcess | None:
        """The process whose host a cut line has changed: `47node1` and `de1` are node1; or None."""
        for known_host in self._hosts_of.get(pid, ())[:_MOST_HOSTS]:
            longer, shorter = sorted((host, known_host), key=len, reverse=True)
            extra = longer.removesuffix(shorter)
            if shorter and extra != longer and extra[-1:].isalnum():
                process = self._process_by_id[known_host, pid]
                if extra.isdecimal():  # the first line of the process may be the cut one
                    process.names[shorter] += 1
                self._process_by_id[host, pid] = process
                return process
        return None
