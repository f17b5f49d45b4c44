"""A model and its predictions as tables, markdown, CSV and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, TextIO

from torchcoll.core.collectives import busbw_gbps
from torchcoll.core.units import counted, format_ratio, format_size, format_time, time_text
from torchcoll.report.answer import Answer
from torchcoll.report.destination import Destination
from torchcoll.report.formats import Forms, known, picked, show_found
from torchcoll.report.grid import Grid, Head, filled, print_grids
from torchcoll.report.header import kind_texts
from torchcoll.report.notes import found_lines

if TYPE_CHECKING:
    from torchcoll.curves.model import Figure, KindModel, PredictedRow
    from torchcoll.curves.model_fit import FittedModel

PREDICTIONS_SCHEMA = "torchcoll-predictions/1"
_JACKKNIFE = "90 % intervals: jackknife+ (Barber et al. 2021), wider where extrapolated"


def show_fit(found: FittedModel, file: TextIO | None = None) -> None:
    """Print what was fitted, one line a law; why there is none over ranks once for all kinds."""
    entries = found.model.entries
    lines, missing = [], Counter(entry.why_not for entry in entries if not entry.over_ranks)
    for entry, title in zip(entries, kind_texts([e.kind for e in entries]), strict=True):
        lines.append(title)
        lines += [f"  {text}" for text in _entry_lines(entry)]
    below = [f"{n} of {counted(len(entries), 'kind')}: {why}" for why, n in missing.items()]
    below += found_lines(found.notes, found.runs)
    spreads = [one.spread for entry in entries for one in entry.over_sizes]
    over = sum(entry.over_ranks is not None for entry in entries)
    ranks = sorted({one.ranks for entry in entries for one in entry.over_sizes})
    text = f"fitted {counted(len(entries), 'kind')} of cases on {', '.join(map(str, ranks))} ranks"
    if spreads:
        low, high = min(one.low for one in spreads), max(one.high for one in spreads)
        text += f"; errors of left-out sizes {_percent(low - 1)} to {_percent(high - 1)} (90 %)"
    if over < len(entries):
        text += f"; {'none' if not over else f'only {over}'} can predict other numbers of ranks"
    answer = Answer(text, "" if over == len(entries) else "doubt")
    grids = [Grid([], [], above=lines), Grid([], [], below=below, answer=answer)]
    out = Destination(file)
    print_grids([("", grids)], "table", out)
    out.flush()


def _entry_lines(entry: KindModel) -> list[str]:
    lines = []
    for one in entry.over_sizes:
        parts = counted(len(one.law.pieces), "range")
        if one.factors:
            parts += f", {counted(len(one.factors), 'size')} off its law"
        hosts = f" on {counted(one.hosts, 'host')}" if one.hosts else ""
        lines.append(
            f"{one.ranks} ranks{hosts}: {one.sizes} sizes, {format_size(one.low_bytes)} to "
            f"{format_size(one.high_bytes)}: {parts}; errors "
            f"{_percent(one.spread.low - 1)} to {_percent(one.spread.high - 1)}"
        )
    law = entry.over_ranks
    if law is None:
        return lines
    numbers = ", ".join(map(str, law.ranks))
    others = [name for name in law.remaining if name != law.law]
    text = f"over ranks ({numbers}): {law.law}"
    text += f"; {', '.join(others)} cannot be told from it" if others else "; no other law remains"
    lines += [text, f"  launch overhead {_times(law.launch_ns)}"]
    for name, link in (("within a host", law.within), ("between hosts", law.between)):
        if link:
            step, bandwidth = link
            speed = "not resolved"
            if bandwidth:
                value, low, high = (format_ratio(gbps) for gbps in bandwidth)
                speed = f"{value} GB/s ({low} to {high})"
            place = name if any(law.hosts) else "hosts not known"
            lines.append(f"  {place}: a step {_times(step)}, bandwidth of a rank {speed}")
    return lines


def _times(figure: Figure | None) -> str:
    if figure is None:
        return "not resolved"
    value, low, high = (time_text(ns, 3) for ns in figure)
    return f"{value} ({low} to {high})"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def show_predictions(
    path: str, rows: Sequence[PredictedRow], format: str = "table", file: TextIO | None = None
) -> None:
    """Print them. Raises UsageError for an unknown format."""
    kinds: dict[str, list[PredictedRow]] = {}
    for row in rows:
        kinds.setdefault(repr(row.kind), []).append(row)
    titles = kind_texts([own[0].kind for own in kinds.values()])
    grids = [_predictions(own, title) for own, title in zip(kinds.values(), titles, strict=True)]
    actions = list(dict.fromkeys(row.action for row in rows if row.action))
    last = Grid([], [], below=actions, answer=_predictions_answer(path, rows, titles))
    thing = {
        "schema": PREDICTIONS_SCHEMA,
        "model": str(path),
        "level": 0.9,
        "rows": [
            {
                **known(row.kind),
                "ranks": row.ranks,
                "size_bytes": row.size_bytes,
                **picked(row.prediction, "time_ns low_ns high_ns beyond?"),
                "busbw_gbps": _busbw(row, row.prediction and row.prediction.time_ns),
                "busbw_low_gbps": _busbw(row, row.prediction and row.prediction.high_ns),
                "busbw_high_gbps": _busbw(row, row.prediction and row.prediction.low_ns),
                "reason": row.reason or None,
            }
            for row in rows
        ],
    }
    show_found([Forms([Grid([], [], above=[_JACKKNIFE]), *grids, last], thing)], format, file)


def _predictions_answer(path: str, rows: Sequence[PredictedRow], titles: Sequence[str]) -> Answer:
    """The most that was asked for, of the first kind, within the data where there is any (what is
    extrapolated is a guess); and how many are extrapolated.
    """
    known = [row for row in rows if row.prediction]
    if not known:
        return Answer(f"nothing can be predicted by {path}: {rows[0].reason}", "doubt")
    of_kind = [row for row in known if row.kind == known[0].kind]
    inside = [row for row in of_kind if row.prediction and not row.prediction.beyond]
    most = max(inside or of_kind, key=lambda row: (row.ranks, row.size_bytes))
    found = most.prediction
    assert found
    kinds = list(dict.fromkeys(repr(row.kind) for row in rows))
    title = titles[kinds.index(repr(most.kind))]
    text = (
        f"predicted by {path}, not measured: {title}: {format_size(most.size_bytes)} on "
        f"{most.ranks} ranks takes {_times((found.time_ns, found.low_ns, found.high_ns))}"
    )
    beyond = sum(bool(row.prediction and row.prediction.beyond) for row in rows)
    text += f"; {beyond} of {counted(len(rows), 'prediction')} extrapolated" * bool(beyond)
    out = len(rows) - len(known)
    text += f"; {out} not predicted, see the table" * bool(out)
    return Answer(text, "doubt" if beyond or out else "")


def _busbw(row: PredictedRow, ns: float | None) -> float | None:
    if ns is None:
        return None
    return busbw_gbps(str(row.kind["collective"]), row.size_bytes, row.ranks, ns)


def _predictions(rows: Sequence[PredictedRow], title: str) -> Grid:
    heads = [
        Head("ranks", repeat=True),
        Head("size", repeat=True),
        Head("time"),
        Head("90 %", left=True),
        Head("busbw", "GB/s"),
        Head("90 %", "GB/s", left=True),
        Head("extrapolated", left=True),
    ]
    lines = []
    for row in rows:
        found = row.prediction
        line = [str(row.ranks), format_size(row.size_bytes)]
        if found:
            busbw, low, high = (
                _busbw(row, ns) for ns in (found.time_ns, found.high_ns, found.low_ns)
            )
            line += [
                format_time(found.time_ns),
                f"{format_time(found.low_ns)} to {time_text(found.high_ns)}",
                format_ratio(busbw),
                "-" if low is None else f"{format_ratio(low)} to {format_ratio(high)}",
                found.beyond or "within",
            ]
        else:
            line += ["-", "-", "-", "-", row.reason]
        lines.append(line)
    columns = [(head, itemgetter(number)) for number, head in enumerate(heads)]
    return filled(columns, lines, above=[title])
