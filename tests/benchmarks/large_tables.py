"""Large output of nccl-tests: time and memory of reading and showing it, against pandas.

    python tests/benchmarks/large_tables.py [CASES]

The same cases, two on each line, as one table, as tables of 48 cases in one file, and in files of
48 cases. Each step is a process of its own: its CPU seconds without those of a process that only
imports the same modules, and their ratio to pandas, which reads the numbers of the same text.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from common import title

_RANKS = 8
_TABLE = 48  # cases; a row of nccl-tests is two
_HEAD = (
    "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 "
    "agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n"
    + "".join(
        f"#  Rank  {rank} Group  0 Pid  {1000 + rank} on node01 device  {rank} [0x0{rank}] "
        "NVIDIA H100 80GB HBM3\n"
        for rank in range(_RANKS)
    )
    + "#\n#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
    "#    (B)  (elements)              (us)  (GB/s)  (GB/s)        (us)  (GB/s)  (GB/s)\n"
)
# Each is given a file or a folder, and ends with the most memory that the process has had: that of
# the parent before exec counts in ru_maxrss.
_END = """
import sys
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
"""
_NAMES = """
import os, sys
path = sys.argv[1]
names = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else [path]
"""
_PANDAS = f"""{_NAMES}
import pandas
for name in names:
    pandas.read_csv(name, sep=r"\\s+", comment="#", header=None)
{_END}"""
_READ = f"""{_NAMES}
from torchcoll.importers.registry import runs_in
runs = [run for name in names for run in runs_in(name)]
{_END}"""
_SHOW = f"""
import sys
from torchcoll.cli import main
assert not main(["show", sys.argv[1]])
{_END}"""
_IMPORT = f"""
import sys
from torchcoll.cli import main
assert not main(["import", sys.argv[1], "-o", sys.argv[1] + ".jsonl"])
{_END}"""
# Step -> its program, and one that only starts.
_STEPS = {
    "pandas": (_PANDAS, f"import pandas{_END}"),
    "pandas again (A/A)": (_PANDAS, f"import pandas{_END}"),
    "read": (_READ, f"import torchcoll.importers.registry{_END}"),
    "show": (_SHOW, f"import torchcoll.cli{_END}"),
    "import, written": (_IMPORT, f"import torchcoll.cli{_END}"),
}


def row(chance: random.Random, size: int) -> str:
    blocks = []
    for _ in range(2):
        time_us = 20 + size / 300e3 * (1 + 0.05 * chance.random())
        algbw = size / round(time_us, 2) / 1e3
        blocks.append(f"{time_us:.2f} {algbw:.2f} {algbw * 7 / 4:.2f} 0")
    return f"{size} {size // 4} float sum -1 {' '.join(blocks)}\n"


def table(chance: random.Random, cases: int) -> str:
    rows = "".join(row(chance, 8 << number % (_TABLE // 2)) for number in range(cases // 2))
    return f"{_HEAD}{rows}# Out of bounds values : 0 OK\n#\n"


def spent(program: str, path: Path) -> tuple[float, int]:
    """(CPU seconds, MB at most) of a process."""
    words = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = status
    assert not status, said
    return used.ru_utime + used.ru_stime, int(said.split()[-2]) >> 10


def main() -> None:
    cases = int(sys.argv[1]) if sys.argv[1:] else 95_800
    chance = random.Random(1)
    title(f"{cases} cases of nccl-tests: CPU seconds beyond the start, ratio to pandas, MB at most")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "one.txt").write_text(table(chance, cases))
        tables = [table(chance, _TABLE) for _ in range(cases // _TABLE)]
        (folder / "tables.txt").write_text("".join(tables))
        (folder / "files").mkdir()
        for number, text in enumerate(tables):
            (folder / f"files/{number}.txt").write_text(text)
        for what, file in (("one table", "one.txt"), ("tables", "tables.txt"), ("files", "files")):
            base = 0.0
            for step, (program, start) in _STEPS.items():
                if program is _IMPORT and file == "files":
                    continue  # it takes files one by one
                whole_s, most_mb = spent(program, folder / file)
                cpu_s = whole_s - spent(start, folder / file)[0]
                base = base or cpu_s
                print(f"{what:10} {step:20} {cpu_s:7.2f} s {cpu_s / base:6.1f} {most_mb:6} MB")


if __name__ == "__main__":
    main()
