"""Is the layout that `torchcoll plan` calls fastest the fastest? Real steps over shaped links.

    python tests/benchmarks/layouts.py FOLDER [--pieces N]

30 settings: 2, 4 and 8 gloo ranks, each on a host of its own (a network namespace behind a shaped
link: root, ip and tc needed), two rates, and five small Llamas. In each, six layouts of the same
model with the same tokens in a step are really trained for a few steps, in turns. The prediction
is `torchcoll plan` with a model that `torchcoll model fit` made of collectives, which were measured
alone on the same links, in one group of all ranks and in several groups that call at once (`one
group`: the plan by the former only). FOLDER keeps what was measured: --pieces N measures the next N
pieces (collectives on a number of hosts, or a setting) and ends; without it, all that is missing,
and then the report.

- communication: the time in which a rank has any call in flight, of the rank for which it is least
  (the others wait for it too), of each step; the median over the steps, with a 95 % interval of
  the median (order statistics).
- from last: the same, but of each call from when the last rank of its group has issued it.
  host: CPU time of a rank in a step.
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
import contextlib
import functools
import json
import math
import os
import statistics
import subprocess
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
from namespaces import DEVICE, Hosts, Search, hosts
from parallel_models import Llama, Widths, llama_config, split_over_tp, train_step
from ranks import Job, Measured
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import torchcoll
from torchcoll.core.intervals import Union
from torchcoll.core.summary import geometric_interval
from torchcoll.parts.curves.model_fit import fit_model
from torchcoll.parts.training.architectures import Architecture, parse_config
from torchcoll.parts.training.config_plan import TrainingOptions
from torchcoll.parts.training.config_projection import LayoutRow, compare_layouts
from torchcoll.parts.training.layouts import Batch, LayerOptions, ParallelLayout, parse_layout

COUNTS, RATES = (2, 4, 8), (100, 300)  # ranks; Mbit/s
LAYOUTS = {
    2: ("dp=2", "fsdp=2", "zero2=2", "zero-torch=2", "tp=2", "tp=2,sp"),
    4: ("dp=4", "fsdp=4", "zero-torch=4", "hsdp=2x2", "fsdp=2,tp=2,sp", "tp=4,sp"),
    8: ("dp=8", "fsdp=8", "zero-torch=8", "hsdp=2x4", "fsdp=4,tp=2,sp", "tp=8,sp"),
}
CURVES = "--collectives all_reduce,all_gather,reduce_scatter,broadcast -n 6 -w 1 -c 0 --sizes "
SIZES = "256,2K,16K,64K,256K,1M,4M"
# All ranks in one group, and several groups that call at once, as they do in a step.
GROUPS = {2: ("",), 4: ("", "div:2"), 8: ("", "div:2", "div:4")}
WARMUP, FEWEST, MOST, SECONDS = 2, 5, 15, 6.0  # steps of a layout, and of all six together


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


def curve_file(ranks: int, mbit: int, groups: str = "") -> str:
    return f"curves-{ranks}ranks-{mbit}mbit{groups.replace(':', '')}.jsonl"


# Measuring


@contextlib.contextmanager
def links(ranks: int, mbit: int, arguments: str = "") -> Iterator[Hosts]:
    """Hosts whose links let no more than 32 KiB pass at once.

    A bucket of 128 KiB fills while a rank computes, and the next call is then faster than the
    link. Packets have to fit into the bucket: 16 KB each, since frames of 1500 B would cost both
    cores.
    """
    with hosts(ranks, Search(arguments, mbit, "32kb")) as made:
        for name in made.names:
            command = ("ip", "-n", name, "link", "set", DEVICE, "gso_max_size", "16000")
            subprocess.run(command, check=True)
        yield made


def measure_curves(folder: Path, ranks: int, mbit: int, groups: str) -> None:
    target = folder / curve_file(ranks, mbit, groups)
    arguments = CURVES + SIZES + (f" --groups {groups}" if groups else "")
    with links(ranks, mbit, arguments) as made:
        places = {"environment": made.environment, "setup": made.enter}
        job = Measured(target.with_suffix(""), None, made.search.arguments, ranks, **places)
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


def calls_of(traffic: Any) -> list[tuple[list[int], int, int, int]]:
    """(ranks of the group, number in the group, start, end) of each call of this rank, in ns on the
    clock that all ranks share.
    """
    _, begun = traffic.clocks[dist.get_rank()]
    calls = traffic.calls[dist.get_rank()]
    untimed = [call.collective for call in calls if call.span is None]
    assert not untimed, untimed
    return [
        (list(traffic.members(call)), call.sequence, *(begun + end for end in call.span))
        for call in calls
    ]


def network_first() -> None:
    """The threads of gloo get a core before those that compute, as a network has one of its own."""
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(2))


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
    network_first()
    rounds = torch.tensor([SECONDS / ((time.perf_counter() - began) / WARMUP)])
    dist.broadcast(rounds, 0)
    times: dict[str, list[Any]] = {text: [] for text in steps}
    for _ in range(max(FEWEST, min(MOST, int(rounds)))):
        for text, (_, step) in steps.items():
            dist.barrier()
            with torchcoll.capture() as traffic:
                start, worked = time.perf_counter_ns(), time.process_time_ns()
                step()
                ended = time.perf_counter_ns() - start, time.process_time_ns() - worked
            ranks: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(ranks, (*ended, calls_of(traffic)))
            times[text].append(ranks)
    if not dist.get_rank():
        Path("result.json").write_text(json.dumps({"computed": computed, "times": times}))
    dist.barrier()


def compute_times(model: Model) -> list[float]:
    """[alone, all ranks at once]: ns of forward and backward pass without communication."""
    inner = Llama(model.layers, widths=model.widths)
    tokens = torch.zeros(1, model.tokens, dtype=torch.long)

    def timed(count: int) -> float:
        times = []
        for _ in range(count):
            began = time.perf_counter_ns()
            train_step(inner, False, tokens)
            inner.zero_grad()
            times.append(time.perf_counter_ns() - began)
        return statistics.median(times)

    timed(3)
    dist.barrier()
    alone = timed(7) if not dist.get_rank() else 0.0
    dist.barrier()
    began = time.perf_counter_ns()
    timed(7)
    dist.barrier()
    return [alone, (time.perf_counter_ns() - began) / 7]


def measure_setting(folder: Path, setting: Setting) -> None:
    with links(setting.ranks, setting.mbit) as made:
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
            for groups in GROUPS[ranks]:
                if not (folder / curve_file(ranks, mbit, groups)).exists():
                    yield functools.partial(measure_curves, folder, ranks, mbit, groups)
    for setting in SETTINGS:
        if not (folder / setting.file).exists():
            yield functools.partial(measure_setting, folder, setting)


# Reporting


@dataclass(frozen=True)
class Row:
    """A layout in a setting. Times in ms, with the ends of their intervals.

    - comm: measured communication; calls: without waiting for the last rank of a group.
    - predicted: communication; single: by the curves of one group alone.
    - steps: predicted with the computation as alone, and as all ranks at once; step_ends: the
      interval of the former.
    - exposed, predicted_exposed: brackets.
    - sent: bytes of a rank.
    - host: CPU time of a rank in a step.
    """

    setting: Setting
    layout: str
    comm: tuple[float, float, float]
    calls: tuple[float, float, float]
    predicted: tuple[float, float, float]
    single: float
    sent: float
    host: float
    step_ends: tuple[float, float]
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


def in_flight(ranks: Sequence[Any], from_last: bool) -> float:
    """ms in which a rank has a call in flight, of the rank for which it is least.

    from_last: from when the last rank of the group has issued it.
    """
    issued: dict[tuple[tuple[int, ...], int], int] = {}
    for _, _, calls in ranks:
        for members, number, start, _ in calls:
            key = tuple(members), number
            issued[key] = max(start, issued.get(key, 0))
    totals = []
    for _, _, calls in ranks:
        spans = [
            (issued[tuple(members), number] if from_last else start, end)
            for members, number, start, end in calls
        ]
        totals.append(Union([span for span in spans if span[0] < span[1]]).total / 1e6)
    return min(totals)


def rows_of(folder: Path, setting: Setting, machine: Any, single: Any) -> list[Row]:
    found = json.loads((folder / setting.file).read_text())
    alone, together = (ns / 1e6 for ns in found["computed"])
    plans = [planned(setting, machine, compute) for compute in (alone, together)]
    of_single = planned(setting, single, alone)
    rows = []
    for text, times in found["times"].items():
        layout = parse_layout(text)
        fast, slow = (plan[layout].step for plan in plans)
        step = interval([max(elapsed for elapsed, _, _ in ranks) / 1e6 for ranks in times])
        rows.append(
            Row(
                setting,
                text,
                interval([in_flight(ranks, False) for ranks in times]),
                interval([in_flight(ranks, True) for ranks in times]),
                tuple(ns / 1e6 for ns in fast.comm_ns),
                of_single[layout].step.comm_ns[0] / 1e6,
                fast.sent_bytes,
                statistics.median(worked for ranks in times for _, worked, _ in ranks) / 1e6,
                (fast.step_ns[1] / 1e6, fast.step_ns[2] / 1e6),
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
        curves = {n: [str(folder / curve_file(n, mbit, g)) for g in GROUPS[n]] for n in COUNTS}
        machine = fit_model([path for paths in curves.values() for path in paths]).model
        single = fit_model([paths[0] for paths in curves.values()]).model
        rows += [
            row
            for setting in SETTINGS
            if setting.mbit == mbit and (folder / setting.file).exists()
            for row in rows_of(folder, setting, machine, single)
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
                f"from last {row.calls[0]:6.1f}  one group {row.single:6.1f}  "
                f"host {row.host:6.1f}  sent {row.sent / 1e6:6.2f} MB  step {row.step[0]:6.1f}, "
                f"predicted {row.steps[0]:6.1f} to {row.steps[1]:6.1f}  "
                f"exposed {row.exposed[0]:6.1f} to {row.exposed[1]:6.1f}, "
                f"predicted {row.predicted_exposed[0]:6.1f} to {row.predicted_exposed[1]:6.1f}"
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
        ("plan of one group", lambda row: row.single, lambda row: row.single),
        ("bytes sent", lambda row: row.sent, lambda row: row.sent),
    ):
        found, count = tau(pairs, comm)
        rows_by_setting = by_setting.values()
        texts = [
            choice_text([chosen_ratio(own, value, cost) for own in rows_by_setting], what)
            for what, value, cost in (
                ("communication", comm, lambda row: row.comm[0]),
                ("calls from the last rank on", comm, lambda row: row.calls[0]),
                ("step", step, lambda row: row.step[0]),
            )
        ]
        print(
            f"  by {name}: tau-b {found:.2f} over {count} pairs; the chosen layout is within 10 % "
            f"of the best in {', '.join(texts)}"
        )
    for what, predicted, cost in (
        ("communication", lambda row: row.predicted, lambda row: row.comm[0]),
        ("step", lambda row: (row.steps[0], *row.step_ends), lambda row: row.step[0]),
    ):
        ratios, others = [], 0
        for own in by_setting.values():
            _, _, high = min(map(predicted, own))
            alike = [row for row in own if predicted(row)[1] <= high]
            others += len(alike) - 1
            ratios.append(min(map(cost, alike)) / min(map(cost, own)))
        print(
            f"  of the chosen and those that the plan cannot tell from it ({others} more), the "
            f"best is within 10 % of the best of all in {choice_text(ratios, what)}"
        )


def choice_text(ratios: Sequence[float], what: str) -> str:
    return f"{sum(r <= 1.1 for r in ratios)} by {what} (worst {max(ratios):.2f}x)"


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
