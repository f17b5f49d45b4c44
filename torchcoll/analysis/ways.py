"""How the cases of the two sides were measured: calls asked for, why they ended, lead calls.

These are no facts of an environment and keep no cases apart: they are named, case by case, where
they are not the same, because each of them can be what a ratio shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchcoll.analysis.environments import Difference
from torchcoll.analysis.matching import Pair
from torchcoll.analysis.sides import Measured


def ways_of(pairs: Sequence[Pair]) -> list[Difference]:
    """What the sides share no value of, in the cases that both have. Unknown on a side is none."""
    matched = [pair for pair in pairs if pair.base and pair.new]
    return [one for name, of in _WAYS if (one := _difference(name, of, matched)) is not None]


def _difference(
    name: str, of: Callable[[Measured], str], matched: Sequence[Pair]
) -> Difference | None:
    differing, known = [], 0
    for pair in matched:
        both = [{value for m in items if (value := of(m))} for items in (pair.base, pair.new)]
        if not all(both):
            continue
        known += 1
        if not both[0] & both[1]:
            differing.append(both)
    if not differing:
        return None
    ours, theirs = (tuple(sorted(set().union(*values))) for values in zip(*differing, strict=True))
    where = f"in {len(differing)} of {known} cases" if len(differing) < known else ""
    return Difference(name, ours, theirs, where)


def _asked(item: Measured) -> str:
    if item.result.given:
        return str(item.result.given.calls or "")
    return item.iters


def _stop(item: Measured) -> str:
    return item.result.stop if item.result.time_ns else ""


def _lead(item: Measured) -> str:
    """Whether there were lead calls; a file from before there were any had none. Not how many:
    it is 10 ms over the last cold call, and so differs between two runs of one command.
    """
    if not item.result.time_ns:
        return ""
    return "some" if any(item.result.lead_ns) else "none"


_WAYS = (
    ("iterations (-n)", _asked),
    ("stopped by", _stop),
    ("lead calls", _lead),
)
