"""A model and its predictions as tables, markdown, CSV and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, TextIO

from torchcoll.core.answer import Answer, format_quantity
from torchcoll.core.collectives import busbw_gbps
from torchcoll.core.errors import choice
from torchcoll.core.units import (
    counted,
    format_factor,
    format_ns,
    format_ratio,
    format_size,
    format_time,
)
from torchcoll.parts.curves.published_machine import PublishedMachine, published_machines
from torchcoll.report.destination import Destination
from torchcoll.report.formats import Forms, print_forms, print_results, select_fields, without_none
from torchcoll.report.grid import Grid, Head, make_grid, print_grids
from torchcoll.report.header import kind_texts
from torchcoll.report.notes import footer_lines

if TYPE_CHECKING:
    from torchcoll.parts.curves.model import Figure, KindModel, OverSizes, Spread
    from torchcoll.parts.curves.model_fit import FittedModel
    from torchcoll.parts.curves.predictor import PredictedRow, Predictor

_MOST_PREDICTED = 3  # in the sentence
PREDICTIONS_SCHEMA = "torchcoll-predictions/1"


def show_fits(
    models: Sequence[FittedModel], format: str = "table", file: TextIO | None = None
) -> None:
    """Print fitted models. Raises UsageError for another format than table."""
    choice(format, "format", ("table",))
    out = Destination(file)
    for fitted in models:
        print_grids([("", _fit_grids(fitted))], "table", out)
    out.flush()


def _fit_grids(fitted: FittedModel) -> list[Grid]:
    """A line for each curve over sizes, and each law over ranks; once for all kinds why there is no
    such law.
    """
    entries = fitted.model.entries
    missing = Counter(entry.why_not for entry in entries if not entry.over_ranks)
    titles = kind_texts([entry.kind for entry in entries])
    curves = [
        (title, curve)
        for title, entry in zip(titles, entries, strict=True)
        for curve in entry.over_sizes
    ]
    table = make_grid(
        [
            (Head("case", left=True, repeat=True), lambda row: row[0]),
            (Head("ranks", repeat=True), lambda row: str(row[1].ranks)),
            (Head("hosts", drop=1), lambda row: str(row[1].hosts or "-")),
            (Head("sizes", left=True), _sizes),
            (Head("ranges"), lambda row: str(len(row[1].law.pieces))),
            (Head("sizes", "corrected", drop=2), lambda row: str(len(row[1].law.corrections))),
            (Head("left-out sizes", "(90 %)", left=True), lambda row: _range(row[1].spread)),
        ],
        curves,
    )
    lines = []
    for entry, title in zip(entries, titles, strict=True):
        law_lines = _law_lines(entry)
        lines += [title, *(f"  {text}" for text in law_lines)] if law_lines else []
    below = [f"{n} of {counted(len(entries), 'kind')}: {why}" for why, n in missing.items()]
    below += footer_lines(fitted.notes, fitted.runs)
    return [table, Grid([], [], above=lines), Grid([], [], below=below, answer=fitted.answer)]


def _sizes(row: tuple[str, OverSizes]) -> str:
    _, curve = row
    return f"{curve.sizes}, {format_size(curve.low_bytes)} to {format_size(curve.high_bytes)}"


def _range(spread: Spread) -> str:
    return f"{_error(spread.low)} to {_error(spread.high)}"


def _error(ratio: float) -> str:
    """How far a time is off: ``-50 %``, ``+8.1 %``, ``2.0x``."""
    percent = 100 * (ratio - 1)
    if percent >= 99.5:
        return format_factor(ratio)
    return f"{percent:+.{int(abs(percent) < 9.95)}f} %"


def _law_lines(entry: KindModel) -> list[str]:
    law = entry.over_ranks
    if law is None:
        return []
    numbers = ", ".join(map(str, law.ranks))
    other_laws = [name for name in law.remaining if name != law.law]
    text = f"over ranks ({numbers}): {law.law}"
    if not law.supported:
        text += (
            ", which is assumed: no number of ranks can be predicted from the others, and the "
            "interval is that of published machines"
        )
    elif other_laws:
        text += f"; {', '.join(other_laws)} cannot be distinguished from it"
    else:
        text += "; no other law remains"
    times = _times if law.supported else _value  # an assumed law has no interval of its parameters
    lines = [text, f"  launch overhead {times(law.launch_ns)}"]
    for name, link in (("within a host", law.within), ("between hosts", law.between)):
        if link:
            step, bandwidth = link
            speed = "not resolved"
            if bandwidth:
                value, low, high = (format_quantity(gbps, "GB/s") for gbps in bandwidth)
                speed = value + f" ({low} to {high})" * law.supported
            link_name = name if any(law.hosts) else "hosts not known"
            lines.append(f"  {link_name}: a step {times(step)}, bandwidth of a rank {speed}")
    return lines


def _times(figure: Figure | None) -> str:
    if figure is None:
        return "not resolved"
    value, low, high = (format_ns(ns, 3) for ns in figure)
    return f"{value} ({low} to {high})"


def _value(figure: Figure | None) -> str:
    return "not resolved" if figure is None else format_ns(figure[0], 3)


def show_predictions(
    machine: Predictor,
    rows: Sequence[PredictedRow],
    format: str = "table",
    file: TextIO | None = None,
) -> None:
    """Print the predictions of a machine. Raises UsageError for an unknown format."""
    kinds: dict[str, list[PredictedRow]] = {}
    for row in rows:
        kinds.setdefault(repr(row.kind), []).append(row)
    titles = kind_texts([kind_rows[0].kind for kind_rows in kinds.values()])
    grids = [_predictions(each, title) for each, title in zip(kinds.values(), titles, strict=True)]
    actions = list(dict.fromkeys(row.action for row in rows if row.action))
    last = Grid(
        [],
        [],
        below=[*machine.notes(), *actions],
        answer=_predictions_answer(machine.name, rows, titles),
    )
    document = {
        "schema": PREDICTIONS_SCHEMA,
        "model": machine.name,
        "level": 0.9,
        "rows": [
            {
                **without_none(row.kind),
                "ranks": row.ranks,
                "size_bytes": row.size_bytes,
                **select_fields(row.prediction, "time_ns low_ns high_ns beyond?"),
                "busbw_gbps": _busbw(row, row.prediction and row.prediction.time_ns),
                "busbw_low_gbps": _busbw(row, row.prediction and row.prediction.high_ns),
                "busbw_high_gbps": _busbw(row, row.prediction and row.prediction.low_ns),
                "reason": row.reason or None,
            }
            for row in rows
        ],
    }
    first = Grid([], [], above=[machine.intervals])
    print_results([Forms([first, *grids, last], document)], format, file)


def _predictions_answer(name: str, rows: Sequence[PredictedRow], titles: Sequence[str]) -> Answer:
    """The predictions in a sentence: if there are many, the largest size on the most ranks, of the
    fastest and of the slowest kind of case; and how many of all predictions are extrapolated.

    Takes a size within the data if possible, because an extrapolation is a guess.
    """
    predicted = [row for row in rows if row.prediction]
    if not predicted:
        return Answer(f"nothing can be predicted by {name}: {rows[0].reason}", "doubt")
    kinds = list(dict.fromkeys(repr(row.kind) for row in rows))
    inside = [row for row in predicted if row.prediction and not row.prediction.beyond]
    if len(kinds) == 1 and len(predicted) <= _MOST_PREDICTED:
        named = predicted
    else:
        most = max((row.ranks, row.size_bytes) for row in inside or predicted)
        named = [row for row in inside or predicted if (row.ranks, row.size_bytes) == most]
        named.sort(key=lambda row: row.prediction.time_ns if row.prediction else 0)
        named = named[:1] + named[1:][-1:]  # the fastest and the slowest kind
    several = len({row.ranks for row in named}) > 1
    on = "" if several else f" on {counted(named[0].ranks, 'rank')}"
    text = f"predicted by {name}, not measured: "
    if len(kinds) == 1:
        text += f"{titles[0]}{on}: {', '.join(_prediction_text(row, several) for row in named)}"
    else:
        before = [f"{titles[kinds.index(repr(row.kind))]}: " for row in named]
        times = " to ".join(map(_time_text, named, before))
        text += f"{format_size(named[0].size_bytes)}{on} takes {times}"
    beyond = sum(bool(row.prediction and row.prediction.beyond) for row in rows)
    if beyond and len(named) < len(predicted):
        text += f"; {beyond} of {counted(len(rows), 'prediction')} extrapolated"
    out = len(rows) - len(predicted)
    text += f"; {out} not predicted, see the table" * bool(out)
    return Answer(text, "doubt" if beyond or out else "")


def _prediction_text(row: PredictedRow, with_ranks: bool) -> str:
    on = f" on {counted(row.ranks, 'rank')}" if with_ranks else ""
    return f"{format_size(row.size_bytes)}{on} takes {_time_text(row)}"


def _time_text(row: PredictedRow, before: str = "") -> str:
    """``5.19 ms (4.12 ms to 6.55 ms)``; before: what stands before the interval."""
    assert row.prediction
    time, low, high = (format_ns(ns, 3) for ns in row.prediction[:3])
    beyond = ", extrapolated" if row.prediction.beyond else ""
    return f"{time} ({before}{low} to {high}{beyond})"


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
        prediction = row.prediction
        line = [str(row.ranks), format_size(row.size_bytes)]
        if prediction:
            times = (prediction.time_ns, prediction.high_ns, prediction.low_ns)
            busbw, low, high = (_busbw(row, ns) for ns in times)
            line += [
                format_time(prediction.time_ns),
                f"{format_time(prediction.low_ns)} to {format_ns(prediction.high_ns)}",
                format_ratio(busbw),
                "-" if low is None else f"{format_ratio(low)} to {format_ratio(high)}",
                prediction.beyond or "no",
            ]
        else:
            line += ["-", "-", "-", "-", row.reason]
        lines.append(line)
    columns = [(head, itemgetter(number)) for number, head in enumerate(heads)]
    return make_grid(columns, lines, above=[title])


SCHEMA = "torchcoll-machines/1"


def show_machines(format: str = "table", file: TextIO | None = None) -> None:
    """Print the names that `--machine` takes. Raises UsageError for an unknown format."""
    machines = list(published_machines().values())
    kinds = sum(not machine.type for machine in machines)
    text = (
        f"{counted(len(machines) - kinds, 'type')} of machine that others measured, and "
        f"{counted(kinds, 'kind')} of host; torchcoll show --published has the runs and sources"
    )
    grid = make_grid(
        [
            (Head("machine", left=True), lambda machine: machine.name),
            (Head("GPUs", "linked"), lambda machine: str(machine.links.linked)),
            (Head("GPU", left=True), lambda machine: machine.links.gpu),
            (Head("network", "Gbit/s a host"), _network),
            (Head("ranks published", left=True), _ranks),
            (Head("what", left=True, drop=1), _what),
        ],
        machines,
        below=["~ assumed: the median of what such machines state, or what they usually have"],
    )
    rows = [_row(machine) for machine in machines]
    last = Grid([], [], answer=Answer(text))
    print_forms([("", [grid, last])], rows, {"schema": SCHEMA, "rows": rows}, format, file)


def _network(machine: PublishedMachine) -> str:
    assumed = "~" if machine.links.doubt else ""
    return f"{assumed}{8 * machine.links.nics_gbps:.0f}"


def _ranks(machine: PublishedMachine) -> str:
    return ", ".join(map(str, sorted({run.ranks for run in machine.runs})))


def _what(machine: PublishedMachine) -> str:
    return "a kind of host" if not machine.type else machine.runs[0].machine


def _row(machine: PublishedMachine) -> dict[str, object]:
    return {
        "machine": machine.name,
        "gpu": machine.links.gpu,
        "linked": machine.links.linked,
        "network_gbit": 8 * machine.links.nics_gbps,
        "network_assumed": bool(machine.links.doubt),
        "ranks": sorted({run.ranks for run in machine.runs}),
        "type": machine.type or None,
    }
