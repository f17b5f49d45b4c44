"""After a call that all ranks were refused, nothing of it reaches the next case."""

import dataclasses

import pytest
import torch
import torch.distributed as dist

from torchcoll.core.collectives import COLLECTIVES

NO_AVERAGE = "result type Float can't be cast to the desired output type Int"


def leave_calls_behind(rank):
    """A refused average leaves calls of the same kind behind, as torch's reduce_scatter does on
    gloo: it is composed of an all_reduce for each block, and the first error ends the wait for all
    of them (ProcessGroupGloo::reduce_scatter). Here there are more of them, so that they last.
    """
    entry = COLLECTIVES["all_reduce"]

    def prepare(dist_, layout, send, recv, op, group):
        call = entry.prepare(dist_, layout, send, recv, op, group)
        if op != dist.ReduceOp.AVG:
            return call
        block = torch.ones(1 << 20, dtype=torch.int32)

        def leaving():
            try:
                call()
            finally:
                for _ in range(20):
                    dist.all_reduce(block, op, group, async_op=True)

        return leaving

    COLLECTIVES["all_reduce"] = dataclasses.replace(entry, prepare=prepare)


@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="gloo of torch 2.6 has no avg")
@pytest.mark.parametrize(("groups", "ranks"), [("", 2), ("--groups mod:2", 4)])
def test_a_refused_call_is_no_error_of_the_next_case(launch, groups, ranks):
    options = f"--collectives all_reduce,barrier --dtype int32 --op sum,avg,band {groups} -n 3"
    measured = launch(None, f"{options} --sizes 64", ranks, setup=leave_calls_behind).ended(0)
    results = {(r.case.collective, r.case.op): r for r in measured.run.results}
    assert results["all_reduce", "avg"].status == "unsupported"
    assert results["all_reduce", "avg"].reason == NO_AVERAGE
    after = results["all_reduce", "band"]
    assert after.status == "ok" and after.verification.checked > 0
    assert after.verification.wrong == 0
    assert results["barrier", None].status == "ok"


def test_the_first_call_after_a_refusal_is_not_called_the_first_of_its_group(launch):
    """Its group is new, but the machine is warm: the count of calls goes on."""
    options = "--collectives all_reduce --dtype int32 --op sum,avg,band --sizes 64 -n 2"
    results = launch(None, options, 2).ended(0).run.results
    assert [(r.case.op, r.status) for r in results] == [
        ("sum", "ok"),
        ("avg", "unsupported"),
        ("band", "ok"),
    ]
    # Cold, ramp-up and two steady calls, and the one that is verified; a refused call is none.
    calls = len(results[0].cold_ns[0]) + len(results[0].ramp_up_ns[0]) + 2 + 1
    assert (results[0].ordinal, results[2].ordinal) == (0, calls)
    options = "--collectives all_reduce --dtype int32 --op avg,band --sizes 64 -n 2"
    results = launch(None, options, 2).ended(0).run.results
    assert [(r.case.op, r.status, r.ordinal) for r in results] == [
        ("avg", "unsupported", 0),
        ("band", "ok", 0),
    ]
