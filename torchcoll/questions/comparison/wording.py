"""The first sentence of a comparison, and its speed-ups and figures as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchcoll.core import units
from torchcoll.core.units import counted, format_factor, format_percent
from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.comparison.results import (
    NO_BOUND,
    NOTABLE,
    ComparedPair,
    Judged,
    resolution_text,
)

_MOST_NAMED = 3  # cases in the sentence
# From this share of all cases on, one factor says more than the names of the cases that changed.
_MOST_CHANGED = 2 / 3
# Values of ``buffer_reuse``. In a table of comparisons `same` alone would read as a result.
BUFFER_REUSE_TEXTS = {
    "same": "reused buffers",
    "rotate": "rotating buffers",
    "flush": "flushed caches",
}
CHANGED = ("slower", "faster")

Items = Sequence[ComparedPair]


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
    return f"at least {format_factor(rounded_down(max(judged.least, 1 / judged.least)))}"


def rounded_down(factor: float) -> float:
    """A lower bound with the digits of ``format_factor``, never rounded up."""
    digits = 0 if factor >= 9.95 else 1 if factor >= 1.995 else 2 if factor > 1.0095 else 3
    return float(math.floor(factor * 10**digits) / 10**digits)


def most_possible(items: Items) -> float:
    """The largest factor that the 95 % intervals of undecided cases leave possible."""
    undecided = [item for item in items if item.result == "inconclusive"]
    ends = [end for item in undecided for end in item.interval or ()]
    return max((max(end, 1 / end) for end in ends), default=math.inf)


def judged_sentence(comparison: Comparison, ratios: Items, others: bool = False) -> str:
    """Who is faster, by how much, over what, and in how many cases.

    others: the sentence before was about further cases.
    """
    if others:
        if all(item.result == "same" for item in ratios):
            limit = format_percent(comparison.threshold)
            which = units.plural(len(ratios), "case is", "cases are")
            return f"the other {which} the same within {limit}{metric_words(comparison)}"
        return f"of the other {counted(len(ratios), 'case')}: {judged_sentence(comparison, ratios)}"
    base, new = comparison.side_names
    results = [item.result for item in ratios]
    changed = [result for result in CHANGED if result in results]
    what = metric_words(comparison)
    count = len(ratios)
    if not changed:
        return _no_difference(comparison, ratios)
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
        texts.append(f"{begin}: {units.shorten(named, _MOST_NAMED, ', ...')}")
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
            shown = units.shorten(named, _MOST_NAMED, ", ...")
            texts.append(f"looks {direction} in {len(notable)}, not decided: {shown}")
    return texts


def metric_words(comparison: Comparison) -> str:
    """The figures that were compared, where they are not times."""
    if comparison.fitted:
        return " in latency or bandwidth"
    return "" if comparison.metric == "time" else f" in {comparison.metric}"


def _runs_text(ratios: Items) -> str:
    counts = {(len(item.judged.base), len(item.judged.new)) for item in ratios}
    if len(counts) > 1:
        return ""
    (base, new) = counts.pop()
    return f", {counted(base, 'run')} each" if base == new else f", {base} and {new} runs"


def _unchanged(comparison: Comparison, ratios: Items) -> list[str]:
    """``["31 the same", "1 inconclusive (broadcast 16M)"]``: few are named."""
    texts = []
    for result, text in (("same", "the same"), ("inconclusive", "inconclusive")):
        names = [comparison.name_of(item) for item in ratios if item.result == result]
        named = f" ({', '.join(names)})" if any(names) and len(names) <= _MOST_NAMED else ""
        if names:
            texts.append(f"{len(names)} {text}{named}")
    return texts


def _no_difference(comparison: Comparison, ratios: Items) -> str:
    base, new = comparison.side_names
    results = [item.result for item in ratios]
    limit = format_percent(comparison.threshold)
    what = metric_words(comparison)
    single = len(results) == 1
    name = comparison.name_of(ratios[0])
    if "inconclusive" not in results:
        every = f"{name or 'the one case'} is" if single else f"all {len(results)} cases are"
        return f"{new} is as fast as {base}{what}: {every} the same within {limit}"
    possible = most_possible(ratios)
    runs = _runs_text(ratios).removeprefix(", ")
    looks = _looks(comparison, ratios)
    if looks and single:
        decided = f"not decided after {runs}" if runs else "not decided"
        change = change_text(ratios[0].speed)
        return f"{f'{name}: ' if name else ''}{new} looks {change} than {base}{what}, {decided}"
    notes = [runs]
    if looks:
        text = f"{new} {'; '.join(looks)} (compared with {base}{what})"
    elif possible >= NOTABLE:
        text = f"cannot tell whether {new} is as fast as {base}{what}"
    else:
        text = f"No difference found between {base} and {new}{what}"
    if not looks and math.isfinite(possible):
        notes.append(f"differences up to {format_factor(possible)} are not excluded")
    if same := results.count("same"):
        text += f": {same} of {counted(len(results), 'case')} are the same within {limit}, "
        text += f"{results.count('inconclusive')} inconclusive"
    else:
        text += f": {'the one case is' if single else f'all {len(results)} cases are'} inconclusive"
    least = max((item.judged.resolution or 0.0 for item in ratios), default=0.0)
    notes += [resolution_text(least)] if least > comparison.threshold else []
    aside = "; ".join(filter(None, notes))
    return f"{text} ({aside})" if aside else text
