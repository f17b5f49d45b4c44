"""Which nodes are slower than their peers, with a stated error for the whole report, and which
recorded fact explains them: a rack, a switch, a driver, a version of NCCL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchcoll.parts.fleet.effects import (
    Floats,
    TwoWay,
    critical_value,
    degrees_of_freedom,
    robust_scale,
    two_way,
    weighted_median,
)
from torchcoll.parts.fleet.records import CaseKey

FEWEST_MEMBERS = 3
_PERMUTATIONS = 4000
_CLIPPED = 3.0  # robust standard deviations: one bad node must not stand for its group
_MOST_GROUPS = 5  # found one after the other
_SEED = 20_11


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that share the value of a fact, and how much slower they are than the other nodes.

    names: facts with this partition of the nodes, each as ``name=value``: the data cannot tell them
    apart. members: indexes of nodes. effect: difference of the median log times. p_value: of the
    largest standardised difference over all groups of all facts, by permuting the nodes.
    """

    names: tuple[str, ...]
    members: npt.NDArray[np.intp]
    effect: float
    p_value: float


def candidate_groups(facts: Sequence[Mapping[str, str]]) -> dict[bytes, tuple[list[str], Floats]]:
    """Every set of at least 3 nodes, with at least 3 others, that shares the value of a fact.

    facts: one mapping per node. Returns the indicator of the members [N] and the names of the
    facts, by partition; the smaller half of a partition into two stands for both.
    """
    count = len(facts)
    groups: dict[bytes, tuple[list[str], Floats]] = {}
    for name in sorted({name for fact in facts for name in fact}):
        values = [fact.get(name) for fact in facts]
        members_of: dict[str, list[int]] = {}
        for index, value in enumerate(values):
            if value is not None:
                members_of.setdefault(value, []).append(index)
        for value, members in sorted(members_of.items()):
            if not FEWEST_MEMBERS <= len(members) <= count - FEWEST_MEMBERS:
                continue
            indicator = np.zeros(count)
            indicator[members] = 1
            key = indicator.astype(bool).tobytes()
            groups.setdefault(key, ([], indicator))[0].append(
                f"{name.removeprefix('label=')}={value}"
            )
    return groups


def slow_groups(
    effects: Floats, facts: Sequence[Mapping[str, str]], threshold: float, error: float
) -> list[NodeGroup]:
    """The groups that are slower than the other nodes by more than ``threshold`` (a difference of
    log times), strongest first; each is looked for after the effects of those before are removed.

    error: probability of any group where none differs. Family-wise by the maximum over all groups
    (Westfall and Young 1993).
    """
    candidates = candidate_groups(facts)
    if not candidates:
        return []
    names = [names for names, _ in candidates.values()]
    indicators = np.array([indicator for _, indicator in candidates.values()]).T  # [N, G]
    sizes = indicators.sum(axis=0)
    count = len(effects)
    remaining = effects.copy()
    random = np.random.default_rng(_SEED)
    groups: list[NodeGroup] = []
    for _ in range(_MOST_GROUPS):
        scale = robust_scale(remaining) or 1e-9
        scores = np.clip((remaining - np.median(remaining)) / scale, -_CLIPPED, _CLIPPED)

        def statistics(values: Floats) -> Floats:
            """Standardised differences of means [..., G] of scores [..., N]."""
            sums = values @ indicators
            rest = values.sum(axis=-1, keepdims=True) - sums
            weight = np.sqrt(sizes * (count - sizes) / count)
            return np.asarray((sums / sizes - rest / (count - sizes)) * weight)

        observed = statistics(scores)
        largest = np.empty(_PERMUTATIONS)
        for start in range(0, _PERMUTATIONS, 500):
            permuted = random.permuted(np.tile(scores, (500, 1)), axis=1)
            largest[start : start + 500] = np.abs(statistics(permuted)).max(axis=1)
        differences = np.array(
            [
                np.median(remaining[column == 1]) - np.median(remaining[column == 0])
                for column in indicators.T
            ]
        )
        # A partition into two halves has one slow half.
        eligible = (differences > threshold) & (observed > 0)
        if not eligible.any():
            break
        best = int(np.argmax(np.where(eligible, observed, -np.inf)))
        p_value = (1 + int((largest >= observed[best] - 1e-12).sum())) / (1 + _PERMUTATIONS)
        if p_value > error:
            break
        members = np.flatnonzero(indicators[:, best])
        effect = float(differences[best])
        groups.append(NodeGroup(tuple(names[best]), members, effect, p_value))
        remaining[members] -= effect
    return groups


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
