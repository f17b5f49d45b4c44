"""How durations grow with ranks: figures that can be computed in the head, and no false claims."""

from __future__ import annotations

import math
import random

import numpy
import pytest
from scipy import optimize, stats

from torchcoll.parts.curves.growth import growths

RANKS = (2, 4, 8, 16)


def one(law, ranks=RANKS, noise=()):
    """The growth of one curve; ``noise``: factors of the runs on each number of ranks."""
    points = [(n, law(n) * factor) for n in ranks for factor in (noise or (1.0,))]
    (found,) = growths([points])
    return found


NOISE = (0.99, 1.0, 1.01)


def test_a_logarithm_is_told_from_a_line():
    found = one(lambda n: 2000 + 3000 * math.log2(n), noise=NOISE)
    assert (found.result, found.runs, found.numbers) == ("log2 n", 12, RANKS)
    assert found.reason.startswith("n and (n-1)/n do not fit; p <")
    law = found.law
    # 2000 + 3000 on 2 ranks, 2000 + 12000 on 16: 2.8 times as much.
    assert law.base_ns == pytest.approx(2000, rel=0.01)
    assert law.slope_ns == pytest.approx(3000, rel=0.01)
    assert law.ratio == pytest.approx(2.8, rel=0.01)
    assert law.slope_low < 3000 < law.slope_high
    assert law.ratio_low < 2.8 < law.ratio_high


def test_a_line_is_told_from_a_logarithm():
    found = one(lambda n: 1000 + 500 * n, noise=NOISE)
    assert found.result == "n"
    assert (found.law.name, found.other_laws[0].name) == ("n", "log2 n")
    assert found.law.slope_ns == pytest.approx(500, rel=0.01)
    assert found.law.ratio == pytest.approx(9000 / 2000, rel=0.01)
    assert one(lambda n: 1000 + 500 * n).law.p_lacking == 1  # exact: nothing speaks against it
    assert one(lambda n: 20_000 - 4000 * math.log2(n), noise=NOISE).result == "falls with log2 n"


def test_no_growth_is_shown_and_not_assumed():
    assert one(lambda n: 1000, noise=NOISE).result == "constant"
    assert one(lambda n: 1000, noise=NOISE).reason == "90 % within 10 %"
    inconclusive = one(lambda n: 1000, noise=(0.5, 1.0, 2.0))
    assert inconclusive.result == "inconclusive"
    # 5 % over the whole range is below what counts, however sure it is.
    assert one(lambda n: 1000 + 12.5 * math.log2(n), noise=(0.9999, 1.0001)).result == "constant"


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [((2, 4), "2 numbers of ranks, 3 are needed"), ((8,), "1 number of ranks, 3 are needed")],
)
def test_too_few_numbers_of_ranks(ranks, reason):
    found = one(lambda n: 10 * n, ranks, NOISE)
    assert (found.result, found.reason, found.law) == ("too few points", reason, None)


def test_three_launches_fit_both_laws():
    found = one(lambda n: 1000 * n, (2, 4, 8))
    assert (found.result, found.law.p_lacking) == ("grows", None)
    assert found.reason == "these fit: n, log2 n, (n-1)/n"


def test_a_step_follows_none_of_the_laws():
    found = one(lambda n: 1000 if n < 8 else 9000, noise=NOISE)
    assert found.result == "grows"
    assert found.reason.startswith("by none of these laws; ")


def test_the_bandwidth_of_a_ring_is_a_law():
    # 2 (n-1)/n x 256 MiB at 370 GB/s: 725.5 us on 2 ranks, 1269.6 us on 8, and 10 us.
    found = one(lambda n: 10_000 + 2 * (n - 1) / n * (1 << 28) / 370, (2, 4, 8), NOISE)
    assert found.result == "(n-1)/n"
    assert found.reason.startswith("log2 n and n do not fit; p <")
    assert found.law.ratio == pytest.approx(1279.6 / 735.5, rel=0.01)
    assert found.law.slope_ns == pytest.approx(2 * (1 << 28) / 370, rel=0.05)


def ring(n):
    """10 us + 3 us (n-1) + 2 (n-1)/n x 256 MiB at 370 GB/s: of both, and never of log2 n."""
    return 10_000 + 3000 * (n - 1) + 2 * (n - 1) / n * (1 << 28) / 370


@pytest.mark.parametrize("ranks", [(2, 4, 8), (2, 3, 4, 8), (2, 4, 8, 16), (2, 4, 8, 16, 32)])
def test_a_ring_is_never_called_a_logarithm(ranks):
    noise = random.Random(11)
    for spread in (0.005, 0.02, 0.05):
        curves = [
            [(n, ring(n) * noise.lognormvariate(0, spread)) for n in ranks for _ in range(3)]
            for _ in range(4)
        ]
        results = {growths([curve])[0].result for curve in curves}
        assert results <= {"(n-1)/n", "grows", "constant", "inconclusive"}


def test_half_n_and_half_its_share_look_like_a_logarithm():
    def both(n):
        # From 2 to 8 ranks each of the two adds 500 ns: 1000, 1500 on 4 (1/6 + 1/3 of 1000), 2000.
        return 1000 + 500 * (n - 2) / 6 + 500 * (1 / 2 - 1 / n) / (1 / 2 - 1 / 8)

    assert [both(n) for n in (2, 4, 8)] == pytest.approx([1000, 1500, 2000])  # a line in log2 n
    found = one(both, (2, 4, 8), NOISE)
    assert (found.result, found.mixtures[0].p_lacking) == ("grows", None)
    assert found.reason == "these fit: log2 n, n + (n-1)/n"
    # On five numbers of ranks they are told from it.
    found = one(both, (2, 4, 8, 16, 32), NOISE)
    assert found.result == "grows"
    assert found.reason == "by none of these alone; n + (n-1)/n fits"


@pytest.mark.parametrize("noise", [(), NOISE])
def test_a_mixture_that_is_far_off_does_not_fit(noise):
    # n squared takes n and less than nothing of (n-1)/n.
    found = one(lambda n: 10_000 + 100 * n * n, (2, 4, 8, 16, 32, 64), noise)
    assert found.result == "grows"
    assert found.reason.startswith("by none of these laws; n has an error of ")
    assert not any(mixture.fits for mixture in found.mixtures)


@pytest.mark.parametrize("noise", [(), NOISE])
def test_a_trees_latency_and_bandwidth(noise):
    def tree(n):
        return 8000 * math.log2(n) + 100_000 * (n - 1) / n

    found = one(tree, (2, 4, 8, 16, 32, 64), noise)
    assert found.result == "grows"
    assert "log2 n + (n-1)/n" in found.reason


def test_growth_of_no_known_law_is_growth():
    # Five durations in their order: 2 of 5! orders, p 1/60; a law that is off by 84 % has no noise.
    found = one(lambda n: 10_000 + 100 * n**3, (2, 4, 8, 16, 32))
    assert found.p_value == pytest.approx(1 / 60)
    assert found.result == "grows"
    # Four: 1/12.
    found = one(lambda n: 10_000 + 100 * n**3, (2, 4, 8, 16))
    assert found.result == "inconclusive"
    assert found.reason == "no law fits; p 0.083 by order: more runs tell"


def test_a_law_that_the_launches_reject_is_not_named():
    # A step of 30 % between 4 and 8 ranks: n is nearest, off by some percent and not by 25.
    found = one(lambda n: 1000 if n < 8 else 1300, (2, 4, 8, 16), NOISE)
    assert found.result == "grows"
    assert found.reason.startswith("by none of these laws; ")
    assert found.law.rejected and found.law.misfit < 0.15
    # Half a percent is no contradiction, however sure: clocks reach it.
    bent = one(lambda n: (1000 + 500 * n) * (1.002 if n == 4 else 1), noise=(0.99999, 1.00001))
    assert bent.law.p_lacking < 0.001
    assert (bent.result, bent.law.rejected) == ("n", False)


def test_a_true_law_is_seldom_named_as_another():
    """5 % allowed for; of 60 curves 9 would be beyond chance (1 %)."""
    noise = random.Random(3)
    laws = {"log2 n": math.log2, "n": lambda n: n, "(n-1)/n": lambda n: (n - 1) / n}
    wrong = 0
    for name, law in laws.items():
        for _ in range(20):
            points = [
                (n, (1 + law(n) / law(8)) * noise.lognormvariate(0, 0.05))
                for n in (2, 4, 8)
                for _ in range(3)
            ]
            wrong += growths([points])[0].result not in (name, "grows", "inconclusive", "constant")
    assert wrong < 9


def test_the_interval_is_that_of_scipys_curve_fit():
    """The same least squares by other figures, a and b themselves."""
    points = [(2, 110.0), (2, 90.0), (4, 160.0), (4, 155.0), (8, 190.0), (16, 270.0)]
    ((found),) = growths([points])
    law = next(law for law in (found.law, *found.other_laws) if law.name == "log2 n")
    n, ns = (numpy.array(values, dtype=float) for values in zip(*points, strict=True))
    figures, covariance = optimize.curve_fit(
        lambda x, a, b: numpy.log(a + b * numpy.log2(x)), n, numpy.log(ns), p0=(50, 50)
    )
    half = stats.t.ppf(0.975, 4) * math.sqrt(covariance[1, 1])
    assert (law.base_ns, law.slope_ns) == pytest.approx(tuple(figures), rel=1e-5)
    assert law.slope_high - law.slope_low == pytest.approx(2 * half, rel=1e-4)


def test_holm_is_over_all_curves():
    points = [(n, 1000 * n**0.3 * f) for n in RANKS for f in (0.9, 1.1)]
    alone, *several = growths([points])[0], *growths([points] * 3)
    assert [found.p_value for found in several] == [pytest.approx(3 * alone.p_value)] * 3
    with_few = growths([points, [(2, 1.0)]])
    assert with_few[0].p_value == alone.p_value


def test_constant_times_seldom_seem_to_grow():
    """5 % allowed for; 100 curves of seeded noise, 11 would be beyond chance (1 %)."""
    noise = random.Random(7)
    curves = [
        [(n, noise.lognormvariate(0, 0.2)) for n in RANKS for _ in range(2)] for _ in range(100)
    ]
    results = [growths([curve])[0].result for curve in curves]
    assert sum(result not in ("inconclusive", "constant") for result in results) < 11


def test_any_unit_and_single_noise_free_launches():
    found = one(lambda n: 7e9 * n, (12, 24, 48, 96))
    assert (found.result, found.law.misfit) == ("n", pytest.approx(0, abs=1e-6))


def test_a_law_within_the_margin_is_accepted_however_small_the_noise():
    """0.7 % above a logarithm on 768 ranks, with noise of 0.05 %: nobody acts on 0.7 %."""
    noise = (0.9995, 1.0, 1.0005)
    ranks = (2, 4, 8, 16, 64, 256, 768)
    found = one(lambda n: (2000 + 3000 * math.log2(n)) * (1.007 if n == 768 else 1), ranks, noise)
    assert found.result == "log2 n"
    assert found.reason.startswith("maximum error 0.") and "more than the noise" in found.reason
    # 5 % is more than the margin.
    found = one(lambda n: (2000 + 3000 * math.log2(n)) * (1.1 if n == 768 else 1), ranks, noise)
    assert (found.result, found.reason[:22]) == ("grows", "by none of these laws;")


@pytest.mark.parametrize("power", [0.5, 0.7, 1.5])
def test_a_power_law(power):
    found = one(lambda n: 1000 * n**power, (2, 4, 8, 16, 32), NOISE)
    assert found.result == f"n^{power:.2f}"
    assert found.reason.startswith("log2 n and n and (n-1)/n do not fit; p ")
    assert (
        one(lambda n: 1e6 * n**-power, (2, 4, 8, 16, 32), NOISE).result
        == f"falls with n^-{power:.2f}"
    )
