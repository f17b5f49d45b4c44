"""What is known of a run besides its results: its environment, its hosts, its node."""

from __future__ import annotations

from torchcoll.core.result import Run
from torchcoll.core.variables import JOB, kind_of

_APART = ("host", "libraries", "variables")  # of the environment, told in other words
_FEW_HOSTS = 4


def facts_of(run: Run) -> dict[str, str]:
    """Name -> value, both as texts, of what is known of a run."""
    environment = run.environment or {}
    facts = {k: str(v) for k, v in environment.items() if k not in _APART}
    facts |= environment.get("libraries") or {}
    variables = environment.get("variables") or {}
    facts |= {k: v for k, v in variables.items() if kind_of(k) != JOB}  # differs from job to job
    hosts = list(dict.fromkeys(str(member.get("host")) for member in run.members))
    if len(hosts) > _FEW_HOSTS:
        hosts = [hosts[0], "...", hosts[-1], f"({len(hosts)} hosts)"]
    return {**facts, "hosts": " ".join(hosts)} if hosts else facts


def hosts_of(run: Run) -> int:
    """On how many hosts: of those that its ranks name, else the label ``hosts``, which tells it of
    an imported table; 0 where neither does.
    """
    recorded = len({str(member["host"]) for member in run.members if member.get("host")})
    label = run.labels.get("hosts", "")
    return recorded or (int(label) if is_hosts(label) else 0)


def node_of(run: Run) -> str:
    """The label ``node``, else the host of a run whose ranks were all on one; '' otherwise."""
    if label := run.labels.get("node"):
        return str(label)
    hosts = {str(member["host"]) for member in run.members if member.get("host")}
    hosts = hosts or {str(host) for host in [run.environment.get("host")] if host}
    return hosts.pop() if len(hosts) == 1 and hosts_of(run) <= 1 else ""


def is_hosts(text: str) -> bool:
    """Whether it is a number of hosts, as the label ``hosts`` has to be."""
    return text.isdecimal() and text.isascii() and len(text) < 7 and int(text) > 0
