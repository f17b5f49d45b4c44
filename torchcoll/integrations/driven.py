"""A capture whose begin, steps and end are driven by the hooks of a training framework."""

from __future__ import annotations

import atexit
import importlib
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch.distributed as dist

from torchcoll.core.errors import UnavailableError, tell
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import counted, whole_number
from torchcoll.training.capture import capture

STEPS = 50  # enough for medians, and a file of a few MB at most


class DrivenCapture:
    """Runs ``torchcoll.capture`` around the steps of a training framework.

    folder: each rank writes its file into it.
    steps: the capture ends after this number of optimiser steps; None: with the training.

    Without a process group it captures nothing and prints a warning. Raises UsageError for steps
    below 1, and as ``capture`` does.
    """

    def __init__(self, folder: str | os.PathLike[str], steps: int | None) -> None:
        if steps is not None:
            whole_number(steps, "steps", 1)
        self._folder, self._most = folder, steps
        self._open: ExitStack | None = None
        self._traffic: Traffic | None = None
        self._marked = 0

    def begin(self) -> None:
        """Begin a capture; call it at the same step on all ranks. A second training begins a new
        one.
        """
        self.end()
        if not dist.is_initialized():
            tell("torchcoll: warning: nothing is captured: the training has no process group")
            return
        self._open, self._marked = ExitStack(), 0
        self._traffic = self._open.enter_context(capture(self._folder))
        atexit.register(self._abandon)  # Hugging Face calls no hook if the training raises

    def step(self) -> None:
        """Mark the end of an optimiser step."""
        if self._traffic is None or self._open is None:
            return
        self._traffic.step()
        self._marked += 1
        if self._marked == self._most:
            self.end()

    def _abandon(self) -> None:
        """End the capture at exit, if the framework has not called its last hook."""
        self.end(SystemExit())

    def end(self, error: BaseException | None = None) -> None:
        """End the capture if it is open. error: the exception that ended the training early."""
        stack, self._open = self._open, None
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
                f"captured {counted(self._marked, 'step')} of each rank: torchcoll trace "
                f"{self._folder}"
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
    action = "Install torchcoll[integrations], or the framework itself."
    raise UnavailableError("integration", "no framework", f"{expected} installed", action)
