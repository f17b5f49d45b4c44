"""``torchcoll doctor``: what this process can use, and known traps."""

from __future__ import annotations

import argparse

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_doctor(options: argparse.Namespace) -> int:
    from torchcoll.machine.doctor import examine
    from torchcoll.machine.show import show_doctor

    report = examine()
    if report is None:  # under a launcher only rank 0 reports
        return ExitCode.OK
    show_doctor(report, options.json)
    return ExitCode.OK if report["usable"] else ExitCode.UNAVAILABLE


COMMANDS = {
    "doctor": SubCommand(
        doctor_arguments,
        run_doctor,
        examples=(
            "torchcoll doctor",
            "torchcoll doctor --prove",
            "torchcoll doctor --prove clock,verification --backend nccl -o proof/",
        ),
        exit_1="with --prove: a part failed",
    )
}
