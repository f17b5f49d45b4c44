"""``torchcoll algorithms``: which forced algorithm wins, what AUTO loses, and settings of it."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, UsageError, choice, printable, tell
from torchcoll.core.units import parse_share
from torchcoll.reading.inputs import add_over_ranks, add_reading_options

if TYPE_CHECKING:
    from torchcoll.core.result import Run


def algorithms_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help=(
            "the folder of a torchcoll matrix, result files, or output of other "
            "tools (as auto=PATH Ring=PATH if it does not say what was forced)"
        ),
    )
    add(
        "--threshold",
        default="2%",
        metavar="SHARE",
        help="losses smaller than this do not count (default %(default)s)",
    )
    add_reading_options(parser)
    add_over_ranks(parser)
    add("--format", default="table", help="table (default), markdown, csv or json")
    add(
        "--export-env",
        action="store_true",
        help=("print the variables that force the algorithm that is best over all sizes"),
    )
    add(
        "--export-oneccl",
        action="store_true",
        help=("print the variables with which oneCCL selects an algorithm by size"),
    )
    add(
        "--export-tuner",
        metavar="FILE",
        help=("write the CSV file of NCCL's tuner plugin, which selects an algorithm by size"),
    )
    add("--force", action="store_true", help="replace the file of --export-tuner")


def run_algorithms(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.result import Run
    from torchcoll.core.summary import OVER_RANKS
    from torchcoll.libraries.known_variables import names_file
    from torchcoll.parts.curves.algorithms import algorithms
    from torchcoll.parts.curves.algorithms_show import show_algorithms
    from torchcoll.parts.curves.exports import export_lines, selections, tuner_text, variables
    from torchcoll.reading.inputs import resolve_sources
    from torchcoll.report.destination import write_file
    from torchcoll.report.formats import FORMATS, print_notes

    names = ("export_env", "export_oneccl", "export_tuner")
    chosen = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if len(chosen) > 1:
        raise UsageError("export", " and ".join(chosen), "one of them at a time")
    choice(options.format, "format", FORMATS)
    choice(options.over_ranks, "over-ranks", OVER_RANKS)
    sources = resolve_sources(options.files, options.collective, options.ranks)
    for source in sources:
        if isinstance(source, Run) and source.source:
            _read_label(source)
    result = algorithms(
        sources,
        threshold=parse_share(options.threshold, "threshold"),
        filter=options.filter,
        over_ranks=options.over_ranks,
    )
    if not chosen:
        show_algorithms([result], options.format)
        print_notes(result, options.format)
        return ExitCode.OK
    if options.export_tuner:
        text = tuner_text(result)
        write_file(options.export_tuner, text, "export-tuner", options.force)
        tell(f"torchcoll: wrote {os.path.abspath(options.export_tuner)}")
        return ExitCode.OK
    values = variables(result) if options.export_env else selections(result)
    lines = export_lines(result, values, by_size=options.export_oneccl)
    print("\n".join(map(printable, lines)))
    if loaded := [name for name, value in values.items() if names_file(name, value)]:
        tell(
            f"torchcoll: warning: {', '.join(loaded)} of the files may load code: look at the "
            "values before you source them"
        )
    return ExitCode.OK


def _read_label(run: Run) -> None:
    """Turn the name in ``Ring=PATH`` or ``tree-ll=PATH`` into labels of NCCL's variables."""
    from torchcoll.libraries.nccl.algorithms import ALGORITHMS, canonical
    from torchcoll.libraries.nccl.forced import VARIABLES

    tokens = run.labels.get("cell", "").split("-")
    names = [token if token == "auto" else canonical(token) for token in map(str.lower, tokens)]
    if all(names):
        kinds = (VARIABLES[n not in ALGORITHMS and n != "auto"] for n in names)
        labels = run.header["spec"]["labels"]
        run.header["spec"]["labels"] = {**dict(zip(kinds, map(str, names), strict=True)), **labels}


COMMANDS = {
    "algorithms": SubCommand(
        algorithms_arguments,
        run_algorithms,
        examples=(
            "torchcoll algorithms matrix/",
            "torchcoll algorithms matrix/ --export-tuner tuner.csv",
        ),
        option_groups={
            "what is read": "--collective --ranks --filter",
            "how algorithms are compared": "--threshold --over-ranks",
            "settings for the next run": "--export-env --export-oneccl --export-tuner",
            "output": "--format --force",
        },
    ),
}
