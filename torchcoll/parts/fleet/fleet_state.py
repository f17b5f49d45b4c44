"""What the model of a fleet knows: the times of the last nights, what is usual, and the noise.

The assumptions are on top of ``fleet_model.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torchcoll.core.units import format_size
from torchcoll.parts.fleet.groups import FactChange, FactGroup
from torchcoll.parts.fleet.incident import SLOW, Incident, IncidentRecord
from torchcoll.parts.fleet.noise import (
    Floats,
    Ints,
    NoiseBaseline,
    SeriesNoise,
    clipped_mean,
    quiet_median,
)
from torchcoll.parts.fleet.panel import FIRST_CALL
from torchcoll.parts.fleet.records import CaseKey
from torchcoll.stats.distributions import t_quantile

NIGHTS = 64  # that the model remembers
THRESHOLD = 0.03  # the smallest slowdown that is reported
FEWEST_NIGHTS, MOST_NIGHTS, LAG = 7, 28, 7  # of the usual of a node
FEWEST_PEERS = 3  # fewer other nodes say nothing about the night
_COINCIDES = 1  # night
_LARGE = 1 << 20
_ALIKE = 0.8  # shared part of the cases that are slower and the cases that a name stands for


@dataclass(frozen=True)
class Subset:
    """Cases that may be slow together. name: in words, ``''`` for all."""

    name: str
    cases: npt.NDArray[np.bool_]


def subsets_of(keys: Sequence[CaseKey]) -> list[Subset]:
    """All cases, each collective, and the large sizes; each set of cases once."""
    collectives = [key.case.collective for key in keys]
    large = np.array([key.case.size_bytes >= _LARGE for key in keys], dtype=bool)
    subsets = [Subset("", np.ones(len(keys), dtype=bool))]
    named = [
        (name, np.array([c == name for c in collectives])) for name in dict.fromkeys(collectives)
    ]
    for name, cases in (*named, ("1M and more", large), ("less than 1M", ~large)):
        if cases.any() and not any((cases == has_usual.cases).all() for has_usual in subsets):
            subsets.append(Subset(name, cases))
    return subsets


def _grown(values: npt.NDArray[Any], shape: tuple[int, ...], fill: float) -> npt.NDArray[Any]:
    new = np.full(shape, fill, dtype=values.dtype)
    new[tuple(slice(0, size) for size in values.shape)] = values
    return new


class FleetState:
    """The state after the last night. threshold: smallest slowdown, such as 0.03.

    N nodes, C cases, S subsets of cases, M = 64 nights of which the last is ``night``.
    """

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self.least = math.log1p(threshold)
        self.night = -1
        self.nights = 0  # that had a run
        self.names: list[str] = []
        self.keys: list[CaseKey] = []
        self.facts: list[Mapping[str, str]] = []
        self.changes: list[FactChange] = []
        self.incidents: list[Incident] = []
        self.records: list[IncidentRecord] = []
        self.subsets: list[Subset] = []
        self.times = np.full((NIGHTS, 0, 0), np.nan, dtype=np.float32)
        self.known = np.zeros((NIGHTS, 0, 0), dtype=np.float32)
        self.fleet = np.full((NIGHTS, 0), np.nan)
        self.usual = np.full((0, 0), np.nan)
        self.weights, self.fleet_usual = np.zeros(0), np.zeros(0)
        self.seen, self.first, self.free_from = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self.baseline = NoiseBaseline.empty(0, 1)
        self.fleet_baseline = NoiseBaseline.empty(1, 1)
        self.fleet_free_from = 0
        self.noise: SeriesNoise | None = None
        self.fleet_noise: SeriesNoise | None = None
        self.groups: list[FactGroup] | None = None

    @property
    def first_calls(self) -> bool:
        """Whether the cases are first calls."""
        return bool(self.keys) and self.keys[0].statistic == FIRST_CALL

    def grow(self, names: Sequence[str], keys: Sequence[CaseKey]) -> None:
        """Makes room for nodes and cases that were not there before."""
        new_names = [name for name in names if name not in set(self.names)]
        new_keys = [key for key in keys if key not in set(self.keys)]
        if not new_names and not new_keys:
            return
        self.names += new_names
        self.keys += new_keys
        count, cases = len(self.names), len(self.keys)
        self.facts += [{} for _ in new_names]
        self.times = _grown(self.times, (NIGHTS, count, cases), np.nan)
        self.known = _grown(self.known, (NIGHTS, count, cases), 0)
        self.fleet = _grown(self.fleet, (NIGHTS, cases), np.nan)
        self.usual = _grown(self.usual, (count, cases), np.nan)
        usual_weight = float(np.median(self.weights)) if len(self.weights) else 1.0
        self.weights = _grown(self.weights, (cases,), usual_weight)
        self.seen = _grown(self.seen, (count,), 0)
        self.first = _grown(self.first, (count,), self.night + 1)
        self.free_from = _grown(self.free_from, (count,), 0)
        self.fleet_usual = _grown(self.fleet_usual, (cases,), 0)
        self.subsets = subsets_of(self.keys)
        self.baseline = self.baseline.grown(count, len(self.subsets))
        self.fleet_baseline = self.fleet_baseline.grown(1, len(self.subsets))
        self.noise = self.fleet_noise = self.groups = None

    def append(self, times: npt.NDArray[Any]) -> None:
        for name, last in (("times", times), ("known", 0.0), ("fleet", np.nan)):
            values = getattr(self, name)
            values[:-1] = values[1:]
            values[-1] = last

    def note_facts(self, facts: Sequence[Mapping[str, str] | None]) -> None:
        for node, new in enumerate(facts):
            if new is None or new is self.facts[node]:
                continue
            old = self.facts[node]
            for name in {*old} & {*new}:
                if old[name] != new[name]:
                    change = FactChange(node, self.night, name, old[name], new[name])
                    self.changes.append(change)
            self.facts[node] = new
            self.groups = None
        self.changes = [each for each in self.changes if each.night > self.night - NIGHTS]

    def nights_back(self, night: int) -> int:
        """The index of a night among those that the model remembers."""
        return max(0, NIGHTS - 1 - (self.night - night))

    def bootstrap(self) -> bool:
        """What the nodes shared in the first nights, once half of the nodes have 7 nights; False
        before that.
        """
        enough = self.seen >= FEWEST_NIGHTS
        if not enough.any() or enough.sum() * 2 < (self.seen > 0).sum():
            return False
        times = self.times.astype(np.float64)
        usual = quiet_median(times)
        if len(self.names) > FEWEST_PEERS:
            fleet = quiet_median(times - usual, axis=1)
            self.fleet = fleet - quiet_median(fleet)
        else:
            self.fleet = np.where(np.isfinite(times).any(axis=1), 0.0, np.nan)
        left = times - self.fleet[:, None, :]
        left = left - quiet_median(left)
        spread = quiet_median(np.abs(left), axis=(0, 1))
        spread = np.where(np.isfinite(spread), spread, np.inf)
        smallest = max(1e-6, float(np.median(spread)) / 3)
        self.weights = 1 / np.maximum(spread, smallest) ** 2
        return True

    def project(self, left: npt.NDArray[Any]) -> Floats:
        """The weighted means [..., S] of case values [..., C] over the subsets of cases."""
        matrix = np.stack([self.weights * subset.cases for subset in self.subsets], axis=1)
        present = np.isfinite(left)
        with np.errstate(invalid="ignore", divide="ignore"):
            sums = np.where(present, left, 0.0) @ matrix
            return np.asarray(sums / (present.astype(np.float64) @ matrix))

    def left(self, nodes: Any = slice(None), nights: int = NIGHTS) -> Floats:
        """Log times without usual, night and groups [nights, nodes, C]."""
        times = self.times[-nights:, nodes].astype(np.float64) - self.known[-nights:, nodes]
        return np.asarray(times - self.fleet[-nights:, None, :] - self.usual[nodes])

    def open_nodes(self) -> dict[int, Incident]:
        number = {name: n for n, name in enumerate(self.names)}
        return {
            number[each.subject]: each
            for each in self.incidents
            if each.is_open and each.scope == "node" and each.kind == SLOW
        }

    def estimate_night(self) -> None:
        """What the nodes share tonight, in each case."""
        left = self.times[-1].astype(np.float64) - self.known[-1] - self.usual
        healthy = np.isfinite(left).any(axis=1)
        count = int(healthy.sum())
        if count <= FEWEST_PEERS:
            self.fleet[-1] = np.where(np.isfinite(self.times[-1]).any(axis=0), 0.0, np.nan)
            return
        suspected = np.zeros(len(left), dtype=bool)
        suspected[list(self.open_nodes())] = True
        suspected |= self.known[-1].any(axis=1)
        if (healthy & ~suspected).sum() * 3 >= count:
            healthy &= ~suspected
        over_all = self.project(left)[:, 0]
        before = self.fleet[:-1][np.isfinite(self.fleet[:-1]).any(axis=1)]
        if len(before) and self.noise is not None:
            yesterday = float(self.project(before[-1:])[0, 0])
            scale = float(np.median(self.noise.scale[:, 0]))
            near = healthy & (over_all < yesterday + max(2.5 * scale, self.least / 2))
            far = healthy & ~near
            share = near.sum() / healthy.sum()
            if 0.34 <= share < 1 and far.sum() >= FEWEST_PEERS:
                apart = float(np.median(over_all[far]) - np.median(over_all[near]))
                if apart > 4.5 * scale:
                    healthy = near
        self.fleet[-1] = quiet_median(left[healthy])

    def learn(self) -> Ints:
        """The usual times of nodes that have had no incident, from up to 28 of their nights.

        Returns the nodes that have usual times for the first time.
        """
        new = np.zeros(0, dtype=np.int64)
        blamed = {each.subject for each in self.incidents if each.scope == "node"}
        frozen = np.array([name in blamed for name in self.names], dtype=bool)
        present = np.isfinite(self.times).any(axis=2) & np.isfinite(self.fleet).any(axis=1)[:, None]
        held = present.sum(axis=0)
        wanted = np.clip(self.seen - LAG, FEWEST_NIGHTS, MOST_NIGHTS)
        wanted[(self.seen < FEWEST_NIGHTS) | (held < self.seen)] = 0
        growing = wanted > self.baseline.nights
        chosen = np.flatnonzero(growing & ~(frozen & (self.baseline.nights > 0)))
        if len(chosen):
            number = np.cumsum(present[:, chosen], axis=0)
            used = present[:, chosen] & (number <= wanted[chosen])
            left = self.times[:, chosen].astype(np.float64) - self.known[:, chosen]
            left -= self.fleet[:, None, :]
            left[~used] = np.nan
            usual = clipped_mean(left)
            usual[np.isfinite(left).sum(axis=0) < FEWEST_NIGHTS - 2] = np.nan
            new = chosen[self.baseline.nights[chosen] == 0]
            self.usual[chosen] = usual
            self.baseline.update(chosen, self.project(left - usual))
            self.noise = SeriesNoise.of(self.baseline)
        elif self.noise is None:
            self.noise = SeriesNoise.of(self.baseline)
        self.learn_new_cases(frozen)
        self.learn_fleet()
        return new

    def learn_new_cases(self, frozen: npt.NDArray[np.bool_]) -> None:
        """Usual times of cases that the fleet began to measure later."""
        has_usual = self.baseline.nights > 0
        missing = (
            np.isnan(self.usual) & np.isfinite(self.times[-1]) & (has_usual & ~frozen)[:, None]
        )
        if not missing.any():
            return
        for case in np.flatnonzero(missing.any(axis=0)).tolist():
            nights = np.isfinite(self.fleet[:, case])
            if nights.sum() < FEWEST_NIGHTS:
                continue
            chosen = np.flatnonzero(missing[:, case])
            left = (self.times[:, chosen, case] - self.fleet[:, None, case])[:, :, None]
            usual = clipped_mean(left)[:, 0]
            enough = np.isfinite(left[:, :, 0]).sum(axis=0) >= FEWEST_NIGHTS
            self.usual[chosen[enough], case] = usual[enough]

    def learn_fleet(self) -> None:
        present = np.isfinite(self.fleet).any(axis=1)
        seen = int(present.sum())
        wanted = min(max(seen - LAG, FEWEST_NIGHTS), MOST_NIGHTS)
        changed = any(each.scope == "fleet" for each in self.incidents)
        has_usual = int(self.fleet_baseline.nights[0])
        if seen < FEWEST_NIGHTS or wanted <= has_usual or (changed and has_usual):
            return
        if has_usual and seen == NIGHTS:  # its first nights are forgotten
            return
        used = present & (np.cumsum(present) <= wanted)
        left = np.where(used[:, None], self.fleet, np.nan)
        usual = clipped_mean(left)
        self.fleet_usual = np.where(np.isfinite(usual), usual, 0.0)
        self.fleet_baseline.update(np.array([0]), self.project(left - usual)[:, None, :])
        self.fleet_noise = SeriesNoise.of(self.fleet_baseline)

    def noise_of(self, node: int) -> tuple[Floats, Floats, int, Floats]:
        """Scale [S], degrees [S], nights of the usual, factors; node -1 is the fleet."""
        noise = self.fleet_noise if node < 0 else self.noise
        baseline = self.fleet_baseline if node < 0 else self.baseline
        assert noise is not None
        index = max(node, 0)
        return (
            noise.scale[index],
            noise.degrees[index],
            max(int(baseline.nights[index]), 1),
            noise.factors,
        )

    def night_error(self) -> Floats:
        """The standard error of a night [S], which is a median over the nodes."""
        assert self.noise is not None
        return np.asarray(1.25 * np.median(self.noise.scale, axis=0) / math.sqrt(len(self.names)))

    def cases_over_nights(self, node: int) -> Floats:
        """Deviations from the usual [M, C] of a node, or of the fleet (-1)."""
        if node < 0:
            return self.fleet - self.fleet_usual
        return self.left(slice(node, node + 1))[:, 0]

    def over(self, left: Floats, cases: npt.NDArray[np.bool_]) -> Floats:
        """The weighted mean over these cases [M]."""
        weight = np.where(np.isfinite(left), self.weights * cases, 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(
                np.where(weight > 0, left * weight, 0.0).sum(axis=1) / weight.sum(axis=1)
            )

    def slow_cases(self, effects: Floats, results: Subset) -> npt.NDArray[np.bool_]:
        """The cases that are slower: a subset where it fits, otherwise each by itself."""
        has_usual = np.isfinite(effects)
        within = effects[results.cases & has_usual]
        top = float(np.median(within[within >= np.median(within)])) if len(within) else 0.0
        slow = has_usual & (effects > max(top / 2, self.least / 2))
        best, likeness = results, 0.0
        for subset in self.subsets:
            cases = subset.cases & has_usual
            shared = (cases & slow).sum() / max((cases | slow).sum(), 1)
            if shared > likeness + 1e-9:
                best, likeness = subset, shared
        return (
            best.cases & has_usual
            if likeness >= _ALIKE
            else (slow if slow.any() else results.cases)
        )

    def where(self, cases: npt.NDArray[np.bool_]) -> str:
        for subset in self.subsets:
            if (subset.cases == cases).all():
                name = subset.name or self._all_cases()
                return f"first calls of {name}" if self.first_calls else name
        names = [
            f"{key.case.collective} {format_size(key.case.size_bytes)}"
            for key, slow in zip(self.keys, cases.tolist(), strict=True)
            if slow
        ]
        text = ", ".join(names) if len(names) <= 3 else f"{len(names)} of {len(self.keys)} cases"
        return f"first calls of {text}" if self.first_calls else text

    def _all_cases(self) -> str:
        collectives = {key.case.collective for key in self.keys}
        if len(self.keys) == 1:
            return f"{self.keys[0].case.collective} {format_size(self.keys[0].case.size_bytes)}"
        return "all collectives" if len(collectives) > 1 else f"{min(collectives)}"

    def width(self, node: int, subset: int, nights: int) -> float:
        """Half of the 90 % interval of a level that so many nights have."""
        scale, degrees, of_usual, factors = self.noise_of(node)
        nights = max(1, min(nights, len(factors) - 1))
        variance = factors[nights] / nights + factors[min(of_usual, 64)] / of_usual
        return t_quantile(0.95, degrees[subset]) * float(scale[subset]) * math.sqrt(variance)

    def subset_of(self, cases: npt.NDArray[np.bool_]) -> int:
        likeness = [(s.cases & cases).sum() / (s.cases | cases).sum() for s in self.subsets]
        return int(np.argmax(likeness))

    def changed_on(self, nodes: set[int], night: int) -> tuple[str, ...]:
        """Facts that changed on most of these nodes at that time and not on most of the others."""
        where: dict[tuple[str, str, str], set[int]] = {}
        for change in self.changes:
            if abs(change.night - night) <= _COINCIDES:
                where.setdefault((change.name, change.old, change.new), set()).add(change.node)
        rest = max(1, len(self.names) - len(nodes))
        return tuple(
            f"{name.removeprefix('label=')} {old} -> {new}"
            for (name, old, new), results in sorted(where.items())
            if len(results & nodes) * 2 > len(nodes)
            and (len(results - nodes) * 2 <= rest or len(nodes) * 2 > len(self.names))
        )
