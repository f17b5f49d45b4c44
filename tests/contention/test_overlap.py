"""Slowdowns and overlap of blocks whose answer is known, and of a device whose overlap is."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest

from torchcoll.bench.concurrent import BLOCKS, Work, measure_concurrent
from torchcoll.core.case import Case
from torchcoll.core.result import CONCURRENT_BLOCKS, CaseResult, ConcurrentBlocks, Run
from torchcoll.questions.contention.overlap import Estimate, overlap, overlaps
from torchcoll.questions.contention.show import concurrent_grid
from torchcoll.report.grid import legends

CASE = Case("all_reduce", 1 << 20, "float32", "sum", None, True, "synchronized", "gloo", "cpu")
MS = 1_000_000
CALL_NS, WORK_NS = 4 * MS, 10 * MS


class OverlappingDevice:
    """Calls and work of known length, of which ``share`` of the shorter is hidden by the other."""

    kind = name = "cpu"

    def __init__(self, share: float) -> None:
        self.share = share
        self.made: list[tuple[int, int]] = []

    def together(self, call, calls: int, work, repeats: int) -> tuple[int, int, int]:
        """One after the other as far as nothing is hidden: each ends at the end of all."""
        self.made.append((calls, repeats))
        of_calls, of_work = calls * CALL_NS, repeats * WORK_NS
        whole = round(of_calls + of_work - self.share * min(of_calls, of_work))
        if calls and repeats:
            return whole, whole, whole
        return of_calls, of_work, whole


def session_on(device):
    return SimpleNamespace(
        device=device,
        progress=SimpleNamespace(step=lambda *words: None),
        control=SimpleNamespace(largest=lambda value: value),
    )


def made(found) -> CaseResult:
    single = {
        name: [values] if isinstance(values, list) else values for name, values in found.items()
    }
    result = CaseResult(CASE, "ok", 1, concurrent=ConcurrentBlocks(**single))
    assert CaseResult.from_json(result.to_json()) == result
    return result


def measured(share: float) -> CaseResult:
    device = OverlappingDevice(share)
    work = Work("matmul:1M", list, threads=1)
    found = measure_concurrent(session_on(device), None, work, list, list, "case")
    assert found.pop("all_calls") == sum(calls for calls, _ in device.made)
    return made(found)


def overlap_of(**blocks):
    concurrent = ConcurrentBlocks("copy:64M", None, 10, 3, **blocks)
    return overlap(CaseResult(CASE, "ok", 2, concurrent=concurrent))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_known_overlap_is_found(share):
    """5 calls of 4 ms are the 20 ms of a block; 3 products of 10 ms are the least that cover them
    1.25 times. At once they take 50 ms less what is hidden of 20 ms: 50, 40 and 30 ms.
    """
    found = overlap(measured(share))
    assert (found.calls, found.repeats, found.blocks) == (5, 3, BLOCKS)
    assert found.efficiency.value == pytest.approx(share, abs=1e-6)
    assert found.slowdown.value == pytest.approx({0.0: 2.5, 0.5: 2.0, 1.0: 1.5}[share])
    # All of the work ran while the calls did: both ended together.
    assert found.work_slowdown.value == pytest.approx({0.0: 5 / 3, 0.5: 4 / 3, 1.0: 1.0}[share])
    assert found.covered


def blocks(*values: float) -> list[list[int]]:
    return [[round(value) for value in values]]


def test_the_rank_that_is_last_counts_and_blocks_are_the_replicates():
    """Two ranks, two blocks. Calls alone: 100 and 200; at once 150 and 400: ratios 1.5 and 2, their
    geometric mean sqrt 3 = 1.732. t of one degree at 90 %: 6.3138; the logs are 0.40547 and
    0.69315, so half the interval is 6.3138 x 0.20342 / sqrt 2 = 0.90818.
    Efficiency: (100 + 300 - 350) / 100 = 0.5 and (200 + 400 - 400) / 200 = 1.
    """
    found = overlap_of(
        alone_ns=[[100, 150], [90, 200]],
        work_ns=[[300, 400], [200, 100]],
        both_calls_ns=[[150, 100], [140, 400]],
        both_work_ns=[[320, 390], [350, 400]],
        both_ns=[[320, 390], [350, 400]],
    )
    assert found.calls_ns == 15
    assert found.slowdown.value == pytest.approx(math.sqrt(3))
    assert found.slowdown.low == pytest.approx(math.sqrt(3) * math.exp(-0.90818), rel=1e-4)
    assert found.slowdown.high == pytest.approx(math.sqrt(3) * math.exp(0.90818), rel=1e-4)
    assert found.efficiency.value == pytest.approx(0.75)
    assert found.covered


@pytest.mark.parametrize(
    ("calls_ns", "both_work_ns"),
    [
        ([[100] * 3] * 2, [[100] * 3, [80] * 3]),  # rank 1's work lasts 80 of the 100 of the calls
        # An accelerator may know sooner that the calls have ended: 80 of 100 were covered.
        ([[50] * 3], [[80] * 3]),
    ],
)
def test_work_that_ended_before_the_rest_is_too_short(calls_ns, both_work_ns):
    found = overlap_of(
        alone_ns=calls_ns,
        work_ns=[[80] * 3] * len(calls_ns),
        both_calls_ns=calls_ns,
        both_work_ns=both_work_ns,
        both_ns=[[100] * 3] * len(calls_ns),
    )
    assert (found.uncovered, found.covered) == (3, False)


def test_an_overlap_that_is_not_known_is_a_dash():
    """An interval wider than from 0 to 1 says nothing."""
    one = overlap(measured(0.5))
    known, unknown = (
        dataclasses.replace(one, efficiency=Estimate(0.5, 0.5 - half, 0.5 + half))
        for half in (0.45, 0.55)
    )
    grid = concurrent_grid([known, unknown])
    place = [head.first for head in grid.heads].index("overlap")
    assert [row[place] for row in grid.rows] == ["0.50 [0.05, 0.95]", "-"]
    # Its definition goes with the column.
    assert any(text.startswith("overlap: ") for text in legends(grid.heads))
    assert not any(
        text.startswith("overlap: ") for text in legends(concurrent_grid([unknown]).heads)
    )


def test_cases_without_work_are_not_there():
    assert overlaps(Run(results=[CaseResult(CASE, "ok", 2)])) == []


@pytest.mark.parametrize(
    "change",
    [
        {"alone_ns": [[1, 2]]},
        {"alone_ns": [[-1]]},
        {"alone_ns": {}},
        {"work": 7},
        {"calls": 0},
        {"threads": "two"},
    ],
)
def test_a_broken_record_is_refused(change):
    good = {name: [[1]] for name in CONCURRENT_BLOCKS}
    good |= {"work": "copy:1M", "threads": None, "calls": 1, "repeats": 1}
    assert ConcurrentBlocks.from_json(good).blocks == 1
    with pytest.raises((TypeError, ValueError)):
        ConcurrentBlocks.from_json({**good, **change})


def test_a_loaded_machine_is_warned_of_beside_the_slowdown():
    found = overlap(measured(0.5))
    assert not any(line.startswith("WARN") for line in concurrent_grid([found]).below)
    text = "vm: other processes used 1.4 of 2 cores during the run"
    grid = concurrent_grid([found], [text])
    assert [line for line in grid.below if line.startswith(f"WARN {text}")]
