"""The traffic of a training step as rows: each collective of each size, how often and how long; and
how the steps of a long capture changed.

Bytes are those that ONE rank puts in. The duration of a call is that of its slowest rank, from
issue to completion, and includes waiting for the last rank; ``cost`` separates the two.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas

from torchcoll.core.collectives import has_splits
from torchcoll.core.intervals import Union
from torchcoll.core.summary import median
from torchcoll.core.traffic import Group, Traffic
from torchcoll.core.units import format_ranges
from torchcoll.parts.training.arrivals import SplitCall, split_traffic
from torchcoll.parts.training.exposed import Exposed, call_exposed_ns, find_exposed
from torchcoll.parts.training.joined import JoinedCall, cut_at_marks, join_ranks, unsplit_reason
from torchcoll.parts.training.steps import Kind, Steps, find_steps, group_description
from torchcoll.stats.drift import TimeDrift, drift_of

MOST_ROWS = 24
_ROUND_S = (1, 5, 15, 60, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 7 * 86400)


@dataclass(frozen=True)
class Stretch:
    """A stretch of time of the capture. None: unknown.

    - from_s, to_s: its bounds in seconds since the capture began.
    - steps: the number of captured steps in it.
    - step_ns: the duration of a step on the slowest rank, median over the steps.
    - wait_ns: the longest less the shortest duration of each call's ranks, added up over a step;
      median over the steps.
    - transfer_ns: the shortest duration of each call's ranks, added up over a step; median over the
      steps.
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


def over_time(traffic: Traffic) -> OverTime | None:
    """Returns the stretches of a sampled capture, or None if the capture took every step.

    - traffic: a Traffic with its ends cut at the marks (``cut_at_marks``).
    """
    every = traffic.environment.get("every")
    if type(every) is not int or every < 2 or not traffic.steps:
        return None
    joined, _ = join_ranks(traffic)
    count = min(len(spans) for spans in traffic.steps.values())
    # Step -> its calls that can be split into wait and transfer.
    split: dict[int, dict[JoinedCall, None]] = defaultdict(dict)
    for rank, calls in traffic.calls.items():
        for call, joined_call in zip(calls, joined[rank], strict=True):
            if call.step is not None and not unsplit_reason(joined_call):
                split[call.step][joined_call] = None
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
    arrived: dict[int, list[SplitCall]] = defaultdict(list)  # by step
    for split_call in split_traffic(traffic).calls:
        arrived[split_call.order[0]].append(split_call)
    stretches = [
        _stretch(index * length_s, length_s, steps, took, split, arrived)
        for index, steps in sorted(steps_by_round.items())
    ]
    return OverTime(tuple(stretches), drift_of(took))


def _stretch(
    from_s: float,
    length_s: float,
    steps: Sequence[int],
    took: Sequence[int],
    calls: Mapping[int, Mapping[JoinedCall, None]],
    arrived: Mapping[int, Sequence[SplitCall]],
) -> Stretch:
    step_times = [
        [joined_call.times_ns.values() for joined_call in calls[k]] for k in steps if k in calls
    ]
    waits = [sum(max(times) - min(times) for times in step) for step in step_times]
    transfers = [sum(min(times) for times in step) for step in step_times]
    caused: Counter[int] = Counter()
    for split_call in (each for k in steps for each in arrived.get(k, ())):
        if split_call.last is not None:
            caused[split_call.last] += split_call.wait_ns
    late = max(caused, key=lambda rank: caused[rank], default=None)
    total = sum(caused.values())
    return Stretch(
        from_s,
        from_s + length_s,
        len(steps),
        median([took[k] for k in steps]),
        median(waits) if waits else None,
        median(transfers) if transfers else None,
        late if total else None,
        caused[late] / total if late is not None and total else None,
    )


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
    - wait_per_step_ns: how much longer the calls of a step took than on the rank that came last to
      each, on the rank that waited longest; otherwise like time_per_step_ns.
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
    median_ns: float | None
    clock: str | None
    share: float | None
    exposed_ns: float | None
    algorithm: str | None


@dataclass(frozen=True)
class SizeBin:
    """Calls into which one rank puts from low_bytes to below high_bytes; both 0: no bytes."""

    ranks: str
    low_bytes: int
    high_bytes: int
    calls_per_step: float
    bytes_per_step: float


@dataclass
class TrafficTable:
    """The rows of a traffic and what is needed to judge them.

    - steps: numbers of the steps that the figures describe.
    - total: number of all steps.
    - statistic: ``median`` or ``mean`` over the steps.
    - step_ns: duration of one step on the slowest rank.
    - busy_ns: how long any call was in flight, on the rank with the most; host clock.
    - exposed: the exposed communication of a step, in all and by module.
    - notes: one sentence each.
    - over_time: the steps over time; only for a capture of every Nth step.
    """

    rows: list[TrafficRow]
    sizes: list[SizeBin]
    steps: tuple[int, ...]
    total: int
    marked: bool
    statistic: str
    step_ns: float | None
    busy_ns: float | None
    exposed: Exposed
    notes: list[str] = field(default_factory=list)
    over_time: OverTime | None = None


def summarise_traffic(traffic: Traffic) -> TrafficTable:
    """Returns the table of a traffic; training/steps.py says which of its steps count."""
    traffic = cut_at_marks(traffic)
    joined, notes = join_ranks(traffic)
    steps = find_steps(traffic)
    reader = _TrafficReader(traffic, steps, joined)
    rows = reader.rows()
    recorded = format_ranges(traffic.calls)
    unlike = "the ranks do not send alike: each row is of the ranks that it names"
    apart = [] if all(row.ranks == recorded for row in rows) else [unlike]
    notes = [*steps.notes, *apart, *notes]
    uneven = (row for row in rows if has_splits(row.collective) and row.bytes_in is None)
    for name in dict.fromkeys(row.collective for row in uneven):
        notes.append(f"{name}: bytes vary from call to call; bytes a step are a mean over them")
    if any(row.asynchronous is not False and row.clock == "host" for row in rows):
        notes.append(
            "asynchronous calls overlap each other and the computation: their times add up to more "
            "than the step pays"
        )
    missing = [row for row in rows if row.time_per_step_ns is None]
    if missing and len(missing) < len(rows):
        notes.append(
            f"{len(missing)} of {len(rows)} rows have no time: the source does not tell it"
        )
    if len(traffic.calls) < traffic.ranks and any(row.median_ns is not None for row in rows):
        some = f"{len(traffic.calls)} of {traffic.ranks} ranks"
        notes.append(f"times are of {some}: the slowest may be another")
    return TrafficTable(
        rows,
        reader.sizes(),
        steps.steady,
        steps.total,
        steps.marked,
        "mean" if steps.varying else "median",
        steps.duration_ns,
        reader.busy_ns(),
        find_exposed(traffic, steps, joined),
        notes,
        over_time(traffic),
    )


CallIndices = dict[int, dict[int, list[int]]]  # rank -> step -> indices of the rank's calls


@dataclass(frozen=True)
class _TrafficReader:
    """Reads the rows of one traffic."""

    traffic: Traffic
    steps: Steps
    joined: Mapping[int, Sequence[JoinedCall]]

    def rows(self) -> list[TrafficRow]:
        """Returns a row for each kind of call and each set of ranks with equally many of them.

        Rows are in the order of their first call.
        """
        by_kind: dict[Kind, CallIndices] = {}
        for rank, at in self.steps.at.items():
            kinds = self.steps.kinds[rank]
            for step in self.steps.steady:
                for i in at.get(step, ()):
                    by_step = by_kind.setdefault(kinds[i], {}).setdefault(rank, {})
                    by_step.setdefault(step, []).append(i)
        rows = []
        for kind, by_rank in by_kind.items():
            alike: dict[int, CallIndices] = defaultdict(dict)
            for rank, by_step in by_rank.items():
                alike[sum(map(len, by_step.values()))][rank] = by_step
            rows += [self._row(kind, at) for at in alike.values()]
        return rows

    def _row(self, kind: Kind, at: CallIndices) -> TrafficRow:
        ranks = list(at)
        pairs = [(rank, i) for rank in ranks for indices in at[rank].values() for i in indices]
        calls = [self.traffic.calls[rank][i] for rank, i in pairs]
        joined_calls = list(dict.fromkeys(self.joined[rank][i] for rank, i in pairs))
        times = [joined.completion_ns for joined in joined_calls]
        known_times = [time for time in times if time is not None]
        per_step = self.steps.reduce(
            lambda step: self._slowest(at, step, lambda rank, i: self.joined[rank][i].completion_ns)
        )
        names = list(dict.fromkeys(call.group for call in calls))
        groups = [self.traffic.groups.get(name) or Group(name) for name in names]
        share = len(ranks) * len(self.steps.steady)
        duration = self.steps.duration_ns
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
            format_ranges(ranks),
            len(calls) / share,
            sum(call.bytes_in for call in calls) / share,
            per_step,
            self.steps.reduce(lambda step: self._slowest(at, step, self._wait)),
            median(known_times) if known_times else None,
            _join_distinct(call.clock for call in calls if call.time_ns is not None) or None,
            per_step / duration if per_step is not None and duration else None,
            self.steps.reduce(lambda step: self._slowest(at, step, self._exposed)),
            _join_distinct(call.algorithm for call in calls) or None,
        )

    def _slowest(
        self, at: CallIndices, step: int, time: Callable[[int, int], int | None]
    ) -> int | None:
        """Returns the largest of the ranks' sums over the calls of a step; None if a call has no
        time.
        """
        sums = []
        for rank, by_step in at.items():
            times = [time(rank, i) for i in by_step.get(step, ())]
            if None in times:
                return None
            sums.append(sum(time_ns for time_ns in times if time_ns is not None))
        return max(sums)

    def _wait(self, rank: int, i: int) -> int | None:
        """Returns by how much the call took longer than on the rank that came last."""
        joined, time_ns = self.joined[rank][i], self.traffic.calls[rank][i].time_ns
        split = time_ns is not None and not unsplit_reason(joined)
        return (time_ns or 0) - min(joined.times_ns.values()) if split else None

    def _exposed(self, rank: int, i: int) -> int | None:
        return call_exposed_ns(self.traffic, self.traffic.calls[rank][i])

    def sizes(self) -> list[SizeBin]:
        """Returns the calls by the bytes that a rank puts in, in bins from 2^k to below 2^(k+1)."""
        alike: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for rank, at in self.steps.at.items():
            bins: dict[int, list[int]] = defaultdict(list)
            for i in (i for step in self.steps.steady for i in at.get(step, ())):
                size_bytes = self.traffic.calls[rank][i].bytes_in
                bins[1 << (size_bytes.bit_length() - 1) if size_bytes else 0].append(size_bytes)
            for low, sizes in bins.items():
                alike[low, len(sizes), sum(sizes)].append(rank)
        steps = len(self.steps.steady)
        return [
            SizeBin(format_ranges(ranks), low, 2 * low, count / steps, size_bytes / steps)
            for (low, count, size_bytes), ranks in sorted(alike.items())
        ]

    def busy_ns(self) -> float | None:
        """Returns how long a call was in flight in a step; None if a call has no host stamps.

        A call that ends after its step counts in the next one from there on. A call whose end was
        only stamped late does not (``cut_at_marks``).
        """
        in_flight = {
            rank: Union(call.span for call in calls if call.clock == "host" and call.span)
            for rank, calls in self.traffic.calls.items()
        }

        def of_step(step: int) -> float | None:
            busy = []
            for rank, by_step in self.steps.at.items():
                calls = [self.traffic.calls[rank][i] for i in by_step.get(step, ())]
                if any(call.clock != "host" or call.span is None for call in calls):
                    return None
                marked = self.traffic.steps.get(rank, ())
                within = in_flight[rank].within(*marked[step]) if step < len(marked) else None
                busy.append(in_flight[rank].total if within is None else within)
            return max(busy, default=None)

        return self.steps.reduce(of_step)


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
    records = [dataclasses.asdict(row) for row in summarise_traffic(traffic).rows]
    frame: pandas.DataFrame = pandas.DataFrame(records, columns=names)
    return frame
