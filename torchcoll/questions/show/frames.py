"""Runs, what a training sends, and findings as pandas tables; rows of runs as Parquet."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Sequence
from typing import Any, BinaryIO

import pandas

from torchcoll.core.display import OneLine
from torchcoll.core.errors import UnavailableError, UsageError, choice, install_text, one_line
from torchcoll.core.file import is_traffic
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run
from torchcoll.core.summary import Row, over_ranks_of, stated
from torchcoll.core.traffic import Traffic
from torchcoll.questions.show.show import show
from torchcoll.reading.inputs import Source, expand, load_all
from torchcoll.report.formats import ORIGIN, View, row_origins, split_list
from torchcoll.report.sample_views import CALL_FIELDS, CALLS
from torchcoll.report.shown import shown


def table(
    source: Run | Traffic | OneLine | Source | Sequence[Source],
    over_ranks: str = "max",
    clock: str | None = None,
) -> pandas.DataFrame:
    """The rows of what torchcoll measured, or found, in base units.

    source: as below, or a file, a folder or a pattern of it.

    Of a Run, or several, one row a case: the fields of core.summary.Row, then what tells runs
    apart: ``run_id``, ``file``, ``host`` (of rank 0), ``node`` (the label ``node``, else the host
    if all ranks were on one), ``start_utc`` and ``label_NAME``. Times in ns, bandwidth in GB/s,
    unknown is NaN or None. over_ranks: max (the slowest rank of a call), mean, min, rank0. clock:
    None for each case's default.

    Of a Traffic one row a collective and size, with the fields of TrafficRow. Of what ``compare``,
    ``cold``, ``scaling``, ``transitions`` or ``cost`` found the ``rows`` of its JSON.
    Raises UsageError for other readings of these, and for anything else.
    """
    if clock is not None and not isinstance(clock, str):
        raise UsageError("clock", type(clock).__name__, "host, device or issue")
    several: list[Any] = list(source) if isinstance(source, list | tuple) else [source]
    if isinstance(source, str | os.PathLike) and is_traffic(source):
        source = Traffic.load(source)
    elif several and all(isinstance(each, Run | str | os.PathLike) for each in several):
        runs = load_all(file for each in several for file in expand(each))
        frames = [_run_table(run, over_ranks, clock) for run in runs]
        frame: pandas.DataFrame = frames[0]
        if len(frames) > 1:
            frame = pandas.concat(frames, ignore_index=True)
        return frame
    if over_ranks != "max" or clock is not None:
        what = "traffic" if isinstance(source, Traffic) else type(source).__name__
        raise UsageError("table", f"{clock or over_ranks} of {what}", f"no choice with {what}")
    how = shown(source)
    if how and how.frame:
        return how.frame(source)
    if isinstance(source, OneLine):
        text = io.StringIO()
        show(source, format="json", file=text)
        rows = json.loads(text.getvalue()).get("rows")
        if rows is not None:
            frame = pandas.DataFrame(rows)
            return frame
    action = "torchcoll.run returns it on rank 0 alone." if source is None else ""
    expected = "a Run or its file, several, a Traffic, or what compare, cold, cost, ... found"
    raise UsageError("table", type(source).__name__, expected, action)


def run_frame(run: Run, each: str) -> pandas.DataFrame:
    """``Run.frame``."""
    choice(each, "each", ("case", "call"))
    if each == "case":
        return table(run)
    columns = [{"ns": "time_ns"}.get(name, name) for name in CALL_FIELDS]
    rows = [tuple(row.values()) for row in CALLS.of(run, View())]
    frame: pandas.DataFrame = pandas.DataFrame(rows, columns=columns)
    return frame


def _run_table(run: Run, over_ranks: str, clock: str | None) -> pandas.DataFrame:
    names = [field.name for field in dataclasses.fields(Row)]
    rows = zip(summarise_run(run, over_ranks, clock), run.results, row_origins(run), strict=True)
    records = [
        {name: stated(row, name, result.reported is not None) for name in names} | origin
        for row, result, origin in rows
    ]
    labels = [f"label_{one_line(name)}" for name in run.labels]
    frame: pandas.DataFrame = pandas.DataFrame(records, columns=[*names, *ORIGIN, *labels])
    return frame


# Types of the columns of a Row by their annotation: without them a column of unknowns would have no
# type, and files could not be read as one dataset.
_PARQUET_TYPES = {"str": "string", "bool": "boolean", "int": "Int64", "float": "Float64"}


def write_parquet(runs: Sequence[Run], file: BinaryIO, columns: str | None = None) -> None:
    """One row a case, the columns of ``table``, of which those that name the file and the run
    come first, and the reading over ranks, as in CSV; or only these columns, names with commas.

    Raises UsageError for a column that does not exist, UnavailableError where no Parquet library is
    installed.
    """
    names = list(View(split_list(columns)).columns)
    frames = []
    for run in runs:
        frame = table(run)
        first = {name: frame.pop(name).fillna("") for name in ("run_id", "file")}
        for name, values in first.items():
            frame.insert(0, name, values)
        place = list(frame.columns).index("host")
        frame.insert(place, "over_ranks", [over_ranks_of(r, "max") for r in run.results])
        declared = {n: str(Row.__annotations__.get(n, "str")) for n in frame.columns}
        types = {name: _PARQUET_TYPES[text.split(" | ")[0]] for name, text in declared.items()}
        frame = frame.astype(types)
        frames.append(frame[names] if names not in ([], ["all"]) else frame)
    try:
        pandas.concat(frames, ignore_index=True).to_parquet(file, index=False)
    except ImportError:
        raise UnavailableError(
            "parquet",
            "no library for it",
            "pyarrow",
            install_text("parquet"),
        ) from None
