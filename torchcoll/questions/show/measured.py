"""The first sentence about a run: what was measured, unless a verdict comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchcoll.core.answer import Answer
from torchcoll.core.case import DIMENSIONS
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import one_line
from torchcoll.core.summary import Row, median
from torchcoll.core.units import counted, format_factor, format_ns, format_size, plural
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.check.limits import NO_REFERENCE, case_text
from torchcoll.questions.check.show import over_all
from torchcoll.report.columns import distinct_values
from torchcoll.report.header import kind_texts
from torchcoll.report.many import median_rows

_LEAST = 0.01  # GB/s: below it the time alone says something
_KIND = tuple(name for name in DIMENSIONS if not name.startswith("size"))


def run_answer(verdict: Verdict, rows: Sequence[Row], bimodal: int = 0) -> Answer:
    """The answer of ``show``: a verdict if something judged the run; else what was measured, and
    last that there is no reference.

    bimodal: the number of the rows whose calls form two clusters.
    """
    answer = verdict.answer
    measured = measured_answer(rows)
    if verdict.judged or measured is None:
        return answer
    warnings = [str(phrase) for phrase in verdict.phrases if phrase.word not in (NO_REFERENCE, "")]
    absent = [str(phrase) for phrase in verdict.phrases if phrase.word == NO_REFERENCE]
    details = [phrase.text for phrase in verdict.phrases if not phrase.word]
    noun = "case" if measured.many else "size"
    details += [f"{counted(bimodal, noun)} bimodal"] if bimodal else []
    if warnings:
        details = [*warnings[1:], measured.headline, *details]
        return replace(answer, subject=warnings[0], details=(*details, *absent))
    return replace(measured, details=(*measured.details, *details, *absent))


def runs_answer(
    names: Sequence[str],
    verdicts: Sequence[Verdict],
    rows_by_run: Sequence[Sequence[Row]],
    pooled: bool,
) -> Answer:
    """The answer of ``show`` about several runs: how many have which verdict, where something was
    judged; what they measured; and last that there is no reference.

    names: of the runs, of which paths are shortened to their files where these differ. pooled: the
    runs measured the same cases, and the answer is about medians over them.
    """
    files = [name.rpartition("/")[2] for name in names]
    names = files if len(set(files)) == len(files) else names
    every = [row for rows in rows_by_run for row in rows]
    details, rows = [], every
    if pooled:
        rows, spreads = median_rows(rows_by_run)
        if spreads:
            worst = max(range(len(rows)), key=spreads.__getitem__)
            details.append(
                f"between runs a case varies by {format_factor(median(spreads))} (median), at most "
                f"{format_factor(spreads[worst])} ({case_text(rows[worst])})"
            )
    measured = measured_answer(rows, len(names) if pooled else 1)
    with_data = [
        row for row in every if row.status == "ok" and COLLECTIVES[row.collective].has_data
    ]
    if correct := sum(row.verified == "correct" for row in with_data):
        details.append(f"{correct} of {counted(len(with_data), 'result')} correct")
    absent = dict.fromkeys(
        str(phrase)
        for verdict in verdicts
        for phrase in verdict.phrases
        if phrase.word == NO_REFERENCE
    )
    details += list(absent)[:1]
    answer = over_all(list(zip(names, verdicts, strict=True)), measured is None)
    if measured is None:
        return answer
    if answer.level:
        return replace(answer, details=(measured.headline, *details))
    before = "" if pooled else f"{counted(len(names), 'run')}: "
    return replace(measured, before=before, details=tuple(details), counts=answer.counts)


def measured_answer(rows: Sequence[Row], runs: int = 1) -> Answer | None:
    """What these rows measured: of one kind of case the time of its smallest size and the largest
    bus bandwidth, of several kinds the range of times. None if no row is right.

    runs: the rows are medians over so many.
    """
    good = [row for row in rows if row.is_right and row.median_ns]
    if not good:
        return None
    times = sorted(row.median_ns or 0.0 for row in good)
    kinds = {tuple(getattr(row, name) for name in _KIND) for row in good}
    several = len(kinds) > 1
    smallest = min(good, key=lambda row: row.size_bytes)
    if several:
        texts = dict.fromkeys((format_ns(times[0], 3), format_ns(times[-1], 3)))
        takes = f"take {' to '.join(texts)}"
    else:
        takes = f"takes {format_ns(smallest.median_ns, 3)}"
        if len({row.size_bytes for row in good}) > 1:
            takes += f" at {_size_text(smallest.size_bytes)}"
    answer = Answer(_subject(good, several), verb=takes, many=several)
    wide = [row for row in good if (row.busbw_gbps or 0) >= _LEAST and row.clock != "issue"]
    if wide:
        best = max(wide, key=lambda row: row.busbw_gbps or 0.0)
        where = f"at {_size_text(best.size_bytes)}"
        if several:
            varying = [
                name for name in ("backend", "ranks") if len(distinct_values(wide, name)) > 1
            ]
            where = ", ".join([case_text(best), *(_value_text(best, name) for name in varying)])
            where = f"({where})"
        reach = plural(1 + several, "reaches", "reach")
        verb = f"{takes} and {reach} {{}}"
        scope = f"of busbw {where}"
        answer = replace(answer, verb=verb, size=best.busbw_gbps, unit="GB/s", scope=scope)
    if runs > 1:
        answer = replace(answer, scope=f"{answer.scope}, medians of {runs} runs".lstrip())
    return answer


def _subject(rows: Sequence[Row], several: bool) -> str:
    """``all_reduce on 2 gloo ranks``, ``64 cases of 4 collectives on 2 ranks of gloo and ccl``"""
    names = distinct_values(rows, "collective")
    what = ", ".join(names) if len(names) < 3 else f"{len(names)} collectives"
    if several:
        what = f"{counted(len(rows), 'case')} of {what}"
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


def _size_text(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes >= 1024 else f"{size_bytes} B"


def _value_text(row: Row, name: str) -> str:
    [text] = kind_texts([{name: getattr(row, name)}], (name,))
    return text
