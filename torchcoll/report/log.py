"""Logs of communication libraries as tables, markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.units import format_bandwidth, format_size, format_time
from torchcoll.report.dump import dump_grids
from torchcoll.report.found import print_forms
from torchcoll.report.grid import Grid, Head
from torchcoll.report.output import one_line

if TYPE_CHECKING:
    from torchcoll.analysis.dump import Dump
    from torchcoll.analysis.log import JobLog

SCHEMA = "torchcoll-log/1"
_MOST_RANKS = 64  # of a ring are shown; json has all
_MOST_WARNINGS = 20
_NOTES = {
    "tuning": "what NCCL's cost model expects; a combination that is not here is not to be used",
    "transports": "a line of the log each: a connection between hosts is told at both of its ends",
    "graphs": "what the search of the topology found; NCCL may make several channels of one",
}
_OF_COMMUNICATORS = {
    "init_s": "init: 'Init timings' of the slowest rank that the log has",
    "path_gbps": "best path: maxBw, from a GPU to another (of several nodes: to the network); all "
    "links: totalBw, of one GPU; one direction, as NCCL reckons; 5000 is one GPU alone",
}
_BASIS = "sizes of AllGather and ReduceScatter are {0} here, as this version logs them"

Row = dict[str, Any]
Cell = Callable[[Row], str]


def show_logs(
    jobs: Sequence[JobLog],
    files: Sequence[Row],
    format: str = "table",
    file: TextIO | None = None,
    dumps: Sequence[Dump] = (),
) -> None:
    """Print jobs, and of each of ``files`` (analysis/log.py, file_rows) how much was understood.

    Before them ``dumps``, topologies and graphs in XML.

    Raises UsageError for an unknown format.
    """
    shown = len(jobs) + len(dumps)
    titled = [(one_line(d.file) if shown > 1 else "", dump_grids(d)) for d in dumps]
    titled += [(_title(n, job, shown), _grids(job)) for n, job in enumerate(jobs)]
    lines = [text for row in files for text in _file_lines(row)]
    rest = Grid([], [], below=lines)
    if titled:
        titled[-1][1].append(rest)
    else:
        titled = [("", [rest])]
    rows = _rows(jobs, dumps)
    names = list(dict.fromkeys(("job", "table", *(name for row in rows for name in row))))
    print_forms(titled, rows, _document(jobs, files, dumps), format, file, names)


def _document(
    jobs: Sequence[JobLog], files: Sequence[Row], dumps: Sequence[Dump]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "dumps": [{"kind": d.kind, "file": d.file, **d.facts, **d.tables} for d in dumps],
        "jobs": [
            {
                **job.facts,
                "files": job.files,
                "variables": job.variables,
                **job.tables,
                "warnings": [{"text": t, "count": n} for t, n in job.warnings.most_common()],
            }
            for job in jobs
        ],
        "files": list(files),
    }


def _rows(jobs: Sequence[JobLog], dumps: Sequence[Dump]) -> list[Row]:
    """All tables, for csv; ``table`` names the one that a row is of."""
    rows: list[Row] = [
        {"file": dump.file, "table": name, **row}
        for dump in dumps
        for name, own in dump.tables.items()
        for row in own
    ]
    rows += [
        {"job": number, "table": name, **row}
        for number, job in enumerate(jobs)
        for name, own in job.tables.items()
        for row in own
    ]
    return rows


# -- tables for people -----------------------------------------------------------------------


def _text(key: str) -> Cell:
    return lambda row: "-" if row[key] is None else one_line(row[key])


def _seconds(key: str) -> Cell:
    return lambda row: format_time(row[key] and row[key] * 1e9, 3)


def _ranks(row: Row) -> str:
    seen, ranks = row["ranks_seen"], row["ranks"]
    return str(ranks) if seen == ranks else f"{seen} of {ranks}"


def _largest(row: Row) -> str:
    if row["largest_part"] is None:
        return "-"
    return f"{row['largest_part']} {format_time(row['largest_part_s'] * 1e9, 3).strip()}"


def _order(row: Row) -> str:
    order = row["order"]
    text = " ".join(map(str, order[:_MOST_RANKS]))
    return text if row["whole"] and len(order) <= _MOST_RANKS else f"{text} ..."


def _sizes(row: Row) -> str:
    low, high = row["low"], row["high"]
    if row.get("unit") == "elements":
        texts = [str(low), str(high)]
    else:
        texts = [format_size(low), "max" if high is None else format_size(high)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"


def _channels(row: Row) -> str:
    channels = row["channels"]
    if not channels:
        return "-"
    low, high = channels[0], channels[-1]
    return str(low) if low == high else f"{low} to {high}"


def _labels(row: Row) -> str:
    return one_line(", ".join(row["choice"]))


_COLUMNS: dict[str, list[tuple[Head, Cell]]] = {
    "communicators": [
        (Head("communicator", repeat=True), _text("communicator")),
        (Head("made by", left=True, drop=4), _text("made_by")),
        (Head("ranks"), _ranks),
        (Head("nodes"), _text("nodes")),
        (Head("init", "slowest"), _seconds("init_s")),
        (Head("on", "rank", drop=2), _text("slowest_rank")),
        (Head("largest", "part of it", left=True), _largest),
        (Head("bootstrap", drop=3), _seconds("bootstrap_s")),
        (Head("channels"), _text("coll_channels")),
        (Head("nvls", "channels", drop=5), _text("nvls_channels")),
        (Head("p2p", "channels", drop=5), _text("p2p_channels")),
        (Head("best path", "GB/s", drop=5), lambda row: format_bandwidth(row["path_gbps"])),
        (Head("all links", "GB/s", drop=5), lambda row: format_bandwidth(row["gpu_gbps"])),
        (Head("state", left=True), _text("state")),
    ],
    "rings": [
        (Head("communicator"), _text("communicator")),
        (Head("channels", left=True), _text("channels")),
        (Head("ring", left=True), _order),
    ],
    "trees": [
        (Head("communicator"), _text("communicator")),
        (Head("channels", left=True), _text("channels")),
        (Head("root of", "tree"), _text("root")),
        (Head("depth"), _text("depth")),
    ],
    "graphs": [
        (Head("communicator"), _text("communicator")),
        (Head("graph", left=True), _text("pattern")),
        (Head("channels"), _text("channels")),
        (Head("in a node", "GB/s each"), lambda row: format_bandwidth(row["intra_gbps"])),
        (Head("between", "GB/s each"), lambda row: format_bandwidth(row["inter_gbps"])),
        (Head("types", left=True), lambda row: f"{row['intra_type']}/{row['inter_type']}"),
    ],
    "transports": [
        (Head("transport", left=True), _text("kind")),
        (Head("connections"), _text("connections")),
        (Head("pairs of", "ranks"), _text("pairs")),
    ],
    "tuning": [
        (Head("communicator", drop=1), _text("communicator")),
        (Head("function", left=True), _text("function")),
        (Head("algorithm", left=True), _text("algorithm")),
        (Head("protocol", left=True), _text("protocol")),
        (Head("latency"), lambda row: format_time(row["latency_us"] * 1e3)),
        (Head("algbw", "GB/s"), lambda row: format_bandwidth(row["algbw_gbps"])),
    ],
    "selection": [
        (Head("collective", left=True), _text("collective")),
        (Head("table", left=True), _text("table")),
        (Head("sizes", left=True), _sizes),
        (Head("algorithm", left=True), _text("algorithm")),
    ],
    "choices": [
        (Head("chosen for", left=True), lambda row: one_line(row["function"] or "(not named)")),
        (Head("sizes", left=True), _sizes),
        (Head("algorithm/protocol", left=True), _labels),
        (Head("channels"), _channels),
        (Head("calls"), _text("calls")),
    ],
}


def _grids(job: JobLog) -> list[Grid]:
    grids = [Grid([], [], above=_about(job))]
    for name, rows in job.tables.items():
        columns = [c for c in _COLUMNS[name] if len(rows) > 0 and not _empty(c[1], rows)]
        cells = [[cell(row) for _, cell in columns] for row in rows]
        grids.append(Grid([head for head, _ in columns], cells, below=_notes(name, rows)))
    texts = [f"{one_line(t)}{f' ({n} times)' if n > 1 else ''}" for t, n in _worst(job)]
    more = len(job.warnings) - len(texts)
    if texts:
        lines = [*(f"warning: {text}" for text in texts)]
        grids.append(Grid([], [], below=[*lines, *([f"{more} more warnings"] if more else [])]))
    return grids


def _worst(job: JobLog) -> list[tuple[str, int]]:
    return job.warnings.most_common(_MOST_WARNINGS)


def _empty(cell: Cell, rows: Sequence[Row]) -> bool:
    return {cell(row).strip() for row in rows} <= {"-", ""}


def _notes(name: str, rows: Sequence[Row]) -> list[str]:
    if name == "choices":
        bases = dict.fromkeys(row["size_basis"] for row in rows if _counts_by_rank(row))
        notes = [_BASIS.format(" or ".join(bases))] if any(bases) else []
        if any(row["unit"] == "elements" for row in rows):
            notes.append("sizes are counts of elements, as oneCCL logs them")
        return notes
    if name == "communicators":
        told = {key for row in rows for key, value in row.items() if value is not None}
        return [text for key, text in _OF_COMMUNICATORS.items() if key in told]
    return [_NOTES[name]] if name in _NOTES else []


def _counts_by_rank(row: Row) -> bool:
    return row["function"] in ("AllGather", "ReduceScatter", None)


def _about(job: JobLog) -> list[str]:
    facts = dict(job.facts)
    hosts = facts.pop("hosts", [])
    first = f"{facts.pop('library')} {facts.pop('version', 'of unknown version')}"
    if git := facts.pop("git", ""):
        first += f" ({git})"
    processes, threads = facts.pop("processes", None), facts.pop("threads", None)
    words = [_plural(processes, "process", "processes")] if processes else []
    words += [_plural(threads, "thread", "threads")] if threads else []
    if hosts:
        names = hosts if len(hosts) <= 4 else [hosts[0], "...", hosts[-1]]
        words[0] += f" on {_plural(len(hosts), 'host', 'hosts')} ({' '.join(names)})"
    if ranks := facts.pop("ranks", None):
        words.append(_plural(ranks, "rank", "ranks"))
    lines = [f"{first}: {', '.join(words)}"]
    if facts:
        lines.append("; ".join(f"{name.replace('_', ' ')} {v}" for name, v in facts.items()))
    if job.variables:
        pairs = (f"{name}={value}" for name, value in job.variables.items())
        what = "not the default" if first.startswith("oneCCL") else "set by the environment"
        lines.append(f"{what}: {', '.join(pairs)}")
    return [one_line(line) for line in lines]


def _plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _title(number: int, job: JobLog, shown: int) -> str:
    if shown < 2:
        return ""
    names = job.files if len(job.files) <= 3 else [job.files[0], "...", job.files[-1]]
    return one_line(f"job {number}: {' '.join(names)}")


_WORDS = {
    "understood": "understood",
    "known": "known and not needed",
    "cut": "cut or spliced",
    "unknown": "unknown",
    "other": "of other programs",
}


def _file_lines(row: Row) -> list[str]:
    words = [f"{row[kind]} {text}" for kind, text in _WORDS.items() if row[kind]]
    name = one_line(row["file"])
    lines = [f"{name}: {row['lines']} lines: {', '.join(words)}"]
    return lines + [f"{name}:{one['line']}: {one_line(one['text'])}" for one in row["examples"]]
