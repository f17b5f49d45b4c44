"""What to do next to decide a comparison: a command that can vary what differs."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from torchcoll.core.backends import NCCL, ONECCL, of_family
from torchcoll.stats.differences import Difference
from torchcoll.stats.sides import UNSET
from torchcoll.stats.statistics import FEWEST

if TYPE_CHECKING:
    from torchcoll.questions.comparison.compare import Comparison

# What a virtual environment brings along; a label may name it with its version.
_INSTALLED = ("torch", "torchcoll", "rccl", *of_family(NCCL), *of_family(ONECCL))
_VERSION = re.compile(r"\b(?:nccl|rccl|oneccl|ccl|py)?(?:torch)?[ =:v]*\d+\.\d+", re.IGNORECASE)
_OF_THE_MACHINE = ("kernel", "driver", "host", "hosts", "node", "device_name", "cpu", "machine")


def step_in_turn(comparison: Comparison) -> str:
    """How to measure both sides alternately: with ``versus`` if it can vary what differs."""
    runs = f"{FEWEST} runs of each side in turn"
    axis = _axis(comparison)
    return f"{runs}: torchcoll versus {axis} -o DIR -- COMMAND" if axis else f"make {runs}"


def _axis(comparison: Comparison) -> str:
    """The option of ``versus`` for what differs between the sides; '' if no option varies it."""
    differ = [d for d in comparison.differences if d.base and d.new]
    if any(d.name.removeprefix("label=") in _OF_THE_MACHINE for d in differ):
        return ""
    for difference in differ:
        if difference.name.isupper() and len(difference.base) == len(difference.new) == 1:
            values = ["" if v == UNSET else v for v in (*difference.base, *difference.new)]
            return f"--env {shlex.quote(f'{difference.name}={values[0]},{values[1]}')}"
    if any(_is_installed(difference) for difference in differ):
        return "--axis venv=OLD,NEW"
    return ""


def _is_installed(difference: Difference) -> bool:
    if difference.name.startswith("label="):
        return all(_VERSION.search(" ".join(each)) for each in (difference.base, difference.new))
    return difference.name in _INSTALLED or difference.name.startswith("mapped ")
