"""Who came last to the collectives of a job, how much waiting that caused, and what is chance.

Waits and the last rank of a call are those of the ledger (training/ledger.py).

The test is about time, not calls: a rank is late if it arrives later than the mean of the others
beyond chance, at 5 % over all ranks and groups (Holm), in the whole time or in one third of it, and
causes clearly more of the waiting than its share. Steps that follow each other are not independent,
so the test assumes the highest correlation that the recording allows (training/correlated.py).
docs/method.md has the rules, and how often a rank is named if none is late, and if one is.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean

from torchcoll.core.answer import CANNOT_TELL, CERTAIN, PROBABLY, Answer, nothing_found
from torchcoll.core.traffic import Group
from torchcoll.core.units import counted, format_ns, format_ranges
from torchcoll.parts.training.correlated import (
    chance_of_mean,
    correlation_bounds,
    detectable_mean,
    independent_values,
)
from torchcoll.parts.training.ledger import NO_CLOCK, Ledger
from torchcoll.stats.drift import SURE
from torchcoll.stats.power import ACT_ON_STEP, holm

MOST_BLOCKS = 32
LEAST_BLOCKS = 6  # of fewer, no rank is named
_MOST_NAMED = 3  # late ranks in the answer
_ENOUGH_STEPS = 64  # with so many, a rank that is late in most steps is named
_INDEPENDENT = 9.0  # so many independent steps prove a delay that is in most of them
_LIMITED = 0.9  # quantile over the blocks to which longer waits are limited
_LEAST_OF_THIRD = 10  # blocks, to test the thirds of the time
_NOTABLE = 0.05  # of the waiting, above the share by chance: less is nothing to act on
_SMALL = 0.01  # of the time in collectives: a wait of less is nothing to act on
_THIRDS = ("first third", "second third", "last third")
_OTHER_STEP = "outside of the steps that send alike"


@dataclass(frozen=True)
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
    worth: float
    p: float
    when: str | None = None
    undecided: bool = False
    small: bool = False
    after: int | None = None
    ties: int = 0
    detectable_ns: float | None = None

    @property
    def share(self) -> float:
        return self.last / self.calls

    @property
    def others(self) -> int:
        """How many other ranks the group has."""
        return round(1 / self.chance) - 1

    @property
    def late(self) -> bool:
        return self.when is not None


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
    def answer(self) -> Answer:
        """Who is late, and by how much."""
        if self.late:
            named: dict[int, RankArrival] = {}
            for rank in self.late:
                named.setdefault(rank.rank, rank)
            first, *more = [self._late_answer(rank) for rank in list(named.values())[:_MOST_NAMED]]
            return replace(first, details=(*first.details, *(each.headline for each in more)))
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
            answer = self._late_answer(most, CANNOT_TELL)
            return replace(answer, next_step=f"record about {_ENOUGH_STEPS} {steps}")
        if most.small:
            answer = self._late_answer(most)
            small = "less than 1 % of the time in collectives, which is nothing to act on"
            return replace(answer, level="good", details=(small,))
        if most.undecided:
            needed = 10 * math.ceil(most.steps * _INDEPENDENT / most.worth / 10)
            answer = self._late_answer(most, PROBABLY)
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
        facts.append(
            f"last in {rank.last} of {counted(rank.calls + rank.ties, 'call')}, "
            f"{100 * rank.chance:.0f} % by chance"
        )
        details = []
        if rank.ties:
            details.append(f"no single rank was last in {rank.ties} of these calls")
        if self.unrecorded:
            details.append("unless it waited for a rank that was not recorded")
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


@dataclass(frozen=True, eq=False)
class SplitCall:
    """A call whose time splits into waiting and transfer.

    - members: all ranks of the group.
    - order: step (-1: none), number in the group.
    - last: None for a tie.
    - waits_ns: each other rank -> how long it waited; {} for a tie.
    - transfer_ns: the shortest time of its ranks.
    """

    group: str
    members: tuple[int, ...]
    order: tuple[int, int]
    last: int | None
    waits_ns: Mapping[int, int]
    transfer_ns: int

    @cached_property
    def wait_ns(self) -> int:
        return sum(self.waits_ns.values())


@dataclass(frozen=True)
class SplitTraffic:
    """The calls of a traffic that could be split, and why others could not.

    - calls: in the order of the lowest rank.
    - unsplit: reason -> number of calls.
    - unrecorded: whether ranks of some group were not recorded.
    - groups: by name, as the traffic has them.
    - step_ns: the duration of a step; None if unknown. waited_ns: as in Arrivals.
    """

    calls: list[SplitCall]
    unsplit: Counter[str]
    unrecorded: bool = False
    groups: Mapping[str, Group] = field(default_factory=dict)
    step_ns: float | None = None
    waited_ns: Mapping[int, float] = field(default_factory=dict)


def split_ledger(ledger: Ledger) -> SplitTraffic:
    """Returns the calls of the steady steps, or all calls if no step is marked."""
    steps = ledger.steps
    steady = set(steps.steady) if steps.marked else None
    unsplit: Counter[str] = Counter()
    unrecorded = False
    calls = []
    for entry in ledger.every:
        joined, first = entry.joined, entry.first
        unrecorded |= len(joined.calls) < len(joined.members)
        # A call that no step could tell about anyway has that reason first.
        reason = entry.reason
        if reason in ("", NO_CLOCK) and steady is not None and first.step not in steady:
            reason = _OTHER_STEP
        if reason:
            unsplit[reason] += 1
            continue
        last = entry.last
        waits = {} if last is None else {r: ns for r, ns in entry.waits_ns.items() if r != last}
        order = (-1 if first.step is None else first.step, first.sequence)
        transfer_ns = entry.transfer_ns or 0
        calls.append(SplitCall(entry.group, joined.members, order, last, waits, transfer_ns))
    step_ns = steps.duration_ns if steps.marked else None
    waits_of: dict[int, Counter[int]] = defaultdict(Counter)  # the last rank -> step -> waiting
    for call in calls:
        if step_ns and call.last is not None:
            waits_of[call.last][call.order[0]] += call.wait_ns
    waited_ns = {rank: steps.reduce(waits.__getitem__) or 0.0 for rank, waits in waits_of.items()}
    return SplitTraffic(calls, unsplit, unrecorded, ledger.traffic.groups, step_ns, waited_ns)


def find_arrivals(ledger: Ledger) -> Arrivals | None:
    """Who came last to the calls of all groups; None if no call can be split.

    If clocks that are not aligned are the reason, the result says so.
    """
    hosts = ledger.traffic.environment.get("hosts")
    return arrivals_of(
        split_ledger(ledger),
        {int(r): str(h) for r, h in hosts.items()} if isinstance(hosts, dict) else {},
    )


def arrivals_of(split_calls: SplitTraffic, host_of: Mapping[int, str]) -> Arrivals | None:
    """Who came last to these calls; None as in ``find_arrivals``.

    - host_of: rank -> host, where known.
    """
    every = split_calls.calls
    if not every and NO_CLOCK not in split_calls.unsplit:
        return None
    split: dict[str, list[SplitCall]] = defaultdict(list)
    for call in every:
        split[call.group].append(call)
    for group_calls in split.values():
        group_calls.sort(key=lambda call: call.order)
    ranks = [row for g, calls in split.items() for row in _rank_rows(g, calls, host_of)]
    ranks = _with_followers(_judged(ranks, split), split)
    labels = _labels(split_calls.groups, split)
    ranks = [replace(row, group=labels[row.group]) for row in ranks]
    ranks.sort(key=lambda row: (-row.caused_ns, row.rank))
    return Arrivals(
        len(every),
        sum(call.last is None for call in every),
        sum(call.wait_ns for call in every),
        sum(call.transfer_ns for call in every),
        ranks,
        dict(split_calls.unsplit),
        split_calls.unrecorded,
        any(call.order[0] >= 0 for call in every),
        split_calls.step_ns,
        split_calls.waited_ns,
    )


def _labels(groups: Mapping[str, Group], names: Iterable[str]) -> dict[str, str]:
    """The labels of groups by their names; with the ranks, if several would have the same."""
    chosen = {name: groups.get(name, Group(name)) for name in names}
    counts = Counter(group.label for group in chosen.values())
    return {
        name: group.label
        if counts[group.label] == 1
        else f"{group.label} {format_ranges(group.ranks)}"
        for name, group in chosen.items()
    }


def _rank_rows(
    group: str, calls: Sequence[SplitCall], hosts: Mapping[int, str]
) -> Iterable[RankArrival]:
    last: Counter[int] = Counter()
    caused: Counter[int] = Counter()
    for call in calls:
        if call.last is not None:
            last[call.last] += 1
            caused[call.last] += call.wait_ns
    decided, total = sum(last.values()), sum(caused.values())
    members, steps = calls[0].members, _step_numbers(calls)[1]
    for rank in members if decided else ():
        yield RankArrival(
            group,
            rank,
            hosts.get(rank, ""),
            decided,
            last[rank],
            1 / len(members),
            caused[rank],
            caused[rank] / total if total else 0.0,
            steps,
            0.0,
            1.0,
            ties=len(calls) - decided,
        )


def _lateness(calls: Sequence[SplitCall]) -> dict[int, list[float]]:
    """Returns, for each rank, by how much (ns) it came later than the mean of the others: the mean
    over the steps of each block.

    The waits in the blocks with the longest ones are limited to the 90th percentile over the
    blocks, so that a single long wait does not hide a rank that is late in each step.
    """
    numbers, count = _step_numbers(calls)
    blocks = min(count, MOST_BLOCKS)
    members = calls[0].members
    waits = [dict.fromkeys(members, 0.0) for _ in range(blocks)]
    for number, call in zip(numbers, calls, strict=True):
        for rank, ns in call.waits_ns.items():
            waits[number * blocks // count][rank] += ns
    sizes = Counter(number * blocks // count for number in range(count))
    for index, block in enumerate(waits):
        least = min(block.values())  # above 0 if the last rank changes within the block
        for rank in members:
            block[rank] = (block[rank] - least) / sizes[index]
    longest = sorted(max(block.values()) for block in waits)
    limit = longest[math.ceil(_LIMITED * blocks) - 1]
    late: dict[int, list[float]] = {rank: [] for rank in members}
    for block in waits:
        limited = {rank: min(wait, limit) for rank, wait in block.items()}
        total = sum(limited.values())
        for rank, wait in limited.items():
            late[rank].append((total - wait) / (len(members) - 1) - wait)
    return late


def _step_numbers(calls: Sequence[SplitCall]) -> tuple[list[int], int]:
    """Returns the step of each call, counted from 0, and how many there are. Without marked steps,
    each call is a step.
    """
    steps = list(dict.fromkeys(call.order[0] for call in calls))
    if steps == [-1]:
        return list(range(len(calls))), len(calls)
    numbers = {step: number for number, step in enumerate(steps)}
    return [numbers[call.order[0]] for call in calls], len(steps)


def _judged(
    rows: Sequence[RankArrival], split: Mapping[str, Sequence[SplitCall]]
) -> list[RankArrival]:
    """Returns the rows with p and ``when``: the whole time first, then each third."""
    tests: list[tuple[float, float, int, str]] = []  # p, p if independent, row, time
    worth: dict[int, float] = {}
    of_series: dict[int, tuple[Sequence[float], float]] = {}  # its values, their correlation
    by_group: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_group[row.group].append(index)
    for group, of_group in by_group.items():
        calls = split[group]
        blocks = min(_step_numbers(calls)[1], MOST_BLOCKS)
        if blocks < LEAST_BLOCKS:
            continue
        lateness = _lateness(calls)
        thirds = [slice(n * blocks // 3, (n + 1) * blocks // 3) for n in range(3)]
        times = [([slice(0, blocks)], [""])]
        times += [(thirds, list(_THIRDS))] * (blocks // 3 >= _LEAST_OF_THIRD)
        for parts, names in times:
            series = [[values[part] for part in parts] for values in lateness.values()]
            bounds = dict(zip(lateness, correlation_bounds(series), strict=True))
            for index, (part, name) in itertools.product(of_group, zip(parts, names, strict=True)):
                values, bound = lateness[rows[index].rank][part], bounds[rows[index].rank]
                p, independent_p = (chance_of_mean(values, r) for r in (bound, 0.0))
                tests.append((p, independent_p, index, name))
                if not name:
                    of_series[index] = values, bound
                    share = independent_values(blocks, bound) / blocks
                    worth[index] = share * rows[index].steps
    adjusted: dict[int, dict[str, float]] = defaultdict(dict)  # by row and time
    may_be_late: set[int] = set()  # rows
    of_tests = holm([p for p, _, _, _ in tests])
    if_independent = holm([p for _, p, _, _ in tests])
    for (_, _, index, name), p, independent_p in zip(tests, of_tests, if_independent, strict=True):
        adjusted[index][name] = p
        if independent_p <= SURE:
            may_be_late.add(index)
    error = SURE / max(1, len(tests))
    detectable_ns = {i: detectable_mean(*series, error) for i, series in of_series.items()}
    in_collectives = _time_in_collectives(split)
    mean_ns = {
        group: fmean(in_collectives[rank] for rank in calls[0].members)
        for group, calls in split.items()
    }
    judged = []
    for index, row in enumerate(rows):
        by_time = adjusted[index]
        sure = [name for name in ("", *_THIRDS) if by_time.get(name, 1.0) <= SURE]
        notable = row.caused_share >= row.chance + _NOTABLE
        small = row.caused_ns / max(1, row.others) < _SMALL * mean_ns[row.group]
        late = sure and notable and not small
        judged.append(
            replace(
                row,
                worth=worth.get(index, 0.0),
                detectable_ns=detectable_ns.get(index),
                p=min(by_time.values(), default=1.0),
                when=sure[0] if late else None,
                undecided=not sure and index in may_be_late and notable and not small,
                small=bool(sure and notable and small),
            )
        )
    return judged


def _time_in_collectives(split: Mapping[str, Sequence[SplitCall]]) -> Counter[int]:
    """Returns how long (ns) each rank was in the calls of all groups: waiting and transfer."""
    spent: Counter[int] = Counter()
    for call in itertools.chain.from_iterable(split.values()):
        for rank in call.members:
            spent[rank] += call.transfer_ns + call.waits_ns.get(rank, 0)
    return spent


def _with_followers(
    rows: Sequence[RankArrival], split: Mapping[str, Sequence[SplitCall]]
) -> list[RankArrival]:
    """The rows with ``after``: a rank that is late in one group only because it waited for a late
    rank in another. It is not late itself in the group that it shares with that rank, and its wait
    there explains most of its delay in the same steps. Two ranks do not explain each other.
    """
    late = {(row.group, row.rank): row for row in rows if row.late}
    members = {group: set(calls[0].members) for group, calls in split.items()}
    causes: dict[tuple[str, int], tuple[str, int]] = {}
    for place, row in late.items():
        delays: Counter[int] = Counter()  # by step: how long another rank of the group waited
        for call in split[row.group]:
            if call.last == row.rank:
                delays[call.order[0]] += max(call.waits_ns.values())
        explained: dict[tuple[str, int], int] = {}
        for group, cause in late:
            elsewhere = cause != row.rank and group != row.group and row.rank in members[group]
            if elsewhere and (group, row.rank) not in late:
                waited: Counter[int] = Counter()
                for call in split[group]:
                    if call.last == cause:
                        waited[call.order[0]] += call.waits_ns.get(row.rank, 0)
                explained[group, cause] = (delays & waited).total()
        best = max(explained, key=lambda each: explained[each], default=None)
        if best is not None and explained[best] >= delays.total() / 2:
            causes[place] = best
    marked = []
    for row in rows:
        start = (row.group, row.rank)
        seen: list[tuple[str, int]] = []
        at = causes.get(start)
        while at is not None and at not in seen:
            seen.append(at)
            at = causes.get(at)
        ends_elsewhere = seen and start not in seen
        marked.append(replace(row, after=causes[start][1]) if ends_elsewhere else row)
    return marked
