"""What came back: the samples of one case, and a whole run as it loads from its file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchcoll.core.case import Case, Spec

# Status of a case. Only 'ok' and 'wrong' carry steady timings that were completed as planned, and
# only 'ok' may enter a comparison.
STATUSES = ("ok", "wrong", "oom", "timeout", "unsupported", "skipped", "failed")
# These are facts about what was asked, not failures of a run.
EXPECTED_STATUSES = ("ok", "unsupported", "skipped")

Matrix = list[list[int]]  # [rank][call], nanoseconds


@dataclass(frozen=True)
class Verification:
    """Outcome of the check: elements that are wrong, of those checked, over all ranks.

    ``tolerance_ulp`` is 0 where values must be equal, else the units in the last place allowed.
    """

    checked: int
    wrong: int
    wrong_ranks: tuple[int, ...] = ()
    tolerance_ulp: int = 0


@dataclass
class CaseResult:
    """One case as it ran: raw samples of all ranks, nothing derived.

    cold_ns[rank][k]: the first calls in order, host clock, device complete at both stamps.
    warmup_ns[rank][k]: further calls before the steady ones, same clock.
    time_ns[clock][rank][i]: the steady calls; ``batches`` are their batch sizes in order.
    members: ranks of the launch whose samples these are, in the order of the sub-group.
    ordinal: calls that torchcoll had made on the communicator before call 0, barriers for alignment
    aside (0: it had to connect; None: others had used it before).
    settled: calls until the cold calls settled; None if they did not within their limit.
    stop: why the steady calls ended: count, precision, time or cap.
    """

    case: Case
    status: str
    ranks: int
    reason: str = ""
    count: int = 0
    nbytes: int = 0
    nbytes_in: int = 0
    nbytes_out: int = 0
    cold_ns: Matrix = field(default_factory=list)
    warmup_ns: Matrix = field(default_factory=list)
    time_ns: dict[str, Matrix] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    calls_per_sample: int = 1  # above 1 a sample is the mean of so many calls
    members: list[int] = field(default_factory=list)  # ranks of the sub-group; [] is all
    ordinal: int | None = 0
    communicator: str = "shared"  # or how --fresh-group made its own
    connect_ns: list[int] = field(default_factory=list)  # [rank]: what making its own took
    settled: int | None = None
    stop: str = ""
    verification: Verification | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def expected(self) -> bool:
        """False for what makes the command exit with 1."""
        return self.status in EXPECTED_STATUSES

    def to_json(self) -> dict[str, Any]:
        data = dict(vars(self))
        data["case"] = self.case.to_json()
        if self.verification:
            data["verification"] = dataclasses.asdict(self.verification)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseResult:
        """Unknown fields are ignored. Raises KeyError, TypeError or ValueError on a broken one."""
        names = {f.name for f in dataclasses.fields(cls)}
        values = {k: v for k, v in data.items() if k in names}
        values["case"] = Case.from_json(data["case"])
        if values.get("verification"):
            known = {f.name for f in dataclasses.fields(Verification)}
            found = {k: v for k, v in data["verification"].items() if k in known}
            found["wrong_ranks"] = tuple(found.get("wrong_ranks", ()))
            values["verification"] = Verification(**found)
        result = cls(**values)
        for matrix in (result.cold_ns, result.warmup_ns, *result.time_ns.values()):
            if not isinstance(matrix, list) or not all(isinstance(row, list) for row in matrix):
                raise TypeError("samples are not lists by rank")
            if not all({int}.issuperset(map(type, row)) for row in matrix):
                raise TypeError("samples are not whole nanoseconds")
        sizes = (result.ranks, result.count, result.nbytes, result.nbytes_in, result.nbytes_out)
        if not {int}.issuperset(map(type, sizes)) or not isinstance(result.status, str):
            raise TypeError("a case record has a field of another type")
        return result


@dataclass
class Run:
    """One launch, as loaded or as just measured.

    header: the first record (run_id, start, argv, environment, ...). members: one dict a rank.
    phases: set-up phase -> ns per rank. events: what happened beside the cases. end: the last
    record, None when the file is truncated. in_flight: the case that had started and not ended.
    problems: one line for each thing that reading found wrong.
    """

    header: dict[str, Any] = field(default_factory=dict)
    members: list[dict[str, Any]] = field(default_factory=list)
    phases: dict[str, list[int]] = field(default_factory=dict)
    results: list[CaseResult] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    in_flight: Case | None = None
    problems: list[str] = field(default_factory=list)
    path: Path | None = None

    @property
    def spec(self) -> Spec:
        return Spec.from_json(self.header.get("spec") or {})

    @property
    def ranks(self) -> int:
        return int(self.header.get("ranks") or (self.results[0].ranks if self.results else 0))

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, host and variables of rank 0."""
        environment: dict[str, Any] = self.header.get("environment") or {}
        return environment

    @property
    def complete(self) -> bool:
        """True when every case that was asked has its record."""
        return self.end is not None and self.end.get("status") == "complete"

    @property
    def ending(self) -> str:
        """How a run ended that did not end well, as one line; an event may have said why."""
        if self.end is None or self.complete:
            return ""
        reason = self.end.get("reason") or "no reason given"
        told = any(event.get("message") == reason for event in self.events)
        return f"{self.end.get('status')}: {'see the event' if told else reason}"

    @property
    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = (self.header.get("spec") or {}).get("labels") or {}
        return labels
