"""Models whose gradients are planned and really sent, and what real ranks saw of it."""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import Job
from torch import nn


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = (24, 40, 64, 30, 10)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Block(nn.Module):
    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """The position table is registered before the embedding and used after it."""

    def __init__(self, blocks: int = 3, tied: bool = False) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(5, 10))
        self.embed = nn.Embedding(17, 10)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(10, 17, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Partial(nn.Module):
    """Frozen, unused, two dtypes, used in another order than registered, and a buffer."""

    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.last = nn.Linear(12, 5).double()
        self.frozen = nn.Linear(20, 20).requires_grad_(False)
        self.first = nn.Linear(20, 30)
        self.unused = nn.Linear(33, 7).requires_grad_(unused)
        self.norm = nn.BatchNorm1d(30)
        self.middle = nn.Linear(30, 12)

    def forward(self, x):
        x = self.middle(self.norm(self.first(self.frozen(x))))
        return self.last(x.double())


def inputs(model: nn.Module) -> torch.Tensor:
    if isinstance(model, Transformer):
        return torch.ones(2, 5, dtype=torch.long)
    return torch.randn(4, 24 if isinstance(model, Mlp) else 20)


def step(model: nn.Module) -> None:
    model(inputs(getattr(model, "module", model))).sum().backward()


Sent = list[list[Any]]  # [torch's name of the op, dtype, bytes in, bytes out] of each call


def on_ranks(folder: Path, ranks: int, cases: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What each case returned on rank 0, all in one job of gloo ranks."""

    def target() -> None:
        dist.init_process_group("gloo")
        found = {name: case() for name, case in cases.items()}
        if dist.get_rank() == 0:
            (folder / "found.json").write_text(json.dumps(found))
        # No destroy_process_group: torch 2.6 joins gloo's threads with the GIL held, and they may
        # wait for it. A job's ranks end by os._exit.
        dist.barrier()

    importlib.import_module("torch._dynamo")  # DDP does: 2 s once here, and not in each rank
    job = Job(folder, target, ranks)
    try:
        ended = job.wait()
        assert [e.code for e in ended.values()] == [0] * ranks, ended[0].stderr[-3000:]
    finally:
        job.kill()
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found
