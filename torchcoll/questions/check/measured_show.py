"""The first sentence about a run: what was measured, unless a verdict comes first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torchcoll.core import units
from torchcoll.core.answer import Answer, short_names
from torchcoll.core.case import DIMENSIONS
from torchcoll.core.collectives import COLLECTIVES, DEFAULT_COLLECTIVE
from torchcoll.core.errors import one_line
from torchcoll.core.summary import COLD_CALL, Row, median
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.check.limits import NO_REFERENCE, PASS, WORDS, case_text, correct_text
from torchcoll.report.columns import distinct_values
from torchcoll.report.header import kind_texts
from torchcoll.report.many import median_rows

_REASONS = 3  # that several runs have, in one sentence
_LEAST = 0.01  # GB/s: below it the time alone says something
# The placement makes no other kind: nccl-tests measures each size twice.
_KIND = tuple(name for name in DIMENSIONS if name != "in_place")


def run_answer(verdict: Verdict, rows: Sequence[Row], bimodal: int = 0) -> Answer:
    """The answer of ``show``: a verdict if something judged the run; else what was measured, then
    the warnings, and last that there is no reference.

    bimodal: the number of the rows whose calls form two clusters.
    """
    answer = verdict.answer
    measured = measured_answer(rows)
    if verdict.judged or measured is None:
        return answer
    slow = [phrase for phrase in verdict.phrases if phrase.explains]
    warnings = [
        str(phrase)
        for phrase in verdict.phrases
        if phrase.word not in (NO_REFERENCE, "") and phrase not in slow
    ]
    absent = [str(phrase) for phrase in verdict.phrases if phrase.word == NO_REFERENCE]
    details = [phrase.text for phrase in verdict.phrases if not phrase.word]
    noun = "case" if measured.many else "size"
    details += [f"{units.counted(bimodal, noun)} bimodal"] if bimodal else []
    return replace(
        measured,
        before="".join(f"{phrase.text}; " for phrase in slow),
        level=answer.level,
        worst=answer.worst,
        details=(*measured.details, *details, *warnings, *absent),
        next_step=measured.next_step or answer.next_step,
    )


def runs_answer(
    names: Sequence[str],
    verdicts: Sequence[Verdict],
    rows_by_run: Sequence[Sequence[Row]],
    groups: Sequence[Sequence[int]],
) -> Answer:
    """The answer of ``show`` about several runs: the number of runs of each verdict, then what the
    runs measured, and last that there is no reference.

    names: of the runs. groups: indices of runs with the same cases and settings; figures are
    medians over a group.
    """
    every = [row for rows in rows_by_run for row in rows]
    details: list[str] = []
    rows: list[Row] = []
    pooled = 0
    good = [any(row.is_right and row.median_ns for row in rows) for rows in rows_by_run]
    right = [of for group in groups if (of := [rows_by_run[n] for n in group if good[n]])]
    for group in right:
        medians, spreads = median_rows(group)
        rows += medians if len(group) > 1 else group[0]
        if len(right) == 1 < len(group):
            pooled = len(group)
            worst = max(range(len(rows)), key=spreads.__getitem__)
            details.append(
                f"between runs a case varies by {units.format_factor(median(spreads))} (median), "
                f"at most {units.format_factor(spreads[worst])} ({case_text(rows[worst])})"
            )
    measured = measured_answer(rows, pooled)
    with_data = [
        row for row in every if row.status == "ok" and COLLECTIVES[row.collective].has_data
    ]
    details += [text] if (text := correct_text(with_data, "result")) else []
    absent = dict.fromkeys(
        str(phrase)
        for verdict in verdicts
        for phrase in verdict.phrases
        if phrase.word == NO_REFERENCE
    )
    answer = over_all(list(zip(names, verdicts, strict=True)), measured is None, groups)
    if measured is None:
        return answer
    if answer.level and answer.level != "doubt":
        return replace(answer, details=(*answer.details, measured.headline, *details))
    before = "" if pooled else f"{units.counted(len(names), 'run')}: "
    compare = ""
    sides = [{(row.collective, row.size_bytes, row.dtype) for row in of} for of in rows_by_run]
    if len(names) == len(right) == 2 and sides[0] & sides[1]:
        compare = f"torchcoll compare {shlex.join(map(one_line, names))} says how they differ"
    judged = answer.level or answer.counts[PASS]
    details += [answer.subject, *answer.details] if judged else []
    return replace(
        measured,
        before=before,
        level=answer.level,
        worst=answer.worst if answer.level else (),
        details=(*measured.details, *details, *list(absent)[:1]),
        counts=answer.counts,
        next_step=compare or measured.next_step or answer.next_step,
    )


def over_all(
    named: Sequence[tuple[str, Verdict]],
    unjudged: bool = True,
    groups: Sequence[Sequence[int]] = (),
) -> Answer:
    """One answer about several runs, given as (name, verdict): the number of runs of each verdict,
    and the runs with the worst verdict.

    unjudged: whether to count the runs without a reference. groups: indices of runs with the same
    cases and settings; those with one remedy share the reason of the first.
    """
    results = [verdict.word for _, verdict in named]
    names = short_names([name for name, _ in named])
    counts = [
        f"{results.count(result)} {result}"
        for result in WORDS
        if result in results and (unjudged or result != NO_REFERENCE)
    ]
    worst = next(result for result in WORDS if result in results)
    of_worst = [
        (name, verdict.answer)
        for name, (_, verdict) in zip(names, named, strict=True)
        if verdict.word == worst
    ]
    level = of_worst[0][1].level
    text = ", ".join(counts) if level else "none judged"
    before = f"{len(named)} runs{':' if level else ','} "
    facts: dict[str, Any] = {
        "counts": {result: results.count(result) for result in WORDS},
        "before": before,
        "next_step": of_worst[0][1].next_step,
    }
    if worst == PASS:
        if NO_REFERENCE in results:  # no green for runs that nothing judged
            level = ""
            if not unjudged:
                text = f"{results.count(PASS)} of {len(results)} judged: {text}"
        return Answer(text, level, **facts)
    facts["worst"] = tuple(name for name, _ in of_worst)
    group_of = {names[index]: number for number, group in enumerate(groups) for index in group}
    reasons: dict[str, list[str]] = {}
    shared: dict[tuple[int, str], str] = {}
    for name, answer in of_worst:
        reason = answer.worst[0] if answer.worst else answer.headline
        if answer.next_step and name in group_of:
            reason = shared.setdefault((group_of[name], answer.next_step), reason)
        reasons.setdefault(reason, []).append(one_line(name))
    if len(reasons) == 1 and (len(of_worst) > 1 or not level):
        [reason] = reasons
        return Answer(f"{text}: {reason}", level, **facts)
    texts = [f"{units.shorten(names, 1)}: {why}" for why, names in list(reasons.items())[:_REASONS]]
    left = sum(len(names) for names in list(reasons.values())[_REASONS:])
    texts += [f"and {left} more"] if left else []
    return Answer(f"{text}: {texts[0]}", level, details=tuple(texts[1:]), **facts)


def measured_answer(rows: Sequence[Row], runs: int = 1) -> Answer | None:
    """What these rows measured: of one kind of case the time of its smallest size and the largest
    bus bandwidth, of several kinds the largest bus bandwidth of each collective, or the range of
    times where none is known. None if no row is right.

    runs: the rows are medians over so many.
    """
    good = [row for row in rows if row.is_right and row.median_ns]
    if not good:
        return None
    if all(row.statistic == COLD_CALL for row in good):
        return _cold_answer(good)
    kinds = {tuple(getattr(row, name) for name in _KIND) for row in good}
    backends = distinct_values(good, "backend")
    several = len(kinds) > 1
    answer = Answer(_subject(good, several), verb=_times_text(good, several), many=several)
    wide = [row for row in good if (row.busbw_gbps or 0) >= _LEAST and row.clock != "issue"]
    wide.sort(key=lambda row: -(row.busbw_gbps or 0.0))
    if wide and not several:
        scope = f"of busbw at {units.size_text(wide[0].size_bytes)}"
        verb = f"{answer.verb} and reaches {{}}"
        answer = replace(answer, verb=verb, size=wide[0].busbw_gbps, unit="GB/s", scope=scope)
    elif wide:
        best, scope = wide[0], f"of busbw in {_case_at(wide[0], wide)}"
        common = [row for row in wide if row.collective == DEFAULT_COLLECTIVE]
        if common and best.collective != DEFAULT_COLLECTIVE:
            busbw = units.format_digits(common[0].busbw_gbps or 0.0)
            scope += f", {busbw} in {_case_at(common[0], wide)}"
        answer = replace(answer, verb="reach {}", size=best.busbw_gbps, unit="GB/s", scope=scope)
    sides = [{(r.collective, r.size_bytes) for r in good if r.backend == name} for name in backends]
    if len(backends) == 2 and sides[0] & sides[1]:
        named = " ".join(shlex.quote(f"backend:{name}=FILE") for name in backends)
        answer = replace(answer, next_step=f"torchcoll compare {named}")
    if runs > 1:
        answer = replace(answer, scope=f"{answer.scope}, medians of {runs} runs".lstrip())
    return answer


def _cold_answer(rows: Sequence[Row]) -> Answer:
    """Of single first calls the range of their times on the most ranks, and on the fewest."""
    fewest, most = (
        [row for row in rows if row.ranks == end(row.ranks for row in rows)] for end in (min, max)
    )
    of_fewest = _times_text(fewest, True).removeprefix("take ")
    return Answer(
        _subject(most, True).replace("case", "single call", 1),
        verb=_times_text(most, True),
        many=len(most) > 1,
        scope=f"(on {units.counted(fewest[0].ranks, 'rank')}: {of_fewest})"
        if fewest != most
        else "",
        next_step="torchcoll cold FILE tells first calls from later ones",
    )


def _times_text(rows: Sequence[Row], several: bool) -> str:
    """``takes 537 us at 1K``, of several kinds ``take 53.9 us to 22.7 ms``."""
    if several:
        times = sorted(row.median_ns or 0.0 for row in rows)
        texts = dict.fromkeys((units.format_ns(times[0], 3), units.format_ns(times[-1], 3)))
        return f"take {' to '.join(texts)}"
    smallest = min(rows, key=lambda row: row.size_bytes)
    text = f"takes {units.format_ns(smallest.median_ns, 3)}"
    sizes = {row.size_bytes for row in rows}
    return text if len(sizes) == 1 else f"{text} at {units.size_text(smallest.size_bytes)}"


def _subject(rows: Sequence[Row], several: bool) -> str:
    """``all_reduce on 2 gloo ranks``, ``64 cases of 4 collectives on 2 ranks of gloo and ccl``"""
    names = distinct_values(rows, "collective")
    what = ", ".join(names) if len(names) < 3 else f"{len(names)} collectives"
    if several:
        what = f"{units.counted(len(rows), 'case')} of {what}"
    ranks = [str(count) for count in sorted(set(distinct_values(rows, "ranks"))) if count]
    backends = [one_line(name) for name in distinct_values(rows, "backend") if name != "unknown"]
    count = " to ".join(dict.fromkeys((ranks[0], ranks[-1]))) if ranks else ""
    noun = "rank" if count == "1" else "ranks"
    if len(backends) == 1:
        where = " ".join(filter(None, (count, backends[0], noun)))
    else:
        of = f" of {' and '.join(backends)}" if backends else ""
        where = f"{count} {noun}{of}".lstrip()
    return f"{what} on {where}" if ranks or backends else what


def _case_at(row: Row, rows: Sequence[Row]) -> str:
    """``all_reduce at 1M on ccl``: with the backend and the ranks if ``rows`` have several."""
    varying = [name for name in ("backend", "ranks") if len(distinct_values(rows, name)) > 1]
    where = " ".join(_value_text(row, name) for name in varying)
    return f"{row.collective} at {units.size_text(row.size_bytes)}{where and f' on {where}'}"


def _value_text(row: Row, name: str) -> str:
    [text] = kind_texts([{name: getattr(row, name)}], (name,))
    return text
