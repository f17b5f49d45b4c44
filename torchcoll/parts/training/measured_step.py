"""Compares a measured step with its plan: where the difference comes from, and the correction.

Planned and captured calls are matched by collective, size S, and group (number of ranks, and how
far these are apart). All times are of the matched calls of one step: of a step the mean over ranks,
of the steady steps the mean of the middle half, ordered by the time in calls.

    planned + slower + late = in calls          (in calls + copies) / planned = the factor

late and transfer are columns of the ledger (training/ledger.py). slower is transfer - planned:
contention with computation and other traffic, and the error of the machine's law. copies are those
into and out of FSDP2's flat buffers; only a trace of torch.profiler has them. gaps are the step
less computation, copies, and calls that nothing hides. They are unknown without the computation,
or if calls are asynchronous in a capture.

The interval of a factor is that of another step of such a run: from the deviation of the steps and
of their mean, in logarithms, and at least 5 % of deviation. How much runs differ from each other, a
single capture cannot show.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import NamedTuple

from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of
from torchcoll.core.units import counted, format_ns, plural, shorten
from torchcoll.parts.curves.predictor import Ends, PlannedCalls, sum_of
from torchcoll.parts.training.intervals import Union
from torchcoll.parts.training.joined import LATE, may_end_late
from torchcoll.parts.training.ledger import Ledger, blocks
from torchcoll.parts.training.projection import Correction, PlannedRow, PlannedStep
from torchcoll.parts.training.traffic_table import RankSteps
from torchcoll.stats.distributions import t_quantile

# A collective that took less than this share of its plan, because its calls ended with the calls
# before them, has no factor of its own.
_LEAST_FACTOR = 1e-3
LEAST_DEVIATION = 0.05  # of steps, in logarithms
# Of a capture with one step: as between runs on two busy cores
# (results/benchmarks/corrected-2026-11-27.txt).
ONE_STEP_DEVIATION = 0.4
_COPIED = ("all_gather", "reduce_scatter")  # what FSDP2 copies for
_NORMAL_90 = 1.645  # 90 % of a normal distribution are within so many standard deviations


class CallKind(NamedTuple):
    """What a planned and a captured call must have in common.

    - ranks: of the group; apart: how far one rank of the group is from the next.
    """

    collective: str
    size_bytes: int
    ranks: int
    apart: int


@dataclass(frozen=True)
class MatchedCalls:
    """The calls of one kind that are in the plan and in the capture. Times in ns, of all of them in
    one step.

    - group: of the plan. calls: in a step.
    - planned_ns: as predicted; transfer_ns: on the rank that came last.
    - late_ns: the mean wait of a rank for the last one; None if it cannot be separated.
    """

    group: str
    collective: str
    ranks: int
    size_bytes: int
    calls: int
    planned_ns: float
    transfer_ns: float
    late_ns: float | None


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step beside its plan. Times in ns, of one step; None: unknown.

    - capture: its path. layout: what was planned for it. ranks: of the capture.
    - steps: how many steady steps count.
    - unmatched: "plan" and "capture" -> the calls of a step that only this one has.
    - planned_ns: all matched calls one after another, with the 90 % interval.
    - transfer_ns, late_ns, copies_ns, gaps_ns, computing_ns, step_ns: see the module.
    - correction: what it changes in a plan.
    """

    capture: str
    layout: str
    ranks: int
    steps: int
    matched: tuple[MatchedCalls, ...]
    unmatched: Mapping[str, Mapping[CallKind, float]]
    planned_ns: Ends
    transfer_ns: float
    late_ns: float | None
    copies_ns: float | None
    gaps_ns: float | None
    computing_ns: float | None
    step_ns: float | None
    correction: Correction
    notes: tuple[str, ...] = field(default=())

    @property
    def slower_ns(self) -> float:
        return self.transfer_ns - self.planned_ns[0]


class _Figures(NamedTuple):
    """One step on one rank: (transfer, wait) by kind, and times outside of the calls."""

    calls: Mapping[CallKind, tuple[float, float]]
    copies_ns: float  # 0.0 where they are not recorded
    gaps_ns: float | None
    computing_ns: float | None
    step_ns: float | None


def measure_step(
    planned: PlannedStep, traffic: Traffic, layout: str = "", compute_ns: float | None = None
) -> MeasuredStep:
    """Returns a measured step beside its plan.

    - planned: the plan, with times, on as many ranks as the traffic has; layout: its name.
    - traffic: a capture, or traces, of the real training; of all its ranks, to separate late ranks.
    - compute_ns: the computation of a step, where the traffic does not record it.

    Raises UsageError if no call of the plan is in the traffic, or none of these has a duration.
    """
    where = str(traffic.path or "traffic")
    if traffic.source == "plan":
        raise UsageError("measured", f"{where}, a plan", "a capture of steps that ran")
    ledger = Ledger(traffic)
    traffic, steps = ledger.traffic, ledger.steps
    kinds = {
        rank: [_kind(traffic, call) for call in calls] for rank, calls in traffic.calls.items()
    }

    def by_kind(rank: int, step: int) -> dict[CallKind, list[int]]:
        """Returns the indices of the calls of each kind."""
        indices: dict[CallKind, list[int]] = defaultdict(list)
        for index in steps.at[rank].get(step, ()):
            if (kind := kinds[rank][index]) is not None:
                indices[kind].append(index)
        return indices

    last = steps.steady[-1] if steps.steady else 0
    counts = {
        rank: {kind: len(indices) for kind, indices in by_kind(rank, last).items()}
        for rank in steps.at
    }
    matches = {rank: match_kinds(planned.rows, each) for rank, each in counts.items()}
    best = max((sum(n for _, _, n in each) for each in matches.values()), default=0)
    if not best:
        captured = _kinds_text(next(iter(counts.values()), {}))
        expected = f"calls of the plan: {_kinds_text(_planned_counts(planned.rows))}"
        action = "Is it the same model, batch, dtype and layout?"
        raise UsageError(f"measured {where}", captured or "no call", expected, action)
    # With a pipeline, the plan is that of one stage: other stages match less of it.
    ranks = [rank for rank, each in matches.items() if sum(n for _, _, n in each) == best]
    rows = matches[ranks[0]]
    figures: list[_Figures] = []  # of each step the mean over the ranks
    times = {rank: RankSteps(ledger, rank) for rank in ranks}
    for step in steps.steady:
        of_ranks = [
            _figures(times[rank], step, by_kind(rank, step), rows, compute_ns) for rank in ranks
        ]
        if with_figures := [each for each in of_ranks if each is not None]:
            figures.append(_mean(with_figures))
    if not figures:
        raise UsageError(f"measured {where}", "calls without a duration", "a capture that has them")
    unsplit = {
        ledger.entries[rank][index].reason: None
        for step in steps.steady
        for rank in ranks
        for index in steps.at[rank].get(step, ())
    }
    return _summarise(
        planned, ledger, layout, rows, counts[ranks[0]], figures, unsplit, _blocking(traffic, ranks)
    )


def _kind(traffic: Traffic, call: TrafficCall) -> CallKind | None:
    """Returns the kind of a captured call; None if it has no size."""
    members = traffic.members(call)
    point, _ = point_of(call, len(members))
    if point is None or not point.size_bytes or len(members) < 2:
        return None
    return CallKind(point.collective, point.size_bytes, len(members), members[1] - members[0])


def _planned_counts(rows: Sequence[PlannedRow]) -> dict[CallKind, int]:
    counts: dict[CallKind, int] = defaultdict(int)
    for row in rows:
        counts[_planned_kind(row)] += row.calls
    return dict(counts)


def _planned_kind(row: PlannedRow) -> CallKind:
    return CallKind(row.collective, row.size_bytes, row.ranks, row.apart)


Match = tuple[PlannedRow, CallKind, int]  # planned calls, their captured kind, number of both


def match_kinds(rows: Sequence[PlannedRow], captured: Mapping[CallKind, int]) -> list[Match]:
    """Returns the planned rows that have captured calls, with the number of calls that are in both.

    A captured group of the same number of ranks with other distances between them counts only for
    what no group with the planned distance has made.
    """
    left = dict(captured)
    matches: list[Match] = []
    rest: list[tuple[PlannedRow, int]] = []
    for row in rows:
        kind = _planned_kind(row)
        count = min(row.calls, left.get(kind, 0))
        if count:
            left[kind] -= count
            matches.append((row, kind, count))
        if count < row.calls:
            rest.append((row, row.calls - count))
    for row, missing in rest:
        for kind in [k for k, n in left.items() if n and k[:3] == _planned_kind(row)[:3]]:
            count = min(missing, left[kind])
            left[kind] -= count
            missing -= count
            if count:
                matches.append((row, kind, count))
    return matches


def _figures(
    rank_steps: RankSteps,
    step: int,
    of_kinds: Mapping[CallKind, Sequence[int]],
    rows: Sequence[Match],
    compute_ns: float | None,
) -> _Figures | None:
    """Returns one step of one rank; None if a matched call of it has no duration."""
    ledger, rank = rank_steps.ledger, rank_steps.rank
    traffic, entries = ledger.traffic, ledger.entries[rank]
    of_calls: dict[CallKind, tuple[float, float]] = {}
    for _, kind, count in rows:
        indices = of_kinds.get(kind, ())
        if not indices or any(rank not in entries[i].service_ns for i in indices):
            return None
        # All calls of the kind, of which the plan may have fewer, or another row the others.
        share = count / len(indices)
        waited = sum(entries[i].waits_ns.get(rank, 0) for i in indices)
        moved = sum(entries[i].service_ns[rank] for i in indices) - waited
        before = of_calls.get(kind, (0.0, 0.0))
        of_calls[kind] = before[0] + share * moved, before[1] + share * waited
    times = rank_steps.steady[step]
    total, computing = times.step_ns, times.computing_ns
    if total is None:
        return _Figures(of_calls, 0.0, None, compute_ns, None)
    mark = rank_steps.marks[step]
    if computing is not None:
        copies = Union(traffic.copies.get(rank, ())).within(*mark)
        return _Figures(of_calls, copies, times.idle_ns, computing - copies, total)
    if not all(blocks(traffic, call) for call in rank_steps.calls(step)):
        return _Figures(of_calls, 0.0, None, compute_ns, total)
    rest = max(0.0, total - rank_steps.in_flight.within(*mark))
    if compute_ns is None:
        return _Figures(of_calls, 0.0, None, rest, total)
    return _Figures(of_calls, 0.0, max(0.0, rest - compute_ns), compute_ns, total)


def _blocking(traffic: Traffic, ranks: Sequence[int]) -> frozenset[str]:
    """Returns the collectives of which each call in a step is waited for at once on the host."""
    every: dict[str, bool] = {}
    for rank in ranks:
        for call in traffic.calls[rank]:
            if call.step is not None or not traffic.steps:
                every.setdefault(call.collective, True)
                every[call.collective] &= blocks(traffic, call)
    return frozenset(name for name, block in every.items() if block)


def _mean(steps: Sequence[_Figures]) -> _Figures:
    """Returns the mean of steps; None for a time that one of them does not have."""

    def mean(name: str) -> float | None:
        values = [getattr(each, name) for each in steps]
        return None if None in values else fmean(values)

    calls = {
        kind: (fmean(s.calls[kind][0] for s in steps), fmean(s.calls[kind][1] for s in steps))
        for kind in steps[0].calls
    }
    return _Figures(
        calls, mean("copies_ns") or 0.0, mean("gaps_ns"), mean("computing_ns"), mean("step_ns")
    )


def _in_calls(step: _Figures, collective: str | None = None) -> float:
    return sum(
        moved + waited
        for kind, (moved, waited) in step.calls.items()
        if collective in (None, kind.collective)
    )


def _summarise(
    planned: PlannedStep,
    ledger: Ledger,
    layout: str,
    rows: Sequence[Match],
    counts: Mapping[CallKind, int],
    figures: Sequence[_Figures],
    unsplit: Mapping[str, None],
    blocking: frozenset[str],
) -> MeasuredStep:
    traffic = ledger.traffic
    # Without the quarter of the steps that communicated least, and the one that did most.
    cut = len(figures) // 4
    middle = sorted(figures, key=_in_calls)[cut : len(figures) - cut]
    mean = _mean(middle)
    split = "" in unsplit
    shared: dict[CallKind, int] = defaultdict(int)
    for _, kind, count in rows:
        shared[kind] += count
    matched = []
    for row, kind, count in rows:
        share = count / shared[kind]
        matched.append(
            MatchedCalls(
                row.group,
                row.collective,
                row.ranks,
                row.size_bytes,
                count,
                count * row.prediction.time_ns if row.prediction else 0.0,
                share * mean.calls[kind][0],
                share * mean.calls[kind][1] if split else None,
            )
        )
    planned_calls = [
        PlannedCalls(row.collective, row.size_bytes, count, row.prediction)
        for row, _, count in rows
        if row.prediction
    ]
    planned_ns = sum_of(planned_calls)
    of_collective: dict[str, float] = defaultdict(float)
    sizes: dict[tuple[str, int], frozenset[int]] = {}
    for item in matched:
        of_collective[item.collective] += item.planned_ns
        key = item.collective, item.ranks
        sizes[key] = sizes.get(key, frozenset()) | {item.size_bytes}
    copied = [name for name in of_collective if name in _COPIED]
    copied_ns = sum(of_collective[name] for name in copied)

    def factor(collective: str | None = None, copies: bool = True) -> Ends:
        base = planned_ns[0] if collective is None else of_collective[collective]
        part = 0.0  # of the copies
        if copies and collective is None:
            part = 1.0
        elif copies and collective in copied:
            part = base / copied_ns
        ratios = [(_in_calls(s, collective) + part * s.copies_ns) / base for s in figures]
        inner = [(_in_calls(s, collective) + part * s.copies_ns) / base for s in middle]
        return _factor(fmean(inner), ratios)

    factors = {name: factor(name) for name in of_collective}
    timeless = [name for name, (value, _, _) in factors.items() if value < _LEAST_FACTOR]
    others = factor(copies=False)
    if others[0] < _LEAST_FACTOR:
        actual = f"{traffic.path or 'traffic'}, whose calls took less than 0.1 % of their plan"
        raise UsageError("measured", actual, "a capture of calls with durations")
    moved, waited = (sum(each) for each in zip(*mean.calls.values(), strict=True))
    records_copies = bool(traffic.copies) and mean.step_ns is not None
    return MeasuredStep(
        capture=str(traffic.path or "traffic"),
        layout=layout,
        ranks=traffic.ranks,
        steps=len(figures),
        matched=tuple(matched),
        unmatched=_unmatched(planned.rows, rows, counts, traffic),
        planned_ns=planned_ns,
        transfer_ns=moved,
        late_ns=waited if split else None,
        copies_ns=mean.copies_ns if records_copies else None,
        gaps_ns=mean.gaps_ns,
        computing_ns=mean.computing_ns,
        step_ns=mean.step_ns,
        correction=Correction(
            factor(),
            others,
            {name: ends for name, ends in factors.items() if name not in timeless},
            {key: each for key, each in sizes.items() if key[0] not in timeless},
            (mean.gaps_ns or 0.0) / sum(row.calls for row in matched),
            blocking,
        ),
        notes=tuple(_notes(ledger, figures, unsplit, timeless)),
    )


def _factor(value: float, ratios: Sequence[float]) -> Ends:
    """Returns a factor with the 90 % interval of another step.

    - ratios: of each step.
    """
    logs = [math.log(max(ratio, 1e-9)) for ratio in ratios]
    if len(logs) > 1:
        deviation = max(LEAST_DEVIATION, stdev(logs) * math.sqrt(1 + 1 / len(logs)))
        half = deviation * t_quantile(0.95, len(logs) - 1)
    else:
        half = ONE_STEP_DEVIATION * _NORMAL_90
    return value, value * math.exp(-half), value * math.exp(half)


def _unmatched(
    planned: Sequence[PlannedRow],
    rows: Sequence[Match],
    counts: Mapping[CallKind, int],
    traffic: Traffic,
) -> dict[str, dict[CallKind, float]]:
    of_plan, of_capture = Counter(_planned_counts(planned)), Counter(counts)
    for row, kind, count in rows:
        of_plan[_planned_kind(row)] -= count
        # Without marks, the calls are those of an unknown number of steps.
        of_capture[kind] -= count if traffic.steps else counts[kind]
    return {"plan": dict(+of_plan), "capture": dict(+of_capture)}


def _notes(
    ledger: Ledger,
    figures: Sequence[_Figures],
    unsplit: Mapping[str, None],
    timeless: Sequence[str],
) -> list[str]:
    traffic = ledger.traffic
    seen = (*traffic.problems, *ledger.steps.notes, *ledger.notes)
    notes = [f"of the capture: {note}" for note in seen]
    reasons = [reason for reason in unsplit if reason]
    if reasons:
        what = "late ranks are not separated" if "" not in unsplit else "of some calls, late ranks"
        more = "" if "" not in unsplit else " are not separated"
        notes.append(f"{what}{more}: {'; '.join(reasons)}")
    if timeless:
        notes.append(
            f"{' and '.join(timeless)} ended with the calls before them, which leaves them no time "
            "of their own: they take the factor of all calls"
        )
    calls = [call for calls in traffic.calls.values() for call in calls]
    late = sum(may_end_late(call, traffic.source) for call in calls)
    if late:
        notes.append(f"of the capture: the end of {late} of {len(calls)} calls is {LATE}")
    if not traffic.steps:
        notes.append("the plan's calls are compared with the mean of all captured calls of a kind")
    if len(figures) == 1:
        notes.append(
            "one steady step was captured: how much steps differ is unknown, and the interval of "
            "the factor is that between runs on two busy cores"
        )
    if figures[-1].step_ns is not None and figures[-1].gaps_ns is None:
        notes.append(
            "gaps between calls are unknown: --step-ms says how long it computes where the program "
            "waits for each call; elsewhere a trace of torch.profiler does"
        )
    return notes


def _kinds_text(counts: Mapping[CallKind, float]) -> str:
    """Returns for example ``2 all_gather of 10880 bytes on 4 ranks``; of many the first three."""
    texts = [
        f"{round(n)} {kind.collective} of {kind.size_bytes} bytes on {kind.ranks} ranks"
        for kind, n in counts.items()
    ]
    return shorten(texts, 3, " and {} more kinds")


def describe_unmatched(measured: MeasuredStep) -> list[str]:
    """Returns a sentence for the plan and one for the capture, if calls of it are not matched."""
    sentences = []
    for where, other in (("plan", "capture"), ("capture", "plan")):
        if kinds := measured.unmatched[where]:
            count = round(sum(kinds.values()))
            sentences.append(
                f"{counted(count, 'call')} of the {where} {plural(count, 'is', 'are')} not in "
                f"the {other}, and not in the factor: {_kinds_text(kinds)}"
            )
    return sentences


def largest_cause(measured: MeasuredStep) -> str:
    """Returns the largest cause of the difference, with its time; '' if nothing is longer."""
    causes = [
        ("calls slower than planned", measured.slower_ns),
        ("late ranks", measured.late_ns or 0.0),
        ("FSDP2's copies", measured.copies_ns or 0.0),
        ("gaps", measured.gaps_ns or 0.0),
    ]
    name, time_ns = max(causes, key=lambda cause: cause[1])
    return f"{name} ({format_ns(time_ns, 3)})" if time_ns > 0 else ""
