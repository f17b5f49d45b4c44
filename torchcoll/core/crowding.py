"""Hosts whose ranks outnumber the cores that they may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_MOST = 1 << 16  # more CPUs no kernel numbers (Linux: NR_CPUS at most 8192)


def crowded(members: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(host, text) for each host whose ranks outnumber the cores that they may use.

    Then a call's time includes waiting for a core, which no network explains. ``members``: of a
    Run; where one does not tell its affinity (not Linux, other tools), nothing is known.
    """
    found = []
    members = list(members)
    for host in dict.fromkeys(str(m.get("host")) for m in members):
        here = [m for m in members if str(m.get("host")) == host]
        spans = [_numbers(m.get("affinity")) for m in here]
        cores = set().union(*spans)
        if all(spans) and len(here) > len(cores):
            plural = "s" if len(cores) > 1 else ""
            text = f"{len(here)} ranks share {len(cores)} core{plural}: "
            text += "times include waiting for a core"
            found.append((host, text))
    return found


def _numbers(text: object) -> set[int]:
    """``0-3,8`` as numbers; nothing where it is something else (a file edited by hand)."""
    if not isinstance(text, str):
        return set()
    spans = [part.split("-") for part in text.split(",") if part]
    if not all(word.strip().isdecimal() for span in spans for word in span):
        return set()
    ends = [(int(span[0]), int(span[-1])) for span in spans]
    if any(last >= _MOST for _, last in ends):
        return set()
    return {n for first, last in ends for n in range(first, last + 1)}
