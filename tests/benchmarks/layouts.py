"""Is the layout that `torchcoll plan` calls fastest the fastest? Real steps over shaped links.

    python tests/benchmarks/layouts.py FOLDER [--pieces N]

30 settings: 2, 4 and 8 gloo ranks, each on a host of its own (a network namespace behind a shaped
link: root, ip and tc needed), two rates, and five small Llamas. In each, six layouts of the same
model with the same tokens in a step are really trained for a few steps, in turns. The prediction
is `torchcoll plan` with a model that `torchcoll model fit` made of collectives, which were measured
alone on the same links. FOLDER keeps what was measured: --pieces N measures the next N pieces
(collectives on a number of hosts, or a setting) and ends; without it, all that is missing, and then
the report.

- communication: the time in which a rank has any call in flight, of the rank for which it is least
  (the others wait for it too), of each step; the median over the steps, with a 95 % interval of
  the median (order statistics).
- step: from a barrier to the end on the last rank. exposed: the step without its computation. That
  is a bracket: the ranks share the cores of one machine, so that a rank computes at least as long
  as alone, and at most as long as all at once. Both were measured on the plain model, without any
  communication: what the wrappers compute counts as exposed. The prediction is from the low end of
  its 90 % interval to the high end, with either computation.
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
        data = (
            mesh[tuple(name for name in sizes if name != "tp")] if sizes.keys() - {"tp"} else None
        )
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


# Reporting


@dataclass(frozen=True)
class Row:
    """A layout in a setting. Times in ms, with the ends of their intervals.

    - steps: predicted with the computation as alone, and as all ranks at once.
    - exposed, predicted_exposed: brackets.
    - sent: bytes of a rank.
    """

    setting: Setting
    layout: str
    comm: tuple[float, float, float]
    predicted: tuple[float, float, float]
    sent: float
    step: tuple[float, float, float]
    steps: tuple[float, float]
    exposed: tuple[float, float]
    predicted_exposed: tuple[float, float]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and its interval of 95 % or more by order statistics (of all, if too few)."""
    ordered = sorted(values)
    count = len(ordered)
    outside = 0
    while 2 * scipy.stats.binom.cdf(outside, count, 0.5) <= 0.05:
        outside += 1
    outside = max(0, outside - 1)
    return statistics.median(ordered), ordered[outside], ordered[-1 - outside]


def rows_of(folder: Path, setting: Setting, machine: Any) -> list[Row]:
    found = json.loads((folder / setting.file).read_text())
    alone, together = (ns / 1e6 for ns in found["computed"])
    plans = [planned(setting, machine, compute) for compute in (alone, together)]
    rows = []
    for text, times in found["times"].items():
        flights, steps = ([ns / 1e6 for ns in column] for column in zip(*times, strict=True))
        fast, slow = (plan[parse_layout(text)].step for plan in plans)
        step = interval(steps)
        rows.append(
            Row(
                setting,
                text,
                interval(flights),
                tuple(ns / 1e6 for ns in fast.comm_ns),
                fast.sent_bytes,
                step,
                (fast.step_ns[0] / 1e6, slow.step_ns[0] / 1e6),
                (max(0.0, step[0] - together), step[0] - alone),
                (
                    min(each.exposed_ns[1] for each in (fast, slow)) / 1e6,
                    max(each.exposed_ns[2] for each in (fast, slow)) / 1e6,
                ),
            )
        )
    return rows


def planned(setting: Setting, machine: Any, compute_ms: float) -> dict[ParallelLayout, LayoutRow]:
    model = setting.model
    config = llama_config(model.layers, model.widths)
    architecture: Architecture = parse_config(config, model.name)
    layouts = [parse_layout(text) for text in LAYOUTS[setting.ranks]]
    options = TrainingOptions("float32", layers=LayerOptions("float32"))
    batch = Batch(1, 1, model.tokens)
    compared = compare_layouts(machine, architecture, layouts, batch, options, compute_ms * 1e6)
    return {row.layout: row for row in compared.rows}


def tau(pairs: Sequence[tuple[Row, Row]], value: Callable[[Row], float]) -> tuple[float, int]:
    """Kendall's tau-b of a value with the measured communication over these pairs."""
    score = same = 0
    for one, other in pairs:
        difference = (value(one) - value(other)) * (one.comm[0] - other.comm[0])
        score += (difference > 0) - (difference < 0)
        same += difference == 0
    return score / math.sqrt(len(pairs) * (len(pairs) - same)), len(pairs)


def report(folder: Path) -> None:
    title("Layouts planned and really trained over shaped links")
    rows: list[Row] = []
    for mbit in RATES:
        curves = [str(folder / curve_file(n, mbit)) for n in COUNTS]
        machine = fit_model(curves).model
        rows += [
            row
            for setting in SETTINGS
            if setting.mbit == mbit and (folder / setting.file).exists()
            for row in rows_of(folder, setting, machine)
        ]
    settings = list(dict.fromkeys(row.setting for row in rows))
    by_setting = {each: [row for row in rows if row.setting == each] for each in settings}
    print("ms; communication and step: median; predicted / measured communication")
    for setting, own in by_setting.items():
        print(f"\n{setting.ranks} ranks, {setting.mbit} Mbit/s, {setting.model.name}")
        for row in own:
            ratio = row.predicted[0] / row.comm[0]
            held = row.predicted[1] <= row.comm[2] and row.comm[1] <= row.predicted[2]
            print(
                f"  {row.layout:15} measured {text_of(row.comm):28} predicted "
                f"{text_of(row.predicted):28} {ratio:5.2f}{' ' if held else '*'} "
                f"sent {row.sent / 1e6:6.2f} MB  step {row.step[0]:6.1f}, predicted "
                f"{row.steps[0]:6.1f} to {row.steps[1]:6.1f}  exposed {row.exposed[0]:6.1f} to "
                f"{row.exposed[1]:6.1f}, predicted {row.predicted_exposed[0]:6.1f} to "
                f"{row.predicted_exposed[1]:6.1f}"
            )
    summary(by_setting)


def text_of(ends: Sequence[float]) -> str:
    return f"{ends[0]:6.1f} ({ends[1]:.1f} to {ends[2]:.1f})"


def summary(by_setting: dict[Setting, list[Row]]) -> None:
    rows = [row for own in by_setting.values() for row in own]
    print(f"\n{len(by_setting)} settings, {len(rows)} layouts")
    held = sum(r.predicted[1] <= r.comm[2] and r.comm[1] <= r.predicted[2] for r in rows)
    print(f"predicted and measured intervals overlap in {held} of {len(rows)} (* where not)")
    kinds = {"all": rows}
    for kind in ("dp", "fsdp", "zero2", "zero-torch", "hsdp"):
        kinds[kind] = [
            r for r in rows if parse_layout(r.layout).data == kind and "tp" not in r.layout
        ]
    kinds["with tp"] = [r for r in rows if "tp" in r.layout]
    for kind, own in kinds.items():
        if len(own) < 2:
            continue
        ratio, low, high = geometric_interval([r.predicted[0] / r.comm[0] for r in own])
        errors = [abs(math.log(r.predicted[0] / r.comm[0])) for r in own]
        error = math.exp(statistics.median(errors))
        print(
            f"predicted / measured communication, {kind}: {ratio:.2f} (95 % {low or 0:.2f} to "
            f"{high or 0:.2f}), median error {error:.2f}x, {len(own)} rows"
        )
    choices(by_setting)
    for count in COUNTS:
        choices({each: own for each, own in by_setting.items() if each.ranks == count})
    inside = sum(
        r.exposed[0] <= r.predicted_exposed[1] and r.predicted_exposed[0] <= r.exposed[1]
        for r in rows
    )
    print(f"brackets of exposed time overlap in {inside} of {len(rows)}")


def choices(by_setting: dict[Setting, list[Row]]) -> None:
    """Prints how well the plan and the bytes order the layouts of these settings."""
    if not by_setting:
        return
    counts = sorted({setting.ranks for setting in by_setting})
    print(f"{len(by_setting)} settings of {', '.join(map(str, counts))} ranks")
    pairs = [
        (one, other)
        for own in by_setting.values()
        for number, one in enumerate(own)
        for other in own[:number]
        if max(one.comm[0], other.comm[0]) > 1.1 * min(one.comm[0], other.comm[0])
        and (one.comm[1] > other.comm[2] or other.comm[1] > one.comm[2])
    ]
    for name, comm, step in (
        ("torchcoll plan", lambda row: row.predicted[0], lambda row: row.steps[0]),
        ("bytes sent", lambda row: row.sent, lambda row: row.sent),
    ):
        found, count = tau(pairs, comm)
        own_rows = by_setting.values()
        comm_ratios = [chosen_ratio(own, comm, lambda r: r.comm[0]) for own in own_rows]
        step_ratios = [chosen_ratio(own, step, lambda r: r.step[0]) for own in own_rows]
        print(
            f"  by {name}: tau-b {found:.2f} over {count} pairs; the chosen layout is within 10 % "
            f"of the best in {sum(r <= 1.1 for r in comm_ratios)} by communication (worst "
            f"{max(comm_ratios):.2f}x), in {sum(r <= 1.1 for r in step_ratios)} by step (worst "
            f"{max(step_ratios):.2f}x)"
        )


def chosen_ratio(
    own: Sequence[Row], value: Callable[[Row], float], cost: Callable[[Row], float]
) -> float:
    """The cost of the layout with the least value, by the least cost."""
    return cost(min(own, key=value)) / min(map(cost, own))


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
    if asked.pieces is None:
        report(folder)


if __name__ == "__main__":
    main()
