"""What hours of the same cases show: drift, the worst of the time, and which rank was late when."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchcoll.core.case import Case

if TYPE_CHECKING:
    from torchcoll.core.result import Run, SoakWindow

LEVEL = 0.9  # of the interval of the drift
_LEAST = 4  # windows: with fewer a line through them tells nothing
_HOUR_US = 3600e6


@dataclass(frozen=True)
class SoakDrift:
    """By how much the median grows, as a share of itself, from the first window to the last, with
    its 90 % interval: least squares of log median over time (Student's t of the slope).

    The windows are taken for independent: what stays slow for several of them narrows the interval
    more than it should.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class SoakedCase:
    """One case over all windows.

    medians_ns: of each window. worst: its number from 0, worst_us: when it began, since 1970.
    slowest: the rank that was last most often, and its share of the calls; None without a barrier.
    """

    case: Case
    calls: int
    medians_ns: tuple[float, ...]
    p99_ns: float
    max_ns: float
    drift: SoakDrift | None
    worst: int
    worst_us: int
    slowest: tuple[int, float] | None

    @property
    def worst_over_median(self) -> float:
        ordered = sorted(self.medians_ns)
        return ordered[-1] / max(ordered[len(ordered) // 2], 1e-9)


@dataclass(frozen=True)
class Soaked:
    """rounds: the first aside. seconds: from the first window to the end of the last. faults: what
    the checks of the rounds found, a line each.
    """

    rounds: int
    windows: int
    seconds: float
    cases: tuple[SoakedCase, ...]
    faults: tuple[str, ...]


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
    )


def _case(case: Case, windows: Sequence[SoakWindow]) -> SoakedCase:
    found = [(window, one) for window in windows for one in window.cases if one.case == case]
    medians = tuple(one.median_ns for _, one in found)
    last, bins = Counter[str](), Counter[int]()
    for _, one in found:
        last.update(one.slowest)
        bins.update({int(name): calls for name, calls in one.bins.items()})
    worst = medians.index(max(medians))
    calls = sum(one.calls for _, one in found)
    rank = last.most_common(1)
    return SoakedCase(
        case,
        calls,
        medians,
        _quantile(bins, 0.99),
        max(one.max_ns for _, one in found),
        _drift([(w.start_wall_us + w.end_wall_us) / 2 for w, _ in found], medians),
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


def _drift(at_us: Sequence[float], medians_ns: Sequence[float]) -> SoakDrift | None:
    if len(at_us) < _LEAST or min(medians_ns) <= 0:
        return None
    from scipy import stats

    span = at_us[-1] - at_us[0]
    share = [(at - at_us[0]) / span for at in at_us]
    line = stats.linregress(share, [math.log(ns) for ns in medians_ns])
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(at_us) - 2) * line.stderr)
    slope = float(line.slope)
    return SoakDrift(*(math.expm1(value) for value in (slope, slope - half, slope + half)))
