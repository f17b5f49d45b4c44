"""``torchcoll nightly``: which node is slow or wrong, and since when?
``torchcoll collect``: results into a store. ``check --learn``: what is usual?
"""

from __future__ import annotations

import argparse
import glob
import os
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import (
    ExitCode,
    UnreadableError,
    UsageError,
    choice,
    one_line,
    printable,
    tell,
)
from torchcoll.core.units import counted, parse_duration, plural, shorten
from torchcoll.parts.fleet.address import (
    DEFAULT_STORE,
    is_good_runs,
    is_store,
    parse_address,
)

if TYPE_CHECKING:
    from torchcoll.questions.check.baseline import BaselineRuns


def nightly_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="PATH",
        help="result files, folders, quoted globs, output of other tools, or a store",
    )
    add(
        "--night",
        metavar="DATE",
        help="the night to judge, or 'last' (default: the last one, which must not be older than "
        "two days)",
    )
    add(
        "--accept",
        metavar="WHICH",
        help="accept one incident as usual: its id, such as gpu013@2026-10-31, or a change, such "
        "as nccl=2.27.7; a store keeps this",
    )
    add("--reason", default="", metavar="TEXT", help="with --accept: why")
    add("--why", action="store_true", help="show the last nights of each slow node and its peers")
    add(
        "--drain-command",
        metavar="TEXT",
        help="print this command for each node to drain, with {node} and {reason} filled in; it is "
        "never run. JSON has the commands in 'drain'; with csv they go to stderr",
    )
    add(
        "--drained",
        metavar="FILE",
        help="nodes that are drained already, one per line: no drain command for them",
    )
    add(
        "--expected-nodes",
        metavar="LIST",
        help="nodes that must have a run, as Slurm lists them: gpu[001-048],login1 (default: those "
        "that ran in the 30 nights before)",
    )
    add("--format", default="table", help="table (default), markdown, csv, json or line")
    add("--junit", metavar="FILE", help="write a test per node as JUnit XML")
    add("--force", action="store_true", help="replace the file of --junit")


def _drained(path: str | None) -> list[str]:
    """The lines of a file without blanks and comments."""
    if path is None:
        return []
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        expected = "a text file with a node per line"
        raise UnreadableError("drained", f"{path}: {error}", expected) from None
    return [line for line in lines if line]


def run_nightly(options: argparse.Namespace) -> ExitCode:
    """Exit code 1 if a node or a group is slow, wrong, failed or missing; 2 if it cannot tell."""
    from torchcoll.parts.fleet import nightly_show
    from torchcoll.parts.fleet.nightly import NightRequest, drain_of, expand_nodes, judge_night
    from torchcoll.parts.fleet.series import parse_night
    from torchcoll.report.destination import check_new, write_file
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", (*FORMATS, "line"))
    last = options.night == "last"
    drained = _drained(options.drained)
    if options.drain_command is not None and "{node}" not in options.drain_command:
        raise UsageError("drain-command", options.drain_command, "a command with {node}")
    if options.reason and not options.accept:
        raise UsageError("reason", options.reason, "--accept WHICH with it")
    if options.junit:
        check_new(options.junit, "junit", options.force)
    request = NightRequest(
        None if last or options.night is None else parse_night(options.night),
        last,
        options.accept or "",
        options.reason,
        None if options.expected_nodes is None else expand_nodes(options.expected_nodes),
    )
    finding = judge_night(options.paths, request)
    drain = None
    if options.drain_command is not None:
        drain = drain_of(finding, options.drain_command, drained)
    nightly_show.show_night(finding, options.format, options.why, drain)
    if options.junit:
        write_file(options.junit, nightly_show.night_junit(finding), "junit", options.force)
    level = nightly_show.answer_of(finding).level
    return {"bad": ExitCode.FAILED, "doubt": ExitCode.USAGE}.get(level, ExitCode.OK)


def learn_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is usual").add_argument
    add(
        "--learn",
        action="store_true",
        help="judge nothing: write the good ones of these runs, for --baseline, to the file of -o",
    )
    add("-o", "--output", metavar="FILE", help="with --learn: the file to write")


def run_learn(options: argparse.Namespace) -> ExitCode | None:
    """The exit code of ``check --learn``; None without it."""
    if not options.learn:
        if options.output:
            raise UsageError("output", options.output, "--learn with it")
        return None
    from torchcoll.parts.fleet.learning import format_good_runs, learn_from
    from torchcoll.parts.fleet.learning_show import baseline_grid
    from torchcoll.report.destination import Destination, check_new, write_file
    from torchcoll.report.grid import print_grids

    choice(options.format, "format", ("table", "markdown"))  # the file is JSON itself
    if not options.output:
        raise UsageError("output", "none", "a file to write", "Name one with -o.")
    check_new(options.output, "output", options.force)
    learned = learn_from(options.files)
    text = format_good_runs([baseline.good for baseline in learned.baselines])
    write_file(options.output, text, "output", options.force)
    grids = [baseline_grid(baseline, learned) for baseline in learned.baselines]
    runs = sum(len(baseline.good.runs) for baseline in learned.baselines)
    print_grids([("", grids)], options.format, Destination())
    print(f"written: {one_line(options.output)}, {counted(runs, 'good run')}")
    return ExitCode.OK


def good_runs_of(path: str) -> BaselineRuns | None:
    """The good runs of a path of ``check --baseline``; None for a file of one run. Raises as
    ``read_good_runs``.
    """
    several = os.path.isdir(path) or is_store(path) or is_good_runs(path)
    if not several and (os.path.exists(path) or not glob.has_magic(path)):
        return None
    from torchcoll.parts.fleet.learning import read_good_runs
    from torchcoll.parts.fleet.learning_show import GoodRunsBaseline

    return GoodRunsBaseline(*read_good_runs(path))


_NAMED = 5
_STORE = "an SQLite file, or postgresql://USER@HOST/DATABASE"


def collect_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "paths",
        nargs="*",
        metavar="PATH",
        help="result files, folders, quoted globs, output of other tools, label=PATH",
    )
    add(
        "--into",
        default=DEFAULT_STORE,
        metavar="STORE",
        help=f"{_STORE} (default: {DEFAULT_STORE} in the current folder)",
    )
    add(
        "--prune",
        metavar="TIME",
        help="then remove runs that are older, such as 400d; the age of a run counts from its "
        "start, or from when its file was last written, whichever is later",
    )


def run_collect(options: argparse.Namespace) -> ExitCode:
    if options.prune is None and not options.paths:
        raise UsageError("collect", "no path", "results to collect, or --prune TIME")
    keep_s = None if options.prune is None else parse_duration(options.prune, "prune")
    code = _collect(options) if options.paths else ExitCode.OK
    if keep_s is not None:
        _prune(options.into, keep_s)
    return code


def _collect(options: argparse.Namespace) -> ExitCode:
    from torchcoll.parts.fleet.collect import collect

    address = parse_address(options.into, new=True)
    collected = collect(options.paths, address)
    for message in collected.unreadable:
        tell(f"torchcoll: error: {message}")
    if not collected.files and collected.unreadable:
        return ExitCode.UNREADABLE
    counts = collected.counts
    answer = (
        f"collected {counted(counts['runs'], 'run')} ({counted(counts['cases'], 'case')}) from "
        f"{counted(collected.files, 'file')} into {address.name}; {counts['unchanged']} "
        f"{plural(counts['unchanged'], 'was', 'were')} there already"
    )
    if counts["replaced"]:
        answer += f", {counts['replaced']} replaced by what the files hold now"
    if collected.unreadable:
        answer += f"; {counted(len(collected.unreadable), 'path')} could not be read"
    print(printable(answer))
    if collected.no_results:
        number = counted(len(collected.no_results), "file")
        names = shorten(collected.no_results, _NAMED)
        tell(f"torchcoll: note: no results in {number}, skipped: {names}")
    if not collected.unreadable:
        return ExitCode.OK
    return ExitCode.FAILED if counts["runs"] or counts["unchanged"] else ExitCode.UNREADABLE


def _prune(store: str, keep_s: float) -> None:
    from torchcoll.parts.fleet.collect import prune

    address = parse_address(store)
    before_s = time.time() - keep_s
    runs, cases, left = prune(address, int(before_s * 1e6))
    limit = datetime.fromtimestamp(max(before_s, 0), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    print(
        printable(
            f"removed {counted(runs, 'run')} ({counted(cases, 'case')}) from before {limit} from "
            f"{address.name}; {left} {plural(left, 'is', 'are')} left"
        )
    )


COMMANDS = {
    "nightly": SubCommand(
        nightly_arguments,
        run_nightly,
        examples=(
            "torchcoll nightly torchcoll.sqlite",
            "torchcoll nightly torchcoll.sqlite --accept nccl=2.27.7 --reason 'security update'",
        ),
        option_groups={
            "night": "--night --expected-nodes --why",
            "incidents": "--accept --reason --drain-command --drained",
            "output": "--format --junit --force",
        },
        exit_1="a node is slow, wrong, failed or missing, or a group of nodes is slow",
    ),
    "collect": SubCommand(
        collect_arguments,
        run_collect,
        examples=(
            "torchcoll collect runs/",
            "torchcoll collect 'spool/*/*.jsonl' --into postgresql://torchcoll@db/torchcoll",
        ),
        exit_1="one of several files could not be read",
    ),
}
