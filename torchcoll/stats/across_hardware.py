"""Profiles of sides on different hardware: what each side reaches, without a comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torchcoll.core.result import Run
from torchcoll.core.summary import first_call_ns, first_result_ns, first_results
from torchcoll.stats.matching import Pair
from torchcoll.stats.ratios import geometric
from torchcoll.stats.sides import Measured, Side

_HALF = 0.5


@dataclass(frozen=True)
class Profile:
    """What one side reaches in one table. None is unknown.

    best_gbps: the highest busbw, at best_bytes. largest_bytes: the largest size with a busbw.
    half_bytes: the smallest size that reaches half of the best; below_bytes: the next smaller one.
    floor_ns: the time of the smallest size, floor_bytes; None if that size reaches half of the
    best. first_call_ns, first_result_ns (with connecting): geometric means over the runs.
    """

    ranks: tuple[int, ...]
    best_gbps: float | None
    best_bytes: int | None
    largest_bytes: int | None
    half_bytes: int | None
    below_bytes: int | None
    floor_bytes: int | None
    floor_ns: float | None
    first_call_ns: float | None
    first_result_ns: float | None


@dataclass(frozen=True)
class Start:
    """The first call of a side on one backend: geometric means over the runs, in ns.

    first_result_ns: with connecting; None if no run records that. runs_ns: the first result of each
    run, or its first call if some runs do not record connecting.
    """

    backend: str
    first_call_ns: float
    first_result_ns: float | None
    runs_ns: tuple[float, ...] = ()


def start(side: Side, backends: Iterable[str]) -> Start | None:
    """The first calls of a side; None with several backends, or if no first call is known."""
    names = set(backends)
    if len(names) != 1:
        return None
    (backend,) = names
    firsts = [(run, f) for run in side.parts if (f := first_results(run.results, backend))]
    if not firsts:
        return None
    results = [ns for run, f in firsts if (ns := first_result_ns(run, f)) is not None]
    calls = [first_call_ns(f) for _, f in firsts]
    every = results if len(results) == len(calls) else calls
    return Start(backend, geometric(calls) or 0.0, geometric(results), tuple(filter(None, every)))


def unlike(base: Side, new: Side) -> str:
    """How the hardware of the sides differs, as a reason; '' if it does not, or is not known."""
    ours, theirs = (list(map(_hardware, side.parts)) for side in (base, new))
    for what in ("devices", "device names", "numbers of hosts", "GPUs of"):
        values = [{run[what] for run in runs if run[what]} for runs in (ours, theirs)]
        if all(values) and values[0] != values[1]:
            texts = " and ".join(", ".join(sorted(of_side)) for of_side in values)
            return f"different hardware: {what} {texts}"
    return ""


def unlike_ranks(pair: Pair) -> str:
    """``different numbers of ranks: 4 and 8``; '' if they agree."""
    ours, theirs = ({m.row.ranks for m in items} - {0} for items in (pair.base, pair.new))
    if not ours or not theirs or ours == theirs:
        return ""
    texts = " and ".join(", ".join(map(str, sorted(ranks))) for ranks in (ours, theirs))
    return f"different numbers of ranks: {texts}"


def _hardware(run: Run) -> dict[str, str]:
    """What is known of the devices and hosts of a run; '' is unknown."""
    kinds = {result.case.device for result in run.results} - {"unknown", ""}
    names = {str(m["device_name"]) for m in run.members if m.get("device_name")}
    hosts = {m["host"] for m in run.members if m.get("host")}
    library = str((run.environment.get("libraries") or {}).get("nccl", "")).partition(" ")[0]
    return {
        "GPUs of": {"NCCL": "NVIDIA", "RCCL": "AMD"}.get(library, ""),
        "devices": ", ".join(sorted(kinds)),
        "device names": ", ".join(sorted(names)),
        "numbers of hosts": str(len(hosts) or ""),
    }


def profile(side: Side, items: Collection[Sequence[Measured]]) -> Profile:
    """The profile of one side in one table; ``items``: its runs of each size, ascending."""
    right = [rows for runs in items if (rows := [m.row for m in runs if m.row.is_right])]
    times = {rows[0].size_bytes: geometric(row.median_ns for row in rows) for rows in right}
    busbw = {rows[0].size_bytes: geometric(row.busbw_gbps for row in rows) for rows in right}
    speeds = [(gbps, size) for size, gbps in busbw.items() if gbps]
    best, best_bytes = max(speeds, default=(None, None))
    half = min((size for gbps, size in speeds if best and gbps >= _HALF * best), default=None)
    floor = min((size for size, ns in times.items() if ns), default=None)
    begun = start(side, {m.result.case.backend for runs in items for m in runs})
    return Profile(
        ranks=tuple(sorted({m.row.ranks for runs in items for m in runs} - {0})),
        best_gbps=best,
        best_bytes=best_bytes,
        largest_bytes=max((size for _, size in speeds), default=None),
        half_bytes=half,
        below_bytes=max((size for _, size in speeds if half and size < half), default=None),
        floor_bytes=floor,
        floor_ns=times[floor] if floor is not None and floor != half else None,
        first_call_ns=begun.first_call_ns if begun else None,
        first_result_ns=begun.first_result_ns if begun else None,
    )
