"""How well a model of few numbers of ranks predicts others: `torchcoll model fit`.

    python tests/benchmarks/rank_counts.py [SOURCE]

SOURCE: the rows whose source begins with it, such as H100, alone.

Times on several numbers of hosts, each fitted on two or three of them, the commonest data (one host
and several) among them, and compared on the others:

- H100: a published run of one host with one of 2 or 12 hosts elsewhere (four pairs);
- published runs of one machine: Polaris (2, 8, 256 and 540 hosts), GB200 racks (1, 2 and 20), and
  the p3dn series of benchmarks/model.py (2, 4 and 8);
- NCCL's own cost model (src/graph/tuning.cc of 2.27: ring and tree with LL, LL128 and Simple, the
  fastest of them for each size), for machines with random links and 3 % of noise. It shares no
  formula with the laws that are fitted.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy
from common import title
from model import SERIES

from torchcoll.core.errors import UsageError
from torchcoll.curves.model_fit import fit_entries
from torchcoll.curves.model_sizes import Curve
from torchcoll.curves.predictions import only_a_guess
from torchcoll.verdict.published import Publication, publications

MACHINES = 8
NOISE = 0.03
HOSTS = (1, 2, 4, 8, 32)
SIZES = [1 << power for power in range(12, 31, 2)]
TRAINED = ((1, 2), (1, 4), (2, 4), (1, 2, 4), (2, 4, 8))


@dataclass(frozen=True)
class Simulated:
    """Links of a machine. gbps: of all channels within a host, and between hosts."""

    channels: int
    within_gbps: float
    between_gbps: float
    net_us: float
    gpus: int = 8

    def time_us(self, collective: str, size: int, hosts: int) -> float:
        """The fastest algorithm and protocol, by the formulas of NCCL's tuning.cc."""
        n, reduced = self.gpus * hosts, collective == "all_reduce"
        busbw = self.within_gbps if hosts == 1 else min(self.within_gbps, self.between_gbps)
        steps = (2 if reduced else 1) * (n - 1)
        crossing = 0 if hosts == 1 else (2 if reduced else 1) * hosts
        times = []
        # Bandwidth of a protocol, base latency, latencies of NVLink and network for ring and tree.
        for share, base, ring_in, ring_net, tree_base, tree_in, tree_net in (
            (0.5, 6.6, 0.6, 2.7, 6.8, 0.6, 5.0),
            (0.92, 14.0, 1.9, 4.0, 14.0, 1.25, 8.5),
            (1.0, 8.4, 3.4, 14.0, 8.4, 4.0, 14.0),
        ):
            ring = base + (steps - crossing) * ring_in + crossing * (ring_net + self.net_us)
            times.append(ring + size / (share * busbw * n / steps) / 1e3)
            if reduced:
                hops = 2 * math.log2(hosts) * (tree_net + self.net_us)
                tree = tree_base + 2 * (self.gpus - 1) * tree_in + hops
                times.append(tree + size / (share * 0.92 * busbw / 2) / 1e3)
        return min(times)


@dataclass(frozen=True)
class Case:
    """Curves of one collective on a machine by number of hosts; some are fitted, some predicted."""

    source: str
    collective: str
    curves: dict[int, Curve]
    trained: tuple[int, ...]


def curve_of(ranks: int, hosts: int, times_ns: dict[int, float]) -> Curve:
    sizes = numpy.array(sorted(times_ns), dtype=float)
    return Curve(
        ranks, hosts, sizes, numpy.array([times_ns[int(s)] for s in sizes]), (0.0,) * len(sizes)
    )


def simulated() -> Iterator[Case]:
    chance = random.Random(0)
    for _ in range(MACHINES):
        machine = Simulated(
            chance.choice((8, 12, 16)),
            chance.uniform(100, 450),
            chance.choice((25, 50, 100, 200, 400)),
            chance.uniform(1, 30),
        )
        for collective in ("all_reduce", "all_gather"):
            curves = {}
            for hosts in HOSTS:
                times = {
                    size: 1e3
                    * machine.time_us(collective, size, hosts)
                    * math.exp(chance.gauss(0, NOISE))
                    for size in SIZES
                }
                curves[hosts] = curve_of(8 * hosts, hosts, times)
            for trained in TRAINED:
                yield Case(f"NCCL's model, {collective}", collective, curves, trained)


def published() -> Iterator[Case]:
    for name in ("polaris", "coreweave-gb200"):
        runs = [run for run in publications() if run.type == name]
        yield from pairs(name, {hosts_of(run): published_curve(run) for run in runs})
    yield from h100()
    series = {
        hosts: curve_of(
            8 * hosts, hosts, {8 << i: 1e3 * float(us) for i, us in enumerate(text.split())}
        )
        for hosts, text in ((ranks // 8, text) for ranks, text in SERIES.items())
    }
    yield from pairs("aws-p3dn", series)


def h100() -> Iterator[Case]:
    """One host of 8 H100 and several, of different machines: what people have. The third number of
    hosts is another machine's too.
    """
    runs = {
        (run.type, hosts_of(run)): run
        for run in publications()
        if run.type in ("azure-h100", "aws-p5", "coreweave-h100") and len(run.figures) > 4
    }
    several = {2: runs["aws-p5", 2], 12: runs["coreweave-h100", 12]}
    for one in ("azure-h100", "aws-p5"):
        curves = {1: runs[one, 1], **several}
        for hosts in several:
            yield Case(
                f"H100, one host of {one}",
                "all_reduce",
                {count: published_curve(run) for count, run in curves.items()},
                (1, hosts),
            )


def hosts_of(run: Publication) -> int:
    return max(1, round(run.ranks / run.linked))


def published_curve(run: Publication) -> Curve:
    factor = 2 * (run.ranks - 1) / run.ranks
    times = {
        size: size * factor / next(iter(busbw.values())) for (_, size), busbw in run.figures.items()
    }
    return curve_of(run.ranks, hosts_of(run), times)


def pairs(name: str, curves: dict[int, Curve]) -> Iterator[Case]:
    for count in (2, 3):
        for trained in itertools.combinations(curves, count):
            if len(trained) < len(curves):
                yield Case(name, "all_reduce", curves, trained)


@dataclass
class Scores:
    """Of predicted points: (predicted / measured, inside, ratio of the ends); and refusals."""

    points: list[tuple[float, bool, float]]
    refused: int = 0


def score(case: Case) -> Scores:
    kind = {"collective": case.collective, "backend": "nccl", "device": "cuda"}
    (entry,) = fit_entries([(kind, [case.curves[hosts] for hosts in case.trained])])
    scores = Scores([])
    for hosts, curve in case.curves.items():
        # Without a single host, links within a host were not measured: predict says so.
        if hosts in case.trained or (hosts == 1 < min(case.trained)):
            continue
        for size, time in zip(curve.sizes, curve.times, strict=True):
            try:
                one = entry.predict(int(size), curve.ranks, hosts)
            except UsageError:
                scores.refused += 1
                continue
            if only_a_guess(one):
                scores.refused += 1
                continue
            inside = one.low_ns <= time <= one.high_ns
            scores.points.append((one.time_ns / time, inside, one.high_ns / one.low_ns))
    return scores


def main() -> None:
    title("rank_counts")
    print(f"{'source':28} {'fitted on hosts':16} {'points':>6} {'refused':>7} {'median error':>12} "
          f"{'in 90 %':>8} {'width':>8}")  # fmt: skip
    groups: dict[tuple[str, tuple[int, ...]], list[Case]] = {}
    for case in [*published(), *simulated()]:
        if not sys.argv[1:] or case.source.startswith(sys.argv[1]):
            groups.setdefault((case.source, case.trained), []).append(case)
    for (source, trained), cases in groups.items():
        show(source, ", ".join(map(str, trained)), [score(case) for case in cases])


def show(source: str, trained: str, scores: Sequence[Scores]) -> None:
    points = [point for each in scores for point in each.points]
    refused = sum(each.refused for each in scores)
    if not points:
        print(f"{source:28} {trained:16} {0:6} {refused:7}")
        return
    error = float(numpy.median([max(ratio, 1 / ratio) for ratio, _, _ in points]))
    inside = float(numpy.mean([held for _, held, _ in points]))
    width = float(numpy.median([ratio for _, _, ratio in points]))
    print(
        f"{source:28} {trained:16} {len(points):6} {refused:7} {error:11.2f}x {inside:8.0%} "
        f"{width:7.1f}x",
        flush=True,
    )


if __name__ == "__main__":
    main()
