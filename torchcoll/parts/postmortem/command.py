"""``torchcoll postmortem``: what ended a job, or stopped it, from the files that it left?"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, choice
from torchcoll.core.opening import from_stdin


def postmortem_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "folder",
        metavar="FOLDER",
        help="a folder with what a job left: Flight Recorder dumps, logs of ranks, launcher and "
        "kernel, py-spy dumps, captures; or one such file",
    )
    add(
        "--live",
        action="store_true",
        help="first collect what the ranks of this host show now into FOLDER: stacks (py-spy), "
        "rings of a capture, Flight Recorder dumps, stderr, NCCL's RAS, dmesg. Nothing is killed",
    )
    add(
        "--format",
        default="table",
        help="table (default), markdown, json, or line: one line for a pager",
    )


def run_postmortem(options: argparse.Namespace) -> ExitCode:
    """Exit code 0 whatever happened to the job, 3 if no file says anything about it, or if a file
    that may say something could not be read.
    """
    from torchcoll.parts.postmortem.show import FORMATS, postmortem, show_postmortem
    from torchcoll.report.destination import ProgressLine

    choice(options.format, "format", FORMATS)
    if options.live:
        from torchcoll.parts.postmortem.live_ranks import collect

        collect(Path(options.folder))
    progress = ProgressLine(sys.stderr, shutil.get_terminal_size().columns)
    try:
        result = postmortem(os.fspath(from_stdin(options.folder)), progress.show)
    finally:
        progress.clear()
    show_postmortem(result, options.format)
    return ExitCode.UNREADABLE if result.folder.unread else ExitCode.OK


COMMANDS = {
    "postmortem": SubCommand(
        postmortem_arguments,
        run_postmortem,
        examples=(
            "torchcoll postmortem job-4711/",
            "torchcoll postmortem job-4711/ --format json",
            "torchcoll postmortem --live hanging-job/",
        ),
    ),
}
