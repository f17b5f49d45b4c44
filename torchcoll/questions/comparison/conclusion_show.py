"""The answer of a comparison: what changed, or why nothing can be said, with its details."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcoll.core import units
from torchcoll.core.answer import CANNOT_TELL, Answer, worst_level
from torchcoll.core.backends import NCCL, ONECCL, of_family
from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import CHECK_RANKS, IMPLAUSIBLE
from torchcoll.questions.comparison import wording
from torchcoll.questions.comparison.across_hardware_show import across_answer
from torchcoll.questions.comparison.results import (
    NOTABLE,
    ONE_AFTER_THE_OTHER,
    Compared,
    Judged,
)
from torchcoll.questions.comparison.scope import scope_text
from torchcoll.stats.differences import differences_of
from torchcoll.stats.distributions import two_sample_p
from torchcoll.stats.ratios import LEVEL
from torchcoll.stats.side_faults import SideFaults, entries_of
from torchcoll.stats.sides import ONECCL_BENCHMARK, TORCHCOLL, UNSET
from torchcoll.stats.statistics import FEWEST

if TYPE_CHECKING:
    from torchcoll.questions.comparison.compare import Comparison


def answer_of(comparison: Comparison) -> Answer:
    """Whether the new side may replace the base: its faults, what changed, and the first calls.

    The details name settings that slow one side, a side that was measured without torch, and what
    the order of the runs leaves open.
    """
    base, new = comparison.faults
    answer = _judged_answer(comparison, new)
    across = comparison.across_hardware  # its sentence has the first calls, and what failed
    faults, of_base = ([], []) if across else (new.texts, base.texts)
    first_calls = [] if across else first_calls_notes(comparison)
    notes = [*settings_notes(comparison), *direct_notes(comparison)]
    level = "doubt" if notes else answer.level
    notes += machine_notes(comparison)
    # The base is what the new side was judged by.
    slow_run = any(speed <= 1 / NOTABLE for speed in new.outliers)
    slow_start = comparison.one_backend and (notable_start(comparison) or 0.0) > 1
    if level == "good" and (slow_run or slow_start or base.level == "bad"):
        level = "doubt"
    # Tables of other tools have other sizes, which nobody lost.
    swept = not new.faults and all(run.source for run in comparison.new.runs)
    link = ". " if answer.certainty == CANNOT_TELL else "; "
    return dataclasses.replace(
        answer,
        before="".join(f"{text}{link}" for text in ["; ".join(faults)] if text and not swept),
        level=worst_level(level, new.level),
        counts=counts_of([comparison]),
        details=(
            *answer.details,
            *(faults if swept else []),
            *of_base,
            *limit_notes(comparison),
            *first_calls,
            *notes,
        ),
    )


def counts_of(comparisons: Sequence[Comparison]) -> dict[str, int]:
    """Count the matched cases by result, and the wrong, failed and missing ones of the new side."""
    results = Counter(row.result for each in comparisons for row in each.rows if row.matched)
    return {**results, **entries_of(each.faults[1] for each in comparisons)}


def limit_notes(comparison: Comparison) -> list[str]:
    """What limits the judgement: the order of the runs, outliers, and modes of starts."""
    notes = [ONE_AFTER_THE_OTHER] if comparison.one_after_the_other else []
    notes += [side.outlier_text for side in comparison.faults if side.outliers]
    if modes := comparison.modes:
        names = comparison.side_names
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
    is_large = max(factor, 1 / factor) >= NOTABLE
    return factor if is_large and two_sample_p(base, new) < LEVEL else None


def first_calls_notes(comparison: Comparison) -> list[str]:
    """``first call: gloo 1.97 ms, ccl 705 ms`` of two backends, or of one if it changed.

    With connecting if both sides record it: one backend connects in its first call, another before.
    """
    starts = comparison.starts
    if not starts or (comparison.one_backend and not notable_start(comparison)):
        return []
    names: Sequence[str] = comparison.side_names
    if not comparison.one_backend:
        names = [one_line(start.backend) for start in starts]
    what = "first call"
    times: list[float | None] = [start.first_call_ns for start in starts]
    if all(start.first_result_ns is not None for start in starts):
        what = "time to first result (connecting and first call)"
        times = [start.first_result_ns for start in starts]
    sides = [
        f"{name} {units.format_ns(ns, 3)}"
        for name, ns in zip(names, times, strict=True)
        if ns is not None
    ]
    return [f"{what}: {', '.join(sides)}"]


def direct_notes(comparison: Comparison) -> list[str]:
    """Says that oneCCL's own benchmark measured one side, and torchcoll the other."""
    sides = (comparison.base, comparison.new)
    for direct, through_torch in (sides, sides[::-1]):
        if direct.tools == {ONECCL_BENCHMARK} and through_torch.tools == {TORCHCOLL}:
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


def machine_notes(comparison: Comparison) -> list[str]:
    """What disturbed the machine: a line for each kind of message, as its first run has it."""
    kinds: dict[str, list[tuple[str, str]]] = {}  # of each the (side, text) of its messages
    for name, side in zip(comparison.side_names, (comparison.base, comparison.new), strict=True):
        events = (event for run in side.runs for event in run.events)
        for text in [str(e["message"]) for e in events if e.get("kind") == "machine"]:
            # Figures, and what follows a comma, differ from run to run.
            kind = re.sub(r"\d[\d.]*", "N", text.partition(" during ")[0].partition(",")[0])
            kinds.setdefault(kind, []).append((name, one_line(text)))
    notes = []
    for messages in kinds.values():
        names, texts = ([*dict.fromkeys(values)] for values in zip(*messages, strict=True))
        where = f"in {names[0]}" if len(names) == 1 else "on both sides"
        more = f" ({len(messages) - 1} more alike)" if len(texts) > 1 else ""
        if len(names) == 1 or len(texts) > 1:  # the same on both sides slows neither
            notes.append(f"{where}, {texts[0]}{more}")
    return notes


def _judged_answer(comparison: Comparison, faults: SideFaults) -> Answer:
    matched = [row for row in comparison.rows if row.matched]
    if comparison.across_hardware:
        return across_answer(comparison)
    if not matched:
        cases = units.counted(len(comparison.rows), "case")
        return Answer(f"no case is on both sides: {cases} on one", "doubt")
    if comparison.errors:  # one side is a model
        where = comparison.name_of(comparison.errors[0].worst)
        every = comparison.errors[0].summary
        mean, geomean, worst = map(units.format_share, (every.mean, every.geomean, every.worst))
        return Answer(
            f"the model's {comparison.metric} has a mean error of {mean} ({geomean} geometric "
            f"mean) over {units.counted(every.count, 'case')}; worst {worst} ({where})"
        )
    ratios = [item for item in matched if item.judged.ratio]
    what = wording.metric_words(comparison)
    # What is wrong, failed or missing has a clause of its own.
    out = [
        item.reason
        for item in matched
        if item.result == "not comparable"
        and not item.pair.is_faulty
        and not (faults.missing and not any(m.row.is_right for m in item.pair.new))
    ]
    aside = f"; {len(out)} cannot be compared ({one_line(out[0])})" if out and ratios else ""
    if not ratios:
        reasons = list(dict.fromkeys(one_line(item.reason) for item in matched))
        of = f"none of {units.counted(len(matched), 'case')} can be compared"
        step = CHECK_RANKS if any(m.judged.fault == IMPLAUSIBLE for m in matched) else ""
        why = units.shorten(reasons, 1, ", ...")
        return Answer(of, "doubt", details=(why,), next_step=step)
    tested = [item for item in ratios if item.judged.p_value is not None]
    if not tested:
        answer = _untested_answer(comparison, ratios, what)
        further = (aside.removeprefix("; "),) if aside else ()
        return dataclasses.replace(answer, details=(*answer.details, *further))
    results = {item.result for item in ratios}
    slower = [item for item in tested if item.result == "slower"]
    level = "bad" if slower else "good" if "faster" in results or results == {"same"} else "doubt"
    looks_slower = any(item.is_notable and item.speed < 1 for item in ratios)
    level = "doubt" if level == "good" and looks_slower else level
    others = faults.without_figure
    if "inconclusive" in results and not results.intersection(wording.CHANGED):
        open_answer = wording.undecided_answer(comparison, ratios, others)
        details = (*open_answer.details, *([aside.removeprefix("; ")] if aside else []))
        return dataclasses.replace(open_answer, details=details)
    text = wording.judged_sentence(comparison, ratios, others) + aside
    hidden = wording.hidden_slowdown(comparison) if level == "good" else ""
    return Answer(
        text,
        "doubt" if hidden else level,
        worst=tuple(_furthest(comparison, slower)),
        details=(hidden,) if hidden else (),
    )


def _untested_answer(comparison: Comparison, ratios: wording.Items, what: str) -> Answer:
    """``new looks slower than base in 2 of 80 cases: broadcast 4M 3.2x, ...``: the direction of
    most cases, then the other one. Next to a large change, small ones are not named.
    """
    base, new = comparison.side_names
    reasons = list(dict.fromkeys(item.reason for item in ratios))
    why = "no case could be tested"
    if len(reasons) == 1:
        why = _why_untested(comparison, ratios[0].judged)
    largest = max(math.log(item.factor) for item in ratios)
    from_on = max(math.log1p(comparison.threshold), min(_PLAIN, largest / 3))
    apart: dict[str, list[Compared]] = {direction: [] for direction in wording.CHANGED}
    for item in ratios:
        if math.log(item.factor) > from_on:
            apart["slower" if item.speed < 1 else "faster"].append(item)
    fewer, more = sorted(map(len, apart.values()))
    far = {key: max((math.log(i.factor) for i in apart[key]), default=0.0) for key in apart}
    # The direction of most cases; where both have many, that of the largest change.
    weights = {key: len(apart[key]) for key in apart} if more >= 2 * fewer else far
    apart = dict(sorted(apart.items(), key=lambda pair: -weights[pair[0]]))
    step = step_in_turn(comparison)
    if not more or (largest <= _PLAIN and more < wording.MOST_CHANGED * len(ratios)):
        where = scope_text(ratios, ratios)
        text = f"{new} is within {wording.limit_text(comparison, ratios)} of {base}{what} {where}"
        furthest = _furthest(comparison, [*apart["slower"], *apart["faster"]])[:1]
        details = [f"furthest: {furthest[0]}"] if furthest and len(ratios) > 1 else []
        details.append(f"not proven: {why}")
        return Answer(text.rstrip(), "doubt", details=tuple(details), next_step=step)
    texts = wording.changes_texts(comparison, ratios, apart, "looks")
    if more < 2 * fewer and max(far.values()) < 4 * min(far.values()):
        texts.insert(0, f"Cannot tell whether {new} is slower than {base}{what} ({why})")
    else:
        texts.insert(1, f"not proven: {why}")
    return Answer(texts[0], "doubt", details=tuple(texts[1:]), next_step=step)


_PLAIN = math.log(1.1)  # a change that is named, however much larger others are


def _why_untested(comparison: Comparison, judged: Judged) -> str:
    if not judged.too_few:
        return one_line(judged.reason)
    runs = (len(judged.base), len(judged.new))
    least = min(runs)
    place = f"in {comparison.side_names[runs.index(least)]}"
    place = "of each side" if runs[0] == runs[1] else place
    return f"only {units.counted(least, 'run')} {place}; at least {FEWEST} are needed"


def _furthest(comparison: Comparison, items: wording.Items) -> list[str]:
    """``broadcast 4M 3.2x slower``: those that changed most, of the new side."""
    texts = [
        f"{text} ({wording.least_text(item.judged)})" if item.result in wording.CHANGED else text
        for item, text in wording.named_changes(comparison, items)
    ]
    return units.shorten_list(texts, wording.MOST_NAMED, "...")


# What a virtual environment brings along; a label may name it with its version.
_INSTALLED = ("torch", "torchcoll", "rccl", *of_family(NCCL), *of_family(ONECCL))
_LABEL = re.compile(r"label=.*(?:ccl|torch)\W*v?\d", re.IGNORECASE)


def step_in_turn(comparison: Comparison) -> str:
    """How to measure both sides alternately: with ``versus`` if it can vary what differs."""
    axis = ""
    for difference in comparison.differences:
        name, values = difference.name, (*difference.base, *difference.new)
        if name.isupper() and len(difference.base) == len(difference.new) == 1:
            texts = ["" if value == UNSET else value for value in values]
            axis = f"--env {shlex.quote(f'{name}={texts[0]},{texts[1]}')}"
            break
        versions = all(_LABEL.match(f"{name} {value}") for value in values)
        if versions or name in _INSTALLED or name.startswith("mapped "):
            axis = "--axis venv=OLD,NEW"
    runs = f"{FEWEST} runs of each side in turn"
    return f"{runs}: torchcoll versus {axis} -o DIR -- COMMAND" if axis else f"make {runs}"
