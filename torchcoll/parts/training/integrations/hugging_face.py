"""The callback for Hugging Face: ``Trainer(..., callbacks=[TrainerCapture("traffic")])``."""

from __future__ import annotations

from typing import Any

from torchcoll.parts.training.integrations.driven import DrivenCapture, base_class

_HOOKS = ("on_train_begin", "on_step_end", "on_train_end")
_Base = base_class(["transformers"], "TrainerCallback", _HOOKS)


class TrainerCapture(_Base):  # type: ignore[misc,valid-type]
    """Captures 50 steps of a Trainer, or as ``steps`` says, into ``folder``.

    A step is an optimiser step. With gradient accumulation it has several backward passes.

    The arguments are those of DrivenCapture.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._capture = DrivenCapture(*args, **kwargs)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._capture.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._capture.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._capture.end()
