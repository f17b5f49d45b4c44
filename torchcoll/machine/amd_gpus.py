"""Reads the state of AMD GPUs from sysfs, where the kernel's driver amdgpu has it.

Documentation/gpu/amdgpu/thermal.rst of the kernel has the names: gpu_busy_percent, pp_dpm_sclk (a
line for each level, the current one with ``*``) and hwmon. Which processes use a GPU and why it is
slowed are not there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torchcoll.machine.placement import drm_cards, number_in, text_in

VENDOR = "0x1002"


def is_amd(device_id: str, sysfs: str = "/sys") -> bool:
    """Whether the device with this PCI id is AMD's."""
    return text_in(Path(sysfs, "bus/pci/devices", device_id, "vendor")) == VENDOR


def amd_gpus(device_ids: list[str], sysfs: str = "/sys") -> list[dict[str, Any]]:
    """The state of each GPU, in the order of ``device_ids`` (PCI ids).

    Keys: place (its PCI id), index, busy_percent, sm_clock_mhz, sm_clock_max_mhz, temperature_c
    (the highest of its sensors), power_w, power_limit_w. Unknown values are None.
    """
    cards = drm_cards(sysfs)
    gpus = []
    for number, device_id in enumerate(device_ids):
        card = cards.get(device_id.lower())
        facts = _from_sysfs(card / "device") if card else {}
        gpus.append({"place": device_id, "index": number, **facts})
    return gpus


def _from_sysfs(device: Path) -> dict[str, Any]:
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
