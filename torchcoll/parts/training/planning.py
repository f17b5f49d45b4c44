"""``torchcoll.plan``: what a step will send, how long it takes, and which layout is best."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
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
    PlanSetting,
    compare_layouts,
    memory_of_gpu,
    project_config,
)
from torchcoll.parts.training.layout_search import FIND, candidate_layouts, launch_flags
from torchcoll.parts.training.layouts import (
    Batch,
    ParallelLayout,
    parse_batch,
    parse_layout,
    parse_layouts,
)
from torchcoll.parts.training.measured_step import measure_step
from torchcoll.parts.training.projection import (
    TOO_LARGE,
    Computation,
    Correction,
    Plan,
    PlannedStep,
)
from torchcoll.parts.training.traces import read_traffic

DEFAULT_BATCH = "1x8192"
Machine = FittedModel | MachineModel | PublishedMachine | str | os.PathLike[str]
Captured = Traffic | str | os.PathLike[str]


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
    - mfu: the share of the GPU's peak at which a step computes; by default a range.
    - step_ms: the computation of a step in ms, forward and backward, without checkpointing, in
      place of mfu.
    - measured: a captured Traffic of real steps, its file or folder, which corrects the times.
    - dtype, param_dtype, reduce_dtype: as the options of ``torchcoll plan``.

    Raises UsageError for arguments that cannot be used, UnreadableError for a file.
    """
    dtypes = {"dtype": dtype, "param_dtype": param_dtype, "reduce_dtype": reduce_dtype}
    texts = {"parallel": parallel, "batch": batch, **dtypes}
    counts = _rank_counts(ranks)
    if (traffic := _as_capture(model)) is not None:
        for name, unwanted in {**texts, "mfu": mfu}.items():
            if unwanted is not None:
                raise UsageError(name, unwanted, "none with a captured step")
        predictor = None if machine is None else as_machine(machine)
        computing = _computing(predictor, None, step_ms)

        def plan_again(computing: Computing | None, correction: Correction | None = None) -> Plan:
            given_ns = None if computing is None else computing.step_ns
            compute = None if given_ns is None else Computation((given_ns,) * 3)
            return plan_traffic(predictor, traffic, counts, compute, correction)

        if measured is None:
            return plan_again(computing)
        captured, predictor = _load_measured(measured, predictor)
        there = plan_traffic(predictor, traffic, [captured.ranks], None).step
        return _corrected(predictor, computing, captured, there, "", "the planned step", plan_again)
    setting = _setting(model, batch, machine, mfu, step_ms, dtypes)
    _check_texts({"parallel": parallel})
    if parallel is None and not counts:
        expected = "a layout such as fsdp=64, or a number of ranks (laid out as fsdp)"
        raise UsageError("parallel", "none", expected)
    layout = parse_layout(parallel or "fsdp", counts[0] if counts else None)
    if measured is None:
        return project_config(setting, layout, counts)
    captured, predictor = _load_measured(measured, setting.machine)
    on_captured = _on_captured_ranks(layout, captured.ranks)
    return _corrected(
        predictor,
        setting.computing,
        captured,
        setting.step(on_captured),
        on_captured.name,
        f"--batch {setting.batch.text}",
        lambda computing, correction: project_config(
            replace(setting, computing=computing, correction=correction), layout, counts
        ),
    )


def compare_plans(
    model: str | os.PathLike[str],
    layouts: str | Sequence[str],
    *,
    ranks: int | None = None,
    batch: str | None = None,
    machine: Machine | None = None,
    mfu: float | None = None,
    step_ms: float | None = None,
    dtype: str | None = None,
    param_dtype: str | None = None,
    reduce_dtype: str | None = None,
    memory_gb: float | None = None,
) -> LayoutComparison:
    """Plans a step on several layouts with the same tokens, as ``torchcoll plan --compare`` does.

    - layouts: such as ``["dp@4", "dp@25", "fsdp", "fsdp+tp=8+sp"]``; ``"find"`` for a search over
      tp, pp, virtual stages, cp, ep, checkpointing and micro-batches.
    - batch: with ``"find"`` of all ranks together, by default a sequence of 8192 tokens each.
    - memory_gb: the memory of a GPU in GB (10^9 bytes): layouts that need more come last. By
      default that of the machine's GPU, if others measured the machine.

    The other arguments are those of ``plan``. Raises UsageError for arguments that cannot be used.
    """
    dtypes = {"dtype": dtype, "param_dtype": param_dtype, "reduce_dtype": reduce_dtype}
    setting = _setting(model, batch, machine, mfu, step_ms, dtypes)
    limit = None if memory_gb is None else _positive(memory_gb, "memory_gb")
    counts = _rank_counts(ranks)
    if not isinstance(layouts, str | Sequence):
        expected = "layouts, such as dp,fsdp or a list of them"
        raise UsageError("compare", type(layouts).__name__, expected)
    text = layouts if isinstance(layouts, str) else ",".join(map(str, layouts))
    left_out: list[str] = []
    if len(counts) > 1:
        raise UsageError("ranks", ",".join(map(str, counts)), "one number with compare")
    if text == FIND:
        if not counts:
            raise UsageError("ranks", "none", "the number of ranks to lay the model out on")
        if batch is None:
            setting = replace(setting, batch=replace(setting.batch, sequences=counts[0]))
        tokens = setting.batch.tokens
        compared = candidate_layouts(setting.architecture, counts[0], setting.machine, tokens)
    else:
        of_all = counts[0] if counts else None
        compared, left_out = parse_layouts(text, of_all, setting.architecture)
    of_gpu = None if limit is not None else memory_of_gpu(setting.machine)
    memory_bytes = of_gpu if limit is None else 1e9 * limit
    comparison = compare_layouts(setting, compared, memory_bytes, search=text == FIND)
    comparison.left_out = left_out
    if text == FIND:
        layers = len(setting.architecture.layers)
        fitting = [row for row in comparison.rows if row.fits != TOO_LARGE]
        first = {row.layout.megatron: row for row in reversed(fitting)}  # of each program
        best = [*first.values(), comparison.simplest]
        comparison.launch = {
            row.layout.name: launch_flags(row.layout, row.batch, layers)
            for row in fitting
            if row in best
        }
    if of_gpu is not None:
        text = f"memory of a GPU: {of_gpu / 1e9:.1f} GB, as torch reports it"
        comparison.notes.insert(0, f"{text}; --memory-gb says another")
    return comparison


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
    dtypes: Mapping[str, str | None],
) -> PlanSetting:
    if not isinstance(model, str | os.PathLike):
        expected = "a config.json, the name of a model, MODULE:FACTORY, or a capture"
        raise UsageError("model", type(model).__name__, expected)
    _check_texts({"batch": batch, **dtypes})
    architecture = _read(os.fspath(model))
    predictor = None if machine is None else as_machine(machine)
    computing = _computing(predictor, mfu, step_ms, architecture.experts > 0)
    if computing is not None and computing.step_ns is None and not architecture.hidden:
        computing = None  # how much a model from its code computes is unknown
    kept, computed, reduced = (find_dtype(name).name if name else "" for name in dtypes.values())
    kept = kept or find_dtype(architecture.dtype or "bfloat16").name
    options = TrainingOptions(kept, computed, reduced)
    return PlanSetting(
        predictor, architecture, _parse_batch(batch, architecture), options, computing
    )


# FLOP/s of one GPU for dense matrices of 16 bits, and bytes/s of its memory, by the data sheets.
_RATES = {
    "V100": (125e12, 0.9e12),
    "A100": (312e12, 2e12),
    "H100": (989e12, 3.35e12),
    "H200": (989e12, 4.8e12),
    "GH200": (989e12, 4.9e12),
    "B200": (2250e12, 8e12),
    "GB200": (2500e12, 8e12),
    "MI300X": (1307e12, 5.3e12),
}
# The share of the peak at which steps compute what a causal mask leaves: value, least, most, as in
# published runs (results/benchmarks/published-runs-2026-11-29.txt). An A100's power allows more.
_SHARES, _SHARES_OF = (0.48, 0.36, 0.6), {"A100": (0.63, 0.54, 0.72)}
# With experts: their matrices are small, and tokens are sorted by expert and back.
_SHARES_OF_EXPERTS = (0.38, 0.3, 0.53)


def _computing(
    machine: Predictor | None, mfu: float | None, step_ms: float | None, experts: bool = False
) -> Computing | None:
    """Returns how long steps compute; None where nothing says it.

    - experts: whether the model has routed experts.

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
    peak, shares, memory_rate = None, _SHARES, None
    if isinstance(machine, PublishedMachine):
        peak, memory_rate = _RATES.get(machine.links.gpu, (None, None))
        shares = _SHARES_OF_EXPERTS if experts else _SHARES_OF.get(machine.links.gpu, _SHARES)
    if step_ms is not None:
        return Computing(1e6 * _positive(step_ms, "step_ms"), peak=peak)
    if mfu is None:
        rates = Computing(shares=shares, peak=peak, masked=True, memory_rate=memory_rate)
        return rates if peak else None
    share = _positive(mfu, "mfu")
    share = share / 100 if share > 1 else share
    if share > 1:
        raise UsageError("mfu", f"{mfu:g}", "a share of the GPU's peak, such as 0.4 or 40")
    if peak is None:
        raise UsageError("mfu", f"{mfu:g}", "a machine whose GPU is known", "--step-ms MS instead.")
    return Computing(shares=(share, share, share), peak=peak)


def _load_measured(source: Any, machine: Predictor | None) -> tuple[Traffic, Predictor]:
    if machine is None:
        raise UsageError("measured", "no machine", "a machine, whose times the capture corrects")
    if isinstance(source, str | os.PathLike):
        return read_traffic([source]), machine
    if not isinstance(source, Traffic):
        raise UsageError("measured", type(source).__name__, "a Traffic, its file or its folder")
    return source, machine


def _as_capture(model: Any) -> Traffic | None:
    """Returns the captured step if ``model`` is one."""
    if isinstance(model, Traffic):
        return model
    if not isinstance(model, str | os.PathLike):
        return None
    path = os.fspath(model)
    folder = os.path.isdir(path) and not os.path.exists(os.path.join(path, "config.json"))
    return read_traffic([path]) if folder or is_traffic(path) else None


def _corrected(
    machine: Predictor,
    computing: Computing | None,
    captured: Traffic,
    there: PlannedStep,
    layout: str,
    taken: str,
    plan_again: Callable[[Computing | None, Correction | None], Plan],
) -> Plan:
    """Returns a plan that a captured step corrects.

    - there: the planned step on the captured ranks, with the layout of this name.
    - taken: the batch that the captured step is taken to have: its calls need not show the batch.
    - plan_again: returns the plan with another computation, and a correction.
    """
    _check_hardware(captured, machine, (row.collective for row in there.rows))
    given_ns, peak = (computing.step_ns, computing.peak) if computing else (None, None)
    measured = measure_step(there, captured, layout, given_ns)
    if given_ns is None and measured.computing_ns is not None:
        kind = "of computation" if captured.computing else "outside of calls, as computation,"
        note = (
            f"{format_ns(measured.computing_ns, 3)} {kind} are the capture's, taken to be "
            f"of {taken}; --step-ms says another"
        )
        measured = replace(measured, notes=(*measured.notes, note))
        computing = Computing(measured.computing_ns, True, peak=peak)
    elif given_ns and measured.step_ns is not None and given_ns > measured.step_ns:
        expected = f"at most the {format_ns(measured.step_ns, 3)} of a captured step"
        action = "Capture a step of the batch that is planned."
        raise UsageError("step_ms", f"{given_ns / 1e6:g}", expected, action)
    corrected = plan_again(computing, measured.correction)
    corrected.measured = measured
    corrected.uncorrected = plan_again(computing, None).step
    return corrected


def _check_hardware(captured: Traffic, machine: Predictor, collectives: Iterable[str]) -> None:
    """Raises UsageError if calls of CPUs would correct times of GPUs, or the other way round."""
    backends = sorted({group.backend for group in captured.groups.values() if group.backend})
    on_cpus = {backend_of(backend).on_host for backend in backends}
    # None: imported tables that do not record the device. Published machines have no such field.
    unknown = any(case.kind.get("device", "") is None for case in machine.cases())
    machine_on_cpus = machine.on_cpu(collectives)
    if unknown or not on_cpus or machine_on_cpus in on_cpus:
        return
    devices = {True: "CPUs", False: "GPUs"}
    where = f"a capture with {', '.join(backends)} on {devices[not machine_on_cpus]}"
    expected = f"one on {devices[machine_on_cpus]}, as {machine.name} has"
    raise UsageError("measured", where, expected, "Leave out --measured, or capture there.")


def _on_captured_ranks(layout: ParallelLayout, ranks: int) -> ParallelLayout:
    try:
        return layout.on(ranks)
    except UsageError as error:
        expected = f"one of {layout.name}, on this or another number of ranks"
        raise UsageError("measured", f"a capture of {ranks} ranks", expected, str(error)) from None


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
