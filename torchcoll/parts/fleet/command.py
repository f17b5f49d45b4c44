"""``torchcoll nightly``: which node is slow or wrong, and since when?
``torchcoll baseline``: what is usual? ``torchcoll collect``: results into a store.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import (
    ExitCode,
    UnreadableError,
    UsageError,
    choice,
    printable,
    tell,
)
from torchcoll.core.opening import not_written
from torchcoll.core.toml_text import toml_table
from torchcoll.core.units import counted, parse_duration, parse_share
from torchcoll.parts.fleet.address import (
    DEFAULT_STORE,
    is_store,
    network_file_system,
    parse_address,
)

if TYPE_CHECKING:
    from torchcoll.parts.fleet.good_runs import Baseline

_DEFAULT_NIGHT_START = "12:00"


def nightly_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="PATH",
        help="result files, folders, quoted globs, output of other tools, or a store",
    )
    add(
        "--threshold",
        default="3%",
        metavar="SHARE",
        help="smallest slowdown that is reported (default: 3%%)",
    )
    add(
        "--night",
        metavar="DATE",
        help="the night to judge, or 'last' (default: the last one, which must not be older than "
        "two days)",
    )
    add(
        "--night-start",
        default=_DEFAULT_NIGHT_START,
        metavar="HH:MM",
        help="time of day in UTC at which a night begins (default: 12:00)",
    )
    add(
        "--expected-nodes",
        metavar="FILE",
        help="nodes that should have a run, one per line (default: those of the other nights)",
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
    add("--format", default="table", help="table (default), markdown, csv, json or line")
    add("--all", action="store_true", help="show also what was over in the last 30 nights")
    add("--junit", metavar="FILE", help="write a test per node as JUnit XML")
    add("--force", action="store_true", help="replace the file of --junit")


def _names_in(path: str | None, what: str, *, may_be_empty: bool = False) -> list[str]:
    """The lines of a file without blanks and comments."""
    if path is None:
        return []
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(
            what, f"{path}: {error}", "a text file with a node per line"
        ) from None
    names = [line for line in lines if line]
    if not names and not may_be_empty:
        raise UsageError(what, f"no name in {path}", "a node per line")
    return names


def run_nightly(options: argparse.Namespace) -> ExitCode:
    """Exit code 1 if a node or a group is slow, wrong, failed or missing; 2 if it cannot tell."""
    from torchcoll.parts.fleet import nightly_show
    from torchcoll.parts.fleet.nightly import NightRequest, drain_list, judge_night
    from torchcoll.parts.fleet.series import parse_night, parse_night_start
    from torchcoll.report.destination import check_new, write_file
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", (*FORMATS, "line"))
    last = options.night == "last"
    drained = _names_in(options.drained, "drained", may_be_empty=True)
    if options.drain_command is not None and "{node}" not in options.drain_command:
        raise UsageError("drain-command", options.drain_command, "a command with {node}")
    if options.reason and not options.accept:
        raise UsageError("reason", options.reason, "--accept WHICH with it")
    if options.junit:
        check_new(options.junit, "junit", options.force)
    request = NightRequest(
        parse_share(options.threshold, "threshold"),
        parse_night_start(options.night_start),
        None if last or options.night is None else parse_night(options.night),
        last,
        tuple(_names_in(options.expected_nodes, "expected-nodes")),
        options.accept or "",
        options.reason,
    )
    finding = judge_night(options.paths, request)
    drain = None
    if options.drain_command is not None:
        drains = drain_list(finding, drained)
        drain = nightly_show.DrainCommands.fill(options.drain_command, drains)
    nightly_show.show_night(finding, options.format, options.all, options.why, drain)
    if options.junit:
        write_file(options.junit, nightly_show.night_junit(finding), "junit", options.force)
    if drain is not None:
        nightly_show.print_drain(drain, options.format)
    level = nightly_show.answer_of(finding).level
    return {"bad": ExitCode.FAILED, "doubt": ExitCode.USAGE}.get(level, ExitCode.OK)


def baseline_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="PATH",
        help="result files, folders, quoted globs, output of other tools, or a store",
    )
    add("-o", "--output", required=True, metavar="FILE", help="the baseline to write (.toml)")
    add(
        "--accept",
        metavar="DATE",
        help="use only runs from this day on (UTC), after a change that is to stay; they may be "
        "slower than before",
    )
    add(
        "--threshold",
        default="1%",
        metavar="SHARE",
        help="smallest slowdown that check reports (default: 1%%)",
    )
    add(
        "--false-alarms",
        default="1%",
        metavar="SHARE",
        help="probability that a healthy run fails, over all its cases: 0.1%% to 10%% "
        "(default: 1%%)",
    )
    add("--format", default="table", help="table (default), markdown, csv or json")
    add("--all", action="store_true", help="name every run that was left out")
    add(
        "--force",
        action="store_true",
        help=(
            "replace the file of --output. Runs that are slow by the old baseline are "
            "left out, unless --accept is given"
        ),
    )


def run_baseline(options: argparse.Namespace) -> ExitCode:
    from torchcoll.parts.fleet.baseline_file import format_baselines, read_baselines
    from torchcoll.parts.fleet.baseline_runs import select_baselines
    from torchcoll.parts.fleet.baseline_show import show_baselines
    from torchcoll.parts.fleet.series import parse_night
    from torchcoll.parts.fleet.sources import summaries_of
    from torchcoll.report.destination import check_new, write_file
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    threshold = parse_share(options.threshold, "threshold")
    false_alarms = parse_share(options.false_alarms, "false-alarms")
    if not 0.001 <= false_alarms <= 0.1:
        raise UsageError("false-alarms", options.false_alarms, "a share from 0.1% to 10%")
    accepted = None if options.accept is None else parse_night(options.accept, "accept")
    if not options.output.endswith(".toml"):
        raise UsageError("output", options.output, "a name that ends with .toml")
    check_new(options.output, "output", options.force)
    # Only --accept makes what was slow until now usual.
    replaced: Sequence[Baseline] = ()
    if accepted is None and os.path.isfile(options.output):
        replaced = read_baselines(options.output)
    selection = select_baselines(
        summaries_of(options.paths),
        accepted=accepted,
        threshold=threshold,
        false_alarms=false_alarms,
        replaced=replaced,
    )
    text = format_baselines(selection.baselines, options.paths)
    write_file(options.output, text, "output", options.force)
    show_baselines(selection, options.format, options.all)
    return ExitCode.OK


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
        "--reread",
        action="store_true",
        help="read unchanged files again too, and replace their runs",
    )
    add(
        "--prune",
        metavar="TIME",
        help="then remove runs that are older, such as 400d; the age of a run counts from its "
        "start, or from when its file was last written, whichever is later",
    )
    add(
        "--spare",
        metavar="FILE",
        help="with --prune, keep these runs whatever their age: those of a file of torchcoll "
        "baseline (.toml), or the run ids of a text file, one per line; # begins a comment",
    )
    add("--dry-run", action="store_true", help="with --prune: say what would be removed")


def run_collect(options: argparse.Namespace) -> ExitCode:
    if options.prune is None:
        for name in ("spare", "dry_run"):
            if value := getattr(options, name):
                value = value if name == "spare" else "it"
                raise UsageError(name.replace("_", "-"), value, "--prune TIME with it")
        if not options.paths:
            raise UsageError("collect", "no path", "results to collect, or --prune TIME")
    elif options.paths and options.dry_run:
        raise UsageError("dry-run", "paths with it", "--prune alone: collecting changes the store")
    keep_s = None if options.prune is None else parse_duration(options.prune, "prune")
    spare = _read_ids(options.spare) if options.spare else []
    code = _collect(options) if options.paths else ExitCode.OK
    if keep_s is not None:
        _prune(options, keep_s, spare)
    return code


def _collect(options: argparse.Namespace) -> ExitCode:
    from torchcoll.parts.fleet.collect import collect

    address = parse_address(options.into, new=True)
    if address.path is not None and (network := network_file_system(address.path)):
        tell(
            f"torchcoll: warning: {address.name} is on a network file system ({network}), on which "
            "SQLite's locks may fail and damage the store. Keep it on a local disk, or use "
            "PostgreSQL."
        )
    collected = collect(
        options.paths,
        address,
        reread=options.reread,
        on_error=lambda message: tell(f"torchcoll: error: {message}"),
    )
    counts = collected.counts
    verb = "was" if counts.unchanged == 1 else "were"
    answer = (
        f"collected {counted(counts.runs, 'run')} ({counted(counts.cases, 'case')}) from "
        f"{counted(collected.files, 'file')} into {address.name}; {counts.unchanged} {verb} there "
        "already"
    )
    if counts.replaced:
        answer += f", {counts.replaced} replaced by what the files hold now"
    if collected.unreadable:
        answer += f"; {counted(len(collected.unreadable), 'path')} could not be read"
    print(printable(answer))
    if collected.no_results:
        names = ", ".join(collected.no_results[:_NAMED])
        more = len(collected.no_results) - _NAMED
        rest = f" and {more} more" if more > 0 else ""
        number = counted(len(collected.no_results), "file")
        tell(f"torchcoll: note: no results in {number}, skipped: {names}{rest}")
    if not collected.unreadable:
        return ExitCode.OK
    return ExitCode.FAILED if counts.runs or counts.unchanged else ExitCode.UNREADABLE


def _prune(options: argparse.Namespace, keep_s: float, spare: Sequence[str]) -> None:
    from torchcoll.parts.fleet.collect import prune

    address = parse_address(options.into)
    before_s = time.time() - keep_s
    pruned = prune(address, int(before_s * 1e6), spare, dry_run=options.dry_run)
    limit = datetime.fromtimestamp(max(before_s, 0), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = (
        f"{'would remove' if options.dry_run else 'removed'} {counted(pruned.runs, 'run')} "
        f"({counted(pruned.cases, 'case')}) from before {limit} from {address.name}; "
        f"{pruned.left} {'is' if pruned.left == 1 else 'are'} left"
    )
    if options.spare:
        answer += f", of which {pruned.spared} {'is' if pruned.spared == 1 else 'are'} spared"
    print(printable(answer))
    if pruned.unknown:
        names = ", ".join(pruned.unknown[:_NAMED])
        rest = f" and {len(pruned.unknown) - _NAMED} more" if len(pruned.unknown) > _NAMED else ""
        tell(f"torchcoll: warning: {options.spare}: not in {address.name}: {names}{rest}")


def _read_ids(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except UnicodeDecodeError:
        raise UnreadableError("spare", path, "a text file with a run id per line") from None
    if path.endswith(".toml"):
        try:
            machines = toml_table(Path(path).read_text(encoding="utf-8"))["machine"]
            return [str(run_id) for machine in machines for run_id in machine["runs"]["ids"]]
        except (ValueError, KeyError, TypeError, ImportError):
            raise UnreadableError("spare", path, "a file that torchcoll baseline wrote") from None
    return [line for line in lines if line]


def convert_store(options: argparse.Namespace) -> ExitCode | None:
    """``convert`` of a store; None of anything else. Writes beside the file of -o and renames: a
    store may be larger than memory.
    """
    from torchcoll.reading.command import check_output
    from torchcoll.report.destination import check_new

    store = next(filter(is_store, options.files), None)
    if store is None:
        return None
    check_output(options)
    address = parse_address(store)
    if len(options.files) > 1:
        raise UsageError("files", f"{len(options.files)} arguments", "a store alone")
    if not (options.output or "").endswith(".parquet"):
        expected = "a file that ends in .parquet: the samples are in the result files"
        raise UsageError("output", options.output or "none", expected, "Name one with -o.")
    from torchcoll.parts.fleet.read import write_store_parquet

    part = f"{options.output}.{os.getpid()}"
    try:
        with open(part, "xb") as file:
            cases = write_store_parquet(address, file)
        check_new(options.output, "output", options.force)
        os.replace(part, options.output)
    except OSError as error:
        raise not_written("output", options.output, error) from None
    finally:
        if os.path.lexists(part):
            os.unlink(part)
    print(printable(f"{counted(cases, 'case')} of {address.name} written to {options.output}"))
    return ExitCode.OK


COMMANDS = {
    "nightly": SubCommand(
        nightly_arguments,
        run_nightly,
        examples=(
            "torchcoll nightly torchcoll.sqlite",
            "torchcoll nightly nightly/ --night last --why",
            "torchcoll nightly torchcoll.sqlite --accept nccl=2.27.7 --reason 'security update'",
        ),
        exit_1="a node is slow, wrong, failed or missing, or a group of nodes is slow",
        option_groups={
            "what is judged": "--night --night-start --expected-nodes --threshold",
            "what to do": "--accept --reason --drain-command --drained",
            "output": "--format --all --why --junit --force",
        },
    ),
    "baseline": SubCommand(
        baseline_arguments,
        run_baseline,
        examples=(
            "torchcoll baseline nightly/ -o baseline.toml",
            "torchcoll baseline nightly/ -o baseline.toml --accept 2026-11-01 --force",
        ),
    ),
    "collect": SubCommand(
        collect_arguments,
        run_collect,
        examples=(
            "torchcoll collect runs/",
            "torchcoll collect --into torchcoll.sqlite --prune 400d --spare baseline.toml",
            "torchcoll collect 'spool/*/*.jsonl' --into postgresql://torchcoll@db/torchcoll",
        ),
        exit_1="one of several files could not be read",
    ),
}
