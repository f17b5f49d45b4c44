"""One step on one rank: computation, and calls of groups beside it. Times added up by hand."""

from __future__ import annotations

import pytest

from torchcoll.parts.training.step_program import Compute, Mark, Send, Wait, step_ns


@pytest.mark.parametrize(
    ("acts", "expected_ns"),
    [
        ([], 0),
        ([Compute(10), Compute(5)], 15),
        # Sent at 10, hidden under the second part until 13.
        ([Compute(10), Send("a", "data", 3), Compute(5)], 15),
        # Sent at 10 and 12 on one group: 10 to 18, then 18 to 26.
        ([Compute(10), Send("a", "data", 8), Compute(2), Send("b", "data", 8)], 26),
        # On two groups: 10 to 18 and 12 to 20.
        ([Compute(10), Send("a", "data", 8), Compute(2), Send("b", "tensor", 8)], 20),
        # The computation goes on at 18, when the call has ended.
        ([Compute(10), Send("a", "data", 8), Wait(("a",)), Compute(2)], 20),
        # Two calls to wait for: the later one, at 30, counts.
        ([Send("a", "data", 8), Send("b", "tensor", 30), Wait(("a", "b")), Compute(1)], 31),
        # A call that never happened is not waited for.
        ([Compute(10), Wait(("a",)), Wait((None,))], 10),
        # Issued at 10, but it may start where the host stood at the mark: 4 to 11.
        ([Compute(4), Mark("m"), Compute(6), Send("a", "data", 7, after="m")], 11),
        # No such event yet: it starts at 0.
        ([Compute(4), Send("a", "data", 3, after="m")], 4),
        # After another call: 5 to 9, then 9 to 12 on the other group.
        ([Compute(5), Send("a", "data", 4), Send("b", "tensor", 3, after="a")], 12),
        # A mark moves: the second one, at 9, counts.
        ([Mark("m"), Compute(9), Mark("m"), Send("a", "data", 2, after="m")], 11),
    ],
)
def test_a_step_lasts_until_the_computation_and_all_calls_have_ended(acts, expected_ns):
    assert step_ns(acts) == expected_ns
