"""The table of implementations of collectives other than the backend's own: kernels of torch's
symmetric memory, and the backend through other APIs of torch.

Inference engines call these kernels instead of NCCL for small messages (vllm PR 24111, 24532). The
table follows torch's CUDASymmetricMemoryOps.cu.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchcoll.core.backends import BACKENDS, communicates, is_nccl
from torchcoll.core.case import APIS, DTENSOR, NATIVE, Case
from torchcoll.core.errors import UsageError, did_you_mean
from torchcoll.core.units import plural

MEMORY = "torch.distributed._symmetric_memory"
_REDUCES = "sum"  # the only reduction of the kernels

Call = Callable[[], object]


@dataclass(frozen=True)
class Kernel:
    """One operator of torch.ops.symm_mem that is a whole collective.

    in_place: whether it receives into the buffer that it sends from.
    mapped: the buffer that has to be symmetric memory, ``send`` or ``recv``.
    arguments(send, recv, group): the arguments of the operator; group is the name of the group.
    multicast: whether it needs a switch that reduces and copies (NVLS).
    """

    operator: str
    in_place: bool
    mapped: str
    arguments: Callable[[Any, Any, str], tuple[Any, ...]]
    multicast: bool = False


def _reduced_into(send: Any, recv: Any, group: str) -> tuple[Any, ...]:
    return send, _REDUCES, group, recv


def _reduced_in_place(send: Any, recv: Any, group: str) -> tuple[Any, ...]:
    return recv, _REDUCES, group


# Implementation -> collective -> kernel. ``one_shot``: each rank reads the whole input of every
# other rank. ``two_shot``: each rank reduces one block (which already is a reduce_scatter), then
# all ranks exchange the blocks.
IMPLEMENTATIONS: dict[str, dict[str, Kernel]] = {
    "one_shot": {"all_reduce": Kernel("one_shot_all_reduce_out", False, "send", _reduced_into)},
    "two_shot": {
        "all_reduce": Kernel("two_shot_all_reduce_", True, "recv", _reduced_in_place),
        "reduce_scatter": Kernel(
            "reduce_scatter_out",
            False,
            "send",
            lambda send, recv, group: (send, group, False, recv),
        ),
    },
    "multimem": {
        "all_reduce": Kernel("multimem_all_reduce_", True, "recv", _reduced_in_place, True),
        "all_gather": Kernel(
            "multimem_all_gather_out",
            False,
            "recv",
            lambda send, recv, group: (send, group, recv),
            True,
        ),
    },
    "multimem_one_shot": {
        "all_reduce": Kernel("multimem_one_shot_all_reduce_out", False, "send", _reduced_into, True)
    },
}


@dataclass(frozen=True)
class ApiCall:
    """A collective as functional collectives and DTensor make it.

    functions: names in torch.distributed._functional_collectives, the newest first.
    arguments: a function of (op, received, sent, group), which returns the arguments after the
    tensor. ``received`` and ``sent`` are the elements of each block, None if all are even.
    placements: the placements of a DTensor before and after; None if no redistribution of one
    dimension is this collective.
    """

    functions: tuple[str, ...]
    arguments: Callable[[str, Any, Any, Any], tuple[Any, ...]]
    placements: tuple[str, str] | None = None


_EXCHANGE = ApiCall(
    ("all_to_all_single",), lambda op, received, sent, group: (received, sent, group)
)
API_CALLS: dict[str, ApiCall] = {
    "all_reduce": ApiCall(
        ("all_reduce",), lambda op, received, sent, group: (op, group), ("Partial", "Replicate")
    ),
    "all_gather": ApiCall(
        ("all_gather_single", "all_gather_tensor"),
        lambda op, received, sent, group: (0, group),
        ("Shard", "Replicate"),
    ),
    "reduce_scatter": ApiCall(
        ("reduce_scatter_single", "reduce_scatter_tensor"),
        lambda op, received, sent, group: (op, 0, group),
        ("Partial", "Shard"),
    ),
    "all_to_all": _EXCHANGE,
    "all_to_all_v": _EXCHANGE,
}


def find_implementations(text: str, backend: str | None) -> tuple[tuple[str, ...], str | None]:
    """(names, backend) of a list such as ``nccl,one_shot``: ``own`` stands for the name of a
    backend, which becomes the backend without one. Raises UsageError.
    """
    names: list[str] = []
    for name in (name.strip().lower() for name in text.split(",")):
        if name not in (NATIVE, *APIS, *IMPLEMENTATIONS):
            if name not in BACKENDS and not is_nccl(name):
                usable = [NATIVE, *APIS, *IMPLEMENTATIONS]
                expected = f"{', '.join(usable)}, or the backend's name"
                raise UsageError("implementation", name, expected, did_you_mean(name, usable))
            if backend is not None and name not in backend.split(","):
                expected = f"{NATIVE}, or a name of --backend {backend}"
                raise UsageError("implementation", name, expected)
            backend, name = backend or name, NATIVE
        names.append(name)
    return tuple(dict.fromkeys(names)), backend


def kernel_of(case: Case) -> Kernel | None:
    """The kernel of a case; None for the backend's own, or if the implementation has none."""
    return IMPLEMENTATIONS.get(case.implementation, {}).get(case.collective)


def placement_of(implementation: str, collective: str) -> bool | None:
    """Whether an implementation of a collective works in place; None if it has none."""
    if implementation in APIS:
        return False  # each call returns a new tensor
    kernel = IMPLEMENTATIONS.get(implementation, {}).get(collective)
    return kernel.in_place if kernel else None


def refusal(case: Case) -> str:
    """Why this implementation cannot run the case with any torch; '' if it may."""
    name = case.implementation
    if name == NATIVE:
        return ""
    if case.through_api:
        able = [c for c, call in API_CALLS.items() if call.placements or name != DTENSOR]
        if case.collective not in able:
            return f"{name} is measured for {', '.join(able)} only"
        if case.in_place:
            return f"{name} returns a new tensor, so no call is in place"
    elif not communicates(case.backend):
        return f"{case.backend} communicates nothing, and {name} does"
    elif (kernel := kernel_of(case)) is None:
        able = [other for other, kernels in IMPLEMENTATIONS.items() if case.collective in kernels]
        verb = plural(len(able), "has", "have")
        alternatives = f", {' and '.join(able)} {verb}" if able else ""
        return f"{name} has no {case.collective}{alternatives}"
    elif case.in_place != kernel.in_place:
        only = "in place" if kernel.in_place else "out of place"
        return f"{name} has {case.collective} {only} only"
    elif case.op not in (None, _REDUCES):
        return f"{name} has no {case.op}, it sums"
    if case.asynchronous:
        return f"{name} has no async_op"
    if case.coalesce > 1:
        return f"{name} has no group of calls"
    if case.buffers != "default":
        return f"{name} makes buffers of its own, not {case.buffers} ones"
    if case.misalign_bytes:
        return f"{name} is measured with aligned buffers only"
    return ""


def lacking(torch: Any, case: Case, index: int | None) -> str:
    """What this torch, or the device of this index, lacks to run the case; '' if nothing known."""
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
    # Older releases have no get_backend, and support only CUDA.
    ask = getattr(memory, "get_backend", lambda device: device == "cuda" or None)
    if ask(case.device) is None:
        return f"{name} needs symmetric memory, which {version} has not for {case.device}"
    if kernel.multicast and not multicast(torch, case.device, index):
        return f"{name} needs multicast (NVLink SHARP), which {case.device}:{index} has not"
    return ""


def multicast(torch: Any, kind: str, index: int | None) -> bool:
    """Whether torch reports multicast for the device: a switch that reduces and copies (NVLS)."""
    c10d = torch._C._distributed_c10d
    has_multicast = getattr(c10d._SymmetricMemory, "has_multicast_support", None)
    device = getattr(torch._C._autograd.DeviceType, kind.upper(), None)
    return bool(has_multicast and device is not None and has_multicast(device, index or 0))


def call_of(torch: Any, kernel: Kernel, send: Any, recv: Any, group_name: str) -> Call:
    """The call of a kernel on these buffers."""
    operator = getattr(torch.ops.symm_mem, kernel.operator)
    return partial(operator, *kernel.arguments(send, recv, group_name))
