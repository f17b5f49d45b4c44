"""The answer of a comparison: what changed, or why nothing can be said, with its details."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcoll.core import units
from torchcoll.core.answer import Answer, worst_level
from torchcoll.core.errors import one_line
from torchcoll.questions.comparison import wording
from torchcoll.questions.comparison.across_hardware_show import across_answer, is_across_hardware
from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.comparison.results import ONE_AFTER_THE_OTHER, Compared, beyond
from torchcoll.stats.differences import differences_of, value_text
from torchcoll.stats.distributions import two_sample_p
from torchcoll.stats.matching import NAMES, Pair
from torchcoll.stats.ratios import LEVEL
from torchcoll.stats.side_faults import SideFaults, cut_runs, entries_of, fault_runs, side_faults
from torchcoll.stats.sides import UNSET
from torchcoll.stats.statistics import FEWEST

if TYPE_CHECKING:
    from torchcoll.questions.comparison.fits import Fitted

CHANGED = ("slower", "faster")


def answer_of(comparison: Comparison) -> Answer:
    """Whether the new side may replace the base: its faults, what changed, and the first calls.

    The details name settings that slow one side, a side that was measured without torch, and what
    the order of the runs leaves open.
    """
    base, new = faults_of_sides(comparison)
    answer = _judged_answer(comparison, new)
    across = is_across_hardware(comparison)  # its sentence has the first calls, and what failed
    faults, of_base = ([], []) if across else (new.texts, base.texts)
    first_calls = [] if across else first_calls_notes(comparison)
    notes = [*settings_notes(comparison), *direct_notes(comparison)]
    level = "doubt" if notes else answer.level
    # The base is what the new side was judged by.
    slow_run = any(speed <= 1 / wording.NOTABLE for speed in new.outliers)
    if level == "good" and (slow_run or slower_start(comparison) or base.level == "bad"):
        level = "doubt"
    return dataclasses.replace(
        answer.with_sentence("; ".join([*faults, answer.headline, *of_base])),
        level=worst_level(level, new.level),
        counts=counts_of([comparison]),
        details=(*answer.details, *limit_notes(comparison), *first_calls, *notes),
    )


def counts_of(comparisons: Sequence[Comparison]) -> dict[str, int]:
    """Count the matched cases by result, and the wrong, failed and missing ones of the new side."""
    results = Counter(row.result for each in comparisons for row in each.rows if row.matched)
    return {**results, **entries_of(faults_of_sides(each)[1] for each in comparisons)}


def faults_of_sides(comparison: Comparison) -> tuple[SideFaults, SideFaults]:
    """What of the base and of the new side is in no figure.

    A prediction, and a side on other hardware, lacks no case: nobody asked for the same ones.
    """
    names = dict(zip(map(id, comparison.rows), _names(comparison, comparison.rows), strict=True))
    lacking = not comparison.errors and not is_across_hardware(comparison)
    sides = []
    for number, side in enumerate((comparison.base, comparison.new)):
        cases = []
        missing = []
        for row in comparison.rows:
            name = names[id(row)]
            mine, other = (row.pair.base, row.pair.new)[:: -1 if number else 1]
            cases.append((name, mine))
            has_none = not any(m.row.is_right for m in mine) and not fault_runs(mine)
            if lacking and has_none and any(m.figure and m.row.is_right for m in other):
                missing.append(name or row.row.collective)
        factors = [each.factor for each in comparison.outliers if each.run[0] == number]
        outliers = [wording.speed_up(factor, comparison.more_is_faster) for factor in factors]
        name = wording.side_names(comparison)[number]
        sides.append(side_faults(name, len(side.runs), cases, missing, outliers, cut_runs(side)))
    return sides[0], sides[1]


def limit_notes(comparison: Comparison) -> list[str]:
    """What limits the judgement: the order of the runs, outliers, and modes of starts."""
    notes = [ONE_AFTER_THE_OTHER] if comparison.one_after_the_other else []
    notes += [side.outlier_text for side in faults_of_sides(comparison) if side.outliers]
    if modes := comparison.modes:
        names = wording.side_names(comparison)
        (first, second) = sorted((0, 1), key=lambda side: -modes.slow[side] / modes.runs[side])
        notes.append(
            f"{names[first]} starts in the slow mode ({units.format_factor(modes.factor)}) in "
            f"{modes.slow[first]} of {units.counted(modes.runs[first], 'run')}, {names[second]} in "
            f"{modes.slow[second]} of {modes.runs[second]}"
        )
    return notes


def notable_start(comparison: Comparison) -> float | None:
    """How many times as long the new side takes to its first result, if both sides have one backend
    and the difference is large and significant; otherwise None.
    """
    starts = comparison.starts
    if len(starts) < 2 or min(len(side.runs_ns) for side in starts) < FEWEST:
        return None
    base, new = ([math.log(ns) for ns in side.runs_ns] for side in starts)
    factor = math.exp(sum(new) / len(new) - sum(base) / len(base))
    is_large = max(factor, 1 / factor) >= wording.NOTABLE
    return factor if is_large and two_sample_p(base, new) < LEVEL else None


def slower_start(comparison: Comparison) -> bool:
    """Whether one backend takes notably longer to its first result than before."""
    return _one_backend(comparison) and (notable_start(comparison) or 0.0) > 1


def _one_backend(comparison: Comparison) -> bool:
    return len({side.backend for side in comparison.starts}) == 1


def first_calls_notes(comparison: Comparison) -> list[str]:
    """``first call: gloo 1.97 ms, ccl 705 ms`` of two backends, or of one if it changed.

    With connecting if both sides record it: one backend connects in its first call, another before.
    """
    if not comparison.starts or (_one_backend(comparison) and not notable_start(comparison)):
        return []
    complete = all(side.first_result_ns is not None for side in comparison.starts)
    what, name = ("first call", "first_call_ns")
    if complete:
        what, name = ("time to first result (connecting and first call)", "first_result_ns")
    times = [
        f"{start_name} {units.format_ns(getattr(start, name), 3)}"
        for start_name, start in zip(start_names(comparison), comparison.starts, strict=True)
    ]
    return [f"{what}: {', '.join(times)}"]


def start_names(comparison: Comparison) -> Sequence[str]:
    """The names of both sides in texts about first calls: the backends, or the sides."""
    if _one_backend(comparison):
        return wording.side_names(comparison)
    return [one_line(start.backend) for start in comparison.starts]


def direct_notes(comparison: Comparison) -> list[str]:
    """Says that oneCCL's own benchmark measured one side, and torchcoll the other."""
    sides = (comparison.base, comparison.new)
    for direct, through_torch in (sides, sides[::-1]):
        if direct.from_library_benchmark and through_torch.through_torch:
            return [
                f"{one_line(direct.name)} calls oneCCL from C++, {one_line(through_torch.name)} "
                "goes through torch.distributed, which added about 9 us a call to ccl on 2 cores"
            ]
    return []


def settings_notes(comparison: Comparison) -> list[str]:
    """The settings of each side that are traps."""
    sides = (comparison.base, comparison.new)
    if not any(side.traps() for side in sides):
        return []
    # A variable that both sides set is what is compared; one side alone may have forgotten it.
    compared = [d.name for d in differences_of(*sides) if UNSET not in (*d.base, *d.new)]
    base, new = (side.traps(compared) for side in sides)
    shared = [text for text in new if text in base]
    notes = [f"on both sides, {one_line(text)}" for text in shared]
    for side, texts in zip(sides, (base, new), strict=True):
        side_settings = [text for text in texts if text not in shared]
        notes += [f"in {one_line(side.name)}, {one_line(text)}" for text in side_settings]
    return notes


def _judged_answer(comparison: Comparison, faults: SideFaults) -> Answer:
    matched = [row for row in comparison.rows if row.matched]
    items: Sequence[Compared | Fitted] = comparison.fitted or matched
    if is_across_hardware(comparison):
        return across_answer(comparison)
    if not items:
        cases = units.counted(len(comparison.rows), "case")
        return Answer(f"no case is on both sides: {cases} on one", "doubt")
    if comparison.errors:  # one side is a model
        (where,) = _names(comparison, [comparison.errors[0].worst])
        every = comparison.errors[0].summary
        mean, geomean, worst = map(units.format_share, (every.mean, every.geomean, every.worst))
        return Answer(
            f"the model's {comparison.metric} has a mean error of {mean} ({geomean} geometric "
            f"mean) over {units.counted(every.count, 'case')}; worst {worst} ({where})"
        )
    ratios = [item for item in items if item.judged.ratio]
    what = wording.metric_words(comparison)
    # What is wrong, failed or missing has a clause of its own.
    out = [
        item.judged.reason
        for item in items
        if item.judged.result == "not comparable"
        and not item.pair.is_faulty
        and not (faults.missing and not any(m.row.is_right for m in item.pair.new))
    ]
    aside = f"; {len(out)} cannot be compared ({one_line(out[0])})" if out and ratios else ""
    if not ratios:
        reasons = list(dict.fromkeys(one_line(item.judged.reason) for item in items))
        of = f"none of {units.counted(len(items), 'case')} can be compared"
        return Answer(f"{of}: {units.shorten(reasons, 1, ', ...')}", "doubt")
    tested = [item for item in ratios if item.judged.p_value is not None]
    if not tested:
        return Answer(_untested_text(comparison, ratios, what) + aside, "doubt")
    results = {item.judged.result for item in ratios}
    slower = [item for item in tested if item.judged.result == "slower"]
    level = "bad" if slower else "good" if "faster" in results or results == {"same"} else "doubt"
    names = _names(comparison, ratios)
    looks_slower = any(
        wording.is_notable(comparison, item) and wording.speed_of(comparison, item) < 1
        for item in ratios
    )
    level = "doubt" if level == "good" and looks_slower else level
    text = wording.judged_sentence(comparison, ratios, names, others=faults.without_figure) + aside
    return Answer(text, level, worst=tuple(_furthest(comparison, slower)))


def _untested_text(comparison: Comparison, ratios: Sequence[Compared | Fitted], what: str) -> str:
    """``new looks slower than base in 2 of 80 cases: broadcast 4M 3.2x slower, ... (not judged:
    only 1 run of each side; at least 3 are needed)``.
    """
    base, new = wording.side_names(comparison)
    limit = units.format_percent(comparison.threshold)
    reasons = list(dict.fromkeys(item.judged.reason for item in ratios))
    why = "no case could be tested" if len(reasons) > 1 else _why_untested(comparison, reasons[0])
    of = units.counted(len(ratios), "case")
    texts: list[str] = []
    for direction in CHANGED:
        apart = [
            item
            for item in ratios
            if item.judged.ratio
            and beyond(item.judged.ratio, comparison.threshold)
            and (wording.speed_of(comparison, item) < 1) == (direction == "slower")
        ]
        if apart:
            start = f"{new} looks {direction} than {base}{what} in {len(apart)} of {of}"
            start = f"{direction} in {len(apart)}" if texts else start
            texts.append(f"{start}: {', '.join(_furthest(comparison, apart))}")
    if not texts:
        every = "the case does not differ" if len(ratios) == 1 else f"none of {of} differs"
        texts = [f"{every} by more than {limit}{what}"]
    return f"{'; '.join(texts)} (not judged: {why})"


def _why_untested(comparison: Comparison, reason: str) -> str:
    base, new = wording.side_names(comparison)
    sides = {" a side": "of each side", " in base": f"in {base}", " in new": f"in {new}"}
    for text, place in sides.items():
        number = reason.removesuffix(text)
        if reason != number and number in _TOO_FEW:
            return f"only {number} {place}; at least {FEWEST} are needed"
    return one_line(reason)


_TOO_FEW = tuple(units.counted(number, "run") for number in range(1, FEWEST))
_NAMED = 5  # cases in the sentence


def _furthest(comparison: Comparison, items: Sequence[Compared | Fitted]) -> list[str]:
    """``broadcast 4M 3.2x slower``: those that changed most, of the new side."""
    ranked = sorted(items, key=lambda item: -abs(math.log(wording.speed_of(comparison, item))))
    names = _names(comparison, ranked[:_NAMED])
    texts = [
        f"{name} {wording.change_text(wording.speed_of(comparison, item))}".strip()
        for name, item in zip(names, ranked, strict=False)
    ]
    for number, (text, item) in enumerate(zip(texts, ranked, strict=False)):
        if item.judged.result in CHANGED:
            least = wording.least_text(item.judged, comparison.more_is_faster)
            texts[number] = f"{text} ({least})"
    return [*texts, "..."] if len(ranked) > _NAMED else texts


def _names(comparison: Comparison, items: Sequence[Compared | Fitted]) -> list[str]:
    """Name each case by what varies in the comparison: collective, size and other dimensions."""
    of_fits = bool(comparison.fitted) and items is not comparison.rows
    every = [item.pair for item in (comparison.fitted if of_fits else comparison.rows)]
    varying = [n for n in NAMES if len({_stated(pair, n) for pair in every}) > 1]
    names = []
    for item in items:
        parts = [str(item.pair.common.get("collective"))] if "collective" in varying else []
        if item.pair.size_bytes and not of_fits:
            parts.append(units.format_size(item.pair.size_bytes))
        others = [n for n in varying if n not in ("collective", "size")]
        parts += filter(None, (_stated(item.pair, n) for n in others))
        parts += [figure] if (figure := getattr(item, "figure", "")) else []
        names.append(" ".join(parts))
    if of_fits:
        return names
    several = len({row.row.collective for row in comparison.rows}) > 1
    short = {
        id(row): " ".join(
            [
                *([row.row.collective] if several else []),
                *([wording.size_cell(row)] if row.pair.size_bytes else []),
            ]
        )
        for row in comparison.rows
    }
    unique = Counter(short.values())
    return [
        short[id(item)] if unique[short.get(id(item), "")] == 1 else name
        for item, name in zip(items, names, strict=True)
    ]


def _stated(pair: Pair, name: str) -> str:
    values = [pair.common.get(name), *(of_side.get(name) for of_side in pair.side_values)]
    texts = [value_text(name, value) for value in values if value is not None]
    form = {"ranks": "{} ranks", "root": "root {}"}.get(name, "{}")  # no number without its name
    return " -> ".join(form.format(text) for text in texts)
