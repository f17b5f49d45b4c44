"""Lines of Slurm, Kubernetes and the Linux kernel in a log."""

from __future__ import annotations

import re
import signal

from torchcoll.parts.postmortem.log_lines import (
    Handler,
    Line,
    LogScan,
    adds,
    ranks_in,
    signal_named,
    time_ns,
    wants,
)

# Slurm. Texts of src/slurmd/slurmstepd, src/srun and src/api/step_launch.c.

_CANCELLED = re.compile(
    r"\*\*\* (JOB|STEP) (\d{1,12})(\.\w{1,20})? ON (\S{1,100}) CANCELLED AT (\S{1,40})"
    r"(?: DUE TO ([A-Z ]{1,60}?))?(?:, SEE .{1,60})? \*\*\*"
)
_TASKS = re.compile(
    r"error: (\S{1,100}): tasks? ([\d,-]{1,4000}): (Killed|Terminated|Aborted|Out Of Memory|"
    r"Segmentation fault|Bus error|Floating point exception|Illegal instruction|Interrupt|"
    r"Hangup|Exited with exit code (\d{1,3}))"
)
_STEP_ENDS = re.compile(
    r"srun: (?:Job step aborted|Terminating (?:job step|StepId)|Force Terminated|"
    r"launch/slurm: _step_signal: Terminating|First task exited)"
)


def _sacct(states: str) -> re.Pattern[str]:
    """A row of sacct, with blanks or, of sacct -p, bars between its columns; or of scontrol."""
    row = r"^\s*(?P<slurm>\d{1,12})(?:_\d+)?(?:\.\w{1,10}\+?)?[\s|].{0,200}?[\s|]"
    return re.compile(rf"{row}(?:{states})(?:[\s|]|$)|JobState=(?:{states}) Reason=")


def _cancelled(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.evidence.identities.add(f"slurm {match[2]}")
    reason = match[6] or ""
    if match[1] == "STEP" and not reason and _somebody_failed(scan):
        scan.step_ends = True  # srun ended the step because of a task
        return
    scan.step_ends = True
    when_ns = time_ns(match[5]) or line.when_ns
    scan.add("canceled", line, match[0], rank=None, when_ns=when_ns)


def _somebody_failed(scan: LogScan) -> bool:
    return any(
        event.kind in ("exception", "killed", "out_of_memory", "disk_full", "node_failed")
        or (event.kind == "exit" and event.exit_code)
        for event in scan.evidence.events
    )


def _tasks(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    number = signal.SIGKILL if match[3] == "Out Of Memory" else signal_named(match[3])
    code = int(match[4]) if match[4] else None
    if number is None and code is not None and code > 128:
        number = signal.Signals(code - 128) if code - 128 in set(signal.Signals) else None
    ended_by_slurm = number in (signal.SIGKILL, signal.SIGTERM) and scan.step_ends
    kind = "exit" if number is None or ended_by_slurm or number == signal.SIGTERM else "killed"
    if match[3] == "Out Of Memory":
        kind = "out_of_memory"
    for rank in ranks_in(match[2]):
        scan.process(rank, None, match[1])
        event = scan.add(
            kind,
            line,
            match[0],
            rank=rank,
            node=match[1],
            exit_code=code,
            signal=None if ended_by_slurm or number is None else int(number),
        )
        if event is not None:
            scan.tasks.append(event)


def _step_ends(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.step_ends = True


# Kubernetes: kubectl describe and kubectl get events.

_POD = re.compile(r"(Name|Node|Reason|Exit Code|RANK):\s{1,40}(\S.{0,200})")
_ENDS_OF_PODS = ("OOMKilled", "Error", "Evicted", "Completed")


class Pod:
    """Reads what ``kubectl describe pod`` says of a pod: which rank it is, and how it ended."""

    def __init__(self, scan: LogScan) -> None:
        self.scan = scan
        self._fields: dict[str, tuple[Line, str]] = {}

    def read(self, line: Line) -> bool:
        match = _POD.match(line.text.strip())
        if match is None:
            return False
        name, value = match[1], match[2].strip()
        if name == "Name" and not line.text.startswith(" "):
            self.end()
            self.scan.want(400)
        if self.scan.wanted:
            self.scan.want(200)
        if name != "Reason" or value in _ENDS_OF_PODS:
            self._fields.setdefault(name, (line, value))
        return True

    def end(self) -> None:
        """Add how the pod ended. The variable RANK stands below the state of the container."""
        lines, self._fields = self._fields, {}
        fields = {name: value for name, (_, value) in lines.items()}
        node = fields.get("Node", "").partition("/")[0]
        rank = int(fields["RANK"]) if fields.get("RANK", "").isdecimal() else None
        if rank is not None:
            self.scan.process(rank, None, node)
        reason, code = fields.get("Reason", ""), _whole(fields.get("Exit Code", ""))
        if "Name" not in fields or not (code or reason == "Evicted"):
            return
        number = code - 128 if code and 128 < code < 160 else None
        kind = "exit" if number in (None, int(signal.SIGTERM)) else "killed"
        kind = {"OOMKilled": "out_of_memory", "Evicted": "canceled"}.get(reason, kind)
        text = f"{fields['Name']}: {reason}" + (f", exit code {code}" if code else "")
        line, _ = lines.get("Exit Code") or lines["Reason"]
        self.scan.add(kind, line, text, rank=rank, node=node, signal=number, exit_code=code or None)


def _whole(text: str) -> int:
    return int(text) if text.lstrip("-").isdecimal() else 0


_CANCELED_STATES = r"TIMEOUT|PREEMPTED|CANCELLED(?: by \d{1,10}|\+)?"
HANDLERS: tuple[Handler, ...] = (
    ("CANCELLED AT ", _CANCELLED, _cancelled),
    ("srun: error: ", _TASKS, _tasks),
    ("srun: ", _STEP_ENDS, _step_ends),
    ("TIMEOUT", _sacct(_CANCELED_STATES), adds("canceled")),
    ("CANCELLED", _sacct(_CANCELED_STATES), adds("canceled")),
    ("PREEMPTED", _sacct(_CANCELED_STATES), adds("canceled")),
    ("OUT_OF_ME", _sacct(r"OUT_OF_ME\w*\+?"), adds("out_of_memory", "SIGKILL")),
    ("NODE_FAIL", _sacct("NODE_FAIL"), adds("node_failed")),
    ("Name:    ", re.compile(r"^Name:\s"), wants(400)),
)
