"""Every pair once, in rounds of disjoint pairs; what --dry-run says."""

import itertools
import tracemalloc

import pytest
from error_form import error_text

from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import Spec
from torchcoll.questions.pairs.schedule import (
    PairOptions,
    check_units,
    group_ranks,
    pair_cases,
    plan_lines,
    rank_pairs,
    round_count,
    rounds,
)


@pytest.mark.parametrize("units", range(2, 65))
def test_every_pair_once_in_rounds_of_disjoint_pairs(units):
    schedule = list(rounds(units))
    assert len(schedule) == round_count(units) == units - 1 + units % 2
    assert all(len(met) == units // 2 for met in schedule)
    for met in schedule:
        busy = [unit for pair in met for unit in pair]
        assert len(busy) == len(set(busy))
    every = [pair for met in schedule for pair in met]
    assert sorted(every) == list(itertools.combinations(range(units), 2))


def test_four_units_by_hand():
    # 3 stays; 0 1 2 move round it.
    assert list(rounds(4)) == [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]


def test_512_ranks_all_meet():
    schedule = list(rounds(512))
    assert len({pair for met in schedule for pair in met}) == 512 * 511 // 2


def test_nodes_meet_rank_by_rank():
    units = group_ranks("node", ["b", "b", "a", "a", "a"])
    assert units == ((0, 1), (2, 3, 4))
    assert rank_pairs(units, (0, 1)) == ((0, 2), (1, 3))  # rank 4 has nobody to meet
    assert group_ranks("rank", ["b", "b", "a"]) == ((0,), (1,), (2,))


def test_what_a_pair_measures():
    first = Case("all_reduce", 64, "float32", "sum", None, True, "back-to-back", "nccl", "cuda")
    cases = pair_cases(Spec(sizes=(1024,)), "pair/0-1", first)
    assert [(c.size_bytes, c.root) for c in cases] == [
        (8, None),
        (1024, None),
        (1024, 0),
        (1024, 1),
    ]
    for case in cases:
        assert (case.collective, case.group) == ("sendrecv", "pair/0-1")
        assert (case.backend, case.device, case.op) == ("nccl", "cuda", None)
        assert Case.from_json(case.to_json()) == case


def test_one_rank_or_node_is_no_pair():
    with pytest.raises(
        UsageError, match=error_text("pairs", "1 rank", "2 ranks or more. torchrun")
    ):
        check_units(group_ranks("rank", ["a"]), "rank")
    with pytest.raises(
        UsageError, match=error_text("pairs", "1 node", "2 nodes or more. --by rank")
    ):
        check_units(group_ranks("node", ["a", "a"]), "node")


def test_options_that_cannot_be():
    with pytest.raises(UsageError, match=error_text("by", "rack", "one of rank, node")):
        PairOptions(by="rack")


def test_the_plan_says_rounds_time_and_memory():
    spec = Spec(sizes=(8 << 20,), iters=10)
    text = "\n".join(plan_lines(spec, PairOptions(), 5))
    assert "5 ranks: 10 pairs in 5 rounds of 2 at once, one idle in each." in text
    # 3 kinds x 11 calls x 8 MiB a round, 5 rounds: 1384 MB, at 10 GB/s 0.138 s.
    assert "Time: about 142 ms of rounds at 10 GB/s a pair (1.38 GB a rank" in text
    assert "Each pair: 21 calls of 8 B for the latency, then 11 of 8M both ways" in text
    # Two buffers of 8 MiB and 2 Mi elements x 24 bytes to verify in.
    assert "Memory: 64 MiB a rank, and" in text
    # 10 pairs x 4 kinds x 1800 B and 10 x (44 + 20) x 2 samples of 40 B: 123200 B.
    assert "on rank 0 about 120 KiB of host memory for all results." in text
    nodes = PairOptions("node", ranks_per_node=8)
    text = "\n".join(plan_lines(spec, nodes, 512))
    assert "64 nodes (512 ranks): 2016 pairs in 63 rounds of 32 at once." in text
    assert "Assumed: 8 ranks a node; all of them meet those of the other at once." in text


def test_16384_ranks_are_planned_in_little_memory():
    """All their pairs would be 134 million tuples."""
    spec = Spec(sizes=(8 << 20,), iters=10)
    tracemalloc.start()
    try:
        text = "\n".join(plan_lines(spec, PairOptions(), 16384))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 << 20
    # 16384 x 16383 / 2.
    assert "16384 ranks: 134209536 pairs in 16383 rounds of 8192 at once." in text
