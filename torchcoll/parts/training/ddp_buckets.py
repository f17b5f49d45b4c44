"""Which parameters are in the buckets that DDP's reducer sends, how a bucket is named after them,
and when a program waits for it.

DDP's reducer issues its calls in C++, while autograd accumulates the gradient that completes a
bucket. The current node of autograd has that parameter, which leads to the model. The contents of
the buckets are in the model's own log, by the numbers of the parameters. A call has a name only if
its bucket in the log has as many elements as are sent.

At the end of the backward pass the reducer waits for its calls, in C++ again: a callback of
autograd that was queued before the reducer's learns when. The log is read there, too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcoll.parts.training.recorded_calls import RecordedCall


def block_name(parameter: str) -> str:
    """Returns the module of a parameter, or the numbered block that contains it.

    ``model.layers.0.mlp.up.weight`` is in ``model.layers.0``.
    """
    parts = parameter.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdecimal()), len(parts) - 2)
    return ".".join(parts[: number + 1]) or parameter


def bucket_names(buckets: Sequence[Sequence[str]]) -> list[str]:
    """Returns a name for each bucket.

    - buckets: the names of the parameters of each bucket, in the order of registration.

    The name is that of the only parameter, or of the blocks of the first and the last one. If
    buckets would share a name, theirs are made of the names of the parameters.
    """
    names = [bucket[0] if len(bucket) == 1 else block_span(bucket) for bucket in buckets]
    counts = Counter(names)
    return [
        name if counts[name] == 1 else _span(bucket)
        for name, bucket in zip(names, buckets, strict=True)
    ]


def block_span(parameters: Sequence[str]) -> str:
    """Returns the blocks of the first and the last parameter: ``model.norm to lm_head``."""
    return _span([block_name(name) for name in (*parameters[:1], *parameters[-1:])])


def _span(names: Sequence[str]) -> str:
    """Returns the first and the last name; '' if there is none."""
    return " to ".join(dict.fromkeys((*names[:1], *names[-1:])))


def numbered(name: str, taken: Iterable[str]) -> str:
    """Returns the name, with a number if another model of the process has it: ``0 (model 2)``."""
    free, number, names = name, 1, set(taken)
    while free in names:
        number += 1
        free = f"{name} (model {number})"
    return free


_CHECKPOINT = os.path.join("torch", "utils", "checkpoint.py")
_MOST_SEARCHES = 8  # for models in one capture: each looks at all objects of the process
_MOST_READS = 20  # of the log of a model that does not list its buckets


class BucketCalls:
    """The calls of reducers in the current backward pass of one rank.

    - on_parameters: called with the name of a bucket and those of its parameters, before the name
      is first used.
    """

    def __init__(self, on_parameters: Callable[[str, tuple[str, ...]], object]) -> None:
        self._on_parameters = on_parameters
        self._models: dict[int, _Buckets] = {}  # by id of a parameter
        self._names: dict[tuple[int, str], str] = {}  # by id of the model's buckets, and its name
        self._searches = 0
        self._search_due = True
        self._calls: list[tuple[RecordedCall, int, int]] = []
        self._task = -1  # of autograd, to which they belong
        self._nested = False  # in the backward pass of another, which goes on after its end

    def add(self, call: RecordedCall, parameter: Any, sent: Any) -> None:
        """Adds a call that is being issued because of a parameter's gradient.

        - sent: the argument that holds what is sent.
        """
        from torch import _C
        from torch.autograd import Variable

        while isinstance(sent, list | tuple) and len(sent) == 1:
            sent = sent[0]
        task = getattr(_C, "_current_graph_task_id", int)()
        if not self._calls or task != self._task:  # a backward pass that failed has no end
            self._task, self._calls = task, []
            Variable._execution_engine.queue_callback(self._end_backward)
            self._nested = _within_checkpoint()
        call.pending = True
        elements = sent.numel() if hasattr(sent, "numel") else -1
        self._calls.append((call, id(parameter), elements))

    def find_models(self) -> None:
        """Finds the DDP models of the process, unless none is missing.

        Must not run while calls are in flight: their ends would be stamped late.
        """
        if not self._search_due:
            return
        from torch.nn.parallel import DistributedDataParallel

        self._searches += 1
        self._search_due = False
        models = {buckets.model() for buckets in self._models.values()}
        for candidate in gc.get_objects():
            if issubclass(type(candidate), DistributedDataParallel) and candidate not in models:
                buckets = _Buckets(candidate)
                self._models.update((key, buckets) for key in buckets.indices)

    def _end_backward(self) -> None:
        now = time.perf_counter_ns()
        calls, self._calls = self._calls, []
        with contextlib.suppress(Exception):  # a future version of torch must not end the training
            for call, parameter, elements in calls:
                call.module = self._name(parameter, elements)
        for call, _, _ in calls:
            asynchronous = call.fields and call.fields["asynchronous"] is not False
            if asynchronous and not self._nested:
                call.waited_from = now
            call.pending = False

    def _name(self, parameter: int, elements: int) -> str:
        buckets = self._models.get(parameter)
        if buckets is None or buckets.model() is None:
            self._search_due = self._searches < _MOST_SEARCHES
            return ""
        name = buckets.name(parameter, elements)
        if not name:
            return ""
        shown = self._names.setdefault((id(buckets), name), numbered(name, self._names.values()))
        if parameters := buckets.contents.pop(name, None):
            self._on_parameters(shown, parameters)
        return shown


def _within_checkpoint() -> bool:
    """Returns whether this backward pass is within another: reentrant activation checkpointing."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith(_CHECKPOINT):
            return True
        frame = frame.f_back
    return False


class _Buckets:
    """The buckets of one DDP model.

    - indices: the number of each parameter in the reducer, by its id.
    - contents: the parameters of each bucket, by the name of the bucket, until they are taken.
    """

    def __init__(self, model: Any) -> None:
        self.model = weakref.ref(model)
        ignored = getattr(model, "parameters_to_ignore", ())
        # As _build_params_for_reducer: those with a gradient, each once, in registration order.
        reduced = [
            (name, parameter)
            for name, parameter in model.module.named_parameters()
            if parameter.requires_grad and name not in ignored
        ]
        self.indices = {id(parameter): i for i, (_, parameter) in enumerate(reduced)}
        self._names = [name for name, _ in reduced]
        self._elements = [parameter.numel() for _, parameter in reduced]
        self._bytes = [parameter.nbytes for _, parameter in reduced]
        self.contents: dict[str, tuple[str, ...]] = {}
        self._bucket_names: list[str] = []
        self._bucket_elements: list[int] = []
        self._bucket_of: dict[int, int] = {}  # number of a parameter -> its bucket
        self._final = False
        self._reads = 0
        self._last = -1, -1  # the parameter and the bucket of the call before

    def name(self, parameter: int, elements: int) -> str:
        """Returns the name of the bucket that was sent when a parameter's gradient was ready.

        - parameter: its id.
        - elements: how many were sent; they must be those of the bucket.
        """
        if not self._final:
            self._read()
        index = self.indices[parameter]
        bucket = self._bucket_of.get(index, -1)
        # Buckets are sent in their order: those that were ready before follow in the same hook.
        if self._last[0] == index and self._last[1] + 1 < len(self._bucket_names):
            bucket = self._last[1] + 1
        self._last = index, bucket
        if bucket < 0 or self._bucket_elements[bucket] != elements:
            return ""
        return self._bucket_names[bucket]

    def _read(self) -> None:
        """Reads the log of the model: the rebuilt buckets, or the first ones."""
        model: Any = self.model()
        self._reads += 1
        self._final = self._reads >= _MOST_READS
        texts: Any = {}
        with contextlib.suppress(AttributeError, RuntimeError):
            texts = model.logger._get_ddp_logging_data().strs_map
        try:
            rebuilt = texts.get("rebuilt_per_bucket_param_indices")
            if rebuilt:
                buckets = [[int(i) for i in bucket.split()] for bucket in rebuilt.split(",")]
                self._final = True
            else:
                buckets = self._first_buckets([int(n) for n in texts["bucket_sizes"].split(",")])
                unused = getattr(model, "find_unused_parameters", False)
                # DDP never rebuilds the buckets then.
                self._final |= bool(unused and not getattr(model, "static_graph", False))
            named = [[self._names[i] for i in sorted(bucket)] for bucket in buckets]
        except (AttributeError, KeyError, ValueError, IndexError):
            return
        self._bucket_names = bucket_names(named)
        self.contents = dict(zip(self._bucket_names, map(tuple, named), strict=True))
        self._bucket_elements = [sum(self._elements[i] for i in bucket) for bucket in buckets]
        self._bucket_of = {i: number for number, bucket in enumerate(buckets) for i in bucket}

    def _first_buckets(self, sizes: Sequence[int]) -> list[list[int]]:
        """Returns the numbers of the parameters in the buckets before they are rebuilt.

        - sizes: bytes of the buckets in the order in which they are sent, which is from the last
          parameter to the first. Raises ValueError if they do not fit, as with several dtypes.
        """
        ends = list(accumulate(self._bytes, initial=0))
        begins = [ends.index(end) for end in accumulate(reversed(sizes), initial=0)]
        if begins[-1] != len(self._bytes):
            raise ValueError("the log is not of these parameters")
        return [list(range(a, b)) for a, b in pairwise(begins)][::-1]
