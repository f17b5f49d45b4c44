"""What to do next to decide a comparison: a command that can vary what differs."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from torchcoll.core.backends import NCCL, ONECCL, of_family
from torchcoll.stats.sides import UNSET
from torchcoll.stats.statistics import FEWEST

if TYPE_CHECKING:
    from torchcoll.questions.comparison.compare import Comparison

# What a virtual environment brings along; a label may name it with its version.
_INSTALLED = ("torch", "torchcoll", "rccl", *of_family(NCCL), *of_family(ONECCL))
_LABEL = re.compile(r"label=.*(?:ccl|torch)\W*v?\d", re.IGNORECASE)


def step_in_turn(comparison: Comparison) -> str:
    """How to measure both sides alternately: with ``versus`` if it can vary what differs."""
    axis = ""
    for difference in comparison.differences:
        name, values = difference.name, (*difference.base, *difference.new)
        if name.isupper() and len(difference.base) == len(difference.new) == 1:
            texts = ["" if value == UNSET else value for value in values]
            axis = f"--env {shlex.quote(f'{name}={texts[0]},{texts[1]}')}"
            break
        versions = all(_LABEL.match(f"{name} {value}") for value in values)
        if versions or name in _INSTALLED or name.startswith("mapped "):
            axis = "--axis venv=OLD,NEW"
    runs = f"{FEWEST} runs of each side in turn"
    return f"{runs}: torchcoll versus {axis} -o DIR -- COMMAND" if axis else f"make {runs}"
