"""Runs the parts of a proof one after the other, each within its limit.

Whatever happens to a part, the next one runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from torchcoll.core.errors import TorchcollError, UnavailableError, one_line
from torchcoll.parts.proof.claims import CLAIMS
from torchcoll.parts.proof.kit import ONE_RANK, Kit, MachineUnderTest, PartEnded
from torchcoll.parts.proof.part_result import FAILED, NOT_RUN, NOT_SHOWN, PartResult

MOST_S = 20 * 60.0


def run_part(kit: Kit, name: str) -> PartResult:
    """Run one part; whatever goes wrong in it becomes its result. KeyboardInterrupt passes."""
    began, part = time.monotonic(), CLAIMS[name]
    if time.monotonic() >= kit.deadline:
        return PartResult(name, NOT_RUN, f"the {MOST_S / 60:g} minutes of the proof are over")
    if part.several and kit.machine.ranks == 1:
        why = kit.machine.why_one or ONE_RANK
        return PartResult(name, NOT_SHOWN, why)
    kit.limit_s = part.limit_s
    try:
        result = part.run(kit)
    except PartEnded as error:
        result = PartResult(name, FAILED, str(error))
    except TorchcollError as error:
        status = NOT_SHOWN if isinstance(error, UnavailableError) else FAILED
        result = PartResult(name, status, str(error))
    except Exception as error:  # a defect of a part is not to stop the others
        text = f"the part itself failed: {type(error).__name__}: {error}"
        result = PartResult(name, FAILED, one_line(text)[:400])
    return replace(result, name=name, seconds=round(time.monotonic() - began, 1))


@dataclass
class Report:
    """What the parts have come to so far. status: running, complete or interrupted."""

    machine: MachineUnderTest
    parts: list[PartResult]
    status: str = "running"
    start_utc: str = ""
    wall_s: float = 0.0


def run_parts(kit: Kit, names: Sequence[str], tell: Callable[[Report], None]) -> Report:
    """Run the parts; ``tell`` is called after each.

    Ctrl-C, and SIGTERM where the caller turns it into KeyboardInterrupt, end the part that runs;
    the others are then ``not run``.
    """
    began = time.monotonic()
    start_utc = datetime.now(timezone.utc).isoformat(timespec="seconds")
    report = Report(kit.machine, [], start_utc=start_utc)

    try:
        for name in names:
            report.parts.append(run_part(kit, name))
            tell(report)
        report.status = "complete"
    except KeyboardInterrupt:
        report.status = "interrupted"
        for name in names[len(report.parts) :]:
            report.parts.append(PartResult(name, NOT_RUN, "the proof was interrupted"))
    report.wall_s = round(time.monotonic() - began, 1)
    return report
