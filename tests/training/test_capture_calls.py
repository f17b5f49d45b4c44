"""Each operation that torch sends, once, with bytes by hand, as real gloo ranks recorded it."""

import pickle
import time
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from planned_models import on_ranks
from ranks import announce, await_event
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from torchcoll.core.traffic import Group, Traffic
from torchcoll.parts.training.capture import capture
from torchcoll.parts.training.decode import OPERATORS, Schema, decode

OLD = torch.__version__.startswith("2.6.")  # hides the reduction, and mostly what is asynchronous
Op = dist.ReduceOp


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype)


def rank():
    return dist.get_rank()


def empty(count):
    """So many tensors of 6 floats: 24 bytes."""
    return [torch.empty(6) for _ in range(count)]


def call(collective, bytes_in, bytes_out, dtype="float32", **fields):
    defaults = {"op": None, "root": None, "peer": None, "tensors": 1, "splits": ()}
    if collective in ("all_reduce", "reduce", "reduce_scatter", "sparse_all_reduce"):
        defaults["op"] = "sum"
    return {
        **{"collective": collective, "bytes_in": bytes_in, "bytes_out": bytes_out},
        **{"dtype": dtype, "asynchronous": False},
        **defaults,
        **fields,
    }


def later(collective, bytes_in, bytes_out, dtype="float32", **fields):
    return call(collective, bytes_in, bytes_out, dtype, asynchronous=True, **fields)


def unstated(collective, bytes_in, bytes_out, **fields):
    """torch does not say whether these are asynchronous."""
    return call(collective, bytes_in, bytes_out, asynchronous=None, **fields)


def message():
    if rank() == 0:
        dist.send(ones(6), 1)
        dist.isend(ones(3), 1, tag=7).wait()
    else:
        dist.recv(empty(1)[0], 0)
        dist.recv(torch.empty(3), tag=7)  # from any source: told afterwards


def both_ways():
    peer = 1 - rank()
    pair = [dist.P2POp(dist.isend, ones(2), peer), dist.P2POp(dist.irecv, torch.empty(2), peer)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def coalesced(asynchronous=False):
    with dist._coalescing_manager(async_ops=asynchronous) as manager:
        dist.all_reduce(ones(3))
        dist.all_reduce(ones(5))
    if asynchronous:
        manager.wait()


def coalesced_shards(call, *sizes):
    with dist._coalescing_manager():
        for size in sizes:
            call(*size)


def uneven():
    """Rank r sends r + d rows of 2 floats to rank d."""
    sizes = [rank(), rank() + 1]
    dist.all_to_all_single(torch.empty(sum(sizes), 2), ones(sum(sizes), 2), sizes, sizes)


def uneven_there():
    """What rank 0 gets is uneven, what it sends is not."""
    if rank() == 0:
        dist.all_to_all_single(torch.empty(3), ones(4), [2, 1], None)
    else:
        dist.all_to_all_single(torch.empty(3), ones(2), [2, 1], [1, 1])


def used(tensor):
    return tensor + 1  # waits


def autograd(make):
    tensor = ones(4).requires_grad_()
    used(make(tensor)).sum().backward()


def objects():
    dist.all_gather_object([None, None], {"rank": 0})
    dist.broadcast_object_list(["text"], 0)


def sparse():
    # Other places on each rank: after the call the tensor has 3.
    places = [[1 + rank(), 4]]
    dist.all_reduce(torch.sparse_coo_tensor(places, [1.0, 2.0], (10,), check_invariants=True))


def tensor_parallel():
    """The rows of the second layer are summed; the input needs no gradient."""
    mesh = init_device_mesh("cpu", (2,))
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 8))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    used(model(ones(3, 5))).sum().backward()


def unknown():
    torch.ops.c10d.torchcoll_test(ones(4), dist.group.WORLD.group_name)


OBJECT, TEXT = len(pickle.dumps({"rank": 0})), len(pickle.dumps("text"))
PAIR = (torch.empty(6), torch.ones(3)), (torch.empty(10), torch.ones(5))
SPLIT = (torch.empty(3), torch.ones(6)), (torch.empty(5), torch.ones(10))
LATE = (
    "{} calls are asynchronous: their end is recorded up to 5 ms late while Python is busy with "
    "something else (sys.getswitchinterval)"
)
# Where torch 2.6 tells what is asynchronous.
TELLS = ("broadcast", "scatter")
ONE_TENSOR = ("all_gather_into_tensor", "reduce_scatter_tensor")

# What is called, and what rank r is to have recorded: 2 ranks.
CALLS = {
    "all_reduce": (
        lambda: dist.all_reduce(ones(6, dtype=torch.float64), Op.MAX),
        lambda r: [call("all_reduce", 48, 48, "float64", op="max")],
    ),
    "asynchronous": (
        lambda: dist.all_reduce(ones(6).half(), Op.PRODUCT, async_op=True).wait(),
        lambda r: [later("all_reduce", 12, 12, "float16", op="prod")],
    ),
    "bits": (
        lambda: [dist.all_reduce(ones(2).int(), op) for op in (Op.BAND, Op.BOR, Op.BXOR, Op.MIN)],
        lambda r: [
            call("all_reduce", 8, 8, "int32", op=op) for op in ("band", "bor", "bxor", "min")
        ],
    ),
    "broadcast": (
        lambda: dist.broadcast(ones(6), 1),
        lambda r: [call("broadcast", 24, 24, root=1)],
    ),
    "reduce": (
        lambda: dist.reduce(ones(6), 1),
        lambda r: [call("reduce", 24, 24, root=1)],
    ),
    "all_gather": (
        lambda: dist.all_gather(empty(2), ones(6)),
        lambda r: [call("all_gather", 24, 48)],
    ),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(torch.empty(12), ones(6)),
        lambda r: [call("all_gather", 24, 48)],
    ),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(torch.empty(3), ones(6)),
        lambda r: [call("reduce_scatter", 24, 12)],
    ),
    "all_to_all_single": (
        lambda: dist.all_to_all_single(torch.empty(4), ones(4)),
        lambda r: [call("all_to_all", 16, 16)],
    ),
    "uneven": (
        uneven,
        lambda r: [call("all_to_all_v", 8 + 16 * r, 8 + 16 * r, splits=(8 * r, 8 * r + 8))],
    ),
    "uneven there": (
        uneven_there,
        lambda r: [call("all_to_all_v", 16 - 8 * r, 12, splits=(8 - 4 * r, 8 - 4 * r))],
    ),
    "all_to_all": (
        lambda: dist.all_to_all(empty(2), empty(2)),
        lambda r: [call("all_to_all", 48, 48)],
    ),
    "reduce_scatter": (
        lambda: dist.reduce_scatter(torch.empty(6), empty(2)),
        lambda r: [call("reduce_scatter", 48, 24)],
    ),
    "gather": (
        lambda: dist.gather(ones(6), empty(2) if rank() == 1 else None, dst=1),
        lambda r: [call("gather", 24, 48 * r, root=1)],
    ),
    "scatter": (
        lambda: dist.scatter(empty(1)[0], empty(2) if rank() == 1 else None, src=1),
        lambda r: [call("scatter", 48 * r, 24, root=1)],
    ),
    "barrier": (dist.barrier, lambda r: [call("barrier", 0, 0, None)]),
    "monitored_barrier": (
        dist.monitored_barrier,
        lambda r: [unstated("monitored_barrier", 0, 0, dtype=None)],
    ),
    "message": (
        message,
        lambda r: [
            unstated("recv" if r else "send", 24 * (1 - r), 24 * r, peer=1 - r),
            unstated("recv" if r else "send", 12 * (1 - r), 12 * r, peer=1 - r),
        ],
    ),
    "batch_isend_irecv": (
        both_ways,
        lambda r: [unstated("send", 8, 0, peer=1 - r), unstated("recv", 0, 8, peer=1 - r)],
    ),
    "coalesced": (coalesced, lambda r: [call("all_reduce", 32, 32, tensors=2)]),
    "coalesced, asynchronous": (
        lambda: coalesced(asynchronous=True),
        lambda r: [later("all_reduce", 32, 32, tensors=2)],
    ),
    "coalesced all_gather": (
        lambda: coalesced_shards(dist.all_gather_into_tensor, *PAIR),
        lambda r: [call("all_gather", 32, 64, tensors=2)],
    ),
    "coalesced reduce_scatter": (
        lambda: coalesced_shards(dist.reduce_scatter_tensor, *SPLIT),
        lambda r: [call("reduce_scatter", 64, 32, tensors=2)],
    ),
    "objects": (
        objects,
        lambda r: [
            call("all_gather", 8, 16, "int64"),
            call("all_gather", OBJECT, 2 * OBJECT, "uint8"),
            call("broadcast", 8, 8, "int64", root=0),
            call("broadcast", TEXT, TEXT, "uint8", root=0),
        ],
    ),
    "sparse": (sparse, lambda r: [call("sparse_all_reduce", 16 + 8, 16 + 8)]),
    "functional all_reduce": (
        lambda: used(functional.all_reduce(ones(4), "max", dist.group.WORLD)),
        lambda r: [later("all_reduce", 16, 16, op="max")],
    ),
    "functional broadcast": (
        lambda: used(functional.broadcast(ones(4), 1, dist.group.WORLD)),
        lambda r: [later("broadcast", 16, 16, root=1)],
    ),
    "functional coalesced": (
        lambda: used(
            functional.all_reduce_coalesced([ones(4), ones(2)], "sum", dist.group.WORLD)[0]
        ),
        lambda r: [later("all_reduce", 24, 24, tensors=2)],
    ),
    "functional reduce_scatter and its backward": (
        lambda: autograd(
            lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, dist.group.WORLD)
        ),
        lambda r: [later("reduce_scatter", 16, 8), later("all_gather", 8, 16)],
    ),
    "functional all_to_all and its backward": (
        lambda: autograd(
            lambda x: functional.all_to_all_single_autograd(x, [2, 2], [2, 2], dist.group.WORLD)
        ),
        lambda r: [later("all_to_all_v", 16, 16, splits=(8, 8))] * 2,
    ),
    "tensor parallel": (
        tensor_parallel,
        lambda r: [
            call("scatter", 80 * (1 - r), 40, root=0),  # 4 x 5 weights, by rows
            call("scatter", 16 * (1 - r), 8, root=0),
            call("scatter", 128 * (1 - r), 64, root=0),  # 8 x 4 weights, by columns
            call("broadcast", 32, 32, root=0),
            later("all_reduce", 96, 96),
        ],
    ),
    "unknown": (
        unknown,
        lambda r: [unstated("c10d::torchcoll_test", 16, 8)],
    ),
}
if OLD:  # gloo of torch 2.6 has neither
    for name in ("all_to_all", "reduce_scatter"):
        del CALLS[name]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The traffic of each, and that of all in one capture, from the files of 2 ranks."""
    folder = tmp_path_factory.mktemp("calls")

    def captured(name, what):
        with capture(folder / name):
            what()

    def everything():
        for what, _ in CALLS.values():
            what()

    warnings.simplefilter("ignore")
    library = torch.library.Library("c10d", "FRAGMENT")  # lives as long as the ranks
    library.define("torchcoll_test(Tensor x, str group_name) -> Tensor")
    library.impl("torchcoll_test", lambda x, group_name: x[:2].clone(), "CPU")
    cases = {name: lambda n=name, w=what: captured(n, w) for name, (what, _) in CALLS.items()}
    on_ranks(folder, 2, {**cases, "everything": lambda: captured("everything", everything)})
    return {name: Traffic.load(folder / name) for name in [*CALLS, "everything"]}


FIELDS = tuple(call("", 0, 0))


def recorded(traffic, rank):
    return [{name: getattr(c, name) for name in FIELDS} for c in traffic.calls[rank]]


def expected(name, rank):
    """What torch 2.6 hides is not recorded."""
    calls = CALLS[name][1](rank)
    for c in calls if OLD else ():
        c["op"] = None
        if c["collective"] not in TELLS and name not in ONE_TENSOR:
            c["asynchronous"] = None
    return calls


@pytest.mark.parametrize("name", CALLS)
def test_recorded_once_with_its_bytes(outcomes, name):
    traffic = outcomes[name]
    assert (traffic.source, traffic.ranks, traffic.problems) == ("capture", 2, [])
    for r in (0, 1):
        assert recorded(traffic, r) == expected(name, r)
    assert {c.group for calls in traffic.calls.values() for c in calls} == {"0"}
    assert traffic.groups["0"] == Group("0", (0, 1), "gloo", "default_pg")


def test_numbers_are_those_of_the_other_ranks(outcomes):
    """The n-th collective of a group is the n-th on every rank; messages count for each peer."""
    calls = outcomes["everything"].calls
    alone = {r: [c for c in calls[r] if not c.point_to_point] for r in (0, 1)}
    for r in (0, 1):
        assert [c.sequence for c in alone[r]] == list(range(len(alone[r])))
    assert [c.collective for c in alone[0]] == [c.collective for c in alone[1]]
    sends = [c.sequence for c in calls[0] if c.collective == "send"]
    recvs = [c.sequence for c in calls[1] if c.collective == "recv"]
    assert sends == recvs == [0, 1, 2]
    assert [c.sequence for c in calls[0] if c.collective == "recv"] == [0]


def test_durations(outcomes):
    """Of every call; those that end with the program's wait are counted in a note."""
    for name in CALLS:
        for r in (0, 1):
            calls = outcomes[name].calls[r]
            without = [c.collective for c in calls if c.time_ns is None]
            if name == "unknown":
                assert without == ["c10d::torchcoll_test"]
            else:
                assert without == [], name
            assert {c.clock for c in calls} == {"host"}
            starts = [c.start_ns for c in calls]
            assert starts == sorted(starts) and min(starts) >= 0
            ends = [c.start_ns + (c.time_ns or 0) for c in calls if c.asynchronous is False]
            assert all(end <= after for end, after in zip(ends, starts[1:], strict=False)) or OLD
    for what in "send", "recv":
        note = (
            f"2 calls of {what} end when the program has waited for them: gloo does not tell "
            "whether they ended before"
        )
        assert note in outcomes["message"].notes


def test_messages_end_with_the_wait_for_them(tmp_path):
    """Rank 0 sends 50 ms after rank 1 has begun to receive; one that is never waited for does not
    hold back what comes after it.
    """

    def case():
        with capture("waited") as traffic:
            for number in range(3):
                if rank():
                    before = time.perf_counter_ns()
                    work = dist.irecv(torch.empty(4), 0)
                    announce(f"receives {number}")
                    work.wait()
                else:
                    await_event(f"receives {number}")
                    time.sleep(0.05)
                    before = time.perf_counter_ns()
                    dist.isend(ones(4), 1).wait()
                waited = time.perf_counter_ns() - before
                traffic.step()
            dist.barrier()
            late = dist.isend(ones(1), 1, tag=9) if rank() == 0 else None
            for _ in range(2):
                dist.all_reduce(ones(1))
                traffic.step()
            kept = len(traffic.calls[rank()])
        late.wait() if late else dist.recv(torch.empty(1), 0, tag=9)
        calls = traffic.calls[rank()]
        if rank():
            assert 50_000_000 < calls[2].time_ns <= waited
        else:
            assert calls[2].time_ns <= waited and kept == 7
            assert [c.time_ns is None for c in calls] == [False] * 4 + [True] + [False] * 2
            note = "1 calls have no duration: a step later the program had not waited for them"
            assert note in traffic.notes

    on_ranks(tmp_path, 2, {"it": case})


def test_torch_is_left_as_it_was(tmp_path):
    def case():
        before = torch._C._distributed_c10d.Work.wait
        with capture():
            assert torch._C._distributed_c10d.Work.wait is not before
        assert torch._C._distributed_c10d.Work.wait is before

    on_ranks(tmp_path, 1, {"it": case})


def test_what_could_not_be_seen_is_said(outcomes):
    """Each call is one of both ranks."""
    assert outcomes["all_reduce"].notes == (
        [
            f"2 reductions: torch {torch.__version__} does not tell which (sum, max, ...)",
            LATE.format(2),
        ]
        if OLD
        else []
    )
    assert outcomes["asynchronous"].notes[-1] == LATE.format(2)
    assert (
        "2 calls of c10d::torchcoll_test, which torchcoll does not know: their bytes are those of "
        "its tensors"
    ) in outcomes["unknown"].notes


def test_three_groups(tmp_path):
    """Roots and peers are ranks of the world."""

    def case():
        even, odd = dist.new_group([2, 0]), dist.new_group([1, 3], group_desc="odd ones")
        group = odd if rank() % 2 else even
        dist.barrier()
        with capture("ours"):
            dist.all_reduce(ones(2))
            dist.broadcast(ones(3), 2 + rank() % 2, group=group)
            if rank() < 2:
                dist.send(ones(4), rank() + 2, group=group)
            else:
                dist.recv(torch.empty(4), group=group)
            dist.all_gather_into_tensor(torch.empty(10), ones(5), group=group)
            dist.all_reduce(ones(1))

    on_ranks(tmp_path, 4, {"it": case})
    traffic = Traffic.load(tmp_path / "ours")
    names = {group.ranks: name for name, group in traffic.groups.items()}
    assert set(names) == {(0, 1, 2, 3), (0, 2), (1, 3)}
    assert traffic.groups[names[1, 3]].description == "odd ones"
    for r, calls in traffic.calls.items():
        group_name = names[(1, 3) if r % 2 else (0, 2)]
        world = names[0, 1, 2, 3]
        assert [(c.collective, c.group, c.sequence) for c in calls] == [
            ("all_reduce", world, 0),
            ("broadcast", group_name, 0),
            ("send" if r < 2 else "recv", group_name, 0),
            ("all_gather", group_name, 1),
            ("all_reduce", world, 1),
        ]
        assert [c.root for c in calls] == [None, 2 + r % 2, None, None, None]
        assert calls[2].peer == (r + 2) % 4
        assert [c.bytes_in for c in calls] == [8, 12, 16 if r < 2 else 0, 20, 4]


# What gloo has not.
OPS = torch.ops.c10d


def decoded(name, *arguments):
    schema = Schema.of(getattr(OPS, name).default)
    return decode(schema.name, dict(zip(schema.arguments, arguments, strict=False)), None)


def test_lists_of_uneven_tensors():
    outcomes = decoded("alltoall_", [ones(1), ones(5)], [ones(2), ones(3)], None)
    assert (outcomes["collective"], outcomes["splits"]) == ("all_to_all_v", (8, 12))
    assert (outcomes["bytes_in"], outcomes["bytes_out"]) == (20, 24)


def test_several_dtypes_in_one_call():
    outcomes = decoded("reduce_scatter_tensor_coalesced_", [ones(1)] * 2, [ones(2), ones(2).half()])
    assert (outcomes["bytes_in"], outcomes["bytes_out"], outcomes["dtype"]) == (12, 8, None)
    assert outcomes["tensors"] == 2


@pytest.mark.skipif(not hasattr(OPS, "gather_into_tensor_"), reason="this torch has none")
def test_gather_into_one_tensor():
    outcomes = decoded("gather_into_tensor_", ones(8), ones(4), None, 1)
    assert (outcomes["collective"], outcomes["root"]) == ("gather", 1)
    assert (outcomes["bytes_in"], outcomes["bytes_out"]) == (16, 32)


def test_every_operator_of_this_torch_is_known():
    """A new one is recorded under torch's name; its place is in the table."""
    operators = (n for n in torch._C._dispatch_get_all_op_names() if n != "c10d::torchcoll_test")
    names = [n for n in operators if n.startswith("c10d::")]
    schemas = [Schema.of(getattr(OPS, name.removeprefix("c10d::")).default) for name in names]
    assert len(schemas) >= 20
    ours = {schema.name for schema in schemas if schema.communicates}
    assert ours - set(OPERATORS) == set()
    assert "c10d::check_for_nan" not in ours
