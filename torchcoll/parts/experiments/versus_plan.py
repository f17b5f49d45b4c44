"""What a ``torchcoll versus`` is asked to do: its runs, its limits and its folder."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.variables import MASK
from torchcoll.parts.experiments.axes import Cell
from torchcoll.parts.experiments.blocks import RunPlan, make_plan, plan_of_commands, stored_plan
from torchcoll.parts.experiments.folder import Stored, check_same, stored
from torchcoll.parts.experiments.launch_command import command_of
from torchcoll.questions.comparison.compare import THRESHOLD
from torchcoll.reading.inputs import MANIFEST
from torchcoll.stats.sequential import FIRST_LOOK
from torchcoll.stats.statistics import MOST_OUTLIERS

MOST = 30  # runs a side: 3 % are found at 2 % noise with 18 in the mean


@dataclass(frozen=True)
class Sides:
    """What is launched: one command and what it varies in, or ``two`` whole ones (behind --a)."""

    argv: Sequence[str] = ()
    env: Sequence[str] = ()
    axes: Sequence[str] = ()
    backends: str | None = None
    implementations: str | None = None
    load: str | None = None
    two: Sequence[str] | None = None

    @property
    def given(self) -> bool:
        return bool(self.argv or self.two or self.varied)

    @property
    def varied(self) -> bool:
        return bool(self.env or self.axes or self.backends or self.implementations or self.load)


@dataclass(frozen=True)
class Asked:
    """most: runs a side at which it ends; same_most: those over which the error of 'same' is
    spent, as the folder was begun. there: the runs of the folder that count. notes: to be told.
    """

    plan: RunPlan
    folder: Path
    threshold: float
    most: int
    same_most: int
    there: Stored = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def run_s(self) -> float | None:
        """What a run took in the mean, as far as the folder knows."""
        recorded = [seconds for seconds in self.there.values() if seconds is not None]
        return sum(recorded) / len(recorded) if recorded else None

    @property
    def spec(self) -> dict[str, Any]:
        """What the manifest keeps."""
        limits = {"threshold": self.threshold, "runs": self.same_most}
        return {**self.plan.to_json(), "versus": limits}


def asked_of(
    sides: Sides,
    output: str | None = None,
    resume: str | None = None,
    threshold: float | None = None,
    runs: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Asked:
    """output: the folder; one that such a versus was begun in goes on. resume: one whose command is
    taken too. Raises UsageError for what cannot be launched, or is not what was begun there;
    UnreadableError for a broken manifest.
    """
    if resume and (sides.given or output):
        raise UsageError(
            "resume",
            f"{resume} and {'--output' if output else 'a command'}",
            "the folder alone: it has its command",
            f"The same command goes on with -o {resume} too.",
        )
    folder = Path(resume or output or _new_folder())
    earlier = stored(folder)
    if resume and earlier is None:
        raise UsageError("resume", resume, "the folder of a torchcoll versus")
    header, there = earlier or ({}, {})
    limits = _limits(folder, header.get("spec") or {}) if earlier else {}
    if threshold is not None and threshold != limits.get("threshold", threshold):
        raise UsageError(
            f"threshold of {folder}",
            f"{100 * threshold:g} %",
            f"{100 * limits['threshold']:g} %, as it was begun with",
            "Leave it out, or name another folder with -o.",
        )
    most = runs or limits.get("runs", MOST)
    notes: Sequence[str] = ()
    if resume:
        plan = _stored(folder, header["spec"], most, environ)
    else:
        plan, notes = _planned(sides, most, environ)
    asked = Asked(
        plan,
        folder,
        limits.get("threshold", THRESHOLD if threshold is None else threshold),
        most,
        limits.get("runs", most),
        there,
        notes,
    )
    if earlier:
        check_same(folder, header, asked.spec)
    return asked


def _new_folder() -> str:
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    first = name = f"torchcoll-runs/{now}-versus"
    number = 1
    while os.path.lexists(name):
        number += 1
        name = f"{first}-{number}"
    return name


@dataclass(frozen=True)
class Begun:
    """What a folder of a versus was begun with; there: as of Asked."""

    plan: RunPlan
    threshold: float
    same_most: int
    there: Stored


def begun(folder: Path) -> Begun | None:
    """For reading what is in a folder: nothing of it can be launched. None where it is none of a
    versus. Raises UnreadableError for a broken manifest.
    """
    earlier = stored(folder)
    if earlier is None or "versus" not in (earlier[0].get("spec") or {}):
        return None
    header, there = earlier
    spec = header["spec"]
    limits = _limits(folder, spec)
    try:
        cells = [Cell.from_json(cell) for cell in spec["cells"]]
        plan = RunPlan(command_of(spec["command"]), cells, _numbers(MOST, len(cells)), 0)
    except (TypeError, ValueError, KeyError):
        expected = "one that torchcoll versus wrote"
        raise UnreadableError("manifest", folder / MANIFEST, expected) from None
    return Begun(plan, limits["threshold"], limits["runs"], there)


def _limits(folder: Path, spec: Mapping[str, Any]) -> dict[str, Any]:
    limits = spec.get("versus")
    if limits is None:
        raise UsageError(
            "output",
            f"{folder}, which torchcoll matrix has begun",
            "a new or empty folder, or that of the same versus",
        )
    threshold, runs = (
        limits.get(name) if isinstance(limits, dict) else None for name in ("threshold", "runs")
    )
    if not (type(threshold) is float and 0 < threshold < 1) or not (
        type(runs) is int and FIRST_LOOK <= runs < 1e9
    ):
        raise UnreadableError("manifest", folder / MANIFEST, "one that torchcoll versus wrote")
    return {"threshold": threshold, "runs": runs}


def _stored(
    folder: Path, spec: Mapping[str, Any], most: int, environ: Mapping[str, str]
) -> RunPlan:
    if MASK in json.dumps(spec):
        raise UsageError(
            "resume",
            f"{folder}, whose command has secrets that are not kept",
            "the command again",
            f"Give it with -o {folder} in place of --resume.",
        )
    try:
        return stored_plan(spec, _numbers(most, len(spec["cells"])), environ)
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, UsageError):
            raise
        raise UnreadableError(
            "manifest", folder / MANIFEST, "one that torchcoll versus wrote"
        ) from None


def _planned(sides: Sides, most: int, environ: Mapping[str, str]) -> tuple[RunPlan, Sequence[str]]:
    if sides.two is not None:
        if sides.argv or sides.varied:
            extra = "--env, --axis, --backend, --implementation or --load too"
            raise UsageError("a", extra, "two whole commands alone")
        return plan_of_commands(_two(sides.two), _numbers(most, 2), environ), []
    plan, notes = make_plan(
        sides.argv,
        sides.env,
        sides.axes,
        environ=environ,
        backends=sides.backends,
        implementations=sides.implementations,
        load=sides.load,
    )
    plan.check_programs(environ)
    if len(plan.cells) < 2:
        raise UsageError(
            "versus",
            f"one side, {plan.cells[0].name}",
            "two at least",
            "Give two values: --env NCCL_ALGO=Ring,Tree, --axis, --backend, --implementation, "
            "--load, or --a and --b.",
        )
    number = _numbers(most, len(plan.cells))
    return RunPlan(plan.command, plan.cells, number, 0), notes


def _numbers(most: int, cells: int) -> int:
    """Runs that a cell can come to have: outliers of each comparison are repeated."""
    return most + MOST_OUTLIERS * (cells - 1)


def _two(argv: Sequence[str]) -> dict[str, Sequence[str]]:
    """``COMMAND --b COMMAND``, each as words or quoted as one."""
    if argv.count("--b") != 1:
        raise UsageError(
            "b",
            "none" if "--b" not in argv else "--b twice",
            "one command behind --a and one behind --b",
        )
    place = argv.index("--b")
    commands: dict[str, Sequence[str]] = {}
    for name, argv_of_side in (("a", argv[:place]), ("b", argv[place + 1 :])):
        try:
            commands[name] = (
                shlex.split(argv_of_side[0]) if len(argv_of_side) == 1 else list(argv_of_side)
            )
        except ValueError as error:
            raise UsageError(name, argv_of_side[0], f"a command ({error})") from None
    return commands
