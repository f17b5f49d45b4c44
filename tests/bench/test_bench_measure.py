"""One run on real ranks: phases, cold calls, reasons to stop, memory, one rank, fake."""

from __future__ import annotations

import sys
import time
from itertools import takewhile

import pytest
import torch.distributed as dist
from ranks import ticking

from torchcoll.bench import measure, stopping
from torchcoll.bench.control import Control
from torchcoll.machine import environment
from torchcoll.machine.devices import Cpu


def test_set_up_phases(launch):
    run = launch("all_reduce", "--sizes 8 -n 2", 3).ended(0).run
    start_up = ("import_torch", "rendezvous", "device", "init_process_group")
    assert set(start_up) <= set(run.phases)
    for ns in run.phases.values():
        assert len(ns) == 3 and all(0 < each < 60_000_000_000 for each in ns)
    # gloo connects in init_process_group: there is no phase of its own.
    assert "communicator" not in run.phases


def test_more_cold_calls_are_asked_for(launch):
    result = launch("all_reduce", "--sizes 8 -n 1 --cold 25", 2).ended(0).only()
    assert [len(row) for row in result.cold_ns] == [25, 25]


def test_cold_calls_follow_rank_0s_rule(launch):
    """What is recorded of rank 0 is what the rule was fed: its last calls have steady_after."""
    for result in launch("all_reduce", "--sizes 8,1K,4K -n 1", 2).ended(0).run.results:
        durations = result.cold_ns[0]
        assert 3 <= len(durations) == len(result.cold_ns[1]) <= 20
        if result.steady_after is not None:
            assert 2 <= result.steady_after <= len(durations)
            pair = durations[result.steady_after - 2 : result.steady_after]
            assert max(pair) <= 1.5 * min(durations)
        else:
            assert len(durations) == 20
            assert "rank 0 saw no steady state in the first 20 calls" in result.warnings[0]


def test_fresh_group(launch):
    """A new communicator for every case: call 0 is its first, and making it is timed."""
    options = "--collectives all_reduce,broadcast --sizes 8,16 -n 2 --fresh-group -r 1"
    run = launch(None, options, 3).ended(0).run
    assert [r.status for r in run.results] == ["ok"] * 4
    for result in run.results:
        assert (result.ordinal, result.communicator) == (0, "new_group")
        assert len(result.connect_ns) == 3 and min(result.connect_ns) > 0
        assert result.verification.wrong == 0


def test_lead_calls_of_each_batch(launch, monkeypatch):
    """As many before each batch as rank 0 decides, by its last cold call: of 1 us 10, of 4 ms 2,
    and one of those that take longer than all ramp-up calls may.
    """
    monkeypatch.setattr(stopping, "MOST_BATCH", 100)
    for call_ns, leads in ((1000, 10), (4_000_000, 2), (20_000_000, 1)):

        def clock(rank: int, call_ns: int = call_ns) -> None:
            made = ticking()
            made.now = lambda: made.call([call_ns])() or made.time_ns
            Cpu.__init__.__defaults__ = (made.now,)
            measure.LEAD_CALLS = 10

        ranks = 2 if leads == 2 else 1
        result = launch("all_reduce", "--sizes 8 -n 110", ranks, setup=clock).ended(0).only()
        assert result.batches == [100, 10]
        assert [len(row) for row in result.ramp_up_ns] == [2 * leads] * ranks
        assert [len(row) for row in result.time_ns["host"]] == [110] * ranks


def test_time_stamps(launch, monkeypatch):
    """Of each case and batch, by both clocks; of each cold call on each rank."""
    monkeypatch.setattr(stopping, "MOST_BATCH", 100)
    before = (time.perf_counter_ns(), time.time_ns() // 1000)
    run = launch("all_reduce", "--sizes 8,1K -n 101", 2).ended(0).run
    after = (time.perf_counter_ns(), time.time_ns() // 1000)
    assert run.problems == []
    stamps = [before]
    for result in run.results:
        assert len(result.batch_start_ns) == len(result.batches) == 2
        stamps.append((result.start_ns, result.start_wall_us))
        assert result.start_ns <= result.cold_start_ns[0][0] <= result.batch_start_ns[0]
        stamps += zip(result.batch_start_ns, result.batch_start_wall_us, strict=True)
        for starts, durations in zip(result.cold_start_ns, result.cold_ns, strict=True):
            assert len(starts) == len(durations)
            ends = [start + ns for start, ns in zip(starts, durations, strict=True)]
            assert all(end <= begin for end, begin in zip(ends, starts[1:], strict=False))
    stamps.append(after)
    for clock in zip(*stamps, strict=True):
        assert list(clock) == sorted(clock)
    # Tools that hold numbers as doubles, such as jq, keep them: the cases are not lost.
    walls = [wall for _, wall in stamps]
    assert [int(float(wall)) for wall in walls] == walls and max(walls) < 1 << 53


def test_where_the_time_went(launch):
    """Ramp-up calls, barriers and gathers are parts of the case's wall time."""
    measured = launch("all_reduce", "--sizes 8,1K -n 50 --verbose", 2).ended(0)
    for result in measured.run.results:
        spent = result.spent_ns
        assert list(spent) == ["ramp_up", "barriers", "gathers", "case"]
        assert spent["ramp_up"] == sum(result.ramp_up_ns[0])
        assert min(spent.values()) > 0
        parts = spent["ramp_up"] + spent["barriers"] + spent["gathers"]
        assert parts + sum(result.time_ns["host"][0]) <= spent["case"]


def noting(event, real):
    """A function that prints ``event`` on stderr and does what ``real`` does."""

    def call(*args, **kwargs):
        print(event, file=sys.stderr)
        return real(*args, **kwargs)

    return call


@pytest.mark.parametrize("fresh", [False, True])
def test_no_cold_call_directly_follows_an_exchange(launch, fresh):
    """Waiting for the store puts threads to sleep: nine barriers come between it and a cold call.
    Call 0 of a new communicator has no barrier, which would pay for connecting: it starts at a time
    that the ranks have agreed on.
    """

    def setup(rank):
        together = Control.start_together

        def start(control):
            together(control)
            print("start", file=sys.stderr)

        Control.start_together = start
        Control.gather = noting("store", Control.gather)
        Control.decide = noting("store", Control.decide)
        dist.barrier = noting("barrier", dist.barrier)
        dist.all_reduce = noting("call", dist.all_reduce)
        stopping.SteadyStateRule.steady_after = None  # 20 cold calls a case
        measure.WAKE_BARRIERS = 9

    options = f"--sizes 8,16 -n 0 -c 0 {'--fresh-group' if fresh else ''}"
    measured = launch("all_reduce", options, 2, setup=setup).ended(0)
    for rank in range(2):
        events = measured.stderr(rank).split()
        calls = [index for index, event in enumerate(events) if event == "call"]
        assert len(calls) == 2 * 20
        starts = [number for number, index in enumerate(calls) if events[index - 1] == "start"]
        assert starts == ([0, 20] if fresh else [0])
        for index in calls:
            if events[index - 1] != "start":
                before = [*takewhile(lambda event: event == "barrier", events[index - 1 :: -1])]
                after_exchange = events[index - len(before) - 1] == "store"
                assert len(before) == (9 if after_exchange else 1)
                assert len(before) % 2, "gloo's two threads take turns: the call's stays the same"


def test_cold_calls_only(launch):
    result = launch("all_reduce", "--sizes 8 -n 0", 2).ended(0).only()
    assert (result.status, result.time_ns, result.batches) == ("ok", {}, [])
    assert len(result.cold_ns[0]) >= 3
    assert result.verification.checked == 4, "also a case without steady calls is verified"


@pytest.mark.parametrize(
    ("options", "reason", "calls"),
    [
        ("--precision 0.99 --max-time 60", "precision", None),
        ("--precision 1e-9 --max-time 60", "cap", 1000),
        ("--precision 1e-9 --max-time 0.000001", "time", None),
    ],
)
def test_reasons_to_stop(launch, options, reason, calls):
    def alike(rank: int) -> None:
        if reason == "precision":  # calls that all take the same; those of a busy machine vary
            ticking()

    result = launch("all_reduce", f"--sizes 8 {options}", 1, setup=alike).ended(0).only()
    assert result.stop == reason
    assert sum(result.batches) == len(result.time_ns["host"][0])
    assert result.steady_ns > 0
    if calls:
        assert sum(result.batches) == calls
    if reason == "precision":
        assert result.batches == [40, 20], "two looks in a row"
    if reason == "time":
        assert 1 <= sum(result.batches) <= 20


def test_stream_mode(launch):
    result = launch("all_reduce", "--sizes 1K -n 30 --mode back-to-back", 2).ended(0).only()
    assert (result.case.mode, result.status) == ("back-to-back", "ok")
    assert [len(row) for row in result.time_ns["host"]] == [30, 30]
    assert (result.batches, result.stop) == ([30], "count")
    assert result.verification.wrong == 0


def test_order(launch):
    sizes = [8, 16, 32, 64, 128, 256]
    options = f"--sizes {','.join(map(str, sizes))} -n 1 --order shuffled --seed 3"
    shuffled = launch("broadcast", options, 2).ended(0).run
    got = [r.case.size_bytes for r in shuffled.results]
    assert got != sizes and sorted(got) == sizes
    assert shuffled.header["spec"]["seed"] == 3


def test_splits_from_a_file(launch, tmp_path):
    (tmp_path / "matrix").write_text("0 2\n1 1\n")
    options = f"--sizes 48 -n 1 --splits {tmp_path}/matrix"
    result = launch("all_to_all_v", options, 2).ended(0).only()
    # Columns weigh 1 and 3, rows 2 and 2: 12 elements * 2 // 3 = 8, and 4 for a weight of 1.
    assert (result.count, result.size_bytes) == (8, 48)
    assert (result.bytes_in, result.bytes_out) == (32, 48)
    assert result.verification.checked == 4 + 12 and result.verification.wrong == 0


def test_too_large_is_skipped(launch):
    """4 MiB on each of 2 ranks, and what verification takes, against 80 % of 1 MB."""

    def setup(rank: int) -> None:
        original = environment.free_memory

        def little(*args):
            return {name: 10**6 for name in original(*args)}

        environment.free_memory = little

    measured = launch("all_gather", "--sizes 1K,4M,2K -n 2", 2, setup=setup).ended(0)
    small, large, after = measured.run.results
    assert (small.status, large.status, after.status) == ("ok", "skipped", "ok")
    assert "1000000 bytes" in large.reason, "the free bytes"
    # 2 ranks: 2 MiB to send, 4 MiB to receive, 24 bytes for each of 2^20 elements to verify.
    needed = 2 * ((6 << 20) + 24 * (1 << 20))
    assert f"({needed} bytes" in large.reason, large.reason
    assert "80 %" in large.reason
    assert not large.cold_ns and not large.time_ns


def test_without_verification_less_is_needed(launch):
    def setup(rank: int) -> None:
        original = environment.free_memory
        environment.free_memory = lambda *args: {name: 20 << 20 for name in original(*args)}

    run = launch("all_reduce", "--sizes 4M -n 1 -c 0", 2, setup=setup).ended(0)
    assert run.only().status == "ok"
    run = launch("all_reduce", "--sizes 1M,4M -n 1", 2, setup=setup).ended(0).run
    assert [result.status for result in run.results] == ["ok", "skipped"]


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_an_allocation_that_fails_on_one_rank(launch, error):
    """All ranks give the case up together, and the sweep goes on."""

    def setup(rank: int) -> None:
        original = measure.allocate

        def allocate(torch, sizing, place, *rest):
            if rank == 2 and sizing.case.size_bytes == 64:
                raise error("[enforce fail at alloc.cpp:1] DefaultCPUAllocator: no room left")
            return original(torch, sizing, place, *rest)

        measure.allocate = allocate

    measured = launch("all_reduce", "--sizes 8,64,512 -n 2", 3, setup=setup).ended(1)
    before, failed, after = measured.run.results
    assert (before.status, failed.status, after.status) == ("ok", "oom", "ok")
    assert failed.reason.startswith("no memory on rank 2 (")
    assert "no room left" in failed.reason
    (line,) = measured.errors()
    assert line.startswith("torchcoll: error: 1 oom of 3 cases. First: all_reduce 64 float32")
    assert (measured.run.end["status"], measured.run.end["exit_code"]) == ("complete", 1)


# One rank, and none.
NO_LAUNCHER = dict.fromkeys(
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
)


def test_one_rank_without_a_launcher(launch):
    measured = launch("all_reduce", "--sizes 8 -n 3", 1, environment=NO_LAUNCHER).ended(0)
    run = measured.run
    assert (run.ranks, run.header["launcher"]) == (1, "none")
    assert (measured.only().status, measured.only().verification.wrong) == ("ok", 0)
    assert "no communication" in measured.stdout(0)


def test_fake_worlds(launch):
    """One process plays rank 0 of 64: plans, tests, the cost of measuring."""
    options = "--backend fake --ranks 64 --sizes 4K --in-place both -n 5"
    measured = launch(None, options, 1, environment=NO_LAUNCHER).ended(0)
    run = measured.run
    assert run.ranks == 64 and run.complete
    assert len(run.members) == 1
    assert {r.ranks for r in run.results} == {64}
    for result in run.results:
        if result.status == "unsupported":
            assert result.reason == "fake has no all_gather of blocks that differ"
            continue
        assert result.status == "ok"
        assert len(result.time_ns["host"]) == 1 and len(result.time_ns["host"][0]) == 5
        assert result.verification is None, "nothing was communicated"


def test_sub_groups_of_a_fake_world(launch):
    """Rank 0 is the only one that is there: the group without it makes no calls."""
    options = "--backend fake --ranks 4 --groups 1,3;0,2 --sizes 1K"
    for count, stop in (("-n 3", "count"), ("", "precision cap time")):
        measured = launch("all_reduce", f"{options} {count}", 1, environment=NO_LAUNCHER).ended(0)
        other, own = measured.run.results
        assert (own.case.group, own.status, own.ranks) == ("1,3;0,2/1", "ok", 2)
        assert own.stop in stop.split() and len(own.time_ns["host"]) == 1
        assert (other.status, other.members, other.time_ns) == ("skipped", [1, 3], {})
        assert other.reason == "no rank of the sub-group is there: a fake world has one"


def test_a_fake_root_elsewhere(launch):
    options = "--backend fake --ranks 8 -r 7 --sizes 64 -n 1"
    measured = launch("gather", options, 1, environment=NO_LAUNCHER).ended(0)
    assert measured.only().case.root == 7
