"""Sub-groups: who is in which."""

import pytest
from error_form import error_text
from hypothesis import given
from hypothesis import strategies as st

from torchcoll.core.case import mesh_of, partition, partition_text, partitions
from torchcoll.core.errors import UsageError

EXPECTED = "mod:N, div:N, or a list of ranks such as 0,1;2,3"


@pytest.mark.parametrize(
    ("groups", "ranks", "expected"),
    [
        ("mod:2", 4, ((0, 2), (1, 3))),
        ("mod:3", 4, ((0, 3), (1,), (2,))),
        ("mod:1", 3, ((0, 1, 2),)),
        ("mod:8", 2, ((0,), (1,))),
        ("div:2", 4, ((0, 1), (2, 3))),
        ("div:3", 5, ((0, 1, 2), (3, 4))),
        ("div:8", 2, ((0, 1),)),
        ("0,1;2,3", 4, ((0, 1), (2, 3))),
        ("0;1,2", 3, ((0,), (1, 2))),
        (" 0, 2 ; 1 ", 3, ((0, 2), (1,))),
        # As torch's new_group sorts them: in another order a place is another rank's block.
        ("2,0;3,1", 4, ((0, 2), (1, 3))),
    ],
)
def test_partition(groups, ranks, expected):
    assert partition(groups, ranks) == expected


@pytest.mark.parametrize("groups", ["mod:0", "mod:-1", "div:x", "div:", "mod", "col:2", "a,b", ""])
def test_what_is_no_rule(groups):
    with pytest.raises(UsageError) as caught:
        partition(groups, 4)
    assert EXPECTED in str(caught.value)
    assert str(caught.value).startswith(error_text("groups", ""))


@pytest.mark.parametrize("groups", ["0,1", "0,1;1,2,3", "0,1;2,4", "0,1;2,3,-1", "0,1;;2,3"])
def test_a_list_holds_every_rank_once(groups):
    with pytest.raises(UsageError, match=error_text("groups", ".*", ".*ranks")):
        partition(groups, 4)


@given(st.sampled_from(["mod", "div"]), st.integers(1, 20), st.integers(1, 60))
def test_every_rank_is_in_one_group(rule, number, ranks):
    parts = partition(f"{rule}:{number}", ranks)
    assert sorted(rank for part in parts for rank in part) == list(range(ranks))
    assert all(part == tuple(sorted(part)) for part in parts)
    assert [part[0] for part in parts] == sorted(part[0] for part in parts)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (((0, 1), (2, 3)), "0,1;2,3"),
        (((0,), (1, 2)), "0;1,2"),
        # 40 characters of a list are enough.
        (tuple((2 * i, 2 * i + 1) for i in range(10)), "div:2"),
        (tuple((i, i + 10) for i in range(10)), "mod:10"),
        # Where no rule makes them, it is a list all the same.
        ((tuple(range(1, 20)), (0, 20)), ",".join(map(str, range(1, 20))) + ";0,20"),
    ],
)
def test_partition_text(parts, text):
    assert partition_text(parts) == text
    assert set(partition(text, sum(map(len, parts)))) == set(parts)


@pytest.mark.parametrize(
    ("group", "ranks", "mesh"),
    [
        ((0, 1), 4, ((0, 1), (2, 3))),
        ((1, 3), 4, ((0, 2), (1, 3))),
        # 2 x 2 x 2, the middle dimension
        ((4, 6), 8, ((0, 2), (1, 3), (4, 6), (5, 7))),
        ((1,), 2, ((0,), (1,))),
        ((0, 1, 2, 3), 4, ((0, 1, 2, 3),)),
        ((0, 3), 4, ()),  # steps of 3 do not fit
        ((1, 2), 4, ()),  # does not begin where a group would
        ((0, 1, 3), 6, ()),
        ((0, 1), 3, ()),
    ],
)
def test_mesh_of(group, ranks, mesh):
    assert mesh_of(group, ranks) == mesh


@pytest.mark.parametrize(
    ("groups", "seen", "ways"),
    [
        # What rank 0 alone knows of a 2 x 2 mesh.
        ([(0, 1), (0, 2)], [0], [((0, 1), (2, 3)), ((0, 2), (1, 3))]),
        # All ranks were seen: 2 and 3 are alone indeed.
        ([(0, 1)], [0, 1, 2, 3], [((0, 1), (2,), (3,))]),
        # Groups of no mesh: put together where they share no rank.
        ([(0, 3), (1, 2)], [0], [((0, 3), (1, 2))]),
        ([(0, 3), (1, 2, 3)], [0], [((0, 3), (1,), (2,)), ((0,), (1, 2, 3))]),
        ([], [0], []),
    ],
)
def test_partitions(groups, seen, ways):
    assert partitions(groups, 4, seen) == ways
