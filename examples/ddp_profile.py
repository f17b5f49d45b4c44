"""What DDP's gradients cost in a training: capture, table, cost of each call, and what to change.

    torchrun --nproc-per-node 2 examples/ddp_profile.py [FOLDER]

A small transformer learns to predict the next byte of a synthetic text, on the GPU of each rank
where there is one (nccl, xccl), else on the CPU (gloo). FOLDER is where the ranks put their traffic
files; on several hosts name one that they share.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchcoll

WIDTH, LAYERS, LENGTH, BATCH = 128, 4, 32, 4
STEPS, LEFT_OUT = 5, 2  # in the first step DDP sends one bucket, in the second it makes them anew


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.position = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        size = tokens.shape[1]
        mask = torch.full((size, size), float("-inf"), device=tokens.device).triu(1)
        hidden = self.layers(self.embedding(tokens) + self.position[:size], mask)
        return nn.functional.log_softmax(self.head(hidden), -1)


def text(seed: int) -> torch.Tensor:
    """Sentences of a small grammar, as bytes."""
    words = random.Random(seed)
    subjects, verbs = ("the rank", "a bucket", "the ring"), ("waits for", "sends", "adds up")
    sentences = [
        f"{words.choice(subjects)} {words.choice(verbs)} {words.choice(subjects)}. "
        for _ in range(2000)
    ]
    return torch.tensor(list("".join(sentences).encode()))


class Training:
    """One rank's data, and a step of the model on it."""

    def __init__(self, device: torch.device) -> None:
        self.text = text(dist.get_rank())
        self.device = device

    def step(self, model: nn.Module) -> None:
        starts = torch.randint(len(self.text) - LENGTH - 1, (BATCH,))
        rows = torch.stack([self.text[i : i + LENGTH + 1] for i in starts]).to(self.device)
        scores = model(rows[:, :-1])
        loss = nn.functional.nll_loss(scores.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None


def start() -> torch.device:
    """The device of this rank, and the process group that fits it."""
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
        torch.get_device_module(device).set_device(device)
    dist.init_process_group({"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}[device.type])
    return device


def shared_folder() -> str:
    """The same on all ranks."""
    folder = [sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="ddp-profile-")]
    dist.broadcast_object_list(folder)
    return folder[0]


def main() -> None:
    device = start()
    torch.manual_seed(0)
    training = Training(device)
    model = DistributedDataParallel(Transformer().to(device), bucket_cap_mb=1)

    # 1. What the training really sends.
    folder = shared_folder()
    with torchcoll.capture(folder) as traffic:
        for _ in range(LEFT_OUT + STEPS):
            training.step(model)
            traffic.step()

    # 2. What it cost: time, waiting and transfer of each call.
    if dist.get_rank() == 0:
        torchcoll.show(torchcoll.Traffic.load(folder))

    # 3. Real steps decide; better in more rounds, and in several runs.
    module = model.module
    del model
    found = torchcoll.try_buckets(
        lambda cap: DistributedDataParallel(module, bucket_cap_mb=cap),
        training.step,
        (1, 0.25),
        rounds=2,
        steps=4,
    )
    if dist.get_rank() == 0:
        torchcoll.show(found)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
