"""Reads the state of GPUs: of NVIDIA's from NVML, of AMD's and Intel's from sysfs.

NVML is the library of NVIDIA's driver, called with ctypes: torch does not depend on nvidia-ml-py,
and an image without it would have no state. Constants and structures are those of nvml.h (CUDA 11
to 13). A value that a driver or a GPU does not support is None, or absent.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torchcoll.machine.placement import drm_cards, number_in, text_in

_SUCCESS = 0
_SM, _MEM = 1, 2  # nvmlClockType_t
_GPU_SENSOR = 0  # nvmlTemperatureSensors_t
_CORRECTED, _UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
_VOLATILE = 0  # nvmlEccCounterType_t: since the driver was loaded
_MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS; 18 in older headers, whose drivers refuse more
_SWITCH = 2  # nvmlIntNvLinkDeviceType_t
_REMOTES: dict[int | None, str] = {0: "gpu", 1: "cpu", _SWITCH: "switch"}
_MAX_PROCESSES = 1024
_NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE

# nvmlClocksEventReason*, with the names of nvidia-smi -q -d PERFORMANCE.
REASONS = {
    0x001: "GPU idle",
    0x002: "applications clocks setting",
    0x004: "SW power cap",
    0x008: "HW slowdown",
    0x010: "sync boost",
    0x020: "SW thermal slowdown",
    0x040: "HW thermal slowdown",
    0x080: "HW power brake slowdown",
    0x100: "display clock setting",
}
# nvmlPerfPolicyType_t: the driver counts for how long each policy has limited the clocks.
_POLICIES = {"power": 0, "thermal": 1, "board limit": 3, "reliability": 5}
# nvmlNvLinkErrorCounter_t
_LINK_ERRORS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3}


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t, which versions 2 and 3 of the call use."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Violation(ctypes.Structure):
    _fields_ = (("reference_us", ctypes.c_ulonglong), ("violation_ns", ctypes.c_ulonglong))


def load() -> Any:
    """Load libnvidia-ml; None if it is not installed."""
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None


def nvidia_gpus(device_ids: list[str], library: Any) -> list[dict[str, Any]]:
    """The state of each GPU, in the order of ``device_ids`` (PCI ids or UUIDs).

    Keys: place (its id), index, busy_percent (of the last second at most), sm_clock_mhz,
    sm_clock_max_mhz, mem_clock_mhz, mem_clock_max_mhz, reasons (why the clocks are not higher),
    limited_ns (policy -> ns since the driver was loaded), ecc_corrected, ecc_uncorrected,
    temperature_c, power_w, power_limit_w, persistence, processes ([{pid, size_bytes}]), nvlinks
    (how many are active), nvlink_to (kind of the other end -> number of links), nvlink_errors (kind
    -> link -> count).
    """
    none = [{"place": device_id} for device_id in device_ids]
    if library is None or not device_ids or library.nvmlInit_v2() != _SUCCESS:
        return none
    try:
        return [_gpu(library, device_id) for device_id in device_ids]
    finally:
        library.nvmlShutdown()


def _gpu(library: Any, device_id: str) -> dict[str, Any]:
    handle = ctypes.c_void_p()
    ask, name = "nvmlDeviceGetHandleByPciBusId_v2", device_id
    if ":" not in device_id:  # torch omits the prefix
        ask, name = "nvmlDeviceGetHandleByUUID", f"GPU-{device_id.removeprefix('GPU-')}"
    if not _call(library, ask, name.encode(), ctypes.byref(handle)):
        return {"place": device_id}
    gpu = _Gpu(library, handle)
    milliwatts = gpu.number("nvmlDeviceGetPowerUsage")
    limit = gpu.number("nvmlDeviceGetEnforcedPowerLimit")
    persistence = gpu.number("nvmlDeviceGetPersistenceMode")
    load = _Utilization()
    load_available = gpu.ask("nvmlDeviceGetUtilizationRates", ctypes.byref(load))
    limited_ns: dict[str, int | None] = {}
    for policy, number in _POLICIES.items():
        violation = _Violation()
        available = gpu.ask("nvmlDeviceGetViolationStatus", number, ctypes.byref(violation))
        limited_ns[policy] = violation.violation_ns if available else None
    return {
        "place": device_id,
        "index": gpu.number("nvmlDeviceGetIndex"),
        "busy_percent": load.gpu if load_available else None,
        "sm_clock_mhz": gpu.number("nvmlDeviceGetClockInfo", _SM),
        "sm_clock_max_mhz": gpu.number("nvmlDeviceGetMaxClockInfo", _SM),
        "mem_clock_mhz": gpu.number("nvmlDeviceGetClockInfo", _MEM),
        "mem_clock_max_mhz": gpu.number("nvmlDeviceGetMaxClockInfo", _MEM),
        "reasons": gpu.reasons(),
        "limited_ns": limited_ns,
        "ecc_corrected": gpu.ecc(_CORRECTED),
        "ecc_uncorrected": gpu.ecc(_UNCORRECTED),
        "temperature_c": gpu.number("nvmlDeviceGetTemperature", _GPU_SENSOR),
        "power_w": milliwatts and milliwatts / 1000,
        "power_limit_w": limit and limit / 1000,
        "persistence": None if persistence is None else bool(persistence),
        "processes": gpu.processes(),
        **gpu.nvlinks(),
    }


def _call(library: Any, name: str, *arguments: object) -> bool:
    """Whether the library has the function and the call succeeded."""
    function = getattr(library, name, None)  # a driver may be older or newer than the function
    return function is not None and function(*arguments) == _SUCCESS


class _Gpu:
    """One GPU, with the functions of NVML that take its handle."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle = handle

    def ask(self, name: str, *arguments: object) -> bool:
        return _call(self._library, name, self._handle, *arguments)

    def number(self, name: str, *arguments: int, kind: Any = ctypes.c_uint) -> int | None:
        """The result of a function that has a single one; None if it failed."""
        value = kind()
        return value.value if self.ask(name, *arguments, ctypes.byref(value)) else None

    def reasons(self) -> list[str] | None:
        for name in ("EventReasons", "ThrottleReasons"):  # renamed in CUDA 12
            call = f"nvmlDeviceGetCurrentClocks{name}"
            bits = self.number(call, kind=ctypes.c_ulonglong)
            if bits is not None:
                return [reason for bit, reason in REASONS.items() if bits & bit]
        return None

    def ecc(self, kind: int) -> int | None:
        return self.number("nvmlDeviceGetTotalEccErrors", kind, _VOLATILE, kind=ctypes.c_ulonglong)

    def processes(self) -> list[dict[str, Any]] | None:
        """The processes with a compute context on this GPU, with the driver's pids."""
        for version in (3, 2):
            entries, count = (_Process * _MAX_PROCESSES)(), ctypes.c_uint(_MAX_PROCESSES)
            call = f"nvmlDeviceGetComputeRunningProcesses_v{version}"
            if self.ask(call, ctypes.byref(count), entries):
                return [
                    {"pid": p.pid, "size_bytes": None if p.used == _NOT_AVAILABLE else p.used}
                    for p in entries[: count.value]
                ]
        return None

    def nvlinks(self) -> dict[str, Any]:
        states = [self.number("nvmlDeviceGetNvLinkState", link) for link in range(_MAX_LINKS)]
        if all(state is None for state in states):  # no NVLink, or its state is not available
            return {"nvlinks": None, "nvlink_to": None, "nvlink_errors": None}
        active = [link for link, state in enumerate(states) if state]
        kinds = (self.number("nvmlDeviceGetNvLinkRemoteDeviceType", link) for link in active)
        remotes = dict(Counter(_REMOTES.get(kind, "unknown") for kind in kinds))
        call = "nvmlDeviceGetNvLinkErrorCounter"
        errors = {
            name: [self.number(call, link, counter, kind=ctypes.c_ulonglong) for link in active]
            for name, counter in _LINK_ERRORS.items()
        }
        available = {
            name: dict(zip(map(str, active), counts, strict=True))
            for name, counts in errors.items()
            if any(count is not None for count in counts)
        }
        return {"nvlinks": len(active), "nvlink_to": remotes, "nvlink_errors": available or None}


def is_amd(device_id: str, sysfs: str = "/sys") -> bool:
    """Whether the device with this PCI id is AMD's."""
    return text_in(Path(sysfs, "bus/pci/devices", device_id, "vendor")) == "0x1002"


def amd_gpus(device_ids: list[str], sysfs: str = "/sys") -> list[dict[str, Any]]:
    """The state of each GPU, in the order of ``device_ids`` (PCI ids), with the keys of
    ``nvidia_gpus`` that the kernel has (gpu/amdgpu/thermal.rst).
    """
    return _with_facts(device_ids, sysfs, lambda card: _amd_facts(card / "device"))


def _amd_facts(device: Path) -> dict[str, Any]:
    levels = re.findall(r"(\d+)Mhz( \*)?", text_in(device / "pp_dpm_sclk") or "", re.IGNORECASE)
    clocks = [int(clock) for clock, _ in levels]
    current = [int(clock) for clock, marked in levels if marked]
    sensors = sorted(device.glob("hwmon/hwmon*/temp*_input"))
    millidegrees = [value for path in sensors if (value := number_in(path)) is not None]
    return {
        "busy_percent": number_in(device / "gpu_busy_percent"),
        "sm_clock_mhz": current[0] if current else None,
        "sm_clock_max_mhz": max(clocks, default=None),
        "temperature_c": max(millidegrees) // 1000 if millidegrees else None,
        "power_w": _watts(device, "power1_average", "power1_input"),
        "power_limit_w": _watts(device, "power1_cap"),
    }


def _watts(device: Path, *names: str) -> float | None:
    """The first of these values of hwmon, which are in microwatts."""
    for name in names:
        for path in sorted(device.glob(f"hwmon/hwmon*/{name}")):
            microwatts = number_in(path)
            if microwatts is not None:
                return microwatts / 1e6
    return None


_XPU_SMI_S = 10.0
Run = Callable[[list[str]], str | None]

# kernel: Documentation/ABI/testing/sysfs-driver-intel-{i915,xe}-hwmon, i915's gt/gt0 and xe's
# tile0/gt0/freq0. Both drivers have the same names of reasons, with different prefixes.
_CLOCKS = (
    ("gt", "rps_act_freq_mhz", "rps_RP0_freq_mhz", "", "throttle_reason_"),
    ("device/tile*", "freq0/act_freq", "freq0/rp0_freq", "freq0/throttle", "reason_"),
)


def intel_gpus(
    device_ids: list[str], sysfs: str = "/sys", run: Run | None = None
) -> list[dict[str, Any]]:
    """The state of each GPU, in the order of ``device_ids`` (PCI ids).

    Keys: place (its PCI id), index, sm_clock_mhz and sm_clock_max_mhz (highest of its tiles),
    reasons (of throttling, as the kernel names them), temperature_c, energy_uj (a counter; the
    kernel has no power), processes ([{pid, name, size_bytes}]; None without xpu-smi).

    xpu-smi is used only if installed. It takes about a second, because it initialises Level Zero.
    """
    gpus = _with_facts(device_ids, sysfs, _intel_facts)
    return [{**gpu, "processes": _intel_processes(gpu["place"], run or _output)} for gpu in gpus]


def _with_facts(
    device_ids: list[str], sysfs: str, read: Callable[[Path], dict[str, Any]]
) -> list[dict[str, Any]]:
    cards = drm_cards(sysfs)
    placed = [(device_id, cards.get(device_id.lower())) for device_id in device_ids]
    return [
        {"place": device_id, "index": number, **(read(card) if card else {})}
        for number, (device_id, card) in enumerate(placed)
    ]


def _intel_facts(card: Path) -> dict[str, Any]:
    clocks, most, reasons, reported = [], [], [], False
    for root, clock, clock_max, folder, prefix in _CLOCKS:
        for tile in sorted(card.glob(f"{root}/gt*")):
            clocks.append(number_in(tile / clock))
            most.append(number_in(tile / clock_max))
            for path in sorted((tile / folder).glob(f"{prefix}*")):
                reported = True
                name = path.name.removeprefix(prefix)
                if name != "status" and number_in(path):
                    reasons.append(name)
    hwmon = sorted(card.glob("device/hwmon/hwmon*"))
    millidegrees = _highest(number_in(p) for h in hwmon for p in h.glob("temp*_input"))
    return {
        "sm_clock_mhz": _highest(clocks),
        "sm_clock_max_mhz": _highest(most),
        "reasons": list(dict.fromkeys(reasons)) if reported else None,
        "temperature_c": None if millidegrees is None else millidegrees // 1000,
        "energy_uj": _highest(number_in(h / "energy1_input") for h in hwmon),
    }


def _highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _intel_processes(device_id: str, run: Run) -> list[dict[str, Any]] | None:
    """The processes that ``xpu-smi ps -d BDF -j`` lists (mem_size is in kB), without itself."""
    text = run(["xpu-smi", "ps", "-d", device_id, "-j"])
    try:
        listed = json.loads(text or "")["device_util_by_proc_list"]
        return [
            {
                "pid": int(p["process_id"]),
                "name": str(p["process_name"]),
                "size_bytes": int(p["mem_size"]) * 1000,
            }
            for p in listed
            if p["process_name"] != "xpu-smi"
        ]
    except (ValueError, KeyError, TypeError):
        return None


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_XPU_SMI_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout
