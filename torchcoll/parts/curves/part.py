"""Time over sizes and ranks, models of machines, forced algorithms."""

from torchcoll.core.commands import Listed
from torchcoll.core.parts import Part

PART = Part(
    commands={
        "curve": Listed("find the sizes at which the behaviour changes", "machine"),
        "scaling": Listed(
            "show how times and first calls grow with the ranks", "machine", "command"
        ),
        "model": Listed("fit and use a model of a machine", "machine"),
        "algorithms": Listed(
            "find the fastest forced algorithm at each size", "machine", "algorithms_command"
        ),
    },
    public={
        "Algorithms": "algorithms",
        "FittedModel": "model_fit",
        "Prediction": "predictor",
        "Scaling": "scaling",
        "Transitions": "transitions",
        "algorithms": "algorithms",
        "fit_model": "model_fit",
        "predict": "named_machines",
        "scaling": "scaling",
        "transitions": "transitions",
    },
    sections={
        "sides": "curves_page:add_algorithms",
        "compared": "curves_page:add_errors",
        "sizes": "curves_page:add_transitions",
        "ranks": "curves_page:add_scaling",
    },
)
