"""Does --soak stay as small as it began, and measure what a run without it does?

python tests/benchmarks/soak.py memory [TIME]     resident memory of every rank over TIME (10m),
                                                  the file, the rounds; a bit that a wrapper flips
                                                  on rank 1 in round 7
python tests/benchmarks/soak.py medians [SIZE...] median of all_reduce with --soak over without,
                                                  of the same cases in one group of ranks, real-time
                                                  scheduled (chrt -f 50) as steady.py says why; A/A
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from common import beside_noise, fork_ranks, free_port, title

from torchcoll.bench.session import Session, SessionOptions, opened
from torchcoll.bench.soak import soak
from torchcoll.bench.sweep import Sweep
from torchcoll.core.spec import Spec
from torchcoll.machine.launcher import Launch
from torchcoll.questions.contention.soaked import soaked
from torchcoll.reading.inputs import load

RANKS, SIZES = 2, "1K,64K,1M"
PAIRS, ROUNDS, SOAK_S = 120, 8, 0.3
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


class Arms:
    """One group of ranks; each arm gives the duration of a call on rank 0, None elsewhere."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def plain(self) -> float | None:
        """As without --soak, ``ROUNDS`` times; a case is one median, as a round of a soak is."""
        sweep, medians = Sweep(self.session), []
        for _ in range(ROUNDS):
            sweep.one_case(self.session.sizings[0])
            if run := self.session.run:
                columns = zip(*run.results.pop().time_ns["host"], strict=True)
                medians.append(statistics.median(map(max, columns)))
        return statistics.median(medians) if medians else None

    def soaked(self) -> float | None:
        """A whole soak, but for its first round, which is measured as without."""
        soak(Sweep(self.session), SOAK_S, None)
        run = self.session.run
        if run is None:
            return None
        windows, run.windows[:] = list(run.windows), []
        run.results.clear()
        return statistics.median(window.cases[0].median_ns for window in windows)


def compared(rank: int, port: int, size_bytes: int) -> list[list[float]]:
    """[ratios with --soak over without, A/A ratios]."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    spec = Spec(sizes=(size_bytes,), iters=80)
    found: list[list[float]] = [[], []]
    with opened(torch, SessionOptions(spec, Launch("benchmark", rank, 2, rank, 2))) as session:
        arms, rng = Arms(session), random.Random(1)
        arms.plain(), arms.soaked()
        for _ in range(PAIRS):
            for ratios, one in zip(found, (arms.soaked, arms.plain), strict=True):
                figures = [0.0, 0.0]
                for arm in rng.sample((0, 1), 2):
                    figures[arm] = (one, arms.plain)[arm]() or 1.0
                ratios.append(figures[0] / figures[1])
    return found


def medians(sizes: Sequence[int]) -> None:
    for size_bytes in sizes:
        ratios, noise = fork_ranks(2, compared, free_port(), size_bytes)[0]
        print(
            f"{size_bytes:>8} B  with / without --soak  {beside_noise(ratios, noise)}", flush=True
        )


if __name__ == "__main__":
    title("soak")
    what, *rest = sys.argv[1:] or ["memory"]
    if what == "memory":
        memory(*rest or ["10m"])
    else:
        medians([int(word) for word in rest] or [65536])
