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
from torchcoll.questions.comparison.scope import scope_text, sizes_text
from torchcoll.stats.needed import MOST_ADVISED, Target, runs_needed
from torchcoll.stats.power import ACT_ON_ALL, ACT_ON_CASE
from torchcoll.stats.ratios import LEVEL
from torchcoll.stats.statistics import FEWEST

if TYPE_CHECKING:
    from torchcoll.questions.comparison.compare import Comparison

MOST_NAMED = 3  # cases in the sentence
QUIETER = "measure on a quieter machine (torchcoll doctor names what is busy)"
# From this share of all cases on, one factor says more than the names of the cases that changed.
MOST_CHANGED = 2 / 3
CHANGED = ("slower", "faster")
_FAR = 0.1  # an undecided case is named if it may differ by so much
_NARROW = 1.1  # factors whose ends are closer have no mean
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
    """Who is faster, by how much, over what, and how close the rest is.

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
    changed = {result: [i for i in ratios if i.result == result] for result in CHANGED}
    if not any(changed.values()):  # nor inconclusive: see undecided_answer
        limit = format_percent(comparison.threshold)
        name = comparison.name_of(ratios[0]) or "the one case"
        every = f"{name} is" if len(ratios) == 1 else f"all {len(ratios)} cases are"
        what = metric_words(comparison)
        return f"{new} is as fast as {base}{what}: {every} the same within {limit}"
    return "; ".join(changes_texts(comparison, ratios, changed))


def changes_texts(
    comparison: Comparison, ratios: Items, changed: dict[str, list[Compared]], verb: str = "is"
) -> list[str]:
    """A clause for each direction of ``changed``, in its order, and one or two for the rest."""
    base, new = comparison.side_names
    texts: list[str] = []
    rest = [item for item in ratios if not any(item in items for items in changed.values())]
    for direction, unsorted in changed.items():
        if not unsorted:
            continue
        items = sorted(unsorted, key=lambda item: -item.factor)
        than = f"than {base}{metric_words(comparison)}"
        where = scope_text(items, ratios)
        alone = len(items) == len(ratios) - len(rest)
        as_mean = not where and len(rest) > 0 and alone and _is_most(items, ratios)
        mean_of = ratios if as_mean else items
        if where or as_mean or not rest:
            size, span = _size_texts(mean_of, direction)
            start = f"{new} {verb} {size} {than}" if not texts else size
            if as_mean:
                span = f"geometric mean of {counted(len(ratios), 'case')}, from {span}"
            bound = "" if as_mean or verb != "is" else _bound_text(items)
            runs = _runs_text(mean_of) if verb == "is" and not texts else ""
            aside = ", ".join(filter(None, (span, bound, runs)))
            texts.append(f"{start} {where}".rstrip() + (f" ({aside})" if aside else ""))
            continue
        named = [f"{comparison.name_of(item)} {format_factor(item.factor)}" for item in items]
        bound = _bound_text(items) if verb == "is" else ""
        if verb == "is" and bound != NO_BOUND:
            named = [f"{n} ({least_text(i.judged)})" for n, i in zip(named, items, strict=True)]
        start = f"{new} {verb} {direction} {than} in {len(items)} of {counted(len(ratios), 'case')}"
        start = f"{direction} in {len(items)}" if texts else start
        at_sizes = sizes_text(*({i.pair.size_bytes for i in each} for each in (items, ratios)))
        start += f", all {at_sizes}" if at_sizes else ""
        start += f" ({NO_BOUND})" if bound == NO_BOUND else ""
        texts.append(f"{start}: {units.shorten(named, MOST_NAMED, ', ...')}")
    named_items = [item for items in changed.values() for item in items]
    return [*texts, *_rest_texts(comparison, rest, named_items)]


def _is_most(items: Items, ratios: Items) -> bool:
    """Whether one factor says more than the names of these cases: all but a few changed alike, and
    no other one looks far off.
    """
    mean = math.fsum(math.log(item.speed) for item in ratios)
    alike = (mean > 0) == (items[0].speed > 1)
    looking = any(item.is_notable and item not in items for item in ratios)
    return alike and not looking and len(items) >= MOST_CHANGED * len(ratios)


def _size_texts(items: Items, direction: str) -> tuple[str, str]:
    """``1.28x to 1.29x slower`` and '', or a mean and ``1.17x to 1.42x``."""
    factors = sorted(item.speed if direction == "faster" else 1 / item.speed for item in items)
    low, high = (
        format_factor(end) if end >= 1 else change_text(1 / end if direction == "slower" else end)
        for end in (factors[0], factors[-1])
    )
    if low == high:
        return f"{low} {direction}", ""
    if len(items) <= MOST_NAMED or (factors[-1] < _NARROW * factors[0] and len(low) == len(high)):
        return f"{low} to {high} {direction}", ""
    mean = math.exp(math.fsum(map(math.log, factors)) / len(factors))
    return f"{format_factor(mean)} {direction}", f"{low} to {high}"


def _bound_text(items: Items) -> str:
    """``at least 1.26x``, the bound of every case; '' if only some cases have one."""
    bounds = [item.judged.least for item in items]
    if all(bound is None for bound in bounds):
        return NO_BOUND
    least = min(items, key=lambda item: abs(math.log(item.judged.least or 1.0)))
    return least_text(least.judged) if None not in bounds else ""


def _rest_texts(comparison: Comparison, rest: Items, named: Items) -> list[str]:
    """``not decided: 1K 62x slower, 4K 3.1x slower`` and ``the other 54 cases are within 3 %``.

    named: the cases that were named before.
    """
    looks = undecided_far(comparison, rest)
    named_looks = named_changes(comparison, looks)
    named_looks.sort(key=lambda each: each[0].speed > 1 / FAR_SLOWER)  # none of those is left out
    most = max(MOST_NAMED, _most_far(looks))
    shown = units.shorten([text for _, text in named_looks], most, ", ...")
    number = f"{len(looks)} cases are " if len(looks) > most else ""
    texts = [f"{number}not decided: {shown}"] if looks else []
    near = [item for item in rest if item not in looks]
    if not near:
        return texts
    limit = limit_text(comparison, near)
    same = "the same " if all(item.result == "same" for item in near) else ""
    name = comparison.name_of(near[0]) if len(near) == 1 else ""
    which = f"{name} is" if name else f"{_the_others(near)} {units.plural(len(near), 'is', 'are')}"
    text = f"{which} {same}within {limit}"
    sizes = {item.pair.size_bytes for item in [*named, *looks]}
    apart = [item for item in near if item.pair.size_bytes not in sizes]
    every = {item.pair.size_bytes for item in [*named, *rest]}
    at_sizes = apart and sizes_text({item.pair.size_bytes for item in apart}, every)
    if at_sizes and limit_text(comparison, apart) != limit:
        text += f", those {at_sizes} within {limit_text(comparison, apart)}"
    return [*texts, text]


def undecided_far(comparison: Comparison, items: Items) -> list[Compared]:
    """The undecided cases that may differ by so much that they are named."""
    far = max(_FAR, comparison.threshold)
    return [
        item
        for item in items
        if item.result == "inconclusive"
        and (item.factor - 1 if item.interval is None else _possible(item.interval)) >= far
    ]


def limit_text(comparison: Comparison, items: Items) -> str:
    """The whole percentage, and at least the threshold, that none of the cases exceeds."""
    percent = math.ceil(round(100 * (max(item.factor for item in items) - 1), 2))
    return format_percent(max(comparison.threshold, percent / 100))


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
    return f"{counted(base, 'run')} each" if base == new else f"{base} and {new} runs"


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
    named = named_changes(comparison, [item for item in undecided if item.factor >= least])
    slower, faster = (
        [text for item, text in named if (item.speed < 1) == is_slower]
        for is_slower in (True, False)
    )
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
    of = " in a case" if len(ratios) > 1 else ""
    over_all = speed_interval(comparison.over_all, comparison.more_is_faster)
    if over_all and possible <= act_from:
        mean, over = _possible(over_all), f" over all {len(ratios)} cases"
        if mean > ACT_ON_ALL:
            possible, act_from, of = mean, ACT_ON_ALL, over
        else:
            of, details = f"{of}, or of {format_quantity(mean, '%')}{over},", []
    answer = nothing_found(
        "difference",
        f"was found between {base} and {new}{metric_words(comparison)}{where}",
        possible if possible < _LARGEST else None,
        act_from,
        next_step,
        what="difference",
        of=of,
        details=tuple(details),
    )
    if answer.certainty == CANNOT_TELL:
        return replace(answer, subject=new, verb=f"is slower {than}{where}")
    return answer


def named_changes(comparison: Comparison, items: Items) -> list[tuple[Compared, str]]:
    """Each case with a text such as ``1M 3.6x slower``, the furthest first."""
    return [
        (item, f"{comparison.name_of(item)} {change_text(item.speed)}".strip())
        for item in sorted(items, key=lambda item: -item.factor)
    ]


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
