"""What is left of a captured step on fewer ranks; sizes by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from error_form import error_text

from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.training.replay import shrink_traffic

WORLD = tuple(range(4))


def traffic(*calls: TrafficCall, groups=()) -> Traffic:
    """The same calls on 4 ranks, in a group of all."""
    named = {"world": Group("world", WORLD), **{group.name: group for group in groups}}
    return Traffic(
        ranks=4,
        calls={
            rank: [replace(call, group=call.group or "world") for call in calls] for rank in WORLD
        },
        groups=named,
    )


def only(call: TrafficCall, ranks: int = 2) -> TrafficCall:
    smaller, _ = shrink_traffic(traffic(call), ranks)
    assert sorted(smaller.calls) == list(range(ranks)) and smaller.ranks == ranks
    (left,) = smaller.calls[1]
    return left


@pytest.mark.parametrize(
    ("collective", "before", "after"),
    [
        ("all_reduce", (64, 64), (64, 64)),
        ("broadcast", (64, 64), (64, 64)),
        # 64 bytes are collected as before: of 2 ranks 32 each, in place of 16.
        ("all_gather", (16, 64), (32, 64)),
        ("reduce_scatter", (64, 16), (64, 32)),
        ("all_to_all", (64, 64), (64, 64)),
    ],
)
def test_the_size_of_a_collective_stays(collective, before, after):
    op = "sum" if "reduce" in collective else None
    root = 0 if collective == "broadcast" else None
    left = only(TrafficCall(collective, *before, "float32", op=op, root=root))
    assert (left.collective, left.bytes_in, left.bytes_out) == (collective, *after)


def test_a_size_that_does_not_divide_is_rounded_down():
    """17 floats on 3 of 4 ranks: 5 each."""
    left = only(TrafficCall("all_gather", 17, 68, "float32"), 3)
    assert (left.bytes_in, left.bytes_out) == (20, 60)


def test_uneven_blocks_between_the_ranks_that_stay():
    left = only(TrafficCall("all_to_all_v", 15, 20, "uint8", splits=(1, 2, 4, 8)))
    assert (left.splits, left.bytes_in) == ((1, 2), 3)


def test_a_root_that_is_left_out_is_replaced():
    assert only(TrafficCall("broadcast", 64, 64, "float32", root=3)).root == 0
    assert only(TrafficCall("broadcast", 64, 64, "float32", root=1)).root == 1


def test_what_is_left_out_is_counted():
    calls = (
        TrafficCall("send", 64, 0, "float32", peer=3),
        TrafficCall("send", 64, 0, "float32", peer=1),
        TrafficCall("all_reduce", 1024, 1024, "float32", op="sum"),
    )
    smaller, notes = shrink_traffic(traffic(*calls), 2)
    assert [call.collective for call in smaller.calls[0]] == ["send", "all_reduce"]
    assert "2 send" in notes[1] and "128 B" in notes[1]


def test_ranks_that_would_divide_groups_unlike():
    pairs = [Group("a", (0, 1)), Group("b", (2, 3))]
    call = TrafficCall("all_reduce", 64, 64, "float32", op="sum")
    with pytest.raises(UsageError) as caught:
        shrink_traffic(traffic(call, groups=pairs), 3)
    expected = "a number that shortens all groups of a kind alike: 2"
    assert str(caught.value) == error_text("ranks", 3, expected)


def test_nothing_is_left():
    call = TrafficCall("all_reduce", 64, 64, "float32", op="sum", group="far")
    with pytest.raises(UsageError) as caught:
        shrink_traffic(replace(traffic(call, groups=[Group("far", (0, 3)), Group("b", (1, 2))])), 2)
    assert "all calls are with ranks that are left out" in str(caught.value)
