"""Read the pairs of a run that torchcoll.pairs measured: which pairs there are, and their times.

Pure and without numpy, because rank 0 uses it during the run to choose the pairs to repeat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from torchcoll.core.case import Case
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.shared_cores import oversubscribed_hosts
from torchcoll.core.summary import default_clock, over_ranks, quantile
from torchcoll.questions.pairs.schedule import LATENCY_BYTES, THRESHOLD, Pair, Units, group_ranks

_NO_TIME = "no time above 0"

LATENCY, EXCHANGE, SEND, RECEIVE = "latency", "both ways", "sending", "receiving"
PRINTED = "as printed"  # by another tool
NO_SIZE = 1  # size of a figure that is printed without one
ALONE = " alone"


class Timing(NamedTuple):
    """The times of the calls of a pair, each until the later of the two ranks is done.

    good_ns: the lower quartile; for latencies the minimum.
    spread: scale of the logarithms, from the faster half of the calls.
    """

    median_ns: float
    good_ns: float
    spread: float
    calls: int = 1


Times = dict[Pair, Timing]  # for one-way calls the pair is (sender, receiver)


@dataclass
class Pairs:
    """The pairs of a run.

    by: ``rank`` or ``node``.
    units: the ranks of each unit; hosts: the host of each unit.
    times: (kind, size_bytes) -> pair -> Timing. The kind is LATENCY, EXCHANGE or SEND (one way;
        for the receiving unit it is called RECEIVE).
    alone: the same for each pass in which suspect pairs were repeated alone.
    failed: a sentence for each pair without a time.
    rehearsal: whether several ranks shared one GPU.
    threshold: the threshold of the run.
    crowded: hosts with more ranks than cores; their pairs are not judged.
    """

    by: str
    units: Units
    hosts: tuple[str, ...]
    times: dict[tuple[str, int], Times] = field(default_factory=dict)
    alone: list[dict[tuple[str, int], Times]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    rehearsal: bool = False
    threshold: float = THRESHOLD
    crowded: frozenset[str] = frozenset()

    def judged(self, pair: Pair) -> bool:
        """Whether a pair can accuse anyone: not if ranks wait for a core on one of its hosts."""
        return not {self.hosts[pair[0]], self.hosts[pair[1]]} & self.crowded

    def ranks(self, unit: int) -> str:
        """The name of a unit: ``rank 3 (host-b)`` or ``node host-b (ranks 8-15)``."""
        from torchcoll.core.units import format_ranges

        if self.by == "rank":
            host = self.hosts[unit]
            return f"rank {unit}" if host == "?" else f"rank {unit} ({host})"
        ranks = self.units[unit]
        if any(key[0] == PRINTED for key in self.times):  # hosts, and no ranks
            return f"node {self.hosts[unit]}"
        noun = "ranks" if len(ranks) > 1 else "rank"
        return f"node {self.hosts[unit]} ({noun} {format_ranges(ranks)})"

    def gbps(self, key: tuple[str, int], pair: Pair, ns: float) -> float:
        """GB/s of a pair in one direction; of nodes, all their ranks together."""
        at_once = min(len(self.units[pair[0]]), len(self.units[pair[1]]))
        return at_once * key[1] / ns

    @cached_property
    def unit(self) -> str:
        """GB/s, or MB/s if most pairs are slower than 1 GB/s."""
        large = [key for key in self.times if key[0] != LATENCY]
        speeds = sorted(
            self.gbps(key, pair, timing.median_ns)
            for key in large
            for pair, timing in self.times[key].items()
        )
        return "MB/s" if speeds and speeds[len(speeds) // 2] < 1 else "GB/s"

    @property
    def pairs(self) -> list[Pair]:
        """The complete pairs: every kind of call of the run was measured, in both directions."""
        measured = [{undirected(p) for p in times} for times in self.times.values()]
        for (kind, _), times in self.times.items():
            if kind == SEND:
                measured.append({undirected(p) for p in times if p[::-1] in times})
        return sorted(set.intersection(*measured)) if measured else []

    @property
    def pair_count(self) -> int:
        """How many pairs the units of the run have."""
        return len(self.units) * (len(self.units) - 1) // 2


def is_pair(result: CaseResult) -> bool:
    return (result.case.group or "").split("/")[0] in GROUPS


GROUPS = ("pair", "node", "pair" + ALONE, "node" + ALONE)


def case_key(case: Case) -> tuple[str, int]:
    """(kind, size_bytes) of a case of a pair."""
    if case.root is not None:
        return SEND, case.size_bytes
    if case.mode == "unknown" and case.size_bytes != LATENCY_BYTES:
        return PRINTED, case.size_bytes
    return (LATENCY if case.size_bytes == LATENCY_BYTES else EXCHANGE), case.size_bytes


def read_pairs(run: Run) -> Pairs | None:
    """The pairs of a run; None if it measured no pairs."""
    results = [result for result in run.results if is_pair(result)]
    if not results:
        return None
    by = "node" if (results[0].case.group or "").startswith("node") else "rank"
    host_by_rank = {str(m.get("rank")): str(m.get("host") or "?") for m in run.members}
    hosts = [host_by_rank.get(str(rank), "?") for rank in range(max(run.ranks, len(run.members)))]
    units = group_ranks(by, hosts)
    pairs = Pairs(by, units, tuple(hosts[ranks[0]] for ranks in units))
    threshold = run.header.get("threshold")
    if isinstance(threshold, float) and 0 < threshold < 1:
        pairs.threshold = threshold
    if results[0].case.device == "cpu":
        pairs.crowded = frozenset(host for host, _ in oversubscribed_hosts(run.members))
    for result in results:
        rule, _, name = (result.case.group or "").partition("/")
        low, _, high = name.partition("-")
        if not (low.isdecimal() and high.isdecimal() and int(low) < int(high) < len(units)):
            pairs.failed.append(f"{result.case.describe()}: {rule}/{name} is no pair of this run")
            continue
        samples = result.time_ns.get(default_clock(result) or "", [])
        calls = sorted(over_ranks(samples)) if samples else []
        if result.reported and result.reported.time_ns:
            calls = [result.reported.time_ns]
        if not result.is_right or not calls or calls[0] <= 0:
            why = result.reason or _NO_TIME
            pairs.failed.append(f"pair {name}: {result.case.describe()}: {why}")
            continue
        pair = (int(low), int(high))
        if result.case.root == 1:
            pair = pair[::-1]
        pairs.rehearsal |= result.case.rehearsal
        middle = quantile(calls, 0.5)
        # The distance from the median to the lower quartile, as the faster half is what is judged.
        # For a symmetric distribution it is half of the interquartile range.
        spread = math.log(middle / quantile(calls, 0.25)) / 0.6745
        good = 0.0 if result.case.size_bytes == LATENCY_BYTES else 0.25
        timing = Timing(middle, quantile(calls, good), spread, len(calls))
        key, tables = case_key(result.case), pairs.times
        if rule.endswith(ALONE):  # the first pass that does not have this pair yet
            number = sum(pair in tables_of_pass.get(key, {}) for tables_of_pass in pairs.alone)
            if number == len(pairs.alone):
                pairs.alone.append({})
            tables = pairs.alone[number]
        tables.setdefault(key, {})[pair] = timing
    return pairs


def undirected(pair: Pair) -> Pair:
    return (min(pair), max(pair))
