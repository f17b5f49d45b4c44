"""The sentence that a comparison begins with, and speed-ups as people say them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_percent

if TYPE_CHECKING:
    from torchcoll.comparison.compare import Comparison
    from torchcoll.comparison.fits import Fitted
    from torchcoll.comparison.results import Compared, Judged
    from torchcoll.stats.sides import Side

_MOST_NAMED = 3  # cases in the sentence
_LONGEST_NAME = 40
# From this share of all cases on, one factor says more than the names of the cases that changed.
_MOST_CHANGED = 2 / 3


def side_names(found: Comparison) -> tuple[str, str]:
    """What the sides are called in sentences and heads: ``gloo`` of ``backend:gloo``; of sides
    without a name of their own that of their file or folder, where it tells them apart.
    """
    if found.names:
        return found.names
    names = [one_line(side.only[1] if side.only else side.name) for side in (found.base, found.new)]
    files = [_file_name(side) for side in (found.base, found.new)]
    if names == ["base", "new"] and all(files) and files[0] != files[1]:
        names = files
    if names[0] == names[1]:
        names = [one_line(side.name) for side in (found.base, found.new)]
    return names[0], names[1]


def _file_name(side: Side) -> str:
    name = one_line(PurePath(side.where).name.removesuffix(".gz").removesuffix(".jsonl"))
    return "" if len(name) > _LONGEST_NAME or set(name) & set("*?[") else name


def speed_up(ratio: float, more_is_faster: bool) -> float:
    """How many times as fast the new side is, from new / base of the metric."""
    return ratio if more_is_faster else 1 / ratio


def factor_text(factor: float) -> str:
    """``13x``, ``4.6x``, ``1.06x``, ``1.003x``: enough digits to tell the factor from 1."""
    away = abs(math.log(factor))
    if factor >= 99.5:
        return f"{factor:.3g}x"
    digits = 0 if factor >= 9.95 else 1 if factor >= 1.995 else 2 if away >= 0.0095 else 3
    return f"{factor:.{digits}f}x"


def change_text(speed: float) -> str:
    """``4.6x faster`` or ``1.06x slower``."""
    return f"{factor_text(max(speed, 1 / speed))} {'faster' if speed >= 1 else 'slower'}"


def speed_cell(speed: float | None) -> str:
    """A speed-up as a number: ``13.1``, ``2.14``, ``0.987``, ``0.0114``; ``-`` for None."""
    if speed is None:
        return "-"
    if speed < 0.1:  # three digits: 0.006 may be 0.0055 or 0.0065
        return f"{speed:.{2 - math.floor(math.log10(speed))}f}"
    return f"{speed:.{1 if speed >= 9.995 else 2 if speed >= 1.9995 else 3}f}"


def least_text(judged: Judged, more_is_faster: bool) -> str:
    """``at least 1.19x``: the estimate of a case that was chosen because it differs is too large
    on average.
    """
    from torchcoll.comparison.results import NO_BOUND

    if judged.least is None:
        return NO_BOUND
    least = speed_up(judged.least, more_is_faster)
    return f"at least {factor_text(rounded_down(max(least, 1 / least)))}"


def rounded_down(factor: float) -> float:
    """A bound to as many digits as are shown: rounded up, it would state more than is known."""
    digits = 0 if factor >= 9.95 else 1 if factor >= 1.995 else 2 if factor > 1.0095 else 3
    return float(math.floor(factor * 10**digits) / 10**digits)


def judged_sentence(
    found: Comparison, ratios: Sequence[Compared | Fitted], names: Sequence[str]
) -> str:
    """Who is faster, by how much, over what, and in how many cases; names: of the cases."""
    base, new = side_names(found)
    results = [one.judged.result for one in ratios]
    changed = [result for result in ("slower", "faster") if result in results]
    what = metric_words(found)
    count = len(ratios)
    if not changed:
        return _no_difference(found, results, names)
    if count == 1:
        (one,) = ratios
        bound = least_text(one.judged, found.more_is_faster)
        runs = _runs_text(ratios)
        where = ", ".join(filter(None, [names[0], bound]))  # a barrier has no size
        return f"{new} is {_change(found, one)} than {base}{what} ({where}{runs})"
    speeds = sorted(speed_of(found, one) for one in ratios)
    mean = math.exp(sum(map(math.log, speeds)) / count)
    most = len(changed) == 1 and results.count(changed[0]) >= _MOST_CHANGED * count
    # Inconclusive cases may pull the mean to the other side of 1: then it is no summary.
    if most and (mean > 1) == (changed[0] == "faster"):
        ends = speeds if mean >= 1 else [1 / speed for speed in reversed(speeds)]
        low, high = (
            factor_text(end) if end >= 1 else change_text(1 / end if mean < 1 else end)
            for end in (ends[0], ends[-1])
        )
        text = f"{new} is {change_text(mean)} than {base}{what}"
        text += f" (geometric mean of {count} cases, from {low} to {high}{_runs_text(ratios)})"
        return f"{text}; {_counts(results, ratios, names, (changed[0],))}"
    words = []
    for number, result in enumerate(changed):
        own = sorted(
            (place for place, each in enumerate(results) if each == result),
            key=lambda place: -abs(math.log(speed_of(found, ratios[place]))),
        )
        named = [
            f"{names[place]} {factor_text(max(s := speed_of(found, ratios[place]), 1 / s))} "
            f"({least_text(ratios[place].judged, found.more_is_faster)})"
            for place in own[:_MOST_NAMED]
        ]
        named += ["..."] * (len(own) > _MOST_NAMED)
        where = f"in {len(own)} of {counted(count, 'case')}" if not number else f"in {len(own)}"
        begin = f"{new} is {result} than {base}{what} " if not number else f"{result} "
        words.append(f"{begin}{where}: {', '.join(named)}")
    rest = _counts(results, ratios, names, ())
    return "; ".join([*words, *([rest] if rest else [])])


def metric_words(found: Comparison) -> str:
    """The figures that were compared, where they are not times."""
    if found.fitted:
        return " in latency or bandwidth"
    return "" if found.metric == "time" else f" in {found.metric}"


def _change(found: Comparison, one: Compared | Fitted) -> str:
    return change_text(speed_of(found, one))


def rises(found: Comparison, one: Compared | Fitted) -> bool:
    """Whether a larger figure is a faster one: of a bandwidth, not of a time or a latency."""
    figure = getattr(one, "figure", "")
    return figure == "bandwidth" if figure else found.more_is_faster


def speed_of(found: Comparison, one: Compared | Fitted) -> float:
    """How many times as fast the new side is in this case."""
    assert one.judged.ratio is not None
    return speed_up(one.judged.ratio.ratio, rises(found, one))


def _runs_text(ratios: Sequence[Compared | Fitted]) -> str:
    counts = {(len(one.judged.base), len(one.judged.new)) for one in ratios}
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
    words = [
        f"all {len(results)} {result}" if results.count(result) == len(results) > 1
        else f"{results.count(result)} {result}"
        for result in first
    ]  # fmt: skip
    for result in ("same", "inconclusive"):
        own = [name for name, each in zip(names, results, strict=True) if each == result]
        if own:
            named = f" ({', '.join(own)})" if len(own) <= _MOST_NAMED and any(own) else ""
            words.append(f"{len(own)} {'the same' if result == 'same' else result}{named}")
    return ", ".join(words)


def _no_difference(found: Comparison, results: Sequence[str], names: Sequence[str]) -> str:
    base, new = side_names(found)
    limit = format_percent(found.threshold)
    what = metric_words(found)
    if "inconclusive" not in results:
        every = names[0] or "the one case" if len(results) == 1 else f"all {len(results)} cases"
        return f"{new} is as fast as {base}{what}: {every} the same within {limit}"
    text = f"No difference found between {base} and {new}{what}"
    same = results.count("same")
    inconclusive = results.count("inconclusive")
    if same:
        return f"{text}: {same} of {counted(len(results), 'case')} the same within {limit}, " + (
            f"{inconclusive} inconclusive"
        )
    every = "the one case is" if len(results) == 1 else f"all {len(results)} cases are"
    return f"{text}: {every} inconclusive"
