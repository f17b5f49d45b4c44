"""Sides on different hardware: no faster and slower, but each measured against itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torchcoll.analysis.matching import Pair
from torchcoll.analysis.sides import Measured, Side
from torchcoll.analysis.stats import geometric
from torchcoll.core.first import first_call_ns, first_result_ns, first_results
from torchcoll.core.result import Run
from torchcoll.core.summary import median

_HALF = 0.5


@dataclass(frozen=True)
class Profile:
    """What one side reaches in one table, by its own measure. None is unknown.

    best_gbps: the highest busbw. half_nbytes: the smallest size that reaches half of it, and
    below_nbytes the next smaller one: the true size lies between them. floor_ns: the time of the
    smallest size, floor_nbytes; None where that reaches half of the best already, so that its time
    is no latency. first_result_ns: connecting and the first call of the launch, median over the
    launches.
    """

    best_gbps: float | None
    half_nbytes: int | None
    below_nbytes: int | None
    floor_nbytes: int | None
    floor_ns: float | None
    first_result_ns: float | None


@dataclass(frozen=True)
class Start:
    """What a side's first call on one backend took, the median over its launches, nanoseconds:
    the call itself, and with connecting before it (None where no launch tells that).
    """

    backend: str
    first_call_ns: float
    first_result_ns: float | None


def start(side: Side, backends: Iterable[str]) -> Start | None:
    """Of the backend of a side that has one; None where it has several, or no launch tells."""
    known = set(backends)
    if len(known) != 1:
        return None
    (backend,) = known
    told = [(run, f) for run in side.parts if (f := first_results(run.results, backend))]
    if not told:
        return None
    results = [ns for run, f in told if (ns := first_result_ns(run, f)) is not None]
    calls = [first_call_ns(f) for _, f in told]
    return Start(backend, median(calls), median(results) if results else None)


def unlike(base: Side, new: Side) -> str:
    """Why the two machines are not the same kind, as a reason; '' where they are, or where a
    source does not tell.
    """
    for what, of in (
        ("devices", _devices),
        ("device names", _device_names),
        ("numbers of hosts", _hosts),
    ):
        ours, theirs = ({v for run in s.parts if (v := of(run))} for s in (base, new))
        if ours and theirs and ours != theirs:
            texts = " and ".join(", ".join(sorted(values)) for values in (ours, theirs))
            return f"different hardware: {what} {texts}"
    return ""


def unlike_ranks(pair: Pair) -> str:
    """``different numbers of ranks: 4 and 8``; '' where they agree."""
    ours, theirs = ({m.row.ranks for m in items} - {0} for items in (pair.base, pair.new))
    if not ours or not theirs or ours == theirs:
        return ""
    texts = " and ".join(", ".join(map(str, sorted(ranks))) for ranks in (ours, theirs))
    return f"different numbers of ranks: {texts}"


def _devices(run: Run) -> str:
    kinds = {result.case.device for result in run.results} - {"unknown", ""}
    return ", ".join(sorted(kinds))


def _device_names(run: Run) -> str:
    names = {str(m["device_name"]) for m in run.members if m.get("device_name")}
    return ", ".join(sorted(names))


def _hosts(run: Run) -> str:
    hosts = {m["host"] for m in run.members if m.get("host")}
    return str(len(hosts)) if hosts else ""


def profile(side: Side, items: Collection[Sequence[Measured]]) -> Profile:
    """The profile of one side in one table; ``items``: its launches of each size, ascending."""
    points = [
        (
            ok[0].row.nbytes,
            geometric(m.row.median_ns for m in ok),
            geometric(m.row.busbw_gbps for m in ok),
        )
        for launches in items
        if (ok := [m for m in launches if m.row.status == "ok" and m.row.verified != "wrong"])
    ]
    timed = [(nbytes, ns) for nbytes, ns, _ in points if ns]
    bandwidths = [(nbytes, gbps) for nbytes, _, gbps in points if gbps]
    best = max((gbps for _, gbps in bandwidths), default=None)
    reach = [nbytes for nbytes, gbps in bandwidths if best and gbps >= _HALF * best]
    half = min(reach, default=None)
    below = [nbytes for nbytes, _ in bandwidths if half and nbytes < half]
    backends = {m.result.case.backend for launches in items for m in launches}
    begun = start(side, backends)
    floor = min(timed, default=None)
    return Profile(
        best,
        half,
        max(below, default=None),
        floor[0] if floor else None,
        floor[1] if floor and floor[0] != half else None,
        begun.first_result_ns if begun else None,
    )
