"""Logs of communication libraries as tables, markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.units import format_bandwidth, format_size, format_time, time_text
from torchcoll.report.answer import Answer
from torchcoll.report.formats import print_forms
from torchcoll.report.grid import Grid, Head, filled

if TYPE_CHECKING:
    from torchcoll.libraries.dumps import Dump
    from torchcoll.libraries.job_logs import JobLog


# -------------------------------------------------------------------------------------------------
# NCCL's topology and graph files as tables for people.

_MOST = 64  # GPUs of a channel that are shown; json has all
_PATHS = {
    "LOC": "one GPU",
    "NVL": "NVLink or XGMI",
    "NVB": "NVLink through another GPU",
    "C2C": "C2C",
    "PIX": "through one PCI switch",
    "PXB": "through several PCI switches",
    "P2C": "C2C, then PCI",
    "PXN": "through another GPU's PCI",
    "PHB": "through the CPU",
    "SYS": "from CPU to CPU",
    "NET": "network",
    "DIS": "none",
}
_RECKONED = "GB/s: one direction, as {0} reckons (topo.h, topo.cc), below the rate of the wire"
_FIXED = (
    "GB/s each: of the fixed list of speeds that NCCL's search tries (search.cc), no measurement"
)
_TOGETHER = "; together: channels x GB/s, of a ring the busbw that NCCL expects"
_NEVER = (
    "{0}NCCL then runs each ring and tree twice or more over the same links (connect.cc): the "
    "channels that its log counts, times GB/s, are no bandwidth"
)
_EACH_ALONE = "each graph is searched as if it had the links alone, so none is added to another. "
_ALONE = (
    "one GPU alone (type LOC): no channel crosses a link, so NCCL's search takes the highest speed "
    "of its list (search.cc): channels x GB/s is no bandwidth here"
)
_FALLBACK = "0.1 GB/s: NCCL found no such path and took the GPUs in their order (search.cc)"

DumpRow = dict[str, Any]


def dump_grids(dump: Dump) -> list[Grid]:
    """The grids of one file: what it comes to, and its tables."""
    if dump.kind == "topology":
        return [Grid([], [], above=_about_topology(dump)), *_of_topology(dump)]
    return [Grid([], [], above=_about_graphs(dump)), *_of_graphs(dump)]


# -- a topology ------------------------------------------------------------------------------


def _about_topology(dump: Dump) -> list[str]:
    facts = dump.facts
    words = [_plural(facts["gpu_count"], "GPU"), _plural(facts["cpu_count"], "NUMA node")]
    words[1] += f" ({one_line(facts['cpu'])})" if facts["cpu"] else ""
    words.append(_plural(facts["nic_count"], "network interface"))
    if facts["hosts"] > 1:
        words.append(f"{facts['hosts']} hosts")
    lines = [f"{facts['library']} topology: {', '.join(words)}"]
    if facts["cut"]:
        lines.append("the file is cut off: GPUs, links and interfaces may be missing")
    if facts["gpu_count"] and not facts["gpus_described"]:
        lines.append("no <gpu> in it: a file for NCCL_TOPO_FILE, to which NCCL adds what it finds")
    lines.append(_ring(facts))
    if facts["nics_gbps"]:
        lines.append(
            f"network: {format_bandwidth(facts['nics_gbps'])} GB/s, all interfaces of this host "
            "together, as far as their PCI links go, one direction: a ring over hosts has no more"
        )
    lines += [
        f"GPU {row['gpu']} has {_plural(row['links'], 'link')}, most have {row['usual']}: a link "
        "that is down is not in the file"
        for row in facts["odd_links"]
    ]
    if fabrics := facts.get("fabrics"):
        names = " or ".join(fabrics)
        which = "; which GPU it is, the file does not tell" if len(fabrics) > 1 else ""
        lines.append(f"its links are those of --fabric {names}{which}")
    return [one_line(line) for line in lines]


def _ring(facts: DumpRow) -> str:
    if facts["ring_ceiling_gbps"] is None:
        return f"ring: no ceiling: {facts['ring_ceiling_source']}"
    text = f"ring: at most {format_bandwidth(facts['ring_ceiling_gbps'])} GB/s of busbw: "
    text += facts["ring_ceiling_source"]
    if facts["ring_wire_gbps"]:
        text += f" (the wire signals {facts['ring_wire_gbps']:g})"
    if facts["nvls"]:
        text += "; all_reduce within the switches (NVLS) may pass it"
    return text


def _of_topology(dump: Dump) -> list[Grid]:
    tables, library = dump.tables, dump.facts["library"]
    several = dump.facts["hosts"] > 1
    host = [(Head("host"), _dump_cell("host"))] if several else []
    gpus, nics, cpus = (tables.get(name, []) for name in ("gpus", "nics", "cpus"))
    reckoned = any(row["links_gbps"] or row["pci_gbps"] for row in gpus)
    return [
        filled(
            [
                (Head("GPU", left=True, repeat=True), _dump_cell("gpu")),
                (Head("rank"), _dump_cell("rank")),
                *host,
                (Head("generation", left=True, drop=4), _dump_cell("generation")),
                (Head("gdr", left=True, drop=5), _yes("gdr")),
                (Head("NUMA", drop=3), _dump_cell("numa")),
                (Head("PCI", "link", left=True, drop=6), _pci),
                (Head("PCI", "GB/s", drop=1), _gbps("pci_gbps")),
                (Head("to CPU", "GB/s", drop=2), _to_cpu),
                (Head("links", left=True), _dump_cell("links_to")),
                (Head("each", "GB/s", drop=1), _gbps("link_gbps")),
                (Head("links", "GB/s"), _gbps("links_gbps")),
            ],
            gpus,
            below=[_RECKONED.format(library)] if reckoned else [],
        ),
        filled(
            [
                (Head("network", "interface", left=True), _dump_cell("nic")),
                (Head("dev", drop=4), _dump_cell("dev")),
                *host,
                (Head("Gbit/s"), lambda row: "-" if row["gbits"] is None else f"{row['gbits']:g}"),
                (Head("gdr", left=True, drop=2), _yes("gdr")),
                (Head("NUMA", drop=3), _dump_cell("numa")),
                (Head("PCI", "link", left=True, drop=6), _pci),
                (Head("PCI", "GB/s", drop=1), _gbps("pci_gbps")),
                (Head("to CPU", "GB/s", drop=1), _to_cpu),
                (Head("nearest", "GPUs", left=True), _list("nearest_gpus")),
                (Head("path", left=True), _dump_cell("path")),
            ],
            nics,
            below=_legend({row["path"] for row in nics}),
        ),
        filled(
            [
                *host,
                (Head("NUMA"), _dump_cell("numa")),
                (Head("cores", left=True), _dump_cell("cores")),
                (Head("GPUs", left=True), _list("gpus")),
                (Head("network", "interfaces", left=True), _list("nics")),
            ],
            cpus,
        ),
    ]


def _pci(row: DumpRow) -> str:
    if row["pci_speed"] is None:
        return "-"
    return one_line(f"{row['pci_speed']} x{row['pci_width'] or '?'}")


def _to_cpu(row: DumpRow) -> str:
    """Only where it is narrower than the device's own link."""
    own, narrowest = row["pci_gbps"], row["pci_to_cpu_gbps"]
    return "-" if own == narrowest else format_bandwidth(narrowest)


# -- graphs ----------------------------------------------------------------------------------


def _about_graphs(dump: Dump) -> list[str]:
    facts = dump.facts
    first = f"NCCL graphs: {facts['graph_count']} with channels"
    if facts["unused"]:
        first += f", none of {', '.join(facts['unused'])}"
    lines = [first]
    if facts["cut"]:
        lines.append("the file is cut off: channels may be missing")
    if facts["alone"]:
        lines.append(_ALONE)
    elif facts["ring_gbps"]:
        (ring,) = (row for row in dump.tables["graphs"] if row["graph"] == "ring")
        each = min(gbps for n in ("intra_gbps", "inter_gbps") if (gbps := ring[n]) is not None)
        lines.append(
            f"ring: {_plural(ring['channels'], 'channel')} x {each:g} GB/s = "
            f"{format_bandwidth(facts['ring_gbps'])} GB/s: the busbw that NCCL expects of it"
        )
    return [one_line(line) for line in lines]


def _of_graphs(dump: Dump) -> list[Grid]:
    graphs, channels = dump.tables.get("graphs", []), dump.tables.get("channels", [])
    types = {row[name] for row in graphs for name in ("intra_type", "inter_type")}
    counted = any(row["together_gbps"] for row in graphs)
    notes = [_FIXED + _TOGETHER * counted, _NEVER.format(_EACH_ALONE if len(graphs) > 1 else "")]
    notes += [_FALLBACK] if any(row["fallback"] for row in graphs) else []
    return [
        filled(
            [
                (Head("graph", left=True), _dump_cell("graph")),
                (Head("pattern", left=True, drop=1), _dump_cell("pattern")),
                (Head("channels"), _graph_channels),
                (Head("in a node", "GB/s each"), _gbps("intra_gbps")),
                (Head("between", "GB/s each"), _gbps("inter_gbps")),
                (Head("together", "GB/s"), _gbps("together_gbps")),
                (Head("types", left=True), _types),
            ],
            graphs,
            below=[*notes, *_legend(types)],
        ),
        filled(
            [
                (Head("graph", left=True), _dump_cell("graph")),
                (Head("channels", left=True), _dump_cell("channels")),
                (Head("GPUs in order", left=True), _list("gpus")),
                (Head("their ranks", left=True), _list("ranks")),
                (Head("network", left=True), _list("nets")),
            ],
            channels,
        ),
    ]


def _graph_channels(row: DumpRow) -> str:
    said, read = row["channels"], row["channels_read"]
    return str(said) if said == read else f"{read} of {'?' if said is None else said}"


def _types(row: DumpRow) -> str:
    return one_line("/".join(row[n] for n in ("intra_type", "inter_type") if row[n]) or "-")


# -- cells -----------------------------------------------------------------------------------


def _dump_cell(key: str) -> Callable[[DumpRow], str]:
    return lambda row: "-" if row[key] is None else one_line(row[key])


def _yes(key: str) -> Callable[[DumpRow], str]:
    return lambda row: "-" if row[key] is None else ("yes" if row[key] else "no")


def _gbps(key: str) -> Callable[[DumpRow], str]:
    return lambda row: format_bandwidth(row[key])


def _list(key: str) -> Callable[[DumpRow], str]:
    def cell(row: DumpRow) -> str:
        names = row[key] or []
        text = one_line(" ".join(map(str, names[:_MOST])))
        return (text if len(names) <= _MOST else f"{text} ...") or "-"

    return cell


def _legend(types: set[str | None]) -> list[str]:
    words = [f"{name} {text}" for name, text in _PATHS.items() if name in types]
    return [", ".join(words)] if words else []


def _plural(count: int, one: str) -> str:
    return f"{count} {one}{'' if count == 1 else 's'}"


# -------------------------------------------------------------------------------------------------

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

LogRow = dict[str, Any]
Cell = Callable[[LogRow], str]


def show_logs(
    jobs: Sequence[JobLog],
    files: Sequence[LogRow],
    format: str = "table",
    file: TextIO | None = None,
    dumps: Sequence[Dump] = (),
) -> None:
    """Print jobs, and of each of ``files`` (``file_rows``) how much was understood.

    Before them ``dumps``, topologies and graphs in XML.

    Raises UsageError for an unknown format.
    """
    titled = titled_logs(jobs, files, dumps)
    rows = _rows(jobs, dumps)
    names = list(dict.fromkeys(("job", "table", *(name for row in rows for name in row))))
    print_forms(titled, rows, _document(jobs, files, dumps), format, file, names)


def titled_logs(
    jobs: Sequence[JobLog], files: Sequence[LogRow], dumps: Sequence[Dump]
) -> list[tuple[str, list[Grid]]]:
    """The tables of each job and dump below its title."""
    shown = len(jobs) + len(dumps)
    titled = [(one_line(d.file) if shown > 1 else "", dump_grids(d)) for d in dumps]
    titled += [(_title(n, job, shown), _grids(job)) for n, job in enumerate(jobs)]
    lines = [text for row in files for text in _file_lines(row)]
    rest = Grid([], [], below=lines, answer=_answer(jobs, dumps))
    if not titled:
        return [("", [rest])]
    titled[-1][1].append(rest)
    return titled


def _answer(jobs: Sequence[JobLog], dumps: Sequence[Dump]) -> Answer | None:
    """What is wrong by these files; None where nothing is, for what they tell is no verdict."""
    words = []
    for dump in dumps:
        odd = dump.facts.get("odd_links") or []
        words += [
            f"GPU {row['gpu']} has {_plural(row['links'], 'link')}, most have {row['usual']}"
            for row in odd
        ]
        words += [f"{dump.file} is cut off"] if dump.facts.get("cut") else []
    warnings = [text for job in jobs for text, _ in job.warnings.most_common()]
    if warnings:
        more = f", and {len(warnings) - 1} more" if len(warnings) > 1 else ""
        words.append(f"{_plural(len(warnings), 'warning')} of the library: {warnings[0]}{more}")
    return Answer(one_line("; ".join(words)), "doubt") if words else None


def _document(
    jobs: Sequence[JobLog], files: Sequence[LogRow], dumps: Sequence[Dump]
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


def _rows(jobs: Sequence[JobLog], dumps: Sequence[Dump]) -> list[LogRow]:
    """All tables, for csv; ``table`` names the one that a row is of."""
    rows: list[LogRow] = [
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


def _log_cell(key: str) -> Cell:
    return lambda row: "-" if row[key] is None else one_line(row[key])


def _seconds(key: str) -> Cell:
    return lambda row: format_time(row[key] and row[key] * 1e9, 3)


def _ranks(row: LogRow) -> str:
    seen, ranks = row["ranks_seen"], row["ranks"]
    return str(ranks) if seen == ranks else f"{seen} of {ranks}"


def _largest(row: LogRow) -> str:
    if row["largest_part"] is None:
        return "-"
    return f"{row['largest_part']} {time_text(row['largest_part_s'] * 1e9, 3)}"


def _order(row: LogRow) -> str:
    order = row["order"]
    text = " ".join(map(str, order[:_MOST_RANKS]))
    return text if row["whole"] and len(order) <= _MOST_RANKS else f"{text} ..."


def _sizes(row: LogRow) -> str:
    low, high = row["low"], row["high"]
    if row.get("unit") == "elements":
        texts = [str(low), str(high)]
    else:
        texts = [format_size(low), "max" if high is None else format_size(high)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"


def _member_channels(row: LogRow) -> str:
    channels = row["channels"]
    if not channels:
        return "-"
    low, high = channels[0], channels[-1]
    return str(low) if low == high else f"{low} to {high}"


def _labels(row: LogRow) -> str:
    return one_line(", ".join(row["choice"]))


_COLUMNS: dict[str, list[tuple[Head, Cell]]] = {
    "communicators": [
        (Head("communicator", repeat=True), _log_cell("communicator")),
        (Head("made by", left=True, drop=4), _log_cell("made_by")),
        (Head("ranks"), _ranks),
        (Head("nodes"), _log_cell("nodes")),
        (Head("init", "slowest"), _seconds("init_s")),
        (Head("on", "rank", drop=2), _log_cell("slowest_rank")),
        (Head("largest", "part of it", left=True), _largest),
        (Head("bootstrap", drop=3), _seconds("bootstrap_s")),
        (Head("channels"), _log_cell("coll_channels")),
        (Head("nvls", "channels", drop=5), _log_cell("nvls_channels")),
        (Head("p2p", "channels", drop=5), _log_cell("p2p_channels")),
        (Head("best path", "GB/s", drop=5), lambda row: format_bandwidth(row["path_gbps"])),
        (Head("all links", "GB/s", drop=5), lambda row: format_bandwidth(row["gpu_gbps"])),
        (Head("state", left=True), _log_cell("state")),
    ],
    "rings": [
        (Head("communicator"), _log_cell("communicator")),
        (Head("channels", left=True), _log_cell("channels")),
        (Head("ring", left=True), _order),
    ],
    "trees": [
        (Head("communicator"), _log_cell("communicator")),
        (Head("channels", left=True), _log_cell("channels")),
        (Head("root of", "tree"), _log_cell("root")),
        (Head("depth"), _log_cell("depth")),
    ],
    "graphs": [
        (Head("communicator"), _log_cell("communicator")),
        (Head("graph", left=True), _log_cell("pattern")),
        (Head("channels"), _log_cell("channels")),
        (Head("in a node", "GB/s each"), lambda row: format_bandwidth(row["intra_gbps"])),
        (Head("between", "GB/s each"), lambda row: format_bandwidth(row["inter_gbps"])),
        (Head("types", left=True), lambda row: f"{row['intra_type']}/{row['inter_type']}"),
    ],
    "transports": [
        (Head("transport", left=True), _log_cell("kind")),
        (Head("connections"), _log_cell("connections")),
        (Head("pairs of", "ranks"), _log_cell("pairs")),
    ],
    "tuning": [
        (Head("communicator", drop=1), _log_cell("communicator")),
        (Head("function", left=True), _log_cell("function")),
        (Head("algorithm", left=True), _log_cell("algorithm")),
        (Head("protocol", left=True), _log_cell("protocol")),
        (Head("latency"), lambda row: format_time(row["latency_us"] * 1e3)),
        (Head("algbw", "GB/s"), lambda row: format_bandwidth(row["algbw_gbps"])),
    ],
    "selection": [
        (Head("collective", left=True), _log_cell("collective")),
        (Head("table", left=True), _log_cell("table")),
        (Head("sizes", left=True), _sizes),
        (Head("algorithm", left=True), _log_cell("algorithm")),
    ],
    "choices": [
        (Head("chosen for", left=True), lambda row: one_line(row["function"] or "(not named)")),
        (Head("sizes", left=True), _sizes),
        (Head("algorithm/protocol", left=True), _labels),
        (Head("channels"), _member_channels),
        (Head("calls"), _log_cell("calls")),
    ],
}


def _grids(job: JobLog) -> list[Grid]:
    grids = [Grid([], [], above=_about_job(job))]
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


def _empty(cell: Cell, rows: Sequence[LogRow]) -> bool:
    return {cell(row).strip() for row in rows} <= {"-", ""}


def _notes(name: str, rows: Sequence[LogRow]) -> list[str]:
    if name == "choices":
        bases = dict.fromkeys(row["size_basis"] for row in rows if _counts_by_rank(row))
        notes = [_BASIS.format(" or ".join(bases))] if any(bases) else []
        if any(row["unit"] == "elements" for row in rows):
            notes.append("sizes are counts of elements, as oneCCL logs them")
        return notes
    if name == "communicators":
        stated = {key for row in rows for key, value in row.items() if value is not None}
        return [text for key, text in _OF_COMMUNICATORS.items() if key in stated]
    return [_NOTES[name]] if name in _NOTES else []


def _counts_by_rank(row: LogRow) -> bool:
    return row["function"] in ("AllGather", "ReduceScatter", None)


def _about_job(job: JobLog) -> list[str]:
    facts = dict(job.facts)
    hosts = facts.pop("hosts", [])
    first = f"{facts.pop('library')} {facts.pop('version', 'of unknown version')}"
    if git := facts.pop("git", ""):
        first += f" ({git})"
    processes, threads = facts.pop("processes", None), facts.pop("threads", None)
    words = [_counted(processes, "process", "processes")] if processes else []
    words += [_counted(threads, "thread", "threads")] if threads else []
    if hosts:
        names = hosts if len(hosts) <= 4 else [hosts[0], "...", hosts[-1]]
        words[0] += f" on {_counted(len(hosts), 'host', 'hosts')} ({' '.join(names)})"
    if ranks := facts.pop("ranks", None):
        words.append(_counted(ranks, "rank", "ranks"))
    lines = [f"{first}: {', '.join(words)}"]
    if facts:
        lines.append("; ".join(f"{name.replace('_', ' ')} {v}" for name, v in facts.items()))
    if job.variables:
        pairs = (f"{name}={value}" for name, value in job.variables.items())
        what = "not the default" if first.startswith("oneCCL") else "set by the environment"
        lines.append(f"{what}: {', '.join(pairs)}")
    return [one_line(line) for line in lines]


def _counted(count: int, one: str, many: str) -> str:
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


def _file_lines(row: LogRow) -> list[str]:
    words = [f"{row[kind]} {text}" for kind, text in _WORDS.items() if row[kind]]
    name = one_line(row["file"])
    lines = [f"{name}: {row['lines']} lines: {', '.join(words)}"]
    return lines + [f"{name}:{one['line']}: {one_line(one['text'])}" for one in row["examples"]]
