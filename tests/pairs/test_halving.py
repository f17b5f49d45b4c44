"""Halving with a cost that is made up."""

from __future__ import annotations

import math

import pytest

from torchcoll.questions.pairs.bisect import halve


def network(*culprits, slow=0.5):
    """A group is slow where it holds all of the culprits; what was asked, in order."""
    asked = []

    def speeds(*halves):
        asked.append(halves)
        return tuple(slow if {*culprits} <= {*half} else 1.0 for half in halves)

    return speeds, asked


@pytest.mark.parametrize("units", [4, 7, 64, 513])
@pytest.mark.parametrize("place", [0.0, 0.4, 1.0])
def test_the_culprit_is_in_a_small_group_after_few_steps(units, place):
    culprit = round(place * (units - 1))
    speeds, asked = network(culprit)
    found = halve(range(units), speeds, 0.2)
    assert culprit in found.group
    assert len(found.group) in (2, 3)
    assert found.ratio == 0.5
    assert len(asked) == len(found.steps) <= math.ceil(math.log2(units)) - 1


def test_the_steps_of_eight_by_hand():
    speeds, asked = network(5)
    assert halve(range(8), speeds, 0.2).group == (4, 5)
    assert asked == [((0, 1, 2, 3), (4, 5, 6, 7)), ((4, 5), (6, 7))]


def test_a_fault_of_two_that_are_together_ends_with_the_smallest_group_of_both():
    # 5 and 6 are slow with each other alone: at the step that parts them both halves are alike.
    speeds, _ = network(5, 6)
    found = halve(range(8), speeds, 0.2)
    assert found.group == (4, 5, 6, 7)
    assert len(found.steps) == 2


@pytest.mark.parametrize("speeds", [(1.0, 1.0), (0.85, 1.0), (0.5, 0.5), (0.0, 0.0)])
def test_halves_that_are_alike_accuse_nobody(speeds):
    found = halve(range(16), lambda *halves: speeds, 0.2)
    assert (found.group, found.ratio) == ((), 1.0)
    assert len(found.steps) == 1


def test_three_are_too_few():
    assert halve(range(3), lambda *halves: (1.0, 0.1), 0.2).steps == ()


@pytest.mark.parametrize("culprit", [0, 3, 6])
def test_odd_numbers_are_halved_evenly(culprit):
    """A ring of three is slower than one of two where nothing is wrong, so they never meet."""
    speeds, asked = network(culprit)
    assert culprit in halve(range(7), speeds, 0.2).group
    assert {(len(first), len(second)) for first, second in asked} == {(3, 3)}
    # 6 is left out first: (0 1 2) and (3 4 5) are alike, and then (1 2 3) is faster than (4 5 6).
    assert asked[:2] == [((0, 1, 2), (3, 4, 5)), ((1, 2, 3), (4, 5, 6))][: len(asked)]
    assert len(asked) == (2 if culprit == 6 else 1)


def test_halves_that_do_not_compare_end_it():
    speeds, asked = network(5)
    found = halve(range(12), speeds, 0.2, lambda first, second: len(first) > 3)
    assert found.group == (0, 1, 2, 3, 4, 5)
    assert len(asked) == 1
