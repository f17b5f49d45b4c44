"""Ratios and tests, against scipy called independently and against figures worked out by hand."""

from __future__ import annotations

import math
import warnings

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from torchcoll.analysis.stats import (
    holm,
    least_mann_whitney,
    mann_whitney,
    paired_ratio,
    welch_ratio,
)

FIGURES = st.lists(st.floats(1, 1e9), min_size=2, max_size=8)


@given(FIGURES, FIGURES)
def test_welch_is_that_of_scipy(base, new):
    found = welch_ratio(base, new)
    a, b = numpy.log(base), numpy.log(new)
    assert found.ratio == pytest.approx(math.exp(b.mean() - a.mean()))
    if found.p_value is None:
        assert a.std() < 1e-8 and b.std() < 1e-8
        return
    with warnings.catch_warnings():  # scipy warns of figures that are all but equal
        warnings.simplefilter("ignore")
        theirs = stats.ttest_ind(b, a, equal_var=False)
    assert found.p_value == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
    for level, ends in ((0.95, (found.low, found.high)), (0.9, (found.low_90, found.high_90))):
        try:
            interval = theirs.confidence_interval(level)
        except AttributeError:  # before scipy 1.11
            return
        with numpy.errstate(over="ignore"):
            assert ends == pytest.approx(tuple(numpy.exp(tuple(interval))), rel=1e-6)


def test_a_ratio_worked_out_by_hand():
    # Logarithms -0.01, 0.01 and 0.04, 0.06: a difference of 0.05, variances of 0.0002, so that the
    # error is sqrt(0.0002 / 2 * 2) = 0.01414, on 2 degrees of freedom: t = 4.3027.
    base, new = [math.exp(x) for x in (-0.01, 0.01)], [math.exp(x) for x in (0.04, 0.06)]
    found = welch_ratio(base, new)
    assert math.log(found.ratio) == pytest.approx(0.05)
    assert math.log(found.low) == pytest.approx(0.05 - 4.3027 * 0.0141421, abs=1e-6)
    assert math.log(found.high) == pytest.approx(0.05 + 4.3027 * 0.0141421, abs=1e-6)
    # t = 3.5355 on 2 degrees: p = 1 - t / sqrt(2 + t^2).
    assert found.p_value == pytest.approx(1 - 3.535534 / math.sqrt(2 + 3.535534**2), abs=1e-6)
    assert found.spread == pytest.approx(math.sqrt(0.0002))


def test_one_launch_has_a_ratio_and_nothing_else():
    found = welch_ratio([100], [110, 112])
    assert found.ratio == pytest.approx(math.sqrt(110 * 112) / 100)
    assert (found.low, found.p_value, found.spread) == (None, None, None)
    assert welch_ratio([100, 100], [110, 110]).p_value is None  # copies, not launches


def test_the_interval_turns_with_the_sides():
    one, other = welch_ratio([100, 103], [110, 120, 111]), welch_ratio([110, 120, 111], [100, 103])
    assert one.low == pytest.approx(1 / other.high)
    assert one.p_value == pytest.approx(other.p_value)


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.04: times 4, 3, 2, 1; none below the one before it.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.001, 0.5, 0.9]) == pytest.approx([0.003, 1.0, 1.0])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_lies_between_nothing_and_bonferroni(p_values):
    adjusted = holm(p_values)
    for p, a in zip(p_values, adjusted, strict=True):
        assert p <= a <= min(1, len(p_values) * p) or a == pytest.approx(p)
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_mann_whitney_cannot_go_below_its_least():
    assert least_mann_whitney(6, 6) == pytest.approx(2 / 924)
    assert mann_whitney(range(1, 7), range(11, 17)) == pytest.approx(0.0021645, abs=1e-7)
    assert least_mann_whitney(1, 1) == 1


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1, 1e9)), min_size=1, max_size=8))
def test_pairs_are_those_of_scipys_paired_t(pairs):
    base, new = zip(*pairs, strict=True)
    found = paired_ratio(base, new)
    a, b = numpy.log(base), numpy.log(new)
    assert found.ratio == pytest.approx(math.exp((b - a).mean()))
    if found.p_value is None:
        assert len(pairs) == 1 or (b - a).std() < 1e-8
        return
    with warnings.catch_warnings():  # scipy warns of differences that are all but equal
        warnings.simplefilter("ignore")
        theirs = stats.ttest_rel(b, a)
    assert found.p_value == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)


def test_the_interval_of_pairs():
    """Logarithms 0.1, 0.2, 0.3: mean 0.2, error 0.1 / sqrt 3; t is 4.3027 and 2.9200."""
    found = paired_ratio([1.0, 1.0, 1.0], [math.exp(x) for x in (0.1, 0.2, 0.3)])
    error = 0.1 / math.sqrt(3)
    assert found.low == pytest.approx(math.exp(0.2 - 4.3027 * error), rel=1e-4)
    assert found.high_90 == pytest.approx(math.exp(0.2 + 2.92 * error), rel=1e-4)
    assert found.spread == pytest.approx(0.1 / math.sqrt(2))
