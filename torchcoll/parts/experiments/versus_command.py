"""``torchcoll versus``, and ``torchcoll compare`` of the folder of one."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, UsageError, choice, tell
from torchcoll.core.units import counted, parse_share

if TYPE_CHECKING:
    from torchcoll.parts.experiments.versus import Versus
    from torchcoll.parts.experiments.versus_plan import Asked


def versus_arguments(parser: argparse.ArgumentParser) -> None:
    from torchcoll.parts.experiments.matrix_command import add_command, add_varied

    add = parser.add_argument
    parser.usage = (
        "torchcoll versus --env NAME=A,B [options] -- LAUNCHER ... -m torchcoll.allreduce ..."
    )
    add_varied(parser, ". The first value is the base")
    add("--threshold", metavar="SHARE", help="changes smaller than this are 'same' (default 2%%)")
    add(
        "--runs",
        metavar="N",
        help=(
            "end after this many runs of each side (default 30, at least 3); it "
            "ends earlier when every case is decided, or when more runs would not "
            "help"
        ),
    )
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="folder for everything; the same folder again continues",
    )
    add(
        "--resume",
        metavar="DIR",
        help="continue in this folder, with the command it was started with",
    )
    add("--format", default="table", help="table (default), markdown, csv or json")
    add("--dry-run", action="store_true", help="print the runs of one round and start nothing")
    add_command(parser)


def run_versus(options: argparse.Namespace) -> ExitCode | int:
    from torchcoll.parts.experiments.matrix_command import dry_run, parse_number, print_notes
    from torchcoll.parts.experiments.versus import Versus
    from torchcoll.parts.experiments.versus_plan import Sides, asked_of
    from torchcoll.parts.experiments.versus_show import show_versus
    from torchcoll.report.formats import FORMATS
    from torchcoll.stats.sequential import FIRST_LOOK

    choice(options.format, "format", FORMATS)
    timeout_s = parse_number("cell-timeout", options.cell_timeout, float, 0.1)
    asked = asked_of(
        Sides(options.argv, options.env, options.axis),
        options.output,
        options.resume,
        None if options.threshold is None else parse_share(options.threshold, "threshold"),
        parse_number("runs", options.runs, int, FIRST_LOOK),
    )
    if options.dry_run:
        print_notes(asked.plan, asked.notes)
        runs = counted(len(asked.plan.cells), "run")
        text = f"{asked.most} rounds of {runs}, until every case is decided"
        return dry_run(dataclasses.replace(asked.plan, runs=1), asked.folder, most=text)
    state = Versus(asked.plan, asked.folder, asked.threshold, asked.most, asked.same_most)
    missing = state.next(lambda job: job.key in asked.there)
    number = None
    if missing is not None:
        asked.plan.check_programs(os.environ)
        print_notes(asked.plan, asked.notes)
        number = _launched(state, asked, timeout_s, options.quiet)
    ended = state.stopped
    if number:
        name = signal.Signals(number).name
        ended = f"interrupted by {name}; torchcoll versus --resume {asked.folder} goes on"
    comparisons = state.comparisons()
    if comparisons:
        show_versus(state, comparisons, str(asked.folder), ended, options.format)
    else:
        go_on = (
            "" if number or state.failed else f". torchcoll versus --resume {asked.folder} goes on"
        )
        before = "" if state.failed else f" before {FIRST_LOOK} runs a side"
        tell(f"torchcoll: nothing is judged{before}: {ended}{go_on}")
    if number:
        return 128 + number
    sides = (side for comparison in comparisons for side in comparison.faults)
    faulty = any(side.level == "bad" for side in sides)
    return ExitCode.FAILED if state.failed or faulty or not comparisons else ExitCode.OK


def _launched(state: Versus, asked: Asked, timeout_s: float | None, quiet: bool) -> int | None:
    """What is missing, with a live line; the number of the signal that stopped it, else None."""
    from torchcoll.machine.environment import variables
    from torchcoll.parts.experiments.folder import Folder
    from torchcoll.parts.experiments.run import run
    from torchcoll.parts.experiments.versus_show import Live

    with Folder(asked.folder, asked.spec) as folder:
        live = Live(state, folder, quiet)
        try:
            return run(asked.plan, folder, variables, live, timeout_s, state.jobs(folder))
        finally:
            live.close()


def compare_folder(options: argparse.Namespace) -> ExitCode | None:
    """Of the one folder that has both sides: as versus judged them, which looked at every round;
    None where the sides are others.

    Raises UsageError where it has not yet, and for options that would make other figures of it.
    """
    if len(options.sides) != 1 or not os.path.isdir(options.sides[0]):
        return None
    from torchcoll.parts.experiments.versus import read
    from torchcoll.parts.experiments.versus_show import show_versus
    from torchcoll.questions.comparison.command import OTHERWISE, as_sides, checked, gated
    from torchcoll.stats.sequential import FIRST_LOOK

    gate, _ = checked(options)
    (folder,) = options.sides
    state = read(Path(folder))
    if state is None:
        return None
    given = [name for name, unasked in OTHERWISE.items() if getattr(options, name) != unasked]
    if given:
        raise UsageError(
            given[0].replace("_", "-"),
            f"{getattr(options, given[0])} with the folder of a versus",
            "its two sides by name, to be taken as they are",
            f"Such as: torchcoll compare {as_sides(folder, state.cells)}.",
        )
    comparisons = state.comparisons()
    if not comparisons:
        raise UsageError(
            "compare",
            f"{folder}, without {FIRST_LOOK} runs of each side",
            "the folder of a versus that has judged",
            f"torchcoll versus --resume {shlex.quote(folder)} goes on.",
        )
    show_versus(state, comparisons, folder, state.stopped, options.format)
    return gated(gate, comparisons, options)


COMMANDS = {
    "versus": SubCommand(
        versus_arguments,
        run_versus,
        examples=(
            (
                "torchcoll versus --env NCCL_ALGO=Ring,Tree -o algo -- torchrun --nproc-per-node "
                "8 -m torchcoll.allreduce --sizes 1M,64M"
            ),
            "torchcoll versus --resume algo",
        ),
        exit_1="a run failed twice in a row, a result was wrong or failed, or too few runs to "
        "judge",
        option_groups={
            "what is compared": "--env --axis",
            "when it ends": "--threshold --runs --cell-timeout",
            "output": "--output --resume --format --quiet --dry-run",
        },
    ),
}
