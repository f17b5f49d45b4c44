"""Reads the state of Intel GPUs: clocks, throttling and sensors from sysfs, processes from xpu-smi.

xpu-smi takes about a second, because it initialises Level Zero. It is used only if installed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torchcoll.machine.placement import drm_cards, number_in

_TIMEOUT_S = 10.0
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
    kernel has no power), processes ([{pid, name, size_bytes}]; None without xpu-smi). Unknown
    values are None.
    """
    cards = drm_cards(sysfs)
    ask = run or _run
    gpus = []
    for number, device_id in enumerate(device_ids):
        card = cards.get(device_id.lower())
        facts = _from_sysfs(card) if card else {}
        processes = _processes(device_id, ask)
        gpus.append({"place": device_id, "index": number, **facts, "processes": processes})
    return gpus


def _from_sysfs(card: Path) -> dict[str, Any]:
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


def _processes(device_id: str, run: Run) -> list[dict[str, Any]] | None:
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


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout
