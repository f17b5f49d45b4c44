"""The table of what collectives and the work beside them did to each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.units import counted, format_size, format_time
from torchcoll.report.formats import picked
from torchcoll.report.grid import Grid, Head, filled

if TYPE_CHECKING:
    from torchcoll.contention.overlap import Estimate, Overlap

_DEFINITION = (
    "overlap: of the time that could be hidden the part that was, (calls + work - at once) / "
    "min(calls, work); 1 is all, 0 is one after the other; [90 % intervals over the blocks of this "
    "launch]"
)


def beside_grid(found: Sequence[Overlap]) -> Grid:
    """A row a case; ``found`` is not empty."""
    return filled(
        [
            (Head("collective", left=True, repeat=True), lambda o: o.case.collective),
            (Head("size", repeat=True), lambda o: format_size(o.case.size_bytes)),
            (Head("call", "alone"), lambda o: format_time(o.calls_ns)),
            (Head("call", "slowdown", legend=_DEFINITION), lambda o: _text(o.slowdown, "x")),
            (Head("work", "alone"), lambda o: format_time(o.work_ns)),
            (Head("work", "slowdown"), lambda o: _text(o.work_slowdown, "x")),
            (Head("overlap"), lambda o: _text(o.efficiency)),
            (Head("", left=True), lambda o: "" if o.covered else "too short"),
        ],
        found,
        above=[*_heads(found)],
        below=_notes(found),
    )


def _heads(found: Sequence[Overlap]) -> list[str]:
    works = Counter((o.work, o.threads, o.ranks) for o in found)
    lines = []
    for work, threads, ranks in works:
        where = "in a stream of its own"
        if threads is not None:
            where = f"in a thread of its own, {counted(threads, 'thread')} a product"
        lines.append(f"beside {work} on each of {counted(ranks, 'rank')}, {where}")
    return lines


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


def _text(value: Estimate, unit: str = "") -> str:
    text = f"{value.value:.2f}{unit}"
    if value.low is None or value.high is None:
        return text
    return f"{text} [{value.low:.2f}, {value.high:.2f}]"


_FIELDS = (
    "collective=case.collective size_bytes=case.size_bytes dtype=case.dtype "
    "backend=case.backend ranks work threads calls repeats blocks calls_ns work_ns "
    "slowdown=slowdown.value slowdown_low=slowdown.low slowdown_high=slowdown.high "
    "work_slowdown=work_slowdown.value work_slowdown_low=work_slowdown.low "
    "work_slowdown_high=work_slowdown.high efficiency=efficiency.value "
    "efficiency_low=efficiency.low efficiency_high=efficiency.high uncovered covered"
)


def beside_records(found: Sequence[Overlap]) -> list[dict[str, Any]]:
    return [picked(one, _FIELDS) for one in found]
