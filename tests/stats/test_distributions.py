"""The distributions and estimators, against those of scipy.stats."""

from __future__ import annotations

import math

import numpy
import pytest
from scipy import optimize, stats

from torchcoll.stats import distributions


@pytest.mark.parametrize("degrees", [1, 2, 3.7, 9, 400])
def test_student(degrees):
    for share in (0.5, 0.9, 0.975, 1 - 1e-6):
        expected = stats.t.ppf(share, degrees)
        assert distributions.t_quantile(share, degrees) == pytest.approx(expected)
    for t in (-4.2, 0.3, 60):
        expected = 2 * stats.t.sf(abs(t), degrees)
        assert distributions.t_p_value(t, degrees) == pytest.approx(expected)


def test_the_others():
    assert distributions.f_quantile(0.95, 3, 5) == pytest.approx(stats.f.ppf(0.95, 3, 5))
    assert distributions.f_p_value(4.5, 2, 7) == pytest.approx(stats.f.sf(4.5, 2, 7))
    assert distributions.normal_quantile(0.75) == pytest.approx(stats.norm.ppf(0.75))
    assert distributions.chi2_median(4) == pytest.approx(stats.chi2.median(4))


def test_two_samples():
    first, second = [1.0, 2.5, 3.0, 2.2], [2.0, 4.0, 3.5]
    expected = stats.ttest_ind(first, second).pvalue
    assert distributions.two_sample_p(first, second) == pytest.approx(expected)
    assert distributions.two_sample_p([1.0, 1.0], [1.0, 1.0]) == 1
    assert distributions.two_sample_p([1.0, 1.0], [2.0, 2.0]) == 0


def test_lines():
    x, y = [1.0, 2.0, 4.0, 8.0, 8.0], [2.0, 2.5, 5.0, 7.0, 30.0]
    line = stats.linregress(x, y)
    slope, intercept = distributions.line_through(x, y)
    assert (slope, intercept) == pytest.approx((line.slope, line.intercept))


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (lambda x: x - 0.3, 0, 1),
        (lambda x: math.exp(x) - 20, 0, 50),
        (lambda x: 1e-9 - x**9, 0, 3),
        (lambda x: math.tanh(50 * (x - 0.7)), 0, 10),
        (lambda x: x, 0, 4),
    ],
)
def test_roots(function, low, high):
    expected = optimize.brentq(function, low, high)
    assert distributions.root_between(function, low, high) == pytest.approx(expected, rel=1e-9)


def test_the_nodes_of_an_integral():
    nodes, weights = distributions.gauss_legendre(20)
    assert float(numpy.cos(nodes) @ weights) == pytest.approx(2 * math.sin(1))
