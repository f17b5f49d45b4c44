"""Every collective on real ranks: sizes, samples, verification; and every fault is found."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import ticking

from torchcoll.bench import measure
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import CaseResult

IN_PARTS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "hypercube")
# collective: placements that torch has, the default first (by hand in core/test_collectives.py).
PLACEMENTS = {name: entry.placements for name, entry in COLLECTIVES.items() if entry.has_data}

# Float32 of 1000 and 4096 bytes, divided among n: count of the call, and bytes.
WHOLE = {1000: (250, 1000), 4096: (1024, 4096)}
PARTS = {
    1: {1000: (250, 1000), 4096: (1024, 4096)},
    2: {1000: (125, 1000), 4096: (512, 4096)},
    3: {1000: (83, 996), 4096: (341, 4092)},
    4: {1000: (62, 992)},
}
# all_to_all_v: weights; for each size the largest pair, the largest sum sent and received (which
# is the size). With weights 0,1,2 the columns weigh 0, 3, 6: 250 * 2 // 6 = 83 elements, thrice.
SPLITS = {
    1: ("3", {1000: (250, 1000, 1000), 4096: (1024, 4096, 4096)}),
    2: ("1,2", {1000: (125, 748, 1000), 4096: (512, 3072, 4096)}),
    3: ("0,1,2", {1000: (83, 496, 996), 4096: (341, 2044, 4092)}),
    4: ("1,1,1,1", {1000: (62, 992, 992)}),
}
# A block for each rank, with the same weights: S and the largest block, in bytes. With 0,1,2 the
# columns weigh 0, 3, 6 of 9: 250 elements are blocks of 0, 83 and 166.
BLOCKS = {
    1: {1000: (1000, 1000), 4096: (4096, 4096)},
    2: {1000: (996, 664), 4096: (4092, 2728)},
    3: {1000: (996, 664), 4096: (4092, 2728)},
    4: {1000: (992, 248)},
}


def expected_sizes(name: str, requested: int, ranks: int) -> tuple[int, int, int, int]:
    """Count, bytes, bytes in, bytes out."""
    if name == "barrier":
        return 0, 0, 0, 0
    if name == "all_to_all_v":
        count, sent, received = SPLITS[ranks][1][requested]
        return count, received, sent, received
    if name in ("reduce_scatter_v", "all_gather_v"):
        whole, block = BLOCKS[ranks][requested]
        sides = (whole, block) if name == "reduce_scatter_v" else (block, whole)
        return block // 4, whole, *sides
    count, size_bytes = (PARTS[ranks] if name in IN_PARTS else WHOLE)[requested]
    block = size_bytes // ranks
    if name in ("all_gather", "gather", "hypercube"):
        return count, size_bytes, block, size_bytes
    if name in ("reduce_scatter", "scatter"):
        return count, size_bytes, size_bytes, block
    return count, size_bytes, size_bytes, size_bytes


def expected_status(name: str, ranks: int) -> tuple[str, str]:
    if name == "hypercube" and ranks == 3:
        return "skipped", f"hypercube needs a power of two of ranks, here {ranks}"
    if name == "sendrecv" and ranks == 1:
        return "skipped", "sendrecv needs 2 ranks or more"
    if name == "all_gather_v" and ranks in (2, 3):
        return "unsupported", "gloo has no all_gather of blocks that differ"
    return "ok", ""


def alike(rank: int) -> None:
    """As few calls as can be, where many cases are measured: all take the same, and one leads."""
    ticking()
    measure.LEAD_CALLS = 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_collective(launch, ranks):
    """All placements and sizes, divisible or not, with the last rank as root."""
    weights = SPLITS[ranks][0]
    sizes = (1000, 4096) if ranks < 4 else (1000,)  # more ranks than cores are slow
    options = f"--sizes {','.join(map(str, sizes))} --in-place both --splits {weights} -n 2 -w 1"
    measured = launch(None, f"{options} -r {ranks - 1}", ranks, setup=alike).ended(0)
    run = measured.run
    wanted = [
        (name, size, placement)
        for name, placements in PLACEMENTS.items()
        for placement in placements
        for size in sizes
    ]
    got = [(r.case.collective, r.case.size_bytes, r.case.in_place) for r in run.results]
    assert got == [*wanted, ("barrier", 0, False)]
    assert run.complete and not run.problems

    ordinal = 0
    for result in run.results:
        name = result.case.collective
        assert (result.status, result.reason) == expected_status(name, ranks), result.case
        sizes = (result.count, result.size_bytes, result.bytes_in, result.bytes_out)
        assert sizes == expected_sizes(name, result.case.size_bytes, ranks), result.case
        if result.status == "ok":
            assert result.ordinal == ordinal, result.case
            ordinal += check_samples(result, ranks)
        else:
            assert not (result.cold_ns or result.time_ns or result.verification)


def check_samples(result: CaseResult, ranks: int) -> int:
    """Samples of every rank, all alike in number; the calls that the communicator has made."""
    cold, warm, steady = result.cold_ns, result.warmup_ns, result.time_ns["host"]
    for matrix in (cold, warm, steady, result.ramp_up_ns):
        assert len(matrix) == ranks
        assert len({len(row) for row in matrix}) == 1
        assert all(type(ns) is int and ns > 0 for row in matrix for ns in row)
    assert 3 <= len(cold[0]) <= 20
    assert (len(warm[0]), len(steady[0])) == (1, 2)
    assert (result.batches, result.stop) == ([2], "count")
    calls = len(cold[0]) + 1 + len(result.ramp_up_ns[0]) + 2
    if result.case.collective == "barrier":
        assert result.verification is None
        return calls
    assert result.verification.wrong == 0
    assert result.verification.wrong_ranks == ()
    assert result.verification.checked == expected_checked(result)
    return calls + 1


def expected_checked(result: CaseResult) -> int:
    """Elements of all outputs together."""
    name, n, count = result.case.collective, result.ranks, result.count
    if name in ("all_gather", "all_to_all", "hypercube"):
        return n * n * count
    if name == "gather":
        return n * count
    if name == "reduce":
        return count
    if name == "all_to_all_v":  # every rank sends the same
        return n * result.bytes_in // 4
    if name == "reduce_scatter_v":
        return result.size_bytes // 4
    if name == "all_gather_v":
        return n * result.size_bytes // 4
    return n * count


# Dtype x op x collective.
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int32", "int64")
BY_NAME = ("int16", "float8_e4m3fn", "float8_e5m2")
OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
POINT_TO_POINT = ("sendrecv", "hypercube")
TWICE = ("min", "max")  # are checked by two calls


def gloo_has_avg() -> bool:
    return not torch.__version__.startswith("2.6.")


def gloo_takes(name: str, dtype: str, op: str | None) -> bool:
    """What gloo of torch 2.13 supports, measured."""
    if name == "all_gather_v":  # the blocks of the default splits differ
        return False
    if dtype in BY_NAME:
        return name in POINT_TO_POINT
    if op == "avg":
        return dtype in FLOATS
    if op in ("band", "bor", "bxor"):
        return dtype in INTEGERS
    return True


def gloo_must_take(name: str, dtype: str, op: str | None) -> bool:
    """What any torch must support."""
    return (
        name != "all_gather_v"
        and dtype in FLOATS + INTEGERS
        and op in (None, "sum", "prod", "min", "max")
    )


@pytest.mark.parametrize("alone", [True, False], ids=["all_reduce", "others"])
def test_dtypes_and_ops(launch, alone):
    """Other reductions have one operation here: test_mutations.py has the rest of them."""
    dtypes = FLOATS + INTEGERS + BY_NAME
    names = [name for name in PLACEMENTS if alone == (name == "all_reduce")]
    ops = OPS if alone else ("max",)
    options = f"--collectives {','.join(names)} --dtype {','.join(dtypes)} --op {','.join(ops)}"
    # gloo of torch 2.6 sums in reduce_scatter whatever the op is, which verification must find.
    only_sums = torch.__version__.startswith("2.6.")
    measured = launch(None, f"{options} --sizes 96 -n 0", 2, setup=alike)
    run = measured.ended(1 if only_sums and not alone else 0).run
    of_torch_2_13 = torch.__version__.startswith("2.13.")
    seen = set()
    for result in run.results:
        key = (result.case.collective, result.case.dtype, result.case.op)
        seen.add(key)
        sums = only_sums and key[0].startswith("reduce_scatter") and key[2] != "sum"
        if sums and key[1] not in BY_NAME and key[2] in ("prod", "min", "max", "avg"):
            assert result.status == "wrong", key
        elif sums and result.status == "wrong":
            assert key[1] in INTEGERS and key[2] in ("band", "bor", "bxor"), key
        elif result.status == "ok":  # sums too, where no two have a bit in common
            assert result.verification.checked > 0, key
        else:
            assert result.status == "unsupported" and result.reason, (key, result.status)
        if of_torch_2_13:
            assert (result.status == "ok") == gloo_takes(*key), (key, result.reason)
        elif gloo_must_take(*key) and not sums:
            assert result.status == "ok", (key, result.reason)
    reducing = ("all_reduce", "reduce_scatter", "reduce_scatter_v", "reduce")
    assert seen == {
        (name, dtype, op)
        for name in names
        for dtype in dtypes
        for op in (ops if name in reducing else (None,))
    }


def test_placements_that_torch_does_not_have(launch):
    """Never a copy inside the stamps; and torch has no all_to_all in place."""
    everywhere = launch(None, "--collectives all_reduce,all_gather --sizes 64 -n 2 --in-place 0")
    everywhere.ended(0)
    assert [(r.status, r.reason) for r in everywhere.run.results] == [
        ("unsupported", "torch.distributed has all_reduce in place only"),
        ("ok", ""),
    ]
    inside = launch("all_to_all", "--sizes 64 -n 2 --in-place 1").ended(1)
    assert inside.only().status == "unsupported"
    assert inside.only().reason == "torch.distributed has all_to_all out of place only"


Spoil = Callable[[str, Any, Any], None]  # collective, layout, recv: after the call


def spoil_calls(
    spoil: Spoil = lambda name, layout, recv: None, working: int | None = None
) -> Callable[[int], None]:
    """A setup that wraps every collective's call; only the first ``working`` calls do anything."""

    def wrapped(entry):
        def prepare(dist, layout, send, recv, op, group):
            call = entry.prepare(dist, layout, send, recv, op, group)
            calls = itertools.count()

            def spoilt():
                if working is None or next(calls) < working:
                    call()
                spoil(entry.name, layout, recv)

            return spoilt

        return dataclasses.replace(entry, prepare=prepare)

    def setup(rank: int) -> None:
        alike(rank)
        for name in PLACEMENTS:
            COLLECTIVES[name] = wrapped(COLLECTIVES[name])

    return setup


def flip(recv: Any, element: int) -> None:
    """The lowest bit of one element, whatever its type."""
    octets = recv.view(torch.uint8)
    octets[element * recv.element_size()] ^= 1


def bad_rank(name: str) -> int:
    return 0 if name in ("reduce", "gather") else 1  # the others receive nothing


SUITE = ",".join(name for name in PLACEMENTS if name != "all_gather_v")  # gloo has none


def test_one_wrong_element_is_found_and_counted(launch):
    """In every collective and placement, in two kinds of type, on one rank."""

    def one_bit(name, layout, recv):
        if layout.rank == bad_rank(name):
            flip(recv, len(recv) // 2)

    options = "--dtype float32,uint8 --sizes 960 --in-place both --splits 1,2 -n 1"
    measured = launch(
        None, f"--collectives {SUITE} {options}", 2, setup=spoil_calls(one_bit)
    ).ended(1)
    results = measured.run.results
    assert len(results) == 17 * 2
    # Elements of all outputs, as multiples of the 960 bytes' own.
    outputs = {"reduce_scatter": 1, "reduce_scatter_v": 1, "reduce": 1, "gather": 1, "scatter": 1}
    outputs["all_to_all_v"] = 1.5
    itemsizes = {"float32": 4, "uint8": 1}
    for result in results:
        name, case = result.case.collective, result.case
        checked = int(outputs.get(name, 2) * 960 / itemsizes[case.dtype])
        assert result.status == "wrong", case
        where = f"1 of {checked} elements wrong; first on rank {bad_rank(name)}, element "
        assert result.reason.startswith(where), case
        assert result.verification.checked == checked, case
        assert result.verification.wrong == 1, case
        assert result.verification.wrong_ranks == (bad_rank(name),), case
        assert result.time_ns["host"], "a wrong case keeps its timing"
    assert measured.errors() == [
        "torchcoll: error: 34 wrong of 34 cases. First: all_reduce 960 float32 sum on gloo: "
        "1 of 480 elements wrong; first on rank 1, element 120: -2.000000238418579 for -2.0"
    ]
    end = measured.run.end
    assert (end["status"], end["exit_code"]) == ("complete", 1)
    assert measured.stdout().count("wrong") >= 34


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_nan_is_wrong(launch, op):
    """NaN compares unequal to everything: a comparison written the other way round misses it."""
    if op == "avg" and not gloo_has_avg():
        pytest.skip("gloo of torch 2.6 has no avg")

    def nan(name, layout, recv):
        if layout.rank == 1:
            recv[3] = float("nan")

    options = f"--dtype float32,bfloat16 --op {op} --sizes 96 -n 0"
    measured = launch("all_reduce", options, 2, setup=spoil_calls(nan)).ended(1)
    wrong = 2 if op == "max" else 1  # which is checked twice
    assert [(r.status, r.verification.wrong) for r in measured.run.results] == [
        ("wrong", wrong)
    ] * 2


def test_swapped_blocks_are_wrong(launch):
    """Right values in the wrong place. Sizes where a pattern of period 2**k would be blind."""

    def swap(name, layout, recv):
        if len(recv) > layout.count:
            first, second = recv[: layout.count].clone(), recv[layout.count : 2 * layout.count]
            recv[: layout.count] = second
            recv[layout.count : 2 * layout.count] = first

    names = "all_gather,all_to_all,gather,hypercube"
    options = f"--collectives {names} --in-place both --dtype float32,uint8"
    measured = launch(None, f"{options} --sizes 1K,64K -n 0", 2, setup=spoil_calls(swap)).ended(1)
    assert len(measured.run.results) == 7 * 2 * 2
    for result in measured.run.results:
        # Both blocks come from other ranks or other places of a rank: nearly all is wrong.
        assert result.status == "wrong", result.case
        assert result.verification.wrong > 0.9 * result.verification.checked, result.case


def test_an_output_that_is_never_written_is_wrong(launch):
    """The poison is seen; in place, the input is not taken for the answer."""
    options = "--dtype float32,uint8 --sizes 960 --in-place both -n 0"
    measured = launch(
        None, f"--collectives {SUITE} {options}", 2, setup=spoil_calls(working=0)
    ).ended(1)
    assert len(measured.run.results) == 17 * 2
    for result in measured.run.results:
        assert result.status == "wrong", result.case
        if not result.case.in_place:
            assert result.verification.wrong == result.verification.checked, result.case


def test_stale_output_is_wrong(launch):
    """A call that only worked earlier: the output of the calls before is not accepted."""

    options = f"--collectives {SUITE} --sizes 960 -n 2 --cold 3"
    measured = launch(None, options, 2, setup=spoil_calls(working=3)).ended(1)
    assert {r.status for r in measured.run.results} == {"wrong"}


def test_an_element_that_nobody_reduces_is_wrong(launch):
    """The last one keeps what it was on all ranks at once: `correct` in an eighth of the places, as
    the patterns were (tests of each place: test_bench_verify.py). max and min take two calls: one
    of two ranks holds their result already.
    """

    def wrapped(entry):
        def prepare(dist, layout, send, recv, op, group):
            call = entry.prepare(dist, layout, send, recv, op, group)

            def but_for_the_last():
                before = recv[-1:].clone()
                call()
                recv[-1:] = before

            return but_for_the_last

        return dataclasses.replace(entry, prepare=prepare)

    def setup(rank):
        alike(rank)
        for name in ("all_reduce", "reduce_scatter"):
            COLLECTIVES[name] = wrapped(COLLECTIVES[name])

    ops = [op for op in OPS if op != "avg" or gloo_has_avg()]
    options = f"--collectives all_reduce,reduce_scatter --op {','.join(ops)} --in-place both"
    measured = launch(None, f"{options} -d int32,float32 --sizes 240 -n 0", 2, setup=setup)
    done = [r for r in measured.ended(1).run.results if r.status != "unsupported"]
    # 4 operations of both types (and avg of floats), 3 of integers; three placements.
    assert len(done) == 3 * (4 + 4 + 3 + ("avg" in ops))
    assert {r.status for r in done} == {"wrong"}
    for result in done:
        both = 2 if result.case.collective == "all_reduce" or result.case.op not in TWICE else 1
        assert result.verification.wrong >= both, result.case


def test_an_input_that_changes_is_wrong(launch):
    """Out of place it is the caller's; the output is right all the same."""

    def wrapped(entry):
        def prepare(dist, layout, send, recv, op, group):
            call = entry.prepare(dist, layout, send, recv, op, group)

            def call_and_scribble():
                call()
                if layout.rank == 1:
                    flip(send, 7)

            return call_and_scribble

        return dataclasses.replace(entry, prepare=prepare)

    def setup(rank):
        for name in PLACEMENTS:
            COLLECTIVES[name] = wrapped(COLLECTIVES[name])

    names = "all_gather,reduce_scatter,all_to_all,gather,sendrecv,hypercube"
    measured = launch(None, f"--collectives {names} --sizes 960 -n 0", 2, setup=setup).ended(1)
    for result in measured.run.results:
        assert (result.status, result.reason) == ("wrong", "1 elements of the input changed")
        assert result.verification.wrong_ranks == (1,)
    assert measured.stdout().count("wrong on rank 1") == 1  # equal remarks are one footnote
    assert "correct" not in measured.stdout().split("verified")[1].split("\n\n")[0]


def test_check_can_be_switched_off(launch):
    spoilt = spoil_calls(lambda name, layout, recv: recv.fill_(5))
    result = launch("all_reduce", "--sizes 96 -n 2 -c 0", 2, setup=spoilt).ended(0).only()
    assert (result.status, result.verification) == ("ok", None)
