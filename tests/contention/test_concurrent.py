"""--concurrent on real ranks, on the CPU, and what is shown of it."""

from __future__ import annotations

import json
import threading
import time

import pytest
import torch
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
            error_text("concurrent", "gemm", "matmul, copy, both, each with :SIZE, or "),
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
