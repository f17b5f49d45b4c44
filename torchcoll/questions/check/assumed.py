"""Which fabric a run may have been measured on, where nobody states it: 'is it good?' of a table
that somebody pasted.

A log of another tool has names of devices and hosts, and no links. Where these leave one fabric it
is taken, and said; else the nearest that fit stand side by side, as assumptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchcoll.core.plausibility import device_named, device_of
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.summary import Row
from torchcoll.questions.check.limits import BEYOND, Phrase, share_of
from torchcoll.questions.check.rules import Fabric, guessable, load_fabric, packaged

# Parts that sit on a board with NVSwitch where there are eight: NVIDIA's names of the others have
# PCIe or NVL in them (nvidia.com/en-us/data-center: H100 PCIe, H100 NVL, H200 NVL, A100-PCIE).
_BOARD = re.compile(r"SXM|HBM3|\bH200$|\bH20$|\bB200$", re.IGNORECASE)
_CARD = re.compile(r"PCI|NVL\b", re.IGNORECASE)
_NOT_NVIDIA = ("xe-link-max", "xgmi-mi300x")  # whose devices are in no table of ours
# More ranks are on several hosts: a board has 16 GPUs at most (DGX-2), a GB200 NVL72 rack 72.
_MOST_ON_A_BOARD = 16
_MOST_ON_ONE = {"nvswitch-b200": 72}
_EIGHT = 8  # boards of four GPUs connect them without a switch
# How many rails, or Gbit/s, nodes have: what is tried where a fabric takes a number.
_NUMBERS = {"ib-hdr": (1, 4, 8), "ib-ndr": (1, 4, 8), "ethernet": (10, 25, 100)}
_MOST = 3
_LEAST = 0.3  # of its limit: below, it is another fabric, or so slow that nothing is told by it


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


def assumptions(rows: Sequence[Row], run: Run) -> list[Phrase]:
    """The nearest fabrics that could have carried this, with the share of each; [] where none."""
    rows = [row for row in rows if row.device != "cpu" and row.busbw_gbps]
    if not rows or all(row.ranks < 1 for row in rows):
        return []
    shares: dict[str, list[str]] = {}
    order: dict[str, float] = {}
    for fabric in _possible(run):
        share = share_of(rows, fabric, device_of(run) if fabric.several_hosts else None)
        if share is None or not _LEAST <= share[0] <= BEYOND:
            continue
        text = f"{100 * share[0]:.0f} % of the {share[1]} limit of"
        shares.setdefault(text, []).append(fabric.name)
        order[text] = share[0]
    nearest = sorted(order, key=lambda text: -order[text])[:_MOST]
    if not nearest:
        return []
    limits_text = ", ".join(f"{text} {' or '.join(shares[text])}" for text in nearest)
    text = f"the fabric is not recorded; busbw would be {limits_text} (--fabric NAME judges it)"
    return [Phrase("", text)]


def _possible(run: Run) -> Iterable[Fabric]:
    """Of one host or several, and of these devices, as far as that is known."""
    hosts, device, other = hosts_of(run), device_of(run), _others_devices(run)
    for name in packaged():
        numbers: Sequence[int | None] = _NUMBERS.get(name, (None,))
        for number in numbers:
            fabric = load_fabric(name if number is None else f"{name}:{number}")
            if hosts and fabric.several_hosts != (hosts > 1):
                continue
            if fabric.devices and (device.name not in fabric.devices if device else other):
                continue
            if device and name in _NOT_NVIDIA:
                continue
            if not fabric.several_hosts and run.ranks > _MOST_ON_ONE.get(name, _MOST_ON_A_BOARD):
                continue
            yield fabric


def _others_devices(run: Run) -> bool:
    """Whether what is told of the devices shows that they are none of those that fabrics name."""
    names = [member.get("device_name") for member in run.members]
    names += [run.labels.get("gpu"), run.environment.get("device_name")]
    recorded = [str(name) for name in names if name]
    libraries = (run.environment.get("libraries") or {}).values()
    rccl = any(str(library).startswith("RCCL") for library in libraries)
    return rccl or bool(recorded and not any(map(device_named, recorded)))
