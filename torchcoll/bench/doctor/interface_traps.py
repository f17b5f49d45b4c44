"""Variables that name a network interface or an RDMA device that is not there."""

from __future__ import annotations

from collections.abc import Iterator

from torchcoll.bench.doctor.facts import Facts
from torchcoll.bench.doctor.finding import Finding

# Name: who reads it, and for which backends. NCCL's list is of prefixes; the others name interfaces exactly, gloo
# several with commas (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp).
_NCCL, _ONECCL = ("nccl",), ("xccl", "ccl")
_BY_PREFIX = {"NCCL_SOCKET_IFNAME": ("NCCL", _NCCL), "NCCL_OOB_NET_IFNAME": ("NCCL", _NCCL)}
_EXACT = {
    "GLOO_SOCKET_IFNAME": ("gloo", ("gloo",)),
    "FI_TCP_IFACE": ("libfabric", _ONECCL),
    "CCL_KVS_IFACE": ("oneCCL", _ONECCL),
}


def matching(value: str, names: list[str]) -> list[str]:
    """The interfaces that NCCL takes: ``eth`` is a prefix, ``=eth0`` exact, ``^docker`` all but
    these (NCCL's docs/userguide/source/env.rst).
    """
    exclude = value.startswith("^")
    rest = value.removeprefix("^")
    exact = rest.startswith("=")
    words = [w.split(":")[0] for w in rest.removeprefix("=").split(",") if w]
    hits = {n for n in names for w in words if (n == w if exact else n.startswith(w))}
    return [n for n in names if (n in hits) != exclude]


def interface_names(facts: Facts) -> Iterator[Finding]:
    names = [interface["name"] for interface in facts.interfaces]
    if not names:
        return  # no sysfs: nothing is known
    for variable, reader in _BY_PREFIX.items():
        value = facts.environ.get(variable, "")
        if value and not matching(value, names):
            yield _finding(variable, value, reader, "matches no interface", names)
    for variable, reader in _EXACT.items():
        value = facts.environ.get(variable, "")
        missing = [w for w in (p.strip() for p in value.split(",")) if w and w not in names]
        if missing:
            said = f"names {', '.join(missing)}, which does not exist"
            yield _finding(variable, value, reader, said, names)


def rdma_names(facts: Facts) -> Iterator[Finding]:
    value = facts.environ.get("NCCL_IB_HCA", "")
    names = list(dict.fromkeys(port["name"] for port in facts.rdma))
    if value and not matching(value, names) and facts.interfaces:
        there = ", ".join(names) or "none"
        yield Finding(
            "interface_name",
            "warning",
            f"NCCL_IB_HCA={value} matches no RDMA device",
            "NCCL falls back to sockets in silence, or fails.",
            f"Devices here: {there}. A prefix matches many, '=' exactly one.",
            _NCCL,
        )


def _finding(
    variable: str, value: str, reader: tuple[str, tuple[str, ...]], said: str, names: list[str]
) -> Finding:
    who, backends = reader
    rule = " A prefix matches many, '=' exactly one, '^' excludes." if who == "NCCL" else ""
    return Finding(
        "interface_name",
        "error",
        f"{variable}={value} {said}",
        f"{who} ends with an error when it connects.",
        f"Interfaces here: {', '.join(names)}.{rule}",
        backends,
    )


CHECKS = (interface_names, rdma_names)
