"""Which step is played, what each rank plays of it, and what does not fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from error_form import error_text

from torchcoll.core.errors import UsageError
from torchcoll.core.spec import ExactCall
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.training.player import (
    digest,
    mismatch,
    most_common_steps,
    rank_playback,
)

MS = 1_000_000


def reduced(size_bytes: int = 8, group: str = "", **fields) -> TrafficCall:
    values = {"dtype": "float32", "op": "sum", "group": group, **fields}
    return TrafficCall("all_reduce", size_bytes, size_bytes, **values)


def send(peer: int, size_bytes: int = 8, **fields) -> TrafficCall:
    return TrafficCall("send", size_bytes, 0, "float32", peer=peer, **fields)


def recv(peer: int, size_bytes: int = 8, **fields) -> TrafficCall:
    return TrafficCall("recv", 0, size_bytes, "float32", peer=peer, **fields)


def world(*ranks: list[TrafficCall], size: int | None = None, **groups) -> Traffic:
    named = {name: Group(name, members) for name, members in groups.items()}
    return Traffic(ranks=size or len(ranks), calls=dict(enumerate(ranks)), groups=named)


def test_the_usual_steps():
    """DDP's first step sends one bucket, and the last was cut."""
    calls = [reduced(16, step=0)]
    calls += [reduced(8, step=step) for step in (1, 2, 2, 1, 3, 3)]
    calls += [reduced(8, step=4), reduced(8)]
    assert most_common_steps(world(calls), 0) == [1, 2, 3]


def test_of_as_usual_ones_the_latest():
    calls = [reduced(8, step=0), reduced(16, step=1)]
    assert most_common_steps(world(calls), 0) == [1]


def test_without_marks_all_is_one_step():
    assert most_common_steps(world([reduced()]), 0) == [None]
    assert [play.call for play in rank_playback(world([reduced(), reduced()]), 0, None).plays] == [
        reduced()
    ] * 2


def test_a_rank_that_makes_no_calls_can_play_any_step():
    traffic = world([reduced(step=2, group="a")], [], a=(0,))
    assert most_common_steps(traffic, 1) == []
    assert rank_playback(traffic, 1, 2).plays == ()


def test_gaps_and_what_had_ended_before():
    """By hand, in ms: start of the step 10, its end 50."""
    at = [
        (reduced(8, asynchronous=True), 12, 5),  # until 17
        (reduced(16, asynchronous=True), 14, 12),  # until 26
        (reduced(24), 18, 2),  # the first had ended; until 20
        (reduced(32, asynchronous=False), 30, 6),  # the second had ended; until 36
        (reduced(40), 35, 1),  # as clocks have it: before the end of the other
        (reduced(48, asynchronous=True, clock="device"), 40, 1),
        (reduced(56), 48, 1),
    ]
    calls = [replace(c, step=0, start_ns=s * MS, time_ns=t * MS) for c, s, t in at]
    traffic = world(calls)
    traffic.steps[0] = [(10 * MS, 50 * MS)]
    playback = rank_playback(traffic, 0, 0)
    # A kernel's time says nothing of when its call had ended.
    assert [play.after for play in playback.plays] == [(), (), (0,), (1,), (), (), ()]
    assert playback.span_ns == 40 * MS
    assert playback.in_flight_ns is None
    timed = world([call for call in calls if call.clock == "host"])
    assert rank_playback(timed, 0, 0).in_flight_ns == (14 + 6 + 1) * MS


def test_messages_that_torch_tells_nothing_of_are_asynchronous():
    playback = rank_playback(world([send(1), send(1, asynchronous=False), reduced()], []), 0, None)
    assert [play.asynchronous for play in playback.plays] == [True, False, False]
    assert playback.notes == ("send: played asynchronously, for torch does not tell what it was",)


def test_points_and_groups():
    gathered = TrafficCall("all_gather", 8, 16, "bool", group="a")
    uneven = TrafficCall("all_to_all_v", 0, 6, "float32", group="a", splits=(0, 0))
    calls = [gathered, uneven, reduced(0), TrafficCall("scan", 8, 8, "int8")]
    calls.append(send(1, asynchronous=True))
    playback = rank_playback(world(calls, [], [], a=(0, 2)), 0, None)
    # What moves no bytes and what no table has is left out, and said.
    assert [(play.call, play.point, play.members) for play in playback.plays] == [
        (gathered, ExactCall("all_gather", 16, "uint8"), (0, 2)),
        (uneven, ExactCall("all_to_all_v", 6, "uint8"), (0, 2)),
        (send(1, asynchronous=True), None, (0, 1, 2)),
    ]
    assert playback.notes == (
        "all_gather: dtype bool: played as uint8 of the same bytes",
        "all_reduce: not played: the call moves no bytes",
        "scan: not played: scan is not in the table of collectives",
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            reduced(group="other"),
            error_text("traffic", "rank 0 in a call of ranks (1,)", "its own group"),
        ),
        (
            recv(None),
            error_text(
                "traffic", "recv of rank 0 with no peer", "a rank to send to or receive from"
            ),
        ),
    ],
)
def test_what_cannot_be_played(call, message):
    with pytest.raises(UsageError) as caught:
        rank_playback(world([call], [], other=(1,)), 0, None)
    assert str(caught.value) == message


def test_a_rank_that_was_not_captured_cannot_play():
    with pytest.raises(UsageError) as caught:
        rank_playback(world([reduced()], size=3), 1, None)
    action = "Put the files of all ranks into one folder."
    expected = f"calls of all ranks. {action}"
    assert str(caught.value) == error_text("traffic", "no calls of rank 1", expected)


def stated(traffic: Traffic, step: int | None = None) -> str:
    playbacks = [rank_playback(traffic, rank, step) for rank in range(traffic.ranks)]
    return mismatch([digest(playback, rank) for rank, playback in enumerate(playbacks)])


def test_parts_that_fit_together():
    """Order counts within a group and a pair alone; uneven splits and times differ by nature."""
    uneven = TrafficCall("all_to_all_v", 8, 8, "int8", splits=(4, 4))
    second = TrafficCall("all_to_all_v", 4, 4, "int8", splits=(4, 0))
    traffic = world(
        [reduced(), send(1), recv(1, 4), uneven, reduced(4, "a")],
        [recv(0), reduced(time_ns=5, asynchronous=True), second, send(0, 4)],
        a=(0,),
    )
    assert stated(traffic) == ""


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            ([reduced()], [reduced()], []),
            "rank 2 makes no call in the group of ranks 0,1,2, where rank 0 does",
        ),
        (
            ([reduced()], [reduced()] * 2, [reduced()] * 2),
            "rank 0 makes 1 call in the group of ranks 0,1,2, others 2",
        ),
        (
            ([reduced()], [reduced(16)], [reduced()]),
            "rank 1 makes other calls in the group of ranks 0,1,2 than the others",
        ),
        (
            ([reduced(), reduced(16)], [reduced(), reduced(16)], [reduced(16), reduced()]),
            "rank 2 makes other calls in the group of ranks 0,1,2 than the others",
        ),
        (
            ([reduced()], [reduced()], [reduced(dtype="int32")]),
            "rank 2 makes other calls in the group of ranks 0,1,2 than the others",
        ),
        (
            ([reduced()], [reduced(op="max")], [reduced()]),
            "rank 1 makes other calls in the group of ranks 0,1,2 than the others",
        ),
        (
            tuple([TrafficCall("broadcast", 8, 8, "int8", root=root)] for root in (0, 0, 1)),
            "rank 2 makes other calls in the group of ranks 0,1,2 than the others",
        ),
        (
            ([send(1), send(1)], [recv(0)], []),
            "rank 0 sends 2 messages to rank 1, rank 1 receives 1 from it",
        ),
        (([], [], [recv(1)]), "rank 1 sends 0 messages to rank 2, rank 2 receives 1 from it"),
        (
            ([send(1, 8), send(1, 4)], [recv(0, 4), recv(0, 8)], []),
            "rank 0 sends rank 1 other sizes than it receives",
        ),
    ],
)
def test_what_does_not_fit_together(ranks, message):
    assert stated(world(*ranks)) == message
