"""Runs made by hand, of cases whose busbw is chosen."""

from __future__ import annotations

from typing import Any

from made_runs import COMPLETE, measured

from torchcoll.core.result import CaseResult, Run

MIB, GIB = 1 << 20, 1 << 30
# nccl-tests' doc/PERFORMANCE.md.
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    **dict.fromkeys(
        ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"), lambda n: (n - 1) / n
    ),
    **dict.fromkeys(("broadcast", "reduce", "sendrecv"), lambda n: 1),
}


def case_of(
    busbw: float,
    collective: str = "all_reduce",
    size_bytes: int = GIB,
    ranks: int = 8,
    **changed: Any,
) -> CaseResult:
    """A case of that busbw in GB/s; ``changed``: fields of Case and of CaseResult."""
    ns = round(size_bytes * FACTORS[collective](ranks) / busbw)
    fields: dict[str, Any] = {
        "collective": collective,
        "size_bytes": size_bytes,
        "mode": "back-to-back",
        "backend": "nccl",
        "device": "cuda",
        "cold_ns": [],
        "time_ns": {"host": [[ns] * 3] * ranks},
    }
    return measured(ns, ranks, **(fields | changed))


def launch(*results: CaseResult, hosts: int = 1, **changed: Any) -> Run:
    """A run of these; device, nvlinks, to_switch: of its ranks; labels; fields of Run."""
    device = changed.pop("device", "NVIDIA H200")
    facts = {
        "nvlinks": changed.pop("nvlinks", None),
        "nvlink_to_switch": changed.pop("to_switch", None),
    }
    ranks = max((result.ranks for result in results), default=1)
    members = [
        {"rank": r, "host": f"node{r * hosts // ranks}", "device_name": device}
        | {k: v for k, v in facts.items() if v is not None}
        for r in range(ranks)
    ]
    header = {"run_id": "r1", "ranks": ranks, "spec": {"labels": changed.pop("labels", {})}}
    header |= changed.pop("header", {})
    fields: dict[str, Any] = {"header": header, "members": members, "end": COMPLETE}
    return Run(results=list(results), **(fields | changed))
