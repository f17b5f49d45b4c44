"""Summarises a CaseResult to a Row, which a table shows.

The order statistics and the t table are written by hand, because pandas and scipy would cost the
ranks, the live table and ``show`` 0.9 s and 90 MB. They are tested against scipy and numpy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

from torchcoll.core.backends import communicates
from torchcoll.core.case import Case, count_samples, split_batch, with_settings
from torchcoll.core.collectives import COLLECTIVES, algbw_gbps, busbw_gbps
from torchcoll.core.errors import choice, one_line
from torchcoll.core.implementations import IMPLEMENTATIONS
from torchcoll.core.result import CaseResult, Matrix, Reported, Run, run_numbers

# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom (scipy.stats.t.ppf(0.975, df)).
_QUANTILES = """
    12.7062 4.3027 3.1824 2.7764 2.5706 2.4469 2.3646 2.3060 2.2622 2.2281
    2.2010 2.1788 2.1604 2.1448 2.1314 2.1199 2.1098 2.1009 2.0930 2.0860
    2.0796 2.0739 2.0687 2.0639 2.0595 2.0555 2.0518 2.0484 2.0452 2.0423
"""
_T_975 = tuple(map(float, _QUANTILES.split()))

OVER_RANKS = ("max", "mean", "min", "rank0")
LOW, HIGH = 0.05, 0.95  # the spread shown: 90 % of the calls of this run lie inside
P99_CALLS = 100  # a 99th percentile of fewer calls is their maximum by another name
SLOW_FIRST = 3.0  # a first call beyond so many medians is marked
# From here on the host's time to issue a call agrees with the device's period.
HOST_BOUND = 0.75
PERIOD = "period"  # statistic of calls back to back: time of the batches / calls
COLD_CALL = "one cold call"  # statistic of a figure without a steady call
ONE_RANK = "one rank, no communication: times, but no bandwidth"


def quantile(ordered: Sequence[float], q: float) -> float:
    """Quantile of ascending values, linear between neighbours (numpy's default, R type 7)."""
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(values: Sequence[float]) -> float:
    return quantile(sorted(values), 0.5)


def t_975(degrees: int) -> float:
    """97.5 % quantile of Student's t; beyond 30 degrees Cornish-Fisher's first terms."""
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def _mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    """The mean of two values or more, and the half-width of its 95 % t interval."""
    n = len(values)
    mean = sum(values) / n
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return mean, t_975(n - 1) * deviation / math.sqrt(n)


def relative_half_width(values: Sequence[float]) -> float:
    """Half-width of the 95 % t interval of the mean, over the median, of values above 0."""
    return _mean_and_half_width(values)[1] / median(values)


def geometric_interval(ratios: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Geometric mean of ratios, and its 95 % t interval on the logarithms, None for one ratio. For
    ranks, which load no scipy.
    """
    if len(ratios) < 2:
        return ratios[0], None, None
    mean, half = _mean_and_half_width([math.log(ratio) for ratio in ratios])
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def over_ranks(samples: Matrix, how: str = "max") -> list[float]:
    """Reduce [rank][call] to one duration per call. ``max`` is the completion of the call."""
    choice(how, "over-ranks", OVER_RANKS)
    if not samples:
        return []
    if how == "rank0" or len(samples) == 1:
        return list(samples[0])
    # A rank that was lost in mid-batch has fewer calls; whole calls are kept.
    if how == "max":
        return list(map(max, *samples))
    if how == "min":
        return list(map(min, *samples))
    return [sum(call) / len(samples) for call in zip(*samples, strict=False)]


def slowest(samples: Matrix, how: str = "max") -> list[int]:
    """The intervals of the rank that took longest for one batch; with ``min`` of the fastest. In a
    maximum of each interval one stall would count several times, as it delays every rank in turn.
    """
    rows = list(zip(*zip(*samples, strict=False), strict=True))  # whole calls, as above
    return list((min if how == "min" else max)(rows, key=sum, default=()))


def steady_times(result: CaseResult, clock: str | None, how: str = "max") -> list[float]:
    """One duration per sample of the steady calls, from which the figures of a case are computed;
    for calls back to back the intervals between their ends on the slowest rank of each batch.
    """
    samples = result.time_ns.get(clock or "", [])
    if not samples:
        return []
    if not has_period(result, clock) or how in ("mean", "rank0"):
        return over_ranks(samples, how)
    times: list[float] = []
    for first, last in batches_of(result, samples):
        times += slowest([row[first:last] for row in samples], how)
    return times


def steady_figure(result: CaseResult, clock: str | None, how: str = "max") -> float | None:
    """The figure of the steady calls in a table, in ns: their median, or for calls back to back the
    period, which is the time of all batches on the slowest rank / calls. None without samples.
    """
    return _figure_of(result, clock, steady_times(result, clock, how))


def _figure_of(result: CaseResult, clock: str | None, times: Sequence[float]) -> float | None:
    """times: ``steady_times``, in the order of the calls."""
    if not times:
        return None
    return _mean(result, times) if has_period(result, clock) else median(times)


def has_period(result: CaseResult, clock: str | None) -> bool:
    """Whether the samples of this clock are intervals that follow each other without a gap."""
    return result.case.back_to_back and clock in ("host", "device")


def mean_time(result: CaseResult, clock: str | None, how: str = "max") -> float | None:
    """The mean over the steady calls, which for calls back to back is their period."""
    times = steady_times(result, clock, how)
    return _mean(result, times) if times else None


def host_bound(result: CaseResult) -> tuple[float, float] | None:
    """(time to issue a call, period) in ns if calls back to back wait for the host that issues
    them: then the two agree. None otherwise. The time to issue is the lower quartile of a rank,
    because a full queue holds the host back, of the slowest host.
    """
    if "issue" not in result.time_ns:
        return None
    period = steady_figure(result, "device")
    issue = [row for row in result.time_ns["issue"] if row]
    if not (has_period(result, "device") and period and issue):
        return None
    issued = max(quantile(sorted(row), 0.25) for row in issue)
    return (issued, period) if HOST_BOUND * period <= issued <= period / HOST_BOUND else None


def _mean(result: CaseResult, times: Sequence[float]) -> float:
    calls = calls_of(result, len(times))
    total: float = sum(map(operator.mul, times, calls))
    return total / sum(calls)


def calls_of(result: CaseResult, samples: int) -> list[int]:
    """For each steady sample of a clock, the number of calls of which it is the mean."""
    each = result.calls_per_sample
    if sum(count_samples(size, each) for size in result.batches) != samples:
        return [1] * samples
    return [n for size in result.batches for n in split_batch(size, each)]


def batches_of(result: CaseResult, samples: Matrix) -> list[tuple[int, int]]:
    """(first, end) of the samples of each batch; one batch if the file does not have them."""
    length = min(map(len, samples), default=0)
    for each in (result.calls_per_sample, 1):  # as ``calls_of``
        ends = list(accumulate(count_samples(size, each) for size in result.batches))
        if ends and ends[-1] == length:
            return list(zip([0, *ends], ends, strict=False))
    return [(0, length)]


def reported_reading(reported: Reported) -> str:
    """Describes a published time: its statistic over calls and over ranks."""
    recorded = reported.statistic != "unknown"
    calls = f"{one_line(reported.statistic)} over calls" if recorded else "one figure per case"
    calls = COLD_CALL if reported.one_cold_call else calls
    over = reported.over_ranks
    return calls if over == "unknown" else f"{calls}, {one_line(over)} over ranks"


def over_ranks_of(result: CaseResult, how: str) -> str | None:
    """How the time of a case was computed from the ranks; None if its source does not say so."""
    if not result.reported or result.time_ns:
        return how
    return None if result.reported.over_ranks == "unknown" else result.reported.over_ranks


# Nothing changes a Row, but with so many fields a frozen one takes four times as long.
@dataclass(slots=True, unsafe_hash=True)
@with_settings
class Row:
    """One line of a table; the names are those of JSON.

    Times in ns, bandwidth in GB/s, None where unknown. ``low_ns`` and ``high_ns`` are a spread of
    the calls of this run, not a confidence interval.

    statistic: what ``median_ns`` is: the median of samples, PERIOD for calls back to back, for an
    imported file the statistic that it has (mean, ...), or COLD_CALL.
    ranks, count and calls are 0 if an imported file does not have them.
    """

    # The comment of a field is its line in docs/reference/columns.md (docs/generate.py).
    collective: str  # torch's name: all_reduce
    backend: str  # torch's name: nccl
    library: str | None  # what communicates, with its version
    device: str  # cpu, cuda, xpu, unknown
    ranks: int  # of the group
    dtype: str | None  # of the elements
    op: str | None  # the reduction
    root: int | None  # the rank
    in_place: bool | None  # whether the buffer sent is the buffer received
    group: str | None  # the sub-group: mod:2/0
    buffers: str  # default, registered, symmetric
    buffer_reuse: str  # same, rotate, flush (of the caches), unknown
    misalign_bytes: int  # the buffers begin so many bytes after an aligned address
    implementation: str  # own (the backend's), functional, dtensor, one_shot, ...
    asynchronous: bool  # called with async_op and waited for
    coalesce: int  # calls in one group, timed together
    rehearsal: bool  # several ranks shared one GPU
    splits: str | None  # the rule of uneven blocks
    communicator: str | None  # shared, or how --fresh-group made one of its own
    mode: str  # synchronized, back-to-back, blocking, graph, unknown
    clock: str | None  # host, device, issue, unknown
    size_bytes_requested: int  # the size that was asked for
    size_bytes: int  # the size that was sent, nccl-tests' S
    count: int  # the count argument of the call, in elements
    bytes_in: int  # the most that one rank sends from
    bytes_out: int  # the most that one rank receives in
    first_call_ns: float | None  # the first cold call of the case
    second_call_ns: float | None  # the second
    statistic: str | None  # what median_ns is: median, period; of imported files mean, ...
    median_ns: float | None  # the figure of the steady calls
    low_ns: float | None  # 5th percentile of the calls
    high_ns: float | None  # 95th percentile of the calls
    p99_ns: float | None  # 99th percentile, from 100 calls on
    calls: int  # steady calls
    stop: str  # why the steady calls ended: count, precision (of these calls), time, cap
    steady_ns: int | None  # from the first steady call until then, all between them included
    algorithm: str | None  # what the library's log says it chose: RING/LL; several with commas
    channels: int | None  # of it; None where calls of the case differ
    algbw_gbps: float | None  # size over time
    busbw_gbps: float | None  # algbw times the bus factor
    verified: str  # correct, wrong, unchecked
    status: str  # ok, wrong, oom, timeout, unsupported, skipped, failed
    reason: str  # why it is not ok

    @property
    def communicates(self) -> bool:
        """False for a backend that sends nothing."""
        return communicates(self.backend)

    @property
    def outcome(self) -> str:
        """``ok``, or why the row has no figure that counts: ``wrong``, else its status."""
        return "wrong" if self.verified == "wrong" else self.status

    @property
    def is_right(self) -> bool:
        """False for a row without a result, or with a wrong one: no figure of it counts."""
        return self.outcome == "ok"

    @property
    def slow_first(self) -> bool:
        """True if the first call took over 3 times the figure (median, period, ...)."""
        if self.first_call_ns is None or not self.median_ns:
            return False
        return self.first_call_ns > SLOW_FIRST * self.median_ns


# The fields that a row copies from its case. Its size is the actual one.
_OF_CASE = tuple(f.name for f in fields(Case) if f.name != "size_bytes")
_values_of_case = operator.attrgetter(*_OF_CASE)
_OF_RESULT = (
    "ranks",
    "size_bytes",
    "count",
    "bytes_in",
    "bytes_out",
    "stop",
    "steady_ns",
    "status",
    "reason",
)
_values_of_result = operator.attrgetter(*_OF_RESULT)
# In these fields, 0 means that an imported file does not have the value.
_UNSTATED_AT_0 = ("ranks", "count", "bytes_in", "bytes_out", "calls")


def stated(row: Row, name: str, reported: bool) -> Any:
    """A field of a row; None if its source does not have it. reported: it is another source."""
    return stated_fields(row, (name,), reported)[name]


def stated_fields(row: Row, names: Sequence[str], reported: bool) -> dict[str, Any]:
    """``stated`` for several fields, fast: a table of another tool has a million rows."""
    values = dict(zip(names, _getter(tuple(names))(row), strict=True))
    if reported:
        for name in _UNSTATED_AT_0:
            if name in values:
                values[name] = values[name] or None
    return values


@lru_cache(maxsize=16)
def _getter(names: tuple[str, ...]) -> Callable[[Row], tuple[Any, ...]]:
    """A function that returns these fields of a row, in a third of the time of as many calls."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda row: tuple(getattr(row, name) for name in names)


def default_clock(result: CaseResult) -> str | None:
    """The clock of a table: the device's if it was read, else the host's."""
    for clock in ("device", "host"):
        if clock in result.time_ns:
            return clock
    return next(iter(result.time_ns), result.reported.clock if result.reported else None)


def verified(result: CaseResult) -> str:
    """The outcome of the verification: ``correct``, ``wrong`` or ``unchecked``."""
    if result.verification is None or not result.verification.checked:
        return "unchecked"
    return "wrong" if result.verification.failed else "correct"


def summarise(
    result: CaseResult,
    how: str = "max",
    clock: str | None = None,
    library: str | None = None,
    times: Sequence[float] | None = None,
) -> Row:
    """The row of one case. times: its ``steady_times`` if they are known."""
    clock = clock or default_clock(result)
    times = steady_times(result, clock, how) if times is None else times
    steady, cold = sorted(times), over_ranks(result.cold_ns, how)
    case, reported = result.case, None if steady else result.reported
    statistic: str | None = None
    first_ns: float | None = None
    if reported and reported.clock == clock:
        middle, first_ns = reported.time_ns, reported.first_call_ns
        statistic = COLD_CALL if reported.one_cold_call else reported.statistic
        algbw, busbw = _bandwidths_of(reported, result)
        p99, calls = reported.p99_ns, reported.calls or 0
    else:
        middle = _figure_of(result, clock, times)
        if steady:
            statistic = PERIOD if has_period(result, clock) else "median"
        algbw, busbw = bandwidths(result, middle or 0)
        p99 = quantile(steady, 0.99) if len(steady) >= P99_CALLS else None
        calls = sum(result.batches) if result.calls_per_sample > 1 else len(steady)
    algorithm, channels = None, set()
    if result.choices:
        algorithm = ", ".join(dict.fromkeys(c.label for c in result.choices)) or None
        channels = {choice.channels for choice in result.choices}
    return Row(
        **dict(zip(_OF_CASE, _values_of_case(case), strict=True)),
        **dict(zip(_OF_RESULT, _values_of_result(result), strict=True)),
        library=library,
        communicator=result.communicator if result.cold_ns or result.time_ns else None,
        clock=clock,
        size_bytes_requested=case.size_bytes,
        first_call_ns=cold[0] if cold else first_ns,
        second_call_ns=cold[1] if len(cold) > 1 else None,
        statistic=statistic,
        median_ns=middle,
        low_ns=quantile(steady, LOW) if steady else None,
        high_ns=quantile(steady, HIGH) if steady else None,
        p99_ns=p99,
        calls=calls,
        algorithm=algorithm,
        channels=channels.pop() if len(channels) == 1 else None,
        algbw_gbps=algbw,
        busbw_gbps=busbw,
        verified=verified(result),
    )


def bandwidths(result: CaseResult, time_ns: float) -> tuple[float | None, float | None]:
    """(algbw, busbw) in GB/s; None where nothing is sent or ranks share one GPU."""
    case, busiest = result.case, result.busiest_bytes
    if case.rehearsal or not case.communicates:
        return None, None
    size_bytes = result.size_bytes * case.coalesce
    busiest = None if busiest is None else busiest * case.coalesce
    of_call = (case.collective, size_bytes, result.ranks, time_ns)
    return algbw_gbps(*of_call), busbw_gbps(*of_call, busiest)


def _bandwidths_of(reported: Reported, result: CaseResult) -> tuple[float | None, float | None]:
    """(algbw, busbw) of a case without samples: from its time, or else as its source has them.

    None follows from the time of a call that has only been issued, of a first call, or of one that
    contradicts the bandwidths. Without the number of ranks algbw is S / t, and busbw is known only
    for a bus factor of 1.
    """
    entry = COLLECTIVES[result.case.collective]
    time, size_bytes = reported.time_ns, result.size_bytes * result.case.coalesce
    if reported.one_cold_call:
        return None, None
    if not time or reported.clock == "issue" or reported.contradictory:
        return reported.algbw_gbps, reported.busbw_gbps
    if result.ranks:
        algbw, busbw = bandwidths(result, time)
        if busbw is None and entry.has_splits:  # who sends how much to whom only the source knows
            busbw = reported.busbw_gbps
        return algbw, busbw
    if not size_bytes or entry.moved(2) != 1:
        return reported.algbw_gbps, reported.busbw_gbps
    algbw = size_bytes / time
    return algbw, algbw if entry.bus_factor(2) == entry.bus_factor(3) else reported.busbw_gbps


def nothing_sent(rows: Sequence[Row]) -> str:
    """The footnote about rows of backends that send nothing; '' if there are none."""
    names = dict.fromkeys(row.backend for row in rows if not row.communicates)
    text = f"{', '.join(names)} backend, nothing was communicated: times, but no bandwidth"
    return text if names else ""


def library_of(case: Case, environment: Mapping[str, Any]) -> str | None:
    """What communicates in a case: its library, or torch's symmetric memory; None: unknown."""
    if case.implementation in IMPLEMENTATIONS:
        return f"symmetric memory of torch {environment.get('torch') or ''}".rstrip()
    name: str | None = (environment.get("libraries") or {}).get(case.backend)
    return name


def libraries_of(run: Run) -> list[str | None]:
    """``library_of`` of each result, in the run that measured it."""
    environments = [part.environment for part in (run, *run.continuations)]
    each = zip(run_numbers(run), run.results, strict=True)
    return [library_of(result.case, environments[number]) for number, result in each]


def backends_of(results: Sequence[CaseResult]) -> list[str]:
    """The backends of the cases, in the order in which they ran."""
    return list(dict.fromkeys(result.case.backend for result in results))


def first_results(results: Sequence[CaseResult], backend: str | None = None) -> list[CaseResult]:
    """The case that made the first call of a communicator, in all of its sub-groups."""
    ran = [r for r in results if r.ordinal == 0 and r.cold_ns and all(r.cold_ns)]
    ran = [r for r in ran if r.case.backend == backend] if backend else ran
    if not ran:
        return []
    first = replace(ran[0].case, group=None)
    # In a run with a group for every pair of ranks these are most of the cases.
    alike = (r for r in ran if (r.case.size_bytes, r.case.root) == (first.size_bytes, first.root))
    return [r for r in alike if replace(r.case, group=None) == first]


def cold_by_rank(results: Sequence[CaseResult]) -> dict[int, Sequence[int]]:
    """Rank of the run, ascending -> its cold calls. results: of one case in all sub-groups."""
    by_rank = {
        result.members[index] if index < len(result.members) else index: row
        for result in results
        for index, row in enumerate(result.cold_ns)
    }
    return dict(sorted(by_rank.items()))


def connects(run: Run, backend: str) -> str | None:
    """Where a backend of the run connected: a phase, ``first call``, ``never``, ``before``, None or
    ``unknown``. ProcessGroupNCCL2 of torch 2.14 connects earlier than requested.
    """
    where = recorded_connects(run, backend)
    init_ns = run.phases.get("init_process_group")
    is_first = next(iter(run.header.get("connects_of") or [backend])) == backend
    if where != "first call" or not init_ns or not is_first:
        return where
    if implementation_of(run, backend) != "ProcessGroupNCCL2":
        return where
    firsts = first_results(run.results, backend)
    return "init_process_group" if firsts and max(init_ns) > first_call_ns(firsts) else where


def implementation_of(run: Run, backend: str) -> str | None:
    """The class of torch that implements the group of that backend; None if it was not recorded."""
    of_backend = run.members[0].get("implementation") if run.members else None
    name = of_backend.get(backend) if isinstance(of_backend, dict) else None
    return name if isinstance(name, str) else None


def recorded_connects(run: Run, backend: str) -> str | None:
    """Where the run was told to connect; the values are those of ``connects``."""
    of_each = run.header.get("connects_of") or {}
    if backend in of_each:
        return str(of_each[backend])
    asked = str((run.header.get("spec") or {}).get("backend") or backend)
    recorded = run.header.get("connects")
    return recorded if backend == asked.split(",")[0] or recorded == "before" else "unknown"


def first_call_ns(firsts: Sequence[CaseResult], how: str = "max") -> float:
    """The time of the first call of these results, by default on the slowest rank."""
    return over_ranks(list(cold_by_rank(firsts).values()), how)[0]


def connect_ns(run: Run, firsts: Sequence[CaseResult], how: str = "max") -> float:
    """The time to connect before the first call of these results; 0 if that call connects, or if
    unknown. All of ``init_process_group`` counts if it connects.
    """
    backend = firsts[0].case.backend if firsts else ""
    where = connects(run, backend)
    of_results = [ns for result in firsts for ns in result.connect_ns]
    sources = [of_results]
    if where == "init_process_group" and run.ranks != 1 and communicates(backend):
        names = (f"new_group_{backend}", "init_process_group")
        sources.append(next((run.phases[n] for n in names if run.phases.get(n)), []))
    if where != "unknown":
        sources.append(run.phases.get("communicator") or [])
    # A rank that took no part has 0.
    durations = (over_ranks([[ns] for ns in source], how)[0] for source in sources if source)
    return next((ns for ns in durations if ns), 0)


def first_result_ns(
    run: Run, firsts: Sequence[CaseResult] | None = None, backend: str | None = None
) -> float | None:
    """Time to first result: connecting and the first call, each on its slowest rank. None if the
    run did not create its communicator, or times are unknown. backend: None for the first.
    """
    firsts = first_results(run.results, backend) if firsts is None else firsts
    if not firsts or connects(run, firsts[0].case.backend) in ("before", "unknown"):
        return None
    return first_call_ns(firsts) + connect_ns(run, firsts)
