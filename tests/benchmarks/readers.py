"""How fast other tools' output is read: ratios against json.load and grep -c, in one run.

    python tests/benchmarks/readers.py [TRACE.json]

Rows of nccl-tests, 54 025 of them, alone and between lines of a library's log, against
``grep -c float`` on the same file; a Kineto trace against json.load of it. Without TRACE.json it is
made: 77 MB of a real training step on gloo, profiled with stacks (large.py). CPU seconds of
reading, without starting Python and importing, in a process each, three times in turn, their
medians; the peak is of the process that reads.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from foreign_files import FOOT, HEAD, NAMES  # noqa: E402

Work = Callable[[Path], None]
ROWS = 54_025
TRACE_BYTES = 77_000_000
LOG = (
    "node0:4711:4720 [0] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x7f0000000000 recvbuff "
    "0x7f0000000000 count {count} datatype 7 op 0 root 0 comm 0x5591 [nranks=2] stream 0x55aa\n"
)


def nccl_tests(path: Path, logs: bool) -> None:
    rng = random.Random(0)
    with open(path, "w") as file:
        file.write(HEAD.format(program="all_reduce_perf") + NAMES)
        for n in range(ROWS):
            size = 1 << rng.randrange(10, 30)
            figures = []
            for us in (size / 200e3 * rng.uniform(0.9, 1.1) + 20 for _ in range(2)):
                text = f"{us:.2f}" if us < 1e4 else f"{us:.1f}"
                bandwidth = size / us / 1e3
                figures.append(f"  {text:>7}  {bandwidth:6.2f}  {bandwidth:6.2f}       0")
            if logs:
                file.write(LOG.format(n=n, count=size // 4))
            file.write(f"{size:12}  {size // 4:12}     float     sum      -1{''.join(figures)}\n")
        file.write(FOOT.format(program="all_reduce_perf"))


def trace(path: Path) -> None:
    import large

    packed = path.with_suffix(".json.gz")
    large.trace(packed, TRACE_BYTES // 12)
    with gzip.open(packed) as source, open(path, "wb") as file:
        shutil.copyfileobj(source, file)


def measured(work: Work, path: Path) -> tuple[float, float]:
    """(CPU seconds, peak in MB) of reading it in a process of its own, which has imported all."""
    command = [sys.executable, __file__, "--read", work.__name__, str(path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds, peak = map(float, done.stdout.split())
    return seconds, peak


def read(work: Work, path: Path) -> None:
    """In that process."""
    from torchcoll.importers.registry import importers

    importers()
    before = _used()
    work(path)
    seconds = _used() - before
    # ru_maxrss would be that of the process that started this one.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak
    print(seconds, int(peak[1]) / 1024)


def _used() -> float:
    """CPU seconds of this process and of its children."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def table(path: Path) -> None:
    from torchcoll.core.file import uncollected
    from torchcoll.importers.registry import import_file

    with uncollected():  # as the commands do
        found = import_file(str(path))
    assert found.rows == ROWS and not found.refused


def calls(path: Path) -> None:
    from torchcoll.core.file import uncollected
    from torchcoll.importers.traces import read_traffic

    with uncollected():
        assert read_traffic([path]).calls


def plain(path: Path) -> None:
    with open(path) as file:
        json.load(file)


def grep(path: Path) -> None:
    subprocess.run(["grep", "-c", "float", str(path)], check=True, stdout=subprocess.DEVNULL)


READERS = {work.__name__: work for work in (table, calls, plain, grep)}


def compared(name: str, path: Path, ours: Work, base: Work) -> None:
    both: list[list[tuple[float, float]]] = [[], [], []]
    for _ in range(3):
        for found, work in zip(both, (ours, base, base), strict=True):
            found.append(measured(work, path))
    seconds, other, again = (statistics.median(s for s, _ in found) for found in both)
    size = path.stat().st_size / 1e6
    peak = max(mb for _, mb in both[0])
    print(
        f"{name:34}  {size:6.1f}  {seconds:7.2f}  {size / seconds:6.1f}  {peak:5.0f}  "
        f"{base.__name__:5}  {other:7.3f}  {seconds / other:7.2f}  {again / other:5.2f}",
        flush=True,
    )


def main() -> None:
    if sys.argv[1:2] == ["--read"]:
        return read(READERS[sys.argv[2]], Path(sys.argv[3]))
    from common import title  # torch, which no reader needs

    title("Reading other tools' output, CPU seconds")
    print(
        f"{'file':34}  {'MB':>6}  {'seconds':>7}  {'MB/s':>6}  {'peak':>5}  {'base':5}  "
        f"{'seconds':>7}  {'ratio':>7}  {'A/A':>5}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, logs in (("nccl-tests, rows alone", False), ("nccl-tests, rows and logs", True)):
            path = Path(folder) / "rows.txt"
            nccl_tests(path, logs)
            compared(name, path, table, grep)
        if sys.argv[1:]:
            path = Path(sys.argv[1])
        else:
            path = Path(folder) / "rank0.json"
            if (child := os.fork()) == 0:
                code = 1
                try:
                    trace(path)
                    code = 0
                finally:
                    os._exit(code)
            os.waitpid(child, 0)
        compared("Kineto trace", path, calls, plain)


if __name__ == "__main__":
    main()
