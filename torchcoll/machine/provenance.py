"""The communication libraries that this process has really mapped.

LD_PRELOAD and RPATH silently take precedence, so the mapped file counts and not the intended one.
``rank_facts`` takes some milliseconds and must not be called while calls are timed.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchcoll.machine.placement import device_facts, numa_nodes, pci_facts

# Communication libraries and their plug-ins. gloo is a part of libtorch_cpu.
_LIBRARY = re.compile(
    r"lib((nccl|rccl)(-\w+)?|ccl|oneccl\w*|mpi|mpich|fabric|ucc|torch_cpu)([.-][\w.-]*)?\.so[\d.]*"
)


def rank_facts(
    torch: Any, device: str, thorough: bool = True, cpus: Iterable[int] = (), sysfs: str = "/sys"
) -> dict[str, Any]:
    """Libraries, device, NUMA nodes of ``cpus`` and nearest NICs of this rank. thorough: read the
    libraries' files too, on one rank of a host.
    """
    facts = device_facts(torch, device)
    pci = pci_facts(facts["pci_id"], sysfs) if facts.get("pci_id") else {}
    mapped = mapped_libraries(torch, thorough=thorough)
    return {**facts, **pci, "cpu_numa_nodes": numa_nodes(cpus, sysfs), "mapped": mapped}


def mapped_libraries(
    torch: Any = None,
    maps: str = "/proc/self/maps",
    environ: Mapping[str, str] | None = None,
    thorough: bool = True,
) -> list[dict[str, Any]]:
    """Each communication library in this process: name, path, version, how.

    how: why the loader probably chose this file.
    thorough: read the version in the files too.

    A backend may map its library only at its first call, so call this function after it.
    """
    env = os.environ if environ is None else environ
    libraries = []
    for path in _mapped_paths(maps):
        name = os.path.basename(path)
        libraries.append(
            {
                "name": name,
                "path": path,
                "version": _version(path, torch, maps == "/proc/self/maps", thorough),
                "how": _how(path, env),
            }
        )
    return libraries


def _mapped_paths(maps: str) -> list[str]:
    try:
        with open(maps, errors="replace") as lines:
            # Fields: address, perms, offset, device, inode, path. A path may contain blanks.
            fields = (line.rstrip("\n").split(None, 5) for line in lines)
            paths = dict.fromkeys(f[5] for f in fields if len(f) == 6 and f[5].startswith("/"))
    except OSError:
        return []
    return [p for p in paths if _LIBRARY.fullmatch(os.path.basename(p.removesuffix(" (deleted)")))]


def _how(path: str, environ: Mapping[str, str]) -> str:
    """Why the loader probably chose this file, by the variables that the loader reads."""
    preloaded = re.split(r"[ :]+", environ.get("LD_PRELOAD", ""))
    if any(p and (p == os.path.basename(path) or _same_file(p, path)) for p in preloaded):
        return "LD_PRELOAD"
    folders = [f for f in environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    if any(_same_file(folder, os.path.dirname(path)) for folder in folders):
        return "LD_LIBRARY_PATH"
    if "/site-packages/" in path or "/dist-packages/" in path:
        return "Python package"
    return "run path or system"


def _same_file(first: str, second: str) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)


def _version(path: str, torch: Any, is_own_process: bool, thorough: bool) -> str | None:
    name = os.path.basename(path)
    if name.startswith("libtorch_cpu"):
        return str(torch.__version__) if torch else None
    version = None
    ask = next((ask for start, ask in _ASK.items() if name.startswith(start)), None)
    if is_own_process and ask:
        with contextlib.suppress(OSError, AttributeError):
            # RTLD_NOLOAD: use the library that is mapped, and never load another one.
            version = ask(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
    if not version and thorough and name.startswith(_WITH_ONECCL):
        version = _oneccl_version(path)
    return version or _version_in(os.path.realpath(path))


def _version_in(path: str) -> str | None:
    """The version in a path; of other libraries the number after .so is that of the interface."""
    folder, name = os.path.split(path)
    if name.startswith("libccl"):
        years = re.findall(r"[/-](20\d\d\.\d+(?:\.\d+)*)(?=[/_-]|$)", folder)
        return years[-1] if years else None
    number = re.fullmatch(r"lib[nr]ccl\.so\.(\d+\.\d+[\d.]*)", name)
    return number[1] if number else None


def _nccl_version(library: Any) -> str | None:
    number = ctypes.c_int()
    if library.ncclGetVersion(ctypes.byref(number)):
        return None
    base = 10000 if number.value >= 10000 else 1000  # 2.8 and before: 2708
    return f"{number.value // base}.{number.value % base // 100}.{number.value % 100}"


def _mpi_version(library: Any) -> str | None:
    text = ctypes.create_string_buffer(8192)  # MPI_MAX_LIBRARY_VERSION_STRING is less everywhere
    # May be called before MPI_Init (MPI 3.0, section 8.1.1).
    if library.MPI_Get_library_version(text, ctypes.byref(ctypes.c_int())):
        return None
    # Open MPI appends who built it.
    return text.value.decode(errors="replace").splitlines()[0].split(",")[0][:80]


def _fabric_version(library: Any) -> str:
    number = library.fi_version()
    return f"{number >> 16 & 0xFFFF}.{number & 0xFFFF}"


# onecclGetVersion is not called: it loads plug-ins and prints a stack trace if that fails.
_ASK: dict[str, Callable[[Any], str | None]] = {
    "libnccl.": _nccl_version,
    "librccl.": _nccl_version,
    "libmpi": _mpi_version,
    "libfabric": _fabric_version,
}


# oneCCL itself, and Intel's bindings, which may contain it (a static build).
_WITH_ONECCL = ("libccl.", "liboneccl_bindings")


def oneccl_version(maps: str = "/proc/self/maps") -> str | None:
    """``2021.14.0``: the version of the oneCCL that is mapped; None if unknown."""
    paths = [p for p in _mapped_paths(maps) if os.path.basename(p).startswith(_WITH_ONECCL)]
    versions = (_oneccl_version(path) or _version_in(os.path.realpath(path)) for path in paths)
    return next(filter(None, versions), None)


def _oneccl_version(path: str) -> str | None:
    """The version in ``Gold-2022.2.0`` in the file; takes 5 ms for 7 MB."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
            position = m.find(b"Gold-20")
            return m[position + 5 : position + 40].split()[0].decode() if position >= 0 else None
    except (OSError, ValueError, IndexError):
        return None
