"""What each call of a training costs: waiting for the last rank, the transfer, and contention.

The model, as simple as it can be said. The ranks of a collective end together, so the one that came
last has the shortest time, and that time is the transfer; what the others have more is their wait
for it. Against the same call measured alone, what the transfer has more is contention: with the
computation beside it, and with other groups on the same wires. All three are estimates. Only
durations are used: the clocks of ranks are never compared.

A capture stamps the ends of asynchronous calls on CPUs late (training/joined.py). So there a
contention that is no more than this error is only a bound, and a rank came last only where it was
shorter by more.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from torchcoll.core.collectives import has_splits
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UsageError
from torchcoll.core.result import Run
from torchcoll.core.spec import ExactCall, point_of
from torchcoll.core.summary import Row, median, summarise
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import format_ranges, format_size, time_text
from torchcoll.inputs import load
from torchcoll.stats.sides import Side
from torchcoll.stats.statistics import geometric
from torchcoll.training.joined import (
    LATE,
    Joined,
    LateRank,
    cut_at_marks,
    error_ns,
    heard_late,
    join_ranks,
    late_ranks,
    not_split,
)
from torchcoll.training.measured_curves import MeasuredCallTime
from torchcoll.training.steps import steps_of
from torchcoll.training.traffic_table import group_text

# -------------------------------------------------------------------------------------------------
# The case of a run that measured a call of a training alone.


@dataclass(frozen=True)
class Isolated:
    """time_ns: the median completion, of several launches their geometric mean; None with the
    ``reason``. text: how it was measured.
    """

    time_ns: float | None
    text: str = ""
    clock: str | None = None
    reason: str = ""


class Candidate(NamedTuple):
    """A row, and the ranks of the training's world that it was measured on.

    members: () where that cannot be known: a launch of another size, or on all of its ranks.
    run: which of the runs it is of.
    """

    row: Row
    run: int
    members: tuple[int, ...]


def rows_on(runs: Iterable[Run], clock: str | None, ranks: int) -> list[Candidate]:
    """The rows of runs, read on this clock where a case has it, else on its default.

    ranks: size of the training's world.
    """
    return [
        Candidate(
            summarise(result, "max", clock if clock in result.time_ns else None),
            number,
            tuple(sorted(result.members)) if run.ranks == ranks else (),
        )
        for number, run in enumerate(runs)
        for result in run.results
    ]


def isolated(
    point: ExactCall,
    members: Sequence[int],
    backend: str,
    op: str | None,
    candidates: Sequence[Candidate],
) -> Isolated:
    """What a call took alone: the same collective, dtype, number of ranks, size and backend.

    members: ranks of the world in its group. What was measured on other ranks of a world as large
    does not count: as many ranks elsewhere have other wires between them. ``backend`` '' and ``op``
    None are unknown, then any does. Of several ways to measure that fit, those count that were
    called as in the training, async or not, and of these the one of most runs, else the first; its
    runs are replicates, each of which counts.
    """
    for holds, reason in _conditions(point, members, backend, op):
        fitting = [one for one in candidates if holds(one)]
        if not fitting:
            return Isolated(None, reason=reason(candidates))
        candidates = fitting
    alike = [one for one in candidates if one.row.asynchronous == point.asynchronous]
    ways: dict[tuple[object, ...], dict[int, Row]] = {}
    for number, row in ((one.run, one.row) for one in alike or candidates):
        way = (row.asynchronous, row.mode, row.clock, row.backend, row.op, row.in_place)
        ways.setdefault(way, {}).setdefault(number, row)
    rows = list(max(ways.values(), key=len).values())
    row = rows[0]
    words = [row.mode, f"{row.clock} clock", row.backend]
    words += ["async"] if row.asynchronous else []
    words += [row.op] if op is None and row.op else []  # the training does not tell its own
    words += [f"geometric mean of {len(rows)} launches"] if len(rows) > 1 else []
    return Isolated(geometric(one.median_ns for one in rows), ", ".join(words), row.clock)


Condition = tuple[Callable[[Candidate], bool], Callable[[Sequence[Candidate]], str]]


def _conditions(
    point: ExactCall, members: Sequence[int], backend: str, op: str | None
) -> Iterable[Condition]:
    """Each with what to say where no case fulfils it, of those that fulfil the ones before."""
    yield (
        lambda one: one.row.collective == point.collective,
        lambda found: f"{point.collective} is not in the run",
    )
    yield (
        lambda one: one.row.dtype == point.dtype,
        lambda found: f"measured in {_values(found, 'dtype')}, not in {point.dtype}",
    )
    yield (
        lambda one: one.row.ranks == len(members),
        lambda found: f"measured on {_values(found, 'ranks')} ranks, the group has {len(members)}",
    )
    yield (
        lambda one: one.members in ((), tuple(sorted(members))),
        lambda found: f"measured on ranks {_places(found)}, not on {format_ranges(members)}",
    )
    yield (
        lambda one: point.size_bytes in (one.row.size_bytes, one.row.size_bytes_requested),
        lambda found: f"not measured at {format_size(point.size_bytes)}",
    )
    yield (
        lambda one: backend in ("", one.row.backend),
        lambda found: f"measured on {_values(found, 'backend')}, sent on {backend}",
    )
    yield (
        lambda one: op in (None, one.row.op),
        lambda found: f"measured with {_values(found, 'op')}, not with {op}",
    )
    yield (
        lambda one: one.row.status == "ok" and one.row.median_ns is not None,
        lambda found: f"{found[0].row.status}: {found[0].row.reason or 'no steady calls'}",
    )
    yield (
        lambda one: one.row.communicates and not one.row.rehearsal,
        lambda found: "a rehearsal, in which no time means anything",
    )
    yield (
        lambda one: one.row.coalesce == 1 and one.row.clock != "issue",
        lambda found: "measured in groups of calls, or until issued only",
    )


def _values(found: Sequence[Candidate], name: str) -> str:
    return ", ".join(str(v) for v in dict.fromkeys(getattr(one.row, name) for one in found))


def _places(found: Sequence[Candidate]) -> str:
    return " and ".join(map(format_ranges, dict.fromkeys(one.members for one in found)))


# -------------------------------------------------------------------------------------------------

_RUN = "a Run, its file, or a list of them"


@dataclass(frozen=True)
class CostRow:
    """Calls of one collective, size, dtype and group in the steady steps. Times: medians in ns.

    size_bytes: the size S of nccl-tests; None where there is none, or (all_to_all_v) it varies.
    calls: collectives, each once for all of its ranks. queued: the share of the ranks' calls that
    were issued while an earlier one of the group was in flight: their times hold the wait for it;
    None unknown. in_place_ns: the slowest rank's. wait_ns: of the rank that waited longest.
    transfer_ns: the shortest rank's time. isolated_ns: the completion measured alone, isolated_as:
    how. contention_ns: transfer_ns - isolated_ns. Medians do not add up exactly. late_ns: by how
    much each call's time may be too long, for its end was stamped late; 0 where it was not. reason:
    why something is None.
    """

    collective: str
    size_bytes: int | None
    dtype: str | None
    group: str
    group_ranks: int
    backend: str
    asynchronous: bool | None
    calls: int
    queued: float | None
    clock: str | None
    in_place_ns: float | None
    wait_ns: float | None
    transfer_ns: float | None
    isolated_ns: float | None
    isolated_as: str
    contention_ns: float | None
    late_ns: int
    reason: str

    @property
    def bound(self) -> bool:
        """True where the contention may be nothing but ends that were stamped late."""
        return self.contention_ns is not None and 0 < self.contention_ns <= self.late_ns


@dataclass(repr=False)
class Cost(Displayed):
    """What ``cost`` found. ties: calls in which it cannot be known which rank came last."""

    rows: list[CostRow]
    late: list[LateRank]
    ties: int
    traffic: str
    run: str
    notes: list[str] = field(default_factory=list)


def cost(
    traffic: Traffic | str | os.PathLike[str],
    run: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]],
) -> Cost:
    """Splits the time in place of each call into wait and transfer, and sets it against ``run``.

    traffic: of all ranks of the groups, such as the folder that ``capture`` wrote; of one rank
    alone nothing tells wait from transfer. run: the same calls measured alone,
    ``torchcoll.run(traffic.spec())``, or its file; several where the calls are on several ways to
    divide the ranks, each measured by itself: a call is set against the run on its own group, and
    against the geometric mean where several runs measured the same. The steady steps of the table
    count. What could not be told is None, with the reason.

    Raises UsageError for what is neither, and UnreadableError for a file.
    """
    if isinstance(traffic, (str, os.PathLike)):
        traffic = Traffic.load(traffic)
    if not isinstance(traffic, Traffic):
        raise UsageError("traffic", type(traffic).__name__, "a Traffic, its file or its folder")
    runs = _runs(run)
    alone = _Alone(traffic, runs)
    whole = traffic
    traffic = cut_at_marks(traffic, alone.host_ns)
    cut = {
        id(now)
        for rank, calls in traffic.calls.items()
        for now, before in zip(calls, whole.calls[rank], strict=True)
        if now is not before
    }
    joined, separate = join_ranks(traffic)
    steps = steps_of(traffic)
    found: dict[tuple[object, ...], list[Joined]] = defaultdict(list)
    every: dict[Joined, None] = {}
    for rank, calls in traffic.calls.items():
        for i in (i for step in steps.steady for i in steps.at[rank].get(step, ())):
            kind, one = steps.kinds[rank][i], joined[rank][i]
            if one in every:
                continue
            every[one] = None
            size = _size(calls[i], traffic)
            key = (kind.collective, size, kind.dtype, kind.op, kind.asynchronous, kind.group)
            found[key].append(one)
    queued = _queued(traffic)
    rows = [_row(own, traffic, alone, queued, cut) for own in found.values()]
    split = [one for one in every if not not_split(one)]
    late, ties = late_ranks(split, traffic.source)
    notes = [*traffic.problems, *steps.notes, *separate]
    notes += _notes(rows, every, traffic.source, cut)
    if traffic.source == "plan":
        notes.append(_together(rows))
    if every and not split and len(traffic.calls) < traffic.ranks and traffic.source != "plan":
        notes.append(
            f"{len(traffic.calls)} of {traffic.ranks} ranks: wait and transfer take the files of "
            "all of them, as torchcoll.capture(FOLDER) leaves them: torchcoll.cost(FOLDER, run)"
        )
    names = ", ".join(str(one.path or one.header.get("run_id") or "run") for one in runs)
    return Cost(rows, late, ties, str(traffic.path or "traffic"), names, notes)


def _together(rows: Sequence[CostRow]) -> str:
    """What a step on paper communicates: each call as it is alone."""
    known = [row for row in rows if row.isolated_ns is not None]
    total = sum(row.calls * (row.isolated_ns or 0) for row in known)
    calls, told = (sum(row.calls for row in own) for own in (rows, known))
    if calls and not told:
        reasons = list(dict.fromkeys(row.reason for row in rows if row.reason))
        more = f" and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
        return (
            f"a plan: nothing ran, and the run has no time for any of its {calls} calls "
            f"({reasons[0]}{more}). torchcoll.run(plan.spec()) measures them"
        )
    words = f"a plan: nothing ran. Its calls one after the other: {time_text(total)}"
    return words if told == calls else f"{words} of the {told} of {calls} that are known"


def _runs(reported: object) -> list[Run]:
    """Raises UsageError for what is no run, and UnreadableError for a file."""
    runs: list[Run] = []
    for one in reported if isinstance(reported, (list, tuple)) else [reported]:
        loaded = load(one) if isinstance(one, (str, os.PathLike)) else one
        for run in loaded if isinstance(loaded, list) else [loaded]:
            if not isinstance(run, Run):
                action = "torchcoll.run returns it on rank 0 alone." if run is None else ""
                raise UsageError("run", type(run).__name__, _RUN, action)
            runs.append(run)
    if not runs:
        raise UsageError("run", "an empty list", _RUN)
    return runs


def _size(call: TrafficCall, traffic: Traffic) -> int | None:
    if has_splits(call.collective):
        return None
    point, _ = point_of(call, len(traffic.members(call)))
    return point.size_bytes or None if point else max(call.bytes_in, call.bytes_out) or None


def _row(
    joined: Sequence[Joined],
    traffic: Traffic,
    isolated_calls: _Alone,
    queued: Mapping[int, bool | None],
    cut: Set[int],
) -> CostRow:
    calls = [call for one in joined for call in one.calls.values()]
    first = calls[0]
    groups = [
        traffic.groups.get(name) or Group(name) for name in dict.fromkeys(c.group for c in calls)
    ]
    backend = next((group.backend for group in groups if group.backend), "")
    clocks = {call.clock for call in calls if call.time_ns is not None}
    clock = clocks.pop() if len(clocks) == 1 else None
    split = [one for one in joined if not not_split(one)]
    planned = traffic.source == "plan"  # nothing ran, which is said once
    reasons = dict.fromkeys("" if planned else not_split(one) for one in joined)
    waits = [max(one.times_ns.values()) - min(one.times_ns.values()) for one in split]
    transfers = [min(one.times_ns.values()) for one in split]
    transfer = median(transfers) if transfers else None
    alone = isolated_calls.of(first, backend, clock)
    reasons[alone.reason] = None
    contention = None
    if transfer is not None and alone.time_ns is not None:
        if alone.clock == clock:
            contention = transfer - alone.time_ns
        else:
            reasons[f"{clock} clock in the training, {alone.clock} clock in the run"] = None
    if contention is not None and contention < 0 and any(id(call) in cut for call in calls):
        contention = None
        reasons["shorter than alone, with calls cut at the mark of their step"] = None
    known = [time for one in joined if (time := one.completion_ns) is not None]
    states = [queued[id(call)] for call in calls]
    return CostRow(
        first.collective,
        _size(first, traffic),
        first.dtype,
        group_text(groups),
        len(groups[0].ranks),
        backend,
        first.asynchronous,
        len(joined),
        None if None in states else sum(map(bool, states)) / len(states),
        clock,
        median(known) if known else None,
        median(waits) if waits else None,
        transfer,
        alone.time_ns,
        alone.text,
        contention,
        max(error_ns(one, traffic.source) for one in joined),
        "; ".join(reason for reason in reasons if reason),
    )


class _Alone:
    """What each kind of call of a traffic took alone in the runs."""

    def __init__(self, traffic: Traffic, runs: Sequence[Run]) -> None:
        self._traffic, self._runs = traffic, runs
        self._curves = MeasuredCallTime(Side("run", list(runs)))
        self._rows: dict[str | None, list[Candidate]] = {}
        self._known: dict[tuple[object, ...], Isolated] = {}

    def of(self, call: TrafficCall, backend: str, clock: str | None) -> Isolated:
        kind = call.collective, call.dtype, call.op, call.asynchronous, call.group
        key = (*kind, call.bytes_in, call.bytes_out, backend, clock)
        if key not in self._known:
            self._known[key] = self._read(call, backend, clock)
        return self._known[key]

    def host_ns(self, call: TrafficCall) -> float | None:
        """On the clock of the host; None where that is not known."""
        group = self._traffic.groups.get(call.group)
        found = self.of(call, group.backend if group else "", "host")
        return found.time_ns if found.clock == "host" else None

    def _read(self, call: TrafficCall, backend: str, clock: str | None) -> Isolated:
        members = self._traffic.members(call)
        if has_splits(call.collective):
            return Isolated(None, reason=f"{call.collective}: what each rank sends varies")
        point, remark = point_of(call, len(members))
        if point is None:
            return Isolated(None, reason=remark)
        if clock not in self._rows:
            self._rows[clock] = rows_on(self._runs, clock, self._traffic.ranks)
        found = isolated(point, members, backend, call.op, self._rows[clock])
        # What really ran is set against the same call or none; of a plan there is nothing better.
        if found.time_ns is None and self._traffic.source == "plan":
            return self._between(call, point.size_bytes, len(members), found)
        return found

    def _between(self, call: TrafficCall, size_bytes: int, ranks: int, exact: Isolated) -> Isolated:
        """From the sizes that were measured around it, or from an all_reduce of as many bytes."""
        try:
            kind = call.dtype, call.op, call.group
            time = self._curves.of(call.collective, size_bytes, ranks, *kind)
            _, used = self._curves.curve(call.collective, ranks, *kind)
        except UsageError:
            return exact
        if time.extrapolated:
            return Isolated(None, reason=f"{format_size(size_bytes)} is {time.extrapolated}")
        words = "between measured sizes"
        if used.share is not None:
            half = "half of " * (used.share < 1)
            words = f"assumption: {half}{used.row.collective} between measured sizes"
        return Isolated(
            time.each_ns[0], f"{words}, {used.row.mode}, {used.row.dtype}", used.row.clock
        )


def _queued(traffic: Traffic) -> dict[int, bool | None]:
    """Whether each call was issued while an earlier one of its group was in flight, by its id.

    None where stamps are missing, or where time_ns is the device's, which holds no waiting.
    """
    found: dict[int, bool | None] = {}
    for calls in traffic.calls.values():
        ends: dict[str, int] = {}
        for call in calls:
            if (
                call.start_ns is None
                or call.time_ns is None
                or call.clock != "host"
                or call.point_to_point
            ):
                found[id(call)] = None
                continue
            start = call.start_ns or 0
            end = ends.get(call.group, start)
            found[id(call)] = start < end
            ends[call.group] = max(end, start + (call.time_ns or 0))
    return found


def _notes(
    rows: Sequence[CostRow], every: Iterable[Joined], source: str, cut: Set[int]
) -> list[str]:
    notes = []
    calls = [call for one in every for call in one.calls.values()]
    late = sum(heard_late(call, source) for call in calls)
    if late:
        notes.append(
            f"{late} of {len(calls)} calls {LATE}: in place and transfer may be so much too long, "
            "wait as much off; a contention of no more than that is a bound (<=), and a rank came "
            "last only where the others waited longer"
        )
    at_marks = sum(id(call) in cut for call in calls)
    if at_marks:
        notes.append(
            f"{at_marks} of {len(calls)} calls were heard of up to 5 ms after the mark of their "
            "step and are cut there: right where the program waits for them within the step, as "
            "DDP does; else they took so much longer"
        )
    queued = [row for row in rows if row.queued]
    if queued:
        notes.append(
            "queued: calls issued while an earlier one of the group was in flight on that rank: "
            "their time holds the wait for it, which counts as transfer and as contention here"
        )
    timed = [row for row in rows if row.in_place_ns is not None]
    if any(row.asynchronous is not False and row.queued is None for row in timed):
        notes.append("asynchronous calls: the time from issue to completion may hold other waiting")
    return notes
