"""Detects the launcher of this process, its rank and the number of ranks from variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchcoll.core.errors import UsageError


@dataclass(frozen=True)
class Launch:
    """How this process was launched: its rank, the number of ranks, and the same for its host."""

    launcher: str
    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    job_id: str | None = None
    rendezvous_file: str | None = None  # from the command line; replaces MASTER_ADDR
    # False: the launcher gives no local rank. The ranks of a host are counted when they meet.
    has_local_rank: bool = field(default=True, compare=False)


BY_HAND = "RANK and WORLD_SIZE"  # the launcher's name if torchrun's variables were set by others

# Launcher -> variables of the rank, the number of ranks, the local rank and the local number of
# ranks. Of several names the first that is set counts. Sources: torch.distributed.run; srun(1);
# users' scripts for PALS (never run here); and what Open MPI 4.1, MPICH 4.0 and Intel MPI 2021.19
# print; for Flux flux-environment(7) and src/shell/task.c of flux-core; for jsrun (JSM, on LSF)
# Lightning's LSFEnvironment and users' code. Neither of the two was ever run here. Hydra sets PMI_*
# under MPICH and Intel MPI, and so do Flux and srun --mpi=pmi2.
_LAUNCHERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "torchrun": (("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    "Open MPI": (
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    "PALS": (
        ("PALS_RANKID",),
        ("PALS_SIZE", "PMI_SIZE", "WORLD_SIZE"),  # with PALS_PMI=pmix there may be none
        ("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
    ),
    "Flux": (("FLUX_TASK_RANK",), ("FLUX_JOB_SIZE",), ("FLUX_TASK_LOCAL_ID",), ()),
    "jsrun": (
        ("JSM_NAMESPACE_RANK",),
        ("JSM_NAMESPACE_SIZE",),
        ("JSM_NAMESPACE_LOCAL_RANK",),
        ("JSM_NAMESPACE_LOCAL_SIZE",),
    ),
    "MPI": (
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    ),
    # SLURM_PROCID is also set in a batch script, but only srun has a numbered step.
    "srun": (
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
    ),
    # Any other launcher with PMIx, which has no size. The launchers above also set PMIX_RANK.
    "PMIx": (("PMIX_RANK",), ("WORLD_SIZE",), (), ()),
}
_LATER = ("MPI", "PMIx")  # read only if no other launcher explains their variables
# Slurm's numbers for steps that srun did not start: pending, extern, batch, interactive.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0

# Flux gives each run an id of its own, also within a job of Slurm.
_JOB_IDS = ("FLUX_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PALS_APID")


def detect(environ: Mapping[str, str] | None = None) -> Launch:
    """The launch of this process, by the environment. Without any variables it is a single rank.

    Inside torchrun its variables win. An mpirun inside srun wins over srun, whose variables all
    processes below it inherit. Otherwise all launchers whose variables are set must agree. Raises
    UsageError if variables are missing or contradict each other.
    """
    env = os.environ if environ is None else environ
    job_id = next((env[name] for name in _JOB_IDS if env.get(name)), None)
    started = {name: _read(name, env, job_id) for name in _LAUNCHERS if name not in _LATER}
    if started["PALS"] is None:
        started["MPI"] = _read("MPI", env, job_id)
    launches = [launch for launch in started.values() if launch]
    if not launches:
        # WORLD_SIZE alone may be the size that PMIx lacks. Without PMIx it is an incomplete set of
        # torchrun's variables.
        _check_half("torchrun", env, () if env.get("PMIX_RANK") else ("WORLD_SIZE",))
        return _read("PMIx", env, job_id) or Launch("none", job_id=job_id)
    if "TORCHELASTIC_RUN_ID" in env and started["torchrun"]:
        return started["torchrun"]
    srun = started["srun"]
    inner = [launch for launch in launches if launch is not srun]
    if srun and inner and _is_outer(srun, inner):
        launches = inner
    for candidate in launches[1:]:
        if (candidate.rank, candidate.ranks) != (launches[0].rank, launches[0].ranks):
            kind = UsageError if candidate.ranks == launches[0].ranks else ContradictionOnAllRanks
            raise kind(
                "launcher variables",
                f"{_describe(launches[0])} and {_describe(candidate)}",
                "launchers that agree",
                f"Unset the variables of the one that did not start this process "
                f"({_variable(candidate)} ... or {_variable(launches[0])} ...)",
            )
    size = _number(("WORLD_SIZE",), env)
    if size not in (None, launches[0].ranks) and not env.get("RANK"):
        given = f"{_describe(launches[0])} and WORLD_SIZE={size}"
        action = "Unset WORLD_SIZE."
        raise UsageError("launcher variables", given, "launchers that agree", action)
    # All agree. RANK was set from another launcher's variables, and srun also sets PMI_*.
    # jsrun starts Open MPI's ranks, and sets its variables.
    names = ("PALS", "Flux", "jsrun", "Open MPI", "srun", "MPI", "torchrun")
    launch = next(match for name in names if (match := started.get(name)) and match in launches)
    return replace(launch, launcher=_name(launch.launcher, env))


class ContradictionOnAllRanks(UsageError):
    """The launchers disagree about the number of ranks, so every rank raises this."""


def likely_rank() -> int:
    """The likely rank if variables contradict each other. RANK is last: scripts leave it over."""
    first, *remaining = _LAUNCHERS.values()
    names = [name for variables in (*remaining, first) for name in variables[0]]
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdigit()), 0)


def _is_outer(srun: Launch, inner: list[Launch]) -> bool:
    """Whether srun only started the launcher of this rank, by its number of processes."""
    if srun.ranks < max(launch.ranks for launch in inner):
        return True
    below = [launch for launch in inner if launch.launcher in ("Open MPI", "MPI", "Flux")]
    return srun.local_ranks == 1 and any(
        (launch.rank, launch.ranks) != (srun.rank, srun.ranks) for launch in below
    )


def _describe(launch: Launch) -> str:
    source = "torchrun's variables" if launch.launcher == "torchrun" else launch.launcher
    return f"rank {launch.rank} of {launch.ranks} from {source}"


def _variable(launch: Launch) -> str:
    return _LAUNCHERS[launch.launcher][0][0]


def _name(launcher: str, env: Mapping[str, str]) -> str:
    """The launcher's name in outputs: tells Intel MPI from MPICH, and torchrun from BY_HAND."""
    if launcher == "torchrun":
        return BY_HAND
    if launcher != "MPI":
        return launcher
    if "I_MPI_HYDRA_UUID" in env:
        return "Intel MPI"
    return "MPICH" if "HYDI_CONTROL_FD" in env else "MPI"


def _read(name: str, env: Mapping[str, str], job_id: str | None) -> Launch | None:
    rank_names, size_names, local_names, local_size_names = _LAUNCHERS[name]
    if name == "srun":
        step = env.get("SLURM_STEP_ID", "")
        if not step.isdigit() or int(step) >= _FIRST_SPECIAL_STEP:
            return None
    rank = _number(rank_names, env)
    if rank is None:
        return None
    _check_half(name, env, rank_names)
    ranks = _number(size_names, env)
    assert ranks is not None
    if rank >= ranks:
        size_name = next((name for name in size_names if env.get(name)), size_names[0])
        given = f"{rank_names[0]}={rank} with {size_name}={ranks}"
        raise UsageError("launcher variables", given, "a rank below the number of ranks")
    local_rank = _number(local_names, env)
    local_ranks = _number(local_size_names, env, int(env.get("SLURM_NODEID") or 0))
    numbers = (rank, ranks, local_rank or 0, local_ranks or 1)
    return Launch(name, *numbers, job_id, has_local_rank=local_rank is not None)


def _check_half(name: str, env: Mapping[str, str], having: tuple[str, ...]) -> None:
    """Raise UsageError if one of ``having`` (rank or size) is set and its counterpart is not."""
    rank_names, size_names = _LAUNCHERS[name][:2]
    lacking = size_names if having == rank_names else rank_names
    have = next((variable for variable in having if env.get(variable)), None)
    if have is None or any(env.get(variable) for variable in lacking):
        return
    if "WORLD_SIZE" in lacking[-1:] and name != "torchrun":
        action = "Set WORLD_SIZE to the number of ranks, alike for all."
    else:
        action = f"Set {lacking[0]}, or start with torchrun."
    raise UsageError(
        "launcher variables", f"{have} without {lacking[0]}", "both or neither", action
    )


def _number(names: tuple[str, ...], env: Mapping[str, str], node: int = 0) -> int | None:
    for name in names:
        text = env.get(name, "")
        if text:
            digits = _tasks_of_node(text, node) if name == "SLURM_STEP_TASKS_PER_NODE" else text
            if not (digits.isascii() and digits.isdigit()):
                raise UsageError(f"launcher variable {name}", text, "a whole number")
            return int(digits)
    return None


def _tasks_of_node(text: str, node: int) -> str:
    """The number of tasks on a node from Slurm's list of all nodes: ``4(x2),3`` is 4, 4, 3."""
    for entry in text.split(","):
        number, _, times = entry.partition("(x")
        node -= int(times.rstrip(")")) if times.rstrip(")").isdigit() else 1
        if node < 0:
            return number
    return text
