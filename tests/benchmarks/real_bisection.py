"""Does `torchcoll bisect` find a planted step in real runs?

    python tests/benchmarks/real_bisection.py [SHARE...]

Versions v1 to v16 measure all_reduce on 2 gloo ranks. From v11 on, each call is followed by a busy
wait of SHARE (default 1, 0.2 and 0) of the time that it took, inside the timed call. v6 ends with
exit code 2. Prints the truth, the answer, and how long the search took. SHARE 0 is the A/A row.

The command of a version asks a server that has imported torch, which forks the two ranks: importing
torch for each run would take most of the time. Different versions of torch are not compared: that
needs wheels of each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

FIRST_SLOW, BROKEN, MOST = 11, 6, 60


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


def serve(address: str, share: float) -> None:
    """Answers (version, options of torchcoll.allreduce) with the exit code of that run."""
    import torch.distributed

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from ranks import Job, command

    def setup(version: int) -> None:
        if version >= FIRST_SLOW:
            call = slowed(torch.distributed.all_reduce, share)
            torch.distributed.all_reduce = call

    with Listener(address) as listener:
        while True:
            with listener.accept() as connection, tempfile.TemporaryDirectory() as folder:
                version, words = connection.recv()
                if version == BROKEN:
                    connection.send(2)
                    continue
                target = command("all_reduce", words)
                job = Job(Path(folder), target, 2, setup=lambda rank, v=version: setup(v))
                connection.send(max(ended.code for ended in job.wait(300).values()))


def run_version(version: int, words: list[str]) -> int:
    """The command of a version: words are options of torchcoll.allreduce."""
    output = words.index("--output") + 1
    words[output] = str(Path(words[output]).resolve())
    with Client(os.environ["SERVER"]) as connection:
        connection.send((version, words))
        code: int = connection.recv()
        return code


def search(share: float) -> None:
    versions = ",".join(f"v{number}" for number in range(1, 17))
    command = [sys.executable, "-m", "torchcoll", "bisect", "--axis", f"v={versions}"]
    command += ["--runs", str(MOST), "--quiet", "-o", "search", "--"]
    command += [sys.executable, str(Path(__file__).resolve()), "{v}"]
    command += ["--sizes", "64K,512K", "-n", "100", "-c", "0"]
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/server"
        server = os.fork()
        if not server:
            serve(address, share)
        while not Path(address).exists():
            time.sleep(0.1)
        start, load = time.monotonic(), os.getloadavg()[0]
        ended = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "SERVER": address},
            capture_output=True,
            text=True,
            check=False,
        )
        wall_s = time.monotonic() - start
        os.kill(server, 9)
        os.waitpid(server, 0)
    truth = f"{100 * share:.0f} % slower from v{FIRST_SLOW} on" if share else "no step"
    print(f"\ntruth: {truth}; v{BROKEN} does not start")
    print(f"exit code {ended.returncode}, {wall_s:.0f} s, load average {load:.0f}")
    print(ended.stdout + ended.stderr, flush=True)


def main() -> None:
    if sys.argv[1:] and sys.argv[1].startswith("v"):
        sys.exit(run_version(int(sys.argv[1][1:]), sys.argv[2:]))
    from common import title

    shares = [float(text) for text in sys.argv[1:]] or [1.0, 0.2, 0.0]
    title(f"torchcoll bisect: 16 versions of gloo's all_reduce, 2 ranks, at most {MOST} runs")
    for share in shares:
        search(share)


if __name__ == "__main__":
    main()
