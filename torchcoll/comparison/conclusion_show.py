"""The answer of a comparison: what changed, or why nothing can be said, with its caveats."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcoll.comparison.across_hardware_show import across_answer, is_across_hardware
from torchcoll.comparison.cells import size_cell
from torchcoll.comparison.wording import (
    change_text,
    judged_sentence,
    least_text,
    metric_words,
    side_names,
    speed_of,
)
from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_ns, format_percent, format_size
from torchcoll.report.answer import Answer
from torchcoll.stats.differences import differences_of
from torchcoll.stats.sides import UNSET

if TYPE_CHECKING:
    from torchcoll.comparison.compare import Comparison
    from torchcoll.comparison.fits import Fitted
    from torchcoll.comparison.results import Compared, Judged
    from torchcoll.stats.matching import Pair


def error_text(error: float) -> str:
    return f"{100 * error:.1f} %"


def _model_answer(comparison: Comparison) -> Answer | None:
    """How far predictions are off, where one side is a model."""
    if not comparison.errors:
        return None
    (where,) = _names(comparison, [comparison.errors[0].worst])
    every = comparison.errors[0].summary
    return Answer(
        f"the model's {comparison.metric} has a mean error of {error_text(every.mean)} "
        f"({error_text(every.geomean)} geometric mean) over {counted(every.count, 'case')}; worst "
        f"{error_text(every.worst)} ({where})"
    )


CHANGED = ("slower", "faster")
_FAULTS = ("wrong in new", "failed in new", "timeout in new", "oom in new")


def answer_of(comparison: Comparison) -> Answer:
    """What changed; where nothing could be judged, what differs, and why that is no evidence.

    The first calls of two backends are added. A setting that slows one side, or a side that was
    called without torch, is named: the difference may be that setting's, or torch's.
    """
    answer = _judged_answer(comparison)
    across = is_across_hardware(comparison)  # its sentence has the first calls
    first_calls = [] if across else first_calls_notes(comparison)
    notes = [*settings_notes(comparison), *direct_notes(comparison)]
    return dataclasses.replace(
        answer,
        level="doubt" if notes else answer.level,
        counts=counts_of([comparison]),
        caveats=(*answer.caveats, *first_calls, *notes),
    )


def counts_of(comparisons: Sequence[Comparison]) -> dict[str, int]:
    """Count the cases that both sides have by result."""
    return dict(
        Counter(row.result for comparison in comparisons for row in comparison.rows if row.matched)
    )


def first_calls_notes(comparison: Comparison) -> list[str]:
    """``first call: gloo 1.97 ms, ccl 705 ms`` of two backends; with connecting, where both sides
    tell that: one backend connects in its first call, another before it.
    """
    complete = all(side.first_result_ns is not None for side in comparison.starts)
    what, name = ("first call", "first_call_ns")
    if complete:
        what, name = ("time to first result (connecting and first call)", "first_result_ns")
    times = [f"{one_line(s.backend)} {format_ns(getattr(s, name), 3)}" for s in comparison.starts]
    return [f"{what}: {', '.join(times)}"] if times else []


def direct_notes(comparison: Comparison) -> list[str]:
    """Where a program of the library's own called it, and torch on the other side."""
    sides = (comparison.base, comparison.new)
    for direct, through_torch in (sides, sides[::-1]):
        if direct.from_library_benchmark and through_torch.through_torch:
            return [
                f"{one_line(direct.name)} calls oneCCL from C++, {one_line(through_torch.name)} "
                "goes through torch.distributed, which added about 9 us a call to ccl on 2 cores"
            ]
    return []


def settings_notes(comparison: Comparison) -> list[str]:
    """The settings of a side that are traps, with its name."""
    sides = (comparison.base, comparison.new)
    if not any(side.traps() for side in sides):
        return []
    # A variable that both sides have set is what the comparison is about; one that a single side
    # has set may be forgotten.
    compared = [d.name for d in differences_of(*sides) if UNSET not in (*d.base, *d.new)]
    base, new = (side.traps(compared) for side in sides)
    shared = [text for text in new if text in base]
    notes = [f"on both sides, {one_line(text)}" for text in shared]
    for side, texts in zip(sides, (base, new), strict=True):
        side_settings = [text for text in texts if text not in shared]
        notes += [f"in {one_line(side.name)}, {one_line(text)}" for text in side_settings]
    return notes


def _judged_answer(comparison: Comparison) -> Answer:
    items: Sequence[Compared | Fitted] = comparison.fitted or [
        r for r in comparison.rows if r.matched
    ]
    if is_across_hardware(comparison):
        return across_answer(comparison)
    if not items:
        return Answer(
            f"no case is on both sides: {counted(len(comparison.rows), 'case')} on one", "doubt"
        )
    if error := _model_answer(comparison):
        return error
    ratios = [item for item in items if item.judged.ratio]
    what = metric_words(comparison)
    out = [item.judged.reason for item in items if item.judged.result == "not comparable"]
    aside = f"; {len(out)} cannot be compared ({one_line(out[0])})" if out and ratios else ""
    if not ratios:
        kind = "bad" if any(text.startswith(_FAULTS) for text in out) else "doubt"
        more = ", ..." if len(set(out)) > 1 else ""
        of = f"none of {counted(len(items), 'case')} can be compared"
        return Answer(f"{of}: {one_line(out[0])}{more}", kind)
    tested = [item for item in ratios if item.judged.p_value is not None]
    if not tested:
        return Answer(_untested_text(comparison, ratios, what) + aside, "doubt")
    results = {item.judged.result for item in ratios}
    slower = [item for item in tested if item.judged.result == "slower"]
    level = "bad" if slower else "good" if "faster" in results or results == {"same"} else "doubt"
    text = judged_sentence(comparison, ratios, _names(comparison, ratios)) + aside
    return Answer(text, level, worst=tuple(_furthest(comparison, slower)))


def _untested_text(comparison: Comparison, ratios: Sequence[Compared | Fitted], what: str) -> str:
    """``not judged (only 1 run of each side; at least 3 are needed to judge a difference): 18 of 80
    cases differ by more than 2 %: broadcast 4M 3.2x slower, ...``.
    """
    from torchcoll.comparison.results import beyond

    apart = [r for r in ratios if r.judged.ratio and beyond(r.judged.ratio, comparison.threshold)]
    limit = format_percent(comparison.threshold)
    reasons = list(dict.fromkeys(item.judged.reason for item in ratios))
    why = "no case could be tested" if len(reasons) > 1 else _why_untested(comparison, reasons[0])
    of = counted(len(ratios), "case")
    if not apart:
        every = "the case does not differ" if len(ratios) == 1 else f"none of {of} differs"
        return f"not judged ({why}): {every} by more than {limit}{what}"
    verb = "differs" if len(apart) == 1 else "differ"
    names = ", ".join(_furthest(comparison, apart))
    return f"not judged ({why}): {len(apart)} of {of} {verb} by more than {limit}{what}: {names}"


_NEEDED = "at least 3 are needed to judge a difference"


def _why_untested(comparison: Comparison, reason: str) -> str:
    base, new = side_names(comparison)
    where = {
        "1 run a side": "of each side",
        "1 run in base": f"in {base}",
        "1 run in new": f"in {new}",
    }.get(reason)
    return f"only 1 run {where}; {_NEEDED}" if where else one_line(reason)


_NAMED = 5  # cases in the sentence


def _furthest(comparison: Comparison, items: Sequence[Compared | Fitted]) -> list[str]:
    """``broadcast 4M 3.2x slower``: those that changed most, of the new side."""
    ranked = sorted(items, key=lambda item: -abs(math.log(speed_of(comparison, item))))
    names = _names(comparison, ranked[:_NAMED])
    texts = [
        f"{name} {change_text(speed_of(comparison, item))}"
        f"{_least_text(comparison, item.judged)}".strip()
        for name, item in zip(names, ranked, strict=False)
    ]
    return [*texts, "..."] if len(ranked) > _NAMED else texts


def _least_text(comparison: Comparison, judged: Judged) -> str:
    return f" ({least_text(judged, comparison.more_is_faster)})" if judged.result in CHANGED else ""


def _names(comparison: Comparison, items: Sequence[Compared | Fitted]) -> list[str]:
    """What tells each from the others: collective, size, what else varies in the comparison."""
    from torchcoll.stats.matching import NAMES

    every = [item.pair for item in (comparison.fitted or comparison.rows)]
    varying = [n for n in NAMES if len({_stated(pair, n) for pair in every}) > 1]
    names = []
    for item in items:
        parts = [str(item.pair.common.get("collective"))] if "collective" in varying else []
        if item.pair.size_bytes and not comparison.fitted:
            parts.append(format_size(item.pair.size_bytes))
        parts += [
            text
            for n in varying
            if n not in ("collective", "size") and (text := _stated(item.pair, n))
        ]
        parts += [figure] if (figure := getattr(item, "figure", "")) else []
        names.append(" ".join(parts))
    if comparison.fitted:
        return names
    several = len({row.row.collective for row in comparison.rows}) > 1
    short = {
        id(row): " ".join(
            [row.row.collective] * several + [size_cell(row)] * bool(row.pair.size_bytes)
        )
        for row in comparison.rows
    }
    unique = Counter(short.values())
    return [
        short[id(item)] if unique[short.get(id(item), "")] == 1 else name
        for item, name in zip(items, names, strict=True)
    ]


def _stated(pair: Pair, name: str) -> str:
    from torchcoll.stats.differences import value_text

    values = [
        pair.common.get(name),
        *(values_of_side.get(name) for values_of_side in pair.side_values),
    ]
    texts = [value_text(name, value) for value in values if value is not None]
    form = {"ranks": "{} ranks", "root": "root {}"}.get(name, "{}")  # no number without its name
    return " -> ".join(form.format(text) for text in texts)
