"""The ranks of each case (``--view ranks``): which rank is slow, and the cases that show it best.

A duration says nothing of when a rank arrived: only that the last one to arrive waits least.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.answer import CANNOT_TELL, CERTAIN, Answer, format_quantity, nothing_found
from torchcoll.core.errors import one_line
from torchcoll.core.result import Run
from torchcoll.core.summary import PERIOD, calls_of, has_period, median
from torchcoll.core.units import counted, format_ns, format_time, plural
from torchcoll.report.columns import Entry
from torchcoll.report.formats import Records, View
from torchcoll.report.grid import Grid, Head
from torchcoll.report.sample_views import (
    CASE_FIELDS,
    case_fields,
    case_line,
    rank_of,
    status_lines,
    with_run_lines,
)

WAITING = (
    "each rank's own time includes waiting for the others, so the rank that arrives last has the "
    "shortest time"
)
RANK_FIELDS = (
    *(*CASE_FIELDS, "status", "rank", "host", "rank_device", "clock", "calls", "median_ns"),
    "longer_than_fastest_ns",
    "longest_share",
    "shortest_share",
)
_MOST_CASES = 3  # are shown: those whose ranks differ most
_MOST_RANKS = 64  # of a table; of more the extremes are shown
_EXTREMES = 8
SLOW_EXCESS = 0.1  # of the other ranks' time: below, no rank is called slow
_OFTEN = 0.75  # of calls, and of cases, in which the slow rank is the one


@dataclass(frozen=True)
class ConsistentRank:
    """A rank that is slower, or later, than its peers in most calls of most cases.

    late: its times are the shortest, as of a rank that arrives last. calls: the share of calls.
    excess: of the longer time, its own or the median of the other ranks, over the shorter, for each
    case; beyond_ns: by how much. The share of calls is the median over cases.
    """

    rank: int
    late: bool
    calls: float
    excesses: Sequence[float]
    beyond_ns: Sequence[float]

    @property
    def excess(self) -> float:
        return median(self.excesses)


def ranks_grids(run: Run, view: View, every: bool = False) -> list[Grid]:
    """Which rank is slow, and the ranks of the cases that show it best; every: of all cases."""
    entries = view.entries(run)
    values = [list(rank_values(run, entry)) for entry in entries]
    # With a root the work of the ranks differs, and says nothing of a slow rank.
    order = sorted(
        range(len(entries)),
        key=lambda n: (entries[n].result.case.root is not None, -_spread(values[n])),
    )
    failed = {n for n, entry in enumerate(entries) if not entry.result.is_right}
    shown = sorted({*order[:_MOST_CASES], *failed}) if not every else range(len(entries))
    shown = [n for n in shown if values[n] or entries[n].result.status != "ok"]
    grids = [_ranks_grid(entries[n], values[n], every) for n in shown]
    notes = [WAITING] if shown else []
    if run.ranks > _MOST_RANKS and not every:
        notes.append(f"the {_EXTREMES} ranks at each end, of {run.ranks} (--all shows every rank)")
    if 0 < len(shown) < len(entries):
        notes.append(
            f"the {len(shown)} cases whose ranks differ most, of {len(entries)} (--all shows every "
            "case)"
        )
    rows = [entry.row for entry in entries]
    framed_grids = with_run_lines(run, rows, grids, None, view.verbose, notes)
    framed_grids[-1].answer = ranks_answer(run, entries, values)
    return framed_grids


def _spread(ranks: Sequence[dict[str, Any]]) -> float:
    """The longest median over the shortest."""
    medians = [rank["median_ns"] for rank in ranks]
    return max(medians) / min(medians) if medians and min(medians) > 0 else 0.0


def ranks_answer(
    run: Run,
    entries: Sequence[Entry],
    values: Sequence[Sequence[dict[str, Any]]],
    late: bool = True,
) -> Answer:
    """The rank that is the slowest, or if ``late`` the last to come, in most cases; or that there
    is none.
    """
    # With a root the ranks have different work.
    cases = [
        ranks
        for entry, ranks in zip(entries, values, strict=True)
        if entry.result.case.root is None and len(ranks) > 1
    ]
    if not cases:
        return Answer(
            "a rank",
            "doubt",
            verb="is slow",
            scope=": no case has times of several ranks with equal work",
            certainty=CANNOT_TELL,
            next_step="torchrun ... -m torchcoll.allreduce -o RUN records the time of each rank",
        )
    hosts = {n: one_line(member.get("host") or "") for n, member in enumerate(run.members)}

    def named(rank: int) -> str:
        return f"rank {rank} ({hosts[rank]})" if hosts.get(rank) else f"rank {rank}"

    candidates = (_find_consistent_rank(cases, of_late) for of_late in (False, True)[: 1 + late])
    consistent = [rank for rank in candidates if rank]
    if consistent:
        suspect = max(consistent, key=lambda each: each.excess)
        return _answer_of(suspect, named(suspect.rank), len(cases))
    details: tuple[str, ...] = ()
    most = max(map(_spread, cases)) - 1
    if most >= SLOW_EXCESS / 2:  # as the tables show
        differ = f"the ranks differ by up to {format_quantity(most, '%')}"
        details = (f"in single cases {differ}, without a pattern" if len(cases) > 1 else differ,)
    scope = f"over all {len(cases)} cases" if len(cases) > 1 else "in 1 case"
    rooted = [e.result.case.collective for e in entries if e.result.case.root is not None]
    if rooted:
        names = " and ".join(dict.fromkeys(rooted))
        scope += f" without a root; {len(rooted)} of {names} {plural(len(rooted), 'is', 'are')} "
        scope += "not judged"
    return nothing_found(
        "rank",
        "is slow",
        median([rank["hidden_excess"] for ranks in cases for rank in ranks]),
        SLOW_EXCESS,
        "measure longer (--max-time), or on a quieter machine",
        scope=scope,
        details=details,
    )


_SAMPLES = 2_000_000  # of a run, in which a slow rank is looked for: about 2 s


def slow_rank(run: Run, late: bool = True) -> Answer | None:
    """The answer of ``show --view ranks`` if it names a rank that is slow, or if ``late`` comes
    last. Of two ranks one always is the slower one.
    """
    entries = View().entries(run)
    calls = sum(len(of) for e in entries for times in e.result.time_ns.values() for of in times)
    if run.ranks < 3 or calls > _SAMPLES:
        return None
    values = [list(rank_values(run, entry)) for entry in entries]
    answer = ranks_answer(run, entries, values, late)
    return answer if answer.worst else None


def _answer_of(rank: ConsistentRank, name: str, cases: int) -> Answer:
    """That a rank is always the slowest is one statement, and that it matters is another."""
    slow = rank.excess >= SLOW_EXCESS
    judged = len(rank.excesses)
    over = f"in {100 * rank.calls:.0f} % of the calls of {judged} of {counted(cases, 'case')}"
    if not slow:
        over += f" (named as slow from {100 * SLOW_EXCESS:.0f} % on)"
    twice = rank.excess >= 1
    ends = [format_quantity(each, "%") for each in (min(rank.excesses), max(rank.excesses))]
    span = "" if ends[0] == ends[1] else f"{ends[0].removesuffix(' %')} to {ends[1]} by case, "
    beyond = dict.fromkeys(format_ns(end(rank.beyond_ns), 3) for end in (min, max))
    span += f"{' to '.join(beyond)} a call"
    verb = f"is the slowest, {{}} {'as long as' if twice else 'above'} the median of the others"
    if rank.late:
        verb = f"comes last: the others wait, and take {{}} {'as long' if twice else 'longer'}"
    return Answer(
        name,
        "doubt" if slow else "good",
        worst=(name,) if slow else (),
        verb=f"{verb} ({span}),",
        size=1 + rank.excess if twice else rank.excess,
        unit="x" if twice else "%",
        scope=over,
        certainty=CERTAIN,
        detectable=rank.excess,
    )


def _find_consistent_rank(
    cases: Sequence[Sequence[dict[str, Any]]], late: bool
) -> ConsistentRank | None:
    """The rank that has the longest (late: the shortest) time in most calls of most cases."""
    share = "shortest_share" if late else "longest_share"
    leads: dict[int, list[tuple[float, float, float]]] = {}
    for ranks in cases:
        lead = max(ranks, key=lambda rank: rank[share])
        peer_ns = median([rank["median_ns"] for rank in ranks if rank is not lead])
        slow, fast = (peer_ns, lead["median_ns"]) if late else (lead["median_ns"], peer_ns)
        if fast > 0 and lead[share] >= _OFTEN:
            figures = lead[share], slow / fast - 1, slow - fast
            leads.setdefault(lead["rank"], []).append(figures)
    if not leads:
        return None
    rank = max(leads, key=lambda rank_number: len(leads[rank_number]))
    if len(leads[rank]) < _OFTEN * len(cases):
        return None
    calls, excesses, beyond_ns = zip(*leads[rank], strict=True)
    return ConsistentRank(rank, late, median(calls), excesses, beyond_ns)


def rank_values(run: Run, entry: Entry) -> Iterator[dict[str, Any]]:
    """The median of each rank, and how its times lie among those of its peers in the same calls."""
    result, clock = entry.result, entry.row.clock
    # strict=False: a rank that was lost in mid-batch has fewer calls.
    calls = list(zip(*result.time_ns.get(clock or "", []), strict=False))
    weights = calls_of(result, len(calls))  # samples may be means of several calls
    number, period = sum(weights), has_period(result, clock)
    fastest, slowest = [min(call) for call in calls], [max(call) for call in calls]
    two_slowest = [heapq.nlargest(2, call) for call in calls]

    def share(times: Sequence[int], ends: Sequence[int]) -> float:  # ranks that tie share a call
        shares = (
            weight / call.count(end) if ns == end else 0.0
            for ns, end, call, weight in zip(times, ends, calls, weights, strict=True)
        )
        return sum(shares) / number

    for index, times_of_index in enumerate(zip(*calls, strict=True)):
        rank = rank_of(result, index)
        member = run.members[rank] if rank < len(run.members) else {}
        yield {
            "rank": rank,
            "host": member.get("host"),
            "rank_device": member.get("device"),
            "clock": clock,
            "calls": number,
            "median_ns": sum(map(operator.mul, times_of_index, weights)) / number
            if period
            else median(times_of_index),
            "longer_than_fastest_ns": median(
                [a - b for a, b in zip(times_of_index, fastest, strict=True)]
            ),
            "longest_share": share(times_of_index, slowest),
            "shortest_share": share(times_of_index, fastest),
            "hidden_excess": _hidden_excess(times_of_index, two_slowest),
        }


def _hidden_excess(times: Sequence[int], two_slowest: Sequence[Sequence[int]]) -> float:
    """How much slower, as a share, this rank could be without being the slowest in most calls."""
    needed = sorted(
        (slowest[-1] if time_ns == slowest[0] else slowest[0]) / max(time_ns, 1) - 1
        for time_ns, slowest in zip(times, two_slowest, strict=True)
    )
    return max(0.0, needed[math.ceil(_OFTEN * len(needed)) - 1])


def _ranks_grid(entry: Entry, ranks: Sequence[dict[str, Any]], every: bool) -> Grid:
    result, row = entry.result, entry.row
    least = min((rank["median_ns"] for rank in ranks), default=0)
    if len(ranks) > _MOST_RANKS and not every:
        ordered = sorted(ranks, key=lambda rank: rank["median_ns"])
        ranks = [*ordered[:_EXTREMES], *ordered[-_EXTREMES:]]
    heads = [
        Head("rank", repeat=True),
        Head("host", left=True),
        Head("device", left=True),
        Head(PERIOD if row.statistic == PERIOD else "median"),
        Head("above the", "fastest rank"),
        Head("slowest in", "% of calls"),
    ]
    rows = [
        [
            str(rank["rank"]),
            one_line(rank["host"] or "-"),
            one_line(rank["rank_device"] or "-"),
            format_time(rank["median_ns"]),
            format_time(rank["median_ns"] - least),
            f"{100 * rank['longest_share']:.0f}",
        ]
        for rank in ranks
    ]
    return Grid(heads, rows, above=[case_line(result, row)], below=status_lines(result))


def _rank_records(run: Run, view: View) -> Iterator[dict[str, Any]]:
    for entry in view.entries(run):
        yield from (case_fields(entry) | values for values in rank_values(run, entry))


# For csv and json: a row for each case and rank.
RANKS = Records(lambda view: RANK_FIELDS, _rank_records)
