"""Writes a log and reads it, for the tests of the readers of logs."""

from __future__ import annotations

from pathlib import Path

from torchcoll.parts.postmortem import log_evidence
from torchcoll.parts.postmortem.evidence import JobEvent, JobEvidence


def read_log(folder: Path, text: str, name: str = "job.log") -> JobEvidence:
    """What a log with this text says; empty evidence if it says nothing."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    with open(path, "rb") as file:
        assert log_evidence.recognizes(path, file.read(1 << 16))
    found = log_evidence.read_evidence(path, name)
    assert len(found) <= 1
    return found[0] if found else JobEvidence()


def events(evidence: JobEvidence, *kinds: str) -> list[JobEvent]:
    return [event for event in evidence.events if not kinds or event.kind in kinds]
