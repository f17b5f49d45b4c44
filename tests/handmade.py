"""Runs made by hand, whose figures can be computed in the head."""

from __future__ import annotations

import io
import re
from typing import Any

import made_runs

from torchcoll.core.case import Case
from torchcoll.core.result import CaseResult, Run, Verification

MIB = 1 << 20


def case(**changed: Any) -> Case:
    return made_runs.case(**({"size_bytes": 64 * MIB} | changed))


def steady(ranks: int) -> list[list[int]]:
    """21 calls. Rank 0 takes 0.50 ms; the others 0.90, 0.91, ... 1.10 ms.

    Over max: median 1.00 ms, and the 5th and 95th percentile are the 2nd and the 20th: 0.91, 1.09.
    """
    slow = [900_000 + 10_000 * i for i in range(21)]
    return [[500_000] * 21, *(list(slow) for _ in range(ranks - 1))] if ranks > 1 else [slow]


def result(ranks: int = 8, cold: tuple[int, ...] = (5_000_000, 1_100_000), **changed: Any) -> Any:
    asked = changed.pop("case", None) or case()
    fields: dict[str, Any] = {
        "status": "ok",
        "count": asked.size_bytes // 4,
        "size_bytes": asked.size_bytes,
        "bytes_in": asked.size_bytes,
        "bytes_out": asked.size_bytes,
        "cold_ns": [list(cold) for _ in range(ranks)],
        "time_ns": {"host": steady(ranks)},
        "steady_after": 2,
        "verification": Verification(checked=max(1, ranks * asked.size_bytes // 4), wrong=0),
    }
    return CaseResult(asked, ranks=ranks, **(fields | changed))


def not_run(status: str, reason: str = "", ranks: int = 8, **changed: Any) -> CaseResult:
    return CaseResult(case(**changed), status, ranks, reason)


def run(*results: CaseResult, ranks: int = 8, **changed: Any) -> Run:
    header = {
        "run_id": "r1",
        "torchcoll": "0.1.0",
        "ranks": ranks,
        "connects": "first call",
        "spec": {
            "iters": None,
            "precision": 0.05,
            "max_time_s": 1.0,
            "check": True,
            "cold": 3,
            "warmup": 0,
            "factor": 4.0,
        },
        "environment": {"torch": "2.13.0", "libraries": {"gloo": "gloo of torch 2.13.0"}},
    }
    fields: dict[str, Any] = {
        "header": header | changed.pop("header", {}),
        "members": [
            {"rank": r, "host": "vm", "pid": 100 + r, "device": "cpu", "device_name": ""}
            for r in range(ranks)
        ],
        "phases": {
            "import_torch": [1_200_000_000] * ranks,
            "rendezvous": [2_000_000] * ranks,
            "init_process_group": [10_000_000] * (ranks - 1) + [24_000_000],
            "cost_timed_loop": [80] * ranks,
            "cost_barrier": [35_000] * ranks,
        },
        "results": list(results),
        "end": {"status": "complete", "exit_code": 0, "wall_s": 3.0},
    }
    return Run(**(fields | changed))


class Terminal(io.StringIO):
    """A stdout that is a terminal; colour and cursor codes are taken out of what was written."""

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        return "\n".join(line.rstrip() for line in plain.split("\n"))
