"""The table of settings that make a run hang, slow it, or measure something else than was meant.

``torchcoll doctor`` reports them before a run. A run records the findings for its backends on each
host, so that its verdict and every comparison with it can name them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torchcoll.core.backends import NCCL, ONECCL, VISIBLE_GPUS, of_family
from torchcoll.core.units import counted
from torchcoll.core.variables import kept_value
from torchcoll.libraries.oneccl.variables import ALGORITHMS

_NCCL, _ONECCL = of_family(NCCL), of_family(ONECCL)
_WITHOUT_MPI = ("torchrun", "RANK and WORLD_SIZE")
_WITH_MPI = ("Open MPI", "Intel MPI", "MPICH", "MPI", "PALS")


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


@dataclass(frozen=True)
class Trap:
    """A row of the table.

    name, severity, backends: of the finding.
    values: variable -> pattern of the values that are a trap; a variable that is not set has ''.
    why, action: of the finding. ``{}`` in texts are fields of Settings.
    when: whether it is a trap in these circumstances.
    what: of the finding; ``{settings}`` stands for ``NAME=value`` of each variable that matches.
    """

    name: str
    severity: str
    values: Mapping[str, str]
    why: str
    action: str
    backends: tuple[str, ...] = ()
    when: Callable[[Settings], bool] = lambda settings: True
    what: str = "{settings} in the environment"


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


_ON = "[^0].*"
_SLOW = {
    "CUDA_LAUNCH_BLOCKING": (_ON, "every kernel is waited for"),
    "TORCH_DISTRIBUTED_DEBUG": ("(?i)detail", "every collective is checked over gloo before"),
    "TORCH_NCCL_BLOCKING_WAIT": (_ON, "every wait blocks the host"),
    "TORCH_NCCL_NAN_CHECK": (_ON, "every input is searched for NaN"),
    "NCCL_DEBUG": ("(?i)trace", "every call is logged"),
    "NCCL_CHECK_POINTERS": (_ON, "every pointer is checked"),
    "CCL_LOG_LEVEL": ("(?i)debug|trace", "every call is logged"),
    # DLcomm's docs/fixes/05: with it calls return when they are complete, else when enqueued.
    "CCL_OP_SYNC": (_ON, "every call is waited for"),
}
_FORCING_NCCL = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NTHREADS",
    "NCCL_BUFFSIZE",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_TUNER_PLUGIN",
    "NCCL_GRAPH_FILE",
    "NCCL_TOPO_FILE",
    "NCCL_LAUNCH_MODE",
)
_OFF = {
    **dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE"), _ON),
    **dict.fromkeys(("NCCL_NVB_DISABLE", "NCCL_PXN_DISABLE", "NCCL_NET_DISABLE_INTRA"), _ON),
    **dict.fromkeys(("NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE"), "0"),
}

TRAPS = (
    Trap(  # Each rank becomes its own MPI world. Measured: the ranks hang until the limit of 60 s.
        "ccl_atl_transport",
        "error",
        {"CCL_ATL_TRANSPORT": "mpi"},
        "oneCCL waits for an MPI that nobody started: the first collective hangs.",
        "Unset it, or set ofi; or start with mpirun.",
        _ONECCL,
        lambda settings: settings.launcher in _WITHOUT_MPI,
        "{settings}, and the ranks were started by {launcher}",
    ),
    Trap(
        "ccl_worker_offload",
        "warning",
        {"CCL_WORKER_OFFLOAD": "(?!0$).*"},
        "Each rank of ccl spins a worker besides itself: calls can take 100 times as long.",
        "Set CCL_WORKER_OFFLOAD=0.",
        _ONECCL,
        _workers_lack_cores,
        "CCL_WORKER_OFFLOAD is not 0 with {ranks} ranks on {counted_cores}",
    ),
    *(
        Trap(
            "slowed",
            "warning",
            {name: pattern},
            f"With it {effect}: times are longer than training's.",
            "Unset it to measure.",
            _NCCL if "NCCL" in name else _ONECCL if name.startswith("CCL") else (),
        )
        for name, (pattern, effect) in _SLOW.items()
    ),
    *(
        Trap(
            "forced",
            "warning",
            dict.fromkeys(names, ".+"),
            "The library does not choose by itself: this colours every number.",
            "Unset it, unless it is what you measure.",
            backends,
        )
        for names, backends in ((_FORCING_NCCL, _NCCL), (ALGORITHMS, _ONECCL))
    ),
    Trap(
        "switched_off",
        "warning",
        _OFF,
        "A transport that the machine may have is not used: bandwidth is not the machine's.",
        "Unset it; it is often left over from looking for a fault.",
        _NCCL,
    ),
    Trap(  # 'comm_dev_uuids is not sub-vector of node_dev_uuids': uxlfoundation/oneCCL#217,
        # vllm-project/vllm#53076.
        "ze_affinity_mask",
        "error",
        {"ZE_AFFINITY_MASK": ".+"},
        "oneCCL must see every device of the communicator in each process: it hangs or fails.",
        "Unset it; each rank takes its device by its local rank.",
        _ONECCL,
        lambda settings: 0 < settings.visible < settings.ranks,
        "{settings} shows {visible} of the devices of {ranks} ranks",
    ),
    *(
        Trap(
            "hidden_devices",
            "warning",
            {name: ".*"},
            "nccl cannot be used.",
            f"Unset {name}.",
            (),
            lambda settings, name=name: (  # type: ignore[misc]
                bool(settings.gpu_build)
                and hiding_variable(settings.environ, settings.gpu_build) == name
            ),
            "{settings} hides every GPU",
        )
        for name in VISIBLE_GPUS
    ),
)


def setting_traps(settings: Settings) -> Iterator[Finding]:
    """Yield the traps in one host's settings."""
    cores = counted(settings.cores, "core")
    for trap in TRAPS:
        names = tuple(
            name
            for name, pattern in trap.values.items()
            if re.fullmatch(pattern, settings.environ.get(name, ""))
        )
        if not names or not trap.when(settings):
            continue
        fields = {
            "settings": ", ".join(_assignment(settings.environ, name) for name in names),
            "launcher": settings.launcher,
            "ranks": settings.ranks,
            "visible": settings.visible,
            "counted_cores": cores,
        }
        yield Finding(
            trap.name,
            trap.severity,
            trap.what.format_map(fields),
            trap.why.format_map(fields),
            trap.action,
            trap.backends,
            names,
        )


def _assignment(environ: Mapping[str, str], name: str) -> str:
    """``NAME=value``, ``NAME=''`` or ``NAME is unset``."""
    if name not in environ:
        return f"{name} is unset"
    value = kept_value(name, environ[name])
    return f"{name}={value}" if value else f"{name}=''"
