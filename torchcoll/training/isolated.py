"""What a call of a training took when a run measured it alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchcoll.core.collectives import has_splits
from torchcoll.core.errors import UsageError
from torchcoll.core.result import Run
from torchcoll.core.spec import ExactCall, point_of
from torchcoll.core.summary import Row, summarise
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.units import format_ranges, format_size
from torchcoll.stats.ratios import geometric
from torchcoll.stats.sides import Side
from torchcoll.training.measured_curves import MeasuredCallTime


@dataclass(frozen=True)
class IsolatedTime:
    """time_ns: the median completion, of several runs their geometric mean; None with the
    ``reason``. text: how it was measured.
    """

    time_ns: float | None
    text: str = ""
    clock: str | None = None
    reason: str = ""


class Candidate(NamedTuple):
    """A row, and the ranks of the training's world that it was measured on.

    members: () where that cannot be known: a run of another size, or on all of its ranks.
    run: which of the runs it is of.
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
    """What a call took alone: the same collective, dtype, number of ranks, size and backend.

    members: ranks of the world in its group. What was measured on other ranks of a world as large
    does not count: as many ranks elsewhere have other wires between them. ``backend`` '' and ``op``
    None are unknown, then any does. Of several ways to measure that fit, those count that were
    called as in the training, async or not, and of these the one of most runs, else the first; its
    runs are replicates, each of which counts.
    """
    # Each with what to say where no case fulfils it, of those that fulfil the ones before.
    conditions: list[Condition] = [
        (
            lambda candidate: candidate.row.collective == point.collective,
            lambda fitting: f"{point.collective} is not in the run",
        ),
        (
            lambda candidate: candidate.row.dtype == point.dtype,
            lambda fitting: f"measured in {_values(fitting, 'dtype')}, not in {point.dtype}",
        ),
        (
            lambda candidate: candidate.row.ranks == len(members),
            lambda fitting: (
                f"measured on {_values(fitting, 'ranks')} ranks, the group has {len(members)}"
            ),
        ),
        (
            lambda candidate: candidate.members in ((), tuple(sorted(members))),
            lambda fitting: f"measured on ranks {_ranks(fitting)}, not on {format_ranges(members)}",
        ),
        (
            lambda candidate: (
                point.size_bytes in (candidate.row.size_bytes, candidate.row.size_bytes_requested)
            ),
            lambda fitting: f"not measured at {format_size(point.size_bytes)}",
        ),
        (
            lambda candidate: backend in ("", candidate.row.backend),
            lambda fitting: f"measured on {_values(fitting, 'backend')}, sent on {backend}",
        ),
        (
            lambda candidate: op in (None, candidate.row.op),
            lambda fitting: f"measured with {_values(fitting, 'op')}, not with {op}",
        ),
        (
            lambda candidate: candidate.row.status == "ok" and candidate.row.median_ns is not None,
            lambda fitting: (
                f"{fitting[0].row.status}: {fitting[0].row.reason or 'no steady calls'}"
            ),
        ),
        (
            lambda candidate: candidate.row.communicates and not candidate.row.rehearsal,
            lambda fitting: "a rehearsal, in which no time means anything",
        ),
        (
            lambda candidate: candidate.row.coalesce == 1 and candidate.row.clock != "issue",
            lambda fitting: "measured in groups of calls, or until issued only",
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
    facts += [row.op] if op is None and row.op else []  # the training does not tell its own
    facts += [f"geometric mean of {len(rows)} runs"] if len(rows) > 1 else []
    return IsolatedTime(
        geometric(candidate.median_ns for candidate in rows), ", ".join(facts), row.clock
    )


def _ranks(candidates: Sequence[Candidate]) -> str:
    """``0-1 and 2-3``: the ranks that each group of cases was measured on."""
    groups = dict.fromkeys(case.members for case in candidates)
    return " and ".join(map(format_ranges, groups))


def _values(candidates: Sequence[Candidate], name: str) -> str:
    return ", ".join(
        str(v) for v in dict.fromkeys(getattr(candidate.row, name) for candidate in candidates)
    )


class IsolatedTimes:
    """What each kind of call of a traffic took alone in the runs."""

    def __init__(self, traffic: Traffic, runs: Sequence[Run]) -> None:
        self._traffic, self._runs = traffic, runs
        self._curves = MeasuredCallTime(Side("run", list(runs)))
        self._rows: dict[str | None, list[Candidate]] = {}
        self._cache: dict[tuple[object, ...], IsolatedTime] = {}

    def find(self, call: TrafficCall, backend: str, clock: str | None) -> IsolatedTime:
        kind = call.collective, call.dtype, call.op, call.asynchronous, call.group
        key = (*kind, call.bytes_in, call.bytes_out, backend, clock)
        if key not in self._cache:
            self._cache[key] = self._look_up(call, backend, clock)
        return self._cache[key]

    def host_ns(self, call: TrafficCall) -> float | None:
        """On the clock of the host; None where that is not known."""
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
        if clock not in self._rows:  # read on this clock where a case has it, else on its default
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
        # What really ran is set against the same call or none; of a plan there is nothing better.
        if isolated.time_ns is None and self._traffic.source == "plan":
            return self._interpolate(call, point.size_bytes, len(members), isolated)
        return isolated

    def _interpolate(
        self, call: TrafficCall, size_bytes: int, ranks: int, exact: IsolatedTime
    ) -> IsolatedTime:
        """From the sizes that were measured around it, or from an all_reduce of as many bytes."""
        try:
            kind = call.dtype, call.op, call.group
            time = self._curves.duration(call.collective, size_bytes, ranks, *kind)
            _, used = self._curves.curve(call.collective, ranks, *kind)
        except UsageError:
            return exact
        if time.extrapolated:
            return IsolatedTime(None, reason=f"{format_size(size_bytes)} is {time.extrapolated}")
        text = "between measured sizes"
        if used.share is not None:
            half = "half of " * (used.share < 1)
            text = f"assumption: {half}{used.row.collective} between measured sizes"
        return IsolatedTime(
            time.each_ns[0], f"{text}, {used.row.mode}, {used.row.dtype}", used.row.clock
        )
