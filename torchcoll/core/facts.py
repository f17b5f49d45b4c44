"""What a number may depend on beside its case: versions, hosts, libraries, variables."""

from __future__ import annotations

from torchcoll.core.result import Run

_APART = ("host", "libraries", "variables")  # of the environment, told in other words
_FEW_HOSTS = 4
# Variables that differ from job to job and say nothing about what was measured.
_OF_THE_JOB = (
    *("HYDI_", "HYDRA_", "LSB_", "MASTER_", "OMPI_", "PALS_", "PBS_", "PMI", "SLURM_"),
    "TORCHELASTIC_",
)


def facts_of(run: Run) -> dict[str, str]:
    """Name -> value, both as texts, of what is known of a launch."""
    environment = run.environment or {}
    facts = {k: str(v) for k, v in environment.items() if k not in _APART}
    facts |= environment.get("libraries") or {}
    variables = environment.get("variables") or {}
    facts |= {k: v for k, v in variables.items() if not k.startswith(_OF_THE_JOB)}
    hosts = list(dict.fromkeys(str(member.get("host")) for member in run.members))
    if len(hosts) > _FEW_HOSTS:
        hosts = [hosts[0], "...", hosts[-1], f"({len(hosts)} hosts)"]
    return {**facts, "hosts": " ".join(hosts)} if hosts else facts
