"""What hours of the same cases show: drift, the worst of the time, and which rank was late when."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchcoll.comparison.drift import LEAST, SURE, TimeDrift, drift_of
from torchcoll.core.case import Case

if TYPE_CHECKING:
    from torchcoll.core.result import Run, SoakWindow


@dataclass(frozen=True)
class SoakedCase:
    """One case over all windows.

    medians_ns: of each window that it ran in. over_time: of all windows; None where it did not run.
    worst: its number from 0, worst_us: when it began, since 1970.
    slowest: the rank that was last most often, and its share of the calls; None without a barrier.
    """

    case: Case
    calls: int
    medians_ns: tuple[float, ...]
    over_time: tuple[float | None, ...]
    p99_ns: float
    max_ns: float
    drift: TimeDrift | None
    worst: int
    worst_us: int
    slowest: tuple[int, float] | None

    @property
    def worst_over_median(self) -> float:
        ordered = sorted(self.medians_ns)
        return ordered[-1] / max(ordered[len(ordered) // 2], 1e-9)


@dataclass(frozen=True)
class Soaked:
    """rounds: the first aside. seconds: from the first window to the end of the last. checked: the
    cases of rounds whose results were checked, the first round's too. faulty: how many faults were
    found; faults: the first of them, a line each.
    """

    rounds: int
    windows: int
    seconds: float
    cases: tuple[SoakedCase, ...]
    faults: tuple[str, ...]
    checked: int
    faulty: int

    @property
    def drifting(self) -> tuple[SoakedCase, ...]:
        """Cases that drift by 2 % at least, at 5 % over all of them (Holm)."""
        known = sorted(
            (c for c in self.cases if c.drift), key=lambda c: c.drift.p if c.drift else 1
        )
        found = []
        for place, one in enumerate(known):
            if not one.drift or one.drift.p > SURE / (len(known) - place):
                break
            if abs(one.drift.value) >= LEAST:
                found.append(one)
        return tuple(found)


def soaked(run: Run) -> Soaked | None:
    """None where no --soak was."""
    windows = run.windows
    if not windows:
        return None
    faults = [str(e.get("message")) for e in run.events if e.get("kind") == "soak"]
    order = dict.fromkeys(one.case for window in windows for one in window.cases)
    return Soaked(
        windows[-1].last_round - windows[0].first_round + 1,
        len(windows),
        (windows[-1].end_wall_us - windows[0].start_wall_us) / 1e6,
        tuple(_case(case, windows) for case in order),
        tuple(faults),
        sum(window.checked for window in windows),
        sum(window.faults for window in windows),
    )


def _case(case: Case, windows: Sequence[SoakWindow]) -> SoakedCase:
    found = [(window, one) for window in windows for one in window.cases if one.case == case]
    medians = tuple(one.median_ns for _, one in found)
    by_window = {id(window): one.median_ns for window, one in found}
    last, bins = Counter[str](), Counter[int]()
    for _, one in found:
        last.update(one.slowest)
        bins.update({int(name): calls for name, calls in one.bins.items()})
    worst, most = medians.index(max(medians)), max(one.max_ns for _, one in found)
    calls = sum(one.calls for _, one in found)
    rank = last.most_common(1)
    return SoakedCase(
        case,
        calls,
        medians,
        tuple(by_window.get(id(window)) for window in windows),
        min(_quantile(bins, 0.99), most),
        most,
        drift_of(medians),
        worst,
        found[worst][0].start_wall_us,
        (int(rank[0][0]), rank[0][1] / calls) if rank and calls else None,
    )


def _quantile(bins: Counter[int], share: float) -> float:
    """The upper end of the bin that holds it, in ns: at most 9 % above."""
    wanted, seen = math.ceil(share * sum(bins.values())), 0
    for number, calls in sorted(bins.items()):
        seen += calls
        if seen >= wanted:
            return float(2 ** ((number + 1) / 8))
    return 0.0
