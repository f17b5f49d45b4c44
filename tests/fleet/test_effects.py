"""The two-way fit, and the robust scale, against values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchcoll.parts.fleet.effects import (
    HEAVIEST,
    common_cases,
    critical_value,
    degrees_of_freedom,
    grouped_medians,
    robust_scale,
    two_way,
    weighted_median,
)

NAN = math.nan


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [
        ([1, 2, 3], [1, 1, 1], 2),
        ([1, 2, 3, 4], [1, 1, 1, 1], 2.5),
        ([3, 1, 2], [5, 1, 1], 3),  # weights 1, 1, 5 in order: half of 7 lies in the third
        ([1, NAN, 3], [1, 9, 1], 2),  # what is missing has no weight
    ],
)
def test_weighted_median(values, weights, expected):
    assert weighted_median(np.array([values], float), np.array(weights, float)) == [expected]


def test_an_additive_table_is_taken_apart_exactly():
    effects, levels = np.array([0.0, -0.02, 0.08, 0.0, 0.01]), np.array([1.0, 3.0, 7.0])
    fit = two_way(levels + effects[:, None])
    assert fit.effects == pytest.approx(effects, abs=1e-12)  # their median is 0
    assert fit.levels == pytest.approx(levels, abs=1e-12)
    assert fit.residuals == pytest.approx(np.zeros((5, 3)), abs=1e-12)


def test_a_missing_case_does_not_change_the_effect_of_its_node():
    table = np.array([1.0, 3.0, 7.0]) + np.array([0.0, 0.0, 0.0, 0.05, 0.0])[:, None]
    table[3, 0] = NAN
    table[1, 2] = NAN
    assert two_way(table).effects == pytest.approx([0, 0, 0, 0.05, 0], abs=1e-12)


def test_qn_of_five_values_by_hand():
    # Distances of 0, 1, 3, 7, 20: 1 2 3 4 6 7 13 17 19 20. h = 3, so the third: 3.
    # Factors for 5 values (Croux and Rousseeuw 1992): 0.844 and 2.2219.
    assert robust_scale(np.array([0.0, 1, 3, 7, 20])) == pytest.approx(0.844 * 2.2219 * 3)


def test_half_of_the_values_cannot_spoil_the_scale():
    values = np.concatenate([np.linspace(-1, 1, 21), np.full(15, 1e6)])
    assert robust_scale(values) < 3


def test_nodes_without_a_common_case_are_sets_of_their_own():
    present = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=bool)
    assert [nodes.tolist() for nodes in common_cases(present)] == [[0, 1], [2]]


def test_a_few_nodes_are_taken_for_heavy_tailed_and_many_normal_ones_are_not():
    generator = np.random.default_rng(1)
    assert degrees_of_freedom(generator.standard_normal(64)) == HEAVIEST
    assert degrees_of_freedom(generator.standard_normal(2000)) >= 8
    assert degrees_of_freedom(generator.standard_t(4, 2000)) <= 5


def test_the_critical_value_of_many_tests_is_larger():
    # t4 has P(T > 4.604) = 0.005 (any table); one test at 1 %, and the factor for many nodes 0.85.
    assert critical_value(10_000, 1, 0.01) == pytest.approx(0.85 * 4.604, rel=1e-3)
    assert critical_value(64, 64, 0.01) > critical_value(64, 1, 0.01)


def test_grouped_medians():
    groups, medians = grouped_medians(
        np.array([7, 3, 7, 3, 7, 9, 3]), np.array([5.0, 1.0, 2.0, 4.0, 9.0, 6.0, 2.0])
    )
    assert groups.tolist() == [3, 7, 9]
    assert medians.tolist() == [2.0, 5.0, 6.0]
    groups, medians = grouped_medians(np.array([1, 1]), np.array([3.0, 4.0]))
    assert (groups.tolist(), medians.tolist()) == ([1], [3.5])
    assert len(grouped_medians(np.array([], dtype=int), np.array([]))[0]) == 0


def test_sets_of_nodes_with_common_cases():
    """0 and 3 share case 0, 3 and 4 case 4: one set. 2 has no case at all."""
    present = np.zeros((6, 5), dtype=bool)
    for node, case in ((0, 0), (3, 0), (3, 4), (4, 4), (1, 2), (5, 2)):
        present[node, case] = True
    assert [nodes.tolist() for nodes in common_cases(present)] == [[0, 3, 4], [1, 5], [2]]
