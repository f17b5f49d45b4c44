"""What FSDP2's steps take, against what ``advise`` says of them from measured curves.

Each run, forked gloo ranks, measures the curves of all_gather, reduce_scatter and all_reduce,
the forward and backward pass without FSDP2 on all ranks at once, and real steps with six settings:
1, 2 or all blocks a unit, parameters resharded after the forward pass or kept; in shuffled rounds.
``advise`` gets the plans of these settings, the curves and the passes; it sees no step.

    python tests/benchmarks/fsdp.py FOLDER RANKS run    one more run, about a minute
    python tests/benchmarks/fsdp.py FOLDER RANKS           what the runs in it tell
"""

from __future__ import annotations

import importlib
import pickle
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from common import fork_ranks, free_port, tcp_store, title
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torchcoll
from torchcoll.core.result import Run
from torchcoll.core.summary import geometric_interval
from torchcoll.stats.ratios import geometric

ROUNDS, STEPS, SKIP = 3, 5, 2
BLOCKS, WIDTH = 8, 256
SETTINGS = [(together, reshard) for together in (1, 2, BLOCKS) for reshard in (True, False)]
SIZES = tuple(1 << k for k in range(16, 25, 2))  # 64K to 16M
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """8 MiB in 8 blocks, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclass
class Launch:
    """What one run measured. Times in ns."""

    curve: Run
    forward_ns: float
    backward_ns: float
    steps_ns: dict[tuple[int, bool], float]  # setting -> median


def sharded(together: int, reshard: bool) -> nn.Module:
    model = Model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for start in range(0, BLOCKS, together):
        blocks = list(model.blocks[start : start + together])
        fully_shard(blocks, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


def timed(model: nn.Module, step: Callable[[nn.Module], None]) -> list[int]:
    """Of each step the slowest rank's."""
    for _ in range(SKIP):
        step(model)
    taken = []
    dist.barrier()
    for _ in range(STEPS):
        start = time.perf_counter_ns()
        step(model)
        taken.append(time.perf_counter_ns() - start)
    slowest = torch.tensor(taken)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return [int(ns) for ns in slowest]


def launch(rank: int, ranks: int, port: int) -> Launch:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=tcp_store(rank, ranks, port), rank=rank, world_size=ranks)
    spec = torchcoll.Spec(collectives=COLLECTIVES, sizes=SIZES, max_time_s=0.25)
    curve = torchcoll.run(spec) or Run()
    batch = torch.ones(64, WIDTH)

    def step(model: nn.Module) -> None:
        model(batch).sum().backward()
        for parameter in model.parameters():
            parameter.grad = None

    forward, backward = [], []
    alone = Model()
    for _ in range(15):
        dist.barrier()
        start = time.perf_counter_ns()
        loss = alone(batch).sum()
        middle = time.perf_counter_ns()
        loss.backward()
        backward.append(time.perf_counter_ns() - middle)
        forward.append(middle - start)
        for parameter in alone.parameters():
            parameter.grad = None
    order = random.Random(0)
    times: dict[tuple[int, bool], list[int]] = {setting: [] for setting in SETTINGS}
    for _ in range(ROUNDS):
        for setting in order.sample(SETTINGS, len(SETTINGS)):
            times[setting] += timed(sharded(*setting), step)
    dist.barrier()
    return Launch(
        curve,
        statistics.median(forward[3:]),
        statistics.median(backward[3:]),
        {setting: statistics.median(own) for setting, own in times.items()},
    )


def main() -> None:
    folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
    if sys.argv[3:] == ["run"]:
        importlib.import_module("torch._dynamo")
        found = fork_ranks(ranks, launch, ranks, free_port())[0]
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{ranks}-{time.time_ns()}.pickle"
        file.write_bytes(pickle.dumps(found))
        return
    files = sorted(folder.glob(f"{ranks}-*.pickle"))
    report(ranks, [pickle.loads(file.read_bytes()) for file in files])


def interval(ratios: Sequence[float]) -> str:
    ratio, low, high = geometric_interval(ratios)
    return f"{ratio:.3f}" if low is None else f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def report(ranks: int, launches: list[Launch]) -> None:
    """Of each run its own prediction is set against its own steps."""
    title(
        f"fsdp, gloo, {ranks} ranks, {len(launches)} runs, {ROUNDS} rounds of {STEPS} steps a "
        "setting"
    )
    passes = [one.forward_ns + one.backward_ns for one in launches]
    with torch.device("meta"):
        model = Model()
    plans = [
        # The root stays as it is gathered, as fully_shard has it by default.
        torchcoll.shard_traffic(
            model, Layer, ranks, reshard_after_forward=None if reshard else False, together=together
        )
        for together, reshard in SETTINGS
    ]
    # advise takes the forward pass for half of the backward pass: the sum of both is what counts.
    found = torchcoll.advise(
        plans, [one.curve for one in launches], backward_ms=geometric(passes) / 1.5e6
    )
    each = [
        torchcoll.advise(plans, one.curve, backward_ms=own / 1.5e6)
        for one, own in zip(launches, passes, strict=True)
    ]
    steps = [[one.steps_ns[setting] for one in launches] for setting in SETTINGS]
    best = min(range(len(steps)), key=lambda i: geometric(steps[i]))
    print(f"passes without FSDP2 {geometric(passes) / 1e6:.1f} ms")
    print(
        "setting                  calls   together  predicted   measured  predicted / measured (95 "
        "%)  over best (95 %, paired)  result"
    )
    for i, row in enumerate(found.rows):
        predicted = [
            own + (one.rows[i].exposed_ns or 0) for own, one in zip(passes, each, strict=True)
        ]
        off = interval([p / m for p, m in zip(predicted, steps[i], strict=True)])
        over = interval([m / b for m, b in zip(steps[i], steps[best], strict=True)])
        print(
            f"{row.choice:23}  {row.calls:5d}  {row.communication_ns / 1e6:6.1f} ms  "
            f"{geometric(predicted) / 1e6:6.1f} ms  {geometric(steps[i]) / 1e6:6.1f} ms  {off:27}  "
            f"{'-' if i == best else over:24}  {row.result}"
        )
    for what, row in (("advised", found.best), ("of least memory, no worse", found.least)):
        if row is None:
            print("no advice")
            return
        own = next(i for i, one in enumerate(found.rows) if one is row)
        over = interval([m / b for m, b in zip(steps[own], steps[best], strict=True)])
        same = "the best itself" if own == best else f"over the best of six {over}"
        print(f"{what}: {row.choice}: {same}")


if __name__ == "__main__":
    # Its own classes under one name, for pickle: as the module and not as __main__.
    from fsdp import main as this

    this()
