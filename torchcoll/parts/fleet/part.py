"""Many runs in a store: which node, and since when."""

from torchcoll.core.parts import Part

PART = Part(
    options={"check": "command:learn_options"},
    extends={
        "check": "command:run_learn",
    },
    answers={"baseline": "command:good_runs_of"},
)
