"""Plans of a model that was not run: on one number of ranks, over ranks, and layouts compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchcoll.core.display import Displayed
from torchcoll.core.errors import UsageError
from torchcoll.core.units import format_digits
from torchcoll.parts.curves.predictor import Predictor
from torchcoll.parts.training.architectures import Architecture
from torchcoll.parts.training.config_plan import TrainingOptions, plan_config
from torchcoll.parts.training.layouts import (
    DATA_PARALLEL,
    FULL,
    SELECTIVE,
    ZERO1,
    Batch,
    ParallelLayout,
    check_layout,
    degrees_text,
)
from torchcoll.parts.training.projection import (
    UNCORRECTED,
    Computation,
    Correction,
    Plan,
    PlannedStep,
    finish,
    place_group,
    planned_step,
)

# The memory of a plan may be off by so much: torch's allocator and kernels decide about the rest.
UNSURE = 0.1


@dataclass(frozen=True)
class PlanSetting:
    """What is planned, apart from the layout.

    - batch: of a data-parallel rank.
    - computing: how long a step computes; None if unknown.
    - correction: of the times, by a measured step; None without one.
    """

    machine: Predictor | None
    architecture: Architecture
    batch: Batch
    options: TrainingOptions
    computing: Computing | None
    correction: Correction | None = None

    def step(self, layout: ParallelLayout, share: float = 1.0) -> PlannedStep:
        """Returns a step on a layout, with a share of the batch. Raises UsageError for a layout
        that the model cannot have.
        """
        batch = self.batch
        check_layout(layout, self.architecture, batch.micro_batches)
        plan = plan_config(
            self.architecture, layout, replace(batch, tokens=batch.tokens * share), self.options
        )
        groups = {
            name: place_group(name, ranks, apart, self.machine)
            for name, (ranks, apart) in layout.groups().items()
        }
        compute = None
        if self.computing is not None:
            compute = self.computing.on(self.architecture, layout, batch).times(share)
        return planned_step(
            self.machine,
            plan.program,
            groups,
            layout.ranks,
            layout.degrees,
            compute,
            plan.memory,
            self.correction,
        )


def project_config(setting: PlanSetting, layout: ParallelLayout, ranks: Sequence[int]) -> Plan:
    """Returns a plan of a model.

    - ranks: numbers of ranks; the data-parallel degree grows with them. The step is on the
      layout's.

    Raises UsageError for a layout that the model cannot have, and one whose ranks are not among
    ``ranks``.
    """
    if ranks and layout.ranks not in ranks:
        expected = f"{ranks[0]}" if len(ranks) == 1 else f"one of {', '.join(map(str, ranks))}"
        raise UsageError("parallel", degrees_text(layout), f"{expected}, as --ranks says")
    architecture, options = setting.architecture, setting.options
    active = architecture.active_parameters
    what = f"{architecture.source}: {architecture.parameters:,} parameters"
    if active < architecture.parameters:
        what += f", {active:,.0f} of them for a token"
    what += f", {options.dtype}; a step of {setting.batch.text} on each data-parallel rank"
    projection = Plan(
        what,
        setting.step(layout),
        subject=f"{architecture.source} with {DATA_PARALLEL[layout.data]}",
        notes=_notes(architecture, layout, setting.batch),
    )
    projection.notes += computing_notes(projection.step, layout)
    if len(ranks) > 1:
        projection.weak = [setting.step(layout.on(count)) for count in ranks]
        projection.strong = [
            setting.step(layout.on(count), layout.ranks / count) for count in ranks
        ]
    return finish(
        projection,
        setting.machine,
        lambda other: replace(setting, machine=other).step(layout),
        setting.correction is not None,
    )


def _notes(architecture: Architecture, layout: ParallelLayout, batch: Batch) -> list[str]:
    """Returns what is assumed, a clause each."""
    notes = []
    if layout.sharded and layout.pp == 1 and batch.micro_batches > 1:
        notes.append("FSDP2 gathers and scatters in each micro-batch, as without no_sync")
    elif batch.micro_batches > 1:
        notes.append("gradients are reduced in the last micro-batch only")
    if layout.ep > 1:
        notes.append("tokens are taken as spread evenly over the experts, none dropped or padded")
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
    states = "two states of Adam in the parameters' type"
    if layout.data == ZERO1:
        states = _ZERO1_STATES
    notes.append(f"memory: {states}; {_activations_note(architecture)}")
    return notes


_ZERO1_STATES = "Adam's states and a copy of the parameters in float32"


def _activations_note(architecture: Architecture) -> str:
    hidden = " (activations: none counted)" if not architecture.hidden else ""
    return (
        "activations as fused layers keep them, without attention scores; unfused ones keep 1.45 "
        f"times as much; logits with a copy and a gradient in float32{hidden}"
    )


# The operations that run again in the backward pass, as a share of the forward and backward pass.
_AGAIN = {"": 0.0, FULL: 1 / 3, SELECTIVE: 1 / 6}


@dataclass(frozen=True)
class Computing:
    """How long steps compute: as given in ms, or at a share of the GPU's peak.

    - step_ns: of forward and backward pass without checkpointing; None to take ``shares``.
    - measured: whether step_ns is that of real steps, with what these computed again.
    - shares: MFU of the computation: value, least, most.
    - peak: FLOP/s of the GPU; None if unknown.
    """

    step_ns: float | None = None
    measured: bool = False
    shares: tuple[float, float, float] = (0.45, 0.35, 0.6)
    peak: float | None = None

    def on(self, architecture: Architecture, layout: ParallelLayout, batch: Batch) -> Computation:
        """Returns the computation of a rank."""
        tokens = batch.micro_batches * batch.tokens_each / layout.inner
        flops = tokens * architecture.flops_of_token(batch.tokens) if architecture.hidden else 0.0
        again = 1.0 if self.measured else 1 + _AGAIN[layout.checkpoint]
        if self.step_ns is not None:
            ns = self.step_ns * again
            return Computation((ns, ns, ns), flops, tokens, self.peak)
        assert self.peak is not None
        value, least, most = (1e9 * again * flops / share / self.peak for share in self.shares)
        percent = [round(100 * share) for share in self.shares]
        text = f"{percent[0]} %" if percent[1] == percent[2] else f"{percent[1]} to {percent[2]} %"
        return Computation((value, most, least), flops, tokens, self.peak, f"{text} MFU")


FITS, TIGHT, TOO_LARGE = "yes", "tight", "no"


@dataclass(frozen=True)
class LayoutRow:
    """A layout in a comparison.

    - batch: of a data-parallel rank.
    - pareto: it fits, and no other layout that fits is better in both time and memory; without a
      time, bytes sent.
    - fits: FITS, TIGHT or TOO_LARGE; FITS without a limit. A tight one fits with fused kernels, as
      far as the plan knows (UNSURE), but perhaps not with others.
    """

    layout: ParallelLayout
    step: PlannedStep
    batch: Batch
    pareto: bool = False
    fits: str = FITS

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
    - memory_bytes: the memory that a rank has; None if no limit was given.
    """

    what: str
    ranks: int
    rows: list[LayoutRow]
    machine: str
    notes: list[str]
    memory_bytes: float | None = None


def _equal_batches(layouts: Sequence[ParallelLayout], batch: Batch) -> list[list[Batch]]:
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
    setting: PlanSetting,
    layouts: Sequence[ParallelLayout],
    memory_bytes: float | None = None,
    search: bool = False,
) -> LayoutComparison:
    """Returns the layouts with their costs.

    - setting: its batch is that of the layout with the most data-parallel ranks. The others
      compute as much more as they have fewer of these: more sequences with tp and cp, more
      micro-batches with pp.
    - memory_bytes: the memory that a rank has; None for no limit.

    Each layout has the micro-batches with which its step is the fastest that fits: large ones need
    more memory and, in a pipeline, wait longer; small ones gather and scatter more often. A layout
    that does not fit is tried with checkpointing.
    """
    machine, architecture, batch = setting.machine, setting.architecture, setting.batch
    widest = min(layouts, key=lambda layout: layout.inner)

    def best(layout: ParallelLayout, batches: Sequence[Batch]) -> LayoutRow:
        rows = []
        for each in batches[::-1] if search and layout.pp > 1 else batches:
            step = replace(setting, batch=each).step(layout)
            rows.append(LayoutRow(layout, step, each, fits=_fits(step, memory_bytes)))
            if search and rows[-1].fits != TOO_LARGE:
                break
        # The fastest that fits; of those that do not, the one with the least memory.
        fitting = [row for row in rows if row.fits != TOO_LARGE]
        if fitting:
            return min(fitting, key=lambda row: (row.cost, row.memory_bytes))
        return min(rows, key=lambda row: row.memory_bytes)

    rows = []
    for layout, batches in zip(layouts, _equal_batches(layouts, batch), strict=True):
        row = best(layout, batches)
        again = (SELECTIVE, FULL) if search else (FULL,)
        for checkpoint in again if architecture.hidden and not layout.checkpoint else ():
            if row.fits == FITS or (row.fits == TIGHT and not search):
                break
            other = best(replace(layout, checkpoint=checkpoint), batches)
            row = other if other.fits != TOO_LARGE else row
        rows.append(row)
    tokens = round(batch.micro_batches * batch.tokens_each * widest.ranks / widest.inner)
    model = f"{architecture.source}: {architecture.parameters:,} parameters"
    return LayoutComparison(
        what=f"{model}, {setting.options.dtype}; {tokens:,} tokens in a step",
        ranks=layouts[0].ranks,
        rows=_ordered(rows),
        machine=machine.name if machine is not None else "",
        notes=_comparison_notes(machine, architecture, rows),
        memory_bytes=memory_bytes,
    )


def _fits(step: PlannedStep, memory_bytes: float | None) -> str:
    if memory_bytes is None or step.memory is None or step.memory.most <= memory_bytes:
        return FITS
    return TIGHT if step.memory.total <= (1 + UNSURE) * memory_bytes else TOO_LARGE


def _ordered(rows: Sequence[LayoutRow]) -> list[LayoutRow]:
    """Returns the Pareto set first, and the layouts that do not fit last, each by its cost."""

    def dominated(row: LayoutRow) -> bool:
        return any(
            each.fits != TOO_LARGE
            and each.cost <= row.cost
            and each.memory_bytes <= row.memory_bytes
            and (each.cost, each.memory_bytes) != (row.cost, row.memory_bytes)
            for each in rows
        )

    judged = [replace(row, pareto=row.fits != TOO_LARGE and not dominated(row)) for row in rows]
    return sorted(judged, key=lambda row: (not row.pareto, row.fits == TOO_LARGE, row.cost))


def _comparison_notes(
    machine: Predictor | None, architecture: Architecture, rows: Sequence[LayoutRow]
) -> list[str]:
    states = f"memory: two states of Adam in the parameters' type, with zero1 {_ZERO1_STATES}"
    notes = [
        "the same tokens in a step for each layout: with tp and cp a data-parallel rank computes "
        "more sequences, with pp more micro-batches",
        f"{states}; {_activations_note(architecture)}",
        *dict.fromkeys(note for row in rows for note in computing_notes(row.step, row.layout)),
        *(machine.notes() if machine is not None else ["--machine NAME or FILE gives the times"]),
    ]
    if machine is not None:
        notes.append(UNCORRECTED)
    return notes


_MOST_MFU = 0.75


def computing_notes(step: PlannedStep, layout: ParallelLayout) -> list[str]:
    """Returns what is assumed about the computation, and what contradicts it, a clause each."""
    notes = []
    compute = step.compute
    if compute is not None and compute.assumed:
        notes.append(
            f"the computation is taken at {compute.assumed}; --mfu or --step-ms says another"
        )
    elif compute is not None and compute.peak and compute.flops:
        share = compute.flops / compute.peak / (compute.ns[0] / 1e9)
        if share > _MOST_MFU:
            notes.append(
                f"the computation would use {100 * share:.0f} % of the GPU's peak: no training "
                f"reaches {100 * _MOST_MFU:.0f} %. Is --step-ms that of this batch?"
            )
    if layout.checkpoint:
        again = 1 + _AGAIN[layout.checkpoint]
        notes.append(
            f"{layout.checkpoint} computes {again:.2f} times the forward and backward pass"
        )
    return notes
