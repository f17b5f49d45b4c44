"""--rehearse: several ranks on one GPU, which shows that it works and not how fast it is.

Loaded where it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchcoll.core.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from torchcoll.bench.runner import Session

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


def begin(session: Session, kind: str) -> Callable[[], None]:
    """``rehearse`` for this rank, where the launch is one that can be. Raises UsageError."""
    if session.found_group:
        raise UsageError("rehearse", "inside a process group", "a launch of its own")
    hosts = {member["host"] for member in session.control.members}
    if len(hosts) > 1:
        raise UsageError("rehearse", f"ranks on {len(hosts)} hosts", "one host, one GPU")
    return rehearse(session.entries[0].name, kind, session.rank)


def rehearse(backend: str, kind: str, rank: int) -> Callable[[], None]:
    """Set NCCL's variables for several ranks on one GPU, before its first call; what is returned
    puts them back. Raises UnavailableError for other backends and devices.
    """
    if not backend.startswith("nccl") or kind != "cuda":
        raise UnavailableError("rehearse", f"{backend} on {kind}", "nccl on cuda")
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
