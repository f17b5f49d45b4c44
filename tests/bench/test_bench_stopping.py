"""When a case has been measured enough, and the timed loops: without time passing."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from fake_clock import FakeClock

from torchcoll.bench.stopping import (
    SteadyStateRule,
    StoppingRule,
    StoppingRules,
    cap_calls,
    next_look,
    times_of_calls,
)
from torchcoll.machine.devices import Cpu


def settle(least: int, durations: list[int]) -> tuple[int, int | None]:
    """(calls made, steady_after) of a rule that is fed these durations until it is done."""
    rule = SteadyStateRule(least)
    for calls, duration in enumerate(durations, 1):
        rule.add([duration])
        if rule.done:
            assert rule.next_block() == 0
            return calls, rule.steady_after
    raise AssertionError("not done")


def test_a_case_has_a_batch_however_late_it_is():
    rule = StoppingRule(2, None, 0.05, max_time_s=1e-6)
    assert rule.next_batch(1e9) > 0
    rule.add([1000])
    assert (rule.next_batch(1e9), rule.reason) == (0, "time")


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([100, 100, 100], (3, 2)),  # steady after two, three are made all the same
        ([900, 100, 100], (3, 3)),
        ([900, 100, 150], (3, 3)),  # 1.5 times the smallest is near
        ([900, 100, 151, 120, 110], (5, 5)),
        ([900, 100, 500, 100, 500, 100, 100], (7, 7)),  # near, but not two in a row
        ([900, 600, 100, 140, 100], (4, 4)),  # 900 and 600 are near each other, not the smallest
        ([150, 140, 120, 100], (3, 2)),
        ([300, 200, 100, 100], (4, 4)),  # what is near 200 is not near 100
    ],
)
def test_two_in_a_row_near_the_smallest_settle(durations, expected):
    assert settle(3, durations) == expected


@pytest.mark.parametrize(
    ("least", "durations", "expected"),
    [
        (3, [900], 2),
        (25, [900], 24),
        (3, [900, 100, 500], 5),  # ns: a decision would disturb each of them
        (3, [9e6, 1e6, 3e6], 3),  # of 3 ms three fit into 10 ms
        (3, [9e8, 1e8, 5e8], 1),  # half a second each: a decision changes nothing
        (3, [1000, 10] * 9, 2),  # no more than 20 calls
        (3, [900, 100, 100], 0),
    ],
)
def test_cold_calls_between_two_decisions(least, durations, expected):
    rule = SteadyStateRule(least)
    rule.add([int(ns) for ns in durations])
    assert rule.next_block() == expected


def test_settling_ends_at_20_calls():
    restless = [1000 if i % 2 else 10 for i in range(40)]
    assert settle(3, restless) == (20, None)
    assert settle(30, restless) == (30, None)


def test_settling_ends_at_5_seconds():
    assert settle(3, [4_000_000_000, 2_000_000_000, 1, 1000]) == (3, None)
    assert settle(1, [6_000_000_000]) == (1, None)


def test_at_least_so_many_cold_calls():
    assert settle(1, [100, 100]) == (2, 2)
    assert settle(6, [100] * 6) == (6, 2)


def run_rule(rule: StoppingRule, clock: FakeClock, duration: int) -> list[int]:
    """The batches of a rule whose every call takes ``duration``."""
    batches, began = [], clock.now()
    while size := rule.next_batch(clock.now() - began):
        clock.call([duration * size])()
        rule.add([duration] * size)
        batches.append(size)
    return batches


def feed(series: list[float], **options) -> StoppingRule:
    """The rule after it has stopped, fed with that series, which lasts no time."""
    rule = StoppingRule(2, None, 0.05, max_time_s=1, **{"expected_ns": 1.0, **options})
    while batch := rule.next_batch(0):
        assert rule.calls + batch <= len(series)
        rule.add(series[rule.calls : rule.calls + batch])
    return rule


def test_count():
    """Exactly the calls that were asked, whatever they take, and no interruption on the way."""
    rule = StoppingRule(2, iters=42, precision=0.05, max_time_s=1e-9)
    assert run_rule(rule, FakeClock(), 10**9) == [42]
    assert (rule.reason, rule.calls) == ("count", 42)
    rule = StoppingRule(2, iters=2100, precision=0.05, max_time_s=1e-9)
    assert run_rule(rule, FakeClock(), 10**9) == [1000, 1000, 100]


def test_equal_calls_are_precise_at_the_second_look():
    """Equal durations are as precise as can be; what a call takes is known, or tried with five."""
    rule = StoppingRule(2, None, 0.05, max_time_s=1, expected_ns=1000)
    assert run_rule(rule, FakeClock(), 1000) == [40, 20]
    assert (rule.reason, rule.reached_precision()) == ("precision", 0)
    assert rule.elapsed_ns == 60_000
    rule = StoppingRule(2, None, 0.05, max_time_s=1)
    assert run_rule(rule, FakeClock(), 1000) == [5, 35, 20]


def test_looks_are_few():
    """Each 1.5 times the one before, in whole blocks of 20: 390 is 380, 570 is 560; and the cap."""
    looks, calls = [], 0
    while calls < 1000:
        calls = next_look(calls)
        looks.append(calls)
    assert looks == [40, 60, 80, 120, 180, 260, 380, 560, 840, 1260]
    restless = StoppingRule(2, None, 1e-9, max_time_s=1, expected_ns=1)
    batches, rng = [], random.Random(0)
    while size := restless.next_batch(0):
        restless.add([rng.random() for _ in range(size)])
        batches.append(size)
    assert list(itertools.accumulate(batches)) == [*looks[:-1], 1000]
    assert restless.reason == "cap"


# Medians of 20 blocks of 2, each block twice the same number. Mean 105, s = 5 * sqrt(20 / 19) =
# 5.12989, t(19) = 2.0930: 2.0930 * 5.12989 / sqrt(20) / 105 = 0.0228650.
WIDTH = 0.0228650


@pytest.mark.parametrize("block", ["median", "mean"])
def test_the_width_by_hand(block):
    """100 and 110 in turn: the lag-1 correlation is -19 / 20, which does not make it narrower."""
    series = [level for _ in range(10) for level in (100, 100, 110, 110)]
    rule = StoppingRule(2, None, 0.05, max_time_s=1, means=block == "mean")
    rule.add(series)
    assert rule.reached_precision() == pytest.approx(WIDTH, rel=1e-4)


def test_correlation_widens_by_hand():
    """Twice 100, twice 110, ...: 20 blocks make 19 steps, 9 of 10 and 10 of 0. Around 105 the sum
    of squares is 20 * 25 = 500; of the 19 products 10 are 25 and 9 are -25: r = 25 / 500 = 0.05.
    Neumann's ratio is 9 * 100 / 500 = 1.8.
    """
    series = [level for _ in range(5) for level in (100,) * 4 + (110,) * 4]
    rule = StoppingRule(2, None, 0.05, max_time_s=1)
    rule.add(series)
    assert rule.reached_precision() == pytest.approx(WIDTH * math.sqrt(1.05 / 0.95), rel=1e-4)


@pytest.mark.parametrize(
    ("length", "precise"),
    [
        # Blocks in a row of one level; the others are 100. Neumann's ratio: steps of 10 squared
        # over the sum of squares, which is 500 for ten of twenty.
        (2, True),  # 9 steps in 20 blocks: 900 / 500 = 1.8
        (3, True),  # 110 in 3, 100 in 3, ...: 6 steps, 11 of 20 are 100, 495: 600 / 495 = 1.21
        (4, False),  # 4 steps, 12 of 20 are 100, 480: 400 / 480 = 0.83
        (10, False),  # one step: 0.2
    ],
)
def test_blocks_that_follow_each_other_bear_no_interval(length, precise):
    levels = [(100, 110)[k // length % 2] for k in range(20)]
    rule = StoppingRule(2, None, 0.05, max_time_s=1)
    rule.add([level for level in levels for _ in range(2)])
    assert (rule.reached_precision() < 0.05) == precise
    assert (rule.reached_precision() == math.inf) != precise


def test_a_slow_climb_within_a_tenth_of_the_width_is_precise():
    """0.5 % from the first block to the last is a tenth of 5 %; a little more is a trend."""
    for rise, precise in ((0.0049, True), (0.0052, False)):
        rule = StoppingRule(2, None, 0.05, max_time_s=1)
        rule.add([1 + rise * (k // 2) / 19 for k in range(40)])
        assert (rule.reached_precision() < 0.05) == precise


def test_one_lucky_look_is_not_enough():
    """Alike for 40 calls, then a second level for the next 20; and alike again."""
    calls = [100.0] * 40 + [200.0] * 20 + [100.0] * 940
    rule = feed(calls)
    # At 80 calls 5 of 20 blocks of 4 are slow in a row; the two first looks without them are those
    # whose blocks are long enough: of 60 slow calls none has 380 / 20 = 19 in its middle twice.
    assert rule.calls > 60
    assert feed([100.0] * 1000).calls == 60


def test_fewer_than_40_calls_are_never_precise():
    """10,000 ranks may have 20 calls of each, and 5,100 have 39: that ends by cap."""
    for ranks, calls in ((10_000, 20), (5_100, 39)):
        rule = StoppingRule(ranks, None, 0.5, max_time_s=1, expected_ns=1)
        assert sum(run_rule(rule, FakeClock(), 0 + 100)) == calls
        assert rule.reason == "cap"
    rule = StoppingRule(2, None, 0.5, max_time_s=1)
    rule.add([100] * 39)
    assert not rule.is_precise()
    rule.add([100])
    assert rule.is_precise()


def test_samples_of_several_calls():
    """Ten calls a sample: 40 calls are 4 samples, and blocks need 20."""
    rule = StoppingRule(2, None, 0.05, max_time_s=1, expected_ns=1)
    sizes = []
    while size := rule.next_batch(0):
        rule.add([100.0] * (size // 10), size)
        sizes.append(size)
    assert list(itertools.accumulate(sizes)) == [40, 60, 80, 120, 180, 260, 380]
    assert rule.reason == "precision"


def test_modes_of_many_calls_are_not_precise():
    """Half a second at 1 us, half at 2 us: the rule of before stopped at 75 calls."""
    series = [1000.0 + 1000 * (k // 13 % 2) for k in range(1000)]
    assert feed(series).reason == "cap"


def test_outliers_do_not_count_and_means_see_them():
    series = [100.0 + 900 * (k % 33 == 7) for k in range(1000)]
    assert feed(series).reason == "precision"
    assert feed(series).calls < feed(series, means=True).calls


def test_a_cap_on_the_calls():
    """200000 calls over all ranks, 20 to 1000 of each: what a file can bear."""
    caps = {ranks: cap_calls(ranks) for ranks in (1, 2, 200, 201, 1024, 9999, 10_000, 100_000)}
    assert caps == {
        **{1: 1000, 2: 1000, 200: 1000, 201: 995, 1024: 195},
        **{9999: 20, 10_000: 20, 100_000: 20},
    }
    rule = StoppingRule(2, iters=None, precision=1e-12, max_time_s=1e6)
    clock, calls = FakeClock(seed=1), 0
    while size := rule.next_batch(0):
        before = clock.now()
        noisy = clock.noisy(1000, 0.5)
        durations = []
        for _ in range(size):
            noisy()
            durations.append(clock.now() - before)
            before = clock.now()
        rule.add(durations)
        calls += size
    assert (calls, rule.reason) == (1000, "cap")


def uneven(rule: StoppingRule, clock: FakeClock, duration: int) -> list[int]:
    """As ``run_rule``, never precise: every other call takes twice as long."""
    batches, began = [], clock.now()
    while size := rule.next_batch(clock.now() - began):
        durations = [duration * (1 + call % 2) for call in range(size)]
        clock.call([sum(durations)])()
        rule.add(durations)
        batches.append(size)
    return batches


def test_time():
    """10 and 20 ms in turn, 1 s. Five tell that a call takes 14 ms at most; 35 last 520 ms and 20
    300 ms. 110 ms are left, 7 calls of 15 ms, which take 100; one more, and the time is over.
    """
    rule, clock = StoppingRule(2, None, precision=0.001, max_time_s=1), FakeClock()
    assert uneven(rule, clock, 10_000_000) == [5, 35, 20, 7, 1]
    assert rule.reason == "time"
    assert rule.elapsed_ns == clock.now() == 1_000_000_000


def test_slow_calls_are_still_20():
    """1 s a call and 1 s allowed: 20 calls, or 10 times the limit, whichever comes first."""
    rule, clock = StoppingRule(2, None, 0.001, max_time_s=1), FakeClock()
    assert run_rule(rule, clock, 400_000_000) == [5, 5, 5, 5]
    assert (rule.reason, clock.now()) == ("time", 8_000_000_000)
    rule, clock = StoppingRule(2, None, 0.001, max_time_s=1), FakeClock()
    assert run_rule(rule, clock, 1_000_000_000) == [5, 5]
    assert (rule.reason, clock.now()) == ("time", 10_000_000_000)


def test_what_is_simulated_holds():
    """Few series of what tests/benchmarks/precision.py has 2,000 of, with room for luck: where 5 %
    are off, 10 of 200 are expected, and more than 22 in one of 5,000 runs.
    """
    rng = random.Random(11)
    off = {}
    for name, keeps, spread in (("slow", 0.99, 0.1), ("quick", 0.9, 0.15), ("none", 0.0, 0.1)):
        off[name] = precise = 0
        for _ in range(200):
            level, series = rng.gauss(0, 1), []
            for _ in range(1000):
                series.append(1000 * math.exp(spread * level))
                level = keeps * level + math.sqrt(1 - keeps**2) * rng.gauss(0, 1)
            rule = feed(series)
            precise += rule.reason == "precision"
            middle = statistics.median(series[: rule.calls])
            off[name] += rule.reason == "precision" and abs(middle / 1000 - 1) > 0.05
    assert max(off.values()) <= 22
    assert precise >= 190  # the last: independent noise


def test_means_see_modes_of_a_few_calls():
    """Ten fast calls on average, then three slow ones of 1.4 times the time; 20 and 5. The mean is
    (10 + 3 * 1.4) / 13 and (20 + 5 * 1.4) / 25. Under the looks of a median 9 and 16 % of all
    series were called precise and were more than 5 % off. With 5 % of 150 series 7.5 are expected,
    and more than 15 in one of 200 tests.
    """
    rng = random.Random(7)
    for fast, slow in ((10, 3), (20, 5)):
        true, off = 1000 * (fast + 1.4 * slow) / (fast + slow), 0
        for _ in range(150):
            is_slow, series = rng.random() < slow / (fast + slow), []
            for _ in range(1000):
                series.append((1400 if is_slow else 1000) * math.exp(0.03 * rng.gauss(0, 1)))
                is_slow = rng.random() >= 1 / slow if is_slow else rng.random() < 1 / fast
            rule = feed(series, means=True)
            mean = statistics.fmean(series[: rule.calls])
            off += rule.reason == "precision" and abs(mean / true - 1) > 0.05
        assert off <= 15, (fast, slow)


def test_back_to_back_calls():
    """Each call ends where the next begins: the samples add up to what passed. Ramp-up calls, of
    which nothing remains in the steady ones, go before.
    """
    clock, samples, lead = FakeClock(), [], [9]
    clock.call([100])()
    Cpu(clock.now).stream(clock.call([70, 30, 5, 6, 8]), 3, {"host": samples}, 2, lead)
    assert (samples, lead) == ([5, 6, 8], [9, 70, 30])
    assert sum(samples) == clock.now() - 200


def test_times_of_calls():
    """Rank 1 stalls in call 1, rank 0 hears of it in call 2: back to back that is one stall."""
    everyone = [{"host": [10, 10, 60]}, {"host": [10, 60, 11]}]
    assert times_of_calls(everyone, back_to_back=False) == [10, 60, 60]
    assert times_of_calls(everyone, back_to_back=True) == [10, 60, 11]


def test_each_sub_group_is_looked_at():
    """Ranks 0 and 1 are slow and still; 2 and 3 fast, and as often 10 as 90: the slowest of all
    ranks is still, the row of the second group is not precise after 60 calls.
    """
    parts = [(0, 1), (2, 3)]
    rules = StoppingRules(parts, 4, None, 0.05, max_time_s=1, expected_ns=1.0)
    random_of, calls = random.Random(5), 0
    while size := rules.next_batch(0):
        noisy = [random_of.choice((10, 90)) for _ in range(size)]
        times = [[1000] * size, [1000] * size, noisy, noisy]
        rules.add([{"host": row} for row in times], False, size)
        calls += size
    assert (calls, rules.reasons) == (1000, ["precision", "cap"])
    # Two still groups need no more than one.
    both = StoppingRules(parts, 4, None, 0.05, max_time_s=1, expected_ns=1.0)
    batches = []
    while size := both.next_batch(0):
        both.add([{"host": [level] * size} for level in (1000, 900, 10, 20)], False, size)
        batches.append(size)
    assert (batches, both.reasons) == ([40, 20], ["precision", "precision"])


def test_what_is_precise_no_more_is_not_called_so():
    """The first group is still for 60 calls, then as restless as the second: its row has all."""
    rules = StoppingRules([(0,), (1,)], 2, None, 0.05, max_time_s=1, expected_ns=1.0)
    random_of, calls = random.Random(5), 0
    while size := rules.next_batch(0):
        noisy = [random_of.choice((10, 90)) for _ in range(size)]
        first = [50] * size if calls < 60 else noisy
        rules.add([{"host": first}, {"host": noisy}], False, size)
        calls += size
    assert (calls, rules.reasons) == (1000, ["cap", "cap"])
