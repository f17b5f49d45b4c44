"""Judges what the parts of a proof measured: pure functions from evidence to PartResult."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.result import Run
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import counted, format_digits, format_size

PROVEN, FAILED, NOT_SHOWN, NOT_RUN = "proven", "failed", "cannot be shown here", "not run"
STATUSES = (PROVEN, FAILED, NOT_SHOWN, NOT_RUN)


@dataclass(frozen=True)
class PartResult:
    """One part. reason: a clause that says why, with the figures that decided."""

    name: str
    status: str
    reason: str
    seconds: float = 0.0


# Chosen so that a difference of 5 %, the default precision of a run, is not the clock's.
CLOCK_LEAST, CLOCK_MOST = 0.97, 1.03
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


def judge_clock(evidence: Mapping[str, Any]) -> PartResult:
    """Each ratio of torchcoll to the bare loop has a 90 % interval. The clock is proven where all,
    and those of the A/A pairs, lie within the tolerance. It has failed where one lies outside on a
    quiet machine: a rank that has just worked waits more often than one that slept.
    """
    limits = f"{CLOCK_LEAST:g} to {CLOCK_MOST:g}"
    intervals: dict[str, tuple[float, float, float]] = {}
    failed = []
    for compared in evidence["compared"]:
        name = f"{compared['clock']} {format_size(compared['size_bytes'])}"
        ours, noise = (median_interval([a / b for a, b in compared[k]]) for k in ("pairs", "aa"))
        intervals |= {name: ours, f"{name}, A/A": noise}
        if _is_inside(noise) and (ours[1] > CLOCK_MOST or ours[2] < CLOCK_LEAST):
            failed.append(f"torchcoll / bare ({name}) is {_interval_text(ours)}, not {limits}")
    if failed and evidence["busy"]:
        return PartResult("clock", NOT_SHOWN, f"{evidence['busy']}: {failed[0]}")
    if failed:
        return PartResult("clock", FAILED, failed[0])
    uncertain = [name for name, interval in intervals.items() if not _is_inside(interval)]
    if uncertain:
        widest = max(uncertain, key=lambda name: intervals[name][2] - intervals[name][1])
        interval = _interval_text(intervals[widest])
        reason = f"too noisy: {widest} is {interval}, and the tolerance {limits}"
        return PartResult("clock", NOT_SHOWN, reason)
    medians = [median for name, (median, _, _) in intervals.items() if not name.endswith("A/A")]
    ends = dict.fromkeys(map(format_digits, (min(medians), max(medians))))
    return PartResult("clock", PROVEN, f"torchcoll / bare is {' to '.join(ends)}, within {limits}")


def _is_inside(interval: tuple[float, float, float]) -> bool:
    return interval[1] >= CLOCK_LEAST and interval[2] <= CLOCK_MOST


def _interval_text(interval: tuple[float, float, float]) -> str:
    return "{} ({} to {})".format(*map(format_digits, interval))


def judge_verification(evidence: Mapping[str, Any]) -> PartResult:
    """Every planted error is to be reported, and nothing where none was planted."""
    ran = [s for s in evidence["seen"] if s["status"] not in ("unsupported", "skipped")]
    planted = [s for s in ran if s["fault"] != "none"]
    clean = [s for s in ran if s["fault"] == "none"]
    if not planted or not clean:
        return PartResult("verification", NOT_SHOWN, "no case ran on this backend")
    bad = [s for s in planted if s["status"] != "wrong"]
    bad += [s for s in clean if s["status"] != "ok"]
    # A single changed bit is one wrong element in each check.
    bad += [s for s in planted if s["fault"] == "one bit" and s["wrong"] == 0]
    if bad:
        text = f"{len(bad)} of {len(ran)} cases are judged wrong: {bad[0]['case']} with the fault "
        text += f"'{bad[0]['fault']}' is {bad[0]['status']}"
        text += f": {bad[0]['reason']}" if bad[0]["reason"] else ""
        return PartResult("verification", FAILED, text)
    text = f"{counted(len(planted), 'planted error')} seen, none reported in {len(clean)} others"
    return PartResult("verification", PROVEN, text)


def judge_capture(captured: Traffic, profiled: Traffic) -> PartResult:
    """The calls of rank 0 in both, counted by collective and size."""
    ours, theirs = _calls(captured), _calls(profiled)
    extra, missing = ours - theirs, theirs - ours
    if not theirs:
        return PartResult("capture", NOT_SHOWN, "the profiler recorded no collective")
    for where, calls in (("profiler", extra), ("capture", missing)):
        for (name, size_in, size_out), number in calls.items():
            call = f"{name} of {format_size(size_in)} in and {format_size(size_out)} out"
            text = f"the {where} misses {counted(number, 'call')} of {call}"
            return PartResult("capture", FAILED, text)
    text = f"the same {counted(sum(ours.values()), 'call')} in the capture and in torch's profiler"
    return PartResult("capture", PROVEN, text)


def _calls(traffic: Traffic) -> Counter[tuple[str, int, int]]:
    return Counter(
        (call.collective, call.bytes_in, call.bytes_out) for call in traffic.calls.get(0, ())
    )


def judge_fault(name: str, run: Run, most_s: float, exit_code: int | None) -> PartResult:
    """A rank died or stopped: its file must name that rank, and the run must end by itself within
    ``most_s``.
    """
    victim, end = run.ranks - 1, run.end or {}
    seconds = float(end.get("wall_s") or 0.0)
    texts = [str(event.get("message") or "") for event in run.events]
    texts.append(str(end.get("reason") or ""))
    named = any(re.search(rf"\brank {victim}\b", text) for text in texts)
    last = next((text for text in reversed(texts) if text), "nothing")
    wrong = ""
    if exit_code == 0:
        wrong = "the run ended with exit code 0"
    elif end.get("status") != "failed":
        wrong = f"its file has no end that says so ({last})"
    elif not named:
        wrong = f"rank {victim} was hit, and the file says: {last}"
    elif seconds > most_s:
        wrong = f"rank {victim} is named, but only after {seconds:.0f} s"
    if wrong:
        return PartResult(name, FAILED, wrong)
    text = f"the file names rank {victim}, {seconds:.0f} s after the start: {last}"
    return PartResult(name, PROVEN, text)


def judge_forced(forced: Sequence[tuple[str, int, Sequence[str]]]) -> PartResult:
    """forced: of each algorithm its name, the number of cases of which the library's log names the
    algorithm, and what ran in those where it is another one.
    """
    part = "forced-algorithms"
    for name, cases, others in forced:
        if others:
            return PartResult(part, FAILED, f"{name} was forced, {others[0]}")
        if not cases:
            text = f"the library's log names no algorithm where {name} was forced"
            return PartResult(part, NOT_SHOWN, text)
    names = " and ".join(name for name, _, _ in forced)
    return PartResult(part, PROVEN, f"the library's log confirms {names}")
