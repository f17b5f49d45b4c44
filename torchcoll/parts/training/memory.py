"""The memory of a pipeline stage: parameters, gradients, Adam's states, buffers, and activations.

- FSDP2 pads the shards of each parameter to equal ones. In a pipeline it keeps whole gradients of
  the stage from the second micro-batch on (``to_accumulated_grad_if_needed``). With no more
  micro-batches than stages, the interleaved schedule ends the backward passes of a virtual stage
  before those of the next one, so that only one has whole gradients. torch's pipeline
  has a buffer for what each micro-batch receives, the activations and their gradients
  (torch/distributed/pipelining/stage.py, args_recv_info and grad_recv_info).
- ZERO1 has float32 copies of 16-bit parameters in its optimizer state: 12 bytes for each parameter
  (Megatron-LM, megatron/training/theoretical_memory_usage.py, num_bytes_per_parameter). Elsewhere
  Adam's states have the parameters' dtype, as in torch.optim.AdamW.
- Activations of a layer: what fused norms, FlashAttention and gated products keep for the backward
  pass, counted from its matrices: the inputs of the norms and of the matrices, queries, keys,
  values, gate and up. For Llama-3-8B these are 34 bytes for each token and hidden column, as in
  V. Korthikanti et al., arXiv 2205.05198; 67 for Gemma 7B.
- ``unfused``: what separate operations keep besides: an RMSNorm as transformers writes it, its
  input in float32 and the normalized input; a gated product, the output of its activation function.
  For Llama-3-8B 49 bytes in all, as saved-tensor hooks of transformers' layer count.
- Full checkpointing keeps the input of each layer, and one whole layer that is computed again.
  Selective checkpointing (torchtitan's ``op``) keeps half of the outputs of the matrices, and that
  of attention.
- With sequence parallelism DTensor keeps the gathered inputs of both halves of a layer, whole on
  each rank of tp; Megatron-LM and ``regather`` gather them again.
- Logits: in the loss of torch their logarithm, its gradient and that of the logits in float32: 12
  bytes each. torch's ``loss_parallel`` has four such tensors
  (torch/distributed/tensor/parallel/loss.py, _nll_loss_and_log_softmax_backward): 16 bytes.
  Megatron-LM's cross entropy works in place: 6. The inputs of the head and of its norm are kept.
- The gradients of a layer's activations: that of its input, whole on each rank of tp, and two of
  its widest ones.
- In the pipeline as many micro-batches as are in flight (Megatron-LM,
  megatron/core/pipeline_parallel/schedules.py, get_pp_rank_microbatches).

``tests/training/test_memory.py`` has what torch really allocates for FSDP2 and DDP, and published
peaks are in ``results/benchmarks/published-runs-2026-11-29.txt``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchcoll.core.collectives import find_dtype
from torchcoll.parts.training.architectures import HEAD, LAYER, ModelBlock
from torchcoll.parts.training.layouts import FULL, SELECTIVE, ZERO1
from torchcoll.parts.training.step_program import Memory

if TYPE_CHECKING:
    from torchcoll.parts.training.config_plan import StagePlan

_LOGIT_BYTES, _LOGIT_BYTES_PARALLEL, _LOGIT_BYTES_IN_PLACE = 12, 16, 6


def stage_memory(stage: StagePlan) -> Memory:
    """Returns the memory of a rank of the stage."""
    layout = stage.layout
    activations, unfused = _activations(stage)
    peak = _peak(stage)
    if layout.sharded:
        kept, trained = float(stage.kept_bytes), float(stage.trained_bytes)
        buffers = float(stage.peak_bytes)
        if layout.pp > 1 and stage.batch.micro_batches > 1:
            each = [_whole_elements(stage, blocks) for blocks in stage.chunks]
            several = stage.batch.micro_batches > layout.pp
            buffers += (sum(each) if several else max(each)) * stage.reduce_itemsize
        buffers += stage.received_bytes()
        return Memory(kept, trained, 2 * trained, buffers, activations, peak, unfused)
    seen = {weight.name: weight for weight in stage.weights()}
    whole = {False: 0.0, True: 0.0}  # elements of a rank, of experts or others
    for weight in seen.values():
        whole[weight.expert and layout.ep > 1] += math.prod(stage.local(weight))
    replicas = layout.replicas * layout.shards * layout.cp
    kept = whole[False] / replicas + whole[True] / max(1, replicas // layout.ep)
    elements = sum(whole.values())
    parameters = elements * stage.itemsize
    if layout.data == ZERO1:
        gradients = elements * stage.reduce_itemsize
        optimizer, buffers = kept * (12 if stage.itemsize < 4 else 8), 0.0
    else:
        gradients = parameters
        optimizer = 2 * parameters
        buffers = gradients if replicas > 1 else 0.0
    return Memory(parameters, gradients, optimizer, buffers, activations, peak, unfused)


def _whole_elements(stage: StagePlan, blocks: Iterable[ModelBlock]) -> int:
    """Returns the elements of the parameters of a virtual stage, before FSDP2 shards them."""
    seen = {weight.name: weight for block in blocks for weight in block.weights}
    return sum(math.prod(stage.local(weight)) for weight in seen.values())


def _layers(stage: StagePlan) -> Iterable[ModelBlock]:
    return (block for blocks in stage.chunks for block in blocks if block.kind == LAYER)


def _activations(stage: StagePlan) -> tuple[float, float]:
    """Returns the bytes that are kept for the backward pass, and those that unfused layers keep
    besides; with full checkpointing the latter of the layer that is computed again.
    """
    layout = stage.layout
    split = layout.tp if layout.sequence_parallel else 1
    input_bytes = 2 * stage.architecture.hidden * _token_bytes(stage) / split
    kept = unfused = again = 0.0
    for block in _layers(stage):
        if layout.checkpoint == FULL:
            kept += input_bytes
            again = max(again, _layer_bytes(stage, block)[1])
        elif layout.checkpoint == SELECTIVE:
            kept += input_bytes + _half_of_the_outputs(stage, block)
        else:
            fused, more = _layer_bytes(stage, block)
            kept, unfused = kept + fused, unfused + more
    # Passes of a chunk that are in flight: the warm-up, and the one that follows it.
    chunks, behind = layout.virtual, layout.pp - stage.stage - 1
    flight = behind + 1 if chunks == 1 else 2 * behind + (chunks - 1) * layout.pp + 1
    passes = min(stage.batch.micro_batches * chunks, flight) / chunks
    return kept * passes, unfused * passes + again


def _peak(stage: StagePlan) -> float:
    """Returns the bytes that come on top for a while: the logits, their gradient and the head's
    inputs before the first layer of the backward pass, or the gradients of a layer's activations
    with what checkpointing computes again, if that is more.
    """
    layout, hidden = stage.layout, stage.architecture.hidden
    peak = 0.0
    if any(block.kind == HEAD for blocks in stage.chunks for block in blocks):
        columns = -(-stage.architecture.vocabulary // layout.tp)
        each = _LOGIT_BYTES_PARALLEL if layout.tp > 1 else _LOGIT_BYTES
        each = _LOGIT_BYTES_IN_PLACE if layout.megatron else each
        split = layout.tp if layout.sequence_parallel else 1
        inputs = 2 * hidden * (1 / split + 1 / (split if layout.regathers else 1))
        peak = each * columns * stage.batch.tokens_each / layout.cp + inputs * _token_bytes(stage)
    for block in _layers(stage):
        again = 0.0
        if layout.checkpoint:
            again = _layer_bytes(stage, block)[0]
        if layout.checkpoint == SELECTIVE:
            again -= _half_of_the_outputs(stage, block)
        peak = max(peak, again + _gradient_bytes(stage, block))
    return peak


def _gradient_bytes(stage: StagePlan, block: ModelBlock) -> float:
    """Returns the bytes of the gradients of a layer's activations that exist at a time."""
    layout, architecture = stage.layout, stage.architecture
    widths = [
        weight.shape[weight.split] / (2 if "gate_up" in weight.name else 1)
        for weight in block.weights
        if not weight.expert and len(weight.shape) == 2 and weight.split is not None
    ]
    visits = architecture.top_k * architecture.expert_columns if block.moe else 0
    columns = architecture.hidden + 2 * max([*widths, visits], default=0) / layout.tp
    return 2 * columns * _token_bytes(stage)


def _token_bytes(stage: StagePlan) -> float:
    """The tokens of a micro-batch on a rank of cp; for types of 4 bytes twice as many, as the
    bytes of activations are those of 16-bit types.
    """
    itemsize = find_dtype(stage.options.activations).itemsize
    return stage.batch.tokens_each / stage.layout.cp * itemsize / 2


def _half_of_the_outputs(stage: StagePlan, block: ModelBlock) -> float:
    """Returns the bytes of half of the outputs of a layer's matrices, and of attention's."""
    split, whole = 0.0, float(stage.architecture.heads and stage.architecture.hidden)
    for weight in block.weights:
        if not weight.expert and len(weight.shape) == 2:
            if weight.split == 0:
                split += weight.shape[0] / 2
            else:
                whole += weight.shape[0] / 2
    if block.moe:
        visits = stage.architecture.top_k
        whole += stage.architecture.hidden * visits / 2
        split += stage.architecture.expert_columns * visits
    over = stage.layout.tp if stage.layout.sequence_parallel else 1
    return 2 * (whole / over + split / stage.layout.tp) * _token_bytes(stage)


def _layer_bytes(stage: StagePlan, block: ModelBlock) -> tuple[float, float]:
    """Returns the bytes of a layer's activations, and what unfused ones are more."""
    hidden, tp = stage.architecture.hidden, stage.layout.tp
    # Columns of the tensors that are kept: those that tp divides, and those that it does not.
    split, whole = 0.0, 0.0
    norms = {weight.name.rsplit(".", 1)[0] for weight in block.weights if weight.norm}
    # A norm that is not fused also keeps a tensor in float32: so many in the activations' type.
    width = 4 / find_dtype(stage.options.activations).itemsize
    activated = 0.0  # outputs of activation functions before a product, and of norms of heads
    for weight in block.weights:
        gates = 0.5 if "gate_up" in weight.name else float("gate_proj" in weight.name)
        if weight.expert:
            visits = stage.architecture.top_k * stage.architecture.expert_columns
            activated += visits if gates and len(weight.shape) == 3 else 0.0
        if weight.expert or len(weight.shape) != 2:
            continue
        activated += gates * weight.shape[0]
        if weight.split is None:
            whole += min(weight.shape)
            continue
        # The output of what is split by its output columns (queries, keys, values, gate, up),
        # and the input of what is split by its input columns (attention's output, product).
        columns = weight.shape[weight.split]
        # A norm of the queries or keys keeps its own input, too.
        by_head = weight.name.removesuffix("_proj.weight") + "_norm" in norms
        split += columns * (2 if by_head else 1)
        activated += width * columns if by_head else 0.0
    of_heads = sum(name.endswith((".q_norm", ".k_norm")) for name in norms)
    whole += hidden * (len(norms) - of_heads + 2)  # norms' inputs, and those of both halves
    if block.moe:
        # Each visit of an expert keeps its input and output, and three tensors of the expert's
        # columns, as gated feed-forward blocks do.
        visits = stage.architecture.top_k
        whole += 2.0 * hidden * visits
        split += 3.0 * visits * stage.architecture.expert_columns
    # torch has a fused kernel for a LayerNorm, which has a bias.
    layer_norms = sum(weight.norm and weight.name.endswith("bias") for weight in block.weights)
    normed = width * hidden * (len(norms) - of_heads - layer_norms)
    whole, split = 2 * whole, 2 * split  # bytes of a token
    tokens = _token_bytes(stage)
    over = tp if stage.layout.sequence_parallel else 1
    gathered = 4.0 * hidden if over > 1 and not stage.layout.regathers else 0.0
    fused = gathered + (whole - gathered) / over + split / tp
    return fused * tokens, 2 * (normed / over + activated / tp) * tokens
