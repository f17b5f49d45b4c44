"""What is odd within one run on accelerators, whatever its machine should reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from torchcoll.core.summary import Row
from torchcoll.core.units import counted, format_digits, format_factor, format_ns, format_size
from torchcoll.questions.check.limits import case_text

_LONGER = 1.5  # times as long as the other placement, or as the next larger size
_FALL = 0.05  # of the largest busbw

_Figures = tuple[float, float, Row]  # busbw in GB/s, time in ns


def odd_cases(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what is odd: a size that takes longer than the next larger one, a placement that is far
    slower than the other one, and a busbw that falls after its peak. On a CPU caches explain them.
    """
    series: dict[tuple[object, ...], dict[object, list[_Figures]]] = {}
    for row in sorted(rows, key=lambda row: row.size_bytes):
        if row.is_right and row.median_ns and row.busbw_gbps and row.device != "cpu":
            kind = (row.collective, row.backend, row.ranks, row.dtype, row.op, row.root, row.mode)
            figures = row.busbw_gbps, row.median_ns, row
            series.setdefault(kind, {}).setdefault(row.in_place, []).append(figures)
    lines = [line for by_placement in series.values() for line in by_placement.values()]
    slow = [
        (time_ns / next_ns, f"{case_text(row, rows)} takes {format_ns(time_ns, 3)}", next_ns, after)
        for line in lines
        for (_, time_ns, row), (_, next_ns, after) in pairwise(line)
        if time_ns > _LONGER * next_ns
    ]
    if slow:
        factor, text, next_ns, after = max(slow, key=lambda each: each[0])
        of_next = f"{format_ns(next_ns, 3)} of {format_size(after.size_bytes)}"
        yield f"odd: {text}, {format_factor(factor)} the {of_next}{_more(slow)}"
    else:
        yield from _slow_placements(series.values())
    falls = [
        (1 - line[-1][0] / peak[0], peak, line[-1])
        for line in lines
        if line[-1][0] < (1 - _FALL) * (peak := max(line, key=lambda each: each[0]))[0]
    ]
    if falls:
        share, (most, _, at_peak), (last, _, row) = max(falls, key=lambda each: each[0])
        sizes = [format_size(each.size_bytes) for each in (at_peak, row)]
        text = (
            f"odd: busbw of {row.collective} falls from {format_digits(most)} GB/s at {sizes[0]} "
        )
        yield text + f"to {format_digits(last)} GB/s at {sizes[1]} ({100 * share:.0f} %)"


def _slow_placements(series: Iterable[dict[object, list[_Figures]]]) -> Iterator[str]:
    slow = []
    for by_placement in series:
        times = {
            (row.size_bytes, row.in_place): ns for of in by_placement.values() for _, ns, row in of
        }
        for (size_bytes, in_place), time_ns in times.items():
            other_ns = times.get((size_bytes, not in_place))
            if other_ns and time_ns > _LONGER * other_ns:
                [(_, _, row), *_] = [
                    f for f in by_placement[in_place] if f[2].size_bytes == size_bytes
                ]
                slow.append((time_ns / other_ns, row, time_ns, other_ns))
    if slow:
        factor, row, time_ns, other_ns = max(slow, key=lambda each: each[0])
        slower, faster = ("in place", "out of place")[:: 1 if row.in_place else -1]
        text = f"odd: {case_text(row)} takes {format_ns(time_ns, 3)} {slower}, "
        text += f"{format_factor(factor)} the {format_ns(other_ns, 3)} that it takes {faster}"
        yield text + _more(slow)


def _more(slow: Sequence[object]) -> str:
    return f" (and {counted(len(slow) - 1, 'more case')})" if len(slow) > 1 else ""
