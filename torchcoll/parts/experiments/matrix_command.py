"""``torchcoll matrix``: many runs, one for each cell, in blocks."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, UsageError, one_line, printable, tell
from torchcoll.core.units import counted, shorten
from torchcoll.report.destination import Destination
from torchcoll.report.grid import Grid, Head, print_grid

if TYPE_CHECKING:
    from pathlib import Path

    from torchcoll.parts.experiments.axes import Cell
    from torchcoll.parts.experiments.blocks import PlannedRun, RunPlan
    from torchcoll.parts.experiments.folder import Folder


def show_summary(
    rows: Sequence[Mapping[str, Any]], below: Sequence[str] = (), file: TextIO | None = None
) -> None:
    """Print the rows of ``run.summary``, and lines below them. Columns of a status that no run has
    are left out; reasons stand below, each once.
    """
    statuses = [n for n in ("failed", "timeout", "unavailable") if any(row[n] for row in rows)]
    heads = [Head("cell", left=True), Head("ok", "runs")]
    heads += [Head(name) for name in statuses]
    heads.append(Head("median", "run"))
    cells = [
        [
            one_line(row["cell"]),
            f"{row['ok']} of {row['runs']}",
            *(str(row[name] or "-") for name in statuses),
            "-" if row["seconds"] is None else f"{row['seconds']:.1f} s",
        ]
        for row in rows
    ]
    styles = ["red" if row["failed"] or row["timeout"] else "" for row in rows]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            reasons.setdefault(one_line(row["reason"]), []).append(one_line(row["cell"]))
    lines = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    out = Destination(file)
    print_grid(Grid(heads, cells, below=[*lines, *below], styles=styles), out)
    out.flush()


def matrix_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.usage = "torchcoll matrix -o DIR [options] -- LAUNCHER ... -m torchcoll.allreduce ..."
    add_varied(parser)
    add(
        "--preset",
        action="append",
        default=[],
        metavar="NAME",
        help="nccl-algorithms or oneccl-algorithms",
    )
    add(
        "--runs",
        default="6",
        metavar="N",
        help="number of runs of each cell (default %(default)s)",
    )
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="folder for everything; the same folder again runs what is missing",
    )
    add(
        "--nccl-version",
        metavar="V",
        help="NCCL version for the preset nccl-algorithms (default: this Python's)",
    )
    add(
        "--dry-run",
        action="store_true",
        help="say how many runs there are, print the command of the first, and start nothing",
    )
    add("--verbose", action="store_true", help="with --dry-run: print the commands of all runs")
    add_command(parser)


def add_varied(parser: argparse.ArgumentParser, order: str = "") -> None:
    """Add the options that say what differs between cells.

    order: what the order of the values means, for the help.
    """
    add = parser.add_argument
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME=V1,V2",
        help=(
            "a variable and its values; an empty value leaves it unset; write \\, "
            f"for a comma in a value{order}"
        ),
    )
    add(
        "--axis",
        action="append",
        default=[],
        metavar="name=V1,V2",
        help=(
            "values of {name} in the command; or library=PATH,... (set in LD_PRELOAD), "
            f"venv=DIR,... (first in PATH){order}"
        ),
    )


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options for each run, and the command of a run."""
    add = parser.add_argument
    add("--cell-timeout", metavar="S", help="end a run after this many seconds (default: no limit)")
    add("--quiet", action="store_true", help="print no progress, only the result")
    add("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command of one run")


def parse_number(what: str, text: str | None, kind: type, least: float) -> Any:
    """The value of an option; None without one. Raises UsageError for anything but a number."""
    if text is None:
        return None
    expected = f"{'a whole' if kind is int else 'a'} number from {least:g} on"
    try:
        number = kind(text)
    except ValueError:
        raise UsageError(what, text, expected) from None
    if not least <= number < 1e9:
        raise UsageError(what, text, expected)
    return number


def run_matrix(options: argparse.Namespace) -> ExitCode | int:
    from pathlib import Path

    from torchcoll.parts.experiments.blocks import make_plan

    if not (options.output or options.dry_run):
        raise UsageError("output", "none", "a folder for the results", "Name one with -o DIR.")
    timeout_s = parse_number("cell-timeout", options.cell_timeout, float, 0.1)
    plan, notes = make_plan(
        options.argv,
        options.env,
        options.axis,
        options.preset,
        parse_number("runs", options.runs, int, 1),
        options.nccl_version,
    )
    if not options.dry_run:  # the commands of a cluster can be printed on any machine
        plan.check_programs(os.environ)
    print_notes(plan, notes)
    folder_path = Path(options.output or "DIR")
    if options.dry_run:
        return dry_run(plan, folder_path, every=options.verbose)
    return launch(plan, folder_path, options.quiet, timeout_s)


def print_notes(plan: RunPlan, notes: Sequence[str]) -> None:
    """Print the notes of a plan, and which variables of its cells cannot be verified."""
    from torchcoll.machine.environment import variables
    from torchcoll.parts.experiments.obeyed import unverified

    unchecked = [
        f"{name}: result files do not keep it, so whether it reaches the ranks is not checked"
        for name in dict.fromkeys(n for cell in plan.cells for n in unverified(cell, variables))
    ]
    for note in [*notes, *unchecked]:
        tell(f"torchcoll: note: {note}")


def launch(
    plan: RunPlan,
    path: Path,
    quiet: bool = False,
    timeout_s: float | None = None,
    table: bool = True,
) -> ExitCode | int:
    """Run what the folder lacks, print the table of cells, and return the exit code."""
    from torchcoll.machine.environment import variables
    from torchcoll.parts.experiments.folder import Folder
    from torchcoll.parts.experiments.run import run as run_plan
    from torchcoll.parts.experiments.run import summary

    with Folder(path, plan.to_json()) as folder:
        watcher = RunWatcher(plan, folder, quiet)
        try:
            signal_number = run_plan(plan, folder, variables, watcher, timeout_s)
        finally:
            watcher.close()
        rows = summary(plan, folder)
        if table:
            show_summary(rows, _below(plan, folder, signal_number))
            if step := _next_step(rows, folder.path):
                print(printable(f"Next: {step}"))  # unwrapped, to be copied
    if signal_number:
        return 128 + signal_number
    bad = any(row["failed"] or row["timeout"] for row in rows)
    return ExitCode.FAILED if bad else ExitCode.OK


def _below(plan: RunPlan, folder: Folder, signal_number: int | None) -> list[str]:
    """The lines below the table of cells."""
    from torchcoll.parts.experiments.run import pending

    left = len(pending(plan, folder))
    lines = []
    if signal_number:
        lines.append(f"interrupted by {signal.Signals(signal_number).name}")
    if left:
        total = len(plan.cells) * plan.runs
        lines.append(f"without a result: {left} of {total}; the same command again runs them")
    return [*lines, f"results, logs and manifest: {folder.path}"]


def _next_step(rows: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """The command that compares the cells that have a result."""
    from torchcoll.questions.comparison.command import as_sides

    cells = [row["cell"] for row in rows if row["ok"]]
    some = f"  # 2 of {len(cells)} cells" if len(cells) > _MOST_VALUES else ""
    sides = as_sides(str(folder), cells[: 2 if some else None])
    return f"torchcoll compare {sides}{some}" if len(cells) > 1 else ""


def dry_run(plan: RunPlan, folder: Path, every: bool = True, most: str = "") -> ExitCode:
    """Print how many runs there are, and their commands as they could be typed.

    every: all commands, not only the first. most: the most runs and when it ends, in words, of a
    command that decides itself when it ends; ``plan`` has one run of each cell.
    """
    from torchcoll.core.variables import command_line, named
    from torchcoll.machine.environment import variables
    from torchcoll.parts.experiments.run import labels_of

    cells, jobs = len(plan.cells), [*plan.jobs()]
    if most:  # in the order of the cells: bisect begins with the first and the last
        jobs.sort(key=lambda job: plan.cells.index(job.cell))
        tell(f"at most {most}; nothing was started; the first {counted(cells, 'run')}:")
    else:
        varied = f" ({text})" if (text := _varied(plan.cells)) else ""
        tell(f"{counted(len(jobs), 'run')}: {counted(cells, 'cell')}{varied} x {plan.runs}")
    for job in jobs if every else jobs[:1]:
        argv = plan.argv(job, folder / f"{job.stem}.jsonl", labels_of(job, variables))
        line = command_line(argv, named(job.cell.variables))
        path = os.environ.get("PATH", "")
        if path and shlex.quote(path) == path:
            line = line.replace(f":{path} ", ":$PATH ")
        print(printable(line), flush=True)
    if not every and len(jobs) > 1:
        tell(f"the first of {len(jobs)} commands; --verbose prints all of them")
    if absent := plan.absent_programs(os.environ):
        tell(f"torchcoll: note: this machine does not have {shorten(absent, _MOST_VALUES)}")
    return ExitCode.OK


def _varied(cells: Sequence[Cell]) -> str:
    """What differs between the cells: ``ranks 1..64``, ``NCCL_ALGO unset, Ring; nproc 2, 4``."""
    values: dict[str, dict[str, None]] = {}
    for cell in cells:
        for name, value in cell.settings.items():
            values.setdefault(name, {})[value] = None
    varying = {name: [*several] for name, several in values.items() if len(several) > 1}
    return "; ".join(f"{name} {_range_text(several)}" for name, several in varying.items())


_MOST_VALUES = 4


def _range_text(values: Sequence[str]) -> str:
    if len(values) <= _MOST_VALUES:
        return ", ".join(map(one_line, values))
    if all(map(str.isdecimal, values)):
        return f"{values[0]}..{values[-1]}"
    return f"{', '.join(map(one_line, values[: _MOST_VALUES - 1]))}, ... ({len(values)} values)"


class RunWatcher:
    """Progress on stderr: a line that stays on a terminal, elsewhere one line a run."""

    tells_each_run = True

    def __init__(self, plan: RunPlan, folder: Folder, quiet: bool, most: int | None = None) -> None:
        """most: runs at which it ends, if these are not all runs of the plan."""
        from torchcoll.parts.experiments.run import pending
        from torchcoll.report.destination import Destination, ProgressLine, RunProgress, is_terminal

        total = len(plan.cells) * plan.runs
        self._quiet = quiet
        self._done = total - len(pending(plan, folder))
        self._total = most or total
        self._progress = RunProgress(self._total - self._done)
        self._terminal = not quiet and is_terminal(sys.stderr)
        self._line = ProgressLine(
            None if quiet else sys.stderr, Destination(sys.stderr).width or 80
        )
        self._doing = ""
        if self._done:
            self.note(f"{self._done} of {total} runs are done")

    def note(self, text: str) -> None:
        if not self._quiet:
            self._line.clear()
            tell(text)

    def began(self, job: PlannedRun) -> None:
        self._doing = job.title
        self.tick()

    def tick(self) -> None:
        self._line.show(self._progress.text(self._doing))

    def ended(self, job: PlannedRun, record: Mapping[str, Any]) -> None:
        self._progress.finished += 1
        self._done += 1
        seconds = f", {record['seconds']:.1f} s" if record["seconds"] is not None else ""
        why = f": {record['reason']}" if record["reason"] else ""
        if record["status"] != "ok" or (self.tells_each_run and not self._terminal):
            self.note(f"[{self._done}/{self._total}] {job.title}: {record['status']}{seconds}{why}")

    def skipped(self) -> None:
        """Count a run that is not made, because its cell is unavailable."""
        self._progress.total -= 1
        self._total -= 1

    def close(self) -> None:
        self._line.clear()


COMMANDS = {
    "matrix": SubCommand(
        matrix_arguments,
        run_matrix,
        examples=(
            (
                "torchcoll matrix --env NCCL_ALGO=,Ring,Tree --runs 6 -o matrix -- torchrun "
                "--nproc-per-node 8 -m torchcoll.allreduce"
            ),
            (
                "torchcoll matrix --axis ranks=1,2,4,8 --dry-run -o m -- torchrun "
                "--nproc-per-node {ranks} -m torchcoll.allreduce"
            ),
        ),
        exit_1="a run failed, or took longer than --cell-timeout",
        option_groups={
            "what differs between the cells": "--env --axis --preset --nccl-version",
            "how the runs are made": "--runs --cell-timeout --dry-run",
            "output": "--output --quiet --verbose",
        },
    ),
}
