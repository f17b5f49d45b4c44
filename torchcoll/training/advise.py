"""``advise``: which bucket_cap_mb to use, from what DDP sends and a measured curve.

The model is deliberately simple. The duration of a backward pass is given or taken from the
traffic. Gradients become ready in proportion to their bytes, or as captured. An all_reduce starts
when its bucket is ready and the previous one has ended, as in one communicator. Its duration is
that of the curve, as if nothing else ran. *Exposed* is what remains after the pass: end of the last
all_reduce - end of the pass. Not modelled: communication that slows the computation down, and ranks
that wait for each other.

On CPUs all communication is exposed, because moving and adding the bytes takes the cores that
compute. With the overlap of a GPU, the model proposed the smallest buckets there, whose real steps
were 9 and 15 % slower than the best (gloo, 2 ranks on 2 cores, results/benchmarks/).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import format_size, whole_number
from torchcoll.curves.named_machines import find_machine
from torchcoll.curves.predictor import Predictor
from torchcoll.inputs import Source
from torchcoll.stats.sides import Side, side
from torchcoll.training.backward import (
    AS_DEFAULT,
    COULD_BE_SENT,
    UNKNOWN,
    Gradients,
    Setting,
    gradients_from_count,
    gradients_from_plans,
    gradients_from_traffic,
)
from torchcoll.training.call_time import Duration
from torchcoll.training.choices import (
    BEST,
    BEYOND,
    INCONCLUSIVE,
    MODEL_NOTE,
    RESULTS,
    WORSE,
    Advice,
    AdviceRow,
    Interval,
    add_times,
    beyond_note,
    interval,
    judge_rows,
)
from torchcoll.training.measured_curves import MeasuredCallTime, MeasuredCurves
from torchcoll.training.plans import MIB, BucketPlan
from torchcoll.training.shard_advice import ShardAdvice, advise_shards, advise_shards_on
from torchcoll.training.sharded import ShardPlan
from torchcoll.training.timeline import Act, Compute, Send, step_ns


@dataclass(frozen=True, kw_only=True)
class Proposal(AdviceRow):
    """One choice of bucket_cap_mb.

    - setting: ``cap`` (bucket_cap_mb), ``caps`` (bucket_cap_mb_list), ``default`` (neither is set:
      a first bucket of 1 MiB, then 25) or ``sent`` (as in the traffic).
    - buckets: the number of all_reduce calls; largest_bytes: the largest of them.
    - result: as in AdviceRow, or that of the Setting if it has one. With ``unknown``, buckets and
      all times are None. With ``could be as sent``, buckets is the minimum and all times are None.
    - exposed_16bit_ns: the exposed time with 16 bits per element.
    """

    setting: str
    caps_mb: tuple[float, ...]
    buckets: int | None = None
    largest_bytes: int | None = None
    exposed_16bit_ns: float | None = None

    @property
    def name(self) -> str:
        """The setting as text: ``25``, ``1,25``, ``default`` or ``as sent``."""
        if self.setting == "sent":
            return "as sent"
        return ",".join(f"{cap:g}" for cap in self.caps_mb) or self.setting


@dataclass(frozen=True)
class HalfPrecision:
    """How the times of calls with 16 bits per element are determined.

    - times: the curves.
    - dtype: the dtype whose curve is read.
    - scale: the bytes to read it at, relative to the bytes of the gradients.
    """

    times: MeasuredCallTime
    dtype: str | None
    scale: float


def all_reduce_times(
    setting: Setting, times: MeasuredCallTime, dtype: str | None, scale: float = 1
) -> list[Duration]:
    """Returns the duration of each all_reduce of a setting.

    - scale: a factor on the bytes that are sent.
    """
    sizes = {message.size_bytes for message in setting.messages}
    each = {size: times.duration("all_reduce", scale * size, 0, dtype) for size in sizes}
    return [each[message.size_bytes] for message in setting.messages]


def exposed_ns(
    durations: Sequence[Duration],
    setting: Setting,
    gradients: Gradients,
    backward_ns: float,
    hides: bool,
) -> list[float]:
    """Returns end of the last all_reduce - end of the backward pass, for each_ns of the durations.

    If nothing is hidden, this is the sum of all durations.
    """
    every_ns = zip(*(duration.each_ns for duration in durations), strict=True)
    if not hides:
        return [sum(times_ns) for times_ns in every_ns]
    ready_ns = [gradients.ready_ns(message.ready, backward_ns) for message in setting.messages]
    exposed = []
    for times_ns in every_ns:
        acts: list[Act] = []
        now = 0.0
        for number, (ready, time_ns) in enumerate(zip(ready_ns, times_ns, strict=True)):
            acts += [Compute(max(now, ready) - now), Send(number, "data", time_ns)]
            now = max(now, ready)
        exposed.append(step_ns([*acts, Compute(backward_ns - now)]) - backward_ns)
    return exposed


def proposals(
    settings: Sequence[Setting],
    times: MeasuredCallTime,
    half: HalfPrecision | None,
    gradients: Gradients,
    backward_ns: float | None,
) -> list[Proposal]:
    """Returns a row for each setting, with results if the backward time is known."""
    rows: list[Proposal] = []
    ends: list[list[float]] = []
    for setting in settings:
        row = Proposal(
            setting=setting.kind,
            caps_mb=setting.caps_mb,
            buckets=len(setting.messages) or None,
            result=setting.result,
        )
        if setting.result in (COULD_BE_SENT, UNKNOWN):
            rows.append(row)
            ends.append([])
            continue
        durations = all_reduce_times(setting, times, gradients.dtype)
        sums = [sum(each) for each in zip(*(time.each_ns for time in durations), strict=True)]
        row = replace(row, largest_bytes=round(setting.largest))
        exposed = None
        if backward_ns is not None:
            exposed = exposed_ns(durations, setting, gradients, backward_ns, times.hides)
            ends.append([backward_ns + value for value in exposed])
            if half:
                less = all_reduce_times(setting, half.times, half.dtype, half.scale)
                if not any(time.extrapolated for time in less):
                    values = exposed_ns(less, setting, gradients, backward_ns, times.hides)
                    row = replace(row, exposed_16bit_ns=values[0])
        rows.append(add_times(row, sums, exposed, any(time.extrapolated for time in durations)))
    return rows if backward_ns is None else judge_rows(rows, ends, times.runs)


CAPS_MB = (1, 2, 5, 10, 25, 50, 100, 200, 400, 800)
_MAX_BUCKETS = 200_000
_MAX_BYTES = 1 << 44  # enough for 1e12 parameters of float64
# Assumed backward times if none is known, as multiples of the communication.
_ASSUMED = (0.25, 1, 4)


@dataclass(repr=False, kw_only=True)
class BucketAdvice(Advice[Proposal]):
    """The result of ``advise`` for DDP; ``try_buckets`` measures real steps.

    - what: a description of the gradients; size_bytes: their bytes; dtype: their dtype, or several
      (``float32, bfloat16``).
    - backward_source: where backward_ns comes from.
    - accumulate: backward passes per optimiser step.
    - measured_ns: the exposed time after a backward pass in the traffic, including waits for other
      ranks; median over passes and ranks; None if unknown. measured_as: what that is.
    - best: without a backward time, the row that is best with all of ``assumed``.
    - low_cap_mb, high_cap_mb: the smallest and the largest cap that is judged and not worse.
    - compression: (ratio, low, high) of backward + exposed with 16 bits per element to that
      without, for the best row.
    - assumed: if the backward time is unknown, pairs of a backward time in ns and the name of the
      best row with it, for 1/4, 1 and 4 times the communication of ``present``.
    """

    what: str
    size_bytes: int
    dtype: str | None
    backward_source: str
    accumulate: int
    measured_ns: float | None = None
    measured_as: str = ""
    low_cap_mb: float | None = None
    high_cap_mb: float | None = None
    compression: Interval | None = None
    assumed: list[tuple[float, str]] = field(default_factory=list)

    @property
    def present(self) -> Proposal | None:
        """The present setting: what was sent, otherwise DDP's default."""
        rows = {row.setting: row for row in self.rows}
        return rows.get("sent") or rows.get("default")

    @property
    def judged_rows(self) -> list[Proposal]:
        """The rows to choose from: their buckets are known, measured, and different from those of
        other rows.
        """
        return [row for row in self.rows if row.result in RESULTS]


def advise(
    gradients: Any,
    curve: Source | Side | Sequence[Source] | None = None,
    *,
    machine: Predictor | str | os.PathLike[str] | None = None,
    caps_mb: Sequence[float] | None = None,
    backward_ms: float | None = None,
    dtype: str | None = None,
    accumulate: int | None = None,
) -> BucketAdvice | ShardAdvice:
    """Returns which bucket_cap_mb of DDP leaves the least communication exposed on a measured
    curve.

    For plans of ``shard_traffic``, one for each choice, it returns the same for the wrapping and
    resharding of FSDP2.

    - gradients: plans of ``gradient_buckets``, one for each cap to choose from; or a captured
      Traffic, its file or folder, for which some caps get no result because the parameters are
      unknown; or a number of parameters of ``dtype`` (default float32), for which buckets are
      assumed to be even.
    - curve: Runs, files, folders or globs with all_reduce over sizes on the same number of ranks.
      Several of them count as runs and give an interval.
    - machine: for plans of FSDP2, in place of a curve: what ``torchcoll model fit`` wrote, or the
      name of a machine that others measured, such as ``8xH100``. Times and intervals are those of
      ``torchcoll plan``.
    - caps_mb: the bucket_cap_mb (MiB) to consider without plans; None: 1 to 800.
    - backward_ms: duration of a backward pass without communication; None: taken from the traffic.
    - accumulate: backward passes per optimiser step. None: one; traffic that makes the same calls
      several times per step is refused unless it shows how many passes these are.

    For plans of FSDP2 only backward_ms applies; their model is described in training/sharded.py.
    Curves of all_gather and reduce_scatter are used if measured, otherwise they are derived from
    all_reduce and marked as an assumption.

    The model is printed above the table. Caps that differ between buckets (bucket_cap_mb_list) are
    considered if a plan has them.

    Raises UsageError for FSDP's traffic, for traffic without marked steps, for a number of ranks
    that differs from the curve's, if there is no unambiguous curve, and for numbers out of range;
    UnreadableError for a file that cannot be read.
    """
    if accumulate is not None:
        whole_number(accumulate, "accumulate", 1)
    if machine is not None and curve is not None:
        raise UsageError("advise", "a curve and a machine", "one of them")
    if curve is None and machine is None:
        action = "torchcoll.run returns it on rank 0 alone."
        raise UsageError("curve", "None", "a Run, or files", action)
    plans: Any = [gradients] if isinstance(gradients, (BucketPlan, ShardPlan)) else gradients
    several = isinstance(plans, Sequence) and not isinstance(plans, str)
    kinds = {type(plan) for plan in plans} if several else set()
    if kinds == {ShardPlan}:
        for name, value in (("caps_mb", caps_mb), ("dtype", dtype), ("accumulate", accumulate)):
            if value is not None:
                raise UsageError(name, value, "none with plans of FSDP2")
        passes = (
            None if backward_ms is None else _checked_number(backward_ms, "backward-ms", 0) * 1e6
        )
        if machine is not None:
            if isinstance(machine, str | os.PathLike):
                machine = find_machine(machine)
            return advise_shards_on(list(plans), machine, passes)
        return advise_shards(list(plans), _measured(curve), passes)
    if machine is not None:
        raise UsageError("machine", machine, "plans of shard_traffic with it (FSDP2)")
    if isinstance(gradients, (int, float)) and not isinstance(gradients, bool):
        pass_gradients = gradients_from_count(gradients, dtype)
    elif dtype is not None:
        raise UsageError("dtype", dtype, "none: the gradients have their own")
    elif isinstance(gradients, (str, os.PathLike, Traffic)):
        traffic = gradients if isinstance(gradients, Traffic) else Traffic.load(gradients)
        pass_gradients = gradients_from_traffic(traffic, accumulate)
    elif kinds == {BucketPlan}:
        pass_gradients = gradients_from_plans(plans)
        if caps_mb is not None:
            raise UsageError("caps_mb", caps_mb, "none with plans: each has its own cap")
    else:
        actual = type(gradients).__name__
        raise UsageError("gradients", actual, "a Traffic, plans of gradient_buckets, or a number")
    if backward_ms is not None:
        pass_gradients.backward_ns = _checked_number(backward_ms, "backward-ms", 0) * 1e6
        pass_gradients.backward_source = "given"
    return _advise_buckets(
        pass_gradients,
        _measured(curve),
        [*pass_gradients.settings] if kinds else None,
        caps_mb,
        accumulate or 1,
    )


def _measured(curve: Any) -> Side:
    return curve if isinstance(curve, Side) else side("curve", curve)


def _advise_buckets(
    gradients: Gradients,
    measured: Side,
    planned: list[Setting] | None,
    caps_mb: Sequence[float] | None,
    accumulate: int,
) -> BucketAdvice:
    """Returns the advice for DDP.

    - planned: the settings to choose from; None: those of the caps.
    """
    times = MeasuredCallTime(measured, asynchronous=True)
    curves, used = times.curve("all_reduce", 0, gradients.dtype)
    if gradients.ranks and used.row.ranks and gradients.ranks != used.row.ranks:
        expected = f"{gradients.ranks}, as the gradients are summed over"
        action = f"Measure: torchrun --nproc-per-node {gradients.ranks} -m torchcoll.allreduce."
        raise UsageError("ranks of the curve", used.row.ranks, expected, action)
    settings, duplicate_notes = _settings(gradients, caps_mb, planned)
    largest = max(message.size_bytes for setting in settings for message in setting.messages)
    if largest < used.sizes[0]:
        actual = f"{format_size(used.sizes[0])} to {format_size(used.sizes[1])}"
        expected = f"sizes of the buckets, of which the largest is {format_size(round(largest))}"
        raise UsageError("sizes of the curve", actual, expected, "Measure smaller ones, with -b.")
    half, source = _half_precision(measured, times, gradients)
    backward_ns = gradients.backward_ns
    advice = BucketAdvice(
        what=gradients.what,
        size_bytes=gradients.size_bytes,
        dtype=gradients.mixed or gradients.dtype,
        curves=[used],
        runs=times.runs,
        hides=times.hides,
        backward_ns=backward_ns,
        backward_source=gradients.backward_source,
        accumulate=accumulate,
        rows=proposals(settings, times, half, gradients, backward_ns),
        measured_ns=gradients.measured_ns,
        measured_as=gradients.measured_as,
    )
    if backward_ns is None:
        if len(advice.judged_rows) > 1:
            base = advice.present or advice.rows[0]
            for share in _ASSUMED:
                assumed_ns = share * (base.communication_ns or 0)
                rows = proposals(settings, times, None, gradients, assumed_ns)
                best = [row.name for row in rows if row.result == BEST]
                advice.assumed += [(assumed_ns, name) for name in best]
        names = {name for _, name in advice.assumed}
        if len(names) == 1:
            advice.best = next(row for row in advice.judged_rows if row.name in names)
    else:
        for row, setting in zip(advice.rows, settings, strict=True):
            if row.result == BEST:
                advice.best = row
                if half:
                    advice.compression = compression(setting, times, half, gradients, backward_ns)
        caps = [row for row in advice.judged_rows if row.setting == "cap" and row.result != WORSE]
        if advice.best and caps:
            advice.low_cap_mb = min(row.caps_mb[0] for row in caps)
            advice.high_cap_mb = max(row.caps_mb[0] for row in caps)
    smallest = min(message.size_bytes for setting in settings for message in setting.messages)
    problems = [f"{run.path}: {text}" for run in measured.runs for text in run.problems]
    advice.notes = [
        *problems,
        *gradients.notes,
        *duplicate_notes,
        *_notes(advice, curves, source, smallest),
    ]
    return advice


def _checked_number(value: Any, what: str, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(what, value, "a number")
    if value < least:
        raise UsageError(what, value, f"{least:g} or more")
    return float(value)


def _settings(
    gradients: Gradients, caps_mb: Sequence[float] | None, planned: list[Setting] | None
) -> tuple[list[Setting], list[str]]:
    """Returns the settings (default, caps in ascending order, sent), and notes on caps with equal
    buckets.
    """
    if planned is not None:
        settings = planned
    elif gradients.size_bytes > _MAX_BYTES:
        raise UsageError(
            "gradients", f"{gradients.size_bytes} bytes", f"{format_size(_MAX_BYTES)} at most"
        )
    else:
        caps: Sequence[float] = CAPS_MB
        if caps_mb is not None:
            if isinstance(caps_mb, str) or not isinstance(caps_mb, Iterable):
                raise UsageError("caps_mb", caps_mb, "a list of MiB, such as [10, 25, 100]")
            caps = sorted({_checked_number(cap, "bucket-cap-mb", 1 / MIB) for cap in caps_mb})
            if not caps or gradients.size_bytes / caps[0] / MIB > _MAX_BUCKETS:
                actual = f"{caps[0]:g} for {gradients.size_bytes} bytes" if caps else "none"
                raise UsageError("bucket-cap-mb", actual, f"{_MAX_BUCKETS} buckets at most")
        able = [cap for cap in caps if gradients.size_bytes / cap / MIB <= _MAX_BUCKETS]
        settings = [gradients.setting(None), *map(gradients.setting, able), *gradients.settings]
    order = {"default": 0, "cap": 1, "caps": 2, "sent": 3}
    settings.sort(key=lambda setting: (order[setting.kind], setting.caps_mb))
    distinct: list[Setting] = []
    duplicates: dict[float, list[str]] = {}
    for setting in settings:
        caps_alike = distinct and setting.kind == distinct[-1].kind == "cap" and not setting.result
        if caps_alike and setting.messages == distinct[-1].messages:
            duplicates.setdefault(distinct[-1].caps_mb[0], []).append(f"{setting.caps_mb[0]:g}")
        else:
            distinct.append(setting)
    default = next((setting.messages for setting in distinct if setting.kind == "default"), ())
    for i, setting in enumerate(distinct):
        if setting.kind in ("cap", "caps") and not setting.result and setting.messages == default:
            distinct[i] = replace(setting, result=AS_DEFAULT)
    text = "; ".join(f"{', '.join(caps)} the same as {cap:g}" for cap, caps in duplicates.items())
    return distinct, [f"bucket_cap_mb that make the same buckets: {text}"] if duplicates else []


def _half_precision(
    measured: Side, times: MeasuredCallTime, gradients: Gradients
) -> tuple[HalfPrecision | None, str]:
    """Returns how calls with 16 bits per element are timed, and a description of it.

    (None, '') if the gradients already have 16 bits or mixed dtypes.
    """
    if gradients.mixed or gradients.dtype not in ("float32", "float64"):
        return None, ""
    scale = 2 / find_dtype(gradients.dtype).itemsize
    dtypes = {m.case.dtype for m in measured.results if m.case.collective == "all_reduce"}
    for name in ("float16", "bfloat16"):
        if name in dtypes:
            half = MeasuredCallTime(measured, asynchronous=True)
            _, used = half.curve("all_reduce", 0, name)
            if half.curve_count == times.curve_count:
                return HalfPrecision(half, name, scale), f"measured in {used.row.dtype}"
    source = f"the times of {times.used[0].row.dtype} with fewer bytes"
    return HalfPrecision(times, gradients.dtype, scale), source


def compression(
    best: Setting,
    times: MeasuredCallTime,
    half: HalfPrecision,
    gradients: Gradients,
    backward_ns: float,
) -> Interval | None:
    """Returns the ratio of backward + exposed with 16 bits per element to that of the gradients as
    they are.
    """
    less = all_reduce_times(best, half.times, half.dtype, half.scale)
    if any(time.extrapolated for time in less):
        return None
    full = all_reduce_times(best, times, gradients.dtype)
    each = [
        exposed_ns(durations, best, gradients, backward_ns, times.hides)
        for durations in (less, full)
    ]
    ratios = [
        (backward_ns + less_ns) / (backward_ns + full_ns)
        for less_ns, full_ns in zip(*each, strict=True)
    ]
    return interval(ratios, times.runs)


def _notes(
    advice: BucketAdvice, curves: MeasuredCurves, halved: str, smallest: float
) -> Iterable[str]:
    row, (least, most) = curves.row, advice.curves[0].sizes
    results = {row.result for row in advice.rows}
    if INCONCLUSIVE in results:
        yield MODEL_NOTE
    if COULD_BE_SENT in results:
        yield (
            f"{COULD_BE_SENT}: this may be the cap that was set, or a smaller one, which makes "
            "more buckets wherever those sent are not of one parameter"
        )
    if UNKNOWN in results:
        yield (
            f"{UNKNOWN}: sent buckets are larger than that cap (the default's first is 1 MiB), and "
            "may be parameters as large as that, or be parted"
        )
    beyond = [row for row in advice.rows if row.result == BEYOND]
    if beyond:
        largest = max(row.largest_bytes or 0 for row in beyond)
        calls = f"buckets above {format_size(most)}, the largest size measured"
        yield beyond_note(calls, largest)
    if smallest < least:
        yield (
            f"buckets below {format_size(least)}, the smallest size measured, are taken to cost as "
            "much as it"
        )
    if advice.dtype and row.dtype != advice.dtype:
        yield (
            f"the curve is of {row.dtype or 'unknown type'}, the gradients are {advice.dtype}: "
            "taken by bytes, though adding them up costs another time"
        )
    if curves.left_out:
        count = "1 size that not all runs have is"
        if curves.left_out > 1:
            count = f"{curves.left_out} sizes that not all runs have are"
        yield f"{count} left out"
    if not row.ranks:
        yield "the curve does not tell its number of ranks"
    if halved and any(row.exposed_16bit_ns is not None for row in advice.rows):
        yield f"16 bits an element: {halved}; what compressing itself takes is not in it"
    if curves.runs == 1:
        what = (
            "low and high are the 5th and 95th percentile of its calls"
            if curves.all_curves[1:]
            else "it has no spread, so no difference can be called noise"
        )
        yield f"one run: {what}; only several runs give an interval"
