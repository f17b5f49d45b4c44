"""What a capture costs the training: the time of a step with, over that without.

DDP on 2 gloo ranks in one process pair; blocks of steps in pairs, in random order (the same on both
ranks), medians of rank 0. A/A compares training with itself: what noise alone does. Then what a
capture adds to a single call, on the fake backend; and how far off the durations are that it
records: of a synchronous call against a clock around it; of an asynchronous one, on a rank that is
busy, against the other rank, which waits: both issue it after a barrier.

python tests/benchmarks/capture.py 5 50: of steps of about 5 and 50 ms, a capture and A/A alone.
python tests/benchmarks/capture.py every [PAIRS] [FILE]: capture(every=N) of steps of 20 ms, whole
blocks of N steps, the one that is captured in each; N is 20: with 100 it costs a fifth. Pairs are
added to FILE, and the figures are of all that it holds.
python tests/benchmarks/capture.py fsdp: what a capture adds to FSDP2 steps, also in CPU time of the
rank's thread for each call, which other programs on the machine disturb less.
python tests/benchmarks/capture.py on_hang: what on_hang="dump" adds to steps of 20 ms: to a capture
into a folder, and to training with one step in 20 captured.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import fork_ranks, free_port, paired_ratio, tcp_store, title
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchcoll

PAIRS = int(os.environ.get("PAIRS", "300"))
STEPS = int(os.environ.get("STEPS", "5"))  # of a block
CALLS = 200


def tiny() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), torch.ones(8, 64)


def small() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.ones(8, 32, 128)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {"tiny": tiny, "small": small}


def of_length(step_ms: float) -> tuple[nn.Module, torch.Tensor]:
    """A model whose step takes about so long on 2 ranks: the batch is found by trying."""
    width = 32 if step_ms < 20 else 128
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0, batch_first=True)
    model, size = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 1.0
    for _ in range(6):
        step = stepper(model, torch.ones(round(size), 32, width))
        times = torch.zeros(8)
        for i in range(len(times)):
            start = time.perf_counter_ns()
            step()
            times[i] = time.perf_counter_ns() - start
        took = times.median() / 1e6
        dist.broadcast(took, 0)
        size = min(512.0, max(1.0, size * min(4.0, step_ms / took.item())))
    return model, torch.ones(round(size), 32, width)


def training(name: str, state: Any = None, hook: Any = None) -> Callable[[], None]:
    """One step of the model, with its own DDP."""
    made = MODELS[name]() if name in MODELS else of_length(float(name))
    return stepper(*made, state, hook)


def stepper(
    model: nn.Module, batch: torch.Tensor, state: Any = None, hook: Any = None
) -> Callable[[], None]:
    ddp = DistributedDataParallel(model)
    if hook:
        ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad()
        ddp(batch).square().mean().backward()
        optimizer.step()

    for _ in range(5):  # DDP makes its buckets anew after the first
        step()
    return step


def block(step: Callable[[], None], around: Callable[[], Any]) -> float:
    times = []
    with around():
        step()
        for _ in range(STEPS):
            start = time.perf_counter_ns()
            step()
            times.append(time.perf_counter_ns() - start)
    return statistics.median(times)


def join(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=tcp_store(rank, 2, port), rank=rank, world_size=2)


def leave() -> None:
    """Waits for the other rank; the process ends with its group.

    Here destroy_process_group can hang: a DDP that is freed after it joins the worker of gloo under
    the GIL, and that worker may wait for the GIL (torch 2.13).
    """
    dist.barrier()


def compare(rank: int, port: int, name: str) -> dict[str, list[tuple[float, float]]]:
    join(rank, port)
    plain = training(name)
    nothing = contextlib.nullcontext
    rows: dict[str, tuple[Callable[[], None], Callable[[], Any]]] = {
        "capture": (plain, torchcoll.capture),
        "A/A": (plain, nothing),
    }
    if name in MODELS:
        rows["a hook of torch's in Python"] = training(name, None, allreduce_hook), nothing
    rng = random.Random(1)
    found: dict[str, list[tuple[float, float]]] = {row: [] for row in rows}
    for _ in range(PAIRS):
        for row in rng.sample(list(rows), len(rows)):
            arms = [rows[row], (plain, nothing)]
            medians = [0.0, 0.0]
            for arm in rng.sample((0, 1), 2):
                medians[arm] = block(*arms[arm])
            found[row].append((medians[0], medians[1]))
    leave()
    return found


def sharded() -> Callable[[], None]:
    """One step of four blocks, each an FSDP2 unit."""
    blocks = [nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)) for _ in range(4)]
    model, mesh = nn.Sequential(*blocks), init_device_mesh("cpu", (2,))
    for unit in (*blocks, model):
        fully_shard(unit, mesh=mesh)
    batch = torch.ones(256, 256)

    def step() -> None:
        model(batch).sum().backward()
        model.zero_grad()

    for _ in range(10):
        step()
    return step


def compare_fsdp(rank: int, port: int) -> tuple[dict[str, Any], int]:
    """(wall ns, CPU ns) of a step, with and without, of each pair; and the calls of a step."""
    join(rank, port)
    step, rng, calls = sharded(), random.Random(1), 0
    rows: dict[str, Any] = {"capture": [], "A/A": []}
    for _ in range(PAIRS):
        for row in rng.sample(list(rows), len(rows)):
            medians = [(0.0, 0.0), (0.0, 0.0)]
            for arm in rng.sample((0, 1), 2):
                used = row == "capture" and arm == 0
                with torchcoll.capture() if used else contextlib.nullcontext() as traffic:
                    times = []
                    for _ in range(STEPS + 1):
                        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
                        step()
                        if traffic:
                            traffic.step()
                        times.append((time.perf_counter_ns() - wall, time.thread_time_ns() - cpu))
                if traffic:
                    calls = len(traffic.calls[rank]) // (STEPS + 1)
                walls, cpus = zip(*times[1:], strict=True)
                medians[arm] = statistics.median(walls), statistics.median(cpus)
            rows[row].append(medians)
    leave()
    return rows, calls


def fsdp() -> None:
    title(f"capture, FSDP2 on 2 gloo ranks, {PAIRS} shuffled pairs of blocks of {STEPS} steps")
    rows, calls = fork_ranks(2, compare_fsdp, free_port())[0]
    base = statistics.median(without[0] for pairs in rows.values() for _, without in pairs)
    print(f"{base / 1e6:.2f} ms a step, {calls} calls")
    for name, pairs in rows.items():
        ratio = paired_ratio([(ours[0], without[0]) for ours, without in pairs])
        cpu = statistics.median(ours[1] - without[1] for ours, without in pairs)
        print(f"  {name:12} {ratio:34} {cpu / 1e3 / calls:+.1f} us of CPU time a call", flush=True)


def compare_on_hang(rank: int, port: int, folder: str) -> dict[str, list[tuple[float, float]]]:
    """(with, without) on_hang of each pair of blocks; both arms write into the folder."""
    join(rank, port)
    step, rng = training("20"), random.Random(1)

    def arm(every: int, on_hang: str | None) -> Callable[[], Any]:
        return lambda: torchcoll.capture(folder, every=every, on_hang=on_hang)

    rows = {
        "capture, on_hang / without": (arm(1, "dump"), arm(1, None)),
        "A/A, capture": (arm(1, None), arm(1, None)),
        "every=1000, on_hang / without": (arm(1000, "dump"), arm(1000, None)),
        "A/A, every=1000": (arm(1000, None), arm(1000, None)),
    }
    times: dict[str, list[tuple[float, float]]] = {row: [] for row in rows}
    for _ in range(PAIRS):
        for row in rng.sample(list(rows), len(rows)):
            medians = [0.0, 0.0]
            for side in rng.sample((0, 1), 2):
                medians[side] = block(step, rows[row][side])
            times[row].append((medians[0], medians[1]))
    leave()
    return times


def on_hang() -> None:
    title(
        f'capture(on_hang="dump"), DDP on 2 gloo ranks, {PAIRS} shuffled pairs of blocks of '
        f"{STEPS} steps, rank 0"
    )
    with tempfile.TemporaryDirectory() as folder:
        times = fork_ranks(2, compare_on_hang, free_port(), folder)[0]
    base = statistics.median(b for pairs in times.values() for _, b in pairs)
    print(f"{base / 1e6:.2f} ms a step")
    for what, pairs in times.items():
        row(what, pairs)
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"path": folder, "on_hang": "dump"}
        added = added_on_fake(options) - added_on_fake({"path": folder})
    print(f"fake backend: on_hang adds {added / 1e3:.1f} us to a captured call")


EVERY = 20


def whole_block(step: Callable[[], None], every: int | None) -> list[int]:
    """ns of each of ``EVERY`` steps and its mark; the second that is marked is captured."""
    around = torchcoll.capture(every=every) if every else contextlib.nullcontext()
    with around as traffic:
        mark = traffic.step if traffic else list
        step()
        mark()
        stamps = [time.perf_counter_ns()]
        for _ in range(EVERY):
            step()
            mark()
            stamps.append(time.perf_counter_ns())
        return [end - start for start, end in itertools.pairwise(stamps)]


Blocks = list[tuple[list[int], list[int]]]  # (with, without), the steps of each


def whole_ratio(pairs: Blocks) -> float:
    """Of blocks made of the median step at each place: a step that the machine held up does not
    count, the one that is captured does, in its place.
    """
    whole = [
        sum(statistics.median(at) for at in zip(*blocks, strict=True))
        for blocks in zip(*pairs, strict=True)
    ]
    return whole[0] / whole[1]


def whole_interval(pairs: Blocks) -> str:
    """Its 95 % bootstrap interval over the pairs (400 draws, seed 0)."""
    rng = random.Random(0)
    drawn = sorted(whole_ratio(rng.choices(pairs, k=len(pairs))) for _ in range(400))
    return f"{whole_ratio(pairs):.3f} (95 % {drawn[10]:.3f} to {drawn[389]:.3f})"


def compare_every(rank: int, port: int, pairs: int) -> dict[str, Blocks]:
    join(rank, port)
    step, rng = training("20"), random.Random(port)
    found: dict[str, Blocks] = {"capture(every=20)": [], "A/A": []}
    for _ in range(pairs):
        for row in rng.sample(list(found), 2):
            arms, times = [EVERY if row != "A/A" else None, None], [[0], [0]]
            for arm in rng.sample((0, 1), 2):
                times[arm] = whole_block(step, arms[arm])
            found[row].append((times[0], times[1]))
    leave()
    return found


def every(pairs: int, file: Path | None) -> None:
    title(f"capture(every={EVERY}), DDP on 2 gloo ranks, shuffled pairs of blocks, rank 0")
    found = fork_ranks(2, compare_every, free_port(), pairs)[0]
    if file:
        earlier = json.loads(file.read_text()) if file.exists() else {}
        found = {name: [*earlier.get(name, []), *own] for name, own in found.items()}
        file.write_text(json.dumps(found))
    base = statistics.median(ns for own in found.values() for _, block in own for ns in block)
    print(f"{len(found['A/A'])} pairs; {base / 1e6:.2f} ms a step")
    for what, own in found.items():
        print(f"  {what:36} {whole_interval(own)}")
    added = every_on_fake()
    print(
        f"fake backend: capture(every=100) adds {added / 1e3:.0f} us of CPU time to 100 steps of "
        f"10 calls: {100 * added / 2e9:.3f} % of steps of 20 ms"
    )


def every_on_fake() -> float:
    """ns of CPU time that capture(every=100) adds to 100 steps of 10 calls: marks, kernels that
    come and go, and the calls of the step that is captured; median of 50 pairs.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensor, added = torch.zeros(2), []

    def steps(mark: Callable[[], object]) -> float:
        start = time.thread_time_ns()
        for _ in range(100):
            for _ in range(10):
                dist.all_reduce(tensor)
            mark()
        return time.thread_time_ns() - start

    with torchcoll.capture(every=100) as traffic:
        for _ in range(50):
            bare = steps(list)
            added.append(steps(traffic.step) - bare)
    dist.destroy_process_group()
    return statistics.median(added)


def added_on_fake(options: dict[str, Any] | None = None) -> float:
    """ns that a capture with these options adds to one call; median of 50 pairs."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensor, added = torch.zeros(2), []

    def loop() -> float:
        start = time.perf_counter_ns()
        for _ in range(1000):
            dist.all_reduce(tensor)
        return (time.perf_counter_ns() - start) / 1000

    for _ in range(50):
        bare = loop()
        with torchcoll.capture(**options or {}):
            added.append(loop() - bare)
    dist.destroy_process_group()
    return statistics.median(added)


def durations(rank: int, port: int, size_bytes: int, busy: str) -> list[tuple[float, float]]:
    """(duration recorded, time around the call) in ns, of each call."""
    join(rank, port)
    tensor, matrix, around = torch.zeros(size_bytes // 4), torch.ones(200, 200), []
    with torchcoll.capture() as traffic:
        for _ in range(CALLS):
            dist.barrier()
            start = time.perf_counter_ns()
            work = dist.all_reduce(tensor, async_op=bool(busy))
            while rank and busy and not work.is_completed():
                matrix @ matrix if busy == "busy with torch" else sum(range(1000))
            if busy:
                work.wait()
            around.append(time.perf_counter_ns() - start)
    calls = [call for call in traffic.calls[rank] if call.collective == "all_reduce"]
    dist.destroy_process_group()
    return [(call.time_ns, outside) for call, outside in zip(calls, around, strict=True)]


def row(name: str, pairs: list[tuple[float, float]]) -> None:
    added = statistics.median(a - b for a, b in pairs) / 1e3
    print(f"  {name:36} {paired_ratio(pairs):34} {added:+.0f} us", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["every"]:
        count, *names = sys.argv[2:] or ["300"]
        every(int(count), Path(names[0]) if names else None)
        sys.exit()
    if sys.argv[1:2] == ["fsdp"]:
        fsdp()
        sys.exit()
    if sys.argv[1:2] == ["on_hang"]:
        on_hang()
        sys.exit()
    title(
        f"capture, DDP on 2 gloo ranks, {PAIRS} shuffled pairs of blocks of {STEPS} steps, rank 0"
    )
    for name in sys.argv[1:] or MODELS:
        found = fork_ranks(2, compare, free_port(), name)[0]
        base = statistics.median(b for pairs in found.values() for _, b in pairs)
        print(f"{name}: {base / 1e6:.2f} ms a step")
        for what, pairs in found.items():
            row(what, pairs)
    if sys.argv[1:]:
        sys.exit()
    print(f"fake backend: a capture adds {added_on_fake() / 1e3:.0f} us to a call")
    print("durations")
    for size_bytes in (8, 1 << 20, 16 << 20):
        ours = fork_ranks(2, durations, free_port(), size_bytes, "")[0]
        row(f"{size_bytes} B, synchronous / clock around", ours)
        for busy in ("busy with torch", "busy in Python"):
            waits, works = fork_ranks(2, durations, free_port(), size_bytes, busy)
            pairs = [(a[0], b[0]) for a, b in zip(works, waits, strict=True)]
            row(f"{size_bytes} B, {busy} / waiting", pairs)
