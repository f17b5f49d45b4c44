"""Curves over the number of ranks as tables, markdown, CSV and JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.units import format_bandwidth, format_ratio, format_size, format_time
from torchcoll.report.found import Found, show_found
from torchcoll.report.grid import Grid, Head, filled
from torchcoll.report.header import given_text, reading
from torchcoll.report.kinds import kind_texts
from torchcoll.report.notes import found_lines

if TYPE_CHECKING:
    from torchcoll.analysis.growth import Law
    from torchcoll.analysis.scaling import Curve, Fit, Point, Scaling

SCHEMA = "torchcoll-scaling/1"
_FITS = (
    "laws: constant, a + b log2 n (steps of a tree), a + b n (steps of a ring), a + b (n-1)/n (the "
    "bytes that each rank sends in a ring: its bandwidth); least squares of the logarithms, the "
    "launches are the replicates"
)
_VERDICTS = (
    "a law is named: growth is significant (t; Kendall's tau where no law fits; Holm over all), it "
    "fits, and no other does, alone or with half of the growth (A + B: two together; F, 5 %); "
    "constant: 90 % of the growth within 10 %"
)


def show_scaling(
    found: Sequence[Scaling], format: str = "table", file: TextIO | None = None
) -> None:
    """Print what ``scaling`` found. Raises UsageError for an unknown format."""
    things = [(one, scaling_object(one)) for one in found]
    show_found([Found(_grids(one), thing["rows"], thing) for one, thing in things], format, file)


# -- objects ---------------------------------------------------------------------------------


def scaling_object(found: Scaling) -> dict[str, Any]:
    curves = [*found.curves, *found.starts]
    return {
        "schema": SCHEMA,
        "link_gbps": found.link_gbps,
        "rows": [record for curve in curves for record in _rows(curve)],
        "fits": [_fit_record(curve, fit) for curve in curves for fit in curve.fits],
        "notes": found_lines(found.notes, found.runs),
    }


def _rows(curve: Curve) -> list[dict[str, Any]]:
    """One object a number of ranks."""
    names = {"first_ns": "first_call_ns" if _timed(curve) else _start_name(curve)}
    return [
        {
            **_known(curve),
            **{names.get(k, k): v for k, v in vars(point).items()},
            "hosts": list(point.hosts),
            "hidden": curve.hidden or None,
        }
        for point in curve.points
    ]


def _timed(curve: Curve) -> bool:
    """False for the start of launches."""
    return any(point.time_ns for point in curve.points)


def _start_name(curve: Curve) -> str:
    result = any(fit.figure == "time to first result" for fit in curve.fits)
    return "first_result_ns" if result else "launch_first_call_ns"


def _known(curve: Curve) -> dict[str, Any]:
    kind = {name: value for name, value in curve.kind.items() if value is not None}
    return {**kind, "nbytes": curve.nbytes}


def _fit_record(curve: Curve, fit: Fit) -> dict[str, Any]:
    growth = fit.growth
    laws = [dataclasses.asdict(law) for law in (growth.law, *growth.others) if law]
    return {
        **_known(curve),
        "figure": fit.figure,
        "part": fit.part or None,
        "verdict": growth.verdict,
        "reason": growth.reason,
        "numbers_of_ranks": list(growth.numbers),
        "launches": growth.launches,
        "p_value": growth.p_value,
        "constant_criterion": growth.constant,
        "mixtures": [
            {
                "name": one.name,
                "fits": one.fits,
                "p_lacking": one.p_lacking,
                "misfit": one.misfit if math.isfinite(one.misfit) else None,
            }
            for one in growth.mixtures
        ],
        "laws": laws,
    }


# -- tables ----------------------------------------------------------------------------------


def _grids(found: Scaling) -> list[Grid]:
    groups: dict[str, list[Curve]] = {}
    for curve in found.curves:
        groups.setdefault(repr(curve.kind), []).append(curve)
    titles = kind_texts([curves[0].kind for curves in groups.values()])
    link = found.link_gbps
    grids = []
    for title, curves in zip(titles, groups.values(), strict=True):
        above = [title, f"{_reading(found)}; geometric means over the launches"]
        above += [f"share: busbw of the {link:g} GB/s of --link-gbps"] if link else []
        grids.append(_curves(curves, above, "first"))
    starts = kind_texts([{**curve.kind, "nbytes": curve.nbytes} for curve in found.starts])
    for title, curve in zip(starts, found.starts, strict=True):
        figure = next((fit.figure for fit in curve.fits), "1st call of the launch")
        grids.append(_curves([curve], [f"start of the launch: {title}"], figure))
    every = [*found.curves, *found.starts]
    names = dict(zip(groups, titles, strict=True))
    grids.append(_fits(every, names))
    below = []
    if found.left_out:
        below.append(f"not shown (--sizes): {', '.join(map(format_size, found.left_out))}")
    below += found_lines(found.notes, found.runs)
    grids.append(Grid([], [], below=below))
    return grids


def _reading(found: Scaling) -> str:
    """What one duration is, of our own files and of others."""
    ways = (given_text(run) or reading([r.case for r in run.results], "max") for run in found.runs)
    return " or ".join(dict.fromkeys(ways))


def _size(curve: Curve) -> str:
    return format_size(curve.nbytes) if COLLECTIVES[curve.kind["collective"]].has_data else "-"


def _curves(curves: Sequence[Curve], above: list[str], first: str) -> Grid:
    """One line for each size and number of ranks; sizes one below the other."""

    def spread(item: tuple[Curve, Point]) -> str:
        point = item[1]
        low, high = (format_time(ns, 3).strip() for ns in (point.low_ns, point.high_ns))
        return f"{low} to {high}" if point.launches > 1 else "-"

    def share(item: tuple[Curve, Point]) -> str:
        return "-" if item[1].share is None else f"{100 * item[1].share:.1f} %"

    return filled(
        [
            (Head("size", repeat=True), lambda i: _size(i[0]) if _timed(i[0]) else "-"),
            (Head("ranks", repeat=True), lambda i: str(i[1].ranks)),
            (Head("hosts"), lambda i: ", ".join(map(str, i[1].hosts)) or "-"),
            (Head("launches"), lambda i: str(i[1].launches)),
            (Head("time"), lambda i: format_time(i[1].time_ns)),
            (Head("busbw", "GB/s"), lambda i: format_bandwidth(i[1].busbw_gbps)),
            (Head("share"), share),
            (Head(first, "call" if first == "first" else ""), lambda i: format_time(i[1].first_ns)),
            (Head("of one launch", left=True), spread),
        ],
        [(curve, point) for curve in curves for point in curve.points],
        above=above,
    )


def _fits(curves: Sequence[Curve], titles: dict[str, str]) -> Grid:
    """One line for each figure of each curve: how it grows."""
    several = len(titles) > 1

    def law(item: tuple[Curve, Fit]) -> str:
        found = item[1].growth.law
        return "-" if found is None else _law_text(found)

    def ratio(item: tuple[Curve, Fit]) -> str:
        found = item[1].growth.law
        if found is None:
            return "-"
        interval = f"{format_ratio(found.ratio_low)} to {format_ratio(found.ratio_high)}"
        return f"{format_ratio(found.ratio)} ({interval})"

    def span(item: tuple[Curve, Fit]) -> str:
        numbers = item[1].growth.numbers
        return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])

    def off(item: tuple[Curve, Fit]) -> str:
        found = item[1].growth.law
        return "-" if found is None else f"{100 * found.misfit:.0f} % on {found.misfit_at}"

    return filled(
        [
            (
                Head("case", left=True),
                lambda i: titles.get(repr(i[0].kind), "-") if several else "-",
            ),
            (Head("size", repeat=True), lambda i: _size(i[0])),
            (Head("figure", left=True, repeat=True), lambda i: i[1].figure),
            (Head("on", left=True), lambda i: i[1].part or "-"),
            (Head("ranks", left=True), span),
            (
                Head("verdict", left=True),
                lambda i: f"{i[1].growth.verdict} ({i[1].growth.reason})",
            ),
            (Head("growth over the range", "(95 %)", left=True), ratio),
            (Head("best law of growth", "(95 % of b)", left=True), law),
            (Head("off by", "(at most)", left=True), off),
            (Head("launches"), lambda i: str(i[1].growth.launches)),
        ],
        [(curve, fit) for curve in curves for fit in curve.fits],
        above=[_FITS, _VERDICTS],
    )


def _law_text(law: Law) -> str:
    """``2.00 us + 1.00 us (0.90 to 1.10 us) x log2 n``."""
    base, slope, low, high = (
        _signed(ns) for ns in (law.base_ns, law.slope_ns, law.slope_low, law.slope_high)
    )
    return f"{base} + {slope} ({low} to {high}) x {law.name}"


def _signed(ns: float) -> str:
    return f"{'-' if round(ns) < 0 else ''}{format_time(abs(ns), 3).strip()}"
