"""Cases whose first call is cold although the launch has called before: what connects late.

NCCL connects an algorithm when it is first used, a library may set up something at a new size, and
--fresh-group makes a communicator for every case. One launch cannot tell such a call from a hiccup:
in how many launches it was cold stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.analysis.matching import kind_of
from torchcoll.analysis.sides import Measured
from torchcoll.analysis.stats import geometric
from torchcoll.core.first import first_results
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import SLOW_FIRST, over_ranks


@dataclass(frozen=True)
class Late:
    """One case of launches alike: geometric means over the launches, completions in ns.

    settled_ns: the steady figure (median, or period) or the last cold call, whichever is larger:
    the steady calls may be on another clock and back to back. cold: of how many ``launches`` the
    first call took over 3 times that. ordinal: calls on the communicator before it, the fewest.
    why: what is known of the cause: an algorithm used for the first time, a communicator of its
    own, or ''.
    """

    kind: Mapping[str, Any]
    ranks: int
    nbytes: int
    ordinal: int | None
    algorithm: str | None
    why: str
    first_ns: float
    settled_ns: float
    cold: int
    launches: int

    @property
    def extra_ns(self) -> float:
        return self.first_ns - self.settled_ns


@dataclass(frozen=True)
class _Seen:
    item: Measured
    first_ns: float
    settled_ns: float
    why: str


def late_cases(
    launches: Sequence[tuple[Run, Sequence[CaseResult]]],
    measured: Mapping[int, Measured],
    apart: Sequence[str],
) -> list[Late]:
    """Cases that were cold in more than half of their launches, and those that the log shows to
    use an algorithm first; the first case of each launch aside.
    """
    groups: dict[str, list[_Seen]] = {}
    kinds: dict[str, dict[str, Any]] = {}
    for _, results in launches:
        for seen in _seen(results, measured):
            kind = kind_of(seen.item, apart)
            key = repr((kind, seen.item.row.ranks, seen.item.row.nbytes_requested))
            groups.setdefault(key, []).append(seen)
            kinds[key] = kind
    found = [_late(kinds[key], own) for key, own in groups.items()]
    return [one for one in found if 2 * one.cold > one.launches or one.why.startswith("first")]


def _seen(results: Iterable[CaseResult], measured: Mapping[int, Measured]) -> Iterable[_Seen]:
    """The cases of one launch whose first call can be judged."""
    results = list(results)
    backends = dict.fromkeys(r.case.backend for r in results)
    starts = {
        id(r) for b in backends for r in first_results([o for o in results if o.case.backend == b])
    }
    used: dict[str, set[str]] = {}
    for result in results:
        labels = [choice.label for choice in result.choices]
        before = used.setdefault(result.case.backend, set())
        new = [label for label in dict.fromkeys(labels) if label not in before]
        before.update(labels)
        calls = over_ranks(result.cold_ns)
        item = measured[id(result)]
        if id(result) in starts or not calls or result.status != "ok" or result.ranks == 1:
            continue  # one rank connects to nobody
        settled = max(item.figure or 0.0, calls[-1] if len(calls) > 1 else 0.0)
        if settled <= 0 or calls[0] <= 0:
            continue
        why = f"first of {', '.join(new)}" if new else ""
        if result.ordinal == 0:
            why = f"a communicator of its own ({result.communicator})"
        yield _Seen(item, calls[0], settled, why)


def _late(kind: dict[str, Any], seen: Sequence[_Seen]) -> Late:
    rows = [one.item.row for one in seen]
    ordinals = [n for one in seen if (n := one.item.result.ordinal) is not None]
    names = dict.fromkeys(row.algorithm for row in rows if row.algorithm)
    causes = dict.fromkeys(one.why for one in seen if one.why)
    return Late(
        kind=kind,
        ranks=rows[0].ranks,
        nbytes=rows[0].nbytes_requested,
        ordinal=min(ordinals, default=None),
        algorithm=", ".join(names) or None,
        why="; ".join(causes),
        first_ns=geometric(one.first_ns for one in seen) or 0.0,
        settled_ns=geometric(one.settled_ns for one in seen) or 0.0,
        cold=sum(one.first_ns > SLOW_FIRST * one.settled_ns for one in seen),
        launches=len(seen),
    )
