"""What changed in the recorded environment of the nodes, and what a staged change cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchcoll.parts.fleet.effects import Floats, nan_mean
from torchcoll.parts.fleet.panel import Panel
from torchcoll.stats.distributions import mad_scale

_WEEK = 7  # nights before and after its change that a node is compared over
_FEWEST_NODES = 3  # changed, and not yet changed
_CRITICAL = (
    6.0  # standard errors of the median difference; of t4 with 3 nodes not reached by chance
)


@dataclass(frozen=True)
class FactChange:
    """The same change of one fact on several nodes. nights[i] is that of nodes[i]."""

    name: str
    old: str
    new: str
    nodes: npt.NDArray[np.intp]
    nights: npt.NDArray[np.intp]

    def __str__(self) -> str:
        return f"{self.name.removeprefix('label=')} {self.old} -> {self.new}"


def fact_changes(panel: Panel) -> list[FactChange]:
    """Every change of a fact from a node's run to its next one, most nodes first.

    A fact that a run does not record has not changed.
    """
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for node in range(len(panel.nodes)):
        nights = np.flatnonzero(panel.environment[:, node] >= 0)
        values = panel.environment[nights, node]
        for index in np.flatnonzero(values[1:] != values[:-1]).tolist():
            pair = (int(values[index]), int(values[index + 1]))
            places.setdefault(pair, []).append((node, int(nights[index + 1])))
    by_fact: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for (before, after), where in places.items():
        old, new = panel.environments[before], panel.environments[after]
        for name in sorted({*old} & {*new}):
            if old[name] != new[name]:
                by_fact.setdefault((name, old[name], new[name]), []).extend(where)
    changes = [
        FactChange(*fact, *(np.array(column, dtype=np.intp) for column in zip(*where, strict=True)))
        for fact, where in by_fact.items()
    ]
    return sorted(changes, key=lambda change: (-len(change.nodes), change.name, change.new))


@dataclass(frozen=True)
class StagedEffect:
    """What a change did to the nodes that had it earlier than others.

    changes: those with the same nodes and nights, which cannot be told apart. effect: median
    difference in log time. standard_error: of it.
    """

    changes: tuple[FactChange, ...]
    effect: float
    standard_error: float


def staged_effects(
    changes: Iterable[FactChange], node_times: Floats, least: float
) -> list[StagedEffect]:
    """Changes that nodes had in different nights and that made them slower by over ``least``.

    node_times [T, N]: log time of a node over all cases, compared with its baseline. A node is
    compared over the weeks before and after its change with the nodes that had not changed yet
    (difference in differences, Card and Krueger 1994).
    """
    sets: dict[tuple[bytes, bytes], list[FactChange]] = {}
    for change in changes:
        key = (change.nodes.tobytes(), change.nights.tobytes())
        sets.setdefault(key, []).append(change)
    effects = []
    count = node_times.shape[1]
    for same in sets.values():
        nodes, nights = same[0].nodes, same[0].nights
        if len(nodes) < _FEWEST_NODES or (len(np.unique(nights)) == 1 and len(nodes) == count):
            continue
        changed_in = np.full(count, len(node_times))
        changed_in[nodes] = nights
        first, last = max(0, int(nights.min()) - _WEEK), int(nights.max()) + _WEEK
        controls = np.full(len(node_times), np.nan)
        for night in range(first, min(last, len(node_times))):
            others = node_times[night, changed_in > night]
            others = others[np.isfinite(others)]
            if len(others) >= _FEWEST_NODES:
                controls[night] = np.median(others)
        relative = node_times - controls[:, None]
        differences = []
        for node, night in zip(nodes.tolist(), nights.tolist(), strict=True):
            before = relative[max(0, night - _WEEK) : night, node]
            after = relative[night : night + _WEEK, node]
            if np.isfinite(before).any() and np.isfinite(after).any():
                differences.append(nan_mean(after, 0) - nan_mean(before, 0))
        if len(differences) < _FEWEST_NODES:
            continue
        values = np.array(differences)
        middle = float(np.median(values))
        spread = mad_scale(values - middle)
        error = max(1.2533 * spread / np.sqrt(len(values)), 1e-6)
        if middle > least and middle > _CRITICAL * error:
            effects.append(StagedEffect(tuple(same), middle, error))
    return sorted(effects, key=lambda item: -item.effect)
