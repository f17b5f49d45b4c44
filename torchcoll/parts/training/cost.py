"""The cost of each call of a training: waiting for the last rank, transfer, and contention.

The model is deliberately simple. The ranks of a collective end together, so the one that came last
has the shortest time, and that time is the transfer; the excess of each other rank is its wait. A
call begins when its group has a worker for it (training/joined.py), so time in the queue is
neither. The transfer's excess over the same call measured alone is contention, with the concurrent
computation and with other groups on the same wires. All three are estimates. Only durations are
used: the clocks of ranks are not compared.

A capture stamps the ends of asynchronous calls on CPUs late (training/joined.py). A contention
within this error is therefore only an upper bound. Which rank caused the waiting is the answer of
training/arrivals.py.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from torchcoll.core.collectives import has_splits
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UsageError
from torchcoll.core.result import Run
from torchcoll.core.summary import median
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of
from torchcoll.core.units import format_ns, shorten
from torchcoll.parts.training.arrivals import Arrivals, find_arrivals
from torchcoll.parts.training.exposed import Exposed, find_exposed
from torchcoll.parts.training.isolated import IsolatedTimes
from torchcoll.parts.training.joined import (
    LATE,
    JoinedCall,
    begun_ns,
    cut_at_marks,
    error_ns,
    join_ranks,
    may_end_late,
    times_since_begun_ns,
    unsplit_reason,
)
from torchcoll.parts.training.steps import find_steps
from torchcoll.parts.training.traffic_table import group_text
from torchcoll.reading.inputs import load

_RUN = "a Run, its file, or a list of them"


@dataclass(frozen=True)
class CostRow:
    """Calls of one collective, size, dtype and group in the steady steps. Times: medians in ns.

    - size_bytes: the size S of nccl-tests; None if there is none or it varies (all_to_all_v).
    - calls: the number of collectives, each counted once for all its ranks.
    - queued: the share of the ranks' calls that could not begin when they were issued, because the
      group was busy; None if unknown.
    - in_place_ns: the time in the training from issue to completion, on the slowest rank. It
      includes the time in the queue: on each rank it is queue + wait + transfer.
    - wait_ns: the wait of the rank that waited longest.
    - transfer_ns: the time of the shortest rank.
    - isolated_ns: the completion measured alone; isolated_as: how it was measured.
    - contention_ns: transfer_ns - isolated_ns. Medians do not add up exactly.
    - late_ns: by how much a time may be too long because its end was stamped late; otherwise 0.
    - reason: why a figure is None.
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
        """Whether late end stamps alone could explain the contention."""
        return self.contention_ns is not None and 0 < self.contention_ns <= self.late_ns


@dataclass(repr=False)
class Cost(Displayed):
    """The result of ``cost``.

    - arrivals: which rank caused the waiting; None if no call can be split.
    - exposed: the exposed communication of a step, in all and by module.
    - steps: the number of steps that count; None if no step is marked.
    """

    rows: list[CostRow]
    arrivals: Arrivals | None
    traffic: str
    run: str
    notes: list[str] = field(default_factory=list)
    exposed: Exposed | None = None
    steps: int | None = None


def cost(
    traffic: Traffic | str | os.PathLike[str],
    run: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]],
) -> Cost:
    """Splits the time of each call in a training into wait and transfer, and compares it with
    ``run``.

    - traffic: the calls of all ranks of the groups, for example the folder that ``capture`` wrote.
      With one rank alone, wait and transfer cannot be separated.
    - run: the same calls measured alone, ``torchcoll.run(traffic.spec())`` or its file. For a mesh
      pass one run per dimension, each measured by itself: a call is compared with the run on its
      own group, or with the geometric mean if several runs measured the same.

    Only the steady steps count. Unknown figures are None, with the reason.

    Raises UsageError for any other argument, and UnreadableError for a file that cannot be read.
    """
    if isinstance(traffic, (str, os.PathLike)):
        traffic = Traffic.load(traffic)
    if not isinstance(traffic, Traffic):
        raise UsageError("traffic", type(traffic).__name__, "a Traffic, its file or its folder")
    runs = _load_runs(run)
    alone = IsolatedTimes(traffic, runs)
    whole = traffic
    traffic = cut_at_marks(traffic, alone.host_ns)
    cut = {
        id(now)
        for rank, calls in traffic.calls.items()
        for now, before in zip(calls, whole.calls[rank], strict=True)
        if now is not before
    }
    joined, separate = join_ranks(traffic)
    steps = find_steps(traffic)
    calls_by_kind: dict[tuple[object, ...], list[JoinedCall]] = defaultdict(list)
    index_of: dict[tuple[object, ...], int] = {}  # of the group among similar ones
    joined_calls: dict[JoinedCall, None] = {}
    for rank, calls in traffic.calls.items():
        for i in (i for step in steps.steady for i in steps.at[rank].get(step, ())):
            kind, joined_call = steps.kinds[rank][i], joined[rank][i]
            if joined_call in joined_calls:
                continue
            joined_calls[joined_call] = None
            size = _size(calls[i], traffic)
            key = (kind.collective, size, kind.dtype, kind.op, kind.asynchronous, kind.group)
            calls_by_kind[key].append(joined_call)
            index_of[key] = kind.group[2]
    begun, _ = begun_ns(traffic)
    queued = _queued(traffic, begun)
    rows = [
        _row(kind_calls, traffic, alone, queued, begun, cut, index_of[key])
        for key, kind_calls in calls_by_kind.items()
    ]
    split = [joined_call for joined_call in joined_calls if not unsplit_reason(joined_call)]
    notes = [*traffic.problems, *steps.notes, *separate]
    notes += _notes(rows, joined_calls, traffic.source, cut)
    if traffic.source == "plan":
        notes.append(_plan_note(rows))
    if (
        joined_calls
        and not split
        and len(traffic.calls) < traffic.ranks
        and traffic.source != "plan"
    ):
        notes.append(
            f"{len(traffic.calls)} of {traffic.ranks} ranks: wait and transfer take the files of "
            "all of them, as torchcoll.capture(FOLDER) leaves them: torchcoll.cost(FOLDER, run)"
        )
    names = ", ".join(str(run.path or _run_name(run)) for run in runs)
    exposed = find_exposed(traffic, steps, joined)
    arrivals = find_arrivals(whole)
    marked = steps.duration_ns is not None
    count = len(steps.steady) if marked else None
    return Cost(rows, arrivals, str(traffic.path or "traffic"), names, notes, exposed, count)


def _run_name(run: Run) -> str:
    """Returns a name of a run that was not read from a file."""
    name = run.source.get("file") or run.header.get("run_id")
    return f"run {name}" if name else "a run that is not in a file"


def _plan_note(rows: Sequence[CostRow]) -> str:
    """Returns a sentence on the communication of a planned step, from calls measured alone."""
    timed = [row for row in rows if row.isolated_ns is not None]
    total = sum(row.calls * (row.isolated_ns or 0) for row in timed)
    calls, timed_calls = (sum(row.calls for row in counted_rows) for counted_rows in (rows, timed))
    if calls and not timed_calls:
        reasons = list(dict.fromkeys(row.reason for row in rows if row.reason))
        shown = shorten(reasons, 1, " and {} more reasons")
        return (
            f"a plan: nothing ran, and the run has no time for any of its {calls} calls "
            f"({shown}). torchcoll.run(plan.spec()) measures them"
        )
    text = f"a plan: nothing ran. Its calls one after the other: {format_ns(total)}"
    return (
        text if timed_calls == calls else f"{text} of the {timed_calls} of {calls} that are known"
    )


def _load_runs(source: object) -> list[Run]:
    """Returns the runs of a Run, file or list of them.

    Raises UsageError for anything else, and UnreadableError for a file.
    """
    runs: list[Run] = []
    for item in source if isinstance(source, (list, tuple)) else [source]:
        loaded = load(item) if isinstance(item, (str, os.PathLike)) else item
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
    joined: Sequence[JoinedCall],
    traffic: Traffic,
    isolated_calls: IsolatedTimes,
    queued: Mapping[int, bool | None],
    begun: Mapping[int, int],
    cut: Set[int],
    index: int,
) -> CostRow:
    calls = [call for joined_call in joined for call in joined_call.calls.values()]
    first = calls[0]
    groups = [
        traffic.groups.get(name) or Group(name) for name in dict.fromkeys(c.group for c in calls)
    ]
    backend = next((group.backend for group in groups if group.backend), "")
    clocks = {call.clock for call in calls if call.time_ns is not None}
    clock = clocks.pop() if len(clocks) == 1 else None
    split = [joined_call for joined_call in joined if not unsplit_reason(joined_call)]
    planned = traffic.source == "plan"  # nothing ran: one note says so, not each row
    reasons = dict.fromkeys(
        "" if planned else unsplit_reason(joined_call) for joined_call in joined
    )
    times = [times_since_begun_ns(joined_call, begun).values() for joined_call in split]
    waits = [max(of_ranks) - min(of_ranks) for of_ranks in times]
    transfers = [min(of_ranks) for of_ranks in times]
    transfer = median(transfers) if transfers else None
    alone = isolated_calls.find(first, backend, clock)
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
    completions = [
        time for joined_call in joined if (time := joined_call.completion_ns) is not None
    ]
    states = [queued[id(call)] for call in calls]
    return CostRow(
        first.collective,
        _size(first, traffic),
        first.dtype,
        group_text(groups, index),
        len(groups[0].ranks),
        backend,
        first.asynchronous,
        len(joined),
        None if None in states else sum(map(bool, states)) / len(states),
        clock,
        median(completions) if completions else None,
        median(waits) if waits else None,
        transfer,
        alone.time_ns,
        alone.text,
        contention,
        max(error_ns(joined_call, traffic.source) for joined_call in joined),
        "; ".join(reason for reason in reasons if reason),
    )


def _queued(traffic: Traffic, begun: Mapping[int, int]) -> dict[int, bool | None]:
    """Returns, by the id of a call, whether it was issued while its group was busy.

    None if stamps are missing, or if time_ns is from the device and contains no waiting.

    - begun: as ``begun_ns`` returns it.
    """
    return {
        id(call): begun[id(call)] > (call.start_ns or 0)
        if call.span and call.clock == "host" and not call.point_to_point
        else None
        for calls in traffic.calls.values()
        for call in calls
    }


def _notes(
    rows: Sequence[CostRow], joined_calls: Iterable[JoinedCall], source: str, cut: Set[int]
) -> list[str]:
    notes = []
    calls = [call for joined_call in joined_calls for call in joined_call.calls.values()]
    late = sum(may_end_late(call, source) for call in calls)
    if late:
        notes.append(
            f"the end of {late} asynchronous calls is {LATE}, so in step and "
            "transfer may be that much too long and wait wrong by as much; a contention below "
            "that is shown as an upper bound (<=)"
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
            "queued: calls of a group that was busy on that rank when they were issued (gloo runs "
            "two calls of a group at a time, other backends one): their time in the step holds the "
            "time until they could begin, their wait and transfer do not"
        )
    timed = [row for row in rows if row.in_place_ns is not None]
    if any(row.asynchronous is not False and row.queued is None for row in timed):
        notes.append("asynchronous calls: the time from issue to completion may hold other waiting")
    return notes
