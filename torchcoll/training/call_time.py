"""The duration of one call of a collective, by its size and number of ranks.

There are two implementations: measured curves (training/measured_curves.py) and a machine model
(``ModelCallTime`` here).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torchcoll.curves.model import MachineModel


class Duration(NamedTuple):
    """The duration of a call.

    - each_ns: the value first, then its alternatives, in ns: one for each run of a measured curve,
      or the two ends of a model's interval. Alternatives of several calls correspond by index, so
      that a step can be added up for each of them.
    - extrapolated: how far outside of the data the size is; '' if within.
    """

    each_ns: tuple[float, ...]
    extrapolated: str


class CallTime(Protocol):
    """Predicts the duration of a call."""

    def duration(self, collective: str, size_bytes: int, ranks: int) -> Duration:
        """Returns the duration of a call of ``size_bytes`` (the size S of nccl-tests).

        Raises UsageError if it cannot be predicted.
        """


class ModelCallTime(CallTime):
    """Predicts durations with a machine model; each_ns is the prediction, low and high."""

    def __init__(self, model: MachineModel) -> None:
        self._model = model

    def duration(
        self, collective: str, size_bytes: int, ranks: int, hosts: int | None = None
    ) -> Duration:
        """Returns the predicted duration; ``hosts`` as in MachineModel.predict."""
        *each_ns, beyond = self._model.predict(collective, size_bytes, ranks, hosts)
        return Duration(tuple(each_ns), beyond)
