"""The caches of a device, overwritten between calls (--buffer-reuse flush). Loaded where a case
asks for it.

Twice the bytes of the largest cache are written: caches do not replace their oldest line strictly,
so a buffer of the size of the cache would leave some of the old lines in it. Ranks of a host that
share a cache write this together. On AMD GPUs at least 512 MiB are written: torch knows their L2
cache (4 MiB of each die of an MI300X), but not the 256 MiB of Infinity Cache behind it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UsageError
from torchcoll.core.units import parse_size
from torchcoll.machine.devices import Call, Device

_CORES = Path("/sys/devices/system/cpu")
# Where the device does not tell: more than the L2 cache of an H100 (50 MiB) or B200 (126 MiB).
_UNKNOWN_BYTES = 128 << 20
_LEAST_ON_AMD = 512 << 20
_LEAST_BYTES = 8 << 20  # more than the caches that each core of a CPU has for itself


def flush_bytes(torch: Any, device: Device, ranks_here: int, cores: Path = _CORES) -> int:
    """Bytes that ``flush_call`` writes on each of the ``ranks_here`` ranks of this host."""
    if device.kind == "cpu":
        size_bytes, sharing = _largest_of_core(cores)
        # Of ranks on all cores so many share one cache; those of a rank that shares it with fewer
        # are still overwritten.
        sharers = max(1, ranks_here * sharing // (os.cpu_count() or 1))
        return max(_LEAST_BYTES, 2 * (size_bytes or _UNKNOWN_BYTES) // sharers)
    ask = getattr(torch.get_device_module(device.kind), "get_device_properties", None)
    properties = ask(device.index) if ask else None
    # Of CUDA and ROCm, and of XPU.
    sizes = [getattr(properties, name, 0) for name in ("L2_cache_size", "last_level_cache_size")]
    size_bytes = 2 * (max(sizes) or _UNKNOWN_BYTES)
    return max(_LEAST_ON_AMD, size_bytes) if torch.version.hip else size_bytes


def flush_call(torch: Any, device: Device, size_bytes: int) -> Call:
    """A function that overwrites the caches, and returns when that is done on the device too.

    Raises torch's out-of-memory error.
    """
    buffer = torch.zeros(size_bytes, dtype=torch.uint8, device=device.name)

    def flush() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # others would spin for a while after it, on cores of other ranks
        buffer.add_(1)  # reads and writes each line
        torch.set_num_threads(threads)
        device.synchronize()

    return flush


def _largest_of_core(cores: Path) -> tuple[int, int]:
    """(bytes of the largest cache of a core of this process, how many cores share it); zeros if
    the kernel does not tell.
    """
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
