"""--concurrent on real ranks, on the CPU, and what is shown of it."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from error_form import error_text
from ranks import Measured

from torchcoll.bench.concurrent import BLOCKS, computation
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import Spec
from torchcoll.machine.devices import Cpu
from torchcoll.questions.show.show import show

MS = 1_000_000


def test_two_ranks(tmp_path, capsys):
    arguments = "--sizes 1K -n 5 --concurrent copy:64K"
    path = Measured(tmp_path / "job", "all_reduce", arguments).ended(0).path
    show(path, format="json")
    (row,) = json.loads(capsys.readouterr().out)["concurrent"]
    assert (row["work"], row["ranks"], row["blocks"]) == ("copy:64K", 2, BLOCKS)
    assert row["slowdown"] > 0
    show(path)
    out = capsys.readouterr().out
    assert "concurrent with copy:64K, on every rank, in a thread of its own\n" in out
    assert "correct" in out  # the values are checked after the blocks


def test_a_mesh(tmp_path):
    """2 x 2: columns 0,2 and 1,3 beside rows 0,1 and 2,3. An all_reduce of 1 KiB on two ranks
    counts 2 (n - 1) / n = 1 KiB for busbw.
    """
    arguments = "--sizes 1K -n 5 --groups mod:2 --concurrent same:div:2"
    results = Measured(tmp_path / "job", "all_reduce", arguments, 4).ended(0).run.results
    assert [result.members for result in results] == [[0, 2], [1, 3]]
    for result in results:
        assert (result.status, result.concurrent.work) == ("ok", "all_reduce:div:2:1K")
        assert result.concurrent.work_bus_bytes == 1024
        assert len(result.concurrent.both_ns) == 2


def test_a_backend_that_runs_one_call_at_a_time(tmp_path):
    """A call of torch-ccl holds one lock of its process: with two calls in two threads, rank 0 has
    the lock for one of them and rank 1 for the other, and both wait for ever.
    """

    def setup(rank):
        dist.Backend.register_backend(
            "ccl",
            lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout),
            devices=["cpu"],
        )
        sys.modules["oneccl_bindings_for_pytorch"] = ModuleType("bindings")
        lock, real = threading.Lock(), dist.all_reduce

        def call(tensor, op=dist.ReduceOp.SUM, group=None):
            if dist.get_backend(group) != "ccl":
                return real(tensor, op, group)
            with lock:
                return real(tensor, op, group)

        dist.all_reduce = call

    arguments = "--backend ccl --sizes 1K -n 5 --concurrent all_reduce:mod:1 --timeout 20"
    result = Measured(tmp_path / "job", "all_reduce", arguments, 2, setup=setup).ended(1).only()
    reason = "ccl on cpu runs one call at a time, so two cannot overlap"
    assert (result.status, result.reason) == ("unsupported", reason)
    arguments = "--backend ccl --sizes 1K -n 5 --concurrent copy:64K"
    copy = Measured(tmp_path / "copy", "all_reduce", arguments, 2, setup=setup).ended(0)
    assert copy.only().concurrent.work == "copy:64K"


def test_the_collective_beside_connects_alone(tmp_path):
    """Its first call comes before any two calls at once, and may be refused like any other."""

    def setup(rank):
        def refuse(*args, **kwargs):
            raise RuntimeError("this backend does not support all_gather")

        dist.all_gather_into_tensor = dist.all_gather_single = refuse
        Cpu.together = None

    arguments = "--sizes 1K -n 5 --concurrent all_gather:mod:2"
    result = Measured(tmp_path / "job", "all_reduce", arguments, 4, setup=setup).ended(1).only()
    reason = "all_gather:mod:2:1K: this backend does not support all_gather"
    assert (result.status, result.reason) == ("unsupported", reason)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"concurrent": "all_gather:2"},
            error_text("concurrent", "all_gather:2", "all_gather:mod:N or "),
        ),
        (
            {"concurrent": "barrier:mod:2"},
            error_text("concurrent", "barrier:mod:2", "a collective that moves"),
        ),
    ],
)
def test_what_is_no_collective_beside(options, line):
    with pytest.raises(UsageError) as caught:
        Spec(**options)
    assert line in str(caught.value)


def test_a_collective_beside_that_has_nobody_to_talk_to():
    spec = Spec(concurrent="all_gather:mod:3")
    assert spec.subgroups(4) == ((0, 1, 2, 3),)
    with pytest.raises(UsageError) as caught:
        spec.subgroups(3)
    text = error_text("concurrent", "all_gather:mod:3, where each of 3 ranks is alone", "groups of")
    assert text in str(caught.value)


def test_the_work_runs_while_the_calls_run():
    """Work of 20 ms and a call of 20 ms that both only sleep: 20 ms together, not 40. Longer on a
    machine that is busy, but for each by itself too.
    """
    inside, seen = threading.Event(), []

    def call() -> None:
        seen.append(inside.wait(5))

    calls, work, whole = Cpu().together(call, 1, inside.set, 1)
    assert seen == [True]  # it waited for the work, which so ran beside it
    assert whole == max(calls, work)
    calls, work, whole = Cpu().together(lambda: time.sleep(0.02), 2, inside.set, 0)
    assert whole == calls >= 40_000_000
    assert work == 0
    calls, work, whole = Cpu().together(call, 0, lambda: time.sleep(0.02), 3)
    assert whole == work >= 60_000_000
    assert calls == 0


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError])
def test_what_fails_in_the_work_is_raised(kind):
    def failing() -> None:
        raise kind("out of memory")

    with pytest.raises(kind, match="out of memory"):
        Cpu().together(list, 1, failing, 1)


class _Watched:
    """torch, whose matrix products are kept."""

    def __init__(self) -> None:
        self.products: list[torch.Tensor] = []

    def __getattr__(self, name):
        return getattr(torch, name)

    def mm(self, a, b, out):
        self.products.append(torch.mm(a, b, out=out))


def test_the_work():
    """4 KiB are a matrix of 32 x 32 float32, each 1 / 32: so is its square, 32 times 1 / 1024."""
    watched = _Watched()
    work = computation(watched, "matmul:4K", Cpu())
    assert work.name == "matmul:4K"
    work()
    (product,) = watched.products
    assert torch.equal(product, torch.full((32, 32), 1 / 32))
    assert computation(torch, "both", Cpu()).name == "both:1M"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "gemm",
            error_text(
                "concurrent", "gemm", "matmul, copy, both, each with :SIZE, COLLECTIVE:GROUPS or "
            ),
        ),
        ("background:", error_text("concurrent", "background:", "matmul, copy, both")),
        ("copy:12", error_text("concurrent", "copy:12", "a size of at least 1024 bytes")),
        ("copy:1KB", error_text("concurrent", "1KB")),
    ],
)
def test_what_is_no_work_is_refused(text, line):
    with pytest.raises(UsageError) as caught:
        Spec(concurrent=text)
    assert line in str(caught.value)


def test_work_of_others_is_a_label():
    spec = Spec(concurrent="background:stress-ng", labels={"kernel": "6.8"})
    assert spec.labels == {"kernel": "6.8", "concurrent": "background:stress-ng"}
    assert not spec.works_concurrently
    assert Spec.from_json(spec.to_json()) == spec
