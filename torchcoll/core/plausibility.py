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
from torchcoll.core.result import Run
from torchcoll.core.summary import Row, libraries_of, summarise

IMPLAUSIBLE = "implausible"
LIKELY = ": likely "  # between a reason and its causes
SLACK = 1.05  # clocks, and data sheets that round down
# Below this no kernel was launched and nothing was waited for: NCCL's own model has no all_reduce
# below 6.6 us (src/graph/tuning.cc, baseLat of the LL protocol).
LEAST_CALL_NS = 1500
_COPY = (0.75, 1.02)  # of half the memory bandwidth: what a copy within the device moves
_COPIED_NBYTES = 1 << 20  # below, the latency hides the bandwidth
_SIZES_OF_LAW = 3
# The tools that print a bandwidth of 0 for one rank, and what their users usually meant to run.
_NCCL_TESTS = ("nccl-tests", "rccl-tests")
_MEETS_NOBODY = (
    "one rank: busbw is 0, for nothing was communicated. If there were to be more: {tool} built "
    "without MPI (build it with MPI=1) starts tests that never meet, or -g is missing"
)
# What cases that differ in nothing but the size share, as fields of a Row.
SWEEP = (
    *("collective", "dtype", "op", "root", "in_place", "cadence", "clock", "group", "ranks"),
    *("backend", "buffers", "buffer_reuse", "asynchronous", "coalesce", "splits"),
)


def summarise_run(run: Run, how: str = "max", clock: str | None = None) -> list[Row]:
    """The rows of all cases of a run; those that are not possible are so marked."""
    libraries = libraries_of(run)
    rows = [summarise(result, how, clock, libraries[id(result)]) for result in run.results]
    doubts = doubts_of(run, rows if how == "max" and clock is None else None)
    return [
        doubted(row, doubts.get(id(result))) for row, result in zip(rows, run.results, strict=True)
    ]


def doubted(row: Row, reason: str | None) -> Row:
    """The row, ``implausible`` where there is a reason for it."""
    return dataclasses.replace(row, status=IMPLAUSIBLE, reason=reason) if reason else row


def doubts_of(run: Run, rows: Sequence[Row] | None = None) -> dict[int, str]:
    """id of each result that is not possible -> why, with its likely causes.

    The bound is the bandwidth of all links of a rank in one direction: as the label ``link_gbps``
    states it, else that of the device's generation, where the device is known. rows: those of all
    results (completion over ranks, default clocks), where they are known: samples are many.
    """
    device, link_gbps = device_of(run), stated_link_gbps(run)
    numbers = [
        number
        for number, result in enumerate(run.results)
        if result.status == "ok" and (link_gbps is not None or result.case.device != "cpu")
    ]
    timed: list[tuple[int, Row]] = []
    for number in numbers:
        row = rows[number] if rows is not None else summarise(run.results[number])
        if row.median_ns is not None:  # 0 is no time either
            timed.append((id(run.results[number]), row))
    reasons: dict[int, str] = {}
    for key, row in timed:
        if reason := _beyond_links(row, device, link_gbps) or _too_short(row):
            reasons[key] = reason
    for sweep in _sweeps(timed) if device else ():
        if device and (text := _copy_text([row for _, row in sweep], device)):
            reasons |= {key: text for key, _ in sweep}
    causes = _causes(run, link_gbps)
    found = {key: f"{reason}{LIKELY}{causes}" for key, reason in reasons.items()}
    tool = run.source.get("tool")
    if tool in _NCCL_TESTS:
        lonely = _MEETS_NOBODY.format(tool=tool)
        found |= {id(r): lonely for r in run.results if r.ranks == 1 and r.status == "ok"}
    return found


def _causes(run: Run, link_gbps: float | None) -> str:
    words = ["the time of enqueueing alone"]
    if run.source:
        words = [
            "one rank only (no MPI in the build?)",
            "a wrong number of ranks",
            *words,
            "data that never left a cache",
        ]
    words += [] if link_gbps is None else ["links that are faster than was stated"]
    return ", ".join(words[:-1]) + (" or " if len(words) > 1 else "") + words[-1]


def ceiling_gbps(collective: str, ranks: int, link_gbps: float, multicast: bool) -> float:
    """busbw that links of so many GB/s in one direction allow. Where a switch reduces (multicast)
    each rank sends and receives S once: algbw is bounded by the link, and busbw by the factor more.
    """
    reduced = multicast and collective == "all_reduce"
    return link_gbps * (max(1.0, COLLECTIVES[collective].bus_factor(ranks)) if reduced else 1.0)


def stated_link_gbps(run: Run) -> float | None:
    """The label ``link_gbps``: GB/s in one direction; None where it is no bandwidth."""
    try:
        number = float(run.labels.get("link_gbps", ""))
    except (TypeError, ValueError):
        return None
    return number if 0 < number < math.inf else None


def _beyond_links(row: Row, device: Device | None, link_gbps: float | None) -> str:
    if row.busbw_gbps is None or row.ranks < 2 or (device is None and link_gbps is None):
        return ""
    # An unknown device, or a network, may reduce in its switches.
    multicast = device is None or device.multicast
    if link_gbps is not None:
        link, whose = link_gbps, "the links that were stated"
    else:
        assert device is not None
        link, whose = device.wire_gbps, f"all links of one {device.name}"
    if row.busbw_gbps <= SLACK * ceiling_gbps(row.collective, row.ranks, link, multicast):
        return ""
    # Without the figure: equal texts are one footnote.
    return f"busbw beyond {whose} ({link:g} GB/s in one direction)"


def _too_short(row: Row) -> str:
    """Shorter than launching a kernel. A replayed graph and coalesced calls launch none a call."""
    time = row.median_ns or 0.0
    alone = row.cadence != "graph" and row.coalesce == 1 and not row.rehearsal
    if row.device in ("cpu", "unknown") or row.ranks < 2 or not alone or row.clock == "issue":
        return ""
    if time >= LEAST_CALL_NS or row.backend == "fake":
        return ""
    return f"shorter than launching a kernel ({LEAST_CALL_NS} ns)"


def _sweeps(timed: Sequence[tuple[int, Row]]) -> list[list[tuple[int, Row]]]:
    """Cases of several ranks that differ in nothing but the size, from 1 MiB on."""
    sweeps: dict[tuple[object, ...], list[tuple[int, Row]]] = {}
    for key, row in timed:
        one = row.coalesce == 1 and row.device != "cpu" and row.backend != "fake"
        if one and row.median_ns and row.ranks > 1 and row.nbytes >= _COPIED_NBYTES:
            sweeps.setdefault(tuple(getattr(row, name) for name in SWEEP), []).append((key, row))
    return [s for s in sweeps.values() if len({row.nbytes for _, row in s}) >= _SIZES_OF_LAW]


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
        f"{len(rows)} sizes follow {latency / 1000:.1f} us + S / {bandwidth:.0f} GB/s, as a copy "
        f"within one {device.name} does (memory of {device.memory_gbps:g} GB/s), "
        f"{bandwidth / ring:.1f} times the {ring:.0f} GB/s algbw of a ring of {ranks}"
    )
