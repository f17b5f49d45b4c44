"""What a proof measures on the ranks: ``python -m torchcoll.parts.proof.probe NAME``.

Rank 0 writes what was measured as one JSON object to the file of ``-o``; prove judges it
(proof/judge.py). Each probe is a file of its own beside this one.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.bench.main import import_torch, main
from torchcoll.bench.options import Parser
from torchcoll.bench.session import SessionOptions, opened
from torchcoll.bench.sweep import Sweep
from torchcoll.core.errors import ExitCode, choice
from torchcoll.core.spec import Spec
from torchcoll.parts.proof import other_work

if TYPE_CHECKING:
    from torchcoll.core.result import Run
    from torchcoll.machine.launcher import Launch

TIMEOUT_S = 60.0  # no progress for so long is a hang

# What rank 0 measured; None on the other ranks.
Evidence = dict[str, Any] | None


@dataclass(frozen=True)
class ProbeOptions:
    """What a probe runs on. pairs: how often it measures. folder: for files of its own."""

    backend: str
    device: str
    rehearse: bool
    pairs: int
    folder: Path

    def spec(self, **fields: Any) -> Spec:
        """A Spec on this backend and device."""
        return Spec(
            backend=self.backend,
            device=self.device,
            rehearse=self.rehearse,
            timeout_s=TIMEOUT_S,
            **fields,
        )


def run_cases(torch: Any, spec: Spec) -> Run | None:
    """As torchcoll.run, of this torch: the Run on rank 0, None elsewhere."""
    with opened(torch, SessionOptions(spec)) as session:
        Sweep(session).run()
        session.finish(*session.outcome())
    return session.run


# Name -> file of this package, which has ``measure(torch, launch, options) -> Evidence``.
PROBES = {
    "machine": "machine_probe",
    "clock": "clock_probe",
    "first-call": "first_call_probe",
    "verification": "error_probe",
    "capture": "capture_probe",
}
Probe = Callable[[Any, "Launch", ProbeOptions], Evidence]


def run_probe(launch: Launch, arguments: Sequence[str]) -> int:
    """Run the probe that ``arguments`` name; its exit code. Raises UsageError."""
    parser = Parser(prog="torchcoll.parts.proof.probe", allow_abbrev=False)
    add = parser.add_argument
    add("name")
    add("--backend", default="")
    add("--device", default="")
    add("--rehearse", action="store_true")
    add("--pairs", type=int, default=1)
    add("-o", "--output", type=Path, required=True)
    parsed = parser.parse_args(list(arguments))
    choice(parsed.name, "probe", PROBES)
    torch = import_torch()
    probe: Probe = importlib.import_module(f"torchcoll.parts.proof.{PROBES[parsed.name]}").measure
    options = ProbeOptions(
        parsed.backend, parsed.device, parsed.rehearse, parsed.pairs, parsed.output.parent
    )
    before = other_work.begin() if launch.rank == 0 else None
    evidence = probe(torch, launch, options)
    if evidence is not None:
        evidence["busy"] = other_work.describe(before) if before else ""
        # Written whole or not at all: the kit may end this process at any time.
        unfinished = parsed.output.with_suffix(".part")
        unfinished.write_text(json.dumps(evidence))
        unfinished.replace(parsed.output)
    return ExitCode.OK


if __name__ == "__main__":
    main(action=run_probe)
