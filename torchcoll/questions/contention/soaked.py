"""What a soak of hours shows: drift and the worst window."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchcoll.core.answer import CERTAIN, Answer, format_quantity, nothing_found
from torchcoll.core.case import Case
from torchcoll.core.units import counted, format_size
from torchcoll.stats.drift import LEAST, SURE, TimeDrift, drift_of
from torchcoll.stats.power import ACT_ON_ALL, ACT_ON_CASE

if TYPE_CHECKING:
    from torchcoll.core.result import Run
    from torchcoll.core.soak_windows import SoakWindow


@dataclass(frozen=True)
class SoakedCase:
    """One case over all windows.

    medians_ns: of the windows in which it ran. worst, worst_us: number and start (since 1970) of
    the worst window.
    """

    case: Case
    calls: int
    medians_ns: tuple[float, ...]
    p99_ns: float
    max_ns: float
    drift: TimeDrift | None
    worst: int
    worst_us: int

    @property
    def worst_over_median(self) -> float:
        ordered = sorted(self.medians_ns)
        return ordered[-1] / max(ordered[len(ordered) // 2], 1e-9)


@dataclass(frozen=True)
class Soaked:
    """A soak without its first round.

    seconds: from the first window to the end of the last. checked: calls with checked results,
    including the first round. calls: all calls, 0 if not known. faulty: the number of faults.
    faults: the first of them.
    """

    rounds: int
    windows: int
    seconds: float
    cases: tuple[SoakedCase, ...]
    faults: tuple[str, ...]
    checked: int
    faulty: int
    calls: int = 0

    @property
    def drifting(self) -> tuple[SoakedCase, ...]:
        """Cases that drift by 2 % or more, at 5 % over all cases (Holm)."""
        by_p = sorted((c for c in self.cases if c.drift), key=lambda c: c.drift.p if c.drift else 1)
        drifting = []
        for place, case in enumerate(by_p):
            if not case.drift or case.drift.p > SURE / (len(by_p) - place):
                break
            if abs(case.drift.value) >= LEAST:
                drifting.append(case)
        return tuple(drifting)

    @property
    def duration(self) -> str:
        if self.seconds < 120:
            return f"{self.seconds:.0f} s"
        minutes = self.seconds / 60
        return f"{minutes / 60:.1f} h" if minutes >= 120 else f"{minutes:.1f} min"

    @property
    def answer(self) -> Answer:
        """Whether results were wrong, and whether a case became slower."""
        drift, checked = self._drift_answer, "no result was checked"
        if self.checked:
            of = f" of {counted(self.calls, 'call')}" if self.calls else " calls"
            checked = f"{self.checked:,}{of} checked"
        if self.faulty:
            fault = Answer(
                counted(self.faulty, "fault"),
                "bad",
                scope=f"in {self.duration} of soak ({checked})",
                certainty=CERTAIN,
                details=self.faults[:1],
            )
            return replace(fault, details=(*fault.details, drift.headline))
        if self.checked:
            checked += ", all correct"
        return replace(drift, details=(*drift.details, checked))

    @property
    def _drift_answer(self) -> Answer:
        drifts = [case.drift for case in self.cases if case.drift]
        if drifting := self.drifting:
            case, drift = max(
                ((case, case.drift) for case in drifting if case.drift),
                key=lambda pair: abs(pair[1].value),
            )
            return Answer(
                f"{case.case.collective} {format_size(case.case.size_bytes)}",
                "doubt" if any(c.drift and c.drift.value > 0 for c in drifting) else "",
                verb="takes {} " + ("longer" if drift.value > 0 else "less time"),
                size=abs(drift.value),
                unit="%",
                scope=f"in the last quarter of {self.duration} than in the first",
                certainty=CERTAIN,
                details=(f"{len(drifting)} of {counted(len(self.cases), 'case')} drift",),
            )
        shares = [drift.detectable(len(drifts)) for drift in drifts]
        limits = [share for share in shares if share is not None]
        in_all = min(limits, default=None)
        in_one = max(limits) if limits and len(limits) == len(self.cases) else None
        longer = "soak at least eight windows"
        if drifts:
            longer = "soak four times as long, or on a quieter machine"
        answer = nothing_found(
            "case",
            "drifts",
            in_all,
            ACT_ON_ALL,
            longer,
            what="drift",
            of=" in all cases" if len(self.cases) > 1 else "",
            scope=f"in {self.duration}",
        )
        if in_one is None or in_one > ACT_ON_CASE:
            answer = replace(answer, level="doubt", next_step=longer)
        if in_one is not None and len(self.cases) > 1:
            detail = f"a drift of one case from {format_quantity(in_one, '%')} on"
            answer = replace(answer, details=(detail,))
        return answer


def soaked(run: Run) -> Soaked | None:
    """None without --soak."""
    windows = run.windows
    if not windows:
        return None
    faults = [str(e.get("message")) for e in run.events if e.get("kind") == "soak"]
    order = dict.fromkeys(soaked_case.case for window in windows for soaked_case in window.cases)
    return Soaked(
        windows[-1].last_round - windows[0].first_round + 1,
        len(windows),
        (windows[-1].end_wall_us - windows[0].start_wall_us) / 1e6,
        tuple(_case(case, windows) for case in order),
        tuple(faults),
        sum(window.checked for window in windows),
        sum(window.faults for window in windows),
        sum(window.calls for window in windows),
    )


def _case(case: Case, windows: Sequence[SoakWindow]) -> SoakedCase:
    measured = [(window, c) for window in windows for c in window.cases if c.case == case]
    medians = tuple(soaked_case.median_ns for _, soaked_case in measured)
    bins = Counter[int]()
    for _, soaked_case in measured:
        bins.update({int(name): calls for name, calls in soaked_case.bins.items()})
    worst = medians.index(max(medians))
    most = max(soaked_case.max_ns for _, soaked_case in measured)
    calls = sum(soaked_case.calls for _, soaked_case in measured)
    return SoakedCase(
        case,
        calls,
        medians,
        min(_quantile(bins, 0.99), most),
        most,
        drift_of(medians),
        worst,
        measured[worst][0].start_wall_us,
    )


def _quantile(bins: Counter[int], share: float) -> float:
    """The upper end of the bin that holds it, in ns: at most 9 % above."""
    wanted, seen = math.ceil(share * sum(bins.values())), 0
    for number, calls in sorted(bins.items()):
        seen += calls
        if seen >= wanted:
            return float(2 ** ((number + 1) / 8))
    return 0.0
