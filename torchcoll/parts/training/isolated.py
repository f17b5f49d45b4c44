"""The duration of a training's calls when they were measured alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchcoll.core.collectives import has_splits
from torchcoll.core.errors import UsageError
from torchcoll.core.result import Run
from torchcoll.core.spec import ExactCall
from torchcoll.core.summary import Row, summarise
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of
from torchcoll.core.units import format_ranges, format_size
from torchcoll.parts.training.measured_curves import MeasuredCurves
from torchcoll.stats.ratios import geometric
from torchcoll.stats.sides import Side


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
