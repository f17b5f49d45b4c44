"""``torchcoll.plan``: what a step will send, how long it takes, and which layout is best.

A measured step (``measured``) corrects the machine: the plan of the captured layout, on as many
ranks as were captured, is compared with the capture, and all predictions take its factor.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UsageError
from torchcoll.core.file import is_traffic
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import MOST_RANKS, format_ns, whole_number
from torchcoll.parts.curves.model import MachineModel
from torchcoll.parts.curves.model_fit import FittedModel
from torchcoll.parts.curves.named_machines import as_machine
from torchcoll.parts.curves.predictor import Predictor
from torchcoll.parts.curves.published_machine import PublishedMachine
from torchcoll.parts.training.architectures import Architecture, read_architecture
from torchcoll.parts.training.captured_plan import plan_traffic
from torchcoll.parts.training.config_plan import TrainingOptions
from torchcoll.parts.training.config_projection import (
    Computing,
    LayoutComparison,
    compare_layouts,
    equal_batches,
    plan_layout,
    project_config,
)
from torchcoll.parts.training.layout_search import FIND, candidate_layouts
from torchcoll.parts.training.layouts import (
    Batch,
    LayerOptions,
    ParallelLayout,
    parse_batch,
    parse_layout,
    parse_layouts,
)
from torchcoll.parts.training.measured_step import MeasuredStep, matched_share, measure_step
from torchcoll.parts.training.projection import Computation, CorrectedMachine, Plan, PlannedStep
from torchcoll.reading.inputs import load_traffic

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
    computing: Computing | None


def plan(
    model: Captured,
    parallel: str | None = None,
    *,
    ranks: int | Sequence[int] | None = None,
    batch: str | None = None,
    machine: Machine | None = None,
    mfu: float | None = None,
    step_ms: float | None = None,
    measured: Captured | None = None,
    dtype: str | None = None,
    param_dtype: str | None = None,
    reduce_dtype: str | None = None,
    ring: bool = False,
    capacity_factor: float | None = None,
) -> Plan:
    """Plans the communication of a training step, as ``torchcoll plan`` does.

    - model: a Hugging Face ``config.json``, a bundled name such as ``"llama-3-8b"``,
      ``"MODULE:FACTORY"``, or a captured step: a Traffic, its file or folder.
    - parallel: its layout, such as ``"fsdp=64"``, ``"dp@25=8"`` or ``"dp=8,tp=8,sp,pp=4"``.
    - ranks: the number of ranks, or several for weak and strong scaling.
    - batch: ``"SEQUENCESxTOKENS"`` of a data-parallel rank, or with micro-batches in front;
      by default ``"1x8192"``.
    - machine: what ``fit_model`` returned, a file of ``torchcoll model fit``, or the name of a
      machine that others measured, such as ``"8xH100"``. Without it there are no times.
    - mfu: the share of the GPU's peak at which a step computes; by default 0.35 to 0.55.
    - step_ms: the computation of a step in ms, forward and backward, without checkpointing, in
      place of mfu.
    - measured: a captured Traffic of real steps, its file or folder, which corrects the times.
    - dtype, param_dtype, reduce_dtype, ring, capacity_factor: as the options of ``torchcoll plan``.

    Raises UsageError for arguments that cannot be used, UnreadableError for a file.
    """
    texts = {"parallel": parallel, "batch": batch, "dtype": dtype}
    texts |= {"param_dtype": param_dtype, "reduce_dtype": reduce_dtype}
    _check_texts(texts)
    counts = _rank_counts(ranks)
    if (traffic := _as_capture(model)) is not None:
        of_models = {**texts, "mfu": mfu, "ring": ring or None, "capacity_factor": capacity_factor}
        for name, unwanted in of_models.items():
            if unwanted is not None:
                raise UsageError(name, unwanted, "none with a captured step")
        predictor = None if machine is None else as_machine(machine)
        computing = _computing(predictor, None, step_ms)
        compute = None
        if computing is not None and computing.step_ns is not None:
            compute = Computation((computing.step_ns,) * 3)
        captured = _load_measured(measured, predictor)
        return _plan_captured(predictor, traffic, counts, compute, captured)
    setting = _setting(
        model,
        batch,
        machine,
        mfu,
        step_ms,
        (dtype, param_dtype, reduce_dtype),
        ring,
        capacity_factor,
    )
    if parallel is None and not counts:
        expected = "a layout such as fsdp=64, or a number of ranks (laid out as fsdp)"
        raise UsageError("parallel", "none", expected)
    layout = parse_layout(parallel or "fsdp", counts[0] if counts else None)
    return _plan_layout(setting, layout, counts, _load_measured(measured, setting.machine))


def compare_plans(
    model: str | os.PathLike[str],
    layouts: str | Sequence[str],
    *,
    ranks: int | None = None,
    batch: str | None = None,
    machine: Machine | None = None,
    mfu: float | None = None,
    step_ms: float | None = None,
    measured: Captured | None = None,
    dtype: str | None = None,
    param_dtype: str | None = None,
    reduce_dtype: str | None = None,
    ring: bool = False,
    capacity_factor: float | None = None,
    memory_gb: float | None = None,
) -> LayoutComparison:
    """Plans a step on several layouts with the same tokens, as ``torchcoll plan --compare`` does.

    - layouts: such as ``["dp@4", "dp@25", "fsdp", "fsdp+tp=8+sp"]``; ``"find"`` for a search over
      tp, pp, checkpointing and micro-batches.
    - memory_gb: the memory of a GPU in GB (10^9 bytes): layouts that need more come last. By
      default that of the machine's GPU, if others measured the machine.

    The other arguments are those of ``plan``. Raises UsageError for arguments that cannot be used.
    """
    setting = _setting(
        model,
        batch,
        machine,
        mfu,
        step_ms,
        (dtype, param_dtype, reduce_dtype),
        ring,
        capacity_factor,
    )
    limit = None if memory_gb is None else _positive(memory_gb, "memory_gb")
    captured = _load_measured(measured, setting.machine)
    return _compare(setting, layouts, _rank_counts(ranks), captured, limit)


def _check_texts(values: Mapping[str, Any]) -> None:
    for what, value in values.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(what, type(value).__name__, "text")


def _setting(
    model: Any,
    batch: str | None,
    machine: Machine | None,
    mfu: float | None,
    step_ms: float | None,
    dtypes: tuple[str | None, str | None, str | None],
    ring: bool,
    capacity_factor: float | None,
) -> _Setting:
    if not isinstance(model, str | os.PathLike):
        expected = "a config.json, the name of a model, MODULE:FACTORY, or a capture"
        raise UsageError("model", type(model).__name__, expected)
    _check_texts(
        {"batch": batch, **dict(zip(("dtype", "param_dtype", "reduce_dtype"), dtypes, strict=True))}
    )
    architecture = _read(os.fspath(model))
    predictor = None if machine is None else as_machine(machine)
    capacity = None if capacity_factor is None else _positive(capacity_factor, "capacity_factor")
    layers = LayerOptions("", bool(ring), capacity)
    computing = _computing(predictor, mfu, step_ms)
    if computing is not None and computing.step_ns is None and not architecture.hidden:
        computing = None  # how much a model from its code computes is unknown
    training = _training(architecture, dtypes, layers)
    return _Setting(predictor, architecture, _parse_batch(batch, architecture), training, computing)


# FLOP/s of one GPU for dense matrices of 16 bits, by the data sheets.
_PEAK = {
    "V100": 125e12,
    "A100": 312e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "GB200": 2500e12,
    "MI300X": 1307e12,
}


def _computing(
    machine: Predictor | None, mfu: float | None, step_ms: float | None
) -> Computing | None:
    """Returns how long steps compute; None where nothing says it.

    Raises UsageError for both, and for any without a machine that they can belong to.
    """
    given = {"mfu": mfu, "step_ms": step_ms}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise UsageError("step_ms", f"{step_ms}, and mfu", "one of them")
    if names and machine is None:
        value = given[names[0]]
        expected = "a machine with it, which gives the times of the calls"
        raise UsageError(names[0], value, expected, "--machine list names them.")
    peak = None
    if isinstance(machine, PublishedMachine):
        peak = _PEAK.get(machine.links.gpu)
    if step_ms is not None:
        return Computing(1e6 * _positive(step_ms, "step_ms"), peak=peak)
    if mfu is None:
        return Computing(peak=peak) if peak else None
    share = _positive(mfu, "mfu")
    share = share / 100 if share > 1 else share
    if share > 1:
        raise UsageError("mfu", f"{mfu:g}", "a share of the GPU's peak, such as 0.4 or 40")
    if peak is None:
        raise UsageError("mfu", f"{mfu:g}", "a machine whose GPU is known", "--step-ms MS instead.")
    return Computing(shares=(share, share, share), peak=peak)


def _load_measured(source: Any, machine: Predictor | None) -> Traffic | None:
    if source is None:
        return None
    if machine is None:
        raise UsageError("measured", "no machine", "a machine, whose times the capture corrects")
    return _captured(source, "measured")


def _as_capture(model: Any) -> Traffic | None:
    """Returns the captured step if ``model`` is one."""
    if isinstance(model, Traffic):
        return model
    if not isinstance(model, str | os.PathLike):
        return None
    path = os.fspath(model)
    folder = os.path.isdir(path) and not os.path.exists(os.path.join(path, "config.json"))
    return load_traffic(path) if folder or is_traffic(path) else None


def _plan_layout(
    setting: _Setting, layout: ParallelLayout, counts: Sequence[int], captured: Traffic | None
) -> Plan:
    def project(machine: Predictor | None, computing: Computing | None) -> Plan:
        return project_config(
            machine,
            setting.architecture,
            layout,
            counts,
            setting.batch,
            setting.training,
            computing,
        )

    if captured is None or setting.machine is None:
        return project(setting.machine, setting.computing)
    there = _on_captured_ranks(layout, captured.ranks)
    step = _step(setting, there, setting.batch)
    measured = measure_step(step, captured, there.name, _given_ns(setting.computing))
    taken = f"--batch {setting.batch.text}"
    computing, measured = _with_computation(setting.computing, measured, taken)
    measured = _with_other_hardware(measured, setting.machine)
    corrected = project(CorrectedMachine(setting.machine, measured.correction), computing)
    corrected.measured, corrected.uncorrected = measured, project(setting.machine, computing).step
    return corrected


def _plan_captured(
    machine: Predictor | None,
    traffic: Traffic,
    counts: Sequence[int],
    compute: Computation | None,
    captured: Traffic | None,
) -> Plan:
    if captured is None or machine is None:
        return plan_traffic(machine, traffic, counts, compute)
    step = plan_traffic(machine, traffic, [captured.ranks], compute).step
    given = None if compute is None else Computing(compute.ns[0])
    measured = measure_step(step, captured, "", _given_ns(given))
    given, measured = _with_computation(given, measured, "the planned step")
    measured = _with_other_hardware(measured, machine)
    compute = None if given is None else Computation((given.step_ns or 0.0,) * 3)
    corrected_machine = CorrectedMachine(machine, measured.correction)
    corrected = plan_traffic(corrected_machine, traffic, counts, compute)
    before = plan_traffic(machine, traffic, counts, compute).step
    corrected.measured, corrected.uncorrected = measured, before
    return corrected


def _given_ns(computing: Computing | None) -> float | None:
    return None if computing is None else computing.step_ns


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


def _with_computation(
    computing: Computing | None, measured: MeasuredStep, taken: str
) -> tuple[Computing | None, MeasuredStep]:
    """Returns the computation of a step, and the measured step with a note where it is its own.

    - computing: as given; that of the measured step takes the place of an assumed one.
    - taken: the batch that the measured step is taken to have: its calls need not show the batch.
    """
    given_ns, peak = _given_ns(computing), computing.peak if computing else None
    if given_ns is None:
        if measured.computing_ns is None:
            return computing, measured
        note = (
            f"{format_ns(measured.computing_ns, 3)} of computation are the capture's, taken to be "
            f"of {taken}; --step-ms says another"
        )
        measured = replace(measured, notes=(*measured.notes, note))
        return Computing(measured.computing_ns, True, peak=peak), measured
    if measured.step_ns is not None and given_ns > measured.step_ns:
        expected = f"at most the {format_ns(measured.step_ns, 3)} of a captured step"
        action = "Capture a step of the batch that is planned."
        raise UsageError("step_ms", f"{given_ns / 1e6:g}", expected, action)
    return computing, measured


def _compare(
    setting: _Setting,
    compare: str | Sequence[str],
    counts: Sequence[int],
    captured: Traffic | None,
    memory_gb: float | None,
) -> LayoutComparison:
    if not isinstance(compare, str | Sequence):
        expected = "layouts, such as dp,fsdp or a list of them"
        raise UsageError("compare", type(compare).__name__, expected)
    text = compare if isinstance(compare, str) else ",".join(map(str, compare))
    if len(counts) > 1:
        raise UsageError("ranks", ",".join(map(str, counts)), "one number with compare")
    if text == FIND:
        if not counts:
            raise UsageError("ranks", "none", "the number of ranks to lay the model out on")
        layouts = candidate_layouts(setting.architecture, counts[0], setting.machine)
    else:
        layouts = parse_layouts(text, counts[0] if counts else None)
    of_gpu = None
    if memory_gb is None and isinstance(setting.machine, PublishedMachine):
        memory_gb = of_gpu = setting.machine.memory_gb

    def project(machine: Predictor | None, computing: Computing | None) -> LayoutComparison:
        comparison = compare_layouts(
            machine,
            setting.architecture,
            layouts,
            setting.batch,
            setting.training,
            computing,
            None if memory_gb is None else 1e9 * memory_gb,
        )
        if of_gpu is not None:
            text = f"memory of a GPU: {of_gpu:g} GB by its data sheet; --memory-gb for another size"
            comparison.notes.append(text)
        return comparison

    if captured is None or setting.machine is None:
        return project(setting.machine, setting.computing)
    step, layout = _captured_layout(setting, layouts, captured)
    measured = measure_step(step, captured, layout.name, _given_ns(setting.computing))
    taken = f"--batch {setting.batch.text}"
    computing, measured = _with_computation(setting.computing, measured, taken)
    measured = _with_other_hardware(measured, setting.machine)
    corrected = project(CorrectedMachine(setting.machine, measured.correction), computing)
    corrected.measured = measured
    corrected.uncorrected = project(setting.machine, computing).rows
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
        setting.machine, setting.architecture, layout, batch, setting.training, setting.computing
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
