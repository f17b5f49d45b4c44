"""Reads Chakra execution traces as Traffic: one file ``NAME.RANK.et`` for each rank.

The size of a call is ``comm_size``, the bytes that the rank puts in (as in ASTRA-sim and in
chakra's converter of PyTorch traces). The bytes that it gets are computed from the collective.
Times are whole microseconds; inputs of simulators have no times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchcoll.core.errors import UnreadableError
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.importers.base import parse_ranks
from torchcoll.libraries.execution_trace import (
    COLLECTIVE,
    KINDS,
    RECV,
    SEND,
    ChakraNode,
    read_nodes,
)

SOURCE = "chakra"
_RANK = re.compile(r"\.(\d+)\.et$")
_NAMES = {number: name for name, number in KINDS.items()} | {8: "reduce_scatter"}
_WORLD = "world"
_GATHERED = ("all_gather", "gather")
_SCATTERED = ("reduce_scatter", "scatter")


def read_chakra(path: Path, siblings: Sequence[Path]) -> Traffic:
    """Read the calls of one rank.

    siblings: the files of all ranks, including this one.

    Raises UnreadableError for a file that is not a Chakra trace, whose name has no rank, or
    without communication.
    """
    rank = rank_of_file(path)
    ranks = max([rank, *map(rank_of_file, siblings)]) + 1
    groups: dict[str, Group] = {}
    calls: list[TrafficCall] = []
    sequences: dict[tuple[str, int | None, str], int] = {}
    unknown: dict[str, int] = {}
    for node in read_nodes(path):
        if node.kind not in (COLLECTIVE, SEND, RECV):
            continue
        call = _call(node, rank, ranks)
        if call is None:
            kind = str(node.attributes.get("comm_type"))
            unknown[kind] = unknown.get(kind, 0) + 1
            continue
        members = tuple(range(ranks)) if call.group == _WORLD else ()
        groups.setdefault(call.group, Group(call.group, members))
        side = call.collective if call.point_to_point else ""
        key = (call.group, call.peer, side)
        sequences[key] = sequences.get(key, -1) + 1
        calls.append(replace(call, sequence=sequences[key]))
    if not calls:
        raise UnreadableError("execution trace", path, "calls: COMM_COLL, COMM_SEND or COMM_RECV")
    notes = ["sizes of Chakra traces: comm_size, what a rank puts in; their types are not recorded"]
    for kind, count in unknown.items():
        notes.append(f"{count} nodes of comm_type {kind}, which is not known: left out")
    return Traffic(SOURCE, ranks, {rank: calls}, groups, notes=notes, path=path)


def rank_of_file(path: Path) -> int:
    """The rank in the name of a file. Raises UnreadableError if it has none."""
    match = _RANK.search(path.name)
    if not match or parse_ranks(int(match[1]) + 1) is None:
        raise UnreadableError("execution trace", path, "a name that ends with .RANK.et")
    return int(match[1])


def _call(node: ChakraNode, rank: int, ranks: int) -> TrafficCall | None:
    attributes = node.attributes
    size_bytes = attributes.get("comm_size")
    if not isinstance(size_bytes, int) or size_bytes < 0:
        size_bytes = 0
    group = str(attributes.get("pg_name") or "0")
    timed = node.duration_us > 0
    name = {SEND: "send", RECV: "recv"}.get(node.kind)
    peer = None
    if name:
        side = attributes.get("comm_dst" if name == "send" else "comm_src")
        peer = side if isinstance(side, int) and 0 <= side < ranks else None
        sizes = (size_bytes, 0) if name == "send" else (0, size_bytes)
    else:
        kind = attributes.get("comm_type")
        name = _NAMES.get(kind) if isinstance(kind, int) else None
        if name is None:
            return None
        sizes = _sizes(name, size_bytes, ranks if group == "0" else 0)
    return TrafficCall(
        name,
        *sizes,
        group=_WORLD if group == "0" else group,
        peer=peer,
        start_ns=1000 * node.start_us if timed else None,
        time_ns=1000 * node.duration_us if timed else None,
    )


def _sizes(name: str, size_bytes: int, ranks: int) -> tuple[int, int]:
    """(bytes in, bytes out). Bytes out are 0 if the number of ranks in the group is not known."""
    if name in _GATHERED:
        return size_bytes, size_bytes * ranks
    if name in _SCATTERED:
        return size_bytes, size_bytes // ranks if ranks else 0
    return size_bytes, size_bytes
