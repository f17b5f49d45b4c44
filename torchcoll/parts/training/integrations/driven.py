"""A capture whose begin, steps and end are driven by the hooks of a training framework."""

from __future__ import annotations

import atexit
import importlib
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch.distributed as dist

from torchcoll.core.errors import UnavailableError, install_text, tell
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import counted, whole_number
from torchcoll.parts.training.capture import capture

STEPS = 50  # enough for medians, and a file of a few MB at most


class DrivenCapture:
    """Runs ``torchcoll.capture`` around the steps of a training framework.

    folder: each rank writes its file into it.
    steps: the number of optimiser steps to capture; None: until the training ends.
    start: the number of optimiser steps before the first of them, such as those in which the
    training warms up.
    every, metrics: those of ``capture``. With ``every`` the capture lasts ``steps`` x ``every``
    steps. With ``metrics`` rank 0 prints which rank the others wait for, each time when that
    changes.

    Without a process group it captures nothing and prints a warning. Raises UsageError for steps
    below 1, for a start below 0, for an ``every`` below 1, and as ``capture`` does.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        steps: int | None = STEPS,
        start: int = 0,
        every: int = 1,
        metrics: str | os.PathLike[str] | None = None,
    ) -> None:
        if steps is not None:
            whole_number(steps, "steps", 1)
        whole_number(start, "start", 0)
        whole_number(every, "every", 1)
        self._folder, self._start = folder, start
        self._every, self._metrics = every, metrics
        self._most = None if steps is None else steps * every
        self._open: ExitStack | None = None
        self._traffic: Traffic | None = None
        self._marked = 0
        self._before = 0  # steps until the capture starts
        self._late: list[int] = []  # the ranks that were last printed

    def begin(self) -> None:
        """The training begins; call it at the same step on all ranks. A second training begins a
        new capture.
        """
        self.end()
        if not dist.is_initialized():
            tell("torchcoll: warning: nothing is captured: the training has no process group")
            return
        self._before, self._marked, self._late = self._start, 0, []
        if not self._before:
            self._capture()

    def _capture(self) -> None:
        self._open = ExitStack()
        entered = capture(self._folder, every=self._every, metrics=self._metrics)
        self._traffic = self._open.enter_context(entered)
        atexit.register(self._abandon)  # Hugging Face calls no hook if the training raises

    def step(self) -> None:
        """Mark the end of an optimiser step."""
        if self._before:
            self._before -= 1
            if not self._before:
                self._capture()
            return
        if self._traffic is None or self._open is None:
            return
        arrivals = self._traffic.step()
        self._marked += 1
        if arrivals is not None:
            late = sorted(row.rank for row in arrivals.late)
            if late != self._late:
                answer = arrivals.answer.headline if late else "no rank is late any more"
                tell(f"torchcoll: step {self._start + self._marked}: {answer}")
            self._late = late
        if self._marked == self._most:
            self.end()

    def _abandon(self) -> None:
        """End the capture at exit, if the framework has not called its last hook."""
        self.end(SystemExit())

    def end(self, error: BaseException | None = None) -> None:
        """End the capture if it is open. error: the exception that ended the training early."""
        stack, self._open, self._before = self._open, None, 0
        if stack is None:
            return
        self._traffic = None
        atexit.unregister(self._abandon)
        rank = dist.get_rank() if dist.is_initialized() else 0
        if error is None:
            stack.close()
        else:
            with suppress(type(error)):  # the framework raises it itself
                stack.__exit__(type(error), error, None)
        if rank == 0:
            tell(
                f"captured {counted(self._marked, 'step')} of each rank"
                f"{f', one in {self._every}' * (self._every > 1)}: torchcoll trace {self._folder}"
            )


def base_class(modules: Sequence[str], name: str, hooks: Sequence[str]) -> Any:
    """The class ``name`` of the first of these modules that is installed, to derive from.

    hooks: methods that it must have.

    Raises UnavailableError if no module is installed, or if the class or a hook is missing.
    """
    for module in modules:
        try:
            base = getattr(importlib.import_module(module), name, None)
        except ImportError:
            continue
        missing = [hook for hook in hooks if not hasattr(base, hook)]
        if base is None or missing:
            package = importlib.import_module(module.partition(".")[0])
            version = getattr(package, "__version__", "of unknown version")
            what = f"{name} with {', '.join(missing)}" if base else f"a {name}"
            raise UnavailableError(module, version, f"one that has {what}")
        return base
    expected = " or ".join(dict.fromkeys(module.partition(".")[0] for module in modules))
    action = f"{install_text('integrations')} Or install the framework itself."
    raise UnavailableError("integration", "no framework", f"{expected} installed", action)
