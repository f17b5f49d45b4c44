"""Is what is planned what the wrappers send? 20 architectures of transformers x 6 wrappers.

Each model has tiny widths and the structure of the real one: it is made by transformers from a
config, trained for a few steps on four gloo ranks, and the last step is captured. The plan is made
from the same model on meta (``gradient_buckets`` with the step, ``shard_traffic``), and where
``torchcoll plan --config`` describes the architecture, from its config.json alone too. Compared are
all calls of rank 0, in their order: collective, bytes in and out, dtype, op, ranks of the group.

Wrappers: DDP; DDP with ZeroRedundancyOptimizer (its broadcasts too); FSDP2; FSDP2 that keeps its
parameters after the forward pass (ZeRO-2); FSDP2 in mixed precision (param_dtype bfloat16,
reduce_dtype float32); HSDP of 2 x 2. Then, on some of them: frozen embeddings, accumulation over
two micro-batches (no_sync, set_requires_gradient_sync), activation checkpointing. The embeddings of
gpt2, bert, roberta, gemma, gemma2, bloom and t5 are tied.

It needs transformers (pip install transformers), which torchcoll itself does not.

    python tests/benchmarks/sent.py [ARCHITECTURE ...]
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import title
from planned_models import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torchcoll.parts.training.buckets import describe

from torchcoll import capture, gradient_buckets, shard_traffic
from torchcoll.core.traffic import Traffic
from torchcoll.parts.training.architectures import model_types, parse_config
from torchcoll.parts.training.config_plan import TrainingOptions, in_order_of_gradients, plan_config
from torchcoll.parts.training.layouts import LayerOptions, parse_batch, parse_layout
from torchcoll.parts.training.sent_by_wrappers import (
    Parameter,
    assign_buckets,
    zero_redundancy_calls,
)
from torchcoll.parts.training.step_program import BeginCall

try:
    import transformers
except ImportError:
    sys.exit("transformers is not installed: pip install transformers")

RANKS = 4
TOKENS = 6
# DDP's default cap is above all of these models: with this one a model has several buckets.
CAP_MB = 1 / 256
_COMMON = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 40,
}
_KEYS = {**_COMMON, "num_key_value_heads": 2}
_HEAD = {**_KEYS, "head_dim": 8}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
_ENCODER = {**_COMMON, "max_position_embeddings": 30, "type_vocab_size": 2}
_PATCHES = {**_COMMON, "image_size": 8, "patch_size": 4}
_DEEPSEEK = {
    **_COMMON,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
    "q_lora_rank": 10,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
}
# name -> (class of the config, class of the model, values of the config, class of a layer)
MODELS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _KEYS, "LlamaDecoderLayer"),
    "mistral": ("MistralConfig", "MistralForCausalLM", _KEYS, "MistralDecoderLayer"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _KEYS, "Qwen2DecoderLayer"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _HEAD, "Qwen3DecoderLayer"),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", _HEAD, "GemmaDecoderLayer"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", _HEAD, "Gemma2DecoderLayer"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {**_KEYS, "pad_token_id": 0}, "Phi3DecoderLayer"),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", _KEYS, "Olmo2DecoderLayer"),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {**_KEYS, "num_local_experts": 4},
        "MixtralDecoderLayer",
    ),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        {**_KEYS, **_MOE, "shared_expert_intermediate_size": 20},
        "Qwen2MoeDecoderLayer",
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**_HEAD, **_MOE},
        "Qwen3MoeDecoderLayer",
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        _DEEPSEEK,
        "DeepseekV3DecoderLayer",
    ),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 16, "n_layer": 3, "n_head": 4, "vocab_size": 40, "n_positions": 30},
        "GPT2Block",
    ),
    "bert": ("BertConfig", "BertForMaskedLM", _ENCODER, "BertLayer"),
    "vit": ("ViTConfig", "ViTForImageClassification", _PATCHES, "ViTLayer"),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _COMMON, "GPTNeoXLayer"),
    "bloom": (
        "BloomConfig",
        "BloomForCausalLM",
        {"hidden_size": 16, "n_layer": 3, "n_head": 4, "vocab_size": 40},
        "BloomBlock",
    ),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", _ENCODER, "RobertaLayer"),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "vocab_size": 40},
        "T5Block",
    ),
    "dinov2": (
        "Dinov2Config",
        "Dinov2ForImageClassification",
        {**_PATCHES, "mlp_ratio": 2},
        "Dinov2Layer",
    ),
}
VARIED = ("llama", "mixtral", "gpt2", "vit")  # gpt2 is tied


def make_model(name: str) -> Any:
    config_class, model_class, values, _ = MODELS[name]
    values = {
        **values,
        **dict.fromkeys(("bos_token_id", "eos_token_id"), 1),
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    }
    config = getattr(transformers, config_class)(**values)
    config._attn_implementation = "eager"
    config._experts_implementation = "batched_mm"  # "eager" reads which experts were chosen
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(config)
    model.train()
    if name == "dinov2":  # its mask token is not used: DDP refuses it, FSDP2 leaves it out
        model.dinov2.embeddings.mask_token.requires_grad_(False)
    for module in model.modules():  # the same on each rank, and nothing is dropped
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def step(model: Any) -> None:
    """One forward and backward pass, also on meta: every parameter gets a gradient."""
    inner = getattr(model, "module", model)
    if "pixel_values" in inner.main_input_name:
        out = model(pixel_values=torch.ones(2, 3, 8, 8))
    else:
        tokens = torch.arange(2 * TOKENS).view(2, TOKENS) % 36 + 2
        # Without a mask, transformers reads the positions for packed sequences.
        extra = {"attention_mask": torch.ones(2, 1, TOKENS, TOKENS, dtype=torch.bool)}
        if inner.config.model_type in ("bloom", "t5", "bert", "roberta"):
            extra = {}
        extra |= {"decoder_input_ids": tokens} if inner.config.is_encoder_decoder else {}
        extra |= {"use_cache": False} if hasattr(inner.config, "use_cache") else {}
        out = model(input_ids=tokens, **extra)
    out.logits.float().sum().backward()


def described(calls: Any, traffic: Traffic) -> list[list[Any]]:
    """What is compared, without the buffers that DDP broadcasts before a step."""
    return [
        [c.collective, c.bytes_in, c.bytes_out, c.dtype, c.op, len(traffic.members(c))]
        for c in calls
    ]


def captured(run: Any) -> list[list[Any]]:
    with capture() as traffic:
        run()
    if dist.get_rank():
        return []
    return described(traffic.calls[0], traffic)


def layers_of(model: Any, name: str) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == MODELS[name][3]]


def freeze(model: Any) -> None:
    model.get_input_embeddings().requires_grad_(False)


def with_ddp(name: str, zero: bool = False, variation: str = "") -> list[list[Any]]:
    inner = make_model(name)
    if variation == "frozen":
        freeze(inner)
    if variation == "checkpoint":
        inner.gradient_checkpointing_enable()
    model = DistributedDataParallel(inner, bucket_cap_mb=CAP_MB)
    optimizer = None
    if zero:
        trained = [p for p in inner.parameters() if p.requires_grad]
        optimizer = ZeroRedundancyOptimizer(trained, torch.optim.AdamW, lr=1e-3)

    def one_step() -> None:
        if variation == "no_sync":
            with model.no_sync():
                step(model)
        step(model)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    for _ in range(2):
        one_step()
    calls = captured(one_step)
    first = next((n for n, call in enumerate(calls) if call[0] == "all_reduce"), 0)
    return calls[first:]  # buffers are broadcast before


def with_fsdp(
    name: str, kept: bool = False, mixed: bool = False, replicas: int = 1, variation: str = ""
) -> list[list[Any]]:
    model = make_model(name)
    if variation == "frozen":
        freeze(model)
    if variation == "checkpoint":
        model.gradient_checkpointing_enable()
    shape = (RANKS,) if replicas == 1 else (replicas, RANKS // replicas)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    types = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if mixed else {}
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(**types)}
    if kept:
        options["reshard_after_forward"] = False
    for module in (*layers_of(model, name), model):
        fully_shard(module, **options)

    def one_step() -> None:
        if variation == "grad sync":
            model.set_requires_gradient_sync(False)
            step(model)
            model.set_requires_gradient_sync(True)
        step(model)

    one_step()
    return captured(one_step)


def planned(name: str, wrapper: str, variation: str = "") -> list[list[Any]]:
    """The plan from the model on meta."""
    with torch.device("meta"):
        model = make_model(name)
    if variation == "frozen":
        freeze(model)
    if wrapper.startswith("DDP"):
        traffic = gradient_buckets(model, CAP_MB, step).traffic(RANKS)
        calls = list(traffic.calls[0])
        if wrapper == "DDP+ZeRO":
            parameters = [describe(n, p) for n, p in model.named_parameters() if p.requires_grad]
            calls += zero_redundancy_calls(parameters, RANKS, calls[0].group)
        return described(calls, traffic)
    types = {"param_dtype": "bfloat16", "reduce_dtype": "float32"} if wrapper == "mixed" else {}
    traffic = shard_traffic(
        model,
        lambda _, module: type(module).__name__ == MODELS[name][3],
        RANKS,
        reshard_after_forward=False if wrapper == "kept" else None,
        replicas=2 if wrapper == "HSDP" else 1,
        accumulate=2 if variation == "grad sync" else 1,
        **types,
    )
    return described(traffic.calls[0], traffic)


def from_config(name: str, wrapper: str) -> list[list[Any]] | None:
    """[collective, S, ranks] of the plan from the config.json; None where it does not apply."""
    if name not in model_types() or wrapper == "DDP+ZeRO":
        return None
    with torch.device("meta"):
        text = make_model(name).config.to_json_string(use_diff=False)
    architecture = parse_config(json.loads(text), name)
    if wrapper == "DDP":
        gradients = [
            Parameter(weight.name, weight.shape, "float32", 4)
            for block in reversed(architecture.blocks)
            for weight in in_order_of_gradients(block.weights)
        ]
        buckets = assign_buckets(gradients, [int(CAP_MB * 2**20)], True)
        return [["all_reduce", bucket.size_bytes, RANKS] for bucket in buckets]
    types = ("bfloat16", "float32") if wrapper == "mixed" else ("", "")
    options = TrainingOptions("float32", *types, LayerOptions("float32"))
    layout = parse_layout({"kept": "zero2=4", "HSDP": "hsdp=2x2"}.get(wrapper, "fsdp=4"))
    plan = plan_config(architecture, layout, parse_batch("1x8"), options)
    return [
        [act.sent.collective, act.sent.size_bytes, layout.groups()[act.sent.group][0]]
        for act in plan.program.acts
        if isinstance(act, BeginCall)
    ]


def difference(real: list[list[Any]], plan: list[list[Any]]) -> str:
    """'' if they are the same, or the first call that differs."""
    if real == plan:
        return ""
    for number, (one, other) in enumerate(zip(real, plan, strict=False)):
        if one != other:
            return f"call {number} of {len(real)}: sent {one}, planned {other}"
    return f"{len(real)} calls sent, {len(plan)} planned"


def cases_of(name: str) -> dict[tuple[str, str], Any]:
    cases: dict[tuple[str, str], Any] = {
        ("DDP", ""): lambda: with_ddp(name),
        ("DDP+ZeRO", ""): lambda: with_ddp(name, zero=True),
        ("FSDP2", ""): lambda: with_fsdp(name),
        ("kept", ""): lambda: with_fsdp(name, kept=True),
        ("mixed", ""): lambda: with_fsdp(name, mixed=True),
        ("HSDP", ""): lambda: with_fsdp(name, replicas=2),
    }
    if name in VARIED:
        cases["DDP", "no_sync"] = lambda: with_ddp(name, variation="no_sync")
        cases["FSDP2", "grad sync"] = lambda: with_fsdp(name, variation="grad sync")
        for variation in ("frozen", "checkpoint"):
            cases["DDP", variation] = lambda v=variation: with_ddp(name, variation=v)
            cases["FSDP2", variation] = lambda v=variation: with_fsdp(name, variation=v)
    return cases


def attempt(run: Any) -> Any:
    """The result, or the error as text: one wrapper that refuses a model ends no others."""
    try:
        return run()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"


def main() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    title(
        f"Calls planned and sent, transformers {transformers.__version__}, torch "
        f"{torch.__version__}, {RANKS} gloo ranks"
    )
    same = compared = calls = 0
    of_config = of_config_same = 0
    differences = []
    for name in sys.argv[1:] or MODELS:
        cases = cases_of(name)
        keys = {" ".join(key).strip(): key for key in cases}
        with tempfile.TemporaryDirectory() as folder:
            result = on_ranks(
                Path(folder),
                RANKS,
                {text: functools.partial(attempt, cases[key]) for text, key in keys.items()},
            )
        cells = []
        for text, key in keys.items():
            real = result[text]
            plan = attempt(functools.partial(planned, name, *key))
            compared += 1
            if isinstance(real, str) or isinstance(plan, str):
                found = f"sent: {real}" if isinstance(real, str) else f"planned: {plan}"
            else:
                found = difference(real, plan)
                calls += len(real)
            same += not found
            cells.append(f"{text} {'=' if not found else 'DIFFERENT'}")
            if found:
                differences.append(f"{name} {text}: {found}")
            if key[1] or isinstance(real, str):
                continue
            config_plan = attempt(functools.partial(from_config, name, key[0]))
            if config_plan is not None:
                of_config += 1
                sizes = [[c[0], max(c[1], c[2]), c[5]] for c in real]
                found = (
                    config_plan if isinstance(config_plan, str) else difference(sizes, config_plan)
                )
                of_config_same += not found
                if found:
                    differences.append(f"{name} {text}, from its config.json: {found}")
        print(f"{name:12} {', '.join(cells)}", flush=True)
    print()
    print(
        f"{same} of {compared} the same, {calls} calls, by collective, bytes, dtype, op and ranks"
    )
    print(f"{of_config_same} of {of_config} the same from the config.json alone")
    for text in differences:
        print(f"- {text}")


if __name__ == "__main__":
    main()
