"""``torchcoll FILE`` is right at the first try for inputs in the shape of public files."""

from __future__ import annotations

import pytest
from first_tries import differences, read_truth

TRUTH = read_truth()


@pytest.mark.parametrize("truth", TRUTH, ids=[truth["file"] for truth in TRUTH])
def test_the_first_try(truth):
    found, wrong = differences(truth)
    assert not wrong
    assert found == []


def test_most_are_not_from_the_findings_that_led_to_the_code():
    assert sum("findings" not in truth["origin"] for truth in TRUTH) >= 25
