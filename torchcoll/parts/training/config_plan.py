"""One step of a model from its config: the program of one rank, and the memory that it needs.

The rank is that of the pipeline stage with the most communication (``plan_config``). Gradients:

- ``dp``: DDP's buckets, sent in the last micro-batch (``no_sync`` in the others).
- ``zero1``: Megatron-LM's distributed optimizer with --overlap-grad-reduce and
  --overlap-param-gather: a reduce_scatter of each bucket in the backward pass of the last
  micro-batch, and an all_gather before the forward pass. On the first pipeline stage and in its
  first chunk buckets have max(40e6, 1e6 x dp) elements or more, elsewhere all parameters
  (megatron/core/distributed/distributed_data_parallel.py, DistributedDataParallel.__init__).
  bfloat16 gradients are reduced in float32 (megatron/training/arguments.py, validate_args). The
  gradients of norms are all-reduced over tp in one call
  (megatron/core/distributed/finalize_model_grads.py, _allreduce_non_tensor_model_parallel_grads).
- ``fsdp``, ``hsdp``, ``zero2``: FSDP2 with each layer and the root wrapped; ``zero2`` keeps the
  parameters after the forward pass. In each micro-batch, as without
  ``set_requires_gradient_sync``. With a pipeline, parameters are gathered once and gradients
  scattered once in a step (torch/distributed/pipelining/stage.py, backward_maybe_with_nosync;
  torchtitan does not reshard after the forward pass then). Experts that are split by ``ep`` are
  sharded over the ranks that have the same experts, by their columns if there are fewer experts
  than ranks, and have calls of their own (torchtitan/distributed/fsdp.py, apply_fsdp_to_decoder).

Pipeline: layers in equal shares (``stage_ends``), one forward and one backward in turn. Ranks are
idle for (pp - 1) / virtual micro-batches of a step (D. Narayanan et al., arXiv 2104.04473, section
2.2), for 2 (pp - 1) sends at its ends, and while the rank with the most operations, mostly that of
the head, computes longer than the mean of all (``idle_share``). A tied embedding is on the first
and on the last stage, which all_reduce its gradient. A layer computes in proportion to the
parameters that a token uses.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from torchcoll.core.collectives import find_dtype
from torchcoll.parts.training.architectures import (
    EMBEDDING,
    HEAD,
    Architecture,
    ModelBlock,
    Weight,
    model_table,
)
from torchcoll.parts.training.ddp_buckets import block_span, bucket_names
from torchcoll.parts.training.layouts import (
    ZERO1,
    Batch,
    BlockCalls,
    ParallelLayout,
    block_calls,
)
from torchcoll.parts.training.memory import stage_memory
from torchcoll.parts.training.sent_by_wrappers import (
    DEFAULT_CAP_MB,
    DEFAULT_FIRST_MB,
    MIB,
    PaddedBucket,
    Parameter,
    assign_buckets,
    distributed_optimizer_buckets,
)
from torchcoll.parts.training.sharded_program import ShardedChunk
from torchcoll.parts.training.step_program import (
    BACKWARD,
    FORWARD,
    Idle,
    Memory,
    ProgramWriter,
    SentCall,
    StepProgram,
)

_Sent = tuple[SentCall, str]  # a call and the module behind it


@dataclass(frozen=True)
class TrainingOptions:
    """How the model is trained.

    - dtype: of the parameters. param_dtype, reduce_dtype: of what is computed and sent, and of the
      gradients that are reduced; '' for dtype.
    """

    dtype: str
    param_dtype: str = ""
    reduce_dtype: str = ""

    @property
    def activations(self) -> str:
        """The dtype of the activations."""
        return self.param_dtype or self.dtype


@dataclass(frozen=True)
class ConfigPlan:
    """What one rank does in a step, and the memory that it needs.

    - memory: of the stage that needs the most.
    """

    program: StepProgram
    memory: Memory


def plan_config(
    architecture: Architecture, layout: ParallelLayout, batch: Batch, options: TrainingOptions
) -> ConfigPlan:
    """Returns the plan of the pipeline stage that sends the most bytes.

    The layout must have passed ``check_layout``.
    """
    # The first and the last may have fewer layers; the second has more in flight than later ones.
    stages = sorted({0, min(1, layout.pp - 1), layout.pp - 1})
    plans = []
    for stage in stages:
        chunks = stage_blocks(architecture, layout, stage)
        plans.append(StagePlan(architecture, layout, batch, options, stage, chunks).plan())
    busiest = max(
        plans, key=lambda plan: sum(s.size_bytes * n for s, n in plan.program.counts.items())
    )
    return replace(busiest, memory=max((p.memory for p in plans), key=lambda m: m.total))


def stage_ends(layers: int, layout: ParallelLayout) -> list[int]:
    """Returns the first layer of each virtual stage, and the number of layers.

    The embedding and the head count as a layer each, as torchtitan does by default
    (torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part), unless the
    layers divide in Megatron-LM or by virtual stages. The first stages have a layer more if they do
    not divide either.
    """
    count = layout.pp * layout.virtual
    even = layers % count == 0 and (layout.data == ZERO1 or layout.virtual > 1 or layout.pp == 1)
    least, more = divmod(layers + (0 if even else 2), count)
    ends = [0 if even else -1]
    for number in range(count):
        ends.append(ends[-1] + least + (number < more))
    return [min(max(end, 0), layers) for end in ends]


def idle_share(
    architecture: Architecture, layout: ParallelLayout, batch: Batch, tokens: float
) -> float:
    """Returns how long a rank waits for other stages of the pipeline, as a share of its computation
    of a step.

    - tokens: of a sequence, for the operations of attention.
    """
    if layout.pp < 2:
        return 0.0
    ends = stage_ends(len(architecture.layers), layout)
    flops = [architecture.flops_of_block(layer, tokens) for layer in architecture.layers]
    ranks = [0.0] * layout.pp
    for number in range(len(ends) - 1):
        ranks[number % layout.pp] += sum(flops[ends[number] : ends[number + 1]])
    ranks[-1] += architecture.flops_of_block(architecture.blocks[-1], tokens)
    longest = max(ranks) / (sum(ranks) / layout.pp)
    return longest - 1 + (layout.pp - 1) / layout.virtual / batch.micro_batches


def stage_blocks(
    architecture: Architecture, layout: ParallelLayout, stage: int
) -> list[list[ModelBlock]]:
    """Returns the blocks of each virtual stage of a rank."""
    count = layout.pp * layout.virtual
    layers = architecture.layers
    ends = stage_ends(len(layers), layout)
    chunks = []
    for number in range(stage, count, layout.pp):
        blocks = layers[ends[number] : ends[number + 1]]
        first = [block for block in architecture.blocks if block.kind == EMBEDDING]
        last = [block for block in architecture.blocks if block.kind == HEAD]
        blocks = [*first, *blocks] if number == 0 else blocks
        if number == count - 1:
            # The head of a tied model needs the embedding's matrix on its own stage.
            matrix = first[0].weights[:1] if architecture.tied and layout.pp > 1 else ()
            blocks = [*blocks, *(replace(b, weights=(*b.weights, *matrix)) for b in last)]
        chunks.append(blocks)
    return chunks


@cache
def _order_of_use(name: str) -> int:
    """Returns the index of a parameter in ``use`` of architectures.json; -1 if it is not in it.

    Gradients arrive in the reverse order.
    """
    return next((n for n, text in enumerate(model_table()["use"]) if text in name), -1)


def in_order_of_gradients(weights: Sequence[Weight]) -> list[Weight]:
    """Returns the parameters of a block in the order in which their gradients arrive: with names
    that are not in the table, the reverse of registration.
    """
    if any(_order_of_use(weight.name) < 0 for weight in weights):
        return list(weights)[::-1]

    def used(weight: Weight) -> tuple[int, bool]:
        # A bias arrives before its matrix, but after a norm's weight (and a convolution's).
        return _order_of_use(weight.name), weight.name.endswith("bias") != weight.norm

    return sorted(weights, key=used, reverse=True)


def least_memory(
    architecture: Architecture, layout: ParallelLayout, batch: Batch, options: TrainingOptions
) -> Memory:
    """Returns the memory of a rank without the buffers of FSDP2, except in a pipeline: quickly.

    The layout must have passed ``check_layout``.
    """
    stages = (
        StagePlan(
            architecture, layout, batch, options, stage, stage_blocks(architecture, layout, stage)
        )
        for stage in sorted({0, layout.pp - 1})
    )
    return max((stage.least_memory() for stage in stages), key=lambda memory: memory.total)


class StagePlan:
    """Writes the program of one rank."""

    def __init__(
        self,
        architecture: Architecture,
        layout: ParallelLayout,
        batch: Batch,
        options: TrainingOptions,
        stage: int,
        chunks: list[list[ModelBlock]],
    ) -> None:
        self.architecture, self.layout, self.batch = architecture, layout, batch
        self.options, self.stage, self.chunks = options, stage, chunks
        self.itemsize = find_dtype(options.dtype).itemsize
        self.writer = ProgramWriter()
        active = sum(architecture.active_elements(b) for blocks in chunks for b in blocks)
        self.active = (active or 1.0) * batch.micro_batches
        self.calls = {
            (block.kind, block.moe): block_calls(
                architecture, block, layout, batch, options.activations
            )
            for blocks in chunks
            for block in blocks
        }
        self.reduced: Hashable = None  # the last reduce_scatter of FSDP2
        self.peak_bytes = self.kept_bytes = self.trained_bytes = 0  # of FSDP2

    def plan(self) -> ConfigPlan:
        if self.layout.sharded:
            self._sharded()
        else:
            self._replicated()
        self._tied_embedding()
        self._bubble()
        memory = stage_memory(self)
        return ConfigPlan(StepProgram(tuple(self.writer.acts)), memory)

    def least_memory(self) -> Memory:
        if self.layout.sharded:
            self._shards([ShardedChunk(self, blocks) for blocks in self.chunks])
        return stage_memory(self)

    def weights(self) -> Iterator[Weight]:
        for blocks in self.chunks:
            for block in blocks:
                yield from block.weights

    # What both kinds do

    def calls_of(self, block: ModelBlock) -> BlockCalls:
        return self.calls[block.kind, block.moe]

    def compute(self, phase: str, block: ModelBlock, active: float | None = None) -> None:
        elements = self.architecture.active_elements(block) if active is None else active
        self.writer.work(phase, elements / self.active)

    def _gradients(self, block: ModelBlock, weights: Sequence[Weight]) -> Iterator[str]:
        """Computes the backward pass of a block, and yields the name of each parameter when its
        gradient is ready: in proportion to the elements of the gradients before it.

        - weights: in the order of their gradients.
        """
        active = self.architecture.active_elements(block)
        total = sum(weight.elements for weight in weights) or 1
        for weight in weights:
            self.compute(BACKWARD, block, active * weight.elements / total)
            yield weight.name

    def send(self, calls: Sequence[SentCall], module: str) -> None:
        """Issues the calls of a layer, and waits for those that no computation hides."""
        for sent in calls:
            if self._hidden(sent):
                self.writer.start(sent, module=module)
            else:
                self.writer.block([sent], module)

    def _hidden(self, sent: SentCall) -> bool:
        """Returns whether the layout sends the call beside a computation."""
        if sent.group == "cp":  # Transformer Engine's ring, beside the attention of another part
            return self.layout.data == ZERO1
        if sent.group == "tp":
            return self.layout.tp_overlap and sent.what == "activations"
        return sent.group == "ep" and self.layout.ep_overlap

    def _send_activations(self, chunk: int, forward: bool) -> None:
        """Sends the activations of a chunk to the next stage, or their gradients to the one
        before.
        """
        number, last = chunk * self.layout.pp + self.stage, self.layout.pp * self.layout.virtual - 1
        if self.layout.pp < 2 or number == (last if forward else 0):
            return
        sent = self._between_stages("activations" if forward else "their gradients")
        self.writer.start(sent, module=self.chunks[chunk][-1 if forward else 0].name)

    def _between_stages(self, what: str) -> SentCall:
        split = self.layout.tp if self.layout.sequence_parallel else 1
        tokens = self.batch.tokens_each / self.layout.cp / split
        itemsize = find_dtype(self.options.activations).itemsize
        size_bytes = math.ceil(tokens * self.architecture.hidden * itemsize)
        return SentCall("pp", "sendrecv", size_bytes, what)

    def received_bytes(self) -> int:
        """Returns the bytes that the rank receives from other stages in a step."""
        layout = self.layout
        ends = (self.stage == 0) + (self.stage == layout.pp - 1)
        messages = self.batch.micro_batches * (2 * layout.virtual - ends)
        return messages * self._between_stages("").size_bytes if layout.pp > 1 else 0

    def _tied_embedding(self) -> None:
        if not self.architecture.tied or self.layout.pp < 2:
            return
        if self.stage not in (0, self.layout.pp - 1):
            return
        rows = -(-self.architecture.vocabulary // self.layout.tp)
        size_bytes = rows * self.architecture.hidden * self.reduce_itemsize
        if self.layout.sharded:
            size_bytes = -(-size_bytes // (self.layout.shards * self.layout.cp))
        self.writer.block(
            [SentCall("embedding", "all_reduce", size_bytes, "gradient of the embedding")]
        )

    def _bubble(self) -> None:
        pp, virtual = self.layout.pp, self.layout.virtual
        if pp < 2:
            return
        blocking = [
            sent
            for blocks in self.chunks
            for block in blocks
            for calls in (self.calls_of(block),)
            for sent in (
                *calls.forward,
                *calls.backward,
                *calls.experts_forward,
                *calls.experts_backward,
            )
            if not self._hidden(sent)
        ]
        sends = (self._between_stages("activations"),) * (2 * (pp - 1))
        share = idle_share(self.architecture, self.layout, self.batch, self.batch.tokens)
        self.writer.acts.append(Idle(share, (pp - 1) / virtual, tuple(blocking), sends))

    @property
    def reduce_itemsize(self) -> int:
        dtype = self.options.reduce_dtype or self.options.dtype
        if not self.options.reduce_dtype and self.layout.data == ZERO1 and dtype == "bfloat16":
            dtype = "float32"
        return find_dtype(dtype).itemsize

    def local(self, weight: Weight) -> tuple[int, ...]:
        """Returns the shape of a rank's part of a parameter, before FSDP2."""
        shape = list(weight.shape)
        if weight.expert:
            shape[0] //= self.layout.ep
        if weight.split is not None:
            shape[weight.split] = -(-shape[weight.split] // self.layout.tp)
        return tuple(shape)

    def parameter(self, weight: Weight, shape: tuple[int, ...] | None = None) -> Parameter:
        return Parameter(
            weight.name,
            shape or self.local(weight),
            self.options.dtype,
            self.itemsize,
            weight.trainable,
        )

    # DDP, and Megatron-LM's distributed optimizer

    def _replicated(self) -> None:
        """Writes all micro-batches: forward passes, backward passes, buckets in the last one."""
        gathers = self._bucket_gathers()
        buckets = self._buckets()
        reduced: list[Hashable] = []
        ready = [[in_order_of_gradients(b.weights) for b in blocks] for blocks in self.chunks]
        for first, last in self.writer.micro_batches(self.batch.micro_batches):
            for number, blocks in enumerate(self.chunks):
                for block in blocks:
                    if first:
                        self.writer.wait(*{gathers.get(weight.name) for weight in block.weights})
                    self.compute(FORWARD, block)
                    calls = self.calls_of(block)
                    name = block.name
                    self.send((*calls.forward, *calls.experts_forward), name)
                self._send_activations(number, forward=True)
            for number, blocks in reversed(list(enumerate(self.chunks))):
                for block, weights in zip(reversed(blocks), reversed(ready[number]), strict=True):
                    calls = self.calls_of(block)
                    name = block.name
                    self.send((*calls.experts_backward, *calls.backward), name)
                    for parameter in self._gradients(block, weights):
                        for sent, module in buckets.get(parameter, ()) if last else ():
                            reduced.append(self.writer.start(sent, module=module))
                    if last and self.layout.data != ZERO1:
                        self.writer.block(calls.norm_gradients, name)
                self._send_activations(number, forward=False)
        if self.layout.data == ZERO1:
            self.writer.wait(*reduced)
            self._norms_together()

    def _norms_together(self) -> None:
        """Issues Megatron-LM's all_reduce of the gradients of all norms over tp."""
        norms = [n for blocks in self.chunks for block in blocks for n in block.norms]
        if self.layout.sequence_parallel and norms:
            size_bytes = sum(norms) * self.reduce_itemsize
            self.writer.block([SentCall("tp", "all_reduce", size_bytes, "gradients of norms")])

    def _registered(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        """Returns the parameters in the order of their registration."""
        names = [w.name for blocks in self.chunks for block in blocks for w in block.weights]
        order = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return sorted(parameters, key=lambda p: order[p.name])

    def _trained(self, expert: bool) -> list[Parameter]:
        """Returns the parameters of a rank in the order of their gradients: of experts, or all
        others.
        """
        separate = self.layout.ep > 1
        seen: dict[str, Parameter] = {}
        for blocks in reversed(self.chunks):
            for block in reversed(blocks):
                for weight in in_order_of_gradients(block.weights):
                    if (weight.expert and separate) == expert and weight.trainable:
                        seen.setdefault(weight.name, self.parameter(weight))
        return list(seen.values())

    def _buckets(self) -> dict[str, list[_Sent]]:
        """Returns the calls that the gradient of each parameter completes, by its name."""
        sent: dict[str, list[_Sent]] = {}
        if self.layout.data == ZERO1:
            trained = (p.name for expert in (True, False) for p in self._trained(expert))
            order = {name: number for number, name in enumerate(trained)}
            for group, bucket in self._padded_buckets():
                size_bytes = bucket.elements * self.reduce_itemsize
                call = SentCall(group, "reduce_scatter", size_bytes, "gradients")
                last = max(bucket.names, key=order.__getitem__)
                sent.setdefault(last, []).append((call, block_span(bucket.names[::-1])))
            return sent
        for expert in (False, True):
            parameters = self._trained(expert)
            group = "edp" if expert else self.layout.data_group
            if group not in self.layout.groups() or not parameters:
                continue
            limits = [DEFAULT_FIRST_MB * MIB, DEFAULT_CAP_MB * MIB]
            if self.layout.cap_mb is not None:
                limits = [int(self.layout.cap_mb * MIB)]
            buckets = assign_buckets(parameters, limits)
            order = {p.name: number for number, p in enumerate(self._registered(parameters))}
            modules = bucket_names([sorted(b.parameters, key=order.__getitem__) for b in buckets])
            for each, module in zip(buckets, modules, strict=True):
                call = SentCall(group, "all_reduce", each.size_bytes, "gradients")
                sent.setdefault(each.parameters[-1], []).append((call, module))
        return sent

    def _padded_buckets(self) -> Iterator[tuple[str, PaddedBucket]]:
        """Yields the buckets of Megatron-LM's distributed optimizer, and the group of each."""
        limit = max(40_000_000, 1_000_000 * self.layout.replicas * self.layout.shards)
        tied = self.architecture.tied and self.layout.pp > 1
        matrix = self.architecture.blocks[0].weights[0].name if tied else ""
        for number, blocks in enumerate(self.chunks):
            names = dict.fromkeys(w.name for block in blocks for w in block.weights)
            for expert in (False, True):
                group = "edp" if expert else ZERO1
                if group not in self.layout.groups():
                    continue
                trained = {parameter.name: parameter for parameter in self._trained(expert)}
                parameters = [trained[name] for name in names if name in trained]
                ranks = self.layout.groups()[group][0]
                bucketed = self.stage == 0 and number == 0
                for bucket in distributed_optimizer_buckets(
                    parameters, ranks, limit if bucketed else None, matrix
                ):
                    yield group, bucket

    def _bucket_gathers(self) -> dict[str, Hashable]:
        """Issues the all_gather of the updated parameters. Returns the call that brings each."""
        if self.layout.data != ZERO1:
            return {}
        itemsize = find_dtype(self.options.param_dtype or self.options.dtype).itemsize
        calls: dict[str, Hashable] = {}
        # The parameters of the first layers, in the last buckets, are needed first.
        for group, bucket in reversed(list(self._padded_buckets())):
            call = SentCall(group, "all_gather", bucket.elements * itemsize, "parameters")
            name = self.writer.start(call, module=block_span(bucket.names[::-1]))
            calls.update(dict.fromkeys(bucket.names, name))
        return calls

    def _sharded(self) -> None:
        """Writes all micro-batches of FSDP2."""
        chunks = [ShardedChunk(self, blocks) for blocks in self.chunks]
        for first, last in self.writer.micro_batches(self.batch.micro_batches):
            for number, chunk in enumerate(chunks):
                chunk.forward(first)
                self._send_activations(number, forward=True)
            for number, chunk in reversed(list(enumerate(chunks))):
                chunk.backward(first, last)
                self._send_activations(number, forward=False)
        self._shards(chunks)

    def _shards(self, chunks: Sequence[ShardedChunk]) -> None:
        self.peak_bytes = sum(chunk.peak_bytes for chunk in chunks)
        self.kept_bytes = sum(chunk.kept_bytes() for chunk in chunks)
        self.trained_bytes = sum(chunk.kept_bytes(trainable=True) for chunk in chunks)
