"""What the world's own words say of a dead job: one table of texts, and who waited for whom.

The rules of diagnose.py need to know which ranks a job had and what each did. A pasted console log
rarely says that, but often holds the cause in words. ``TEXTS`` says what each of these words proves
and what to do about it. The watchdogs name the ranks that waited: the ranks that did not report are
the ones to look at. Pastes are wrapped by terminals, so patterns allow a line break where one is
usual.

To add a text: one entry in ``TEXTS``, and one sample with its answer in
tests/postmortem/test_known_texts.py.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchcoll.core.answer import CERTAIN, PROBABLY, Answer
from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import one_line
from torchcoll.core.opening import open_to_read
from torchcoll.core.units import plural
from torchcoll.parts.postmortem.diagnosis import ranks_text
from torchcoll.parts.postmortem.log_evidence import HANDLERS, recognizes
from torchcoll.reading.torch_names import torch_collective

_MOST_FILES = 1000  # of a folder
_BEGIN = 1 << 16
_MOST_BYTES = 32 << 20  # of a file: its first and its last half of that
_MOST_MATCHES = 10_000
_SHARED_MEMORY = (
    "give the container more shared memory: docker --shm-size=16g or --ipc=host, in Kubernetes an "
    "emptyDir with medium: Memory at /dev/shm"
)
_OUT_OF_MEMORY = "use a smaller batch, activation checkpointing or more shards"
_FIRST_OF_OTHERS = "look for the first error of the other ranks, not at the last lines"


@dataclass(frozen=True)
class KnownText:
    """A text that programs print when a job dies.

    - kind: what it proves, in one word of the field.
    - pattern: the text; its groups fill ``says``, and a group ``rank`` is whose text it is.
    - says: the finding, a subject and what follows.
    - remedy: what to do now, as an imperative.
    - whose: whether the rank of the line is the culprit (its prefix names it).
    """

    kind: str
    pattern: re.Pattern[str]
    says: str
    remedy: str
    whose: bool = False


def _text(kind: str, pattern: str, says: str, remedy: str, whose: bool = False) -> KnownText:
    return KnownText(kind, re.compile(pattern, re.S), says, remedy, whose)


# In the order of what is said first: causes that prove themselves, then what only follows from one.
TEXTS = (
    _text(
        "device error",
        r"uncorrectable ECC error|Xid.{0,40}: (?:48|63|64|74|79|94|95)\b",
        "an uncorrectable memory error of the GPU ended {rank}",
        "drain the node and reset or replace the GPU: nvidia-smi -q -d ECC shows the counters",
        True,
    ),
    _text(
        "shared memory",
        r"failed to extend /dev/shm/|Error while creating shared memory segment"
        r"|posix_fallocate failed : No space left|insufficient shared memory \(shm\)",
        "/dev/shm is full",
        _SHARED_MEMORY,
    ),
    _text(
        "disk full",
        r"OSError: \[Errno 28\] No space left on device|No space left on device",
        "a disk is full",
        "free space where the job writes (checkpoints, caches, /tmp)",
    ),
    _text(
        "duplicate GPU",
        r"Duplicate GPU detected : rank (\d+) and rank (\d+) both on CUDA device (\w+)",
        "ranks {0} and {1} use the same GPU ({2})",
        "choose the GPU by the local rank: torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
    ),
    _text(
        "version mismatch",
        r"[Mm]ismatched NCCL version detected : rank (\d+)|NCCL version mismatch",
        "ranks use different versions of NCCL",
        "install the same torch and NCCL on all nodes",
    ),
    _text(
        "mismatch",
        r"Detected mismatch between collectives on ranks\.\s*Rank (\d+) is running collective: "
        r"CollectiveFingerPrint\(SequenceNumber=(\d+),?\s*OpType=(\w+).{0,600}?Rank (\d+) is "
        r"running collective: CollectiveFingerPrint\(SequenceNumber=(\d+),?\s*OpType=(\w+)",
        "ranks {0} and {3} are at different calls: {2} number {1} and {5} number {4}",
        "make all ranks of the group call the same collectives in the same order",
    ),
    _text(
        "mismatch",
        r"Mismatched collective detected, please check your collective calls at and around rank "
        r"(\d+)",
        "NCCL found different collectives at or near rank {0}",
        "compare the calls of that rank and its neighbours: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL",
    ),
    _text(
        "mismatch",
        r"DDP expects same model across all ranks, but Rank \d+ has .{0,80}?rank (\d+) has "
        r"inconsistent",
        "rank {0} has another model than the others",
        "build the same model, with the same parameters that require gradients, on all ranks",
    ),
    _text(
        "never formed",
        r"client socket has timed out after (\d+)\w* while trying to connect to "
        r"\(?\[?([^\s,\])]+)\]?, (\d+)\)",
        "the job never formed: nothing listened at {1}:{2} for {0} s, or it cannot be reached",
        "check MASTER_ADDR and MASTER_PORT, that rank 0 runs, and that no firewall is between",
    ),
    _text(
        "never formed",
        r"(?:EADDRINUSE|[Aa]ddress already in use)",
        "the job never formed: its port is taken",
        "end the job that has the port, or choose another: torchrun --master-port, or --rdzv-"
        "endpoint with port 0 on one node",
    ),
    _text(
        "never formed",
        r"Timed out (?:after \d+ seconds )?waiting for clients\. (\d+)/(\d+)\s+clients joined",
        "the job never formed: {0} of {1} ranks came",
        "look at the nodes whose ranks did not start",
    ),
    _text(
        "out of memory",
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|HIP out of memory",
        "{rank} ran out of device memory",
        _OUT_OF_MEMORY,
        True,
    ),
    _text(
        "out of memory",
        r"oom-kill(?:er)?[ :]|Out of memory: Killed process|oom_kill event|OOMKilled",
        "the kernel killed a process because the host's memory was full",
        "give the job more memory, or use fewer data-loader workers",
    ),
    _text(
        "rank missing",
        r"\[(\d+)\] is setting up NCCL communicator and retrieving\s+ncclUniqueId from \[(\d+)\]",
        "rank {1} did not come: rank {0} waited for it to publish the NCCL id",
        "look at what rank {1} does before its first collective, and raise the timeout if it is "
        "only slow",
    ),
    _text(
        "rank missing",
        r"Ranks? (\d+(?:, \d+)*) failed to pass monitoredBarrier",
        "ranks {0} did not come to a barrier",
        "look at what these ranks did instead",
    ),
    _text(
        "no transport",
        r"No transport found for rank (\d+)(?:\[\w+\])? -> rank (\d+)",
        "ranks {0} and {1} have no way to reach each other",
        "check that both hosts see the same network (NCCL_SOCKET_IFNAME, NCCL_IB_HCA) and that P2P "
        "or shared memory is not switched off on one of them",
    ),
    _text(
        "no interface",
        r"[Nn]o socket interface found|connecting to address\s+with family \d+ is neither AF_INET|"
        r"Socket creation failed : Address family not supported",
        "NCCL found no network interface that it can use",
        "check NCCL_SOCKET_IFNAME against `ip addr`: it must name an interface of every host",
    ),
    _text(
        "locked memory",
        r"ibv_(?:create_cq|create_qp|reg_mr\w*) failed with error (Cannot allocate memory)|"
        r"NET/OFI Unable to register memory[^\n]{0,120}Error: ([\w ]+)",
        "the network adapter could not register memory ({any})",
        "raise the limit of locked memory: ulimit -l unlimited, in containers --ulimit memlock=-1",
    ),
    _text(
        "device missing",
        r"CUDA error: (invalid device ordinal)|(no CUDA-capable device is detected)|"
        r"(CUDA driver version is insufficient for CUDA runtime version)|"
        r"Cuda failure (?:101 )?'(invalid device ordinal)'|"
        r"ProcessGroupNCCL is only supported with GPUs, (no GPUs found)",
        "{rank} has no GPU to use: {any}",
        "start as many ranks on a host as it has visible GPUs (nvidia-smi -L, "
        "CUDA_VISIBLE_DEVICES)",
        True,
    ),
    _text(
        "killed",
        r"failed \(exitcode: -9\) local_rank: (\d+)|"
        r"rank\s?(\d+) \(local.rank: \d+\)\s*exitcode\s*: -9",
        "local rank {any} was killed by SIGKILL",
        "look for the out-of-memory killer (dmesg -T | grep -i oom) and the job's memory limit",
    ),
    _text(
        "device error",
        r"CUDA error: (an illegal memory access was encountered|device-side assert triggered|"
        r"unspecified launch failure|misaligned address|no kernel image is available)"
        r"|Cuda failure \d* ?'([\w ]+)'",
        "a CUDA error ended {rank}: {any}",
        "run once with CUDA_LAUNCH_BLOCKING=1 to find the kernel; if it moves with the node, drain "
        "the node",
        True,
    ),
    _text(
        "watchdog stuck",
        r"watchdog got stuck for (\d+) seconds|Heartbeat monitor timed out",
        "{rank} hangs in a call of CUDA or NCCL: its watchdog itself made no progress",
        "take the stack of that rank while it hangs (py-spy dump --native): another thread may "
        "hold the GIL, or a node was much later than the others",
        True,
    ),
    _text(
        "first timeout",
        r"Received a dump signal due to a collective timeout from rank (\d+)",
        "rank {0} was the first whose call did not end",
        "look at the ranks that rank {0} waited for: its log names the call",
    ),
    _text(
        "store gone",
        r"sendBytes failed on SocketImpl|TCPStore server has shut down too early|"
        r"failed to recv, got 0 bytes|"
        r"Connection was likely closed\. Did the remote server shutdown",
        "the store of rank 0 is gone: rank 0, or the launcher on its host, ended first",
        "look at the first error of rank 0 and at the launcher's output on its host",
    ),
    _text(
        "never formed",
        r"[Tt]he connection to the C10d store has failed",
        "the job never formed: the rendezvous endpoint cannot be reached",
        "check --rdzv-endpoint (host and port) from each node, and that its host runs the first "
        "node",
    ),
    _text(
        "peer lost",
        r"Failed to execute operation Connect from rank (\d+), retcode (\d+)",
        "the connection to rank {0} failed (NCCL's code {1})",
        "look at the first error of rank {0}: it ended first, or the network between is broken",
    ),
    _text(
        "peer lost",
        r"NCCL WARN NET/IB ?: Got completion from peer (\S+) with (?:error|status=?) ?(\w+)",
        "a transfer over InfiniBand to {0} failed (status {1})",
        "look whether that host's process ended first; if not, check the link: ibstat, perfquery",
    ),
    _text(
        "peer lost",
        r"Net ?: Call to recv from ([\w.:]+)<\d+> failed : ([\w ]+)",
        "the connection to {0} broke ({1})",
        _FIRST_OF_OTHERS,
    ),
)
# What stands beside a finding and is worth a clause: a pattern, and what it says.
_ASIDE = (
    (
        re.compile(r"`?Trainer\.fit`? stopped: `?(\w+=\d+)`? reached"),
        "the training had ended ({0})",
    ),
    (
        re.compile(r"(\d+)/(\d+) \[(\d+:\d+(?::\d+)?)<"),
        "the last progress bar stands at {0} of {1} after {2}: a rank may still prepare data",
    ),
    (
        re.compile(r"failed \(exitcode: -6\) local_rank: (\d+)"),
        "local rank {0} aborted (SIGABRT, which the watchdog sends itself too)",
    ),
    (re.compile(r"srun: error: (\S+): task (\d+): (Aborted|Killed)"), "{2}: task {1} on {0}"),
)
_FINGERPRINTS = 6  # groups of their pattern: rank, number and name of the call, twice
_WATCHDOG = re.compile(
    r"\[Rank (\d+)\]\s+Watchdog caught collective operation timeout:\s*WorkNCCL\("
    r"(?:SeqNum=(\d+))?[,.\s]*OpType=(\w+)"
)
_REPORTS = re.compile(r"\[rank(\d+)\]|\[Rank (\d+)\]|\bRank (\d+)\] ")


@dataclass
class KnownFinding:
    """A text of the table that a file has: the rank of its line, None if unknown, and where."""

    text: KnownText
    groups: Sequence[str]
    rank: int | None
    path: str
    line: int
    excerpt: str

    def sentence(self, pattern: str) -> str:
        named = [group or "" for group in self.groups]
        who = "a rank" if self.rank is None else f"rank {self.rank}"
        filled = next((group for group in named if group), "")
        return one_line(pattern.format(*named, rank=who, any=filled))


@dataclass
class KnownTexts:
    """What the texts of a job's files say.

    - findings: in the order of TEXTS.
    - waits: rank -> (number of the call, 0 if unknown; collective).
    - reporting: ranks that any watchdog line is of.
    - asides: clauses.
    """

    findings: list[KnownFinding] = field(default_factory=list)
    waits: dict[int, tuple[int, str]] = field(default_factory=dict)
    reporting: set[int] = field(default_factory=set)
    asides: list[str] = field(default_factory=list)

    def to_json(self) -> list[dict[str, Any]]:
        """The findings, with their remedies."""
        return [
            {
                "kind": finding.text.kind,
                "says": finding.sentence(finding.text.says),
                "remedy": finding.sentence(finding.text.remedy),
                "rank": finding.rank,
                "file": finding.path,
                "line": finding.line,
                "text": finding.excerpt,
            }
            for finding in self.findings
        ]

    @property
    def calls_differ(self) -> bool:
        """Whether torch's fingerprints of two ranks name different calls."""
        several = [each.groups for each in self.findings if len(each.groups) == _FINGERPRINTS]
        return any(groups[1:3] != groups[4:6] for groups in several)

    @property
    def answer(self) -> Answer | None:
        """What happened, and what to do; None if no text says anything."""
        if self.findings:
            return self._answer_of_finding(self.findings[0])
        if not self.waits:
            return None
        return self._answer_of_waits()

    def _answer_of_finding(self, finding: KnownFinding) -> Answer:
        details = [f"{finding.path}:{finding.line}: {finding.excerpt}"]
        if self.waits:
            details.append(_waited(self.waits))
        return Answer(
            finding.sentence(finding.text.says),
            "bad",
            details=(*details, *self.asides),
            worst=() if finding.rank is None else (f"rank {finding.rank}",),
            certainty="",
            next_step=finding.sentence(finding.text.remedy),
        )

    def _answer_of_waits(self) -> Answer:
        calls: dict[tuple[int, str], list[int]] = defaultdict(list)
        for rank, call in sorted(self.waits.items()):
            calls[call].append(rank)
        if len(calls) > 1:
            return self._answer_of_calls(calls)
        ((call, ranks),) = calls.items()
        missing = sorted({*range(max(self.reporting) + 1)} - self.reporting)
        # Of an excerpt, a rank that does not report may only have been cut away.
        whole = self.reporting == {*ranks}
        if missing and whole and len(missing) < len(ranks):
            each = "it" if len(missing) == 1 else "each of them"
            return Answer(
                ranks_text(missing),
                "bad",
                worst=tuple(f"rank {rank}" for rank in missing),
                verb=f"does not come to {_call(call)}:",
                many=len(missing) > 1,
                scope=f"{ranks_text(ranks)} waited there, and every other rank reported",
                certainty=PROBABLY,
                details=tuple(self.asides),
                next_step=f"look at what {each} did instead: log, stack (py-spy dump) and node",
            )
        return Answer(
            ranks_text(ranks),
            "doubt",
            verb=f"waits in {_call(call)} for a rank that is not in this log",
            many=len(ranks) > 1,
            certainty=CERTAIN,
            details=(*([f"{ranks_text(missing)} did not report"] if missing else []), *self.asides),
            next_step="collect the logs of all ranks: look at the rank without a timeout",
        )

    def _answer_of_calls(self, calls: dict[tuple[int, str], list[int]]) -> Answer:
        """Ranks wait in different calls: the fewest are in another one, or are behind."""
        most = max(calls, key=lambda call: (len(calls[call]), -call[0]))
        odd = sorted(rank for call, ranks in calls.items() if call != most for rank in ranks)
        of_odd = Counter(call for call, ranks in calls.items() if call != most for _ in ranks)
        other = of_odd.most_common(1)[0][0]
        same = other[1] == most[1] and other[0] < most[0]
        return Answer(
            ranks_text(odd),
            "bad",
            worst=tuple(f"rank {rank}" for rank in odd),
            verb="is behind:" if same else "is in another call:",
            many=len(odd) > 1,
            scope=f"{_call(other)}, while {ranks_text(calls[most])} "
            f"{plural(len(calls[most]), 'waits', 'wait')} in {_call(most)}",
            certainty=CERTAIN,
            details=tuple(self.asides),
            next_step="make all ranks call the same collectives in the same order",
        )


def _call(call: tuple[int, str]) -> str:
    return f"{call[1]} number {call[0]}" if call[0] else call[1]


def _waited(waits: dict[int, tuple[int, str]]) -> str:
    call = Counter(waits.values()).most_common(1)[0][0]
    return f"{ranks_text(sorted(waits))} waited in {_call(call)}"


def read_known_texts(files: Sequence[tuple[Path, str]]) -> KnownTexts:
    """Search the files for the known texts. files: path, and how it is shown. Raises OSError."""
    texts = KnownTexts()
    asides: dict[str, None] = {}
    for path, shown in files:
        text = _read(path)
        for each in TEXTS:
            for match in _matches(each.pattern, text):
                texts.findings.append(_finding(each, match, text, shown))
        for match in _matches(_WATCHDOG, text):
            rank, number, operation = match.groups()
            if int(rank) < MOST_RANKS:
                texts.waits.setdefault(int(rank), (int(number or 0), torch_collective(operation)))
        for match in _matches(_REPORTS, text):
            rank = next(group for group in match.groups() if group)
            if len(rank) < 9 and int(rank) < MOST_RANKS:
                texts.reporting.add(int(rank))
        for pattern, says in _ASIDE:
            if matches := [*_matches(pattern, text)]:
                asides[one_line(says.format(*matches[-1].groups()))] = None
    texts.findings.sort(key=lambda finding: TEXTS.index(finding.text))
    texts.asides = [*asides]
    return texts


def read_known_texts_below(path: str) -> KnownTexts:
    """Those of a file, or of the text files of a folder and of its subfolders."""
    root = Path(path)
    paths = [root]
    if root.is_dir():
        paths = [file for file in sorted(root.rglob("*")) if file.is_file()][:_MOST_FILES]
    files = []
    for file in paths:
        with contextlib.suppress(OSError):
            with open_to_read(file) as opened:
                begin = opened.read(_BEGIN)
            if recognizes(file, begin):
                shown = str(file.relative_to(root)) if root.is_dir() else file.name
                files.append((file, shown))
    return read_known_texts(files)


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    for number, match in enumerate(pattern.finditer(text)):
        if number == _MOST_MATCHES:
            return
        yield match


def _finding(known_text: KnownText, match: re.Match[str], text: str, shown: str) -> KnownFinding:
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    line = text[begin : end if end >= 0 else len(text)]
    rank = None
    if known_text.whose:
        # The name nearest before the message; torch's watchdog repeats the error with its rank.
        before = [*_REPORTS.finditer(text, begin, match.start())]
        after = _REPORTS.finditer(text, match.end())
        named = before[-1] if before else next(after, None)
        if named:
            rank = int(next(group for group in named.groups() if group)[:9])
    groups = [group or "" for group in match.groups()]
    if len(groups) == _FINGERPRINTS:
        groups = [torch_collective(group) if group.isalpha() else group for group in groups]
    number = text.count("\n", 0, match.start()) + 1
    return KnownFinding(known_text, groups, rank, shown, number, one_line(line.strip())[:160])


def _read(path: Path) -> str:
    """The text of a file, of a large one its beginning and its end."""
    with open_to_read(path) as file:
        content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            half = _MOST_BYTES // 2
            tail = content[half:]
            while piece := file.read(half):
                tail = (tail + piece)[-half:]
            content = content[:half] + b"\n" + tail
    return content.decode(errors="replace")


# Lines of dead jobs that have a reader of their own (tracebacks, NCCL's warnings).
_DEATHS = (b"Traceback (most recent call last)", b"NCCL WARN")


def command_for(path: str, text: bytes) -> str | None:
    """``postmortem`` for text in which a job complains or ends; None for any other file."""
    if not recognizes(Path(path), text):
        return None
    if any(death in text for death in _DEATHS):
        return "postmortem"
    shown = text.decode(errors="replace")
    if any(each.pattern.search(shown) for each in TEXTS):
        return "postmortem"
    handlers = [each for each in HANDLERS if each[0] in shown]
    lines = shown.splitlines() if handlers else []
    ends = any(
        literal in line and pattern.search(line)
        for line in lines
        for literal, pattern, _ in handlers
    )
    return "postmortem" if ends else None
