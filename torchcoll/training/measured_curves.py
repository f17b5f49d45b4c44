"""The duration of a call of any size, interpolated from measured sizes.

``MeasuredCallTime`` reads the curve of each collective from the files of a measurement; it is one
of the two implementations of CallTime (training/call_time.py).

Between two measured sizes the duration is a straight line in the number of bytes. That is Hockney's
time = latency + bytes / bandwidth in each piece, so it is exact if the library follows any such
line, and each algorithm may have its own. Straight lines between logarithms were rejected: the
logarithm of latency + bytes / bandwidth is convex, so they lie above it, by 6 % at the bend for
sizes a factor of 4 apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.summary import Row
from torchcoll.stats.ratios import geometric
from torchcoll.stats.sides import Reading, Side
from torchcoll.training.call_time import CallTime, Duration

_FALLBACK = "all_reduce"  # used for all_gather and reduce_scatter if they were not measured
# Fields that all points of one curve must share, apart from dtype and op.
_SHARED_FIELDS = (
    *("ranks", "backend", "device", "mode", "clock", "asynchronous", "buffers", "buffer_reuse"),
    *("group", "implementation", "misalign_bytes"),
)


@dataclass(frozen=True)
class MeasuredCurve:
    """Durations (ns) at ascending sizes (bytes), two or more.

    - hides: calls can run during the computation. Not on CPUs, where they use its cores.
    """

    sizes: tuple[int, ...]
    times_ns: tuple[float, ...]
    hides: bool = True

    def time_ns(self, size_bytes: float) -> float:
        """Returns the duration of a call of this size.

        Below the smallest size it is that of the smallest size, because latency does not shrink.
        Above the largest size the last piece is extended; callers report that (``beyond``).
        """
        if size_bytes <= self.sizes[0]:
            return self.times_ns[0]
        above = min(bisect_left(self.sizes, size_bytes), len(self.sizes) - 1)
        (x, y), (u, v) = ((self.sizes[i], self.times_ns[i]) for i in (above - 1, above))
        # Noise can make the last piece fall; the extension must not.
        slope = (v - y) / (u - x) if size_bytes <= u else max(0.0, (v - y) / (u - x))
        return v + slope * (size_bytes - u)

    def beyond(self, size_bytes: float) -> bool:
        """Returns whether the size is above all measured sizes."""
        return size_bytes > self.sizes[-1]


@dataclass(frozen=True)
class MeasuredCurves:
    """The curves of one or more runs.

    - all_curves: first the geometric mean of the runs' medians. Then, for several runs, one curve
      for each; for one run, the 5th and 95th percentile of its calls, if the source has them.
    - row: one of the rows, for the fields that all share.
    - left_out: the number of sizes that are left out because not all runs have them.
    """

    all_curves: tuple[MeasuredCurve, ...]
    runs: int
    row: Row
    left_out: int = 0


@dataclass(frozen=True)
class CurveRequest:
    """The calls that a curve is needed for.

    - dtype, op, asynchronous: used if they were measured, otherwise the only measured value is.
    - ranks: 0 for any number.
    """

    collective: str
    dtype: str | None
    op: str | None
    asynchronous: bool
    ranks: int

    @property
    def action(self) -> str:
        """The advice to measure the curve."""
        ranks, module = self.ranks or "N", COLLECTIVES[self.collective].module
        return (
            f"Measure it: torchrun --nproc-per-node {ranks} -m torchcoll.{module} -b 64K -e 256M "
            "-J FILE."
        )


def read_curves(side: Side, request: CurveRequest) -> MeasuredCurves:
    """Returns the curves of a collective in a side's files.

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
    for field in ("dtype", "op", "asynchronous"):
        alike = [m for m in usable if getattr(m.row, field) == getattr(request, field)]
        usable = alike or usable
    if request.ranks:
        usable = [m for m in usable if m.row.ranks in (0, request.ranks)] or usable
    for field in (*_SHARED_FIELDS, "dtype", "op"):
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
        actual = f"{len(sizes)} size{'s' if len(sizes) != 1 else ''} that {which}"
        raise UsageError(f"curve of {name}", actual, "2 or more sizes", request.action)
    hides = usable[0].row.device != "cpu"

    def curve(times: Iterable[Iterable[float | None]]) -> MeasuredCurve:
        return MeasuredCurve(tuple(sizes), tuple(geometric(rows) or 0.0 for rows in times), hides)

    centre = curve([row.median_ns for rows in each for row in rows[n]] for n in sizes)
    if len(each) > 1:
        alternatives = [curve([row.median_ns for row in rows[n]] for n in sizes) for rows in each]
    else:
        spread = [
            [[getattr(row, field) for row in each[0][n]] for n in sizes]
            for field in ("low_ns", "high_ns")
        ]
        alternatives = [curve(times) for times in spread if all(map(all, times))]
    left_out = len(set().union(*each)) - len(sizes)
    return MeasuredCurves((centre, *alternatives), len(each), usable[0].row, left_out)


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


@dataclass(frozen=True)
class CurveUsed:
    """The curve that was used for the calls of one collective, dtype and number of ranks.

    - dtype: the dtype of the calls.
    - row: one of the rows of the curve.
    - sizes: the smallest and the largest measured size in bytes.
    - share: the assumed share of an all_reduce's time, if only that was measured; otherwise None.
    """

    collective: str
    ranks: int
    dtype: str | None
    row: Row
    sizes: tuple[int, int]
    runs: int
    share: float | None = None


class MeasuredCallTime(CallTime):
    """Predicts durations from the curves of a side; each curve is read once.

    each_ns has the centre first, then the alternatives (``MeasuredCurves.all_curves``). If an
    all_gather or a reduce_scatter was not measured, its duration is half that of an all_reduce of
    the same bytes: a ring does one after the other, each in half of the steps.
    """

    def __init__(self, measured: Side, asynchronous: bool = False) -> None:
        """Takes the runs of a side.

        - asynchronous: curves of asynchronous calls are preferred, otherwise those of blocking
          calls.
        """
        self._side, self._asynchronous = measured, asynchronous
        self._curves: dict[tuple[object, ...], tuple[MeasuredCurves, CurveUsed]] = {}
        self._collectives = {m.case.collective for m in measured.results}

    def duration(
        self,
        collective: str,
        size_bytes: float,
        ranks: int,
        dtype: str | None = None,
        op: str | None = None,
        group: str = "",
    ) -> Duration:
        """Returns the duration of a call.

        - ranks: 0 for any number.
        - dtype, op: used if they were measured.
        - group: the name of the group, for errors.
        """
        curves, used = self.curve(collective, ranks, dtype, op, group)
        share = used.share or 1
        return Duration(
            tuple(share * curve.time_ns(size_bytes) for curve in curves.all_curves),
            "above the sizes measured" if curves.all_curves[0].beyond(size_bytes) else "",
        )

    @property
    def used(self) -> list[CurveUsed]:
        """The curves that were used so far."""
        return [used for _, used in self._curves.values()]

    @property
    def runs(self) -> int:
        """The number of runs of each curve; 1 if it differs between curves, whose runs then are not
        paired.
        """
        counts = {curves.runs for curves, _ in self._curves.values()}
        return counts.pop() if len(counts) == 1 else 1

    @property
    def hides(self) -> bool:
        """Whether calls can run during the computation."""
        return all(curves.all_curves[0].hides for curves, _ in self._curves.values())

    @property
    def curve_count(self) -> int:
        """The number of curves of each collective, including the centre; 1 if it differs."""
        counts = {(curves.runs, len(curves.all_curves)) for curves, _ in self._curves.values()}
        return counts.pop()[1] if len(counts) == 1 else 1

    def notes(self) -> list[str]:
        """Returns notes on assumptions and on the spread of the curves."""
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
                f"{_FALLBACK} of as many bytes, {why}"
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
        if self.curve_count == 1 and len({used.runs for used in self.used}) > 1:
            notes.append("the curves are of different numbers of runs: no interval")
        elif self.runs == 1:
            notes.append(
                "one run: low and high are the 5th and 95th percentile of its calls; only "
                "several runs give an interval"
            )
        return notes

    def curve(
        self,
        collective: str,
        ranks: int,
        dtype: str | None,
        op: str | None = None,
        group: str = "",
    ) -> tuple[MeasuredCurves, CurveUsed]:
        """Returns the curves for a collective. Raises UsageError if there is no unambiguous one."""
        key = (collective, ranks, dtype)
        if key not in self._curves:
            name = collective if collective in self._collectives else _FALLBACK
            request = CurveRequest(name, dtype, op or "sum", self._asynchronous, ranks)
            if name != collective and name not in self._collectives:
                actual = f"no case of {collective}, nor of {_FALLBACK}"
                action = replace(request, collective=collective).action
                raise UnusableError("curve", actual, f"{collective} over sizes", action)
            curves = read_curves(self._side, request)
            if ranks and curves.row.ranks and curves.row.ranks != ranks:
                expected = f"{ranks}, as {collective} has in the group {group}"
                raise UsageError("ranks of the curve", curves.row.ranks, expected, request.action)
            share = None
            if name != collective:
                whole = op and backend_of(curves.row.backend).whole_reduce_scatter
                share = 1.0 if whole else 0.5
            sizes = curves.all_curves[0].sizes
            used = CurveUsed(
                collective,
                ranks,
                dtype,
                curves.row,
                (sizes[0], sizes[-1]),
                curves.runs,
                share,
            )
            self._curves[key] = curves, used
        return self._curves[key]
