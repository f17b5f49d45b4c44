"""Whose parameters or gradients a captured call moves: a unit of FSDP2, a bucket of DDP.

FSDP2 issues its calls in two methods of FSDPParamGroup, which has the names of its modules. They
are found among the callers of the operator, a few frames above it, so nothing of torch is
replaced. Buckets are in training/ddp_buckets.py. Where torch lacks one of the private attributes
used here, a call has no name.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from torchcoll.core.traffic import ROOT
from torchcoll.parts.training.ddp_buckets import BucketCalls, numbered

if TYPE_CHECKING:
    from torchcoll.parts.training.recorded_calls import RecordedCall

_FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_FUNCTIONS = "torch.distributed.distributed_c10d"
_ISSUING = ("unshard", "post_backward")  # methods of FSDPParamGroup
_MOST_FRAMES = 20  # from the operator to the method; it is about 10


class ModuleNames:
    """Names the calls of one rank.

    - on_parameters: called with a name and the names of its parameters, before it is first used.
    """

    def __init__(self, on_parameters: Callable[[str, tuple[str, ...]], object]) -> None:
        self._on_parameters = on_parameters
        self._buckets = BucketCalls(on_parameters)
        self._node = getattr(torch._C, "_current_autograd_node", lambda: None)
        self._units: dict[int, str] = {}  # by the id of the FSDPParamGroup
        self._issuing: frozenset[Any] = frozenset()  # code of the methods of FSDP2

    def find_fsdp(self) -> None:
        """Looks for FSDP2, which the program may have imported since."""
        owner = getattr(sys.modules.get(_FSDP), "FSDPParamGroup", None)
        functions = (inspect.unwrap(getattr(owner, name, len)) for name in _ISSUING)
        codes = (getattr(function, "__code__", None) for function in functions)
        self._issuing = frozenset(code for code in codes if code)

    def find_models(self) -> None:
        """Finds the DDP models of the process; must not run while calls are in flight."""
        self._buckets.find_models()

    def set_module(self, call: RecordedCall, sent: Any) -> None:
        """Sets the module of a call that is being issued by this thread, now or later.

        - sent: the argument that holds what is sent.
        """
        try:
            node: Any = self._node()
            if type(node).__name__ == "AccumulateGrad" and not _from_python():
                self._buckets.add(call, node.variable, sent)
            elif self._issuing:
                call.module = self._unit()
        except Exception:  # a future version of torch must not end the training
            call.pending = False

    def _unit(self) -> str:
        """Returns the names of the modules whose FSDPParamGroup issues the call."""
        for frame in _callers(sys._getframe(3)):
            if frame.f_code in self._issuing:
                group = frame.f_locals.get("self")
                name = getattr(group, "_module_fqn", None)
                if not isinstance(name, str):
                    break
                return self._units.get(id(group)) or self._new_unit(group, name or ROOT)
        return ""

    def _new_unit(self, group: Any, name: str) -> str:
        """Returns the name, which is numbered where units of several models have the same."""
        unit = self._units[id(group)] = numbered(name, self._units.values())
        parameters = (getattr(p, "_param_fqn", None) for p in getattr(group, "fsdp_params", ()))
        self._on_parameters(unit, tuple(n for n in parameters if isinstance(n, str)))
        return unit


def _from_python() -> bool:
    """Whether the program issues the call by a function of torch.distributed, as DDP does not.

    A hook of a parameter may: its call then has as many elements as a bucket by accident. So may a
    communication hook of DDP, whose calls have no name for that reason.
    """
    return any(
        frame.f_globals.get("__name__") == _FUNCTIONS for frame in _callers(sys._getframe(2))
    )


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields the frame and those of its callers."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        yield frame
        frame = frame.f_back
