"""Rank 0's account of a launch. Loaded on rank 0 alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchcoll.bench.environment import utc_now
from torchcoll.core.case import Case
from torchcoll.core.records import SCHEMA
from torchcoll.core.result import CaseResult, Run


class Recorder:
    """Rank 0's account of a launch: builds the Run and passes each record on (to the file)."""

    def __init__(self, run: Run, emit: Callable[[str, dict[str, Any]], None]) -> None:
        self.run = run
        self._emit = emit

    def header(self, data: dict[str, Any]) -> None:
        self.run.header = {"schema": SCHEMA, **data}
        self._emit("header", self.run.header)

    def members(self, members: list[dict[str, Any]]) -> None:
        self.run.members = members
        self._emit("ranks", {"ranks": members})

    def phase(self, name: str, ns: list[int]) -> None:
        self.run.phases[name] = ns
        self._emit("phase", {"name": name, "ns": ns})

    def machine(self, state: dict[str, Any]) -> None:
        self.run.machine.append(state)
        self._emit("machine", state)

    def started(self, case: Case) -> None:
        self.run.in_flight = case
        self._emit("started", {"case": case.to_json()})

    def case(self, result: CaseResult) -> None:
        self.run.in_flight = None
        self.run.results.append(result)
        self._emit("case", result.to_json())

    def timed_out(self, ranks: int, text: str) -> None:
        """The case in flight, if there is one, hangs."""
        if self.run.in_flight:
            self.case(CaseResult(self.run.in_flight, "timeout", ranks, reason=text))

    def event(self, kind: str, message: str, **more: Any) -> None:
        event = {"kind": kind, "message": message, "utc": utc_now(), **more}
        self.run.events.append(event)
        self._emit("event", event)

    def end(self, status: str, exit_code: int, wall_s: float, reason: str) -> None:
        if self.run.end is None:
            self.run.end = {
                "status": status,
                "exit_code": exit_code,
                "wall_s": round(wall_s, 3),
                "reason": reason,
                "cases": len(self.run.results),
            }
            self._emit("end", self.run.end)
