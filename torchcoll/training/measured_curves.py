"""What one call of any size takes, from the sizes that were measured.

Between two measured sizes time is a straight line in the number of bytes: that is Hockney's time =
latency + bytes / bandwidth in each piece, so it is exact where the library follows any such line,
and each algorithm may have its own. Lines between logarithms were rejected: the logarithm of
latency + bytes / bandwidth is convex, so they lie above it, by 6 % at the bend with sizes by 4.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError
from torchcoll.core.summary import Row
from torchcoll.stats.ratios import geometric
from torchcoll.stats.sides import Measured, Reading, Side

# What all points of one curve share, beside the dtype and the op.
_ALIKE = (
    *("ranks", "backend", "device", "mode", "clock", "asynchronous", "buffers", "buffer_reuse"),
    *("group", "implementation"),
)


@dataclass(frozen=True)
class MeasuredCurve:
    """Times (ns) at ascending sizes (bytes), two or more.

    hides: calls can run beside the computation. Not on CPUs: there they take its cores.
    """

    sizes: tuple[int, ...]
    times_ns: tuple[float, ...]
    hides: bool = True

    def time_ns(self, size_bytes: float) -> float:
        """Below the smallest size its time, for latency does not shrink; above the largest the
        last piece goes on: callers say where they use that (``beyond``).
        """
        if size_bytes <= self.sizes[0]:
            return self.times_ns[0]
        above = min(bisect_left(self.sizes, size_bytes), len(self.sizes) - 1)
        (x, y), (u, v) = ((self.sizes[i], self.times_ns[i]) for i in (above - 1, above))
        # Noise can make the last piece fall: beyond it, time does not.
        slope = (v - y) / (u - x) if size_bytes <= u else max(0.0, (v - y) / (u - x))
        return v + slope * (size_bytes - u)

    def beyond(self, size_bytes: float) -> bool:
        """True where the size is above all that were measured."""
        return size_bytes > self.sizes[-1]


@dataclass(frozen=True)
class MeasuredCurves:
    """The curve of one or more launches.

    centre: geometric mean of the launches' medians. others: one for each of several launches; of
    one launch its 5th and 95th percentile of calls, () where a source does not tell them.
    row: one of the rows, for what they have in common. left_out: how many sizes not all launches
    have, which are left out.
    """

    centre: MeasuredCurve
    others: tuple[MeasuredCurve, ...]
    launches: int
    row: Row
    left_out: int = 0

    @property
    def every(self) -> tuple[MeasuredCurve, ...]:
        return (self.centre, *self.others)


@dataclass(frozen=True)
class Wanted:
    """What a curve is to be of. dtype, op, asynchronous: where they were measured, else the only
    one there is. ranks: 0 any.
    """

    collective: str
    dtype: str | None
    op: str | None = "sum"
    asynchronous: bool = False
    ranks: int = 0

    @property
    def action(self) -> str:
        ranks, module = self.ranks or "N", COLLECTIVES[self.collective].module
        return (
            f"Measure it: torchrun --nproc-per-node {ranks} -m torchcoll.{module} -b 64K -e 256M "
            "-J FILE."
        )


def curves_of(side: Side, wanted: Wanted) -> MeasuredCurves:
    """The curve of a collective in a side's files.

    Raises UsageError where no curve is there, or more than one that could be meant.
    """
    if side.rehearsals:
        got = f"{side.rehearsals} rehearsals (--rehearse)"
        raise UsageError("curve", got, "real launches", "What shares one GPU says nothing of time.")
    name = wanted.collective
    found = [m for m in side.measured("time", Reading()) if m.row.collective == name]
    usable = [m for m in found if not _useless(m.row)]
    if not usable:
        reasons = dict.fromkeys(_useless(m.row) for m in found)
        got = f"{name} {', '.join(reasons)}" if found else f"no case of {name}"
        raise UsageError("curve", got, f"{name} over sizes, on 2 ranks or more", wanted.action)
    chosen = _of_one_kind(usable, wanted)
    launches = sorted({m.launch for m in chosen})
    each = [_points(m for m in chosen if m.launch == launch) for launch in launches]
    sizes = sorted(set.intersection(*(set(points) for points in each)))
    every = set().union(*each)
    if len(sizes) < 2:
        which = f"all of its {len(launches)} launches have" if launches[1:] else "its launch has"
        got = f"{len(sizes)} size{'s' if len(sizes) != 1 else ''} that {which}"
        raise UsageError(f"curve of {name}", got, "2 or more sizes", wanted.action)
    centre = _curve(sizes, [[row.median_ns for p in each for row in p[n]] for n in sizes])
    if len(launches) > 1:
        others = [_curve(sizes, [[row.median_ns for row in p[n]] for n in sizes]) for p in each]
    else:
        spread = [
            [[getattr(row, name) for row in each[0][n]] for n in sizes]
            for name in ("low_ns", "high_ns")
        ]
        others = [_curve(sizes, times) for times in spread if all(map(all, times))]
    if chosen[0].row.device == "cpu":
        centre, *others = (replace(one, hides=False) for one in (centre, *others))
    return MeasuredCurves(
        centre, tuple(others), len(launches), chosen[0].row, len(every) - len(sizes)
    )


def _points(items: Iterable[Measured]) -> dict[int, list[Row]]:
    points: dict[int, list[Row]] = {}
    for item in items:
        points.setdefault(item.row.size_bytes, []).append(item.row)
    return points


def _curve(sizes: Sequence[int], times: Iterable[Iterable[float | None]]) -> MeasuredCurve:
    return MeasuredCurve(tuple(sizes), tuple(geometric(several) or 0.0 for several in times))


def _useless(row: Row) -> str:
    """Why a row is no point of a curve; '' where it is one."""
    if row.status != "ok" or row.verified == "wrong":
        return "wrong" if row.verified == "wrong" else row.status
    if not row.median_ns or not row.size_bytes:
        return "without a time"
    if row.clock == "issue":
        return "on the clock issue, which does not wait for the transfer"
    if row.coalesce > 1:
        return "coalesced, several timed together"
    if not row.communicates:
        return f"on the backend {row.backend}, which communicates nothing"
    return "on 1 rank, which communicates nothing" if row.ranks == 1 else ""


def _value(row: Row, name: str) -> object:
    """Sub-groups of one rule (``mod:2/0``) run at once, and are one way of measuring."""
    value: object = getattr(row, name)
    return str(value).split("/")[0] if name == "group" and value else value


def _of_one_kind(items: Sequence[Measured], wanted: Wanted) -> list[Measured]:
    """What was asked for, where it is there; all else must be the same."""
    for name in ("dtype", "op", "asynchronous"):
        has = [m for m in items if getattr(m.row, name) == getattr(wanted, name)]
        items = has or items
    if wanted.ranks and (has := [m for m in items if m.row.ranks in (0, wanted.ranks)]):
        items = has
    for name in (*_ALIKE, "dtype", "op"):
        values = list(dict.fromkeys(_value(m.row, name) for m in items))
        if len(values) > 1:
            got = f"{wanted.collective} with {name} {' and '.join(map(str, values))}"
            raise UsageError("curve", got, f"one {name}", wanted.action)
    return list(items)
