"""What is to be launched: the cells, how often each, and in which order."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UsageError
from torchcoll.core.variables import SET_ON_PURPOSE, masked_words
from torchcoll.libraries.known_variables import FORCING, unknown_variables
from torchcoll.parts.experiments import launch_command
from torchcoll.parts.experiments.axes import (
    AXES_OF_LIBRARIES,
    Cell,
    Dimension,
    axis_dimension,
    check_files,
    combined,
    missing_file,
    variable_dimension,
)
from torchcoll.parts.experiments.presets import PresetOptions, preset


@dataclass(frozen=True)
class PlannedRun:
    """One run of one cell. ``run`` counts from 1."""

    cell: Cell
    run: int

    @property
    def key(self) -> tuple[str, int]:
        return self.cell.name, self.run

    @property
    def title(self) -> str:
        """For sentences: ``NCCL_ALGO=Ring, run 2``."""
        return f"{self.cell.title}, run {self.run}"

    @property
    def stem(self) -> str:
        """Of its files."""
        return f"{self.cell.name}-{self.run}"


@dataclass(frozen=True)
class RunPlan:
    command: launch_command.Command
    cells: Sequence[Cell]
    runs: int

    def jobs(self) -> Iterator[PlannedRun]:
        """Run 1 of every cell in random order, then run 2 of every cell, ...

        Drift over time therefore affects all cells alike. The order of a block does not depend on
        the number of blocks, so that runs can be added.
        """
        for run in range(1, self.runs + 1):
            block = list(self.cells)
            random.Random(f"0/{run}").shuffle(block)
            yield from (PlannedRun(cell, run) for cell in block)

    def argv(self, job: PlannedRun, output: Path, labels: Mapping[str, str]) -> list[str]:
        """The command of one run."""
        argv = [*self.command.filled(job.cell.axes), *job.cell.arguments, "--output", str(output)]
        for name, value in {"cell": job.cell.name, "run": str(job.run), **labels}.items():
            argv += ["--label", f"{name}={value}"]
        return argv

    def environment(self, cell: Cell, environ: Mapping[str, str]) -> dict[str, str]:
        """The caller's with the cell's, and the names of the latter: nobody forgot them."""
        environment = {**environ, SET_ON_PURPOSE: ",".join(cell.variables)}
        for name, value in cell.variables.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        return environment

    def check_programs(self, environ: Mapping[str, str]) -> None:
        """Raises UsageError where a launcher, library or environment cannot be used."""
        for cell in self.cells:
            check_files(cell)
            path = self.environment(cell, environ).get("PATH")
            launch_command.check_program(self.command.filled(cell.axes), path)

    def absent_programs(self, environ: Mapping[str, str]) -> list[str]:
        """The launchers, libraries and environments that this machine does not have."""
        absent: list[str] = []
        for cell in self.cells:
            absent += filter(None, (missing_file(*item) for item in cell.axes.items()))
            program = self.command.filled(cell.axes)[0]
            if shutil.which(program, path=self.environment(cell, environ).get("PATH")) is None:
                absent.append(program)
        return list(dict.fromkeys(absent))

    def to_json(self) -> dict[str, Any]:
        return {
            "command": masked_words(self.command.argv),
            "cells": [cell.to_json() for cell in self.cells],
            "runs": self.runs,
        }


def make_plan(
    argv: Sequence[str],
    variables: Sequence[str] = (),
    axes: Sequence[str] = (),
    presets: Sequence[str] = (),
    runs: int = 6,
    nccl_version: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[RunPlan, list[str]]:
    """The plan, and notes on it. Raises UsageError for an impossible plan.

    ``RunPlan.check_programs`` checks that the launcher is installed.
    """
    env = dict(os.environ) if environ is None else dict(environ)
    command = launch_command.command_of(argv[1:] if argv[:1] == ["--"] else argv)
    dimensions: list[Dimension] = [variable_dimension(text) for text in variables]
    constants = [dimension[0] for dimension in dimensions if len(dimension) == 1]
    dimensions += [axis_dimension(text, env) for text in axes]
    asked = PresetOptions(
        command,
        [name for dimension in dimensions for name in dimension[0].axes],
        {name: value for cell in constants for name, value in cell.variables.items()},
        nccl_version,
        env,
    )
    dimensions += [preset(name, asked) for name in presets]
    cells = combined(dimensions)
    launch_command.check_placeholders(command, cells[0].axes, AXES_OF_LIBRARIES)
    _check_verified(command, cells)
    plan = RunPlan(command, cells, runs)
    return plan, [*asked.notes, *_warnings(cells, env)]


def stored_plan(spec: Mapping[str, Any], runs: int) -> RunPlan:
    """The plan of a manifest. Raises UsageError as ``make_plan``, TypeError or ValueError for bad
    cells.
    """
    cells = [Cell.from_json(cell) for cell in spec["cells"]]
    return RunPlan(launch_command.command_of(spec["command"]), cells, runs)


def _check_verified(command: launch_command.Command, cells: Sequence[Cell]) -> None:
    """LL128 by name skips the check of NCCL whether it is safe here; others may be wrong too."""
    forced = next((n for cell in cells for n in FORCING if cell.variables.get(n)), None)
    value = command.option("-c", "--check")
    if forced and value == "0":
        raise UsageError(
            "command",
            "-c 0",
            f"verification, where {forced} is forced",
            "A forced algorithm may be wrong where the library would not have chosen it.",
        )


def _warnings(cells: Sequence[Cell], environ: Mapping[str, str]) -> Iterator[str]:
    set_names = {name for cell in cells for name in cell.variables}
    for name in FORCING:
        if environ.get(name) and name not in set_names:
            yield f"{name}={environ[name]} is in the environment: it is forced in every cell"
    for name, near in unknown_variables(dict.fromkeys(set_names, "")):
        yield f"no library reads {name}{f': is {near} meant?' if near else ''}"
