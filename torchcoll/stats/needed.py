"""How many runs a result takes, and what a number of runs would show: by exact power."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy
from scipy import special

from torchcoll.stats.distributions import gauss_legendre, root_between, t_quantile
from torchcoll.stats.ratios import LEVEL, NO_SPREAD, Design, Ratio
from torchcoll.stats.sequential import FIRST_LOOK, bounds, least_t

POWER = 0.9  # how often a case is decided
SEARCH_RUNS, SEARCH_POWER = 30, 0.8  # of ``smallest_difference``
MOST_ADVISED = 60  # runs a side; nobody makes more of them
MOST_RUNS = 1000  # beyond, the answer is 'never' rather than a number
_NOISE_LEVEL = 0.1  # of the upper limit of the noise, in ``least_difference``
_NODES = 400  # of the integral
_MOST_ROUNDS = 64  # for which bounds are computed: 2.28, and 2.30 for twice as many


@dataclass(frozen=True)
class Target:
    """What decides a case: a significant difference that is larger than the threshold, or a 90 %
    interval within the threshold.

    threshold: smaller changes are 'same', 0.02 is 2 %. level: of the test for a difference.
    looks: the test is the last look of ``versus`` (sequential.py).
    """

    threshold: float
    level: float
    looks: bool = False

    @property
    def limit(self) -> float:
        return math.log1p(self.threshold)

    @property
    def least(self) -> int:
        """The fewest runs a side that are judged."""
        return FIRST_LOOK if self.looks else 1

    def t_differs(self, design: Design, runs: int) -> float:
        """The |t| beyond which the sides differ; inf if so many runs cannot show it."""
        degrees = design.degrees(runs)
        if not self.looks:
            return t_quantile(1 - self.level / 2, degrees)
        information = design.error(runs) ** -2
        return float(least_t(numpy.array(degrees), numpy.array(information), self.level))

    def t_same(self, design: Design, runs: int) -> float:
        """The t beyond which both one-sided tests show that the sides are the same."""
        bound = bounds(min(runs, _MOST_ROUNDS))[-1] if self.looks else 0.0
        share = float(special.ndtr(bound)) if self.looks else 0.95
        return t_quantile(share, design.degrees(runs))


def make_target(threshold: float, tested: int, decided: int = 0, looks: bool = False) -> Target:
    """The target of one of ``tested`` cases, ``decided`` of which differ already (Holm)."""
    return Target(threshold, LEVEL / max(tested - decided, 1), looks)


def power(what: Target, design: Design, runs: int, difference: float, spread: float) -> float:
    """How often so many runs a side decide a case correctly: as different if the true difference is
    beyond the threshold, as the same if it is within it.

    difference: the true one, of logarithms. spread: the standard deviation of one run.

    Exact: normal given the noise that is seen, integrated over that noise (a scaled chi).
    """
    degrees = design.degrees(runs)
    if degrees < 1 or runs < what.least:
        return 0.0
    seen, weights = _chi(degrees)
    away, error = abs(difference), numpy.float64(design.error(runs) * spread)
    if away > what.limit:
        least = numpy.maximum(what.limit, what.t_differs(design, runs) * seen * error)
        return float(special.ndtr((away - least) / error) @ weights)
    margin = what.t_same(design, runs) * seen
    inside = special.ndtr((what.limit - away) / error - margin)
    inside -= special.ndtr((-what.limit - away) / error + margin)
    return float(numpy.maximum(inside, 0.0) @ weights)


@functools.lru_cache(maxsize=4096)
def _chi(degrees: float) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Nodes and weights to integrate over the root of chi squared / degrees."""
    width = 8 / math.sqrt(2 * degrees)
    low, high = max(0.0, 1 - width), 1 + width
    points, weights = gauss_legendre(_NODES)
    nodes = (high + low) / 2 + (high - low) / 2 * points
    constant = math.log(2) + degrees / 2 * math.log(degrees / 2) - math.lgamma(degrees / 2)
    logs = constant + (degrees - 1) * numpy.log(nodes) - degrees * nodes**2 / 2
    return nodes, numpy.exp(logs) * weights * (high - low) / 2


@functools.lru_cache(maxsize=4096)
def least_difference(what: Target, ratio: Ratio) -> float:
    """A lower bound, as a logarithm of 0 or more, of a difference that the test of ``what`` has
    shown. At most LEVEL of all differences that are shown have a bound beyond the truth.

    A difference is shown only if the noise has made it large enough, so an ordinary interval is too
    far out: of one case at 20 % noise whose true difference is 3 %, the near end exceeded the truth
    in 2 of 3. This bound is that of Student's t given that the test has shown a difference in this
    direction (W. Fithian, D. Sun and J. Taylor, Optimal Inference After Model Selection,
    arXiv:1410.2597).

    ``versus`` ends as soon as a difference is shown, which leaves little room for that bound. The
    near end of its own interval is taken instead if a difference of this size is nearly always
    shown (``smallest_difference``, at the upper 90 % limit of the noise).
    """
    assert ratio.error is not None and ratio.spread is not None
    least = _least_shown(what, ratio, ratio.error, ratio.spread)
    if what.looks and ratio.low and ratio.high:
        end = max(math.log(ratio.low), -math.log(ratio.high))
        factor = math.sqrt(ratio.degrees / float(special.chdtri(ratio.degrees, 1 - _NOISE_LEVEL)))
        if end >= factor * math.log1p(smallest_difference(what, ratio) or 0.0):
            return max(least, end)
    return least


def _least_shown(what: Target, ratio: Ratio, error: float, spread: float) -> float:
    """The bound of Student's t given that the test has shown a difference in its direction.

    The direction off / radius, with ``off`` the estimate less the truth, depends neither on the
    radius nor on the noise: the test only limits the direction.
    """
    difference, degrees = abs(math.log(ratio.ratio)), ratio.degrees
    if what.looks:
        information = numpy.array((spread / error) ** 2)
        critical = float(least_t(numpy.array(degrees), information, what.level))
    else:
        critical = t_quantile(1 - what.level / 2, degrees)
    # A case of ``versus`` may have passed at an earlier look, and not pass any more.
    if difference <= max(critical * error, what.limit):
        return 0.0

    def beyond(direction: float) -> float:
        """The chance of a direction beyond this one."""
        if abs(direction) >= 1:
            return float(direction < 0)
        t = direction * math.sqrt(degrees / (1 - direction**2))
        return float(special.stdtr(degrees, -t))

    def excess(truth: float) -> float:
        """The chance of such a large estimate among those that are shown, less half of LEVEL."""
        off = difference - truth
        radius = math.hypot(off, math.sqrt(degrees) * error)
        share = truth / radius
        # Shown: share + direction > what.limit / radius, and
        # share + direction > critical x sqrt((1 - direction^2) / degrees), a quadratic equation.
        least = what.limit / radius - share
        root = critical**2 * (critical**2 + degrees * (1 - share**2))
        if root > 0:
            least = max(least, (math.sqrt(root) - degrees * share) / (degrees + critical**2))
        return beyond(off / radius) / max(beyond(least), sys.float_info.min) - LEVEL / 2

    if excess(0.0) >= 0:
        return 0.0
    return root_between(excess, 0.0, difference)


def runs_needed(what: Target, design: Design, difference: float, spread: float) -> int | None:
    """The least number of runs a side (of pairs) with POWER, or None for more than MOST_RUNS."""
    return _least(lambda runs: power(what, design, runs, difference, spread) >= POWER)


def smallest_difference(what: Target, ratio: Ratio) -> float | None:
    """The smallest change (0.05 is 5 %) that SEARCH_RUNS runs a side show with SEARCH_POWER."""
    if ratio.spread is None:
        return None
    degrees = ratio.design.degrees(SEARCH_RUNS)
    critical = what.t_differs(ratio.design, SEARCH_RUNS)
    far = special.nctdtrinc(degrees, 1 - SEARCH_POWER, critical)
    return math.expm1(float(far) * ratio.design.error(SEARCH_RUNS) * ratio.spread)


def runs_to_bound(ratio: Ratio, threshold: float) -> int | None:
    """Runs a side for which a 95 % interval ends below 1 + ``threshold`` with POWER."""
    margin = math.log1p(threshold) - math.log(ratio.ratio)
    if ratio.spread is None or margin < NO_SPREAD:
        return None
    design, spread = ratio.design, ratio.spread

    def enough(runs: int) -> bool:
        degrees = design.degrees(runs)
        far = margin / (design.error(runs) * spread)
        return degrees > 0 and special.nctdtr(degrees, far, t_quantile(0.975, degrees)) <= 1 - POWER

    return _least(enough)


def _least(enough: Callable[[int], bool]) -> int | None:
    """The least number of runs, from 2 on, that is enough; doubled, then halved."""
    low, high = 1, 2
    while not enough(high):
        if high >= MOST_RUNS:
            return None
        low, high = high, min(2 * high, MOST_RUNS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
