"""Buffers that are not plain ones: registered with NCCL, or places of which each call takes the
next. Loaded where a case asks for them.

Registered (user-buffer registration and symmetric memory): the allocator wraps ncclMemAlloc;
registering the pool lets NCCL use zero-copy and, with ``symm``, its symmetric kernels (NCCL 2.27
and newer). Places: nccl-tests shifts the buffers of call i by (i mod maxbytes / size) x size bytes
(common.cu, startColl), so that what is smaller than a cache is not found in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchcoll.bench.verify import Buffers, allocate, input_of, poison
from torchcoll.core.case import CHECK_CHUNK_BYTES, SizedCase
from torchcoll.machine.devices import Call


def allocate_in_pool(torch: Any, sizing: SizedCase, rank: int, device: str, group: Any) -> Buffers:
    """As ``allocate``, out of a pool that ``register`` takes. Raises RuntimeError with what this
    torch or GPU lacks.
    """
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
    """Register with ``group``, which has connected. Collective for ``symmetric`` buffers, so every
    rank must have its own. Raises RuntimeError with what this torch lacks.
    """
    backend = group._get_backend(torch.device(device))
    if kind != "symmetric":
        backend.register_mem_pool(buffers.pool)
        return
    try:
        backend.register_mem_pool(buffers.pool, symm=True)
    except TypeError:
        raise RuntimeError(f"torch {torch.__version__} has no symmetric registration") from None


def deregister(torch: Any, buffers: Buffers, device: str, group: Any) -> None:
    """Before the buffers and the communicator go. Collective."""
    group._get_backend(torch.device(device)).deregister_mem_pool(buffers.pool)


# A call for each place is made beforehand: making one takes longer than many a call. More than the
# cap of the calls of a case, so that only a long `-n` comes round before the end of the buffer.
MOST_PLACES = 2048


class Cycle:
    """The call of a case whose uneven blocks move on: each time with the blocks of the next
    position. The buffers hold the largest blocks, of which a call takes the beginning.
    """

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls
        self._next = 0

    def __call__(self) -> object:
        call = self._calls[self._next]
        self._next = (self._next + 1) % len(self._calls)
        return call()

    def begin(self, position: int) -> None:
        """Makes the next call the one of this position, which may be negative."""
        self._next = position % len(self._calls)


class Rotation:
    """The call of the case: each time on the next place.

    ``made`` makes the call on the place where the buffers stand.
    """

    def __init__(
        self,
        torch: Any,
        sizing: SizedCase,
        rank: int,
        buffers: Buffers,
        make_call: Callable[[], Call],
        pulse: Callable[[], object],
    ) -> None:
        self._torch = torch
        self._sizing = sizing
        self._rank = rank
        self._buffers = buffers
        self._pulse = pulse
        self._stride = sizing.stride
        self._next = 0
        self._calls = []
        for place in range(min(sizing.slots, MOST_PLACES)):
            buffers.move(place)
            self._calls.append(make_call())
        buffers.move(0)
        self._filled = False

    def __call__(self) -> object:
        place = self._next
        self._next = place + 1 if place + 1 < len(self._calls) else 0
        return self._calls[place]()

    def stand(self) -> None:
        """The buffers stand where the next call will find them: to fill and to verify."""
        self._buffers.move(self._next)

    def refill(self) -> None:
        """Input everywhere. What the next calls take is filled first, so that the rest drives it
        out of the caches.
        """
        send, recv = self._buffers.rooms
        if not self._filled:  # else the first round would pay for its page faults
            self._filled = True
            step = max(1, CHECK_CHUNK_BYTES // recv.element_size())
            for start in range(0, len(recv), step):
                poison(self._torch, recv[start : start + step])
                self._pulse()
        pattern, shift = input_of(self._torch, self._sizing, self._rank, send)
        first = self._next * self._stride if len(send) else 0
        for part in (send[first:], send[:first]):
            pattern.fill(part, shift, pulse=self._pulse)
