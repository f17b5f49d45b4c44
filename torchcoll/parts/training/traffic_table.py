"""The traffic of a training step as rows: each collective of each size, how often and how long; the
communication that a step waits for, by module; and how the steps of a long capture changed.

Bytes are those that ONE rank puts in. The duration of a call is that of its slowest rank, from
issue to completion. Times are sums over columns of the ledger (training/ledger.py).
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pandas

from torchcoll.core.answer import Answer
from torchcoll.core.collectives import has_splits
from torchcoll.core.errors import one_line
from torchcoll.core.summary import median
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import format_ranges, plural
from torchcoll.parts.training.arrivals import Arrivals, find_arrivals
from torchcoll.parts.training.intervals import Union
from torchcoll.parts.training.joined import JoinedCall
from torchcoll.parts.training.ledger import (
    Column,
    Ledger,
    call_exposed_ns,
    waiting_spans,
)
from torchcoll.parts.training.steps import Kind, group_description
from torchcoll.stats.drift import TimeDrift, drift_of

MOST_ROWS = 24
_ROUND_S = (1, 5, 15, 60, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 7 * 86400)


@dataclass(frozen=True)
class Stretch:
    """A stretch of time of the capture. None: unknown.

    - from_s, to_s: its bounds in seconds since the capture began.
    - steps: the number of captured steps in it.
    - step_ns: the duration of a step on the slowest rank, median over the steps.
    - wait_ns: the waits of a step on the rank that waits longest, median over the steps.
    - transfer_ns: the transfers of a step, on the rank with most; median over the steps.
    - late_rank: the rank that caused most waiting (training/arrivals.py).
    - late_share: its share of the waiting.
    """

    from_s: float
    to_s: float
    steps: int
    step_ns: float
    wait_ns: float | None
    transfer_ns: float | None
    late_rank: int | None
    late_share: float | None


@dataclass(frozen=True)
class OverTime:
    """A capture over time; ``drift`` is that of the step duration over all captured steps."""

    stretches: tuple[Stretch, ...]
    drift: TimeDrift | None


def over_time(ledger: Ledger) -> OverTime | None:
    """Returns the stretches of a sampled capture, or None if the capture took every step."""
    traffic = ledger.traffic
    every = traffic.environment.get("every")
    if type(every) is not int or every < 2 or not traffic.steps:
        return None
    count = min(len(spans) for spans in traffic.steps.values())
    took = [
        max(spans[k][1] - spans[k][0] for spans in traffic.steps.values()) for k in range(count)
    ]
    first = traffic.steps[min(traffic.steps)]
    # The shortest round number of seconds that gives at most MOST_ROWS stretches.
    whole_s = first[count - 1][1] / 1e9
    fits = (length for length in _ROUND_S if whole_s <= MOST_ROWS * length)
    length_s = next(fits, whole_s / MOST_ROWS)
    steps_by_round: dict[int, list[int]] = defaultdict(list)
    for k in range(count):
        steps_by_round[int(first[k][0] / 1e9 // length_s)].append(k)
    caused: dict[int, Counter[int]] = defaultdict(Counter)  # step -> last rank -> waits of others
    for entry in ledger.every:
        if entry.last is not None and entry.first.step is not None:
            caused[entry.first.step][entry.last] += entry.caused_ns

    def stretch(index: int, steps: Sequence[int]) -> Stretch:
        def per_step(column: Column) -> float | None:
            sums = [ledger.slowest(ledger.steps.at, k, column, partial=True) for k in steps]
            figures = [each for each in sums if each is not None]
            return median(figures) if figures else None

        late = sum((caused[k] for k in steps), Counter[int]()).most_common(1)
        total = sum(caused[k].total() for k in steps)
        return Stretch(
            index * length_s,
            (index + 1) * length_s,
            len(steps),
            median([took[k] for k in steps]),
            per_step(ledger.wait_ns),
            per_step(ledger.transfer_ns),
            late[0][0] if total else None,
            late[0][1] / total if total else None,
        )

    stretches = tuple(stretch(index, steps) for index, steps in sorted(steps_by_round.items()))
    return OverTime(stretches, drift_of(took))


@dataclass(frozen=True)
class ModuleRow:
    """The calls of one collective that move parameters or gradients of one module, in a step.

    Times in ns of the slowest rank, the median over the steady steps; None: unknown.

    - module: its name in the model, see TrafficCall.
    - calls_per_step, bytes_per_step: those of one rank; bytes that it puts in.
    - time_per_step_ns: durations of the calls, added up.
    - exposed_ns: the part of it that is exposed.
    - share: exposed_ns / duration of a step.
    - moving_ns: exposed without the waiting for the last rank, mean over the ranks and steps.
    """

    module: str
    collective: str
    calls_per_step: float
    bytes_per_step: float
    time_per_step_ns: float | None
    exposed_ns: float | None
    share: float | None
    moving_ns: float

    @property
    def text(self) -> str:
        return f"{self.collective} of {quote_numbers(self.module)}"


def quote_numbers(module: str) -> str:
    """Returns the name with quoted numbers: ``"4" to "5"`` are modules of an nn.Sequential."""
    return re.sub(r"(?<!\S)\d+(?!\S)", r'"\g<0>"', module)


@dataclass(frozen=True)
class Exposed:
    """The exposed communication of a step.

    - total_ns: the median over the steady steps, mean over the ranks; None: unknown.
    - share: total_ns / duration of a step.
    - waiting_ns: the part of it that is waiting for the last rank of a call.
    - unknown: how many calls a step do not tell whether they are exposed; the total lacks theirs.
    - modules: in the order of their first call; [] if no call names a module.
    """

    total_ns: float | None
    share: float | None
    waiting_ns: float
    unknown: float
    modules: list[ModuleRow]

    @property
    def most(self) -> ModuleRow | None:
        """The module and collective that is exposed most, without the waiting."""
        exposed = [row for row in self.modules if row.moving_ns]
        return max(exposed, key=lambda row: row.moving_ns, default=None)


@dataclass(frozen=True)
class RankTimes:
    """What one rank does in a step, as medians over the steady steps. None: unknown.

    computing + exposed + idle = the step. The rank waits for the last rank of its calls; its
    computation does not hide the exposed wait.
    """

    rank: int
    step_ns: float | None
    computing_ns: float | None
    in_flight_ns: float | None
    exposed_ns: float | None
    idle_ns: float | None
    wait_ns: float | None
    exposed_wait_ns: float | None = None

    @property
    def outside_ns(self) -> float | None:
        """The time outside of exposed calls, where no computation was recorded."""
        if self.computing_ns is not None or self.step_ns is None or self.exposed_ns is None:
            return None
        return self.step_ns - self.exposed_ns


class RankSteps:
    """The times of one rank in each of its steps.

    A call that ends after its step counts in the next one from there on. A call whose end was only
    stamped late does not (``cut_at_marks``).
    """

    def __init__(self, ledger: Ledger, rank: int) -> None:
        traffic = ledger.traffic
        self.ledger, self.rank = ledger, rank
        self.marks = traffic.steps.get(rank, ())
        self.indices = ledger.steps.at[rank]
        spans = [call.span for call in traffic.calls[rank] if call.span]
        # Kernels of no single call are those of the calls without a time.
        self.has_apart = bool(traffic.apart.get(rank))
        spans += traffic.apart.get(rank, ())
        computing = traffic.computing.get(rank, ())
        self.records_computing = rank in traffic.computing
        self.in_flight, self.computes = Union(spans), Union(computing)
        self.busy = Union([*spans, *computing])
        self.steady = {step: self.times(step) for step in ledger.steps.steady}

    def calls(self, step: int) -> list[TrafficCall]:
        return [self.ledger.call(self.rank, i) for i in self.indices.get(step, ())]

    def times(self, step: int) -> RankTimes:
        """Returns the times of one step; what is exposed may lack the calls that are unknown."""
        calls, computing, idle = self.calls(step), None, None
        at = {self.rank: {step: self.indices.get(step, ())}}
        wait = self.ledger.slowest(at, step, self.ledger.wait_ns, partial=True)
        timed = self.has_apart or all(call.span for call in calls)
        if step >= len(self.marks):
            in_flight = self.in_flight.total if timed else None
            return RankTimes(self.rank, None, None, in_flight, None, None, wait)
        start, end = self.marks[step]
        if self.records_computing:
            computing, busy = (each.within(start, end) for each in (self.computes, self.busy))
            exposed, idle = busy - computing, end - start - busy
        else:
            traffic = self.ledger.traffic
            timed_calls = [
                c for c in calls if c.clock == "host" and call_exposed_ns(traffic, c) is not None
            ]
            exposed = Union(waiting_spans(traffic, timed_calls) or []).within(start, end)
        exposed_wait = min(exposed, wait or 0)
        if self.records_computing:
            unhidden = self.ledger.slowest(at, step, self.ledger.exposed_wait_ns, partial=True)
            exposed_wait = min(exposed_wait, unhidden or 0)
        return RankTimes(
            self.rank,
            end - start,
            computing,
            self.in_flight.within(start, end) if timed else None,
            exposed,
            idle,
            wait,
            exposed_wait,
        )

    def unknown(self, step: int) -> int:
        """Returns how many calls of the step do not tell whether they are exposed."""
        if step >= len(self.marks):
            return 0
        if self.records_computing:
            return 0 if self.has_apart else sum(call.span is None for call in self.calls(step))
        return sum(call_exposed_ns(self.ledger.traffic, call) is None for call in self.calls(step))

    def typical(self) -> RankTimes:
        """Returns the medians over the steady steps."""
        times = {name: _typical(self.ledger, [self], name) for name in _TIMES}
        if any(map(self.unknown, self.steady)):
            times["exposed_ns"] = None
        return RankTimes(self.rank, **times)


_TIMES = [each.name for each in dataclasses.fields(RankTimes) if each.name != "rank"]


def _typical(ledger: Ledger, ranks: Sequence[RankSteps], name: str) -> float | None:
    """Returns a time of a steady step: of each rank, mean over the ranks; None if none has it."""

    def of_rank(rank: RankSteps) -> float | None:
        return ledger.steps.reduce(lambda step: getattr(rank.steady[step], name))

    values = [ns for rank in ranks if (ns := of_rank(rank)) is not None]
    return fmean(values) if values else None


def _find_exposed(ledger: Ledger, ranks: Sequence[RankSteps]) -> Exposed:
    """Returns the exposed communication of the steady steps."""
    steps = ledger.steps
    unknown = sum(rank.unknown(step) for rank in ranks for step in steps.steady)
    total_ns = _typical(ledger, ranks, "exposed_ns")
    total_ns = total_ns if total_ns or not unknown else None

    def of_module(rank: int, index: int) -> tuple[str, str] | None:
        call = ledger.call(rank, index)
        return (call.module, call.collective) if call.module else None

    modules = [
        ModuleRow(
            module,
            collective,
            **figures,
            share=_share(ledger, figures["exposed_ns"]),
            moving_ns=sum(
                ledger.moving_ns(rank, index)
                for rank, by_step in at.items()
                for indices in by_step.values()
                for index in indices
            )
            / (len(steps.at) * len(steps.steady)),
        )
        for (module, collective), at in _grouped(ledger, of_module).items()
        for figures in (_figures(ledger, at),)
    ]
    waiting_ns = _typical(ledger, ranks, "exposed_wait_ns")
    return Exposed(
        total_ns,
        _share(ledger, total_ns),
        min(waiting_ns or 0.0, total_ns or 0.0),
        unknown / max(1, len(steps.steady) * len(steps.at)),
        modules,
    )


CallIndices = dict[int, dict[int, list[int]]]  # rank -> step -> indices of the rank's calls


def _grouped(ledger: Ledger, key: Callable[[int, int], Any]) -> dict[Any, CallIndices]:
    """Returns the calls of the steady steps by their key, in the order of the first call; without
    those that have None.
    """
    groups: dict[Any, CallIndices] = {}
    for rank, by_step in ledger.steps.at.items():
        for step in ledger.steps.steady:
            for i in by_step.get(step, ()):
                if (name := key(rank, i)) is not None:
                    of_rank = groups.setdefault(name, {}).setdefault(rank, {})
                    of_rank.setdefault(step, []).append(i)
    return groups


def _calls_at(ledger: Ledger, at: CallIndices) -> list[tuple[TrafficCall, JoinedCall]]:
    return [
        (ledger.call(rank, i), ledger.entries[rank][i])
        for rank, by_step in at.items()
        for indices in by_step.values()
        for i in indices
    ]


def _per_step(ledger: Ledger, at: CallIndices, column: Column) -> float | None:
    """Returns the sum over the calls of a step, on the slowest rank.

    A step in which no rank makes these calls has no figure, unless all steps differ.
    """
    calling = {step for by_step in at.values() for step in by_step}
    return ledger.steps.reduce(
        lambda step: (
            ledger.slowest(at, step, column) if step in calling or ledger.steps.varying else None
        )
    )


def _figures(ledger: Ledger, at: CallIndices) -> dict[str, Any]:
    """Returns what the rows of calls and of modules have in common."""
    calls = [call for call, _ in _calls_at(ledger, at)]
    rank_steps = len(at) * len(ledger.steps.steady)  # also those without such a call
    return {
        "calls_per_step": len(calls) / rank_steps,
        "bytes_per_step": sum(call.bytes_in for call in calls) / rank_steps,
        "time_per_step_ns": _per_step(ledger, at, ledger.time_ns),
        "exposed_ns": _per_step(ledger, at, ledger.exposed_ns),
    }


def _share(ledger: Ledger, time_ns: float | None) -> float | None:
    duration = ledger.steps.duration_ns
    return time_ns / duration if time_ns is not None and duration else None


@dataclass(frozen=True)
class TrafficRow:
    """One line of the table: similar calls over the steady steps. None: unknown.

    - bytes_in, bytes_out: bytes of one call that a rank puts in and gets; None if they vary
      (all_to_all_v).
    - group: its label, or the shared description of several groups that are used alike.
    - group_ranks: the number of ranks in each group; 0 unknown.
    - groups: the number of groups.
    - ranks: the ranks that make the calls (``0-3``).
    - calls_per_step, bytes_per_step: those of one rank.
    - time_per_step_ns: the durations of the calls of a step added up, each on its slowest rank; of
      several groups the slowest. The median over the steps (the mean if the steps vary).
    - wait_per_step_ns: how long the rank that waited longest waited in the calls of a step for the
      last rank of each; otherwise like time_per_step_ns. transfer_per_step_ns: how long the calls
      took on their last ranks.
    - median_ns: the median duration of one call.
    - share: time_per_step_ns / duration of a step. Calls overlap, so shares may add up to more than
      1.
    - exposed_ns: the time per step during which nothing else ran, on the slowest rank: an estimate;
      see TrafficCall.
    - algorithm: a hint from the names of the kernels, each listed once.
    """

    collective: str
    bytes_in: int | None
    bytes_out: int | None
    dtype: str | None
    op: str | None
    group: str
    group_ranks: int
    groups: int
    backend: str
    asynchronous: bool | None
    ranks: str
    calls_per_step: float
    bytes_per_step: float
    time_per_step_ns: float | None
    wait_per_step_ns: float | None
    transfer_per_step_ns: float | None
    median_ns: float | None
    clock: str | None
    share: float | None
    exposed_ns: float | None
    algorithm: str | None


@dataclass
class TrafficTable:
    """The rows of a traffic and what is needed to judge them.

    - steps: numbers of the steps that the figures describe.
    - total: number of all steps.
    - statistic: ``median`` or ``mean`` over the steps.
    - step_ns: duration of one step, mean over the ranks.
    - computing_ns, busy_ns, wait_ns: how long a rank computes, any call is in flight, and it waits
      for the last rank of its calls, mean over the ranks.
    - ranks: the times of each rank.
    - exposed: the exposed communication of a step, in all and by module.
    - most_calls: collective -> its calls of a step on the rank that makes most of them.
    - notes: one sentence each.
    - arrivals: who came last to the calls; None if no call tells it.
    - over_time: the steps over time; only for a capture of every Nth step.
    - behind: the answer if ranks never entered the last calls of their group; otherwise None.
    - replayed: the number of the ``step`` that a replay plays, and its ``step_ns`` and
      ``in_flight_ns`` in training; {} for another source.
    """

    rows: list[TrafficRow]
    steps: tuple[int, ...]
    total: int
    marked: bool
    statistic: str
    step_ns: float | None
    computing_ns: float | None
    busy_ns: float | None
    wait_ns: float | None
    ranks: list[RankTimes]
    exposed: Exposed
    most_calls: dict[str, float]
    notes: list[str] = field(default_factory=list)
    arrivals: Arrivals | None = None
    over_time: OverTime | None = None
    behind: Answer | None = None
    replayed: dict[str, Any] = field(default_factory=dict)

    @property
    def sized(self) -> bool:
        """Whether the source has the sizes of the calls; a trace without shapes has none."""
        return not self.rows or any(row.bytes_out or row.bytes_per_step for row in self.rows)


def summarise_traffic(ledger: Ledger) -> TrafficTable:
    """Returns the table of a traffic; training/steps.py says which of its steps count."""
    traffic, steps, notes = ledger.traffic, ledger.steps, ledger.notes
    rows = _rows(ledger)
    recorded = format_ranges(traffic.calls)
    unlike = "the ranks do not send alike: each row is of the ranks that it names"
    played = traffic.environment.get("replay") if traffic.source == "replay" else None
    apart = [] if all(row.ranks == recorded for row in rows) else [unlike]
    notes = [*steps.notes, *apart, *notes]
    uneven = (row for row in rows if has_splits(row.collective) and row.bytes_in is None)
    for name in dict.fromkeys(row.collective for row in uneven):
        notes.append(f"{name}: bytes vary from call to call; bytes a step are a mean over them")
    missing = [row for row in rows if row.time_per_step_ns is None]
    if missing and len(missing) < len(rows):
        notes.append(
            f"{len(missing)} of {len(rows)} rows have no time: the source does not tell it"
        )
    if len(traffic.calls) < traffic.ranks and any(row.median_ns is not None for row in rows):
        some = f"{len(traffic.calls)} of {traffic.ranks} ranks"
        notes.append(f"times are of {some}: the slowest may be another")
    ranks = [RankSteps(ledger, rank) for rank in traffic.calls]
    timed = all(time.in_flight_ns is not None for rank in ranks for time in rank.steady.values())
    return TrafficTable(
        rows,
        steps.steady,
        steps.total,
        steps.marked,
        "mean" if steps.varying else "median",
        steps.duration_ns,
        _typical(ledger, ranks, "computing_ns"),
        _typical(ledger, ranks, "in_flight_ns") if timed else None,
        _typical(ledger, ranks, "wait_ns"),
        [rank.typical() for rank in ranks],
        _find_exposed(ledger, ranks),
        _most_calls(ledger),
        notes,
        find_arrivals(ledger),
        over_time(ledger),
        None if steps.marked else _behind(traffic),
        played if isinstance(played, dict) else {},
    )


def _most_calls(ledger: Ledger) -> dict[str, float]:
    steps, most = ledger.steps, Counter[str]()
    for rank, at in steps.at.items():
        kinds = ledger.steps.kinds[rank]
        most |= Counter(kinds[i].collective for step in steps.steady for i in at.get(step, ()))
    return {name: number / len(steps.steady) for name, number in most.items()}


def _behind(traffic: Traffic) -> Answer | None:
    """Compares the ranks of a group by the numbers of their last calls in the Flight Recorder."""
    groups = traffic.groups if traffic.source == "flight recorder" else ()
    for name in groups:
        of_group = {
            rank: [call for call in calls if call.group == name and not call.point_to_point]
            for rank, calls in traffic.calls.items()
        }
        last = {rank: calls[-1] for rank, calls in of_group.items() if calls}
        number = max((call.sequence for call in last.values()), default=0)
        entered = [rank for rank, call in last.items() if call.sequence == number]
        absent = [rank for rank in last if rank not in entered]
        if not absent:
            continue
        collective = last[entered[0]].collective
        counts = {rank: sum(c.collective == collective for c in of_group[rank]) for rank in last}
        (count, *others), (less, *more) = ({counts[rank] for rank in r} for r in (entered, absent))
        if others or more or less >= count:
            continue  # buffers that kept different numbers of calls
        who, which = (f"{plural(len(r), 'rank')} {format_ranges(r)}" for r in (entered, absent))
        return Answer(
            f"{who} made {count} {one_line(collective)}, {which} made {less}: "
            f"{plural(len(absent), 'it', 'they')} never entered the last"
            + (f" {count - less}" if count - less > 1 else ""),
            "bad",
            worst=tuple(f"rank {rank}" for rank in absent),
            next_step=f"torchcoll postmortem {shlex.quote(str(traffic.path or 'FOLDER'))}",
        )
    return None


def _rows(ledger: Ledger) -> list[TrafficRow]:
    """Returns a row for each kind of call and each set of ranks with equally many of them.

    Rows are in the order of their first call.
    """
    rows = []
    for kind, at in _grouped(ledger, lambda rank, i: ledger.steps.kinds[rank][i]).items():
        alike: dict[int, CallIndices] = defaultdict(dict)
        for rank, by_step in at.items():
            alike[sum(map(len, by_step.values()))][rank] = by_step
        rows += [_row(ledger, kind, of_ranks) for of_ranks in alike.values()]
    return rows


def _row(ledger: Ledger, kind: Kind, at: CallIndices) -> TrafficRow:
    calls, entries = zip(*_calls_at(ledger, at), strict=True)
    times = [entry.completion_ns for entry in dict.fromkeys(entries)]
    known_times = [time for time in times if time is not None]
    names = list(dict.fromkeys(call.group for call in calls))
    groups = [ledger.traffic.groups.get(name) or Group(name) for name in names]
    figures = _figures(ledger, at)
    return TrafficRow(
        kind.collective,
        _single_value(call.bytes_in for call in calls),
        _single_value(call.bytes_out for call in calls),
        kind.dtype,
        kind.op,
        group_text(groups, kind.group[2]),
        len(groups[0].ranks),
        len(groups),
        _join_distinct(group.backend for group in groups),
        kind.asynchronous,
        format_ranges(at),
        wait_per_step_ns=_per_step(ledger, at, ledger.wait_ns),
        transfer_per_step_ns=_per_step(ledger, at, ledger.transfer_ns),
        median_ns=median(known_times) if known_times else None,
        clock=_join_distinct(call.clock for call in calls if call.time_ns is not None) or None,
        share=_share(ledger, figures["time_per_step_ns"]),
        algorithm=_join_distinct(call.algorithm for call in calls) or None,
        **figures,
    )


def _single_value(values: Iterable[int]) -> int | None:
    """Returns the value if all are equal, otherwise None."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _join_distinct(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(text for text in texts if text))


def group_text(groups: Sequence[Group], index: int) -> str:
    """Returns the label of one group; of several their shared description or their names.

    - index: of the group among those of its rank that share label and size.
    """
    if len(groups) == 1:
        text = groups[0].label
        return f"{text} ({groups[0].name})" if index and text != groups[0].name else text
    return group_description(groups[0]) or ",".join(group.name for group in groups)


def traffic_frame(traffic: Traffic) -> pandas.DataFrame:
    """A row for each collective and size, with the fields of TrafficRow."""

    names = [field.name for field in dataclasses.fields(TrafficRow)]
    records = [dataclasses.asdict(row) for row in summarise_traffic(Ledger(traffic)).rows]
    frame: pandas.DataFrame = pandas.DataFrame(records, columns=names)
    return frame
