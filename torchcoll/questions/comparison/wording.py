"""The first sentence of a comparison, and its speed-ups, sizes and figures as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from torchcoll.core import units
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_factor, format_percent
from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.comparison.results import NO_BOUND, Compared, Judged, resolution_text
from torchcoll.stats.sides import Side

if TYPE_CHECKING:
    from torchcoll.questions.comparison.fits import Fitted

_MOST_NAMED = 3  # cases in the sentence
NOTABLE = 1.5  # a factor that is named, whether or not it is evidence
_LONGEST_NAME = 40
# From this share of all cases on, one factor says more than the names of the cases that changed.
_MOST_CHANGED = 2 / 3
# Values of ``buffer_reuse``. In a table of comparisons `same` alone would read as a result.
BUFFER_REUSE_TEXTS = {
    "same": "reused buffers",
    "rotate": "rotating buffers",
    "flush": "flushed caches",
}


def side_names(comparison: Comparison) -> tuple[str, str]:
    """What the sides are called in sentences and heads: ``gloo`` of ``backend:gloo``.

    Sides without names are called after their files or folders if these differ.
    """
    if comparison.names:
        return comparison.names
    sides = (comparison.base, comparison.new)
    names = [one_line(side.only[1] if side.only else side.name) for side in sides]
    files = [_file_name(side) for side in (comparison.base, comparison.new)]
    if names == ["base", "new"] and all(files) and files[0] != files[1]:
        names = files
    if names[0] == names[1]:
        names = [one_line(side.name) for side in (comparison.base, comparison.new)]
    return names[0], names[1]


def _file_name(side: Side) -> str:
    name = one_line(PurePath(side.where).name.removesuffix(".gz").removesuffix(".jsonl"))
    return "" if len(name) > _LONGEST_NAME or set(name) & set("*?[") else name


def speed_up(ratio: float, more_is_faster: bool) -> float:
    """How many times as fast the new side is, from new / base of the metric."""
    return ratio if more_is_faster else 1 / ratio


def change_text(speed: float) -> str:
    """``4.6x faster`` or ``1.06x slower``."""
    return f"{format_factor(max(speed, 1 / speed))} {'faster' if speed >= 1 else 'slower'}"


def size_cell(row: Compared) -> str:
    """The size of a case; ``-`` for a barrier."""
    has_data = COLLECTIVES[row.row.collective].has_data
    return units.format_size(row.pair.size_bytes) if has_data else "-"


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


def least_text(judged: Judged, more_is_faster: bool) -> str:
    """``at least 1.19x``. The estimate itself is too large on average: it was chosen because it
    differs.
    """
    if judged.least is None:
        return NO_BOUND
    least = speed_up(judged.least, more_is_faster)
    return f"at least {format_factor(rounded_down(max(least, 1 / least)))}"


def rounded_down(factor: float) -> float:
    """A lower bound with the digits of ``format_factor``, never rounded up."""
    digits = 0 if factor >= 9.95 else 1 if factor >= 1.995 else 2 if factor > 1.0095 else 3
    return float(math.floor(factor * 10**digits) / 10**digits)


def is_notable(comparison: Comparison, item: Compared | Fitted) -> bool:
    """Whether an undecided case looks so much slower or faster that it is named."""
    if item.judged.result != "inconclusive" or not item.judged.ratio:
        return False
    speed = speed_of(comparison, item)
    return max(speed, 1 / speed) >= NOTABLE


def most_possible(comparison: Comparison, items: Sequence[Compared | Fitted]) -> float:
    """The largest factor that the 95 % intervals of undecided cases leave possible."""
    undecided = [item for item in items if item.judged.result == "inconclusive"]
    ends = [end for item in undecided for end in speed_interval(comparison, item) or ()]
    return max((max(end, 1 / end) for end in ends), default=math.inf)


def judged_sentence(
    comparison: Comparison,
    ratios: Sequence[Compared | Fitted],
    names: Sequence[str],
    others: bool = False,
) -> str:
    """Who is faster, by how much, over what, and in how many cases.

    names: of the cases. others: the sentence before was about further cases.
    """
    if others:
        if all(item.judged.result == "same" for item in ratios):
            limit = format_percent(comparison.threshold)
            which = units.plural(len(ratios), "case is", "cases are")
            return f"the other {which} the same within {limit}{metric_words(comparison)}"
        sentence = judged_sentence(comparison, ratios, names)
        return f"of the other {counted(len(ratios), 'case')}: {sentence}"
    base, new = side_names(comparison)
    results = [item.judged.result for item in ratios]
    changed = [result for result in ("slower", "faster") if result in results]
    what = metric_words(comparison)
    count = len(ratios)
    if not changed:
        return _no_difference(comparison, ratios, names)
    if count == 1:
        (item,) = ratios
        bound = least_text(item.judged, comparison.more_is_faster)
        runs = _runs_text(ratios)
        where = ", ".join(filter(None, [names[0], bound]))  # a barrier has no size
        change = change_text(speed_of(comparison, item))
        return f"{new} is {change} than {base}{what} ({where}{runs})"
    speeds = sorted(speed_of(comparison, item) for item in ratios)
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
        more = [_counts(results, ratios, names, (changed[0],)), *_looks(comparison, ratios, names)]
        return "; ".join([text, *more])
    texts = []
    for number, result in enumerate(changed):
        places = sorted(
            (place for place, each in enumerate(results) if each == result),
            key=lambda place: -abs(math.log(speed_of(comparison, ratios[place]))),
        )
        named = [
            f"{names[place]} {format_factor(max(s := speed_of(comparison, ratios[place]), 1 / s))} "
            f"({least_text(ratios[place].judged, comparison.more_is_faster)})"
            for place in places
        ]
        begin = f"{result} in {len(places)}"
        if not number:
            begin = f"{new} is {result} than {base}{what} in {len(places)} of "
            begin += counted(count, "case")
        texts.append(f"{begin}: {units.shorten(named, _MOST_NAMED, ', ...')}")
    texts += [*_looks(comparison, ratios, names), _counts(results, ratios, names, ())]
    return "; ".join(filter(None, texts))


def _looks(
    comparison: Comparison, ratios: Sequence[Compared | Fitted], names: Sequence[str]
) -> list[str]:
    """``looks slower in 2, not decided: 1K 62x, 4K 3.1x``: the notable cases of each direction."""
    texts = []
    for direction in ("slower", "faster"):
        notable = [
            (max(speed, 1 / speed), name)
            for item, name in zip(ratios, names, strict=True)
            if is_notable(comparison, item)
            and ((speed := speed_of(comparison, item)) < 1) == (direction == "slower")
        ]
        notable.sort(key=lambda each: -each[0])
        named = [f"{name} {format_factor(factor)}".strip() for factor, name in notable]
        if named:
            shown = units.shorten(named, _MOST_NAMED, ", ...")
            texts.append(f"looks {direction} in {len(notable)}, not decided: {shown}")
    return texts


def metric_words(comparison: Comparison) -> str:
    """The figures that were compared, where they are not times."""
    if comparison.fitted:
        return " in latency or bandwidth"
    return "" if comparison.metric == "time" else f" in {comparison.metric}"


def rises(comparison: Comparison, item: Compared | Fitted) -> bool:
    """Whether a larger figure is a faster one: of a bandwidth, not of a time or a latency."""
    figure = getattr(item, "figure", "")
    return figure == "bandwidth" if figure else comparison.more_is_faster


def speed_of(comparison: Comparison, item: Compared | Fitted) -> float:
    """How many times as fast the new side is in this case."""
    assert item.judged.ratio is not None
    return speed_up(item.judged.ratio.ratio, rises(comparison, item))


def speed_interval(comparison: Comparison, item: Compared | Fitted) -> tuple[float, float] | None:
    """The 95 % interval of ``speed_of``; None where the ratio has none."""
    ratio = item.judged.ratio
    if ratio is None or ratio.low is None or ratio.high is None:
        return None
    return (ratio.low, ratio.high) if rises(comparison, item) else (1 / ratio.high, 1 / ratio.low)


def _runs_text(ratios: Sequence[Compared | Fitted]) -> str:
    counts = {(len(item.judged.base), len(item.judged.new)) for item in ratios}
    if len(counts) > 1:
        return ""
    (base, new) = counts.pop()
    return f", {counted(base, 'run')} each" if base == new else f", {base} and {new} runs"


def _counts(
    results: Sequence[str],
    ratios: Sequence[Compared | Fitted],
    names: Sequence[str],
    first: Sequence[str],
) -> str:
    """``31 faster, 1 inconclusive (broadcast 16M)``: the fewest are named."""
    texts = []
    for result in first:
        every = "all " if results.count(result) == len(results) > 1 else ""
        texts.append(f"{every}{results.count(result)} {result}")
    for result, text in (("same", "the same"), ("inconclusive", "inconclusive")):
        of_result = [name for name, each in zip(names, results, strict=True) if each == result]
        named = f" ({', '.join(of_result)})" if any(of_result) else ""
        if of_result:
            texts.append(f"{len(of_result)} {text}{named if len(of_result) <= _MOST_NAMED else ''}")
    return ", ".join(texts)


def _no_difference(
    comparison: Comparison, ratios: Sequence[Compared | Fitted], names: Sequence[str]
) -> str:
    base, new = side_names(comparison)
    results = [item.judged.result for item in ratios]
    limit = format_percent(comparison.threshold)
    what = metric_words(comparison)
    if "inconclusive" not in results:
        every = f"all {len(results)} cases are"
        if len(results) == 1:
            every = f"{names[0] or 'the one case'} is"
        return f"{new} is as fast as {base}{what}: {every} the same within {limit}"
    possible = most_possible(comparison, ratios)
    runs = _runs_text(ratios).removeprefix(", ")
    looks = _looks(comparison, ratios, names)
    if looks and len(results) == 1:
        decided = f"not decided after {runs}" if runs else "not decided"
        name = f"{names[0]}: " if names[0] else ""
        change = change_text(speed_of(comparison, ratios[0]))
        return f"{name}{new} looks {change} than {base}{what}, {decided}"
    notes = [runs]
    if looks:
        text = f"{new} {'; '.join(looks)} (compared with {base}{what})"
    elif possible >= NOTABLE:
        text = f"cannot tell whether {new} is as fast as {base}{what}"
    else:
        text = f"No difference found between {base} and {new}{what}"
    if not looks and math.isfinite(possible):
        notes.append(f"differences up to {format_factor(possible)} are not excluded")
    same = results.count("same")
    if same:
        text += f": {same} of {counted(len(results), 'case')} are the same within {limit}, "
        text += f"{results.count('inconclusive')} inconclusive"
    else:
        every = "the one case is" if len(results) == 1 else f"all {len(results)} cases are"
        text += f": {every} inconclusive"
    least = max((item.judged.resolution or 0.0 for item in ratios), default=0.0)
    notes += [resolution_text(least)] if least > comparison.threshold else []
    aside = "; ".join(filter(None, notes))
    return f"{text} ({aside})" if aside else text
