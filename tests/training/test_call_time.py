"""How long a call takes, on curves of 1 ms and 1 ms a MiB."""

from __future__ import annotations

import pytest
from made_curves import MIB, MS, curve, line

from torchcoll.core.errors import UsageError
from torchcoll.stats.sides import side
from torchcoll.training.measured_curves import MeasuredCallTime, MeasuredCurve


def test_launches_are_the_alternatives_of_the_value():
    """4 MiB: 1 + 4 ms in one run, 2 + 4 ms in the other; their geometric mean is the value."""
    times = MeasuredCallTime(side("curve", [curve(line(1)), curve(line(2))]))
    time = times.duration("all_reduce", 4 * MIB, 2)
    assert time.each_ns[1:] == pytest.approx((5 * MS, 6 * MS))
    assert time.each_ns[0] == pytest.approx(30**0.5 * MS)
    assert time.extrapolated == ""


def test_above_the_largest_size_it_is_extrapolated():
    time = MeasuredCallTime(side("curve", [curve()])).duration("all_reduce", 128 * MIB, 2)
    assert time.each_ns[0] == pytest.approx(129 * MS)
    assert time.extrapolated == "above the sizes measured"


def test_half_of_an_all_reduce():
    """Where an all_gather was not measured."""
    time = MeasuredCallTime(side("curve", [curve(backend="nccl")])).duration("all_gather", MIB, 2)
    assert time.each_ns[0] == pytest.approx(MS)


def test_a_collective_that_was_not_measured_is_named_once():
    """Nothing stands in for an all_reduce; an all_reduce stands in for an all_gather."""
    times = MeasuredCallTime(side("curve", [curve(collective="reduce_scatter")]))
    with pytest.raises(UsageError) as refusal:
        times.duration("all_reduce", MIB, 2)
    assert str(refusal.value).count("all_reduce") == 2  # what was got, and what is expected
    with pytest.raises(UsageError) as refusal:
        times.duration("all_gather", MIB, 2)
    assert "no case of all_gather, nor of all_reduce" in str(refusal.value)


def test_between_sizes_time_is_a_line():
    two_ranges = MeasuredCurve((10, 20, 40), (100.0, 110.0, 200.0))
    assert [two_ranges.time_ns(n) for n in (10, 15, 20, 30, 40)] == [100, 105, 110, 155, 200]


def test_outside_of_the_sizes():
    measured = MeasuredCurve((10, 20), (100.0, 110.0))
    assert measured.time_ns(1) == 100  # latency does not shrink
    assert (measured.time_ns(40), measured.beyond(40), measured.beyond(20)) == (130, True, False)
    # Noise can make the last piece fall; beyond it no time does.
    assert MeasuredCurve((10, 20), (100.0, 90.0)).time_ns(40) == 90
