"""The records of a soak: the figures of each case in one window of time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchcoll.core.case import Case
from torchcoll.core.result import BOUND, case_from_json, check_lists, check_whole

_MOST_BINS = 1 << 20


@dataclass(frozen=True)
class SoakCase:
    """One case in the rounds of a window of --soak. Times are those of the slowest rank of a call,
    or in a mode without a barrier of the slowest period.

    bins: number of calls by ``floor(8 log2 ns)``, which has 8 steps for each power of two.
    slowest: rank -> number of calls in which it was the last; empty in a mode without a barrier.
    """

    case: Case
    calls: int
    median_ns: float
    p99_ns: float
    max_ns: float
    bins: dict[str, int]
    slowest: dict[str, int]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SoakCase:
        """Unknown fields are ignored. Raises KeyError, TypeError or ValueError on a broken one."""
        times = [data[name] for name in ("median_ns", "p99_ns", "max_ns")]
        if any(type(ns) not in (int, float) or not 0 <= ns < BOUND for ns in times):
            raise TypeError("a time is not a number from 0 on")
        check_whole(data["calls"])
        for counts in (data["bins"], data["slowest"]):
            if not all(0 <= int(name) < _MOST_BINS for name in counts):
                raise ValueError("a rank or a bin that cannot be")
            check_lists(list(counts.values()), durations=True)
        case = case_from_json(data["case"])
        median, p99, most = times
        bins, slowest = dict(data["bins"]), dict(data["slowest"])
        return cls(case, data["calls"], median, p99, most, bins, slowest)


@dataclass(frozen=True)
class SoakWindow:
    """Neighbouring rounds of --soak. The first round is in no window: the file has its samples.

    Stamps are of rank 0's wall clock, in us since 1970.
    checked: number of calls whose results were verified. faults: number of wrong results.
    calls: all calls, with warm-up and verified ones; in the first window also those of the first
    round.
    """

    first_round: int
    last_round: int
    start_wall_us: int
    end_wall_us: int
    cases: tuple[SoakCase, ...]
    checked: int = 0
    faults: int = 0
    calls: int = 0

    def to_json(self) -> dict[str, Any]:
        cases = [{**vars(case), "case": case.case.to_json()} for case in self.cases]
        return {**vars(self), "cases": cases}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SoakWindow:
        """Unknown fields are ignored. Raises KeyError, TypeError or ValueError on a broken one."""
        first, last, start, end = (data[f.name] for f in dataclasses.fields(cls)[:4])
        counts = (data["checked"], data["faults"], data.get("calls", 0))
        check_whole(first, last, start, end, *counts)
        return cls(first, last, start, end, tuple(map(SoakCase.from_json, data["cases"])), *counts)
