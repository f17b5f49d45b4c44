"""One line for other frameworks: callbacks that capture what their training loops communicate.

``TrainerCapture`` is Hugging Face's TrainerCallback, ``LightningCapture`` Lightning's Callback.
Each framework is imported when its name is first used, and never here.
"""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {"TrainerCapture": "hugging_face", "LightningCapture": "of_lightning"}

__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    """Raises UnavailableError where the framework is not installed or has no such hooks."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
