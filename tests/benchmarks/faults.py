"""Who is named when a rank fails: faults on each of three ranks, and what the run says of it.

``forked``: ranks forked from one Python, with the variables of a launcher. ``torchrun`` and
``mpirun`` (Open MPI): the launcher itself. A cell says who was named; ``!`` marks a run in which
innocent ranks were named and the culprit was not. ``told``: what failed is no rank, and it is named
(a disk, a folder, the store). ``nothing to tell``: this rank can do that, and the run is
complete (rank 1 uses no disk). Faults of networks are made between namespaces, and need root.

Usage: faults.py [forked|torchrun|mpirun [FAULT ...]]
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

RANKS = 3
# Real runs start Python, on a busy machine.
TIMEOUT_S = 20 if {"--rank", "torchrun", "mpirun"} & {*sys.argv} else 6
ARGUMENTS = f"--sizes 8,16 -n 30 -T {TIMEOUT_S} --quiet --output"
Setup = Callable[[], None]


def in_call(action: Callable[..., Any], at: int = 9) -> Setup:
    """``action(call, buffers)`` instead of that call of all_reduce; it is the user's code."""

    def setup() -> None:
        from torchcoll.core.collectives import COLLECTIVES

        entry = COLLECTIVES["all_reduce"]

        def prepare(*args: Any) -> Callable[[], Any]:
            call, numbers = entry.prepare(*args), itertools.count()
            return lambda: action(call, args) if next(numbers) == at else call()

        COLLECTIVES["all_reduce"] = dataclasses.replace(entry, prepare=prepare)

    return setup


def before(action: Callable[[], Any], at: int = 9) -> Setup:
    return in_call(lambda call, args: (action(), call()), at)


def in_method(path: str, action: Callable[[], Any], at: int = 0) -> Setup:
    """``action()`` before the call number ``at`` of a method, ``module:Class.method``."""

    def setup() -> None:
        import importlib

        module, _, names = path.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, name = names.split(".")
        for part in outer:
            owner = getattr(owner, part)
        original, numbers = getattr(owner, name), itertools.count()

        def instead(*args: Any, **options: Any) -> Any:
            if next(numbers) == at:
                action()
            return original(*args, **options)

        setattr(owner, name, instead)

    return setup


def stop_for(seconds: float) -> Callable[[], None]:
    """Stopped, and continued by a process that outlives the stop."""

    def action() -> None:
        words = ["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"]
        subprocess.Popen(words, start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)

    return action


def kill(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def forever() -> None:
    time.sleep(1000)


def spin() -> None:
    while True:
        pass


def spin_in_c() -> None:
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 1 << 30)  # without Python's lock


def spin_with_the_lock() -> None:
    re.match(r"(a+)+b", "a" * 64)


def raises(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def deadlock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def empty_pipe() -> None:
    os.read(os.pipe()[0], 1)


def with_buffer(change: Callable[[Any], Any]) -> Setup:
    """The call on another buffer than the others have."""

    def action(call: Any, args: Any) -> None:
        dist, send = args[0], args[2]
        dist.all_reduce(change(send))

    return in_call(action)


def another_collective(call: Any, args: Any) -> None:
    args[0].broadcast(args[2], 0)


def no_threads() -> None:
    def start(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start  # type: ignore[method-assign]


def no_threads_later() -> None:
    in_method("torchcoll.bench.session:Sweep.one_case", no_threads)()
    in_call(lambda call, args: None)()


def missing_import() -> None:
    sys.modules["torchcoll.bench.session"] = None  # type: ignore[assignment]


def other_arguments() -> None:
    sys.argv[1:] = [word.replace("8,16", "8,32") for word in sys.argv[1:]]


def forgotten_word() -> None:
    """One word in the exchange is never sent, as by a store that loses it."""
    from torchcoll.bench.control import Control

    original, numbers = Control.gather, itertools.count()

    def gather(self: Any, value: Any, *args: Any) -> Any:
        if next(numbers) == 12:
            self.steps += 1
            return [value] * self.ranks if self.rank == 0 else []
        return original(self, value, *args)

    Control.gather = gather  # type: ignore[method-assign]


def close_sockets() -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket"):
                ctypes.CDLL(None).shutdown(int(name), 2)
        except OSError:
            pass


def another_case() -> None:
    """As of another version or another file on one host."""
    from torchcoll.core.spec import Spec

    original = Spec.sizings

    def sizings(self: Any, ranks: int) -> Any:
        return tuple(dataclasses.replace(s, count=2 * s.count) for s in original(self, ranks))

    Spec.sizings = sizings  # type: ignore[method-assign]


# What is around a rank: disks, folders, networks, memory, the environment.
COULD_FILL = 1 << 20  # bytes: the disk of a file that is to fill up


def fill_the_disk() -> None:
    with suppress(OSError), open(Path(sys.argv[-1]).with_name("core"), "wb", 0) as file:
        while True:
            file.write(bytes(4096))


def remove_the_folder() -> None:
    shutil.rmtree(Path(sys.argv[-1]).parent)


def lose_the_store() -> None:
    """Every connection to the store that this rank has; of the rank that serves it, the store."""
    port = int(os.environ["MASTER_PORT"])
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            ends = [one.getsockname()[1:2]]
            with suppress(OSError):
                ends.append(one.getpeername()[1:2])
            if (port,) in ends:
                one.shutdown(socket.SHUT_RDWR)


def interface_down() -> None:
    subprocess.run(["ip", "link", "set", "v0", "down"], check=True)


def killed_for_memory() -> None:
    """By the kernel, in a group of so little that nobody else is."""
    group = Path(f"{MEMORY_GROUPS}{os.getpid()}")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    bytearray(os.urandom(1) * (1 << 30))


def no_memory_for_the_buffers() -> None:
    import torch

    torch.empty(1 << 46, dtype=torch.uint8).fill_(1)


def variables(change: Callable[[], dict[str, str]]) -> Setup:
    return lambda: os.environ.update(change())


def launchers(names: Sequence[str], value: Callable[[], int]) -> Setup:
    """Of the launcher that there is, and no other's beside them."""
    return variables(lambda: {name: str(value()) for name in names if name in os.environ})


def _own_number() -> int:
    return int(next(os.environ[name] for name in RANK_NAMES if name in os.environ))


MEMORY_GROUPS = "/sys/fs/cgroup/memory/torchcoll-fault-"
RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK")
SIZE_NAMES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")

CONTROL, SESSION = "torchcoll.bench.control:Control", "torchcoll.bench.session:Session"
STORE = "torchcoll.bench.control:store_of"
LAST = "torchcoll.bench.sweep:Sweep.finish"

FAULTS: dict[str, Setup] = {
    # ends
    "kill -9 in a call": before(kill(signal.SIGKILL)),
    "kill -9 in the first call": before(kill(signal.SIGKILL), 0),
    "kill -9 before the hello": in_method(f"{SESSION}._hello", kill(signal.SIGKILL)),
    "kill -9 in the exchange": in_method(f"{CONTROL}.gather", kill(signal.SIGKILL), 12),
    "kill -9 in the last look": in_method(LAST, kill(signal.SIGKILL)),
    "abort in a call": before(os.abort),
    "segfault in a call": before(lambda: ctypes.string_at(0)),
    "SIGTERM to one rank": before(kill(signal.SIGTERM)),
    "SIGINT to one rank": before(kill(signal.SIGINT)),
    "sys.exit(0) in a call": before(raises(SystemExit(0))),
    "sys.exit(3) in a call": before(raises(SystemExit(3))),
    "os._exit(0) in a call": before(lambda: os._exit(0)),
    "error in the first call": before(raises(RuntimeError("boom")), 0),
    "error in a call": before(raises(RuntimeError("boom"))),
    "TypeError in a call": before(raises(TypeError("boom"))),
    "MemoryError in a call": before(raises(MemoryError())),
    "error in the exchange": in_method(f"{CONTROL}.gather", raises(ValueError("boom")), 12),
    "no module on one rank": missing_import,
    # hangs
    "sleep before a call": before(forever),
    "sleep after a call": in_call(lambda call, args: (call(), forever())),
    "spin": before(spin),
    "spin in C": before(spin_in_c),
    "spin in C with the GIL": before(spin_with_the_lock),
    "sleep in C": before(lambda: ctypes.CDLL(None).sleep(1000)),
    "sleep in C with the GIL": before(lambda: ctypes.PyDLL(None).sleep(1000)),
    "late": before(lambda: time.sleep(TIMEOUT_S + 1)),
    "deadlock": before(deadlock),
    "read of an empty pipe": before(empty_pipe),
    "SIGSTOP in a call": before(kill(signal.SIGSTOP)),
    "paused in a call": before(stop_for(TIMEOUT_S + 15)),
    "paused in a call, briefly": before(stop_for(TIMEOUT_S + 2)),
    "paused in the exchange": in_method(f"{CONTROL}.gather", stop_for(TIMEOUT_S + 15), 12),
    "SIGSTOP in the exchange": in_method(f"{CONTROL}.gather", kill(signal.SIGSTOP), 12),
    "hang in the exchange": in_method(f"{CONTROL}.gather", forever, 12),
    "hang in a decision": in_method(f"{CONTROL}.decide", forever, 12),
    "hang in the hello": in_method(f"{SESSION}._hello", forever),
    "hang in making the group": in_method(
        "torchcoll.bench.communicators:Communicators.open", forever
    ),
    "hang in the last look": in_method(LAST, forever),
    # out of step
    "skipped call": in_call(lambda call, args: None),
    "extra call": in_call(lambda call, args: (call(), call())),
    "another collective": in_call(another_collective),
    "another case": another_case,
    "another size": with_buffer(lambda buffer: buffer.repeat(4)),
    "another dtype": with_buffer(lambda buffer: buffer.double()),
    "forgotten word": forgotten_word,
    "other arguments": other_arguments,
    # resources
    "no thread at the start": in_method(STORE, no_threads),
    "no thread later, and a skipped call": no_threads_later,
    "connections closed": before(close_sockets),
    "killed for its memory": before(killed_for_memory),
    "no memory for the buffers": in_method(
        "torchcoll.bench.measure:allocate", no_memory_for_the_buffers, 1
    ),
    # around the ranks
    "full disk": before(fill_the_disk),
    "removed folder": before(remove_the_folder),
    "connection to the store lost": before(lose_the_store),
    "launcher killed": before(lambda: os.kill(os.getppid(), signal.SIGKILL)),
    "interface down": before(interface_down),
    "interface that is not there": variables(lambda: {"GLOO_SOCKET_IFNAME": "absent0"}),
    "port of another store": variables(lambda: {"MASTER_PORT": str(_free_port())}),
    "more ranks than there are": launchers(SIZE_NAMES, lambda: RANKS + 1),
    "number of another rank": launchers(RANK_NAMES, lambda: (_own_number() + 1) % RANKS),
}
# What is told where the cause is no rank.
TOLD = {
    "full disk": "No space left on device",
    "removed folder": "removed, moved or truncated while measuring; all is in",
    "launcher killed": "agent|launcher",
    "interface that is not there": "no interface absent0",
}
REAL_ONLY = ("launcher killed",)  # that of forked ranks is this benchmark
BETWEEN_HOSTS = ("interface down",)
AT_START = (
    "kill -9 before the hello",
    "no module on one rank",
    "hang in the hello",
    "no thread at the start",
    "other arguments",
    "port of another store",
    "more ranks than there are",
    "number of another rank",
    "interface that is not there",
)


# Who was named.
_NAMES = r"((?:rank \d+(?: \([^)]*\))?(?:, )?)+)"
_ACCUSED = (
    rf"{_NAMES} stood still",
    rf"{_NAMES} is cut off from the store: its own connection is gone, or that of {_NAMES}",
    rf"{_NAMES} is cut off from all others, or lost {_NAMES}",
    rf"{_NAMES} is cut off from the store",
    rf"{_NAMES} gave another buffer",
    rf"{_NAMES} counts? \d+ ranks",
    rf"lost {_NAMES}",
    rf"{_NAMES} (?:is|are) in (?:user code|torchcoll)",
    rf"{_NAMES} (?:is|are) in broadcast",
    rf"{_NAMES} left out a call",
    rf"{_NAMES} made a call",
    rf"{_NAMES} did not give",
    rf"{_NAMES} (?:sleeps|spins) in",
    rf"behind: {_NAMES}",
    rf"failed on {_NAMES} alone",
    rf"(?:arguments|case) (?:of|on) {_NAMES}: got",
    rf"no memory on {_NAMES}",
    rf"no word (?:yet )?from {_NAMES}",
    rf"rendezvous of {_NAMES}: .* that (rank 0) was started",
    rf"error: {_NAMES}: ",
    rf"; {_NAMES}: ",
)


def accused(line: str) -> set[int]:
    """The ranks that the line names as the cause: by the first of the words above that it has."""
    for pattern in _ACCUSED:
        if found := re.search(pattern, line):
            return {int(rank) for rank in re.findall(r"rank (\d+)", " ".join(found.groups()))}
    return set()


def verdict(fault: str, victim: int, lines: list[str], end: str) -> str:
    """named, or what else the lines of a run come to."""
    named: set[int] = set().union(*map(accused, lines)) if lines else set()
    if fault in TOLD and not named - {victim}:
        if any(re.search(TOLD[fault], line) for line in lines):
            return "told"
        if end == "complete 0":
            return "nothing to tell"
    if named == {victim}:
        return "named"
    if victim in named:
        return f"named, with {', '.join(map(str, sorted(named - {victim})))}"
    return f"! {', '.join(map(str, sorted(named)))}" if named else "nobody"


def as_rank(fault: str, victim: int, path: str, rank: int) -> None:
    """What one rank of a real run, or a forked one, does."""
    from torchcoll.bench.main import main

    sys.argv[1:] = [*ARGUMENTS.split(), path]
    if rank == victim:
        FAULTS[fault]()
    main("all_reduce")


def stated(path: Path, texts: list[str]) -> tuple[list[str], str]:
    """The error lines, without repetition, and how the file ends."""
    lines = [
        line[line.index("torchcoll: error") :]
        for text in texts
        for line in text.splitlines()
        if "torchcoll: error" in line
    ]
    end = "no file"
    if path.exists():
        records = [json.loads(line) for line in path.read_text().splitlines() if line[-1:] == "}"]
        ends = [r for r in records if r["record"] == "end"]
        end = " + ".join(f"{r['status']} {r['exit_code']}" for r in ends) or "no end"
        if not lines and ends:  # a line that the launcher took with it
            lines = [f"error: {r['reason']}" for r in ends]
    return list(dict.fromkeys(lines)), end


@contextmanager
def place_of_file(fault: str, folder: Path) -> Iterator[Path]:
    place = folder / "out"
    place.mkdir()
    small = fault == "full disk"
    if small:
        options = ("-t", "tmpfs", "-o", f"size={COULD_FILL}", "none")
        subprocess.run(["mount", *options, str(place)], check=True)
    try:
        yield place / "run.jsonl"
    finally:
        if small:
            subprocess.run(["umount", "-l", str(place)], check=True)
        for group in Path(MEMORY_GROUPS).parent.glob(f"{Path(MEMORY_GROUPS).name}*"):
            with suppress(OSError):  # another's that lives
                group.rmdir()


@contextmanager
def network_of(fault: str) -> Iterator[Any]:
    """Namespaces, a host for each rank; None where one host will do."""
    if fault not in BETWEEN_HOSTS:
        yield None
        return
    import namespaces

    namespaces.before_all_others = lambda: None  # nothing is timed here
    with namespaces.hosts(RANKS, namespaces.DEFAULTS) as network:
        yield network


def forked(
    fault: str, victim: int, folder: Path, path: Path, network: Any
) -> tuple[list[str], list[int]]:
    """Ranks that the fault has stopped are killed when the others are gone, as a launcher would."""
    from ranks import Job

    def target() -> None:
        rank = int(os.environ["RANK"])
        as_rank(fault, victim, str(path), rank)

    options = {"environment": network.environment, "setup": network.enter} if network else {}
    job = Job(folder / "ranks", target, RANKS, port=_free_port(), **options)
    deadline = time.monotonic() + 12 * TIMEOUT_S
    while (left := job.running()) and time.monotonic() < deadline:
        if left == [victim] and not fault.startswith("paused"):
            time.sleep(2)
            break
        time.sleep(0.05)
    job.kill()
    ended = job.wait()
    return [job.text(rank) for rank in ended], [one.code for one in ended.values()]


def launched(
    launcher: str, fault: str, victim: int, folder: Path, path: Path, network: Any
) -> tuple[list[str], list[int]]:
    rank = [str(Path(__file__)), "--rank", fault, str(victim), str(path)]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    mpirun = ["mpirun", "--allow-run-as-root", "-n", str(RANKS)]
    if network:
        names, address = network.names, network.address
        if launcher == "torchrun":
            where = ["--master-addr", address(0), "--master-port", str(_free_port())]
            nodes = [*torchrun, "--nnodes", str(RANKS), "--nproc-per-node", "1", *where]
            commands = [
                [*inside(names[index], index), *nodes, "--node-rank", str(index), *rank]
                for index in range(RANKS)
            ]
        else:
            hosts = ",".join(address(index) for index in range(RANKS))
            mpirun += ["--host", hosts, "--map-by", "ppr:1:node", "--bind-to", "none"]
            shell = folder / "shell"
            shell.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__)} "$@"\n')
            shell.chmod(0o755)
            only = ("oob_tcp_if_include", "v0", "--mca", "plm_rsh_agent", str(shell))
            mpirun += ["--mca", *only, "-x", "MASTER_ADDR", "-x", "MASTER_PORT"]
            mpirun += ["-x", "GLOO_SOCKET_IFNAME", "-x", MARK]
            commands = [[*inside(names[0], 0), *mpirun, sys.executable, *rank]]
        env = {"GLOO_SOCKET_IFNAME": "v0", "HOSTS": " ".join(names)}
        if launcher == "mpirun":
            env |= {"MASTER_ADDR": address(0), "MASTER_PORT": str(_free_port())}
        return until_all_left(commands, env, folder)
    if launcher == "torchrun":
        own = ["--nproc-per-node", str(RANKS), "--standalone"]
        return until_all_left([[*torchrun, *own, *rank]], {}, folder)
    env = {}
    # A port is needed, which torchcoll else makes of what Open MPI says of the job.
    if "store" in fault or fault in ("more ranks than there are", "number of another rank"):
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    return until_all_left([[*mpirun, "--oversubscribe", sys.executable, *rank]], env, folder)


def inside(namespace: str, index: int) -> list[str]:
    """Before the words of a command: on that host, with its name."""
    script = f'hostname h{index}; exec "$@"'
    return ["ip", "netns", "exec", namespace, "unshare", "--uts", "sh", "-c", script, "sh"]


def as_remote_shell(address: str, words: Sequence[str]) -> None:
    """What mpirun has for ssh."""
    index = int(address.rpartition(".")[2]) - 1
    command = [*inside(os.environ["HOSTS"].split()[index], index), "sh", "-c", " ".join(words)]
    os.execvp(command[0], command)


MARK = "TORCHCOLL_BENCHMARK_OF_FAULTS"
LONGEST_S = 150


def until_all_left(
    commands: Sequence[Sequence[str]], env: dict[str, str], folder: Path
) -> tuple[list[str], list[int]]:
    """What they wrote, and exit codes; all that they started is waited for, and then killed."""
    mark = f"{MARK}={folder}"
    env = {**os.environ, "OMP_NUM_THREADS": "1", MARK: str(folder), **env}
    files = [folder / f"{number}.txt" for number in range(len(commands))]
    started = []
    for command, file in zip(commands, files, strict=True):
        with open(file, "w") as output:
            started.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=env,
                    cwd=folder,
                    start_new_session=True,
                )
            )
    deadline = time.monotonic() + LONGEST_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        for one in started:
            one.poll()
        time.sleep(0.3)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    codes = [one.wait() for one in started]
    return [file.read_text() for file in files], codes


def marked(mark: str) -> list[int]:
    """Processes that have it in their environment."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            if mark.encode() in Path(f"/proc/{int(name)}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def _free_port() -> int:
    from common import free_port

    return free_port()


def one(launcher: str, fault: str, victim: int) -> dict[str, Any]:
    """Again where the ranks of a busy machine did not meet in time, before the fault was done."""
    for _ in range(3):
        found = _once(launcher, fault, victim)
        if fault in AT_START or not any("rendezvous" in line for line in found["lines"]):
            break
    return found


def _once(launcher: str, fault: str, victim: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp())
    try:
        with place_of_file(fault, folder) as path, network_of(fault) as network:
            launch = forked if launcher == "forked" else partial(launched, launcher)
            texts, codes = launch(fault, victim, folder, path, network)
            lines, end = stated(path, texts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"launcher": launcher, "fault": fault, "victim": victim, "lines": lines, "end": end,
            "codes": codes, "verdict": verdict(fault, victim, lines, end)}  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        fault, victim, path = sys.argv[2:]
        return as_rank(fault, int(victim), path, _own_number())
    if "HOSTS" in os.environ:
        return as_remote_shell(sys.argv[1], sys.argv[2:])
    launcher = sys.argv[1] if len(sys.argv) > 1 else "forked"
    known = [fault for fault in FAULTS if launcher != "forked" or fault not in REAL_ONLY]
    faults = sys.argv[2:] or known
    from common import fork_ranks, title

    title(f"faults: {RANKS} ranks, {launcher}, all_reduce, --timeout {TIMEOUT_S}")
    counts: dict[str, int] = {}
    for fault in faults:  # three runs side by side: they mostly wait
        found = fork_ranks(RANKS, lambda victim, fault=fault: one(launcher, fault, victim))
        for each in found:
            counts[each["verdict"]] = counts.get(each["verdict"], 0) + 1
        cells = [f"{each['verdict']} [{each['end']}]" for each in found]
        print(f"{fault:36} | {' | '.join(cells)}", flush=True)
        for each in found:
            odd = each["verdict"] != "named" or each["victim"] == 2
            for line in each["lines"] if odd else ():
                print(
                    f"    rank {each['victim']}: {line.partition('error: ')[2][:300]}", flush=True
                )
    print("; ".join(f"{count} {word}" for word, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
