"""Finds who wrote which line of a text.

Launchers, containers, daemons and mail programs put something in front of each line: a rank, a
host, a process, a time. ``Writers`` learns from the first lines of a text which of these it has,
and then splits every line: of ``node1: [rank3]: RuntimeError`` the node is node1, the rank 3.
Prefixes that nothing else looks like are recognised anywhere. ``0: `` and ``node1: `` are prefixes
only of a text in which nearly all lines have one.

Two writers may share a line, since a launcher forwards what it has and not whole lines. The names
of the hosts that begin messages of NCCL elsewhere in the text say where the second one begins
(``log_hosts``, ``without_log``). A terminal wraps lines at its width (``wrapping_width``,
``unwrapped``), and an issue holds the outputs of several commands (``document_parts``).
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torchcoll.core.bounds import MOST_RANKS

Line = tuple[int, str]

_MOST_PREFIXES = 6  # of one line
_LEAST_LINES = 3  # of a sample from which an ambiguous prefix is learned
_SHARE = 0.8  # of the lines that have it


@dataclass(slots=True)
class WrittenLine:
    """A line, and what its prefixes say about its writer.

    number: in the file, from 1. text: the message. prefix: all prefixes, as they are in the file.
    rank: of the world. A number of ``srun -l`` is a rank unless torch's own names contradict it.
    local_rank: the number within its host by which torchrun labels a worker.
    node: the host, pod or container. pid: the process. time: as it is in the file.
    kernel: whether the kernel wrote it.
    """

    number: int
    text: str
    prefix: str = ""
    rank: int | None = None
    local_rank: int | None = None
    node: str = ""
    pid: int | None = None
    time: str = ""
    kernel: bool = False

    @property
    def writer(self) -> str:
        """``node1``, ``rank 3``, ``pid 41 on 10.0.0.1``; '' if no prefix names a writer."""
        numbers = (("rank", self.rank), ("worker", self.local_rank), ("pid", self.pid))
        named = ", ".join(f"{name} {value}" for name, value in numbers if value is not None)
        if self.node:
            return f"{named} on {self.node}" if named else self.node
        return named


# Times: 2026-07-20T19:33:49.123Z, [2026-07-20 19:33:49,123], [Mon Jul 20 19:33:49 2026].
_ISO_TIME = (
    r"\[?(?P<time>\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\]?,?:?"
)
_DAY_TIME = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
_DAEMON = (
    r"(?P<node>[A-Za-z0-9][\w.-]{0,80}) (?:(?P<kernel>kernel)|[\w./-]{1,60}\[(?P<pid>\d{1,10})\])"
    r": ?(?:\[ *\d+\.\d+\] ?)?"
)
# Prefixes that nothing else looks like, by the characters that they begin with.
_CERTAIN = (
    ("[", r"\[rank(?P<rank>\d{1,7})\]:? ?"),
    ("[", r"\[(?:[\w.-]{1,255}@)?\d{1,7},(?P<rank>\d{1,7})\]\s?<std(?:out|err|diag)>:[ \t]?"),
    # c10 writes the month without a leading zero: E321 is 21 March (c10/util/Logging.cpp).
    (
        "[IWEF",
        r"\[?[IWEF](?P<time>\d{3,4} \d\d:\d\d:\d\d\.\d{1,9})(?: \d{1,20})? [\w./-]{1,200}:\d+\] ?",
    ),
    ("[", r"\[[IWEF] [\w./-]{1,200}:\d+\] ?"),  # torch 2.0 to 2.2
    ("[<", r"(?P<kernel>(?:<\d+>)?\[ *\d{1,9}\.\d{6}\] )"),
    ("[", rf"(?P<kernel>\[[A-Z][a-z]{{2}} (?P<time>{_DAY_TIME} \d{{4}})\] )"),
    # dmesg --time-format iso, the only writer of a comma and a zone
    (
        "[0123456789",
        r"(?P<kernel>\[?(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:?\d\d)\]? )",
    ),
    ("[0123456789", rf"{_ISO_TIME} {_DAEMON}"),
    ("[0123456789", rf"{_ISO_TIME}(?: |$)"),
    ("[", r"\[pod/(?P<node>[\w.-]{1,255})/[\w.-]{1,255}\] ?"),
    ("[", r"\[[A-Za-z_]{1,40}?(?P<local>\d{1,5})\]:"),
    (
        "(",
        r"\([\w.:-]{1,80}(?:\[rank=(?P<rank>\d{1,7})\])? pid=(?P<pid>\d{1,10})"
        r"(?:, ip=(?P<node>[\d.:a-fA-F]{1,40}))?\) ?",
    ),
    ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", rf"(?P<time>{_DAY_TIME}) {_DAEMON}"),
    ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", rf"(?P<time>{_DAY_TIME}) (?=\S)"),
)
_AMBIGUOUS = (
    r" *(?P<rank>\d{1,7}): ?",  # srun -l
    r"\[(?P<rank>\d{1,7})\] ?",  # mpiexec -prepend-rank
    r"(?:[|-] )?\[?(?:DEBUG|INFO|WARN(?:ING)?)\]?(?::[\w.]{0,60}:|\s?[|:-])? ?",  # of a logger
    r"(?P<node>[A-Za-z0-9][\w.-]{0,80}) *\| ?",  # docker compose
    r"(?P<node>[A-Za-z0-9][\w.-]{0,80}): ?",  # pdsh, clush
    r" ?> ?",  # a quotation in a mail
    r"[-*] ",
)
_BY_FIRST: dict[str, list[re.Pattern[str]]] = {}
for _first, _pattern in _CERTAIN:
    for _character in _first:
        _BY_FIRST.setdefault(_character, []).append(re.compile(_pattern))
_LABELS = [re.compile(pattern) for pattern in _AMBIGUOUS]
_WORLD = _BY_FIRST["["][0]


class Writers:
    """Splits the lines of one text into prefixes and messages. sample: some of its lines."""

    def __init__(self, sample: Iterable[str]) -> None:
        lines = [text for text in itertools.islice(sample, _SAMPLE) if text.strip()]
        self.hosts = log_hosts(lines)
        # Messages of NCCL may be printed without what the launcher puts in front of other lines.
        self._labels: list[re.Pattern[str]] = []
        written = [self.split(0, text) for text in lines if not _MESSAGE.match(text)]
        # A driver begins its lines in the kernel's log as a host does elsewhere: NVRM: Xid
        messages = [line.text for line in written if not line.kernel]
        for pattern in _LABELS:
            if self._is_prefix(pattern, messages):
                self._labels.append(pattern)
                messages = [
                    text[match.end() :] for text in messages if (match := pattern.match(text))
                ]
        counted = any(_is_counter(pattern, lines) for pattern in self._labels)
        self._are_ranks = not counted and all(
            match["rank"] == inner["rank"]
            for pattern in self._labels
            if "rank" in pattern.groupindex
            for text in lines
            if (match := pattern.match(text)) and (inner := _WORLD.search(text, match.end()))
        )

    @staticmethod
    def _is_prefix(pattern: re.Pattern[str], lines: Sequence[str]) -> bool:
        """Whether nearly all lines begin with it, and each of its names begins several."""
        matches = [match for text in lines if (match := pattern.match(text))]
        if len(lines) < _LEAST_LINES or len(matches) < _SHARE * len(lines):
            return False
        return (
            len({match["node"] for match in matches}) * 3 <= len(matches)
            if ("node" in pattern.groupindex)
            else True
        )

    def split(self, number: int, text: str) -> WrittenLine:
        """Take the prefixes off a line."""
        written = WrittenLine(number, text)
        start = self._take_certain(written, text, 0)
        if self._labels and not written.kernel:
            for pattern in self._labels:
                if match := pattern.match(text, start):
                    start = match.end()
                    _take(written, match, self._are_ranks)
            start = self._take_certain(written, text, start)
        if start:
            written.prefix, written.text = text[:start], text[start:]
        if "]<" in written.text:  # two writes in one line
            written.text = _TAG.sub("", written.text)
        return written

    def lines(self, lines: Iterable[Line]) -> Iterator[WrittenLine]:
        """Split the lines of the text, one at a time."""
        for number, text in lines:
            if self._labels or text[:1] in _BY_FIRST or text[:1].isspace() or "]<" in text:
                yield self.split(number, text)
            else:
                yield WrittenLine(number, text)

    @staticmethod
    def _take_certain(written: WrittenLine, text: str, start: int) -> int:
        """Take prefixes that nothing else looks like; returns where they end."""
        for _ in range(_MOST_PREFIXES):
            begin = start
            if not start and text[:1].isspace():  # an indented quotation
                begin = len(text) - len(text.lstrip())
            for pattern in _BY_FIRST.get(text[begin : begin + 1], ()):
                if match := pattern.match(text, begin):
                    start = match.end()
                    _take(written, match, True)
                    break
            else:
                return start
        return start


def _take(written: WrittenLine, match: re.Match[str], is_rank: bool) -> None:
    """Record what a prefix says."""
    for name in match.re.groupindex:
        value = match[name]
        if not value:
            continue
        if name in ("node", "time"):
            setattr(written, name, value)
        elif name == "kernel":
            written.kernel = True
        elif name == "rank" and is_rank and int(value) < MOST_RANKS:
            written.rank = int(value)
        elif name == "local":
            written.local_rank = int(value)
        elif name == "pid":
            written.pid = int(value)


_SAMPLE = 5000  # lines
_TAG = re.compile(r"\[(?:[\w.-]{1,255}@)?\d+,\d+\]<\w+>:[ \t]?")


def _is_counter(pattern: re.Pattern[str], lines: Sequence[str]) -> bool:
    """Whether the numbers in front of the lines are those of the lines, as ``grep -n`` prints."""
    if "rank" not in pattern.groupindex:
        return False
    numbers = [int(match["rank"]) for text in lines if (match := pattern.match(text))]
    return len(numbers) > 2 and all(a < b for a, b in itertools.pairwise(numbers))


# A message of a library, which may begin within a row that another process prints. Hosts begin with
# a letter here, because `0node7:12:13 [0]` is the last field of a row followed by a host. So are
# `N/Anode7` and, after a blank, `sumnode7`.
_LOG = re.compile(
    r"(?:(?<!N/)[A-Za-z_][\w.-]{0,255})?:\d+:\d+ \[\S{0,64}\] .*$"
    r"|\[\S{0,64}\] NCCL (?:INFO|WARN|TRACE|ABORT) .*$"
    r"|\d{4}:\d\d:\d\d-\d\d:\d\d:\d\d:\s?\(\s*\d+\) \|CCL_\w+\|.*$"
    r"|NCCL_TESTS_ALLTOALLV\S*.*$"
)
_MESSAGE = re.compile(r"([\w.-]{1,256}):(\d+):\d+ \[\S{0,64}\] ")
_OPERATION = re.compile(r"(?:sum|prod|max|min|avg|none)(?=[A-Za-z_])")
_MARKS = ("NCCL", "|CCL_")
_LABEL_BEFORE = re.compile(r"\[\d{1,7}\] ?$")  # of mpiexec, in front of the message


def without_log(text: str, hosts: Collection[str] = ()) -> tuple[str, bool]:
    """(text before a library's message, whether there was one). hosts: see ``log_hosts``."""
    if not any(mark in text for mark in _MARKS) and " [" not in text:
        return text, False
    before = None
    if hosts and (message := _MESSAGE.search(text)):
        start = text[: message.end(1)]
        names = [name for name in hosts if start.endswith(name)]
        before = start.removesuffix(max(names, key=len)) if names else None
    if before is None:
        match = _LOG.search(text)
        if match is None:
            return text, False
        end = match.start()
        if end and text[end - 1].isspace() and (operation := _OPERATION.match(text, end)):
            end = operation.end()
        before = text[:end]
    return _LABEL_BEFORE.sub("", before), True


def is_message(text: str) -> bool:
    """Whether a line is a message of NCCL as a whole."""
    return bool(_MESSAGE.match(text))


def log_hosts(lines: Iterable[str]) -> set[str]:
    """The hosts that begin NCCL's messages here; of cut lines the common end of the names."""
    whole: set[str] = set()
    cut: dict[str, list[str]] = {}
    for line in lines:
        for message in _MESSAGE.finditer(line):
            if message.start() == 0:
                whole.add(message[1])
            else:
                cut.setdefault(message[2], []).append(message[1])
    if whole:
        return whole
    hosts = set()
    for ends in cut.values():
        if len(ends) > 1:
            backwards = [end[::-1] for end in ends]
            hosts.add(os.path.commonprefix(backwards)[::-1])  # noqa: RUF071 (no paths)
    return hosts - {""}


_NARROWEST, _LEAST_WRAPPED = 40, 2


def wrapping_width(lines: Iterable[str]) -> int:
    """The width of the terminal that wrapped these lines; 0 if none did."""
    lengths = Counter(len(text) for text in lines)
    width = max(lengths, default=0)
    return width if width >= _NARROWEST and lengths[width] >= _LEAST_WRAPPED else 0


def unwrapped(lines: Iterable[Line], width: int) -> Iterator[Line]:
    """Join lines that a terminal of this width wrapped. Each has the number of its first line."""
    first, whole = 0, ""
    for number, text in lines:
        first = first or number
        whole += text
        if len(text) < width:
            yield first, whole
            first, whole = 0, ""
    if whole:
        yield first, whole


@dataclass
class DocumentPart:
    """One output in an issue, a mail or a note. title: the last line of text above it."""

    title: str = ""
    lines: list[Line] = field(default_factory=list)


_FENCE = re.compile(r"\s{0,3}(?:> ?)?(```+|~~~+)\s*[\w+-]*\s*$")
_TITLE = 100  # characters


def document_parts(lines: Iterable[Line]) -> list[DocumentPart]:
    """The blocks between fences of Markdown, and the texts between these; [] without any fence."""
    parts = [DocumentPart()]
    fence = title = ""
    for number, text in lines:
        match = _FENCE.match(text)
        if match and (not fence or match[1].startswith(fence)):
            fence = "" if fence else match[1]
            parts.append(DocumentPart(title if fence else ""))
            title = ""
        else:
            parts[-1].lines.append((number, text))
            plain = " ".join(text.strip(" #*:>-").split())
            if not fence and plain:
                title = plain[:_TITLE]
    if len(parts) == 1:
        return []
    return [part for part in parts if any(text.strip() for _, text in part.lines)]
