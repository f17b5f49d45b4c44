"""``torchcoll again`` runs what a result file ran and judges whether it is reproduced; ``torchcoll
bisect`` finds the version at which a time changed.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import (
    ExitCode,
    TorchcollError,
    UnreadableError,
    UsageError,
    choice,
    did_you_mean,
    nearest_file,
    printable,
    tell,
)
from torchcoll.core.other_commands import begin_of
from torchcoll.core.units import counted, parse_share, shorten

if TYPE_CHECKING:
    from pathlib import Path

    from torchcoll.core.result import Run
    from torchcoll.parts.experiments.again_show import Rerun
    from torchcoll.parts.experiments.blocks import RunPlan
    from torchcoll.questions.show.recipe import Recipe


def again_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "file",
        metavar="FILE",
        help=(
            "a result file of torchcoll or another tool; a folder or quoted glob of "
            "several that ran the same; an entry of torchcoll show --published; or the hash "
            "of a run, as show --quote prints it"
        ),
    )
    add(
        "folders",
        metavar="FOLDER",
        nargs="*",
        help="where the run of a hash is (default: this folder, torchcoll-runs and results)",
    )
    add("--runs", default="6", metavar="N", help="number of new runs (default 6, at least 3)")
    add(
        "--threshold",
        default="10%",
        metavar="SHARE",
        help=(
            "reproduced means that a difference of this size is excluded in every case "
            "(default 10%%)"
        ),
    )
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="folder of the new runs, or of an interrupted again (default: a new again-FILE)",
    )
    add("--format", default="table", help="table (default), markdown, csv or json")
    add("--dry-run", action="store_true", help="print the command and start nothing")
    add("--quiet", action="store_true", help="print no progress, only the result")
    add(
        "--trust",
        action="store_true",
        help="also set the variables of FILE that name files, and so may load code",
    )
    add(
        "--launcher",
        metavar="WORDS",
        help=(
            "start the ranks with this in place of torchrun, such as --launcher 'srun "
            "--nodes 2 python -m'"
        ),
    )


def run_again(options: argparse.Namespace) -> ExitCode | int:
    from pathlib import Path

    from torchcoll.parts.experiments.again_show import show_rerun
    from torchcoll.parts.experiments.agreement import LEAST_RUNS
    from torchcoll.parts.experiments.matrix_command import launch, parse_number
    from torchcoll.questions.check.limit_share import plausibility_text
    from torchcoll.questions.check.published import publication_named, run_of
    from torchcoll.questions.show.recipe import recipe_of, unset_settings
    from torchcoll.reading.inputs import expand, load_all
    from torchcoll.report.destination import free_name
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    number = parse_number("runs", options.runs, int, LEAST_RUNS)
    threshold = parse_share(options.threshold, "threshold")
    launcher = shlex.split(options.launcher or "")
    entry = None if Path(options.file).exists() else publication_named(options.file)
    if entry is None and _HASH.fullmatch(options.file) and not Path(options.file).exists():
        options.file = _file_of_run(options.file, options.folders or _FOLDERS)
    if entry is None and not re.search(r"[/*?\[=]|^-$", options.file):
        _check_exists(options.file)
    runs = [run_of(entry)] if entry else load_all(expand(options.file))
    recipe = unset_settings(recipe_of(runs[0], options.trust), os.environ)
    if entry:
        origin = f"{entry.kind}, {entry.machine}, by {entry.who}, {entry.date}: {entry.source}"
        recipe = replace(recipe, notes=(origin, plausibility_text(entry), *recipe.notes))
    command = printable(recipe.text(launcher))
    name = f"again-{Path(options.file).name.split('.')[0]}"
    folder = Path(options.output or free_name(name))
    if options.dry_run:
        tell(f"{number} runs into {printable(str(folder))}; nothing was started; each of them:")
        print(command, flush=True)
        for note in recipe.notes:
            tell(f"torchcoll: note: {note}")
        return ExitCode.OK
    try:
        recipe = recipe if launcher else _here(recipe)
    except TorchcollError:
        if entry:  # what can be known without its hardware
            print("\n".join((*map(printable, recipe.notes), f"command: {command}")))
        raise
    plan = _plan(recipe, launcher, number)
    code = launch(plan, folder, options.quiet, table=False)
    if code not in (ExitCode.OK, ExitCode.FAILED):
        return code
    linked = entry.linked if entry else None
    rerun = _rerun(runs, options.file, plan, folder, recipe, threshold, linked)
    show_rerun(rerun, options.format)
    return ExitCode.OK if rerun.answer.level == "good" else ExitCode.FAILED


_HASH = re.compile(r"[0-9a-f]{6,12}")  # of a run, or its first letters
_FOLDERS = (".", "torchcoll-runs", "results")


def _file_of_run(name: str, folders: Sequence[str]) -> str:
    """The result file whose run has this hash. Raises UnreadableError unless there is one."""
    begins = re.compile(rb'"run_id": ?"' + name.encode())
    paths: dict[str, str] = {}
    for folder in folders:
        below = "*" if folder == "." else "**/*"
        for path in sorted(glob.glob(f"{glob.escape(folder)}/{below}.jsonl*", recursive=True)):
            if os.path.isfile(path) and begins.search(begin_of(path)):
                paths.setdefault(os.path.realpath(path), path)
    if len(paths) == 1:
        return next(iter(paths.values()))
    action = f"Name its file, or where it is: torchcoll again {name} FOLDER."
    if paths:
        action = f"Name one of {shorten(list(paths.values()), 4)}."
    value = f"{name} in {counted(len(paths), 'file')} of {', '.join(folders)}"
    raise UnreadableError("hash of a run", value, "one file", action)


def _check_exists(name: str) -> None:
    """Raises UnreadableError for a name that is neither a file nor a published entry."""
    from torchcoll.questions.check.published import publications

    if not os.path.exists(name):
        expected = "a file, or an entry of torchcoll show --published"
        action = did_you_mean(name, [entry.id for entry in publications()]) or nearest_file(name)
        raise UnreadableError("result file", name, expected, action)


def _here(recipe: Recipe) -> Recipe:
    """What this machine can run of it. Raises UsageError or UnavailableError."""
    from torchcoll.core.backends import BACKENDS
    from torchcoll.machine.doctor import backends
    from torchcoll.machine.doctor_facts import gather
    from torchcoll.machine.launcher import Launch
    from torchcoll.questions.show.recipe import on_this_machine

    facts = gather(Launch("again"))
    usable = [entry.name for entry in backends(facts) if entry.usable]
    usable += [entry.name for entry in BACKENDS.values() if not entry.communicates]
    return on_this_machine(recipe, usable, len(facts.devices(recipe.device)))


def _plan(recipe: Recipe, launcher: list[str], number: int) -> RunPlan:
    from torchcoll.parts.experiments.axes import Cell
    from torchcoll.parts.experiments.blocks import RunPlan
    from torchcoll.parts.experiments.launch_command import command_of

    argv = recipe.command(launcher)
    if not launcher:
        # The torchrun of PATH, if there is any, may belong to a Python without torchcoll.
        argv[:1] = [sys.executable, "-m", "torch.distributed.run"]
    command = command_of(argv)
    variables: dict[str, str | None] = {name: value for name, value in recipe.variables.items()}
    plan = RunPlan(command, [Cell("again", variables=variables)], number)
    plan.check_programs(os.environ)
    return plan


# Every run of this command, of a matrix and of a versus has them: they are no setting.
_LABELS_OF_RUNS = ("label=cell", "label=run")


def _rerun(
    runs: list[Run],
    file: str,
    plan: RunPlan,
    folder: Path,
    recipe: Recipe,
    threshold: float,
    linked: int | None,
) -> Rerun:
    """Compares the new runs with the file. linked: as in ``limit_shares``, of the file."""
    from torchcoll.core.file import load_own
    from torchcoll.parts.experiments.again_show import Rerun
    from torchcoll.parts.experiments.agreement import Agreement, agreement
    from torchcoll.questions.check.limit_share import compared_shares
    from torchcoll.stats.across_hardware import unlike, unlike_ranks
    from torchcoll.stats.differences import differences_of, dimensions_of
    from torchcoll.stats.matching import pairs_of
    from torchcoll.stats.side_faults import cut_runs, side_faults
    from torchcoll.stats.sides import Side, reading_of

    paths = [folder / f"{job.stem}.jsonl" for job in plan.jobs()]
    new = Side("new runs", [load_own(path) for path in paths if path.exists()])
    base = Side("file", runs)
    if not new.runs:
        raise UsageError("new runs", "none with a result", "at least 3", f"See {folder}.")
    differences = [
        str(difference)
        for difference in differences_of(base, new)
        if difference.name not in _LABELS_OF_RUNS
    ]
    try:
        reading = reading_of(base, new, None)
        pairs = pairs_of(base.measured("time", reading), new.measured("time", reading))
        reasons = [unlike(base, new), *(unlike_ranks(pair) for pair in pairs)]
        reason = next(filter(None, reasons), "")
        # What only one side records comes last: it may differ or not.
        dimensions = dimensions_of(pairs)
        both_known = [str(d) for d in dimensions if d.base and d.new]
        others = [str(d) for d in dimensions if not (d.base and d.new)]
        differences = [*both_known, *differences, *others]
    except TorchcollError as error:
        pairs, reason = [], str(error)
    result = Agreement("not comparable", reason=reason) if reason else agreement(pairs, threshold)
    shares = compared_shares(runs[0], new.runs[0], linked) if reason else ""
    cases = [((pair.new or pair.base)[0].result.case.describe(), pair) for pair in pairs]
    faults = side_faults(
        "the rerun",
        len(new.runs),
        [(name, pair.new) for name, pair in cases],
        [name for name, pair in cases if pair.base and not pair.new],
        cut=cut_runs(new),
    )
    events = [event for run in new.runs for event in run.events if event.get("kind") == "machine"]
    busy = str(events[0]["message"]) if events else ""
    return Rerun(file, result, differences, recipe.notes, str(folder), shares, faults, busy)


def bisect_arguments(parser: argparse.ArgumentParser) -> None:
    from torchcoll.parts.experiments.matrix_command import add_command, add_varied

    add = parser.add_argument
    add_varied(parser, ". The values are the versions, in order")
    add("--metric", default="time", help="what changed: time, first-call or wrong (default: time)")
    add(
        "--threshold",
        default="2%",
        metavar="SHARE",
        help=("smaller changes between the first and the last version are ignored (default 2%%)"),
    )
    add("--runs", default="180", metavar="N", help="end after this many runs (default 180)")
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="folder of the runs; an interrupted search continues in it",
    )
    add("--format", default="table", help="table (default), markdown, csv or json")
    add("--dry-run", action="store_true", help="print a run of each version and start nothing")
    add_command(parser)


def run_bisect(options: argparse.Namespace) -> ExitCode | int:
    from pathlib import Path

    from torchcoll.machine.environment import variables
    from torchcoll.parts.experiments.blocks import make_plan
    from torchcoll.parts.experiments.folder import Folder
    from torchcoll.parts.experiments.matrix_command import RunWatcher, dry_run, parse_number
    from torchcoll.parts.experiments.run import run
    from torchcoll.parts.experiments.version_search import METRICS, VersionRuns
    from torchcoll.parts.experiments.version_show import answer_of, show_versions
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    choice(options.metric, "metric", METRICS)
    if not (options.output or options.dry_run):
        raise UsageError("output", "none", "a folder for the runs", "Name one with -o DIR.")
    most = parse_number("runs", options.runs, int, 4)
    timeout_s = parse_number("cell-timeout", options.cell_timeout, float, 0.1)
    plan, notes = make_plan(options.argv, options.env, options.axis, runs=most)
    if len(plan.cells) < 3 or len(options.env) + len(options.axis) != 1:
        value = f"{len(plan.cells)} in {len(options.env) + len(options.axis)} options"
        raise UsageError("versions", value, "at least 3 in one --axis or --env")
    if not options.dry_run:
        plan.check_programs(os.environ)
    for note in notes:
        tell(f"torchcoll: note: {note}")
    path = Path(options.output or "DIR")
    if options.dry_run:
        text = f"{most} runs of {len(plan.cells)} versions, until the version is found"
        return dry_run(replace(plan, runs=1), path, most=text)
    state = VersionRuns(
        plan, path, options.metric, most, parse_share(options.threshold, "threshold")
    )
    with Folder(path, plan.to_json()) as folder:
        watcher = RunWatcher(plan, folder, options.quiet, most)
        try:
            number = run(plan, folder, variables, watcher, timeout_s, state.jobs(folder))
        finally:
            watcher.close()
    if state.runs:
        show_versions(state, options.format)
    if number:
        return 128 + number
    if not state.runs:
        reasons = dict.fromkeys(state.skipped.values())
        action = f"Its output is in {path / 'logs'}."
        if not plan.command.module:
            action += " Does the script pass its arguments on?"
        raise UsageError(
            "versions", f"none that starts ({'; '.join(reasons)})", "2 or more", action
        )
    return ExitCode.OK if answer_of(state).level in ("good", "bad") else ExitCode.FAILED


COMMANDS = {
    "bisect": SubCommand(
        bisect_arguments,
        run_bisect,
        examples=(
            (
                "torchcoll bisect --axis venv=v1,v2,v3,v4 -o search -- torchrun --nproc-per-node "
                "8 -m torchcoll.allreduce -b 1M -e 1G"
            ),
            (
                "torchcoll bisect --axis v=2.11.0,2.12.0,2.13.0 -o search -- "
                "venvs/{v}/bin/torchrun --nproc-per-node 8 -m torchcoll.allreduce"
            ),
        ),
        exit_1="there is no single version, or it is not decided",
        option_groups={
            "what is compared": "--env --axis --metric",
            "when it ends": "--threshold --runs --cell-timeout",
            "output": "--output --format --quiet --dry-run",
        },
    ),
    "again": SubCommand(
        again_arguments,
        run_again,
        examples=(
            "torchcoll again run.jsonl",
            "torchcoll again run.jsonl --dry-run",
            "torchcoll again 232f869ff53e results",
            "torchcoll again run.jsonl --launcher 'srun --nodes 2 --ntasks-per-node 8 python -m'",
        ),
        exit_1="not reproduced, cannot tell, or cannot be compared",
    ),
}
