"""The callback for Lightning: ``Trainer(..., callbacks=[LightningCapture("traffic")])``."""

from __future__ import annotations

import os
import sys
from typing import Any

from torchcoll.parts.training.integrations.driven import STEPS, DrivenCapture, base_class

_HOOKS = ("on_train_start", "on_train_batch_end", "on_train_end", "on_exception")
# Both packages have the same code. The one that is already imported comes first.
_MODULES = sorted(
    ("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules
)
_Base = base_class(_MODULES, "Callback", _HOOKS)


class LightningCapture(_Base):  # type: ignore[misc,valid-type]
    """Captures ``steps`` steps of a Trainer (None: all of them) into ``folder``.

    A step is an optimiser step. With accumulate_grad_batches it has several backward passes.

    - start: number of steps before the first captured one.
    - every, metrics: as in ``torchcoll.capture``. With ``every`` the ``steps`` captured steps are
      one in ``every`` of the training. With ``metrics`` rank 0 prints which rank the others wait
      for.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        steps: int | None = STEPS,
        start: int = 0,
        every: int = 1,
        metrics: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self._capture = DrivenCapture(folder, steps, start, every, metrics)
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
