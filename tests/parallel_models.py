"""A small Llama as torchtitan lays it out: tensor, sequence and expert parallel, FSDP2, pipelines,
and torch's ring attention on CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.tensor import Replicate, Shard, parallel
from torch.distributed.tensor.experimental._context_parallel import _attention

HIDDEN, HEADS, KEY_HEADS, WIDE, VOCABULARY, TOKENS = 16, 4, 2, 40, 32, 8


@dataclass(frozen=True)
class Widths:
    hidden: int = HIDDEN
    heads: int = HEADS
    key_heads: int = KEY_HEADS
    wide: int = WIDE
    vocabulary: int = VOCABULARY

    @property
    def head(self):
        return self.hidden // self.heads


SMALL = Widths()


def llama_config(layers=2, widths=SMALL, **changed):
    return {
        "model_type": "llama",
        "hidden_size": widths.hidden,
        "num_attention_heads": widths.heads,
        "num_key_value_heads": widths.key_heads,
        "intermediate_size": widths.wide,
        "vocab_size": widths.vocabulary,
        "num_hidden_layers": layers,
        **changed,
    }


class Attention(nn.Module):
    def __init__(self, widths=SMALL):
        super().__init__()
        self.widths = widths
        hidden, keys = widths.hidden, widths.key_heads * widths.head
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, keys, bias=False)
        self.v = nn.Linear(hidden, keys, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = (
            part(x).view(batch, tokens, -1, self.widths.head).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(batch, tokens, -1))


class FeedForward(nn.Module):
    def __init__(self, widths=SMALL):
        super().__init__()
        self.gate = nn.Linear(widths.hidden, widths.wide, bias=False)
        self.up = nn.Linear(widths.hidden, widths.wide, bias=False)
        self.down = nn.Linear(widths.wide, widths.hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """The experts of one rank of ``ep``."""

    def __init__(self, experts):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, 2 * WIDE, HIDDEN))
        self.down_proj = nn.Parameter(torch.randn(experts, HIDDEN, WIDE))

    def forward(self, x):
        """x: (experts, tokens, hidden)."""
        gate, up = (x @ self.gate_up_proj.transpose(1, 2)).chunk(2, -1)
        return (F.silu(gate) * up) @ self.down_proj.transpose(1, 2)


class MixtureOfExperts(nn.Module):
    """Tokens go to the ranks of their experts and back, as by torchtitan's AllToAllTokenDispatcher
    (torchtitan/models/common/token_dispatcher.py). Each expert gets as many.
    """

    def __init__(self, experts, top_k, group):
        super().__init__()
        self.top_k, self.group, self.ranks = top_k, group, dist.get_world_size(group)
        self.gate = nn.Linear(HIDDEN, experts, bias=False)
        self.experts = Experts(experts // self.ranks)

    def forward(self, x):
        tokens = x.reshape(-1, HIDDEN)
        count = len(tokens) * self.top_k
        experts = self.gate.out_features
        chosen = torch.arange(count).remainder(experts)
        order = chosen.argsort(stable=True)
        scores = (
            self.gate(tokens).softmax(-1).repeat_interleave(self.top_k, 0)[order, chosen[order]]
        )
        numbers = torch.bincount(chosen, minlength=experts)
        received = all_to_all_single(numbers, None, None, self.group)
        sent = numbers.view(self.ranks, -1).sum(1).tolist()
        splits = received.view(self.ranks, -1).sum(1).tolist()
        visits = tokens.repeat_interleave(self.top_k, 0)[order]
        there = all_to_all_single_autograd(visits, splits, sent, self.group)
        local = len(self.experts.down_proj)
        by_expert = there.view(self.ranks, local, -1, HIDDEN).transpose(0, 1)
        done = self.experts(by_expert.reshape(local, -1, HIDDEN))
        done = done.view(local, self.ranks, -1, HIDDEN).transpose(0, 1).reshape(-1, HIDDEN)
        back = all_to_all_single_autograd(done, sent, splits, self.group)
        summed = torch.zeros_like(tokens).index_add(0, order // self.top_k, back * scores[:, None])
        return summed.view_as(x)


class Layer(nn.Module):
    def __init__(self, widths=SMALL):
        super().__init__()
        self.attention, self.mlp = Attention(widths), FeedForward(widths)
        self.norm_in, self.norm_post = nn.RMSNorm(widths.hidden), nn.RMSNorm(widths.hidden)

    def forward(self, x):
        x = x + self.attention(self.norm_in(x))
        return x + self.mlp(self.norm_post(x))


class Llama(nn.Module):
    """``stage`` of ``stages``: the layers of one part of a pipeline, with the ends that it has."""

    def __init__(self, layers=2, stage=0, stages=1, widths=SMALL):
        super().__init__()
        self.embedding = nn.Embedding(widths.vocabulary, widths.hidden) if stage == 0 else None
        self.layers = nn.ModuleList(Layer(widths) for _ in range(layers))
        last = stage == stages - 1
        self.norm = nn.RMSNorm(widths.hidden) if last else None
        self.head = nn.Linear(widths.hidden, widths.vocabulary, bias=False) if last else None

    def forward(self, x):
        x = x if self.embedding is None else self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def split_over_tp(model, mesh, sequence_parallel):
    """parallelize_module as torchtitan calls it (models/llama3/infra/parallelize.py)."""
    inside = Shard(1) if sequence_parallel else Replicate()
    ends = {
        "embedding": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=inside),
        "head": parallel.ColwiseParallel(
            input_layouts=inside, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    prepare = parallel.PrepareModuleInput(
        input_layouts=(inside,), desired_input_layouts=(Replicate(),), use_local_output=False
    )
    layer_plan = {
        "attention": prepare,
        "mlp": prepare,
        **{f"attention.{name}": parallel.ColwiseParallel() for name in "qkv"},
        **{f"mlp.{name}": parallel.ColwiseParallel() for name in ("gate", "up")},
        "attention.o": parallel.RowwiseParallel(output_layouts=inside),
        "mlp.down": parallel.RowwiseParallel(output_layouts=inside),
    }
    if sequence_parallel:
        ends["norm"] = parallel.SequenceParallel()
        layer_plan |= {
            "norm_in": parallel.SequenceParallel(),
            "norm_post": parallel.SequenceParallel(),
        }
    parallel.parallelize_module(model, mesh, ends)
    for layer in model.layers:
        parallel.parallelize_module(layer, mesh, layer_plan)


def train_step(model, parallel_loss=False, tokens=None):
    """``parallel_loss``: the cross entropy of a head that is split over the vocabulary."""
    tokens = torch.zeros(1, TOKENS, dtype=torch.long) if tokens is None else tokens
    if not parallel_loss:
        model(tokens).sum().backward()
        return
    with parallel.loss_parallel():
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()


def _attend(query, key, value, is_causal):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal
    )


def _attend_backward(query, key, value, out, logsumexp, is_causal, grad_out):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, 0.0, is_causal
    )


class RingAttention(torch.autograd.Function):
    """torch's context parallel attention over all ranks, with the kernel of CPUs: torch registers
    those of GPUs only.
    """

    @staticmethod
    def forward(ctx, query, key, value):
        out, logsumexp = _attention._templated_ring_attention(
            dist.group.WORLD, 2, _attend, query, key, value, is_causal=True
        )
        ctx.save_for_backward(query, key, value, out, logsumexp)
        return out

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, out, logsumexp = ctx.saved_tensors
        return _attention._templated_ring_attention_backward(
            dist.group.WORLD,
            2,
            _attend_backward,
            gradient.contiguous(),
            "grad_out",
            query,
            key,
            value,
            out,
            logsumexp,
            is_causal=True,
        )
