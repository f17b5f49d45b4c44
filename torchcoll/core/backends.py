"""THE table of backends. Adding one is an entry here; no other file names one.

An entry says what a backend is and what it can do; other files ask for that. Functions that need
torch receive it as an argument, so that this module stays importable without it: what a file tells
of a backend (its name) is read off the ranks.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import UnavailableError, UsageError, did_you_mean

if TYPE_CHECKING:
    from torchcoll.core.case import Case

# Families of libraries, by the package of libraries/ with their variables, logs and algorithms.
NCCL, ONECCL = "nccl", "oneccl"


@dataclass(frozen=True)
class Lack:
    """What a backend cannot do: cases whose ``field`` is one of ``values``.

    what: in the user's words, ``{}`` is the value. device: there alone; '' is everywhere.
    reductions: of cases that reduce alone. grouped: of calls in one group (--coalesce) alone.
    """

    field: str
    values: tuple[str, ...]
    what: str = "{}"
    device: str = ""
    reductions: bool = False
    grouped: bool = False

    def of(self, case: Case) -> str:
        """``avg``, ``send and receive on cpu``; '' where the case needs nothing of this."""
        value = getattr(case, self.field)
        if (
            value not in self.values
            or (self.device and case.device != self.device)
            or (self.reductions and not case.op)
            or (self.grouped and case.coalesce < 2)
        ):
            return ""
        return self.what.format(value) + (f" on {self.device}" if self.device else "")


@dataclass(frozen=True)
class BackendEntry:
    """One backend of torch.distributed.

    devices: device types that it moves, the preferred first.
    family: the family of libraries that communicates, where libraries/ knows it; else ''.
    communicates: whether anything goes from rank to rank.
    promised: False for what torch has, nobody here has tried, and is passed on as it is.
    connects: where ranks connect: ``init_process_group``, or ``first call`` (lazy).
    eager: whether --init eager can connect before, as the phase ``communicator``. Every backend of
    torch has the method, and NCCL alone does something in it.
    options: the class in torch.distributed whose Options may tell it to connect lazily.
    guesses_device: its barrier takes the device from the rank unless it is told.
    buffers: whether buffers can be registered (--buffers).
    shares_device: whether several ranks of it can be made to share a GPU (--rehearse).
    on_host: its calls run in threads of the host, whatever device the data lies on.
    whole_reduce_scatter: its reduce_scatter is an all_reduce of the whole input.
    staged: data on a device goes through the host's memory.
    forced: False where no variable of NCCL or oneCCL means anything to it.
    interfaces: the variable that names its network interfaces.
    module: what must be imported before torch knows the backend.
    store: module and class of the store that it wants; importing the module makes it known.
    library: the shared library that communicates, as its file name begins (machine/provenance.py).
    prefixes: of the environment variables that it reads, which a file keeps.
    absent: what to do where this torch lacks it.
    since: the build of torch that has it, where builds for its device without it are about.
    lacks: what it cannot do. Not asked before a call is tried, because a newer one may be able to:
    it is the reason of a call that was refused, whose own text is none (``map::at``).
    groups_alone: device types on which calls are grouped (--coalesce) without the device that
    torch's manager is told elsewhere; torch itself groups fewer collectives then.
    one_at_a_time: device types on which a process runs one call at a time: a call holds a lock of
    the backend until it ends, so that a call of another thread waits for it, on any group.
    """

    name: str
    devices: tuple[str, ...]
    family: str = ""
    communicates: bool = True
    promised: bool = True
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
    prefixes: tuple[str, ...] = ()
    absent: str = "Install a torch that was built with it."
    since: str = ""
    lacks: tuple[Lack, ...] = ()
    groups_alone: tuple[str, ...] = ()
    one_at_a_time: tuple[str, ...] = ()

    def reason(self, case: Case, text: str) -> str:
        """Why a call of the case was refused: what the backend lacks for it, else ``text``."""
        lacking = next(filter(None, (lack.of(case) for lack in self.lacks)), "")
        return f"{self.name} has no {lacking}" if lacking else text


# libfabric, MPI and Level Zero lie below oneCCL.
_ONECCL_PREFIXES = ("CCL_", "FI_", "I_MPI_")
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
            prefixes=("GLOO_", "TP_"),
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
            prefixes=("NCCL_", "RCCL_"),
            absent="It needs a CUDA (or ROCm) build of torch: see pytorch.org.",
        ),
        BackendEntry(
            "xccl",
            ("xpu",),
            ONECCL,
            library="libccl",
            prefixes=_ONECCL_PREFIXES,
            absent="It needs an XPU build of torch 2.8 or newer: see pytorch.org.",
            since="torch 2.8 or newer",
            # Read in torch-xpu-ops' src/xccl of torch 2.14, not seen on hardware.
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
            prefixes=_ONECCL_PREFIXES,
            absent="Install oneccl_bindings_for_pytorch of the same minor version as torch "
            "(retired after 2.8): see docs/measure.md.",
            # Seen on CPUs with the bindings 2.8, whose src/utils.cpp has the maps and whose
            # src/dispatch_stub.h has the rest. They are retired, so that this will not change.
            lacks=(
                Lack("op", ("avg", *_BITWISE)),
                Lack("dtype", _FLOAT8),
                Lack("collective", ("sendrecv", "hypercube"), "send and receive", device="cpu"),
                Lack("collective", ("reduce_scatter",), "group of {}", device="cpu", grouped=True),
            ),
            groups_alone=("cpu",),
            one_at_a_time=("cpu",),
        ),
        # torch's own table has them for these devices.
        BackendEntry("mpi", ("cpu", "cuda"), promised=False, on_host=True, forced=False),
        BackendEntry("ucc", ("cpu", "cuda"), promised=False, prefixes=("UCX_",)),
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
# What a plan is made for where nothing is asked for; it is on every machine.
DEFAULT = "gloo"
PREFIXES = tuple(dict.fromkeys(p for entry in BACKENDS.values() for p in entry.prefixes))


def backend_of(name: str) -> BackendEntry:
    """The entry of a name that a file or torch tells: what is not in the table can do all."""
    if name not in BACKENDS and is_nccl(name):
        return replace(BACKENDS["nccl"], name=name)
    return BACKENDS.get(name) or BackendEntry(name, _KINDS)


def communicates(name: str) -> bool:
    """Whether anything goes from rank to rank on the backend of that name."""
    return name not in BACKENDS or BACKENDS[name].communicates


def of_family(family: str) -> tuple[str, ...]:
    """The names of the backends of NCCL or ONECCL."""
    return tuple(entry.name for entry in BACKENDS.values() if entry.family == family)


def only_device(name: str | None) -> str | None:
    """The device type of a backend that has but one; None of others, and of unknown ones."""
    entry = BACKENDS.get(name or "")
    return entry.devices[0] if entry and len(entry.devices) == 1 else None


def choose_backends(
    torch: Any, names: str | None, device: str | None
) -> tuple[tuple[BackendEntry, ...], str]:
    """The entries (``names`` with commas) and the one device type that all of them move.

    Without names: what the machine has. A name that is not in the table is passed on to torch.
    Raises UnavailableError with what to do.
    """
    if not torch.distributed.is_available():
        raise UnavailableError(
            "torch", f"{torch.__version__} without torch.distributed", "a build that has it"
        )
    _check_torchcomms(torch)
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
        # Without a usable device the first is tried: opening it says what is missing.
        kind = next(iter(usable or common), None)
    if kind is None or kind not in common:
        raise UnavailableError(
            "device",
            device or names,
            f"{' or '.join(common)} for {names}" if common else "backends with a device in common",
        )
    return entries, kind


_KINDS = ("cpu", "cuda", "xpu")
_NAME = re.compile(r"(?!undefined$)[a-z_][\w-]*")  # "undefined" is torch's word for its default


def is_nccl(name: str) -> bool:
    """One of torch's NCCL backends: 2.15 has nccl, nccl2, nccl-lazy and nccl-legacy."""
    return name in ("nccl", "nccl2") or name.startswith("nccl-")


def _default(torch: Any, kind: str | None) -> str:
    """The backend of the accelerator that is there, else gloo."""
    dist = torch.distributed
    if kind in (None, "cuda") and present(torch, "cuda") and dist.is_nccl_available():
        return "nccl"
    # Not get_default_backend_for_device: it answers xccl where xccl is not built.
    if kind in (None, "xpu") and present(torch, "xpu"):
        return "xccl" if getattr(dist, "is_xccl_available", bool)() else "ccl"
    if kind not in (None, "cpu"):
        raise UnavailableError(
            "device",
            kind,
            "one that machine and torch have",
            "torchcoll doctor says why.",
        )
    return "gloo"


def present(torch: Any, kind: str) -> bool:
    """Whether this process can use a device of that type."""
    module = getattr(torch, kind, None)
    return bool(module and module.is_available())


def _entry(torch: Any, name: str) -> BackendEntry:
    entry = BACKENDS.get(name)
    if entry is None:
        if _NAME.fullmatch(name) and torch.distributed.is_backend_available(name):
            # torch knows what a backend moves, and a plug-in says so when it registers.
            can = torch.distributed.Backend.backend_capability.get(name) or _KINDS
            devices = tuple(kind for kind in can if kind in _KINDS)
            if is_nccl(name):
                return replace(BACKENDS["nccl"], name=name, devices=devices)
            return BackendEntry(name, devices)
        if name == TORCHCOMMS:
            raise UnavailableError("backend", name, *_torchcomms(torch))
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


# Not a backend of torch.distributed but another way to make its backends, from torch 2.13 on: with
# this variable nccl and gloo are torchcomms'. Without the package torch ignores it.
TORCHCOMMS, _BY_TORCHCOMMS = "torchcomms", "TORCH_DISTRIBUTED_USE_TORCHCOMMS"
_INSTALL_TORCHCOMMS = (
    "pip install torchcomms --index-url https://download.pytorch.org/whl/cu128 (on Linux, with a "
    "CUDA build of torch; PyPI's torchcomms is empty)"
)


def _torchcomms(torch: Any) -> tuple[str, str]:
    """What is expected in place of it as a backend's name, and what to do."""
    expected = f"a backend that it makes, such as nccl, under {_BY_TORCHCOMMS}=1"
    if not hasattr(torch.distributed.distributed_c10d, "_TORCHCOMM_AVAILABLE"):
        return expected, f"torch {torch.__version__} cannot use it: 2.13 or newer can."
    there = torch.distributed.distributed_c10d._TORCHCOMM_AVAILABLE
    return expected, "" if there else f"It is not installed: {_INSTALL_TORCHCOMMS}."


def _check_torchcomms(torch: Any) -> None:
    """Raises UnavailableError where torchcomms is asked for and torch would go on without it."""
    asked = os.environ.get(_BY_TORCHCOMMS, "0")
    if asked in ("", "0"):
        return
    if not getattr(torch.distributed.distributed_c10d, "_TORCHCOMM_AVAILABLE", False):
        _, action = _torchcomms(torch)
        expected = f"{TORCHCOMMS} beside torch, which would go on without it"
        raise UnavailableError(_BY_TORCHCOMMS, asked, expected, action)


def _built(torch: Any, name: str) -> bool:
    dist = torch.distributed
    if not dist.is_available():
        return False
    # What has a store of its own registers itself as that is imported, which `group_store` does.
    entry = BACKENDS.get(name)
    return bool(entry and entry.store) or bool(dist.is_backend_available(name))


def _import_bindings(torch: Any, entry: BackendEntry) -> None:
    assert entry.module
    if present(torch, "xpu"):
        # Needed for ccl on xpu alone. With a torch of another version it dies of an AttributeError.
        try:
            importlib.import_module("intel_extension_for_pytorch")
        except Exception as error:
            raise UnavailableError(
                "intel_extension_for_pytorch",
                f"{type(error).__name__}: {error}",
                f"the version for torch {torch.__version__}, which ccl on xpu needs",
                entry.absent,
            ) from None
    try:
        importlib.import_module(entry.module)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        advice = bindings_advice(entry, text, installed_version(entry.module), torch.__version__)
        expected = f"{entry.module} beside torch {torch.__version__}"
        raise UnavailableError(f"backend {entry.name}", text, expected, advice) from None


def installed_version(module: str) -> str | None:
    try:
        return importlib.metadata.version(module.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return None


def minor_version(version: str) -> str:
    """``2.13`` of 2.13.0+cpu."""
    return ".".join(version.split("+")[0].split(".")[:2])


def bindings_advice(entry: BackendEntry, error: str, version: str | None, torch: str) -> str:
    """What to do where the module of a backend cannot be imported, or registers nothing.

    error: of the import. version: of the module, where it is known; torch-ccl's README names one
    version of torch for each release. torch: its version.
    """
    advice = []
    if missing := re.search(r"(\S+): cannot open shared object file", error):
        advice.append(f"Source oneCCL's setvars.sh, so that the loader finds {missing[1]}.")
    minor = minor_version(torch)
    if version and minor_version(version) != minor:
        built_for = minor_version(version)
        advice.append(f"{entry.module} {version} is built for torch {built_for}, not for {minor}.")
    return " ".join(advice if missing else [*advice, entry.absent])


def found_backend(torch: Any, kind: str | None) -> str | None:
    """The backend of the process group that is there, on that device type (None: the first of
    accelerator and CPU that it has). ``get_backend`` says "undefined" of torch's default form, and
    the backend's own ``name`` is another than it was asked for by (nccl is nccl2 in torch 2.15).
    """
    config = torch.distributed.get_backend_config()  # cpu:gloo,cuda:nccl
    there = dict(pair.split(":", 1) for pair in config.split(",") if ":" in pair)
    kinds = [kind] if kind else [k for k in ("cuda", "xpu") if present(torch, k)] + ["cpu"]
    return next((there[device] for device in kinds if device in there), None)


def group_store(torch: Any, name: str, store: Any) -> Any:
    """The store that ``init_process_group`` is given for this backend."""
    if module_and_kind := backend_of(name).store:
        module, kind = module_and_kind
        return getattr(importlib.import_module(module), kind)()
    return torch.distributed.PrefixStore("group", store)


def implementation(torch: Any, group: Any, device: str) -> str:
    """The class behind a group: torch 2.15 has two NCCL implementations under one name."""
    try:
        backend = group._get_backend(torch.device(device))
    except RuntimeError:
        return type(group).__name__
    return type(getattr(backend, "wrapped_pg", backend)).__name__  # TORCH_DISTRIBUTED_DEBUG=DETAIL
