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
    """What DDP does without a hook (all-reduce, divide), and a record of each bucket.

    ``model.register_comm_hook(traffic, torchcoll.ddp_hook)``. state: a Traffic: a new one
    (``torchcoll.Traffic()``) or that of a capture. For a model with a process group of its own
    (Traffic, group), with the group that DDP was given.

    In a new Traffic each bucket is a call, and ``traffic.step()`` marks the end of a training step;
    durations are known on the CPU. In that of a capture the capture records the calls. In both
    ``traffic.environment["ddp_buckets"]`` has each set of buckets that a backward pass had, in the
    order of their first use: lists of index, size_bytes, dtype and parameters (how many).

    Gradients are those of DDP to the last bit, but for ``gradient_as_bucket_view=True`` on a number
    of ranks that is no power of two: DDP divides there, where it else multiplies by 1 / n. Not for
    ``join(divide_by_initial_world_size=False)``. Raises UsageError for another state.
    """
    traffic, group = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    buckets = _Buckets.of(traffic)
    group = dist.distributed_c10d._get_default_group() if group is None else group
    buffer = bucket.buffer()
    buffer.mul_(1 / group.size())
    start = time.perf_counter_ns()
    future = dist.all_reduce(buffer, group=group, async_op=True).get_future()
    ended = buckets.issued(bucket, group, start)

    def result(future: torch.futures.Future[Any]) -> torch.Tensor:
        ended()
        reduced: torch.Tensor = future.value()[0]
        return reduced

    divided: torch.futures.Future[torch.Tensor] = future.then(result)
    return divided


class _Buckets:
    """What is recorded of the buckets in one Traffic."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._records = "seen_by" not in traffic.environment  # else a capture does
        self._pass: list[dict[str, Any]] = []
        self._passes: list[list[dict[str, Any]]] = []
        self._sequence: Counter[str] = Counter()
        self._groups = GroupNames(traffic)
        self._begun = time.perf_counter_ns()
        self._unmarked = 0  # the first call after the last mark
        if self._records:
            if traffic.calls:
                raise UsageError(_WHAT, "a Traffic that holds calls", "a new one, or a capture's")
            traffic.ranks = dist.get_world_size()
            traffic.environment |= environment("ddp_hook")
            traffic.notes.append(_ALONE)
            traffic.mark_step = self._step
            self._calls = traffic.calls.setdefault(dist.get_rank(), [])
        traffic.environment["ddp_buckets"] = self._passes

    @classmethod
    def of(cls, traffic: Any) -> "_Buckets":
        """Those of the traffic: kept in the object, beside its fields."""
        if not isinstance(traffic, Traffic):
            got = type(traffic).__name__
            raise UsageError(_WHAT, got, "a Traffic, or (Traffic, process group)")
        own: _Buckets | None = vars(traffic).get("_buckets")
        if own is None:
            own = vars(traffic)["_buckets"] = cls(traffic)
        return own

    def issued(self, bucket: Any, group: Any, start: int) -> Any:
        """Records a bucket. Returns what is to be called at its end."""
        buffer, index = bucket.buffer(), bucket.index()
        dtype = str(buffer.dtype).removeprefix("torch.")
        sizes = {
            "size_bytes": buffer.nbytes,
            "dtype": dtype,
            "parameters": len(bucket.parameters()),
        }
        self._pass = [*(self._pass if index else []), {"index": index, **sizes}]
        if bucket.is_last() and self._pass not in self._passes:
            self._passes.append(self._pass)
        if not self._records:
            return lambda: None
        name = self._groups.of(group, buffer.device)
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
        place = len(self._calls)
        self._calls.append(call)
        if buffer.device.type != "cpu":
            if _UNTIMED not in self._traffic.notes:
                self._traffic.notes.append(_UNTIMED)
            return lambda: None

        def ended() -> None:
            time_ns = time.perf_counter_ns() - start
            self._calls[place] = replace(self._calls[place], time_ns=time_ns)

        return ended

    def _step(self) -> None:
        """DDP has waited for all buckets before this can be called."""
        spans = self._traffic.steps.setdefault(dist.get_rank(), [])
        for place in range(self._unmarked, len(self._calls)):
            self._calls[place] = replace(self._calls[place], step=len(spans))
        self._unmarked = len(self._calls)
        spans.append((spans[-1][1] if spans else 0, time.perf_counter_ns() - self._begun))
