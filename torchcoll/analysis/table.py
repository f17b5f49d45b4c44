"""A run as a pandas table."""

from __future__ import annotations

import dataclasses

import pandas

from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run
from torchcoll.core.summary import Row


def table(run: Run, over_ranks: str = "max", clock: str | None = None) -> pandas.DataFrame:
    """One row a case; the columns are the fields of core.summary.Row, in base units.

    Times in ns, bandwidth in GB/s, unknown is NaN or None. over_ranks: max (the completion of a
    call), mean, min, rank0. clock: None for each case's default.
    """
    names = [field.name for field in dataclasses.fields(Row)]
    rows = [dataclasses.asdict(row) for row in summarise_run(run, over_ranks, clock)]
    frame: pandas.DataFrame = pandas.DataFrame(rows, columns=names)
    return frame
