"""Times real training steps with several bucket_cap_mb of DDP, interleaved."""

from __future__ import annotations

import gc
import math
import random
import time
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchcoll.core.case import fingerprint
from torchcoll.core.errors import UsageError
from torchcoll.core.units import whole_number
from torchcoll.parts.training.sent_by_wrappers import DEFAULT_CAP_MB, MIB
from torchcoll.parts.training.trial import Trial, TrialRow

Cap = float | None
Make = Callable[[Cap], DistributedDataParallel]


def try_buckets(
    make_ddp: Make,
    step: Callable[[DistributedDataParallel], object],
    caps_mb: Sequence[Cap],
    *,
    rounds: int = 6,
    steps: int = 10,
    skip: int = 3,
    seed: int = 0,
) -> Trial:
    """Measures training steps with each bucket_cap_mb of DDP. Must be called on all ranks alike.

    - make_ddp: make_ddp(cap) returns DistributedDataParallel(model, bucket_cap_mb=cap), for every
      block, so that one model at a time is in memory.
    - step: step(model) runs one training step.
    - caps_mb: caps in MiB, 2 or more, each once; None is DDP's default. The others are compared
      with the first one.
    - rounds: the number of rounds. A round has a block for each cap, in an order shuffled by
      ``seed``.
    - steps: the number of timed steps in a block. Each is timed alone, and the slowest rank counts.
    - skip: the steps of a block that are not timed, in which DDP rebuilds its buckets.

    Returns the same Trial on all ranks. Its intervals are over the rounds of this run. A run is one
    replicate: repeat it to see how runs differ.

    Raises UsageError outside of a process group, if make_ddp does not return DDP or returns one
    with a different cap, for numbers out of range, and if the arguments differ between ranks.
    """
    caps = _check_caps(caps_mb)
    asked = {"rounds": rounds, "steps": steps, "skip": skip, "seed": seed}
    for name, least in (("rounds", 2), ("steps", 1), ("skip", 2), ("seed", 0)):
        whole_number(asked[name], name, least)
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError("try_buckets", "no process group", "init_process_group before it")
    generator, agreed = random.Random(seed), False
    times: dict[Cap, list[list[int]]] = {cap: [] for cap in caps}
    for _ in range(rounds):
        for cap in generator.sample(caps, len(caps)):
            model = _make_model(make_ddp, cap)
            group, device = model.process_group, next(model.parameters()).device
            if not agreed:
                number = int(fingerprint([caps, asked])[:15], 16)
                limits = torch.tensor([number, -number], device=device)
                dist.all_reduce(limits, op=dist.ReduceOp.MAX, group=group)
                if limits[0] != -limits[1]:
                    actual = "other caps_mb, rounds, steps, skip or seed on some rank"
                    raise UsageError("try_buckets", actual, "the same on all ranks")
                agreed = True
            times[cap].append(_time_block(model, step, skip, steps, device))
            alive = weakref.ref(model)
            del model
            if alive():  # in a reference cycle; two models may not fit into memory
                gc.collect()
    rows = [TrialRow(cap, times[cap], times[caps[0]]) for cap in caps]
    ranks, backend = dist.get_world_size(group), str(dist.get_backend(group))
    trial = Trial(rows, ranks, backend, device.type, rounds, steps, skip, seed)
    if ranks == 1:
        trial.notes.append("1 rank: nothing was communicated")
    return trial


def _check_caps(caps_mb: Sequence[Cap]) -> list[Cap]:
    """Returns the caps as a list. Raises UsageError for invalid ones."""
    if isinstance(caps_mb, str) or not isinstance(caps_mb, Iterable):
        raise UsageError("caps_mb", repr(caps_mb), "a list of MiB, such as [25, 50, 100]")
    caps: list[Cap] = []
    for cap in caps_mb:
        if cap is not None:
            number = isinstance(cap, (int, float)) and not isinstance(cap, bool)
            if not number or not 0 < cap < math.inf:
                raise UsageError("caps_mb", cap, "numbers of MiB above 0, or None for the default")
        if cap in caps:
            raise UsageError("caps_mb", f"{cap} twice", "each once")
        caps.append(cap)
    if len(caps) < 2:
        raise UsageError("caps_mb", f"{len(caps)} of them", "2 or more")
    return caps


def _make_model(make_ddp: Make, cap: Cap) -> DistributedDataParallel:
    """Returns the model of make_ddp. Raises UsageError if it is not DDP with this cap."""
    model = make_ddp(cap)
    if not isinstance(model, DistributedDataParallel):
        raise UsageError("make_ddp", type(model).__name__, "DistributedDataParallel")
    wanted = int((DEFAULT_CAP_MB if cap is None else cap) * MIB)
    has = getattr(model, "bucket_bytes_cap", wanted)
    if has != wanted:  # otherwise all blocks would use one cap, and noise would decide
        actual, expected = f"one with bucket_cap_mb {has / MIB:g}", f"{wanted / MIB:g}"
        raise UsageError("make_ddp", actual, expected, "Pass its argument on as bucket_cap_mb.")
    return model


def _time_block(
    model: DistributedDataParallel,
    step: Callable[[DistributedDataParallel], object],
    skip: int,
    steps: int,
    device: torch.device,
) -> list[int]:
    """Returns the duration of each step (ns), until the slowest rank finished it."""

    def idle() -> None:
        if device.type != "cpu":
            torch.get_device_module(device).synchronize(device)

    model.train()
    for _ in range(skip):
        step(model)
    idle()
    dist.barrier(group=model.process_group)
    taken = []
    for _ in range(steps):
        start = time.perf_counter_ns()
        step(model)
        idle()
        taken.append(time.perf_counter_ns() - start)
    slowest = torch.tensor(taken, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=model.process_group)
    return [int(ns) for ns in slowest.tolist()]
