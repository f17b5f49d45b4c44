"""The lines above a table: what ran, where, how it was read, and what starting up cost.

Every fact may be missing: files can be truncated or imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchcoll.core.backends import communicates
from torchcoll.core.case import NATIVE, Case
from torchcoll.core.errors import one_line
from torchcoll.core.result import CaseResult, Reported, Run
from torchcoll.core.summary import (
    COLD_CALL,
    PERIOD,
    backends_of,
    connect_ns,
    connects,
    first_call_ns,
    first_results,
    over_ranks,
)
from torchcoll.core.units import counted, format_ranges, format_size, time_text
from torchcoll.report.columns import statistics_of, values_of

_ALWAYS = ("collective", "size_bytes", "dtype", "op", "ranks", "backend", "concurrent")
_PLAIN = ("collective", "dtype", "op", "backend")


def kind_texts(kinds: Sequence[Mapping[str, Any]], always: Sequence[str] = _ALWAYS) -> list[str]:
    """``all_reduce, float32, sum, 8 ranks, nccl, NCCL_ALGO Ring`` of each: the usual names, and
    those in which the kinds differ.
    """
    names = dict.fromkeys(name for kind in kinds for name in kind)
    varying = [n for n in names if len({repr(kind.get(n)) for kind in kinds}) > 1]
    return [_text(kind, [*always, *varying]) for kind in kinds]


def _text(kind: Mapping[str, Any], names: Sequence[str]) -> str:
    parts = []
    for name in dict.fromkeys(names):
        value = kind.get(name)
        if value is None:
            continue
        if name == "in_place":
            parts.append("in place" if value else "out of place")
        elif name == "ranks":
            parts.append(f"{value} rank{'s' * (value != 1)}")
        elif name == "size_bytes":
            parts.append(f"{format_size(value)} bytes" if value < 1024 else format_size(value))
        elif name in _PLAIN:
            parts.append(one_line(value))
        else:
            parts.append(f"{one_line(name.removeprefix('label='))} {one_line(value)}")
    return ", ".join(parts)


_MODES = {
    "synchronized": "synchronized (a barrier before every call, outside the stamps)",
    "back-to-back": "back-to-back (calls queued, no barrier)",
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
_FEW_HOSTS = 4  # more are named by the first and the last; --view ranks names them all


def header_lines(
    run: Run,
    items: Sequence[Any],
    how: str | None = "max",
    clocks: Iterable[str] = (),
    verbose: bool = False,
) -> list[str]:
    """The lines known before the first case has run. ``items`` are the Cases or Rows shown.

    ``how``: the reading over ranks; None where each rank is shown. verbose: the phases of the start
    too.
    """
    what = f"{program_text(run)}: {what_text(items)}".rstrip()
    lines = [what, f"{_backends(run, items)}; {ranks_text(run)}"]
    clock = ", ".join(map(one_line, clocks))
    modes = [_MODES.get(name, one_line(name)) for name in values_of(items, "mode")]
    parts = [f"clock: {clock}" if clock else "", *(f"mode: {name}" for name in modes)]
    lines.append("; ".join(filter(None, parts)))
    if how:
        lines.append(given_text(run) or reading(items, how))
    lines += [_rules(run.header.get("spec") or {}, items), _labels(run)]
    lines += [_start_up(run, items)] if verbose else []
    return [line for line in lines if line]


def asked_cases(run: Run) -> Sequence[Case]:
    """A case for each thing that was asked, of one size: for a file that holds no result."""
    if not run.header.get("spec"):
        return ()
    try:
        # A matrix of splits is a file of another machine, perhaps.
        spec = replace(run.spec, sizes=(8,), splits="seed:0")
        cases = spec.cases(max(run.ranks, 1))
    except (TypeError, ValueError, AttributeError):  # of another version, or damaged
        return ()
    splits = run.header["spec"].get("splits")
    return [replace(case, splits=splits if case.splits else None) for case in cases]


def reading(items: Sequence[Any], how: str) -> str:
    """What one duration a call means."""
    statistics = statistics_of(items)
    periods = [_PERIODS[how]] if PERIOD in statistics else []
    if statistics == [PERIOD]:
        return periods[0]
    others = {i.mode for i in items if statistics_of([i]) != [PERIOD]}
    if how == "max" and not others <= {"synchronized"}:
        return "; ".join([*periods, "time = max over ranks", NOT_ALIGNED])
    return "; ".join([_READINGS[how], *periods])


def given_text(run: Run) -> str:
    """What the figures of an imported file are; '' where there are samples."""
    reported = [result.reported for result in run.results if result.reported and not result.time_ns]
    if not reported or len(reported) < sum(bool(result.time_ns) for result in run.results):
        return ""
    # Rows are many, and what their figures are is the same for most.
    kinds: dict[tuple[object, ...], Reported] = {}
    for g in reported:
        kinds.setdefault((g.statistic, g.over_ranks, g.derived, g.one_cold_call), g)
    texts = dict.fromkeys(map(given_reading, kinds.values()))
    derived = [g.derived for g in kinds.values()]
    how = "" if not any(derived) else "computed from the bandwidth; "
    how = how if all(derived) or not how else "some computed from the bandwidth; "
    source = "the source has no samples"
    if any(g.over_ranks == "unknown" for g in kinds.values()):
        source += " and does not say how ranks were combined"
    return f"time: {' or '.join(texts)}, as published ({how}{source})"


def given_reading(reported: Reported) -> str:
    """What a figure without samples is of the calls and of the ranks."""
    recorded = reported.statistic != "unknown"
    calls = f"{one_line(reported.statistic)} over calls" if recorded else "one figure per case"
    calls = COLD_CALL if reported.one_cold_call else calls
    over = reported.over_ranks
    return calls if over == "unknown" else f"{calls}, {one_line(over)} over ranks"


def what_text(items: Sequence[Any]) -> str:
    """What all of these have in common, ranks and backends aside."""
    collectives = values_of(items, "collective")
    parts = [", ".join(collectives) if len(collectives) < 3 else f"{len(collectives)} collectives"]
    for name in ("dtype", "op", "root", "in_place"):
        values = values_of(items, name)
        if len(values) == 1:
            parts.append(_word(name, values[0]))
    # The rule is ``mod:2`` of cases, and of results of its sub-group ``mod:2/0``.
    groups = [one_line(name).split("/")[0] for name in values_of(items, "group")]
    parts += [f"sub-groups {rule}" for rule in dict.fromkeys(groups)]
    parts += [
        f"{one_line(name)} buffers" for name in values_of(items, "buffers") if name != "default"
    ]
    makers = values_of(items, "implementation")
    if others := " and ".join(one_line(name) for name in makers if name != NATIVE):
        also = "also " * (NATIVE in makers)
        parts.append(f"{also}by {others} of torch's symmetric memory")
    walks = values_of(items, "buffer_reuse") == ["rotate"]
    parts += ["buffers that walk through the largest"] if walks else []
    parts += ["REHEARSAL on one GPU"] if values_of(items, "rehearsal") == [True] else []
    parts += ["async_op and wait"] if values_of(items, "asynchronous") == [True] else []
    calls = [n for n in values_of(items, "coalesce") if n > 1]
    parts += [f"{n} calls in one group, timed together" for n in calls]
    splits = values_of(items, "splits")
    parts += [f"splits {' and '.join(map(one_line, splits))}"] if splits else []
    return ", ".join(filter(None, parts))


def program_text(run: Run) -> str:
    """``torchcoll 0.1.0``: which version measured."""
    if run.source:
        names = [run.source.get(name) for name in ("tool", "version", "format")]
        return f"imported from {' '.join(one_line(name) for name in names if name)}"
    version = run.header.get("torchcoll") or run.environment.get("torchcoll") or ""
    return f"torchcoll {one_line(version)}".rstrip()


def _word(name: str, value: Any) -> str:
    if name == "in_place":
        return "in place" if value else "out of place"
    return f"root {value}" if name == "root" else one_line(value)


def _backends(run: Run, items: Sequence[Any]) -> str:
    libraries = run.environment.get("libraries") or {}
    texts = []
    for name in values_of(items, "backend"):
        name, library = one_line(name), one_line(libraries.get(name) or name)
        text = library if library.startswith(name) else f"{name} ({library})"
        texts.append(f"{text} (nothing is communicated)" if not communicates(name) else text)
    return f"backend{'s' if len(texts) > 1 else ''}: {', '.join(texts) or 'unknown'}"


def _devices(members: Sequence[dict[str, Any]]) -> str:
    """``cpu`` or ``cuda:0-7``: the devices of these ranks."""
    indexes_by_kind: dict[str, list[int]] = {}
    for member in members:
        kind, _, index = str(member.get("device") or "").partition(":")
        is_index = index.isascii() and index.isdigit() and len(index) < 6
        indexes_by_kind.setdefault(one_line(kind), []).extend([int(index)] if is_index else [])
    return ", ".join(
        f"{k}:{format_ranges(set(v))}" if v else k for k, v in indexes_by_kind.items() if k
    )


def ranks_text(run: Run) -> str:
    """How many ranks, on which hosts, with which devices."""
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


def _rules(spec: dict[str, Any], items: Sequence[Any]) -> str:
    """The stopping rule, verification, and what is not as usual."""
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
    if values_of(items, "buffer_reuse") == ["same"]:  # warmer in the caches than nccl-tests' own
        parts.append("the same buffers in every call")
    if spec.get("order", "size") != "size":
        parts.append(f"order {one_line(spec['order'])} (seed {spec.get('seed', 0)})")
    if spec.get("fresh_group"):
        parts.append("a new communicator for every case")
    return "; ".join(parts)


def _labels(run: Run) -> str:
    labels = run.labels or {}
    pairs = ", ".join(f"{one_line(k)}={one_line(v)}" for k, v in labels.items())
    return f"labels: {pairs}" if pairs else ""


def _phase(run: Run, name: str, how: str = "max") -> float | None:
    """A set-up phase, as the slowest rank saw it if not read otherwise."""
    return next(iter(over_ranks([[ns] for ns in run.phases.get(name) or []], how)), None)


def _start_up(run: Run, items: Sequence[Any]) -> str:
    backends = values_of(items, "backend")
    alone = run.ranks == 1 or (backends and not any(map(communicates, backends)))
    when = None if alone else run.header.get("connects")
    names = (
        *(("import torch", "import_torch"), ("rendezvous", "rendezvous"), ("device", "device")),
        *(("init", "init_process_group"), ("connect", "communicator")),
    )
    parts = [
        f"{text} {time_text(ns, 3)}" for text, key in names if (ns := _phase(run, key)) is not None
    ]
    if when == "init_process_group":
        parts = [f"{w} including connecting" if w.startswith("init ") else w for w in parts]
    elif when == "first call":
        parts.append("connects in the first call")
    elif when == "before":
        parts.append("the process group was there")
    of_others = list((run.header.get("connects_of") or {}).items())[1:]
    parts += [
        f"{one_line(b)} connects in its first call" for b, w in of_others if w == "first call"
    ]
    return f"start up: {', '.join(parts)}" if run.phases else ""


def first_lines(run: Run, how: str = "max", total: bool = True, verbose: bool = False) -> list[str]:
    """What the first call of the run cost, on each of its backends; known after a case.

    total: with the time to first result, which the verdict tells too. verbose: what measuring costs
    too.
    """
    lines = []
    first_run, results = next(
        ((r, results_of_run) for r, results_of_run in run.all_runs() if results_of_run), (run, [])
    )
    backends = backends_of(results)
    for backend in backends:
        if firsts := first_results(results, backend):
            name = f"{one_line(backend)}: " if len(backends) > 1 else ""
            lines.append(name + _first_line(first_run, firsts, how, total))
    if not verbose:
        return lines
    costs = (("timed loop", "cost_timed_loop"), ("barrier", "cost_barrier"))
    readings = [
        f"{text} {time_text(ns, 3)}" for text, key in costs if (ns := _phase(run, key)) is not None
    ]
    parts = [f"a call: {', '.join(readings)}"] if readings else []
    if shares := _shares(results):
        parts.append(f"of the time of all cases: {shares}")
    if parts:
        lines.append(f"cost of measuring, {'; '.join(parts)}")
    return lines


def _shares(results: Sequence[CaseResult]) -> str:
    """What of the wall time of the cases went to measuring, as rank 0 saw it; '' is unknown."""
    # Sub-groups run at the same time: they are one case, with one start.
    spent = list({r.start_ns: r.spent_ns for r in results if r.batches}.values())
    total = sum(spent_in_case.get("case", 0) for spent_in_case in spent)
    names = (("ramp-up calls", "ramp_up"), ("barriers", "barriers"), ("gathers", "gathers"))
    if not total or not all(key in spent_in_case for spent_in_case in spent for _, key in names):
        return ""
    return ", ".join(
        f"{text} {100 * sum(spent_in_case[key] for spent_in_case in spent) / total:.1f} %"
        for text, key in names
    )


def _first_line(run: Run, firsts: Sequence[CaseResult], how: str, total: bool) -> str:
    first, connect = first_call_ns(firsts, how), connect_ns(run, firsts, how)
    # With --fresh-group the case made a communicator of its own.
    connected = any(result.connect_ns for result in firsts) and connect
    parts = [f"connect {time_text(connect, 3)}"] if connected else []
    parts.append(f"first call {time_text(first, 3)}")
    calls = max(len(row) for result in firsts for row in result.cold_ns)
    steady_after = [result.steady_after for result in firsts if result.steady_after is not None]
    if len(steady_after) == len(firsts):
        parts.append(f"steady after {counted(max(steady_after), 'call')}")
    elif any(result.status in ("ok", "wrong") for result in firsts):
        parts.append(f"not steady after {counted(calls, 'call')}")
    if total and connects(run, firsts[0].case.backend) != "unknown":
        parts.append(f"time to first result {time_text(first + connect, 3)}")
    return ", ".join(parts)
