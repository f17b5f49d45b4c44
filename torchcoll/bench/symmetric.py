"""Cases that kernels of torch's symmetric memory make (core/implementations.py): their buffers and
their calls. Loaded where a case asks for them.

``rendezvous`` exchanges the handles of the memory through the store and maps it, as registering
does for NCCL: before the first call, which pays for neither.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from torchcoll.bench.verify import Buffers, allocate
from torchcoll.core.case import Case, SizedCase
from torchcoll.core.implementations import MEMORY, call_of, kernel_of, lacking
from torchcoll.machine.devices import Call, Device

if TYPE_CHECKING:
    from torchcoll.bench.session import Rank


def allocate_mapped(torch: Any, sizing: SizedCase, place: int, device: Device) -> Buffers:
    """As ``allocate``, in memory that other GPUs can map. Raises RuntimeError with what torch or
    the device has not.
    """
    missing = lacking(torch, sizing.case, device.index)
    if missing:
        raise RuntimeError(missing)
    make = torch._C._distributed_c10d._SymmetricMemory.empty_strided_p2p

    def empty(elements: int, dtype: Any, device: str) -> Any:
        """Not the module's own ``empty``, whose pool keeps the memory when the case is over."""
        return make((elements,), (1,), dtype, torch.device(device))

    return allocate(torch, sizing, place, device.name, empty)


def map_together(case: Case, buffers: Buffers, group: Any) -> None:
    """Each GPU of the group maps the memory of the others. Collective. Raises RuntimeError with
    what stands against it: GPUs that cannot reach each other, several ranks on one, no multicast.
    """
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


def called_on(local: Rank, case: Case, buffers: Buffers, group: Any) -> Call:
    """The call of the case. group: None is the default one."""
    kernel = kernel_of(case)
    assert kernel is not None
    group = group or local.dist.distributed_c10d._get_default_group()
    return call_of(local.torch, kernel, buffers.send, buffers.recv, group.group_name)
