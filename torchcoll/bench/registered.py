"""Buffers that NCCL has registered: user-buffer registration and symmetric memory.

The allocator wraps ncclMemAlloc; registering the pool lets NCCL use
zero-copy and, with ``symm``, its symmetric kernels (NCCL 2.27 and newer).
"""

from __future__ import annotations

from typing import Any

from torchcoll.bench.verify import Buffers, allocate
from torchcoll.core.case import Sizing


def allocate_in_pool(torch: Any, sizing: Sizing, rank: int, device: str, group: Any) -> Buffers:
    """As ``allocate``, out of a pool that ``register`` takes. Raises RuntimeError with what this
    torch lacks.
    """
    backend = group._get_backend(torch.device(device))
    needed = ("mem_allocator", "register_mem_pool")  # torch 2.6 has the second alone
    if not (hasattr(torch.cuda, "MemPool") and all(hasattr(backend, name) for name in needed)):
        raise RuntimeError(f"torch {torch.__version__} cannot register buffers with NCCL")
    pool = torch.cuda.MemPool(backend.mem_allocator)
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
