"""What is planned on meta is what a capture of the real training sees, call by call."""

import pytest
import torch
import torch.distributed as dist
from planned_models import Mlp, Transformer, on_ranks, step
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torchcoll import capture
from torchcoll.parts.training.config_plan import TrainingOptions, plan_config
from torchcoll.parts.training.layouts import parse_batch, parse_layout
from torchcoll.parts.training.meta_model import read_module
from torchcoll.parts.training.step_program import BeginCall

CAP = 1 / 1024
# fully_shard of torch 2.6 needs a device that has streams.
SHARDS = hasattr(torch.cpu.Stream(), "record_event")


def sent(traffic):
    """Of rank 0."""
    return [[c.collective, max(c.bytes_in, c.bytes_out), c.module] for c in traffic.calls[0]]


def ddp():
    model = DistributedDataParallel(Mlp(), bucket_cap_mb=CAP)
    for _ in range(4):
        with capture() as traffic:
            step(model)
    return sent(traffic) if dist.get_rank() == 0 else []


def fsdp(replicas):
    model = Transformer()
    shape = (dist.get_world_size(),) if replicas == 1 else (replicas, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    with capture() as traffic:
        step(model)
    return sent(traffic) if dist.get_rank() == 0 else []


def planned(name, layout):
    options = TrainingOptions("float32")
    program = plan_config(
        read_module(f"planned_models:{name}"), parse_layout(layout), parse_batch("1x8"), options
    ).program
    return [
        [act.sent.collective, act.sent.size_bytes, act.module]
        for act in program.acts
        if isinstance(act, BeginCall)
    ]


def without_modules(calls):
    return [call[:2] for call in calls]


@pytest.mark.parametrize("ranks", [2, 4])
def test_captured_equals_planned(tmp_path, ranks):
    result = on_ranks(tmp_path, ranks, {"ddp": ddp})["ddp"]
    assert without_modules(result) == without_modules(planned("Mlp", f"dp@{CAP}={ranks}"))


@pytest.mark.skipif(not SHARDS, reason="fully_shard of this torch needs a device with streams")
@pytest.mark.parametrize(("ranks", "replicas"), [(2, 1), (4, 1), (4, 2)])
def test_captured_equals_planned_of_fully_shard(tmp_path, ranks, replicas):
    result = on_ranks(tmp_path, ranks, {"fsdp": lambda: fsdp(replicas)})["fsdp"]
    layout = f"fsdp={ranks}" if replicas == 1 else f"hsdp={replicas}x{ranks // replicas}"
    assert result == planned("Transformer", layout)
