"""FSDP1 (FullyShardedDataParallel) on two gloo ranks: capture records it, cost splits its calls."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import Job

import torchcoll

SIZE = 64


def train(folder):
    from torch.distributed.fsdp import FullyShardedDataParallel

    dist.init_process_group("gloo")
    layer = torch.nn.Linear(SIZE, SIZE, bias=False)
    model = FullyShardedDataParallel(layer, device_id=torch.device("cpu"))
    with torchcoll.capture(folder) as traffic:
        for _ in range(4):
            model(torch.ones(2, SIZE)).sum().backward()
            traffic.step()
    alone = torchcoll.run(traffic.spec(max_time_s=0.05))
    if alone is not None:
        for row in torchcoll.cost(torchcoll.Traffic.load(folder), alone).rows:
            print(row.collective, row.size_bytes, row.transfer_ns > 0, row.isolated_ns > 0)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(torch.__version__ < "2.13", reason="FSDP1 on gloo is only tried from here on")
def test_calls_of_fsdp1_are_captured_and_priced(tmp_path):
    folder = tmp_path / "traffic"
    ended = Job(tmp_path / "job", lambda: train(folder), 2).wait()
    assert [process.code for process in ended.values()] == [0, 0], ended[0].stderr
    size = 4 * SIZE * SIZE
    assert sorted(set(ended[0].stdout.splitlines())) == [
        f"all_gather {size} True True",
        f"reduce_scatter {size} True True",
    ]
