"""Runs made by hand, of cases whose busbw is chosen."""

from __future__ import annotations

from typing import Any

from torchcoll.core.case import Case
from torchcoll.core.result import CaseResult, Run, Verification

MIB, GIB = 1 << 20, 1 << 30
COMPLETE = {"status": "complete", "exit_code": 0, "wall_s": 1.0}
# nccl-tests' doc/PERFORMANCE.md.
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    **dict.fromkeys(
        ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"), lambda n: (n - 1) / n
    ),
    **dict.fromkeys(("broadcast", "reduce", "sendrecv"), lambda n: 1),
}
_FIELDS = {
    **{"dtype": "float32", "op": "sum", "root": None, "in_place": True, "mode": "back-to-back"},
    **{"backend": "nccl", "device": "cuda"},
}


def case_of(
    busbw: float,
    collective: str = "all_reduce",
    size_bytes: int = GIB,
    ranks: int = 8,
    **changed: Any,
) -> CaseResult:
    """A case of that busbw in GB/s; ``changed``: fields of Case and of CaseResult."""
    asked = _FIELDS | {k: changed.pop(k) for k in list(changed) if k in Case.__annotations__}
    ns = round(size_bytes * FACTORS[collective](ranks) / busbw)
    fields: dict[str, Any] = {
        "size_bytes": size_bytes,
        "time_ns": {"host": [[ns] * 3] * ranks},
        "verification": Verification(checked=1, wrong=0),
    }
    status = changed.pop("status", "ok")
    return CaseResult(Case(collective, size_bytes, **asked), status, ranks, **(fields | changed))


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
