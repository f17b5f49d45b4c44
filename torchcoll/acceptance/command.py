"""``torchcoll acceptance``: what the acceptance kit proved on another machine."""

from __future__ import annotations

import argparse

from torchcoll.core.errors import ExitCode, choice


def acceptance_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="the archive that launch/acceptance.sh has written (.tar.gz)")
    add("--format", default="table", help="table (default), markdown or json")


def run_acceptance(options: argparse.Namespace) -> ExitCode:
    """Exit code 1 if a part failed, 3 for what is no such archive."""
    from torchcoll.acceptance.archive import read_archive
    from torchcoll.acceptance.part_result import FAILED
    from torchcoll.acceptance.show import FORMATS, show_report

    choice(options.format, "format", FORMATS)
    archive = read_archive(options.file)
    show_report(archive.report, options.format, archive=archive)
    failed = any(part.status == FAILED for part in archive.report.parts)
    return ExitCode.FAILED if failed else ExitCode.OK


COMMANDS = {
    "acceptance": (
        "read what the acceptance kit proved on a machine",
        acceptance_arguments,
        run_acceptance,
    ),
}
