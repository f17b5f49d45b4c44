"""Ratios and tests, against scipy called independently and against figures worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchcoll.stats.power import holm
from torchcoll.stats.ratios import exp
from torchcoll.stats.statistics import Figures, StartModes, start_modes


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


def test_exp_of_what_no_float_holds():
    """The logarithm of the largest float, 1.797e308, is 709.78."""
    assert exp(710) == exp(1e9) == 1.7976931348623157e308
    assert exp(0) == 1


def test_starts_in_two_modes():
    """Every other run of both sides is 3, 2 and 4 times slower in cases of 1 us, 1 ms and 1 s."""
    runs = tuple((side, number) for side in (0, 1) for number in range(4))
    cases = [
        Figures(tuple(ns * factor ** (number % 2) for _, number in runs), runs)
        for ns, factor in ((1e3, 3), (1e6, 2), (1e9, 4))
    ]
    assert start_modes(cases) == StartModes((2, 2), (4, 4), pytest.approx(3))
