"""Who started this process: rank and number of ranks from the launcher's variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from torchcoll.core.errors import UsageError


@dataclass(frozen=True)
class Launch:
    """This process among its peers."""

    launcher: str
    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    job_id: str | None = None


# Launcher: variables of rank, number of ranks, local rank, local number of ranks. Several names:
# the first that is set. Sources: torch.distributed.run; srun(1); Open MPI's FAQ; Intel MPI's and
# PALS' are measured or read (reference/oneccl.md 1.5). Hydra sets PMI_* under MPICH and Intel MPI.
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
        ("PALS_SIZE", "PMI_SIZE"),
        ("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
    ),
    "MPI": (
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    ),
    # SLURM_PROCID is set in a batch script too; only srun numbers its step.
    "srun": (
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
    ),
}

_JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PALS_APID")


def detect(environ: Mapping[str, str] | None = None) -> Launch:
    """This process' Launch from the environment; no variables at all means one rank.

    torchrun's variables win inside torchrun (under srun each torchrun sees Slurm's too). Elsewhere
    launchers that are set must agree. Raises UsageError for half a set and for a contradiction.
    """
    env = os.environ if environ is None else environ
    job_id = next((env[name] for name in _JOB_IDS if env.get(name)), None)
    found = [launch for name in _LAUNCHERS if (launch := _read(name, env, job_id))]
    if not found:
        return Launch("none", job_id=job_id)
    if "TORCHELASTIC_RUN_ID" in env and found[0].launcher == "torchrun":
        return found[0]
    for other in found[1:]:
        if (other.rank, other.ranks) != (found[0].rank, found[0].ranks):
            raise UsageError(
                "launcher variables",
                f"{_told(found[0])} and {_told(other)}",
                "launchers that agree",
                f"Unset the variables of the one that did not start this process "
                f"({_LAUNCHERS[other.launcher][0][0]} ... or {_LAUNCHERS[found[0].launcher][0][0]} "
                "...)",
            )
    return found[0]


def _told(launch: Launch) -> str:
    return f"rank {launch.rank} of {launch.ranks} from {launch.launcher}"


def _read(name: str, env: Mapping[str, str], job_id: str | None) -> Launch | None:
    rank_names, size_names, local_names, local_size_names = _LAUNCHERS[name]
    if name == "srun" and not env.get("SLURM_STEP_ID", "").isdigit():
        return None
    rank = _number(rank_names, env)
    ranks = _number(size_names, env)
    if rank is None and (ranks is None or name != "torchrun"):
        return None
    if rank is None or ranks is None:
        have, lack = (rank_names, size_names) if ranks is None else (size_names, rank_names)
        raise UsageError(
            "launcher variables",
            f"{have[0]} without {lack[0]}",
            "both or neither",
            f"Set {lack[0]}, or start with torchrun.",
        )
    if not 0 <= rank < ranks:
        raise UsageError(
            "launcher variables",
            f"{rank_names[0]}={rank} with {size_names[0]}={ranks}",
            "a rank below the number of ranks",
        )
    local_rank = _number(local_names, env)
    local_ranks = _number(local_size_names, env)
    return Launch(name, rank, ranks, local_rank or 0, local_ranks or 1, job_id)


def _number(names: tuple[str, ...], env: Mapping[str, str]) -> int | None:
    for name in names:
        text = env.get(name, "")
        if text:
            # Slurm writes '2(x3)' for the same number on several nodes.
            digits = text.split("(")[0].split(",")[0]
            if not digits.isdigit():
                raise UsageError(f"launcher variable {name}", text, "a whole number")
            return int(digits)
    return None
