"""The best of several cells without the winner's curse; values by hand or by scipy's own test."""

import math

import numpy
import pytest
from scipy import stats

from torchcoll.parts.curves.contest import (
    fit_drift,
    may_be_best,
    regret,
    regret_interval,
    winner_spans,
)
from torchcoll.stats.statistics import Figures, side_ratio

AUTO = [104.0, 101.0, 103.0, 105.0]
CELLS = {"a": [100.0, 102.0, 99.0, 101.0], "b": [110.0, 108.0, 113.0, 109.0]}


def scipy_bounds(base, new, level):
    """Welch's interval of new / base by scipy's ttest_ind."""
    test = stats.ttest_ind(numpy.log(new), numpy.log(base), equal_var=False)
    return [math.exp(bound) for bound in test.confidence_interval(level)]


def ratio(base, new):
    """new / base, start times unknown."""
    launches = [(0, n) for n in range(len(base))] + [(1, n) for n in range(len(new))]
    return side_ratio(Figures((*base, *new), tuple(launches)))


def test_the_best_is_chosen_without_the_launch_that_times_it():
    # Without the first run b looks best (100 < 120) and is timed by it: 100. Without the second
    # a does (90 < 100), and takes 120. The lucky mean of a or b alone would give 1.2.
    cells = {"a": [90.0, 120.0], "b": [100.0, 100.0]}
    assert regret([120.0, 120.0], cells) == pytest.approx(120 / math.sqrt(100 * 120))


def test_one_launch_a_cell_gives_the_plain_ratio():
    assert regret([110.0], {"a": [100.0], "b": [200.0]}) == pytest.approx(1.1)
    several = [ratio([100.0], [110.0]), ratio([200.0], [110.0])]
    assert regret_interval(several) == (None, None)


def test_launches_that_are_missing_are_no_reason_to_stop():
    # The third run of a is not there; without it both others still choose a.
    cells = {"a": [100.0, 100.0], "b": [200.0, 200.0, 200.0]}
    assert regret([150.0], cells) == pytest.approx(1.5)


def test_the_interval_is_bonferroni_below_and_plain_above():
    low, high = regret_interval([ratio(own, AUTO) for own in CELLS.values()])
    # Two cells: 2.5 % / 2 each below, so the two-sided level is 97.5 %.
    assert low == pytest.approx(max(scipy_bounds(c, AUTO, 0.975)[0] for c in CELLS.values()))
    assert high == pytest.approx(max(scipy_bounds(c, AUTO, 0.95)[1] for c in CELLS.values()))
    assert low < 103.24 / 100.49 < high


def test_a_cell_with_one_launch_leaves_no_upper_end():
    low, high = regret_interval([ratio(own, AUTO) for own in (*CELLS.values(), [90.0])])
    assert low is not None
    assert high is None


def test_the_drift_is_that_of_both_cells():
    """Slopes of 0.01 and 0.03 a run over 3 runs (squares 2) and 2 that are 4 apart (8):
    (0.02 + 0.24) / 10. At run 0 the means are 0.01 - 0.026 and 0.06 - 0.052.
    """
    cells = {"a": [1.0, math.exp(0.01), math.exp(0.02)], "b": [1.0, math.exp(0.12)]}
    numbers = {"a": [0, 1, 2], "b": [0, 4]}
    found = fit_drift(cells, numbers)
    assert (found.slope, found.squares) == (pytest.approx(0.026), pytest.approx(10))
    level = found.without_drift(cells, numbers)
    means = {name: float(numpy.log(own).mean()) for name, own in level.items()}
    assert means == pytest.approx({"a": -0.016, "b": 0.008})
    assert fit_drift(cells, None).without_drift(cells, {}) == cells
    # One degree of freedom: a slope would leave nothing to know the noise by.
    assert fit_drift({"a": [1.0, 2.0], "b": [1.0]}, {"a": [0, 2], "b": [1]}).squares == 0


@pytest.mark.parametrize(("distance", "tied"), [(0.46, True), (0.47, False)])
def test_ties_know_the_drift_as_badly_as_it_is_known(distance, tied):
    """Three runs each, squares 0.02 a cell, 3 degrees beside a drift: s^2 = 0.04 / 3. The
    centres of the run numbers are 3 apart, their squares 4: error sqrt(s^2 (2/3 + 9/4)) =
    0.19720, t(0.95, 3) = 2.35336, so the margin is 0.46409. Without the drift's share it is 0.222.
    """
    logs = numpy.array([0.0577350, -0.1154701, 0.0577350])
    cells = {"a": numpy.exp(logs).tolist(), "b": numpy.exp(logs + distance).tolist()}
    drift = fit_drift(cells, {"a": [0, 1, 2], "b": [3, 4, 5]})
    assert drift.slope == pytest.approx(0, abs=1e-12)
    assert may_be_best(cells, 0.02, drift) == (["a", "b"] if tied else ["a"])


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
    assert winner_spans(tied) == [(0, 1, ["a"]), (2, 4, ["b"]), (5, 5, ["c"])]
