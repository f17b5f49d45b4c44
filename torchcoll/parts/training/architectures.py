"""The parameters of a model, layer by layer, from its Hugging Face ``config.json``.

Names, shapes and order are those of transformers 5.24 (``named_parameters`` of the model with its
head), which the tests compare on meta where transformers is installed. Experts of a layer are one
tensor, as there and in torchtitan. Neither torch nor transformers is needed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from torchcoll.core.errors import (
    UnreadableError,
    UnusableError,
    UsageError,
    did_you_mean,
    looks_like_file,
    nearest_file,
)

EMBEDDING, LAYER, HEAD = "embedding", "layer", "head"
MODULE = "module"  # model_type of a model that came from its code
_BIGGEST_FILE = 10 << 20  # bytes; a config.json has a few thousand
_MOST_LAYERS = 10_000  # the deepest models have 200


@dataclass(frozen=True)
class Weight:
    """A parameter of the whole model.

    - split: the dimension over which tensor parallelism splits it; None: each rank has all of it.
    - expert: the first dimension is the experts, which expert parallelism splits.
    """

    name: str
    shape: tuple[int, ...]
    split: int | None = None
    expert: bool = False
    trainable: bool = True

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def norm(self) -> bool:
        """Whether it is the weight or bias of a norm."""
        return "norm" in self.name.lower() or ".ln_" in self.name


@dataclass(frozen=True)
class ModelBlock:
    """The embedding, a layer or the head.

    - norms: the numbers of elements of its norms, whose gradients sequence parallelism reduces.
    - moe: whether it is a layer with routed experts.
    """

    kind: str
    weights: tuple[Weight, ...]
    moe: bool = False

    @property
    def elements(self) -> int:
        return sum(weight.elements for weight in self.weights)

    @property
    def norms(self) -> tuple[int, ...]:
        return tuple(weight.elements for weight in self.weights if weight.norm)


@dataclass(frozen=True)
class Architecture:
    """A model.

    - source: what the user called it.
    - heads, key_heads: of attention; key_heads counts the heads of keys and values.
    - key_columns: columns of the keys and the values of a token, which context parallelism sends.
    - feed_forward: columns of the widest feed-forward block of a layer outside of its experts.
    - experts, top_k: routed experts of a layer, and how many of them a token visits; 0 without.
    - shared_experts: a layer with experts has a dense feed-forward block too.
    - tied: the head's matrix is the embedding's.
    - dtype: of the parameters, as the config says; '' if it does not.
    - tokens: the fixed number of tokens of an input, of an image model; 0: as many as the batch
      says.
    """

    source: str
    model_type: str
    hidden: int
    heads: int
    key_heads: int
    key_columns: int
    feed_forward: int
    blocks: tuple[ModelBlock, ...]
    experts: int = 0
    top_k: int = 0
    expert_columns: int = 0
    shared_experts: bool = False
    tied: bool = False
    dtype: str = ""
    tokens: int = 0
    vocabulary: int = 0

    @property
    def parameters(self) -> int:
        return sum(block.elements for block in self.blocks)

    def active_elements(self, block: ModelBlock) -> float:
        """Returns the parameters of a block that take part in the computation of one token."""
        if block.kind == EMBEDDING:  # a lookup
            return 0.0
        share = self.top_k / self.experts if self.experts else 1.0
        elements = sum(w.elements * (share if w.expert else 1.0) for w in block.weights)
        # The product with a tied head is with the embedding's matrix.
        tied_head = self.tied and self.vocabulary and block.kind == HEAD
        return elements + (self.vocabulary * self.hidden if tied_head else 0)

    @property
    def active_parameters(self) -> float:
        """Parameters that one token uses, embedding and head included, as models are advertised."""
        share = self.top_k / self.experts if self.experts else 1.0
        weights = (weight for block in self.blocks for weight in block.weights)
        return sum(w.elements * (share if w.expert else 1.0) for w in weights)

    def flops_of_token(self, tokens: float) -> float:
        """Returns the operations of the forward and the backward pass of one token in a sequence of
        so many tokens: 6 for each parameter that it is multiplied with, and attention without a
        mask (A. Chowdhery et al., arXiv 2204.02311, appendix B).
        """
        matrices = sum(self.active_elements(block) for block in self.blocks)
        heads = self.heads / self.key_heads if self.key_heads else 0.0
        return 6 * matrices + 6 * len(self.layers) * heads * self.key_columns * tokens

    @property
    def layers(self) -> list[ModelBlock]:
        return [block for block in self.blocks if block.kind == LAYER]


def bundled_configs() -> dict[str, dict[str, Any]]:
    """Returns the configs of well-known models that are part of torchcoll, by name."""
    text = resources.files("torchcoll.parts.training").joinpath("configs.json").read_text("utf-8")
    configs: dict[str, dict[str, Any]] = json.loads(text)
    return configs


def read_architecture(source: str) -> Architecture:
    """Returns the architecture of a ``config.json``, of its folder, or of a bundled config.

    Raises UnreadableError for a file that is missing or no JSON, UnusableError for a model that
    has no description here, and UsageError for a name that is no bundled config.
    """
    path = os.path.join(source, "config.json") if os.path.isdir(source) else source
    if not os.path.exists(path):
        configs = bundled_configs()
        if source in configs:
            return parse_config(configs[source], source)
        expected = f"a config.json, MODULE:FACTORY, or one of {', '.join(configs)}"
        if os.path.isdir(source):
            raise UnreadableError("config", source, "a folder with a config.json")
        if looks_like_file(source):
            raise UnreadableError("config", source, "a file that exists", nearest_file(source))
        raise UsageError("config", source, expected, did_you_mean(source, configs))
    try:
        with open(path, "rb") as file:
            data = file.read(_BIGGEST_FILE + 1)
        if len(data) > _BIGGEST_FILE:
            raise UnreadableError("config", path, f"a file of at most {_BIGGEST_FILE >> 20} MiB")
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("config", path, f"JSON ({error})") from None
    except OSError as error:
        raise UnreadableError("config", path, f"a file that can be read ({error})") from None
    if not isinstance(config, dict):
        raise UnreadableError("config", path, "a JSON object, as Hugging Face writes it")
    return parse_config(config, source)


class _Config:
    """A config's values, checked when they are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def number(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not least <= value < 10**9:  # type: ignore[operator]
            actual = f"{name} = {value}" if value is not None else f"no {name}"
            raise UnusableError("config", actual, f"{name}, a whole number from {least} on")
        return int(value)  # type: ignore[arg-type]

    def layers(self, name: str, default: int | None = None) -> int:
        """The number of layers, of which each becomes an object."""
        count = self.number(name, default)
        if count > _MOST_LAYERS:
            raise UnusableError("config", f"{name} = {count}", f"at most {_MOST_LAYERS} layers")
        return count

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        return default if value is None else bool(value)


def parse_config(values: Mapping[str, Any], source: str) -> Architecture:
    """Returns the architecture that a config describes.

    A model of several parts, such as text and images, is its text part. Raises UnusableError for a
    model type that has no description here, or without a number that it needs.
    """
    model_type = _ALIASES.get(str(values.get("model_type")), values.get("model_type"))
    text = values.get("text_config")
    if model_type not in ARCHITECTURES and isinstance(text, Mapping) and "model_type" in text:
        return parse_config(text, f"{source} (its text part)")
    values = {**values, "model_type": model_type}
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        actual = f"model_type {model_type}" if model_type is not None else "no model_type"
        raise UnusableError(
            "config",
            actual,
            f"one of {', '.join(ARCHITECTURES)}",
            "For any other model give MODULE:FACTORY, a function that makes it.",
        )
    config = _Config(values)
    architecture = ARCHITECTURES[model_type](config)
    dtype = values.get("torch_dtype", values.get("dtype"))
    return replace(
        architecture,
        source=source,
        model_type=model_type,
        dtype=dtype if isinstance(dtype, str) else "",
    )


def _linear(
    name: str, columns_out: int, columns_in: int, split: int | None, bias: bool = False
) -> list[Weight]:
    """Returns the weights of a Linear; split 0: by its output columns, 1: by its input columns."""
    weights = [Weight(f"{name}.weight", (columns_out, columns_in), split)]
    if bias:
        weights.append(Weight(f"{name}.bias", (columns_out,), 0 if split == 0 else None))
    return weights


def _norm(name: str, columns: int, bias: bool = False) -> list[Weight]:
    names = [f"{name}.weight", f"{name}.bias"][: 1 + bias]
    return [Weight(each, (columns,)) for each in names]


def _gated(prefix: str, hidden: int, columns: int, bias: bool = False) -> list[Weight]:
    return [
        *_linear(f"{prefix}.gate_proj", columns, hidden, 0, bias),
        *_linear(f"{prefix}.up_proj", columns, hidden, 0, bias),
        *_linear(f"{prefix}.down_proj", hidden, columns, 1, bias),
    ]


def _experts(prefix: str, hidden: int, columns: int, experts: int) -> list[Weight]:
    return [
        Weight(f"{prefix}.gate_up_proj", (experts, 2 * columns, hidden), 1, expert=True),
        Weight(f"{prefix}.down_proj", (experts, hidden, columns), 2, expert=True),
    ]


def _decoder(config: _Config) -> Architecture:
    """Returns a decoder of the Llama family: gated feed-forward blocks, grouped-query attention."""
    kind = str(config.values["model_type"])
    hidden, count = config.number("hidden_size"), config.layers("num_hidden_layers")
    heads = config.number("num_attention_heads")
    key_heads = config.number("num_key_value_heads", heads)
    default_head = {"gemma": 256, "gemma2": 256}.get(kind, max(1, hidden // heads))
    head = config.number("head_dim", default_head)
    queries, keys, wide = heads * head, key_heads * head, config.number("intermediate_size")
    vocabulary = config.number("vocab_size")
    qwen2 = kind in ("qwen2", "qwen2_moe")
    bias = config.flag("attention_bias", False) or (qwen2 and config.flag("qkv_bias", True))
    output_bias = config.flag("attention_bias", False)
    mlp_bias = config.flag("mlp_bias", False)
    head_norms = {"qwen3": (head, head), "qwen3_moe": (head, head), "olmo2": (queries, keys)}
    norms = {
        "gemma2": ("input", "post_attention", "pre_feedforward", "post_feedforward"),
        "olmo2": ("post_attention", "post_feedforward"),
    }.get(kind, ("input", "post_attention"))
    experts, top_k, expert_columns = _routed(config, kind, wide)
    shared = 0
    if kind == "qwen2_moe":
        shared = config.number("shared_expert_intermediate_size", 5632)
    every = config.number("decoder_sparse_step", 1)
    dense_layers = config.values.get("mlp_only_layers") or []

    def layer(number: int) -> ModelBlock:
        prefix = f"model.layers.{number}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        if kind == "phi3":
            weights = [
                *_linear(f"{attention}.o_proj", hidden, queries, 1),
                *_linear(f"{attention}.qkv_proj", queries + 2 * keys, hidden, 0),
            ]
        else:
            weights = [
                *_linear(f"{attention}.q_proj", queries, hidden, 0, bias),
                *_linear(f"{attention}.k_proj", keys, hidden, 0, bias),
                *_linear(f"{attention}.v_proj", keys, hidden, 0, bias),
                *_linear(f"{attention}.o_proj", hidden, queries, 1, output_bias),
            ]
        if kind in head_norms:
            for name, columns in zip("qk", head_norms[kind], strict=True):
                weights += _norm(f"{attention}.{name}_norm", columns)
        moe = bool(experts) and number not in dense_layers and (number + 1) % every == 0
        if moe:
            gate = _linear(f"{mlp}.gate", experts, hidden, None)
            routed = _experts(f"{mlp}.experts", hidden, expert_columns, experts)
            weights += [*routed, *gate] if kind == "qwen3_moe" else [*gate, *routed]
            if shared:
                weights += _gated(f"{mlp}.shared_expert", hidden, shared)
                weights += _linear(f"{mlp}.shared_expert_gate", 1, hidden, None)
        elif kind == "phi3":
            weights += _linear(f"{mlp}.gate_up_proj", 2 * wide, hidden, 0)
            weights += _linear(f"{mlp}.down_proj", hidden, wide, 1)
        else:
            weights += _gated(mlp, hidden, wide, mlp_bias)
        for name in norms:
            weights += _norm(f"{prefix}.{name}_layernorm", hidden)
        return ModelBlock(LAYER, tuple(weights), moe)

    return Architecture(
        source="",
        model_type=kind,
        hidden=hidden,
        heads=heads,
        key_heads=key_heads,
        key_columns=2 * keys,
        feed_forward=shared or (0 if experts and not dense_layers else wide),
        blocks=_with_ends(config, [layer(n) for n in range(count)], hidden, vocabulary, kind),
        experts=experts,
        top_k=top_k,
        expert_columns=expert_columns,
        shared_experts=bool(shared),
        tied=config.flag("tie_word_embeddings", kind in ("gemma", "gemma2")),
        vocabulary=vocabulary,
    )


def _with_ends(
    config: _Config, layers: list[ModelBlock], hidden: int, vocabulary: int, kind: str
) -> tuple[ModelBlock, ...]:
    """Returns the blocks of a decoder: embedding, layers, and the norm with the head."""
    embedding = Weight("model.embed_tokens.weight", (vocabulary, hidden), 0)
    head = _norm("model.norm", hidden)
    if not config.flag("tie_word_embeddings", kind in ("gemma", "gemma2")):
        head += _linear("lm_head", vocabulary, hidden, 0)
    return (ModelBlock(EMBEDDING, (embedding,)), *layers, ModelBlock(HEAD, tuple(head)))


def _routed(config: _Config, kind: str, wide: int) -> tuple[int, int, int]:
    """Returns the number of routed experts, those that a token visits, and their columns."""
    if kind == "mixtral":
        experts, columns = config.number("num_local_experts", 8), wide
        top_k = config.number("num_experts_per_tok", 2)
    elif kind in ("qwen2_moe", "qwen3_moe"):
        defaults = (60, 4, 1408) if kind == "qwen2_moe" else (128, 8, 768)
        # transformers 5 writes num_local_experts, earlier releases num_experts.
        experts = config.number("num_experts", config.number("num_local_experts", defaults[0]))
        top_k = config.number("num_experts_per_tok", defaults[1])
        columns = config.number("moe_intermediate_size", defaults[2])
    else:
        return 0, 0, 0
    if top_k > experts:
        expected = f"at most the {experts} experts"
        raise UnusableError("config", f"num_experts_per_tok = {top_k}", expected)
    return experts, top_k, columns


def _deepseek(config: _Config) -> Architecture:
    """Returns DeepSeek-V3's shape: latent attention (MLA), dense layers first, then experts.

    The multi-token prediction layer, which the published checkpoint has, is not a part of the model
    in transformers.
    """
    hidden, count = config.number("hidden_size"), config.layers("num_hidden_layers")
    heads = config.number("num_attention_heads")
    rope, nope = config.number("qk_rope_head_dim"), config.number("qk_nope_head_dim")
    value, latent = config.number("v_head_dim"), config.number("kv_lora_rank")
    query_latent = config.number("q_lora_rank", 0, least=0)
    wide, vocabulary = config.number("intermediate_size"), config.number("vocab_size")
    experts = config.number("n_routed_experts")
    top_k, columns = config.number("num_experts_per_tok"), config.number("moe_intermediate_size")
    shared = config.number("n_shared_experts", 1) * columns
    dense = config.number("first_k_dense_replace", 0, least=0)
    bias = config.flag("attention_bias", False)
    if top_k > experts:
        expected = f"at most the {experts} experts"
        raise UnusableError("config", f"num_experts_per_tok = {top_k}", expected)

    def layer(number: int) -> ModelBlock:
        prefix = f"model.layers.{number}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        queries = heads * (nope + rope)
        if query_latent:
            weights = [
                *_linear(f"{attention}.q_a_proj", query_latent, hidden, None, bias),
                *_norm(f"{attention}.q_a_layernorm", query_latent),
                *_linear(f"{attention}.q_b_proj", queries, query_latent, 0),
            ]
        else:
            weights = _linear(f"{attention}.q_proj", queries, hidden, 0)
        weights += [
            *_linear(f"{attention}.kv_a_proj_with_mqa", latent + rope, hidden, None, bias),
            *_norm(f"{attention}.kv_a_layernorm", latent),
            *_linear(f"{attention}.kv_b_proj", heads * (nope + value), latent, 0),
            *_linear(f"{attention}.o_proj", hidden, heads * value, 1, bias),
        ]
        moe = number >= dense
        if moe:
            weights += _experts(f"{mlp}.experts", hidden, columns, experts)
            weights += _linear(f"{mlp}.gate", experts, hidden, None)
            weights += _gated(f"{mlp}.shared_experts", hidden, shared)
        else:
            weights += _gated(mlp, hidden, wide)
        weights += _norm(f"{prefix}.input_layernorm", hidden)
        weights += _norm(f"{prefix}.post_attention_layernorm", hidden)
        return ModelBlock(LAYER, tuple(weights), moe)

    return Architecture(
        source="",
        model_type="deepseek_v3",
        hidden=hidden,
        heads=heads,
        key_heads=heads,
        key_columns=heads * (nope + rope + value),
        feed_forward=math.gcd(wide, shared) if dense else shared,
        blocks=_with_ends(config, [layer(n) for n in range(count)], hidden, vocabulary, ""),
        experts=experts,
        top_k=top_k,
        expert_columns=columns,
        shared_experts=True,
        tied=config.flag("tie_word_embeddings", False),
        vocabulary=vocabulary,
    )


def _gpt2(config: _Config) -> Architecture:
    """Returns GPT-2, whose Conv1D matrices are transposed: (columns in, columns out)."""
    hidden, count = config.number("n_embd", 768), config.layers("n_layer", 12)
    heads, vocabulary = config.number("n_head", 12), config.number("vocab_size", 50257)
    wide = config.number("n_inner", 4 * hidden)
    positions = config.number("n_positions", 1024)

    def conv(name: str, columns_in: int, columns_out: int, split: int) -> list[Weight]:
        return [
            Weight(f"{name}.weight", (columns_in, columns_out), split),
            Weight(f"{name}.bias", (columns_out,), 0 if split == 1 else None),
        ]

    def layer(number: int) -> ModelBlock:
        prefix = f"transformer.h.{number}"
        weights = [
            *_norm(f"{prefix}.ln_1", hidden, bias=True),
            *conv(f"{prefix}.attn.c_attn", hidden, 3 * hidden, 1),
            *conv(f"{prefix}.attn.c_proj", hidden, hidden, 0),
            *_norm(f"{prefix}.ln_2", hidden, bias=True),
            *conv(f"{prefix}.mlp.c_fc", hidden, wide, 1),
            *conv(f"{prefix}.mlp.c_proj", wide, hidden, 0),
        ]
        return ModelBlock(LAYER, tuple(weights))

    embedding = (
        Weight("transformer.wte.weight", (vocabulary, hidden), 0),
        Weight("transformer.wpe.weight", (positions, hidden)),
    )
    head = _norm("transformer.ln_f", hidden, bias=True)
    tied = config.flag("tie_word_embeddings", True)
    if not tied:
        head += _linear("lm_head", vocabulary, hidden, 0)
    blocks = (
        ModelBlock(EMBEDDING, embedding),
        *(layer(n) for n in range(count)),
        ModelBlock(HEAD, tuple(head)),
    )
    return Architecture(
        source="",
        model_type="gpt2",
        hidden=hidden,
        heads=heads,
        key_heads=heads,
        key_columns=2 * hidden,
        feed_forward=wide,
        blocks=blocks,
        tied=tied,
        vocabulary=vocabulary,
    )


def _encoder_layer(
    prefix: str, names: Mapping[str, str], hidden: int, wide: int, bias: bool
) -> list[Weight]:
    """Returns the matrices of an encoder layer; ``names`` has theirs by their roles."""
    return [
        *_linear(f"{prefix}.{names['query']}", hidden, hidden, 0, bias),
        *_linear(f"{prefix}.{names['key']}", hidden, hidden, 0, bias),
        *_linear(f"{prefix}.{names['value']}", hidden, hidden, 0, bias),
        *_linear(f"{prefix}.{names['output']}", hidden, hidden, 1, True),
        *_linear(f"{prefix}.{names['up']}", wide, hidden, 0, True),
        *_linear(f"{prefix}.{names['down']}", hidden, wide, 1, True),
    ]


def _bert(config: _Config) -> Architecture:
    """Returns BERT with its head for masked tokens."""
    hidden, count = config.number("hidden_size", 768), config.layers("num_hidden_layers", 12)
    heads, wide = config.number("num_attention_heads", 12), config.number("intermediate_size", 3072)
    vocabulary = config.number("vocab_size", 30522)
    names = {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "output": "attention.output.dense",
        "up": "intermediate.dense",
        "down": "output.dense",
    }

    def layer(number: int) -> ModelBlock:
        prefix = f"bert.encoder.layer.{number}"
        weights = _encoder_layer(prefix, names, hidden, wide, True)
        inner = _norm(f"{prefix}.attention.output.LayerNorm", hidden, bias=True)
        last = _norm(f"{prefix}.output.LayerNorm", hidden, bias=True)
        return ModelBlock(LAYER, (*weights[:8], *inner, *weights[8:], *last))

    prefix = "bert.embeddings"
    embedding = (
        Weight(f"{prefix}.word_embeddings.weight", (vocabulary, hidden), 0),
        Weight(
            f"{prefix}.position_embeddings.weight",
            (config.number("max_position_embeddings", 512), hidden),
        ),
        Weight(
            f"{prefix}.token_type_embeddings.weight", (config.number("type_vocab_size", 2), hidden)
        ),
        *_norm(f"{prefix}.LayerNorm", hidden, bias=True),
    )
    head = [
        Weight("cls.predictions.bias", (vocabulary,), 0),
        *_linear("cls.predictions.transform.dense", hidden, hidden, None, True),
        *_norm("cls.predictions.transform.LayerNorm", hidden, bias=True),
    ]
    return Architecture(
        source="",
        model_type="bert",
        hidden=hidden,
        heads=heads,
        key_heads=heads,
        key_columns=2 * hidden,
        feed_forward=wide,
        blocks=(
            ModelBlock(EMBEDDING, embedding),
            *(layer(n) for n in range(count)),
            ModelBlock(HEAD, tuple(head)),
        ),
        tied=True,
        vocabulary=vocabulary,
    )


def _vit(config: _Config) -> Architecture:
    """Returns ViT with its classifier; its tokens are the patches of an image and one more."""
    hidden, count = config.number("hidden_size", 768), config.layers("num_hidden_layers", 12)
    heads, wide = config.number("num_attention_heads", 12), config.number("intermediate_size", 3072)
    image, patch = config.number("image_size", 224), config.number("patch_size", 16)
    channels = config.number("num_channels", 3)
    labels = config.values.get("id2label")
    classes = len(labels) if isinstance(labels, Mapping) else config.number("num_labels", 2)
    tokens = (image // patch) ** 2 + 1
    bias = config.flag("qkv_bias", True)
    names = {
        "query": "attention.q_proj",
        "key": "attention.k_proj",
        "value": "attention.v_proj",
        "output": "attention.o_proj",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    }

    def layer(number: int) -> ModelBlock:
        prefix = f"vit.layers.{number}"
        weights = _encoder_layer(prefix, names, hidden, wide, bias)
        norms = _norm(f"{prefix}.layernorm_before", hidden, bias=True)
        norms += _norm(f"{prefix}.layernorm_after", hidden, bias=True)
        return ModelBlock(LAYER, (*weights[:8], *norms, *weights[8:]))

    embedding = (
        Weight("vit.embeddings.cls_token", (1, 1, hidden)),
        Weight("vit.embeddings.position_embeddings", (1, tokens, hidden)),
        Weight(
            "vit.embeddings.patch_embeddings.projection.weight", (hidden, channels, patch, patch)
        ),
        Weight("vit.embeddings.patch_embeddings.projection.bias", (hidden,)),
    )
    head = [
        *_norm("vit.layernorm", hidden, bias=True),
        *_linear("classifier", classes, hidden, None, True),
    ]
    return Architecture(
        source="",
        model_type="vit",
        hidden=hidden,
        heads=heads,
        key_heads=heads,
        key_columns=2 * hidden,
        feed_forward=wide,
        blocks=(
            ModelBlock(EMBEDDING, embedding),
            *(layer(n) for n in range(count)),
            ModelBlock(HEAD, tuple(head)),
        ),
        tokens=tokens,
    )


# Models with the parameters of another type, under a name of their own.
_ALIASES = {
    "kimi_k2": "deepseek_v3",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
}
ARCHITECTURES: dict[str, Callable[[_Config], Architecture]] = {
    **dict.fromkeys(
        (
            *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "olmo2"),
            *("mixtral", "qwen2_moe", "qwen3_moe"),
        ),
        _decoder,
    ),
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    "bert": _bert,
    "vit": _vit,
}
