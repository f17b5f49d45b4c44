"""The commands for trainings: ``trace``, ``plan``, ``gradients`` and ``replay``; ``compare`` of two
captures.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import (
    ExitCode,
    UnusableError,
    UsageError,
    choice,
    nearest_file,
    tell,
)
from torchcoll.core.other_commands import begin_of
from torchcoll.core.units import counted, parse_ranks
from torchcoll.report.pictures import add_plot, check_plot

if TYPE_CHECKING:
    from torchcoll.core.traffic import Traffic
    from torchcoll.machine.launcher import Launch

_MACHINE = "NAME|FILE"
_MACHINE_HELP = (
    "what `torchcoll model fit` wrote, or a machine that others measured, such as 8xH100 or aws-p5 "
    "(list: all of them)"
)

_MODEL_HELP = (
    "a Hugging Face config.json, a name such as llama-3-8b, MODULE:FACTORY (a function without "
    "arguments that makes the model; it is called with meta as the default device, so that no "
    "memory is needed), or what torchcoll.capture wrote"
)
_RANKS = 64  # of `gradients` of a model, where --ranks does not say


_CONFIG = re.compile(
    rb'\A\s*\{[^\0]*"(?:model_type|architectures|num_hidden_layers|_diffusers_version)"\s*:'
)
_SAVED_LAYOUTS = re.compile(rb'"schema": "torchcoll-layouts/\d+"')


def command_for(path: str, text: bytes) -> str | None:
    """``plan`` for a model's config.json of Hugging Face, ``show`` for layouts that it compared."""
    if _CONFIG.match(text):
        return "plan"
    return "show" if _SAVED_LAYOUTS.search(text) else None


def _is_saved(path: str) -> bool:
    return bool(_SAVED_LAYOUTS.search(begin_of(path)))


def show_saved(options: argparse.Namespace) -> ExitCode | None:
    """Shows files of compared layouts; None where any argument is another file."""
    if not options.files or not all(map(_is_saved, options.files)):
        return None
    from torchcoll.parts.training import layouts_show

    return layouts_show.show_saved(options)


def saved_sections(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the section and the charts of each argument that has compared layouts."""
    saved = [argument for argument in arguments if _is_saved(argument)]
    if not saved:
        return {}
    from torchcoll.parts.training import layouts_show

    return layouts_show.saved_sections(saved)


def run_gradients(options: argparse.Namespace) -> ExitCode:
    """Runs ``plan`` with the ranks that a step of a model has by default."""
    from torchcoll.core.file import is_traffic

    if options.model is None or not (os.path.isdir(options.model) or is_traffic(options.model)):
        options.ranks = options.ranks or (None if _has_all_degrees(options) else str(_RANKS))
    return run_plan(options)


def _has_all_degrees(options: argparse.Namespace) -> bool:
    """Whether the layouts have a number for each degree, and so the number of ranks."""
    from torchcoll.parts.training.layouts import parse_layout

    try:
        if options.parallel:
            parse_layout(options.parallel)
        for text in (options.compare or "").split(","):
            if text:
                parse_layout(text, separator="+")
                break  # the others take the ranks of the first
    except UsageError:
        return False
    return bool(options.parallel or options.compare)


_FORMATS = ("table", "markdown", "csv", "json")


def replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "torchrun --nproc-per-node N -m torchcoll replay PATH [options]"
    add = parser.add_argument
    paths = "what torchcoll.capture or torch.profiler wrote: a folder, or one file of all ranks"
    add("file", metavar="PATH", help=paths)
    add("--backend", help="such as nccl, xccl, ccl or gloo (default: what the machine has)")
    add("--device", help="cpu, cuda or xpu")
    add(
        "--steps",
        type=int,
        default=10,
        help="how many times to play the step (default %(default)s)",
    )
    add(
        "--shrink",
        action="store_true",
        help="on fewer ranks than captured: the first ranks play what is left of their groups",
    )
    add(
        "--rehearse",
        action="store_true",
        help="try it on one GPU that all nccl ranks share; times mean nothing",
    )
    hang = "seconds without progress after which the run ends as hung (default %(default)g)"
    add("-T", "--timeout", type=float, default=300.0, help=hang)
    add(
        "-J", "--output", metavar="FILE", help="traffic file to write (default: torchcoll-runs/...)"
    )
    add("--format", default="table", help="table (default), markdown, csv or json")


def run_replay(options: argparse.Namespace) -> int:
    from torchcoll.bench.main import on_ranks

    return on_ranks(lambda launched: _replay(options, launched))


def _replay(options: argparse.Namespace, launched: Launch) -> int:
    from torchcoll.bench.main import import_torch
    from torchcoll.core.case import fingerprint
    from torchcoll.core.spec import Spec

    choice(options.format, "format", _FORMATS)
    spec = Spec(
        backend=options.backend,
        device=options.device,
        timeout_s=options.timeout,
        rehearse=options.rehearse,
    )
    torch = import_torch()
    from torchcoll.bench.session import SessionOptions
    from torchcoll.parts.training.replay import play

    asked = [spec.to_json(), options.file, options.steps, options.shrink]
    what = SessionOptions(
        spec,
        launched,
        asked=fingerprint(asked),
        argv=sys.argv[1:],
        on_exit=lambda: None,  # as of a command: a signal ends the process
    )

    def captured() -> Traffic:
        from torchcoll.parts.training.traces import read_traffic
        from torchcoll.report.destination import check_new

        if launched.rank == 0 and options.output:
            check_new(options.output, "output")
        return read_traffic([options.file])

    result = play(torch, what, captured, options.steps, options.shrink)
    if result is not None:
        from torchcoll.bench.output import open_default
        from torchcoll.questions.show.show import show

        try:
            if options.output:
                result.save(options.output)
                result.path = Path(options.output)
            else:
                backend = next(iter(result.groups.values())).backend
                result.path, writer = open_default("replay", backend, result.ranks)
                result.write(writer)
            tell(f"traffic file: {result.path}")
        finally:
            show(result, format=options.format)
    return ExitCode.OK


def trace_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="PATH",
        help="a folder, or one file a rank: what torchcoll.capture wrote, traces of torch.profiler "
        "(.json, .json.gz), Flight Recorder dumps (pickle or JSON), files of NCCL Inspector "
        "(HOST-pidPID.log)",
    )
    add("-o", "--output", metavar="FILE", help="write everything as one traffic file")
    add(
        "--view",
        metavar="LIST",
        help="more tables: calls, modules, ranks, time, or all",
    )
    add(
        "--perfetto",
        metavar="FILE",
        help="all steps on all ranks as a trace for Perfetto or chrome://tracing, on one clock",
    )
    add("--force", action="store_true", help="replace the trace for Perfetto")
    add("--format", default="table", help="table (default), markdown, csv or json")


def run_trace(options: argparse.Namespace) -> ExitCode:
    from torchcoll.parts.training.traces import read_traffic
    from torchcoll.parts.training.traffic_show import VIEWS, show_traffic
    from torchcoll.report.destination import check_new, write_file
    from torchcoll.report.formats import FORMATS, split_list

    choice(options.format, "format", FORMATS)
    views = split_list(options.view, "view")
    for name in views:
        choice(name, "view", (*VIEWS, "all"))
    views = VIEWS if "all" in views else views
    if options.perfetto:
        check_new(options.perfetto, "perfetto", options.force)
    traffic = read_traffic(options.files)
    if options.output:
        # The new file is complete, so problems of the files that were read must be noted in it.
        notes = [*traffic.notes, *traffic.problems]
        dataclasses.replace(traffic, notes=notes).save(options.output)
        tell(f"written: {options.output}")
    if options.perfetto:
        from torchcoll.parts.training.ledger import Ledger
        from torchcoll.parts.training.perfetto import traffic_trace

        text, clocks = traffic_trace(Ledger(traffic))
        write_file(options.perfetto, text, "perfetto", options.force)
        tell(f"torchcoll: trace: {options.perfetto}")
        for note in clocks:
            tell(f"torchcoll: note: {note}")
    show_traffic([traffic], options.format, views=views)
    if options.format in ("csv", "json"):
        for problem in traffic.problems:
            tell(f"torchcoll: warning: {problem}")
    return ExitCode.OK


def plan_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="?", metavar="CONFIG|MODULE:FACTORY|CAPTURE", help=_MODEL_HELP)
    add(
        "--parallel",
        metavar="LIST",
        help="how it is laid out: fsdp=64; hsdp=8x8 (replicas x shards); dp=8,tp=8,sp,pp=4x2,cp=2,"
        "ep=8 (pp: ranks x virtual stages; sp: sequence parallel); dp@25=8 (bucket_cap_mb 25); "
        "zero1 (Megatron-LM), zero2; ckpt, sac (full, selective activation checkpointing); "
        "regather, tp-overlap, deepep, deepep-fp8, ep-overlap (docs/plan.md). "
        "A data-parallel degree without a number takes the remaining --ranks; --ranks alone: fsdp",
    )
    add("--ranks", metavar="LIST", help="64, or 64..16384 for weak and strong scaling")
    add(
        "--batch",
        metavar="LIST",
        help="SEQUENCESxTOKENS of a data-parallel rank in a step, or "
        "MICROBATCHESxSEQUENCESxTOKENS (default 1x8192)",
    )
    add(
        "--compare",
        metavar="LIST",
        help="layouts on --ranks, compared: dp@4,dp@25,fsdp,hsdp,fsdp+tp=8+sp",
    )
    add(
        "--find",
        action="store_true",
        help="search the layouts on --ranks: tp, pp, virtual stages, cp, ep, checkpointing, "
        "micro-batches; --batch is then the batch of all ranks (default: a sequence each)",
    )
    add(
        "--memory-gb",
        metavar="GB",
        help="with --compare and --find: the memory of a GPU, which layouts must fit (default: "
        "that of a machine that others measured)",
    )
    add("--machine", metavar=_MACHINE, help=f"{_MACHINE_HELP}; without it bytes and calls alone")
    add(
        "--mfu",
        metavar="SHARE",
        help="MFU of a step without its communication (default: what a causal mask leaves at 0.36 "
        "to 0.6 of the peak, on an A100 0.54 to 0.72, with experts 0.3 to 0.53)",
    )
    add(
        "--step-ms",
        metavar="MS",
        help="in place of --mfu: computation of a step on a rank, forward and backward pass, "
        "without communication and without what checkpointing computes again",
    )
    add(
        "--measured",
        metavar="PATH",
        help="a capture of real steps of this training, or their profiler traces, on these or "
        "other numbers of ranks: shows where they differ from the plan, and corrects it",
    )
    add("--dtype", metavar="NAME", help="of the parameters (default: the config's, or bfloat16)")
    add("--param-dtype", metavar="NAME", help="as in MixedPrecisionPolicy (default: --dtype)")
    add("--reduce-dtype", metavar="NAME", help="as in MixedPrecisionPolicy (default: --dtype)")
    add("--verbose", action="store_true", help="all notes below the tables")
    add("--format", default="table", help="table (default), markdown, csv or json")
    add_plot(parser, "the time and the memory of each layout")


def run_plan(options: argparse.Namespace) -> ExitCode:
    from torchcoll.parts.curves.model_show import show_machines
    from torchcoll.parts.curves.named_machines import LIST
    from torchcoll.parts.training.layouts_show import show_layouts
    from torchcoll.parts.training.plan_show import show_training_plans
    from torchcoll.parts.training.planning import compare_plans
    from torchcoll.parts.training.planning import plan as make_plan
    from torchcoll.questions.show.plot import draw_finding
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    check_plot(options)
    if options.machine == LIST:
        show_machines(options.format)
        return ExitCode.OK
    if options.model is None:
        expected = "a config.json, a name such as llama-3-8b, MODULE:FACTORY, or a capture"
        raise UsageError("model", "none", expected)
    ranks = [] if options.ranks is None else parse_ranks(options.ranks)
    if options.measured is not None and options.machine is None:
        raise UsageError("measured", options.measured, "--machine NAME or FILE with it")

    def number(name: str) -> float | None:
        value = getattr(options, name)
        return None if value is None else _parse_positive(value, name.replace("_", "-"))

    arguments: dict[str, Any] = {
        "batch": options.batch,
        "machine": options.machine,
        "mfu": number("mfu"),
        "step_ms": number("step_ms"),
        "dtype": options.dtype,
        "param_dtype": options.param_dtype,
        "reduce_dtype": options.reduce_dtype,
    }
    if options.compare is not None or options.find:
        for name, value in (("parallel", options.parallel), ("compare", options.compare)):
            if value is not None and (name == "parallel" or options.find):
                raise UsageError(name, value, "one of --parallel, --compare and --find")
        if len(ranks) > 1:
            raise UsageError("ranks", options.ranks, "one number to compare layouts on")
        if options.measured is not None:
            raise UsageError("measured", options.measured, "one layout: --parallel")
        layouts = options.compare or "find"
        comparison = compare_plans(
            options.model,
            layouts,
            ranks=ranks[0] if ranks else None,
            memory_gb=number("memory_gb"),
            **arguments,
        )
        show_layouts([comparison], options.format, verbose=options.verbose)
        draw_finding(comparison, options)
        return ExitCode.OK
    if options.memory_gb is not None:
        expected = "--compare or --find too: the limit excludes layouts"
        raise UsageError("memory-gb", options.memory_gb, expected)
    result = make_plan(
        options.model, options.parallel, ranks=ranks or None, measured=options.measured, **arguments
    )
    show_training_plans([result], options.format, verbose=options.verbose)
    draw_finding(result, options)
    return ExitCode.OK


def _parse_positive(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise UsageError(what, text, "a number") from None
    if not 0 < number < 1e15:
        raise UsageError(what, text, "a number above 0")
    return number


def compare_captures(options: argparse.Namespace) -> ExitCode | None:
    """Compares the sides if all are captures; None where they are not."""
    captures = _captures(options.sides)
    if not captures:
        return None
    from torchcoll.core.traffic import Traffic
    from torchcoll.parts.training.traffic_comparison_show import (
        compare_traffic,
        show_traffic_comparisons,
    )
    from torchcoll.questions.comparison.command import OTHERWISE
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    for name, unasked in {**OTHERWISE, "fail_on": None, "junit": None}.items():
        if (value := getattr(options, name)) != unasked:
            raise UsageError(name.replace("_", "-"), value, "none with captures of a training")
    (base_name, base), (new_name, new) = captures
    comparison = compare_traffic(Traffic.load(base), Traffic.load(new), (base_name, new_name))
    show_traffic_comparisons([comparison], options.format)
    return ExitCode.OK


def _captures(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """(name, path) of each side if all are captures of a training, otherwise [].

    A folder that also has result files stands for these. Raises UsageError unless there are two,
    and UnusableError if a side is a capture and another one is not.
    """
    from torchcoll.reading.inputs import split_label

    sides = [split_label(argument) for argument in arguments]
    are_captures = [_is_capture(path) for _, path in sides]
    if not all(are_captures):
        if any(are_captures):
            _check_no_capture(arguments)
        return []
    if len(sides) != 2:
        number = counted(len(sides), "capture")
        raise UsageError("compare", number, "two captures, or results of measurements")
    named = zip(sides, ("base", "new"), strict=True)
    return [(label or name, path) for (label, path), name in named]


def _is_capture(path: str) -> bool:
    """Whether a file, or all of a folder, is the traffic of a training."""
    from torchcoll.core.file import is_ours, is_traffic
    from torchcoll.core.opening import files_in

    files = files_in(Path(path)) if Path(path).is_dir() else ()
    return is_traffic(path) and not any(is_ours(file) and not is_traffic(file) for file in files)


def _check_no_capture(arguments: Sequence[str]) -> None:
    """Raises UnusableError if a side is a capture of a training and another one is not. Traffic
    files among results are left out.
    """
    from torchcoll.core.file import is_traffic
    from torchcoll.questions.comparison.command import sides_of

    results = [path for path in arguments if not (os.path.isfile(path) and is_traffic(path))]
    sides = sides_of(results if len(results) > 1 else arguments)
    captures = {name: paths[0] for name, paths in sides if all(map(_is_capture, paths))}
    if not captures:
        return
    capture = next(iter(captures.values()))
    expected = f"a capture of a training, as {capture} is"
    for name, paths in sides:
        if name in captures:
            continue
        path = Path(paths[0])
        if path.is_dir() and not any(path.iterdir()):
            raise UnusableError(name, f"{path}, an empty folder", expected)
        if not (path.exists() or glob.has_magic(paths[0])):
            raise UnusableError(name, f"{path}, which does not exist", expected, nearest_file(path))
        raise UnusableError(
            name,
            f"{path}, which is no capture",
            f"{expected}, or results on both sides",
        )


_PLAN_OPTIONS = {
    "model": "--batch --dtype --param-dtype --reduce-dtype",
    "layout": "--parallel --ranks --compare --find --memory-gb",
    "machine": "--machine --mfu --step-ms --measured",
    "output": "--format --verbose --plot --force",
}

COMMANDS = {
    "trace": SubCommand(
        trace_arguments,
        run_trace,
        examples=(
            "torchcoll trace traffic/",
            "torchcoll trace profile.json --view ranks",
        ),
    ),
    "gradients": SubCommand(
        plan_arguments,
        run_gradients,
        examples=(
            "torchcoll gradients torchvision.models:resnet50",
            "torchcoll gradients traffic/ --machine 8xH100",
        ),
        option_groups=_PLAN_OPTIONS,
    ),
    "plan": SubCommand(
        plan_arguments,
        run_plan,
        examples=(
            "torchcoll plan llama-3-8b --parallel fsdp=64 --machine 8xH100",
            "torchcoll plan llama-3-70b --ranks 512 --find --machine 8xH100",
        ),
        option_groups=_PLAN_OPTIONS,
    ),
    "replay": SubCommand(
        replay_arguments,
        run_replay,
        examples=("torchrun --nproc-per-node 8 -m torchcoll replay traffic/",),
    ),
}
