"""``torchcoll transitions``: where the behaviour changes with size."""

from __future__ import annotations

import argparse

from torchcoll.core.errors import ExitCode, UsageError, choice, tell

# -------------------------------------------------------------------------------------------------
# ``torchcoll scaling``: time, bandwidth and first calls against the number of ranks.


def scaling_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="result files or folders; each is a launch")
    add("--sizes", metavar="LIST", help="such as 1K,1M; default: a small, a middle, a large one")
    add("--link-gbps", metavar="N", help="the limit of busbw in GB/s: adds the share of it")
    add("--format", default="table", help="table, markdown, csv or json")


def run_scaling(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.units import parse_size
    from torchcoll.curves.scaling import scaling
    from torchcoll.curves.show import show_scaling
    from torchcoll.report.formats import FORMATS, print_notes

    choice(options.format, "format", FORMATS)
    sizes = [parse_size(text, "sizes") for text in (options.sizes or "").split(",") if text]
    link = _number(options.link_gbps)
    found = scaling(options.files, sizes=sizes, link_gbps=link)
    show_scaling([found], options.format)
    print_notes(found, options.format)
    return ExitCode.OK


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise UsageError("link-gbps", text, "a number of GB/s above 0") from None


# -------------------------------------------------------------------------------------------------


def transitions_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="result files or folders; launches are pooled")
    add("--over-ranks", default="max", metavar="HOW", help="max (the default), mean, min or rank0")
    add("--refine", action="store_true", help="print the sizes that would narrow each transition")
    add("--format", default="table", help="table, markdown, csv or json")
    add("--plot", metavar="FILE", help="a picture too: laws and transitions (.png, .svg, .pdf)")
    add("--force", action="store_true", help="replace the picture")


def run_transitions(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.summary import OVER_RANKS
    from torchcoll.curves.show import show_transitions
    from torchcoll.curves.transitions import transitions
    from torchcoll.report.formats import FORMATS, print_notes
    from torchcoll.report.pictures import check_path
    from torchcoll.runs.plot import plot

    choice(options.format, "format", FORMATS)
    choice(options.over_ranks, "over-ranks", OVER_RANKS)
    if options.plot:
        check_path(options.plot, options.force)
    found = transitions(options.files, over_ranks=options.over_ranks)
    show_transitions([found], options.format, refine=options.refine)
    print_notes(found, options.format)
    if options.plot:
        plot(found, options.plot)
        tell(f"torchcoll: picture: {options.plot}")
    return ExitCode.OK


COMMANDS = {
    "transitions": (
        "where the behaviour changes with size: ranges and transitions",
        transitions_arguments,
        run_transitions,
    ),
    "scaling": (
        "time and first call against the number of ranks, and how they grow",
        scaling_arguments,
        run_scaling,
    ),
}
