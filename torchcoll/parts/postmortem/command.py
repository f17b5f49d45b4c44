"""``torchcoll postmortem``: what ended a job, or stopped it, from the files that it left?"""

from __future__ import annotations

import argparse
import os

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, choice, unknown
from torchcoll.core.stdin import from_stdin


def postmortem_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "folder",
        metavar="FOLDER",
        help="a folder with what a job left: Flight Recorder dumps, logs of ranks, launcher and "
        "kernel, py-spy dumps, captures; or one such file",
    )
    add("--job", metavar="NAME", help="report only this one of several jobs in the folder")
    add(
        "--format",
        default="table",
        help="table (default), markdown, json, or line: one line for a pager",
    )


def run_postmortem(options: argparse.Namespace) -> ExitCode:
    """Exit code 0 whatever happened to the job, 3 if no file says anything about it, or if a file
    that may say something could not be read.
    """
    from torchcoll.parts.postmortem.diagnose import diagnose
    from torchcoll.parts.postmortem.job_folder import read_folder
    from torchcoll.parts.postmortem.show import FORMATS, NO_NAME, show_postmortem

    choice(options.format, "format", FORMATS)
    folder = read_folder(os.fspath(from_stdin(options.folder)))
    jobs = folder.jobs
    if options.job is not None:
        names = {id(job): job.name or NO_NAME for job in folder.jobs}
        jobs = [job for job in folder.jobs if options.job in (names[id(job)], *job.identities)]
        if not jobs:
            raise unknown("job", options.job, list(names.values()))
    show_postmortem(folder, [diagnose(job) for job in jobs], options.format)
    return ExitCode.UNREADABLE if folder.unread else ExitCode.OK


COMMANDS = {
    "postmortem": SubCommand(
        postmortem_arguments,
        run_postmortem,
        examples=(
            "torchcoll postmortem job-4711/",
            "torchcoll postmortem job-4711/ --format json",
        ),
    ),
}
