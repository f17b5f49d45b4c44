"""A year of a thousand nodes: false alarms of `torchcoll history`, and what it finds.

    python tests/benchmarks/fleet.py healthy,steps [--noise a,b,c] [--sigma 0.5,2]
        [--recorded FOLDER] [--nodes 1000] [--years 10] [--panels 8] [--seed 100]

1,000 nodes in racks of 8, 365 nights, 10 cases, threshold 1 %. Sigma is the standard deviation from
night to night of a node's effect, over all cases together, without the fleet's night effect. Noise:
(a) normal, independent; (b) Student t with 4 degrees of freedom, correlation 0.5 from night to
night and between cases (a Gaussian copula); (c) blocks of 30 nights of a recorded series of runs,
scaled to sigma, each node with blocks of its own (--recorded: result files of at least 200 runs).
Each night adds an effect of the whole fleet, normal with sigma / 4. The first 30 nights are good.

Parts:
    healthy       openings of incidents in healthy years, read once at the end of the year
    first-nights  the same in the first 90 nights, with `history` run after every night, while the
                  baseline still grows: new openings of each night are added up
    drain         nodes that are ever on the drain list of `fleet` in healthy years
    steps         steps of 3, 5 and 8 sigma of single nodes, and others: 50 nodes at once in a
                  panel, at most one in a rack, from the same night on. `history` reads the nights
                  up to the seventh after the step only, as it would on that night.
    changes       what takes months: creep, flapping, bad nights, missing nights, new nodes
    fleet         racks, a third of the fleet, fleet-wide steps with changed versions, a rollout:
                  one change in a panel, read on the seventh night of it (14th for the rollout).
                  The kernel of all nodes changes 5 to 20 nights earlier, without an effect.

The error rates in `fleet/changes_over_time.py` were fixed with --seed 100; results that
are kept come from other seeds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from scipy import stats

from torchcoll.core.case import Case
from torchcoll.parts.fleet.changes_over_time import history_of
from torchcoll.parts.fleet.node_report import DRAIN_NIGHTS, SLOW_NIGHTS
from torchcoll.parts.fleet.panel import Panel
from torchcoll.parts.fleet.records import CaseKey
from torchcoll.parts.fleet.series import format_night
from torchcoll.parts.fleet.slow_nodes import Peers, judge_peers

NIGHTS, CASES, THRESHOLD, WEEK, RACK = 365, 10, 0.01, 7, 8
GOOD_NIGHTS, PLANTED, BLOCK = 30, 50, 30
FIRST_NIGHT = 20_000
SOME_CASES = (1, 4, 7)
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


def share(hits, of):
    """With the 95 % interval of Clopper and Pearson."""
    if not of:
        return "-"
    interval = stats.binomtest(int(hits), int(of)).proportion_ci()
    return f"{hits / of:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def rate(count, exposure):
    """Events per unit, with the 95 % interval of a Poisson count."""
    low = stats.chi2.ppf(0.025, 2 * count) / 2 if count else 0.0
    high = stats.chi2.ppf(0.975, 2 * count + 2) / 2
    return f"{count / exposure:.2f} ({low / exposure:.2f} to {high / exposure:.2f})"


def date(night):
    return format_night(FIRST_NIGHT + int(night))


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
    """Makes panels. noise: a, b or c. recorded: [runs, cases] log times of (c), about 0."""

    def __init__(self, nodes, noise, sigma, recorded=None):
        self.nodes, self.noise, self.sigma, self.recorded = nodes, noise, sigma, recorded
        self.racks = np.arange(nodes) // RACK
        self.names = tuple(f"node{number:04}" for number in range(nodes))

    def noise_of(self, random, nights):
        shape = (nights, self.nodes, CASES)
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
        # The blocks of a node begin at nights of its own, not all with the year.
        phase = random.integers(0, BLOCK, self.nodes)
        number = (np.arange(nights)[:, None] + phase) // BLOCK
        within = (np.arange(nights)[:, None] + phase) % BLOCK
        begins = random.integers(0, len(self.recorded) - BLOCK + 1, (number.max() + 1, self.nodes))
        values = self.recorded[begins[number, np.arange(self.nodes)] + within]
        return values * (self.sigma / self.recorded.mean(axis=1).std())

    def panel(self, random, nights=NIGHTS, added=None, environment=None, environments=None):
        """added: log time that is planted, [T, N] or [T, N, C]."""
        log_times = self.noise_of(random, nights)
        log_times += (self.sigma / 4) * random.standard_normal((nights, 1, 1))
        log_times += random.normal(0, 0.02, (1, self.nodes, CASES)) + np.linspace(10, 15, CASES)
        if added is not None:
            log_times += added[:, :, None] if added.ndim == 2 else added
        if environment is None:
            environments = [{"label=rack": f"r{rack}"} for rack in range(self.racks.max() + 1)]
            environment = np.tile(self.racks.astype(np.int32), (nights, 1))
        return Panel(
            "GPU",
            8,
            FIRST_NIGHT,
            self.names,
            KEYS,
            log_times.astype(np.float32),
            environment,
            environments,
        )

    def one_per_rack(self, random, count=PLANTED):
        """Nodes of different racks, so that no group is slow."""
        racks = random.choice(self.nodes // RACK, count, replace=False)
        return racks * RACK + random.integers(0, RACK, count)


def count_alarms(incidents):
    """Openings of incidents of each scope. Several openings of a flapping node count each."""
    alarms = Counter()
    for incident in incidents:
        scope = incident.scope if incident.scope == "node" else "group"
        alarms[scope] += incident.openings
    return alarms


def healthy(fleet, options):
    for title, years, missing in (
        ("healthy years", options.years, 0.0),
        ("with 20 % of nights missing", (options.years + 1) // 2, 0.2),
    ):
        alarms, kinds = Counter(), Counter()
        begun = time.perf_counter()
        for year in range(years):
            random = np.random.default_rng(options.seed + year)
            panel = leave_out(fleet.panel(random), random, missing)
            history = history_of(panel, THRESHOLD)
            alarms += count_alarms(history.incidents)
            for incident in history.incidents:
                kinds[f"{incident.scope} {incident.kind}"] += incident.openings
        seconds = (time.perf_counter() - begun) / years
        text = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"
        print(
            f"  {title} ({years}): node alarms per 1,000 node-years "
            f"{rate(alarms['node'], years * fleet.nodes / 1000)}; group or fleet alarms per "
            f"fleet-year {rate(alarms['group'], years)}; {seconds:.1f} s a year; {text}",
            flush=True,
        )


def leave_out(panel, random, missing):
    """The panel, with this share of the nights of each node missing."""
    if missing:
        gone = random.random(panel.log_times.shape[:2]) < missing
        panel.log_times[gone] = np.nan
        panel.environment[gone] = -1
    return panel


def first_nights(fleet, options, last=90):
    """New openings of each night, while the baseline grows from 5 nights to 30."""
    alarms, early = Counter(), Counter()
    fleets = options.fleets
    for number in range(fleets):
        panel = fleet.panel(np.random.default_rng(options.seed + 3000 + number), last)
        for nights in range(8, last + 1):
            seen = Panel(
                panel.device_name,
                panel.ranks,
                panel.first_night,
                panel.nodes,
                panel.keys,
                panel.log_times[:nights],
                panel.environment[:nights],
                panel.environments,
            )
            tonight = date(nights - 1)
            new = [i for i in history_of(seen, THRESHOLD).incidents if i.detected == tonight]
            alarms += Counter("node" if i.scope == "node" else "group" for i in new)
            if nights <= GOOD_NIGHTS:
                early += Counter("node" if i.scope == "node" else "group" for i in new)
    node_years = fleets * fleet.nodes / 1000 * last / 365
    print(
        f"  nights 1 to {last} of {fleets} fleets, read every night: node alarms per 1,000 "
        f"node-years {rate(alarms['node'], node_years)}; group or fleet alarms per fleet-year "
        f"{rate(alarms['group'], fleets * last / 365)}; {early['node']} of {alarms['node']} node "
        f"alarms in the first {GOOD_NIGHTS} nights",
        flush=True,
    )


def drain(fleet, options):
    """Nodes that `fleet` calls slow in 3 of 5 nights, at any time of the year. Without labels."""
    drained, named = 0, 0
    for year in range(options.drain_years):
        panel = fleet.panel(np.random.default_rng(options.seed + 4000 + year))
        slow = np.zeros((NIGHTS, fleet.nodes), dtype=bool)
        facts = ({},) * fleet.nodes
        for night in range(NIGHTS):
            log_times = panel.log_times[night].astype(float)
            peers = Peers("GPU", 8, panel.nodes, KEYS, log_times, facts)
            for item in judge_peers(peers, THRESHOLD, 0.01).slow:
                if item.effect > 0:
                    slow[night, int(item.node[4:])] = True
        named += int(slow.sum())
        several = np.array(
            [slow[n : n + DRAIN_NIGHTS].sum(axis=0) >= SLOW_NIGHTS for n in range(NIGHTS)]
        )
        drained += int(several.any(axis=0).sum())
    years = options.drain_years
    print(
        f"  drain list: nodes per 1,000 node-years {rate(drained, years * fleet.nodes / 1000)} "
        f"({drained} in {years} fleet-years); `fleet` named {named} nodes in "
        f"{years * NIGHTS} reports",
        flush=True,
    )


def steps(fleet, options):
    """What is found on the seventh night of it."""
    sigma = fleet.sigma
    kinds = [(f"step of {size} sigma", size * sigma, None, None) for size in (3, 5, 8)]
    kinds += [
        (f"step of {size} sigma after 30 nights", size * sigma, None, GOOD_NIGHTS)
        for size in (3, 5)
    ]
    kinds += [
        (f"{percent} % slow in 3 of 10 cases", np.log1p(percent / 100), SOME_CASES, None)
        for percent in (4, 8)
    ]
    kinds += [("step of 5 sigma, 20 % of nights missing", 5 * sigma, None, None)]
    for title, size, cases, start in kinds:
        within, dated, right, delays, planted, others = 0, 0, 0, [], 0, 0
        for number in range(options.panels):
            random = np.random.default_rng(options.seed + 1000 + number)
            night = start or int(random.integers(GOOD_NIGHTS, NIGHTS - WEEK + 1))
            nodes = fleet.one_per_rack(random)
            added = np.zeros((night + WEEK, fleet.nodes, CASES))
            added[night:, nodes[:, None], list(cases or range(CASES))] = size
            panel = fleet.panel(random, night + WEEK, added)
            leave_out(panel, random, 0.2 if "missing" in title else 0.0)
            of_node, of_group = {}, set()
            for incident in history_of(panel, THRESHOLD).incidents:
                if incident.detected < date(night):
                    continue
                if incident.scope == "node":
                    of_node.setdefault(incident.nodes[0], incident)
                else:
                    of_group |= {*(incident.nodes or fleet.names)}
            names = {fleet.names[node] for node in nodes}
            planted += len(names)
            others += len({*of_node} - names)
            for name in names & (of_node.keys() | of_group):
                within += 1
                if name in of_node:
                    right += 1
                    dated += date(night - 1) <= of_node[name].began <= date(night + 1)
                    first = [n for n in range(WEEK) if date(night + n) == of_node[name].detected]
                    delays.append(first[0] + 1)
        middle = f"{np.median(delays):.0f}" if delays else "-"
        print(
            f"  {title} ({np.expm1(size):.1%}): found within 7 nights {share(within, planted)}, "
            f"median on night {middle}; right node {share(right, within)}; date within a night "
            f"{share(dated, right)}; {others} other nodes",
            flush=True,
        )


def changes(fleet, options):
    """Single nodes, over the whole year, 50 at once."""
    for title in (
        "creep of 0.02 % a night",
        "flapping: +8 % every other week",
        "flapping: +8 % for 2 nights of 10",
        "one bad night, +30 %",
        "a week of missing nights",
        "node replaced",
    ):
        detected, kinds, planted, gone_named, false, delays = 0, Counter(), 0, 0, 0, []
        for number in range(options.panels):
            random = np.random.default_rng(options.seed + 5000 + number)
            night = int(random.integers(40, 200))
            nodes = fleet.one_per_rack(random)
            since = np.arange(NIGHTS) - night
            added = np.zeros((NIGHTS, fleet.nodes))
            course = np.zeros(NIGHTS)
            if title.startswith("creep"):
                course[night:] = 0.0002 * since[night:]
            elif "other week" in title:
                course[(since >= 0) & (since // WEEK % 2 == 0)] = np.log(1.08)
            elif "flapping" in title:
                course[(since >= 0) & (since % 10 < 2)] = np.log(1.08)
            elif "bad night" in title:
                course[night] = np.log(1.3)
            added[:, nodes] += course[:, None]
            panel = fleet.panel(random, added=added)
            if "missing" in title or "replaced" in title:
                stop = night + WEEK if "missing" in title else NIGHTS
                panel.log_times[night:stop, nodes] = np.nan
                panel.environment[night:stop, nodes] = -1
            if "replaced" in title:
                # The new node takes the place of another one that is removed: its series begins.
                new = (nodes // RACK) * RACK + (nodes + 1) % RACK
                panel.log_times[:night, new] = np.nan
                panel.environment[:night, new] = -1
            history = history_of(panel, THRESHOLD)
            names = {fleet.names[node] for node in nodes}
            if "replaced" in title:
                gone_named += len(names & {node for node, _ in history.gone})
                names |= {fleet.names[node] for node in new}
            planted += len(names)
            first = {}
            for incident in sorted(history.incidents, key=lambda i: i.detected):
                if incident.scope == "node" and incident.nodes[0] in names:
                    if incident.detected >= date(night):
                        first.setdefault(incident.nodes[0], incident)
                else:
                    false += incident.openings
            detected += len(first)
            for incident in first.values():
                kinds[incident.kind] += 1
                number_of = next(n for n in range(NIGHTS) if date(n) == incident.detected)
                delays.append(number_of - night + 1)
        spread = np.percentile(delays, [10, 50, 90]).astype(int).tolist() if delays else "-"
        text = f"{share(gone_named, planted // 2)} named as gone; " if "replaced" in title else ""
        print(
            f"  {title}: {text}nodes with an alarm {share(detected, planted)}, on night "
            f"(10th, 50th, 90th percentile) {spread}; kinds {dict(kinds)}; other alarms "
            f"{false / options.panels:.1f} a year",
            flush=True,
        )


def environments_of(fleet, nights, changed_at, facts, decoy):
    """environment [T, N] and environments of racks of 8 in two halls, where ``facts`` change at the
    night changed_at[node] of each node, and the kernel of all in the night ``decoy``.
    """
    count = fleet.racks.max() + 1
    third = {rack for rack in range(count) if (rack + 1) * RACK <= fleet.nodes // 3}
    environments = []
    for kernel in ("6.8", "6.11"):
        for new in (False, True):
            versions = {name: "2" if new and name in facts else "1" for name in ("nccl", "driver")}
            for rack in range(count):
                labels = {"label=rack": f"r{rack}", "label=hall": "A" if rack in third else "B"}
                environments.append({**labels, **versions, "kernel": kernel})
    now = np.arange(nights)[:, None]
    index = fleet.racks[None, :] + count * (now >= changed_at[None, :]) + 2 * count * (now >= decoy)
    return index.astype(np.int32), environments


def fleet_changes(fleet, options):
    """One change in a panel."""
    kinds = {
        "fleet-wide step of 2 %, one version changed": ("fleet", ("nccl",)),
        "fleet-wide step of 2 %, two versions changed together": ("fleet", ("nccl", "driver")),
        "fleet-wide step of 2 %, no version changed": ("fleet", ()),
        "rollout of one version over a week, 2 %": ("staged", ("nccl",)),
        "a rack of 8 nodes 2 % slow": ("group", ()),
        "a third of the fleet 2 % slow": ("group", ()),
    }
    for title, (scope, facts) in kinds.items():
        found, named, one_of_two, delays, dated, other = 0, 0, 0, [], 0, Counter()
        panels = options.fleet_panels
        for number in range(panels):
            random = np.random.default_rng(options.seed + 2000 + number)
            night = int(random.integers(50, 100))
            nights = night + (2 * WEEK if scope == "staged" else WEEK)
            decoy = night - int(random.integers(5, 21))
            added = np.zeros((nights, fleet.nodes))
            changed_at = np.full(fleet.nodes, night if facts else NIGHTS)
            nodes = np.arange(fleet.nodes)
            if scope == "staged":
                changed_at = night + random.integers(0, WEEK, fleet.nodes)
            elif title.startswith("a rack"):
                nodes = RACK * int(random.integers(fleet.nodes // RACK)) + np.arange(RACK)
            elif title.startswith("a third"):
                nodes = nodes[: fleet.nodes // 3 // RACK * RACK]
            begins = changed_at if scope == "staged" else np.full(fleet.nodes, night)
            late = np.arange(nights)[:, None] >= begins[None, nodes]
            added[:, nodes] = np.log(1.02) * late
            environment, environments = environments_of(fleet, nights, changed_at, facts, decoy)
            panel = fleet.panel(random, nights, added, environment, environments)
            incidents = history_of(panel, THRESHOLD).incidents
            expected = {fleet.names[node] for node in nodes}
            hits = [
                incident
                for incident in incidents
                if incident.scope == scope
                and (not incident.nodes or {*incident.nodes} == expected)
                and incident.detected >= date(night)
            ]
            other += Counter(
                incident.scope
                for incident in incidents
                if incident not in hits and incident.detected >= date(night)
            )
            if hits:
                found += 1
                changed = {text.split()[0] for text in hits[0].changed}
                named += changed == {*facts}
                one_of_two += len(facts) == 2 and len(changed) == 1
                dated += date(night - 1) <= hits[0].began <= date(night + 1)
                delays.append(
                    next(n for n in range(nights) if date(n) == hits[0].detected) - night + 1
                )
        middle = f"{np.median(delays):.0f}" if delays else "-"
        text = f"; only one of the two named {share(one_of_two, found)}" if len(facts) == 2 else ""
        of_facts = f"; facts named exactly {share(named, found)}{text}" if scope != "group" else ""
        rest = ", ".join(f"{count} {name}" for name, count in other.items()) or "none"
        print(
            f"  {title}: found {share(found, panels)}, median on night {middle}; date within a "
            f"night {share(dated, found)}{of_facts}; other incidents in {panels} panels: {rest}",
            flush=True,
        )


PARTS = {
    "healthy": healthy,
    "first-nights": first_nights,
    "drain": drain,
    "steps": steps,
    "changes": changes,
    "fleet": fleet_changes,
}


def read_recorded(folder):
    """Log times [runs, cases] about the median of each case, in the order of the runs."""
    from torchcoll.parts.fleet.sources import summaries_of

    summaries = summaries_of([str(folder)])
    order = np.argsort(summaries.start_us)
    table = np.full((len(summaries), len(summaries.keys)), np.nan)
    rank = np.empty(len(order), dtype=int)
    rank[order] = np.arange(len(order))
    table[rank[summaries.run], summaries.key] = np.log(summaries.time_ns)
    table = table[np.isfinite(table).all(axis=1)][:, :CASES]
    return table - np.median(table, axis=0)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="?", default="healthy,steps", help=", ".join(PARTS))
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--years", type=int, default=10, help="healthy years")
    parser.add_argument("--fleets", type=int, default=4, help="of first-nights")
    parser.add_argument("--drain-years", type=int, default=2)
    parser.add_argument("--panels", type=int, default=8, help="with 50 planted nodes each")
    parser.add_argument("--fleet-panels", type=int, default=100, help="with one change each")
    parser.add_argument("--noise", default="a,b")
    parser.add_argument("--sigma", default="0.5,2", help="per cent")
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--seed", type=int, default=100)
    options = parser.parse_args()
    print(f"fleet.py {' '.join(sys.argv[1:])}")
    recorded = read_recorded(options.recorded) if options.recorded else None
    if recorded is not None:
        mean = recorded.mean(axis=1) - recorded.mean()
        following = float((mean[1:] * mean[:-1]).sum() / (mean**2).sum())
        print(
            f"recorded: {len(recorded)} runs of {recorded.shape[1]} cases; mean of the cases: "
            f"standard deviation {mean.std():.1%}, from run to run correlation {following:.2f}"
        )
    for noise in options.noise.split(","):
        for percent in options.sigma.split(","):
            fleet = Fleet(options.nodes, noise, float(percent) / 100, recorded)
            print(f"noise {noise}, sigma {percent} %, {options.nodes} nodes", flush=True)
            for part in options.parts.split(","):
                PARTS[part](fleet, options)


if __name__ == "__main__":
    main()
