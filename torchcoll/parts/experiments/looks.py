"""What each case of a ``versus`` is after every round, and when to stop.

The tests are those of ``stats/sequential.py``, which expect a look after every round. A round is
one run of each side. numpy arrays are [case...].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
from scipy import special

from torchcoll.stats.power import holm, holm_levels
from torchcoll.stats.ratios import LEVEL
from torchcoll.stats.sequential import FIRST_LOOK, bounds, evidence, least_t

_LEAST_CHANCE = 0.2  # of deciding, below which runs do not pay
_DRAWS = 200  # of that chance: right to 0.03


@dataclass(frozen=True)
class Seen:
    """The linear model after a round: difference of logarithms, its error, spread of one run."""

    difference: numpy.ndarray
    error: numpy.ndarray
    degrees: numpy.ndarray
    spread: numpy.ndarray

    @property
    def information(self) -> numpy.ndarray:
        """1 / the variance of the difference, for a noise of 1: half the runs of a side."""
        return numpy.asarray((self.spread / self.error) ** 2)


def half_width(seen: Seen) -> numpy.ndarray:
    """Half the width of the interval that holds the truth at every look, but for ``LEVEL``."""
    return numpy.asarray(least_t(seen.degrees, seen.information, LEVEL) * seen.error)


def bound_at(runs: int, most: int) -> float:
    """The bound with so many runs a side; inf beyond ``most``: the error is spent."""
    return bounds(most)[runs - FIRST_LOOK] if runs <= most else math.inf


def shown_same(seen: Seen, limit: float, bound: float) -> numpy.ndarray:
    """Whether both one-sided tests against -limit and limit pass ``bound``."""
    room = (limit - abs(seen.difference)) / seen.error
    return numpy.asarray(room >= special.stdtrit(seen.degrees, special.ndtr(bound)))


@dataclass(frozen=True)
class Decided:
    """The cases after a look.

    differs: -1 and 1 beyond the threshold, else 0. p: Holm's of 1 / the largest evidence. level:
    what p must stay below. chance: of an open case to decide with ``most`` runs a side; nan if
    another case has shown that going on pays.
    """

    differs: numpy.ndarray
    same: numpy.ndarray
    p: numpy.ndarray
    level: numpy.ndarray
    chance: numpy.ndarray

    @property
    def decided(self) -> numpy.ndarray:
        return numpy.asarray((self.differs != 0) | self.same)

    @property
    def futile(self) -> bool:
        """Whether no open case is worth further runs."""
        chances = self.chance[~self.decided]
        return len(chances) > 0 and bool((chances < _LEAST_CHANCE).all())


class Looks:
    """The looks of a ``versus``. same_most: runs a side over which the error of 'same' is spent."""

    def __init__(self, threshold: float, same_most: int) -> None:
        self.limit = math.log1p(threshold)
        self.same_most = same_most
        self._best = numpy.ones(0)  # the largest evidence
        self._same = numpy.zeros(0, bool)

    def look(self, cases: numpy.ndarray, seen: Seen, runs: int, most: int) -> Decided:
        """Looks after a round. cases: the numbers of those in ``seen``; runs: that count."""
        number = int(cases.max(initial=-1)) + 1
        more = number - len(self._best)
        if more > 0:
            self._best = numpy.concatenate((self._best, numpy.ones(more)))
            self._same = numpy.concatenate((self._same, numpy.zeros(more, bool)))
        t = seen.difference / seen.error
        current = evidence(t, seen.degrees, seen.information)
        self._best[cases] = numpy.maximum(self._best[cases], current)
        within = abs(seen.difference) < self.limit
        self._same[cases] |= shown_same(seen, self.limit, bound_at(runs, self.same_most))
        p_values = (1 / self._best[cases]).tolist()
        p, level = numpy.array(holm(p_values)), numpy.array(holm_levels(p_values, LEVEL))
        differs = numpy.where((p < LEVEL) & ~within, numpy.sign(seen.difference), 0).astype(int)
        same = self._same[cases] & within
        chance = numpy.full(len(cases), numpy.nan)
        still_open = numpy.flatnonzero((differs == 0) & ~same)
        needed = max(1, int((p >= LEVEL).sum())) / LEVEL
        # Those that are far from the threshold, one way or the other, have the best chances.
        far = abs(abs(seen.difference) - self.limit) / seen.error
        for place in still_open[numpy.argsort(-far[still_open])]:
            seen_here = Seen(*(getattr(seen, name)[place] for name in vars(seen)))
            enough = 0.0 if p[place] < LEVEL else needed
            chance[place] = self._chance(seen_here, runs, most, enough)
            if chance[place] >= _LEAST_CHANCE:
                break
        return Decided(differs, same, p, level, chance)

    def _chance(self, seen: Seen, runs: int, most: int, needed: float) -> float:
        """The share of draws in which one case is decided with ``most`` runs a side. A draw is a
        truth that these runs leave open, and what further runs would show then (predictive power:
        Jennison and Turnbull, 10.3). needed: the evidence that makes it differ.
        """
        if runs >= most:
            return 0.0
        z, first_noise, other, more = _draws(2 * (most - runs))
        now, then = seen.information, seen.information * most / runs
        noise = seen.spread * numpy.sqrt(seen.degrees / special.chdtri(seen.degrees, z))
        truth = seen.difference + noise / numpy.sqrt(now) * first_noise
        added = truth + noise / numpy.sqrt(then - now) * other
        difference = (now * seen.difference + (then - now) * added) / then
        degrees = seen.degrees + 2 * (most - runs)
        squares = seen.degrees * seen.spread**2 + noise**2 * more
        spread = numpy.sqrt(squares / degrees)
        last = Seen(difference, spread / numpy.sqrt(then), degrees, spread)
        differs = evidence(difference / last.error, degrees, then) >= needed
        end = most if runs >= self.same_most else min(most, self.same_most)
        same = shown_same(last, self.limit, bound_at(end, self.same_most))
        return float(numpy.where(abs(difference) < self.limit, same, differs).mean())


@functools.lru_cache(maxsize=256)
def _draws(degrees: int) -> tuple[numpy.ndarray, ...]:
    """The same draws in every process: a folder that is read again stops at the same run."""
    rng = numpy.random.default_rng(0)
    first_noise, other = rng.standard_normal((2, _DRAWS))
    return rng.uniform(size=_DRAWS), first_noise, other, rng.chisquare(degrees, _DRAWS)


def due(names: Sequence[str], kept: Mapping[str, int], number: int) -> list[str]:
    """The sides that lack runs for this round, in the order of starting: A B, B A, A B, ..."""
    order = names if number % 2 else list(reversed(names))
    return [name for name in order if kept[name] < number]
