"""Does one measured step correct a plan? Steps of other models, layouts and runs are the truth.

Each run captures three trainings on two gloo ranks: a small model with FSDP2 and with DDP, and a
wider and deeper one with FSDP2. The machine is the model that is fitted to the first run's
calls, measured alone. For each pair of runs, the capture of the small model with FSDP2 in one run
corrects the plans, which are compared with what the trainings measured in the other run. The
standard deviation between runs of the factor is RUN_DEVIATION of training/measured_step.py.

    python tests/benchmarks/corrected.py [RUNS]
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, stdev
from typing import Any

import torch
import torch.distributed as dist
from common import fork_ranks, free_port, tcp_store, title
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent.parent))
import parallel_models

import torchcoll
from torchcoll.core.result import Run
from torchcoll.curves.predictor import Ends, Predictor
from torchcoll.training.architectures import parse_config
from torchcoll.training.config_plan import TrainingOptions
from torchcoll.training.config_projection import plan_layout
from torchcoll.training.corrected_machine import CorrectedMachine
from torchcoll.training.layer_calls import Batch, LayerOptions
from torchcoll.training.layouts import parse_layout

RUNS, RANKS, STEPS, TOKENS = 6, 2, 10, 64
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
SIZES = tuple(1 << k for k in range(16, 24))
# name: hidden, wide, layers, layout
TRAININGS = {
    "small, FSDP2": (128, 352, 3, "fsdp"),
    "small, DDP": (128, 352, 3, "dp"),
    "wider and deeper, FSDP2": (256, 688, 6, "fsdp"),
}
CAPTURED = "small, FSDP2"


def use(name: str) -> tuple[int, str]:
    """Sets the widths of the training's model; returns its layers and layout."""
    hidden, wide, layers, layout = TRAININGS[name]
    parallel_models.HIDDEN, parallel_models.WIDE = hidden, wide
    parallel_models.VOCABULARY, parallel_models.TOKENS = 1000, TOKENS
    return layers, layout


def config(name: str) -> dict[str, Any]:
    layers, _ = use(name)
    hidden, wide, _, _ = TRAININGS[name]
    return parallel_models.llama_config(layers) | {
        "hidden_size": hidden,
        "intermediate_size": wide,
        "vocab_size": 1000,
    }


def planned_ns(name: str, machine: Predictor) -> Ends:
    """The communication of a step, planned on a machine."""
    layout = parse_layout(f"{TRAININGS[name][3]}={RANKS}")
    options = TrainingOptions("float32", layers=LayerOptions("float32"))
    architecture = parse_config(config(name), name)
    step = plan_layout(machine, architecture, layout, Batch(1, 1, TOKENS), options, None)
    assert step.comm_ns is not None
    return step.comm_ns


def measure(rank: int, port: int, folder: Path, alone: bool) -> Run | None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=tcp_store(rank, RANKS, port), rank=rank, world_size=RANKS)
    curve = None
    if alone:
        curve = torchcoll.run(
            torchcoll.Spec(collectives=COLLECTIVES, sizes=SIZES, max_time_s=0.1, check=False)
        )
    for name in TRAININGS:
        layers, layout = use(name)
        torch.manual_seed(0)
        model: Any = parallel_models.Llama(layers)
        if layout == "dp":
            model = DistributedDataParallel(model)
        else:
            mesh = init_device_mesh("cpu", (RANKS,))
            for module in (*model.layers, model):
                fully_shard(module, mesh=mesh)

        def step(model: Any = model) -> None:
            parallel_models.train_step(model)
            model.zero_grad()

        for _ in range(3):
            step()
        with torchcoll.capture(folder / name) as traffic:
            for _ in range(STEPS):
                step()
                traffic.step()
    dist.barrier()
    return curve


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    title("corrected: plans that one measured step corrects, against measured steps")
    print(f"{runs} runs of {RANKS} gloo ranks, {STEPS} steps of {', '.join(TRAININGS)}")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        results: Sequence[Run | None] = ()
        for number in range(runs):
            ended = fork_ranks(RANKS, measure, free_port(), folder / str(number), number == 0)
            results = results or ended
        machine = torchcoll.fit_model([run for run in results if run])
        configs = {}
        for name in TRAININGS:
            configs[name] = folder / f"{name}.json"
            configs[name].write_text(json.dumps(config(name)))

        def plan(name: str, capture: Path) -> torchcoll.Plan:
            return torchcoll.plan(
                configs[name],
                f"{TRAININGS[name][3]}={RANKS}",
                machine=machine,
                batch=f"1x{TOKENS}",
                dtype="float32",
                measured=capture,
            )

        measured = {
            (name, number): plan(name, folder / str(number) / name).measured
            for name in TRAININGS
            for number in range(runs)
        }
        print("\nfactor, measured over planned communication of a step")
        for name in TRAININGS:
            factors = [measured[name, number].correction.factor[0] for number in range(runs)]
            texts = " ".join(f"{factor:.2f}" for factor in factors)
            deviation = stdev(map(math.log, factors))
            print(f"  {name:24s} {texts}; standard deviation in logarithms {deviation:.2f}")
        print(f"\ncorrected by '{CAPTURED}' of another run: planned over measured communication")
        for name in TRAININGS:
            before, after, inside = [], [], 0
            for first, second in itertools.permutations(range(runs), 2):
                truth = measured[name, second]
                actual_ns = truth.correction.factor[0] * truth.planned_ns[0]
                before.append(truth.planned_ns[0] / actual_ns)
                correction = measured[CAPTURED, first].correction
                corrected = planned_ns(name, CorrectedMachine(machine.model, correction))
                after.append(corrected[0] / actual_ns)
                inside += corrected[1] <= actual_ns <= corrected[2]
            count = len(after)
            print(
                f"  {name:24s} without {geometric_mean(before):.2f}, corrected "
                f"{geometric_mean(after):.2f} ({min(after):.2f} to {max(after):.2f}); the 90 % "
                f"interval holds the measured time in {inside} of {count}"
            )


if __name__ == "__main__":
    main()
