"""The tables of what collectives and work beside them did to each other, and of hours of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from torchcoll.core.units import counted, format_bandwidth, format_size, format_time
from torchcoll.report.formats import picked
from torchcoll.report.grid import Grid, Head, filled
from torchcoll.stats.drift import drift_text

if TYPE_CHECKING:
    from torchcoll.contention.overlap import Estimate, Overlap
    from torchcoll.contention.soaked import Soaked, SoakedCase

_ALONE = (
    "call, work alone: measured for this table, in turn with both together; slowdown: together / "
    "alone [90 % intervals over the blocks of this launch]"
)
_OVERLAP = (
    "overlap: of the time that could be hidden the part that was, (calls + work - at once) / "
    "min(calls, work) [90 % interval]; 1 is all, 0 is one after the other"
)


def beside_grid(found: Sequence[Overlap], machine: Sequence[str] = ()) -> Grid:
    """A row a case, with an offset two; ``found`` is not empty. machine: warnings about the machine
    while it was measured.
    """
    begins: list[tuple[Head, Callable[[Overlap], str]]] = []
    alone: list[tuple[Head, Callable[[Overlap], str]]] = []
    of_work = _WORK
    if any(one.offset_ns is not None for one in found):  # then all: it is of the whole sweep
        begins.append((Head("work", "begins", legend=_BEGINS), _begins))
        of_work = _WORK_SINGLE
    else:
        alone.append((Head("busbw", "alone"), lambda o: _busbw(o, 0)))
        alone.append((Head("sum", "at once", legend=_SUM), lambda o: _busbw(o, 1)))
    return filled(
        [
            (Head("collective", left=True, repeat=True), lambda o: o.case.collective),
            (Head("size", repeat=True), lambda o: format_size(o.case.size_bytes)),
            (Head("group", left=True), lambda o: o.case.group or "-"),
            *begins,
            (Head("call", "alone", legend=_ALONE), lambda o: format_time(o.calls_ns)),
            (Head("call", "slowdown"), lambda o: _text(o.slowdown, "x")),
            (Head("work", "alone"), lambda o: format_time(o.work_ns)),
            (Head("work", "slowdown", legend=of_work), lambda o: _text(o.work_slowdown, "x")),
            (Head("overlap", legend=_OVERLAP), _overlap_text),
            *alone,
            (Head("", left=True), lambda o: "" if o.covered else "too short"),
        ],
        found,
        above=[*_heads(found), _single_or_row(found)],
        below=[
            *_notes(found),
            *(f"WARN {text}: every figure above contains it" for text in machine),
        ],
    )


def _heads(found: Sequence[Overlap]) -> list[str]:
    lines = []
    for work, threads, bus_bytes in Counter((o.work, o.threads, o.work_bus_bytes) for o in found):
        where = "on every rank, in a stream of its own"
        if bus_bytes is not None:
            where = "on groups of its own"
        elif threads is not None:
            where = "on every rank, in a thread of its own"
            if not work.startswith("copy"):
                where += f"; {counted(threads, 'thread')} a product"
        lines.append(f"beside {work}, {where}")
    return list(dict.fromkeys(lines))


def _single_or_row(found: Sequence[Overlap]) -> str:
    """Which of the two times of a case is which."""
    mode = found[0].case.mode
    how = "pairs of single calls, each after a pause and a barrier"
    if found[0].offset_ns is None:
        least, most = (pick(o.calls for o in found) for pick in (min, max))
        calls = f"{least}" if least == most else f"{least} to {most}"
        how = f"runs of {calls} calls with no barrier between them"
    return (
        f"call alone: time / calls of {how}, slowest rank, median of {found[0].blocks} blocks; the "
        f"table above has the median of the {mode} calls, which is another time"
    )


def _notes(found: Sequence[Overlap]) -> list[str]:
    below = []
    short = [o for o in found if not o.covered]
    if short:
        below.append(
            f"too short: in {counted(len(short), 'case')} the work of some rank ended before its "
            "calls, so they were alone for a part of the time: slowdown and overlap are too small"
        )
    if any(o.threads is not None for o in found):
        below.append("on a CPU both take the same cores: no overlap (0) is the usual answer")
    return below


def _overlap_text(one: Overlap) -> str:
    """-: the interval is wider than all that there is, or the work began later."""
    value = one.efficiency
    if value is None:
        return "-"
    wide = value.low is not None and value.high is not None and value.high - value.low > 1
    return "-" if wide else _text(value)


def _busbw(one: Overlap, which: int) -> str:
    return format_bandwidth(one.busbw_gbps[which]) if one.busbw_gbps else "-"


def _begins(one: Overlap) -> str:
    return f"+{format_time(one.offset_ns)}" if one.offset_ns else "at once"


def _text(value: Estimate, unit: str = "") -> str:
    text = f"{value.value:.2f}{unit}"
    if value.low is None or value.high is None:
        return text
    return f"{text} [{value.low:.2f}, {value.high:.2f}]"


_BEGINS = (
    "work begins: one call and one of the work at a time; how long after the call it began, as "
    "measured; its time is from there"
)
_WORK = "slowdown of the work: while the calls ran; what was left of it then ran alone"
_WORK_SINGLE = "slowdown of the work: of its whole time"
_SUM = "busbw in GB/s: alone, of the faster of both collectives; at once, of both together"
_FIELDS = (
    "collective=case.collective size_bytes=case.size_bytes dtype=case.dtype "
    "backend=case.backend group=case.group ranks work threads calls repeats blocks offset_ns "
    "calls_ns "
    "work_ns "
    "slowdown=slowdown.value slowdown_low=slowdown.low slowdown_high=slowdown.high "
    "work_slowdown=work_slowdown.value work_slowdown_low=work_slowdown.low "
    "work_slowdown_high=work_slowdown.high efficiency=efficiency.value "
    "efficiency_low=efficiency.low efficiency_high=efficiency.high uncovered covered"
)


def beside_records(found: Sequence[Overlap]) -> list[dict[str, Any]]:
    return [picked(one, _FIELDS) for one in found]


# -------------------------------------------------------------------------------------------------
# Hours of the same cases.

_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE = 24  # characters


def soak_grid(found: Soaked) -> Grid:
    """A row a case."""
    return filled(
        [
            (Head("collective", left=True, repeat=True), lambda c: c.case.collective),
            (Head("size", repeat=True), lambda c: format_size(c.case.size_bytes)),
            (Head("calls"), lambda c: str(c.calls)),
            (Head("median"), lambda c: format_time(_middle(c.medians_ns))),
            (Head("p99"), lambda c: format_time(c.p99_ns)),
            (Head("max"), lambda c: format_time(c.max_ns)),
            (Head("drift"), lambda c: drift_text(c.drift)),
            (Head("worst", "window"), lambda c: f"{c.worst_over_median:.2f}x {_clock(c.worst_us)}"),
            (Head("most often", "last"), _slowest_text),
            (Head("median over time", left=True, drop=1), lambda c: curve(c.over_time)),
        ],
        found.cases,
        above=[soak_answer(found), _ROUNDS, _SOAK],
        below=[f"FAULT {text}" for text in found.faults],
    )


_ROUNDS = (
    "this table: all rounds but the first, median of the medians of the windows; the table above: "
    "the first round alone, so its median is another one"
)
_SOAK = (
    "most often last: a rank that was last more often than by chance (5 %), - where none was; "
    "drift: geometric mean of the last quarter of the time over that of the first [90 %]; p99: at "
    "most 9 % above; median over time: from the least to the largest of its row"
)


def soak_answer(found: Soaked) -> str:
    minutes = found.seconds / 60
    long = f"{minutes / 60:.1f} h" if minutes >= 120 else f"{minutes:.1f} min"
    long = f"{found.seconds:.0f} s" if minutes < 2 else long
    checked = "not checked"
    if found.faulty:
        checked = counted(found.faulty, "fault")
    elif found.checked:
        checked = f"all of {counted(found.checked, 'check')} correct"
    drifts = found.drifting
    moved = "no drift shown"
    if drifts:
        most = max(drifts, key=lambda c: abs(c.drift.value) if c.drift else 0.0)
        moved = f"drift in {counted(len(drifts), 'case')}, most {drift_text(most.drift)} in "
        moved += f"{most.case.collective} {format_size(most.case.size_bytes)}"
    elif not any(c.drift for c in found.cases):
        moved = "too few windows to tell of drift"
    rounds, windows = counted(found.rounds, "round"), counted(found.windows, "window")
    return f"soak: {rounds} in {long} ({windows}): {checked}; {moved}"


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _clock(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, timezone.utc).strftime("%H:%M:%SZ")


def _slowest_text(one: SoakedCase) -> str:
    return "-" if one.slowest is None else f"rank {one.slowest[0]} {one.slowest[1]:.0%}"


def curve(values: Sequence[float | None]) -> str:
    """At most 24 characters of eight heights; neighbours share one, by their largest; a blank where
    there is none.
    """
    step = max(1, -(-len(values) // _CURVE))
    parts = [
        [v for v in values[i : i + step] if v is not None] for i in range(0, len(values), step)
    ]
    points = [max(part, default=None) for part in parts]
    known = [point for point in points if point is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    steps = 8 / (high - low) if high > low else 0.0
    return "".join(" " if p is None else _BLOCKS[min(7, int(steps * (p - low)))] for p in points)


_OF_CASE = (
    "collective=case.collective size_bytes=case.size_bytes dtype=case.dtype backend=case.backend "
    "calls p99_ns max_ns drift=drift.value drift_low=drift.low drift_high=drift.high "
    "drift_p=drift.p worst worst_us worst_over_median"
)


def soak_object(found: Soaked) -> dict[str, Any]:
    cases = []
    for one in found.cases:
        rank, share = one.slowest or (None, None)
        own = {"medians_ns": list(one.medians_ns), "slowest_rank": rank, "slowest_share": share}
        cases.append({**picked(one, _OF_CASE), **own})
    return {
        **picked(found, "rounds windows seconds checked faulty"),
        "faults": list(found.faults),
        "cases": cases,
    }
