"""What a training step sends: the calls of every process group, rank by rank.

Times are whole nanoseconds, sizes bytes. The file: core/traffic_file.py.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UsageError
from torchcoll.core.records import Writer
from torchcoll.core.result import check_texts, check_whole, or_none
from torchcoll.core.spec import Spec

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
    exposed_ns: the part of time_ns under which nothing else ran, where a trace tells it.
    tensors: how many tensors went in one coalesced call. splits: bytes to each rank of the group,
    of an uneven all_to_all_v. algorithm: what the names of its kernels say (``RING/LL``), a hint
    only; '' where not told.
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
    exposed_ns: int | None = None
    algorithm: str = ""

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
        optional = (call.root, call.peer, call.step, call.time_ns, call.exposed_ns)
        sizes = (call.nbytes_in, call.nbytes_out, call.sequence, *call.splits)
        numbers = [*sizes, *(number for number in optional if number is not None)]
        check_whole(*numbers, *or_none(call.start_ns), call.tensors)
        texts = (call.collective, call.group, call.clock, call.algorithm)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("not a text")
        if call.asynchronous is not None and not isinstance(call.asynchronous, bool):
            raise TypeError("asynchronous is no truth value")
        if min(numbers) < 0 or call.tensors < 1:
            raise ValueError("a negative size, rank or time")
        return call


_CALL_FIELDS = {f.name for f in dataclasses.fields(TrafficCall)}


@dataclass
class Traffic:
    """The calls of one or more ranks over some steps.

    source: where it was seen: ``capture``, ``plan`` (nothing ran), ``kineto``, ``flight recorder``,
    ``replay`` (a captured step, played again). ranks: size of the world. calls[rank]: in the order
    of issue; not all ranks need be there, and one that made no call has an empty list.
    groups: by their names, which the calls have; one that is missing was not told.
    environment: versions, host and variables as the source tells them, {} where it does not.
    path: the file, or the folder of several; None without one.
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
    path: Path | None = field(default=None, compare=False)
    # While it is being captured:
    mark_step: Callable[[], None] | None = field(default=None, compare=False, repr=False)

    def step(self) -> None:
        """Marks the end of a training step. Raises UsageError outside of a capture."""
        if self.mark_step is None:
            raise UsageError("step", "no capture", "a step inside of `with torchcoll.capture()`")
        self.mark_step()

    def add_group(self, group: Group) -> str:
        """Its name here: ``NAME@2`` where one of that name has other ranks."""
        name, number = group.name, 2
        while (
            self.groups.setdefault(name, dataclasses.replace(group, name=name)).ranks != group.ranks
        ):
            name, number = f"{group.name}@{number}", number + 1
        return name

    def members(self, call: TrafficCall) -> tuple[int, ...]:
        """Ranks of the world in the group of the call, in the group's order.

        All ranks where the group is not told, as in a process group that was never named.
        """
        group = self.groups.get(call.group)
        return (group.ranks if group else ()) or tuple(range(self.ranks))

    def spec(self, groups: str | None = None, **changes: Any) -> Spec:
        """The Spec that measures exactly what was sent: each size, dtype and op once.

        groups: the sub-groups to measure on, where calls were made on several (``0,1;2,3``, or
        ``mod:N``, ``div:N``): the calls on others are then left out. Without sub-groups, the whole
        world. changes: fields of the Spec that say how to measure (backend, iters, ...).

        What is measured as something else (an unknown reduce op as sum, an uneven all_to_all as
        an even one), or not at all (send, recv), is added to ``notes``. Raises UsageError when
        nothing can be measured, for several sub-groups without a choice, and as Spec does.
        """
        from torchcoll.core.points import spec_of

        return spec_of(self, groups, changes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new file. Raises UsageError when it exists or cannot be written."""
        self.write(Writer(Path(path), "Name another file."))

    def write(self, writer: Writer) -> None:
        """``save`` to a file that is open, and close it."""
        from torchcoll.core.traffic_file import records_of

        try:
            for record, data in records_of(self):
                writer.write(record, data)
        finally:
            writer.close()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Traffic:
        """The traffic in a file; .gz too; or of all traffic files in a folder, joined.

        Broken lines are ``problems``. Raises UnreadableError when it is missing, no traffic file,
        or of another major schema, and for a folder without one; UsageError as ``join`` does.
        """
        from torchcoll.core.traffic_file import load

        return load(Path(path))


def join(parts: Iterable[Traffic]) -> Traffic:
    """One Traffic of files that hold other ranks each; its path is the folder of them all.

    A group that was made again under its name with other members is ``NAME@2``. Raises UsageError
    when two hold the same rank, the worlds or the captures differ, or a group is not the same.
    """
    joined: Traffic | None = None
    parts = _groups_apart(list(parts))
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
            expected = f"{joined.source} of {joined.ranks} ranks as in {joined.path or 'others'}"
            raise UsageError("traffic", got, expected, _OF_ONE)
        own, other = (traffic.environment.get("capture") for traffic in (part, joined))
        if own and other and own != other:
            raise UsageError(f"capture in {where}", own, f"{other} as in the others", _OF_ONE)
        for rank in sorted(part.calls.keys() & joined.calls.keys()):
            raise UsageError("traffic", f"rank {rank} twice, again in {where}", "once", _OF_ONE)
        for name, group in part.groups.items():
            there = joined.groups.setdefault(name, group)
            if not there.ranks:
                joined.groups[name] = group
            elif group.ranks and there.ranks != group.ranks:
                got = f"group {name} of ranks {group.ranks} in {where}"
                raise UsageError("traffic", got, f"ranks {there.ranks}", _OF_ONE)
        joined.calls.update(part.calls)
        joined.steps.update(part.steps)
        joined.notes += part.notes
        joined.problems += part.problems
    if joined is None:
        raise UsageError("traffic", "no file", "at least one")
    joined.calls = dict(sorted(joined.calls.items()))
    joined.notes = _summed(joined.notes)
    if len(parts) > 1:
        folders = {part.path.parent if part.path else Path() for part in parts}
        joined.path = folders.pop() if len(folders) == 1 and Path() not in folders else None
    return joined


def _groups_apart(parts: list[Traffic]) -> list[Traffic]:
    """With the same names for the same groups, where a name was given again: which one a rank calls
    NAME depends on those that it was in. As they are where some rank does not know a group that it
    is in: then the files are not of one launch.
    """
    known: dict[str, dict[tuple[int, ...], None]] = {}
    for part in parts:
        for name, group in part.groups.items():
            if group.ranks:
                known.setdefault(_first_name(part, name), {})[group.ranks] = None
    again = {name: list(found) for name, found in known.items() if len(found) > 1}
    if not again:
        return parts
    for part in parts:
        own = {(_first_name(part, name), group.ranks) for name, group in part.groups.items()}
        for name, found in again.items():
            for ranks in found:
                if not part.calls.keys().isdisjoint(ranks) and (name, ranks) not in own:
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
        rank: [dataclasses.replace(c, group=names.get(c.group, c.group)) for c in own]
        for rank, own in part.calls.items()
    }
    return dataclasses.replace(part, groups={g.name: g for g in groups}, calls=calls)


_AGAIN = re.compile(r"@\d+$")


def _summed(notes: Iterable[str]) -> list[str]:
    """Each note once. Those that count the calls of a rank (``3 calls ...``) add up."""
    counts: dict[str, int] = {}
    for note in notes:
        found = _COUNT.match(note)
        text = note[found.end() :] if found else note
        counts[text] = counts.get(text, 0) + (int(found[0]) if found else 0)
    return [f"{count or ''}{text}" for text, count in counts.items()]


_COUNT = re.compile(r"\d+(?= (?:calls|reductions)\b)")


_OF_ONE = "Join the files of one capture."
