"""The patterns of verification, against torch's own reductions of the stacked inputs."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch

from torchcoll.bench.verify import (
    FIRST_TURN,
    Buffers,
    Checker,
    Pattern,
    Values,
    allocate,
    move_shift,
    moved_values,
    poison_value,
    tolerance_ulp,
    turns_of,
)
from torchcoll.core.case import Case, size_case

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "float8_e4m3fn",
    "float8_e5m2",
)
FLOATS = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
RANKS = (1, 2, 3, 5, 8, 33)
OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")


def case(name: str = "all_reduce", dtype: str = "float32", op: str | None = "sum", **facts) -> Case:
    fields = dict(
        **dict(collective=name, size_bytes=4096, dtype=dtype, op=op, root=None, in_place=False),
        **dict(mode="synchronized", backend="gloo", device="cpu"),
    )
    return Case(**(fields | facts))


def held(asked: Case, ranks: int, turn: int = FIRST_TURN, elements: int = 400) -> torch.Tensor:
    """[rank][element]: what the ranks put in, in the type itself."""
    kind = getattr(torch, asked.dtype)
    values = Values(torch, asked, ranks, turn)
    return torch.stack([values.input(rank)[:elements].to(kind) for rank in range(ranks)])


def result(asked: Case, ranks: int, turn: int = FIRST_TURN, elements: int = 400) -> torch.Tensor:
    return Values(torch, asked, ranks, turn).result()[:elements]


@cache
def moved_table(asked: Case) -> list[float]:
    return moved_values(torch, asked).tolist()


def moved(asked: Case, rank: int, elements: int, turn: int = FIRST_TURN) -> list[float]:
    values = moved_table(asked)
    return [values[(move_shift(rank, turn) + i) % len(values)] for i in range(elements)]


def reduced_by_torch(op: str, rows: torch.Tensor, ranks: int) -> torch.Tensor:
    """Floats in float64; integers in their own type, so wrapping round is torch's own."""
    if rows.dtype.is_floating_point:
        rows = rows.double()
    if op == "sum":
        return rows.sum(0, dtype=rows.dtype)
    if op == "prod":
        return rows.prod(0, dtype=rows.dtype)
    if op == "avg" and rows.dtype.is_floating_point:
        return rows.mean(0)
    if op == "avg":  # as NCCL: the sum, in the type, divided and cut
        return torch.div(rows.sum(0, dtype=rows.dtype).long(), ranks, rounding_mode="trunc")
    if op in ("min", "max"):
        return rows.amin(0) if op == "min" else rows.amax(0)
    bitwise = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
    total = rows[0].clone()
    for row in rows[1:]:
        total = bitwise[op](total, row)
    return total


def reductions(op: str) -> list[Case]:
    dtypes = INTEGERS if op in ("band", "bor", "bxor") else DTYPES
    return [case(dtype=dtype, op=op) for dtype in dtypes]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("op", OPS)
def test_reductions(op, ranks):
    """What is expected is what torch makes of the inputs, and no rank's own input: max and min need
    the second call for the rank that has the result in the first.
    """
    for asked in reductions(op):
        kind = getattr(torch, asked.dtype)
        assert len(turns_of(asked)) == (2 if op in ("min", "max") else 1)
        untouched = torch.ones(ranks, 400, dtype=torch.bool)
        for turn in turns_of(asked):
            rows, expected = held(asked, ranks, turn), result(asked, ranks, turn)
            got = reduced_by_torch(op, rows, ranks)
            if got.dtype != torch.float64:
                expected = expected.to(kind)
                assert torch.equal(got.to(kind), expected), asked
            elif op == "avg":
                assert torch.allclose(got, expected, rtol=0, atol=1e-15), asked
            else:
                assert torch.equal(expected.to(kind).double(), got), (asked, "is not exact")
            untouched &= rows == expected.to(kind)
        assert ranks == 1 or not untouched.any(), asked


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("op", ["sum", "prod", "avg", "bxor"])
def test_no_contribution_is_void(op, ranks):
    """Without any rank, or with any twice, something else comes out at every place. An integer avg
    cuts what is left of a doubled one, but where it is the large one.
    """
    for asked in reductions(op):
        if op == "avg" and asked.dtype in FLOATS and tolerance_ulp(asked, ranks):
            continue  # within what rounding may do, in the smallest types: see below
        rows = held(asked, ranks)
        right = reduced_by_torch(op, rows, ranks)
        for rank in range(ranks):
            others = torch.cat([rows[:rank], rows[rank + 1 :]])
            if op == "avg" and asked.dtype in FLOATS:
                lacking = others.double().sum(0) / ranks
                doubled = (others.double().sum(0) + 2 * rows[rank].double()) / ranks
            else:
                lacking = reduced_by_torch(op, others, ranks)
                doubled = reduced_by_torch(op, torch.cat([rows, rows[rank : rank + 1]]), ranks)
            assert not (lacking == right).any(), (asked, rank)
            cut = op == "avg" and asked.dtype in INTEGERS
            assert (doubled != right).any() if cut else not (doubled == right).any(), (asked, rank)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 9])
@pytest.mark.parametrize("op", ["min", "max", "band", "bor"])
def test_every_contribution_counts_somewhere(op, ranks):
    for asked in reductions(op):
        rows = held(asked, ranks)
        right = reduced_by_torch(op, rows, ranks)
        for rank in range(ranks):
            lacking = reduced_by_torch(op, torch.cat([rows[:rank], rows[rank + 1 :]]), ranks)
            assert (lacking != right).any(), (asked, rank)


@pytest.mark.parametrize("ranks", [3, 5, 6])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_averages_without_a_rank_are_beyond_the_allowance(dtype, ranks):
    asked = case(dtype=dtype, op="avg")
    for rank in range(ranks):
        for times in (0, 2):
            checker, buffers = checker_of(asked, ranks, 0)
            rows = held(asked, ranks, elements=len(buffers.recv)).double()
            checker.prepare()
            buffers.recv.copy_((rows.sum(0) + (times - 1) * rows[rank]) / ranks)
            assert checker.count_wrong() == (len(buffers.recv), len(buffers.recv)), (rank, times)


def test_the_largest_jobs():
    """sum of inputs of 1 to 5 passed bf16's last exact integer at 64 ranks."""
    ranks = 300
    for op in ("sum", "prod", "max", "bor", "bxor"):
        for dtype in ("bfloat16",) if op in ("sum", "prod", "max") else ("int8",):
            asked = case(dtype=dtype, op=op)
            rows = held(asked, ranks, elements=60)
            expected = result(asked, ranks, elements=60).to(rows.dtype)
            got = reduced_by_torch(op, rows, ranks)
            assert torch.equal(got.double(), expected.double()), asked
            others = rows.double() == expected.double()
            assert op == "max" or not others.any(), asked


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_every_partial_result_is_exact(dtype, op):
    """However a backend orders the ranks: neighbours first, a ring from any rank, halves."""
    kind = getattr(torch, dtype)
    for ranks in RANKS:
        rows = held(case(dtype=dtype, op=op), ranks, elements=300).double()
        orders = [list(range(ranks)), list(range(ranks))[::-1]]
        orders += [[(start + k) % ranks for k in range(ranks)] for start in (1, 2)]
        for order in orders:
            total = rows[order[0]]
            for rank in order[1:]:
                total = {
                    **{"sum": total + rows[rank], "prod": total * rows[rank]},
                    **{"min": total.minimum(rows[rank]), "max": total.maximum(rows[rank])},
                }[op]
                assert torch.equal(total.to(kind).double(), total), (ranks, order)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [None, "sum", "prod", "min", "bxor"])
def test_inputs_are_exact(dtype, op):
    if op == "bxor" and dtype in FLOATS:
        pytest.skip("no bits of floats")
    asked = case("all_gather", dtype, op)
    values = Values(torch, asked, 5).input(3) if op else moved_values(torch, asked)
    kept = values.to(getattr(torch, dtype)).to(values.dtype)
    if dtype == "uint8" and op == "sum":  # -1 wraps round to 255
        values = values % 256
    if dtype in INTEGERS and op == "prod":
        return  # 1/3 modulo 256
    assert torch.equal(kept, values)
    assert not (values == 0).any(), "the sign of 0 could be lost unseen"


def test_each_call_has_other_values():
    """What an earlier call left is no answer; nor in the second of two checks."""
    for op in ("sum", "prod", "min", "max", "avg", "bxor"):
        for asked in reductions(op):
            for ranks in (2, 3):
                kept = [result(asked, ranks, turn) for turn in (0, *turns_of(asked))]
                for one, other in itertools.combinations(kept, 2):
                    # Of bxor's values there are 32.
                    most = 60 if op == "bxor" else 0
                    assert int((one == other).sum()) <= most, (asked, ranks)


def test_moves_differ_in_places_ranks_and_calls():
    for dtype, kinds in (("float32", 65521), ("bfloat16", 510), ("int8", 252), ("uint8", 253)):
        values = moved_values(torch, case("all_gather", dtype, None)).tolist()
        # Cubes modulo a prime of the form 3k + 1: every third number, and 0.
        assert len(values) == 65521 and len(set(values)) == (21841 if kinds > 65000 else kinds)


def test_tolerance():
    """One ulp a rank for averages of floats, which a backend may divide before adding; a division
    by a power of two is exact."""
    assert tolerance_ulp(case(op="avg"), 6) == 6
    assert tolerance_ulp(case(op="avg"), 8) == 0
    assert tolerance_ulp(case(op="sum"), 6) == 0
    assert tolerance_ulp(case(op="avg", dtype="int32"), 6) == 0


def checker_of(asked: Case, ranks: int, rank: int) -> tuple[Checker, Buffers]:
    sizing = size_case(asked, ranks)
    buffers = allocate(torch, sizing, rank, "cpu")
    return Checker(torch, sizing, rank, buffers), buffers


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("ranks", [2, 3, 5, 7, 64])
def test_averages_divided_first_or_last(dtype, ranks):
    """nccl multiplies by 1 / n before it adds; both are right, in the type's own arithmetic."""
    asked = case(dtype=dtype, op="avg")
    kind = getattr(torch, dtype)
    checker, buffers = checker_of(asked, ranks, 0)
    count = len(buffers.recv)
    rows = held(asked, ranks, elements=count)
    first = torch.zeros(count, dtype=kind)
    for row in rows:
        first += row * torch.tensor(1 / ranks, dtype=kind)
    last = (rows.sum(0, dtype=torch.float64) / ranks).to(kind)
    for result in (first, last):
        checker.prepare()
        buffers.recv.copy_(result)
        assert checker.count_wrong() == (count, 0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_average_that_was_only_summed_is_wrong(dtype):
    """The tolerance does not cover it."""
    asked = case(dtype=dtype, op="avg")
    for ranks in (2, 64):
        checker, buffers = checker_of(asked, ranks, 0)
        rows = held(asked, ranks, elements=len(buffers.recv))
        checker.prepare()
        buffers.recv.copy_(rows.double().sum(0))
        checked, wrong = checker.count_wrong()
        assert wrong == checked


def test_chunks(monkeypatch):
    """Comparison in chunks that divide nothing evenly finds the same elements."""
    from torchcoll.bench import verify

    asked = case("all_gather", op=None, size_bytes=300_000)
    checker, buffers = checker_of(asked, 3, 1)
    checker.prepare()
    for rank in range(3):
        values = torch.tensor(moved(asked, rank, 25_000), dtype=torch.float32)
        buffers.recv[rank * 25_000 : (rank + 1) * 25_000] = values
    for place in (0, 24_999, 25_000, 40_000, 74_999):
        buffers.recv[place] += 1
    for chunk in (1, 4096, 30_001, 1 << 30):
        monkeypatch.setattr(verify, "_CHUNK_ELEMENTS", chunk)
        assert checker.count_wrong() == (75_000, 5)


@pytest.mark.parametrize("place", [0, 8185, 8186, 40_000, 74_999])
@pytest.mark.parametrize("chunk", [1, 4096, 30_001, 1 << 30])
def test_the_first_wrong_element(monkeypatch, place, chunk):
    """In buffers of many rows of 8186 elements (2 periods of 4093), and in less than a row."""
    from torchcoll.bench import verify

    monkeypatch.setattr(verify, "_CHUNK_ELEMENTS", chunk)
    checker, buffers = checker_of(case(dtype="int32", size_bytes=300_000), 3, 1)
    checker.prepare()
    rows = held(case(dtype="int32"), 3, elements=4093)
    buffers.recv.copy_(rows.sum(0, dtype=torch.int32).repeat(19)[:75_000])
    assert checker.first_wrong() is None
    right = int(buffers.recv[place])
    buffers.recv[place] += 1000
    buffers.recv[74_999] += place < 74_999
    assert checker.first_wrong() == (place, str(right + 1000), str(right))


def test_segments_begin_where_the_source_was():
    """reduce_scatter, rank 2 of 3: the reduction of everyone's third block."""
    asked = case("reduce_scatter", "int32", "max", size_bytes=12_000)
    checker, buffers = checker_of(asked, 3, 2)
    checker.prepare()
    whole = held(asked, 3, elements=3000).amax(0)
    buffers.recv.copy_(whole[2000:])
    assert checker.count_wrong() == (1000, 0)
    buffers.recv.copy_(whole[1000:2000])
    assert checker.count_wrong()[1] > 900


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_no_right_answer(dtype):
    """Unsigned sums of -2 wrap round to where the poison of other cases is."""
    kind = getattr(torch, dtype)
    answers = [moved_values(torch, case("all_gather", dtype, None))]
    for op in OPS[:5] if dtype in FLOATS else OPS:
        answers += [result(case(dtype=dtype, op=op), ranks) for ranks in (2, 3, 8, 40)]
    for right in answers:
        buffer = torch.empty(1, dtype=kind)
        buffer.fill_(poison_value(torch, kind, right.to(kind)))
        assert not (right.to(kind).double() == buffer.double()).any()
    if dtype in FLOATS:
        assert buffer.double().isnan()


def test_inputs_that_changed_are_counted():
    checker, buffers = checker_of(case("all_gather", op=None), 4, 2)
    checker.prepare()
    assert checker.count_changed() == 0
    buffers.send[5], buffers.send[9] = 0, float("nan")
    assert checker.count_changed() == 2
    whole, own = checker_of(case("all_gather", op=None, in_place=True), 4, 2)
    whole.prepare()
    own.send[5] = 0
    assert whole.count_changed() == 0, "in place it is output, and counted as such"


def test_nobody_but_the_root_has_what_is_broadcast():
    asked = case("broadcast", op=None, root=1, in_place=True)
    for rank in range(3):
        checker, buffers = checker_of(asked, 3, rank)
        checker.prepare()
        assert bool(buffers.recv.isnan().all()) == (rank != 1)
        assert checker.count_wrong() == (1024, 0 if rank == 1 else 1024)


def test_prepare_poisons_what_is_not_input():
    asked = case("all_gather", op=None, in_place=True)
    checker, buffers = checker_of(asked, 4, 2)
    checker.prepare()
    blocks = buffers.recv.view(4, -1)
    assert blocks[2].tolist() == moved(asked, 2, 256)
    assert blocks[[0, 1, 3]].isnan().all()
    assert buffers.send.data_ptr() == blocks[2].data_ptr()


@pytest.mark.parametrize(
    ("name", "root", "rank", "sent", "received"),
    [
        ("all_gather", None, 2, slice(512, 768), slice(0, 1024)),
        ("reduce_scatter", None, 3, slice(0, 1024), slice(768, 1024)),
        ("gather", 1, 1, slice(256, 512), slice(0, 1024)),
        ("gather", 1, 0, slice(0, 256), slice(0, 0)),
        ("scatter", 2, 2, slice(0, 1024), slice(512, 768)),
        ("scatter", 2, 3, slice(0, 0), slice(0, 256)),
        ("hypercube", None, 3, slice(768, 1024), slice(0, 1024)),
    ],
)
def test_in_place_buffers(name, root, rank, sent, received):
    """The smaller buffer is this rank's block of the larger one."""
    sizing = size_case(case(name, op=None, root=root, in_place=True), 4)
    buffers = allocate(torch, sizing, rank, "cpu")
    base = min(b.data_ptr() for b in (buffers.send, buffers.recv) if len(b))
    for buffer, place in ((buffers.send, sent), (buffers.recv, received)):
        assert len(buffer) == place.stop - place.start
        assert not len(buffer) or buffer.data_ptr() == base + 4 * place.start


@pytest.mark.parametrize("elements", [0, 1, 2, 3, 4094, 4096, 4098, 5000, 12_289])
@pytest.mark.parametrize("shift", [0, 1, 31, 4095, 10**6])
def test_a_pattern_fills_buffers_of_any_length(elements, shift):
    for values in ([-1, 0, 1], range(251), range(5003)):
        pattern = Pattern(torch, values, torch.float32, "cpu")
        buffer = torch.full((elements,), 9e9)
        pattern.fill(buffer, shift)
        period = len(values)
        assert buffer.tolist() == [values[(shift + i) % period] for i in range(elements)]


@pytest.mark.parametrize("ranks", [2, 3, 5, 6, 8, 96])
@pytest.mark.parametrize(("op", "blank"), [("sum", 0), ("avg", 0), ("prod", 1)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_blank_output_is_wrong_for_any_number_of_ranks(dtype, op, blank, ranks):
    """A table of period 3 summed to 0 over 3 and 6 ranks: then zeros were right."""
    checker, buffers = checker_of(case(op=op, dtype=dtype), ranks, 0)
    checker.prepare()
    buffers.recv.fill_(blank)
    assert checker.count_wrong() == (1024, 1024)
