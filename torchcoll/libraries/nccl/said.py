"""What the messages of NCCL's log say of their process and their communicator, one function each.

Each takes the reader, which knows who speaks, and the message; False where it was cut, or is
another one that begins alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from torchcoll.libraries.nccl import calls, paths, tuning_table
from torchcoll.libraries.nccl.members import Member

if TYPE_CHECKING:
    from torchcoll.libraries.nccl.log import Reader

_FIELD = re.compile(
    r"\b(comm|rank|n[rR]anks|cudaDev|busId|commId|parent|splitCount|childCount|color|nNodes|"
    r"localRanks) (0x[0-9a-f]+|-?[0-9a-f]+)(?=[ ,-]|$)"
)
_PART = re.compile(r"(\w+) (\d+\.\d+)")
_SET = re.compile(r"(\w+) set by environment to (.*)")
_FUNCTION_ROWS = frozenset(calls.FUNCTIONS.values())

Handler = Callable[["NcclLogReader", str], bool]


def communicator(reader: Reader, message: str) -> bool:
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
    member.complete |= complete
    return bool(news)


def timings(reader: Reader, message: str) -> bool:
    """``Init timings - ncclCommInitRank: rank 0 nranks 8 total 1.58 (kernels 0.26, ...)``."""
    if not message.startswith("Init timings"):
        return False
    found = re.search(r"rank (\d+) nranks (\d+) total \d", message)
    if not found:
        return False
    rank, nranks = int(found[1]), int(found[2])
    own = [m for m in reader.process.members if (m.rank, m.nranks) == (rank, nranks)]
    member = reader.open.get((id(reader.process), reader.thread)) or Member()
    if (member.rank, member.nranks) != (rank, nranks):
        member = own[-1] if own else reader.begun({"comm": ""}, False)
        member.rank, member.nranks = rank, nranks
    member.timings = {name: float(value) for name, value in _PART.findall(message)}
    return "rest" in member.timings


def bootstrap(reader: Reader, message: str) -> bool:
    if not message.startswith("Bootstrap timings"):
        return False
    parts = {name: float(value) for name, value in _PART.findall(message)}
    reader.member().bootstrap = parts
    return "delay" in parts


def channel(reader: Reader, message: str) -> bool:
    if " via " in message:
        return connection(reader, message)
    ring = paths.ring_of(message)
    if ring:
        reader.member().rings[ring[0]] = ring[1]
    return ring is not None


def connection(reader: Reader, message: str) -> bool:
    found = paths.connection_of(message)
    if not found:
        return False
    kind, pair = found
    reader.process.transports[kind] += 1
    if pair:
        reader.process.pairs.setdefault(kind, set()).add(pair)
    return True


def trees(reader: Reader, message: str) -> bool:
    parents = paths.parents_of(message)
    reader.member().up.update(parents)
    return bool(parents)


def counts(reader: Reader, message: str) -> bool:
    reader.member().channels = paths.channels_of(message)
    return True


def pattern(reader: Reader, message: str) -> bool:
    graph = paths.graph_of(message)
    if graph:
        reader.member().graphs.append(graph)
    return graph is not None


def system(reader: Reader, message: str) -> bool:
    """Of the GRAPH subsystem."""
    found = paths.bandwidths_of(message)
    if found:
        member = reader.member()
        member.max_gbps, member.total_gbps = found
    return found is not None


def nvls(reader: Reader, message: str) -> bool:
    if message.startswith("NVLS multicast support is "):
        reader.process.nvls = "no" if " not available" in message else "yes"
        return True
    if message.startswith("NVLS comm ") and (found := re.search(r"comm (0x[0-9a-f]+)", message)):
        (reader.of_handle(found[1]) or reader.member()).nvls = True
        return True
    return False


def call(reader: Reader, message: str) -> bool:
    chosen = _call_of(message) if " Bytes -> " in message else None
    if chosen:
        reader.process.calls[chosen] += 1
    elif "|" in message:
        return row(reader, message)
    return chosen is not None


def algorithms(reader: Reader, message: str) -> bool:
    reader.columns[id(reader.member())], whole = tuning_table.columns_of(message)
    return whole


def wide_head(reader: Reader, message: str) -> bool:
    reader.columns[id(reader.member())], whole = tuning_table.wide_columns_of(message)
    return whole


def row(reader: Reader, message: str) -> bool:
    member = reader.member()
    cells = tuning_table.row_of(message, reader.columns.get(id(member), ()))
    member.tuning += cells
    return bool(cells)


def version(reader: Reader, message: str) -> bool:
    if found := re.match(r"NCCL git version (\S+) (\S+)", message):
        reader.process.git = f"{found[1]} {found[2]}"
        return True
    found = re.match(r"(NCCL|RCCL) version ?:? ?(\d\S+)", message)
    if not found:
        return False
    if reader.process.version and any(m.complete for m in reader.process.members):
        # Once a process: this is another one of the same number, as containers have them.
        reader.process = reader.made(reader.process.host, reader.process.pid)
        reader.prefixes.clear()
    reader.process.library, reader.process.version = found[1], found[2]
    return True


def driver(reader: Reader, message: str) -> bool:
    reader.process.driver = message.split()[-1]
    return True


def network(reader: Reader, message: str) -> bool:
    found = re.match(r"Using network (.+)", message)
    if found:
        reader.process.network = found[1]
    return bool(found)


def tuner(reader: Reader, message: str) -> bool:
    found = re.match(r"TUNER/Plugin: Using (?:tuner plugin )?(.+)", message)
    if found:
        reader.process.tuner = found[1]
    return bool(found)


def loaded(reader: Reader, message: str) -> bool:
    found = re.match(r"Successfully loaded external tuner plugin (\S+)", message)
    if found:
        reader.process.tuner = f"{reader.process.tuner} {found[1]}".strip()
    return bool(found)


def variable(reader: Reader, message: str) -> bool:
    found = _SET.search(message)
    if found:
        value = found[2].rstrip(".") if found[2].rstrip(".").lstrip("-").isdecimal() else found[2]
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


_call_of = lru_cache(maxsize=4096)(calls.call_of)  # the same line comes once a call

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
