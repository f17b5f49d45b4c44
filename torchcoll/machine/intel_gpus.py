"""The state of Intel GPUs: clocks, throttling and sensors from sysfs, processes from xpu-smi.

xpu-smi is asked only where it is installed: it starts Level Zero anew, which takes a second or
so.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torchcoll.machine.placement import number_in

_TIMEOUT_S = 10.0
Run = Callable[[list[str]], str | None]

# kernel: Documentation/ABI/testing/sysfs-driver-intel-{i915,xe}-hwmon, i915's gt/gt0 and xe's
# tile0/gt0/freq0. Both drivers name the reasons alike, with another prefix.
_CLOCKS = (
    ("gt", "rps_act_freq_mhz", "rps_RP0_freq_mhz", "", "throttle_reason_"),
    ("device/tile*", "freq0/act_freq", "freq0/rp0_freq", "freq0/throttle", "reason_"),
)


def intel_gpus(
    places: list[str], sysfs: str = "/sys", run: Run | None = None
) -> list[dict[str, Any]]:
    """One dict for each PCI id, in that order.

    place, index, sm_clock_mhz and sm_clock_max_mhz (highest of its tiles), reasons (of throttling,
    as the kernel names them), temperature_c, energy_uj (a counter: the kernel tells no power),
    processes ([{pid, name, size_bytes}]; None without xpu-smi). Unknown is None.
    """
    cards = {
        (entry / "device").resolve().name.lower(): entry
        for entry in Path(sysfs, "class/drm").glob("card*")
        if "-" not in entry.name  # card0-HDMI-A-1 is a connector
    }
    ask = run or _run
    found = []
    for number, place in enumerate(places):
        card = cards.get(place.lower())
        facts = _from_sysfs(card) if card else {}
        processes = _processes(place, ask)
        found.append({"place": place, "index": number, **facts, "processes": processes})
    return found


def _from_sysfs(card: Path) -> dict[str, Any]:
    clocks, most, reasons, stated = [], [], [], False
    for root, clock, clock_max, folder, prefix in _CLOCKS:
        for tile in sorted(card.glob(f"{root}/gt*")):
            clocks.append(number_in(tile / clock))
            most.append(number_in(tile / clock_max))
            for path in sorted((tile / folder).glob(f"{prefix}*")):
                stated = True
                name = path.name.removeprefix(prefix)
                if name != "status" and number_in(path):
                    reasons.append(name)
    hwmon = sorted(card.glob("device/hwmon/hwmon*"))
    millidegrees = _highest(number_in(p) for h in hwmon for p in h.glob("temp*_input"))
    return {
        "sm_clock_mhz": _highest(clocks),
        "sm_clock_max_mhz": _highest(most),
        "reasons": list(dict.fromkeys(reasons)) if stated else None,
        "temperature_c": None if millidegrees is None else millidegrees // 1000,
        "energy_uj": _highest(number_in(h / "energy1_input") for h in hwmon),
    }


def _highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _processes(place: str, run: Run) -> list[dict[str, Any]] | None:
    """``xpu-smi ps -d BDF -j``: mem_size in kB; it lists itself."""
    text = run(["xpu-smi", "ps", "-d", place, "-j"])
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
