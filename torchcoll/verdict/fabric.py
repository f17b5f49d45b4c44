"""Which fabric a run was measured on: stated, or shown by the links that its ranks recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torchcoll.core.errors import UsageError
from torchcoll.core.hardware import device_named, device_of
from torchcoll.core.plausibility import stated_link_gbps
from torchcoll.core.result import Run
from torchcoll.core.units import format_ranges
from torchcoll.verdict.rules import Fabric, Rule, guessable, load_fabric, packaged


def fabric_of(run: Run, stated: str | None, own: Mapping[str, Rule]) -> Fabric | None:
    """The fabric that is stated (else by the label ``fabric``), or recognised; None: not known.

    Raises UsageError for one that is not there, or that cannot be the run's.
    """
    stated = stated or run.labels.get("fabric")
    hosts = hosts_of(run)
    if not stated:
        return _recognised(run, hosts, own)
    fabric = load_fabric(stated, own)
    if hosts and fabric.several_hosts != (hosts > 1):
        kind = "several hosts" if fabric.several_hosts else "one host"
        got = f"{fabric.name} for a run on {hosts} host{'s' if hosts > 1 else ''}"
        raise UsageError("fabric", got, f"a fabric of this run; {fabric.name} is for {kind}")
    device = device_of(run)
    links = {known.ring_gbps for name in fabric.devices if (known := device_named(name))}
    if device and links and device.ring_gbps not in links:  # an H200 has the links of an H100
        got, whose = f"{fabric.name} for a run on {device.name}", ", ".join(fabric.devices)
        raise UsageError("fabric", got, f"a fabric of this run; {fabric.name} is for {whose}")
    return fabric


def hosts_of(run: Run) -> int:
    """How many hosts; 0 where it is not known."""
    return len({str(m["host"]) for m in run.members if m.get("host")})


def check_labels(labels: Mapping[str, str]) -> None:
    """Raises UsageError for labels that the verdict would stumble over once all is measured. A
    fabric that the package does not have may be one of the user's own.
    """
    stated = labels.get("fabric", "")
    if stated.partition(":")[0] in packaged():
        load_fabric(stated)
    if text := label_problem(Run(header={"spec": {"labels": dict(labels)}})):
        raise UsageError(text)


def label_problem(run: Run) -> str:
    """What is wrong with the label ``link_gbps``; '' where nothing is."""
    if "link_gbps" not in run.labels or stated_link_gbps(run) is not None:
        return ""
    return f"label link_gbps: got {run.labels['link_gbps']!r}, expected GB/s above 0"


def odd_links(run: Run) -> list[str]:
    """Ranks whose GPU has another number of active NVLinks than most of its kind."""
    kinds: dict[Any, list[tuple[int, int]]] = {}
    for rank, member in enumerate(run.members):
        if isinstance(member.get("nvlinks"), int):
            kinds.setdefault(member.get("device_name"), []).append((rank, member["nvlinks"]))
    texts = []
    for members in kinds.values():
        counts = Counter(links for _, links in members)
        usual = max(counts, key=lambda links: (counts[links], links))  # a link is lost, not won
        for count in sorted({links for _, links in members} - {usual}):
            ranks = [rank for rank, links in members if links == count]
            word = f"rank{'s' if len(ranks) > 1 else ''} {format_ranges(ranks)}"
            texts.append(f"{count} NVLinks on {word}, {usual} on the others")
    return texts


def _recognised(run: Run, hosts: int, own: Mapping[str, Rule]) -> Fabric | None:
    device = device_of(run)
    links = [(m.get("nvlinks"), m.get("nvlink_to_switch")) for m in run.members]
    if device is None or hosts != 1 or None in links[0] or links != links[:1] * len(links):
        return None
    for fabric in guessable(own):
        if device.name in fabric.devices and (fabric.nvlinks, fabric.to_switch) == links[0]:
            return fabric
    return None
