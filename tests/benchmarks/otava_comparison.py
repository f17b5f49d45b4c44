"""Apache Otava, ruptures and a fixed threshold on the node series that `torchcoll history` judges.

    python tests/benchmarks/otava_comparison.py make SERIES.npz [--noise a,b,c] [--sigma 0.5]
        [--recorded FOLDER] [--seed 100] [--tune-seed 500]
    OTAVA/bin/python tests/benchmarks/otava_comparison.py judge SERIES.npz

Otava pins its own numpy, so that it lives in an environment of its own (pip install apache-otava):
`make` runs in the environment of torchcoll, prints what torchcoll and ruptures find and writes the
series; `judge` runs in that of Otava. A series is the mean log time of a node over its 10 cases,
made by `fleet.py`: 1,000 nodes, 365 nights, with the night effect of the fleet.

Alarms: changes to slower in a healthy year. torchcoll and the fixed threshold date an alarm when it
is raised, so that reading every night gives the same alarms. Otava and ruptures look at the whole
series, and are read once at the end of the year; for 300 nodes also every seventh night, where a
change counts unless one within a week of it has been seen before. Steps of 3, 5 and 8 sigma: 50
nodes at a time, read on the seventh night; found is a change to slower that is
dated within a week of the step (threshold rule: an alarm in the week of the step). "Equal alarms"
are settings that gave at most 12 alarms in 1,000 node-years of other seeds (--tune-seed).
"""

from __future__ import annotations

import argparse
import itertools
import sys

import numpy as np
from scipy import stats

WEEK, BASELINE, SIZES, PANELS, YEARS = 7, 30, (3, 5, 8), 8, 2
WEEKLY = 300  # nodes
ALLOWED = 12  # alarms in 1,000 node-years


def share(hits, of):
    if not of:
        return "-"
    interval = stats.binomtest(int(hits), int(of)).proportion_ci()
    return f"{hits / of:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def rate(alarms, node_years):
    """Per 1,000 node-years, with the 95 % interval of a Poisson count."""
    low = stats.chi2.ppf(0.025, 2 * alarms) / 2 if alarms else 0.0
    high = stats.chi2.ppf(0.975, 2 * alarms + 2) / 2
    scale = 1000 / node_years
    return f"{alarms * scale:.1f} ({low * scale:.1f} to {high * scale:.1f})"


def report(title, alarms, found):
    """found: by size of the step, (number found, number dated within a night)."""
    print(f"  {title}: alarms per 1,000 node-years {alarms}")
    for size, (hits, dated, steps) in found.items():
        print(
            f"      {size} sigma: found {share(hits, steps)}, dated {share(dated, hits)}",
            flush=True,
        )


def judged_steps(steps, find):
    """find(series) -> dates of changes to slower, as indexes of nights. steps: by size."""
    found = {}
    for size, (table, starts) in steps.items():
        hits = dated = 0
        for series, start in zip(table.T, starts.tolist(), strict=True):
            near = [d - start for d in find(series[: start + WEEK]) if abs(d - start) <= WEEK]
            hits += bool(near)
            dated += any(abs(distance) <= 1 for distance in near)
        found[size] = (hits, dated, len(starts))
    return found


def tuned(settings, find, healthy):
    """The first setting, from sensitive to insensitive, with at most the allowed alarms."""
    allowed = ALLOWED * healthy.shape[1] / 1000
    low, high = 0, len(settings) - 1  # alarms fall along the settings: bisection
    while low < high:
        middle = (low + high) // 2
        if sum(len(find(series, settings[middle])) for series in healthy.T) <= allowed:
            high = middle
        else:
            low = middle + 1
    return settings[low]


def above_threshold(series, percent):
    """Nights in which the node rises over its own median of the first nights by this much."""
    slow = series > np.median(series[:BASELINE]) + np.log1p(percent / 100)
    slow[:BASELINE] = False
    return np.flatnonzero(slow[1:] & ~slow[:-1]) + 1


def otava_changes(series, setting):
    from otava.analysis import compute_change_points

    max_pvalue, min_magnitude = setting
    points, _ = compute_change_points(
        np.exp(series - series[0]).tolist(), max_pvalue=max_pvalue, min_magnitude=min_magnitude
    )
    return [point.index for point in points if point.stats.mean_2 > point.stats.mean_1]


def ruptures_changes(series, penalty):
    """Optimal cuts for changes of the mean (PELT's cost; KernelCPD has it in C). penalty: in
    log(nights) times the variance of a night.
    """
    import ruptures

    variance = (1.4826 * np.median(np.abs(np.diff(series)))) ** 2 / 2
    cost = penalty * np.log(len(series)) * variance
    ends = ruptures.KernelCPD("linear", min_size=2).fit(series).predict(pen=cost)
    bounds = [0, *ends]
    means = [series[a:b].mean() for a, b in itertools.pairwise(bounds)]
    return [end for end, a, b in zip(ends[:-1], means[:-1], means[1:], strict=True) if b > a]


def alarms_of_weekly_reading(series, find):
    seen = []
    for nights in range(BASELINE, len(series) + 1, WEEK):
        seen += [
            index
            for index in find(series[:nights])
            if all(abs(index - other) > WEEK for other in seen)
        ]
    return len(seen)


def judge_rules(name, find, default, settings, text, tuning, healthy, steps, weekly=0):
    """weekly: nodes whose series is read every seventh night too."""
    for title, setting in (
        (f"{name}, {text(default)}", default),
        (None, tuned(settings, find, tuning)),
    ):
        alarms = sum(len(find(series, setting)) for series in healthy.T)
        alarms = rate(alarms, healthy.shape[1])

        def find_with(series, setting=setting):
            return find(series, setting)

        if weekly:
            often = sum(alarms_of_weekly_reading(s, find_with) for s in healthy.T[:weekly])
            alarms += f"; read every seventh night {rate(often, weekly)}"
        title = title or f"{name} at equal alarms, {text(setting)}"
        report(title, alarms, judged_steps(steps, find_with))


def make(options):
    from fleet import GOOD_NIGHTS, NIGHTS, THRESHOLD, Fleet, count_alarms, date, read_recorded

    from torchcoll.fleet.changes_over_time import history_of

    recorded = read_recorded(options.recorded) if options.recorded else None
    tables = {}
    for noise in options.noise.split(","):
        fleet = Fleet(1000, noise, options.sigma / 100, recorded)
        tuning = fleet.panel(np.random.default_rng(options.tune_seed)).log_times.mean(axis=2)
        years, alarms = [], 0
        for year in range(YEARS):
            panel = fleet.panel(np.random.default_rng(options.seed + year))
            years.append(panel.log_times.mean(axis=2))
            alarms += count_alarms(history_of(panel, THRESHOLD).incidents)["node"]
        healthy = np.concatenate(years, axis=1)
        steps, found = {}, {}
        for size in SIZES:
            table = np.full((NIGHTS, 0), np.nan)
            starts, hits, dated = [], 0, 0
            for number in range(PANELS):
                random = np.random.default_rng(options.seed + 1000 + number)
                night = int(random.integers(GOOD_NIGHTS, NIGHTS - WEEK + 1))
                nodes = fleet.one_per_rack(random)
                added = np.zeros((night + WEEK, fleet.nodes))
                added[night:, nodes] = size * fleet.sigma
                panel = fleet.panel(random, night + WEEK, added)
                first = {}
                for incident in history_of(panel, THRESHOLD).incidents:
                    if incident.scope == "node" and incident.detected >= date(night):
                        first.setdefault(incident.nodes[0], incident)
                seen = [first[fleet.names[n]] for n in nodes if fleet.names[n] in first]
                hits += len(seen)
                dated += sum(date(night - 1) <= i.began <= date(night + 1) for i in seen)
                series = np.full((NIGHTS, len(nodes)), np.nan)
                series[: night + WEEK] = panel.log_times[:, nodes].mean(axis=2)
                table = np.concatenate([table, series], axis=1)
                starts += [night] * len(nodes)
            steps[size] = (table, np.array(starts))
            found[size] = (hits, dated, len(starts))
            tables[f"{noise}-{size}"], tables[f"{noise}-{size}-starts"] = steps[size]
        tables[f"{noise}-tuning"], tables[f"{noise}-healthy"] = tuning, healthy
        print(f"noise {noise}, sigma {options.sigma} %")
        report("torchcoll history, threshold 1 %", rate(alarms, healthy.shape[1]), found)
        judge_rules(
            "ruptures",
            ruptures_changes,
            2,
            [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128],
            lambda penalty: f"penalty {penalty} log(nights) variances",
            tuning,
            healthy,
            steps,
            weekly=WEEKLY,
        )
    np.savez(options.file, **tables)


def judge(options):
    import otava  # noqa: F401

    tables = np.load(options.file)
    for noise in dict.fromkeys(name.split("-")[0] for name in tables.files):
        steps = {s: (tables[f"{noise}-{s}"], tables[f"{noise}-{s}-starts"]) for s in SIZES}
        tuning, healthy = tables[f"{noise}-tuning"], tables[f"{noise}-healthy"]
        print(f"noise {noise}")
        judge_rules(
            "Otava",
            otava_changes,
            (0.001, 0.0),
            [(10.0 ** -(k / 2), 0.0) for k in range(6, 41)],
            lambda setting: f"max_pvalue {setting[0]:.2g}",
            tuning,
            healthy,
            steps,
            weekly=WEEKLY,
        )
        judge_rules(
            "fixed threshold",
            above_threshold,
            3.0,
            np.round(np.arange(0.1, 40, 0.1), 1).tolist(),
            lambda percent: f"{percent:g} %",
            tuning,
            healthy,
            steps,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("make", "judge"))
    parser.add_argument("file")
    parser.add_argument("--noise", default="a,b")
    parser.add_argument("--sigma", type=float, default=0.5, help="per cent")
    parser.add_argument("--recorded")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--tune-seed", type=int, default=500)
    options = parser.parse_args()
    print(f"otava_comparison.py {' '.join(sys.argv[1:])}")
    (make if options.action == "make" else judge)(options)


if __name__ == "__main__":
    main()
