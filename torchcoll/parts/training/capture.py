"""``torchcoll.capture`` records every collective that training code sends, including those from
C++.

DDP's reducer, FSDP2, functional collectives, compiled models and point-to-point messages all go
through torch's ``c10d`` operators. While a capture runs, each of these operators has a kernel of
ours above those of the backends, at the dispatch key BackendSelect, which torch includes for every
tensor and in every thread, and which c10d does not use. A TorchDispatchMode runs for every operator
of the model in one thread: steps of small models took 1.3 to 2 times as long.
"""

from __future__ import annotations

import itertools
import os
import secrets
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchcoll.core.errors import UnavailableError, UsageError, one_line
from torchcoll.core.traffic import Group, Traffic
from torchcoll.core.variables import masked
from torchcoll.parts.training.call_ends import DeviceTimes, Waits
from torchcoll.parts.training.decode import Schema, tensors
from torchcoll.parts.training.module_names import ModuleNames
from torchcoll.parts.training.recorded_calls import (
    CallRecorder,
    GroupNames,
    RecordedCall,
    unbox_group,
)
from torchcoll.parts.training.ring_file import (
    NO_ROOM,
    CaptureFile,
    RingEntry,
    RingFile,
    StallWatch,
)

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from torchcoll.parts.training.sampled import Sampling, StepMetrics

_NO_DURATION = "{} calls of {} have no duration: {} does not tell when they end"
_ENDS_WITH_WAIT = (
    "{} calls of {} end when the program has waited for them: {} does not tell whether they ended "
    "before"
)
_NO_GROUP = "{} calls of {} are missing: their process group is not known"
_UNREAD = "{} calls of {} are missing: they could not be read ({})"
_NO_ENTRY = "{} calls are missing in the ring file ({})"
_LONGEST_MESSAGE = 300  # of an exception that ended the capture
_captures: Counter[Path] = Counter()  # captures of this process, by folder
_metrics_count = itertools.count()  # captures with metrics of this process
_active: Traffic | None = None
_CPU = torch.device("cpu")


@contextmanager
def capture(
    path: str | os.PathLike[str] | None = None,
    *,
    every: int = 1,
    metrics: str | os.PathLike[str] | None = None,
    on_hang: str | None = None,
) -> Iterator[Traffic]:
    """Records the collectives of this rank in a Traffic, which is returned at once and fills up.

    - path: a folder. This rank writes ``traffic-rank{r}.jsonl`` into it, or
      ``traffic-rank{r}-2.jsonl`` if that exists, for example after a restart. ``torchcoll trace
      FOLDER`` joins the ranks. Calls that have ended are written at each mark of a step, after 256
      calls, and at the next call after a second. A killed process loses only later calls, and its
      file loads with a warning. None: no file.
    - every: N captures one step in N, beginning with the second of all, for trainings of hours. In
      the other steps only the mark remains. ``torchcoll trace`` then shows drift and late ranks
      over time.
    - metrics: a file ``NAME.prom`` that rank 0 rewrites after each captured step, in the format of
      node_exporter's textfile collector: the step's number, duration, transfer, wait and slowest
      rank. With ``every`` or ``metrics`` no other thread may communicate at a mark.
    - on_hang: ``"dump"`` keeps the last 4096 calls of this rank in ``calls-rank{r}.ring`` (320 KiB)
      in the folder, from the moment before each is issued, with every backend and in every step.
      The file survives SIGKILL of the process (not a crash of its node). If no call begins or ends
      for 30 s, or for half the timeout of the default group where that is less, a thread writes
      the Python stacks of all threads to ``stacks-rank{r}.txt``; again after twice the time, and so
      on. ``torchcoll postmortem FOLDER`` reads both.

    ``traffic.step()`` marks the end of a training step; calls after the last mark belong to no
    step. Until the training marks one, each step of the optimizer that steps first is a mark.
    Calls appear in ``traffic.calls[rank]`` when they have ended, at the latest at the end of the
    capture. Begin and end the capture at the same place on all ranks, because calls are joined by
    their number in the group, and where no other thread communicates.

    A full disk does not end the training: the capture prints one warning, and the file keeps what
    it has. A file of metrics that cannot be written is a warning too. An exception in the block is
    recorded in ``traffic.end``. A process that is forked inside the block writes nothing.
    docs/gradients.md has the limits of memory and what a capture never sees; ``traffic.notes``
    lists what could not be seen.

    Raises UsageError outside of a process group, inside of another capture, for a path that cannot
    be written (on the ranks that cannot), and for another argument out of range; UnavailableError
    if torch has no distributed package.
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
    if on_hang not in (None, "dump"):
        raise UsageError("on_hang", on_hang, 'None or "dump"')
    if on_hang and path is None:
        action = "Name it: capture(FOLDER, on_hang=...)."
        raise UsageError("on_hang", on_hang, "a folder for the files that it writes", action)
    folder, rank = None if path is None else _folder(path), dist.get_rank()
    step_metrics = None if metrics is None else _open_metrics(metrics)
    traffic, process = Traffic(), os.getpid()
    if folder and (name := _capture_name(folder)):
        traffic.environment["capture"] = name
    if every > 1:
        traffic.environment["every"] = every
    file = CaptureFile.open(folder, rank, traffic) if folder else None
    ring = None
    if folder and on_hang:
        ring = RingFile.open(folder, traffic.environment.get("capture"))
    watch = _Recording(traffic, every, step_metrics, file, ring)
    traffic.end = {}
    _active, ended_by = traffic, None
    try:
        with watch:
            yield traffic
        traffic.end = {"status": "complete"}
    except BaseException as error:
        status = "failed" if isinstance(error, Exception) else "interrupted"
        message = masked(one_line(error))[:_LONGEST_MESSAGE]
        traffic.end = {"status": status, "reason": type(error).__name__, "message": message}
        ended_by = error
        raise
    finally:
        _active = None
        if os.getpid() == process:  # in a forked process the files belong to its parent
            if ring:
                ring.end(traffic.end["status"], ended_by)
            if file:
                file.end(watch.notes)


def _capture_name(folder: Path) -> str | None:
    """Returns a name for the capture that is the same on all ranks and sorts after earlier
    captures.

    It is the time at which the first rank began this capture into the folder. None if the ranks
    have no common store.
    """
    _captures[folder] += 1
    utc = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
    key = f"torchcoll/capture/{folder}/{restart}/{_captures[folder]}"
    try:
        store = dist.distributed_c10d._get_default_store()
        name: bytes = store.compare_set(key, "", f"{utc} {secrets.token_hex(4)}")
        return name.decode()
    except Exception:  # a third-party store: the training goes on without a name
        return None


def _open_metrics(path: str | os.PathLike[str]) -> StepMetrics:
    """Returns the metrics of this capture; a file that rank 0 cannot write gives a warning later.

    Raises UsageError for another name than NAME.prom.
    """
    from torchcoll.core.metrics import metrics_name
    from torchcoll.parts.training.sampled import StepMetrics

    # Without the path, which may differ between nodes.
    name = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_metrics_count)}"
    store = dist.distributed_c10d._get_default_store()
    return StepMetrics(metrics_name(path), store, name, dist.get_rank(), dist.get_world_size())


def _folder(path: str | os.PathLike[str]) -> Path:
    """Makes the folder and returns it."""
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
    return folder  # if there is no room for the folder, opening the file fails too


class _Recording:
    """Installs our kernels, for the whole ``with`` block or for the sampled steps in it.

    With a ring the kernels stay for the whole block: in steps that are not sampled, calls are in
    the ring alone.
    """

    def __init__(
        self,
        traffic: Traffic,
        every: int = 1,
        metrics: StepMetrics | None = None,
        file: CaptureFile | None = None,
        ring: RingFile | None = None,
    ) -> None:
        self._traffic = traffic
        self._ring = ring
        self._stall_watch: StallWatch | None = None
        self._recorder = CallRecorder(traffic)
        self._groups = GroupNames(traffic)
        self._module_names = ModuleNames(self._recorder.add_parameters)
        self._module_names.find_models()
        self._recorder.on_mark = self._module_names.find_models  # those that were made since
        self._device = DeviceTimes()
        self._waits = Waits()
        self._without_future: set[tuple[str, str]] = set()  # operators of backends
        self._thread = threading.local()
        self._kernels: Any = None  # while calls are recorded
        self._kernels_by_name: dict[str, Callable[..., Any]] = {}  # by the name of the operator
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("c10d::"):
                packet, _, overload = name.removeprefix("c10d::").partition(".")
                func = getattr(getattr(torch.ops.c10d, packet, None), overload or "default", None)
                schema = Schema.of(func) if func else None
                if schema and schema.communicates:
                    self._kernels_by_name[name] = self._kernel(func, schema)
        self._every, self._metrics = every, metrics
        self._optimizer_marks = _OptimizerMarks(traffic)
        self._file = file
        self._recording = False  # whether calls are recorded for the traffic
        self._process = os.getpid()
        self.notes: list[str] = []  # at the end: what could not be seen

    def __enter__(self) -> None:
        self._recorder.begin_capture(self._file)
        self._sampling: Sampling | None = None
        if self._ring:
            self._install()
            self._stall_watch = StallWatch(self._ring, self._traffic.environment.get("capture"))
        if self._every == 1 and self._metrics is None:
            self._on()
            self._optimizer_marks.start()
            return
        from torchcoll.parts.training.sampled import Sampling

        callbacks = (self._on, self._off, self._device.poll)
        self._sampling = Sampling(self._every, self._recorder, *callbacks, self._metrics)
        self._traffic.mark_step = self._sampling.step
        self._optimizer_marks.start()

    def __exit__(self, kind: Any, *_: Any) -> None:
        if os.getpid() != self._process:  # forked: calls, device and file are the parent's
            return
        if self._stall_watch:
            self._stall_watch.stop()
        self._optimizer_marks.stop()
        self._recording = False
        self._uninstall()
        if kind is None:  # after an exception the device may never finish
            self._device.finish()
        self.notes = self._recorder.finish()
        if self._sampling and self._every > 1:
            note = (
                f"a step in {self._every} was captured: step k here is step "
                f"1 + {self._every} k of the {self._sampling.marked} that were marked"
            )
            self._traffic.notes.append(note)
            self.notes.append(note)

    def _on(self) -> None:
        self._recording = True
        if not self._ring:
            self._install()

    def _off(self) -> None:
        self._recording = False
        if not self._ring:
            self._uninstall()

    def _install(self) -> None:
        self._module_names.find_fsdp()
        self._kernels = torch.library.Library("c10d", "IMPL")
        for name, kernel in self._kernels_by_name.items():
            if "torch._dynamo" in sys.modules:  # or Dynamo would compile the kernel
                kernel = torch._disable_dynamo(kernel)
            self._kernels.impl(name, kernel, "BackendSelect", with_keyset=True)
        self._waits.start()

    def _uninstall(self) -> None:
        if self._kernels is not None:
            self._kernels._destroy()
            self._waits.stop()
        self._kernels = None

    def _kernel(self, func: Any, schema: Schema) -> Callable[..., Any]:
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        thread, record_call = self._thread, self._record_call

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            def issue() -> Any:
                return func.redispatch(keys & below, *args, **kwargs)

            # A process group written in Python may make its calls through other process groups.
            if getattr(thread, "inside", False):
                return issue()
            thread.inside = True
            try:
                return record_call(schema, schema.fill(args, kwargs), issue)
            finally:
                thread.inside = False

        return kernel

    def _record_call(self, schema: Schema, values: Sequence[Any], issue: Callable[[], Any]) -> Any:
        group = unbox_group(schema.group(values))
        if group is None:
            self._recorder.note(_NO_GROUP.format("{}", schema.name))
            return issue()
        first_tensor = schema.first_tensor(values)
        device = _CPU if first_tensor is None else first_tensor.device
        on_host = device.type == "cpu"
        if not on_host:
            self._device.enable_timing(group)
        seen_group = self._groups.group(group, device)
        # Arguments are decoded while the call runs, so that its peers need not wait: what Python
        # does once per step takes ten times as long as in a loop. A sparse tensor is decoded
        # before, because afterwards it contains the data of the other ranks too; and all calls are
        # with a ring, because a call may never return.
        sparse = first_tensor is not None and first_tensor.layout is not torch.strided
        early = schema.operator is not None and (sparse or self._ring is not None)
        fields = None
        if early or self._ring:
            fields = self._decode_call(schema, values, None, seen_group)
        entry = self._ring_entry(fields, seen_group, on_host) if fields else None
        recording = self._recording
        call = self._recorder.begin() if recording else RecordedCall(0)
        call.entry = entry
        timer = None
        if not on_host and schema.asynchronous(values) is False:
            timer = self._device.start(device)
        try:
            result = issue()
            if recording and not early:
                fields = self._decode_call(schema, values, result, seen_group)
            if recording and schema.operator is not None:
                self._module_names.set_module(call, schema.sent(values))
            if on_host:
                self._time_call(call, _work(result), schema, values, seen_group)
            else:
                self._device.watch(call, _work(result), timer)
        except BaseException as error:
            if entry:
                entry.fail(error)
            if recording:
                self._recorder.drop(call)
            raise
        if not recording:
            return result
        try:
            if fields is None:
                self._recorder.drop(call)
            else:
                self._recorder.add(call, fields, schema.op(values))
        except Exception as error:
            self._recorder.note(_UNREAD.format("{}", schema.name, type(error).__name__))
            self._recorder.drop(call)
        return result

    def _ring_entry(self, fields: dict[str, Any], group: Group, on_host: bool) -> RingEntry | None:
        """Adds a call that is about to be issued to the ring."""
        try:
            return self._ring.begin(group, fields, on_host) if self._ring else None
        except Exception as error:  # a future version of torch must not end the training
            self._recorder.note(_NO_ENTRY.format("{}", type(error).__name__))
            return None

    def _decode_call(
        self, schema: Schema, values: Sequence[Any], result: Any, group: Group
    ) -> dict[str, Any] | None:
        try:
            return schema.fields(values, result, group)
        except Exception as error:  # a future version of an operator must not end the training
            self._recorder.note(_UNREAD.format("{}", schema.name, type(error).__name__))
            return None

    def _time_call(
        self, call: RecordedCall, work: Any, schema: Schema, values: Sequence[Any], group: Group
    ) -> None:
        """Arranges that the end of a call on the CPU is stamped. Raises what the call's own wait
        raises.
        """
        operator, waits = schema.operator, schema.asynchronous(values)
        if work is None and operator is not None:  # monitored_barrier returns when it is over
            call.end()
            call.waited_from = call.start
        elif work is not None and waits is False:
            # The caller waits next anyway. Waiting here is exact: no other thread is involved.
            self._waits.torch_wait(work)
            call.end()
            call.waited_from = call.start
        elif (schema.name, group.backend) in self._without_future or not self._end_by_future(
            call, work
        ):
            # gloo raises for each such call, which takes far longer than the rest of this.
            self._without_future.add((schema.name, group.backend))
            what = operator.collective if operator else schema.name
            if operator is None or work is None:
                call.no_time_reason = _NO_DURATION.format("{}", what, group.backend)
            else:
                call.wait_note = _ENDS_WITH_WAIT.format("{}", what, group.backend)
                if call.entry and not waits:
                    call.entry.set_uncertain()
                self._waits.watch(call, work, tensors(schema.received(values)))
        elif not call.pending:  # the program waits for it, not DDP's reducer
            call.pending = True
            self._waits.watch(call, work, tensors(schema.received(values)))
        if schema.name == "c10d::recv_any_source_":
            call.work = work

    def _end_by_future(self, call: RecordedCall, work: Any) -> bool:
        """Makes the end of the Work stamp the call, unless it has no future."""
        try:
            future = call.future = work.get_future()
            future.add_done_callback(call.end)
            return True
        except (RuntimeError, AttributeError):
            call.future = None
            return False


class _OptimizerMarks:
    """Marks a step after each step of the optimizer that steps first, until the training marks one
    itself with ``traffic.step()``.

    A compiled optimizer marks nothing: the compiler would break its graph here.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._mark: Callable[[], object]
        self._optimizer: weakref.ref[torch.optim.Optimizer] | None = None
        self._handle: RemovableHandle | None = None

    def start(self) -> None:
        """Begins to mark. ``traffic.mark_step`` is set already."""
        assert self._traffic.mark_step is not None
        self._mark = self._traffic.mark_step
        self._traffic.mark_step = self._first_of_training
        self._handle = register_optimizer_step_post_hook(self._after_step)

    def stop(self) -> None:
        if self._handle:
            self._handle.remove()
        self._handle = None

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._optimizer is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer:
            self._mark()

    def _first_of_training(self) -> None:
        """Marks a step, unless an optimizer has: the first mark of a training follows its step."""
        self.stop()
        self._traffic.mark_step = self._mark
        if self._optimizer is None:
            self._mark()


def _work(result: Any) -> Any:
    """Returns the Work that an operator returned, alone or last; None if there is none."""
    last = result[-1] if isinstance(result, list | tuple) and result else result
    if not isinstance(last, torch.ScriptObject):
        return None
    return torch._C._distributed_c10d.Work.unbox(last)
