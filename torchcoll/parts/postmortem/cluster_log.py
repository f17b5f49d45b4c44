"""Lines of Slurm, Kubernetes and the Linux kernel in a log."""

from __future__ import annotations

import re
import signal

from torchcoll.parts.postmortem.evidence import JobEvent
from torchcoll.parts.postmortem.log_lines import Handler, Line, LogScan, ranks_in, time_ns

_ANY = re.compile("")

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
_TASK_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Out Of Memory": signal.SIGKILL,
    "Terminated": signal.SIGTERM,
    "Aborted": signal.SIGABRT,
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
    "Interrupt": signal.SIGINT,
    "Hangup": signal.SIGHUP,
}
_OOM_STEP = re.compile(
    r"Detected (\d{1,6}) oom[-_]kill event(?:s|\(s\))? in (?:StepId=|step )(\d{1,12})"
)
_STEP_ENDS = re.compile(
    r"srun: (?:Job step aborted|Terminating (?:job step|StepId)|Force Terminated|"
    r"launch/slurm: _step_signal: Terminating|First task exited)"
)
_NODE_FAILURE = re.compile(
    r"srun: error: Node failure on (\S{1,100})|[Nn]ode (\S{1,100}) (?:not responding|has failed)|"
    r"error: Nodes? (\S{1,100}) not responding"
)
# With blanks or, of sacct -p, bars between the columns.
_SACCT = re.compile(
    r"^\s*(\d{1,12})(?:_\d+)?(?:\.\w{1,10}\+?)?[\s|].{0,200}?[\s|]"
    r"(OUT_OF_ME\w*\+?|TIMEOUT|NODE_FAIL|PREEMPTED|CANCELLED(?: by \d{1,10}|\+)?)(?:[\s|]|$)"
)
_JOB_STATE = re.compile(
    r"JobState=(TIMEOUT|NODE_FAIL|PREEMPTED|CANCELLED|OUT_OF_MEMORY) Reason=(\S{1,60})"
)


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
    number = _TASK_SIGNALS.get(match[3])
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


def _oom_step(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.evidence.identities.add(f"slurm {match[2]}")
    scan.add("out_of_memory", line, rank=None, signal=int(signal.SIGKILL))


def _step_ends(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.step_ends = True


def _node_failure(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    node = next(group for group in match.groups() if group).strip(",.'\"")
    scan.add("node_failed", line, rank=None, node=node)


def _state(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    """A line of sacct or scontrol."""
    state = match[1] if match.re is _JOB_STATE else match[2]
    if match.re is _SACCT:
        scan.evidence.identities.add(f"slurm {match[1]}")
    if state.startswith("OUT_OF_ME"):
        scan.add("out_of_memory", line, rank=None, signal=int(signal.SIGKILL))
    else:
        scan.add("node_failed" if state == "NODE_FAIL" else "canceled", line, rank=None)


# The kernel: mm/oom_kill.c, arch/x86/mm/fault.c, and NVIDIA's and network drivers.

_OOM = re.compile(
    r"(?:[Oo]ut of memory(?: \([\w ]{1,40}\))?: )?Killed process (\d{1,10}) \((.{1,64}?)\)"
)
_OOM_TASK = re.compile(r"oom-kill:constraint=\w{1,40},.{0,400}?task=([^,]{1,64}),pid=(\d{1,10})")
_SEGFAULT = re.compile(
    r"(?:traps: )?(\S{1,64})\[(\d{1,10})\]:? "
    r"(segfault at|general protection|trap invalid opcode)"
)
_XID = re.compile(r"NVRM: Xid \(PCI:([\w:.]{1,40})\): (\d{1,4})(?:, pid=(?:'?<?(\d{1,10}))?)?")
# Of NVIDIA's list: 43 and 45 follow a process that ended, 63 and 64 remap a row of memory.
_XID_CONSEQUENCES = {43, 45, 63}
_XID_OF_LINK = {74, 145, 149, 150}
_LINK_DOWN = re.compile(
    r"(?:NIC )?[Ll]ink (?:is )?(?:[Dd]own|DOWN)\b|link status definitely down|lost carrier"
)
_FALLEN = re.compile(r"GPU (?:at PCI|[\w:.]{1,40}).{0,40}has fallen off the bus")


def _node_of(scan: LogScan, line: Line) -> str:
    return line.node or scan.node


def _oom(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    pid = int(match[2] if match.re is _OOM_TASK else match[1])
    if pid not in scan.oom_pids:
        scan.oom_pids.add(pid)
        scan.add(
            "out_of_memory",
            line,
            rank=None,
            pid=pid,
            node=_node_of(scan, line),
            signal=int(signal.SIGKILL),
        )


def _segfault(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.add(
        "killed",
        line,
        rank=None,
        pid=int(match[2]),
        node=_node_of(scan, line),
        signal=int(signal.SIGILL if "opcode" in match[3] else signal.SIGSEGV),
    )


def _xid(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    number, pid = int(match[2]), int(match[3] or 0)
    if number in _XID_CONSEQUENCES:
        return
    node = _node_of(scan, line)
    if number in _XID_OF_LINK:
        scan.add("link", line, rank=None, pid=pid or None, node=node)
    elif pid:
        scan.add("exception", line, rank=None, pid=pid, node=node)
    else:
        # The driver does not name a process: any rank of the node may be meant.
        scan.add("node_failed", line, rank=None, node=node)


def _link_down(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    if line.kernel or scan.node:
        scan.add("link", line, rank=None, pid=None, node=_node_of(scan, line))


# Kubernetes: kubectl describe, kubectl get events, and pods as YAML.

_POD = re.compile(r"(Name|Node|Reason|Exit Code|RANK|Namespace):\s{1,40}(\S.{0,200})")
_KUBE_EVENT = re.compile(
    r"(?:Warning|Normal)\s{1,40}(Evicted|Preempted|Preempting|NodeNotReady|TaintManagerEviction|"
    r"OOMKilling|SystemOOM|NodeHasDiskPressure|NodeHasInsufficientMemory)\s{1,40}(.{0,600})"
)
_NODE_OBJECT = re.compile(r"node/(\S{1,100})|[Nn]ode (\S{1,100}) (?:status is now|is not ready)")
_YAML_REASON = re.compile(
    r"^\s*-?\s*\"?reason\"?: \"?(OOMKilled|Evicted|Preempt\w*|NodeLost)\"?,?$"
)


class Pod:
    """Reads the parts of ``kubectl describe pod`` that say which rank a pod is and how it ended."""

    def __init__(self, scan: LogScan) -> None:
        self.scan = scan
        self._fields: dict[str, str] = {}
        self._pending: list[tuple[JobEvent, str]] = []

    def read(self, line: Line) -> bool:
        match = _POD.match(line.text.strip())
        if match is None:
            return False
        name, value = match[1], match[2].strip()
        if name == "Name" and not line.text.startswith(" "):
            self._attribute()
            self._fields = {"Name": value}
            self.scan.want(400)
        elif name == "Node":
            self._fields["Node"] = value.partition("/")[0]
            address = value.partition("/")[2]
            if address:
                self.scan.evidence.addresses[address] = self._fields["Node"]
        elif name == "RANK" and value.isdecimal():
            self._fields["RANK"] = value
        elif name == "Reason" and value in ("OOMKilled", "Error", "Evicted", "Completed"):
            self._fields["Reason"] = value
            if value == "Evicted":
                self._end(line, "canceled", None)
        elif name == "Exit Code" and value.lstrip("-").isdecimal():
            code = int(value)
            reason = self._fields.get("Reason", "")
            if reason == "OOMKilled":
                self._end(line, "out_of_memory", int(signal.SIGKILL), code)
            elif code:
                self._end(line, "exit", code - 128 if 128 < code < 160 else None, code)
        if len(self._fields) and self.scan.wanted:
            self.scan.want(200)
        return True

    def _end(self, line: Line, kind: str, number: int | None, code: int | None = None) -> None:
        if "Name" not in self._fields:
            return
        kind = "killed" if kind == "exit" and number not in (None, int(signal.SIGTERM)) else kind
        reason = self._fields.get("Reason", "")
        text = f"{self._fields['Name']}: {reason}"
        event = self.scan.add(
            kind,
            line,
            f"{text}, exit code {code}" if code is not None else text,
            rank=None,
            node=self._fields.get("Node", ""),
            signal=number,
            exit_code=code,
        )
        if event is not None:
            self._pending.append((event, self._fields["Name"]))

    def _attribute(self) -> None:
        """The variable RANK stands below the state of the container."""
        rank = self._fields.get("RANK")
        if rank is not None:
            node = self._fields.get("Node", "")
            self.scan.process(int(rank), None, node)
            for event, name in self._pending:
                if name == self._fields.get("Name"):
                    self.scan.replace(event, rank=int(rank))
        self._pending = []

    def end(self) -> None:
        self._attribute()


def _kube_event(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    if match[1] == "NodeNotReady":
        node = _NODE_OBJECT.search(match[2])
        name = "" if node is None else next(group for group in node.groups() if group)
        scan.add("node_failed", line, rank=None, node=name)
    elif match[1] in ("Evicted", "Preempted", "Preempting", "TaintManagerEviction"):
        scan.add("canceled", line, rank=None)


def _yaml_reason(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    if match[1] == "OOMKilled":
        scan.add("out_of_memory", line, rank=None, signal=int(signal.SIGKILL))
    elif match[1] == "NodeLost":
        scan.add("node_failed", line, rank=None)
    else:
        scan.add("canceled", line, rank=None)


def _pod_begins(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.want(400)


HANDLERS: tuple[Handler, ...] = (
    ("CANCELLED AT ", _CANCELLED, _cancelled),
    ("srun: error: ", _TASKS, _tasks),
    ("oom_kill event", _OOM_STEP, _oom_step),
    ("oom-kill event", _OOM_STEP, _oom_step),
    ("srun: ", _STEP_ENDS, _step_ends),
    ("ode failure on ", _NODE_FAILURE, _node_failure),
    ("not responding", _NODE_FAILURE, _node_failure),
    *(
        (f"{before}{state}", _SACCT, _state)
        for before in (" ", "|")
        for state in ("TIMEOUT", "CANCELLED", "PREEMPTED", "OUT_OF_ME", "NODE_FAIL")
    ),
    ("JobState=", _JOB_STATE, _state),
    ("Killed process ", _OOM, _oom),
    ("oom-kill:constraint", _OOM_TASK, _oom),
    ("segfault at ", _SEGFAULT, _segfault),
    ("general protection", _SEGFAULT, _segfault),
    ("NVRM: Xid", _XID, _xid),
    ("ink is down", _LINK_DOWN, _link_down),
    ("ink is Down", _LINK_DOWN, _link_down),
    ("ink down", _LINK_DOWN, _link_down),
    ("Link DOWN", _LINK_DOWN, _link_down),
    ("lost carrier", _LINK_DOWN, _link_down),
    ("Name:    ", re.compile(r"^Name:\s"), _pod_begins),
    ("NodeNotReady", _KUBE_EVENT, _kube_event),
    ("Evicted", _KUBE_EVENT, _kube_event),
    ("Preempt", _KUBE_EVENT, _kube_event),
    ("TaintManagerEviction", _KUBE_EVENT, _kube_event),
    ("OOMKilled", _YAML_REASON, _yaml_reason),
    ("Evicted", _YAML_REASON, _yaml_reason),
    ("Preempt", _YAML_REASON, _yaml_reason),
    ("NodeLost", _YAML_REASON, _yaml_reason),
)
