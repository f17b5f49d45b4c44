"""DDP's buckets on paper: torch's own assignment, on the order of gradients of one meta backward.

Facts of torch/nn/parallel/distributed.py (``_ddp_init_helper``) and reducer.cpp
(``rebuild_buckets``), the same from torch 2.6 to 2.15: the first step has one bucket for each
dtype. Then the buckets are made anew, in the order in which the gradients came, with the limits
[first, cap]. With find_unused_parameters nothing is made anew: registration order, the list
reversed.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import sys
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchcoll.core.errors import UsageError
from torchcoll.core.units import MAX_BYTES, format_bytes
from torchcoll.training.plans import DEFAULT_CAP_MB, MIB, Bucket, BucketPlan

Caps = float | Sequence[float] | None


def gradient_buckets(
    model: nn.Module,
    bucket_cap_mb: Caps = None,
    step: Callable[[nn.Module], object] | None = None,
    find_unused: bool = False,
) -> BucketPlan:
    """The buckets in which DistributedDataParallel(model) will send the gradients; nothing is run.

    model: on any device; ``meta`` needs no memory. It is only looked at.
    bucket_cap_mb: as DDP's, in MiB; a list is its bucket_cap_mb_list (newer torch).
    step: is called once with a copy of the model on ``meta``, does one forward and backward, and
    so tells the order of the gradients. Tensors that it makes are on meta. Without it the order is
    assumed to be the reverse of registration, as DDP's documentation has it.
    find_unused: DDP's find_unused_parameters. static_graph makes the same buckets one step later,
    where no parameter is unused; steps in no_sync() send nothing.
    Raises UsageError for a model without gradients or with sparse ones, a cap that DDP cannot take,
    a step that fails, and parameters that get no gradient in it, which DDP needs find_unused for.
    """
    limits = _limits(bucket_cap_mb)
    caps = tuple(bucket_cap_mb) if isinstance(bucket_cap_mb, Sequence) else bucket_cap_mb
    ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    # DDP compares f"{module}.{name}", so that a parameter of the root is ".name".
    parameters = {
        name: parameter
        for name, parameter in trainable(model).items()
        if (name if "." in name else f".{name}") not in ignored
    }
    if not parameters:
        raise UsageError("model", "only parameters that DDP is to ignore", "one or more others")
    for name, module in model.named_modules():
        sparse = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        if sparse and module.weight.requires_grad:
            action = "The bytes of sparse ones depend on the data: capture a step."
            raise UsageError("model", f"sparse gradients of {name or 'it'}", "dense ones", action)
    names = list(parameters)
    order = names[::-1] if step is None else _order_of_gradients(model, step, names)
    used = set(order)
    unused = tuple(name for name in names if name not in used)
    if unused and not find_unused:
        got = f"no gradient for {', '.join(unused)}"
        action = "Else DDP stops in its second step: use find_unused, or freeze them."
        raise UsageError("step", got, "one for every parameter", action)
    at_once = not (find_unused or isinstance(caps, tuple))
    first = _assigned(parameters, [sys.maxsize] if at_once else limits)
    return BucketPlan(
        buckets=first if find_unused else _assigned(parameters, limits, order),
        first_step=first,
        order="registered" if find_unused else "from step" if step is not None else "assumed",
        bucket_cap_mb=caps,
        find_unused=find_unused,
        unused=unused,
        notes=tuple(_notes(model, step, find_unused, unused)),
    )


def _limits(cap: Caps) -> list[int]:
    """The limits of the buckets in bytes, one after the other, the last for all further ones."""
    if cap is None:
        return [dist._DEFAULT_FIRST_BUCKET_BYTES, DEFAULT_CAP_MB * MIB]
    if isinstance(cap, Sequence):
        known = inspect.signature(DistributedDataParallel).parameters
        if isinstance(cap, str) or not cap:
            raise UsageError("bucket_cap_mb", cap, "a number of MiB, or a list of them")
        if "bucket_cap_mb_list" not in known:
            got = f"a list, which the DDP of torch {torch.__version__} does not take"
            raise UsageError("bucket_cap_mb", got, "one number of MiB")
        return [_limit(one) for one in cap]
    return [_limit(cap)]


def _limit(cap: float) -> int:
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not math.isfinite(cap):
        raise UsageError("bucket_cap_mb", cap, "a number of MiB, or a list of them")
    if not 0 <= cap * MIB <= MAX_BYTES:
        raise UsageError("bucket_cap_mb", cap, f"0 to {MAX_BYTES // MIB} MiB")
    return int(cap * MIB)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that get a gradient, in registration order, tied ones once.

    Raises UsageError where ``model`` is no model to be wrapped, or has none.
    """
    if isinstance(model, DistributedDataParallel):
        raise UsageError("model", type(model).__name__, "the model inside", "Pass model.module.")
    if not isinstance(model, nn.Module):
        raise UsageError("model", type(model).__name__, "a torch.nn.Module")
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise UsageError("model", "no parameter with a gradient", "one or more")
    for name, parameter in found.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            got = f"{name} without a shape"
            raise UsageError("model", got, "shapes", "Run one forward first: it is a lazy module.")
    return found


def _order_of_gradients(
    model: nn.Module, step: Callable[[nn.Module], object], names: Sequence[str]
) -> list[str]:
    """The names in the order in which the gradients come in one backward on meta.

    The hook is called where DDP's is: when a gradient is complete, also of a tied parameter.
    """
    # Tensors are replaced while copying: a copy that is moved later would need the memory twice.
    memo: dict[int, object] = {}
    try:
        for module in model.modules():
            for held in (module._parameters, module._buffers, vars(module)):
                for value in held.values():
                    if isinstance(value, torch.Tensor) and id(value) not in memo:
                        empty = torch.empty_like(value, device="meta", requires_grad=False)
                        if isinstance(value, nn.Parameter):
                            empty = nn.Parameter(empty, requires_grad=value.requires_grad)
                        memo[id(value)] = empty
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        got = f"one that cannot be copied ({type(error).__name__}: {error})"
        raise UsageError("model", got, "a model that copy.deepcopy takes") from error
    ready: dict[str, None] = {}
    for name, parameter in copied.named_parameters():
        if name in names:
            parameter.register_post_accumulate_grad_hook(
                lambda _, name=name: ready.setdefault(name, None)
            )
    try:
        with torch.device("meta"), torch.enable_grad():
            step(copied)
    except Exception as error:
        expected = "one forward and backward on meta"
        action = "Make its inputs inside of it, and read no values (item(), print)."
        raise UsageError("step", f"{type(error).__name__}: {error}", expected, action) from error
    if not ready:
        raise UsageError("step", "no gradient for any parameter", "a backward in it")
    return list(ready)


def _assigned(
    parameters: dict[str, nn.Parameter], limits: list[int], order: Sequence[str] = ()
) -> tuple[Bucket, ...]:
    """Buckets in the order in which they are sent.

    order: as the gradients come; without it registration order, the list of buckets reversed.
    torch groups by dtype and device. What is left of each dtype at the end comes in the order of a
    hash of both, which was the same on meta, cpu, cuda:0 and xpu:0 for all triples of 6 dtypes.
    """
    names: list[str] = list(parameters)
    tensors: list[torch.Tensor] = list(parameters.values())
    if not order:
        indices = dist._compute_bucket_assignment_by_size(tensors, limits)[0][::-1]
    else:
        place_of = {name: place for place, name in enumerate(names)}
        places = [place_of[name] for name in order]
        # reducer.cpp: the variable gives the small first bucket to the end of the backward.
        turned = os.environ.get("DDP_SET_LAST_BUCKET_CAP") == "1"
        places = places[::-1] if turned else places
        indices = dist._compute_bucket_assignment_by_size(
            [tensors[i] for i in places], limits, [], places
        )[0]
        indices = indices[::-1] if turned else indices
    return tuple(
        Bucket(
            sum(tensors[i].numel() * tensors[i].element_size() for i in bucket),
            str(tensors[bucket[0]].dtype).removeprefix("torch."),
            tuple(names[i] for i in bucket),
        )
        for bucket in indices
    )


def _notes(model: nn.Module, step: object, find_unused: bool, unused: Sequence[str]) -> list[str]:
    notes = []
    if find_unused:
        notes.append(
            "find_unused: DDP keeps the buckets of the first step, and sends 4 bytes a parameter "
            "more to tell which were used"
        )
    elif step is None:
        notes.append(
            "order of the gradients assumed: the reverse of registration (gradient_buckets with a "
            "step learns it)"
        )
    if unused:
        notes.append(f"without a gradient in the step, sent as zeros: {', '.join(unused)}")
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    if buffers:
        notes.append(
            f"not in the plan: DDP's broadcast of the buffers ({format_bytes(buffers)}) before "
            "each forward"
        )
    return notes
