"""The sections of a page that compare sides: versus, forced algorithms, labels, a model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run
from torchcoll.questions.page.page_draft import Drawing, PageDraft, named
from torchcoll.reading.inputs import split_label
from torchcoll.report.many import same_cases
from torchcoll.stats.sides import Side, unnamed_files

if TYPE_CHECKING:
    from torchcoll.questions.comparison.compare import Comparison

_TOLD = ("label=cell", "label=run")  # the name of the side, and the number of its run
_FEW = 6  # files of a side that a command names
_SIDES = 12  # cells of a matrix that are compared with its first


def _sides(runs: Sequence[Run]) -> list[Side]:
    """A side for each label ``cell``, where all runs have one and there are several; else for each
    backend, where runs have several; else for each of two runs on as many ranks whose settings,
    labels or cases differ.
    """
    names = [run.labels.get("cell", "") for run in runs]
    if not any(names):
        backends = dict.fromkeys(r.case.backend for run in runs for r in run.results)
        sides = [Side(f"backend:{name}", list(runs)) for name in backends]
        if len(sides) > 1:
            return [] if unnamed_files(runs) else sides  # perhaps of several machines
        if len(runs) != 2 or runs[0].ranks != runs[1].ranks:
            return []
        groups = same_cases(runs, list(map(summarise_run, runs)))
        of_runs = [Side(name.removesuffix(".jsonl"), [run]) for name, run in named(runs)]
        return of_runs if len(groups) == 2 else []
    if not all(names) or not 2 <= len(set(names)) <= _SIDES:
        return []
    return [
        Side(name, [run for run, side_name in zip(runs, names, strict=True) if side_name == name])
        for name in dict.fromkeys(names)
    ]


def add_comparisons(document: PageDraft) -> list[Comparison]:
    """The sides against the first, whatever made them: a versus, forced algorithms, labels."""
    for place in ("folders", "sides"):
        compared: list[Comparison] | None = document.add_of_parts(place)
        if compared is not None:
            return compared
    sides = document.sides = _sides(document.plain)
    if not sides:
        return []
    from torchcoll.questions.comparison.compare import compare
    from torchcoll.questions.comparison.show import comparison_grids

    compared = []
    for other in sides[1:]:
        try:
            comparison = compare(sides[0], other)
        except UsageError as error:  # no case in common: the rest of the page stands
            names = one_line(f"{other.name} against {sides[0].name}")
            document.notes.append(f"no section on {names}: {error}")
            continue
        comparison.differences = [d for d in comparison.differences if d.name not in _TOLD]
        files = " ".join(
            shlex.quote(f"{side.name}={run.path or run.source.get('file')}")
            for side in (sides[0], other)
            for run in side.runs[:_FEW]
        )
        files += " ..." if max(len(sides[0].runs), len(other.runs)) > _FEW else ""
        given = [
            argument
            for argument in document.material.arguments.get("runs", [])
            if split_label(argument)[0] in (sides[0].name, other.name)
        ]
        if {split_label(argument)[0] for argument in given} == {sides[0].name, other.name}:
            files = shlex.join(given)
        elif all(side.only for side in (sides[0], other)):  # of all files
            arguments = document.material.arguments.get("runs", [])
            files = shlex.join(
                f"{side.name}={path}" for side in (sides[0], other) for path in arguments
            )
        title = " against ".join(
            one_line(side.only[1] if side.only else side.name)
            for side in (comparison.new, comparison.base)
        )
        document.add(
            title,
            comparison_grids(comparison, every=True),
            f"torchcoll compare {files}",
            speed_ups(document, comparison),
            comparison.side_names,
        )
        compared.append(comparison)
    document.add_of_parts("compared")
    return compared


def speed_ups(document: PageDraft, comparison: Comparison) -> list[Drawing]:
    """None about a model, whose errors have a section."""
    from torchcoll.questions.comparison.speed_up_charts import speed_up_charts

    if comparison.errors:
        return []
    base, new = comparison.side_names
    text = f"Each case: left {new} is slower than {base}, right it is faster"
    return [Drawing(text, lambda: speed_up_charts(comparison, document.keys))]
