"""Find the best of several cells from few runs each, and estimate how much another one loses to it.

The cell with the smallest mean is not only good but also lucky. To avoid this winner's curse, no
function here selects a cell and compares with it by the same values:

* ``regret``, the estimate: the best cell is chosen without the run that it is then timed by (leave
  one out).
* ``regret_interval``: the regret is the largest of the k ratios AUTO / cell. If the lower bounds of
  all cells hold (error 2.5 % / k each, Bonferroni), the largest of them is a lower bound of the
  regret. The largest upper bound is an upper bound, and needs no correction, because only that of
  the truly best cell can fail (J. C. Hsu, Annals of Statistics 9 (1981) 1026). Dunnett's test would
  be slightly narrower, but assumes that all cells are equally noisy; LL and Simple are not.
* ``may_be_best``: contains the truly best cell with 95 % (S. S. Gupta, Technometrics 7 (1965) 225).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy

from torchcoll.stats.distributions import t_quantile
from torchcoll.stats.ratios import LEVEL, NO_SPREAD, Ratio

Values = Mapping[str, Sequence[float]]  # cell -> one figure a run, above 0
Numbers = Mapping[str, Sequence[float]]  # cell -> the number of each run in order of time


@dataclass(frozen=True)
class Drift:
    """A linear drift over the runs.

    slope: change of the logarithm of the time from one run to the next.
    squares: sum of squares of the run numbers about the mean of their cell; 0 without a drift.
    centres: mean run number of each cell.
    """

    slope: float = 0.0
    squares: float = 0.0
    centres: Mapping[str, float] = field(default_factory=dict)

    def without_drift(self, cells: Values, numbers: Numbers) -> dict[str, list[float]]:
        """The values without the drift, as if all were measured at run number 0."""
        if not self.squares:
            return {name: list(values) for name, values in cells.items()}
        return {
            name: [
                v * math.exp(-self.slope * n) for v, n in zip(figures, numbers[name], strict=True)
            ]
            for name, figures in cells.items()
        }


def fit_drift(cells: Values, numbers: Numbers | None) -> Drift:
    """Fit the drift by least squares: log value ~ cell + run number.

    Returns no drift if the order of the runs is unknown (None), or if no degree of freedom would
    remain for the noise.
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

    If each cell has one run only, it is the plain ratio to the shortest time.
    """
    logs = {name: numpy.log(values) for name, values in cells.items()}
    held = []
    for number in range(max(map(len, logs.values()))):
        remaining = {name: numpy.delete(cell_logs, number) if number < len(cell_logs) else cell_logs
                for name, cell_logs in logs.items()}  # fmt: skip
        means = {name: float(logs.mean()) for name, logs in remaining.items() if len(logs)}
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
    """95 % bounds of AUTO's time over that of the truly best cell, from AUTO / cell of each cell.

    A bound is None if there are too few runs.
    """
    rate = LEVEL / 2 / len(ratios)
    lows = [low for ratio in ratios if (low := ratio.beyond(rate)) is not None]
    highs = [ratio.high for ratio in ratios if ratio.high is not None]
    return max(lows, default=None), max(highs) if len(highs) == len(ratios) else None


def may_be_best(cells: Values, threshold: float, drift: Drift | None = None) -> list[str]:
    """The cells that tie: not shown to be slower than the best one by more than ``threshold``.

    The noise is pooled over all cells, because two cells with two runs each are not enough. A cell
    with k - 1 rivals is excluded at an error of 5 % / (k - 1), so that the truly best cell is kept
    with 95 %.
    drift: the drift that was removed from the values; its uncertainty is added to the noise.
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
            quantile = t_quantile(1 - LEVEL / (len(logs) - 1), degrees)
            margin = max(margin, quantile * math.sqrt(squares / degrees * share))
        if means[name] - means[best] <= margin:
            names.append(name)
    return names


def winner_spans(tied: Sequence[Sequence[str]]) -> list[tuple[int, int, list[str]]]:
    """The fewest spans of neighbouring sizes with a common winner: (first, last, common winners).

    tied: the possible winners at each size. A size without any (no cell was right there) belongs to
    no span and does not end one.
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
