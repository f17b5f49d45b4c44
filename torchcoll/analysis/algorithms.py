"""Which forced algorithm wins at each size, and what AUTO loses to it.

Launches are the replicates, as in ``compare``. Three questions with three answers:

* Is AUTO beaten? Welch's t of AUTO against every forced cell at every size, Holm over all of them:
  no cell is picked first, so no winner's curse. Beaten: p below 0.05 and beyond the threshold.
* Is AUTO near-optimal? Where the 95 % interval of its regret (analysis/winners.py) ends below the
  threshold. It is said of a table only if it holds at every size; such an 'all of them' needs no
  correction (R. L. Berger, Technometrics 24 (1982) 295).
* Which cell wins? Those that may be the best are ties; neighbouring sizes with a winner in common
  are one range.

A cell that was wrong at one size wins at none: its other results were luck.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchcoll.analysis.cases import launches_of
from torchcoll.analysis.compare import THRESHOLD
from torchcoll.analysis.conditions import conditions
from torchcoll.analysis.environments import kept_apart, varying_text
from torchcoll.analysis.forced import Forced, disobeyed, name_of, settings_of, varied_of
from torchcoll.analysis.matching import NAMES, value_of
from torchcoll.analysis.sides import (
    Measured,
    Reader,
    Reading,
    Side,
    Source,
    known_of,
    side,
    values_of_facts,
)
from torchcoll.analysis.stats import (
    LEVEL,
    Ratio,
    geometric,
    holm,
    launches_needed,
    launches_to_bound,
    welch_ratio,
)
from torchcoll.analysis.verdicts import p_text, percent
from torchcoll.analysis.winners import may_be_best, regret, regret_interval, runs_of_winners
from torchcoll.core.errors import UsageError
from torchcoll.core.records import MANIFEST, is_manifest, lines_of, load_all, parse_line
from torchcoll.core.result import Choice
from torchcoll.core.units import format_size

_USUAL = ("communicator", "clock")  # a case that did not run has none


@dataclass
class CellAt:
    """One cell at one size. values: ns, one a launch. state: ok, or why it has no time (wrong,
    oom, ...). ratio: AUTO / cell, with Holm's p over the whole command.
    """

    cell: Forced
    values: tuple[float, ...]
    state: str
    choices: tuple[Choice, ...]
    disobeyed: tuple[Choice, ...]
    ratio: Ratio | None = None
    p_value: float | None = None

    @property
    def time_ns(self) -> float | None:
        return geometric(self.values)

    @property
    def shown(self) -> bool:
        """Whether it is shown to differ from AUTO."""
        return self.p_value is not None and self.p_value < LEVEL


@dataclass
class SizeFound:
    """One size. best: of the forced cells that were right. tied: names of those that may be it."""

    nbytes: int
    auto: CellAt | None
    cells: list[CellAt]
    best: CellAt | None = None
    tied: list[str] = field(default_factory=list)
    regret: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = ""
    reason: str = ""
    needed: int | None = None  # launches a cell that would settle what is unclear


@dataclass(frozen=True)
class Range:
    """Measured sizes next to each other with one winner; others: cells that tie in all of it."""

    low_nbytes: int
    high_nbytes: int
    winner: Forced
    others: tuple[str, ...] = ()


@dataclass
class Table:
    """Cases that differ in the size and in what was forced alone. hosts: 0 where unknown."""

    common: dict[str, Any]
    hosts: int
    library: str | None
    sizes: list[SizeFound]
    ranges: list[Range]
    wrong: dict[str, list[int]]  # cell -> sizes
    unchecked: list[str]  # cells whose results nobody verified

    @property
    def cells(self) -> list[Forced]:
        return list({at.cell.name: at.cell for size in self.sizes for at in size.cells}.values())

    def statement(self, threshold: float) -> str:
        """What is shown of AUTO in this table, in a sentence; '' without AUTO."""
        judged = [size for size in self.sizes if size.verdict]
        if not judged:
            return ""
        among = f"the best of {len(self.cells)} cells"
        if all(size.verdict == "near-optimal" for size in judged):
            most = max(size.high or 0.0 for size in judged)
            extent = f"at most {percent(round(max(most - 1, 0.0), 4))} slower than {among}"
            return f"AUTO is near-optimal at every size measured: {extent} (95 %)"
        words = []
        beaten = [size for size in judged if size.verdict == "beaten"]
        if beaten:
            most = max(size.regret or 0.0 for size in beaten)
            words.append(f"AUTO is beaten at {self._spans(beaten)} (regret up to {most:.2f})")
        unclear = [size for size in judged if size.verdict == "unclear"]
        if unclear:
            needed = [size.needed for size in unclear]
            known = [number for number in needed if number]
            settled = f" ({max(known)} launches a cell would settle it)" if len(
                known) == len(needed) else ""  # fmt: skip
            words.append(f"unclear at {self._spans(unclear)}{settled}")
        near = [size for size in judged if size.verdict == "near-optimal"]
        if near:
            words.append(f"near-optimal (within {percent(threshold)}) at {self._spans(near)}")
        return "; ".join(words)

    def _spans(self, sizes: Sequence[SizeFound]) -> str:
        """``1K to 4K, 1M``: neighbours among the measured sizes as one span."""
        places = [i for i, size in enumerate(self.sizes) if any(size is one for one in sizes)]
        spans: list[list[int]] = []
        for place in places:
            if spans and place == spans[-1][1] + 1:
                spans[-1][1] = place
            else:
                spans.append([place, place])
        ends = [[format_size(self.sizes[i].nbytes) for i in span] for span in spans]
        return ", ".join(a if a == b else f"{a} to {b}" for a, b in ends)


@dataclass
class Algorithms:
    """What ``algorithms`` found. missing: cells of the matrix without a result, with the reason.
    matrices: the plan (``spec``) of each manifest.
    """

    tables: list[Table]
    threshold: float
    comparisons: int
    notes: list[str]
    missing: dict[str, str]
    matrices: list[dict[str, Any]]


def algorithms(
    sources: Source | Sequence[Source],
    *,
    threshold: float = THRESHOLD,
    filter: str | Sequence[str] = (),
    over_ranks: str = "max",
    reader: Reader = load_all,
) -> Algorithms:
    """The best forced cell and AUTO's regret by size, of a matrix folder, files or Runs.

    threshold: slower by less is nothing that anyone would act on. filter: as in ``compare``.
    Raises UsageError where no cell forces anything or none was right, UnreadableError for a file.
    """
    files = side("files", sources, reader)
    wanted = conditions(filter)
    measured = files.measured("time", Reading(over_ranks))
    items = [m for m in measured if all(one.holds(m) for one in wanted)]
    if not items and wanted:
        texts = ",".join(one.text for one in wanted)
        raise UsageError("filter", texts, "conditions that some case fulfils")
    launches = [(part.ranks, known_of(part)) for part in files.parts]
    varied = varied_of([facts for _, facts in launches])
    forcing = [settings_of(m.facts, varied) for m in items]
    if not any(forcing):
        raise UsageError(
            "cells", "none that forces anything", "launches with NCCL_ALGO, CCL_ALLREDUCE, ... set",
            "torchcoll matrix --preset nccl-algorithms makes them.",
        )  # fmt: skip
    inside = {name for own in forcing for name in own}
    apart = [name for name in kept_apart(launches) if name not in inside]
    tables = _tables(files, items, forcing, apart)
    comparisons = _judge(tables, threshold)
    if not any(size.best for table in tables for size in table.sizes):
        raise UsageError("cells", "no forced one with a right result", "at least one")
    matrices, missing = _manifests(sources)
    notes = _notes(files, tables, launches, [*apart, *inside])
    return Algorithms(tables, threshold, comparisons, notes, missing, matrices)


# -- tables ----------------------------------------------------------------------------------


def _tables(
    files: Side, items: Sequence[Measured], forcing: Sequence[dict[str, str]], apart: Sequence[str]
) -> list[Table]:
    usual = {name: next((v for m in items if (v := value_of(m, name))), None) for name in _USUAL}
    groups: dict[str, tuple[dict[str, Any], list[tuple[Measured, dict[str, str]]]]] = {}
    for item, settings in zip(items, forcing, strict=True):
        kind = {name: value_of(item, name) for name in NAMES}
        kind |= {name: kind[name] or value for name, value in usual.items()}
        kind |= {name: item.facts.get(name, "unset") for name in apart}
        groups.setdefault(repr(kind), (kind, []))[1].append((item, settings))
    return [_table(files, kind, own) for kind, own in groups.values()]


def _table(
    files: Side, common: dict[str, Any], items: Sequence[tuple[Measured, dict[str, str]]]
) -> Table:
    by_cell: dict[str, list[tuple[Measured, dict[str, str]]]] = {}
    for item, settings in items:
        by_cell.setdefault(repr(sorted(settings.items())), []).append((item, settings))
    at: dict[int, list[CellAt]] = {}
    wrong: dict[str, list[int]] = {}
    unchecked = []
    for own in by_cell.values():
        labels = [files.runs[m.launch].labels.get("cell") for m, _ in own]
        cell = Forced(name_of(own[0][1], labels), own[0][1])
        for nbytes in sorted({m.row.nbytes_requested or m.row.nbytes for m, _ in own}):
            here = [m for m, _ in own if (m.row.nbytes_requested or m.row.nbytes) == nbytes]
            found = _cell_at(cell, here)
            at.setdefault(nbytes, []).append(found)
            if found.state == "wrong":
                wrong.setdefault(cell.name, []).append(nbytes)
        if not cell.auto and all(m.row.verified == "unchecked" for m, _ in own):
            unchecked.append(cell.name)
    sizes = [
        SizeFound(
            nbytes,
            next((one for one in cells if one.cell.auto), None),
            [one for one in cells if not one.cell.auto],
        )
        for nbytes, cells in sorted(at.items())
    ]
    parts = [files.runs[m.launch] for m, _ in items]
    hosts = max(len({x["host"] for x in run.members if x.get("host")}) for run in parts)
    library = next((m.row.library for m, _ in items if m.row.library), None)
    return Table(common, hosts, library, sizes, [], wrong, unchecked)


def _cell_at(cell: Forced, items: Sequence[Measured]) -> CellAt:
    values = tuple(value for value, _ in launches_of(items))
    bad = [m for m in items if m.row.status != "ok" or m.row.verified == "wrong"]
    is_wrong = any(m.row.verified == "wrong" or m.row.status == "wrong" for m in bad)
    state = "wrong" if is_wrong else "ok" if values else bad[0].row.status if bad else "no time"
    choices = tuple(dict.fromkeys(c for m in items for c in m.result.choices))
    other = disobeyed(cell.settings, items[0].row.collective, choices)
    return CellAt(cell, () if is_wrong else values, state, choices, tuple(other))


# -- verdicts --------------------------------------------------------------------------------


def _judge(tables: Sequence[Table], threshold: float) -> int:
    """Fills in what is found of each size; how many comparisons with AUTO Holm went over."""
    tested = []
    for table in tables:
        for size in table.sizes:
            right = [c for c in size.cells if c.values and c.cell.name not in table.wrong]
            if not right:
                continue
            size.best = min(right, key=lambda c: c.time_ns or math.inf)
            values = {c.cell.name: c.values for c in right}
            size.tied = may_be_best(values, threshold)
            if not (size.auto and size.auto.values):
                continue
            auto = size.auto.values
            size.regret = regret(auto, values)
            size.low, size.high = regret_interval(auto, values)
            for one in size.cells:
                one.ratio = welch_ratio(one.values, auto) if one.values else None
            tested += [c for c in right if c.ratio and c.ratio.p_value is not None]
    adjusted = holm([c.ratio.p_value or 0.0 for c in tested if c.ratio])
    for one, p in zip(tested, adjusted, strict=True):
        one.p_value = p
    for table in tables:
        for size in table.sizes:
            if size.regret is not None:
                names = {one.cell.name for one in size.cells if one.values} - set(table.wrong)
                own = [one for one in size.cells if one.cell.name in names]
                _verdict(size, own, len(tested), threshold)
        table.ranges = _ranges(table)
    return len(tested)


def _verdict(size: SizeFound, cells: Sequence[CellAt], tested: int, threshold: float) -> None:
    limit = 1 + threshold
    beating = [c for c in cells if c.shown and c.ratio and c.ratio.ratio > limit]
    if beating:
        first = min(beating, key=lambda c: c.p_value or 0.0)
        size.verdict, size.reason = "beaten", f"by {first.cell.name}, {p_text(first.p_value or 0)}"
        return
    if size.high is not None and size.high < limit:
        size.verdict, size.reason = "near-optimal", f"95 % below {percent(threshold)}"
        return
    size.verdict = "unclear"
    launches = min([len(c.values) for c in cells] + [len(size.auto.values if size.auto else ())])
    if launches < 2:
        size.reason = "1 launch a cell"
        return
    unsettled = [c.ratio for c in cells if c.ratio and not (c.ratio.high and c.ratio.high < limit)]
    if any(ratio.p_value is None for ratio in unsettled):
        size.reason = "launches are equal: no spread to judge by"
        return
    # One cell shown to be faster settles it; else all must be shown not to be.
    faster = [launches_needed(r, tested, threshold) for r in unsettled if r.ratio > limit]
    slower = [launches_to_bound(r, threshold) for r in unsettled if r.ratio <= limit]
    known = [n for n in faster if n] if faster else slower
    numbers = [n for n in known if n]
    if not numbers or (not faster and None in known):
        size.reason = f"too near {percent(threshold)} to settle"
        return
    needed = min(numbers) if faster else max(numbers)
    size.needed = max(needed, launches + 1)
    size.reason = f"needs {size.needed} launches"


def _ranges(table: Table) -> list[Range]:
    """Ties take what leaves the fewest ranges; of several common winners the one that did what its
    name says, then the fastest over the range.
    """
    cells = {cell.name: cell for cell in table.cells}
    found = []
    for first, last, names in runs_of_winners([size.tied for size in table.sizes]):
        inside = table.sizes[first : last + 1]

        def rank(name: str, inside: Sequence[SizeFound] = inside) -> tuple[bool, float]:
            own = [c for size in inside for c in size.cells if c.cell.name == name]
            times = [math.log(c.time_ns) for c in own if c.time_ns]
            return any(c.disobeyed for c in own), sum(times)

        winner = min(names, key=rank)
        others = tuple(name for name in names if name != winner)
        sizes = inside[0].nbytes, inside[-1].nbytes
        found.append(Range(*sizes, cells[winner], others))
    return found


# -- what is beside the figures ---------------------------------------------------------------


def _manifests(
    sources: Source | Sequence[Source],
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The plans of ``torchcoll matrix``, and its cells that have no launch with a result."""
    several = [sources] if not isinstance(sources, (list, tuple)) else sources
    paths = [Path(one) for one in several if isinstance(one, (str, os.PathLike))]
    specs, last = [], dict[tuple[str, Any], Mapping[str, Any]]()
    for path in (p / MANIFEST if p.is_dir() else p for p in paths):
        if not is_manifest(path):
            continue
        for line in lines_of(path, [], "manifest"):
            try:
                record = parse_line(line)
            except ValueError:
                continue
            if not isinstance(record, dict):
                continue
            if record.get("record") == "matrix" and isinstance(record.get("spec"), dict):
                specs.append(record["spec"])
            elif record.get("record") == "launch":
                last[str(record.get("cell")), record.get("launch")] = record
    usable = {cell for (cell, _), record in last.items() if record.get("file")}
    missing = {
        cell: ": ".join(filter(None, (str(record.get("status")), str(record.get("reason") or ""))))
        for (cell, _), record in last.items()
        if cell not in usable
    }
    return specs, missing


def _notes(
    files: Side,
    tables: Sequence[Table],
    launches: Sequence[tuple[int, Mapping[str, str]]],
    known: Sequence[str],
) -> list[str]:
    notes = []
    if not any(size.auto for table in tables for size in table.sizes):
        notes.append("no launch in which nothing is forced: nothing is said of AUTO")
    names = dict.fromkeys(name for table in tables for name in table.unchecked)
    if names:
        notes.append(
            f"not verified: {', '.join(names)}; an algorithm forced by name may be wrong "
            "(LL128 skips NCCL's own check)"
        )
    values = values_of_facts([dict(facts) for _, facts in launches])
    hidden = varying_text(values, [*known, "label=cell", "label=launch"])
    if hidden:
        notes.append(f"hidden: the launches are not alike in {hidden}")
    if files.rehearsals:
        notes.append("rehearsals: ranks shared a GPU, and no time means anything")
    return notes
