"""What is wrong with the state of a machine, one line each. Pure: two records in, texts out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchcoll.bench.state.network import NO_FAULT
from torchcoll.core.units import format_bytes

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
            told = f"; {busy} % busy" if busy is not None and looks_busy else ""
            yield f"{name}: in use by {processes_text(device['others'])} before the run{told}"
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
    yield from _of_cores(first["cpu"], last["cpu"], last["host"], kind)
    for port, counts in last["network"].items():
        earlier = first["network"].get(port, {})
        risen = {
            name: count - earlier[name]
            for name, count in counts.items()
            if name not in NO_FAULT and count > earlier.get(name, count)
        }
        if risen:
            texts = ", ".join(f"{name} +{number}" for name, number in risen.items())
            yield f"{port} of {last['host']}: {texts} during the run"


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


def _of_cores(first: dict[str, Any], last: dict[str, Any], host: str, kind: str) -> Iterator[str]:
    cores, seconds = last.get("cores") or 0, last.get("seconds") or 0.0
    if cores and seconds >= LEAST_S:
        others, stolen = last.get("others_cores"), last.get("stolen_cores")
        if (others or 0) > BUSY_SHARE.get(kind, BUSY_SHARE_WITH_DEVICE) * cores:
            yield f"{host}: {_cores_text(last)} during the run"
        if (stolen or 0) > max(STOLEN_CORES, STOLEN_SHARE * (last.get("busy_cores") or 0)):
            yield f"{host}: the hypervisor took {stolen:.2g} of {cores} cores during the run"
    for part in ("core", "package"):
        risen = _rise(first.get(f"throttled_{part}"), last.get(f"throttled_{part}"))
        if risen:
            yield f"{host}: CPU {part} slowed by heat {risen} times during the run"


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
    largest = max(processes, key=lambda p: p.get("nbytes") or 0)
    text = "a process outside this container"
    if largest["pid"] is not None:
        nbytes = largest.get("nbytes")
        size = None if nbytes is None else format_bytes(nbytes)
        facts = [f"pid {largest['pid']}", largest.get("user"), size]
        text = f"{largest.get('name') or 'a process'} ({', '.join(filter(None, facts))})"
    return text + (f" and {len(processes) - 1} more" if len(processes) > 1 else "")


def _cores_text(shares: dict[str, Any]) -> str:
    text = f"other processes used {shares['others_cores']:.2g} of {shares['cores']} cores"
    if shares["processes"]:
        top = shares["processes"][0]
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
