"""Whether runs start in one of two modes, such as two placements: all cases are slow, or none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from torchcoll.core.two_modes import parted
from torchcoll.stats.statistics import Figures

_FEWEST_RUNS = 8  # of both sides: with fewer Otsu's criterion asks for more than there is
_LEAST = 2  # runs of a mode: one slow run is an outlier
_APART = 1.1  # the modes' middles, as a ratio


@dataclass(frozen=True)
class StartModes:
    """slow, runs: of the base and of the new side. factor: by how much the slow mode is slower."""

    slow: tuple[int, int]
    runs: tuple[int, int]
    factor: float


def start_modes(cases: Sequence[Figures], more_is_faster: bool = False) -> StartModes | None:
    """The modes over the cases that all runs have; None for one, or if the modes are the sides."""
    runs = sorted({run for case in cases for run in case.runs})
    whole = [case for case in cases if sorted(case.runs) == runs]
    if len(runs) < _FEWEST_RUNS or not whole:
        return None
    values = [[value for _, value in sorted(zip(c.runs, c.values, strict=True))] for c in whole]
    logs = numpy.log(values)
    logs = -logs if more_is_faster else logs
    factors = numpy.median(logs - logs.mean(axis=1, keepdims=True), axis=0)
    order = numpy.argsort(factors)
    fast = parted(factors[order].tolist(), _LEAST)
    if fast is None:
        return None
    middles = [float(numpy.median(factors[part])) for part in (order[:fast], order[fast:])]
    factor = math.exp(middles[1] - middles[0])
    slow = [runs[place][0] for place in order[fast:]]
    counts = slow.count(0), slow.count(1)
    sizes = sum(side == 0 for side, _ in runs), sum(side == 1 for side, _ in runs)
    mixed = any(0 < count < size for count, size in zip(counts, sizes, strict=True))
    return StartModes(counts, sizes, factor) if mixed and factor >= _APART else None
