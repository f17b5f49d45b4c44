"""Collects what a job that still hangs shows on this host, into a folder that ``postmortem`` reads.

The ranks are found by their environment in /proc. Nothing is killed or stopped. No variable is
written, and texts of the job are masked as everywhere.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import UnavailableError, brief, cut_text, one_line, tell
from torchcoll.core.opening import make_folder, open_to_write
from torchcoll.core.units import format_ranges
from torchcoll.core.variables import masked

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT")
_DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_RAS = "localhost:28028"  # where NCCL's RAS listens, if NCCL_RAS_ADDR says nothing else
_LONGEST_S = 20  # of a program, and of a dump
_LOG_BYTES = 4 << 20  # of the end of a log


@dataclass(frozen=True)
class LiveRank:
    """A process of this host that is a rank. variables: its environment, which is not written."""

    rank: int
    pid: int
    variables: dict[str, str]

    @property
    def job(self) -> tuple[str, ...]:
        return tuple(self.variables.get(name, "") for name in _JOB_VARIABLES)


def collect(folder: Path) -> None:
    """Write what the ranks of this host show now. Raises UnavailableError if there is no rank."""
    ranks = find_ranks()
    if not ranks:
        raise UnavailableError(
            "live", "no process", "a process of this user with RANK in its environment"
        )
    make_folder(folder)
    jobs = list(dict.fromkeys(rank.job for rank in ranks))
    for number, job in enumerate(jobs):
        members = [rank for rank in ranks if rank.job == job]
        into = folder / f"job{number}" if len(jobs) > 1 else folder
        make_folder(into)
        kinds = [kind for kind, copy in _SOURCES.items() if [r for r in members if copy(r, into)]]
        numbers = format_ranges(rank.rank for rank in members)
        tell(f"torchcoll: ranks {numbers} of this host: {', '.join(kinds) or 'nothing to read'}")
        if "stacks of py-spy" not in kinds:
            tell(f"torchcoll: no stacks: {_why_no_stacks(members[0])}")
        _ask_ras(members[0], into)
    since_s = min(_start_s(rank.pid) for rank in ranks)
    kernel = [line for line in _output("dmesg").splitlines() if _stamp_s(line) >= since_s]
    if kernel:
        _write(folder / f"dmesg-{socket.gethostname()}.txt", "\n".join(kernel) + "\n")


def find_ranks() -> list[LiveRank]:
    """The processes that are ranks, by rank. Of a rank with children, such as data-loader workers,
    it is the eldest process that has loaded torch.
    """
    pids = sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    loaded = [pid for pid in pids if pid != os.getpid() and "libtorch" in _read(pid, "maps")]
    for name in _RANK_VARIABLES:  # below srun, torchrun itself has a number of srun
        ranks: dict[tuple[tuple[str, ...], int], LiveRank] = {}
        for pid in loaded:
            pairs = (pair.partition("=") for pair in _read(pid, "environ").split("\0"))
            variables = {key: value for key, _, value in pairs}
            number = variables.get(name, "")
            if number.isdecimal() and int(number) < MOST_RANKS:
                rank = LiveRank(int(number), pid, variables)
                ranks.setdefault((rank.job, rank.rank), rank)
        if ranks:
            return sorted(ranks.values(), key=lambda rank: rank.rank)
    return []


def _start_s(pid: int) -> float:
    """When a process began, in seconds since the host was started; 0 if it ended meanwhile."""
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stamp_s(line: str) -> float:
    """The time of a line of dmesg, in seconds since the host was started; 0 if it has none."""
    match = re.match(r"\[\s*(\d+\.\d+)\]", line)
    return float(match[1]) if match else 0.0


def _read(pid: int, name: str) -> str:
    """A file of /proc/PID; '' for a process that ended, or is of another user."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _output(*command: str) -> str:
    """What a program prints; '' if it is not installed, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LONGEST_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


def _write(path: Path, text: str) -> bool:
    with open_to_write(path, "wb") as file:
        file.write(masked(text).encode())
    return True


def _state(rank: LiveRank, folder: Path) -> bool:
    """A process that a signal has stopped."""
    lines = _read(rank.pid, "status").splitlines()
    state = next((line.partition(":")[2].strip() for line in lines if line[:6] == "State:"), "")
    text = f"rank {rank.rank}: process {rank.pid} is in state {state}\n"
    return state[:1] in "Tt" and _write(folder / f"state-rank{rank.rank}.log", text)


_SPY = ("py-spy", "dump", "--nonblocking", "--pid")


def _stacks(rank: LiveRank, folder: Path) -> bool:
    dump = _output(*_SPY, str(rank.pid))
    return bool(dump) and _write(folder / f"stacks-rank{rank.rank}.txt", dump)


def _why_no_stacks(rank: LiveRank) -> str:
    if shutil.which(_SPY[0]) is None:
        return "py-spy is not installed. Run pip install py-spy"
    try:
        done = subprocess.run([*_SPY, str(rank.pid)], capture_output=True, timeout=_LONGEST_S)
        reason = one_line(done.stderr.decode(errors="replace").strip().partition("\n")[0])
    except (OSError, subprocess.SubprocessError) as error:
        reason = brief(error)
    return (
        f"py-spy cannot read process {rank.pid} ({cut_text(masked(reason), 120)}). Run as root, or "
        "with the capability SYS_PTRACE (docker --cap-add SYS_PTRACE)"
    )


def _rings(rank: LiveRank, folder: Path) -> bool:
    """The ring of ``torchcoll.capture``, which its process has mapped into its memory."""
    maps = (line.split(maxsplit=5) for line in _read(rank.pid, "maps").splitlines())
    paths = {fields[5] for fields in maps if len(fields) == 6 and fields[5].endswith(".ring")}
    for path in paths:
        shutil.copyfile(path, folder / Path(path).name)
    return bool(paths)


def _recorder(rank: LiveRank, folder: Path) -> bool:
    """The Flight Recorder's dump, which the rank writes when somebody writes to its pipe."""
    pipe = rank.variables.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    prefix = next((rank.variables[n] for n in _DUMP_VARIABLES if n in rank.variables), "")
    if not pipe or not prefix:
        return False
    dump, asked = Path(f"{prefix}{rank.rank}"), time.time()
    try:
        descriptor = os.open(f"{pipe}{rank.rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, b"1")
        os.close(descriptor)
        while not (dump.exists() and dump.stat().st_mtime >= asked):
            if time.time() > asked + _LONGEST_S:
                return False
            time.sleep(0.2)
        shutil.copyfile(dump, folder / f"nccl_trace_rank_{rank.rank}")
    except OSError:
        return False
    return True


def _log(rank: LiveRank, folder: Path) -> bool:
    """The end of the file that stderr of the rank goes to."""
    path = os.path.realpath(f"/proc/{rank.pid}/fd/2")
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _LOG_BYTES))
        return _write(folder / f"stderr-rank{rank.rank}.log", file.read().decode(errors="replace"))


_SOURCES = {
    "state": _state,
    "stacks of py-spy": _stacks,
    "call rings": _rings,
    "Flight Recorder dumps": _recorder,
    "stderr": _log,
}


def _ask_ras(rank: LiveRank, folder: Path) -> None:
    host, _, port = rank.variables.get("NCCL_RAS_ADDR", _RAS).rpartition(":")
    report = b""
    try:
        with socket.create_connection((host or "localhost", int(port)), 5) as connection:
            connection.sendall(b"verbose status\n")
            while piece := connection.recv(1 << 16):
                report += piece
    except (OSError, ValueError):
        pass
    if report:
        _write(folder / "ras.txt", report.decode(errors="replace"))
