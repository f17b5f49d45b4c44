"""``torchcoll.capture``: every collective that training code sends, C++ included.

DDP's reducer, FSDP2, functional collectives, compiled models and point-to-point messages all come
through torch's ``c10d`` operators. While a capture runs, each of them has a kernel of ours above
those of the backends, at the dispatch key BackendSelect, which torch includes for every tensor and
in every thread, and which c10d leaves free. A TorchDispatchMode sees the same in one thread, but is
asked for every operator of the model too: steps of small models took 1.3 to 2 times as long, torch
2.6 recompiled compiled models, and DTensor and higher-order operators need care.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torchcoll.core.errors import TorchcollError, UnavailableError, UsageError, tell
from torchcoll.core.traffic import Traffic
from torchcoll.core.traffic_file import RANK_FILE
from torchcoll.train.decode import OPERATORS, Schema, decode, tensors
from torchcoll.train.device_times import DeviceTimes
from torchcoll.train.groups import capture_name, unboxed
from torchcoll.train.recorder import Call, Recorder

_NOT_TOLD = "{} calls of {} have no duration: {} does not tell when they end"
_NO_GROUP = "{} calls of {} are missing: their process group is not known"
_UNREAD = "{} calls of {} are missing: they could not be read ({})"
_active: Traffic | None = None


@contextmanager
def capture(path: str | os.PathLike[str] | None = None) -> Iterator[Traffic]:
    """Records the collectives of this rank in a Traffic, which is given at once and fills.

    path: a folder; at the end, also of a body that raised, this rank writes
    ``traffic-rank{r}.jsonl`` into it (``torchcoll trace FOLDER`` joins the ranks); where that is
    there already, as after a restart, ``traffic-rank{r}-2.jsonl`` beside it. None: no file.
    Begin and end it at the same place on all ranks: calls are joined by their number in the group;
    and where no other thread communicates. ``traffic.step()`` marks the end of a training step;
    what comes after the last mark belongs to no step. Calls appear in ``traffic.calls[rank]`` at a
    mark and at the end.

    Durations are from issue to completion on the CPU (clock ``host``): of a synchronous call until
    its wait is over; of an asynchronous one until Python hears of its end. On accelerators they are
    those of the backend's own events (clock ``device``; not proven). What could not be seen is in
    ``traffic.notes``. Never seen: what a CUDA graph replays, symmetric memory, and calls on a
    backend's own object. Nothing is added to operators that do not communicate.

    Raises UsageError outside of a process group, inside of another capture, and for a path that
    cannot be written; UnavailableError where torch has no distributed.
    """
    global _active
    if not dist.is_available():
        raise UnavailableError("capture", "torch without torch.distributed", "one that has it")
    if not dist.is_initialized():
        raise UsageError("capture", "no process group", "init_process_group before it")
    if _active is not None:
        raise UsageError("capture", "one inside of another", "one at a time")
    folder, rank = None if path is None else _folder(path), dist.get_rank()
    traffic, failed = Traffic(), True
    if folder and (name := capture_name(folder)):
        traffic.environment["capture"] = name
    _active = traffic
    try:
        with _Watch(traffic):
            yield traffic
        failed = False
    finally:
        _active = None
        if folder:
            try:
                file = _free(folder, rank)
                traffic.save(file)
                traffic.path = file
            except TorchcollError as error:
                if not failed:
                    raise
                tell(error.line())  # and let the body's own error through


def _folder(path: str | os.PathLike[str]) -> Path:
    """The folder, which is made."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise UsageError("path", repr(path), "a folder: each rank writes its own file")
    folder = Path(path).absolute()
    if folder.suffix in (".json", ".jsonl", ".gz") or folder.is_file():
        raise UsageError("path", folder, "a folder: each rank writes its own file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("path", folder, f"a folder that can be made ({error.strerror})") from None
    return folder


def _free(folder: Path, rank: int) -> Path:
    """The file of this rank, beside those of earlier captures."""
    file, number = folder / f"{RANK_FILE}{rank}.jsonl", 2
    while os.path.lexists(file):
        file, number = folder / f"{RANK_FILE}{rank}-{number}.jsonl", number + 1
    return file


class _Watch:
    """The kernels of ours, from ``with`` on to its end."""

    def __init__(self, traffic: Traffic) -> None:
        self._recorder = Recorder(traffic)
        self._device = DeviceTimes()
        self._thread = threading.local()

    def __enter__(self) -> None:
        self._kernels = torch.library.Library("c10d", "IMPL")
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("c10d::"):
                packet, _, overload = name.removeprefix("c10d::").partition(".")
                func = getattr(getattr(torch.ops.c10d, packet, None), overload or "default", None)
                schema = Schema.of(func) if func else None
                if schema and schema.communicates:
                    kernel = self._kernel(func, schema)
                    self._kernels.impl(name, kernel, "BackendSelect", with_keyset=True)
        self._recorder.begun = time.perf_counter_ns()

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._kernels._destroy()
        if kind is None:  # else the device may never be done
            self._device.finish()
        self._recorder.finish()

    def _kernel(self, func: Any, schema: Schema) -> Callable[..., Any]:
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            def issue() -> Any:
                return func.redispatch(keys & below, *args, **kwargs)

            # A process group written in Python may make its calls of others.
            if getattr(self._thread, "inside", False):
                return issue()
            self._thread.inside = True
            try:
                return self._record(schema, schema.bind(args, kwargs), issue)
            finally:
                self._thread.inside = False

        if "torch._dynamo" in sys.modules:  # or Dynamo would compile the kernel
            return torch._disable_dynamo(kernel)
        return kernel

    def _record(self, schema: Schema, bound: dict[str, Any], issue: Callable[[], Any]) -> Any:
        group = unboxed(bound.get("process_group", bound.get("group_name")))
        if group is None:
            self._recorder.note(_NO_GROUP.format("{}", schema.name))
            return issue()
        held = next(tensors(list(bound.values())), None)
        device = torch.device("cpu") if held is None else held.device
        if device.type != "cpu":
            self._device.ask(group)
        # What is in no table is known by what it returns. All else is read before the call: after
        # it a sparse tensor holds that of the other ranks too.
        known = schema.name in OPERATORS
        fields = self._decoded(schema, bound, None) if known else None
        call = self._recorder.begin()
        try:
            result = issue()
            waits = schema.asynchronous(bound)
            if device.type == "cpu":
                self._time(call, _work(result), waits, schema.name, group)
            else:
                self._device.watch(call, _work(result))
        except BaseException:
            self._recorder.drop(call)
            raise
        fields = fields if known else self._decoded(schema, bound, result)
        try:
            if fields is None:
                self._recorder.drop(call)
            else:
                self._recorder.add(call, {**fields, "asynchronous": waits}, group, device)
        except Exception as error:
            self._unread(schema, error)
            self._recorder.drop(call)
        return result

    def _decoded(self, schema: Schema, bound: dict[str, Any], result: Any) -> dict[str, Any] | None:
        try:
            return decode(schema.name, bound, result)
        except Exception as error:  # training goes on, whatever an operator to come looks like
            self._unread(schema, error)
            return None

    def _unread(self, schema: Schema, error: Exception) -> None:
        self._recorder.note(_UNREAD.format("{}", schema.name, type(error).__name__))

    def _time(self, call: Call, work: Any, waits: bool | None, name: str, group: Any) -> None:
        """Has the end of a call on the CPU stamped. Raises what the call's own wait would."""
        if work is None and name in OPERATORS:  # monitored_barrier returns when it is over
            call.end()
        elif work is not None and waits is False:
            # The caller waits next, so this waits instead: exact, for no other thread is asked.
            work.wait()
            call.end()
        else:
            try:
                future = call.future = work.get_future()
                future.add_done_callback(call.end)
            except (RuntimeError, AttributeError):
                call.future = None
                what = OPERATORS[name].collective if name in OPERATORS else name
                call.untold = _NOT_TOLD.format("{}", what, group.name())
        if name == "c10d::recv_any_source_":
            call.work = work


def _work(result: Any) -> Any:
    """The Work that an operator returned, alone or last; None where it has none."""
    last = result[-1] if isinstance(result, list | tuple) and result else result
    if not isinstance(last, torch.ScriptObject):
        return None
    return torch._C._distributed_c10d.Work.unbox(last)
