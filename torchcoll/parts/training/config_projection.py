"""Plans of a model that was not run: on one number of ranks, over ranks, and layouts compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torchcoll.core.collectives import find_dtype
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UsageError
from torchcoll.core.units import format_digits
from torchcoll.parts.curves.predictor import Predictor
from torchcoll.parts.training import step_program
from torchcoll.parts.training.architectures import Architecture
from torchcoll.parts.training.config_plan import TrainingOptions, plan_config
from torchcoll.parts.training.layouts import (
    DATA_PARALLEL,
    DEEPSPEED2,
    ZERO1,
    Batch,
    ParallelLayout,
    check_layout,
    degrees_text,
)
from torchcoll.parts.training.measured_step import MeasuredStep
from torchcoll.parts.training.plans import DEFAULT_CAP_MB, DEFAULT_FIRST_MB, MIB
from torchcoll.parts.training.projection import (
    UNCORRECTED,
    CorrectedMachine,
    Plan,
    PlannedStep,
    at_once_notes,
    finish,
    place_group,
    planned_step,
)
from torchcoll.parts.training.sent_by_wrappers import DEEPSPEED_BUCKET

# The memory of a plan may be off by so much: torch's allocator and kernels decide about the rest.
UNSURE = 0.1
_FIRST_BYTES, _CAP_BYTES = DEFAULT_FIRST_MB * MIB, DEFAULT_CAP_MB * MIB  # of DDP's buckets


def project_config(
    machine: Predictor | None,
    architecture: Architecture,
    layout: ParallelLayout,
    ranks: Sequence[int],
    batch: Batch,
    options: TrainingOptions,
    compute_ns: float | None,
) -> Plan:
    """Returns a plan of a model.

    - ranks: numbers of ranks; the data-parallel degree grows with them. The step is on the
      layout's.
    - compute_ns: the computation of a step on a rank; None if unknown.

    Raises UsageError for a layout that the model cannot have, and one whose ranks are not among
    ``ranks``.
    """
    if ranks and layout.ranks not in ranks:
        expected = f"{ranks[0]}" if len(ranks) == 1 else f"one of {', '.join(map(str, ranks))}"
        raise UsageError("parallel", degrees_text(layout), f"{expected}, as --ranks says")
    step = _StepPlanner(machine, architecture, batch, options, compute_ns)
    first = layout.ranks
    active = architecture.active_parameters
    what = f"{architecture.source}: {architecture.parameters:,} parameters"
    if active < architecture.parameters:
        what += f", {active:,.0f} of them for a token"
    what += f", {options.dtype}; a step of {batch.text} on each data-parallel rank"
    projection = Plan(
        what,
        step(layout),
        compute_ns=compute_ns,
        subject=f"{architecture.source} with {DATA_PARALLEL[layout.data]}",
        notes=_notes(architecture, layout, batch, options),
    )
    if len(ranks) > 1:
        projection.weak = [step(layout.on(count)) for count in ranks]
        projection.strong = [step(layout.on(count), first / count) for count in ranks]

    def step_on(other: Predictor) -> PlannedStep:
        return _StepPlanner(other, architecture, batch, options, compute_ns)(layout)

    return finish(projection, machine, step_on)


def plan_layout(
    machine: Predictor | None,
    architecture: Architecture,
    layout: ParallelLayout,
    batch: Batch,
    options: TrainingOptions,
    compute_ns: float | None,
) -> PlannedStep:
    """Returns one step on a layout. Raises UsageError for one that the model cannot have."""
    return _StepPlanner(machine, architecture, batch, options, compute_ns)(layout)


class _StepPlanner:
    """Plans steps of one model: on any layout, with a share of the batch."""

    def __init__(
        self,
        machine: Predictor | None,
        architecture: Architecture,
        batch: Batch,
        options: TrainingOptions,
        compute_ns: float | None,
    ) -> None:
        self.machine, self.architecture, self.batch = machine, architecture, batch
        self.options, self.compute_ns = options, compute_ns

    def __call__(self, layout: ParallelLayout, share: float = 1.0) -> PlannedStep:
        batch = self.batch
        check_layout(layout, self.architecture, batch.micro_batches)
        plan = plan_config(
            self.architecture, layout, replace(batch, tokens=batch.tokens * share), self.options
        )
        groups = {
            name: place_group(name, ranks, apart, self.machine)
            for name, (ranks, apart) in layout.groups().items()
        }
        compute = None if self.compute_ns is None else self.compute_ns * share
        return planned_step(
            self.machine, plan.program, groups, layout.ranks, layout.degrees, compute, plan.memory
        )


def _notes(
    architecture: Architecture, layout: ParallelLayout, batch: Batch, options: TrainingOptions
) -> list[str]:
    """Returns what is assumed, a clause each."""
    notes = []
    if layout.sharded and layout.pp == 1 and batch.micro_batches > 1:
        notes.append("FSDP2 gathers and scatters in each micro-batch, as without no_sync")
    elif batch.micro_batches > 1 and layout.data == DEEPSPEED2:
        notes.append("DeepSpeed ZeRO 2 reduces gradients in each micro-batch")
    elif batch.micro_batches > 1:
        notes.append("gradients are reduced in the last micro-batch only")
    if layout.ep > 1:
        capacity = options.layers.capacity
        notes.append(
            "tokens are taken as spread evenly over the experts"
            + (f", with capacity factor {capacity:g}" if capacity else ", none dropped or padded")
        )
    shards = layout.shards * layout.cp
    if layout.sharded and layout.ep == 1 and 0 < architecture.experts < shards:
        notes.append(
            f"fully_shard pads the {architecture.experts} experts of a layer, one tensor, to "
            f"{shards} ranks and sends {format_digits(shards / architecture.experts)} times their "
            "bytes: ep, or shard_placement_fn with Shard(1), avoids that"
        )
    if layout.pp > 1:
        notes.append(
            "calls and times are those of the stage that sends the most, memory of the one that "
            "needs the most"
        )
    if layout.tp > 1:
        notes.append(
            "tensor parallel calls as torch's DTensor makes them; Megatron-LM gathers two more "
            "times a layer with sp"
        )
    if options.layers.checkpoint:
        notes.append("--checkpointing computes each layer again: 4/3 of --step-ms")
    states = "two states of Adam in the parameters' type"
    if layout.data == ZERO1:
        states = _ZERO1_STATES
    if layout.deepspeed:
        states = _DEEPSPEED_STATES
        off = "on" if layout.overlap else "off: the word overlap turns it on"
        notes.append(
            "DeepSpeed with one group of parameters, buckets of "
            f"{DEEPSPEED_BUCKET / 1e6:g} million elements (the default of reduce_bucket_size), "
            f"and overlap_comm {off}"
        )
    notes.append(f"memory: {states}; {_activations_note(architecture)}")
    return notes


_ZERO1_STATES = "Adam's states and a copy of the parameters in float32"
_DEEPSPEED_STATES = (
    "Adam's states, parameters and gradients of a partition in float32, and a buffer of "
    "reduce_bucket_size elements"
)


def _activations_note(architecture: Architecture) -> str:
    hidden = " (activations: none counted)" if not architecture.hidden else ""
    return (
        "activations as fused layers keep them, without attention scores; logits "
        f"and their gradient in the activations' type, without a copy in float32{hidden}"
    )


def project_parameters(
    machine: Predictor | None,
    parameters: float,
    ranks: Sequence[int],
    dtype: str,
    compute_ns: float | None,
) -> Plan:
    """Returns a plan of DDP with so many parameters and nothing else known: even buckets, ready in
    proportion to their bytes.
    """
    total = parameters * find_dtype(dtype).itemsize
    sizes = [min(_FIRST_BYTES, total)]
    if total > _FIRST_BYTES:
        count = max(1, math.ceil((total - _FIRST_BYTES) / _CAP_BYTES))
        sizes += [(total - _FIRST_BYTES) / count] * count
    writer = step_program.ProgramWriter()
    writer.work(step_program.FORWARD, 1.0)
    for size in sizes:
        writer.work(step_program.BACKWARD, size / total)
        sent = step_program.SentCall(
            "dp", "all_reduce", math.ceil(size), "gradients", step_program.REST_OF_BACKWARD
        )
        writer.start(sent)
    program = step_program.StepProgram(tuple(writer.acts))

    def step(count: int, share: float = 1.0, on: Predictor | None = machine) -> PlannedStep:
        groups = {"dp": place_group("dp", count, 1, on)}
        compute = None if compute_ns is None else compute_ns * share
        return planned_step(on, program, groups, count, {"dp": count}, compute)

    first = ranks[0]
    what = f"gradients, {format_digits(parameters, 4)} parameters of {dtype}"
    projection = Plan(what, step(first), compute_ns=compute_ns)
    if len(ranks) > 1:
        projection.weak = [step(count) for count in ranks]
        projection.strong = [step(count, first / count) for count in ranks]
    return finish(projection, machine, lambda other: step(first, on=other))


@dataclass(frozen=True)
class LayoutRow:
    """A layout in a comparison.

    - batch: of a data-parallel rank.
    - pareto: it fits, and no other layout that fits is better in both time and memory; without a
      time, bytes sent.
    - fits: whether its memory is within the limit, if there is one, as far as it is known (UNSURE).
    """

    layout: ParallelLayout
    step: PlannedStep
    batch: Batch
    pareto: bool = False
    fits: bool = True

    @property
    def cost(self) -> float:
        """The time of a step, or of its communication, or the bytes that a rank sends."""
        times = self.step.step_ns or self.step.comm_ns
        return times[0] if times else self.step.sent_bytes

    @property
    def memory_bytes(self) -> float:
        return self.step.memory.total if self.step.memory else 0.0


@dataclass(repr=False)
class LayoutComparison(Displayed):
    """Layouts of one model on the same ranks, with the same tokens in a step of all ranks.

    - rows: the Pareto set first, and the layouts that do not fit last, each by its cost.
    - compute_ns: the computation of a step in ns; None if unknown.
    - memory_bytes: the memory that a rank has; None if no limit was given.
    - measured: the measured step that corrects the times, and uncorrected: the rows without it;
      None and [] without one.
    """

    what: str
    ranks: int
    rows: list[LayoutRow]
    compute_ns: float | None
    machine: str
    notes: list[str]
    memory_bytes: float | None = None
    measured: MeasuredStep | None = None
    uncorrected: list[LayoutRow] = field(default_factory=list)


def equal_batches(layouts: Sequence[ParallelLayout], batch: Batch) -> list[list[Batch]]:
    """Returns the batches that a data-parallel rank of each layout can have, with the same tokens
    of all ranks: from the largest micro-batches to those with as many sequences as ``batch``.

    - batch: that of the layout with the most data-parallel ranks.
    """
    widest = min(layouts, key=lambda layout: layout.inner)
    batches = []
    for layout in layouts:
        micro_batches, odd_batches = divmod(batch.micro_batches * layout.pp, widest.pp)
        more = batch.sequences * layout.tp * layout.cp
        sequences, odd_sequences = divmod(more, widest.tp * widest.cp)
        if odd_batches or odd_sequences or not micro_batches or not sequences:
            expected = f"layouts whose tp x cp and pp are multiples of those of {widest.name}"
            raise UsageError("compare", layout.name, expected)
        batches.append(
            [
                replace(batch, micro_batches=micro_batches * n, sequences=sequences // n)
                for n in range(1, sequences // batch.sequences + 1)
                if sequences % n == 0
            ]
            or [replace(batch, micro_batches=micro_batches, sequences=sequences)]
        )
    return batches


def compare_layouts(
    machine: Predictor | None,
    architecture: Architecture,
    layouts: Sequence[ParallelLayout],
    batch: Batch,
    options: TrainingOptions,
    compute_ns: float | None,
    memory_bytes: float | None = None,
) -> LayoutComparison:
    """Returns the layouts with their costs.

    - batch: of a data-parallel rank of the layout with the most of these. The others compute as
      much more as they have fewer data-parallel ranks: more sequences with tp and cp, more
      micro-batches with pp.
    - memory_bytes: the memory that a rank has; None for no limit.

    Each layout has the micro-batches with which its step is the fastest that fits: large ones need
    more memory and, in a pipeline, wait longer; small ones gather and scatter more often.
    """
    widest = min(layouts, key=lambda layout: layout.inner)
    rows = []
    for layout, batches in zip(layouts, equal_batches(layouts, batch), strict=True):
        of_batches = []
        for each in batches:
            step = plan_layout(machine, architecture, layout, each, options, compute_ns)
            row = LayoutRow(layout, step, each)
            fits = memory_bytes is None or row.memory_bytes <= (1 + UNSURE) * memory_bytes
            of_batches.append(replace(row, fits=fits))
        # The fastest that fits; of those that do not, the one with the least memory.
        fitting = [row for row in of_batches if row.fits]
        if fitting:
            rows.append(min(fitting, key=lambda row: (row.cost, row.memory_bytes)))
        else:
            rows.append(min(of_batches, key=lambda row: row.memory_bytes))

    def dominated(row: LayoutRow) -> bool:
        return any(
            other.fits
            and other.cost <= row.cost
            and other.memory_bytes <= row.memory_bytes
            and (other.cost, other.memory_bytes) != (row.cost, row.memory_bytes)
            for other in rows
        )

    rows = [replace(row, pareto=row.fits and not dominated(row)) for row in rows]
    rows.sort(key=lambda row: (not row.pareto, not row.fits, row.cost))
    tokens = round(batch.micro_batches * batch.tokens_each * widest.ranks / widest.inner)
    notes = [
        "the same tokens in a step for each layout: with tp and cp a data-parallel rank computes "
        "more sequences, with pp more micro-batches",
        f"memory: two states of Adam in the parameters' type, with zero1 {_ZERO1_STATES}"
        + (f", with DeepSpeed {_DEEPSPEED_STATES}" if any(x.deepspeed for x in layouts) else "")
        + f"; {_activations_note(architecture)}",
        *(
            ["--checkpointing computes each layer again: 4/3 of --step-ms"]
            if options.layers.checkpoint
            else []
        ),
        *(machine.notes() if machine is not None else ["--machine NAME or FILE gives the times"]),
        *at_once_notes([row.step for row in rows]),
        *([] if machine is None or isinstance(machine, CorrectedMachine) else [UNCORRECTED]),
    ]
    return LayoutComparison(
        what=f"{architecture.source}: {architecture.parameters:,} parameters, {options.dtype}; "
        f"{tokens:,} tokens in a step",
        ranks=layouts[0].ranks,
        rows=rows,
        compute_ns=compute_ns,
        machine=machine.name if machine is not None else "",
        notes=notes,
        memory_bytes=memory_bytes,
    )
