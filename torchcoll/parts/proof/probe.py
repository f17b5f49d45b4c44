"""Runs one probe on the ranks: ``python -m torchcoll.parts.proof.probe NAME OPTIONS FILE``.

OPTIONS: the fields of ProbeOptions as a list in JSON. Rank 0 writes what was measured to FILE.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchcoll.bench.main import import_torch, main
from torchcoll.core.errors import ExitCode
from torchcoll.machine.state import sample
from torchcoll.parts.proof import probes

if TYPE_CHECKING:
    from torchcoll.machine.launcher import Launch


def run_probe(launch: Launch, arguments: Sequence[str]) -> int:
    """Run the probe that ``arguments`` name; its exit code."""
    name, options, file = arguments
    before = sample() if launch.rank == 0 else None
    evidence = probes.PROBES[name](
        import_torch(), launch, probes.ProbeOptions(*json.loads(options)), Path(file).parent
    )
    if evidence is not None:
        evidence["busy"] = probes.describe_other_work(before) if before else ""
        # Written whole or not at all: this process may be ended at any time.
        unfinished = Path(f"{file}.part")
        unfinished.write_text(json.dumps(evidence))
        unfinished.replace(file)
    return ExitCode.OK


if __name__ == "__main__":
    main(action=run_probe)
