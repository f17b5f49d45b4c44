"""What `--machine` names: a file that ``model fit`` wrote, or a machine that others measured."""

from __future__ import annotations

import os
from pathlib import Path

from torchcoll.core.errors import UsageError, did_you_mean
from torchcoll.curves.model_file import load_model
from torchcoll.curves.predictor import Predictor
from torchcoll.curves.published_machine import published_machines

LIST = "list"


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
    if os.path.exists(name) or Path(name).name != name or Path(name).suffix:
        return load_model(name)
    expected = "a file that `torchcoll model fit` wrote, or a published machine"
    action = f"{did_you_mean(name, machines, least=0.4)} --machine list has all of them.".strip()
    raise UsageError("machine", name, expected, action)
