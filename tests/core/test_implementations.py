"""The table of implementations: what is asked for, and what no torch can do."""

import pytest
from error_form import error_tail, error_text
from handmade import case, result, run

from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.core.implementations import refusal
from torchcoll.core.spec import Spec
from torchcoll.core.summary import libraries_of


@pytest.mark.parametrize(
    ("asked", "backend", "implementation", "found"),
    [
        ("own", None, "own", None),
        ("one_shot", None, "one_shot", None),  # the backend is the machine's
        ("nccl,one_shot,two_shot", None, "own,one_shot,two_shot", "nccl"),
        ("NCCL, One_Shot", None, "own,one_shot", "nccl"),
        ("two_shot,own,two_shot", "nccl", "two_shot,own", "nccl"),
        ("nccl-legacy,multimem", None, "own,multimem", "nccl-legacy"),
        ("nccl", "nccl,gloo", "own", "nccl,gloo"),
        ("gloo,functional,DTensor", None, "own,functional,dtensor", "gloo"),
    ],
)
def test_a_backends_name_is_its_own(asked, backend, implementation, found):
    spec = Spec(implementation=asked, backend=backend)
    assert (spec.implementation, spec.backend) == (implementation, found)
    assert Spec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("asked", "backend", "line"),
    [
        (
            "oneshot",
            None,
            error_tail(
                "oneshot",
                "own, functional, dtensor, one_shot, two_shot, multimem, multimem_one_shot, "
                "or the backend's name. Did you mean one_shot?",
            ),
        ),
        ("nccl,one_shot", "gloo", error_tail("nccl", "own, or a name of --backend gloo")),
        ("nccl,gloo", None, error_tail("gloo", "own, or a name of --backend nccl")),
    ],
)
def test_what_is_none(asked, backend, line):
    with pytest.raises(UsageError) as caught:
        Spec(implementation=asked, backend=backend)
    assert str(caught.value) == error_text("implementation", line)


def test_each_case_by_each_in_turn():
    """A B B A over the sizes; each kernel has the placement that it has."""
    spec = Spec(implementation="nccl,one_shot,two_shot", sizes="1K,4K", device="cuda")
    found = [(c.size_bytes, c.implementation, c.in_place) for c in spec.cases(2)]
    first = [("own", True), ("one_shot", False), ("two_shot", True)]
    assert found == [(1024, *way) for way in first] + [(4096, *way) for way in reversed(first)]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"in_place": False}, "two_shot has all_reduce in place only"),
        ({"op": "max"}, "two_shot has no max, it sums"),
        ({"asynchronous": True}, "two_shot has no async_op"),
        ({"coalesce": 2}, "two_shot has no group of calls"),
        ({"buffers": "symmetric"}, "two_shot makes buffers of its own, not symmetric ones"),
        ({"backend": "fake"}, "fake communicates nothing, and two_shot does"),
        ({"collective": "broadcast", "op": None}, "two_shot has no broadcast"),
        (
            {"implementation": "one_shot"},
            "one_shot has all_reduce out of place only",
        ),
        ({"implementation": "of another version"}, "of another version has no all_reduce, "
         "one_shot and two_shot and multimem and multimem_one_shot have"),
    ],
)  # fmt: skip
def test_what_no_torch_can_do(changed, reason):
    found = case(**{"implementation": "two_shot", "backend": "nccl", "device": "cuda", **changed})
    assert refusal(found) == reason


def test_a_file_that_does_not_tell_had_the_backends_own():
    stored = case(implementation="one_shot").to_json()
    assert Case.from_json(stored).implementation == "one_shot"
    del stored["implementation"]
    assert Case.from_json(stored).implementation == "own"


def test_a_case_names_who_makes_it():
    assert case(implementation="two_shot", backend="nccl").describe() == (
        "all_reduce 64M float32 sum on nccl by two_shot"
    )


def test_what_communicated_is_not_the_backends_library():
    results = [result(case=case(implementation=name)) for name in ("own", "two_shot")]
    measured = run(*results)
    environment = {"libraries": {"gloo": "gloo of torch 2.99"}, "torch": "2.99"}
    measured.header["environment"] = environment
    assert libraries_of(measured) == ["gloo of torch 2.99", "symmetric memory of torch 2.99"]
