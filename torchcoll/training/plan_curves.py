"""The measured curves on which the calls of a plan are read, one for each kind of call."""

from __future__ import annotations

from dataclasses import dataclass

from torchcoll.comparison.sides import Side
from torchcoll.core.backends import backend_of
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import point_of
from torchcoll.core.summary import Row
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.training.measured_curves import MeasuredCurves, Wanted, curves_of

_WHOLE = "all_reduce"  # what the curves of its two halves follow from


@dataclass(frozen=True)
class CurveUsed:
    """The curve that calls of one collective, dtype and number of ranks were read on.

    dtype: as it is sent. row: one of its rows. sizes: the smallest and the largest measured, in
    bytes. share: of the time of an all_reduce, where only that was measured; None: this was.
    """

    collective: str
    ranks: int
    dtype: str | None
    row: Row
    sizes: tuple[int, int]
    launches: int
    share: float | None = None


@dataclass(frozen=True)
class ReadCall:
    """One call: its size S as nccl-tests counts it, and its time on each curve."""

    size_bytes: int
    times_ns: tuple[float, ...]
    beyond: bool
    curve: CurveUsed


class PlanCurves:
    """Curves of a side, each found once.

    Where an all_gather or a reduce_scatter was not measured, its time is that of an all_reduce of
    as many bytes, divided by 2: a ring does one after the other, each in half of the steps.
    """

    def __init__(self, measured: Side) -> None:
        self._side = measured
        self._found: dict[tuple[object, ...], tuple[MeasuredCurves, CurveUsed]] = {}
        self._others = {m.case.collective for m in measured.results}

    def read(self, plan: Traffic, call: TrafficCall) -> ReadCall:
        ranks = len(plan.members(call))
        curves, used = self.of(call, ranks)
        point, _ = point_of(call, ranks)
        size = point.size_bytes if point else max(call.bytes_in, call.bytes_out)
        times = tuple((used.share or 1) * curve.time_ns(size) for curve in curves.every)
        return ReadCall(size, times, curves.centre.beyond(size), used)

    @property
    def used(self) -> list[CurveUsed]:
        return [used for _, used in self._found.values()]

    @property
    def launches(self) -> int:
        """Of all curves; 1 where they differ: launches are then not paired."""
        found = {curves.launches for curves, _ in self._found.values()}
        return found.pop() if len(found) == 1 else 1

    @property
    def hides(self) -> bool:
        return all(curves.centre.hides for curves, _ in self._found.values())

    @property
    def count(self) -> int:
        """How many curves there are of each collective: the centre first."""
        found = {(curves.launches, len(curves.every)) for curves, _ in self._found.values()}
        return found.pop()[1] if len(found) == 1 else 1

    def notes(self) -> list[str]:
        notes = []
        for share in dict.fromkeys(used.share for used in self.used if used.share is not None):
            names = dict.fromkeys(used.collective for used in self.used if used.share == share)
            times = "half of" if share < 1 else "the time of"
            why = (
                "as in a ring, which does one after the other"
                if share < 1
                else f"which {self.used[0].row.backend} runs for it"
            )
            notes.append(
                f"assumption: {' and '.join(names)} not measured: taken for {times} an "
                f"{_WHOLE} of as many bytes, {why}"
            )
        dtypes = {
            f"{used.collective} in {used.row.dtype}"
            for used in self.used
            if used.row.dtype != used.dtype
        }
        if dtypes:
            notes.append(
                f"measured {', '.join(sorted(dtypes))}, sent in another type: taken by bytes, "
                "though adding them up costs another time"
            )
        if self.count == 1 and len({c.launches for c, _ in self._found.values()}) > 1:
            notes.append("the curves are of different numbers of launches: no interval")
        elif self.launches == 1:
            notes.append(
                "one launch: low and high are the 5th and 95th percentile of its calls; only "
                "several launches give an interval"
            )
        return notes

    def of(self, call: TrafficCall, ranks: int) -> tuple[MeasuredCurves, CurveUsed]:
        """Raises UsageError where there is none that could be meant."""
        key = (call.collective, ranks, call.dtype)
        if key not in self._found:
            name = call.collective if call.collective in self._others else _WHOLE
            if name not in self._others:
                got = f"no case of {call.collective}, nor of {_WHOLE}"
                action = Wanted(call.collective, call.dtype, ranks=ranks).action
                raise UsageError("curve", got, f"{call.collective} over sizes", action)
            wanted = Wanted(name, call.dtype, call.op or "sum", False, ranks)
            curves = curves_of(self._side, wanted)
            if curves.row.ranks and curves.row.ranks != ranks:
                expected = f"{ranks}, as {call.collective} has in the group {call.group}"
                raise UsageError("ranks of the curve", curves.row.ranks, expected, wanted.action)
            share = None
            if name != call.collective:
                whole = call.op and backend_of(curves.row.backend).whole_reduce_scatter
                share = 1.0 if whole else 0.5
            sizes = curves.centre.sizes
            used = CurveUsed(
                call.collective,
                ranks,
                call.dtype,
                curves.row,
                (sizes[0], sizes[-1]),
                curves.launches,
                share,
            )
            self._found[key] = curves, used
        return self._found[key]
