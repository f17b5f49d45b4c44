"""What a training step sends: the calls of every process group, rank by rank, and their file.

The file is JSON Lines like the result file: header (schema ``torchcoll-traffic/1``), group, step,
call, note, end. A call leaves out the fields that have their default.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.records import Writer, lines_of, parse_line
from torchcoll.core.result import check_texts, check_whole

SCHEMA = "torchcoll-traffic/1"
SOURCES = ("capture", "plan", "kineto", "flight recorder")
# Beside the names of core/collectives.py: one side of a point-to-point message each.
POINT_TO_POINT = ("send", "recv")


@dataclass(frozen=True)
class Group:
    """A process group: ranks of the world in the order of the group; () where not told."""

    name: str
    ranks: tuple[int, ...] = ()
    backend: str = ""
    description: str = ""


@dataclass(frozen=True)
class TrafficCall:
    """One call on one rank, as the training made it.

    collective: a name of core/collectives.py, ``send`` or ``recv``, or torch's own name where the
    table has none. nbytes_in / nbytes_out: bytes that this rank puts in and gets.
    op: of a reduction; None where torch hides it. root: rank of the world, of a rooted collective;
    peer: the other side of send and recv.
    sequence: number of the call among those of its group on this rank, from 0: ranks are joined by
    it. send and recv are numbered for each peer apart, since not all ranks of a group make them.
    step: number of the step, from 0; None: outside of marked steps.
    start_ns: when it was issued, on this rank's own clock, from the start of the capture.
    time_ns: its duration, from issue to completion (clock ``host``), or of the kernel (``device``).
    tensors: how many tensors went in one coalesced call. splits: bytes to each rank of the group,
    of an uneven all_to_all_v.
    """

    collective: str
    nbytes_in: int
    nbytes_out: int
    dtype: str | None = None
    op: str | None = None
    root: int | None = None
    peer: int | None = None
    group: str = ""
    sequence: int = 0
    step: int | None = None
    asynchronous: bool | None = None
    start_ns: int | None = None
    time_ns: int | None = None
    clock: str = "host"
    tensors: int = 1
    splits: tuple[int, ...] = ()

    @property
    def point_to_point(self) -> bool:
        return self.collective in POINT_TO_POINT

    def to_json(self) -> dict[str, Any]:
        data = {}
        for own in dataclasses.fields(self):
            value = getattr(self, own.name)
            if own.default is dataclasses.MISSING or value != own.default:
                data[own.name] = value
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrafficCall:
        """Unknown fields are ignored. Raises TypeError or ValueError on a broken one."""
        values = {k: v for k, v in data.items() if k in _CALL_FIELDS}
        values["splits"] = tuple(values.get("splits") or ())
        call = cls(**values)
        check_texts(call.dtype, call.op)
        numbers = (call.root, call.peer, call.step, call.start_ns, call.time_ns, *call.splits)
        check_whole(*(0 if number is None else number for number in numbers))
        check_whole(call.nbytes_in, call.nbytes_out, call.sequence, call.tensors)
        if not all(isinstance(t, str) for t in (call.collective, call.group, call.clock)):
            raise TypeError("not a text")
        if call.asynchronous is not None and not isinstance(call.asynchronous, bool):
            raise TypeError("asynchronous is no truth value")
        if min(call.nbytes_in, call.nbytes_out, call.time_ns or 0, call.tensors) < 0:
            raise ValueError("a negative size or time")
        return call


_CALL_FIELDS = {f.name for f in dataclasses.fields(TrafficCall)}


@dataclass
class Traffic:
    """The calls of one or more ranks over some steps.

    source: where it was seen: ``capture``, ``plan`` (nothing ran), ``kineto``, ``flight recorder``.
    ranks: size of the world. calls[rank]: in the order of issue; not all ranks need be there.
    steps[rank]: (start, end) of each marked step in nanoseconds on that rank's clock; no marks: all
    calls are one step. notes: what could not be seen, a sentence each. problems: what was wrong in
    the file.
    """

    source: str = "capture"
    ranks: int = 1
    calls: dict[int, list[TrafficCall]] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    steps: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    path: Path | None = None
    mark_step: Callable[[], None] | None = None  # while it is being captured

    def step(self) -> None:
        """Marks the end of a training step. Raises UsageError outside of a capture."""
        if self.mark_step is None:
            raise UsageError("step", "no capture", "a step inside of `with torchcoll.capture()`")
        self.mark_step()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new file. Raises UsageError when it exists or cannot be written."""
        writer = Writer(Path(path))
        try:
            for record, data in self._records():
                writer.write(record, data)
        finally:
            writer.close()

    def _records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        header = {"source": self.source, "ranks": self.ranks, "environment": self.environment}
        yield "header", {"schema": SCHEMA, **header}
        for group in self.groups.values():
            yield "group", dataclasses.asdict(group)
        for rank, spans in self.steps.items():
            yield "step", {"rank": rank, "spans_ns": spans}
        for rank, calls in self.calls.items():
            for call in calls:
                yield "call", {"rank": rank, **call.to_json()}
        for note in self.notes:
            yield "note", {"text": note}
        yield "end", {"status": "complete"}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Traffic:
        """The traffic in a file; .gz too. Broken lines are ``problems``.

        Raises UnreadableError when it is missing, no traffic file, or of another major schema.
        """
        path = Path(path)
        traffic = cls(path=path)
        ended = False
        for number, line in enumerate(lines_of(path, traffic.problems, "traffic file"), 1):
            if number == 1:
                traffic._read_header(line, path)
                continue
            try:
                data = parse_line(line)
                record = data.pop("record")
                ended = ended or record == "end"
                traffic._read(record, data)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                why = f"{type(error).__name__}: {error}"[:120]
                traffic.problems.append(f"{path}:{number}: unusable record: {why}")
        if not ended:
            traffic.problems.append(f"{path}: truncated: the file has no end record")
        return traffic

    def _read_header(self, line: bytes, path: Path) -> None:
        expected = f'a traffic file, whose first line holds "schema":"{SCHEMA}"'
        try:
            header = parse_line(line)
            schema = header["schema"]
            self.ranks, self.source = header["ranks"], header["source"]
            self.environment = dict(header.get("environment") or {})
            check_whole(self.ranks)
            if not schema.startswith("torchcoll-traffic/") or self.ranks < 1:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UnreadableError("traffic file", path, expected) from None
        if schema.split("/")[1].split(".")[0] != SCHEMA.split("/")[1]:
            action = "Install the torchcoll version that wrote it."
            raise UnreadableError(f"schema of {path}", schema, SCHEMA, action)

    def _read(self, record: str, data: dict[str, Any]) -> None:
        if record == "call":
            rank = data.pop("rank")
            check_whole(rank)
            self.calls.setdefault(rank, []).append(TrafficCall.from_json(data))
        elif record == "group":
            check_texts(data["name"], data.get("backend"), data.get("description"))
            check_whole(*data["ranks"])
            self.groups[data["name"]] = Group(
                data["name"],
                tuple(data["ranks"]),
                data.get("backend") or "",
                data.get("description") or "",
            )
        elif record == "step":
            spans = [(start, end) for start, end in data["spans_ns"]]
            check_whole(data["rank"], *(stamp for span in spans for stamp in span))
            self.steps[data["rank"]] = spans
        elif record == "note":
            self.notes.append(str(data["text"]))


def is_traffic(path: str | os.PathLike[str]) -> bool:
    """True for a traffic file of any version."""
    try:
        line = next(iter(lines_of(Path(path), [])), b"")
        return str(parse_line(line)["schema"]).startswith("torchcoll-traffic/")
    except (UnreadableError, ValueError, KeyError, TypeError):
        return False


def join(parts: Iterable[Traffic]) -> Traffic:
    """One Traffic of files that hold other ranks each.

    Raises UsageError when two hold the same rank, the worlds differ, or a group is not the same.
    """
    joined: Traffic | None = None
    for part in parts:
        where = str(part.path or "traffic")
        if joined is None:
            joined = dataclasses.replace(
                part,
                calls=dict(part.calls),
                groups=dict(part.groups),
                steps=dict(part.steps),
                notes=list(part.notes),
                problems=list(part.problems),
            )
            continue
        if part.ranks != joined.ranks or part.source != joined.source:
            got = f"{part.source} of {part.ranks} ranks in {where}"
            expected = f"{joined.source} of {joined.ranks} ranks, as in {joined.path}"
            raise UsageError("traffic", got, expected, "Join the files of one capture.")
        for rank in part.calls.keys() & joined.calls.keys():
            got, expected = f"rank {rank} twice, again in {where}", "each rank once"
            raise UsageError("traffic", got, expected, "Join the files of one capture.")
        for name, group in part.groups.items():
            if joined.groups.setdefault(name, group).ranks != group.ranks:
                got = f"group {name} of ranks {group.ranks} in {where}"
                raise UsageError("traffic", got, f"ranks {joined.groups[name].ranks}")
        joined.calls.update(part.calls)
        joined.steps.update(part.steps)
        joined.notes += [note for note in part.notes if note not in joined.notes]
        joined.problems += part.problems
    if joined is None:
        raise UsageError("traffic", "no file", "at least one")
    joined.calls = dict(sorted(joined.calls.items()))
    return joined
