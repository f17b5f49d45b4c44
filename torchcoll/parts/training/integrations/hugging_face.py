"""The callback for Hugging Face: ``Trainer(..., callbacks=[TrainerCapture("traffic")])``."""

from __future__ import annotations

import os
from typing import Any

from torchcoll.parts.training.integrations.driven import STEPS, DrivenCapture, base_class

_HOOKS = ("on_train_begin", "on_step_end", "on_train_end")
_Base = base_class(["transformers"], "TrainerCallback", _HOOKS)


class TrainerCapture(_Base):  # type: ignore[misc,valid-type]
    """Captures ``steps`` steps of a Trainer (None: all of them) into ``folder``.

    A step is an optimiser step. With gradient accumulation it has several backward passes.

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
        self._capture = DrivenCapture(folder, steps, start, every, metrics)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._capture.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._capture.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._capture.end()
