from __future__ import annotations

import dataclasses
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchcoll.core.case import Case, Spec, fingerprint, size_case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError

K, M = 1024, 1024 * 1024


def case(collective="all_reduce", nbytes=1024, dtype="float32", **fields):
    entry = COLLECTIVES[collective]
    values = {
        "op": "sum" if entry.has_op else None,
        "root": 0 if entry.has_root else None,
        "in_place": entry.placements[0],
        "cadence": "isolated",
        "backend": "gloo",
        "device": "cpu",
        "splits": "seed:0" if collective == "all_to_all_v" else None,
    }
    return Case(collective, nbytes, dtype if entry.has_data else None, **{**values, **fields})


def refusal(**fields):
    with pytest.raises(UsageError) as caught:
        Spec(**fields)
    return str(caught.value)


# --- the sizes asked for -------------------------------------------------------------------


def test_default_sizes():
    assert Spec().size_list() == (
        *(8, 32, 128, 512, 2048, 8192, 32768, 131072, 524288),
        *(2097152, 8388608, 33554432, 134217728),
    )


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


def test_sizes_by_1_15():
    sizes = Spec(factor=1.15).size_list()
    # 8 x 1.15^k from bc -l, rounded; 8 x 1.15^119 = 133700486.97, 8 x 1.15^120 = 153755560.02.
    assert len(sizes) == 120
    assert sizes[:12] == (8, 9, 11, 12, 14, 16, 19, 21, 24, 28, 32, 37)
    assert sizes[-4:] == (87910240, 101096777, 116261293, 133700487)


@given(
    st.integers(1, 10**6),
    st.integers(0, 10**9),
    st.decimals("1.01", "9.99", places=2),
)
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
    assert str(caught.value) == (
        "sizes: got more than 100000 sizes, expected at most 100000. Use a larger factor or step."
    )


# --- what becomes of a size ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "nbytes", "dtype", "ranks", "count", "actual", "sent", "received"),
    [
        ("all_reduce", 1024, "float32", 2, 256, 1024, 1024, 1024),
        ("all_reduce", 1027, "float32", 2, 256, 1024, 1024, 1024),  # odd: rounded down
        ("all_reduce", 3, "float32", 2, 1, 4, 4, 4),  # at least one element
        ("all_reduce", 1000001, "int8", 3, 1000001, 1000001, 1000001, 1000001),
        ("all_gather", 1024, "float32", 2, 128, 1024, 512, 1024),
        ("all_gather", 1024, "float32", 3, 85, 1020, 340, 1020),  # 1024 // 12 = 85
        ("all_gather", 8, "float32", 3, 1, 12, 4, 12),  # grows to one element a rank
        ("reduce_scatter", 1024, "float32", 3, 85, 1020, 1020, 340),
        ("all_to_all", 1024, "float64", 5, 25, 1000, 1000, 1000),  # 1024 // 40 = 25
        ("broadcast", 1024, "bfloat16", 8, 512, 1024, 1024, 1024),
        ("reduce", 1024, "float32", 8, 256, 1024, 1024, 1024),
        ("gather", 1024, "float32", 5, 51, 1020, 204, 1020),  # 1024 // 20 = 51
        ("scatter", 1024, "float32", 5, 51, 1020, 1020, 204),
        ("sendrecv", 25 * M, "float16", 3, 13107200, 26214400, 26214400, 26214400),
        ("hypercube", 1024, "uint8", 8, 128, 1024, 128, 1024),
        ("barrier", 0, None, 8, 0, 0, 0, 0),
    ],
)
def test_counts_and_bytes(collective, nbytes, dtype, ranks, count, actual, sent, received):
    sizing = size_case(case(collective, nbytes, dtype), ranks)
    assert (sizing.count, sizing.nbytes) == (count, actual)
    assert (sizing.nbytes_in, sizing.nbytes_out) == (sent, received)


@pytest.mark.parametrize("root", [0, 1, 2])
@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_the_root_holds_all(collective, root):
    sizing = size_case(case(collective, 1200, root=root), 3)
    for rank in range(3):
        whole = 300 if rank == root else 0
        assert sizing.elements(rank) == ((100, whole) if collective == "gather" else (whole, 100))
    assert {sizing.nbytes_in, sizing.nbytes_out} == {400, 1200}
    # gather in place: the root's block lies in its output.
    held = [sizing.buffer_nbytes(rank) for rank in range(3)]
    assert held == [1600 if rank == root else 400 for rank in range(3)]
    placed = dataclasses.replace(sizing, case=case(collective, 1200, root=root, in_place=True))
    held = [placed.buffer_nbytes(rank) for rank in range(3)]
    assert held == [1200 if rank == root else 400 for rank in range(3)]


def test_all_to_all_v_by_hand():
    # Weights 1,2,4 of float32: each rank sends 7 parts, rank 2 receives 12. 480 bytes are 120
    # elements, 10 a part: rank 2 receives 120.
    sizing = size_case(case("all_to_all_v", 480, splits="1,2,4"), 3)
    assert sizing.splits == ((10, 20, 40),) * 3
    assert [sizing.elements(rank) for rank in range(3)] == [(70, 30), (70, 60), (70, 120)]
    assert (sizing.count, sizing.nbytes) == (40, 480)
    assert (sizing.nbytes_in, sizing.nbytes_out) == (280, 480)
    assert [sizing.buffer_nbytes(rank) for rank in range(3)] == [400, 520, 760]
    assert sizing.layout(1).splits == sizing.splits


def test_all_to_all_v_rounds_down():
    # 100 bytes are 25 elements: 25/12 = 2.083 a part.
    sizing = size_case(case("all_to_all_v", 100, splits="1,2,4"), 3)
    assert sizing.splits == ((2, 4, 8),) * 3
    assert (sizing.count, sizing.nbytes) == (8, 96)


@given(st.integers(1, 5000), st.integers(1, 9), st.sampled_from(["int8", "bfloat16", "float64"]))
def test_all_to_all_v_is_never_empty_and_never_larger(nbytes, ranks, dtype):
    asked = case("all_to_all_v", nbytes, dtype)
    sizing = size_case(asked, ranks)
    assert asked.itemsize <= sizing.nbytes <= max(nbytes, asked.itemsize)
    layouts = [sizing.layout(rank) for rank in range(ranks)]
    entry = COLLECTIVES["all_to_all_v"]
    assert [entry.elements(x) for x in layouts] == [sizing.elements(r) for r in range(ranks)]


# --- the cases of a Spec ---------------------------------------------------------------------


def test_default_cases():
    cases = Spec().cases(2)
    assert cases[0] == Case(
        "all_reduce", 8, "float32", "sum", None, True, "isolated", "gloo", "cpu"
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
    found = [(c.collective, c.dtype, c.op, c.root, c.in_place, c.nbytes) for c in spec.cases(2)]
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
        *("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"),
    )
    assert spec.ops == ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")


def test_sizes_that_become_equal_run_once_under_the_first_name():
    # On 1024 ranks of float32 an all_gather has at least 4 KiB: 8, 32, ..., 2K and 4K are one.
    cases = Spec(collectives="all_gather", sizes="8,32,4K,5000,8K").cases(1024)
    assert [c.nbytes for c in cases] == [8, 8192]
    cases = Spec(sizes="1K,1025,1027,1028").cases(2)
    assert [c.nbytes for c in cases] == [1024, 1028]
    # ... but not over dtypes, nor over splits of another shape
    assert len(Spec(sizes="1K,1025", dtypes="int8,float32").cases(2)) == 3


def test_only_all_to_all_v_reads_splits():
    assert Spec(splits="nonsense", sizes="8").cases(2)[0].splits is None
    spec = Spec(collectives="all_to_all_v", splits="1,3", sizes="1K")
    assert spec.cases(2)[0].splits == "1,3"
    with pytest.raises(UsageError, match=r"^splits: got 1,3, expected 3 weights, one a rank$"):
        spec.cases(3)


@pytest.mark.parametrize(
    ("device", "cadence", "expected"),
    [
        (None, None, "isolated"),
        ("cpu", None, "isolated"),
        ("cuda", None, "stream"),
        ("cuda", "isolated", "isolated"),
        ("cpu", "stream", "stream"),
    ],
)
def test_cadence_by_device(device, cadence, expected):
    assert Spec(device=device, cadence=cadence).cases(2)[0].cadence == expected


def test_shuffled_is_an_order_of_the_same_cases():
    plain = Spec(collectives="all_reduce,broadcast").cases(2)
    shuffled = Spec(collectives="all_reduce,broadcast", order="shuffled", seed=3)
    assert shuffled.cases(2) == shuffled.cases(2)
    assert shuffled.cases(2) != plain
    assert set(shuffled.cases(2)) == set(plain)
    assert dataclasses.replace(shuffled, seed=4).cases(2) != shuffled.cases(2)


def test_sizings_are_the_cases_sized():
    spec = Spec(collectives="all", sizes="1K,100K")
    for sizing in spec.sizings(5):
        alone = size_case(sizing.case, 5)
        assert (sizing.count, sizing.nbytes) == (alone.count, alone.nbytes)
        assert sizing.splits == alone.splits
    assert tuple(s.case for s in spec.sizings(5)) == spec.cases(5)


@pytest.mark.parametrize("collective", ["broadcast", "all_reduce"])
def test_root_out_of_range(collective):
    with pytest.raises(UsageError) as caught:
        Spec(collectives=collective, roots=(0, 2)).cases(2)
    assert str(caught.value) == "root: got 2, expected 0 to 1 (2 ranks)"


# --- bad fields ------------------------------------------------------------------------------

SIZES = "a number of bytes with an optional K, M, G or T (binary), such as 8, 1K, 25M or 1.5G"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"min_bytes": "x"}, f"min-bytes: got x, expected {SIZES}"),
        ({"max_bytes": ""}, f"max-bytes: got an empty text, expected {SIZES}"),
        ({"step_bytes": "0x10"}, f"step-bytes: got 0x10, expected {SIZES}"),
        ({"sizes": ""}, f"sizes: got an empty text, expected {SIZES}"),
        ({"sizes": "1K,,2K"}, f"sizes: got an empty text, expected {SIZES}"),
        ({"sizes": "1K,0"}, "sizes: got 0, expected at least 1 byte"),
        ({"min_bytes": 0}, "min-bytes: got 0, expected at least 1 byte"),
        (
            {"min_bytes": "1M", "max_bytes": "1K"},
            "min-bytes: got 1048576, expected at most max-bytes (1024)",
        ),
        ({"step_bytes": 0}, "step-bytes: got 0, expected at least 1 byte"),
        ({"factor": 1}, "factor: got 1.0, expected a number above 1"),
        ({"factor": -2}, "factor: got -2.0, expected a number above 1"),
        ({"factor": float("inf")}, "factor: got inf, expected a number above 1"),
        ({"factor": float("nan")}, "factor: got nan, expected a number"),
        ({"factor": "x"}, "factor: got x, expected a number"),
        ({"factor": None}, "factor: expected a number"),
        (
            {"in_place": "maybe"},
            "in-place: got maybe, expected one of True, False, both",
        ),
        ({"cadence": "fast"}, "cadence: got fast, expected one of isolated, stream, graph"),
        (
            {"order": "random"},
            "order: got random, expected one of size, shuffled, interleaved",
        ),
        ({"init": "now"}, "init: got now, expected one of lazy, eager"),
        (
            {"buffers": "pinned"},
            "buffers: got pinned, expected one of default, registered, symmetric",
        ),
        ({"coalesce": 0}, "coalesce: got 0, expected a whole number from 1 on"),
        (
            {"coalesce": 2, "asynchronous": True},
            "coalesce: got 2 with --async, expected one of them",
        ),
        ({"iters": -1}, "iters: got -1, expected a whole number from 0 on"),
        ({"iters": 2.5}, "iters: got 2.5, expected a whole number from 0 on"),
        ({"iters": "many"}, "iters: got many, expected a whole number from 0 on"),
        ({"iters": True}, "iters: got True, expected a whole number from 0 on"),
        ({"warmup": -1}, "warmup: got -1, expected a whole number from 0 on"),
        ({"warmup": None}, "warmup: expected a whole number from 0 on"),
        ({"cold": 0}, "cold: got 0, expected a whole number from 1 on"),
        ({"seed": -1}, "seed: got -1, expected a whole number from 0 on"),
        ({"precision": 0}, "precision: got 0.0, expected above 0, at most 1e+07"),
        ({"precision": float("inf")}, "precision: got inf, expected above 0, at most 1e+07"),
        ({"max_time_s": -1}, "max-time: got -1.0, expected above 0, at most 1e+07"),
        ({"max_time_s": "soon"}, "max-time: got soon, expected a number"),
        ({"timeout_s": 0}, "timeout: got 0.0, expected above 0, at most 1e+07"),
        ({"roots": -1}, "root: got -1, expected a whole number from 0 on"),
        ({"roots": "0,x"}, "root: got x, expected a whole number from 0 on"),
        ({"roots": 0.5}, "root: got 0.5, expected a whole number from 0 on"),
        ({"roots": None}, "root: expected a whole number from 0 on"),
        ({"roots": ()}, "roots: got none, expected at least one"),
        ({"collectives": ()}, "collectives: got none, expected at least one"),
        ({"dtypes": []}, "dtypes: got none, expected at least one"),
        ({"ops": ()}, "ops: got none, expected at least one"),
    ],
)
def test_bad_field(fields, line):
    assert refusal(**fields) == line


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"collectives": "all_reduce,foo"}, "collective: got foo, expected one of all_reduce, "),
        ({"collectives": ""}, "collective: got an empty text, expected one of all_reduce, "),
        ({"dtypes": "float31"}, "dtype: got float31, expected one of float32, "),
        ({"ops": "mean"}, "op: got mean, expected one of sum, "),
        ({"sizes": "1KB"}, "sizes: got 1KB, expected a number of bytes"),
    ],
)
def test_bad_name(fields, start):
    assert refusal(**fields).startswith(start)


def test_numbers_may_be_texts():
    """The fields are the flags; what is kept is a number."""
    spec = Spec(factor="1.15", iters="20", warmup="2", cold="4", precision="0.1", roots="0,1")
    assert spec == Spec(factor=1.15, iters=20, warmup=2, cold=4, precision=0.1, roots=(0, 1))
    assert type(Spec(iters=20.0).iters) is int
    assert Spec(roots=3).roots == (3,)


# --- JSON and fingerprints -------------------------------------------------------------------

SPECS = [
    Spec(),
    Spec(
        collectives="all",
        sizes="1K,25M",
        dtypes="all",
        ops="sum,max",
        roots=(0, 1),
        in_place="both",
        cadence="stream",
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
    one = case()
    assert Case.from_json({**one.to_json(), "added_in_1_1": 3}) == one


@pytest.mark.parametrize("one", Spec(collectives="all", sizes="1K").cases(4))
def test_case_round_trip(one):
    again = Case.from_json(json.loads(json.dumps(one.to_json())))
    assert again == one
    assert hash(again) == hash(one)


@pytest.mark.parametrize(
    "broken",
    [
        {"nbytes": "8"},
        {"nbytes": None},
        {"nbytes": True},
        {"nbytes": []},
        {"collective": "all_new"},
        {"collective": None},
        {"collective": []},
        {"dtype": 32},
        {"root": "0"},
        {"in_place": 1},
        {"backend": None},
        {"splits": ["1"]},
    ],
)
def test_a_case_that_cannot_be_is_refused_where_it_is_read(broken):
    with pytest.raises((TypeError, ValueError)):
        Case.from_json({**case().to_json(), **broken})


def test_fingerprints_differ_with_every_field():
    one = case("all_to_all_v")
    others = {
        "collective": "all_reduce",
        "nbytes": 1025,
        "dtype": "int8",
        "op": "max",
        "root": 1,
        "in_place": True,
        "cadence": "stream",
        "backend": "ccl",
        "device": "cuda",
        "splits": "seed:1",
        "group": "mod:2",
        "buffers": "registered",
        "asynchronous": True,
        "coalesce": 4,
        "rehearsal": True,
    }
    assert set(others) == {f.name for f in dataclasses.fields(Case)}
    prints = {
        fingerprint(dataclasses.replace(one, **{name: value}).to_json())
        for name, value in others.items()
    }
    assert len(prints) == len(others)
    assert fingerprint(one.to_json()) not in prints


def test_fingerprint_is_the_same_on_every_rank():
    # sha256 of '{"a":1,"b":[2,"x"]}' by sha256sum, its first 16 digits.
    assert fingerprint({"b": (2, "x"), "a": 1}) == "454597f51f0e5988"


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (case(), "all_reduce 1K float32 sum on gloo"),
        (case("broadcast", 25 * M, "int8", root=3), "broadcast 25M int8 root 3 on gloo"),
        (case("barrier", 0), "barrier on gloo"),
        (case("all_to_all_v", 1000, backend="ccl"), "all_to_all_v 1000 float32 on ccl"),
    ],
)
def test_describe(one, text):
    assert one.describe() == text


def test_backends_take_turns_over_all_points_not_only_over_sizes():
    spec = Spec(sizes="64K", dtypes="float32,float16,int32", backend="gloo,ccl")
    order = [(case.dtype, case.backend) for case in spec.cases(2)]
    assert order == [
        *(("float32", "gloo"), ("float32", "ccl")),
        *(("float16", "ccl"), ("float16", "gloo")),
        *(("int32", "gloo"), ("int32", "ccl")),
    ]
