"""Exact calls to measure: the points of a Spec, and those that a traffic sends."""

from __future__ import annotations

import pytest
from error_form import error_tail, error_text, expecting

from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import ExactCall, Spec
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of

POINTS = (
    ExactCall("all_reduce", 4096, "float32", "sum", True),
    ExactCall("all_reduce", 100, "bfloat16", "max"),
    ExactCall("broadcast", 64, "int64"),
    ExactCall("barrier", 0),
)


def test_the_cases_are_the_points():
    """Not their product."""
    cases = Spec(points=POINTS).cases(4)
    rest = ("synchronized", "gloo", "cpu")
    assert cases == (
        Case("all_reduce", 4096, "float32", "sum", None, True, *rest, asynchronous=True),
        Case("all_reduce", 100, "bfloat16", "max", None, True, *rest),
        Case("broadcast", 64, "int64", None, 0, True, *rest),
        Case("barrier", 0, None, None, None, False, *rest),
    )


def test_the_rest_of_the_spec_applies():
    """Placements, roots and backends are no part of a point."""
    spec = Spec(
        points=[("all_gather", "1K", "float32"), ("broadcast", 64)],
        in_place="both",
        roots=(0, 1),
        backend="gloo,mpi",
        groups="mod:2",
        mode="back-to-back",
    )
    found = [(c.collective, c.in_place, c.root, c.backend) for c in spec.cases(2)]
    assert found == [
        ("all_gather", False, None, "gloo"),
        ("all_gather", False, None, "mpi"),
        ("all_gather", True, None, "mpi"),
        ("all_gather", True, None, "gloo"),
        ("broadcast", True, 0, "gloo"),
        ("broadcast", True, 0, "mpi"),
        ("broadcast", True, 1, "mpi"),
        ("broadcast", True, 1, "gloo"),
    ]
    assert {(c.group, c.mode) for c in spec.cases(2)} == {("mod:2", "back-to-back")}


def test_the_fields_of_the_product_say_what_the_points_have():
    spec = Spec(points=POINTS)
    assert spec.collectives == ("all_reduce", "broadcast", "barrier")
    assert spec.sizes == (64, 100, 4096)
    assert (spec.dtypes, spec.ops) == (("float32", "bfloat16", "int64"), ("sum", "max"))
    alone = Spec(points=[ExactCall("barrier", 0)])
    assert alone.collectives == ("barrier",)
    assert [case.collective for case in alone.cases(2)] == ["barrier"]


EACH = "(collective, size_bytes, dtype, op, asynchronous)"


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (7, error_text("points", "7", f"a list of {EACH}")),
        ("all_reduce", error_text("points", "all_reduce", f"a list of {EACH}")),
        ([7], error_text("points", "7", f"{EACH} each")),
        ([("all_reduce",)], error_text("points", "('all_reduce',)", f"{EACH} each")),
        ([{"size": 8}], error_text("points", "{'size': 8}", "") + f"{EACH} each"),
        ([("all_reduce", 0)], error_text("points", "all_reduce of 0 bytes", "at least 1 byte")),
        ([("all_reduce", 8, "float32", "sum", "no")], expecting("True or False for asynchronous")),
        ([("send", 8)], error_text("collective", "send", "one of all_reduce, ")),
        ([("all_reduce", 8, "float3")], error_text("dtype", "float3", "one of float32, ")),
        ([("all_reduce", 8, "float32", "mul")], error_text("op", "mul", "one of sum, ")),
        ([("all_reduce", "8KB")], error_text("points", "8KB", "a number of bytes")),
    ],
)
def test_what_is_no_point(points, message):
    with pytest.raises(UsageError) as caught:
        Spec(points=points)
    assert message in str(caught.value)


def test_coalesced_calls_are_not_asynchronous():
    with pytest.raises(
        UsageError, match=error_text("^coalesce", error_tail("2 with --async", "one of them$"))
    ):
        Spec(points=POINTS, coalesce=2)
    assert Spec(points=POINTS[1:], coalesce=2).cases(2)[0].coalesce == 2


# On 4 ranks: collective, bytes in, bytes out, its size in nccl-tests (doc/PERFORMANCE.md).
SIZES = [
    ("all_reduce", 100, 100, 100),
    ("all_gather", 100, 400, 400),
    ("all_gather", 100, 0, 400),  # a source that tells one side
    ("reduce_scatter", 400, 100, 400),
    ("reduce_scatter", 0, 100, 400),
    ("all_to_all", 400, 400, 400),
    ("broadcast", 0, 100, 100),  # not the root
    ("reduce", 100, 0, 100),
    ("gather", 100, 400, 400),  # the root
    ("gather", 100, 0, 400),
    ("scatter", 400, 100, 400),
    ("scatter", 0, 100, 400),
]


@pytest.mark.parametrize(("collective", "bytes_in", "bytes_out", "size_bytes"), SIZES)
def test_size_of_a_call(collective, bytes_in, bytes_out, size_bytes):
    call = TrafficCall(collective, bytes_in, bytes_out, "int8", op="sum")
    point, remark = point_of(call, 4)
    op = "sum" if "reduce" in collective else None
    assert (point, remark) == (ExactCall(collective, size_bytes, "int8", op), "")


@pytest.mark.parametrize(
    ("call", "point", "remark"),
    [
        (
            TrafficCall("barrier", 0, 0, asynchronous=True),
            ExactCall("barrier", 0, None, None, True),
            "",
        ),
        (
            TrafficCall("all_reduce", 8, 8, "torch.float16"),
            ExactCall("all_reduce", 8, "float16", "sum"),
            "reduce op unknown: measured as sum",
        ),
        (
            TrafficCall("all_reduce", 8, 8, "int8", op="premul_sum"),
            ExactCall("all_reduce", 8, "int8", "sum"),
            "reduce op premul_sum: measured as sum",
        ),
        (
            TrafficCall("all_reduce", 8, 8, op="max"),
            ExactCall("all_reduce", 8, "float32", "max"),
            "dtype unknown: measured as float32 of the same bytes",
        ),
        (
            TrafficCall("all_reduce", 6, 6, "complex32", op="sum"),
            ExactCall("all_reduce", 6, "uint8", "sum"),
            "dtype complex32: measured as uint8 of the same bytes",
        ),
        (
            TrafficCall("all_gather", 8, 16, "bool"),
            ExactCall("all_gather", 16, "uint8"),
            "dtype bool: measured as uint8 of the same bytes",
        ),
        (
            TrafficCall("all_to_all_v", 8, 24, "int8", splits=(1, 7)),
            ExactCall("all_to_all", 24, "int8"),
            "measured as an even all_to_all of the larger of bytes in and out",
        ),
        (
            TrafficCall("all_to_all_v", 8, 8, "int8", splits=(4, 4)),
            ExactCall("all_to_all", 8, "int8"),
            "",
        ),
        (
            TrafficCall("broadcast", 8, 8, "int8", tensors=3),
            ExactCall("broadcast", 8, "int8"),
            "several tensors in one call: measured as one tensor of all their bytes",
        ),
        (
            TrafficCall("send", 8, 0, "int8", peer=1),
            None,
            "not measured: a message between two ranks is no collective",
        ),
        (
            TrafficCall("scan", 8, 8, "int8"),
            None,
            "not measured: scan is not in the table of collectives",
        ),
        (TrafficCall("all_reduce", 0, 0, "int8"), None, "not measured: the call moves no bytes"),
    ],
)
def test_what_is_not_measured_as_it_was(call, point, remark):
    assert point_of(call, 2) == (point, remark)


def sent(*calls: TrafficCall, ranks: int = 2, rank: int = 0, **groups: tuple[int, ...]) -> Traffic:
    named = {name: Group(name, members) for name, members in groups.items()}
    return Traffic(ranks=ranks, calls={rank: list(calls)}, groups=named)


def reduced(size_bytes: int, group: str = "", **fields) -> TrafficCall:
    return TrafficCall(
        "all_reduce", size_bytes, size_bytes, "float32", op="sum", group=group, **fields
    )


def test_each_size_once_and_in_order():
    """By kind as they come, by size within a kind."""
    traffic = sent(
        reduced(800, asynchronous=True, step=0),
        TrafficCall("barrier", 0, 0, step=0),
        reduced(80, asynchronous=True, step=0),
        reduced(80, step=0),
        reduced(800, asynchronous=True, step=1),
    )
    traffic.calls[1] = [reduced(80)]
    spec = traffic.spec()
    assert spec == Spec(
        points=[
            ("all_reduce", 80, "float32", "sum", True),
            ("all_reduce", 800, "float32", "sum", True),
            ("barrier", 0),
            ("all_reduce", 80, "float32", "sum", False),
        ]
    )
    assert spec.groups is None and traffic.notes == []


def test_changes_say_how_to_measure():
    spec = sent(reduced(8)).spec(backend="gloo", iters=5, in_place=True)
    assert (spec.backend, spec.iters, spec.in_place) == ("gloo", 5, True)


@pytest.mark.parametrize("name", ["sizes", "collectives", "dtypes", "asynchronous", "points"])
def test_changes_do_not_say_what(name):
    with pytest.raises(UsageError) as caught:
        sent(reduced(8)).spec(**{name: ()})
    assert str(caught.value) == error_text(
        "spec", f"{name} with a traffic, which says what is sent", "fields that say how to measure"
    )


def test_what_is_left_out_is_noted_once():
    traffic = sent(
        reduced(8),
        TrafficCall("send", 8, 0, "int8", peer=1),
        TrafficCall("send", 9, 0, "int8", peer=1),
        TrafficCall("all_reduce", 16, 16, "float32"),
    )
    traffic.notes.append("seen before")
    for _ in range(2):
        assert [point.size_bytes for point in traffic.spec().points] == [8, 16]
    assert traffic.notes == [
        "seen before",
        "2 calls of send: not measured: a message between two ranks is no collective",
        "1 call of all_reduce: reduce op unknown: measured as sum",
    ]


@pytest.mark.parametrize(
    ("traffic", "stated"),
    [
        (Traffic(ranks=2), "none"),
        (
            sent(TrafficCall("send", 8, 0, peer=1)),
            "send: not measured: a message between two ranks is no collective",
        ),
    ],
)
def test_nothing_to_measure(traffic, stated):
    with pytest.raises(UsageError) as caught:
        traffic.spec()
    assert str(caught.value) == error_text(
        "traffic", f"no call that can be measured ({stated})", "at least one"
    )


def test_one_way_to_divide_the_ranks():
    """All groups are known: ranks 2 and 3 were seen, and are alone."""
    traffic = sent(reduced(8, "a"), ranks=4, a=(0, 1))
    traffic.calls |= {1: [reduced(8, "a")], 2: [], 3: []}
    assert traffic.spec().groups == "0,1;2;3"
    traffic.calls[2] = [reduced(8, "b")]
    traffic.groups["b"] = Group("b", (2, 3))
    assert traffic.spec().groups == "0,1;2,3"


def test_what_one_rank_knows_of_a_mesh():
    """Each rank of a mesh comes to the same Spec from its own groups alone."""
    found = [
        sent(reduced(8, "own"), ranks=8, rank=rank, own=(rank % 2, *range(rank % 2 + 2, 8, 2)))
        .spec()
        .groups
        for rank in range(8)
    ]
    assert found == ["0,2,4,6;1,3,5,7"] * 8


def test_the_size_is_that_of_the_group():
    traffic = sent(TrafficCall("all_gather", 8, 0, "int8", group="a"), ranks=4, a=(0, 1))
    assert traffic.spec().points == (ExactCall("all_gather", 16, "int8"),)


def mesh() -> Traffic:
    """2 x 2: shards along the rows, replicas along the columns, and one call on all."""
    calls = [TrafficCall("all_gather", 8, 16, "int8", group="s"), reduced(64, "r"), reduced(4)]
    return sent(*calls, ranks=4, s=(0, 1), r=(0, 2))


@pytest.mark.parametrize(
    ("asked", "value", "expected"),
    [
        (
            {},
            "calls on 3 ways to divide the ranks",
            "one of them: groups='0,1,2,3' or groups='0,1;2,3' or groups='0,2;1,3'. "
            "Measure each in a run of its own.",
        ),
        (
            {"groups": "0,3;1,2"},
            "0,3;1,2",
            "groups='0,1,2,3' or groups='0,1;2,3' or groups='0,2;1,3'",
        ),
    ],
)
def test_several_ways_need_a_choice(asked, value, expected):
    with pytest.raises(UsageError) as caught:
        mesh().spec(**asked)
    assert str(caught.value) == error_text("groups", value, expected)


def test_all_ranks_name_the_same_ways_in_the_same_order():
    """Rank 2 sees (0, 2) before (2, 3), rank 0 (0, 1) before (0, 2)."""
    said = set()
    for rank, (shard, replica) in enumerate((((0, 1), (0, 2)), ((0, 1), (1, 3)),
                                             ((2, 3), (0, 2)), ((2, 3), (1, 3)))):  # fmt: skip
        calls = (reduced(8, "s"), reduced(64, "r"))
        with pytest.raises(UsageError) as caught:
            sent(*calls, ranks=4, rank=rank, s=shard, r=replica).spec()
        said.add(str(caught.value))
    (text,) = said
    assert expecting("one of them: groups='0,1;2,3' or groups='0,2;1,3'. ") in text


@pytest.mark.parametrize(
    ("asked", "groups", "point"),
    [
        ("0,1,2,3", None, ExactCall("all_reduce", 4, "float32", "sum")),
        ("mod:1", None, ExactCall("all_reduce", 4, "float32", "sum")),
        ("0,1;2,3", "0,1;2,3", ExactCall("all_gather", 16, "int8")),
        ("3,2;1,0", "0,1;2,3", ExactCall("all_gather", 16, "int8")),
        ("mod:2", "0,2;1,3", ExactCall("all_reduce", 64, "float32", "sum")),
    ],
)
def test_the_choice(asked, groups, point):
    traffic = mesh()
    spec = traffic.spec(groups=asked)
    assert (spec.groups, spec.points) == (groups, (point,))
    left_out = [note for note in traffic.notes if "a group of other ranks, not chosen" in note]
    assert sum(int(note.split()[0]) for note in left_out) == 2


def test_no_choice_measures_a_message():
    traffic = mesh()
    traffic.calls[0].append(TrafficCall("send", 8, 0, "int8", group="r", peer=2))
    traffic.spec(groups="0,1;2,3")
    text = "1 call of send: not measured: a message between two ranks is no collective"
    assert text in traffic.notes


def test_groups_of_one_rank_send_nothing():
    traffic = sent(reduced(8), reduced(8, "alone"), ranks=2, alone=(0,))
    assert traffic.spec().groups is None
    assert traffic.notes == [
        "1 call of all_reduce: not measured: a group of one rank sends nothing"
    ]


def test_one_rank_measures_what_it_has():
    assert sent(reduced(8), ranks=1).spec().points == (
        ExactCall("all_reduce", 8, "float32", "sum"),
    )
