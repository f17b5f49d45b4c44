"""--rehearse: several ranks on one GPU, which shows that it works and not how fast it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from torchcoll.core.backends import BACKENDS, backend_of
from torchcoll.core.errors import UnavailableError, UsageError

# Each rank looks like a host of its own, so that NCCL accepts several on one GPU. P2P and shared
# memory would be chosen on one host; few channels, because all ranks share the GPU's processors.
# Source: hostHash in NCCL's init.cc, and recipes in public use.
VARIABLES = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",
}
MEANINGLESS = "several ranks share one GPU, so bandwidth and time mean nothing"


def begin(
    in_group: bool, hosts: Sequence[str], backend: str, kind: str, rank: int
) -> Callable[[], None]:
    """``rehearse`` where the run can be one: one host, no group before. Raises UsageError."""
    if in_group:
        raise UsageError("rehearse", "inside a process group", "a run of its own")
    if len({*hosts}) > 1:
        raise UsageError("rehearse", f"ranks on {len({*hosts})} hosts", "one host, one GPU")
    return rehearse(backend, kind, rank)


def rehearse(backend: str, kind: str, rank: int) -> Callable[[], None]:
    """Set NCCL's variables for ranks on one GPU; returns the undo. Raises UnavailableError."""
    if not backend_of(backend).shares_device or kind != "cuda":
        able = " or ".join(e.name for e in BACKENDS.values() if e.shares_device)
        raise UnavailableError("rehearse", f"{backend} on {kind}", f"{able} on cuda")
    changed = {**VARIABLES, "NCCL_HOSTID": f"torchcoll-rehearsal-{rank}"}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)

    def over() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    return over
