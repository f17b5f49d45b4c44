"""What a training sends, as rows: by hand, see tests/sent.py."""

import dataclasses

import pytest
from error_form import error_text
from sent import MIB, MS, call, ddp, traffic, world

import torchcoll
from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Group
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traffic_table import TrafficRow, summarise_traffic

ROW = {
    "collective": "all_reduce",
    "bytes_in": 25 * MIB,
    "bytes_out": 25 * MIB,
    "dtype": "float32",
    "op": None,
    "group": "0",
    "group_ranks": 2,
    "groups": 1,
    "backend": "gloo",
    "asynchronous": True,
    "ranks": "0-1",
    "calls_per_step": 3,
    "bytes_per_step": 75 * MIB,
    "time_per_step_ns": 36 * MS,  # three times the 12 ms of rank 0, the slower one
    "wait_per_step_ns": 15 * MS,  # three times 12 - 7 ms
    "transfer_per_step_ns": 21 * MS,  # three times 7 ms
    "median_ns": 12 * MS,
    "clock": "host",
    "share": 0.36,
    "exposed_ns": None,
    "algorithm": None,
}


def rows(result):
    return [dataclasses.asdict(row) for row in summarise_traffic(Ledger(result)).rows]


def some(result, *names):
    """The rows as tuples of these fields."""
    return [tuple(row[name] for name in names) for row in rows(result)]


def test_rows_of_ddp():
    nine = {"bytes_in": 9 * MIB, "bytes_out": 9 * MIB, "calls_per_step": 1, "share": 0.12}
    nine |= {"bytes_per_step": 9 * MIB, "time_per_step_ns": 12 * MS}
    nine |= {"wait_per_step_ns": 5 * MS, "transfer_per_step_ns": 7 * MS}
    small = {"collective": "broadcast", "bytes_in": 8, "bytes_out": 8, "dtype": "int64"}
    small |= {"asynchronous": False, "calls_per_step": 1, "bytes_per_step": 8}
    small |= {"wait_per_step_ns": None, "transfer_per_step_ns": None}
    small |= {"time_per_step_ns": MS / 5, "median_ns": MS / 5, "share": 0.002, "exposed_ns": MS / 5}
    assert rows(traffic(ddp, steps=4)) == [ROW, ROW | nine, ROW | small]


def test_the_steps_of_ddp():
    table = summarise_traffic(Ledger(traffic(ddp, steps=4)))
    assert (table.steps, table.total, table.marked, table.statistic) == (
        (1, 2, 3),
        4,
        True,
        "median",
    )
    assert table.step_ns == 100 * MS
    # In flight: on rank 0 from 0 to 42 ms, as each of four begins 10 ms after the last and takes
    # 12; on rank 1 four times 7 ms.
    assert table.busy_ns == 35 * MS + MS // 5
    assert table.ranks[0].exposed_ns is None  # of the broadcast alone it is known
    assert table.notes == [
        "left out: step 0 of 4, with other calls than most steps",
        "2 calls of 2 ranks outside of the marked steps: left out",
    ]


def test_without_marks_everything_is_one_step():
    recorded = traffic(lambda rank: [call(sequence=i, time_ns=(i + 1) * MS) for i in range(3)])
    table = summarise_traffic(Ledger(recorded))
    assert (table.steps, table.total, table.marked, table.step_ns) == ((0,), 1, False, None)
    assert some(recorded, "calls_per_step", "time_per_step_ns", "median_ns", "share") == [
        (3, 6 * MS, 2 * MS, None)
    ]
    assert table.notes[0] == "no step is marked: all calls are one step"


def test_a_plan_needs_no_marks():
    recorded = dataclasses.replace(traffic(lambda rank: [call()]), source="plan")
    assert summarise_traffic(Ledger(recorded)).notes == []
    assert some(recorded, "time_per_step_ns", "clock") == [(None, None)]


def stepwise(*counts, size_bytes=MIB):
    """Each step sends so many calls."""

    def calls_of(rank):
        steps = [step for step, count in enumerate(counts) for _ in range(count)]
        return [
            call(size_bytes=size_bytes, sequence=i, step=s, time_ns=MS) for i, s in enumerate(steps)
        ]

    return traffic(calls_of, steps=len(counts))


@pytest.mark.parametrize(
    ("counts", "steady", "calls", "notes"),
    [
        ((1, 4), (1,), 4, ["left out: step 0 of 2, with other calls than most steps"]),
        ((2, 2, 5), (0, 1), 2, ["left out: step 2 of 3, with other calls than most steps"]),
        # Gradients are accumulated: most steps send nothing.
        ((0, 0, 3, 0, 0, 3), (2, 5), 3, ["left out: steps 0-1,3-4 of 6, without calls"]),
        (
            (7, 0, 3, 3, 0),
            (2, 3),
            3,
            [
                "left out: step 0 of 5, with other calls than most steps",
                "left out: steps 1,4 of 5, without calls",
            ],
        ),
        ((4, 4), (0, 1), 4, []),
    ],
)
def test_steps_that_send_otherwise_are_left_out_and_said(counts, steady, calls, notes):
    table = summarise_traffic(Ledger(stepwise(*counts)))
    assert (table.steps, table.rows[0].calls_per_step) == (steady, calls)
    assert table.notes == notes


def test_steps_that_all_differ_are_averaged_and_that_is_said():
    table = summarise_traffic(Ledger(stepwise(1, 2, 3, 6)))
    assert (table.steps, table.statistic) == ((0, 1, 2, 3), "mean")
    (row,) = table.rows
    assert (row.calls_per_step, row.bytes_per_step, row.time_per_step_ns) == (3, 3 * MIB, 3 * MS)
    assert table.notes[0] == (
        "the steps vary: at most 1 of 4 send alike; figures are means over all of them"
    )


def test_steps_that_send_nothing_at_all():
    table = summarise_traffic(Ledger(stepwise(0, 0)))
    assert (table.rows, table.steps) == ([], (0, 1))


def test_a_rank_that_was_cut_off_marked_fewer_steps():
    recorded = stepwise(1, 1, 1)
    recorded.steps[1] = recorded.steps[1][:2]
    recorded.calls[1] = recorded.calls[1][:2]
    table = summarise_traffic(Ledger(recorded))
    assert (table.total, table.rows[0].calls_per_step) == (2, 1)
    assert table.notes[:2] == [
        "the ranks marked 2 to 3 steps: the first 2 count",
        "1 call of 2 ranks outside of the marked steps: left out",
    ]


def test_time_is_the_slowest_rank_of_each_call():
    times = {0: (10, 1), 1: (2, 5)}  # the longest are 10 and 5
    recorded = traffic(
        lambda rank: [call(sequence=i, time_ns=t * MS) for i, t in enumerate(times[rank])]
    )
    assert some(recorded, "time_per_step_ns", "median_ns") == [(15 * MS, 7.5 * MS)]
    assert some(traffic(lambda rank: recorded.calls[rank], recorded=[1]), "time_per_step_ns") == [
        (7 * MS,)
    ]


def test_ranks_are_joined_by_number_not_by_place():
    """Rank 1 was recorded from its second call on."""
    times = {0: [(0, 9), (1, 3)], 1: [(1, 4)]}
    recorded = traffic(lambda rank: [call(sequence=i, time_ns=t * MS) for i, t in times[rank]])
    assert some(recorded, "ranks", "median_ns") == [("0", 6.5 * MS), ("1", 4 * MS)]


def test_pipeline_stages_have_rows_of_their_own():
    def calls_of(rank):
        message = {"collective": "send" if rank == 0 else "recv", "peer": 1 - rank}
        message |= {"bytes_in": 4096 * (rank == 0), "bytes_out": 4096 * (rank == 1)}
        return [call(time_ns=MS), call(**message, asynchronous=None)]

    recorded = traffic(calls_of)
    names = ("collective", "bytes_in", "bytes_out", "ranks", "bytes_per_step")
    assert some(recorded, *names) == [
        ("all_reduce", MIB, MIB, "0-1", MIB),
        ("send", 4096, 0, "0", 4096),
        ("recv", 0, 4096, "1", 0),
    ]
    notes = summarise_traffic(Ledger(recorded)).notes
    assert "the ranks do not send alike: each row is of the ranks that it names" in notes
    assert "2 of 3 rows have no time: the source does not tell it" in notes
    assert not any(note.startswith("group 0") for note in notes)  # two sides do not disagree


def test_groups_of_a_mesh_that_do_alike_are_one_row():
    """Two tensor-parallel groups, whose own calls take 1 and 3 ms; one group of all."""
    groups = {
        **world(4),
        "tp0": Group("tp0", (0, 1), "gloo", "mesh_tp"),
        "tp1": Group("tp1", (2, 3), "gloo", "mesh_tp"),
    }

    def calls_of(rank):
        yield call("all_gather", 8, bytes_out=16, group=f"tp{rank // 2}", time_ns=(1 + rank) * MS)
        yield call(time_ns=2 * MS)

    recorded = traffic(calls_of, ranks=4, groups=groups)
    names = ("collective", "group", "group_ranks", "groups", "ranks", "calls_per_step")
    assert some(recorded, *names, "time_per_step_ns", "median_ns") == [
        ("all_gather", "mesh_tp", 2, 2, "0-3", 1, 4 * MS, 3 * MS),
        ("all_reduce", "0", 4, 1, "0-3", 1, 2 * MS, 2 * MS),
    ]


def test_groups_without_a_description_are_named():
    groups = {name: Group(name, ranks, "gloo", "undefined") for name, ranks in
              (("1", (0, 1)), ("2", (2, 3)))}  # fmt: skip
    recorded = traffic(lambda rank: [call(group=str(1 + rank // 2))], ranks=4, groups=groups)
    assert some(recorded, "group", "groups", "ranks") == [("1,2", 2, "0-3")]


def test_calls_of_a_group_of_unknown_ranks_are_each_ranks_own():
    recorded = traffic(lambda rank: [call(time_ns=(1 + rank) * MS)], groups={"0": Group("0")})
    assert some(recorded, "group_ranks", "time_per_step_ns", "median_ns") == [(0, 2 * MS, 1.5 * MS)]
    assert (
        "2 of 2 collectives do not tell the ranks of their group: they are not put together over "
        "the ranks, and their times are each rank's own"
    ) in summarise_traffic(Ledger(recorded)).notes


def test_ranks_that_count_differently_are_not_joined():
    def calls_of(rank):
        calls = [call(time_ns=MS), call("all_gather", 8, bytes_out=16, time_ns=9 * MS)]
        return [dataclasses.replace(c, sequence=i) for i, c in enumerate(calls[rank:])]

    recorded = traffic(calls_of)
    assert some(recorded, "collective", "ranks", "median_ns") == [
        ("all_reduce", "0", MS),
        ("all_gather", "0-1", 9 * MS),
    ]
    assert (
        "group 0: call 0 is not of one collective, dtype and step on all ranks: the ranks "
        "do not count alike: its calls are not put together, and times are each rank's own"
    ) in summarise_traffic(Ledger(recorded)).notes


def test_the_same_number_in_another_step_is_not_the_same_call():
    recorded = traffic(lambda rank: [call(step=rank, time_ns=(1 + rank) * MS)], steps=2)
    notes = summarise_traffic(Ledger(recorded)).notes
    assert any(note.startswith("group 0: call 0 is not of one collective") for note in notes)


def test_sizes_of_all_to_all_v_vary_and_are_one_row():
    sizes = {0: (100, 300), 1: (200, 200)}
    recorded = traffic(
        lambda rank: [
            call("all_to_all_v", n, sequence=i, step=i, time_ns=MS)
            for i, n in enumerate(sizes[rank])
        ],
        steps=2,
    )
    assert some(recorded, "bytes_in", "calls_per_step", "bytes_per_step") == [(None, 1, 200)]
    assert (
        "all_to_all_v: bytes vary from call to call; bytes a step are a mean over them"
        in summarise_traffic(Ledger(recorded)).notes
    )


def test_exposed_as_the_trace_has_it():
    recorded = traffic(lambda rank: [call(time_ns=9 * MS, exposed_ns=(1 + rank) * MS)] * 2)
    assert some(recorded, "exposed_ns") == [(4 * MS,)]


@pytest.mark.parametrize(
    ("changed", "backend"),
    [
        ({"asynchronous": True}, "gloo"),
        ({"asynchronous": None}, "gloo"),
        ({"asynchronous": False, "clock": "device"}, "gloo"),
        ({"asynchronous": False}, "nccl"),  # there the host does not wait
    ],
)
def test_exposed_is_unknown_where_the_host_does_not_wait(changed, backend):
    changed_call = call(time_ns=MS, **changed)
    assert some(
        traffic(lambda rank: [changed_call], groups=world(2, backend=backend)), "exposed_ns"
    ) == [(None,)]


def test_a_row_with_a_call_that_nobody_timed_has_no_sum():
    recorded = traffic(lambda rank: [call(time_ns=MS), call(sequence=1)])
    assert some(recorded, "time_per_step_ns", "median_ns") == [(None, MS)]


def test_no_calls():
    assert summarise_traffic(Ledger(traffic(lambda rank: []))).rows == []
    assert summarise_traffic(Ledger(torchcoll.Traffic())).rows == []


def test_table_is_a_frame_with_the_fields_as_columns():
    frame = torchcoll.table(traffic(ddp, steps=4))
    assert list(frame.columns) == [field.name for field in dataclasses.fields(TrafficRow)]
    assert frame["bytes_per_step"].tolist() == [75 * MIB, 9 * MIB, 8]


def test_in_flight_is_never_more_than_the_step():
    # Issued 10 ms before the end of its step of 100 ms, on for 50 more: 10 ms of this step, and of
    # each after it the 50 ms of the one before and its own 10.
    def calls_of(rank):
        for step in range(3):
            start = (100 * step + 90) * MS
            yield call(sequence=step, step=step, start_ns=start, time_ns=60 * MS)

    recorded = traffic(calls_of, steps=3)
    table = summarise_traffic(Ledger(recorded))
    assert (table.steps, table.step_ns) == ((0, 1, 2), 100 * MS)
    assert table.busy_ns == 60 * MS  # the median of 10, 60 and 60


@pytest.mark.parametrize(
    ("changed", "source", "busy_ms"),
    [
        # 3 ms after the mark: Python heard late of what DDP had waited for. 5 ms of each step.
        ({}, "capture", 5),
        # Nothing is late there: 3 ms of the call before too, from the second step on.
        ({"asynchronous": False}, "capture", 8),
        ({}, "kineto", 8),
    ],
)
def test_an_end_that_was_heard_late_does_not_leak_into_the_next_step(changed, source, busy_ms):
    def calls_of(rank):
        for step in range(3):
            start = (100 * step + 95) * MS
            yield call(sequence=step, step=step, start_ns=start, time_ns=8 * MS, **changed)

    table = summarise_traffic(
        Ledger(dataclasses.replace(traffic(calls_of, steps=3), source=source))
    )
    assert table.busy_ns == busy_ms * MS  # the median
    assert table.rows[0].median_ns == busy_ms * MS  # 8 ms, or cut to the 5 before the mark


def test_a_call_longer_than_its_step_fills_it_and_no_more():
    recorded = traffic(lambda rank: [call(step=0, start_ns=0, time_ns=250 * MS)], steps=1)
    table = summarise_traffic(Ledger(recorded))
    assert (table.step_ns, table.busy_ns) == (100 * MS, 100 * MS)


def test_a_step_number_that_no_training_has():
    recorded = traffic(lambda rank: [call(step=5_000_000)], ranks=1)
    with pytest.raises(
        UsageError, match=error_text("steps of the traffic", "5000001", "1000000 at")
    ):
        summarise_traffic(Ledger(recorded))


def test_times_of_some_ranks_say_so():
    def calls_of(rank):
        return [call(time_ns=MS, start_ns=0)]

    assert summarise_traffic(Ledger(traffic(calls_of, ranks=4, recorded=[0, 2]))).notes[-1] == (
        "times are of 2 of 4 ranks: the slowest may be another"
    )
    assert not any(
        "may be" in n for n in summarise_traffic(Ledger(traffic(calls_of, ranks=4))).notes
    )
    assert not any(
        "may be" in n  # no times, nothing to say
        for n in summarise_traffic(
            Ledger(traffic(lambda rank: [call()], ranks=4, recorded=[0]))
        ).notes
    )
