"""What a training step sends: the calls of every process group, rank by rank.

Times are whole nanoseconds, sizes bytes. The file is described below.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.case import known_fields
from torchcoll.core.display import Displayed, as_one_line
from torchcoll.core.errors import UnreadableError, UsageError, path_text
from torchcoll.core.file import Writer, is_traffic
from torchcoll.core.jsonl import TRUNCATED, read_records
from torchcoll.core.opening import files_in
from torchcoll.core.result import check_fields, check_texts, check_whole
from torchcoll.core.spec import Spec
from torchcoll.core.units import counted, shorten

# Each is one side of a point-to-point message. core/collectives.py has the other names.
POINT_TO_POINT = ("send", "recv")
ROOT = "(root)"  # stands for the outermost module, whose name in the model is empty
Span = tuple[int, int]  # start, end


@dataclass(frozen=True)
class Group:
    """A process group. ranks: of the world, in the order of the group; () if unknown.

    calls_before: collectives that torch had counted on it before its first captured call.
    """

    name: str
    ranks: tuple[int, ...] = ()
    backend: str = ""
    description: str = ""
    calls_before: int = field(default=0, compare=False)

    @property
    def label(self) -> str:
        """The name that the program gave (``mesh_tp``), or torch's."""
        given = self.description not in ("", "undefined", "default_pg")
        numbered = self.name.partition("@")[0].isdecimal()  # by torch
        mesh = self.description.startswith("mesh_")
        return self.description if mesh or (given and numbered) else self.name

    def to_json(self) -> dict[str, Any]:
        data = vars(self).copy()
        if not self.calls_before:
            del data["calls_before"]
        return data


@dataclass(frozen=True)
class TrafficCall:
    """One call on one rank, as the training made it; None and '' where unknown.

    collective: a name of core/collectives.py, ``send`` or ``recv``, or torch's own name.
    root, peer: as ranks of the world.
    sequence: number of the call among the calls of its group on this rank, from 0, by which ranks
    are joined. send and recv are numbered for each peer.
    step: number of the step, from 0; None outside of marked steps.
    start_ns: when it was issued, on this rank's clock, from the start of the capture.
    time_ns: its duration, from issue to completion (clock ``host``), or of the kernel (``device``).
    began_ns: when its kernel began, on the clock of start_ns.
    exposed_ns: the part of time_ns during which nothing else ran (in a trace), or the program
    waited (in a capture), without what counts for an earlier call.
    splits: bytes to each rank of the group, for an uneven all_to_all_v.
    algorithm: by the names of its kernels (``RING/LL``), which are only a hint.
    module: the part of the model whose parameters or gradients it moves (``layers.2 to layers.4``).
    logged_ns: when the source recorded the call, since 1970 on the rank's own clock.
    """

    collective: str
    bytes_in: int
    bytes_out: int
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
    exposed_ns: int | None = None
    algorithm: str = ""
    began_ns: int | None = None
    logged_ns: int | None = None
    module: str = ""

    @property
    def span(self) -> Span | None:
        """(start, end) of the kernel, or from issue to completion; None if unknown."""
        start = self.start_ns if self.clock == "host" else self.began_ns
        return None if start is None or self.time_ns is None else (start, start + self.time_ns)

    @property
    def point_to_point(self) -> bool:
        return self.collective in POINT_TO_POINT

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> TrafficCall:
        """``TrafficCall(**fields)`` in a third of the time, and unchecked."""
        call = object.__new__(cls)
        values = call.__dict__
        values.update(_CALL_DEFAULTS)
        values.update(fields)
        return call

    def to_json(self) -> dict[str, Any]:
        return {k: value for k, value in self.__dict__.items() if value != _CALL_DEFAULTS[k]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrafficCall:
        """Unknown fields are ignored. Raises TypeError or ValueError for a broken one."""
        values = known_fields(cls, data)
        values["splits"] = tuple(values.get("splits") or ())
        call = cls(**values)
        check_fields(call)
        if call.tensors < 1:
            raise ValueError("a call of no tensor")
        return call


_CALL_DEFAULTS = {f.name: f.default for f in dataclasses.fields(TrafficCall)}


@dataclass(repr=False)
class Traffic(Displayed):
    """The calls of one or more ranks over some steps. Ranks may be missing.

    source: ``capture``, ``plan`` (nothing ran), ``kineto``, ``flight recorder`` or ``replay``.
    calls[rank]: in the order of issue; a rank without calls has [].
    parameters: module of calls -> names of the parameters that these calls move.
    path: the file, or the folder of several; None without one.
    steps[rank]: (start, end) of each marked step on that rank's clock; without marks all is one.
    computing[rank], apart[rank]: when something other than communication ran, and communication
    that belongs to none of the calls.
    copies[rank]: when FSDP2 copied into and out of its flat buffers; ``computing`` has these too.
    clocks[rank]: (name of the clock of its stamps, the clock's time at their 0). Ranks with the
    same clock can be compared.
    notes: what could not be seen, a sentence each.
    problems: what was wrong in the file.
    end: ``status``, ``reason`` and ``message`` of the exception; {} if the file was cut off.
    left_out: number of calls of all ranks that the source has without their sizes.
    """

    source: str = "capture"
    ranks: int = 1
    calls: dict[int, list[TrafficCall]] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    steps: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    computing: dict[int, list[Span]] = field(default_factory=dict)
    apart: dict[int, list[Span]] = field(default_factory=dict)
    copies: dict[int, list[Span]] = field(default_factory=dict)
    clocks: dict[int, tuple[str, int]] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left_out: int = 0
    path: Path | None = field(default=None, compare=False)
    end: dict[str, Any] = field(default_factory=lambda: {"status": "complete"})
    parameters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # While it is being captured:
    mark_step: Callable[[], object] | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        calls = sum(map(len, self.calls.values()))
        steps = max(map(len, self.steps.values()), default=0)
        where = f" {str(self.path)[-80:]}" if self.path else ""
        held = f"{counted(calls, 'call')} of {len(self.calls)} of {counted(self.ranks, 'rank')}"
        name = f"{type(self).__name__}{where}"
        return as_one_line(f"{name}: {self.source}, {held}, {counted(steps, 'step')}")

    def step(self) -> Any:
        """Mark the end of a training step. Raises UsageError outside of a capture."""
        if self.mark_step is None:
            raise UsageError("step", "no capture", "a step inside of `with torchcoll.capture()`")
        return self.mark_step()

    def add_group(self, group: Group) -> str:
        """Add a group and return its name here: ``NAME@2`` if one of that name has other ranks."""
        name, number = group.name, 2
        while (
            self.groups.setdefault(name, dataclasses.replace(group, name=name)).ranks != group.ranks
        ):
            name, number = f"{group.name}@{number}", number + 1
        return name

    def members(self, call: TrafficCall) -> tuple[int, ...]:
        """Ranks of the world in the group of the call, in its order; all if it is unknown."""
        group = self.groups.get(call.group)
        return (group.ranks if group else ()) or tuple(range(self.ranks))

    def spec(self, groups: str | None = None, **changes: Any) -> Spec:
        """The Spec that measures exactly what was sent: each size, dtype and op once.

        groups: the sub-groups to measure on (``0,1;2,3``, ``mod:N``, ``div:N``), if calls were made
        on several. changes: fields of the Spec that say how to measure (backend, iters, ...).

        ``notes`` gets a line for calls that are measured as something else, or not at all. Raises
        UsageError if nothing can be measured, for several sub-groups without a choice, and as Spec.
        """
        from torchcoll.core.traffic_spec import spec_of

        return spec_of(self, groups, changes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new file. Raises UsageError if it exists or cannot be written."""
        path = Path(path_text(path, "path", "a path to write to"))
        self.write(Writer(path, "Name another file."))

    def write(self, writer: Writer) -> None:
        """Write all records to an open file, and close it."""
        writer.write_all(records_of(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Traffic:
        """Load the traffic of a file (also .gz), or of all traffic files in a folder, joined.
        Broken lines become ``problems``. Raises UnreadableError, and UsageError as ``join`` does.
        """
        return load(Path(path_text(path, "traffic", "a file or a folder")))


def join(parts: Iterable[Traffic]) -> Traffic:
    """Join Traffics of different ranks. A group made again under its name with other members is
    ``NAME@2``. Raises UsageError if two have the same rank, or worlds, captures or a group differ.
    """
    joined: Traffic | None = None
    parts = _separate_groups(list(parts))
    for part in parts:
        where = str(part.path or "traffic")
        if joined is None:
            united: dict[str, Any] = {name: dict(getattr(part, name)) for name in _UNITED}
            joined = dataclasses.replace(
                part,
                groups=dict(part.groups),
                notes=list(part.notes),
                problems=list(part.problems),
                **united,
            )
            continue
        if part.ranks != joined.ranks or part.source != joined.source:
            value = f"{part.source} of {part.ranks} ranks in {where}"
            expected = f"{joined.source} of {joined.ranks} ranks as in {joined.path or 'others'}"
            raise UsageError("traffic", value, expected, _OF_ONE)
        capture, other = (traffic.environment.get("capture") for traffic in (part, joined))
        if capture and other and capture != other:
            raise UsageError(f"capture in {where}", capture, f"{other} as in the others", _OF_ONE)
        for rank in sorted(part.calls.keys() & joined.calls.keys()):
            raise UsageError("traffic", f"rank {rank} twice, again in {where}", "once", _OF_ONE)
        for name, group in part.groups.items():
            there = joined.groups.setdefault(name, group)
            if not there.ranks:
                joined.groups[name] = group
            elif group.ranks and there.ranks != group.ranks:
                value = f"group {name} of ranks {group.ranks} in {where}"
                raise UsageError("traffic", value, f"ranks {there.ranks}", _OF_ONE)
        for name in _UNITED:
            getattr(joined, name).update(getattr(part, name))
        joined.notes += part.notes
        joined.problems += part.problems
        if joined.end.get("status") == "complete":
            joined.end = part.end
        joined.left_out += part.left_out
    if joined is None:
        raise UsageError("traffic", "no file", "at least one")
    joined.calls = dict(sorted(joined.calls.items()))
    joined.notes = _summed(joined.notes)
    if len(parts) > 1:
        folders = {part.path.parent if part.path else Path() for part in parts}
        joined.path = folders.pop() if len(folders) == 1 and Path() not in folders else None
    return joined


def _separate_groups(parts: list[Traffic]) -> list[Traffic]:
    """Give equal groups the same names if a name was used again: which group a rank calls NAME
    depends on the groups that it was in. Unchanged if some rank does not know a group of its own.
    """
    ranks_by_name: dict[str, dict[tuple[int, ...], None]] = {}
    for part in parts:
        for name, group in part.groups.items():
            if group.ranks:
                ranks_by_name.setdefault(_first_name(part, name), {})[group.ranks] = None
    again = {name: list(several) for name, several in ranks_by_name.items() if len(several) > 1}
    if not again:
        return parts
    for part in parts:
        groups = {(_first_name(part, name), group.ranks) for name, group in part.groups.items()}
        for name, several in again.items():
            for ranks in several:
                if not part.calls.keys().isdisjoint(ranks) and (name, ranks) not in groups:
                    return parts
    return [_renamed(part, again) for part in parts]


def _first_name(part: Traffic, name: str) -> str:
    first = _AGAIN.sub("", name)
    return first if first in part.groups else name


def _renamed(part: Traffic, again: Mapping[str, list[tuple[int, ...]]]) -> Traffic:
    names = {}
    for name, group in part.groups.items():
        first = _first_name(part, name)
        place = again[first].index(group.ranks) + 1 if group.ranks in again.get(first, ()) else 0
        names[name] = (first if place == 1 else f"{first}@{place}") if place else name
    groups = [dataclasses.replace(g, name=names[name]) for name, g in part.groups.items()]
    calls = {
        rank: [dataclasses.replace(c, group=names.get(c.group, c.group)) for c in calls]
        for rank, calls in part.calls.items()
    }
    return dataclasses.replace(part, groups={g.name: g for g in groups}, calls=calls)


_AGAIN = re.compile(r"@\d+$")


def _summed(notes: Iterable[str]) -> list[str]:
    """Keep each note once. The counts of calls of a rank (``3 calls ...``) are added up."""
    counts: dict[str, int] = {}
    for note in notes:
        match = _COUNT.match(note)
        text = note[match.end() :] if match else note
        counts[text] = counts.get(text, 0) + (int(match[0]) if match else 0)
    return [f"{count or ''}{text}" for text, count in counts.items()]


_COUNT = re.compile(r"\d+(?= (?:calls|reductions)\b)")
_OF_ONE = "Join the files of one capture."
# Fields of Traffic that have an entry for each rank or module: ``join`` unites them.
_UNITED = ("calls", "steps", "computing", "apart", "copies", "clocks", "parameters")

# The file is JSON Lines, one record a line: header; group; parameters; step (spans_ns of the marked
# steps of a rank, and its clock); computing, apart and copies (spans_ns); call (the fields of
# TrafficCall without defaults); note; environment (what a capture learned later); end. A ``step``
# of a call that no step record has was never marked. Readers ignore what they do not know.

SCHEMA = "torchcoll-traffic/2"
_SPANS = ("computing", "apart", "copies")  # records, and fields of Traffic
RANK_FILE = "traffic-rank"  # what a capture writes: traffic-rank0.jsonl


def records_of(traffic: Traffic) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records in file order."""
    yield "header", header_of(traffic)
    for group in traffic.groups.values():
        yield "group", group.to_json()
    for module, names in traffic.parameters.items():
        yield "parameters", {"module": module, "names": names}
    for rank in sorted({*traffic.calls, *traffic.steps}):
        clock = {"clock": traffic.clocks[rank]} if rank in traffic.clocks else {}
        yield "step", {"rank": rank, "spans_ns": traffic.steps.get(rank, []), **clock}
    for name in _SPANS:
        for rank, spans in getattr(traffic, name).items():
            yield name, {"rank": rank, "spans_ns": spans}
    for rank, calls in traffic.calls.items():
        for call in calls:
            yield "call", {"rank": rank, **call.to_json()}
    for note in traffic.notes:
        yield "note", {"text": note}
    if traffic.end:
        yield "end", traffic.end


def header_of(traffic: Traffic) -> dict[str, Any]:
    """The fields of the first record."""
    return {
        "schema": SCHEMA,
        "source": traffic.source,
        "ranks": traffic.ranks,
        "environment": traffic.environment,
        **({"left_out": traffic.left_out} if traffic.left_out else {}),
    }


def load(path: Path) -> Traffic:
    """See Traffic.load."""
    if path.is_dir():
        return join_folder([load(file) for file in _in_folder(path)], path)
    traffic = Traffic(path=path, end={})
    header, take = partial(_header, traffic), partial(_take, traffic)
    read_records(path, traffic.problems, "traffic file", SCHEMA, header, take)
    if not traffic.end:
        traffic.problems.append(f"{path}: {TRUNCATED}")
    elif traffic.end["status"] != "complete":
        why = f" by {traffic.end['reason']}" if traffic.end.get("reason") else ""
        traffic.problems.append(f"{path}: {traffic.end['status']}: the capture was ended{why}")
    if traffic.environment.get("seen_by") == "capture":
        for rank, calls in traffic.calls.items():
            leave_unmarked(calls, len(traffic.steps.get(rank, ())))
    return traffic


def leave_unmarked(calls: list[TrafficCall], marked: int) -> None:
    """Remove the step of the calls after the last of so many marks. They are the last calls."""
    for index in reversed(range(len(calls))):
        step = calls[index].step
        if step is not None and step < marked:
            return
        if step is not None:
            calls[index] = dataclasses.replace(calls[index], step=None)


def _header(traffic: Traffic, header: dict[str, Any]) -> None:
    traffic.ranks, traffic.source = header["ranks"], header["source"]
    traffic.environment = dict(header.get("environment") or {})
    traffic.left_out = header.get("left_out", 0)
    check_whole(traffic.ranks, traffic.left_out)
    if not (0 < traffic.ranks <= MOST_RANKS and isinstance(traffic.source, str)):
        raise ValueError


def _take(traffic: Traffic, record: str, data: dict[str, Any], _line: bytes) -> None:
    if record == "call":
        call, rank = TrafficCall.from_json(data), _known(traffic, data["rank"])
        _known(traffic, call.root, call.peer)
        traffic.calls.setdefault(rank, []).append(call)
    elif record == "group":
        check_texts(data["name"], data.get("backend"), data.get("description"))
        _known(traffic, *data["ranks"])
        if len(set(data["ranks"])) < len(data["ranks"]):
            raise ValueError("a rank twice in a group")
        calls_before = data.get("calls_before", 0)
        check_whole(calls_before)
        texts = (data.get("backend") or "", data.get("description") or "")
        name, ranks = data["name"], tuple(data["ranks"])
        traffic.groups[name] = Group(name, ranks, *texts, calls_before)
    elif record == "parameters":
        check_texts(data["module"], *data["names"])
        traffic.parameters[data["module"]] = tuple(data["names"])
    elif record == "step" or record in _SPANS:
        spans = [(start, end) for start, end in data["spans_ns"]]
        check_whole(*(stamp for span in spans for stamp in span))
        rank = _known(traffic, data["rank"])
        traffic.calls.setdefault(rank, [])
        if spans:
            of_ranks = getattr(traffic, "steps" if record == "step" else record)
            of_ranks.setdefault(rank, []).extend(spans)
        if data.get("clock") is not None:
            name, zero = data["clock"]
            check_texts(name)
            check_whole(zero)
            traffic.clocks[rank] = (name, zero)
    elif record == "note":
        traffic.notes.append(str(data["text"]))
    elif record == "environment":
        traffic.environment |= data["environment"]
    elif record == "end":
        data.setdefault("status", "complete")
        check_texts(data["status"], data.get("reason"), data.get("message"))
        traffic.end = data


def _known(traffic: Traffic, *ranks: int | None) -> int:
    """Return the first rank. Raises ValueError unless all are ranks of the world or None."""
    numbers = [0 if rank is None else rank for rank in ranks]
    check_whole(*numbers)
    if not all(0 <= number < traffic.ranks for number in numbers):
        raise ValueError(f"a rank that is not among 0 to {traffic.ranks - 1}")
    return next(iter(numbers), 0)


def join_folder(parts: Sequence[Traffic], folder: Path) -> Traffic:
    """Join the parts of the last capture in a folder. Raises UsageError as ``join`` does."""
    return dataclasses.replace(join(latest(parts, folder)), path=folder)


def latest(parts: Sequence[Traffic], folder: Path) -> list[Traffic]:
    """The parts of the last capture in a folder; a note names the files of earlier captures."""
    captures: dict[tuple[str, int], list[Traffic]] = {}
    for part in parts:
        captures.setdefault(_capture_of(part), []).append(part)
    if len(captures) < 2:
        return list(parts)
    last = max(captures)
    newest = list(captures.pop(last))
    names = [part.path.name for other in captures.values() for part in other if part.path]
    begun = f", begun {last[0].split(' ')[0]}" if last[0] else ""
    note = f"{folder} holds {len(captures) + 1} captures: this is the last{begun}; left out: "
    newest[0] = dataclasses.replace(
        newest[0], notes=[note + shorten(names, _NAMED, ", {} more"), *newest[0].notes]
    )
    return newest


def _capture_of(part: Traffic) -> tuple[str, int]:
    """When the capture began, or else ('', the number in the name of its file)."""
    capture = part.environment.get("capture")
    if isinstance(capture, str):
        return capture, 0
    match = _NUMBERED.match(part.path.name if part.path else "")
    return "", int(match[1]) if match else 0


_NUMBERED = re.compile(rf"{RANK_FILE}\d{{1,9}}-(\d{{1,9}})\.", re.ASCII)
_NAMED = 8  # files, in a note


def _in_folder(folder: Path) -> list[Path]:
    """The traffic files, also broken ones that have such a name. Raises UnreadableError."""
    files = [f for f in files_in(folder) if is_traffic(f) or f.name.startswith(RANK_FILE)]
    if not files:
        raise UnreadableError("traffic folder", folder, "a folder of traffic files; it has none")
    return files
