"""What a training sends, and what it costs: capture, trace, plan, replay."""

from torchcoll.core.commands import Listed
from torchcoll.core.parts import Part

PART = Part(
    commands={
        "trace": Listed("show what a training sent, and when", "training"),
        "gradients": Listed(
            "show what a step of a model sends, and what it costs", "training", "command"
        ),
        "plan": Listed("predict the communication time of a training step", "training"),
        "replay": Listed("run a recorded training step's collectives again", "training"),
    },
    on_ranks=("replay",),
    public={
        "LayoutComparison": "config_projection",
        "Plan": "projection",
        "TrafficComparison": "traffic_comparison_show",
        "Trial": "trial",
        "capture": "capture",
        "compare_plans": "planning",
        "plan": "planning",
        "replay": "replay",
        "try_buckets": "bucket_trial",
    },
    extends={"compare": "command:compare_captures", "show": "command:show_saved"},
    sections={"traffic": "traffic_show:add_traffic"},
    shows={"torchcoll.core.traffic": "traffic_show"},
    answers={
        "compares": "traffic_comparison_show:compare_traffic",
        "reads": "command:command_for",
        "files": "command:saved_sections",
    },
)
