"""Is the layout that `torchcoll plan` calls fastest the fastest? Real steps over links of known rates.

    python tests/benchmarks/layouts.py FOLDER [--pieces N]

30 settings: 2, 4 and 8 gloo ranks, each on a host of its own (a network namespace behind a shaped
link: root, ip and tc needed), two rates, and five small Llamas. In each, six layouts of the same
model with the same tokens in a step are really trained for a few steps, in turns. The prediction
is `torchcoll plan` with a model that `torchcoll model fit` made of collectives, measured on the same
links alone. FOLDER keeps what was measured: --pieces N measures the next N pieces (collectives on
a number of hosts, or a setting) and ends; without it, all that is missing, and then the report.

- communication: the time in which a rank has any call in flight, of the rank for which it is least
  (the others wait for it too), of each step; the median over the steps, with a 95 % interval of the
  median (order statistics).
- step: from a barrier to the end on the last rank. exposed: the step without its computation. That
  is a bracket: the ranks share the cores of one machine, so that a rank computes as long as alone at
  least, and as all of them at once at most. Both were measured without any communication.
- Kendall's tau-b is over the pairs of layouts of a setting whose communication differs by more than
  10 % with disjoint intervals. The order by bytes (what a rank sends in a step) has its own.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import scipy.stats
import torch
import torch.distributed as dist
from common import title
from namespaces import Search, hosts
from parallel_models import Llama, Widths, llama_config, split_over_tp, train_step
from ranks import Job, Measured
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import torchcoll
from torchcoll.core.intervals import Union
from torchcoll.core.summary import geometric_interval
from torchcoll.curves.model_fit import fit_model
from torchcoll.training.architectures import Architecture, parse_config
from torchcoll.training.config_plan import TrainingOptions
from torchcoll.training.config_projection import LayoutRow, compare_layouts
from torchcoll.training.layer_calls import Batch, LayerOptions
from torchcoll.training.layouts import ParallelLayout, parse_layout

COUNTS, RATES = (2, 4, 8), (100, 300)  # ranks; Mbit/s
LAYOUTS = {
    2: ("dp=2", "fsdp=2", "zero2=2", "zero-torch=2", "tp=2", "tp=2,sp"),
    4: ("dp=4", "fsdp=4", "zero-torch=4", "hsdp=2x2", "fsdp=2,tp=2,sp", "tp=4,sp"),
    8: ("dp=8", "fsdp=8", "zero-torch=8", "hsdp=2x4", "fsdp=4,tp=2,sp", "tp=8,sp"),
}
CURVES = "--collectives all_reduce,all_gather,reduce_scatter,broadcast -n 6 -w 1 -c 0 --sizes "
SIZES = "256,2K,16K,64K,256K,1M,4M"
WARMUP, FEWEST, MOST, SECONDS = 2, 5, 15, 12.0  # steps of a layout, and of all six together


@dataclass(frozen=True)
class Model:
    """A small Llama, and the tokens of a data-parallel rank in a step of the widest layout."""

    name: str
    layers: int
    widths: Widths
    tokens: int


MODELS = (
    Model("wide, few tokens", 2, Widths(128, 8, 8, 512, 256), 16),
    Model("wide, many tokens", 2, Widths(128, 8, 8, 512, 256), 256),
    Model("deep, few tokens", 6, Widths(64, 8, 8, 192, 256), 16),
    Model("deep, many tokens", 6, Widths(64, 8, 8, 192, 256), 256),
    Model("large vocabulary", 2, Widths(64, 8, 8, 192, 4096), 64),
)


@dataclass(frozen=True)
class Setting:
    ranks: int
    mbit: int
    model: Model

    @property
    def file(self) -> str:
        return f"{self.ranks}ranks-{self.mbit}mbit-{MODELS.index(self.model)}.json"


SETTINGS = [Setting(n, mbit, model) for mbit in RATES for n in COUNTS for model in MODELS]


def curve_file(ranks: int, mbit: int) -> str:
    return f"curves-{ranks}ranks-{mbit}mbit.jsonl"


# Measuring


def measure_curves(folder: Path, ranks: int, mbit: int) -> None:
    search = Search(CURVES + SIZES, mbit, "128kb")
    target = folder / curve_file(ranks, mbit)
    with hosts(ranks, search) as made:
        places = {"environment": made.environment, "setup": made.enter}
        job = Measured(target.with_suffix(""), None, search.arguments, ranks, **places)
        job.ended(0, 400)


def build(layout: ParallelLayout, model: Model) -> tuple[Any, Callable[[], None]]:
    """Returns the wrapped model and its step, as torchtitan and torch's documentation make them."""
    torch.manual_seed(0)
    inner = Llama(model.layers, widths=model.widths)
    parallel, wrapped, optimizer = layout.tp > 1, inner, None
    sizes = {"replicate": layout.replicas, "shard": layout.shards, "tp": layout.tp}
    if layout.sharded:
        sizes = {name: n for name, n in sizes.items() if n > 1}
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        if parallel:
            split_over_tp(inner, mesh["tp"], layout.sequence_parallel)
        data = mesh[tuple(name for name in sizes if name != "tp")] if sizes.keys() - {"tp"} else None
        for module in (*inner.layers, inner) if data else ():
            kept = {"reshard_after_forward": False} if layout.data == "zero2" else {}
            fully_shard(module, mesh=data, **kept)
    else:
        wrapped = DistributedDataParallel(inner)
        if layout.data == "zero-torch":
            optimizer = ZeroRedundancyOptimizer(inner.parameters(), torch.optim.SGD, lr=1e-6)
    # Ranks of tp have the sequences of all of them.
    tokens = torch.zeros(layout.tp, model.tokens, dtype=torch.long)

    def step() -> None:
        train_step(wrapped, parallel, tokens)
        if optimizer is not None:
            optimizer.step()
        wrapped.zero_grad()

    return wrapped, step


def in_flight(traffic: Any) -> int:
    """ns in which this rank has a call in flight."""
    calls = traffic.calls[dist.get_rank()]
    untimed = [call.collective for call in calls if call.span is None]
    assert not untimed, untimed
    return int(Union([call.span for call in calls]).total)


def train(setting: Setting) -> None:
    """On each rank: the steps of all layouts, in turns; rank 0 writes the result."""
    dist.init_process_group("gloo")
    computed = compute_times(setting.model)
    layouts = {text: parse_layout(text) for text in LAYOUTS[setting.ranks]}
    steps = {text: build(layout, setting.model) for text, layout in layouts.items()}
    began = time.perf_counter()
    for _ in range(WARMUP):
        for _, step in steps.values():
            step()
    rounds = torch.tensor([SECONDS / ((time.perf_counter() - began) / WARMUP)])
    dist.broadcast(rounds, 0)
    times: dict[str, list[list[int]]] = {text: [] for text in steps}
    for _ in range(max(FEWEST, min(MOST, int(rounds)))):
        for text, (_, step) in steps.items():
            dist.barrier()
            with torchcoll.capture() as traffic:
                start = time.perf_counter_ns()
                step()
                ended = time.perf_counter_ns() - start
            flight = torch.tensor([in_flight(traffic)])
            longest = torch.tensor([ended])
            dist.all_reduce(flight, dist.ReduceOp.MIN)
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            times[text].append([int(flight), int(longest)])
    if not dist.get_rank():
        Path("result.json").write_text(json.dumps({"computed": computed, "times": times}))
    dist.barrier()


def compute_times(model: Model) -> list[float]:
    """[alone, all ranks at once]: ns of forward and backward pass without communication."""
    inner = Llama(model.layers, widths=model.widths)
    tokens = torch.zeros(1, model.tokens, dtype=torch.long)

    def timed() -> float:
        times = []
        for _ in range(7):
            began = time.perf_counter_ns()
            train_step(inner, False, tokens)
            inner.zero_grad()
            times.append(time.perf_counter_ns() - began)
        return statistics.median(times[2:])

    alone = timed() if not dist.get_rank() else 0.0
    dist.barrier()
    together = torch.tensor([timed()])
    dist.all_reduce(together, dist.ReduceOp.MAX)
    return [alone, float(together)]


def measure_setting(folder: Path, setting: Setting) -> None:
    with hosts(setting.ranks, Search("", setting.mbit, "128kb")) as made:
        job = Job(
            folder / "job",
            lambda: train(setting),
            setting.ranks,
            environment=made.environment,
            setup=made.enter,
        )
        ended = job.wait(300)
        assert not any(e.code for e in ended.values()), ended[0].stderr[-3000:]
    (folder / setting.file).write_text((folder / "job" / "result.json").read_text())


def missing(folder: Path) -> Iterator[Callable[[], None]]:
    for mbit in RATES:
        for ranks in COUNTS:
            if not (folder / curve_file(ranks, mbit)).exists():
                yield lambda n=ranks, rate=mbit: measure_curves(folder, n, rate)  # type: ignore[misc]
    for setting in SETTINGS:
        if not (folder / setting.file).exists():
            yield lambda each=setting: measure_setting(folder, each)  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pieces", type=int)
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for number, measure in enumerate(missing(folder)):
        if number == asked.pieces:
            return
        measure()


if __name__ == "__main__":
    main()
