"""Finds the known texts of a log (texts.py), and concludes from them where no record of calls does.

A pasted console log rarely says which ranks a job had, but often holds the cause in words. The
watchdogs name the ranks that waited, so the ranks that did not report are the ones to look at.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import cut_text, one_line
from torchcoll.core.opening import open_to_read
from torchcoll.core.units import format_digits, plural, shorten
from torchcoll.parts.postmortem.conclusions import ended_by_itself
from torchcoll.parts.postmortem.diagnosis import (
    Diagnosis,
    EvidenceLine,
    call_of,
    ranks_text,
    shortened,
)
from torchcoll.parts.postmortem.evidence import (
    ENDED_BY_ITSELF,
    LogTexts,
    Place,
    TextMatch,
    WaitedCall,
)
from torchcoll.parts.postmortem.job_facts import MARGIN_NS, JobFacts, signal_name
from torchcoll.parts.postmortem.standing import SAME_SIZE
from torchcoll.parts.postmortem.texts import ASIDES, REMEDIES, TEXTS, Text, about_kind
from torchcoll.reading.torch_names import torch_collective

_MOST_BYTES = 32 << 20  # of a file: its first and its last half of that
_MOST_MATCHES = 10_000
_EXCERPT = 160
_NEAR = 2000  # characters of a line around a text: lines may be very long
_SIGNAL_DIGITS = 3
_OF_HOSTS = ("shared memory", "disk full")  # causes that are of a host
_WENT_ON = 50  # lines of progress after an exception that somebody must have handled
# A line that shows that its rank trains on.
PROGRESS = re.compile(r"\b(?:step|iter(?:ation)?|epoch|batch|INFO)\b|it/s\b", re.IGNORECASE)
# A progress bar of work that comes before a training, such as tokenizing.
_PREPARES = re.compile(
    r"(?:prepar|process|tokeni|load|map|filter|download|cach|generat)\w{0,12}\b[^\r\n]{0,80}\|\s*"
    r"(\d+)/(\d+) \[(\d+:\d+(?::\d+)?)",
    re.IGNORECASE,
)
_WATCHDOG = re.compile(
    r"\[Rank (\d{1,7})\]\s+Watchdog caught collective operation timeout:\s*WorkNCCL\("
    r"(?:SeqNum=(\d{1,18}))?[,.\s]*OpType=(\w+)(?:,\s*NumelIn=(\d{1,18}))?"
    r"(?:[^()]{0,200}\(ms\)=(\d{1,12})(?:\)\s+ran\s+for\s+(\d{1,12})\s)?)?"
)
# Names of ranks of the world on a line, the surest first. [PG 5 Rank 0] has the rank in the group.
_WRITERS = (
    re.compile(r"\[rank(\d{1,7})\]"),
    re.compile(r"\[Rank (\d{1,7})\]|(?:PG 0|default_pg\)|PG ID 0 PG GUID 0) Rank (\d{1,7})\]"),
    re.compile(r"\[\d{1,7},(\d{1,7})\]\s?<std|\(\w+ rank=(\d{1,7}) pid="),
)
_LOCAL = re.compile(r"^\[[A-Za-z_]{1,40}?(\d{1,5})\]:", re.M)
_REPORTS = ("ProcessGroupNCCL", "Watchdog", "DistBackendError")  # on lines of a failed call
_END = 1 << 20  # characters at the end, which have the last progress bar
_NCCL_PROCESS = re.compile(r"([\w.-]{1,255}):\d+:\d+ \[(\d+)\] ")


def read_texts(path: Path, shown: str) -> LogTexts:
    """What the known texts of a file say; of a large file, those of its beginning and its end."""
    text = _read(path)
    texts = LogTexts()
    for each in TEXTS:
        if each.literals and not any(literal in text for literal in each.literals):
            continue
        for match in _matches(each.pattern, text):
            texts.findings.append(_finding(each, match, text, shown))
    for match in _matches(_WATCHDOG, text):
        rank, number, operation, elements, limit, duration = match.groups()
        if int(rank) < MOST_RANKS:
            if limit:
                texts.waited_ms.setdefault(int(rank), int(duration or limit))
            collective = torch_collective(operation.lower())
            compared = elements and collective in SAME_SIZE
            call = (int(number or 0), collective, int(elements) if compared else 0)
            calls = texts.waits.setdefault(int(rank), [])
            if call not in calls:
                calls.append(call)
    for line in _lines_with(_REPORTS, text):
        if (rank_of_line := _writer(line, "")) is not None:
            texts.reporting.add(rank_of_line)
    for match in _matches(_WRITERS[0], text):
        if int(match[1]) < MOST_RANKS:
            texts.seen.add(int(match[1]))
    texts.reporting |= texts.waits.keys()
    texts.seen_local = {int(rank) for rank in set(_LOCAL.findall(text))}
    texts.ends = text[-_NEAR:].rstrip().splitlines()[-1:]
    tail = max(0, len(text) - _END)
    if steps := [*_matches(PROGRESS, text[tail:])]:
        texts.last_progress[shown] = text.count("\n", 0, tail + steps[-1].start()) + 1
    for pattern, says in ASIDES:
        if matches := [*_matches(pattern, text[-_END:])]:
            texts.asides.append(one_line(says.format(*matches[-1].groups())))
    for match in _matches(_PREPARES, text[-_END:]):
        texts.prepares = "{} of {} after {}".format(*match.groups())
    return texts


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    for number, match in enumerate(pattern.finditer(text)):
        if number == _MOST_MATCHES:
            return
        yield match


def _lines_with(literals: Sequence[str], text: str) -> Iterator[str]:
    for literal in literals:
        position = text.find(literal)
        while position >= 0:
            end = text.find("\n", position)
            yield text[text.rfind("\n", 0, position) + 1 : end if end >= 0 else len(text)]
            position = text.find(literal, end) if end >= 0 else -1


def _read(path: Path) -> str:
    with open_to_read(path) as file:
        content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            half = _MOST_BYTES // 2
            tail = content[half:]
            while piece := file.read(half):
                tail = (tail + piece)[-half:]
            content = content[:half] + b"\n" + tail
    return content.decode(errors="replace")


def _finding(text: Text, match: re.Match[str], content: str, shown: str) -> TextMatch:
    begin = content.rfind("\n", 0, match.start()) + 1
    end = content.find("\n", match.end())
    line = content[begin : min(end if end >= 0 else len(content), match.end() + _NEAR)]
    before = content[begin : match.end()]
    if line[:1].islower() and begin:  # a terminal wrapped the line
        before = content[content.rfind("\n", 0, begin - 1) + 1 : match.end()]
    before = before[-_NEAR:]
    rank = _writer(before, line[match.end() - begin :])
    processes = [*_NCCL_PROCESS.finditer(before)]
    process = processes[-1] if processes else None
    return TextMatch(
        text,
        tuple(group or "" for group in match.groups()),
        {name: group or "" for name, group in match.groupdict().items()},
        Place(shown, content.count("\n", 0, match.start()) + 1),
        one_line(line[: match.end() - begin + _EXCERPT].strip())[:_EXCERPT],
        rank=rank,
        host=process[1] if process else "",
        device=process[2] if process else "",
    )


def _writer(before: str, after: str) -> int | None:
    """The rank that writes a line: the surest name before the message, else the next one after."""
    for text, index in ((before, -1), (after, 0)):
        for pattern in _WRITERS:
            if named := pattern.findall(text):
                groups = named[index]
                rank = (
                    groups if isinstance(groups, str) else next(group for group in groups if group)
                )
                return int(rank) if int(rank) < MOST_RANKS else None
    return None


# What the findings say.


def proven_by_text(facts: JobFacts) -> Diagnosis | None:
    """A text that proves a cause. That a job never formed is proven only if it made no call."""
    findings = [finding for finding in facts.job.texts.findings if not finding.text.weak]
    if facts.job.calls or facts.job.texts.waits:
        findings = [finding for finding in findings if finding.text.cause != "never formed"]
    return _of_findings(facts, findings)


_OF_GPU = re.compile(r"\b(?:CUDA|HIP|NCCL)", re.IGNORECASE)
_DAY_NS = 86_400 * 10**9


def device_fault(facts: JobFacts) -> Diagnosis | None:
    """A fault of a GPU in the kernel's log, on the host of a rank that ended with an error of CUDA.

    The traceback only shows where the rank noticed the fault.
    """
    result, job = ended_by_itself(facts), facts.job
    if result is None or result.kind not in ("exception", "killed", "node_failed"):
        return None
    failed = {event.rank for event in job.events_of("exception") if _OF_GPU.search(event.text)}
    noticed = {rank for rank in result.culprits if rank in failed}
    xids = [event for event in job.events if "Xid (" in event.text]
    ends_ns = max((e.when_ns or 0 for e in job.events if e not in xids), default=0) + MARGIN_NS
    texts = {f.place: f for f in job.texts.findings if f.text.cause == "device error"}
    for event in xids:
        ranks = {rank for rank in noticed if event.node and job.nodes.get(rank) == event.node}
        before_ns = ends_ns - event.when_ns if event.when_ns and ends_ns > MARGIN_NS else 0
        if event.place in texts and ranks and 0 <= before_ns < _DAY_NS:
            break
    else:
        return None
    fault = replace(texts[event.place], host=event.node, rank=min(ranks))
    result.kind, result.nodes = "device_error", (event.node,)
    result.culprits = tuple(sorted(ranks))
    result.detail, result.remedy = sentences(fault, [fault])
    reboot = any("Reboot Required" in each.text and each.node == event.node for each in xids)
    drain = f"drain {event.node}" + " and reboot it" * reboot
    result.remedy = result.remedy.replace("drain the node", drain)
    result.evidence.insert(0, EvidenceLine(event.text, event.place))
    return result


def hinted_by_text(facts: JobFacts) -> Diagnosis | None:
    """A text that follows from a first failure, or leaves open whose it is."""
    findings = [finding for finding in facts.job.texts.findings if finding.text.weak]
    if facts.events.complaining:  # these ranks only noticed that another one was missing
        findings = [finding for finding in findings if finding.text.cause != "exit"]
    findings = [finding for finding in findings if "127.0.0.1" not in finding.groups]
    return _of_findings(facts, findings)


def raised_by_a_rank(facts: JobFacts) -> Diagnosis | None:
    """An exception that no line attributes to a rank, after which no rank went on for long."""
    last = facts.job.texts.last_progress
    events = [
        event
        for event in facts.job.events_of(*ENDED_BY_ITSELF)
        if event.rank is None and event.pid is None and event.fatal is not None
        if (event.place.line or 0) + _WENT_ON > last.get(event.place.path, 0)
    ]
    if not events or facts.events.complaining or facts.job.texts.waits:
        return None
    result = Diagnosis(facts.job, kind=events[0].kind, certainty="likely")
    result.says = f"a rank ended with {shortened(events[0].text, 120)}"
    result.evidence += [EvidenceLine(event.text, event.place) for event in events[:3]]
    return result


def _of_findings(facts: JobFacts, findings: Sequence[TextMatch]) -> Diagnosis | None:
    if not findings:
        return None
    first = min(findings, key=lambda finding: TEXTS.index(finding.text))
    same = [finding for finding in findings if finding.text is first.text]
    result = Diagnosis(facts.job, kind=first.text.cause.replace(" ", "_"), certainty="likely")
    result.says, result.remedy = sentences(first, same)
    result.calls = _different_calls(first)
    if first.text.whose == "writer":
        result.culprits = tuple(sorted({f.rank for f in same if f.rank is not None}))
    elif first.text.whose == "named":
        result.culprits = tuple(sorted(_named(same)))
    hosts = [finding.host or finding.names.get("host", "") for finding in same]
    result.nodes = tuple(dict.fromkeys(host for host in hosts if host))
    if first.text.cause in _OF_HOSTS and result.nodes and result.nodes[0] not in result.says:
        result.says += f" on {shorten(result.nodes, 3)}"
    # An exception without a rank often repeats what a line of a rank says.
    ranked = {finding.groups for finding in same if finding.rank is not None and finding.groups}
    once = [finding for finding in same if finding.rank is not None or finding.groups not in ranked]
    for finding in once[:3]:
        result.cite(finding.excerpt, finding.place, finding.rank)
    waits = facts.job.texts.waits
    if waits:
        result.waiting = tuple(sorted(waits.keys() - set(result.culprits)))
        counts = Counter(each for calls in waits.values() for each in calls)
        where = _call(counts.most_common(1)[0][0])
        result.reasons.append(f"{ranks_text(sorted(waits))} waited in {where}")
    elif result.culprits and facts.waiting_by_stack:
        facts.name_call(result, result.culprits)
        verb, call = plural(len(result.waiting), "waits", "wait"), call_of(result)
        result.says += f"; {facts.names(result.waiting)} {verb} in {call}" * bool(call)
    result.details += facts.job.texts.asides
    return result


def _named(same: Sequence[TextMatch]) -> set[int]:
    """The ranks that texts name."""
    named = " ".join(f.names.get(name, "") for f in same for name in ("rank", "rank2", "ranks"))
    return {int(number) for number in re.findall(r"\b\d{1,6}\b", named)}


def sentences(first: TextMatch, same: Sequence[TextMatch]) -> tuple[str, str]:
    """(what a text says, what to do), of several ranks that have it alike."""
    if calls := _different_calls(first):
        return _mismatch(first, calls)
    ranks = {finding.rank for finding in same if finding.rank is not None}
    who = ranks_text(ranks) if ranks else "a rank"
    if not ranks and first.device:
        who = f"GPU {first.device} of {first.host}"
    elif not ranks and (process := re.search(r"\(\w+ pid=(\d+)", first.excerpt)):
        who = f"process {process[1]}"
    filled = next((group for group in first.groups if group), "")
    numbers = (group for group in reversed(first.groups) if group.isdecimal())
    number = int(next(numbers, "0")[:_SIGNAL_DIGITS])
    host = first.host or (filled if first.text.cause == "peer lost" else "the node")
    values = {
        "rank": who,
        "named": ranks_text(_named(same)),
        "any": filled,
        "host": host,
        "signal": signal_name(number),
        "killed": about_kind("remedy", "killed", signal_name(number)),
        "rank_": first.names.get("rank", ""),
        **{name: group for name, group in first.names.items() if name != "rank"},
    }
    if "ranks" in values:
        values["ranks"] = ranks_text(map(int, re.findall(r"\b\d{1,6}\b", values["ranks"])))
    if "after" in values:
        seconds = int(values["after"]) / (1000 if values["unit"] == "ms" else 1)
        minutes = f" ({format_digits(seconds / 60, 2)} min)" if seconds >= 120 else ""
        values["after"] = f"{format_digits(seconds)} s{minutes}"
    if "op1" in values:
        values["op1"] = torch_collective(values["op1"].lower())
    says = cut_text(one_line(first.text.says.format(*first.groups, **values)), 400)
    remedy = one_line(first.text.remedy.format(*first.groups, **values))
    if first.names.get("came", "0").isdigit() and first.names.get("world", "").isdigit():
        came, world = int(first.names["came"]), int(first.names["world"])
        if came > world:
            says = f"the job never formed: {came} ranks joined a job of {world}"
            remedy = (
                "another launch uses the same store, or the job was started twice: choose another "
                "MASTER_PORT or file, and start it once"
            )
    return says, remedy


def _different_calls(finding: TextMatch) -> dict[int, tuple[int | None, str]]:
    """The calls of two ranks, as torch's debug mode prints them; {} from any other text."""
    names = finding.names
    if finding.text.cause != "mismatch" or not {"rank2", "op2"} <= names.keys():
        return {}
    return {
        int(names[rank]): (
            int(names[number]) if names[number] else None,
            torch_collective(names[op].lower()),
        )
        for rank, number, op in (("rank", "n1", "op1"), ("rank2", "n2", "op2"))
    }


def _mismatch(finding: TextMatch, different: dict[int, tuple[int | None, str]]) -> tuple[str, str]:
    names = finding.names
    ranks = f"ranks {names['rank']} and {names['rank2']}"
    calls = [
        text + (f" number {number}" if number is not None else "")
        for number, text in different.values()
    ]
    shapes = names["shape1"], names["shape2"]
    if calls[0] == calls[1] and all(shapes) and shapes[0] != shapes[1]:
        says = f"{ranks} passed different sizes at {calls[0]}: [{shapes[0]}] and [{shapes[1]}]"
        return says, "make all ranks pass the same sizes, or pad the tensors to one shape"
    return f"{ranks} are at different calls: {calls[0]} and {calls[1]}", REMEDIES["same_calls"]


# What the watchdogs say.


def missing_from_reports(facts: JobFacts) -> Diagnosis | None:
    """The complement of the ranks whose watchdogs report: those did not come."""
    texts = facts.job.texts
    if not texts.waits:
        return None
    if any(len(calls) > 1 for calls in texts.waits.values()):
        # numbers are of several groups, and torch does not say of which
        return _all_waited(facts, "the last calls of every rank")
    calls: dict[WaitedCall, list[int]] = defaultdict(list)
    for rank, (call, *_) in sorted(texts.waits.items()):
        calls[call].append(rank)
    if len(calls) > 1:
        return _in_different_calls(facts, calls)
    ((call, ranks),) = calls.items()
    world = facts.job.ranks or max(texts.reporting | texts.seen) + 1
    missing = sorted({*range(world)} - {*ranks})
    # Of an excerpt, a rank that does not report may only have been cut away.
    if not missing or texts.reporting != {*ranks} or 3 * len(missing) > len(ranks):
        return _all_waited(facts, "the logs of all ranks")
    verb = plural(len(missing), "does", "do")
    result = Diagnosis(facts.job, kind="stopped", certainty="likely", culprits=tuple(missing))
    result.number, result.collective, result.waiting = call[0] or None, call[1], tuple(ranks)
    result.says = (
        f"Probably {ranks_text(missing)} {verb} not come to {_call(call)}: all others "
        f"({ranks_text(ranks)}) waited there"
    )
    each = "it" if len(missing) == 1 else "each of them"
    result.remedy = f"look at what {each} did instead: log, stack (py-spy dump) and node"
    result.details += texts.asides
    return result


def _all_waited(facts: JobFacts, collect: str) -> Diagnosis:
    texts = facts.job.texts
    result = Diagnosis(facts.job, waiting=tuple(sorted(texts.waits)))
    calls = Counter(call for calls in texts.waits.values() for call in calls)
    call = calls.most_common(1)[0][0]
    if len(calls) > 1:
        call = (0, call[1], 0)
    result.number, result.collective = call[0] or None, call[1]
    verb = plural(len(texts.waits), "waits", "wait")
    result.says = (
        f"{ranks_text(texts.waits)} {verb} in {_call(call)} for a rank that is not in this log"
    )
    if len(calls) > 1:
        result.says = (
            f"{ranks_text(texts.waits)} {verb} in {call[1]} of several groups: the log does not "
            "tell for which rank"
        )
        collect = (
            "the logs of all ranks, with TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1"
        )
    done = {rank for (rank, _), number in facts.job.last_completed.items() if number == call[0] - 1}
    if at_it := done - texts.waits.keys():
        text = f"{ranks_text(at_it)} completed number {call[0] - 1} last, and {verb} there too"
        result.details.append(text.replace(" waits ", " wait ") if len(at_it) > 1 else text)
        result.cite(text.partition(",")[0], Place(facts.job.files[0].path))
    world = max(texts.reporting | texts.seen) + 1
    missing = sorted({*range(world)} - texts.reporting)
    where = "the rank without a timeout" if len(calls) == 1 else ""
    if missing:
        result.details.append(f"{ranks_text(missing)} did not report")
        if len(missing) < len(texts.waits) + len(at_it):
            where = f"{ranks_text(missing)} first"
    result.remedy = f"collect {collect}" + f": look at {where}" * bool(where)
    if not texts.prepares:
        result.details += texts.asides
        return result
    minutes = max(texts.waited_ms.values(), default=0) / 60_000
    limit = f" above {minutes:.0f} min" if minutes >= 1 else ""
    result.remedy = "prepare the data before the first collective, or raise timeout= of "
    result.remedy += f"init_process_group{limit}"
    if len(missing) == 1:
        result.kind, result.certainty, result.culprits = "slow", "likely", tuple(missing)
        result.says = (
            f"Probably {ranks_text(missing)} still prepared data ({texts.prepares}) while "
            f"{ranks_text(texts.waits)} waited in {_call(call)}"
        )
        result.details = []
    else:
        result.details.append(f"a rank may still prepare data ({texts.prepares})")
    return result


def _in_different_calls(facts: JobFacts, calls: dict[WaitedCall, list[int]]) -> Diagnosis:
    """The fewest ranks are in another call, behind or ahead. Only the same number with another
    operation or size proves that the ranks call in different orders.
    """
    most = max(calls, key=lambda call: (len(calls[call]), call[0]))
    others = sorted((call for call in calls if call != most), key=lambda call: -len(calls[call]))
    odd = sorted(rank for call in others for rank in calls[call])
    other, gaps = others[0], {most[0] - call[0] for call in others if call[0] and most[0]}
    result = Diagnosis(facts.job, kind="mismatch", certainty="likely", culprits=tuple(odd))
    result.waiting, result.details = tuple(calls[most]), [*facts.job.texts.asides]
    result.calls = {rank: (call[0] or None, call[1]) for call in calls for rank in calls[call]}
    result.number, result.collective = other[0] or None, other[1]
    result.says = f"{ranks_text(odd)} {plural(len(odd), 'is', 'are')} "
    result.remedy = REMEDIES["same_calls"]
    timeouts = facts.events.timeouts
    lines = [EvidenceLine(e.text, e.place, rank) for rank in odd if (e := timeouts.get(rank))]
    result.evidence += lines[:3]
    if gaps and 0 not in gaps:
        where = "behind" if min(gaps) > 0 else "ahead" if max(gaps) < 0 else "behind or ahead"
        gap = {1: "one call "}.get(abs(min(gaps)), f"{abs(min(gaps))} calls ") * (len(gaps) == 1)
        numbers = " and ".join(map(str, sorted({call[0] for call in others})))
        those = f"the {plural(len(calls[most]), 'other')} {most[0]}"
        if len(others) == 1 and other[1] != most[1]:
            numbers, those = _call(other), those.replace(str(most[0]), _call(most))
        else:
            numbers = f"call {numbers}"
        result.says += f"{gap}{where} ({numbers}, {those})"
        whose, number, on = "the other ranks'", most[0], ranks_text(odd)
        if where == "behind":
            result.kind = "stopped"
            whose, number = plural(len(odd), "its", "their"), other[0]
            on = f"the other {plural(len(calls[most]), 'rank')}"
        elif where == "ahead":
            result.detail = where
        result.remedy = f"look at {whose} GPU, link and host; if call {number} was another "
        result.remedy += f"collective on {on}, mend the order"
        return result
    sizes = [f" of {call[2]} elements" if other[:2] == most[:2] else "" for call in (other, most)]
    result.says += "in a call of another size: " if sizes[0] else "in another call: "
    result.says += (
        f"{_call(other)}{sizes[0]}, while {ranks_text(calls[most])} "
        f"{plural(len(calls[most]), 'waits', 'wait')} in {_call(most)}{sizes[1]}"
    )
    return result


def _call(call: WaitedCall) -> str:
    return f"{call[1]} number {call[0]}" if call[0] else call[1]
