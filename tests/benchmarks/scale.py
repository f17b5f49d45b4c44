"""A file of many ranks: write it, load it, show it, and the memory that takes.

Synthetic samples: 30 sizes x 20 steady and 3 cold calls a rank.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import title

from torchcoll.core.case import size_case
from torchcoll.core.file import save
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.spec import Spec

SIZES, COLD, STEADY = 30, 3, 20


def synthetic(ranks: int) -> Run:
    spec = Spec(sizes=tuple(1024 * (1 + i) for i in range(SIZES)))
    rng = random.Random(0)
    run = Run(header={"spec": spec.to_json(), "ranks": ranks})
    run.members = [
        {"rank": r, "host": f"node{r // 8}", "pid": 1, "device": "cpu"} for r in range(ranks)
    ]
    for case in spec.cases(ranks):
        sizing = size_case(case, ranks)
        samples = [
            [rng.randrange(100_000, 999_999) for _ in range(COLD + STEADY)] for _ in range(ranks)
        ]
        run.results.append(
            CaseResult(
                case,
                "ok",
                ranks,
                count=sizing.count,
                size_bytes=sizing.size_bytes,
                cold_ns=[row[:COLD] for row in samples],
                time_ns={"host": [row[COLD:] for row in samples]},
                steady_after=3,
                stop="count",
            )
        )
    run.end = {"status": "complete", "exit_code": 0}
    return run


PEAK = "; import re; print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
LOAD = "import torchcoll; torchcoll.load({path!r})"
SHOW = "from torchcoll.cli import main; main(['show', {path!r}])"


def best(script: str, path: str) -> str:
    """Least seconds of 3 starts, and peak MB, as the process itself sees it."""
    seconds, peaks = [], []
    for _ in range(3):
        start = time.perf_counter()
        command = [sys.executable, "-c", script.format(path=path) + PEAK]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds.append(time.perf_counter() - start)
        peaks.append(int(done.stdout.split()[-1]) / 1024)
    return f"{min(seconds):.2f} s ({max(peaks):.0f} MB)"


if __name__ == "__main__":
    title(f"scale, {SIZES} sizes x {COLD + STEADY} calls a rank")
    for ranks in (1024, 4096):
        run = synthetic(ranks)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "run.jsonl")
            start = time.perf_counter()
            save(run, path)
            write = time.perf_counter() - start
            print(
                f"{ranks} ranks, {os.path.getsize(path) / 1e6:.1f} MB: write {write:.2f} s, "
                f"load {best(LOAD, path)}, show {best(SHOW, path)}",
                flush=True,
            )
