"""Who really ran: the communication libraries that this process has mapped.

LD_PRELOAD and RPATH win in silence, so the file in the map is named and not the one that was
meant. Nothing here belongs between stamps; ``rank_facts`` costs some milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from torchcoll.machine.placement import device_facts, numa_nodes_of, pci_facts

# What moves bytes, and the plug-ins that tell it how. gloo is a part of libtorch_cpu.
_LIBRARY = re.compile(
    r"lib((nccl|rccl)(-\w+)?|ccl|oneccl\w*|mpi|mpich|fabric|ucc|torch_cpu)([.-][\w.-]*)?\.so[\d.]*"
)
_END_BYTES = 1 << 20


def rank_facts(
    torch: Any, device: str, thorough: bool = True, cpus: Iterable[int] = (), sysfs: str = "/sys"
) -> dict[str, Any]:
    """This rank's part of the ``ranks`` record: libraries, device, NUMA nodes, nearest NICs.

    ``thorough`` False leaves out what reads the libraries' files; one rank of a host is enough for
    that. ``cpus``: this process' affinity.
    """
    facts = device_facts(torch, device)
    pci = pci_facts(facts["pci_id"], sysfs) if facts.get("pci_id") else {}
    return {
        **facts,
        **pci,
        "cpu_numa_nodes": numa_nodes_of(cpus, sysfs),
        "mapped": mapped_libraries(torch, thorough=thorough),
    }


def mapped_libraries(
    torch: Any = None,
    maps: str = "/proc/self/maps",
    environ: Mapping[str, str] | None = None,
    thorough: bool = True,
) -> list[dict[str, Any]]:
    """Each communication library in this process: name, path, version, how, and with ``thorough``
    ``ends_sha256``: 16 digits over the size and the first and the last MiB of the file. A whole
    libnccl is 250 MB; its ends hold the build id and the section table.

    A backend's library may be mapped only by its first call: ask after it.
    """
    env = os.environ if environ is None else environ
    found = []
    for path in _mapped_paths(maps):
        name = os.path.basename(path)
        facts = {
            "name": name,
            "path": path,
            "version": _version(path, torch, maps == "/proc/self/maps", thorough),
            "how": _how(path, env),
        }
        if thorough:
            facts["ends_sha256"] = None
            with contextlib.suppress(OSError):
                status = os.stat(path)
                facts["ends_sha256"] = _hashed(path, status.st_mtime_ns, status.st_size)
        found.append(facts)
    return found


def _mapped_paths(maps: str) -> list[str]:
    try:
        with open(maps, errors="replace") as lines:
            # address perms offset device inode path; a path may hold blanks.
            fields = (line.rstrip("\n").split(None, 5) for line in lines)
            paths = dict.fromkeys(f[5] for f in fields if len(f) == 6 and f[5].startswith("/"))
    except OSError:
        return []
    return [p for p in paths if _LIBRARY.fullmatch(os.path.basename(p.removesuffix(" (deleted)")))]


def _how(path: str, environ: Mapping[str, str]) -> str:
    """Why the loader may have taken this file, from the variables that it reads."""
    preloaded = re.split(r"[ :]+", environ.get("LD_PRELOAD", ""))
    if any(p and (p == os.path.basename(path) or _same(p, path)) for p in preloaded):
        return "LD_PRELOAD"
    folders = [f for f in environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    if any(_same(folder, os.path.dirname(path)) for folder in folders):
        return "LD_LIBRARY_PATH"
    if "/site-packages/" in path or "/dist-packages/" in path:
        return "Python package"
    return "run path or system"


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _version(path: str, torch: Any, own: bool, thorough: bool) -> str | None:
    name = os.path.basename(path)
    if name.startswith("libtorch_cpu"):
        return str(torch.__version__) if torch else None
    version = None
    ask = next((ask for start, ask in _ASK.items() if name.startswith(start)), None)
    if own and ask:
        with contextlib.suppress(OSError, AttributeError):
            # The library that is there, never another that this would load.
            version = ask(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
    if not version and thorough and name.startswith(_WITH_ONECCL):
        version = _oneccl_version(path)
    return version or _version_in(os.path.realpath(path))


def _version_in(path: str) -> str | None:
    """``/opt/intel/oneapi/ccl/2021.14/lib``, ``libnccl.so.2.30.7``. Of other libraries the
    numbers behind .so are the interface's, not the release's; so are oneCCL's.
    """
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
    # Open MPI goes on about who built it.
    return text.value.decode(errors="replace").splitlines()[0].split(",")[0][:80]


def _fabric_version(library: Any) -> str:
    number = library.fi_version()
    return f"{number >> 16 & 0xFFFF}.{number & 0xFFFF}"


# onecclGetVersion is not asked: it loads plug-ins and prints a stack when it cannot.
_ASK: dict[str, Callable[[Any], str | None]] = {
    "libnccl.": _nccl_version,
    "librccl.": _nccl_version,
    "libmpi": _mpi_version,
    "libfabric": _fabric_version,
}


# oneCCL itself, and Intel's bindings, which may hold it inside (a static build).
_WITH_ONECCL = ("libccl.", "liboneccl_bindings")


def oneccl_version(maps: str = "/proc/self/maps") -> str | None:
    """``2021.14.0``, of the oneCCL that this process has mapped; None where there is none, or it
    does not tell.
    """
    paths = [p for p in _mapped_paths(maps) if os.path.basename(p).startswith(_WITH_ONECCL)]
    found = (_oneccl_version(path) or _version_in(os.path.realpath(path)) for path in paths)
    return next(filter(None, found), None)


def _oneccl_version(path: str) -> str | None:
    """``Gold-2022.2.0`` stands in the file beside its date: 5 ms for 7 MB, 40 ms for 230 MB."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
            place = m.find(b"Gold-20")
            return m[place + 5 : place + 40].split()[0].decode() if place >= 0 else None
    except (OSError, ValueError, IndexError):
        return None


@lru_cache
def _hashed(path: str, mtime_ns: int, size_bytes: int) -> str:
    digest = hashlib.sha256(str(size_bytes).encode())
    with open(path, "rb") as file:
        digest.update(file.read(_END_BYTES))
        file.seek(max(_END_BYTES, size_bytes - _END_BYTES))
        digest.update(file.read())
    return digest.hexdigest()[:16]
