"""``torchcoll compare``: what differs between runs, and whether it is evidence."""

from __future__ import annotations

import argparse
import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, UnusableError, UsageError, choice, nearest_file, tell
from torchcoll.core.units import parse_share
from torchcoll.questions.comparison import fail_on
from torchcoll.reading.inputs import IMPORT_OPTIONS, add_over_ranks, add_reading_options

if TYPE_CHECKING:
    from torchcoll.questions.comparison.compare import Comparison

THRESHOLD_TEXT = "2%"


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sides",
        nargs="+",
        metavar="SIDE",
        help=(
            "BASE and NEW, or the folder of a versus. Each is a file, a folder, a "
            "quoted glob, or label=PATH. Several files with one label are the runs "
            "of that side; without labels the first file is BASE and the others are"
            " NEW. backend:gloo=PATH takes the cases of one backend, model=PATH is "
            "a prediction whose errors are shown. Or two captures of a training; or one file with "
            "two tables, such as Before and After"
        ),
    )
    add(
        "--threshold",
        default=THRESHOLD_TEXT,
        metavar="SHARE",
        help="changes smaller than this are 'same' (default %(default)s)",
    )
    add("--metric", default="time", help="time (default), algbw or busbw")
    add_over_ranks(parser, default=None)
    add_reading_options(parser)
    add(
        "--by",
        default="",
        metavar="NAMES",
        help=("do not pool runs that differ in these: kernel, NCCL_ALGO, label=KEY, ..."),
    )
    add(
        "--all",
        dest="every",
        action="store_true",
        help="list every case with its times, in a table for each collective",
    )
    add(
        "--fail-on",
        metavar="GATE",
        help=(
            "exit with 1 if a case has one of these results: slower, slower:5%%, "
            "inconclusive, not-comparable; and if one is wrong, failed or missing in "
            "NEW, without ignore-wrong, ignore-failed, ignore-missing"
        ),
    )
    add("--junit", metavar="FILE", help="write what --fail-on finds in each case as JUnit XML")
    add("--force", action="store_true", help="replace the file of --junit")
    add("--format", default="table", help="table (default), markdown, csv or json")


def run_compare(options: argparse.Namespace) -> ExitCode:
    from torchcoll.questions.comparison.arguments import sides_of
    from torchcoll.questions.comparison.compare import compare
    from torchcoll.questions.comparison.show import notes_of_sides, show_comparisons
    from torchcoll.reading.inputs import check_import_options, drop_non_results, read_each
    from torchcoll.reading.registry import two_tables
    from torchcoll.stats.differences import check_unmixed
    from torchcoll.stats.sides import side

    gate, threshold = checked(options)
    arguments = drop_non_results(options.sides, least=2)
    hints = options.collective, options.ranks
    tables = two_tables(arguments[0], *hints) if len(arguments) == 1 else []
    if tables:
        named: list[tuple[str, Any]] = [(name, [run]) for name, run in tables]
    else:
        named = list(sides_of(arguments))
        _check_no_capture(named)
    (base_name, base_paths), *rest = named
    base = side(base_name, base_paths, *hints)
    sides = read_each(dict(enumerate(rest)), lambda each: side(each[0], each[1], *hints))
    others = list(sides.values())
    check_import_options([run for each in (base, *others) for run in each.runs], *hints)
    unnamed = list(map(os.path.isfile, arguments))
    if unnamed[0] and sum(unnamed) > 2 and not options.by:  # what --by names is kept apart
        check_unmixed(base, next(each for each in others if each.name == "new"))
    comparisons = [
        compare(
            base,
            new,
            threshold=threshold,
            metric=options.metric,
            over_ranks=options.over_ranks,
            filter=options.filter,
            by=options.by,
        )
        for new in others
    ]
    show_comparisons(
        comparisons,
        options.format,
        every=options.every,
    )
    for text in notes_of_sides(comparisons, options.format):
        tell(f"torchcoll: {text}")
    return gated(gate, comparisons, options)


def checked(options: argparse.Namespace) -> tuple[fail_on.Gate | None, float]:
    """The gate and the threshold. Raises UsageError for options that are not valid."""
    from torchcoll.report.destination import check_new
    from torchcoll.report.formats import FORMATS

    gate = fail_on.parse_gate(options.fail_on) if options.fail_on is not None else None
    threshold = parse_share(options.threshold, "threshold")
    choice(options.format, "format", FORMATS)
    if options.junit:
        if gate is None:
            raise UsageError("junit", options.junit, "a gate with it, such as --fail-on slower:5%")
        check_new(options.junit, "junit", options.force)
    return gate, threshold


def gated(
    gate: fail_on.Gate | None, comparisons: Sequence[Comparison], options: argparse.Namespace
) -> ExitCode:
    """What a gate lets pass; what it cannot tell is a usage error's code, as of all gates."""
    from torchcoll.questions.comparison.conclusion_show import limit_notes
    from torchcoll.report.destination import write_file

    if gate is None:
        return ExitCode.OK
    code, why = fail_on.outcome(gate, comparisons)
    for note in dict.fromkeys(note for each in comparisons for note in limit_notes(each)):
        tell(f"torchcoll: warning: --fail-on {gate.text}: {note}")
    if code != ExitCode.FAILED and (unseen := fail_on.untested(gate, comparisons)):
        tell(f"torchcoll: warning: --fail-on {gate.text}: {unseen}")
    if why:
        tell(f"torchcoll: --fail-on {gate.text}: {why}")
    if options.junit:
        write_file(options.junit, fail_on.junit_text(gate, comparisons), "junit", options.force)
    return code


# Options that would make another comparison of what a part compares, and what they are unasked.
OTHERWISE: dict[str, Any] = {"threshold": THRESHOLD_TEXT, "metric": "time", "filter": "", "by": ""}
OTHERWISE |= dict.fromkeys(("over_ranks", *IMPORT_OPTIONS))


def is_capture(path: str) -> bool:
    """Whether a file, or all of a folder, is the traffic of a training."""
    from torchcoll.core.file import is_ours, is_traffic
    from torchcoll.core.opening import files_in

    files = files_in(Path(path)) if Path(path).is_dir() else ()
    return is_traffic(path) and not any(is_ours(file) and not is_traffic(file) for file in files)


def _check_no_capture(sides: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Raises UnusableError if a side is a capture of a training and another one is not."""
    captures = {name: paths[0] for name, paths in sides if all(map(is_capture, paths))}
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


COMMANDS = {
    "compare": SubCommand(
        compare_arguments,
        run_compare,
        examples=(
            "torchcoll compare before/ after/",
            "torchcoll compare backend:nccl=runs/ backend:gloo=runs/",
            "torchcoll compare before/ after/ --fail-on slower:5% --junit compare.xml",
        ),
        exit_1="with --fail-on: a case has this result, or is wrong, failed or missing in NEW",
        option_groups={
            "what is read": "--collective --ranks --filter --by",
            "how it is compared": "--threshold --metric --over-ranks",
            "output": "--format --all --fail-on --junit --force",
        },
    ),
}
