"""Where a time changed among many versions: what runs say of it, and which version to run next.

Four kinds of models explain the logarithms of the times, y, of runs of versions 0 to n - 1:

- none: one level.
- a step before version k: y = mu + d [v >= k] + noise, for each k from 1 on.
- two steps, before k1 and k2: three levels.
- a creep: y = mu + d v / (n - 1) + noise.

The levels and the standard deviation s of the noise are unknown. With a flat prior for mu and log
s, and N(0, g s**2) for each d, the probability of the data under a model with the columns X is
proportional to

    |I + g X'X|**-1/2 (y'y - y'X (X'X + I / g)**-1 X'y)**(-(runs - 1) / 2),    X and y centred

(conjugate linear model: Gelman et al., Bayesian Data Analysis, section 14.2, integrated over mu and
s). g is averaged over ``_SCALES``: steps of one to ten standard deviations. So the posterior of k
is exact for normal noise, however the versions were chosen (the choice depends on the data alone).

The next run is where it tells most: an end while it is open whether there is a change at all,
otherwise the version that divides the probability of k in half (probabilistic bisection: Horstein
1963).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

# Prior probability of each kind of model; that of a step is divided among the versions.
_PRIOR = {"none": 0.2, "step": 0.69, "two": 0.1, "creep": 0.01}
_SCALES = (1.0, 4.0, 16.0, 100.0)
# Two steps are only told from one if both are large: below two deviations they are one in practice.
_SCALES_OF_TWO = (4.0, 16.0, 100.0)
_LEAST_NOISE = 1e-4  # of a time: clocks and rounding
_LEAST_RUNS = 2  # of each of the two versions next to a step, before it is believed
_LEAST_RUNS_OF_ENDS = 4  # before the first and the last version are called the same
SURE = 0.95
_NEAR = 4  # versions next to a step


@dataclass(frozen=True)
class Posterior:
    """What runs say of where the change is.

    step[k]: probability of a single step before version k; step[0] is 0. none, two, creep: of the
    other kinds. pair: the versions before which two steps most likely are. runs[v], sums[v],
    squares[v]: how often version v was run, and the sums of its logarithms and of their squares.
    """

    step: np.ndarray
    none: float
    two: float
    creep: float
    pair: tuple[int, int]
    runs: np.ndarray
    sums: np.ndarray
    squares: np.ndarray

    @property
    def best(self) -> int:
        """The version before which the step most likely is."""
        return int(self.step.argmax())

    def range(self, share: float = SURE) -> tuple[int, int]:
        """The first and last version of the smallest set that has the step with this probability,
        if there is one step.
        """
        order = np.argsort(-self.step, kind="stable")
        total = self.step.sum()
        count = int(np.searchsorted(np.cumsum(self.step[order]), share * total)) + 1
        chosen = order[:count]
        return int(chosen.min()), int(chosen.max())

    @property
    def located(self) -> bool:
        """Whether the version is sure, if there is at most one step."""
        return bool(self.step[self.best] >= SURE * (self.none + self.step.sum()))

    def sides_of_step(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """(near, far) ranges of versions, first and last, on each side of the best step.

        A second step shows as a difference between the versions next to the step and the end. A
        side that is too short for both is missing.
        """
        k, end = self.best, len(self.runs) - 1
        sides = []
        if k - _NEAR > 0:
            sides.append(((k - _NEAR, k - 1), (0, 0)))
        if k + _NEAR <= end:
            sides.append(((k, k + _NEAR - 1), (end, end)))
        return sides

    def second_step(self) -> str:
        """Whether there is another step: ``yes``, ``no``, or '' while that is open."""
        levels = _levels(self, self.pair)
        seen = self.runs > 0
        spread = (
            self.squares.sum()
            - (self.runs * levels * (2 * self.sums / np.maximum(self.runs, 1) - levels))[seen].sum()
        )
        degrees = max(1, int(self.runs.sum()) - 3)
        noise = math.sqrt(max(spread / degrees, _LEAST_NOISE**2))
        levels_of_one = _levels(self, (self.best,))
        limit = max(abs(levels_of_one[-1] - levels_of_one[0]) / 2, 1.5 * noise)
        answer = "no"
        for near, far in self.sides_of_step():
            counts, means = zip(*(self._mean(*side) for side in (near, far)), strict=True)
            if min(counts) < _LEAST_RUNS:
                answer = ""
                continue
            error = noise * math.sqrt(sum(1 / count for count in counts))
            difference = abs(means[0] - means[1])
            sure, likely = (float(special.stdtrit(degrees, share)) for share in (0.999, 0.93))
            if difference > sure * error and difference > limit / 2:
                return "yes"
            if difference + likely * error >= limit:
                answer = ""
        return answer

    def _mean(self, first: int, last: int) -> tuple[int, float]:
        count = int(self.runs[first : last + 1].sum())
        return count, float(self.sums[first : last + 1].sum() / max(1, count))

    @property
    def decided(self) -> str:
        """``step``, ``several`` (no single version) or ``none`` once that is sure; '' before."""
        if self.none >= SURE:
            return "none"
        if self.two + self.creep >= SURE:
            return "several"
        k = self.best
        if not self.located or min(self.runs[k - 1], self.runs[k]) < _LEAST_RUNS:
            return ""
        return {"yes": "several", "no": "step", "": ""}[self.second_step()]


def posterior_of(versions: int, ran: Sequence[int], logs: Sequence[float]) -> Posterior:
    """What the runs say. ran: version of each run. logs: logarithm of its time.

    Before two versions have been run, the probabilities are those of the prior.
    """
    counts = np.bincount(np.asarray(ran, dtype=int), minlength=versions)
    firsts = np.arange(1, versions)
    pairs = _pairs(versions)
    priors = np.concatenate(
        [
            [_PRIOR["none"]],
            np.full(len(firsts), _PRIOR["step"] / len(firsts)),
            np.full(len(pairs), _PRIOR["two"] / max(1, len(pairs))),
            [_PRIOR["creep"]],
        ]
    )
    if len(ran) >= 3:
        evidence = np.concatenate(_log_evidence(versions, counts, np.asarray(ran), logs, pairs))
        weights = priors * np.exp(evidence - evidence.max())
    else:
        weights = priors
    weights = weights / weights.sum()
    last = 1 + len(firsts)
    return Posterior(
        np.concatenate([[0.0], weights[1:last]]),
        float(weights[0]),
        float(weights[last:-1].sum()),
        float(weights[-1]),
        tuple(pairs[weights[last:-1].argmax()].tolist()) if len(pairs) else (1, 1),
        counts,
        np.bincount(
            np.asarray(ran, dtype=int), weights=np.asarray(logs, float), minlength=versions
        ),
        np.bincount(
            np.asarray(ran, dtype=int), weights=np.asarray(logs, float) ** 2, minlength=versions
        ),
    )


@functools.cache
def _pairs(versions: int) -> np.ndarray:
    """All (k1, k2) with 1 <= k1 < k2 < versions."""
    return np.stack(np.triu_indices(versions - 1, 1), axis=1) + 1


def _log_evidence(
    versions: int,
    counts: np.ndarray,
    ran: np.ndarray,
    logs: Sequence[float],
    pairs: np.ndarray,
) -> list[np.ndarray]:
    """Log probability of the data under none, each step, each pair of steps, and a creep."""
    y = np.asarray(logs, dtype=float)
    y = y - y.mean()
    count = len(y)
    total = float(y @ y) + count * _LEAST_NOISE**2
    # Sums over the runs of versions from k on: of ones and of y.
    after = np.cumsum(counts[::-1])[::-1][1:].astype(float)
    sums = np.cumsum(np.bincount(ran, weights=y, minlength=versions)[::-1])[::-1][1:]
    sxx = after - after**2 / count  # of a centred indicator; y is centred already
    single = _averaged([_single(sxx, sums, total, count, g) for g in _SCALES])
    if len(pairs):
        a, b = pairs[:, 0] - 1, pairs[:, 1] - 1
        sab = after[b] - after[a] * after[b] / count  # the runs from k2 on are among those from k1
        two = _averaged(
            [
                _double((sxx[a], sab, sxx[b]), (sums[a], sums[b]), total, count, g)
                for g in _SCALES_OF_TWO
            ]
        )
    else:
        two = np.zeros(0)
    slope = ran / (versions - 1) - (ran / (versions - 1)).mean()
    slope_xx, slope_xy = np.array([slope @ slope]), np.array([slope @ y])
    creep = _averaged([_single(slope_xx, slope_xy, total, count, g) for g in _SCALES])
    none = np.array([-(count - 1) / 2 * np.log(total)])
    return [none, single, two, creep]


def _averaged(values: Sequence[np.ndarray]) -> np.ndarray:
    stacked = np.stack(values)
    top = stacked.max(axis=0)
    mean: np.ndarray = top + np.log(np.exp(stacked - top).mean(axis=0))
    return mean


def _single(sxx: np.ndarray, sxy: np.ndarray, total: float, count: int, g: float) -> np.ndarray:
    rest = total - g * sxy**2 / (1 + g * sxx)
    result: np.ndarray = -0.5 * np.log1p(g * sxx) - (count - 1) / 2 * np.log(rest)
    return result


def _double(
    xx: tuple[np.ndarray, np.ndarray, np.ndarray],
    xy: tuple[np.ndarray, np.ndarray],
    total: float,
    count: int,
    g: float,
) -> np.ndarray:
    first, cross, second = xx[0] + 1 / g, xx[1], xx[2] + 1 / g
    determinant = first * second - cross**2
    explained = (second * xy[0] ** 2 - 2 * cross * xy[0] * xy[1] + first * xy[1] ** 2) / determinant
    rest = np.maximum(total - explained, count * _LEAST_NOISE**2 / 2)
    result: np.ndarray = -0.5 * np.log(g * g * determinant) - (count - 1) / 2 * np.log(rest)
    return result


def _levels(posterior: Posterior, steps: Sequence[int]) -> np.ndarray:
    """The mean logarithm of each version if the levels change before these versions alone."""
    levels = np.empty(len(posterior.runs))
    edges = [0, *steps, len(posterior.runs)]
    overall = posterior.sums.sum() / posterior.runs.sum()
    for first, end in itertools.pairwise(edges):
        runs = posterior.runs[first:end].sum()
        levels[first:end] = posterior.sums[first:end].sum() / runs if runs else overall
    return levels


def same_ends(posterior: Posterior, threshold: float) -> bool:
    """Whether the first and the last version differ by less than ``threshold`` (a share), with 95 %
    confidence (two one-sided tests, as for equivalence).
    """
    ends = (0, len(posterior.runs) - 1)
    counts = [int(posterior.runs[end]) for end in ends]
    if min(counts) < _LEAST_RUNS_OF_ENDS:
        return False
    means = [posterior.sums[end] / posterior.runs[end] for end in ends]
    squares = sum(
        posterior.squares[end] - posterior.sums[end] ** 2 / posterior.runs[end] for end in ends
    )
    degrees = sum(counts) - 2
    error = math.sqrt(max(squares / degrees, _LEAST_NOISE**2) * sum(1 / n for n in counts))
    half = float(special.stdtrit(degrees, SURE)) * error
    return bool(abs(means[0] - means[1]) + half < math.log1p(threshold))


def next_version(posterior: Posterior) -> int:
    """The version to run next.

    An end, while it is open whether there is a change; otherwise the version that divides the
    probability of where the step is in half; of equals the one with fewer runs.
    """
    versions = range(len(posterior.step))
    ends = (0, versions[-1])
    if min(posterior.runs[end] for end in ends) < _LEAST_RUNS or posterior.none > 0.3:
        return min(ends, key=lambda end: posterior.runs[end])
    k = posterior.best
    if posterior.located:
        if min(posterior.runs[k - 1], posterior.runs[k]) < _LEAST_RUNS:
            return min((k - 1, k), key=lambda version: posterior.runs[version])
        # Whether there is another step: the versions next to this one, and the ends.
        short = min(
            (side for pair in posterior.sides_of_step() for side in pair),
            key=lambda side: posterior.runs[side[0] : side[1] + 1].sum(),
            default=(k - 1, k),
        )
        return min(range(short[0], short[1] + 1), key=lambda version: posterior.runs[version])
    below = np.cumsum(posterior.step) / max(posterior.step.sum(), 1e-300)
    return min(
        versions, key=lambda version: (round(abs(below[version] - 0.5), 3), posterior.runs[version])
    )
