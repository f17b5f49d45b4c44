"""Is what is planned for the optimizers of DeepSpeed and Megatron-LM what they send? Real steps.

A small Llama is trained on gloo ranks by ``deepspeed.initialize`` (ZeRO 1 and 2), or in Megatron
core's DistributedDataParallel as its distributed optimizer needs it; the second step is captured.
Compared are all calls of rank 0 in their order, by collective and bytes, with ``torchcoll plan
--config`` where buckets have their default size. With smaller ones the reductions are compared with
``deepspeed_buckets`` and ``distributed_optimizer_buckets``, and Megatron's all_gathers without
their order; for these the gradients' order is that of hooks on the same model without the library.

It needs DeepSpeed or Megatron core (pip install deepspeed megatron-core), which torchcoll itself
does not.

    DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 tests/benchmarks/sent_by_zero.py deepspeed
    torchrun --nproc-per-node 2 tests/benchmarks/sent_by_zero.py megatron
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import title

sys.path.insert(0, str(Path(__file__).parent.parent))
from parallel_models import HIDDEN, TOKENS, VOCABULARY, Llama, llama_config

from torchcoll import capture
from torchcoll.training.architectures import parse_config
from torchcoll.training.config_plan import TrainingOptions, plan_config
from torchcoll.training.layer_calls import parse_batch
from torchcoll.training.layouts import parse_layout
from torchcoll.training.sent_by_wrappers import (
    DEEPSPEED_BUCKET,
    PaddedBucket,
    Parameter,
    deepspeed_buckets,
    distributed_optimizer_buckets,
)
from torchcoll.training.step_program import BeginCall

Call = tuple[str, int]  # collective, bytes of the larger side
LIMITS = (3000, 1000, 600)  # elements of a bucket; the largest parameter has 640


def tokens() -> torch.Tensor:
    return torch.randint(VOCABULARY, (1, TOKENS))


def second_step(step: Callable[[], object]) -> list[Call]:
    step()
    with capture() as traffic:
        step()
    calls = traffic.calls[dist.get_rank()]
    return [(call.collective, max(call.bytes_in, call.bytes_out)) for call in calls]


def planned(layout: str, micro_batches: int, dtype: str) -> list[Call]:
    program = plan_config(
        parse_config(llama_config(), "a small Llama"),
        parse_layout(layout),
        parse_batch(f"{micro_batches}x1x{TOKENS}"),
        TrainingOptions(dtype),
    ).program
    sent = [act.sent for act in program.acts if isinstance(act, BeginCall)]
    return [(call.collective, call.size_bytes) for call in sent]


def parameters() -> tuple[list[Parameter], list[Parameter]]:
    """In the order of registration, and in that of their gradients."""
    model, order = Llama(), []
    registered = {
        name: Parameter(name, tuple(weight.shape), "bfloat16", 2)
        for name, weight in model.named_parameters()
    }
    for name, weight in model.named_parameters():
        weight.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    model(tokens()).sum().backward()
    return list(registered.values()), [registered[name] for name in order]


def row(what: str, ours: list[Call], theirs: list[Call]) -> None:
    if dist.get_rank() == 0:
        difference = "" if ours == theirs else f"  planned {ours}, captured {theirs}"
        print(f"{what:52} {len(theirs):5}  {'equal' if ours == theirs else 'NOT'}{difference}")


def deepspeed_step(
    stage: int, overlap: bool, micro_batches: int, dtype: str, limit: int
) -> list[Call]:
    import deepspeed

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
    model = Llama()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )

    def step() -> None:
        for _ in range(micro_batches):
            engine.backward(engine(tokens()).float().sum())
            engine.step()

    return second_step(step)


def of_deepspeed(ranks: int) -> None:
    choices = itertools.product((1, 2), (False, True), (1, 3), ("bfloat16", "float32"))
    for stage, overlap, micro_batches, dtype in choices:
        layout = f"zero{stage}-deepspeed={ranks}" + ",overlap" * overlap
        calls = deepspeed_step(stage, overlap, micro_batches, dtype, DEEPSPEED_BUCKET)
        what = f"ZeRO {stage}{', overlap' * overlap}, {micro_batches} x 1 sequence, {dtype}"
        row(what, planned(layout, micro_batches, dtype), calls)
    registered, ready = parameters()
    for stage, overlap, limit in itertools.product((1, 2), (False, True), LIMITS):
        taken = ready if stage == 2 or overlap else registered
        buckets = deepspeed_buckets(taken, ranks, registered, limit)
        calls = deepspeed_step(stage, overlap, 1, "bfloat16", limit)
        reduced = calls[: calls.index(("all_reduce", 1))]  # then the overflow of gradients
        what = f"ZeRO {stage}{', overlap' * overlap}, buckets of {limit} elements"
        row(what, [("all_reduce", 2 * bucket.elements) for bucket in buckets], reduced)


def megatron_step(micro_batches: int, limit: int) -> list[Call]:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer import TransformerConfig

    model = DistributedDataParallel(
        TransformerConfig(num_layers=2, hidden_size=HIDDEN, num_attention_heads=4),
        DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            use_distributed_optimizer=True,
            bucket_size=limit,
        ),
        Llama().bfloat16(),
    )

    def step() -> None:
        model.zero_grad_buffer()
        for number in range(micro_batches):
            last = number == micro_batches - 1
            with contextlib.nullcontext() if last else model.no_sync():
                model(tokens()).float().sum().backward()
        model.finish_grad_sync()

    return second_step(step)


def of_megatron(ranks: int) -> None:
    from megatron.core import parallel_state

    torch.cuda.current_device = lambda: "cpu"  # where Megatron core allocates its buffers
    parallel_state.initialize_model_parallel()
    default = max(40_000_000, 1_000_000 * ranks)  # as DistributedDataParallel has it
    for micro_batches in (1, 3):
        what = f"distributed optimizer, {micro_batches} x 1 sequence, bfloat16"
        calls = planned(f"zero1={ranks}", micro_batches, "bfloat16")
        row(what, calls, megatron_step(micro_batches, default))
    registered, ready = parameters()
    order = {parameter.name: number for number, parameter in enumerate(ready)}

    def completed(bucket: PaddedBucket) -> int:
        return max(order[name] for name in bucket.names)

    for limit in LIMITS:
        buckets = distributed_optimizer_buckets(registered, ranks, limit, "")
        ours = [("all_gather", 2 * bucket.elements) for bucket in reversed(buckets)]
        ours += [("reduce_scatter", 4 * b.elements) for b in sorted(buckets, key=completed)]
        calls = megatron_step(1, limit)
        # The small Llama uses its parameters in another order than it has them, and Megatron core
        # gathers first what is used first. It warns of it.
        count = len(buckets)
        ours, calls = (sorted(all_calls[:count]) + all_calls[count:] for all_calls in (ours, calls))
        row(f"distributed optimizer, buckets of {limit} elements", ours, calls)


def main() -> None:
    name = sys.argv[1]
    if name == "deepspeed":
        import deepspeed

        deepspeed.init_distributed("gloo")
        version = f"DeepSpeed {deepspeed.__version__}"
    else:
        import megatron.core

        dist.init_process_group("gloo")
        version = f"Megatron core {megatron.core.__version__}"
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    if dist.get_rank() == 0:
        title(f"{version}, {ranks} ranks, beside the plan")
        print(f"{'':52} calls")
    (of_deepspeed if name == "deepspeed" else of_megatron)(ranks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
