"""``torchcoll doctor``: facts, what can be used, and traps, as one plain object."""

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
from torchcoll.machine.usable import Usable, backends, devices, nccl_version, no, no_torch


def launchers(facts: Facts) -> list[Usable]:
    return [_torchrun(facts), *_commands(facts)]


def _torchrun(facts: Facts) -> Usable:
    if not facts.torch:
        return no("torchrun", "it is a part of torch", no_torch(facts)[1])
    command = facts.commands.get("torchrun")
    if command is None:
        return Usable("torchrun", True, "not on PATH: python -m torch.distributed.run is the same")
    if not command["own"]:
        text = f"{command['path']} is another Python's: use python -m torch.distributed.run"
        return Usable("torchrun", True, text)
    return Usable("torchrun", True, f"of torch {facts.torch['version']}")


def _commands(facts: Facts) -> list[Usable]:
    found = []
    for name in ("srun", "mpirun", "mpiexec"):
        command = facts.commands.get(name)
        if command is None:
            what = "Slurm" if name == "srun" else "an MPI (any one of its kind will do)"
            found.append(no(name, "not on PATH", f"nothing where torchrun does; else load {what}"))
        elif command["error"]:
            action = (
                "run it where the cluster's configuration is"
                if name == "srun"
                else "see what it says"
            )
            error = command["error"].removeprefix(f"{name}: error: ")
            found.append(no(name, f"{name} --version fails: {error}", action))
        else:
            job = facts.launch.job_id
            where = "" if name != "srun" else f"; inside of job {job}" if job else "; in no job yet"
            found.append(Usable(name, True, command["version"] + where))
    return found


def interfaces(facts: Facts) -> list[Usable]:
    return [_interface(i) for i in facts.interfaces] + [_port(p) for p in facts.rdma]


def _interface(interface: dict[str, Any]) -> Usable:
    name, state = interface["name"], interface["state"]
    speed = interface["speed_mbps"]
    words = [interface["kind"], *interface["families"]]
    words += [f"{speed / 1000:g} Gb/s"] if speed else []
    if interface["kind"] == "loopback":
        words.append("reaches this host alone")
    # Tunnels and loopback are 'unknown' while they work.
    if state not in ("up", "unknown"):
        return no(name, f"{interface['kind']}, {state}", "nothing, unless it was meant to be used")
    if not interface["families"]:
        return no(
            name, f"{interface['kind']}, no address", "nothing, unless it was meant to be used"
        )
    return Usable(name, True, ", ".join(words))


def _port(port: dict[str, Any]) -> Usable:
    name = f"{port['name']}:{port['port']}"
    text = ", ".join(filter(None, (port["link"], port["rate"])))
    if port["state"] == "active":
        return Usable(name, True, f"RDMA, {text}")
    return no(
        name, f"RDMA, {text}, port is {port['state']}", "nothing, unless it was meant to be used"
    )


SCHEMA = "torchcoll-doctor/1"
Check = Callable[[Facts], Iterable[Finding]]
CHECKS: tuple[Check, ...] = (
    *traps.HOST_CHECKS,
    *traps.VARIABLE_CHECKS,
    *traps.SETTING_CHECKS,
    *traps.NAME_CHECKS,
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
        "libraries": facts.libraries,
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
