"""``torchcoll doctor``: what this process can use, known traps, and a proof of the claims."""

from __future__ import annotations

import argparse
import signal

from torchcoll.core.errors import ExitCode, UsageError


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
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


def run_doctor(options: argparse.Namespace) -> int:
    if options.prove is not None:
        return _prove(options)
    for name in ("backend", "device", "ranks", "launcher", "output"):
        if value := getattr(options, name):
            raise UsageError(name, value, "--prove with it")
    from torchcoll.machine.doctor import examine
    from torchcoll.machine.show import show_doctor

    report = examine()
    if report is None:  # under a launcher only rank 0 reports
        return ExitCode.OK
    show_doctor(report, options.json)
    return ExitCode.OK if report["usable"] else ExitCode.UNAVAILABLE


def _prove(options: argparse.Namespace) -> int:
    from torchcoll.parts.proof.part_result import FAILED
    from torchcoll.parts.proof.prove import prove
    from torchcoll.parts.proof.show import show_report

    report = prove(options)
    show_report(report, "json" if options.json else "table")
    if report.status == "interrupted":
        return 128 + signal.SIGINT
    failed = any(part.status == FAILED for part in report.parts)
    return ExitCode.FAILED if failed else ExitCode.OK


COMMANDS = {
    "doctor": (
        "show what this process can use, known problems, and prove what torchcoll claims",
        doctor_arguments,
        run_doctor,
    ),
}
