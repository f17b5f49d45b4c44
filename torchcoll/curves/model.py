"""The model of a machine: what collectives take by size and by ranks, and how wrong it is.

``load_model(path).predict(collective, size_bytes, ranks)`` is what other packages call
(model_file.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from torchcoll.core.collectives import COLLECTIVES, find_collective
from torchcoll.core.errors import UsageError, brief
from torchcoll.core.units import counted, format_size
from torchcoll.curves.rank_laws import StepLaw, step_laws
from torchcoll.curves.size_law import SizeLaw, factors

CONCURRENT = "concurrent"  # of a kind: the work beside which its calls were measured
TOO_SHORT = "too_short"  # of the facts: what is wrong with that

# Value, and the ends of its 90 % interval. None in its place: too small to be told from nothing,
# and nothing in the law.
Figure = tuple[float, float, float]


# Of a step in ns, and GB/s.
Link = tuple[Figure | None, Figure | None]


class Prediction(NamedTuple):
    """Nanoseconds with their 90 % interval. beyond: how far outside of the data, '' within."""

    time_ns: float
    low_ns: float
    high_ns: float
    beyond: str


@dataclass(frozen=True)
class Spread:
    """The 90 % interval around a prediction, as factors: low and high within the data; for each
    doubling below or above them (of the size, or of the ranks) it is wider by these. points: left
    out to find it.
    """

    low: float
    high: float
    below: float
    above: float
    points: int

    def logs(self, below: float, above: float) -> tuple[float, float]:
        """Logarithms of both ends, so many doublings outside."""
        wider = below * math.log(self.below) + above * math.log(self.above)
        return math.log(self.low) - wider, math.log(self.high) + wider


@dataclass(frozen=True)
class OverSizes:
    """One number of ranks that was measured: its law over sizes. figures: of each piece its latency
    (ns) and bandwidth (GB/s, size over time) with their intervals; of each correction its factor;
    beyond: the bandwidth from the largest size on; beyond_of: the collectives that tell it.
    """

    ranks: int
    hosts: int
    low_bytes: int
    high_bytes: int
    sizes: int
    law: SizeLaw
    latencies: tuple[Figure | None, ...]
    bandwidths: tuple[Figure | None, ...]
    factors: tuple[Figure, ...]
    beyond: Figure | None
    beyond_of: int
    spread: Spread


@dataclass(frozen=True)
class OverRanks:
    """The law over ranks: launch_ns + steps x a step's latency + share x size / bandwidth.

    remaining: the laws that leaving out cannot tell from it. within, between: of links in a host
    and between hosts (step_ns, bandwidth_gbps); None where only the others were measured. Where
    hosts are not known, all is ``within``.
    """

    law: str
    remaining: tuple[str, ...]
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]
    low_bytes: int
    high_bytes: int
    launch_ns: Figure | None
    within: Link | None
    between: Link | None
    corrections: tuple[tuple[float, Figure], ...]
    spread: Spread

    def log_time(self, steps: StepLaw, size_bytes: int, ranks: int, hosts: int) -> float:
        row = terms(steps, size_bytes, ranks, hosts, min(self.hosts) > 1)
        figures = [self.launch_ns[0] if self.launch_ns else 0.0]
        for link in (self.within, self.between):
            step, bandwidth = link or (None, None)
            figures += [step[0] if step else 0.0, 1 / bandwidth[0] if bandwidth else 0.0]
        time = sum(a * b for a, b in zip(row, figures, strict=True))
        logs = tuple((size, math.log(factor[0])) for size, factor in self.corrections)
        return math.log(max(time, 1e-3)) + float(factors(logs, numpy.array([size_bytes]))[0])


def terms(
    steps: StepLaw, size_bytes: float, ranks: int, hosts: int, only_between: bool = False
) -> tuple[float, float, float, float, float]:
    """How often each parameter counts: launch overhead, step and byte within a host, step and
    byte between hosts. Steps between hosts are those of the law over hosts; the bytes of several
    hosts are taken for those that the links between them carry, the slower ones.
    """
    share = steps.share(ranks) * size_bytes
    if only_between:
        return (1.0, 0.0, 0.0, steps.steps(ranks), share)
    if hosts < 2:
        return (1.0, steps.steps(ranks), share, 0.0, 0.0)
    across = min(steps.steps(hosts), steps.steps(ranks))
    return (1.0, steps.steps(ranks) - across, 0.0, across, share)


@dataclass(frozen=True)
class KindModel:
    """One kind of case: its laws over sizes, and over ranks where enough were measured; why_not:
    why there is none.
    """

    kind: Mapping[str, Any]
    over_sizes: tuple[OverSizes, ...]
    over_ranks: OverRanks | None
    why_not: str = ""

    @property
    def collective(self) -> str:
        return str(self.kind["collective"])

    @property
    def concurrent(self) -> str:
        """The work beside which its calls were; '' alone."""
        return str(self.kind.get(CONCURRENT) or "")

    @property
    def ranks_per_host(self) -> float | None:
        """Of the fullest host that was measured; None where no hosts are known."""
        return max(
            (curve.ranks / curve.hosts for curve in self.over_sizes if curve.hosts), default=None
        )

    def predict(self, size_bytes: int, ranks: int, hosts: int | None = None) -> Prediction:
        """hosts: None is as many as the ranks need on hosts as full as the measured ones.

        Raises UsageError for a number of ranks that no law reaches.
        """
        if size_bytes < 1 or ranks < 2:
            requested = f"{size_bytes} B on {ranks} ranks"
            raise UsageError("prediction", requested, "at least 1 byte and 2 ranks")
        for curve in self.over_sizes:
            if curve.ranks == ranks and (hosts is None or curve.hosts in (0, hosts)):
                log = float(curve.law.logs(numpy.array([float(size_bytes)]))[0])
                below, above = doublings(size_bytes, curve.low_bytes, curve.high_bytes)
                text = _beyond(size_bytes, curve.low_bytes, curve.high_bytes)
                if above and curve.beyond_of > 1:
                    text += f", where {curve.beyond_of} collectives tell the slope together"
                return _prediction(log, curve.spread.logs(below, above), [text])
        if self.over_ranks is None:
            measured = self.over_sizes[-1]
            requested, measured_ranks = str(ranks), str(measured.ranks)
            if hosts and measured.ranks == ranks:
                requested = f"{requested} on {counted(hosts, 'host')}"
                measured_ranks = f"{measured_ranks} on {measured.hosts}"
            # Half as many; of 2 ranks it is 3, of 3 it is 2.
            next_ranks = measured.ranks // 2 if measured.ranks > 3 else 5 - measured.ranks
            sizes = f"-b {format_size(measured.low_bytes)} -e {format_size(measured.high_bytes)}"
            raise UsageError(
                "ranks",
                requested,
                f"{measured_ranks}, no other number was measured",
                f"Measure another: {_run(self.collective, next_ranks)} {sizes} -J FILE; then "
                "torchcoll model fit with both files.",
            )
        return self._from_law_over_ranks(self.over_ranks, size_bytes, ranks, hosts)

    def _from_law_over_ranks(
        self, law: OverRanks, size_bytes: int, ranks: int, hosts: int | None
    ) -> Prediction:
        texts = []
        if max(law.hosts) < 2:  # 0: not known
            if hosts and hosts > 1:
                expected = "1: links between hosts were not measured"
                action = (
                    "Measure on two hosts or more too; then torchcoll model fit with all files."
                )
                raise UsageError("hosts", hosts, expected, action)
            hosts = 1
            if ranks > law.ranks[-1]:
                hosts_text = "on one host" if any(law.hosts) else "on hosts like those, not known"
                texts.append(f"as if {hosts_text}: links between hosts were not measured")
        hosts = hosts or max(1, math.ceil(ranks / (self.ranks_per_host or ranks) - 1e-9))
        steps = next(
            law_steps for law_steps in step_laws(self.collective) if law_steps.name == law.law
        )
        if hosts > 1 and (law.between is None or law.between[1] is None):
            texts.append("no bandwidth between hosts was found in the data")
        log = law.log_time(steps, size_bytes, ranks, hosts)
        low, high = law.spread.logs(*doublings(ranks, law.ranks[0], law.ranks[-1]))
        inner = [curve.spread.logs(0, 0) for curve in self.over_sizes]
        # Numbers of ranks that were not measured are known no better than those that were.
        low, high = min(low, *(a for a, _ in inner)), max(high, *(b for _, b in inner))
        below, above = doublings(size_bytes, law.low_bytes, law.high_bytes)
        if below or above:  # as the laws over sizes were wrong there
            widths = [curve.spread.logs(below, above) for curve in self.over_sizes]
            low += min(a[0] - b[0] for a, b in zip(widths, inner, strict=True))
            high += max(a[1] - b[1] for a, b in zip(widths, inner, strict=True))
            texts.append(_beyond(size_bytes, law.low_bytes, law.high_bytes))
        if ranks > law.ranks[-1]:
            texts.append(f"{_times(ranks / law.ranks[-1])}x the most ranks ({law.ranks[-1]})")
        elif ranks < law.ranks[0]:
            texts.append(f"1/{_times(law.ranks[0] / ranks)} of the fewest ranks ({law.ranks[0]})")
        return _prediction(log, (low, high), texts)


_AS_LARGE = 1.01  # 64K are 65532 bytes where three ranks have a block each


def _run(collective: str, ranks: int) -> str:
    return f"torchrun --nproc-per-node {ranks} -m torchcoll.{COLLECTIVES[collective].module}"


def doublings(value: float, low: float, high: float) -> tuple[float, float]:
    """How far below ``low`` and above ``high``; 0 within."""
    below, above = (ratio if ratio > _AS_LARGE else 1 for ratio in (low / value, value / high))
    return math.log2(below), math.log2(above)


def _beyond(size_bytes: int, low: int, high: int) -> str:
    below, above = doublings(size_bytes, low, high)
    if above:
        return f"{_times(size_bytes / high)}x the largest size ({format_size(high)})"
    if below:
        return f"1/{_times(low / size_bytes)} of the smallest size ({format_size(low)})"
    return ""


def _times(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 100 else f"{ratio:.0f}"


def _prediction(log: float, ends: tuple[float, float], texts: Sequence[str]) -> Prediction:
    low, high = (math.exp(min(700.0, log + end)) for end in ends)
    return Prediction(math.exp(min(700.0, log)), low, high, "; ".join(filter(None, texts)))


@dataclass(frozen=True)
class MachineModel:
    """What ``model fit`` found, or its file. facts: what is known of the machine."""

    entries: tuple[KindModel, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    def entry(self, collective: str, **kind: Any) -> KindModel:
        """The one of this collective whose kind has these values (dtype, in_place, ...); of
        several the one that was measured on the most numbers of ranks, then at the most sizes.

        Raises UsageError where there is none.
        """
        name = find_collective(collective).name
        entries = [
            entry
            for entry in self.entries
            if entry.collective == name and all(entry.kind.get(k) == v for k, v in kind.items())
        ]
        if not entries:
            requested = " ".join([name, *(f"{k}={v}" for k, v in kind.items())])
            raise self.missing_collective(name, requested)
        return max(
            entries,
            key=lambda entry: (len(entry.over_sizes), sum(o.sizes for o in entry.over_sizes)),
        )

    def missing_collective(self, collective: str, requested: str) -> UsageError:
        """What refuses a collective that was not measured, and how to have it measured."""
        measured = ", ".join(dict.fromkeys(entry.collective for entry in self.entries))
        ranks = sorted({over.ranks for entry in self.entries for over in entry.over_sizes})
        each = ", ".join(map(str, ranks)) if ranks else "2 or more"
        action = f"Measure it, on {each} ranks: {_run(collective, ranks[-1] if ranks else 2)} "
        action += "-b 1K -e 64M -J FILE; then torchcoll model fit with this file too."
        return UsageError("collective", requested, f"what the model has: {measured}", action)

    def predict(
        self, collective: str, size_bytes: int, ranks: int, hosts: int | None = None, **kind: Any
    ) -> Prediction:
        """Nanoseconds with their 90 % interval, and how far beyond the data; see ``entry`` and
        ``KindModel.predict``. size_bytes: the size S of nccl-tests.
        """
        return self.entry(collective, **kind).predict(size_bytes, ranks, hosts)


WIDEST = 100.0  # the ends of an interval: where they differ by more, nothing is predicted


@dataclass(frozen=True)
class PredictedRow:
    """One size on one number of ranks; prediction: None where it would be no more than a guess, or
    no law reaches so far; reason: which; action: what to do about it.
    """

    kind: Mapping[str, Any]
    ranks: int
    size_bytes: int
    prediction: Prediction | None
    reason: str = ""
    action: str = ""


def predict_all(
    model: MachineModel, ranks: Sequence[int], sizes: Sequence[int], collective: str | None = None
) -> list[PredictedRow]:
    """Every kind of case of the model, or of one collective.

    Raises UsageError where nothing can be predicted, with the first reason.
    """
    name = find_collective(collective).name if collective else None
    entries = [entry for entry in model.entries if name in (None, entry.collective)]
    if name and not entries:
        raise model.missing_collective(name, name)
    rows, first = [], None
    for entry in entries:
        for n in ranks:
            for size in sizes:
                try:
                    prediction, reason, action = entry.predict(size, n), "", ""
                except UsageError as error:
                    prediction, reason, first = None, brief(error), first or error
                    action = error.action
                if prediction and (reason := only_a_guess(prediction)):
                    prediction, action = None, MORE_DATA
                rows.append(PredictedRow(entry.kind, n, size, prediction, reason, action))
    if all(row.prediction is None for row in rows):
        measured = [curve for entry in entries for curve in entry.over_sizes]
        numbers = ", ".join(map(str, sorted({curve.ranks for curve in measured})))
        low = format_size(min(curve.low_bytes for curve in measured))
        high = format_size(max(curve.high_bytes for curve in measured))
        refused = f"none: each 90 % interval is wider than {WIDEST:g}x"
        expected = f"what is nearer to the data ({numbers} ranks, {low} to {high})"
        raise first or UsageError("prediction", refused, expected, MORE_DATA)
    return rows


MORE_DATA = "Measure nearer sizes, or more numbers of ranks, and fit again."


def too_wide(low_ns: float, high_ns: float) -> bool:
    """Whether an interval with these ends says nothing."""
    return high_ns > WIDEST * low_ns


def only_a_guess(prediction: Prediction) -> str:
    """Why it says nothing; '' where it is a prediction."""
    if not too_wide(prediction.low_ns, prediction.high_ns):
        return ""
    extrapolated = f"{prediction.beyond}: " if prediction.beyond else ""
    return f"{extrapolated}its 90 % interval is wider than {WIDEST:g}x"
