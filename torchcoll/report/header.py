"""The lines above a table: what ran, where, how it was read, and what starting up cost.

Every fact may be missing: files can be truncated or imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torchcoll.core.result import CaseResult, Run
from torchcoll.core.units import format_ranges, format_time
from torchcoll.report.columns import values_of
from torchcoll.report.output import one_line

_CADENCES = {
    "isolated": "isolated (a barrier before every call, outside the stamps)",
    "stream": "stream (calls back to back, no barrier)",
    "graph": "graph (captured calls, replayed)",
}
_READINGS = {
    "max": "completion = max over ranks",
    "mean": "time = mean over ranks, not the completion",
    "min": "time = min over ranks, not the completion",
    "rank0": "time = rank 0 alone, not the completion",
}
_CONNECTS = {
    "init_process_group": "which connects",
    "first call": "connects in the first call",
    "before": "the process group was there",
}
_FEW_HOSTS = 4  # more are named by the first and the last; --per-rank names them all


def header_lines(
    run: Run, items: Sequence[Any], how: str = "max", clocks: Iterable[str] = ()
) -> list[str]:
    """The lines known before the first case has run. ``items`` are the Cases or Rows shown."""
    lines = [_what(run, items), f"{_backends(run, items)}; {ranks_text(run)}"]
    clock = ", ".join(clocks)
    cadences = [_CADENCES.get(name, name) for name in values_of(items, "cadence")]
    words = [f"clock: {clock}" if clock else "", *(f"cadence: {name}" for name in cadences)]
    lines.append("; ".join(filter(None, words)))
    lines.append(f"{_READINGS[how]}; low, high = p5, p95 within this launch")
    lines += [_rules(run.header.get("spec") or {}), _labels(run), _start_up(run)]
    return [line for line in lines if line]


def _what(run: Run, items: Sequence[Any]) -> str:
    collectives = values_of(items, "collective")
    words = [", ".join(collectives) if len(collectives) < 3 else f"{len(collectives)} collectives"]
    for name in ("dtype", "op", "root", "in_place"):
        values = values_of(items, name)
        if len(values) == 1:
            words.append(_word(name, values[0]))
    words += [f"sub-groups {rule}" for rule in _rules_of_groups(items)]
    words += [f"{name} buffers" for name in values_of(items, "buffers") if name != "default"]
    words += ["async_op and wait"] if values_of(items, "asynchronous") == [True] else []
    calls = [n for n in values_of(items, "coalesce") if n > 1]
    words += [f"{n} calls in one group, timed together" for n in calls]
    splits = values_of(items, "splits")
    words += [f"splits {one_line(text)}" for text in splits]
    return f"{program_text(run)}: {', '.join(filter(None, words))}".rstrip()


def _rules_of_groups(items: Sequence[Any]) -> list[str]:
    """``mod:2`` of cases with that rule, and of results of its sub-group ``mod:2/0``."""
    names = [one_line(name) for name in values_of(items, "group")]
    return list(dict.fromkeys(name.split("/")[0] for name in names))


def program_text(run: Run) -> str:
    """``torchcoll 0.1.0``: which version measured."""
    version = run.header.get("torchcoll") or run.environment.get("torchcoll") or ""
    return f"torchcoll {one_line(version)}".rstrip()


def _word(name: str, value: Any) -> str:
    if name == "in_place":
        return "in place" if value else "out of place"
    return f"root {value}" if name == "root" else str(value)


def _backends(run: Run, items: Sequence[Any]) -> str:
    libraries = run.environment.get("libraries") or {}
    texts = []
    for name in values_of(items, "backend"):
        library = one_line(libraries.get(name) or name)
        text = library if library.startswith(name) else f"{name} ({library})"
        texts.append(f"{text} (nothing is communicated)" if name == "fake" else text)
    return f"backend{'s' if len(texts) > 1 else ''}: {', '.join(texts) or 'unknown'}"


def _devices(members: Sequence[dict[str, Any]]) -> str:
    """``cpu`` or ``cuda:0-7``: the devices of these ranks."""
    found: dict[str, list[int]] = {}
    for member in members:
        kind, _, index = str(member.get("device") or "").partition(":")
        found.setdefault(one_line(kind), []).extend([int(index)] if index.isdigit() else [])
    return ", ".join(f"{k}:{format_ranges(set(v))}" if v else k for k, v in found.items() if k)


def ranks_text(run: Run) -> str:
    """How many ranks, on which hosts, with which devices."""
    count = f"{run.ranks} ranks" if run.ranks != 1 else "1 rank (no communication)"
    hosts: dict[str, list[dict[str, Any]]] = {}
    for number, member in enumerate(run.members):
        host = one_line(member.get("host") or "?")
        hosts.setdefault(host, []).append({"rank": number, **member})
    if not hosts:
        return count
    names = list(dict.fromkeys(m.get("device_name") for m in run.members if m.get("device_name")))
    kind = "".join(f", {one_line(name)}" for name in names[:2])
    if len(hosts) == 1:
        host, members = next(iter(hosts.items()))
        return f"{count} on {host}, {_devices(members)}{kind}".replace(", ,", ",").rstrip(", ")
    if len(hosts) <= _FEW_HOSTS:
        parts = [
            f"{format_ranges(m['rank'] for m in members)} on {host} ({_devices(members)})"
            for host, members in hosts.items()
        ]
        return f"{count}: {', '.join(parts)}{kind}"
    sizes = sorted({len(members) for members in hosts.values()})
    each = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    first, *_, last = hosts
    devices = list(dict.fromkeys(_devices(members) for members in hosts.values()))
    where = f", {devices[0]} on each" if len(devices) == 1 and devices[0] else ""
    return f"{count} on {len(hosts)} hosts, {each} each ({first} ... {last}){where}{kind}"


def _rules(spec: dict[str, Any]) -> str:
    """The stopping rule, verification, and what is not as usual."""
    if not spec:
        return ""
    if spec.get("iters") is not None:
        words = [f"{spec['iters']} calls a case"]
    elif spec.get("precision") and spec.get("max_time_s"):
        precision = 100 * spec["precision"]
        words = [f"each case until {precision:g} % precision or {spec['max_time_s']:g} s"]
    else:
        words = []
    if spec.get("warmup"):
        words.append(f"{spec['warmup']} warm-up calls")
    if "check" in spec:
        words.append(f"verification {'on' if spec['check'] else 'off'}")
    if spec.get("order", "size") != "size":
        words.append(f"order {spec['order']} (seed {spec.get('seed', 0)})")
    if spec.get("fresh_group"):
        words.append("a new communicator for every case")
    return "; ".join(words)


def _labels(run: Run) -> str:
    labels = run.labels or {}
    pairs = ", ".join(f"{one_line(k)}={one_line(v)}" for k, v in labels.items())
    return f"labels: {pairs}" if pairs else ""


def _brief(ns: float) -> str:
    return format_time(ns, 3).strip()


def _phase(run: Run, name: str) -> int | None:
    """A set-up phase as the slowest rank saw it."""
    return max(run.phases.get(name) or [], default=None)


def _start_up(run: Run) -> str:
    if not run.phases:
        return ""
    names = (
        *(("import torch", "import_torch"), ("rendezvous", "rendezvous"), ("device", "device")),
        *(("init", "init_process_group"), ("connect", "communicator")),
    )
    words = [f"{text} {_brief(ns)}" for text, key in names if (ns := _phase(run, key)) is not None]
    connects = _CONNECTS.get(run.header.get("connects") or "")
    return f"start up: {', '.join([*words, connects] if connects else words)}"


def first_lines(run: Run) -> list[str]:
    """What the first call of the launch cost, and what measuring costs; known after a case.

    Time to first result adds the slowest rank's connect to the slowest rank's first call: the
    ranks meet between the two, so the maxima follow each other. A backend that connects within
    ``init_process_group`` cannot tell the two apart, so all of it counts.
    """
    lines = []
    result = first_result(run.results)
    if result is not None:
        first = max(row[0] for row in result.cold_ns if row)
        # With --fresh-group the case made a communicator of its own.
        connect = max(result.connect_ns, default=0)
        words = [f"connect {_brief(connect)}"] if connect else []
        words.append(f"first call {_brief(first)}")
        if result.settled is not None:
            words.append(f"settled after {result.settled} calls")
        elif result.status in ("ok", "wrong"):
            words.append(f"not settled after {max(map(len, result.cold_ns))} calls")
        if run.header.get("connects") == "init_process_group":
            connect = connect or _phase(run, "init_process_group") or 0
        connect = connect or _phase(run, "communicator") or 0
        words.append(f"time to first result {_brief(first + connect)}")
        lines.append(", ".join(words))
    costs = (("timed loop", "cost_timed_loop"), ("barrier", "cost_barrier"))
    words = [f"{text} {_brief(ns)}" for text, key in costs if (ns := _phase(run, key)) is not None]
    if words:
        lines.append(f"cost of measuring, a call: {', '.join(words)}")
    return lines


def first_result(results: Sequence[CaseResult]) -> CaseResult | None:
    """The case that made the first call of the launch."""
    return next((r for r in results if any(r.cold_ns) and r.ordinal == 0), None)
