"""What stands below a table: numbered footnotes of rows, and what concerns the whole run.

A warning is data on its result, so the table shows it; a log line would be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import Row
from torchcoll.core.units import format_ranges
from torchcoll.report.output import one_line

SLOW_FIRST_LINE = "* first call over 3 times the median"
ONE_RANK_LINE = "one rank, no communication: times, but no bandwidth"
FAKE_LINE = "fake backend: nothing was communicated"


class Notes:
    """Numbers texts in the order in which rows mention them; equal texts share a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, text: str) -> str:
        return f"[{self._numbers.setdefault(text, len(self._numbers) + 1)}]"

    def marks(self, result: CaseResult) -> str:
        """The marks of everything that there is to say about a result."""
        return "".join(self.mark(text) for text in _remarks(result))

    def lines(self) -> list[str]:
        return [f"[{number}] {text}" for text, number in self._numbers.items()]


def _remarks(result: CaseResult) -> Iterable[str]:
    if result.reason:
        yield one_line(result.reason)
    check = result.verification
    if check is not None and check.wrong and check.wrong_ranks:
        yield f"wrong on rank{'s' if len(check.wrong_ranks) > 1 else ''} " + format_ranges(
            check.wrong_ranks
        )
    if check is not None and check.tolerance_ulp:
        yield f"values within {check.tolerance_ulp} ulp count as correct"
    yield from (one_line(text) for text in result.warnings)


def run_lines(run: Run, rows: Iterable[Row], first_calls: bool = True) -> list[str]:
    """Lines about the run as a whole. ``first_calls``: the table has a first call column."""
    rows = list(rows)
    lines = []
    if first_calls and any(row.slow_first for row in rows):
        lines.append(SLOW_FIRST_LINE)
    if any(row.ranks == 1 for row in rows):
        lines.append(ONE_RANK_LINE)
    if any(row.backend == "fake" for row in rows):
        lines.append(FAKE_LINE)
    lines += [
        f"{event.get('kind', 'event')}: {one_line(event.get('message', ''))}"
        for event in run.events
    ]
    return lines + problems_of(run)


def problems_of(run: Run) -> list[str]:
    """What reading found wrong, and how the run ended if it did not end well."""
    problems = [one_line(text) for text in run.problems]
    ending = one_line(run.ending)
    # load() says it, a run that has just ended does not.
    return problems if not ending or ending in problems else [*problems, ending]
