"""How long one call of a collective takes, by its size and its ranks.

Two makers: measured curves (training/measured_curves.py) and the model of a machine
(``ModelCallTime`` here).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torchcoll.curves.model import MachineModel


class Duration(NamedTuple):
    """The time of a call in ns.

    each_ns: the value first, then its alternatives: one for each run of a measured curve, or the
    two ends of a model's interval. Those of several calls belong together by their index, so that
    a step is added up for each. extrapolated: how far outside of the data, '' within.
    """

    each_ns: tuple[float, ...]
    extrapolated: str


class CallTime(Protocol):
    """size_bytes: the size S of nccl-tests."""

    def of(self, collective: str, size_bytes: int, ranks: int) -> Duration:
        """Raises UsageError for what cannot be told."""


class ModelCallTime(CallTime):
    """By the model of a machine. each_ns: the prediction, low, high."""

    def __init__(self, model: MachineModel) -> None:
        self._model = model

    def of(
        self, collective: str, size_bytes: int, ranks: int, hosts: int | None = None
    ) -> Duration:
        """hosts: as in MachineModel.predict."""
        *each_ns, beyond = self._model.predict(collective, size_bytes, ranks, hosts)
        return Duration(tuple(each_ns), beyond)
