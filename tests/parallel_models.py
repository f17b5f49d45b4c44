"""A small Llama as torchtitan lays it out: tensor and sequence parallel, FSDP2, pipelines."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

HIDDEN, HEADS, KEY_HEADS, WIDE, VOCABULARY, TOKENS = 16, 4, 2, 40, 32, 8


def llama_config(layers=2, **changed):
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "intermediate_size": WIDE,
        "vocab_size": VOCABULARY,
        "num_hidden_layers": layers,
        **changed,
    }


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        head = HIDDEN // HEADS
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k = nn.Linear(HIDDEN, KEY_HEADS * head, bias=False)
        self.v = nn.Linear(HIDDEN, KEY_HEADS * head, bias=False)
        self.o = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = (
            part(x).view(batch, tokens, -1, HIDDEN // HEADS).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        k, v = (part.repeat_interleave(HEADS // KEY_HEADS, 1) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, tokens, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(HIDDEN, WIDE, bias=False)
        self.up = nn.Linear(HIDDEN, WIDE, bias=False)
        self.down = nn.Linear(WIDE, HIDDEN, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), FeedForward()
        self.norm_in, self.norm_post = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)

    def forward(self, x):
        x = x + self.attention(self.norm_in(x))
        return x + self.mlp(self.norm_post(x))


class Llama(nn.Module):
    """``stage`` of ``stages``: the layers of one part of a pipeline, with the ends that it has."""

    def __init__(self, layers=2, stage=0, stages=1):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN) if stage == 0 else None
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        last = stage == stages - 1
        self.norm = nn.RMSNorm(HIDDEN) if last else None
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False) if last else None

    def forward(self, x):
        x = x if self.embedding is None else self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def split_over_tp(model, mesh, sequence_parallel):
    """parallelize_module as torchtitan calls it (models/llama3/infra/parallelize.py)."""
    inside = Shard(1) if sequence_parallel else Replicate()
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=inside),
        "head": ColwiseParallel(
            input_layouts=inside, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    prepare = PrepareModuleInput(
        input_layouts=(inside,), desired_input_layouts=(Replicate(),), use_local_output=False
    )
    layer_plan = {
        "attention": prepare,
        "mlp": prepare,
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        **{f"mlp.{name}": ColwiseParallel() for name in ("gate", "up")},
        "attention.o": RowwiseParallel(output_layouts=inside),
        "mlp.down": RowwiseParallel(output_layouts=inside),
    }
    if sequence_parallel:
        ends["norm"] = SequenceParallel()
        layer_plan |= {"norm_in": SequenceParallel(), "norm_post": SequenceParallel()}
    parallelize_module(model, mesh, ends)
    for layer in model.layers:
        parallelize_module(layer, mesh, layer_plan)


def train_step(model, parallel_loss=False):
    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    out = model(tokens)
    if not parallel_loss:
        out.sum().backward()
        return
    with loss_parallel():
        F.cross_entropy(out.flatten(0, 1), tokens.flatten()).backward()
