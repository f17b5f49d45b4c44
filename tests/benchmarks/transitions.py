"""How well `torchcoll transitions` finds a boundary: synthetic curves whose boundary is known.

    python tests/benchmarks/transitions.py [CURVES]

The laws are NCCL's published cost model (graph/tuning.cc of 2.24 to 2.30: base and hop latencies of
NVLink, channel and protocol limits) for all_reduce on 2, 4 or 8 ranks of one A100 or H100 node,
ring and tree with LL, LL128 and Simple; its correction of Tree by size, which steps at powers of
two, is left out. Sizes 1K to 256M, each 1.15 times the last; noise is normal in the logarithm.
A curve has one law (`one`), two that meet where they are equal (`kink`), or two that the library
hands over from 2 to 8 times too early or too late (`jump`). No size is slow by itself: a
`false dip` is one that is said to be.

The second table: one law with one slow size, anywhere from the first to the last, on few sizes and
on many: how often that size is named, and how often another one is.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field

import numpy

from torchcoll.analysis.regimes import find_regimes
from torchcoll.core.spec import Spec

NOISES = (0.01, 0.03, 0.05)
KINDS = ("one", "jump", "kink")
SIZES = numpy.array(Spec(min_bytes="1K", max_bytes="256M", factor=1.15).size_list(), dtype=float)
EDGE = 8  # sizes that each side of a boundary has at least
DIPS = (1.0, 1.5, 2.0, 3.0)  # times the law; 1: none
GRIDS = {
    "8 sizes x 4": [1 << k for k in range(20, 36, 2)],
    "9 sizes x 2": [1 << k for k in range(20, 29)],
    "16 sizes x 2": [1 << k for k in range(10, 26)],
    "90 sizes x 1.15": SIZES,
}
# Channels, GB/s of a channel; caps of LL, and of a channel of ring LL128, tree LL128, tree Simple.
MACHINES = {"A100": (12, 20, 87.7, 20, 20, 24), "H100": (12, 30, 141.0, 36.7, 29, 38.7)}


def laws(machine, n):
    """(latency in ns, algbw in GB/s) of each algorithm and protocol."""
    channels, speed, ll_cap, ring_cap, tree_cap, simple_cap = MACHINES[machine]
    bus, steps = channels * speed, 2 * (n - 1)
    tree = min(0.92 * bus, channels * simple_cap)
    return [
        (1e3 * (6.6 + steps * 0.6), min(ll_cap, 0.5 * bus) * n / steps),
        (1e3 * (14 + steps * 1.9), min(0.92 * bus, channels * ring_cap) * n / steps),
        (1e3 * (8.4 + steps * 3.4), bus * n / steps),
        (1e3 * (6.8 + steps * 0.6), min(tree / 3.8, ll_cap) / 2),
        (1e3 * (14 + steps * 1.25), min(tree * 7 / 9, channels * tree_cap) / 2),
        (1e3 * (8.4 + steps * 4), tree / 2),
    ]


def curve(random, kind):
    """Times without noise, and the size of the boundary (None: one law)."""
    while True:
        found = laws(random.choice(list(MACHINES)), int(random.choice([2, 4, 8])))
        first, second = (found[i] for i in random.choice(len(found), 2, replace=False))
        times = [latency + SIZES / bandwidth for latency, bandwidth in (first, second)]
        if kind == "one":
            return times[0], None
        if first[0] >= second[0] or first[1] >= second[1]:
            continue
        boundary = (second[0] - first[0]) / (1 / first[1] - 1 / second[1])
        if kind == "jump":
            boundary *= 2 ** (random.choice([-1, 1]) * random.uniform(1, 3))
        if EDGE <= numpy.searchsorted(SIZES, boundary) <= len(SIZES) - EDGE:
            return numpy.where(boundary >= SIZES, *times), boundary


@dataclass
class Tally:
    curves: int = 0
    found: int = 0
    containing: int = 0
    false: int = 0  # curves with a boundary that is not there
    dips: int = 0  # curves with a dip that is not there
    widths: list[int] = field(default_factory=list)

    def add(self, curve, boundary):
        found = curve.boundaries
        self.curves += 1
        self.dips += bool(curve.dips)
        self.found += bool(found)
        hits = [b for b in found if boundary and SIZES[b.low] <= boundary <= SIZES[b.high]]
        self.containing += bool(hits)
        self.false += len(found) > (boundary is not None)
        self.widths += [b.high - b.low for b in hits[:1]]


def main():
    curves = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    boundaries(numpy.random.default_rng(0), curves)
    print()
    slow_sizes(numpy.random.default_rng(1), curves)


def boundaries(random, curves):
    print(f"{len(SIZES)} sizes, {curves} curves a row; widths in steps of 1.15")
    print(
        "noise  curve  reported  of these zone holds it  false boundary  width (median)  false dip"
    )
    for noise in NOISES:
        for kind in KINDS:
            tally = Tally()
            for _ in range(curves):
                times, boundary = curve(random, kind)
                noisy = times * numpy.exp(noise * random.standard_normal(len(times)))
                tally.add(find_regimes(SIZES, noisy), boundary)
            share = tally.containing / tally.found if tally.found else math.nan
            width = f"{numpy.median(tally.widths):.0f}" if tally.widths else "-"
            holds = "-" if kind == "one" else f"{100 * share:.1f} %"
            print(
                f"{100 * noise:3.0f} %  {kind:5}  {100 * tally.found / curves:6.1f} %  {holds:>22}"
                f"  {100 * tally.false / curves:12.1f} %  {width:>14}"
                f"  {100 * tally.dips / curves:7.1f} %"
            )


def slow_sizes(random, curves):
    print("sizes            noise  slow by  named    another size named")
    machines = list(MACHINES)
    for grid, sizes in GRIDS.items():
        sizes = numpy.array(sizes, dtype=float)
        for noise in NOISES:
            named, other = dict.fromkeys(DIPS, 0), dict.fromkeys(DIPS, 0)
            for _ in range(curves):
                found = laws(random.choice(machines), int(random.choice([2, 4, 8])))
                latency, bandwidth = found[random.integers(len(found))]
                times = latency + sizes / bandwidth
                times *= numpy.exp(noise * random.standard_normal(len(sizes)))
                place = int(random.integers(len(sizes)))
                for dip in DIPS:
                    slow = times.copy()
                    slow[place] *= dip
                    dips = set(find_regimes(sizes, slow).dips)
                    named[dip] += place in dips
                    other[dip] += bool(dips - {place} if dip > 1 else dips)
            for dip in DIPS:
                known = f"{100 * named[dip] / curves:5.1f} %" if dip > 1 else "      -"
                print(
                    f"{grid:15}  {100 * noise:3.0f} %  {dip:6.1f}x  {known}"
                    f"  {100 * other[dip] / curves:18.1f} %",
                    flush=True,
                )


if __name__ == "__main__":
    main()
