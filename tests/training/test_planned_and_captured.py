"""What is planned on meta is what a capture of the real training sees, call by call."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from planned_models import Block, Mlp, Partial, Transformer, on_ranks, step
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torchcoll import capture, gradient_buckets, shard_traffic

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


@pytest.mark.skipif(not SHARDS, reason="fully_shard of this torch needs a device with streams")
@pytest.mark.parametrize("ranks", [2, 4])
def test_captured_equals_planned_of_fully_shard(tmp_path, ranks):
    result = on_ranks(tmp_path, ranks, {"fsdp": fsdp})
    assert result["fsdp"] == sent(shard_traffic(Transformer(), Block, ranks))
