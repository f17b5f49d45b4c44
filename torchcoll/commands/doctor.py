"""``torchcoll doctor``: what this process can use, and known traps."""

from __future__ import annotations

import argparse

from torchcoll.core.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one object with stable names")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.bench.doctor.examine import examine
    from torchcoll.report.doctor import show_doctor

    report = examine()
    if report is None:  # under a launcher rank 0 speaks
        return ExitCode.OK
    show_doctor(report, options.json)
    return ExitCode.OK if report["usable"] else ExitCode.UNAVAILABLE
