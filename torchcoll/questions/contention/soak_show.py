"""The tables of ``--soak``: hours of the same cases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from torchcoll.core.units import counted, format_size, format_time
from torchcoll.report.formats import select_fields
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.stats.drift import drift_text

if TYPE_CHECKING:
    from torchcoll.questions.contention.soaked import Soaked, SoakedCase


_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE = 24  # characters


def soak_grid(soak: Soaked) -> Grid:
    return make_grid(
        [
            (Head("collective", left=True, repeat=True), lambda c: c.case.collective),
            (Head("size", repeat=True), lambda c: format_size(c.case.size_bytes)),
            (Head("calls"), lambda c: str(c.calls)),
            (Head("median"), lambda c: format_time(sorted(c.medians_ns)[len(c.medians_ns) // 2])),
            (Head("p99"), lambda c: format_time(c.p99_ns)),
            (Head("max"), lambda c: format_time(c.max_ns)),
            (Head("drift"), lambda c: drift_text(c.drift)),
            (Head("worst", "window"), lambda c: f"{c.worst_over_median:.2f}x {_clock(c.worst_us)}"),
            (Head("most often", "last"), _slowest_text),
            (Head("median over time", left=True, drop=1), lambda c: curve(c.over_time)),
        ],
        soak.cases,
        above=[soak_answer(soak), _ROUNDS, _SOAK],
        below=[f"FAULT {text}" for text in soak.faults],
    )


_ROUNDS = (
    "this table: all rounds but the first, median of the medians of the windows; the table above: "
    "the first round alone, so its median is another one"
)
_SOAK = (
    "most often last: a rank that was last more often than by chance (5 % over all cases), else "
    "chance and the rank with the largest share; "
    "drift: geometric mean of the last quarter of the time over that of the first [90 %]; p99: at "
    "most 9 % above; median over time: from the least to the largest of its row"
)


def soak_answer(soak: Soaked) -> str:
    minutes = soak.seconds / 60
    long = f"{minutes / 60:.1f} h" if minutes >= 120 else f"{minutes:.1f} min"
    long = f"{soak.seconds:.0f} s" if minutes < 2 else long
    checked = "not checked"
    if soak.checked:
        of_calls = f" of {counted(soak.calls, 'call')}" if soak.calls else " calls"
        checked = f"{soak.checked:,}{of_calls} checked, all correct"
    if soak.faulty:
        checked = f"{counted(soak.faulty, 'fault')}, {checked.removesuffix(', all correct')}"
    drifts = soak.drifting
    moved = "no drift shown"
    if drifts:
        most = max(drifts, key=lambda c: abs(c.drift.value) if c.drift else 0.0)
        moved = f"drift in {counted(len(drifts), 'case')}, most {drift_text(most.drift)} in "
        moved += f"{most.case.collective} {format_size(most.case.size_bytes)}"
    elif not any(c.drift for c in soak.cases):
        moved = "too few windows to tell of drift"
    rounds, windows = counted(soak.rounds, "round"), counted(soak.windows, "window")
    return f"soak: {rounds} in {long} ({windows}): {checked}; {moved}"


def _clock(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, timezone.utc).strftime("%H:%M:%SZ")


def _slowest_text(case: SoakedCase) -> str:
    if case.slowest:
        return f"rank {case.slowest[0]} {100 * case.slowest[1]:.0f} %"
    most = case.most_last
    return f"chance (rank {most.rank} {100 * most.share:.0f} %)" if most else "-"


def curve(values: Sequence[float | None]) -> str:
    """At most 24 characters of eight heights, each for its largest value; a blank for none."""
    step = max(1, -(-len(values) // _CURVE))
    parts = [
        [v for v in values[i : i + step] if v is not None] for i in range(0, len(values), step)
    ]
    points = [max(part, default=None) for part in parts]
    numbers = [point for point in points if point is not None]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    steps = 8 / (high - low) if high > low else 0.0
    return "".join(" " if p is None else _BLOCKS[min(7, int(steps * (p - low)))] for p in points)


_OF_CASE = (
    "collective=case.collective size_bytes=case.size_bytes dtype=case.dtype backend=case.backend "
    "calls p99_ns max_ns drift=drift.value drift_low=drift.low drift_high=drift.high "
    "drift_p=drift.p worst worst_us worst_over_median"
)


def soak_object(soak: Soaked) -> dict[str, Any]:
    cases = []
    for case in soak.cases:
        rank, share = case.slowest or (None, None)
        figures = {
            "medians_ns": list(case.medians_ns),
            "slowest_rank": rank,
            "slowest_share": share,
        }
        cases.append({**select_fields(case, _OF_CASE), **figures})
    return {
        **select_fields(soak, "rounds windows seconds checked calls faulty"),
        "faults": list(soak.faults),
        "cases": cases,
    }
