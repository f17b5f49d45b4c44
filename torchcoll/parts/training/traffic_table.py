"""The traffic of a training step as rows: each collective of each size, how often and how long; the
communication that a step waits for, by module; and how the steps of a long capture changed.

Bytes are those that ONE rank puts in. The duration of a call is that of its slowest rank, from
issue to completion. Times are sums over columns of the ledger (training/ledger.py).
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pandas

from torchcoll.core.collectives import has_splits
from torchcoll.core.intervals import Span, Union, merged, uncovered
from torchcoll.core.summary import median
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import format_ranges
from torchcoll.parts.training.ledger import Column, Ledger, call_exposed_ns, waiting_spans
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
            caused[entry.first.step][entry.last] += sum(entry.waits_ns.values())

    def stretch(index: int, steps: Sequence[int]) -> Stretch:
        def per_step(column: Column) -> float | None:
            sums = [ledger.slowest_known(ledger.steps.at, k, column) for k in steps]
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
    """

    module: str
    collective: str
    calls_per_step: float
    bytes_per_step: float
    time_per_step_ns: float | None
    exposed_ns: float | None
    share: float | None

    @property
    def text(self) -> str:
        numbers = self.module.split(" to ")
        kind = "" if not numbers[0].isdecimal() else "module " if len(numbers) == 1 else "modules "
        return f"{self.collective} of {kind}{self.module}"


@dataclass(frozen=True)
class Exposed:
    """The exposed communication of a step.

    - total_ns: on the rank with most, the median over the steady steps; None: unknown.
    - share: total_ns / duration of a step.
    - unknown: how many calls a step do not tell whether they are exposed; the total lacks theirs.
    - modules: in the order of their first call; [] if no call names a module.
    """

    total_ns: float | None
    share: float | None
    unknown: float
    modules: list[ModuleRow]

    @property
    def most(self) -> ModuleRow | None:
        """The module and collective that is exposed most."""
        exposed = [row for row in self.modules if row.exposed_ns]
        return max(exposed, key=lambda row: row.exposed_ns or 0, default=None)


def find_exposed(ledger: Ledger) -> Exposed:
    """Returns the exposed communication of the steady steps."""
    traffic, steps = ledger.traffic, ledger.steps
    totals: dict[int, int] = {}  # of the rank with most, by step
    unknown = 0
    for step in steps.steady:
        for rank, by_step in steps.at.items():
            marked = traffic.steps.get(rank, ())
            if step >= len(marked):
                continue
            calls = [traffic.calls[rank][i] for i in by_step.get(step, ())]
            total = Union(_exposed_spans(traffic, rank, calls)).within(*marked[step])
            totals[step] = max(totals.get(step, 0), total)
            if rank not in traffic.computing:
                unknown += sum(call_exposed_ns(traffic, call) is None for call in calls)
    rank_steps = max(1, len(steps.steady) * len(steps.at))
    total_ns = steps.reduce(totals.get) if any(totals.values()) or not unknown else None
    return Exposed(
        total_ns,
        total_ns / steps.duration_ns if total_ns is not None and steps.duration_ns else None,
        unknown / rank_steps,
        _module_rows(ledger),
    )


def _exposed_spans(traffic: Traffic, rank: int, calls: Sequence[TrafficCall]) -> list[Span]:
    """Returns when calls of a rank were exposed, without those that do not tell it."""
    if rank not in traffic.computing:
        on_host = [call for call in calls if call.clock == "host"]
        timed = [call for call in on_host if call_exposed_ns(traffic, call) is not None]
        return waiting_spans(traffic, timed) or []
    talking = merged(call.span for call in calls if call.span)
    return uncovered(talking, merged(traffic.computing[rank]))


def _module_rows(ledger: Ledger) -> list[ModuleRow]:
    steps, duration_ns = ledger.steps, ledger.steps.duration_ns
    of_modules: dict[tuple[str, str], CallIndices] = {}
    for rank, by_step in steps.at.items():
        for step in steps.steady:
            for i in by_step.get(step, ()):
                call = ledger.call(rank, i)
                if call.module:
                    at = of_modules.setdefault((call.module, call.collective), {})
                    at.setdefault(rank, {}).setdefault(step, []).append(i)

    def per_step(at: CallIndices, column: Column) -> float | None:
        # In a step in which no rank makes the call it has no figure.
        calling = {step for by_step in at.values() for step in by_step}
        return steps.reduce(
            lambda step: ledger.slowest(at, step, column) if step in calling else None
        )

    rows = []
    for (module, collective), at in of_modules.items():
        calls = [
            ledger.call(rank, i)
            for rank, by_step in at.items()
            for indices in by_step.values()
            for i in indices
        ]
        rank_steps = len(at) * len(steps.steady)  # also those in which it does not make the call
        exposed_ns = per_step(at, ledger.exposed_ns)
        rows.append(
            ModuleRow(
                module,
                collective,
                len(calls) / rank_steps,
                sum(call.bytes_in for call in calls) / rank_steps,
                per_step(at, ledger.time_ns),
                exposed_ns,
                exposed_ns / duration_ns if exposed_ns is not None and duration_ns else None,
            )
        )
    return rows


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


def summarise_traffic(ledger: Ledger) -> TrafficTable:
    """Returns the table of a traffic; training/steps.py says which of its steps count."""
    traffic, steps, notes = ledger.traffic, ledger.steps, ledger.notes
    reader = _TrafficReader(ledger)
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
        find_exposed(ledger),
        notes,
        over_time(ledger),
    )


CallIndices = dict[int, dict[int, list[int]]]  # rank -> step -> indices of the rank's calls


@dataclass(frozen=True)
class _TrafficReader:
    """Reads the rows of one ledger."""

    ledger: Ledger

    def rows(self) -> list[TrafficRow]:
        """Returns a row for each kind of call and each set of ranks with equally many of them.

        Rows are in the order of their first call.
        """
        by_kind: dict[Kind, CallIndices] = {}
        for rank, at in self.ledger.steps.at.items():
            kinds = self.ledger.steps.kinds[rank]
            for step in self.ledger.steps.steady:
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
        calls = [self.ledger.call(rank, i) for rank, i in pairs]
        joined_calls = list(dict.fromkeys(self.ledger.entries[rank][i].joined for rank, i in pairs))
        times = [joined.completion_ns for joined in joined_calls]
        known_times = [time for time in times if time is not None]

        def per_step(column: Column) -> float | None:
            return self.ledger.steps.reduce(lambda step: self.ledger.slowest(at, step, column))

        time_ns = per_step(self.ledger.time_ns)
        names = list(dict.fromkeys(call.group for call in calls))
        groups = [self.ledger.traffic.groups.get(name) or Group(name) for name in names]
        share = len(ranks) * len(self.ledger.steps.steady)
        duration = self.ledger.steps.duration_ns
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
            time_ns,
            per_step(self.ledger.wait_ns),
            per_step(self.ledger.transfer_ns),
            median(known_times) if known_times else None,
            _join_distinct(call.clock for call in calls if call.time_ns is not None) or None,
            time_ns / duration if time_ns is not None and duration else None,
            per_step(self.ledger.exposed_ns),
            _join_distinct(call.algorithm for call in calls) or None,
        )

    def sizes(self) -> list[SizeBin]:
        """Returns the calls by the bytes that a rank puts in, in bins from 2^k to below 2^(k+1)."""
        alike: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for rank, at in self.ledger.steps.at.items():
            bins: dict[int, list[int]] = defaultdict(list)
            for i in (i for step in self.ledger.steps.steady for i in at.get(step, ())):
                size_bytes = self.ledger.call(rank, i).bytes_in
                bins[1 << (size_bytes.bit_length() - 1) if size_bytes else 0].append(size_bytes)
            for low, sizes in bins.items():
                alike[low, len(sizes), sum(sizes)].append(rank)
        steps = len(self.ledger.steps.steady)
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
            for rank, calls in self.ledger.traffic.calls.items()
        }

        def of_step(step: int) -> float | None:
            busy = []
            for rank, by_step in self.ledger.steps.at.items():
                calls = [self.ledger.call(rank, i) for i in by_step.get(step, ())]
                if any(call.clock != "host" or call.span is None for call in calls):
                    return None
                marked = self.ledger.traffic.steps.get(rank, ())
                within = in_flight[rank].within(*marked[step]) if step < len(marked) else None
                busy.append(in_flight[rank].total if within is None else within)
            return max(busy, default=None)

        return self.ledger.steps.reduce(of_step)


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
