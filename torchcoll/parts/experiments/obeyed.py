"""Checks that the file of a run matches its cell: variables may not reach the ranks, and another
library may be loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcoll.core.backends import NCCL, backend_of
from torchcoll.core.errors import UnreadableError
from torchcoll.core.file import load_own
from torchcoll.core.result import Run, shortfall
from torchcoll.core.units import counted
from torchcoll.libraries.nccl import forced as nccl_forced
from torchcoll.parts.experiments.axes import AXES_OF_LIBRARIES, Cell
from torchcoll.parts.experiments.blocks import PlannedRun

# Variables as result files keep them: without those of no prefix, secrets masked.
Recorded = Callable[[Mapping[str, str]], dict[str, str]]

# How a launcher is told to pass a variable on.
_PASSING = {
    "Open MPI": "mpirun needs -x {0}",
    "MPICH": "mpiexec needs -genvlist {0}",
    "Intel MPI": "mpiexec needs -genvlist {0}",
    "PALS": "mpiexec needs --genvlist {0}",
    "srun": "srun needs --export=ALL",
}
OF_RANKS = ("nproc", "ranks")


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    usable: whether the file counts. reason: '' if nothing is wrong. unavailable: see UNAVAILABLE of
    libraries/nccl/forced.py. complete: whether the run came to its end.
    """

    usable: bool
    reason: str = ""
    unavailable: bool = False
    complete: bool = True


def check(path: Path, job: PlannedRun, recorded: Recorded) -> Checked:
    """Read the file of a run and compare it with its cell."""
    try:
        run = load_own(path)
    except UnreadableError as error:
        missing = not path.exists()
        return Checked(False, "no result file" if missing else str(error), complete=False)
    lacking = bool(run.results) and not any(result.status == "ok" for result in run.results)
    if lacking and any(nccl_forced.UNAVAILABLE in result.reason for result in run.results):
        return Checked(False, run.results[0].reason, unavailable=True)
    if not run.complete:
        reason = run.ending or "its file has no end: it was killed, or the disk is full"
        return Checked(False, reason, complete=False)
    wrong = next(_mismatches(run, job, recorded), "")
    if wrong := wrong or _wrong_library(run, job.cell.axes):
        return Checked(False, wrong)
    if problem := shortfall(run.results):
        shortfall_text, first = problem
        reason = f"{shortfall_text}: {first.case.describe()}: {first.reason}"
        return Checked(True, reason)
    return Checked(True)


def _mismatches(run: Run, job: PlannedRun, recorded: Recorded) -> Iterator[str]:
    for name, value in (("cell", job.cell.name), ("run", str(job.run))):
        if run.labels.get(name) != value:
            yield f"its file is of {name} {run.labels.get(name)}, not {value}"
    for name in OF_RANKS:
        asked = job.cell.axes.get(name, "")
        # Of nproc a node there are several times as many. An MPI that is not the launcher's leaves
        # every process alone.
        number = int(asked) if asked.isascii() and asked.isdigit() else 0
        if number and (run.ranks < 1 or run.ranks % number):
            yield f"{name} is {asked}, and {counted(run.ranks, 'rank')} found each other"
    yield from _lost(run, job.cell, recorded)
    version = _nccl_version(run)
    misread = nccl_forced.misread(job.cell.variables, version)
    if misread:
        named = f"{misread}={job.cell.variables[misread]}"
        yield f"NCCL {version} ignores {named}: give --nccl-version {version}"


def _lost(run: Run, cell: Cell, recorded: Recorded) -> Iterator[str]:
    """Variables that do not have the value of the cell on every rank."""
    there: dict[str, str] = run.environment.get("variables") or {}
    for name, value in cell.variables.items():
        if name in _of_axes(cell) or not recorded({name: value or ""}):
            continue
        want = recorded({name: value})[name] if value is not None else None
        ranks = [m.get("variables_that_differ") or {} for m in run.members] or [{}]
        values = [differing.get(name, there.get(name)) for differing in ranks]
        lost = [rank for rank, there_is in enumerate(values) if there_is != want]
        if not lost:
            continue
        if want is None:
            yield f"{name} is {values[lost[0]]} on rank {lost[0]}, and was to be unset"
        elif values[lost[0]] is None:
            how = "the ranks" if len(lost) == len(values) else f"rank {lost[0]}"
            hint = _PASSING.get(str(run.header.get("launcher")), "").format(name)
            yield f"{name} did not reach {how}{f': {hint}' if hint else ''}"
        else:
            yield f"{name} is {values[lost[0]]} on rank {lost[0]}, not {want}"


def unverified(cell: Cell, recorded: Recorded) -> list[str]:
    """The variables that result files do not record, so that nobody can check them."""
    return [n for n in cell.variables if n not in _of_axes(cell) and not recorded({n: ""})]


def _of_axes(cell: Cell) -> set[str]:
    """The variables of axes, which are checked by the libraries that were mapped."""
    return {name for axis in cell.axes for name in AXES_OF_LIBRARIES.get(axis, ())}


def _mapped(run: Run) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yields (rank, mapped libraries) of the ranks that record them."""
    for rank, member in enumerate(run.members):
        if isinstance(member.get("mapped"), list):
            yield rank, [m for m in member["mapped"] if isinstance(m, dict)]


def _nccl_version(run: Run) -> str:
    """The version of NCCL; '' if it is not known, or nothing ran on NCCL."""
    backends = {result.case.backend for result in run.results}
    ran = [name for name in sorted(backends) if backend_of(name).family == NCCL]
    if not ran:
        return ""
    for _, mapped in _mapped(run):
        for library in mapped:
            name = str(library.get("name"))
            if name.startswith(("libnccl.", "librccl.")) and library.get("version"):
                return str(library["version"])
    recorded = (run.environment.get("libraries") or {}).get(ran[0], "")  # NCCL 2.27.5
    return str(recorded).rpartition(" ")[2]


def _wrong_library(run: Run, axes: Mapping[str, str]) -> str:
    """What is wrong with the libraries of the axes ``library`` and ``venv``; '' if nothing is."""
    wanted = {name: axes[name] for name in AXES_OF_LIBRARIES if name in axes}
    ranks = list(_mapped(run))
    if wanted and not ranks:
        return "its file does not say which libraries were mapped"
    for name, path in wanted.items():
        judge = _wrong_preload if name == "library" else _wrong_venv
        for rank, mapped in ranks:
            if wrong := judge(path, mapped):
                return f"rank {rank}: {wrong}"
    return ""


def _wrong_preload(path: str, mapped: list[dict[str, Any]]) -> str:
    real = os.path.realpath(path)
    kind = os.path.basename(path).split(".")[0]  # libnccl; its plug-ins are libnccl-net, ...
    alike = [m for m in mapped if str(m.get("name")).split(".")[0] == kind]
    matches = [m for m in mapped if m.get("path") in (path, real)]
    if not matches:
        there = alike[0].get("path") if alike else "no library of that name"
        return f"LD_PRELOAD did not load {path}; mapped is {there}"
    others = [m for m in alike if m not in matches]
    if others:
        return f"{path} and {others[0].get('path')} are both mapped: which one runs is open"
    return ""


def _wrong_venv(path: str, mapped: list[dict[str, Any]]) -> str:
    torch = next((m for m in mapped if str(m.get("name")).startswith("libtorch_cpu")), None)
    if torch is None:
        return f"no torch is mapped, and that of {path} was to be"
    roots = {path.rstrip("/"), os.path.realpath(path)}
    if not any(str(torch.get("path")).startswith(f"{root}/") for root in roots):
        return f"torch is mapped from {torch.get('path')}, not from {path}"
    return ""
