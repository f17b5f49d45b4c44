"""Latency and bandwidth of each collective, in place of a result on every size.

The model is the oldest one: time = latency + size / bandwidth (R. W. Hockney, Parallel Computing 20
(1994) 389). It is fitted to each run on its own, so that runs stay the replicates, and it
is told how badly it fits: a library that changes its algorithm at some size follows no line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.summary import Row, median
from torchcoll.core.units import format_share, format_size
from torchcoll.questions.comparison import results
from torchcoll.stats.across_hardware import unlike, unlike_ranks
from torchcoll.stats.line import fit_line
from torchcoll.stats.matching import Pair, sizes_of_sides
from torchcoll.stats.ratios import geometric
from torchcoll.stats.sides import Measured, Side
from torchcoll.stats.statistics import Figures

FEWEST_SIZES = 3
POOR = 0.25  # beyond, the sizes follow no line, and its figures are none of the collective's


@dataclass(frozen=True)
class LatencyBandwidth:
    """latency (ns) and bandwidth (GB/s) of one run, None where the fit has it at 0."""

    latency: float | None
    bandwidth: float | None


@dataclass(frozen=True)
class Misfit:
    """By how much the sizes of a side differ from a line at most, as a share of it, and where."""

    share: float
    size_bytes: int


@dataclass(frozen=True, repr=False)
class Fitted(results.ComparedPair):
    """One of the two figures of one table. ``figure``: latency (ns) or bandwidth (GB/s), which is
    algbw or busbw, as ``metric`` says.
    """

    figure: str
    metric: str
    misfit: float | None  # the larger of both sides
    misfit_bytes: int | None

    @property
    def base(self) -> float | None:
        return geometric(self.judged.base)

    @property
    def new(self) -> float | None:
        return geometric(self.judged.new)

    @property
    def record(self) -> dict[str, Any]:
        return {
            **self.pair.common,
            "figure": f"{self.figure}_{'ns' if self.figure == 'latency' else 'gbps'}",
            "bandwidth": self.metric,
            **results.record_of(self.judged, self.base, self.new),
            "misfit": self.misfit,
            "misfit_bytes": self.misfit_bytes,
        }


def fit_pairs(
    pairs: Sequence[Pair],
    base_side: Side,
    new_side: Side,
    threshold: float,
    metric: str = "algbw",
    left_out: Sequence[tuple[int, int]] = (),
) -> list[Fitted]:
    """Latency and bandwidth of every table; Holm is over all of them. metric: ``busbw`` makes the
    bandwidth that, anything else algbw. left_out: runs, as (side, number).
    """
    metric = "busbw" if metric == "busbw" else "algbw"
    different = unlike(base_side, new_side)
    tables: dict[object, list[Pair]] = {}
    for pair in pairs:
        if pair.matched:
            tables.setdefault(pair.table, []).append(pair)
    fits = []
    orders = results.Orders(pairs)
    for table in tables.values():
        apart = different or unlike_ranks(table[0])
        sizes: Sequence[Sequence[Sequence[Measured]]]
        sizes = [pair.base for pair in table], [pair.new for pair in table]
        if apart:  # no ratio: each side has a line through all of its own sizes
            sizes = sizes_of_sides(table[0], pairs)
        ours, theirs = (_lines(several, metric) for several in sizes)
        misfits = [misfit_of(several) for several in sizes]
        worst = max(filter(None, misfits), key=lambda item: item.share, default=None)
        for figure in ("latency", "bandwidth"):
            lines_of_side = [
                (value, (side, run), start)
                for side, lines in enumerate((ours, theirs))
                for (run, start), line in lines.items()
                if (value := getattr(line, figure)) and (side, run) not in left_out
            ]
            figures = Figures(
                tuple(value for value, *_ in lines_of_side),
                tuple(run for _, run, _ in lines_of_side),
                orders.of(start for *_, start in lines_of_side),
            )
            base, new = figures.of(0), figures.of(1)
            reason = apart or results.other_clock(table[0])
            reason = reason or _unusable(figure, table[0], metric, (base, new), (ours, theirs))
            if reason:
                case = results.not_comparable(figures, reason)
            elif worst and worst.share > POOR:
                text = f"off by {format_share(worst.share, 0)} at {format_size(worst.size_bytes)}"
                case = results.Judged(base, new, "inconclusive", f"no line: {text}")
            else:
                case = results.case_of(table[0], figures, base_side, new_side)
                misfit = worst.share if worst else 0.0
                # Where the points leave the line by more than the two lines differ, the difference
                # may be that of what the line does not follow.
                if misfit > threshold and case.ratio and not results.beyond(case.ratio, misfit):
                    text = f"the line is off by {format_share(misfit, 0)}, more than this ratio"
                    case = results.ratio_alone(figures, text)
            off = (worst.share, worst.size_bytes) if worst else (None, None)
            more_is_faster = figure == "bandwidth"
            fits.append(Fitted(table[0], case, more_is_faster, figure, metric, *off))
    # Holm counts all; which direction is the faster one differs.
    up = results.judge([item.judged for item in fits], threshold, more_is_faster=True)
    down = results.judge([item.judged for item in fits], threshold, more_is_faster=False)
    return [
        replace(item, judged=rising if item.more_is_faster else falling)
        for item, rising, falling in zip(fits, up, down, strict=True)
    ]


def counted_share(collective: str, ranks: int) -> float | None:
    """What algbw counts of size / time (nccl-tests doc/PERFORMANCE.md); None where that depends on
    a number of ranks that is not known, or is 1.
    """
    entry = COLLECTIVES[collective]
    if ranks < 2:
        return None if entry.moved(2) != 1 else 1.0
    return entry.moved(ranks)


def _share(row: Row, metric: str) -> float | None:
    """The same of algbw or busbw."""
    algbw, entry = counted_share(row.collective, row.ranks), COLLECTIVES[row.collective]
    if metric != "busbw" or algbw is None:
        return algbw
    if entry.has_splits:  # how much crosses is the case's own
        if row.busbw_gbps is None or not row.algbw_gbps:
            return None
        return algbw * row.busbw_gbps / row.algbw_gbps
    return algbw * entry.bus_factor(row.ranks) if row.ranks > 1 else None


def _unusable(
    figure: str,
    pair: Pair,
    metric: str,
    values: Sequence[Sequence[float]],
    lines: Sequence[Mapping[Any, LatencyBandwidth]],
) -> str:
    """Why a figure of a table has no ratio; '' if it has one.

    values: the figures of both sides. lines: the line of each run of both sides.
    """
    names = ("base", "new")
    for name, items in zip(names, (pair.base, pair.new), strict=True):
        row = items[0].row
        if figure == "bandwidth" and _share(row, metric) is None:
            reason = "1 rank" if row.ranks == 1 else "the number of ranks is not known"
            reason = "what each rank sends is not known" if row.ranks > 1 else reason
            return f"no {metric} in {name}: {reason}"
    for name, of_side in zip(names, values, strict=True):
        if not of_side:
            return f"no {figure} in {name}: {FEWEST_SIZES} sizes that differ in it are needed"
    # Where the fit has a figure at 0 in some runs, the others alone would be a selection, and the
    # figure too high.
    for name, of_runs in zip(names, lines, strict=True):
        missing = sum(not getattr(line, figure) for line in of_runs.values())
        if missing:
            return f"{figure} not resolved in {missing} of {len(of_runs)} runs of {name}"
    return ""


def _lines(
    sizes: Sequence[Sequence[Measured]], metric: str
) -> dict[tuple[int, float | None], LatencyBandwidth]:
    """The line of each run (its number, its start) that has enough sizes, its bandwidth as
    ``metric`` counts it.
    """
    points: dict[int, list[tuple[int, float]]] = {}
    starts: dict[int, float | None] = {}
    for items in sizes:
        for m in items:
            if m.row.is_right and m.row.median_ns and m.row.size_bytes:
                points.setdefault(m.run, []).append((m.row.size_bytes, m.row.median_ns))
                starts.setdefault(m.run, m.start)
    row = sizes[0][0].row
    share = _share(row, metric)
    return {
        (run, starts[run]): replace(
            line, bandwidth=line.bandwidth * share if line.bandwidth and share else None
        )
        for run, points_of_run in points.items()
        if (line := line_of(points_of_run)) is not None
    }


def line_of(points: Sequence[tuple[int, float]]) -> LatencyBandwidth | None:
    """Of (size in bytes, time in ns); None for too few sizes."""
    if len({size_bytes for size_bytes, _ in points}) < FEWEST_SIZES:
        return None
    sizes = numpy.array([size_bytes for size_bytes, _ in points], dtype=float)
    times = numpy.array([ns for _, ns in points])
    latency_ns, ns_per_byte = fit_line(sizes, times)
    return LatencyBandwidth(latency_ns or None, 1 / ns_per_byte if ns_per_byte > 0 else None)


def misfit_of(sizes: Sequence[Sequence[Measured]]) -> Misfit | None:
    """How far the medians over the runs are from a line, beyond twice their standard error (of
    a median: 1.25 times that of a mean); None for too few sizes.

    The furthest single time would be the furthest noise: the more runs, the further.
    """
    times: dict[int, list[float]] = {}
    for items in sizes:
        for m in items:
            if m.row.is_right and m.row.median_ns and m.row.size_bytes:
                times.setdefault(m.row.size_bytes, []).append(m.row.median_ns)
    line = line_of([(size_bytes, median(values)) for size_bytes, values in times.items()])
    if line is None:
        return None
    off = {}
    for size_bytes, values in times.items():
        law = (line.latency or 0.0) + (size_bytes / line.bandwidth if line.bandwidth else 0.0)
        repeated = len(values) > 1
        error = (
            1.25 * float(numpy.std(values, ddof=1)) / math.sqrt(len(values)) if repeated else 0.0
        )
        off[size_bytes] = max(0.0, abs(median(values) - law) - 2 * error) / law
    worst = max(off, key=lambda size_bytes: off[size_bytes])
    return Misfit(off[worst], worst)


def misfit_note(fitted: Sequence[Fitted]) -> list[str]:
    """How badly the lines fit, where they do."""
    poor = [fit for fit in fitted if fit.misfit is not None and fit.misfit > POOR]
    if not poor:
        return []
    worst = max(poor, key=lambda fit: fit.misfit or 0)
    return [
        f"{len({id(fit.pair) for fit in poor})} of {len({id(fit.pair) for fit in fitted})} fits "
        f"are poor: sizes there follow no line latency + size / bandwidth, and get no ratio; the "
        f"worst is off by {format_share(worst.misfit or 0, 0)} ({worst.pair.collective}, "
        f"{format_size(worst.misfit_bytes or 0)})"
    ]
