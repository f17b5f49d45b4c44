"""``torchcoll pairs``: what a result file of torchcoll.pairs says."""

from __future__ import annotations

import argparse

from torchcoll.core.errors import ExitCode, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="result file of torchrun ... -m torchcoll.pairs")
    add(
        "--threshold",
        help="slower than the others by this share, and an outlier, is suspect (that of the run)",
    )
    add("--format", default="table", help="table, markdown, csv or json")


def run(options: argparse.Namespace) -> ExitCode:
    """Exit code 1 where a suspect stands or a case failed, as when it was measured."""
    from torchcoll.core.records import load, uncollected
    from torchcoll.report.pairs import show_pairs

    threshold = None
    if options.threshold is not None:
        try:
            threshold = float(options.threshold)
        except ValueError:
            threshold = -1.0
    if threshold is not None and not 0 < threshold < 1:
        expected = "a share between 0 and 1"
        raise UsageError("threshold", options.threshold, expected, "20 % is 0.2.")
    with uncollected():
        run = load(options.file)
        suspect = show_pairs(run, options.format, threshold)
    bad = suspect or not all(result.expected for result in run.results)
    return ExitCode.FAILED if bad else ExitCode.OK
