"""The model of a machine: predicts times of collectives from size and ranks, with intervals.

Other packages call ``load_model(path).predict(collective, size_bytes, ranks)`` (model_file.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy

from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import COLLECTIVES, DEFAULT_COLLECTIVE, find_collective
from torchcoll.core.display import OneLine
from torchcoll.core.errors import UsageError
from torchcoll.core.plausibility import device_named
from torchcoll.core.units import counted, format_digits, format_size
from torchcoll.parts.curves.predictor import PredictedCase, Prediction, bounded, least_ns
from torchcoll.parts.curves.published_law import HALVES, half_all_reduce_interval
from torchcoll.parts.curves.rank_laws import StepLaw, step_laws
from torchcoll.parts.curves.size_law import SizeLaw, log_factors

GROUPS_AT_ONCE = "groups_at_once"  # key of a kind: how many such groups made its calls at once
LINK_GBPS = "link_gbps"  # key of the facts: a rank's share of the interfaces between hosts, GB/s

# A value and the ends of its 90 % interval. A parameter that cannot be told from 0 is None, and
# counts as 0 in the law.
Figure = tuple[float, float, float]


# Latency of a step in ns, and bandwidth in GB/s.
Link = tuple[Figure | None, Figure | None]


@dataclass(frozen=True)
class Spread:
    """The 90 % interval around a prediction, as factors.

    low, high: the ends within the data.
    below, above: by what factor both ends widen for each doubling (of the size or of the ranks)
        below or above the data.
    points: the number of left-out points that the interval is based on.
    """

    low: float
    high: float
    below: float
    above: float
    points: int

    def logs(self, below: float, above: float) -> tuple[float, float]:
        """Logarithms of both ends, at this many doublings below or above the data."""
        wider = below * math.log(self.below) + above * math.log(self.above)
        return math.log(self.low) - wider, math.log(self.high) + wider


@dataclass(frozen=True)
class OverSizes:
    """The law over sizes on one measured number of ranks.

    low_bytes, high_bytes, sizes: the smallest and largest size, and how many there are.
    spread: the interval of a prediction.
    """

    ranks: int
    hosts: int
    low_bytes: int
    high_bytes: int
    sizes: int
    law: SizeLaw
    spread: Spread


@dataclass(frozen=True)
class OverRanks:
    """The law over ranks: launch_ns + steps x latency of a step + share x size / bandwidth.

    law: the name of the law (rank_laws.py).
    remaining: this law and those that leaving out numbers of ranks cannot tell from it.
    ranks, hosts: the measured numbers.
    within, between: latency and bandwidth of links within a host and between hosts; None if no
        such link was measured. If the hosts are not known, all links count as ``within``.
    corrections: (size in bytes, logarithm of the factor).
    spread: the interval of a prediction on numbers of ranks that were not measured.
    supported: whether some measured number of ranks can be predicted from the others. If not, the
        law is one that the library has, and its error that of published machines.
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
    corrections: tuple[tuple[float, float], ...]
    spread: Spread
    supported: bool = True

    def log_time(self, steps: StepLaw, size_bytes: int, ranks: int, hosts: int) -> float:
        row = terms(steps, size_bytes, ranks, hosts, min(self.hosts) > 1)
        figures = [self.launch_ns[0] if self.launch_ns else 0.0]
        for link in (self.within, self.between):
            step, bandwidth = link or (None, None)
            figures += [step[0] if step else 0.0, 1 / bandwidth[0] if bandwidth else 0.0]
        time = sum(a * b for a, b in zip(row, figures, strict=True))
        correction = log_factors(self.corrections, numpy.array([size_bytes]))
        return math.log(max(time, 1e-3)) + float(correction[0])


def terms(
    steps: StepLaw, size_bytes: float, ranks: int, hosts: int, only_between: bool = False
) -> tuple[float, float, float, float, float]:
    """How often each parameter counts: launch overhead, steps and bytes within a host, steps and
    bytes between hosts.

    The number of steps between hosts is that of the law over hosts. With several hosts all bytes
    count for the links between hosts, which are the slower ones.
    only_between: no single host was measured. The steps within a host are then the same for all
        data and count as launch overhead.
    """
    share = steps.share(ranks) * size_bytes
    if only_between:
        return (1.0, 0.0, 0.0, steps.steps(hosts), share)
    if hosts < 2:
        return (1.0, steps.steps(ranks), share, 0.0, 0.0)
    across = min(steps.steps(hosts), steps.steps(ranks))
    return (1.0, steps.steps(ranks) - across, 0.0, across, share)


@dataclass(frozen=True)
class KindModel:
    """The laws of one kind of case.

    over_sizes: a law over sizes for each measured number of ranks.
    over_ranks: the law over ranks; None if too few numbers of ranks were measured.
    why_not: the reason for the latter.
    """

    kind: Mapping[str, Any]
    over_sizes: tuple[OverSizes, ...]
    over_ranks: OverRanks | None
    why_not: str = ""

    @property
    def collective(self) -> str:
        return str(self.kind["collective"])

    @property
    def groups_at_once(self) -> int:
        """How many groups of as many ranks made the calls at the same time (``--groups``)."""
        return int(self.kind.get(GROUPS_AT_ONCE) or 1)

    @property
    def on_cpu(self) -> bool:
        return self.kind.get("device") == "cpu"

    @property
    def ranks_per_host(self) -> float | None:
        """The most ranks per host that were measured; None if the hosts are not known."""
        return max((c.ranks / c.hosts for c in self.over_sizes if c.hosts), default=None)

    def predict(self, size_bytes: int, ranks: int, hosts: int | None = None) -> Prediction:
        """The predicted time of a call of this size on this many ranks.

        hosts: None for as many hosts as the ranks need if hosts are as full as the measured ones.
        Raises UsageError for a number of ranks or hosts that no law covers.
        """
        if size_bytes < 1 or ranks < 2:
            requested = f"{size_bytes} B on {ranks} ranks"
            raise UsageError("prediction", requested, "at least 1 byte and 2 ranks")
        for curve in self.over_sizes:
            if curve.ranks == ranks and (hosts is None or curve.hosts in (0, hosts)):
                log = float(curve.law.logs(numpy.array([float(size_bytes)]))[0])
                below, above = doublings(size_bytes, curve.low_bytes, curve.high_bytes)
                text = _beyond(size_bytes, curve.low_bytes, curve.high_bytes)
                # Within the data the errors of different sizes are independent: each was left out.
                common = 1.0 if text else 0.0
                return _prediction(log, curve.spread.logs(below, above), [text], common)
        numbers = list(dict.fromkeys(curve.ranks for curve in self.over_sizes))
        if self.over_ranks is None and len(numbers) > 1:
            raise UsageError("ranks", ranks, " or ".join(map(str, numbers)), f"{self.why_not}.")
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
                f"Measure another: {_run([self.collective], next_ranks)} {sizes} -J FILE; then "
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
        steps = next(each for each in step_laws(self.collective) if each.name == law.law)
        if hosts < 2 and min(law.hosts) > 1:
            texts.append("as if between hosts: links within a host were not measured")
        if hosts > 1 and (law.between is None or law.between[1] is None):
            texts.append("no bandwidth between hosts was found in the data")
        log = law.log_time(steps, size_bytes, ranks, hosts)
        low, high = law.spread.logs(*doublings(ranks, law.ranks[0], law.ranks[-1]))
        inner = [curve.spread.logs(0, 0) for curve in self.over_sizes]
        # A prediction for ranks that were not measured is no better than one for measured ranks.
        low, high = min(low, *(a for a, _ in inner)), max(high, *(b for _, b in inner))
        below, above = doublings(size_bytes, law.low_bytes, law.high_bytes)
        if below or above:  # widen as the laws over sizes do beyond their data
            widths = [curve.spread.logs(below, above) for curve in self.over_sizes]
            low += min(a[0] - b[0] for a, b in zip(widths, inner, strict=True))
            high += max(a[1] - b[1] for a, b in zip(widths, inner, strict=True))
            texts.append(_beyond(size_bytes, law.low_bytes, law.high_bytes))
        if ranks > law.ranks[-1]:
            texts.append(
                f"{format_digits(ranks / law.ranks[-1])}x the most ranks ({law.ranks[-1]})"
            )
        elif ranks < law.ranks[0]:
            texts.append(
                f"1/{format_digits(law.ranks[0] / ranks)} of the fewest ranks ({law.ranks[0]})"
            )
        return _prediction(log, (low, high), texts)


def most_measured(entries: Iterable[KindModel]) -> KindModel:
    """The entry whose group called alone, then with the most numbers of ranks, then of sizes.

    Among equals it is the first by the text of its kind: the order of the files does not matter.
    """
    ordered = sorted(entries, key=lambda entry: repr(sorted(entry.kind.items())))
    return max(
        ordered,
        key=lambda entry: (
            entry.groups_at_once == 1,
            len(entry.over_sizes),
            sum(curve.sizes for curve in entry.over_sizes),
        ),
    )


_AS_LARGE = 1.01  # sizes this close count as equal: 64K in three equal blocks are 65532 bytes


def _run(collectives: Sequence[str], ranks: int) -> str:
    module = f"suite --collectives {','.join(collectives)}"
    if len(collectives) == 1:
        module = COLLECTIVES[collectives[0]].module
    return f"torchrun --nproc-per-node {ranks} -m torchcoll.{module}"


def doublings(value: float, low: float, high: float) -> tuple[float, float]:
    """How many doublings a value lies below ``low`` and above ``high``; 0 if it is between them."""
    below, above = (ratio if ratio > _AS_LARGE else 1 for ratio in (low / value, value / high))
    return math.log2(below), math.log2(above)


def _beyond(size_bytes: int, low: int, high: int) -> str:
    below, above = doublings(size_bytes, low, high)
    if above:
        return f"{format_digits(size_bytes / high)}x the largest size ({format_size(high)})"
    if below:
        return f"1/{format_digits(low / size_bytes)} of the smallest size ({format_size(low)})"
    return ""


def _prediction(
    log: float, ends: tuple[float, float], texts: Sequence[str], common: float = 1.0
) -> Prediction:
    low, high = (math.exp(min(700.0, log + end)) for end in ends)
    return Prediction(math.exp(min(700.0, log)), low, high, "; ".join(filter(None, texts)), common)


@dataclass(frozen=True, repr=False)
class MachineModel(OneLine):
    """The model that ``model fit`` writes. facts: the machine and runs that it was fitted to."""

    entries: tuple[KindModel, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    def entry(self, collective: str, **kind: Any) -> KindModel:
        """The entry of this collective whose kind has these values (dtype, in_place, ...).

        If there are several: one whose group called alone, then the one with the most numbers of
        ranks, then with the most sizes (``most_measured``). Raises UsageError if there is none.
        """
        name = find_collective(collective).name
        named = [entry for entry in self.entries if entry.collective == name]
        entries = [e for e in named if all(e.kind.get(k) == v for k, v in kind.items())]
        if not entries:
            requested = " ".join([name, *(f"{k}={v}" for k, v in kind.items())])
            raise self._missing_error([name], requested)
        return most_measured(entries)

    def check_collectives(self, collectives: Iterable[str]) -> None:
        measured = self._collectives
        if DEFAULT_COLLECTIVE in measured:
            measured = measured.union(HALVES)
        if missing := [name for name in dict.fromkeys(collectives) if name not in measured]:
            raise self._missing_error(missing, ", ".join(missing))

    def _missing_error(self, collectives: Sequence[str], requested: str) -> UsageError:
        """The error for collectives that were not measured, with the command that measures them."""
        measured = ", ".join(dict.fromkeys(entry.collective for entry in self.entries))
        ranks = sorted({over.ranks for entry in self.entries for over in entry.over_sizes})
        each = ", ".join(map(str, ranks)) if ranks else "2 or more"
        several = len(collectives) > 1
        action = f"Measure {'them' if several else 'it'}, on {each} ranks: "
        action += f"{_run(collectives, ranks[-1] if ranks else 2)} -b 1K -e 64M -J FILE; then "
        action += "torchcoll model fit with this file too."
        what = "collectives" if several else "collective"
        return UsageError(what, requested, f"what the model has: {measured}", action)

    def predict(
        self, collective: str, size_bytes: int, ranks: int, hosts: int | None = None, **kind: Any
    ) -> Prediction:
        """The predicted time in ns with its 90 % interval, and how far it is extrapolated.

        An all_gather or a reduce_scatter that was not measured is half an all_reduce.

        size_bytes: the size S of nccl-tests. kind: selects among several entries, see ``entry``.
        hosts and errors: see ``KindModel.predict``.
        """
        name = find_collective(collective).name
        if self._derived(name) and not kind:
            return self._half_of_all_reduce(name, size_bytes, ranks, hosts)
        return self._bounded(self.entry(name, **kind), size_bytes, ranks, hosts)

    def predict_at_once(
        self, collective: str, size_bytes: int, ranks: int, groups: int, hosts: int | None = None
    ) -> Prediction | None:
        name = find_collective(collective).name
        candidates = [
            entry
            for entry in self.entries
            if entry.collective == name
            and entry.groups_at_once == groups
            and any(
                curve.ranks == ranks
                and (hosts is None or curve.hosts in (0, hosts))
                # A larger call is limited by the links, which the curve of one group may cover.
                and size_bytes <= curve.high_bytes
                for curve in entry.over_sizes
            )
        ]
        if not candidates:
            return None
        return self._bounded(most_measured(candidates), size_bytes, ranks, hosts)

    def _bounded(
        self, entry: KindModel, size_bytes: int, ranks: int, hosts: int | None
    ) -> Prediction:
        """The prediction of an entry. No time is shorter than what is known of the links allows."""
        device = None if entry.on_cpu else device_named(str(self.facts.get("device_name", "")))
        link, per_host = float(self.facts.get(LINK_GBPS) or 0.0), self.ranks_per_host or 0.0
        host_gbps = link * per_host if link and 0 < per_host < math.inf else None
        least = least_ns(entry.collective, size_bytes, ranks, hosts, device, host_gbps)
        return bounded(entry.predict(size_bytes, ranks, hosts), least)

    def _half_of_all_reduce(
        self, name: str, size_bytes: int, ranks: int, hosts: int | None
    ) -> Prediction:
        entry = self.entry(DEFAULT_COLLECTIVE)
        backend = entry.kind.get("backend")
        whole = (
            name == "reduce_scatter" and backend and backend_of(str(backend)).whole_reduce_scatter
        )
        share = 1.0 if whole else 0.5
        low, high = (1.0, 1.0) if whole else half_all_reduce_interval()
        reduced = self.predict(DEFAULT_COLLECTIVE, size_bytes, ranks, hosts)
        text = f"{name} not measured: {'an' if whole else 'half an'} all_reduce"
        return Prediction(
            share * reduced.time_ns,
            share * low * reduced.low_ns,
            share * high * reduced.high_ns,
            "; ".join(filter(None, [text, reduced.beyond])),
        )

    def _derived(self, collective: str) -> bool:
        """Whether it was not measured, and follows from an all_reduce that was."""
        measured = self._collectives
        return (
            collective in HALVES and collective not in measured and DEFAULT_COLLECTIVE in measured
        )

    @property
    def _collectives(self) -> set[str]:
        return {entry.collective for entry in self.entries}

    @property
    def name(self) -> str:
        return str(self.path or "the model")

    @property
    def intervals(self) -> str:
        return "90 % intervals: jackknife+ (Barber et al. 2021), wider where extrapolated"

    @property
    def measured_ranks(self) -> list[int]:
        return sorted({curve.ranks for entry in self.entries for curve in entry.over_sizes})

    @property
    def measured_sizes(self) -> tuple[int, int]:
        curves = [curve for entry in self.entries for curve in entry.over_sizes]
        return min(each.low_bytes for each in curves), max(each.high_bytes for each in curves)

    @property
    def ranks_per_host(self) -> float | None:
        """The largest number of ranks per host in the data.

        Infinite if all data is of one host: between hosts nothing was measured, so nothing can be
        said of it. None if the model has no hosts.
        """
        hosts = [fit.hosts for entry in self.entries for fit in entry.over_sizes if fit.hosts]
        if hosts and max(hosts) == 1:
            return math.inf
        return max(filter(None, (entry.ranks_per_host for entry in self.entries)), default=None)

    def cases(self, collective: str | None = None) -> Sequence[PredictedCase]:
        name = find_collective(collective).name if collective else None
        entries = [entry for entry in self.entries if name in (None, entry.collective)]
        if name and self._derived(name):
            reduced = self.entry(DEFAULT_COLLECTIVE).kind
            shared = {key: reduced.get(key) for key in ("dtype", "backend", "device")}
            return [PredictedCase({"collective": name, **shared}, partial(self.predict, name))]
        if name and not entries:
            raise self._missing_error([name], name)
        return [PredictedCase(entry.kind, partial(self._bounded, entry)) for entry in entries]

    def on_cpu(self, collectives: Iterable[str]) -> bool:
        measured = self._collectives
        names = [name if name in measured else DEFAULT_COLLECTIVE for name in collectives]
        return any(self.entry(name).on_cpu for name in dict.fromkeys(names))

    def notes(self, ranks: int | None = None) -> list[str]:
        if self.ranks_per_host != math.inf:
            return []
        return [
            "the model was fitted on one host: more ranks are taken for ranks of that host, and "
            "what a network between hosts costs is not in it"
        ]
