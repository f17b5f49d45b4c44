"""The table of backends: to add one, add an entry. No other file names a backend.

Functions that need torch take it as an argument, so that this module works without torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import UnavailableError, UsageError, did_you_mean

if TYPE_CHECKING:
    from torchcoll.core.case import Case

# Families of libraries. The package of this name in libraries/ has their variables, logs and
# algorithms.
NCCL, ONECCL = "nccl", "oneccl"


@dataclass(frozen=True)
class Lack:
    """Something that a backend does not support: cases whose ``field`` is one of ``values``.

    what: what is missing, in the user's words; ``{}`` stands for the value.
    device, reductions, grouped: only there, for collectives that reduce, in one group (--coalesce).
    """

    field: str
    values: tuple[str, ...]
    what: str = "{}"
    device: str = ""
    reductions: bool = False
    grouped: bool = False

    def of(self, case: Case) -> str:
        """What the case lacks (``avg``, ``send and receive on cpu``); '' if it lacks nothing."""
        value = getattr(case, self.field)
        elsewhere = self.device and case.device != self.device
        other = (self.reductions and not case.op) or (self.grouped and case.coalesce < 2)
        if value not in self.values or elsewhere or other:
            return ""
        return self.what.format(value) + (f" on {self.device}" if self.device else "")


@dataclass(frozen=True)
class BackendEntry:
    """One backend of torch.distributed.

    devices: device types whose tensors it accepts, the preferred one first.
    family: the family of libraries behind it (a package of libraries/), or ''.
    connects: when the ranks connect: ``init_process_group``, or ``first call`` (lazy).
    eager: whether --init eager can connect the ranks earlier.
    options: the class in torch.distributed whose Options can request a lazy connection.
    guesses_device: its barrier derives the device from the rank unless device_ids is given.
    buffers: whether buffers can be registered with it (--buffers).
    shares_device: whether several ranks can share a GPU (--rehearse).
    on_host: its calls run in threads on the host, even for tensors on a device.
    whole_reduce_scatter: its reduce_scatter is an all_reduce of the whole input.
    staged: data on a device is copied through host memory.
    forced: False if no variable of NCCL or oneCCL has an effect on it.
    interfaces: the environment variable that selects its network interfaces.
    module: the module that has to be imported to register the backend with torch.
    store: (module, class) of the store that it requires, whose import registers the backend.
    library: how the file name of its shared library begins (machine/provenance.py).
    absent: what to do if this torch does not have the backend.
    since: the build of torch that has it, if there are builds for its device without it.
    lacks: what it does not support; explains a refused call whose error does not (``map::at``).
    groups_alone: device types on which calls are grouped (--coalesce) without giving torch's
    coalescing manager a device.
    workers: how many calls of a group it runs at the same time.
    barrier_rethrows: its barrier raises the error of calls of the group that still run.
    """

    name: str
    devices: tuple[str, ...]
    family: str = ""
    communicates: bool = True
    connects: str = "first call"
    eager: bool = False
    options: str = ""
    guesses_device: bool = False
    buffers: bool = False
    shares_device: bool = False
    on_host: bool = False
    whole_reduce_scatter: bool = False
    staged: bool = False
    forced: bool = True
    interfaces: str = ""
    module: str | None = None
    store: tuple[str, str] | None = None
    library: str = "libtorch_cpu"
    absent: str = "Install a torch that was built with it."
    since: str = ""
    lacks: tuple[Lack, ...] = ()
    groups_alone: tuple[str, ...] = ()
    workers: int = 1
    barrier_rethrows: bool = False

    def reason(self, case: Case, text: str) -> str:
        """Why a call of the case was refused: what the backend lacks, or else ``text``."""
        lacking = next(filter(None, (lack.of(case) for lack in self.lacks)), "")
        return f"{self.name} has no {lacking}" if lacking else text


_BITWISE = ("band", "bor", "bxor")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")

BACKENDS: dict[str, BackendEntry] = {
    b.name: b
    for b in (
        BackendEntry(
            "gloo",
            ("cpu", "cuda"),
            connects="init_process_group",
            whole_reduce_scatter=True,
            on_host=True,
            staged=True,
            forced=False,
            interfaces="GLOO_SOCKET_IFNAME",
            workers=2,  # threads of ProcessGroupGloo::Options
            barrier_rethrows=True,  # ProcessGroupGloo.cpp, AsyncBarrierWork::run
            # ProcessGroupGloo.cpp, allgather: every output must be as large as the input.
            lacks=(Lack("uneven_side", ("received",), "all_gather of blocks that differ"),),
        ),
        BackendEntry(
            "nccl",
            ("cuda",),
            NCCL,
            eager=True,
            options="ProcessGroupNCCL",
            guesses_device=True,
            buffers=True,
            shares_device=True,
            interfaces="NCCL_SOCKET_IFNAME",
            library="libnccl",
            absent="It needs a CUDA (or ROCm) build of torch: see pytorch.org.",
        ),
        BackendEntry(
            "xccl",
            ("xpu",),
            ONECCL,
            library="libccl",
            absent="It needs an XPU build of torch 2.8 or newer: see pytorch.org.",
            since="torch 2.8 or newer",
            # From the source of torch-xpu-ops (src/xccl, torch 2.14); not tested on hardware.
            lacks=(
                Lack("op", _BITWISE),
                Lack("dtype", ("int16",)),
                Lack("dtype", _FLOAT8, "reduction of {}", reductions=True),
            ),
        ),
        # The bindings come from Intel's own package index, not from PyPI (docs/measure.md).
        BackendEntry(
            "ccl",
            ("xpu", "cpu"),
            ONECCL,
            module="oneccl_bindings_for_pytorch",
            library="libccl",
            absent="Install oneccl_bindings_for_pytorch of the same minor version as torch "
            "(retired after 2.8), or build it for this torch: see docs/measure.md.",
            # Observed on CPUs with version 2.8 of the bindings, the last one. Their src/utils.cpp
            # has the maps of ops and dtypes, and their src/dispatch_stub.h has the rest.
            lacks=(
                Lack("op", ("avg", *_BITWISE)),
                Lack("dtype", _FLOAT8),
                Lack("collective", ("sendrecv", "hypercube"), "send and receive", device="cpu"),
                Lack("collective", ("reduce_scatter",), "group of {}", device="cpu", grouped=True),
            ),
            groups_alone=("cpu",),
        ),
        BackendEntry(
            "fake",
            ("cpu", "cuda", "xpu"),
            communicates=False,
            connects="never",
            forced=False,
            store=("torch.testing._internal.distributed.fake_pg", "FakeStore"),
            # It copies the input into every output.
            lacks=(Lack("uneven_side", ("received",), "all_gather of blocks that differ"),),
        ),
    )
}
# The variables that hide GPUs from a process: of CUDA, and of ROCm.
VISIBLE_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# The backend of a plan if none is named: every machine has it.
DEFAULT = "gloo"


def backend_of(name: str) -> BackendEntry:
    """The entry of a backend by its name; an unknown one gets an entry that lacks nothing."""
    if name not in BACKENDS and is_nccl(name):
        return replace(BACKENDS["nccl"], name=name)
    return BACKENDS.get(name) or BackendEntry(name, _KINDS)


def communicates(name: str) -> bool:
    """Whether the backend of this name sends anything between ranks."""
    return name not in BACKENDS or BACKENDS[name].communicates


def of_family(family: str) -> tuple[str, ...]:
    """The names of the backends of a family, ``NCCL`` or ``ONECCL``."""
    return tuple(entry.name for entry in BACKENDS.values() if entry.family == family)


def only_device(name: str | None) -> str | None:
    """The device type of a backend that has exactly one; None for other and unknown backends."""
    entry = BACKENDS.get(name or "")
    return entry.devices[0] if entry and len(entry.devices) == 1 else None


def choose_backends(
    torch: Any, names: str | None, device: str | None
) -> tuple[tuple[BackendEntry, ...], str]:
    """The backends (None: that of the machine) and the device type that all of them support: the
    first usable one. Raises UnavailableError and UsageError.
    """
    if not torch.distributed.is_available():
        raise UnavailableError(
            "torch", f"{torch.__version__} without torch.distributed", "a build that has it"
        )
    kind = device
    if kind and ":" in kind:
        raise UsageError("device", device, "cpu, cuda or xpu", "Rank l of a host takes device l.")
    if names is None:
        names = _default(torch, kind)
    entries = tuple(_entry(torch, name.strip().lower()) for name in names.split(","))
    if len({entry.name for entry in entries}) < len(entries):
        raise UsageError("backend", names, "each backend once")
    if len(entries) > 1 and not all(entry.communicates for entry in entries):
        alone = next(entry.name for entry in entries if not entry.communicates)
        raise UsageError("backend", names, f"{alone} alone", "It communicates with no other rank.")
    common = [d for d in entries[0].devices if all(d in entry.devices for entry in entries)]
    if kind is None:
        usable = [d for d in common if d == "cpu" or present(torch, d)]
        # If none is usable, the first is chosen: opening it reports what is missing.
        kind = next(iter(usable or common), None)
    if kind is None or kind not in common:
        of_all = f"{' or '.join(common)} for {names}" if common else ""
        expected = of_all or "backends with a device in common"
        raise UnavailableError("device", device or names, expected)
    return entries, kind


_KINDS = ("cpu", "cuda", "xpu")
_NAME = re.compile(r"(?!undefined$)[a-z_][\w-]*")  # "undefined" is torch's word for its default


def is_nccl(name: str) -> bool:
    """Whether this is an NCCL backend: torch 2.15 has nccl, nccl2, nccl-lazy and nccl-legacy."""
    return name in ("nccl", "nccl2") or name.startswith("nccl-")


def _default(torch: Any, kind: str | None) -> str:
    """The backend of the machine's accelerator, or gloo if there is none."""
    dist = torch.distributed
    if kind in (None, "cuda") and present(torch, "cuda") and dist.is_nccl_available():
        return "nccl"
    # get_default_backend_for_device would answer xccl even if torch was built without it.
    if kind in (None, "xpu") and present(torch, "xpu"):
        return "xccl" if getattr(dist, "is_xccl_available", bool)() else "ccl"
    if kind not in (None, "cpu"):
        expected = "one that machine and torch have"
        raise UnavailableError("device", kind, expected, "torchcoll doctor says why.")
    return "gloo"


def present(torch: Any, kind: str) -> bool:
    """Whether this process can use a device of this type."""
    module = getattr(torch, kind, None)
    return bool(module and module.is_available())


def _entry(torch: Any, name: str) -> BackendEntry:
    """The entry of a backend that this torch has. Raises UnavailableError if it does not."""
    entry = BACKENDS.get(name)
    if entry is None:
        if _NAME.fullmatch(name) and torch.distributed.is_backend_available(name):
            # torch records the devices that a plug-in backend names when it registers.
            can = torch.distributed.Backend.backend_capability.get(name) or _KINDS
            devices = tuple(kind for kind in can if kind in _KINDS)
            if is_nccl(name):
                return replace(BACKENDS["nccl"], name=name, devices=devices)
            return BackendEntry(name, devices)
        usable = [n for n in BACKENDS if _built(torch, n)]
        expected = f"one that this torch has: {', '.join(usable)}"
        raise UnavailableError("backend", name, expected, did_you_mean(name, usable))
    if entry.module:
        _import_bindings(torch, entry)
    if not _built(torch, name):
        raise UnavailableError(
            "backend", name, f"one that torch {torch.__version__} was built with", entry.absent
        )
    return entry


def _built(torch: Any, name: str) -> bool:
    dist = torch.distributed
    if not dist.is_available():
        return False
    # A backend with its own store is registered when `group_store` imports the store's module.
    entry = BACKENDS.get(name)
    return bool(entry and entry.store) or bool(dist.is_backend_available(name))


def _import_bindings(torch: Any, entry: BackendEntry) -> None:
    """Import the module that registers a backend. Raises UnavailableError if that fails."""
    assert entry.module
    if present(torch, "xpu"):
        # Only ccl on xpu needs it. With another version of torch it fails with an AttributeError.
        try:
            importlib.import_module("intel_extension_for_pytorch")
        except Exception as error:
            what, given = "intel_extension_for_pytorch", f"{type(error).__name__}: {error}"
            expected = f"the version for torch {torch.__version__}, which ccl on xpu needs"
            raise UnavailableError(what, given, expected, entry.absent) from None
    try:
        importlib.import_module(entry.module)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        advice = bindings_advice(entry, text, installed_version(entry.module), torch.__version__)
        expected = f"{entry.module} for torch {torch.__version__}"
        raise UnavailableError(f"backend {entry.name}", text, expected, advice) from None


def installed_version(module: str) -> str | None:
    """The version of an installed module; None if it is not installed."""
    try:
        return importlib.metadata.version(module.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return None


def minor_version(version: str) -> str:
    """Shorten a version to its minor version: 2.13.0+cpu to ``2.13``."""
    return ".".join(version.split("+")[0].split(".")[:2])


def bindings_advice(entry: BackendEntry, error: str, version: str | None, torch: str) -> str:
    """What to do if the module of a backend cannot be imported (error), or registers nothing."""
    advice = []
    if missing := re.search(r"(\S+): cannot open shared object file", error):
        advice.append(f"Source oneCCL's setvars.sh, so that the loader finds {missing[1]}.")
    minor = minor_version(torch)
    if version and minor_version(version) != minor:
        built_for = minor_version(version)
        advice.append(f"{entry.module} {version} is built for torch {built_for}, not for {minor}.")
    return " ".join(advice if missing else [*advice, entry.absent])


def current_backend(torch: Any, kind: str | None) -> str | None:
    """The backend of the default process group for a device type, by default the accelerator's;
    None if it has none. ``get_backend`` may say "undefined".
    """
    config = torch.distributed.get_backend_config()  # cpu:gloo,cuda:nccl
    backends = dict(pair.split(":", 1) for pair in config.split(",") if ":" in pair)
    kinds = [kind] if kind else [k for k in ("cuda", "xpu") if present(torch, k)] + ["cpu"]
    return next((backends[device] for device in kinds if device in backends), None)


def group_store(torch: Any, name: str, store: Any) -> Any:
    """The store to pass to ``init_process_group`` for this backend."""
    if module_and_kind := backend_of(name).store:
        module, kind = module_and_kind
        return getattr(importlib.import_module(module), kind)()
    return torch.distributed.PrefixStore("group", store)


def implementation(torch: Any, group: Any, device: str) -> str:
    """The class that implements a group: torch 2.15 has two for NCCL, under one name."""
    try:
        backend = group._get_backend(torch.device(device))
    except RuntimeError:
        return type(group).__name__
    return type(getattr(backend, "wrapped_pg", backend)).__name__  # TORCH_DISTRIBUTED_DEBUG=DETAIL
