"""Shows the trials of ``try_buckets``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_ratio, format_time
from torchcoll.parts.training.trial import Trial, TrialRow
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Head, make_grid

_STYLES = {"faster": "green", "slower": "red"}


def show_trials(trials: Sequence[Trial], format: str = "table", file: TextIO | None = None) -> None:
    """Prints the results of ``try_buckets``. Raises UsageError for an unknown format."""
    forms = []
    for trial in trials:
        above = [
            f"training steps of DistributedDataParallel: {one_line(trial.backend)}, "
            f"{trial.device}, {counted(trial.ranks, 'rank')}",
            f"{trial.rounds} rounds of {trial.steps} steps of the slowest rank, after {trial.skip} "
            "that are left out",
            f"ratio: step / step with {trial.rows[0].name}, its 95 % interval over the rounds",
        ]
        columns = [
            (Head("bucket_cap_mb", repeat=True), lambda row: row.name),
            (Head("step", "median"), lambda row: format_time(row.median_ns)),
            (Head("ratio"), lambda row: format_ratio(row.ratio[0])),
            (Head("95 %"), _interval),
            (Head("result", left=True), lambda row: row.result),
        ]
        grid = make_grid(columns, trial.rows, above, list(map(one_line, trial.notes)))
        grid.answer = trial.answer
        grid.styles = [_STYLES.get(row.result, "") for row in trial.rows]
        records, rows = [], []
        for row in trial.rows:
            ratio, low, high = row.ratio
            figures = select_fields(row, "cap_mb name median_ns result")
            records.append({**figures, "ratio": ratio, "ratio_low": low, "ratio_high": high})
            rows.append({**records[-1], "times_ns": list(map(list, row.times_ns))})
        plain = {name: value for name, value in vars(trial).items() if name != "rows"}
        document = {"schema": "torchcoll-trial/1", **plain, "best": trial.best.name, "rows": rows}
        forms.append(Forms([grid], document, records))
    print_results(forms, format, file)


def _interval(row: TrialRow) -> str:
    _, low, high = row.ratio
    if row.result == "base" or low is None or high is None:
        return "-"
    return f"{format_ratio(low)} to {format_ratio(high)}"
