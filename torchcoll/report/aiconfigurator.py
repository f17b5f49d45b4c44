"""The table of collectives of NVIDIA's aiconfigurator: ``nccl_perf`` or ``oneccl_perf``.

Its reader needs the columns ``op_name``, ``nccl_dtype``, ``num_gpus``, ``message_size`` and
``latency`` and knows a point by all but the last; of several rows for a point it keeps the first
(``load_nccl_parquet`` in aic-core/rust/aiconfigurator-core/src/perf_database/communication.rs of
github.com/ai-dynamo/aiconfigurator at 095f58a5). The other columns are those that its collector
writes (``log_perf`` in collector/helper.py). Units are those of collector/network/collect_nccl.py:

- ``message_size``: elements, the size S of nccl-tests divided by the size of an element.
- ``latency``: ms, the out-of-place time of nccl-tests.
- ``nccl_dtype``: ``half`` is any type of 2 bytes (the collector measures oneCCL in bfloat16),
  ``int8`` and ``fp8`` have 1 byte. There is no type of 4 bytes.

``op_name`` is ``all_reduce``, ``all_gather``, ``reduce_scatter`` or ``alltoall``. NCCL and oneCCL
have a file each.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from torchcoll.core.case import APIS, NATIVE
from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UnavailableError, UsageError
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.summary import Row, median
from torchcoll.core.units import counted, format_size
from torchcoll.report.formats import records_csv

COLUMNS = (
    "framework",
    "version",
    "device",
    "op_name",
    "kernel_source",
    "nccl_dtype",
    "num_gpus",
    "message_size",
    "latency",
)
_OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
}
_DTYPES = {
    "float16": "half",
    "bfloat16": "half",
    "int8": "int8",
    "uint8": "int8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}
_LIBRARIES = {"nccl": "NCCL", "xccl": "oneCCL", "ccl": "oneCCL"}
_PARQUET = ".parquet"


def perf_rows(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the rows of the table, and notes on what is not in it.

    A point that several runs measured has the median over the runs. If a run has it both in place
    and out of place, the latter counts, as in aiconfigurator's own table.

    Raises UsageError if no case fits, for cases of several devices or libraries, for as many ranks
    on different numbers of hosts, and for other cases that the table cannot tell apart.
    """
    skipped: Counter[str] = Counter()
    points: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    devices: dict[str, None] = {}
    hosts: dict[int, dict[int, None]] = defaultdict(dict)  # {ranks: numbers of hosts}
    for run in runs:
        for row, result in zip(summarise_run(run), run.results, strict=True):
            if reason := _unfit(row, loaded=bool(result.concurrent)):
                skipped[reason] += 1
                continue
            elements = row.size_bytes // find_dtype(row.dtype or "").itemsize
            key = (
                _LIBRARIES[row.backend],
                _OPS[row.collective],
                _DTYPES[row.dtype or ""],
                row.ranks,
                elements,
            )
            points[key].append(row)
            devices |= dict.fromkeys(str(m.get("device_name") or "") for m in run.members)
            if number := hosts_of(run):
                hosts[row.ranks][number] = None
    libraries = {key[0] for key in points}
    reasons = [f"{counted(count, 'case')} not exported: {why}" for why, count in skipped.items()]
    if not points:
        expected = "all_reduce, all_gather, reduce_scatter or all_to_all in 2 or 1 bytes"
        raise UsageError("aiconfigurator", "; ".join(reasons) or "no case", expected)
    if len(libraries) > 1:
        raise UsageError("aiconfigurator", "cases of NCCL and oneCCL", "one of them in a file")
    every = [row for rows in points.values() for row in rows]
    _check_system([*devices], "device")
    _check_system([*dict.fromkeys(row.library or "" for row in every)], "library")
    for ranks, numbers in hosts.items():
        _check_system([counted(number, "host") for number in numbers], f"{ranks} ranks on")
    table = []
    for key, rows in sorted(points.items()):
        library, op, dtype, ranks, elements = key
        chosen = [row for row in rows if not row.in_place] or rows
        _check_alike(f"{op} {dtype} of {ranks} ranks", chosen)
        version = (chosen[0].library or "").rpartition(" ")[2]
        # Their order is that of COLUMNS.
        values = (
            "torchcoll",
            version,
            next(iter(devices), ""),
            op,
            library,
            dtype,
            ranks,
            elements,
        )
        latency = round(median([row.median_ns or 0 for row in chosen]) / 1e6, 9)
        table.append(dict(zip(COLUMNS, (*values, latency), strict=True)))
    return table, [*reasons, *_mode_notes(every)]


def _check_system(values: Sequence[str], what: str) -> None:
    """Raises UsageError for several values: a table is of one system, and its reader takes no
    notice of the columns that name it.
    """
    named = [value for value in values if value]
    if len(named) > 1:
        raise UsageError(
            "aiconfigurator",
            f"{what} {' and '.join(named)}",
            "one system in a file",
            "Export their runs one by one.",
        )


def _unfit(row: Row, loaded: bool) -> str:
    """Returns why the table has no place for a case; '' if it does."""
    if not row.is_right or row.median_ns is None:
        return row.outcome if not row.is_right else "no time"
    if row.backend not in _LIBRARIES:
        return f"{row.backend} is neither NCCL nor oneCCL"
    if row.collective not in _OPS:
        return row.collective
    if row.dtype not in _DTYPES:
        return f"{row.dtype} (measure with -d bfloat16)"
    if row.implementation != NATIVE:
        by = (
            "through torch's API" if row.implementation in APIS else "in place of the library's own"
        )
        return f"{row.implementation} {by}"
    if row.misalign_bytes or row.buffer_reuse == "flush":
        return "with misaligned buffers" if row.misalign_bytes else "with flushed caches"
    if row.group:
        return "of a sub-group that ran next to others (run as many ranks alone)"
    if loaded or row.coalesce > 1 or row.ranks < 2:
        return "with concurrent work" if loaded else "several calls at once, or one rank"
    return ""


def _check_alike(point: str, rows: Sequence[Row]) -> None:
    """Raises UsageError if the cases of a point differ in what their runs set."""
    for name in (
        *("mode", "clock", "dtype", "buffers", "buffer_reuse", "misalign_bytes", "asynchronous"),
        *("communicator", "algorithm"),
    ):
        values = list(dict.fromkeys(str(getattr(row, name)) for row in rows))
        if len(values) > 1:
            size = format_size(rows[0].size_bytes)
            raise UsageError(
                "aiconfigurator",
                f"{name} {' and '.join(values)} for {point} at {size}",
                "one case for each point of the table",
                "Export their runs one by one.",
            )


def _mode_notes(rows: Sequence[Row]) -> list[str]:
    modes = dict.fromkeys(row.mode for row in rows if row.mode not in ("back-to-back", "graph"))
    if not modes:
        return []
    return [
        f"times of mode {', '.join(modes)}: aiconfigurator's own are of calls back to back "
        "(--mode back-to-back)"
    ]


def perf_file(rows: Sequence[dict[str, Any]], name: str) -> bytes:
    """Returns the file: Parquet if its name ends so, otherwise the CSV of the collector.

    Raises UnavailableError without a library for Parquet.
    """
    if not name.endswith(_PARQUET):
        return records_csv(rows, COLUMNS).encode()
    import pandas

    file = io.BytesIO()
    try:
        pandas.DataFrame(rows, columns=list(COLUMNS)).to_parquet(file, index=False)
    except ImportError:
        raise UnavailableError(
            "parquet", "no library for it", "pyarrow", "Install torchcoll[parquet]."
        ) from None
    return file.getvalue()
