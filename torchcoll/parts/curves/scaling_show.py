"""Show curves over the number of ranks as tables, markdown, CSV and JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.units import format_bandwidth, format_ns, format_ratio, format_size, format_time
from torchcoll.parts.curves.growth import FEWEST, TOO_FEW
from torchcoll.parts.curves.scaling import FIRST_CALL, IN_JOB, kind_in_job
from torchcoll.parts.curves.transitions_show import split_titles
from torchcoll.report.formats import Forms, print_results, select_fields, without_none
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.report.header import kind_texts, reading, reported_text
from torchcoll.report.notes import footer_lines

if TYPE_CHECKING:
    from torchcoll.parts.curves.scaling import GrowthFit, RanksCurve, RanksPoint, Scaling


SCALING_SCHEMA = "torchcoll-scaling/1"
_VAGUE = 100  # an interval whose ends differ by more says nothing


def show_scaling(
    results: Sequence[Scaling], format: str = "table", file: TextIO | None = None
) -> None:
    """Print what ``scaling`` found. Raises UsageError for an unknown format."""
    forms = [Forms(scaling_grids(result), scaling_object(result)) for result in results]
    print_results(forms, format, file)


def scaling_object(result: Scaling) -> dict[str, Any]:
    curves = [*result.curves, *result.starts]
    return {
        "schema": SCALING_SCHEMA,
        "rows": [record for curve in curves for record in _rows(curve)],
        "fits": [
            {
                **without_none(curve.kind),
                "size_bytes": curve.size_bytes,
                **select_fields(fit, "figure part=subset?"),
                **select_fields(fit.growth, "result reason numbers_of_ranks=numbers runs p_value"),
                "constant_criterion": fit.growth.constant,
                "mixtures": [
                    {
                        **select_fields(mixture, "name fits p_lacking"),
                        "misfit": mixture.misfit if math.isfinite(mixture.misfit) else None,
                    }
                    for mixture in (*fit.growth.mixtures, *filter(None, (fit.growth.power,)))
                ],
                "laws": [
                    dataclasses.asdict(law)
                    for law in (fit.growth.law, *fit.growth.other_laws)
                    if law
                ],
            }
            for curve in curves
            for fit in curve.fits
        ],
        "notes": footer_lines(result.notes, result.runs),
    }


def _rows(curve: RanksCurve) -> list[dict[str, Any]]:
    """One object for each number of ranks of a curve."""
    name = "first_call_ns"
    if not _timed(curve):
        result = any(fit.figure == "time to first result" for fit in curve.fits)
        name = "first_result_ns" if result else "launch_first_call_ns"
    return [
        {
            **without_none(curve.kind),
            "size_bytes": curve.size_bytes,
            **{name if k == "first_ns" else k: v for k, v in vars(point).items()},
            "hosts": list(point.hosts),
            "hidden": curve.hidden or None,
        }
        for point in curve.points
    ]


def _timed(curve: RanksCurve) -> bool:
    """Whether a curve has times of calls; a curve of the start of runs has none."""
    return any(point.time_ns for point in curve.points)


def scaling_grids(result: Scaling) -> list[Grid]:
    groups: dict[str, list[RanksCurve]] = {}
    for curve in result.curves:
        groups.setdefault(repr(curve.kind), []).append(curve)
    titles = kind_texts([curves[0].kind for curves in groups.values()])
    all_curves = [*result.curves, *result.starts]
    if all(len(curve.points) < 2 for curve in all_curves):  # one number of ranks: nothing grows
        lines = footer_lines(result.notes, result.runs)
        return [Grid([], [], below=lines, answer=result.answer)]
    grids = []
    above = [f"{reading_of(result)}; geometric means over the runs"]
    for title, curves in zip(titles, groups.values(), strict=True):
        grids.append(_curves(curves, [title, *above], "first"))
        above = []
    starts: dict[str, list[RanksCurve]] = {}
    for curve in result.starts:  # one table for the first, second, ... run of each job
        starts.setdefault(repr((kind_in_job(curve.kind), curve.size_bytes)), []).append(curve)
    kinds = [
        {**kind_in_job(first.kind), "size_bytes": first.size_bytes} for first, *_ in starts.values()
    ]
    for title, curves in zip(kind_texts(kinds), starts.values(), strict=True):
        grids.append(_starts(curves, f"start of the run: {title}"))
    names = dict(zip(groups, split_titles(titles)[0], strict=True))
    grids.append(_fits(all_curves, names))
    below = []
    fits = [fit for curve in all_curves for fit in curve.fits]
    short = sum(fit.growth.result == TOO_FEW for fit in fits)
    if 0 < short < len(fits):
        below.append(
            f"too few points for {short} of {len(fits)} figures, which are not listed: {FEWEST} "
            "numbers of ranks are needed"
        )
    if result.left_out:
        below.append(f"not shown (--sizes): {', '.join(map(format_size, result.left_out))}")
    below += footer_lines(result.notes, result.runs)
    grids.append(Grid([], [], below=below, answer=result.answer))
    return grids


def reading_of(result: Scaling) -> str:
    """How a time is computed from calls and ranks, in torchcoll's files and in imported ones."""
    readings = (
        reported_text(run) or reading([r.case for r in run.results], "max") for run in result.runs
    )
    return " or ".join(dict.fromkeys(readings))


def _size(curve: RanksCurve) -> str:
    return format_size(curve.size_bytes) if COLLECTIVES[curve.kind["collective"]].has_data else "-"


def _curves(curves: Sequence[RanksCurve], above: list[str], first: str) -> Grid:
    """One line for each size and number of ranks.

    The spread of the runs follows the figure that it belongs to: the time, or for the start of runs
    the first call.
    """

    def spread(item: tuple[RanksCurve, RanksPoint], of_time: bool) -> str:
        curve, point = item
        low, high = (format_ns(ns, 3) for ns in (point.low_ns, point.high_ns))
        return f"{low} to {high}" if point.runs > 1 and _timed(curve) is of_time else "-"

    return make_grid(
        [
            (Head("size", repeat=True), lambda i: _size(i[0]) if _timed(i[0]) else "-"),
            (Head("ranks", repeat=True), lambda i: str(i[1].ranks)),
            (Head("hosts"), lambda i: ", ".join(map(str, i[1].hosts)) or "-"),
            (Head("runs", drop=1), lambda i: str(i[1].runs)),
            (Head("time"), lambda i: format_time(i[1].time_ns)),
            (Head("range", "over runs", left=True, drop=2), lambda i: spread(i, of_time=True)),
            (Head("busbw", "GB/s"), lambda i: format_bandwidth(i[1].busbw_gbps)),
            (Head(first, "call" if first == "first" else ""), lambda i: format_time(i[1].first_ns)),
            (Head("range", "over runs", left=True, drop=2), lambda i: spread(i, of_time=False)),
        ],
        [(curve, point) for curve in curves for point in curve.points],
        above=above,
    )


def _starts(curves: Sequence[RanksCurve], title: str) -> Grid:
    """One line for each number of ranks, with a figure for each position in the job."""
    figure = next((fit.figure for curve in curves for fit in curve.fits), FIRST_CALL)
    if len(curves) == 1:
        return _curves(curves, [title], figure)

    def cell(points: dict[int, RanksPoint], ranks: int) -> str:
        return format_time(points[ranks].first_ns) if ranks in points else "-"

    columns = [
        (
            Head(figure, f"run {curve.kind.get(IN_JOB, '-')} of each job"),
            partial(cell, {point.ranks: point for point in curve.points}),
        )
        for curve in curves
    ]
    numbers = sorted({point.ranks for curve in curves for point in curve.points})
    return make_grid([(Head("ranks"), str), *columns], numbers, above=[title])


def _fits(curves: Sequence[RanksCurve], titles: dict[str, str]) -> Grid:
    """One line for each figure of each curve: how it grows."""
    several = len(titles) > 1

    def ratio(item: tuple[RanksCurve, GrowthFit]) -> str:
        law = item[1].growth.law
        if law is None:
            return "-"
        if item[1].growth.result in ("grows", "falls"):
            return f"{format_ratio(item[1].growth.measured)} (measured)"
        interval = f"{format_ratio(law.ratio_low)} to {format_ratio(law.ratio_high)}"
        if law.ratio_high > _VAGUE * law.ratio_low:
            interval = "not known"
        return f"{format_ratio(law.ratio)} ({interval})"

    def span(item: tuple[RanksCurve, GrowthFit]) -> str:
        numbers = item[1].growth.numbers
        return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])

    return make_grid(
        [
            (
                Head("case", left=True, repeat=True),
                lambda i: titles.get(repr(i[0].kind), "-") if several else "-",
            ),
            (Head("size", repeat=True), lambda i: _size(i[0])),
            (Head("figure", left=True, repeat=True), lambda i: i[1].figure),
            (Head("on", left=True, repeat=True), lambda i: i[1].subset or "-"),
            (Head("ranks", left=True), span),
            (Head("result", left=True), lambda i: i[1].growth.result),
            (Head("growth over the range", "(95 %)", left=True), ratio),
            (Head("runs", drop=1), lambda i: str(i[1].growth.runs)),
        ],
        [(curve, fit) for curve in curves for fit in curve.fits if fit.growth.result != TOO_FEW],
        above=[
            "result: the only law that fits; growth: by the best law, with its 95 % interval; as "
            "measured where no law fits"
        ],
    )
