"""How well `torchcoll curve` finds a boundary: synthetic curves whose boundary is known.

    python tests/benchmarks/transitions.py [CURVES]

The laws are NCCL's published cost model (graph/tuning.cc of 2.24 to 2.30: base and hop latencies of
NVLink, channel and protocol limits) for all_reduce on 2, 4 or 8 ranks of one A100 or H100 node,
ring and tree with LL, LL128 and Simple; its correction of Tree by size, which steps at powers of
two, is left out. Noise is normal in the logarithm. A curve has one law (`one`), two that meet where
they are equal (`kink`), two that the library hands over from 2 to 8 times too early or too late
(`jump`); or one whose time is 1.15 to 2.8 times as long (as short) from some size on (`step`), or
whose bandwidth is 1.3 to 4 times as high from some size on without a jump (`bend`), or with two
steps (`two`): these at any place of the sweep alike. Curves where some law has fewer than 4 sizes
are counted apart. Then, alike: one law whose slope is 1.5 to 4 times as steep from some size on,
without a jump (`steep`), and the median of three runs of one law, one of which took 3 or 8
times as long at one size (`once x3`, `once x8`).

shown: a transition is printed. named: with a law on both sides, and a jump or none. holds: every
transition printed holds a boundary. false: more transitions than boundaries; false jump: of those
named.

The last table: one law with one slow size, anywhere from the first to the last, on few sizes and
on many: how often that size is named, and how often another one is.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy
from common import title

from torchcoll.core.spec import Spec
from torchcoll.parts.curves.ranges import FEWEST, estimate_scatter, find_ranges
from torchcoll.parts.curves.transitions import CLIFF

NOISES = (0.01, 0.03, 0.05)
KINDS = ("one", "jump", "kink", "step", "bend", "two")
MORE_KINDS = ("steep", "once x3", "once x8")
SWEEPS = (("8", "128M", 4), ("1K", "256M", 4), ("1K", "256M", 2), ("1K", "256M", 1.15))
MEETING = ("kink", "bend", "steep")  # no jump
SLOW_SIZES = (1.0, 1.5, 2.0, 3.0)  # times the law; 1: none
GRIDS = {
    "8 sizes x 4": [1 << k for k in range(20, 36, 2)],
    "9 sizes x 2": [1 << k for k in range(20, 29)],
    "16 sizes x 2": [1 << k for k in range(10, 26)],
    "90 sizes x 1.15": Spec(min_bytes="1K", max_bytes="256M", factor=1.15).size_list(),
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


def curve(random, sizes, kind):
    """Times without noise, and the sizes of its boundaries."""
    while True:
        found = laws(random.choice(list(MACHINES)), int(random.choice([2, 4, 8])))
        first, second = (found[i] for i in random.choice(len(found), 2, replace=False))
        time = first[0] + sizes / first[1]
        if kind == "one" or kind.startswith("once"):
            return time, []
        if kind in ("step", "two"):
            places = random.choice(len(sizes) - 1, 1 + (kind == "two"), replace=False)
            for place in places:
                factor = 2 ** (random.choice([-1, 1]) * random.uniform(0.2, 1.5))
                time = time * numpy.where(numpy.arange(len(sizes)) > place, factor, 1)
            return time, [float(numpy.sqrt(sizes[place] * sizes[place + 1])) for place in places]
        if kind in ("bend", "steep"):
            place = random.integers(len(sizes) - 1)
            boundary = sizes[place] * (sizes[place + 1] / sizes[place]) ** random.uniform()
            slower = (boundary / first[1]) * (
                1 - 1 / random.uniform(1.3, 4) if kind == "bend" else 1 - random.uniform(1.5, 4)
            )
            second = (first[0] + slower, boundary / (boundary / first[1] - slower))
        elif first[0] >= second[0] or first[1] >= second[1]:
            continue
        else:
            boundary = (second[0] - first[0]) / (1 / first[1] - 1 / second[1])
        if kind == "jump":
            boundary *= 2 ** (random.choice([-1, 1]) * random.uniform(1, 3))
        if sizes[0] <= boundary < sizes[-1]:
            return numpy.where(boundary >= sizes, time, second[0] + sizes / second[1]), [boundary]


def measured(random, times, noise, kind):
    """The points and what is known of their errors."""
    if not kind.startswith("once"):
        return times * numpy.exp(noise * random.standard_normal(len(times))), 0.0
    launches = times * numpy.exp(noise * random.standard_normal((3, len(times))))
    launches[0, random.integers(len(times))] *= int(kind[-1])
    known = estimate_scatter([dict(enumerate(own)) for own in launches.T], [])
    return numpy.median(launches, axis=0), known.errors


def too_few(sizes, boundaries):
    """Whether some law has fewer than FEWEST sizes."""
    before = sorted(numpy.searchsorted(sizes, boundary, side="right") for boundary in boundaries)
    return bool(min(numpy.diff([0, *before, len(sizes)])) < FEWEST)


@dataclass
class Tally:
    curves: int = 0
    shown: int = 0
    named: int = 0
    holding: int = 0
    false: int = 0
    jumps: int = 0  # named, where there is none
    widths: list[int] = field(default_factory=list)

    def add(self, kind, sizes, found, boundaries):
        self.curves += 1
        self.shown += bool(found)
        named = [b for b in found if b.jump is not None]
        self.named += bool(named)
        self.holding += bool(found) and all(
            any(sizes[b.low] <= one <= sizes[b.high] for one in boundaries) for b in found
        )
        self.false += len(found) > len(boundaries)
        if kind in MEETING:
            self.jumps += any(not 1 / CLIFF < b.jump < CLIFF for b in named)
        self.widths += [b.high - b.low for b in found[:1]]

    def texts(self, kind):
        def percent(part, of):
            return f"{100 * part / of:.1f} %" if of else "-"

        return [
            str(self.curves),
            percent(self.shown, self.curves),
            percent(self.named, self.curves),
            "-" if kind == "one" or kind.startswith("once") else percent(self.holding, self.shown),
            percent(self.false, self.curves),
            percent(self.jumps, self.named) if kind in MEETING else "-",
            f"{numpy.median(self.widths):.0f}" if self.widths else "-",
        ]


def main():
    curves = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    title("torchcoll curve, simulated")
    print(f"{curves} curves of each kind and noise; width: the median, in steps of the sweep")
    boundaries(numpy.random.default_rng(0), curves, KINDS)
    boundaries(numpy.random.default_rng(2), curves, MORE_KINDS)
    print()
    slow_sizes(numpy.random.default_rng(1), curves)


def boundaries(random, curves, kinds):
    heads = ("noise", "curve", "of", "shown", "named", "holds", "false", "false jump", "width")
    for low, high, factor in SWEEPS:
        spec = Spec(min_bytes=low, max_bytes=high, factor=factor)
        sizes = numpy.array(spec.size_list(), dtype=float)
        tallies = {}
        for noise in NOISES:
            for kind in kinds:
                for _ in range(curves):
                    times, boundaries = curve(random, sizes, kind)
                    points, errors = measured(random, times, noise, kind)
                    few = too_few(sizes, boundaries)
                    tally = tallies.setdefault((few, noise, kind), Tally())
                    tally.add(
                        kind, sizes, find_ranges(sizes, points, errors).boundaries, boundaries
                    )
        for few in (False, True):
            place = f"fewer than {FEWEST} of some law" if few else f"{FEWEST} or more of each law"
            print(f"\n{low} to {high} by {factor}: {len(sizes)} sizes; {place}")
            print("".join(f"{head:>11}" for head in heads))
            for noise in NOISES:
                for kind in kinds:
                    if tally := tallies.get((few, noise, kind)):
                        row = [f"{100 * noise:.0f} %", kind, *tally.texts(kind)]
                        print("".join(f"{text:>11}" for text in row))


def slow_sizes(random, curves):
    print("sizes            noise  slow by  named    another size named")
    machines = list(MACHINES)
    for grid, sizes in GRIDS.items():
        sizes = numpy.array(sizes, dtype=float)
        for noise in NOISES:
            named, other = dict.fromkeys(SLOW_SIZES, 0), dict.fromkeys(SLOW_SIZES, 0)
            for _ in range(curves):
                found = laws(random.choice(machines), int(random.choice([2, 4, 8])))
                latency, bandwidth = found[random.integers(len(found))]
                times = latency + sizes / bandwidth
                times *= numpy.exp(noise * random.standard_normal(len(sizes)))
                place = int(random.integers(len(sizes)))
                for slow_size in SLOW_SIZES:
                    slow = times.copy()
                    slow[place] *= slow_size
                    slow_sizes = set(find_ranges(sizes, slow).slow_sizes)
                    named[slow_size] += place in slow_sizes
                    other[slow_size] += bool(slow_sizes - {place} if slow_size > 1 else slow_sizes)
            for slow_size in SLOW_SIZES:
                known = f"{100 * named[slow_size] / curves:5.1f} %" if slow_size > 1 else "      -"
                print(
                    f"{grid:15}  {100 * noise:3.0f} %  {slow_size:6.1f}x  {known}"
                    f"  {100 * other[slow_size] / curves:18.1f} %",
                    flush=True,
                )


if __name__ == "__main__":
    main()
