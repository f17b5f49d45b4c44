"""What the files of a dead job say, as plain values: the readers fill it, the diagnosis reads it.

A fact is kept with the file and line that it comes from. Nothing here concludes anything.

A reader is a module with ``recognizes(path, begin)``, of the first 64 KiB of a file, and
``read_evidence(path, shown)``, a JobEvidence for each job in it; ``shown`` is its path relative to
the folder. ``job_folder.py`` merges what the files say of one job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import UnreadableError
from torchcoll.core.traffic import Group
from torchcoll.parts.postmortem.texts import Text

# States of a call, in their order.
STATES = ("scheduled", "started", "completed")
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
    origin: str = ""


@dataclass(frozen=True)
class JobEvent:
    """A line, or a few, that say what happened.

    kind: ``exception``, ``out_of_memory``, ``disk_full``, ``killed``, ``exit`` (with a code),
    ``canceled`` (by the scheduler or a person), ``node_failed``, ``timeout`` (of a call),
    ``peer_lost`` (a connection), ``mismatch``, ``link`` (a fault), ``stack`` (where Python stood),
    ``ending`` (as it should), ``warning`` (of a library), or one of RAS_KINDS.
    rank: of the world, that it happened to or that says it; None where not known, as node ''. text:
    one line, a quotation in the words of the source. about: ranks of the world that it blames.
    group, number, collective: of the call that it names. when_ns: since 1970. signal: its
    number. pid: the process that it happened to. addresses: hosts that it names, such as the peer
    of a connection. ranks: how many ranks the job has by the source, of ``unanswered``. fatal:
    whether torch's excepthook printed it, which marks exceptions that nobody handled; None where
    that is not known. alone_from: the first rank of the host, if only this rank of it failed.
    forced: whether torchrun killed it with SIGKILL, because SIGTERM had not ended it.
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
    alone_from: int | None = None
    forced: bool = False


@dataclass(frozen=True)
class FileRead:
    """A file that said something. what: such as ``Flight Recorder dump`` or ``stderr``."""

    path: str
    what: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class TextMatch:
    """A text of texts.TEXTS that a file has. groups, names: what its pattern found."""

    text: Text
    groups: tuple[str, ...]
    names: Mapping[str, str]
    place: Place
    excerpt: str  # its line
    rank: int | None = None  # of the world, that writes the line
    host: str = ""  # of the process of NCCL that writes it
    device: str = ""


# Number; collective; elements of its input, where these must be equal. 0 for what is not known.
WaitedCall = tuple[int, str, int]


@dataclass
class LogTexts:
    """What the known texts of logs say. waits: calls that the watchdog of a rank found unfinished.
    last_progress: path -> last line that shows that a rank trains on. ends: last lines of files.
    prepares: how far the last progress bar of work before the training is.
    """

    findings: list[TextMatch] = field(default_factory=list)
    waits: dict[int, list[WaitedCall]] = field(default_factory=dict)
    waited_ms: dict[int, int] = field(default_factory=dict)  # rank -> until its watchdog gave up
    reporting: set[int] = field(default_factory=set)  # ranks with a line of a failed call
    seen: set[int] = field(default_factory=set)  # ranks that any line names as its writer
    seen_local: set[int] = field(default_factory=set)  # of a host, as torchrun --tee names them
    asides: list[str] = field(default_factory=list)
    last_progress: dict[str, int] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)
    prepares: str = ""

    def add(self, other: LogTexts) -> None:
        """Take over what another file of the job says."""
        self.findings += other.findings
        for rank, calls in other.waits.items():
            mine = self.waits.setdefault(rank, [])
            mine += [call for call in calls if call not in mine]
        self.waited_ms |= other.waited_ms
        self.reporting |= other.reporting
        self.seen |= other.seen
        self.seen_local |= other.seen_local
        self.last_progress |= other.last_progress
        self.ends += other.ends
        self.prepares = self.prepares or other.prepares
        self.asides += [text for text in other.asides if text not in self.asides]

    def __bool__(self) -> bool:
        return bool(self.findings or self.waits)


@dataclass
class JobEvidence:
    """All that the files of one job say.

    last_number: (rank, group) -> number of its last call, where a source states that without the
    call itself. last_completed: the same of the last call that completed.
    """

    name: str = ""
    identities: set[str] = field(default_factory=set)  # ``slurm 4711``, ``communicator 0x5d2a``
    first_ns: int | None = None  # the earliest and the latest time in it, since 1970
    last_ns: int | None = None
    ranks: int | None = None  # size of the world, where a file states it
    nodes: dict[int, str] = field(default_factory=dict)  # rank -> name of its node
    pids: dict[int, int] = field(default_factory=dict)  # rank -> process
    groups: dict[str, Group] = field(default_factory=dict)
    calls: list[CallSeen] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    last_number: dict[tuple[int, str], int] = field(default_factory=dict)
    last_completed: dict[tuple[int, str], int] = field(default_factory=dict)
    alive_ns: dict[int, int] = field(default_factory=dict)  # rank -> when its process surely ran
    files: list[FileRead] = field(default_factory=list)
    texts: LogTexts = field(default_factory=LogTexts)

    @property
    def named_ranks(self) -> set[int]:
        """The ranks that any file names."""
        ranks: set[int | None] = {*self.nodes, *self.pids, *self.alive_ns}
        ranks |= {rank for rank, _ in (*self.last_number, *self.last_completed)}
        ranks |= {rank for call in self.calls for rank in (call.rank, call.peer)}
        ranks |= {rank for event in self.events for rank in (event.rank, *event.about)}
        ranks |= {rank for group in self.groups.values() for rank in group.ranks}
        ranks |= {rank for file in self.files for rank in file.ranks}
        return {rank for rank in ranks if rank is not None}

    def check_ranks(self) -> None:
        """Raises UnreadableError for a rank, or a number of ranks, that no job has: the diagnosis
        looks at each rank up to it.
        """
        ranks = self.named_ranks
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
