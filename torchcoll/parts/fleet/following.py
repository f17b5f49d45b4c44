"""Incidents are opened, followed and closed, by the evidence of the nights.

The assumptions are on top of ``fleet_model.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from torchcoll.parts.fleet import incident as incidents
from torchcoll.parts.fleet.fleet_state import FEWEST_PEERS, LAG, NIGHTS, FleetState
from torchcoll.parts.fleet.incident import Incident, IncidentRecord, Level
from torchcoll.parts.fleet.noise import (
    WINDOW,
    Floats,
    Ints,
    SeriesNoise,
    StepEvidence,
    clipped_mean,
    evidence,
    night_of_step,
    quiet_median,
)
from torchcoll.parts.fleet.series import format_night

# Probability of an alarm per night and series if nothing changed.
NODE_ERROR, FLEET_ERROR, BACK_ERROR = 6e-7, 1e-5, 1e-4
RELAPSE = 60  # nights after its end in which an incident may open again
_WRONG_NIGHTS = 14  # nights with right results until an incident of wrong results closes


def _interval(level: float, width: float) -> dict[str, Any]:
    return {"low": level - width, "high": level + width}


class FollowedIncidents(FleetState):
    """A fleet, its incidents, and what was said of them."""

    def open(
        self,
        scope: str,
        subject: str,
        nodes: tuple[str, ...],
        began: int,
        level: tuple[float, float],
        cases: npt.NDArray[np.bool_],
        **facts: Any,
    ) -> Incident:
        """Opens an incident, or again one that ended lately.

        level: and half of its 90 % interval. cases [C]: whether a case is slower. facts: further
        fields of Incident.
        """
        fields = {
            **_interval(*level),
            "nodes": nodes,
            "cases": tuple(np.flatnonzero(cases).tolist()),
            "where": self.where(cases),
            **facts,
        }
        first = self._level(nodes, began, level[0])
        earlier = [
            each
            for each in self.incidents
            if (each.subject, each.scope, each.kind) == (subject, scope, incidents.SLOW)
            and each.state == incidents.CLOSED
            and each.ended is not None
            and began - each.ended <= RELAPSE
        ]
        if earlier:
            old = earlier[-1]
            fields |= {"state": incidents.OPEN, "ended": None, "openings": old.openings + 1}
            levels = (*old.levels, first)
            return self.revise(old, "relapsed", began, levels=levels, **fields)
        suffix = "-first" if self.first_calls else ""
        new = Incident(
            id=f"{subject or 'fleet'}@{format_night(began)}{suffix}",
            scope=scope,
            kind=incidents.SLOW,
            subject=subject,
            levels=(first,),
            opened=self.night,
            first_calls=self.first_calls,
            **fields,
        )
        self.incidents.append(new)
        return self.revise(new, "opened", began)

    def _level(self, nodes: Sequence[str], since: int, effect: float) -> Level:
        index = [self.names.index(name) for name in nodes]
        start = self.nights_back(since)
        seen = np.flatnonzero(np.isfinite(self.times[:start, index]).any(axis=(1, 2)))
        return Level(since, effect, start - 1 - int(seen[-1]) if len(seen) else 0)

    def revise(
        self,
        old: Incident,
        event: str = "",
        since: int = 0,
        by: str = "",
        why: str = "",
        **changes: Any,
    ) -> Incident:
        """An incident with other fields in the place of ``old``. event: what is said; '' is
        nothing.
        """
        new = replace(old, **changes)
        self.incidents[self.incidents.index(old)] = new
        if event:
            facts = (new.effect, new.low, new.high, by, why)
            self.records.append(IncidentRecord(new.id, self.night, event, since, *facts))
        return new

    def follow(
        self, about: Incident, left: Floats, node: int, narrower: float = 1.0
    ) -> tuple[Incident, Ints]:
        """Updates the level of an open incident, and closes it; returns it and its nights.

        left [M, C]: deviations from the usual. narrower: the noise as a share of that of ``node``.
        """
        cases = np.zeros(len(self.keys), dtype=bool)
        cases[list(about.cases)] = True
        values = self.over(left, cases)
        start = self.nights_back(about.since)
        nights = start + np.flatnonzero(np.isfinite(values[start:]))
        if not len(nights) or not np.isfinite(values[-1]):
            return about, nights
        subset = self.subset_of(cases)
        reference = nights[: max(3, len(nights) - LAG)]
        if len(nights) > len(reference) >= 2:
            level = float(clipped_mean(values[reference]))
            recent = len(nights) - len(reference)
            results = self._evidence_of_one(values - level, node, subset, len(reference), recent)
            if float(results.down[0, 0]) < -1:
                return self._went_down(about, values, level, node, subset, reference)
        level = float(clipped_mean(values[nights]))
        width = narrower * self.width(node, subset, len(nights))
        levels = (*about.levels[:-1], replace(about.levels[-1], effect=level))
        return self.revise(about, levels=levels, **_interval(level, width)), nights

    def _evidence_of_one(
        self, values: Floats, node: int, subset: int, references: int, recent: int
    ) -> StepEvidence:
        """As shares of the limit. recent: how many of the last nights with a run may be used."""
        scale, degrees, _, factors = self.noise_of(node)
        noise = SeriesNoise(scale[None, [subset]], degrees[None, [subset]], factors)
        limits = noise.limits(BACK_ERROR)
        latest = values[-WINDOW:]
        finite = np.flatnonzero(np.isfinite(latest[::-1]))
        reach = finite[min(recent, len(finite)) - 1] + 1 if len(finite) and recent else 0
        results = evidence(
            latest[:, None, None], noise, limits, np.array([references]), np.array([reach])
        )
        return StepEvidence(results.up / limits, results.down / limits)

    def _went_down(
        self, about: Incident, values: Floats, level: float, node: int, subset: int, reference: Ints
    ) -> tuple[Incident, Ints]:
        after = int(reference[-1]) + 1
        tail = values[after:]
        last = tail[np.isfinite(tail)][-3:]
        size = float(np.median(last)) - level
        if size >= 0:
            return about, reference
        begin = after + max(0, night_of_step(tail - level, size))
        since = self.night - (NIGHTS - 1 - begin)
        now = values[begin:]
        left = float(clipped_mean(now[np.isfinite(now)]))
        width = self.width(node, subset, int(np.isfinite(now).sum()))
        event, fields = "better", _interval(left, width)
        if left < max(self.least / 2, 0.4 * level) or left < width:
            event, left = "closed", 0.0
            fields |= {"state": incidents.CLOSED, "ended": since}
            if about.scope == "node":
                self.free_from[self.names.index(about.subject)] = since
            elif about.scope == "fleet":
                self.fleet_free_from = since
        new = self.revise(
            about,
            event,
            since,
            levels=(*about.levels, self._level(about.nodes, since, left)),
            **fields,
        )
        return new, begin + np.flatnonzero(np.isfinite(now))

    def _raise(
        self,
        node: int,
        left: Floats,
        ratio: Floats,
        reach: int,
        centre: Floats,
        about: Incident | None,
    ) -> None:
        """Opens an incident of a node or of the fleet, or makes it worse, unless it is small.

        ratio [S]: evidence over its limit. centre [S]: the level that was left.
        """
        over = self.project(left)
        for subset in np.argsort(-ratio).tolist():
            if ratio[subset] <= 1:
                return
            values = over[-reach:, subset] - centre[subset]
            if np.isfinite(values).sum() < 2:
                continue
            start, size = date_step(values, reach)
            if size <= 0:
                continue
            about_level = np.zeros(len(self.keys))
            if about is not None:
                about_level[list(about.cases)] = about.effect
            cases = self.slow_cases(clipped_mean(left[start:]) - about_level, self.subsets[subset])
            # Again with the cases that are slower alone.
            values = self.over(left - about_level, cases)[-reach:]
            start, size = date_step(values, reach)
            effects = clipped_mean(left[start:])
            cases = self.slow_cases(effects - about_level, self.subsets[subset])
            if about is not None:
                cases = cases | np.isin(np.arange(len(cases)), about.cases) & (effects > self.least)
            level = self.over(effects[None], cases)
            if not level[0] > self.least:
                continue
            since = self.night - (NIGHTS - 1 - start)
            nights = int(np.isfinite(left[start:]).any(axis=1).sum())
            width = self.width(node, self.subset_of(cases), nights)
            self._tell(node, about, since, float(level[0]), width, cases, left)
            return

    def _tell(
        self,
        node: int,
        about: Incident | None,
        since: int,
        level: float,
        width: float,
        cases: npt.NDArray[np.bool_],
        left: Floats,
    ) -> None:
        if about is not None:
            self.revise(
                about,
                "worse",
                since,
                levels=(*about.levels, self._level(about.nodes, since, level)),
                cases=tuple(np.flatnonzero(cases).tolist()),
                where=self.where(cases),
                **_interval(level, width),
            )
            return
        start = self.nights_back(since)
        if node < 0:
            # Those that are slower than their own usual by over half of this level.
            deviations = self.times[start:].astype(np.float64) - self.known[start:] - self.usual
            of_nodes = quiet_median(np.where(cases, deviations, np.nan), axis=(0, 2))
            slow = np.flatnonzero(of_nodes > level / 2)
            changed = self.changed_on(set(slow.tolist()), since)
            names = tuple(self.names[n] for n in slow.tolist())
            self.open("fleet", "", names, since, (level, width), cases, changed=changed)
            return
        good = int(np.isfinite(left[:start]).any(axis=1).sum())
        good = min(good, since - int(self.free_from[node]))
        if since - self.first[node] > NIGHTS:
            good = max(good, int(self.seen[node]) - (NIGHTS - start))
        name = self.names[node]
        changed = self.changed_on({node}, since)
        facts = {"changed": changed, "good_nights": good}
        self.open("node", name, (name,), since, (level, width), cases, **facts)

    def judge_fleet(self) -> None:
        if len(self.names) <= FEWEST_PEERS or self.fleet_noise is None:
            return
        if not np.isfinite(self.fleet[-1]).any():
            return
        left = self.cases_over_nights(-1)
        about = next((i for i in self.incidents if i.is_open and i.scope == "fleet"), None)
        centre = np.zeros(len(self.subsets))
        references, reach = int(self.fleet_baseline.nights[0]), WINDOW
        reach = min(reach, self.night - self.fleet_free_from + 1)
        if about is not None:
            about, nights = self.follow(about, left, -1)
            if not about.is_open or len(nights) < 5:
                return
            centre, references, reach = self._segment(left, nights)
        scale, degrees, _, factors = self.noise_of(-1)
        scale = np.maximum(scale, self.night_error())
        noise = SeriesNoise(scale[None], degrees[None], factors)
        limits = noise.limits(FLEET_ERROR)
        values = self.project(left[-WINDOW:])[:, None, :] - centre
        results = evidence(values, noise, limits, np.array([references]), np.array([reach]))
        ratio = (results.up / limits)[0]
        if (ratio > 1).any():
            self._raise(-1, left, ratio, reach, centre, about)

    def _segment(self, left: Floats, nights: Ints) -> tuple[Floats, int, int]:
        """The level of an open incident [S], its nights, and how far back a window may begin."""
        reference = nights[: max(3, len(nights) - LAG)]
        centre = clipped_mean(self.project(left[reference]))
        recent = nights[len(reference) :]
        return centre, len(reference), NIGHTS - int(recent[0]) if len(recent) else 0

    def judge_nodes(self, present: npt.NDArray[np.bool_]) -> None:
        assert self.noise is not None
        open_nodes = self.open_nodes()
        centre = np.zeros((len(self.names), len(self.subsets)))
        references = self.baseline.nights.copy()
        reach = np.minimum(WINDOW, self.night - self.free_from + 1)
        for node, about in list(open_nodes.items()):
            if not present[node]:
                continue
            left = self.cases_over_nights(node)
            about, nights = self.follow(about, left, node)
            open_nodes[node] = about
            if not about.is_open:
                reach[node] = min(WINDOW, self.night - self.free_from[node] + 1)
                del open_nodes[node]
            elif len(nights) >= 5:
                centre[node], references[node], reach[node] = self._segment(left, nights)
            else:
                reach[node] = 0
        values = self.project(self.left(nights=WINDOW)) - centre
        limits = self.noise.limits(NODE_ERROR)
        ratio = evidence(values, self.noise, limits, references, reach).up / limits
        alarm = (ratio > 1).any(axis=1) & present & (self.baseline.nights > 0)
        for node in np.flatnonzero(alarm).tolist():
            self._raise(
                node,
                self.cases_over_nights(node),
                ratio[node],
                int(min(reach[node], WINDOW)),
                centre[node],
                open_nodes.get(node),
            )

    def judge_results(self, wrong: Mapping[str, str], present: npt.NDArray[np.bool_]) -> None:
        """One verified wrong result is a fault; it ends after 14 nights with right results."""
        of_node = {i.subject: i for i in self.incidents if i.is_open and i.kind == incidents.WRONG}
        for node, where in sorted(wrong.items()):
            if node in of_node:
                old = of_node[node]
                self.revise(old, seen=self.night, where=where, openings=old.openings + 1)
                continue
            new = Incident(
                id=f"{node}@{format_night(self.night)}-wrong",
                scope="node",
                kind=incidents.WRONG,
                subject=node,
                nodes=(node,),
                levels=(Level(self.night, 0.0),),
                low=0.0,
                high=0.0,
                cases=(),
                where=where,
                opened=self.night,
                seen=self.night,
            )
            self.incidents.append(new)
            self.revise(new, "opened", self.night)
        for node, old in of_node.items():
            number = self.names.index(node) if node in self.names else -1
            if node in wrong or number < 0 or not present[number]:
                continue
            nights = np.isfinite(self.times[self.nights_back(old.seen + 1) :, number]).any(axis=1)
            if nights.sum() >= _WRONG_NIGHTS:
                self.revise(old, "closed", self.night, state=incidents.CLOSED, ended=self.night)


def date_step(values: Floats, reach: int) -> tuple[int, float]:
    """The first night of a step among those that are remembered, and its size.

    values: of the last ``reach`` nights.
    """
    size = float(np.median(values[np.isfinite(values)][-3:]))
    begin = 0
    for _ in range(2):
        begin = night_of_step(values, size)
        after = values[begin:]
        size = float(clipped_mean(after[np.isfinite(after)]))
    return NIGHTS - reach + begin, size
