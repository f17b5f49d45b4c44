"""What ``try_buckets`` measured, as a table and as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from torchcoll.core.trial import Trial
from torchcoll.core.units import format_ratio, format_time
from torchcoll.report.found import Found, show_found
from torchcoll.report.grid import Grid, Head
from torchcoll.report.output import one_line

TRIAL_SCHEMA = "torchcoll-trial/1"
_STYLES = {"faster": "green", "slower": "red"}


def show_trials(found: Sequence[Trial], format: str = "table", file: TextIO | None = None) -> None:
    """Print what ``try_buckets`` measured. Raises UsageError for an unknown format."""
    show_found(
        [Found([trial_grid(one)], trial_records(one), trial_object(one)) for one in found],
        format,
        file,
    )


def trial_grid(trial: Trial) -> Grid:
    """A row for each cap, in the order in which they were given."""
    heads = [Head("bucket_cap_mb", repeat=True), Head("steps", drop=2), Head("step", "median")]
    heads += [Head("low", "p5", drop=1), Head("high", "p95", drop=1), Head("ratio"), Head("95 %")]
    heads.append(Head("verdict", left=True))
    base = trial.rows[0].name
    above = [
        f"training steps of DistributedDataParallel: {one_line(trial.backend)}, {trial.device}, "
        f"{trial.ranks} rank{'s' if trial.ranks > 1 else ''}",
        f"{trial.rounds} rounds, the caps in shuffled order (seed {trial.seed}); in each "
        f"{trial.skip} steps left out, then {trial.steps}",
        "clock: host, the device idle at both ends of a step; max over ranks",
        f"ratio = step / step with {base}, of the medians of each round; its 95 % interval is over "
        "the rounds of this launch",
    ]
    rows = []
    for row in trial.rows:
        ratio, low, high = row.ratio
        known = row.verdict != "base" and low is not None and high is not None
        rows.append(
            [
                row.name,
                str(row.steps),
                *map(format_time, (row.median_ns, row.low_ns, row.high_ns)),
                format_ratio(ratio),
                f"{format_ratio(low)} to {format_ratio(high)}" if known else "-",
                row.verdict,
            ]
        )
    best = trial.best
    than = "than" if best.verdict in ("faster", "slower") else "of"
    said = "" if best.verdict == "base" else f", {best.verdict} {than} {base}"
    below = [
        f"least median: bucket_cap_mb {best.name}{said}",
        "one launch is one replicate: several launches alone tell how they differ",
        *map(one_line, trial.notes),
    ]
    return Grid(heads, rows, above, below, [_STYLES.get(row.verdict, "") for row in trial.rows])


def trial_records(trial: Trial) -> list[dict[str, Any]]:
    """The figures of each cap; the steps themselves are in the object."""
    found = []
    for row in trial.rows:
        names = ("cap_mb", "name", "steps", "median_ns", "low_ns", "high_ns", "verdict")
        ratio, low, high = row.ratio
        ratios = {"ratio": ratio, "ratio_low": low, "ratio_high": high}
        found.append({**{name: getattr(row, name) for name in names}, **ratios})
    return found


def trial_object(trial: Trial) -> dict[str, Any]:
    plain = {name: value for name, value in vars(trial).items() if name != "rows"}
    times = [{"times_ns": list(map(list, row.times_ns))} for row in trial.rows]
    rows = [a | b for a, b in zip(trial_records(trial), times, strict=True)]
    return {"schema": TRIAL_SCHEMA, **plain, "best": trial.best.name, "rows": rows}
