"""What torchcoll adds to a run: one size, 10 calls, against a bare script that does the same.

Both under torchrun with 2 gloo ranks, 10 interleaved pairs. The bare script makes the 3 cold, 10
steady and 1 verifying calls; torchcoll may make up to 17 cold calls more until they settle, and 50
barriers to know what a barrier costs: some milliseconds of seconds, and they count against it. Then
the memory of a rank beyond the bare script's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import paired_ratio, title

PAIRS = 10
BARE = """
import statistics, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor, samples = torch.zeros(256), []
for _ in range(14):
    dist.barrier()
    start = time.perf_counter_ns()
    dist.all_reduce(tensor)
    samples.append(time.perf_counter_ns() - start)
if dist.get_rank() == 0:
    print(statistics.median(samples[3:13]))
dist.barrier()
dist.destroy_process_group()
"""
RESIDENT = (
    "import re; print('RSS', re.search(r'VmRSS:\\s+(\\d+)', open('/proc/self/status').read())[1])"
)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
OURS = ["-m", "torchcoll.allreduce", "--sizes", "1K", "-n", "10"]


def torchrun(arguments: list[str], folder: str) -> float:
    start = time.perf_counter()
    subprocess.run(TORCHRUN + arguments, check=True, capture_output=True, cwd=folder)
    return time.perf_counter() - start


def resident_mb(script: str, folder: str) -> list[float]:
    """Resident MB of ranks 0 and 1 at their end."""
    path = Path(folder) / "resident.py"
    path.write_text(script)
    command = [*TORCHRUN, "--tee", "3", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    text = done.stdout + done.stderr
    return [int(re.search(rf"default{rank}\]:RSS (\d+)", text)[1]) / 1024 for rank in (0, 1)]


if __name__ == "__main__":
    title("start-up under torchrun, 2 gloo ranks, 1 KiB, 10 calls")
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        bare_path = Path(folder) / "bare.py"
        bare_path.write_text(BARE)
        pairs, bare = [], []
        for pair in range(PAIRS + 1):
            seconds = {}
            for arm, arguments in sorted({0: OURS, 1: [str(bare_path)]}.items(), reverse=pair % 2):
                seconds[arm] = torchrun(arguments, folder)
            pairs.append((seconds[0], seconds[1]))
            bare.append(seconds[1])
        # The first pair warms the file cache.
        middle = sorted(bare[1:])[PAIRS // 2]
        print(f"torchcoll / bare: {paired_ratio(pairs[1:])}, bare {middle:.2f} s", flush=True)
        product = (
            "import sys\nfrom torchcoll.bench.main import main\n"
            f"try:\n    main('all_reduce', {[*OURS[2:], '--no-output']!r})\n"
            f"finally:\n    {RESIDENT}\n"
        )
        theirs = resident_mb(BARE + RESIDENT, folder)
        mine = resident_mb(product, folder)
        added = ", ".join(f"rank {r}: {mine[r] - theirs[r]:.1f} MB" for r in (0, 1))
        print(f"memory beyond the bare script ({theirs[0]:.0f} MB): {added}")
