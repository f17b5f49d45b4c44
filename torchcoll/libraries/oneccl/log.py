"""oneCCL's own log (CCL_LOG_LEVEL=info or debug): what each process tells of itself.

A pure reader, line by line. oneCCL logs to stdout, so lines of other programs and of other
processes stand in between, and two in one line: it writes a text and its line end apart. Of the
debug level's texts there is no list: a line with oneCCL's prefix that tells nothing that is needed
counts as known.

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
from torchcoll.libraries.logged import LoggedCall, Tally

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
    """What one process tells, or one thread of it. changed: variable -> (value, default), of those
    that are not the default. values: every effective value (rank 0 prints them at its first
    collective). thread: ``number`` is a thread's, as in 2021; one of several in a process.
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
    values: dict[str, str] = field(default_factory=dict)
    selection: dict[Selected, None] = field(default_factory=dict)
    calls: Counter[LoggedCall] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)


_PREFIX = re.compile(
    rb"\d{4}:\d\d:\d\d-\d\d:\d\d:\d\d:\s*(?:\(\s*)?(\d{1,10})(\))?(?::\[(\d{1,10})\])?\s"
    rb"\|CCL_(\w+)\|\s?"
    rb"|\|(INFO|WARN|ERROR|DEBUG)\|\s(?=\[\w+:\d+\])"  # the C-API loader's
)
_CHANGED = re.compile(r"value of (\w+) changed to be (.*?) \(default:(.*)\)")
_VALUE = re.compile(r"(CCL_\w+|I_MPI_ROOT|FI_PROVIDER\w*): (.*)")
_COORD = re.compile(r"coord: global \[ idx (\d+), cnt (\d+) \]")
_CREATE = re.compile(r"create_communicator: size (\d+), rank (\d+)")
_SELECTED = re.compile(r"selected (?:hint )?algo: coll (\w+), count (\d+), algo ([a-z0-9_]+)$")
# A SYCL kernel: sizes are small, medium and so on; 2022 has LL and names of kernels too.
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
_TROUBLE = ("EXCEPTION", "CCL_ERROR", "Caught signal")
_LONGEST = 4096  # of a message that is read: a number of more digits is none
_INSIDE_BLOCK = (b" ", b"{", b"}", b"\t", b"attr:", b"cpuset:", b"nodeset:")


class OneCclLogReader:
    """Reads one file: ``read`` takes its lines, any number of times; ``processes`` has the rest."""

    def __init__(self, file: str = "") -> None:
        self.file = file
        self.tally = Tally()
        self.processes: list[OneCclProcess] = []
        self._known: dict[int, OneCclProcess] = {}
        self._process: OneCclProcess | None = None  # of the last line with a prefix
        self._collective = self._table = ""
        self._block = False  # the line belongs to the message before it

    def read(self, lines: Iterable[bytes]) -> None:
        for raw in lines:
            kind = self._any(raw)
            self.tally.counts[kind] += 1
            if kind == "cut" or kind == "unknown":
                self.tally.note(raw)

    def _any(self, raw: bytes) -> str:
        if b"|CCL_" not in raw and b"| [" not in raw:
            return self._other(raw)
        matches = list(_PREFIX.finditer(raw))
        if not matches:
            return self._other(raw)
        kinds = []
        for match, end in zip(matches, [*(m.start() for m in matches[1:]), len(raw)], strict=True):
            text = raw[match.end() : end].decode("utf-8", "replace").rstrip()[:_LONGEST]
            kinds.append(self._message(match, text))
        self._block = True
        # Several are whole, but for the line end that came too late.
        return next(kind for kind in ("cut", "understood", "known") if kind in kinds)

    def _other(self, raw: bytes) -> str:
        """A line without a prefix: of a block of the line before, or of another program."""
        text = raw.decode("utf-8", "replace").strip()[:_LONGEST]
        process = self._process
        if process and self._collective and text:
            if found := _SELECTION.match(text):
                self._collective, self._table = found[1], ""
                return "understood"
            if found := _TABLE.match(text):
                self._table = found[1]
                return "understood"
            if self._table and (found := _RANGE.match(text)):
                low, high = (None if n == "max" else int(n) for n in (found[1], found[2]))
                line = Selected(self._collective, self._table, low or 0, high, found[3])
                process.selection[line] = None
                return "understood"
        if process and any(word in text for word in _TROUBLE):
            process.warnings[text] += 1
            self._block = False
            return "understood"
        # What a block of oneCCL looks like: `atl-ofi:` and then { ... }, an hwloc object.
        if self._block and raw.startswith(_INSIDE_BLOCK):
            return "known"
        if text:
            self._block, self._collective = False, ""
        return "other"

    def _message(self, match: re.Match[bytes], text: str) -> str:
        level = (match[4] or match[5]).decode()
        number = int(match[1] or 0)
        process = self._known.get(number)
        if process is None:
            if len(self._known) >= MOST_PROCESSES:
                raise UnreadableError("log", self.file, f"at most {MOST_PROCESSES} processes")
            process = self._known[number] = OneCclProcess(number, self.file, thread=bool(match[2]))
            self.processes.append(process)
        self._process, self._collective = process, ""
        if match[3]:
            process.rank = int(match[3])
        if level == "ERROR" or "EXCEPTION" in text:
            process.warnings[text] += 1
            return "understood"
        if " changed to be " in text and (found := _CHANGED.search(text)):
            process.changed[found[1]] = found[2], found[3]
            return "understood"
        if "selected " in text or "invoking " in text or " selects " in text:
            return self._call(process, text)
        if text.endswith(("print:", "print: ")):
            self._collective = "?"  # its name is on the next line
            return "known"
        return self._fact(process, level, text)

    def _call(self, process: OneCclProcess, text: str) -> str:
        call = _call_of(text)
        if call:
            process.calls[call] += 1
            return "understood"
        # `algo topo sycl` has no count, what a kernel has done was said when it began, and 2021
        # asks the selector once more with a count of 0.
        whole = text.endswith((" done", "topo sycl")) or ", count 0, algo " in text
        return "known" if whole or "algo: coll" not in text else "cut"

    def _fact(self, process: OneCclProcess, level: str, text: str) -> str:
        for pattern in (_COORD, _CREATE):
            if found := pattern.search(text):
                rank, size = (found[1], found[2]) if pattern is _COORD else (found[2], found[1])
                # A later, smaller one is a sub-communicator's.
                if process.size is None or int(size) > process.size:
                    process.rank, process.size = int(rank), int(size)
                return "understood"
        if found := _VALUE.match(text):
            process.values[found[1]] = found[2]
            return "understood"
        for name, pattern in _FACTS:
            if found := pattern.match(text):
                setattr(process, name, found[1].strip())
                return "understood"
        if level == "WARN":
            process.warnings[text] += 1
            return "understood"
        return "known"


@lru_cache(maxsize=4096)
def _call_of(text: str) -> LoggedCall | None:
    """The call of a line; None for one that names no algorithm, no count or a count of 0."""
    if found := _SELECTED.search(text):
        function, count, algorithm = found.groups()
        return LoggedCall(function, int(count), algorithm, unit="elements") if int(count) else None
    found = _KERNEL.search(text)
    collective = _COLLECTIVE.search(text)
    if not found or not collective or text.endswith(" done") or not int(found[3]):
        return None
    if " selects sycl" in text:  # the kernel itself is named by the line that follows
        return None
    words = [word for word in found[1].split() if word != collective[0]]
    name = found[2].removeprefix(f"{collective[0]}_") if found[2] else ""
    label = " ".join(dict.fromkeys((*words, name))).strip()
    return LoggedCall(collective[0], int(found[3]), "sycl", label, unit="elements")


def choices_of(result: CaseResult, calls: Iterable[LoggedCall]) -> list[Choice]:
    """What oneCCL chose for a case, each choice once, of ``calls`` that its log has beside it.

    The log counts elements: of the call, or of all ranks where the selector adds up what each
    rank gives (allgatherv, alltoallv).
    """
    functions = FUNCTIONS.get(result.case.collective, ())
    sizes = {result.count, result.count * result.ranks} - {0}
    return list(
        {
            Choice(call.algorithm, call.protocol): None
            for call in calls
            if call.function in functions and call.size in sizes and result.ranks > 1
        }
    )


@dataclass
class OneCclJob:
    """Processes of one run, each of their threads by itself where the log numbers these."""

    processes: list[OneCclProcess]

    @property
    def threads(self) -> int:
        """How many numbers of threads the log has."""
        return sum(process.thread for process in self.processes)

    @property
    def whole(self) -> int | None:
        """How many processes these are: a thread that tells a rank stands for its process, and the
        others are threads of one of those. None where threads alone tell, and none its rank.
        """
        return sum(not p.thread or p.rank is not None for p in self.processes) or None

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(process.file for process in self.processes))

    @property
    def size(self) -> int | None:
        return max((p.size for p in self.processes if p.size is not None), default=None)

    @property
    def calls(self) -> Counter[LoggedCall]:
        return sum((process.calls for process in self.processes), Counter())

    @property
    def warnings(self) -> Counter[str]:
        return sum((process.warnings for process in self.processes), Counter())

    def first(self, name: str) -> str:
        """A fact that not every process tells."""
        return next((value for p in self.processes if (value := getattr(p, name))), "")

    @property
    def selection(self) -> list[Selected]:
        return list(dict.fromkeys(line for p in self.processes for line in p.selection))


def jobs(readers: Sequence[OneCclLogReader]) -> list[OneCclJob]:
    """The jobs of these files: as many processes as say that they are so many, no rank twice.

    oneCCL names no job. A process that does not say its rank (a thread of it, in 2021) goes with
    the others of its file.
    """
    found: list[OneCclJob] = []
    for process in _of(readers, ranked=True):
        for job in found:
            ranks = {p.rank for p in job.processes}
            if job.size == process.size and process.rank not in ranks:
                job.processes.append(process)
                break
        else:
            found.append(OneCclJob([process]))
    for process in _of(readers, ranked=False):
        near = next((job for job in found if process.file in job.files), None)
        if near is None:
            found.append(OneCclJob([process]))
        else:
            near.processes.append(process)
    return found


def _of(readers: Sequence[OneCclLogReader], ranked: bool) -> Iterator[OneCclProcess]:
    for reader in readers:
        for process in reader.processes:
            if (process.rank is not None and process.size is not None) is ranked:
                yield process
