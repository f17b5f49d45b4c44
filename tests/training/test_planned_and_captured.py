"""What is planned on meta is what a capture of the real training sees, call by call."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from planned_models import Block, Mlp, Partial, Transformer, on_ranks, step
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torchcoll import capture, gradient_buckets, shard_traffic
from torchcoll.parts.training.buckets import describe
from torchcoll.parts.training.sent_by_wrappers import zero_redundancy_calls

CAP = 1 / 1024
MODELS = {
    "mlp": Mlp,
    "transformer": Transformer,
    "frozen": lambda: Partial(unused=False),
    "unused": lambda: Partial(unused=True),
}
# fully_shard of torch 2.6 needs a device that has streams.
SHARDS = hasattr(torch.cpu.Stream(), "record_event")


def sent(traffic):
    """Of rank 0, without DDP's broadcast of the buffers."""
    return [
        [c.collective, c.bytes_in, c.bytes_out, c.dtype, c.op, c.asynchronous]
        for c in traffic.calls[0]
        if c.collective != "broadcast"
    ]


def ddp(name):
    model = DistributedDataParallel(
        MODELS[name](), bucket_cap_mb=CAP, find_unused_parameters=name == "unused"
    )
    steps = []
    for _ in range(3):
        with capture() as traffic:
            step(model)
        steps.append(sent(traffic) if dist.get_rank() == 0 else [])
    return steps


def fsdp():
    model = Transformer()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    with capture() as traffic:
        step(model)
    return sent(traffic) if dist.get_rank() == 0 else []


def zero():
    """DDP's buckets, then the broadcasts of ZeroRedundancyOptimizer, in the third step."""
    with warnings.catch_warnings():  # torch.distributed.optim uses torch.jit.script
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(Transformer(), bucket_cap_mb=CAP)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    for _ in range(3):
        with capture() as traffic:
            with model.no_sync():
                step(model)
            step(model)
            optimizer.step()
    return [
        [c.collective, c.bytes_in, c.dtype, c.root]
        for c in (traffic.calls[0] if dist.get_rank() == 0 else [])
    ]


def accumulated(replicas):
    """Two micro-batches; gradients are reduced in the second."""
    model = Transformer()
    shape = (dist.get_world_size(),) if replicas == 1 else (replicas, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for number, block in enumerate(model.blocks):
        model.blocks[number] = fully_shard(checkpoint_wrapper(block), mesh=mesh)
    fully_shard(model, mesh=mesh)
    with capture() as traffic:
        model.set_requires_gradient_sync(False)
        step(model)
        model.set_requires_gradient_sync(True)
        step(model)
    return sent(traffic) if dist.get_rank() == 0 else []


def known(captured, planned):
    """The plan, without what capture cannot see: torch 2.6 hides op and async_op."""
    pairs = zip(captured, planned, strict=True)
    return [[b if a is not None else a for a, b in zip(*pair, strict=True)] for pair in pairs]


@pytest.mark.parametrize("ranks", [2, 4])
def test_captured_equals_planned(tmp_path, ranks):
    cases = {name: lambda name=name: ddp(name) for name in MODELS}
    result = on_ranks(tmp_path, ranks, cases)
    for name, make in MODELS.items():
        plan = gradient_buckets(make(), CAP, step, find_unused=name == "unused")
        first, _, third = result[name]
        assert first == known(first, sent(plan.traffic(ranks, first_step=True))), name
        assert third == known(third, sent(plan.traffic(ranks))), name


def test_zero_redundancy_optimizer_sends_what_is_planned(tmp_path):
    result = on_ranks(tmp_path, 3, {"zero": zero})
    model = Transformer()
    plan = gradient_buckets(model, CAP, step)
    planned = [["all_reduce", b.size_bytes, b.dtype, None] for b in plan.buckets]
    parameters = [describe(name, p) for name, p in model.named_parameters()]
    planned += [
        [call.collective, call.bytes_in, call.dtype, call.root]
        for call in zero_redundancy_calls(parameters, 3, "data")
    ]
    assert result["zero"] == planned
    assert sum(call[0] == "broadcast" for call in planned) == len(parameters)


@pytest.mark.skipif(not SHARDS, reason="fully_shard of this torch needs a device with streams")
@pytest.mark.parametrize("replicas", [1, 2])
def test_accumulated_micro_batches_with_checkpointing(tmp_path, replicas):
    result = on_ranks(tmp_path, 4, {"accumulated": lambda: accumulated(replicas)})
    plan = shard_traffic(Transformer(), Block, 4, replicas=replicas, accumulate=2)
    assert result["accumulated"] == sent(plan)


@pytest.mark.skipif(not SHARDS, reason="fully_shard of this torch needs a device with streams")
@pytest.mark.parametrize("ranks", [2, 4])
def test_captured_equals_planned_of_fully_shard(tmp_path, ranks):
    result = on_ranks(tmp_path, ranks, {"fsdp": fsdp})
    assert result["fsdp"] == sent(shard_traffic(Transformer(), Block, ranks))
