"""Dimensions of common questions: ``torchcoll matrix --preset NAME``.

Each preset is a function of its options that returns cells; torchcoll/libraries knows which values
are valid for which library and version.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata

from torchcoll.core.backends import only_device
from torchcoll.core.errors import UsageError, choice
from torchcoll.libraries.known_variables import Forcing
from torchcoll.libraries.nccl import algorithms as nccl
from torchcoll.libraries.nccl import forced as nccl_forced
from torchcoll.libraries.oneccl import algorithms as oneccl
from torchcoll.parts.experiments.axes import AUTO, Cell, Dimension
from torchcoll.parts.experiments.launch_command import SUITE, Command

_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")


@dataclass
class PresetOptions:
    """The inputs of a preset. axes: names of the other axes. notes: what the user must know."""

    command: Command
    axes: Sequence[str] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)  # single values of --env
    nccl_version: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    notes: list[str] = field(default_factory=list)

    def variable(self, name: str) -> str:
        return self.variables.get(name, self.environ.get(name)) or ""


def preset(name: str, asked: PresetOptions) -> Dimension:
    """The cells of a preset. Raises UsageError for an unknown one, and for what it cannot do."""
    choice(name, "preset", PRESETS)
    return PRESETS[name](asked)


def _nccl_algorithms(asked: PresetOptions) -> Dimension:
    collectives = _with_algorithms(asked, nccl.FUNCTIONS, "NCCL")
    return _forced(asked, collectives, nccl_forced.forcings(collectives, _nccl_version(asked)))


def _device(command: Command) -> str | None:
    """The device type of the command, or the only one of its backend."""
    return command.option("--device") or only_device(command.option("--backend"))


def _oneccl_algorithms(asked: PresetOptions) -> Dimension:
    collectives = _with_algorithms(asked, oneccl.COLLECTIVES, "oneCCL")
    option, device = asked.command.option("--device"), _device(asked.command)
    if device not in ("cpu", "xpu"):
        raise UsageError(
            "preset oneccl-algorithms",
            f"{'--device ' + option if option else 'no --device'} in the command",
            "--device cpu or --device xpu",
            "oneCCL chooses among other algorithms on each.",
        )
    mpi = asked.variable("CCL_ATL_TRANSPORT") == "mpi"
    if not mpi:
        asked.notes.append("direct is left out: it needs --env CCL_ATL_TRANSPORT=mpi and an mpirun")
    return _forced(asked, collectives, oneccl.forcings(collectives, device, mpi))


def _with_algorithms(asked: PresetOptions, supported: Iterable[str], library: str) -> list[str]:
    """The collectives of the command for which the library has several algorithms."""
    collectives, supported = asked.command.collectives(), tuple(supported)
    chosen = [name for name in collectives if name in supported]
    if not chosen:
        raise UsageError(
            "collective",
            ", ".join(collectives),
            f"one of {', '.join(supported)}",
            f"For others {library} has nothing to choose from.",
        )
    without = [name for name in collectives if name not in supported]
    if without:
        asked.notes.append(f"left out, {library} has one way for each: {', '.join(without)}")
    return chosen


def _nccl_version(asked: PresetOptions) -> str:
    if asked.nccl_version:
        if nccl_forced.version_key(asked.nccl_version) < (2, 0):
            raise UsageError("nccl-version", asked.nccl_version, "a version such as 2.27.5")
        return asked.nccl_version
    versions = set()
    if not {"library", "venv"} & set(asked.axes):
        for package in _NCCL_PACKAGES:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions.add(metadata.version(package))
    if len(versions) != 1:
        raise UsageError(
            "nccl-version",
            " and ".join(sorted(versions)) or "none, and no NCCL package in this Python to ask",
            "the version that the ranks load, such as --nccl-version 2.27.5",
            'python -c "import torch; print(torch.cuda.nccl.version())" tells it.',
        )
    return versions.pop()


def _forced(
    asked: PresetOptions, collectives: Sequence[str], forcings: Sequence[Forcing]
) -> Dimension:
    """A cell for each forced choice, and one without any.

    Each sets or unsets all variables of the others, whatever the environment of the caller has. A
    suite is narrowed to the collectives that have the choice: others would run unforced under its
    name.
    """
    names = dict.fromkeys(name for forcing in forcings for name in forcing.variables)
    every = Forcing(AUTO, tuple(collectives), {})
    cells = []
    for forcing in (every, *forcings):
        argv = ("--collectives", ",".join(forcing.collectives))
        variables = {name: forcing.variables.get(name) for name in names}
        narrowed = argv if asked.command.module == SUITE else ()
        cells.append(Cell(forcing.name, {}, variables, narrowed))
    return cells


PRESETS: dict[str, Callable[[PresetOptions], Dimension]] = {
    "nccl-algorithms": _nccl_algorithms,
    "oneccl-algorithms": _oneccl_algorithms,
}
