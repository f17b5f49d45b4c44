"""Makes the model of ``package.module:factory`` on the meta device, for the commands."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterator

import torch
from torch import nn

from torchcoll.core.errors import (
    UsageError,
    did_you_mean,
)
from torchcoll.parts.training.architectures import (
    EMBEDDING,
    HEAD,
    LAYER,
    MODULE,
    Architecture,
    ModelBlock,
    Weight,
)

_FORM = "package.module:factory, such as train:make_model"


def make_model(target: str) -> nn.Module:
    """Returns the model that the factory makes under torch.device("meta").

    - target: ``package.module:factory``. A model in place of the factory is accepted.

    The module is looked up in the current folder first, as ``python -m`` does. What it prints goes
    to stderr, because stdout is for tables that programs may read. Raises UsageError if there is no
    such factory, if it fails, and if it does not return a torch.nn.Module.
    """
    name, _, attribute = target.partition(":")
    if not name or not attribute:
        raise UsageError("model", target, _FORM)
    if name.endswith(".py") or os.sep in name:
        raise UsageError("model", target, _FORM, "Name the module as in `import`, not its file.")
    with _current_folder_first(), contextlib.redirect_stdout(sys.stderr):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise _model_error(f"the import of {name}", error) from error
            expected = f"a module that can be imported from here ({error})"
            action = f"Run it where {name.partition('.')[0]} is, or add that folder to PYTHONPATH."
            raise UsageError("model", target, expected, action) from None
        except (Exception, SystemExit) as error:
            raise _model_error(f"the import of {name}", error) from error
        try:
            factory = getattr(module, attribute)
        except AttributeError:
            expected = f"a function of module {name}, which has no {attribute}"
            hint = did_you_mean(attribute, [each for each in vars(module) if each[0] != "_"])
            raise UsageError("model", target, expected, hint) from None
        if isinstance(factory, nn.Module):
            return factory
        if not callable(factory):
            expected = "a function without arguments that makes the model"
            raise UsageError("model", f"{target} of type {type(factory).__name__}", expected)
        try:
            with torch.device("meta"):
                model = factory()
        except (Exception, SystemExit) as error:
            raise _model_error(target, error) from error
    if not isinstance(model, nn.Module):
        actual = f"type {type(model).__name__} from {target}"
        raise UsageError("model", actual, "a torch.nn.Module")
    return model


_WITHOUT_MODEL = "Where it reads the values of its tensors, capture a step (torchcoll.capture)."


def _model_error(what: str, error: BaseException) -> UsageError:
    actual = f"{type(error).__name__} from {what}: {error}"
    action = _WITHOUT_MODEL if "meta" in str(error) else ""
    return UsageError("model", actual, "a model on meta", action)


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the module may have changed it
            sys.path.remove(folder)


def read_module(target: str) -> Architecture:
    """Returns the parameters of the model that a factory makes, as an architecture.

    - target: as in ``make_model``.

    Its layers are the children of its outermost ModuleLists and Sequentials; without one, all of
    its parameters are in one unit. How tensor parallelism would split them is not known.
    """
    model = make_model(target)
    prefixes = list(_layer_names(model))
    blocks: dict[str, list[Weight]] = {EMBEDDING: [], HEAD: []}
    of_layers: dict[str, list[Weight]] = {prefix: [] for prefix in prefixes}
    dtypes = Counter[str]()
    behind = False
    for name, parameter in model.named_parameters():
        weight = Weight(name, tuple(parameter.shape), trainable=parameter.requires_grad)
        dtypes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
        layer = next((prefix for prefix in prefixes if name.startswith(f"{prefix}.")), None)
        if layer is not None:
            behind = True
            of_layers[layer].append(weight)
        else:
            blocks[HEAD if behind else EMBEDDING].append(weight)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("model", "no parameter with a gradient", "one or more")
    layers = [ModelBlock(LAYER, tuple(weights)) for weights in of_layers.values() if weights]
    return Architecture(
        source=target,
        model_type=MODULE,
        blocks=(
            ModelBlock(EMBEDDING, tuple(blocks[EMBEDDING])),
            *layers,
            ModelBlock(HEAD, tuple(blocks[HEAD])),
        ),
        dtype=dtypes.most_common(1)[0][0],
    )


def _layer_names(module: nn.Module, prefix: str = "") -> Iterator[str]:
    """Yields the names of the children of the outermost containers with several of them."""
    children = [(f"{prefix}{name}", child) for name, child in module.named_children()]
    with_parameters = [name for name, child in children if any(True for _ in child.parameters())]
    if isinstance(module, nn.ModuleList | nn.Sequential) and len(with_parameters) > 1:
        yield from with_parameters
        return
    for name, child in children:
        yield from _layer_names(child, f"{name}.")
