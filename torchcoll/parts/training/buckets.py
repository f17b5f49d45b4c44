"""DDP's buckets without running it, in the order of the gradients of a meta backward.

The buckets are assigned in training/sent_by_wrappers.py. When they are: ``_ddp_init_helper`` of
torch/nn/parallel/distributed.py and ``rebuild_buckets`` of reducer.cpp, the same from torch 2.6 to
2.15. The first step has one bucket per dtype. Then the buckets are rebuilt in the order in which
the gradients arrived, with the limits [first, cap]. With find_unused_parameters they are not
rebuilt: they stay in registration order, with the list of buckets reversed.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchcoll.core.errors import UsageError
from torchcoll.core.units import MAX_BYTES, format_bytes
from torchcoll.parts.training.plans import DEFAULT_CAP_MB, MIB, Bucket, BucketPlan
from torchcoll.parts.training.sent_by_wrappers import Parameter, assign_buckets

Caps = float | Sequence[float] | None


def gradient_buckets(
    model: nn.Module,
    bucket_cap_mb: Caps = None,
    step: Callable[[nn.Module], object] | None = None,
    find_unused: bool = False,
) -> BucketPlan:
    """Returns the buckets in which DistributedDataParallel(model) will send the gradients.

    Nothing is run on the device.

    - model: a model on any device; on ``meta`` it needs no memory. It is not changed.
    - bucket_cap_mb: as in DDP, in MiB; a list stands for DDP's bucket_cap_mb_list (newer torch).
    - step: a function that runs one forward and backward pass. It is called once with a copy of the
      model on ``meta``, which gives the order of the gradients. Tensors that it creates are on
      meta. Without it the order is assumed to be the reverse of registration, as DDP's
      documentation describes.
    - find_unused: DDP's find_unused_parameters. With static_graph DDP makes the same buckets one
      step later if no parameter is unused; steps in no_sync() send nothing.

    Raises UsageError for a model without gradients or with sparse ones, for a cap that DDP does not
    accept, for a step that fails, and for parameters that get no gradient in the step unless
    find_unused is set.
    """
    limits = _limits(bucket_cap_mb)
    caps = tuple(bucket_cap_mb) if isinstance(bucket_cap_mb, Sequence) else bucket_cap_mb
    ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    # DDP compares f"{module}.{name}", which for a parameter of the root is ".name".
    parameters = {
        name: parameter
        for name, parameter in trainable_parameters(model).items()
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
    order = names[::-1] if step is None else _gradient_order(model, step, names)
    used = set(order)
    unused = tuple(name for name in names if name not in used)
    if unused and not find_unused:
        actual = f"no gradient for {', '.join(unused)}"
        action = "Else DDP stops in its second step: use find_unused, or freeze them."
        raise UsageError("step", actual, "one for every parameter", action)
    described = {name: describe(name, parameter) for name, parameter in parameters.items()}
    single_bucket = not (find_unused or isinstance(caps, tuple))
    first_limits = [sys.maxsize] if single_bucket else limits
    first = assign_buckets(list(described.values()), first_limits, False)
    return BucketPlan(
        buckets=first if find_unused else _rebuilt_buckets(described, limits, order),
        first_step=first,
        order="registered" if find_unused else "from step" if step is not None else "assumed",
        bucket_cap_mb=caps,
        find_unused=find_unused,
        unused=unused,
        notes=tuple(_notes(model, step, find_unused, unused)),
    )


def _limits(cap: Caps) -> list[int]:
    """Returns the size limits of the buckets in bytes; the last holds for all later ones."""
    if cap is None:
        return [dist._DEFAULT_FIRST_BUCKET_BYTES, DEFAULT_CAP_MB * MIB]
    if isinstance(cap, Sequence):
        ddp_arguments = inspect.signature(DistributedDataParallel).parameters
        if isinstance(cap, str) or not cap:
            raise UsageError("bucket_cap_mb", cap, "a number of MiB, or a list of them")
        if "bucket_cap_mb_list" not in ddp_arguments:
            actual = f"a list, which the DDP of torch {torch.__version__} does not take"
            raise UsageError("bucket_cap_mb", actual, "one number of MiB")
        return [_limit(value) for value in cap]
    return [_limit(cap)]


def _limit(cap: float) -> int:
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not math.isfinite(cap):
        raise UsageError("bucket_cap_mb", cap, "a number of MiB, or a list of them")
    if not 0 <= cap * MIB <= MAX_BYTES:
        raise UsageError("bucket_cap_mb", cap, f"0 to {MAX_BYTES // MIB} MiB")
    return int(cap * MIB)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that get a gradient by name, in registration order, tied ones once.

    Raises UsageError if ``model`` is not a model to be wrapped or has no such parameter.
    """
    if isinstance(model, DistributedDataParallel):
        raise UsageError("model", type(model).__name__, "the model inside", "Pass model.module.")
    if not isinstance(model, nn.Module):
        raise UsageError("model", type(model).__name__, "a torch.nn.Module")
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise UsageError("model", "no parameter with a gradient", "one or more")
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            actual = f"{name} without a shape"
            raise UsageError(
                "model", actual, "shapes", "Run one forward first: it is a lazy module."
            )
    return parameters


def _gradient_order(
    model: nn.Module, step: Callable[[nn.Module], object], names: Sequence[str]
) -> list[str]:
    """Returns the names in the order in which the gradients arrive in one backward pass on meta.

    The hook runs where DDP's own hook does: when a gradient is complete, also that of a tied
    parameter.
    """
    # Tensors are replaced while copying: moving a copy to meta would need the memory twice.
    memo: dict[int, object] = {}
    try:
        for module in model.modules():
            for attributes in (module._parameters, module._buffers, vars(module)):
                for value in attributes.values():
                    if isinstance(value, torch.Tensor) and id(value) not in memo:
                        empty = torch.empty_like(value, device="meta", requires_grad=False)
                        if isinstance(value, nn.Parameter):
                            empty = nn.Parameter(empty, requires_grad=value.requires_grad)
                        memo[id(value)] = empty
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        actual = f"one that cannot be copied ({type(error).__name__}: {error})"
        raise UsageError("model", actual, "a model that copy.deepcopy takes") from error
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


def describe(name: str, parameter: nn.Parameter) -> Parameter:
    """Returns what the wrappers' calls depend on."""
    return Parameter(
        name,
        tuple(parameter.shape),
        str(parameter.dtype).removeprefix("torch."),
        parameter.element_size(),
        parameter.requires_grad,
    )


def _rebuilt_buckets(
    parameters: Mapping[str, Parameter], limits: list[int], order: Sequence[str]
) -> tuple[Bucket, ...]:
    """Returns the buckets that DDP makes after the first step; order: that of the gradients."""
    # reducer.cpp: this variable moves the small first bucket to the end of the backward pass.
    reversed_order = os.environ.get("DDP_SET_LAST_BUCKET_CAP") == "1"
    names = order[::-1] if reversed_order else order
    buckets = assign_buckets([parameters[name] for name in names], limits, True)
    return buckets[::-1] if reversed_order else buckets


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
