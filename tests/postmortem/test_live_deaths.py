"""Real gloo jobs that die, and the answer of ``torchcoll postmortem`` to what they left.

All faults, and evidence of which a part is lost, are in tests/benchmarks/postmortem.py.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from death_evidence import Source, sources, write
from dying_jobs import Death, make

from torchcoll.cli import main


def answer(
    folder: Path, facts: dict[str, Any], kept: list[Source], style: str, capsys: Any
) -> dict[str, Any]:
    write(folder / "job", facts, kept, folder / style, style, random.Random(0), mixed=False)
    assert main(["postmortem", str(folder / style), "--format", "json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    return job


@pytest.mark.parametrize(
    ("death", "kind"),
    [
        (Death(0, "size", "ddp", 3, victim=1, form=1), "mismatch"),
        (Death(1, "skip", "fsdp", 3, victim=0, form=1), "missing_call"),
        (Death(2, "sigkill", "ddp", 3, victim=2), "killed"),
        (Death(3, "exception", "mesh", 4, victim=3), "exception"),
    ],
    ids=lambda value: value.fault if isinstance(value, Death) else None,
)
def test_the_rank_that_broke_is_named(
    death: Death, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = make(death, tmp_path / "job")
    everything = sources(tmp_path / "job", facts)
    job = answer(tmp_path, facts, everything, "torchrun", capsys)
    assert (job["culprits"], job["kind"]) == ([death.victim], kind), job["headline"]
    # What the others wrote when they lost it does not say whom.
    others = [s for s in everything if s.kind == "stderr" and s.rank != death.victim]
    job = answer(tmp_path, facts, others, "srun", capsys)
    assert job["culprits"] == [], job["headline"]
