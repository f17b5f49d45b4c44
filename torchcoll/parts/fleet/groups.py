"""Nodes that share a recorded fact: a rack, a switch, a version; and whether they became slower
together.

The evidence of a group is the sum over its nodes. Nodes that have just changed a fact are compared
from the night of their change on, so that a version that reaches the nodes in different nights is
one group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchcoll.parts.fleet.noise import (
    Floats,
    Ints,
    SeriesNoise,
    night_of_step,
    quiet_median,
    windows,
)
from torchcoll.stats.distributions import mad_scale, normal_quantile

FEWEST_MEMBERS = 3
_MOST_SHARE = 2 / 3  # of the nodes: what more of them share is the fleet's
_LONGEST = 7  # nights of a window
_MOST_DISPLACED = 0.6  # share of the members that must be slower by over half of the effect


@dataclass(frozen=True)
class FactChange:
    """A node has another value of a fact from this night on."""

    node: int
    night: int
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class FactGroup:
    """names: the facts with these members, which cannot be told apart. staged: the members are
    compared from the night of their change on, which is ``changed``.
    """

    names: tuple[str, ...]
    members: Ints
    staged: bool = False
    changed: tuple[str, ...] = ()


def candidate_groups(facts: Sequence[Mapping[str, str]]) -> list[FactGroup]:
    """The sets of at least 3 nodes that share the value of a fact, each set once."""
    members_of: dict[tuple[str, str], list[int]] = {}
    for node, of_node in enumerate(facts):
        for fact in of_node.items():
            members_of.setdefault(fact, []).append(node)
    names: dict[tuple[int, ...], list[str]] = {}
    most = _MOST_SHARE * len(facts)
    for (name, value), members in sorted(members_of.items()):
        if FEWEST_MEMBERS <= len(members) <= most and len(facts) - len(members) >= FEWEST_MEMBERS:
            text = f"{name.removeprefix('label=')}={value}"
            names.setdefault(tuple(members), []).append(text)
    return [FactGroup(tuple(texts), np.array(members)) for members, texts in names.items()]


def _changed_groups(changes: Sequence[FactChange]) -> list[tuple[FactGroup, dict[int, int]]]:
    """Groups of nodes with the same change of a fact, and the night of the change of each."""
    nights: dict[tuple[str, str, str], dict[int, int]] = {}
    for each in changes:
        nights.setdefault((each.name, each.old, each.new), {})[each.node] = each.night
    together: dict[tuple[tuple[int, int], ...], list[tuple[str, str, str]]] = {}
    for fact, of_node in nights.items():
        if len(of_node) >= FEWEST_MEMBERS:
            together.setdefault(tuple(sorted(of_node.items())), []).append(fact)
    results = []
    for pairs, facts in together.items():
        shown = [(name.removeprefix("label="), old, new) for name, old, new in sorted(facts)]
        names = tuple(f"{name}={new}" for name, _, new in shown)
        changed = tuple(f"{name} {old} -> {new}" for name, old, new in shown)
        members = np.array([node for node, _ in pairs])
        results.append((FactGroup(names, members, True, changed), dict(pairs)))
    return results


def slow_group(
    groups: Sequence[FactGroup],
    changes: Sequence[FactChange],
    values: Floats,
    noise: SeriesNoise,
    reference_nights: npt.NDArray[np.int64],
    usable: npt.NDArray[np.bool_],
    error: float,
    least: float,
    tonight: int,
    explained: set[str],
) -> tuple[FactGroup, int, dict[int, int]] | None:
    """The group with the most evidence that its nodes became slower by more than ``least``.

    values [T, N, S]: deviations of the nodes, the last is tonight. usable [N]: whether a node may
    be judged. tonight: the number of the last night. explained: facts whose groups have an
    incident. Returns the group, the subset of cases, and how many of the last nights concern each
    member.
    """
    nights, count, _ = values.shape
    limits = np.full(noise.scale.shape, normal_quantile(1 - error))
    reach = np.where(usable, nights, 0)
    sums, counts = windows(values, noise, limits, reference_nights, reach)
    present = np.isfinite(values[-1, :, 0]) & usable
    variance = noise.sum_variances(counts, reference_nights)
    limit = normal_quantile(1 - error)
    changed = [
        each for each in _changed_groups(changes) if max(each[1].values()) > tonight - nights
    ]
    staged = {name for group, _ in changed for name in group.names}
    groups = [group for group in groups if staged.isdisjoint(group.names)]
    candidates: list[tuple[float, FactGroup, int, dict[int, int]]] = []
    if groups:
        matrix = np.zeros((len(groups), count))
        for row, group in enumerate(groups):
            matrix[row, group.members] = present[group.members]
        most = min(_LONGEST, nights)
        for length in range(2, most + 1):
            total = matrix @ sums[length - 1]
            with np.errstate(invalid="ignore", divide="ignore"):
                scores = total / np.sqrt(matrix @ variance[length - 1])[:, None]
            for row, subset in np.argwhere(scores > limit).tolist():
                members = groups[row].members[present[groups[row].members]]
                reached = dict.fromkeys(members.tolist(), length)
                candidates.append((float(scores[row, subset]), groups[row], subset, reached))
    for group, since in changed:
        # Not nodes that changed tonight: one night is not enough.
        changed_nodes = [n for n in group.members.tolist() if present[n] and since[n] < tonight]
        reached = {n: min(tonight - since[n] + 1, nights) for n in changed_nodes}
        if len(reached) < FEWEST_MEMBERS:
            continue
        total = np.sum([sums[reached[n] - 1, n] for n in changed_nodes], axis=0)
        spread = math.sqrt(sum(variance[reached[n] - 1, n] for n in changed_nodes))
        for subset in range(values.shape[2]):
            score = float(total[subset]) / max(spread, 1e-9)
            if score > limit:
                candidates.append((score, group, subset, reached))
    candidates.sort(key=lambda item: (-item[0], item[2]))
    for score, group, subset, reached in candidates:
        if len(reached) < FEWEST_MEMBERS or not explained.isdisjoint(group.names):
            continue
        if not group.staged:
            begin = _first_night(quiet_median(values[:, list(reached), subset], axis=1))
            if nights - begin < 2:
                continue
            reached = dict.fromkeys(reached, nights - begin)
        effects = np.array(
            [quiet_median(values[-length:, node, subset]) for node, length in reached.items()]
        )
        effect = float(quiet_median(effects))
        displaced = float(np.nanmean(effects > effect / 2))
        if effect <= least or displaced < _MOST_DISPLACED:
            continue
        common = _common_noise(group, groups, values[..., subset], noise.scale[:, subset])
        if score > limit * common:
            return group, subset, reached
    return None


def _first_night(values: Floats) -> int:
    """The index of the first night of a step that lasts to the end of ``values`` [T]."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return len(values)
    return night_of_step(values, float(np.median(finite[-2:])))


def _common_noise(
    group: FactGroup, groups: Sequence[FactGroup], values: Floats, scale: npt.NDArray[np.float64]
) -> float:
    """How much more the mean of a group varies from night to night than the mean of as many
    independent nodes; 1 or more. values [T, N]; scale [N].
    """
    fact = group.names[0].partition("=")[0]
    alike = [g for g in groups if g.names[0].partition("=")[0] == fact] or [group]
    means = []
    for each in alike:
        z = values[:, each.members] / scale[each.members]
        count = np.isfinite(z).sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.nansum(np.clip(z, -3, 3), axis=1) / np.sqrt(count)
        means.append(mean - quiet_median(mean))
    flat = np.concatenate(means)
    flat = flat[np.isfinite(flat)]
    return max(1.0, mad_scale(flat)) if len(flat) >= 2 * _LONGEST else 1.0
