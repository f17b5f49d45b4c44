"""Read forced cells and AUTO of many runs; curves/contest.py judges them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcoll.core.backends import NCCL, ONECCL, of_family
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.jsonl import read_objects
from torchcoll.core.result import Run
from torchcoll.core.units import shorten_middle
from torchcoll.libraries.known_variables import FORCING
from torchcoll.parts.curves import forced_cells
from torchcoll.parts.curves.contest import CellAt, SizeContest, Table, judge
from torchcoll.questions.comparison import results
from torchcoll.questions.comparison.compare import THRESHOLD
from torchcoll.reading.inputs import MANIFEST, Source, is_manifest
from torchcoll.stats import sides
from torchcoll.stats.differences import hidden_note, kept_separate, varying_text
from torchcoll.stats.filters import conditions
from torchcoll.stats.matching import NAMES, value_of

_USUAL = ("communicator", "clock")  # a case that did not run gets those of other cases


@dataclass(repr=False)
class Algorithms(Displayed):
    """The result of ``algorithms``.

    comparisons: how many tests of AUTO against a cell were made.
    missing: cells of the matrix without a result, with the reason.
    reading: how a time is computed from calls and ranks.
    """

    runs: list[Run]
    tables: list[Table]
    threshold: float
    comparisons: int
    notes: list[str]
    missing: dict[str, str]
    reading: str


def algorithms(
    sources: Source | Sequence[Source],
    *,
    threshold: float = THRESHOLD,
    filter: str | Sequence[str] = (),
    over_ranks: str = "max",
) -> Algorithms:
    """The best forced cell and AUTO's regret by size, from a matrix folder, files or Runs.

    threshold: a smaller difference counts as none. filter: as in ``compare``.
    Raises UsageError if no cell forces anything or none has right results; UnreadableError for a
    file that cannot be read.
    """
    if not (isinstance(threshold, int | float) and 0 < threshold < 1):
        raise UsageError("threshold", threshold, "above 0 % and below 100 %")
    files = sides.side("files", sources)
    wanted = conditions(filter)
    reading = sides.Reading(over_ranks)
    measured = files.measured("time", reading)
    items = [m for m in measured if all(condition.holds(m) for condition in wanted)]
    if not items and wanted:
        texts = ",".join(condition.text for condition in wanted)
        raise UsageError("filter", texts, "conditions that some case fulfils")
    runs = [(run.ranks, sides.known_of(run)) for run in files.parts]
    varied = forced_cells.varied_variables([facts for _, facts in runs])
    forcing = [forced_cells.forced_settings(m.facts, varied, m.row.backend) for m in items]
    if not any(forcing):
        backends = dict.fromkeys(m.row.backend for m in items)
        action = ""
        if not all(forced_cells.records_variables(facts) for _, facts in runs):
            action = "If the files do not say it: auto=PATH Ring=PATH Tree=PATH. "
        presets = {"nccl-algorithms": of_family(NCCL), "oneccl-algorithms": of_family(ONECCL)}
        named = [name for name, family in presets.items() if not backends.keys().isdisjoint(family)]
        raise UnusableError(
            "runs",
            f"none that forces an algorithm on {', '.join(backends)}",
            "runs with NCCL_ALGO, CCL_ALLREDUCE, ... set, on a backend that reads them",
            f"{action}torchcoll matrix --preset {(*named, *presets)[0]} makes such runs.",
        )
    inside = {name for settings in forcing for name in settings}
    # The settings that were varied on purpose without forcing anything separate the tables. Files
    # that record no variables are ignored here, so that AUTO of such a file is in the same table as
    # the cells.
    telling = kept_separate([run for run in runs if forced_cells.records_variables(run[1])])
    separate = [
        name
        for name in kept_separate(runs)
        if name.removeprefix("label=") not in {*inside, *FORCING}
        and (name.startswith("label=") or name in telling)
    ]
    every, left_out = _tables(files, items, forcing, separate)
    tables = [table for table in every if table.cells]
    tests = judge(tables, threshold)
    if not any(size.best for table in tables for size in table.sizes):
        raise UsageError("cells", "no forced one with a right result", "at least one")
    within = [*inside, *(f"label={name}" for name in (*inside, *FORCING))]
    notes = _notes(files, every, runs, [*separate, *within])
    notes += _unrecorded_notes(files, runs, left_out)
    notes += [results.outlier_text(_file(files.runs[o.run[1]]), o) for o in tests.left_out]
    if tests.comparisons and not (tests.in_order and tests.interleaved):
        notes.append(results.ONE_AFTER_THE_OTHER if tests.in_order else results.NO_STARTS)
    read = files.read_as(reading) or str(reading)
    missing = _missing_cells(sources)
    return Algorithms(files.runs, tables, threshold, tests.comparisons, notes, missing, read)


def _tables(
    files: sides.Side,
    items: Sequence[sides.Measured],
    forcing: Sequence[dict[str, str]],
    separate: Sequence[str],
) -> tuple[list[Table], set[str]]:
    """The tables, and the names of the files that are in none of them.

    Some files do not record whether their runs forced anything. If other runs are known to be AUTO,
    these runs are left out, because a forced run among them would change AUTO's time.
    """
    usual = {name: next((v for m in items if (v := value_of(m, name))), None) for name in _USUAL}
    groups: dict[str, tuple[dict[str, Any], list[tuple[sides.Measured, dict[str, str]]]]] = {}
    for item, settings in zip(items, forcing, strict=True):
        kind = {name: value_of(item, name) for name in NAMES}
        kind |= {name: kind[name] or value for name, value in usual.items()}
        kind |= {name: sides.value_of_fact(item.facts, name) for name in separate}
        groups.setdefault(repr(kind), (kind, []))[1].append((item, settings))
    tables, used = [], set()
    for kind, members in groups.values():
        automatic = [m for m, settings in members if not settings]
        unrecorded = {m.run for m in automatic if _records_nothing(m.facts)}
        if any(m.run not in unrecorded for m in automatic):
            members = [member for member in members if member[0].run not in unrecorded]
        tables.append(_table(files, kind, members))
        used |= {m.run for m, _ in members}
    return tables, {_file(files.runs[m.run]) for m in items if m.run not in used}


def _table(
    files: sides.Side,
    common: dict[str, Any],
    items: Sequence[tuple[sides.Measured, dict[str, str]]],
) -> Table:
    by_cell: dict[str, list[tuple[sides.Measured, dict[str, str]]]] = {}
    for item, settings in items:
        by_cell.setdefault(repr(sorted(settings.items())), []).append((item, settings))
    cells = list(by_cell.values())
    labels = [[files.runs[m.run].labels.get("cell") for m, _ in cell] for cell in cells]
    names = [forced_cells.cell_name(c[0][1], label) for c, label in zip(cells, labels, strict=True)]
    at: dict[int, list[CellAt]] = {}
    wrong: dict[str, list[int]] = {}
    unchecked = []
    uneven = []
    for name, members in zip(names, cells, strict=True):
        settings = members[0][1]
        if names.count(name) > 1:  # cells of two matrices may have the same label
            name = f"{name} ({' '.join(f'{n}={v}' for n, v in settings.items())})"
        cell = forced_cells.Forced(name, settings)
        by_size: dict[int, list[sides.Measured]] = {}
        for m, _ in members:
            by_size.setdefault(m.row.size_bytes_requested or m.row.size_bytes, []).append(m)
        for size_bytes, items_at_size in sorted(by_size.items()):
            result = _cell_at(cell, items_at_size)
            at.setdefault(size_bytes, []).append(result)
            if result.state == "wrong" and not cell.auto:
                wrong.setdefault(cell.name, []).append(size_bytes)
        if not cell.auto and all(m.row.verified == "unchecked" for m, _ in members):
            unchecked.append(cell.name)
        runs = {m.run for m, _ in members}
        if any({m.run for m in items_at_size} != runs for items_at_size in by_size.values()):
            uneven.append(cell.name)
    sizes = [
        SizeContest(
            size_bytes,
            next((cell_at for cell_at in cells if cell_at.cell.auto), None),
            [cell_at for cell_at in cells if not cell_at.cell.auto],
        )
        for size_bytes, cells in sorted(at.items())
    ]
    table_runs = [files.runs[m.run] for m, _ in items]
    hosts = max(len({x["host"] for x in run.members if x.get("host")}) for run in table_runs)
    library = next((m.row.library for m, _ in items if m.row.library), None)
    return Table(common, hosts, library, sizes, [], wrong, unchecked, uneven)


def _cell_at(cell: forced_cells.Forced, items: Sequence[sides.Measured]) -> CellAt:
    bad = [m for m in items if not m.row.is_right]
    is_wrong = any(m.row.outcome == "wrong" for m in bad)
    runs_and_values = [] if is_wrong else results.runs_of(items)
    values = tuple(value for value, _ in runs_and_values)
    state = "wrong" if is_wrong else "ok" if values else bad[0].row.outcome if bad else "no time"
    choices = tuple(dict.fromkeys(c for m in items for c in m.result.choices))
    mismatches = forced_cells.disobeyed(cell.settings, items[0].row.collective, choices)
    cell_at = CellAt(cell, values, state, choices, tuple(mismatches))
    cell_at.runs = tuple(first.run for _, (first, *_) in runs_and_values)
    cell_at.starts = tuple(first.start for _, (first, *_) in runs_and_values)
    return cell_at


def _missing_cells(sources: Source | Sequence[Source]) -> dict[str, str]:
    """The cells of matrices that have no run with a result, and why."""
    source_list = [sources] if not isinstance(sources, (list, tuple)) else sources
    paths = [Path(source) for source in source_list if isinstance(source, (str, os.PathLike))]
    last: dict[tuple[str, Any], Mapping[str, Any]] = {}
    for path in (p / MANIFEST if p.is_dir() else p for p in paths):
        for record in read_objects(path, "manifest") if is_manifest(path) else ():
            if record.get("record") == "run":
                last[str(record.get("cell")), record.get("run")] = record
    usable = {cell for (cell, _), record in last.items() if record.get("file")}
    return {
        cell: ": ".join(filter(None, (str(record.get("status")), str(record.get("reason") or ""))))
        for (cell, _), record in last.items()
        if cell not in usable
    }


def _records_nothing(facts: Mapping[str, str]) -> bool:
    """Whether a file records neither variables of a library nor labels in their place."""
    return not forced_cells.records_variables(facts) and not any(
        f"label={name}" in facts for name in FORCING
    )


def _file(run: Run) -> str:
    return run.path.name if run.path else str(run.source.get("file") or "a run")


def _unrecorded_notes(
    files: sides.Side, runs: Sequence[tuple[int, Mapping[str, str]]], left_out: set[str]
) -> list[str]:
    """Notes on files that do not record variables: taken for AUTO, or left out."""
    facts_of_runs = zip(files.parts, runs, strict=True)
    names = [_file(run) for run, (_, facts) in facts_of_runs if _records_nothing(facts)]
    texts = (
        ("taken for AUTO, though no variable of the library is known", False),
        ("left out: no variable of the library is known, and other runs tell of AUTO", True),
    )
    notes = []
    for text, out in texts:
        matching = [name for name in names if (name in left_out) == out]
        if matching:
            advice = "(NCCL_DEBUG=INFO shows it, import --label NCCL_ALGO=auto states it)"
            notes.append(f"{text}: {', '.join(shorten_middle(matching, 3))} {advice}")
    return notes


def _notes(
    files: sides.Side,
    tables: Sequence[Table],
    runs: Sequence[tuple[int, Mapping[str, str]]],
    separate: Sequence[str],
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
    values = sides.values_of_facts([dict(facts) for _, facts in runs])
    hidden = varying_text(values, [*separate, "label=cell", "label=run"])
    return [*notes, *filter(None, (hidden_note(hidden), files.rehearsal_note))]
