"""Judges a run by another run of the same machine, or by many good runs, in place of a fabric."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

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
        """The verdict with its reason and its limits: a PASS says what would have been found."""
        ...

    def deviations(self, run: Run, rows: Sequence[Row]) -> dict[int, float]:
        """Time / usual time - 1, by the id of the row."""
        ...

    @property
    def next_step(self) -> str:
        """An imperative, if the verdict is CANNOT TELL; '' otherwise."""
        ...

    def notable_cases(self) -> list[tuple[str, str, str, str, str]]:
        """(name, time, usual time, change, state) of each case that is not as usual."""
        ...

    def to_json(self) -> dict[str, Any]: ...


class BaselineRuns(Protocol):
    """Good runs that judge another run. A part reads them from a file, a folder or a store."""

    def judge(self, run: Run) -> JudgedByBaseline:
        """Raises UsageError for a run that the good runs cannot judge."""
        ...


class _Speed(NamedTuple):
    """share: the time of the case in the baseline, over its time in this run."""

    share: float
    row: Row
    before: Row


def baseline_phrases(rows: Sequence[Row], run: Run, base: Run) -> list[limits.Phrase]:
    """The verdict on a run by the cases that it shares with another run, and the reasons.

    The slower of two figures decides: the median of all cases, and the largest size of the slowest
    collective. A loss of bandwidth shows only at the largest sizes, where a median hides it. A few
    cases of any run are slow, so the slowest case does not decide alone: it makes a PASS a WARN, a
    case DOUBTED_FACTOR slower leaves the verdict open, and a case SLOW_FACTOR slower is a FAIL. On
    a machine that other work disturbed only the last of these is a FAIL.

    Raises UsageError for a run of another machine or without a case in common.
    """
    _check_same_machine(run, base)
    path = base.path or base.source.get("file")
    name = os.path.basename(path) if path else "the baseline"
    speeds = [
        _Speed((before.median_ns or 0.0) / (row.median_ns or 1.0), row, before)
        for row, before in baseline_pairs(rows, base)
    ]
    if not speeds:
        error = UsageError if base.results else UnusableError
        raise error("baseline", name, "a run that has a case in common with this one")
    collectives = list(dict.fromkeys(speed.row.collective for speed in speeds))
    middle = median([speed.share for speed in speeds])
    slowest = min(speeds, key=_share)
    largest = min((_at_largest_size(speeds, each) for each in collectives), key=_share)

    several = ", the lowest of the largest sizes" if len(collectives) > 1 else ""
    times = f"{format_ns(slowest.before.median_ns)} to {format_ns(slowest.row.median_ns)}"
    median_figure = middle, f"in the median of {counted(len(speeds), 'case')} in common"
    largest_figure = largest.share, f"in {limits.case_text(largest.row)}{several}"
    slowest_case = limits.case_text(slowest.row, rows)
    slowest_figure = slowest.share, f"in {slowest_case} ({times})"
    # The figure that decides comes first.
    verdict = limits.word_of(min(middle, largest.share))
    figures = [median_figure, largest_figure, slowest_figure]
    if verdict == limits.PASS and 1 / limits.DOUBTED_FACTOR < slowest.share < limits.POOR:
        verdict, figures = limits.WARN, [slowest_figure, median_figure]
    elif largest.share < middle and verdict != limits.PASS:
        figures = [largest_figure, median_figure, slowest_figure]
    texts = [f"{100 * share:.1f} % {where}" for share, where in figures]
    texts[0] = texts[0].replace(" % in ", f" % of the speed of {name} in ", 1)
    if figures[-1] is slowest_figure:
        texts[-1] = f"at worst {texts[-1]}"
    share = slowest.share
    events = [*run.events, *base.events]
    disturbed = any(event.get("kind") == "machine" for event in events)
    if verdict == limits.FAIL and disturbed and share > 1 / limits.SLOW_FACTOR:
        verdict, texts[0] = limits.CANNOT_TELL, f"whether this run is slower: {texts[0]}"
    slower = f"{slowest_case} takes {format_factor(1 / share)} as long as in {name}"
    if verdict != limits.FAIL and share <= 1 / limits.SLOW_FACTOR:
        verdict = limits.FAIL
        texts.insert(0, slower)
    elif verdict != limits.FAIL and share <= 1 / limits.DOUBTED_FACTOR:
        verdict = limits.CANNOT_TELL
        speed = f"{100 * abs(middle - 1):.0f} % {'faster' if middle > 1 else 'slower'}"
        speed = f"{speed} {median_figure[1]}, {'but' if middle > 1 else 'and'} {slower} ({times})"
        at_largest = f"{100 * largest.share:.1f} % of the speed {largest_figure[1]}"
        texts = [f"whether this run is slower: {speed}", at_largest, "one run each"]
    else:
        texts.append("one run each")
    measured = sum(row.is_right and bool(row.median_ns) for row in summarise_run(base))
    missing = measured - len(speeds)
    if missing > 0:
        texts.append(f"{counted(missing, 'case')} of {name} without a time in this run")
    first = limits.Phrase(verdict, texts[0], next_step="" if verdict == limits.PASS else _AGAIN)
    return [first, *(limits.Phrase("", text) for text in texts[1:])]


def baseline_pairs(rows: Sequence[Row], base: Run) -> list[tuple[Row, Row]]:
    """The rows that have a time, with the row of the same case in the baseline."""
    by_case = {_key(row): row for row in summarise_run(base) if row.is_right and row.median_ns}
    return [(row, by_case[_key(row)]) for row in rows if row.median_ns and _key(row) in by_case]


def _share(speed: _Speed) -> float:
    return speed.share


def _at_largest_size(speeds: Sequence[_Speed], collective: str) -> _Speed:
    """One case of the largest size of a collective, with the median share of all these cases."""
    of_collective = [speed for speed in speeds if speed.row.collective == collective]
    size_bytes = max(speed.row.size_bytes for speed in of_collective)
    largest = [speed for speed in of_collective if speed.row.size_bytes == size_bytes]
    return largest[0]._replace(share=median([speed.share for speed in largest]))


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in (*SWEEP, "size_bytes"))


def _check_same_machine(run: Run, base: Run) -> None:
    """Raises UsageError if both runs record a fact of their machines, and it differs."""
    for what, values_of in _FACTS:
        values, expected = values_of(base), values_of(run)
        if values and expected and values != expected:
            base_text, run_text = (", ".join(sorted(texts)) for texts in (values, expected))
            raise UsageError("baseline", f"{what} {base_text}", f"{run_text}, as this run has")


def _values(run: Run, name: str) -> set[str]:
    return {str(m[name]) for m in run.members if m.get(name) not in (None, "")}


_FACTS: tuple[tuple[str, Callable[[Run], set[str]]], ...] = (
    ("devices", lambda run: _values(run, "device_name")),
    ("hosts", lambda run: {str(hosts_of(run))} - {"0"}),
    ("NVLinks", lambda run: _values(run, "nvlinks")),
    ("fabric", lambda run: {str(run.labels["fabric"])} if run.labels.get("fabric") else set()),
)
