"""What a report of many runs takes: seconds of CPU and of the clock, and the size of the page.

python tests/benchmarks/report.py [RUNS [SIZES]] (default 100 runs of 30 sizes, synthetic: 8
ranks, 100 calls a case, log-normal times about latency + size / bandwidth, seed 0)
"""

from __future__ import annotations

import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torchcoll
from torchcoll.core.case import Case
from torchcoll.core.file import save
from torchcoll.core.result import CaseResult, Run, Verification

RANKS, CALLS = 8, 100


def launch(number: int, sizes: int, rng: random.Random) -> Run:
    results = []
    for power in range(sizes):
        size = 8 << power
        case = Case("all_reduce", size, "float32", "sum", None, True, "synchronized", "gloo", "cpu")
        typical = 20_000 + size / 10
        times = [
            [int(typical * rng.lognormvariate(0, 0.05)) for _ in range(CALLS)] for _ in range(RANKS)
        ]
        cold = [[int(50 * typical), int(2 * typical), int(typical)] for _ in range(RANKS)]
        results.append(
            CaseResult(
                case,
                "ok",
                RANKS,
                count=size // 4,
                size_bytes=size,
                bytes_in=size,
                bytes_out=size,
                cold_ns=cold,
                time_ns={"host": times},
                verification=Verification(100, 0),
                stop="count",
            )
        )
    header = {
        "run_id": f"synthetic-{number}",
        "start_utc": f"2026-01-01T{number // 60:02}:{number % 60:02}:00+00:00",
        "ranks": RANKS,
        "spec": {"iters": CALLS},
        "environment": {"torch": "2.13.0", "libraries": {"gloo": "gloo of torch 2.13.0"}},
    }
    members = [{"rank": r, "host": "synthetic", "device": "cpu"} for r in range(RANKS)]
    return Run(header, members, results=results, end={"status": "complete", "exit_code": 0})


def main() -> None:
    launches, sizes = (int(one) for one in [*sys.argv[1:], "100", "30"][:2])
    print(f"{date.today()}, torchcoll {torchcoll.__version__}, Python {platform.python_version()}")
    print(f"{launches} synthetic runs x {sizes} sizes, {RANKS} ranks, {CALLS} calls a case")
    with tempfile.TemporaryDirectory() as folder:
        rng = random.Random(0)
        for number in range(launches):
            save(launch(number, sizes, rng), Path(folder) / f"{number:03}.jsonl")
        data = sum(path.stat().st_size for path in Path(folder).iterdir())
        print(f"{data / 1e6:.1f} MB of result files")
        for what, words in (
            ("show --format json (reading and summarising alone)", ["show", "--format", "json"]),
            ("report -o report.html", ["report", "-o", f"{folder}/report.html"]),
        ):
            began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "torchcoll", words[0], folder, *words[1:]]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"{what}: {cpu:.1f} s of CPU, {time.perf_counter() - began:.1f} s of the clock")
        print(f"the page: {(Path(folder) / 'report.html').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
