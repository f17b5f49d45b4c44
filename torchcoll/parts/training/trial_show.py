"""Shows the trials of ``try_buckets``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_ratio, format_time
from torchcoll.parts.training.trial import Trial
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Grid, Head

_TRIAL_HEADS = (
    Head("bucket_cap_mb", repeat=True),
    Head("steps", drop=2),
    Head("step", "median"),
    Head("low", "p5", drop=1),
    Head("high", "p95", drop=1),
    Head("ratio"),
    Head("95 %"),
    Head("result", left=True),
)
_TRIAL_STYLES = {"faster": "green", "slower": "red"}


def show_trials(trials: Sequence[Trial], format: str = "table", file: TextIO | None = None) -> None:
    """Prints the results of ``try_buckets``. Raises UsageError for an unknown format."""
    forms = []
    for trial in trials:
        base, best = trial.rows[0].name, trial.best
        above = [
            f"training steps of DistributedDataParallel: {one_line(trial.backend)}, "
            f"{trial.device}, {counted(trial.ranks, 'rank')}",
            f"{trial.rounds} rounds of {trial.steps} steps of the slowest rank, after {trial.skip} "
            "that are left out",
            f"ratio: step / step with {base}, its 95 % interval over the rounds",
        ]
        cells, records, rows = [], [], []
        for row in trial.rows:
            ratio, low, high = row.ratio
            figures = select_fields(row, "cap_mb name steps median_ns low_ns high_ns result")
            records.append({**figures, "ratio": ratio, "ratio_low": low, "ratio_high": high})
            rows.append({**records[-1], "times_ns": list(map(list, row.times_ns))})
            has_interval = row.result != "base" and low is not None and high is not None
            cells.append(
                [
                    row.name,
                    str(row.steps),
                    *map(format_time, (row.median_ns, row.low_ns, row.high_ns)),
                    format_ratio(ratio),
                    f"{format_ratio(low)} to {format_ratio(high)}" if has_interval else "-",
                    row.result,
                ]
            )
        below = list(map(one_line, trial.notes))
        styles = [_TRIAL_STYLES.get(row.result, "") for row in trial.rows]
        plain = {name: value for name, value in vars(trial).items() if name != "rows"}
        document = {"schema": "torchcoll-trial/1", **plain, "best": best.name, "rows": rows}
        grid = Grid(_TRIAL_HEADS, cells, above, below, styles, answer=trial.answer)
        forms.append(Forms([grid], document, records))
    print_results(forms, format, file)
