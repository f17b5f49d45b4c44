"""How a collective and concurrent work slow each other down, and how much of them overlaps.

The blocks of one run are the replicates (bench/concurrent.py): intervals say what more blocks of
this run would show, not another run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torchcoll.core.case import Case
from torchcoll.core.summary import median

if TYPE_CHECKING:
    from torchcoll.core.result import CaseResult, Matrix, Run

LEVEL = 0.9  # of the intervals


class Estimate(NamedTuple):
    """A mean over blocks and its 90 % interval (Student's t); of one block no interval."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Overlap:
    """One case with its concurrent work.

    calls_ns, work_ns: one call on the slowest rank, and the work of a block, each alone; medians
    over the blocks. slowdown: of the calls at the same time as the work; work_slowdown: of the work
    during the calls. efficiency: the share of the time that could be hidden and was, (calls + work
    - both) / min(calls, work), by the last rank: 1 is all, 0 is one after the other. uncovered:
    blocks in which the work of some rank ended before the calls; covered: whether those are few.
    """

    case: Case
    ranks: int
    work: str
    threads: int | None
    calls: int
    repeats: int
    blocks: int
    calls_ns: float
    work_ns: float
    slowdown: Estimate
    work_slowdown: Estimate
    efficiency: Estimate
    uncovered: int
    covered: bool


def overlaps(run: Run) -> list[Overlap]:
    """The overlap of each case with concurrent work."""
    return [
        overlap(result) for result in run.results if result.concurrent and result.concurrent.blocks
    ]


def overlap(result: CaseResult) -> Overlap:
    """Raises AssertionError without concurrent work."""
    blocks = result.concurrent
    assert blocks is not None
    together = blocks.both_calls_ns, blocks.both_work_ns, blocks.both_ns
    alone, work = _last(blocks.alone_ns), _last(blocks.work_ns)
    both_calls, both_work, whole = map(_last, together)
    triples = zip(work, both_work, both_calls, strict=True)
    turns = zip(alone, work, whole, strict=True)
    return Overlap(
        result.case,
        result.ranks,
        blocks.work,
        blocks.threads,
        blocks.calls,
        blocks.repeats,
        blocks.blocks,
        median(alone) / blocks.calls,
        median(work),
        _mean_of_logs([math.log(b / a) for b, a in zip(both_calls, alone, strict=True)]),
        _mean_of_logs([math.log(_while_both(*block)) for block in triples]),
        _mean([(a + w - t) / min(a, w) for a, w, t in turns]),
        blocks.uncovered,
        blocks.covered,
    )


def _last(matrix: Matrix) -> list[float]:
    """The time of the last rank in each block; at least 1 ns, as others are divided by it."""
    return [max(1.0, *block) for block in zip(*matrix, strict=True)]


def _while_both(alone: float, work: float, calls: float) -> float:
    """The slowdown of the work during the calls. What was left of it afterwards ran at its own
    rate.
    """
    done = alone - max(0.0, work - calls)
    return min(work, calls) / done if done > 0 else work / alone


def _mean_of_logs(logs: Sequence[float]) -> Estimate:
    mean, low, high = _mean(logs)
    return Estimate(
        math.exp(mean),
        None if low is None else math.exp(low),
        None if high is None else math.exp(high),
    )


def _mean(values: Sequence[float]) -> Estimate:
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2:
        return Estimate(mean, None, None)
    from torchcoll.stats.distributions import t_quantile

    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = t_quantile((1 + LEVEL) / 2, count - 1) * spread / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half)
