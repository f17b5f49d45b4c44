"""The table of backends: adding one is an entry here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchcoll.core.errors import UnavailableError


@dataclass(frozen=True)
class BackendEntry:
    """One backend of torch.distributed.

    devices: device types that it moves, the default first. communicates: False for ``fake``.
    connects: where ranks connect, ``init_process_group`` or ``first call``.
    """

    name: str
    devices: tuple[str, ...]
    communicates: bool = True
    connects: str = "init_process_group"


BACKENDS: dict[str, BackendEntry] = {
    b.name: b
    for b in (
        BackendEntry("gloo", ("cpu",)),
        BackendEntry("fake", ("cpu",), communicates=False),
    )
}


def choose_backend(torch: Any, backend: str | None, device: str | None) -> tuple[BackendEntry, str]:
    """The entry and the device type to measure with, from what was asked (None: the default).

    Raises UnavailableError naming what this torch has.
    """
    name = (backend or "gloo").lower()
    entry = BACKENDS.get(name)
    usable = ", ".join(n for n in BACKENDS if _available(torch, n))
    if entry is None:
        raise UnavailableError("backend", backend, f"one of {usable}")
    if not _available(torch, name):
        raise UnavailableError(
            "backend", backend, f"one that this torch {torch.__version__} was built with: {usable}"
        )
    kind = (device or entry.devices[0]).split(":")[0]
    if kind not in entry.devices:
        raise UnavailableError(
            "device", device, f"{' or '.join(entry.devices)} for the {name} backend"
        )
    return entry, kind


def _available(torch: Any, name: str) -> bool:
    if not torch.distributed.is_available():
        return False
    # 'fake' registers itself when its module is imported, which `init_group` does.
    return name == "fake" or bool(torch.distributed.is_backend_available(name))


def library_version(torch: Any, name: str) -> str:
    """What communicates: ``gloo of torch 2.13.0+cpu``."""
    return f"{name} of torch {torch.__version__}"


def group_store(torch: Any, name: str, store: Any) -> Any:
    """The store that ``init_process_group`` is given for this backend."""
    if name == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        return FakeStore()
    return torch.distributed.PrefixStore("group", store)
