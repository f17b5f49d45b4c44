"""Buffers other than plain ones: mapped by other GPUs (torch's symmetric memory), registered with
NCCL (ncclMemAlloc), rotated, or flushed out of the caches. Loaded if a case asks for them.

Flushed: twice the bytes of the largest cache are written, because caches do not replace their
oldest line strictly. AMD GPUs have caches that torch does not know: 256 MiB of Infinity Cache.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchcoll.bench.verify import Buffers, allocate, input_of, poison
from torchcoll.core.case import CHECK_CHUNK_BYTES, Case, SizedCase
from torchcoll.core.errors import UsageError
from torchcoll.core.implementations import MEMORY, kernel_of, lacking
from torchcoll.core.units import parse_size
from torchcoll.machine.devices import Call, Device

_CORES = Path("/sys/devices/system/cpu")
# If the size of the caches is not known: more than the L2 of an H100 (50 MiB) or B200 (126 MiB).
_UNKNOWN_BYTES = 128 << 20
_LEAST_ON_AMD = 512 << 20
_LEAST_BYTES = 8 << 20  # more than the caches that each core of a CPU has for itself

# More than the most calls of a case: only a large `-n` uses a slot again before the end.
MOST_SLOTS = 2048


def allocate_mapped(torch: Any, sizing: SizedCase, group_rank: int, device: Device) -> Buffers:
    """As ``allocate``, in memory that other GPUs can map. Raises RuntimeError."""
    missing = lacking(torch, sizing.case, device.index)
    if missing:
        raise RuntimeError(missing)
    make = torch._C._distributed_c10d._SymmetricMemory.empty_strided_p2p

    def empty(elements: int, dtype: Any, device: str) -> Any:
        """In place of the module's ``empty``, whose pool keeps the memory after the case."""
        return make((elements,), (1,), dtype, torch.device(device))

    return allocate(torch, sizing, group_rank, device.name, empty)


def map_together(case: Case, buffers: Buffers, group: Any) -> None:
    """Let each GPU of the group map the memory of the others. Collective. Raises RuntimeError."""
    memory, kernel = importlib.import_module(MEMORY), kernel_of(case)
    assert kernel is not None
    enable = getattr(memory, "enable_symm_mem_for_group", None)
    if enable:
        with warnings.catch_warnings():  # newer torch needs it no more, and warns
            warnings.simplefilter("ignore", FutureWarning)
            enable(group.group_name)
    room = buffers.rooms[kernel.mapped == "recv"]
    handle = memory.rendezvous(room, group.group_name)
    if kernel.multicast and not handle.multicast_ptr:
        text = "needs multicast (NVLink SHARP), which the GPUs of this group have not in common"
        raise RuntimeError(f"{case.implementation} {text}")


def allocate_in_pool(torch: Any, sizing: SizedCase, rank: int, device: str, group: Any) -> Buffers:
    """As ``allocate``, in a pool for ``register``. Raises RuntimeError."""
    backend = group._get_backend(torch.device(device))
    try:
        allocator = getattr(backend, "mem_allocator", None)  # torch 2.6 has none
    except RuntimeError as error:  # torch blames NCCL's version, also where the GPU is the reason
        needs = "needs NCCL 2.19 and a GPU with multicast (NVLink SHARP)"
        raise RuntimeError(f"torch's allocator for NCCL {needs}: {error}") from None
    if not (allocator and hasattr(backend, "register_mem_pool") and hasattr(torch.cuda, "MemPool")):
        raise RuntimeError(f"torch {torch.__version__} cannot register buffers with NCCL")
    pool = torch.cuda.MemPool(allocator)
    with torch.cuda.use_mem_pool(pool):
        buffers = allocate(torch, sizing, rank, device)
    buffers.pool = pool  # lives as long as the buffers
    return buffers


def register(torch: Any, buffers: Buffers, kind: str, device: str, group: Any) -> None:
    """Register with ``group``, which has connected. Collective. Raises RuntimeError."""
    backend = group._get_backend(torch.device(device))
    if kind != "symmetric":
        backend.register_mem_pool(buffers.pool)
        return
    try:
        backend.register_mem_pool(buffers.pool, symm=True)
    except TypeError:
        raise RuntimeError(f"torch {torch.__version__} has no symmetric registration") from None


def deregister(torch: Any, buffers: Buffers, device: str, group: Any) -> None:
    """Undo ``register``, before the buffers and the communicator are freed. Collective."""
    group._get_backend(torch.device(device)).deregister_mem_pool(buffers.pool)


class Rotation:
    """The call of the case, each time on the next slot in the memory of the buffers."""

    def __init__(
        self,
        torch: Any,
        sizing: SizedCase,
        rank: int,
        buffers: Buffers,
        make_call: Callable[[], Call],
        pulse: Callable[[], object],
    ) -> None:
        self._calls: list[Call] = []
        self._next = 0
        for slot in range(min(sizing.slots, MOST_SLOTS)):
            buffers.move(slot)
            self._calls.append(make_call())
        buffers.move(0)
        self._torch, self._buffers, self._pulse = torch, buffers, pulse
        self._stride = sizing.stride
        self._input = input_of(torch, sizing, rank, buffers.rooms[0])
        self._filled = False

    def __call__(self) -> object:
        call = self._calls[self._next]
        self._next = (self._next + 1) % len(self._calls)
        return call()

    def stand(self) -> None:
        """Move the buffers to the slot of the next call, to fill and to verify them."""
        self._buffers.move(self._next)

    def refill(self) -> None:
        """Fill all slots with input, the next ones first: the others leave the caches cold."""
        send, recv = self._buffers.rooms
        if not self._filled:  # else the first round would pay for its page faults
            self._filled = True
            step = max(1, CHECK_CHUNK_BYTES // recv.element_size())
            for start in range(0, len(recv), step):
                poison(self._torch, recv[start : start + step])
                self._pulse()
        pattern, shift = self._input
        first = self._next * self._stride if len(send) else 0
        for part in (send[first:], send[:first]):
            pattern.fill(part, shift, pulse=self._pulse)


def flush_bytes(torch: Any, device: Device, ranks_here: int, cores: Path = _CORES) -> int:
    """Bytes that ``flush_call`` writes on each of the ``ranks_here`` ranks of this host."""
    if device.kind == "cpu":
        size_bytes, sharing = _largest_of_core(cores)
        # If the ranks are on all cores, so many of them share one cache.
        sharers = max(1, ranks_here * sharing // (os.cpu_count() or 1))
        return max(_LEAST_BYTES, 2 * (size_bytes or _UNKNOWN_BYTES) // sharers)
    ask = getattr(torch.get_device_module(device.kind), "get_device_properties", None)
    properties = ask(device.index) if ask else None
    # Of CUDA and ROCm, and of XPU.
    sizes = [getattr(properties, name, 0) for name in ("L2_cache_size", "last_level_cache_size")]
    size_bytes = 2 * (max(sizes) or _UNKNOWN_BYTES)
    return max(_LEAST_ON_AMD, size_bytes) if torch.version.hip else size_bytes


def flush_call(torch: Any, device: Device, size_bytes: int) -> Call:
    """A function that overwrites the caches. Raises torch's out-of-memory error."""
    buffer = torch.zeros(size_bytes, dtype=torch.uint8, device=device.name)

    def flush() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # others would spin for a while after it, on cores of other ranks
        buffer.add_(1)  # reads and writes each line
        torch.set_num_threads(threads)
        device.synchronize()

    return flush


def _largest_of_core(cores: Path) -> tuple[int, int]:
    """(bytes of the largest cache of a core of this process, how many cores share it), or zeros."""
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    caches = [(0, 0)]
    for index in (cores / f"cpu{core}/cache").glob("index*"):
        try:
            size_bytes = parse_size((index / "size").read_text().strip(), "cache size")
            mask = (index / "shared_cpu_map").read_text().replace(",", "")
            caches.append((size_bytes, int(mask, 16).bit_count()))
        except (OSError, UsageError, ValueError):
            continue
    return max(caches)
