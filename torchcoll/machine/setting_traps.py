"""Finds settings that make calls slow or hang, which no table of times can show.

``torchcoll doctor`` reports them before a run. A run records the findings for its backends on each
host, so that its verdict and every comparison with it can name them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchcoll.core.backends import NCCL, ONECCL, of_family

_NCCL, _ONECCL = of_family(NCCL), of_family(ONECCL)
_WITHOUT_MPI = ("torchrun", "RANK and WORLD_SIZE")
_WITH_MPI = ("Open MPI", "Intel MPI", "MPICH", "MPI", "PALS")
# Variable -> (pattern of the values that slow calls down, their effect).
_SLOW = {
    "CUDA_LAUNCH_BLOCKING": (r"[^0].*", "every kernel is waited for"),
    "TORCH_DISTRIBUTED_DEBUG": (r"(?i)detail", "every collective is checked over gloo before"),
    "TORCH_NCCL_BLOCKING_WAIT": (r"[^0].*", "every wait blocks the host"),
    "TORCH_NCCL_NAN_CHECK": (r"[^0].*", "every input is searched for NaN"),
    "NCCL_DEBUG": (r"(?i)trace", "every call is logged"),
    "NCCL_CHECK_POINTERS": (r"[^0].*", "every pointer is checked"),
    "CCL_LOG_LEVEL": (r"(?i)debug|trace", "every call is logged"),
    # DLcomm's docs/fixes/05: with it calls return when they are complete, else when enqueued.
    "CCL_OP_SYNC": (r"[^0].*", "every call is waited for"),
}


@dataclass(frozen=True)
class Finding:
    """A trap.

    name: stable, for scripts.
    severity: error (a run fails or hangs), warning (numbers are misleading) or note.
    what, why, action: what was found, its effect, and what to do about it.
    backends: the only backends that it affects; () for all. If none of them can be used here the
        doctor reports it as a note.
    """

    name: str
    severity: str
    what: str
    why: str
    action: str
    backends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """How the ranks of one host were started.

    environ: variables of a rank.
    launcher: its name in machine/launcher.py.
    ranks: number of ranks on the host.
    cores: number of cores that they may use together.
    ccl_on_cpu: oneCCL of the bindings communicates CPU tensors.
    """

    environ: Mapping[str, str]
    launcher: str
    ranks: int
    cores: int
    ccl_on_cpu: bool


def setting_traps(settings: Settings) -> Iterator[Finding]:
    """Yield the traps in one host's settings."""
    # Each rank becomes its own MPI world. Measured: the ranks hang until the limit of 60 s.
    if settings.environ.get("CCL_ATL_TRANSPORT") == "mpi" and settings.launcher in _WITHOUT_MPI:
        yield Finding(
            "ccl_atl_transport",
            "error",
            f"CCL_ATL_TRANSPORT=mpi, and the ranks were started by {settings.launcher}",
            "oneCCL waits for an MPI that nobody started: the first collective hangs.",
            "Unset it, or set ofi; or start with mpirun.",
            _ONECCL,
        )

    # Measured with 2 ranks on 2 cores: 24.7 ms instead of 57 us at 1 KiB, and 29.3 ms instead of
    # 516 us at 1 MiB. Under mpirun oneCCL disables its workers itself.
    if (
        settings.ccl_on_cpu
        and settings.environ.get("CCL_WORKER_OFFLOAD") != "0"
        and settings.ranks > 1
        and settings.ranks * 2 > settings.cores
        and settings.launcher not in _WITH_MPI
    ):
        cores = f"{settings.cores} core{'s' if settings.cores > 1 else ''}"
        yield Finding(
            "ccl_worker_offload",
            "warning",
            f"CCL_WORKER_OFFLOAD is not 0 with {settings.ranks} ranks on {cores}",
            "Each rank of ccl spins a worker besides itself: calls can take 100 times as long.",
            "Set CCL_WORKER_OFFLOAD=0.",
            _ONECCL,
        )

    for name, (values, effect) in _SLOW.items():
        value = settings.environ.get(name, "")
        if re.fullmatch(values, value):
            yield Finding(
                "slowed",
                "warning",
                f"{name}={value} in the environment",
                f"With it {effect}: times are longer than training's.",
                "Unset it to measure.",
                _NCCL if "NCCL" in name else _ONECCL if name.startswith("CCL") else (),
            )
