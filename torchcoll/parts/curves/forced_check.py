"""Check an exported setting: plan a small matrix that compares it with AUTO, launched like the
matrix that it came from, and read from the library's log what ran there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UnreadableError
from torchcoll.core.result import Choice, Run
from torchcoll.libraries.known_variables import FORCING
from torchcoll.libraries.nccl.algorithms import FUNCTIONS
from torchcoll.libraries.nccl.forced import TunerRule
from torchcoll.libraries.oneccl.algorithms import algorithm_at, variables_of
from torchcoll.parts.curves.forced_cells import find_mismatches, requested
from torchcoll.parts.experiments.axes import (
    AUTO,
    AXES_OF_LIBRARIES,
    Cell,
    combined,
    file_safe,
    joined,
)
from torchcoll.parts.experiments.blocks import RunPlan
from torchcoll.parts.experiments.folder import is_plan
from torchcoll.parts.experiments.launch_command import SUITE, check_program, command_of
from torchcoll.parts.experiments.obeyed import OF_RANKS, Recorded, unverified
from torchcoll.reading.inputs import MANIFEST


@dataclass(frozen=True)
class LoggedCase:
    """A case of which the log names the algorithm.

    requested: the algorithm and protocol of the setting, as in ``Choice.label``.
    mismatches: the labels in the log that differ from it; () if none do.
    """

    collective: str
    size_bytes: int
    requested: str
    mismatches: tuple[str, ...]


def logged_cases(
    runs: Iterable[Run], values: Mapping[str, str], rules: Sequence[TunerRule]
) -> list[LoggedCase]:
    """The cases for which the setting requests an algorithm and the log names one.

    values: the variables of the setting. rules: those of the tuner file that they name, if any.
    """
    cases = []
    for result in (result for run in runs for result in run.results):
        collective = result.case.collective
        function = FUNCTIONS.get(collective, "")
        algorithm, protocol = requested(values, collective)
        for name in variables_of(collective):
            algorithm = algorithm or algorithm_at(values.get(name, ""), result.size_bytes)
        for rule in rules:
            if rule.matches(function, result.size_bytes, result.ranks):
                algorithm, protocol = rule.algorithm, rule.protocol
                break
        logged = [choice for choice in result.choices if choice.source == "log"]
        if logged and (algorithm or protocol):
            mismatches = find_mismatches(algorithm, protocol, logged)
            asked = Choice(algorithm or "any", protocol or "").label
            labels = tuple(dict.fromkeys(choice.label for choice in mismatches))
            cases.append(LoggedCase(collective, result.size_bytes, asked, labels))
    return cases


EXPORTED = "exported"


@dataclass(frozen=True)
class Recheck:
    """The plan of a check. by: the other fields in which its runs differ, for ``compare``."""

    plan: RunPlan
    by: tuple[str, ...]

    def files(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """The existing result files: (those of AUTO, those of the setting)."""
        paths: tuple[list[Path], list[Path]] = ([], [])
        for job in self.plan.jobs():
            path = folder / f"{job.stem}.jsonl"
            if path.exists():
                paths[job.cell.name.startswith(EXPORTED)].append(path)
        return paths

    def folder(self, matrix: Path, content: str) -> Path:
        """The folder of the check: inside that of the matrix, whose readers skip subfolders.

        Each setting has a folder of its own. content: the file that the setting names, or ''.
        """
        asked = {name: value for name, value in self.plan.to_json().items() if name != "runs"}
        text = json.dumps([asked, content], sort_keys=True)
        return matrix / f"check-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def recheck(
    matrix: Path,
    spec: Mapping[str, Any],
    values: Mapping[str, str],
    forced: Collection[str],
    source_cells: Collection[str],
    collectives: Sequence[str],
    recorded: Recorded,
) -> Recheck:
    """The plan that runs AUTO and the setting, for each combination of the matrix's other settings.

    matrix, spec: the folder of the matrix, and the plan in its manifest.
    values: the variables of the setting.
    forced: the variables by which cells of the matrix force; they are unset here.
    source_cells: the names of the cells that the setting came from.
    collectives: a suite is limited to these.
    recorded: selects the variables that result files record.
    Raises UsageError for a command that cannot be launched here, UnreadableError for a broken spec.
    """
    if not is_plan(spec):
        raise UnreadableError("manifest", matrix / MANIFEST, "one that torchcoll matrix wrote")
    command = command_of(spec["command"])
    unset = {*forced, *values, *FORCING}
    cell_by_text: dict[str, Cell] = {}
    for cell in spec["cells"]:
        if cell["name"] not in source_cells:
            continue
        axes, variables = cell.get("axes") or {}, cell.get("variables") or {}
        remaining = {name: value for name, value in variables.items() if name not in unset}
        narrowed = ("--collectives", ",".join(collectives))
        arguments = narrowed if command.module == SUITE else tuple(cell.get("arguments") or ())
        plain_cell = Cell("", axes, remaining, arguments)
        cell_by_text.setdefault(json.dumps(plain_cell.to_json(), sort_keys=True), plain_cell)
    if not cell_by_text:
        raise UnreadableError("manifest", matrix / MANIFEST, "one that has the cells of its files")
    cells = list(cell_by_text.values())
    names = dict.fromkeys(n for cell in cells for n in (*cell.axes, *cell.variables))
    by_axes = {n for cell in cells for axis in cell.axes for n in AXES_OF_LIBRARIES.get(axis, ())}
    set_names = [name for name in names if name not in by_axes]
    differ = [name for name in set_names if len({_value(cell, name) for cell in cells}) > 1]
    dimension = []
    for cell in cells:  # names such as nproc2: only the settings in which the cells differ
        values_by_name = {name: str(_value(cell, name) or "unset").rstrip("/") for name in differ}
        texts = [file_safe(joined(n, os.path.basename(v))) for n, v in values_by_name.items()]
        dimension.append(replace(cell, name="-".join(texts)))
    in_cells = {name for cell in spec["cells"] for name in cell.get("variables") or {}}
    free: dict[str, str | None] = dict.fromkeys(sorted(unset & {*in_cells, *values}))
    setting = [Cell(AUTO, {}, free), Cell(EXPORTED, {}, {**free, **values})]
    runs = spec.get("runs")
    times = runs if isinstance(runs, int) and runs > 0 else 1
    plan = RunPlan(command, combined([setting, dimension]), times, spec.get("seed") or 0)
    for each in plan.cells:
        environ = plan.environment(each, os.environ)
        check_program(command.filled(each.axes), environ.get("PATH"))
    labels = {n for cell in plan.cells for n in (*cell.axes, *unverified(cell, recorded))}
    separate = [name for name in differ if name not in OF_RANKS]  # ranks keep cases apart anyway
    return Recheck(plan, tuple(f"label={name}" if name in labels else name for name in separate))


def _value(cell: Cell, name: str) -> str | None:
    return cell.axes[name] if name in cell.axes else cell.variables.get(name)
