"""Slowdowns and overlap of blocks whose answer is known, and of a device whose overlap is."""

from __future__ import annotations

import dataclasses
import math
import time
from types import SimpleNamespace

import pytest

from torchcoll.bench.concurrent import BLOCKS, Work, measure_concurrent, measure_offset
from torchcoll.core.case import Case
from torchcoll.core.result import CONCURRENT_BLOCKS, LATER_BLOCKS, CaseResult, ConcurrentBlocks, Run
from torchcoll.machine.devices import nothing
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

    def together(self, call, calls: int, work, repeats: int) -> tuple[int, int, int, int]:
        """One after the other as far as nothing is hidden: each ends at the end of all."""
        self.made.append((calls, repeats))
        of_calls, of_work = calls * CALL_NS, repeats * WORK_NS
        whole = round(of_calls + of_work - self.share * min(of_calls, of_work))
        if calls and repeats:
            return whole, whole, whole, 0
        return of_calls, of_work, whole, 0


class SharedLink:
    """A call and the work of 20 ms each, who share one link fairly; it takes 1 ms until the work
    begins that is to begin later.
    """

    kind = name = "cpu"

    def together(self, call, calls, work, repeats, after_ns=0):
        late = after_ns + MS if after_ns else 0
        if not calls or work is nothing:
            return 20 * MS * calls, 20 * MS * repeats, 20 * MS, 0
        both = max(0, 20 * MS - late)  # that is left of the call when the work begins
        return 20 * MS + both, 20 * MS + both, late + 20 * MS + both, late


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


@pytest.mark.parametrize(
    ("offset", "slowdown", "begins"),
    [("9ms", 1.5, "+10.00 ms"), ("18999us", 1.0, "+20.00 ms"), ("4ms", 1.75, "+5.000 ms")],
)
def test_an_offset_on_a_shared_link(offset, slowdown, begins, monkeypatch):
    """Of 20 ms the call has 10 behind it when the work begins after 9 + 1: it shares the rest and
    ends at 30, and so does the work 30 after its own begin. At once both take 40 ms.
    """
    monkeypatch.setattr(time, "sleep", float)
    work = Work("all_reduce:div:2:1M", list, bus_bytes=1 << 20)
    found = measure_offset(session_on(SharedLink()), None, work, list, list, "case", offset)
    pairs, calls = 1, found.pop("all_calls")  # one call and one of the work fill a block
    assert calls == 2 * 2 + 3 * BLOCKS * pairs
    run = Run({}, results=[made(found)])
    once, later = overlaps(run)
    assert (once.slowdown.value, once.work_slowdown.value) == (2, 2)
    assert once.offset_ns == 0
    assert later.slowdown.value == pytest.approx(slowdown, rel=1e-3)
    assert later.work_slowdown.value == pytest.approx(slowdown, rel=1e-3)
    assert once.covered and later.covered
    grid = concurrent_grid([once, later])
    assert [row[2] for row in grid.rows] == ["at once", begins]
    # What could be hidden is known of the one alone.
    overlaps_told = [row[[head.first for head in grid.heads].index("overlap")] for row in grid.rows]
    assert overlaps_told == ["0.00 [0.00, 0.00]", "-"]


def test_single_calls_are_told_one_by_one():
    """20 pairs fill a block: a call of 1 ms, and one of the work, of 3 ms."""
    blocks = dict(alone_ns=[[20 * MS]], work_ns=[[60 * MS]], both_calls_ns=[[40 * MS]])
    blocks |= dict(both_work_ns=[[80 * MS]], both_ns=[[80 * MS]], offset_ns=500_000)
    blocks |= dict(later_calls_ns=[[30 * MS]], later_work_ns=[[70 * MS]], later_ns=[[80 * MS]])
    concurrent = ConcurrentBlocks(
        "all_reduce:div:2:1M", None, 20, 20, later_begins_ns=[[510_000]], **blocks
    )
    found = overlaps(Run({}, results=[CaseResult(CASE, "ok", 2, concurrent=concurrent)]))
    assert [(one.calls_ns, one.work_ns) for one in found] == [(MS, 3 * MS)] * 2
    assert [one.offset_ns for one in found] == [0, 510_000]


@pytest.mark.parametrize(("offset", "pairs"), [("1ms", 20), ("50ms", 2), ("500ms", 1), ("30s", 1)])
def test_a_block_waits_a_tenth_of_a_second_for_its_offsets(offset, pairs, monkeypatch):
    """Calls of 1 ms: 20 fill a block of 20 ms, and the watchdog takes 2000 waits of 1 s for a
    hang.
    """

    class Short(SharedLink):
        def together(self, call, calls, work, repeats, after_ns=0):
            return MS * calls, MS * repeats, MS, after_ns

    work = Work("all_reduce:div:2:1M", list, bus_bytes=1 << 20)
    monkeypatch.setattr(time, "sleep", float)
    found = measure_offset(session_on(Short()), None, work, list, list, "case", offset)
    assert (found["calls"], found["repeats"]) == (pairs, pairs)


def test_calls_of_all_blocks_follow_a_pause_as_long(monkeypatch):
    """A call takes 1 ms, and 2 ms where the pair before began 2 ms ago or more: that is no doing of
    the work, which shares nothing with it, but of the pause.
    """
    now = [0]

    def sleep(seconds):
        now[0] += round(seconds * 1e9)

    class Cooling:
        kind = name = "cpu"
        before = 0

        def together(self, call, calls, work, repeats, after_ns=0):
            took = 2 * MS if now[0] - self.before >= 2 * MS else MS
            self.before = now[0]
            now[0] += max(took, after_ns)
            return took * calls, took * repeats, took + after_ns, after_ns

    monkeypatch.setattr(time, "sleep", sleep)
    work = Work("all_reduce:div:2:1M", list, bus_bytes=1 << 20)
    found = measure_offset(session_on(Cooling()), None, work, list, list, "case", "2ms")
    found.pop("all_calls")
    for one in overlaps(Run({}, results=[made(found)])):
        assert one.slowdown.value == pytest.approx(1, rel=0.02)  # of the very first pair
        assert one.work_slowdown.value == pytest.approx(1, rel=0.02)


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
    found = overlap(
        CaseResult(
            CASE,
            "ok",
            2,
            concurrent=ConcurrentBlocks(
                "copy:64M",
                None,
                10,
                3,
                alone_ns=[[100, 150], [90, 200]],
                work_ns=[[300, 400], [200, 100]],
                both_calls_ns=[[150, 100], [140, 400]],
                both_work_ns=[[320, 390], [350, 400]],
                both_ns=[[320, 390], [350, 400]],
            ),
        )
    )
    assert found.calls_ns == 15
    assert found.slowdown.value == pytest.approx(math.sqrt(3))
    assert found.slowdown.low == pytest.approx(math.sqrt(3) * math.exp(-0.90818), rel=1e-4)
    assert found.slowdown.high == pytest.approx(math.sqrt(3) * math.exp(0.90818), rel=1e-4)
    assert found.efficiency.value == pytest.approx(0.75)
    assert found.covered


def test_two_collectives_share_what_there_is():
    """A link of 10 GB/s, shared fairly. 20 calls of 1 MB take 2 ms alone, the other one's 100 take
    10 ms. At once the calls take 4 ms, in which 2 ms of the other's work are done; the rest runs
    alone: 12 ms. Both are 2 times slower while both run, and their sum is what the link carries.
    """
    found = overlap(
        CaseResult(
            CASE,
            "ok",
            2,
            size_bytes=1 << 20,
            concurrent=ConcurrentBlocks(
                "all_reduce:div:2:1M",
                None,
                20,
                100,
                alone_ns=[[2_097_152]],
                work_ns=[[10_485_760]],
                both_calls_ns=[[4_194_304]],
                both_work_ns=[[12_582_912]],
                both_ns=[[12_582_912]],
                work_bus_bytes=1 << 20,
            ),
        )
    )
    assert found.slowdown.value == pytest.approx(2)
    assert found.work_slowdown.value == pytest.approx(2)


def test_work_that_ended_before_the_calls_is_too_short():
    """On rank 1 the work lasts 80 of the 100 that the calls take, in every block."""
    found = overlap(
        CaseResult(
            CASE,
            "ok",
            2,
            concurrent=ConcurrentBlocks(
                "matmul:1M",
                1,
                10,
                3,
                alone_ns=[[100] * 3] * 2,
                work_ns=[[80] * 3] * 2,
                both_calls_ns=[[100] * 3] * 2,
                both_work_ns=[[100] * 3, [80] * 3],
                both_ns=[[100] * 3] * 2,
            ),
        )
    )
    assert (found.uncovered, found.covered) == (3, False)


def test_work_that_ended_before_all_had_is_too_short():
    """On an accelerator the calls may be known to end sooner than all there was: 80 of 100 were
    covered, though the calls have 50.
    """
    blocks = dict(alone_ns=[[50] * 3], work_ns=[[80] * 3], both_calls_ns=[[50] * 3])
    blocks |= dict(both_work_ns=[[80] * 3], both_ns=[[100] * 3])
    found = overlap(
        CaseResult(CASE, "ok", 2, concurrent=ConcurrentBlocks("matmul:1M", None, 10, 3, **blocks))
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
    good = {name: [[1]] for name in CONCURRENT_BLOCKS + LATER_BLOCKS} | {"offset_ns": 1}
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
    # And which of the two times of a case this table has.
    assert any("runs of 5 calls with no barrier between them" in line for line in grid.above)
