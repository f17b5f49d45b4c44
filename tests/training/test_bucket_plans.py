from __future__ import annotations

import pytest
from error_form import error_text

from torchcoll.core.errors import UsageError
from torchcoll.parts.training.plans import Bucket, BucketPlan

A, B = Bucket(8, "float32", ("a", "b")), Bucket(4, "bfloat16", ("c",))
PLAN = BucketPlan((A, B), first_step=(B, A), order="assumed", notes=("a note",))


def sent(traffic):
    return [(call.bytes_in, call.bytes_out, call.dtype) for call in traffic.calls[0]]


def test_traffic_of_a_plan():
    """One steady step, of rank 0 alone: the others send the same."""
    traffic = PLAN.traffic(3)
    assert (traffic.source, traffic.ranks, list(traffic.calls)) == ("plan", 3, [0])
    assert traffic.notes == ["a note"]
    (group,) = traffic.groups.values()
    assert group.ranks == (0, 1, 2)
    assert [
        (c.collective, c.op, c.group, c.sequence, c.asynchronous) for c in traffic.calls[0]
    ] == [
        ("all_reduce", "sum", group.name, 0, True),
        ("all_reduce", "sum", group.name, 1, True),
    ]
    assert sent(traffic) == [(8, 8, "float32"), (4, 4, "bfloat16")]
    assert sent(PLAN.traffic(3, first_step=True)) == [(4, 4, "bfloat16"), (8, 8, "float32")]


def test_find_unused_sends_an_int32_for_each_parameter_too():
    plan = BucketPlan((A, B), (A, B), "registered", find_unused=True)
    assert (plan.size_bytes, plan.used_map_bytes) == (12, 12)
    assert sent(plan.traffic(2))[2:] == [(12, 12, "int32")]
    assert PLAN.used_map_bytes == 0


@pytest.mark.parametrize("ranks", [0, 2.0, True])
def test_ranks(ranks):
    with pytest.raises(UsageError) as caught:
        PLAN.traffic(ranks)
    assert str(caught.value) == error_text("ranks", ranks, "a whole number from 1 on")
