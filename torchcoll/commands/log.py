"""``torchcoll log``: what NCCL, RCCL and oneCCL say of themselves."""

from __future__ import annotations

import argparse
import sys

from torchcoll.core.errors import ExitCode, UnreadableError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="logs of NCCL, RCCL or oneCCL, also .gz; a folder is all of its files; several "
        "processes and jobs may be in one file, or a job in several",
    )
    add("--format", default="table", help="table, markdown, csv or json")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.analysis.log import file_rows, job_log
    from torchcoll.libraries.logs import files_of, jobs_of, read_log
    from torchcoll.report.log import FORMATS, show_logs
    from torchcoll.report.output import one_line
    from torchcoll.report.view import choice

    choice(options.format, "format", FORMATS)
    readers, code = [], ExitCode.OK
    for path in files_of(options.files):
        try:
            reader, problems = read_log(path)
        except UnreadableError as error:  # the others are worth reading
            print(error.line(), file=sys.stderr)
            code = ExitCode.UNREADABLE
            continue
        readers.append(reader)
        for problem in problems:
            print(f"torchcoll: warning: {one_line(problem)}", file=sys.stderr)
    if readers:
        jobs = [job_log(job) for job in jobs_of(readers)]
        show_logs(jobs, file_rows(readers), options.format)
    return code
