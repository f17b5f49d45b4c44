"""Judges what the parts of a proof measured: pure functions from evidence to PartResult.

Ratios are judged by the 90 % interval of the median of their pairs (order statistics, no assumption
about the distribution): proven where the whole interval lies within the tolerance, failed where it
lies outside. In between, and where the A/A pairs, which compare the bare loop with itself, are not
within the tolerance either, this machine is too noisy to show it. On a machine that other programs
use nothing fails: a rank that has just worked is more often made to wait than one that slept.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torchcoll.core.result import Run
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import (
    counted,
    format_digits,
    format_size,
)

PROVEN, FAILED, NOT_SHOWN, NOT_RUN = "proven", "failed", "cannot be shown here", "not run"
STATUSES = (PROVEN, FAILED, NOT_SHOWN, NOT_RUN)


@dataclass(frozen=True)
class Figure:
    """A number that a part measured.

    low, high: the interval around ``value``; None where it is a count or a fact.
    least, most: the tolerance; None where there is no such limit.
    source: where the tolerance comes from, in a few words.
    """

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    least: float | None = None
    most: float | None = None
    source: str = ""

    @property
    def inside(self) -> bool:
        """Whether the whole interval lies within the tolerance."""
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        return (self.least is None or low >= self.least) and (
            self.most is None or high <= self.most
        )

    @property
    def outside(self) -> bool:
        """Whether no value of the interval lies within the tolerance."""
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        return (self.least is not None and high < self.least) or (
            self.most is not None and low > self.most
        )


@dataclass(frozen=True)
class PartResult:
    """One part. ``reason``: a clause that says why."""

    name: str
    status: str
    reason: str
    figures: tuple[Figure, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def worst(statuses: Sequence[str]) -> str:
    """The status of a part whose pieces have these."""
    return next((s for s in (FAILED, NOT_RUN, NOT_SHOWN) if s in statuses), PROVEN)


# 3 %: chosen so that a difference of 5 %, the default precision of a run, is not the clock's.
CLOCK_LEAST, CLOCK_MOST = 0.97, 1.03
_CLOCK_SOURCE = "chosen: below the 5 % precision of a run"
# First calls vary far more than steady ones, and one of gloo is 0.87 of a bare one on an idle core.
FIRST_LEAST, FIRST_MOST = 0.8, 1.25
_FIRST_SOURCE = (
    "chosen; with gloo 0.87 (0.85 to 0.89), results/benchmarks/cold-calls-2026-11-23.txt"
)
_LEVEL = 0.9


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the shortest interval between order statistics that has the median with
    at least 90 % probability; the extremes where there are fewer than five values.

    Source: David and Nagaraja, Order Statistics, section 7.1.
    """
    ordered, n = sorted(values), len(values)
    tail, k = 0.0, 0  # P(Binomial(n, 1/2) < k) = tail
    while k < n // 2 and 1 - 2 * (tail + math.comb(n, k) / 2**n) >= _LEVEL:
        tail += math.comb(n, k) / 2**n
        k += 1
    k = max(k, 1)
    return statistics.median(ordered), ordered[k - 1], ordered[n - k]


def _ratios(
    name: str,
    pairs: Sequence[Sequence[float]],
    same: Sequence[Sequence[float]],
    limits: tuple[float, float, str],
) -> tuple[str, list[Figure]]:
    """(status, [torchcoll / bare, A/A]) of pairs of times."""
    least, most, source = limits
    ratio, noise = (
        Figure(label, *_rounded(median_interval([a / b for a, b in times])), least, most, source)
        for label, times in ((name, pairs), (f"{name}, A/A", same))
    )
    if not noise.inside:
        return NOT_SHOWN, [ratio, noise]
    return (PROVEN if ratio.inside else FAILED if ratio.outside else NOT_SHOWN), [ratio, noise]


def _rounded(values: tuple[float, float, float]) -> tuple[float, str, float, float]:
    median, low, high = (round(value, 4) for value in values)
    return median, "", low, high


def _excused(result: PartResult, busy: str) -> PartResult:
    """The result, where other programs (``busy``) may be why it failed."""
    if result.status != FAILED or not busy:
        return result
    return replace(result, status=NOT_SHOWN, reason=f"{busy}: {result.reason}")


def judge_clock(evidence: Mapping[str, Any], note: str = "") -> PartResult:
    """note: what limits the result, such as that one GPU is shared."""
    statuses, figures = [], list[Figure]()
    for compared in evidence["compared"]:
        name = f"{compared['clock']} {format_size(compared['size_bytes'])}"
        limits = (CLOCK_LEAST, CLOCK_MOST, _CLOCK_SOURCE)
        status, ratios = _ratios(name, compared["pairs"], compared["aa"], limits)
        statuses.append(status)
        figures += ratios
    status = worst(statuses)
    reason = _ratio_reason(status, statuses, figures, note)
    return _excused(PartResult("clock", status, reason, (*figures,)), evidence["busy"])


def judge_first_call(evidence: Mapping[str, Any], note: str = "") -> PartResult:
    rounds = evidence["rounds"]
    pairs = [(ours, bare) for ours, bare, _ in rounds]
    same = [(again, bare) for _, bare, again in rounds]
    limits = (FIRST_LEAST, FIRST_MOST, _FIRST_SOURCE)
    status, figures = _ratios("first call", pairs, same, limits)
    reason = _ratio_reason(status, [status], figures, note)
    return _excused(PartResult("first-call", status, reason, (*figures,)), evidence["busy"])


def _ratio_reason(
    status: str, statuses: Sequence[str], figures: Sequence[Figure], note: str
) -> str:
    ours, noise = figures[::2], figures[1::2]
    values = sorted({format_digits(f(each.value for each in ours)) for f in (min, max)}, key=float)
    middle = " to ".join(values)
    text = f"torchcoll / bare is {middle}"
    if status == FAILED:
        bad = next(f for f, s in zip(ours, statuses, strict=True) if s == FAILED)
        value, low, high = (format_digits(x or 0.0) for x in (bad.value, bad.low, bad.high))
        text = f"torchcoll / bare ({bad.name}) is {value} ({low} to {high})"
    if status == NOT_SHOWN:
        uncertain = [f for f in (*ours, *noise) if not f.inside]
        widest = max(uncertain, key=lambda f: (f.high or 0) - (f.low or 0))
        text = (
            f"too noisy: {widest.name} is {format_digits(widest.low or 0.0)} to "
            f"{format_digits(widest.high or 0.0)}, and the "
            f"tolerance {widest.least:g} to {widest.most:g}"
        )
    return f"{text}; {note}" if note else text


def judge_verification(evidence: Mapping[str, Any], note: str = "") -> PartResult:
    """Every planted error is to be reported, and nothing where none was planted."""
    ran = [s for s in evidence["seen"] if s["status"] not in ("unsupported", "skipped")]
    planted = [s for s in ran if s["fault"] != "none"]
    clean = [s for s in ran if s["fault"] == "none"]
    missed = [s for s in planted if s["status"] != "wrong"]
    false = [s for s in clean if s["status"] != "ok"]
    # A single changed bit is one wrong element in each check.
    counts = [s for s in planted if s["fault"] == "one bit" and s["wrong"] == 0]
    figures = (
        Figure("planted errors missed", len(missed), f"of {len(planted)}", most=0),
        Figure("false alarms", len(false), f"of {len(clean)}", most=0),
    )
    if not planted or not clean:
        return PartResult("verification", NOT_SHOWN, "no case ran on this backend", figures)
    bad = [*missed, *false, *counts]
    if bad:
        text = f"{bad[0]['case']} with the fault '{bad[0]['fault']}' is {bad[0]['status']}"
        if bad[0]["reason"]:
            text += f": {bad[0]['reason']}"
        return PartResult("verification", FAILED, text, figures)
    text = f"{counted(len(planted), 'planted error')} seen, none reported in {len(clean)} others"
    return PartResult("verification", PROVEN, f"{text}; {note}" if note else text, figures)


# Of a call: its collective and the bytes that go in and out of it.
_Key = tuple[str, int, int]


def judge_capture(captured: Traffic, profiled: Traffic, note: str = "") -> PartResult:
    """The calls of rank 0 in both, counted by collective and size."""
    ours, theirs = (_calls(traffic) for traffic in (captured, profiled))
    extra, missing = ours - theirs, theirs - ours
    figures = (
        Figure("calls captured", sum(ours.values())),
        Figure("calls in the profiler's trace", sum(theirs.values())),
        Figure("calls in one only", sum((extra + missing).values()), most=0),
    )
    if not theirs:
        return PartResult("capture", NOT_SHOWN, "the profiler recorded no collective", figures)
    if extra or missing:
        (name, size_in, size_out), number = next(iter((extra + missing).items()))
        where = "profiler" if (name, size_in, size_out) in extra else "capture"
        call = f"{name} of {format_size(size_in)} in and {format_size(size_out)} out"
        text = f"the {where} misses {counted(number, 'call')} of {call}"
        return PartResult("capture", FAILED, text, figures)
    text = f"the same {counted(sum(ours.values()), 'call')} in the capture and in torch's profiler"
    return PartResult("capture", PROVEN, f"{text}; {note}" if note else text, figures)


def _calls(traffic: Traffic) -> Counter[_Key]:
    return Counter(
        (call.collective, call.bytes_in, call.bytes_out) for call in traffic.calls.get(0, ())
    )


def judge_fault(
    name: str, run: Run, seconds: float, most_s: float, exit_code: int | None, note: str = ""
) -> PartResult:
    """A rank died or stopped: its file must name that rank, and the run must end by itself.

    seconds: from the start of the run to its end. most_s: the most that it may take.
    """
    victim = run.ranks - 1
    texts = [str(event.get("message") or "") for event in run.events]
    texts.append(str((run.end or {}).get("reason") or ""))
    named = any(_names_rank(text, victim) for text in texts)
    ended = (run.end or {}).get("status") == "failed"
    figures = (
        Figure(f"rank {victim} named", int(named), least=1),
        Figure("the run took", round(seconds, 1), "s", most=most_s, source="its --timeout"),
    )
    last = next((text for text in reversed(texts) if text), "nothing")
    if exit_code == 0:
        return PartResult(name, FAILED, "the run ended with exit code 0", figures)
    if not ended:
        return PartResult(name, FAILED, f"its file has no end that says so ({last})", figures)
    if not named:
        text = f"rank {victim} was hit, and the file says: {last}"
        return PartResult(name, FAILED, text, figures)
    if not figures[1].inside:
        text = f"rank {victim} is named, but only after {seconds:.0f} s"
        return PartResult(name, FAILED, text, figures)
    text = f"the file names rank {victim}, {seconds:.0f} s after the start: {last}"
    return PartResult(name, PROVEN, f"{text}; {note}" if note else text, figures)


def _names_rank(text: str, rank: int) -> bool:
    return bool(re.search(rf"\brank {rank}\b", text))


def judge_forced(
    forced: Sequence[tuple[str, int, Sequence[tuple[str, int, str]]]], note: str = ""
) -> PartResult:
    """forced: for each algorithm: its name, the number of cases of which the library's log names
    the algorithm, and (collective, bytes, what the log names) of those where it is another one.
    """
    figures = tuple(
        Figure(f"cases without {name}", len(others), f"of {cases}", most=0)
        for name, cases, others in forced
    )
    for name, cases, others in forced:
        if others:
            collective, size_bytes, logged = others[0]
            case = f"{collective} of {format_size(size_bytes)}"
            return PartResult(
                "forced-algorithms", FAILED, f"{name} was forced, {case} ran {logged}", figures
            )
        if not cases:
            text = f"the library's log names no algorithm where {name} was forced"
            return PartResult("forced-algorithms", NOT_SHOWN, text, figures)
    names = " and ".join(name for name, _, _ in forced)
    text = f"the library's log confirms {names}"
    return PartResult("forced-algorithms", PROVEN, f"{text}; {note}" if note else text, figures)
