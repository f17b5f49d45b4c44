"""The rule of versus against scipy's densities and integrals, and on figures made by hand."""

import math

import numpy
import pytest
from scipy import stats

from torchcoll.parts.experiments.looks import (
    Looks,
    Seen,
    bound_at,
    due,
    half_width,
    shown_same,
)
from torchcoll.stats.sequential import bounds, evidence, least_t


def seen(differences, noise=0.01, runs=6):
    """As ``runs`` a side leave it where the model has their number."""
    difference = numpy.array(differences, dtype=float)
    spread = numpy.full(difference.shape, noise)
    degrees = numpy.full(difference.shape, 2.0 * runs - 3)
    return Seen(difference, spread * math.sqrt(2 / runs), degrees, spread)


@pytest.mark.parametrize(("t", "degrees", "information"), [(0.0, 3, 1.5), (4.0, 9, 3), (-7, 21, 6)])
def test_evidence_is_the_ratio_of_two_densities(t, degrees, information):
    # effect / noise ~ N(0, 3^2): t has its scale times the root of 1 + 9 x information.
    wide = math.sqrt(1 + 9 * information)
    expected = stats.t.pdf(t / wide, degrees) / wide / stats.t.pdf(t, degrees)
    assert float(evidence(numpy.array(t), numpy.array(degrees), numpy.array(information))) == (
        pytest.approx(expected, rel=1e-9)
    )


def test_evidence_of_nothing_is_below_one_and_of_much_finite():
    found = evidence(numpy.array([0.0, 1e9]), numpy.array([5.0, 999.0]), numpy.array([2.0, 500.0]))
    assert found[0] < 1 and 1e300 < found[1] < math.inf


def test_the_interval_holds_what_evidence_does_not_reject():
    one = seen([0.03], runs=8)
    width = half_width(one)
    edge = evidence(width / one.error, one.degrees, one.information)
    assert edge == pytest.approx(20)  # 1 / 0.05
    few = seen([0.03], runs=3)
    assert least_t(few.degrees, few.information, 1e-6) == math.inf
    assert half_width(seen([0.03], noise=0.02, runs=8)) == pytest.approx(2 * width)


def test_the_bound_of_one_look_is_that_of_one_test():
    assert bounds(3) == pytest.approx([stats.norm.isf(0.05)])
    assert bound_at(3, 3) == bounds(3)[0] and bound_at(4, 3) == math.inf


def test_two_looks_spend_what_they_may():
    """Against scipy's bivariate normal: sums after 3 and 4 runs correlate with root 3/4."""
    first, second = bounds(4)
    spent = 0.05 * math.log(1 + (math.e - 1) * 3 / 4)
    assert stats.norm.sf(first) == pytest.approx(spent, rel=1e-6)
    both = stats.multivariate_normal([0, 0], [[1, math.sqrt(3 / 4)], [math.sqrt(3 / 4), 1]])
    assert 1 - both.cdf([first, second]) == pytest.approx(0.05, abs=2e-5)


def test_thirty_rounds_of_looks_are_wrong_one_time_in_twenty():
    rng = numpy.random.default_rng(0)
    sums = numpy.cumsum(rng.standard_normal((40_000, 30)), axis=1)[:, 2:]
    passed = (sums / numpy.sqrt(numpy.arange(3, 31)) > numpy.array(bounds(30))).any(axis=1)
    assert abs(passed.mean() - 0.05) < 0.0045  # four standard errors


def test_same_is_two_tests_against_the_threshold():
    limit = math.log(1.02)
    one = seen([0.0, 0.015, -0.015, 0.03], noise=0.002)
    # p of the nearer end: t of 9 degrees at (0.0198 - 0.015) / 0.00115, 4.15: 0.0012.
    assert shown_same(one, limit, stats.norm.isf(0.002)).tolist() == [True, True, True, False]
    assert shown_same(one, limit, stats.norm.isf(0.001)).tolist() == [True, False, False, False]


CASES = numpy.arange(3)


def test_a_look_settles_what_is_clear():
    found = Looks(0.02, 30).look(CASES, seen([0.1, 0.0, -0.05], noise=0.005), 6, 30)
    assert found.differs.tolist() == [1, 0, -1] and found.same.tolist() == [False, True, False]
    assert found.decided.all() and not found.futile
    assert found.p[0] < 0.001 and found.p[1] > 0.5


def test_a_difference_below_the_threshold_is_no_result():
    found = Looks(0.02, 30).look(numpy.array([0]), seen([0.0195], noise=0.001), 6, 30)
    assert not found.decided.any() and found.p[0] < 0.001


def test_the_largest_evidence_stays_and_the_figures_decide():
    looks = Looks(0.02, 30)
    one = numpy.array([0])
    assert looks.look(one, seen([0.05]), 8, 30).differs.tolist() == [1]
    back = looks.look(one, seen([0.01]), 9, 30)
    assert back.p[0] < 0.05 and not back.decided.any()
    assert looks.look(one, seen([0.03]), 10, 30).differs.tolist() == [1]


def test_same_needs_its_rounds():
    one, calm = numpy.array([0]), seen([0.001], noise=0.001, runs=31)
    late = Looks(0.02, 30)
    assert not late.look(one, calm, 31, 40).same.any()  # begun with 30: its error is spent
    early = Looks(0.02, 30)
    assert early.look(one, calm, 30, 30).same.all() and early.look(one, calm, 31, 40).same.all()


def test_holm_asks_more_where_there_are_more_cases():
    alone = Looks(0.02, 30).look(numpy.array([0]), seen([0.04]), 6, 30)
    among = Looks(0.02, 30).look(numpy.arange(25), seen([0.04, *[0.0] * 24]), 6, 30)
    assert among.p[0] == pytest.approx(25 * alone.p[0])


def test_noise_without_end_is_futile_and_a_near_settling_is_not():
    noisy = Looks(0.02, 30).look(CASES, seen([0.0, 0.01, -0.01], noise=0.1), 6, 30)
    assert noisy.futile and (noisy.chance < 0.2).all()
    near = Looks(0.02, 30).look(CASES, seen([0.0, 0.01, -0.01], noise=0.02), 6, 30)
    assert not near.futile and numpy.nanmax(near.chance) >= 0.2
    last = Looks(0.02, 30).look(CASES, seen([0.0, 0.01, -0.01], noise=0.02), 30, 30)
    assert not last.decided.all() and last.futile
    # Holm asks more evidence of each of two open cases than of one.
    alone, both = (Looks(0.02, 30).look(CASES[:n], seen([0.03] * n, 0.03), 6, 30) for n in (1, 2))
    assert alone.chance[0] > numpy.nanmax(both.chance) > 0


def test_cases_that_come_later_have_no_past():
    looks = Looks(0.02, 30)
    looks.look(numpy.array([0]), seen([0.1]), 6, 30)
    both = looks.look(numpy.array([0, 1]), seen([0.1, 0.0]), 7, 30)
    assert both.p[0] < 0.01 and both.p[1] == 1


def test_launches_in_turn():
    assert due(["a", "b"], {"a": 0, "b": 0}, 1) == ["a", "b"]
    assert due(["a", "b"], {"a": 1, "b": 1}, 2) == ["b", "a"]
    assert due(["a", "b"], {"a": 3, "b": 2}, 3) == ["b"]
    assert due(["a", "b"], {"a": 3, "b": 3}, 3) == []
