"""What is wrong with the state of a machine, one line each. Pure: two records in, texts out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcoll.core.units import format_bytes
from torchcoll.machine.placement import cpu_numbers, number_in, text_in
from torchcoll.machine.port_counters import NO_FAULT

# Who uses the cores of this host: ticks of /proc, which only ever count up.
#
# Two samples make a share; what a sample cannot read is None.
#
# Not psutil: a sample takes it more than twice as long (tests/benchmarks/libraries.py), it would
# save some 25 lines, and an image that lacks it would know nothing of its cores.

_NAMED = 3  # at most so many processes are named


@dataclass(frozen=True)
class HostProcess:
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
    processes: dict[int, HostProcess]


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


def _processes(proc: str) -> dict[int, HostProcess]:
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
            found[pid] = HostProcess(
                pid, int(words[1]), head.partition("(")[2], own, ended, int(words[19])
            )
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
    return found


def family(pids: Iterable[int], processes: dict[int, HostProcess]) -> set[int]:
    """These processes and all that descend from them."""
    found = set(pids)
    while True:
        more = {p.pid for p in processes.values() if p.parent in found} - found
        if not more:
            return found
        found |= more


def ancestors(pids: Iterable[int], processes: dict[int, HostProcess]) -> set[int]:
    """What started these processes (torchrun, mpirun, a shell), up to the first of the host."""
    found: set[int] = set()
    for pid in pids:
        while (process := processes.get(pid)) and process.parent not in found:
            found.add(process.parent)
            pid = process.parent
    return found - set(pids)


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
    others_cores (of processes other than ``pids``, their descendants and what started them; None
    where the ranks cannot be told from them), processes (the busiest of the others: pid, name,
    user, cores).
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
    above = ancestors(pids, last.processes) & set(last.processes)
    # As a tree: what a child had spent before comes to its parent when it ends.
    own = _of_tree(mine, last) - _of_tree(family(pids, first.processes), first)
    own += sum(_spent(last.processes[pid], first.processes) for pid in above)
    facts["others_cores"] = cores(worked - own)
    spent = {
        process.pid: _spent(process, first.processes)
        for process in last.processes.values()
        if process.pid not in mine | above
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


def _spent(process: HostProcess, before: dict[int, HostProcess]) -> int:
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


# All of these are torchcoll's own choice.
# A device of which nobody else makes use shows 0 %; our own first allocation is some microseconds
# of the last second.
BUSY_PERCENT = 10
# Of the cores that the ranks may use. An idle host spends 1 to 2 % on its daemons.
IDLE_SHARE = 0.05
# Where calls run on the cores they wait for them; where a GPU communicates, the host only issues.
BUSY_SHARE = {"cpu": 0.10}
BUSY_SHARE_WITH_DEVICE = 0.50
STOLEN_SHARE, STOLEN_CORES = 0.02, 0.02  # of the busy time, as the doctor's; and at least
LIMITED_SHARE = 0.01  # of the run
# Of a shorter run, ticks of 10 ms tell no share.
LEAST_S = 0.5

# Why clocks are lower than they could be, and that is no fault: the GPU idles, or somebody set it.
_NO_FAULTS = ("GPU idle", "applications clocks setting", "sync boost", "display clock setting")


def before(state: dict[str, Any], looks_busy: bool = True) -> Iterator[str]:
    """Of the first record. ``looks_busy`` False: this process used the device a moment ago, so
    that it is busy says nothing.
    """
    for device in state["devices"]:
        name, busy = _name(device, state), device.get("busy_percent")
        if device.get("others"):
            stated = f"; {busy} % busy" if busy is not None and looks_busy else ""
            yield f"{name}: in use by {processes_text(device['others'])} before the run{stated}"
        elif looks_busy and (busy or 0) > BUSY_PERCENT:
            yield f"{name}: {busy} % busy before the run, by what cannot be seen"
        if faults := _faults(device):
            yield f"{name}: throttled before the run ({', '.join(faults)})"


def during(first: dict[str, Any], last: dict[str, Any], kind: str) -> Iterator[str]:
    """What happened between the two records of a host. kind: of the devices that communicated."""
    seconds = last["cpu"].get("seconds") or 0.0
    known = {device["place"]: device for device in first["devices"]}
    for device in last["devices"]:
        yield from _of_device(known[device["place"]], device, _name(device, last), seconds)
    host, earlier_cpu, cpu = last["host"], first["cpu"], last["cpu"]
    cores = cpu.get("cores") or 0
    if cores and seconds >= LEAST_S:
        stolen = cpu.get("stolen_cores") or 0
        if (cpu.get("others_cores") or 0) > BUSY_SHARE.get(kind, BUSY_SHARE_WITH_DEVICE) * cores:
            yield f"{host}: {_cores_text(cpu)} during the run"
        if stolen > max(STOLEN_CORES, STOLEN_SHARE * (cpu.get("busy_cores") or 0)):
            yield f"{host}: CPU steal {100 * stolen / cores:.2g} % during the run"
    for unit in ("core", "package"):
        times = _rise(earlier_cpu.get(f"throttled_{unit}"), cpu.get(f"throttled_{unit}"))
        if times:
            yield f"{host}: CPU {unit} slowed by heat {times} times during the run"
    for port, counts in last["network"].items():
        earlier = first["network"].get(port, {})
        risen = {
            name: count - earlier[name]
            for name, count in counts.items()
            if name not in NO_FAULT and count > earlier.get(name, count)
        }
        if risen:
            texts = ", ".join(f"{name} +{number}" for name, number in risen.items())
            yield f"{port} of {host}: {texts} during the run"


def _of_device(
    first: dict[str, Any], last: dict[str, Any], name: str, seconds: float
) -> Iterator[str]:
    known = {process["pid"] for process in first.get("others") or ()}
    new = [process for process in last.get("others") or () if process["pid"] not in known]
    if new:
        yield f"{name}: in use by {processes_text(new)} since the run began"
    limited = {
        policy: (ns - (first.get("limited_ns") or {}).get(policy, ns)) / 1e9
        for policy, ns in (last.get("limited_ns") or {}).items()
        if ns is not None and (first.get("limited_ns") or {}).get(policy) is not None
    }
    slow = {policy: s for policy, s in limited.items() if s > LIMITED_SHARE * seconds > 0}
    if slow:
        # More than the run lasted is a driver that counts in other units.
        shares = (f"{policy} {min(1.0, s / seconds):.0%}" for policy, s in slow.items())
        yield f"{name}: throttled during the run ({', '.join(shares)} of the time)"
    elif faults := [word for word in _faults(last) if word not in _faults(first)]:
        yield f"{name}: throttled at the end of the run ({', '.join(faults)})"
    for kind in ("uncorrected", "corrected"):
        risen = _rise(first.get(f"ecc_{kind}"), last.get(f"ecc_{kind}"))
        if risen:
            yield f"{name}: {risen} {kind} ECC error{'s' if risen > 1 else ''} during the run"
    links, earlier = last.get("nvlinks"), first.get("nvlinks")
    if links is not None and earlier is not None and links < earlier:
        yield f"{name}: {earlier - links} of {earlier} NVLinks lost during the run"
    errors = []
    for kind, counts in (last.get("nvlink_errors") or {}).items():
        old = (first.get("nvlink_errors") or {}).get(kind, {})
        errors += [
            f"{kind} +{risen} on link {link}"
            for link, count in counts.items()
            if (risen := _rise(old.get(link), count))
        ]
    if errors:
        yield f"{name}: NVLink errors during the run: {', '.join(errors)}"


def why_busy(state: dict[str, Any], shares: dict[str, Any] | None) -> str | None:
    """Why --require-idle refuses to start, or None.

    With devices (``shares`` None) no other process may have a context on one; where processes
    cannot be seen, as in a container, none may be busy. On CPUs others may use IDLE_SHARE of the
    cores of the ranks; the load average is no measure, for it remembers what has ended.
    """
    host = state["host"]
    if shares is not None:
        others, cores = shares["others_cores"], shares["cores"]
        if others is None:
            return f"{host}: who uses its cores cannot be seen"
        return f"{host}: {_cores_text(shares)}" if others > IDLE_SHARE * cores else None
    for device in state["devices"]:
        name, busy = _name(device, state), device.get("busy_percent")
        if device.get("others"):
            return f"{name}: {processes_text(device['others'])}"
        if busy is not None and busy > BUSY_PERCENT:
            return f"{name}: {busy} % busy"
        if device.get("others") is None and busy is None:
            return f"{name}: who uses it cannot be seen"
    return None if state["devices"] else f"{host}: who uses its devices cannot be seen"


def processes_text(processes: list[dict[str, Any]]) -> str:
    """``python (pid 4711, anna, 34.2 GiB) and 2 more``: the largest first."""
    largest = max(processes, key=lambda p: p.get("size_bytes") or 0)
    text = "a process outside this container"
    if largest["pid"] is not None:
        size_bytes = largest.get("size_bytes")
        size = None if size_bytes is None else format_bytes(size_bytes)
        facts = [f"pid {largest['pid']}", largest.get("user"), size]
        text = f"{largest.get('name') or 'a process'} ({', '.join(filter(None, facts))})"
    return text + (f" and {len(processes) - 1} more" if len(processes) > 1 else "")


def _cores_text(shares: dict[str, Any]) -> str:
    text = f"other processes used {shares['others_cores']:.2g} of {shares['cores']} cores"
    top = next(iter(shares["processes"]), None)
    if top and top["cores"] >= shares["others_cores"] / 2:
        facts = [f"pid {top['pid']}", top.get("user"), f"{top['cores']:.2g} cores"]
        text += f", most {top['name']} ({', '.join(filter(None, facts))})"
    return text


def _name(device: dict[str, Any], state: dict[str, Any]) -> str:
    index = device.get("index")
    return f"GPU {device['place'] if index is None else index} of {state['host']}"


def _faults(device: dict[str, Any]) -> list[str]:
    """Intel's reasons are all of throttling."""
    return [word for word in device.get("reasons") or () if word not in _NO_FAULTS]


def _rise(first: int | None, last: int | None) -> int:
    """0 where one is not known, or where the counter was reset in between."""
    return max(0, last - first) if first is not None and last is not None else 0
