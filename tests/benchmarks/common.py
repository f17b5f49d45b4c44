"""What the benchmarks share: forked gloo ranks, ratios with an interval, one line a result."""

from __future__ import annotations

import os
import pickle
import platform
import random
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torchcoll


def fork_ranks(ranks: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``work(rank, *arguments)`` in ``ranks`` forked processes; what each returned."""
    pipes = []
    for rank in range(ranks):
        read, write = os.pipe()
        if os.fork() == 0:
            code = 1
            try:
                with os.fdopen(write, "wb") as out:
                    pickle.dump(work(rank, *arguments), out)
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        pipes.append(read)
    results = []
    for read in pipes:
        with os.fdopen(read, "rb") as source:
            results.append(pickle.load(source))
    for _ in range(ranks):
        os.wait()
    return results


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tcp_store(rank: int, ranks: int, port: int) -> Any:
    return dist.TCPStore("127.0.0.1", port, ranks, rank == 0)


def interval(ratios: Sequence[float], percent: int = 95) -> tuple[float, float, float]:
    """Median of the ratios, and its bootstrap interval over them (1000 draws, seed 0)."""
    rng = random.Random(0)
    drawn = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(1000))
    out = (100 - percent) * 5
    return statistics.median(ratios), drawn[out], drawn[999 - out]


def paired_ratio(pairs: Sequence[tuple[float, float]], percent: int = 95) -> str:
    """Median over the pairs of ours / base, with its interval."""
    middle, low, high = interval([ours / base for ours, base in pairs], percent)
    return f"{middle:.3f} ({percent} % {low:.3f} to {high:.3f})"


def title(what: str) -> None:
    git = ["git", "-C", str(Path(torchcoll.__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "not known"
    print(
        f"{what}: torchcoll {torchcoll.__version__} (commit {commit}), torch {torch.__version__}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {date.today()}",
        flush=True,
    )
    if os.getloadavg()[0] > 0.5:
        print(f"note: the load average is {os.getloadavg()[0]:.1f}, not idle", file=sys.stderr)
