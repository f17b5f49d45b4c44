"""What one step of a language model sends, from its shape and how it is parallel: no model is made.

A step is a row of parts, each a share of what is computed, with the messages that it needs before,
that it stops for, and that it leaves behind (training/projection.py). Degrees: ``tp`` splits each
layer over ranks beside each other (M. Shoeybi et al., arXiv 1909.08053: two all_reduce of the
activations in the forward pass of a layer and two in the backward pass); ``dp`` sums gradients in
DDP's buckets; ``fsdp`` gathers a layer before it is used, forward and backward, and scatters its
gradients (training/shards.py has FSDP2's own order for a real model).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UsageError, unknown
from torchcoll.training.plans import DEFAULT_CAP_MB, DEFAULT_FIRST_MB, MIB
from torchcoll.training.sharded import BACKWARD, FORWARD

DEGREES = ("dp", "fsdp", "tp")  # from the outermost to ranks that are beside each other
_REDUCED, _GATHERED, _SCATTERED = "all_reduce", "all_gather", "reduce_scatter"
_FIRST_BYTES, _CAP_BYTES = DEFAULT_FIRST_MB * MIB, DEFAULT_CAP_MB * MIB  # of DDP's buckets
_APART = 0.05  # --parameters and --shape may differ by so much


@dataclass(frozen=True)
class Shape:
    """A decoder of layers with gated feed-forward blocks and grouped heads; kv: columns of the keys
    of all heads together. Embedding and head are not tied.
    """

    name: str
    layers: int
    hidden: int
    kv: int
    inner: int
    vocabulary: int

    @property
    def of_layer(self) -> int:
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv
        return attention + 3 * self.hidden * self.inner + 2 * self.hidden

    @property
    def of_embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.of_layer + 2 * self.of_embedding + self.hidden


# Llama 3 (arXiv 2407.21783, table 3); 8 heads of 128 for the keys.
SHAPES = {
    one.name: one
    for one in (
        Shape("llama-8b", 32, 4096, 1024, 14336, 128256),
        Shape("llama-70b", 80, 8192, 1024, 28672, 128256),
        Shape("llama-405b", 126, 16384, 1024, 53248, 128256),
    )
}


@dataclass(frozen=True)
class Sent:
    """A message: the degree or group that it is of, and S as nccl-tests counts it."""

    group: str
    collective: str
    size_bytes: int


@dataclass(frozen=True)
class StepPart:
    """share: of what its pass computes. needs: must be there before it, and may come while the part
    before it computes. stops: after it, while nothing computes. leaves: after it, beside others.
    """

    phase: str
    share: float
    needs: tuple[Sent, ...] = ()
    stops: tuple[Sent, ...] = ()
    leaves: tuple[Sent, ...] = ()


def shape_of(name: str | None, parameters: float | None) -> Shape | None:
    """The one of that name; None without a name. Raises UsageError for one that is not known, and
    for a number of parameters that is not its own.
    """
    if name is None:
        return None
    if name not in SHAPES:
        raise unknown("shape", name, SHAPES)
    shape = SHAPES[name]
    if parameters is not None and abs(parameters / shape.parameters - 1) > _APART:
        expected = f"about {shape.parameters:.4g}, which {name} has"
        raise UsageError("parameters", f"{parameters:g}", expected, "Leave one of them out.")
    return shape


def degrees_of(text: str) -> dict[str, int]:
    """``dp=64,tp=8`` -> degrees by name. Raises UsageError."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        if not equals or not number.isdecimal() or int(number) < 1:
            raise UsageError("parallel", text, "degrees such as dp=64,tp=8, each 1 or more")
        if name not in DEGREES:
            raise unknown("parallel", name, DEGREES)
        if name in found:
            raise UsageError("parallel", f"{name} twice", "each once")
        found[name] = int(number)
    if "dp" in found and "fsdp" in found:
        raise UsageError("parallel", text, "dp or fsdp", "HSDP has no plan from a shape.")
    return found


def parts_of(
    shape: Shape | None, parameters: float, degrees: Mapping[str, int], tokens: float, dtype: str
) -> list[StepPart]:
    """The parts of one step. tokens: of one replica of the model in a step.

    Raises UsageError for tp or fsdp without a shape.
    """
    itemsize = find_dtype(dtype).itemsize
    tp, sharded = degrees.get("tp", 1), degrees.get("fsdp", 1) > 1
    if shape is None:
        if tp > 1 or sharded:
            what = "tp" if tp > 1 else "fsdp"
            raise UsageError("parallel", what, "--shape NAME beside it: its layers are needed")
        # Gradients of no known layers: even buckets, ready in proportion to their bytes.
        total = parameters * itemsize
        count = max(1, math.ceil(max(total - _FIRST_BYTES, 0) / _CAP_BYTES))
        buckets = [min(_FIRST_BYTES, total)]
        if total > _FIRST_BYTES:
            buckets += [(total - _FIRST_BYTES) / count] * count
        sends = degrees.get("dp", 1) > 1
        backward = [
            StepPart(
                BACKWARD,
                size / total,
                leaves=(Sent("dp", _REDUCED, math.ceil(size)),) if sends else (),
            )
            for size in buckets
        ]
        return [StepPart(FORWARD, 1.0), *backward]
    whole = [
        shape.of_embedding,
        *[shape.of_layer] * shape.layers,
        shape.of_embedding + shape.hidden,
    ]
    sizes = [count * itemsize / tp for count in whole]
    # An embedding is looked up: what it computes is nothing beside the head's product.
    weights = [0, *whole[1:]]
    shares = [weight / sum(weights) for weight in weights]
    activations = Sent("tp", _REDUCED, math.ceil(tokens * shape.hidden * itemsize))
    inside = (activations, activations) if tp > 1 else ()
    found = []
    for place, (size, share) in enumerate(zip(sizes, shares, strict=True)):
        layer = 0 < place <= shape.layers
        gather = (Sent("fsdp", _GATHERED, math.ceil(size)),) if sharded else ()
        found.append(StepPart(FORWARD, share, gather, inside if layer else ()))
    backward = []
    for place, (size, share) in enumerate(reversed(list(zip(sizes, shares, strict=True)))):
        layer = 0 < place <= shape.layers
        bytes_of = math.ceil(size)
        needs = (Sent("fsdp", _GATHERED, bytes_of),) if sharded and place else ()  # the last stays
        leaves = (Sent("fsdp", _SCATTERED, bytes_of),) if sharded else ()
        backward.append(StepPart(BACKWARD, share, needs, inside if layer else (), leaves))
    return [*found, *(backward if sharded else _bucketed(backward, sizes[::-1], degrees))]


def _bucketed(
    parts: list[StepPart], sizes: list[float], degrees: Mapping[str, int]
) -> list[StepPart]:
    """DDP closes a bucket with the parameter that takes it to its cap. A layer's matrices are taken
    for as many pieces as it has caps in it, so that each leaves when its part of the layer is done.
    """
    if degrees.get("dp", 1) < 2:
        return parts
    found: list[StepPart] = []
    filled, limit = 0.0, _FIRST_BYTES
    for part, size in zip(parts, sizes, strict=True):
        pieces = max(1, math.ceil(size / _CAP_BYTES))
        for piece in range(pieces):
            filled += size / pieces
            last = piece == pieces - 1
            leaves: tuple[Sent, ...] = ()
            if filled >= limit or (part is parts[-1] and last):
                leaves = (Sent("dp", _REDUCED, math.ceil(filled)),)
                filled, limit = 0.0, _CAP_BYTES
            stops = part.stops if last else ()
            found.append(StepPart(BACKWARD, part.share / pieces, part.needs, stops, leaves))
    return found
