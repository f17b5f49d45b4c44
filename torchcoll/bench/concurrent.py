"""What a collective and other work on its device do to each other: ``--concurrent``.

Three blocks in turn: the calls alone, the work alone, both at once, each begun by all ranks
together. The order of the three turns from block to block (A W B, W B A, B A W): what drifts with
time favours none. With ``--offset`` there is a fourth, in which the work begins later. Loaded where
it is asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchcoll.bench.verify import Checker, allocate
from torchcoll.core.case import NATIVE, SizedCase, partition, size_case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.spec import SAME, other_collective
from torchcoll.core.units import format_size, parse_duration, parse_size
from torchcoll.machine.devices import Call, nothing

if TYPE_CHECKING:
    from torchcoll.bench.session import Rank
    from torchcoll.bench.sweep import Sweep
    from torchcoll.machine.devices import Device

BLOCKS = 12  # a multiple of 3 and of 4: each kind is first, second, ... equally often
BLOCK_NS = 20_000_000  # that the calls of a block take alone
LEAST_CALLS, MOST_CALLS = 2, 2000
OFFSETS_NS = 100_000_000  # that a block waits for its offsets: a watchdog looks on
COVER = 1.25  # so much longer than the calls the work is, to be there until they end
MOST_REPEATS = 100_000
_TRIES = 4
# Without :SIZE: a matrix product of some ms on one core, and on a GPU of today.
_CPU_SIZE, _SIZE = "1M", "64M"


@dataclass(frozen=True)
class Work:
    """Work on the device: a call does it once.

    name: with its size. threads: that a matrix product takes on the CPU. bus_bytes: of a
    collective, what one call counts for busbw. refill: what goes before each block.
    """

    name: str
    once: Call
    threads: int | None = None
    bus_bytes: int | None = None
    refill: Call = nothing

    def __call__(self) -> None:
        self.once()


def computation(torch: Any, text: str, device: Device) -> Work:
    """``matmul``, ``copy`` or ``both``. Raises RuntimeError where there is no memory."""
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


@contextlib.contextmanager
def collective(sweep: Sweep, sizing: SizedCase, prepare: Callable[..., Call]) -> Iterator[Work]:
    """Another collective on groups of its own, which last as long as this is open; all ranks have
    to come. prepare: measure's own, which makes the call of a case. Raises RuntimeError where
    there is no memory.
    """
    local, case = sweep.local, sizing.case
    parsed = other_collective(str(sweep.spec.concurrent))
    assert parsed is not None
    name, rule, size_bytes = parsed
    name = case.collective if name == SAME else name
    entry, parts = COLLECTIVES[name], partition(rule, local.ranks)
    part = next(part for part in parts if local.rank in part)
    other = dataclasses.replace(
        case,
        collective=name,
        size_bytes=size_bytes or case.size_bytes,
        op=(case.op or "sum") if entry.has_op else None,
        root=(case.root or 0) if entry.has_root else None,
        in_place=entry.placements[0],
        splits=sweep.spec.splits if entry.has_splits else None,
        group=rule,
        implementation=NATIVE,
    )
    sized, place = size_case(other, len(part)), part.index(local.rank)
    progress = local.progress
    groups, first = progress.groups, progress.part
    with sweep.communicators.of(case.backend, parts) as communicator:
        progress.groups, progress.part = groups, first
        buffers = allocate(local.torch, sized, place, local.device.name)
        checker = Checker(local.torch, sized, place, buffers, progress.beat)
        once = prepare(local, sized, place, buffers, communicator.group)
        text = f"{name}:{rule}:{format_size(other.size_bytes)}"
        yield Work(text, once, bus_bytes=sized.bus_bytes, refill=checker.refill)
    progress.groups, progress.part = groups, first


def _threads(torch: Any) -> int:
    """OpenMP has a number of threads for each thread: that of a new one, as the work runs in."""
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
    """This rank's part of the result's ``beside``; and ``all_calls``, those of finding out too.

    refill: what puts the buffers right before a block: sums in place grow with every call.
    """
    device, step, all_calls = local.device, local.progress.step, 0

    def block(calls: int, repeats: int) -> tuple[int, int, int]:
        nonlocal all_calls
        all_calls += calls
        refill()
        work.refill()
        align()
        return device.together(once, calls, work, repeats)[:3]

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
    for _ in range(
        _TRIES
    ):  # the work slows the calls down, and has to last as long as they then do
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
        "work_bus_bytes": work.bus_bytes,
        "calls": calls,
        "repeats": repeats,
        "alone_ns": [of_calls for of_calls, _, _ in alone],
        "work_ns": [of_work for _, of_work, _ in working],
        "both_calls_ns": [of_calls for of_calls, _, _ in together],
        "both_work_ns": [of_work for _, of_work, _ in together],
        "both_ns": [whole for _, _, whole in together],
        "all_calls": all_calls,
    }


def measure_offset(
    local: Rank,
    once: Call,
    work: Work,
    refill: Call,
    align: Call,
    name: str,
    offset: str,
) -> dict[str, Any]:
    """As ``measure_beside``, of one call and one repeat of the work at a time: in a run of calls
    an offset would be lost after the first. offset: ``2ms``, which Spec keeps below --timeout.

    Every pair waits for the offset, also where nothing comes after it: a call that follows a pause
    is slower than one in a row, and by more than the work makes it.
    """
    device, step, all_calls = local.device, local.progress.step, 0
    offset_ns = round(1e9 * parse_duration(offset, "offset"))

    def block(pairs: int, calls: int, other: Call, after_ns: int) -> list[int]:
        """Sums over the pairs; of when the work began the mean."""
        nonlocal all_calls
        all_calls += calls * pairs
        refill()
        work.refill()
        sums = [0] * 4
        for _ in range(pairs):
            if not after_ns:
                time.sleep(offset_ns / 1e9)
            align()
            times = device.together(once, calls, other, 1, after_ns)
            sums = [a + b for a, b in zip(sums, times, strict=True)]
        return [*sums[:3], sums[3] // pairs]

    step(f"{name}: how long {work.name} takes")
    block(LEAST_CALLS, 1, work, 0)  # the first of each is slow
    took = local.control.largest(block(LEAST_CALLS, 1, work, 0)[2]) / LEAST_CALLS
    pairs = round(max(min(BLOCK_NS / max(took, 1), OFFSETS_NS / offset_ns, MOST_CALLS), 1))
    kinds: dict[str, tuple[int, Call, int]] = {
        "alone": (1, nothing, offset_ns),
        "work": (0, work, offset_ns),
        "both": (1, work, 0),
        "later": (1, work, offset_ns),
    }
    order, blocks_of = list(kinds), {kind: list[list[int]]() for kind in kinds}
    for number in range(BLOCKS):
        step(f"{name}: beside {work.name}, block {number + 1}")
        for kind in order:
            blocks_of[kind].append(block(pairs, *kinds[kind]))
        order = [*order[1:], order[0]]

    def column(kind: str, place: int) -> list[int]:
        return [block[place] for block in blocks_of[kind]]

    return {
        "work": work.name,
        "threads": work.threads,
        "work_bus_bytes": work.bus_bytes,
        "calls": pairs,
        "repeats": pairs,
        "offset_ns": offset_ns,
        "alone_ns": column("alone", 0),
        "work_ns": column("work", 1),
        "both_calls_ns": column("both", 0),
        "both_work_ns": column("both", 1),
        "both_ns": column("both", 2),
        "later_calls_ns": column("later", 0),
        "later_work_ns": column("later", 1),
        "later_ns": column("later", 2),
        "later_begins_ns": column("later", 3),
        "all_calls": all_calls,
    }
