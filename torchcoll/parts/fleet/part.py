"""Many runs in a store: which node, and since when."""

from torchcoll.core.commands import Listed
from torchcoll.core.parts import Part

PART = Part(
    commands={
        "nightly": Listed(
            "find which nodes are slow or wrong, since when, and what to do",
            "many nodes",
        ),
        "collect": Listed("keep results in a store, for nightly", "many nodes"),
    },
    options={"check": "command:learn_options"},
    extends={
        "check": "command:run_learn",
    },
    sections={"nights": "night_charts:add_nights"},
    answers={"baseline": "command:good_runs_of", "recognises": "address:is_store"},
)
