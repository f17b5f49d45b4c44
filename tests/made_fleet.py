"""Fleets made by hand: one run per node and night, whose times are exactly what is planted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from made_runs import measured, run

from torchcoll.core.result import Run
from torchcoll.parts.fleet.records import CaseSummary, RunSummary, summarise_run

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
COLLECTIVES = ("all_reduce", "all_gather")
FIRST = datetime(2026, 10, 1, 22, tzinfo=timezone.utc)


def steady(node: int, night: int, case: int) -> float:
    """Every node the same: what is planted multiplies it."""
    return 1.0


Factors = Callable[[int, int, int], float]
Facts = Callable[[int, int], Mapping[str, str]]


def no_facts(node: int, night: int) -> Mapping[str, str]:
    return {}


def planned_times(
    nodes: int, nights: int, times: Factors, noise: float, seed: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Night, node and the times of its cases in ns."""
    generator = random.Random(seed)
    for night in range(nights):
        for node in range(nodes):
            level = generator.gauss(1, noise)
            cases = range(len(SIZES) * len(COLLECTIVES))
            factors = [level * generator.gauss(1, noise) * times(node, night, c) for c in cases]
            yield night, node, [int(1_000_000 * factor) for factor in factors]


def made_run(night: int, node: int, times_ns: list[int], labels: Facts, environment: Facts) -> Run:
    results = []
    for case, time_ns in enumerate(times_ns):
        collective = COLLECTIVES[case // len(SIZES)]
        size = SIZES[case % len(SIZES)]
        op = "sum" if collective == "all_reduce" else None
        results.append(measured(time_ns, collective=collective, size_bytes=size, op=op))
    start = FIRST + timedelta(days=night, seconds=node)
    return run(
        *results,
        hosts=[f"node{node:03}"],
        labels=dict(labels(node, night)),
        environment=dict(environment(node, night)),
        header={
            "run_id": f"{night:04}-{node:04}",
            "start_utc": start.strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
    )


def made_fleet(
    nodes: int,
    nights: int = 1,
    times: Factors = steady,
    labels: Facts = no_facts,
    environment: Facts = no_facts,
    noise: float = 0.002,
    seed: int = 7,
) -> list[Run]:
    """One run per node and night with 10 cases of about 1 ms.

    times: factor by node, night and case. noise: standard deviation of the node's and of each
    case's log time in a night.
    """
    planned = planned_times(nodes, nights, times, noise, seed)
    return [made_run(*each, labels, environment) for each in planned]


def made_summaries(
    nodes: int,
    nights: int = 1,
    times: Factors = steady,
    labels: Facts = no_facts,
    environment: Facts = no_facts,
    noise: float = 0.002,
    seed: int = 7,
) -> Iterator[tuple[RunSummary, tuple[CaseSummary, ...]]]:
    """The summaries of ``made_fleet``, ten times as fast for thousands of runs: only the first run
    with the same labels and environment is summarised, and the others differ from it in node, night
    and times.
    """
    templates: dict[str, tuple[RunSummary, tuple[CaseSummary, ...]]] = {}
    for night, node, times_ns in planned_times(nodes, nights, times, noise, seed):
        facts = repr((labels(node, night), environment(node, night)))
        if facts not in templates:
            first = made_run(night, node, times_ns, labels, environment)
            templates[facts] = summarise_run(first)
        template, cases = templates[facts]
        name = template.node if "node" in template.labels else f"node{node:03}"
        start = FIRST + timedelta(days=night, seconds=node)
        summary = replace(
            template,
            run_id=f"{night:04}-{node:04}",
            node=name,
            hosts=(f"node{node:03}",),
            start_us=int(start.timestamp()) * 1_000_000,
        )
        yield summary, tuple(replace(c, time_ns=ns) for c, ns in zip(cases, times_ns, strict=True))
