"""Names that mean nothing: of interfaces and devices that are not there, of variables that no
library reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchcoll.bench.doctor.facts import Facts
from torchcoll.bench.doctor.finding import Finding
from torchcoll.bench.doctor.usable import nccl_version
from torchcoll.bench.interfaces import interface_problem, matching
from torchcoll.libraries.nccl import variables as nccl
from torchcoll.libraries.oneccl import variables as oneccl
from torchcoll.libraries.variables import unknown_variables

_NCCL, _ONECCL = ("nccl",), ("xccl", "ccl")
# Name: who reads it, by whose rule (bench/interfaces.py), for which backends.
_READERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "NCCL_SOCKET_IFNAME": ("NCCL", "nccl", _NCCL),
    "NCCL_OOB_NET_IFNAME": ("NCCL", "nccl", _NCCL),
    "GLOO_SOCKET_IFNAME": ("gloo", "gloo", ("gloo",)),
    "FI_TCP_IFACE": ("libfabric", "gloo", _ONECCL),
    "CCL_KVS_IFACE": ("oneCCL", "gloo", _ONECCL),
}


def interface_names(facts: Facts) -> Iterator[Finding]:
    there = {interface["name"]: bool(interface["families"]) for interface in facts.interfaces}
    for variable, (reader, rule, backends) in _READERS.items():
        value = facts.environ.get(variable, "")
        problem = interface_problem(rule, value, there) if value else ""
        if problem and there:  # none at all: no sysfs, nothing is known
            names = ", ".join(name for name, has_address in there.items() if has_address)
            syntax = " A prefix matches many, '=' exactly one, '^' excludes."
            yield Finding(
                "interface_name",
                "error",
                f"{variable}={value}: {problem}",
                f"{reader} ends with an error when it connects.",
                f"Interfaces here: {names}.{syntax if rule == 'nccl' else ''}",
                backends,
            )


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


def unknown_names(facts: Facts) -> Iterator[Finding]:
    for name, near in unknown_variables(facts.environ):
        library = "oneCCL" if name.upper().startswith("CCL_") else "NCCL"
        versions = oneccl.VERSIONS if library == "oneCCL" else nccl.VERSIONS
        yield Finding(
            "unknown_variable",
            "note",
            f"{name} is no variable of {library} that torchcoll knows",
            f"A name that is not read has no effect (looked for in {', '.join(versions)}).",
            f"Check the spelling: did you mean {near}?" if near else "Check the spelling.",
        )


def names_of_other_versions(facts: Facts) -> Iterator[Finding]:
    version = nccl_version(facts)
    if not version or facts.torch.get("hip"):  # RCCL's numbers are NCCL's, its names not all
        return
    for name in sorted(facts.environ):
        if name.startswith("NCCL_") and nccl.reads(name, version) is False:
            instead = nccl.REMOVED.get(name)
            yield Finding(
                "variable_of_another_version",
                "note",
                f"{name} is set, and NCCL {version} does not read it",
                "It has no effect.",
                f"{instead[:1].upper()}{instead[1:]}." if instead else "Unset it.",
            )


CHECKS = (interface_names, rdma_names, unknown_names, names_of_other_versions)
