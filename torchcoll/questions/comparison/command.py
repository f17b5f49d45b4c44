"""``torchcoll compare``: what differs between runs, and whether it is evidence."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, UsageError, choice, tell
from torchcoll.core.parts import first_answer
from torchcoll.core.units import parse_share
from torchcoll.questions.comparison import fail_on
from torchcoll.reading.inputs import (
    IMPORT_OPTIONS,
    add_over_ranks,
    add_reading_options,
    split_label,
)

if TYPE_CHECKING:
    from torchcoll.questions.comparison.compare import Comparison

THRESHOLD_TEXT = "2%"


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sides",
        nargs="+",
        metavar="SIDE",
        help="BASE and NEW, or the folder of a versus. Each is a file, a folder, a quoted glob, "
        "or label=PATH. Several files with one label are the runs of that side; without labels "
        "the first file is BASE and the others are NEW. backend:gloo=PATH takes the cases of one "
        "backend, model=PATH is a prediction whose errors are shown. Or two captures of a "
        "training; or one file with two tables, such as Before and After",
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
        help="exit with 1 if a case has one of these results: slower, slower:5%%, inconclusive, "
        "not-comparable; and if one is wrong, failed or missing in NEW, without ignore-wrong, "
        "ignore-failed, ignore-missing",
    )
    add("--junit", metavar="FILE", help="write what --fail-on finds in each case as JUnit XML")
    add("--force", action="store_true", help="replace the file of --junit")
    add("--format", default="table", help="table (default), markdown, csv or json")


def run_compare(options: argparse.Namespace) -> ExitCode:
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


def sides_of(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """``BASE NEW...`` of the command line: names of sides, and their paths.

    ``label=path`` names the side; those of one label are its runs, and of a label such as
    ``backend:gloo`` only those cases. Without a label the first
    is the base and all others are runs of the new side. Raises UsageError for fewer than two
    sides, and for a glob that the shell has torn apart.
    """
    named: dict[str, list[str]] = {}
    for number, argument in enumerate(arguments):
        label, path = split_label(argument)
        named.setdefault(label or ("new" if number else "base"), []).append(path)
    if len(named) < 2:
        name, paths = next(iter(named.items()), ("none", []))
        several = f", {len(paths)} times" if len(paths) > 1 else ""
        action = "Files of one name are runs of one side: before='a/*.jsonl' after='b/*.jsonl'."
        cells = first_answer("answers", "cells", paths[0]) or [] if paths else []
        if len(cells) > 1:
            suggestion = as_sides(paths[0], cells[:2])
            action = f"Name two of its {len(cells)} cells: torchcoll compare {suggestion}."
        raise UsageError(
            "compare", f"the side {name} alone{several}", "BASE and NEW, of two names", action
        )
    _check_torn(named)
    return list(named.items())


def as_sides(folder: str, cells: Iterable[str]) -> str:
    """Cells of a folder of matrix or versus, as words of a command: no other cell's runs."""
    return " ".join(shlex.quote(f"{cell}={folder}/{cell}-[0-9]*.jsonl") for cell in cells)


def _check_torn(named: dict[str, list[str]]) -> None:
    """``compare before/* after/*``: the shell makes files of it, and BASE would be one of them."""
    if set(named) != {"base", "new"} or len(named["base"]) > 1:
        return
    folder = os.path.dirname(named["base"][0])
    others = {os.path.dirname(path) for path in named["new"] if os.path.isfile(path)}
    if os.path.isfile(named["base"][0]) and folder in others and len(others) > 1:
        raise UsageError(
            "new",
            f"files of {len(others)} folders, one of them the folder of BASE",
            "files of one side",
            f"Name the folders ({folder or '.'} ...), or each side: before=PATH after=PATH.",
        )


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
