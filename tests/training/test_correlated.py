"""A test of a mean whose values are correlated: parts by hand, Student's t by scipy."""

import numpy
import pytest
from scipy import stats

from torchcoll.parts.training.arrivals import (
    HIGHEST,
    chance_of_mean,
    correlation_bounds,
    detectable_mean,
    independent_values,
)


def test_a_mean_of_two_values():
    """Of correlation r, their mean has the variance (1 + r) / 2 and their sample variance is 1 - r
    on average. 3 and 1: mean 2, sample variance 2. r = 0.5: t = 2 / sqrt(2 * 1.5) with one degree
    of freedom, whose tail is 1 / 2 - atan(t) / pi.
    """
    assert independent_values(2, 0.5) == pytest.approx(2 / 1.5)
    assert chance_of_mean(numpy.array([3, 1]), 0.0) == pytest.approx(stats.t.sf(2.0, 1))
    assert chance_of_mean(numpy.array([3, 1]), 0.5) == pytest.approx(stats.t.sf(2 / 3**0.5, 1))
    constant = [chance_of_mean(numpy.array([each] * 2), 0.9) for each in (0.1, 0.0)]
    assert constant == [0.0, 1.0]
    # 97.5 % of t with one degree of freedom are below 12.706; and 1.2816 for 9 times in 10.
    found = detectable_mean(numpy.array([3, 1]), 0.0, 0.025)
    assert found == pytest.approx(12.706 + 1.2816, abs=1e-3)


def test_the_bound_of_a_correlation():
    """Few values allow a high correlation, more values or more series less. In runs of ten the
    estimate itself is high.
    """
    alternating = [(-1.0) ** (k // 2) for k in range(96)]  # ++--++-- has correlation 0

    def bound(values, ranks):
        mirrored = [numpy.outer((1, -1) * (ranks // 2), values)]
        return correlation_bounds(mirrored)[0]

    assert bound(alternating[:8], 2) > bound(alternating[:20], 2) > bound(alternating, 2) > 0.1
    assert bound(alternating[:20], 2) > bound(alternating[:20], 16) > 0
    assert bound([(-1.0) ** (k // 10) for k in range(40)], 2) == HIGHEST
    flat = numpy.outer((1, -1), numpy.ones(48))  # in short segments the estimate is too low
    assert correlation_bounds([flat[:, :12]] * 4)[0] > correlation_bounds([flat])[0] + 0.05
    constant = numpy.outer((0.1, -0.1), numpy.ones(20))
    assert correlation_bounds([constant]) == pytest.approx([0.54, 0.54], abs=0.2)
