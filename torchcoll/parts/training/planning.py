"""``torchcoll.plan``: what a step will send, how long it takes, and which layout is best.

A measured step (``measured``) corrects the machine: the plan of the captured layout, on as many
ranks as were captured, is compared with the capture, and all predictions take its factor.
"""

from __future__ import annotations

import importlib
import math
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, overload

from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of
from torchcoll.core.units import MOST_RANKS, format_ns, whole_number
from torchcoll.parts.curves.model import MachineModel
from torchcoll.parts.curves.model_fit import FittedModel
from torchcoll.parts.curves.named_machines import as_machine
from torchcoll.parts.curves.predictor import Predictor
from torchcoll.parts.curves.published_machine import PublishedMachine
from torchcoll.parts.training.architectures import Architecture, read_architecture
from torchcoll.parts.training.config_plan import TrainingOptions
from torchcoll.parts.training.config_projection import (
    LayoutComparison,
    compare_layouts,
    equal_batches,
    plan_layout,
    project_config,
    project_parameters,
)
from torchcoll.parts.training.layouts import (
    Batch,
    LayerOptions,
    ParallelLayout,
    parse_batch,
    parse_layout,
    parse_layouts,
)
from torchcoll.parts.training.measured_step import MeasuredStep, matched_share, measure_step
from torchcoll.parts.training.projection import (
    CorrectedMachine,
    Plan,
    PlannedGroup,
    PlannedStep,
    finish,
    place_group,
    planned_step,
)
from torchcoll.parts.training.step_program import (
    BACKWARD,
    FORWARD,
    BeginCall,
    PassWork,
    ProgramAct,
    ProgramWriter,
    SentCall,
    ShardPlan,
    StepProgram,
    step_acts,
)
from torchcoll.parts.training.steps import find_steps
from torchcoll.reading.inputs import load_traffic


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


def stage_program(stages: Sequence[StepStage]) -> StepProgram:
    """Returns the stages as a program."""
    writer = ProgramWriter()
    needed = [writer.start(sent) for sent in stages[0].needs] if stages else []
    for stage, following in zip_longest(stages, stages[1:]):
        writer.wait(*needed)
        # The calls that the next stage needs are issued before the overlapping ones of this stage.
        needed = [writer.start(sent) for sent in following.needs] if following else []
        writer.work(stage.phase, stage.share)
        writer.block(stage.blocking)
        for sent in stage.overlapping:
            writer.start(sent)
    return StepProgram(tuple(writer.acts))


def shard_program(plan: ShardPlan) -> StepProgram:
    """Returns the step of a plan of FSDP2 as a program."""
    sent = []
    for call in plan.calls[0]:
        point, _ = point_of(call, len(plan.members(call)))
        size_bytes = point.size_bytes if point else max(call.bytes_in, call.bytes_out)
        sent.append(SentCall(call.group, call.collective, size_bytes))

    def send(index: int, after: Hashable | None) -> ProgramAct:
        return BeginCall(index, sent[index], after)

    return StepProgram(tuple(step_acts(plan, send, PassWork)))


def plan_traffic(
    machine: Predictor | None, traffic: Traffic, ranks: Sequence[int], compute_ns: float | None
) -> Plan:
    """Returns a plan of a step that was captured or planned.

    The step becomes stages, each a share of the computation with the calls that it needs before it,
    the calls that block after it, and those that overlap with later stages and are waited for at
    the end of the step.

    - ranks: numbers of ranks; by default those of the traffic. Groups of all ranks grow with them,
      other groups keep their size.
    - compute_ns: the computation of a step; None if unknown.
    """
    steps = find_steps(traffic)
    rank = next((rank for rank, by_step in steps.at.items() if by_step), None)
    if rank is None or not steps.steady:
        raise UsageError("traffic", f"no call in {traffic.path or 'it'}", "a step with calls")
    calls: list[tuple[TrafficCall, SentCall]] = []  # of one rank in a steady step
    for index in steps.at[rank].get(steps.steady[-1], ()):
        call = traffic.calls[rank][index]
        point, _ = point_of(call, len(traffic.members(call)))
        if point is not None and point.size_bytes:
            calls.append((call, SentCall(call.group, point.collective, point.size_bytes)))
    if not calls:
        raise UsageError("traffic", "no collective with a size in a steady step", "one or more")
    captured_ranks = traffic.ranks
    rank_counts = list(ranks) or [captured_ranks]
    members = {sent.group: traffic.members(call) for call, sent in calls}
    if any(n != captured_ranks for n in rank_counts) and not any(
        len(group_ranks) == captured_ranks for group_ranks in members.values()
    ):
        sizes = ", ".join(f"{name} of {len(group_ranks)}" for name, group_ranks in members.items())
        raise UsageError(
            "ranks", f"groups {sizes}", f"one of all {captured_ranks} ranks, which grows with them"
        )
    if isinstance(traffic, ShardPlan):
        program = shard_program(traffic)
    else:
        program = stage_program(_stages_from_calls(traffic, calls))

    def groups(count: int, on: Predictor | None) -> dict[str, PlannedGroup]:
        placed_groups: dict[str, PlannedGroup] = {}
        for name, own_ranks in members.items():
            size = len(own_ranks)
            grown = size * count / captured_ranks if size == captured_ranks else size
            if grown != int(grown):
                raise UsageError(
                    "ranks",
                    count,
                    f"a multiple of {captured_ranks // math.gcd(captured_ranks, size)}",
                )
            number = int(grown)
            apart = own_ranks[1] - own_ranks[0] if size > 1 else 1
            placed_groups[name] = place_group(name, number, apart, on)
        return placed_groups

    def step(count: int, share: float = 1.0, on: Predictor | None = machine) -> PlannedStep:
        compute = None if compute_ns is None else compute_ns * share
        return planned_step(on, program, groups(count, on), count, {}, compute)

    first = captured_ranks if captured_ranks in rank_counts else rank_counts[0]
    what = f"a step of {traffic.source} on {captured_ranks} ranks, {len(calls)} calls a rank"
    projection = Plan(what, step(first), compute_ns=compute_ns)
    projection.notes += traffic.problems
    if len(rank_counts) > 1:
        projection.weak = [step(count) for count in rank_counts]
        projection.strong = [step(count, first / count) for count in rank_counts]
    return finish(projection, machine, lambda other: step(first, on=other))


def _stages_from_calls(
    traffic: Traffic, calls: Sequence[tuple[TrafficCall, SentCall]]
) -> list[StepStage]:
    """Returns the stages of a step from its calls.

    In a plan of FSDP2 the gathered parameters are needed by the next stage, forward as often as
    gradients are scattered, then backward. Otherwise asynchronous calls overlap, with a share of
    the computation in proportion to their bytes, and synchronous calls block.
    """
    gathers = [index for index, (call, _) in enumerate(calls) if call.bytes_out > call.bytes_in]
    if traffic.source != "plan" or not gathers:
        free = [sent.size_bytes for call, sent in calls if call.asynchronous]
        passes = [StepStage(FORWARD, 1.0)]
        for call, sent in calls:
            if call.asynchronous:
                passes.append(StepStage(BACKWARD, sent.size_bytes / sum(free), overlapping=(sent,)))
            else:
                passes.append(StepStage(BACKWARD, 0.0, blocking=(sent,)))
        return passes if free else [*passes, StepStage(BACKWARD, 1.0)]
    units = sum(call.bytes_out < call.bytes_in for call, _ in calls)
    phases = {index: FORWARD if n < units else BACKWARD for n, index in enumerate(gathers)}
    gathers_backward = BACKWARD in phases.values()
    stages: list[tuple[int, StepStage]] = []  # with their weights in the pass
    for index, (_, sent) in enumerate(calls):
        if index in phases:
            stages.append((sent.size_bytes, StepStage(phases[index], 0.0, needs=(sent,))))
        elif gathers_backward and stages and stages[-1][1].phase == BACKWARD:
            weight, last = stages[-1]
            stages[-1] = (weight, replace(last, overlapping=(*last.overlapping, sent)))
        else:  # parameters that stayed gathered: ready after their backward
            stages.append((sent.size_bytes, StepStage(BACKWARD, 0.0, overlapping=(sent,))))
    totals: dict[str, int] = defaultdict(int)
    for weight, stage in stages:
        totals[stage.phase] += weight
    shares = [replace(stage, share=weight / totals[stage.phase]) for weight, stage in stages]
    return shares if totals[BACKWARD] else [*shares, StepStage(BACKWARD, 1.0)]


DEFAULT_BATCH = "1x8192"
Machine = FittedModel | MachineModel | PublishedMachine | str | os.PathLike[str]
Captured = Traffic | str | os.PathLike[str]


@dataclass(frozen=True)
class _Setting:
    """What is planned, apart from the layout."""

    machine: Predictor | None
    architecture: Architecture
    batch: Batch
    training: TrainingOptions
    compute_ns: float | None


@overload
def plan(
    config: str | os.PathLike[str] | None = None,
    parallel: str | None = None,
    *,
    ranks: int | Sequence[int] | None = None,
    batch: str | None = None,
    compare: None = None,
    machine: Machine | None = None,
    step_ms: float | None = None,
    measured: Captured | None = None,
    traffic: Captured | None = None,
    parameters: float | None = None,
    dtype: str | None = None,
    param_dtype: str | None = None,
    reduce_dtype: str | None = None,
    checkpointing: bool = False,
    ring: bool = False,
    capacity_factor: float | None = None,
) -> Plan: ...


@overload
def plan(
    config: str | os.PathLike[str],
    *,
    ranks: int | Sequence[int],
    compare: str | Sequence[str],
    batch: str | None = None,
    machine: Machine | None = None,
    step_ms: float | None = None,
    measured: Captured | None = None,
    dtype: str | None = None,
    param_dtype: str | None = None,
    reduce_dtype: str | None = None,
    checkpointing: bool = False,
    ring: bool = False,
    capacity_factor: float | None = None,
    memory_gb: float | None = None,
) -> LayoutComparison: ...


def plan(
    config: str | os.PathLike[str] | None = None,
    parallel: str | None = None,
    *,
    ranks: int | Sequence[int] | None = None,
    batch: str | None = None,
    compare: str | Sequence[str] | None = None,
    machine: Machine | None = None,
    step_ms: float | None = None,
    measured: Captured | None = None,
    traffic: Captured | None = None,
    parameters: float | None = None,
    dtype: str | None = None,
    param_dtype: str | None = None,
    reduce_dtype: str | None = None,
    checkpointing: bool = False,
    ring: bool = False,
    capacity_factor: float | None = None,
    memory_gb: float | None = None,
) -> Plan | LayoutComparison:
    """Plans the communication of a training step, as ``torchcoll plan`` does.

    One of ``config``, ``traffic`` and ``parameters`` says what is trained.

    - config: a Hugging Face ``config.json``, a bundled name such as ``"llama-3-8b"``, or
      ``"MODULE:FACTORY"``.
    - parallel: its layout, such as ``"fsdp=64"`` or ``"dp=8,tp=8,sp,pp=4"``.
    - ranks: the number of ranks, or several for weak and strong scaling.
    - batch: ``"SEQUENCESxTOKENS"`` of a data-parallel rank, or with micro-batches in front;
      by default ``"1x8192"``.
    - compare: layouts in place of ``parallel``, such as ``["dp", "fsdp", "fsdp+tp=8"]``.
    - machine: what ``fit_model`` returned, a file of ``torchcoll model fit``, or the name of a
      machine that others measured, such as ``"8xH100"``. Without it there are no times.
    - step_ms: the computation of a step in ms, forward and backward, without checkpointing.
    - measured: a captured Traffic of real steps, its file or folder, which corrects the times.
    - traffic: a captured or planned step in place of ``config``.
    - parameters: a number of parameters in place of ``config``, for DDP.
    - dtype, param_dtype, reduce_dtype, checkpointing, ring, capacity_factor: as the options of
      ``torchcoll plan``.
    - memory_gb: with ``compare``, the memory of a GPU in GB (10^9 bytes): layouts that need more
      come last. By default that of the machine's GPU, if others measured the machine.

    Returns a ``Plan``, or a ``LayoutComparison`` with ``compare``. Raises UsageError for arguments
    that cannot be used, UnreadableError for a file.
    """
    sources = {"config": config, "traffic": traffic, "parameters": parameters}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        expected = "one of config, traffic, parameters"
        raise UsageError("plan", " and ".join(given) or "nothing", expected)
    for what, value in (
        *(("parallel", parallel), ("batch", batch), ("dtype", dtype)),
        *(("param_dtype", param_dtype), ("reduce_dtype", reduce_dtype)),
    ):
        if value is not None and not isinstance(value, str):
            raise UsageError(what, type(value).__name__, "text")
    predictor = None if machine is None else as_machine(machine)
    compute_ns = None if step_ms is None else 1e6 * _positive(step_ms, "step_ms")
    counts = _rank_counts(ranks)
    captured = None if measured is None else _captured(measured, "measured")
    if compute_ns is not None and predictor is None:
        expected = "a machine with it, which gives the times of the calls"
        raise UsageError("step_ms", f"{step_ms:g}", expected, "--machine list names them.")
    if captured is not None and predictor is None:
        raise UsageError("measured", "no machine", "a machine, whose times the capture corrects")
    if config is None:
        of_config: dict[str, Any] = {"parallel": parallel, "batch": batch, "compare": compare}
        of_config |= {"param_dtype": param_dtype, "reduce_dtype": reduce_dtype}
        of_config |= {"checkpointing": checkpointing or None, "ring": ring or None}
        of_config |= {"capacity_factor": capacity_factor, "memory_gb": memory_gb}
        for name, value in of_config.items():
            if value is not None:
                raise UsageError(name, value, f"config with it, not {given[0]}")
        if traffic is not None:
            if dtype is not None:
                raise UsageError("dtype", dtype, "none: the traffic has its own")
            planned = _captured(traffic, "traffic")
            return _plan_captured(predictor, planned, counts, compute_ns, captured)
        if captured is not None:
            expected = "config or traffic with measured: the buckets of a number are not the real"
            raise UsageError("measured", "parameters", expected)
        if not counts:
            raise UsageError("ranks", "none", "the number of ranks with parameters")
        number = _positive(parameters, "parameters")
        name = find_dtype(dtype or "bfloat16").name
        return project_parameters(predictor, number, counts, name, compute_ns)
    if not isinstance(config, str | os.PathLike):
        expected = "a config.json, the name of a model, or MODULE:FACTORY"
        raise UsageError("config", type(config).__name__, expected)
    architecture = _read(os.fspath(config))
    if compute_ns is not None and checkpointing and captured is None:
        # Forward and backward are 3 forward passes; a fourth computes the activations again.
        compute_ns *= 4 / 3
    setting = _Setting(
        predictor,
        architecture,
        _parse_batch(batch, architecture),
        _training(
            architecture,
            (dtype, param_dtype, reduce_dtype),
            LayerOptions(
                "",
                bool(ring),
                bool(checkpointing),
                None if capacity_factor is None else _positive(capacity_factor, "capacity_factor"),
            ),
        ),
        compute_ns,
    )
    if compare is not None:
        limit = None if memory_gb is None else _positive(memory_gb, "memory_gb")
        return _compare(setting, compare, parallel, counts, captured, limit)
    if memory_gb is not None:
        actual = f"{memory_gb:g} without compare" if isinstance(memory_gb, float) else memory_gb
        raise UsageError("memory_gb", actual, "compare too: the limit excludes layouts")
    if parallel is None and not counts:
        expected = "a layout such as fsdp=64, or a number of ranks (laid out as fsdp)"
        raise UsageError("parallel", "none", expected)
    layout = parse_layout(parallel or "fsdp", counts[0] if counts else None)
    return _plan_layout(setting, layout, counts, captured)


def _plan_layout(
    setting: _Setting, layout: ParallelLayout, counts: Sequence[int], captured: Traffic | None
) -> Plan:
    def project(machine: Predictor | None, compute_ns: float | None) -> Plan:
        return project_config(
            machine,
            setting.architecture,
            layout,
            counts,
            setting.batch,
            setting.training,
            compute_ns,
        )

    if captured is None or setting.machine is None:
        return project(setting.machine, setting.compute_ns)
    there = _on_captured_ranks(layout, captured.ranks)
    step = _step(setting, there, setting.batch)
    measured = measure_step(step, captured, there.name, setting.compute_ns)
    taken = f"--batch {setting.batch.text}"
    return _corrected(setting.machine, setting.compute_ns, measured, taken, project)


def _plan_captured(
    machine: Predictor | None,
    traffic: Traffic,
    counts: Sequence[int],
    compute_ns: float | None,
    captured: Traffic | None,
) -> Plan:
    def project(on: Predictor | None, computes_ns: float | None) -> Plan:
        return plan_traffic(on, traffic, counts, computes_ns)

    if captured is None or machine is None:
        return project(machine, compute_ns)
    step = plan_traffic(machine, traffic, [captured.ranks], compute_ns).step
    measured = measure_step(step, captured, "", compute_ns)
    return _corrected(machine, compute_ns, measured, "the planned step", project)


def _corrected(
    machine: Predictor,
    compute_ns: float | None,
    measured: MeasuredStep,
    taken: str,
    project: Callable[[Predictor | None, float | None], Plan],
) -> Plan:
    compute_ns, measured = _computation(compute_ns, measured, taken)
    measured = _with_other_hardware(measured, machine)
    corrected = project(CorrectedMachine(machine, measured.correction), compute_ns)
    corrected.measured, corrected.uncorrected = measured, project(machine, compute_ns).step
    return corrected


def _with_other_hardware(measured: MeasuredStep, machine: Predictor) -> MeasuredStep:
    """Adds a note where calls of CPUs correct the times of GPUs."""
    on_host = bool(measured.backends) and all(backend_of(b).on_host for b in measured.backends)
    # None: imported tables that do not record the device. Published machines have no such field.
    unknown = any(case.kind.get("device", "") is None for case in machine.cases())
    if not on_host or unknown or machine.on_cpu(row.collective for row in measured.matched):
        return measured
    text = (
        f"the step was captured with {', '.join(measured.backends)} on CPUs, and {machine.name} "
        "has GPUs: the factor is not of that machine"
    )
    return replace(measured, notes=(text, *measured.notes), other_hardware=True)


def _computation(
    compute_ns: float | None, measured: MeasuredStep, taken: str
) -> tuple[float | None, MeasuredStep]:
    """Returns the computation of a step, and the measured step with a note where it is its own.

    - compute_ns: as given; None for that of the measured step.
    - taken: the batch that the measured step is taken to have: its calls need not show the batch.
    """
    if compute_ns is None:
        if measured.computing_ns is None:
            return None, measured
        note = (
            f"{format_ns(measured.computing_ns, 3)} of computation are the capture's, taken to be "
            f"of {taken}; --step-ms says another"
        )
        return measured.computing_ns, replace(measured, notes=(*measured.notes, note))
    if measured.step_ns is not None and compute_ns > measured.step_ns:
        expected = f"at most the {format_ns(measured.step_ns, 3)} of a captured step"
        action = "Capture a step of the batch that is planned."
        raise UsageError("step_ms", f"{compute_ns / 1e6:g}", expected, action)
    return compute_ns, measured


def _compare(
    setting: _Setting,
    compare: str | Sequence[str],
    parallel: str | None,
    counts: Sequence[int],
    captured: Traffic | None,
    memory_gb: float | None,
) -> LayoutComparison:
    if parallel is not None:
        raise UsageError("compare", "parallel too", "one of them")
    if not isinstance(compare, str | Sequence):
        expected = "layouts, such as dp,fsdp or a list of them"
        raise UsageError("compare", type(compare).__name__, expected)
    text = compare if isinstance(compare, str) else ",".join(map(str, compare))
    if len(counts) > 1:
        raise UsageError("ranks", ",".join(map(str, counts)), "one number with compare")
    layouts = parse_layouts(text, counts[0] if counts else None)
    of_gpu = None
    if memory_gb is None and isinstance(setting.machine, PublishedMachine):
        memory_gb = of_gpu = setting.machine.memory_gb

    def project(machine: Predictor | None, compute_ns: float | None) -> LayoutComparison:
        comparison = compare_layouts(
            machine,
            setting.architecture,
            layouts,
            setting.batch,
            setting.training,
            compute_ns,
            None if memory_gb is None else 1e9 * memory_gb,
        )
        if of_gpu is not None:
            text = f"memory of a GPU: {of_gpu:g} GB by its data sheet; --memory-gb for another size"
            comparison.notes.append(text)
        return comparison

    if captured is None or setting.machine is None:
        return project(setting.machine, setting.compute_ns)
    step, layout = _captured_layout(setting, layouts, captured)
    measured = measure_step(step, captured, layout.name, setting.compute_ns)
    taken = f"--batch {setting.batch.text}"
    compute_ns, measured = _computation(setting.compute_ns, measured, taken)
    measured = _with_other_hardware(measured, setting.machine)
    corrected = project(CorrectedMachine(setting.machine, measured.correction), compute_ns)
    corrected.measured = measured
    corrected.uncorrected = project(setting.machine, compute_ns).rows
    return corrected


def _captured_layout(
    setting: _Setting, layouts: Sequence[ParallelLayout], captured: Traffic
) -> tuple[PlannedStep, ParallelLayout]:
    """Returns the layout whose calls are most like those of the capture, on its ranks."""
    candidates = []
    for layout, batches in zip(layouts, equal_batches(layouts, setting.batch), strict=True):
        try:
            there = layout.on(captured.ranks)
            candidates += [(_step(setting, there, batch), there) for batch in batches]
        except UsageError:  # not a layout of so many ranks
            continue
    if not candidates:
        expected = "as many as at least one of the layouts can have"
        raise UsageError("measured", f"a capture of {captured.ranks} ranks", expected)
    return max(candidates, key=lambda each: matched_share(each[0], captured))


def _on_captured_ranks(layout: ParallelLayout, ranks: int) -> ParallelLayout:
    try:
        return layout.on(ranks)
    except UsageError as error:
        expected = f"one of {layout.name}, on this or another number of ranks"
        raise UsageError("measured", f"a capture of {ranks} ranks", expected, str(error)) from None


def _step(setting: _Setting, layout: ParallelLayout, batch: Batch) -> PlannedStep:
    return plan_layout(
        setting.machine, setting.architecture, layout, batch, setting.training, setting.compute_ns
    )


def _read(config: str) -> Architecture:
    if ":" not in config or os.path.exists(config):
        return read_architecture(config)
    importlib.import_module("torchcoll.bench.main").import_torch()  # reports a missing torch
    from torchcoll.parts.training.meta_model import read_module

    return read_module(config)


def _parse_batch(text: str | None, architecture: Architecture) -> Batch:
    fixed = architecture.tokens
    batch = parse_batch(text or (f"1x{fixed}" if fixed else DEFAULT_BATCH))
    if fixed and batch.tokens != fixed:
        raise UsageError("batch", text, f"{fixed} tokens, which an image has: 64x{fixed}")
    return batch


def _training(
    architecture: Architecture,
    dtypes: tuple[str | None, str | None, str | None],
    layers: LayerOptions,
) -> TrainingOptions:
    kept, computed, reduced = (find_dtype(name).name if name else "" for name in dtypes)
    kept = kept or find_dtype(architecture.dtype or "bfloat16").name
    return TrainingOptions(kept, computed, reduced, replace(layers, dtype=computed or kept))


def _captured(source: Any, what: str) -> Traffic:
    if isinstance(source, str | os.PathLike):
        return load_traffic(source)
    if not isinstance(source, Traffic):
        raise UsageError(what, type(source).__name__, "a Traffic, its file or its folder")
    return source


def _rank_counts(ranks: int | Sequence[int] | None) -> list[int]:
    if ranks is None:
        return []
    counts = list(ranks) if isinstance(ranks, Sequence) and not isinstance(ranks, str) else [ranks]
    for count in counts:
        whole_number(count, "ranks", 2)
        if int(count) > MOST_RANKS:
            raise UsageError("ranks", count, f"at most {MOST_RANKS}")
    return sorted(set(counts))


def _positive(value: Any, what: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < 1e15:
        raise UsageError(what, value, "a number above 0")
    return float(value)
