"""Plans of FSDP2, against what fully_shard really sends on gloo ranks."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
from error_form import error_text
from planned_models import Block, Mlp, Transformer, Watch, on_ranks, step
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from torchcoll import gradient_buckets, shard_traffic
from torchcoll.core.errors import UsageError

BF16 = torch.bfloat16
# fully_shard of torch 2.6 needs a device that has streams.
on_cpu = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream(), "record_event"), reason="this FSDP2 does not run on cpu"
)


class Nested(nn.Module):
    """A unit with units and parameters of its own inside."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(10))
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.blocks(x * self.scale)


class Tower(Transformer):
    def __init__(self):
        super().__init__(0)
        self.blocks = nn.ModuleList([Block(), Nested(), Block()])


def lower_frozen():
    """Nothing below the last block learns."""
    model = Transformer().requires_grad_(False)
    model.blocks[2].requires_grad_()
    model.head.requires_grad_()
    return model


def head_alone():
    model = Transformer().requires_grad_(False)
    model.head.requires_grad_()
    return model


def upper_frozen():
    """Gradients pass through units that have none of their own."""
    model = Transformer().requires_grad_(False)
    model.embed.requires_grad_()
    model.blocks[1].requires_grad_()
    return model


def bytes_frozen():
    """Two dtypes in a unit, one of them frozen: gathered as bytes."""
    model = Transformer()
    model.position = nn.Parameter(torch.zeros(5, 10).to(BF16), requires_grad=False)
    return model


def is_block(name, module):
    return isinstance(module, Block)


# name -> (model, wrap, how)
CASES = {
    "blocks": (Transformer, is_block, {}),
    "root alone": (Transformer, (), {}),
    "embedding too": (Transformer, (Block, nn.Embedding), {}),
    "every layer": (Mlp, nn.Linear, {}),
    "nested": (Tower, (Block, Nested), {}),
    "tied": (lambda: Transformer(2, tied=True), Block, {}),
    "lower frozen": (lower_frozen, Block, {}),
    "head alone": (head_alone, (Block, nn.Linear), {}),
    "upper frozen": (upper_frozen, (Block, nn.Embedding), {}),
    "bytes": (bytes_frozen, Block, {}),
    "param dtype": (Transformer, Block, {"param_dtype": BF16}),
    "both": (Transformer, Block, {"param_dtype": BF16, "reduce_dtype": torch.float32}),
    "equal": (Transformer, Block, {"param_dtype": BF16, "reduce_dtype": BF16}),
    "reshard": (Transformer, Block, {"reshard_after_forward": True}),
    "no reshard": (Tower, (Block, Nested), {"reshard_after_forward": False}),
    "replicas": (Transformer, Block, {"replicas": 2}),
    "to pairs": (Transformer, Block, {"reshard_after_forward": 2}),
    "to pairs, bytes": (bytes_frozen, Block, {"reshard_after_forward": 2}),
    "to pairs, bf16": (Tower, Nested, {"reshard_after_forward": 2, "param_dtype": BF16}),
    "two a unit": (Transformer, Block, {"together": 2}),
    "two a unit, kept": (Transformer, Block, {"together": 2, "reshard_after_forward": False}),
    "all in one, to pairs": (Transformer, Block, {"together": 9, "reshard_after_forward": 2}),
    "replicas of both": (Tower, Nested, {"replicas": 2, "reduce_dtype": BF16}),
}
RANKS = {**{(name, 4): case for name, case in CASES.items()}, ("blocks", 2): CASES["blocks"]}


def real(make, wrap, how):
    """What the first step sends; the others are like it."""
    how = dict(how)
    replicas, ranks = how.pop("replicas", 1), dist.get_world_size()
    shape = (ranks,) if replicas == 1 else (replicas, ranks // replicas)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    dtypes = {name: how.pop(name, None) for name in ("param_dtype", "reduce_dtype")}
    policy = MixedPrecisionPolicy(**dtypes)
    model = make()
    outcomes = [
        module
        for name, module in model.named_modules()
        if name and (wrap(name, module) if wrap is is_block else isinstance(module, wrap))
    ]
    together = how.pop("together", 1)
    units = [outcomes[i : i + together] for i in range(0, len(outcomes), together)]
    for module in [*(unit if together > 1 else unit[0] for unit in reversed(units)), model]:
        fully_shard(module, mesh=mesh, mp_policy=policy, **how)
    with Watch() as watch:
        step(model)
    return watch.sent


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    names = {ranks: [name for name, n in RANKS if n == ranks] for ranks in (2, 4)}
    return {
        ranks: on_ranks(
            tmp_path_factory.mktemp("fsdp"),
            ranks,
            {name: lambda case=CASES[name]: real(*case) for name in names[ranks]},
        )
        for ranks in names
    }


TORCHS = {
    "all_gather": "_allgather_base_",
    "reduce_scatter": "_reduce_scatter_base_",
    "all_reduce": "allreduce_",
}


def sent(traffic):
    (calls,) = traffic.calls.values()
    return [[TORCHS[c.collective], c.dtype, c.bytes_in, c.bytes_out] for c in calls]


@on_cpu
@pytest.mark.parametrize(("name", "ranks"), RANKS)
def test_the_plan_is_what_fully_shard_sends(outcomes, name, ranks):
    make, wrap, how = CASES[name]
    with torch.device("meta"):
        model = make()
    assert sent(shard_traffic(model, wrap, ranks, **how)) == outcomes[ranks][name]


def by_hand(traffic):
    (calls,) = traffic.calls.values()
    names = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR"}
    return [(names[c.collective], c.bytes_in, c.bytes_out, c.group) for c in calls]


def test_by_hand():
    """Rows are padded to the ranks: 5 rows on 4 ranks are 2 each."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 1))
    traffic = shard_traffic(model, nn.Linear, 8, replicas=2, reduce_dtype="bf16")
    # Elements of a shard: 2 x 3 + 2; 1 x 5 + 1; 1 x 4 + 1.
    assert by_hand(traffic) == [
        ("AG", 32, 128, "shard"),
        ("AG", 24, 96, "shard"),
        ("AG", 20, 80, "shard"),
        # Backward: each unit, and the one before it ahead of its time. bf16 has 2 bytes.
        ("AG", 20, 80, "shard"),
        ("AG", 24, 96, "shard"),
        ("RS", 40, 10, "shard"),
        ("AR", 10, 10, "replicate"),
        ("AG", 32, 128, "shard"),
        ("RS", 48, 12, "shard"),
        ("AR", 12, 12, "replicate"),
        ("RS", 64, 16, "shard"),
        ("AR", 16, 16, "replicate"),
    ]
    assert [c.sequence for c in traffic.calls[0] if c.group == "replicate"] == [0, 1, 2]
    assert {c.op for c in traffic.calls[0]} == {None, "avg"}
    assert traffic.groups["shard"].ranks == (0, 1, 2, 3)
    assert traffic.groups["replicate"].ranks == (0, 4)
    assert (traffic.source, traffic.ranks, list(traffic.calls)) == ("plan", 8, [0])


def test_what_is_assumed_is_said():
    assumed = (
        "assumed: each unit runs once a step, in the order of registration, and every trainable "
        "parameter gets a gradient"
    )
    assert shard_traffic(Mlp(), nn.Linear, 2).notes == [assumed]
    assert shard_traffic(Mlp(), nn.Linear, 2, param_dtype="bf16").notes == [
        assumed,
        f"reduce_dtype not set: as in torch {torch.__version__} (before 2.15 gradients go in "
        "param_dtype, since then in the dtype of the parameters)",
    ]


def test_float16_is_summed():
    """fully_shard has the library divide float32 and bfloat16 alone; others it divides itself."""
    for name, op in (("fp16", "sum"), ("fp32", "avg"), ("bf16", "avg"), ("fp64", "sum")):
        calls = shard_traffic(Mlp(), (), 2, reduce_dtype=name).calls[0]
        assert [c.op for c in calls] == [None, op]


def test_a_model_of_70_billion_parameters_needs_no_memory():
    """The shapes of Llama 3 70B."""
    width, hidden = 8192, 28672

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            shapes = [(width, width)] * 2 + [(width // 8, width)] * 2 + [(hidden, width)] * 3
            self.matrices = nn.ParameterList(nn.Parameter(torch.empty(s)) for s in shapes)
            self.norms = nn.ParameterList(nn.Parameter(torch.empty(width)) for _ in range(2))

    with torch.device("meta"):
        ends = [nn.Embedding(128256, width), nn.Linear(width, 128256, bias=False)]
        model = nn.Sequential(ends[0], *(Layer() for _ in range(80)), nn.LayerNorm(width), ends[1])
    layer = 2 * 8192**2 + 2 * 1024 * 8192 + 3 * 8192 * 28672 + 2 * 8192
    traffic = shard_traffic(model, Layer, 1024, param_dtype="bf16", reduce_dtype="fp32")
    calls = traffic.calls[0]
    assert len(calls) == (1 + 80) + 80 + (80 + 1)
    # 1024 divides every shape, but for the 128256 rows: 126 each on 1024 ranks.
    assert (calls[1].bytes_in, calls[1].bytes_out) == (2 * layer // 1024, 2 * layer)
    ends_shard = 2 * 126 * 8192 + 2 * 8
    assert calls[0].bytes_in == 2 * ends_shard
    assert (calls[-1].bytes_in, calls[-1].bytes_out) == (4 * 1024 * ends_shard, 4 * ends_shard)
    assert sum(bucket.size_bytes for bucket in gradient_buckets(model).buckets) == (
        4 * (80 * layer + 2 * 128256 * 8192 + 2 * 8192)
    )


def twice():
    block = Block()
    return nn.Sequential(block, nn.Sequential(block))


def mixed():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    return model


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("make", "how", "line"),
    [
        (lambda: 7, {}, error_text("model", "int", "a torch.nn.Module")),
        (
            lambda: Mlp().requires_grad_(False),
            {},
            error_text("model", "no parameter with a gradient", "one or more"),
        ),
        (
            Scalar,
            {},
            error_text("model", "the scalar temperature", "1 dimension or more, as fully_shard"),
        ),
        (
            mixed,
            {"wrap": ()},
            error_text(
                "model",
                "torch.float32 and torch.float64 in the root",
                "one dtype for the trainable parameters of a unit",
            ),
        ),
        (Mlp, {"ranks": 1}, error_text("ranks", "1", "a whole number from 2 on")),
        (Mlp, {"ranks": 2.0}, error_text("ranks", "2.0", "a whole number from 2 on")),
        (Mlp, {"replicas": 0}, error_text("replicas", "0", "a whole number from 1 on")),
        (
            Mlp,
            {"replicas": 3},
            error_text("replicas", "3", "a divisor of 4 ranks that leaves 2 or more to shard over"),
        ),
        (
            Mlp,
            {"replicas": 4},
            error_text("replicas", "4", "a divisor of 4 ranks that leaves 2 or more to shard over"),
        ),
        (
            Mlp,
            {"reshard_after_forward": 3},
            error_text(
                "reshard_after_forward",
                "3",
                "True, False, or a divisor of the 4 ranks that are sharded over",
            ),
        ),
        (
            Mlp,
            {"wrap": "Linear"},
            error_text(
                "wrap",
                "Linear",
                "a module class, a tuple of them, or a predicate of (name, module)",
            ),
        ),
        (
            Mlp,
            {"wrap": dict},
            error_text(
                "wrap",
                "<class 'dict'>",
                "a module class, a tuple of them, or a predicate of (name, module)",
            ),
        ),
        (
            Mlp,
            {"wrap": nn.Conv2d},
            error_text(
                "wrap", "nothing of the model", "one module or more. It has Linear, ModuleList."
            ),
        ),
        (
            Mlp,
            {"wrap": nn.ModuleList},
            error_text("wrap", "layers, a ModuleList", "modules with a forward, as fully_shard"),
        ),
        (
            twice,
            {"wrap": Block},
            error_text(
                "wrap",
                "1.0, the same module as 0",
                "modules that run once a step. Capture a step instead: torchcoll.capture().",
            ),
        ),
        (
            lambda: Transformer(1, tied=True),
            {"wrap": nn.Embedding},
            error_text(
                "wrap",
                "head.weight tied to embed.weight of another unit",
                "tied parameters in one unit. Wrap neither.",
            ),
        ),
        (Mlp, {"param_dtype": "fp12"}, error_text("dtype", "fp12", "one of float32, ")),
    ],
)
def test_bad_input(make, how, line):
    how = {"wrap": nn.Linear, "ranks": 4} | how
    with pytest.raises(UsageError) as caught:
        shard_traffic(make(), **how)
    assert str(caught.value).startswith(line)
    assert str(caught.value) == line or line.endswith(" ")


def _own_order(direction):
    """What a plan says of a model that sets its prefetch; it has none of one that sets nothing."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    shard_traffic(model, nn.Linear, ranks=4)
    getattr(model[0], f"set_modules_to_{direction}_prefetch")([model[1], model[2]])
    with pytest.raises(UsageError) as caught:
        shard_traffic(model, nn.Linear, ranks=4)
    return str(caught.value)


@on_cpu
def test_an_order_of_the_models_own_is_not_ignored(tmp_path):
    directions = ("forward", "backward")
    lines = on_ranks(
        tmp_path,
        1,
        {direction: functools.partial(_own_order, direction) for direction in directions},
    )
    for direction in directions:
        assert lines[direction] == error_text(
            "model",
            f"0 with set_modules_to_{direction}_prefetch of 2",
            "the order that FSDP2 takes by itself. Capture a step instead: torchcoll.capture().",
        )
