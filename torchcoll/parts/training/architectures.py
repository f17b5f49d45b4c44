"""The parameters of a model, layer by layer, from its Hugging Face ``config.json``.

``architectures.json`` has the names, shapes and order of transformers 5.24 (``named_parameters`` of
the model with its head). Experts of a layer are one tensor, as there and in torchtitan. Neither
torch nor transformers is needed.

The file has ``use``, fragments of names in the order in which a forward pass uses the parameters,
and for each ``model_type``, with what it inherits from the type it is ``like``:

- ``numbers``: variables, each with alternatives in turn: a key of the config, ``#key`` for its
  length, a number, or ``=`` and a sum of products of earlier variables.
- ``flags``: variables that are true where any of these keys of the config is, with its default.
- ``moe``: the rule for which layers have routed experts (``_has_experts``).
- ``embedding``, ``layer``, ``head``: lines of ``CONDITION: KIND NAME SHAPE SPLIT``. A condition
  names flags, numbers that are not 0, and kinds of the layer (``_tags``), joined by ``&``, with
  ``!`` for not. Kinds: ``W`` a tensor, ``L`` a Linear of columns out and in, ``C`` a Conv1D of
  columns in and out, ``N`` a norm, ``NB`` a norm with a bias, ``X`` a tensor of all experts. The
  split is the dimension that tensor parallelism splits, ``-`` for none. The last field of a Linear
  is the flag of its bias.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

from torchcoll.core.errors import (
    UnreadableError,
    UnusableError,
    UsageError,
    did_you_mean,
    looks_like_file,
    missing_file,
)
from torchcoll.parts.training.ddp_buckets import block_span

EMBEDDING, LAYER, HEAD = "embedding", "layer", "head"
MODULE = "module"  # model_type of a model that came from its code
_BIGGEST_FILE = 10 << 20  # bytes; a config.json has a few thousand
_BIDIRECTIONAL = ("bert", "vit")  # without a causal mask
_KEYS = ("k_proj", "kv_", "qkv", "c_attn", ".key.", "wkv")  # in names of the matrices of keys
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

    @cached_property
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

    @cached_property
    def elements(self) -> int:
        return sum(weight.elements for weight in self.weights)

    @cached_property
    def expert_elements(self) -> int:
        return sum(weight.elements for weight in self.weights if weight.expert)

    @cached_property
    def name(self) -> str:
        """What its calls are named after, such as ``model.layers.0``."""
        return block_span([weight.name for weight in self.weights])

    @cached_property
    def attends(self) -> bool:
        """Whether it is a layer with attention over the tokens, not a state of fixed size."""
        if self.kind != LAYER:
            return False
        names = [weight.name for weight in self.weights if "linear_attn" not in weight.name]
        return any(part in name for name in names for part in _KEYS)

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
    - expert_input: columns of what is sent to an expert; fewer than hidden with latent experts.
    - expert_groups: the groups of experts that a token may visit, of several; 0: all.
    - shared_experts: a layer with experts has a dense feed-forward block too.
    - tied: the head's matrix is the embedding's.
    - dtype: of the parameters, as the config says; '' if it does not.
    - tokens: the fixed number of tokens of an input, of an image model; 0: as many as the batch
      says.
    """

    source: str
    model_type: str
    blocks: tuple[ModelBlock, ...]
    hidden: int = 0
    heads: int = 0
    key_heads: int = 0
    key_columns: int = 0
    feed_forward: int = 0
    experts: int = 0
    top_k: int = 0
    expert_columns: int = 0
    expert_input: int = 0
    expert_groups: int = 0
    shared_experts: bool = False
    tied: bool = False
    dtype: str = ""
    tokens: int = 0
    vocabulary: int = 0

    @cached_property
    def parameters(self) -> int:
        return sum(block.elements for block in self.blocks)

    def active_elements(self, block: ModelBlock) -> float:
        """Returns the parameters of a block that take part in the computation of one token."""
        if block.kind == EMBEDDING:  # a lookup
            return 0.0
        elements = block.elements - block.expert_elements * self._unvisited
        # The product with a tied head is with the embedding's matrix.
        tied_head = self.tied and self.vocabulary and block.kind == HEAD
        return elements + (self.vocabulary * self.hidden if tied_head else 0)

    @property
    def active_parameters(self) -> float:
        """Parameters that one token uses, embedding and head included, as models are advertised."""
        experts = sum(block.expert_elements for block in self.blocks)
        return self.parameters - experts * self._unvisited

    @property
    def _unvisited(self) -> float:
        """The share of the experts that a token does not visit."""
        return 1 - self.top_k / self.experts if self.experts else 0.0

    def flops_of_token(self, tokens: float, masked: bool = False) -> float:
        """Returns the operations of the forward and the backward pass of one token in a sequence of
        so many tokens: 6 for each parameter that it is multiplied with, and attention without a
        mask (A. Chowdhery et al., arXiv 2204.02311, appendix B).

        - masked: without the half of attention that a causal mask hides, which FlashAttention skips
          (T. Dao, arXiv 2307.08691, section 3.1).

        Mamba and linear attention have the operations of their parameters alone.
        """
        matrices, attending = self._computed
        return 6 * matrices + attending * self._attention_flops(tokens, masked)

    def flops_of_block(self, block: ModelBlock, tokens: float) -> float:
        """Returns the same of one block, without what a causal mask hides."""
        attention = self._attention_flops(tokens, True) if block.attends else 0.0
        return 6 * self.active_elements(block) + attention

    @cached_property
    def _computed(self) -> tuple[float, int]:
        """The parameters that a token is multiplied with, and the layers with attention."""
        matrices = sum(self.active_elements(block) for block in self.blocks)
        return matrices, sum(block.attends for block in self.blocks)

    def _attention_flops(self, tokens: float, masked: bool) -> float:
        heads = self.heads / self.key_heads if self.key_heads else 0.0
        causal = masked and self.model_type not in _BIDIRECTIONAL
        return 6 * tokens * (0.5 if causal else 1.0) * heads * self.key_columns

    @cached_property
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
            raise missing_file(source)
        raise UsageError("config", source, expected, did_you_mean(source, configs))
    try:
        with open(path, "rb") as file:
            data = file.read(_BIGGEST_FILE + 1)
        if len(data) > _BIGGEST_FILE:
            raise UnreadableError("config", path, f"a file of at most {_BIGGEST_FILE >> 20} MiB")
        config = json.loads(data)
    except (ValueError, RecursionError, OSError) as error:
        raise UnreadableError("config", path, f"JSON that can be read ({error})") from None
    if not isinstance(config, dict):
        raise UnreadableError("config", path, "a JSON object, as Hugging Face writes it")
    return parse_config(config, source)


@cache
def model_table() -> dict[str, dict[str, Any]]:
    """Returns the contents of architectures.json: the types with what they inherit."""
    files = resources.files("torchcoll.parts.training")
    table = json.loads(files.joinpath("architectures.json").read_text("utf-8"))
    types: dict[str, Any] = table["types"]
    for entry in types.values():
        while "like" in entry:
            base = types[entry.pop("like")]
            for key, value in base.items():
                if isinstance(value, dict):
                    entry[key] = {**value, **entry.get(key, {})}
                elif key != "abstract":
                    entry.setdefault(key, value)
    return {**table, "types": {k: v for k, v in types.items() if k != "decoder"}}


def parse_config(values: Mapping[str, Any], source: str) -> Architecture:
    """Returns the architecture that a config describes.

    A model of several parts, such as text and images, is its text part. Raises UnusableError for a
    model type that has no description, or without a number that it needs.
    """
    table = model_table()
    named = values.get("model_type")
    model_type = table["aliases"].get(named, named) if isinstance(named, str) else ""
    text = values.get("text_config")
    if model_type not in table["types"]:
        if isinstance(text, Mapping) and "model_type" in text:
            return parse_config(text, f"{source} (its text part)")
        actual = f"model_type {named}" if named is not None else "no model_type"
        if "_diffusers_version" in values:
            actual = f"a diffusers config ({values.get('_class_name')})"
        hint = did_you_mean(named, [*table["types"], *table["aliases"]]) if named else ""
        raise UnusableError(
            "config",
            actual,
            "the config of a transformer that plan knows (docs/plan.md lists them)",
            f"{hint} For any other model give MODULE:FACTORY, a function that makes it.".strip(),
        )
    return _Reader(values, model_type, table["types"][model_type]).architecture(source)


class _Reader:
    """Reads a config by the description of its type."""

    def __init__(
        self, values: Mapping[str, Any], model_type: str, entry: Mapping[str, Any]
    ) -> None:
        self.values, self.model_type, self.entry = values, model_type, entry
        self.flags = {
            name: any(
                bool(default if values.get(key) is None else values[key])
                for key, default in keys.items()
            )
            for name, keys in entry["flags"].items()
        }
        self.flags["tied"] |= bool(entry.get("tied"))
        self.numbers: dict[str, int] = {}
        for name in entry["numbers"]:
            self.number(name)
        if self.number("layers") > _MOST_LAYERS:
            actual = f"num_hidden_layers = {self.number('layers')}"
            raise UnusableError("config", actual, f"at most {_MOST_LAYERS} layers")
        if self.number("top_k") > self.number("experts"):
            expected = f"at most the {self.number('experts')} experts"
            raise UnusableError("config", f"num_experts_per_tok = {self.number('top_k')}", expected)

    def number(self, name: str) -> int:
        """Returns a number of the description; 0 without it."""
        if name not in self.numbers and name in self.entry["numbers"]:
            self.numbers[name] = self._number(self.entry["numbers"][name])
        return self.numbers.get(name, 0)

    def _number(self, alternatives: Sequence[Any]) -> int:
        """Returns the first alternative that the config has."""
        for alternative in alternatives:
            if isinstance(alternative, int):
                return alternative
            if alternative.startswith("="):
                return self._evaluate(alternative[1:])
            value = self.values.get(alternative.removeprefix("#"))
            if alternative.startswith("#"):
                value = len(value) if isinstance(value, Mapping | list) else None
            if value is None:
                continue
            least = 0 if 0 in alternatives else 1
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not least <= value < 10**9:
                actual, expected = f"{alternative} = {value}", f"a whole number from {least} on"
                raise UnusableError("config", actual, f"{alternative}, {expected}")
            return int(value)
        name = alternatives[0]
        raise UnusableError("config", f"no {name}", f"{name}, a whole number from 1 on")

    def _evaluate(self, text: str) -> int:
        """Returns the value of a sum of products, such as ``heads*head+2*keys``."""
        total = 0
        for term in text.split("+"):
            above, *below = term.split("/")
            product = math.prod(
                int(factor) if factor.isdecimal() else self.number(factor)
                for factor in above.split("*")
            )
            for factor in below:
                product = max(1, product // max(1, self.number(factor)))
            total += product
        return total

    def architecture(self, source: str) -> Architecture:
        numbers, count = self.numbers, self.number("layers")
        tags = [self._tags(n) for n in range(count)]
        layers = [
            ModelBlock(
                LAYER,
                tuple(self._weights("layer", tags[n], f"{self.entry['prefix']}.{n}.")),
                "moe" in tags[n],
            )
            for n in range(count)
        ]
        routed = any(layer.moe for layer in layers)
        visited = self.number("visited_groups")  # node-limited routing
        dense = not routed or any("dense" in each or "mlp" in each for each in tags)
        dtype = self.values.get("torch_dtype", self.values.get("dtype"))
        return Architecture(
            source=source,
            model_type=self.model_type,
            hidden=numbers["hidden"],
            heads=numbers["heads"],
            key_heads=numbers["key_heads"],
            key_columns=numbers["key_columns"],
            feed_forward=math.gcd(
                numbers["wide"] if dense else 0, self.number("shared") if routed else 0
            ),
            blocks=(
                ModelBlock(EMBEDDING, tuple(self._weights("embedding", set(), ""))),
                *layers,
                ModelBlock(HEAD, tuple(self._weights("head", set(), ""))),
            ),
            experts=self.number("experts") if routed else 0,
            top_k=self.number("top_k") if routed else 0,
            expert_columns=self.number("columns") if routed else 0,
            expert_input=self.number("expert_width") or numbers["hidden"],
            expert_groups=visited if visited < self.number("expert_groups") else 0,
            shared_experts=routed and self.number("shared") > 0,
            tied=self.flags["tied"],
            dtype=dtype if isinstance(dtype, str) else "",
            tokens=self.number("tokens"),
            vocabulary=self.number("vocabulary"),
        )

    def _tags(self, layer: int) -> set[str]:
        """Returns the kinds of a layer: of its attention, and of its feed-forward block."""
        tags = set()
        for key in _LAYER_KINDS:
            kinds = self.values.get(key)
            if isinstance(kinds, Sequence) and layer < len(kinds):
                tags.add(_KINDS.get(kinds[layer], str(kinds[layer])))
        ratios = self.values.get("compress_ratios")
        if isinstance(ratios, Sequence) and layer < len(ratios):
            tags.add(f"compress_{ratios[layer]}")
        indexers = self.values.get("indexer_types")
        if not isinstance(indexers, Sequence) or indexers[layer : layer + 1] == ["full"]:
            tags.add("full_index")
        if self.entry.get("moe") != "pattern":
            tags.add("moe" if self._has_experts(layer) else "dense")
        return tags

    def _has_experts(self, layer: int) -> bool:
        rule = self.entry.get("moe")
        if not rule or not self.number("experts"):
            return False
        values = self.values
        if rule == "after_dense":
            return bool(layer >= (values.get("first_k_dense_replace") or 0))
        if rule == "list":
            each = values.get("moe_layer_freq")
            return not isinstance(each, Sequence) or bool(each[layer : layer + 1] == [1])
        if rule == "interleaved":
            return bool((layer + 1) % (values.get("interleave_moe_layer_step") or 1) == 0)
        if rule == "sparse_step":
            step = values.get("decoder_sparse_step") or 1
            return layer not in (values.get("mlp_only_layers") or []) and (layer + 1) % step == 0
        return True

    def _holds(self, condition: str, tags: set[str]) -> bool:
        return all(
            (name in tags or self.flags.get(name, False) or self.number(name) > 0) == wanted
            for each in condition.split("&")
            for name, wanted in ((each.removeprefix("!"), not each.startswith("!")),)
        )

    def _weights(self, part: str, tags: set[str], prefix: str) -> Iterator[Weight]:
        """Yields the parameters of a part whose conditions hold."""
        for line in self.entry[part]:
            condition, colon, rest = line.partition(": ")
            if not colon:
                rest = line
            elif not self._holds(condition, tags):
                continue
            kind, name, *fields = rest.split()
            name = prefix + name
            if kind in ("N", "NB"):
                columns = self._evaluate(fields[0])
                for suffix in ("weight", "bias")[: len(kind)]:
                    yield Weight(f"{name}.{suffix}", (columns,))
            elif kind in ("W", "X"):
                shape = tuple(map(self._evaluate, fields[0].split(",")))
                split = None if fields[1:] in ([], ["-"]) else int(fields[1])
                yield Weight(name, shape, split, expert=kind == "X")
            else:
                yield from self._matrix(kind, name, fields)

    def _matrix(self, kind: str, name: str, fields: Sequence[str]) -> Iterator[Weight]:
        """Yields the weight of a Linear (L) or a Conv1D (C), and its bias where it has one."""
        first, second = map(self._evaluate, fields[:2])
        split = None if fields[2] == "-" else int(fields[2])
        yield Weight(f"{name}.weight", (first, second), split)
        if kind == "C" or (fields[3:] and self.flags.get(fields[3], False)):
            columns, by_output = (second, 1) if kind == "C" else (first, 0)
            yield Weight(f"{name}.bias", (columns,), 0 if split == by_output else None)


# Keys of configs that list the kinds of their layers.
_LAYER_KINDS = (
    "layer_types",
    "layers_block_type",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
)
# The kinds of a layer by the letters of NVIDIA's patterns, and by the numbers of MiMo's.
_KINDS: dict[Any, str] = {
    "M": "mamba",
    "E": "moe",
    "*": "attention",
    "-": "mlp",
    0: "full_attention",
    1: "sliding_attention",
}
