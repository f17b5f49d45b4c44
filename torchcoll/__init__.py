"""torchcoll: what a collective costs, measured through torch.distributed.

Importing this package loads nothing heavy; each public name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that defines it. No module here shares its name with a public name:
# importing a module would overwrite the lazy name (tested).
_LAZY = {
    "Case": "torchcoll.core.case",
    "Spec": "torchcoll.core.spec",
    "Run": "torchcoll.core.result",
    "Traffic": "torchcoll.core.traffic",
    "TorchcollError": "torchcoll.core.errors",
    "load": "torchcoll.core.records",
    "save": "torchcoll.core.records",
    "run": "torchcoll.bench.runner",
    "replay": "torchcoll.bench.replay",
    "cold": "torchcoll.analysis.cold",
    "compare": "torchcoll.analysis.compare",
    "cost": "torchcoll.analysis.cost",
    "advise": "torchcoll.analysis.gradients",
    "capture": "torchcoll.train.capture",
    "ddp_hook": "torchcoll.train.hook",
    "gradient_buckets": "torchcoll.train.buckets",
    "shard_traffic": "torchcoll.train.shards",
    "try_buckets": "torchcoll.train.try_buckets",
    "algorithms": "torchcoll.analysis.algorithms",
    "scaling": "torchcoll.analysis.scaling",
    "plot": "torchcoll.report.plot",
    "table": "torchcoll.analysis.table",
    "transitions": "torchcoll.analysis.transitions",
    "show": "torchcoll.report.text",
}

__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    try:
        module = _LAZY[name]
    except KeyError:
        raise AttributeError(f"module 'torchcoll' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
