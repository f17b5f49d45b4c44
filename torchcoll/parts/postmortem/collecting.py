"""What to collect next time, so that the evidence decides what it left open."""

from __future__ import annotations

from torchcoll.parts.postmortem.diagnosis import Diagnosis
from torchcoll.parts.postmortem.evidence import RAS_KINDS, JobEvidence
from torchcoll.parts.postmortem.standing import Standings

_MOST = 4
_WHAT_ENDED = (
    "what ended processes: dmesg -T of the nodes, and sacct -j JOB or kubectl describe pod"
)


def what_to_collect(job: JobEvidence, diagnosis: Diagnosis, standings: Standings) -> list[str]:
    """Lines with what was missing, the most telling first; [] where the answer is certain and says
    why.
    """
    lines = []
    if diagnosis.kind in ("stopped", "unknown") and not _has_endings(job, diagnosis):
        lines.append(
            "what the launcher itself printed (torchrun, srun or mpirun, on each node): it has the "
            "exit code or signal of each rank"
        )
    if diagnosis.certainty == "certain":
        if diagnosis.kind == "stopped":
            lines.append(_WHAT_ENDED)
        return lines
    logged = {event.rank for event in job.events if event.kind not in RAS_KINDS}
    missing = [rank for rank in standings.ranks if rank not in standings.recorded]
    reliable = any(call.reliable_state for call in job.calls)
    if not standings.recorded or not reliable:
        lines.append(
            "the last calls of every rank: torchcoll.capture(..., on_hang='dump'), or for NCCL "
            "TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 (torch 2.6 to 2.8: "
            "TORCH_NCCL_TRACE_BUFFER_SIZE)"
        )
    elif missing:
        lines.append("the dumps of all ranks: TORCH_FR_DUMP_TEMP_FILE in a folder that all share")
    if any(rank not in logged for rank in standings.ranks):
        lines.append("stderr of every rank: torchrun --log-dir LOGS --redirects 3")
    sampled = {event.rank for event in job.events_of("stack")}
    doubtful = diagnosis.kind in ("stopped", "slow", "unknown", "user_code")
    if doubtful and not sampled.issuperset(standings.ranks):
        lines.append("what Python does while the job hangs: py-spy dump --pid PID on each node")
    if diagnosis.kind in ("stopped", "killed", "unknown", "link"):
        lines.append(_WHAT_ENDED)
    if diagnosis.kind == "link":
        lines.append("NCCL_DEBUG=WARN, and the port counters of both nodes")
    return lines[:_MOST]


def _has_endings(job: JobEvidence, diagnosis: Diagnosis) -> bool:
    """Whether a file says how the ranks in question ended; of an unknown rank, how any ended."""
    ended = {event.rank for event in job.events_of("exit", "killed", "canceled", "ending")}
    return bool(ended & set(diagnosis.culprits or diagnosis.candidates or ended))
