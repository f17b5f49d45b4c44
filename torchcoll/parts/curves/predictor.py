"""What a prediction needs of a machine, how errors of several calls add up, and what links allow.

There are two kinds of machine: a model that was fitted to runs (curves/model.py), and one that
others measured (curves/published_machine.py). ``find_machine`` (curves/named_machines.py) returns
either.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError, brief
from torchcoll.core.plausibility import DeviceLimits, ceiling_gbps, crossing
from torchcoll.core.units import format_size


class Prediction(NamedTuple):
    """The predicted time of a call, in ns, with its 90 % interval.

    - time_ns: the value; low_ns, high_ns: the ends of the interval.
    - beyond: how far it is extrapolated; '' if it is not.
    - common: the share of the error's variance that all calls on the machine have in common.
    """

    time_ns: float
    low_ns: float
    high_ns: float
    beyond: str
    common: float = 1.0


Ends = tuple[float, float, float]  # value, low, high


@dataclass(frozen=True)
class PredictedCase:
    """A kind of call that a machine can predict.

    - kind: its collective, and what else is known of it.
    - predict: (size in bytes, ranks, hosts or None) -> the prediction.
    """

    kind: Mapping[str, Any]
    predict: Callable[[int, int, int | None], Prediction]


class Predictor(Protocol):
    """A machine whose calls can be predicted."""

    @property
    def name(self) -> str:
        """What the user called it: a file, or a name of the published set."""

    @property
    def intervals(self) -> str:
        """How the 90 % intervals were found."""

    @property
    def measured_ranks(self) -> Sequence[int]:
        """The numbers of ranks that were measured, in order."""

    @property
    def measured_sizes(self) -> tuple[int, int]:
        """The smallest and the largest size that was measured."""

    @property
    def ranks_per_host(self) -> float | None:
        """The most ranks of a host; infinite if only one host was measured, None if not known."""

    def predict(
        self, collective: str, size_bytes: int, ranks: int, hosts: int | None = None
    ) -> Prediction:
        """Predict a call. Raises UsageError for one that cannot be predicted."""

    def predict_at_once(
        self, collective: str, size_bytes: int, ranks: int, groups: int, hosts: int | None = None
    ) -> Prediction | None:
        """Predict a call while so many groups of as many ranks make it at once, from calls that
        were measured so, with each group on so many hosts; None if there are none, or if these were
        smaller.
        """

    def cases(self, collective: str | None = None) -> Sequence[PredictedCase]:
        """The kinds of calls that can be predicted, of one collective if it is named.

        Raises UsageError if there is none.
        """

    def check_collectives(self, collectives: Iterable[str]) -> None:
        """Raises UsageError that names all of these collectives that cannot be predicted."""

    def on_cpu(self, collectives: Iterable[str]) -> bool:
        """Whether these calls take the cores that compute."""

    def notes(self, ranks: int | None = None) -> list[str]:
        """What is assumed, and what is not in a prediction, on so many ranks at most."""


class PlannedCalls(NamedTuple):
    """So many calls of one kind and size, one after another."""

    collective: str
    size_bytes: int
    calls: int
    prediction: Prediction


def sum_of(items: Iterable[PlannedCalls]) -> Ends:
    """The time of all these calls, one after another, with its 90 % interval.

    The part of the error that all calls of a machine have in common adds up with the times. The
    rest is independent between collectives and between octaves of the size, and adds up as squares.
    In logarithms.
    """
    planned = list(items)
    total = sum(item.calls * item.prediction.time_ns for item in planned)
    if not total:
        return 0.0, 0.0, 0.0

    def half(end: int) -> float:
        common = 0.0
        independent: dict[tuple[str, int], float] = {}
        for collective, size_bytes, calls, prediction in planned:
            factor = (prediction.low_ns, prediction.high_ns)[end] / prediction.time_ns
            wide = abs(math.log(factor)) * calls * prediction.time_ns / total
            common += math.sqrt(prediction.common) * wide
            key = collective, size_bytes.bit_length()
            rest = math.sqrt(1 - prediction.common) * wide
            independent[key] = independent.get(key, 0.0) + rest
        return math.hypot(common, *independent.values())

    return total, total * math.exp(-half(0)), total * math.exp(min(700.0, half(1)))


@lru_cache(maxsize=1024)
def least_ns(
    collective: str,
    size_bytes: int,
    ranks: int,
    hosts: int | None,
    device: DeviceLimits | None,
    host_gbps: float | None = None,
) -> float:
    """The least time that the links allow, in ns; 0.0 if they are not known.

    device: of each rank. host_gbps: all network interfaces of a host together, in one direction.
    """
    entry, least = COLLECTIVES[collective], 0.0
    moved = size_bytes * entry.moved(ranks) * entry.bus_factor(ranks)
    if device is not None:
        least = moved / ceiling_gbps(collective, ranks, device.wire_gbps, device.multicast)
    if hosts and hosts > 1 and host_gbps:
        names = [str(rank * hosts // ranks) for rank in range(ranks)]
        per_host = max(Counter(names).values())
        least = max(least, size_bytes * crossing(collective, names, None) * per_host / host_gbps)
    return least


def bounded(prediction: Prediction, least: float) -> Prediction:
    """The prediction with no end below the least time that the links allow."""
    if prediction.low_ns >= least:
        return prediction
    time = max(prediction.time_ns, least)
    return prediction._replace(time_ns=time, low_ns=least, high_ns=max(prediction.high_ns, time))


WIDEST = 100.0  # ratio of the ends of an interval: a wider interval counts as no prediction


@dataclass(frozen=True)
class PredictedRow:
    """The prediction for one size on one number of ranks.

    prediction: None if its interval would be wider than WIDEST, or if no law covers these ranks.
    reason: why there is no prediction; action: what to do about it.
    """

    kind: Mapping[str, Any]
    ranks: int
    size_bytes: int
    prediction: Prediction | None
    reason: str = ""
    action: str = ""


def predict_all(
    machine: Predictor,
    ranks: Sequence[int],
    sizes: Sequence[int],
    collective: str | None = None,
    hosts: int | None = None,
) -> list[PredictedRow]:
    """Predict every kind of case of the machine, or of one collective, for all sizes and ranks.

    hosts: of the ranks; None for as few as they need.
    Raises UsageError with the first reason if nothing can be predicted, and for ranks that are not
    a multiple of the hosts.
    """
    if hosts is not None:
        uneven = next((n for n in ranks if hosts < 1 or n % hosts), None)
        if uneven is not None:
            expected = f"a multiple of {hosts}, as --hosts says" if hosts > 0 else "--hosts above 0"
            raise UsageError("ranks", uneven, expected)
    rows, first = [], None
    for case in machine.cases(collective):
        for n in ranks:
            for size in sizes:
                try:
                    prediction, reason, action = case.predict(size, n, hosts), "", ""
                except UsageError as error:
                    prediction, reason, first = None, brief(error), first or error
                    action = error.action
                if prediction and (reason := only_a_guess(prediction)):
                    prediction, action = None, MORE_DATA
                rows.append(PredictedRow(case.kind, n, size, prediction, reason, action))
    if all(row.prediction is None for row in rows):
        refused = f"none: each 90 % interval is wider than {WIDEST:g}x"
        low, high = map(format_size, machine.measured_sizes)
        numbers = ", ".join(map(str, machine.measured_ranks))
        nearer = f"what is nearer to the data ({numbers} ranks, {low} to {high})"
        raise first or UsageError("prediction", refused, nearer, MORE_DATA)
    return rows


MORE_DATA = "Measure nearer sizes, or more numbers of ranks, and fit again."


def too_wide(low_ns: float, high_ns: float) -> bool:
    """Whether an interval with these ends is too wide to be a prediction."""
    return high_ns > WIDEST * low_ns


def only_a_guess(prediction: Prediction) -> str:
    """Why the interval of a prediction is too wide to be useful; '' if it is not."""
    if not too_wide(prediction.low_ns, prediction.high_ns):
        return ""
    extrapolated = f"{prediction.beyond}: " if prediction.beyond else ""
    return f"{extrapolated}its 90 % interval is wider than {WIDEST:g}x"
