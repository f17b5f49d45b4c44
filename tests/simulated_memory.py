"""torch's symmetric memory on the simulated accelerator: the operators of torch.ops.symm_mem that
are whole collectives, each queued on the current stream, 20 ms or more; data goes through gloo.

What an operator takes and refuses is written from torch's CUDASymmetricMemoryOps.cu (2.13), not
from torchcoll's table.
"""

from __future__ import annotations

import importlib
import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from simulated_device import CALL_S, OnDevice, SimulatedTorch, device, plain

MEMORY = "torch.distributed._symmetric_memory"


class SymmetricMemory:
    """What is allocated for peers, by its address; and what they have mapped."""

    def __init__(self, multicast: bool = True, shared: bool = False) -> None:
        self.multicast, self.shared = multicast, shared
        self.made: set[int] = set()
        self.mapped: set[int] = set()

    def empty_strided_p2p(self, size: Any, stride: Any, dtype: Any, where: Any) -> Any:
        assert where.type == "cuda"
        tensor = torch.empty_strided(size, stride, dtype=dtype)
        self.made.add(tensor.untyped_storage().data_ptr())
        return tensor.as_subclass(OnDevice)

    def has_multicast_support(self, kind: Any, index: int) -> bool:
        assert kind == torch._C._autograd.DeviceType.CUDA
        return self.multicast

    def rendezvous(self, tensor: Any, name: str) -> Any:
        address = plain(tensor).untyped_storage().data_ptr()
        assert address in self.made
        if self.shared:
            raise RuntimeError(
                "CUDASymmetricMemoryAllocator::rendezvous: detected allocations from overlapping "
                "devices from different ranks."
            )
        self.mapped.add(address)
        return SimpleNamespace(multicast_ptr=4096 if self.multicast else 0)


class Operators:
    """torch.ops.symm_mem."""

    def __init__(self, memory: SymmetricMemory) -> None:
        self._memory = memory

    def _queue(self, name: str, mapped: Any, group: str, action: Any, multicast: bool) -> None:
        """``action(group)`` in the stream, where ``mapped`` is."""
        if plain(mapped).untyped_storage().data_ptr() not in self._memory.mapped:
            raise RuntimeError(f"{name}: input must be allocated with empty_strided_p2p().")
        if multicast and not self._memory.multicast:
            raise RuntimeError(f"{name}: requires multicast support.")
        inner = dist.distributed_c10d._resolve_process_group(group)._inner

        def run() -> None:
            action(inner)
            time.sleep(CALL_S)

        device().current.put(run)

    def _reduce(self, name: str, input: Any, op: str, group: str, out: Any, multicast: bool) -> Any:
        source, target = plain(input), plain(out)
        if op != "sum":
            raise RuntimeError(f"{name}: only sum is supported for now.")
        if source.dtype not in (torch.float32, torch.bfloat16):
            raise NotImplementedError(f"\"{name}\" not implemented for '{source.dtype}'")

        def action(inner: Any) -> None:
            if target is not source:
                target.copy_(source)
            inner.allreduce([target]).wait()

        self._queue(name, input, group, action, multicast)
        return out

    def one_shot_all_reduce_out(self, input: Any, reduce_op: str, group_name: str, out: Any) -> Any:
        return self._reduce("one_shot_all_reduce", input, reduce_op, group_name, out, False)

    def multimem_one_shot_all_reduce_out(
        self, input: Any, reduce_op: str, group_name: str, out: Any
    ) -> Any:
        return self._reduce("multimem_one_shot_reduce", input, reduce_op, group_name, out, True)

    def two_shot_all_reduce_(self, input: Any, reduce_op: str, group_name: str) -> Any:
        return self._reduce("two_shot_all_reduce", input, reduce_op, group_name, input, False)

    def multimem_all_reduce_(self, input: Any, reduce_op: str, group_name: str) -> Any:
        return self._reduce("multimem_all_reduce_", input, reduce_op, group_name, input, True)

    def reduce_scatter_out(
        self, input: Any, group_name: str, split_last_dim: bool, output: Any
    ) -> Any:
        assert not split_last_dim and input.dim() == output.dim() == 1
        source, target = plain(input), plain(output)

        def action(inner: Any) -> None:
            whole = source.clone()
            inner.allreduce([whole]).wait()
            target.copy_(whole.view(inner.size(), -1)[inner.rank()])

        self._queue("reduce_scatter", input, group_name, action, False)
        return output

    def multimem_all_gather_out(self, input: Any, group_name: str, out: Any) -> Any:
        source, target = plain(input), plain(out)

        def action(inner: Any) -> None:
            blocks = list(target.view(inner.size(), -1).unbind(0))
            inner.allgather([blocks], [source]).wait()

        self._queue("multimem_all_gather_out", out, group_name, action, True)
        return out


def torch_with(memory: SymmetricMemory, patch: Any) -> SimulatedTorch:
    """A simulated torch that has it; ``patch``, pytest's, changes the module of that memory."""
    module = importlib.import_module(MEMORY)
    patch.setattr(module, "get_backend", lambda kind: "CUDA" if kind == "cuda" else None)
    patch.setattr(module, "rendezvous", memory.rendezvous)
    patch.setattr(module, "enable_symm_mem_for_group", lambda name: None, raising=False)
    made = SimulatedTorch()
    made.ops = SimpleNamespace(symm_mem=Operators(memory))
    made._C = SimpleNamespace(
        _distributed_c10d=SimpleNamespace(_SymmetricMemory=memory), _autograd=torch._C._autograd
    )
    return made
