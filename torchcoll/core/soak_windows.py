"""The records of a soak: the figures of each case in one window of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchcoll.core.case import Case
from torchcoll.core.result import case_from_json, read_fields

_MOST_BINS = 1 << 20


@dataclass(frozen=True)
class SoakCase:
    """One case in the rounds of a window of --soak. Times are those of the slowest rank of a call.

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
        for counts in (data["bins"], data["slowest"]):
            if not all(0 <= int(name) < _MOST_BINS for name in counts):
                raise ValueError("a rank or a bin that cannot be")
        result = read_fields(cls, {**data, "case": case_from_json(data["case"])})
        return result


@dataclass(frozen=True)
class SoakWindow:
    """Neighbouring rounds of --soak. The first round is in no window: the file has its samples.

    start_wall_us, end_wall_us: by rank 0's wall clock, in us since 1970.
    checked: number of calls whose results were verified. faults: number of wrong results.
    calls: all calls, with warm-up and verified ones, and those of the first round.
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
        return read_fields(cls, {**data, "cases": tuple(map(SoakCase.from_json, data["cases"]))})
