"""Is the communication of a planned step what the step then takes? Four gloo ranks, DDP and FSDP2.

Each run measures all_reduce, all_gather and reduce_scatter over sizes, alone and beside a matrix
product, and a model is fitted to either. The plan is made on meta, from the model's code: DDP's
buckets, FSDP2's shards. Then the step is really run, captured, and each of its calls is measured
alone, twice.

The measured communication of a step is the time in which any of its calls was in flight, each from
when its last rank had issued it until it had ended (a call that waits behind another one counts
once: the sum of durations counts it for as often as it waits); of the ranks and of several steps
the median. All figures are ratios of one run; the row 'alone again' is how far the same calls
alone differ from themselves.

    python tests/benchmarks/plan.py [RUNS]
"""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from common import fork_ranks, free_port, tcp_store, title
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchcoll
from torchcoll.core.intervals import Union
from torchcoll.core.result import Run
from torchcoll.core.summary import geometric_interval, median, summarise
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import counted
from torchcoll.curves.model_fit import fit_model
from torchcoll.training.projection import Plan
from torchcoll.training.steps import find_steps
from torchcoll.training.traffic_projection import plan_traffic

LAUNCHES, RANKS, STEPS = 4, 4, 12
SIZES = tuple(1 << k for k in range(12, 25))  # 4K to 16M
WORK, WORK_SIZES = "matmul:1M", (1 << 14, 1 << 18, 1 << 20, 1 << 22)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
WIDTHS = (256, 1024, 1024, 1024, 512, 128)
BATCH = 32


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(WIDTHS))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return Layers()


def planned(kind: str) -> Traffic:
    if kind == "DDP":
        return torchcoll.gradient_buckets(on_meta(), 2).traffic(RANKS)
    return torchcoll.shard_traffic(on_meta(), nn.Linear, RANKS)


@dataclass
class Launch:
    """curve, beside, alone: of rank 0; captured: of rank 0."""

    curve: Run
    concurrent: Run
    alone: dict[str, list[Run]]
    captured: dict[str, Traffic]


def launch(rank: int, port: int) -> Any:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=tcp_store(rank, RANKS, port), rank=rank, world_size=RANKS)
    spec = torchcoll.Spec(collectives=COLLECTIVES, sizes=SIZES, max_time_s=0.25)
    curve = torchcoll.run(spec)
    spec = torchcoll.Spec(
        collectives=COLLECTIVES, sizes=WORK_SIZES, iters=5, concurrent=WORK, check=False
    )
    concurrent = torchcoll.run(spec)
    captured, alone = {}, {}
    for kind in ("DDP", "FSDP2"):
        captured[kind] = stepped(kind)
        own = planned(kind).spec(max_time_s=0.25)
        alone[kind] = [torchcoll.run(own), torchcoll.run(own)]
    dist.barrier()
    return captured if rank else Launch(curve or Run(), concurrent or Run(), alone, captured)


def stepped(kind: str) -> Traffic:
    torch.manual_seed(0)
    model: Any = Layers()
    if kind == "DDP":
        model = DistributedDataParallel(model, bucket_cap_mb=2)
    else:
        mesh = init_device_mesh("cpu", (RANKS,))
        for module in (*model.layers, model):
            fully_shard(module, mesh=mesh)
    x = torch.randn(BATCH, WIDTHS[0])

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    for _ in range(3):
        step()
    with torchcoll.capture() as traffic:
        for _ in range(STEPS):
            dist.barrier()
            step()
            traffic.step()
    return traffic


def in_step(each: list[Traffic]) -> tuple[float, float]:
    """(in flight, sum of the calls' durations on the rank that came last) of a step in ns: medians
    over the steps, and over the ranks.
    """
    flights, sums = [], []
    for number in find_steps(each[0]).steady:
        calls = [
            [c for c in own.calls[rank] if c.step == number and c.collective in COLLECTIVES]
            for rank, own in enumerate(each)
        ]
        last = [min(c.time_ns or 0 for c in together) for together in zip(*calls, strict=True)]
        sums.append(sum(last))
        for own in calls:
            ends = [c.span[1] for c in own if c.span]
            spans = [(end - ns, end) for end, ns in zip(ends, last, strict=True)]
            flights.append(Union(spans).total)
    return median(flights), median(sums)


def alone_ns(run: Run, traffic: Traffic) -> float:
    """Each call of the plan as it was measured alone."""
    known = {}
    for result in run.results:
        row = summarise(result)
        known[row.collective, row.bytes_in, row.bytes_out] = row.median_ns or math.nan
    return sum(known[c.collective, c.bytes_in, c.bytes_out] for c in traffic.calls[0])


def row(what: str, pairs: list[tuple[float, float]]) -> None:
    ratio, low, high = geometric_interval([ours / base for ours, base in pairs])
    ends = "" if low is None or high is None else f" (95 % {low:.2f} to {high:.2f})"
    middle = median([base for _, base in pairs]) / 1e6
    print(f"  {what:42s} {ratio:5.2f}{ends}, of {middle:.2f} ms", flush=True)


def main() -> None:
    launches = int(sys.argv[1]) if len(sys.argv) > 1 else LAUNCHES
    title("plan: predicted against measured communication of a step")
    print(
        f"{launches} runs of {RANKS} gloo ranks, layers {WIDTHS}, "
        f"scipy {importlib.metadata.version('scipy')}; ratios, geometric means over runs"
    )
    found: list[tuple[Launch, list[Any], list[dict[str, Plan]]]] = []
    for _ in range(launches):
        ranks = fork_ranks(RANKS, launch, free_port())
        models = (fit_model([ranks[0].curve]), fit_model([ranks[0].concurrent], concurrent=True))
        plans = [
            {kind: plan_traffic(one.model, planned(kind), [], None) for kind in ("DDP", "FSDP2")}
            for one in models
        ]
        found.append((ranks[0], [ranks[0].captured, *ranks[1:]], plans))
        told(found)


def told(found: Sequence[tuple[Launch, list[Any], list[dict[str, Plan]]]]) -> None:
    """Of all runs so far: the last is the result."""
    launches = len(found)
    print(f"\nafter {counted(launches, 'run')}")
    for kind in ("DDP", "FSDP2"):
        alone = [[alone_ns(run, planned(kind)) for run in own.alone[kind]] for own, _, _ in found]
        steps = [in_step([ranks[kind] for ranks in captured]) for _, captured, _ in found]
        real = [flight for flight, _ in steps]
        plan, concurrent = ([plans[n][kind].step.comm_ns for _, _, plans in found] for n in (0, 1))
        calls = len(planned(kind).calls[0])
        print(f"{kind}, {calls} calls a step")
        row("alone again / alone (A/A)", [(b, a) for a, b in alone])
        row("planned / alone", [(p[0], a[0]) for p, a in zip(plan, alone, strict=True)])
        row("sum of durations / in flight, in the step", [(total, r) for r, total in steps])
        row("alone / in the step", [(a[0], r) for a, r in zip(alone, real, strict=True)])
        row("planned / in the step", [(p[0], r) for p, r in zip(plan, real, strict=True)])
        row(
            f"planned beside {WORK} / in the step",
            [(p[0], r) for p, r in zip(concurrent, real, strict=True)],
        )
        inside = sum(p[1] <= a[0] <= p[2] for p, a in zip(plan, alone, strict=True))
        held, also = (
            sum(p[1] <= r <= p[2] for p, r in zip(own, real, strict=True))
            for own in (plan, concurrent)
        )
        print(
            f"  the plan's interval holds the calls alone in {inside} of {launches} runs, the "
            f"step in {held}, beside {WORK} in {also}"
        )


if __name__ == "__main__":
    main()
