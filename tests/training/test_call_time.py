"""How long a call takes, on curves of 1 ms and 1 ms a MiB."""

from __future__ import annotations

import pytest
from made_curves import MIB, MS, curve, line

from torchcoll.stats.sides import side
from torchcoll.training.plan_curves import MeasuredCallTime


def test_launches_are_the_low_and_the_high():
    """4 MiB: 1 + 4 ms in one launch, 2 + 4 ms in the other; their geometric mean is the value."""
    times = MeasuredCallTime(side("curve", [curve(line(1)), curve(line(2))]))
    time = times.of("all_reduce", 4 * MIB, 2)
    assert time.each_ns[1:] == pytest.approx((5 * MS, 6 * MS))
    assert (time.low_ns, time.high_ns) == (pytest.approx(5 * MS), pytest.approx(6 * MS))
    assert time.value_ns == pytest.approx(30**0.5 * MS)
    assert time.extrapolated == ""


def test_above_the_largest_size_it_is_extrapolated():
    time = MeasuredCallTime(side("curve", [curve()])).of("all_reduce", 128 * MIB, 2)
    assert time.value_ns == pytest.approx(129 * MS)
    assert time.extrapolated == "above the sizes measured"


def test_half_of_an_all_reduce():
    """Where an all_gather was not measured."""
    time = MeasuredCallTime(side("curve", [curve(backend="nccl")])).of("all_gather", MIB, 2)
    assert time.value_ns == pytest.approx(MS)
