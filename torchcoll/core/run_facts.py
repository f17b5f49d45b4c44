"""Facts about a run besides its results: its environment, its hosts, its node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchcoll.core.result import Run
from torchcoll.core.units import shorten_middle
from torchcoll.core.variables import JOB, kind_of

_APART = ("host", "libraries", "variables")  # of the environment: shown in another form
_FEW_HOSTS = 4


def facts_of(run: Run) -> dict[str, str]:
    """Name -> value, both as texts, of each fact about a run."""
    environment = run.environment or {}
    facts = {k: str(v) for k, v in environment.items() if k not in _APART}
    facts |= environment.get("libraries") or {}
    variables = environment.get("variables") or {}
    facts |= {k: v for k, v in variables.items() if kind_of(k) != JOB}  # differs from job to job
    hosts = list(dict.fromkeys(str(member.get("host")) for member in run.members))
    count = [f"({len(hosts)} hosts)"] if len(hosts) > _FEW_HOSTS else []
    shown = " ".join([*shorten_middle(hosts, _FEW_HOSTS, first=1), *count])
    return {**facts, "hosts": shown} if hosts else facts


def host_names(members: Iterable[Mapping[str, Any]]) -> list[str]:
    """The hosts of these ranks, each once, in the order of the ranks. members: ``Run.members``."""
    return list(dict.fromkeys(str(m["host"]) for m in members if m.get("host")))


def hosts_of(run: Run) -> int:
    """How many hosts the ranks name, or else the label ``hosts``; 0 if neither is known."""
    label = run.labels.get("hosts", "")
    return len(host_names(run.members)) or (int(label) if is_hosts(label) else 0)


def node_of(run: Run) -> str:
    """The label ``node``, or else the host of a run whose ranks were all on one; '' otherwise."""
    if label := run.labels.get("node"):
        return str(label)
    hosts = host_names(run.members) or host_names([run.environment])
    return hosts[0] if len(hosts) == 1 and hosts_of(run) <= 1 else ""


def is_hosts(text: str) -> bool:
    """Whether the text is a number of hosts, as the label ``hosts`` must be."""
    return text.isdecimal() and text.isascii() and len(text) < 7 and int(text) > 0
