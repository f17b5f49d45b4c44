"""Estimate how uncertain the times of a curve are, from its runs or from the calls of a single run.

Only this can show that scatter about a law is noise. The estimates use medians, so that a run that
was slow at a single size does not change those of the other sizes. Pure numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy

from torchcoll.stats.distributions import chi2_median, mad_scale

_90 = 3.29  # standard deviations from the 5th to the 95th percentile of normal noise
_MEDIAN = 1.25  # the standard error of a median over that of a mean
_ENOUGH = 6  # sizes: from so many on the median is used, below it the mean square


@dataclass(frozen=True)
class CurveScatter:
    """Relative standard errors of the times of a curve.

    run_error: of the time of one run at one size.
    point_error: of a point, the median of several runs at one size.
    from_runs: whether several runs were compared. If False, the errors come from the calls of one
        run; they are a lower bound, because another run may take another time.
    errors: of the point of each size, from its own runs; never below point_error.
    """

    run_error: float
    point_error: float
    from_runs: bool
    errors: tuple[float, ...]


def estimate_scatter(
    figures: Sequence[Mapping[int, float]], calls: Sequence[tuple[float, float, int]]
) -> CurveScatter | None:
    """Estimate the standard errors of a curve; None if neither runs nor calls allow it.

    A run that is slower at all sizes by the same factor does not move any point relative to the
    others, so the median deviation of each run is subtracted first.

    figures: for each size, the time of each run.
    calls: (5th percentile, 95th percentile, number of calls) of each case.
    """
    all_logs = [{k: math.log(ns) for k, ns in by_run.items() if ns > 0} for by_run in figures]
    logs = [by_run for by_run in all_logs if len(by_run) > 1]
    runs = {k for by_run in logs for k in by_run}
    free = sum(len(by_run) - 1 for by_run in logs) - (len(runs) - 1)
    if logs and free > 0:
        middles = [float(numpy.median(list(by_run.values()))) for by_run in logs]
        slower = {
            k: numpy.median(
                [by_run[k] - m for by_run, m in zip(logs, middles, strict=True) if k in by_run]
            )
            for k in runs
        }
        deviations = [[y - slower[k] for k, y in by_run.items()] for by_run in logs]
        squares = [(len(by_run) - 1) * float(numpy.var(by_run, ddof=1)) for by_run in deviations]
        if len(deviations) < _ENOUGH:
            run_error = math.sqrt(sum(squares) / free)
        else:
            share = free / sum(
                len(values) - 1 for values in deviations
            )  # the share of the degrees of freedom that remains
            run_error = math.sqrt(
                numpy.median(
                    [
                        s / chi2_median(len(values) - 1)
                        for s, values in zip(squares, deviations, strict=True)
                    ]
                )
                / share
            )
        point_error = run_error / math.sqrt(numpy.mean([len(by_run) for by_run in logs]))
        errors = [
            _median_error([y - slower[k] for k, y in by_run.items() if k in slower])
            for by_run in all_logs
        ]
        errors_of_points = tuple(max(point_error, error) for error in errors)
        return CurveScatter(run_error, point_error, True, errors_of_points)
    variances = [
        (math.log(high / low) / _90 * _MEDIAN) ** 2 / count
        for low, high, count in calls
        if low > 0 and high >= low and count > 1
    ]
    if not variances:
        return None
    error = math.sqrt(float(numpy.mean(variances)))
    return CurveScatter(error, error, False, (error,) * len(figures))


def _median_error(logs: Sequence[float]) -> float:
    """The standard error of the median of some runs, given as logarithms; 0 for a single run."""
    if len(logs) < 2:
        return 0.0
    return mad_scale(numpy.asarray(logs) - numpy.median(logs)) / math.sqrt(len(logs))
