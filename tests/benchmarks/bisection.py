"""How often `torchcoll bisect` names the right version, a wrong one, and after how many runs.

    python tests/benchmarks/bisection.py [SEARCHES [steps | others [normal | t4]]]

Each row simulates so many searches (default 200) among 64 versions, at most 180 runs each. Noise
from run to run: normal, or Student's t with 4 degrees of freedom, with standard deviation sigma.
The step is at a random version. `oracle` is the mean number of runs of a probabilistic bisection
that knows the step and the noise, until its posterior is 0.95. Asked for: a wrong version in at
most 5 %; exact in 90 % from one sigma on, or else not decided with the step in the range that is
left; at most 2 oracles + 12 runs.

Then: two steps of the same size and direction, at least 4 versions apart ('several' in 90 %), no
step, and a creep over all versions ('several' is right). `steps` and `others` run one of the two
tables alone, and `normal` and `t4` the rows with that noise. Each row has a seed of its own, so a
row run alone is the row of the whole table.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
from common import title

from torchcoll.parts.experiments.version_search import (
    SURE,
    Posterior,
    next_version,
    posterior_of,
    same_ends,
)

VERSIONS, MOST, THRESHOLD = 64, 180, 0.02
Noise = Callable[[], float]


def noise(sigma: float, heavy: bool, random: np.random.Generator) -> Noise:
    if heavy:
        return lambda: float(random.standard_t(4)) / math.sqrt(2) * sigma
    return lambda: float(random.normal()) * sigma


def search(truth: np.ndarray, draw: Noise) -> tuple[str, Posterior, int]:
    """(result, what is posterior, runs) of a search as the command makes it."""
    ran: list[int] = []
    logs: list[float] = []
    while True:
        posterior = posterior_of(len(truth), ran, logs)
        result = posterior.decided or ("none" if same_ends(posterior, THRESHOLD) else "")
        if result or len(ran) >= MOST:
            return result or "open", posterior, len(ran)
        version = next_version(posterior)
        ran.append(version)
        logs.append(float(truth[version]) + draw())


def oracle(truth: np.ndarray, draw: Noise, step: float, sigma: float) -> int:
    """Runs until the posterior of one version is 0.95, with step, levels and noise known."""
    firsts = np.arange(1, len(truth))
    posterior = np.full(len(firsts), 1 / len(firsts))
    runs = 0
    while posterior.max() < SURE:
        version = int(np.abs(np.cumsum(posterior) - 0.5).argmin()) + 1
        value, runs = float(truth[version]) + draw(), runs + 1
        levels = np.where(firsts <= version, step, 0.0)
        posterior = posterior * np.exp(-((value - levels) ** 2) / (2 * sigma**2))
        posterior /= posterior.sum()
    return runs


def steps(
    draw: Noise, step: float, sigma: float, searches: int, random: np.random.Generator
) -> str:
    results: Counter[str] = Counter()
    runs, oracles = [], []
    for _ in range(searches):
        k = int(random.integers(1, VERSIONS))
        truth = np.where(np.arange(VERSIONS) >= k, step, 0.0)
        result, posterior, count = search(truth, draw)
        if result == "step":
            result = "right" if posterior.best == k else "wrong"
        elif result == "open":
            low, high = posterior.range()
            results["open, in range"] += low <= k <= high
        results[result] += 1
        runs.append(count)
        oracles.append(oracle(truth, draw, step, sigma))
    shares = "".join(
        f"{100 * results[name] / searches:8.1f} %"
        for name in ("right", "wrong", "several", "none", "open")
    )
    inside = f"{results['open, in range']}/{results['open']}"
    return f"{shares}{inside:>10}{statistics.fmean(runs):8.1f}{statistics.fmean(oracles):8.1f}"


def others(make: Callable[[], np.ndarray], draw: Noise, searches: int) -> str:
    results: Counter[str] = Counter()
    runs = []
    for _ in range(searches):
        result, _, count = search(make(), draw)
        results[result] += 1
        runs.append(count)
    shares = "".join(
        f"{100 * results[name] / searches:8.1f} %" for name in ("step", "several", "none", "open")
    )
    return f"{shares}{statistics.fmean(runs):8.1f}"


def single_steps(searches: int, noises: list[str]) -> None:
    print(
        f"{'noise':8}{'step':>7}{'sigma':>8}{'right':>10}{'wrong':>10}{'several':>10}{'none':>10}"
        f"{'open':>10}{'in range':>10}{'runs':>8}{'oracle':>8}"
    )
    for kind in noises:
        for step in (0.03, 0.05, 0.10):
            for sigma in (0.01, 0.02, 0.03):
                random = seeded(kind, step, sigma)
                draw = noise(sigma, kind == "t4", random)
                row = steps(draw, math.log1p(step), sigma, searches, random)
                print(f"{kind:8}{100 * step:5.0f} %{100 * sigma:6.0f} %{row}", flush=True)


def seeded(*row: object) -> np.random.Generator:
    return np.random.default_rng([20261127, *repr(row).encode()])


def other_changes(searches: int, noises: list[str]) -> None:
    versions = np.arange(VERSIONS)

    def two(size: float, random: np.random.Generator) -> Callable[[], np.ndarray]:
        def make() -> np.ndarray:
            first = int(random.integers(1, VERSIONS - 4))
            second = int(random.integers(first + 4, VERSIONS))
            return size * ((versions >= first).astype(float) + (versions >= second))

        return make

    print(f"{'noise':8}{'truth':22}{'step':>10}{'several':>10}{'none':>10}{'open':>10}{'runs':>8}")
    for kind in noises:
        for sigma in (0.01, 0.03):
            for name in ("two of 2 sigma", "two of 5 sigma", "none", "creep of 6 sigma"):
                random = seeded(kind, sigma, name)
                truths = {
                    "two of 2 sigma": two(2 * sigma, random),
                    "two of 5 sigma": two(5 * sigma, random),
                    "none": lambda: np.zeros(VERSIONS),
                    "creep of 6 sigma": lambda sigma=sigma: 6 * sigma * versions / (VERSIONS - 1),
                }
                row = others(truths[name], noise(sigma, kind == "t4", random), searches)
                print(f"{kind:8}{f'{name}, {sigma:.0%}':22}{row}", flush=True)


def main() -> None:
    searches = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    title(f"torchcoll bisect: {searches} searches a row, {VERSIONS} versions, at most {MOST} runs")
    table = sys.argv[2] if len(sys.argv) > 2 else ""
    noises = [sys.argv[3]] if len(sys.argv) > 3 else ["normal", "t4"]
    if table != "others":
        single_steps(searches, noises)
    if table != "steps":
        other_changes(searches, noises)


if __name__ == "__main__":
    main()
