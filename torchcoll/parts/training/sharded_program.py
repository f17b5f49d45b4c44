"""The calls of FSDP2 in the order in which fully_shard's hooks issue them, as a part of a program.

Sources: torch/distributed/fsdp/_fully_shard: _fsdp_collectives.py for the sizes,
_fsdp_param_group.py and _fsdp_state.py for the order.
``tests/training/test_planned_and_captured.py`` compares the calls with those of the real wrapper.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchcoll.core.collectives import find_dtype
from torchcoll.core.traffic import ROOT
from torchcoll.parts.training.architectures import EMBEDDING, LAYER, ModelBlock
from torchcoll.parts.training.layouts import HSDP, ZERO2
from torchcoll.parts.training.sent_by_wrappers import Parameter
from torchcoll.parts.training.step_program import (
    BACKWARD,
    COPIED_OUT,
    FORWARD,
    SentCall,
)

if TYPE_CHECKING:
    from torchcoll.parts.training.config_plan import StagePlan


@dataclass(eq=False)
class ShardUnit:
    """A unit of FSDP2: the root or a wrapped module, with the parameters that no inner unit has.

    - module: its name in the model. group: its group in the layout; shards: the ranks of it.
    - experts: whether it is the experts of a layer.
    - inner: its inner units.
    - body: its own blocks with the parameters that a token uses, and its inner units, in
      registration order.
    - gradient_in, gradient_out: whether its input and its output need a gradient.
    """

    module: str
    group: str
    shards: int
    experts: bool = False
    parameters: dict[str, Parameter] = field(default_factory=dict)
    inner: list[ShardUnit] = field(default_factory=list)
    body: list[tuple[ModelBlock, float] | ShardUnit] = field(default_factory=list)
    gradient_in: bool = True
    gradient_out: bool = True

    def walk(self) -> Iterator[ShardUnit]:
        yield self
        for unit in self.inner:
            yield from unit.walk()

    @property
    def trainable(self) -> list[Parameter]:
        return [p for p in self.parameters.values() if p.trainable]

    @property
    def blocks(self) -> list[ModelBlock]:
        return [entry[0] for entry in self.body if not isinstance(entry, ShardUnit)]


class ShardedChunk:
    """FSDP2 in a chunk of a pipeline stage: each layer and the root are a unit.

    - peak_bytes: the largest number of bytes that a rank holds of whole parameters, whole
      gradients, and what is being gathered or reduced. The output of an all_gather is copied out,
      and in the forward pass freed after the copy of the next one (_fsdp_param_group.py,
      wait_for_unshard).
    """

    def __init__(self, stage: StagePlan, blocks: list[ModelBlock]) -> None:
        layout = stage.layout
        self.stage, self.root = stage, _units(stage, blocks)
        # A pipeline gathers once in a step; reshard_after_forward is False then, as with ZERO2.
        self.once = layout.pp > 1
        self.reshards = not self.once and layout.data != ZERO2
        self.replicas = layout.replicas if layout.data == HSDP else 1
        self.unsharded: set[ShardUnit] = set()
        self.gathering: dict[ShardUnit, Hashable] = {}  # the last all_gather of each unit
        self.ended: list[ShardUnit] = []  # in the order of their forward passes
        self.gathers = self.reduces = True
        self.peak_bytes = 0
        self.held: dict[ShardUnit, int] = {}
        self.sending = 0  # input bytes of the last reduce_scatter, kept until the next one
        self.received: dict[ShardUnit, int] = {}  # bytes of all_gathers that are not copied out
        self.copied = 0  # bytes of the last one that was copied out in the forward pass

    def forward(self, first: bool) -> None:
        """Writes the forward pass of a micro-batch."""
        self.gathers = first or not self.once
        if not self.once:
            self.unsharded.clear()
        self.ended, self.held, self.received = [], {}, {}
        self.sending = self.copied = 0
        self._forward(self.root)
        self.copied = 0

    def backward(self, first: bool, last: bool) -> None:
        """Writes the backward pass of a micro-batch."""
        self.gathers, self.reduces = first or not self.once, last or not self.once
        self._backward(self.root)
        # If no gradient reaches the input, a callback at the end of the backward pass reduces.
        for unit in self.root.walk():
            if not unit.gradient_in:
                self._reduce(unit)

    def kept_bytes(self, trainable: bool = False) -> int:
        """Returns the bytes of a rank's shards with their padding: of all parameters, or of those
        with a gradient.
        """
        return sum(
            _shard_elements(p, unit) * p.itemsize
            for unit in self.root.walk()
            for p in (unit.trainable if trainable else unit.parameters.values())
        )

    def _forward(self, unit: ShardUnit) -> None:
        self._gather(unit)
        self._use(unit, in_forward=True)
        for entry in unit.body:
            if isinstance(entry, ShardUnit):
                self._forward(entry)
            else:
                self._compute(FORWARD, unit, *entry)
        if unit.parameters:
            self.ended.append(unit)
        if self.reshards and unit is not self.root:
            self.unsharded.discard(unit)
            self.held[unit] = 0

    def _backward(self, unit: ShardUnit) -> None:
        if unit.parameters and unit.gradient_out:
            self._gather(unit)
            self._use(unit)
            index = self.ended.index(unit)
            if index:  # backward prefetches in reverse
                self._gather(self.ended[index - 1])
        for entry in reversed(unit.body):
            if isinstance(entry, ShardUnit):
                self._backward(entry)
            elif unit.gradient_out:
                self._compute(BACKWARD, unit, *entry)
        if unit.gradient_in:
            self._reduce(unit)

    def _compute(self, phase: str, unit: ShardUnit, block: ModelBlock, active: float) -> None:
        self.stage.compute(phase, block, active)
        calls = self.stage.calls_of(block)
        if phase == FORWARD:
            sends = calls.experts_forward if unit.experts else calls.forward
        else:
            sends = calls.experts_backward if unit.experts else calls.backward
        self.stage.send(sends, block.name)

    def _gather(self, unit: ShardUnit) -> None:
        if not unit.parameters or unit in self.unsharded:
            return
        size_bytes = self._gathered_bytes(unit)
        if self._communicates(unit.group):
            call = SentCall(unit.group, "all_gather", size_bytes, "parameters")
            self.gathering[unit] = self.stage.writer.start(call, COPIED_OUT, unit.module)
        self.unsharded.add(unit)
        self.received[unit] = size_bytes
        self._note_peak()

    def _use(self, unit: ShardUnit, in_forward: bool = False) -> None:
        """Waits for the parameters of a unit, and copies them out."""
        if not unit.parameters:
            return
        if self.gathers:
            self.stage.writer.wait(self.gathering.get(unit))
            self.stage.writer.mark(COPIED_OUT)
        whole = self._gathered_bytes(unit)
        if unit in self.received:
            self._note_peak(whole)
            output = self.received.pop(unit)
            self.copied = output if in_forward else 0
        self.held[unit] = whole

    def _reduce(self, unit: ShardUnit) -> None:
        """Writes the reduce_scatter of the unit's gradients, and with replicas the all_reduce."""
        gradients = self._gradient_bytes(unit)
        self._note_peak(gradients)
        self.held[unit] = 0
        if not unit.trainable:
            return
        shard = sum(_shard_elements(p, unit) for p in unit.trainable) * self._reduced_itemsize(unit)
        self.sending = shard * unit.shards
        self._note_peak(gradients)
        if not self.reduces:
            return
        stage = self.stage
        if not unit.experts:
            for block in unit.blocks:
                stage.writer.block(stage.calls_of(block).norm_gradients, block.name)
        stage.writer.wait(stage.reduced)
        after: Hashable | None = None
        if self._communicates(unit.group):
            call = SentCall(unit.group, "reduce_scatter", self.sending, "gradients")
            after = stage.reduced = stage.writer.start(call, None, unit.module)
        if self.replicas > 1 and self._communicates("replicate"):
            call = SentCall("replicate", "all_reduce", shard, "gradients")
            stage.writer.start(call, after, unit.module)

    def _communicates(self, group: str) -> bool:
        """Returns whether the layout has a group of several ranks by this name."""
        return group in self.stage.layout.groups()

    def _note_peak(self, more: int = 0) -> None:
        total = sum(self.held.values()) + sum(self.received.values()) + self.copied + self.sending
        self.peak_bytes = max(self.peak_bytes, total + more)

    def _gathered_bytes(self, unit: ShardUnit) -> int:
        """Returns the bytes of the unit's whole parameters after an all_gather."""
        cast = self.stage.options.param_dtype
        size_bytes = 0
        for parameter in unit.parameters.values():
            casts = cast and parameter.floating
            itemsize = find_dtype(cast).itemsize if casts else parameter.itemsize
            size_bytes += _shard_elements(parameter, unit) * itemsize
        return size_bytes * unit.shards

    def _gradient_bytes(self, unit: ShardUnit) -> int:
        """Returns the bytes of the unit's gradients before the reduction, in the compute dtype."""
        cast = self.stage.options.param_dtype
        itemsize = find_dtype(cast).itemsize if cast else 0
        return sum(p.elements * (itemsize or p.itemsize) for p in unit.trainable)

    def _reduced_itemsize(self, unit: ShardUnit) -> int:
        options, first = self.stage.options, unit.trainable[0]
        reduced = options.reduce_dtype
        # torch 2.15: without reduce_dtype gradients are reduced in the parameter's own dtype.
        if not reduced and first.floating and _torch_version() < (2, 15):
            reduced = options.param_dtype
        return find_dtype(reduced).itemsize if reduced else first.itemsize


@functools.cache
def _torch_version() -> tuple[int, int]:
    """Returns the version of the installed torch, such as (2, 13)."""
    major, minor = importlib.metadata.version("torch").split(".")[:2]
    return int(major), int(minor)


def _shard_elements(parameter: Parameter, unit: ShardUnit) -> int:
    """Returns the elements of a rank's shard; dimension 0 is padded to a multiple of the ranks."""
    rows, *other_dimensions = parameter.shape
    return -(-rows // unit.shards) * math.prod(other_dimensions)


def _units(stage: StagePlan, blocks: list[ModelBlock]) -> ShardUnit:
    """Returns the root unit of a chunk, with its layers and their experts as inner units."""
    layout, architecture = stage.layout, stage.architecture
    group, shards = layout.data_group, layout.shards * layout.cp
    # The input of the root is token numbers, but for the later stages of a pipeline.
    root = ShardUnit(ROOT, group, shards, gradient_in=blocks[0].kind != EMBEDDING)
    for block in blocks:
        experts = [w for w in block.weights if w.expert and layout.ep > 1]
        others = [w for w in block.weights if w not in experts]
        active = round(architecture.active_elements(block))
        if block.kind != LAYER:
            for weight in others:
                root.parameters.setdefault(weight.name, stage.parameter(weight))
            root.body.append((block, active))
            continue
        unit = ShardUnit(block.name, group, shards)
        unit.parameters = {w.name: stage.parameter(w) for w in others}
        root.inner.append(unit)
        root.body.append(unit)
        if not experts:
            unit.body = [(block, active)]
            continue
        name = experts[0].name.rpartition(".")[0]
        inner = ShardUnit(name, "edp", shards // layout.ep, experts=True)
        routed = sum(w.elements for w in experts) / architecture.experts * architecture.top_k
        for weight in experts:
            shape = stage.local(weight)
            if shape[0] < inner.shards:  # sharded by its columns
                shape = (shape[1], shape[0], shape[2])
            inner.parameters[weight.name] = stage.parameter(weight, shape)
        inner.body = [(block, round(routed))]
        unit.inner = [inner]
        unit.body = [(block, round(max(0.0, active - routed))), inner]
    return root
