"""How long import and show of large output of other tools take, as ratios against pandas.

    python tests/benchmarks/large_imports.py [ROWS ...]

For each number of rows (default 20000 and 95800) an nccl-tests table is written and read three
times in turn by ``torchcoll import``, ``torchcoll show`` and pandas' ``read_csv`` of the same text
(A and A again), each a process of its own, with its start. Then the same for 2,000 files of 12
rows. Printed are the medians of the seconds, and the largest memory of a process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import readers  # noqa: E402

REPEATS = 3
FILES, ROWS_OF_FILE = 2000, 12
PANDAS = """
import sys, pandas
for path in sys.argv[1:]:
    pandas.read_csv(path, sep=r"\\s+", comment="#", header=None)
"""


def run(command: list[str]) -> tuple[float, float]:
    """(seconds, peak in MB) of a process."""
    before = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command[:4])}: exit code {process.returncode}")
    return time.perf_counter() - before, usage.ru_maxrss / 1024


def compare(name: str, paths: list[str]) -> None:
    python = [sys.executable]
    commands = {
        "pandas": [*python, "-c", PANDAS, *paths],
        "pandas again (A/A)": [*python, "-c", PANDAS, *paths],
        "import": [*python, "-m", "torchcoll", "import", *paths],
        "show": [*python, "-m", "torchcoll", "show", *paths],
    }
    measured: dict[str, list[tuple[float, float]]] = {what: [] for what in commands}
    for _ in range(REPEATS):
        for what, command in commands.items():
            measured[what].append(run(command))
    seconds = {what: statistics.median(s for s, _ in each) for what, each in measured.items()}
    for what, each in measured.items():
        peak = max(mb for _, mb in each)
        against = (seconds[what] / seconds[base] for base in ("pandas", "import"))
        ratios = "  ".join(f"{ratio:8.2f}" for ratio in against)
        print(f"{name:12}  {what:18}  {seconds[what]:7.2f}  {peak:6.0f}  {ratios}", flush=True)


def main() -> None:
    heads = ("of", "what", "seconds", "MB", "/ pandas", "/ import")
    print("{:12}  {:18}  {:>7}  {:>6}  {:>8}  {:>8}".format(*heads))
    with tempfile.TemporaryDirectory() as folder:
        for rows in map(int, sys.argv[1:] or ("20000", "95800")):
            path = Path(folder, f"{rows}.txt")
            readers.ROWS = rows
            readers.nccl_tests(path, logs=False)
            compare(f"{rows} rows", [str(path)])
        paths = [Path(folder, f"{number}.log") for number in range(FILES)]
        readers.ROWS = ROWS_OF_FILE
        for path in paths:
            readers.nccl_tests(path, logs=False)
        compare(f"{FILES} files", [str(path) for path in paths])


if __name__ == "__main__":
    main()
