"""``torchcoll check``: is a run as good as its machine allows? ``torchcoll limits``: what its links
allow, from NCCL's topology and graph files.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from torchcoll.core.errors import ExitCode, UsageError, choice, tell
from torchcoll.core.units import counted
from torchcoll.inputs import add_told

if TYPE_CHECKING:
    from torchcoll.verdict.shares import Machine


def check_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="result files, folders, quoted globs, output of other tools, label=PATH; - is stdin",
    )
    add_told(parser)
    add(
        "--fabric",
        metavar="NAME",
        help="what the run is measured by: nvswitch-h200, ib-ndr:8, ... (default: the fabric that "
        "the run is known to be of)",
    )
    add("--rules", metavar="FILE", action="append", default=[], help="fabrics of your own (TOML)")
    add("--against", metavar="FILE", help="a run to be measured by, in place of a fabric")
    add("--format", default="table", help="table, markdown or json")
    add(
        "--gate",
        action="store_true",
        help="exit 1 where a verdict is FAIL, 2 where nothing can be judged",
    )
    add("--junit", metavar="FILE", help="the verdict and the cases as JUnit XML")
    add("--health", metavar="FILE", help="the verdict as a health event for schedulers (JSON)")
    add("--force", action="store_true", help="replace the files of --junit and --health")


def run_check(options: argparse.Namespace) -> ExitCode:
    from torchcoll.inputs import expanded, load_all, sources_of
    from torchcoll.report.destination import check_new, write_file
    from torchcoll.verdict.check_show import FORMATS, show_verdicts
    from torchcoll.verdict.judging import health_text, judge, junit_text
    from torchcoll.verdict.limits import FAIL

    choice(options.format, "format", FORMATS)
    for what in ("junit", "health"):
        if path := getattr(options, what):
            check_new(path, what, options.force)
    against = None
    if options.against:
        baselines = load_all([options.against])
        if len(baselines) != 1:
            got = f"{len(baselines)} runs in {options.against}"
            raise UsageError("against", got, "a file of one run")
        against = baselines[0]
    sources = sources_of(options.files, options.collective, options.ranks)
    runs = load_all(file for source in sources for file in expanded(source))
    verdicts = [judge(run, options.fabric, options.rules, against) for run in runs]
    show_verdicts(runs, verdicts, options.format)
    for what, path, text_of in (
        ("junit", options.junit, junit_text),
        ("health", options.health, health_text),
    ):
        if path:
            write_file(path, text_of(runs, verdicts), what, options.force)
    if not options.gate:
        return ExitCode.OK
    unjudged = sum(not verdict.judged for verdict in verdicts)
    refusal = UsageError(
        "gate",
        f"{unjudged} of {counted(len(runs), 'run')} without a reference",
        "runs that can be judged",
        "State what they are measured by: --fabric, --rules FILE or --against RUN.",
    )
    if any(verdict.word == FAIL for verdict in verdicts):
        if unjudged:
            tell(f"torchcoll: warning: {refusal}")
        return ExitCode.FAILED
    if unjudged:
        raise refusal
    return ExitCode.OK


def limits_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="FILE",
        help="what NCCL writes to NCCL_TOPO_DUMP_FILE, for several hosts one of each; and to "
        "NCCL_GRAPH_DUMP_FILE, for what its search expects; without: of this machine, whose NCCL "
        "is made to write both for all GPUs that it sees",
    )
    add("--format", default="table", help="table, markdown, csv or json")


def run_limits(options: argparse.Namespace) -> ExitCode:
    from torchcoll.report.formats import FORMATS
    from torchcoll.verdict.shares import read_machine
    from torchcoll.verdict.show import show_limits

    choice(options.format, "format", FORMATS)
    show_limits(read_machine(options.files) if options.files else _of_this(), options.format)
    return ExitCode.OK


def _of_this() -> Machine:
    import os
    import tempfile
    from pathlib import Path

    from torchcoll.machine.topology_dump import dump_topology
    from torchcoll.verdict.shares import read_machine

    with tempfile.TemporaryDirectory() as folder:
        found = read_machine(dump_topology(Path(folder)))
    found.hosts = [dataclasses.replace(one, file=os.uname().nodename) for one in found.hosts]
    return found


COMMANDS = {
    "check": (
        "is a run as good as its machine allows? by a fabric, your own rules or another run",
        check_arguments,
        run_check,
    ),
    "limits": (
        "what the links of a machine allow each algorithm, from NCCL's topology files",
        limits_arguments,
        run_limits,
    ),
}
