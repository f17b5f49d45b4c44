"""The gradients that a backward pass gives to DDP, and when: from plans, traffic or one number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UsageError
from torchcoll.core.summary import median
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.training.late import cut_at_marks
from torchcoll.training.passes import (
    call_sizes,
    count_passes,
    find_second_pass,
    measured_exposed,
    most_common,
    split_passes,
)
from torchcoll.training.plans import DEFAULT_CAP_MB, DEFAULT_FIRST_MB, MIB, BucketPlan
from torchcoll.training.steps import find_steps

_CAPTURE = "Call traffic.step() after each step of a torchcoll.capture."
_MARK = {
    "capture": "Call traffic.step() after each step.",
    "kineto": "Call step() of the profiler after each step.",
}


AS_SENT, COULD_BE_SENT = "as sent", "could be as sent"
AS_DEFAULT = "as the default"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Message:
    """One all_reduce.

    - ready: the share of all gradients that is ready when it can start.
    """

    size_bytes: float
    ready: float


@dataclass(frozen=True)
class Setting:
    """The all_reduce calls that DDP makes with one bucket_cap_mb.

    - kind: ``cap``, ``caps`` (bucket_cap_mb_list), ``default`` (neither is set: a first bucket of 1
      MiB, then 25) or ``sent`` (as in the traffic).
    - caps_mb: the caps in MiB; () for the last two kinds.
    - result: a result that does not depend on any time: AS_SENT, COULD_BE_SENT, AS_DEFAULT, or
      UNKNOWN, which has no messages. Settings with such a result are not judged.
    """

    kind: str
    caps_mb: tuple[float, ...]
    messages: tuple[Message, ...]
    result: str = ""

    @property
    def largest(self) -> float:
        """Bytes of the largest message."""
        return max((message.size_bytes for message in self.messages), default=0)


@dataclass
class Gradients:
    """The gradients of one backward pass.

    - size_bytes: bytes of all gradients.
    - dtype: the dtype of most bytes.
    - what: a line that describes the input.
    - settings: the settings whose buckets are known.
    - sent: (bytes, dtype) of each bucket of the traffic, from which the buckets of other caps are
      derived; () if there is none, and buckets are then assumed to be even.
    - ranks: the number of ranks; 0 unknown.
    - backward_ns: duration of the pass; None unknown.
    - backward_source: where that comes from.
    - points: ascending pairs (share of the gradients, share of the pass at which it is ready); ()
      unknown: gradients then become ready in proportion to their bytes.
    - mixed: all dtypes, if there are several.
    - measured_ns: the exposed time in the traffic; measured_as: what that is.
    """

    size_bytes: int
    dtype: str | None
    what: str
    settings: tuple[Setting, ...] = ()
    sent: tuple[tuple[int, str | None], ...] = ()
    ranks: int = 0
    backward_ns: float | None = None
    backward_source: str = ""
    points: tuple[tuple[float, float], ...] = ()
    notes: list[str] = field(default_factory=list)
    mixed: str = ""
    measured_ns: float | None = None
    measured_as: str = ""

    def setting(self, cap_mb: float | None) -> Setting:
        """Returns what DDP sends with a cap, as far as it can be known.

        - cap_mb: the cap in MiB; None for DDP's default.

        Without sent buckets: the smallest number of equal buckets that are not above the cap.

        With sent buckets, whose parameters are unknown: DDP closes a bucket with the parameter that
        takes it to the cap (torch's compute_bucket_assignment_by_size, separately for each dtype).
        So a cap may have produced what was sent if no bucket is below it, except for the last of
        each dtype. A cap that is larger than some of these buckets but smaller than another one may
        split that one or not. A cap above all buckets merges them; if it closes within a bucket,
        the whole bucket is included.
        """
        kind, caps = ("cap", (cap_mb,)) if cap_mb else ("default", ())
        if not self.sent:
            sizes: list[float] = []
            left, first = self.size_bytes, DEFAULT_FIRST_MB * MIB
            if cap_mb is None and left > first:
                sizes, left = [first], left - first
            count = max(1, math.ceil(left / ((cap_mb or DEFAULT_CAP_MB) * MIB)))
            return Setting(kind, caps, messages_in_order([*sizes, *([left / count] * count)]))
        limits = [cap_mb * MIB] if cap_mb else [DEFAULT_FIRST_MB * MIB, DEFAULT_CAP_MB * MIB]
        last = {dtype: index for index, (_, dtype) in enumerate(self.sent)}
        messages: list[Message] = []
        filling: dict[str | None, Message] = {}
        closed, before = Counter[str | None](), Counter[str | None]()
        could, larger, done = True, False, 0
        for index, (size_bytes, dtype) in enumerate(self.sent):
            done += size_bytes
            sent_limit = limits[min(before[dtype], len(limits) - 1)]
            could &= size_bytes >= sent_limit or index == last[dtype]
            before[dtype] += 1
            limit = limits[min(closed[dtype], len(limits) - 1)]
            larger |= size_bytes > limit
            so_far = filling.pop(dtype).size_bytes if dtype in filling else 0
            message = Message(so_far + size_bytes, done / self.size_bytes)
            if message.size_bytes >= limit:
                messages.append(message)
                closed[dtype] += 1
            else:
                filling[dtype] = message
        messages += filling.values()
        if could:
            sent = messages_in_order([size_bytes for size_bytes, _ in self.sent])
            return Setting(kind, caps, sent, COULD_BE_SENT if larger else AS_SENT)
        if larger:
            return Setting(kind, caps, (), UNKNOWN)
        return Setting(kind, caps, tuple(messages))

    def ready_ns(self, share: float, backward_ns: float) -> float:
        """Returns when this share of the gradients is ready, in ns after the begin of the backward
        pass.
        """
        if not self.points:
            return share * backward_ns
        shares, times = zip(*self.points, strict=True)
        return float(numpy.interp(share, shares, times)) * backward_ns


def messages_in_order(sizes: Sequence[float]) -> tuple[Message, ...]:
    """Returns the messages of buckets that become ready one after the other."""
    shares = numpy.cumsum(sizes) / sum(sizes)
    return tuple(Message(n, float(share)) for n, share in zip(sizes, shares, strict=True))


def gradients_from_plans(plans: Sequence[BucketPlan]) -> Gradients:
    """Returns the gradients of a model from plans for several caps.

    Raises UsageError for plans of several models.
    """
    first = plans[0]
    settings = []
    for plan in plans:
        if plan.size_bytes != first.size_bytes:
            actual = f"plans of {first.size_bytes} and of {plan.size_bytes} bytes"
            raise UsageError("gradients", actual, "plans of one model")
        messages = messages_in_order([bucket.size_bytes for bucket in plan.buckets])
        if plan.used_map_bytes:
            messages = (*messages, Message(plan.used_map_bytes, 1.0))
        cap = plan.bucket_cap_mb
        caps = () if cap is None else cap if isinstance(cap, tuple) else (cap,)
        kind = "caps" if isinstance(cap, tuple) else "cap" if caps else "default"
        settings.append(Setting(kind, caps, messages))
    dtypes = Counter[str]()
    for bucket in first.buckets:
        dtypes[bucket.dtype] += bucket.size_bytes
    count = sum(len(bucket.parameters) for bucket in first.buckets)
    what = f"{count} parameters, DDP's own buckets"
    notes = list(dict.fromkeys(note for plan in plans for note in plan.notes))
    return Gradients(
        first.size_bytes,
        dtypes.most_common(1)[0][0],
        what,
        settings=tuple(settings),
        notes=notes,
        mixed=_join_dtypes(dtypes),
    )


def _join_dtypes(dtypes: Counter[Any]) -> str:
    """Returns for example ``float32, bfloat16``; '' for one dtype."""
    names = [name or "unknown type" for name, _ in dtypes.most_common()]
    return ", ".join(names) if len(names) > 1 else ""


def gradients_from_count(count: float, dtype: str | None) -> Gradients:
    """Returns one gradient of ``count`` elements.

    Raises UsageError for anything but a number, or an unknown dtype.
    """
    whole = isinstance(count, (int, float)) and not isinstance(count, bool) and math.isfinite(count)
    if not whole or not 1 <= count <= 1e12:
        raise UsageError("parameters", count, "a number from 1 to 1e12, such as 7e9")
    dtype_entry = find_dtype(dtype or "float32")
    if dtype_entry.kind != "float":
        raise UsageError("dtype", dtype_entry.name, "a floating-point type: gradients are")
    what = f"{count:,.0f} parameters of {dtype_entry.name}, without a model: even buckets"
    return Gradients(round(count) * dtype_entry.itemsize, dtype_entry.name, what)


def gradients_from_traffic(traffic: Traffic, accumulate: int | None) -> Gradients:
    """Returns the gradients of steady steps: the all_reduce calls of the group with the most bytes
    of them.

    - accumulate: backward passes per step; None: determined from the calls.

    Raises UsageError if there are none, if steps or passes cannot be separated, or if the traffic
    is FSDP's.
    """
    group = _gradient_group(traffic)
    traffic = cut_at_marks(traffic)
    steps = find_steps(traffic)
    planned = traffic.source == "plan"  # one pass, without marks
    if not steps.marked and not planned:
        actual, action = "calls that may be of many steps: no step is marked", _MARK
        raise UsageError("traffic", actual, "marked steps", action.get(traffic.source, _CAPTURE))
    each = [
        _gradient_calls([traffic.calls[rank][i] for i in by_step.get(step, ())], group)
        for rank, by_step in steps.at.items()
        for step in steps.steady
    ]
    each = [step_calls for step_calls in each if step_calls]
    if not each:
        raise UsageError("traffic", "no all_reduce in a steady step", "the gradients of a step")
    count = accumulate or (1 if planned else count_passes(each))
    alike = most_common(
        [backward_pass for step_calls in each for backward_pass in split_passes(step_calls, count)]
    )
    sizes = call_sizes(alike[0])
    dtypes: Counter[str | None] = Counter()
    for call in alike[0]:
        dtypes[call.dtype] += call.bytes_in
    group_entry = traffic.groups.get(group) or Group(group)
    passes_known = accumulate or planned or count > 1
    unit = "a backward pass" if passes_known else "a step, taken for one backward pass"
    sent = Setting("sent", (), messages_in_order(sizes))
    measured_ns, measured_as = measured_exposed(alike, traffic.source)
    gradients = Gradients(
        sum(sizes),
        dtypes.most_common(1)[0][0],
        f"{len(sizes)} all_reduce {unit} ({traffic.source})",
        settings=(sent,),
        sent=tuple((call.bytes_in, call.dtype) for call in alike[0]),
        ranks=len(group_entry.ranks) or traffic.ranks,
        notes=[*traffic.problems, *steps.notes],
        mixed=_join_dtypes(dtypes),
        measured_ns=measured_ns,
        measured_as=measured_as,
    )
    if all(call.asynchronous is False for call in alike[0]):
        gradients.notes.append(
            "the program waited for each of these all_reduce calls at once, as DDP does not: what "
            "is said here holds if they are gradients, and if DDP is to send them"
        )
    if accumulate is None and count > 1:
        gradients.notes.append(
            f"each step makes the same {len(sizes)} all_reduce calls {count} times, with nothing "
            "in flight in between: all figures are of one of these backward passes"
        )
    elif not passes_known and (index := find_second_pass(each)):
        gradients.notes.append(
            f"nothing was in flight when all_reduce {index + 1} of {len(sizes)} began, and there "
            "alone: if another model's backward pass begins there, capture one at a time; if not, "
            "--accumulate 1 (accumulate of torchcoll.advise)"
        )
    gradients.notes.append(
        "traffic does not tell the parameters: a larger cap is taken to put whole sent buckets "
        "together, where DDP may close within one and make one more. Plans of gradient_buckets "
        "(`torchcoll gradients MODULE:FACTORY`) tell exactly"
    )
    if traffic.source == "capture" and gradients.dtype in ("float16", "bfloat16"):
        gradients.notes.append(
            f"the calls are {gradients.dtype}: where a hook compresses them, bucket_cap_mb counts "
            "the bytes before that"
        )
    # On the host the computing thread issues the calls, so a call's time of issue is when its
    # gradients were ready. On accelerators the host runs ahead of the device.
    if backend_of(group_entry.backend).on_host and _set_ready_times(gradients, sent, alike):
        gradients.backward_source = "from when the all_reduce calls were issued"
    elif steps.duration_ns:
        gradients.backward_ns = steps.duration_ns / count * 2 / 3
        gradients.backward_source = (
            "two thirds of the step, as backward costs two forwards; rather too long, for the "
            "optimiser and what is exposed are in the step too"
        )
    return gradients


def _set_ready_times(
    gradients: Gradients, sent: Setting, passes: Sequence[Sequence[TrafficCall]]
) -> bool:
    """Sets the duration of the pass and the times of the gradients from the issue of its calls.

    Returns False if the stamps do not allow it.
    """
    stamps = [[c.start_ns for c in calls if c.start_ns is not None] for calls in passes]
    begun = [
        [t - starts[0] for t in starts] for starts in stamps if len(starts) == len(sent.messages)
    ]
    offsets = [median(each) for each in zip(*begun, strict=True)]
    first = sent.messages[0].ready
    if not offsets or offsets[-1] <= 0 or first >= 1:
        return False
    # The begin of the pass is unknown: assume that the first bucket arrived at the mean rate.
    gradients.backward_ns = offsets[-1] / (1 - first)
    lead = gradients.backward_ns - offsets[-1]
    ready = [(lead + max(0.0, offset)) / gradients.backward_ns for offset in offsets]
    gradients.points = ((0.0, 0.0), *zip((m.ready for m in sent.messages), ready, strict=True))
    return True


def _gradient_group(traffic: Traffic) -> str:
    """Returns the group with the most bytes of all_reduce. Raises UsageError if there is none."""
    moved: Counter[str] = Counter()
    sharded = 0
    for calls in traffic.calls.values():
        for call in calls:
            if call.collective == "all_reduce" and (call.dtype is None or "float" in call.dtype):
                moved[call.group] += call.bytes_in
            sharded += call.bytes_in if call.collective == "reduce_scatter" else 0
    if sharded > sum(moved.values()):
        raise UsageError(
            "traffic",
            "reduce_scatter of gradients (FSDP)",
            "all_reduce of gradients (DDP)",
            "FSDP2 has no bucket_cap_mb: its sizes follow from what is wrapped and resharded. "
            "Measure those of each choice: torchcoll.run(torchcoll.shard_traffic(...).spec()).",
        )
    if not sum(moved.values()):
        raise UsageError("traffic", "no all_reduce of floating-point numbers", "DDP's gradients")
    return moved.most_common(1)[0][0]


def _gradient_calls(calls: Sequence[TrafficCall], group: str) -> list[TrafficCall]:
    """Returns the calls that are gradients.

    DDP's calls are asynchronous, whereas a program waits at once for what it reduces itself.
    """
    summed = [
        call
        for call in calls
        if call.collective == "all_reduce"
        and call.group == group
        and (call.dtype is None or "float" in call.dtype)
    ]
    return [call for call in summed if call.asynchronous] or summed
