"""``torchcoll.ddp_hook``: DDP's gradient buckets, exactly, at next to no cost."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with its types.

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.training.group_names import GroupNames, environment

_ALONE = (
    "DDP's gradient buckets alone: a hook sees no other collective, and of the first step what "
    "comes after its first bucket"
)
_UNTIMED = "buckets on an accelerator have no duration: a hook is not known when they end"
_WHAT = "state of ddp_hook"


def ddp_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Performs DDP's own all-reduce and division, and records each gradient bucket.

    Register it with ``model.register_comm_hook(traffic, torchcoll.ddp_hook)``.

    - state: a new Traffic (``torchcoll.Traffic()``) or the Traffic of a capture. For a model with
      its own process group: (Traffic, group), with the group that was given to DDP.

    In a new Traffic each bucket is a call, and ``traffic.step()`` marks the end of a training step;
    durations are known on the CPU only. In the Traffic of a capture, the capture records the calls.
    In both cases ``traffic.environment["ddp_buckets"]`` lists each distinct set of buckets that a
    backward pass produced, in the order of their first use. Each bucket has index, size_bytes,
    dtype and parameters (their number).

    The gradients are bit-identical to DDP's, with one exception: with
    ``gradient_as_bucket_view=True`` on a number of ranks that is not a power of two, DDP divides
    where the hook multiplies by 1 / n. Do not use it with
    ``join(divide_by_initial_world_size=False)``.

    Raises UsageError for any other state.
    """
    traffic, group = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    recorder = _BucketRecorder.for_traffic(traffic)
    group = dist.distributed_c10d._get_default_group() if group is None else group
    buffer = bucket.buffer()
    buffer.mul_(1 / group.size())
    start = time.perf_counter_ns()
    future = dist.all_reduce(buffer, group=group, async_op=True).get_future()
    ended = recorder.record(bucket, group, start)

    def result(future: torch.futures.Future[Any]) -> torch.Tensor:
        ended()
        reduced: torch.Tensor = future.value()[0]
        return reduced

    divided: torch.futures.Future[torch.Tensor] = future.then(result)
    return divided


class _BucketRecorder:
    """Records the gradient buckets of one Traffic."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        # In the Traffic of a capture, the capture records the calls.
        self._records_calls = "seen_by" not in traffic.environment
        self._buckets: list[dict[str, Any]] = []
        self._bucket_sets: list[list[dict[str, Any]]] = []
        self._sequence: Counter[str] = Counter()
        self._groups = GroupNames(traffic)
        self._begun = time.perf_counter_ns()
        self._unmarked = 0  # the first call after the last mark
        if self._records_calls:
            if traffic.calls:
                raise UsageError(_WHAT, "a Traffic that holds calls", "a new one, or a capture's")
            traffic.ranks = dist.get_world_size()
            traffic.environment |= environment("ddp_hook")
            traffic.notes.append(_ALONE)
            traffic.mark_step = self._step
            self._calls = traffic.calls.setdefault(dist.get_rank(), [])
        traffic.environment["ddp_buckets"] = self._bucket_sets

    @classmethod
    def for_traffic(cls, traffic: Any) -> "_BucketRecorder":
        """Returns the recorder of ``traffic``, which is kept as an attribute of the object."""
        if not isinstance(traffic, Traffic):
            kind = type(traffic).__name__
            raise UsageError(_WHAT, kind, "a Traffic, or (Traffic, process group)")
        recorder: _BucketRecorder | None = vars(traffic).get("_buckets")
        if recorder is None:
            recorder = vars(traffic)["_buckets"] = cls(traffic)
        return recorder

    def record(self, bucket: Any, group: Any, start: int) -> Any:
        """Records a bucket and returns the function to call when its all-reduce ends."""
        buffer, bucket_index = bucket.buffer(), bucket.index()
        dtype = str(buffer.dtype).removeprefix("torch.")
        sizes = {
            "size_bytes": buffer.nbytes,
            "dtype": dtype,
            "parameters": len(bucket.parameters()),
        }
        self._buckets = [*(self._buckets if bucket_index else []), {"index": bucket_index, **sizes}]
        if bucket.is_last() and self._buckets not in self._bucket_sets:
            self._bucket_sets.append(self._buckets)
        if not self._records_calls:
            return lambda: None
        name = self._groups.group(group, buffer.device).name
        call = TrafficCall(
            "all_reduce",
            buffer.nbytes,
            buffer.nbytes,
            dtype,
            "sum",
            group=name,
            sequence=self._sequence[name],
            asynchronous=True,
            start_ns=start - self._begun,
        )
        self._sequence[name] += 1
        index = len(self._calls)
        self._calls.append(call)
        if buffer.device.type != "cpu":
            if _UNTIMED not in self._traffic.notes:
                self._traffic.notes.append(_UNTIMED)
            return lambda: None

        def ended() -> None:
            time_ns = time.perf_counter_ns() - start
            self._calls[index] = replace(self._calls[index], time_ns=time_ns)

        return ended

    def _step(self) -> None:
        """Marks the end of a step; DDP has waited for all buckets by then."""
        spans = self._traffic.steps.setdefault(dist.get_rank(), [])
        for index in range(self._unmarked, len(self._calls)):
            self._calls[index] = replace(self._calls[index], step=len(spans))
        self._unmarked = len(self._calls)
        spans.append((spans[-1][1] if spans else 0, time.perf_counter_ns() - self._begun))
