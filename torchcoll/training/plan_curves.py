"""The measured curves on which the calls of a plan are read, one for each kind of call."""

from __future__ import annotations

from dataclasses import dataclass

from torchcoll.core.backends import backend_of
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import point_of
from torchcoll.core.summary import Row
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.stats.sides import Side
from torchcoll.training.call_time import CallTime, Duration
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


class MeasuredCallTime(CallTime):
    """By the curves of a side, each of which is looked for once. each_ns: centre, then launches.

    Where an all_gather or a reduce_scatter was not measured, its time is that of an all_reduce of
    as many bytes, divided by 2: a ring does one after the other, each in half of the steps.
    """

    def __init__(self, measured: Side) -> None:
        self._side = measured
        self._found: dict[tuple[object, ...], tuple[MeasuredCurves, CurveUsed]] = {}
        self._others = {m.case.collective for m in measured.results}

    def of(
        self,
        collective: str,
        size_bytes: int,
        ranks: int,
        dtype: str | None = None,
        op: str | None = None,
        group: str = "",
    ) -> Duration:
        """dtype and op: those measured are preferred. group: named in what refuses it."""
        curves, used = self.curve(collective, ranks, dtype, op, group)
        share = used.share or 1
        return Duration(
            tuple(share * curve.time_ns(size_bytes) for curve in curves.every),
            "above the sizes measured" if curves.centre.beyond(size_bytes) else "",
        )

    def of_call(self, plan: Traffic, call: TrafficCall) -> tuple[int, Duration]:
        """The size S of a call of a plan, and its time."""
        ranks = len(plan.members(call))
        point, _ = point_of(call, ranks)
        size = point.size_bytes if point else max(call.bytes_in, call.bytes_out)
        return size, self.of(call.collective, size, ranks, call.dtype, call.op, call.group)

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

    def curve(
        self, collective: str, ranks: int, dtype: str | None, op: str | None, group: str
    ) -> tuple[MeasuredCurves, CurveUsed]:
        """Raises UsageError where there is none that could be meant."""
        key = (collective, ranks, dtype)
        if key not in self._found:
            name = collective if collective in self._others else _WHOLE
            if name not in self._others:
                got = f"no case of {collective}, nor of {_WHOLE}"
                action = Wanted(collective, dtype, ranks=ranks).action
                raise UsageError("curve", got, f"{collective} over sizes", action)
            wanted = Wanted(name, dtype, op or "sum", False, ranks)
            curves = curves_of(self._side, wanted)
            if curves.row.ranks and curves.row.ranks != ranks:
                expected = f"{ranks}, as {collective} has in the group {group}"
                raise UsageError("ranks of the curve", curves.row.ranks, expected, wanted.action)
            share = None
            if name != collective:
                whole = op and backend_of(curves.row.backend).whole_reduce_scatter
                share = 1.0 if whole else 0.5
            sizes = curves.centre.sizes
            used = CurveUsed(
                collective,
                ranks,
                dtype,
                curves.row,
                (sizes[0], sizes[-1]),
                curves.launches,
                share,
            )
            self._found[key] = curves, used
        return self._found[key]
