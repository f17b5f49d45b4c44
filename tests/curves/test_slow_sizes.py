"""Single slow sizes on curves that are computed by hand, and what noise alone does."""

import numpy
import pytest

from torchcoll.parts.curves.ranges import find_ranges

COARSE = [1 << k for k in range(20, 29)]  # nine sizes, each twice the last
DENSE = [round((1 << 20) * 1.15**k) for k in range(40)]
# Clocks: 0.2 %, always the same.
JITTER = [1.001, 0.998, 1.002, 1.0, 0.999, 1.001, 0.998, 1.0, 1.002]


def times(sizes, slow):
    """40 us + S / 140 GB/s; ``slow``: index -> so many times as long."""
    return [
        (40_000 + size / 140) * JITTER[k % 9] * slow.get(k, 1.0) for k, size in enumerate(sizes)
    ]


def slow_sizes(sizes, slow):
    curve = find_ranges(sizes, times(sizes, slow))
    assert curve.boundaries == ()
    return curve.slow_sizes


@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("place", range(9))
def test_one_slow_size_of_nine_is_named_wherever_it_is(place, factor):
    (found,) = slow_sizes(COARSE, {place: factor}).items()
    assert found == (place, pytest.approx(factor, rel=0.02))


def test_the_others_keep_their_law():
    curve = find_ranges(COARSE, times(COARSE, {4: 3.0}))
    (law,) = curve.ranges
    assert (law.latency_ns, law.bandwidth_gbps) == pytest.approx((40_000, 140), rel=0.01)
    assert curve.noise < 0.003
    assert law.misfit_at != 4


@pytest.mark.parametrize("slow", [{20: 1.4}, {20: 1.4, 21: 1.4}, {38: 1.4}, {5: 1.3, 30: 2.0}])
def test_of_many_sizes_each_slow_one_is_named(slow):
    assert slow_sizes(DENSE, slow) == {k: pytest.approx(v, rel=0.02) for k, v in slow.items()}


def test_a_fast_size_is_named_at_the_ends_alone():
    # Between others it is what a law leaves that bends more sharply than the one that is fitted.
    assert list(slow_sizes(COARSE, {8: 0.6})) == [8]
    assert slow_sizes(COARSE, {4: 0.6}) == {}


def test_what_is_near_its_law_or_within_known_noise_is_none():
    assert slow_sizes(COARSE, {4: 1.12}) == {}
    slow = times(COARSE, {4: 1.5})
    assert list(find_ranges(COARSE, slow).slow_sizes) == [4]
    assert find_ranges(COARSE, slow, noise=0.2).slow_sizes == {}


def test_five_sizes_are_too_few_to_accuse_one():
    assert find_ranges(COARSE[:5], times(COARSE[:5], {2: 3.0})).slow_sizes == {}


@pytest.mark.parametrize("sizes", [COARSE, DENSE])
def test_noise_alone_is_seldom_a_slow_size(sizes):
    """1 % of the curves is allowed for; of 60 curves 4 would be beyond chance (0.4 %)."""
    random = numpy.random.default_rng(2)
    law = numpy.array([40_000 + size / 140 for size in sizes])
    noisy = [law * numpy.exp(0.05 * random.standard_normal(len(law))) for _ in range(60)]
    assert sum(bool(find_ranges(sizes, one).slow_sizes) for one in noisy) < 4


def test_several_slow_sizes_do_not_hide_each_other():
    # 20 us + S / 5 and 2 % noise: 2 slow sizes of 12, 4 of 25.
    random = numpy.random.default_rng(4)
    for number, slow in ((12, [3, 7]), (17, [2, 6, 11]), (25, [3, 8, 14, 20])):
        sizes = numpy.geomspace(1024, 1 << 28, number).round()
        for _ in range(5):
            law = (20_000 + sizes / 5) * numpy.exp(0.02 * random.standard_normal(number))
            law[slow] *= 2
            curve = find_ranges(sizes, law)
            assert list(curve.slow_sizes) == slow and not curve.boundaries
