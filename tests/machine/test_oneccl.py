"""What oneCCL does otherwise than the rest, on gloo ranks that behave as it was seen to.

Recorded with oneccl_bindings_for_pytorch 2.8 over oneCCL 2021.14, torch 2.13, on CPUs: its texts,
what it writes on stdout, and which calls it refuses.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import time

import pytest
import torch.distributed as dist
from error_form import error_line, error_text

from torchcoll.bench import communicators
from torchcoll.core.backends import BACKENDS
from torchcoll.core.case import Case
from torchcoll.libraries.oneccl.algorithms import refused_value
from torchcoll.questions.check.judging import judge
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.conclusion_show import answer_of
from torchcoll.stats.sides import side

WARNING = (
    b"2026:11:20-10:39:35:( 8707) |CCL_WARN| did not find MPI-launcher specific variables, switch "
    b"to ATL/OFI, to force enable ATL/MPI set CCL_ATL_TRANSPORT=mpi\n"
)
NOT_THERE = "oneccl_bindings_for_pytorch: {} isn't implementd on backend [cpu]."
BINDINGS = """
import torch.distributed as dist

__version__ = "2.8.0+cpu"
dist.Backend.register_backend(
    "ccl",
    lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout),
    devices=["xpu", "cpu"],
)
"""


def refuses(name):
    def refuse(*args, **kwargs):
        raise RuntimeError(NOT_THERE.format(name))

    return refuse


def reduces(real):
    """A stand-in for the bindings, which support four reductions."""

    def call(tensor, op=dist.ReduceOp.SUM, *args, **kwargs):
        four = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
        if op not in four:
            raise IndexError("map::at")
        return real(tensor, op, *args, **kwargs)

    return call


@pytest.fixture
def ccl(tmp_path):
    """A setup: this rank has the bindings, and no XPU."""
    folder = tmp_path / "bindings"
    folder.mkdir()
    (folder / "oneccl_bindings_for_pytorch.py").write_text(BINDINGS)

    def setup(rank):
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        dist.ProcessGroup._end_coalescing = refuses("end_coalescing")
        dist.ProcessGroup.reduce_scatter_single_coalesced = refuses("reduce_scatter_coalesced")
        dist.ProcessGroup.reduce_scatter_tensor_coalesced = refuses("reduce_scatter_coalesced")
        dist.batch_isend_irecv = refuses("send")
        dist.all_reduce = reduces(dist.all_reduce)

    return setup


def test_the_log_level_that_torchcoll_sets_is_no_trap(launch, ccl):
    """``--library-log`` sets CCL_LOG_LEVEL; the user has set an algorithm."""

    def setup(rank):
        os.environ.update(CCL_ALLREDUCE="ring", CCL_WORKER_OFFLOAD="0")
        ccl(rank)

    arguments = "--backend ccl --sizes 64 -n 3 --library-log"
    run = launch("all_reduce", arguments, 2, setup=setup).ended(0).run
    assert run.environment["variables"]["CCL_LOG_LEVEL"] == "debug"
    settings = [event for event in run.events if event["kind"] == "setting"]
    assert [(event["name"], event["variables"]) for event in settings] == [
        ("forced", ["CCL_ALLREDUCE"])
    ]
    assert any(p.text.startswith("CCL_ALLREDUCE=ring in the") for p in judge(run).phrases)


def statuses(run):
    return {(r.case.collective, r.case.op): (r.status, r.reason) for r in run.results}


def test_groups_of_calls_without_a_device(launch, ccl):
    arguments = (
        "--backend ccl --collectives all_reduce,all_gather,reduce_scatter,broadcast,barrier "
        "--coalesce 3 -n 2 --sizes 64"
    )
    run = launch(None, arguments, 2, setup=ccl).ended(0).run
    statuses = {r.case.collective: (r.status, r.reason) for r in run.results}
    assert statuses == {
        "all_reduce": ("ok", ""),
        "all_gather": ("ok", ""),
        "reduce_scatter": ("unsupported", "ccl has no group of reduce_scatter on cpu"),
        "broadcast": ("unsupported", "ccl has no group of broadcast on cpu"),
        "barrier": ("unsupported", "a barrier waits on the host, so several are no group"),
    }
    # all_reduce in place adds to what it has added: no group of it can be checked.
    (gathered,) = [r for r in run.results if r.case.collective == "all_gather"]
    assert gathered.verification.checked and not gathered.verification.wrong


def test_spinning_workers_are_reported_by_the_run_and_by_compare(launch, ccl):
    """With two ranks on one core, oneCCL's spinning workers have no core."""

    def measured(**variables):
        def setup(rank):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            os.environ.update(variables)
            ccl(rank)

        arguments = "--backend gloo,ccl --sizes 64 -n 3"
        return launch("all_reduce", arguments, 2, setup=setup).ended(0).run

    def answer(run):
        gloo, ccl = (side(f"backend:{name}", run.path) for name in ("gloo", "ccl"))
        return answer_of(compare(gloo, ccl))

    what = "CCL_WORKER_OFFLOAD is not 0 with 2 ranks on 1 core"
    slow, fixed = measured(), measured(CCL_WORKER_OFFLOAD="0")
    (event,) = [event for event in slow.events if event["kind"] == "setting"]
    assert (event["name"], event["what"]) == ("ccl_worker_offload", what)
    assert event["backends"] == ["ccl"]
    assert any(p.word == "WARN" and p.text.startswith(what) for p in judge(slow).phrases)
    assert answer(slow).text.count(f"in backend:ccl, {what}") == 1
    assert answer(slow).level == "doubt"

    assert not [event for event in fixed.events if event["kind"] == "setting"]
    assert "CCL_WORKER_OFFLOAD" not in answer(fixed).text


def test_a_group_that_is_refused_leaves_the_next_case_alone(launch, ccl):
    arguments = "--backend ccl --coalesce 3 -n 2 --sizes 64 -o avg,sum"
    run = launch("all_reduce", arguments, 2, setup=ccl).ended(0).run
    assert statuses(run)["all_reduce", "sum"] == ("ok", "")


def test_what_a_backend_lacks_is_named_as_the_option(launch, ccl):
    arguments = "--backend ccl --collectives all_reduce,sendrecv -o avg,sum -n 2 --sizes 64"
    run = launch(None, arguments, 2, setup=ccl).ended(0).run
    assert statuses(run) == {
        ("all_reduce", "avg"): ("unsupported", "ccl has no avg"),
        ("all_reduce", "sum"): ("ok", ""),
        ("sendrecv", None): ("unsupported", "ccl has no send and receive on cpu"),
    }


# What never connects.
NO_PROVIDER = "oneCCL: atl_ofi_comm.cpp:276 init_transport: EXCEPTION: failed to initialize ATL"
NO_ALGORITHM = (
    "oneCCL: selector_allreduce.cpp:104 algo_from_str: EXCEPTION: unknown algorithm name 'bogus'"
)


def never_connects(setup):
    """As with FI_PROVIDER=nonsense: the first call raises on all ranks, and a second call never
    returns.
    """

    def of_rank(rank):
        setup(rank)
        real, tried = dist.all_reduce, []

        def call(tensor, op=None, group=None):
            if dist.get_backend(group) != "ccl":
                return real(tensor, op, group)
            tried.append(group)
            if len(tried) > 1:
                time.sleep(1000)
            raise RuntimeError(NO_PROVIDER)

        dist.all_reduce = call

    return of_rank


def test_a_backend_that_never_connects_has_failed(launch, ccl):
    options = "--backend gloo,ccl --sizes 64,256,1K -n 2 --timeout 60"
    measured = launch("all_reduce", options, 2, setup=never_connects(ccl)).ended(1)
    reason = f"ccl did not connect: {NO_PROVIDER}"
    expected = {"gloo": ("ok", ""), "ccl": ("failed", reason)}
    assert len(measured.run.results) == 6
    for result in measured.run.results:
        assert (result.status, result.reason) == expected[result.case.backend]
    assert (
        f"FAIL 3 of 6 cases failed: the first all_reduce 64 on ccl: {reason}" in measured.stdout()
    )
    (error,) = measured.errors()
    assert reason in error


@pytest.mark.parametrize("alone", [True, False])
def test_a_mistyped_algorithm_is_a_usage_error(launch, ccl, monkeypatch, alone):
    """oneCCL raises on rank 0, while the others wait for it in the call; or on all ranks."""
    monkeypatch.setattr(communicators, "REFUSAL_S", 0.5)
    monkeypatch.setenv("CCL_ALLREDUCE", "bogus:0-4096;ring:4097-max")

    def setup(rank):
        ccl(rank)

        def call(*args, **kwargs):
            if alone and rank:
                time.sleep(1000)
            raise RuntimeError(NO_ALGORITHM)

        dist.all_reduce = call

    measured = launch("all_reduce", "--backend ccl --sizes 64 -n 2", 2, setup=setup).ended(2)
    (error,) = measured.errors()
    assert error.startswith(
        error_line("CCL_ALLREDUCE", "bogus", "an algorithm of this oneCCL: direct, ")
    )
    assert measured.run.end["exit_code"] == 2
    assert measured.run.end["reason"] in error


def test_an_algorithm_that_only_other_devices_have():
    error = refused_value(
        "unknown algorithm name 'topo'", {"CCL_BARRIER": "ring", "CCL_BCAST": "topo"}
    )
    assert str(error).startswith(
        error_text("CCL_BCAST", "topo", "an algorithm of this oneCCL: direct")
    )
    assert "naive, topo" not in str(error)
    assert refused_value(NO_PROVIDER, {"CCL_BCAST": "topo"}) is None
    assert str(refused_value(NO_ALGORITHM, {})).startswith(
        error_text("algorithm", "bogus", "one that")
    )


def asked(collective="all_reduce", op="sum", dtype="float32", device="xpu", **changed):
    return Case(collective, 64, dtype, op, None, True, "synchronized", "xccl", device, **changed)


@pytest.mark.parametrize(
    ("backend", "case", "reason"),
    [
        ("ccl", asked(op="avg"), "ccl has no avg"),
        ("ccl", asked("all_gather", None, "float8_e5m2"), "ccl has no float8_e5m2"),
        ("ccl", asked("hypercube", None, device="cpu"), "ccl has no send and receive on cpu"),
        ("ccl", asked("sendrecv", None), "text"),  # XPUs can
        ("ccl", asked("reduce_scatter", device="cpu"), "text"),
        ("xccl", asked(op="bxor"), "xccl has no bxor"),
        ("xccl", asked(op="avg"), "text"),  # native from oneCCL 2021.15 on
        ("xccl", asked(dtype="int16"), "xccl has no int16"),
        ("xccl", asked(dtype="float8_e5m2"), "xccl has no reduction of float8_e5m2"),
        ("xccl", asked("all_gather", None, "float8_e5m2"), "text"),
        ("gloo", asked(op="avg"), "text"),
    ],
)
def test_the_table_of_what_backends_lack(backend, case, reason):
    assert BACKENDS[backend].reason(case, "text") == reason


def warns(rank):
    """Writes through C's stdio and to the descriptor during every call, as oneCCL does in its
    first.
    """
    libc, real = ctypes.CDLL(None), dist.all_reduce

    def call(*args, **kwargs):
        libc.printf(WARNING)
        libc.fflush(None)
        os.write(1, WARNING)
        return real(*args, **kwargs)

    dist.all_reduce = call


def test_stdout_is_the_table_alone_and_nothing_is_lost(launch):
    measured = launch("all_reduce", "--sizes 64,256 -n 2", 2, setup=warns).ended(0)
    assert "CCL_WARN" not in measured.stdout() + measured.stdout(1)
    assert measured.stdout().count("correct") == 3  # two rows and the verdict
    for rank in range(2):
        assert measured.stderr(rank).count("|CCL_WARN| did not find") > 2 * 2 * 2


def test_a_document_on_stdout_is_whole(launch):
    measured = launch("all_reduce", "--sizes 64 -n 2 --format json", 2, setup=warns).ended(0)
    assert json.loads(measured.stdout())["rows"]


def test_the_librarys_last_lines_are_kept_after_a_kill(launch):
    def setup(rank):
        def call(*args, **kwargs):
            os.write(1, WARNING)
            os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(60)

        dist.all_reduce = call

    measured = launch("all_reduce", "--sizes 64 -n 2 --timeout 30", 2, setup=setup)
    measured.job.until(lambda: 1 not in measured.job.running())
    assert "CCL_WARN" in measured.stderr(1)
    assert measured.stdout(1) == ""
