"""Output of ``torchcoll log``: logs of communication libraries and NCCL's topologies."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core import units
from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_bandwidth, plural, shorten
from torchcoll.libraries.job_logs import job_answer, logs_answer
from torchcoll.report.formats import print_forms
from torchcoll.report.grid import Grid, Head, make_grid

if TYPE_CHECKING:
    from torchcoll.libraries.dumps import Dump
    from torchcoll.libraries.job_logs import JobLog
    from torchcoll.libraries.limits_show import LimitsView
SCHEMA = "torchcoll-log/1"
_MOST_RANKS = 64  # of a ring in a table; json has all
_MOST_WARNINGS = 20
_NOTES = {
    "tuning": "what NCCL's cost model expects; combinations that are not listed cannot be used",
    "transports": "one for each line of the log: both ends log a connection between hosts",
}
_BASIS = "sizes of AllGather and ReduceScatter are {0} here, as this version logs them"

LogRow = dict[str, Any]
Cell = Callable[[LogRow], str]


def show_logs(
    jobs: Sequence[JobLog],
    files: Sequence[LogRow],
    format: str = "table",
    file: TextIO | None = None,
    dumps: Sequence[Dump] = (),
    limits: LimitsView | None = None,
) -> None:
    """Print topologies, jobs, and how many lines of each file were understood. Raises UsageError
    for an unknown format.
    """
    titled = titled_logs(jobs, files, dumps)
    rows = _rows(jobs, dumps)
    document = _document(jobs, files, dumps)
    if limits:
        titled += [*limits.titled, ("", [Grid([], [], answer=limits.answer)])]
        rows += [{"table": "limits", **row} for row in limits.rows]
        document["limits"] = {"rows": limits.rows}
    names = list(dict.fromkeys(("job", "table", *(name for row in rows for name in row))))
    print_forms(titled, rows, document, format, file, names)


def titled_logs(
    jobs: Sequence[JobLog], files: Sequence[LogRow], dumps: Sequence[Dump]
) -> list[tuple[str, list[Grid]]]:
    """(title, tables) for each dump and job."""
    shown = len(jobs) + len(dumps)
    titled = [(one_line(d.file) if shown > 1 else "", _topology_grids(d)) for d in dumps]
    names = _job_names(jobs) if shown > 1 else [""] * len(jobs)
    titled += [(name, _grids(job)) for name, job in zip(names, jobs, strict=True)]
    if len(jobs) > 1:  # a line for each: what it chose, and what was forced
        pairs = zip(_job_names(jobs, short=True), jobs, strict=True)
        lines = [f"{name}: {job_answer(job).headline}" for name, job in pairs]
        titled.insert(0, ("", [Grid([], [], above=lines)]))
    lines = [text for row in files for text in _file_lines(row)]
    footer = Grid([], [], below=lines, answer=logs_answer(jobs, dumps))
    if not titled:
        return [("", [footer])]
    titled[-1][1].append(footer)
    return titled


def _document(
    jobs: Sequence[JobLog], files: Sequence[LogRow], dumps: Sequence[Dump]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "dumps": [{"file": d.file, **d.facts, **d.tables} for d in dumps],
        "jobs": [
            {
                **job.facts,
                "files": job.files,
                "variables": job.variables,
                **job.tables,
                "crashes": job.crashes,
                "warnings": [{"text": t, "count": n} for t, n in job.warnings.most_common()],
            }
            for job in jobs
        ],
        "files": list(files),
    }


def _rows(jobs: Sequence[JobLog], dumps: Sequence[Dump]) -> list[LogRow]:
    """The rows of all tables, for csv. ``table`` names the table that a row belongs to."""
    sources: list[tuple[LogRow, Dump | JobLog]] = [({"file": dump.file}, dump) for dump in dumps]
    sources += [({"job": number}, job) for number, job in enumerate(jobs)]
    return [
        {**source, "table": name, **row}
        for source, content in sources
        for name, table_rows in content.tables.items()
        for row in table_rows
    ]


def field_cell(key: str) -> Callable[[LogRow], str]:
    """A cell with a field of a row; ``-`` if it has none."""
    return lambda row: "-" if row[key] is None else one_line(row[key])


def _seconds(key: str) -> Cell:
    return lambda row: units.format_time(row[key] and row[key] * 1e9, 3)


def _ranks(row: LogRow) -> str:
    seen, ranks = row["ranks_seen"], row["ranks"]
    return str(ranks) if seen == ranks else f"{seen} of {ranks}"


def _largest(row: LogRow) -> str:
    if row["largest_part"] is None:
        return "-"
    return f"{row['largest_part']} {units.format_ns(row['largest_part_s'] * 1e9, 3)}"


def _order(row: LogRow) -> str:
    order = row["order"]
    text = " ".join(map(str, order[:_MOST_RANKS]))
    return text if row["whole"] and len(order) <= _MOST_RANKS else f"{text} ..."


def _sizes(row: LogRow) -> str:
    write = str if row.get("unit") == "elements" else units.format_size
    texts = ("max" if size is None else write(size) for size in (row["low"], row["high"]))
    return " to ".join(dict.fromkeys(texts))


def _member_channels(row: LogRow) -> str:
    channels = row["channels"] or ["-"]
    return " to ".join(map(str, dict.fromkeys((channels[0], channels[-1]))))


_COLUMNS: dict[str, list[tuple[Head, Cell]]] = {
    "communicators": [
        (Head("communicator", repeat=True), field_cell("communicator")),
        (Head("made by", left=True, drop=4), field_cell("made_by")),
        (Head("ranks"), _ranks),
        (Head("nodes"), field_cell("nodes")),
        (Head("init", "slowest"), _seconds("init_s")),
        (Head("on", "rank", drop=2), field_cell("slowest_rank")),
        (Head("largest", "part of it", left=True), _largest),
        (Head("bootstrap", drop=3), _seconds("bootstrap_s")),
        (Head("channels"), field_cell("coll_channels")),
        (Head("nvls", "channels", drop=5), field_cell("nvls_channels")),
        (Head("p2p", "channels", drop=5), field_cell("p2p_channels")),
        (Head("state", left=True), field_cell("state")),
    ],
    "rings": [
        (Head("communicator"), field_cell("communicator")),
        (Head("channels", left=True), field_cell("channels")),
        (Head("ring", left=True), _order),
    ],
    "transports": [
        (Head("transport", left=True), field_cell("kind")),
        (Head("connections"), field_cell("connections")),
        (Head("pairs of", "ranks"), field_cell("pairs")),
    ],
    "tuning": [
        (Head("communicator", drop=1), field_cell("communicator")),
        (Head("function", left=True), field_cell("function")),
        (Head("algorithm", left=True), field_cell("algorithm")),
        (Head("protocol", left=True), field_cell("protocol")),
        (Head("latency"), lambda row: units.format_time(row["latency_us"] * 1e3)),
        (Head("algbw", "GB/s"), lambda row: units.format_bandwidth(row["algbw_gbps"])),
    ],
    "selection": [
        (Head("collective", left=True), field_cell("collective")),
        (Head("table", left=True), field_cell("table")),
        (Head("sizes", left=True), _sizes),
        (Head("algorithm", left=True), field_cell("algorithm")),
    ],
    "choices": [
        (Head("chosen for", left=True), lambda row: one_line(row["function"] or "(not named)")),
        (Head("sizes", left=True), _sizes),
        (Head("algorithm/protocol", left=True), lambda row: one_line(", ".join(row["choice"]))),
        (Head("channels"), _member_channels),
        (Head("calls"), field_cell("calls")),
    ],
}


def _grids(job: JobLog) -> list[Grid]:
    grids = [Grid([], [], above=_about_job(job))]
    single = len(job.tables.get("communicators", [])) < 2
    for name, rows in job.tables.items():
        columns = [
            (head, cell)
            for head, cell in _COLUMNS[name]
            if not {cell(row).strip() for row in rows} <= {"-", ""}
            and not (single and name != "communicators" and head.text == "communicator")
        ]
        cells = [[cell(row) for _, cell in columns] for row in rows]
        grids.append(Grid([head for head, _ in columns], cells, below=_notes(name, rows)))
    worst = job.warnings.most_common(_MOST_WARNINGS)
    below = [f"warning: {one_line(t)}{f' ({n} times)' if n > 1 else ''}" for t, n in worst]
    more = len(job.warnings) - len(below)
    below += [f"{more} more {plural(more, 'warning')}"] if more else []
    return [*grids, Grid([], [], below=below)] if below else grids


def _notes(name: str, rows: Sequence[LogRow]) -> list[str]:
    if name == "choices":
        by_rank = ("AllGather", "ReduceScatter", None)
        bases = dict.fromkeys(row["size_basis"] for row in rows if row["function"] in by_rank)
        notes = [_BASIS.format(" or ".join(bases))] if any(bases) else []
        if any(row["unit"] == "elements" for row in rows):
            notes.append("sizes are counts of elements, as oneCCL logs them")
        return notes
    if name == "communicators" and any(row["init_s"] is not None for row in rows):
        return ["init: 'Init timings' of the slowest rank that the log has"]
    return [_NOTES[name]] if name in _NOTES else []


def _about_job(job: JobLog) -> list[str]:
    facts = dict(job.facts)
    hosts, library = facts.pop("hosts", []), facts.pop("library")
    first = f"{library} {facts.pop('version', 'of unknown version')}"
    if git := facts.pop("git", ""):
        first += f" ({git})"
    processes, threads = facts.pop("processes", None), facts.pop("threads", None)
    counts = []
    if processes:
        counts.append(f"{processes} {plural(processes, 'process', 'processes')}")
    counts += [counted(threads, "thread")] if threads else []
    if hosts:
        names = " ".join(units.shorten_middle(hosts, 4, first=1))
        counts[0] += f" on {counted(len(hosts), 'host')} ({names})"
    if ranks := facts.pop("ranks", None):
        counts.append(counted(ranks, "rank"))
    lines = [f"{first}: {', '.join(counts)}"]
    if facts:
        lines.append("; ".join(f"{name.replace('_', ' ')} {v}" for name, v in facts.items()))
    if job.variables:
        pairs = (f"{name}={value}" for name, value in job.variables.items())
        what = "not the default" if library == "oneCCL" else "set by the environment"
        lines.append(f"{what}: {', '.join(pairs)}")
    return [one_line(line) for line in lines]


def _job_names(jobs: Sequence[JobLog], short: bool = False) -> list[str]:
    """The files of each job (short: without folders), and which job of a file it is."""
    paths = [[os.path.basename(f) if short else f for f in job.files] for job in jobs]
    files = [" ".join(units.shorten_middle(of_job, 3, first=1)) for of_job in paths]
    seen: Counter[str] = Counter()
    names = []
    for name in files:
        seen[name] += 1
        which = f", job {seen[name]} of {files.count(name)}" if files.count(name) > 1 else ""
        names.append(one_line(f"{name}{which}"))
    return names


_KIND_LABELS = {
    "understood": "understood",
    "known": "known and not needed",
    "cut": "cut or spliced",
    "unknown": "unknown",
    "other": "of other programs",
}


def _file_lines(row: LogRow) -> list[str]:
    counts = [f"{row[kind]} {text}" for kind, text in _KIND_LABELS.items() if row[kind]]
    name = one_line(row["file"])
    examples = [f"{name}:{each['line']}: {one_line(each['text'])}" for each in row["examples"]]
    return [f"{name}: {row['lines']} lines: {', '.join(counts)}", *examples]


_MOST = 64  # GPUs in a cell; json has all
_PATHS = {
    "PIX": "through one PCI switch",
    "PXB": "through several PCI switches",
    "PHB": "through the CPU",
    "SYS": "from CPU to CPU",
}
_ASSUMED_SPEED = "GB/s: one direction, as {0} reckons (topo.h, topo.cc), below the rate of the wire"


def _about_topology(dump: Dump) -> list[str]:
    facts = dump.facts
    counts = [counted(facts["gpu_count"], "GPU"), counted(facts["cpu_count"], "NUMA node")]
    counts[1] += f" ({one_line(facts['cpu'])})" if facts["cpu"] else ""
    counts.append(counted(facts["nic_count"], "network interface"))
    if facts["hosts"] > 1:
        counts.append(f"{facts['hosts']} hosts")
    lines = [f"{facts['library']} topology: {', '.join(counts)}"]
    if facts["cut"]:
        lines.append("the file is cut off: GPUs, links and interfaces may be missing")
    if facts["gpu_count"] and not facts["gpus_described"]:
        lines.append(
            "a file for NCCL_TOPO_FILE: the PCI devices, to which NCCL adds the links that it finds"
        )
    if facts["nics_gbps"]:
        lines.append(
            f"network: {format_bandwidth(facts['nics_gbps'])} GB/s, all interfaces of this host "
            "together, as far as their PCI links go, one direction: a ring over hosts has no more"
        )
    lines += [
        f"GPU {row['gpu']} has {counted(row['links'], 'link')}, most have {row['usual']}: a link "
        "that is down is not in the file"
        for row in facts["odd_links"]
    ]
    if fabrics := facts.get("fabrics"):
        names = " or ".join(fabrics)
        which = "; which GPU it is, the file does not tell" if len(fabrics) > 1 else ""
        lines.append(f"its links are those of --fabric {names}{which}")
    return [one_line(line) for line in lines]


def _topology_grids(dump: Dump) -> list[Grid]:
    tables, library = dump.tables, dump.facts["library"]
    several = dump.facts["hosts"] > 1
    host = [(Head("host", repeat=True), field_cell("host"))] if several else []
    gpus, nics, cpus = (tables.get(name, []) for name in ("gpus", "nics", "cpus"))
    paths = {row["path"] for row in nics}
    legend = ", ".join(f"{name} {text}" for name, text in _PATHS.items() if name in paths)
    reckoned = any(row["links_gbps"] or row["pci_gbps"] for row in gpus)
    return [
        Grid([], [], above=_about_topology(dump)),
        make_grid(
            [
                (Head("GPU", left=True, repeat=True), field_cell("gpu")),
                (Head("rank"), field_cell("rank")),
                *host,
                (Head("generation", left=True, drop=4), field_cell("generation")),
                (Head("gdr", left=True, drop=5), _gdr),
                (Head("NUMA", drop=3), field_cell("numa")),
                (Head("PCI", "link", left=True, drop=6), _pci),
                (Head("PCI", "GB/s", drop=1), _gbps("pci_gbps")),
                (Head("to CPU", "GB/s", drop=2), _to_cpu),
                (Head("links", left=True), field_cell("links_to")),
                (Head("each", "GB/s", drop=1), _gbps("link_gbps")),
                (Head("links", "GB/s"), _gbps("links_gbps")),
            ],
            gpus,
            below=[_ASSUMED_SPEED.format(library)] if reckoned else [],
        ),
        make_grid(
            [
                (Head("network", "interface", left=True, repeat=True), field_cell("nic")),
                (Head("dev", drop=4), field_cell("dev")),
                *host,
                (Head("Gbit/s"), lambda row: "-" if row["gbits"] is None else f"{row['gbits']:g}"),
                (Head("gdr", left=True, drop=2), _gdr),
                (Head("NUMA", drop=3), field_cell("numa")),
                (Head("PCI", "link", left=True, drop=6), _pci),
                (Head("PCI", "GB/s", drop=1), _gbps("pci_gbps")),
                (Head("to CPU", "GB/s", drop=1), _to_cpu),
                (Head("nearest", "GPUs", left=True), _list("nearest_gpus")),
                (Head("path", left=True), field_cell("path")),
            ],
            nics,
            below=[legend] if legend else [],
        ),
        make_grid(
            [
                *host,
                (Head("NUMA", repeat=True), field_cell("numa")),
                (Head("cores", left=True), field_cell("cores")),
                (Head("GPUs", left=True), _list("gpus")),
                (Head("network", "interfaces", left=True), _list("nics")),
            ],
            cpus,
        ),
    ]


def _pci(row: LogRow) -> str:
    if row["pci_speed"] is None:
        return "-"
    return one_line(f"{row['pci_speed']} x{row['pci_width'] or '?'}")


def _to_cpu(row: LogRow) -> str:
    """The narrowest link up to the CPU; ``-`` where the device's own link is the narrowest."""
    device_gbps, narrowest = row["pci_gbps"], row["pci_to_cpu_gbps"]
    return "-" if device_gbps == narrowest else format_bandwidth(narrowest)


def _gdr(row: LogRow) -> str:
    return "-" if row["gdr"] is None else ("yes" if row["gdr"] else "no")


def _gbps(key: str) -> Callable[[LogRow], str]:
    return lambda row: format_bandwidth(row[key])


def _list(key: str) -> Callable[[LogRow], str]:
    return lambda row: (
        one_line(shorten([*map(str, row[key] or ())], _MOST, " ...", between=" ")) or "-"
    )
