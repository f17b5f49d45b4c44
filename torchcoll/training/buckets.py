"""DDP's buckets on paper: torch's own assignment, on the order of gradients of one meta backward.

Facts of torch/nn/parallel/distributed.py (``_ddp_init_helper``) and reducer.cpp
(``rebuild_buckets``), the same from torch 2.6 to 2.15: the first step has one bucket for each
dtype. Then the buckets are made anew, in the order in which the gradients came, with the limits
[first, cap]. With find_unused_parameters nothing is made anew: registration order, the list
reversed.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import inspect
import math
import os
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchcoll.core.case import fingerprint
from torchcoll.core.errors import UsageError
from torchcoll.core.units import MAX_BYTES, format_bytes, whole_number
from torchcoll.training.plans import DEFAULT_CAP_MB, MIB, Bucket, BucketPlan, Trial, Tried

# -------------------------------------------------------------------------------------------------
# ``package.module:factory`` as a model on meta, for the commands.

_FORM = "package.module:factory, such as train:make_model"


def model_of(target: str) -> nn.Module:
    """What the factory returns when it is called under torch.device("meta").

    The module is looked for in the current folder first, as ``python -m`` does. What it prints goes
    to stderr, for stdout is a table that others may read. A module in place of a factory is taken.
    Raises UsageError where there is no such factory, where it fails, and where it makes no module.
    """
    name, _, attribute = target.partition(":")
    if not name or not attribute:
        raise UsageError("model", target, _FORM)
    if name.endswith(".py") or os.sep in name:
        path = os.path.relpath(name.removesuffix(".py"))
        folder, written = "", path.replace(os.sep, ".")
        if path.startswith(os.pardir):
            folder, written = (
                f"in {os.path.dirname(os.path.abspath(name))} ",
                os.path.basename(path),
            )
        raise UsageError("model", target, _FORM, f"Write {folder}{written}:{attribute}.")
    with _current_folder_first(), contextlib.redirect_stdout(sys.stderr):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise _raised(f"the import of {name}", error) from error
            expected = f"a module that can be imported from here ({error})"
            raise UsageError("model", target, expected) from None
        except (Exception, SystemExit) as error:
            raise _raised(f"the import of {name}", error) from error
        try:
            factory = getattr(module, attribute)
        except AttributeError:
            raise UsageError("model", target, f"a name in {name}: {attribute} is none") from None
        if isinstance(factory, nn.Module):
            return factory
        if not callable(factory):
            expected = "a function without arguments that makes the model"
            raise UsageError("model", f"{target} of type {type(factory).__name__}", expected)
        try:
            with torch.device("meta"):
                model = factory()
        except (Exception, SystemExit) as error:
            raise _raised(target, error) from error
    if not isinstance(model, nn.Module):
        got = f"type {type(model).__name__} from {target}"
        raise UsageError("model", got, "a torch.nn.Module")
    return model


_WITHOUT = (
    "Where it reads the values of its tensors, capture a step (torchcoll.capture), or give "
    "--parameters N."
)


def _raised(what: str, error: BaseException) -> UsageError:
    got = f"{type(error).__name__} from {what}: {error}"
    action = _WITHOUT if "meta" in str(error) else ""
    return UsageError("model", got, "a model on meta", action)


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the module may have changed it
            sys.path.remove(folder)


# -------------------------------------------------------------------------------------------------

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
    parameters = _sent(model)
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


def _sent(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters whose gradients DDP sends."""
    ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    # DDP compares f"{module}.{name}", so that a parameter of the root is ".name".
    found = {
        name: parameter
        for name, parameter in trainable(model).items()
        if (name if "." in name else f".{name}") not in ignored
    }
    if not found:
        raise UsageError("model", "only parameters that DDP is to ignore", "one or more others")
    for name, module in model.named_modules():
        sparse = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        if sparse and module.weight.requires_grad:
            action = "The bytes of sparse ones depend on the data: capture a step."
            raise UsageError("model", f"sparse gradients of {name or 'it'}", "dense ones", action)
    return found


def _order_of_gradients(
    model: nn.Module, step: Callable[[nn.Module], object], names: Sequence[str]
) -> list[str]:
    """The names in the order in which the gradients come in one backward on meta.

    The hook is called where DDP's is: when a gradient is complete, also of a tied parameter.
    """
    copied = _on_meta(model)
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


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy of the model whose tensors are on meta. Raises UsageError where it has no copy.

    The tensors are replaced while copying: a copy that is moved later would need the memory twice.
    """
    memo: dict[int, object] = {}
    try:
        for module in model.modules():
            own = (module._parameters, module._buffers, vars(module))
            for value in [value for values in own for value in values.values()]:
                if isinstance(value, torch.Tensor) and id(value) not in memo:
                    empty = torch.empty_like(value, device="meta", requires_grad=False)
                    if isinstance(value, nn.Parameter):
                        empty = nn.Parameter(empty, requires_grad=value.requires_grad)
                    memo[id(value)] = empty
        return copy.deepcopy(model, memo)
    except Exception as error:
        got = f"one that cannot be copied ({type(error).__name__}: {error})"
        raise UsageError("model", got, "a model that copy.deepcopy takes") from error


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


# -------------------------------------------------------------------------------------------------
# Real training steps with several bucket_cap_mb, interleaved.

Cap = float | None
Make = Callable[[Cap], DistributedDataParallel]


def try_buckets(
    make_ddp: Make,
    step: Callable[[DistributedDataParallel], object],
    caps_mb: Sequence[Cap],
    *,
    rounds: int = 6,
    steps: int = 10,
    skip: int = 3,
    seed: int = 0,
) -> Trial:
    """Measure training steps with each bucket_cap_mb of DDP. To be called on all ranks alike.

    make_ddp(cap) returns DistributedDataParallel(model, bucket_cap_mb=cap); it is called for every
    block, so that one model at a time is in memory. step(model) is one training step: forward,
    backward, and the optimiser if it is to count. caps_mb: in MiB, 2 or more, each once; None is
    DDP's default. The first one is what the others are compared with.

    A round has a block for each cap, in an order shuffled by ``seed``. A block makes the model,
    leaves ``skip`` steps out (the first sends one bucket of everything, in the second the buckets
    are made anew) and times ``steps`` steps, each alone: the device is idle at both ends, and the
    slowest rank counts. Returns the same Trial on all ranks. The interval is over the rounds of
    this launch; a launch is one replicate: repeat it to know how launches differ.

    Raises UsageError outside of a process group, where make_ddp returns no DDP or one with another
    cap, for numbers out of range, and where the ranks were asked for different things.
    """
    caps = _checked(caps_mb)
    asked = {"rounds": rounds, "steps": steps, "skip": skip, "seed": seed}
    for name, least in (("rounds", 2), ("steps", 1), ("skip", 2), ("seed", 0)):
        whole_number(asked[name], name, least)
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError("try_buckets", "no process group", "init_process_group before it")
    generator, agreed = random.Random(seed), False
    times: dict[Cap, list[list[int]]] = {cap: [] for cap in caps}
    for _ in range(rounds):
        for cap in generator.sample(caps, len(caps)):
            model = _made(make_ddp, cap)
            group, device = model.process_group, next(model.parameters()).device
            if not agreed:
                _agree(fingerprint([caps, asked]), group, device)
                agreed = True
            times[cap].append(_block(model, step, skip, steps, device))
            alive = weakref.ref(model)
            del model
            if alive():  # in a cycle: two of them may not fit
                gc.collect()
    rows = [Tried(cap, times[cap], times[caps[0]]) for cap in caps]
    ranks, backend = dist.get_world_size(group), str(dist.get_backend(group))
    trial = Trial(rows, ranks, backend, device.type, rounds, steps, skip, seed)
    if ranks == 1:
        trial.notes.append("1 rank: nothing was communicated")
    return trial


def _checked(caps_mb: Sequence[Cap]) -> list[Cap]:
    if isinstance(caps_mb, str) or not isinstance(caps_mb, Iterable):
        raise UsageError("caps_mb", repr(caps_mb), "a list of MiB, such as [25, 50, 100]")
    caps: list[Cap] = []
    for cap in caps_mb:
        if cap is not None:
            number = isinstance(cap, (int, float)) and not isinstance(cap, bool)
            if not number or not 0 < cap < math.inf:
                raise UsageError("caps_mb", cap, "numbers of MiB above 0, or None for the default")
        if cap in caps:
            raise UsageError("caps_mb", f"{cap} twice", "each once")
        caps.append(cap)
    if len(caps) < 2:
        raise UsageError("caps_mb", f"{len(caps)} of them", "2 or more")
    return caps


def _made(make_ddp: Make, cap: Cap) -> DistributedDataParallel:
    model = make_ddp(cap)
    if not isinstance(model, DistributedDataParallel):
        raise UsageError("make_ddp", type(model).__name__, "DistributedDataParallel")
    wanted = int((DEFAULT_CAP_MB if cap is None else cap) * MIB)
    has = getattr(model, "bucket_bytes_cap", wanted)
    if has != wanted:  # else all caps would be alike, and their noise an answer
        got, expected = f"one with bucket_cap_mb {has / MIB:g}", f"{wanted / MIB:g}"
        raise UsageError("make_ddp", got, expected, "Pass its argument on as bucket_cap_mb.")
    return model


def _agree(asked: str, group: dist.ProcessGroup, device: torch.device) -> None:
    """Raises UsageError, on all ranks, where one was asked for something else."""
    number = int(asked[:15], 16)
    both = torch.tensor([number, -number], device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    if both[0] != -both[1]:
        got = "other caps_mb, rounds, steps, skip or seed on some rank"
        raise UsageError("try_buckets", got, "the same on all ranks")


def _block(
    model: DistributedDataParallel,
    step: Callable[[DistributedDataParallel], object],
    skip: int,
    steps: int,
    device: torch.device,
) -> list[int]:
    """Duration of each step (ns), until the slowest rank had done it."""

    def idle() -> None:
        if device.type != "cpu":
            torch.get_device_module(device).synchronize(device)

    model.train()
    for _ in range(skip):
        step(model)
    idle()
    dist.barrier(group=model.process_group)
    taken = []
    for _ in range(steps):
        start = time.perf_counter_ns()
        step(model)
        idle()
        taken.append(time.perf_counter_ns() - start)
    slowest = torch.tensor(taken, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=model.process_group)
    return [int(ns) for ns in slowest.tolist()]
