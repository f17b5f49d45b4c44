"""The pairs that torchcoll.pairs measured, as they stand in a run: which met, and how fast.

Pure and without numpy: rank 0 reads its own run with it, and chooses what is measured again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from torchcoll.core.case import Case
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.shared_cores import oversubscribed_hosts
from torchcoll.core.summary import default_clock, over_ranks, quantile
from torchcoll.pairs.schedule import LATENCY_BYTES, THRESHOLD, Pair, Units, units_of

_NO_TIME = "no time above 0"

LATENCY, EXCHANGE, SEND, RECEIVE = "latency", "both ways", "sending", "receiving"
ALONE = " alone"


class Timing(NamedTuple):
    """Completions of the calls of a pair. spread: the scale of the logarithms of the fast half."""

    median_ns: float
    good_ns: float  # the lower quartile; of latencies the least
    spread: float
    calls: int = 1


Times = dict[Pair, Timing]  # one way: (from, to)


@dataclass
class Pairs:
    """The pairs of a run. ``times``: (kind, size_bytes) -> pair -> Timing; ``alone``: the same of
    each pass of the pairs that ran again.

    ``kind`` is LATENCY, EXCHANGE or SEND (one way; read from the other end it is RECEIVE).
    """

    by: str
    units: Units
    hosts: tuple[str, ...]  # of each unit
    times: dict[tuple[str, int], Times] = field(default_factory=dict)
    alone: list[dict[tuple[str, int], Times]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    rehearsal: bool = False
    threshold: float = THRESHOLD  # of the run
    crowded: frozenset[str] = frozenset()  # hosts whose ranks wait for a core: not judged

    def judged(self, pair: Pair) -> bool:
        return not {self.hosts[pair[0]], self.hosts[pair[1]]} & self.crowded

    def ranks(self, unit: int) -> str:
        """``rank 3 (host-b)``, ``node host-b (ranks 8-15)``."""
        from torchcoll.core.units import format_ranges

        if self.by == "rank":
            return f"rank {unit} ({self.hosts[unit]})"
        ranks = self.units[unit]
        word = "ranks" if len(ranks) > 1 else "rank"
        return f"node {self.hosts[unit]} ({word} {format_ranges(ranks)})"

    def gbps(self, key: tuple[str, int], pair: Pair, ns: float) -> float:
        """GB/s of a pair in one direction: of all ranks of both nodes together, by node."""
        at_once = min(len(self.units[pair[0]]), len(self.units[pair[1]]))
        return at_once * key[1] / ns

    @property
    def pairs(self) -> list[Pair]:
        """Those of which every kind of call that the run has was measured, both ways."""
        had = [{link_of(p) for p in times} for times in self.times.values()]
        for (kind, _), times in self.times.items():
            if kind == SEND:
                had.append({link_of(p) for p in times if p[::-1] in times})
        return sorted(set.intersection(*had)) if had else []

    @property
    def asked(self) -> int:
        return len(self.units) * (len(self.units) - 1) // 2


def is_pair(result: CaseResult) -> bool:
    return (result.case.group or "").split("/")[0] in GROUPS


GROUPS = ("pair", "node", "pair" + ALONE, "node" + ALONE)


def key_of(case: Case) -> tuple[str, int]:
    """(kind, size_bytes) of a case of a pair."""
    if case.root is not None:
        return SEND, case.size_bytes
    return (LATENCY if case.size_bytes == LATENCY_BYTES else EXCHANGE), case.size_bytes


def read_pairs(run: Run) -> Pairs | None:
    """The pairs of a run; None where it has none."""
    own = [result for result in run.results if is_pair(result)]
    if not own:
        return None
    by = "node" if (own[0].case.group or "").startswith("node") else "rank"
    known = {str(m.get("rank")): str(m.get("host") or "?") for m in run.members}
    hosts = [known.get(str(rank), "?") for rank in range(max(run.ranks, len(run.members)))]
    units = units_of(by, hosts)
    found = Pairs(by, units, tuple(hosts[ranks[0]] for ranks in units))
    stated = run.header.get("threshold")
    if isinstance(stated, float) and 0 < stated < 1:
        found.threshold = stated
    if own[0].case.device == "cpu":
        found.crowded = frozenset(host for host, _ in oversubscribed_hosts(run.members))
    for result in own:
        rule, _, name = (result.case.group or "").partition("/")
        low, _, high = name.partition("-")
        if not (low.isdecimal() and high.isdecimal() and int(low) < int(high) < len(units)):
            found.failed.append(f"{result.case.describe()}: {rule}/{name} is no pair of this run")
            continue
        samples = result.time_ns.get(default_clock(result) or "", [])
        calls = sorted(over_ranks(samples)) if samples else []
        if result.status != "ok" or not calls or calls[0] <= 0:
            found.failed.append(
                f"pair {name}: {result.case.describe()}: {result.reason or _NO_TIME}"
            )
            continue
        pair = (int(low), int(high))
        if result.case.root == 1:
            pair = pair[::-1]
        found.rehearsal |= result.case.rehearsal
        middle = quantile(calls, 0.5)
        # From the fast side, which is what is judged: half the interquartile range of a symmetric
        # one.
        spread = math.log(middle / quantile(calls, 0.25)) / 0.6745
        good = 0.0 if result.case.size_bytes == LATENCY_BYTES else 0.25
        timing = Timing(middle, quantile(calls, good), spread, len(calls))
        key, tables = key_of(result.case), found.times
        if rule.endswith(ALONE):  # of the passes alone the first that has not met the pair
            number = sum(pair in tables_of_pass.get(key, {}) for tables_of_pass in found.alone)
            if number == len(found.alone):
                found.alone.append({})
            tables = found.alone[number]
        tables.setdefault(key, {})[pair] = timing
    return found


def link_of(pair: Pair) -> Pair:
    return (min(pair), max(pair))
