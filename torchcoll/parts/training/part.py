"""What a training sends, and what it costs: capture, trace, plan, replay."""

from torchcoll.core.parts import Part

PART = Part(
    on_ranks=("replay",),
    public={
        "LayoutComparison": "config_projection",
        "Plan": "projection",
        "TrafficComparison": "traffic_comparison",
        "Trial": "trial",
        "capture": "capture",
        "compare_plans": "planning",
        "plan": "planning",
        "replay": "replay",
        "try_buckets": "bucket_trial",
    },
    extends={"compare": "command:compare_captures"},
    sections={"traffic": "traffic_show:add_traffic"},
    shows={"torchcoll.core.traffic": "traffic_show"},
    answers={"compares": "traffic_comparison:compare_traffic", "reads": "command:command_for"},
)
