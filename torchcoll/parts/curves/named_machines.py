"""What `--machine` names: a file that ``model fit`` wrote, or a machine that others measured.

``predict`` is the same from Python.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from torchcoll.core.errors import UsageError
from torchcoll.core.units import parse_size
from torchcoll.parts.curves.model import MachineModel
from torchcoll.parts.curves.model_file import load_model
from torchcoll.parts.curves.model_fit import FittedModel
from torchcoll.parts.curves.predictor import Prediction, Predictor
from torchcoll.parts.curves.published_machine import PublishedMachine, published_machines
from torchcoll.questions.check.published import publications

LIST = "list"
_ALIKE, _NEAREST = 12, 3  # names that are looked at, and that an error names


def find_machine(text: str | os.PathLike[str]) -> Predictor:
    """The machine of a file, or of the published set.

    Raises UsageError for a name that is neither, with the nearest names; UnreadableError for a file
    that is no model.
    """
    name = os.fspath(text)
    machines = published_machines()
    by_key = {key.lower(): machine for key, machine in machines.items()}
    if machine := by_key.get(name.lower().replace(" ", "")):
        return machine
    of_entry = {run.id.lower(): run.type for run in publications()}
    if (entry_type := of_entry.get(name.lower())) in machines:
        return machines[entry_type]
    if os.path.exists(name) or Path(name).name != name or Path(name).suffix:
        return load_model(name)
    expected = "a file that `torchcoll model fit` wrote, or a published machine"
    near = get_close_matches(name.lower(), by_key, n=_ALIKE, cutoff=0.4)
    near.sort(key=lambda key: name.lower() not in key)  # such as 8xH100 and aws-p5 for h100 and p5
    *others, last = [by_key[key].name for key in near[:_NEAREST]] or [""]
    nearest = f"Did you mean {', '.join(others)}{' or ' * bool(others)}{last}? " if last else ""
    action = f"{nearest}--machine list has all of them."
    raise UsageError("machine", name, expected, action)


def as_machine(
    machine: FittedModel | MachineModel | PublishedMachine | str | os.PathLike[str],
) -> Predictor:
    """The machine of what ``fit_model`` returned, of a file, or of a name.

    Raises UsageError for anything else, and as ``find_machine`` does.
    """
    if isinstance(machine, FittedModel):
        return machine.model
    if isinstance(machine, str | os.PathLike):
        return find_machine(machine)
    if not isinstance(machine, MachineModel | PublishedMachine):
        expected = "what fit_model returned, a file of `torchcoll model fit`, or a name: 8xH100"
        raise UsageError("machine", type(machine).__name__, expected)
    return machine


def predict(
    machine: FittedModel | MachineModel | PublishedMachine | str | os.PathLike[str],
    collective: str,
    size: int | str,
    ranks: int,
    hosts: int | None = None,
) -> Prediction:
    """Predict the time of one call on a machine, with its 90 % interval.

    - machine: what ``fit_model`` returned, the file that ``torchcoll model fit`` wrote, or the name
      of a machine that others measured, such as ``8xH100`` (``torchcoll model predict list``).
    - size: the size S of nccl-tests, in bytes or as text such as ``"25M"``.
    - hosts: on how many hosts the ranks are; by default as few as they fill.

    Returns a ``Prediction``. Raises UsageError for what cannot be predicted.
    """
    predictor = as_machine(machine)
    if not isinstance(collective, str):
        raise UsageError("collective", type(collective).__name__, "a name such as all_reduce")
    size_bytes = parse_size(size) if isinstance(size, int | str) else None
    if size_bytes is None:
        raise UsageError("size", type(size).__name__, "bytes, or text such as 25M")
    for what, value in (("ranks", ranks), ("hosts", 1 if hosts is None else hosts)):
        if type(value) is not int:
            raise UsageError(what, type(value).__name__, "a whole number")
    if hosts is not None and (hosts < 1 or ranks % hosts):
        raise UsageError("ranks", ranks, f"a multiple of the hosts ({hosts})")
    return predictor.predict(collective, size_bytes, ranks, hosts)
