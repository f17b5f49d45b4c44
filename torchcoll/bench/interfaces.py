"""Network interfaces that a variable names for a library and that this host does not have.

gloo fails inside init_process_group, NCCL at the first collective, both far from the cause.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence

from torchcoll.core.errors import UnavailableError

VARIABLES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}


def check_interfaces(backends: Iterable[str]) -> None:
    """Raise UnavailableError where a variable of these backends names no usable interface."""
    asked = {name: VARIABLES[name] for name in backends if os.environ.get(VARIABLES.get(name, ""))}
    if not asked:
        return
    from torchcoll.bench.placement import network_interfaces

    there = {i["name"]: bool(i["families"]) for i in network_interfaces()}
    for backend, variable in asked.items():
        value = os.environ[variable]
        problem = interface_problem(backend, value, there)
        if there and problem:  # an empty list: no sysfs, nothing is known
            usable = ", ".join(name for name, has_address in there.items() if has_address)
            raise UnavailableError(
                variable,
                f"{value} on {socket.gethostname()} ({problem})",
                f"one of {usable}",
                f"Correct or unset {variable}.",
            )


def interface_problem(backend: str, value: str, there: Mapping[str, bool]) -> str:
    """What is wrong with ``value``, or nothing. ``there``: interface, whether it has an address."""
    if backend == "nccl":
        usable = [name for name, has_address in there.items() if has_address]
        return "" if matching(value, usable) else "it matches none with an address"
    # gloo opens each name of the list, exactly as it is written.
    for name in value.split(","):
        if name not in there:
            return f"no interface {name}" if name else "an empty name"
        if not there[name]:
            return f"{name} has no address"
    return ""


def matching(value: str, names: Sequence[str]) -> list[str]:
    """The interfaces that NCCL takes: ``eth`` is a prefix, ``=eth0`` exact, ``^docker`` all but
    these; lists with commas (NCCL's docs/userguide/source/env.rst).
    """
    exclude = value.startswith("^")
    rest = value.removeprefix("^")
    exact = rest.startswith("=")
    words = [w.split(":")[0] for w in rest.removeprefix("=").split(",") if w]
    hits = {n for n in names for w in words if (n == w if exact else n.startswith(w))}
    return [n for n in names if (n in hits) != exclude]
