"""Since when: what changed over the nights, for the fleet, groups of nodes and single nodes.

In this order: a staged change is compared with the nodes that had not changed yet; the fleet is
what the nodes of a night share; groups and nodes are judged by what is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted
from torchcoll.parts.fleet.effects import Floats, mad_scales, nan_mean, nan_median, student_quantile
from torchcoll.parts.fleet.incidents import (
    Opening,
    SeriesNoise,
    estimate_noise,
    open_incidents,
    scores_of,
    window_values,
)
from torchcoll.parts.fleet.node_report import case_names
from torchcoll.parts.fleet.panel import (
    FEWEST_BASELINE,
    Panel,
    Split,
    baseline_nights,
    deviations,
    split_fleet_and_nodes,
)
from torchcoll.parts.fleet.series import format_night
from torchcoll.parts.fleet.slow_nodes import candidate_groups
from torchcoll.stats.distributions import MAD_TO_SIGMA, mad_scale

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
        spread = 1.4826 * float(np.median(np.abs(values - middle)))
        error = max(1.2533 * spread / np.sqrt(len(values)), 1e-6)
        if middle > least and middle > _CRITICAL * error:
            effects.append(StagedEffect(tuple(same), middle, error))
    return sorted(effects, key=lambda item: -item.effect)


# Probability of an alarm per series, night and window if nothing changed; fixed with the seeds of
# tests/benchmarks/fleet.py that are not those judged. Nodes: 6 to 9 alarms in 1,000 node-years.
NODE_ERROR, GROUP_ERROR, FLEET_ERROR = 3e-6, 1e-6, 2e-5
_MOST_GROUPS = 200  # above, the error of each is lowered
_FLAPPING, _FLAPPING_NIGHTS = 3, 60  # openings within so many nights
_COINCIDES = 1  # night: a change of a fact so close to a change of the times coincides with it
_HALF = 0.5  # of the nodes: a fact that most nodes changed may explain what the fleet did
_SPREAD_NIGHTS, _SPREAD_FEWEST = 21, 15  # in a window, and of them present
_SPREAD_CRITICAL = 4.5  # robust standard deviations of the logarithm of a spread
_SPREAD_LEAST = math.log(2)


@dataclass(frozen=True)
class Incident:
    """A change of the times of the fleet, of a group or of a node.

    scope: fleet, staged, group or node. kind: step, one night, two nights, drift, flapping or
    spread. nodes: names; () is the whole fleet. began, detected: dates of nights. ended: the first
    good one, '' if it is still open. effect: change of log time, with its 95 % interval. cases:
    names of those that are displaced, of ``of_cases``. changed: facts that changed at that time,
    together.
    """

    scope: str
    kind: str
    nodes: tuple[str, ...]
    group: str
    began: str
    detected: str
    ended: str
    effect: float
    low: float
    high: float
    cases: tuple[str, ...]
    of_cases: int
    changed: tuple[str, ...] = ()
    openings: int = 1


@dataclass(frozen=True)
class PanelHistory:
    """What the nights of one panel say.

    detectable: the smallest step of one node, in log time, that a week would show. judged: nights
    after the baseline of the median node. too_short: nodes with fewer than 5 earlier nights.
    """

    panel: Panel
    incidents: tuple[Incident, ...]
    detectable: float
    judged: int
    too_short: tuple[str, ...]
    missing_nights: tuple[str, ...]
    gone: tuple[tuple[str, str], ...]
    changes: tuple[FactChange, ...]
    node_effects: Floats
    fleet_effects: Floats


def history_of(panel: Panel, threshold: float, accepted: int = 0) -> PanelHistory:
    """threshold: smallest relative slowdown, such as 0.03. accepted: index of the night from which
    a baseline may be taken (``--accept``).
    """
    least = math.log1p(threshold)
    present = panel.present
    baseline = baseline_nights(present, accepted)
    values = deviations(panel, baseline)
    weights = _case_weights(values, baseline)
    changes = fact_changes(panel)
    nodes_alone = _weighted_mean(values, weights)
    staged = staged_effects(changes, nodes_alone, least)
    for effect in staged:
        for node, night in zip(
            effect.changes[0].nodes.tolist(), effect.changes[0].nights.tolist(), strict=True
        ):
            values[night:, node] -= effect.effect
    split = split_fleet_and_nodes(values, weights)
    judged = np.zeros_like(present)
    for node in range(present.shape[1]):
        used = np.flatnonzero(baseline[:, node])
        if len(used) >= FEWEST_BASELINE:
            judged[used[-1] + 1 :, node] = True
    judged &= present
    describe = _Describer(panel, values, split, changes, least)
    incidents = [describe.staged(effect) for effect in staged]
    if len(panel.nodes) > 1:
        incidents += _fleet_incidents(
            split, weights, baseline, np.asarray(judged.any(axis=1)), describe, least
        )
    node_series = split.nodes.copy()
    if len(panel.nodes) > 2 * FEWEST_BASELINE:
        groups, node_series = _group_incidents(
            panel, node_series, baseline, judged, describe, least
        )
        incidents += groups
    noise = estimate_noise(node_series, baseline)
    scores = scores_of(node_series, noise, NODE_ERROR)
    openings = open_incidents(node_series, scores, noise, judged, least)
    incidents += describe.nodes(openings, noise, node_series)
    incidents += _spread_incidents(panel, node_series, noise, baseline, judged)
    week = noise.ratio[4] * float(np.median(noise.scale)) if len(noise.scale) else math.nan
    critical = student_quantile(noise.degrees[4], 1 - NODE_ERROR / 2)
    last = present.shape[0] - 1 - np.argmax(present[::-1], axis=0)
    gone = [
        (node, _date(panel, int(night)))
        for node, night in zip(panel.nodes, last.tolist(), strict=True)
        if night < present.shape[0] - 1
    ]
    short = [
        node
        for node, count in zip(panel.nodes, present.sum(axis=0).tolist(), strict=True)
        if count <= FEWEST_BASELINE
    ]
    empty = [_date(panel, int(night)) for night in np.flatnonzero(~present.any(axis=1))]
    return PanelHistory(
        panel,
        tuple(sorted(incidents, key=_importance)),
        max(least, week * critical),
        int(judged.any(axis=1).sum()),
        tuple(short),
        tuple(empty),
        tuple(gone),
        tuple(changes),
        split.nodes,
        split.fleet,
    )


def _importance(incident: Incident) -> tuple[int, bool, float]:
    scopes = ("staged", "fleet", "group", "node")
    return (scopes.index(incident.scope), incident.ended != "", -abs(incident.effect))


def _date(panel: Panel, night: int) -> str:
    return format_night(panel.first_night + night)


def _case_weights(values: npt.NDArray[np.float32], baseline: npt.NDArray[np.bool_]) -> Floats:
    """The weight of each case [C] by the variance of its nights: noisy cases count less."""
    usual = values[baseline]  # [nights of all nodes, C]
    with np.errstate(invalid="ignore"):
        spread = mad_scales(usual).astype(np.float64)
    spread = np.where(np.isfinite(spread), spread, np.inf)
    finite = np.isfinite(spread)
    smallest = max(1e-6, float(np.median(spread[finite])) / 3) if finite.any() else 1.0
    return np.asarray(1 / np.maximum(spread, smallest) ** 2)


def _weighted_mean(values: npt.NDArray[np.float32], weights: Floats) -> Floats:
    """The mean over cases [T, N]."""
    present = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(
            (np.where(present, values, 0) * weights).sum(axis=2) / (present * weights).sum(axis=2)
        )


def _fleet_incidents(
    split: Split,
    weights: Floats,
    usual: npt.NDArray[np.bool_],
    judged: npt.NDArray[np.bool_],
    describe: _Describer,
    least: float,
) -> list[Incident]:
    """Changes that all nodes share: of all cases together, and of each case. Openings of several
    cases within a week are one incident.
    """
    present = np.isfinite(split.fleet)
    with np.errstate(invalid="ignore"):
        together = (np.where(present, split.fleet, 0) * weights).sum(axis=1) / (
            present * weights
        ).sum(axis=1)
    series = np.column_stack([together, split.fleet])
    length = int(np.argmax(judged)) if judged.any() else len(series)
    baseline = np.isfinite(series) & np.asarray(usual.any(axis=1))[:, None]
    baseline[length:] = False
    noise = estimate_noise(series, baseline, alike=False)
    scores = scores_of(series, noise, FLEET_ERROR / series.shape[1])
    openings = open_incidents(series, scores, noise, judged[:, None] & ~baseline, least)
    openings.sort(key=lambda opening: opening.began)
    incidents, used = [], 0
    while used < len(openings):
        group = [o for o in openings[used:] if o.began <= openings[used].began + 7]
        used += len(group)
        lead = max(group, key=lambda o: (o.series == 0, abs(o.effect)))
        incidents.append(describe.fleet(lead, noise, series))
    return incidents


def _group_incidents(
    panel: Panel,
    series: Floats,
    baseline: npt.NDArray[np.bool_],
    judged: npt.NDArray[np.bool_],
    describe: _Describer,
    least: float,
) -> tuple[list[Incident], Floats]:
    """Changes that the nodes of a group share, and the series of the nodes without them."""
    facts: list[Mapping[str, str]] = []
    for node in range(len(panel.nodes)):
        nights = np.flatnonzero(panel.environment[:, node] >= 0)
        facts.append(panel.environments[panel.environment[nights[-1], node]] if len(nights) else {})
    candidates = [
        (names, np.flatnonzero(indicator))
        for names, indicator in candidate_groups(facts).values()
        if indicator.sum() * 2 <= len(panel.nodes)
    ]
    if not candidates:
        return [], series
    limit = 5 * estimate_noise(series, baseline).scale
    columns, usual, allowed = [], [], []
    for _, members in candidates:
        clipped = np.clip(series[:, members], -limit[members], limit[members])
        count = np.isfinite(clipped).sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(count > 0, np.nansum(clipped, axis=1) / count, np.nan)
        columns.append(mean * math.sqrt(len(members)))  # so that the noise of groups is alike
        usual.append(baseline[:, members].mean(axis=1) > _HALF)
        allowed.append((judged[:, members].sum(axis=1) * 2 > len(members)) & ~usual[-1])
    table, group_baseline = np.column_stack(columns), np.column_stack(usual)
    group_baseline &= np.isfinite(table)
    noise = estimate_noise(table, group_baseline)
    error = GROUP_ERROR * min(1.0, _MOST_GROUPS / len(candidates))
    scores = scores_of(table, noise, error)
    openings = open_incidents(table, scores, noise, np.column_stack(allowed), 0.0)
    # Of overlapping groups the one with the clearest score explains the nodes.
    openings.sort(key=lambda o: -float(np.nanmax(scores.value[o.began : o.detected + 8, o.series])))
    remaining = series.copy()
    incidents = []
    for opening in openings:
        names, members = candidates[opening.series]
        last = len(series) if opening.ended is None else opening.ended
        with np.errstate(invalid="ignore"):
            effects = nan_mean(remaining[opening.began : last, members], axis=0)
        effect = float(nan_median(effects))
        most = (effects > effect / 2).sum() * 2 > len(members)
        if effect <= least or not most:
            continue
        incidents.append(
            describe.group(replace(opening, effect=effect), names, members, noise, remaining)
        )
        remaining[opening.began : last, members] -= effect
    return incidents, remaining


def _spread_incidents(
    panel: Panel,
    series: Floats,
    noise: SeriesNoise,
    baseline: npt.NDArray[np.bool_],
    judged: npt.NDArray[np.bool_],
) -> list[Incident]:
    """Nodes whose times scatter more than before: the median difference from one night to the next,
    over 21 nights, compared with the same of all baselines. A step moves only one difference.
    """
    if len(series) < 2 * _SPREAD_NIGHTS:
        return []
    differences = np.full(series.shape, np.nan)
    differences[1:] = np.abs(np.diff(series, axis=0)) / math.sqrt(2)
    distance, counts = window_values(differences, _SPREAD_NIGHTS, median=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(MAD_TO_SIGMA * distance / noise.scale)
    usual = ratio[baseline & (counts >= _SPREAD_FEWEST) & np.isfinite(ratio)]
    if len(usual) < _SPREAD_NIGHTS:
        return []
    centre = float(np.median(usual))
    scale = max(mad_scale(usual - centre), 0.15)
    above = (
        (ratio - centre > _SPREAD_CRITICAL * scale)
        & (ratio - centre > _SPREAD_LEAST)
        & judged
        & (counts >= _SPREAD_FEWEST)
    )
    incidents = []
    for node in np.flatnonzero(above.any(axis=0)).tolist():
        detected = int(np.argmax(above[:, node]))
        began = max(0, detected - _SPREAD_NIGHTS + 1)
        change = float(np.nanmax(ratio[detected:, node]) - centre)
        incidents.append(
            Incident(
                "node",
                "spread",
                (panel.nodes[node],),
                "",
                _date(panel, began),
                _date(panel, detected),
                "",
                change,
                change - 2 * scale,
                change + 2 * scale,
                (),
                len(panel.keys),
            )
        )
    return incidents


@dataclass(frozen=True)
class _Describer:
    """Turns openings into incidents: dates, interval, cases, and what changed at that time."""

    panel: Panel
    values: npt.NDArray[np.float32]  # [T, N, C]
    split: Split
    changes: Sequence[FactChange]
    least: float

    def staged(self, effect: StagedEffect) -> Incident:
        change = effect.changes[0]
        nodes = tuple(self.panel.nodes[n] for n in sorted(change.nodes.tolist()))
        began, last = int(change.nights.min()), int(change.nights.max())
        width = 1.96 * effect.standard_error
        return Incident(
            "staged",
            "step",
            nodes,
            "",
            _date(self.panel, began),
            _date(self.panel, last),
            "",
            effect.effect,
            effect.effect - width,
            effect.effect + width,
            (),
            len(self.panel.keys),
            tuple(map(str, effect.changes)),
        )

    def fleet(self, opening: Opening, noise: SeriesNoise, series: Floats) -> Incident:
        last = len(series) if opening.ended is None else opening.ended
        with np.errstate(invalid="ignore"):
            of_cases = nan_mean(self.split.fleet[opening.began : last], axis=0)
        displaced = np.flatnonzero(of_cases > self.least)
        changed = [
            change
            for change in self.changes
            if len(change.nodes) > _HALF * len(self.panel.nodes)
            and abs(float(np.median(change.nights)) - opening.began) <= _COINCIDES
        ]
        return self._incident("fleet", opening, noise, series, (), "", displaced, changed)

    def group(
        self,
        opening: Opening,
        names: Sequence[str],
        members: npt.NDArray[np.intp],
        noise: SeriesNoise,
        remaining: Floats,
    ) -> Incident:
        nodes = tuple(self.panel.nodes[n] for n in members.tolist())
        changed = self._changed_on({*members.tolist()}, opening.began)
        scale = float(np.median(noise.scale)) / math.sqrt(len(members))
        week = float(noise.ratio[4]) * scale
        label = one_line(names[0])
        if names[1:]:
            label += f" (the same nodes: {', '.join(map(one_line, names[1:4]))})"
        cases = self._cases(members, opening)
        return replace(
            self._incident("group", opening, noise, remaining, nodes, label, cases, changed),
            low=opening.effect - 1.96 * week,
            high=opening.effect + 1.96 * week,
        )

    def nodes(
        self, openings: Sequence[Opening], noise: SeriesNoise, series: Floats
    ) -> list[Incident]:
        incidents = []
        by_node: dict[int, list[Opening]] = {}
        for opening in openings:
            by_node.setdefault(opening.series, []).append(opening)
        for node, several in by_node.items():
            flapping = [
                first
                for first, third in zip(several, several[_FLAPPING - 1 :], strict=False)
                if third.detected - first.detected <= _FLAPPING_NIGHTS
            ]
            members = np.array([node])
            described = []
            for opening in several:
                changed = self._changed_on({node}, opening.began)
                cases = self._cases(members, opening)
                names = (self.panel.nodes[node],)
                described.append(
                    self._incident("node", opening, noise, series, names, "", cases, changed)
                )
            if flapping:
                lead = max(described, key=lambda item: item.effect)
                first, last = described[0], described[-1]
                flaps = replace(
                    lead,
                    kind="flapping",
                    began=first.began,
                    detected=described[_FLAPPING - 1].detected,
                    ended=last.ended,
                    openings=len(described),
                )
                described = [flaps]
            incidents += described
        return incidents

    def _cases(self, members: npt.NDArray[np.intp], opening: Opening) -> npt.NDArray[np.intp]:
        last = len(self.values) if opening.ended is None else opening.ended
        nights = slice(opening.began, last)
        left = self.values[nights][:, members] - self.split.fleet[nights][:, None, :]
        with np.errstate(invalid="ignore"):
            return np.flatnonzero(nan_mean(left, axis=(0, 1)) > self.least)

    def _changed_on(self, nodes: set[int], night: int) -> list[FactChange]:
        """Facts that changed on most of these nodes at that time, and not on most of the others."""
        near_changes = []
        count = len(self.panel.nodes)
        for change in self.changes:
            near = np.abs(change.nights - night) <= _COINCIDES
            where = {*change.nodes[near].tolist()}
            inside = len(where & nodes)
            outside = len(where - nodes)
            if inside > _HALF * len(nodes) and outside <= _HALF * max(1, count - len(nodes)):
                near_changes.append(change)
        return near_changes

    def _incident(
        self,
        scope: str,
        opening: Opening,
        noise: SeriesNoise,
        series: Floats,
        nodes: tuple[str, ...],
        group: str,
        cases: npt.NDArray[np.intp],
        changed: Sequence[FactChange],
    ) -> Incident:
        last = len(series) if opening.ended is None else opening.ended
        number = opening.series
        length = max(1, last - opening.began)
        # The variance of a mean over a week, per week, and that of the baseline's mean.
        weekly = (noise.scale[number] * noise.ratio[4]) ** 2 * 7
        width = 1.96 * math.sqrt(weekly / length + weekly / max(1, int(noise.nights[number])))
        kind = "step"
        if opening.ended is not None and last - opening.began <= 2:
            kind = "one night" if last - opening.began == 1 else "two nights"
        elif scope != "group" and _is_drift(series[:, number] - noise.centre[number], opening):
            kind = "drift"
        names = case_names([self.panel.keys[c] for c in cases.tolist()])
        return Incident(
            scope,
            kind,
            nodes,
            group,
            _date(self.panel, opening.began),
            _date(self.panel, opening.detected),
            "" if opening.ended is None else _date(self.panel, opening.ended),
            opening.effect,
            opening.effect - width,
            opening.effect + width,
            tuple(names),
            len(self.panel.keys),
            tuple(map(str, changed)),
        )


def _is_drift(values: Floats, opening: Opening) -> bool:
    """Whether a straight line from some night on fits an open incident far better than a step."""
    if opening.ended is not None:
        return False
    present = np.flatnonzero(np.isfinite(values))
    if len(present) < 20 or len(values) - opening.began < 10:
        return False
    data = values[present]
    step = np.where(present >= opening.began, data[present >= opening.began].mean(), 0.0)
    of_step = float(((data - step) ** 2).sum())
    best = math.inf
    for start in np.unique(np.linspace(0, opening.began, 20).astype(int)).tolist():
        ramp = np.maximum(present - start, 0).astype(np.float64)
        slope = float(ramp @ data / max(ramp @ ramp, 1e-12))
        best = min(best, float(((data - slope * ramp) ** 2).sum()))
    return best < of_step * (1 - 6 / len(present))


def format_count(nodes: int, of: int) -> str:
    """``all 64 nodes``, ``3 of 64 nodes``."""
    return f"all {counted(nodes, 'node')}" if nodes == of else f"{nodes} of {counted(of, 'node')}"
