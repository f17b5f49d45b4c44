"""What `stopped by: precision` is worth: series with a known middle, fed to the shipped rule.

    python tests/benchmarks/precision.py [SERIES [TABLE]]

Each series is what 1000 calls would take; the rule is asked and fed as in a measurement, without a
limit of time, until it stops. `off`: of ALL series, those that it called precise whose figure, over
the calls it was fed, is further from the true one than the precision that was asked for (5 %). The
noise is log-normal: independent, or an autoregression of the first order (each call's logarithm
keeps 0.9 of the one before it, say), of the spread that is given. No time passes here and none is
measured.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy
from common import title
from compare_simulation import interval
from scipy.signal import lfilter

from torchcoll.bench.stopping import StoppingRule
from torchcoll.core.summary import median

SERIES, WIDTH, SEED = 2000, 0.05, 20261122
CALLS = 1000  # the cap of a case on few ranks
SHORT = 60  # quiet series are to end by then
SLOW_SHARE, SLOW, MODE_NOISE = 0.35, 2.0, 0.02  # two modes: so many calls take twice as long
MOST_OFF, QUIET_SHARE, PRECISE_SHARE = 0.10, 0.90, 0.95

Noise = numpy.ndarray
Maker = Callable[[numpy.random.Generator, int], Noise]


def independent(spread: float) -> Maker:
    return lambda rng, n: numpy.exp(spread * rng.standard_normal((n, CALLS)))


def autoregression(keeps: float, spread: float) -> Maker:
    def make(rng: numpy.random.Generator, n: int) -> Noise:
        drawn = rng.standard_normal((n, CALLS)) * math.sqrt(1 - keeps**2)
        drawn[:, 0] = rng.standard_normal(n)  # it has been running for ever
        return numpy.exp(spread * lfilter([1.0], [1.0, -keeps], drawn, axis=1))

    return make


def two_modes(stay: float) -> Maker:
    """Slow calls, 35 % of all, in stretches of ``stay`` on average; the fast ones last longer."""
    leave = 1 / stay
    enter = leave * SLOW_SHARE / (1 - SLOW_SHARE)

    def make(rng: numpy.random.Generator, n: int) -> Noise:
        drawn = rng.random((n, CALLS))
        slow = numpy.empty((n, CALLS), dtype=bool)
        slow[:, 0] = drawn[:, 0] < SLOW_SHARE
        for i in range(1, CALLS):
            slow[:, i] = numpy.where(slow[:, i - 1], drawn[:, i] >= leave, drawn[:, i] < enter)
        return numpy.where(slow, SLOW, 1.0) * independent(MODE_NOISE)(rng, n)

    return make


def stays(fast: float, slow: float) -> Maker:
    """So many fast calls on average, then so many slow ones, which take 1.4 times as long."""

    def make(rng: numpy.random.Generator, n: int) -> Noise:
        drawn = rng.random((n, CALLS))
        is_slow = numpy.empty((n, CALLS), dtype=bool)
        is_slow[:, 0] = drawn[:, 0] < slow / (fast + slow)
        for i in range(1, CALLS):
            before = is_slow[:, i - 1]
            is_slow[:, i] = numpy.where(before, drawn[:, i] >= 1 / slow, drawn[:, i] < 1 / fast)
        return numpy.where(is_slow, 1.4, 1.0) * independent(0.03)(rng, n)

    return make


def pareto(exponent: float, scale: float) -> Maker:
    """1 + scale times a Lomax tail, whose mean is 1 / (exponent - 1); below an exponent of 2 its
    variance is infinite.
    """
    return lambda rng, n: 1 + scale * rng.pareto(exponent, (n, CALLS))


def drift(rise: float, spread: float) -> Maker:
    """Slower by ``rise`` over all calls, steadily, under independent noise."""
    line = numpy.linspace(1, 1 + rise, CALLS)
    return lambda rng, n: independent(spread)(rng, n) * line


def outliers(share: float, times: float) -> Maker:
    def make(rng: numpy.random.Generator, n: int) -> Noise:
        odd = rng.random((n, CALLS)) < share
        return numpy.where(odd, times, 1.0) * independent(0.05)(rng, n)

    return make


@dataclass(frozen=True)
class Row:
    """One kind of series and its true figure: of a long series, or as ``true`` says."""

    name: str
    make: Maker
    true: float = 1.0
    quiet: bool = False
    precise: bool = False  # is to be called so
    means: bool = False  # the figure is a mean, as that of calls back to back
    stay: float = 0.0


def percent(share: float) -> str:
    return f"{100 * share:g} %"


INDEPENDENT = tuple(
    Row(
        f"independent {percent(s)}",
        independent(s),
        quiet=s <= 0.05,
        precise=s <= 0.1,
    )
    for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
)
CORRELATED = tuple(
    Row(f"AR {keeps:g} at {percent(s)}", autoregression(keeps, s))
    for keeps, spreads in (
        (0.5, (0.1, 0.15)),
        (0.8, (0.1, 0.15, 0.3)),
        (0.9, (0.1, 0.15, 0.3)),
        (0.95, (0.1, 0.15, 0.3)),
        (0.98, (0.1, 0.15, 0.3)),
        (0.99, (0.1, 0.15, 0.3)),
        (0.999, (0.1, 0.15, 0.3)),
    )
    for s in spreads
)
STILL = (
    Row("AR 0.99 at 0.1 %", autoregression(0.99, 0.001), quiet=True),
    Row("AR 0.999 at 0.2 %", autoregression(0.999, 0.002), quiet=True),
)
# The middle of what has outliers is that of its 0.5 / (1 - share) lower part: within 1 % of 1.
ODD = (
    Row("2 % of calls 10 times slower", outliers(0.02, 10)),
    Row("10 % of calls 5 times slower", outliers(0.1, 5)),
)
# The mean of a log-normal is exp(spread^2 / 2) of its middle.
PERIODS = tuple(
    Row(f"{name}, means", make, math.exp(s**2 / 2), means=True)
    for name, make, s in (
        ("independent 5 %", independent(0.05), 0.05),
        ("independent 30 %", independent(0.3), 0.3),
        ("AR 0.9 at 15 %", autoregression(0.9, 0.15), 0.15),
        ("AR 0.99 at 10 %", autoregression(0.99, 0.1), 0.1),
    )
)
# The mean of two modes, each with 3 % of log-normal noise.
MODES_OF_MEANS = tuple(
    Row(
        f"stays {fast} / {slow}, means",
        stays(fast, slow),
        (fast + 1.4 * slow) / (fast + slow) * math.exp(0.03**2 / 2),
        means=True,
    )
    for fast, slow in ((5, 2), (10, 3), (20, 5), (40, 10), (50, 20))
)
TAILS_OF_MEANS = (
    Row(
        "2 % of calls 10 times slower, means",
        outliers(0.02, 10),
        1.18 * math.exp(0.05**2 / 2),
        means=True,
    ),
    Row("Pareto 2.5, half a call, means", pareto(2.5, 0.5), 1 + 0.5 / 1.5, means=True),
)
UNSEEN_OF_MEANS = (
    Row(
        "stays 200 / 100, means",
        stays(200, 100),
        (200 + 1.4 * 100) / 300 * math.exp(0.03**2 / 2),
        means=True,
    ),
    Row("Pareto 1.5, a tenth, means", pareto(1.5, 0.1), 1.2, means=True),
    Row("Pareto 1.5, a fifth, means", pareto(1.5, 0.2), 1.4, means=True),
)
MODES = tuple(Row(f"two modes, stay {stay}", two_modes(stay), stay=stay) for stay in (2, 5, 10, 20))
UNSEEN = tuple(
    Row(f"two modes, stay {stay}", two_modes(stay), stay=stay) for stay in (30, 60, 120, 300, 1000)
)
# Of all calls, where the drift goes on: its middle is half-way.
DRIFT = tuple(
    Row(f"drift {percent(d)}, noise {percent(s)}", drift(d, s), 1 + d / 2)
    for d in (0.1, 0.2, 0.5)
    for s in (0.02, 0.1)
)


def play(series: list[float], means: bool) -> StoppingRule:
    """The rule after it has stopped; what it has been fed are the first ``calls`` of the series."""
    rule = StoppingRule(2, None, WIDTH, max_time_s=1e6, expected_ns=1.0, means=means)
    while batch := rule.next_batch(0.0):
        rule.add(series[rule.calls : rule.calls + batch])
    return rule


def line(row: Row, number: int, seed: int, held: bool) -> str:
    off = precise = short = 0
    calls = []
    for series in row.make(numpy.random.default_rng(seed), number).tolist():
        rule = play(series, row.means)
        fed = series[: rule.calls]
        figure = sum(fed) / len(fed) if row.means else median(fed)
        if rule.reason == "precision":
            precise += 1
            off += abs(figure - row.true) > WIDTH * row.true
        short += rule.calls <= SHORT
        calls.append(rule.calls)
    calls.sort()
    words = [f"{row.name:35} off {interval(off, number)}   precise {100 * precise / number:5.1f} %"]
    words.append(f"calls {median(calls):4.0f}, 9 in 10 by {calls[int(0.9 * number)]:4}")
    words.append(f"by {SHORT}: {100 * short / number:5.1f} %")
    if row.stay:
        words.append(f"exp(-{SHORT} / stay) {100 * math.exp(-SHORT / row.stay):4.1f} %")
    failed = [
        what
        for what, fails in (
            (f"off in more than {percent(MOST_OFF)}", off > MOST_OFF * number),
            (f"too long for {percent(QUIET_SHARE)}", row.quiet and short < QUIET_SHARE * number),
            ("seldom precise", row.precise and precise < PRECISE_SHARE * number),
        )
        if held and fails
    ]
    return "  ".join([*words, *(f"** {what}" for what in failed)])


TABLES = (
    (
        "independent noise, and what hardly moves (** marks a row beyond its limit)",
        INDEPENDENT + STILL,
    ),
    ("autoregressions, and outliers", CORRELATED + ODD),
    ("calls back to back, whose figure is a mean", PERIODS + MODES_OF_MEANS + TAILS_OF_MEANS),
    (f"two modes whose slow stays are at most a third of {SHORT} calls", MODES),
    (
        "seen by no rule: modes that outlast what was seen, and slow drift",
        UNSEEN + UNSEEN_OF_MEANS + DRIFT,
    ),
)


def report(number: int = SERIES, table: int = 0) -> None:
    """All tables, or that one, counted from 1."""
    title(f"precision of {percent(WIDTH)}: {number} series a row, at most {CALLS} calls")
    seed = SEED
    for place, (heading, rows) in enumerate(TABLES, 1):
        if table in (0, place):
            print(f"\n{heading}")
        for row in rows:
            seed += 1
            if table in (0, place):
                print(line(row, number, seed, held=rows is not TABLES[-1][1]), flush=True)


if __name__ == "__main__":
    report(*(int(argument) for argument in sys.argv[1:]))
