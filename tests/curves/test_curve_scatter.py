"""What runs and calls tell of noise: figures that can be computed in the head."""

import math

import pytest

from torchcoll.parts.curves.ranges import estimate_scatter


def test_launches_that_differ_at_one_size_more_than_at_another():
    # Logarithms 0 and 0.1 at one size, 0 and -0.1 at the other: +-0.05 about means of which neither
    # run is the slower one. 4 x 0.05^2 = 0.01, with 2 - 1 degrees of freedom.
    scatter = estimate_scatter([{0: 1.0, 1: math.exp(0.1)}, {0: 1.0, 1: math.exp(-0.1)}], [])
    assert (scatter.run_error, scatter.from_runs) == (pytest.approx(0.1), True)
    assert scatter.point_error == pytest.approx(0.1 / math.sqrt(2))


def test_a_launch_that_is_slower_at_all_sizes_moves_no_point():
    scatter = estimate_scatter([{0: 10.0, 1: 20.0}, {0: 7.0, 1: 14.0}, {0: 5.0, 1: 10.0}], [])
    assert scatter.run_error == pytest.approx(0, abs=1e-9)


def test_calls_of_one_launch_tell_the_least():
    # 3.29 standard deviations of 8 % from the 5th to the 95th percentile, 100 calls, a median.
    scatter = estimate_scatter([{0: 1.0}], [(1.0, math.exp(3.29 * 0.08), 100)])
    assert (scatter.run_error, scatter.from_runs) == (pytest.approx(0.08 * 1.25 / 10), False)
    assert scatter.point_error == scatter.run_error


@pytest.mark.parametrize("calls", [[], [(0.0, 1.0, 9)], [(1.0, 2.0, 1)]])
def test_what_nothing_tells_is_not_known(calls):
    # Two runs at one size: their difference may be that of the whole run.
    assert estimate_scatter([{0: 1.0, 1: 2.0}], calls) is None


def test_a_launch_that_was_slow_at_one_size_tells_nothing_of_the_others():
    # At seven sizes the runs differ by 0, +0.1 and -0.1 in turn, one is 8 times slow at one.
    turns = [(0, 0.1, -0.1), (0.1, -0.1, 0), (-0.1, 0, 0.1)]
    sizes = [dict(enumerate(map(math.exp, turns[n % 3]))) for n in range(9)]
    even = estimate_scatter(sizes, [])
    sizes[4][1] *= 8
    scatter = estimate_scatter(sizes, [])
    assert scatter.run_error == pytest.approx(even.run_error)
    # The median of the three hardly moves.
    assert max(scatter.errors) < 3 * scatter.point_error


def test_two_launches_that_disagree_at_one_size_say_how_much():
    sizes = [{0: 1.0, 1: math.exp(0.02 * (-1) ** n)} for n in range(8)]
    sizes[3][1] = 8.0
    errors = estimate_scatter(sizes, []).errors
    # Half of the difference, as a median deviation, of two: 1.4826 / sqrt(2) x log(8) / 2.
    assert errors[3] == pytest.approx(1.09, abs=0.03)
    assert max(errors[:3] + errors[4:]) < 0.05
