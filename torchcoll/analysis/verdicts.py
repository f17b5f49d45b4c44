"""From launches to a verdict on each case: start at unclear, and move only on evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchcoll.analysis.stats import (
    LEVEL,
    Ratio,
    holm,
    launches_needed,
    least_mann_whitney,
    mann_whitney,
    welch_ratio,
)
from torchcoll.core.units import counted

VERDICTS = ("faster", "slower", "same", "unclear", "incomparable")
NEEDS = (
    "needs: launches a side that would settle it 9 times in 10, with the ratio and the spread "
    "seen (normal approximation)"
)


@dataclass(frozen=True)
class Judged:
    """What is known of one pair of sets of launches. ``p_value`` is Holm's, over the comparison."""

    base: tuple[float, ...]
    new: tuple[float, ...]
    verdict: str
    reason: str
    ratio: Ratio | None = None
    p_value: float | None = None
    mann_whitney: float | None = None  # adjusted alike

    @property
    def settled(self) -> bool:
        """True where the reason is already known, before the test."""
        return self.ratio is None or self.ratio.p_value is None


def measure(base: Sequence[float], new: Sequence[float], single: str = "") -> Judged:
    """The ratio of one case, one figure a launch; ``single``: what one launch is, if not that."""
    ratio = welch_ratio(base, new)
    found = Judged(tuple(base), tuple(new), "unclear", "", ratio)
    if min(len(base), len(new)) == 1:
        where = "a side" if len(base) == len(new) else "in base" if len(base) == 1 else "in new"
        return replace(found, reason=f"{single}1 launch {where}")
    if ratio.p_value is None:
        return replace(found, reason="the launches of each side are equal: no spread to judge by")
    return found


def ratio_alone(base: Sequence[float], new: Sequence[float], reason: str) -> Judged:
    """A ratio that is never evidence, however many launches there are."""
    ratio = Ratio(welch_ratio(base, new).ratio)
    return Judged(tuple(base), tuple(new), "unclear", reason, ratio)


def incomparable(base: Sequence[float], new: Sequence[float], reason: str) -> Judged:
    return Judged(tuple(base), tuple(new), "incomparable", reason)


def judge(cases: Sequence[Judged], threshold: float, more_is_faster: bool) -> list[Judged]:
    """The verdict of each case among all cases of the comparison."""
    tested = [i for i, case in enumerate(cases) if not case.settled]
    welch = holm([case.ratio.p_value or 0.0 for i in tested if (case := cases[i]).ratio])
    ranks = holm([mann_whitney(cases[i].base, cases[i].new) for i in tested])
    judged = list(cases)
    for place, i in enumerate(tested):
        case = replace(cases[i], p_value=welch[place], mann_whitney=ranks[place])
        judged[i] = _verdict(case, len(tested), threshold, more_is_faster)
    return judged


def beyond(ratio: Ratio, threshold: float) -> bool:
    """True where the estimate differs by more than the threshold, up or down alike."""
    return abs(math.log(ratio.ratio)) > math.log1p(threshold)


def _verdict(case: Judged, tested: int, threshold: float, more_is_faster: bool) -> Judged:
    ratio, p = case.ratio, case.p_value
    assert ratio is not None and ratio.low_90 and ratio.high_90 and p is not None
    significant, limit = p < LEVEL, 1 + threshold
    if significant and beyond(ratio, threshold):
        faster = (ratio.ratio > 1) == more_is_faster
        return replace(case, verdict="faster" if faster else "slower", reason=p_text(p))
    if 1 / limit < ratio.low_90 and ratio.high_90 < limit:
        return replace(case, verdict="same", reason=f"90 % within {percent(threshold)}")
    needed = launches_needed(ratio, tested, threshold)
    now = max(len(case.base), len(case.new))
    if needed is None:
        return replace(case, reason=f"{p_text(p)}, too near {percent(threshold)} to settle")
    return replace(case, reason=f"{p_text(p)}, needs {max(needed, now + 1)} launches")


def mann_whitney_notes(cases: Sequence[Judged]) -> list[str]:
    """What the distribution-free test says beside the verdicts."""
    tested = [case for case in cases if case.mann_whitney is not None]
    notes = []
    for base, new in dict.fromkeys((len(c.base), len(c.new)) for c in tested):
        least = least_mann_whitney(base, new)
        if least * len(tested) >= LEVEL:
            notes.append(
                f"Mann-Whitney cannot confirm: {base} against {new} launches reach p = "
                f"{least:.2g}, and Holm over {counted(len(tested), 'case')} asks for "
                f"{LEVEL / len(tested):.2g}"
            )
    found = [c for c in tested if c.verdict in ("faster", "slower")]
    able = [c for c in found if least_mann_whitney(len(c.base), len(c.new)) * len(tested) < LEVEL]
    confirmed = sum((c.mann_whitney or 0) < LEVEL for c in able)
    if able:
        notes.append(f"Mann-Whitney with Holm confirms {confirmed} of {len(able)} differences")
    return notes


def p_note(cases: Sequence[Judged]) -> list[str]:
    """How p was computed, where any was."""
    tested = sum(case.p_value is not None for case in cases)
    if not tested:
        return []
    what = f"Holm over {tested} cases" if tested > 1 else "one case"
    return [f"p: Welch's t on the logarithms of the launches' figures, {what}; below 0.05 counts"]


def p_text(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p {p:.2g}" if p < 0.995 else "p 1"


def percent(share: float) -> str:
    return f"{100 * share:g} %"
