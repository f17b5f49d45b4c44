"""The rows of runs as Parquet."""

from __future__ import annotations

from collections.abc import Sequence

import pandas

from torchcoll.analysis.table import table
from torchcoll.core.errors import UnavailableError
from torchcoll.core.result import Run


def write_parquet(runs: Sequence[Run], path: str) -> None:
    """One row a case, the columns of ``table`` after those that name the file and the launch.

    Raises UnavailableError where no Parquet library is installed.
    """
    frames = []
    for run in runs:
        frame = table(run)
        frame.insert(0, "run_id", str(run.header.get("run_id") or ""))
        frame.insert(0, "file", str(run.path or run.source.get("file") or ""))
        frames.append(frame)
    try:
        pandas.concat(frames, ignore_index=True).to_parquet(path, index=False)
    except ImportError:
        raise UnavailableError(
            "parquet", "no library for it", "pyarrow", "Install torchcoll[parquet]."
        ) from None
