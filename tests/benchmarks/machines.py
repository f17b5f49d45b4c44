"""How well a machine that nobody has at hand is predicted: `torchcoll plan --machine`.

    python tests/benchmarks/machines.py [--effects]

Of the published runs, each type of machine is left out with all its runs, and its times are
predicted from its limits and from the other types. The baseline is the curve of the nearest peer:
the same or the most similar limit, the same collective and about as many hosts, by the ratio of the
bytes over the limits, with the 90 % interval that its own errors on the other types have.

Types count equally: each figure weighs one over the number of figures of its type. The interval of
the coverage is a bootstrap over types. --effects prints the standard deviations of
curves/published_law.py by maximum likelihood.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy
from common import title
from scipy import linalg, optimize

from torchcoll.curves import published_law
from torchcoll.curves.published_law import QUANTILE, LawPoint, PublishedLaw, published_points
from torchcoll.stats.line import Floats
from torchcoll.verdict.published import Publication, publications

LEVEL = 0.9
EFFECTS = ("_WITHIN", "_BETWEEN", "_ON_HOSTS", "_OF_COLLECTIVE")
NOISES = ("_NOISE_WITHIN", "_NOISE_BETWEEN")
BOOTSTRAPS = 4000
Predicted = tuple[list[LawPoint], Floats, Floats, Floats]  # logs measured, predicted, deviations


def weights_of(points: Sequence[LawPoint]) -> Floats:
    machines = [point.machine for point in points]
    return numpy.array([1 / machines.count(machine) for machine in machines])


def weighted_quantile(values: Floats, weights: Floats, level: float) -> float:
    order = numpy.argsort(values)
    cumulative = numpy.cumsum(weights[order]) / weights.sum()
    return float(values[order][numpy.searchsorted(cumulative, level)])


def interval_score(logs: Floats, low: Floats, high: Floats) -> Floats:
    """T. Gneiting and A. E. Raftery, JASA 102 (2007) 359, section 6.2, of logarithms."""
    alpha = 1 - LEVEL
    below, above = numpy.maximum(0, low - logs), numpy.maximum(0, logs - high)
    score: Floats = high - low + 2 / alpha * (below + above)
    return score


def by_law(runs: Sequence[Publication], groups: Sequence[str], told: bool = True) -> Predicted:
    """What the law predicts for each group of runs that is left out, with the deviations.

    told: whether the interfaces that a source states are known; else the kind of machine alone is.
    """
    points: list[LawPoint] = []
    columns: list[list[Floats]] = [[], [], []]
    for group in dict.fromkeys(groups):
        left = [run for run, name in zip(runs, groups, strict=True) if name == group]
        kept = [run for run, name in zip(runs, groups, strict=True) if name != group]
        known = left if told else [replace(run, host_gbit=None) for run in left]
        of_group, times = published_points(known, kept)
        if of_group:
            law = PublishedLaw(*published_points(kept))
            prediction = law.predict(of_group)
            points += of_group
            for column, values in zip(
                columns, (numpy.log(times), prediction.logs, prediction.deviations), strict=True
            ):
                column.append(values)
    return (points, *(numpy.concatenate(column) for column in columns))


def nearest(point: LawPoint, others: Sequence[LawPoint], logs: Floats) -> float:
    """The logarithm of the time on the nearest other type, scaled by the bytes over the limits."""

    def distance(index: int) -> tuple[float, ...]:
        peer = others[index]
        return (
            float(peer.collective != point.collective),
            float((peer.hosts > 1) != (point.hosts > 1)),
            abs(math.log2(peer.hosts / point.hosts)),
            float(peer.gpu != point.gpu),
            abs(math.log(peer.transfer_ns / point.transfer_ns)),
        )

    best = min(range(len(others)), key=distance)
    return float(logs[best] + math.log(point.transfer_ns / others[best].transfer_ns))


def by_peer(points: Sequence[LawPoint], logs: Floats) -> Floats:
    predicted = []
    for point in points:
        kept = [i for i, other in enumerate(points) if other.machine != point.machine]
        predicted.append(nearest(point, [points[i] for i in kept], logs[kept]))
    return numpy.array(predicted)


def row(
    name: str, points: Sequence[LawPoint], logs: Floats, predicted: Floats, half: Floats
) -> None:
    weights = weights_of(points)
    errors = numpy.abs(numpy.expm1(predicted - logs))
    inside = numpy.abs(predicted - logs) <= half
    score = interval_score(logs, predicted - half, predicted + half)
    machines = numpy.array([point.machine for point in points])
    names = list(dict.fromkeys(machines))
    held = numpy.array([inside[machines == machine].mean() for machine in names])
    medians = [float(numpy.median(errors[machines == machine])) for machine in names]
    random = numpy.random.default_rng(0)
    means = [random.choice(held, len(held)).mean() for _ in range(BOOTSTRAPS)]
    low, high = numpy.quantile(means, (0.025, 0.975))
    median = weighted_quantile(errors, weights, 0.5)
    mean_score = float(numpy.average(score, weights=weights))
    width = math.exp(2 * float(numpy.average(half, weights=weights)))
    print(
        f"{name:34} {len(points):4} {len(names):5} {median:9.1%} {numpy.median(medians):9.1%} "
        f"{held.mean():7.1%} ({low:.0%} to {high:.0%}) {mean_score:7.2f} {width:7.2f}x",
        flush=True,
    )


def halves(machines: Sequence[str], errors: Floats, weights: Floats) -> Floats:
    """The 90 % quantile of the errors of the other types, for each type."""
    of = numpy.array(machines)
    half = numpy.zeros(len(of))
    for machine in dict.fromkeys(machines):
        rest = of != machine
        half[of == machine] = weighted_quantile(errors[rest], weights[rest], LEVEL)
    return half


def left_out(runs: Sequence[Publication]) -> None:
    print(
        f"\n{'left out, types weighted equally':34} {'fig.':>4} {'types':>5} {'median':>9} "
        f"{'of types':>9} {'in 90 % (95 % CI)':>18} {'score':>7} {'width':>8}"
    )
    points, logs, predicted, deviations = by_law(runs, [run.type for run in runs])
    machines = [point.machine for point in points]
    weights = weights_of(points)
    scaled = numpy.abs(predicted - logs) / deviations
    print(f"90 % of |error| / deviation: {weighted_quantile(scaled, weights, LEVEL):.3f}")
    several = numpy.array([point.hosts > 1 for point in points])
    half = QUANTILE * deviations
    nested = deviations * halves(machines, scaled, weights)
    row("law, quantile of the other types", points, logs, predicted, nested)
    peers = by_peer(points, logs)
    # Errors between hosts are larger: the peers' intervals know that too.
    peer_half = numpy.zeros(len(points))
    for chosen in (several, ~several):
        index = numpy.flatnonzero(chosen)
        own_machines = [machines[i] for i in index]
        errors = numpy.abs(peers - logs)[index]
        peer_half[index] = halves(own_machines, errors, weights[index])
    derived = numpy.array([point.collective != "all_reduce" for point in points])
    subsets = {
        "all": several | ~several,
        "one host": ~several,
        "several hosts": several,
        "derived collectives": derived,
    }
    for name, chosen in subsets.items():
        index = numpy.flatnonzero(chosen)
        own = [points[i] for i in index]
        row(f"law, {name}", own, logs[index], predicted[index], half[index])
        row(f"nearest peer, {name}", own, logs[index], peers[index], peer_half[index])
    stated = [run for run in runs if run.host_gbit]
    names = {run.type for run in stated}
    points, logs, predicted, deviations = by_law(runs, [run.type for run in runs], told=False)
    index = numpy.array([i for i, p in enumerate(points) if p.machine in names and p.hosts > 1])
    own = [points[i] for i in index]
    row("law, kind alone", own, logs[index], predicted[index], QUANTILE * deviations[index])
    points, logs, predicted, deviations = by_law(runs, [run.gpu for run in runs])
    row("law, all types of a GPU left out", points, logs, predicted, QUANTILE * deviations)


def effects(points: Sequence[LawPoint], times: Floats) -> None:
    """The standard deviations that make the published figures most likely."""
    law, logs = PublishedLaw(points, times), numpy.log(times)
    means, shares = law._law(law.parameters, points)
    residuals = logs - means

    def set_all(values: Floats) -> None:
        deviations = numpy.exp(values)
        for number, name in enumerate(EFFECTS):
            setattr(published_law, name, tuple(deviations[2 * number : 2 * number + 2]))
        for number, name in enumerate(NOISES):
            setattr(published_law, name, deviations[2 * len(EFFECTS) + number])

    def surprise(values: Floats) -> float:
        set_all(values)
        covariance = published_law._covariance(points, shares, points, shares)
        covariance += numpy.diag([published_law._noise(point) ** 2 for point in points])
        factor = linalg.cholesky(covariance, lower=True)
        scaled = linalg.solve_triangular(factor, residuals, lower=True)
        prior = 0.05 * float(((values - math.log(0.15)) ** 2).sum())
        return float(scaled @ scaled / 2 + numpy.log(numpy.diag(factor)).sum() + prior)

    start = numpy.log([0.4, 0.05, 0.4, 0.3, 0.3, 0.2, 0.3, 0.05, 0.05, 0.14])
    best = optimize.minimize(surprise, start, method="L-BFGS-B", options={"maxiter": 40})
    set_all(best.x)
    for name in (*EFFECTS, *NOISES):
        print(name, numpy.round(getattr(published_law, name), 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--effects", action="store_true")
    asked = parser.parse_args()
    title("machines")
    runs = publications()
    if asked.effects:
        effects(*published_points(runs))
    left_out(runs)


if __name__ == "__main__":
    main()
