"""Runs made by hand for comparisons: one duration a case, which every call has.

handmade.py makes runs to be displayed, whose calls differ; judged.py makes cases of a given busbw.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torchcoll.core.case import Case
from torchcoll.core.result import CaseResult, Reported, Run, Verification

_NUMBERS = itertools.count()
COMPLETE = {"status": "complete", "exit_code": 0, "wall_s": 1.0}


def case(**changed: Any) -> Case:
    fields: dict[str, Any] = {
        "collective": "all_reduce",
        "size_bytes": 1024,
        "dtype": "float32",
        "op": "sum",
        "root": None,
        "in_place": True,
        "mode": "synchronized",
        "backend": "gloo",
        "device": "cpu",
    }
    return Case(**(fields | changed))


def measured(ns: int, ranks: int = 2, **changed: Any) -> CaseResult:
    """Three calls of ``ns`` on the slowest rank; fields of Case and of CaseResult."""
    asked = case(**{k: changed.pop(k) for k in list(changed) if k in Case.__annotations__})
    fields: dict[str, Any] = {
        "status": "ok",
        "size_bytes": asked.size_bytes,
        "cold_ns": [[3 * ns, ns]] * ranks,
        "time_ns": {"host": [[ns] * 3, *([[ns // 2] * 3] * (ranks - 1))]},
        "verification": Verification(checked=100, wrong=0),
    }
    return CaseResult(asked, ranks=ranks, **(fields | changed))


def given(ns: float, ranks: int = 2, statistic: str = "mean", **changed: Any) -> CaseResult:
    """A figure of a source that keeps no samples."""
    over_ranks, clock = changed.pop("over_ranks", "mean"), changed.pop("clock", "device")
    figure = Reported(ns, statistic, over_ranks, clock)
    return measured(0, ranks, cold_ns=[], time_ns={}, reported=figure, verification=None, **changed)


def run(*results: CaseResult, ranks: int = 2, **changed: Any) -> Run:
    """A run; environment, variables, labels, device_name, hosts, source and other fields."""
    environment = {
        "torch": "2.13.0",
        "kernel": "6.1",
        "libraries": {"gloo": "gloo 1"},
        "variables": changed.pop("variables", {}),
        **changed.pop("environment", {}),
    }
    hosts = changed.pop("hosts", ["vm"])
    name = changed.pop("device_name", "Xeon")
    source = changed.pop("source", None)
    header = {
        "run_id": "r1",
        "start_utc": f"2026-01-01T00:00:00.{next(_NUMBERS):06}Z",  # no two are one run
        "ranks": ranks,
        "spec": {"labels": changed.pop("labels", {}), "rehearse": changed.pop("rehearse", False)},
        "environment": {} if source else environment,
        **({"source": source} if source else {}),
        **changed.pop("header", {}),
    }
    members = [
        {"rank": r, "host": hosts[r * len(hosts) // ranks], "device": "cpu", "device_name": name}
        for r in range(ranks)
    ]
    fields: dict[str, Any] = {"members": [] if source else members, "end": COMPLETE}
    return Run(header=header, results=list(results), **(fields | changed))


def make_runs(times: Sequence[Mapping[int, int] | int], **changed: Any) -> list[Run]:
    """One run for each element: size -> ns, or ns at 1K."""
    return [
        run(*(measured(ns, size_bytes=n) for n, ns in _sizes(time).items()), **dict(changed))
        for time in times
    ]


def _sizes(time: Mapping[int, int] | int) -> Mapping[int, int]:
    return {1024: time} if isinstance(time, int) else time


def in_turn(*sides: Sequence[Run]) -> list[list[Run]]:
    """The sides with start times as if their runs had alternated, a minute apart.

    Of runs made one side behind the other every result would carry a footnote.
    """
    for number, runs in enumerate(sides):
        for index, each in enumerate(runs):
            minute = index * len(sides) + number
            each.header["start_utc"] = f"2026-02-01T{minute // 60:02}:{minute % 60:02}:00Z"
    return [list(runs) for runs in sides]
