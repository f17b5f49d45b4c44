"""What a ``torchcoll versus`` is asked to do: its runs, its limits and its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.variables import MASK
from torchcoll.parts.experiments.blocks import RunPlan, make_plan, stored_plan
from torchcoll.parts.experiments.folder import Stored, check_same, stored
from torchcoll.questions.comparison.compare import THRESHOLD
from torchcoll.reading.inputs import MANIFEST
from torchcoll.stats.sequential import FIRST_LOOK
from torchcoll.stats.statistics import MOST_OUTLIERS

MOST = 30  # runs a side: 3 % are found at 2 % noise with 18 in the mean


@dataclass(frozen=True)
class Sides:
    """The command that is launched, and what it varies in."""

    argv: Sequence[str] = ()
    env: Sequence[str] = ()
    axes: Sequence[str] = ()


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
    there: Stored = frozenset()
    notes: Sequence[str] = ()

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
    if resume and (sides.argv or sides.env or sides.axes or output):
        raise UsageError(
            "resume",
            f"{resume} and {'--output' if output else 'a command'}",
            "the folder alone: it has its command",
            f"The same command goes on with -o {resume} too.",
        )
    folder = Path(resume or output or _new_folder())
    earlier = stored(folder)
    begun = begun_versus(folder)
    if resume and begun is None:
        raise UsageError("resume", resume, "the folder of a torchcoll versus")
    if resume and earlier and MASK in json.dumps(earlier[0]):
        raise UsageError(
            "resume",
            f"{folder}, whose command has secrets that are not kept",
            "the command again",
            f"Give it with -o {folder} in place of --resume.",
        )
    if earlier and begun is None:
        raise UsageError(
            "output",
            f"{folder}, which torchcoll matrix has begun",
            "a new or empty folder, or that of the same versus",
        )
    if begun and threshold not in (None, begun.threshold):
        raise UsageError(
            f"threshold of {folder}",
            f"{100 * (threshold or 0):g} %",
            f"{100 * begun.threshold:g} %, as it was begun with",
            "Leave it out, or name another folder with -o.",
        )
    most = runs or (begun.same_most if begun else MOST)
    if resume and begun:
        plan = replace(begun.plan, runs=_numbers(most, len(begun.plan.cells)))
        return replace(begun, plan=plan, most=most)
    plan, notes = make_plan(sides.argv, sides.env, sides.axes, environ=environ)
    if len(plan.cells) < 2:
        raise UsageError(
            "versus",
            f"one side, {plan.cells[0].name}",
            "two at least",
            "Give two values: --env NCCL_ALGO=Ring,Tree or --axis.",
        )
    plan = replace(plan, runs=_numbers(most, len(plan.cells)))
    asked = Asked(plan, folder, threshold or THRESHOLD, most, most, notes=notes)
    if earlier and begun:
        asked = replace(
            asked, threshold=begun.threshold, same_most=begun.same_most, there=begun.there
        )
        check_same(folder, earlier[0], asked.spec)
    return asked


def _new_folder() -> str:
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    first = name = f"torchcoll-runs/{now}-versus"
    number = 1
    while os.path.lexists(name):
        number += 1
        name = f"{first}-{number}"
    return name


def begun_versus(folder: Path) -> Asked | None:
    """What the versus of a folder was begun with; None where it is none of a versus. Raises
    UnreadableError for a broken manifest.
    """
    earlier = stored(folder)
    if earlier is None or "versus" not in (earlier[0].get("spec") or {}):
        return None
    header, there = earlier
    spec = header["spec"]
    try:
        threshold, runs = spec["versus"]["threshold"], spec["versus"]["runs"]
        if not (type(threshold) is float and 0 < threshold < 1):
            raise ValueError(threshold)
        if not (type(runs) is int and FIRST_LOOK <= runs < 1e9):
            raise ValueError(runs)
        plan = stored_plan(spec, _numbers(runs, len(spec["cells"])))
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, UsageError):
            raise
        expected = "one that torchcoll versus wrote"
        raise UnreadableError("manifest", folder / MANIFEST, expected) from None
    return Asked(plan, folder, threshold, runs, runs, there)


def _numbers(most: int, cells: int) -> int:
    """Runs that a cell can come to have: outliers of each comparison are repeated."""
    return most + MOST_OUTLIERS * (cells - 1)
