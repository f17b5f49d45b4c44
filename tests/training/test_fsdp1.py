"""FSDP1 (FullyShardedDataParallel) on two gloo ranks."""

from __future__ import annotations

import ast

import pytest
import torch
import torch.distributed as dist
from ranks import Job

import torchcoll

SIZE = 64


def train(folder):
    from torch.distributed.fsdp import FullyShardedDataParallel

    dist.init_process_group("gloo")
    cpu = torch.device("cpu")
    layers = [torch.nn.Linear(SIZE, SIZE, bias=False) for _ in range(2)]
    inner = FullyShardedDataParallel(layers[1], device_id=cpu)
    whole = torch.nn.Sequential(layers[0], inner)
    model = FullyShardedDataParallel(whole, device_id=cpu)
    with torchcoll.capture(folder) as traffic:
        for _ in range(4):
            model(torch.ones(2, SIZE)).sum().backward()
            traffic.step()
    if not dist.get_rank():
        calls = torchcoll.Traffic.load(folder).calls[0]
        print([call.collective for call in calls if call.step == 3])
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(torch.__version__ < "2.13", reason="FSDP1 on gloo is only tried from here on")
def test_calls_of_fsdp1_are_captured(tmp_path):
    folder = tmp_path / "traffic"
    ended = Job(tmp_path / "job", lambda: train(folder), 2).wait()
    assert [process.code for process in ended.values()] == [0, 0], ended[0].stderr
    gathers, scatters = ["all_gather"] * 3, ["reduce_scatter"] * 2
    assert ast.literal_eval(ended[0].stdout) == [*gathers, *scatters]
