"""Many runs in a store: which node, and since when."""

from torchcoll.core.parts import Part

PART = Part(
    extends={
        "check": "check_good_runs:baseline_in_rules",
        "convert": "command:convert_store",
    },
    sections={"nights": "nights_page:add_nights"},
    answers={"recognises": "address:is_store", "baseline": "check_good_runs:good_runs"},
)
