"""``torchcoll compare``: what differs between launches, and whether it is evidence."""

from __future__ import annotations

import argparse
import os

from torchcoll.core.errors import ExitCode, tell
from torchcoll.core.units import parse_share


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sides",
        nargs="+",
        metavar="SIDE",
        help="BASE and NEW: a file, a folder, a quoted glob, or label=PATH; several files of a "
        "side (one label; without labels all behind the first, refused where only some of them "
        "are like it) are its launches; "
        "backend:gloo=PATH takes those cases alone; model=PATH is a prediction, and its errors "
        "against the other side are told",
    )
    add("--threshold", default="2%", metavar="SHARE", help="less is the same (default 2%%)")
    add("--metric", default="time", help="time (the default), algbw or busbw")
    add("--over-ranks", metavar="HOW", help="max (the default), mean, min or rank0")
    add("--filter", default="", metavar="TEXT", help="such as collective=all_reduce,size>=1M")
    add(
        "--by",
        default="",
        metavar="NAMES",
        help="what cases must agree in too: kernel, label=KEY, ...",
    )
    add("--fit", action="store_true", help="latency and bandwidth in place of every size")
    add("--fail-on", metavar="GATE", help="slower, slower:5%%, unclear, incomparable: exit 1")
    add("--format", default="table", help="table, markdown, csv or json")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.analysis.compare import compare
    from torchcoll.analysis.environments import check_unmixed
    from torchcoll.analysis.gate import parse_gate, tripped, untested
    from torchcoll.analysis.sides import side, sides_of
    from torchcoll.importers.registry import read_all, with_results
    from torchcoll.report.compare import show_comparisons, told_beside
    from torchcoll.report.found import FORMATS
    from torchcoll.report.view import choice

    gate = parse_gate(options.fail_on) if options.fail_on is not None else {}
    threshold = parse_share(options.threshold, "threshold")
    choice(options.format, "format", FORMATS)
    arguments = with_results(options.sides, least=2)
    base, *others = [side(name, paths, read_all) for name, paths in sides_of(arguments)]
    unnamed = list(map(os.path.isfile, arguments))
    if unnamed[0] and sum(unnamed) > 2 and not options.by:  # what --by names is kept apart
        check_unmixed(base, next(one for one in others if one.name == "new"))
    found = [
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
    show_comparisons(found, options.format)
    for text in told_beside(found, options.format):
        tell(f"torchcoll: {text}")
    failed = tripped(gate, [one.judged for each in found for one in each.fitted or each.rows])
    if not failed:
        if text := untested(gate, found):
            tell(f"torchcoll: warning: --fail-on {options.fail_on}: {text}")
        return ExitCode.OK
    words = ", ".join(f"{count} {verdict}" for verdict, count in failed.items())
    tell(f"torchcoll: --fail-on {options.fail_on}: {words}")
    return ExitCode.FAILED
