"""Who is named when a rank fails: faults on each of three ranks, and what the launch says of it.

``forked``: ranks forked from one Python, with the variables of a launcher. ``torchrun`` and
``mpirun`` (Open MPI): the launcher itself. A cell says who was named; ``!`` marks a launch in which
innocent ranks were named and the culprit was not.

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
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

RANKS = 3
TIMEOUT_S = 6 if "--rank" not in sys.argv else 20  # real launches start Python, on a busy machine
ARGUMENTS = f"--sizes 8,16 -n 30 -T {TIMEOUT_S} --quiet --output"
Setup = Callable[[], None]


# -- faults: each is done to one rank, before torchcoll starts there -------------------------------


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


CONTROL, SESSION = "torchcoll.bench.control:Control", "torchcoll.bench.session:Session"
STORE = "torchcoll.bench.session:store_of"
LAST = "torchcoll.bench.session:Hosts.look_again"

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
    "SIGSTOP in the exchange": in_method(f"{CONTROL}.gather", kill(signal.SIGSTOP), 12),
    "hang in the exchange": in_method(f"{CONTROL}.gather", forever, 12),
    "hang in a decision": in_method(f"{CONTROL}.decide", forever, 12),
    "hang in the hello": in_method(f"{SESSION}._hello", forever),
    "hang in making the group": in_method(
        "torchcoll.bench.communicators:Communicators._init", forever
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
}
AT_START = (
    *("kill -9 before the hello", "no module on one rank", "hang in the hello"),
    *("no thread at the start", "other arguments"),
)
OF_ITEM_6 = ("sleep before a call", "spin", "late", "skipped call", "hang in the exchange")


# -- who was named ---------------------------------------------------------------------------------

_NAMES = r"((?:rank \d+(?: \([^)]*\))?(?:, )?)+)"
_ACCUSED = (
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
    rf"no word from {_NAMES}",
    r"that (rank 0) was started",
    rf"error: {_NAMES}: ",
    rf"; {_NAMES}: ",
)


def accused(line: str) -> set[int]:
    """The ranks that the line names as the cause: by the first of the words above that it has."""
    for pattern in _ACCUSED:
        if found := re.search(pattern, line):
            return {int(number) for number in re.findall(r"rank (\d+)", found[1])}
    return set()


def verdict(victim: int, lines: list[str]) -> str:
    """named, or what else the lines of a launch come to."""
    named: set[int] = set().union(*map(accused, lines)) if lines else set()
    if named == {victim}:
        return "named"
    if victim in named:
        return f"named, with {', '.join(map(str, sorted(named - {victim})))}"
    return f"! {', '.join(map(str, sorted(named)))}" if named else "nobody"


# -- launches --------------------------------------------------------------------------------------


def as_rank(fault: str, victim: int, path: str, rank: int) -> None:
    """What one rank of a real launch, or a forked one, does."""
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
        records = [json.loads(line) for line in path.read_text().splitlines()]
        ends = [r for r in records if r["record"] == "end"]
        end = " + ".join(f"{r['status']} {r['exit_code']}" for r in ends) or "no end"
        if not lines and ends:  # a line that the launcher took with it
            lines = [f"error: {r['reason']}" for r in ends]
    return list(dict.fromkeys(lines)), end


def forked(fault: str, victim: int, folder: Path) -> tuple[list[str], str, list[int]]:
    """Ranks that the fault has stopped are killed when the others are gone, as a launcher would."""
    from common import free_port
    from ranks import Job

    path = folder / "run.jsonl"

    def target() -> None:
        rank = int(os.environ["RANK"])
        as_rank(fault, victim, str(path), rank)

    job = Job(folder / "ranks", target, RANKS, port=free_port())
    deadline = time.monotonic() + 12 * TIMEOUT_S
    while (left := job.running()) and time.monotonic() < deadline:
        if left == [victim] and FAULTS[fault] is not None:
            time.sleep(2)
            break
        time.sleep(0.05)
    job.kill()
    ended = job.wait()
    lines, end = stated(path, [job.text(rank) for rank in ended])
    return lines, end, [one.code for one in ended.values()]


def launched(launcher: str, fault: str, victim: int, folder: Path) -> tuple[Any, ...]:
    path = folder / "run.jsonl"
    rank = [str(Path(__file__)), "--rank", fault, str(victim), str(path)]
    if launcher == "torchrun":
        program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
        command = [*program, "--standalone", *rank]
    else:
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS)]
        command += [sys.executable, *rank]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=env, cwd=folder)
    lines, end = stated(path, [done.stdout + done.stderr])
    return lines, end, [done.returncode]


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
        if launcher == "forked":
            lines, end, codes = forked(fault, victim, folder)
        else:
            lines, end, codes = launched(launcher, fault, victim, folder)
    except subprocess.TimeoutExpired:
        lines, end, codes = [], "did not end", []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"launcher": launcher, "fault": fault, "victim": victim, "lines": lines, "end": end,
            "codes": codes, "verdict": verdict(victim, lines)}  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        names = ("RANK", "OMPI_COMM_WORLD_RANK")
        own = next(int(os.environ[name]) for name in names if name in os.environ)
        fault, victim, path = sys.argv[2:]
        return as_rank(fault, int(victim), path, own)
    launcher = sys.argv[1] if len(sys.argv) > 1 else "forked"
    faults = sys.argv[2:] or list(FAULTS if launcher == "forked" else OF_ITEM_6)
    from common import fork_ranks, title

    if launcher == "forked":  # what ranks load as they start, once for all
        pass

    title(f"faults: {RANKS} ranks, {launcher}, all_reduce")
    counts: dict[str, int] = {}
    for fault in faults:
        if launcher == "forked":  # three launches side by side: they mostly wait
            found = fork_ranks(RANKS, lambda victim, fault=fault: one("forked", fault, victim))
        else:
            found = [one(launcher, fault, victim) for victim in range(RANKS)]
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
