"""The control path of a run of thousands of ranks, over a real TCPStore: what each step costs.

    pip install greenlet
    python tests/benchmarks/control_path.py [RANKS ...]

Every rank runs the real code of bench/control.py, with values of the size that bench/session.py,
bench/sweep.py and bench/measure.py give it, 8 ranks a host. The ranks are greenlets of one process:
one that would wait in the store lets the next one run, so all of them get as far as 16,384 ranks
with one connection. Requests and bytes are exact. CPU time is that of all ranks and of the store
together, which shares it with nobody: a cluster spreads that of the ranks. Memory is what the
process holds more after the step than before, of all ranks and the store together. The last columns
are the powers of the ranks with which requests, bytes and CPU time of all ranks grow: 1 is linear.
"lost rank": all ranks but one, whose watchdogs have raised the alarm, ask once who lives.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import greenlet
import torch.distributed as dist
from common import free_port, title

from torchcoll.bench.control import Control, alarm, survey
from torchcoll.bench.stopping import cap_calls

RANKS = (1024, 4096, 16_384)
PER_HOST = 8
VARIABLES = {f"NCCL_VARIABLE_{number}": "a value of usual length" for number in range(10)}


@dataclass
class Cost:
    requests: int = 0
    sent_bytes: int = 0  # by the store to the ranks, and by them to it
    cpu_s: float = 0.0
    left_bytes: float = 0.0  # resident memory after the step, less that before it


class CountingStore:
    """The store as one rank sees it: counts, and lets other ranks run where it would wait."""

    def __init__(self, store: Any, hub: greenlet.greenlet, cost: Cost) -> None:
        self._store, self._hub, self._cost = store, hub, cost

    def wait(self, keys: list[str], limit: timedelta) -> None:
        self._cost.requests += 1
        self._cost.sent_bytes += sum(map(len, keys))
        while not self._store.check(keys):
            self._hub.switch()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        def counted(*arguments: Any) -> Any:
            answer = method(*arguments)
            self._cost.requests += name != "has_extended_api"
            for value in (*arguments, answer):
                items = value if isinstance(value, list) else [value]
                self._cost.sent_bytes += sum(len(i) for i in items if isinstance(i, str | bytes))
            return answer

        return counted


def steps(control: Control, calls: int) -> list[tuple[str, Callable[[], object]]]:
    rank, ranks = control.rank, control.ranks
    host, first = f"node{rank // PER_HOST:05d}", rank // PER_HOST * PER_HOST
    here = [*range(first, min(ranks, first + PER_HOST))]
    gone, status = ranks // 2, {"steps": 100, "doing": "all_reduce 8: steady calls"}

    def hello() -> None:
        hellos = control.gather({"host": host, "asked": "0123456789abcdef", "argv": "--sizes 8"})
        control.share_hosts([hello["host"] for hello in hellos])
        control.pids = dict(zip(here, control.share(os.getpid(), here), strict=True))

    def members() -> None:
        member = {"rank": rank, "host": host, "pid": 100_000, "local_rank": rank % PER_HOST}
        member |= {"device": "cuda:0", "device_name": "NVIDIA H100 80GB HBM3", "nic": "mlx5_0"}
        member |= {"affinity": "0-11", "numa": [0], "pci_id": "0000:1b:00.0"}
        control.gather({**member, "variables": VARIABLES, "phases": dict.fromkeys("abcde", 12**8)})
        control.decide()

    def samples() -> None:
        # Of numbers that are all alike a packed value would be short.
        control.gather({"host": [10**6 + (rank + call) * 7919 % 10**5 for call in range(calls)]})
        control.decide()

    def lost() -> None:
        if rank == gone:
            return
        pids = dict.fromkeys(here, os.getpid())
        answers = survey(control.store, rank, ranks, pids, status, grace_s=0)
        silent = [other for other, answer in enumerate(answers) if answer is None]
        asks = rank < 16 or gone in here or ranks <= 256
        assert silent == [gone] * asks, silent

    return [
        ("hello", hello),
        ("devices", lambda: control.agree(None, f"0000:{rank % PER_HOST:02x}:00.0")),
        ("members", members),
        ("case agreed", lambda: control.decide(bool(control.gather({"case": "0" * 16})))),
        ("buffers", lambda: control.failed("")),
        ("samples", samples),
        ("alarm", lambda: rank == gone or alarm(control.store, rank, status)),
        ("lost rank", lost),
        ("leaving", control.leave),
    ]


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(ranks: int) -> dict[str, Cost]:
    store = dist.TCPStore("127.0.0.1", free_port(), None, True, wait_for_workers=False)
    calls, hub, cost = cap_calls(ranks), greenlet.getcurrent(), Cost()
    controls = [
        Control(CountingStore(store, hub, cost), rank, ranks, 300.0) for rank in range(ranks)
    ]
    of_ranks, costs = [steps(control, calls) for control in controls], {}
    for number, (name, _) in enumerate(of_ranks[0]):
        cost.requests, cost.sent_bytes, before = 0, 0, resident_bytes()
        start = time.process_time()
        # Rank 0 last: it waits for all others, which then have their decision at once.
        waiting = [greenlet.greenlet(of_ranks[rank][number][1]) for rank in reversed(range(ranks))]
        while waiting:
            for rank in waiting:
                rank.switch()
            waiting = [rank for rank in waiting if not rank.dead]
        cpu_s = time.process_time() - start
        costs[name] = Cost(cost.requests, cost.sent_bytes, cpu_s, resident_bytes() - before)
    held = sum(cost.left_bytes for cost in costs.values())
    print(f"{ranks} ranks, {calls} calls: {held / 1e6:.0f} MB after all steps", flush=True)
    return costs


def power(counts: list[int], values: list[float]) -> str:
    if len(counts) < 2 or min(values) <= 0:
        return "-"
    logs = [*map(math.log, counts)], [*map(math.log, values)]
    return f"{statistics.linear_regression(*logs).slope:.2f}"


def main() -> None:
    counts = [*map(int, sys.argv[1:])] or [*RANKS]
    title("control path, of all ranks and the store together")
    table = {ranks: measure(ranks) for ranks in counts}
    print(f"load average {os.getloadavg()[0]:.1f}")
    print("a rank: requests / KB sent / CPU us / KB of memory left; powers of requests, bytes, CPU")
    print(f"{'step':12}" + "".join(f"{ranks:>26}" for ranks in counts) + f"{'powers':>18}")
    for name in table[counts[0]]:
        row = [table[ranks][name] for ranks in counts]
        cells = [
            f"{cost.requests / ranks:.1f} / {cost.sent_bytes / ranks / 1e3:.2f}"
            f" / {cost.cpu_s / ranks * 1e6:.0f} / {cost.left_bytes / ranks / 1e3:.1f}"
            for ranks, cost in zip(counts, row, strict=True)
        ]
        powers = [
            power(counts, [cost.requests for cost in row]),
            power(counts, [cost.sent_bytes for cost in row]),
            power(counts, [cost.cpu_s for cost in row]),
        ]
        print(f"{name:12}" + "".join(f"{cell:>26}" for cell in cells) + f"{' '.join(powers):>18}")


if __name__ == "__main__":
    main()
