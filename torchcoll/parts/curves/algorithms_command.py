"""``torchcoll algorithms``: which forced algorithm wins, what AUTO loses, and settings of it."""

from __future__ import annotations

import argparse
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, TorchcollError, UsageError, choice, printable, tell
from torchcoll.core.units import parse_share
from torchcoll.reading.inputs import add_over_ranks, add_reading_options

if TYPE_CHECKING:
    from torchcoll.core.result import Run
    from torchcoll.parts.curves.algorithms import Algorithms
    from torchcoll.parts.curves.exports import Exported


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
    add(
        "--channels",
        metavar="N",
        help=("number of channels to write with --export-tuner (default: that of NCCL's log)"),
    )
    add(
        "--check",
        action="store_true",
        help=(
            "run AUTO and the exported setting in DIR/check-...; exit with 1 if the"
            " setting is slower or another algorithm ran"
        ),
    )


def run_algorithms(options: argparse.Namespace) -> ExitCode | int:
    from torchcoll.core.result import Run
    from torchcoll.core.summary import OVER_RANKS
    from torchcoll.libraries.known_variables import names_file
    from torchcoll.parts.curves.algorithms import algorithms
    from torchcoll.parts.curves.algorithms_show import show_algorithms
    from torchcoll.parts.curves.exports import Exported, export_lines, selections, variables
    from torchcoll.reading.inputs import resolve_sources
    from torchcoll.report.formats import FORMATS, print_notes

    names = ("export_env", "export_oneccl", "export_tuner")
    chosen = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if len(chosen) > 1:
        raise UsageError("export", " and ".join(chosen), "one of them at a time")
    if options.check and not chosen:
        raise UsageError("check", "no export", "--export-env, --export-oneccl or --export-tuner")
    if options.channels is not None and not options.export_tuner:
        raise UsageError("channels", options.channels, "--export-tuner with it")
    choice(options.format, "format", ("table", "markdown") if options.check else FORMATS)
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
        exported = _export_tuner(result, options)
    else:
        values = variables(result) if options.export_env else selections(result)
        lines = export_lines(result, values, by_size=options.export_oneccl)
        print("\n".join(map(printable, lines)), flush=True)
        exported = Exported(values)
        if loaded := [name for name, value in values.items() if names_file(name, value)]:
            tell(
                f"torchcoll: warning: {', '.join(loaded)} of the files may load code: look at the "
                "values before you source them"
            )
    return check(result, exported, options) if options.check else ExitCode.OK


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


def _export_tuner(result: Algorithms, options: argparse.Namespace) -> Exported:
    from torchcoll.parts.curves.exports import tuner
    from torchcoll.report.destination import write_file

    path, channels = options.export_tuner, options.channels
    if channels is not None and not (channels.isdecimal() and len(channels) < 9):
        raise UsageError("channels", channels, "a whole number")
    exported = tuner(result, path, None if channels is None else int(channels), os.environ)
    if not _holds(path, exported.text):
        write_file(path, exported.text, "export-tuner", options.force)
        tell(f"torchcoll: wrote {os.path.abspath(path)}")
    return exported


def _holds(path: str, text: str) -> bool:
    """Whether the file already has this text, so that a check can be repeated without --force."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read() == text
    except (OSError, UnicodeDecodeError):
        return False


def check(result: Algorithms, exported: Exported, options: argparse.Namespace) -> ExitCode | int:
    """Run the missing runs of the check, then print its result.

    After exported variables the result is printed as comments, so that a shell can read the output.
    Returns FAILED if a run failed, or if a case is slower, wrong, or ran another algorithm. Raises
    UsageError if nothing can be launched.
    """
    from torchcoll.machine.environment import variables
    from torchcoll.parts.curves.algorithms_show import ran_lines
    from torchcoll.parts.curves.exports import TUNER_PLUGIN, check_command
    from torchcoll.parts.curves.forced_check import logged_cases, recheck
    from torchcoll.parts.experiments.matrix_command import launch
    from torchcoll.questions.comparison.compare import compare
    from torchcoll.questions.comparison.show import show_comparisons
    from torchcoll.stats.sides import side

    before = "" if exported.rules else "# "
    matrix = Path(options.files[0])
    if not (len(options.files) == len(result.matrices) == 1 and matrix.is_dir()):
        print(f"{before}check: {check_command(exported.values)}", flush=True)
        raise UsageError(
            "check", " ".join(options.files), "the folder of one torchcoll matrix",
            "How these were launched is not known; the command printed checks it.",
        )  # fmt: skip
    if exported.rules and not os.environ.get(TUNER_PLUGIN):
        raise UsageError(
            "check", f"no {TUNER_PLUGIN} in the environment",
            "the path of the plugin that reads the file", "Set it and start the same again.",
        )  # fmt: skip
    collectives = [str(table.common["collective"]) for table in result.tables if table.ranges]
    check_run = recheck(
        matrix,
        result.matrices[0],
        exported.values,
        forced={n for table in result.tables for cell in table.cells for n in cell.settings},
        source_cells=result.source_cells,
        collectives=list(dict.fromkeys(collectives)),
        recorded=variables,
    )
    folder = check_run.folder(matrix, exported.text)
    code = launch(check_run.plan, folder, table=False)
    if code not in (ExitCode.OK, ExitCode.FAILED):
        tell(f"torchcoll: {folder}: the same command again goes on")
        return code
    paths = check_run.files(folder)
    for name, side_paths in zip(("auto", "exported"), paths, strict=True):
        if not side_paths:
            raise TorchcollError("check", f"no result of {name}", "runs", f"See {folder}/logs.")
    sides = [side(n, p) for n, p in zip(("auto", "exported"), paths, strict=True)]
    compared = compare(
        *sides, threshold=result.threshold, over_ranks=options.over_ranks, by=check_run.by
    )
    ran = logged_cases(sides[1].runs, exported.values, exported.rules)
    out = io.StringIO()
    show_comparisons([compared], options.format, out, every=True)
    lines = [*out.getvalue().splitlines(), *ran_lines(ran, len(sides[1].results))]
    print("\n".join(printable(f"{before}{line}".rstrip()) for line in lines))
    bad = compared.tally.get("slower") or any(case.mismatches for case in ran)
    return ExitCode.FAILED if bad else code


COMMANDS = {
    "algorithms": SubCommand(
        algorithms_arguments,
        run_algorithms,
        examples=(
            "torchcoll algorithms matrix/",
            "torchcoll algorithms matrix/ --export-tuner tuner.csv",
        ),
        exit_1="with --check: a run failed, a case is slower or wrong, or another algorithm ran",
        option_groups={
            "what is read": "--collective --ranks --filter",
            "how algorithms are compared": "--threshold --over-ranks",
            "settings for the next run": (
                "--export-env --export-oneccl --export-tuner --channels --check"
            ),
            "output": "--format --force",
        },
    ),
}
