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
class Isolated:
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


def isolated(
    point: ExactCall,
    members: Sequence[int],
    backend: str,
    op: str | None,
    candidates: Sequence[Candidate],
) -> Isolated:
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
            lambda one: one.row.collective == point.collective,
            lambda found: f"{point.collective} is not in the run",
        ),
        (
            lambda one: one.row.dtype == point.dtype,
            lambda found: f"measured in {_values(found, 'dtype')}, not in {point.dtype}",
        ),
        (
            lambda one: one.row.ranks == len(members),
            lambda found: (
                f"measured on {_values(found, 'ranks')} ranks, the group has {len(members)}"
            ),
        ),
        (
            lambda one: one.members in ((), tuple(sorted(members))),
            lambda found: f"measured on ranks {_ranks(found)}, not on {format_ranges(members)}",
        ),
        (
            lambda one: point.size_bytes in (one.row.size_bytes, one.row.size_bytes_requested),
            lambda found: f"not measured at {format_size(point.size_bytes)}",
        ),
        (
            lambda one: backend in ("", one.row.backend),
            lambda found: f"measured on {_values(found, 'backend')}, sent on {backend}",
        ),
        (
            lambda one: op in (None, one.row.op),
            lambda found: f"measured with {_values(found, 'op')}, not with {op}",
        ),
        (
            lambda one: one.row.status == "ok" and one.row.median_ns is not None,
            lambda found: f"{found[0].row.status}: {found[0].row.reason or 'no steady calls'}",
        ),
        (
            lambda one: one.row.communicates and not one.row.rehearsal,
            lambda found: "a rehearsal, in which no time means anything",
        ),
        (
            lambda one: one.row.coalesce == 1 and one.row.clock != "issue",
            lambda found: "measured in groups of calls, or until issued only",
        ),
    ]
    for holds, reason in conditions:
        fitting = [one for one in candidates if holds(one)]
        if not fitting:
            return Isolated(None, reason=reason(candidates))
        candidates = fitting
    alike = [one for one in candidates if one.row.asynchronous == point.asynchronous]
    ways: dict[tuple[object, ...], dict[int, Row]] = {}
    for number, row in ((one.run, one.row) for one in alike or candidates):
        way = (row.asynchronous, row.mode, row.clock, row.backend, row.op, row.in_place)
        ways.setdefault(way, {}).setdefault(number, row)
    rows = list(max(ways.values(), key=len).values())
    row = rows[0]
    words = [row.mode, f"{row.clock} clock", row.backend]
    words += ["async"] if row.asynchronous else []
    words += [row.op] if op is None and row.op else []  # the training does not tell its own
    words += [f"geometric mean of {len(rows)} runs"] if len(rows) > 1 else []
    return Isolated(geometric(one.median_ns for one in rows), ", ".join(words), row.clock)


def _ranks(found: Sequence[Candidate]) -> str:
    """``0-1 and 2-3``: the ranks that each group of cases was measured on."""
    groups = dict.fromkeys(case.members for case in found)
    return " and ".join(map(format_ranges, groups))


def _values(found: Sequence[Candidate], name: str) -> str:
    return ", ".join(str(v) for v in dict.fromkeys(getattr(one.row, name) for one in found))


class Alone:
    """What each kind of call of a traffic took alone in the runs."""

    def __init__(self, traffic: Traffic, runs: Sequence[Run]) -> None:
        self._traffic, self._runs = traffic, runs
        self._curves = MeasuredCallTime(Side("run", list(runs)))
        self._rows: dict[str | None, list[Candidate]] = {}
        self._known: dict[tuple[object, ...], Isolated] = {}

    def of(self, call: TrafficCall, backend: str, clock: str | None) -> Isolated:
        kind = call.collective, call.dtype, call.op, call.asynchronous, call.group
        key = (*kind, call.bytes_in, call.bytes_out, backend, clock)
        if key not in self._known:
            self._known[key] = self._read(call, backend, clock)
        return self._known[key]

    def host_ns(self, call: TrafficCall) -> float | None:
        """On the clock of the host; None where that is not known."""
        group = self._traffic.groups.get(call.group)
        found = self.of(call, group.backend if group else "", "host")
        return found.time_ns if found.clock == "host" else None

    def _read(self, call: TrafficCall, backend: str, clock: str | None) -> Isolated:
        members = self._traffic.members(call)
        if has_splits(call.collective):
            return Isolated(None, reason=f"{call.collective}: what each rank sends varies")
        point, remark = point_of(call, len(members))
        if point is None:
            return Isolated(None, reason=remark)
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
        found = isolated(point, members, backend, call.op, self._rows[clock])
        # What really ran is set against the same call or none; of a plan there is nothing better.
        if found.time_ns is None and self._traffic.source == "plan":
            return self._between(call, point.size_bytes, len(members), found)
        return found

    def _between(self, call: TrafficCall, size_bytes: int, ranks: int, exact: Isolated) -> Isolated:
        """From the sizes that were measured around it, or from an all_reduce of as many bytes."""
        try:
            kind = call.dtype, call.op, call.group
            time = self._curves.duration(call.collective, size_bytes, ranks, *kind)
            _, used = self._curves.curve(call.collective, ranks, *kind)
        except UsageError:
            return exact
        if time.extrapolated:
            return Isolated(None, reason=f"{format_size(size_bytes)} is {time.extrapolated}")
        words = "between measured sizes"
        if used.share is not None:
            half = "half of " * (used.share < 1)
            words = f"assumption: {half}{used.row.collective} between measured sizes"
        return Isolated(
            time.each_ns[0], f"{words}, {used.row.mode}, {used.row.dtype}", used.row.clock
        )
