"""Tests that expect a look after every round of runs, as ``torchcoll versus`` looks.

A test that is made for one look finds a difference
between equal sides one time in three when it is asked thirty times. So each result has a test that
expects it:

- faster, slower: an anytime-valid t in the linear model of ``compare`` (``evidence``). However
  often one looks, the chance that 1 / the largest value of an equal case ever falls below p is p at
  most. Rejected: an error spent over a fixed number of looks, which --resume would break.
- same: two one-sided tests in groups (``bounds``), whose error is spent over a fixed number of
  runs: the anytime-valid form takes twice as many runs.

numpy arrays are [case...].
"""

from __future__ import annotations

import functools
import math

import numpy
from scipy import special

from torchcoll.stats.distributions import gauss_legendre, root_between
from torchcoll.stats.ratios import LEVEL, NO_SPREAD

# Runs a side before the first look: side, number and mean leave three degrees of freedom.
FIRST_LOOK = 3
# The effects that evidence is made for, in units of the noise of one run: normal, with this
# deviation. What differs by three times the noise is found soonest; nothing else depends on it.
_LIKELY_EFFECT = 3.0


def _shrinkage(information: numpy.ndarray) -> numpy.ndarray:
    """r: how much narrower t is where nothing differs than under the prior, squared."""
    return numpy.reciprocal(1 + _LIKELY_EFFECT**2 * information)


def evidence(t: numpy.ndarray, degrees: numpy.ndarray, information: numpy.ndarray) -> numpy.ndarray:
    """How many times more likely this t is where the sides differ than where they do not.

    Source: M. Lindon, D. W. Ham, M. Tingley, I. Bojinov, Anytime-Valid Inference in Linear Models,
    arXiv:2210.08589. With a normal prior for effect / noise it is a martingale of mean 1 where
    nothing differs, so it passes 1 / p with chance p at most, at any time.
    """
    r, squared = _shrinkage(information), t**2 / degrees
    logs = numpy.log(r) / 2 - (degrees + 1) / 2 * numpy.log((1 + r * squared) / (1 + squared))
    return numpy.asarray(numpy.exp(numpy.minimum(logs, 700.0)))  # the next overflows


def least_t(degrees: numpy.ndarray, information: numpy.ndarray, level: float) -> numpy.ndarray:
    """The |t| whose ``evidence`` is 1 / level; inf where none is so strong yet."""
    r = _shrinkage(information)
    most = (1 / (level * numpy.sqrt(r))) ** (2 / (degrees + 1))
    room = 1 - most * r
    squared = numpy.where(room > 0, (most - 1) / numpy.maximum(room, NO_SPREAD**2), numpy.inf)
    return numpy.asarray(numpy.sqrt(squared * degrees))


_NODES = 300
_FAR = 8.0  # deviations, beyond which nothing is


@functools.lru_cache(maxsize=64)
def bounds(most: int) -> tuple[float, ...]:
    """What a normal deviate must pass with FIRST_LOOK, ... ``most`` runs to call a case the same.

    The error LEVEL is spent as ln(1 + (e - 1) n / most), by Pocock's type. Source: C. Jennison and
    B. W. Turnbull, Group Sequential Methods (2000), 7.2, and 19.2 for the integration.
    """
    rounds = range(FIRST_LOOK, most + 1)
    spent = [LEVEL * math.log1p((math.e - 1) * n / most) for n in rounds]
    points, weights = gauss_legendre(_NODES)
    limits: list[float] = []
    nodes, density, before = numpy.zeros(1), numpy.ones(1), 0  # of the sum: 0 before any run
    for n, now, earlier in zip(rounds, spent, [0.0, *spent], strict=False):
        step = math.sqrt(n - before)

        def passed(limit: float) -> float:
            away = (limit - nodes) / step  # noqa: B023
            return float(density @ special.ndtr(-away)) - (now - earlier)  # noqa: B023

        limit = root_between(passed, 0.0, _FAR * math.sqrt(n))
        limits.append(limit / math.sqrt(n))
        low = -_FAR * math.sqrt(n)
        new = (limit + low) / 2 + (limit - low) / 2 * points
        steps = numpy.exp(-(((new[:, None] - nodes) / step) ** 2) / 2)
        density = steps @ density / (step * math.sqrt(2 * math.pi)) * weights * (limit - low) / 2
        nodes, before = new, n
    return tuple(limits)
