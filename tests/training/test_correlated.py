"""A test of a mean whose values are correlated: parts by hand, Student's t by scipy."""

import pytest
from scipy import stats

from torchcoll.parts.training.correlated import (
    HIGHEST,
    chance_of_mean,
    correlation_bounds,
    independent_values,
    student_tail,
)


def test_the_tail_of_student_is_that_of_scipy():
    for degrees in (1, 2, 3, 8, 31):
        for t in (-2.0, 0.0, 0.5, 3.0, 30.0):
            assert student_tail(t, degrees) == pytest.approx(stats.t.sf(t, degrees), abs=1e-14)


def test_a_mean_of_two_values():
    """Of correlation r, their mean has the variance (1 + r) / 2 and their sample variance is 1 - r
    on average. 3 and 1: mean 2, sample variance 2. r = 0.5: t = 2 / sqrt(2 * 1.5) with one degree
    of freedom, whose tail is 1 / 2 - atan(t) / pi.
    """
    assert independent_values(2, 0.5) == pytest.approx(2 / 1.5)
    assert chance_of_mean([3, 1], 0.0) == pytest.approx(stats.t.sf(2.0, 1))
    assert chance_of_mean([3, 1], 0.5) == pytest.approx(stats.t.sf(2 / 3**0.5, 1))
    assert (chance_of_mean([2, 2], 0.9), chance_of_mean([0, 0], 0.9)) == (0.0, 1.0)


def test_the_bound_of_a_correlation():
    """Few values allow a high correlation, more values or more series less. In runs of ten the
    estimate itself is high.
    """
    alternating = [(-1.0) ** (k // 2) for k in range(96)]  # ++--++-- has correlation 0

    def bound(values, ranks):
        mirrored = [[[sign * x for x in values]] for sign in (1, -1) * (ranks // 2)]
        return correlation_bounds(mirrored)[0]

    assert bound(alternating[:8], 2) > bound(alternating[:20], 2) > bound(alternating, 2) > 0.1
    assert bound(alternating[:20], 2) > bound(alternating[:20], 16) > 0
    assert bound([(-1.0) ** (k // 10) for k in range(40)], 2) == HIGHEST
    assert correlation_bounds([[[1.0] * 20], [[-1.0] * 20]]) == pytest.approx([0.54, 0.54], abs=0.2)
