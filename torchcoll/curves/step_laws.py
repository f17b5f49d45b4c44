"""How many messages follow one another in a collective, and how much each rank sends: ring, tree,
recursive doubling and linear.

    time = launch + steps(n) x latency of a step + share(n) x size / bandwidth

The counts are the textbook ones (R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Performance
Computing Applications 19 (2005) 49; of NCCL graph/tuning.cc: 2 (n - 1) steps of a ring, 2 log2 n of
a tree, which is pipelined and sends the size twice whatever n is). They follow from the entry of
the collective: what a ring sends is its bus factor. Two laws may be the same for a collective, or
hardly differ on the numbers of ranks that were measured: then both remain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torchcoll.core.collectives import COLLECTIVES, Collective

_MANY = 1 << 20  # ranks, at which a bus factor is its limit


@dataclass(frozen=True)
class StepLaw:
    """steps(n): messages one after the other; share(n): of the size, what a rank sends."""

    name: str
    steps: Callable[[int], float]
    share: Callable[[int], float]


def step_laws(collective: str) -> tuple[StepLaw, ...]:
    """The four laws of a collective; one alone where each rank talks to its neighbours only."""
    entry = COLLECTIVES[collective]
    if _neighbours_only(entry):
        return (StepLaw("neighbours", lambda n: 1.0, lambda n: 1.0),)
    passes = max(1, round(_carried(entry, _MANY)))
    divided = entry.parts(2) > 1 or entry.has_splits

    def carried(n: int) -> float:
        return _carried(entry, n)

    def whole(steps: Callable[[int], float]) -> Callable[[int], float]:
        """Undivided, each step sends all; blocks of each rank are sent once however they go."""
        return carried if divided else steps

    return (
        StepLaw("ring", lambda n: passes * (n - 1.0), carried),
        StepLaw("tree", lambda n: passes * math.log2(n), lambda n: float(passes)),
        StepLaw("recursive doubling", math.log2, whole(math.log2)),
        StepLaw("linear", lambda n: n - 1.0, whole(lambda n: n - 1.0)),
    )


def _carried(entry: Collective, ranks: int) -> float:
    """What a rank sends in a ring, over the size: busbw x time / size."""
    return entry.moved(ranks) * entry.bus_factor(ranks)


def _neighbours_only(entry: Collective) -> bool:
    """A message to the next rank, whatever their number: no root, and as much for any number."""
    alike = _carried(entry, _MANY) == _carried(entry, 2)
    return entry.has_data and not entry.has_root and alike
