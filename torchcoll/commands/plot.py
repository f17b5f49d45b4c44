"""``torchcoll plot``: time and bus bandwidth over sizes, as a picture."""

from __future__ import annotations

import argparse
import os
from collections.abc import Container

from torchcoll.core.errors import ExitCode, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sides",
        nargs="+",
        metavar="SIDE",
        help="a file, a folder, a quoted glob, or label=PATH; those of one label are its launches",
    )
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="a .png, .svg or .pdf (default: torchcoll.png, or torchcoll-2.png, ...)",
    )
    add("--force", action="store_true", help="replace the picture")
    add("--over-ranks", default="max", metavar="HOW", help="max (the default), mean, min or rank0")
    add("--filter", default="", metavar="TEXT", help="such as collective=all_reduce,size>=1M")
    add("--fabric", metavar="NAME", help="draw its limits: nvswitch-h200, ib-ndr:8, ...")
    add("--rules", metavar="FILE", action="append", default=[], help="fabrics of your own (TOML)")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.analysis.files import expanded
    from torchcoll.importers.registry import read_all, with_results
    from torchcoll.report.files import free_name
    from torchcoll.report.pictures import check_path
    from torchcoll.report.plot import plot

    path = options.output or ("torchcoll.png" if options.force else free_name("torchcoll.png"))
    check_path(path, options.force)
    named: dict[str, list[str]] = {}
    for argument in with_results(options.sides):
        label, found, file = argument.partition("=")
        if os.path.exists(argument) or not (found and label and file):
            label, file = _name(argument, named), argument
        named.setdefault(label, []).append(file)
    sides = {
        name: read_all(file for path in paths for file in expanded(path))
        for name, paths in named.items()
    }
    choices = {name: getattr(options, name) for name in ("over_ranks", "filter", "fabric", "rules")}
    plot(sides, path, **choices)
    print(printable(f"picture: {path}"))
    return ExitCode.OK


def _name(path: str, taken: Container[str]) -> str:
    """The name of the file; of its folder too where that is taken."""
    whole = os.path.abspath(path)
    last = os.path.basename(whole).removesuffix(".gz")
    stem = last.rpartition(".")[0] or last
    longer = os.path.join(os.path.basename(os.path.dirname(whole)), stem)
    return next((name for name in (stem, longer) if name not in taken), path)
