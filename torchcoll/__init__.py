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
    "load": "torchcoll.reading.inputs",
    "save": "torchcoll.core.file",
    "run": "torchcoll.bench.session",
    "replay": "torchcoll.parts.training.replay",
    "check": "torchcoll.questions.check.judging",
    "cold": "torchcoll.questions.startup.cold",
    "compare": "torchcoll.questions.comparison.compare",
    "cost": "torchcoll.parts.training.cost",
    "plan": "torchcoll.parts.training.planning",
    "capture": "torchcoll.parts.training.capture",
    "gradient_buckets": "torchcoll.parts.training.buckets",
    "shard_traffic": "torchcoll.parts.training.shards",
    "try_buckets": "torchcoll.parts.training.bucket_trial",
    "algorithms": "torchcoll.parts.curves.algorithms",
    "fit_model": "torchcoll.parts.curves.model_fit",
    "FittedModel": "torchcoll.parts.curves.model_fit",
    "predict": "torchcoll.parts.curves.named_machines",
    "Prediction": "torchcoll.parts.curves.predictor",
    "scaling": "torchcoll.parts.curves.scaling",
    "plot": "torchcoll.questions.show.plot",
    "table": "torchcoll.questions.show.frames",
    "transitions": "torchcoll.parts.curves.transitions",
    "show": "torchcoll.questions.show.show",
    # What they return:
    "Algorithms": "torchcoll.parts.curves.algorithms",
    "BucketPlan": "torchcoll.parts.training.plans",
    "Cold": "torchcoll.questions.startup.cold",
    "Comparison": "torchcoll.questions.comparison.compare",
    "Cost": "torchcoll.parts.training.cost",
    "LayoutComparison": "torchcoll.parts.training.config_projection",
    "Plan": "torchcoll.parts.training.projection",
    "Scaling": "torchcoll.parts.curves.scaling",
    "ShardPlan": "torchcoll.parts.training.sharded",
    "TrafficComparison": "torchcoll.parts.training.traffic_comparison",
    "Transitions": "torchcoll.parts.curves.transitions",
    "Trial": "torchcoll.parts.training.plans",
    "Verdict": "torchcoll.questions.check.judging",
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
