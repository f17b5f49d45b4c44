"""The duration of one call of a collective, by its size and number of ranks.

Measured curves (training/measured_curves.py) predict it; a machine does so by itself
(curves/predictor.py).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Duration(NamedTuple):
    """The duration of a call.

    - each_ns: the value first, then its alternatives, in ns: one for each run of a measured curve.
      Alternatives of several calls correspond by index, so
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
