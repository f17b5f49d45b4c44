"""When a case has been measured enough, and the timed loops: without time passing."""

from __future__ import annotations

import pytest

from torchcoll.bench.clock import FakeClock
from torchcoll.bench.device import Cpu
from torchcoll.bench.stopping import SettlingRule, StoppingRule, cap_calls
from torchcoll.core import plan


def settle(least: int, durations: list[int]) -> tuple[int, int | None]:
    """(calls made, settled) of a rule that is fed these durations until it is done."""
    rule = SettlingRule(least)
    for calls, duration in enumerate(durations, 1):
        rule.add(duration)
        if rule.done:
            return calls, rule.settled
    raise AssertionError("not done")


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([100, 100, 100], (3, 2)),  # settled after two, three are made all the same
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


def test_count():
    """Batches double from 5; exactly the calls that were asked, whatever they take."""
    rule = StoppingRule(2, iters=42, precision=0.05, max_time_s=1e-9)
    assert run_rule(rule, FakeClock(), 10**9) == [5, 10, 20, 7]
    assert (rule.reason, rule.calls) == ("count", 42)


@pytest.mark.parametrize(("iters", "batches"), [(0, []), (1, [1]), (5, [5]), (6, [5, 1])])
def test_small_counts(iters, batches):
    rule = StoppingRule(2, iters=iters, precision=0.05, max_time_s=1)
    assert run_rule(rule, FakeClock(), 100) == batches
    assert rule.reason == "count"


def test_precision_needs_four_batches():
    """Equal durations are as precise as can be: 5 + 10 + 20 + 40 calls."""
    rule = StoppingRule(2, iters=None, precision=0.05, max_time_s=1)
    assert run_rule(rule, FakeClock(), 1000) == [5, 10, 20, 40]
    assert (rule.reason, rule.reached_precision()) == ("precision", 0)


def test_precision_by_hand():
    """Medians 100, 100, 110, 110: s = 5.7735, t(3) = 3.1824, half-width 9.187 of 105: 8.749 %."""
    rule = StoppingRule(2, iters=None, precision=0.08749, max_time_s=1)
    for batch in ([100, 90, 500], [100], [110], [110] * 20):
        rule.add(batch)
    assert rule.reached_precision() == pytest.approx(0.087494, abs=2e-5)
    assert rule.next_batch(0) > 0
    rule.precision = 0.0876
    assert (rule.next_batch(0), rule.reason) == (0, "precision")


def test_precision_looks_at_the_last_ten_batches():
    rule = StoppingRule(2, iters=None, precision=0.01, max_time_s=1)
    for _ in range(5):
        rule.add([10_000] * 4)
    for _ in range(9):
        rule.add([100] * 4)
    assert rule.next_batch(0) > 0
    rule.add([100] * 4)
    assert (rule.next_batch(0), rule.reason) == (0, "precision")


def test_no_precision_before_20_calls():
    rule = StoppingRule(2, iters=None, precision=0.5, max_time_s=1)
    for _ in range(4):
        rule.add([100] * 4)
    assert rule.next_batch(0) > 0
    rule.add([100] * 4)
    assert (rule.next_batch(0), rule.reason) == (0, "precision")


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
    """As ``run_rule``, never precise: every other batch takes twice as long."""
    batches, began = [], clock.now()
    while size := rule.next_batch(clock.now() - began):
        each = duration * (1 + len(batches) % 2)
        clock.call([each * size])()
        rule.add([each] * size)
        batches.append(size)
    return batches


def test_time():
    """10 and 20 ms a call, 1 s: 50, 200, 200 ms, then 27 calls of 20 ms are what is left; a call
    or two more end it.
    """
    rule, clock = StoppingRule(2, None, precision=0.001, max_time_s=1), FakeClock()
    assert uneven(rule, clock, 10_000_000) == [5, 10, 20, 27, 1]
    assert rule.reason == "time"
    assert clock.now() == 1_000_000_000


def test_slow_calls_are_still_20():
    """1 s a call and 1 s allowed: 20 calls, or 10 times the limit, whichever comes first."""
    rule, clock = StoppingRule(2, None, 0.001, max_time_s=1), FakeClock()
    assert run_rule(rule, clock, 400_000_000) == [5, 5, 5, 5]
    assert (rule.reason, clock.now()) == ("time", 8_000_000_000)
    rule, clock = StoppingRule(2, None, 0.001, max_time_s=1), FakeClock()
    assert run_rule(rule, clock, 1_000_000_000) == [5, 5]
    assert (rule.reason, clock.now()) == ("time", 10_000_000_000)


def test_the_plan_knows_the_limits():
    """core/plan.py repeats these numbers, for it may not import them."""
    from torchcoll.bench import stopping

    assert plan.COLD_LIMIT_S == SettlingRule.MOST_NS / 1e9
    assert plan.COLD_CALLS == SettlingRule.MOST
    assert plan.PATIENCE == stopping.PATIENCE


# -- the timed loops ------------------------------------------------------------------------------


def test_isolated_calls():
    """The barrier lies outside the stamps."""
    clock, samples = FakeClock(), [7]
    align = clock.call([1000, 2000, 4000])
    Cpu(clock.now).isolated(clock.call([5, 6, 8]), align, 3, {"host": samples})
    assert samples == [7, 5, 6, 8]
    assert clock.now() == 7000 + 19


def test_back_to_back_calls():
    """Each call ends where the next begins: the samples add up to what passed."""
    clock, samples = FakeClock(), []
    clock.call([100])()
    Cpu(clock.now).stream(clock.call([5, 6, 8]), 3, {"host": samples})
    assert samples == [5, 6, 8]
    assert sum(samples) == clock.now() - 100


def test_stream_counts_what_is_between_the_calls():
    """Time that passes in reading the clock belongs to a sample; nothing is lost."""
    ticks = iter([0, 10, 25, 45])
    samples: list[int] = []
    Cpu(lambda: next(ticks)).stream(lambda: None, 3, {"host": samples})
    assert samples == [10, 15, 20]
    ticks = iter([0, 10, 25, 45])
    samples = []
    Cpu(lambda: next(ticks)).isolated(lambda: None, lambda: None, 2, {"host": samples})
    assert samples == [10, 20]


def test_samples_are_there_as_they_are_made():
    """The watchdog reads progress from the length of the list."""
    samples: list[int] = []
    lengths: list[int] = []
    Cpu().isolated(lambda: lengths.append(len(samples)), lambda: None, 3, {"host": samples})
    Cpu().stream(lambda: lengths.append(len(samples)), 2, {"host": samples})
    assert lengths == [0, 1, 2, 3, 4]


def test_noise_is_by_seed():
    def durations(seed: int) -> list[int]:
        clock, samples = FakeClock(seed), []
        Cpu(clock.now).isolated(clock.noisy(1000, 0.2), lambda: None, 200, {"host": samples})
        return samples

    assert durations(3) == durations(3) != durations(4)
    assert sorted(durations(3))[100] == pytest.approx(1000, rel=0.05)
