"""The forms of output: which rows and columns of a run are shown, as JSON, CSV or tables."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from torchcoll.core import summary
from torchcoll.core.errors import UsageError, choice, one_line, tell
from torchcoll.core.plausibility import doubted, doubts_of
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.run_facts import node_of
from torchcoll.report.columns import (
    ROW_FIELDS,
    Entry,
    named_columns,
    percentile_key,
    percentile_ns,
)
from torchcoll.report.destination import Destination
from torchcoll.report.grid import Grid, print_grids
from torchcoll.report.notes import Notes, note_lines, run_problems


@dataclass(frozen=True)
class Records:
    """One kind of rows for csv and json: their names, and the dictionaries of a run."""

    names: Callable[[View], Sequence[str]]
    of: Callable[[Run, View], Iterable[dict[str, Any]]]


CLOCKS = ("host", "device", "issue")
METRICS = ("time", "algbw", "busbw")


def split_list(value: str | Sequence[Any] | None, what: str = "list") -> tuple[Any, ...]:
    """The items of a list, or of a text with commas. Raises UsageError for anything else."""
    if value is None:
        return ()
    if not isinstance(value, str | list | tuple):
        raise UsageError(what, type(value).__name__, "text with commas, or a list")
    return tuple(p.strip() for p in value.split(",")) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True)
class View:
    """How samples are read and which columns are shown. Raises UsageError naming the flag."""

    columns: tuple[str, ...] = ()  # names of Row fields; none: the default columns
    percentiles: tuple[float, ...] = ()
    over_ranks: str = "max"
    clock: str | None = None
    verbose: bool = False  # header lines of the start and of what measuring costs

    def __post_init__(self) -> None:
        choice(self.over_ranks, "over-ranks", summary.OVER_RANKS)
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

    def row(
        self,
        result: CaseResult,
        library: str | None = None,
        times: Sequence[float] | None = None,
    ) -> summary.Row:
        return summary.summarise(result, self.over_ranks, self.clock, library, times)

    def entry(
        self,
        result: CaseResult,
        row: summary.Row,
        notes: Notes | None = None,
        doubt: str = "",
        times: Sequence[float] | None = None,
    ) -> Entry:
        usual_times = times if self.usual else None
        marks = notes.marks(result, *filter(None, [doubt]), times=usual_times) if notes else ""
        return Entry(doubted(row, doubt), result, marks, self.over_ranks)

    @property
    def usual(self) -> bool:
        """Whether rows are read as the verdict reads them."""
        return self.over_ranks == "max" and self.clock is None

    def entries(self, run: Run, notes: Notes | None = None) -> list[Entry]:
        times = [self._times(result) for result in run.results]
        rows: Sequence[summary.Row] = list(
            map(self.row, run.results, summary.libraries_of(run), times)
        )
        doubts = doubts_of(run, rows if self.usual else None)
        return [
            self.entry(result, row, notes, doubt, usual_times)
            for result, row, doubt, usual_times in zip(
                run.results, rows, doubts, times, strict=True
            )
        ]

    def _times(self, result: CaseResult) -> list[float]:
        return summary.steady_times(
            result, self.clock or summary.default_clock(result), self.over_ranks
        )


SCHEMA = "torchcoll-rows/1"


def row_names(view: View) -> list[str]:
    """The chosen columns (default all), then the chosen percentiles."""
    names = ROW_FIELDS if view.columns in ((), ("all",)) else view.columns
    return [*names, *map(percentile_key, view.percentiles)]


def row_objects(run: Run, view: View) -> list[dict[str, Any]]:
    """One dictionary a row."""
    names = ROW_FIELDS if view.columns in ((), ("all",)) else view.columns
    objects = []
    for entry in view.entries(run):
        values = summary.stated_fields(entry.row, names, entry.result.reported is not None)
        values |= {percentile_key(p): percentile_ns(entry, p) for p in view.percentiles}
        objects.append(values)
    return objects


ORIGIN = ("run_id", "file", "host", "node", "start_utc")


def row_origins(run: Run) -> list[dict[str, Any]]:
    """The origin of each result: ``run_id``, ``file``, ``host`` (of rank 0), ``node`` (the label
    ``node``, else the host if all ranks were on one), ``start_utc``, and ``label_NAME``.
    """
    members = [member for member in run.members if member.get("host")]
    file = str(run.path or run.source.get("file") or "") or None
    host = members[0]["host"] if members else run.environment.get("host")
    labels = {f"label_{one_line(name)}": value for name, value in run.labels.items()}
    origin_by_result: dict[int, dict[str, Any]] = {}
    for member, results in run.all_runs():
        start = member.header.get("start_utc")
        values = (member.header.get("run_id"), file, host, node_of(run) or None, start)
        origin = dict(zip(ORIGIN, values, strict=True)) | labels
        origin_by_result |= {id(result): origin for result in results}
    return [origin_by_result[id(result)] for result in run.results]


ROWS = Records(row_names, row_objects)


def run_object(
    run: Run, view: View, records: Records = ROWS, verdict: Any = None
) -> dict[str, Any]:
    """One run with its rows, and what one must know to judge them."""
    judged = {"verdict": verdict.to_json()} if verdict else {}
    rows = list(records.of(run, view))
    if records is ROWS and not view.columns:
        rows = [{**row, **origin} for row, origin in zip(rows, row_origins(run), strict=True)]
    return {
        "schema": SCHEMA,
        "run": {
            **_run_names(run),
            "torchcoll": run.header.get("torchcoll") or run.environment.get("torchcoll"),
            "ranks": run.ranks,
            "labels": run.labels,
            "status": run.end.get("status") if run.end else "truncated",
            "over_ranks": view.over_ranks,
            "continuations": [
                {**_run_names(member), "cases": len(results)}
                for member, results in run.all_runs()[1:]
            ],
            "events": [_plain_fields(event) for event in run.events],
            "problems": run_problems(run),
        },
        **judged,
        "rows": rows,
    }


def _run_names(run: Run) -> dict[str, Any]:
    path = None if run.path is None else str(run.path)
    names = {name: run.header.get(name) for name in ("run_id", "start_utc")}
    return {"path": path, **names}


def _plain_fields(event: dict[str, Any]) -> dict[str, Any]:
    """The fields of an event that JSON can hold."""
    return {k: v for k, v in event.items() if isinstance(v, (str, int, float))}


def json_text(objects: Sequence[dict[str, Any]]) -> str:
    """An object for one run, an array of them for several."""
    return json.dumps(objects[0] if len(objects) == 1 else objects, indent=1) + "\n"


# Spreadsheets run a cell that begins with ``= @ + -`` as a formula. A text that does so, and is no
# number, gets a ``'`` before it, which they do not show and ``torchcoll convert`` takes away.
_FORMULA = re.compile(r"'*[=@+-]")
_NUMBERS = re.compile(r"[+-]?[\d.]+(?:e[+-]?\d+)?(?:,[+-]?[\d.]+(?:e[+-]?\d+)?)*", re.IGNORECASE)


def csv_text(runs: Sequence[Run], view: View, records: Records = ROWS) -> str:
    """The rows of all runs as CSV in base units, with the file of each if they are several."""
    names = [*(["file"] if len(runs) > 1 else []), *records.names(view)]
    if not view.columns:
        labels = dict.fromkeys(f"label_{one_line(k)}" for run in runs for k in run.labels)
        # The long tables keep ranks apart: they have no reading over ranks.
        names += ["over_ranks"] if records is ROWS else []
        names += ["run_id", "start_utc", *labels]
    return records_csv(_flat_records(runs, view, records), names)


def _flat_records(runs: Sequence[Run], view: View, records: Records) -> Iterator[dict[str, Any]]:
    """Each row with what is common to its run."""
    for run in runs:
        common = {"file": str(run.path or run.header.get("run_id") or "")}
        common |= {f"label_{one_line(k)}": v for k, v in run.labels.items()}
        for member, results in run.all_runs():
            origin = {name: member.header.get(name) for name in ("run_id", "start_utc")}
            run_part = Run(header=member.header, members=member.members, results=results)
            rows = records.of(run_part, view)
            if records is ROWS:
                for result, values in zip(results, rows, strict=True):
                    values["over_ranks"] = summary.over_ranks_of(result, view.over_ranks)
            shared = [*(common | origin).items()]
            for values in rows:
                for name, value in shared:
                    values.setdefault(name, value)
                yield values


def records_csv(records: Iterable[Mapping[str, Any]], names: Sequence[str] = ()) -> str:
    """Objects as CSV: the columns ``names``, or one for each name in any of them."""
    if not names:
        records = list(records)
        names = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_cell_of_text, names))
    writer.writerows([_cell(record.get(name)) for name in names] for record in records)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        value = ",".join(one_line(item) for item in value)
    return _cell_of_text(value) if isinstance(value, str) else value


@functools.lru_cache(maxsize=100_000)  # a column has few texts that differ
def _cell_of_text(text: str) -> str:
    text = one_line(text)
    # "'=1" too, or reading would take the wrong quote away.
    return f"'{text}" if _FORMULA.match(text) and not _NUMBERS.fullmatch(text) else text


FORMATS = ("table", "markdown", "csv", "json")


@dataclass(frozen=True)
class Forms:
    """The tables, the object of json, and the rows of csv (None: ``rows`` of the object)."""

    grids: Sequence[Grid]
    document: dict[str, Any]
    records: list[dict[str, Any]] | None = None


def select_fields(record: Any, fields: str) -> dict[str, Any]:
    """The named attributes of a finding: ``name``, or ``name=path`` as in ``best=best.cell.name``,
    None if something on the path is. ``name?`` is None if the attribute is empty.
    """
    values = {}
    for field in fields.split():
        name, _, path = field.rstrip("?").partition("=")
        value = record
        for attribute in (path or name).split("."):
            value = None if value is None else getattr(value, attribute)
        values[name] = value or None if field.endswith("?") else value
    return values


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def print_results(forms: Sequence[Forms], format: str, file: TextIO | None) -> None:
    """Print them, one below the other. Raises UsageError for an unknown format."""
    grids = [grid for form in forms for grid in form.grids]
    row_lists = [form.document["rows"] if form.records is None else form.records for form in forms]
    records = [record for rows in row_lists for record in rows]
    documents = [{**form.document, **answer_object(form.grids)} for form in forms]
    document = documents[0] if len(documents) == 1 else documents
    print_forms([("", grids)], records, document, format, file)


def answer_object(grids: Sequence[Grid]) -> dict[str, Any]:
    """``answer`` of JSON: the last one of these tables; {} where they have none."""
    answers = [grid.answer.to_json() for grid in grids if grid.answer]
    return {"answer": answers[-1]} if answers else {}


def print_forms(
    titled: Sequence[tuple[str, list[Grid]]],
    records: Sequence[dict[str, Any]],
    document: Any,
    format: str,
    file: TextIO | None,
    names: Sequence[str] = (),
) -> None:
    """Print one of these: tables below their titles, the rows of csv (columns ``names``, or those
    that any row has), the object of json. Raises UsageError for an unknown format.
    """
    choice(format, "format", FORMATS)
    out = Destination(file)
    if format == "json":
        if isinstance(document, dict):
            document = {
                **answer_object([grid for _, grids in titled for grid in grids]),
                **document,
            }
        out.write(json.dumps(document, indent=1) + "\n")
    elif format == "csv":
        out.write(records_csv(records, names))
    else:
        print_grids(titled, format, out)
    out.flush()


def print_notes(finding: Any, format: str) -> None:
    """On stderr what csv and json of what was found in ``found.runs`` have no place for."""
    for text in note_lines(format, finding.runs, [f"note: {text}" for text in finding.notes]):
        tell(f"torchcoll: {text}")
