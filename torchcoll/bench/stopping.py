"""When a case has been measured enough: rules that only see numbers, on rank 0 alone: ranks with a
rule each disagreed 2 times in 60, and a disagreement is a hang.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from torchcoll.core.summary import median, over_ranks, relative_half_width, slowest

FIRST_BATCH = 5  # if it is not known how long a call takes
MIN_CALLS = 20
MOST_BATCH = 1000  # calls of one batch: its samples wait on every rank until it has ended
PATIENCE = 10  # slow calls end before MIN_CALLS when so many times the time limit has passed

# Precision is looked at after 40, 60, 80, 120, 180, ... calls: each look interrupts the calls.
FIRST_LOOKS = (40, 60, 80)
LOOKS_GROW = 1.5
# At each look all calls are regrouped into so many equal blocks.
BLOCKS = 20
# Sum of the squared steps from block to block over that of the deviations (von Neumann 1941): 2 for
# independent blocks, with a deviation of 0.42 for 20 (Bingham and Nelson 1981), near 0 where blocks
# follow each other. Below this they are not independent enough for an interval to mean anything.
LEAST_VON_NEUMANN = 1.2
# A single look is lucky too often: 9 to 13 % of all series whose calls follow each other closely
# (AR .9 at 10 and 15 %) were called precise and were off. Two looks in a row: 3 to 5 %.
LOOKS_IN_A_ROW = 2
# Rare slow calls move a mean, not a median, so a mean can be trusted only after more calls. Where a
# slow call comes once in 25 calls, 60 calls have none in 1 of 10 series.
FIRST_LOOK_AT_MEANS, LOOKS_AT_MEANS_IN_A_ROW = 120, 3
# Blocks that all lie within this share of the width are precise however they follow each other.
STILL = 0.1


MOST_GATHERED = 2_000_000  # samples in one gather: some 20 MB of text


def most_in_batch(ranks: int, clocks: int) -> int:
    """The most calls of a batch, so that rank 0 gathers no more than MOST_GATHERED at once."""
    return max(MIN_CALLS, min(MOST_BATCH, MOST_GATHERED // (ranks * clocks)))


def cap_calls(ranks: int) -> int:
    """The most steady calls of a case: 1024 ranks x 30 cases x 1000 calls would be 220 MB."""
    return min(1000, max(MIN_CALLS, 200_000 // ranks))


def times_of_calls(everyone: list[dict[str, list[int]]], back_to_back: bool) -> list[float]:
    """The time of each call of a batch, [rank][clock]: the maximum over ranks, or for calls back to
    back the periods on the slowest rank.
    """
    samples = [next(iter(clocks.values())) for clocks in everyone]
    return list(slowest(samples)) if back_to_back else over_ranks(samples)


def next_look(calls: int) -> int:
    """How many calls there are at the next look at precision: 40, 60, 80, 120, 180, 260, ..."""
    for look in FIRST_LOOKS:
        if calls < look:
            return look
    look = FIRST_LOOKS[-1]
    while look <= calls:
        look = int(LOOKS_GROW * look) // BLOCKS * BLOCKS
    return look


class StoppingRule:
    """Batches of calls until a reason to stop; ``reason`` is then count, precision, time or cap.

    iters: fixes the number of calls (0: none); then a batch has at most ``most_batch`` calls.
    means: the figure of the case is the mean of the durations (periods of calls back to back).
    precision: the relative half-width that is asked for. The blocks' medians (or means) have the
        95 % t interval of their mean, inflated by their lag-1 correlation r: (1 + r) / (1 - r) in
        the variance (Law and Carson 1979). tests/benchmarks/precision.py simulates it.
    """

    def __init__(
        self,
        ranks: int,
        iters: int | None,
        precision: float,
        max_time_s: float,
        expected_ns: float = 0,
        means: bool = False,
        most_batch: int = MOST_BATCH,
    ) -> None:
        self.iters = iters
        self._most_batch = most_batch
        self.precision = precision
        self.max_time_ns = max_time_s * 1e9
        self.cap = cap_calls(ranks)
        self.calls = 0
        self.reason = ""
        self.elapsed_ns = 0.0  # of the steady calls, when last asked
        self._means = means
        self._slowest_ns = expected_ns  # the longest mean of a batch, to plan the next one by
        self._durations: list[float] = []
        self._looks_in_a_row = LOOKS_AT_MEANS_IN_A_ROW if means else LOOKS_IN_A_ROW
        self._look = min(FIRST_LOOK_AT_MEANS if means else FIRST_LOOKS[0], self.cap)
        self._precise_looks = 0  # in a row, up to now

    def next_batch(self, elapsed_ns: float) -> int:
        """Calls of the next batch, 0 when done; ``elapsed_ns`` since the first steady call."""
        self.elapsed_ns = elapsed_ns
        self.reason = self._reason(elapsed_ns)
        if self.reason:
            return 0
        if self.iters is not None:
            return min(self._most_batch, self.iters - self.calls)
        if not self._slowest_ns:
            return min(FIRST_BATCH, self._look)
        if elapsed_ns >= self.max_time_ns:
            return min(self._look, MIN_CALLS, self.calls + FIRST_BATCH) - self.calls
        # Do not overshoot the time by more than it takes to get to a look.
        affordable = int((self.max_time_ns - elapsed_ns) / self._slowest_ns)
        return min(self._look - self.calls, max(affordable, MIN_CALLS - self.calls, 1))

    def _reason(self, elapsed_ns: float) -> str:
        if self.iters is not None:
            return "count" if self.calls >= self.iters else ""
        if self._precise_looks >= self._looks_in_a_row:
            return "precision"
        # However late it is, a case has a batch: one without calls has no time.
        late = self.calls > 0 and elapsed_ns >= self.max_time_ns
        if late and (self.calls >= MIN_CALLS or elapsed_ns >= PATIENCE * self.max_time_ns):
            return "time"
        return "cap" if self.calls >= self.cap else ""

    def add(self, durations_ns: Sequence[float], calls: int | None = None) -> None:
        """Add a batch of ``calls`` calls, reduced over ranks; None: each duration is a call."""
        self.calls += len(durations_ns) if calls is None else calls
        self._slowest_ns = max(self._slowest_ns, sum(durations_ns) / len(durations_ns))
        if self.iters is not None:
            return
        self._durations += durations_ns
        if self.calls >= self._look:
            self._look = min(next_look(self.calls), self.cap)
            self._precise_looks = self._precise_looks + 1 if self.is_precise() else 0

    def is_precise(self) -> bool:
        """Whether the calls so far are precise enough."""
        return self.calls >= FIRST_LOOKS[0] and self.reached_precision() <= self.precision

    def reached_precision(self) -> float:
        """The relative half-width reached so far; infinite if the blocks are not independent."""
        size = len(self._durations) // BLOCKS
        if not size:
            return math.inf
        # What is left over is the oldest: it is the likeliest not to have settled.
        calls = self._durations[len(self._durations) - size * BLOCKS :]
        slices = (calls[start : start + size] for start in range(0, len(calls), size))
        blocks = [sum(block) / size if self._means else median(block) for block in slices]
        if min(blocks) <= 0:
            return math.inf
        width = relative_half_width(blocks)
        still = (max(blocks) - min(blocks)) / median(blocks)
        if still <= STILL * self.precision:
            return width
        middle = sum(blocks) / BLOCKS
        away = [block - middle for block in blocks]
        squares = sum(a * a for a in away)
        pairs = list(itertools.pairwise(away))
        if sum((b - a) ** 2 for a, b in pairs) < LEAST_VON_NEUMANN * squares:
            return math.inf
        correlation = max(0.0, sum(a * b for a, b in pairs) / squares)
        return width * math.sqrt((1 + correlation) / (1 - correlation))


def present(subgroup: Sequence[int], ranks: int) -> list[int]:
    """The ranks of a sub-group that exist: in a fake world only rank 0 does."""
    return [rank for rank in subgroup if rank < ranks]


class StoppingRules:
    """A rule for each sub-group. Batches go on until all rules stop at the same time, because
    sub-groups call at the same time; ``reasons`` has their reasons then.
    """

    def __init__(
        self, subgroups: Sequence[Sequence[int]], ranks: int, *options: Any, **more: Any
    ) -> None:
        self._subgroups = subgroups
        self._rules = [StoppingRule(ranks, *options, **more) for _ in subgroups]

    def next_batch(self, elapsed_ns: float) -> int:
        """The smallest batch that a rule asks for, 0 when all stop."""
        sizes = [rule.next_batch(elapsed_ns) for rule in self._rules]
        return min(filter(None, sizes), default=0)

    def add(self, everyone: list[dict[str, list[int]]], back_to_back: bool, calls: int) -> None:
        """Add a batch of ``calls`` calls. everyone: its samples, [rank][clock]."""
        for subgroup, rule in zip(self._subgroups, self._rules, strict=True):
            times_of_group = [everyone[rank] for rank in present(subgroup, len(everyone))]
            rule.add(times_of_calls(times_of_group, back_to_back), calls)

    @property
    def reasons(self) -> list[str]:
        return [rule.reason for rule in self._rules]

    @property
    def elapsed_ns(self) -> float:
        return self._rules[0].elapsed_ns


class SteadyStateRule:
    """Cold calls go on until two in a row are within 1.5 of the smallest so far: at least
    ``least``, at most 20 and 5 s. ``steady_after``: after how many calls the rule held; None if it
    never did.
    """

    WITHIN = 1.5
    MOST = 20
    MOST_NS = 5_000_000_000
    BLOCK = 5  # calls between two decisions, which disturb the calls that follow
    BLOCK_NS = 10_000_000  # calls that take longer than this together do not notice a decision

    def __init__(self, least: int) -> None:
        self.least = least
        self._durations: list[int] = []

    def add(self, durations_ns: Sequence[int]) -> None:
        self._durations += durations_ns

    def next_block(self) -> int:
        """How many calls to make before the rule is asked again, 0 when it is done."""
        calls = len(self._durations)
        if calls < self.least:
            return self.least - calls
        if self.done:
            return 0
        most = min(self.BLOCK, max(self.MOST, self.least) - calls)
        return max(1, min(most, self.BLOCK_NS // max(1, self._durations[-1])))

    @property
    def steady_after(self) -> int | None:
        # Looked for afresh: a faster call shows that two slow ones in a row had not settled.
        near = self.WITHIN * min(self._durations, default=0)
        pairs = zip(self._durations, self._durations[1:], strict=False)
        return next((k for k, pair in enumerate(pairs, 2) if max(pair) <= near), None)

    @property
    def done(self) -> bool:
        calls = len(self._durations)
        if calls < self.least:
            return False
        limit = calls >= max(self.MOST, self.least) or sum(self._durations) >= self.MOST_NS
        return limit or self.steady_after is not None
