"""Runs of many ranks on a busy machine: how all of them leave, and what their files say.

Usage: leaving.py [RUNS [RANKS [OTHER PROCESSES THAT SPIN]]]
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from common import title

sys.path.insert(0, str(Path(__file__).parents[1]))

from ranks import Measured


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    spinning = []
    for _ in range(processes):
        pid = os.fork()
        while not pid:
            pass
        spinning.append(pid)
    try:
        yield
    finally:
        for pid in spinning:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> None:
    launches, ranks, others = [*map(int, sys.argv[1:]), *(20, 64, 2)[len(sys.argv) - 1 :]]
    title(f"leaving: {launches} runs of {ranks} ranks, beside {others} processes that spin")
    stories: Counter[str] = Counter()
    with load(others), tempfile.TemporaryDirectory() as folder:
        for number in range(launches):
            job = Measured(Path(folder) / str(number), "all_reduce", "--sizes 8 -n 20", ranks)
            codes = Counter(job.job.codes(300))
            records = [r for r in job.records() if r["record"] in ("event", "end")]
            ends = [f"{r['status']} {r['exit_code']}" for r in records if r["record"] == "end"]
            lost = sum(r.get("kind") == "lost_rank" for r in records)
            stated = ", ".join(f"{count} ranks leave with {code}" for code, count in codes.items())
            stories[f"{stated}; the file ends {' and '.join(ends)}; {lost} lost ranks in it"] += 1
    for story, count in stories.most_common():
        print(f"{count} x {story}")


if __name__ == "__main__":
    main()
