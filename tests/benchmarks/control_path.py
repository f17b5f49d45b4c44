"""The control path of a run of thousands of ranks, over a real TCPStore: time and memory by step.

    python tests/benchmarks/control_path.py [RANKS ...]

Every rank is a thread with a connection of its own, in as many processes as there are cores;
rank 0 is alone in its process, which serves the store. 8 ranks a host. The steps are those of
bench/session.py, bench/sweep.py and bench/measure.py, with values of their size, an alignment
before each; the time is that until rank 0 goes on. The clients share the cores with the store, so a
cluster is faster: how the time grows with the ranks is what this shows. "lost rank": all ranks but
one, whose watchdogs have raised the alarm, ask once who lives.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from common import free_port, title

from torchcoll.bench.control import Control, alarm, survey
from torchcoll.bench.stopping import cap_calls

RANKS = (256, 1024, 4096)
PER_HOST = 8
LIMIT_S = 300.0
VARIABLES = {f"NCCL_VARIABLE_{number}": "a value of usual length" for number in range(10)}


def peak_mb() -> float:
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def steps(control: Control, calls: int) -> list[tuple[str, Callable[[], object]]]:
    rank, ranks = control.rank, control.ranks
    host = f"node{rank // PER_HOST:05d}"
    first = rank // PER_HOST * PER_HOST
    here = [*range(first, min(ranks, first + PER_HOST))]
    gone, status = ranks // 2, {"steps": 100, "doing": "all_reduce 8: steady calls"}
    samples = [1_000_000 + rank] * calls

    def hello() -> None:
        hellos = control.gather({"host": host, "asked": "0123456789abcdef", "argv": "--sizes 8"})
        control.hosts = control.decide([hello["host"] for hello in hellos])
        control.pids = dict(zip(here, control.share(os.getpid(), here), strict=True))

    def members() -> None:
        control.gather(
            {
                **{"rank": rank, "host": host, "pid": 100_000, "local_rank": rank % PER_HOST},
                **{"device": "cuda:0", "device_name": "NVIDIA H100 80GB HBM3", "variables": {}},
                **{"affinity": "0-11", "numa": [0], "pci_id": "0000:1b:00.0", "nic": "mlx5_0"},
                **{"variables": VARIABLES, "phases": dict.fromkeys("abcde", 123_456_789)},
            }
        )
        control.decide()

    def lost() -> None:
        if rank == gone:
            return
        pids = {other: os.getpid() for other in here if other != gone}
        answers = survey(control.store, rank, ranks, pids, status, grace_s=0)
        silent = [other for other, answer in enumerate(answers) if answer is None]
        assert silent == ([gone] if rank < 16 or gone in here or ranks <= 256 else []), silent

    return [
        ("hello", hello),
        ("devices", lambda: control.agree(None, f"0000:{rank % PER_HOST:02x}:00.0")),
        ("members", members),
        ("case agreed", lambda: control.decide(bool(control.gather({"case": "0" * 16})))),
        ("buffers", lambda: control.failed("")),
        ("start together", control.start_together),
        (f"{calls} samples", lambda: control.decide(bool(control.gather({"host": samples})))),
        ("alarm", lambda: rank == gone or alarm(control.store, rank, status)),
        ("lost rank", lost),
    ]


def run_rank(control: Control, calls: int) -> dict[str, float]:
    seconds = {}
    for name, step in [("connected", control.align), *steps(control, calls)]:
        if name != "connected":
            control.align()
        start = time.perf_counter()
        step()
        seconds[name] = time.perf_counter() - start
    control.leave()
    return seconds


def clients(port: int, which: Sequence[int], ranks: int, calls: int) -> None:
    """Ends this process, with 0 where all threads came to their end."""
    failed: list[BaseException] = []

    def client(rank: int) -> None:
        try:
            limit = timedelta(seconds=LIMIT_S)
            store = dist.TCPStore("127.0.0.1", port, None, False, limit, wait_for_workers=False)
            run_rank(Control(store, rank, ranks, LIMIT_S), calls)
        except BaseException as error:
            failed.append(error)

    threading.stack_size(1 << 18)
    before = peak_mb()
    threads = [threading.Thread(target=client, args=(rank,)) for rank in which]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        print(f"{len(failed)} ranks failed: {failed[0]!r}", file=sys.stderr)
    elif which[0] == 1:
        print(
            f"  a rank other than 0: {(peak_mb() - before) * 1024 / len(which):.0f} KB", flush=True
        )
    os._exit(bool(failed))


def measure(ranks: int) -> dict[str, float]:
    calls, port, processes = cap_calls(ranks), free_port(), os.cpu_count() or 1
    pids = []
    for number in range(processes):
        pid = os.fork()
        if not pid:
            time.sleep(1)  # the store is not there before
            clients(port, range(1 + number, ranks, processes), ranks, calls)
        pids.append(pid)
    before = peak_mb()
    store = dist.TCPStore(
        "127.0.0.1", port, None, True, timedelta(seconds=LIMIT_S), wait_for_workers=False
    )
    seconds = run_rank(Control(store, 0, ranks, LIMIT_S), calls)
    print(
        f"{ranks} ranks, load average {os.getloadavg()[0]:.1f}; rank 0: {peak_mb() - before:.0f} MB"
    )
    for pid in pids:
        os.waitpid(pid, 0)
    return seconds


def main() -> None:
    counts = [*map(int, sys.argv[1:])] or RANKS
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    title("control path, seconds of each step on rank 0, of ranks that are threads")
    table = {ranks: measure(ranks) for ranks in counts}
    print(f"{'step':16}" + "".join(f"{ranks:>10}" for ranks in counts) + "  power of the ranks")
    names = [name.lstrip("0123456789 ") for name in table[counts[0]]]
    for index, name in enumerate(names):
        row = [[*seconds.values()][index] for seconds in table.values()]
        power = ""
        if len(counts) > 1:
            slope = statistics.linear_regression([*map(math.log, counts)], [*map(math.log, row)])[0]
            power = f"{slope:.2f}"
        print(f"{name:16}" + "".join(f"{value:10.3f}" for value in row) + f"  {power:>8}")


if __name__ == "__main__":
    main()
