"""When the program waits for its calls, and the ends of calls whose Work has no future.

gloo has no future for send, recv and reduce_scatter: they end when the program's wait returns. The
capture cannot wait for them itself, because a second wait for a message never returns. So while a
capture runs, it watches the program's waits: the method ``wait`` of torch's Work, and for
functional collectives the operator ``wait_tensor``, whose C++ code waits by itself. torch.profiler
ends these calls at the same point.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torchcoll.parts.training.recorded_calls import RecordedCall


_MOST_WATCHED = 1024  # before those that are in the traffic already are forgotten


class Waits:
    """The calls that end with a wait, watched from ``start`` to ``stop``."""

    def __init__(self) -> None:
        # By address. Each call holds its Work, so that no other can get the same address.
        self._works: dict[int, RecordedCall] = {}
        self._storages: dict[int, RecordedCall] = {}

    def watch(self, call: RecordedCall, work: Any, received: Iterable[torch.Tensor]) -> None:
        """Registers a call to learn of the wait for its Work, which ends it if nothing else has.

        - received: the tensors that the call fills, which functional collectives wait for.
        """
        if len(self._works) > _MOST_WATCHED:  # the program did not wait for them all
            for watched in (self._works, self._storages):
                for key in [key for key, each in watched.items() if each.work is None]:
                    del watched[key]
        call.work = work
        self._works[id(work)] = call
        for tensor in received:
            if tensor.layout is torch.strided:
                self._storages[_address(tensor)] = call

    def start(self) -> None:
        kind, works = torch._C._distributed_c10d.Work, self._works
        torch_wait = self.torch_wait = kind.wait  # torch's own, without the watching

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter_ns()
            result = torch_wait(work, *args, **kwargs)
            if works:
                self._end(works.pop(id(work), None), begun)
            return result

        kind.wait = wait  # type: ignore[assignment,method-assign]
        func = torch.ops._c10d_functional.wait_tensor.default
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

        def kernel(keys: Any, tensor: torch.Tensor) -> Any:
            begun = time.perf_counter_ns()
            result = func.redispatch(keys & below, tensor)
            if self._storages:
                self._end(self._storages.pop(_address(tensor), None), begun)
            return result

        if "torch._dynamo" in sys.modules:  # or Dynamo would compile the kernel
            kernel = torch._disable_dynamo(kernel)
        self._kernels = torch.library.Library("_c10d_functional", "IMPL")
        self._kernels.impl("wait_tensor", kernel, "BackendSelect", with_keyset=True)

    def stop(self) -> None:
        torch._C._distributed_c10d.Work.wait = self.torch_wait  # type: ignore[method-assign]
        self._kernels._destroy()
        self._works.clear()
        self._storages.clear()

    def _end(self, call: RecordedCall | None, begun: int) -> None:
        if call is not None:
            call.waited_from = begun
            call.end()
            call.pending = False


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
