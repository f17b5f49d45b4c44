"""Collectives over 2, 3, 4, 6 and 8 hosts with links of a known rate, for benchmarks/model.py.

    python tests/benchmarks/model_hosts.py FOLDER [--mbit 100] [--launches 1] 2 3 4 6 8

The hosts are network namespaces on one bridge, each behind a token-bucket link (root, ip and tc
needed). FOLDER gets a result file a launch, and a line in idle.txt: how busy the machine was, for
a link is what is measured only where the CPUs are idle.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from culprit import busy_seconds
from namespaces import Search, hosts
from ranks import Measured

COLLECTIVES = "all_reduce,all_gather,broadcast"
SIZES = "64K,128K,256K,512K,1M,2M,4M"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("counts", nargs="+", type=int)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--launches", type=int, default=1)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    arguments = f"--collectives {COLLECTIVES} --sizes {SIZES} -n 8 -w 1 -c 0"
    search = Search(arguments, asked.mbit, "32kb")
    for count in asked.counts:
        for launch in range(asked.launches):
            name = f"{count}hosts-{launch + 1}"
            if (asked.folder / f"{name}.jsonl").exists():
                continue
            with hosts(count, search) as made:
                began, before = time.monotonic(), busy_seconds()
                where = {"environment": made.environment, "setup": made.enter}
                job = Measured(asked.folder / name, None, arguments, count, **where)
                job.ended(0, 280)
                seconds, after = time.monotonic() - began, busy_seconds()
            cores = seconds * len(os.sched_getaffinity(0))
            ranks, interrupts, idle = ((b - a) / cores for a, b in zip(before, after, strict=True))
            run = job.run
            line = (
                f"{name}: {len(run.results)} cases in {seconds:.0f} s; of the CPUs the ranks took "
            )
            line += f"{ranks:.0%}, interrupts {interrupts:.0%}, idle were {idle:.0%}"
            with (asked.folder / "idle.txt").open("a") as file:
                file.write(line + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main()
