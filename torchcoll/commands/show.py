"""``torchcoll show``: result files and traffic files as tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from torchcoll.core.result import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files", nargs="*", metavar="FILE", help="result or traffic files, or output of other tools"
    )
    add(
        "--reference",
        metavar="FILE",
        help="beside the bandwidths those of a file of points (results/points.json) or of a run",
    )
    add("--format", default="table", help="table, markdown, csv, json or nccl-tests")
    add("--columns", metavar="NAMES", help="names of fields of a row with commas, or all")
    add("--percentiles", metavar="P", help="further columns, such as 50,90,99.9")
    add("--over-ranks", default="max", metavar="HOW", help="max, mean, min or rank0")
    add("--clock", help="host, device or issue; default: the device's where it was read")
    add(
        "--pivot",
        metavar="KEY",
        help="sizes down, a column for each collective, backend, ranks, label=KEY, file, ...",
    )
    add("--metric", help="of --pivot: busbw (the default), algbw or time")
    add("--per-rank", action="store_true", help="each rank's own times in each case")
    add("--calls", action="store_true", help="every call of each case in order")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.records import load_all
    from torchcoll.core.traffic import is_traffic
    from torchcoll.importers.registry import resolve
    from torchcoll.report.output import one_line
    from torchcoll.report.text import show

    if any(map(is_traffic, options.files)):
        return _show_traffic(options)
    runs = load_all(resolve(options.files))
    if options.reference and runs:
        return _show_reference(runs, options)
    show(*runs, **_choices(options))
    for run in runs if options.format in ("csv", "json") else ():  # others show them below
        for problem in run.problems:
            where = "" if str(run.path) in problem else f"{run.path}: "
            print(f"torchcoll: warning: {one_line(where + problem)}", file=sys.stderr)
    return ExitCode.OK


def _choices(options: argparse.Namespace) -> dict[str, Any]:
    return {k: v for k, v in vars(options).items() if k not in ("files", "run", "reference")}


def _show_traffic(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.traffic import Traffic
    from torchcoll.report.output import one_line
    from torchcoll.report.text import show

    if options.reference:
        raise UsageError("reference", options.reference, "result files beside it, not traffic")
    found = [Traffic.load(path) for path in options.files]
    show(*found, **_choices(options))
    for traffic in found if options.format in ("csv", "json") else ():
        for problem in traffic.problems:
            print(f"torchcoll: warning: {one_line(problem)}", file=sys.stderr)
    return ExitCode.OK


def _show_reference(runs: Sequence[Run], options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.records import load_all
    from torchcoll.importers.registry import resolve
    from torchcoll.report.reference import is_points, load_points, points_of, show_beside

    if options.format not in ("table", "markdown"):
        expected = "one of table, markdown with --reference"
        raise UsageError("format", options.format, expected)
    path = options.reference
    if is_points(path):
        points = load_points(path)
    else:
        points = [p for run in load_all(resolve([path])) for p in points_of(run)]
    show_beside(runs, points, options.format)
    return ExitCode.OK
