"""NCCL's and RCCL's own log (NCCL_DEBUG=INFO): what each process tells of itself.

A pure reader, line by line. Nothing is anchored: launchers put their own texts in front. Lines of
several processes may stand in one another (stdout of a node), be cut (a buffer of 1024 bytes, a
full disk) or edited; what stands in them whole is taken, and every line is counted once.

Formats: src/debug.cc, init.cc, graph/tuning.cc and transport/*.cc of NCCL 2.8 to 2.32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from torchcoll.libraries.calls import Tally
from torchcoll.libraries.nccl import calls
from torchcoll.libraries.nccl.graph import pattern_name
from torchcoll.libraries.nccl.known import is_known
from torchcoll.libraries.nccl.members import Graph, Member, Process, Tuned

_MARK = b" NCCL "
_LONGEST = 4096  # NCCL's own buffer has 1024
_LEVELS = frozenset((b"INFO", b"WARN", b"TRAC", b"CALL"))
_PREFIX = re.compile(rb"([\w.-]*):(\d{1,10}):(\d{1,10}) \[-?\w*\]")
# A whole prefix, to find one inside another line.
_INSIDE = re.compile(
    rb"(?:\[[\d :.-]+\] )?([\w.-]+):(\d{1,10}):(\d{1,10}) \[-?\w*\] "
    rb"(?:\S+:\d+ (?:\(\w+\) )?)?NCCL (?:INFO|WARN) "
)
_BARE_VERSION = re.compile(rb"NCCL version (\d+\.\d+[\w.+-]*)")
_FIELD = re.compile(
    r"\b(comm|rank|n[rR]anks|cudaDev|busId|commId|parent|splitCount|childCount|color|nNodes|"
    r"localRanks) (0x[0-9a-f]+|-?[0-9a-f]+)(?=[ ,-]|$)"
)
# Ends with the ranks, or with what RCCL adds: else it is a connection that was cut.
_RING = re.compile(r"Channel (\d+)/\d+ :((?: +\d+)+)(?: *\.\.\.)?(?: comm .*)?$")
_CONNECTION = re.compile(
    r"(?:Channel|CollNet) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\] -> (\d+)\[\w+\])?(?: \[\w+\])? "
    r"via ((?:P2P|SHM|NET|COLLNET|MNNVL)\b\S*)"
)
_NUMBERS = re.compile(r"/\d+(?:\(\d+\))?(?:\[\w+\])?")
_TREE = re.compile(r"\[(\d+)\] -?\d+/-?\d+/-?\d+->(\d+)->(-?\d+)")
_PART = re.compile(r"(\w+) (\d+\.\d+)")
_KINDS = re.compile(r"(\d+) (coll|collnet|nvls|p2p) channels(?! per)")
_PATTERN = re.compile(
    r"Pattern (\d+), crossNic \d+, nChannels (\d+), (?:bw|speed) (\d+(?:\.\d+)?)/(\d+(?:\.\d+)?), "
    r"type (\w+)/(\w+), sameChannels \d"
)
_SYSTEM = re.compile(
    r"=== System : max(?:Bw|Width) (\d+\.\d+)(?: total(?:Bw|Width) (\d+\.\d+))? ==="
)
_SET = re.compile(r"(\w+) set by environment to (.*)")
_CELL = re.compile(r"(\d+\.\d+)/(\d+\.\d+)$")
_FUNCTION_ROWS = frozenset(calls.FUNCTIONS.values())

Handler = Callable[["Reader", str], bool]


class Reader:
    """Reads one file: ``read`` takes its lines, any number of times; ``processes`` has the rest."""

    def __init__(self, file: str = "") -> None:
        self.file = file
        self.tally = Tally()
        self.processes: list[Process] = []
        self.version = ""  # of a line without a process: NCCL <= 2.23 prints it so, once a job
        self._known: dict[tuple[str, int], Process] = {}
        self._open: dict[tuple[int, int], Member] = {}  # (process, thread) -> its last communicator
        self._heads: dict[int, list[tuple[str, str]]] = {}  # id of a Member -> columns of its table
        self._prefixes: dict[bytes, tuple[Process, int]] = {}
        self._hosts: set[str] = set()
        self._process = Process("", 0)
        self._thread = 0

    def read(self, lines: Iterable[bytes]) -> None:
        mark, levels, counts = _MARK, _LEVELS, self.tally.counts
        for raw in lines:
            place = raw.find(mark)
            if place < 0 or raw[place + 6 : place + 10] not in levels:
                kind = self._other(raw)
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
        if b" | " in raw and raw.split(None, 1)[0].decode("latin-1") in _MATRIX:
            return "known"
        return "other"

    def _spliced(self, raw: bytes) -> str:
        """Messages of several processes in one line: all but the last end where the next begins."""
        places = [match.start() for match in _INSIDE.finditer(raw)]
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
        self._process, self._thread = self._source(raw[:place], inside)
        message = raw[place + 6 :].partition(b" ")[2].decode("utf-8", "replace").rstrip()
        if len(message) > _LONGEST:
            return "cut"
        if level == b"WARN":
            where = raw[:place].rsplit(b"]", 1)[-1].strip().decode("utf-8", "replace")
            self._process.warnings[f"{message} ({where})" if where else message] += 1
            return "understood"
        if level == b"CALL":
            return "known"
        word = message.split(None, 1)[0] if message else ""
        handler = _HANDLERS.get(word)
        if handler is None:
            if " set by environment to " in message:
                handler = Reader._variable
            elif " coll channels" in message:
                handler = Reader._counts
            elif " Bytes -> " in message:
                handler = Reader._call
            elif "comm 0x" in message and word.startswith(("ncclComm", "[Rank")):
                handler = Reader._communicator
            else:
                traced = level == b"TRAC"  # of which there is no list
                return "known" if traced or is_known(word, message) else "unknown"
        # What another line interrupts may have lost its end: only what shows its end is taken.
        if (whole or handler in _SHOW_THEIR_END) and handler(self, message):
            return "understood"
        return "known" if is_known(word, message) else "cut"

    # -- who speaks --------------------------------------------------------------------------

    def _source(self, prefix: bytes, inside: bool) -> tuple[Process, int]:
        """The process and thread of a line; one unnamed process where a prefix was edited away."""
        known = self._prefixes.get(prefix)
        if known:
            return known
        found = _PREFIX.search(prefix)
        host, pid, thread = (
            (found[1].decode(), int(found[2]), int(found[3])) if found else ("", 0, 0)
        )
        if inside and host not in self._hosts:
            # `busId 86node1:12:12 [0]`: the text before it ends where a known name begins.
            ends = [name for name in self._hosts if name and host.endswith(name)]
            host = max(ends, key=len) if ends else host
        self._hosts.add(host)
        process = self._known.get((host, pid))
        if process is None:
            process = self._made(host, pid)
        if len(self._prefixes) > 65536:  # time stamps before each line: then no two are equal
            self._prefixes.clear()
        self._prefixes[prefix] = process, thread
        return process, thread

    def _made(self, host: str, pid: int) -> Process:
        process = self._known[host, pid] = Process(host, pid, self.file)
        self.processes.append(process)
        return process

    def _member(self) -> Member:
        """The communicator that this thread is making, or made last."""
        key = id(self._process), self._thread
        member = self._open.get(key)
        if member is None and self._process.members:
            # Another thread of the process: NCCL connects late, in threads of their own.
            return self._process.members[-1]
        # Without 'Init START' (<= 2.17) only what comes next tells that one was complete.
        if member is None or (member.complete and not member.started):
            member = self._open[key] = Member()
            self._process.members.append(member)
        return member

    def _of_handle(self, handle: str) -> Member | None:
        members = self._process.members
        return next((m for m in reversed(members) if m.handle == handle), None)

    # -- what is said ------------------------------------------------------------------------

    def _communicator(self, message: str) -> bool:
        """``ncclCommInitRank comm 0x.. rank 3 nranks 8 cudaDev 3 .. commId 0x.. - Init START``."""
        fields = dict(_FIELD.findall(message))
        start, complete = "Init START" in message, "Init COMPLETE" in message
        ended = next((w for w in ("Destroy", "Abort", "Revoke") if f"{w} COMPLETE" in message), "")
        news = start or complete or ended or "nNodes" in fields
        if not news and fields and message.endswith(list(fields.values())[-1]):
            fields.popitem()  # the line was cut: its last number may be too
        if "comm" not in fields or not fields.get("rank", "-").isdecimal():
            return " coll channels" in message and self._counts(message)
        member = self._of_handle(fields["comm"])
        if start or member is None or (member.ended and not ended):
            member = self._begun(fields, start)
        if ended:
            member.ended = ended
        made_by = re.search(r"(nccl\w+) comm ", message)
        member.made_by = member.made_by or (made_by[1] if made_by else "")
        _keep(member, fields)
        member.complete |= complete
        return bool(news)

    def _begun(self, fields: dict[str, str], start: bool) -> Member:
        key = id(self._process), self._thread
        member = self._open.get(key)
        if start or member is None or member.handle:
            member = self._open[key] = Member()
            self._process.members.append(member)
        member.handle, member.started = fields["comm"], start
        return member

    def _timings(self, message: str) -> bool:
        """``Init timings - ncclCommInitRank: rank 0 nranks 8 total 1.58 (kernels 0.26, ...)``."""
        if not message.startswith("Init timings"):
            return False
        found = re.search(r"rank (\d+) nranks (\d+) total \d", message)
        if not found:
            return False
        rank, nranks = int(found[1]), int(found[2])
        own = [m for m in self._process.members if (m.rank, m.nranks) == (rank, nranks)]
        member = self._open.get((id(self._process), self._thread)) or Member()
        if (member.rank, member.nranks) != (rank, nranks):
            member = own[-1] if own else self._begun({"comm": ""}, False)
            member.rank, member.nranks = rank, nranks
        member.timings = {name: float(value) for name, value in _PART.findall(message)}
        return "rest" in member.timings

    def _bootstrap(self, message: str) -> bool:
        if not message.startswith("Bootstrap timings"):
            return False
        parts = {name: float(value) for name, value in _PART.findall(message)}
        self._member().bootstrap = parts
        return "delay" in parts

    def _channel(self, message: str) -> bool:
        if " via " in message:
            return self._connection(message)
        found = _RING.search(message)
        if not found:
            return False
        self._member().rings[int(found[1])] = tuple(map(int, found[2].split()))
        return True

    def _connection(self, message: str) -> bool:
        found = _CONNECTION.search(message)
        if not found:
            return False
        kind = _NUMBERS.sub("", found[4])
        process = self._process
        process.transports[kind] += 1
        if found[3]:
            process.pairs.setdefault(kind, set()).add((int(found[2]), int(found[3])))
        return True

    def _trees(self, message: str) -> bool:
        found = _TREE.findall(message)
        self._member().up.update({int(channel): int(up) for channel, _, up in found})
        return bool(found)

    def _counts(self, message: str) -> bool:
        self._member().channels = {kind: int(number) for number, kind in _KINDS.findall(message)}
        return True

    def _pattern(self, message: str) -> bool:
        found = _PATTERN.search(message)
        if not found:
            return False
        pattern = pattern_name(int(found[1]))
        self._member().graphs.append(
            Graph(pattern, int(found[2]), float(found[3]), float(found[4]), found[5], found[6])
        )
        return True

    def _system(self, message: str) -> bool:
        """``=== System : maxBw 240.0 totalBw 240.0 ===``: of the GRAPH subsystem."""
        found = _SYSTEM.match(message)
        if found:
            member = self._member()
            member.max_gbps = float(found[1])
            member.total_gbps = float(found[2]) if found[2] else None
        return bool(found)

    def _nvls(self, message: str) -> bool:
        if message.startswith("NVLS multicast support is "):
            self._process.nvls = "no" if " not available" in message else "yes"
            return True
        if message.startswith("NVLS comm ") and (
            found := re.search(r"comm (0x[0-9a-f]+)", message)
        ):
            (self._of_handle(found[1]) or self._member()).nvls = True
            return True
        return False

    def _call(self, message: str) -> bool:
        call = _call_of(message) if " Bytes -> " in message else None
        if call:
            self._process.calls[call] += 1
        elif "|" in message:
            return self._row(message)
        return call is not None

    # -- the tuning table --------------------------------------------------------------------

    def _algorithms(self, message: str) -> bool:
        """``Algorithm | Tree | Ring | CollNetDirect |``: three columns each (>= 2.18)."""
        names = [calls.canonical(cell.strip()) for cell in message.split("|")[1:-1]]
        pairs = [(name, protocol) for name in names if name for protocol in calls.PROTOCOLS]
        self._heads[id(self._member())] = pairs
        return bool(pairs) and None not in names

    def _wide_head(self, message: str) -> bool:
        """``Latency/AlgBw | Tree/ LL | Tree/ LL128 |``: one table (<= 2.17)."""
        cells = [cell.split("/") for cell in message.split("|")[1:-1]]
        # CollNet was one algorithm before 2.14, and chain came as its second.
        pairs = [
            (calls.canonical(a.strip()) or a.strip().upper(), calls.canonical(p.strip()) or "")
            for a, p in (cell for cell in cells if len(cell) == 2)
        ]
        self._heads[id(self._member())] = pairs
        return bool(pairs) and len(pairs) == len(cells)

    def _row(self, message: str) -> bool:
        member = self._member()
        name, *cells = (cell.strip() for cell in message.split("|"))
        heads = self._heads.get(id(member), [])
        values = [_CELL.match(cell.replace(" ", "")) for cell in cells[:-1]]
        if not heads or len(values) != len(heads) or not all(values):
            return False
        member.tuning += [
            Tuned(name, *head, float(value[1]), float(value[2]))
            for head, value in zip(heads, values, strict=True)
            if value
        ]
        return True

    # -- versions and variables --------------------------------------------------------------

    def _version(self, message: str) -> bool:
        if found := re.match(r"NCCL git version (\S+) (\S+)", message):
            self._process.git = f"{found[1]} {found[2]}"
            return True
        found = re.match(r"(NCCL|RCCL) version ?:? ?(\d\S+)", message)
        if not found:
            return False
        if self._process.version and any(m.complete for m in self._process.members):
            # Once a process: this is another one of the same number, as containers have them.
            self._process = self._made(self._process.host, self._process.pid)
            self._prefixes.clear()
        self._process.library, self._process.version = found[1], found[2]
        return True

    def _driver(self, message: str) -> bool:
        self._process.driver = message.split()[-1]
        return True

    def _network(self, message: str) -> bool:
        found = re.match(r"Using network (.+)", message)
        if found:
            self._process.network = found[1]
        return bool(found)

    def _tuner(self, message: str) -> bool:
        found = re.match(r"TUNER/Plugin: Using (?:tuner plugin )?(.+)", message)
        if found:
            self._process.tuner = found[1]
        return bool(found)

    def _loaded(self, message: str) -> bool:
        found = re.match(r"Successfully loaded external tuner plugin (\S+)", message)
        if found:
            self._process.tuner = f"{self._process.tuner} {found[1]}".strip()
        return bool(found)

    def _variable(self, message: str) -> bool:
        found = _SET.search(message)
        if found:
            value = found[2].rstrip(".") if found[2].rstrip(".").lstrip("-").isdigit() else found[2]
            self._process.variables[found[1]] = value
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


_call_of = lru_cache(maxsize=4096)(calls.call_of)  # the same line comes once a call

_MATRIX = _FUNCTION_ROWS | {"Function"}
_SHOW_THEIR_END = (Reader._communicator, Reader._timings, Reader._bootstrap, Reader._call)
_HANDLERS: dict[str, Handler] = {
    "comm": Reader._communicator,
    "Init": Reader._timings,
    "Bootstrap": Reader._bootstrap,
    "Channel": Reader._channel,
    "CollNet": Reader._connection,
    "Trees": Reader._trees,
    "===": Reader._system,
    "Pattern": Reader._pattern,
    "NVLS": Reader._nvls,
    "NCCL": Reader._version,
    "RCCL": Reader._version,
    "cudaDriverVersion": Reader._driver,
    "Using": Reader._network,
    "TUNER/Plugin:": Reader._tuner,
    "Successfully": Reader._loaded,
    "Algorithm": Reader._algorithms,
    "Latency/AlgBw": Reader._wide_head,
    **dict.fromkeys(_FUNCTION_ROWS, Reader._call),
    **{f"{name}:": Reader._call for name in _FUNCTION_ROWS},
}
