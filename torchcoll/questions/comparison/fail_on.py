"""``--fail-on slower:5%``: which results make the command exit with 1.

A gate always fails on wrong, failed and missing cases of the new side, unless it says otherwise:
``slower:5%,ignore-missing``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchcoll.core.errors import ExitCode, UsageError
from torchcoll.core.units import counted, format_ratio, parse_share, plural
from torchcoll.report.junit import JunitTest, junit_document

if TYPE_CHECKING:
    from torchcoll.questions.comparison.compare import Comparison
    from torchcoll.questions.comparison.results import Compared


_RESULTS = {"slower": "slower", "inconclusive": "inconclusive", "not-comparable": "not comparable"}
_FAULTS = ("wrong", "failed", "missing")


@dataclass(frozen=True)
class Gate:
    """text: as it was given; results: the least change with which each of them fails; faults: those
    of _FAULTS that fail.
    """

    text: str
    results: dict[str, float]
    faults: tuple[str, ...] = _FAULTS


def parse_gate(text: str) -> Gate:
    """Raises UsageError for words that are none of a gate."""
    results: dict[str, float] = {}
    faults = list(_FAULTS)
    for part in text.split(","):
        name, colon, share = (text.strip() for text in part.partition(":"))
        ignored = name.removeprefix("ignore-")
        if not colon and ignored != name and ignored in _FAULTS:
            faults = [fault for fault in faults if fault != ignored]
        elif name not in _RESULTS or (colon and name != "slower"):
            expected = "slower, slower:5%, inconclusive, not-comparable, or ignore-"
            raise UsageError("fail-on", part, f"{expected}wrong, ignore-failed, ignore-missing")
        else:
            results[_RESULTS[name]] = parse_share(share, "fail-on slower") if colon else 0.0
    return Gate(text, results, tuple(faults))


def tripped(gate: Gate, comparisons: Sequence[Comparison]) -> dict[str, int]:
    """How many cases have each fault and each result of the gate, and so large a change."""
    from torchcoll.stats.side_faults import entries_of

    faults = entries_of(each.faults[1] for each in comparisons)
    counts = Counter({name: faults[name] for name in gate.faults if name in faults})
    rows = (row for each in comparisons for row in each.rows)
    counts.update(row.result for row in rows if _has_result(gate, row))
    return dict(counts)


def _has_result(gate: Gate, row: Compared) -> bool:
    """Whether a case has a result of the gate, with so large a change."""
    change = abs(math.log(row.judged.ratio.ratio)) if row.judged.ratio else math.inf
    return row.result in gate.results and change >= math.log1p(gate.results[row.result])


def outcome(gate: Gate, comparisons: Sequence[Comparison]) -> tuple[ExitCode, str]:
    """The exit code of the gate, and why it is not 0."""
    if failed := tripped(gate, comparisons):
        return ExitCode.FAILED, ", ".join(f"{count} {result}" for result, count in failed.items())
    if why := cannot_tell(gate, comparisons):
        return ExitCode.USAGE, f"cannot tell: {why}"
    return ExitCode.OK, ""


_JUNIT_RESULTS = {ExitCode.FAILED: "failure", ExitCode.USAGE: "skipped", ExitCode.OK: ""}


def junit_text(gate: Gate, comparisons: Sequence[Comparison]) -> str:
    """A test suite per comparison, with a test for the gate and one for each case. A case that the
    gate allows, but that is not decided, is skipped.
    """
    suites = []
    for each in comparisons:
        code, why = outcome(gate, [each])
        message = f"{why}: {each.answer.headline}" if why else each.answer.headline
        tests = [JunitTest(f"fail-on {gate.text}", _JUNIT_RESULTS[code], message)]
        for row in each.rows:
            name = each.name_of(row) or row.row.collective
            faults = [fault for fault in gate.faults if name in each.faults[1].names[fault]]
            undecided = row.result in ("inconclusive", "not comparable")
            failed = faults or _has_result(gate, row)
            kind = "failure" if failed else "skipped" if undecided else ""
            speed = f", speed-up {format_ratio(row.speed)}" if row.judged.ratio else ""
            text = f"{', '.join(faults) or row.result}: {row.reason}{speed}"
            tests.append(JunitTest(name, kind, text, row.row.median_ns if row.pair.new else None))
        suites.append((f"{each.side_names[1]} against {each.side_names[0]}", tests))
    return junit_document(suites, "torchcoll.compare")


def cannot_tell(gate: Gate, comparisons: Iterable[Comparison]) -> str:
    """Why a gate on ``slower`` cannot pass the new sides; '' if it can.

    A case, or a run that is left out, looks at least twice as slow and is not shown to be; or more
    than the gate allows may be hidden in the noise.
    """
    from torchcoll.questions.comparison.results import FAR_SLOWER
    from torchcoll.questions.comparison.wording import hidden_slowdown

    if "slower" not in gate.results:
        return ""
    comparisons = list(comparisons)
    far = sum(
        row.result == "inconclusive"
        and row.judged.ratio is not None
        and row.speed <= 1 / FAR_SLOWER
        for each in comparisons
        for row in each.rows
    )
    if far:
        return f"{counted(far, 'case')} {plural(far, 'looks', 'look')} 2x slower or more, undecided"
    sides = [each.faults[1] for each in comparisons]
    texts = [
        side.outlier_text
        for side in sides
        if any(speed <= 1 / FAR_SLOWER for speed in side.outliers)
    ]
    texts += [hidden_slowdown(each, gate.results["slower"]) for each in comparisons]
    return next(filter(None, texts), "")


def untested(gate: Gate, comparisons: Iterable[Comparison]) -> str:
    """What a gate on ``slower`` could not see, of the cases that both sides have; '' if nothing."""
    cases = [row.judged for each in comparisons for row in each.rows if row.matched]
    unseen = sum(case.p_value is None for case in cases)
    if "slower" not in gate.results or not unseen:
        return ""
    return f"{unseen} of {counted(len(cases), 'case')} could not be judged"
