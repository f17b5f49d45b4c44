"""How often the bound of a difference, as ``compare`` and ``versus`` state it, exceeds the truth.

    python tests/benchmarks/bounds.py [DIFFERENCES [compare|versus]]

Each row simulates comparisons, or whole runs of ``versus``, until so many have shown a difference
in the case that changed (without a change: in any case), or MOST were simulated. Of these
differences it prints how often the estimate exceeds the truth (the baseline: about half of them
where every difference is shown, and nearly all where few are), how often the near end of the 95 %
interval does, and how often the bound does, which should be 5 % at most; a bound in the wrong
direction exceeds the truth too. Then the medians, and how often no bound is stated. Rows of 0 % are
A/A: there every bound that is stated exceeds the truth.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy
from common import title
from compare_simulation import CHANGED, LEVEL, THRESHOLD, holm
from scipy import special
from versus import Scenario, seen_of, simulate

from torchcoll.questions.comparison.results import Judged, with_bound
from torchcoll.stats.holm import holm_levels
from torchcoll.stats.needed import Target
from torchcoll.stats.ratios import ORDERED, exp, ratio_of
from torchcoll.stats.sequential import half_width
from torchcoll.stats.statistics import least_squares, model_of, noise_share, side_error

NOISES = (0.05, 0.1, 0.2)
CHANGES = (0.0, 0.03, 0.1, 0.3)
LAUNCHES = (3, 6, 12, 30)
CASES = (1, 25)
BLOCK = 1000  # comparisons drawn at once
MOST = {"compare": 20_000, "versus": 1000}


@dataclass(frozen=True)
class Shown:
    """A difference that was shown, in logarithms in its own direction. truth: of that direction;
    end: the near end of the 95 % interval; bound: 0 where none is stated.
    """

    truth: float
    estimate: float
    end: float
    bound: float


def shown(effect: float, truth: float, half: float, judged: Judged) -> Shown:
    direction = math.copysign(1, effect)
    bound = abs(math.log(judged.least)) if judged.least else 0.0
    return Shown(direction * truth, abs(effect), max(0.0, abs(effect) - half), bound)


def comparisons(cases: int, change: float, noise: float, launches: int) -> Iterator[list[Shown]]:
    """What each comparison of A B A B ... shows, as ``compare`` computes it."""
    rng = numpy.random.default_rng([cases, launches, round(1e3 * change), round(1e3 * noise)])
    sides = (0, 1) * launches
    model = model_of(sides, tuple(map(float, range(len(sides)))))
    changed, truth = min(CHANGED, cases - 1), math.log1p(change)
    while True:
        logs = noise * rng.standard_normal((len(sides), BLOCK, cases))
        logs[:, :, changed] += truth * numpy.array(sides)[:, None]
        effect, spread, rest = least_squares(model, logs)
        share = numpy.median(noise_share(model, rest), axis=1, keepdims=True)
        error, degrees = side_error(model, rest, share)
        degrees = numpy.broadcast_to(degrees, effect.shape)
        p = 2 * special.stdtr(degrees, -abs(effect) / error)
        differs = (holm(p) < LEVEL) & (abs(effect) > math.log1p(THRESHOLD))
        for number in range(BLOCK):
            own = []
            wanted = [changed] if change else range(cases)
            for case in (i for i in wanted if differs[number, i]):
                at = number, case
                ratio = ratio_of(effect[at], error[at], degrees[at], spread[at], ORDERED)
                level = holm_levels(p[number].tolist(), LEVEL)[case]
                result = Judged((), (), "slower", "", ratio, p[at])
                judged = with_bound(result, Target(THRESHOLD, level))
                half = special.stdtrit(degrees[at], 0.975) * error[at]
                own.append(shown(effect[at], truth, half, judged))
            yield own


def runs_of_versus(cases: int, change: float, noise: float) -> Iterator[list[Shown]]:
    """What each run of ``versus`` has shown at its end."""
    scenario, seed = Scenario(noise, change, cases=cases), 0
    while True:
        seed += 1
        for one in simulate(scenario, 100, seed):
            keep = [place for place in range(len(one.sides)) if place not in one.out]
            seen = seen_of(one.sides, keep, one.figures[: len(one.sides), None])
            own = []
            wanted = [scenario.changed] if change else range(cases)
            for case in (i for i in wanted if one.last.differs[i]):
                parts = (seen.difference, seen.error, seen.degrees, seen.spread)
                ratio = ratio_of(*(float(part[0, case]) for part in parts), ORDERED)
                effect, half = math.log(ratio.ratio), float(half_width(seen)[0, case])
                ratio = replace(ratio, low=exp(effect - half), high=exp(effect + half))
                result = Judged((), (), "slower", "", ratio, one.last.p[case])
                what = Target(THRESHOLD, float(one.last.level[case]), looks=True)
                judged = with_bound(result, what)
                own.append(shown(effect, math.log1p(change), half, judged))
            yield own


def row(name: str, simulated: Iterator[list[Shown]], wanted: int, most: int) -> None:
    found: list[Shown] = []
    number = 0
    while len(found) < wanted and number < most:
        number += 1
        found += next(simulated)
    if len(found) < 20:
        print(f"{name:42} {len(found):6} of {number}", flush=True)
        return

    def beyond(what: str) -> str:
        return (
            f"{100 * numpy.mean([getattr(one, what) > max(0.0, one.truth) for one in found]):.1f} %"
        )

    def middle(what: str) -> str:
        return f"{100 * math.expm1(numpy.median([getattr(one, what) for one in found])):.1f} %"

    none = 100 * numpy.mean([one.bound == 0 for one in found])
    texts = [beyond(what) for what in ("estimate", "end", "bound")]
    texts += [middle(what) for what in ("estimate", "end", "bound")]
    print(
        f"{name:42} {len(found):6} of {number:6} {''.join(f'{text:>10}' for text in texts)}"
        f"{none:8.0f} %",
        flush=True,
    )


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    parts = sys.argv[2:] or list(MOST)
    title("bounds of differences, simulated")
    print(
        f"threshold {100 * THRESHOLD:g} %\n{'':63}{'exceeds the truth':^30}{'median':^30}\n"
        f"{'':42} {'differences':>16} "
        + "".join(f"{head:>10}" for head in ("estimate", "95 % end", "bound") * 2)
        + f"{'no bound':>10}"
    )
    for noise in NOISES:
        for change in CHANGES:
            for cases in CASES:
                name = f"{100 * change:g} % at {100 * noise:g} % noise, {cases} case" + "s" * (
                    cases > 1
                )
                for launches in LAUNCHES if "compare" in parts else ():
                    simulated = comparisons(cases, change, noise, launches)
                    row(f"{name}, {launches} runs", simulated, wanted, MOST["compare"])
                if "versus" in parts:
                    simulated = runs_of_versus(cases, change, noise)
                    row(f"{name}, versus", simulated, wanted, MOST["versus"])


if __name__ == "__main__":
    main()
