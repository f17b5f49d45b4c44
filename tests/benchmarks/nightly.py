"""Does `torchcoll nightly` describe the lives of nodes rightly, every night?

    python tests/benchmarks/nightly.py lives [--fleets 100] [--nodes 48] [--noise normal,t4]
    python tests/benchmarks/nightly.py healthy [--fleets 100] [--noise normal,t4,correlated]
    python tests/benchmarks/nightly.py power [--fleets 20]
    python tests/benchmarks/nightly.py otava --otava-python PYTHON [--fleets 20] [--noise normal,t4]
    python tests/benchmarks/nightly.py year
    python tests/benchmarks/nightly.py postgresql
    python tests/benchmarks/nightly.py views [--fleets 17]

Fleets of `tests/made_lives.py` are replayed night by night with the default threshold of 3 %, and
what the model says after each night is compared with the truth.

    lives     for each kind of life: what is found within 7 nights, dated within a night; levels
              within their 90 % interval; nights in which a fault of a week ago is not open
    healthy   incidents of nodes in 1,000 node-years, of groups and of the fleet in a fleet-year
    power     share of faults that are found within 7 nights, by nodes, nights and missing nights
    otava     the same series read by Apache Otava (apache-otava, in an environment of its own)
    year      time and memory of `torchcoll nightly` for a store of 365 nights of 1,000 nodes
    postgresql  time of a night for a PostgreSQL store of 100 nights of 1,000 nodes
    views     contradictions between the views of a night (night_views.py)
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from made_fleet import made_summaries
from made_lives import ALL, FIRST_NIGHT, KINDS, LARGE, Fault, Life, made_life, step
from night_views import views
from postgres_server import running_server

from torchcoll.parts.fleet.address import parse_address
from torchcoll.parts.fleet.fleet_model import FleetModel
from torchcoll.parts.fleet.incident import Incident, IncidentRecord
from torchcoll.parts.fleet.night_judgements import nights_of_panel
from torchcoll.parts.fleet.panel import Panel
from torchcoll.parts.fleet.writer import StoreWriter

THRESHOLD, WEEK = 0.03, 7
AGES = (3, 7, 14)  # of a level, in nights
RISES = ("opened", "relapsed", "worse")


def share(hits: int, of: int) -> str:
    """With the 95 % interval of Clopper and Pearson."""
    if not of:
        return "-"
    interval = stats.binomtest(int(hits), int(of)).proportion_ci()
    return f"{100 * hits / of:.0f} % ({100 * interval.low:.0f} to {100 * interval.high:.0f})"


def rate(count: int, exposure: float) -> str:
    """Events per unit, with the 95 % interval of a Poisson count."""
    low = stats.chi2.ppf(0.025, 2 * count) / 2 if count else 0.0
    high = stats.chi2.ppf(0.975, 2 * count + 2) / 2
    return f"{count / exposure:.1f} ({low / exposure:.1f} to {high / exposure:.1f})"


def about(incident: Incident | IncidentRecord, fault: Fault) -> bool:
    """Whether an incident is that of a fault."""
    subject = (
        incident.subject if isinstance(incident, Incident) else incident.incident.split("@")[0]
    )
    if fault.scope == "fleet":
        return subject in ("", "fleet")
    if fault.subject.startswith("nccl=") and subject == fault.subject:
        return True
    return subject == fault.subject


def named_right(incident: Incident, fault: Fault, panel: Panel) -> bool:
    """Whether an incident of a group or of the fleet names its nodes and what changed with it."""
    changed = ("nccl 2.27.5 -> 2.27.7",) if fault.subject.startswith("nccl=") else ()
    return incident.changed == changed and {*incident.nodes} <= {
        panel.nodes[n] for n in fault.nodes
    }


def judge(life: Life, threshold: float) -> Counter[str]:
    """Replays a life and counts what is right and wrong, every night."""
    tally: Counter[str] = Counter()
    panel = life.panel
    model = FleetModel(threshold)
    nights = len(panel.log_times)
    levels = [fault.levels(nights) for fault in life.faults]
    faults = [number for number, level in enumerate(levels) if (level > 0).sum() > 1]
    found: set[tuple[int, int]] = set()
    for day, said in nights_of_panel(model, panel, {}):
        night = day - FIRST_NIGHT
        for record in said:
            if record.event not in RISES:
                continue
            owners = [n for n in faults if about(record, life.faults[n])]
            since = record.since - FIRST_NIGHT
            true = [n for n in owners if levels[n][max(0, since - 3) : night + 1].any()]
            if not true:
                subject = record.incident.split("@")[0]
                members = [
                    n
                    for n in faults
                    if subject in panel.nodes
                    and panel.nodes.index(subject) in life.faults[n].nodes
                    and levels[n][max(0, since - 3) : night + 1].any()
                    and life.faults[n].by_node.get(panel.nodes.index(subject), 0) <= night
                ]
                # The first nodes of a group are slow before the group has three of them.
                what = "early" if members else "node" if subject in panel.nodes else "group"
                tally[f"false {what}"] += 1
        open_now = [i for i in model.incidents if i.is_open]
        for number in faults:
            fault, level = life.faults[number], levels[number]
            for event in fault.events:
                began = event.night
                if fault.creep:  # found after it has grown to what is reported
                    began = int(np.argmax(level > np.log1p(threshold)))
                if event.what not in RISES or night != began + WEEK - 1:
                    continue
                tally["events"] += 1
                tally["group events"] += fault.scope != "node"
                hits = [
                    r
                    for r in model.records
                    if r.event in RISES
                    and about(r, fault)
                    and event.night <= r.night - FIRST_NIGHT <= night
                ]
                if hits:
                    found.add((number, event.night))
                    tally["found"] += 1
                    incident = next(i for i in model.incidents if i.id == hits[0].incident)
                    if fault.scope != "node":
                        tally["named right"] += named_right(incident, fault, panel)
                    if fault.creep:
                        continue
                    since = hits[0].since - FIRST_NIGHT
                    tally["dates"] += 1
                    tally["exact"] += abs(since - event.night) <= 1
                    # The date is an interval if the nights before it have no run.
                    unseen = max(x.unseen for x in incident.levels if x.night == hits[0].since)
                    tally["dated"] += since - unseen - 1 <= event.night <= since + 1
            for event in fault.events:
                if event.what == "closed" and night == event.night + WEEK - 1:
                    if (number, fault.events[0].night) not in found:
                        continue
                    tally["ends"] += 1
                    of_fault = [i for i in model.incidents if about(i, fault)]
                    ended = [i for i in of_fault if i.ended is not None]
                    tally["ended"] += bool(ended)
                    tally["end dated"] += any(
                        abs((i.ended or 0) - FIRST_NIGHT - event.night) <= 1 for i in ended
                    )
            mine = [i for i in open_now if about(i, fault)]
            week = level[max(0, night - WEEK + 1) : night + 1]
            rises = [e.night for e in fault.events if e.what in RISES and e.night <= night]
            was_found = bool(rises) and (number, rises[-1]) in found
            if (week > 0).all() and len(week) == WEEK and was_found:
                tally["lasting nights"] += 1
                tally["forgotten"] += not mine
            if level[night] == 0 and not (week > 0).any():
                tally["ghosts"] += bool(mine)
            if mine and level[night] > 0 and not fault.creep:
                steady = (level[mine[0].since - FIRST_NIGHT : night + 1] == level[night]).all()
                # At three ages of a level: nights in a row hold nearly the same level.
                if steady and night - (mine[0].since - FIRST_NIGHT) in AGES:
                    tally["levels"] += 1
                    tally["covered"] += mine[0].low <= level[night] <= mine[0].high
    tally["node-nights"] = nights * len(panel.nodes)
    tally["nights"] = nights
    return tally


HEADS = (
    "life",
    "found in 7 nights",
    "dated within a night",
    "with the nights without a run",
    "ends found and dated",
    "group, nodes and change right",
    "level in interval",
    "forgotten",
    "ghosts",
    "false node/group, node before its group",
)


def covered(tallies: Sequence[Counter[str]]) -> str:
    """Levels in their interval, with the 95 % interval over the fleets: the levels of a fleet are
    alike.
    """
    counts = np.array([[tally["covered"], tally["levels"]] for tally in tallies], dtype=float)
    hits, of = counts.sum(axis=0)
    if not of:
        return "-"
    error = 196 * np.sqrt(((counts[:, 0] - hits / of * counts[:, 1]) ** 2).sum()) / of
    middle = 100 * hits / of
    return f"{middle:.1f} % ({middle - error:.1f} to {min(middle + error, 100.0):.1f})"


def line(name: str, tallies: Sequence[Counter[str]]) -> str:
    tally = sum(tallies, Counter())
    cells = (
        name,
        share(tally["found"], tally["events"]),
        share(tally["exact"], tally["dates"]),
        share(tally["dated"], tally["dates"]),
        share(tally["end dated"], tally["ends"]),
        share(tally["named right"], tally["group events"]),
        covered(tallies),
        f"{tally['forgotten']} of {tally['lasting nights']}",
        str(tally["ghosts"]),
        f"{tally['false node']}/{tally['false group']}, {tally['false early']}",
    )
    return " | ".join(cells)


def tallies_of(
    options: argparse.Namespace, kind: str, noise: str, missing: float
) -> list[Counter[str]]:
    tallies = []
    for seed in range(options.fleets):
        random = np.random.default_rng([options.seed, 5, KINDS.index(kind), seed])
        sizes = (options.nodes, options.nights, options.sigma, options.sigmas, options.quiet)
        life = made_life(kind, random, *sizes, noise=noise, missing=missing)
        tallies.append(judge(life, options.threshold))
    return tallies


def false_alarms(tallies: Sequence[Counter[str]]) -> str:
    tally = sum(tallies, Counter())
    years = tally["node-nights"] / 365_000
    return (
        f"{1000 * years:.0f} node-years: nodes {rate(tally['false node'], years)}; groups and "
        f"fleet {rate(tally['false group'], tally['nights'] / 365)}"
    )


def lives(options: argparse.Namespace) -> None:
    for noise, missing in itertools.product(options.noise, options.missing):
        print(
            f"\n{options.fleets} fleets a kind, {options.nodes} nodes, {options.nights} nights, "
            f"faults of {options.sigmas:g} sigma of {100 * options.sigma:g} % after "
            f"{options.quiet} nights or more, noise {noise}, "
            f"{100 * missing:.0f} % of the nights missing"
        )
        print(" | ".join(HEADS))
        everything: list[Counter[str]] = []
        for kind in options.kinds or KINDS:
            tallies = tallies_of(options, kind, noise, missing)
            everything += tallies
            print(line(kind, tallies), flush=True)
        print(line("all", everything))
        print("false alarms in 1,000 node-years and in a fleet-year:", false_alarms(everything))


def healthy(options: argparse.Namespace) -> None:
    print("\nincidents of nodes in 1,000 node-years; of groups or the fleet in a fleet-year")
    for noise, missing in itertools.product(options.noise, options.missing):
        tallies = tallies_of(options, "healthy", noise, missing)
        print(
            f"{options.fleets} fleets of {options.nodes} nodes and {options.nights} nights, "
            f"noise {noise}, {100 * missing:.0f} % missing, {false_alarms(tallies)}",
            flush=True,
        )


def power(options: argparse.Namespace) -> None:
    """Faults of nodes, found within 7 nights. In fleets of 48 and more, each fleet has several
    faulty nodes, at most 1 in 16."""
    print(f"{options.fleets} faults a figure; a node's night varies by 1 % (sigma)")
    faults = ((0.05, ALL), (0.08, ALL), (np.log(1.15), LARGE))
    print("missing | nodes | nights before | 5 % | 8 % | 15 % at 1M and more")
    for missing in options.missing:
        for nodes in options.sizes:
            for quiet in options.before:
                each = max(1, min(options.fleets, nodes // 48))  # faulty nodes of a kind in a fleet
                tallies: list[Counter[str]] = [Counter() for _ in faults]
                groups = [range(3)] if nodes >= 48 else [[n] for n in range(3)]
                for group in groups:
                    for seed in range(-(-options.fleets // each)):
                        random = np.random.default_rng([options.seed, 2, seed])
                        chosen = random.permutation(nodes)[: each * len(group)].tolist()
                        planted = [
                            step(
                                faults[kind][0],
                                int(random.integers(quiet, quiet + 10)),
                                subject=f"node{node:03}",
                                nodes=(node,),
                                cases=faults[kind][1],
                            )
                            for node, kind in zip(chosen, [*group] * each, strict=True)
                        ]
                        options_of = {"noise": options.noise[0], "missing": missing}
                        life = made_life(
                            "healthy", random, nodes, quiet + 17, faults=planted, **options_of
                        )
                        for kind, (hits, of) in found_of(life, group).items():
                            tallies[kind]["found"] += hits
                            tallies[kind]["of"] += of
                cells = [f"{100 * t['found'] / t['of']:.0f} %" for t in tallies]
                print(
                    " | ".join((f"{100 * missing:.0f} %", str(nodes), str(quiet), *cells)),
                    flush=True,
                )


def found_of(life: Life, group: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Found faults and all faults of each kind, whose faults take turns in ``life``."""
    model = FleetModel(THRESHOLD)
    for _ in nights_of_panel(model, life.panel, {}):
        pass
    results = {}
    for turn, kind in enumerate(group):
        mine = life.faults[turn :: len(group)]
        hits = 0
        for fault in mine:
            begin = FIRST_NIGHT + fault.events[0].night
            rises = [r for r in model.records if r.event in RISES and about(r, fault)]
            hits += any(begin <= r.night < begin + WEEK for r in rises)
        results[kind] = (hits, len(mine))
    return results


OTAVA = """
import json, sys
import numpy as np
from otava.analysis import compute_change_points
settings = [float(text) for text in sys.argv[2:]]
results = []
for series in np.load(sys.argv[1])["series"]:
    kept = np.flatnonzero(np.isfinite(series))
    of_settings = []
    for p in settings:
        points, _ = compute_change_points(list(np.exp(series[kept])), 50, p, 0.03)
        of_settings.append([[int(kept[c.index]), c.stats.mean_2 / c.stats.mean_1] for c in points])
    results.append(of_settings)
print(json.dumps(results))
"""


def otava(options: argparse.Namespace) -> None:
    """Apache Otava reads the mean of each node over the cases, without the night's median."""
    settings = (1e-3, 3.2e-5, 1e-6)
    lives_of = (("step", 5), ("relapse", 8), ("1M and more alone", 15), ("healthy", 0))
    print(
        f"{options.fleets} fleets a kind, {options.nodes} nodes, 52 nights, read once after "
        "the last night; found: a slower level within 7 nights of the fault, dated: within one"
    )
    print("noise | life | program | found | dated | false alarms in 1,000 node-years")
    for noise in options.noise:
        for kind, sigmas in lives_of:
            names = ["torchcoll", *(f"Otava p {p:g}" for p in settings)]
            tallies = {name: Counter() for name in names}
            for seed in range(options.fleets):
                random = np.random.default_rng([options.seed, 3, seed])
                quiet = 15 if kind == "relapse" else 30
                life = made_life(
                    kind, random, options.nodes, 52, sigmas=sigmas, quiet=quiet, noise=noise
                )
                model = FleetModel(THRESHOLD)
                for _ in nights_of_panel(model, life.panel, {}):
                    pass
                rises: dict[str, list[tuple[str, int]]] = {name: [] for name in names}
                for record in model.records:
                    if record.event in RISES and record.incident.startswith("node"):
                        night = record.since - FIRST_NIGHT
                        rises["torchcoll"].append((record.incident.split("@")[0], night))
                times = life.panel.log_times.mean(axis=2)
                series = (times - np.median(times, axis=1, keepdims=True)).T.astype(float)
                with tempfile.TemporaryDirectory() as folder:
                    np.savez(f"{folder}/series.npz", series=series)
                    arguments = [f"{folder}/series.npz", *map(str, settings)]
                    command = [options.otava_python, "-c", OTAVA, *arguments]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                for node, of_settings in zip(
                    life.panel.nodes, json.loads(done.stdout), strict=True
                ):
                    for name, points in zip(names[1:], of_settings, strict=True):
                        rises[name] += [(node, night) for night, ratio in points if ratio > 1]
                for name in names:
                    compare_rises(life, rises[name], tallies[name])
            years = options.fleets * options.nodes * 52 / 365_000
            for name, tally in tallies.items():
                found = share(tally["found"], tally["events"])
                dated = share(tally["dated"], tally["events"])
                print(
                    " | ".join((noise, kind, name, found, dated, rate(tally["false"], years))),
                    flush=True,
                )


def compare_rises(life: Life, rises: Sequence[tuple[str, int]], tally: Counter[str]) -> None:
    events = [(f.subject, e.night) for f in life.faults for e in f.events if e.what in RISES]
    for subject, night in events:
        off = [abs(of - night) for node, of in rises if node == subject]
        tally["events"] += 1
        tally["found"] += any(each < WEEK for each in off)
        tally["dated"] += any(each <= 1 for each in off)
    for node, of in rises:
        tally["false"] += not any(node == subject and abs(of - n) < WEEK for subject, n in events)


_NIGHT_RUNS = """INSERT INTO runs SELECT id + :n * 1000, run_id || '-' || :n, path, file_sha256,
    node, hosts, ranks, device_name, start_us + :n * 86400000000, received_us, collected_us, status,
    exit_code, wall_s, environment_id, labels, case_count FROM runs WHERE id <= 1000"""
_NIGHT_CASES = """INSERT INTO cases (run, case_key, repeat, status, reason, size_bytes, verified,
    calls, time_ns, first_call_ns)
    SELECT run + :n * 1000, case_key, repeat, status, reason, size_bytes, verified, calls,
    time_ns * (1 + 0.0001 * (random() % 100)), first_call_ns * (1 + 0.002 * (random() % 100))
    FROM cases WHERE run <= 1000"""


def year_store(path: str) -> int:
    """Writes an SQLite store of 365 nights of 1,000 nodes; returns the number of cases of a run."""
    first = list(made_summaries(1000))
    firsts = [
        (run, [replace(case, first_call_ns=50 * case.time_ns) for case in cases])
        for run, cases in first
    ]
    StoreWriter(parse_address(path, new=True)).write(firsts)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("SELECT max(id) FROM runs").fetchone() == (1000,)
        for night in range(1, 365):
            connection.execute(_NIGHT_RUNS, {"n": night})
            connection.execute(_NIGHT_CASES, {"n": night})
    return len(firsts[0][1])


def year(options: argparse.Namespace) -> None:
    """A store of a year, read by one `torchcoll nightly`."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/store.sqlite"
        cases = year_store(path)
        megabytes = Path(path).stat().st_size >> 20
        command = [sys.executable, "-m", "torchcoll", "nightly", path, "--night", "last"]
        began = time.monotonic()
        done = subprocess.run([*command, "--format", "line"], capture_output=True, text=True)
        wall_s = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"365 nights of 1,000 nodes, {cases} cases, a store of {megabytes} MB: "
        f"{wall_s:.0f} s ({used.ru_utime + used.ru_stime:.0f} s CPU), peak "
        f"{used.ru_maxrss / 1024:.0f} MB, exit code {done.returncode}: {done.stdout.strip()}"
    )


def postgresql(options: argparse.Namespace) -> None:
    """A PostgreSQL store of 100 nights of 1,000 nodes: the first `torchcoll nightly`, and the one
    after a further night.
    """
    import psycopg

    def night_of(number: int) -> list[str]:
        of_postgresql = [
            text.replace("random() % 100", "floor(random() * 200 - 100)")
            for text in (_NIGHT_RUNS, _NIGHT_CASES)
        ]
        return [text.replace(":n", str(number)) for text in of_postgresql]

    with running_server() as url:
        store = f"{url}/postgres"
        StoreWriter(parse_address(store, new=True)).write(list(made_summaries(1000)))
        for first, last in ((1, 100), (100, 101)):
            with psycopg.connect(store) as connection:
                for number in range(first, last):
                    for statement in night_of(number):
                        connection.execute(statement)
            with psycopg.connect(store, autocommit=True) as connection:
                connection.execute("ANALYZE")
                (runs,) = connection.execute("SELECT count(*) FROM runs").fetchone()
            command = [sys.executable, "-m", "torchcoll", "nightly", store, "--night", "last"]
            began = time.monotonic()
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([*command, "--format", "line"], capture_output=True, text=True)
            wall_s = time.monotonic() - began
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
            print(
                f"{runs} runs, {last - first} new nights after the first: {wall_s:.1f} s "
                f"({cpu_s:.1f} s CPU), exit code {done.returncode}: {done.stdout.strip()}",
                flush=True,
            )


PARTS = {each.__name__: each for each in (lives, healthy, power, otava, year, postgresql, views)}


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--fleets", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=48)
    parser.add_argument("--nights", type=int, default=120)
    parser.add_argument("--sigmas", type=float, default=8)
    parser.add_argument("--sigma", type=float, default=0.01)
    parser.add_argument("--threshold", type=float, default=THRESHOLD)
    parser.add_argument("--quiet", type=int, default=45)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--noise", type=lambda text: text.split(","), default=["normal"])
    parser.add_argument(
        "--missing", type=lambda text: [float(x) for x in text.split(",")], default=[0.0]
    )
    parser.add_argument("--sizes", type=numbers, default=[4, 8, 16, 48, 128, 1000])
    parser.add_argument("--before", type=numbers, default=[5, 12, 20, 45, 90])
    parser.add_argument("--otava-python", default=sys.executable)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=None)
    options = parser.parse_args()
    print("$ python tests/benchmarks/nightly.py", " ".join(sys.argv[1:]))
    PARTS[options.part](options)


if __name__ == "__main__":
    main()
