"""The calls of one step of a language model, from its shape and parallelism, without a model.

A step is a list of stages, each a share of the computation with the calls that it needs before, the
calls that block after it, and the calls that overlap with later stages (training/projection.py).
Degrees: ``tp`` splits each layer over neighbouring ranks (M. Shoeybi et al., arXiv 1909.08053: two
all_reduce of the activations in the forward pass of a layer and two in the backward pass); ``dp``
reduces gradients in DDP's buckets; ``fsdp`` gathers a layer before it is used, forward and
backward, and scatters its gradients (training/shards.py has FSDP2's own order for a real model).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UsageError, unknown
from torchcoll.training.plans import DEFAULT_CAP_MB, DEFAULT_FIRST_MB, MIB
from torchcoll.training.sharded import BACKWARD, FORWARD

DEGREES = ("dp", "fsdp", "tp")  # from the outermost to neighbouring ranks
_REDUCED, _GATHERED, _SCATTERED = "all_reduce", "all_gather", "reduce_scatter"
_FIRST_BYTES, _CAP_BYTES = DEFAULT_FIRST_MB * MIB, DEFAULT_CAP_MB * MIB  # of DDP's buckets
_TOLERANCE = 0.05  # relative difference allowed between --parameters and --shape


@dataclass(frozen=True)
class Shape:
    """A decoder of layers with gated feed-forward blocks and grouped-query attention.

    - key_columns: columns of the keys of all heads together.
    - feed_forward: columns of a feed-forward block.

    Embedding and output head are not tied.
    """

    name: str
    layers: int
    hidden: int
    key_columns: int
    feed_forward: int
    vocabulary: int

    @property
    def layer_tensors(self) -> tuple[int, ...]:
        """Number of elements of each parameter of a layer, in the order of their gradients: down,
        up, gate, norm, output, value, key, query, norm.
        """
        matrix = self.hidden * self.feed_forward
        keys = self.hidden * self.key_columns
        square = self.hidden * self.hidden
        return (*[matrix] * 3, self.hidden, square, keys, keys, square, self.hidden)

    @property
    def layer_parameters(self) -> int:
        """Number of parameters of a layer."""
        return sum(self.layer_tensors)

    @property
    def embedding_parameters(self) -> int:
        """Number of parameters of the embedding, and of the output head."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + 2 * self.embedding_parameters + self.hidden


# Llama 3 (arXiv 2407.21783, table 3); 8 heads of 128 for the keys.
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("llama-8b", 32, 4096, 1024, 14336, 128256),
        Shape("llama-70b", 80, 8192, 1024, 28672, 128256),
        Shape("llama-405b", 126, 16384, 1024, 53248, 128256),
    )
}


@dataclass(frozen=True)
class SentCall:
    """A call: its degree or group, its collective, and the size S as in nccl-tests."""

    group: str
    collective: str
    size_bytes: int


@dataclass(frozen=True)
class StepStage:
    """A stage of a step.

    - share: its share of the computation of its pass.
    - needs: calls that must end before it; they may run while the stage before it computes.
    - blocking: calls after it, during which nothing computes.
    - overlapping: calls after it that overlap with later stages.
    """

    phase: str
    share: float
    needs: tuple[SentCall, ...] = ()
    blocking: tuple[SentCall, ...] = ()
    overlapping: tuple[SentCall, ...] = ()


def find_shape(name: str | None, parameters: float | None) -> Shape | None:
    """Returns the shape of that name; None without a name.

    Raises UsageError for an unknown name, and for a number of parameters that is not the shape's.
    """
    if name is None:
        return None
    if name not in SHAPES:
        raise unknown("shape", name, SHAPES)
    shape = SHAPES[name]
    if parameters is not None and abs(parameters / shape.parameters - 1) > _TOLERANCE:
        expected = f"about {shape.parameters:.4g}, which {name} has"
        raise UsageError("parameters", f"{parameters:g}", expected, "Leave one of them out.")
    return shape


def parse_degrees(text: str) -> dict[str, int]:
    """Returns the degrees of ``dp=64,tp=8`` by name. Raises UsageError for anything else."""
    degrees: dict[str, int] = {}
    for item in text.split(","):
        name, equals, number = item.strip().partition("=")
        if not equals or not number.isdecimal() or int(number) < 1:
            raise UsageError("parallel", text, "degrees such as dp=64,tp=8, each 1 or more")
        if name not in DEGREES:
            raise unknown("parallel", name, DEGREES)
        if name in degrees:
            raise UsageError("parallel", f"{name} twice", "each once")
        degrees[name] = int(number)
    if "dp" in degrees and "fsdp" in degrees:
        raise UsageError("parallel", text, "dp or fsdp", "HSDP has no plan from a shape.")
    return degrees


def stages_from_shape(
    shape: Shape | None, parameters: float, degrees: Mapping[str, int], tokens: float, dtype: str
) -> list[StepStage]:
    """Returns the stages of one step.

    - parameters: their number; used without a shape.
    - tokens: tokens of one replica of the model in a step.

    Raises UsageError for tp or fsdp without a shape.
    """
    itemsize = find_dtype(dtype).itemsize
    tp, sharded = degrees.get("tp", 1), degrees.get("fsdp", 1) > 1
    if shape is None:
        if tp > 1 or sharded:
            what = "tp" if tp > 1 else "fsdp"
            raise UsageError("parallel", what, "--shape NAME beside it: its layers are needed")
        # Without known layers: even buckets, ready in proportion to their bytes.
        total = parameters * itemsize
        count = max(1, math.ceil(max(total - _FIRST_BYTES, 0) / _CAP_BYTES))
        buckets = [min(_FIRST_BYTES, total)]
        if total > _FIRST_BYTES:
            buckets += [(total - _FIRST_BYTES) / count] * count
        sends = degrees.get("dp", 1) > 1
        backward = [
            StepStage(
                BACKWARD,
                size / total,
                overlapping=(SentCall("dp", _REDUCED, math.ceil(size)),) if sends else (),
            )
            for size in buckets
        ]
        return [StepStage(FORWARD, 1.0), *backward]
    whole = [
        shape.embedding_parameters,
        *[shape.layer_parameters] * shape.layers,
        shape.embedding_parameters + shape.hidden,
    ]
    sizes = [count * itemsize / tp for count in whole]
    # An embedding is a lookup: its computation is negligible compared to the head's product.
    weights = [0, *whole[1:]]
    shares = [weight / sum(weights) for weight in weights]
    activations = SentCall("tp", _REDUCED, math.ceil(tokens * shape.hidden * itemsize))
    inside = (activations, activations) if tp > 1 else ()
    forward = []
    for index, (size, share) in enumerate(zip(sizes, shares, strict=True)):
        layer = 0 < index <= shape.layers
        needs_gather = (SentCall("fsdp", _GATHERED, math.ceil(size)),) if sharded else ()
        forward.append(StepStage(FORWARD, share, needs_gather, inside if layer else ()))
    backward = []
    for index, (size, share) in enumerate(reversed(list(zip(sizes, shares, strict=True)))):
        layer = 0 < index <= shape.layers
        size_bytes = math.ceil(size)
        # The parameters of the last layer are still there from the forward pass.
        needs = (SentCall("fsdp", _GATHERED, size_bytes),) if sharded and index else ()
        overlapping = (SentCall("fsdp", _SCATTERED, size_bytes),) if sharded else ()
        backward.append(StepStage(BACKWARD, share, needs, inside if layer else (), overlapping))
    if sharded or degrees.get("dp", 1) < 2:
        return [*forward, *backward]
    tensors = [
        (shape.embedding_parameters, shape.hidden),
        *[shape.layer_tensors] * shape.layers,
        (shape.embedding_parameters,),
    ]
    return [*forward, *_bucketed(backward, [[n * itemsize / tp for n in of] for of in tensors])]


def _bucketed(stages: list[StepStage], tensors: list[list[float]]) -> list[StepStage]:
    """Returns the stages of a backward pass with the all_reduce calls of DDP's buckets.

    - tensors: bytes of the parameters of each stage, in the order of their gradients.

    DDP splits no parameter and closes a bucket with the one that takes it to its cap
    (training/buckets.py), so that each parameter is a stage of its own.
    """
    bucketed: list[StepStage] = []
    filled, limit = 0.0, _FIRST_BYTES
    for stage, sizes in zip(stages, tensors, strict=True):
        for number, size in enumerate(sizes, 1):
            filled += size
            last = number == len(sizes)
            overlapping: tuple[SentCall, ...] = ()
            if filled >= limit or (stage is stages[-1] and last):
                overlapping = (SentCall("dp", _REDUCED, math.ceil(filled)),)
                filled, limit = 0.0, _CAP_BYTES
            blocking = stage.blocking if last else ()
            bucketed.append(
                StepStage(
                    BACKWARD, stage.share * size / sum(sizes), stage.needs, blocking, overlapping
                )
            )
    return bucketed
