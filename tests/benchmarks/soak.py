"""Does --soak stay as small as it began, and measure what a run without it does?

python tests/benchmarks/soak.py memory [TIME]     resident memory of every rank over TIME (10m),
                                                  the file, the rounds; a bit that a wrapper flips
                                                  on rank 1 in round 7
python tests/benchmarks/soak.py medians [PAIRS]   median of all_reduce with --soak over without,
                                                  beside two runs without it
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import free_port, interval, title

from torchcoll.contention.soaked import soaked
from torchcoll.core.file import load

RANKS, SIZES = 2, "1K,64K,1M"
PROGRAM = ("-m", "torchcoll.allreduce")
# The same, but for a bit of element 4242 that rank 1 got in the checked call of 64 KiB of round 7.
FLIPPED = """
import os, torch
from torchcoll.bench import verify
from torchcoll.bench.main import main
counted, rounds = verify.Checker.count_wrong, [0]
def count_wrong(self):
    recv = self._buffers.recv
    rounds[0] += recv.nbytes == 65536
    if rounds[0] == 7 and recv.nbytes == 65536 and os.environ["RANK"] == "1":
        recv.view(torch.int32)[4242] ^= 1
    return counted(self)
verify.Checker.count_wrong = count_wrong
main("all_reduce")
"""


def started(
    folder: Path, arguments: str, program: Sequence[str] = PROGRAM
) -> list[subprocess.Popen[bytes]]:
    port = free_port()
    words = [sys.executable, *program, "--quiet", *arguments.split()]
    variables = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    variables |= {"LOCAL_WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(RANKS)
    ]


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def memory(text: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = f"--sizes {SIZES} --max-time 0.2 --soak {text} -J soak.jsonl"
        ranks = started(folder, words, ("-c", FLIPPED))
        seen: list[list[int]] = []
        while all(rank.poll() is None for rank in ranks):
            seen.append([resident_kib(rank.pid) for rank in ranks])
            time.sleep(5)
        codes = [rank.wait() for rank in ranks]
        run = load(folder / "soak.jsonl")
        size = (folder / "soak.jsonl").stat().st_size
    early = seen[min(len(seen) - 1, 6)]  # 30 s after the start: everything is imported
    for rank in range(RANKS):
        last = seen[-2][rank]
        print(
            f"rank {rank}: resident {early[rank] / 1024:.1f} MiB after 30 s, "
            f"{last / 1024:.1f} MiB at the end, ratio {last / early[rank]:.3f}"
        )
    rounds = run.windows[-1].last_round
    print(
        f"exit codes {codes}; {rounds} rounds in {text}, {len(run.windows)} windows, file "
        f"{size / 1024:.0f} KiB; complete {run.complete}"
    )
    found = soaked(run)
    assert found
    print(f"checks: {found.checked}, faults found: {found.faulty} (1 was made)")
    for fault in found.faults:
        print(f"  {fault}")


def median_us(folder: Path, number: int, soak: str) -> float:
    file = f"{number}.jsonl"
    for rank in started(folder, f"--sizes 64K -n 2000 {soak} -J {file}"):
        rank.wait()
    run = load(folder / file)
    if run.windows:
        return statistics.median(w.cases[0].median_ns for w in run.windows) / 1e3
    columns = zip(*run.results[0].time_ns["host"], strict=True)
    return statistics.median(map(max, columns)) / 1e3


def medians(pairs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        rows = [
            [median_us(Path(name), 3 * pair + k, "--soak 10s" if k == 1 else "") for k in range(3)]
            for pair in range(pairs)
        ]
    for text, at in (("with / without --soak", (1, 0)), ("A/A, without / without", (2, 0))):
        middle, low, high = interval([row[at[0]] / row[at[1]] for row in rows], 90)
        print(f"{text}: {middle:.3f} [{low:.3f}, {high:.3f}] over {pairs} pairs")


if __name__ == "__main__":
    title("soak")
    what, *rest = sys.argv[1:] or ["memory"]
    if what == "memory":
        memory(*rest or ["10m"])
    else:
        medians(int(rest[0]) if rest else 12)
