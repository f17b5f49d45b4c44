"""What a launch does before its first call, phase by phase, and which rank took longest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchcoll.core.result import Run
from torchcoll.core.summary import median

PHASES = ("import_torch", "rendezvous", "device", "init_process_group", "communicator")
_INIT = "nccl_init"  # of NCCL's own log (--library-log): the whole, and _INIT_name for each part


@dataclass(frozen=True)
class Slowest:
    """A duration on each rank: the longest, whose it is, and how far beyond the median of the
    other ranks.

    rank, host and beyond_ns are None where one rank alone, or no rank, is known.
    """

    ns: float
    rank: int | None = None
    host: str | None = None
    beyond_ns: float | None = None


def slowest(durations: Mapping[int, float], launch: Run) -> Slowest | None:
    """The longest of the durations by rank."""
    if not durations:
        return None
    ns = max(durations.values())
    if len(durations) < 2:
        return Slowest(ns)
    rank = next(rank for rank, own in durations.items() if own == ns)
    member = launch.members[rank] if rank < len(launch.members) else {}
    others = [own for other, own in durations.items() if other != rank]
    return Slowest(ns, rank, member.get("host"), ns - median(others))


def phases_of(launch: Run) -> dict[str, Slowest]:
    """Set-up phases in their order; what measuring costs is none."""
    names = [n for n in launch.phases if not n.startswith(("cost_", f"{_INIT}_"))]
    names.sort(key=lambda name: PHASES.index(name) if name in PHASES else len(PHASES))
    known = {n: slowest(dict(enumerate(launch.phases[n])), launch) for n in names}
    return {name: own for name, own in known.items() if own}


def init_parts(launch: Run) -> dict[str, float]:
    """NCCL's 'Init timings' by part, ns, of the rank that took longest; {} without its log."""
    whole = launch.phases.get(_INIT) or []
    if not whole:
        return {}
    rank = whole.index(max(whole))
    return {
        name.removeprefix(f"{_INIT}_"): ns[rank]
        for name, ns in launch.phases.items()
        if name.startswith(f"{_INIT}_") and rank < len(ns)
    }
