"""Reads NCCL's and RCCL's own log (NCCL_DEBUG=INFO) into processes and communicators.

Each kind of message has a handler. It takes the reader, which knows the process of the line, and
the message; it returns False if the message is cut off, or is of another kind that begins alike.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from torchcoll.core.bounds import MOST_PROCESSES, ByteBudget, CommunicatorBudget
from torchcoll.core.errors import UnreadableError
from torchcoll.libraries.logged import LoggedCall, Tally
from torchcoll.libraries.nccl.algorithms import FUNCTIONS, parse_call
from torchcoll.libraries.nccl.messages import (
    Column,
    Graph,
    Tuned,
    is_known,
    parse_bandwidths,
    parse_channels,
    parse_columns,
    parse_connection,
    parse_graph,
    parse_parents,
    parse_ring,
    parse_row,
    parse_wide_columns,
)


@dataclass(eq=False)
class Member:
    """One rank of one communicator, as its process logged it. None and '' mean not known.

    comm_id: equal on all ranks (NCCL >= 2.18; of a split only where it is logged).
    parent, split: the handle that it was split from, and (number of the split, color).
    timings: phases of 'Init timings' (>= 2.22) and ``total``, in seconds. Without ``rest`` the line
        was cut.
    bootstrap: phases of 'Bootstrap timings' (>= 2.23), in seconds.
    channels: kind (coll, collnet, nvls, p2p) -> number of channels.
    rings: channel -> ranks in order.
    up: channel -> parent of this rank in the tree; -1 for the root.
    max_gbps: the best path from a GPU of this host to another GPU, or to a network interface where
        the communicator has several hosts, by NCCL's own figures.
    total_gbps: all NVLinks of a GPU, or its PCI link where that is faster (src/graph/search.cc,
        ncclTopoSearchInit), by NCCL's own figures.
    """

    rank: int | None = None
    nranks: int | None = None
    handle: str = ""
    made_by: str = ""
    comm_id: str = ""
    parent: str = ""
    split: tuple[int, int] | None = None
    cuda_dev: int | None = None
    bus_id: str = ""
    nodes: int | None = None
    local_ranks: int | None = None
    started: bool = False
    complete: bool = False
    ended: str = ""
    nvls: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    bootstrap: dict[str, float] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)
    max_gbps: float | None = None
    total_gbps: float | None = None
    graphs: list[Graph] = field(default_factory=list)
    tuning: list[Tuned] = field(default_factory=list)


@dataclass(eq=False)
class NcclProcess:
    """What one process logged.

    transports: kind -> number of connections.
    pairs: kind -> (from, to) ranks.
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
    members: list[Member] = field(default_factory=list)
    transports: Counter[str] = field(default_factory=Counter)
    pairs: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    calls: Counter[LoggedCall] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)


_FIELD = re.compile(
    r"\b(comm|rank|n[rR]anks|cudaDev|busId|commId|parent|splitCount|childCount|color|nNodes|"
    r"localRanks) (0x[0-9a-f]+|-?[0-9a-f]+)(?=[ ,-]|$)"
)
_PART = re.compile(r"(\w+) (\d+\.\d+)")
_SET = re.compile(r"(\w+) set by environment to (.*)")
_FUNCTION_ROWS = frozenset(FUNCTIONS.values())

Handler = Callable[["NcclLogReader", str], bool]


def read_communicator(reader: NcclLogReader, message: str) -> bool:
    """Read ``ncclCommInitRank comm 0x.. rank 3 nranks 8 .. commId 0x.. - Init START``."""
    fields = dict(_FIELD.findall(message))
    start, complete = "Init START" in message, "Init COMPLETE" in message
    ended = next((w for w in ("Destroy", "Abort", "Revoke") if f"{w} COMPLETE" in message), "")
    informative = start or complete or ended or "nNodes" in fields
    if not informative and fields and message.endswith(list(fields.values())[-1]):
        fields.popitem()  # the line was cut, so its last number may be incomplete
    if "comm" not in fields or not fields.get("rank", "-").isdecimal():
        return " coll channels" in message and read_channel_counts(reader, message)
    member = reader.find_member(fields["comm"])
    if start or member is None or (member.ended and not ended):
        member = reader.begin_member(fields, start)
    if ended:
        member.ended = ended
    made_by = re.search(r"(nccl\w+) comm ", message)
    member.made_by = member.made_by or (made_by[1] if made_by else "")
    _update(member, fields)
    if complete:
        member.complete = True
        reader.completed.add(reader.process)
    return bool(informative)


def read_timings(reader: NcclLogReader, message: str) -> bool:
    """Read ``Init timings - ncclCommInitRank: rank 0 nranks 8 total 1.58 (...)``."""
    if not message.startswith("Init timings"):
        return False
    match = re.search(r"rank (\d+) nranks (\d+) total \d", message)
    if not match:
        return False
    rank, nranks = int(match[1]), int(match[2])
    member = reader.open.get((reader.process, reader.thread)) or Member()
    if (member.rank, member.nranks) != (rank, nranks):
        recent = islice(reversed(reader.process.members), _RECENT)
        recent_member = next((m for m in recent if (m.rank, m.nranks) == (rank, nranks)), None)
        member = recent_member or reader.begin_member({"comm": ""}, False)
        member.rank, member.nranks = rank, nranks
    member.timings = {name: float(value) for name, value in _PART.findall(message)}
    reader.account(len(member.timings))
    return "rest" in member.timings


def read_bootstrap(reader: NcclLogReader, message: str) -> bool:
    """Read ``Bootstrap timings total 0.12 (create 0.00, ..., delay 0.00)``."""
    if not message.startswith("Bootstrap timings"):
        return False
    phases = {name: float(value) for name, value in _PART.findall(message)}
    reader.member().bootstrap = phases
    reader.account(len(phases))
    return "delay" in phases


def read_channel(reader: NcclLogReader, message: str) -> bool:
    """Read ``Channel 00/02 : 0 1``, a ring, or a connection that begins alike."""
    if " via " in message:
        return read_connection(reader, message)
    ring = parse_ring(message)
    if ring:
        reader.member().rings[ring[0]] = ring[1]
        reader.account(1, 36 * len(ring[1]))
    return ring is not None


def read_connection(reader: NcclLogReader, message: str) -> bool:
    """Read ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``."""
    parsed = parse_connection(message)
    if not parsed:
        return False
    kind, pair = parsed
    reader.process.transports[kind] += 1
    if pair:
        reader.process.pairs.setdefault(kind, set()).add(pair)
    return True


def read_trees(reader: NcclLogReader, message: str) -> bool:
    """Read ``Trees [0] 1/-1/-1->0->-1 ...``."""
    parents = parse_parents(message)
    up = reader.member().up
    before = len(up)
    up.update(parents)
    reader.account(len(up) - before)
    return bool(parents)


def read_channel_counts(reader: NcclLogReader, message: str) -> bool:
    """Read ``24 coll channels, 16 nvls channels, ...``."""
    reader.member().channels = parse_channels(message)
    return True


def read_pattern(reader: NcclLogReader, message: str) -> bool:
    """Read ``Pattern 4, crossNic 0, nChannels 12, ...``, a graph of the search."""
    graph = parse_graph(message)
    if graph:
        reader.member().graphs.append(graph)
        reader.account(2)
    return graph is not None


def read_bandwidths(reader: NcclLogReader, message: str) -> bool:
    """Read ``=== System : maxBw ...``, a line of the GRAPH subsystem."""
    bandwidths = parse_bandwidths(message)
    if bandwidths:
        member = reader.member()
        member.max_gbps, member.total_gbps = bandwidths
    return bandwidths is not None


def read_nvls(reader: NcclLogReader, message: str) -> bool:
    """Read ``NVLS multicast support is available`` and ``NVLS comm 0x..``."""
    if message.startswith("NVLS multicast support is "):
        reader.process.nvls = "no" if " not available" in message else "yes"
        return True
    if message.startswith("NVLS comm ") and (match := re.search(r"comm (0x[0-9a-f]+)", message)):
        (reader.find_member(match[1]) or reader.member()).nvls = True
        return True
    return False


def read_choice(reader: NcclLogReader, message: str) -> bool:
    """Read ``AllReduce: 1024 Bytes -> Algo RING ...``, or a row of the tuning table."""
    chosen = _parse_call(message) if " Bytes -> " in message else None
    if chosen:
        reader.process.calls[chosen] += 1
    elif "|" in message:
        return read_tuning_row(reader, message)
    return chosen is not None


def read_columns(reader: NcclLogReader, message: str) -> bool:
    """Read ``Algorithm | Tree | Ring | ...``, the head of a block of the tuning table."""
    return reader.start_table(*parse_columns(message))


def read_wide_columns(reader: NcclLogReader, message: str) -> bool:
    """Read ``Latency/AlgBw | Tree/ LL | ...``, the head of the tuning table up to 2.17."""
    return reader.start_table(*parse_wide_columns(message))


def read_tuning_row(reader: NcclLogReader, message: str) -> bool:
    """Read a row of the tuning table."""
    member = reader.member()
    cells = parse_row(message, reader.columns.get(member, ()))
    member.tuning += cells
    reader.account(len(cells))
    return bool(cells)


def read_version(reader: NcclLogReader, message: str) -> bool:
    """Read ``NCCL version 2.27.5+cuda12.9`` and ``NCCL git version ...``."""
    if match := re.match(r"NCCL git version (\S+) (\S+)", message):
        reader.process.git = f"{match[1]} {match[2]}"
        return True
    match = re.match(r"(NCCL|RCCL) version ?:? ?(\d\S+)", message)
    if not match:
        return False
    if reader.process.version and reader.process in reader.completed:
        # A process prints its version once, so this is another process with the same id, as
        # containers have.
        reader.process = reader.add_process(reader.process.host, reader.process.pid)
        reader.process.names[reader.process.host] += 1
        reader.prefixes.clear()
    reader.process.library, reader.process.version = match[1], match[2]
    return True


def read_driver(reader: NcclLogReader, message: str) -> bool:
    """Read ``cudaDriverVersion 12090``."""
    reader.process.driver = message.split()[-1]
    return True


def read_network(reader: NcclLogReader, message: str) -> bool:
    """Read ``Using network IB``."""
    match = re.match(r"Using network (.+)", message)
    if match:
        reader.process.network = match[1]
    return bool(match)


def read_tuner(reader: NcclLogReader, message: str) -> bool:
    """Read ``TUNER/Plugin: Using ...``."""
    match = re.match(r"TUNER/Plugin: Using (?:tuner plugin )?(.+)", message)
    if match:
        reader.process.tuner = match[1]
    return bool(match)


def read_loaded_tuner(reader: NcclLogReader, message: str) -> bool:
    """Read ``Successfully loaded external tuner plugin ...``."""
    match = re.match(r"Successfully loaded external tuner plugin (\S+)", message)
    if match and len(reader.process.tuner) < _LONGEST:
        reader.process.tuner = f"{reader.process.tuner} {match[1]}".strip()
    return bool(match)


def read_variable(reader: NcclLogReader, message: str) -> bool:
    """Read ``NCCL_ALGO set by environment to Ring.``."""
    match = _SET.search(message)
    if match:
        value = match[2].rstrip(".") if match[2].rstrip(".").lstrip("-").isdecimal() else match[2]
        if reader.process.variables.get(match[1]) != value:
            reader.account(1, 4 * len(message))
        reader.process.variables[match[1]] = value
    return bool(match)


def _update(member: Member, fields: dict[str, str]) -> None:
    """Set the fields of ``member`` that a line has, and keep the others."""
    member.rank = int(fields["rank"])
    member.nranks = _int(fields.get("nranks") or fields.get("nRanks"), member.nranks)
    member.cuda_dev = _int(fields.get("cudaDev"), member.cuda_dev)
    member.nodes = _int(fields.get("nNodes"), member.nodes)
    member.local_ranks = _int(fields.get("localRanks"), member.local_ranks)
    member.bus_id = fields.get("busId", member.bus_id)
    member.comm_id = fields.get("commId", member.comm_id)
    member.parent = fields.get("parent", member.parent)
    if "color" in fields:
        number = _int(fields.get("splitCount") or fields.get("childCount"), 0)
        member.split = number or 0, _int(fields["color"], 0) or 0


def _int(text: str | None, otherwise: int | None) -> int | None:
    return int(text) if text and text.removeprefix("-").isdecimal() else otherwise


_parse_call = lru_cache(maxsize=4096)(parse_call)  # equal lines are repeated for each call

TABLE_ROWS = _FUNCTION_ROWS | {"Function"}
CHECK_THEIR_END = (read_communicator, read_timings, read_bootstrap, read_choice)
HANDLERS: dict[str, Handler] = {
    "comm": read_communicator,
    "Init": read_timings,
    "Bootstrap": read_bootstrap,
    "Channel": read_channel,
    "CollNet": read_connection,
    "Trees": read_trees,
    "===": read_bandwidths,
    "Pattern": read_pattern,
    "NVLS": read_nvls,
    "NCCL": read_version,
    "RCCL": read_version,
    "cudaDriverVersion": read_driver,
    "Using": read_network,
    "TUNER/Plugin:": read_tuner,
    "Successfully": read_loaded_tuner,
    "Algorithm": read_columns,
    "Latency/AlgBw": read_wide_columns,
    **dict.fromkeys(_FUNCTION_ROWS, read_choice),
    **{f"{name}:": read_choice for name in _FUNCTION_ROWS},
}


# The reader goes line by line. No pattern is anchored, because launchers prepend their own texts.
# A line may contain a part of another process's line (stdout of a node), be cut (a buffer of 1024
# bytes, a full disk) or edited. The reader takes what is complete in it, and counts each line once.
#
# Formats: src/debug.cc, init.cc, graph/tuning.cc and transport/*.cc of NCCL 2.8 to 2.32.

_MARK = b" NCCL "
_MOST_HOSTS = 64  # hosts with the same process id that are compared
_LONGEST = 4096  # NCCL's own buffer has 1024
_FEW_LINES, _MANY_LINES = 2, 20  # complete lines of a process; see ``processes``
_RECENT = 64  # a process's latest communicators, among which that of a timings line is searched
# Memory by measurement: a cell has 145 bytes, an entry of a dictionary 100, a Member with its row
# 1600, which are 11 entries.
_ENTRY_BYTES, _MEMBER_ENTRIES = 150, 11
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


class NcclLogReader:
    """Reads one file: ``read`` takes lines, repeatedly, and ``processes`` has the result."""

    def __init__(self, file: str = "") -> None:
        self.file = file
        self.tally = Tally()
        self._budget = ByteBudget("log", file)
        self._communicators = CommunicatorBudget(file)
        self._processes: list[NcclProcess] = []
        self.version = ""  # of a line without a process: NCCL <= 2.23 prints it so, once per job
        self._process_by_id: dict[tuple[str, int], NcclProcess] = {}
        # (process, thread) -> its last communicator
        self.open: dict[tuple[NcclProcess, int], Member] = {}
        self._by_handle: dict[tuple[NcclProcess, str], Member] = {}
        self.completed: set[NcclProcess] = set()  # processes with a communicator that is complete
        self.columns: dict[Member, list[Column]] = {}  # columns of its tuning table
        # Text before ' NCCL ' -> process, thread, the host as it is spelled there.
        self.prefixes: dict[bytes, tuple[NcclProcess, int, str]] = {}
        # Text of a line from ' NCCL ' on -> its kind in the tally, for lines that have nothing of
        # interest whatever their process is. A log has many of them, and most are equal.
        self._skipped: dict[bytes, str] = {}
        self._hosts: set[str] = set()
        self._hosts_of: dict[int, list[str]] = {}  # by process number
        self.process = NcclProcess("", 0)
        self.thread = 0

    @property
    def processes(self) -> list[NcclProcess]:
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
        prefixes, passed = self.prefixes, self._skipped
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
        if b" | " in raw and raw.split(None, 1)[0].decode("latin-1") in TABLE_ROWS:
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
        """Read a message of one process and return its kind in the tally.

        position: of ' NCCL ' in ``raw``. inside: the message began within another line. whole: its
        end was not interrupted.
        """
        level = raw[position + 6 : position + 10]
        self.process, self.thread, host = self._read_prefix(raw[:position], inside)
        if whole and not inside:
            self.process.names[host] += 1
        message = raw[position + 6 :].partition(b" ")[2].decode("utf-8", "replace").rstrip()
        if len(message) > _LONGEST:
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
        handler = HANDLERS.get(first_word)
        if handler is None:
            if " set by environment to " in message:
                handler = read_variable
            elif " coll channels" in message:
                handler = read_channel_counts
            elif " Bytes -> " in message:
                handler = read_choice
            elif "comm 0x" in message and first_word.startswith(("ncclComm", "[Rank")):
                handler = read_communicator
            else:
                traced = level == b"TRAC"  # there is no list of TRACE messages
                kind = "known" if traced or is_known(first_word, message) else "unknown"
                if not inside and whole and len(raw) - position <= _MOST_SKIPPED_BYTES:
                    if len(self._skipped) >= _MOST_SKIPPED:
                        self._skipped.clear()
                    self._skipped[raw[position:]] = kind
                return kind
        # An interrupted message may have lost its end: only handlers that check the end take it.
        if (whole or handler in CHECK_THEIR_END) and handler(self, message):
            return "understood"
        return "known" if is_known(first_word, message) else "cut"

    def _read_prefix(self, prefix: bytes, inside: bool) -> tuple[NcclProcess, int, str]:
        """The process, thread and host of a line. Lines without a prefix share a process."""
        cached = self.prefixes.get(prefix)
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
        if len(self.prefixes) > 65536:  # with time stamps no two prefixes are equal
            self.prefixes.clear()
        self.prefixes[prefix] = process, thread, host
        return process, thread, host

    def _match_damaged(self, host: str, pid: int) -> NcclProcess | None:
        """The process with this id whose host's name a cut line has changed: `47node1` (after the
        number of another line) and `de1` are node1. None where there is none.
        """
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
        key = self.process, self.thread
        member = self.open.get(key)
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
        member = self.open[self.process, self.thread] = Member()
        self.process.members.append(member)
        return member

    def start_table(self, columns: list[Column], whole: bool) -> bool:
        """Set the columns of the tuning table's rows that follow, and return ``whole``."""
        self.columns[self.member()] = columns
        self.account(len(columns))
        return whole

    def account(self, entries: int, text_bytes: int = 0) -> None:
        """Account for the memory of so many entries of dictionaries or tables, and of text.

        Raises UnreadableError where the file needs too much.
        """
        self._budget.add_bytes(_ENTRY_BYTES * entries + text_bytes)

    def find_member(self, handle: str) -> Member | None:
        """The latest communicator of this process with this handle; None where there is none."""
        return self._by_handle.get((self.process, handle))

    def begin_member(self, fields: dict[str, str], start: bool) -> Member:
        """The communicator of a new handle. start: its line is 'Init START'."""
        member = self.open.get((self.process, self.thread))
        if start or member is None or member.handle:
            member = self._add_member()
        member.handle, member.started = fields["comm"], start
        self._by_handle[self.process, member.handle] = member
        return member
