"""A run judged by another run of the same machine, or by many good ones, in place of a fabric's
limits.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.opening import open_to_read
from torchcoll.core.plausibility import (
    SWEEP,
    summarise_run,
)
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.summary import Row, median
from torchcoll.core.units import counted, format_ns, format_percent
from torchcoll.questions.check.limits import (
    FAIL,
    PASS,
    POOR,
    WARN,
    Phrase,
    case_text,
    word_of,
)

if TYPE_CHECKING:
    from torchcoll.parts.fleet.baseline_source import BaselineSource, JudgedByGoodRuns

_NAMED = 3  # slow cases
_FIRST_BYTES = 4096


def good_runs_source(path: str | os.PathLike[str]) -> BaselineSource | None:
    """The good runs of a file of torchcoll baseline, a folder, a glob or a store; None for any
    other file, which is one run. Raises UnreadableError and UsageError as BaselineSource.read.
    """
    from torchcoll.parts.fleet.address import is_store

    text = os.fspath(path)
    several = text.endswith(".toml") or os.path.isdir(text) or is_store(text)
    if not several and (os.path.exists(text) or not glob.has_magic(text)):
        return None
    # The statistics need numpy, which is not on the ranks.
    from torchcoll.parts.fleet.baseline_source import BaselineSource

    return BaselineSource.read(path)


def is_baseline_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that torchcoll baseline wrote it."""
    try:
        with open_to_read(path) as file:
            return b"\ntorchcoll_baseline = " in file.read(_FIRST_BYTES)
    except OSError:
        return False


def good_runs_phrases(judged_run: JudgedByGoodRuns, name: str) -> list[Phrase]:
    """FAIL with the slow cases, or PASS with what would have been found; and what limits that.

    name: of the file, folder or store.
    """
    from torchcoll.parts.fleet.baseline_show import detectable_text
    from torchcoll.parts.fleet.baseline_source import good_runs_text
    from torchcoll.parts.fleet.fleet_show import percent, slower

    judged = judged_run.judged
    limits, count = judged.limits, len(judged.cases)
    runs = good_runs_text(judged)
    texts = [
        f"{case_name} {slower(case.effect)} ({format_ns(case.time_ns)}, usually "
        f"{format_ns(case.usual_ns)}, healthy below {percent(case.limit)} slower)"
        for case, case_name in zip(judged.cases, judged_run.names, strict=True)
    ]
    slow = len(judged.slow_cases)
    named = ", ".join(texts[: min(slow, _NAMED)])
    more = f" and {counted(slow - _NAMED, 'more case')}" if slow > _NAMED else ""
    over_all = f"{counted(count, 'case')}" if count == 1 else f"all {count} cases"
    if judged.slow_overall:
        text = (
            f"{slower(judged.effect)} than usual over {over_all} (healthy below "
            f"{percent(limits.run_limit)} slower; {runs})"
        )
        text += f"; {named}{more}" if slow else f"; most in {texts[0]}"
        phrase = Phrase(FAIL, text)
    elif slow:
        verb = "is" if slow == 1 else "are"
        text = f"{slow} of {counted(count, 'case')} {verb} slower than usual: {named}{more}; "
        phrase = Phrase(FAIL, f"{text}{slower(judged.effect)} over {over_all} ({runs})")
    else:
        slowdown = detectable_text(limits)
        false_alarms = format_percent(judged.baseline.false_alarms)
        phrase = Phrase(
            PASS,
            f"as usual: {slower(judged.effect)} over {over_all} than {runs}; a run that is "
            f"{slowdown}, is detected 9 times in 10 (false alarms {false_alarms} per run)",
        )
    facts = []
    if judged_run.differences:
        facts.append(f"not as in the baseline: {', '.join(judged_run.differences)}")
    if judged.missing:
        of = judged.missing + count
        facts.append(
            f"{judged.missing} of the baseline's {counted(of, 'case')} not judged: "
            "the run has no time of them"
        )
    if judged_run.further:
        facts.append(f"{counted(judged_run.further, 'case')} of this run not in the baseline")
    if judged_run.left_out:
        facts.append(f"{counted(judged_run.left_out, 'run')} of {name} left out of the baseline")
    facts += judged_run.notes
    if judged_run.member:
        facts.append("this run is one of the baseline's own")
    return [phrase, *(Phrase("", fact) for fact in facts)]


def baseline_phrase(rows: Sequence[Row], run: Run, base: Run) -> Phrase:
    """How fast the cases that both have are: the median of them, the largest sizes, and the worst.

    The lower of the first two decides. Of many cases of one run some are slow on any machine, so
    the worst alone does not; but what is lost at the largest size of a collective is bandwidth, and
    a median over all sizes would hide it. A case below the lower threshold makes a PASS a WARN.
    Raises UsageError for a run of another machine or without a case in common.
    """
    # Raises UsageError for a baseline of another fabric.
    for what, of in _ALIKE:
        ours, theirs = of(run), of(base)
        if ours and theirs and ours != theirs:
            base_text, expected = (", ".join(sorted(values)) for values in (theirs, ours))
            raise UsageError("baseline", f"{what} {base_text}", f"{expected}, as this run has")
    path = base.path or base.source.get("file")
    name = os.path.basename(path) if path else "the baseline"
    pairs = baseline_pairs(rows, base)
    shares = [((before.median_ns or 0.0) / (row.median_ns or 1.0), row) for row, before in pairs]
    if not shares:
        error = UsageError if base.results else UnusableError
        raise error("baseline", name, "a run that has a case in common with this one")
    middle = median([share for share, _ in shares])
    worst, row = min(shares, key=lambda pair: pair[0])
    large, largest = min(
        (_at_largest(shares, name) for name in _collectives(shares)), key=lambda pair: pair[0]
    )
    level = word_of(min(middle, large))
    before_ns = next(before.median_ns for paired, before in pairs if paired is row)
    several = ", the lowest of the largest sizes" if len(_collectives(shares)) > 1 else ""
    text = (
        f"{100 * middle:.1f} % of the speed of {name}, the median of "
        f"{counted(len(shares), 'case')} in common, one run each; "
        f"{100 * large:.1f} % in {case_text(largest)}{several}; at worst "
        f"{100 * worst:.1f} % in {case_text(row)} "
        f"({format_ns(before_ns)} to {format_ns(row.median_ns)})"
    )
    lacking = sum(row.is_right and bool(row.median_ns) for row in summarise_run(base)) - len(pairs)
    if lacking > 0:
        text += f"; {counted(lacking, 'case')} of {name} without a time in this run"
    unstated = sum(row.buffer_reuse != before.buffer_reuse for row, before in pairs)
    if unstated:
        text += (
            f"; {counted(unstated, 'case')} matched without buffer reuse: one side does not tell"
        )
    if level == PASS and worst < POOR:
        return Phrase(WARN, f"{text}, a case below {100 * POOR:g} %")
    return Phrase(level, text)


def baseline_pairs(rows: Sequence[Row], base: Run) -> list[tuple[Row, Row]]:
    """The rows that have a time, with the row of the same case in the baseline."""
    by_case: dict[tuple[Any, ...], list[Row]] = {}
    for row in summarise_run(base):
        if row.is_right and row.median_ns:
            by_case.setdefault(_key(row), []).append(row)
    return [
        (row, before)
        for row in rows
        if row.median_ns and (before := _alike(row, by_case.get(_key(row), [])))
    ]


Share = tuple[float, Row]
_UNTOLD = "buffer_reuse"  # a dimension that older imports do not tell


def _collectives(shares: Sequence[Share]) -> list[str]:
    return list(dict.fromkeys(row.collective for _, row in shares))


def _at_largest(shares: Sequence[Share], collective: str) -> Share:
    """The median share of the cases of its largest size, and one of them."""
    of_collective = [pair for pair in shares if pair[1].collective == collective]
    top = max(row.size_bytes for _, row in of_collective)
    largest = [pair for pair in of_collective if pair[1].size_bytes == top]
    return median([share for share, _ in largest]), largest[0][1]


def _key(row: Row) -> tuple[Any, ...]:
    names = [name for name in SWEEP if name != _UNTOLD]
    return tuple(getattr(row, name) for name in (*names, "size_bytes"))


def _alike(row: Row, candidates: Sequence[Row]) -> Row | None:
    """The one that reuses its buffers as ``row`` does, else one where either does not tell: a file
    that was imported before this was asked may have had either way.
    """
    same = [
        candidate
        for candidate in candidates
        if getattr(candidate, _UNTOLD) == getattr(row, _UNTOLD)
    ]
    loose = [
        candidate
        for candidate in candidates
        if "unknown" in (getattr(candidate, _UNTOLD), getattr(row, _UNTOLD))
    ]
    return next(reversed(same or loose), None)


def _values(run: Run, name: str) -> set[str]:
    return {str(m[name]) for m in run.members if m.get(name) not in (None, "")}


_ALIKE: tuple[tuple[str, Callable[[Run], set[str]]], ...] = (
    ("devices", lambda run: _values(run, "device_name")),
    ("hosts", lambda run: {str(hosts_of(run))} - {"0"}),
    ("NVLinks", lambda run: _values(run, "nvlinks")),
    ("fabric", lambda run: {str(run.labels["fabric"])} if run.labels.get("fabric") else set()),
)
