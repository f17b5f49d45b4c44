"""Which recorded fact explains the slow nodes: a rack, a switch, a driver, a version of NCCL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchcoll.parts.fleet.effects import Floats, robust_scale

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
