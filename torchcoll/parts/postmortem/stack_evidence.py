"""Reads stacks: Python tracebacks and faulthandler's dumps in a log, where lines of several ranks
mix, and the dumps of py-spy (text and JSON) and of faulthandler in files of their own. Says where a
stack stands: in a collective, in a wait, in the data loader, or in user code.

py-spy dump: ``Process 4711: python train.py``, then a stack for each thread, innermost frame first.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.opening import open_to_read
from torchcoll.core.variables import masked
from torchcoll.parts.postmortem.evidence import (
    FileRead,
    JobEvent,
    JobEvidence,
    Place,
    identities_of_path,
    rank_of_path,
)
from torchcoll.parts.postmortem.log_lines import (
    Handler,
    Line,
    LogScan,
    facts_of,
    quotation,
    signal_named,
    wants,
)
from torchcoll.parts.postmortem.texts import kind_of
from torchcoll.reading.torch_names import torch_collective

_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|torch|torchcoll|lib/python[\d.]+|python\d(?:\.\d+)?|importlib|"
    r"threading\.py|selectors\.py|queue\.py|multiprocessing|concurrent|runpy\.py|_pytest|nptl|"
    r"socket\.py|ssl\.py|subprocess\.py|contextlib\.py)(?:/|$)|^<(?!string|stdin|module)|\.so(?:\.\d+)*$|"
    r"^(?:threading|selectors|queue|runpy|socket|subprocess|contextlib)\.py$"
)
# A module of Python itself, by its path or as py-spy shortens it.
_STANDARD = re.compile(r"(?:^|/(?:lib/)?python[\d.]+/)(\w+)(?:\.py$|/(?!site-|dist-))")
_PACKAGES = re.compile(r"(?:json|urllib|http|asyncio|encodings|sqlite3|email|xml|zipfile)/")
_WAITING_MODULES = re.compile(
    r"\b(?:threading|selectors|queue|multiprocessing|concurrent|subprocess|contextlib)\b"
)
# Of a call these only pass it on: the packages of torch, and what captures the call.
_PASSES_ON = re.compile(r"(?:^|/)(?:torch|torchcoll/(?:parts/)?training)/")
_DISTRIBUTED = re.compile(
    r"torch/distributed/(?:distributed_c10d|_functional_collectives|c10d_logger)"
)
# Functions in which a rank waits for others or for the device, where no collective is named. In the
# engine of autograd DDP and FSDP wait without a frame of Python.
_WAITS = re.compile(
    r"(?:^|\.)(?:wait|_wait_impl|synchronize|wait_tensor|monitored_barrier|wait_stream|"
    r"finalize_backward|wait_for_all|_engine_run_backward)$"
)
_LOADER = re.compile(r"torch/utils/data/|(?:^|/)dataloader\.py$|multiprocessing/queues\.py$")
_NAMES = {*COLLECTIVES, "monitored_barrier", "send", "recv", "isend", "irecv"}


@dataclass(frozen=True)
class Frame:
    """A frame: file as the source names it, line, and function."""

    file: str
    line: int | None
    function: str

    @property
    def is_user(self) -> bool:
        """Whether it is code of the user: not of Python, torch or an installed package."""
        shortened = "/" not in self.file or _PACKAGES.match(self.file)
        return not ((shortened and self.is_standard) or _LIBRARY.search(self.file))

    @property
    def is_standard(self) -> bool:
        """Whether it is code of Python that does what its caller asks for, as reading a file."""
        match = _STANDARD.search(self.file)
        standard = match is not None and match[1] in sys.stdlib_module_names
        return standard and not _WAITING_MODULES.search(self.file)


def shown_frame(frame: Frame) -> str:
    name = "/".join(frame.file.split("/")[-2:]) if "/" in frame.file else frame.file
    where = name if frame.line is None else f"{name}:{frame.line}"
    return f"{where} {frame.function}"


def origin(frames: Iterable[Frame]) -> Frame | None:
    """The frame that made a call, of a stack with the innermost frame first: the first that is
    neither of torch nor of torchcoll's capture. If there is none, it is the first frame.
    """
    innermost = None
    for frame in frames:
        if not _PASSES_ON.search(frame.file):
            return frame
        innermost = innermost or frame
    return innermost


def describe(frames: Sequence[Frame]) -> tuple[str, str | None]:
    """(one line, collective) of a stack, innermost frame first.

    collective: a name of core/collectives.py or ``send`` and the like if the stack is within a call
    of torch.distributed, ``wait`` if it waits without saying in which call, None otherwise.
    """
    if not frames:
        return "", None
    user = next((frame for frame in frames if frame.is_user), None)
    above = list(frames) if user is None else list(frames[: frames.index(user)])
    collective: str | None = None
    for frame in above:
        name = _collective(frame)
        if name is not None:
            collective = name
    loads = any(_LOADER.search(frame.file) for frame in above)
    if collective is None and not loads and any(_WAITS.search(f.function) for f in above):
        collective = "wait"
    where = [shown_frame(frames[0])]
    if user is not None and user is not frames[0]:
        where.append(f"called from {shown_frame(user)}")
    inside = False
    if user is not None and user is not frames[0] and all(frame.is_standard for frame in above):
        inside, where = True, [shown_frame(user), f"in {shown_frame(frames[0])}"]
    if collective is not None:
        state = "waits" if collective == "wait" else f"in {collective}"
    elif loads:
        state = "in the data loader"
    elif inside or user is frames[0]:
        state = "in user code"
    else:
        state = "in library code"
    return f"{state}: {', '.join(where)}", collective


def _collective(frame: Frame) -> str | None:
    if not (_DISTRIBUTED.search(frame.file) or "c10d" in frame.function):
        return None
    plain = frame.function.rpartition("::")[2].rpartition(".")[2]
    name = torch_collective(plain)
    return name if name in _NAMES or plain in _NAMES else None


_FOLLOWING = 400  # lines after the last one of a traceback in which it may go on
_MOST_FRAMES = 200
_MOST_OPEN = 4096
_HEAD = re.compile(r"(.*?)(Original |Exception Group )?Traceback \(most recent call last\):\s*$")
_FRAME = re.compile(r'\s{1,40}(?:\| ?)?File "([^"]{1,500})", line (\d{1,9}), in (.{1,200})')
_RAISED = re.compile(r"([A-Za-z_][\w.]{0,200})(?::\s(.*)|:)?$")
_CHAINED = (
    "During handling of the above exception",
    "The above exception was the direct cause",
)
_IGNORED = re.compile(r"Exception ignored in")
_SPAWNED = re.compile(  # torch.multiprocessing, Lightning
    r"(?:-- Process|DeadLock detected from rank:) (\d{1,6})\b(?: terminated with the following)?"
)
_FATAL = re.compile(r"Fatal Python error: (.{1,200})")

# Exceptions of launchers, which report what happened to a rank in their own words.
_OF_LAUNCHER = re.compile(
    r"ChildFailedError|SignalException|CalledProcessError|ProcessExitedException|ProcessRaisedException|Rendezvous\w+Error"
)
# Ends of a program that are none.
_NO_ERROR = re.compile(r"(?:SystemExit(?:: 0)?|StopIteration|GeneratorExit)$")


@dataclass
class _Traceback:
    """A traceback of which lines are still to come."""

    rank: int | None
    frames: list[Frame] = field(default_factory=list)
    ignored: bool = False
    chained: bool = False  # raised while another one was handled


class Tracebacks:
    """The open tracebacks of a log, one for each writer."""

    def __init__(self, scan: LogScan) -> None:
        self.scan = scan
        self._open: dict[object, _Traceback] = {}
        self._ignored: set[object] = set()
        self._chained: set[object] = set()
        self._spawned: dict[object, int] = {}

    def read(self, line: Line) -> bool:
        """Read a line; returns whether it is part of a traceback."""
        stream, text = line.stream, line.text
        if text.endswith("(most recent call last):") and (match := _HEAD.match(text)):
            if len(self._open) < _MOST_OPEN:
                rank = self._spawned.get(stream, self.scan.rank_of(line))
                self._open[stream] = _Traceback(
                    rank, ignored=stream in self._ignored, chained=stream in self._chained
                )
            self._ignored.discard(stream)
            self._chained.discard(stream)
            self.scan.want(_FOLLOWING)
            return True
        if text.startswith(_CHAINED):
            self._chained.add(stream)
            return True
        if _IGNORED.match(text):
            self._ignored.add(stream)
            return True
        if match := _SPAWNED.search(text):
            self._spawned[stream] = int(match[1])
            return True
        traceback = self._open.get(stream)
        if traceback is None:
            return False
        if match := _FRAME.match(text):
            if len(traceback.frames) < _MOST_FRAMES:
                traceback.frames.append(Frame(match[1], int(match[2]), match[3].strip()))
            self.scan.want(_FOLLOWING)
            return True
        if text.startswith((" ", "|", "\t")) or not text.strip():
            return True
        match = _RAISED.match(text)
        if match is None:
            return False
        del self._open[stream]
        self._raised(traceback, line, text)
        return True

    def _raised(self, traceback: _Traceback, line: Line, text: str) -> None:
        """Add the event of an exception. text: its name and message; line: where its name is."""
        name = text.partition(":")[0].strip()
        if traceback.ignored or not traceback.frames or _OF_LAUNCHER.search(name):
            return
        if _NO_ERROR.match(text) or not _is_exception(name):
            return
        kind = kind_of(text)
        if name == "KeyboardInterrupt":
            # A person ended the job, which shows where the rank stood.
            if not traceback.chained:
                where, collective = describe(list(reversed(traceback.frames)))
                self.scan.add("stack", line, where, rank=traceback.rank, collective=collective)
            return
        user = next((f for f in reversed(traceback.frames) if f.is_user), traceback.frames[-1])
        facts = facts_of(text)
        rank = traceback.rank if traceback.rank is not None else facts.get("rank")
        facts.update(rank=rank, when_ns=None, pid=line.pid if rank is None else None)
        # NCCL's calls do not wait, so an error of NCCL is of an earlier call.
        if kind in ("timeout", "peer_lost") and "NCCL error" not in text:
            facts.setdefault("collective", describe(list(reversed(traceback.frames)))[1])
        event = self.scan.add(kind, line, f"{quotation(text)} [{shown_frame(user)}]", **facts)
        if event is not None and not traceback.chained:
            self.scan.replace(event, fatal=line.named)


def _is_exception(name: str) -> bool:
    last = name.rpartition(".")[2]
    return "." in name or last[:1].isupper() or last in ("error", "timeout")


def _fatal(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    number = signal_named(match[1])
    scan.add("exception" if number is None else "killed", line, match[0], signal=number)
    scan.want(_FOLLOWING)


HANDLERS: tuple[Handler, ...] = (
    ("Fatal Python error: ", _FATAL, _fatal),
    ("Traceback (most recent", re.compile(""), wants(0)),
    ("Exception ignored in", _IGNORED, wants(0)),
    ("terminated with the following error", _SPAWNED, wants(0)),
)


# Files of py-spy and faulthandler.

_WHAT = "stack dump"
_MOST_BYTES = 64 << 20
_PROCESS = re.compile(r"Process (\d{1,10}): ?(.*)")
_SPY_THREAD = re.compile(
    r'Thread (?:0x[0-9A-Fa-f]+|\d{1,20})(?: \([\w+ ]{1,30}\))?(?:: "(.{0,100})")?$'
)
_SPY_FRAME = re.compile(r"    (\S.{0,300}?) \((.{1,500}?)(?::(\d{1,9}))?\)$")
_FAULT_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(.{0,60})\])? \(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'  File "(.{1,500})", line (\d{1,9}) in (.{1,200})')
_SPY_HEAD = re.compile(
    rb"(?:\A|\n)(?:Process \d+: .*\n(?:Python v|\s*\n)|Thread \d+ \((?:idle|active))"
)
_FAULT_HEAD = re.compile(
    rb"\A(?:Timeout \(.{5,20}\)!\s*\n)?(?:Current thread|Thread) 0x[0-9a-f]+"
    rb".{0,70}most recent call first"
)


def recognizes(path: Path, begin: bytes) -> bool:
    return bool(_SPY_HEAD.search(begin[:4096]) or _FAULT_HEAD.match(begin))


def read_evidence(path: Path, shown: str) -> list[JobEvidence]:
    """Where the main thread of each process of the file stood."""
    with open_to_read(path) as file:
        data = file.read(_MOST_BYTES)
    evidence = JobEvidence(identities=identities_of_path(shown))
    file_rank = rank_of_path(shown)
    stacks = list(_stacks(data.decode("utf-8", "replace")))
    several = len({pid for _, pid, _, _ in stacks}) > 1
    for line, pid, command, frames in stacks:
        rank = None if several else file_rank
        if rank is None and (match := re.search(r"--rank[= ](\d{1,7})", command)):
            rank = int(match[1])
        rank = rank if rank is None or rank < MOST_RANKS else None
        text, collective = describe(frames)
        if text:
            place = Place(shown, line)
            event = JobEvent("stack", place, masked(text), rank, collective=collective, pid=pid)
            evidence.events.append(event)
        if rank is not None and pid is not None:
            evidence.pids[rank] = pid
    ranks = () if several or file_rank is None else (file_rank,)
    evidence.files = [FileRead(shown, _WHAT, ranks)]
    return [evidence] if evidence.events else []


_OUTERMOST = ("<module>", "_run_module_as_main")


def _stacks(text: str) -> Iterator[tuple[int, int | None, str, list[Frame]]]:
    """Yield (line, process, its command, frames of its main thread) of each process."""
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if _PROCESS.match(line)]
    for begin, end in pairwise([*([] if heads[:1] == [0] else [0]), *heads, len(lines)]):
        if main := main_thread(lines[begin:end]):
            process = _PROCESS.match(lines[begin])
            pid, command = (int(process[1]), process[2]) if process else (None, "")
            yield begin + main[0], pid, command, main[1]


def main_thread(lines: Iterable[str]) -> tuple[int, list[Frame]] | None:
    """(line, frames with the innermost first) of the main thread of one process: that with its
    name, or else the one whose outermost frame is a module. faulthandler writes the oldest thread
    last.
    """
    threads: list[tuple[int, str, list[Frame]]] = []
    is_faulthandler = False
    for number, line in enumerate(lines, 1):
        if match := _SPY_THREAD.match(line):
            threads.append((number, match[1] or "", []))
        elif match := _FAULT_THREAD.match(line):
            threads.append((number, match[1] or "", []))
            is_faulthandler = True
        elif threads and len(threads[-1][2]) < _MOST_FRAMES:
            if match := _SPY_FRAME.match(line):
                where = int(match[3]) if match[3] else None
                threads[-1][2].append(Frame(match[2], where, match[1]))
            elif match := _FAULT_FRAME.match(line):
                threads[-1][2].append(Frame(match[1], int(match[2]), match[3]))
    named = [thread for thread in threads if thread[1] == "MainThread"]
    modules = [t for t in threads if t[2] and t[2][-1].function in _OUTERMOST]
    oldest = threads[-1:] if is_faulthandler else threads[:1]
    return next(((line, frames) for line, _, frames in (*named, *modules, *oldest)), None)
