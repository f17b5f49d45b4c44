"""Kernels of torch's symmetric memory in the backend's place: on the simulated accelerator, and
what the torch of this test run has. On hardware none of it was seen.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import simulated_device
import torch
from ranks import Job
from simulated_device import BACKEND, CALL_S
from simulated_memory import Operators, SymmetricMemory, torch_with

from torchcoll.bench.session import SessionOptions, opened
from torchcoll.bench.sweep import Sweep
from torchcoll.core.implementations import IMPLEMENTATIONS
from torchcoll.core.spec import Spec

CALL_NS = round(CALL_S * 1e9)
COLLECTIVES = "all_reduce,all_gather,reduce_scatter"
FIELDS = {"iters": 2, "sizes": "4K", "mode": "back-to-back", "backend": BACKEND, "device": "cuda"}
RUNS = {
    "all": {"collectives": COLLECTIVES, "implementation": "own,one_shot,two_shot,multimem"},
    "graph": {"implementation": "two_shot", "mode": "graph"},
    "rotated": {"implementation": "one_shot", "buffer_reuse": "rotate", "sizes": "1K,4K"},
    "sub-groups": {"implementation": "one_shot", "groups": "mod:2"},
    "half": {"implementation": "two_shot", "dtypes": "float16"},
    "no multicast": {"implementation": "multimem,multimem_one_shot"},
    "one GPU": {"implementation": "two_shot"},
    "idle": {"implementation": "two_shot"},
    "own first": {"implementation": "own,two_shot", "sizes": "1K,4K"},
    "two_shot first": {"implementation": "two_shot,own", "sizes": "1K,4K"},
}


def idle(self, input, reduce_op, group_name):
    """A kernel that takes its time and does nothing."""
    self._queue("two_shot_all_reduce", input, group_name, lambda inner: None, False)


def rank() -> None:
    simulated_device.register()
    kept = {}
    for name, fields in RUNS.items():
        memory = SymmetricMemory(multicast=name != "no multicast", shared=name == "one GPU")
        with pytest.MonkeyPatch.context() as patch:
            torch_ = torch_with(memory, patch)
            if name == "idle":
                patch.setattr(Operators, "two_shot_all_reduce_", idle)
            with opened(torch_, SessionOptions(Spec(**{**FIELDS, **fields}))) as session:
                Sweep(session).run()
                session.finish(*session.outcome())
        if session.run:
            kept[name] = [result.to_json() for result in session.run.results]
    if kept:
        Path("kept.json").write_text(json.dumps(kept))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """{name: the results on rank 0}: one job for all tests."""
    folder = tmp_path_factory.mktemp("implementations")
    ended = Job(folder, rank, 2).wait().values()
    assert [one.code for one in ended] == [0, 0], "\n".join(one.stderr for one in ended)
    return json.loads((folder / "kept.json").read_text())


def told(results):
    """{(implementation, collective): (in place, status, reason)}."""
    return {
        (r["case"]["implementation"], r["case"]["collective"]): (
            r["case"]["in_place"],
            r["status"],
            r["reason"],
        )
        for r in results
    }


def test_each_collective_by_each(measured):
    """In place or not is the kernel's; what it has not is said, and nothing else is measured."""
    no_gather = "has no all_gather, multimem has"
    assert told(measured["all"]) == {
        ("own", "all_reduce"): (True, "ok", ""),
        ("one_shot", "all_reduce"): (False, "ok", ""),
        ("two_shot", "all_reduce"): (True, "ok", ""),
        ("multimem", "all_reduce"): (True, "ok", ""),
        ("own", "all_gather"): (False, "ok", ""),
        ("one_shot", "all_gather"): (False, "unsupported", f"one_shot {no_gather}"),
        ("two_shot", "all_gather"): (False, "unsupported", f"two_shot {no_gather}"),
        ("multimem", "all_gather"): (False, "ok", ""),
        ("own", "reduce_scatter"): (False, "ok", ""),
        ("one_shot", "reduce_scatter"): (
            False,
            "unsupported",
            "one_shot has no reduce_scatter, two_shot has",
        ),
        ("two_shot", "reduce_scatter"): (False, "ok", ""),
        ("multimem", "reduce_scatter"): (
            False,
            "unsupported",
            "multimem has no reduce_scatter, two_shot has",
        ),
    }


@pytest.mark.parametrize("name", ["all", "graph", "rotated", "sub-groups"])
def test_they_are_timed_and_verified_as_all_else_is(measured, name):
    ran = [result for result in measured[name] if result["status"] == "ok"]
    assert ran
    for result in ran:
        times = [ns for own in result["time_ns"]["device"] for ns in own]
        issued = [ns for own in result["time_ns"]["issue"] for ns in own]
        assert min(times) >= CALL_NS and 4 * min(issued) < CALL_NS
        assert min(ns for own in result["cold_ns"] for ns in own) >= CALL_NS
        # Elements of all ranks: of reduce_scatter each of two ranks has a half.
        parts = 2 if result["case"]["collective"] == "reduce_scatter" else 1
        elements = result["size_bytes"] // 4 * result["ranks"] // parts
        verification = result["verification"]
        assert (verification["checked"], verification["wrong"]) == (elements, 0)


def test_a_kernel_that_does_nothing_is_found(measured):
    (result,) = measured["idle"]
    assert result["status"] == "wrong" and result["verification"]["wrong"] > 1000


def test_a_communicator_is_not_told_to_have_made_their_calls(measured):
    """What aligned them may have connected it: the first call of its own is not known as cold then.
    A B B A over the sizes; an own case makes 3 cold calls, 1 that leads, 2 steady ones, 1 to verify
    at least.
    """
    first, last = (
        [(r["case"]["implementation"], r["ordinal"]) for r in measured[f"{name} first"]]
        for name in ("own", "two_shot")
    )
    assert first[:3] == [("own", 0), ("two_shot", None), ("two_shot", None)]
    assert first[3][0] == "own" and first[3][1] >= 7
    assert last == [("two_shot", None), ("own", None), ("own", None), ("two_shot", None)]


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("half", {"\"two_shot_all_reduce\" not implemented for 'torch.float16'"}),
        (
            "no multicast",
            {
                f"{name} needs multicast (NVLink SHARP), which cuda:0 has not"
                for name in ("multimem", "multimem_one_shot")
            },
        ),
        (
            "one GPU",
            {
                "CUDASymmetricMemoryAllocator::rendezvous: detected allocations from overlapping "
                "devices from different ranks."
            },
        ),
    ],
)
def test_what_torch_and_the_device_refuse(measured, name, reasons):
    results = measured[name]
    assert {result["status"] for result in results} == {"unsupported"}
    assert {result["reason"] for result in results} == reasons
    assert not any(result["time_ns"] for result in results)


@pytest.mark.parametrize(
    ("name", "collective"),
    [(name, collective) for name, kernels in IMPLEMENTATIONS.items() for collective in kernels],
)
def test_the_arguments_are_those_that_torch_wants(name, collective):
    """By torch's own schema: each argument's name and type, and which buffer is written to."""
    kernel = IMPLEMENTATIONS[name][collective]
    send, recv = torch.zeros(1), torch.zeros(1)
    schema = getattr(torch.ops.symm_mem, kernel.operator).default._schema
    given = kernel.arguments(send, recv, "the group")
    assert len(given) == len(schema.arguments)
    named = {one.name: value for one, value in zip(schema.arguments, given, strict=True)}
    if kernel.in_place:
        assert named.pop("input") is recv
    else:
        assert named.pop("input") is send
        assert named.pop("out" if "out" in named else "output") is recv
    assert named.pop("group_name") == "the group"
    assert named in ({"reduce_op": "sum"}, {"split_last_dim": False}, {})
    written = [value for one, value in zip(schema.arguments, given, strict=True) if one.alias_info]
    assert any(value is recv for value in written)


def test_the_simulated_operators_are_like_torchs():
    for kernels in IMPLEMENTATIONS.values():
        for kernel in kernels.values():
            schema = getattr(torch.ops.symm_mem, kernel.operator).default._schema
            code = getattr(Operators, kernel.operator).__code__
            names = [argument.name for argument in schema.arguments]
            assert list(code.co_varnames[1 : code.co_argcount]) == names


def test_without_such_memory_every_case_says_so(launch):
    """The real torch, gloo on a CPU."""
    words = "--implementation own,two_shot --sizes 1K -n 2 --backend gloo"
    run = launch("all_reduce", words).ended(0)
    own, other = run.run.results
    assert (own.status, own.case.implementation) == ("ok", "own")
    assert (other.status, other.reason) == (
        "unsupported",
        f"two_shot needs symmetric memory, which torch {torch.__version__} has not for cpu",
    )
    assert "also by two_shot of torch's symmetric memory" in run.stdout().splitlines()[0]
