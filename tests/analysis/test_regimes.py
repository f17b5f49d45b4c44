"""Regimes of curves that are computed by hand from two laws."""

from __future__ import annotations

import numpy
import pytest

from torchcoll.analysis.regimes import find_regimes

SIZES = [1024 * 2**k for k in range(16)]  # 1K to 32M


def law(latency_ns, gbps, sizes=SIZES):
    return [latency_ns + size / gbps for size in sizes]


def zones(sizes, times):
    return [(sizes[b.low], sizes[b.high]) for b in find_regimes(sizes, times).boundaries]


def test_one_law_is_one_regime():
    (regime,) = find_regimes(SIZES, law(20_000, 100)).regimes
    assert (regime.first, regime.last) == (0, 15)
    assert regime.latency_ns == pytest.approx(20_000)
    assert regime.bandwidth_gbps == pytest.approx(100)
    assert regime.misfit == pytest.approx(0, abs=1e-9)
    assert regime.time_ns(1_000_000) == pytest.approx(30_000)


def test_a_step_is_found_between_its_two_sizes():
    # 20 us + S / 100 up to 256K (index 8), then 60 us + S / 200.
    times = law(20_000, 100)[:9] + law(60_000, 200)[9:]
    curve = find_regimes(SIZES, times)
    (boundary,) = curve.boundaries
    assert (boundary.low, boundary.high, boundary.last_before) == (8, 9, 8)
    before, after = curve.regimes
    assert (before.latency_ns, after.latency_ns) == pytest.approx((20_000, 60_000))
    assert (before.bandwidth_gbps, after.bandwidth_gbps) == pytest.approx((100, 200))
    # At the geometric middle, 370728 bytes: (60000 + 1853.6) / (20000 + 3707.3)
    assert boundary.jump == pytest.approx(61853.6 / 23707.3, rel=1e-4)


def test_a_kink_where_two_laws_meet():
    # They are equal at 4M: 20 us + S / 100 = 40971 ns + S / 200.
    meeting = (1 << 22) / 200
    times = [min(a, b) for a, b in zip(law(20_000, 100), law(20_000 + meeting, 200), strict=True)]
    ((low, high),) = zones(SIZES, times)
    assert low <= 1 << 22 <= high
    assert find_regimes(SIZES, times).boundaries[0].jump == 1


def test_three_regimes():
    sizes = [round(1024 * 1.15**k) for k in range(90)]
    times = law(10_000, 20, sizes)[:30] + law(40_000, 80, sizes)[30:60] + law(2e5, 160, sizes)[60:]
    assert zones(sizes, times) == [(sizes[29], sizes[30]), (sizes[59], sizes[60])]


def test_times_that_do_not_grow_have_no_bandwidth():
    (regime,) = find_regimes(SIZES, [5000.0] * 16).regimes
    assert (regime.latency_ns, regime.bandwidth_gbps) == (pytest.approx(5000), None)


def test_neither_figure_is_below_zero():
    # Faster than linear: a line through it has a negative latency; the law has none.
    (regime,) = find_regimes(SIZES[:6], [s**1.2 for s in SIZES[:6]]).regimes
    assert regime.latency_ns == 0


def test_few_points_have_no_boundary():
    times = law(20_000, 100)[:3] + law(90_000, 400)[3:7]
    assert zones(SIZES[:7], times) == []
    assert len(find_regimes(SIZES[:1], [5.0]).regimes) == 1


def test_a_slow_size_is_a_dip_and_no_regime():
    times = law(20_000, 100)
    times[12] *= 3
    curve = find_regimes(SIZES, times)
    assert curve.boundaries == ()
    assert curve.dips == {12: pytest.approx(3)}


def test_a_dip_on_a_coarse_grid():
    # Where the law bends, sizes that double lie above both lines too: that hid a dip of 3x.
    sizes = [1024 * 2**k for k in range(16)]
    times = [20_000 + size / 100 for size in sizes]
    assert find_regimes(sizes, times).dips == {}
    times[7] *= 3
    curve = find_regimes(sizes, times)
    assert curve.dips == {7: pytest.approx(3)}
    assert curve.boundaries == ()


def test_a_step_up_is_no_dip():
    times = law(20_000, 100)[:9] + law(100_000, 100)[9:]
    assert find_regimes(SIZES, times).dips == {}


def test_what_is_within_half_a_percent_is_no_regime():
    # An error of 0.1 % that changes with size is not worth a boundary.
    times = [t * (1.001 if k > 8 else 0.999) for k, t in enumerate(law(20_000, 100))]
    assert zones(SIZES, times) == []


def test_the_published_a100_curve_is_one_law():
    # Seed 'A100 8-GPU baseline', algbw at 1M to 16M: 3.2 us + S / 857 GB/s in all its points.
    sizes = [1 << k for k in range(20, 25)]
    gbps = [229.85, 375.12, 531.90, 676.52, 749.75]
    curve = find_regimes(sizes, [s / g for s, g in zip(sizes, gbps, strict=True)])
    (regime,) = curve.regimes
    assert regime.misfit < 0.03
    assert regime.latency_ns == pytest.approx(3200, rel=0.06)
    assert regime.bandwidth_gbps == pytest.approx(857, rel=0.06)


def test_noise_is_the_scatter_about_the_laws():
    random = numpy.random.default_rng(0)
    sizes = [round(1024 * 1.15**k) for k in range(90)]
    times = [t * (1 + 0.02 * random.standard_normal()) for t in law(10_000, 100, sizes)]
    # The standard deviation of 90 draws is within 25 % of its expectation (chi square, 99.9 %).
    assert find_regimes(sizes, times).noise == pytest.approx(0.02, rel=0.25)
