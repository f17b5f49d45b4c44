"""A year of a thousand nodes: false alarms of `torchcoll history`, and what it finds.

    python tests/benchmarks/fleet.py [--nodes 1000] [--years 10] [--noise a,b,c] [--sigma 0.5,2]
        [--recorded FOLDER] [--seed 100]

365 nights, 10 cases. sigma is the standard deviation from night to night of a node's effect, over
all cases together, without the fleet's night effect. Noise: (a) normal, independent; (b) Student t
with 4 degrees of freedom, correlation 0.5 from night to night and between cases (a copula); (c)
blocks of 30 nights of a recorded series of runs, scaled to sigma (--recorded: result files of
at least 200 runs). A night effect of the whole fleet of sigma / 4 is added. The threshold is 1 %.

Healthy years count openings of incidents. Planted: each node has a step of 3 or 5 sigma in a random
night after the 40th; found is an incident of that node opened within 7 nights, its date is right
within one night. A fifth of the nodes at a time, so that the median node is healthy.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from scipy import stats

from torchcoll.core.case import Case
from torchcoll.fleet.changes_over_time import history_of
from torchcoll.fleet.nights import format_night
from torchcoll.fleet.panel import Panel
from torchcoll.store.records import CaseKey

NIGHTS, CASES, THRESHOLD = 365, 10, 0.01
FIRST_NIGHT = 20_000
KEYS = tuple(
    CaseKey(
        Case(collective, size, "float32", None, None, True, "synchronized", "nccl", "cuda"),
        8,
        "median",
        "host",
    )
    for collective in ("all_reduce", "all_gather")
    for size in (8, 64 << 10, 1 << 20, 16 << 20, 128 << 20)
)


def copula_t4(random, shape, correlation):
    """Standardised t4 values [T, ...] with this correlation from night to night."""
    normal = np.empty(shape)
    normal[0] = random.standard_normal(shape[1:])
    for night in range(1, shape[0]):
        normal[night] = correlation * normal[night - 1] + np.sqrt(
            1 - correlation**2
        ) * random.standard_normal(shape[1:])
    return stats.t(4).ppf(stats.norm.cdf(normal)) / np.sqrt(2)


class Fleet:
    """Makes panels. noise: a, b or c. recorded: [runs, cases] log times of (c), detrended."""

    def __init__(self, nodes, noise, sigma, recorded=None):
        self.nodes, self.noise, self.sigma, self.recorded = nodes, noise, sigma, recorded

    def noise_of(self, random):
        shape = (NIGHTS, self.nodes, CASES)
        if self.noise == "a":
            # What is common to the cases of a node and what is not, so that the mean of 10 cases
            # has the standard deviation sigma.
            common = random.standard_normal(shape[:2])[:, :, None] * np.sqrt(0.9)
            return self.sigma * (common + random.standard_normal(shape))
        if self.noise == "b":
            # Correlation 0.5 between cases: half of the variance is common.
            common = copula_t4(random, shape[:2], 0.5)[:, :, None] * np.sqrt(0.5)
            alone = copula_t4(random, shape, 0.5) * np.sqrt(0.5)
            return self.sigma / np.sqrt(0.55) * (common + alone)
        block = 30
        values = np.empty(shape)
        for start in range(0, NIGHTS, block):
            length = min(block, NIGHTS - start)
            begins = random.integers(0, len(self.recorded) - block, self.nodes)
            index = begins[None, :] + np.arange(length)[:, None]
            values[start : start + length] = self.recorded[index]
        return values * (self.sigma / self.recorded.mean(axis=1).std())

    def panel(self, random, added=None, environment=None, environments=None, facts=None):
        log_times = self.noise_of(random)
        log_times += (self.sigma / 4) * random.standard_normal((NIGHTS, 1, 1))
        log_times += random.normal(0, 0.02, (1, self.nodes, CASES)) + np.linspace(10, 15, CASES)
        if added is not None:
            log_times += added[:, :, None] if added.ndim == 2 else added
        if environment is None:
            racks = np.arange(self.nodes) // 8
            environments = [{"label=rack": f"r{rack}"} for rack in range(racks.max() + 1)]
            environment = np.tile(racks.astype(np.int32), (NIGHTS, 1))
        names = tuple(f"node{number:04}" for number in range(self.nodes))
        return Panel(
            "GPU",
            8,
            FIRST_NIGHT,
            names,
            KEYS,
            log_times.astype(np.float32),
            environment,
            environments,
        )


def healthy(fleet, years, seed):
    """Alarms of each scope per year, and the seconds of a year."""
    alarms = {"node": 0, "group": 0, "fleet": 0, "staged": 0}
    begun = time.perf_counter()
    for year in range(years):
        history = history_of(fleet.panel(np.random.default_rng(seed + year)), THRESHOLD)
        for incident in history.incidents:
            alarms[incident.scope] += 1
    return alarms, (time.perf_counter() - begun) / years


def planted(fleet, size, years, seed):
    """Of nodes with a step of ``size`` sigma: shares found within 7 nights, and dated right."""
    within, dated, nodes, delays = 0, 0, 0, []
    for year in range(years):
        random = np.random.default_rng(seed + year)
        chosen = random.choice(fleet.nodes, fleet.nodes // 5, replace=False)
        start = random.integers(40, NIGHTS - 8, len(chosen))
        added = np.zeros((NIGHTS, fleet.nodes))
        for node, night in zip(chosen, start, strict=True):
            added[night:, node] = size * fleet.sigma
        history = history_of(fleet.panel(random, added), THRESHOLD)
        first = {}
        for incident in history.incidents:
            if incident.scope == "node":
                first.setdefault(incident.nodes[0], []).append(incident)
        for node, night in zip(chosen, start, strict=True):
            nodes += 1
            date = format_night(FIRST_NIGHT + night)
            last = format_night(FIRST_NIGHT + night + 6)
            near = (format_night(FIRST_NIGHT + night - 1), format_night(FIRST_NIGHT + night + 1))
            hits = [i for i in first.get(f"node{node:04}", ()) if date <= i.detected <= last]
            if hits:
                within += 1
                dated += near[0] <= hits[0].began <= near[1]
    return within, dated, nodes, delays


def environments_of(fleet, random, changed_at, facts):
    """environment [T, N] and environments of racks of 8, where ``facts`` change at the night
    changed_at[node] of each node.
    """
    racks = np.arange(fleet.nodes) // 8
    count = racks.max() + 1
    old = {name: f"{name}-1" for name in ("nccl", "driver", "kernel")}
    new = {**old, **{name: f"{name}-2" for name in facts}}
    environments = [{"label=rack": f"r{rack}", **old} for rack in range(count)]
    environments += [{"label=rack": f"r{rack}", **new} for rack in range(count)]
    changed = np.arange(NIGHTS)[:, None] >= changed_at[None, :]
    return (racks[None, :] + count * changed).astype(np.int32), environments


def scenarios(fleet, years, seed):
    """What is found of changes other than steps of single nodes, one change a fleet-year."""
    kinds = {
        "fleet +2 %, one version changed": ("fleet", ("nccl",)),
        "fleet +2 %, two versions changed": ("fleet", ("nccl", "driver")),
        "fleet +2 %, nothing changed": ("fleet", ()),
        "rollout over a week, +2 %": ("staged", ("nccl",)),
        "a rack of 8 nodes +2 %": ("group", ()),
        "a third of the fleet +2 %, labelled": ("group", ()),
        "creep of 0.02 % a night, 1 node": ("node", ()),
        "flapping node, +8 % every other week": ("node", ()),
        "one bad night, +30 %": ("node", ()),
        "node slow in 3 of 10 cases, +8 %": ("node", ()),
    }
    for title, (scope, facts) in kinds.items():
        found, named, delays, other = 0, 0, [], 0
        for year in range(years):
            random = np.random.default_rng(seed + year)
            night = int(random.integers(40, 200))
            added = np.zeros((NIGHTS, fleet.nodes))
            changed_at = np.full(fleet.nodes, NIGHTS)
            nodes = [int(random.integers(fleet.nodes))]
            time_since = np.arange(NIGHTS) - night
            if title.startswith("fleet"):
                nodes = list(range(fleet.nodes))
                added[night:] = np.log(1.02)
                changed_at[:] = night if facts else NIGHTS
            elif title.startswith("rollout"):
                nodes = list(range(fleet.nodes))
                changed_at = night + random.integers(0, 7, fleet.nodes)
                added = np.log(1.02) * (np.arange(NIGHTS)[:, None] >= changed_at[None, :])
            elif title.startswith("a rack"):
                rack = int(random.integers(fleet.nodes // 8))
                nodes = list(range(8 * rack, 8 * rack + 8))
                added[night:, nodes] = np.log(1.02)
            elif title.startswith("a third"):
                nodes = list(range(fleet.nodes // 3))
                added[night:, nodes] = np.log(1.02)
            elif title.startswith("creep"):
                added[night:, nodes[0]] = 0.0002 * time_since[night:]
            elif title.startswith("flapping"):
                slow = (time_since >= 0) & (time_since // 7 % 2 == 0)
                added[slow, nodes[0]] = np.log(1.08)
            elif title.startswith("one bad"):
                added[night, nodes[0]] = np.log(1.3)
            if title.startswith("node slow"):
                cases = np.zeros((NIGHTS, fleet.nodes, CASES))
                cases[night:, nodes[0], [1, 4, 7]] = np.log(1.08)
                added = cases
            environment, environments = environments_of(fleet, random, changed_at, facts)
            if title.startswith("a third"):
                for item in environments:
                    item["label=hall"] = (
                        "A" if int(item["label=rack"][1:]) * 8 < len(nodes) else "B"
                    )
                # A third of the nodes ends within a rack of 8 otherwise.
                nodes = [n for n in range(fleet.nodes) if (n // 8) * 8 < fleet.nodes // 3]
                added[night:, nodes] = np.log(1.02)
            history = history_of(fleet.panel(random, added, environment, environments), THRESHOLD)
            expected = {f"node{number:04}" for number in nodes}
            hits = [
                incident
                for incident in history.incidents
                if incident.scope == scope
                and (not incident.nodes or {*incident.nodes} == expected)
                and incident.detected >= format_night(FIRST_NIGHT + night)
            ]
            if hits:
                found += 1
                changed = {text.split()[0] for text in hits[0].changed}
                named += changed == {*facts}
                delay = [
                    n for n in range(NIGHTS) if format_night(FIRST_NIGHT + n) == hits[0].detected
                ]
                delays.append(delay[0] - night)
            other += sum(incident not in hits for incident in history.incidents)
        middle = f"{np.median(delays):.0f} nights" if delays else "-"
        print(
            f"    {title}: found {share(found, years)}, median delay {middle}, facts named "
            f"right in {named} of {found}; other incidents {other / years:.1f} a year",
            flush=True,
        )


def share(hits, of):
    if not of:
        return "-"
    interval = stats.binomtest(hits, of).proportion_ci()
    return f"{hits / of:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def read_recorded(folder):
    from torchcoll.store.sources import summaries_of

    summaries = summaries_of([folder])
    order = np.argsort(summaries.start_us)
    table = np.full((len(summaries), len(summaries.keys)), np.nan)
    rank = np.empty(len(order), dtype=int)
    rank[order] = np.arange(len(order))
    table[rank[summaries.run], summaries.key] = np.log(summaries.time_ns)
    table = table[np.isfinite(table).all(axis=1)][:, :CASES]
    return table - np.median(table, axis=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--years", type=int, default=10)
    parser.add_argument("--noise", default="a,b")
    parser.add_argument("--sigma", default="0.5,2")
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--scenarios", type=int, default=0, metavar="YEARS")
    options = parser.parse_args()
    recorded = read_recorded(options.recorded) if options.recorded else None
    if recorded is not None:
        print(f"recorded: {len(recorded)} runs, {recorded.shape[1]} cases")
    print(f"{options.years} healthy fleet-years of {options.nodes} nodes, and years with steps")
    for noise in options.noise.split(","):
        for percent in options.sigma.split(","):
            fleet = Fleet(options.nodes, noise, float(percent) / 100, recorded)
            alarms, seconds = healthy(fleet, options.years, options.seed)
            node_years = options.years * options.nodes / 1000
            others = ", ".join(
                f"{scope} {alarms[scope] / options.years:.2f}"
                for scope in ("group", "fleet", "staged")
            )
            print(
                f"noise {noise} sigma {percent} %: node alarms {alarms['node'] / node_years:.1f} "
                f"per 1,000 node-years; {others} per fleet-year; {seconds:.0f} s a year",
                flush=True,
            )
            years = max(1, -(-400 // (options.nodes // 5)))
            for size in (3, 5):
                within, dated, nodes, _ = planted(fleet, size, years, options.seed + 1000)
                print(
                    f"    steps of {size} sigma: found within 7 nights {share(within, nodes)}; "
                    f"date right in {share(dated, within)} of them",
                    flush=True,
                )
            if options.scenarios:
                scenarios(fleet, options.scenarios, options.seed + 2000)


if __name__ == "__main__":
    main()
