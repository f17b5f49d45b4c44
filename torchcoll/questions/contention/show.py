"""The tables of what collectives and work beside them did to each other, and of hours of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.answer import Answer
from torchcoll.core.units import counted, format_size, format_time
from torchcoll.report.formats import select_fields
from torchcoll.report.grid import Grid, Head, make_grid

if TYPE_CHECKING:
    from torchcoll.questions.contention.overlap import Estimate, Overlap

_ALONE = (
    "call, work alone: measured for this table, in turn with both together; slowdown: together / "
    "alone [90 % intervals over the blocks of this run]"
)
_OVERLAP = (
    "overlap: of the time that could be hidden the part that was, (calls + work - at once) / "
    "min(calls, work) [90 % interval]; 1 is all, 0 is one after the other"
)


def concurrent_answer(overlaps: Sequence[Overlap]) -> Answer:
    """How much longer the call takes that the concurrent work slows most, and how much of both
    overlaps.
    """
    worst = max(overlaps, key=lambda each: each.slowdown.value)
    low, high = worst.slowdown.low, worst.slowdown.high
    interval = "" if low is None or high is None else f" (90 %: {low:.2f}x to {high:.2f}x)"
    cases = len({overlap.case for overlap in overlaps})
    of_cases = f", most of {cases} cases" if cases > 1 else ""
    details = [
        f"the work takes {_text(worst.work_slowdown, 'x')} as long",
        f"overlap {_overlap_text(worst)} (1 is all, 0 is none)",
    ]
    if not worst.covered:
        details.insert(0, "the work ended before the calls: the real slowdown is larger")
    return Answer(
        f"{worst.case.collective} {format_size(worst.case.size_bytes)}",
        "" if worst.covered else "doubt",
        verb="takes {} as long",
        size=worst.slowdown.value,
        unit="x",
        scope=f"while {worst.work} runs{interval}{of_cases}",
        details=tuple(details),
        next_step="" if worst.covered else "give the work more time: a larger --concurrent size",
    )


def concurrent_grid(overlaps: Sequence[Overlap], machine: Sequence[str] = ()) -> Grid:
    """A row per case. machine: warnings about the machine during the run."""
    return make_grid(
        [
            (Head("collective", left=True, repeat=True), lambda o: o.case.collective),
            (Head("size", repeat=True), lambda o: format_size(o.case.size_bytes)),
            (Head("group", left=True, repeat=True), lambda o: o.case.group or "-"),
            (Head("call", "alone", legend=_ALONE), lambda o: format_time(o.calls_ns)),
            (Head("call", "slowdown"), lambda o: _text(o.slowdown, "x")),
            (Head("work", "alone"), lambda o: format_time(o.work_ns)),
            (Head("work", "slowdown", legend=_WORK), lambda o: _text(o.work_slowdown, "x")),
            (Head("overlap", legend=_OVERLAP), _overlap_text),
            (Head("", left=True), lambda o: "" if o.covered else "too short"),
        ],
        overlaps,
        above=_heads(overlaps),
        below=[
            *([_TOO_SHORT] if not all(o.covered for o in overlaps) else []),
            *(f"WARN {text}: every figure above contains it" for text in machine),
        ],
    )


def _heads(overlaps: Sequence[Overlap]) -> list[str]:
    lines = []
    for work, threads, bus_bytes in Counter(
        (o.work, o.threads, o.work_bus_bytes) for o in overlaps
    ):
        where = "on every rank, in a stream of its own"
        if bus_bytes is not None:
            where = "on groups of its own"
        elif threads is not None:
            where = "on every rank, in a thread of its own"
            if not work.startswith("copy"):
                where += f"; {counted(threads, 'thread')} a product"
        lines.append(f"concurrent with {work}, {where}")
    return list(dict.fromkeys(lines))


def _overlap_text(overlap: Overlap) -> str:
    """``-`` if the interval is wider than the whole range."""
    value = overlap.efficiency
    wide = value.low is not None and value.high is not None and value.high - value.low > 1
    return "-" if wide else _text(value)


def _text(value: Estimate, unit: str = "") -> str:
    text = f"{value.value:.2f}{unit}"
    if value.low is None or value.high is None:
        return text
    return f"{text} [{value.low:.2f}, {value.high:.2f}]"


_TOO_SHORT = (
    "too short: the work of some rank ended before its calls, so they were alone for a part of the "
    "time: slowdown and overlap are too small"
)
_WORK = "slowdown of the work: while the calls ran; what was left of it then ran alone"
_FIELDS = (
    "collective=case.collective size_bytes=case.size_bytes dtype=case.dtype "
    "backend=case.backend group=case.group ranks work threads calls repeats blocks "
    "calls_ns work_ns "
    "slowdown=slowdown.value slowdown_low=slowdown.low slowdown_high=slowdown.high "
    "work_slowdown=work_slowdown.value work_slowdown_low=work_slowdown.low "
    "work_slowdown_high=work_slowdown.high efficiency=efficiency.value "
    "efficiency_low=efficiency.low efficiency_high=efficiency.high uncovered covered"
)


def concurrent_records(overlaps: Sequence[Overlap]) -> list[dict[str, Any]]:
    return [select_fields(overlap, _FIELDS) for overlap in overlaps]
