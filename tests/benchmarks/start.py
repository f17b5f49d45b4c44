"""CPU time of ``torchcoll --help`` and ``import torchcoll``, as multiples of what argparse takes.

python tests/benchmarks/start.py [ROUNDS]: the programs in turn; the first row is the same twice.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

BASE = ("-c", "import argparse, json")
PROGRAMS = {
    "the same again": BASE,
    "import torchcoll": ("-c", "import torchcoll"),
    "torchcoll --help": ("-m", "torchcoll", "--help"),
    "torchcoll show --help": ("-m", "torchcoll", "show", "--help"),
}


def cpu_s(arguments: tuple[str, ...]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int) -> None:
    ratios: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        base_s = cpu_s(BASE)
        for name, arguments in PROGRAMS.items():
            ratios[name].append(cpu_s(arguments) / base_s)
    for name, several in ratios.items():
        print(f"{name:22} {statistics.median(several):5.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
