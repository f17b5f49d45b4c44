"""What FSDP2 sends: the plan, made without running the model, against what capture sees.

    torchrun --nproc-per-node 2 examples/fsdp_profile.py

The transformer of ddp_profile.py, each layer a unit of ``fully_shard``, on the GPU of each rank
where there is one, else on the CPU, for which torch 2.6 is too old.
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.distributed as dist
from ddp_profile import Training, Transformer, start
from torch import nn
from torch.distributed.fsdp import fully_shard

import torchcoll
from torchcoll.core.traffic import Traffic


def sent(traffic: Traffic, step: int) -> Counter[tuple[str, int]]:
    """How often rank 0 calls each collective of each size in a step."""
    return Counter(
        (call.collective, max(call.bytes_in, call.bytes_out))
        for call in traffic.calls[0]
        if call.step == step and call.collective in ("all_gather", "reduce_scatter", "all_reduce")
    )


def main() -> None:
    device = start()
    torch.manual_seed(0)
    wrap = nn.TransformerEncoderLayer

    # 1. The plan. The model is made on meta, and the ranks may be many more than there are here.
    plan = torchcoll.plan("ddp_profile:Transformer", f"fsdp={dist.get_world_size()}")

    # 2. The training.
    model = Transformer().to(device)
    for module in model.modules():
        if isinstance(module, wrap):
            fully_shard(module)
    fully_shard(model)
    training = Training(device)
    with torchcoll.capture() as traffic:
        for _ in range(3):
            training.step(model)
            traffic.step()

    # 3. The same, call by call?
    if dist.get_rank() == 0:
        torchcoll.show(plan)
        torchcoll.show(traffic)
        difference = sent(traffic, step=2)
        for row in plan.step.rows:
            difference[row.collective, row.size_bytes] -= row.calls
        odd = {call: count for call, count in difference.items() if count}
        print(f"plan and training differ in: {odd}" if odd else "the plan is what was sent")

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
