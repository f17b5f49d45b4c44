"""What DDP and FSDP2 send in a step: captured bytes against parameter sizes added up by hand."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from planned_models import Block, Mlp, Partial, Transformer, on_ranks, step
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torchcoll.core.traffic import Traffic
from torchcoll.parts.training.capture import capture

FSDP_ON_CPU = hasattr(torch.cpu.Stream(), "record_event")  # not in torch 2.6

# Parameters: MLP (24 + 1) 40 + (40 + 1) 64 + (64 + 1) 30 + (30 + 1) 10 = 5884.
# Transformer 50 positions + 170 embedding + 3 blocks of 1300 + 170 head = 4290, where a block has
# 4 x 10 norms + 300 qkv + 110 out + 850 MLP.
# Partial: float32 630 first + 238 unused + 60 norm + 372 middle = 1300; float64 65 last.
MODELS = {"mlp": Mlp, "transformer": Transformer, "partial": lambda: Partial(unused=True)}
STEPS = 3

DDP = {
    "mlp": {("all_reduce", "float32"): 4 * 5884},
    "transformer": {("all_reduce", "float32"): 4 * 4290},
    "partial": {
        ("all_reduce", "float32"): 4 * 1300,
        ("all_reduce", "float64"): 8 * 65,
        ("all_reduce", "int32"): 4 * 10,  # which of the 10 trainable parameters were used
        ("broadcast", "float32"): 4 * 60,  # the buffers of BatchNorm, before each forward
        ("broadcast", "int64"): 8,
    },
}


def train_ddp(name):
    torch.manual_seed(0)
    model = DistributedDataParallel(MODELS[name](), find_unused_parameters=name == "partial")
    with capture(f"ddp {name}") as traffic:
        for _ in range(STEPS):
            step(model)
            traffic.step()


# A rank's share of each tensor: its rows over the ranks, rounded up. all_gather takes the shares of
# all parameters, reduce_scatter the padded whole of those that got a gradient.
# On 2 ranks every dimension of MLP and the blocks is even; 5, 17 and 7 rows are padded to 6, 18, 8.
# Units that are not the root are gathered again in the backward pass.
FSDP = {
    ("mlp", 2): {"all_gather": 2 * 4 * 5884 // 2, "reduce_scatter": 4 * 5884},
    # 10 x 25, 16 x 41, 8 x 65 and 3 x 31 floats = 1519 of each rank: 30 and 10 rows are padded
    ("mlp", 4): {"all_gather": 2 * 4 * 1519, "reduce_scatter": 4 * 4 * 1519},
    # root: 3 x 10 positions, 9 x 10 embedding, 9 x 10 head = 210; blocks 650 each
    ("transformer", 2): {
        "all_gather": 4 * (210 + 2 * 3 * 650),
        "reduce_scatter": 2 * 4 * (210 + 3 * 650),
    },
    # root: frozen 10 x 21, first 15 x 21, unused 4 x 34, norm 2 x 15, middle 6 x 31 = 877 floats;
    # last 3 x 13 doubles. No gradients of frozen and unused.
    ("partial", 2): {
        "all_gather": 4 * 877 + 2 * 8 * 39,
        "reduce_scatter": 2 * (4 * (315 + 30 + 186) + 8 * 39),
    },
}
WRAP = {"mlp": nn.Linear, "transformer": Block, "partial": "last"}


def train_fsdp(name):
    model, wrap = MODELS[name](), WRAP[name]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module_name, module in model.named_modules():
        if module_name and (
            module_name == wrap if isinstance(wrap, str) else isinstance(module, wrap)
        ):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with capture(f"fsdp {name}") as traffic:
        for _ in range(STEPS):
            step(model)
            traffic.step()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    outcomes = {}
    for ranks in (2, 4):
        folder = tmp_path_factory.mktemp(f"on{ranks}")
        names = [name for name in MODELS if ranks == 2 or name == "mlp"]
        cases = {f"ddp {name}": lambda n=name: train_ddp(n) for name in names}
        if FSDP_ON_CPU:
            cases |= {f"fsdp {name}": lambda n=name: train_fsdp(n) for name in names}
        on_ranks(folder, ranks, cases)
        for name in cases:
            outcomes[(*name.split(), ranks)] = Traffic.load(folder / name)
    return outcomes


def sent(traffic, rank, step, key):
    """Bytes that the rank puts in, of each kind of call, in one step."""
    total = Counter()
    for call in traffic.calls[rank]:
        if call.step == step:
            total[key(call)] += call.bytes_in
    return total


@pytest.mark.parametrize(("name", "ranks"), [*((name, 2) for name in DDP), ("mlp", 4)])
def test_ddp_sends_its_parameters(outcomes, name, ranks):
    traffic = outcomes["ddp", name, ranks]
    assert sorted(traffic.calls) == sorted(traffic.steps) == list(range(ranks))
    for rank, calls in traffic.calls.items():
        assert [len(traffic.steps[rank]), {c.step for c in calls}] == [STEPS, set(range(STEPS))]
        for number in (0, STEPS - 1):
            assert sent(traffic, rank, number, lambda c: (c.collective, c.dtype)) == DDP[name]
        (start, end), *_ = traffic.steps[rank]
        assert all(start <= c.start_ns <= end for c in calls if c.step == 0)
        assert all(c.time_ns is not None for c in calls)  # DDP waits for all of them
        # Of DDP's C++ reducer too, but for torch 2.6.
        ops = {c.op for c in calls if c.collective == "all_reduce" and c.dtype != "int32"}
        assert ops <= {"sum", None}


@pytest.mark.skipif(not FSDP_ON_CPU, reason="this FSDP2 does not run on cpu")
@pytest.mark.parametrize(("name", "ranks"), FSDP)
def test_fsdp_sends_its_parameters(outcomes, name, ranks):
    traffic = outcomes["fsdp", name, ranks]
    for rank, calls in traffic.calls.items():
        for number in range(STEPS):
            assert sent(traffic, rank, number, lambda c: c.collective) == FSDP[name, ranks]
        for call in calls:
            small, large = sorted((call.bytes_in, call.bytes_out))
            assert large == ranks * small
            # _get_gradient_divide_factors of FSDP2: the average of float32, the sum of float64
            op = {"float32": "avg", "float64": "sum"}[call.dtype]
            assert call.op == (op if call.collective == "reduce_scatter" else None)
            assert call.time_ns is not None
