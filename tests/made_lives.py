"""Fleets with the lives that nodes have: healthy, faults that come, grow, go and come again.

A life is a panel of log times (night x node x case) and the truth about it. Sigma is the standard
deviation of a node's night over all cases. Each case has noise of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from torchcoll.core.case import Case
from torchcoll.parts.fleet.panel import Panel
from torchcoll.parts.fleet.records import CaseKey

FIRST_NIGHT = 20_000
SIZES = (1 << 10, 32 << 10, 1 << 20)
COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
RACK = 8
KEYS = tuple(
    CaseKey(
        Case(collective, size, "float32", None, None, True, "synchronized", "nccl", "cuda"),
        8,
        "median",
        "host",
    )
    for collective in COLLECTIVES
    for size in SIZES
)
CASES = len(KEYS)
ALL = np.ones(CASES, dtype=bool)
ALL_TO_ALL = np.array([key.case.collective == "all_to_all" for key in KEYS])
LARGE = np.array([key.case.size_bytes >= 1 << 20 for key in KEYS])


@dataclass(frozen=True)
class Event:
    """What happens to somebody: a change of level. what: opened, worse, closed or relapsed."""

    night: int
    what: str
    level: float  # of log time, from this night on


@dataclass(frozen=True)
class Fault:
    """One story. scope: node, group or fleet. subject: a node, ``rack=r1`` or a version."""

    scope: str
    subject: str
    nodes: tuple[int, ...]
    cases: np.ndarray
    events: tuple[Event, ...]
    creep: float = 0.0  # log time a night, from the first event on
    by_node: dict[int, int] = field(default_factory=dict)  # night of a staged change

    def levels(self, nights: int) -> np.ndarray:
        values = np.zeros(nights)
        for event in self.events:
            values[event.night :] = event.level
        if self.creep:
            first = self.events[0].night
            values[first:] = self.creep * np.arange(1, nights - first + 1)
        return values


@dataclass(frozen=True)
class Life:
    kind: str
    panel: Panel
    faults: tuple[Fault, ...]


def _noise(random, shape, noise):
    """Standardised noise [T, ...]: normal, t4, or normal with a correlation of 0.5 a night."""
    normal = random.standard_normal(shape)
    if noise == "correlated":
        for night in range(1, shape[0]):
            normal[night] = 0.5 * normal[night - 1] + np.sqrt(0.75) * normal[night]
    if noise == "t4":
        return stats.t(4).ppf(stats.norm.cdf(normal)) / np.sqrt(2)
    return normal


def step(level, night, end=None, scope="node", subject="", nodes=(0,), cases=ALL):
    events = [Event(night, "opened", level)]
    if end is not None:
        events.append(Event(end, "closed", 0.0))
    return Fault(scope, subject, nodes, cases, tuple(events))


KINDS = (
    "healthy",
    "step",
    "creep",
    "relapse",
    "worse",
    "repair",
    "rack",
    "rack and node",
    "version staged",
    "version on a third",
    "fleet step",
    "fleet step before and after a node",
    "first weeks",
    "one bad night",
    "all_to_all alone",
    "1M and more alone",
)


def faults_of(kind, random, nodes, nights, sizes):
    """The faults of one fleet. sizes: (sigma, step in sigma, baseline nights)."""
    sigma, sigmas, quiet = sizes
    node, other = (int(n) for n in random.choice(nodes, 2, replace=False))
    level = sigma * sigmas
    begin = int(random.integers(quiet, quiet + 10))
    name = f"node{node:03}"
    of_node = {"subject": name, "nodes": (node,)}
    if kind == "step":
        return (step(level, begin, **of_node),)
    if kind == "creep":
        return (Fault("node", name, (node,), ALL, (Event(begin, "opened", 0.0),), 0.3 * sigma),)
    if kind in ("relapse", "repair"):
        events = [Event(begin, "opened", level), Event(begin + 10, "closed", 0.0)]
        if kind == "relapse":
            events.append(Event(begin + 25, "relapsed", level))
        return (Fault("node", name, (node,), ALL, tuple(events)),)
    if kind == "worse":
        events = (Event(begin, "opened", level), Event(begin + 20, "worse", 3 * level))
        return (Fault("node", name, (node,), ALL, events),)
    rack = int(random.integers(0, max(1, nodes // RACK)))
    members = tuple(range(rack * RACK, min(nodes, rack * RACK + RACK)))
    of_rack = {"scope": "group", "subject": f"rack=r{rack}", "nodes": members}
    if kind == "rack":
        return (step(level, begin, **of_rack),)
    if kind == "rack and node":
        outside = [n for n in range(nodes) if n not in members]
        other = int(random.choice(outside))
        own = {"subject": f"node{other:03}", "nodes": (other,)}
        return (step(level, begin, **of_rack), step(2 * level, begin, **own))
    version = {"scope": "group", "subject": "nccl=2.27.7"}
    if kind == "version staged":
        order = random.permutation(nodes)
        each = max(1, nodes // 16)
        by_node = {int(n): begin + i // each for i, n in enumerate(order)}
        opened = (Event(begin, "opened", level),)
        return (Fault("group", "nccl=2.27.7", tuple(by_node), ALL, opened, by_node=by_node),)
    if kind == "version on a third":
        third = tuple(sorted(int(n) for n in random.choice(nodes, nodes // 3, replace=False)))
        return (step(level, begin, nodes=third, **version),)
    fleet = {"scope": "fleet", "subject": "nccl=2.27.7", "nodes": tuple(range(nodes))}
    if kind == "fleet step":
        return (step(level, begin, **fleet),)
    if kind == "fleet step before and after a node":
        own = {"subject": f"node{node:03}", "nodes": (node,)}
        return (step(level, begin + 15, **fleet), step(level, begin, **own))
    if kind == "first weeks":
        return (step(level, 12, **of_node),)
    if kind == "one bad night":
        return tuple(
            step(0.15, int(t), int(t) + 1, subject=f"node{n:03}", nodes=(int(n),))
            for t, n in zip(*np.nonzero(random.random((nights, nodes)) < 0.01), strict=True)
        )
    if kind == "all_to_all alone":
        return (step(np.log(1.15), begin, cases=ALL_TO_ALL, **of_node),)
    if kind == "1M and more alone":
        return (step(np.log(1.15), begin, cases=LARGE, **of_node),)
    return ()


def made_life(
    kind,
    random,
    nodes=48,
    nights=120,
    sigma=0.01,
    sigmas=8,
    quiet=45,
    noise="normal",
    missing=0.0,
    faults=(),
):
    """quiet: nights before the first fault. missing: share of the nights that a node has no run.
    faults: in the place of those of the kind.
    """
    faults = tuple(faults) or faults_of(kind, random, nodes, nights, (sigma, sigmas, quiet))
    shape = (nights, nodes, CASES)
    common = _noise(random, shape[:2], noise)[:, :, None] * np.sqrt(0.9)
    alone = _noise(random, shape, noise) * np.sqrt(0.1 * CASES)
    times = sigma * (common + alone) + sigma / 2 * random.standard_normal((nights, 1, 1))
    times += random.normal(0, 0.02, (1, nodes, CASES)) + np.linspace(10, 15, CASES)
    values = [f"r{n // RACK}" for n in range(nodes)]
    versions = np.full((nights, nodes), 0)
    for fault in faults:
        levels = fault.levels(nights)
        for node in fault.nodes:
            own = levels.copy()
            if fault.by_node:
                own[: fault.by_node[node]] = 0
            times[:, node, :] += own[:, None] * fault.cases
            if fault.subject.startswith("nccl="):
                versions[own > 0, node] = 1
    if missing:
        times[random.random((nights, nodes)) < missing] = np.nan
    environments, numbers = [], {}
    environment = np.full((nights, nodes), -1, dtype=np.int32)
    for night in range(nights):
        for node in range(nodes):
            if np.isnan(times[night, node, 0]):
                continue
            key = (values[node], int(versions[night, node]))
            if key not in numbers:
                numbers[key] = len(environments)
                nccl = "2.27.7" if key[1] else "2.27.5"
                environments.append({"label=rack": key[0], "nccl": nccl, "kernel": "6.1"})
            environment[night, node] = numbers[key]
    names = tuple(f"node{n:03}" for n in range(nodes))
    panel = Panel(
        "GPU", 8, FIRST_NIGHT, names, KEYS, times.astype(np.float32), environment, environments
    )
    return Life(kind, panel, faults)
