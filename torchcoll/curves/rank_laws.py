"""The laws of time over the number of ranks n, and what the algorithms of a collective make of
them: ring, tree, recursive doubling and linear.

Growth is by one of three functions: log2 n, the steps of a tree; n, the steps of a ring; (n-1)/n,
the share of the data that each rank sends. curves/growth.py asks which of them a curve follows. A
step law says how many messages follow one another, and how much each rank sends:

    time = launch + steps(n) x latency of a step + share(n) x size / bandwidth

The counts are the textbook ones (R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Performance
Computing Applications 19 (2005) 49; of NCCL graph/tuning.cc: 2 (n - 1) steps of a ring, 2 log2 n of
a tree, which is pipelined and sends the size twice whatever n is). They follow from the entry of
the collective: what a ring sends is its bus factor. Two laws may be the same for a collective, or
hardly differ on the numbers of ranks that were measured: then both remain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

from torchcoll.core.collectives import COLLECTIVES, Collective

_MANY = 1 << 20  # ranks, at which a bus factor is its limit


def tree_steps(n: Any) -> Any:
    """log2 n; n: a number of ranks, or an array of them."""
    return numpy.log2(n)


def ring_steps(n: Any) -> Any:
    """n - 1, which with a constant beside it is the law n."""
    return n - 1.0


def sent_share(n: Any) -> Any:
    """(n-1)/n of the data (nccl-tests doc/PERFORMANCE.md, the bus factors)."""
    return (n - 1.0) / n


GROWTH_LAWS: dict[str, Callable[[Any], Any]] = {
    "log2 n": tree_steps,
    "n": lambda n: ring_steps(n) + 1,
    "(n-1)/n": sent_share,
}


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
        StepLaw("ring", lambda n: passes * ring_steps(n), carried),
        StepLaw("tree", lambda n: passes * tree_steps(n), lambda n: float(passes)),
        StepLaw("recursive doubling", tree_steps, whole(tree_steps)),
        StepLaw("linear", ring_steps, whole(ring_steps)),
    )


def _carried(entry: Collective, ranks: int) -> float:
    """What a rank sends in a ring, over the size: busbw x time / size."""
    return entry.moved(ranks) * entry.bus_factor(ranks)


def _neighbours_only(entry: Collective) -> bool:
    """A message to the next rank, whatever their number: no root, and as much for any number."""
    alike = _carried(entry, _MANY) == _carried(entry, 2)
    return entry.has_data and not entry.has_root and alike
