"""One model of a fleet, night by night: what is usual, what is slow, since when.

Assumptions:

- log time of a case = usual of the node in the case + night + group + fault + noise.
- The usual of a node is the mean of its first nights, up to 28, always a week behind tonight. It is
  known from 7 nights on, and frozen as soon as an incident opens: a fault never becomes usual.
- The night is what the nodes share. If a part of the nodes moves away, it is what the nodes share
  that stay where they were.
- The noise of a node over all cases, or over a part of them, has one scale and may be correlated
  from night to night (noise.py).
- A fault is a step of a node, of the nodes that share a fact, or of the fleet. A fault that grows
  is several steps. What the fleet and groups explain is not the node's.

A night is judged with what is known in it and never again: reading later changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torchcoll.parts.fleet import incident as incidents
from torchcoll.parts.fleet.fleet_state import NIGHTS
from torchcoll.parts.fleet.following import FollowedIncidents, date_step
from torchcoll.parts.fleet.groups import FactGroup, candidate_groups, slow_group
from torchcoll.parts.fleet.incident import Incident, IncidentRecord, Level
from torchcoll.parts.fleet.noise import WINDOW, Floats, Ints, quiet_median
from torchcoll.parts.fleet.peers import slower_than_peers

GROUP_ERROR = 1e-6  # probability of an alarm per night and group if nothing changed
_COINCIDES = 1  # night
_OF_MEDIAN = 1.15  # standard error of the median of 4 to 10 nodes, in those of their mean


class FleetModel(FollowedIncidents):
    """The state after the last night that was judged. ``step`` judges the next night."""

    def step(
        self,
        night: int,
        times: npt.NDArray[Any],
        facts: Sequence[Mapping[str, str] | None],
        wrong: Mapping[str, str] | None = None,
    ) -> list[IncidentRecord]:
        """Judges a night and returns what is new in it.

        times [N, C]: log times of the nodes and cases of ``names`` and ``keys``, NaN where there is
        none. facts: of each node that has a run. wrong: nodes with wrong results, and in which
        cases.
        """
        count_before = len(self.records)
        if self.night >= 0:
            for _ in range(min(night - self.night - 1, NIGHTS)):
                self.append(np.full_like(times, np.nan))
        self.night = night
        self.nights += 1
        self.append(times)
        self.note_facts(facts)
        present = np.isfinite(times).any(axis=1)
        self.first[present & (self.seen == 0)] = night
        self.seen += present
        self._apply_groups()
        if self.noise is None:
            began = self.bootstrap()
        else:
            began = True
            self.estimate_night()
        if began:
            new = self.learn()
            if len(new):
                self._compare_with_peers(new)
            self.judge_fleet()
            self._judge_groups()
            self.judge_nodes(present)
        self.judge_results(wrong or {}, present)
        return self.records[count_before:]

    def _compare_with_peers(self, new: Ints) -> None:
        """Opens incidents of nodes that are slower than their peers since their first night."""
        for node, subset, effects in slower_than_peers(
            self.project(self.usual), self.usual, new, self.noise, self.least
        ):
            cases = self.slow_cases(effects, self.subsets[subset])
            if not any((cases == named.cases).all() for named in self.subsets):
                cases = self.subsets[subset].cases & np.isfinite(effects)
            level = float(np.average(effects[cases], weights=self.weights[cases]))
            if level <= self.least:
                continue
            self.usual[node, cases] -= effects[cases]
            # It may have become slow within its first week.
            reach = min(self.night - int(self.first[node]) + 1, NIGHTS)
            left = self.cases_over_nights(node)
            start, size = date_step(self.over(left, cases)[-reach:], reach)
            night = self.night - (NIGHTS - 1 - start)
            always = bool(night <= self.first[node] + 1)
            if always:
                night, size = int(self.first[node]), level
            width = self.width(node, subset, NIGHTS - start)
            name = self.names[node]
            self.open("node", name, (name,), night, (size, width), cases, always=always)

    def members_of(self, about: Incident) -> list[tuple[int, int]]:
        """The nodes of an incident and the night from which it concerns each."""
        number = {name: n for n, name in enumerate(self.names)}
        if not about.staged:
            return [(number[name], about.levels[0].night) for name in about.nodes]
        name, _, value = about.subject.partition("=")
        nights = {
            each.node: each.night
            for each in self.changes
            if each.name.removeprefix("label=") == name and each.new == value
        }
        return [
            (node, nights.get(node, 0))
            for node, facts in enumerate(self.facts)
            if value in (facts.get(name), facts.get(f"label={name}"))
        ]

    def _apply_groups(self) -> None:
        """What open and accepted incidents of groups explain of the nights that are remembered."""
        active = [i for i in self.incidents if i.scope == "group" and i.kind == incidents.SLOW]
        active = [i for i in active if i.ended is None or i.ended > self.night - NIGHTS]
        if not active and not self.known.any():
            return
        self.known[:] = 0
        for about in active:
            for node, night in self.members_of(about):
                for level in about.levels:
                    start = self.nights_back(max(level.night, night))
                    if level.night > self.night or night > self.night:
                        continue
                    for case in about.cases:
                        self.known[start:, node, case] = level.effect

    def _judge_groups(self) -> None:
        for about in [i for i in self.incidents if i.scope == "group" and i.is_open]:
            self._follow_group(about)
        if self.noise is None or len(self.names) < 6:
            return
        if self.groups is None:
            self.groups = candidate_groups(self.facts)
        for _ in range(3):
            explained = {
                each.subject
                for each in self.incidents
                if each.scope == "group" and each.state in (incidents.OPEN, incidents.ACCEPTED)
            }
            left = self.left(nights=WINDOW)
            values = self.project(left)
            healthy = self.baseline.nights > 0
            results = slow_group(
                self.groups,
                self.changes,
                values,
                self.noise,
                self.baseline.nights,
                healthy & (self.free_from < self.night - 2),
                GROUP_ERROR,
                self.least,
                self.night,
                explained,
            )
            if results is None:
                return
            group, subset, nights = results
            self._open_group(group, subset, nights, left)

    def _open_group(
        self, group: FactGroup, subset: int, nights: dict[int, int], left: Floats
    ) -> None:
        """nights: the number of last nights that concern each member."""
        by_node = np.full((len(nights), len(self.keys)), np.nan)
        for row, (node, count) in enumerate(nights.items()):
            by_node[row] = quiet_median(left[-count:, node])
        effects = quiet_median(by_node)
        cases = self.slow_cases(effects, self.subsets[subset])
        level = float(self.over(effects[None], cases)[0])
        began = self.night - max(nights.values()) + 1
        members = tuple(self.names[n] for n in group.members.tolist())
        assert self.noise is not None
        scale = float(np.median(self.noise.scale[group.members, subset]))
        width = 1.645 * _OF_MEDIAN * scale / math.sqrt(sum(nights.values()) or 1)
        changed = group.changed
        if not group.staged:
            changed = self.changed_on(set(group.members.tolist()), began)
        name = group.names[0]
        facts = {"changed": changed, "staged": group.staged}
        new = self.open("group", name, members, began, (level, width), cases, **facts)
        for node, about in self.open_nodes().items():
            if node in nights and about.began >= began - _COINCIDES:
                self.revise(
                    about,
                    "explained",
                    began,
                    why=new.id,
                    state=incidents.EXPLAINED,
                    ended=self.night,
                )
        self._apply_groups()

    def _follow_group(self, about: Incident) -> None:
        members = self.members_of(about)
        if not members:
            levels = (*about.levels, Level(self.night, 0.0))
            self.revise(
                about,
                "closed",
                self.night,
                levels=levels,
                state=incidents.CLOSED,
                ended=self.night,
            )
            return
        index = [node for node, _ in members]
        left = self.times[:, index].astype(np.float64) - self.fleet[:, None, :] - self.usual[index]
        for row, (_, night) in enumerate(members):
            if about.staged:
                left[: self.nights_back(night), row] = np.nan
        present = np.isfinite(self.times).any(axis=2).sum(axis=1)
        count = np.isfinite(left).any(axis=2).sum(axis=1)
        rest = present - count
        cases = np.isin(np.arange(len(self.keys)), about.cases)
        of_nodes = np.stack([self.over(left[:, row], cases) for row in range(len(index))], axis=1)
        # Of the means over the cases: the error of a median over the nodes is then known.
        median = quiet_median(of_nodes, axis=1)
        # What nearly all nodes share looks like the night.
        median[rest * 3 < present] = np.nan
        used = (count > 0) & (rest * 3 >= present)
        used[: self.nights_back(about.since)] = False
        share = float((1 / count[used] + 1 / rest[used]).mean()) if used.any() else 1.0
        series = np.repeat(median[:, None], len(self.keys), axis=1)
        self.follow(about, series, index[0], _OF_MEDIAN * math.sqrt(share))
        if about.staged:
            names = tuple(self.names[n] for n in index)
            self.revise(next(i for i in self.incidents if i.id == about.id), nodes=names)
        self._apply_groups()

    def accept(self, which: str, by: str, why: str) -> None:
        """Makes incidents usual: that of this id, or those with this change (``nccl=2.27.7``)."""
        name, _, value = which.partition("=")
        for about in list(self.incidents):
            changed = any(
                text.startswith(f"{name} ") and text.endswith(f"-> {value}")
                for text in about.changed
            )
            named = which in (about.id, about.subject) or (bool(value) and changed)
            if not (about.is_open and named):
                continue
            self.revise(about, "accepted", about.since, by, why, state=incidents.ACCEPTED)
            cases = list(about.cases)
            if about.scope == "node":
                node = self.names.index(about.subject)
                self.usual[node, cases] += about.effect
                self.free_from[node] = self.night + 1
            elif about.scope == "fleet":
                self.fleet_usual[cases] += about.effect
                self.fleet_free_from = self.night + 1
