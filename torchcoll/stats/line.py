"""The law of time over size that everything here is built of: latency + size / bandwidth."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray
from scipy import optimize

Floats = NDArray[numpy.float64]


def fit_line(sizes: Floats, times: Floats) -> tuple[float, float]:
    """Fit (latency in ns, ns per byte) to times in ns over sizes in bytes, neither below 0.

    Least squares of the relative deviations: otherwise the largest sizes alone would decide.
    """
    largest = float(sizes.max())
    columns = numpy.column_stack((1 / times, sizes / largest / times))
    (latency_ns, slope), _ = optimize.nnls(columns, numpy.ones(len(times)))
    return float(latency_ns), float(slope) / largest
