"""What each message of NCCL's or RCCL's log says of its process and its communicators.

A message may be cut off, or be of another kind that begins alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import ClassVar, NamedTuple

from torchcoll.core.bounds import MOST_PROCESSES, ByteBudget, CommunicatorBudget
from torchcoll.core.errors import UnreadableError
from torchcoll.libraries.logged import LoggedCall
from torchcoll.libraries.nccl import slow_paths
from torchcoll.libraries.nccl.algorithms import FUNCTIONS, PROTOCOLS, canonical, parse_call


class Tuned(NamedTuple):
    """A cell of the tuning table, NCCL's cost model. An algbw of 0 means: never used."""

    function: str
    algorithm: str
    protocol: str
    latency_us: float
    algbw_gbps: float


@dataclass(eq=False)
class Member:
    """One rank of one communicator, as its process logged it. None and '' mean not known.

    comm_id: equal on all ranks (NCCL >= 2.18; of a split only where it is logged).
    parent, split: the handle that it was split from, and (number of the split, color).
    timings: phases of 'Init timings' (>= 2.22) and ``total``, in seconds. Without ``rest`` the line
        was cut.
    bootstrap: phases of 'Bootstrap timings' (>= 2.23), in seconds.
    channels: kind (coll, collnet, nvls, p2p) -> number of channels.
    rings: channel -> ranks in order. ring_count: how many channels there are.
    """

    rank: int | None = None
    nranks: int | None = None
    handle: str = ""
    made_by: str = ""
    comm_id: str = ""
    parent: str = ""
    split: tuple[int, int] | None = None
    nodes: int | None = None
    started: bool = False
    complete: bool = False
    ended: str = ""
    nvls: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    bootstrap: dict[str, float] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ring_count: int = 0
    tuning: list[Tuned] = field(default_factory=list)


@dataclass(eq=False)
class NcclProcess:
    """What one process logged.

    transports: kind -> number of connections.
    pairs: kind -> (from, to) ranks.
    facts: name of slow_paths.FACTS -> what it is about.
    names: spelling of the host -> number of complete lines with it. Damaged lines spell it
        differently.
    """

    host: str
    pid: int
    file: str = ""
    library: str = "NCCL"
    version: str = ""
    git: str = ""
    driver: str = ""
    network: str = ""
    tuner: str = ""
    nvls: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    facts: dict[str, dict[str, None]] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    transports: Counter[str] = field(default_factory=Counter)
    pairs: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    calls: Counter[LoggedCall] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)


_KNOWN = slow_paths.TABLE["known"]
_WORDS = frozenset(_KNOWN["words"].split())
_BEGINNINGS = tuple(_KNOWN["beginnings"])
_SHAPES = re.compile(_KNOWN["shapes"])


def is_known(first_word: str, message: str) -> bool:
    """Whether a message with this first word is one of NCCL's that is not needed here."""
    if message.startswith("Bootstrap timings"):
        return False
    return (
        first_word in _WORDS
        or not first_word
        or message.lstrip().startswith(_BEGINNINGS)
        or bool(_SHAPES.match(message))
        or " set to " in message
    )


# A ring ends with the ranks, or with what RCCL appends. Any other line that begins so is a
# connection that was cut.
_RING = re.compile(r"Channel (\d+)/(\d+) :((?: +\d+)+)(?: *\.\.\.)?(?: comm .*)?$")
_CONNECTION = re.compile(
    r"(?:Channel|CollNet) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\] -> (\d+)\[\w+\])?(?: \[\w+\])? "
    r"via ((?:P2P|SHM|NET|COLLNET|MNNVL)\b\S*)"
)
_NUMBERS = re.compile(r"/\d+(?:\(\d+\))?(?:\[\w+\])?")
_KINDS = re.compile(r"(\d+) (coll|collnet|nvls|p2p) channels(?! per)")
_CELL = re.compile(r"(\d+\.\d+)/(\d+\.\d+)$")
_FIELD = re.compile(
    r"\b(comm|rank|n[rR]anks|cudaDev|busId|commId|parent|splitCount|childCount|color|nNodes|"
    r"localRanks) (0x[0-9a-f]+|-?[0-9a-f]+)(?=[ ,-]|$)"
)
_PART = re.compile(r"(\w+) (\d+\.\d+)")
_SET = re.compile(r"(\w+) set by environment to (.*)")
_FACTS = (
    ("driver", re.compile(r"cudaDriverVersion (?:.* )?(\S+)")),
    ("network", re.compile(r"Using network (.+)")),
    ("tuner", re.compile(r"TUNER/Plugin: Using (?:tuner plugin )?(.+)")),
)
LONGEST = 4096  # NCCL's own buffer has 1024
_RECENT = 64  # a process's latest communicators, among which that of a timings line is searched
# Memory by measurement: a cell has 145 bytes, an entry of a dictionary 100, a Member with its row
# 1600, which are 11 entries.
_ENTRY_BYTES, _MEMBER_ENTRIES = 150, 11

_FUNCTIONS = frozenset(FUNCTIONS.values())
TABLE_ROWS = _FUNCTIONS | {"Function"}
Column = tuple[str, str]  # (algorithm, protocol) of the tuning table
_parse_call = lru_cache(maxsize=4096)(parse_call)  # equal lines are repeated for each call


class MessageReader:
    """Reads messages of ``process``. A method returns False for one that is cut, or another."""

    def __init__(self, file: str = "") -> None:
        self.file = file
        self._budget = ByteBudget("log", file)
        self._communicators = CommunicatorBudget(file)
        self._processes: list[NcclProcess] = []
        self._process_by_id: dict[tuple[str, int], NcclProcess] = {}
        self._hosts_of: dict[int, list[str]] = {}  # by process number
        # (process, thread) -> its last communicator
        self._open: dict[tuple[NcclProcess, int], Member] = {}
        self._by_handle: dict[tuple[NcclProcess, str], Member] = {}
        self._completed: set[NcclProcess] = set()  # processes with a communicator that is complete
        self._columns: dict[Member, list[Column]] = {}  # columns of its tuning table
        # Text before ' NCCL ' -> process, thread, the host as it is spelled there.
        self._prefixes: dict[bytes, tuple[NcclProcess, int, str]] = {}
        self.process = NcclProcess("", 0)
        self._thread = 0

    def add_process(self, host: str, pid: int) -> NcclProcess:
        """Add a process. Raises UnreadableError for more than MOST_PROCESSES."""
        if max(len(self._process_by_id), len(self._processes)) >= MOST_PROCESSES:
            raise UnreadableError("log", self.file, f"at most {MOST_PROCESSES} processes")
        process = self._process_by_id[host, pid] = NcclProcess(host, pid, self.file)
        self._hosts_of.setdefault(pid, []).append(host)
        self._processes.append(process)
        return process

    def member(self) -> Member:
        """The communicator that this thread is creating, or created last."""
        key = self.process, self._thread
        member = self._open.get(key)
        if member is None and self.process.members:
            # NCCL connects late and in separate threads, which did not begin a communicator.
            return self.process.members[-1]
        # Without 'Init START' (<= 2.17) a new communicator begins after one that is complete.
        if member is None or (member.complete and not member.started):
            member = self._add_member()
        return member

    def _add_member(self) -> Member:
        """Add a communicator of this thread."""
        self._communicators.add()
        self.account(_MEMBER_ENTRIES)
        member = self._open[self.process, self._thread] = Member()
        self.process.members.append(member)
        return member

    def account(self, entries: int, text_bytes: int = 0) -> None:
        """Count memory of table entries and of text. Raises UnreadableError for too much."""
        self._budget.add_bytes(_ENTRY_BYTES * entries + text_bytes)

    def find_member(self, handle: str) -> Member | None:
        """The latest communicator of this process with this handle; None where there is none."""
        return self._by_handle.get((self.process, handle))

    def begin_member(self, fields: dict[str, str], start: bool) -> Member:
        """The communicator of a new handle. start: its line is 'Init START'."""
        member = self._open.get((self.process, self._thread))
        if start or not member or member.handle:
            member = self._add_member()
        member.handle, member.started = fields["comm"], start
        self._by_handle[self.process, member.handle] = member
        return member

    def read_communicator(self, message: str) -> bool:
        """Read ``ncclCommInitRank comm 0x.. rank 3 nranks 8 .. commId 0x.. - Init START``."""
        fields = dict(_FIELD.findall(message))
        start, complete = "Init START" in message, "Init COMPLETE" in message
        ended = next((w for w in ("Destroy", "Abort", "Revoke") if f"{w} COMPLETE" in message), "")
        informative = start or complete or ended or "nNodes" in fields
        if not informative and fields and message.endswith(list(fields.values())[-1]):
            fields.popitem()  # the line was cut, so its last number may be incomplete
        if "comm" not in fields or not fields.get("rank", "-").isdecimal():
            return " coll channels" in message and self.read_channel_counts(message)
        member = self.find_member(fields["comm"])
        if start or member is None or (member.ended and not ended):
            member = self.begin_member(fields, start)
        if ended:
            member.ended = ended
        made_by = re.search(r"(nccl\w+) comm ", message)
        member.made_by = member.made_by or (made_by[1] if made_by else "")
        _update(member, fields)
        if complete:
            member.complete = True
            self._completed.add(self.process)
        return bool(informative)

    def read_timings(self, message: str) -> bool:
        """Read ``Init timings - ncclCommInitRank: rank 0 nranks 8 total 1.58 (...)``."""
        if not message.startswith("Init timings"):
            return False
        match = re.search(r"rank (\d+) nranks (\d+) total \d", message)
        if not match:
            return False
        numbers = int(match[1]), int(match[2])
        member = self._open.get((self.process, self._thread)) or Member()
        if (member.rank, member.nranks) != numbers:
            recent = islice(reversed(self.process.members), _RECENT)
            recent_member = next((m for m in recent if (m.rank, m.nranks) == numbers), None)
            member = recent_member or self.begin_member({"comm": ""}, False)
            member.rank, member.nranks = numbers
        member.timings = _phases(message)
        self.account(len(member.timings))
        return "rest" in member.timings

    def read_bootstrap(self, message: str) -> bool:
        """Read ``Bootstrap timings total 0.12 (create 0.00, ..., delay 0.00)``."""
        if not message.startswith("Bootstrap timings"):
            return False
        self.member().bootstrap = phases = _phases(message)
        self.account(len(phases))
        return "delay" in phases

    def read_channel(self, message: str) -> bool:
        """Read ``Channel 00/02 : 0 1``, a ring, or a connection that begins alike."""
        if " via " in message:
            return self.read_connection(message)
        if match := _RING.search(message):
            self.member().rings[int(match[1])] = ranks = tuple(map(int, match[3].split()))
            self.member().ring_count = int(match[2])
            self.account(1, 36 * len(ranks))
        return match is not None

    def read_connection(self, message: str) -> bool:
        """Read ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``."""
        if match := _CONNECTION.search(message):
            kind = _NUMBERS.sub("", match[4])  # NET/IB/0/GDRDMA is NET/IB/GDRDMA
            self.process.transports[kind] += 1
            if match[3]:
                self.process.pairs.setdefault(kind, set()).add((int(match[2]), int(match[3])))
        return match is not None

    def read_channel_counts(self, message: str) -> bool:
        """Read ``24 coll channels, 16 nvls channels, ...``."""
        self.member().channels = {kind: int(count) for count, kind in _KINDS.findall(message)}
        return True

    def read_nvls(self, message: str) -> bool:
        """Read ``NVLS multicast support is available`` and ``NVLS comm 0x..``."""
        if message.startswith("NVLS multicast support is "):
            self.process.nvls = "no" if " not available" in message else "yes"
            return True
        match = re.search(r"comm (0x[0-9a-f]+)", message)
        if match is None or not message.startswith("NVLS comm "):
            return False
        (self.find_member(match[1]) or self.member()).nvls = True
        return True

    def read_choice(self, message: str) -> bool:
        """Read ``AllReduce: 1024 Bytes -> Algo RING ...``, or a row of the tuning table."""
        chosen = _parse_call(message) if " Bytes -> " in message else None
        if chosen:
            self.process.calls[chosen] += 1
        elif "|" in message:
            return self.read_tuning_row(message)
        return chosen is not None

    def read_columns(self, message: str) -> bool:
        """Read ``Algorithm | Tree | Ring | ...``, the head of a block of the table (>= 2.18)."""
        names = [canonical(cell.strip()) for cell in message.split("|")[1:-1]]
        columns = [(name, protocol) for name in names if name for protocol in PROTOCOLS]
        self.start_table(columns)
        return bool(columns) and None not in names

    def read_wide_columns(self, message: str) -> bool:
        """Read ``Latency/AlgBw | Tree/ LL | ...``, the head of the only table (<= 2.17)."""
        cells = [cell.split("/") for cell in message.split("|")[1:-1]]
        # Before 2.14 CollNet was a single algorithm; 2.14 added the chain.
        columns = [
            (canonical(a.strip()) or a.strip().upper(), canonical(p.strip()) or "")
            for a, p in (cell for cell in cells if len(cell) == 2)
        ]
        self.start_table(columns)
        return bool(columns) and len(columns) == len(cells)

    def start_table(self, columns: list[Column]) -> None:
        """Set the columns of the tuning table's rows that follow."""
        self._columns[self.member()] = columns
        self.account(len(columns))

    def read_tuning_row(self, message: str) -> bool:
        """Read ``AllReduce | 16.8/ 0.5 | ...``, a row of the tuning table."""
        member = self.member()
        name, *cells = (cell.strip() for cell in message.split("|"))
        values = [_CELL.match(cell.replace(" ", "")) for cell in cells[:-1]]
        columns = self._columns.get(member, ())
        if len(values) != len(columns) or not all(values):
            return False
        member.tuning += [
            Tuned(name, *column, float(value[1]), float(value[2]))
            for column, value in zip(columns, values, strict=True)
            if value
        ]
        self.account(len(values))
        return bool(values)

    def read_version(self, message: str) -> bool:
        """Read ``NCCL version 2.27.5+cuda12.9`` and ``NCCL git version ...``."""
        if match := re.match(r"NCCL git version (\S+) (\S+)", message):
            self.process.git = f"{match[1]} {match[2]}"
            return True
        match = re.match(r"(NCCL|RCCL) version ?:? ?(\d\S+)", message)
        if not match:
            return False
        if self.process.version and self.process in self._completed:
            # A process prints its version once, so this is another process with the same id, as
            # containers have.
            self.process = self.add_process(self.process.host, self.process.pid)
            self.process.names[self.process.host] += 1
            self._prefixes.clear()
        self.process.library, self.process.version = match[1], match[2]
        return True

    def read_fact(self, message: str) -> bool:
        """Read ``cudaDriverVersion 12090``, ``Using network IB``, ``TUNER/Plugin: Using ...``."""
        for name, pattern in _FACTS:
            if match := pattern.match(message):
                setattr(self.process, name, match[1])
                return True
        return False

    def read_path(self, message: str) -> bool:
        """Read ``NET/IB : No device found.``, ``NET/Socket : Using [0]eth0:10.0.0.1<0>``."""
        for name, pattern in slow_paths.FACTS:
            if match := pattern.match(message):
                self.process.facts.setdefault(name, {})[match[1]] = None
                self.account(1, 4 * len(match[1]))
                return True
        return False

    def read_loaded_tuner(self, message: str) -> bool:
        """Read ``Successfully loaded external tuner plugin ...``."""
        if match := re.match(r"Successfully loaded external tuner plugin (\S+)", message):
            self.process.tuner = f"{self.process.tuner} {match[1]}".strip()[:LONGEST]
        return bool(match)

    def read_variable(self, message: str) -> bool:
        """Read ``NCCL_ALGO set by environment to Ring.``."""
        if match := _SET.search(message):
            number = match[2].rstrip(".")
            value = number if number.lstrip("-").isdecimal() else match[2]
            if self.process.variables.get(match[1]) != value:
                self.account(1, 4 * len(message))
            self.process.variables[match[1]] = value
        return bool(match)

    CHECK_THEIR_END = (read_communicator, read_timings, read_bootstrap, read_choice)
    # By the first word of a message.
    HANDLERS: ClassVar[dict[str, Callable[[MessageReader, str], bool]]] = {
        "comm": read_communicator,
        "Init": read_timings,
        "Bootstrap": read_bootstrap,
        "Channel": read_channel,
        "CollNet": read_connection,
        "NVLS": read_nvls,
        **dict.fromkeys(("NCCL", "RCCL"), read_version),
        **dict.fromkeys(("cudaDriverVersion", "Using", "TUNER/Plugin:"), read_fact),
        "Successfully": read_loaded_tuner,
        **dict.fromkeys(("NET/IB", "NET/Socket", "Failed", "Could", "P2P"), read_path),
        "Algorithm": read_columns,
        "Latency/AlgBw": read_wide_columns,
        **dict.fromkeys((*_FUNCTIONS, *(f"{name}:" for name in _FUNCTIONS)), read_choice),
    }


def _update(member: Member, fields: dict[str, str]) -> None:
    """Set the fields of ``member`` that a line has, and keep the others."""
    member.rank = int(fields["rank"])
    member.nranks = _int(fields.get("nranks") or fields.get("nRanks"), member.nranks)
    member.nodes = _int(fields.get("nNodes"), member.nodes)
    member.comm_id = fields.get("commId", member.comm_id)
    member.parent = fields.get("parent", member.parent)
    if "color" in fields:
        number = _int(fields.get("splitCount") or fields.get("childCount"), 0)
        member.split = number or 0, _int(fields["color"], 0) or 0


def _phases(message: str) -> dict[str, float]:
    return {name: float(value) for name, value in _PART.findall(message)}


def _int(text: str | None, otherwise: int | None) -> int | None:
    return int(text) if text and text.removeprefix("-").isdecimal() else otherwise
