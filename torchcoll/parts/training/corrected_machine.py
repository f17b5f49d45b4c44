"""A machine whose predictions are corrected by a measured step.

The times of a collective take the factor that was measured for it; other collectives take that of
all calls, without FSDP2's copies. Calls like those measured (collective, number of ranks and size)
have the error of the factor alone. Where only the size differs, by an octave at most, the error of
the machine's law that is independent between sizes comes on top, and for all other calls its whole
error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchcoll.parts.curves.predictor import Ends, PredictedCase, Prediction, Predictor

# The ratio of a measured step's communication to its plan where nothing was measured.
UNCORRECTED = (
    "real steps took 1.4 (FSDP2) and 2.0 (DDP) times the communication that was planned from calls "
    "alone, on 4 gloo ranks of 2 cores (results/benchmarks/plan-2026-11-22.txt): copies, launch "
    "gaps, contention, late ranks. --measured CAPTURE takes yours into the plan"
)


@dataclass(frozen=True)
class Correction:
    """What a measured step changes in a plan.

    - factor: (measured, low, high) over planned time of all calls, with FSDP2's copies.
    - others: the same without the copies, for collectives that were not measured.
    - factors: of each measured collective.
    - sizes: the measured sizes S by collective and number of ranks.
    - gap_ns: the time in which nothing runs, divided by the calls; 0.0 if unknown.
    - blocking: collectives whose calls the program waits for at once, so that nothing hides them.
    """

    factor: Ends
    others: Ends
    factors: Mapping[str, Ends]
    sizes: Mapping[tuple[str, int], frozenset[int]]
    gap_ns: float
    blocking: frozenset[str]


class CorrectedMachine:
    """``machine`` with a correction; see Predictor."""

    def __init__(self, machine: Predictor, correction: Correction) -> None:
        self.machine, self.correction = machine, correction

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def intervals(self) -> str:
        return self.machine.intervals

    @property
    def measured(self) -> str:
        return self.machine.measured

    @property
    def ranks_per_host(self) -> float | None:
        return self.machine.ranks_per_host

    def predict(
        self, collective: str, size_bytes: int, ranks: int, hosts: int | None = None
    ) -> Prediction:
        prediction = self.machine.predict(collective, size_bytes, ranks, hosts)
        return self._corrected(prediction, collective, size_bytes, ranks)

    def predict_at_once(
        self,
        collective: str,
        size_bytes: int,
        ranks: int,
        groups: int,
        hosts: int | None = None,
    ) -> Prediction | None:
        prediction = self.machine.predict_at_once(collective, size_bytes, ranks, groups, hosts)
        return prediction and self._corrected(prediction, collective, size_bytes, ranks)

    def _corrected(
        self, prediction: Prediction, collective: str, size_bytes: int, ranks: int
    ) -> Prediction:
        factor = self.correction.factors.get(collective, self.correction.others)
        sizes = self.correction.sizes.get((collective, ranks), frozenset())
        if size_bytes in sizes:
            return corrected(prediction, factor, 0.0, 0.0)
        near = bool(sizes) and min(sizes) / 2 <= size_bytes <= 2 * max(sizes)
        return corrected(prediction, factor, 0.0 if near else 1.0, 1.0)

    def cases(self, collective: str | None = None) -> Sequence[PredictedCase]:
        return self.machine.cases(collective)

    def check_collectives(self, collectives: Iterable[str]) -> None:
        self.machine.check_collectives(collectives)

    def concurrent_work(self, collectives: Iterable[str]) -> str:
        return self.machine.concurrent_work(collectives)

    def on_cpu(self, collectives: Iterable[str]) -> bool:
        """False: the times are those of calls beside computation, and no lower bound."""
        return False

    def notes(self) -> list[str]:
        return self.machine.notes()

    def alternatives(self) -> list[tuple[str, Predictor]]:
        return [
            (text, CorrectedMachine(machine, self.correction))
            for text, machine in self.machine.alternatives()
        ]


def corrected(prediction: Prediction, factor: Ends, common: float, rest: float) -> Prediction:
    """Returns the prediction times the factor, with the error of the factor and shares of its own.

    - factor: value, low, high.
    - common, rest: the shares of the variance that all calls of the machine have in common, and of
      the rest, that come on top of the factor's.
    """
    value, low, high = factor
    time = prediction.time_ns * value
    ends, common_share = [], 1.0
    for end, factor_end in ((prediction.low_ns, low), (prediction.high_ns, high)):
        wide = abs(math.log(end / prediction.time_ns))
        of_factor = abs(math.log(factor_end / value))
        shared = of_factor**2 + common * prediction.common * wide**2
        total = shared + rest * (1 - prediction.common) * wide**2
        ends.append(math.exp(min(350.0, math.sqrt(total))))
        common_share = shared / total if total else 1.0
    return Prediction(time, time / ends[0], time * ends[1], prediction.beyond, common_share)
