"""The report of ``torchcoll doctor``: facts, what can be used, and traps, as one plain object."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from torchcoll import __version__
from torchcoll.machine import traps
from torchcoll.machine.doctor_facts import (
    BINDINGS,
    IPEX,
    Facts,
    gather,
    launch_facts,
    wait_for_rank_0,
)
from torchcoll.machine.setting_traps import Finding
from torchcoll.machine.traps import SEVERITIES
from torchcoll.machine.usable import Usable, backends, devices, nccl_version, no_torch, unusable


def launchers(facts: Facts) -> list[Usable]:
    """torchrun, srun, mpirun and mpiexec, and whether each can be used."""
    torchrun = facts.commands.get("torchrun")
    if not facts.torch:
        usable = [unusable("torchrun", "it is a part of torch", no_torch(facts)[1])]
    else:
        text = f"of torch {facts.torch['version']}"
        if torchrun is None:
            text = "not on PATH, but python -m torch.distributed.run does the same"
        elif not torchrun["same_python"]:
            text = f"{torchrun['path']} is another Python's: use python -m torch.distributed.run"
        usable = [Usable("torchrun", True, text)]
    for name in ("srun", "mpirun", "mpiexec"):
        command = facts.commands.get(name)
        if command is None:
            what = "Slurm" if name == "srun" else "an MPI (any one of its kind will do)"
            usable.append(
                unusable(
                    name,
                    "not on PATH",
                    f"no action needed where torchrun is used; else load {what}",
                )
            )
        elif command["error"]:
            action = (
                "run srun on a host that has the cluster's Slurm configuration"
                if name == "srun"
                else "see what it says"
            )
            error = command["error"].removeprefix(f"{name}: error: ")
            usable.append(unusable(name, f"{name} --version fails: {error}", action))
        else:
            job = facts.launch.job_id
            job_note = (
                "" if name != "srun" else f"; inside of job {job}" if job else "; in no job yet"
            )
            usable.append(Usable(name, True, command["version"] + job_note))
    return usable


def interfaces(facts: Facts) -> list[Usable]:
    """The network interfaces and RDMA ports of this host, and whether each can be used."""
    action = "no action needed, unless ranks are to use it"
    usable = []
    for interface in facts.interfaces:
        name, kind, state = interface["name"], interface["kind"], interface["state"]
        # Tunnels and loopback have the state 'unknown' when they work.
        if state not in ("up", "unknown"):
            usable.append(unusable(name, f"{kind}, {state}", action))
        elif not interface["families"]:
            usable.append(unusable(name, f"{kind}, no address", action))
        else:
            speed = interface["speed_mbps"]
            texts = [kind, *interface["families"]]
            texts += [f"{speed / 1000:g} Gb/s"] if speed else []
            texts += ["reaches this host alone"] if kind == "loopback" else []
            usable.append(Usable(name, True, ", ".join(texts)))
    for port in facts.rdma:
        name = f"{port['name']}:{port['port']}"
        text = f"RDMA, {', '.join(filter(None, (port['link'], port['rate'])))}"
        if port["state"] == "active":
            usable.append(Usable(name, True, text))
        else:
            usable.append(unusable(name, f"{text}, port is {port['state']}", action))
    return usable


SCHEMA = "torchcoll-doctor/1"
Check = Callable[[Facts], Iterable[Finding]]
CHECKS: tuple[Check, ...] = (
    *traps.HOST_CHECKS,
    *traps.VARIABLE_CHECKS,
    *traps.NAME_CHECKS,
)


def examine() -> dict[str, Any] | None:
    """The report of rank 0; None on all other ranks.

    No process group is created, so the report describes the host of this rank. Of other hosts it
    only has the number of ranks.
    """
    launch, error = launch_facts()
    # If the launcher's variables contradict each other every rank reports, because the user needs
    # to see that.
    if not error and launch.rank != 0:
        wait_for_rank_0(launch)  # rank 0 reads which cores this rank may use
        return None
    return report(gather(launch, error))


def report(facts: Facts) -> dict[str, Any]:
    """The object that ``--json`` prints. Its names are stable within SCHEMA."""
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
        "libraries": facts.libraries,
        "findings": [asdict(finding) for finding in findings(facts)],
    }


def findings(facts: Facts) -> list[Finding]:
    """All traps, the worst first. Traps of backends that cannot be used here are notes."""
    usable = {backend.name for backend in backends(facts) if backend.usable}
    traps_here = []
    for finding in (finding for check in CHECKS for finding in check(facts)):
        if finding.backends and not usable & set(finding.backends):
            why = f"{finding.why} (Not now: no {' or '.join(finding.backends)} here.)"
            finding = replace(finding, severity="note", why=why)
        traps_here.append(finding)
    return sorted(traps_here, key=lambda finding: SEVERITIES.index(finding.severity))


def versions(facts: Facts) -> dict[str, str | None]:
    """Name -> version; None for software that is not installed."""
    mapped = {m["name"].split(".so")[0]: m["version"] for m in facts.libraries}
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
        **{name: facts.modules.get(name, {}).get("version") for name in BINDINGS},
        **gpu,
        "kernel": platform.release(),
    }


def rank_map(facts: Facts) -> list[dict[str, Any]]:
    """rank, local_rank and device of the ranks of this host.

    torchrun numbers the ranks of a host consecutively. With other launchers only this process's own
    rank is known.
    """
    launch = facts.launch
    if launch.launcher in ("none", "ambiguous"):
        return []
    devices = facts.devices("cuda") or facts.devices("xpu")
    locals_ = range(launch.local_ranks) if launch.launcher == "torchrun" else [launch.local_rank]
    return [
        {
            "rank": launch.rank - launch.local_rank + local_rank,
            "local_rank": local_rank,
            **_device_fields(devices, local_rank, local_rank == launch.local_rank),
        }
        for local_rank in locals_
    ]


def _device_fields(
    devices: list[dict[str, Any]], local_rank: int, is_this_rank: bool
) -> dict[str, Any]:
    device: dict[str, Any] = {"device": "cpu"}
    if devices and (is_this_rank or len(devices) > 1):
        device = devices[local_rank % len(devices)]
    elif devices:  # the launcher may have made another device visible to each rank
        device = {"device": devices[0]["device"].split(":")[0]}
    keys = ("device", "device_name", "pci_id", "numa_node", "nearest_nics")
    return {key: device.get(key) for key in keys}
