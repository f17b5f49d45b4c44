"""What is said of a suspect: one line, and the events of a result file."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torchcoll.core.pair_times import LATENCY, Pairs
from torchcoll.core.suspects import Evidence, Noise, Suspect
from torchcoll.core.tournament import ITERS, SIZES
from torchcoll.core.units import format_size

_TOLD = 3  # kinds of calls in the line of a suspect


def suspect_text(pairs: Pairs, suspect: Suspect) -> str:
    """One line: who, at how much of the others, and how sure."""
    if suspect.is_link:
        who = f"link of {pairs.ranks(suspect.units[0])} and {pairs.ranks(suspect.units[1])}"
    else:
        who = pairs.ranks(suspect.units[0])
    words = []
    told = [one for one in suspect.evidence if one.stands is not False or not suspect.stands]
    for one in told[:_TOLD]:
        where = "" if len({*pairs.hosts}) in (1, len(pairs.units)) else _where(one)
        count = "" if suspect.is_link else f", {one.slow} of {one.pairs} pairs slow"
        alone = (
            ", not checked alone"
            if one.alone_ratio is None
            else f", alone {100 * one.alone_ratio:.0f} %"
        )
        z = "" if one.z == float("-inf") else f", z {one.z:.0f}"
        words.append(f"{one.what}{where} {100 * one.ratio:.0f} %{count}{z}{alone}")
    more = f"; and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
    return f"{who}: of the others' speed " + "; ".join(words) + more


def noise_text(pairs: Pairs, several: Sequence[Noise]) -> str:
    """One line for all kinds of calls that are too noisy for the threshold that was asked for:
    which scatter by how much, what can still be seen, and what helps; '' where none is.

    A latency has a threshold of its own, which nobody asked for: it is said where nothing else was
    measured.
    """
    bandwidth = any(kind != LATENCY for kind, _ in pairs.times)
    told = [one for one in several if not bandwidth or one.what != LATENCY]
    if not told:
        return ""
    actions = []
    if any(one.what != LATENCY and one.nbytes < SIZES[0] for one in told):
        actions.append(f"--sizes {format_size(SIZES[0])}")
    if any(one.calls < ITERS for one in told):
        actions.append(f"-n {ITERS}")
    least = max(map(_least, told))
    if not actions and least < 100 and bandwidth:
        actions = [f"--threshold {least}%"]
    use = f"; use {' '.join(actions)}" if actions else ""
    words = ", ".join(noise_words(pairs, one) for one in told)
    return f"too noisy to accuse at {100 * told[0].threshold:g} %: {words}{use}"


def noise_words(pairs: Pairs, one: Noise) -> str:
    """``both ways 1M x 3 calls spread by 27 % (seen from 62 % on)``: of one kind of calls."""
    where = "" if len({*pairs.hosts}) in (1, len(pairs.units)) else _where(one)
    scatter = f"spread by {100 * one.spread:.0f} %"
    if one.between > one.spread:
        scatter = f"differ by {100 * one.between:.0f} % from pair to pair"
    calls = f"{one.what}{where} {format_size(one.nbytes)} x {one.calls} calls"
    return f"{calls} {scatter} (seen from {_least(one)} % on)"


def _least(one: Noise) -> int:
    return math.ceil(100 * one.seen)


def _where(one: Evidence | Noise) -> str:
    return " within the node" if one.within else " between nodes"


def events(pairs: Pairs, found: Sequence[Suspect]) -> list[dict[str, Any]]:
    """An event for each node with a standing suspect, and for each suspect link: kind, message,
    ranks, and ``host`` (a node) or ``link`` (the hosts of both ends).
    """
    standing = [one for one in found if one.stands]
    nodes: defaultdict[str, list[Suspect]] = defaultdict(list)
    told = []
    for one in standing:
        if not one.is_link:
            nodes[pairs.hosts[one.units[0]]].append(one)
    for host, own in nodes.items():
        ranks = [rank for one in own for rank in pairs.units[one.units[0]]]
        message = suspect_text(pairs, own[0])
        if len(own) > 1:
            of = sum(1 for unit_host in pairs.hosts if unit_host == host)
            message = f"{len(own)} of {of} ranks of node {host}; {message}"
        told.append({"kind": "suspect", "message": message, "host": host, "ranks": ranks})
    for one in standing:
        if one.is_link:
            ends = [pairs.hosts[unit] for unit in one.units]
            ranks = [rank for unit in one.units for rank in pairs.units[unit]]
            message = suspect_text(pairs, one)
            told.append({"kind": "suspect", "message": message, "link": ends, "ranks": ranks})
    return told
