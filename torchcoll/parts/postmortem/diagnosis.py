"""What ended or stopped a job, concluded from the evidence, and how that is put into words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_ranges, plural
from torchcoll.parts.postmortem.evidence import CallSeen, JobEvent, JobEvidence, Place
from torchcoll.parts.postmortem.standing import GroupStanding, Standings
from torchcoll.parts.postmortem.texts import about_kind, known_text


@dataclass(frozen=True)
class EvidenceLine:
    """One observation and the file that has it. rank: None for a line about several or no rank."""

    text: str
    place: Place
    rank: int | None = None


@dataclass
class Diagnosis:
    """What happened to a job. The fields are those of the JSON that the command prints.

    - kind: such as ``killed``; ``none`` if every rank ended as it should, or ``unknown``.
    - detail: of the kind, such as ``SIGKILL`` or ``size``; None where not known.
    - certainty: certain, likely, possible or unknown.
    - culprits: ranks that are named as the cause; nodes: of these, or both ends of a link.
    - candidates: ranks of which one is the cause, where it cannot be told which; then no culprits.
    - waiting: ranks that waited, in the call that group, collective and number name; number: of
      the call in its group, from 1.
    - calls: of ranks whose calls differ, the number (None: not known) and the call of each.
    - says: the sentence, where it is not made of the fields; details: clauses beside it.
    - remedy: what to do now; collect_next: what to collect where the evidence leaves it open.
    """

    job: JobEvidence
    kind: str = "unknown"
    detail: str | None = None
    certainty: str = "unknown"
    headline: str = ""
    culprits: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    candidates: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    group: str | None = None
    collective: str | None = None
    number: int | None = None
    calls: dict[int, tuple[int | None, str]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    remedy: str = ""
    evidence: list[EvidenceLine] = field(default_factory=list)
    collect_next: list[str] = field(default_factory=list)
    says: str = ""
    details: list[str] = field(default_factory=list)

    def cite(self, text: str, place: Place, rank: int | None = None) -> None:
        """Adds a line of evidence."""
        self.evidence.append(EvidenceLine(text, place, rank))

    def quote(self, events: Iterable[JobEvent]) -> None:
        """Adds the texts of these events to the evidence."""
        self.evidence += [EvidenceLine(each.text, each.place, each.rank) for each in events]


_MOST_NODES = 3  # that are named
_LONG = 160  # characters of a quotation


def shortened(text: str, most: int = _LONG) -> str:
    """The text on one line, without the place in C++ that torch and gloo put before a message."""
    text = re.sub(r"\[(?:/|\.\./)\S+:\d+\]\s*", "", one_line(text))
    cut = text[: most - 3].rpartition(" ")[0].rstrip(",")
    # Not within a word: half a number is another number.
    return text if len(text) <= most or 2 * len(cut) < most else f"{cut} ..."


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2 and 5``."""
    ranks = sorted(set(ranks))
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return " and ".join(f"ranks {format_ranges(ranks)}".rsplit(",", 1)).replace(",", ", ")


def rank_names(job: JobEvidence, ranks: Iterable[int]) -> str:
    """``rank 3 on node07``, ``ranks 0-2 and 5 (node01, node02)``."""
    ranks = sorted(set(ranks))
    nodes = list(dict.fromkeys(job.nodes[rank] for rank in ranks if rank in job.nodes))
    if len(ranks) == 1:
        return f"rank {ranks[0]}" + (f" on {one_line(nodes[0])}" if nodes else "")
    text = ranks_text(ranks)
    if len(nodes) == 1 and all(rank in job.nodes for rank in ranks):
        return f"{text} on {one_line(nodes[0])}"
    if 1 < len(nodes) <= _MOST_NODES:
        return f"{text} ({', '.join(map(one_line, nodes))})"
    return text


def group_name(group: GroupStanding) -> str:
    """``default`` for the group of all ranks, otherwise torch's name, with its description."""
    if group.is_default:
        return "default"
    description = group.group.description
    name = one_line(group.group.name)
    named = name if description in ("", "undefined", name) else f"{name} ({one_line(description)})"
    if group.members and len(group.members) <= 16:
        return f"{named} of ranks {format_ranges(group.members)}"
    return named


def describe_call(call: CallSeen) -> str:
    """``all_reduce of [1024] float32``, ``send to rank 3``."""
    text = one_line(call.collective)
    if call.peer is not None:
        return f"{text} {'to' if call.collective == 'send' else 'from'} rank {call.peer}"
    sizes = call.sizes_in or call.sizes_out
    if sizes:
        shapes = ", ".join(str(list(shape)) for shape in sizes[:2])
        text += f" of {shapes}{', ...' if len(sizes) > 2 else ''}"
    if call.dtype:
        text += f" {one_line(call.dtype)}"
    return text


def call_name(call: CallSeen, group: GroupStanding | None) -> str:
    """``all_reduce number 41 of group default``."""
    name = group_name(group) if group else one_line(call.group)
    if call.peer is not None:
        return f"{describe_call(call)} in group {name}"
    return f"{one_line(call.collective)} number {call.number} of group {name}"


def call_of(diagnosis: Diagnosis) -> str:
    """``all_reduce number 41 of group default``; '' if the evidence names no call."""
    text = diagnosis.collective or ("call" if diagnosis.number is not None else "")
    if not text:
        return ""
    if diagnosis.number is not None and diagnosis.collective not in ("send", "recv"):
        text += f" number {diagnosis.number}"
    return text + (f" of group {diagnosis.group}" if diagnosis.group is not None else "")


def remedy_of(diagnosis: Diagnosis) -> str:
    """What to do now; of what cannot be told, what to collect."""
    kind, texts = diagnosis.kind, [line.text for line in diagnosis.evidence]
    quoted = [line.text for line in diagnosis.evidence if line.rank in diagnosis.culprits]
    if kind in ("exception", "out_of_memory", "disk_full", "killed"):
        entry = known_text(quoted[0]) if quoted else None
        if entry is not None and not entry.weak and "{" not in entry.remedy:
            return entry.remedy
    quoted = quoted or texts
    if kind == "exception" and quoted and (place := re.search(r" \[(\S+:\d+) \S+\]$", quoted[0])):
        return f"fix {place[1]}"
    if remedy := about_kind("remedy", kind, diagnosis.detail):
        return remedy
    if kind == "canceled":
        return next((entry.remedy for text in texts if (entry := known_text(text))), "")
    if kind == "user_code":
        place = next((m for text in texts if (m := re.search(r"(\S+:\d+) ", text))), None)
        where = f"look at {place[1]}" if place else "look at its stack"
        return (
            f"{where}: what the rank waits for there, or raise the timeout if it may take so long"
        )
    if kind == "stopped" and diagnosis.culprits:
        names = rank_names(diagnosis.job, diagnosis.culprits)
        return f"look at what {names} did: log, node, and while it hangs its stack (py-spy dump)"
    return f"collect {diagnosis.collect_next[0]}" if diagnosis.collect_next else ""


def headline(diagnosis: Diagnosis, standings: Standings) -> str:
    """The answer in one sentence, with its certainty in parentheses."""
    job = diagnosis.job
    call = call_of(diagnosis)
    if diagnosis.says:
        return diagnosis.says
    if diagnosis.kind == "none":
        return "nothing failed: every rank ended as it should (certain)"
    if diagnosis.kind == "unknown":
        where = f": {rank_names(job, diagnosis.waiting)} waited" if diagnosis.waiting else ""
        where += f" in {call}" if where and call else ""
        return f"the evidence does not tell what happened first{where}"
    if diagnosis.kind == "canceled" and not diagnosis.culprits:
        return f"the job {what_it_did(diagnosis)} ({diagnosis.certainty})"
    if diagnosis.kind == "link":
        between = " and ".join(map(one_line, diagnosis.nodes[:2]))
        where = (
            f" between {between}" if len(diagnosis.nodes) > 1 else f" of {between}" * bool(between)
        )
        waiting = f"; {rank_names(job, diagnosis.waiting)} waited" if diagnosis.waiting else ""
        waiting += f" in {call}" if waiting and call else ""
        return f"a connection{where} failed{waiting} ({diagnosis.certainty})"
    if diagnosis.kind == "mismatch":
        return f"{_mismatch(diagnosis, call)} ({diagnosis.certainty})"
    who = diagnosis.culprits or diagnosis.candidates
    names = rank_names(job, who)
    if not diagnosis.culprits and len(who) > 1:
        names = f"one of {names}"
    did = what_it_did(diagnosis)
    if diagnosis.kind == "missing_call" and set(diagnosis.waiting) <= set(diagnosis.culprits):
        return f"{names} made {call or 'a call'}, which the others did not make" + (
            f" ({diagnosis.certainty})"
        )
    if diagnosis.kind == "missing_call" and call:
        did = f"did not make {call}"
    likely = diagnosis.certainty == "likely" and diagnosis.kind == "killed"
    if likely:
        names = f"Probably {names} ended the job: {plural(len(who), 'it', 'they')}"
    text = f"{names} {did}"
    waiting = _waiting(diagnosis, standings)
    if waiting and diagnosis.kind == "missing_call" and call:
        text += f"; {waiting} waited for it there"
    elif waiting:
        text += f"; {waiting} waited for {'it' if len(who) == 1 else 'them'}"
        text += f" in {call}" if call else ""
    return text if likely else f"{text} ({diagnosis.certainty})"


def _waiting(diagnosis: Diagnosis, standings: Standings) -> str:
    waiting = [rank for rank in diagnosis.waiting if rank not in diagnosis.culprits]
    if not waiting:
        return ""
    if len(waiting) + len(diagnosis.culprits) == len(standings.ranks):
        if len(waiting) == 1:
            return rank_names(diagnosis.job, waiting)
        return f"the other {len(waiting)} ranks"
    return rank_names(diagnosis.job, waiting)


_ORIGIN = re.compile(r" \[\S+ \S+\]$|\d+")


def what_it_did(diagnosis: Diagnosis) -> str:
    """What the culprits did, such as ``was killed by SIGKILL``; '' where nothing says it."""
    text = about_kind("did", diagnosis.kind, diagnosis.detail)
    verb_plural = len(diagnosis.culprits or diagnosis.candidates) > 1
    if diagnosis.kind == "killed" and diagnosis.detail:
        text = f"was killed by {diagnosis.detail}"
    elif diagnosis.kind == "exit":
        text = f"ended with {diagnosis.detail}, without an error of its own"
    elif diagnosis.kind == "device_error" and diagnosis.detail:
        text = f"ended with a fault of its hardware: {diagnosis.detail}"
    elif diagnosis.kind == "exception" and diagnosis.evidence and diagnosis.culprits:
        errors = {_ORIGIN.sub("", e.text) for e in diagnosis.evidence if e.rank is not None}
        if len(errors) == 1 or len(diagnosis.culprits) == 1:
            text = f"ended with {shortened(diagnosis.evidence[0].text, 100)}"
    elif diagnosis.kind == "user_code":
        stacks = [line.text for line in diagnosis.evidence if line.rank in diagnosis.culprits]
        where = stacks[0].partition(";")[0].removeprefix("in user code: ") if stacks else ""
        text += f": {shortened(where, 100)}" if where else ""
    return text.replace("was ", "were ", 1) if verb_plural and text.startswith("was ") else text


DIFFERENCES = {
    "size": ("passed", "size"),
    "dtype": ("passed", "dtype"),
    "collective": ("called", "collective"),
}


def _mismatch(diagnosis: Diagnosis, call: str) -> str:
    job = diagnosis.job
    if diagnosis.detail in ("group", "order") and diagnosis.waiting == () and not call:
        return f"{rank_names(job, diagnosis.culprits)} wait for each other"
    names = rank_names(job, diagnosis.culprits or diagnosis.candidates)
    where = f" at {call}" if call else ""
    if diagnosis.detail == "group":
        in_call = f", one of them in {call}" if call else ""
        return (
            f"{names} wait for each other in different groups{in_call}: they use the groups in "
            "different orders"
        )
    verb, noun = DIFFERENCES.get(diagnosis.detail or "", ("made", "call"))
    if diagnosis.candidates:
        return f"one of {names} {verb} another {noun}{where}"
    others = set(diagnosis.waiting)
    if others and not others & set(diagnosis.culprits):
        count = counted(len(others), "other rank")
        return f"{names} {verb} a different {noun} than {count}{where}"
    return f"{names} {verb} different {noun}s{where}"
