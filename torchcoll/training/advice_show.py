"""Shows the advice for DDP's buckets or FSDP2's sharding, as a table and as records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.units import (
    format_bytes,
    format_ns,
    format_ratio,
    format_size,
    format_time,
)
from torchcoll.report.answer import Answer
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Grid, Head
from torchcoll.training.advise import BucketAdvice, Proposal
from torchcoll.training.choices import AdviceRow
from torchcoll.training.shard_advice import ShardAdvice

_STYLES = {"best": "green", "worse": "dim", "beyond the curve": "yellow"}
_BUCKET_MODEL = (
    "model: an all_reduce starts when its bucket is ready and the one before it has ended, and "
    "takes what the curve says",
    "exposed = end of the last all_reduce - end of the backward pass; not in it: communication "
    "that slows the computation down, and ranks that wait for each other",
)
_BUCKET_MODEL_OF_CPUS = (
    "model: every all_reduce takes what the curve says, and on CPUs none of it is hidden: it takes "
    "the cores that compute",
    "exposed = all all_reduce calls of a backward pass; not in it: ranks that wait for each other",
)
_SHARD_MODEL = (
    "model: an all_gather runs during the computation of the unit before, a reduce_scatter during "
    "that of the unit after; calls of one group run one after the other",
    "exposed = end of the step - both passes; not in it: copying in and out, communication that "
    "slows the computation down, ranks that wait for each other",
)
_SHARD_MODEL_OF_CPUS = (
    "model: on CPUs FSDP2 waits for every call, so that none of it is hidden",
    "exposed = all calls of a step; not in it: copying in and out, ranks that wait for each other",
)
_MEMORY = (
    "held = what one rank keeps of parameters and gradients; peak = whole parameters and gradients "
    "at the worst moment, besides"
)
_BUCKET_RATIO = "ratio = (backward + exposed) / that of the best"
_SHARD_RATIO = "ratio = (passes + exposed) / that of the best"
_RANGE = (
    "range = least and most ratio with the median, the 5th and the 95th percentile of the curve's "
    "calls; within noise = it reaches down to 1"
)
_TIMES = (
    "communication_ns communication_low_ns communication_high_ns exposed_ns exposed_low_ns "
    "exposed_high_ns"
)
_NO_WORSE = ("within noise", "within 2 %", "inconclusive")
_MAX_FACTOR = 2  # between model and measurement before a line reports it

Column = tuple[Head, Callable[[Any], str]]  # heading, function from a row to its cell


def show_advice(
    advices: Sequence[BucketAdvice | ShardAdvice], format: str = "table", file: TextIO | None = None
) -> None:
    """Prints the result of ``advise``. Raises UsageError for an unknown format."""
    forms = []
    for advice in advices:
        spread = any(row.communication_low_ns is not None for row in advice.rows)
        columns = _columns(advice, spread)
        answer = None
        below = advice.notes
        if isinstance(advice, BucketAdvice):
            proposal, *below = _lines_below(advice)
            answer = Answer(proposal, "doubt" if proposal.startswith("no proposal") else "good")
        grid = Grid(
            [head for head, _ in columns],
            [[cell(row) for _, cell in columns] for row in advice.rows],
            _lines_above(advice, spread),
            list(map(one_line, below)),
            [_STYLES.get(row.result, "") for row in advice.rows],
            answer,
        )
        forms.append(Forms([grid], _object(advice)))
    print_results(forms, format, file)


def _columns(advice: BucketAdvice | ShardAdvice, spread: bool) -> list[Column]:
    """Returns the heading of each column and the function that makes its cells."""
    buckets = isinstance(advice, BucketAdvice)
    timed = advice.backward_ns is not None
    exposed = timed or not (buckets or advice.hides)
    columns: list[Column]
    if buckets:
        columns = [
            (Head("bucket_cap_mb", repeat=True), lambda row: row.name),
            (
                Head("buckets", drop=2),
                lambda row: (
                    ">= " * (row.result == "could be as sent")
                    + ("-" if row.buckets is None else str(row.buckets))
                ),
            ),
            (
                Head("largest", drop=4),
                lambda row: "-" if row.largest_bytes is None else format_bytes(row.largest_bytes),
            ),
            (Head("all_reduce", "together", drop=1 if timed else 0), _time("communication_ns")),
        ]
    else:
        columns = [
            (Head("choice", left=True, repeat=True), lambda row: row.choice),
            (Head("calls", drop=3), lambda row: str(row.calls)),
            (Head("largest", drop=4), lambda row: format_bytes(row.largest_bytes)),
            (Head("together", drop=2), _time("communication_ns")),
        ]
    if exposed:
        columns.append((Head("exposed"), _time("exposed_ns")))
        if not buckets:
            columns.append((Head("hidden", drop=2), _time("hidden_ns")))
    if spread:
        # The result is based on the interval of the ratio, so both are dropped together.
        bounds, drop = ("exposed", 3) if exposed else ("communication", 0 if buckets else 3)
        columns.append((Head("low", drop=drop), _time(f"{bounds}_low_ns")))
        columns.append((Head("high", drop=drop), _time(f"{bounds}_high_ns")))
    if timed:
        legend = _BUCKET_RATIO if buckets else _SHARD_RATIO
        columns.append((Head("ratio", legend=legend), lambda row: format_ratio(row.ratio)))
        if spread:
            several = advice.runs > 1
            head = Head("95 %") if several else Head("range", legend=_RANGE if buckets else "")
            columns.append((head, lambda row: "-" if row is advice.best else _interval(row)))
    if isinstance(advice, BucketAdvice):
        if any(row.exposed_16bit_ns is not None for row in advice.rows):
            columns.append((Head("exposed", "16 bits", drop=5), _time("exposed_16bit_ns")))
    else:
        columns.append((Head("held", drop=1), lambda row: format_bytes(row.sharded_bytes)))
        columns.append((Head("peak"), lambda row: format_bytes(row.peak_bytes)))
    if any(row.result for row in advice.rows) if buckets else timed:
        # Another row may have a smaller ratio if it is extrapolated.
        smaller = any(row.ratio is not None and row.ratio < 1 for row in advice.rows)
        best = "best of the sizes measured" if smaller else "best"
        columns.append(
            (Head("result", left=True), lambda row: best if row.result == "best" else row.result)
        )
    return columns


def _time(field: str) -> Callable[[Any], str]:
    return lambda row: format_time(getattr(row, field))


def _interval(row: AdviceRow) -> str:
    if row.ratio_low is None or row.ratio_high is None:
        return "-"
    return f"{format_ratio(row.ratio_low)} to {format_ratio(row.ratio_high)}"


def _lines_above(advice: BucketAdvice | ShardAdvice, spread: bool) -> list[str]:
    """Returns the lines above the table: the input, the curves, and the model."""
    if isinstance(advice, BucketAdvice):
        lines = [
            f"gradients: {format_bytes(advice.size_bytes)} of {advice.dtype or 'unknown type'}: "
            f"{one_line(advice.what)}"
        ]
    else:
        lines = [*_shard_proposal(advice), f"FSDP2 on {advice.ranks} ranks"]
        lines += [f"machine: {one_line(advice.machine)}"] * bool(advice.machine)
    for used in advice.curves:
        row, (least, most) = used.row, used.sizes
        collective = used.collective
        if used.share is not None:
            collective += f" from {row.collective}"
        facts = [row.dtype, f"on {row.backend}", f"{row.ranks or 'unknown'} ranks", row.mode]
        texts = ", ".join(one_line(fact) for fact in (*facts, f"{row.clock} clock") if fact)
        lines.append(
            f"curve: {collective} {texts}; {format_size(least)} to {format_size(most)}, "
            f"{used.runs} run{'s' if used.runs > 1 else ''}"
        )
    if isinstance(advice, ShardAdvice):
        if advice.backward_ns is not None:
            lines.append(
                "passes without communication: forward "
                f"{format_ns(advice.forward_ns)} (taken for half), backward "
                f"{format_ns(advice.backward_ns)}"
            )
        lines += [*(_SHARD_MODEL if advice.hides else _SHARD_MODEL_OF_CPUS), _MEMORY]
    elif advice.backward_ns is not None:
        source = one_line(advice.backward_source)
        lines.append(f"backward pass: {format_ns(advice.backward_ns)} ({source})")
        lines += _BUCKET_MODEL if advice.hides else _BUCKET_MODEL_OF_CPUS
    if spread and advice.runs > 1:
        lines.append(
            "low, high = the least and the most of the runs; 95 % over the runs, for all "
            "rows together"
        )
    elif isinstance(advice, ShardAdvice) and advice.machine:
        lines.append("low, high = the 90 % interval of the prediction")
    elif spread:
        lines.append("low, high = with the 5th and the 95th percentile of the curve's calls")
    return lines


def _lines_below(advice: BucketAdvice) -> list[str]:
    """Returns the lines below the table for DDP, beginning with the proposal."""
    lines = _bucket_proposal(advice)
    best = advice.best
    if best and advice.compression and best.exposed_16bit_ns is not None:
        ratio, low, high = advice.compression
        interval = ""
        if low is not None and high is not None:
            interval = f" ({format_ratio(low)} to {format_ratio(high)})"
        noise = ", within noise" if (low or 2) <= 1 <= (high or 0) else ""
        lines.append(
            f"16 bits an element (a compression hook) at {best.name}: exposed "
            f"{format_ns(best.exposed_16bit_ns)} for {format_ns(best.exposed_ns)}; backward + "
            f"exposed {format_ratio(ratio)} of it{interval}{noise}"
        )
    at = best or next((row for row in advice.rows if row.setting == "sent"), advice.rows[0])
    if advice.accumulate > 1:
        each = (at.communication_ns if at.exposed_ns is None else at.exposed_ns) or 0.0
        what = "all_reduce" if at.exposed_ns is None else "exposed"
        all_of_them = format_ns(advice.accumulate * each)
        lines.append(
            f"{advice.accumulate} backward passes an optimiser step, at {at.name}: with no_sync in "
            f"all but the last {format_ns(each)} {what}, without it {all_of_them}"
        )
    return [*lines, *advice.notes]


def _bucket_proposal(advice: BucketAdvice) -> list[str]:
    best, present = advice.best, advice.present
    try_them = "a proposal of a model: torchcoll.try_buckets measures real steps"
    if len(advice.judged_rows) < 2:
        why = "there are no two settings whose buckets are known, of measured sizes, and differ"
        if advice.measured_ns is not None:
            why += f"; exposed now (measured {format_ns(advice.measured_ns)}, with waits)"
        return [f"no proposal: {why}", *_measured_lines(advice)]
    if advice.backward_ns is None or best is None:
        # The setting that is best for all assumed backward times, or for each of them.
        times = [format_ns(ns) for ns, _ in advice.assumed]
        if best is None:
            each = ", ".join(f"{name} if it takes {format_ns(ns)}" for ns, name in advice.assumed)
            lines = [
                "no proposal: which is best depends on how long the backward pass takes: give it "
                "with --backward-ms (backward_ms of torchcoll.advise)",
                f"the model's best: {each}",
            ]
        else:
            lines = [
                f"proposal: {_keep_text(best) if best is present else _setting_text(best)} leaves "
                "least exposed whether the backward pass takes "
                f"{', '.join(times[:-1])} or {times[-1]}; "
                "with --backward-ms (backward_ms of torchcoll.advise) by how much, and whether it "
                "is more than noise",
                try_them,
            ]
        base = present or advice.rows[0]
        of = f"all_reduce together of {base.name} ({format_ns(base.communication_ns)})"
        return [*lines, f"these times are assumed: 1/4, 1 and 4 times {of}"]
    line = f"proposal: {_setting_text(best)}"
    if present and present.result in ("best", *_NO_WORSE):
        of = f" of {_setting_text(best)}"
        if present is best:
            guessed = {"unknown", "could be as sent"} & {row.result for row in advice.rows}
            of = " of those whose buckets are known" if guessed else ""
        line = f"proposal: {_keep_text(present)} is {present.result}{of}"
    fine = [row for row in advice.judged_rows if row.result in _NO_WORSE]
    alternatives = ", ".join(row.name for row in fine if row.setting == "cap")
    if best.setting == "cap" and alternatives:
        line += f"; no worse: {alternatives}"
    line += f"; exposed {format_ns(best.exposed_ns)}"
    if present and present is not best and present.result != "beyond the curve":
        line += f", now {format_ns(present.exposed_ns)}"
        line += " (now = the default cap, assumed)" * (present.setting == "default")
    if advice.measured_ns is not None:
        line += f" (measured {format_ns(advice.measured_ns)}, with waits)"
    return [line, try_them, *_measured_lines(advice)]


def _measured_lines(advice: BucketAdvice) -> list[str]:
    """Returns lines on the exposed time of the traffic, and whether the model is far from it."""
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
    if not modelled <= _MAX_FACTOR * measured <= _MAX_FACTOR**2 * modelled:
        lines.append(
            f"model and measurement of what was sent are more than {_MAX_FACTOR}x apart: "
            f"{format_ns(modelled)} and {format_ns(measured)}. What the model leaves out counts "
            "here: let try_buckets decide"
        )
    return lines


def _keep_text(row: Proposal) -> str:
    """Returns the proposal to keep the present setting; the traffic does not show if it is DDP's
    default.
    """
    if row.setting == "sent":
        return "leave bucket_cap_mb as it is: what was sent"
    return "leave bucket_cap_mb unset: the default"


def _setting_text(row: Proposal) -> str:
    if row.setting in ("sent", "default"):
        return row.name
    return f"bucket_cap_mb{'_list' if row.setting == 'caps' else ''}={row.name}"


def _shard_proposal(advice: ShardAdvice) -> list[str]:
    """Returns the answer, which is above the table of FSDP2."""
    best, least = advice.best, advice.least
    if best is None or least is None:
        if advice.backward_ns is None:
            return [
                "no proposal: how much is hidden depends on how long the passes take: give "
                "--backward-ms (backward_ms of torchcoll.advise)"
            ]
        return ["no proposal: no choice is within the sizes that were measured"]
    if len(advice.rows) < 2:
        return [
            f"{best.choice}: {format_ns(best.exposed_ns)} of {format_ns(best.communication_ns)} of "
            "communication exposed; one choice alone is no advice"
        ]
    exposed, communication = format_ns(best.exposed_ns), format_ns(best.communication_ns)
    if advice.machine and best.exposed_ns is not None and best.exposed_low_ns is not None:
        # A prediction: no more digits than its interval supports.
        ends = (best.exposed_ns, best.exposed_low_ns, best.exposed_high_ns)
        value, low, high = (format_ns(ns, 3) for ns in ends if ns is not None)
        exposed = f"{value} ({low} to {high})"
        communication = format_ns(best.communication_ns or 0.0, 3)
    line = (
        f"proposal: {best.choice}: {exposed} of {communication} of communication exposed, at its "
        f"peak {format_bytes(best.peak_bytes)} more"
    )
    if least is not best:
        line += (
            f"; {least.choice} is {least.result} of it ({format_ratio(least.ratio)}) and takes "
            f"{format_bytes(least.peak_bytes)}"
        )
    return [line, "a proposal of a model: measure real steps before you trust it"]


def _object(advice: BucketAdvice | ShardAdvice) -> dict[str, Any]:
    measured = "collective dtype op ranks backend device mode clock"
    facts: dict[str, Any]
    if isinstance(advice, BucketAdvice):
        used = advice.curves[0]
        ratio, low, high = advice.compression or (None, None, None)
        facts = {
            "schema": "torchcoll-advice/1",
            **select_fields(advice, "what size_bytes dtype backward_ns backward_source accumulate"),
            **select_fields(advice, "measured_ns measured_as"),
            "curve": {**select_fields(used.row, measured), **select_fields(used, "sizes runs")},
            **select_fields(advice, "best=best.name low_cap_mb high_cap_mb"),
            "compression": {"ratio": ratio, "ratio_low": low, "ratio_high": high},
            "assumed": [{"backward_ns": ns, "best": name} for ns, name in advice.assumed],
        }
        fields = (
            f"name setting caps_mb buckets largest_bytes {_TIMES} ratio ratio_low ratio_high "
            "result exposed_16bit_ns"
        )
    else:
        curves = [
            {
                **select_fields(used, "collective ranks sizes runs share_of_all_reduce=share"),
                "measured": select_fields(used.row, measured),
            }
            for used in advice.curves
        ]
        facts = {
            "schema": "torchcoll-shard-advice/1",
            **select_fields(advice, "ranks forward_ns backward_ns hides runs machine?"),
            "curves": curves,
            **select_fields(advice, "best=best.choice least_memory=least.choice"),
        }
        fields = (
            f"choice calls largest_bytes sharded_bytes peak_bytes {_TIMES} hidden_ns ratio "
            "ratio_low ratio_high result"
        )
    return {
        **facts,
        "notes": advice.notes,
        "rows": [select_fields(row, fields) for row in advice.rows],
    }
