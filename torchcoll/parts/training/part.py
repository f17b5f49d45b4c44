"""What a training sends, and what it costs: capture, trace, plan, replay."""

from torchcoll.core.parts import Part

PART = Part(
    on_ranks=("replay",),
    public={
        "BucketPlan": "plans",
        "Cost": "cost",
        "LayoutComparison": "config_projection",
        "Plan": "projection",
        "ShardPlan": "sharded",
        "TrafficComparison": "traffic_comparison",
        "Trial": "plans",
        "capture": "capture",
        "cost": "cost",
        "gradient_buckets": "buckets",
        "plan": "planning",
        "replay": "replay",
        "shard_traffic": "shards",
        "try_buckets": "bucket_trial",
    },
    extends={"compare": "captures_command:compare_captures"},
    sections={"traffic": "traffic_page:add_traffic"},
    shows={"torchcoll.core.traffic": "traffic_shown"},
    answers={"compares": "traffic_comparison:compare_traffic"},
)
