"""Reads nccl-tests' JSON (-J), versions 1 to 3, and files of killed runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.summary import slowest
from torchcoll.core.units import parse_utc
from torchcoll.core.variables import kept_variables
from torchcoll.reading import base, nccl_tests
from torchcoll.reading.large_json import decode, document

NAME = "nccl-tests-json"
LONG_LINES = True


_MOST_GPUS_OF_PROCESS = 1024  # a damaged file may claim more than fit into memory
_MOST_OTHER_SIZES = 100  # members named ``size`` that are not rows


def sniff(head: Sequence[str]) -> bool:
    text = "".join(head)[:4096].lstrip()
    return text.startswith("{") and (
        '"nccl_version"' in "".join(head)
        or ('"args"' in text and '"version"' in text and "coll_perf" not in text)
    )


def read(lines: Iterable[base.Line], options: base.ImportOptions) -> base.Imported:
    imported = base.Imported()
    text = document(lines)
    # Each row has a ``size``. A file with too many is refused before decoding it, which takes
    # seconds.
    imported.check_rows(text.count('"size"') - _MOST_OTHER_SIZES)
    data, cut = decode(text)
    if cut:
        imported.warn("the file is cut off: what is whole was read")
    if not isinstance(data, Mapping):
        imported.refuse(0, "no JSON object")
        return imported
    rows = _list(data.get("results"))
    if not rows:
        imported.warn("the file holds no results")
    _read(data, rows, cut, options, imported)
    return imported


def _read(
    data: Mapping[str, Any],
    rows: Sequence[Any],
    cut: bool,
    options: base.ImportOptions,
    imported: base.Imported,
) -> None:
    config = data.get("config")
    config = config if isinstance(config, Mapping) else {}
    args = [str(arg) for arg in _list(data.get("args"))]
    program = os.path.basename(args[0]) if args else ""
    recorded = base.collective_named(program.removesuffix("_mpi"))
    name = imported.choose("collective", options.collective, recorded)
    if name is None and (name := base.collective_in(options.file)):
        imported.warn(f"collective {name}: taken from the name of the file")
    if name is None:
        for number, _ in enumerate(rows, 1):
            imported.refuse(number, "the file does not name the collective: give --collective")
        return
    devices = [device for device in _list(config.get("devices")) if isinstance(device, Mapping)]
    # Only the first GPU of each process is listed.
    each = (base.whole(config.get("nthreads")) or 1) * (base.whole(config.get("ngpus")) or 1)
    run = nccl_tests.NcclTestsRun(
        name, ranks=imported.choose("ranks", options.ranks, len(devices) * each) or 0
    )
    run.mode = "graph" if base.whole(config.get("graph")) else "back-to-back"
    set_variables = nccl_tests.apply_options(run, args)
    cold = base.whole(config.get("warmup_iters")) == 0
    run.calls = base.whole(config.get("iterations"))
    parsed = []
    for number, row in enumerate(rows, 1):
        parsed_row = _row(row, number, run, options, cold)
        if isinstance(parsed_row, str):
            imported.refuse(number, f"result {number}: {parsed_row}")
        else:
            parsed.append(parsed_row)
    processes = max((len(b.samples) for row in parsed for b in row.blocks), default=0)
    if processes > 1 and devices and processes > len(devices) and not options.ranks:
        imported.warn(f"the file lists {len(devices)} devices, but times of {processes} processes")
        run.ranks = processes * each
    if not run.ranks:
        run.ranks, source = nccl_tests.infer_ranks(parsed, name)
        if run.ranks:
            imported.warn(f"{run.ranks} ranks: recovered from {source}")
    if options.ranks:
        run.contradicted_by = nccl_tests.check_ranks(parsed, name, options.ranks, imported)
    processes_known = (
        bool(devices) and each <= _MOST_GPUS_OF_PROCESS and len(devices) * each == run.ranks
    )
    _keep_slowest(parsed, run.ranks, imported)
    if any(block.cold for row in parsed for block in row.blocks):
        imported.warn(
            "-w 0: iteration 0 is shown as the first call, by CUDA events. nccl-tests makes one "
            "call of each size and placement before it, without timing it: that call connects"
        )
    failed = None
    for check_name in ("average_bus_bandwidth", "out_of_bounds"):
        check = data.get(check_name)
        if isinstance(check, Mapping) and str(check.get("okay")).lower() == "false":
            wrong = base.whole(check.get("count")) or 0
            text = "" if wrong else f"{check_name}: {check.get('bandwidth')}, okay: false"
            failed = nccl_tests.failed_end(text, wrong, parsed)
    results = nccl_tests.make_results(parsed, run, imported)
    if text := nccl_tests.fraction(args):
        imported.warn(text)
    if not results:
        return
    version = nccl_tests.version_text(data.get("nccl_version") or "unknown")
    environment: dict[str, Any] = {"libraries": {"nccl": f"NCCL {version}"}}
    texts = [
        e.replace("\\/", "/") for e in _list(data.get("env")) if isinstance(e, str) and "=" in e
    ]
    named = dict(e.split("=", 1) for e in texts)
    if variables := kept_variables(named) | set_variables:
        environment["variables"] = variables
    end = failed or {"status": "complete"}
    if not failed and (cut or not data.get("end_time")):
        end = {"status": base.TRUNCATED, "reason": "the run did not end: no end_time"}
    errors = [error for error in _list(data.get("errors")) if isinstance(error, str) and error]
    imported.runs.append(
        base.make_run(
            results,
            options,
            {
                "tool": "nccl-tests",
                "version": None,
                "format": f"JSON {data.get('version', '')}",
                "environment": "whole" if texts else None,
                "ranks_of_busbw": run.contradicted_by,
            },
            ranks=run.ranks,
            environment=environment,
            start_utc=_start(data),
            members=_members(devices, each) if processes_known else (),
            end=end,
            events=[{"kind": "error", "message": e} for e in errors],
        )
    )


def _start(data: Mapping[str, Any]) -> str | None:
    """When the run began, as nccl-tests records it: the local time of its host, without a zone."""
    try:
        return parse_utc(str(data.get("start_time"))).strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _row(
    row: object, line: int, run: nccl_tests.NcclTestsRun, options: base.ImportOptions, cold: bool
) -> nccl_tests.NcclTestsRow | str:
    if not isinstance(row, Mapping):
        return "no object"
    size, count = base.whole(row.get("size")), base.whole(row.get("count"))
    if size is None or count is None:
        return "no whole size and count"
    blocks = []
    for key, in_place in (("out_of_place", False), ("in_place", True)):
        figures = row.get(key)
        if not isinstance(figures, Mapping):
            continue
        if "cpu_time" in figures:
            run.cpu_time = True
        time = base.number(figures.get("time", figures.get("cpu_time")))
        if not time:
            return f"{key} has no time"
        block = nccl_tests.Block(
            in_place,
            time * 1e3,
            base.number(figures.get("alg_bw")),
            base.number(figures.get("bus_bw")),
            time_step_ns=5e-4,
            bw_step=5e-7,
            wrong=base.whole(figures.get("nwrong")),
        )
        _per_iteration(block, row.get(f"{key}_per_iter"), cold)
        blocks.append(block)
    if not blocks:
        return "neither placement has figures"
    op = str(row.get("redop") or "").strip()
    root = str(row.get("root") or "").strip()
    entry = COLLECTIVES[run.collective or ""]
    # Root -1 means all ranks one after the other; it is kept as 0.
    return nccl_tests.NcclTestsRow(
        line,
        size,
        count,
        options.dtype or base.dtype_named(str(row.get("type") or "")) or "",
        op if op and op != "none" else None,
        (0 if root == "-1" else base.whole(root)) if entry.has_root else None,
        blocks,
    )


def _per_iteration(block: nccl_tests.Block, data: object, cold: bool) -> None:
    """Read the times of each iteration (-I 1). cold: iteration 0 is a first call (-w 0)."""
    if not isinstance(data, Mapping):
        return
    block.min_ns = base.ns_of_us(data.get("min_us"))
    block.max_ns = base.ns_of_us(data.get("max_us"))
    block.p99_ns = base.ns_of_us(data.get("p99_us"))
    rows = _list(data.get("per_process_max_times_us")) or [data.get("times_us")]
    samples: list[list[int]] = []
    for times in rows:
        values = [base.number(time) for time in _list(times)]
        if not values or None in values:
            return
        samples.append([round(v * 1000) for v in values if v is not None])
    if cold and all(len(times) > 1 for times in samples):
        block.cold = [times[:1] for times in samples]
        samples = [times[1:] for times in samples]
    block.samples = samples


def _keep_slowest(
    rows: Sequence[nccl_tests.NcclTestsRow], ranks: int, imported: base.Imported
) -> None:
    """Keep the slowest process if samples are not of ranks: a stall counts once."""
    blocks = [b for row in rows for b in row.blocks if b.samples and len(b.samples) != ranks]
    if not blocks or not ranks:
        return
    imported.warn(
        f"times of each iteration are of {max(len(b.samples) for b in blocks)} processes, not of "
        f"{ranks} ranks: kept as those of the process that took longest"
    )
    for block in blocks:
        block.samples = [slowest(block.samples)]
        block.cold = [slowest(block.cold)] if block.cold else []


def _members(devices: Sequence[Mapping[str, Any]], each: int) -> list[dict[str, Any]]:
    """The ranks. The file lists the first GPU of each process; the others follow it (util.cu)."""
    return [
        {
            "rank": process * each + index,
            "host": str(d.get("hostname") or "?"),
            "pid": base.whole(d.get("pid")) or 0,
            "device": f"cuda:{(base.whole(d.get('device')) or 0) + index}",
            "device_name": str(d.get("device_info") or ""),
        }
        for process, d in enumerate(devices)
        for index in range(each)
    ]
