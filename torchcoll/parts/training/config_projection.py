"""Plans of a model that was not run: on one number of ranks, over ranks, and layouts compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torchcoll.core.display import Displayed
from torchcoll.core.errors import UsageError
from torchcoll.core.units import counted, format_digits
from torchcoll.parts.curves.predictor import Predictor
from torchcoll.parts.curves.published_machine import PublishedMachine
from torchcoll.parts.training.architectures import Architecture
from torchcoll.parts.training.config_plan import (
    TrainingOptions,
    idle_share,
    least_memory,
    plan_config,
)
from torchcoll.parts.training.layouts import (
    DATA_PARALLEL,
    FSDP,
    FULL,
    SELECTIVE,
    ZERO1,
    Batch,
    ParallelLayout,
    check_layout,
)
from torchcoll.parts.training.projection import (
    FITS,
    TIGHT,
    TOO_LARGE,
    UNCORRECTED,
    UNSURE,
    Computation,
    Correction,
    Plan,
    PlannedStep,
    finish,
    place_group,
    planned_step,
)


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
        raise UsageError(
            "parallel", f"{layout.name} = {layout.ranks} ranks", f"{expected}, as --ranks says"
        )
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
        notes=_notes(architecture, layout),
    )
    projection.notes += computing_notes(projection.step, layout)
    projection.memory_bytes = memory_of_gpu(setting.machine)
    projection.fits = _fits(projection.step, projection.memory_bytes)
    if projection.fits == TOO_LARGE:
        projection.smaller = _smaller_layout(setting, layout, projection.memory_bytes)
    if len(ranks) > 1:
        projection.weak = [setting.step(layout.on(count)) for count in ranks]
        projection.strong = [
            setting.step(layout.on(count), layout.ranks / count) for count in ranks
        ]
    return finish(projection, setting.machine, setting.correction is not None)


def _smaller_layout(
    setting: PlanSetting, layout: ParallelLayout, limit: float | None
) -> tuple[str, float] | None:
    """Returns the first change of a layout that fits or is tight, and its memory; None if none.

    DDP keeps everything on each rank: a change that is no more than tight comes after FSDP.

    Megatron-LM does not keep the gathered inputs that DTensor keeps with sequence parallelism.
    """
    variants = [replace(layout, checkpoint=mode) for mode in checkpoint_modes(layout)]
    if layout.sharded and layout.sequence_parallel:
        shards = layout.replicas * layout.shards
        variants.insert(0, replace(layout, data=ZERO1, replicas=1, shards=shards))
    elif not layout.sharded and layout.replicas > 1:
        sharded = replace(layout, data=FSDP, replicas=1, shards=layout.replicas)
        variants += [replace(sharded, checkpoint=mode) for mode in ("", *checkpoint_modes(sharded))]
    tight = None
    for variant in variants:
        step = setting.step(variant)
        fits = _fits(step, limit)
        if step.memory and fits != TOO_LARGE:
            smaller = variant.name, step.memory.total
            if layout.sharded or fits == FITS:
                return smaller
            tight = tight or smaller
    return tight


def checkpoint_modes(layout: ParallelLayout) -> list[str]:
    """Returns the kinds of checkpointing that a layout can have besides its own, least first."""
    modes = ["", FULL] if layout.megatron else ["", SELECTIVE, FULL]
    return modes[modes.index(layout.checkpoint) + 1 :]


def _notes(architecture: Architecture, layout: ParallelLayout) -> list[str]:
    """Returns what is assumed, a clause each."""
    notes = []
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
    states = "two states of Adam in the parameters' type"
    if layout.data == ZERO1:
        states = _ZERO1_STATES
    notes.append(f"memory: {states}; {_activations_note(architecture)}")
    return notes


_ZERO1_STATES = "Adam's states and a copy of the parameters in float32"


def _activations_note(architecture: Architecture) -> str:
    hidden = " (activations: none counted)" if not architecture.hidden else ""
    return (
        "activations as fused layers keep them, without attention scores; logits with a copy and a "
        f"gradient in float32{hidden}"
    )


# The operations that run again in the backward pass, as a share of the forward and backward pass.
_AGAIN = {"": 0.0, FULL: 1 / 3, SELECTIVE: 1 / 6}


@dataclass(frozen=True)
class Computing:
    """How long steps compute: as given in ms, or at a share of the GPU's peak.

    - step_ns: of forward and backward pass without checkpointing; None to take ``shares``.
    - measured: whether step_ns is that of real steps, with what these computed again.
    - shares: of the GPU's peak: value, least, most.
    - peak: FLOP/s of the GPU; None if unknown.
    - masked: the shares are those of the operations that a causal mask leaves; else MFU.
    - memory_rate: bytes/s of the GPU's memory; None if unknown, or contained in the shares.
    """

    step_ns: float | None = None
    measured: bool = False
    shares: tuple[float, float, float] = (0.45, 0.45, 0.45)
    peak: float | None = None
    masked: bool = False
    memory_rate: float | None = None

    def on(self, architecture: Architecture, layout: ParallelLayout, batch: Batch) -> Computation:
        """Returns the computation of a rank."""
        tokens = batch.micro_batches * batch.tokens_each / layout.inner
        flops = tokens * architecture.flops_of_token(batch.tokens) if architecture.hidden else 0.0
        again = 1.0 if self.measured else 1 + _AGAIN[layout.checkpoint]
        if self.step_ns is not None:
            ns = self.step_ns * again
            return Computation((ns, ns, ns), flops, tokens, self.peak)
        assert self.peak is not None
        computed = tokens * architecture.flops_of_token(batch.tokens, self.masked)
        experts = self._experts(architecture, layout, batch)
        value, least, most = (
            1e9 * again * (computed / share / self.peak + experts(share * self.peak))
            for share in self.shares
        )
        percent = [round(100 * share) for share in self.shares]
        text = f"{percent[0]} %" if percent[1] == percent[2] else f"{percent[1]} to {percent[2]} %"
        text += " of the peak" if self.masked else " MFU"
        return Computation((value, most, least), flops, tokens, self.peak, text)

    def _experts(
        self, architecture: Architecture, layout: ParallelLayout, batch: Batch
    ) -> Callable[[float], float]:
        """Returns the seconds that experts with few tokens compute longer at a rate of FLOP/s,
        because the GPU's memory has no more: in each micro-batch their weights are read twice, with
        16 bits, and their gradients read and written once, in float32.
        """
        elements = sum(block.expert_elements for block in architecture.layers)
        if not elements or self.memory_rate is None:
            return lambda rate: 0.0
        split = layout.tp * layout.pp
        memory_bytes = batch.micro_batches * (2 * 2 + 2 * 4) * elements / split / layout.ep
        least = memory_bytes / self.memory_rate
        tokens = batch.micro_batches * batch.tokens_each / layout.inner
        flops = 6 * tokens * elements * architecture.top_k / architecture.experts
        return lambda rate: max(0.0, least - flops / rate)


# The 90 % interval of how much more one plan is wrong than another of the same machine: 12 runs in
# results/benchmarks/published-runs-2026-11-29.txt, source [9].
_ERROR = 0.07
# A layout that fits comes before a tight one that is faster by less.
_SURELY_FITS = 0.05


@dataclass(frozen=True)
class LayoutRow:
    """A layout in a comparison.

    - batch: of a data-parallel rank.
    - fits: FITS, TIGHT or TOO_LARGE; FITS without a limit (``_fits``).
    """

    layout: ParallelLayout
    step: PlannedStep
    batch: Batch
    fits: str = FITS

    @property
    def cost(self) -> float:
        """The time of a step, or of its communication, or the bytes that a rank sends."""
        times = self.step.step_ns or self.step.comm_ns
        return times[0] if times else self.step.sent_bytes

    @property
    def ranked_cost(self) -> float:
        """The cost, of a tight layout _SURELY_FITS more."""
        return self.cost * (1 + _SURELY_FITS if self.fits == TIGHT else 1)

    @property
    def memory_bytes(self) -> float:
        return self.step.memory.total if self.step.memory else 0.0


_ALIKE = 1.15  # no layout may be as fast whose step is predicted to be longer than by this ratio


@dataclass(repr=False)
class LayoutComparison(Displayed):
    """Layouts of one model on the same ranks, with the same tokens in a step of all ranks.

    - rows: by their cost in 3 digits and the simplest first, those that do not fit last.
    - memory_bytes: the memory that a rank has; None if no limit was given.
    - launch: layout -> flags of torchtitan or Megatron-LM, for the best layouts of a search.
    - left_out: why layouts that were asked for are no rows, a clause each.
    """

    what: str
    ranks: int
    rows: list[LayoutRow]
    machine: str
    notes: list[str]
    memory_bytes: float | None = None
    launch: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def alike(self) -> list[LayoutRow]:
        """The first layout, and those that fit and may be as fast at the same rate of computation:
        the 90 % intervals overlap, or the steps differ by less than the error of plans; and whose
        step is no more than _ALIKE times as long.
        """
        best, *further = self.rows
        upper = best.step.at_rate_ns or best.step.comm_ns
        if upper is None:
            return [best]
        most = max(upper[2], upper[0] * (1 + _ERROR if best.step.at_rate_ns else 1))
        ends = [(row, row.step.at_rate_ns or row.step.comm_ns) for row in further]
        fitting = [row for row, ns in ends if ns and row.fits != TOO_LARGE and ns[1] <= most]
        return [best, *(row for row in fitting if row.cost <= _ALIKE * best.cost)]

    @property
    def simplest(self) -> LayoutRow:
        """The simplest of those that may be as fast, and fit as surely as the first."""
        sure = [row for row in self.alike if row.fits in (FITS, self.rows[0].fits)]
        return min(sure, key=lambda row: (row.layout.kinds, row.cost))

    @property
    def best_of_kinds(self) -> list[LayoutRow]:
        """The best layout of each kind of data parallelism with each set of tp, pp, cp and ep."""
        best: dict[tuple[str, ...], LayoutRow] = {}
        for row in self.rows:
            best.setdefault((row.layout.data, *row.layout.words), row)
        return list(best.values())


def _shared_batches(layout: ParallelLayout, batch: Batch, sequences: int) -> list[Batch]:
    """Returns the batches that a data-parallel rank of the layout can have if all ranks together
    have so many sequences, from the largest micro-batches on; [] if they cannot be shared.

    - batch: its micro-batches are the fewest.
    """
    each, rest = divmod(sequences, layout.replicas * layout.shards)
    sizes = [] if rest else range(each // batch.micro_batches, 0, -1)
    batches = [replace(batch, micro_batches=each // n, sequences=n) for n in sizes if each % n == 0]
    return [b for b in batches if layout.virtual == 1 or b.micro_batches % layout.pp == 0]


_MOST_SEQUENCES = 16  # of a micro-batch in a search
# A search does not plan layouts that are slower than the best one of the same program by more,
# without communication.
_SLOWER = 1.25


def memory_of_gpu(machine: Predictor | None) -> float | None:
    """Returns the bytes of memory of a machine's GPU; None if unknown."""
    return machine.memory_bytes if isinstance(machine, PublishedMachine) else None


def _plan_fastest(
    setting: PlanSetting,
    layout: ParallelLayout,
    batches: Sequence[Batch],
    memory_bytes: float | None,
) -> LayoutRow:
    """Returns the row of a layout with the batch of its fastest step that fits, or with that of the
    least memory. A layout that does not fit is tried with checkpointing.
    """
    rows = [_row(setting, layout, batch, memory_bytes) for batch in batches]
    fitting = [row for row in rows if row.fits != TOO_LARGE]
    if fitting:
        return min(fitting, key=lambda row: (row.ranked_cost, row.memory_bytes))
    least = min(rows, key=lambda row: row.memory_bytes)
    if layout.checkpoint or not setting.architecture.hidden:
        return least
    again = _plan_fastest(setting, replace(layout, checkpoint=FULL), batches, memory_bytes)
    return least if again.fits == TOO_LARGE else again


def _row(
    setting: PlanSetting, layout: ParallelLayout, batch: Batch, memory_bytes: float | None
) -> LayoutRow:
    step = replace(setting, batch=batch).step(layout)
    return LayoutRow(layout, step, batch, fits=_fits(step, memory_bytes))


class _Search:
    """Plans layouts, each without checkpointing and, unless that fits, with it. Leaves out those
    that do not fit, and those that by their computation alone are slower than the fastest one of
    the same program.
    """

    def __init__(self, setting: PlanSetting, memory_bytes: float | None) -> None:
        self.setting, self.memory_bytes = setting, memory_bytes
        self.rows: list[LayoutRow] = []
        self.fastest = {True: math.inf, False: math.inf}  # ns, in Megatron-LM and in torch
        self.least: tuple[float, ParallelLayout, Batch] | None = None  # bytes

    def add(self, layout: ParallelLayout, batches: Sequence[Batch]) -> None:
        modes = ["", *checkpoint_modes(layout)]
        # A pipeline is the fastest with many micro-batches, the gathers of FSDP2 with few.
        batches = batches[::-1] if layout.pp > 1 else batches
        for mode in modes if self.setting.architecture.hidden else modes[:1]:
            row = self._fastest_that_fits(replace(layout, checkpoint=mode), batches)
            if row is None:
                continue
            self.rows.append(row)
            if row.step.step_ns:
                self.fastest[layout.megatron] = min(self.fastest[layout.megatron], row.cost)
            if row.fits == FITS:
                break

    def _fastest_that_fits(
        self, layout: ParallelLayout, batches: Sequence[Batch]
    ) -> LayoutRow | None:
        architecture, options = self.setting.architecture, self.setting.options
        most = math.inf if self.memory_bytes is None else (1 + UNSURE) * self.memory_bytes
        rows = []
        for batch in batches:
            if self.least_ns(layout, batch) > _SLOWER * self.fastest[layout.megatron]:
                continue
            memory = least_memory(architecture, layout, batch, options)
            if self.least is None or memory.total < self.least[0]:
                self.least = (memory.total, layout, batch)
            if memory.total - memory.activations - memory.peak > most:
                break
            if memory.total <= most:
                row = _row(self.setting, layout, batch, self.memory_bytes)
                rows += [row] if row.fits != TOO_LARGE else []
                if row.fits == FITS:
                    break
        return min(rows, key=lambda row: row.ranked_cost, default=None)

    def least_ns(self, layout: ParallelLayout, batch: Batch) -> float:
        """Returns the computation and the waiting in a pipeline; 0.0 if unknown."""
        if self.setting.computing is None:
            return 0.0
        architecture = self.setting.architecture
        computed = self.setting.computing.on(architecture, layout, batch)
        return computed.ns[0] * (1 + idle_share(architecture, layout, batch, batch.tokens))

    def run(self, shared: Sequence[tuple[ParallelLayout, Sequence[Batch]]]) -> list[LayoutRow]:
        """Returns the rows of layouts with the batches that they can have; if none fits, one row:
        that of the layout with the least memory.
        """
        candidates = [
            (layout, few)
            for layout, batches in shared
            if (few := [batch for batch in batches if batch.sequences <= _MOST_SEQUENCES])
        ]
        candidates.sort(key=lambda pair: min(self.least_ns(pair[0], each) for each in pair[1]))
        for layout, batches in candidates:
            self.add(layout, batches)
        if not self.rows and self.least is not None:
            _, layout, batch = self.least
            self.rows.append(_row(self.setting, layout, batch, self.memory_bytes))
        return self.rows


def compare_layouts(
    setting: PlanSetting,
    layouts: Sequence[ParallelLayout],
    memory_bytes: float | None = None,
    search: bool = False,
) -> LayoutComparison:
    """Returns the layouts with their costs.

    - setting: its batch is that of the layout with the most data-parallel ranks. The others
      compute as much more as they have fewer of these: more sequences with tp and cp, more
      micro-batches with pp. In a search it is the batch of all ranks.
    - memory_bytes: the memory that a rank has; None for no limit.
    - search: the layouts are candidates, and slow ones may be left out.

    Each layout has the micro-batches with which its step is the fastest that fits. A layout that
    does not fit is tried with checkpointing. Raises UsageError for a batch that cannot be shared.
    """
    machine, architecture, batch = setting.machine, setting.architecture, setting.batch
    widest = min(layouts, key=lambda layout: layout.inner)
    sequences = batch.micro_batches * batch.sequences
    if search:
        batch = replace(batch, micro_batches=1)
    else:
        sequences *= widest.replicas * widest.shards
    planned = [(layout, _shared_batches(layout, batch, sequences)) for layout in layouts]
    shared = [pair for pair in planned if pair[1]]
    if not shared or (len(shared) < len(planned) and not search):
        expected = "sequences of all ranks that data-parallel ranks can share"
        raise UsageError("batch", counted(sequences, "sequence"), expected)
    if search:
        rows = _Search(setting, memory_bytes).run(shared)
    else:
        rows = [_plan_fastest(setting, *pair, memory_bytes) for pair in shared]
    # fsdp that does not fit without checkpointing becomes fsdp+ckpt, which may be asked for too.
    rows = [*{row.layout: row for row in rows}.values()]
    tokens = round(sequences * batch.tokens)
    model = f"{architecture.source}: {architecture.parameters:,} parameters"
    return LayoutComparison(
        what=f"{model}, {setting.options.dtype}; {tokens:,} tokens in a step",
        ranks=layouts[0].ranks,
        rows=sorted(rows, key=sort_key),
        machine=machine.name if machine is not None else "",
        notes=_comparison_notes(machine, architecture, rows),
        memory_bytes=memory_bytes,
    )


def sort_key(row: LayoutRow) -> tuple[object, ...]:
    """Returns the sort key of a row. Of layouts with the same cost in 3 digits, the simplest is
    first.
    """
    cost = float(f"{row.ranked_cost:.2e}")
    return row.fits == TOO_LARGE, cost, row.layout.kinds, row.ranked_cost


def _fits(step: PlannedStep, memory_bytes: float | None) -> str:
    """Returns FITS if the step fits even if it needs UNSURE more than planned with any kernels,
    TOO_LARGE if it does not fit with UNSURE less, else TIGHT.
    """
    if memory_bytes is None or step.memory is None:
        return FITS
    if (1 + UNSURE) * step.memory.most <= memory_bytes:
        return FITS
    return TIGHT if step.memory.total <= (1 + UNSURE) * memory_bytes else TOO_LARGE


def _comparison_notes(
    machine: Predictor | None, architecture: Architecture, rows: Sequence[LayoutRow]
) -> list[str]:
    notes = [*dict.fromkeys(note for row in rows for note in computing_notes(row.step, row.layout))]
    notes += [UNCORRECTED] if machine is not None else ["--machine NAME or FILE gives the times"]
    return [
        *notes,
        "the same tokens in a step for each layout: with tp and cp a data-parallel rank computes "
        "more sequences, with pp more micro-batches",
        f"memory: two states of Adam in the parameters' type, with zero1 {_ZERO1_STATES}; "
        f"{_activations_note(architecture)}",
        *(machine.notes() if machine is not None else []),
    ]


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
