"""Which devices and backends this process can use; if not, why not, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from torchcoll.core.backends import BACKENDS, DEFAULT, NCCL, BackendEntry, bindings_advice
from torchcoll.machine.doctor_facts import Facts
from torchcoll.machine.setting_traps import hiding_variable

_XPU_INDEX = "https://download.pytorch.org/whl/xpu"  # XPU builds are not on PyPI


@dataclass(frozen=True)
class Usable:
    """A device, backend, launcher or interface.

    detail: about one that can be used. reason, action: why another one cannot be used, and what to
    do about it.
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
    cpu = [facts.cpu.get("model") or "CPU", f"{facts.cores} cores" if facts.cores > 1 else "1 core"]
    cpu += ["virtual machine"] * bool(facts.cpu.get("virtual"))
    if not facts.torch:
        return [unusable("cpu", *no_torch(facts))]
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
        return unusable(
            kind, reason, "see what the driver's tool says (nvidia-smi, rocm-smi, xpu-smi)"
        )
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
    vendor = "AMD" if torch.get("hip") else "NVIDIA"
    reason = _no_driver(facts, vendor)
    return reason or (
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
    """All backends of the table. Unsupported ones only if this torch was built with them."""
    if not facts.torch:
        return [unusable(DEFAULT, *no_torch(facts))]
    communicating = (entry for entry in BACKENDS.values() if entry.communicates)
    return [_usable(facts, e) for e in communicating if e.promised or facts.built(e.name)]


def _usable(facts: Facts, entry: BackendEntry) -> Usable:
    if not entry.promised:
        return Usable(entry.name, True, "built into this torch; nothing is promised of it")
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
        what = f"{nccl} {nccl_version(facts)}".rstrip() if nccl else _oneccl(facts)
    return Usable(entry.name, True, f"{kind}; {what}")


def nccl_version(facts: Facts) -> str:
    """Version of the NCCL in this process, or else the one that torch reports."""
    libraries = [m for m in facts.mapped if m["name"].startswith(("libnccl.", "librccl."))]
    return next((m["version"] for m in libraries if m["version"]), facts.torch.get(NCCL) or "")


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
