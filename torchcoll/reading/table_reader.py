"""Reads the text of benchmarks that print a table: what all such formats have in common.

A format is a subclass of ``TableReader``. It describes the tool and its columns, recognises the
lines in ``line``, and gives each row to ``record``, ``measured`` and ``result``, which have one
answer for half a row, a missing figure, and sizes of one rank's share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torchcoll.core.collectives import COLLECTIVES, busbw_gbps
from torchcoll.core.result import CaseResult, Reported
from torchcoll.reading import base
from torchcoll.reading.writers import is_message, without_log

# Notes that people append to a row: `<-- here`, `# best`, `| ok`, and signs outside of ASCII.
NOTE = re.compile(r"\s(?=[<#|;(!*]|//|--|[^\x00-\x7fµμ])")
NOTHING_SENT = "0 bytes: nothing was sent"


def half_row(fields: Sequence[str], heading: Sequence[str]) -> str:
    """The reason for refusing a row whose number of fields differs from its heading's."""
    return f"{base.HALF_ROW}: {len(fields)} fields, the heading has {len(heading)}"


@dataclass(frozen=True)
class Columns:
    """Names of the columns that are read. Times are in microseconds.

    time: of the mean; several names are those of several releases.
    """

    size: str
    time: Sequence[str]
    low: str = ""
    high: str = ""
    p99: str = ""
    calls: str = ""


@dataclass
class TableRow:
    """What a row measured. printed_bytes: the size as the tool prints it."""

    collective: str
    ranks: int
    dtype: str | None
    printed_bytes: int
    time_us: float
    record: Mapping[str, str]


class TableReader:
    """Reads the text of a benchmark line by line. A subclass has ``line``.

    TOOL, BACKEND: its name, and the backend that it measures.
    COLUMNS: those of its rows.
    PER_RANK: collectives whose size in the text is that of one rank; for others it is S.
    RANKS_UNTOLD: the output has no number of ranks, which is taken from a launcher's command line
        above it. A command may continue on the next line.
    ROWS_NAMED: each row names its collective: --collective is for those that it does not know.
    results: of the rows that were read, by the number of ranks of their run.
    names: the columns of the table.
    """

    TOOL, BACKEND = "", "unknown"
    COLUMNS: ClassVar[Columns]
    PER_RANK: ClassVar[Sequence[str]] = ()
    RANKS_UNTOLD = ROWS_NAMED = False
    ENVIRONMENT: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, options: base.ImportOptions) -> None:
        self.options, self.imported = options, base.Imported()
        self.results: dict[Any, list[CaseResult]] = {}
        self.names: list[str] = []
        self.version, self.form, self.outputs = "", "text", 1

    @classmethod
    def read(cls, lines: Iterable[base.Line], options: base.ImportOptions) -> base.Imported:
        reader = cls(options)
        command = ""
        for line, text in lines:
            if cls.RANKS_UNTOLD and options.ranks is None:
                command = f"{command} {text}" if command[-1:] == "\\" else text.rstrip()
                if (ranks := base.ranks_in(command)) and ranks != reader.options.ranks:
                    reader.options = replace(options, ranks=ranks)
                    reader.imported.warn(f"{ranks} ranks: taken from line {line}")
            before, logged = without_log(text)
            if not logged:
                reader.line(line, text)
            elif not is_message(text) and before.strip():  # a message that begins within a row
                reader.line(line, before)
        reader.end()
        return reader.imported

    def line(self, line: int, text: str) -> None:
        raise NotImplementedError

    def record(self, line: int, fields: Sequence[str]) -> dict[str, str] | None:
        """The fields of a row by column; None, and a refusal, for another number of fields."""
        if len(fields) == len(self.names):
            return dict(zip(self.names, fields, strict=True))
        self.imported.refuse(line, half_row(fields, self.names))
        return None

    def measured(
        self,
        record: Mapping[str, str],
        named: str,
        ranks: int | None = None,
        dtype: str | None = None,
        empty: bool = False,
    ) -> TableRow | str:
        """What a row measured, or why it cannot be used. named: the collective in the tool's words.
        empty: whether a row of 0 bytes is kept.
        """
        options, choose, columns = self.options, self.imported.choose, self.COLUMNS
        name = base.collective_named(named)
        if name is None or not self.ROWS_NAMED:
            name = choose("collective", options.collective, name)
        if name is None:
            if not named:
                return "the table names no collective: give --collective"
            return f"{named} is no collective that torchcoll has"
        has_data = COLLECTIVES[name].has_data
        printed = base.whole(record.get(columns.size)) if has_data else 0
        if printed is None:
            return _no_figure(columns.size, record)
        column = next((name for name in columns.time if name in record), columns.time[0])
        time = base.number(record.get(column))
        if not time:
            return _no_figure(column, record)
        if has_data and not printed and not empty:
            return NOTHING_SENT
        ranks = choose("ranks", options.ranks, ranks) or 0
        dtype = choose("dtype", options.dtype, dtype)
        return TableRow(name, ranks, dtype, printed, time, record)

    def result(
        self,
        row: TableRow,
        per_rank: bool | None = None,
        figures: Mapping[str, Any] | None = None,
        **case: Any,
    ) -> CaseResult | str:
        """The result of a row, or why there is none.

        per_rank: whether its size is that of one rank; None: by PER_RANK. figures: fields of
        Reported that differ from the usual ones, which are means over ranks of each rank's mean
        over calls, by the host's clock. case: further arguments of ``base.make_result``.
        """
        columns, name = self.COLUMNS, row.collective
        per_rank = name in self.PER_RANK if per_rank is None else per_rank
        if per_rank and not row.ranks:
            return f"the size of {name} is for one rank: give --ranks"
        size_bytes = row.printed_bytes * row.ranks if per_rank else row.printed_bytes
        is_size = size_bytes == row.printed_bytes
        low, high, p99 = (row.record.get(n) for n in (columns.low, columns.high, columns.p99))
        usual: dict[str, Any] = {
            "statistic": "mean",
            "over_ranks": "mean",
            "clock": "host",
            "calls": base.whole(row.record.get(columns.calls)),
            "min_ns": base.ns_of_us(low),
            "max_ns": base.ns_of_us(high),
            "p99_ns": base.ns_of_us(p99),
            "size_bytes": None if is_size else row.printed_bytes,
            "size_basis": "" if is_size else base.basis(name),
        }
        reported = Reported(row.time_us * 1e3, **{**usual, **(figures or {})})
        case.setdefault("backend", self.options.backend or self.BACKEND)
        return base.make_result(
            name, size_bytes, reported, ranks=row.ranks, dtype=row.dtype, **case
        )

    def add(self, line: int, result: CaseResult | str) -> None:
        """Keep the result of a row, or refuse the row for the reason that is given in its place."""
        if isinstance(result, str):
            self.imported.refuse(line, result)
        else:
            self.imported.take()
            self.results.setdefault(self.run_of(result), []).append(result)

    def run_of(self, result: CaseResult) -> Any:
        """The key in ``results``."""
        return result.ranks

    def add_runs(self, missing: str = "") -> None:
        """Add the run of each number of ranks. missing: a line before which the output stops."""
        source = {"tool": self.TOOL, "version": self.version, "format": self.form}
        source["run"] = str(self.outputs)
        end: dict[str, Any] = {"status": "complete"}
        if missing:
            reason = f"the output stops before '{missing}'"
            end = {"status": base.TRUNCATED, "reason": reason}
        for ranks, results in self.results.items():
            run = base.make_run(
                results, self.options, source, ranks=ranks, environment=self.ENVIRONMENT, end=end
            )
            self.imported.runs.append(run)
        if self.results and self.RANKS_UNTOLD and not self.options.ranks:
            self.imported.warn("the file does not tell the ranks: give --ranks for bus bandwidth")
        self.results = {}

    def finish(self) -> None:
        """Add the runs of an output that has ended."""
        self.add_runs()

    def end(self) -> None:
        """Add the runs of the last output. With several outputs, runs have the number of theirs."""
        self.finish()
        if self.outputs > 1:
            self.imported.warn(f"the output of {self.outputs} runs, one after the other")
            return
        for run in self.imported.runs:
            run.header["source"].pop("run", None)


def _no_figure(column: str, record: Mapping[str, str]) -> str:
    if column not in record:
        return f"no column {column}"
    return base.no_figure(column, record[column])


def check_busbw(result: CaseResult, printed_gbps: float | None, step: float) -> None:
    """Warn if a printed bus bandwidth does not follow from size, time and ranks, by ``step``."""
    case, time = result.case, result.reported.time_ns if result.reported else None
    expected = busbw_gbps(case.collective, result.size_bytes, result.ranks, time or 0.0)
    basis = "size, time and ranks"
    if text := base.contradiction("busbw", printed_gbps, expected, basis, step):
        result.warnings = [*result.warnings, text]
