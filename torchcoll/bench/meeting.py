"""Where the ranks of a run meet if the launcher has no store for them, as torchrun has: at an
address that depends only on what the launcher gives to all ranks alike. Loaded if it is needed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torchcoll.core.errors import HangError, UnavailableError, UsageError
from torchcoll.machine.launcher import BY_HAND, Launch

# Below the ports that systems give out by themselves (Linux: from 32768), above torch's 29500.
_PORTS = range(20000, 30000)
_TO_PBS = "In the job script: export MASTER_ADDR=$(head -n 1 $PBS_NODEFILE)"
_OTHER_FILES = 512  # that rank 0 has open: torch's and the library's own
_NAME_S = 20.0  # a name that does not resolve for so long is mostly a typing error
_PROCESSES = ("hydra_pmi_proxy", "mpiexec.hydra", "mpiexec", "mpirun")


@dataclass(frozen=True)
class Master:
    """Where rank 0 serves the store. ``source``: what the host was derived from, or empty."""

    host: str
    port: int
    source: str = ""


def join(torch: Any, launch: Launch, timeout_s: float) -> Any:
    """The store of a run, which rank 0 serves. Raises HangError if it is not reached,
    UnavailableError if the port is taken, UsageError if nothing says where.
    """
    if launch.rendezvous_file:
        return _join_file(torch, launch, launch.rendezvous_file, timeout_s)
    dist, timeout, master = torch.distributed, timedelta(seconds=timeout_s), find_master(launch)
    host, port = master.host, master.port
    try:
        # Not rendezvous("env://"): there rank 0 waits for all clients and, when one never comes,
        # can only count them. Without that wait the hello names who is missing.
        if launch.rank == 0:
            if master.source and not _is_here(host):
                here = socket.gethostname()
                given = f"{host} from {master.source}, while rank 0 runs on {here}"
                action = f"Set MASTER_ADDR={here} for all ranks."
                raise UsageError("MASTER_ADDR", given, "the host of rank 0", action)
            _allow_connections(launch.ranks)
            # It listens on all addresses. Its own client needs none of the names.
            store = dist.TCPStore("localhost", port, None, True, timeout, wait_for_workers=False)
        else:
            # torch's client takes up to twice its timeout and prints pages of C++ frames.
            _wait_for_listener(launch, master, timeout_s)
            store = _within(
                timeout_s,
                lambda: dist.TCPStore(host, port, None, False, timeout, wait_for_workers=False),
            )
    except RuntimeError as error:
        if launch.rank == 0 and "EADDRINUSE" in str(error):
            given = f"port {port} of {socket.gethostname()} in use by another program"
            action = "Set MASTER_PORT to one, alike for all ranks."
            raise UnavailableError("rendezvous", given, "a free port", action) from None
        reason = str(error).splitlines()[0][:160]
        raise _unreachable(launch, master, timeout_s, reason) from None
    # Another run that was given the same port must not hear our ranks.
    return dist.PrefixStore(f"torchcoll/{launch_key(launch) or ''}", store)


def _allow_connections(ranks: int) -> None:
    """Room for the connections of all ranks. Raises UsageError if the hard limit is too low."""
    import resource  # not on every system

    needed = 2 * ranks + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = needed if hard == resource.RLIM_INFINITY else hard
    if most < needed:
        what = f"open files of rank 0 ({socket.gethostname()})"
        expected = f"at least {needed}: {ranks} ranks have two connections each to its store"
        action = "Raise it there (ulimit -Hn)."
        raise UsageError(what, f"a hard limit of {hard}", expected, action)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _within(timeout_s: float, connect: Callable[[], Any]) -> Any:
    """The result of ``connect``. Raises RuntimeError after ``timeout_s``, as torch may not."""
    results: list[Any] = []

    def ask() -> None:
        try:
            results.append(connect())
        except RuntimeError as error:
            results.append(error)

    thread = threading.Thread(target=ask, name="torchcoll-rendezvous", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # no fault of rank 0's, which cannot hear of it
        raise HangError(str(no_thread(error))) from None
    thread.join(timeout_s)
    if not results:
        raise RuntimeError("what listens there does not answer: paused, or no store")
    if isinstance(results[0], RuntimeError):
        raise results[0]
    return results[0]


def no_thread(error: RuntimeError) -> UnavailableError:
    """The error of a process that can have no more threads."""
    what, expected = f"threads on {socket.gethostname()}", "room for the few that watch and meet"
    action = "See ulimit -u, and pids.max of the container."
    return UnavailableError(what, error, expected, action)


def _unreachable(launch: Launch, master: Master, timeout_s: float, reason: str) -> HangError:
    """The error names this rank too: if no other rank has it, this one has another address."""
    source = f" (of {master.source})" if master.source else ""
    what = f"rendezvous of rank {launch.rank} ({socket.gethostname()})"
    given = f"no store at {master.host}:{master.port}{source} within {timeout_s:g} s ({reason})"
    action = "Check MASTER_ADDR and MASTER_PORT of this rank, and that rank 0 was started."
    return HangError(what, given, "rank 0 listening there", action)


def _wait_for_listener(launch: Launch, master: Master, timeout_s: float) -> None:
    host, port = master.host, master.port
    start = time.monotonic()
    pause = 0.05
    while True:
        left = timeout_s - (time.monotonic() - start)
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(left, 10.0))).close()
            return
        except UnicodeError as error:  # the IDNA codec, for a name that cannot be one
            raise UsageError("MASTER_ADDR", host, f"a host name or address ({error})") from None
        except OSError as error:
            waited = time.monotonic() - start
            unknown = isinstance(error, socket.gaierror)
            reason = f"{error.strerror or error}"
            if unknown:
                reason = f"the name does not resolve on {socket.gethostname()}: {reason}"
            limit_s = min(timeout_s, _NAME_S) if unknown else timeout_s
            if waited >= limit_s:
                raise _unreachable(launch, master, limit_s, reason) from None
        time.sleep(min(pause, limit_s - waited))
        pause = min(1.0, 1.5 * pause)


def _is_here(host: str) -> bool:
    """Whether this is a name or an address of this host, or a name that does not resolve."""
    if host.split(".")[0] == socket.gethostname().split(".")[0]:
        return True
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return True
    for family, kind, _, _, address in addresses:
        with socket.socket(family, kind) as probe, contextlib.suppress(OSError):
            probe.bind(address)
            return True
    return False


def why_none_came(launch: Launch, timeout_s: float, import_s: float) -> str:
    """Why some ranks may not have come in time, as far as rank 0 can see; '' if it sees nothing."""
    text = ""
    host = "" if launch.rendezvous_file else os.environ.get("MASTER_ADDR", "")
    if host and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and not _is_here(host):
        text = f". MASTER_ADDR={host} is no address of {socket.gethostname()}, where rank 0 runs"
    if import_s >= timeout_s:
        text += f". Rank 0 took {import_s:.0f} s to import torch: others may have left by then"
    return text


def find_master(launch: Launch, environ: Mapping[str, str] | None = None) -> Master:
    """MASTER_ADDR and MASTER_PORT, or what the launcher's lists imply. Raises UsageError, and
    HangError on a host without the file.
    """
    env = os.environ if environ is None else environ
    host, port, source = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", ""), ""
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError("MASTER_PORT", port, "a port from 1 to 65535")
    unread = ""
    if not host and launch.launcher != BY_HAND:
        host, source, unread = _first_host(launch, env)
    number = int(port) if port else 0
    if not number and launch.launcher != BY_HAND and (key := launch_key(launch, env)):
        number = _PORTS[zlib.crc32(key.encode()) % len(_PORTS)]
    if host and number:
        return Master(host, number, source)
    if not host and unread and launch.rank and "PBS_NODEFILE" in unread:
        raise HangError("rendezvous", f"no MASTER_ADDR{unread}", "the host of rank 0", _TO_PBS)
    lacking = [name for name, value in (("ADDR", host), ("PORT", number)) if not value]
    names = " and ".join(f"MASTER_{name}" for name in lacking)
    raise UsageError(
        f"{names} of {launch.ranks} ranks from {launch.launcher}",
        f"{'neither' if len(lacking) > 1 else 'none'}{unread}",
        "the host of rank 0 and a free port there",
        f"Give all ranks {names}, or --rendezvous-file PATH in a folder that all hosts share.",
    )


def _first_host(launch: Launch, env: Mapping[str, str]) -> tuple[str, str, str]:
    """(host, where it is from, what could not be read)."""
    srun = launch.launcher == "srun"
    nodes = {"srun": "SLURM_STEP_NUM_NODES", "Flux": "FLUX_JOB_NNODES"}.get(launch.launcher, "")
    if launch.local_ranks == launch.ranks or env.get(nodes) == "1":
        return "127.0.0.1", "", ""
    # An mpirun inside a job has started its daemons by srun, on all hosts but its own: the step's
    # list is of those. SLURM_LAUNCH_NODE_IPADDR is where srun runs, often a login node.
    lists = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    name = next((name for name in lists if (srun or "STEP" not in name) and env.get(name)), None)
    if name:
        if env.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
            return "", "", f", and with SLURM_DISTRIBUTION=arbitrary {name} is in another order"
        if env.get("SLURM_HET_SIZE", "1") != "1":
            return "", "", f", and {name} is of one component of a heterogeneous job"
        return expand_hosts(env[name], name)[0], name, ""
    if path := env.get("PBS_NODEFILE"):
        try:
            with open(path) as file:
                hosts = file.read().split()
        except OSError as error:
            return "", "", f", and PBS_NODEFILE {path}: {error.strerror} on {socket.gethostname()}"
        return (hosts[0], "PBS_NODEFILE", "") if hosts else ("", "", f", and {path} is empty")
    for name in ("LSB_MCPU_HOSTS", "LSB_HOSTS"):  # 'a 4 b 4' and 'a a a a b b b b'
        if hosts := env.get(name, "").split():
            return hosts[0], name, ""
    return "", "", ""


def launch_key(launch: Launch, environ: Mapping[str, str] | None = None) -> str | None:
    """A text that is the same on all ranks of this run and on no other, or None."""
    env = os.environ if environ is None else environ
    if launch.launcher == BY_HAND:
        return None
    if launch.launcher == "srun" and env.get("SLURM_JOB_ID"):
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return ".".join(env.get(name) or "0" for name in names)
    for name in ("PALS_APID", "I_MPI_HYDRA_UUID", "PMIX_NAMESPACE"):
        if env.get(name):
            return env[name]
    if launch.local_ranks == launch.ranks and (pid := _launcher_process()):
        return f"{launch.job_id or ''}.{pid}"
    return launch.job_id


def _launcher_process() -> int | None:
    """The nearest process above this one that starts ranks, past any shell between."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
        except OSError:
            return None
        if name in _PROCESSES:
            return pid
        pid = int(rest.split()[1])
    return None


def expand_hosts(text: str, what: str = "host list") -> list[str]:
    """The hosts of a Slurm list ``node[01-03,07],gpu5``, in order. Raises UsageError."""
    hosts: list[str] = []
    pieces = re.findall(r"(?:[^,\[\]\s]|\[[^\]]*\])+", text)
    if ",".join(pieces) != text.strip() or not pieces:
        raise UsageError(what, text, "a Slurm list such as node[01-03,07],gpu5")
    for piece in pieces:
        # Odd parts are the insides of brackets; rack[1-2]node[1-4] has two.
        parts = re.split(r"\[([^\]]*)\]", piece)
        choices = [_numbers(p, text, what) if i % 2 else [p] for i, p in enumerate(parts)]
        hosts += map("".join, itertools.product(*choices))
    return hosts


def _numbers(text: str, whole: str, what: str) -> list[str]:
    numbers: list[str] = []
    for span in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", span)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(what, whole, "a Slurm list such as node[01-03,07],gpu5")
        low, high = match[1], match[2] or match[1]
        numbers += (str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
    return numbers


# How torch's FileStore begins. Of any other file it reads nonsense as lengths, and never returns.
_FILE_HEAD = b"\t\0\0\0refcount/"


def _join_file(torch: Any, launch: Launch, path: str, timeout_s: float) -> Any:
    """A FileStore. Each run that has a key has a file of its own, and rank 0 refuses one that
    exists: a file left over from an earlier run would be read as this one's.
    """
    key = launch_key(launch)
    if key:
        path = f"{path}.{re.sub(r'[^A-Za-z0-9._-]', '_', key)}"
    if launch.rank == 0:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            given = f"{path}, left over from an earlier run or used by another"
            expected, action = "a file that does not exist", "Remove it, or name another."
            raise UsageError("rendezvous-file", given, expected, action) from None
        except OSError as error:
            given, expected = f"{path} ({error.strerror})", "a path that can be written"
            raise UsageError("rendezvous-file", given, expected) from None
    else:
        _wait_for_file(path, timeout_s)
    try:
        store = torch.distributed.FileStore(path, launch.ranks)
        store.set_timeout(timedelta(seconds=timeout_s))
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise UsageError("rendezvous-file", f"{path} ({first})", "a file to share") from None
    return torch.distributed.PrefixStore("torchcoll", store)


def _wait_for_file(path: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    folder = os.path.dirname(path) or "."
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            given = f"no {path} on {socket.gethostname()} within {timeout_s:g} s"
            action = "Check that all hosts share the folder and that rank 0 was started."
            raise HangError("rendezvous-file", given, "the file that rank 0 makes", action)
        time.sleep(0.1)
        # A network file system may remember for half a minute that a name does not exist; reading
        # the folder makes it look again.
        if os.path.isdir(folder):
            os.listdir(folder)
    with open(path, "rb") as file:
        if not _FILE_HEAD.startswith(file.read(len(_FILE_HEAD))):
            raise UsageError("rendezvous-file", f"{path}, which is no store", "a new file's path")
