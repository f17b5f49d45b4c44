"""The best of several cells without the winner's curse; values by hand or by scipy's own test."""

from __future__ import annotations

import math

import numpy
import pytest
from scipy import stats

from torchcoll.analysis.stats import welch_low
from torchcoll.analysis.winners import may_be_best, regret, regret_interval, runs_of_winners

AUTO = [104.0, 101.0, 103.0, 105.0]
CELLS = {"a": [100.0, 102.0, 99.0, 101.0], "b": [110.0, 108.0, 113.0, 109.0]}


def scipy_bounds(base, new, level):
    """Welch's interval of new / base by scipy's ttest_ind."""
    test = stats.ttest_ind(numpy.log(new), numpy.log(base), equal_var=False)
    return [math.exp(bound) for bound in test.confidence_interval(level)]


def test_the_best_is_chosen_without_the_launch_that_times_it():
    # Without the first launch b looks best (100 < 120) and is timed by it: 100. Without the second
    # a does (90 < 100), and takes 120. The lucky mean of a or b alone would give 1.2.
    cells = {"a": [90.0, 120.0], "b": [100.0, 100.0]}
    assert regret([120.0, 120.0], cells) == pytest.approx(120 / math.sqrt(100 * 120))


def test_one_launch_a_cell_gives_the_plain_ratio():
    assert regret([110.0], {"a": [100.0], "b": [200.0]}) == pytest.approx(1.1)
    assert regret_interval([110.0], {"a": [100.0], "b": [200.0]}) == (None, None)


def test_launches_that_are_missing_are_no_reason_to_stop():
    # The third launch of a is not there; without it both others still choose a.
    cells = {"a": [100.0, 100.0], "b": [200.0, 200.0, 200.0]}
    assert regret([150.0], cells) == pytest.approx(1.5)


def test_the_interval_is_bonferroni_below_and_plain_above():
    low, high = regret_interval(AUTO, CELLS)
    # Two cells: 2.5 % / 2 each below, so the two-sided level is 97.5 %.
    assert low == pytest.approx(max(scipy_bounds(c, AUTO, 0.975)[0] for c in CELLS.values()))
    assert high == pytest.approx(max(scipy_bounds(c, AUTO, 0.95)[1] for c in CELLS.values()))
    assert low < 103.24 / 100.49 < high


def test_a_cell_with_one_launch_leaves_no_upper_end():
    low, high = regret_interval(AUTO, {**CELLS, "c": [90.0]})
    assert low is not None
    assert high is None


def test_a_lower_bound_as_scipy_has_it():
    assert welch_low(CELLS["a"], AUTO, 0.025) == pytest.approx(
        scipy_bounds(CELLS["a"], AUTO, 0.95)[0]
    )
    assert welch_low([1.0], [2.0, 3.0], 0.025) is None


@pytest.mark.parametrize(("distance", "tied"), [(0.41, True), (0.42, False)])
def test_ties_by_pooled_noise(distance, tied):
    # Each: squares 0.02, in all 0.04 over 2 degrees: s^2 = 0.02, error of a difference sqrt(0.02).
    # One rival: t(0.95, 2) = 2.91999 (tables), so the margin is 0.41295.
    cells = {
        "a": [math.exp(-0.1), math.exp(0.1)],
        "b": [math.exp(distance - 0.1), math.exp(distance + 0.1)],
    }
    assert may_be_best(cells, 0.02) == (["a", "b"] if tied else ["a"])


def test_less_than_the_threshold_is_a_tie():
    cells = {"a": [100.0], "b": [101.9], "c": [102.1]}
    assert may_be_best(cells, 0.02) == ["a", "b"]


def test_runs_of_winners_are_as_few_as_can_be():
    tied = [["a"], ["a", "b"], ["b"], [], ["b", "c"], ["c"]]
    assert runs_of_winners(tied) == [(0, 1, ["a"]), (2, 4, ["b"]), (5, 5, ["c"])]
