"""The duration of a call of any size, interpolated from the measured sizes of its collective.

Between two measured sizes the duration is a straight line in the number of bytes. That is Hockney's
time = latency + bytes / bandwidth in each piece, so it is exact if the library follows any such
line, and each algorithm may have its own. Straight lines between logarithms were rejected: the
logarithm of latency + bytes / bandwidth is convex, so they lie above it, by 6 % at the bend for
sizes a factor of 4 apart.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.summary import Row
from torchcoll.core.units import counted
from torchcoll.stats.ratios import geometric
from torchcoll.stats.sides import Reading, Side

_FALLBACK = "all_reduce"  # used for all_gather and reduce_scatter if they were not measured
# Fields that all points of one curve must share.
_SHARED_FIELDS = (
    "ranks",
    "backend",
    "device",
    "mode",
    "clock",
    "asynchronous",
    "buffers",
    "buffer_reuse",
    "group",
    "implementation",
    "misalign_bytes",
    "dtype",
    "op",
)


@dataclass(frozen=True)
class MeasuredCurve:
    """Durations at ascending sizes, two or more: geometric means of the runs' medians.

    - sizes: in bytes. times_ns: one for each.
    - row: one of the rows, for the fields that all share.
    - share: the assumed share of an all_reduce's time, if only that was measured; otherwise None.
    """

    sizes: tuple[int, ...]
    times_ns: tuple[float, ...]
    row: Row
    share: float | None = None

    def time_ns(self, size_bytes: float) -> float | None:
        """Returns the duration of a call of this size; None above the measured sizes.

        Below the smallest size it is that of the smallest size, because latency does not shrink.
        """
        share = self.share or 1.0
        if size_bytes > self.sizes[-1]:
            return None
        if size_bytes <= self.sizes[0]:
            return share * self.times_ns[0]
        above = bisect_left(self.sizes, size_bytes)
        (x, y), (u, v) = ((self.sizes[i], self.times_ns[i]) for i in (above - 1, above))
        return share * (v + (v - y) / (u - x) * (size_bytes - u))


@dataclass(frozen=True)
class CurveRequest:
    """The calls that a curve is needed for.

    - dtype, op: used if they were measured, otherwise the only measured value is.
    - ranks: 0 for any number.
    """

    collective: str
    dtype: str | None
    op: str | None
    ranks: int

    @property
    def action(self) -> str:
        """The advice to measure the curve."""
        ranks, module = self.ranks or "N", COLLECTIVES[self.collective].module
        return (
            f"Measure it: torchrun --nproc-per-node {ranks} -m torchcoll.{module} -b 64K -e 256M "
            "-J FILE."
        )


def read_curve(side: Side, request: CurveRequest) -> MeasuredCurve:
    """Returns the curve of a collective in a side's files.

    Raises UsageError if there is no curve, or no unambiguous one.
    """
    if side.rehearsals:
        actual = f"{side.rehearsals} rehearsals (--rehearse)"
        raise UsageError("curve", actual, "real runs", "What shares one GPU says nothing of time.")
    name = request.collective
    measured = [m for m in side.measured("time", Reading()) if m.row.collective == name]
    usable = [m for m in measured if not _unusable_reason(m.row)]
    if not usable:
        reasons = dict.fromkeys(_unusable_reason(m.row) for m in measured)
        actual = f"{name} {', '.join(reasons)}" if measured else f"no case of {name}"
        raise UnusableError(
            "curve", actual, f"{name} over sizes, on 2 ranks or more", request.action
        )
    # Select the requested values if they were measured; all other fields must be equal.
    for field in ("dtype", "op"):
        alike = [m for m in usable if getattr(m.row, field) == getattr(request, field)]
        usable = alike or usable
    if request.ranks:
        usable = [m for m in usable if m.row.ranks in (0, request.ranks)] or usable
    for field in _SHARED_FIELDS:
        values = list(dict.fromkeys(getattr(m.row, field) for m in usable))
        if field == "group":  # sub-groups of one rule (``mod:2/0``) run at once
            values = list(dict.fromkeys(rule and rule.split("/")[0] for rule in values))
        if len(values) > 1:
            actual = f"{name} with {field} {' and '.join(map(str, values))}"
            raise UsageError("curve", actual, f"one {field}", request.action)
    points: dict[int, dict[int, list[Row]]] = {}  # run -> size -> rows
    for m in usable:
        points.setdefault(m.run, {}).setdefault(m.row.size_bytes, []).append(m.row)
    each = [points[run] for run in sorted(points)]
    sizes = sorted(set.intersection(*(set(rows) for rows in each)))
    if len(sizes) < 2:
        which = f"all of its {len(each)} runs have" if each[1:] else "its run has"
        actual = f"{counted(len(sizes), 'size')} that {which}"
        raise UsageError(f"curve of {name}", actual, "2 or more sizes", request.action)
    times = (geometric(row.median_ns for rows in each for row in rows[n]) or 0.0 for n in sizes)
    return MeasuredCurve(tuple(sizes), tuple(times), usable[0].row)


def _unusable_reason(row: Row) -> str:
    """Returns why a row cannot be a point of a curve; '' if it can."""
    if not row.is_right:
        return row.outcome
    if not row.median_ns or not row.size_bytes:
        return "without a time"
    if row.clock == "issue":
        return "on the clock issue, which does not wait for the transfer"
    if row.coalesce > 1:
        return "coalesced, several timed together"
    if not row.communicates:
        return f"on the backend {row.backend}, which communicates nothing"
    return "on 1 rank, which communicates nothing" if row.ranks == 1 else ""


class MeasuredCurves:
    """The curves of the runs of a side; each is read once.

    If an all_gather or a reduce_scatter was not measured, its duration is half that of an
    all_reduce of the same bytes: a ring does one after the other, each in half of the steps.
    """

    def __init__(self, measured: Side) -> None:
        self._side = measured
        self._curves: dict[tuple[object, ...], MeasuredCurve] = {}
        self._collectives = {m.case.collective for m in measured.results}

    def find(
        self,
        collective: str,
        ranks: int,
        dtype: str | None = None,
        op: str | None = None,
        group: str = "",
    ) -> MeasuredCurve:
        """Returns the curve of a collective.

        - ranks: 0 for any number.
        - group: the name of the group, for errors.

        Raises UsageError if there is no unambiguous one.
        """
        key = (collective, ranks, dtype)
        if key not in self._curves:
            self._curves[key] = self._read(collective, ranks, dtype, op, group)
        return self._curves[key]

    def _read(
        self, collective: str, ranks: int, dtype: str | None, op: str | None, group: str
    ) -> MeasuredCurve:
        name = collective if collective in self._collectives else _FALLBACK
        request = CurveRequest(name, dtype, op or "sum", ranks)
        if name not in self._collectives:
            either = "" if collective == _FALLBACK else f", nor of {_FALLBACK}"
            actual = f"no case of {collective}{either}"
            action = replace(request, collective=collective).action
            raise UnusableError("curve", actual, f"{collective} over sizes", action)
        curve = read_curve(self._side, request)
        if ranks and curve.row.ranks and curve.row.ranks != ranks:
            expected = f"{ranks}, as {collective} has in the group {group}"
            raise UsageError("ranks of the curve", curve.row.ranks, expected, request.action)
        if name == collective:
            return curve
        whole = op and backend_of(curve.row.backend).whole_reduce_scatter
        return replace(curve, share=1.0 if whole else 0.5)
