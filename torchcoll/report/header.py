"""The lines above a table. Truncated and imported files may lack any field of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from torchcoll.core import summary, units
from torchcoll.core.backends import communicates
from torchcoll.core.case import APIS, NATIVE, Case, value_text
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import one_line
from torchcoll.core.implementations import IMPLEMENTATIONS
from torchcoll.core.result import CaseResult, Reported, Run
from torchcoll.report.columns import distinct_values, statistics_of

_ALWAYS = ("collective", "size_bytes", "dtype", "op", "ranks", "backend", "concurrent")
_PLAIN = ("collective", "dtype", "op", "backend", "in_place")


def kind_texts(kinds: Sequence[Mapping[str, Any]], always: Sequence[str] = _ALWAYS) -> list[str]:
    """Describes each kind of case: ``all_reduce, float32, sum, 8 ranks, nccl, NCCL_ALGO Ring``.

    kinds: for each kind its fields by name, which are named if the kinds differ in them, or if they
    are among ``always``.
    """
    names = dict.fromkeys(name for kind in kinds for name in kind)
    varying = [n for n in names if len({repr(kind.get(n)) for kind in kinds}) > 1]
    return [_kind_text(kind, [*always, *varying]) for kind in kinds]


def _kind_text(kind: Mapping[str, Any], names: Sequence[str]) -> str:
    parts = []
    for name in dict.fromkeys(names):
        value = kind.get(name)
        if value is None:
            continue
        if name == "ranks":
            parts.append(units.counted(value, "rank"))
        elif name == "size_bytes":
            parts.append(
                f"{units.format_size(value)} bytes" if value < 1024 else units.format_size(value)
            )
        elif name == "device_name":
            parts.append("unknown device" if value == "unset" else one_line(value))
        elif name in _PLAIN:
            parts.append(value_text(name, value))
        else:
            parts.append(f"{one_line(name.removeprefix('label='))} {one_line(value)}")
    return ", ".join(parts)


_MODES = {
    "synchronized": "synchronized (a barrier before every call, outside the stamps)",
    "back-to-back": "back-to-back (calls queued, no barrier)",
    "blocking": "blocking (each rank waits for its call, no barrier)",
    "graph": "graph (captured calls, replayed)",
}
_READINGS = {
    "max": "time = max over ranks, the slowest rank",
    "mean": "time = mean over ranks, not the slowest rank",
    "min": "time = min over ranks, not the slowest rank",
    "rank0": "time = rank 0 alone, not the slowest rank",
}
_PERIODS = {
    "max": "period = time of the batches on the slowest rank / calls",
    "mean": "period = time of the batches, mean over ranks, / calls",
    "min": "period = time of the batches on the fastest rank / calls",
    "rank0": "period = time of the batches on rank 0 / calls",
}
NOT_ALIGNED = "ranks are not aligned: the maximum over ranks is no call's time"
_SLOW = 1.5  # times the steady median: a first call that is not steady
_FEW_HOSTS = 4  # more are named by the first and the last; --view ranks names them all


def header_lines(
    run: Run,
    items: Sequence[Any],
    how: str | None = "max",
    clocks: Iterable[str] = (),
    verbose: bool = False,
) -> list[str]:
    """The lines above a table of Cases or Rows, which can be printed before the first case.

    how: how times are combined over ranks; None for a table that shows each rank. clocks: of the
    times. verbose: with the duration of each phase of start-up.
    """
    what = f"{program_text(run)}: {common_text(items)}".rstrip()
    lines = [what, f"{_backends(run, items)}; {ranks_text(run)}"]
    clock = ", ".join(map(one_line, clocks))
    modes = [_MODES.get(name, one_line(name)) for name in distinct_values(items, "mode")]
    parts = [f"clock: {clock}" if clock else "", *(f"mode: {name}" for name in modes)]
    lines.append("; ".join(filter(None, parts)))
    if how:
        lines.append(reported_text(run) or reading(items, how))
    lines += [_measurement_rules(run.header.get("spec") or {}, items)]
    lines += [_communicator_config(run), _labels(run), _unknown_states(run)]
    lines += [_start_up(run, items)] if verbose else []
    return [line for line in lines if line]


def requested_cases(run: Run) -> Sequence[Case]:
    """The cases that a run was asked to measure, with one size each; () without a usable spec."""
    if not run.header.get("spec"):
        return ()
    try:
        # The splits may name a file that does not exist on this machine.
        spec = replace(run.spec, sizes=(8,), splits="seed:0")
        cases = spec.cases(max(run.ranks, 1))
    except (TypeError, ValueError, AttributeError):  # the spec is damaged or of another version
        return ()
    splits = run.header["spec"].get("splits")
    return [replace(case, splits=splits if case.splits else None) for case in cases]


def reading(items: Sequence[Any], how: str) -> str:
    """Describes how the times of the ranks were combined into one time per call."""
    statistics = statistics_of(items)
    periods = [_PERIODS[how]] if summary.PERIOD in statistics else []
    if statistics == [summary.PERIOD]:
        return periods[0]
    modes = {i.mode for i in items if statistics_of([i]) != [summary.PERIOD]}
    if how == "max" and not modes <= {"synchronized"}:
        return "; ".join([*periods, "time = max over ranks", NOT_ALIGNED])
    return "; ".join([_READINGS[how], *periods])


def reported_text(run: Run) -> str:
    """Describes the published times of an imported file; '' if the run has samples."""
    reported = [result.reported for result in run.results if result.reported and not result.time_ns]
    if not reported or len(reported) < sum(bool(result.time_ns) for result in run.results):
        return ""
    # A file has many rows, and most of them have the same statistic.
    kinds: dict[tuple[object, ...], Reported] = {}
    for g in reported:
        kinds.setdefault((g.statistic, g.over_ranks, g.derived, g.one_cold_call), g)
    texts = dict.fromkeys(map(summary.reported_reading, kinds.values()))
    derived = [g.derived for g in kinds.values()]
    how = "" if not any(derived) else "computed from the bandwidth; "
    how = how if all(derived) or not how else "some computed from the bandwidth; "
    source = "the source has no samples"
    if any(g.over_ranks == "unknown" for g in kinds.values()):
        source += " and does not say how ranks were combined"
    return f"time: {' or '.join(texts)}, as published ({how}{source})"


def common_text(items: Sequence[Any]) -> str:
    """What Cases or Rows have in common: ``all_reduce, float32, sum, out of place``."""
    collectives = distinct_values(items, "collective")
    parts = [", ".join(collectives) if len(collectives) < 3 else f"{len(collectives)} collectives"]
    for name in ("dtype", "op", "root", "in_place"):
        values = distinct_values(items, name)
        if len(values) == 1:
            parts.append(f"root {values[0]}" if name == "root" else value_text(name, values[0]))
    # A case names the rule (``mod:2``); a result names one of its sub-groups (``mod:2/0``).
    groups = [one_line(name).split("/")[0] for name in distinct_values(items, "group")]
    parts += [f"sub-groups {rule}" for rule in dict.fromkeys(groups)]
    parts += [
        f"{one_line(name)} buffers"
        for name in distinct_values(items, "buffers")
        if name != "default"
    ]
    implementation_names = distinct_values(items, "implementation")
    also = "also " if NATIVE in implementation_names else ""
    if apis := [name for name in implementation_names if name in APIS]:
        parts.append(f"{also}through {' and '.join(apis)} of torch")
    if implementations := " and ".join(
        one_line(name) for name in implementation_names if name not in (NATIVE, *APIS)
    ):
        of_torch = any(name in IMPLEMENTATIONS for name in implementation_names)
        origin = " of torch's symmetric memory" if of_torch else ""
        parts.append(f"{also}by {implementations}{origin}")
    reuse = distinct_values(items, "buffer_reuse")
    parts += ["buffers that walk through the largest"] if reuse == ["rotate"] else []
    parts += ["caches overwritten before every call"] if reuse == ["flush"] else []
    misaligned = [n for n in distinct_values(items, "misalign_bytes") if n]
    parts += [f"buffers misaligned by {units.counted(n, 'byte')}" for n in misaligned]
    parts += ["REHEARSAL on one GPU"] if distinct_values(items, "rehearsal") == [True] else []
    parts += ["async_op and wait"] if distinct_values(items, "asynchronous") == [True] else []
    calls = [n for n in distinct_values(items, "coalesce") if n > 1]
    parts += [f"{n} calls in one group, timed together" for n in calls]
    splits = distinct_values(items, "splits")
    parts += [f"splits {' and '.join(map(one_line, splits))}"] if splits else []
    return ", ".join(filter(None, parts))


def program_text(run: Run) -> str:
    """The program that measured, and its version: ``torchcoll 0.1.0``."""
    if run.source:
        names = [run.source.get(name) for name in ("tool", "version", "format")]
        return f"imported from {' '.join(one_line(name) for name in names if name)}"
    version = run.header.get("torchcoll") or run.environment.get("torchcoll") or ""
    return f"torchcoll {one_line(version)}".rstrip()


def _backends(run: Run, items: Sequence[Any]) -> str:
    libraries = run.environment.get("libraries") or {}
    texts = []
    for name in distinct_values(items, "backend"):
        name, library = one_line(name), one_line(libraries.get(name) or name)
        text = library if library.startswith(name) else f"{name} ({library})"
        texts.append(f"{text} (nothing is communicated)" if not communicates(name) else text)
    return f"{units.plural(len(texts) or 1, 'backend')}: {', '.join(texts) or 'unknown'}"


def _devices(members: Sequence[dict[str, Any]]) -> str:
    """The devices of the given members: ``cpu`` or ``cuda:0-7``."""
    indexes_by_kind: dict[str, list[int]] = {}
    for member in members:
        kind, _, index = str(member.get("device") or "").partition(":")
        is_index = index.isascii() and index.isdigit() and len(index) < 6
        indexes_by_kind.setdefault(one_line(kind), []).extend([int(index)] if is_index else [])
    return ", ".join(
        f"{k}:{units.format_ranges(set(v))}" if v else k for k, v in indexes_by_kind.items() if k
    )


def ranks_text(run: Run) -> str:
    """The number of ranks, their hosts and their devices, as one line."""
    count = f"{run.ranks} ranks" if run.ranks != 1 else "1 rank (no communication)"
    if run.source and not run.ranks:
        count = "ranks: unknown"
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
            f"{units.format_ranges(m['rank'] for m in members)} on {host} ({_devices(members)})"
            for host, members in hosts.items()
        ]
        return f"{count}: {', '.join(parts)}{kind}"
    sizes = sorted({len(members) for members in hosts.values()})
    each = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    first, *_, last = hosts
    devices = list(dict.fromkeys(_devices(members) for members in hosts.values()))
    devices_text = f", {devices[0]} on each" if len(devices) == 1 and devices[0] else ""
    return f"{count} on {len(hosts)} hosts, {each} each ({first} ... {last}){devices_text}{kind}"


def _measurement_rules(spec: dict[str, Any], items: Sequence[Any]) -> str:
    """The stopping rule, whether results are verified, and settings that are not the default."""
    if not spec:
        return ""
    if spec.get("iters") is not None:
        parts = [f"{spec['iters']} calls a case"]
    elif spec.get("precision") and spec.get("max_time_s"):
        precision = 100 * spec["precision"]
        parts = [
            f"a case ends when its median is known within {precision:g} %, or after "
            f"{spec['max_time_s']:g} s"
        ]
    else:
        parts = []
    if spec.get("warmup"):
        parts.append(f"{spec['warmup']} warm-up calls")
    if "check" in spec:
        parts.append(f"verification {'on' if spec['check'] else 'off'}")
    # Such buffers are warmer in the caches than those of nccl-tests.
    if distinct_values(items, "buffer_reuse") == ["same"]:
        parts.append("the same buffers in every call")
    if spec.get("order", "size") != "size":
        parts.append(f"order {one_line(spec['order'])} (seed {spec.get('seed', 0)})")
    if spec.get("fresh_group"):
        parts.append("a new communicator for every case")
    return "; ".join(parts)


def _communicator_config(run: Run) -> str:
    """The configuration of communicators that was set; '' for the default."""
    config = run.environment.get("communicator_config") or "default"
    return "" if config == "default" else f"communicator configuration: {one_line(config)}"


def _labels(run: Run) -> str:
    labels = run.labels or {}
    pairs = ", ".join(f"{one_line(k)}={one_line(v)}" for k, v in labels.items())
    return f"labels: {pairs}" if pairs else ""


def _unknown_states(run: Run) -> str:
    """The hosts on which nobody could read whether a device was throttled: no warning can come."""
    hosts = [
        one_line(state.get("host") or "?")
        for state in run.machine
        for device in (state.get("devices") or [] if state.get("when") == "before" else [])
        if device.get("reasons") is None and device.get("limited_ns") is None
    ]
    names = units.shorten(list(dict.fromkeys(hosts)), _FEW_HOSTS, " and {} more hosts")
    return f"not known: throttling of the devices on {names}" if hosts else ""


def _phase(run: Run, name: str) -> float | None:
    """The duration of a start-up phase on the slowest rank, in ns; None if it was not recorded."""
    return max(run.phases.get(name) or (), default=None)


def _start_up(run: Run, items: Sequence[Any]) -> str:
    backends = distinct_values(items, "backend")
    alone = run.ranks == 1 or (backends and not any(map(communicates, backends)))
    first_backend = next(iter(run.header.get("connects_of") or backends), "")
    connects_at = None if alone else summary.connects(run, first_backend)
    names = {
        "import_torch": "import torch",
        "rendezvous": "rendezvous",
        "device": "device",
        "init_process_group": "init",
        "communicator": "connect",
    }
    parts = []
    for key, text in names.items():
        if (ns := _phase(run, key)) is not None:
            also = " including connecting" if key == "init_process_group" == connects_at else ""
            parts.append(f"{text} {units.format_ns(ns, 3)}{also}")
    if connects_at == "first call":
        parts.append("connects in the first call")
    elif connects_at == "before":
        parts.append("the process group was there")
    of_others = list((run.header.get("connects_of") or {}).items())[1:]
    parts += [
        f"{one_line(b)} connects in its first call" for b, w in of_others if w == "first call"
    ]
    return f"start up: {', '.join(parts)}" if run.phases else ""


def first_lines(run: Run, how: str = "max", total: bool = True, verbose: bool = False) -> list[str]:
    """The cost of the first call on each backend, which is known once a case has run.

    total: include the time to first result. verbose: add a line with the cost of measuring.
    """
    lines = []
    first_run, results = next((part for part in run.all_runs() if part[1]), (run, []))
    backends = summary.backends_of(results)
    for backend in backends:
        if firsts := summary.first_results(results, backend):
            name = f"{one_line(backend)}: " if len(backends) > 1 else ""
            lines.append(name + _first_line(first_run, firsts, how, total))
    if not verbose:
        return lines
    costs = (("timed loop", "cost_timed_loop"), ("barrier", "cost_barrier"))
    readings = [
        f"{text} {units.format_ns(ns, 3)}"
        for text, key in costs
        if (ns := _phase(run, key)) is not None
    ]
    if readings:
        lines.append(f"cost of measuring, a call: {', '.join(readings)}")
    return lines


def _first_line(run: Run, firsts: Sequence[CaseResult], how: str, total: bool) -> str:
    first, connect = summary.first_call_ns(firsts, how), summary.connect_ns(run, firsts, how)
    # With --fresh-group each case creates its own communicator.
    connected = any(result.connect_ns for result in firsts) and connect
    parts = [f"connect {units.format_ns(connect, 3)}"] if connected else []
    slow = _slow_calls(firsts, how)
    parts.append(slow or f"first call {units.format_ns(first, 3)}")
    backend = firsts[0].case.backend
    if summary.connects(run, backend) != summary.recorded_connects(run, backend):
        group = one_line(summary.implementation_of(run, backend) or backend)
        parts.append(f"{group} had connected in init_process_group")
    calls = max(len(row) for result in firsts for row in result.cold_ns)
    steady_after = [result.steady_after for result in firsts if result.steady_after is not None]
    if len(steady_after) == len(firsts) and not slow:
        parts.append(f"steady after {units.counted(max(steady_after), 'call')}")
    elif not slow and any(result.status in ("ok", "wrong") for result in firsts):
        parts.append(f"not steady after {units.counted(calls, 'call')}")
    if total and summary.connects(run, backend) != "unknown":
        parts.append(f"time to first result {units.format_ns(first + connect, 3)}")
    return ", ".join(parts)


def _slow_calls(firsts: Sequence[CaseResult], how: str) -> str:
    """``first 3 calls 4.41 to 5.07 ms, 21 times the later calls``, if more of the first calls are
    slow than the run recorded; otherwise ''.
    """
    later = max(summary.steady_figure(result, "host", how) or 0.0 for result in firsts)
    recorded = [r.steady_after for r in firsts if r.steady_after and not r.case.back_to_back]
    calls = summary.over_ranks(list(summary.cold_by_rank(firsts).values()), how)
    slow = list(takewhile(lambda ns: ns > _SLOW * later > 0, calls))
    if len(recorded) < len(firsts) or len(slow) <= max(recorded):
        return ""
    times = " to ".join(dict.fromkeys(units.format_ns(ns, 3) for ns in (min(slow), max(slow))))
    factor = units.format_factor(summary.median(slow) / later).removesuffix("x")
    return f"first {len(slow)} calls {times}, {factor} times the later calls"


def case_text(case: Case) -> str:
    """``all_reduce 1M``"""
    has_data = COLLECTIVES[case.collective].has_data
    return (
        f"{case.collective} {units.format_size(case.size_bytes)}" if has_data else case.collective
    )
