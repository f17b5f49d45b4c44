"""Which fabric a run may have been measured on, where nobody states it: 'is it good?' of a table
that somebody pasted.

A log of another tool has names of devices and hosts, and no links. Where these leave one fabric it
is taken, and said.
"""

from __future__ import annotations

import re

from torchcoll.core.plausibility import device_named
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.questions.check.rules import Fabric, guessable

# Parts that sit on a board with NVSwitch where there are eight: NVIDIA's names of the others have
# PCIe or NVL in them (nvidia.com/en-us/data-center: H100 PCIe, H100 NVL, H200 NVL, A100-PCIE).
_BOARD = re.compile(r"SXM|HBM3|\bH200$|\bH20$|\bB200$", re.IGNORECASE)
_CARD = re.compile(r"PCI|NVL\b", re.IGNORECASE)
_EIGHT = 8  # boards of four GPUs connect them without a switch


def by_names(run: Run) -> Fabric | None:
    """The one fabric that the device and the hosts of another tool's output leave: those that its
    log names, or its labels ``gpu`` and ``hosts``.
    """
    name = device_name_of(run)
    if not run.source or not name or hosts_of(run) != 1 or run.ranks != _EIGHT:
        return None
    device = device_named(name)
    if device is None or _CARD.search(name) or not _BOARD.search(name):
        return None
    fabrics = [fabric for fabric in guessable() if device.name in fabric.devices]
    return fabrics[0] if len(fabrics) == 1 else None


def device_name_of(run: Run) -> str:
    """The name that all ranks have with their hosts, or of imported rows the label ``gpu``."""
    if not run.members:
        return str(run.labels.get("gpu", ""))
    names = {str(m.get("device_name") or "") if m.get("host") else "" for m in run.members}
    return names.pop() if len(names) == 1 else ""
