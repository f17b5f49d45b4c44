"""How long a call takes, on curves of 1 ms and 1 ms a MiB."""

from __future__ import annotations

import dataclasses

import pytest
from made_curves import MIB, MS, curve, line

from torchcoll.core.errors import UsageError
from torchcoll.parts.training.isolated import MeasuredCurves
from torchcoll.stats.sides import side


def curves(*runs):
    return MeasuredCurves(side("curve", list(runs)))


def test_several_runs_are_their_geometric_mean():
    """4 MiB: 1 + 4 ms in one run, 2 + 4 ms in the other."""
    found = curves(curve(line(1)), curve(line(2))).find("all_reduce", 2)
    assert found.time_ns(4 * MIB) == pytest.approx(30**0.5 * MS)


def test_above_the_largest_size_nothing_is_known():
    assert curves(curve()).find("all_reduce", 2).time_ns(128 * MIB) is None


def test_half_of_an_all_reduce():
    """Where an all_gather was not measured."""
    found = curves(curve(backend="nccl")).find("all_gather", 2)
    assert found.time_ns(MIB) == pytest.approx(MS)


def test_a_collective_that_was_not_measured_is_named_once():
    """Nothing stands in for an all_reduce; an all_reduce stands in for an all_gather."""
    only = curves(curve(collective="reduce_scatter"))
    with pytest.raises(UsageError) as refusal:
        only.find("all_reduce", 2)
    assert str(refusal.value).count("all_reduce") == 2  # what was got, and what is expected
    with pytest.raises(UsageError) as refusal:
        only.find("all_gather", 2)
    assert "no case of all_gather, nor of all_reduce" in str(refusal.value)


def test_between_sizes_time_is_a_line():
    found = curves(curve()).find("all_reduce", 2)
    two_ranges = dataclasses.replace(found, sizes=(10, 20, 40), times_ns=(100.0, 110.0, 200.0))
    assert [two_ranges.time_ns(n) for n in (10, 15, 20, 30, 40)] == [100, 105, 110, 155, 200]
    assert two_ranges.time_ns(1) == 100  # latency does not shrink
