"""The first sentence of a comparison, and its speed-ups and figures as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torchcoll.core import units
from torchcoll.core.answer import CANNOT_TELL, Answer, format_quantity, nothing_found
from torchcoll.core.units import counted, format_factor, format_percent
from torchcoll.questions.comparison.results import (
    FAR_SLOWER,
    NO_BOUND,
    NOTABLE,
    Compared,
    Judged,
    speed_interval,
    targets_of,
)
from torchcoll.stats.needed import MOST_ADVISED, Target, runs_needed
from torchcoll.stats.power import ACT_ON_ALL, ACT_ON_CASE
from torchcoll.stats.ratios import LEVEL
from torchcoll.stats.statistics import FEWEST

if TYPE_CHECKING:
    from torchcoll.questions.comparison.compare import Comparison

MOST_NAMED = 3  # cases in the sentence
QUIETER = "measure on a quieter machine (torchcoll doctor names what is busy)"
# From this share of all cases on, one factor says more than the names of the cases that changed.
_MOST_CHANGED = 2 / 3
CHANGED = ("slower", "faster")
_LARGEST = 10.0  # a share: of a larger one nothing is said but that any may be hidden

Items = Sequence[Compared]


def change_text(speed: float) -> str:
    """``4.6x faster`` or ``1.06x slower``."""
    return f"{format_factor(max(speed, 1 / speed))} {'faster' if speed >= 1 else 'slower'}"


def figure_cell(value: float | None, metric: str) -> str:
    """A time or a bandwidth."""
    return units.format_time(value) if metric == "time" else units.format_bandwidth(value)


def speed_cell(speed: float | None) -> str:
    """A speed-up as a number: ``13.1``, ``2.14``, ``0.987``, ``0.0114``; ``-`` for None."""
    if speed is None:
        return "-"
    if speed < 0.1:  # three digits: 0.006 may be 0.0055 or 0.0065
        return f"{speed:.{2 - math.floor(math.log10(speed))}f}"
    return f"{speed:.{1 if speed >= 9.995 else 2 if speed >= 1.9995 else 3}f}"


def least_text(judged: Judged) -> str:
    """``at least 1.19x``. The estimate itself is too large on average: it was chosen because it
    differs.
    """
    if judged.least is None:
        return NO_BOUND
    factor = max(judged.least, 1 / judged.least)
    # The digits of ``format_factor``; a lower bound is never rounded up.
    digits = 0 if factor >= 9.95 else 1 if factor >= 1.995 else 2 if factor > 1.0095 else 3
    return f"at least {format_factor(math.floor(factor * 10**digits) / 10**digits)}"


def _possible(interval: tuple[float, float] | None) -> float:
    """The largest difference that an interval leaves possible, as a share."""
    return max(max(end, 1 / end) for end in interval) - 1 if interval else math.inf


def hidden_slowdown(comparison: Comparison, asked: float = 0.0) -> str:
    """``3 cases may be 1.50x slower or more (1K, 4K, 16K)``: what may be hidden in the inconclusive
    cases and is more than a user acts on, or than is asked for; '' if nothing.
    """
    undecided = [item for item in comparison.rows if item.result == "inconclusive"]
    least = 1 + max(ACT_ON_CASE, asked)
    hidden = [item for item in undecided if not item.interval or item.interval[0] < 1 / least]
    if hidden:
        text = f"{counted(len(hidden), 'case')} may be {format_factor(least)} slower or more"
        names = [name for item in hidden if (name := comparison.name_of(item))]
        return f"{text} ({units.shorten(names, MOST_NAMED)})" if names else text
    over_all = speed_interval(comparison.over_all, comparison.more_is_faster)
    if undecided and over_all and (slower := 1 / over_all[0] - 1) > max(ACT_ON_ALL, asked):
        return f"all cases together may be {format_quantity(slower, '%')} slower"
    return ""


def judged_sentence(comparison: Comparison, ratios: Items, others: bool = False) -> str:
    """Who is faster, by how much, over what, and in how many cases.

    others: the sentence before was about further cases.
    """
    if others:
        if all(item.result == "same" for item in ratios):
            limit = format_percent(comparison.threshold)
            which = units.plural(len(ratios), "case is", "cases are")
            return f"the other {which} the same within {limit}{metric_words(comparison)}"
        of = "of " if len(ratios) > 1 else ""
        return f"{of}{_the_others(ratios)}: {judged_sentence(comparison, ratios)}"
    base, new = comparison.side_names
    results = [item.result for item in ratios]
    changed = [result for result in CHANGED if result in results]
    what = metric_words(comparison)
    count = len(ratios)
    if not changed:  # nor inconclusive: see undecided_answer
        limit = format_percent(comparison.threshold)
        name = comparison.name_of(ratios[0]) or "the one case"
        every = f"{name} is" if count == 1 else f"all {count} cases are"
        return f"{new} is as fast as {base}{what}: {every} the same within {limit}"
    if count == 1:
        (item,) = ratios
        name = comparison.name_of(item)  # a barrier has no size
        where = ", ".join(filter(None, [name, least_text(item.judged)]))
        return f"{new} is {change_text(item.speed)} than {base}{what} ({where}{_runs_text(ratios)})"
    speeds = sorted(item.speed for item in ratios)
    mean = math.exp(sum(map(math.log, speeds)) / count)
    most = len(changed) == 1 and results.count(changed[0]) >= _MOST_CHANGED * count
    # Inconclusive cases may pull the mean to the other side of 1: then it is no summary.
    if most and (mean > 1) == (changed[0] == "faster"):
        ends = speeds if mean >= 1 else [1 / speed for speed in reversed(speeds)]
        low, high = (
            format_factor(end) if end >= 1 else change_text(1 / end if mean < 1 else end)
            for end in (ends[0], ends[-1])
        )
        text = f"{new} is {change_text(mean)} than {base}{what}"
        text += f" (geometric mean of {count} cases, from {low} to {high}{_runs_text(ratios)})"
        every = "all " if results.count(changed[0]) == count else ""
        counts = [
            f"{every}{results.count(changed[0])} {changed[0]}",
            *_unchanged(comparison, ratios),
        ]
        return "; ".join([text, ", ".join(counts), *_looks(comparison, ratios)])
    texts: list[str] = []
    for result in changed:
        of_result = [item for item in ratios if item.result == result]
        named = [
            f"{comparison.name_of(item)} {format_factor(item.factor)} ({least_text(item.judged)})"
            for item in sorted(of_result, key=lambda item: -abs(math.log(item.speed)))
        ]
        begin = f"{new} is {result} than {base}{what} in {len(named)} of {counted(count, 'case')}"
        begin = f"{result} in {len(named)}" if texts else begin
        texts.append(f"{begin}: {units.shorten(named, MOST_NAMED, ', ...')}")
    texts += [*_looks(comparison, ratios), ", ".join(_unchanged(comparison, ratios))]
    return "; ".join(filter(None, texts))


def _looks(comparison: Comparison, ratios: Items) -> list[str]:
    """``looks slower in 2, not decided: 1K 62x, 4K 3.1x``: the notable cases of each direction."""
    texts = []
    for direction in CHANGED:
        notable = [
            item
            for item in ratios
            if item.is_notable and (item.speed < 1) == (direction == "slower")
        ]
        notable.sort(key=lambda item: -item.factor)
        named = [f"{comparison.name_of(i)} {format_factor(i.factor)}".strip() for i in notable]
        if named:
            shown = units.shorten(named, max(MOST_NAMED, _most_far(notable)), ", ...")
            texts.append(f"looks {direction} in {len(notable)}, not decided: {shown}")
    return texts


def _the_others(items: Items) -> str:
    return "the other case" if len(items) == 1 else f"the other {len(items)} cases"


def metric_words(comparison: Comparison) -> str:
    """The figures that were compared, where they are not times."""
    return "" if comparison.metric == "time" else f" in {comparison.metric}"


def _runs_text(ratios: Items) -> str:
    counts = {(len(item.judged.base), len(item.judged.new)) for item in ratios}
    if len(counts) > 1:
        return ""
    (base, new) = counts.pop()
    return f", {counted(base, 'run')} each" if base == new else f", {base} and {new} runs"


def _unchanged(comparison: Comparison, ratios: Items) -> list[str]:
    """``["31 the same", "1 inconclusive (broadcast 16M)"]``: few are named. Those that ``_looks``
    names are not counted again.
    """
    texts = []
    others = [item for item in ratios if not item.is_notable]
    more = "" if len(others) == len(ratios) else "more "
    for result, text in (("same", "the same"), ("inconclusive", f"{more}inconclusive")):
        names = [comparison.name_of(item) for item in others if item.result == result]
        named = f" ({', '.join(names)})" if any(names) and len(names) <= MOST_NAMED else ""
        if names:
            texts.append(f"{len(names)} {text}{named}")
    return texts


def undecided_answer(comparison: Comparison, ratios: Items, others: bool = False) -> Answer:
    """The answer where no case is shown to differ, and some are inconclusive: a difference that a
    user acts on would have been found, or it cannot be told.

    others: the sentence before was about further cases.
    """
    base, new = comparison.side_names
    undecided = [item for item in ratios if item.result == "inconclusive"]
    same = len(ratios) - len(undecided)
    limit = format_percent(comparison.threshold)
    details: list[str] = []
    if same:
        details = [f"{same} of {counted(len(ratios), 'case')} are the same within {limit}"]
    than = f"than {base}{metric_words(comparison)}"
    where = f" in {_the_others(ratios)}" if others else ""
    next_step = _step_to_decide(comparison, undecided)
    possible, act_from = max(_possible(item.interval) for item in undecided), ACT_ON_CASE
    least = 1 + comparison.threshold if possible > act_from else NOTABLE
    slower, faster = (_named(comparison, undecided, each, least) for each in CHANGED)
    if slower or faster:
        if slower and faster:
            details.insert(0, f"{faster[0]}, not decided either")
        names = slower or faster
        shown = units.shorten(names, max(MOST_NAMED, _most_far(undecided)), ", ...")
        return Answer(
            new,
            "doubt",
            worst=tuple(names),
            details=tuple(details),
            verb=f"is {'slower' if slower else 'faster'} {than}{where}",
            scope=f": {shown}, but {_varying_text(undecided[0].judged)}",
            certainty=CANNOT_TELL,
            next_step=next_step,
            detectable=possible if math.isfinite(possible) else None,
        )
    what = "difference in one case" if len(ratios) > 1 else "difference"
    over_all = speed_interval(comparison.over_all, comparison.more_is_faster)
    if over_all and possible <= act_from:
        mean, over = _possible(over_all), f"over all {len(ratios)} cases"
        if mean > ACT_ON_ALL:
            possible, act_from, what = mean, ACT_ON_ALL, f"difference {over}"
        else:
            details.append(f"{over} one of {format_quantity(mean, '%')} would have been")
    answer = nothing_found(
        f"difference above {limit}",
        f"was found between {base} and {new}{metric_words(comparison)}{where}",
        possible if possible < _LARGEST else None,
        act_from,
        next_step,
        what=what,
        details=tuple(details),
    )
    if answer.certainty == CANNOT_TELL:
        return replace(answer, subject=new, verb=f"is slower {than}{where}")
    return answer


def _named(comparison: Comparison, undecided: Items, direction: str, least: float) -> list[str]:
    """``1M 3.6x slower``: the cases that look at least so much changed in a direction, the furthest
    first.
    """
    changed = [item for item in undecided if (item.speed < 1) == (direction == "slower")]
    changed = [item for item in changed if item.factor >= least]
    changed.sort(key=lambda item: -item.factor)
    return [f"{comparison.name_of(item)} {change_text(item.speed)}".strip() for item in changed]


def _most_far(undecided: Items) -> int:
    """How many cases look so much slower that none of them may be left out."""
    return sum(item.speed <= 1 / FAR_SLOWER for item in undecided)


def _varying_text(judged: Judged) -> str:
    base, new = len(judged.base), len(judged.new)
    runs = f"{counted(base, 'run')} of each" if base == new else f"{base} and {new} runs"
    return f"only {runs}" if min(base, new) < FEWEST else f"{runs} vary too much"


def _step_to_decide(comparison: Comparison, undecided: Items) -> str:
    """The cheapest thing that would show whether a case is ACT_ON_CASE slower, or, if each case is
    known well enough, all of them ACT_ON_ALL.
    """
    targets = targets_of(comparison.judged, comparison.threshold)
    by_case = dict(zip(map(id, comparison.judged), targets, strict=True))
    runs: list[int | None] = [2]
    for item in undecided:
        ratio = item.judged.ratio
        if ratio and ratio.spread and _possible(item.interval) > ACT_ON_CASE:
            effect = max(math.log(item.factor), math.log1p(ACT_ON_CASE))
            what = by_case[id(item.judged)]
            runs.append(runs_needed(what, ratio.design, effect, ratio.spread))
    together = len(runs) == 1
    if (over_all := comparison.over_all) and over_all.spread and together:
        effect = math.log1p(ACT_ON_ALL)
        runs.append(runs_needed(Target(0.0, LEVEL), over_all.design, effect, over_all.spread))
    there = min((len(item.judged.base) for item in undecided), default=0)
    most = max((number or MOST_ADVISED + 1 for number in runs), default=0)
    if comparison.one_after_the_other:
        return "alternate the runs of both sides, as torchcoll versus does"
    if most > MOST_ADVISED:
        many = sum(not number or number > MOST_ADVISED for number in runs)
        which = "all cases together" if together else f"{many} of {counted(len(undecided), 'case')}"
        return f"{QUIETER}: more than {MOST_ADVISED} runs of each side are needed for {which}"
    return f"make {max(most, there + 1)} runs of each side"
