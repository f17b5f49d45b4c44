"""What is collected while a log is read: events, which rank is which process, and the Python
tracebacks that are open.

Handlers of lines stand in modules by their source (torch_log.py, cluster_log.py, ...). Each is a
text that the line contains, a pattern, and a function of the scan, the line and the match.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.variables import masked
from torchcoll.parts.postmortem.evidence import GroupSeen, JobEvent, JobEvidence, Place
from torchcoll.parts.postmortem.log_lines import Line

_MOST_EVENTS = 5000  # of a file, each another one
_LONGEST_TEXT = 400  # characters of a quotation
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\[?((?:\d{1,3}\.){3}\d{1,3})\]?|\[([0-9a-fA-F:.]{3,45}(?:%\w+)?)\])[:<]\d{1,5}"
)
_DIGITS = re.compile(r"\d+")
_LOOPBACK = re.compile(r"127\.|::1$|0\.0\.0\.0|::ffff:127\.")

Handle = Callable[["LogScan", Line, "re.Match[str]"], None]
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
    """State of reading one file.

    shown: its path relative to the folder. file_rank: the rank in its name. node: the host in its
    name, '' where there is none. wanted: how many further lines are read whatever they contain.
    terminated: pid -> line in which torchrun says that it ended the process itself. exits: pid ->
    event of torchrun that does not name the rank. tasks: events of Slurm's tasks. tasks_are_ranks:
    whether these are ranks, and not torchrun's agents. step_ends: whether Slurm is ending the step.
    oom_pids: processes that the kernel killed for their memory.
    """

    shown: str
    file_rank: int | None = None
    node: str = ""
    evidence: JobEvidence = field(default_factory=JobEvidence)
    wanted: int = 0
    terminated: dict[int, Line] = field(default_factory=dict)
    exits: dict[int, JobEvent] = field(default_factory=dict)
    tasks: list[JobEvent] = field(default_factory=list)
    tasks_are_ranks: bool = True
    step_ends: bool = False
    oom_pids: set[int] = field(default_factory=set)
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
        text = masked(text)
        text = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
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
            self.evidence.groups[name] = GroupSeen(name, (), description)
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
