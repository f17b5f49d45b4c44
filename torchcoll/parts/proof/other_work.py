"""Which part of this host's cores other programs use while a probe measures."""

from __future__ import annotations

import os

from torchcoll.machine.state import BUSY_SHARE, Sample, allowed_cpus, sample, shares


def begin() -> Sample:
    """To be given to ``describe`` once the probe has ended."""
    return sample()


def describe(first: Sample) -> str:
    """``other programs used 1.6 of 2 cores``; '' below a tenth of them, and where that cannot be
    seen.
    """
    # The ranks of this host have one parent: torchrun, or the launcher's daemon.
    siblings = {os.getppid()}
    cpus = allowed_cpus([os.getpid()])
    used = shares(first, sample(), siblings, cpus, os.sysconf("SC_CLK_TCK"))
    others, cores = used["others_cores"] or 0.0, used["cores"]
    if others <= BUSY_SHARE["cpu"] * cores:
        return ""
    return f"other programs used {others:.1f} of {cores} cores"
