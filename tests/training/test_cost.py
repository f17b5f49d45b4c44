"""Wait, transfer and contention: exact on stamps made by hand, and once on real ranks."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from error_form import error_text
from ranks import Job, announce, await_event, busy
from sent import MIB, MS, call, ddp, traffic, world

import torchcoll
from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.traffic import Group, Traffic, join

NCCL = world(2, backend="nccl")  # runs the calls of a group one after another
ALONE = Case("all_reduce", MIB, "float32", "sum", None, True, "synchronized", "gloo", "cpu")


def measured(*cases: Case, ranks: int = 2, ns: int = 2 * MS, clock: str = "host", **changed) -> Run:
    """Each case took so long on its slowest rank in every call, half of it on the others."""
    results = [
        CaseResult(
            case,
            **{
                "status": "ok",
                "ranks": ranks,
                "size_bytes": case.size_bytes,
                "time_ns": {clock: [[ns] * 3, *[[ns // 2] * 3] * (ranks - 1)]},
                **changed,
            },
        )
        for case in cases
    ]
    return Run(header={"run_id": "r1", "ranks": ranks}, results=results)


def late(delay_ms: int, ranks: int = 2, calls: int = 4, last: int = 1) -> Traffic:
    """The transfer takes 3 ms; ``last`` comes so much later than all others."""
    delays = {rank: 0 if rank == last else delay_ms for rank in range(ranks)}
    return traffic(
        lambda rank: [call(sequence=i, time_ns=(3 + delays[rank]) * MS) for i in range(calls)],
        ranks=ranks,
    )


@pytest.mark.parametrize("delay_ms", [0, 5, 50])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_late_rank_is_wait_and_no_contention(delay_ms, ranks):
    costs = torchcoll.cost(late(delay_ms, ranks), measured(ALONE, ranks=ranks, ns=3 * MS))
    (row,) = costs.rows
    assert (row.collective, row.size_bytes, row.calls, row.group_ranks) == (
        "all_reduce",
        MIB,
        4,
        ranks,
    )
    assert row.in_place_ns == (3 + delay_ms) * MS
    assert (row.wait_ns, row.transfer_ns) == (delay_ms * MS, 3 * MS)
    assert (row.isolated_ns, row.contention_ns, row.reason) == (3 * MS, 0, "")


def test_what_a_transfer_has_more_than_alone_is_contention():
    (row,) = torchcoll.cost(late(5), measured(ALONE)).rows
    assert (row.transfer_ns, row.isolated_ns, row.contention_ns) == (3 * MS, 2 * MS, MS)
    assert row.isolated_as == "synchronized, host clock, gloo, sum"


def test_steps_that_are_not_marked_are_not_counted():
    assert torchcoll.cost(dataclasses.replace(late(5), steps={}), measured(ALONE)).steps is None


def test_columns_are_those_of_runs():
    with pytest.raises(UsageError) as caught:
        torchcoll.show(torchcoll.cost(late(5), measured(ALONE)), columns="size,time")
    assert str(caught.value) == error_text("columns", "size,time", "none with Cost")


@pytest.mark.parametrize(
    ("fields", "source", "alone_ms", "late_ms", "bound"),
    [
        ({}, "capture", 2, 5, True),  # 3 - 2 ms: nothing but lateness, perhaps
        ({"asynchronous": None}, "capture", 2, 5, True),  # torch 2.6 does not tell
        ({}, "capture", 3, 5, False),  # none
        ({"time_ns": 9 * MS}, "capture", 2, 5, False),  # 7 ms
        ({"asynchronous": False}, "capture", 2, 0, False),
        ({}, "kineto", 2, 0, False),
        ({"clock": "device"}, "capture", 2, 0, False),
    ],
)
def test_contention_below_the_error_of_a_late_end_is_a_bound(
    fields, source, alone_ms, late_ms, bound
):
    traced_call = call(**({"time_ns": 3 * MS} | fields))
    recorded = dataclasses.replace(traffic(lambda rank: [traced_call]), source=source)
    result = torchcoll.cost(recorded, measured(ALONE, ns=alone_ms * MS, clock=traced_call.clock))
    (row,) = result.rows
    assert row.contention_ns == traced_call.time_ns - alone_ms * MS
    assert (row.late_ns, row.bound) == (late_ms * MS, bound)
    message = (
        "the end of 2 asynchronous calls is recorded up to 5 ms late, so in step and "
        "transfer may be that much too long"
    )
    assert any(note.startswith(message) for note in result.notes) == bool(late_ms)


def test_an_end_after_the_mark_of_its_step_is_cut_there():
    # Rank 1 hears 2 ms after the mark of what it issued 6 ms before it: 6 ms, not 8; and rank 0
    # took 7, so that 6 are the transfer and 1 the wait.
    def calls_of(rank):
        start = (100 - 6 * rank) * MS - (1 - rank) * 7 * MS
        yield call(step=0, start_ns=start, time_ns=(7 + rank) * MS)

    costs = torchcoll.cost(traffic(calls_of, steps=1), measured(ALONE))
    (row,) = costs.rows
    assert (row.in_place_ns, row.wait_ns, row.transfer_ns) == (7 * MS, MS, 6 * MS)
    assert any(note.startswith("1 of 2 calls were heard of up to 5 ms") for note in costs.notes)


def over_marks(took_ms: int, until_mark_ms: int, more: int = 0) -> Traffic:
    """Four steps with a call that ends after the mark, and one of ``more`` ms that does not."""

    def calls_of(rank):
        for step in range(4):
            if more:
                start_ns = (step * 100 + 10) * MS
                yield call(step=step, start_ns=start_ns, time_ns=more * MS, sequence=2 * step)
            start_ns = (step * 100 + 100 - until_mark_ms) * MS
            yield call(step=step, start_ns=start_ns, time_ns=took_ms * MS, sequence=2 * step + 1)

    return traffic(calls_of, steps=4)


def test_a_call_in_flight_over_the_mark_of_its_step_is_not_cut():
    # 4 ms alone and in place: its step ends 2 ms after its issue, and it goes on.
    costs = torchcoll.cost(over_marks(4, 2), measured(ALONE, ns=4 * MS))
    (row,) = costs.rows
    assert (row.in_place_ns, row.transfer_ns, row.contention_ns) == (4 * MS, 4 * MS, 0)
    assert costs.steps == 4
    assert not any("cut" in note for note in costs.notes)
    # The same where only others of its kind tell how long it takes.
    row = only(over_marks(4, 2, more=3), measured(changed(size_bytes=8)))
    assert row.in_place_ns == 3.5 * MS


def test_no_contention_below_0_from_a_cut_call():
    # One that took 1 ms in the training lets the others be cut to 2 ms, less than the 3 alone.
    costs = torchcoll.cost(over_marks(4, 2, more=1), measured(ALONE, ns=3 * MS))
    (row,) = costs.rows
    assert (row.transfer_ns, row.contention_ns) == (1.5 * MS, None)
    assert row.reason == "shorter than alone, with calls cut at the mark of their step"


def test_the_steady_steps_of_ddp():
    case = dataclasses.replace(ALONE, size_bytes=25 * MIB, asynchronous=True)
    costs = torchcoll.cost(traffic(ddp, steps=4), measured(case, ns=6 * MS))
    first, second, third = costs.rows
    assert (first.size_bytes, first.calls, first.asynchronous) == (25 * MIB, 9, True)
    # gloo runs two calls of a group at a time: none waits for the one before it.
    assert (first.in_place_ns, first.wait_ns, first.transfer_ns) == (12 * MS, 5 * MS, 7 * MS)
    assert (first.isolated_as, first.contention_ns) == (
        "synchronized, host clock, gloo, async, sum",
        MS,
    )
    assert (second.size_bytes, second.isolated_ns, second.contention_ns) == (9 * MIB, None, None)
    assert second.reason == "not measured at 9M"
    assert (third.collective, third.size_bytes, third.wait_ns) == ("broadcast", 8, None)
    assert costs.notes[0].startswith("left out: step 0 of 4")


def test_calls_that_queue_say_so():
    """Rank 0's calls take 12 ms and come every 10: all but the first of a step begin in the last.

    Rank 1's take 7 ms. Of the 18 calls of 25 MiB two of three queue on rank 0, where they begin
    2 ms after issue: 10 - 7 ms of waiting.
    """
    costs = torchcoll.cost(traffic(ddp, steps=4, groups=NCCL), measured(ALONE))
    first, *_ = costs.rows
    assert (first.in_place_ns, first.wait_ns, first.transfer_ns) == (12 * MS, 3 * MS, 7 * MS)
    assert [row.queued for row in costs.rows] == [6 / 18, 3 / 6, 0]
    assert any(note.startswith("queued: calls of a group that was busy") for note in costs.notes)
    # gloo runs two of them at a time.
    on_gloo = torchcoll.cost(traffic(ddp, steps=4), measured(ALONE))
    assert [row.queued for row in on_gloo.rows] == [0, 0, 0]
    assert not any(note.startswith("queued: ") for note in on_gloo.notes)


def test_time_in_the_queue_is_neither_waiting_nor_transfer():
    """The first call takes 40 ms on both ranks. Rank 1 issues the second 30 ms after rank 0, when
    it cannot begin yet: it is in flight from 40 to 60 ms, and nobody waits.
    """
    recorded = traffic(
        lambda rank: [
            call(sequence=0, start_ns=0, time_ns=40 * MS),
            call(sequence=1, start_ns=30 * MS * rank, time_ns=(60 - 30 * rank) * MS, size_bytes=8),
        ],
        groups=NCCL,
    )
    first, second = torchcoll.cost(recorded, Run()).rows
    assert (first.wait_ns, first.transfer_ns) == (0, 40 * MS)
    assert (second.in_place_ns, second.wait_ns, second.transfer_ns) == (60 * MS, 0, 20 * MS)


def test_gloo_runs_two_calls_of_a_group_at_a_time():
    """A small call behind one of 40 ms takes 2 ms on rank 0 and 1 ms on rank 1. The third of 8
    bytes can begin when the second has ended, at 3 ms, and ends at 5 ms.
    """

    def calls_of(rank):
        yield call(sequence=0, start_ns=0, time_ns=40 * MS)
        yield call(sequence=1, start_ns=(1 + rank) * MS, time_ns=(2 - rank) * MS, size_bytes=16)
        yield call(sequence=2, start_ns=2 * MS, time_ns=3 * MS, size_bytes=8)

    rows = torchcoll.cost(traffic(calls_of), Run()).rows
    assert [(row.wait_ns, row.transfer_ns) for row in rows] == [
        (0, 40 * MS),
        (MS, MS),
        (0, 2 * MS),
    ]
    assert [row.queued for row in rows] == [0, 0, 1]


def test_a_message_in_flight_does_not_hide_a_wait():
    """Rank 0 posts a receive that nobody waits for until 100 ms. The all_reduce of rank 1 is 30 ms
    late.
    """

    def calls_of(rank):
        if rank == 0:
            yield call("recv", peer=1, start_ns=0, time_ns=100 * MS)
        start_ns = (1 + 30 * rank) * MS
        yield call(start_ns=start_ns, time_ns=32 * MS - start_ns, asynchronous=False)

    for groups in (NCCL, world(2)):
        result = torchcoll.cost(traffic(calls_of, groups=groups), Run())
        (row,) = [row for row in result.rows if row.collective == "all_reduce"]
        assert (row.wait_ns, row.transfer_ns, row.queued) == (30 * MS, MS, 0)
        assert {row.rank: row.caused_ns for row in result.arrivals.ranks} == {1: 30 * MS, 0: 0}


def test_a_call_that_begins_at_the_end_of_another_does_not_queue():
    for start_ns, share in ((MS, 0), (MS - 1, 0.5)):
        calls = [call(sequence=i, start_ns=i * start_ns, time_ns=MS) for i in range(2)]
        recorded = traffic(lambda rank, calls=calls: calls, groups=NCCL)
        assert only(recorded, measured(ALONE)).queued == share


def test_queuing_is_unknown_where_stamps_are():
    stamped = call(time_ns=MS, start_ns=0)
    for changed in ({"start_ns": None}, {"time_ns": None}, {"clock": "device"}):
        changed_call = dataclasses.replace(stamped, **changed)
        (row,) = torchcoll.cost(
            traffic(lambda rank, changed_call=changed_call: [changed_call]), measured(ALONE)
        ).rows
        assert row.queued is None


def test_who_caused_the_waiting():
    """Ten calls to which rank 2 comes 5 ms after three others: 150 ms."""
    recorded = traffic(
        lambda rank: [
            call(sequence=i, time_ns=(3 if rank == 2 else 8) * MS, asynchronous=False)
            for i in range(10)
        ],
        ranks=4,
    )
    (late_rank,) = torchcoll.cost(recorded, measured(ALONE, ranks=4)).arrivals.late
    assert (late_rank.rank, late_rank.caused_ns, late_rank.caused_share) == (2, 150 * MS, 1)


def only(recorded: Traffic, run: Run):
    (row,) = torchcoll.cost(recorded, run).rows
    return row


def split(row):
    return row.wait_ns, row.transfer_ns, row.contention_ns


def test_one_rank_alone_tells_no_wait():
    row = only(traffic(lambda rank: [call(time_ns=3 * MS)], recorded=[1]), measured(ALONE))
    assert (row.in_place_ns, row.isolated_ns, split(row)) == (3 * MS, 2 * MS, (None, None, None))
    assert row.reason == "1 of the 2 ranks of its group were recorded"


@pytest.mark.parametrize(
    ("traced_call", "groups", "reason"),
    [
        (
            call("broadcast", root=0, time_ns=MS),
            None,
            "rooted: ranks leave at different times, so that the shortest need not be the last",
        ),
        (
            call("send", peer=1, time_ns=MS),
            None,
            "a message between two ranks: its two sides are not put together",
        ),
        (
            call("_dtensor::thing", time_ns=MS),
            None,
            "_dtensor::thing is not in the table of collectives",
        ),
        (call(time_ns=MS), {"0": Group("0")}, "the calls of the ranks were not put together"),
        (call(time_ns=MS), {"0": Group("0", (0,))}, "a group of one rank"),
        (call(), None, "no time"),
    ],
)
def test_what_cannot_be_split_says_why(traced_call, groups, reason):
    ranks = 1 if reason == "a group of one rank" else 2
    recorded = traffic(lambda rank: [traced_call], ranks=ranks, groups=groups)
    row = torchcoll.cost(recorded, measured(ALONE)).rows[0]
    assert split(row) == (None, None, None)
    assert row.reason.split("; ")[0] == reason
    assert torchcoll.cost(recorded, measured(ALONE)).arrivals is None


def changed(**fields) -> Case:
    return dataclasses.replace(ALONE, **fields)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (Run(), "all_reduce is not in the run"),
        (measured(changed(collective="barrier", dtype=None)), "all_reduce is not in the run"),
        (measured(changed(dtype="bfloat16")), "measured in bfloat16, not in float32"),
        (measured(ALONE, ranks=4), "measured on 4 ranks, the group has 2"),
        (measured(changed(size_bytes=8)), "not measured at 1M"),
        (measured(changed(backend="ccl")), "measured on ccl, sent on gloo"),
        (measured(changed(op="max")), "measured with max, not with sum"),
        (measured(ALONE, status="oom", reason="no memory"), "oom: no memory"),
        (measured(ALONE, time_ns={}), "ok: no steady calls"),
        (measured(changed(rehearsal=True)), "a rehearsal, in which no time means anything"),
        (measured(changed(coalesce=4)), "measured in groups of calls, or until issued only"),
        (measured(ALONE, clock="issue"), "measured in groups of calls, or until issued only"),
    ],
)
def test_what_was_not_measured_says_why(run, reason):
    recorded = traffic(lambda rank: [call(time_ns=3 * MS, op="sum")])
    row = only(recorded, run)
    assert (row.isolated_ns, row.contention_ns, row.reason) == (None, None, reason)
    assert (row.wait_ns, row.transfer_ns) == (0, 3 * MS)


def test_the_clocks_must_be_the_same():
    row = only(late(0), measured(ALONE, clock="device"))
    assert (row.isolated_ns, row.contention_ns) == (2 * MS, None)
    assert row.reason == "host clock in the training, device clock in the run"


def test_the_trainings_clock_is_read_where_the_run_has_it():
    combined = {"host": [[9 * MS] * 3] * 2, "device": [[2 * MS] * 3] * 2}
    recorded = traffic(lambda rank: [call(time_ns=3 * MS, clock="device")])
    assert only(recorded, measured(ALONE, time_ns=combined)).contention_ns == MS
    assert only(late(0), measured(ALONE, time_ns=combined)).contention_ns == -6 * MS


def test_async_or_not_as_in_the_training():
    run = measured(changed(asynchronous=True), ns=MS)
    run.results += measured(ALONE).results
    for asynchronous, alone in ((True, MS), (False, 2 * MS), (None, 2 * MS)):
        changed_call = call(time_ns=3 * MS, asynchronous=asynchronous)
        assert (
            only(traffic(lambda rank, changed_call=changed_call: [changed_call]), run).isolated_ns
            == alone
        )


def test_sizes_are_those_of_nccl_tests():
    """What all_gather gets and reduce_scatter gives is their size."""

    def calls_of(rank):
        yield call("all_gather", MIB // 2, bytes_out=MIB, time_ns=3 * MS)
        yield call("reduce_scatter", MIB, bytes_out=MIB // 2, time_ns=3 * MS, sequence=1)

    cases = [changed(collective=name) for name in ("all_gather", "reduce_scatter")]
    costs = torchcoll.cost(traffic(calls_of), measured(*cases))
    assert [(row.size_bytes, row.contention_ns) for row in costs.rows] == [(MIB, MS), (MIB, MS)]


def test_all_to_all_v_has_no_one_size():
    recorded = traffic(lambda rank: [call("all_to_all_v", 100 + rank, time_ns=(1 + rank) * MS)])
    row = only(recorded, measured(ALONE))
    assert (row.size_bytes, row.wait_ns, row.transfer_ns) == (None, MS, MS)
    assert row.reason == "all_to_all_v: what each rank sends varies"


def test_two_groups_of_a_mesh_are_one_row():
    groups = {f"tp{i}": Group(f"tp{i}", (2 * i, 2 * i + 1), "gloo", "mesh_tp") for i in (0, 1)}
    recorded = traffic(
        lambda rank: [call(group=f"tp{rank // 2}", time_ns=(3 + rank) * MS)], 4, groups=groups
    )
    row = only(recorded, measured(ALONE))
    assert (row.group, row.group_ranks, row.calls, row.wait_ns) == ("mesh_tp", 2, 2, MS)
    assert row.transfer_ns == 4 * MS  # 3 and 5


def hsdp() -> Traffic:
    """2 x 2: shards gather 1 MiB along the rows in 3 ms, replicas sum 1 MiB along the columns."""
    groups = {f"s{i}": Group(f"s{i}", (2 * i, 2 * i + 1), "gloo", "mesh_shard") for i in (0, 1)} | {
        f"r{i}": Group(f"r{i}", (i, i + 2), "gloo", "mesh_replicate") for i in (0, 1)
    }

    def calls_of(rank):
        yield call(group=f"s{rank // 2}", time_ns=3 * MS, asynchronous=False)
        yield call(group=f"r{rank % 2}", time_ns=9 * MS, asynchronous=False)

    return traffic(calls_of, 4, groups=groups)


def on_groups(text: str, ns: int) -> Run:
    """A run of 4 ranks that measured ALONE on each sub-group."""
    results = []
    for index, members_text in enumerate(text.split(";")):
        (measured_result,) = measured(changed(group=f"{text}/{index}"), ns=ns).results
        results.append(
            dataclasses.replace(
                measured_result, members=[int(rank) for rank in members_text.split(",")]
            )
        )
    return Run(header={"run_id": text, "ranks": 4}, results=results)


def test_several_runs_are_matched_by_their_groups(tmp_path):
    """The same call on as many ranks: only the ranks tell which run is meant."""
    rows, columns = on_groups("0,1;2,3", 2 * MS), on_groups("0,2;1,3", 5 * MS)
    torchcoll.save(columns, tmp_path / "columns.jsonl")
    for runs in ([rows, columns], (tmp_path / "columns.jsonl", rows)):
        costs = torchcoll.cost(hsdp(), runs)
        shard, replicate = costs.rows
        assert (shard.group, shard.isolated_ns, shard.contention_ns) == ("mesh_shard", 2 * MS, MS)
        assert (replicate.isolated_ns, replicate.contention_ns) == (5 * MS, 4 * MS)
    assert costs.run == f"{tmp_path / 'columns.jsonl'}, run 0,1;2,3"
    shard, replicate = torchcoll.cost(hsdp(), rows).rows
    assert (replicate.isolated_ns, replicate.reason) == (
        None,
        "measured on ranks 0-1 and 2-3, not on 0,2",
    )
    assert shard.isolated_ns == 2 * MS
    # A run of 2 ranks may have run on any of them.
    assert [row.isolated_ns for row in torchcoll.cost(hsdp(), measured(ALONE)).rows] == [2 * MS] * 2


@pytest.mark.parametrize("order", [(1, 2, 4), (4, 2, 1), (2, 4, 1)])
def test_replicate_launches_count_all(order):
    row = only(late(5), [measured(ALONE, ns=ms * MS) for ms in order])
    assert row.isolated_ns == pytest.approx(2 * MS)
    assert row.contention_ns == pytest.approx(MS)
    assert row.isolated_as == "synchronized, host clock, gloo, sum, geometric mean of 3 runs"


def test_other_ways_to_measure_are_no_replicates():
    second = measured(changed(mode="pipelined"), ns=9 * MS)
    row = only(late(5), [second, measured(ALONE, ns=MS), measured(ALONE, ns=4 * MS)])
    assert row.isolated_ns == pytest.approx(2 * MS)


def delayed(delay_s: float) -> None:
    """Rank 1 comes to each of five calls so long after the others; each rank writes what it saw."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor, calls = torch.ones(16384), []
    dist.all_reduce(tensor)
    for number in range(5):
        dist.barrier()
        if rank == 1:
            await_event(f"{number} of rank 0")
            await_event(f"{number} of rank 2")
            time.sleep(delay_s)
        else:
            announce(f"{number} of rank {rank}")
        start = time.perf_counter_ns()
        dist.all_reduce(tensor)
        took = time.perf_counter_ns() - start
        calls.append(call(size_bytes=65536, sequence=number, asynchronous=False, time_ns=took))
    Traffic(ranks=ranks, calls={rank: calls}, groups=world(ranks)).save(f"traffic{rank}.jsonl")
    dist.barrier()
    dist.destroy_process_group()


def test_a_real_rank_that_comes_200_ms_late(tmp_path: Path):
    """The margins are those of a busy machine, on which the 200 ms are more: what is tested is
    where they go.
    """
    delay_s = 0.2 * busy()
    delay_ns = delay_s * 1e9
    job = Job(tmp_path / "job", lambda: delayed(delay_s), ranks=3)
    assert job.codes() == [0, 0, 0]
    recorded = join(Traffic.load(tmp_path / "job" / f"traffic{rank}.jsonl") for rank in range(3))
    result = torchcoll.cost(recorded, Run())
    (row,) = result.rows
    assert 0.5 * delay_ns < row.wait_ns < 5 * delay_ns
    assert row.transfer_ns < 0.5 * delay_ns
    caused = {row.rank: row.caused_ns for row in result.arrivals.ranks}
    assert max(caused, key=caused.get) == 1
    assert caused[1] > 5 * 2 * 0.5 * delay_ns


def test_of_a_folder_and_a_file(tmp_path):
    whole = late(5)
    for rank in whole.calls:
        rank_traffic = dataclasses.replace(whole, calls={rank: whole.calls[rank]})
        rank_traffic.save(tmp_path / "sent" / f"traffic-rank{rank}.jsonl")
    torchcoll.save(measured(ALONE, ns=3 * MS), tmp_path / "run.jsonl")
    (row,) = torchcoll.cost(tmp_path / "sent", str(tmp_path / "run.jsonl")).rows
    assert (row.wait_ns, row.transfer_ns, row.isolated_ns) == (5 * MS, 3 * MS, 3 * MS)


def test_one_rank_alone_says_what_it_takes():
    one_rank = traffic(lambda rank: [call(time_ns=3 * MS)], recorded=[0])
    costs = torchcoll.cost(one_rank, measured(ALONE))
    assert costs.rows[0].wait_ns is None
    assert costs.notes[-1].startswith("1 of 2 ranks: wait and transfer take the files of all")


NOTHING = traffic(lambda rank: [])
NO_RUN = "a Run, its file, or a list of them"


@pytest.mark.parametrize(
    ("traffic_argument", "run", "message"),
    [
        (NOTHING, None, error_text("run", "NoneType",
            f"{NO_RUN}. torchcoll.run returns it on rank 0 alone.")),
        (NOTHING, [measured(ALONE), 7], error_text("run", "int", NO_RUN)),
        (NOTHING, [], error_text("run", "an empty list", NO_RUN)),
        (7, measured(ALONE), error_text("traffic", "int", "a Traffic, its file or its folder")),
    ],
)  # fmt: skip
def test_neither_traffic_nor_run(traffic_argument, run, message):
    with pytest.raises(UsageError) as raised:
        torchcoll.cost(traffic_argument, run)
    assert str(raised.value) == message


def test_what_was_wrong_in_a_file_is_said():
    cut = dataclasses.replace(late(0), problems=["a.jsonl: truncated: the file has no end record"])
    assert "truncated" in torchcoll.cost(cut, measured(ALONE)).notes[0]


def test_calls_without_a_time_are_not_said_to_hold_waiting():
    # send on gloo: neither whether it was asynchronous nor how long it took is told.
    sent = traffic(lambda rank: [call("send", peer=1 - rank, asynchronous=None)])
    assert torchcoll.cost(sent, measured(ALONE)).notes == [
        "no step is marked: all calls are one step"
    ]
