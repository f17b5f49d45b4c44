"""The patterns of verification, against torch's own reductions of the stacked inputs."""

from __future__ import annotations

import itertools

import pytest
import torch

from torchcoll.bench.verify import (
    Buffers,
    Checker,
    Pattern,
    allocate,
    input_shift,
    input_values,
    poison,
    reduced_values,
    tolerance_ulp,
)
from torchcoll.core.case import Case, size_case

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64"),
    *("float8_e4m3fn", "float8_e5m2"),
)
FLOATS = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
RANKS = (1, 2, 3, 5, 8, 64)


def case(name: str = "all_reduce", dtype: str = "float32", op: str | None = "sum", **facts) -> Case:
    fields = dict(
        **dict(collective=name, nbytes=4096, dtype=dtype, op=op, root=None, in_place=False),
        **dict(cadence="isolated", backend="gloo", device="cpu"),
    )
    return Case(**(fields | facts))


def inputs(asked: Case, ranks: int, elements: int) -> list[list[float]]:
    """Element i of rank r, by the rule that input_values states, in Python's numbers."""
    values = input_values(asked)
    shifts = [input_shift(asked, rank) for rank in range(ranks)]
    return [[values[(shift + i) % len(values)] for i in range(elements)] for shift in shifts]


def reduced_by_torch(asked: Case, rows: list[list[float]], work: torch.dtype) -> torch.Tensor:
    stacked = torch.tensor(rows, dtype=work)
    if asked.op == "sum":
        return stacked.sum(0, dtype=work)
    if asked.op == "prod":
        return stacked.prod(0, dtype=work)
    if asked.op == "avg":
        return stacked.to(torch.float64).mean(0)
    if asked.op == "min":
        return stacked.amin(0)
    if asked.op == "max":
        return stacked.amax(0)
    bitwise = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
    total = stacked[0].clone()
    for row in stacked[1:]:
        total = bitwise[asked.op](total, row)
    return total


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg", "band", "bor", "bxor"])
def test_reductions(op, ranks):
    """Integers are reduced by torch in their own type, so wrapping round is its own."""
    for dtype in FLOATS if op == "avg" else DTYPES:
        if op.startswith("b") and dtype in FLOATS:
            continue
        asked = case(dtype=dtype, op=op)
        expected = reduced_values(asked, ranks)
        rows = inputs(asked, ranks, 3 * len(expected))
        work = torch.float64 if dtype in FLOATS else getattr(torch, dtype)
        got = reduced_by_torch(asked, rows, work)
        wanted = torch.tensor(expected * 3, dtype=got.dtype)
        assert torch.equal(got, wanted) or op == "avg", (dtype, op, ranks)
        assert torch.allclose(got.double(), wanted.double(), rtol=0, atol=1e-15), (dtype, op)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_every_partial_result_is_exact(dtype, op):
    """However a backend orders the ranks: neighbours first, a ring from any rank, halves."""
    kind = getattr(torch, dtype)
    for ranks in RANKS:
        asked = case(dtype=dtype, op=op)
        rows = torch.tensor(inputs(asked, ranks, 300), dtype=torch.float64)
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
    values = list(input_values(case("all_gather", dtype, op)))
    wide = torch.float64 if dtype in FLOATS else torch.int64
    held = torch.tensor(values, dtype=wide).to(getattr(torch, dtype)).to(wide)
    assert held.tolist() == values


def test_sums_of_ranks_stay_small_and_do_not_vanish():
    """Steps of -1, 0, 1 whose running sum stays within 2, so that any ranks in a row sum to at most
    4; over a whole period they sum to 1."""
    steps = list(input_values(case(op="sum")))
    assert set(steps) == {-1, 0, 1} and len(steps) == 251
    heights = list(itertools.accumulate(steps))
    assert (min(heights), max(heights), heights[-1]) == (-2, 2, 1)
    assert list(input_values(case(op="prod"))) == [2.0**step for step in steps]
    assert inputs(case(op="sum"), 3, 2)[2] == [steps[2], steps[3]]
    for ranks in (2, 3, 6, 8, 251, 502):
        assert any(reduced_values(case(op="sum"), ranks)), ranks


def test_moves_count_the_elements_where_the_type_can():
    gathered = inputs(case("all_gather", op=None), 2, 70_000)
    assert gathered[0][:3] == [0, 1, 2]
    assert gathered[1][:3] == [31, 32, 33]
    assert gathered[0][65520:65523] == [65520, 0, 1]  # 65521 is prime
    for dtype, largest in (("bfloat16", 256), ("int8", 125), ("uint8", 253), ("float8_e5m2", 8)):
        values = input_values(case("all_gather", dtype, None))
        assert len(values) == 65521 and (min(values), max(values)) == (0, largest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ranks_and_places_differ(dtype):
    """No two of 64 ranks send the same, and a shift by a power of two or by a period shows."""
    rows = inputs(case("all_gather", dtype, None), 64, 512)
    assert len({tuple(row) for row in rows}) == 64
    for shift in (1, 2, 3, 4, 7, 8, 13, 16, 32, 64, 128, 251, 256):
        pairs = list(zip(rows[0], rows[0][shift:], strict=False))
        # Of the 9 values of float8_e5m2 one in nine falls on itself.
        assert sum(a != b for a, b in pairs) > 0.8 * len(pairs), shift


def test_tolerance():
    """One ulp a rank for averages of floats, which a backend may divide before adding; a division
    by a power of two is exact."""
    assert tolerance_ulp(case(op="avg"), 6) == 6
    assert tolerance_ulp(case(op="avg"), 8) == 0
    assert tolerance_ulp(case(op="sum"), 6) == 0
    assert tolerance_ulp(case(op="avg", dtype="int32"), 6) == 0


# -- the checker on buffers ------------------------------------------------------------------------


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
    rows = torch.tensor(inputs(asked, ranks, count), dtype=kind)
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
    """64 ranks: sums of -1, 0 and 1 by third; the tolerance does not cover them."""
    asked = case(dtype=dtype, op="avg")
    for ranks in (2, 64):
        checker, buffers = checker_of(asked, ranks, 0)
        rows = torch.tensor(inputs(asked, ranks, len(buffers.recv)), dtype=torch.float64)
        checker.prepare()
        buffers.recv.copy_(rows.sum(0))
        checked, wrong = checker.count_wrong()
        assert wrong >= checked // 3


def test_chunks(monkeypatch):
    """Comparison in chunks that divide nothing evenly finds the same elements."""
    from torchcoll.bench import verify

    asked = case("all_gather", op=None, nbytes=300_000)
    checker, buffers = checker_of(asked, 3, 1)
    for rank in range(3):
        values = torch.tensor(inputs(asked, 3, 25_000)[rank], dtype=torch.float32)
        buffers.recv[rank * 25_000 : (rank + 1) * 25_000] = values
    for place in (0, 24_999, 25_000, 40_000, 74_999):
        buffers.recv[place] += 1
    for chunk in (1, 4096, 30_001, 1 << 30):
        monkeypatch.setattr(verify, "_CHUNK_ELEMENTS", chunk)
        assert checker.count_wrong() == (75_000, 5)


def test_segments_begin_where_the_source_was():
    """reduce_scatter, rank 2 of 3: the reduction of everyone's third block."""
    asked = case("reduce_scatter", "int32", "max", nbytes=12_000)
    checker, buffers = checker_of(asked, 3, 2)
    whole = torch.tensor(inputs(asked, 3, 3000), dtype=torch.int32).amax(0)
    buffers.recv.copy_(whole[2000:])
    assert checker.count_wrong() == (1000, 0)
    buffers.recv.copy_(whole[1000:2000])
    assert checker.count_wrong()[1] > 900


def test_only_the_root_is_checked():
    for name, op in (("reduce", "sum"), ("gather", None)):
        checker, _ = checker_of(case(name, op=op, root=1), 3, 0)
        checker.prepare()
        assert checker.count_wrong() == (0, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_no_right_answer(dtype):
    """No answer of moves, nor of any reduction over 8 ranks whose result stays near the values."""
    kind = getattr(torch, dtype)
    buffer = torch.empty(4, dtype=kind)
    poison(torch, buffer)
    held = buffer.double()
    answers = set(input_values(case("all_gather", dtype, None)))
    for op in ("sum", "min", "max"):
        answers |= set(reduced_values(case(dtype=dtype, op=op), 8))
    assert not any(value in answers for value in held.tolist())


def test_refill_restores_the_input():
    asked = case("all_reduce", op="sum", in_place=True)
    checker, buffers = checker_of(asked, 2, 1)
    buffers.send.fill_(float("inf"))
    checker.refill()
    assert buffers.send.tolist() == inputs(asked, 2, 1024)[1]


def test_prepare_poisons_what_is_not_input():
    asked = case("all_gather", op=None, in_place=True)
    checker, buffers = checker_of(asked, 4, 2)
    checker.prepare()
    blocks = buffers.recv.view(4, -1)
    assert blocks[2].tolist() == inputs(asked, 4, 256)[2]
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
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_blank_output_is_wrong_for_any_number_of_ranks(dtype, op, blank, ranks):
    """A table of period 3 summed to 0 over 3 and 6 ranks: then zeros were right."""
    checker, buffers = checker_of(case(op=op, dtype=dtype), ranks, 0)
    buffers.recv.fill_(blank)
    assert checker.count_wrong()[1] > 0


def test_averages_of_many_ranks_that_are_blank_are_wrong():
    for dtype, ranks in (("bfloat16", 128), ("float16", 1024)):
        checker, buffers = checker_of(case(op="avg", dtype=dtype), ranks, 0)
        buffers.recv.zero_()
        assert checker.count_wrong()[1] > 0


def test_the_block_of_another_rank_is_wrong():
    """300 elements a block: a multiple of 3."""
    asked = case("reduce_scatter", nbytes=4 * 4 * 300)
    checker, buffers = checker_of(asked, 4, 2)
    row = reduced_values(asked, 4)
    buffers.recv.copy_(torch.tensor([row[i % len(row)] for i in range(300)]))  # block 0
    assert checker.count_wrong()[1] > 100
