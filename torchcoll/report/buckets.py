"""Plans of DDP's buckets as tables, markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from torchcoll.core.buckets import DEFAULT_CAP_MB, DEFAULT_FIRST_MB, Bucket, BucketPlan
from torchcoll.core.units import format_bytes, format_ranges, format_size
from torchcoll.report.found import Found, show_found
from torchcoll.report.grid import Grid, Head
from torchcoll.report.output import one_line

SCHEMA = "torchcoll-buckets/1"
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
_LONG = 20  # characters of `sent`


def show_plans(
    plans: Sequence[BucketPlan],
    format: str = "table",
    file: TextIO | None = None,
    model: str = "the model",
) -> None:
    """Print plans of one model. Raises UsageError for an unknown format.

    A table has one row for each size of bucket; csv and json have every bucket and its parameters.
    """
    thing = {"schema": SCHEMA, "model": model, "plans": [plan_object(plan) for plan in plans]}
    show_found([Found(plan_grids(plans, model), list(plan_records(plans)), thing)], format, file)


def plan_grids(plans: Sequence[BucketPlan], model: str) -> list[Grid]:
    """What holds for all plans, then a table each."""
    one = plans[0]
    dtypes = dict.fromkeys(bucket.dtype for bucket in one.buckets)
    gradients = sum(len(bucket.parameters) for bucket in one.buckets)
    size = f"{format_bytes(one.nbytes)} a step in {gradients} tensors"
    first = f"gradients of {one_line(model)}: {size}, {', '.join(dtypes)}"
    notes = dict.fromkeys(note for plan in plans for note in plan.notes)
    return [Grid((), [], [first, *notes]), *map(plan_grid, plans)]


def plan_grid(plan: BucketPlan) -> Grid:
    above = [f"bucket_cap_mb {cap_text(plan)}: {_in_short(plan.buckets)}"]
    same = plan.first_step == plan.buckets
    above.append(f"first step: {'the same' if same else _in_short(plan.first_step)}")
    return Grid(_HEADS, _rows(plan), above)


def cap_text(plan: BucketPlan) -> str:
    """``25``, ``1,25``, or what DDP does when it is not set."""
    cap = plan.bucket_cap_mb
    if cap is None:
        first, others = DEFAULT_FIRST_MB, DEFAULT_CAP_MB
        return f"not set ({first} MiB for the first bucket, {others} MiB after it)"
    return ",".join(f"{one:g}" for one in (cap if isinstance(cap, tuple) else (cap,)))


def _in_short(buckets: Sequence[Bucket]) -> str:
    sizes = [bucket.nbytes for bucket in buckets]
    if len(sizes) == 1:
        return f"1 bucket of {format_bytes(sizes[0])}"
    least, most = format_bytes(min(sizes)), format_bytes(max(sizes))
    return f"{len(sizes)} buckets of {least if least == most else f'{least} to {most}'}"


def _rows(plan: BucketPlan) -> list[list[str]]:
    """One for each size and dtype, in the order in which the first of them is sent."""
    alike: dict[tuple[int, str], list[int]] = {}
    for number, bucket in enumerate(plan.buckets):
        alike.setdefault((bucket.nbytes, bucket.dtype), []).append(number)
    rows = []
    for (nbytes, dtype), numbers in alike.items():
        sent = format_ranges(numbers)
        names = plan.buckets[numbers[0]].parameters
        between = " ... " if len(names) > 2 else ", "
        rows.append(
            [
                sent if len(sent) <= _LONG else f"{sent[: sent.rindex(',', 0, _LONG - 3)]},...",
                format_size(nbytes),
                dtype,
                str(len(numbers)),
                format_bytes(nbytes * len(numbers)),
                f"{100 * nbytes * len(numbers) / (plan.nbytes or 1):.1f} %",
                str(sum(len(plan.buckets[n].parameters) for n in numbers)),
                one_line(between.join(dict.fromkeys((names[0], names[-1])))),
            ]
        )
    return rows


def plan_object(plan: BucketPlan) -> dict[str, Any]:
    return {
        "bucket_cap_mb": plan.bucket_cap_mb,
        "find_unused": plan.find_unused,
        "order": plan.order,
        "nbytes": plan.nbytes,
        "unused": plan.unused,
        "notes": plan.notes,
        "first_step": [vars(bucket) for bucket in plan.first_step],
        "buckets": [vars(bucket) for bucket in plan.buckets],
    }


def plan_records(plans: Sequence[BucketPlan]) -> Iterator[dict[str, Any]]:
    """Every bucket of the first step and of a steady one."""
    for plan in plans:
        for step, buckets in (("first", plan.first_step), ("steady", plan.buckets)):
            for number, bucket in enumerate(buckets):
                place = {"bucket_cap_mb": plan.bucket_cap_mb, "step": step, "bucket": number}
                yield {**place, **vars(bucket)}
