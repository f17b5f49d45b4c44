"""A run judged by another run of the same machine, or by many good ones, in place of a fabric's
limits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.plausibility import SWEEP, summarise_run
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.summary import Row, median
from torchcoll.core.units import counted, format_factor, format_ns
from torchcoll.questions.check import limits

# One run each does not show what is usual.
_AGAIN = "measure again; three good runs and torchcoll check --learn show what is usual"


class JudgedByBaseline(Protocol):
    """A run judged by good runs."""

    def phrases(self) -> list[limits.Phrase]:
        """The word with its reason, and what limits it: a PASS says what would have been found."""
        ...

    def deviations(self, run: Run, rows: Sequence[Row]) -> dict[int, float]:
        """Time / usual time - 1, by the id of the row."""
        ...

    @property
    def next_step(self) -> str:
        """What to do if it cannot be told, as an imperative; '' otherwise."""
        ...

    def notable_cases(self) -> list[tuple[str, str, str, str, str]]:
        """Of the cases that are not as usual: name, time, usual time, change, state."""
        ...

    def to_json(self) -> dict[str, Any]: ...


class BaselineRuns(Protocol):
    """What judges a run by many good ones: a part has it of a file, a folder or a store."""

    def judge(self, run: Run) -> JudgedByBaseline:
        """Raises UsageError for a run that these cannot judge."""
        ...


def baseline_phrases(rows: Sequence[Row], run: Run, base: Run) -> list[limits.Phrase]:
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
    level = limits.word_of(min(middle, large))
    before_ns = next(before.median_ns for paired, before in pairs if paired is row)
    several = ", the lowest of the largest sizes" if len(_collectives(shares)) > 1 else ""
    of_median = middle, f"in the median of {counted(len(shares), 'case')} in common"
    of_largest = large, f"in {limits.case_text(largest)}{several}"
    times = f"{format_ns(before_ns)} to {format_ns(row.median_ns)}"
    of_worst = worst, f"in {limits.case_text(row)} ({times})"
    # What decides comes first.
    figures = [of_median, of_largest, of_worst]
    if level == limits.PASS and 1 / limits.DOUBTED_FACTOR < worst < limits.POOR:
        level, figures = limits.WARN, [of_worst, of_median]
    elif large < middle and level != limits.PASS:
        figures = [of_largest, of_median, of_worst]
    texts = [f"{100 * share:.1f} % {where}" for share, where in figures]
    texts[0] = texts[0].replace(" % in ", f" % of the speed of {name} in ", 1)
    if figures[-1] is of_worst:
        texts[-1] = f"at worst {texts[-1]}"
    slower = f"{limits.case_text(row)} takes {format_factor(1 / worst)} as long as in {name}"
    if level != limits.FAIL and worst <= 1 / limits.SLOW_FACTOR:
        level = limits.FAIL
        texts.insert(0, slower)
    elif level != limits.FAIL and worst <= 1 / limits.DOUBTED_FACTOR:
        level = limits.CANNOT_TELL
        texts.insert(0, f"why {slower}: one run each")
    else:
        texts.append("one run each")
    lacking = sum(row.is_right and bool(row.median_ns) for row in summarise_run(base)) - len(pairs)
    if lacking > 0:
        texts.append(f"{counted(lacking, 'case')} of {name} without a time in this run")
    first = limits.Phrase(level, texts[0], next_step="" if level == limits.PASS else _AGAIN)
    return [first, *(limits.Phrase("", text) for text in texts[1:])]


def baseline_pairs(rows: Sequence[Row], base: Run) -> list[tuple[Row, Row]]:
    """The rows that have a time, with the row of the same case in the baseline."""
    by_case = {_key(row): row for row in summarise_run(base) if row.is_right and row.median_ns}
    return [(row, by_case[_key(row)]) for row in rows if row.median_ns and _key(row) in by_case]


Share = tuple[float, Row]


def _collectives(shares: Sequence[Share]) -> list[str]:
    return list(dict.fromkeys(row.collective for _, row in shares))


def _at_largest(shares: Sequence[Share], collective: str) -> Share:
    """The median share of the cases of its largest size, and one of them."""
    of_collective = [pair for pair in shares if pair[1].collective == collective]
    top = max(row.size_bytes for _, row in of_collective)
    largest = [pair for pair in of_collective if pair[1].size_bytes == top]
    return median([share for share, _ in largest]), largest[0][1]


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in (*SWEEP, "size_bytes"))


def _values(run: Run, name: str) -> set[str]:
    return {str(m[name]) for m in run.members if m.get(name) not in (None, "")}


_ALIKE: tuple[tuple[str, Callable[[Run], set[str]]], ...] = (
    ("devices", lambda run: _values(run, "device_name")),
    ("hosts", lambda run: {str(hosts_of(run))} - {"0"}),
    ("NVLinks", lambda run: _values(run, "nvlinks")),
    ("fabric", lambda run: {str(run.labels["fabric"])} if run.labels.get("fabric") else set()),
)
