"""Where a Python stack stands: in a collective, in a wait, in the data loader, or in user code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.reading.torch_names import torch_collective

_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|torch|torchcoll|lib/python[\d.]+|python\d(?:\.\d+)?|importlib|"
    r"threading\.py|selectors\.py|queue\.py|multiprocessing|concurrent|runpy\.py|_pytest|nptl|"
    r"socket\.py|ssl\.py|subprocess\.py|contextlib\.py)(?:/|$)|^<(?!string|stdin|module)|\.so(?:\.\d+)*$|"
    r"^(?:threading|selectors|queue|runpy|socket|subprocess|contextlib)\.py$"
)
# Of a call these only pass it on: the packages of torch, and what captures the call.
_PASSES_ON = re.compile(r"(?:^|/)(?:torch|torchcoll/(?:parts/)?training)/")
_DISTRIBUTED = re.compile(
    r"torch/distributed/(?:distributed_c10d|_functional_collectives|c10d_logger)"
)
# Functions in which a rank waits for others or for the device, where no collective is named. In the
# engine of autograd DDP and FSDP wait without a frame of Python.
_WAITS = re.compile(
    r"(?:^|\.)(?:wait|_wait_impl|synchronize|wait_tensor|monitored_barrier|wait_stream|"
    r"finalize_backward|wait_for_all|_engine_run_backward)$"
)
_LOADER = re.compile(r"torch/utils/data/|(?:^|/)dataloader\.py$|multiprocessing/queues\.py$")
_NAMES = {*COLLECTIVES, "monitored_barrier", "send", "recv", "isend", "irecv"}


@dataclass(frozen=True)
class Frame:
    """A frame: file as the source names it, line, and function."""

    file: str
    line: int | None
    function: str

    @property
    def is_user(self) -> bool:
        """Whether it is code of the user: not of Python, torch or an installed package."""
        return not _LIBRARY.search(self.file)


def shown_frame(frame: Frame) -> str:
    name = "/".join(frame.file.split("/")[-2:]) if "/" in frame.file else frame.file
    where = name if frame.line is None else f"{name}:{frame.line}"
    return f"{where} {frame.function}"


def origin(frames: Iterable[Frame]) -> Frame | None:
    """The frame that made a call, of a stack with the innermost frame first: the first that is
    neither of torch nor of torchcoll's capture. If there is none, it is the first frame.
    """
    innermost = None
    for frame in frames:
        if not _PASSES_ON.search(frame.file):
            return frame
        innermost = innermost or frame
    return innermost


def describe(frames: Sequence[Frame]) -> tuple[str, str | None]:
    """(one line, collective) of a stack, innermost frame first.

    collective: a name of core/collectives.py or ``send`` and the like if the stack is within a call
    of torch.distributed, ``wait`` if it waits without saying in which call, None otherwise.
    """
    if not frames:
        return "", None
    user = next((frame for frame in frames if frame.is_user), None)
    above = list(frames) if user is None else list(frames[: frames.index(user)])
    collective: str | None = None
    for frame in above:
        name = _collective(frame)
        if name is not None:
            collective = name
    loads = any(_LOADER.search(frame.file) for frame in above)
    if collective is None and not loads and any(_WAITS.search(f.function) for f in above):
        collective = "wait"
    where = [shown_frame(frames[0])]
    if user is not None and user is not frames[0]:
        where.append(f"called from {shown_frame(user)}")
    if collective is not None:
        state = "waits" if collective == "wait" else f"in {collective}"
    elif loads:
        state = "in the data loader"
    elif user is frames[0]:
        state = "in user code"
    else:
        state = "in library code"
    return f"{state}: {', '.join(where)}", collective


def _collective(frame: Frame) -> str | None:
    if not (_DISTRIBUTED.search(frame.file) or "c10d" in frame.function):
        return None
    plain = frame.function.rpartition("::")[2].rpartition(".")[2]
    name = torch_collective(plain)
    return name if name in _NAMES or plain in _NAMES else None
