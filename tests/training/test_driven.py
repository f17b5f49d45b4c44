"""The capture behind the hooks of frameworks, without any framework."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
import types

import pytest
import torch
import torch.distributed as dist
from error_form import error_tail, error_text
from planned_models import on_ranks
from ranks import announce, await_event, busy

from torchcoll.core.errors import UnavailableError, UsageError
from torchcoll.core.traffic import Traffic
from torchcoll.parts.training import sampled as sampled_steps
from torchcoll.parts.training.integrations.driven import DrivenCapture, base_class


def test_steps(tmp_path, capfd):
    def case():
        capture = DrivenCapture("some", 2)
        capture.begin()
        for _ in range(4):
            dist.all_reduce(torch.ones(2))
            capture.step()
        capture.end()
        repeated = DrivenCapture("all", None)
        repeated.begin()
        dist.all_reduce(torch.ones(2))
        repeated.step()
        repeated.end()
        repeated.end()

    on_ranks(tmp_path, 2, {"it": case})
    some, every = Traffic.load(tmp_path / "some"), Traffic.load(tmp_path / "all")
    for rank in (0, 1):
        assert [call.step for call in some.calls[rank]] == [0, 1]
        assert [call.step for call in every.calls[rank]] == [0]


def test_start_every_and_metrics(tmp_path):
    """Rank 1 sleeps before each step, once rank 0 has begun it. Begun after two steps, one in two
    is captured three times: 3, 5 and 7. Rank 0 learns of each step at the mark after it, of the
    48th at the 49th: windows of 16.
    """
    sleep_s = 0.06 * busy()

    def case():
        sampled_steps.WINDOW = 16
        sampled = DrivenCapture("sampled", 3, start=2, every=2)
        late = DrivenCapture("late", 50, start=2, metrics="late.prom")
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            for capture, steps, rest_s in ((sampled, 9, 0), (late, 52, sleep_s)):
                capture.begin()
                for number in range(steps):
                    if dist.get_rank() == 0:
                        announce(f"{steps}: {number}")
                    else:
                        await_event(f"{steps}: {number}")
                        time.sleep(rest_s)
                    dist.all_reduce(torch.ones(number + 1))
                    capture.step()
        dist.barrier()
        return printed.getvalue()

    first, *named, last = on_ranks(tmp_path, 2, {"it": case})["it"].splitlines()
    traffic = Traffic.load(tmp_path / "sampled")
    assert [call.bytes_in // 4 for call in traffic.calls[0]] == [4, 6, 8]
    assert first.startswith("captured 6 steps of each rank, one in 2: ")
    traffic = Traffic.load(tmp_path / "late")
    assert [call.bytes_in // 4 for call in traffic.calls[0]] == [*range(3, 53)]
    assert last.startswith("captured 50 steps of each rank: ")
    (line,) = named
    assert re.match(r"torchcoll: step 51: rank 1 is late: the other rank waits ", line)


def test_a_training_that_raises_is_the_status(tmp_path):
    def case():
        for name, error in (("raised", ValueError("x")), ("left", None)):
            capture = DrivenCapture(name, None)
            capture.begin()
            dist.all_reduce(torch.ones(2))
            capture.end(error) if error else capture._abandon()

    on_ranks(tmp_path, 1, {"it": case})
    ends = [Traffic.load(tmp_path / name).end for name in ("raised", "left")]
    assert ends == [
        {"status": "failed", "reason": "ValueError", "message": "x"},
        {"status": "interrupted", "reason": "SystemExit", "message": ""},
    ]


def test_without_a_process_group(capsys, in_tmp_path):
    capture = DrivenCapture("none", 5)
    capture.begin()
    capture.step()
    capture.end()
    assert capsys.readouterr().err == (
        "torchcoll: warning: nothing is captured: the training has no process group\n"
    )
    assert not (in_tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["start", "every"])
def test_start_and_every_are_checked(name):
    least = {"start": 0, "every": 1}[name]
    with pytest.raises(UsageError, match=f"^{name}: got -1, expected a whole number from {least}"):
        DrivenCapture("x", 5, **{name: -1})


def test_steps_below_one():
    with pytest.raises(
        UsageError, match=error_text("^steps", error_tail("0", "a whole number from 1 on"))
    ):
        DrivenCapture("x", 0)


def test_a_framework_without_the_hook(monkeypatch):
    old = types.ModuleType("some_framework")
    old.__version__ = "0.1"
    old.Callback = type("Callback", (), {"on_train_begin": None})
    monkeypatch.setitem(sys.modules, "some_framework", old)
    with pytest.raises(UnavailableError) as caught:
        base_class(["some_framework"], "Callback", ["on_train_begin", "on_step_end"])
    assert str(caught.value) == error_text(
        "some_framework", "0.1", "one that has Callback with on_step_end"
    )

    with pytest.raises(UnavailableError) as caught:
        base_class(["no_framework.at_all", "no_other"], "Callback", [])
    assert str(caught.value) == error_text(
        "integration",
        "no framework",
        "no_framework or no_other installed. In a checkout of torchcoll: python -m pip install "
        "'.[integrations]'. Or install the framework itself.",
    )
