"""THE table of implementations: who makes a collective on a group, beside the backend of the group.

``own`` is the backend. The others are the kernels of torch's symmetric memory, which read and write
the memory of all GPUs of the group themselves: what inference engines call in place of NCCL for
small messages (vllm PR 24111, 24532). Facts: torch's CUDASymmetricMemoryOps.cu; not seen on
hardware. Capability is asked of torch (``lacking``), the rest a refused first call says.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchcoll.core.backends import BACKENDS, communicates, is_nccl
from torchcoll.core.case import OWN, Case
from torchcoll.core.errors import UsageError, did_you_mean

MEMORY = "torch.distributed._symmetric_memory"
_REDUCES = "sum"  # the kernels have no other

Call = Callable[[], object]


@dataclass(frozen=True)
class Kernel:
    """One operator of torch.ops.symm_mem that is a whole collective.

    in_place: whether the buffer sent is the one received. mapped: the buffer that all GPUs map,
    ``send`` or ``recv``. arguments(send, recv, group): what it is called with; group is the name.
    multicast: it needs a switch that reduces and copies (NVLS).
    """

    operator: str
    in_place: bool
    mapped: str
    arguments: Callable[[Any, Any, str], tuple[Any, ...]]
    multicast: bool = False


# Implementation: collective: kernel. ``one_shot``: each rank reads all of each other's input.
# ``two_shot``: each reduces its part (reduce_scatter is no more), then all exchange them.
IMPLEMENTATIONS: dict[str, dict[str, Kernel]] = {
    "one_shot": {
        "all_reduce": Kernel(
            "one_shot_all_reduce_out",
            False,
            "send",
            lambda send, recv, group: (send, _REDUCES, group, recv),
        ),
    },
    "two_shot": {
        "all_reduce": Kernel(
            "two_shot_all_reduce_",
            True,
            "recv",
            lambda send, recv, group: (recv, _REDUCES, group),
        ),
        "reduce_scatter": Kernel(
            "reduce_scatter_out",
            False,
            "send",
            lambda send, recv, group: (send, group, False, recv),
        ),
    },
    "multimem": {
        "all_reduce": Kernel(
            "multimem_all_reduce_",
            True,
            "recv",
            lambda send, recv, group: (recv, _REDUCES, group),
            multicast=True,
        ),
        "all_gather": Kernel(
            "multimem_all_gather_out",
            False,
            "recv",
            lambda send, recv, group: (send, group, recv),
            multicast=True,
        ),
    },
    "multimem_one_shot": {
        "all_reduce": Kernel(
            "multimem_one_shot_all_reduce_out",
            False,
            "send",
            lambda send, recv, group: (send, _REDUCES, group, recv),
            multicast=True,
        ),
    },
}


def find_implementations(text: str, backend: str | None) -> tuple[tuple[str, ...], str | None]:
    """The names of ``nccl,one_shot``, where a backend's own name is ``own``; and the backend, which
    such a name says where nothing else does. Raises UsageError.
    """
    names: list[str] = []
    for name in (part.strip().lower() for part in text.split(",")):
        if name not in IMPLEMENTATIONS and name != OWN:
            if name not in BACKENDS and not is_nccl(name):
                usable = [OWN, *IMPLEMENTATIONS]
                expected = f"{', '.join(usable)}, or the backend's name"
                raise UsageError("implementation", name, expected, did_you_mean(name, usable))
            if backend is not None and name not in backend.split(","):
                expected = f"{OWN}, or a name of --backend {backend}"
                raise UsageError("implementation", name, expected)
            backend, name = backend or name, OWN
        names.append(name)
    return tuple(dict.fromkeys(names)), backend


def kernel_of(case: Case) -> Kernel | None:
    """What makes the case's calls; None is the backend, or nothing."""
    return IMPLEMENTATIONS.get(case.implementation, {}).get(case.collective)


def placement_of(implementation: str, collective: str) -> bool | None:
    """Whether it works in place; None where the backend does it, or nothing can."""
    kernel = IMPLEMENTATIONS.get(implementation, {}).get(collective)
    return kernel.in_place if kernel else None


def refusal(case: Case) -> str:
    """What no torch can do for the case with this implementation; '' where one may."""
    name = case.implementation
    if name == OWN:
        return ""
    if not communicates(case.backend):
        return f"{case.backend} communicates nothing, and {name} does"
    kernel = kernel_of(case)
    if kernel is None:
        able = [other for other, kernels in IMPLEMENTATIONS.items() if case.collective in kernels]
        others = f", {' and '.join(able)} {'has' if len(able) == 1 else 'have'}" if able else ""
        return f"{name} has no {case.collective}{others}"
    if case.in_place != kernel.in_place:
        only = "in place" if kernel.in_place else "out of place"
        return f"{name} has {case.collective} {only} only"
    if case.op not in (None, _REDUCES):
        return f"{name} has no {case.op}, it sums"
    if case.asynchronous:
        return f"{name} has no async_op"
    if case.coalesce > 1:
        return f"{name} has no group of calls"
    if case.buffers != "default":
        return f"{name} makes buffers of its own, not {case.buffers} ones"
    return ""


def lacking(torch: Any, case: Case, index: int | None) -> str:
    """What this torch, or this rank's device of that index, has not for the case; '' where nothing
    is known to be missing.
    """
    kernel = kernel_of(case)
    if kernel is None:
        return ""
    name, version = case.implementation, f"torch {torch.__version__}"
    try:
        memory = importlib.import_module(MEMORY)
    except ImportError:
        return f"{version} has no symmetric memory, of which {name} is a kernel"
    if not hasattr(torch.ops.symm_mem, kernel.operator):
        return f"{version} has no torch.ops.symm_mem.{kernel.operator}"
    # Older ones do not tell, and have it for CUDA alone.
    ask = getattr(memory, "get_backend", lambda device: device == "cuda" or None)
    if ask(case.device) is None:
        return f"{name} needs symmetric memory, which {version} has not for {case.device}"
    if kernel.multicast and not multicast(torch, case.device, index):
        return f"{name} needs multicast (NVLink SHARP), which {case.device}:{index} has not"
    return ""


def multicast(torch: Any, kind: str, index: int | None) -> bool:
    """Whether torch says that memory of the device can be mapped on a switch that copies."""
    c10d = torch._C._distributed_c10d
    has_multicast = getattr(c10d._SymmetricMemory, "has_multicast_support", None)
    device = getattr(torch._C._autograd.DeviceType, kind.upper(), None)
    return bool(has_multicast and device is not None and has_multicast(device, index or 0))


def call_of(torch: Any, kernel: Kernel, send: Any, recv: Any, group_name: str) -> Call:
    """The call on these buffers."""
    operator = getattr(torch.ops.symm_mem, kernel.operator)
    return partial(operator, *kernel.arguments(send, recv, group_name))
