"""The table of backends: adding one is an entry here."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, replace
from typing import Any

from torchcoll.core.case import Case
from torchcoll.core.errors import UnavailableError, UsageError, did_you_mean


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
    communicates: False for ``fake``.
    connects: where ranks connect: ``init_process_group``, or ``first call`` (lazy).
    eager: whether --init eager can connect before, as the phase ``communicator``. Every backend of
    torch has the method, and NCCL alone does something in it.
    module: what must be imported before torch knows the backend.
    library: the shared library that communicates, as its file name begins (bench/provenance.py).
    absent: what to do where this torch lacks it.
    lacks: what it cannot do. Not asked before a call is tried, because a newer one may be able to:
    it is the reason of a call that was refused, whose own text is none (``map::at``).
    groups_alone: device types on which calls are grouped (--coalesce) without the device that
    torch's manager is told elsewhere; torch itself groups fewer collectives then (bench/calls.py).
    """

    name: str
    devices: tuple[str, ...]
    communicates: bool = True
    connects: str = "first call"
    eager: bool = False
    module: str | None = None
    library: str = "libtorch_cpu"
    absent: str = "Install a torch that was built with it."
    lacks: tuple[Lack, ...] = ()
    groups_alone: tuple[str, ...] = ()

    def reason(self, case: Case, text: str) -> str:
        """Why a call of the case was refused: what the backend lacks for it, else ``text``."""
        lacking = next(filter(None, (lack.of(case) for lack in self.lacks)), "")
        return f"{self.name} has no {lacking}" if lacking else text


_BITWISE = ("band", "bor", "bxor")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")

BACKENDS: dict[str, BackendEntry] = {
    b.name: b
    for b in (
        BackendEntry(
            "nccl",
            ("cuda",),
            eager=True,
            library="libnccl",
            absent="It needs a CUDA (or ROCm) build of torch: see pytorch.org.",
        ),
        BackendEntry(
            "xccl",
            ("xpu",),
            library="libccl",
            absent="It needs an XPU build of torch 2.8 or newer: see pytorch.org.",
            # Read in torch-xpu-ops' src/xccl of torch 2.14, not seen on hardware.
            lacks=(
                Lack("op", _BITWISE),
                Lack("dtype", ("int16",)),
                Lack("dtype", _FLOAT8, "reduction of {}", reductions=True),
            ),
        ),
        # The bindings come from Intel's own package index, not from PyPI (README).
        BackendEntry(
            "ccl",
            ("xpu", "cpu"),
            module="oneccl_bindings_for_pytorch",
            library="libccl",
            absent="Install oneccl_bindings_for_pytorch of the same minor version as torch "
            "(retired after 2.8): see the README.",
            # Seen on CPUs with the bindings 2.8, whose src/utils.cpp has the maps and whose
            # src/dispatch_stub.h has the rest. They are retired, so that this will not change.
            lacks=(
                Lack("op", ("avg", *_BITWISE)),
                Lack("dtype", _FLOAT8),
                Lack("collective", ("sendrecv", "hypercube"), "send and receive", device="cpu"),
                Lack("collective", ("reduce_scatter",), "group of {}", device="cpu", grouped=True),
            ),
            groups_alone=("cpu",),
        ),
        BackendEntry("gloo", ("cpu", "cuda"), connects="init_process_group"),
        BackendEntry("fake", ("cpu", "cuda", "xpu"), communicates=False, connects="never"),
    )
}


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
    kind = device
    if kind and ":" in kind:
        raise UsageError("device", device, "cpu, cuda or xpu", "Rank l of a host takes device l.")
    if names is None:
        names = _default(torch, kind)
    entries = tuple(_entry(torch, name.strip().lower()) for name in names.split(","))
    if len({entry.name for entry in entries}) < len(entries):
        raise UsageError("backend", names, "each backend once")
    if len(entries) > 1 and not all(entry.communicates for entry in entries):
        raise UsageError("backend", names, "fake alone", "It communicates with no other rank.")
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
    # 'fake' registers itself when its module is imported, which `group_store` does.
    return name == "fake" or bool(dist.is_backend_available(name))


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
        raise UnavailableError(
            f"backend {entry.name}",
            f"{type(error).__name__}: {error}",
            f"{entry.module} beside torch {torch.__version__}",
            entry.absent,
        ) from None


def library_version(torch: Any, entry: BackendEntry, device: str) -> str:
    """What communicates: ``NCCL 2.28.9``, ``RCCL 2.22.3``, ``gloo of torch 2.13.0+cpu``,
    ``oneCCL 2021.14.0, bindings 2.8.0``.
    """
    if is_nccl(entry.name):
        version = ".".join(map(str, torch.cuda.nccl.version()))
        return f"{'RCCL' if torch.version.hip else 'NCCL'} {version}"
    if entry.library == "libccl":
        from torchcoll.machine.provenance import oneccl_version

        oneccl = oneccl_version()
        if not entry.module:
            return f"oneCCL {f'{oneccl} ' if oneccl else ''}of torch {torch.__version__}"
        module = importlib.import_module(entry.module)
        bindings = f"bindings {getattr(module, '__version__', 'of unknown version')}"
        return f"oneCCL {f'{oneccl}, ' if oneccl else ''}{bindings}"
    return f"{entry.name} of torch {torch.__version__}"


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
    if name == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        return FakeStore()
    return torch.distributed.PrefixStore("group", store)


def implementation(torch: Any, group: Any, device: str) -> str:
    """The class behind a group: torch 2.15 has two NCCL implementations under one name."""
    try:
        backend = group._get_backend(torch.device(device))
    except RuntimeError:
        return type(group).__name__
    return type(getattr(backend, "wrapped_pg", backend)).__name__  # TORCH_DISTRIBUTED_DEBUG=DETAIL
