import dataclasses
import json
from decimal import Decimal

import pytest
from error_form import error_tail, error_text
from hypothesis import given
from hypothesis import strategies as st

from torchcoll.core.case import Case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import Spec

K, M = 1024, 1024 * 1024


def refusal(**fields):
    with pytest.raises(UsageError) as caught:
        Spec(**fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        # nccl-tests: for (size = min; size <= max; size = factor > 1 ? size * factor : size + step)
        (
            {"min_bytes": "8", "max_bytes": "8K", "factor": 2},
            (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
        ),
        ({"min_bytes": 5, "max_bytes": 1000, "factor": 3.0}, (5, 15, 45, 135, 405)),
        ({"min_bytes": "1K", "max_bytes": "1M", "factor": 10}, (1024, 10240, 102400, 1024000)),
        ({"min_bytes": 7, "max_bytes": 7, "factor": 2}, (7,)),
        ({"min_bytes": 100, "max_bytes": 450, "step_bytes": 100}, (100, 200, 300, 400)),
        ({"min_bytes": 1, "max_bytes": 7, "step_bytes": 3}, (1, 4, 7)),
        ({"min_bytes": "1M", "max_bytes": "3M", "step_bytes": "1M"}, (M, 2 * M, 3 * M)),
        # a step wins over a factor; a list over both, in its own order
        ({"min_bytes": 1, "max_bytes": 3, "step_bytes": 1, "factor": 2}, (1, 2, 3)),
        ({"sizes": "25M,1.5G,1000000,7"}, (26214400, 1610612736, 1000000, 7)),
        ({"sizes": ["1K", 3, "1K"]}, (1024, 3)),
        ({"sizes": (2048, 1024)}, (2048, 1024)),
        # 4, 6, 9, 13.5 -> 14 (the even one), 20.25, 30.375: rounded, never compounded
        ({"min_bytes": 4, "max_bytes": 31, "factor": 1.5}, (4, 6, 9, 14, 20, 30)),
        # 1, 1.21, 1.46, 1.77, 2.14: what rounds to the same byte is asked once
        ({"min_bytes": 1, "max_bytes": 2, "factor": 1.21}, (1, 2)),
        ({"min_bytes": 8, "max_bytes": (1 << 63) - 1, "factor": 1e300}, (8,)),
        (
            {"min_bytes": 1 << 60, "max_bytes": (1 << 63) - 1, "factor": 2},
            (1 << 60, 1 << 61, 1 << 62),
        ),
    ],
)
def test_sizes(fields, sizes):
    assert Spec(**fields).size_list() == sizes


@given(st.integers(1, 10**6), st.integers(0, 10**9), st.decimals("1.01", "9.99", places=2))
def test_sizes_by_any_factor(least, more, factor):
    most = least + more
    sizes = Spec(min_bytes=least, max_bytes=most, factor=float(factor)).size_list()
    expected, k, p = [], 0, int(factor * 100)
    # least * (p/100)^k in whole numbers; half goes to the even one.
    while True:
        whole, rest = divmod(least * p**k, 100**k)
        rounded = whole + (2 * rest > 100**k or (2 * rest == 100**k and whole % 2 == 1))
        if rounded > most:
            break
        expected.append(rounded)
        k += 1
    assert sizes == tuple(dict.fromkeys(expected))


def test_a_small_factor_is_quick():
    # Exact fractions took minutes here, for their digits grow with every step.
    assert len(Spec(factor=1.001, min_bytes=M, max_bytes=128 * M).size_list()) == 4855
    assert 4854 < float(Decimal(128).ln() / Decimal("1.001").ln()) < 4855


@pytest.mark.parametrize(
    "fields",
    [{"step_bytes": 1}, {"factor": 1.0000001}, {"factor": 1.0001, "min_bytes": 1, "max_bytes": K}],
)
def test_too_many_sizes(fields):
    if fields.get("factor") == 1.0001:  # ln(1024) / ln(1.0001) = 69318 steps: allowed
        assert max(Spec(**fields).size_list()) == 1024
        return
    with pytest.raises(UsageError) as caught:
        Spec(**fields).size_list()
    assert str(caught.value) == error_text(
        "sizes", "more than 100000 sizes", "at most 100000. Use a larger factor or step."
    )


def test_default_cases():
    cases = Spec().cases(2)
    assert cases[0] == Case(
        "all_reduce", 8, "float32", "sum", None, True, "synchronized", "gloo", "cpu"
    )
    assert len(cases) == 13


def test_cases_are_the_product_and_nothing_twice():
    spec = Spec(
        collectives="all_reduce,AllReduce,broadcast,barrier,all_gather",
        dtypes="float32,float,int8",
        ops="sum,max,sum",
        roots=(0, 1, 0),
        sizes="1K,2K",
        in_place="both",
    )
    found = [(c.collective, c.dtype, c.op, c.root, c.in_place, c.size_bytes) for c in spec.cases(2)]
    expected = [
        *(
            ("all_reduce", d, o, None, True, s)
            for d in ("float32", "int8")
            for o in ("sum", "max")
            for s in (1024, 2048)
        ),
        *(
            ("broadcast", d, None, r, True, s)
            for d in ("float32", "int8")
            for r in (0, 1)
            for s in (1024, 2048)
        ),
        ("barrier", None, None, None, False, 0),
        *(
            ("all_gather", d, None, None, p, s)
            for d in ("float32", "int8")
            for p in (False, True)
            for s in (1024, 2048)
        ),
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("in_place", "all_reduce", "all_gather"),
    [
        (None, [True], [False]),
        (True, [True], [True]),
        (False, [False], [False]),  # all_reduce then becomes an `unsupported` row
        ("both", [True], [False, True]),
    ],
)
def test_placement(in_place, all_reduce, all_gather):
    spec = Spec(collectives="all_reduce,all_gather", in_place=in_place, sizes="1K")
    cases = spec.cases(2)
    assert [c.in_place for c in cases if c.collective == "all_reduce"] == all_reduce
    assert [c.in_place for c in cases if c.collective == "all_gather"] == all_gather


def test_all_means_all():
    spec = Spec(collectives="all", dtypes="all", ops="all")
    assert spec.collectives == tuple(COLLECTIVES)
    assert spec.dtypes == (
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "uint8",
        "int32",
        "int64",
    )
    assert spec.ops == ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")


def test_sizes_that_become_equal_run_once_under_the_first_name():
    # On 1024 ranks of float32 an all_gather has at least 4 KiB: 8, 32, ..., 2K and 4K are one.
    cases = Spec(collectives="all_gather", sizes="8,32,4K,5000,8K").cases(1024)
    assert [c.size_bytes for c in cases] == [8, 8192]
    cases = Spec(sizes="1K,1025,1027,1028").cases(2)
    assert [c.size_bytes for c in cases] == [1024, 1028]
    # ... but not over dtypes, nor over splits of another shape
    assert len(Spec(sizes="1K,1025", dtypes="int8,float32").cases(2)) == 3


def test_only_all_to_all_v_reads_splits():
    assert Spec(splits="nonsense", sizes="8").cases(2)[0].splits is None
    spec = Spec(collectives="all_to_all_v", splits="1,3", sizes="1K")
    assert spec.cases(2)[0].splits == "1,3"
    with pytest.raises(
        UsageError, match=error_text("^splits", error_tail("1,3", "3 weights, one a rank$"))
    ):
        spec.cases(3)


@pytest.mark.parametrize(
    ("device", "mode", "expected"),
    [
        (None, None, "synchronized"),
        ("cpu", None, "synchronized"),
        ("cuda", None, "back-to-back"),
        ("cuda", "synchronized", "synchronized"),
        ("cpu", "back-to-back", "back-to-back"),
    ],
)
def test_mode_by_device(device, mode, expected):
    assert Spec(device=device, mode=mode).cases(2)[0].mode == expected


def test_shuffled_is_an_order_of_the_same_cases():
    plain = Spec(collectives="all_reduce,broadcast").cases(2)
    shuffled = Spec(collectives="all_reduce,broadcast", order="shuffled", seed=3)
    assert shuffled.cases(2) == shuffled.cases(2)
    assert shuffled.cases(2) != plain
    assert set(shuffled.cases(2)) == set(plain)
    assert dataclasses.replace(shuffled, seed=4).cases(2) != shuffled.cases(2)


@pytest.mark.parametrize("collective", ["broadcast", "all_reduce"])
def test_root_out_of_range(collective):
    with pytest.raises(UsageError) as caught:
        Spec(collectives=collective, roots=(0, 2)).cases(2)
    assert str(caught.value) == error_text("root", "2", "0 to 1 (2 ranks)")


def test_backends_take_turns_over_all_points_not_only_over_sizes():
    spec = Spec(sizes="64K", dtypes="float32,float16,int32", backend="gloo,ccl")
    order = [(case.dtype, case.backend) for case in spec.cases(2)]
    assert order == [
        ("float32", "gloo"),
        ("float32", "ccl"),
        ("float16", "ccl"),
        ("float16", "gloo"),
        ("int32", "gloo"),
        ("int32", "ccl"),
    ]


SIZES = "a number of bytes with an optional K, M, G or T (binary), such as 8, 1K, 25M or 1.5G"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"min_bytes": "x"}, error_text("min-bytes", "x", SIZES)),
        ({"max_bytes": ""}, error_text("max-bytes", "an empty text", SIZES)),
        ({"step_bytes": "0x10"}, error_text("step-bytes", "0x10", SIZES)),
        ({"sizes": ""}, error_text("sizes", "an empty text", SIZES)),
        ({"sizes": "1K,,2K"}, error_text("sizes", "an empty text", SIZES)),
        ({"sizes": "1K,0"}, error_text("sizes", "0", "at least 1 byte")),
        ({"min_bytes": 0}, error_text("min-bytes", "0", "at least 1 byte")),
        (
            {"min_bytes": "1M", "max_bytes": "1K"},
            error_text("min-bytes (-b)", "1M", "at most max-bytes (-e), which is 1K"),
        ),
        ({"step_bytes": 0}, error_text("step-bytes", "0", "at least 1 byte")),
        ({"factor": 1}, error_text("factor", "1.0", "a number above 1")),
        ({"factor": -2}, error_text("factor", "-2.0", "a number above 1")),
        ({"factor": float("inf")}, error_text("factor", "inf", "a number above 1")),
        ({"factor": float("nan")}, error_text("factor", "nan", "a number")),
        ({"factor": "x"}, error_text("factor", "x", "a number")),
        ({"factor": None}, error_text("factor", None, "a number")),
        ({"in_place": "maybe"}, error_text("in-place", "maybe", "one of True, False, both")),
        (
            {"mode": "fast"},
            error_text("mode", "fast", "one of synchronized, back-to-back, blocking, graph"),
        ),
        ({"order": "random"}, error_text("order", "random", "one of size, shuffled, interleaved")),
        ({"init": "now"}, error_text("init", "now", "one of lazy, eager")),
        (
            {"buffers": "pinned"},
            error_text("buffers", "pinned", "one of default, registered, symmetric"),
        ),
        (
            {"buffer_reuse": "none"},
            error_text("buffer-reuse", "none", "one of same, rotate, flush"),
        ),
        (
            {"buffer_reuse": "flush", "mode": "back-to-back"},
            error_text(
                "buffer-reuse",
                "flush with --mode back-to-back",
                "--mode synchronized. Caches are flushed between calls, while none is running.",
            ),
        ),
        (
            {"buffer_reuse": "flush", "concurrent": "matmul:1M"},
            error_text("buffer-reuse", "flush with --concurrent", "one of them"),
        ),
        (
            {"mode": "blocking", "concurrent": "matmul:1M"},
            error_text("mode", "blocking with --concurrent", "one of them"),
        ),
        (
            {"misalign_bytes": 4, "dtypes": "uint8,float64"},
            error_text(
                "misalign",
                "4 with float64",
                "a multiple of 8 bytes. A buffer begins at a whole element.",
            ),
        ),
        ({"misalign_bytes": 128}, error_text("misalign", "128", "less than 128 bytes")),
        (
            {"buffer_reuse": "rotate", "mode": "graph"},
            error_text(
                "buffer-reuse",
                "rotate with --mode graph",
                "one of them. A captured graph keeps the buffers of the call that it captured.",
            ),
        ),
        *(
            (
                {"communicator_config": text},
                error_text(
                    "communicator-config", text, "NAME=VALUE, such as cta_policy=zero,split_share=1"
                ),
            )
            for text in ("zero", "cta_policy=", "=1", "cta policy=1")
        ),
        ({"coalesce": 0}, error_text("coalesce", "0", "a whole number from 1 on")),
        (
            {"coalesce": 2, "asynchronous": True},
            error_text("coalesce", "2 with --async", "one of them"),
        ),
        ({"iters": -1}, error_text("iters", "-1", "a whole number from 0 on")),
        ({"iters": 2.5}, error_text("iters", "2.5", "a whole number from 0 on")),
        ({"iters": "many"}, error_text("iters", "many", "a whole number from 0 on")),
        ({"iters": True}, error_text("iters", "True", "a whole number from 0 on")),
        ({"warmup": -1}, error_text("warmup", "-1", "a whole number from 0 on")),
        ({"warmup": None}, error_text("warmup", None, "a whole number from 0 on")),
        ({"cold": 0}, error_text("cold", "0", "a whole number from 1 on")),
        ({"seed": -1}, error_text("seed", "-1", "a whole number from 0 on")),
        ({"precision": 0}, error_text("precision", "0.0", "above 0, at most 1e+07")),
        ({"precision": float("inf")}, error_text("precision", "inf", "above 0, at most 1e+07")),
        ({"max_time_s": -1}, error_text("max-time", "-1.0", "above 0, at most 1e+07")),
        ({"max_time_s": "soon"}, error_text("max-time", "soon", "a number")),
        ({"timeout_s": 0}, error_text("timeout", "0.0", "above 0, at most 1e+07")),
        ({"roots": -1}, error_text("root", "-1", "a whole number from 0 on")),
        ({"roots": "0,x"}, error_text("root", "x", "a whole number from 0 on")),
        ({"roots": 0.5}, error_text("root", "0.5", "a whole number from 0 on")),
        ({"roots": None}, error_text("root", None, "a whole number from 0 on")),
        ({"roots": ()}, error_text("roots", "none", "at least one")),
        ({"collectives": ()}, error_text("collectives", "none", "at least one")),
        ({"dtypes": []}, error_text("dtypes", "none", "at least one")),
        ({"ops": ()}, error_text("ops", "none", "at least one")),
    ],
)
def test_bad_field(fields, line):
    assert refusal(**fields) == line


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"collectives": "all_reduce,foo"}, error_text("collective", "foo", "one of all_reduce, ")),
        ({"collectives": ""}, error_text("collective", "an empty text", "one of all_reduce, ")),
        ({"dtypes": "float31"}, error_text("dtype", "float31", "one of float32, ")),
        ({"ops": "mean"}, error_text("op", "mean", "one of sum, ")),
        ({"sizes": "1KB"}, error_text("sizes", "1KB", "a number of bytes")),
    ],
)
def test_bad_name(fields, start):
    assert refusal(**fields).startswith(start)


SPECS = [
    Spec(),
    Spec(
        collectives="all",
        sizes="1K,25M",
        dtypes="all",
        ops="sum,max",
        roots=(0, 1),
        in_place="both",
        mode="back-to-back",
        backend="gloo",
        device="cpu",
        iters=0,
        warmup=3,
        cold=7,
        fresh_group=True,
        precision=0.01,
        max_time_s=0.5,
        check=False,
        timeout_s=10,
        order="shuffled",
        seed=9,
        splits="seed:3",
        labels={"fabric": "ib"},
    ),
    Spec(step_bytes="1K", max_bytes="5K", in_place=False),
]


@pytest.mark.parametrize("spec", SPECS)
def test_spec_round_trip(spec):
    again = Spec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.cases(2) == spec.cases(2)


def test_unknown_fields_are_ignored():
    assert Spec.from_json({"added_in_1_1": 3, "seed": 4}) == Spec(seed=4)
