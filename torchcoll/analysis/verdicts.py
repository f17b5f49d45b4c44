"""From launches to a verdict on each case: start at unclear, and move only on evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchcoll.analysis.linear import Figures, Outlier, plain_ratio, side_ratio
from torchcoll.analysis.needed import MOST_LAUNCHES, asked, launches_range
from torchcoll.analysis.stats import LEVEL, Ratio, holm, least_mann_whitney, mann_whitney
from torchcoll.core.units import counted, format_ratio

VERDICTS = ("faster", "slower", "same", "unclear", "incomparable")
NEEDS = (
    "needs: launches a side, alternating, that settle it 9 times in 10; so many with 80 %, as far "
    "as the launches tell"
)
NO_STARTS = "start times are not known of all launches: a drift would look like a difference"
ONE_AFTER_THE_OTHER = "measured one after the other: a step between the sides would look the same"


@dataclass(frozen=True)
class Judged:
    """What is known of one pair of sets of launches. ``p_value`` is Holm's, over the comparison."""

    base: tuple[float, ...]
    new: tuple[float, ...]
    verdict: str
    reason: str
    ratio: Ratio | None = None
    p_value: float | None = None
    mann_whitney: float | None = None  # adjusted alike; None where the order is in the way
    interleaved: bool = True  # False: one side was measured before the other
    needed: tuple[int | None, int | None] | None = None  # launches a side; None: over MOST_LAUNCHES

    @property
    def settled(self) -> bool:
        """True where the reason is already known, before the test."""
        return self.ratio is None or self.ratio.p_value is None


def measure(figures: Figures, single: str = "", share: float | None = None) -> Judged:
    """The ratio of one case, one figure a launch; ``single``: what one launch is, if not that.
    share: of the noise, as ``side_ratio`` has it.
    """
    base, new = figures.of(0), figures.of(1)
    ratio = side_ratio(figures, share)
    found = Judged(base, new, "unclear", "", ratio, interleaved=figures.interleaved)
    if min(len(base), len(new)) == 1:
        where = "a side" if len(base) == len(new) else "in base" if len(base) == 1 else "in new"
        return replace(found, reason=f"{single}1 launch {where}")
    if ratio.p_value is None:
        return replace(found, reason="the launches of each side are equal: no spread to judge by")
    return found


def ratio_alone(figures: Figures, reason: str) -> Judged:
    """A ratio that is never evidence, however many launches there are."""
    return Judged(figures.of(0), figures.of(1), "unclear", reason, plain_ratio(figures))


def incomparable(base: Sequence[float], new: Sequence[float], reason: str) -> Judged:
    return Judged(tuple(base), tuple(new), "incomparable", reason)


def judge(cases: Sequence[Judged], threshold: float, more_is_faster: bool) -> list[Judged]:
    """The verdict of each case among all cases of the comparison, and what it would take."""
    judged = decide(cases, threshold, more_is_faster)
    tested = [i for i, case in enumerate(judged) if not case.settled]
    found = sum((judged[i].p_value or 0.0) < LEVEL for i in tested)
    what = asked(threshold, len(tested), found)
    for i in tested:
        if judged[i].verdict != "unclear":
            continue
        case, ratio = judged[i], judged[i].ratio
        assert ratio is not None
        # What is significant by itself does not need to take its turn again.
        own = asked(threshold, len(tested), found - 1) if (case.p_value or 0) < LEVEL else what
        needed = launches_range(own, ratio, max(len(case.base), len(case.new)))
        text = f"{case.reason}, {_needs_text(needed, threshold)}"
        judged[i] = replace(case, needed=needed, reason=text)
    if all(judged[i].interleaved for i in tested):  # else a drift would be confirmed
        ranks = holm([mann_whitney(judged[i].base, judged[i].new) for i in tested])
        for i, p in zip(tested, ranks, strict=True):
            judged[i] = replace(judged[i], mann_whitney=p)
    return judged


def decide(cases: Sequence[Judged], threshold: float, more_is_faster: bool) -> list[Judged]:
    """The verdicts alone."""
    tested = [i for i, case in enumerate(cases) if not case.settled]
    adjusted = holm([case.ratio.p_value or 0.0 for i in tested if (case := cases[i]).ratio])
    judged = list(cases)
    for i, p in zip(tested, adjusted, strict=True):
        judged[i] = _verdict(replace(cases[i], p_value=p), threshold, more_is_faster)
    return judged


def _needs_text(needed: tuple[int | None, int | None], threshold: float) -> str:
    low, high = needed
    if low is None:
        return f"too near {percent(threshold)} to settle"
    if high is None:
        return f"needs {low} to over {MOST_LAUNCHES} launches"
    return f"needs {low} launches" if low == high else f"needs {low} to {high} launches"


def beyond(ratio: Ratio, threshold: float) -> bool:
    """True where the estimate differs by more than the threshold, up or down alike."""
    return abs(math.log(ratio.ratio)) > math.log1p(threshold)


def _verdict(case: Judged, threshold: float, more_is_faster: bool) -> Judged:
    ratio, p = case.ratio, case.p_value
    assert ratio is not None and p is not None
    assert ratio.low_90 is not None and ratio.high_90 is not None
    significant, limit = p < LEVEL, 1 + threshold
    if significant and beyond(ratio, threshold):
        faster = (ratio.ratio > 1) == more_is_faster
        return replace(case, verdict="faster" if faster else "slower", reason=p_text(p))
    # Two one-sided tests (D. J. Schuirmann, J. Pharmacokinetics Biopharmaceutics 15 (1987) 657).
    if 1 / limit < ratio.low_90 and ratio.high_90 < limit:
        return replace(case, verdict="same", reason=f"90 % within {percent(threshold)}")
    return replace(case, reason=p_text(p))


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
    ordered = any(case.ratio and case.p_value is not None and case.ratio.design.in_order
                  for case in cases)  # fmt: skip
    model = "side + launch number by start time" if ordered else "side"
    return [f"p: t of the side in log figure ~ {model}, {what}; below 0.05 counts"]


def outlier_text(name: str, one: Outlier) -> str:
    """A launch that is left out, and why."""
    return (
        f"left out of all cases: {name}, {format_ratio(one.factor)} times what the other launches "
        f"give (median over the cases; deleted residual {abs(one.t):.1f}, limit {one.limit:.1f})"
    )


def p_text(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p {p:.2g}" if p < 0.995 else "p 1"


def percent(share: float) -> str:
    return f"{100 * share:g} %"
