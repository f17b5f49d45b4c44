"""``torchcoll curve``, ``scaling`` and ``model``: laws over sizes and ranks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, choice, tell
from torchcoll.reading.inputs import add_over_ranks, add_reading_options
from torchcoll.report.pictures import add_plot, check_plot

if TYPE_CHECKING:
    from torchcoll.parts.curves.scaling import Scaling
    from torchcoll.parts.curves.transitions import Transitions


def finish(finding: Scaling | Transitions, options: argparse.Namespace) -> ExitCode:
    """Print the notes of a finding, and write its picture."""
    from torchcoll.questions.show.plot import draw_finding
    from torchcoll.report.formats import print_notes

    print_notes(finding, options.format)
    draw_finding(finding, options)
    return ExitCode.OK


def scaling_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="result files or folders; each is a run")
    add_reading_options(parser)
    add(
        "--sizes",
        metavar="LIST",
        help=("sizes to show, such as 1K,1M (default: a small, a medium and a large one)"),
    )
    add("--format", default="table", help="table (default), markdown, csv or json")
    add_plot(parser, "time and speed-up")


def run_scaling(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.units import parse_size
    from torchcoll.parts.curves.scaling import scaling
    from torchcoll.parts.curves.scaling_show import show_scaling
    from torchcoll.report.formats import FORMATS
    from torchcoll.stats.filters import read_runs

    choice(options.format, "format", FORMATS)
    check_plot(options)
    sizes = [parse_size(text, "sizes") for text in (options.sizes or "").split(",") if text]
    curves = scaling(read_runs(options), sizes=sizes)
    show_scaling([curves], options.format)
    return finish(curves, options)


def transitions_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="result files or folders; runs are pooled")
    add_reading_options(parser)
    add_over_ranks(parser)
    add("--format", default="table", help="table (default), markdown, csv or json")
    add_plot(parser, "laws and transitions")


def run_transitions(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.summary import OVER_RANKS
    from torchcoll.parts.curves.transitions import transitions
    from torchcoll.parts.curves.transitions_show import show_transitions
    from torchcoll.report.formats import FORMATS
    from torchcoll.stats.filters import read_runs

    choice(options.format, "format", FORMATS)
    choice(options.over_ranks, "over-ranks", OVER_RANKS)
    check_plot(options)
    curves = transitions(read_runs(options), over_ranks=options.over_ranks)
    show_transitions([curves], options.format)
    return finish(curves, options)


def model_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    fit = actions.add_parser("fit", help="fit laws over sizes and ranks to result files")
    add = fit.add_argument
    add("files", nargs="+", metavar="FILE", help="result files or folders; runs are pooled")
    add_reading_options(fit)
    add(
        "-o",
        "--output",
        default="machine.json",
        metavar="FILE",
        help="model file to write (default: %(default)s)",
    )
    add("--force", action="store_true", help="replace the file")
    predict = actions.add_parser("predict", help="predict times and busbw, with 90 %% intervals")
    add = predict.add_argument
    add(
        "machine",
        metavar="MACHINE",
        help=(
            "what `model fit` wrote, or a machine that others measured, such as 8xH100 "
            "(list: all of them)"
        ),
    )
    help_text = "numbers of ranks, such as 8,12 or 8..4096 (doubling; default: those measured)"
    add("--ranks", metavar="LIST", help=help_text)
    add(
        "--hosts", type=int, metavar="N", help="number of hosts (default: as few as the ranks fill)"
    )
    help_text = "sizes in bytes, such as 1K,25M or 1K..1G (by 4; default: 3 in the range measured)"
    add("--sizes", metavar="LIST", help=help_text)
    add("--collective", metavar="NAME", help="predict this collective only")
    add("--format", default="table", help="table (default), markdown, csv or json")


def run_model(options: argparse.Namespace) -> ExitCode:
    actions = {"fit": _fit, "predict": _predict}
    return actions[options.action](options)


def _fit(options: argparse.Namespace) -> ExitCode:
    from torchcoll.parts.curves.model_file import model_text
    from torchcoll.parts.curves.model_fit import fit_model
    from torchcoll.parts.curves.model_show import show_fits
    from torchcoll.report.destination import check_new, write_file
    from torchcoll.stats.filters import read_runs

    check_new(options.output, "output", options.force)
    fitted = fit_model(read_runs(options))
    write_file(options.output, model_text(fitted.model), "output", options.force)
    if options.output != "-":
        show_fits([fitted])
        tell(f"torchcoll: model: {options.output}")
    return ExitCode.OK


def _predict(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.units import parse_ranks, parse_sizes
    from torchcoll.parts.curves.model_show import show_machines, show_predictions
    from torchcoll.parts.curves.named_machines import LIST, find_machine
    from torchcoll.parts.curves.predictor import predict_all
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    if options.machine == LIST:
        show_machines(options.format)
        return ExitCode.OK
    machine = find_machine(options.machine)
    ranks = parse_ranks(options.ranks) if options.ranks else machine.measured_ranks
    low, high = machine.measured_sizes
    middle = 1 << ((low * high).bit_length() - 1) // 2
    sizes = parse_sizes(options.sizes) if options.sizes else sorted({low, middle, high})
    rows = predict_all(machine, ranks, sizes, options.collective, options.hosts)
    show_predictions(machine, rows, options.format)
    return ExitCode.OK


COMMANDS = {
    "curve": SubCommand(
        transitions_arguments,
        run_transitions,
        examples=(
            "torchcoll curve run.jsonl",
            "torchcoll curve runs/ --plot curve.png",
        ),
    ),
    "scaling": SubCommand(
        scaling_arguments,
        run_scaling,
        examples=(
            "torchcoll scaling runs/",
            "torchcoll scaling runs/ --plot scaling.png",
        ),
    ),
    "model": SubCommand(
        model_arguments,
        run_model,
        examples=(
            "torchcoll model fit runs/ -o machine.json",
            "torchcoll model predict machine.json --sizes 1M,1G --ranks 64",
        ),
    ),
}
