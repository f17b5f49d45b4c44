"""Slower paths that NCCL's log proves, such as TCP sockets in place of InfiniBand, and remedies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torchcoll.core.toml_text import toml_table
from torchcoll.core.units import shorten

if TYPE_CHECKING:
    from torchcoll.libraries.nccl.messages import NcclProcess

TABLE = toml_table(Path(__file__).with_name("messages.toml").read_text(encoding="utf-8"))
# (fact of a process, the message that proves it). A group is what the fact is about.
FACTS = [(fact["name"], re.compile(fact["pattern"])) for fact in TABLE["fact"]]
MARKS = tuple(fact["mark"] for fact in TABLE["fact"])
_REMEDIES = TABLE["remedy"]
_INTERFACE = re.compile(r"(?:^| \[\d+\])([^\s:]+):")
_MOST = 3  # interfaces, adapters or pairs in a sentence


class SlowPath(NamedTuple):
    """variable: the environment variable that chose the path; '' if none did."""

    text: str
    remedy: str
    variable: str = ""


def slow_paths(processes: Sequence[NcclProcess], hosts: int = 0) -> list[SlowPath]:
    """What slows down the communication of these processes, the slowest path first.

    hosts: how many there are, if the log does not say; 0 if that is not known.
    """
    facts: dict[str, dict[str, None]] = {}
    variables: dict[str, str] = {}
    for process in processes:
        variables |= process.variables
        for name, values in process.facts.items():
            facts.setdefault(name, {}).update(values)
    nodes = max((m.nodes or 0 for p in processes for m in p.members), default=0) or hosts
    names = {process.host for process in processes}
    paths = []
    if nodes != 1 or len(names) > 1:
        paths += _between_hosts(processes, facts, variables)
    if pairs := facts.get("no P2P"):
        text = f"GPUs have no P2P ({shorten(list(pairs), 1)}): NCCL goes through host memory"
        paths.append(SlowPath(text, _REMEDIES["no_p2p"]))
    return paths


def _between_hosts(
    processes: Sequence[NcclProcess],
    facts: dict[str, dict[str, None]],
    variables: dict[str, str],
) -> list[SlowPath]:
    on_sockets = [process for process in processes if process.network.startswith("Socket")]
    if not on_sockets and "no GPUDirect" not in facts:
        return []
    if not on_sockets:
        text = f"GPU Direct RDMA is off for {shorten(list(facts['no GPUDirect']), _MOST)}"
        remedy = _REMEDIES["no_gpu_direct"][processes[0].library]
        return [SlowPath(f"{text}: data to other hosts goes through host memory", remedy)]
    names = [name for text in facts.get("interfaces", ()) for name in _INTERFACE.findall(text)]
    sockets = f"TCP sockets ({shorten(list(dict.fromkeys(names)), _MOST)})" if names else ""
    sockets = f"{sockets or 'TCP sockets'} between hosts"
    if len(on_sockets) < sum(bool(process.network) for process in processes):
        sockets += f", on {shorten(list(dict.fromkeys(p.host for p in on_sockets)), _MOST)} alone"
    for name, value in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket")):
        if variables.get(name) == value:
            text, remedy = (
                f"{name}={value} makes NCCL use {sockets}",
                f"unset {name}, then run again",
            )
            return [SlowPath(text, remedy, name)]
    if "no library" in facts:
        text = f"NCCL could not open libibverbs.so and uses {sockets}"
        return [SlowPath(text, _REMEDIES["no_library"])]
    if "no device" in facts:
        return [
            SlowPath(f"NCCL found no InfiniBand device and uses {sockets}", _REMEDIES["no_device"])
        ]
    return [SlowPath(f"NCCL uses {sockets}", _REMEDIES["no_device"])]
