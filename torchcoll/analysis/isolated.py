"""The case of a run that measured a call of a training alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torchcoll.core.points import Point
from torchcoll.core.result import Run
from torchcoll.core.summary import Row, summarise
from torchcoll.core.units import format_size


@dataclass(frozen=True)
class Isolated:
    """time_ns: the median completion, None with the ``reason``; text: how it was measured."""

    time_ns: float | None
    text: str = ""
    clock: str | None = None
    reason: str = ""


def rows_on(run: Run, clock: str | None) -> list[Row]:
    """The rows of a run, read on this clock where a case has it, else on its default."""
    return [summarise(r, "max", clock if clock in r.time_ns else None) for r in run.results]


def isolated(
    point: Point, ranks: int, backend: str, op: str | None, rows: Sequence[Row]
) -> Isolated:
    """What a call took alone: the same collective, dtype, number of ranks, size and backend.

    ``backend`` '' and ``op`` None are unknown, then any does. Of several rows that fit the first
    counts that was called as in the training, async or not.
    """
    for holds, reason in _conditions(point, ranks, backend, op):
        fitting = [row for row in rows if holds(row)]
        if not fitting:
            return Isolated(None, reason=reason(rows))
        rows = fitting
    row = next((r for r in rows if r.asynchronous == point.asynchronous), rows[0])
    words = [row.cadence, f"{row.clock} clock", row.backend]
    words += ["async"] if row.asynchronous else []
    words += [row.op] if op is None and row.op else []  # the training does not tell its own
    return Isolated(row.median_ns, ", ".join(words), row.clock)


Condition = tuple[Callable[[Row], bool], Callable[[Sequence[Row]], str]]


def _conditions(point: Point, ranks: int, backend: str, op: str | None) -> Iterable[Condition]:
    """Each with what to say where no case fulfils it, of those that fulfil the ones before."""
    yield (
        lambda row: row.collective == point.collective,
        lambda rows: f"{point.collective} is not in the run",
    )
    yield (
        lambda row: row.dtype == point.dtype,
        lambda rows: f"measured in {_values(rows, 'dtype')}, not in {point.dtype}",
    )
    yield (
        lambda row: row.ranks == ranks,
        lambda rows: f"measured on {_values(rows, 'ranks')} ranks, the group has {ranks}",
    )
    yield (
        lambda row: point.nbytes in (row.nbytes, row.nbytes_requested),
        lambda rows: f"not measured at {format_size(point.nbytes)}",
    )
    yield (
        lambda row: backend in ("", row.backend),
        lambda rows: f"measured on {_values(rows, 'backend')}, sent on {backend}",
    )
    yield (
        lambda row: op in (None, row.op),
        lambda rows: f"measured with {_values(rows, 'op')}, not with {op}",
    )
    yield (
        lambda row: row.status == "ok" and row.median_ns is not None,
        lambda rows: f"{rows[0].status}: {rows[0].reason or 'no steady calls'}",
    )
    yield (
        lambda row: row.backend != "fake" and not row.rehearsal,
        lambda rows: "a rehearsal, in which no time means anything",
    )
    yield (
        lambda row: row.coalesce == 1 and row.clock != "issue",
        lambda rows: "measured in groups of calls, or until issued only",
    )


def _values(rows: Sequence[Row], name: str) -> str:
    return ", ".join(str(v) for v in dict.fromkeys(getattr(row, name) for row in rows))
