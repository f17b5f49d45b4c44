"""Published figures beside a run (``show --reference``). They have no spread to test by."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.bounds import ByteBudget
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UnreadableError, one_line
from torchcoll.core.jsonl import UNUSABLE, lines_of
from torchcoll.core.plausibility import IMPLAUSIBLE, summarise_run
from torchcoll.core.result import Run
from torchcoll.core.summary import Row
from torchcoll.core.units import format_bandwidth, format_digits, format_size
from torchcoll.report.destination import Destination
from torchcoll.report.grid import Grid, Head, print_grids
from torchcoll.report.notes import Notes

STATUSES = ("measured", "derived", "implausible", "unknown")


@dataclass(frozen=True)
class PublishedFigure:
    """busbw_gbps of a collective. size_bytes: None for a peak over sizes; ranks: 0 if not known."""

    name: str
    collective: str
    size_bytes: int | None
    ranks: int
    busbw_gbps: float
    status: str
    why: str = ""
    source: str = ""


def load_points(path: str) -> list[PublishedFigure]:
    """The points of a file. Raises UnreadableError where it is broken."""
    try:
        content = b"".join(lines_of(Path(path), [], "reference"))
        ByteBudget("reference", path).add(content)
        data = json.loads(content)
        return [_checked_figure(record) for record in data["points"]]
    except (OSError, *UNUSABLE) as error:
        raise UnreadableError("reference", path, f"a file of points ({error})") from None


def _checked_figure(record: dict[str, Any]) -> PublishedFigure:
    point = PublishedFigure(**record)
    if point.collective not in COLLECTIVES or point.status not in STATUSES:
        raise ValueError(f"{point.name}: unknown collective or status")
    whole = (point.ranks, 0 if point.size_bytes is None else point.size_bytes)
    if not isinstance(point.busbw_gbps, (int, float)) or not 0 < point.busbw_gbps < math.inf:
        raise ValueError(f"{point.name}: busbw_gbps is no number above 0")
    if any(type(value) is not int or value < 0 for value in whole):
        raise ValueError(f"{point.name}: ranks or size_bytes is no whole number")
    return point


def reference_grid(run: Run, points: Sequence[PublishedFigure]) -> Grid:
    """Each point of a collective that the run has, and what the run has at that size. Points that
    are possible come first.
    """
    rows = [r for r in summarise_run(run) if r.busbw_gbps and r.outcome in ("ok", IMPLAUSIBLE)]
    notes = Notes()
    lines = []
    best: tuple[float, str, str] | None = None
    matched = 0
    for point in sorted(points, key=lambda point: point.status == IMPLAUSIBLE):
        measured = _matching_row(rows, point)
        if measured is None or measured.busbw_gbps is None:
            continue
        matched += 1
        share = measured.busbw_gbps / point.busbw_gbps
        size = "peak" if point.size_bytes is None else format_size(point.size_bytes)
        why = point.why and f"{point.status}: {point.why}"
        status = f"{point.status} {notes.mark(why) if why else ''}".rstrip()
        if measured.status == IMPLAUSIBLE:
            mark = notes.mark(f"here implausible: {one_line(measured.reason)}")
            status = f"here implausible {mark}"
        elif point.status != IMPLAUSIBLE and (best is None or share > best[0]):
            figure = f"{format_digits(measured.busbw_gbps)} GB/s busbw in {point.collective}"
            there = f"{format_digits(point.busbw_gbps)} GB/s, {point.status}"
            best = share, f"{figure} ({size})", f"of {one_line(point.name)} ({there})"
        lines.append(
            [
                point.collective,
                size,
                format_bandwidth(measured.busbw_gbps),
                format_bandwidth(point.busbw_gbps),
                f"{100 * share:.0f}",
                status,
                one_line(point.name),
            ]
        )
    heads = [
        Head("collective", left=True, repeat=True),
        Head("size", repeat=True),
        Head("busbw", "GB/s"),
        Head("there", "GB/s"),
        Head("%"),
        Head("status", left=True),
        Head("reference", left=True, numbered=2),
    ]
    if best:
        answer = Answer(best[1], verb="is", size=best[0], unit="%", scope=best[2])
    elif lines:
        answer = Answer(f"no point can be compared: {matched} fit, and none is plausible")
    else:
        answer = Answer("no point is of a collective and size of this run")
    return Grid(heads, lines, below=notes.lines(), answer=answer)


def _matching_row(rows: Sequence[Row], point: PublishedFigure) -> Row | None:
    """The run's best row at the point's size, or of all for a peak; implausible ones come last."""
    candidates = [r for r in rows if r.collective == point.collective]
    if point.size_bytes is not None:
        candidates = [
            r for r in candidates if point.size_bytes in (r.size_bytes, r.size_bytes_requested)
        ]
    candidates = [r for r in candidates if r.is_right] or candidates
    return max(candidates, key=lambda r: r.busbw_gbps or 0.0, default=None)


def show_reference(
    runs: Sequence[Run], points: Sequence[PublishedFigure], format: str, file: TextIO | None = None
) -> None:
    """Prints a table for each run."""
    out = Destination(file)
    names = [one_line(run.path or run.header.get("run_id") or "run") for run in runs]
    titles = names if len(runs) > 1 else [""]
    titled = [(t, [reference_grid(run, points)]) for t, run in zip(titles, runs, strict=True)]
    print_grids(titled, format, out)
    out.flush()
