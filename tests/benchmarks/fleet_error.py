"""The family-wise error of `torchcoll fleet`: how often a healthy fleet gets anybody named.

    python tests/benchmarks/fleet_error.py [--reports 10000] [--nodes 4,16,64] [--seed 2026]

A report is one night of N healthy nodes with 10 cases. The effects of the nodes and the noise of
the cases are drawn from a normal distribution, or from Student's t with 4 degrees of freedom. Racks
of 8 nodes and switches of 32 nodes are labelled. The threshold is 0.01 %, so that only the
statistics decide. An error is a report that names any node, case or group, or two populations.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np
from scipy import stats

from torchcoll.core.case import Case
from torchcoll.fleet.slow_nodes import Peers, judge_peers
from torchcoll.store.records import CaseKey

SIZES = (8, 64 << 10, 1 << 20, 16 << 20, 128 << 20)
KEYS = tuple(
    CaseKey(
        Case(collective, size, "float32", None, None, True, "synchronized", "nccl", "cuda"),
        8,
        "median",
        "host",
    )
    for collective in ("all_reduce", "all_gather")
    for size in SIZES
)


def peers_of(log_times):
    nodes = len(log_times)
    facts = tuple({"rack": f"r{n // 8}", "switch": f"s{n // 32}"} for n in range(nodes))
    names = tuple(f"node{n:04}" for n in range(nodes))
    return Peers("GPU", 8, names, KEYS, log_times, facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=int, default=2000)
    parser.add_argument("--nodes", default="4,9,16,64,1000")
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args()
    reports = options.reports
    print(f"{reports} healthy reports of each row, seed {options.seed}; allowed: 1 % per report")
    print("nodes  noise   errors  rate   95 % interval    nodes  some cases  groups  populations")
    random = np.random.default_rng(options.seed)
    for nodes in map(int, options.nodes.split(",")):
        for noise, draw in (
            ("normal", random.standard_normal),
            ("t4", lambda shape: random.standard_t(4, shape)),
        ):
            kinds: Counter[str] = Counter()
            for _ in range(reports):
                log_times = 0.005 * draw((nodes, 1)) + 0.005 * draw((nodes, len(KEYS)))
                judged = judge_peers(peers_of(log_times), 1e-4, 0.01)
                kinds["nodes"] += any(not item.scope for item in judged.slow)
                kinds["some"] += any(item.scope for item in judged.slow)
                kinds["groups"] += bool(judged.groups)
                kinds["populations"] += judged.populations is not None
                kinds["any"] += bool(judged.slow or judged.groups or judged.populations)
            errors = kinds["any"]
            interval = stats.binomtest(errors, reports).proportion_ci()
            print(
                f"{nodes:5}  {noise:6}  {errors:6}  {errors / reports:5.2%}"
                f"  {interval.low:.2%} to {interval.high:.2%}  {kinds['nodes']:5}"
                f"  {kinds['some']:10}  {kinds['groups']:6}  {kinds['populations']:11}",
                flush=True,
            )


if __name__ == "__main__":
    main()
