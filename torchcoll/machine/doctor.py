"""The report of ``torchcoll doctor``: facts, what can be used, and traps, as one plain object."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from torchcoll import __version__
from torchcoll.core.backends import BACKENDS, DEFAULT, NCCL, BackendEntry, bindings_advice
from torchcoll.core.units import counted
from torchcoll.machine import doctor_facts, traps
from torchcoll.machine.doctor_facts import BINDINGS, IPEX, Facts
from torchcoll.machine.setting_traps import Finding, Settings, hiding_variable, setting_traps

_XPU_INDEX = "https://download.pytorch.org/whl/xpu"  # XPU builds are not on PyPI


@dataclass(frozen=True)
class Usable:
    """A device, backend or interface.

    detail: facts of a usable one. reason, action: why it is not usable, and what to do about it.
    """

    name: str
    usable: bool
    detail: str = ""
    reason: str = ""
    action: str = ""


def unusable(name: str, reason: str, action: str) -> Usable:
    """An entry for something that cannot be used."""
    return Usable(name, False, "", reason, action)


def devices(facts: Facts) -> list[Usable]:
    """cpu, cuda and xpu, and whether each can be used."""
    if not facts.torch:
        return [unusable("cpu", *no_torch(facts))]
    cpu = [facts.cpu.get("model") or "CPU", counted(facts.cores, "core")]
    cpu += ["virtual machine"] if facts.cpu.get("virtual") else []
    return [Usable("cpu", True, ", ".join(cpu)), _device(facts, "cuda"), _device(facts, "xpu")]


def no_torch(facts: Facts) -> tuple[str, str]:
    """(why torch cannot be imported, what to do about it)."""
    error = facts.torch_error or "not installed"
    missing = "No module named 'torch'" in error
    action = "pip install torch" if missing else "install torch again: this one is broken"
    return f"torch cannot be imported ({error})", action


def _device(facts: Facts, kind: str) -> Usable:
    available = facts.devices(kind)
    if not available:
        return unusable(kind, *(_why_no_cuda(facts) if kind == "cuda" else _why_no_xpu(facts)))
    broken = next((d for d in available if d.get("error")), None)
    if broken:
        reason = f"{broken['device']} fails at a sum: {broken['error']}"
        action = "see what the driver's tool says (nvidia-smi, rocm-smi, xpu-smi)"
        return unusable(kind, reason, action)
    names = dict.fromkeys(str(d.get("device_name")) for d in available)
    text = f"{len(available)} x {', '.join(names)}"
    return Usable(kind, True, f"{text}, through ROCm" if facts.torch.get("hip") else text)


def _why_no_cuda(facts: Facts) -> tuple[str, str]:
    torch, nvidia, amd = facts.torch, facts.gpus.get("NVIDIA", {}), facts.gpus.get("AMD", {})
    version = torch["version"]
    if not torch.get("cuda") and not torch.get("hip"):
        if nvidia.get("driver") or nvidia.get("files"):
            action = "pip install torch (on Linux PyPI's has CUDA), or take pytorch.org's selector"
            return f"this torch {version} has no CUDA, but the host has an NVIDIA GPU", action
        if amd.get("files"):
            action = "install a ROCm build of torch (pytorch.org's selector)"
            return f"this torch {version} has no ROCm, but the host has an AMD GPU", action
        return (
            f"this torch {version} has neither CUDA nor ROCm",
            "no action needed: no NVIDIA or AMD GPU here",
        )
    hidden = hiding_variable(facts.environ, "hip" if torch.get("hip") else "cuda")
    if hidden:
        return f"{hidden}={facts.environ[hidden]!r} hides all devices", f"unset {hidden}"
    return _no_driver(facts, "AMD" if torch.get("hip") else "NVIDIA") or (
        torch.get("why", {}).get("cuda") or "torch finds no device",
        "see what nvidia-smi or rocm-smi says; the driver may be older than torch wants",
    )


def _no_driver(facts: Facts, vendor: str) -> tuple[str, str] | None:
    gpu = facts.gpus.get(vendor, {})
    if gpu.get("files"):
        return None
    if gpu.get("pci") or gpu.get("driver"):
        options = {
            "NVIDIA": "--gpus all",
            "AMD": "--device /dev/kfd --device /dev/dri",
            "Intel": "--device /dev/dri",
        }
        action = f"load the driver; start a container with {options[vendor]}"
        return f"the host has {vendor} GPUs, but this process has no device files of theirs", action
    return f"no {vendor} GPU on this host", "nothing, or ask the scheduler for one (--gpus, gres)"


def _why_no_xpu(facts: Facts) -> tuple[str, str]:
    torch, intel = facts.torch, facts.gpus.get("Intel", {})
    if not torch.get("xpu"):
        reason = f"this torch {torch['version']} has no XPU"
        if intel.get("files") and intel.get("pci"):
            return (
                f"{reason}, but the host has an Intel GPU",
                f"pip install torch --index-url {_XPU_INDEX}",
            )
        return reason, "no action needed: no Intel GPU here"
    return _no_driver(facts, "Intel") or (
        torch.get("why", {}).get("xpu") or "torch finds no device",
        "see what xpu-smi discovery says; ZE_AFFINITY_MASK or ONEAPI_DEVICE_SELECTOR may hide all",
    )


def backends(facts: Facts) -> list[Usable]:
    """All backends of the table that communicate."""
    if not facts.torch:
        return [unusable(DEFAULT, *no_torch(facts))]
    return [_usable(facts, entry) for entry in BACKENDS.values() if entry.communicates]


def _usable(facts: Facts, entry: BackendEntry) -> Usable:
    if entry.module:
        return _by_bindings(facts, entry, entry.module)
    kind = entry.devices[0]
    device = Usable(kind, True) if kind == "cpu" else _device(facts, kind)
    nccl = ("RCCL" if facts.torch.get("hip") else "NCCL") if entry.family == NCCL else ""
    if not facts.built(entry.name):
        action = device.action or "install another build of torch"
        if entry.since and facts.torch.get(kind):
            reason = f"this torch {facts.torch['version']} has {kind.upper()} but not {entry.name}"
            return unusable(entry.name, reason, f"{entry.since} from {_XPU_INDEX}, on Linux")
        return unusable(entry.name, f"this torch was built without {nccl or 'it'}", action)
    if not device.usable:
        return unusable(entry.name, f"no device: {device.reason}", device.action)
    what = f"part of torch {facts.torch['version']}"
    if entry.family:
        what = f"{nccl} {facts.nccl_version}".rstrip() if nccl else _oneccl(facts)
    return Usable(entry.name, True, f"{kind}; {what}")


def _by_bindings(facts: Facts, entry: BackendEntry, module: str) -> Usable:
    bindings = facts.modules.get(module)
    if bindings is None:
        without = [e.name for e in BACKENDS.values() if e.family == entry.family and not e.module]
        built = next(filter(facts.built, without), "")
        alternative = built or f"{' or '.join(without)} on Intel GPUs, or {DEFAULT}"
        action = (
            f"use {alternative}. Intel's package index has the bindings for torch up to 2.8 "
            "(docs/measure.md)"
        )
        return unusable(entry.name, f"{module} is not installed", action)
    if bindings["error"] or not bindings["registers"]:
        why = bindings["error"] or "it registers no backend"
        advice = bindings_advice(entry, why, bindings["version"], facts.torch["version"])
        action = (advice[0].lower() + advice[1:]).removesuffix(".")
        return unusable(entry.name, f"{module} cannot be imported ({why})", action)
    # The CPU is first, because it always exists.
    kinds = sorted(k for k in entry.devices if k == "cpu" or facts.devices(k))
    what = f"{', '.join(kinds)}; {_oneccl(facts)}, bindings {bindings['version']}"
    return Usable(entry.name, True, what)


def _oneccl(facts: Facts) -> str:
    mapped = [m["version"] for m in facts.libraries if m["name"].startswith("libccl")]
    return f"oneCCL {next(filter(None, mapped), '') or ''}".rstrip()


def ccl_on_cpu(facts: Facts) -> bool:
    """Whether oneCCL of the bindings communicates CPU tensors, for which it spins workers."""
    bindings = {entry.name for entry in BACKENDS.values() if entry.module}
    return not facts.devices("xpu") and any(b.usable for b in backends(facts) if b.name in bindings)


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


def settings(facts: Facts) -> Iterator[Finding]:
    torch, launch = facts.torch or {}, facts.launch
    yield from setting_traps(
        Settings(
            facts.environ,
            launch.launcher,
            launch.local_ranks,
            facts.host_cores,
            ccl_on_cpu(facts),
            next((kind for kind in ("hip", "cuda") if torch.get(kind)), ""),
        )
    )


SCHEMA = "torchcoll-doctor/1"
_OF_LAUNCH = ("launcher", "rank", "ranks", "local_rank", "local_ranks", "job_id")
Check = Callable[[Facts], Iterable[Finding]]
CHECKS: tuple[Check, ...] = (
    *traps.HOST_CHECKS,
    settings,
    *traps.VARIABLE_CHECKS,
    *traps.NAME_CHECKS,
)


def examine() -> dict[str, Any] | None:
    """The report of rank 0 about its host; None on all other ranks. No process group is created."""
    launch, error = doctor_facts.launch_facts()
    # If the launcher's variables contradict each other every rank reports, because the user needs
    # to see that.
    if not error and launch.rank != 0:
        return None
    return report(doctor_facts.gather(launch, error))


def report(facts: Facts) -> dict[str, Any]:
    """The object that ``--json`` prints. Its names are stable within SCHEMA."""
    usable = backends(facts)
    launch = facts.launch
    return {
        "schema": SCHEMA,
        "torchcoll": __version__,
        "usable": any(backend.usable for backend in usable),
        "versions": versions(facts),
        "launch": {name: getattr(launch, name) for name in _OF_LAUNCH},
        "devices": [asdict(item) for item in devices(facts)],
        "backends": [asdict(item) for item in usable],
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
    return sorted(traps_here, key=lambda finding: traps.SEVERITIES.index(finding.severity))


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
        "RCCL" if torch.get("hip") else "NCCL": facts.nccl_version or None,
        "oneCCL": mapped.get("libccl"),
        IPEX: facts.modules.get(IPEX, {}).get("version"),
        **{name: facts.modules.get(name, {}).get("version") for name in BINDINGS},
        **gpu,
        "kernel": platform.release(),
    }


def rank_map(facts: Facts) -> list[dict[str, Any]]:
    """Ranks of this host and their devices; of launchers without torchrun's order this rank."""
    launch = facts.launch
    if launch.launcher in ("none", "ambiguous"):
        return []
    devices = facts.devices("cuda") or facts.devices("xpu")
    several = launch.launcher == "torchrun"
    local_ranks = range(launch.local_ranks) if several else [launch.local_rank]
    return [
        {
            "rank": launch.rank - launch.local_rank + local_rank,
            "local_rank": local_rank,
            **_device_fields(devices, local_rank, local_rank == launch.local_rank),
        }
        for local_rank in local_ranks
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
