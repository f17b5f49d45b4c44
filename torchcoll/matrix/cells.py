"""The cells of a matrix: what each launch is given beside the command that all share."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.errors import UsageError
from torchcoll.core.variables import (
    masked_labels,
    masked_value,
    masked_variables,
    masked_words,
)
from torchcoll.libraries.forcing import FORCING
from torchcoll.libraries.nccl import algorithms as nccl

AUTO = "auto"  # the cell in which nothing is forced
_RESERVED = ("cell", "launch")  # labels of every launch
_LONGEST_PART, _LONGEST = 60, 150  # of 255 that a file's name may have
# Axes that need no placeholder, and the variables that they set.
AXES_OF_LIBRARIES = {
    "library": ("LD_PRELOAD",),
    "venv": ("VIRTUAL_ENV", "PATH", "PYTHONHOME"),
}


@dataclass(frozen=True)
class Cell:
    """One combination; also one value of one dimension, before they are combined.

    axes: values of the placeholders, and of the axes ``library`` and ``venv``; they become labels.
    variables: None takes a variable away. arguments: more words behind the command.
    """

    name: str
    axes: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str | None] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As the manifest keeps it: secrets are masked."""
        return {
            "name": self.name,
            "axes": masked_labels(self.axes),
            "variables": masked_variables(self.variables),
            "arguments": masked_words(self.arguments),
        }


Dimension = list[Cell]


def split_values(text: str) -> list[str]:
    r"""``a,b`` as a list; a comma in a value is written ``\,``."""
    return [part.replace("\0", ",") for part in text.replace("\\,", "\0").split(",")]


def variable_dimension(text: str) -> Dimension:
    """``NAME=V1,V2``; an empty value leaves the variable unset. Raises UsageError."""
    name, equals, values = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UsageError(
            "env", text, "NAME=V1,V2", r"NAME=,V1 leaves it unset first; \, is a comma in a value."
        )
    found = []
    for value in _distinct("env", name, split_values(values)):
        if value and name in nccl.VARIABLES and (word := nccl.unknown_word(name, value)):
            # Up to 2.23 NCCL ignores it in silence, and another algorithm would bear its name.
            raise UsageError(
                f"env {name}", value, "words that NCCL knows", f"It does not know {word!r}."
            )
        shown = masked_value(name, value)  # the name is that of files and labels
        part = value if name in FORCING else joined(_short(name), shown)
        found.append(Cell(file_safe(part) if value else "", {}, {name: value or None}))
    return found


def axis_dimension(text: str, environ: Mapping[str, str] = os.environ) -> Dimension:
    """``name=V1,V2``; ``library`` and ``venv`` set what makes the ranks use them."""
    name, equals, given = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UsageError("axis", text, "name=V1,V2", r"\, is a comma in a value.")
    if name in _RESERVED:
        raise UsageError("axis", name, f"another name than {' and '.join(_RESERVED)}")
    values = _distinct("axis", name, split_values(given))
    if "" in values:
        raise UsageError(f"axis {name}", given, "values that are not empty")
    parts = _short_paths(values) if name in AXES_OF_LIBRARIES else None
    return [
        Cell(
            file_safe(parts[value] if parts else joined(name, masked_labels({name: value})[name])),
            {name: value},
            _variables_of(name, value, environ),
        )
        for value in values
    ]


def _variables_of(axis: str, value: str, environ: Mapping[str, str]) -> dict[str, str | None]:
    if axis == "library":
        if not os.path.isabs(value) or not os.path.isfile(value):
            raise UsageError("axis library", value, "the absolute path of a shared library")
        return {"LD_PRELOAD": " ".join(p for p in (value, environ.get("LD_PRELOAD")) if p)}
    if axis == "venv":
        if not os.path.isabs(value) or not os.path.isfile(os.path.join(value, "bin", "python")):
            raise UsageError("axis venv", value, "the absolute path of a folder with bin/python")
        path = [os.path.join(value, "bin"), *filter(None, [environ.get("PATH")])]
        return {"VIRTUAL_ENV": value, "PATH": os.pathsep.join(path), "PYTHONHOME": None}
    return {}


def _distinct(what: str, name: str, values: list[str]) -> list[str]:
    twice = next((value for value, count in Counter(values).items() if count > 1), None)
    if twice is not None:
        raise UsageError(
            f"{what} {name}", f"{twice or 'unset'} twice", "each value once: cells would be equal"
        )
    return values


def _short(variable: str) -> str:
    return variable.removeprefix("NCCL_").removeprefix("CCL_")


def joined(name: str, value: str) -> str:
    """``nproc2``, ``mode_fast``."""
    return f"{name}{value}" if value[:1].isdigit() and name[-1:].isalpha() else f"{name}_{value}"


def _short_paths(values: Sequence[str]) -> dict[str, str]:
    """Paths without the folder that all lie in."""
    if len(values) == 1:
        return {values[0]: os.path.basename(values[0].rstrip("/"))}
    shared = os.path.commonpath(values)
    return {value: os.path.relpath(value, shared) for value in values}


def file_safe(part: str) -> str:
    text = re.sub(r"[^\w.+,-]+", "-", part, flags=re.ASCII).replace(",", "+")
    return text.strip("-.")[:_LONGEST_PART] or "value"


def combined(dimensions: Sequence[Dimension]) -> list[Cell]:
    """Every combination of one value of each dimension. UsageError where two set the same."""
    _check_apart(dimensions)
    several = [dimension for dimension in dimensions if len(dimension) > 1]
    named = {id(cell) for dimension in several or dimensions for cell in dimension}
    cells = []
    for values in itertools.product(*dimensions):
        axes: dict[str, str] = {}
        variables: dict[str, str | None] = {}
        arguments: tuple[str, ...] = ()
        for value in values:
            axes |= value.axes
            variables |= value.variables
            arguments += value.arguments
        name = _name([value for value in values if id(value) in named], variables)
        cells.append(Cell(name, axes, variables, arguments))
    return _numbered(cells)


def _check_apart(dimensions: Sequence[Dimension]) -> None:
    seen: set[str] = set()
    for dimension in dimensions:
        own = {name for cell in dimension for name in (*cell.axes, *cell.variables)}
        for name in sorted(own & seen):
            raise UsageError("matrix", f"{name} twice", "each variable and each axis once")
        seen |= own


def _name(values: Sequence[Cell], variables: Mapping[str, str | None]) -> str:
    """The parts with a ``-`` between. Where all variables are unset these are ``auto`` together."""
    parts = [value.name for value in values if value.name]
    free = [value for value in values if value.variables and not value.axes]
    if not any(value.name for value in free) and (free or not parts):
        forced = any(variables.get(name) for name in FORCING)
        parts.insert(0, "unset" if forced else AUTO)
    return "-".join(parts)


def _numbered(cells: Sequence[Cell]) -> list[Cell]:
    """Names that became equal when they were made fit for files get a number."""
    found: dict[str, Cell] = {}
    for cell in cells:
        first = name = cell.name[:_LONGEST]
        number = 1
        while name in found:
            number += 1
            name = f"{first}_{number}"
        found[name] = Cell(name, cell.axes, cell.variables, cell.arguments)
    return list(found.values())
