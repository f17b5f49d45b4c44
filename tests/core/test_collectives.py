"""The table against a simulation of each collective on lists, written without the table."""

import random
from functools import partial
from types import SimpleNamespace

import pytest
from error_form import error_text

from torchcoll.core.collectives import COLLECTIVES, OPS, Layout, find_collective, find_op, uneven
from torchcoll.core.errors import UsageError
from torchcoll.core.splits import Division, Weights

RANKS = (1, 2, 3, 5, 8)
COUNT = 3


def chunk(values, i, n):
    """The i-th of n equal parts."""
    size = len(values) // n
    return values[i * size : (i + 1) * size]


def total(inputs):
    return [sum(column) for column in zip(*inputs, strict=True)]


def joined(parts):
    return [value for part in parts for value in part]


# MPI's definitions: inputs[rank] -> outputs[rank]; None is a buffer that nobody may look at.
SIMULATED = {
    "all_reduce": lambda inputs, root: [total(inputs) for _ in inputs],
    "all_gather": lambda inputs, root: [joined(inputs) for _ in inputs],
    "hypercube": lambda inputs, root: [joined(inputs) for _ in inputs],
    "reduce_scatter": lambda inputs, root: [
        chunk(total(inputs), rank, len(inputs)) for rank in range(len(inputs))
    ],
    "all_to_all": lambda inputs, root: [
        joined(chunk(sent, rank, len(inputs)) for sent in inputs) for rank in range(len(inputs))
    ],
    "broadcast": lambda inputs, root: [inputs[root] for _ in inputs],
    "reduce": lambda inputs, root: [
        total(inputs) if rank == root else None for rank in range(len(inputs))
    ],
    "gather": lambda inputs, root: [
        joined(inputs) if rank == root else None for rank in range(len(inputs))
    ],
    "scatter": lambda inputs, root: [
        chunk(inputs[root], rank, len(inputs)) for rank in range(len(inputs))
    ],
    "sendrecv": lambda inputs, root: [inputs[rank - 1] for rank in range(len(inputs))],
}

# What nccl-tests says that one rank holds, in counts: (in, out) for n ranks; the reference's table.
HELD = {
    "all_reduce": lambda n, at_root: (1, 1),
    "all_gather": lambda n, at_root: (1, n),
    "reduce_scatter": lambda n, at_root: (n, 1),
    "all_to_all": lambda n, at_root: (n, n),
    "broadcast": lambda n, at_root: (1, 1),
    "reduce": lambda n, at_root: (1, 1),
    "gather": lambda n, at_root: (1, n if at_root else 0),
    "scatter": lambda n, at_root: (n if at_root else 0, 1),
    "sendrecv": lambda n, at_root: (1, 1),
    "hypercube": lambda n, at_root: (1, n),
    "barrier": lambda n, at_root: (0, 0),
}


def roots(name, n):
    return range(n) if COLLECTIVES[name].has_root else (0,)


def layouts(name, n):
    """Of every rank, with every root."""
    return [Layout(rank, n, COUNT, root) for root in roots(name, n) for rank in range(n)]


def follow(entry, layout, inputs):
    """The output that the segments describe; None where they leave a gap."""
    output = [None] * entry.elements(layout)[1]
    for segment in entry.segments(layout):
        for i in range(segment.length):
            start = segment.source_offset + i
            value = (
                sum(values[start] for values in inputs)
                if segment.source is None
                else inputs[segment.source][start]
            )
            assert output[segment.offset + i] is None, "segments overlap"
            output[segment.offset + i] = value
    return output


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("name", SIMULATED)
def test_segments_are_what_the_collective_does(name, n):
    entry = COLLECTIVES[name]
    for root in roots(name, n):
        ranks = [Layout(rank, n, COUNT, root) for rank in range(n)]
        # Every element differs, so every misplaced one shows.
        inputs = [
            [1000 * (7**rank) + i for i in range(entry.elements(layout)[0])]
            for rank, layout in enumerate(ranks)
        ]
        expected = SIMULATED[name](inputs, root)
        for rank, layout in enumerate(ranks):
            if expected[rank] is None:
                assert entry.segments(layout) == []
            else:
                assert follow(entry, layout, inputs) == expected[rank]


@pytest.mark.parametrize("n", RANKS)
def test_segments_of_all_to_all_v(n):
    entry = COLLECTIVES["all_to_all_v"]
    rng = random.Random(n)
    splits = tuple(tuple(rng.randrange(4) for _ in range(n)) for _ in range(n))
    inputs = [[1000 * (7**rank) + i for i in range(sum(splits[rank]))] for rank in range(n)]
    weights = Weights(splits)  # of which each is so many elements
    # Cut every input into its pieces in order; destination d takes the d-th of each.
    pieces = []
    for values, row in zip(inputs, splits, strict=True):
        rest = list(values)
        pieces.append([[rest.pop(0) for _ in range(length)] for length in row])
    for rank in range(n):
        layout = Layout(rank, n, 0, 0, Division(weights, weights.largest))
        expected = joined(pieces[source][rank] for source in range(n))
        assert entry.elements(layout) == (len(inputs[rank]), len(expected))
        assert follow(entry, layout, inputs) == expected


# Weights 1,3,2: blocks of 1, 3 and 2 elements. In the case of two ranks, of 1 and 3.
BLOCKS = (1, 3, 2)


@pytest.mark.parametrize("n", [2, 3])
def test_segments_of_a_block_for_each_rank(n):
    blocks = BLOCKS[:n]
    weights = Weights([blocks] * n)
    ends = [sum(blocks[: rank + 1]) for rank in range(n)]
    ranks = [
        Layout(rank, n, 0, 0, COLLECTIVES["all_gather_v"].divide(weights, sum(blocks)))
        for rank in range(n)
    ]
    whole = [[1000 * (7**rank) + i for i in range(sum(blocks))] for rank in range(n)]
    own = [values[:length] for values, length in zip(whole, blocks, strict=True)]
    summed = total(whole)
    for rank, layout in enumerate(ranks):
        gather, scatter = COLLECTIVES["all_gather_v"], COLLECTIVES["reduce_scatter_v"]
        assert gather.elements(layout) == (blocks[rank], sum(blocks))
        assert scatter.elements(layout) == (sum(blocks), blocks[rank])
        assert follow(gather, layout, own) == joined(own)
        part = summed[ends[rank] - blocks[rank] : ends[rank]]
        assert follow(scatter, layout, whole) == part


@pytest.mark.parametrize(
    ("name", "sent", "received", "expected"),
    [
        # One tensor on each side is divided evenly, however much smaller the other side is.
        ("reduce_scatter", [8], [2], "reduce_scatter"),
        ("all_gather", [2], [8], "all_gather"),
        ("all_to_all", [8], [8], "all_to_all"),
        ("all_to_all", [8], [6], "all_to_all_v"),
        # A tensor for each rank.
        ("reduce_scatter", [2, 2, 2], [2], "reduce_scatter"),
        ("reduce_scatter", [1, 3, 2], [3], "reduce_scatter_v"),
        ("all_gather", [3], [1, 3, 2], "all_gather_v"),
        ("all_gather", [2], [2, 2, 2], "all_gather"),
        ("all_to_all", [2, 2], [2, 1], "all_to_all_v"),
        ("all_reduce", [1, 2], [1, 2], "all_reduce"),
        ("send", [1], [], "send"),
    ],
)
def test_uneven_calls_are_told_by_their_blocks(name, sent, received, expected):
    assert uneven(name, sent, received) == expected


def test_every_collective_is_simulated():
    uneven_ones = {name for name, entry in COLLECTIVES.items() if entry.has_splits}
    assert uneven_ones == {"all_to_all_v", "reduce_scatter_v", "all_gather_v"}
    assert set(COLLECTIVES) == {*SIMULATED, *uneven_ones, "barrier"}
    assert COLLECTIVES["barrier"].segments(Layout(0, 2, 0)) == []


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("name", HELD)
def test_what_one_rank_holds(name, n):
    entry = COLLECTIVES[name]
    for layout in layouts(name, n):
        sent, received = HELD[name](n, layout.rank == layout.root)
        assert entry.elements(layout) == (sent * COUNT, received * COUNT)


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("name", [n for n, c in COLLECTIVES.items() if True in c.placements])
def test_in_place_the_smaller_buffer_lies_in_the_larger(name, n):
    entry = COLLECTIVES[name]
    for layout in layouts(name, n):
        sent, received = entry.elements(layout)
        offset = entry.overlap(layout)
        assert offset >= 0
        assert offset + min(sent, received) <= max(sent, received)


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("name", ["all_gather", "hypercube", "gather", "scatter", "reduce_scatter"])
def test_in_place_the_own_block_is_where_it_belongs(name, n):
    """In place an element that this rank sends to itself does not move."""
    entry = COLLECTIVES[name]
    for layout in layouts(name, n):
        sent, received = entry.elements(layout)
        offset = entry.overlap(layout)
        send_at, recv_at = (0, offset) if sent >= received else (offset, 0)
        for segment in entry.segments(layout):
            if segment.source in (layout.rank, None):
                assert recv_at + segment.offset == send_at + segment.source_offset


def test_placements():
    # torch has no out-of-place all_reduce, broadcast and reduce; the first is the default.
    in_place = {"all_reduce", "broadcast", "reduce"}
    both = {"all_gather", "reduce_scatter", "gather", "scatter", "hypercube"}
    assert {name for name, c in COLLECTIVES.items() if c.placements == (True,)} == in_place
    assert {name for name, c in COLLECTIVES.items() if c.placements == (False, True)} >= both
    assert {COLLECTIVES[name].placements for name in ("all_to_all", "sendrecv")} == {(False,)}


def test_roots_and_ops():
    assert {n for n, c in COLLECTIVES.items() if c.has_root} == {
        "broadcast",
        "reduce",
        "gather",
        "scatter",
    }
    assert {n for n, c in COLLECTIVES.items() if c.has_op} == {
        "all_reduce",
        "reduce_scatter",
        "reduce_scatter_v",
        "reduce",
    }
    assert {n for n, c in COLLECTIVES.items() if c.rooted_output} == {"reduce", "gather"}
    assert {n for n, c in COLLECTIVES.items() if not c.has_data} == {"barrier"}
    assert {n for n, c in COLLECTIVES.items() if c.power_of_two} == {"hypercube"}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_names_and_modules(name):
    entry = COLLECTIVES[name]
    assert entry.name == name
    assert entry.module.isidentifier()
    assert entry.module == name.replace("_", "")  # the name of nccl-tests' program
    assert find_collective(name) is entry
    for alias in entry.aliases:
        assert find_collective(alias) is entry


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        # nccl-tests' programs
        ("all_reduce_perf", "all_reduce"),
        ("all_gather_perf", "all_gather"),
        ("reduce_scatter_perf", "reduce_scatter"),
        ("alltoall_perf", "all_to_all"),
        ("alltoallv_perf", "all_to_all_v"),
        ("broadcast_perf", "broadcast"),
        ("reduce_perf", "reduce"),
        ("gather_perf", "gather"),
        ("scatter_perf", "scatter"),
        ("sendrecv_perf", "sendrecv"),
        ("hypercube_perf", "hypercube"),
        # MPI
        ("MPI_Allreduce", "all_reduce"),
        ("MPI_Allgather", "all_gather"),
        ("MPI_Reduce_scatter_block", "reduce_scatter"),
        ("MPI_Alltoall", "all_to_all"),
        ("MPI_Alltoallv", "all_to_all_v"),
        ("MPI_Bcast", "broadcast"),
        ("MPI_Reduce", "reduce"),
        ("MPI_Gather", "gather"),
        ("MPI_Scatter", "scatter"),
        ("MPI_Sendrecv", "sendrecv"),
        ("MPI_Barrier", "barrier"),
        # torch's names of functions, and NCCL's
        ("all_gather_into_tensor", "all_gather"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("all_to_all_single", "all_to_all"),
        ("AllReduce", "all_reduce"),
        ("ReduceScatter", "reduce_scatter"),
        ("all-to-all", "all_to_all"),
        (" allreduce ", "all_reduce"),
    ],
)
def test_spellings(spelling, name):
    assert find_collective(spelling).name == name


@pytest.mark.parametrize(("text", "got"), [("allreduc", "allreduc"), ("", "an empty text")])
def test_unknown_collective(text, got):
    with pytest.raises(UsageError) as caught:
        find_collective(text)
    assert str(caught.value) == (
        error_text("collective", got, f"one of {', '.join(COLLECTIVES)}")
        + (". Did you mean all_reduce?" if text else "")
    )


def test_ops():
    import torch.distributed as dist

    assert OPS == ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
    for op in OPS:
        assert find_op(op.upper()) == op
        assert hasattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper()))
    with pytest.raises(UsageError) as caught:
        find_op("mean")
    assert str(caught.value) == (
        error_text("op", "mean", "one of sum, prod, min, max, avg, band, bor, bxor")
    )


@pytest.mark.parametrize(
    ("name", "new", "old"),
    [
        ("all_gather", "all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor"),
    ],
)
def test_the_new_name_first(name, new, old):
    for has, used in (((new, old), new), ((old,), old)):
        dist = SimpleNamespace(**{function: partial(str, function) for function in has})
        call = COLLECTIVES[name].prepare(dist, Layout(0, 2, COUNT), "send", "recv", "op", "g")
        assert call.args[0] == used


@pytest.mark.parametrize("name", sorted(COLLECTIVES))
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_formula_that_the_docs_print_is_the_bus_factor(name, ranks):
    entry = COLLECTIVES[name]
    formula = entry.factor[0].replace("2 (", "2 * (")
    assert eval(formula, {"n": ranks, "__builtins__": {}}) == pytest.approx(entry.bus_factor(ranks))
