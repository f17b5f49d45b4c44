"""Is the bucket_cap_mb that ``advise`` proposes as fast as the best one that was tried?

Each run, two forked gloo ranks, measures for each model the curve of all_reduce, a backward pass
without communication (no_sync), and real steps with every cap (``try_buckets``: shuffled rounds).
``advise`` gets torch's own buckets, the curves of all runs and the median backward; it sees no
step. The ratio is of steps with the advised cap over steps with the best, paired by run; the
best is chosen by the same steps, so that the ratio is 1 or more by construction.

    python tests/benchmarks/advice.py FOLDER run    one more run, 1 to 2 minutes; beside what
                                                       it measured the Run of its curve (.jsonl)
    python tests/benchmarks/advice.py FOLDER           what the runs in it tell
"""

from __future__ import annotations

import importlib
import pickle
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from common import fork_ranks, free_port, tcp_store, title
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchcoll
from torchcoll.core.result import Run
from torchcoll.core.summary import geometric_interval, median
from torchcoll.stats.ratios import geometric
from torchcoll.training.plans import BucketPlan

ROUNDS, STEPS = 3, 5
CAPS_MB = (0.5, 1, 2, 4, 8, 12, 25, 100)
SIZES = tuple(1 << k for k in range(14, 26))  # 16K to 32M
LIMIT = 1.05


def mlp() -> nn.Module:
    layers = [module for _ in range(16) for module in (nn.Linear(512, 512), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 5, enable_nested_tensor=False)


def wide() -> nn.Module:
    """Few large parameters, 28 MiB."""
    return nn.Sequential(
        *(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU()),
        *(nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10)),
    )


def conv() -> nn.Module:
    """Many small parameters, 5 MiB."""
    layers = [m for _ in range(9) for m in (nn.Conv2d(128, 128, 3, padding=1), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, 128, 1), *layers)


# name -> the model, and the shape of its input
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (128, 512)),
    "transformer": (transformer, (2, 32, 256)),
    "wide": (wide, (64, 512)),
    "conv": (conv, (1, 3, 8, 8)),
}


@dataclass
class Launch:
    """What one run measured of one model. Times in ns."""

    curve: Run
    plans: list[BucketPlan]
    alone_ns: float  # a step without communication
    backward_ns: float
    steps_ns: dict[float, float]  # cap -> median


def launch(rank: int, port: int, rounds: int) -> dict[str, Launch] | None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=tcp_store(rank, 2, port), rank=rank, world_size=2)
    curve = torchcoll.run(torchcoll.Spec(sizes=SIZES, asynchronous=True, max_time_s=0.25))
    found = {name: measure(*MODELS[name], curve or Run(), rounds) for name in MODELS}
    dist.barrier()
    return found if rank == 0 else None


def measure(
    make: Callable[[], nn.Module], shape: tuple[int, ...], curve: Run, rounds: int
) -> Launch:
    torch.manual_seed(0)

    def step(model: nn.Module) -> None:
        model(torch.ones(shape)).sum().backward()
        for parameter in model.parameters():
            parameter.grad = None

    plans = [torchcoll.gradient_buckets(make(), cap, step) for cap in CAPS_MB]
    alone, backward = without_communication(make(), shape)
    found = torchcoll.try_buckets(
        lambda cap: DistributedDataParallel(make(), bucket_cap_mb=cap),
        step,
        CAPS_MB,
        rounds=rounds,
        steps=STEPS,
        skip=2,
    )
    steps = {row.cap_mb or 0.0: row.median_ns for row in found.rows}
    return Launch(curve, plans, alone, backward, steps)


def without_communication(module: nn.Module, shape: tuple[int, ...]) -> tuple[float, float]:
    """Medians of a whole step and of its backward pass, on this rank, both ranks at work."""
    model, whole, backward = DistributedDataParallel(module), [], []
    with model.no_sync():
        for _ in range(30):
            dist.barrier()
            start = time.perf_counter_ns()
            loss = model(torch.ones(shape)).sum()
            middle = time.perf_counter_ns()
            loss.backward()
            end = time.perf_counter_ns()
            whole.append(end - start)
            backward.append(end - middle)
            for parameter in model.parameters():
                parameter.grad = None
    return statistics.median(whole[5:]), statistics.median(backward[5:])


def report(name: str, launches: list[Launch]) -> None:
    backward = median([one.backward_ns for one in launches])
    alone = median([one.alone_ns for one in launches])
    curves = [one.curve for one in launches]
    advice = torchcoll.advise(launches[0].plans, curves, backward_ms=backward / 1e6)
    rows = {row.caps_mb[0]: row for row in advice.rows}
    steps = {cap: geometric_interval([one.steps_ns[cap] for one in launches])[0] for cap in CAPS_MB}
    best = min(CAPS_MB, key=steps.__getitem__)
    size_bytes = sum(bucket.size_bytes for bucket in launches[0].plans[0].buckets)
    print(
        f"\n{name}: {size_bytes / 2**20:.1f} MiB of gradients, a step without communication "
        f"{alone / 1e6:.1f} ms, its backward {backward / 1e6:.1f} ms"
    )
    print("  cap  buckets  modelled   measured  over best  95 % (paired by run)  model off  result")
    off = {cap: (alone + (row.exposed_ns or 0)) / steps[cap] for cap, row in rows.items()}
    centre = geometric(off.values())  # all caps alike: what matters to a choice is the rest
    for cap in CAPS_MB:
        if cap not in rows:
            continue  # the same buckets as a smaller cap
        row = rows[cap]
        modelled = alone + (row.exposed_ns or 0)
        ratio, low, high = geometric_interval(
            [one.steps_ns[cap] / one.steps_ns[best] for one in launches]
        )
        interval = "-" if cap == best or low is None else f"{low:.3f} to {high:.3f}"
        print(
            f"{cap:5g}  {row.buckets:7d}  {modelled / 1e6:5.1f} ms  {steps[cap] / 1e6:6.1f} ms  "
            f"{ratio:9.3f}  {interval:23}  {100 * (off[cap] / centre - 1):+6.1f} %   {row.result}"
        )
    if advice.best is None:
        print("no advice: every cap is beyond the curve")
        return
    (advised,) = advice.best.caps_mb
    ratio, low, high = geometric_interval(
        [one.steps_ns[advised] / one.steps_ns[best] for one in launches]
    )
    interval = "" if low is None else f" (95 % {low:.3f} to {high:.3f}, {len(launches)} runs)"
    holds = "includes" if (low or ratio) <= LIMIT else "DOES NOT include"
    if advised == best:
        interval = " (the same)"
    print(
        f"advised {advised:g} (no worse: {advice.low_cap_mb:g} to {advice.high_cap_mb:g}), best "
        f"{best:g}: advised / best {ratio:.3f}{interval}; it {holds} values at or below {LIMIT}"
    )


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2:] == ["run"]:
        importlib.import_module("torch._dynamo")  # DDP does; here once and not in each rank
        found = fork_ranks(2, launch, free_port(), ROUNDS)[0]
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time_ns()
        (folder / f"{now}.pickle").write_bytes(pickle.dumps(found))
        torchcoll.save(next(iter(found.values())).curve, folder / f"{now}-curve.jsonl")
        return
    launches = [pickle.loads(file.read_bytes()) for file in sorted(folder.glob("*.pickle"))]
    title(f"advice, gloo, 2 ranks, {len(launches)} runs, {ROUNDS} rounds of {STEPS} steps a cap")
    for name in MODELS:
        report(name, [one[name] for one in launches])


if __name__ == "__main__":
    # Its own classes under one name, for pickle: as the module and not as __main__.
    from advice import main as this

    this()
