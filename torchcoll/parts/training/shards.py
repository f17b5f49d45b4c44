"""The all_gather and reduce_scatter calls of one step of FSDP2's ``fully_shard``, without running
it.

This module finds the units of a model: the root and each wrapped module, with the parameters below
it that belong to no inner unit. What they send is computed in training/sent_by_wrappers.py. Only
shapes are used.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import ROOT, Group
from torchcoll.core.units import counted, whole_number
from torchcoll.parts.training.buckets import describe, trainable_parameters
from torchcoll.parts.training.plans import traffic_from_calls
from torchcoll.parts.training.sent_by_wrappers import ShardStep, ShardUnit
from torchcoll.parts.training.sharded import ShardPlan

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
    choice = counted(units, "unit") if units else "the root alone"
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
    model: nn.Module,
    wrapped: Callable[[str, nn.Module], object],
    root_alone: bool,
    together: int,
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
