"""``--fail-on slower:5%``: which results make the command exit with 1."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchcoll.core.errors import UsageError
from torchcoll.core.units import counted, parse_share

if TYPE_CHECKING:
    from torchcoll.comparison.compare import Comparison
    from torchcoll.comparison.results import Judged


_GATES = {"slower": "slower", "inconclusive": "inconclusive", "not-comparable": "not comparable"}


def parse_gate(text: str) -> dict[str, float]:
    """Map each result of a gate, such as ``slower:5%,not-comparable``, to its least change."""
    gate = {}
    for part in text.split(","):
        name, colon, share = (text.strip() for text in part.partition(":"))
        if name not in _GATES or (colon and name != "slower"):
            raise UsageError("fail-on", part, "slower, slower:5%, inconclusive or not-comparable")
        gate[_GATES[name]] = parse_share(share, "fail-on slower") if colon else 0.0
    return gate


def tripped(gate: dict[str, float], cases: Iterable[Judged]) -> dict[str, int]:
    """How many cases have each result of the gate, and so large a change."""
    counts: dict[str, int] = {}
    for case in cases:
        change = abs(math.log(case.ratio.ratio)) if case.ratio else math.inf
        if case.result in gate and change >= math.log1p(gate[case.result]):
            counts[case.result] = counts.get(case.result, 0) + 1
    return counts


def untested(gate: dict[str, float], comparisons: Iterable[Comparison]) -> str:
    """What a gate on ``slower`` could not see, of the cases that both sides have; '' if nothing.

    With one run on a side it never trips, and wrong results are slower than nothing.
    """
    cases: list[Judged] = []
    for each in comparisons:
        cases += [fit.judged for fit in each.fitted]
        cases += [row.judged for row in each.rows if row.matched and not each.fitted]
    unseen = sum(case.p_value is None for case in cases)
    if "slower" not in gate or not unseen:
        return ""
    return f"{unseen} of {counted(len(cases), 'case')} could not be judged, and cannot fail it"
