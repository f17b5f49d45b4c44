"""``torchcoll show``: result files and traffic files as tables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import ExitCode, UsageError, tell

if TYPE_CHECKING:
    from torchcoll.core.result import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="FILE",
        help="result or traffic files, folders, quoted globs, or output of other tools",
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
    add("--fabric", metavar="NAME", help="the verdict's reference: nvswitch-h200, ib-ndr:8, ...")
    add("--rules", metavar="FILE", action="append", default=[], help="fabrics of your own (TOML)")
    add("--against", metavar="FILE", help="a run as the verdict's reference, in place of a fabric")
    add("--gate", action="store_true", help="exit 1 where the verdict is FAIL")
    add("--junit", metavar="FILE", help="the verdict and the cases as JUnit XML")
    add("--health", metavar="FILE", help="the verdict as a health event for schedulers (JSON)")
    add("--force", action="store_true", help="replace the files of --junit and --health")
    add("--calls", action="store_true", help="every call of each case in order")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.records import uncollected

    with uncollected():
        return _shown(options)


def _shown(options: argparse.Namespace) -> ExitCode:
    from torchcoll.report.files import check_new

    for what in ("junit", "health"):
        if path := getattr(options, what):
            check_new(path, what, options.force)
    from torchcoll.importers.registry import leave_out, read_all
    from torchcoll.report.notes import lines_beside
    from torchcoll.report.text import SHOWN, Judging, has_verdict, show

    files, traffic = _by_kind(options.files)
    if traffic and not files:
        return _show_traffic(options, traffic)
    if traffic and not _fits_both(options):
        leave_out(traffic)
        traffic = []
    runs = read_all(files)
    if options.against:
        options.against = _baseline(options.against)
    if options.reference and runs:
        asked = Judging(options.fabric, options.rules, options.against).asked
        if asked and not _asks(options):
            raise UsageError(*asked, SHOWN, "No verdict is shown with --reference.")
        _show_reference(runs, options)
        return _judged(runs, options)
    choices = _choices(options)
    if _asks(options) and not has_verdict(options.format, _has_view(options)):
        choices = {k: v for k, v in choices.items() if k not in _OF_VERDICT}  # theirs alone
    show(*runs, **choices)
    for text in lines_beside(options.format, runs):
        tell(f"torchcoll: {text}")
    if traffic:
        print()
        _show_traffic(options, traffic)
    return _judged(runs, options)


def _by_kind(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Result files, and traffic: a folder of nothing else stays one, since its ranks are joined."""
    from torchcoll.analysis.files import expanded
    from torchcoll.core.traffic_file import RANK_FILE, is_traffic

    results: list[str] = []
    traffic: list[str] = []
    for path in given:
        inside = [str(file) for file in expanded(path)]
        sent = [f for f in inside if os.path.basename(f).startswith(RANK_FILE) or is_traffic(f)]
        results += [file for file in inside if file not in sent]
        traffic += [path] if sent == inside and os.path.isdir(path) else sent
    return results, traffic


def _fits_both(options: argparse.Namespace) -> bool:
    """Whether tables of traffic can stand below those of results, under the same options."""
    own = {**_choices(options), "over_ranks": options.over_ranks != "max", "format": None}
    asked = [*own.values(), options.reference, _asks(options)]
    return options.format in ("table", "markdown") and not any(asked)


_OF_VERDICT = ("fabric", "rules", "against")


def _choices(options: argparse.Namespace) -> dict[str, Any]:
    own = ("files", "run", "reference", "gate", "junit", "health", "force")
    return {k: v for k, v in vars(options).items() if k not in own}


def _show_traffic(options: argparse.Namespace, paths: Sequence[str]) -> ExitCode:
    from torchcoll.core.traffic import Traffic
    from torchcoll.report.text import show

    for name in ("reference", "gate", "junit", "health"):
        if value := getattr(options, name):
            raise UsageError(name, value, "result files beside it, not traffic")
    found = [Traffic.load(path) for path in paths]
    show(*found, **_choices(options))
    for traffic in found if options.format in ("csv", "json") else ():
        for problem in traffic.problems:
            tell(f"torchcoll: warning: {problem}")
    return ExitCode.OK


def _asks(options: argparse.Namespace) -> bool:
    return bool(options.gate or options.junit or options.health)


def _has_view(options: argparse.Namespace) -> bool:
    return bool(options.pivot or options.per_rank or options.calls)


def _baseline(path: str) -> Run:
    from torchcoll.importers.registry import read_all

    runs = read_all([path])
    if len(runs) != 1:
        raise UsageError("against", f"{len(runs)} runs in {path}", "a file of one run")
    return runs[0]


def _judged(runs: Sequence[Run], options: argparse.Namespace) -> ExitCode:
    """What --gate, --junit and --health ask for."""
    if not _asks(options):
        return ExitCode.OK
    from torchcoll.report.files import write_file
    from torchcoll.report.text import Judging
    from torchcoll.verdict.export import health_text, junit_text
    from torchcoll.verdict.words import FAIL, NO_REFERENCE

    judging = Judging(options.fabric, options.rules, options.against)
    verdicts = [judging.verdict(run) for run in runs]
    for what, path, text_of in (
        ("junit", options.junit, junit_text),
        ("health", options.health, health_text),
    ):
        if path:
            write_file(path, text_of(runs, verdicts), what, options.force)
    unjudged = sum(verdict.word == NO_REFERENCE for verdict in verdicts)
    if options.gate and unjudged:
        text = f"{unjudged} of {len(runs)} runs had no reference: nothing was judged"
        tell(f"torchcoll: warning: --gate: {text}")
    failed = options.gate and any(verdict.word == FAIL for verdict in verdicts)
    return ExitCode.FAILED if failed else ExitCode.OK


def _show_reference(runs: Sequence[Run], options: argparse.Namespace) -> None:
    from torchcoll.importers.registry import read_all
    from torchcoll.report.reference import is_points, load_points, points_of, show_beside

    if options.format not in ("table", "markdown"):
        expected = "one of table, markdown with --reference"
        raise UsageError("format", options.format, expected)
    path = options.reference
    if is_points(path):
        points = load_points(path)
    else:
        points = [p for run in read_all([path]) for p in points_of(run)]
    show_beside(runs, points, options.format)
