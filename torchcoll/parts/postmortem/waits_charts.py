"""The picture of a dead job: until when each rank took part, and who waited for whom."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from statistics import median
from typing import Any

from torchcoll.core.errors import cut_text, one_line
from torchcoll.core.units import counted
from torchcoll.parts.postmortem.diagnosis import (
    DIFFERENCES,
    Diagnosis,
    rank_names,
    ranks_text,
    what_it_did,
)
from torchcoll.parts.postmortem.evidence import JobEvent
from torchcoll.parts.postmortem.job_facts import JobFacts
from torchcoll.parts.postmortem.standing import OpenCall
from torchcoll.report import chart

# The sentence says how sure the cause is.
CAUSE, UNKNOWN, AHEAD = "the cause", "cannot tell", "ahead"
WAITED, TOOK_PART = "waited", "took part"
# In the order of the rows.
_COLOURS = {
    CAUSE: chart.PALETTE[1],
    UNKNOWN: chart.NEUTRAL,
    AHEAD: chart.PALETTE[0],
    WAITED: chart.WAITING,
    TOOK_PART: "#a5cbe4",
}
_MOST_ROWS = 16  # of one role
_MOST_LETTERS = 30  # of a line beside a bar
_BEFORE = 0.25  # of the time from the first stop to the end, that is shown before the stop
_DIED = ("killed", "device_error")  # kinds of a cause that says so, also without an event
_WAITED_FOR = re.compile(r"(?:ran for|waiting) (\d+) ?m(?:illi)?s")


@dataclass
class _Row:
    """Ranks of which the evidence says the same, and when each stopped and ended, where known."""

    role: str
    text: str
    ended: bool
    ranks: list[int] = field(default_factory=list)
    stops_ns: list[int] = field(default_factory=list)
    ends_ns: list[int] = field(default_factory=list)
    name: str = ""  # where the ranks are not known


def waits_charts(diagnosis: Diagnosis) -> list[chart.Chart]:
    """A bar for all ranks that did the same: how long they took part, and what they did then; a
    list where the files have no times; [] if the evidence names none, or says the same of all.
    """
    job = diagnosis.job
    clocked = bool(job.alive_ns) or any(e.when_ns for e in job.events)
    clocked = clocked or any(call.created_ns for call in job.calls)
    rows = _rows(diagnosis, clocked) if diagnosis.kind != "none" else []
    times = [ns for row in rows for ns in (*row.stops_ns, *row.ends_ns)]
    times += job.alive_ns.values()
    first, last = min(times, default=0), max(times, default=0)
    waits = [row for row in rows if row.role in (AHEAD, WAITED)]
    named = [row for row in rows if row.role == CAUSE]
    if len(rows) < 2 or not (named or waits or diagnosis.candidates):
        return []
    # Times of complaints alone do not say how long a rank waited.
    timed = last > first and (not waits or any(row.stops_ns for row in waits))
    names = [_name(row, diagnosis) for row in rows]
    hover = [chart.plain(f"{row.name or ranks_text(row.ranks)}: {row.text}") for row in rows]
    heading = "Who waited for whom" if waits else "What the files say of each rank"
    if diagnosis.kind == "mismatch" and diagnosis.calls:
        heading = "The call of each rank"
    if not timed:
        return [_list(heading, rows, names, hover)]
    begin = first - _BEFORE * (last - first) * clocked
    unit_ns, unit = _unit(last - first)
    stops, ends = [], []
    for row in rows:
        stop = median(row.stops_ns) if row.stops_ns else first
        gone = row.ended or not row.ends_ns
        end = last if gone else max(stop, median(row.ends_ns))
        stops.append((stop - begin) / unit_ns)
        ends.append((end - begin) / unit_ns)
    spans = list(zip((row.role for row in rows), stops, ends, strict=True))
    lengths = {TOOK_PART: [0.0 if of == UNKNOWN else stop for of, stop, _ in spans]}
    lengths[UNKNOWN] = [end if of == UNKNOWN else 0.0 for of, _, end in spans]
    for role in (CAUSE, AHEAD, WAITED):
        lengths[role] = [end - stop if of == role else 0.0 for of, stop, end in spans]
    bars = [chart.bars(of, x, hover, _COLOURS[of]) for of, x in lengths.items() if any(x)]
    if died := [n for n, row in enumerate(rows) if row.ended]:
        texts = [names[n] for n in died], [hover[n] for n in died]
        bars.append(_marks("died", [stops[n] for n in died], *texts, "#000000"))
    clock = datetime.fromtimestamp(begin / 1e9, timezone.utc).strftime("%T UTC on %F")
    orange = "orange: from when the cause is missing; " * (len(named) > 0)
    caption = [f"{orange}a bar ends when its ranks gave up or ended"]
    caption += [f"0 is {clock}"] if clocked else []
    title = f"{unit} since {clock[:12]}" if clocked else f"{unit} that ranks waited"
    axis = {"rangemode": "tozero", "title": {"text": title}}
    return [chart.bar_chart(heading, names, bars, axis, caption)]


def _marks(
    name: str, at: Sequence[float], rows: Sequence[str], hover: Sequence[str], colour: str
) -> dict[str, Any]:
    symbol = "x" if name == "died" else "square"
    return {
        "mode": "markers",
        "name": name,
        "x": at,
        "y": rows,
        "text": hover,
        "marker": {"color": colour, "size": 12, "symbol": symbol},
        "hovertemplate": chart.HOVER,
    }


def _list(heading: str, rows: list[_Row], names: list[str], hover: list[str]) -> chart.Chart:
    """A mark for each row, where no file says when or how long."""
    marks = []
    for role, ended in dict.fromkeys((row.role, row.ended) for row in rows):
        same = [n for n, row in enumerate(rows) if (row.role, row.ended) == (role, ended)]
        texts = [names[n] for n in same], [hover[n] for n in same]
        name = "died" if ended else role
        marks.append(_marks(name, [0] * len(same), *texts, _COLOURS[role]))
    caption = ["a list: the files do not say when or how long"]
    axis = {"tickvals": [], "ticktext": [], "range": [-0.1, 10], "zeroline": False}
    drawn = chart.bar_chart(heading, names, marks, axis, caption)
    drawn.layout["yaxis"]["showgrid"] = False
    return drawn


def _unit(span_ns: float) -> tuple[float, str]:
    scales = ((3600e9, "hours"), (60e9, "minutes"), (1e9, "seconds"))
    return next((scale for scale in scales if span_ns > 2 * scale[0]), (1e6, "milliseconds"))


def _name(row: _Row, diagnosis: Diagnosis) -> str:
    """Two to four lines: the ranks, and what they did."""
    texts = (rank_names(diagnosis.job, row.ranks), ranks_text(row.ranks))
    who = row.name or next((text for text in texts if len(text) <= _MOST_LETTERS), "")
    lines = textwrap.wrap(row.text, _MOST_LETTERS)
    lines = [*lines[:2], *(cut_text(" ".join(lines[2:]), _MOST_LETTERS) for _ in lines[2:3])]
    return "<br>".join(map(chart.plain, (who or counted(len(row.ranks), "rank"), *lines)))


def _rows(diagnosis: Diagnosis, clocked: bool) -> list[_Row]:
    """Sorted by role; of one role the largest first, and the smallest in one row."""
    texts = diagnosis.job.texts
    facts = JobFacts(diagnosis.job)
    last_ns: dict[int, int] = {}
    for call in diagnosis.job.calls:
        if call.created_ns is not None:
            last_ns[call.rank] = max(call.created_ns, last_ns.get(call.rank, 0))
    awaited: dict[int, frozenset[int]] = {}
    for edge in facts.graph.edges:
        awaited[edge.wait.rank] = awaited.get(edge.wait.rank, frozenset()) | edge.behind
    named = UNKNOWN if diagnosis.certainty == "unknown" else CAUSE
    verb, noun = DIFFERENCES.get(diagnosis.detail or "", ("made", "call"))
    differs = f"{verb} another {noun}" if diagnosis.kind == "mismatch" else ""
    did = what_it_did(diagnosis) or differs
    did = did or diagnosis.says.removeprefix(f"{ranks_text(diagnosis.culprits)} ")
    # A rank that is ahead waited as well: it is not the one to look at first.
    culprits = () if diagnosis.detail == "ahead" else diagnosis.culprits
    waiting = facts.shown_to_wait.union(diagnosis.waiting)
    waiting |= texts.reporting if diagnosis.kind == "rank_missing" else set()
    seen = {*facts.ranks, *diagnosis.culprits, *texts.seen}
    rows: dict[tuple[str, str, bool], _Row] = {}
    events = facts.events
    for rank in range(max(seen, default=-1) + 1):
        cause = events.causes.get(rank)
        complaint = events.timeouts.get(rank) or events.peer_lost.get(rank)
        ended = False
        stop_ns, end_ns = last_ns.get(rank), complaint.when_ns if complaint else None
        if rank in culprits:
            role, text = named, _different_call(diagnosis, rank) or did
            ended = diagnosis.kind in _DIED
            if cause is not None:
                ended, stop_ns = True, cause.event.when_ns
        elif rank in diagnosis.candidates:
            role, text = UNKNOWN, "may be the cause"
        elif rank in waiting:
            wait = _first_wait(facts, rank)
            behind = awaited.get(rank, frozenset())
            role = AHEAD if rank in diagnosis.culprits else WAITED
            called = _different_call(diagnosis, rank)
            text = f"waited {called}"
            if not called:
                text = _wait_text(facts, rank, wait, behind & {*culprits} or behind)
            stop_ns, end_ns = _wait_times(wait, complaint, texts.waited_ms.get(rank), clocked)
        elif rank in facts.standings.recorded or rank in events.endings:
            role, text = TOOK_PART, "ended as it should" if rank in events.endings else ""
            end_ns = events.endings[rank].when_ns if rank in events.endings else None
        else:
            role, text = UNKNOWN, "no record"
        row = rows.setdefault((role, text, ended), _Row(role, text, ended))
        row.ranks.append(rank)
        row.stops_ns += [stop_ns] if stop_ns is not None else []
        row.ends_ns += [end_ns] if end_ns is not None else []
    for row in _rows_without_ranks(diagnosis, named, rows.values()):
        rows[row.role, row.text, row.ended] = row
    return [row for role in _COLOURS for row in _largest(rows.values(), role)]


def _rows_without_ranks(diagnosis: Diagnosis, named: str, rows: Collection[_Row]) -> list[_Row]:
    """What the sentence says of a process or node without a rank, and who is not in the log."""
    roles = [row.role for row in rows]
    if roles and roles == [WAITED] * len(roles):
        absent = _Row(UNKNOWN, "not in this log", False, name="whom they waited for")
        return [absent] * (diagnosis.kind == "unknown")
    others = _Row(UNKNOWN, "no record", False, name="all others")
    died = diagnosis.kind in _DIED
    if not (diagnosis.culprits or roles) and (died or diagnosis.nodes):
        node = one_line(diagnosis.nodes[0]) if diagnosis.nodes else "one rank"
        return [_Row(named, diagnosis.says, died, name=node), others]
    return [others] * (roles == [named] and diagnosis.job.ranks is None)


def _largest(rows: Iterable[_Row], role: str) -> list[_Row]:
    ordered = sorted((row for row in rows if row.role == role), key=lambda row: -len(row.ranks))
    kept, others = ordered[:_MOST_ROWS], ordered[_MOST_ROWS:]
    if others:
        rest = _Row(role, f"{len(others)} further waits" if role == WAITED else "others", False)
        for row in others:
            rest.ranks += row.ranks
            rest.stops_ns += row.stops_ns
            rest.ends_ns += row.ends_ns
        kept.append(rest)
    return kept


def _first_wait(facts: JobFacts, rank: int) -> OpenCall | None:
    """The first call of the rank that had not ended."""
    waits = facts.standings.waits.get(rank, [])
    return min(waits, key=lambda wait: wait.call.created_ns or 0 if wait.call else 0, default=None)


def _wait_times(
    wait: OpenCall | None, complaint: JobEvent | None, waited_ms: int | None, clocked: bool
) -> list[int | None]:
    """When a rank began to wait and when it gave up: by the record of its calls, by its complaint
    and by how long it says that it waited. Without clocks, all waits begin at 0.
    """
    since_ns = wait.call.created_ns if wait is not None and wait.call else None
    until_ns = complaint.when_ns if complaint else None
    waited = _WAITED_FOR.search(complaint.text) if complaint else None
    length_ns = (waited_ms or int(waited[1] if waited else 0)) * 1_000_000
    if length_ns and not clocked:
        return [0, length_ns]
    if length_ns and since_ns and not until_ns:
        until_ns = since_ns + length_ns
    elif length_ns and until_ns and not since_ns:
        since_ns = until_ns - length_ns
    return [since_ns, until_ns]


def _different_call(diagnosis: Diagnosis, rank: int) -> str:
    """``in all_gather 91, 2 calls ahead``; '' unless it is known that the ranks' calls differ."""
    if diagnosis.kind != "mismatch" or rank not in diagnosis.calls:
        return ""
    number, call = diagnosis.calls[rank]
    if number is None:
        return f"in {one_line(call)}"
    numbers = [n for n, _ in diagnosis.calls.values() if n is not None]
    ahead = number - min(numbers)
    text = f"in {one_line(call)} {number}"
    return f"{text}, {counted(ahead, 'call')} ahead" if ahead else text


def _wait_text(facts: JobFacts, rank: int, wait: OpenCall | None, awaited: Collection[int]) -> str:
    """``waited for rank 1 in all_reduce 17``. awaited: ranks that are not in the call."""
    text = f"waited for {ranks_text(awaited)}" if 0 < len(awaited) <= 2 else "waited"
    if wait is None:
        numbers = facts.job.texts.waits.get(rank, [])
        return f"{text} in {numbers[0][1]} {numbers[0][0] or ''}" if numbers else text
    called = Diagnosis(facts.job)
    facts.name_wait(called, wait)
    number = "" if called.number is None or wait.peer is not None else f" {called.number}"
    return f"{text} in {one_line(called.collective or 'call')}{number}"
