"""The best of several cells from few runs each: which may be it, and what another loses to it.

The cell with the least mean of k is not only the best but also the luckiest. Against that winner's
curse nothing here compares with a cell that was chosen by the same figures as if it had been named
before:

* ``regret``, the estimate: the best is chosen without the run that it is then timed by (leave
  one out).
* ``regret_interval``: the regret is the largest of the k ratios AUTO / cell. If every cell's lower
  bound holds (error 2.5 % / k each, Bonferroni), the largest of them bounds it from below. From
  above the largest upper bound will do, and needs no correction: only that of the truly best cell
  can fail (J. C. Hsu, Annals of Statistics 9 (1981) 1026). Dunnett's test would be a little
  narrower; it assumes that all cells are equally noisy, which LL and Simple are not.
* ``may_be_best``: contains the truly best cell with 95 % (S. S. Gupta, Technometrics 7 (1965) 225).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy
from scipy import stats

from torchcoll.stats.ratios import LEVEL, NO_SPREAD, Ratio

Values = Mapping[str, Sequence[float]]  # cell -> one figure a run, above 0
Numbers = Mapping[str, Sequence[float]]  # cell -> the number of each run in order of time


@dataclass(frozen=True)
class Drift:
    """slope: of the logarithms, a run. squares: of the run numbers within their cells, 0
    where no drift is known of; centres: their means, by cell.
    """

    slope: float = 0.0
    squares: float = 0.0
    centres: Mapping[str, float] = field(default_factory=dict)

    def without_drift(self, cells: Values, numbers: Numbers) -> dict[str, list[float]]:
        """The figures as at one time, that of run number 0."""
        if not self.squares:
            return {name: list(values) for name, values in cells.items()}
        return {
            name: [
                v * math.exp(-self.slope * n) for v, n in zip(figures, numbers[name], strict=True)
            ]
            for name, figures in cells.items()
        }


def fit_drift(cells: Values, numbers: Numbers | None) -> Drift:
    """By least squares, log figure ~ cell + run number; none where times are unknown, or where
    it would leave nothing to know the noise by.
    """
    if numbers is None or sum(len(values) - 1 for values in cells.values()) < 2:
        return Drift()
    centres = {name: float(numpy.mean(numbers[name])) for name, values in cells.items() if values}
    squares = products = 0.0
    for name, centre in centres.items():
        deviations = numpy.array(numbers[name], dtype=float) - centre
        squares += float(deviations @ deviations)
        products += float(deviations @ numpy.log(cells[name]))
    return Drift(products / squares, squares, centres) if squares > NO_SPREAD else Drift()


def regret(auto: Sequence[float], cells: Values) -> float:
    """AUTO's time over that of the best cell, which is chosen without the run that times it.

    With one run a cell nothing can be left out: the plain ratio to the least time.
    """
    logs = {name: numpy.log(values) for name, values in cells.items()}
    held = []
    for number in range(max(map(len, logs.values()))):
        remaining = {name: numpy.delete(cell_logs, number) if number < len(cell_logs) else cell_logs
                for name, cell_logs in logs.items()}  # fmt: skip
        means = {
            name: float(cell_logs.mean()) for name, cell_logs in remaining.items() if len(cell_logs)
        }
        if not means:
            break
        chosen = logs[min(means, key=lambda name: means[name])]
        held += [float(chosen[number])] if number < len(chosen) else []
    best = (
        sum(held) / len(held)
        if held
        else min(float(cell_logs.mean()) for cell_logs in logs.values())
    )
    return math.exp(float(numpy.log(auto).mean()) - best)


def regret_interval(ratios: Sequence[Ratio]) -> tuple[float | None, float | None]:
    """95 % bounds of AUTO's time over the truly best cell's, from AUTO / cell of each; None where a
    run is too few.
    """
    rate = LEVEL / 2 / len(ratios)
    lows = [low for ratio in ratios if (low := ratio.beyond(rate)) is not None]
    highs = [ratio.high for ratio in ratios if ratio.high is not None]
    return max(lows, default=None), max(highs) if len(highs) == len(ratios) else None


def may_be_best(cells: Values, threshold: float, drift: Drift | None = None) -> list[str]:
    """The cells that tie: not shown to be slower than the best one, or by less than ``threshold``.

    The noise is pooled over the cells: with two runs each a pair alone could tell nothing.
    A cell with k - 1 rivals is out at an error of 5 % / (k - 1): the truly best stays with 95 %.
    drift: what was taken from the figures; it is known no better than its own error.
    """
    logs = {name: numpy.log(values) for name, values in cells.items()}
    means = {name: float(cell_logs.mean()) for name, cell_logs in logs.items()}
    best = min(means, key=lambda name: means[name])
    drifts = drift is not None and drift.squares > 0
    degrees = sum(len(cell_logs) - 1 for cell_logs in logs.values()) - drifts
    squares = sum(float(((cell_logs - cell_logs.mean()) ** 2).sum()) for cell_logs in logs.values())
    names = []
    for name, cell_logs in logs.items():
        margin = math.log1p(threshold)
        if degrees > 0 and len(logs) > 1:
            share = 1 / len(cell_logs) + 1 / len(logs[best])
            if drift is not None and drifts:
                share += (drift.centres[name] - drift.centres[best]) ** 2 / drift.squares
            quantile = float(stats.t.isf(LEVEL / (len(logs) - 1), degrees))
            margin = max(margin, quantile * math.sqrt(squares / degrees * share))
        if means[name] - means[best] <= margin:
            names.append(name)
    return names


def winner_spans(tied: Sequence[Sequence[str]]) -> list[tuple[int, int, list[str]]]:
    """The fewest runs of neighbours with a winner in common: (first, last, common winners) each.

    Places without any winner (nothing was right there) are in no run and end none.
    """
    spans: list[tuple[int, int, list[str]]] = []
    for index, names in enumerate(tied):
        if not names:
            continue
        shared = [name for name in spans[-1][2] if name in names] if spans else []
        if shared:
            spans[-1] = (spans[-1][0], index, shared)
        else:
            spans.append((index, index, list(names)))
    return spans
