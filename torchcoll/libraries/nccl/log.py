"""What the messages of NCCL's log say of their process and their communicator, one function each.

Each takes the reader, which knows who speaks, and the message; False where it was cut, or is
another one that begins alike.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from torchcoll.core.bounds import MOST_PROCESSES, Held, LoggedCommunicators
from torchcoll.core.errors import UnreadableError
from torchcoll.libraries.logged import LoggedCall, Tally
from torchcoll.libraries.nccl.algorithms import FUNCTIONS, PROTOCOLS, call_of, canonical
from torchcoll.libraries.nccl.graphs import pattern_name


class Tuned(NamedTuple):
    """A cell of the tuning table: what the cost model expects. algbw 0: not to be used."""

    function: str
    algorithm: str
    protocol: str
    latency_us: float
    algbw_gbps: float


class Graph(NamedTuple):
    """What the topology search found for a pattern; bandwidths in GB/s a channel."""

    pattern: str
    channels: int
    intra_gbps: float
    inter_gbps: float
    intra_type: str
    inter_type: str


@dataclass(eq=False)
class Member:
    """One rank of one communicator, as its process tells; None and '' are not known.

    comm_id: equal on all ranks (NCCL >= 2.18; of a split where it is told). parent, split: the
    handle that it was split from, and (number of the split, color). timings: the parts of 'Init
    timings' (>= 2.22) and ``total``, seconds; without ``rest`` the line was cut. bootstrap: alike
    (>= 2.23). rings: channel -> ranks in order. up: channel -> the rank above this one in the tree,
    -1 at its root. max_gbps: the best path from a GPU of this host to another, or to a network
    interface where the communicator has several hosts; total_gbps: all NVLinks of a GPU, or its PCI
    link where that is more (src/graph/search.cc, ncclTopoSearchInit). As NCCL reckons them.
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
    """What one process tells.

    names: how many whole lines name its host so; damaged lines spell it differently. transports:
    kind -> connections. pairs: kind -> (from, to) ranks.
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


# Lines of NCCL's log that are known and tell nothing that a table here shows.
#
# First words, and beginnings, of the INFO texts in ``libnccl.so.2`` 2.21.5 and 2.30.7 and in logs
# of 2.8 to 2.30 and of RCCL 2.26 to 2.30. A line that is not among them is counted as unknown:
# another version may say something new.

_TEXT = """
    Affinity Allocated Assigned Bootstrap Bootstrap: bootstrapSplit: CC Call Check Communicator
    Connected Could Cross-clique DMABUF DMA-BUF DMA_BUF Dmabuf ENV/Plugin: Enabled Failed GDRCOPY
    GIN GIN/Plugin: GPU Generated HIP Hipruntime Ignoring Imported Initialized Kernel LSA Launch
    Loading Local MNNVL MSCCL MSCCL++ Made Max Mem MemManager: NET NET/IB NET/OFI NET/Plugin
    NET/Plugin: NET/Socket NVLS New P2P PARAM: PROFILER/Plugin: PXN Plugin Protocol Proxy RAS
    RMA/Plugin: ROCr Rank Received Ring Search Setting Skipping Socket Successfully Symmetric
    TOPO/NET TUNER/Plugin: Topology Tree Tuning UDS: Using rank threadThresholds timings:
    ncclTopoGetCpuAffinity: ncclTopoPopulateNics
"""
_WORDS = frozenset(_TEXT.split())
_BEGINNINGS = (
    *("=== ", "===", "+ ", "- ", "[Proxy", "[Service", "GPU/", "CPU/", "NET/", "NVS/", "PCI/"),
    *("NIC/", "C2C", "GIN/", "Comm config ", "(", "ncclOs"),
)
# src/misc/utils.cc:233 memory stack hunk: the ALLOC subsystem. ` 0 : NET/0 GPU/0 ...`: a channel of
# a graph. opCount: the COLL subsystem, a line a call and rank.
_SHAPES = re.compile(
    r"\S+\.(?:cc|cpp|h):\d+ |\s*\d+ : (?:NET|GPU)/|\w+: opCount [0-9a-f]+ sendbuff "
)


def is_known(word: str, message: str) -> bool:
    """Whether a message, of this first word, is one of NCCL's own that is not needed."""
    if message.startswith("Bootstrap timings"):
        return False
    return (
        word in _WORDS
        or not word
        or message.lstrip().startswith(_BEGINNINGS)
        or bool(_SHAPES.match(message))
        or " set to " in message
    )


# What NCCL's log says of a communicator's paths: rings, trees, connections, graphs found.
#
# Each takes a message and gives what it says; None, or nothing, where the line was cut.

# Ends with the ranks, or with what RCCL adds: else it is a connection that was cut.
_RING = re.compile(r"Channel (\d+)/\d+ :((?: +\d+)+)(?: *\.\.\.)?(?: comm .*)?$")
_CONNECTION = re.compile(
    r"(?:Channel|CollNet) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\] -> (\d+)\[\w+\])?(?: \[\w+\])? "
    r"via ((?:P2P|SHM|NET|COLLNET|MNNVL)\b\S*)"
)
_NUMBERS = re.compile(r"/\d+(?:\(\d+\))?(?:\[\w+\])?")
_TREE = re.compile(r"\[(\d+)\] -?\d+/-?\d+/-?\d+->(\d+)->(-?\d+)")
_KINDS = re.compile(r"(\d+) (coll|collnet|nvls|p2p) channels(?! per)")
_PATTERN = re.compile(
    r"Pattern (\d+), crossNic \d+, nChannels (\d+), (?:bw|speed) (\d+(?:\.\d+)?)/(\d+(?:\.\d+)?), "
    r"type (\w+)/(\w+), sameChannels \d"
)
_SYSTEM = re.compile(
    r"=== System : max(?:Bw|Width) (\d+\.\d+)(?: total(?:Bw|Width) (\d+\.\d+))? ==="
)


def ring_of(message: str) -> tuple[int, tuple[int, ...]] | None:
    """(channel, ranks in order) of ``Channel 00/02 : 0 1``."""
    found = _RING.search(message)
    return (int(found[1]), tuple(map(int, found[2].split()))) if found else None


def connection_of(message: str) -> tuple[str, tuple[int, int] | None] | None:
    """(transport, pair of ranks) of ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``; devices and
    channels of the transport are left out: NET/IB/0/GDRDMA is NET/IB/GDRDMA.
    """
    found = _CONNECTION.search(message)
    if not found:
        return None
    pair = (int(found[2]), int(found[3])) if found[3] else None
    return _NUMBERS.sub("", found[4]), pair


def parents_of(message: str) -> dict[int, int]:
    """channel -> the rank above, of ``Trees [0] 1/-1/-1->0->-1``."""
    return {int(channel): int(up) for channel, _, up in _TREE.findall(message)}


def channels_of(message: str) -> dict[str, int]:
    """``24 coll channels, 16 nvls channels, ...``"""
    return {kind: int(number) for number, kind in _KINDS.findall(message)}


def graph_of(message: str) -> Graph | None:
    """``Pattern 4, crossNic 0, nChannels 12, bw 30.0/20.5, type NVL/PIX, sameChannels 1``."""
    found = _PATTERN.search(message)
    if not found:
        return None
    pattern = pattern_name(int(found[1]))
    return Graph(pattern, int(found[2]), float(found[3]), float(found[4]), found[5], found[6])


def bandwidths_of(message: str) -> tuple[float, float | None] | None:
    """(max, total) in GB/s of ``=== System : maxBw 240.0 totalBw 240.0 ===``: see Member."""
    found = _SYSTEM.match(message)
    return (float(found[1]), float(found[2]) if found[2] else None) if found else None


# The tuning table in NCCL's log: what the cost model expects of each algorithm and protocol.
#
# Up to 2.17 one table, ``Latency/AlgBw | Tree/ LL | Tree/ LL128 |``; from 2.18 on blocks of
# algorithms, ``Algorithm | Tree | Ring | CollNetDirect |``, of three columns each. Then a row for
# each function.

Column = tuple[str, str]  # (algorithm, protocol)
_CELL = re.compile(r"(\d+\.\d+)/(\d+\.\d+)$")


def columns_of(message: str) -> tuple[list[Column], bool]:
    """The columns of a block (>= 2.18), and whether all of its algorithms are known."""
    names = [canonical(cell.strip()) for cell in message.split("|")[1:-1]]
    columns = [(name, protocol) for name in names if name for protocol in PROTOCOLS]
    return columns, bool(columns) and None not in names


def wide_columns_of(message: str) -> tuple[list[Column], bool]:
    """The columns of the one table (<= 2.17), and whether each was whole."""
    cells = [cell.split("/") for cell in message.split("|")[1:-1]]
    # CollNet was one algorithm before 2.14, and chain came as its second.
    columns = [
        (canonical(a.strip()) or a.strip().upper(), canonical(p.strip()) or "")
        for a, p in (cell for cell in cells if len(cell) == 2)
    ]
    return columns, bool(columns) and len(columns) == len(cells)


def row_of(message: str, columns: Sequence[Column]) -> list[Tuned]:
    """``AllReduce | 16.8/ 0.5 | ...``; [] for a row that is not whole, or of another table."""
    name, *cells = (cell.strip() for cell in message.split("|"))
    values = [_CELL.match(cell.replace(" ", "")) for cell in cells[:-1]]
    if len(values) != len(columns) or not all(values):
        return []
    return [
        Tuned(name, *column, float(value[1]), float(value[2]))
        for column, value in zip(columns, values, strict=True)
        if value
    ]


_FIELD = re.compile(
    r"\b(comm|rank|n[rR]anks|cudaDev|busId|commId|parent|splitCount|childCount|color|nNodes|"
    r"localRanks) (0x[0-9a-f]+|-?[0-9a-f]+)(?=[ ,-]|$)"
)
_PART = re.compile(r"(\w+) (\d+\.\d+)")
_SET = re.compile(r"(\w+) set by environment to (.*)")
_FUNCTION_ROWS = frozenset(FUNCTIONS.values())

Handler = Callable[["NcclLogReader", str], bool]


def communicator(reader: NcclLogReader, message: str) -> bool:
    """``ncclCommInitRank comm 0x.. rank 3 nranks 8 cudaDev 3 .. commId 0x.. - Init START``."""
    fields = dict(_FIELD.findall(message))
    start, complete = "Init START" in message, "Init COMPLETE" in message
    ended = next((w for w in ("Destroy", "Abort", "Revoke") if f"{w} COMPLETE" in message), "")
    news = start or complete or ended or "nNodes" in fields
    if not news and fields and message.endswith(list(fields.values())[-1]):
        fields.popitem()  # the line was cut: its last number may be too
    if "comm" not in fields or not fields.get("rank", "-").isdecimal():
        return " coll channels" in message and counts(reader, message)
    member = reader.of_handle(fields["comm"])
    if start or member is None or (member.ended and not ended):
        member = reader.begun(fields, start)
    if ended:
        member.ended = ended
    made_by = re.search(r"(nccl\w+) comm ", message)
    member.made_by = member.made_by or (made_by[1] if made_by else "")
    _keep(member, fields)
    if complete:
        member.complete = True
        reader.completed.add(reader.process)
    return bool(news)


def timings(reader: NcclLogReader, message: str) -> bool:
    """``Init timings - ncclCommInitRank: rank 0 nranks 8 total 1.58 (kernels 0.26, ...)``."""
    if not message.startswith("Init timings"):
        return False
    found = re.search(r"rank (\d+) nranks (\d+) total \d", message)
    if not found:
        return False
    rank, nranks = int(found[1]), int(found[2])
    member = reader.open.get((reader.process, reader.thread)) or Member()
    if (member.rank, member.nranks) != (rank, nranks):
        recent = islice(reversed(reader.process.members), _RECENT)
        own = next((m for m in recent if (m.rank, m.nranks) == (rank, nranks)), None)
        member = own or reader.begun({"comm": ""}, False)
        member.rank, member.nranks = rank, nranks
    member.timings = {name: float(value) for name, value in _PART.findall(message)}
    reader.holds(len(member.timings))
    return "rest" in member.timings


def bootstrap(reader: NcclLogReader, message: str) -> bool:
    if not message.startswith("Bootstrap timings"):
        return False
    parts = {name: float(value) for name, value in _PART.findall(message)}
    reader.member().bootstrap = parts
    reader.holds(len(parts))
    return "delay" in parts


def channel(reader: NcclLogReader, message: str) -> bool:
    if " via " in message:
        return connection(reader, message)
    ring = ring_of(message)
    if ring:
        reader.member().rings[ring[0]] = ring[1]
        reader.holds(1, 36 * len(ring[1]))
    return ring is not None


def connection(reader: NcclLogReader, message: str) -> bool:
    found = connection_of(message)
    if not found:
        return False
    kind, pair = found
    reader.process.transports[kind] += 1
    if pair:
        reader.process.pairs.setdefault(kind, set()).add(pair)
    return True


def trees(reader: NcclLogReader, message: str) -> bool:
    parents = parents_of(message)
    up = reader.member().up
    before = len(up)
    up.update(parents)
    reader.holds(len(up) - before)
    return bool(parents)


def counts(reader: NcclLogReader, message: str) -> bool:
    reader.member().channels = channels_of(message)
    return True


def pattern(reader: NcclLogReader, message: str) -> bool:
    graph = graph_of(message)
    if graph:
        reader.member().graphs.append(graph)
        reader.holds(2)
    return graph is not None


def system(reader: NcclLogReader, message: str) -> bool:
    """Of the GRAPH subsystem."""
    found = bandwidths_of(message)
    if found:
        member = reader.member()
        member.max_gbps, member.total_gbps = found
    return found is not None


def nvls(reader: NcclLogReader, message: str) -> bool:
    if message.startswith("NVLS multicast support is "):
        reader.process.nvls = "no" if " not available" in message else "yes"
        return True
    if message.startswith("NVLS comm ") and (found := re.search(r"comm (0x[0-9a-f]+)", message)):
        (reader.of_handle(found[1]) or reader.member()).nvls = True
        return True
    return False


def call(reader: NcclLogReader, message: str) -> bool:
    chosen = _call_of(message) if " Bytes -> " in message else None
    if chosen:
        reader.process.calls[chosen] += 1
    elif "|" in message:
        return row(reader, message)
    return chosen is not None


def algorithms(reader: NcclLogReader, message: str) -> bool:
    return reader.heads(*columns_of(message))


def wide_head(reader: NcclLogReader, message: str) -> bool:
    return reader.heads(*wide_columns_of(message))


def row(reader: NcclLogReader, message: str) -> bool:
    member = reader.member()
    cells = row_of(message, reader.columns.get(member, ()))
    member.tuning += cells
    reader.holds(len(cells))
    return bool(cells)


def version(reader: NcclLogReader, message: str) -> bool:
    if found := re.match(r"NCCL git version (\S+) (\S+)", message):
        reader.process.git = f"{found[1]} {found[2]}"
        return True
    found = re.match(r"(NCCL|RCCL) version ?:? ?(\d\S+)", message)
    if not found:
        return False
    if reader.process.version and reader.process in reader.completed:
        # Once a process: this is another one of the same number, as containers have them.
        reader.process = reader.made(reader.process.host, reader.process.pid)
        reader.process.names[reader.process.host] += 1
        reader.prefixes.clear()
    reader.process.library, reader.process.version = found[1], found[2]
    return True


def driver(reader: NcclLogReader, message: str) -> bool:
    reader.process.driver = message.split()[-1]
    return True


def network(reader: NcclLogReader, message: str) -> bool:
    found = re.match(r"Using network (.+)", message)
    if found:
        reader.process.network = found[1]
    return bool(found)


def tuner(reader: NcclLogReader, message: str) -> bool:
    found = re.match(r"TUNER/Plugin: Using (?:tuner plugin )?(.+)", message)
    if found:
        reader.process.tuner = found[1]
    return bool(found)


def loaded(reader: NcclLogReader, message: str) -> bool:
    found = re.match(r"Successfully loaded external tuner plugin (\S+)", message)
    if found and len(reader.process.tuner) < _LONGEST:
        reader.process.tuner = f"{reader.process.tuner} {found[1]}".strip()
    return bool(found)


def variable(reader: NcclLogReader, message: str) -> bool:
    found = _SET.search(message)
    if found:
        value = found[2].rstrip(".") if found[2].rstrip(".").lstrip("-").isdecimal() else found[2]
        if reader.process.variables.get(found[1]) != value:
            reader.holds(1, 4 * len(message))
        reader.process.variables[found[1]] = value
    return bool(found)


def _keep(member: Member, fields: dict[str, str]) -> None:
    """What a line tells of a communicator; what it does not tell stays."""
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


_call_of = lru_cache(maxsize=4096)(call_of)  # the same line comes once a call

MATRIX = _FUNCTION_ROWS | {"Function"}
SHOW_THEIR_END = (communicator, timings, bootstrap, call)
HANDLERS: dict[str, Handler] = {
    "comm": communicator,
    "Init": timings,
    "Bootstrap": bootstrap,
    "Channel": channel,
    "CollNet": connection,
    "Trees": trees,
    "===": system,
    "Pattern": pattern,
    "NVLS": nvls,
    "NCCL": version,
    "RCCL": version,
    "cudaDriverVersion": driver,
    "Using": network,
    "TUNER/Plugin:": tuner,
    "Successfully": loaded,
    "Algorithm": algorithms,
    "Latency/AlgBw": wide_head,
    **dict.fromkeys(_FUNCTION_ROWS, call),
    **{f"{name}:": call for name in _FUNCTION_ROWS},
}


# NCCL's and RCCL's own log (NCCL_DEBUG=INFO): what each process tells of itself.
#
# A pure reader, line by line. Nothing is anchored: launchers put their own texts in front. Lines of
# several processes may stand in one another (stdout of a node), be cut (a buffer of 1024 bytes, a
# full disk) or edited; what stands in them whole is taken, and every line is counted once.
#
# Formats: src/debug.cc, init.cc, graph/tuning.cc and transport/*.cc of NCCL 2.8 to 2.32.

_MARK = b" NCCL "
_TWINS = 64  # hosts of one process number that are looked at
_LONGEST = 4096  # NCCL's own buffer has 1024
_FEW, _MANY = 2, 20  # whole lines of a process; see ``processes``
_RECENT = 64  # communicators of a process, among which the one of its timings is looked for
# Measured: a cell 145, an entry of a dictionary 100; a Member with its row 1600.
_THING_BYTES, _MEMBER = 150, 11
_PASSED, _PASSED_BYTES = 4096, 512  # messages that are remembered, and of each
_LEVELS = frozenset((b"INFO", b"WARN", b"TRAC", b"CALL"))
# What follows the name of the host: a pattern that began with the name would try each length of it
# at each place, 20 s of a packed log of 10 KB.
_PREFIX = re.compile(rb":(\d{1,10}):(\d{1,10}) \[-?\w*\]")
# A whole prefix, to find one inside another line.
_INSIDE = re.compile(
    rb":\d{1,10}:\d{1,10} \[-?\w*\] (?:\S{1,255}:\d{1,9} (?:\(\w+\) )?)?NCCL (?:INFO|WARN) "
)
_STAMP = re.compile(rb"\[[\d :.-]{1,64}\] ")
_LONGEST_STAMP = 67
_NAME, _LONGEST_NAME = (string.ascii_letters + string.digits + "_.-").encode(), 255
_BARE_VERSION = re.compile(rb"NCCL version (\d+\.\d+[\w.+-]*)")


def _host(raw: bytes, first: int, end: int) -> bytes:
    """The name that ends at ``end``, and begins at ``first`` or later."""
    before = raw[max(first, end - _LONGEST_NAME) : end]
    return before[len(before.rstrip(_NAME)) :]


class NcclLogReader:
    """Reads one file: ``read`` takes its lines, any number of times; ``processes`` has the rest."""

    def __init__(self, file: str = "") -> None:
        self.file = file
        self.tally = Tally()
        self._held = Held("log", file)
        self._communicators = LoggedCommunicators(file)
        self._processes: list[NcclProcess] = []
        self.version = ""  # of a line without a process: NCCL <= 2.23 prints it so, once a job
        self._known: dict[tuple[str, int], NcclProcess] = {}
        # (process, thread) -> its last communicator
        self.open: dict[tuple[NcclProcess, int], Member] = {}
        self._of_handle: dict[tuple[NcclProcess, str], Member] = {}
        self.completed: set[NcclProcess] = set()  # with a communicator that is
        self.columns: dict[Member, list[Column]] = {}  # those of its tuning table
        # What stands before the mark -> process, thread, the host as it is spelled there.
        self.prefixes: dict[bytes, tuple[NcclProcess, int, str]] = {}
        # What a line says, from its mark on, that tells nothing whoever says it -> how it counts.
        # Such lines are many, and alike.
        self._passed: dict[bytes, str] = {}
        self._hosts: set[str] = set()
        self._hosts_of: dict[int, list[str]] = {}  # by process number
        self.process = NcclProcess("", 0)
        self.thread = 0

    @property
    def processes(self) -> list[NcclProcess]:
        """The processes of the file, in the order of their first lines.

        Where the outputs of several processes run into each other, pieces of lines look like
        prefixes of processes that do not exist. So a process that no whole line names is left out
        where whole lines name others. In a file with cut lines, beside processes of _MANY lines, so
        is one of a twentieth of the usual number, and what no readable prefix belongs to. A host
        has the name that most whole lines give it.
        """
        whole = [process for process in self._processes if process.names]
        lines = sorted(process.names.total() for process in whole if process.pid)
        usual = lines[len(lines) // 2] if lines else 0
        if self.tally.counts["cut"] and usual >= _MANY:
            few = max(_FEW, usual // 20)
            whole = [p for p in whole if p.pid and p.names.total() > few]
        for process in whole:
            process.host = process.names.most_common(1)[0][0]
        return whole or list(self._processes)

    def read(self, lines: Iterable[bytes]) -> None:
        mark, levels, counts = _MARK, _LEVELS, self.tally.counts
        prefixes, passed = self.prefixes, self._passed
        for raw in lines:
            place = raw.find(mark)
            if place < 0 or raw[place + 6 : place + 10] not in levels:
                kind = self._other(raw)
            elif known := passed.get(raw[place:]):
                kind = known
                process, _, host = prefixes.get(raw[:place]) or self._source(raw[:place], False)
                process.names[host] += 1
            else:
                further = raw.find(mark, place + 6)
                if further > 0 and raw[further + 6 : further + 10] in levels:
                    kind = self._spliced(raw)
                elif raw.find(b": opCount ", place) > 0:  # most lines of a large log
                    kind = "known"
                else:
                    kind = self._line(raw, place)
            counts[kind] += 1
            if kind == "cut" or kind == "unknown":
                self.tally.note(raw)

    def _other(self, raw: bytes) -> str:
        """A line of no process; the tables of functions that NCCL prints without a prefix."""
        if b"NCCL version " in raw and (found := _BARE_VERSION.search(raw)):
            self.version = self.version or found[1].decode()
            return "understood"
        if b" | " in raw and raw.split(None, 1)[0].decode("latin-1") in MATRIX:
            return "known"
        return "other"

    def _spliced(self, raw: bytes) -> str:
        """Messages of several processes in one line: all but the last end where the next begins."""
        places, past = [], 0
        for match in _INSIDE.finditer(raw):
            name = match.start()
            start = name - len(_host(raw, past, name))
            if start < name:
                stamp = raw.rfind(b"[", max(past, start - _LONGEST_STAMP), start)
                places.append(stamp if _STAMP.fullmatch(raw, max(stamp, 0), start) else start)
                past = match.end()
        starts = [0, *(place for place in places if place)]
        for start, end in zip(starts, [*starts[1:], len(raw)], strict=True):
            piece = raw[start:end]
            place = piece.find(_MARK)
            if place >= 0:
                self._line(piece, place, start > 0, whole=end == len(raw))
        return "cut"

    def _line(self, raw: bytes, place: int, inside: bool = False, whole: bool = True) -> str:
        """A message of one process; how it counts in the tally. ``inside``: of another line."""
        level = raw[place + 6 : place + 10]
        self.process, self.thread, host = self._source(raw[:place], inside)
        if whole and not inside:
            self.process.names[host] += 1
        message = raw[place + 6 :].partition(b" ")[2].decode("utf-8", "replace").rstrip()
        if len(message) > _LONGEST:
            return "cut"
        if level == b"WARN":
            where = raw[:place].rsplit(b"]", 1)[-1].strip().decode("utf-8", "replace")
            text = f"{message} ({where})" if where else message
            if text not in self.process.warnings:
                self.holds(1, 4 * len(text))
            self.process.warnings[text] += 1
            return "understood"
        if level == b"CALL":
            return "known"
        word = message.split(None, 1)[0] if message else ""
        handler = HANDLERS.get(word)
        if handler is None:
            if " set by environment to " in message:
                handler = variable
            elif " coll channels" in message:
                handler = counts
            elif " Bytes -> " in message:
                handler = call
            elif "comm 0x" in message and word.startswith(("ncclComm", "[Rank")):
                handler = communicator
            else:
                traced = level == b"TRAC"  # of which there is no list
                kind = "known" if traced or is_known(word, message) else "unknown"
                if not inside and whole and len(raw) - place <= _PASSED_BYTES:
                    if len(self._passed) >= _PASSED:
                        self._passed.clear()
                    self._passed[raw[place:]] = kind
                return kind
        # What another line interrupts may have lost its end: only what shows its end is taken.
        if (whole or handler in SHOW_THEIR_END) and handler(self, message):
            return "understood"
        return "known" if is_known(word, message) else "cut"

    def _source(self, prefix: bytes, inside: bool) -> tuple[NcclProcess, int, str]:
        """The process, thread and host of a line; one unnamed process where a prefix was edited
        away.
        """
        known = self.prefixes.get(prefix)
        if known:
            return known
        # A line that was cut within its prefix has another one behind it: that of the message.
        *_, found = (None, *_PREFIX.finditer(prefix))
        host, pid, thread = (
            (_host(prefix, 0, found.start()).decode(), int(found[1]), int(found[2]))
            if found
            else ("", 0, 0)
        )
        if inside and host not in self._hosts:
            # `busId 86node1:12:12 [0]`: the text before it ends where a known name begins.
            ends = (host[start:] for start in range(1, len(host)))
            host = next((name for name in ends if name in self._hosts), host)
        process = self._known.get((host, pid)) or self._damaged(host, pid)
        if process is None:
            process = self.made(host, pid)
        if not inside:
            self._hosts.add(process.host)
        if len(self.prefixes) > 65536:  # time stamps before each line: then no two are equal
            self.prefixes.clear()
        self.prefixes[prefix] = process, thread, host
        return process, thread, host

    def _damaged(self, host: str, pid: int) -> NcclProcess | None:
        """The process of that number, where a cut line has changed the name of its host: `47node1`
        (behind the number of another line) and `de1` are node1.
        """
        for other in self._hosts_of.get(pid, ())[:_TWINS]:
            longer, shorter = sorted((host, other), key=len, reverse=True)
            extra = longer.removesuffix(shorter)
            if shorter and extra != longer and extra[-1:].isalnum():
                process = self._known[other, pid]
                if extra.isdecimal():  # the line that made the process may be the cut one
                    process.names[shorter] += 1
                self._known[host, pid] = process
                return process
        return None

    def made(self, host: str, pid: int) -> NcclProcess:
        """A process that nothing was read of yet."""
        if max(len(self._known), len(self._processes)) >= MOST_PROCESSES:
            raise UnreadableError("log", self.file, f"at most {MOST_PROCESSES} processes")
        process = self._known[host, pid] = NcclProcess(host, pid, self.file)
        self._hosts_of.setdefault(pid, []).append(host)
        self._processes.append(process)
        return process

    def member(self) -> Member:
        """The communicator that this thread is making, or made last."""
        key = self.process, self.thread
        member = self.open.get(key)
        if member is None and self.process.members:
            # Another thread of the process: NCCL connects late, in threads of their own.
            return self.process.members[-1]
        # Without 'Init START' (<= 2.17) only what comes next tells that one was complete.
        if member is None or (member.complete and not member.started):
            member = self._another()
        return member

    def _another(self) -> Member:
        """A communicator of this thread that nothing was read of yet."""
        self._communicators.add()
        self.holds(_MEMBER)
        member = self.open[self.process, self.thread] = Member()
        self.process.members.append(member)
        return member

    def heads(self, columns: list[Column], whole: bool) -> bool:
        """These are the columns of the rows that follow."""
        self.columns[self.member()] = columns
        self.holds(len(columns))
        return whole

    def holds(self, things: int, text_bytes: int = 0) -> None:
        """So many more numbers with a name, or of a table, and text are kept of this file."""
        self._held.add_bytes(_THING_BYTES * things + text_bytes)

    def of_handle(self, handle: str) -> Member | None:
        """The communicator of this process that began last with this handle."""
        return self._of_handle.get((self.process, handle))

    def begun(self, fields: dict[str, str], start: bool) -> Member:
        """The communicator of a handle that is new; start: its line says that it begins here."""
        member = self.open.get((self.process, self.thread))
        if start or member is None or member.handle:
            member = self._another()
        member.handle, member.started = fields["comm"], start
        self._of_handle[self.process, member.handle] = member
        return member
