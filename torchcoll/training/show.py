"""What ``advise`` found, as a table and as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.units import (
    format_bytes,
    format_ranges,
    format_ratio,
    format_size,
    format_time,
    time_text,
)
from torchcoll.report.answer import Answer
from torchcoll.report.formats import Forms, picked, show_found
from torchcoll.report.grid import Grid, Head
from torchcoll.training.plans import DEFAULT_CAP_MB, DEFAULT_FIRST_MB, Bucket, BucketPlan, Trial

if TYPE_CHECKING:
    from torchcoll.training.advise import Advice, Proposal
    from torchcoll.training.choices import AdviceRow


ADVICE_SCHEMA = "torchcoll-advice/1"
_ADVICE_STYLES = {"best": "green", "worse": "dim", "beyond the curve": "yellow"}
_MODEL = (
    "model: an all_reduce starts when its bucket is ready and the one before it has ended, and "
    "takes what the curve says",
    "exposed = end of the last all_reduce - end of the backward pass; not in it: communication "
    "that slows the computation down, and ranks that wait for each other",
)
_MODEL_OF_CPUS = (
    "model: every all_reduce takes what the curve says, and on CPUs none of it is hidden: it takes "
    "the cores that compute",
    "exposed = all all_reduce calls of a backward pass; not in it: ranks that wait for each other",
)
_FIELDS = (
    "name setting caps_mb buckets largest_bytes communication_ns communication_low_ns "
    "communication_high_ns exposed_ns exposed_low_ns exposed_high_ns ratio ratio_low ratio_high "
    "result exposed_16bit_ns"
)
_NO_WORSE = ("within noise", "within 2 %", "unclear")
_FAR = 2  # a model that is further from what was measured says so


def show_advice(found: Sequence[Advice], format: str = "table", file: TextIO | None = None) -> None:
    """Print what ``advise`` found. Raises UsageError for an unknown format."""
    show_found([Forms([advice_grid(one)], advice_object(one)) for one in found], format, file)


def advice_grid(advice: Advice) -> Grid:
    """What was given and the model above, a row for each setting, the proposal below."""
    spread = any(row.communication_low_ns is not None for row in advice.rows)
    heads = [Head("bucket_cap_mb", repeat=True), Head("buckets", drop=2), Head("largest", drop=4)]
    known = advice.backward_ns is not None
    heads.append(Head("all_reduce", "together", drop=1 if known else 0))
    if known:
        # The interval of the ratio is what the result stands on: it stays as long as that does.
        heads += [Head("exposed"), *([Head("low", drop=3), Head("high", drop=3)] if spread else [])]
        heads += [Head("ratio", legend=_RATIO)]
        if spread:
            heads.append(Head("95 %") if advice.launches > 1 else Head("range", legend=_RANGE))
        halved = any(row.exposed_16bit_ns is not None for row in advice.rows)
        heads += [Head("exposed", "16 bits", drop=5)] if halved else []
    elif spread:
        heads += [Head("low"), Head("high")]
    marked = any(row.result for row in advice.rows)
    heads += [Head("result", left=True)] if marked else []
    rows = []
    for row in advice.rows:
        largest = "-" if row.largest_bytes is None else format_bytes(row.largest_bytes)
        buckets = "-" if row.buckets is None else str(row.buckets)
        cells = [row.name, ">= " * (row.result == "could be as sent") + buckets, largest]
        cells.append(format_time(row.communication_ns))
        if known:
            cells.append(format_time(row.exposed_ns))
            low, high = row.exposed_low_ns, row.exposed_high_ns
            cells += [format_time(low), format_time(high)] if spread else []
            cells.append(format_ratio(row.ratio))
            own = row is not advice.best
            cells += [ratio_range(row.ratio_low, row.ratio_high) if own else "-"] if spread else []
            cells += [format_time(row.exposed_16bit_ns)] if halved else []
        elif spread:
            cells += [format_time(row.communication_low_ns), format_time(row.communication_high_ns)]
        rows.append([*cells, *([result_text(row, advice.rows)] if marked else [])])
    styles = [_ADVICE_STYLES.get(row.result, "") for row in advice.rows]
    proposal, *below = _below(advice)
    answer = Answer(proposal, "doubt" if proposal.startswith("no proposal") else "good")
    return Grid(heads, rows, _above(advice, spread), below, styles, answer)


def result_text(row: AdviceRow, rows: Sequence[AdviceRow]) -> str:
    """The result, and of the best why a smaller ratio may stand in another row."""
    smaller = any(one.ratio is not None and one.ratio < 1 for one in rows)
    return row.result + " of the sizes measured" * (smaller and row.result == "best")


_RATIO = "ratio = (backward + exposed) / that of the best"
_RANGE = (
    "range = least and most ratio with the median, the 5th and the 95th percentile of the curve's "
    "calls; within noise = it reaches down to 1"
)


def ratio_range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{format_ratio(low)} to {format_ratio(high)}"


def _above(advice: Advice, spread: bool) -> list[str]:
    row, (least, most) = advice.curve, advice.sizes
    words = [row.dtype, f"on {row.backend}", f"{row.ranks or 'unknown'} ranks"]
    words += [row.mode, f"{row.clock} clock"]
    launches = f"{advice.launches} launch{'es' if advice.launches > 1 else ''}"
    lines = [
        f"gradients: {format_bytes(advice.size_bytes)} of {advice.dtype or 'unknown type'}: "
        f"{one_line(advice.what)}",
        f"curve: all_reduce {', '.join(one_line(w) for w in words if w)}; "
        f"{format_size(least)} to {format_size(most)}, {launches}",
    ]
    if advice.backward_ns is not None:
        source = one_line(advice.backward_source)
        model = _MODEL_OF_CPUS if advice.curve.device == "cpu" else _MODEL
        lines += [f"backward pass: {time_text(advice.backward_ns)} ({source})", *model]
    if spread and advice.launches > 1:
        lines.append(
            "low, high = the least and the most of the launches; 95 % over the launches, for all "
            "rows together"
        )
    elif spread:
        lines.append("low, high = with the 5th and the 95th percentile of the curve's calls")
    return lines


def _below(advice: Advice) -> list[str]:
    lines = _proposal(advice)
    best = advice.best
    if best and advice.compression and best.exposed_16bit_ns is not None:
        ratio, low, high = advice.compression
        interval = "" if low is None else f" ({ratio_range(low, high)})"
        noise = ", within noise" if (low or 2) <= 1 <= (high or 0) else ""
        lines.append(
            f"16 bits an element (a compression hook) at {best.name}: exposed "
            f"{time_text(best.exposed_16bit_ns)} for {time_text(best.exposed_ns)}; backward + "
            f"exposed {format_ratio(ratio)} of it{interval}{noise}"
        )
    at = best or next((row for row in advice.rows if row.setting == "sent"), advice.rows[0])
    if advice.accumulate > 1:
        each = (at.communication_ns if at.exposed_ns is None else at.exposed_ns) or 0.0
        what = "all_reduce" if at.exposed_ns is None else "exposed"
        all_of_them = time_text(advice.accumulate * each)
        lines.append(
            f"{advice.accumulate} backward passes an optimiser step, at {at.name}: with no_sync in "
            f"all but the last {time_text(each)} {what}, without it {all_of_them}"
        )
    return [*lines, *map(one_line, advice.notes)]


def _proposal(advice: Advice) -> list[str]:
    best, present = advice.best, advice.present
    if len(advice.judged) < 2:
        why = "there are no two settings whose buckets are known, of measured sizes, and differ"
        if advice.measured_ns is not None:
            why += f"; exposed now (measured {time_text(advice.measured_ns)}, with waits)"
        return [f"no proposal: {why}", *_measured(advice)]
    if advice.backward_ns is None or best is None:
        return _assumed(advice)
    line = f"proposal: {_named(best)}"
    stated = {row.result for row in advice.rows}
    known = " of those whose buckets are known" * bool(stated & {"unknown", "could be as sent"})
    if present and present.result in ("best", *_NO_WORSE):
        of = known if present is best else f" of {_named(best)}"
        line = f"proposal: {_left(present)} is {present.result}{of}"
    fine = [row for row in advice.judged if row.result in _NO_WORSE]
    others = ", ".join(row.name for row in fine if row.setting == "cap")
    if best.setting == "cap" and others:
        line += f"; no worse: {others}"
    line += f"; exposed {time_text(best.exposed_ns)}"
    if present and present is not best and present.result != "beyond the curve":
        line += f", now {time_text(present.exposed_ns)}"
        line += " (now = the default cap, assumed)" * (present.setting == "default")
    if advice.measured_ns is not None:
        line += f" (measured {time_text(advice.measured_ns)}, with waits)"
    return [
        line,
        "a proposal of a model: torchcoll.try_buckets measures real steps",
        *_measured(advice),
    ]


def _measured(advice: Advice) -> list[str]:
    """What it is that the traffic had exposed, and whether the model of it is far from that."""
    present, measured = advice.present, advice.measured_ns
    if present is None or measured is None:
        return []
    lines = [
        f"measured: {one_line(advice.measured_as)}; median over passes and ranks, with the waits "
        "for other ranks"
    ]
    modelled = present.exposed_ns
    if modelled is None or present.result == "beyond the curve":
        return lines
    if not modelled <= _FAR * measured <= _FAR**2 * modelled:
        lines.append(
            f"model and measurement of what was sent are more than {_FAR}x apart: "
            f"{time_text(modelled)} and {time_text(measured)}. What the model leaves out counts "
            "here: let try_buckets decide"
        )
    return lines


def _assumed(advice: Advice) -> list[str]:
    """Without a backward time: what is best whatever it is, or for which."""
    best, present = advice.best, advice.present
    times = [time_text(ns) for ns, _ in advice.assumed]
    if best is None:
        stated = ", ".join(f"{name} if it takes {time_text(ns)}" for ns, name in advice.assumed)
        lines = [
            "no proposal: which is best depends on how long the backward pass takes: give it with "
            "--backward-ms (backward_ms of torchcoll.advise)",
            f"the model's best: {stated}",
        ]
    else:
        what = f"{_left(best)} leaves" if best is present else f"{_named(best)} leaves"
        lines = [
            f"proposal: {what} least exposed whether the backward pass takes "
            f"{', '.join(times[:-1])} or {times[-1]}; with --backward-ms (backward_ms of "
            "torchcoll.advise) by how much, and whether it is more than noise",
            "a proposal of a model: torchcoll.try_buckets measures real steps",
        ]
    base = present or advice.rows[0]
    of = f"all_reduce together of {base.name} ({time_text(base.communication_ns)})"
    return [*lines, f"these times are assumed: 1/4, 1 and 4 times {of}"]


def _left(row: Proposal) -> str:
    """The words for what is there already. Nothing tells that a model's DDP has the default."""
    if row.setting == "sent":
        return "leave bucket_cap_mb as it is: what was sent"
    return "leave bucket_cap_mb unset: the default"


def _named(row: Proposal) -> str:
    if row.setting in ("sent", "default"):
        return row.name
    return f"bucket_cap_mb{'_list' if row.setting == 'caps' else ''}={row.name}"


def advice_object(advice: Advice) -> dict[str, Any]:
    curve = picked(advice.curve, "collective dtype op ranks backend device mode clock")
    ratio, low, high = advice.compression or (None, None, None)
    return {
        "schema": ADVICE_SCHEMA,
        **picked(advice, "what size_bytes dtype backward_ns backward_source accumulate"),
        **picked(advice, "measured_ns measured_as"),
        "curve": {**curve, **picked(advice, "sizes launches")},
        **picked(advice, "best=best.name low_cap_mb high_cap_mb"),
        "compression": {"ratio": ratio, "ratio_low": low, "ratio_high": high},
        "assumed": [{"backward_ns": ns, "best": name} for ns, name in advice.assumed],
        "notes": advice.notes,
        "rows": [picked(row, _FIELDS) for row in advice.rows],
    }


# -------------------------------------------------------------------------------------------------
# Plans of DDP's buckets as tables, markdown, CSV and JSON.

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

    The table of one plan has a row for each size of bucket, that of several a row for each plan;
    csv and json have every bucket and its parameters.
    """
    thing = {"schema": SCHEMA, "model": model, "plans": [plan_object(plan) for plan in plans]}
    show_found([Forms(plan_grids(plans, model), thing, list(plan_records(plans)))], format, file)


def plan_grids(plans: Sequence[BucketPlan], model: str) -> list[Grid]:
    """What holds for all plans, then the buckets of the one plan, or a row for each of several."""
    one = plans[0]
    dtypes = dict.fromkeys(bucket.dtype for bucket in one.buckets)
    gradients = sum(len(bucket.parameters) for bucket in one.buckets)
    size = f"{format_bytes(one.size_bytes)} a step in {gradients} tensors"
    first = f"gradients of {one_line(model)}: {size}, {', '.join(dtypes)}"
    notes = dict.fromkeys(note for plan in plans for note in plan.notes)
    if len(plans) == 1:
        return [Grid((), [], [first, *notes]), plan_grid(one)]
    return [_caps_grid(plans, [first, *notes])]


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


def _caps_grid(plans: Sequence[BucketPlan], above: list[str]) -> Grid:
    rows: list[list[str]] = []
    before: list[BucketPlan] = []
    for plan in plans:
        sizes = [bucket.size_bytes for bucket in plan.buckets]
        alike = next((one for one in before if one.buckets == plan.buckets), None)
        cells = [_cap_name(plan), str(len(sizes))]
        cells += map(format_bytes, (min(sizes), max(sizes), sizes[0], sizes[-1]))
        cells.append(str(len(plan.first_step)))
        rows.append([*cells, f"as {_cap_name(alike)}" if alike else ""])
        before.append(plan)
    if any(plan.bucket_cap_mb is None for plan in plans):
        above = [*above, f"default: bucket_cap_mb {cap_text(BucketPlan((), (), ''))}"]
    return Grid(_CAP_HEADS, rows, above, ["the buckets of one cap: name it alone"])


def _cap_name(plan: BucketPlan) -> str:
    return "default" if plan.bucket_cap_mb is None else cap_text(plan)


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
    sizes = [bucket.size_bytes for bucket in buckets]
    if len(sizes) == 1:
        return f"1 bucket of {format_bytes(sizes[0])}"
    least, most = format_bytes(min(sizes)), format_bytes(max(sizes))
    return f"{len(sizes)} buckets of {least if least == most else f'{least} to {most}'}"


def _rows(plan: BucketPlan) -> list[list[str]]:
    """One for each size and dtype, in the order in which the first of them is sent."""
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
                sent if len(sent) <= _LONG else f"{sent[: sent.rindex(',', 0, _LONG - 3)]},...",
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


def plan_object(plan: BucketPlan) -> dict[str, Any]:
    return {
        **picked(plan, "bucket_cap_mb find_unused order size_bytes unused notes"),
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


# -------------------------------------------------------------------------------------------------
# What ``try_buckets`` measured, as a table and as records.

TRIAL_SCHEMA = "torchcoll-trial/1"
_TRIAL_STYLES = {"faster": "green", "slower": "red"}


def show_trials(found: Sequence[Trial], format: str = "table", file: TextIO | None = None) -> None:
    """Print what ``try_buckets`` measured. Raises UsageError for an unknown format."""
    parts = [Forms([trial_grid(one)], trial_object(one), trial_records(one)) for one in found]
    show_found(parts, format, file)


def trial_grid(trial: Trial) -> Grid:
    """A row for each cap, in the order in which they were given."""
    heads = [Head("bucket_cap_mb", repeat=True), Head("steps", drop=2), Head("step", "median")]
    heads += [Head("low", "p5", drop=1), Head("high", "p95", drop=1), Head("ratio"), Head("95 %")]
    heads.append(Head("result", left=True))
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
        known = row.result != "base" and low is not None and high is not None
        rows.append(
            [
                row.name,
                str(row.steps),
                *map(format_time, (row.median_ns, row.low_ns, row.high_ns)),
                format_ratio(ratio),
                f"{format_ratio(low)} to {format_ratio(high)}" if known else "-",
                row.result,
            ]
        )
    best = trial.best
    than = "than" if best.result in ("faster", "slower") else "of"
    shown = "" if best.result == "base" else f", {best.result} {than} {base}"
    below = [
        f"least ratio: bucket_cap_mb {best.name}{shown}",
        "one launch is one replicate: several launches alone tell how they differ",
        *map(one_line, trial.notes),
    ]
    return Grid(
        heads, rows, above, below, [_TRIAL_STYLES.get(row.result, "") for row in trial.rows]
    )


def trial_records(trial: Trial) -> list[dict[str, Any]]:
    """The figures of each cap; the steps themselves are in the object."""
    found = []
    for row in trial.rows:
        figures = picked(row, "cap_mb name steps median_ns low_ns high_ns result")
        ratio, low, high = row.ratio
        found.append({**figures, "ratio": ratio, "ratio_low": low, "ratio_high": high})
    return found


def trial_object(trial: Trial) -> dict[str, Any]:
    plain = {name: value for name, value in vars(trial).items() if name != "rows"}
    times = [{"times_ns": list(map(list, row.times_ns))} for row in trial.rows]
    rows = [a | b for a, b in zip(trial_records(trial), times, strict=True)]
    return {"schema": TRIAL_SCHEMA, **plain, "best": trial.best.name, "rows": rows}
