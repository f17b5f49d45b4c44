"""The calls inside of a layer: tensor, sequence, context and expert parallelism.

Sizes are those of nccl-tests (S). ``act`` is the activations of a micro-batch on one rank of tp:
tokens / cp x hidden columns.

- Tensor parallelism (M. Shoeybi et al., arXiv 1909.08053, section 3): an all_reduce of ``act``
  after attention and after the feed-forward block, and one of the gradient before each in the
  backward pass. Each block has one input, as with PrepareModuleInput of torch and in Megatron-LM; a
  ColwiseParallel of its own for each of query, key and value reduces the gradient three times.
- With sequence parallelism (V. Korthikanti et al., arXiv 2205.05198, section 4.2.2): an all_gather
  before and a reduce_scatter after each block, in both passes. The gradients of the norms are
  all-reduced over tp. With ``zero1``, as in Megatron-LM, the input of a block and of the head is
  gathered again for the gradients of the weights, which torch's DTensor keeps
  (megatron/core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
- Embedding and head are split by the vocabulary, and the loss is computed on the parts
  (``loss_parallel``): three all_reduce of a float32 for each token.
- Context parallelism: torch's ring attention
  (torch/distributed/tensor/experimental/_context_parallel/_attention.py, _templated_ring_attention
  and _templated_ring_attention_backward): by default one all_gather of keys and values in each
  pass, or with the ring cp - 1 sends; the gradients of keys and values go around the ring in
  float32, cp sends. A send is an all_to_all_single there, of which all goes to the next rank
  (permute_tensor of torch/distributed/_functional_collectives.py).
- Expert parallelism (torchtitan/models/common/token_dispatcher.py, AllToAllTokenDispatcher):
  all_to_all of the numbers of tokens, of the tokens to their experts, and of the results back; in
  the backward pass the last two again. Tokens are taken as spread evenly over the experts.
  Megatron-LM (megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher)
  all_gathers the numbers, and sends the routing probabilities in calls of their own: 4 bytes for
  each token and expert, which the plan leaves out.
- Expert parallelism with tp: as in MoEAlltoAllTokenDispatcher, with the default of
  --expert-tensor-parallel-size: the experts are split over tp, and the tokens gathered and their
  results scattered over it. Without sequence parallelism Megatron-LM refuses to train that
  (megatron/core/transformer/moe/moe_layer.py, MoELayer.forward). torchtitan takes the ranks of tp
  for ep instead, and splits no expert (torchtitan/distributed/parallel_dims.py).
- Activation checkpointing of whole layers repeats the calls of the forward pass in the backward
  pass: with ``zero1`` all of them (megatron/core/tensor_parallel/random.py, CheckpointFunction),
  elsewhere without the last one, whose result is not needed (torch.utils.checkpoint stops early).

``tests/training/test_layer_calls.py`` compares these with captures of DTensor's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UsageError
from torchcoll.parts.training.architectures import EMBEDDING, HEAD, Architecture, ModelBlock
from torchcoll.parts.training.layouts import ZERO1, ParallelLayout
from torchcoll.parts.training.step_program import BLOCKS, SHARED_EXPERTS, SentCall

_REDUCED, _GATHERED, _SCATTERED = "all_reduce", "all_gather", "reduce_scatter"
_EXCHANGED, _SENT = "all_to_all", "sendrecv"


@dataclass(frozen=True)
class Batch:
    """What one data-parallel rank computes in a step.

    - micro_batches: how many forward and backward passes; each of so many sequences of tokens (a
      fraction in strong scaling).
    """

    micro_batches: int
    sequences: int
    tokens: float

    @property
    def tokens_each(self) -> float:
        """Tokens of a micro-batch."""
        return self.sequences * self.tokens

    @property
    def text(self) -> str:
        each = f"{self.sequences} x {self.tokens:g} tokens"
        return f"{self.micro_batches} micro-batches of {each}" if self.micro_batches > 1 else each


def parse_batch(text: str) -> Batch:
    """Returns the batch of ``SEQUENCESxTOKENS`` or ``MICROBATCHESxSEQUENCESxTOKENS``."""
    numbers = text.split("x")
    whole = all(number.isdecimal() and 1 <= int(number) <= 1 << 40 for number in numbers)
    if len(numbers) not in (2, 3) or not whole:
        expected = "SEQUENCESxTOKENS of a rank, such as 1x8192, or with micro-batches 16x1x8192"
        raise UsageError("batch", text, expected)
    *micro_batches, sequences, tokens = map(int, numbers)
    return Batch(micro_batches[0] if micro_batches else 1, sequences, tokens)


@dataclass(frozen=True)
class LayerOptions:
    """How the layers compute.

    - dtype: of the activations.
    - ring: context parallelism sends keys and values around a ring.
    - checkpoint: activations of layers are computed again in the backward pass.
    - capacity: capacity factor of the experts; None: no token is dropped or padded.
    """

    dtype: str
    ring: bool = False
    checkpoint: bool = False
    capacity: float | None = None


@dataclass(frozen=True)
class BlockCalls:
    """The blocking calls of a block, outside of its experts and inside of them."""

    forward: tuple[SentCall, ...] = ()
    backward: tuple[SentCall, ...] = ()
    experts_forward: tuple[SentCall, ...] = ()
    experts_backward: tuple[SentCall, ...] = ()
    norm_gradients: tuple[SentCall, ...] = ()


def block_calls(
    architecture: Architecture,
    block: ModelBlock,
    layout: ParallelLayout,
    batch: Batch,
    options: LayerOptions,
) -> BlockCalls:
    """Returns the calls of one micro-batch in a block, in their order."""
    itemsize = find_dtype(options.dtype).itemsize
    tokens = batch.tokens_each / layout.cp
    act = math.ceil(tokens * architecture.hidden * itemsize)
    tp, sp, megatron = layout.tp > 1, layout.sequence_parallel, layout.data == ZERO1
    gather = SentCall("tp", _GATHERED, act, "activations", BLOCKS)
    scatter = SentCall("tp", _SCATTERED, act, "activations", BLOCKS)
    reduce = SentCall("tp", _REDUCED, act, "activations", BLOCKS)
    norms = tuple(
        SentCall("tp", _REDUCED, n * itemsize, "gradients of norms", BLOCKS) for n in block.norms
    )
    norms = norms if sp else ()
    if block.kind == EMBEDDING:
        if not tp or not architecture.vocabulary:
            return BlockCalls()
        if sp:
            return BlockCalls((scatter,), (gather,), norm_gradients=norms)
        return BlockCalls((reduce,))
    if block.kind == HEAD:
        if not tp or not architecture.vocabulary:
            return BlockCalls(norm_gradients=norms)
        loss = SentCall("tp", _REDUCED, math.ceil(tokens * 4), "loss", BLOCKS)
        before = (gather,) if sp else ()
        again = (gather,) if sp and megatron else ()
        backward = (*again, scatter if sp else reduce)
        return BlockCalls((*before, loss, loss, loss), backward, (), (), norms)
    halves = ((gather, scatter) if sp else (reduce,)) if tp else ()
    keys_forward, keys_backward = _keys(architecture, layout, batch, options)
    routed, routed_backward = _experts(architecture, layout, batch, options)
    routed_here = bool(routed) and block.moe
    # Without routed experts on other ranks, the feed-forward block is split like any other.
    dense = halves if not routed_here or architecture.shared_experts else ()
    attention = (*halves[:1], *keys_forward, *halves[1:]) if sp else (*keys_forward, *halves)
    forward = (*attention, *dense)
    again = (gather,) if sp and megatron else ()
    dense_backward = (*dense[:1], *again, *dense[1:]) if dense else ()
    backward = (*dense_backward, *halves[:1], *keys_backward, *again, *halves[1:])
    if not sp:
        backward = (*dense, *keys_backward, *halves)
    experts_forward = routed if routed_here else ()
    experts_backward = routed_backward if routed_here else ()
    if options.checkpoint:
        stops_early = dense and not routed_here and not megatron
        repeated = forward[:-1] if stops_early else forward
        # The gradient of the last reduce_scatter is gathered before anything is computed again.
        first = backward[:1] if sp and stops_early else ()
        backward = (*first, *repeated, *backward[len(first) :])
        experts_backward = (*experts_forward, *experts_backward)
    return BlockCalls(forward, backward, experts_forward, experts_backward, norms)


def _keys(
    architecture: Architecture, layout: ParallelLayout, batch: Batch, options: LayerOptions
) -> tuple[tuple[SentCall, ...], tuple[SentCall, ...]]:
    """Returns the calls of context parallelism in the attention of a layer, of both passes."""
    if layout.cp < 2:
        return (), ()
    elements = batch.tokens_each * architecture.key_columns / layout.tp / layout.cp
    local = math.ceil(elements * find_dtype(options.dtype).itemsize)
    what = "keys and values"
    part = "the attention of another part"
    kept = [SentCall("cp", _GATHERED, local * layout.cp, what, "the attention of its own part")]
    if options.ring:
        kept = [SentCall("cp", _SENT, local, what, part)] * (layout.cp - 1)
    gradient = SentCall("cp", _SENT, math.ceil(4 * elements), "their gradients", part)
    return tuple(kept), (*kept, *[gradient] * layout.cp)


def _experts(
    architecture: Architecture, layout: ParallelLayout, batch: Batch, options: LayerOptions
) -> tuple[tuple[SentCall, ...], tuple[SentCall, ...]]:
    """Returns the calls around the routed experts of a layer, of both passes."""
    if layout.ep < 2:
        return (), ()
    split = layout.tp if layout.sequence_parallel else 1
    visits = batch.tokens_each / layout.cp / split * architecture.top_k
    visits *= 1.0 if options.capacity is None else options.capacity
    itemsize = find_dtype(options.dtype).itemsize
    size_bytes = math.ceil(visits * architecture.hidden * itemsize)
    numbers = SentCall("ep", _EXCHANGED, 8 * architecture.experts, "numbers of tokens", BLOCKS)
    there = SentCall("ep", _EXCHANGED, size_bytes, "tokens to experts", SHARED_EXPERTS)
    back = SentCall("ep", _EXCHANGED, size_bytes, "results of experts", SHARED_EXPERTS)
    if layout.tp < 2:
        return (numbers, there, back), (there, back)
    gathered = SentCall("tp", _GATHERED, size_bytes * split, "tokens of experts", BLOCKS)
    scattered = SentCall("tp", _SCATTERED, size_bytes * split, "tokens of experts", BLOCKS)
    inside = (there, gathered, scattered, back)
    return (numbers, *inside), inside
