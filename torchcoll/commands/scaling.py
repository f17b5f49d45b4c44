"""``torchcoll scaling``: time, bandwidth and first calls against the number of ranks."""

from __future__ import annotations

import argparse

from torchcoll.core.errors import ExitCode, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="result files or folders; each is a launch")
    add("--sizes", metavar="LIST", help="such as 1K,1M; default: a small, a middle, a large one")
    add("--link-gbps", metavar="N", help="the limit of busbw in GB/s: adds the share of it")
    add("--format", default="table", help="table, markdown, csv or json")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.analysis.scaling import scaling
    from torchcoll.core.units import parse_size
    from torchcoll.importers.registry import read_all
    from torchcoll.report.found import FORMATS, tell_beside
    from torchcoll.report.scaling import show_scaling
    from torchcoll.report.view import choice

    choice(options.format, "format", FORMATS)
    sizes = [parse_size(text, "sizes") for text in (options.sizes or "").split(",") if text]
    link = _number(options.link_gbps)
    found = scaling(
        options.files,
        sizes=sizes,
        link_gbps=link,
        reader=read_all,
    )
    show_scaling([found], options.format)
    tell_beside(found, options.format)
    return ExitCode.OK


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise UsageError("link-gbps", text, "a number of GB/s above 0") from None
