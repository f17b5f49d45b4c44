"""Which nodes to take out of service: those that were slow again and again, and never many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from torchcoll.core.units import counted
from torchcoll.parts.fleet.nights import NO_NIGHT, nights_of
from torchcoll.parts.fleet.node_report import fleet_finding
from torchcoll.parts.fleet.series import Summaries

NIGHTS, SLOW_NIGHTS = 5, 3  # a node is drained after 3 slow nights of the last 5
MOST_SHARE = 0.02  # of the fleet: if more are slow, the cause is not a node


@dataclass(frozen=True)
class DrainList:
    """headline: one sentence. nodes: (node, reason) of each node to drain."""

    headline: str
    nodes: tuple[tuple[str, str], ...]


def drain_list(
    summaries: Summaries,
    threshold: float,
    night: int | None = None,
    night_start_us: int = 0,
    drained: Collection[str] = (),
) -> DrainList:
    """The nodes that were slow or gave wrong results in 3 of the last 5 nights.

    drained: nodes that are out of service already. If more than 2 % of the nodes qualify (but at
    least one may), the list is empty.
    """
    nights = nights_of(summaries, night_start_us)
    dated = np.unique(nights[nights != NO_NIGHT])
    upto = dated[dated <= night] if night is not None else dated
    recent = upto[-NIGHTS:].tolist()
    if len(recent) < SLOW_NIGHTS:
        text = f"drain nothing: {counted(len(recent), 'night')}, at least {SLOW_NIGHTS} are needed"
        return DrainList(text, ())
    bad: Counter[str] = Counter()
    present: set[str] = set()
    for recent_night in recent:
        finding = fleet_finding(summaries, threshold, recent_night, night_start_us)
        slow = {item.node for sets in finding.judged for item in sets.slow if item.effect > 0}
        wrong = {failure.node for failure in finding.failures if failure.kind == "wrong"}
        bad.update(slow | wrong)
        present.update(node for sets in finding.judged for node in sets.peers.nodes)
    chosen = sorted(node for node, count in bad.items() if count >= SLOW_NIGHTS)
    most = max(1, int(MOST_SHARE * len(present)))
    if len(chosen) > most:
        text = f"fleet-wide: drain nothing. {len(chosen)} of {len(present)} nodes were slow in "
        return DrainList(f"{text}{SLOW_NIGHTS} of {len(recent)} nights; at most {most} may be", ())
    rest = [node for node in chosen if node not in drained]
    left = f"; {len(chosen) - len(rest)} drained already" if len(rest) < len(chosen) else ""
    text = f"{counted(len(rest), 'node')} to drain{left}: bad in {SLOW_NIGHTS} of the last "
    reasons = {
        node: f"torchcoll: slow or wrong in {bad[node]} of {len(recent)} nights" for node in rest
    }
    return DrainList(f"{text}{len(recent)} nights", tuple(reasons.items()))
