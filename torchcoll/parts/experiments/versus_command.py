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
from torchcoll.core.units import counted, parse_duration, parse_share

if TYPE_CHECKING:
    from torchcoll.parts.experiments.versus import Versus
    from torchcoll.parts.experiments.versus_plan import Asked


def versus_arguments(parser: argparse.ArgumentParser) -> None:
    from torchcoll.parts.experiments.matrix_command import add_load

    add = parser.add_argument
    parser.usage = (
        "torchcoll versus --env NAME=A,B [options] -- LAUNCHER ... -m torchcoll.allreduce ...\n"
        "       torchcoll versus [options] --a LAUNCHER ... --b LAUNCHER ..."
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME=A,B",
        help=(
            "a variable and its values; an empty value leaves it unset; write \\, "
            "for a comma in a value. The first value is the base"
        ),
    )
    add(
        "--axis",
        action="append",
        default=[],
        metavar="name=A,B",
        help=(
            "values of {name} in the command; or library=PATH,... (set in LD_PRELOAD), "
            "venv=DIR,... (first in PATH)"
        ),
    )
    add("--backend", metavar="A,B", help="compare backends, each in runs of its own")
    add(
        "--implementation",
        metavar="A,B",
        help=(
            "compare implementations, each in runs of its own, such as "
            "nccl,one_shot,two_shot (kernels of torch's symmetric memory)"
        ),
    )
    add_load(parser)
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
        "--budget",
        metavar="TIME",
        help="begin no round that would end after this time: 90s, 10m, 2h",
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
    add("--cell-timeout", metavar="S", help="end a run after this many seconds (default: no limit)")
    add("--format", default="table", help="table (default), markdown, csv or json")
    add("--dry-run", action="store_true", help="print the runs of one round and start nothing")
    add("--quiet", action="store_true", help="print no progress, only the result")
    add("--a", nargs=argparse.REMAINDER, help="compare two whole commands: --a COMMAND --b COMMAND")
    add(
        "words",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the command of one run, for both sides",
    )


def run_versus(options: argparse.Namespace) -> ExitCode | int:
    from torchcoll.parts.experiments.matrix_command import (
        MostRuns,
        dry_run,
        estimated_s,
        number_of,
        tell_notes,
    )
    from torchcoll.parts.experiments.versus import Versus
    from torchcoll.parts.experiments.versus_plan import Sides, asked_of
    from torchcoll.parts.experiments.versus_show import show_versus
    from torchcoll.report.formats import FORMATS
    from torchcoll.stats.sequential import FIRST_LOOK

    choice(options.format, "format", FORMATS)
    budget_s = None if options.budget is None else parse_duration(options.budget, "budget")
    timeout_s = number_of("cell-timeout", options.cell_timeout, float, 0.1)
    argv = options.words[1:] if options.words[:1] == ["--"] else options.words
    asked = asked_of(
        Sides(
            argv,
            options.env,
            options.axis,
            options.backend,
            options.implementation,
            options.load,
            options.a,
        ),
        options.output,
        options.resume,
        None if options.threshold is None else parse_share(options.threshold, "threshold"),
        number_of("runs", options.runs, int, FIRST_LOOK),
    )
    state = Versus(asked.plan, asked.folder, asked.threshold, asked.most, asked.same_most)
    missing = state.next(lambda job: job.key in asked.there)
    if options.dry_run:
        a_round = dataclasses.replace(asked.plan, runs=1)
        notes = [*asked.notes]
        run_s = asked.run_s or (estimated_s(a_round)[0] or 0.0) / len(a_round.cells)
        if budget_s is not None and (text := state.short_of(budget_s, run_s)):
            notes.append(text)
        tell_notes(asked.plan, notes)
        runs = len(a_round.cells)
        text = f"{asked.most} rounds of {counted(runs, 'run')}"
        most = MostRuns(asked.most * runs, text, "every case is decided")
        return dry_run(a_round, asked.folder, most=most)
    number = None
    if missing is not None:
        tell_notes(asked.plan, asked.notes)
        number = _launched(state, asked, budget_s, timeout_s, options.quiet)
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


def _launched(
    state: Versus, asked: Asked, budget_s: float | None, timeout_s: float | None, quiet: bool
) -> int | None:
    """What is missing, with a live line; the number of the signal that stopped it, else None."""
    from torchcoll.machine.environment import variables
    from torchcoll.parts.experiments.folder import Folder
    from torchcoll.parts.experiments.run import run
    from torchcoll.parts.experiments.versus_show import Live

    with Folder(asked.folder, asked.spec) as folder:
        live = Live(state, str(asked.folder), quiet)
        try:
            jobs = state.jobs(folder, budget_s, run_s=asked.run_s)
            return run(asked.plan, folder, variables, live, timeout_s, jobs)
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
    from torchcoll.questions.comparison.arguments import as_sides
    from torchcoll.questions.comparison.command import OTHERWISE, checked, gated
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
    return gated(gate, comparisons)


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
            "what is compared": "--env --axis --backend --implementation --load --a",
            "when it ends": "--threshold --runs --budget --cell-timeout",
            "output": "--output --resume --format --quiet --dry-run",
        },
    ),
}
