"""One step on one rank: computation, and calls of groups beside it. Times added up by hand."""

import pytest

from torchcoll.parts.training.step_program import (
    FORWARD,
    BeginCall,
    Mark,
    PassWork,
    SentCall,
    StepProgram,
    Wait,
)


def computes(share):
    return PassWork(FORWARD, share)


def sends(name, group, time_ns, after=None):
    return BeginCall(name, SentCall(group, "all_reduce", time_ns), after)


@pytest.mark.parametrize(
    ("acts", "expected_ns"),
    [
        ([], 0),
        ([computes(10), computes(5)], 15),
        # Sent at 10, hidden under the second part until 13.
        ([computes(10), sends("a", "data", 3), computes(5)], 15),
        # Sent at 10 and 12 on one group: 10 to 18, then 18 to 26.
        ([computes(10), sends("a", "data", 8), computes(2), sends("b", "data", 8)], 26),
        # On two groups: 10 to 18 and 12 to 20.
        ([computes(10), sends("a", "data", 8), computes(2), sends("b", "tensor", 8)], 20),
        # The computation goes on at 18, when the call has ended.
        ([computes(10), sends("a", "data", 8), Wait(("a",)), computes(2)], 20),
        # Two calls to wait for: the later one, at 30, counts.
        ([sends("a", "data", 8), sends("b", "tensor", 30), Wait(("a", "b")), computes(1)], 31),
        # A call that never happened is not waited for.
        ([computes(10), Wait(("a",)), Wait((None,))], 10),
        # Issued at 10, but it may start where the host stood at the mark: 4 to 11.
        ([computes(4), Mark("m"), computes(6), sends("a", "data", 7, after="m")], 11),
        # No such event yet: it starts at 0.
        ([computes(4), sends("a", "data", 3, after="m")], 4),
        # After another call: 5 to 9, then 9 to 12 on the other group.
        ([computes(5), sends("a", "data", 4), sends("b", "tensor", 3, after="a")], 12),
        # A mark moves: the second one, at 9, counts.
        ([Mark("m"), computes(9), Mark("m"), sends("a", "data", 2, after="m")], 11),
    ],
)
def test_a_step_lasts_until_the_computation_and_all_calls_have_ended(acts, expected_ns):
    program = StepProgram(tuple(acts))
    assert program.step_ns(lambda sent: sent.size_bytes, {FORWARD: 1}) == expected_ns
