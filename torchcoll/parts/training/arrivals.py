"""Who came last to the collectives of a job, how much waiting that caused, and what is chance.

Waits and the last rank of a call are those of the ledger (training/ledger.py).

The test is about time, not calls: a rank is late if it arrives later than the mean of the others
beyond chance, at 5 % over all ranks and groups (Holm), in the whole time or in one third of it, and
causes clearly more of the waiting than its share. docs/method.md has the rules, and how often a
rank is named if none is late, and if one is.

Steps that follow each other are not independent: their delays are taken for a first-order
autoregressive process. The variance of their mean and the degrees of freedom of their scatter
follow from its correlation, of which only an estimate exists: 20 values with a correlation of 0.9
look like values with one of 0.6. The test therefore uses an upper bound of the correlation (99.5 %,
at most ``HIGHEST``). Many ranks count as at most two series, because a slow drift below fast noise
is alike in all.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from statistics import fmean

import numpy

from torchcoll.core.answer import CANNOT_TELL, CERTAIN, PROBABLY, Answer, nothing_found
from torchcoll.core.units import counted, format_ns
from torchcoll.parts.training.joined import JoinedCall
from torchcoll.parts.training.ledger import NO_CLOCK, Ledger
from torchcoll.parts.training.steps import group_labels
from torchcoll.stats.distributions import t_p_value, t_quantile
from torchcoll.stats.drift import SURE
from torchcoll.stats.power import ACT_ON_STEP, holm

MOST_BLOCKS = 32
LEAST_BLOCKS = 6  # of fewer, no rank is named
_MOST_NAMED = 3  # late ranks in the answer
_ENOUGH_STEPS = 64  # with so many, a rank that is late in most steps is named
_INDEPENDENT = 9.0  # so many independent steps prove a delay that is in most of them
_PROBABLE = 3.0  # standard errors of the share of calls, if steps are independent
_LIMITED = 0.9  # quantile over the blocks to which longer waits are limited
_LEAST_OF_THIRD = 10  # blocks, to test the thirds of the time
_NOTABLE = 0.05  # of the waiting, above the share by chance: less is nothing to act on
_SMALL = 0.01  # of the time in collectives: a wait of less is nothing to act on
_THIRDS = ("first third", "second third", "last third")
_OTHER_STEP = "outside of the steps that send alike"


@dataclass
class RankArrival:
    """How one rank arrived at the calls of one group.

    - host: '' where unknown.
    - calls: calls of the group in which a single rank was last; last: those in which it was this.
    - ties: calls of the group in which no single rank was last.
    - chance: the share of calls in which it would be last if all ranks were alike, 1 / ranks.
    - caused_ns: the waiting of all other ranks in the calls in which it was last; caused_share: of
      the waiting in the group.
    - steps: steps of the group in which calls could be split; without marked steps, its calls.
    - worth: at least how many independent steps they are worth for this rank; 0.0 for too few.
    - p: of the most significant time, corrected for all ranks, groups and times (Holm).
    - when: the time in which it is late, '' for the whole time; None if it is not late.
    - undecided: it would be late if steps were independent, but is not known to be.
    - small: it is late more often than chance, but another rank waited for it for less than 1 % of
      the time that the ranks of the group were in collectives of any group.
    - after: the rank for which it waited in another group, which explains that it is late.
    - detectable_ns: the delay in a step that would have been found 9 times in 10; None if unknown.
    """

    group: str
    rank: int
    host: str
    calls: int
    last: int
    chance: float
    caused_ns: int
    caused_share: float
    steps: int
    worth: float = 0.0
    p: float = 1.0
    when: str | None = None
    undecided: bool = False
    small: bool = False
    after: int | None = None
    ties: int = 0
    detectable_ns: float | None = None

    @property
    def others(self) -> int:
        """How many other ranks the group has."""
        return round(1 / self.chance) - 1

    @property
    def late(self) -> bool:
        return self.when is not None

    @property
    def probable(self) -> bool:
        """Whether it is not known to be late, but last in far more calls than by chance."""
        if self.steps < LEAST_BLOCKS:
            return self.undecided
        error = math.sqrt(self.chance * (1 - self.chance) / self.steps)
        share = self.last / (self.calls + self.ties)
        return self.undecided and share >= self.chance + _PROBABLE * error


_LATE = "look at what this rank does before its calls, and at its node with torchcoll doctor"


@dataclass
class Arrivals:
    """Who came last to the calls of a traffic.

    - calls: calls whose time splits into waiting and transfer; ties: those in which several ranks
      had the shortest time, so that none counts as last.
    - marked: whether the calls belong to steps; step_ns: the duration of one, None if unknown;
      waited_ns: rank -> the waiting of all other ranks for it in a step, by the same statistic.
    - unsplit: why others are not among them -> their number.
    - unrecorded: whether ranks of some group were not recorded.
    - ranks: the most waiting caused first.
    """

    calls: int
    ties: int
    wait_ns: int
    transfer_ns: int
    ranks: list[RankArrival]
    unsplit: dict[str, int] = field(default_factory=dict)
    unrecorded: bool = False
    marked: bool = False
    step_ns: float | None = None
    waited_ns: Mapping[int, float] = field(default_factory=dict)

    @property
    def late(self) -> list[RankArrival]:
        """The late ranks that do not merely follow another late rank."""
        return [rank for rank in self.ranks if rank.late and rank.after is None]

    @property
    def suspects(self) -> dict[int, str]:
        """The ranks that are late or probably late -> ``, late`` or ``, probably late``."""
        rows = [*self.late, *(row for row in self.ranks if row.late)]
        late = {row.rank: ", late" for row in rows}
        return late or {row.rank: ", probably late" for row in self.ranks if row.probable}

    @property
    def answer(self) -> Answer:
        """Who is late, and by how much."""
        if self.late:
            named: dict[int, RankArrival] = {}
            for rank in self.late:
                named.setdefault(rank.rank, rank)
            first, *more = [self._late_answer(rank) for rank in list(named.values())[:_MOST_NAMED]]
            details = (*first.details, *(each.headline for each in more))
            return replace(first, details=details, next_step=_LATE)
        if not self.calls:
            return Answer(
                "a rank",
                "doubt",
                verb="is late",
                scope="(the clocks of the ranks are not aligned)",
                certainty=CANNOT_TELL,
                next_step="record more steps",
            )
        if not self.ranks:
            at_once = "(the ranks came to each call at the same time, as far as recorded)"
            return Answer("no rank", verb="is late", scope=at_once, certainty=CERTAIN)
        caused = Counter[int]()
        for row in self.ranks:
            caused[row.rank] += row.caused_ns
        most = next(row for row in self.ranks if row.rank == caused.most_common(1)[0][0])
        steps = "steps" if self.marked else "calls"
        if max(rank.steps for rank in self.ranks) < LEAST_BLOCKS:
            answer = self._late_answer(most, PROBABLY if most.probable else CANNOT_TELL)
            return replace(answer, next_step=f"record about {_ENOUGH_STEPS} {steps}")
        if most.small:
            answer = self._late_answer(most)
            small = "less than 1 % of the time in collectives, which is nothing to act on"
            return replace(answer, level="good", details=(small,))
        if most.undecided:
            needed = 10 * math.ceil(most.steps * _INDEPENDENT / most.worth / 10)
            answer = self._late_answer(most, PROBABLY if most.probable else CANNOT_TELL)
            return replace(answer, next_step=f"record about {needed} {steps} to be certain")
        spent_ns = self.step_ns or (self.wait_ns + self.transfer_ns * self._ranks_of_calls) / (
            max(row.steps for row in self.ranks) * self._ranks_of_calls
        )
        rows = [row for row in self.ranks if row.detectable_ns is not None]
        largest_ns = max((row.detectable_ns or 0.0 for row in rows), default=None)
        waited = self._late_answer(most)
        return nothing_found(
            "rank",
            "is late",
            None if largest_ns is None else largest_ns / spent_ns,
            ACT_ON_STEP,
            f"record about {max(_ENOUGH_STEPS, 2 * most.steps)} {steps}",
            what="delay",
            of=" of a step" if self.step_ns else " of the time in collectives",
            scope=f"in {counted(most.steps, steps.removesuffix('s'))}",
            details=(f"most waiting: for {waited.subject} {waited.scope}",),
        )

    @property
    def _ranks_of_calls(self) -> float:
        """How many ranks a call has, on average over the groups."""
        return max(1.0, fmean(round(1 / row.chance) for row in self.ranks))

    def _late_answer(self, rank: RankArrival, certainty: str = CERTAIN) -> Answer:
        """The wait for it: the median over steps; the mean if it is late in some, or over calls."""
        rows = [row for row in self.ranks if row.rank == rank.rank]
        groups = {row.group for row in rows}
        others = len({row.rank for row in self.ranks if row.group in groups}) - 1
        span, waits = "a step", max(row.steps for row in rows) * max(others, 1)
        if not self.marked:
            span, waits = "a call", sum(row.steps * row.others for row in rows)
        if self.step_ns:
            span = f"in a step of {format_ns(self.step_ns, 3)}"
        who = "the other ranks wait" if others > 1 else "the other rank waits"
        caused = sum(row.caused_ns for row in rows)
        size, typical_ns = caused / waits, self.waited_ns.get(rank.rank)
        if typical_ns and not rank.when:
            size = typical_ns / max(others, 1)
        elif self.waited_ns:
            span = f"on average {span}"
        facts = [f"{100 * caused / self.wait_ns:.0f} % of all waiting"] if self.wait_ns else []
        single = " with a single last rank" if rank.ties else ""
        facts.append(
            f"last in {rank.last} of {counted(rank.calls, 'call')}{single}, "
            f"{100 * rank.chance:.0f} % by chance"
        )
        details = ["unless it waited for a rank that was not recorded"] * self.unrecorded
        when = f" in the {rank.when}" if rank.when else ""
        return Answer(
            _name(rank),
            "doubt",
            verb=f"is late{when}: {who} {{}} {span} for it",
            size=size,
            unit="ns",
            scope=f"({', '.join(facts)})",
            certainty=certainty,
            details=tuple(details),
        )


def _name(rank: RankArrival) -> str:
    return f"rank {rank.rank} ({rank.host})" if rank.host else f"rank {rank.rank}"


Split = Mapping[str, Sequence[JoinedCall]]  # group -> its calls, in their order


def find_arrivals(ledger: Ledger) -> Arrivals | None:
    """Who came last to the calls of the steady steps, or to all calls if no step is marked; None if
    no call can be split.

    If clocks that are not aligned are the reason, the result says so.
    """
    steps = ledger.steps
    unsplit: Counter[str] = Counter()
    split: dict[str, list[JoinedCall]] = defaultdict(list)
    for entry in ledger.every:
        # A call that no step could tell about anyway has that reason first.
        reason = entry.reason
        if reason in ("", NO_CLOCK) and steps.marked and entry.first.step not in steps.steady:
            reason = _OTHER_STEP
        if reason:
            unsplit[reason] += 1
        else:
            split[entry.group].append(entry)
    if not split and NO_CLOCK not in unsplit:
        return None
    for calls in split.values():
        calls.sort(key=lambda entry: (_step(entry), entry.first.sequence))
    hosts = ledger.traffic.environment.get("hosts")
    rows = _rank_rows(split, hosts if isinstance(hosts, dict) else {})
    _judge(rows, split)
    _set_causes(rows, split)
    labels = group_labels(ledger.traffic.groups, split)
    for row in rows:
        row.group = labels[row.group]
    entries = [entry for calls in split.values() for entry in calls]
    step_ns = steps.duration_ns if steps.marked else None
    waits_of: dict[int, Counter[int]] = defaultdict(Counter)  # the last rank -> step -> waiting
    for entry in entries:
        if step_ns and entry.last is not None:
            waits_of[entry.last][_step(entry)] += entry.caused_ns
    return Arrivals(
        len(entries),
        sum(entry.last is None for entry in entries),
        sum(entry.caused_ns for entry in entries),
        sum(entry.transfer_ns or 0 for entry in entries),
        sorted(rows, key=lambda row: (-row.caused_ns, row.rank)),
        dict(unsplit),
        any(len(entry.calls) < len(entry.members) for entry in ledger.every),
        any(_step(entry) >= 0 for entry in entries),
        step_ns,
        {rank: steps.reduce(waits.__getitem__) or 0.0 for rank, waits in waits_of.items()},
    )


def _step(entry: JoinedCall) -> int:
    """Returns its step; -1 for none."""
    return -1 if entry.first.step is None else entry.first.step


def _rank_rows(split: Split, hosts: Mapping[str, object]) -> list[RankArrival]:
    rows = []
    for group, calls in split.items():
        members, (_, steps) = calls[0].members, _step_numbers(calls)
        last: Counter[int] = Counter()
        caused: Counter[int] = Counter()
        for call in calls:
            if call.last is not None:
                last[call.last] += 1
                caused[call.last] += call.caused_ns
        decided, total = last.total(), caused.total()
        rows += [
            RankArrival(
                group,
                rank,
                str(hosts.get(str(rank), "")),
                decided,
                last[rank],
                1 / len(members),
                caused[rank],
                caused[rank] / total if total else 0.0,
                steps,
                ties=len(calls) - decided,
            )
            for rank in members
            if decided
        ]
    return rows


def _lateness(calls: Sequence[JoinedCall]) -> numpy.ndarray:
    """Returns, for each rank of the group, by how much (ns) it came later than the mean of the
    others: the mean over the steps of each block.

    The waits in the blocks with the longest ones are limited to the 90th percentile over the
    blocks, so that a single long wait does not hide a rank that is late in each step.
    """
    numbers, count = _step_numbers(calls)
    blocks, members = min(count, MOST_BLOCKS), calls[0].members
    waits = numpy.zeros((len(members), blocks))
    for number, call in zip(numbers, calls, strict=True):
        waits[:, number * blocks // count] += [call.wait_for_last_ns(rank) for rank in members]
    waits -= waits.min(axis=0)  # above 0 if the last rank changes within the block
    waits /= numpy.bincount(numpy.arange(count) * blocks // count)
    longest = numpy.sort(waits.max(axis=0))
    waits = numpy.minimum(waits, longest[math.ceil(_LIMITED * blocks) - 1])
    late: numpy.ndarray = (waits.sum(axis=0) - waits) / (len(members) - 1) - waits
    return late


def _step_numbers(calls: Sequence[JoinedCall]) -> tuple[list[int], int]:
    """Returns the step of each call, counted from 0, and how many there are. Without marked steps,
    each call is a step.
    """
    steps = list(map(_step, calls))
    if set(steps) == {-1}:
        return list(range(len(calls))), len(calls)
    numbers = {step: number for number, step in enumerate(dict.fromkeys(steps))}
    return [numbers[step] for step in steps], len(numbers)


def _judge(rows: Sequence[RankArrival], split: Split) -> None:
    """Sets what the tests say of each row: of the whole time first, then of each third."""
    tests: list[tuple[RankArrival, str, float, float]] = []  # time, p, p if independent
    series: dict[int, tuple[numpy.ndarray, float]] = {}  # by id of the row: values, correlation
    may_be_late: set[int] = set()
    for group, calls in split.items():
        of_group = [row for row in rows if row.group == group]
        blocks = min(_step_numbers(calls)[1], MOST_BLOCKS)
        if not of_group:
            continue
        lateness = _lateness(calls)
        if blocks < LEAST_BLOCKS:  # the latest in each step, beyond chance if they are independent
            for number, row in enumerate(of_group):
                always = (lateness.argmax(axis=0) == number).all()
                if always and len(rows) * row.chance**blocks <= SURE:
                    may_be_late.add(id(row))
            continue
        for names in (("",), _THIRDS) if blocks // 3 >= _LEAST_OF_THIRD else (("",),):
            ends = [n * blocks // len(names) for n in range(len(names) + 1)]
            parts = [lateness[:, a:b] for a, b in pairwise(ends)]
            for number, bound in enumerate(correlation_bounds(parts)):
                row = of_group[number]
                for name, part in zip(names, parts, strict=True):
                    values = part[number]
                    p, independent_p = (chance_of_mean(values, r) for r in (float(bound), 0.0))
                    tests.append((row, name, p, independent_p))
                if names == ("",):
                    series[id(row)] = lateness[number], float(bound)
                    row.worth = independent_values(blocks, float(bound)) / blocks * row.steps
    adjusted: dict[int, dict[str, float]] = defaultdict(dict)  # by id of the row and time
    corrected = holm([p for _, _, p, _ in tests]), holm([p for _, _, _, p in tests])
    for (row, name, _, _), p, independent_p in zip(tests, *corrected, strict=True):
        adjusted[id(row)][name] = p
        if independent_p <= SURE:
            may_be_late.add(id(row))
    spent: Counter[int] = Counter()  # rank -> how long it was in the calls of all groups
    for calls in split.values():
        for call in calls:
            for rank in call.members:
                spent[rank] += (call.transfer_ns or 0) + call.wait_for_last_ns(rank)
    for row in rows:
        by_time = adjusted[id(row)]
        sure = [name for name in ("", *_THIRDS) if by_time.get(name, 1.0) <= SURE]
        notable = row.caused_share >= row.chance + _NOTABLE
        in_collectives = fmean(spent[rank] for rank in split[row.group][0].members)
        small = row.caused_ns / max(1, row.others) < _SMALL * in_collectives
        row.p = min(by_time.values(), default=1.0)
        row.when = sure[0] if sure and notable and not small else None
        row.undecided = not sure and id(row) in may_be_late and notable and not small
        row.small = bool(sure and notable and small)
        if id(row) in series:
            row.detectable_ns = detectable_mean(*series[id(row)], SURE / len(tests))


def _set_causes(rows: Sequence[RankArrival], split: Split) -> None:
    """Sets ``after``: a rank may be late in one group only because it waited for a late rank in
    another. It is not late itself in the group that it shares with that rank, and its wait there
    explains most of its delay in the same steps. Two ranks do not explain each other.
    """
    late = {(row.group, row.rank): row for row in rows if row.late}
    causes: dict[tuple[str, int], tuple[str, int]] = {}
    for name, row in late.items():
        delays: Counter[int] = Counter()  # by step: how long another rank of the group waited
        for call in split[row.group]:
            if call.last == row.rank:
                delays[_step(call)] += max(map(call.wait_for_last_ns, call.members))
        explained: dict[tuple[str, int], int] = {}
        for group, cause in late:
            elsewhere = cause != row.rank and row.rank in split[group][0].members
            if elsewhere and (group, row.rank) not in late:
                waited: Counter[int] = Counter()
                for call in split[group]:
                    if call.last == cause:
                        waited[_step(call)] += call.wait_for_last_ns(row.rank)
                explained[group, cause] = (delays & waited).total()
        best = max(explained, key=lambda each: explained[each], default=None)
        if best is not None and explained[best] >= delays.total() / 2:
            causes[name] = best
    for name, row in late.items():
        seen: list[tuple[str, int]] = []
        at = causes.get(name)
        while at is not None and at not in seen:
            seen.append(at)
            at = causes.get(at)
        if seen and name not in seen:
            row.after = causes[name][1]


HIGHEST = 0.97
_MOST_SERIES = 2  # that count as independent
_Z = 2.58  # the 99.5 % quantile of the normal distribution
_POWER_Z = 1.2816  # its 90 % quantile
# Bounds are of hundredths, so that the functions below are called for few correlations.
_GRID = numpy.arange(round(100 * HIGHEST), 0, -1) / 100


def correlation_bounds(segments: Sequence[numpy.ndarray]) -> numpy.ndarray:
    """Returns an upper bound of the correlation of neighbouring values for each of two or more
    series, whose sum is 0 at any time.

    - segments: of all series, one after another in time: arrays of (series, four or more values),
      each of which is centred by itself.

    The 99.5 % bound is of the mean of independent series: the bias of an estimate from segments of
    so many values is -(1 + 3 r) / values (Kendall, Biometrika 41, 1954).
    """
    products, squares = numpy.zeros((2, len(segments[0])))
    for segment in segments:
        centred = _centred(segment)
        products += (centred[:, :-1] * centred[:, 1:]).sum(axis=1)
        squares += (centred**2).sum(axis=1)
    estimates = numpy.where(squares > 0, products / numpy.where(squares > 0, squares, 1.0), 0.0)
    count = sum(segment.shape[1] for segment in segments)
    means = _GRID - (1 + 3 * _GRID) * len(segments) / count
    independent = min(len(estimates) - 1, _MOST_SERIES)
    least = means - _Z * numpy.sqrt((1 - means**2) / (count * independent))
    possible = least[:, None] <= numpy.maximum(estimates, estimates.mean())
    return numpy.where(possible.any(axis=0), _GRID[possible.argmax(axis=0)], 0.0)


def _centred(values: numpy.ndarray) -> numpy.ndarray:
    """Returns the differences from the mean of each row, exactly 0 for constant values."""
    centred = values - values.mean(axis=-1, keepdims=True)
    rounding = 1e-12 * numpy.abs(values).max(axis=-1, keepdims=True)
    return numpy.where(numpy.abs(centred) > rounding, centred, 0.0)


def chance_of_mean(values: numpy.ndarray, correlation: float) -> float:
    """Returns the one-sided p of a mean of two or more values, if the true mean is 0."""
    error, degrees = _error_of_mean(values, correlation)
    mean = float(values.mean())
    if not error:
        return 0.0 if mean > 0 else 1.0
    two_sided = t_p_value(mean / error, degrees)
    return two_sided / 2 if mean > 0 else 1 - two_sided / 2


def detectable_mean(values: numpy.ndarray, correlation: float, level: float) -> float:
    """Returns the mean that ``chance_of_mean`` finds below the p ``level`` 9 times in 10."""
    error, degrees = _error_of_mean(values, correlation)
    return (t_quantile(1 - level, degrees) + _POWER_Z) * error


def _error_of_mean(values: numpy.ndarray, correlation: float) -> tuple[float, int]:
    """Returns the standard error of the mean and its degrees of freedom."""
    variance = float((_centred(values) ** 2).sum()) / (len(values) - 1)
    _, ratio, degrees = _autoregressive(len(values), correlation)
    return math.sqrt(variance * ratio), max(1, int(degrees))


def independent_values(count: int, correlation: float) -> float:
    """Returns how many independent values have a mean of the same variance."""
    return 1 / _autoregressive(count, correlation)[0]


@lru_cache(4096)
def _autoregressive(count: int, correlation: float) -> tuple[float, float, float]:
    """Returns, for ``count`` values of variance 1, the variance of their mean, its ratio to the
    expected sample variance, and the degrees of freedom of the sample variance (Satterthwaite).
    """
    index = numpy.arange(count)
    covariance = correlation ** numpy.abs(index[:, None] - index)
    of_mean = float(covariance.mean())
    centred = covariance - covariance.mean(axis=0) - covariance.mean(axis=1)[:, None] + of_mean
    trace = float(centred.trace())
    return of_mean, of_mean * (count - 1) / trace, trace**2 / float((centred**2).sum())
