"""What the files of a dead job say, as plain values: the readers fill it, the diagnosis reads it.

A fact is kept with the file and line that it comes from. Nothing here concludes anything.

A reader is a module of this package with two functions. ``recognizes(path, begin)`` says whether a
file, of which ``begin`` are the first 64 KiB, is of its format. ``read_evidence(path, shown)``
returns a JobEvidence for each job that the file contains; ``shown`` is the path relative to the
folder.
``jobs.py`` merges what the files say of one job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import UnreadableError
from torchcoll.parts.postmortem.texts import Text

# States of a call, in their order.
STATES = ("scheduled", "started", "completed")
# What an event can be. The rank of an event is the one that it happened to, or that says it;
# ``about`` are ranks that its text blames.
EVENT_KINDS = (
    "exception",  # a Python exception ended the rank
    "out_of_memory",  # of the device, or a MemoryError
    "disk_full",  # no space left on a device
    "killed",  # by a signal, or by the kernel for its memory
    "exit",  # the launcher reports an exit code
    "canceled",  # by the scheduler or by a person: time limit, scancel, eviction
    "node_failed",  # the scheduler or the kernel lost the node
    "timeout",  # a collective did not end in time
    "peer_lost",  # a connection was closed or reset by another rank
    "mismatch",  # torch or the library found ranks that call different things
    "link",  # a network device or link reported a fault
    "stack",  # where the Python code of a rank stood
    "ending",  # the rank ended as it should
    "unanswered",  # NCCL's RAS got no answer from the process of the rank
    "unequal_counts",  # of operations that ranks launched, by NCCL's RAS; about: may be behind
    "ras_error",  # of the rank's communicator, by NCCL's RAS; about: ranks that may be the cause
    "warning",  # of NCCL or oneCCL, that no other kind fits
    "all_answered",  # NCCL's RAS got an answer from all ranks, and has nothing to report
)
LOGS = ("stderr", "stdout", "log")  # kinds of files in which a rank itself speaks
# Errors of a rank itself, which end it if nobody handles them.
ENDED_BY_ITSELF = ("exception", "out_of_memory", "disk_full")
# What RAS says of a rank. It is not what the rank itself, or its launcher, writes.
RAS_KINDS = ("unanswered", "unequal_counts", "ras_error", "all_answered")


@dataclass(frozen=True)
class Place:
    """Where a fact was read. path: relative to the folder; line: from 1, None for a whole file."""

    path: str
    line: int | None = None

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}:{self.line}"


@dataclass(frozen=True)
class GroupSeen:
    """A process group as a rank knew it. ranks: of the world, in the order of the group; () where
    not known.
    """

    name: str
    ranks: tuple[int, ...] = ()
    description: str = ""


@dataclass(frozen=True)
class CallSeen:
    """One call in the memory of one rank.

    number: which call of its group on this rank it is, from 1, as torch's ``collective_seq_id``;
    of send and recv their own count. collective: a name of core/collectives.py, ``send``,
    ``recv``, or torch's own. sizes_in, sizes_out: shapes of the tensors, None where not known.
    state: one of STATES. reliable_state: whether the source records states at all (gloo's Flight
    Recorder leaves completed calls as scheduled). peer: the other rank of the world of send and
    recv. created_ns: when it was issued, in ns since 1970 on the rank's own clock.
    origin: the line of the user's code that made it, as ``folder/file.py:28 function``; '' where
    not recorded.
    """

    rank: int
    group: str
    number: int
    collective: str
    place: Place
    sizes_in: tuple[tuple[int, ...], ...] | None = None
    sizes_out: tuple[tuple[int, ...], ...] | None = None
    dtype: str | None = None
    state: str = "scheduled"
    reliable_state: bool = True
    peer: int | None = None
    created_ns: int | None = None
    duration_ns: int | None = None
    origin: str = ""


@dataclass(frozen=True)
class JobEvent:
    """A line, or a few, that say what happened.

    kind: one of EVENT_KINDS. rank: of the world, None where not known. node: '' where not known.
    text: one line, a quotation in the words of the source. about: ranks of the world that the text
    blames. group, number, collective: of the call that it names. when_ns: since 1970. signal: its
    number. pid: the process that it happened to. addresses: hosts that it names, such as the peer
    of a connection. ranks: how many ranks the job has by the source, of ``unanswered``. fatal:
    whether torch's excepthook printed it, which marks exceptions that nobody handled; None where
    that is not known.
    """

    kind: str
    place: Place
    text: str
    rank: int | None = None
    node: str = ""
    about: tuple[int, ...] = ()
    group: str | None = None
    number: int | None = None
    collective: str | None = None
    ranks: int | None = None
    when_ns: int | None = None
    signal: int | None = None
    exit_code: int | None = None
    pid: int | None = None
    addresses: tuple[str, ...] = ()
    fatal: bool | None = None


@dataclass(frozen=True)
class FileRead:
    """A file that said something. what: such as ``Flight Recorder dump`` or ``stderr``."""

    path: str
    what: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class TextMatch:
    """A text of texts.TEXTS that a file has.

    groups, names: what its pattern found. excerpt: its line. rank: of the world, that writes the
    line. host, device: of the process of NCCL that writes it.
    """

    text: Text
    groups: tuple[str, ...]
    names: Mapping[str, str]
    place: Place
    excerpt: str
    rank: int | None = None
    host: str = ""
    device: str = ""


WaitedCall = tuple[int, str, int]


@dataclass
class LogTexts:
    """What the known texts of logs say.

    waits: rank -> the calls that its watchdog found unfinished: (number; collective; elements of
    its input, where these must be equal), with 0 for what is not known.
    reporting: ranks of which any line of a watchdog or a failed call is. seen: ranks that any line
    names as its writer; seen_local: the same of ranks of a host, as torchrun --tee names them.
    asides: clauses. last_progress: path -> last line that shows that a rank trains on.
    """

    findings: list[TextMatch] = field(default_factory=list)
    waits: dict[int, list[WaitedCall]] = field(default_factory=dict)
    reporting: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    seen_local: set[int] = field(default_factory=set)
    asides: list[str] = field(default_factory=list)
    last_progress: dict[str, int] = field(default_factory=dict)

    def add(self, other: LogTexts) -> None:
        """Take over what another file of the job says."""
        self.findings += other.findings
        for rank, calls in other.waits.items():
            mine = self.waits.setdefault(rank, [])
            mine += [call for call in calls if call not in mine]
        self.reporting |= other.reporting
        self.seen |= other.seen
        self.seen_local |= other.seen_local
        self.last_progress |= other.last_progress
        self.asides += [text for text in other.asides if text not in self.asides]

    def __bool__(self) -> bool:
        return bool(self.findings or self.waits)


@dataclass
class JobEvidence:
    """All that the files of one job say.

    identities: what distinguishes this job from others, as ``KIND VALUE``, such as ``slurm 4711``,
    ``torchelastic 8f3c``, ``capture 2026-11-24T03:00:00 1f2e``, ``communicator 0x5d2a``. Files with
    a common identity are of one job. first_ns, last_ns: the earliest and the latest time in it,
    since 1970. ranks: size of the world where a file states it, otherwise None. nodes: rank -> name
    of its node. pids: rank -> process. last_number: (rank, group) -> number of its last call, where
    a source states that without the call itself. last_completed: the same of the last call that
    completed. alive_ns: rank -> last time, since 1970, at which its process certainly ran: much
    earlier than that of other ranks, the process was stopped, dead or held by native code.
    addresses: address of a host, as connection errors name it -> name of the node.
    left_out: (path, why) of files that say nothing. texts: what known texts say.
    """

    name: str = ""
    identities: set[str] = field(default_factory=set)
    first_ns: int | None = None
    last_ns: int | None = None
    ranks: int | None = None
    nodes: dict[int, str] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    groups: dict[str, GroupSeen] = field(default_factory=dict)
    calls: list[CallSeen] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    last_number: dict[tuple[int, str], int] = field(default_factory=dict)
    last_completed: dict[tuple[int, str], int] = field(default_factory=dict)
    alive_ns: dict[int, int] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    files: list[FileRead] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    texts: LogTexts = field(default_factory=LogTexts)

    def check_ranks(self) -> None:
        """Raises UnreadableError for a rank, or a number of ranks, that no job has: the diagnosis
        looks at each rank up to it.
        """
        ranks = {*self.nodes, *self.pids, *self.alive_ns}
        ranks |= {
            rank for numbers in (self.last_number, self.last_completed) for rank, _ in numbers
        }
        ranks |= {rank for call in self.calls for rank in (call.rank, call.peer or 0)}
        ranks |= {rank for event in self.events for rank in (event.rank or 0, *event.about)}
        ranks |= {rank for group in self.groups.values() for rank in group.ranks}
        ranks |= {rank for file in self.files for rank in file.ranks}
        counts = [self.ranks or 0, *(event.ranks or 0 for event in self.events)]
        most, least = max(ranks, default=0), min(ranks, default=0)
        if least < 0 or most >= MOST_RANKS:
            rank = least if least < 0 else most
            raise UnreadableError("ranks", f"rank {rank}", f"0 to {MOST_RANKS - 1}")
        if max(counts) > MOST_RANKS:
            raise UnreadableError("ranks", max(counts), f"at most {MOST_RANKS}")

    def events_of(self, *kinds: str) -> Iterator[JobEvent]:
        return (event for event in self.events if event.kind in kinds)


# What the path of a log says.

_RANK_NAMES = (
    re.compile(r"(?:^|[^a-z])(?:rank|task|proc)[._-]?(\d{1,7})(?=[^\d]|$)", re.IGNORECASE),
    re.compile(r"(?:^|/)attempt_\d+/(\d{1,5})/(?:stdout|stderr)\.log"),
    re.compile(r"slurm-\d+_(\d{1,7})\.\w+$"),
    re.compile(r"(?:^|/)(\d{1,7})[./](?:log|err|out|txt|stdout|stderr)$"),
    re.compile(r"(?:^|/)(?:stdout|stderr|out|err|log)[._](\d{1,7})(?:\.\w{1,6})?$"),
)
_KERNEL_FILE = re.compile(
    r"dmesg|kern(?:el)?(?:\.log|\.txt|$)|syslog|messages|journal", re.IGNORECASE
)
_PLAIN_FOLDERS = re.compile(
    r"^(?:logs?|kernel|dmesg|syslog|system|nodes?|hosts?|kern|var|data|out|output|results?|\.|job.*|"
    r"attempt_\d+|\d+)?$",
    re.IGNORECASE,
)


def rank_of_path(shown: str) -> int | None:
    """The rank that a log is of, as its name or folder says; None where neither does."""
    path = shown.removesuffix(".gz")
    for pattern in _RANK_NAMES:
        if numbers := pattern.findall(path):
            rank = int(numbers[-1])
            return rank if rank < MOST_RANKS else None
    return None


def node_of_path(shown: str) -> str:
    """The host of a kernel's log, by its name (``dmesg-node07.txt``) or folder; '' for others."""
    name = Path(shown).name
    if not _KERNEL_FILE.search(name):
        return ""
    rest = _KERNEL_FILE.sub("", re.sub(r"(?:\.(?:txt|log|out|gz|\d+))+$", "", name), count=1)
    rest = rest.strip("._-")
    if rest:
        return rest
    folders = [part for part in Path(shown).parent.parts if not _PLAIN_FOLDERS.match(part)]
    return folders[-1] if folders else ""


def identities_of_path(shown: str) -> set[str]:
    """The job of a log by its name: Slurm's number, or torchrun's folder RUNID_xxxxxxxx."""
    identities = set()
    if match := re.search(r"(?:^|/)slurm[-_](\d{1,12})\b|(?:^|/)slurm[-_](\d{1,12})_", shown):
        identities.add(f"slurm {match[1] or match[2]}")
    match = re.search(r"(?:^|/)([^/]{1,80})_[a-z0-9_]{8}/attempt_\d+/", shown)
    if match and match[1] != "none":
        identities.add(f"torchelastic {match[1]}")
    return identities
