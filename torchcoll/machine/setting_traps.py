"""Settings that make a run hang, slow it, or measure something else than was meant.

``torchcoll doctor`` reports them before a run. A run records the findings for its backends on each
host, so that its verdict and every comparison with it can name them. The table is traps.toml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torchcoll.core.backends import ONECCL, VISIBLE_GPUS, of_family
from torchcoll.core.toml_text import toml_table
from torchcoll.core.units import counted
from torchcoll.core.variables import kept_value
from torchcoll.libraries.oneccl.variables import ALGORITHMS

_WITHOUT_MPI = ("torchrun", "RANK and WORLD_SIZE")
_WITH_MPI = ("Open MPI", "Intel MPI", "MPICH", "MPI", "PALS")


@cache
def trap_table() -> dict[str, Any]:
    """The content of traps.toml."""
    file = Path(__file__).with_name("traps.toml")
    return toml_table(file.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Finding:
    """A trap.

    name: stable, for scripts.
    severity: error (a run fails or hangs), warning (numbers are misleading) or note.
    what, why, action: what was found, its effect, and what to do about it.
    backends: the only backends that it affects; () for all. If none of them can be used here the
        doctor reports it as a note.
    variables: the environment variables that it is about; () for a trap that is no setting.
    """

    name: str
    severity: str
    what: str
    why: str
    action: str
    backends: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """How the ranks of one host were started.

    environ: variables of a rank.
    launcher: its name in machine/launcher.py.
    ranks: number of ranks on the host.
    cores: number of cores that they may use together.
    ccl_on_cpu: oneCCL of the bindings communicates CPU tensors.
    gpu_build: ``cuda`` or ``hip`` if torch was built for GPUs of that kind, else ''.
    """

    environ: Mapping[str, str]
    launcher: str
    ranks: int
    cores: int
    ccl_on_cpu: bool
    gpu_build: str = ""

    @property
    def visible(self) -> int:
        """How many devices ZE_AFFINITY_MASK shows."""
        mask = self.environ.get("ZE_AFFINITY_MASK", "")
        return len({item.strip() for item in mask.split(",") if item.strip()})


def _workers_lack_cores(settings: Settings) -> bool:
    # Measured with 2 ranks on 2 cores: 24.7 ms instead of 57 us at 1 KiB, and 29.3 ms instead of
    # 516 us at 1 MiB. Under mpirun oneCCL disables its workers itself.
    crowded = settings.ranks > 1 and settings.ranks * 2 > settings.cores
    return settings.ccl_on_cpu and crowded and settings.launcher not in _WITH_MPI


def hiding_variable(environ: Mapping[str, str], gpu_build: str) -> str | None:
    """The variable that hides every GPU, as -1 does; None if none does."""
    for name in VISIBLE_GPUS[: 3 if gpu_build == "hip" else 1]:
        value = environ.get(name)
        if value is not None and (not value.strip() or value.strip().startswith(("-1", "NoDev"))):
            return name
    return None


# The conditions that a setting of the table names with ``when``.
CONDITIONS: dict[str, Callable[[Settings], bool]] = {
    "without_mpi": lambda settings: settings.launcher in _WITHOUT_MPI,
    "workers_lack_cores": _workers_lack_cores,
    "devices_hidden": lambda settings: 0 < settings.visible < settings.ranks,
}


def setting_traps(settings: Settings) -> Iterator[Finding]:
    """Yield the traps in one host's settings."""
    environ = settings.environ
    for trap in trap_table()["setting"]:
        family = trap.get("family")
        patterns = trap["values"]
        if trap["name"] == "forced" and family == ONECCL:
            patterns = dict.fromkeys(ALGORITHMS, ".+")
        names = tuple(
            name
            for name, pattern in patterns.items()
            if re.fullmatch(pattern, environ.get(name, ""))
        )
        if not names or ("when" in trap and not CONDITIONS[trap["when"]](settings)):
            continue
        what = trap.get("what", "{settings} in the environment").format(
            settings=", ".join(_assignment(environ, name) for name in names),
            launcher=settings.launcher,
            ranks=settings.ranks,
            visible=settings.visible,
            counted_cores=counted(settings.cores, "core"),
        )
        backends = of_family(family) if family else ()
        texts = what, trap["why"], trap["action"]
        yield Finding(trap["name"], trap["severity"], *texts, backends, names)
    if hidden := settings.gpu_build and hiding_variable(environ, settings.gpu_build):
        yield Finding(
            "hidden_devices",
            "warning",
            f"{_assignment(environ, hidden)} hides every GPU",
            "nccl cannot be used.",
            f"Unset {hidden}.",
            variables=(hidden,),
        )


def _assignment(environ: Mapping[str, str], name: str) -> str:
    """``NAME=value``, ``NAME=''`` or ``NAME is unset``."""
    if name not in environ:
        return f"{name} is unset"
    value = kept_value(name, environ[name])
    return f"{name}={value}" if value else f"{name}=''"
