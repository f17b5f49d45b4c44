"""How many measured times lie in the 90 % intervals of `torchcoll model`.

    python tests/benchmarks/coverage.py [NAME=FILE,FILE,...] ...

left out: each size between the ends, and each number of ranks, is left out in turn and predicted,
on the result files in results/, on the V100 series of model.py and on NAME=FILES, the files of one
machine with several numbers of ranks (of one number only sizes are left out).

simulated: times of a law that the model has, with normal noise of the logarithm, of each call
(noise) and of each number of ranks (shared); predicted are times with the same noise at sizes and
ranks between those of the model and beyond them. width: half of the interval over that of a law
that is known, 1.645 x noise.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy
from common import title
from model import HEAD, RESULTS, SERIES

from torchcoll.core.errors import TorchcollError
from torchcoll.curves.model_fit import fit_entries
from torchcoll.curves.model_sizes import Curve
from torchcoll.curves.validation import OVER_RANKS, validate

SIZES = numpy.array([1024.0 * 4**k for k in range(8)])
NOISES = ((0.02, 0.0), (0.1, 0.0), (0.03, 0.05))
RANKS = ((2,), (2, 4), (2, 4, 8), (2, 4, 8, 16), (2, 3, 4, 6, 8))
MODELS = 25
KIND = {"collective": "all_reduce", "op": "sum"}


def ring(ranks: int, size: float) -> float:
    return 20e3 + 2 * (ranks - 1) * 5e3 + 2 * (ranks - 1) / ranks * size / 10


def share_inside(inside: Sequence[bool]) -> str:
    return f"{100 * numpy.mean(inside):5.1f} % of {len(inside)}"


def left_out(name: str, machines: Sequence[Sequence[str]]) -> None:
    """machines: the files of each."""
    found = defaultdict(list)
    for files in machines:
        try:
            points = validate(list(files)).points
        except TorchcollError as error:
            print(f"{files[0]}: {error}", file=sys.stderr)
            continue
        ranks = sorted({point.ranks for point in points})
        for point in points:
            where = ""
            if point.over == OVER_RANKS:
                inner = ranks[0] < point.ranks < ranks[-1]
                where = " between the others" if inner else " beyond the others"
            found[point.over + where].append(point)
    for what, own in sorted(found.items(), reverse=True):
        widths = [math.sqrt(point.high_ns / point.low_ns) for point in own]
        print(
            f"{name:12} {what:26} {share_inside([point.covered for point in own]):18} "
            f"median width +-{100 * (numpy.median(widths) - 1):.0f} %, mean error "
            f"{100 * numpy.mean([point.error for point in own]):.1f} %",
            flush=True,
        )


def of_series(folder: Path) -> list[str]:
    path = folder / "v100.csv"
    lines = [
        f"all_reduce,{n},{8 << i},{us}\n"
        for n, text in SERIES.items()
        for i, us in enumerate(text.split())
    ]
    path.write_text(HEAD + "".join(lines))
    return [str(path)]


def simulated(ranks: tuple[int, ...], noise: float, shared: float) -> None:
    rng = numpy.random.default_rng([len(ranks), ranks[-1], round(1e3 * noise)])
    inside, widths = defaultdict(list), defaultdict(list)

    def drawn(n: int, sizes: Sequence[float]) -> numpy.ndarray:
        times = numpy.array([ring(n, size) for size in sizes])
        together = shared * rng.standard_normal()
        return times * numpy.exp(noise * rng.standard_normal(len(sizes)) + together)

    for _ in range(MODELS):
        curves = [Curve(n, 1, SIZES, drawn(n, SIZES), (noise,) * len(SIZES)) for n in ranks]
        (entry,) = fit_entries([(KIND, curves)])
        between = [n for n in range(ranks[0], ranks[-1]) if n not in ranks]
        asked = [("sizes between", ranks[0], SIZES[:-1] * 1.5)]
        asked += [("sizes beyond", ranks[0], SIZES[-1] * numpy.array([2, 4]))]
        if len(ranks) > 1:
            asked += [("ranks between", n, SIZES[1:-1:2]) for n in between]
            asked += [("ranks beyond", n * ranks[-1], SIZES[1:-1:2]) for n in (2, 4)]
        for what, n, sizes in asked:
            # Calls on measured ranks share the error of their curve, which is not drawn again.
            times = drawn(n, sizes)
            if n in ranks and shared:
                continue
            for size, time in zip(sizes, times, strict=True):
                found = entry.predict(round(size), n)
                inside[what].append(found.low_ns <= time <= found.high_ns)
                half = math.log(found.high_ns / found.low_ns) / 2
                widths[what].append(half / 1.645 / math.hypot(noise, shared))
    name = f"{100 * noise:g} % noise" + (f", {100 * shared:g} % shared" if shared else "")
    for what, own in inside.items():
        print(
            f"{name:20} ranks {','.join(map(str, ranks)):12} {what:14} {share_inside(own):18} "
            f"width {numpy.median(widths[what]):.1f}",
            flush=True,
        )


def main() -> None:
    sets = {name: files.split(",") for name, _, files in (a.partition("=") for a in sys.argv[1:])}
    title("coverage of the model's 90 % intervals")
    print("left out")
    for name in ("h200-8gpu-kernels", "nccl-transitions", "gloo-oneccl-2ranks"):
        left_out(name[:12], [[str(path)] for path in sorted((RESULTS / name).glob("*.jsonl"))])
    with tempfile.TemporaryDirectory() as folder:
        left_out("v100", [of_series(Path(folder))])
    for name, files in sets.items():
        left_out(name, [files])
    print("\nsimulated")
    for noise, shared in NOISES:
        for ranks in RANKS:
            simulated(ranks, noise, shared)


if __name__ == "__main__":
    main()
