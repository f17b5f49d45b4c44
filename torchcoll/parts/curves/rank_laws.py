"""The laws of a duration over the number of ranks, and how they are fitted.

A law is a constant and terms of the number of ranks n:

* ``log2 n``: the steps of a tree
* ``n``: the steps of a ring
* ``(n-1)/n``: the share of the data that each rank sends, which determines the time of a ring that
  is limited by bandwidth (nccl-tests doc/PERFORMANCE.md, the bus factors)

``growth.py`` finds the law that the durations of a case follow when n grows, and assumes nothing
about the collective. A model (``model_ranks.py``) uses the collective and fits all sizes together:

    time = launch + steps(n) x latency of a step + share(n) x size / bandwidth

Steps and shares are counted as in textbooks (R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High
Performance Computing Applications 19 (2005) 49) and in NCCL's graph/tuning.cc: a ring takes
2 (n - 1) steps; a tree takes 2 log2 n, is pipelined, and sends the size twice for any n. Where the
data cannot tell any law from another, it counts which algorithms the library has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
from scipy import optimize

from torchcoll.core.backends import BACKENDS, NCCL
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.parts.curves.slow_sizes import Floats

TERMS: dict[str, Callable[[Floats], Floats]] = {
    "log2 n": lambda n: numpy.asarray(numpy.log2(n)),
    "n": lambda n: n,
    "(n-1)/n": lambda n: (n - 1) / n,
}
_MANY = 1 << 20  # ranks: the bus factor is close to its limit for so many


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
        """The factor of each parameter, at each number of ranks."""
        return [numpy.ones(len(ranks)), *(TERMS[name](ranks) for name in self.terms)]


CONSTANT = RankLaw(())
ALONE = tuple(RankLaw((name,)) for name in TERMS)
# Latency and bandwidth of a ring, and of a tree.
MIXTURES = (RankLaw(("n", "(n-1)/n")), RankLaw(("log2 n", "(n-1)/n")))


def fit_positive(columns: Floats, times: Floats) -> tuple[Floats, Floats]:
    """Least squares with parameters that are not negative; returns them and the fitted times.

    columns: a column for each parameter, a row for each time. Noise is proportional to the
        duration, so callers divide rows and times by the expected time.
    """
    scale = numpy.maximum(abs(columns).max(axis=0), 1e-300)
    parameters, _ = optimize.nnls(columns / scale, times)
    return parameters / scale, columns / scale @ parameters


@dataclass(frozen=True)
class StepLaw:
    """How an algorithm communicates: its steps one after another, and the data that a rank sends.

    term: the name in TERMS of the law by which the steps grow; None for one step on any ranks.
    passes: how often the steps are repeated.
    share: the data that a rank sends over the size, as a function of the ranks.
    """

    name: str
    term: str | None
    passes: int
    share: Callable[[int], float]

    def steps(self, ranks: int) -> float:
        """The number of steps; a single rank needs none, unless ``term`` is None."""
        if self.term is None:
            return 1.0
        of_ranks, of_one = TERMS[self.term](numpy.array([ranks, 1.0]))
        return self.passes * float(of_ranks - of_one)


def step_laws(collective: str) -> Sequence[StepLaw]:
    """The laws of a collective: ring, tree, recursive doubling and linear.

    A collective in which each rank communicates with its neighbours only has a single law. It is
    recognised as one without a root that carries the same data on any number of ranks.
    """
    entry = COLLECTIVES[collective]

    def in_ring(ranks: int) -> float:
        """The data that a rank sends in a ring over the size: busbw x time / size."""
        return entry.moved(ranks) * entry.bus_factor(ranks)

    if entry.has_data and not entry.has_root and in_ring(_MANY) == in_ring(2):
        return (StepLaw("neighbours", None, 1, lambda n: 1.0),)
    passes = max(1, round(in_ring(_MANY)))
    ring = StepLaw("ring", "n", passes, in_ring)
    tree = StepLaw("tree", "log2 n", passes, lambda n: float(passes))
    doubling = StepLaw("recursive doubling", "log2 n", 1, in_ring)
    linear = StepLaw("linear", "n", 1, in_ring)
    if entry.parts(2) == 1 and not entry.has_splits:
        # These algorithms send all data in each step; blocks of ranks would be sent only once.
        doubling = StepLaw(doubling.name, doubling.term, 1, doubling.steps)
        linear = StepLaw(linear.name, linear.term, 1, linear.steps)
    return (ring, tree, doubling, linear)


def library_laws(collective: str, backend: str) -> Sequence[StepLaw]:
    """The laws that the library of a backend can follow; all of them if that is not known.

    NCCL and RCCL run an all_reduce in a ring or a tree, whichever is faster for the size. For large
    sizes both send as many bytes, and for small ones the tree is faster, so that the tree's law
    holds. Other collectives run in a ring.
    """
    laws = step_laws(collective)
    entry = BACKENDS.get(backend)
    if len(laws) < 2 or entry is None or entry.family != NCCL:
        return laws
    ring, tree, *_ = laws
    return [tree if COLLECTIVES[collective].by_switch else ring]
