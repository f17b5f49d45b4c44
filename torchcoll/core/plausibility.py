"""Finds figures that no machine can reach, and their likely causes.

A doubt is about the figure, not about the machine. Its row, measured or imported, is shown as
``implausible`` with the cause, and is not compared.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from torchcoll.core.case import SETTINGS
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.run_facts import host_names
from torchcoll.core.summary import Row, libraries_of, summarise
from torchcoll.core.units import plural

# The one table of how many NVLinks a GPU has and what each of them carries.


@dataclass(frozen=True)
class NvlinkGeneration:
    """The links of one generation of GPUs, in GB/s of one link in one direction.

    capability: the lowest compute capability of the generation.
    links: of the generation's largest part; smaller parts (PCIe cards, A800, H20) have fewer.
    nccl_gbps: the speed that NCCL assumes (ncclTopoNVLinkBw of its src/graph/topo.h), about four
    fifths of the wire's rate; a measured ring comes close (NVIDIA/nccl-tests#212).
    wire_gbps: the signalling rate (NVIDIA's product pages); None if no table here needs it.
    """

    capability: int
    links: int
    nccl_gbps: float
    wire_gbps: float | None

    @property
    def ring_gbps(self) -> float:
        """The speed that NCCL assumes for all links of a full part."""
        return round(self.links * self.nccl_gbps, 1)


PASCAL = NvlinkGeneration(60, 4, 18.0, None)
VOLTA = NvlinkGeneration(70, 6, 20.0, 25.0)
AMPERE = NvlinkGeneration(80, 12, 20.0, 25.0)
HOPPER = NvlinkGeneration(90, 18, 20.6, 25.0)
BLACKWELL = NvlinkGeneration(100, 18, 40.1, 50.0)
GENERATIONS = (PASCAL, VOLTA, AMPERE, HOPPER, BLACKWELL)
NEWER = 107  # from this compute capability on a GPU is newer than this table


def generation_of(capability: int) -> NvlinkGeneration | None:
    """The generation of a GPU of this compute capability (90 for 9.0); None if it is unknown."""
    older = [each for each in GENERATIONS if each.capability <= capability < NEWER]
    return older[-1] if older else None


# Upper bounds of what a device can transfer: all its NVLinks in one direction, and its memory.


@dataclass(frozen=True)
class DeviceLimits:
    """Bounds of one device. multicast: switches can reduce (NVLS), which allows more busbw."""

    name: str
    nvlink: NvlinkGeneration
    memory_gbps: float
    multicast: bool = False

    @property
    def ring_gbps(self) -> float:
        """What NCCL assumes for all links together, in GB/s."""
        return self.nvlink.ring_gbps

    @property
    def wire_gbps(self) -> float:
        """The signalling rate of all links together, in GB/s."""
        assert self.nvlink.wire_gbps is not None
        return self.nvlink.links * self.nvlink.wire_gbps


# Smaller products of a name (PCIe cards, A800, H20) have fewer links: the bound holds for them too.
DEVICES = (
    DeviceLimits("V100", VOLTA, 900),
    DeviceLimits("A100", AMPERE, 2039),
    DeviceLimits("H100", HOPPER, 3350, multicast=True),
    DeviceLimits("H200", HOPPER, 4800, multicast=True),
    DeviceLimits("B200", BLACKWELL, 8000, multicast=True),
)
_ALIASES = {"A800": "A100", "H800": "H100", "H20": "H100", "GH200": "H200", "GB200": "B200"}


def device_named(name: str) -> DeviceLimits | None:
    """The limits of ``NVIDIA A100-SXM4-80GB``; None if unknown. H20 keeps its name with those of
    H100.
    """
    tokens = set(re.split(r"[^A-Z0-9]+", name.upper()))
    for token in tokens:
        alias = _ALIASES.get(token, token)
        for device in DEVICES:
            if device.name == alias:
                return dataclasses.replace(device, name=token)
    return None


def device_of(run: Run) -> DeviceLimits | None:
    """The limits of the devices of a run, if all are of one known kind; otherwise None."""
    names = {str(m["device_name"]) for m in run.members if m.get("device_name")}
    if not names and run.labels.get("gpu"):
        names = {run.labels["gpu"]}
    devices = {device_named(name) for name in names}
    return devices.pop() if len(devices) == 1 else None


IMPLAUSIBLE = "implausible"
LIKELY = ": likely "  # between a reason and its causes
CHECK_RANKS = "check that all ranks took part: nccl-tests joins processes only if built with MPI=1"
SLACK = 1.05  # for inaccurate clocks, and data sheets that round down
# In less time no kernel can have been launched and awaited: NCCL's own model has at least 6.6 us.
LEAST_CALL_NS = 1500
_COPY = (0.75, 1.02)  # bandwidth of a copy within the device / half the memory bandwidth
_COPIED_BYTES = 1 << 20  # for smaller sizes the latency hides the bandwidth
_SIZES_OF_LAW = 3
# These tools print a bandwidth of 0 for one rank, usually because more were meant to run.
_NCCL_TESTS = ("nccl-tests", "rccl-tests")
_MEETS_NOBODY = (
    f"one rank: busbw is 0, for nothing was communicated{LIKELY}{{tool}} built without MPI (build "
    "it with MPI=1), which starts tests that never meet, or -g is missing"
)
# GPUs whose links may connect several hosts (GB200 NVL72): traffic may bypass the interfaces.
_RACK = re.compile(r"\bG[BH][23]00\b|\bVR\d00\b|\bRUBIN\b|\bMI4\d\d")
# The fields of a Row that are equal in cases that differ only in the size.
SWEEP = (
    "collective",
    "dtype",
    "op",
    "root",
    "in_place",
    "mode",
    "clock",
    "group",
    "ranks",
    "backend",
    "implementation",
    *(setting.name for setting in SETTINGS),
    "splits",
)
_sweep_of = operator.attrgetter(*SWEEP)


def summarise_run(run: Run, how: str = "max", clock: str | None = None) -> list[Row]:
    """The rows of all cases of a run, impossible ones as ``implausible``. See ``summarise``."""
    with_library = zip(run.results, libraries_of(run), strict=True)
    rows = [summarise(result, how, clock, library) for result, library in with_library]
    doubts = doubts_of(run, rows if how == "max" and clock is None else None)
    return [doubted(row, doubt) for row, doubt in zip(rows, doubts, strict=True)]


def doubted(row: Row, reason: str) -> Row:
    """Mark a row as ``implausible``, unless the reason is ''."""
    return dataclasses.replace(row, status=IMPLAUSIBLE, reason=reason) if reason else row


def doubts_of(run: Run, rows: Sequence[Row] | None = None) -> list[str]:
    """Why each result of a run is impossible, with likely causes; '' for possible ones. The bounds
    are all links of a rank in one direction, and between hosts the label ``link_gbps``.

    rows: the rows of all results (maximum over ranks, default clock) if they are computed already.
    """
    device, link_gbps = device_of(run), None if link_unused(run) else stated_link_gbps(run)
    numbers = [
        number
        for number, result in enumerate(run.results)
        if result.status == "ok" and (link_gbps is not None or result.case.device != "cpu")
    ]
    timed: list[tuple[int, Row]] = []
    reasons: dict[int, str] = {}
    for number in numbers:
        result = run.results[number]
        row = rows[number] if rows is not None else summarise(result)
        if row.median_ns is None:
            continue
        timed.append((number, row))
        hosts = _hosts(run, result) if link_gbps is not None else []
        reason = _beyond_interfaces(row, hosts, link_gbps) or _beyond_links(row, device)
        if reason := reason or _too_short(row):
            reasons[number] = reason
    for sweep in _sweeps(timed) if device else ():
        if device and (text := _copy_text([row for _, row in sweep], device)):
            reasons |= {key: text for key, _ in sweep}
    causes = ["the time of enqueueing alone"]
    if run.source:
        imported = ["one rank only (no MPI in the build?)", "a wrong number of ranks"]
        causes = [*imported, *causes, "data that never left a cache"]
    if link_gbps is not None:
        causes.append("links that are faster than was stated")
    # The last comma becomes an ``or``.
    likely = " or ".join(", ".join(causes).rsplit(", ", 1))
    doubts = {key: f"{reason}{LIKELY}{likely}" for key, reason in reasons.items()}
    tool = run.source.get("tool")
    if tool in _NCCL_TESTS:
        alone = [n for n, r in enumerate(run.results) if r.ranks == 1 and r.is_right]
        doubts |= dict.fromkeys(alone, _MEETS_NOBODY.format(tool=tool))
    return [doubts.get(number, "") for number, _ in enumerate(run.results)]


@lru_cache(maxsize=256)  # the rows of a run have few different arguments
def ceiling_gbps(collective: str, ranks: int, link_gbps: float, multicast: bool) -> float:
    """The largest busbw that such links allow. With multicast the link limits algbw."""
    entry = COLLECTIVES[collective]
    reduced = multicast and entry.by_switch
    return link_gbps * (max(1.0, entry.bus_factor(ranks)) if reduced else 1.0)


def stated_link_gbps(run: Run) -> float | None:
    """The label ``link_gbps``, in GB/s in one direction; None without a valid one."""
    try:
        number = float(run.labels.get("link_gbps", ""))
    except (TypeError, ValueError):
        return None
    return number if 0 < number < math.inf else None


def link_unused(run: Run) -> str:
    """Why the label ``link_gbps`` is not used in this run; '' if it is, or there is none."""
    if stated_link_gbps(run) is None:
        return ""
    why = ""
    names = [str(m.get("device_name") or "") for m in run.members]
    if not run.members or not all(m.get("host") for m in run.members):
        why = "which ranks share a host is unknown"
    elif len(host_names(run.members)) == 1:
        why = "all ranks share one host"
    elif any(_RACK.search(name.upper()) for name in names):
        why = "the GPUs' own links may connect these hosts"
    return f"label link_gbps not used: {why}" if why else ""


def _hosts(run: Run, result: CaseResult) -> list[str]:
    """The host of each rank of a case; [] if the case has ranks that the run does not describe."""
    ranks = result.members or range(len(run.members))
    complete = all(rank < len(run.members) for rank in ranks)
    hosts = [str(run.members[rank]["host"]) for rank in ranks] if complete else []
    return hosts if len(hosts) == result.ranks else []


def crossing(collective: str, hosts: Sequence[str], root: int | None) -> float:
    """The least that the busiest host must send or receive, divided by S and its ranks; 0.0 if
    nothing must cross. hosts: the host of each rank.
    """
    per_host, entry = Counter(hosts), COLLECTIVES[collective]
    if len(per_host) < 2 or entry.crossing is None:
        return 0.0
    # A host with fewer ranks may have as many interfaces as the others.
    return entry.crossing(hosts, per_host, root or 0) / max(per_host.values())


def _beyond_interfaces(row: Row, hosts: Sequence[str], link_gbps: float | None) -> str:
    """Why the interfaces between hosts cannot carry the busbw of a row; '' if they can."""
    share = crossing(row.collective, hosts, row.root)
    if row.busbw_gbps is None or link_gbps is None or not share:
        return ""
    entry = COLLECTIVES[row.collective]
    most = link_gbps / share * entry.moved(row.ranks) * entry.bus_factor(row.ranks)
    if row.busbw_gbps <= SLACK * most:
        return ""
    many = sorted(set(Counter(hosts).values()))
    each = f"{many[0]}" if len(many) == 1 else f"{many[0]} to {many[-1]}"
    links = f"{link_gbps:g} GB/s a rank in one direction, {each} {plural(many[-1], 'rank')} a host"
    return f"busbw beyond what the stated links carry between hosts ({links})"


def _beyond_links(row: Row, device: DeviceLimits | None) -> str:
    """Why the links of a device cannot carry the busbw of a row; '' if they can."""
    if row.busbw_gbps is None or row.ranks < 2 or device is None:
        return ""
    ceiling = ceiling_gbps(row.collective, row.ranks, device.wire_gbps, device.multicast)
    if row.busbw_gbps <= SLACK * ceiling:
        return ""
    # The text does not contain the busbw, so that all such rows share one footnote.
    wire = f"{device.wire_gbps:g} GB/s in one direction"
    return f"busbw beyond all links of one {device.name} ({wire})"


def _too_short(row: Row) -> str:
    """Why a time is too short for the launch of a kernel (no graph, no group); '' if not."""
    time = row.median_ns or 0.0
    alone = row.mode != "graph" and row.coalesce == 1 and not row.rehearsal
    launched = row.device not in ("cpu", "unknown") and row.ranks > 1 and row.communicates
    if not (launched and alone and row.clock != "issue") or time >= LEAST_CALL_NS:
        return ""
    return f"shorter than launching a kernel ({LEAST_CALL_NS} ns)"


def _sweeps(timed: Sequence[tuple[int, Row]]) -> list[list[tuple[int, Row]]]:
    """Group rows of several ranks that differ only in the size, from 1 MiB on."""
    sweeps: dict[tuple[object, ...], list[tuple[int, Row]]] = {}
    for key, row in timed:
        single = row.coalesce == 1 and row.device != "cpu" and row.communicates
        if single and row.median_ns and row.ranks > 1 and row.size_bytes >= _COPIED_BYTES:
            sweeps.setdefault(_sweep_of(row), []).append((key, row))
    return [s for s in sweeps.values() if len({row.size_bytes for _, row in s}) >= _SIZES_OF_LAW]


def _law(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Least squares: (latency in ns, algbw in GB/s); None if the time does not grow."""
    ww = wv = vv = w1 = v1 = 0.0
    for row in rows:
        w, v = 1 / (row.median_ns or 1.0), row.size_bytes / (row.median_ns or 1.0)
        ww, wv, vv, w1, v1 = ww + w * w, wv + w * v, vv + v * v, w1 + w, v1 + v
    determinant = ww * vv - wv * wv
    if determinant <= 0:
        return None
    latency, slope = (w1 * vv - v1 * wv) / determinant, (v1 * ww - w1 * wv) / determinant
    return (latency, 1 / slope) if slope > 0 else None


def _copy_text(rows: Sequence[Row], device: DeviceLimits) -> str:
    """Why these sizes look like a copy within the device; '' if they do not."""
    latency, bandwidth = _law(rows) or (0.0, 0.0)
    low, high = (share * device.memory_gbps / 2 for share in _COPY)
    if not low <= bandwidth <= high:
        return ""
    ranks = rows[0].ranks
    ring = device.nvlink.ring_gbps / COLLECTIVES[rows[0].collective].bus_factor(ranks)
    return (
        f"{len(rows)} sizes follow {latency / 1000:.1f} us + S / {bandwidth:.0f} GB/s, as a copy "
        f"within one {device.name} does (memory of {device.memory_gbps:g} GB/s), "
        f"{bandwidth / ring:.1f} times the {ring:.0f} GB/s algbw of a ring of {ranks}"
    )
