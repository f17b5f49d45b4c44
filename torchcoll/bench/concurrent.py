"""How a collective and other work on its device slow each other down: ``--concurrent``.

Three kinds of blocks in turn: the calls alone, the work alone, both at once. All ranks begin a
block together, and the order rotates.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchcoll.core.units import format_size, parse_size
from torchcoll.machine.devices import Call

if TYPE_CHECKING:
    from torchcoll.bench.session import Rank
    from torchcoll.machine.devices import Device

BLOCKS = 12  # a multiple of 3: each kind is first, second and third equally often
BLOCK_NS = 20_000_000  # that the calls of a block take alone
LEAST_CALLS, MOST_CALLS = 2, 2000
COVER = 1.25  # the work lasts so much longer than the calls, to be there until they end
MOST_REPEATS = 100_000
_TRIES = 4
# Without :SIZE: a matrix product of some ms on one core, and on a GPU of today.
_CPU_SIZE, _SIZE = "1M", "64M"


@dataclass(frozen=True)
class Work:
    """Work on the device: a call does it once."""

    name: str
    once: Call
    threads: int | None = None

    def __call__(self) -> None:
        self.once()


def computation(torch: Any, text: str, device: Device) -> Work:
    """``matmul``, ``copy`` or ``both``. Raises RuntimeError if there is no memory."""
    kind, _, size = text.partition(":")
    size_bytes = parse_size(size or (_CPU_SIZE if device.kind == "cpu" else _SIZE))
    makers: dict[str, Callable[[Any, int, str], Call]] = {"matmul": _matmul, "copy": _copy}
    kinds = makers if kind == "both" else (kind,)
    parts = [makers[part](torch, size_bytes, device.name) for part in kinds]

    def once() -> None:
        for part in parts:
            part()

    threads = _threads(torch) if device.kind == "cpu" else None
    return Work(f"{kind}:{format_size(size_bytes)}", once, threads)


def _threads(torch: Any) -> int:
    """OpenMP's number of threads in a new thread, in which the work runs: each has its own."""
    counts: list[int] = []
    worker = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    worker.start()
    worker.join()
    return counts[0]


def _matmul(torch: Any, size_bytes: int, device: str) -> Call:
    order = math.isqrt(size_bytes // 4)
    factor = torch.full((order, order), 1 / order, device=device)
    product, multiply = torch.empty_like(factor), torch.mm
    return lambda: multiply(factor, factor, out=product)


def _copy(torch: Any, size_bytes: int, device: str) -> Call:
    source = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    return lambda: target.copy_(source)


def measure_concurrent(
    local: Rank, once: Call, work: Work, refill: Call, align: Call, name: str
) -> dict[str, Any]:
    """This rank's ConcurrentBlocks as JSON, and ``all_calls``, which counts trial calls too."""
    device, step, all_calls = local.device, local.progress.step, 0

    def block(calls: int, repeats: int) -> tuple[int, int, int]:
        nonlocal all_calls
        all_calls += calls
        refill()
        align()
        return device.together(once, calls, work, repeats)

    def longest(calls: int, repeats: int) -> int:
        return round(local.control.largest(block(calls, repeats)[2]))

    step(f"{name}: how long {work.name} takes")
    longest(LEAST_CALLS, 1)  # the first of each is slow
    call_ns = longest(LEAST_CALLS, 0) / LEAST_CALLS
    calls = round(min(max(BLOCK_NS / max(call_ns, 1), LEAST_CALLS), MOST_CALLS))
    target_ns, repeats = COVER * longest(calls, 0), 1
    while (took := longest(0, repeats)) < target_ns / 2 and repeats < MOST_REPEATS:
        # Short work is timed in many repeats: one alone is mostly how it was started.
        repeats = min(MOST_REPEATS, 4 * repeats)
    repeats = max(1, min(MOST_REPEATS, math.ceil(repeats * target_ns / max(took, 1))))
    for _ in range(_TRIES):  # the work slows the calls down, and must last as long as they then do
        of_calls, of_work, _ = block(calls, repeats)
        lasts = local.control.largest(of_calls / max(of_work, 1))
        if lasts <= 1:
            break
        repeats = min(MOST_REPEATS, math.ceil(repeats * lasts * COVER))
    alone: list[tuple[int, int, int]] = []
    working: list[tuple[int, int, int]] = []
    together: list[tuple[int, int, int]] = []
    kinds = ((alone, calls, 0), (working, 0, repeats), (together, calls, repeats))
    turns = itertools.cycle((kinds, (*kinds[1:], kinds[0]), (kinds[2], *kinds[:2])))
    for number in range(BLOCKS):
        step(f"{name}: beside {work.name}, block {number + 1}")
        for times, of_calls, of_work in next(turns):
            times.append(block(of_calls, of_work))
    return {
        "work": work.name,
        "threads": work.threads,
        "calls": calls,
        "repeats": repeats,
        "alone_ns": [of_calls for of_calls, _, _ in alone],
        "work_ns": [of_work for _, of_work, _ in working],
        "both_calls_ns": [of_calls for of_calls, _, _ in together],
        "both_work_ns": [of_work for _, of_work, _ in together],
        "both_ns": [whole for _, _, whole in together],
        "all_calls": all_calls,
    }
