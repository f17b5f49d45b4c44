"""What a device can carry at most, by its generation: an upper bound, never what to expect.

Links: NVLink of one GPU, one direction, all links together. ``wire_gbps`` is the signalling rate of
the generation's largest part (NVIDIA's product pages give both directions: 300, 600, 900, 1800
GB/s). ``ring_gbps`` is what NCCL reckons with for a full part: links x GB/s a link of
src/graph/topo.h (20 for sm70 and sm80, 20.6 for sm90 since 2.20, 40.1 for sm100 since 2.27); a
measured ring comes close (about 370 GB/s of busbw on eight H100, NVIDIA/nccl-tests#212).
Memory: the data sheets' bandwidth; a copy within the device reads and writes, so it moves half.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from torchcoll.core.result import Run


@dataclass(frozen=True)
class Device:
    """Bounds of one device. multicast: its switches can reduce (NVLS), which lifts all_reduce."""

    name: str
    ring_gbps: float
    wire_gbps: float
    memory_gbps: float
    multicast: bool = False


# Smaller parts of a name (PCIe cards, A800, H20) have fewer links: the bound holds for them too.
DEVICES = (
    Device("V100", 120, 150, 900),
    Device("A100", 240, 300, 2039),
    Device("H100", 370.8, 450, 3350, multicast=True),
    Device("H200", 370.8, 450, 4800, multicast=True),
    Device("B200", 721.8, 900, 8000, multicast=True),
)
_ALIASES = {"A800": "A100", "H800": "H100", "H20": "H100", "GH200": "H200", "GB200": "B200"}


def device_named(name: str) -> Device | None:
    """``NVIDIA A100-SXM4-80GB`` -> A100; None for a device whose bound is not known. A part with
    the bounds of another keeps its own name: what was measured on the other is not expected of it.
    """
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    for word in words:
        found = _ALIASES.get(word, word)
        for device in DEVICES:
            if device.name == found:
                return dataclasses.replace(device, name=word)
    return None


def device_of(run: Run) -> Device | None:
    """The devices of a launch where they are of one known kind: told by its ranks, or by the label
    ``gpu`` of who imported it.
    """
    names = {str(m["device_name"]) for m in run.members if m.get("device_name")}
    if not names and run.labels.get("gpu"):
        names = {run.labels["gpu"]}
    found = {device_named(name) for name in names}
    return found.pop() if len(found) == 1 else None
