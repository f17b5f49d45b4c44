"""Many runs in a store: which node, and since when."""

from torchcoll.core.commands import Listed
from torchcoll.core.parts import Part

PART = Part(
    commands={
        "nightly": Listed(
            "find which nodes are slow or wrong, since when, and what to do",
            "many nodes",
        ),
        "baseline": Listed(
            "write the usual times of good runs, for check --baseline", "many nodes", "command"
        ),
        "collect": Listed("keep results in a store, for nightly", "many nodes"),
    },
    extends={
        "check": "check_good_runs:baseline_in_rules",
        "convert": "command:convert_store",
    },
    sections={"nights": "nights_page:add_nights"},
    answers={"recognises": "address:is_store", "baseline": "check_good_runs:good_runs"},
)
