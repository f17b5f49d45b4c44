"""``torchcoll doctor``: facts, what can be used, and traps, as one plain object."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from torchcoll import __version__
from torchcoll.bench.doctor import host_traps, name_traps, setting_traps, variable_traps
from torchcoll.bench.doctor.facts import Facts, gather, launch_facts, wait_for_rank_0
from torchcoll.bench.doctor.finding import SEVERITIES, Finding
from torchcoll.bench.doctor.frameworks import BINDINGS, IPEX
from torchcoll.bench.doctor.surroundings import interfaces, launchers
from torchcoll.bench.doctor.usable import backends, devices, nccl_version

SCHEMA = "torchcoll-doctor/1"
Check = Callable[[Facts], Iterable[Finding]]
CHECKS: tuple[Check, ...] = (
    *host_traps.CHECKS,
    *variable_traps.CHECKS,
    *setting_traps.CHECKS,
    *name_traps.CHECKS,
)


def examine() -> dict[str, Any] | None:
    """The report of this process; None on a rank that leaves it to rank 0. No process group is
    made: it describes this rank's host, and others by the launcher's count alone.
    """
    launch, error = launch_facts()
    # Where the launcher's variables make no sense every rank speaks: that is what one asks about.
    if not error and launch.rank != 0:
        wait_for_rank_0(launch)  # which looks at what cores this one has
        return None
    return report(gather(launch, error))


def report(facts: Facts) -> dict[str, Any]:
    """What ``--json`` prints; the names are stable within SCHEMA."""
    usable = backends(facts)
    launch = facts.launch
    return {
        "schema": SCHEMA,
        "torchcoll": __version__,
        "usable": any(backend.usable for backend in usable),
        "versions": versions(facts),
        "launch": {
            "launcher": launch.launcher,
            "rank": launch.rank,
            "ranks": launch.ranks,
            "local_rank": launch.local_rank,
            "local_ranks": launch.local_ranks,
            "job_id": launch.job_id,
        },
        "devices": [asdict(item) for item in devices(facts)],
        "backends": [asdict(item) for item in usable],
        "launchers": [asdict(item) for item in launchers(facts)],
        "interfaces": [asdict(item) for item in interfaces(facts)],
        "ranks": rank_map(facts),
        "libraries": facts.mapped,
        "findings": [asdict(finding) for finding in findings(facts)],
    }


def findings(facts: Facts) -> list[Finding]:
    """All traps, the worst first."""
    found = [_weighed(finding, facts) for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _weighed(finding: Finding, facts: Facts) -> Finding:
    usable = {backend.name for backend in backends(facts) if backend.usable}
    if not finding.backends or usable & set(finding.backends):
        return finding
    names = " or ".join(finding.backends)
    return replace(finding, severity="note", why=f"{finding.why} (Not now: no {names} here.)")


def versions(facts: Facts) -> dict[str, str | None]:
    """Versions by name; None for what is not there."""
    mapped = {m["name"].split(".so")[0]: m["version"] for m in facts.mapped}
    torch = facts.torch
    gpu = {f"{vendor} driver": facts.gpus.get(vendor, {}).get("driver") for vendor in facts.gpus}
    return {
        "python": platform.python_version(),
        "torch": torch.get("version"),
        "CUDA of torch": torch.get("cuda"),
        "ROCm of torch": torch.get("hip"),
        "XPU of torch": torch.get("xpu"),
        "RCCL" if torch.get("hip") else "NCCL": nccl_version(facts) or None,
        "oneCCL": mapped.get("libccl"),
        IPEX: facts.modules.get(IPEX, {}).get("version"),
        BINDINGS: facts.modules.get(BINDINGS, {}).get("version"),
        **gpu,
        "kernel": platform.release(),
    }


def rank_map(facts: Facts) -> list[dict[str, Any]]:
    """rank, local_rank and device of the ranks of this host, as far as this process knows.

    torchrun numbers the ranks of a host in a row; of other launchers only the own rank is known.
    """
    launch = facts.launch
    if launch.launcher in ("none", "unclear"):
        return []
    devices = facts.devices("cuda") or facts.devices("xpu")
    locals_ = range(launch.local_ranks) if launch.launcher == "torchrun" else [launch.local_rank]
    return [
        {
            "rank": launch.rank - launch.local_rank + local_rank,
            "local_rank": local_rank,
            **_placed(devices, local_rank, local_rank == launch.local_rank),
        }
        for local_rank in locals_
    ]


def _placed(devices: list[dict[str, Any]], local_rank: int, own: bool) -> dict[str, Any]:
    device: dict[str, Any] = {"device": "cpu"}
    if devices and (own or len(devices) > 1):
        device = devices[local_rank % len(devices)]
    elif devices:  # this rank sees one device; its neighbours may have been given others
        device = {"device": devices[0]["device"].split(":")[0]}
    keys = ("device", "device_name", "pci_id", "numa_node", "nearest_nics")
    return {key: device.get(key) for key in keys}
