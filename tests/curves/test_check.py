"""What ran in the runs of a setting, against what the setting says."""

from __future__ import annotations

import pytest
from made_runs import measured, run

from torchcoll.core.result import Choice
from torchcoll.libraries.nccl.forced import TunerRule
from torchcoll.libraries.oneccl.algorithms import algorithm_at
from torchcoll.parts.curves.forced_check import LoggedCase, logged_cases

RULES = [
    TunerRule("AllReduce", 0, 32768, "TREE", "LL", 8, 1, 2),
    TunerRule("AllReduce", 32769, None, "RING", "SIMPLE", 16, 1, 2),
    TunerRule("AllReduce", 0, None, "RING", "SIMPLE", 16),
]


def found(choice, values, rules=(), size_bytes=1024, **case):
    result = measured(100_000, size_bytes=size_bytes, choices=[choice] if choice else [], **case)
    return logged_cases([run(result)], values, rules)


def test_by_variables():
    values = {"NCCL_ALGO": "allreduce:ring", "NCCL_PROTO": "allreduce:ll"}
    assert found(Choice("RING", "LL", 4), values) == [LoggedCase("all_reduce", 1024, "RING/LL", ())]
    (other,) = found(Choice("RING", "LL128", 4), values)
    assert other.mismatches == ("RING/LL128",)
    assert found(Choice("TREE", "LL"), values, collective="broadcast", op=None, root=0) == []


def test_what_the_log_does_not_tell_is_not_judged():
    values = {"NCCL_ALGO": "Ring"}
    assert found(None, values) == []
    # The name of a kernel is a hint only.
    assert found(Choice("TREE", "LL", source="kernel name"), values) == []
    # The log tells, and the setting says nothing: another variable.
    assert found(Choice("TREE", "LL"), {"NCCL_MIN_CTAS": "8"}) == []


@pytest.mark.parametrize(
    ("size_bytes", "ranks", "asked"),
    [
        (32768, 2, "TREE/LL"),
        (32769, 2, "RING/SIMPLE"),
        (1024, 4, "RING/SIMPLE"),  # the line for whatever else there is
    ],
)
def test_by_the_lines_of_a_tuner_file(size_bytes, ranks, asked):
    result = measured(100_000, size_bytes=size_bytes, choices=[Choice("TREE", "LL")], ranks=ranks)
    (one,) = logged_cases([run(result)], {"NCCL_TUNER_CONFIG_FILE": "t.csv"}, RULES)
    assert one.requested == asked
    assert one.mismatches == (() if asked == "TREE/LL" else ("TREE/LL",))


def test_by_a_selection_of_oneccl():
    values = {"CCL_ALLREDUCE": "recursive_doubling:0-8192;ring:8193-max"}
    (small,) = found(Choice("recursive_doubling"), values, size_bytes=8192)
    (large,) = found(Choice("recursive_doubling"), values, size_bytes=16384)
    assert (small.requested, small.mismatches) == ("recursive_doubling", ())
    assert (large.requested, large.mismatches) == ("ring", ("recursive_doubling",))


@pytest.mark.parametrize(
    ("value", "size_bytes", "algorithm"),
    [
        ("ring", 5, "ring"),
        ("ring:0-8;2d:9-max", 8, "ring"),
        ("ring:0-8;2d:9-max", 9, "2d"),
        ("ring:0-8", 9, None),
        ("ring:0-8k", 5, None),  # a form that is not documented
        ("", 5, None),
    ],
)
def test_what_a_selection_says_of_a_size(value, size_bytes, algorithm):
    assert algorithm_at(value, size_bytes) == algorithm
