"""The fabric of a run, and the run compared with the limits of that fabric."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchcoll.core import plausibility
from torchcoll.core.collectives import COLLECTIVES, DEFAULT_COLLECTIVE
from torchcoll.core.errors import UsageError
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of, is_hosts
from torchcoll.core.summary import Row
from torchcoll.core.units import (
    counted,
    format_digits,
    format_ranges,
    format_size,
    plural,
    shorten_list,
)
from torchcoll.libraries.nccl import ceilings
from torchcoll.questions.check import published, rules

PASS, WARN, FAIL = "PASS", "WARN", "FAIL"
CANNOT_TELL = "CANNOT TELL"  # a reference applies, and what it says is not enough to pass or fail
NO_REFERENCE = "NO REFERENCE"
WORDS = (FAIL, CANNOT_TELL, WARN, PASS, NO_REFERENCE)  # the worst first
# Shares of a reference, torchcoll's own choice: healthy systems of results/ and of public logs
# reach 90 to 102 % of the limits in rules/ from the sizes on that stand there; one of eight rails
# that is gone costs 12 %.
GOOD, POOR = 0.9, 0.75
# No statistic removes these: a case that takes twice its usual time never passes, and one that
# takes 6 times as long is slow. A healthy case of gloo on 2 busy cores took up to 4.3 times as long
# as the slowest of five other runs.
DOUBTED_FACTOR, SLOW_FACTOR = 2.0, 6.0

_ASK_LOG = "NCCL's log says why: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING, then torchcoll log"
_CHECK = "check the names of the GPUs, the number of ranks and the fabric: torchcoll show FILE"
_ALL_INTERFACES = "name the interface of each GPU in NCCL_IB_HCA, or unset it, and run it again"
FIND_SLOW = "torchcoll doctor, then torchcoll pairs, find what is slow"

_Best = tuple[float, Row, rules.Limit]  # the share of the limit of the best row of a collective


@dataclass(frozen=True)
class Phrase:
    """A part of the sentence.

    word: one of WORDS, or '' for a fact. between: joins the word and the text. next_step: what to
    do about it, as an imperative. explains: whether it is why the other phrases are so.
    """

    word: str
    text: str
    between: str = " "
    next_step: str = ""
    explains: bool = False

    def __str__(self) -> str:
        return f"{self.word}{self.between}{self.text}".strip()


def word_of(share: float) -> str:
    return PASS if share >= GOOD else WARN if share >= POOR else FAIL


def case_text(row: Row, among: Sequence[Row] = ()) -> str:
    """``all_reduce 1M``; with the placement and the backend if others of ``among`` have another."""
    size = format_size(row.size_bytes or row.size_bytes_requested)
    text = f"{row.collective} {size}" if COLLECTIVES[row.collective].has_data else row.collective
    case = row.collective, row.size_bytes
    alike = [other for other in among if (other.collective, other.size_bytes) == case]
    if len({other.in_place for other in alike}) > 1:
        text += " in place" if row.in_place else " out of place"
    return text + f" on {row.backend}" * (len({other.backend for other in alike}) > 1)


def correct_text(rows: Sequence[Row], noun: str) -> str:
    """``13 of 13 cases correct``, ``414 results correct, 180 not checked``; '' if none is."""
    correct = sum(row.verified == "correct" for row in rows)
    if not correct:
        return ""
    if correct == len(rows):
        return f"{correct} of {counted(correct, noun)} correct"
    wrong = sum(row.outcome == "wrong" for row in rows)
    others = f", {wrong} wrong" if wrong else ""
    unchecked = len(rows) - correct - wrong
    others += f", {unchecked} not checked" if unchecked else ""
    return f"{counted(correct, noun)} correct{others}"


def fabric_of(run: Run, asked_name: str | None) -> rules.Fabric | None:
    """The fabric that is stated (else by the label ``fabric``) or recognised; None if not known.

    Raises UsageError for an unknown fabric, or one that cannot be the run's.
    """
    asked_name = asked_name or run.labels.get("fabric")
    hosts = hosts_of(run)
    if not asked_name:
        return _recognised(run, hosts)
    fabric = rules.load_fabric(asked_name)
    if hosts and fabric.several_hosts != (hosts > 1):
        kind = "several hosts" if fabric.several_hosts else "one host"
        mismatch = f"{fabric.name} for a run on {counted(hosts, 'host')}"
        raise UsageError("fabric", mismatch, f"a fabric of this run; {fabric.name} is for {kind}")
    device = plausibility.device_of(run)
    devices = filter(None, map(plausibility.device_named, fabric.devices))
    links = {limits.ring_gbps for limits in devices}
    if device and links and device.ring_gbps not in links:  # an H200 has the links of an H100
        mismatch, whose = f"{fabric.name} for a run on {device.name}", ", ".join(fabric.devices)
        raise UsageError("fabric", mismatch, f"a fabric of this run; {fabric.name} is for {whose}")
    return fabric


def check_labels(labels: Mapping[str, str]) -> None:
    """Raises UsageError for labels that the verdict could not use after the run."""
    label = labels.get("fabric", "")
    if label.partition(":")[0] in rules.packaged():
        rules.load_fabric(label)
    if text := label_problem(Run(header={"spec": {"labels": dict(labels)}})):
        raise UsageError(text)


def label_problem(run: Run) -> str:
    """What is wrong with the labels ``link_gbps`` and, for imported tables, ``hosts``; '' if
    nothing is.
    """
    if "link_gbps" in run.labels and plausibility.stated_link_gbps(run) is None:
        label = repr(run.labels["link_gbps"])
        return str(UsageError("label link_gbps", label, "GB/s above 0"))
    if run.source and "hosts" in run.labels and not is_hosts(run.labels["hosts"]):
        label = repr(run.labels["hosts"])
        return str(UsageError("label hosts", label, "a whole number from 1 on"))
    return ""


def odd_links(run: Run) -> list[str]:
    """Ranks whose GPU has another number of active NVLinks than most of its kind."""
    kinds: dict[Any, list[tuple[int, int]]] = {}
    for rank, member in enumerate(run.members):
        if isinstance(member.get("nvlinks"), int):
            kinds.setdefault(member.get("device_name"), []).append((rank, member["nvlinks"]))
    texts = []
    for members in kinds.values():
        counts = Counter(links for _, links in members)
        usual = max(counts, key=lambda links: (counts[links], links))  # a link is lost, not won
        for count in sorted({links for _, links in members} - {usual}):
            ranks = [rank for rank, links in members if links == count]
            ranks_text = f"{plural(len(ranks), 'rank')} {format_ranges(ranks)}"
            texts.append(f"{count} NVLinks on {ranks_text}, {usual} on the others")
    return texts


def _recognised(run: Run, hosts: int) -> rules.Fabric | None:
    device = plausibility.device_of(run)
    links = [(m.get("nvlinks"), m.get("nvlink_to_switch")) for m in run.members]
    alike = bool(links) and links == links[:1] * len(links)  # an imported table has no ranks
    if device is None or hosts != 1 or not alike or None in links[0]:
        return None
    for fabric in rules.guessable():
        if device.name in fabric.devices and (fabric.nvlinks, fabric.to_switch) == links[0]:
            return fabric
    return None


# Parts that sit on a board with NVSwitch where there are eight: NVIDIA's names of the others have
# PCIe or NVL in them (nvidia.com/en-us/data-center: H100 PCIe, H100 NVL, H200 NVL, A100-PCIE).
_BOARD = re.compile(r"SXM|HBM3|\bH200$|\bH20$|\bB200$", re.IGNORECASE)
_CARD = re.compile(r"PCI|NVL\b", re.IGNORECASE)
_EIGHT = 8  # boards of four GPUs connect them without a switch


def by_names(run: Run) -> rules.Fabric | None:
    """The one fabric that the device and the hosts of another tool's output leave: those that its
    log names, or its labels ``gpu`` and ``hosts``. Its links are not known.
    """
    name = device_name_of(run)
    if not run.source or not name or hosts_of(run) != 1 or run.ranks != _EIGHT:
        return None
    device = plausibility.device_named(name)
    if device is None or _CARD.search(name) or not _BOARD.search(name):
        return None
    fabrics = [fabric for fabric in rules.guessable() if device.name in fabric.devices]
    return fabrics[0] if len(fabrics) == 1 else None


def device_name_of(run: Run) -> str:
    """The name that all ranks have with their hosts, or of imported rows the label ``gpu``."""
    if not run.members:
        return str(run.labels.get("gpu", ""))
    names = {str(m.get("device_name") or "") if m.get("host") else "" for m in run.members}
    return names.pop() if len(names) == 1 else ""


MOST_OF_A_HOST = 12  # ranks, where the hosts are unknown: of boards of 8 GPUs, or of 6 of two tiles
BEYOND = 1.05  # of the ring's limit: something better than a ring was used
# Of all limits of a fabric: it is another one. Some limits were measured, and others measure more.
_ANOTHER = 1.25


def by_fabric(rows: Sequence[Row], fabric: rules.Fabric | None, run: Run) -> list[Phrase]:
    """The headline, and what it does not say.

    rows: those with a result, of several ranks. An imported file may not say how many.
    """
    if all(row.ranks < 1 for row in rows):
        text = "where the number of ranks is unknown"
        return [Phrase(NO_REFERENCE, text, next_step="state it with --ranks N")]
    if fabric is None:
        return _no_reference(rows, run)
    device = plausibility.device_of(run) if fabric.several_hosts else None
    judged = list(_judged(rows, fabric, device))
    if not judged:
        return [Phrase(NO_REFERENCE, f"of {fabric.name} for these cases: {_held(rows, fabric)}")]
    headline, collective = _headline(fabric, judged, hosts_of(run))
    if headline[0].next_step == FIND_SLOW and (few := published.few_interfaces(run)):
        headline[0] = replace(headline[0], next_step=_ALL_INTERFACES)
        headline.insert(1, Phrase("", few))
    # A good number that hides a better one is no PASS: what was not used comes before it.
    unused = [phrase for name, phrase in _unused(fabric, judged) if name != collective]
    first = [*unused, *headline] if headline[0].word == PASS else [*headline, *unused]
    ranks = max(row.ranks for row in rows)
    if not fabric.several_hosts and not hosts_of(run) and ranks > MOST_OF_A_HOST:
        text = f"whether {ranks} ranks were on one host of {fabric.name}: the file names no hosts"
        next_step = "torchcoll convert FILE --label hosts=N -o RUN"
        of_one_host = (Phrase("", f"if they were: {phrase.text}") for phrase in first)
        return [Phrase(CANNOT_TELL, text, next_step=next_step), *of_one_host]
    judged_names = {row.collective for _, row, _ in judged}
    others = [row.collective for row in rows if _usable(row, fabric)]
    if names := [name for name in dict.fromkeys(others) if name not in judged_names]:
        text = f"not judged: {' and '.join(shorten_list(names, 3))}, without a limit at these sizes"
        first.append(Phrase("", text))
    return [*first, *_doubts(rows, fabric, judged, device)]


def _no_reference(rows: Sequence[Row], run: Run) -> list[Phrase]:
    where = " and ".join(
        dict.fromkeys(
            f"{row.backend}{' (RCCL)' if is_rccl(row) else ''} on {row.device}" for row in rows
        )
    )
    if all(row.device == "cpu" for row in rows):
        text = f"for {where}{' within one host' if hosts_of(run) == 1 else ''}"
        return [Phrase(NO_REFERENCE, text, next_step="torchcoll check FILE --baseline EARLIER-RUN")]
    text, next_step = published.no_reference_text(
        run, where.replace("unknown on unknown", "these figures")
    )
    reached = [Phrase("", case.text()) for case in published.standings(run, rows)[:1]]
    if reached and (few := published.few_interfaces(run)):
        reached.append(Phrase("", few))
        next_step = _ALL_INTERFACES
    return [Phrase(NO_REFERENCE, text, next_step=next_step), *reached]


def is_rccl(row: Row) -> bool:
    """Whether it ran on AMD's NCCL, which torch calls nccl too."""
    return (row.library or "").startswith("RCCL")


def _doubts(
    rows: Sequence[Row],
    fabric: rules.Fabric,
    judged: Sequence[_Best],
    device: plausibility.DeviceLimits | None,
) -> Iterator[Phrase]:
    """Cases that are far below the headline, which is the best of each collective."""
    for share, row, _ in judged:
        case = row.collective, row.size_bytes
        alike = [r for r in rows if (r.collective, r.size_bytes) == case]
        alike = [r for r in alike if _usable(r, fabric) and _held_by_any(fabric, r)]
        worst = min(alike, key=lambda r: r.busbw_gbps or 0.0)
        least = worst.busbw_gbps or 0.0
        if share < POOR or least >= POOR * _limit_of(worst, fabric, device).busbw_gbps:
            continue
        pairs = ((name, getattr(worst, name)) for name in plausibility.SWEEP)
        other = [f"{name} {value}" for name, value in pairs if value != getattr(row, name)]
        text = f"{format_digits(least, 4)} GB/s busbw in {' '.join([case_text(worst), *other])}"
        yield Phrase(
            WARN, f"{text}, {format_digits(row.busbw_gbps or 0.0, 4)} in the best of this size"
        )


def _headline(
    fabric: rules.Fabric, judged: Sequence[_Best], hosts: int
) -> tuple[list[Phrase], str]:
    """The phrases, and their collective.

    The lowest share decides. If that is good, all_reduce stands for the fabric. hosts: 0 if not
    known.
    """
    lowest = min(judged, key=lambda item: item[0])
    level = word_of(lowest[0])
    share, row, limit = _representative(judged) if level == PASS else lowest
    busbw = f"{format_digits(row.busbw_gbps or 0.0, 4)} GB/s busbw at {format_size(row.size_bytes)}"
    busbw += f" of {row.collective}" if len(judged) > 1 else ""
    of_limit = f"{100 * share:.1f} % of the {limit.algorithm} limit of {fabric.name}"
    of_limit += f" ({limit.source})"
    tree_gbps, where = _tree_limit(fabric, row, hosts) if share > BEYOND else (0.0, "")
    if 0 < (row.busbw_gbps or 0.0) <= BEYOND * tree_gbps:
        of_limit = f"{100 * (row.busbw_gbps or 0.0) / tree_gbps:.0f} % of what a tree carries "
        of_limit += f"between {where} ({tree_gbps:g} GB/s); above the {limit.algorithm} limit of "
        of_limit += f"{fabric.name} ({limit.busbw_gbps:g} GB/s)"
    if len(judged) > 1:
        least = f"{100 * lowest[0]:.1f} %"
        of_limit += f", {len(judged)} collectives at {least} and more" if level == PASS else ""
        of_limit += f", the lowest of {len(judged)} collectives" if level != PASS else ""
    most = {
        row.collective: max(
            *(x.busbw_gbps for x in fabric.limits if row.collective in x.collectives),
            _tree_limit(fabric, row, hosts)[0] * BEYOND / _ANOTHER,
        )
        for _, row, _ in judged
    }
    beyond = any((r.busbw_gbps or 0.0) > _ANOTHER * most[r.collective] for _, r, _ in judged)
    if beyond:
        reduces = "switches that reduce, " if fabric.several_hosts else ""
        text = f"{busbw} is more than {fabric.name} carries, {of_limit}: another fabric or GPU, "
        return [Phrase(WARN, f"{text}{reduces}or fewer ranks", next_step=_CHECK)], row.collective
    texts = [of_limit]
    if unused := _faster(fabric, row, limit):
        share = 100 * (row.busbw_gbps or 0.0) / unused.busbw_gbps
        of_unused = f"{share:.0f} % of {unused.algorithm} ({unused.busbw_gbps:g} GB/s), which "
        texts.insert(0 if level == PASS else 1, f"{of_unused}{_sure(row)}was not used")
    word = WARN if unused and level == PASS else level
    further = [Phrase("", text) for text in texts[1:]]
    step = "" if word == PASS else _ASK_LOG if level == PASS else FIND_SLOW
    return [Phrase(word, f"{busbw}, {texts[0]}", next_step=step), *further], row.collective


def _tree_limit(fabric: rules.Fabric, row: Row, hosts: int) -> tuple[float, str]:
    """The busbw in GB/s of an all_reduce that uses a tree between hosts, and between which hosts;
    (0, '') where no tree was used. Hosts of 8 ranks are assumed where ``hosts`` is 0.
    """
    rings = [x.busbw_gbps for x in fabric.limits if row.collective in x.collectives]
    ring_was_used = "RING" in (row.algorithm or "").upper()
    if not fabric.several_hosts or row.collective != DEFAULT_COLLECTIVE or ring_was_used:
        return 0.0, ""
    count = hosts or max(2, round(row.ranks / 8))
    where = counted(count, "host") + ("" if hosts else " of 8 ranks")
    return ceilings.tree_gbps(max(rings), count, row.ranks), where


def _representative(judged: Sequence[_Best]) -> _Best:
    """That of all_reduce, or the lowest share without one."""
    reduced = (item for item in judged if item[1].collective == DEFAULT_COLLECTIVE)
    return next(reduced, min(judged, key=lambda item: item[0]))


def _held(rows: Sequence[Row], fabric: rules.Fabric) -> str:
    """From which sizes on the limits of a fabric hold for the collectives that ran."""
    ran = {row.collective for row in rows if fabric.connects(row)}
    if not ran:
        return "they did not go through it"
    ranks = max(row.ranks for row in rows)
    least_sizes: dict[str, int] = {}
    for limit in fabric.limits:
        for name in limit.collectives:
            least_sizes[name] = min(limit.least(ranks), least_sizes.get(name, limit.least(ranks)))
    asked = {name: size for name, size in least_sizes.items() if name in ran} or least_sizes
    by_size: dict[int, list[str]] = {}
    for name, size_bytes in asked.items():
        by_size.setdefault(size_bytes, []).append(name)
    texts = (f"{', '.join(names)} from {format_size(size)}" for size, names in by_size.items())
    return f"it has limits for {' and '.join(texts)}"


def _judged(
    rows: Sequence[Row], fabric: rules.Fabric, device: plausibility.DeviceLimits | None
) -> Iterator[_Best]:
    """Yields for each collective the share of its best row at the largest size, that row and its
    limit.
    """
    connected: dict[tuple[object, ...], bool] = {}  # rows are many, and of few kinds
    usable = []
    for row in rows:
        kind = (row.backend, row.device, row.group)
        if kind not in connected:
            connected[kind] = fabric.connects(row)
        if connected[kind] and _has_bandwidth(row):
            usable.append(row)
    for collective in dict.fromkeys(row.collective for row in usable):
        of_collective = [row for row in usable if row.collective == collective]
        by_size: dict[int, list[Row]] = {}
        for row in of_collective:
            by_size.setdefault(row.size_bytes, []).append(row)
        for size_bytes in sorted(by_size, reverse=True):
            held = [row for row in by_size[size_bytes] if _held_by_any(fabric, row)]
            if held:
                row = max(held, key=lambda r: r.busbw_gbps or 0)
                limit = _limit_of(row, fabric, device)
                yield (row.busbw_gbps or 0.0) / limit.busbw_gbps, row, limit
                break


def _usable(row: Row, fabric: rules.Fabric) -> bool:
    """Whether the bandwidth of a row is that of the fabric."""
    return _has_bandwidth(row) and fabric.connects(row)


def _has_bandwidth(row: Row) -> bool:
    """Whether a row has a bandwidth. Enqueueing alone moves nothing."""
    return bool(row.busbw_gbps) and row.ranks > 1 and row.clock != "issue"


def _held_by_any(fabric: rules.Fabric, row: Row) -> bool:
    return any(limit.holds(row) for limit in fabric.limits)


def _limit_of(
    row: Row, fabric: rules.Fabric, device: plausibility.DeviceLimits | None
) -> rules.Limit:
    """The limit of the algorithm in the log; else the lowest limit that allows the bandwidth."""
    here = sorted((x for x in fabric.limits if x.holds(row)), key=lambda x: x.busbw_gbps)
    named = [x for x in here if x.algorithm.upper() in (row.algorithm or "").upper()]
    busbw = row.busbw_gbps or 0.0
    limit = next((x for x in named or here if busbw <= BEYOND * x.busbw_gbps), (named or here)[-1])
    gbps, source = rules.capped(limit, device)
    return rules.Limit(limit.algorithm, limit.collectives, gbps, source)


def _unused(fabric: rules.Fabric, judged: Sequence[_Best]) -> Iterator[tuple[str, Phrase]]:
    """Collectives in which a faster algorithm of the fabric was not used, though it could be."""
    for _, row, used in judged:
        if limit := _faster(fabric, row, used):
            where = f" in {row.collective}" if len(judged) > 1 else ""
            text = f"{limit.algorithm} {_sure(row)}was not used{where}: it would allow about"
            yield row.collective, Phrase(WARN, f"{text} {limit.busbw_gbps:g} GB/s")


def _faster(fabric: rules.Fabric, row: Row, used: rules.Limit) -> rules.Limit | None:
    """The fastest algorithm that the fabric offers for the row, where that is another one."""
    others = [
        limit
        for limit in fabric.limits
        if limit.holds(row)
        and limit.busbw_gbps > BEYOND * used.busbw_gbps
        and limit.algorithm != used.algorithm
    ]
    return max(others, key=lambda limit: limit.busbw_gbps, default=None)


def _sure(row: Row) -> str:
    """Without a log of the library it follows from the bandwidth alone."""
    return "" if row.algorithm else "apparently "
