"""Reads a text log: the lines that matter, what stands in front of each message, and what is
collected on the way (``LogScan``).

A log has millions of lines of which few matter: only lines with one of given texts are taken apart,
and those that follow a line while its reader asks for more.

Handlers of lines stand in modules by their source (torch_log.py, cluster_log.py, ...). Each is a
text that the line contains, a pattern, and a function of the scan, the line and the match.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import cut_text
from torchcoll.core.opening import open_to_read, signals_held
from torchcoll.core.traffic import Group
from torchcoll.core.variables import masked
from torchcoll.parts.postmortem.evidence import JobEvent, JobEvidence, Place
from torchcoll.parts.postmortem.texts import EVENTS
from torchcoll.reading.torch_names import torch_collective
from torchcoll.reading.writers import Writers, unwrapped, wrapping_width

_CHUNK = 1 << 20
# Of a file with very many lines that matter, as many are read, and then those of its end.
_MOST_LINES, _END_BYTES = 50_000, 2 << 20
LONGEST = 1 << 13  # bytes of a line that are read
_SAMPLE = 2500  # lines of the beginning and of the end
_NS = 10**9
_DAY = datetime.timedelta(days=1)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


@dataclass
class Line:
    """A message with what its prefixes say."""

    number: int
    text: str
    rank: int | None = None  # of the world
    local_rank: int | None = None  # of the host, as torchrun labels its workers
    node: str = ""
    pid: int | None = None  # of the process that writes
    when_ns: int | None = None  # since 1970
    kernel: bool = False  # whether the kernel writes it
    named: bool = False  # whether torch itself put the rank in front

    @property
    def stream(self) -> tuple[int | None, int | None, int | None]:
        """What tells the writers apart whose lines stand in one file."""
        return self.rank, self.local_rank, self.pid


# No hosts that label their lines; a time may be before them.
_PROGRAM = re.compile(r"(?:\S{1,40} ){0,3}?(?:srun|slurm\w+|mpirun|prterun): ")
# The times of prefixes, as reading/writers.py gives them: a date and time, a fraction, a zone.
_TIME = re.compile(r"\[?(.+?\d\d:\d\d:\d\d(?: \d{4})?)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?\]?$")
_FORMATS = ("%Y-%m-%d %H:%M:%S", "%b %d %H:%M:%S %Y")
_WITHOUT_YEAR = ("%m%d %H:%M:%S", "%b %d %H:%M:%S")  # of glog and of syslog


def time_ns(text: str, last: datetime.datetime | None = None) -> int | None:
    """Nanoseconds since 1970 of a time as logs have it; None for anything else. One without a zone
    is UTC. One without a year is the last such time before the day after ``last``.
    """
    match = _TIME.match(text)
    if match is None:
        return None
    date, fraction, zone = match.groups(default="")
    date = re.sub(r"(?<=\d)[T_](?=\d)", " ", date)
    dates = [_parsed(date, format, zone) for format in _FORMATS]
    for year in (last.year, last.year - 1) if last else ():
        without_year = [_parsed(f"{year} {date}", f"%Y {format}", "") for format in _WITHOUT_YEAR]
        dates += [when for when in without_year if when and last and when <= last + _DAY]
    when = next((when for when in dates if when), None)
    return None if when is None else int(when.timestamp()) * _NS + int(fraction.ljust(9, "0"))


def _parsed(text: str, format: str, zone: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.strptime(f"{text} {zone or '+0000'}", f"{format} %z")
    except ValueError:
        return None


_TAIL = 1 << 16  # bytes


class LineReader:
    """Takes prefixes off lines. path: tells the year of times that have none, by when the file was
    last written. begin: the first bytes of the file, which show whether it is labelled by rank.
    """

    def __init__(self, path: Path, begin: bytes) -> None:
        self._last = datetime.datetime.now(datetime.timezone.utc)
        try:
            written = os.stat(path).st_mtime
            self._last = datetime.datetime.fromtimestamp(written, datetime.timezone.utc)
        except (OSError, ValueError, OverflowError):
            pass
        lines = begin.decode("utf-8", "replace").splitlines()
        # torch's own names of ranks, which contradict those of ``srun -l``, may only be at the end.
        sample = [*lines[:_SAMPLE], *_last_lines(path)[-_SAMPLE:]]
        self._writers = Writers(text for text in sample if not _PROGRAM.match(text))

    def line(self, number: int, raw: bytes) -> Line:
        text = raw[:LONGEST].decode("utf-8", "replace").rstrip("\r\n")
        if "\r" in text:  # a progress bar is drawn again and again
            text = text.rpartition("\r")[2]
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        written = self._writers.split(number, text)
        return Line(
            number,
            written.text,
            written.rank,
            written.local_rank,
            written.node,
            written.pid,
            time_ns(written.time, self._last) if written.time else None,
            written.kernel,
            "[rank" in written.prefix,
        )


def _last_lines(path: Path) -> list[str]:
    """The lines at the end of a file; [] if it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            return file.read(_TAIL).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


@contextlib.contextmanager
def temporary_copy(pieces: Iterable[bytes]) -> Iterator[str]:
    """The path of a file with these bytes, which is removed at the end, and by a signal."""
    with contextlib.ExitStack() as stack:
        with signals_held():
            copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="torchcoll-"))
        copy.writelines(pieces)
        copy.flush()
        yield copy.name


_MOST_WRAPPED = 4 << 20  # bytes of a file that somebody may have pasted


@contextlib.contextmanager
def without_wraps(path: Path) -> Iterator[Path]:
    """The path, or that of a copy without the line breaks of a terminal. A joined line is followed
    by as many empty lines as it had breaks, so that all lines keep their numbers.
    """
    lines: list[str] = []
    if os.path.getsize(path) <= _MOST_WRAPPED:
        with open_to_read(path) as file:
            lines = file.read().decode("utf-8", "replace").split("\n")
    width = wrapping_width(lines)
    if not width or not _is_wrapped(lines, width):
        yield path
        return
    joined = [*unwrapped(enumerate(lines, 1), width), (len(lines) + 1, "")]
    pieces = (
        text.encode() + b"\n" * (following - number)
        for (number, text), (following, _) in itertools.pairwise(joined)
    )
    with temporary_copy(pieces) as copy:
        written = os.stat(path)
        os.utime(copy, ns=(written.st_atime_ns, written.st_mtime_ns))
        yield Path(copy)


def _is_wrapped(lines: Sequence[str], width: int) -> bool:
    """Whether the lines of this width go on in the next line, and are not merely equally long."""
    full = [pair for pair in itertools.pairwise(lines) if len(pair[0]) == width]
    in_words = [(a, b) for a, b in full if not a[-1:].isspace() and not b[:1].isspace() and b]
    anew = [a for a, b in in_words if a[:4] == b[:4] or Writers(()).split(0, b).prefix]
    goes_on = {a for a, _ in in_words}.difference(anew)
    return len(goes_on) > len(full) / 2 and len(full) < 0.8 * len(lines)


def lines_with(
    path: Path, texts: Sequence[bytes], more: Callable[[], bool]
) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, bytes) of each line of a file with one of ``texts``, and of the line
    after it while ``more`` says so. A line is cut after LONGEST bytes.

    Beyond _MOST_LINES such lines, only those in the last _END_BYTES of the file are yielded.
    """
    number, count, position = 1, 0, 0
    rest = b""
    with open_to_read(path) as file:
        end_starts = os.fstat(file.fileno()).st_size - _END_BYTES
        while True:
            chunk = file.read(_CHUNK)
            position += len(chunk)
            if not chunk and not rest:
                return
            block = rest + chunk
            end = block.rfind(b"\n") + 1 if chunk else len(block)
            if not end and len(block) < _CHUNK:
                rest = block
                continue
            # A line of more than a chunk goes on in the next block, as if it were another one.
            end = end or len(block)
            block, rest = block[:end], block[end:]
            if count < _MOST_LINES or position > end_starts:
                for item in _lines_of_block(block, number, texts, more):
                    count += 1
                    yield item
            number += block.count(b"\n")


def _lines_of_block(
    block: bytes, number: int, texts: Sequence[bytes], more: Callable[[], bool]
) -> Iterator[tuple[int, bytes]]:
    starts = {len(block)}
    for text in texts:
        position = block.find(text)
        while position >= 0:
            starts.add(block.rfind(b"\n", 0, position) + 1)
            end = block.find(b"\n", position)
            position = block.find(text, end) if end >= 0 else -1
    position, counted = 0, 0  # lines before ``counted`` are in ``number``
    for start in sorted(starts):
        while position <= start and position < len(block):
            if position < start and not more():
                position = start
                continue
            number += block.count(b"\n", counted, position)
            counted = position
            end = block.find(b"\n", position) + 1 or len(block)
            yield number, block[position : min(end, position + LONGEST)]
            position = end


_MOST_EVENTS = 5000  # of a file, each another one
_LONGEST_TEXT = 400  # characters of a quotation
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\[?((?:\d{1,3}\.){3}\d{1,3})\]?|\[([0-9a-fA-F:.]{3,45}(?:%\w+)?)\])[:<]\d{1,5}"
)
_DIGITS = re.compile(r"\d+")
_LOOPBACK = re.compile(r"127\.|::1$|0\.0\.0\.0|::ffff:127\.")

Handle = Callable[["LogScan", Line, "re.Match[str]"], object]
Handler = tuple[str, "re.Pattern[str]", Handle]


def addresses_in(text: str) -> tuple[str, ...]:
    """The hosts of ``10.0.0.2:37781``, ``[10.0.0.2]:37781`` and NCCL's ``10.0.0.2<37781>``, without
    the machine's own.
    """
    hosts = (match[1] or match[2] for match in _ADDRESS.finditer(text))
    return tuple(dict.fromkeys(host for host in hosts if not _LOOPBACK.match(host)))


def ranks_in(text: str) -> tuple[int, ...]:
    """The ranks of ``0, 2-4`` or ``0,2-4``, at most 4096."""
    ranks: list[int] = []
    for first, last in re.findall(r"(\d{1,7})(?:\s?-\s?(\d{1,7}))?", text):
        low, high = int(first), int(last or first)
        if high < MOST_RANKS:
            ranks += range(low, min(high + 1, low + 4096 - len(ranks)))
    return tuple(dict.fromkeys(ranks))


@dataclass
class LogScan:
    """State of reading one file."""

    shown: str  # its path relative to the folder
    file_rank: int | None = None  # the rank in its name
    node: str = ""  # the host in its name
    evidence: JobEvidence = field(default_factory=JobEvidence)
    wanted: int = 0  # further lines that are read whatever they contain
    terminated: dict[int, Line] = field(default_factory=dict)  # pid that torchrun itself ended
    exits: dict[int, JobEvent] = field(default_factory=dict)  # pid -> how it ended, without a rank
    tasks: list[JobEvent] = field(default_factory=list)  # of Slurm's tasks
    tasks_are_ranks: bool = True  # and not torchrun's agents
    closing: bool = False  # whether lines say which processes torchrun ended
    step_ends: bool = False  # whether Slurm is ending the step
    # Rank of the world minus rank on the host, of lines that have both.
    local_offsets: set[int] = field(default_factory=set)
    _seen: set[tuple[object, ...]] = field(default_factory=set)

    def rank_of(self, line: Line) -> int | None:
        """The rank that writes the line: of its prefix, else of the file's name."""
        return line.rank if line.rank is not None else self.file_rank

    def place(self, line: Line) -> Place:
        return Place(self.shown, line.number)

    def want(self, lines: int) -> None:
        self.wanted = max(self.wanted, lines)

    def add(self, kind: str, line: Line, text: str = "", **facts: object) -> JobEvent | None:
        """Add an event of the rank that writes the line, or of ``rank``.

        Returns None for one that is in the evidence already, as logs repeat themselves, and beyond
        _MOST_EVENTS.
        """
        facts.setdefault("rank", self.rank_of(line))
        facts.setdefault("pid", line.pid if facts["rank"] is None else None)
        facts.setdefault("node", line.node)
        facts.setdefault("when_ns", line.when_ns)
        text = " ".join((text or line.text)[: 2 * _LONGEST_TEXT].split())
        if facts["rank"] is None and line.local_rank is not None:
            facts["rank"] = -1 - line.local_rank  # becomes the rank of the world in the end
        key = (kind, facts["rank"], facts["pid"], facts["node"], _DIGITS.sub("", text[:160]))
        if key in self._seen or len(self._seen) >= _MOST_EVENTS:
            return None
        self._seen.add(key)
        text = cut_text(masked(text), _LONGEST_TEXT)
        event = JobEvent(kind, self.place(line), text, **facts)  # type: ignore[arg-type]
        self.evidence.events.append(event)
        return event

    def replace(self, old: JobEvent, **changes: object) -> None:
        """Exchange an event for one that knows more."""
        events = self.evidence.events
        for index in range(len(events) - 1, -1, -1):
            if events[index] is old:
                events[index] = replace(old, **changes)  # type: ignore[arg-type]
                return

    def last_event(self, kind: str, rank: int | None) -> JobEvent | None:
        """The latest event of a kind and rank."""
        events = reversed(self.evidence.events)
        return next((e for e in events if e.kind == kind and e.rank == rank), None)

    def group(self, name: str, description: str = "") -> str:
        """The name of a group, which is noted; the default group is ``0``."""
        name = "0" if description == "default_pg" or name == "default_pg" else name
        noted = self.evidence.groups.get(name)
        if noted is None or (description and not noted.description):
            self.evidence.groups[name] = Group(name, description=description)
        return name

    def process(self, rank: int, pid: int | None, node: str) -> None:
        """Note which process, on which node, a rank is."""
        if 0 <= rank < MOST_RANKS:
            if pid is not None and pid > 0:
                self.evidence.pids.setdefault(rank, pid)
            if node:
                self.evidence.nodes.setdefault(rank, node)

    def numbers(self, rank: int, group: str, enqueued: int, completed: int) -> None:
        """Note how far a rank was in a group; -1 means that it made no call."""
        for numbers, number in (
            (self.evidence.last_number, enqueued),
            (self.evidence.last_completed, completed),
        ):
            if number >= 0:
                key = (rank, group)
                numbers[key] = max(number, numbers.get(key, 0))


def signal_named(text: str) -> int | None:
    """The signal of ``Segmentation fault`` or ``Killed (core dumped)``; None for another text."""
    for number in signal.valid_signals():
        name = signal.strsignal(number)
        if name and text.replace("-", " ").startswith(name):
            return int(number)
    return None


def adds(kind: str, signal_name: str = "", of_kernel: bool = False) -> Handle:
    """A handler that adds an event of no rank, with what the groups of the pattern name: ``pid``,
    ``node``, and the job of Slurm as ``slurm``. of_kernel: only of a line in a log of the kernel.
    """
    number = int(signal.Signals[signal_name]) if signal_name else None

    def handle(scan: LogScan, line: Line, match: re.Match[str]) -> None:
        if of_kernel and not (line.kernel or scan.node):
            return
        names = match.groupdict()
        if names.get("slurm"):
            scan.evidence.identities.add(f"slurm {names['slurm']}")
        pid = int(names["pid"]) if names.get("pid") else None
        node = names.get("node") or line.node or scan.node
        scan.add(kind, line, rank=None, pid=pid, node=node, signal=number)

    return handle


def says(kind: str) -> Handle:
    """A handler that adds an event of the rank that writes the line."""
    return lambda scan, line, match: scan.add(kind, line)


def wants(lines: int) -> Handle:
    """A handler of a line with which a reader of several lines begins: reads as many after it."""
    return lambda scan, line, match: scan.want(lines)


EVENT_HANDLERS: tuple[Handler, ...] = tuple(
    (text, entry["pattern"], adds(entry["kind"], entry.get("signal", ""), "of_kernel" in entry))
    for entry in EVENTS
    for text in entry["texts"]
)

# What an error says.

_WATCHDOG = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: "
    r"Work\w{1,20}\((?:SeqNum=(\d{1,18}), )?OpType=(\w{1,60})"
)
_FINGERPRINT = re.compile(
    r"Rank (\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(\d{1,18}),? ?)?OpType=(\w{1,60})"
)
_DIFFERENCES = re.compile(
    r"(Op type: \S{1,80} \S{1,60}|Sequence number: \S{1,40} \S{1,40}|Tensor shapes: .{1,200}?"
    r"(?=  |$)|Tensor dtypes: \S{1,60} \S{1,60})"
)
_BARRIER = re.compile(r"Ranks? ([\d, ]{1,4000}?) failed to pass monitoredBarrier")
_SPEAKER = re.compile(
    r"\[Rank (\d{1,7})\]|\bRank (\d{1,7})(?: successfully| timed out in|: found NaN)"
)


def facts_of(text: str) -> dict[str, Any]:
    """Fields of a JobEvent for an error with this text: about, rank, number, collective, addresses.

    rank is missing where the text does not say whose it is.
    """
    facts: dict[str, Any] = {}
    if match := _WATCHDOG.search(text):
        facts["rank"] = int(match[1])
        facts["collective"] = torch_collective(match[3].lower())
        if match[2] and facts["collective"] not in ("send", "recv"):
            facts["number"] = int(match[2])
    elif fingerprints := _FINGERPRINT.findall(text):
        facts["rank"] = int(fingerprints[0][0])
        facts["about"] = tuple(int(rank) for rank, _, _ in fingerprints[1:2])
        facts["collective"] = torch_collective(fingerprints[0][2].lower())
    elif match := _BARRIER.search(text):
        facts["about"] = ranks_in(match[1])
        facts["collective"] = "monitored_barrier"
    if "rank" not in facts and (speaker := _SPEAKER.search(text)):
        facts["rank"] = int(speaker[1] or speaker[2])
    if addresses := addresses_in(text):
        facts["addresses"] = addresses
    return facts


def quotation(text: str) -> str:
    """The part of a text that tells: of a mismatch of torch's debug mode, what differs."""
    head, separator, aspects = text.partition("Collectives differ in the following aspects:")
    if not separator:
        return text
    ranks = [rank for rank, _, _ in _FINGERPRINT.findall(head)]
    first = _DIFFERENCES.search(aspects.replace("\t", "  "))
    what = first[1].strip() if first else aspects.strip()
    names = f" Rank {ranks[0]} ... but Rank {ranks[1]} ..." if len(ranks) > 1 else ""
    return f"Detected mismatch between collectives on ranks.{names} {what}"
