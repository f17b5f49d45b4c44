"""``torchcoll doctor --prove``: do the claims of torchcoll hold here?"""

from __future__ import annotations

import argparse
import signal

from torchcoll.core.errors import ExitCode, UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--prove",
        nargs="?",
        const="all",
        metavar="PARTS",
        help="start ranks and prove, in at most 20 minutes, that verification sees errors, that "
        "times are those of bare loops, that forced algorithms run, that captures are complete and "
        "that a lost rank is named; or only these parts, with commas",
    )
    add("--backend", default="", help="with --prove; default: what the machine has")
    add("--device", default="", help="with --prove: cpu, cuda or xpu; default: the backend's")
    add(
        "--ranks",
        type=int,
        metavar="N",
        help="with --prove; default: a rank for each device, 2 on a CPU",
    )
    add(
        "--launcher",
        metavar="COMMAND",
        help="with --prove: what starts the ranks, such as 'srun --ntasks 16 python -m'",
    )
    add("-o", "--output", metavar="FOLDER", help="with --prove: keeps the files that show it")


def run_proof(options: argparse.Namespace) -> int | None:
    """The exit code of a proof; None without ``--prove``."""
    if options.prove is None:
        for name in ("backend", "device", "ranks", "launcher", "output"):
            if value := getattr(options, name):
                raise UsageError(name, value, "--prove with it")
        return None
    from torchcoll.parts.proof.judge import FAILED, NOT_RUN
    from torchcoll.parts.proof.prove import prove
    from torchcoll.parts.proof.show import show_report

    report = prove(options)
    show_report(report, "json" if options.json else "table")
    statuses = {part.status for part in report.parts}
    if NOT_RUN in statuses:
        return 128 + signal.SIGINT
    return ExitCode.FAILED if FAILED in statuses else ExitCode.OK
