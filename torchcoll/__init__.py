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
    "load": "torchcoll.inputs",
    "save": "torchcoll.core.file",
    "run": "torchcoll.bench.session",
    "replay": "torchcoll.training.replay",
    "check": "torchcoll.verdict.judging",
    "cold": "torchcoll.startup.cold",
    "compare": "torchcoll.comparison.compare",
    "cost": "torchcoll.training.cost",
    "plan": "torchcoll.training.planning",
    "capture": "torchcoll.training.capture",
    "gradient_buckets": "torchcoll.training.buckets",
    "shard_traffic": "torchcoll.training.shards",
    "try_buckets": "torchcoll.training.bucket_trial",
    "algorithms": "torchcoll.forcing.algorithms",
    "fit_model": "torchcoll.curves.model_fit",
    "FittedModel": "torchcoll.curves.model_fit",
    "predict": "torchcoll.curves.named_machines",
    "Prediction": "torchcoll.curves.predictor",
    "scaling": "torchcoll.curves.scaling",
    "plot": "torchcoll.overview.plot",
    "table": "torchcoll.overview.frames",
    "transitions": "torchcoll.curves.transitions",
    "show": "torchcoll.overview.show",
    # What they return:
    "Algorithms": "torchcoll.forcing.algorithms",
    "BucketPlan": "torchcoll.training.plans",
    "Cold": "torchcoll.startup.cold",
    "Comparison": "torchcoll.comparison.compare",
    "Cost": "torchcoll.training.cost",
    "LayoutComparison": "torchcoll.training.config_projection",
    "Plan": "torchcoll.training.projection",
    "Scaling": "torchcoll.curves.scaling",
    "ShardPlan": "torchcoll.training.sharded",
    "TrafficComparison": "torchcoll.training.traffic_comparison",
    "Transitions": "torchcoll.curves.transitions",
    "Trial": "torchcoll.training.plans",
    "Verdict": "torchcoll.verdict.judging",
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
