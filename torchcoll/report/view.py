"""What of a run is shown: the choices of ``show``, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.errors import UsageError
from torchcoll.core.plausibility import doubted, doubts_of
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import OVER_RANKS, Row, libraries_of, summarise
from torchcoll.report.columns import Column, Entry, named_columns, percentile_column
from torchcoll.report.notes import Notes


@dataclass(frozen=True)
class Records:
    """One kind of rows for csv and json: their names, and the dictionaries of a run."""

    names: Callable[[View], Sequence[str]]
    of: Callable[[Run, View], Iterable[dict[str, Any]]]


FORMATS = ("table", "markdown", "csv", "json", "nccl-tests")
CLOCKS = ("host", "device", "issue")
METRICS = ("time", "algbw", "busbw")


def choice(value: object, what: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UsageError(what, value, f"one of {', '.join(allowed)}")


def texts_of(value: str | Sequence[Any] | None) -> tuple[Any, ...]:
    """A list as code gives it or, with commas, as the command line does."""
    if value is None:
        return ()
    return tuple(p.strip() for p in value.split(",")) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True)
class View:
    """How samples are read and which columns are shown. Raises UsageError naming the flag."""

    columns: tuple[str, ...] = ()  # names of Row fields; none: the default columns
    percentiles: tuple[float, ...] = ()
    over_ranks: str = "max"
    clock: str | None = None

    def __post_init__(self) -> None:
        choice(self.over_ranks, "over-ranks", OVER_RANKS)
        if self.clock is not None:
            choice(self.clock, "clock", CLOCKS)
        named_columns(self.columns)
        numbers: list[float] = []
        for value in self.percentiles:
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = -1.0
            if not 0 <= number <= 100:
                raise UsageError("percentiles", value, "numbers from 0 to 100, such as 50,90,99.9")
            numbers.append(number)
        object.__setattr__(self, "percentiles", tuple(numbers))

    def row(self, result: CaseResult, library: str | None = None) -> Row:
        return summarise(result, self.over_ranks, self.clock, library)

    def entry(
        self, result: CaseResult, row: Row, notes: Notes | None = None, doubt: str | None = None
    ) -> Entry:
        marks = (notes.marks(result) + (notes.mark(doubt) if doubt else "")) if notes else ""
        return Entry(doubted(row, doubt), result, marks, self.over_ranks)

    @property
    def usual(self) -> bool:
        """Whether rows are read as the verdict reads them."""
        return self.over_ranks == "max" and self.clock is None

    def entries(self, run: Run, notes: Notes | None = None) -> list[Entry]:
        libraries = libraries_of(run)
        rows = [self.row(result, libraries[id(result)]) for result in run.results]
        doubts = doubts_of(run, rows if self.usual else None)
        return [
            self.entry(result, row, notes, doubts.get(id(result)))
            for result, row in zip(run.results, rows, strict=True)
        ]

    def extra_columns(self) -> list[Column]:
        return [percentile_column(p) for p in self.percentiles]
