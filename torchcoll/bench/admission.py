"""May a case run? Rank 0 decides for all ranks from what each says before the case."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torchcoll.bench.control import Control
from torchcoll.bench.disagreement import of_case
from torchcoll.core.case import Sizing
from torchcoll.core.plan import impossible, needs_nbytes
from torchcoll.core.units import format_bytes

FREE_SHARE = 0.8  # of the free memory of a host; the rest is for what else lives there


def admit(
    sizing: Sizing,
    parts: Sequence[Sequence[int]],
    words: list[dict[str, Any]],
    control: Control,
    check: bool,
) -> list[str] | None:
    """None to run it, else [status, reason]; ["disagreement", what, got, expected, action] where
    the ranks are not about to run the same case.

    ``sizing`` is that of the largest of the sub-groups ``parts``. ``words``: from each rank the
    hash of its case, where its buffers live and the free bytes there.
    """
    sizes = sorted({len(part) for part in parts})
    refused = next(filter(None, (impossible(sizing.case, size) for size in sizes)), None)
    return (
        _disagreement(sizing, words, control)
        or (list(refused) if refused else None)
        or _too_large(sizing, parts, words, check)
    )


def _disagreement(
    sizing: Sizing, words: list[dict[str, Any]], control: Control
) -> list[str] | None:
    hashes = [word["case"] for word in words]
    if len(set(hashes)) == 1:
        return None
    return ["disagreement", *of_case(control, hashes, sizing.case.describe())]


def _too_large(
    sizing: Sizing,
    parts: Sequence[Sequence[int]],
    words: list[dict[str, Any]],
    check: bool,
) -> list[str] | None:
    """``words``: where each rank's buffers live, and how much is free there."""
    needs = needs_nbytes(sizing, check)
    # With the fake backend this process is the only one of all ranks.
    of_rank = {
        rank: needs[place] for part in parts for place, rank in enumerate(part) if rank < len(words)
    }
    text = lacks_memory(of_rank, words)
    return ["skipped", text] if text else None


def lacks_memory(needs: Mapping[int, int], words: Sequence[Mapping[str, Any]]) -> str:
    """Where the ranks together need more bytes than may be taken; '' where there is enough."""
    need: defaultdict[str, int] = defaultdict(int)
    free: dict[str, int] = {}
    ranks: Counter[str] = Counter()
    for rank, nbytes in needs.items():
        where = words[rank]["where"]
        need[where] += nbytes
        free[where] = min(free.get(where, words[rank]["free"]), words[rank]["free"])
        ranks[where] += 1
    for where, nbytes in need.items():
        if nbytes > FREE_SHARE * free[where]:
            return (
                f"needs {format_bytes(nbytes)} ({nbytes} bytes, {ranks[where]} ranks) on {where}, "
                f"80 % of the free {format_bytes(free[where])} ({free[where]} bytes) is less"
            )
    return ""
