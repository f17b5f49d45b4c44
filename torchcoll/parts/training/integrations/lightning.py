"""The callback for Lightning: ``Trainer(..., callbacks=[LightningCapture("traffic")])``."""

from __future__ import annotations

import sys
from typing import Any

from torchcoll.parts.training.integrations.driven import DrivenCapture, base_class

_HOOKS = ("on_train_start", "on_train_batch_end", "on_train_end", "on_exception")
# Both packages have the same code. The one that is already imported comes first.
_MODULES = sorted(
    ("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules
)
_Base = base_class(_MODULES, "Callback", _HOOKS)


class LightningCapture(_Base):  # type: ignore[misc,valid-type]
    """Captures 50 steps of a Trainer, or as ``steps`` says, into ``folder``.

    A step is an optimiser step. With accumulate_grad_batches it has several backward passes.

    The arguments are those of DrivenCapture.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._capture = DrivenCapture(*args, **kwargs)
        self._seen = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._seen = trainer.global_step
        self._capture.begin()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if (
            trainer.global_step > self._seen
        ):  # a batch that only accumulates gradients is not a step
            self._seen = trainer.global_step
            self._capture.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._capture.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._capture.end(exception)
