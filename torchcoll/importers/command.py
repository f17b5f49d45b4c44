"""``torchcoll import``: what was read and refused, as lines; and the files that it writes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchcoll.core.errors import UsageError
from torchcoll.core.records import save
from torchcoll.core.result import Run
from torchcoll.core.units import counted
from torchcoll.core.variables import masked_labels
from torchcoll.importers.base import Imported


def columns_of(text: str | None) -> dict[str, str]:
    """``size=Size,algbw=Algbw (GB/s)`` as a dictionary; a comma in a name is written ``\\,``."""
    found: dict[str, str] = {}
    for pair in (text or "").replace("\\,", "\0").split(","):
        key, equals, name = pair.replace("\0", ",").partition("=")
        if pair.strip():
            if not equals or not name.strip():
                raise UsageError("map", pair, "KEY=COLUMN pairs with commas, such as size=Size")
            found[key.strip()] = name.strip()
    return found


def labels_of(texts: Sequence[str]) -> dict[str, str]:
    """``KEY=VALUE`` of each --label."""
    for text in texts:
        if not text.partition("=")[0].strip() or "=" not in text:
            raise UsageError("label", text, "KEY=VALUE, such as kernel=6.8.0-generic")
    pairs = (text.partition("=") for text in texts)
    return masked_labels({key.strip(): value for key, _, value in pairs})


def report_lines(path: str, found: Imported) -> Iterator[str]:
    """One line on the whole file, one for each reason of a refusal, one for each warning."""
    present = found.rows + len(found.refused)
    cases = sum(len(run.results) for run in found.runs)
    runs = f" in {len(found.runs)} runs" if len(found.runs) > 1 else ""
    read = f"{found.rows} of {counted(present, 'row')} read, {counted(cases, 'case')}"
    yield f"{path}: {found.importer}: {read}{runs}"
    for lines, why in found.refusals():
        yield f"{path}{f':{lines}' if lines else ''}: refused: {why}"
    for text in found.warnings:
        yield f"{path}: {text}"
    for ending in dict.fromkeys(run.ending for run in found.runs if run.ending):
        yield f"{path}: {ending}"


def output_paths(path: str, count: int) -> list[Path]:
    """``run.jsonl``; of several runs ``run.jsonl``, ``run-2.jsonl``, ..."""
    first = Path(path)
    more = [first.with_name(f"{first.stem}-{n}{first.suffix}") for n in range(2, count + 1)]
    return [first, *more]


def write(runs: Sequence[Run], path: str) -> list[Path]:
    """Raises UsageError before anything is written where one of the files exists."""
    paths = output_paths(path, len(runs))
    for each in paths:
        if os.path.lexists(each):
            raise UsageError(
                "output", each, "a file that does not exist", "Name another file or remove it."
            )
    for run, each in zip(runs, paths, strict=True):
        save(run, each)
    return paths
