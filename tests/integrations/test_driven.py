"""The capture behind the hooks of frameworks, without any framework."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.distributed as dist
from error_form import error_tail, error_text
from planned_models import on_ranks

from torchcoll.core.errors import UnavailableError, UsageError
from torchcoll.core.traffic import Traffic
from torchcoll.integrations.driven import DrivenCapture, base_class


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
    assert str(caught.value) == (
        error_text("some_framework", "0.1", "one that has Callback with on_step_end")
    )
    with pytest.raises(UnavailableError) as caught:
        base_class(["no_framework.at_all", "no_other"], "Callback", [])
    assert str(caught.value) == (
        error_text(
            "integration",
            "no framework",
            "no_framework or no_other installed. Install torchcoll[integrations], or the "
            "framework itself.",
        )
    )
