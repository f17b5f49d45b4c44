"""The backend called through functional collectives and DTensor, on real ranks of gloo."""

from __future__ import annotations

import importlib

import pytest

from torchcoll.bench.plan import impossible
from torchcoll.core.case import APIS, need_bytes
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.implementations import API_CALLS
from torchcoll.core.spec import Spec
from torchcoll.core.summary import libraries_of

BY_DTENSOR = ("all_reduce", "all_gather", "reduce_scatter")
FUNCTIONAL = "torch.distributed._functional_collectives"


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """What the first functional call imports, which takes a second of CPU: once for all ranks."""
    importlib.import_module("torch.distributed.tensor")
    importlib.import_module("torch._dynamo")


def test_every_collective_of_each_api(launch):
    """Verified on real data, on three ranks, with uneven blocks that move on from call to call."""
    names = ",".join(API_CALLS)
    options = f"--collectives {names} --implementation own,functional,dtensor --sizes 3000"
    options += " --splits hot:1 -d int32 -o prod --cold 2 -n 2"
    run = launch(None, options, 3).ended(0).run
    statuses = {(r.case.implementation, r.case.collective): r.status for r in run.results}
    for api in APIS:
        for name in API_CALLS:
            expected = "ok" if api == "functional" or name in BY_DTENSOR else "unsupported"
            assert statuses[api, name] == expected, (api, name)
    calls = 0
    for result in run.results:
        if result.status != "ok":
            continue
        assert result.verification.checked and not result.verification.wrong, result.case
        placements = COLLECTIVES[result.case.collective].placements
        own = result.case.implementation == "own"
        assert result.case.in_place == (placements[0] if own else False)
        # The communicator makes these calls, so they count as its own.
        assert result.ordinal >= calls
        calls = result.ordinal + len(result.cold_ns[0]) + 2
    assert set(libraries_of(run)) == {run.environment["libraries"]["gloo"]}


def test_in_subgroups_on_slots_of_a_rotated_buffer(launch):
    options = "--implementation functional,dtensor --groups mod:2 --buffer-reuse rotate"
    run = launch("all_gather", f"{options} --sizes 1K,8K --cold 2 -n 9", 4).ended(0).run
    assert len(run.results) == 8  # 2 APIs, 2 sizes, 2 sub-groups
    for result in run.results:
        assert (result.status, result.ranks) == ("ok", 2)
        assert result.verification.checked and not result.verification.wrong, result.case


def test_what_comes_back_is_what_is_verified(launch):
    """A planted error in the returned tensor of one rank, which no buffer of torchcoll holds."""

    def setup(rank: int) -> None:
        functional = importlib.import_module(FUNCTIONAL)
        gather = functional.all_gather_single

        def spoilt(*arguments):
            result = gather(*arguments).wait()
            result[5] += rank == 1
            return result

        functional.all_gather_single = spoilt

    options = "--implementation own,functional --sizes 1K --cold 1 -n 1"
    own, functional = launch("all_gather", options, 2, setup=setup).ended(1).run.results
    assert (own.status, own.verification.wrong) == ("ok", 0)
    assert (functional.status, functional.verification.wrong) == ("wrong", 1)


def test_what_the_apis_cannot_do():
    def reason(collective: str = "all_reduce", **fields) -> str:
        spec = Spec(collective, sizes="1K", implementation="dtensor", **fields)
        not_run = impossible(spec.cases(2)[0], 2)
        return not_run.reason if not_run else ""

    assert reason() == reason("reduce_scatter", dtypes="int32", ops="band") == ""
    assert "all_reduce, all_gather, reduce_scatter only" in reason("broadcast")
    assert "no call is in place" in reason(in_place=True)
    assert "no async_op" in reason(asynchronous=True)
    assert "no group of calls" in reason(coalesce=2)
    assert "not registered ones" in reason(buffers="registered", backend="nccl", device="cuda")
    assert reason(ops="band") == "band needs whole numbers, not float32"


def test_memory_counts_the_result_of_a_call():
    """1 MiB to send, 1 MiB for verification to read, and 1 MiB that each call allocates."""
    (sizing,) = Spec(sizes="1M", implementation="functional").sizings(2)
    assert need_bytes(sizing, 0, check=False) == 3 << 20
