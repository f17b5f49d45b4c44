"""The time of a collective on GPUs that others measured: a law over their limits, with intervals.

For a call of S bytes, with the busbw that the links allow as the ceiling:

    time ^ p = (launch + hops x step) ^ p + (slowdown x S x bus factor / ceiling) ^ p

The ceiling is that of libraries/nccl/ceilings.py: what the links within a host and the interfaces
of the hosts let through. all_gather and reduce_scatter are half an all_reduce, as in a ring, which
does one after the other; all_to_all sends each host's share through its interfaces. A power p below
1 makes the bend between latency and bandwidth as soft as it is in measurements. The parameters are
fitted to the published runs (check/published.toml), each type of machine with the same weight.

What is left are effects of the machine: how much longer its latency, and how much lower its
bandwidth is than the law says, within a host and between hosts. They are random effects (C. E.
Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, section 2.2), in
logarithms. A prediction for a machine with published runs therefore starts from its own curve, and
one for a machine without any starts from the law, with the scatter of all machines as its interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy
from scipy import linalg, optimize

from torchcoll.core.collectives import COLLECTIVES, DEFAULT_COLLECTIVE
from torchcoll.parts.curves.slow_sizes import Floats
from torchcoll.questions.check.limit_share import MachineLinks
from torchcoll.questions.check.published import Publication, publications

PREDICTED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
HALVES = ("all_gather", "reduce_scatter")  # of an all_reduce
# GB/s of the one interface per GPU that hosts of this generation usually have.
_USUAL_NIC_GBPS = {"V100": 12.5, "A100": 25.0}
_NEWER_NIC_GBPS = 50.0

# Standard deviations of the effects, in logarithms: (latency, bandwidth). Maximum likelihood of the
# published runs (results/benchmarks/machines-2026-11-24.txt).
_WITHIN = (1.3, 0.024)  # of a type of machine, within a host
_BETWEEN = (0.45, 0.05)  # of a type of machine, between hosts
_ON_HOSTS = (0.46, 0.17)  # of a type of machine on one number of hosts
_OF_COLLECTIVE = (0.36, 0.015)  # of a collective on a type of machine
_NOISE_WITHIN, _NOISE_BETWEEN = 0.045, 0.14  # of one figure
# Of the logarithm of a host's interfaces, where no source of this kind of machine states them.
_DOUBT = 0.9
# Half of the 90 % interval in standard deviations, such that it holds 90 % of the figures of types
# that were left out (results/benchmarks/machines-2026-11-24.txt).
QUANTILE = 1.5


def stated_nics_gbps(run: Publication) -> float | None:
    """GB/s of the network interfaces of all linked GPUs together, where the source states them."""
    return run.host_gbit / 8 * run.linked * run.hosts / run.ranks if run.host_gbit else None


def links_of_kind(gpu: str, linked: int, runs: Sequence[Publication]) -> MachineLinks:
    """The links of machines with so many linked GPUs, whose interfaces are not known.

    They are taken for the median of the types of machine that state them, in doubt by the scatter
    of these types; with the scatter of all kinds counting as one further type.
    """
    of_types: dict[str, float] = {}
    for run in runs:
        nics = stated_nics_gbps(run)
        if (run.gpu, run.linked) == (gpu, linked) and nics:
            of_types[run.type] = nics
    usual = _USUAL_NIC_GBPS.get(gpu, _NEWER_NIC_GBPS) * linked
    middle = float(numpy.median(list(of_types.values()))) if of_types else usual
    squares = sum(math.log(nics / middle) ** 2 for nics in of_types.values())
    doubt = math.sqrt((_DOUBT**2 + squares) / (1 + len(of_types)))
    return MachineLinks(gpu, linked, middle, doubt)


def links_of(run: Publication, runs: Sequence[Publication]) -> MachineLinks:
    """The links of the machine of a run. runs: tell what its kind has if its source does not."""
    nics = stated_nics_gbps(run)
    if nics:
        return MachineLinks(run.gpu, run.linked, nics)
    return links_of_kind(run.gpu, run.linked, runs)


@dataclass(frozen=True)
class LawPoint:
    """A call that was published or is predicted.

    machine: the type of machine; '' for one without published runs.
    hosts: how many groups of linked GPUs the ranks are on.
    ceiling_gbps: the busbw that the links allow.
    doubt: standard deviation of its logarithm.
    """

    machine: str
    gpu: str
    collective: str
    size_bytes: int
    ranks: int
    hosts: int
    ceiling_gbps: float
    doubt: float

    @property
    def transfer_ns(self) -> float:
        factor = COLLECTIVES[self.collective].bus_factor(self.ranks)
        return self.size_bytes * factor / self.ceiling_gbps

    @property
    def hops(self) -> float:
        """The steps between hosts of a tree: half as many for half an all_reduce."""
        return math.log2(self.hosts) * (0.5 if self.collective in HALVES else 1.0)


def law_point(
    links: MachineLinks, machine: str, collective: str, size_bytes: int, ranks: int, hosts: int
) -> LawPoint | None:
    """A call on a machine with these links; None if its ceiling is not known."""
    ceiling = links.ceiling_gbps(collective, ranks, hosts)
    if ceiling is None:
        return None
    doubt = links.doubt if hosts > 1 else 0.0
    place = (collective, size_bytes, ranks, hosts)
    return LawPoint(machine, links.gpu, *place, ceiling, doubt)


def published_points(
    runs: Sequence[Publication], others: Sequence[Publication] | None = None
) -> tuple[list[LawPoint], Floats]:
    """The published calls whose ceiling is known, and their times in ns.

    others: the runs that tell what a kind of machine usually has; by default ``runs``.
    """
    points, times = [], []
    for run in runs:
        links = links_of(run, runs if others is None else others)
        hosts = max(1, round(run.ranks / run.linked))
        for (collective, size_bytes), by_placement in run.figures.items():
            if collective not in PREDICTED:
                continue
            point = law_point(links, run.type, collective, size_bytes, run.ranks, hosts)
            if point is not None:
                busbw = next(iter(by_placement.values()))
                factor = COLLECTIVES[collective].bus_factor(run.ranks)
                points.append(point)
                times.append(size_bytes * factor / busbw)
    return points, numpy.array(times)


@dataclass(frozen=True)
class LawPrediction:
    """Predicted logarithms of times in ns, and their standard deviations.

    common: of each variance the share that all calls on this machine have in common.
    latency: the share of latency in each time.
    """

    logs: Floats
    deviations: Floats
    common: Floats
    latency: Floats


class PublishedLaw:
    """The law, fitted to published calls."""

    def __init__(self, points: Sequence[LawPoint], times_ns: Floats) -> None:
        self._points, self._logs = list(points), numpy.log(times_ns)
        machines = [point.machine for point in points]
        # Each type of machine has the same weight, however many figures were published of it.
        weights = numpy.sqrt([1 / machines.count(machine) for machine in machines])

        def deviations(parameters: Floats) -> Floats:
            return weights * (self._law(parameters, self._points)[0] - self._logs)

        start = numpy.array([10.0, 11.4, 0.03, 0.15, 0.05, -0.5])
        fit = optimize.least_squares(deviations, start, loss="soft_l1", f_scale=0.1)
        self.parameters: Floats = fit.x
        logs, shares = self._law(self.parameters, self._points)
        covariance = _covariance(self._points, shares, self._points, shares)
        covariance += numpy.diag([_noise(point) ** 2 for point in self._points])
        self._factor = linalg.cho_factor(covariance)
        self._shares = shares
        self._weights: Floats = linalg.cho_solve(self._factor, self._logs - logs)

    @staticmethod
    def _law(parameters: Floats, points: Sequence[LawPoint]) -> tuple[Floats, Floats]:
        """Logarithms of the times in ns, and the share of the transfer in each."""
        launch, step, within, between, each_doubling, power = parameters
        hops = numpy.array([point.hops for point in points])
        doublings = numpy.array([max(0.0, math.log2(point.hosts) - 1) for point in points])
        alone = numpy.array([point.hosts == 1 for point in points])
        slower = numpy.where(alone, within, between + each_doubling * doublings)
        transfer = numpy.log([point.transfer_ns for point in points]) + slower
        latency = numpy.log(math.exp(launch) + math.exp(step) * hops)
        p = math.exp(power)
        total = numpy.logaddexp(p * latency, p * transfer)
        return total / p, numpy.exp(p * transfer - total)

    def predict(self, points: Sequence[LawPoint]) -> LawPrediction:
        """Predict these calls. The standard deviations include the noise of one figure."""
        logs, shares = self._law(self.parameters, points)
        cross = _covariance(points, shares, self._points, self._shares)
        prior = _covariance(points, shares, points, shares)
        explained = cross @ linalg.cho_solve(self._factor, cross.T)
        remaining = prior - explained
        noise = numpy.array([_noise(point) ** 2 for point in points])
        variances = numpy.maximum(numpy.diag(remaining), 1e-6) + noise
        shared = numpy.maximum(numpy.diag(remaining), 0.0)
        return LawPrediction(
            logs + cross @ self._weights, numpy.sqrt(variances), shared / variances, 1 - shares
        )


def _noise(point: LawPoint) -> float:
    return _NOISE_WITHIN if point.hosts == 1 else _NOISE_BETWEEN


def _covariance(
    rows: Sequence[LawPoint], row_shares: Floats, columns: Sequence[LawPoint], shares: Floats
) -> Floats:
    """The covariance of the effects of machines on the logarithms of these times.

    An effect on the bandwidth acts on a time by the share of the transfer in it, one on the latency
    by the rest.
    """
    both_transfer = row_shares[:, None] * shares[None, :]
    both_latency = (1 - row_shares)[:, None] * (1 - shares)[None, :]

    def equal(values: Sequence[object], others: Sequence[object]) -> Floats:
        keys = {value: number for number, value in enumerate(dict.fromkeys([*values, *others]))}
        left = numpy.array([keys[value] for value in values])
        right = numpy.array([keys[value] for value in others])
        alike: Floats = (left[:, None] == right[None, :]).astype(float)
        return alike

    machine = equal([p.machine for p in rows], [p.machine for p in columns])
    hosts = equal([p.hosts for p in rows], [p.hosts for p in columns])
    collective = equal([p.collective for p in rows], [p.collective for p in columns])
    alone = numpy.outer([p.hosts == 1 for p in rows], [p.hosts == 1 for p in columns])
    several = numpy.outer([p.hosts > 1 for p in rows], [p.hosts > 1 for p in columns])

    def effect(deviations: tuple[float, float]) -> Floats:
        latency, bandwidth = deviations
        return latency**2 * both_latency + bandwidth**2 * both_transfer

    doubt = numpy.outer([p.doubt for p in rows], [p.doubt for p in columns])
    total = machine * alone * effect(_WITHIN)
    total = total + machine * several * (effect(_BETWEEN) + hosts * effect(_ON_HOSTS))
    total = total + machine * doubt * both_transfer
    total = total + machine * hosts * collective * effect(_OF_COLLECTIVE)
    covariance: Floats = total
    return covariance


@cache
def half_all_reduce_interval() -> tuple[float, float]:
    """The least and largest ratio of a published all_gather or reduce_scatter to half of the
    all_reduce of the same size on the same machine, of all types that published both.
    """
    ratios = [1.0]
    for run in publications():
        for collective, size_bytes in run.figures:
            other = run.gbps(DEFAULT_COLLECTIVE, size_bytes, None)
            if collective in HALVES and other:
                ratios.append(other / (run.gbps(collective, size_bytes, None) or other))
    return min(ratios), max(ratios)


@cache
def published_law() -> PublishedLaw:
    """The law, fitted to all published runs."""
    return PublishedLaw(*published_points(publications()))
