"""The file of a Traffic, written and read.

The file is JSON Lines (UTF-8, .gz too), one object a line, whose key ``record`` says what it is:

========== =====================================================================================
header     the first line. ``schema``: ``torchcoll-traffic/1``; ``source``: that of
           Traffic; ``ranks``: size of the world; ``environment``: versions and variables
group      one for each process group: ``name``, ``ranks`` (of the world, in the group's order),
           ``backend``, ``description``
step       one for each rank that was seen: ``rank``; ``spans_ns``: [start, end] of its marked
           steps on its own clock
call       one for each call of a rank, in the order of issue: ``rank`` and the fields of
           TrafficCall, of which those that have their default are left out
note       ``text``: what could not be seen, a sentence
end        the last line; without it the file was cut off
========== =====================================================================================

A file may hold all ranks or some: those of one capture are joined by ``join``. They tell it by the
same ``capture`` in their environment, a time. Times are whole
nanoseconds, sizes bytes. Readers ignore fields and records that they do not know; what they cannot
read without is a new schema, ``torchcoll-traffic/2``, which this version refuses.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import UnreadableError
from torchcoll.core.lines import (
    TRUNCATED,
    UNUSABLE,
    lines_of,
    parse_line,
    read_records,
)
from torchcoll.core.result import check_texts, check_whole
from torchcoll.core.traffic import Group, Traffic, TrafficCall, join

SCHEMA = "torchcoll-traffic/1"
RANK_FILE = "traffic-rank"  # what a capture writes: traffic-rank0.jsonl


def records_of(traffic: Traffic) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records in file order."""
    header = {
        "source": traffic.source,
        "ranks": traffic.ranks,
        "environment": traffic.environment,
    }
    yield "header", {"schema": SCHEMA, **header}
    for group in traffic.groups.values():
        yield "group", dataclasses.asdict(group)
    for rank in sorted({*traffic.calls, *traffic.steps}):
        yield "step", {"rank": rank, "spans_ns": traffic.steps.get(rank, [])}
    for rank, calls in traffic.calls.items():
        for call in calls:
            yield "call", {"rank": rank, **call.to_json()}
    for note in traffic.notes:
        yield "note", {"text": note}
    yield "end", {"status": "complete"}


def load(path: Path) -> Traffic:
    """See Traffic.load."""
    if path.is_dir():
        parts = [load(file) for file in _in_folder(path)]
        return dataclasses.replace(join(latest(parts, path)), path=path)
    traffic = Traffic(path=path)
    ended = False

    def take(record: str, data: dict[str, Any]) -> None:
        nonlocal ended
        ended = ended or record == "end"
        _take(traffic, record, data)

    def header(data: dict[str, Any]) -> None:
        _header(traffic, data)

    read_records(path, traffic.problems, "traffic file", SCHEMA, header, take)
    if not ended:
        traffic.problems.append(f"{path}: {TRUNCATED}")
    return traffic


def _header(traffic: Traffic, header: dict[str, Any]) -> None:
    traffic.ranks, traffic.source = header["ranks"], header["source"]
    traffic.environment = dict(header.get("environment") or {})
    check_whole(traffic.ranks)
    if not (0 < traffic.ranks <= MOST_RANKS and isinstance(traffic.source, str)):
        raise ValueError


def _take(traffic: Traffic, record: str, data: dict[str, Any]) -> None:
    if record == "call":
        call, rank = TrafficCall.from_json(data), _known(traffic, data["rank"])
        _known(traffic, call.root, call.peer)
        traffic.calls.setdefault(rank, []).append(call)
    elif record == "group":
        check_texts(data["name"], data.get("backend"), data.get("description"))
        _known(traffic, *data["ranks"])
        if len(set(data["ranks"])) < len(data["ranks"]):
            raise ValueError("a rank twice in a group")
        traffic.groups[data["name"]] = Group(
            data["name"],
            tuple(data["ranks"]),
            data.get("backend") or "",
            data.get("description") or "",
        )
    elif record == "step":
        spans = [(start, end) for start, end in data["spans_ns"]]
        check_whole(*(stamp for span in spans for stamp in span))
        rank = _known(traffic, data["rank"])
        traffic.calls.setdefault(rank, [])
        if spans:
            traffic.steps[rank] = spans
    elif record == "note":
        traffic.notes.append(str(data["text"]))


def _known(traffic: Traffic, *ranks: int | None) -> int:
    """The first, where all are ranks of the world or None."""
    numbers = [0 if rank is None else rank for rank in ranks]
    check_whole(*numbers)
    if not all(0 <= number < traffic.ranks for number in numbers):
        raise ValueError(f"a rank that is not among 0 to {traffic.ranks - 1}")
    return next(iter(numbers), 0)


def is_traffic(path: str | os.PathLike[str]) -> bool:
    """True for a traffic file of any version, and for a folder that holds one."""
    try:
        path = Path(path)
        if path.is_dir():
            return any(is_traffic(file) for file in path.iterdir() if file.is_file())
        line = next(iter(lines_of(path, [], longest=1 << 20)), b"")
        # A large JSON of one line is not worth decoding for that.
        return b"torchcoll-traffic/" in line and str(parse_line(line)["schema"]).startswith(
            "torchcoll-traffic/"
        )
    except (UnreadableError, OSError, *UNUSABLE):
        return False


def latest(parts: Sequence[Traffic], folder: Path) -> list[Traffic]:
    """Those of the last capture in a folder: a job that began again writes beside what is there. A
    note names the others.
    """
    captures: dict[tuple[str, int], list[Traffic]] = {}
    for part in parts:
        captures.setdefault(_capture_of(part), []).append(part)
    if len(captures) < 2:
        return list(parts)
    last = max(captures)
    own = list(captures.pop(last))
    names = [part.path.name for other in captures.values() for part in other if part.path]
    if len(names) > _NAMED:
        names[_NAMED:] = [f"{len(names) - _NAMED} more"]
    begun = f", begun {last[0].split(' ')[0]}" if last[0] else ""
    note = f"{folder} holds {len(captures) + 1} captures: this is the last{begun}; left out: "
    own[0] = dataclasses.replace(own[0], notes=[f"{note}{', '.join(names)}", *own[0].notes])
    return own


def _capture_of(part: Traffic) -> tuple[str, int]:
    """When it began; where that is not told, the number in the name of its file."""
    told = part.environment.get("capture")
    if isinstance(told, str):
        return told, 0
    found = _NUMBERED.match(part.path.name if part.path else "")
    return "", int(found[1]) if found else 0


_NUMBERED = re.compile(rf"{RANK_FILE}\d{{1,9}}-(\d{{1,9}})\.", re.ASCII)
_NAMED = 8  # files, in a note


def _in_folder(folder: Path) -> list[Path]:
    """The traffic files, and those that by their names should be. Raises UnreadableError."""
    files = [
        file
        for file in sorted(folder.iterdir())
        if file.is_file() and (is_traffic(file) or file.name.startswith(RANK_FILE))
    ]
    if not files:
        raise UnreadableError("traffic folder", folder, "a folder of traffic files; it has none")
    return files
