"""torchcoll: what a collective costs, measured through torch.distributed.

Importing this package loads nothing heavy; each public name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name of the kernel -> the module that defines it; parts have further ones. No module here
# shares its name with a public name: importing a module would overwrite the lazy name (tested).
_LAZY = {
    "Case": "torchcoll.core.case",
    "Spec": "torchcoll.core.spec",
    "Run": "torchcoll.core.result",
    "Traffic": "torchcoll.core.traffic",
    "TorchcollError": "torchcoll.core.errors",
    "load": "torchcoll.reading.inputs",
    "save": "torchcoll.core.file",
    "run": "torchcoll.bench.session",
    "check": "torchcoll.questions.check.judging",
    "cold": "torchcoll.questions.startup.cold",
    "compare": "torchcoll.questions.comparison.compare",
    "plot": "torchcoll.questions.show.plot",
    "table": "torchcoll.questions.show.frames",
    "show": "torchcoll.questions.show.show",
    # What they return:
    "Cold": "torchcoll.questions.startup.cold",
    "Comparison": "torchcoll.questions.comparison.compare",
    "Verdict": "torchcoll.questions.check.judging",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        from torchcoll.core.parts import parts

        return sorted([*_LAZY, *(name for _, part in parts() for name in part.public)])
    module = None if name.startswith("_") else _LAZY.get(name) or _of_a_part(name)
    if module is None:
        raise AttributeError(f"module 'torchcoll' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def _of_a_part(name: str) -> str | None:
    from torchcoll.core.parts import modules_of

    return next(modules_of("public", name), None)


def __dir__() -> list[str]:
    return sorted([*__getattr__("__all__"), *(name for name in globals() if name[:2] == "__")])
