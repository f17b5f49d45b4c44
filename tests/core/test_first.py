"""The first call of a run: whose it is, and what counts as connecting."""

import pytest

from torchcoll.core.case import Case
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import (
    cold_by_rank,
    connect_ns,
    connects,
    first_result_ns,
    first_results,
)

FIELDS = {"dtype": "float32", "op": "sum", "root": None, "in_place": True, "mode": "synchronized"}


def result(cold, size_bytes=8, group=None, backend="nccl", **changed):
    case = Case("all_reduce", size_bytes, backend=backend, device="cpu", group=group, **FIELDS)
    return CaseResult(case, "ok", len(cold), cold_ns=cold, **changed)


def launch(*results, ranks=2, connects="first call", **phases):
    return Run({"ranks": ranks, "connects": connects}, phases=phases, results=list(results))


def test_the_first_case_is_that_of_a_new_communicator_in_all_its_sub_groups():
    later = result([[1], [1]], size_bytes=32, ordinal=9)
    one = result([[5, 1], [7, 1]], group="1,3;0,2/0", members=[1, 3])
    two = result([[6, 1], [4, 1]], group="1,3;0,2/1", members=[0, 2])
    assert first_results([later, one, two]) == [one, two]
    assert cold_by_rank([one, two]) == {0: [6, 1], 1: [5, 1], 2: [4, 1], 3: [7, 1]}


def test_connecting_is_counted_where_the_backend_does_it():
    first = result([[30], [20]])
    phases = {"init_process_group": [500, 400], "communicator": [100, 300]}
    assert connect_ns(launch(first, **phases), [first]) == 300
    within = launch(first, connects="init_process_group", **phases)
    assert (connect_ns(within, [first]), connect_ns(within, [first], "min")) == (500, 400)
    assert first_result_ns(within) == 530
    assert connect_ns(launch(first), [first]) == 0


def test_a_communicator_of_its_own_comes_first():
    own = result([[30], [20]], connect_ns=[7, 9])
    assert first_result_ns(launch(own, communicator=[100, 100])) == 39


def test_where_nothing_is_communicated_nothing_connects():
    for one, ranks in ((result([[30]]), 1), (result([[30], [20]], backend="fake"), 2)):
        run = launch(
            one, ranks=ranks, connects="init_process_group", init_process_group=[9] * ranks
        )
        assert first_result_ns(run) == 30


def test_a_group_that_others_had_connected_has_no_time_to_first_result():
    assert first_result_ns(launch(result([[30], [20]]), connects="before")) is None
    assert first_result_ns(launch(result([[30], [20]], ordinal=4))) is None
    assert first_result_ns(launch(result([]))) is None


def two_backends(**header):
    """gloo first, which connects within init_process_group; the second group is made after it."""
    results = [result([[3], [2]], ordinal=0, backend=b) for b in ("gloo", "ccl")]
    results[1].cold_ns = [[900], [700]]
    run = launch(
        *results, connects="init_process_group", init_process_group=[10, 11], new_group_ccl=[50, 60]
    )
    run.header |= {"spec": {"backend": "gloo,ccl"}, **header}
    return run


@pytest.mark.parametrize(
    ("second", "expected"),
    [("first call", 900), ("init_process_group", 960), ("before", None), ("unknown", None)],
)
def test_each_backend_of_a_launch_has_its_own_first_result(second, expected):
    run = two_backends(connects_of={"gloo": "init_process_group", "ccl": second})
    assert first_result_ns(run) == first_result_ns(run, backend="gloo") == 3 + 11
    assert first_result_ns(run, backend="ccl") == expected


def test_files_that_tell_the_first_backend_alone():
    assert first_result_ns(two_backends(), backend="gloo") == 14
    assert first_result_ns(two_backends(), backend="ccl") is None
    assert first_result_ns(two_backends(connects="before"), backend="ccl") is None


@pytest.mark.parametrize(
    ("implementation", "init_ns", "where", "first_result"),
    [
        # torch 2.14 with TORCH_DIST_USE_NCCL2=1: init_process_group takes the time that the first
        # call takes otherwise.
        ("ProcessGroupNCCL2", [1_900, 1_800], "init_process_group", 1_930),
        # torch 2.15, whose options have lazy_init.
        ("ProcessGroupNCCL2", [20, 25], "first call", 30),
        # Others connect as they were asked to, however long they wait for a rank before.
        ("ProcessGroupNCCL", [1_900, 1_800], "first call", 30),
        (None, [1_900, 1_800], "first call", 30),
    ],
)
def test_a_group_that_connects_earlier_than_asked(implementation, init_ns, where, first_result):
    run = launch(result([[30], [20]], ordinal=0), init_process_group=init_ns)
    run.members = [{"implementation": {"nccl": implementation}}] * 2 if implementation else []
    assert connects(run, "nccl") == where
    assert first_result_ns(run) == first_result
