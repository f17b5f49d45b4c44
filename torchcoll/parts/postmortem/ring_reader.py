"""Reads the ring file of a capture (core/call_ring.py): the last calls of one rank."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.call_ring import (
    CALL,
    CALL_BODY,
    CALLS_AT,
    CAPACITY,
    MAGIC,
    PENDING,
    PREFIX,
    SCHEMA,
    TEXTS_AT,
    UNCERTAIN,
)
from torchcoll.core.errors import UnreadableError
from torchcoll.core.jsonl import UNUSABLE, CheckSums, chunks_of, parse_line
from torchcoll.core.result import check_ranks, check_texts, check_whole
from torchcoll.core.traffic import Group

_WHAT = "call ring"
_MOST_BYTES = CALLS_AT + CAPACITY * CALL.size
_MOST_NS = 1 << 62


@dataclass(frozen=True)
class RingCall:
    """One call of a ring.

    serial: its number among all calls of the process, from 1.
    number: among the calls of its group (send and recv: with its peer), from 1.
    ended_ns: None if it has not ended.
    certain: False if a call that has not ended may have ended without having been noticed yet.
    """

    serial: int
    group: str
    number: int
    collective: str
    dtype: str | None
    bytes_in: int
    bytes_out: int
    peer: int | None
    root: int | None
    caller: str
    created_ns: int
    ended_ns: int | None
    failed: bool
    certain: bool


@dataclass
class CallRing:
    """The content of a ring file; ``calls`` are in the order of issue.

    errors: serial number of a call -> the exception that it raised.
    end: ``status``, ``reason`` and ``text``; {} if the capture did not end.
    """

    header: dict[str, Any]
    alive_ns: int | None = None
    groups: dict[str, Group] = field(default_factory=dict)
    calls: list[RingCall] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return int(self.header["rank"])

    @property
    def ranks(self) -> int:
        return int(self.header["ranks"])


def is_ring(begin: bytes) -> bool:
    """Whether a file that begins with these bytes is a ring."""
    return begin.startswith(MAGIC)


def read_ring(path: Path) -> CallRing:
    """Read a ring file, also a truncated one. Damaged parts become ``problems``.

    Raises UnreadableError for any other file, and for an unusable header.
    """
    problems: list[str] = []
    data = b""
    for piece in chunks_of(path, problems, _WHAT):
        data += piece[: _MOST_BYTES - len(data)]
        if len(data) >= _MOST_BYTES:
            break
    if not is_ring(data) or len(data) < TEXTS_AT:
        raise UnreadableError(_WHAT, path, 'a file that capture(on_hang="dump") wrote')
    texts = data[TEXTS_AT:CALLS_AT].partition(b"\0")[0].split(b"\n")
    try:
        header = parse_line(texts[0])
        check_whole(header["rank"], header["ranks"], header["pid"], header["start_ns"])
        check_texts(header["host"], header.get("capture"), header.get("slurm_job_id"))
        check_texts(header.get("torchelastic_run_id"))
        usable = 0 <= header["rank"] < header["ranks"] <= MOST_RANKS
        if not usable or header["schema"] != SCHEMA:
            raise ValueError("another schema or an impossible rank")
    except UNUSABLE:
        raise UnreadableError(_WHAT, path, "one with a readable header") from None
    ring = CallRing(header, problems=problems)
    alive_ns = PREFIX.unpack_from(data)[1]
    ring.alive_ns = alive_ns if 0 < alive_ns < _MOST_NS else None

    sums = CheckSums(texts[0])
    groups: dict[int, str] = {0: ""}  # 0: there was no room for the group
    names: dict[int, str] = {0: ""}
    for line in texts[1:]:
        try:
            if line:
                if problem := sums.check(line):
                    problems.append(f"{path}: {problem}")
                _take_text(ring, parse_line(line), groups, names)
        except UNUSABLE as error:
            if len(problems) < 5:
                problems.append(f"{path}: unusable record: {type(error).__name__}")
    _read_calls(ring, data[CALLS_AT:], groups, names, path)
    if len(data) < _MOST_BYTES:
        problems.append(f"{path}: truncated to {len(data)} of {_MOST_BYTES} bytes")
    return ring


def _take_text(
    ring: CallRing, record: dict[str, Any], groups: dict[int, str], names: dict[int, str]
) -> None:
    kind = record["record"]
    if kind == "text":
        check_whole(record["id"])
        check_texts(record["text"])
        names[record["id"]] = record["text"]
    elif kind == "group":
        check_whole(record["id"])
        check_texts(record["name"], record["description"], record["backend"])
        ranks = record["ranks"]
        check_ranks(*ranks)
        if record["spaced"]:  # first, end and step
            ranks = range(*ranks)
        if len(ranks) > ring.ranks or any(not 0 <= rank < ring.ranks for rank in ranks):
            raise ValueError("a rank that is not of the world")
        name = record["name"]
        groups[record["id"]] = name
        ring.groups[name] = Group(name, tuple(ranks), record["backend"], record["description"])
    elif kind == "error":
        check_whole(record["serial"])
        check_texts(record["text"])
        ring.errors[record["serial"]] = record["text"]
    elif kind == "end":
        check_texts(record["status"], record["reason"], record["text"])
        ring.end = {name: record[name] for name in ("status", "reason", "text")}


def _read_calls(
    ring: CallRing, data: bytes, groups: dict[int, str], names: dict[int, str], path: Path
) -> None:
    """Add the calls of the ring, in the order of issue."""
    damaged = 0
    for index in range(min(CAPACITY, len(data) // CALL.size)):
        record = data[index * CALL.size : (index + 1) * CALL.size]
        *fields, crc, state = CALL.unpack(record)
        serial, created_ns, bytes_in, bytes_out, number, group, *ids, peer, root = fields
        if not serial:
            damaged += any(record)
            continue
        if (
            crc != zlib.crc32(record[: CALL_BODY.size])
            or serial % CAPACITY != index
            or group not in groups
            or any(name not in names for name in ids)
            or not (0 < created_ns < _MOST_NS and abs(state) < _MOST_NS)
            or min(bytes_in, bytes_out) < 0
            or max(peer, root) >= ring.ranks
        ):
            damaged += 1
            continue
        collective, dtype, caller = (names[name] for name in ids)
        ring.calls.append(
            RingCall(
                serial=serial,
                group=groups[group],
                number=number,
                collective=collective,
                dtype=dtype or None,
                bytes_in=bytes_in,
                bytes_out=bytes_out,
                peer=peer if peer >= 0 else None,
                root=root if root >= 0 else None,
                caller=caller,
                created_ns=created_ns,
                ended_ns=abs(state) if state not in (PENDING, UNCERTAIN) else None,
                failed=state < 0,
                certain=state != UNCERTAIN,
            )
        )
    ring.calls.sort(key=lambda call: call.serial)
    # A record that the writer has not reached for a whole turn is damaged too.
    while ring.calls and ring.calls[0].serial <= ring.calls[-1].serial - CAPACITY:
        damaged += 1
        del ring.calls[0]
    if damaged:
        ring.problems.append(f"{path}: {damaged} damaged records of calls")
