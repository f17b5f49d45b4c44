"""``torchcoll compare``: what differs between runs, and whether it is evidence."""

from __future__ import annotations

import argparse
import dataclasses
import glob
import os
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchcoll.core.errors import ExitCode, UnusableError, UsageError, choice, nearest_file, tell
from torchcoll.core.units import counted, parse_duration, parse_share
from torchcoll.questions.comparison.fail_on import (
    Gate,
    parse_gate,
    slow_runs,
    tripped,
    undecided,
    untested,
)
from torchcoll.reading.inputs import IMPORT_OPTIONS, add_filter, add_import_options, add_over_ranks

if TYPE_CHECKING:
    from torchcoll.parts.experiments.versus import Versus
    from torchcoll.parts.experiments.versus_plan import Asked
    from torchcoll.questions.comparison.compare import Comparison

_THRESHOLD = "2%"


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
            "a prediction whose errors are shown. Or two captures of a training"
        ),
    )
    add(
        "--threshold",
        default=_THRESHOLD,
        metavar="SHARE",
        help="changes smaller than this are 'same' (default %(default)s)",
    )
    add("--metric", default="time", help="time (default), algbw or busbw")
    add_over_ranks(parser, default=None)
    add_filter(parser)
    add(
        "--by",
        default="",
        metavar="NAMES",
        help=("do not pool runs that differ in these: kernel, NCCL_ALGO, label=KEY, ..."),
    )
    add(
        "--fit",
        action="store_true",
        help=("compare the fitted latency and bandwidth instead of each size"),
    )
    add(
        "--all",
        dest="every",
        action="store_true",
        help=("show every case; the default folds cases that are the same or inconclusive"),
    )
    add(
        "--only",
        default="",
        metavar="WHICH",
        help=(
            "show only cases that are slower, changed (slower or faster, or beyond "
            "--threshold if not tested) or inconclusive"
        ),
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
    add("--verbose", action="store_true", help="show the statistics too")
    add("--format", default="table", help="table (default), markdown, csv or json")
    add_import_options(parser)


def run_compare(options: argparse.Namespace) -> ExitCode:
    from torchcoll.parts.experiments.versus import read
    from torchcoll.questions.comparison.arguments import sides_of
    from torchcoll.questions.comparison.compare import compare
    from torchcoll.questions.comparison.show import ONLY, notes_of_sides, show_comparisons
    from torchcoll.reading.inputs import check_import_options, drop_non_results
    from torchcoll.report.formats import FORMATS
    from torchcoll.stats.differences import check_unmixed
    from torchcoll.stats.sides import side

    if captures := _captures(options.sides):
        return _compare_captures(captures, options)
    gate = parse_gate(options.fail_on) if options.fail_on is not None else None
    threshold = parse_share(options.threshold, "threshold")
    choice(options.format, "format", FORMATS)
    if options.only:
        choice(options.only, "only", ONLY)
        if options.every or options.fit or options.format in ("csv", "json"):
            chosen = "--all" if options.every else "--fit" if options.fit else ""
            value = f"{options.only} with {chosen or f'--format {options.format}'}"
            raise UsageError("only", value, "a table of cases", "csv and json have every case.")
    folder = Path(options.sides[0]) if len(options.sides) == 1 else None
    if folder and folder.is_dir() and (state := read(folder)):
        return _compare_versus(state, options, gate)
    arguments = drop_non_results(options.sides, least=2)
    hints = options.collective, options.ranks
    named = sides_of(arguments)
    _check_no_capture(named)
    base, *others = [side(name, paths, *hints) for name, paths in named]
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
            fit=options.fit,
        )
        for new in others
    ]
    show_comparisons(
        comparisons, options.format, only=options.only, every=options.every, verbose=options.verbose
    )
    for text in notes_of_sides(comparisons, options.format):
        tell(f"torchcoll: {text}")
    return _gated(gate, comparisons)


def _gated(gate: Gate | None, comparisons: Sequence[Comparison]) -> ExitCode:
    """What a gate lets pass; what it cannot tell is a usage error's code, as of all gates."""
    from torchcoll.questions.comparison.conclusion_show import limit_notes

    if gate is None:
        return ExitCode.OK
    about = f"torchcoll: --fail-on {gate.text}:"
    failed = tripped(gate, comparisons)
    for note in dict.fromkeys(note for each in comparisons for note in limit_notes(each)):
        tell(f"torchcoll: warning: --fail-on {gate.text}: {note}")
    if failed:
        tell(f"{about} {', '.join(f'{count} {result}' for result, count in failed.items())}")
        return ExitCode.FAILED
    if unseen := untested(gate, comparisons):
        tell(f"torchcoll: warning: --fail-on {gate.text}: {unseen}")
    if number := undecided(gate, comparisons):
        verb = "looks" if number == 1 else "look"
        tell(f"{about} cannot tell: {counted(number, 'case')} {verb} 2x slower or more, undecided")
        return ExitCode.USAGE
    if slow := slow_runs(gate, comparisons):
        tell(f"{about} cannot tell: {slow[0]}")
        return ExitCode.USAGE
    return ExitCode.OK


# Options that would make another comparison of the folder of a versus, and what they are unasked.
_OTHERWISE = {"threshold": _THRESHOLD, "metric": "time", "filter": "", "by": "", "fit": False}
_OTHERWISE |= dict.fromkeys(("over_ranks", *IMPORT_OPTIONS)) | {"only": ""}


def _captures(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """(name, path) of each side if all are captures of a training, otherwise [].

    A folder that also has result files stands for these. Raises UsageError unless there are two.
    """
    from torchcoll.reading.inputs import split_label

    sides = [split_label(argument) for argument in arguments]
    captured = [_is_capture(path) for _, path in sides]
    if not all(captured):  # traffic among results is left out
        return []
    if len(captured) != 2:
        number = counted(len(captured), "capture")
        raise UsageError("compare", number, "two captures, or results of measurements")
    names = [label or name for (label, _), name in zip(sides, ("base", "new"), strict=True)]
    return list(zip(names, (path for _, path in sides), strict=True))


def _is_capture(path: str) -> bool:
    """Whether a file, or all of a folder, is the traffic of a training."""
    from torchcoll.core.file import is_ours, is_traffic

    files = filter(Path.is_file, Path(path).iterdir()) if Path(path).is_dir() else ()
    return is_traffic(path) and not any(is_ours(file) and not is_traffic(file) for file in files)


def _check_no_capture(sides: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Raises UnusableError if a side is a capture of a training and another one is not."""
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
            "torchcoll.cost(CAPTURE, RUN) compares a training with the same calls measured alone.",
        )


def _compare_captures(captures: Sequence[tuple[str, str]], options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.traffic import Traffic
    from torchcoll.parts.training.traffic_comparison import compare_traffic
    from torchcoll.parts.training.traffic_comparison_show import show_traffic_comparisons
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    for name, unasked in {**_OTHERWISE, "fail_on": None}.items():
        if (value := getattr(options, name)) != unasked:
            raise UsageError(name.replace("_", "-"), value, "none with captures of a training")
    (base_name, base), (new_name, new) = captures
    comparison = compare_traffic(Traffic.load(base), Traffic.load(new), (base_name, new_name))
    show_traffic_comparisons([comparison], options.format)
    return ExitCode.OK


def _compare_versus(state: Versus, options: argparse.Namespace, gate: Gate | None) -> ExitCode:
    """Of the one folder that has both sides: as versus judged them, which looked at every round.

    Raises UsageError where it has not yet, and for options that would make other figures of it.
    """
    from torchcoll.parts.experiments.versus_show import show_versus
    from torchcoll.questions.comparison.arguments import as_sides
    from torchcoll.stats.sequential import FIRST_LOOK

    folder = options.sides[0]
    given = [name for name, unasked in _OTHERWISE.items() if getattr(options, name) != unasked]
    if given:
        raise UsageError(
            given[0].replace("_", "-"),
            f"{getattr(options, given[0])} with the folder of a versus",
            "its two sides by name, to be taken as they are",
            f"Such as: torchcoll compare {as_sides(folder, state.cells)}.",
        )
    comparisons = state.comparisons()
    if not comparisons:
        raise UsageError(
            "compare",
            f"{folder}, without {FIRST_LOOK} runs of each side",
            "the folder of a versus that has judged",
            f"torchcoll versus --resume {shlex.quote(folder)} goes on.",
        )
    show_versus(state, comparisons, folder, state.stopped, options.format)
    return _gated(gate, comparisons)


def versus_arguments(parser: argparse.ArgumentParser) -> None:
    from torchcoll.parts.experiments.matrix_command import add_load

    add = parser.add_argument
    parser.usage = (
        "torchcoll versus --env NAME=A,B [options] -- LAUNCHER ... -m torchcoll.allreduce ...\n"
        "       torchcoll versus [options] --a LAUNCHER ... --b LAUNCHER ..."
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME=A,B",
        help=(
            "a variable and its values; an empty value leaves it unset; write \\, "
            "for a comma in a value. The first value is the base"
        ),
    )
    add(
        "--axis",
        action="append",
        default=[],
        metavar="name=A,B",
        help=(
            "values of {name} in the command; or library=PATH,... (set in LD_PRELOAD), "
            "venv=DIR,... (first in PATH)"
        ),
    )
    add("--backend", metavar="A,B", help="compare backends, each in runs of its own")
    add(
        "--implementation",
        metavar="A,B",
        help=(
            "compare implementations, each in runs of its own, such as "
            "nccl,one_shot,two_shot (kernels of torch's symmetric memory)"
        ),
    )
    add_load(parser)
    add("--threshold", metavar="SHARE", help="changes smaller than this are 'same' (default 2%%)")
    add(
        "--runs",
        metavar="N",
        help=(
            "end after this many runs of each side (default 30, at least 3); it "
            "ends earlier when every case is decided, or when more runs would not "
            "help"
        ),
    )
    add(
        "--budget",
        metavar="TIME",
        help="begin no round that would end after this time: 90s, 10m, 2h",
    )
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="folder for everything; the same folder again continues",
    )
    add(
        "--resume",
        metavar="DIR",
        help="continue in this folder, with the command it was started with",
    )
    add("--cell-timeout", metavar="S", help="end a run after this many seconds (default: no limit)")
    add("--format", default="table", help="table (default), markdown, csv or json")
    add("--dry-run", action="store_true", help="print the runs of one round and start nothing")
    add("--quiet", action="store_true", help="print no progress, only the result")
    add("--a", nargs=argparse.REMAINDER, help="compare two whole commands: --a COMMAND --b COMMAND")
    add(
        "words",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the command of one run, for both sides",
    )


def run_versus(options: argparse.Namespace) -> ExitCode | int:
    from torchcoll.parts.experiments.matrix_command import (
        dry_run,
        estimated_s,
        number_of,
        tell_notes,
    )
    from torchcoll.parts.experiments.versus import Versus
    from torchcoll.parts.experiments.versus_plan import Sides, asked_of
    from torchcoll.parts.experiments.versus_show import show_versus
    from torchcoll.questions.comparison.conclusion_show import faults_of_sides
    from torchcoll.report.formats import FORMATS
    from torchcoll.stats.sequential import FIRST_LOOK

    choice(options.format, "format", FORMATS)
    budget_s = None if options.budget is None else parse_duration(options.budget, "budget")
    timeout_s = number_of("cell-timeout", options.cell_timeout, float, 0.1)
    argv = options.words[1:] if options.words[:1] == ["--"] else options.words
    asked = asked_of(
        Sides(
            argv,
            options.env,
            options.axis,
            options.backend,
            options.implementation,
            options.load,
            options.a,
        ),
        options.output,
        options.resume,
        None if options.threshold is None else parse_share(options.threshold, "threshold"),
        number_of("runs", options.runs, int, FIRST_LOOK),
    )
    state = Versus(asked.plan, asked.folder, asked.threshold, asked.most, asked.same_most)
    missing = state.next(lambda job: job.key in asked.there)
    if options.dry_run:
        a_round = dataclasses.replace(asked.plan, runs=1)
        notes = [*asked.notes]
        run_s = asked.run_s or (estimated_s(a_round)[0] or 0.0) / len(a_round.cells)
        if budget_s is not None and (text := state.short_of(budget_s, run_s)):
            notes.append(text)
        tell_notes(asked.plan, notes)
        return dry_run(a_round, asked.folder, asked.most)
    number = None
    if missing is not None:
        tell_notes(asked.plan, asked.notes)
        number = _launched(state, asked, budget_s, timeout_s, options.quiet)
    ended = state.stopped
    if number:
        name = signal.Signals(number).name
        ended = f"interrupted by {name}; torchcoll versus --resume {asked.folder} goes on"
    comparisons = state.comparisons()
    if comparisons:
        show_versus(state, comparisons, str(asked.folder), ended, options.format)
    else:
        go_on = (
            "" if number or state.failed else f". torchcoll versus --resume {asked.folder} goes on"
        )
        before = "" if state.failed else f" before {FIRST_LOOK} runs a side"
        tell(f"torchcoll: nothing is judged{before}: {ended}{go_on}")
    if number:
        return 128 + number
    sides = (side for comparison in comparisons for side in faults_of_sides(comparison))
    faulty = any(side.level == "bad" for side in sides)
    return ExitCode.FAILED if state.failed or faulty or not comparisons else ExitCode.OK


def _launched(
    state: Versus, asked: Asked, budget_s: float | None, timeout_s: float | None, quiet: bool
) -> int | None:
    """What is missing, with a live line; the number of the signal that stopped it, else None."""
    from torchcoll.machine.environment import variables
    from torchcoll.parts.experiments.folder import Folder
    from torchcoll.parts.experiments.run import run
    from torchcoll.parts.experiments.versus_show import Live

    with Folder(asked.folder, asked.spec) as folder:
        live = Live(state, str(asked.folder), quiet)
        try:
            jobs = state.jobs(folder, budget_s, run_s=asked.run_s)
            return run(asked.plan, folder, variables, live, timeout_s, jobs)
        finally:
            live.close()


COMMANDS = {
    "versus": (
        "measure A and B in turn until each case is decided",
        versus_arguments,
        run_versus,
    ),
    "compare": (
        "compare two sides case by case, with confidence",
        compare_arguments,
        run_compare,
    ),
}
