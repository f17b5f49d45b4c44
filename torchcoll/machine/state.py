"""Samples the load of a host, and judges the records of its state before and after a run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcoll.core.shared_cores import cpu_numbers
from torchcoll.core.units import counted, format_bytes, format_digits, format_share
from torchcoll.machine.placement import number_in, process_ids, text_in

# The load of the cores is the difference of two samples of the ticks in /proc, which only increase.
# A sample with psutil takes more than twice as long.

_MOST_NAMED = 3  # processes that a record names


@dataclass(frozen=True)
class HostProcess:
    """The content of /proc/PID/stat.

    ticks: CPU time of the process itself. inherited: CPU time of its children that have ended.
    born: start time in ticks since boot.
    """

    pid: int
    parent: int
    name: str
    ticks: int
    inherited: int
    born: int


@dataclass(frozen=True)
class Sample:
    """The CPU times of a host at one moment.

    seconds: of a monotonic clock.
    cpus: number of the CPU -> (worked, stolen, all) ticks.
    processes: pid -> process.
    """

    seconds: float
    cpus: dict[int, tuple[int, int, int]]
    processes: dict[int, HostProcess]


def sample(proc: str = "/proc") -> Sample:
    """Take a sample. This takes about 15 us for each process of the host."""
    return Sample(time.monotonic(), _cpus(proc), _processes(proc))


def _cpus(proc: str) -> dict[int, tuple[int, int, int]]:
    """CPU -> (worked, stolen, all) ticks. ``worked`` is without interrupts, which the ranks' own
    traffic raises. Fields of /proc/stat: user nice system idle iowait irq softirq steal.
    """
    cpus = {}
    for line in (text_in(f"{proc}/stat") or "").splitlines():
        name, *fields = line.split()
        if name[:3] == "cpu" and name[3:].isdecimal() and len(fields) >= 8:
            ticks = [int(field) for field in fields[:8]]
            cpus[int(name[3:])] = (sum(ticks[:3]), ticks[7], sum(ticks))
    return cpus


def _processes(proc: str) -> dict[int, HostProcess]:
    processes = {}
    for pid in process_ids(proc):
        try:
            with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
                # A name may contain blanks and brackets.
                head, _, tail = file.read().rpartition(")")
            fields = tail.split()
            # Each is the sum of user and system time.
            ticks, ended = (int(fields[k]) + int(fields[k + 1]) for k in (11, 13))
            processes[pid] = HostProcess(
                pid, int(fields[1]), head.partition("(")[2], ticks, ended, int(fields[19])
            )
        except (OSError, ValueError, IndexError):
            continue  # the process has ended in the meantime
    return processes


def family(pids: Iterable[int], processes: dict[int, HostProcess]) -> set[int]:
    """These processes and all their descendants."""
    members = set(pids)
    while True:
        more = {p.pid for p in processes.values() if p.parent in members} - members
        if not more:
            return members
        members |= more


def ancestors(pids: Iterable[int], processes: dict[int, HostProcess]) -> set[int]:
    """The ancestors of these processes (torchrun, mpirun, a shell), up to the first process."""
    ancestor_pids: set[int] = set()
    for pid in pids:
        while (process := processes.get(pid)) and process.parent not in ancestor_pids:
            ancestor_pids.add(process.parent)
            pid = process.parent
    return ancestor_pids - set(pids)


def allowed_cpus(pids: Iterable[int], proc: str = "/proc") -> set[int]:
    """The CPUs that any of these processes may use; empty if they cannot be read."""
    cpus: set[int] = set()
    for pid in pids:
        for line in (text_in(f"{proc}/{pid}/status") or "").splitlines():
            if line.startswith("Cpus_allowed_list:"):
                cpus |= cpu_numbers(line.split()[1])
    return cpus


def shares(
    first: Sample, last: Sample, pids: Iterable[int], cpus: set[int], hz: int, proc: str = "/proc"
) -> dict[str, Any]:
    """Who used these CPUs between two samples, in cores (1.0 is one core all the time).

    pids: the ranks on this host. cpus: the CPUs that they may use. hz: ticks per second.

    Keys: seconds; cores (number of CPUs); busy_cores (used by all processes); stolen_cores (by the
    hypervisor); others_cores (by processes other than the ranks, their descendants and ancestors);
    processes (the busiest of those others: pid, name, user, cores). None if not known.
    """
    seconds = last.seconds - first.seconds
    common = sorted(cpus & set(first.cpus) & set(last.cpus))
    facts: dict[str, Any] = {"seconds": round(seconds, 3), "cores": len(common)}
    facts |= {"busy_cores": None, "stolen_cores": None, "others_cores": None, "processes": []}
    if not common or seconds <= 0:
        return facts
    worked, stolen, _ = (
        sum(last.cpus[cpu][kind] - first.cpus[cpu][kind] for cpu in common) for kind in range(3)
    )

    def cores(ticks: int) -> float:
        return round(max(0, ticks) / hz / seconds, 3)

    facts |= {"busy_cores": cores(worked), "stolen_cores": cores(stolen)}
    pids = set(pids)
    if not pids <= set(first.processes) & set(last.processes):
        return facts  # the ranks are in other containers
    run_pids = family(pids, last.processes)
    above = ancestors(pids, last.processes) & set(last.processes)
    # The whole tree is summed, because the ticks of a child are added to its parent when it ends.
    run_ticks = _tree_ticks(run_pids, last) - _tree_ticks(family(pids, first.processes), first)
    run_ticks += sum(_ticks_since(last.processes[pid], first.processes) for pid in above)
    facts["others_cores"] = cores(worked - run_ticks)
    spent = {
        process.pid: _ticks_since(process, first.processes)
        for process in last.processes.values()
        if process.pid not in run_pids | above
    }
    busiest = sorted(spent, key=lambda pid: -spent[pid])
    facts["processes"] = [
        {
            "pid": pid,
            "name": last.processes[pid].name,
            "user": user_name(pid, proc),
            "cores": cores(spent[pid]),
        }
        for pid in busiest[:_MOST_NAMED]
        if cores(spent[pid]) >= 0.01
    ]
    return facts


def _tree_ticks(pids: set[int], sample: Sample) -> int:
    processes = (sample.processes[pid] for pid in pids)
    return sum(process.ticks + process.inherited for process in processes)


def _ticks_since(process: HostProcess, before: dict[int, HostProcess]) -> int:
    earlier = before.get(process.pid)
    return process.ticks - (earlier.ticks if earlier and earlier.born == process.born else 0)


def user_name(pid: int, proc: str = "/proc") -> str | None:
    """The name of the user of a process, or the number if it has no name."""
    try:
        number = os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return None
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return str(number)


def process_name(pid: int, proc: str = "/proc") -> str | None:
    """The short name of a process, without its arguments, which may contain secrets."""
    return text_in(f"{proc}/{pid}/comm")


def settings(cpus: set[int], proc: str = "/proc", sysfs: str = "/sys") -> dict[str, Any]:
    """The state of these CPUs: load (averages of 1, 5 and 15 minutes), governor, throttled_core and
    throttled_package (how often heat has throttled them since boot; x86 only).
    """
    fields = (text_in(f"{proc}/loadavg") or "").split()
    folders = [Path(sysfs, f"devices/system/cpu/cpu{cpu}") for cpu in sorted(cpus)]
    counts = {
        kind: [
            count
            for folder in folders
            if (count := number_in(folder / f"thermal_throttle/{kind}_throttle_count")) is not None
        ]
        for kind in ("core", "package")
    }
    governors = {text_in(folder / "cpufreq/scaling_governor") for folder in folders[:1]}
    return {
        "load": [float(field) for field in fields[:3]] or None,
        "governor": next(iter(governors), None),
        "throttled_core": sum(counts["core"]) if counts["core"] else None,
        # Every CPU has the count of its package.
        "throttled_package": max(counts["package"], default=None),
    }


# All of these thresholds are torchcoll's own choice.
#
# A device that nobody else uses shows 0 %; this run's first allocation takes only some microseconds
# of the last second.
BUSY_PERCENT = 10
# On CPUs the calls themselves need the cores. With a GPU the host only issues the calls.
BUSY_SHARE = {"cpu": 0.10}
BUSY_SHARE_WITH_DEVICE = 0.50
STOLEN_SHARE, STOLEN_CORES = 0.02, 0.02  # of the busy time, as in the doctor; and at least cores
LIMITED_SHARE = 0.01  # of the duration of the run
# Ticks of 10 ms are too coarse for a share of a shorter run.
LEAST_S = 0.5

# Counters of ports that are recorded but never a warning: waiting to send, and frames of protocols
# that this host does not use, such as LLDP.
_NO_FAULT_COUNTERS = ("port_xmit_wait", "rx_dropped")
# Reasons for lower clocks that are not a fault: the GPU is idle, or somebody set the clocks.
_NO_FAULTS = ("GPU idle", "applications clocks setting", "sync boost", "display clock setting")


def before(state: dict[str, Any], looks_busy: bool = True) -> Iterator[str]:
    """Yield what the record before a run shows to be wrong. looks_busy: whether a busy device is
    reported; False if this process has just used the device itself.
    """
    for device in state["devices"]:
        name, busy = _name(device, state), device.get("busy_percent")
        if device.get("others"):
            busy_text = f"; {busy} % busy" if busy is not None and looks_busy else ""
            yield f"{name}: in use by {processes_text(device['others'])} before the run{busy_text}"
        elif looks_busy and (busy or 0) > BUSY_PERCENT:
            yield f"{name}: {busy} % busy before the run, by what cannot be seen"
        if faults := _faults(device):
            yield f"{name}: throttled before the run ({', '.join(faults)})"


def during(first: dict[str, Any], last: dict[str, Any], kind: str) -> Iterator[str]:
    """Yield what went wrong between two records of a host. kind: of the devices of the ranks."""
    seconds = last["cpu"].get("seconds") or 0.0
    first_devices = {device["place"]: device for device in first["devices"]}
    for device in last["devices"]:
        yield from _device_concerns(
            first_devices[device["place"]], device, _name(device, last), seconds
        )
    host, earlier_cpu, cpu = last["host"], first["cpu"], last["cpu"]
    cores = cpu.get("cores") or 0
    if cores and seconds >= LEAST_S:
        stolen = cpu.get("stolen_cores") or 0
        if (cpu.get("others_cores") or 0) > BUSY_SHARE.get(kind, BUSY_SHARE_WITH_DEVICE) * cores:
            yield f"{host}: {_cores_text(cpu)} during the run"
        if stolen > max(STOLEN_CORES, STOLEN_SHARE * (cpu.get("busy_cores") or 0)):
            yield f"{host}: CPU steal {format_share(stolen / cores)} during the run"
    for unit in ("core", "package"):
        times = _rise(earlier_cpu.get(f"throttled_{unit}"), cpu.get(f"throttled_{unit}"))
        if times:
            yield f"{host}: CPU {unit} slowed by heat {times} times during the run"
    for port, counts in last["network"].items():
        earlier = first["network"].get(port, {})
        risen = {
            name: count - earlier[name]
            for name, count in counts.items()
            if name not in _NO_FAULT_COUNTERS and count > earlier.get(name, count)
        }
        if risen:
            texts = ", ".join(f"{name} +{number}" for name, number in risen.items())
            yield f"{port} of {host}: {texts} during the run"


def _device_concerns(
    first: dict[str, Any], last: dict[str, Any], name: str, seconds: float
) -> Iterator[str]:
    earlier_pids = {process["pid"] for process in first.get("others") or ()}
    new = [process for process in last.get("others") or () if process["pid"] not in earlier_pids]
    if new:
        yield f"{name}: in use by {processes_text(new)} since the run began"
    limited = {
        policy: (ns - (first.get("limited_ns") or {}).get(policy, ns)) / 1e9
        for policy, ns in (last.get("limited_ns") or {}).items()
        if ns is not None and (first.get("limited_ns") or {}).get(policy) is not None
    }
    slow = {policy: s for policy, s in limited.items() if s > LIMITED_SHARE * seconds > 0}
    if slow:
        # Some drivers count in other units, so that a share may exceed 1.
        shares = (f"{policy} {min(1.0, s / seconds):.0%}" for policy, s in slow.items())
        yield f"{name}: throttled during the run ({', '.join(shares)} of the time)"
    elif faults := [reason for reason in _faults(last) if reason not in _faults(first)]:
        yield f"{name}: throttled at the end of the run ({', '.join(faults)})"
    for kind in ("uncorrected", "corrected"):
        risen = _rise(first.get(f"ecc_{kind}"), last.get(f"ecc_{kind}"))
        if risen:
            yield f"{name}: {counted(risen, f'{kind} ECC error')} during the run"
    links, earlier = last.get("nvlinks"), first.get("nvlinks")
    if links is not None and earlier is not None and links < earlier:
        yield f"{name}: {earlier - links} of {earlier} NVLinks lost during the run"
    errors = [
        f"{kind} +{risen} on link {link}"
        for kind, counts in (last.get("nvlink_errors") or {}).items()
        for link, count in counts.items()
        if (risen := _rise((first.get("nvlink_errors") or {}).get(kind, {}).get(link), count))
    ]
    if errors:
        yield f"{name}: NVLink errors during the run: {', '.join(errors)}"


def processes_text(processes: list[dict[str, Any]]) -> str:
    """The largest process and how many more: ``python (pid 4711, anna, 34.2 GiB) and 2 more``."""
    largest = max(processes, key=lambda p: p.get("size_bytes") or 0)
    text = "a process outside this container"
    if largest["pid"] is not None:
        size_bytes = largest.get("size_bytes")
        size = None if size_bytes is None else format_bytes(size_bytes)
        facts = [f"pid {largest['pid']}", largest.get("user"), size]
        text = f"{largest.get('name') or 'a process'} ({', '.join(filter(None, facts))})"
    return text + (f" and {len(processes) - 1} more" if len(processes) > 1 else "")


def _cores_text(shares: dict[str, Any]) -> str:
    used = format_digits(shares["others_cores"], 2)
    text = f"other processes used {used} of {shares['cores']} cores"
    top = next(iter(shares["processes"]), None)
    if top and top["cores"] >= shares["others_cores"] / 2:
        text += f", most of it {top['name']}" + (f" ({top['user']})" if top.get("user") else "")
    return text


def _name(device: dict[str, Any], state: dict[str, Any]) -> str:
    index = device.get("index")
    return f"GPU {device['place'] if index is None else index} of {state['host']}"


def _faults(device: dict[str, Any]) -> list[str]:
    """The reasons for lower clocks that are faults. All of Intel's reasons are."""
    return [reason for reason in device.get("reasons") or () if reason not in _NO_FAULTS]


def _rise(first: int | None, last: int | None) -> int:
    """The increase of a counter; 0 if a value is not known, or the counter was reset."""
    return max(0, last - first) if first is not None and last is not None else 0
