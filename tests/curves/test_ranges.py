"""Ranges of curves that are computed by hand from two laws."""

import numpy
import pytest

from torchcoll.parts.curves.ranges import find_ranges

SIZES = [1024 * 2**k for k in range(16)]  # 1K to 32M


def law(latency_ns, gbps, sizes=SIZES):
    return [latency_ns + size / gbps for size in sizes]


def spans(sizes, times):
    return [(sizes[b.low], sizes[b.high]) for b in find_ranges(sizes, times).boundaries]


def test_one_law_is_one_range():
    (size_range,) = find_ranges(SIZES, law(20_000, 100)).ranges
    assert (size_range.first, size_range.last) == (0, 15)
    assert size_range.latency_ns == pytest.approx(20_000)
    assert size_range.bandwidth_gbps == pytest.approx(100)
    assert size_range.misfit == pytest.approx(0, abs=1e-9)
    assert size_range.time_ns(1_000_000) == pytest.approx(30_000)


def test_a_step_is_found_between_its_two_sizes():
    # 20 us + S / 100 up to 256K (index 8), then 60 us + S / 200.
    times = law(20_000, 100)[:9] + law(60_000, 200)[9:]
    curve = find_ranges(SIZES, times)
    (boundary,) = curve.boundaries
    assert (boundary.low, boundary.high) == (8, 9)
    before, after = curve.ranges
    assert (before.latency_ns, after.latency_ns) == pytest.approx((20_000, 60_000))
    assert (before.bandwidth_gbps, after.bandwidth_gbps) == pytest.approx((100, 200))
    # At the geometric middle, 370728 bytes: (60000 + 1853.6) / (20000 + 3707.3)
    assert boundary.jump == pytest.approx(61853.6 / 23707.3, rel=1e-4)


def test_a_kink_where_two_laws_meet():
    # They are equal at 4M: 20 us + S / 100 = 40971 ns + S / 200.
    sizes = [*SIZES, 1 << 26, 1 << 27]
    meeting = (1 << 22) / 200
    laws = law(20_000, 100, sizes), law(20_000 + meeting, 200, sizes)
    times = [min(a, b) for a, b in zip(*laws, strict=True)]
    ((low, high),) = spans(sizes, times)
    assert low <= 1 << 22 <= high
    assert find_ranges(sizes, times).boundaries[0].jump == 1


def test_three_ranges():
    sizes = [round(1024 * 1.15**k) for k in range(90)]
    times = law(10_000, 20, sizes)[:30] + law(40_000, 80, sizes)[30:60] + law(2e5, 160, sizes)[60:]
    assert spans(sizes, times) == [(sizes[29], sizes[30]), (sizes[59], sizes[60])]


def test_times_that_do_not_grow_have_no_bandwidth():
    (size_range,) = find_ranges(SIZES, [5000.0] * 16).ranges
    assert (size_range.latency_ns, size_range.bandwidth_gbps) == (pytest.approx(5000), None)


@pytest.mark.parametrize("power", [1.2, 2, 4])
def test_a_law_is_above_zero_at_its_own_sizes(power):
    # Faster than linear: the line through it meets zero at a size, but below the first one.
    (size_range,) = find_ranges(SIZES[:6], [s**power for s in SIZES[:6]]).ranges
    assert size_range.bandwidth_gbps > 0
    assert size_range.time_ns(1024) >= 0.0999 * 1024**power


@pytest.mark.parametrize("slow", [1.0, 1.2, 2.5])
@pytest.mark.parametrize("kink", [15, 19, 21])
def test_a_kink_to_a_steeper_slope_is_one_change(kink, slow):
    # 30 us + S / 4 up to the kink, from there each byte as slow as this: beyond a cache.
    sizes = [1 << k for k in range(10, 27)]
    end = 30_000 + (1 << kink) / 4
    exact = [30_000 + s / 4 if s <= 1 << kink else end + (s - (1 << kink)) / slow for s in sizes]
    random = numpy.random.default_rng(kink)
    for _ in range(10):
        curve = find_ranges(sizes, exact * numpy.exp(0.01 * random.standard_normal(17)))
        (boundary,) = curve.boundaries
        assert sizes[boundary.low] <= 1 << kink <= sizes[boundary.high]
        if kink < 21:
            assert curve.ranges[1].bandwidth_gbps == pytest.approx(slow, rel=0.05)


def test_a_slow_size_before_a_kink_to_a_steeper_slope():
    sizes = [1 << k for k in range(10, 27)]
    times = [30_000 + s / 4 if s <= 1 << 18 else 95_536 + (s - (1 << 18)) for s in sizes]
    times[6] *= 3
    curve = find_ranges(sizes, times)
    assert curve.slow_sizes == {6: pytest.approx(3)}
    (boundary,) = curve.boundaries
    assert sizes[boundary.low] <= 1 << 18 <= sizes[boundary.high]


def test_a_steep_law_says_nothing_of_sizes_at_which_it_is_below_zero():
    # S - 300 us from 512K: at 256K that is less than no time.
    sizes = [1 << k for k in range(18, 29)]
    curve = find_ranges(sizes, [50_000.0] + [s - 300_000.0 for s in sizes[1:]])
    assert curve.slow_sizes == {}
    assert curve.ranges[-1].latency_ns == pytest.approx(-300_000, rel=0.3)


def test_a_first_size_far_above_its_law_does_not_take_its_latency():
    # 5 us + S, and the first of seven sizes 30 times as slow.
    sizes = SIZES[6:13]
    (size_range,) = find_ranges(sizes, [30 * 70_536.0, *law(5_000, 1, sizes[1:])]).ranges
    assert size_range.latency_ns > 0


def test_few_points_have_no_boundary():
    times = law(20_000, 100)[:3] + law(90_000, 400)[3:7]
    assert spans(SIZES[:7], times) == []
    assert len(find_ranges(SIZES[:1], [5.0]).ranges) == 1


def test_a_slow_size_is_a_slow_size_and_no_range():
    times = law(20_000, 100)
    times[12] *= 3
    curve = find_ranges(SIZES, times)
    assert curve.boundaries == ()
    assert curve.slow_sizes == {12: pytest.approx(3)}


def test_a_step_up_is_no_slow_size():
    times = law(20_000, 100)[:9] + law(100_000, 100)[9:]
    assert find_ranges(SIZES, times).slow_sizes == {}


def test_what_is_within_half_a_percent_is_no_range():
    # An error of 0.1 % that changes with size is not worth a boundary.
    times = [t * (1.001 if k > 8 else 0.999) for k, t in enumerate(law(20_000, 100))]
    assert spans(SIZES, times) == []


def test_the_published_a100_curve_is_one_law():
    # Seed 'A100 8-GPU baseline', algbw at 1M to 16M: 3.2 us + S / 857 GB/s in all its points.
    sizes = [1 << k for k in range(20, 25)]
    gbps = [229.85, 375.12, 531.90, 676.52, 749.75]
    curve = find_ranges(sizes, [s / g for s, g in zip(sizes, gbps, strict=True)])
    (size_range,) = curve.ranges
    assert size_range.misfit < 0.03
    assert size_range.latency_ns == pytest.approx(3200, rel=0.06)
    assert size_range.bandwidth_gbps == pytest.approx(857, rel=0.06)


def test_noise_is_the_scatter_about_the_laws():
    random = numpy.random.default_rng(0)
    sizes = [round(1024 * 1.15**k) for k in range(90)]
    times = [t * (1 + 0.02 * random.standard_normal()) for t in law(10_000, 100, sizes)]
    # The standard deviation of 90 draws is within 25 % of its expectation (chi square, 99.9 %).
    assert find_ranges(sizes, times).noise == pytest.approx(0.02, rel=0.25)


DEFAULT = [8 * 4**k for k in range(13)]  # 8 B to 128M: the sweep of a plain run


@pytest.mark.parametrize("place", [0, 12])
def test_one_size_at_an_end_is_apart_and_no_range(place):
    times = law(25_000, 60, DEFAULT)
    times[place] *= 1.3
    curve = find_ranges(DEFAULT, times)
    assert (curve.boundaries, curve.slow_sizes) == ((), {place: pytest.approx(1.3)})


def test_a_kink_with_few_sizes_after_it():
    # 25 us + S / 60 and 60 us + S / 100 meet at 35 us / (1 / 60 - 1 / 100) = 5.25 MB, and of 1K
    # to 256M by 4 three sizes lie beyond. It was '1M to 4M, time jumps up by 1.25x'.
    sizes = [1024 * 4**k for k in range(10)]
    times = [min(25_000 + s / 60, 60_000 + s / 100) for s in sizes]
    (boundary,) = find_ranges(sizes, times).boundaries
    assert sizes[boundary.low] <= 5.25e6 <= sizes[boundary.high]
    assert boundary.jump is None


def test_a_change_inside_and_one_near_the_end():
    # 20 us + S / 100; from 256K on 60 us + S / 200; the last two sizes take twice that.
    times = law(20_000, 100)[:8] + law(60_000, 200)[8:]
    times[-2:] = [2 * t for t in times[-2:]]
    curve = find_ranges(SIZES, times)
    inside, near = curve.boundaries
    assert (inside.low, inside.high) == (7, 8)
    # At the geometric middle, 185364 bytes: (60000 + 926.8) / (20000 + 1853.6)
    assert inside.jump == pytest.approx(60926.8 / 21853.6, rel=1e-4)
    assert near.low <= 13 < near.high
    assert near.jump is None
    assert [r.latency_ns for r in curve.ranges] == pytest.approx([20_000, 60_000])


@pytest.mark.parametrize("few", [1, 2, 3])
def test_two_changes_with_few_sizes_between_them(few):
    # 20 us + S / 100, half of it for 1, 2 or 3 sizes, then 60 us + S / 200.
    times = law(20_000, 100)[: 8 - few] + law(10_000, 200)[8 - few : 8] + law(60_000, 200)[8:]
    curve = find_ranges(SIZES, times)
    first, second = curve.boundaries
    assert first.low <= 7 - few < first.high
    assert second.low <= 7 < second.high
    assert [(b.jump, b.before, b.after) for b in curve.boundaries] == [
        (None, 0, None),
        (None, None, 1),
    ]
    assert [r.latency_ns for r in curve.ranges] == pytest.approx([20_000, 60_000])


def test_transitions_hold_a_step_at_any_place():
    # 1 % noise; of 300 transitions a 95 % transition may miss 15 (and by chance 24: binomial, 99
    # %). A step with one size before or after it, 50 of the 300, is no boundary: that size is
    # apart.
    random = numpy.random.default_rng(0)
    shown = missed = named = 0
    for number in range(300):
        place = 1 + number % 12
        factor = numpy.where(numpy.arange(13) < place, 1, 1.3)
        noise = numpy.exp(0.01 * random.standard_normal(13))
        found = find_ranges(DEFAULT, law(25_000, 60, DEFAULT) * factor * noise).boundaries
        shown += bool(found)
        missed += not all(b.low < place <= b.high for b in found)
        named += min(place, 13 - place) < 4 and any(b.jump is not None for b in found)
    assert shown > 240
    assert missed <= 15
    assert named <= 3  # of 150
