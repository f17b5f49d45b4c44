"""Sub-groups: who is in which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchcoll.core.errors import UsageError
from torchcoll.core.groups import partition

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
    ],
)
def test_partition(groups, ranks, expected):
    assert partition(groups, ranks) == expected


def test_ranks_of_a_list_stand_in_the_order_of_torchs_groups():
    """new_group sorts them: a place in another order would be another rank's block."""
    assert partition("2,0;3,1", 4) == ((0, 2), (1, 3))


@pytest.mark.parametrize("groups", ["mod:0", "mod:-1", "div:x", "div:", "mod", "col:2", "a,b", ""])
def test_what_is_no_rule(groups):
    with pytest.raises(UsageError) as caught:
        partition(groups, 4)
    assert EXPECTED in str(caught.value)
    assert str(caught.value).startswith("groups: got ")


@pytest.mark.parametrize("groups", ["0,1", "0,1;1,2,3", "0,1;2,4", "0,1;2,3,-1", "0,1;;2,3"])
def test_a_list_holds_every_rank_once(groups):
    with pytest.raises(UsageError, match=r"groups: got .*, expected .*ranks"):
        partition(groups, 4)


@given(st.sampled_from(["mod", "div"]), st.integers(1, 20), st.integers(1, 60))
def test_every_rank_is_in_one_group(rule, number, ranks):
    parts = partition(f"{rule}:{number}", ranks)
    assert sorted(rank for part in parts for rank in part) == list(range(ranks))
    assert all(part == tuple(sorted(part)) for part in parts)
    assert [part[0] for part in parts] == sorted(part[0] for part in parts)
