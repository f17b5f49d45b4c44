"""Is what is planned for DeepSpeed's ZeRO 1 and 2 what it sends? Real steps on gloo ranks.

A small Llama is trained by deepspeed.initialize with the defaults of its configuration but for the
bucket's size; the second step is captured. Compared are all calls of rank 0 in their order, by
collective, bytes and dtype, with ``torchcoll plan --config`` where the bucket has its default size,
and with ``deepspeed_buckets`` otherwise: for these the gradients' order is that of hooks on the
same model without DeepSpeed.

It needs DeepSpeed (pip install deepspeed), which torchcoll itself does not.

    DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 tests/benchmarks/sent_by_deepspeed.py
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from common import title

sys.path.insert(0, str(Path(__file__).parent.parent))
from parallel_models import TOKENS, VOCABULARY, Llama, llama_config

from torchcoll import capture
from torchcoll.training.architectures import parse_config
from torchcoll.training.config_plan import TrainingOptions, plan_config
from torchcoll.training.layer_calls import parse_batch
from torchcoll.training.layouts import parse_layout
from torchcoll.training.sent_by_wrappers import DEEPSPEED_BUCKET, Parameter, deepspeed_buckets
from torchcoll.training.step_program import BeginCall

Call = tuple[str, int]  # collective, bytes of the larger side


def captured(stage: int, overlap: bool, micro_batches: int, dtype: str, limit: int) -> list[Call]:
    zero = {"stage": stage, "overlap_comm": overlap, "reduce_bucket_size": limit}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": zero,
    }
    if dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
    torch.manual_seed(0)
    model = Llama()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    for last in (False, True):
        with capture() as traffic:
            for _ in range(micro_batches):
                tokens = torch.randint(VOCABULARY, (1, TOKENS))
                engine.backward(engine(tokens).float().sum())
                engine.step()
        if last:
            calls = traffic.calls[dist.get_rank()]
            return [(c.collective, max(c.bytes_in, c.bytes_out)) for c in calls]
    raise AssertionError


def planned(stage: int, overlap: bool, micro_batches: int, dtype: str) -> list[Call]:
    layout = f"zero{stage}-deepspeed={dist.get_world_size()}" + ",overlap" * overlap
    program = plan_config(
        parse_config(llama_config(), "a small Llama"),
        parse_layout(layout),
        parse_batch(f"{micro_batches}x1x{TOKENS}"),
        TrainingOptions(dtype),
    ).program
    sent = [act.sent for act in program.acts if isinstance(act, BeginCall)]
    return [(call.collective, call.size_bytes) for call in sent]


def bucketed(stage: int, overlap: bool, limit: int) -> list[Call]:
    """The reductions of one micro-batch in bfloat16."""
    model, order = Llama(), []
    registered = {
        name: Parameter(name, tuple(weight.shape), "bfloat16", 2)
        for name, weight in model.named_parameters()
    }
    for name, weight in model.named_parameters():
        weight.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    model(torch.randint(VOCABULARY, (1, TOKENS))).sum().backward()
    taken = order if stage == 2 or overlap else list(registered)
    buckets = deepspeed_buckets(
        [registered[name] for name in taken],
        dist.get_world_size(),
        list(registered.values()),
        limit,
    )
    return [("all_reduce", 2 * bucket.elements) for bucket in buckets]


def row(what: str, ours: list[Call], theirs: list[Call]) -> None:
    if dist.get_rank() == 0:
        difference = "" if ours == theirs else f"  planned {ours}, captured {theirs}"
        print(f"{what:52} {len(theirs):5}  {'equal' if ours == theirs else 'NOT'}{difference}")


def main() -> None:
    deepspeed.init_distributed("gloo")
    if dist.get_rank() == 0:
        title(f"DeepSpeed {deepspeed.__version__}, {dist.get_world_size()} ranks, beside the plan")
        print(f"{'':52} calls")
    choices = itertools.product((1, 2), (False, True), (1, 3), ("bfloat16", "float32"))
    for stage, overlap, micro_batches, dtype in choices:
        asked = stage, overlap, micro_batches, dtype
        batches = f"{micro_batches} x 1 sequence"
        what = f"ZeRO {stage}{', overlap' * overlap}, {batches}, {dtype}"
        row(what, planned(*asked), captured(*asked, DEEPSPEED_BUCKET))
    for stage, overlap, limit in itertools.product((1, 2), (False, True), (3000, 1000, 600)):
        what = f"ZeRO {stage}{', overlap' * overlap}, buckets of {limit} elements"
        calls = captured(stage, overlap, 1, "bfloat16", limit)
        after = ("all_reduce", 1)  # the overflow of gradients
        reduced = calls[: calls.index(after)]
        row(what, bucketed(stage, overlap, limit), reduced)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
