"""Plans of buckets in each format."""

from __future__ import annotations

import csv
import io
import json

import pytest
from error_form import error_tail, error_text

from torchcoll import show
from torchcoll.core.errors import UsageError
from torchcoll.parts.training.buckets_show import show_plans
from torchcoll.parts.training.plans import Bucket, BucketPlan

# ruff: noqa: E501

MIB = 1 << 20
LAST = Bucket(1000, "float32", ("head.bias", "head.weight"))
LAYERS = [Bucket(MIB, "bfloat16", (f"{i}.c", f"{i}.b", f"{i}.a")) for i in (2, 1, 0)]
FIRST = (Bucket(3 * MIB + 1000, "float32", ("all",)),)
PLAN = BucketPlan((LAST, *LAYERS), FIRST, "assumed", 25, notes=("order assumed",))
SAME = BucketPlan((LAST,), (LAST,), "registered", (1.5, 25), True, notes=("find_unused",))
UNSET = BucketPlan((LAST,), (LAST,), "from step")


def printed(*plans, **how):
    out = io.StringIO()
    show_plans(plans, file=out, **how)
    return out.getvalue()


def test_the_table():
    assert (
        printed(PLAN, model="train:make")
        == """\
train:make has 3 MiB of gradients in 11 tensors (float32, bfloat16); bucket_cap_mb 25 makes 4 buckets of 1000 B to 1 MiB

order assumed

first step: 1 bucket of 3 MiB
sent: place among the buckets of a steady step, from 0

sent  size  dtype     buckets   bytes    share  gradients  such as
   0  1000  float32         1  1000 B    0.0 %          2  head.bias, head.weight
 1-3    1M  bfloat16        3   3 MiB  100.0 %          9  2.c ... 2.a

train:make has 3 MiB of gradients in 11 tensors (float32, bfloat16)
"""
    )


def test_several_caps_are_one_table():
    assert (
        printed(PLAN, UNSET, SAME, model="train:make")
        == """\
train:make has 3 MiB of gradients in 11 tensors (float32, bfloat16); 4, 1, 1 buckets with bucket_cap_mb 25, default, 1.5,25

order assumed
find_unused
default: bucket_cap_mb not set (1 MiB for the first bucket, 25 MiB after it)

bucket_cap_mb  buckets  smallest  largest  sent first  sent last  first step
                                                                     buckets
           25        4    1000 B    1 MiB      1000 B      1 MiB           1
      default        1    1000 B   1000 B      1000 B     1000 B           1
       1.5,25        1    1000 B   1000 B      1000 B     1000 B           1  as default

--bucket-cap-mb with one value lists the buckets
train:make has 3 MiB of gradients in 11 tensors (float32, bfloat16)
"""
    )


def test_many_buckets_of_a_size_are_one_row():
    sizes = [8, 16] * 40
    plan = BucketPlan(tuple(Bucket(n, "float32", ("p",)) for n in sizes), FIRST, "assumed")
    rows = [line for line in printed(plan).splitlines() if ",..." in line]
    assert [row.split()[:4] for row in rows] == [
        ["0,2,4,6,8,10,12,...", "8", "float32", "40"],
        ["1,3,5,7,9,11,13,...", "16", "float32", "40"],
    ]


def test_csv_has_every_bucket():
    rows = list(csv.DictReader(io.StringIO(printed(PLAN, SAME, format="csv"))))
    assert [(r["step"], r["bucket"], r["size_bytes"]) for r in rows[:3]] == [
        ("first", "0", str(3 * MIB + 1000)),
        ("steady", "0", "1000"),
        ("steady", "1", str(MIB)),
    ]
    assert rows[1] == {
        **{"bucket_cap_mb": "25", "step": "steady", "bucket": "0", "size_bytes": "1000"},
        **{"dtype": "float32", "parameters": "head.bias,head.weight"},
    }
    assert [row["bucket_cap_mb"] for row in rows[-2:]] == ["1.5,25"] * 2


def test_json():
    document = json.loads(printed(PLAN, format="json", model="a:b"))
    assert (document["schema"], document["model"]) == ("torchcoll-buckets/1", "a:b")
    (plan,) = document["plans"]
    assert plan["buckets"][0] == {
        "size_bytes": 1000,
        "dtype": "float32",
        "parameters": ["head.bias", "head.weight"],
    }
    assert (plan["size_bytes"], plan["order"], len(plan["first_step"])) == (
        3 * MIB + 1000,
        "assumed",
        1,
    )


def test_show_takes_a_plan(capsys):
    show(PLAN, format="markdown")
    out = capsys.readouterr().out
    assert "| 1-3 | 1M | bfloat16 | 3 | 3 MiB | 100.0 % | 9 | 2.c ... 2.a |\n" in out
    with pytest.raises(
        UsageError, match=error_text("^format", error_tail("text", "one of table, markdown, "))
    ):
        show(PLAN, format="text")
