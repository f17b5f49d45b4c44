"""Runs one probe on the ranks: ``python -m torchcoll.parts.proof.probe NAME``.

Rank 0 writes what was measured as one JSON object to the file of ``-o``; prove judges it
(proof/judge.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchcoll.bench.main import import_torch, main
from torchcoll.bench.options import Parser
from torchcoll.core.errors import ExitCode, choice
from torchcoll.machine.state import sample
from torchcoll.parts.proof import probes

if TYPE_CHECKING:
    from torchcoll.machine.launcher import Launch


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
    choice(parsed.name, "probe", probes.PROBES)
    torch = import_torch()
    options = probes.ProbeOptions(
        parsed.backend, parsed.device, parsed.rehearse, parsed.pairs, parsed.output.parent
    )
    before = sample() if launch.rank == 0 else None
    evidence = probes.PROBES[parsed.name](torch, launch, options)
    if evidence is not None:
        evidence["busy"] = probes.describe_other_work(before) if before else ""
        # Written whole or not at all: the kit may end this process at any time.
        unfinished = parsed.output.with_suffix(".part")
        unfinished.write_text(json.dumps(evidence))
        unfinished.replace(parsed.output)
    return ExitCode.OK


if __name__ == "__main__":
    main(action=run_probe)
