"""The case of a run that measured a call of a training alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchcoll.analysis.stats import geometric
from torchcoll.core.points import Point
from torchcoll.core.result import Run
from torchcoll.core.summary import Row, summarise
from torchcoll.core.units import format_ranges, format_size


@dataclass(frozen=True)
class Isolated:
    """time_ns: the median completion, of several launches their geometric mean; None with the
    ``reason``. text: how it was measured.
    """

    time_ns: float | None
    text: str = ""
    clock: str | None = None
    reason: str = ""


class Candidate(NamedTuple):
    """A row, and the ranks of the training's world that it was measured on.

    members: () where that cannot be told: a launch of another size, or on all of its ranks.
    run: which of the runs it is of.
    """

    row: Row
    run: int
    members: tuple[int, ...]


def rows_on(runs: Iterable[Run], clock: str | None, ranks: int) -> list[Candidate]:
    """The rows of runs, read on this clock where a case has it, else on its default.

    ranks: size of the training's world.
    """
    return [
        Candidate(
            summarise(result, "max", clock if clock in result.time_ns else None),
            number,
            tuple(sorted(result.members)) if run.ranks == ranks else (),
        )
        for number, run in enumerate(runs)
        for result in run.results
    ]


def isolated(
    point: Point,
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
    for holds, reason in _conditions(point, members, backend, op):
        fitting = [one for one in candidates if holds(one)]
        if not fitting:
            return Isolated(None, reason=reason(candidates))
        candidates = fitting
    alike = [one for one in candidates if one.row.asynchronous == point.asynchronous]
    ways: dict[tuple[object, ...], dict[int, Row]] = {}
    for number, row in ((one.run, one.row) for one in alike or candidates):
        way = (row.asynchronous, row.cadence, row.clock, row.backend, row.op, row.in_place)
        ways.setdefault(way, {}).setdefault(number, row)
    rows = list(max(ways.values(), key=len).values())
    row = rows[0]
    words = [row.cadence, f"{row.clock} clock", row.backend]
    words += ["async"] if row.asynchronous else []
    words += [row.op] if op is None and row.op else []  # the training does not tell its own
    words += [f"geometric mean of {len(rows)} launches"] if len(rows) > 1 else []
    return Isolated(geometric(one.median_ns for one in rows), ", ".join(words), row.clock)


Condition = tuple[Callable[[Candidate], bool], Callable[[Sequence[Candidate]], str]]


def _conditions(
    point: Point, members: Sequence[int], backend: str, op: str | None
) -> Iterable[Condition]:
    """Each with what to say where no case fulfils it, of those that fulfil the ones before."""
    yield (
        lambda one: one.row.collective == point.collective,
        lambda found: f"{point.collective} is not in the run",
    )
    yield (
        lambda one: one.row.dtype == point.dtype,
        lambda found: f"measured in {_values(found, 'dtype')}, not in {point.dtype}",
    )
    yield (
        lambda one: one.row.ranks == len(members),
        lambda found: f"measured on {_values(found, 'ranks')} ranks, the group has {len(members)}",
    )
    yield (
        lambda one: one.members in ((), tuple(sorted(members))),
        lambda found: f"measured on ranks {_places(found)}, not on {format_ranges(members)}",
    )
    yield (
        lambda one: point.nbytes in (one.row.nbytes, one.row.nbytes_requested),
        lambda found: f"not measured at {format_size(point.nbytes)}",
    )
    yield (
        lambda one: backend in ("", one.row.backend),
        lambda found: f"measured on {_values(found, 'backend')}, sent on {backend}",
    )
    yield (
        lambda one: op in (None, one.row.op),
        lambda found: f"measured with {_values(found, 'op')}, not with {op}",
    )
    yield (
        lambda one: one.row.status == "ok" and one.row.median_ns is not None,
        lambda found: f"{found[0].row.status}: {found[0].row.reason or 'no steady calls'}",
    )
    yield (
        lambda one: one.row.backend != "fake" and not one.row.rehearsal,
        lambda found: "a rehearsal, in which no time means anything",
    )
    yield (
        lambda one: one.row.coalesce == 1 and one.row.clock != "issue",
        lambda found: "measured in groups of calls, or until issued only",
    )


def _values(found: Sequence[Candidate], name: str) -> str:
    return ", ".join(str(v) for v in dict.fromkeys(getattr(one.row, name) for one in found))


def _places(found: Sequence[Candidate]) -> str:
    return " and ".join(map(format_ranges, dict.fromkeys(one.members for one in found)))
