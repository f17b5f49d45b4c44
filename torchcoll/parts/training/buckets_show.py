"""Shows plans of DDP's buckets, and the trials of ``try_buckets``, as tables and as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.core.units import (
    counted,
    format_bytes,
    format_ranges,
    format_ratio,
    format_size,
    format_time,
)
from torchcoll.parts.training.plans import (
    BucketPlan,
    Trial,
    cap_text,
    summarise_buckets,
)
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Grid, Head

_HEADS = (
    Head("sent", legend="sent: place among the buckets of a steady step, from 0"),
    Head("size"),
    Head("dtype", left=True),
    Head("buckets"),
    Head("bytes"),
    Head("share"),
    Head("gradients"),
    Head("such as", left=True, drop=1),
)
_CAP_HEADS = (
    Head("bucket_cap_mb", repeat=True),
    Head("buckets"),
    Head("smallest"),
    Head("largest"),
    Head("sent first", drop=1),
    Head("sent last", drop=2),
    Head("first step", "buckets", drop=3),
    Head("", left=True),
)
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
_MAX_SENT_WIDTH = 20  # characters in the column `sent`


def show_plans(
    plans: Sequence[BucketPlan],
    format: str = "table",
    file: TextIO | None = None,
    model: str = "the model",
) -> None:
    """Prints plans of one model. Raises UsageError for an unknown format.

    The table of one plan has a row for each size of bucket, that of several plans a row for each
    plan. csv and json have every bucket and its parameters.
    """
    first = plans[0]
    dtypes = dict.fromkeys(bucket.dtype for bucket in first.buckets)
    gradients = sum(len(bucket.parameters) for bucket in first.buckets)
    above = [
        f"{one_line(model)} has {format_bytes(first.size_bytes)} of gradients in {gradients} "
        f"tensors ({', '.join(dtypes)})",
        *dict.fromkeys(note for plan in plans for note in plan.notes),
    ]
    rows: list[list[str]] = []
    if len(plans) == 1:
        unchanged = first.first_step == first.buckets
        buckets = [
            f"first step: {'the same' if unchanged else summarise_buckets(first.first_step)}",
        ]
        grids = [Grid((), [], above[1:]), Grid(_HEADS, _rows(first), buckets)]
    else:
        names: list[str] = []
        for plan in plans:
            name = "default" if plan.bucket_cap_mb is None else cap_text(plan)
            sizes = [bucket.size_bytes for bucket in plan.buckets]
            earlier = zip(names, plans, strict=False)  # names has only the plans before this one
            alike = next(
                (
                    earlier_name
                    for earlier_name, earlier_plan in earlier
                    if earlier_plan.buckets == plan.buckets
                ),
                None,
            )
            names.append(name)
            cells = [name, str(len(sizes))]
            cells += map(format_bytes, (min(sizes), max(sizes), sizes[0], sizes[-1]))
            cells.append(str(len(plan.first_step)))
            rows.append([*cells, f"as {alike}" if alike else ""])
        if "default" in names:
            above.append(f"default: bucket_cap_mb {cap_text(BucketPlan((), (), ''))}")
        below = ["--bucket-cap-mb with one value lists the buckets"]
        grids = [Grid(_CAP_HEADS, rows, above[1:], below)]
    details = [first.answer.headline]
    if len(plans) > 1:
        caps = ", ".join(row[0] for row in rows)
        details = [f"{', '.join(row[1] for row in rows)} buckets with bucket_cap_mb {caps}"]
    grids[-1].answer = Answer(above[0], details=tuple(details))
    document = {
        "schema": "torchcoll-buckets/1",
        "model": model,
        "plans": [
            {
                **select_fields(plan, "bucket_cap_mb find_unused order size_bytes unused notes"),
                "first_step": [vars(bucket) for bucket in plan.first_step],
                "buckets": [vars(bucket) for bucket in plan.buckets],
            }
            for plan in plans
        ],
    }
    # Records: every bucket of the first step and of a steady step.
    records = [
        {
            "bucket_cap_mb": plan.bucket_cap_mb,
            "step": step,
            "bucket": number,
            **vars(bucket),
        }
        for plan in plans
        for step, buckets in (("first", plan.first_step), ("steady", plan.buckets))
        for number, bucket in enumerate(buckets)
    ]
    print_results([Forms(grids, document, records)], format, file)


def _rows(plan: BucketPlan) -> list[list[str]]:
    """Returns a row for each size and dtype, in the order in which the first bucket of them is
    sent.
    """
    alike: dict[tuple[int, str], list[int]] = {}
    for number, bucket in enumerate(plan.buckets):
        alike.setdefault((bucket.size_bytes, bucket.dtype), []).append(number)
    rows = []
    for (size_bytes, dtype), numbers in alike.items():
        sent = format_ranges(numbers)
        names = plan.buckets[numbers[0]].parameters
        between = " ... " if len(names) > 2 else ", "
        rows.append(
            [
                sent
                if len(sent) <= _MAX_SENT_WIDTH
                else f"{sent[: sent.rindex(',', 0, _MAX_SENT_WIDTH - 3)]},...",
                format_size(size_bytes),
                dtype,
                str(len(numbers)),
                format_bytes(size_bytes * len(numbers)),
                f"{100 * size_bytes * len(numbers) / (plan.size_bytes or 1):.1f} %",
                str(sum(len(plan.buckets[n].parameters) for n in numbers)),
                one_line(between.join(dict.fromkeys((names[0], names[-1])))),
            ]
        )
    return rows


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
