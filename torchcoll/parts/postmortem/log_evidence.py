"""Reads text logs of any kind: stderr and stdout of ranks and launchers, NCCL's and oneCCL's logs,
and those of Slurm, Kubernetes and the kernel.

A log is recognised by being text, as most of its lines are the program's own. Who says a line is
read from its prefix or from the name of the file, and whom it blames from the text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.parts.postmortem import cluster_log, log_lines, stack_evidence, torch_log
from torchcoll.parts.postmortem.evidence import (
    ENDED_BY_ITSELF,
    RAS_KINDS,
    FileRead,
    JobEvent,
    JobEvidence,
    identities_of_path,
    node_of_path,
    rank_of_path,
)
from torchcoll.parts.postmortem.text_rules import PROGRESS, read_texts
from torchcoll.parts.postmortem.texts import FOREIGN_FILES, TEXTS

HANDLERS: tuple[log_lines.Handler, ...] = (
    *torch_log.HANDLERS,
    *stack_evidence.HANDLERS,
    *cluster_log.HANDLERS,
    *log_lines.EVENT_HANDLERS,
)
_NCCL = (b"NCCL WARN", b" nranks ")
_BINARY = bytes(b for b in range(32) if b not in b"\t\n\r\x0c\x08\x1b\x07")
_MOST_BINARY = 0.02
_MOST_PROGRESS_LINES = 100_000  # that are looked at
_PROGRESS = re.compile(PROGRESS.pattern.encode(), PROGRESS.flags & re.IGNORECASE)
_JSON = re.compile(rb'\s*(?:\{\s*["}]|\[\s*[{\["\]])')


def recognizes(path: Path, begin: bytes) -> bool:
    """Whether the file is text and of none of the formats that have a reader of their own."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(FOREIGN_FILES) or not begin.strip():
        # An issue that quotes what a job printed.
        return name.endswith(".md") and b"\n```" in begin and b"ProcessGroupNCCL" in begin
    if _JSON.match(begin):
        return False
    binary = len(begin) - len(begin.translate(None, _BINARY))
    return binary <= _MOST_BINARY * len(begin)


# Lines of dead jobs that have a reader of their own (tracebacks, NCCL's warnings).
_DEATHS = (b"Traceback (most recent call last)", b"NCCL WARN")


def read_evidence(path: Path, shown: str) -> list[JobEvidence]:
    """What a log says of one job. That the log of a rank has no complaint is evidence too.

    Raises OSError.
    """
    with open(path, "rb") as file:
        begin = file.read(1 << 16)
    rank = rank_of_path(shown)
    scan = log_lines.LogScan(shown, rank, node_of_path(shown))
    evidence = scan.evidence
    evidence.identities |= identities_of_path(shown)
    with log_lines.without_wraps(path) as plain:
        _scan(scan, plain, log_lines.LineReader(plain, begin))
        evidence.texts = read_texts(plain, shown)
    says = evidence.events or evidence.last_number or evidence.nodes or evidence.texts
    if rank is None and not says:
        return []
    times = [event.when_ns for event in evidence.events if event.when_ns is not None]
    evidence.first_ns, evidence.last_ns = min(times, default=None), max(times, default=None)
    evidence.files = [FileRead(shown, _what(scan, shown), () if rank is None else (rank,))]
    return [evidence]


def _scan(scan: log_lines.LogScan, path: Path, reader: log_lines.LineReader) -> None:
    tracebacks = stack_evidence.Tracebacks(scan)
    table = torch_log.FailureTable(scan)
    pod = cluster_log.Pod(scan)
    nccl, ras = torch_log.NcclLines(scan), torch_log.RasText(scan)
    texts = [*dict.fromkeys(text.encode() for text, _, _ in HANDLERS), *_NCCL]

    def more() -> bool:
        return scan.wanted > 0

    for number, raw in log_lines.lines_with(path, texts, more):
        scan.wanted -= 1
        line = reader.line(number, raw)
        if line.rank is not None and line.local_rank is not None:
            scan.local_offsets.add(line.rank - line.local_rank)
        if b" NCCL " in raw:
            if b"NCCL WARN" in raw:
                nccl.read_warning(line, raw)
                continue
            if b" nranks " in raw:
                nccl.read_info(raw)
        if tracebacks.read(line):
            continue
        if any(part.read(line) for part in (table, ras, pod)):
            continue
        text = line.text
        for literal, pattern, handle in HANDLERS:
            if literal in text and (match := pattern.search(text)):
                handle(scan, line, match)
    for part in (table, nccl, ras, pod):
        part.end()
    _settle(scan)
    scan.evidence.events = _without_survived(scan.evidence.events, path, reader, scan)


def _settle(scan: log_lines.LogScan) -> None:
    """Say whose an event is where only the whole file tells, and drop what is known by then to be
    something else.
    """
    evidence = scan.evidence
    # Without any line that has both ranks, the job is taken to be of one host.
    offset = next(iter(scan.local_offsets), 0) if len(scan.local_offsets) < 2 else None
    events: list[JobEvent] = []
    for event in evidence.events:
        rank = event.rank
        if rank is not None and rank < 0:  # a rank of the host: see LogScan.add
            rank = None if offset is None else -1 - rank + offset
            rank = scan.file_rank if scan.file_rank is not None else rank
        if rank is not None and rank >= MOST_RANKS:
            continue
        events.append(replace(event, rank=rank) if rank != event.rank else event)
    if not scan.tasks_are_ranks:
        # srun started torchrun on each node: its tasks are no ranks.
        of_tasks = {(event.place, event.text) for event in scan.tasks}
        events = [e for e in events if (e.place, e.text) not in of_tasks]
        if scan.tasks:
            evidence.nodes.clear()
    evidence.events = events


def _without_survived(
    events: Sequence[JobEvent],
    path: Path,
    reader: log_lines.LineReader,
    scan: log_lines.LogScan,
) -> list[JobEvent]:
    """The events, without exceptions that their rank handled: it went on with its steps, or later
    complained about another rank.
    """
    complained: dict[int | None, int] = {}
    doubtful: dict[int, int] = {}  # rank -> line of its first exception that may be handled
    for event in events:
        line = event.place.line or 0
        if event.kind in ("timeout", "peer_lost") and event.fatal is not None:
            complained[event.rank] = max(line, complained.get(event.rank, 0))
        elif event.kind in ENDED_BY_ITSELF and event.fatal is False and event.rank is not None:
            doubtful.setdefault(event.rank, line)
    survived = {r: complained[r] for r in doubtful if complained.get(r, 0) > doubtful[r]}
    begin = min(doubtful.values(), default=None)
    if begin is not None:
        with open(path, "rb") as file:
            for number, raw in enumerate(itertools.islice(file, begin + _MOST_PROGRESS_LINES), 1):
                if number <= begin or not _PROGRESS.search(raw):
                    continue
                written = reader.line(number, raw)
                rank = scan.rank_of(written)
                if rank is None and written.local_rank is not None:
                    rank = written.local_rank + next(iter(scan.local_offsets), 0)
                if rank is not None and rank in doubtful and "Error" not in written.text:
                    survived[rank] = max(number, survived.get(rank, 0))
    return [
        event
        for event in events
        if event.fatal is not False
        or event.kind not in ENDED_BY_ITSELF
        or (event.place.line or 0) > survived.get(-1 if event.rank is None else event.rank, 0)
    ]


def _what(scan: log_lines.LogScan, shown: str) -> str:
    name = Path(shown).name.lower()
    for part in ("stderr", "stdout", "dmesg"):
        if part in name:
            return part
    if scan.node:
        return "kernel log"
    kinds = {event.kind for event in scan.evidence.events}
    if kinds and kinds <= set(RAS_KINDS):
        return "NCCL RAS report"
    return "log"


def command_for(path: str, text: bytes) -> str | None:
    """``postmortem`` for text in which a job complains or ends; None for any other file."""
    if not recognizes(Path(path), text):
        return None
    shown = text.decode(errors="replace")
    is_dead = any(death in text for death in _DEATHS)
    is_dead = is_dead or any(each.pattern.search(shown) for each in TEXTS)
    handlers = [(literal, pattern) for literal, pattern, _ in HANDLERS if literal in shown]
    for line in shown.splitlines() if handlers and not is_dead else ():
        is_dead |= any(literal in line and pattern.search(line) for literal, pattern in handlers)
    return "postmortem" if is_dead else None
