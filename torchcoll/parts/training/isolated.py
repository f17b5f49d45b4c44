"""The duration of a training's calls when they were measured alone, interpolated between sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torchcoll.core.backends import backend_of
from torchcoll.core.case import SETTINGS
from torchcoll.core.collectives import COLLECTIVES, has_splits
from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.result import Run
from torchcoll.core.spec import ExactCall
from torchcoll.core.summary import Row, summarise
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of
from torchcoll.core.units import format_ranges, format_size
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
    *(setting.name for setting in SETTINGS),
    "group",
    "implementation",
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
        actual = f"{len(sizes)} size{'s' if len(sizes) != 1 else ''} that {which}"
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

    Between two measured sizes the duration is a straight line in the number of bytes. That is
    Hockney's time = latency + bytes / bandwidth in each piece, so it is exact if the library
    follows any such line, and each algorithm may have its own. Straight lines between logarithms
    were rejected: the logarithm of latency + bytes / bandwidth is convex, so they lie above it, by
    6 % at the bend for sizes a factor of 4 apart.

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


@dataclass(frozen=True)
class IsolatedTime:
    """The duration of a call measured alone.

    - time_ns: the median completion, of several runs their geometric mean; None, with a ``reason``,
      if there is none.
    - text: how it was measured.
    - clock: the clock it was measured on.
    """

    time_ns: float | None
    text: str = ""
    clock: str | None = None
    reason: str = ""


class Candidate(NamedTuple):
    """A row of a run that may match a call.

    - run: the index of its run.
    - members: the ranks of the training's world that it was measured on; () if unknown, because the
      run had a different number of ranks or used all of them.
    """

    row: Row
    run: int
    members: tuple[int, ...]


Condition = tuple[Callable[[Candidate], bool], Callable[[Sequence[Candidate]], str]]


def match_isolated(
    point: ExactCall,
    members: Sequence[int],
    backend: str,
    op: str | None,
    candidates: Sequence[Candidate],
) -> IsolatedTime:
    """Returns the duration of a call alone: same collective, dtype, number of ranks, size and
    backend.

    - members: the ranks of the world in the call's group. Rows measured on other ranks of an
      equally large world do not count, because other ranks have other wires between them.
    - backend, op: '' and None are unknown and match any.

    Rows that were called as in the training, asynchronously or not, are preferred. If they were
    measured by several methods, the method of the most runs counts, otherwise the first; its runs
    are replicates that all count.
    """
    # Each condition with the reason to report if no candidate that met the earlier ones meets it.
    conditions: list[Condition] = [
        (
            lambda candidate: candidate.row.collective == point.collective,
            lambda remaining: f"{point.collective} is not in the run",
        ),
        (
            lambda candidate: candidate.row.dtype == point.dtype,
            lambda remaining: f"measured in {_values(remaining, 'dtype')}, not in {point.dtype}",
        ),
        (
            lambda candidate: candidate.row.ranks == len(members),
            lambda remaining: (
                f"measured on {_values(remaining, 'ranks')} ranks, the group has {len(members)}"
            ),
        ),
        (
            lambda candidate: candidate.members in ((), tuple(sorted(members))),
            lambda remaining: (
                f"measured on ranks {_ranks(remaining)}, not on {format_ranges(members)}"
            ),
        ),
        (
            lambda candidate: (
                point.size_bytes in (candidate.row.size_bytes, candidate.row.size_bytes_requested)
            ),
            lambda remaining: f"not measured at {format_size(point.size_bytes)}",
        ),
        (
            lambda candidate: backend in ("", candidate.row.backend),
            lambda remaining: f"measured on {_values(remaining, 'backend')}, sent on {backend}",
        ),
        (
            lambda candidate: op in (None, candidate.row.op),
            lambda remaining: f"measured with {_values(remaining, 'op')}, not with {op}",
        ),
        (
            lambda candidate: candidate.row.is_right and candidate.row.median_ns is not None,
            lambda remaining: (
                f"{remaining[0].row.outcome}: {remaining[0].row.reason or 'no steady calls'}"
            ),
        ),
        (
            lambda candidate: candidate.row.communicates and not candidate.row.rehearsal,
            lambda remaining: "a rehearsal, in which no time means anything",
        ),
        (
            lambda candidate: candidate.row.coalesce == 1 and candidate.row.clock != "issue",
            lambda remaining: "measured in groups of calls, or until issued only",
        ),
    ]
    for holds, reason in conditions:
        fitting = [candidate for candidate in candidates if holds(candidate)]
        if not fitting:
            return IsolatedTime(None, reason=reason(candidates))
        candidates = fitting
    alike = [
        candidate for candidate in candidates if candidate.row.asynchronous == point.asynchronous
    ]
    by_method: dict[tuple[object, ...], dict[int, Row]] = {}
    for number, row in ((candidate.run, candidate.row) for candidate in alike or candidates):
        method = (row.asynchronous, row.mode, row.clock, row.backend, row.op, row.in_place)
        by_method.setdefault(method, {}).setdefault(number, row)
    rows = list(max(by_method.values(), key=len).values())
    row = rows[0]
    facts = [row.mode, f"{row.clock} clock", row.backend]
    facts += ["async"] if row.asynchronous else []
    facts += [row.op] if op is None and row.op else []  # the op of the training is unknown
    facts += [f"geometric mean of {len(rows)} runs"] if len(rows) > 1 else []
    return IsolatedTime(geometric(row.median_ns for row in rows), ", ".join(facts), row.clock)


def _ranks(candidates: Sequence[Candidate]) -> str:
    """Returns the ranks that each group of cases was measured on, for example ``0-1 and 2-3``."""
    groups = dict.fromkeys(case.members for case in candidates)
    return " and ".join(map(format_ranges, groups))


def _values(candidates: Sequence[Candidate], name: str) -> str:
    return ", ".join(
        str(v) for v in dict.fromkeys(getattr(candidate.row, name) for candidate in candidates)
    )


class IsolatedTimes:
    """The durations in the runs of each kind of call of a traffic."""

    def __init__(self, traffic: Traffic, runs: Sequence[Run]) -> None:
        self._traffic, self._runs = traffic, runs
        self._curves = MeasuredCurves(Side("run", list(runs)))
        self._rows: dict[str | None, list[Candidate]] = {}
        self._cache: dict[tuple[object, ...], IsolatedTime] = {}

    def find(self, call: TrafficCall, backend: str, clock: str | None) -> IsolatedTime:
        """Returns the duration of the call, on ``clock`` if a row has it."""
        kind = call.collective, call.dtype, call.op, call.asynchronous, call.group
        key = (*kind, call.bytes_in, call.bytes_out, backend, clock)
        if key not in self._cache:
            self._cache[key] = self._look_up(call, backend, clock)
        return self._cache[key]

    def host_ns(self, call: TrafficCall) -> float | None:
        """Returns the duration on the clock of the host (ns); None if unknown."""
        group = self._traffic.groups.get(call.group)
        isolated = self.find(call, group.backend if group else "", "host")
        return isolated.time_ns if isolated.clock == "host" else None

    def _look_up(self, call: TrafficCall, backend: str, clock: str | None) -> IsolatedTime:
        members = self._traffic.members(call)
        if has_splits(call.collective):
            return IsolatedTime(None, reason=f"{call.collective}: what each rank sends varies")
        point, remark = point_of(call, len(members))
        if point is None:
            return IsolatedTime(None, reason=remark)
        if clock not in self._rows:  # cases without this clock are read on their default clock
            world = self._traffic.ranks
            self._rows[clock] = [
                Candidate(
                    summarise(result, "max", clock if clock in result.time_ns else None),
                    number,
                    tuple(sorted(result.members)) if run.ranks == world else (),
                )
                for number, run in enumerate(self._runs)
                for result in run.results
            ]
        isolated = match_isolated(point, members, backend, call.op, self._rows[clock])
        # Calls that ran are compared with exactly the same call; for a plan an estimate will do.
        if isolated.time_ns is None and self._traffic.source == "plan":
            return self._interpolate(call, point.size_bytes, len(members), isolated)
        return isolated

    def _interpolate(
        self, call: TrafficCall, size_bytes: int, ranks: int, exact: IsolatedTime
    ) -> IsolatedTime:
        """Returns the duration from the neighbouring measured sizes, or from all_reduce calls of
        the same bytes.

        ``exact`` is returned if there is no curve.
        """
        try:
            curve = self._curves.find(call.collective, ranks, call.dtype, call.op, call.group)
        except UsageError:
            return exact
        time_ns = curve.time_ns(size_bytes)
        if time_ns is None:
            return IsolatedTime(
                None, reason=f"{format_size(size_bytes)} is above the sizes measured"
            )
        text = "between measured sizes"
        if curve.share is not None:
            half = "half of " * (curve.share < 1)
            text = f"assumption: {half}{curve.row.collective} between measured sizes"
        row = curve.row
        return IsolatedTime(time_ns, f"{text}, {row.mode}, {row.dtype}", row.clock)
