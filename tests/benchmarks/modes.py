"""How often are calls that have one mode taken for two, and two for one? 2,000 series a row."""

from __future__ import annotations

import random
from collections.abc import Callable

from common import title

from torchcoll.core.two_modes import two_modes

SERIES, COUNTS = 2000, (20, 40, 100, 400)
Draw = Callable[[random.Random], float]


def mixed(share: float) -> Draw:
    """As gloo on 2 cores: 0.5 ms with noise of 12 %, so many calls evenly from 2 to 4 ms."""

    def draw(rng: random.Random) -> float:
        return rng.uniform(2, 4) if rng.random() < share else 0.5 * rng.lognormvariate(0, 0.12)

    return draw


def log_normal(sigma: float) -> Draw:
    return lambda rng: rng.lognormvariate(0, sigma)


def long_tail(index: float) -> Draw:
    return lambda rng: rng.lognormvariate(0, 0.1) * rng.paretovariate(index)


ROWS: dict[str, Draw] = {
    **{f"one mode: log-normal, {s:.0%}": log_normal(s) for s in (0.02, 0.1, 0.3, 1.0)},
    **{f"one mode: Pareto tail, index {a}": long_tail(a) for a in (1, 2)},
    **{f"two modes: {s:.0%} of the calls slow": mixed(s) for s in (0.15, 0.2, 0.35, 0.5, 0.8)},
}

if __name__ == "__main__":
    title(f"two modes found, % of {SERIES} series")
    print(f"{'calls':36}" + "".join(f"{n:>8}" for n in COUNTS))
    for name, draw in ROWS.items():
        cells = []
        for calls in COUNTS:
            rng = random.Random(calls)
            found = sum(
                two_modes([1000 * draw(rng) for _ in range(calls)]) is not None
                for _ in range(SERIES)
            )
            cells.append(f"{100 * found / SERIES:8.2f}")
        print(f"{name:36}{''.join(cells)}", flush=True)
