"""Which nodes are slower than their peers, with a stated error for the whole report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchcoll.parts.fleet.critical import critical_value, degrees_of_freedom
from torchcoll.parts.fleet.effects import Floats, TwoWay, robust_scale, two_way, weighted_median
from torchcoll.parts.fleet.groups import NodeGroup, slow_groups
from torchcoll.parts.fleet.records import CaseKey

FEWEST_PEERS = 8  # fewer others cannot show what is usual: nodes are ranked, none is accused
# Shares of the error of a report: nodes over all cases, nodes in some cases, groups.
_OF_NODES, _OF_SUBSETS, _OF_GROUPS = 0.5, 0.25, 0.25
_SMALL, _LARGE = 64 << 10, 4 << 20  # bytes: latency, between, bandwidth
_SMALLEST_SHARE = 0.2  # of the nodes in the smaller of two populations


@dataclass(frozen=True)
class Peers:
    """Nodes that may be compared: one device model, one number of ranks, common cases.

    log_times [N, C]: natural logarithm of ns, NaN where a node lacks a case. facts: of each node.
    """

    device_name: str
    ranks: int
    nodes: tuple[str, ...]
    keys: tuple[CaseKey, ...]
    log_times: Floats
    facts: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class SlowNode:
    """A node that differs from its peers by more than the threshold and the critical value.

    effect: difference of log times from the median peer over ``cases``, in which it was judged.
    scope: '' for all cases, otherwise what the cases have in common. displaced: how many of the
    cases are slower (faster, where the effect is negative) by more than the threshold.
    deviation: effect in robust standard deviations of the peers. group: a group that it belongs
    to and whose effect was removed first.
    """

    node: str
    effect: float
    scope: str
    cases: tuple[CaseKey, ...]
    displaced: int
    deviation: float
    group: str = ""


@dataclass(frozen=True)
class Populations:
    """Two sets of nodes, each alike, with no culprit: too many nodes are slow to call them so."""

    slow: tuple[str, ...]
    fast: tuple[str, ...]
    effect: float


@dataclass(frozen=True)
class PeersJudged:
    """What is to be said of one set of peers.

    effects [N] and case_effects [N, C]: differences of log times from the median peer. spread:
    robust standard deviation of the effects after group effects are removed. detectable: the
    smallest effect of one node over all cases that would have been found. slow: worst first;
    negative effects (fast nodes) last. judged: False with fewer than FEWEST_PEERS other nodes.
    """

    peers: Peers
    effects: Floats
    case_effects: Floats
    spread: float
    detectable: float
    judged: bool
    slow: tuple[SlowNode, ...] = ()
    groups: tuple[NodeGroup, ...] = ()
    populations: Populations | None = None


def judge_peers(peers: Peers, threshold: float, error: float) -> PeersJudged:
    """Judges every node and every group of nodes; with probability ``error`` any is named wrongly.

    threshold: smallest relative slowdown that is reported, such as 0.03.
    """
    fit = two_way(peers.log_times)
    case_effects = fit.residuals + fit.effects[:, None]
    least = float(np.log1p(threshold))
    count = len(peers.nodes)
    if count <= FEWEST_PEERS:
        spread = robust_scale(fit.effects) if count > 2 else float("nan")
        return PeersJudged(peers, fit.effects, case_effects, spread, float("nan"), judged=False)
    groups = slow_groups(fit.effects, peers.facts, least, error * _OF_GROUPS)
    group_effects = np.zeros(count)
    group_names = [""] * count
    for group in groups:
        group_effects[group.members] += group.effect
        for member in group.members:
            group_names[member] = group.names[0]
    remaining = fit.effects - group_effects
    remaining -= np.median(remaining)
    populations = two_populations(peers.nodes, remaining, least)
    spread = robust_scale(remaining)
    degrees = degrees_of_freedom(remaining)
    critical = critical_value(count, count, error * _OF_NODES, degrees)
    detectable = max(least, critical * spread)
    slow: list[SlowNode] = []
    if populations is None:
        overall = np.flatnonzero(np.abs(remaining) > detectable)
        slow += [
            _slow_node(
                peers,
                case_effects - group_effects[:, None],
                n,
                remaining[n],
                spread,
                least,
                "",
                np.arange(len(peers.keys)),
                group_names[n],
            )
            for n in overall.tolist()
        ]
        slow += _slow_in_some_cases(
            peers,
            fit,
            case_effects - group_effects[:, None],
            least,
            error * _OF_SUBSETS,
            {*overall.tolist()},
            group_names,
        )
    slow.sort(key=lambda item: -item.effect)
    return PeersJudged(
        peers,
        fit.effects,
        case_effects,
        spread,
        detectable,
        True,
        tuple(slow),
        tuple(groups),
        populations,
    )


def _slow_node(
    peers: Peers,
    case_effects: Floats,
    node: int,
    effect: float,
    spread: float,
    least: float,
    scope: str,
    cases: npt.NDArray[np.intp],
    group: str,
) -> SlowNode:
    present = cases[~np.isnan(case_effects[node, cases])]
    sign = 1 if effect > 0 else -1
    return SlowNode(
        node=peers.nodes[node],
        effect=float(effect),
        scope=scope,
        cases=tuple(peers.keys[c] for c in present),
        displaced=int((sign * case_effects[node, present] > least).sum()),
        deviation=float(effect / spread) if spread else float("inf"),
        group=group,
    )


def case_subsets(keys: Sequence[CaseKey]) -> list[tuple[str, npt.NDArray[np.intp]]]:
    """What a node may be slow in, without being slow in everything: collectives, sizes, cases.

    Of equal sets only the first is kept, with its name.
    """

    def size_class(key: CaseKey) -> str:
        size = key.case.size_bytes
        return (
            "small sizes" if size < _SMALL else "large sizes" if size >= _LARGE else "medium sizes"
        )

    kinds = (
        [key.case.collective for key in keys],
        [size_class(key) for key in keys],
        [f"{key.case.collective} of {size_class(key)}" for key in keys],
        [f"{number}" for number in range(len(keys))],
    )
    subsets: dict[bytes, tuple[str, npt.NDArray[np.intp]]] = {}
    for kind in kinds:
        for name in dict.fromkeys(kind):
            members = np.flatnonzero(np.array(kind) == name)
            if len(members) < len(keys):
                subsets.setdefault(members.tobytes(), ("" if name.isdecimal() else name, members))
    return list(subsets.values())


def _slow_in_some_cases(
    peers: Peers,
    fit: TwoWay,
    case_effects: Floats,
    least: float,
    error: float,
    accused: set[int],
    group_names: Sequence[str],
) -> list[SlowNode]:
    """Nodes that are slow in some of the cases, of those not accused of all: the subset with the
    largest deviation stands for the node.
    """
    subsets = case_subsets(peers.keys)
    if not subsets:
        return []
    # The smallest time in which anything was resolved: a case whose nodes agree to the digit.
    floor = max(1e-6, float(np.median(fit.scales)) / 10)
    columns, scales, degrees = [], [], []
    for _, members in subsets:
        effects = weighted_median(
            case_effects[:, members], 1 / np.maximum(fit.scales[members], floor) ** 2
        )
        present = effects[~np.isnan(effects)]
        if len(present) <= FEWEST_PEERS:
            columns.append(np.full(len(peers.nodes), np.nan))
            scales.append(1.0)
            continue
        columns.append(effects - np.median(present))
        scales.append(max(robust_scale(present), 1e-9))
        degrees.append(degrees_of_freedom(present))
    if not degrees:
        return []
    effects = np.array(columns).T  # [N, subsets]
    deviations = effects / np.array(scales)
    count = len(peers.nodes)
    critical = critical_value(count, count * len(subsets), error, min(degrees))
    significant = (np.abs(deviations) > critical) & (np.abs(effects) > least)
    slow = []
    for node in np.flatnonzero(significant.any(axis=1)).tolist():
        if node in accused:
            continue
        best = int(np.argmax(np.where(significant[node], np.abs(deviations[node]), 0)))
        scope, members = subsets[best]
        slow.append(
            _slow_node(
                peers,
                case_effects,
                node,
                effects[node, best],
                scales[best],
                least,
                scope or "one case",
                members,
                group_names[node],
            )
        )
    return slow


def two_populations(nodes: Sequence[str], effects: Floats, least: float) -> Populations | None:
    """The split of the nodes into a slow and a fast part, if it is far too wide for one population.

    Compares the difference of the means, in standard deviations within the parts, at the best split
    that leaves a fifth of the nodes on each side, with what 0.1 % of uniform samples exceed
    (simulated: 3.8 + 85 / nodes; normal and t4 samples stay below).
    """
    count = len(nodes)
    order = np.argsort(effects)
    ordered = effects[order]
    fewest = max(3, int(np.ceil(_SMALLEST_SHARE * count)))
    sizes = np.arange(fewest, count - fewest + 1)
    if not len(sizes):
        return None
    sums, squares = np.cumsum(ordered), np.cumsum(ordered**2)
    low_mean = sums[sizes - 1] / sizes
    high_mean = (sums[-1] - sums[sizes - 1]) / (count - sizes)
    within = squares[-1] - sizes * low_mean**2 - (count - sizes) * high_mean**2
    separation = (high_mean - low_mean) / np.sqrt(np.maximum(within, 1e-18) / (count - 2))
    best = int(np.argmax(separation))
    effect = float(high_mean[best] - low_mean[best])
    if separation[best] < 3.8 + 85 / count or effect < least:
        return None
    names = [nodes[index] for index in order]
    return Populations(tuple(names[sizes[best] :]), tuple(names[: sizes[best]]), effect)
