"""A run, or what a training sends, as a pandas table."""

from __future__ import annotations

import dataclasses

import pandas

from torchcoll.analysis.traffic import TrafficRow, summarise_traffic
from torchcoll.core.errors import UsageError
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run
from torchcoll.core.summary import Row, told
from torchcoll.core.traffic import Traffic


def table(
    run: Run | Traffic, over_ranks: str = "max", clock: str | None = None
) -> pandas.DataFrame:
    """One row a case; the columns are the fields of core.summary.Row, in base units.

    Times in ns, bandwidth in GB/s, unknown is NaN or None. over_ranks: max (the completion of a
    call), mean, min, rank0. clock: None for each case's default.

    Of a Traffic one row a collective and size, with the fields of TrafficRow (analysis/traffic.py).
    Raises UsageError for other readings of it, and for what is neither.
    """
    if not isinstance(run, (Run, Traffic)):
        action = "torchcoll.run returns it on rank 0 alone." if run is None else ""
        raise UsageError("table", type(run).__name__, "a Run or a Traffic", action)
    if isinstance(run, Traffic):
        if over_ranks != "max" or clock is not None:
            raise UsageError("table", f"{clock or over_ranks} of traffic", "no choice with traffic")
        names = [field.name for field in dataclasses.fields(TrafficRow)]
        records = [dataclasses.asdict(row) for row in summarise_traffic(run).rows]
    else:
        names = [field.name for field in dataclasses.fields(Row)]
        rows = zip(summarise_run(run, over_ranks, clock), run.results, strict=True)
        records = [
            {name: told(row, name, result.given is not None) for name in names}
            for row, result in rows
        ]
    frame: pandas.DataFrame = pandas.DataFrame(records, columns=names)
    return frame
