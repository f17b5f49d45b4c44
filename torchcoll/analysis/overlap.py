"""The model of ``advise``: what DDP's all_reduce calls cost beside a backward pass, on a curve.

As simple as it can be said. A backward pass takes a time that is given or taken from the traffic.
Gradients become ready in proportion to their bytes, or as captured. An all_reduce starts when its
bucket is ready and the one before it has ended: one communicator, one after the other. It takes
what the curve says, as if nothing else ran. *Exposed* is what is left after the pass: end of the
last all_reduce - end of the pass. Not in it: communication that slows the computation down, and
ranks that wait for each other.

On CPUs all of it is exposed: what moves and adds the bytes takes the cores that compute. With the
overlap of a GPU the model proposed the smallest buckets there, whose real steps were 9 and 15 %
slower than the best (gloo, 2 ranks on 2 cores, results/benchmarks/).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchcoll.analysis.backward import (
    COULD_BE_SENT,
    UNKNOWN,
    Gradients,
    Message,
    Setting,
)
from torchcoll.analysis.curve import Curve, Curves
from torchcoll.core.summary import paired_ratio

THRESHOLD = 0.02  # as in a comparison: a change below it is nothing that anyone would act on
BEYOND = "beyond the curve"
Interval = tuple[float, float | None, float | None]


@dataclass(frozen=True)
class Proposal:
    """One bucket_cap_mb. Times in ns, of one backward pass.

    setting: ``cap`` (bucket_cap_mb), ``caps`` (bucket_cap_mb_list), ``default`` (neither is set: a
    first bucket of 1 MiB, then 25) or ``sent`` (as in the traffic). buckets: how many all_reduce
    calls; largest_nbytes of them. communication_ns: all of them one after the other. exposed_ns:
    see above; None without a backward time. low, high: least and most over the launches of the
    curve; of one launch on the 5th and 95th percentile of its calls. ratio: of backward + exposed
    to that of the best; its interval is 95 % over the launches, of one launch the range over its
    median and these two. verdict: best, ``within noise`` of it, ``within 2 %``, worse, that of the
    Setting where it has one (``unknown``: its buckets and all times are None; ``could be as sent``:
    buckets is the least and the rest is None), or BEYOND, where a
    bucket is larger than what was measured: there low, high and interval are None, since each curve
    would go on by its own last piece, to anywhere. exposed_16bit_ns: with 16 bits an element.
    """

    setting: str
    caps_mb: tuple[float, ...]
    buckets: int | None = None
    largest_nbytes: int | None = None
    communication_ns: float | None = None
    communication_low_ns: float | None = None
    communication_high_ns: float | None = None
    exposed_ns: float | None = None
    exposed_low_ns: float | None = None
    exposed_high_ns: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    verdict: str = ""
    exposed_16bit_ns: float | None = None

    @property
    def name(self) -> str:
        """``25``, ``1,25``, ``default``, ``as sent``."""
        if self.setting == "sent":
            return "as sent"
        return ",".join(f"{cap:g}" for cap in self.caps_mb) or self.setting


def exposed_ns(
    curve: Curve,
    messages: Iterable[Message],
    found: Gradients,
    backward_ns: float,
    scale: float = 1,
) -> float:
    """End of the last all_reduce - end of the backward pass; where nothing is hidden, all of them.

    scale: of the bytes that are sent.
    """
    if not curve.hides:
        return sum(curve.time_ns(scale * message.nbytes) for message in messages)
    end = 0.0
    for message in messages:
        ready = found.ready_ns(message.ready, backward_ns)
        end = max(end, ready) + curve.time_ns(scale * message.nbytes)
    return end - backward_ns


@dataclass(frozen=True)
class Halves:
    """What sends 16 bits an element instead: its curves, and the share of the bytes."""

    curves: Curves
    scale: float


def proposals(
    settings: Sequence[Setting],
    curves: Curves,
    halves: Halves | None,
    found: Gradients,
    backward_ns: float | None,
) -> list[Proposal]:
    """A row for each setting; with verdicts where the backward time is known."""
    rows: list[Proposal] = []
    ends: list[list[float]] = []
    for one in settings:
        if one.verdict in (COULD_BE_SENT, UNKNOWN):
            count = len(one.messages) or None
            rows.append(Proposal(one.kind, one.caps_mb, count, verdict=one.verdict))
            ends.append([])
            continue
        sums = [sum(c.time_ns(m.nbytes) for m in one.messages) for c in curves.every]
        row = Proposal(one.kind, one.caps_mb, len(one.messages), round(one.largest), sums[0])
        row = replace(row, verdict=one.verdict)
        beyond = curves.centre.beyond(one.largest)
        if beyond:
            row = replace(row, verdict=one.verdict or BEYOND)
        elif curves.others:
            low, high = min(sums[1:]), max(sums[1:])
            row = replace(row, communication_low_ns=low, communication_high_ns=high)
        if backward_ns is not None:
            each = [exposed_ns(c, one.messages, found, backward_ns) for c in curves.every]
            row = replace(row, exposed_ns=each[0])
            if curves.others and not beyond:
                row = replace(row, exposed_low_ns=min(each[1:]), exposed_high_ns=max(each[1:]))
            if halves and not halves.curves.centre.beyond(halves.scale * one.largest):
                centre, scale = halves.curves.centre, halves.scale
                less = exposed_ns(centre, one.messages, found, backward_ns, scale)
                row = replace(row, exposed_16bit_ns=less)
            ends.append([backward_ns + value for value in each])
        rows.append(row)
    return rows if backward_ns is None else _judged(rows, ends, curves.launches)


def compression(
    best: Setting, curves: Curves, halves: Halves, found: Gradients, backward_ns: float
) -> Interval | None:
    """backward + exposed of 16 bits an element over that of the gradients as they are."""
    if halves.curves.centre.beyond(halves.scale * best.largest):
        return None
    ratios = [
        (backward_ns + exposed_ns(less, best.messages, found, backward_ns, halves.scale))
        / (backward_ns + exposed_ns(full, best.messages, found, backward_ns))
        for less, full in zip(halves.curves.every, curves.every, strict=True)
    ]
    return _interval(ratios, curves.launches)


def _interval(ratios: Sequence[float], launches: int) -> Interval:
    """The ratio on the centre, or its mean over the launches, and its interval.

    ratios: one for each of ``Curves.every``.
    """
    if launches > 1:  # the centre is their mean, and no launch of its own
        return paired_ratio(ratios[1:])
    return (ratios[0], min(ratios), max(ratios)) if len(ratios) > 1 else (ratios[0], None, None)


def _judged(
    rows: Sequence[Proposal], ends: Sequence[Sequence[float]], launches: int
) -> list[Proposal]:
    """The rows with verdicts. ends: backward + exposed of each row on each curve."""
    able = [i for i, row in enumerate(rows) if not row.verdict]
    if not able:
        return list(rows)
    deciding = slice(1, None) if launches > 1 else slice(1)
    best = min(able, key=lambda i: math.fsum(map(math.log, ends[i][deciding])))
    judged = []
    for i, row in enumerate(rows):
        if not ends[i]:
            judged.append(row)
            continue
        ratios = [own / base for own, base in zip(ends[i], ends[best], strict=True)]
        ratio, low, high = _interval(ratios, launches)
        if row.exposed_low_ns is None:
            ratio, low, high = ratios[0], None, None
        verdict = "best" if i == best else row.verdict or _verdict(ratio, low)
        judged.append(replace(row, ratio=ratio, ratio_low=low, ratio_high=high, verdict=verdict))
    return judged


def _verdict(ratio: float, low: float | None) -> str:
    if low is not None and low <= 1:
        return "within noise"
    return "within 2 %" if ratio <= 1 + THRESHOLD else "worse"
