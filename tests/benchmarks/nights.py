"""Eight real nodes over 20 nights: does `torchcoll history` name the node whose link became slow,
and the night? Root, ip and tc needed.

python tests/benchmarks/nights.py [FOLDER]     keeps the result files in FOLDER

Each node is a network namespace behind a link of 200 Mbit/s. Its run is an all_reduce of two gloo
ranks, of which the other is on a ninth namespace. The runs really take place one after the other;
their dates are written into the files. In the first series nothing is wrong. In the second the link
of node 3 has 80 % of the rate from night 12 on (the twelfth), when its label `driver` changes too.
What the history must say: nothing of the first series, and node3 since the twelfth night with the
driver of the second.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

from common import title

sys.path.insert(0, str(Path(__file__).parents[1]))

from namespaces import DEVICE, Hosts, Search, hosts
from ranks import Measured

import torchcoll
from torchcoll.cli import main as torchcoll_main

NODES, NIGHTS, SLOW_NODE, SLOW_NIGHT, RATE = 8, 20, 3, 12, 0.8
FIRST = datetime(2026, 10, 1, 22, tzinfo=timezone.utc)
WORDS = "--sizes 256K,1M,4M -n 7 -c 0"


def measure(made: Hosts, folder: Path, node: int, night: int, driver: str) -> None:
    """The run of a node in a night, as a result file with the date of the night."""

    def enter(rank: int) -> None:
        made.enter(node if rank else 0)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # the link is slow enough

    job = Measured(
        folder / f"work-{night}-{node}",
        "all_reduce",
        f"{WORDS} --label node=node{node} --label driver={driver}",
        2,
        setup=enter,
        environment=lambda rank: {"MASTER_ADDR": made.address(0), "GLOO_SOCKET_IFNAME": DEVICE},
    )
    run = job.ended(0, 600).run
    when = FIRST + timedelta(days=night - 1, minutes=node)
    run.header["start_utc"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    torchcoll.save(run, folder / f"night{night:02}-node{node}.jsonl")


def measure_series(made: Hosts, folder: Path, slow: bool) -> None:
    for index in range(1, NODES + 1):
        made.shape(index)
    for night in range(1, NIGHTS + 1):
        late = slow and night >= SLOW_NIGHT
        if late:
            made.shape(SLOW_NODE, RATE)
        for node in range(1, NODES + 1):
            driver = "560" if late and node == SLOW_NODE else "550"
            measure(made, folder, node, night, driver)


def printed(*words: str) -> tuple[int, list[str]]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = torchcoll_main(list(words))
    return code, out.getvalue().splitlines()


def main() -> None:
    title(f"{NODES} nodes of one link each, {NIGHTS} nights, all_reduce {WORDS}")
    with contextlib.ExitStack() as stack:
        kept = Path(sys.argv[1]) if len(sys.argv) > 1 else None
        root = kept or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = stack.enter_context(hosts(NODES + 1, Search("", 200.0, "32kb")))
        for name, slow in (("healthy", False), ("slow-link", True)):
            folder = root / name
            folder.mkdir(parents=True)
            measure_series(made, folder, slow)
            files = str(folder / "night*.jsonl")
            print(f"\n{name}: {len(list(folder.glob('night*.jsonl')))} runs")
            for command in ("history", "fleet"):
                code, lines = printed(command, files)
                print(f"torchcoll {command}: exit {code}")
                print("\n".join(f"  {line}" for line in lines))


if __name__ == "__main__":
    main()
