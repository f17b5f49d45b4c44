"""How many runs a result takes, against noncentral t and against simulated runs."""

import dataclasses
import math

import numpy
import pytest
from scipy import stats

from torchcoll.stats import needed
from torchcoll.stats.power import holm_levels
from torchcoll.stats.ratios import (
    ONE_NOISE,
    ORDERED,
    Ratio,
    ratio_of,
)
from torchcoll.stats.sequential import bounds, least_t

LIMIT = math.log(1.02)


def at(design, runs, difference, spread, tested=25):
    return needed.power(needed.make_target(0.02, tested), design, runs, difference, spread)


@pytest.mark.parametrize("runs", [3, 6, 12])
def test_far_beyond_the_threshold_power_is_that_of_noncentral_t(runs):
    """40 % at a spread of 10 %: the threshold is in nothing's way, significance alone decides."""
    difference, spread = math.log(1.4), 0.1
    degrees = 2 * runs - 2
    far = difference / (spread * math.sqrt(2 / runs))
    quantile = stats.t.isf(0.05 / 25 / 2, degrees)
    expected = stats.nct.sf(quantile, degrees, far)
    assert at(ONE_NOISE, runs, difference, spread) == pytest.approx(expected, abs=2e-3)


def test_the_error_of_launches_in_turn():
    """By numpy's inverse of the normal equations: A B A B ... of 4 runs a side."""
    matrix = numpy.column_stack((numpy.ones(8), [0, 1] * 4, range(8)))
    assert ORDERED.error(4) == pytest.approx(math.sqrt(numpy.linalg.inv(matrix.T @ matrix)[1, 1]))
    assert (ORDERED.degrees(4), ONE_NOISE.degrees(4)) == (5, 6)


@pytest.mark.parametrize(
    ("change", "spread", "tested"), [(0.05, 0.02, 25), (0.0, 0.01, 25), (0.03, 0.01, 1)]
)
def test_the_number_is_the_least_that_settles_it_nine_times_in_ten(change, spread, tested):
    """Runs A B A B ..., by numpy's lstsq and scipy's t; with one run less it is not."""
    difference = math.log1p(change)
    number = needed.runs_needed(needed.make_target(0.02, tested), ORDERED, difference, spread)
    shares = []
    for runs in (number, number - 1):
        rng = numpy.random.default_rng(runs)
        sides = [0, 1] * runs
        matrix = numpy.column_stack((numpy.ones(2 * runs), sides, range(2 * runs)))
        noise = spread * rng.standard_normal((2 * runs, 20_000))
        logs = noise + difference * numpy.array(sides)[:, None]
        solved, squares, *_ = numpy.linalg.lstsq(matrix, logs, rcond=None)
        degrees = 2 * runs - 3
        inverse = numpy.linalg.inv(matrix.T @ matrix)[1, 1]
        error = numpy.sqrt(squares / degrees * inverse)
        if change > 0.02:
            p = 2 * stats.t.sf(abs(solved[1]) / error, degrees)
            shares.append(((p < 0.05 / tested) & (solved[1] > LIMIT)).mean())
        else:
            t = stats.t.ppf(0.95, degrees)
            shares.append((abs(solved[1]) + t * error < LIMIT).mean())
    assert shares[0] > 0.88
    assert shares[1] < 0.92


@pytest.mark.parametrize(("change", "spread"), [(0.05, 0.02), (0.0, 0.01)])
def test_with_looks_it_is_the_number_of_the_last_one(change, spread):
    """The rule of versus: evidence as the paper of Lindon and others has it, and the bounds of
    Jennison and Turnbull in the place of t's 95 %. One run less is too few.
    """
    difference = math.log1p(change)
    number = needed.runs_needed(
        needed.make_target(0.02, 25, looks=True), ORDERED, difference, spread
    )
    assert number > needed.runs_needed(needed.make_target(0.02, 25), ORDERED, difference, spread)
    shares = []
    for runs in (number, number - 1):
        rng = numpy.random.default_rng(runs)
        degrees, share = 2 * runs - 3, ORDERED.error(runs)
        seen = spread * numpy.sqrt(rng.chisquare(degrees, 20_000) / degrees)
        effect = difference + spread * share * rng.standard_normal(20_000)
        t = abs(effect) / (seen * share)
        if change > 0.02:
            r = 1 / (1 + 9 / share**2)
            logs = numpy.log((1 + r * t**2 / degrees) / (1 + t**2 / degrees))
            evidence = math.sqrt(r) * numpy.exp(-(degrees + 1) / 2 * logs)
            shares.append(((evidence > 25 / 0.05) & (effect > LIMIT)).mean())
        else:
            bound = stats.t.ppf(stats.norm.cdf(bounds(runs)[-1]), degrees)
            shares.append((abs(effect) + bound * seen * share < LIMIT).mean())
    assert shares[0] > 0.89
    assert shares[1] < 0.91


def test_nothing_is_settled_before_the_first_look():
    assert (
        needed.runs_needed(needed.make_target(0.02, 1, looks=True), ORDERED, math.log(2), 0.0001)
        == 3
    )


def test_holm_leaves_more_to_the_next_one():
    assert needed.make_target(0.02, 25).level == pytest.approx(0.002)
    assert needed.make_target(0.02, 25, 20).level == pytest.approx(0.01)
    assert needed.make_target(0.02, 5, 5).level == pytest.approx(0.05)


def test_at_the_threshold_no_number_is_enough():
    assert needed.runs_needed(needed.make_target(0.02, 1), ORDERED, LIMIT, 0.01) is None
    assert needed.runs_needed(needed.make_target(0.02, 1), ORDERED, 1.01 * LIMIT, 0.01) is None


def test_launches_that_bring_the_upper_end_below_the_threshold():
    """By simulated runs: the upper end of Student's 95 % interval of what is no difference."""
    number = needed.runs_to_bound(Ratio(1.0, spread=0.01), 0.02)
    shares = []
    for runs in (number, number - 1):
        rng = numpy.random.default_rng(runs)
        base, new = 0.01 * rng.standard_normal((2, 20_000, runs))
        squares = (base.var(axis=1, ddof=1) + new.var(axis=1, ddof=1)) / runs
        upper = stats.t.ppf(0.975, 2 * runs - 2) * numpy.sqrt(squares)
        shares.append((new.mean(axis=1) - base.mean(axis=1) + upper < LIMIT).mean())
    assert shares[0] > 0.89
    assert shares[1] < 0.91
    assert needed.runs_to_bound(Ratio(1.03, spread=0.01), 0.02) is None
    assert needed.runs_to_bound(Ratio(1.0), 0.02) is None


def shown_by_t(rng, change, noise, runs=6):
    """(estimate, bound) of 2,000 differences that one comparison by t has shown, in logarithms, in
    the direction of the truth.
    """
    degrees = 2 * runs - 2
    difference = rng.normal(math.log1p(change), noise * math.sqrt(2 / runs), 100_000)
    spread = noise * numpy.sqrt(rng.chisquare(degrees, 100_000) / degrees)
    error = spread * math.sqrt(2 / runs)
    shown = (abs(difference) > stats.t.isf(0.025, degrees) * error) & (abs(difference) > LIMIT)
    what = needed.make_target(0.02, 1)
    every = zip(difference[shown][:2000], error[shown], spread[shown], strict=False)
    return [
        (d, math.copysign(needed.least_difference(what, ratio_of(d, e, degrees, s)), d))
        for d, e, s in every
    ]


@pytest.mark.parametrize(("change", "noise"), [(0.03, 0.2), (0.1, 0.2), (0.1, 0.05), (0.3, 0.05)])
def test_of_differences_that_are_shown_at_most_one_in_twenty_has_a_bound_beyond_the_truth(
    change, noise
):
    found = shown_by_t(numpy.random.default_rng(3), change, noise)
    estimates, limits = numpy.array(found).T
    assert len(found) == 2000
    # A bound in the wrong direction, below 0, is beyond the truth too.
    wrong = (limits > math.log1p(change)) | (limits < 0)
    assert wrong.mean() <= 0.05
    # The estimates themselves would not do.
    assert (estimates > math.log1p(change)).mean() > 0.4


def test_a_bound_is_worth_stating_where_the_noise_is_small():
    """30 % at 5 % noise with 6 runs a side: the error of the ratio is 2.9 %, and 2.23 times
    that (t of 10 degrees) below the estimate is 22 %.
    """
    found = shown_by_t(numpy.random.default_rng(4), 0.3, 0.05)
    assert math.expm1(numpy.median([bound for _, bound in found])) == pytest.approx(0.22, abs=0.01)


def test_where_a_difference_is_shown_whatever_the_noise_the_bound_is_the_end_of_its_interval():
    """By hand: t of 10 degrees at 97.5 % is 2.22814."""
    ratio = ratio_of(math.log(1.3), 0.005, 10, 0.005 * math.sqrt(3))
    expected = math.log(1.3) - 2.22814 * 0.005
    assert needed.least_difference(needed.make_target(0.02, 1), ratio) == pytest.approx(
        expected, abs=1e-4
    )


def test_in_equal_sides_a_difference_that_is_shown_has_no_bound():
    found = shown_by_t(numpy.random.default_rng(5), 0.0, 0.1)
    assert numpy.mean([bound != 0 for _, bound in found]) <= 0.05


@pytest.mark.parametrize(("change", "noise", "useful"), [(0.1, 0.2, 0.0), (0.3, 0.02, 0.1)])
def test_the_bound_holds_where_every_round_is_looked_at(change, noise, useful):
    """As versus: of 3 to 30 rounds the first that shows a difference. useful: the median bound."""
    rng = numpy.random.default_rng(1)
    logs = rng.normal(0, noise, (4000, 2, 30))
    logs[:, 1] += math.log1p(change)
    what = needed.make_target(0.02, 1, looks=True)
    limits, estimates = [], []
    still_open = numpy.ones(len(logs), bool)
    for rounds in range(3, 31):
        part = logs[:, :, :rounds]
        difference = part[:, 1].mean(1) - part[:, 0].mean(1)
        spread = numpy.sqrt(part.var(2, ddof=1).mean(1))
        error = spread * math.sqrt(2 / rounds)
        degrees = 2 * rounds - 2
        half = least_t(numpy.array(degrees), numpy.array(rounds / 2), 0.05) * error
        shown = still_open & (abs(difference) > half) & (abs(difference) > LIMIT)
        still_open &= ~shown
        for d, e, s, h in numpy.column_stack((difference, error, spread, half))[shown]:
            ratio = ratio_of(d, e, degrees, s)
            ratio = dataclasses.replace(ratio, low=math.exp(d - h), high=math.exp(d + h))
            limits.append(math.copysign(needed.least_difference(what, ratio), d))
            estimates.append(d)
    assert len(limits) > 200
    wrong = (numpy.array(limits) > math.log1p(change)) | (numpy.array(limits) < 0)
    assert wrong.mean() <= 0.05
    assert numpy.mean(numpy.array(estimates) > math.log1p(change)) > 0.4
    assert math.expm1(numpy.median(limits)) >= useful


def test_the_level_that_holm_leaves_to_each_given_the_others():
    """By hand, of three: 0.05 / 3 for the first. Of 0.01, 0.02 and 0.5 each is given one of the
    others where that is below 0.05 / 3 = 0.0167: 0.02 and 0.5 have 0.01, so that 0.05 / 2 is left
    to 0.02; 0.5 has both, for 0.02 is below 0.05 / 2; 0.01 has neither.
    """
    assert holm_levels([0.01, 0.02, 0.5], 0.05) == pytest.approx([0.05 / 3, 0.05 / 2, 0.05])


def test_the_smallest_difference_that_thirty_launches_show():
    """By hand: (2.0017 + 0.8478) x 0.2 x sqrt(2 / 30) = 0.14715, of 58 degrees of freedom."""
    ratio = ratio_of(0.0, 0.1, 58, 0.2, ONE_NOISE)
    assert needed.smallest_difference(needed.make_target(0.02, 1), ratio) == pytest.approx(
        math.expm1(0.14715), rel=2e-3
    )
    # Holm over 25 cases and the rule of versus ask for more.
    more = [
        needed.smallest_difference(one, ratio)
        for one in (needed.make_target(0.02, 25), needed.make_target(0.02, 1, looks=True))
    ]
    assert min(more) > 1.2 * math.expm1(0.14715)
