"""How a duration depends on the number of ranks: the one table of laws, and how they are fitted.

A law is a constant and terms of the number of ranks n:

* ``log2 n``: the steps of a tree
* ``n``: the steps of a ring
* ``(n-1)/n``: the share of the data that each rank sends, which is what a ring takes where
  bandwidth decides (nccl-tests doc/PERFORMANCE.md, the bus factors)

``growth.py`` asks which law the durations of a case follow when n grows, and assumes nothing of the
collective. A model (``model_ranks.py``) knows the collective and fits all sizes together:

    time = run + steps(n) x latency of a step + share(n) x size / bandwidth

with steps and shares as the textbook counts them (R. Thakur, R. Rabenseifner and W. Gropp, Int. J.
High Performance Computing Applications 19 (2005) 49; of NCCL graph/tuning.cc: 2 (n - 1) steps of a
ring, 2 log2 n of a tree, which is pipelined and sends the size twice whatever n is). They follow
from the entry of the collective: what a ring sends is its bus factor. Two laws may be the same for
a collective, or hardly differ on the numbers of ranks that were measured: then both remain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
from scipy import optimize

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.stats.line import Floats

TERMS: dict[str, Callable[[Floats], Floats]] = {
    "log2 n": lambda n: numpy.asarray(numpy.log2(n)),
    "n": lambda n: n,
    "(n-1)/n": lambda n: (n - 1) / n,
}
_MANY = 1 << 20  # ranks, at which a bus factor is its limit


@dataclass(frozen=True)
class RankLaw:
    """time = a + b f(n) + c g(n) ..., with an f of TERMS for each name in ``terms``."""

    terms: tuple[str, ...]

    @property
    def name(self) -> str:
        return " + ".join(self.terms)

    @property
    def parameters(self) -> int:
        return 1 + len(self.terms)

    def columns(self, ranks: Floats) -> list[Floats]:
        """What each parameter is multiplied by, at each number of ranks."""
        return [numpy.ones(len(ranks)), *(TERMS[name](ranks) for name in self.terms)]


CONSTANT = RankLaw(())
ALONE = tuple(RankLaw((name,)) for name in TERMS)
# Latency and bandwidth of a ring, and of a tree.
MIXTURES = (RankLaw(("n", "(n-1)/n")), RankLaw(("log2 n", "(n-1)/n")))


def fit_positive(columns: Floats, times: Floats) -> tuple[Floats, Floats]:
    """The parameters, none below 0, of least squares, and the times that they give.

    columns: one for each parameter, a row for each time. Noise is a share of a duration: rows and
    times are to be divided by the time that is expected there, so that all deviations count alike.
    """
    scale = numpy.maximum(abs(columns).max(axis=0), 1e-300)
    parameters, _ = optimize.nnls(columns / scale, times)
    return parameters / scale, columns / scale @ parameters


@dataclass(frozen=True)
class StepLaw:
    """How an algorithm sends: messages one after the other, and what a rank sends of the size.

    term: of TERMS, by which the steps grow; None where they do not. passes: how often it is gone
    through. share: of the size, what a rank sends, as a function of the ranks.
    """

    name: str
    term: str | None
    passes: int
    share: Callable[[int], float]

    def steps(self, ranks: int) -> float:
        """Counted from one rank, which sends nothing."""
        if self.term is None:
            return 1.0
        of_ranks, of_one = TERMS[self.term](numpy.array([ranks, 1.0]))
        return self.passes * float(of_ranks - of_one)


def step_laws(collective: str) -> Sequence[StepLaw]:
    """Ring, tree, recursive doubling and linear; one law alone where each rank talks to its
    neighbours only: a collective without a root that carries as much on any number of ranks.
    """
    entry = COLLECTIVES[collective]

    def in_ring(ranks: int) -> float:
        """What a rank sends in a ring, over the size: busbw x time / size."""
        return entry.moved(ranks) * entry.bus_factor(ranks)

    if entry.has_data and not entry.has_root and in_ring(_MANY) == in_ring(2):
        return (StepLaw("neighbours", None, 1, lambda n: 1.0),)
    passes = max(1, round(in_ring(_MANY)))
    ring = StepLaw("ring", "n", passes, in_ring)
    tree = StepLaw("tree", "log2 n", passes, lambda n: float(passes))
    doubling = StepLaw("recursive doubling", "log2 n", 1, in_ring)
    linear = StepLaw("linear", "n", 1, in_ring)
    if entry.parts(2) == 1 and not entry.has_splits:
        # Each step sends all; blocks of each rank are sent once however they go.
        doubling = StepLaw(doubling.name, doubling.term, 1, doubling.steps)
        linear = StepLaw(linear.name, linear.term, 1, linear.steps)
    return (ring, tree, doubling, linear)
