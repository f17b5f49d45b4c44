"""``torchcoll fleet``: which node differs from its peers? ``torchcoll history``: since when?
``torchcoll baseline``: what is usual?
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, UnreadableError, UnusableError, UsageError, choice
from torchcoll.core.units import parse_share

if TYPE_CHECKING:
    from torchcoll.parts.fleet.good_runs import Baseline

_DEFAULT_NIGHT_START = "12:00"


def _common_arguments(parser: argparse.ArgumentParser) -> None:
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
        "--night-start",
        default=_DEFAULT_NIGHT_START,
        metavar="HH:MM",
        help="time of day in UTC at which a night begins (default: 12:00)",
    )
    add("--format", default="table", help="table (default), markdown, csv or json")
    add("--all", action="store_true", help="show every node, not only the slowest")


def fleet_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _common_arguments(parser)
    add("--night", metavar="DATE", help="the night to judge (default: the last one)")
    add(
        "--expected-nodes",
        metavar="FILE",
        help="nodes that should have a run, one per line (default: those of the other nights)",
    )
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
    add("--junit", metavar="FILE", help="write a test per node as JUnit XML")
    add("--plot", metavar="FILE", help="write a heatmap of nodes and cases (PNG, SVG or PDF)")
    add("--force", action="store_true", help="replace the files of --junit and --plot")


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


def run_fleet(options: argparse.Namespace) -> ExitCode:
    """Exit code 1 if a node failed, is slow or missing, or if a group of nodes is slow."""
    from torchcoll.parts.fleet.drain import NIGHTS, drain_list
    from torchcoll.parts.fleet.fleet_show import DrainCommands, fleet_junit, print_drain, show_fleet
    from torchcoll.parts.fleet.nights import parse_night, parse_night_start
    from torchcoll.parts.fleet.node_report import fleet_finding
    from torchcoll.parts.fleet.sources import summaries_of_nights
    from torchcoll.report.destination import check_new, write_file
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    threshold = parse_share(options.threshold, "threshold")
    night_start_us = parse_night_start(options.night_start)
    night = None if options.night is None else parse_night(options.night)
    expected = _names_in(options.expected_nodes, "expected-nodes")
    drained = _names_in(options.drained, "drained", may_be_empty=True)
    if options.drain_command is not None and "{node}" not in options.drain_command:
        raise UsageError("drain-command", options.drain_command, "a command with {node}")
    for what in ("junit", "plot"):
        if path := getattr(options, what):
            check_new(path, what, options.force)
    count = 1 if options.drain_command is None else NIGHTS
    summaries, overview = summaries_of_nights(options.paths, night_start_us, night, count)
    finding = fleet_finding(
        summaries, threshold, night, night_start_us, expected, overview=overview
    )
    if night is not None and not finding.nodes:
        raise UsageError("night", options.night, "a night of which there are runs")
    drain = None
    if options.drain_command is not None:
        drains = drain_list(summaries, threshold, night, night_start_us, drained)
        drain = DrainCommands.fill(options.drain_command, drains)
    show_fleet(finding, options.format, options.all, drain=drain)
    if options.junit:
        write_file(options.junit, fleet_junit(finding), "junit", options.force)
    if options.plot:
        from torchcoll.parts.fleet.heatmap_show import write_heatmap

        write_heatmap(finding, options.plot, options.force)
    if drain is not None:
        print_drain(drain, options.format)
    return ExitCode.OK if finding.good else ExitCode.FAILED


def history_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _common_arguments(parser)
    add(
        "--accept",
        metavar="DATE",
        help="take the baseline from this night on, after a change that is to stay",
    )


def run_history(options: argparse.Namespace) -> ExitCode:
    """Exit code 1 if the times changed for the worse and have not recovered."""
    from torchcoll.parts.fleet.changes_over_time import history_of
    from torchcoll.parts.fleet.history_show import show_history
    from torchcoll.parts.fleet.nights import parse_night, parse_night_start
    from torchcoll.parts.fleet.panel import panels_of
    from torchcoll.parts.fleet.sources import summaries_of
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    threshold = parse_share(options.threshold, "threshold")
    night_start_us = parse_night_start(options.night_start)
    accepted = None if options.accept is None else parse_night(options.accept, "accept")
    panels = panels_of(summaries_of(options.paths), night_start_us)
    if not panels:
        raise UnusableError("paths", " ".join(options.paths), "runs with dates and times")
    histories = []
    for panel in panels:
        first = 0 if accepted is None else max(0, accepted - panel.first_night)
        if first >= len(panel.log_times):
            raise UsageError("accept", options.accept, "a date within the nights of the runs")
        histories.append(history_of(panel, threshold, first))
    show_history(histories, options.format, options.all)
    bad = any(not item.ended for history in histories for item in history.incidents)
    return ExitCode.FAILED if bad else ExitCode.OK


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
    from torchcoll.parts.fleet.nights import parse_night
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


COMMANDS = {
    "fleet": SubCommand(
        "find the nodes that differ from their peers",
        fleet_arguments,
        run_fleet,
        "many runs",
        examples=(
            "torchcoll fleet nightly/",
            "torchcoll fleet nightly/ --expected-nodes nodes.txt --junit fleet.xml",
        ),
        exit_1="a node failed, is slow or missing, or a group of nodes is slow",
    ),
    "history": SubCommand(
        "find when a fleet or a node became slower, and what changed then",
        history_arguments,
        run_history,
        "many runs",
        examples=(
            "torchcoll history nightly/",
            "torchcoll history nightly/ --accept 2026-11-01",
        ),
        exit_1="the times became longer and have not recovered",
    ),
    "baseline": SubCommand(
        "write the usual times of good runs, for check --baseline",
        baseline_arguments,
        run_baseline,
        "many runs",
        examples=(
            "torchcoll baseline nightly/ -o baseline.toml",
            "torchcoll baseline nightly/ -o baseline.toml --accept 2026-11-01 --force",
        ),
    ),
}
