"""The cells of a matrix: what each run is given beside the command that all share."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.errors import UsageError
from torchcoll.core.opening import common_folder
from torchcoll.core.variables import (
    masked_labels,
    masked_value,
    masked_variables,
    masked_words,
    name_of,
)
from torchcoll.libraries.known_variables import FORCING
from torchcoll.libraries.nccl import forced as nccl_forced

_UNSET = "unset"
AUTO = "auto"  # the cell in which nothing is forced
_RESERVED = ("cell", "run")  # labels of every run
_LONGEST_PART, _LONGEST = 60, 150  # of 255 that a file's name may have
# Axes that need no placeholder, and the variables that they set.
AXES_OF_LIBRARIES = {"library": ("LD_PRELOAD",), "venv": ("VIRTUAL_ENV", "PATH", "PYTHONHOME")}


@dataclass(frozen=True)
class Cell:
    """One combination; also one value of one dimension, before they are combined.

    axes: values of the placeholders, and of the axes ``library`` and ``venv``; they become labels.
    variables: None unsets a variable. arguments: added to the command.
    """

    name: str
    axes: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str | None] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, str]:
        """The axes and the variables, without those that an axis sets: secrets are masked."""
        of_axes = {name for axis in self.axes for name in AXES_OF_LIBRARIES.get(axis, ())}
        unmatched = {k: v for k, v in self.variables.items() if k not in of_axes}
        variables = masked_variables(unmatched).items()
        settings = {name: _UNSET if value is None else value for name, value in variables}
        return {**masked_labels(self.axes), **settings}

    @property
    def title(self) -> str:
        """What the cell sets, as a user writes it: ``NCCL_ALGO=Ring``, ``NCCL_ALGO unset``."""
        parts = [
            f"{name} unset" if value == _UNSET else f"{name}={value}"
            for name, value in self.settings.items()
        ]
        return ", ".join(parts) if parts else self.name

    @property
    def version(self) -> str:
        """The value of the axis or variable that tells the versions of ``bisect`` apart."""
        values = [*self.axes.values(), *(value or _UNSET for value in self.variables.values())]
        return values[0] if values else self.name

    def to_json(self) -> dict[str, Any]:
        """As the manifest keeps it: secrets are masked."""
        return {
            "name": self.name,
            "axes": masked_labels(self.axes),
            "variables": masked_variables(self.variables),
            "arguments": masked_words(self.arguments),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Cell:
        """Read a cell of a manifest. Raises TypeError or ValueError for anything else."""
        axes, variables = (dict(stored.get(name) or {}) for name in ("axes", "variables"))
        variables = {name_of(name): value for name, value in variables.items()}
        arguments = tuple(map(str, stored.get("arguments") or ()))
        return cls(str(stored["name"]), axes, variables, arguments)


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
    cells = []
    for value in _distinct("env", name, split_values(values)):
        if (
            value
            and name in nccl_forced.VARIABLES
            and (argument := nccl_forced.unknown_word(name, value))
        ):
            # Up to 2.23 NCCL ignores it in silence, and another algorithm would bear its name.
            raise UsageError(
                f"env {name}", value, "words that NCCL knows", f"It does not know {argument!r}."
            )
        shown = masked_value(name, value)  # the name is that of files and labels
        part = value if name in FORCING else joined(_short(name), shown)
        cells.append(Cell(file_safe(part) if value else "", {}, {name: value or None}))
    return cells


def axis_dimension(text: str, environ: Mapping[str, str] = os.environ) -> Dimension:
    """``name=V1,V2``; ``library`` and ``venv`` set what makes the ranks use them."""
    name, equals, given = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UsageError("axis", text, "name=V1,V2", r"\, is a comma in a value.")
    if name in _RESERVED:
        raise UsageError("axis", name, f"another name than {' and '.join(_RESERVED)}")
    values = split_values(given)
    if name in AXES_OF_LIBRARIES:  # the ranks may have another working directory
        values = [value and os.path.abspath(os.path.expanduser(value)) for value in values]
    values = _distinct("axis", name, values)
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
        return {"LD_PRELOAD": " ".join(p for p in (value, environ.get("LD_PRELOAD")) if p)}
    if axis == "venv":
        path = [os.path.join(value, "bin"), *filter(None, [environ.get("PATH")])]
        return {"VIRTUAL_ENV": value, "PATH": os.pathsep.join(path), "PYTHONHOME": None}
    return {}


def missing_file(axis: str, value: str) -> str:
    """The file that a value of ``library`` or ``venv`` needs if it does not exist, or ''."""
    files = {"library": value, "venv": os.path.join(value, "bin", "python")}
    return "" if axis not in files or os.path.isfile(files[axis]) else files[axis]


def check_files(cell: Cell) -> None:
    """Raises UsageError for a library or environment that does not exist."""
    expected = {
        "library": "the path of a shared library",
        "venv": "the path of a folder with bin/python",
    }
    for axis, value in cell.axes.items():
        if missing_file(axis, value):
            raise UsageError(f"axis {axis}", value, expected[axis])


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
    shared = common_folder(values)
    return {value: os.path.relpath(value, shared) for value in values}


def file_safe(part: str) -> str:
    text = re.sub(r"[^\w.+,-]+", "-", part, flags=re.ASCII).replace(",", "+")
    return text.strip("-.")[:_LONGEST_PART] or "value"


def combined(dimensions: Sequence[Dimension]) -> list[Cell]:
    """Every combination of one value of each dimension. UsageError where two set the same."""
    _check_separate(dimensions)
    vary = [len(dimension) > 1 for dimension in dimensions]
    vary = vary if any(vary) else [True] * len(dimensions)
    cells = []
    for values in itertools.product(*dimensions):
        axes: dict[str, str] = {}
        variables: dict[str, str | None] = {}
        arguments: tuple[str, ...] = ()
        for value in values:
            axes |= value.axes
            variables |= value.variables
            arguments += value.arguments
        name = _name([v for v, varies in zip(values, vary, strict=True) if varies], variables)
        cells.append(Cell(name, axes, variables, arguments))
    return _numbered(cells)


def _check_separate(dimensions: Sequence[Dimension]) -> None:
    seen: set[str] = set()
    for dimension in dimensions:
        names = {name for cell in dimension for name in (*cell.axes, *cell.variables)}
        for name in sorted(names & seen):
            raise UsageError("matrix", f"{name} twice", "each variable and each axis once")
        seen |= names


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
    by_name: dict[str, Cell] = {}
    for cell in cells:
        first = name = cell.name[:_LONGEST]
        number = 1
        while name in by_name:
            number += 1
            name = f"{first}_{number}"
        by_name[name] = dataclasses.replace(cell, name=name)
    return list(by_name.values())
