"""Reads oneCCL's own log (CCL_LOG_LEVEL=info or debug), line by line.

oneCCL logs to stdout, so lines of other programs and processes stand in between. It writes a text
and its line end separately, so a line may have two messages. There is no list of the debug level's
messages: a line with oneCCL's prefix that has nothing of interest counts as known.

Formats: src/common/log/log.cpp and src/coll/selection/selector_impl.hpp of 2021.5 to 2021.14, and
logs of 2021.14 and 2022.2. 2021 writes ``2026:11:20-10:39:38:( 8729) |CCL_INFO| text`` (the number
of the thread), 2022 ``2026:11:20-10:52:48:20832:[0] |CCL_INFO| text`` (the rank once it is known).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from torchcoll.core.bounds import MOST_PROCESSES
from torchcoll.core.errors import UnreadableError
from torchcoll.core.result import CaseResult, Choice
from torchcoll.libraries.logged import LoggedCall, LoggedJob, Tally

# torch's collective -> names in oneCCL's log.
FUNCTIONS = {
    "all_reduce": ("allreduce",),
    "all_gather": ("allgather", "allgatherv"),
    "reduce_scatter": ("reduce_scatter",),
    "all_to_all": ("alltoall", "alltoallv"),
    "all_to_all_v": ("alltoallv",),
    "broadcast": ("bcast", "broadcast"),
    "reduce": ("reduce",),
    "gather": ("gather",),
    "scatter": ("scatter",),
}


class Selected(NamedTuple):
    """A line of a selection table: sizes in bytes, both inclusive; high None is no end."""

    collective: str
    table: str
    low: int
    high: int | None
    algorithm: str


@dataclass
class OneCclProcess:
    """What one process logged, or one of its threads.

    number: id of the process, or of the thread.
    thread: ``number`` is the id of a thread, as in 2021; a process may have several.
    changed: variable -> (value, default), for variables that are not at their default.
    crash: the signal that ended the process, such as ``Segmentation fault``.
    """

    number: int
    file: str = ""
    thread: bool = False
    rank: int | None = None
    size: int | None = None
    version: str = ""
    libfabric: str = ""
    transport: str = ""
    provider: str = ""
    launcher: str = ""
    changed: dict[str, tuple[str, str]] = field(default_factory=dict)
    selection: dict[Selected, None] = field(default_factory=dict)
    calls: Counter[LoggedCall] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    crash: str = ""


_PREFIX = re.compile(
    rb"\d{4}:\d\d:\d\d-\d\d:\d\d:\d\d:\s*(?:\(\s*)?(\d{1,10})(\))?(?::\[(\d{1,10})\])?\s"
    rb"\|CCL_(\w+)\|\s?"
    rb"|\|(INFO|WARN|ERROR|DEBUG)\|\s(?=\[\w+:\d+\])"  # the C-API loader's
)
_CHANGED = re.compile(r"value of (\w+) changed to be (.*?) \(default:(.*)\)")
# The effective value of a variable: rank 0 prints all of them at its first collective.
_VALUE = re.compile(r"(CCL_\w+|I_MPI_ROOT|FI_PROVIDER\w*): (.*)")
_COORD = re.compile(r"coord: global \[ idx (\d+), cnt (\d+) \]")
_CREATE = re.compile(r"create_communicator: size (\d+), rank (\d+)")
_SELECTED = re.compile(r"selected (?:hint )?algo: coll (\w+), count (\d+), algo ([a-z0-9_]+)$")
# A SYCL kernel with its size class (small, medium, ...); 2022 also has LL and names of kernels.
_KERNEL = re.compile(
    r"(?:invoking|\w+ selects) ([\w ]*?)\s?kernels?(?: (\w+))?,? (?:send_|recv_)?count: ?(\d+)"
)
_COLLECTIVE = re.compile(r"allreduce|allgatherv?|reduce_scatter|alltoallv?|broadcast|bcast|reduce")
_SELECTION = re.compile(r"(\w+) selection$")
_TABLE = re.compile(r"(\w[\w -]*) table$")
_RANGE = re.compile(r"\[(\d+|max) - (\d+|max)\]: (\w+)$")
_FACTS = (
    ("version", re.compile(r"library version: (.*)")),
    ("libfabric", re.compile(r"libfabric version: (.*)")),
    ("launcher", re.compile(r"process launcher: (\w+)")),
    ("provider", re.compile(r"provider: (\S+)")),
    ("transport", re.compile(r"(atl-\w+):")),
)
_ERROR_MARKERS = ("EXCEPTION", "CCL_ERROR", "Caught signal")
# Of UCX's handler of signals: [host:pid:thread:tid], with blanks after a short pid.
_CRASH = re.compile(r":(\d{1,10})\s*:\d+:\d+\] Caught signal \d+ \(([^:)]*)")
_LONGEST = 4096  # characters of a message that are read
_INSIDE_BLOCK = (b" ", b"{", b"}", b"\t", b"attr:", b"cpuset:", b"nodeset:")


class OneCclLogReader:
    """Reads one file: ``read`` takes lines, repeatedly, and ``processes`` has the result."""

    def __init__(self, file: str = "") -> None:
        self.file = file
        self.tally = Tally()
        self.processes: list[OneCclProcess] = []
        self._process_by_id: dict[int, OneCclProcess] = {}
        self._process: OneCclProcess | None = None  # process of the last line with a prefix
        self._collective = self._table = ""
        self._block = False  # a line without a prefix belongs to the message before it

    def read(self, lines: Iterable[bytes]) -> None:
        for raw in lines:
            kind = self._read_line(raw)
            self.tally.counts[kind] += 1
            if kind == "cut" or kind == "unknown":
                self.tally.note(raw)

    def _read_line(self, raw: bytes) -> str:
        if b"|CCL_" not in raw and b"| [" not in raw:
            return self._read_unprefixed(raw)
        matches = list(_PREFIX.finditer(raw))
        if not matches:
            return self._read_unprefixed(raw)
        kinds = []
        for match, end in zip(matches, [*(m.start() for m in matches[1:]), len(raw)], strict=True):
            text = raw[match.end() : end].decode("utf-8", "replace").rstrip()[:_LONGEST]
            kinds.append(self._read_message(match, text))
        self._block = True
        # Several messages in a line are complete: only the line end of the first came too late.
        return next(kind for kind in ("cut", "understood", "known") if kind in kinds)

    def _read_unprefixed(self, raw: bytes) -> str:
        """The kind of a line without a prefix: of the message before it, or of another program."""
        text = raw.decode("utf-8", "replace").strip()[:_LONGEST]
        process = self._process
        if process and self._collective and text:
            if match := _SELECTION.match(text):
                self._collective, self._table = match[1], ""
                return "understood"
            if match := _TABLE.match(text):
                self._table = match[1]
                return "understood"
            if self._table and (match := _RANGE.match(text)):
                low, high = (None if n == "max" else int(n) for n in (match[1], match[2]))
                line = Selected(self._collective, self._table, low or 0, high, match[3])
                process.selection[line] = None
                return "understood"
        if process and any(marker in text for marker in _ERROR_MARKERS):
            process.warnings[text] += 1
            if match := _CRASH.search(text):
                crashed = self._process_by_id.get(int(match[1]), process)
                crashed.crash = match[2].strip()
            self._block = False
            return "understood"
        # Blocks of oneCCL's messages: `atl-ofi:` and then { ... }, an hwloc object.
        if self._block and raw.startswith(_INSIDE_BLOCK):
            return "known"
        if text:
            self._block, self._collective = False, ""
        return "other"

    def _read_message(self, match: re.Match[bytes], text: str) -> str:
        level = (match[4] or match[5]).decode()
        number = int(match[1] or 0)
        process = self._process_by_id.get(number)
        if process is None:
            if len(self._process_by_id) >= MOST_PROCESSES:
                raise UnreadableError("log", self.file, f"at most {MOST_PROCESSES} processes")
            process = self._process_by_id[number] = OneCclProcess(
                number, self.file, thread=bool(match[2])
            )
            self.processes.append(process)
        self._process, self._collective = process, ""
        if match[3]:
            process.rank = int(match[3])
        if level == "ERROR" or "EXCEPTION" in text:
            process.warnings[text] += 1
            return "understood"
        if " changed to be " in text and (change := _CHANGED.search(text)):
            process.changed[change[1]] = change[2], change[3]
            return "understood"
        if "selected " in text or "invoking " in text or " selects " in text:
            return self._read_call(process, text)
        if text.endswith(("print:", "print: ")):
            self._collective = "?"  # its name is on the next line
            return "known"
        return self._read_fact(process, level, text)

    def _read_call(self, process: OneCclProcess, text: str) -> str:
        call = _parse_call(text)
        if call:
            process.calls[call] += 1
            return "understood"
        # `algo topo sycl` has no count, the end of a kernel repeats the line of its beginning, and
        # 2021 calls the selector once more with a count of 0.
        whole = text.endswith((" done", "topo sycl")) or ", count 0, algo " in text
        return "known" if whole or "algo: coll" not in text else "cut"

    def _read_fact(self, process: OneCclProcess, level: str, text: str) -> str:
        for pattern in (_COORD, _CREATE):
            if match := pattern.search(text):
                rank, size = (match[1], match[2]) if pattern is _COORD else (match[2], match[1])
                # A later, smaller size is that of a sub-communicator.
                if process.size is None or int(size) > process.size:
                    process.rank, process.size = int(rank), int(size)
                return "understood"
        if _VALUE.match(text):
            return "understood"
        for name, pattern in _FACTS:
            if match := pattern.match(text):
                setattr(process, name, match[1].strip())
                return "understood"
        if level == "WARN":
            process.warnings[text] += 1
            return "understood"
        return "known"


@lru_cache(maxsize=4096)
def _parse_call(text: str) -> LoggedCall | None:
    """Parse the call of a line; None for a line without an algorithm or with a count of 0."""
    if match := _SELECTED.search(text):
        function, count, algorithm = match.groups()
        return LoggedCall(function, int(count), algorithm, unit="elements") if int(count) else None
    match = _KERNEL.search(text)
    collective = _COLLECTIVE.search(text)
    if not match or not collective or text.endswith(" done") or not int(match[3]):
        return None
    if " selects sycl" in text:  # the next line names the kernel
        return None
    terms = [term for term in match[1].split() if term != collective[0]]
    name = match[2].removeprefix(f"{collective[0]}_") if match[2] else ""
    label = " ".join(dict.fromkeys((*terms, name))).strip()
    return LoggedCall(collective[0], int(match[3]), "sycl", label, unit="elements")


def choices_of(result: CaseResult, calls: Iterable[LoggedCall]) -> list[Choice]:
    """The distinct choices that oneCCL logged for a case, by numbers of elements: of the call, or
    of all ranks where the selector adds these up (allgatherv).
    """
    functions = FUNCTIONS.get(result.case.collective, ())
    sizes = {result.count, result.count * result.ranks} - {0}
    matching = [c for c in calls if c.function in functions and c.size in sizes]
    choices = [Choice(call.algorithm, call.protocol) for call in matching if result.ranks > 1]
    return list(dict.fromkeys(choices))


@dataclass
class OneCclJob(LoggedJob):
    """The processes of one run; where the log has ids of threads, each thread is an entry."""

    processes: list[OneCclProcess]

    @property
    def threads(self) -> int:
        """How many ids of threads the log has."""
        return sum(process.thread for process in self.processes)

    @property
    def whole(self) -> int | None:
        """The number of processes, threads with a rank included; None without any."""
        return sum(not p.thread or p.rank is not None for p in self.processes) or None

    @property
    def size(self) -> int | None:
        return max((p.size for p in self.processes if p.size is not None), default=None)

    @property
    def crashes(self) -> list[str]:
        """Who crashed, such as ``rank 1 (Segmentation fault)``, in the order of the ranks."""
        crashed = sorted((p for p in self.processes if p.crash), key=lambda p: p.rank or 0)
        return [
            f"{f'process {p.number}' if p.rank is None else f'rank {p.rank}'} ({p.crash})"
            for p in crashed
        ]

    def first(self, name: str) -> str:
        """The first value of an attribute that not every process has; '' if no process has it."""
        return next((value for p in self.processes if (value := getattr(p, name))), "")

    @property
    def selection(self) -> list[Selected]:
        return list(dict.fromkeys(line for p in self.processes for line in p.selection))


def jobs(readers: Sequence[OneCclLogReader]) -> list[OneCclJob]:
    """Group processes into jobs: of the same size, no rank twice, as oneCCL logs no id. One without
    a rank is put with the others of its file.
    """
    grouped: list[OneCclJob] = []
    for process in _processes(readers, ranked=True):
        for job in grouped:
            ranks = {p.rank for p in job.processes}
            if job.size == process.size and process.rank not in ranks:
                job.processes.append(process)
                break
        else:
            grouped.append(OneCclJob([process]))
    for process in _processes(readers, ranked=False):
        near = next((job for job in grouped if process.file in job.files), None)
        if near is None:
            grouped.append(OneCclJob([process]))
        else:
            near.processes.append(process)
    return grouped


def _processes(readers: Sequence[OneCclLogReader], ranked: bool) -> Iterator[OneCclProcess]:
    for reader in readers:
        for process in reader.processes:
            if (process.rank is not None and process.size is not None) is ranked:
                yield process
