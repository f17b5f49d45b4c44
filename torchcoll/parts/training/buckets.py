"""DDP's buckets and FSDP2's units of a model, without running either. What they send is computed in
training/sent_by_wrappers.py.

DDP: in the order of the gradients of a meta backward. When buckets are assigned:
``_ddp_init_helper`` of torch/nn/parallel/distributed.py and ``rebuild_buckets`` of reducer.cpp, the
same from torch 2.6 to 2.15. The first step has one bucket per dtype. Then the buckets are rebuilt
in the order in which the gradients arrived, with the limits [first, cap]. With
find_unused_parameters they are not rebuilt: they stay in registration order, with the list of
buckets reversed.

FSDP2: a unit is the root or a wrapped module, with the parameters below it that belong to no inner
unit. Only shapes are used.
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

from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import ROOT, Group
from torchcoll.core.units import MAX_BYTES, format_bytes, whole_number
from torchcoll.parts.training.plans import (
    DEFAULT_CAP_MB,
    MIB,
    Bucket,
    BucketPlan,
    traffic_from_calls,
)
from torchcoll.parts.training.sent_by_wrappers import (
    Parameter,
    ShardStep,
    ShardUnit,
    assign_buckets,
)
from torchcoll.parts.training.step_program import ShardPlan

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


Wrap = type[nn.Module] | tuple[type[nn.Module], ...] | Callable[[str, nn.Module], object]
_CAPTURE = "Capture a step instead: torchcoll.capture()."


def shard_traffic(
    model: nn.Module,
    wrap: Wrap,
    ranks: int = 64,
    reduce_dtype: torch.dtype | str | None = None,
    param_dtype: torch.dtype | str | None = None,
    reshard_after_forward: bool | int | None = None,
    replicas: int = 1,
    together: int = 1,
    accumulate: int = 1,
) -> ShardPlan:
    """Returns the calls of one training step of FSDP2; nothing is run on the device.

    - model: a model on any device; on ``meta`` it needs no memory.
    - wrap: the modules that are passed to fully_shard: a class, a tuple of classes (() for the root
      alone), or a predicate of (name, module). The root is always included.
    - ranks: the number of ranks in the world.
    - replicas: the number of copies of the whole model among them (HSDP).
    - param_dtype, reduce_dtype: as in MixedPrecisionPolicy.
    - reshard_after_forward: as in fully_shard, for all units. None: all units but the root. A
      number: to groups of that many ranks.
    - together: how many consecutive wrapped modules of one parent form a unit, as with
      fully_shard([a, b]).
    - accumulate: the number of forward and backward passes in a step, all but the last of them
      after set_requires_gradient_sync(False).

    It assumes that each unit runs once, in registration order, with inputs from earlier units, and
    that every trainable parameter gets a gradient. It does not cover
    offloading, placements other than Shard(0), float8 all-gathers and gradient clipping.

    Raises UsageError for what fully_shard refuses, parameters tied across units, units that are
    registered twice, mixed trainable dtypes in a unit, and a model that sets its own prefetch.
    """
    whole_number(ranks, "ranks", 2)
    whole_number(replicas, "replicas", 1)
    if ranks % replicas or ranks // replicas < 2:
        expected = f"a divisor of {ranks} ranks that leaves 2 or more to shard over"
        raise UsageError("replicas", replicas, expected)
    whole_number(together, "together", 1)
    whole_number(accumulate, "accumulate", 1)
    reshard, shards = reshard_after_forward, ranks // replicas  # as fully_shard reads it
    if reshard is not None and not isinstance(reshard, bool):
        if not isinstance(reshard, int) or not 0 < reshard <= shards or shards % reshard:
            expected = f"True, False, or a divisor of the {shards} ranks that are sharded over"
            raise UsageError("reshard_after_forward", reshard, expected)
        if reshard in (1, shards):
            reshard = reshard == shards
    trainable_parameters(model)
    root = _build_units(model, _wrap_predicate(wrap), wrap == (), together)
    step = ShardStep(shards, replicas, _dtype_name(param_dtype), _dtype_name(reduce_dtype), reshard)
    for micro_batch in range(accumulate):
        step.run(root, reduce_gradients=micro_batch == accumulate - 1)
    groups = [Group("shard", tuple(range(step.shards)), description="FSDP2")]
    if step.reshard_ranks:
        groups.append(Group("resharded", tuple(range(step.reshard_ranks)), description="FSDP2"))
    if replicas > 1:
        copies = tuple(range(0, ranks, step.shards))
        groups.append(Group("replicate", copies, description="FSDP2"))
    notes = [
        "assumed: each unit runs once a step, in the order of registration, and every trainable "
        "parameter gets a gradient"
    ]
    if param_dtype is not None and reduce_dtype is None:
        notes.append(
            f"reduce_dtype not set: as in torch {torch.__version__} (before 2.15 gradients go in "
            "param_dtype, since then in the dtype of the parameters)"
        )
    plan = traffic_from_calls(step.calls, ranks, groups, notes)
    plan.parameters = {
        unit.name or ROOT: tuple(unit.parameters) for unit in root.walk() if unit.parameters
    }
    units = sum(1 for _ in root.walk()) - 1
    choice = f"{units} unit{'s' * (units != 1)}" if units else "the root alone"
    choice += f" of {together}" if together > 1 else ""
    if reshard_after_forward is None or reshard_after_forward is True:
        choice += ", resharded"
    elif reshard_after_forward is False:
        choice += ", kept"
    else:
        choice += f", resharded to {reshard_after_forward}"
    return ShardPlan(
        **vars(plan),
        choice=choice,
        acts=step.acts,
        sharded_bytes=step.sharded_bytes(root),
        peak_bytes=step.peak_bytes,
    )


def _wrap_predicate(wrap: Wrap) -> Callable[[str, nn.Module], object]:
    """Returns ``wrap`` as a predicate of (name, module)."""
    classes = wrap if isinstance(wrap, tuple) else (wrap,)
    modules = tuple(c for c in classes if isinstance(c, type) and issubclass(c, nn.Module))
    if len(modules) == len(classes):
        return lambda name, module: isinstance(module, modules)
    if isinstance(wrap, tuple | type) or not callable(wrap):
        expected = "a module class, a tuple of them, or a predicate of (name, module)"
        raise UsageError("wrap", wrap, expected)
    return wrap


def _dtype_name(value: torch.dtype | str | None) -> str | None:
    return None if value is None else find_dtype(str(value).removeprefix("torch.")).name


def _build_units(
    model: nn.Module, wrapped: Callable[[str, nn.Module], object], root_alone: bool, together: int
) -> ShardUnit:
    """Returns the root unit. Raises UsageError for a model that has no plan."""
    owner: dict[int, tuple[str, ShardUnit]] = {}
    seen: dict[int, ShardUnit] = {}
    any_gradient = False

    def visit(module: nn.Module, name: str, unit: ShardUnit) -> None:
        nonlocal any_gradient
        if seen.get(id(module)) is unit:
            return
        seen[id(module)] = unit
        state: object = getattr(module, "_get_fsdp_state", object)()
        for direction in ("forward", "backward"):  # the plan ignores explicit prefetching
            ahead = len(getattr(state, f"_states_to_{direction}_prefetch", ()))
            if ahead:
                actual = f"{name or 'the root'} with set_modules_to_{direction}_prefetch of {ahead}"
                raise UsageError("model", actual, "the order that FSDP2 takes by itself", _CAPTURE)
        for parameter_name, parameter in module.named_parameters(name, recurse=False):
            first, owner_unit = owner.setdefault(id(parameter), (parameter_name, unit))
            if owner_unit is not unit:
                actual = f"{parameter_name} tied to {first} of another unit"
                raise UsageError("wrap", actual, "tied parameters in one unit", "Wrap neither.")
            if not parameter.ndim:
                raise UsageError(
                    "model", f"the scalar {parameter_name}", "1 dimension or more, as fully_shard"
                )
            if parameter_name != first:  # tied within the unit
                continue
            unit.parameters[parameter_name] = describe(parameter_name, parameter)
            unit.body.append(parameter.numel())
            any_gradient |= parameter.requires_grad
        last, count = None, 0  # the unit of the previous wrapped child, and its modules
        for child_name, child in module.named_children():
            full = f"{name}.{child_name}" if name else child_name
            if not wrapped(full, child):
                visit(child, full, unit)
                last = None
                continue
            if isinstance(child, nn.ModuleList | nn.ModuleDict):
                actual = f"{full}, a {type(child).__name__}"
                raise UsageError("wrap", actual, "modules with a forward, as fully_shard")
            if id(child) in seen:
                actual = f"{full}, the same module as {seen[id(child)].name}"
                raise UsageError("wrap", actual, "modules that run once a step", _CAPTURE)
            # The inputs of an embedding are integers.
            integers = isinstance(child, nn.Embedding | nn.EmbeddingBag)
            if last is None or count == together:
                last, count = ShardUnit(full, gradient_in=any_gradient and not integers), 0
                unit.inner.append(last)
                unit.body.append(last)
            last.name += f", {full}" * (count > 0)  # as FSDP2 names modules of one unit
            count += 1
            visit(child, full, last)
            last.gradient_out = any_gradient

    root = ShardUnit("")
    visit(model, "", root)
    root.gradient_out = any_gradient
    # What the root has before its first unit is taken for embeddings: a lookup computes nothing.
    first = next((n for n, entry in enumerate(root.body) if isinstance(entry, ShardUnit)), 0)
    root.body[:first] = [0] * first
    if not root.inner and not root_alone:
        class_names = sorted(
            {type(module).__name__ for module in model.modules() if module is not model}
        )
        action = f"It has {', '.join(class_names)}." if class_names else ""
        raise UsageError("wrap", "nothing of the model", "one module or more", action)
    for unit in root.walk():
        dtypes = {f"torch.{parameter.dtype}" for parameter in unit.trainable}
        if len(dtypes) > 1:
            dtypes_text = f"{' and '.join(sorted(dtypes))} in {unit.name or 'the root'}"
            raise UsageError(
                "model", dtypes_text, "one dtype for the trainable parameters of a unit"
            )
    return root
