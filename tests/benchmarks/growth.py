"""How often `torchcoll scaling` names a law, and how often a wrong one: curves of known laws.

    python tests/benchmarks/growth.py [CURVES]

Each part of a curve grows over the range of ranks by its share of the time on the fewest ranks;
noise is normal in the logarithm, of each run. A mixture has no name: any law is a wrong one, the
larger part too. Ranks 2 4 8; 2 3 4 8 and 2 4 8 16; 2 4 8 16 32; with 3 and with 6 runs on each.
`wrong in a cell`: the worst of those that are pooled in a row, each of CURVES curves.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy

from torchcoll.curves.growth import growths
from torchcoll.curves.rank_laws import TERMS

NOISES = (0.005, 0.02, 0.05)
RANKS = (((2, 4, 8),), ((2, 3, 4, 8), (2, 4, 8, 16)), ((2, 4, 8, 16, 32),))
LAUNCHES = (3, 6)
CURVES = (
    {},
    {"log2 n": 1.0},
    {"log2 n": 0.3},
    {"n": 1.0},
    {"n": 0.3},
    {"(n-1)/n": 1.0},
    {"(n-1)/n": 0.3},
    {"n": 0.5, "(n-1)/n": 0.5},
    {"n": 0.2, "(n-1)/n": 0.8},
    {"n": 2.1, "(n-1)/n": 0.9},
    {"log2 n": 0.5, "(n-1)/n": 0.5},
    {"log2 n": 0.5, "n": 0.5},
)


def times(parts, ranks):
    n = numpy.array(ranks, dtype=float)
    total = numpy.ones(len(n))
    for name, part in parts.items():
        scale = TERMS[name](n)
        total += part * (scale - scale.min()) / (scale.max() - scale.min())
    return 10_000 * total


def outcome(parts, growth):
    true = (list(parts) or ["constant"])[0] if len(parts) < 2 else ""
    if growth.result == true:
        return "named"
    if growth.result in TERMS or growth.result.startswith("falls with"):
        return "wrong"
    return "none of these" if "none of these" in growth.reason else "open"


def main():
    curves = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    random = numpy.random.default_rng(0)
    print(f"{'curve':28} numbers  noise   named  none of these   open  wrong  in a cell")
    for parts in CURVES:
        text = ", ".join(f"{name} +{100 * part:.0f} %" for name, part in parts.items())
        for several in RANKS:
            for noise in NOISES:
                cells = [
                    cell(random, parts, ranks, launches, noise, curves)
                    for ranks in several
                    for launches in LAUNCHES
                ]
                whole = sum(cells, Counter())
                share = {k: 100 * v / curves / len(cells) for k, v in whole.items()}
                worst = max(100 * one["wrong"] / curves for one in cells)
                columns = (("named", 6), ("none of these", 14), ("open", 6), ("wrong", 6))
                print(
                    f"{text or 'constant':28} {len(several[0]):7}  {100 * noise:4.1f} %"
                    + "".join(f" {share.get(name, 0.0):{width}.1f}" for name, width in columns)
                    + f" {worst:10.1f}",
                    flush=True,
                )


def cell(random, parts, ranks, launches, noise, curves):
    law = times(parts, ranks)
    found = Counter()
    for _ in range(curves):
        points = [
            (n, float(ns) * float(numpy.exp(noise * random.standard_normal())))
            for n, ns in zip(ranks, law, strict=True)
            for _ in range(launches)
        ]
        found[outcome(parts, growths([points])[0])] += 1
    return found


if __name__ == "__main__":
    main()
