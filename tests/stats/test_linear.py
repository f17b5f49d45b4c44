"""The model of a comparison, against statsmodels' figures and figures worked out by hand."""

from __future__ import annotations

import math
import warnings

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from torchcoll.stats.power import holm
from torchcoll.stats.statistics import (
    Figures,
    common_share,
    deleted_residuals,
    least_squares,
    model_of,
    outlier_limit,
    outliers,
    side_ratio,
)

SIDES, ORDER = (0, 1, 1, 0, 1, 0, 1), (0.0, 1.0, 2.0, 3.0, 5.0, 6.0, 8.0)
VALUES = (100.0, 104.0, 106.5, 103.0, 109.0, 104.5, 131.0)


def figures(values, sides, order=None):
    runs = tuple((side, sides[:i].count(side)) for i, side in enumerate(sides))
    return Figures(tuple(values), runs, None if order is None else tuple(order))


def test_the_ratio_is_that_of_statsmodels():
    """statsmodels 0.15.0: OLS(log(VALUES), [1, SIDES, ORDER]).fit().params[1]. The error is that
    of numpy's inverse and lstsq, the degrees by traces: 2 mean^2 / variance of y' B y.
    """
    found = side_ratio(figures(VALUES, SIDES, ORDER), 0.8)
    assert math.log(found.ratio) == pytest.approx(0.06810141631523671)
    matrix, logs = numpy.column_stack((numpy.ones(7), SIDES, ORDER)), numpy.log(VALUES)
    rest = logs - matrix @ numpy.linalg.lstsq(matrix, logs, rcond=None)[0]
    inverse = numpy.linalg.inv(matrix.T @ matrix)
    maker = numpy.eye(7) - matrix @ inverse @ matrix.T
    row, form, error = (inverse @ matrix.T)[1], numpy.zeros((7, 7)), 0.0
    for side in (0, 1):
        own = [i for i in range(7) if SIDES[i] == side]
        share = sum(row[i] ** 2 for i in own) / sum(maker[i, i] for i in own)
        error += share * sum(rest[i] ** 2 for i in own)
        form += sum(share * numpy.outer(maker[i], maker[i]) for i in own)
    noise = numpy.diag([0.8 if side else 0.2 for side in SIDES])
    degrees = numpy.trace(form @ noise) ** 2 / numpy.trace(form @ noise @ form @ noise)
    assert (found.error, found.degrees) == (pytest.approx(math.sqrt(error)), pytest.approx(degrees))
    t = math.log(found.ratio) / math.sqrt(error)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(t), degrees))
    ends = [math.log(end) for end in (found.low, found.high, found.low_90, found.high_90)]
    far = [stats.t.ppf(q, degrees) * found.error for q in (0.025, 0.975, 0.05, 0.95)]
    assert ends == pytest.approx([math.log(found.ratio) + one for one in far])


def test_without_start_times_it_is_welchs_t():
    found = side_ratio(figures(VALUES, SIDES))
    base, new = (
        [math.log(v) for v, side in zip(VALUES, SIDES, strict=True) if side == number]
        for number in (0, 1)
    )
    welch = stats.ttest_ind(new, base, equal_var=False)
    assert found.p_value == pytest.approx(welch.pvalue)
    # Welch and Satterthwaite, by hand.
    squares = numpy.var(base, ddof=1) / 3, numpy.var(new, ddof=1) / 4
    assert found.degrees == pytest.approx(
        sum(squares) ** 2 / (squares[0] ** 2 / 2 + squares[1] ** 2 / 3)
    )
    assert found.error == pytest.approx(math.sqrt(sum(squares)))


def sided(base, new):
    return side_ratio(figures((*base, *new), (0,) * len(base) + (1,) * len(new)))


FIGURES = st.lists(st.floats(1, 1e9), min_size=2, max_size=8)


@given(FIGURES, FIGURES)
def test_welch_is_that_of_scipy(base, new):
    found = sided(base, new)
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
    found = sided(base, new)
    assert math.log(found.ratio) == pytest.approx(0.05)
    assert math.log(found.low) == pytest.approx(0.05 - 4.3027 * 0.0141421, abs=1e-6)
    assert math.log(found.high) == pytest.approx(0.05 + 4.3027 * 0.0141421, abs=1e-6)
    # One-sided, t(0.95, 2) = 2.91999.
    assert math.log(found.beyond(0.05)) == pytest.approx(0.05 - 2.91999 * 0.0141421, abs=1e-6)
    # t = 3.5355 on 2 degrees: p = 1 - t / sqrt(2 + t^2).
    assert found.p_value == pytest.approx(1 - 3.535534 / math.sqrt(2 + 3.535534**2), abs=1e-6)
    assert found.spread == pytest.approx(math.sqrt(0.0002))


def test_one_launch_has_a_ratio_and_nothing_else():
    found = sided([100], [110, 112])
    assert found.ratio == pytest.approx(math.sqrt(110 * 112) / 100)
    assert (found.low, found.p_value, found.spread) == (None, None, None)
    assert found.beyond(0.05) is None
    assert sided([100, 100], [110, 110]).p_value is None  # copies, not runs


def test_the_interval_turns_with_the_sides():
    one, other = sided([100, 103], [110, 120, 111]), sided([110, 120, 111], [100, 103])
    assert one.low == pytest.approx(1 / other.high)
    assert one.p_value == pytest.approx(other.p_value)


@pytest.mark.parametrize(("base", "new"), [(12, 4), (12, 6)])
def test_a_side_that_is_noisier_is_no_difference(base, new):
    """3 times as noisy, nothing changed, 25 cases: 5 % of 60 comparisons are 9 or more once in 400
    times. With one noise for both sides 12 against 4 are called different in 7 of 10, against 6
    in 4 of 10.
    """
    rng = numpy.random.default_rng(4)
    sides = {4: (0, 0, 1, 0) * 4, 6: (0, 1, 0) * 6}[new]
    assert (sides.count(0), sides.count(1)) == (base, new)
    noise = numpy.array([0.03 if side else 0.01 for side in sides])
    alarms = 0
    for _ in range(60):
        values = 100 * numpy.exp(noise * rng.standard_normal((25, len(sides))))
        every = [figures(own.tolist(), sides, range(len(sides))) for own in values]
        share = common_share(every)
        ratios = [side_ratio(one, share) for one in every]
        adjusted = holm([one.p_value for one in ratios])
        alarms += any(
            p < 0.05 and abs(math.log(one.ratio)) > math.log(1.02)
            for p, one in zip(adjusted, ratios, strict=True)
        )
    assert alarms < 9


def test_the_deleted_residuals_are_those_of_statsmodels():
    """statsmodels 0.15.0: OLSInfluence(...).resid_studentized_external of the same model, on
    4 - 1 degrees of freedom; here as normal deviates of the same p.
    """
    t = [1.19068058, -0.20842963, -0.15491665, 0.10132464, -1.16793145, -1.42516296, 12.88980876]
    model = model_of(SIDES, ORDER)
    rest = least_squares(model, numpy.log(VALUES))[2]
    found, off = deleted_residuals(model, rest)
    assert found == pytest.approx(stats.norm.ppf(stats.t.cdf(t, 3)), rel=1e-6)
    assert math.exp(off[-1]) == pytest.approx(_by_the_others(), rel=1e-9)


def _by_the_others():
    """131 over what least squares of the six other runs (numpy's lstsq) gives for the last."""
    matrix = numpy.column_stack((numpy.ones(7), SIDES, ORDER))
    solved = numpy.linalg.lstsq(matrix[:-1], numpy.log(VALUES[:-1]), rcond=None)[0]
    return 131 / math.exp(matrix[-1] @ solved)


def test_a_drift_is_no_difference():
    # 1 % a run, all of one side first: 100, 101, ... and then 106.15, ...
    values = [100 * 1.01**i * (1.001 if i % 2 else 1) for i in range(12)]
    found = side_ratio(figures(values, (0,) * 6 + (1,) * 6, range(12)))
    assert found.low < 1 < found.high
    # The means differ by 1.01 ** 6, as a table shows them; no difference is found.
    assert found.ratio == pytest.approx(1.01**6, abs=0.001)
    assert found.p_value > 0.05
    # Where the times are unknown it is one of 1.01^6.
    assert side_ratio(figures(values, (0,) * 6 + (1,) * 6)).ratio == pytest.approx(1.01**6)


def test_one_side_after_the_other_never_contradicts_the_means():
    """Two series of the same command in ms, where the drift alone made the second 2.0x faster."""
    values, sides = (0.909, 1.039, 1.570, 1.061, 1.273, 2.064), (0, 0, 0, 1, 1, 1)
    found = side_ratio(figures(values, sides, range(6)))
    assert found.ratio == pytest.approx(
        (1.061 * 1.273 * 2.064 / (0.909 * 1.039 * 1.570)) ** (1 / 3)
    )
    assert found.p_value == 1.0
    assert found.low < 0.5 < found.ratio < found.high  # what either model leaves possible
    alternating = side_ratio(figures(values, sides, (0, 2, 4, 1, 3, 5)))
    assert alternating.p_value < 1.0


def test_sides_that_began_at_one_instant_each():
    """Side and run number are one column: what is left is the side."""
    values, sides = (100.0, 102.0, 110.0, 113.0), (0, 0, 1, 1)
    found = side_ratio(figures(values, sides, (0.0, 0.0, 1.0, 1.0)))
    assert found == side_ratio(figures(values, sides))
    assert 1 < found.degrees < 2
    assert not figures(values, sides, (0.0, 0.0, 1.0, 1.0)).interleaved


@pytest.mark.parametrize(
    ("sides", "degrees"),
    [("AB", 0), ("AAB", 0), ("AAAB", 0), ("AABB", 1), ("ABBA", 1), ("ABABA", 2)],
)
def test_few_launches(sides, degrees):
    """One run a side has no spread of its own; 2 + 2 have one degree of freedom."""
    numbers = tuple(int(letter == "B") for letter in sides)
    values = (100.0, 103.0, 104.0, 101.0, 102.0)[: len(sides)]
    found = side_ratio(figures(values, numbers, range(len(sides))))
    assert found.degrees == pytest.approx(degrees, rel=0.05)
    assert (found.p_value is None) == (degrees == 0)
    if degrees == 0:
        base = [v for v, s in zip(values, numbers, strict=True) if s == 0]
        new = [v for v, s in zip(values, numbers, strict=True) if s == 1]
        assert found.ratio == pytest.approx(stats.gmean(new) / stats.gmean(base))


@pytest.mark.parametrize(
    ("order", "sides", "answer"),
    [
        ((0, 1, 2, 3), (0, 0, 1, 1), False),
        ((2, 3, 0, 1), (0, 0, 1, 1), False),
        ((0, 2, 1, 3), (0, 0, 1, 1), True),
        ((0, 1, 0, 1), (0, 0, 1, 1), True),  # both sides of the same runs
        (None, (0, 0, 1, 1), True),
    ],
)
def test_whether_the_launches_were_interleaved(order, sides, answer):
    assert figures((1.0, 2.0, 3.0, 4.0), sides, order).interleaved is answer


def cases(count, slow=(), factor=1.3, runs=12):
    """Noise of 1 %, the runs in ``slow`` slow by ``factor`` in every case."""
    rng = numpy.random.default_rng(5)
    sides = (0, 1) * (runs // 2)
    found = []
    for _ in range(count):
        values = 100 * numpy.exp(0.01 * rng.standard_normal(runs))
        values[list(slow)] *= factor
        found.append(figures(values.tolist(), sides, range(runs)))
    return found


def test_a_launch_that_is_slow_in_all_cases_is_left_out():
    (one,) = outliers(cases(25, [3]))
    assert one.run == (1, 1)
    assert one.factor == pytest.approx(1.3, abs=0.01)
    assert one.t > one.limit
    # Two-sided, 1 % / 12: the normal deviate of 0.01 / 24.
    assert one.limit == pytest.approx(stats.norm.isf(0.01 / 24)) == outlier_limit(12)
    assert outliers(cases(25)) == []


def test_two_launches_are_left_out_and_no_third():
    # One that is slower, so that none hides behind the others.
    several = [
        figures(
            [v * (1.5 if i == 2 else 1) for i, v in enumerate(case.values)],
            tuple(side for side, _ in case.runs),
            case.order,
        )
        for case in cases(25, [7])
    ]
    assert [one.run for one in outliers(several)] == [(0, 1), (1, 3)]
    thrice = [
        figures(
            [v * {2: 6.0, 7: 2.5}.get(i, 1) for i, v in enumerate(case.values)],
            tuple(side for side, _ in case.runs),
            case.order,
        )
        for case in cases(25, [9])
    ]
    assert [one.run for one in outliers(thrice)] == [(0, 1), (1, 3)]


def test_outliers_of_cases_with_different_launches():
    """(0, 0) is twice as slow, in cases of seven runs alone, and (1, 3) by half. Without
    (1, 3) six are left, of which none can be judged: (0, 0) keeps the figures of all seven.
    """
    many = [case.without([(0, 0)]) for case in cases(20, [7], 1.5)]
    few = []
    for case in cases(25, [0], 2.5):
        values = [v * (1.5 if launch == (1, 3) else 1)
                  for v, launch in zip(case.values, case.runs, strict=True)]  # fmt: skip
        slow = Figures(tuple(values), case.runs, case.order)
        few.append(slow.without([(0, 4), (0, 5), (1, 1), (1, 4), (1, 5)]))
    found = outliers([*many, *few])
    assert [one.run for one in found] == [(0, 0), (1, 3)]
    assert found[0].factor > 2
    assert found[1].factor == pytest.approx(1.5, abs=0.02)


def test_a_launch_that_is_slow_in_some_cases_stays():
    """Case by case it would be left out where it is far off, and the errors would grow."""
    mixed = cases(10, [3])[:10] + cases(25)[10:]
    assert outliers(mixed) == []


def test_a_side_keeps_three_launches():
    values = (100.0, 101.0, 99.0, 100.0, 100.5, 200.0, 99.5, 100.0, 99.0)
    three, four = (0, 1, 0, 0, 0, 1, 1, 0, 0), (0, 1, 0, 0, 0, 1, 1, 0, 1)
    assert outliers([figures(values, three, range(9))] * 5) == []
    (one,) = outliers([figures(values, four, range(9))] * 5)
    assert one.run == (1, 1)


def test_of_few_cases_an_outlier_is_one_on_the_noise_of_its_own_side():
    """Five base runs within 0.4 %, and four new ones that are off by -8, -2, 3 and 9 %: the
    last is far from all others and not from the three of its side.
    """
    logs = (0.002, -0.08, -0.001, -0.02, 0.001, 0.03, -0.002, 0.001, 0.09)
    sides = (0, 1, 0, 1, 0, 1, 0, 0, 1)
    case = figures(numpy.exp(logs).tolist(), sides, range(9))
    calm = (0.002, -0.002, -0.001, 0.001, 0.001, -0.001, -0.002, 0.001, 0.09)
    assert outliers([case]) == outliers([case] * 4) == []
    alike = figures(numpy.exp(calm).tolist(), sides, range(9))
    assert [one.run for one in outliers([alike] * 5)] == [(1, 3)]


def test_of_six_launches_none_is_left_out():
    """1000, 1000, 1010, 1010 have a line through them, without the other two."""
    assert outliers([figures((1000, 1000, 1010, 1010, 990, 990), (0, 1) * 3, range(6))]) == []
