"""Reads forced cells and AUTO of many runs for forcing/contest.py, which judges them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcoll.comparison.compare import THRESHOLD
from torchcoll.comparison.results import NO_STARTS, ONE_AFTER_THE_OTHER, outlier_text, runs_of
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UsageError
from torchcoll.core.jsonl import read_objects
from torchcoll.core.result import Run
from torchcoll.forcing.contest import CellAt, SizeFound, Table, judge
from torchcoll.forcing.forced_cells import (
    Forced,
    disobeyed,
    name_of,
    settings_of,
    tells_variables,
    varied_of,
)
from torchcoll.inputs import MANIFEST, Source, is_manifest
from torchcoll.libraries.known_variables import FORCING
from torchcoll.stats.differences import hidden_note, kept_separate, varying_text
from torchcoll.stats.filters import conditions
from torchcoll.stats.matching import NAMES, value_of
from torchcoll.stats.sides import (
    Measured,
    Reading,
    Side,
    known_of,
    side,
    value_of_fact,
    values_of_facts,
)

_USUAL = ("communicator", "clock")  # a case that did not run has none


@dataclass(repr=False)
class Algorithms(Displayed):
    """What ``algorithms`` found. comparisons: tests of AUTO against a cell. missing: cells of the
    matrix without a result, with the reason. matrices: the plan (``spec``) of each manifest, with
    the runs that were added later. reading: what a time is of the calls and the ranks. learned:
    names of the cells of a matrix that the tables are from.
    """

    runs: list[Run]
    tables: list[Table]
    threshold: float
    comparisons: int
    notes: list[str]
    missing: dict[str, str]
    matrices: list[dict[str, Any]]
    reading: str
    learned: list[str]


def algorithms(
    sources: Source | Sequence[Source],
    *,
    threshold: float = THRESHOLD,
    filter: str | Sequence[str] = (),
    over_ranks: str = "max",
) -> Algorithms:
    """The best forced cell and AUTO's regret by size, of a matrix folder, files or Runs.

    threshold: slower by less is nothing that anyone would act on. filter: as in ``compare``.
    Raises UsageError where no cell forces anything or none was right, UnreadableError for a file.
    """
    files = side("files", sources)
    wanted = conditions(filter)
    reading = Reading(over_ranks)
    measured = files.measured("time", reading)
    items = [m for m in measured if all(one.holds(m) for one in wanted)]
    if not items and wanted:
        texts = ",".join(one.text for one in wanted)
        raise UsageError("filter", texts, "conditions that some case fulfils")
    runs = [(part.ranks, known_of(part)) for part in files.parts]
    varied = varied_of([facts for _, facts in runs])
    forcing = [settings_of(m.facts, varied, m.row.backend) for m in items]
    if not any(forcing):
        raise UsageError(
            "cells", f"none that forces anything on {', '.join({m.row.backend: 0 for m in items})}",
            "runs with NCCL_ALGO, CCL_ALLREDUCE, ... set, on a backend that reads them",
            "torchcoll matrix --preset nccl-algorithms makes them.",
        )  # fmt: skip
    inside = {name for own in forcing for name in own}
    # What was varied on purpose, and is no cell. A file that tells no variable says nothing of
    # another value: AUTO of such a file stands beside the cells.
    telling = kept_separate([run for run in runs if tells_variables(run[1])])
    separate = [
        name
        for name in kept_separate(runs)
        if name.removeprefix("label=") not in inside
        and (name.startswith("label=") or name in telling)
    ]
    every, left_out = _tables(files, items, forcing, separate)
    tables = [table for table in every if table.cells]
    tests = judge(tables, threshold)
    if not any(size.best for table in tables for size in table.sizes):
        raise UsageError("cells", "no forced one with a right result", "at least one")
    matrices, missing = _manifests(sources)
    within = [*inside, *(f"label={name}" for name in inside)]
    notes = _notes(files, every, runs, [*separate, *within])
    notes += _unstated(files, runs, left_out)
    notes += [outlier_text(_file(files.runs[one.run[1]]), one) for one in tests.left_out]
    if tests.comparisons and not (tests.in_order and tests.interleaved):
        notes.append(ONE_AFTER_THE_OTHER if tests.in_order else NO_STARTS)
    read = files.read_as(reading) or str(reading)
    names = dict.fromkeys(files.runs[m.run].labels.get("cell", "") for m in items)
    learned = [name for name in names if name]
    return Algorithms(
        files.runs, tables, threshold, tests.comparisons, notes, missing, matrices, read, learned
    )


def _tables(
    files: Side,
    items: Sequence[Measured],
    forcing: Sequence[dict[str, str]],
    separate: Sequence[str],
) -> tuple[list[Table], set[str]]:
    """The tables, and the names of the files that are in none.

    Of some runs nothing tells whether they forced anything. Where other runs are known to
    be AUTO, they are in no table: one of them that was forced would change AUTO's time.
    """
    usual = {name: next((v for m in items if (v := value_of(m, name))), None) for name in _USUAL}
    groups: dict[str, tuple[dict[str, Any], list[tuple[Measured, dict[str, str]]]]] = {}
    for item, settings in zip(items, forcing, strict=True):
        kind = {name: value_of(item, name) for name in NAMES}
        kind |= {name: kind[name] or value for name, value in usual.items()}
        kind |= {name: value_of_fact(item.facts, name) for name in separate}
        groups.setdefault(repr(kind), (kind, []))[1].append((item, settings))
    tables, used = [], set()
    for kind, members in groups.values():
        silent = {m.run for m, settings in members if not settings and _tells_nothing(m.facts)}
        if any(not settings and m.run not in silent for m, settings in members):
            members = [member for member in members if member[0].run not in silent]
        tables.append(_table(files, kind, members))
        used |= {m.run for m, _ in members}
    return tables, {_file(files.runs[m.run]) for m in items if m.run not in used}


def _table(
    files: Side, common: dict[str, Any], items: Sequence[tuple[Measured, dict[str, str]]]
) -> Table:
    by_cell: dict[str, list[tuple[Measured, dict[str, str]]]] = {}
    for item, settings in items:
        by_cell.setdefault(repr(sorted(settings.items())), []).append((item, settings))
    cells = list(by_cell.values())
    labels = [[files.runs[m.run].labels.get("cell") for m, _ in cell] for cell in cells]
    names = [name_of(cell[0][1], label) for cell, label in zip(cells, labels, strict=True)]
    at: dict[int, list[CellAt]] = {}
    wrong: dict[str, list[int]] = {}
    unchecked = []
    uneven = []
    for name, members in zip(names, cells, strict=True):
        settings = members[0][1]
        if names.count(name) > 1:  # cells of two matrices may bear the same label
            name = f"{name} ({' '.join(f'{n}={v}' for n, v in settings.items())})"
        cell = Forced(name, settings)
        by_size: dict[int, list[Measured]] = {}
        for m, _ in members:
            by_size.setdefault(m.row.size_bytes_requested or m.row.size_bytes, []).append(m)
        for size_bytes, here in sorted(by_size.items()):
            result = _cell_at(cell, here)
            at.setdefault(size_bytes, []).append(result)
            if result.state == "wrong" and not cell.auto:
                wrong.setdefault(cell.name, []).append(size_bytes)
        if not cell.auto and all(m.row.verified == "unchecked" for m, _ in members):
            unchecked.append(cell.name)
        runs = {m.run for m, _ in members}
        if any({m.run for m in here} != runs for here in by_size.values()):
            uneven.append(cell.name)
    sizes = [
        SizeFound(
            size_bytes,
            next((one for one in cells if one.cell.auto), None),
            [one for one in cells if not one.cell.auto],
        )
        for size_bytes, cells in sorted(at.items())
    ]
    parts = [files.runs[m.run] for m, _ in items]
    hosts = max(len({x["host"] for x in run.members if x.get("host")}) for run in parts)
    library = next((m.row.library for m, _ in items if m.row.library), None)
    return Table(common, hosts, library, sizes, [], wrong, unchecked, uneven)


def _cell_at(cell: Forced, items: Sequence[Measured]) -> CellAt:
    bad = [m for m in items if m.row.status != "ok" or m.row.verified == "wrong"]
    is_wrong = any(m.row.verified == "wrong" or m.row.status == "wrong" for m in bad)
    own = [] if is_wrong else runs_of(items)
    values = tuple(value for value, _ in own)
    state = "wrong" if is_wrong else "ok" if values else bad[0].row.status if bad else "no time"
    choices = tuple(dict.fromkeys(c for m in items for c in m.result.choices))
    other = disobeyed(cell.settings, items[0].row.collective, choices)
    found = CellAt(cell, values, state, choices, tuple(other))
    found.runs = tuple(first.run for _, (first, *_) in own)
    found.starts = tuple(first.start for _, (first, *_) in own)
    return found


def _manifests(
    sources: Source | Sequence[Source],
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The plans of ``torchcoll matrix``, and its cells that have no run with a result."""
    several = [sources] if not isinstance(sources, (list, tuple)) else sources
    paths = [Path(one) for one in several if isinstance(one, (str, os.PathLike))]
    specs, last = [], dict[tuple[str, Any], Mapping[str, Any]]()
    for path in (p / MANIFEST if p.is_dir() else p for p in paths):
        if not is_manifest(path):
            continue
        for record in read_objects(path, "manifest"):
            if record.get("record") == "matrix" and isinstance(record.get("spec"), dict):
                specs.append(record["spec"])
            elif record.get("record") == "run":
                last[str(record.get("cell")), record.get("run")] = record
                if specs:  # runs may have been added
                    numbers = record.get("run"), specs[-1].get("runs")
                    known = [number for number in numbers if isinstance(number, int)]
                    specs[-1]["runs"] = max(known, default=None)
    usable = {cell for (cell, _), record in last.items() if record.get("file")}
    missing = {
        cell: ": ".join(filter(None, (str(record.get("status")), str(record.get("reason") or ""))))
        for (cell, _), record in last.items()
        if cell not in usable
    }
    return specs, missing


def _tells_nothing(facts: Mapping[str, str]) -> bool:
    """Neither variables of a library nor labels that stand for them."""
    return not tells_variables(facts) and not any(f"label={name}" in facts for name in FORCING)


def _file(run: Run) -> str:
    return run.path.name if run.path else str(run.source.get("file") or "a run")


def _unstated(
    files: Side, runs: Sequence[tuple[int, Mapping[str, str]]], left_out: set[str]
) -> list[str]:
    """Files that may be AUTO, as nothing is known of their variables."""
    names = [
        _file(part)
        for part, (_, facts) in zip(files.parts, runs, strict=True)
        if _tells_nothing(facts)
    ]
    texts = (
        ("taken for AUTO, though no variable of the library is known", False),
        ("left out: no variable of the library is known, and other runs tell of AUTO", True),
    )
    notes = []
    for text, out in texts:
        own = [name for name in names if (name in left_out) == out]
        if own:
            several = own if len(own) < 4 else [*own[:2], "...", own[-1]]
            advice = "(NCCL_DEBUG=INFO, or import --label NCCL_ALGO=auto, tells)"
            notes.append(f"{text}: {', '.join(several)} {advice}")
    return notes


def _notes(
    files: Side,
    tables: Sequence[Table],
    runs: Sequence[tuple[int, Mapping[str, str]]],
    known: Sequence[str],
) -> list[str]:
    notes = []
    if not any(size.auto for table in tables for size in table.sizes):
        notes.append("no run in which nothing is forced: nothing is said of AUTO")
    free = dict.fromkeys(str(table.common["collective"]) for table in tables if not table.cells)
    if free:
        notes.append(f"forced in no cell, left out: {', '.join(free)}")
    names = dict.fromkeys(name for table in tables for name in table.unchecked)
    if names:
        notes.append(
            f"not verified: {', '.join(names)}; an algorithm forced by name may be wrong "
            "(LL128 skips NCCL's own check)"
        )
    names = dict.fromkeys(name for table in tables for name in table.uneven)
    if names:
        notes.append(
            f"the runs of a cell disagree in their sizes: {', '.join(names)}; a size has the "
            "runs that measured it"
        )
    values = values_of_facts([dict(facts) for _, facts in runs])
    hidden = varying_text(values, [*known, "label=cell", "label=run"])
    return [*notes, *filter(None, (hidden_note(hidden), files.rehearsal_note))]
