"""Who uses the cores of this host: ticks of /proc, which only ever count up.

Two samples make a share; what a sample cannot read is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcoll.bench.placement import cpu_numbers, number_in, text_in

_NAMED = 3  # at most so many processes are named


@dataclass(frozen=True)
class Process:
    """One line of /proc/PID/stat. ticks: its own. inherited: of children that have ended."""

    pid: int
    parent: int
    name: str
    ticks: int
    inherited: int
    born: int


@dataclass(frozen=True)
class Sample:
    """seconds: of a clock that never goes back. cpus: number -> (worked, stolen, all) ticks."""

    seconds: float
    cpus: dict[int, tuple[int, int, int]]
    processes: dict[int, Process]


def sample(proc: str = "/proc") -> Sample:
    """Now. About 15 us for each process of the host."""
    return Sample(time.monotonic(), _cpus(proc), _processes(proc))


def _cpus(proc: str) -> dict[int, tuple[int, int, int]]:
    """proc(5): user nice system idle iowait irq softirq steal, in ticks.

    Interrupts are left out of ``worked``: traffic of the ranks themselves raises them, and no
    process is charged.
    """
    found = {}
    for line in (text_in(f"{proc}/stat") or "").splitlines():
        name, *words = line.split()
        if name[:3] == "cpu" and name[3:].isdecimal() and len(words) >= 8:
            ticks = [int(word) for word in words[:8]]
            found[int(name[3:])] = (sum(ticks[:3]), ticks[7], sum(ticks))
    return found


def _processes(proc: str) -> dict[int, Process]:
    found = {}
    try:
        names = os.listdir(proc)
    except OSError:
        return {}
    for name in names:
        if not name.isdecimal():
            continue
        try:
            with open(f"{proc}/{name}/stat", encoding="utf-8", errors="replace") as file:
                head, _, tail = file.read().rpartition(")")  # a name may hold blanks and brackets
            words = tail.split()
            own, ended = (int(words[k]) + int(words[k + 1]) for k in (11, 13))  # user and system
            pid = int(name)
            found[pid] = Process(
                pid, int(words[1]), head.partition("(")[2], own, ended, int(words[19])
            )
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
    return found


def family(pids: Iterable[int], processes: dict[int, Process]) -> set[int]:
    """These processes and all that descend from them."""
    found = set(pids)
    while True:
        more = {p.pid for p in processes.values() if p.parent in found} - found
        if not more:
            return found
        found |= more


def allowed_cpus(pids: Iterable[int], proc: str = "/proc") -> set[int]:
    """CPUs that any of these processes may use; empty where that cannot be read."""
    found: set[int] = set()
    for pid in pids:
        for line in (text_in(f"{proc}/{pid}/status") or "").splitlines():
            if line.startswith("Cpus_allowed_list:"):
                found |= cpu_numbers(line.split()[1])
    return found


def shares(
    first: Sample, last: Sample, pids: Iterable[int], cpus: set[int], hz: int, proc: str = "/proc"
) -> dict[str, Any]:
    """Who used these CPUs between two samples, in cores (1.0 is one core all the time).

    seconds, cores (how many), busy_cores (of all processes), stolen_cores (by the hypervisor),
    others_cores (of processes other than ``pids`` and their descendants; None where the ranks
    cannot be told from them), processes (the busiest of the others: pid, name, user, cores).
    """
    seconds = last.seconds - first.seconds
    there = sorted(cpus & set(first.cpus) & set(last.cpus))
    facts: dict[str, Any] = {"seconds": round(seconds, 3), "cores": len(there)}
    facts |= {"busy_cores": None, "stolen_cores": None, "others_cores": None, "processes": []}
    if not there or seconds <= 0:
        return facts
    worked, stolen, _ = (
        sum(last.cpus[cpu][kind] - first.cpus[cpu][kind] for cpu in there) for kind in range(3)
    )

    def cores(ticks: int) -> float:
        return round(max(0, ticks) / hz / seconds, 3)

    facts |= {"busy_cores": cores(worked), "stolen_cores": cores(stolen)}
    pids = set(pids)
    if not pids <= set(first.processes) & set(last.processes):
        return facts  # ranks in containers of their own
    mine = family(pids, last.processes)
    # As a tree: what a child had spent before comes to its parent when it ends.
    own = _of_tree(mine, last) - _of_tree(family(pids, first.processes), first)
    facts["others_cores"] = cores(worked - own)
    spent = {
        process.pid: _spent(process, first.processes)
        for process in last.processes.values()
        if process.pid not in mine
    }
    busiest = sorted(spent, key=lambda pid: -spent[pid])
    facts["processes"] = [
        {
            "pid": pid,
            "name": last.processes[pid].name,
            "user": user_of(pid, proc),
            "cores": cores(spent[pid]),
        }
        for pid in busiest[:_NAMED]
        if cores(spent[pid]) >= 0.01
    ]
    return facts


def _of_tree(pids: set[int], of: Sample) -> int:
    found = (of.processes[pid] for pid in pids)
    return sum(process.ticks + process.inherited for process in found)


def _spent(process: Process, before: dict[int, Process]) -> int:
    known = before.get(process.pid)
    return process.ticks - (known.ticks if known and known.born == process.born else 0)


def user_of(pid: int, proc: str = "/proc") -> str | None:
    """The name of a process' user, else the number."""
    try:
        number = os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return None
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return str(number)


def name_of(pid: int, proc: str = "/proc") -> str | None:
    """The short name of a process; never its arguments, which may hold secrets."""
    return text_in(f"{proc}/{pid}/comm")


def settings(cpus: set[int], proc: str = "/proc", sysfs: str = "/sys") -> dict[str, Any]:
    """load (averages of 1, 5 and 15 minutes), governor of these CPUs, throttled_core and
    throttled_package: how often heat has slowed them since boot (x86).
    """
    words = (text_in(f"{proc}/loadavg") or "").split()
    places = [Path(sysfs, f"devices/system/cpu/cpu{cpu}") for cpu in sorted(cpus)]
    counts: dict[str, list[int]] = {"core": [], "package": []}
    for place in places:
        for kind, found in counts.items():
            count = number_in(place / f"thermal_throttle/{kind}_throttle_count")
            if count is not None:
                found.append(count)
    governors = {text_in(place / "cpufreq/scaling_governor") for place in places[:1]}
    return {
        "load": [float(word) for word in words[:3]] or None,
        "governor": next(iter(governors), None),
        "throttled_core": sum(counts["core"]) if counts["core"] else None,
        # Every CPU repeats its package's.
        "throttled_package": max(counts["package"], default=None),
    }
