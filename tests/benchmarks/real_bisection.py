"""Does `torchcoll bisect` find a planted step in real runs?

    python tests/benchmarks/real_bisection.py [SHARE...]

Versions v1 to v16 are arguments of this file, which measures all_reduce on 2 gloo ranks. From v11
on, each call is followed by a busy wait of SHARE (default 1, 0.2 and 0) of the time that it took,
inside the timed call. v6 ends with exit code 2. Prints the truth, the answer, and how long the
search took. SHARE 0 is the A/A row. The ranks are forked, because torchrun imports torch three
times for each run. Different versions of torch are not compared: that needs wheels of each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FIRST_SLOW, BROKEN = 11, 6


def slowed(call: Callable[..., Any], share: float) -> Callable[..., Any]:
    """The collective, longer by this share of its time."""

    def slow_call(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter_ns()
        result = call(*arguments, **options)
        now = time.perf_counter_ns()
        end = now + int(share * (now - start))
        while time.perf_counter_ns() < end:
            pass
        return result

    return slow_call


def run_version(version: int, words: list[str]) -> int:
    """One run of a version. words: options of torchcoll.allreduce."""
    if version == BROKEN:
        return 2
    import torch.distributed

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from ranks import Job, command

    if version >= FIRST_SLOW:
        share = float(os.environ["PLANTED_SHARE"])
        torch.distributed.all_reduce = slowed(torch.distributed.all_reduce, share)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), command("all_reduce", words), 2)
        return max(ended.code for ended in job.wait(300).values())


def search(share: float) -> None:
    versions = ",".join(f"v{number}" for number in range(1, 17))
    command = [sys.executable, "-m", "torchcoll", "bisect", "--axis", f"v={versions}"]
    command += ["--runs", "60", "--quiet", "-o", "search", "--"]
    command += [sys.executable, str(Path(__file__).resolve()), "{v}"]
    command += ["--sizes", "64K,512K", "-n", "100", "-c", "0"]
    environment = {**os.environ, "PLANTED_SHARE": str(share)}
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        ended = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        wall_s = time.monotonic() - start
    truth = f"{100 * share:.0f} % slower from v{FIRST_SLOW} on" if share else "no step"
    print(f"\ntruth: {truth}; v{BROKEN} does not start")
    print(f"exit code {ended.returncode}, {wall_s:.0f} s, load {os.getloadavg()[0]:.1f}")
    print(ended.stdout.replace(folder + os.sep, ""), ended.stderr, flush=True)


def main() -> None:
    if sys.argv[1:] and sys.argv[1].startswith("v"):
        sys.exit(run_version(int(sys.argv[1][1:]), sys.argv[2:]))
    from common import title

    shares = [float(text) for text in sys.argv[1:]] or [1.0, 0.2, 0.0]
    title(
        "torchcoll bisect: 16 versions of a wrapper of gloo's all_reduce, 2 ranks, at most 60 runs"
    )
    for share in shares:
        search(share)


if __name__ == "__main__":
    main()
