"""Is a figure possible? Bounds that no machine passes, and what a figure beyond them may be.

A doubt is a fact about the figure, not about the machine: a row with one is shown as
``implausible`` with its cause, measured or imported, and enters no comparison.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.hardware import Device, device_of
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import Row, libraries_of, summarise

IMPLAUSIBLE = "implausible"
SLACK = 1.05  # clocks, and data sheets that round down
# A kernel has to be launched, and the ranks have to meet: NCCL's smallest all_reduce on NVLink is
# modelled with 6.6 us and measured with 5 us and more; below this nothing was waited for.
LEAST_CALL_NS = 1500
# A copy within the device runs at 75 to 100 % of half its memory bandwidth.
_COPY = (0.75, 1.02)
_COPIED_NBYTES = 1 << 20
_SIZES_OF_LAW = 3
_CAUSES = "one rank only (no MPI in the build?), a wrong number of ranks, or the time of enqueueing"


def summarise_run(run: Run, how: str = "max", clock: str | None = None) -> list[Row]:
    """The rows of all cases of a run; those that are not possible are so marked."""
    libraries, doubts = libraries_of(run), doubts_of(run)
    return [
        doubted(summarise(result, how, clock, libraries[id(result)]), doubts.get(id(result)))
        for result in run.results
    ]


def doubted(row: Row, reason: str | None) -> Row:
    """The row, ``implausible`` where there is a reason for it."""
    return dataclasses.replace(row, status=IMPLAUSIBLE, reason=reason) if reason else row


def doubts_of(run: Run) -> dict[int, str]:
    """id of each result that is not possible -> why, with its likely causes.

    The bound is the bandwidth of all links of a rank in one direction: as the label ``link_gbps``
    states it, else that of the device's generation, where the device is known.
    """
    device, link_gbps = device_of(run), stated_link_gbps(run)
    bound = [r for r in run.results if link_gbps is not None or r.case.device != "cpu"]
    timed = [
        (result, row)
        for result in bound
        if (row := summarise(result)).status == "ok" and row.median_ns
    ]
    reasons: dict[int, list[str]] = {}
    for result, row in timed:
        if reason := _beyond_links(row, device, link_gbps) or _too_short(row):
            reasons[id(result)] = [reason]
    for sweep in _sweeps(timed) if device else ():
        if device and (text := _copy_text([row for _, row in sweep], device)):
            for result, _ in sweep:
                reasons.setdefault(id(result), []).append(text)
    return {key: f"{'; '.join(words)}: likely {_CAUSES}" for key, words in reasons.items()}


def ceiling_gbps(collective: str, ranks: int, device: Device) -> float:
    """busbw that the links of one device allow. In a switch that reduces each rank sends and
    receives S once, so algbw is bounded by the link and busbw by the factor more.
    """
    factor = 1.0
    if collective == "all_reduce" and device.multicast:
        factor = max(1.0, COLLECTIVES[collective].bus_factor(ranks))
    return device.wire_gbps * factor


def stated_link_gbps(run: Run) -> float | None:
    """The label ``link_gbps``: GB/s in one direction; None where it is no bandwidth."""
    try:
        number = float(run.labels.get("link_gbps", ""))
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def _beyond_links(row: Row, device: Device | None, link_gbps: float | None) -> str:
    if row.busbw_gbps is None or row.ranks < 2:
        return ""
    if link_gbps is not None:
        ceiling, whose = link_gbps, "the links that were stated"
    elif device is not None:
        ceiling = ceiling_gbps(row.collective, row.ranks, device)
        whose = f"all links of one {device.name}"
    else:
        return ""
    if row.busbw_gbps <= SLACK * ceiling:
        return ""
    # Without the figure: equal texts are one footnote.
    return f"busbw beyond {whose} ({ceiling:g} GB/s in one direction)"


def _too_short(row: Row) -> str:
    """Shorter than launching a kernel. A replayed graph and coalesced calls launch none a call."""
    time = row.median_ns or 0.0
    alone = row.cadence != "graph" and row.coalesce == 1 and not row.rehearsal
    if row.device in ("cpu", "unknown") or row.ranks < 2 or not alone or row.clock == "issue":
        return ""
    if time >= LEAST_CALL_NS or row.backend == "fake":
        return ""
    return f"shorter than launching a kernel ({LEAST_CALL_NS} ns)"


def _sweeps(timed: Sequence[tuple[CaseResult, Row]]) -> list[list[tuple[CaseResult, Row]]]:
    """Cases of several ranks that differ in nothing but the size, from 1 MiB on."""
    sweeps: dict[tuple[object, ...], list[tuple[CaseResult, Row]]] = {}
    for result, row in timed:
        if row.ranks > 1 and row.nbytes >= _COPIED_NBYTES and row.device != "cpu":
            key = (row.collective, row.backend, row.ranks, row.dtype, row.op, row.in_place)
            sweeps.setdefault(key, []).append((result, row))
    return [sweep for sweep in sweeps.values() if len(sweep) >= _SIZES_OF_LAW]


def _law(rows: Sequence[Row]) -> tuple[float, float] | None:
    """(latency in ns, algbw in GB/s) by least squares of the relative error; None without growth.

    In plain Python: `show` and the ranks load no numpy.
    """
    ww = wv = vv = w1 = v1 = 0.0
    for row in rows:
        w, v = 1 / (row.median_ns or 1.0), row.nbytes / (row.median_ns or 1.0)
        ww, wv, vv, w1, v1 = ww + w * w, wv + w * v, vv + v * v, w1 + w, v1 + v
    determinant = ww * vv - wv * wv
    if determinant <= 0:
        return None
    latency, slope = (w1 * vv - v1 * wv) / determinant, (v1 * ww - w1 * wv) / determinant
    return (latency, 1 / slope) if slope > 0 else None


def _copy_text(rows: Sequence[Row], device: Device) -> str:
    """Why these sizes look like a copy within the device; '' where they do not."""
    latency, bandwidth = _law(rows) or (0.0, 0.0)
    low, high = (share * device.memory_gbps / 2 for share in _COPY)
    if not low <= bandwidth <= high:
        return ""
    ranks = rows[0].ranks
    ring = device.ring_gbps / COLLECTIVES[rows[0].collective].bus_factor(ranks)
    return (
        f"{len(rows)} sizes follow {latency / 1000:.1f} us + S / {bandwidth:.0f} GB/s, like one "
        f"{device.name}'s own copy (memory of {device.memory_gbps:g} GB/s, read and written); a "
        f"ring of {ranks} allows {ring:.0f} GB/s algbw"
    )
