"""``torchcoll.capture``: every collective that training code sends, C++ included.

DDP's reducer, FSDP2, functional collectives, compiled models and point-to-point messages all come
through torch's ``c10d`` operators. While a capture runs, each of them has a kernel of ours above
those of the backends, at the dispatch key BackendSelect, which torch includes for every tensor and
in every thread, and which c10d leaves free. A TorchDispatchMode sees the same in one thread, but is
asked for every operator of the model too: steps of small models took 1.3 to 2 times as long, torch
2.6 recompiled compiled models, and DTensor and higher-order operators need care.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torchcoll.core.errors import UnavailableError, UsageError
from torchcoll.core.traffic import Traffic, records_of
from torchcoll.training.capture_file import NO_ROOM, CaptureFile, open_rank_file, say
from torchcoll.training.decode import (
    OPERATORS,
    Schema,
    decode,
    tensors,
)
from torchcoll.training.device_times import DeviceTimes
from torchcoll.training.group_names import unbox_group
from torchcoll.training.recorded_calls import CallRecorder, RecordedCall
from torchcoll.training.waits import Waits

if TYPE_CHECKING:
    from torchcoll.training.sampled import Sampling, StepMetrics

_NOT_TOLD = "{} calls of {} have no duration: {} does not tell when they end"
_WAITED = (
    "{} calls of {} end when the program has waited for them: {} does not tell whether they ended "
    "before"
)
_NO_GROUP = "{} calls of {} are missing: their process group is not known"
_UNREAD = "{} calls of {} are missing: they could not be read ({})"
_RANK_0 = timedelta(minutes=1)  # to begin its capture; then others go on without its word
_captures: Counter[Path] = Counter()  # of this process, by the folder
_with_metrics = itertools.count()  # of this process
_active: Traffic | None = None
_CPU = torch.device("cpu")


@contextmanager
def capture(
    path: str | os.PathLike[str] | None = None,
    *,
    every: int = 1,
    metrics: str | os.PathLike[str] | None = None,
) -> Iterator[Traffic]:
    """Records the collectives of this rank in a Traffic, which is given at once and fills.

    path: a folder. This rank writes ``traffic-rank{r}.jsonl`` into it, or
    ``traffic-rank{r}-2.jsonl`` where that exists, as after a restart. ``torchcoll trace FOLDER``
    joins the ranks. Calls that have ended are written at each mark of a step, after 256 calls, and
    at the next call after a second: a process that is killed loses only later ones, and its file
    loads with a warning. None: no file.
    A full disk never ends the training: the capture prints one warning, and the file keeps what it
    has. An exception in the block is recorded in ``traffic.end``. A process that is forked inside
    the block writes nothing.
    Memory holds the first 100 000 calls (50 MB), in whole steps, and at most 20 000 calls (20 MB)
    that have not ended. The file has all calls.
    Begin and end it at the same place on all ranks: calls are joined by their number in the group;
    and where no other thread communicates. ``traffic.step()`` marks the end of a training step;
    what comes after the last mark belongs to no step. Calls appear in ``traffic.calls[rank]`` when
    they have ended, at the latest at the end.

    every: of so many steps one is captured, the second of all first, for hours: between them there
    is nothing but the mark. At most 512 are kept: then every second one of them goes, and ``every``
    is twice as large. They are written at the end alone. ``torchcoll trace`` then tells drift and
    late ranks over time.
    metrics: a file ``NAME.prom`` that rank 0 writes anew after each captured step, in the format of
    node_exporter's textfile collector: its number, time, transfer, wait and slowest rank.
    With either no other thread may communicate at a mark, as at the begin and the end.

    Durations are from issue to completion on the CPU (clock ``host``): of a synchronous call until
    its wait is over; of an asynchronous one until Python hears of its end. On accelerators they are
    those of the backend's own events (clock ``device``; not proven). What could not be seen is in
    ``traffic.notes``. Never seen: what a CUDA graph replays, symmetric memory, and calls on a
    backend's own object. Nothing is added to operators that do not communicate.

    Raises UsageError outside of a process group, inside of another capture, for a path that cannot
    be written (on the ranks that cannot), for ``metrics`` that rank 0 cannot write (on all ranks),
    and for an ``every`` that is no whole number from 1 on; UnavailableError where torch has no
    distributed.
    """
    global _active
    if not dist.is_available():
        raise UnavailableError("capture", "torch without torch.distributed", "one that has it")
    if not dist.is_initialized():
        raise UsageError("capture", "no process group", "init_process_group before it")
    if _active is not None:
        raise UsageError("capture", "one inside of another", "one at a time")
    if type(every) is not int or every < 1:
        raise UsageError("every", every, "a whole number of steps from 1 on")
    folder, rank = None if path is None else _folder(path), dist.get_rank()
    reported = None if metrics is None else _metrics(metrics, rank)
    traffic, process = Traffic(), os.getpid()
    if folder and (name := _capture_name(folder)):
        traffic.environment["capture"] = name
    file = _opened(folder, rank, traffic) if folder and every == 1 else None
    watch = _Watch(traffic, every, reported, file)
    traffic.end = {}
    _active = traffic
    try:
        with watch:
            yield traffic
        traffic.end = {"status": "complete"}
    except BaseException as error:
        status = "failed" if isinstance(error, Exception) else "interrupted"
        traffic.end = {"status": status, "reason": type(error).__name__}
        raise
    finally:
        _active = None
        if os.getpid() == process:  # else a fork leaves the block: it is its parent's
            if file:
                file.end(watch.notes)
            elif folder and every > 1:
                _save(traffic, folder, rank)


def _opened(folder: Path, rank: int, traffic: Traffic) -> CaptureFile | None:
    writer = open_rank_file(folder, rank)
    if writer is None:
        return None
    traffic.path = writer.path
    return CaptureFile(writer, traffic)


def _save(traffic: Traffic, folder: Path, rank: int) -> None:
    """What was sampled, of which steps may go until the end."""
    try:
        file = _opened(folder, rank, traffic)
    except UsageError as error:  # the folder was there as the capture began
        say(str(error))
        return
    if file:
        for record, data in records_of(traffic):
            file.add(record, data)
        file.close()


def _capture_name(folder: Path) -> str | None:
    """The same on all ranks for their captures of that number into the folder, and later than those
    before: when the first rank began it. None where the ranks have no store in common.
    """
    _captures[folder] += 1
    utc = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
    key = f"torchcoll/capture/{folder}/{restart}/{_captures[folder]}"
    try:
        store = dist.distributed_c10d._get_default_store()
        stated: bytes = store.compare_set(key, "", f"{utc} {secrets.token_hex(4)}")
        return stated.decode()
    except Exception:  # stores of others: training goes on without
        return None


def _metrics(path: str | os.PathLike[str], rank: int) -> StepMetrics:
    """Of this capture, as all ranks count them. Raises UsageError for rank 0's file, on all ranks:
    else they would go on into a collective that rank 0 never makes.
    """
    from torchcoll.core.metrics import check_metrics, metrics_name
    from torchcoll.training.sampled import StepMetrics

    # Without the path, which may be of the node.
    name = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_with_metrics)}"
    store = dist.distributed_c10d._get_default_store()
    refused, key = "", f"torchcoll/metrics/{name}/refused"
    if rank == 0:
        try:
            check_metrics(path)
        except UsageError as error:
            refused = str(error)
    with contextlib.suppress(Exception):  # a store that is gone, which StepMetrics tells
        if rank == 0:
            store.set(key, refused)
        else:
            store.wait([key], _RANK_0)
            refused = store.get(key).decode()
    if refused:
        raise UsageError(refused)
    return StepMetrics(metrics_name(path), store, name, rank, dist.get_world_size())


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
        if error.errno not in NO_ROOM:
            reason = f"a folder that can be made ({error.strerror})"
            raise UsageError("path", folder, reason) from None
    return folder  # where there is no room for it, there is none for its files either


class _Watch:
    """The kernels of ours, from ``with`` on to its end, or in the steps that are sampled."""

    def __init__(
        self,
        traffic: Traffic,
        every: int = 1,
        metrics: StepMetrics | None = None,
        file: CaptureFile | None = None,
    ) -> None:
        self._traffic = traffic
        self._recorder = CallRecorder(traffic)
        self._device = DeviceTimes()
        self._waits = Waits()
        self._thread = threading.local()
        self._kernels: Any = None  # while calls are seen
        self._ours: dict[str, Callable[..., Any]] = {}  # by the operator
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("c10d::"):
                packet, _, overload = name.removeprefix("c10d::").partition(".")
                func = getattr(getattr(torch.ops.c10d, packet, None), overload or "default", None)
                schema = Schema.of(func) if func else None
                if schema and schema.communicates:
                    self._ours[name] = self._kernel(func, schema)
        self._every, self._metrics = every, metrics
        self._file = file
        self._process = os.getpid()
        self.notes: list[str] = []  # at the end: what could not be seen

    def __enter__(self) -> None:
        self._recorder.begun = time.perf_counter_ns()
        if self._every == 1:
            self._recorder.stream(self._file)
        self._sampling: Sampling | None = None
        if self._every == 1 and self._metrics is None:
            self._on()
            return
        from torchcoll.training.sampled import Sampling

        own = (self._on, self._off, self._device.poll)
        self._sampling = Sampling(self._every, self._recorder, *own, self._metrics)
        self._traffic.mark_step = self._sampling.step

    def __exit__(self, kind: Any, *_: Any) -> None:
        if os.getpid() != self._process:  # forked: calls, device and file are the parent's
            return
        self._off()
        if kind is None:  # else the device may never be done
            self._device.finish()
        self.notes = self._recorder.finish()
        sampling = self._sampling
        if sampling and sampling.every > 1:
            self._traffic.environment["every"] = sampling.every
            self._traffic.notes.append(
                f"a step in {sampling.every} was captured: step k here is step "
                f"1 + {sampling.every} k of the {sampling.marked} that were marked"
            )

    def _on(self) -> None:
        self._kernels = torch.library.Library("c10d", "IMPL")
        for name, kernel in self._ours.items():
            if "torch._dynamo" in sys.modules:  # or Dynamo would compile the kernel
                kernel = torch._disable_dynamo(kernel)
            self._kernels.impl(name, kernel, "BackendSelect", with_keyset=True)
        self._waits.start()

    def _off(self) -> None:
        if self._kernels is not None:
            self._kernels._destroy()
            self._waits.stop()
        self._kernels = None

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

        return kernel

    def _record(self, schema: Schema, bound: dict[str, Any], issue: Callable[[], Any]) -> Any:
        group = unbox_group(bound.get("process_group", bound.get("group_name")))
        if group is None:
            self._recorder.note(_NO_GROUP.format("{}", schema.name))
            return issue()
        operator = OPERATORS.get(schema.name)
        held: Any = bound.get(operator.sent or operator.received) if operator else None
        while isinstance(held, list | tuple):  # as ``tensors`` gives it, with less to run
            held = held[0] if held else None
        if not isinstance(
            held, torch.Tensor
        ):  # a list whose first is empty, or an operator that is in no table
            held = next(tensors(list(bound.values())), None)
        device = _CPU if held is None else held.device
        on_host = device.type == "cpu"
        if not on_host:
            self._device.enable_timing(group)
        # Read when the call is on its way, so that its peers need not wait for that: in a step most
        # of what Python does for the first time takes ten times as long as in a loop. But after it
        # a sparse tensor holds that of the other ranks too.
        sparse = held is not None and held.layout is not torch.strided
        early = sparse and operator is not None
        fields = self._decoded(schema, bound, None) if early else None
        call = self._recorder.begin()
        try:
            result = issue()
            waits = schema.asynchronous(bound)
            if on_host:
                self._time(call, _work(result), waits, schema.name, group, bound)
            else:
                self._device.watch(call, _work(result))
        except BaseException:
            self._recorder.drop(call)
            raise
        fields = fields if early else self._decoded(schema, bound, result)
        try:
            if fields is None:
                self._recorder.drop(call)
            else:
                fields["asynchronous"] = waits
                self._recorder.add(call, fields, group, device)
        except Exception as error:
            self._recorder.note(_UNREAD.format("{}", schema.name, type(error).__name__))
            self._recorder.drop(call)
        return result

    def _decoded(self, schema: Schema, bound: dict[str, Any], result: Any) -> dict[str, Any] | None:
        try:
            return decode(schema.name, bound, result)
        except Exception as error:  # training goes on, whatever an operator to come looks like
            self._recorder.note(_UNREAD.format("{}", schema.name, type(error).__name__))
            return None

    def _time(
        self,
        call: RecordedCall,
        work: Any,
        waits: bool | None,
        name: str,
        group: Any,
        bound: dict[str, Any],
    ) -> None:
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
                known = OPERATORS.get(name)
                what = known.collective if known else name
                if known is None or work is None:
                    call.unstated = _NOT_TOLD.format("{}", what, group.name())
                else:
                    call.waited = _WAITED.format("{}", what, group.name())
                    self._waits.watch(call, work, tensors(bound.get(known.received)))
        if name == "c10d::recv_any_source_":
            call.work = work


def _work(result: Any) -> Any:
    """The Work that an operator returned, alone or last; None where it has none."""
    last = result[-1] if isinstance(result, list | tuple) and result else result
    if not isinstance(last, torch.ScriptObject):
        return None
    return torch._C._distributed_c10d.Work.unbox(last)
