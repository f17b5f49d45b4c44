import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchcoll.core.case import Case, fingerprint, size_case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import case_from_json
from torchcoll.core.splits import Weights

M = 1024 * 1024


def case(collective="all_reduce", size_bytes=1024, dtype="float32", **fields):
    entry = COLLECTIVES[collective]
    values = {
        "op": "sum" if entry.has_op else None,
        "root": 0 if entry.has_root else None,
        "in_place": entry.placements[0],
        "mode": "synchronized",
        "backend": "gloo",
        "device": "cpu",
        "splits": "seed:0" if collective == "all_to_all_v" else None,
    }
    return Case(collective, size_bytes, dtype if entry.has_data else None, **{**values, **fields})


@pytest.mark.parametrize(
    ("collective", "size_bytes", "dtype", "ranks", "count", "actual", "sent", "received"),
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
def test_counts_and_bytes(collective, size_bytes, dtype, ranks, count, actual, sent, received):
    sizing = size_case(case(collective, size_bytes, dtype), ranks)
    assert (sizing.count, sizing.size_bytes) == (count, actual)
    assert (sizing.bytes_in, sizing.bytes_out) == (sent, received)


@pytest.mark.parametrize("root", [0, 1, 2])
@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_the_root_holds_all(collective, root):
    sizing = size_case(case(collective, 1200, root=root), 3)
    for rank in range(3):
        whole = 300 if rank == root else 0
        assert sizing.elements(rank) == ((100, whole) if collective == "gather" else (whole, 100))
    assert {sizing.bytes_in, sizing.bytes_out} == {400, 1200}
    # gather in place: the root's block lies in its output.
    held = [sizing.buffer_bytes(rank) for rank in range(3)]
    assert held == [1600 if rank == root else 400 for rank in range(3)]
    placed = dataclasses.replace(sizing, case=case(collective, 1200, root=root, in_place=True))
    held = [placed.buffer_bytes(rank) for rank in range(3)]
    assert held == [1200 if rank == root else 400 for rank in range(3)]


@pytest.mark.parametrize("name", ["reduce_scatter_v", "all_gather_v"])
def test_a_block_for_each_rank_by_hand(name):
    # S is all blocks together: 280 bytes of float32 are 70 elements, weights 1,2,4 are blocks of
    # 10, 20 and 40. The rank with the smallest block sends, or receives, all but that: 60.
    sizing = size_case(case(name, 280, splits="1,2,4"), 3)
    assert (sizing.size_bytes, sizing.count, sizing.busiest_bytes) == (280, 40, 240)
    each = [(70, 10), (70, 20), (70, 40)]
    sides = each if name == "reduce_scatter_v" else [pair[::-1] for pair in each]
    assert [sizing.elements(rank) for rank in range(3)] == sides
    # A matrix: rank d has the sum of column d, here 1 + 2 and 3 + 6 of 12. 48 elements: 12 and 36.
    matrix = size_case(case(name, 192), 2, Weights([(1, 3), (2, 6)]))
    assert (matrix.size_bytes, matrix.busiest_bytes) == (192, 144)
    # One rank has everything: the other one receives, or sends, all of it.
    assert size_case(case(name, 40), 2, Weights([(1, 0), (1, 0)])).busiest_bytes == 40


def pairs_of(division):
    return [division.pair(source, peer) for source in range(2) for peer in range(2)]


def test_the_busiest_rank_of_all_to_all_v_by_hand():
    # 12 elements of float32 in parts of 1. Rows 1,3 and 2,6: rank 0 sends 4 and receives 3, keeps
    # 1; rank 1 sends 8 and receives 9, keeps 6. The most that crosses is 3 of 9, where half of S
    # would be 4.5.
    with_matrix = Weights([(1, 3), (2, 6)])
    sizing = size_case(case("all_to_all_v", 36), 2, with_matrix)
    assert (pairs_of(sizing.division), sizing.size_bytes) == ([1, 3, 2, 6], 36)
    assert sizing.busiest_bytes == 12
    # All that a rank has goes to the other: nearly all of S crosses.
    assert size_case(case("all_to_all_v", 40), 2, Weights([(0, 10), (1, 0)])).busiest_bytes == 40
    # Nothing crosses.
    assert size_case(case("all_to_all_v", 40), 2, Weights([(1, 0), (0, 1)])).busiest_bytes == 0
    # 4 bytes for 100 parts: the heaviest pair alone has an element, here a rank and itself.
    alone = size_case(case("all_to_all_v", 4), 2, Weights([(1, 3), (2, 94)]))
    assert (pairs_of(alone.division), alone.busiest_bytes) == ([0, 0, 0, 1], 0)
    pair = size_case(case("all_to_all_v", 4), 2, Weights([(1, 94), (2, 3)]))
    assert (pairs_of(pair.division), pair.busiest_bytes) == ([0, 1, 0, 0], 4)
    # Weights 1,2,4 on three ranks, 10 elements a part: rank 0 sends 70 and keeps 10, rank 2
    # receives 120 and keeps 40: 80 elements.
    assert size_case(case("all_to_all_v", 480, splits="1,2,4"), 3).busiest_bytes == 320
    assert size_case(case("all_to_all", 480), 3).busiest_bytes is None


def test_places_that_calls_walk_through_by_hand():
    # 1024 bytes in buffers of 10,000: nine places; the larger side is the stride on all ranks.
    for collective, sides in (("all_reduce", (2304, 2304)), ("all_gather", (2304, 2304))):
        sizing = size_case(case(collective, 1024), 4, span_bytes=10_000)
        assert (sizing.stride, sizing.slots) == (256, 9)
        assert [sizing.buffer_elements(rank) for rank in range(4)] == [sides] * 4
    # all_reduce is in place, one buffer of 9 KiB; all_gather has one to send from beside it.
    assert size_case(case("all_reduce", 1024, in_place=True), 4, span_bytes=10_000).buffer_bytes(
        0
    ) == (9216)
    assert size_case(case("all_gather", 1024), 4, span_bytes=10_000).buffer_bytes(0) == 18432
    gather = size_case(case("gather", 1024, root=1), 4, span_bytes=10_000)
    assert [gather.buffer_elements(rank) for rank in (0, 1)] == [(2304, 0), (2304, 2304)]
    # What no other place fits in keeps its own size, and so does what does not walk.
    for span in (0, 1024, 2047):
        sizing = size_case(case("all_gather", 1024), 4, span_bytes=span)
        assert (sizing.slots, sizing.buffer_elements(0)) == (1, (64, 256))


def test_places_are_aligned():
    """64K on 3 ranks are 65,532 bytes, 12 mod 16: the next place is at 65,536. 1 MiB holds 16."""
    sizing = size_case(case("all_gather", 65_536), 3, span_bytes=M)
    assert (sizing.size_bytes, sizing.stride * 4, sizing.slots) == (65_532, 65_536, 16)
    assert sizing.buffer_elements(0)[1] * 4 == M
    for dtype, size_bytes in (("int8", 1), ("float64", 8), ("bfloat16", 100)):
        small = size_case(case("all_reduce", size_bytes, dtype), 3, span_bytes=1024)
        assert (small.stride * small.case.itemsize, small.slots) == (128, 8), dtype


@given(st.integers(1, 5000), st.integers(1, 9), st.sampled_from(["int8", "bfloat16", "float64"]))
def test_all_to_all_v_is_never_empty_and_never_larger(size_bytes, ranks, dtype):
    asked = case("all_to_all_v", size_bytes, dtype)
    sizing = size_case(asked, ranks)
    assert asked.itemsize <= sizing.size_bytes <= max(size_bytes, asked.itemsize)
    layouts = [sizing.layout(rank) for rank in range(ranks)]
    entry = COLLECTIVES["all_to_all_v"]
    assert [entry.elements(x) for x in layouts] == [sizing.elements(r) for r in range(ranks)]


@pytest.mark.parametrize(
    "broken",
    [
        {"size_bytes": "8"},
        {"size_bytes": None},
        {"size_bytes": True},
        {"size_bytes": []},
        {"collective": "all_new"},
        {"collective": None},
        {"collective": []},
        {"dtype": 32},
        {"root": "0"},
        {"in_place": 1},
        {"backend": None},
        {"splits": ["1"]},
        {"buffer_reuse": 3},
        {"misalign_bytes": "4"},
        {"implementation": None},
    ],
)
def test_a_case_that_cannot_be_is_refused_where_it_is_read(broken):
    with pytest.raises((TypeError, ValueError)):
        case_from_json({**case().to_json(), **broken})


def test_fingerprints_differ_with_every_field():
    one = case("all_to_all_v")
    others = {
        "collective": "all_reduce",
        "size_bytes": 1025,
        "dtype": "int8",
        "op": "max",
        "root": 1,
        "in_place": True,
        "mode": "back-to-back",
        "backend": "ccl",
        "device": "cuda",
        "splits": "seed:1",
        "group": "mod:2",
        "buffers": "registered",
        "asynchronous": True,
        "coalesce": 4,
        "rehearsal": True,
        "buffer_reuse": "rotate",
        "implementation": "one_shot",
        "misalign_bytes": 4,
    }
    assert set(others) == {f.name for f in dataclasses.fields(Case)}
    prints = {
        fingerprint(dataclasses.replace(one, **{name: value}).to_json())
        for name, value in others.items()
    }
    assert len(prints) == len(others)
    assert fingerprint(one.to_json()) not in prints


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
