"""What is odd within one run on accelerators, whatever its machine should reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchcoll.core.summary import Row
from torchcoll.core.units import counted, format_digits, format_factor, format_ns, format_size
from torchcoll.questions.check.limits import case_text

_PLACEMENT = 1.5  # times as long as the other placement
_FALL = 0.05  # of the largest busbw

_Figures = tuple[float, float, Row]  # busbw in GB/s, time in ns


def odd_cases(rows: Sequence[Row]) -> Iterator[str]:
    """Yield where the figures of a run do not fit each other: a placement that is far slower than
    the other one, and a busbw that falls after its peak. On a CPU both follow from its caches.
    """
    series: dict[tuple[object, ...], dict[tuple[int, object], _Figures]] = {}
    for row in rows:
        if row.is_right and row.median_ns and row.busbw_gbps and row.device != "cpu":
            kind = (row.collective, row.backend, row.ranks, row.dtype, row.op, row.root, row.mode)
            by_case = series.setdefault(kind, {})
            by_case[row.size_bytes, row.in_place] = row.busbw_gbps, row.median_ns, row
    slow: list[tuple[float, Row, float]] = []
    falls: list[tuple[float, _Figures, _Figures]] = []
    for by_case in series.values():
        for (size_bytes, in_place), (_, time_ns, row) in by_case.items():
            other = by_case.get((size_bytes, not in_place))
            if other and time_ns > _PLACEMENT * other[1]:
                slow.append((time_ns / other[1], row, other[1]))
        for placement in {row.in_place for _, _, row in by_case.values()}:
            line = [
                each for (_, in_place), each in sorted(by_case.items()) if in_place == placement
            ]
            peak = max(line, key=lambda each: each[0])
            if line[-1][0] < (1 - _FALL) * peak[0]:
                falls.append((1 - line[-1][0] / peak[0], peak, line[-1]))
    if slow:
        factor, row, other_ns = max(slow, key=lambda each: each[0])
        places = ("in place", "out of place")
        slower, faster = places if row.in_place else places[::-1]
        text = f"odd: {case_text(row)} takes {format_ns(row.median_ns, 3)} {slower}, "
        text += f"{format_factor(factor)} the {format_ns(other_ns, 3)} that it takes {faster}"
        yield text + (f" (and {counted(len(slow) - 1, 'more case')})" if len(slow) > 1 else "")
    if falls:
        share, (most, _, at_peak), (last, _, row) = max(falls, key=lambda each: each[0])
        sizes = [format_size(each.size_bytes) for each in (at_peak, row)]
        text = (
            f"odd: busbw of {row.collective} falls from {format_digits(most)} GB/s at {sizes[0]} "
        )
        yield text + f"to {format_digits(last)} GB/s at {sizes[1]} ({100 * share:.0f} %)"
