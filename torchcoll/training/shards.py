"""The all_gather and reduce_scatter calls of one step of FSDP2's ``fully_shard``, without running
it.

Source: torch/distributed/fsdp/_fully_shard: _fsdp_collectives.py for the sizes,
_fsdp_param_group.py and _fsdp_state.py for the order. A unit is the root or a wrapped module, with
the parameters below it that belong to no inner unit. Only shapes are used.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Group, TrafficCall
from torchcoll.core.units import whole_number
from torchcoll.training.buckets import trainable_parameters
from torchcoll.training.plans import traffic_from_calls
from torchcoll.training.sharded import BACKWARD, FORWARD, SEND, UNSHARD, USE, ShardPlan, UnitAct

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

    It assumes that each unit runs once, in registration order, with inputs from earlier units, and
    that every trainable parameter gets a gradient. It does not cover gradient accumulation,
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
    reshard, shards = reshard_after_forward, ranks // replicas  # as fully_shard reads it
    if reshard is not None and not isinstance(reshard, bool):
        if not isinstance(reshard, int) or not 0 < reshard <= shards or shards % reshard:
            expected = f"True, False, or a divisor of the {shards} ranks that are sharded over"
            raise UsageError("reshard_after_forward", reshard, expected)
        if reshard in (1, shards):
            reshard = reshard == shards
    trainable_parameters(model)
    root = _build_units(model, _wrap_predicate(wrap), wrap == (), together)
    step = _Step(shards, replicas, _torch_dtype(param_dtype), _torch_dtype(reduce_dtype), reshard)
    step.run(root)
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


@dataclass(eq=False)
class _Unit:
    """A unit of FSDP2.

    - parameters: its own parameters by name.
    - inner: its inner units.
    - body: the numbers of elements of its own parameters and its inner units, in registration
      order.
    - gradient_in, gradient_out: whether its input and its output need a gradient.
    """

    name: str
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    inner: list[_Unit] = field(default_factory=list)
    body: list[int | _Unit] = field(default_factory=list)
    gradient_in: bool = False
    gradient_out: bool = False

    def walk(self) -> Iterator[_Unit]:
        yield self
        for unit in self.inner:
            yield from unit.walk()


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


def _torch_dtype(value: torch.dtype | str | None) -> torch.dtype | None:
    if value is None or isinstance(value, torch.dtype):
        return value
    dtype: torch.dtype = getattr(torch, find_dtype(value).name)
    return dtype


def _build_units(
    model: nn.Module,
    wrapped: Callable[[str, nn.Module], object],
    root_alone: bool,
    together: int,
) -> _Unit:
    """Returns the root unit. Raises UsageError for a model that has no plan."""
    owner: dict[int, tuple[str, _Unit]] = {}
    seen: dict[int, _Unit] = {}
    any_gradient = False

    def visit(module: nn.Module, name: str, unit: _Unit) -> None:
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
            unit.parameters[parameter_name] = parameter
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
                last, count = _Unit(full, gradient_in=any_gradient and not integers), 0
                unit.inner.append(last)
                unit.body.append(last)
            count += 1
            visit(child, full, last)
            last.gradient_out = any_gradient

    root = _Unit("")
    visit(model, "", root)
    root.gradient_out = any_gradient
    if not root.inner and not root_alone:
        class_names = sorted(
            {type(module).__name__ for module in model.modules() if module is not model}
        )
        action = f"It has {', '.join(class_names)}." if class_names else ""
        raise UsageError("wrap", "nothing of the model", "one module or more", action)
    for unit in root.walk():
        dtypes = {str(p.dtype) for p in unit.parameters.values() if p.requires_grad}
        if len(dtypes) > 1:
            dtypes_text = f"{' and '.join(sorted(dtypes))} in {unit.name or 'the root'}"
            raise UsageError(
                "model", dtypes_text, "one dtype for the trainable parameters of a unit"
            )
    return root


@dataclass
class _Step:
    """The calls of one step, in the order in which fully_shard's hooks issue them.

    - acts: those calls and the acts around them.
    - peak_bytes: the largest number of bytes that a rank holds of whole parameters, whole gradients
      and what is being reduced.
    """

    shards: int
    replicas: int
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    reshard: bool | int | None
    calls: list[TrafficCall] = field(default_factory=list)
    acts: list[UnitAct] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def reshard_ranks(self) -> int:
        """The size of the smaller groups to which parameters are resharded; 0 if there are none."""
        number = isinstance(self.reshard, int) and not isinstance(self.reshard, bool)
        return int(self.reshard or 0) if number else 0

    def run(self, root: _Unit) -> None:
        """Makes the calls and acts of one step."""
        from torch.distributed.fsdp import fully_shard

        numbers = {unit: number for number, unit in enumerate(root.walk())}
        unsharded: set[_Unit] = set()
        ended: list[_Unit] = []  # in the order of their forwards; backward prefetches in reverse
        # reshard_after_forward=True includes the root since its default became None.
        default = inspect.signature(fully_shard).parameters["reshard_after_forward"].default
        root_too = self.reshard and (self.reshard_ranks > 0 or default is None)
        held: dict[_Unit, int] = {}
        sending = 0  # input bytes of the last reduce_scatter, kept until the next one is issued

        def act(kind: str, unit: _Unit, calls: int = 0, elements: int = 0) -> None:
            places = tuple(range(len(self.calls) - calls, len(self.calls)))
            self.acts.append(UnitAct(kind, numbers[unit], places, elements))

        def note(more: int = 0) -> None:
            self.peak_bytes = max(self.peak_bytes, sum(held.values()) + sending + more)

        def gather(unit: _Unit) -> None:
            if unit.parameters and unit not in unsharded:
                call = self._all_gather(unit, self.reshard_ranks if held.get(unit) else self.shards)
                self.calls.append(call)
                act(UNSHARD, unit, 1)
                unsharded.add(unit)
                held[unit] = held.get(unit, 0) + call.bytes_out
                note()

        def use(unit: _Unit) -> None:
            if unit.parameters:
                act(USE, unit)
                held[unit] = self._gathered_bytes(unit)  # its resharded copy is freed

        def forward(unit: _Unit) -> None:
            gather(unit)
            use(unit)
            for entry in unit.body:
                if isinstance(entry, _Unit):
                    forward(entry)
                else:
                    act(FORWARD, unit, elements=entry)
            if unit.parameters:
                ended.append(unit)
            if root_too if unit is root else self.reshard is not False:
                unsharded.discard(unit)
                held[unit] = (
                    self._gathered_bytes(unit) // self.reshard_ranks if self.reshard_ranks else 0
                )

        def backward(unit: _Unit) -> None:
            if unit.parameters and unit.gradient_out:
                gather(unit)
                use(unit)
                index = ended.index(unit)
                if index:
                    gather(ended[index - 1])
            for entry in reversed(unit.body):
                if isinstance(entry, _Unit):
                    backward(entry)
                elif unit.gradient_out:
                    act(BACKWARD, unit, elements=entry)
            if unit.gradient_in:
                reduce(unit)

        def reduce(unit: _Unit) -> None:
            nonlocal sending
            gradients = self._gradient_bytes(unit)
            note(gradients)
            held[unit] = 0
            calls = list(self._reduce(unit))
            self.calls.extend(calls)
            if calls:
                act(SEND, unit, len(calls))
                sending = calls[0].bytes_in
                note(gradients)

        forward(root)
        backward(root)
        # If no gradient reaches the input, a callback at the end of the backward pass reduces.
        for unit in root.walk():
            if not unit.gradient_in:
                reduce(unit)

    def sharded_bytes(self, root: _Unit) -> int:
        """Returns the bytes of parameters and gradients that a rank keeps."""
        return sum(
            self._shard_elements(p) * p.element_size() * (2 if p.requires_grad else 1)
            for unit in root.walk()
            for p in unit.parameters.values()
        )

    def _gathered_bytes(self, unit: _Unit) -> int:
        """Returns the bytes of the unit's whole parameters after an all_gather."""
        return self._all_gather(unit, self.shards).bytes_out if unit.parameters else 0

    def _gradient_bytes(self, unit: _Unit) -> int:
        """Returns the bytes of the unit's gradients before the reduction, in the compute dtype."""
        return sum(
            p.numel() * (self.param_dtype or p.dtype).itemsize
            for p in unit.parameters.values()
            if p.requires_grad
        )

    def _all_gather(self, unit: _Unit, ranks: int) -> TrafficCall:
        """Returns the all_gather of the unit.

        - ranks: the ranks that hold a shard each; fewer than all after resharding to a number.
        """
        dtypes, size_bytes = set(), 0
        for parameter in unit.parameters.values():
            cast = self.param_dtype if parameter.dtype.is_floating_point else None
            dtypes.add(cast or parameter.dtype)
            size_bytes += self._shard_elements(parameter) * (cast or parameter.dtype).itemsize
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8  # mixed dtypes are sent as bytes
        size_bytes *= self.shards
        return TrafficCall(
            "all_gather",
            size_bytes // ranks,
            size_bytes,
            str(dtype).removeprefix("torch."),
            group="shard" if ranks == self.shards else "resharded",
            asynchronous=False,
        )

    def _reduce(self, unit: _Unit) -> Iterator[TrafficCall]:
        """Yields the reduce_scatter of the unit's gradients, and with replicas the all_reduce."""
        parameters = [p for p in unit.parameters.values() if p.requires_grad]
        if not parameters:
            return
        dtype = parameters[0].dtype
        # torch 2.15: without reduce_dtype gradients are reduced in the parameter's own dtype.
        version = tuple(map(int, torch.__version__.split(".")[:2]))
        if self.param_dtype and dtype.is_floating_point and version < (2, 15):
            dtype = self.param_dtype
        dtype = self.reduce_dtype or dtype
        # _get_gradient_divide_factors: other dtypes could overflow; they are divided before and
        # after.
        op = "avg" if dtype in (torch.float32, torch.bfloat16) else "sum"
        shard = sum(self._shard_elements(p) for p in parameters) * dtype.itemsize
        sizes = {"reduce_scatter": (shard * self.shards, shard, "shard")}
        if self.replicas > 1:
            sizes["all_reduce"] = (shard, shard, "replicate")
        for collective, (bytes_in, bytes_out, group) in sizes.items():
            yield TrafficCall(
                collective,
                bytes_in,
                bytes_out,
                str(dtype).removeprefix("torch."),
                op,
                group=group,
                asynchronous=False,
            )

    def _shard_elements(self, parameter: nn.Parameter) -> int:
        """Returns the elements of one rank's shard; dimension 0 is padded to a multiple of the
        ranks.
        """
        rows, *other_dimensions = parameter.shape
        return -(-rows // self.shards) * math.prod(other_dimensions)
