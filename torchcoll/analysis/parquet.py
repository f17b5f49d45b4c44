"""The rows of runs as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import pandas

from torchcoll.analysis.table import table
from torchcoll.core.errors import UnavailableError
from torchcoll.core.result import Run
from torchcoll.core.summary import Row, over_ranks_of

# Types of the columns of a Row by their annotation: without them a column of unknowns would have no
# type, and files could not be read as one dataset.
_TYPES = {"str": "string", "bool": "boolean", "int": "Int64", "float": "Float64"}


def write_parquet(runs: Sequence[Run], file: BinaryIO) -> None:
    """One row a case, the columns of ``table`` between those that name the file and the launch, and
    the reading over ranks, the start and the labels, as in CSV.

    Raises UnavailableError where no Parquet library is installed.
    """
    frames = []
    for run in runs:
        frame = table(run)
        frame.insert(0, "run_id", str(run.header.get("run_id") or ""))
        frame.insert(0, "file", str(run.path or run.source.get("file") or ""))
        frame["over_ranks"] = [over_ranks_of(result, "max") for result in run.results]
        frame["start_utc"] = run.header.get("start_utc")
        for name, value in run.labels.items():
            frame[f"label_{name}"] = value
        frames.append(frame.astype({name: _type(name) for name in frame.columns}))
    try:
        pandas.concat(frames, ignore_index=True).to_parquet(file, index=False)
    except ImportError:
        raise UnavailableError(
            "parquet", "no library for it", "pyarrow", "Install torchcoll[parquet]."
        ) from None


def _type(name: str) -> str:
    declared = str(Row.__annotations__.get(name, "str")).split(" | ")[0]
    return _TYPES[declared]
