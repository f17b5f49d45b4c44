"""``torchcoll pairs``: what a result file of torchcoll.pairs says."""

from __future__ import annotations

import argparse

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode
from torchcoll.core.units import parse_share
from torchcoll.reading.inputs import add_filter


def pairs_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="result file of torchrun ... -m torchcoll.pairs")
    add(
        "--threshold",
        metavar="SHARE",
        help="how much slower than the others a suspect pair must be, besides being an outlier "
        "(default: that of the run)",
    )
    add_filter(parser)
    add("--format", default="table", help="table (default), markdown, csv or json")


def run_pairs(options: argparse.Namespace) -> ExitCode:
    """Print the pairs of a file; exit code 1 for a suspect or a failed case, as in the run."""
    from torchcoll.core.file import uncollected
    from torchcoll.questions.pairs.show import show_pairs
    from torchcoll.reading.inputs import load_one
    from torchcoll.stats.filters import keep_cases

    threshold = None
    if options.threshold is not None:
        threshold = parse_share(options.threshold, "threshold")
    with uncollected():
        (run,) = keep_cases([load_one(options.file)], options.filter)
        suspect = show_pairs(run, options.format, threshold)
    bad = suspect or not all(result.expected for result in run.results)
    return ExitCode.FAILED if bad else ExitCode.OK


COMMANDS = {
    "pairs": SubCommand(
        pairs_arguments,
        run_pairs,
        examples=("torchcoll pairs pairs.jsonl",),
        exit_1="a rank, host or link is suspect, or a pair has no time",
    ),
}
