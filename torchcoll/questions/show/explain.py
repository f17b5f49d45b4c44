"""Where a figure comes from: ``torchcoll show --explain``, a row's numbers in their formulas."""

from __future__ import annotations

from collections.abc import Sequence

from torchcoll.core.answer import Answer
from torchcoll.core.case import DIMENSIONS, value_text
from torchcoll.core.collectives import COLLECTIVES, DEFAULT_COLLECTIVE, find_collective
from torchcoll.core.errors import UnusableError, UsageError, one_line, unknown
from torchcoll.core.plausibility import CHECK_RANKS, IMPLAUSIBLE, summarise_run
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import COLD_CALL, PERIOD, Row
from torchcoll.core.units import (
    counted,
    format_bandwidth,
    format_ns,
    format_size,
    parse_size,
    shorten,
)
from torchcoll.report.grid import Grid
from torchcoll.report.header import reading, reported_text


def asked(terms: Sequence[str]) -> tuple[str | None, int | None]:
    """A collective and a size, in any order; None where one is not named. Raises UsageError for
    other words.
    """
    collective, size_bytes = None, None
    for term in " ".join(terms).split():  # "all_reduce 8M" may be quoted
        if term[:1].isdigit():
            size_bytes = parse_size(term)
            continue
        try:
            collective = find_collective(term).name
        except UsageError:
            raise unknown("explain", term, COLLECTIVES, "a size, or one of {}") from None
    return collective, size_bytes


# Metrics that need samples, which a source may lack.
_SAMPLED = {"first": "first_call_ns", "low": "low_ns", "high": "high_ns", "p99": "p99_ns"}


_MOST_ALIKE = 4  # rows of one collective and size that are explained together


def explained(run: Run, collective: str | None, size_bytes: int | None) -> list[Grid]:
    """The rows of a run that are of one collective and size, such as those in and out of place.
    Raises UsageError where no case is like that.
    """
    rows = list(zip(summarise_run(run), run.results, strict=True))
    fitting = [
        (row, result)
        for row, result in rows
        if collective in (None, row.collective)
        and size_bytes in (None, row.size_bytes, row.size_bytes_requested)
    ]
    if not rows:
        raise UnusableError("file", f"{run.path or 'a run'} without cases", "at least one case")
    if not fitting:
        cases = [f"{row.collective} {format_size(row.size_bytes_requested)}" for row, _ in rows]
        some = shorten(list(dict.fromkeys(cases)), 8, ", ...")
        size = format_size(size_bytes) if size_bytes else ""
        asked_for = " ".join(filter(None, (collective, size)))
        raise UsageError("case", asked_for or "none", f"one of the file's: {some}")
    timed = [pair for pair in fitting if pair[0].median_ns] or fitting
    if not collective and not size_bytes:
        timed = [pair for pair in timed if pair[0].collective == DEFAULT_COLLECTIVE] or timed
    first, _ = max(timed, key=lambda pair: pair[0].size_bytes)
    named = (first.collective, first.size_bytes)
    alike = [pair for pair in timed if (pair[0].collective, pair[0].size_bytes) == named]
    alike = alike[:_MOST_ALIKE]
    varying = [
        name for name in DIMENSIONS if len({getattr(r.case, name, None) for _, r in alike}) > 1
    ]
    texts, grids, bad = [], [], []
    for row, result in alike:
        dimensions = [value_text(name, getattr(result.case, name)) for name in varying]
        text = _sentence(row, result)
        if row.median_ns and not row.is_right:
            outcome = "wrong results" if row.outcome == "wrong" else row.outcome
            text = f"{outcome}, so no figure counts: {text}"
            bad.append(row.outcome)
        texts.append(f"{' '.join(dimensions)}: {text}" if dimensions else text)
        grids.append(_row_grid(run, row, result, dimensions))
    if more := len(fitting) - len(alike):
        rest = f"{counted(more, 'further row')}: name a collective or a size for another"
        grids[0].above.insert(0, f"({rest})")
    step = CHECK_RANKS if IMPLAUSIBLE in bad else ""
    grids[0].answer = Answer("; ".join(texts), "bad" if bad else "", next_step=step)
    return grids


def _row_grid(run: Run, row: Row, result: CaseResult, dimensions: Sequence[str]) -> Grid:
    """Each figure of a row in its formula. dimensions: what tells it from the rows next to it."""
    parts = _parts(run, row, result)
    unknown = [n for n, field in _SAMPLED.items() if result.reported and not getattr(row, field)]
    lines = [f"{name}: {line}" for name in parts if name not in unknown for line in parts[name]]
    if unknown:
        lines.append(f"not recorded by the source: {', '.join(unknown)}")
    described = ", ".join([result.case.describe(), *dimensions])
    head = one_line(f"{described}, {row.ranks or 'unknown'} ranks, {row.device}")
    return Grid([], [], above=[head, *lines])


def _sentence(row: Row, result: CaseResult) -> str:
    """``busbw 269.2 GB/s = 8388608 B / 54.53 us x 1.75``."""
    entry = COLLECTIVES[row.collective]
    if not row.median_ns and row.busbw_gbps:
        return f"busbw {format_bandwidth(row.busbw_gbps)} GB/s, as the source has it; no time"
    if not row.median_ns:
        return f"no figure: {row.status}{f' ({one_line(row.reason)})' if row.reason else ''}"
    time = format_ns(row.median_ns)
    if row.algbw_gbps is None:
        of_call = "of a single first call" if row.statistic == COLD_CALL else ""
        return f"time {time}: no bandwidth {of_call or 'where nothing is communicated'}"
    if row.busbw_gbps is None:
        return f"time {time}: no busbw; {_busbw(row, result)[0].removeprefix('none: ')}"
    text = f"busbw {format_bandwidth(row.busbw_gbps)} GB/s"
    if _given("busbw_gbps", row, result):
        return f"{text}, as the source has it"
    if entry.has_splits:
        return f"{text} = {_bytes(row, result.busiest_bytes)} of the busiest rank / {time}"
    moved = f" x {_moved(row):.4g}" if _moved(row) != 1 else ""
    return f"{text} = {_bytes(row, row.size_bytes)} / {time}{moved} x {_bus_factor(row):.4g}"


def _given(name: str, row: Row, result: CaseResult) -> bool:
    """Whether this bandwidth is the figure of an imported file, and not computed from a time."""
    given = getattr(result.reported, name, None)
    return not row.median_ns or (given is not None and getattr(row, name) == given)


def _moved(row: Row) -> float:
    """The share of S that algbw counts; without ranks algbw is computed only where it is 1."""
    return COLLECTIVES[row.collective].moved(row.ranks) if row.ranks else 1.0


def _bus_factor(row: Row) -> float:
    """Without ranks busbw is computed only where the factor is alike for all numbers of them."""
    return COLLECTIVES[row.collective].bus_factor(row.ranks or 2)


def _bytes(row: Row, size_bytes: int | None) -> str:
    return f"{row.coalesce} x {size_bytes} B" if row.coalesce > 1 else f"{size_bytes} B"


def _parts(run: Run, row: Row, result: CaseResult) -> dict[str, list[str]]:
    """The lines about each figure of the row."""
    entry = COLLECTIVES[row.collective]
    time = format_ns(row.median_ns)
    how = reported_text(run) or reading([row], "max")
    calls = f"{row.calls} steady calls" if row.calls else "a number of calls that is not recorded"
    what = " (time of the batches / calls)" if row.statistic == PERIOD else ""
    spread = "percentile of the steady calls of this run"
    lines: dict[str, list[str]] = {
        "time": [f"{time}, the {one_line(row.statistic or 'time')}{what} of {calls}; {how}"],
        "first": [f"{format_ns(row.first_call_ns)}: the first cold call of the case, host clock"],
        "low": [f"{format_ns(row.low_ns)}: the 5th {spread}"],
        "high": [f"{format_ns(row.high_ns)}: the 95th {spread}"],
        "p99": [f"{format_ns(row.p99_ns)}: the 99th {spread}"] if row.p99_ns else [],
    }
    if row.algbw_gbps is None:
        why = (
            "a barrier has no data" if not entry.has_data else "nothing is communicated, or no time"
        )
        lines |= {"algbw": [f"none: {why}"], "busbw": [f"none: {why}"]}
    else:
        moved, moved_text = _moved(row), ""
        if moved != 1:
            moved_text = f" x {moved:.4g} ((n - 1) / n of S, as nccl-tests counts it)"
        source = " as the source has it"
        formula = f" = {_bytes(row, row.size_bytes)} / {time}{moved_text}"
        given = _given("algbw_gbps", row, result)
        lines["algbw"] = [f"{format_bandwidth(row.algbw_gbps)} GB/s{source if given else formula}"]
        lines["busbw"] = _busbw(row, result)
    return lines


def _busbw(row: Row, result: CaseResult) -> list[str]:
    entry, n = COLLECTIVES[row.collective], row.ranks
    if row.busbw_gbps is None:
        unknown = "busiest rank's bytes are" if entry.has_splits else "number of ranks is"
        return [f"none: the {unknown} not known"]
    busbw, (formula, why) = format_bandwidth(row.busbw_gbps), entry.factor
    if _given("busbw_gbps", row, result):
        return [f"{busbw} GB/s as the source has it; bus factor {formula}: {why}"]
    if entry.has_splits:
        bytes_text = _bytes(row, result.busiest_bytes)
        return [
            f"{busbw} GB/s = {bytes_text} / {format_ns(row.median_ns)}: what "
            "the busiest rank sends to the others, or receives"
        ]
    numbers = "" if formula == "1" else f", which is {formula} for n = {n} ranks"
    factor = _bus_factor(row)
    return [
        f"{busbw} GB/s = {format_bandwidth(row.algbw_gbps)} x {factor:.4g}{numbers}",
        f"bus factor: {why}",
    ]
