"""Real gloo jobs that die: each trains, one rank breaks, and what production would leave is kept.

    python tests/dying_jobs.py FOLDER [--only NUMBER ...]

``FOLDER/NUMBER`` gets ``raw``, with the files that the job left, one source and rank each, and
``facts.json``, with what was done to the job and how its processes ended. Nothing in ``raw`` says
what was broken. Lines of launchers, schedulers and kernels are made later (death_logs.py), from
how the processes really ended; in a few jobs torchrun is real (``real_torchrun``).

The job does what a training does in a step: it loads a batch, runs forward and backward with the
collectives of its kind of parallelism, logs metrics (an all_reduce, then an all_gather), and
writes a checkpoint. Calls that break do so in the metrics, everything else while loading a batch
or writing a checkpoint. So on a rank that breaks there, the next call of its group never happens.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import ranks as forked
import torch
import torch.distributed as dist
from namespaces import DEFAULTS, Hosts, NoNamespaces, hosts
from torch._C import _distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import torchcoll

TIMEOUT_S = 4
STEPS = 6
MOST_S = 60  # of one job, on an idle machine
FAULTS = (
    "order",  # two collectives in another order on one rank
    "skip",  # one rank skips a call; or its data ends a step early, and it leaves
    "size",
    "sigkill",
    "sigstop",
    "exception",
    "sleep",  # longer than the timeout
    "slow",  # in each step, below the timeout: the job is ended by its time limit
    "blackhole",  # a host loses its link
    "disk",
    "memory",  # a MemoryError, by RLIMIT_AS
    "oom_kill",  # SIGKILL, with a made line of the kernel
    "stuck",
    "handled_kill",  # SIGKILL, after another rank had logged an exception that it handled
    "handled_sleep",  # sleep, after another rank had logged an exception that it handled
    "leave",  # the rank ends itself: with exit code 1 or 3, with 0, or by abort()
    "interrupt",  # sleep; a person ends the job with Ctrl-C
    "early_stack",  # SIGKILL, long after loading the model, of which captures have stacks
)
# Faults that stop a rank, which stays.
STALLS = ("sigstop", "sleep", "stuck", "handled_sleep", "interrupt")
# Faults after which the job has to be looked at from outside while it hangs.
WATCHED = (*STALLS, "blackhole", "slow")


@dataclass(frozen=True)
class Death:
    """One job that dies. form: which of the ways of its fault, from 0; step: when, from 0.

    ring: with torchcoll.capture(on_hang="dump"). stacks: with py-spy dumps, where it is installed.
    real_torchrun: under a torchrun of its own.
    """

    number: int
    fault: str
    work: str
    ranks: int
    victim: int
    step: int = 3
    form: int = 0
    ring: bool = True
    stacks: bool = True
    real_torchrun: bool = False

    @property
    def metrics_group(self) -> tuple[int, ...]:
        """The ranks of the group in which the victim logs metrics."""
        if self.work != "mesh":
            return tuple(range(self.ranks))
        first = self.victim - self.victim % 2  # the mesh is ranks / 2 x 2
        return (first, first + 1)

    @property
    def waiters(self) -> tuple[int, ...]:
        """Ranks that are left in a call with the victim after it stopped calling.

        Of a mesh those of its row and column: all others wait for these. Of a pipeline the stages
        beside it.
        """
        everyone = range(self.ranks)
        if self.work == "pipe":
            return tuple(r for r in everyone if abs(r - self.victim) == 1)
        if self.work == "mesh":
            return tuple(
                r
                for r in everyone
                if r != self.victim and (r // 2 == self.victim // 2 or r % 2 == self.victim % 2)
            )
        return tuple(r for r in everyone if r != self.victim)


def deaths() -> list[Death]:
    """The 80 jobs. Kinds of parallelism, ranks, victims and steps vary within each fault."""
    counts = dict.fromkeys(FAULTS, 4) | dict.fromkeys(
        ("skip", "size", "sigkill", "sigstop", "exception", "stuck"), 5
    )
    counts |= {"order": 6}
    works = itertools.cycle(
        [
            ("ddp", 3),
            ("fsdp", 3),
            ("mesh", 4),
            ("pipe", 3),
            ("ddp", 2),
            ("fsdp", 4),
            ("mesh", 6),
            ("ddp", 5),
            ("pipe", 4),
            ("ddp", 6),
            ("fsdp", 2),
            ("pipe", 2),
        ]
    )
    made: list[Death] = []
    for fault, count in counts.items():
        for form in range(count):
            number = len(made)
            work, size = next(works)
            made.append(
                Death(
                    number,
                    fault,
                    work,
                    size,
                    victim=random.Random(number).randrange(size),
                    step=0 if form == 3 and fault in ("order", "size", "stuck") else 2 + form % 3,
                    form=form,
                    ring=number % 3 != 2,
                    stacks=form % 2 == 0,
                    real_torchrun=(fault, form) in {("sigkill", 4), ("exception", 4), ("skip", 2)},
                )
            )
    return made


HEALTHY = Death(99, "none", "ddp", 2, victim=0, step=-1)


# The training, as its user wrote it.


class Images(Dataset[torch.Tensor]):
    """Data whose victim meets its fault at its step."""

    def __init__(self, death: Death, rank: int, marks: Path) -> None:
        self.death, self.rank, self.marks = death, rank, marks

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        death = self.death
        bystander = (death.victim + 1) % death.ranks
        handles = death.fault.startswith("handled") and self.rank == bystander
        if handles and index == death.step - 1:
            log_bad_sample(death)
        if self.rank == death.victim:
            if death.fault == "slow" and index >= 1:
                augment(0.5)
                if index == 9:
                    mark(self.marks)
            elif index == death.step and death.fault in _IN_LOADER:
                mark(self.marks)
                _IN_LOADER[death.fault](death)
        return torch.full((8,), 1.0 + index % 3)


def log_bad_sample(death: Death) -> None:
    """An exception that the training handles, and what it says of it."""
    try:
        raise ValueError("cannot parse sample 77")
    except ValueError:
        if death.form % 2:
            traceback.print_exc()
        else:
            logging.exception("bad sample, skipped")


def leave(death: Death) -> None:
    if death.form == 3:
        os.abort()
    print("loss is nan, stopping", file=sys.stderr, flush=True)
    if death.form == 1:
        os._exit(0)
    sys.exit(1 if death.form == 0 else 3)


def augment(seconds: float) -> None:
    time.sleep(seconds)


def decode(death: Death) -> None:
    errors = (
        ValueError("cannot decode image 48213: truncated JPEG"),
        KeyError("label"),
        RuntimeError("stack expects each tensor to be equal size, but got [3, 224, 224]"),
        FileNotFoundError(2, "No such file or directory", "shard-00017.tar"),
        OSError(5, "Input/output error", "images/00017.jpg"),
    )
    raise errors[death.form % len(errors)]


def wait_for_lock(death: Death) -> None:
    lock = threading.Lock()
    if death.form % 2:
        lock.acquire()
        lock.acquire()
    while True:
        shuffle_buffer()


def shuffle_buffer() -> None:
    sum(range(1000))


def cache_images(death: Death) -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (32 << 20), resource.RLIM_INFINITY))
    if death.form % 2:
        torch.zeros(1 << 30)
    bytearray(1 << 30)


def kill_self(death: Death) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_self(death: Death) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


_IN_LOADER = {
    "exception": decode,
    "sleep": lambda death: augment(600),
    "stuck": wait_for_lock,
    "memory": cache_images,
    "sigkill": kill_self,
    "oom_kill": kill_self,
    "sigstop": stop_self,
    "handled_kill": kill_self,
    "handled_sleep": lambda death: augment(600),
    "leave": leave,
    "interrupt": lambda death: augment(600),
    "early_stack": kill_self,
}


def load_weights() -> None:
    time.sleep(0.75 * TIMEOUT_S)


def mark(marks: Path) -> None:
    """The fault happens now. Those who made the job read it; no evidence."""
    (marks / "fault").write_text(str(time.time_ns()))


def mesh_of_two(size: int) -> DeviceMesh:
    """size / 2 x 2 ranks. The groups of init_device_mesh would have a timeout of 30 minutes."""
    mesh, timeout = torch.arange(size).view(-1, 2), timedelta(seconds=TIMEOUT_S)
    groups = []
    for members in (mesh.T, mesh):
        made = {
            ranks: dist.new_group(ranks, timeout=timeout) for ranks in map(tuple, members.tolist())
        }
        groups.append(next(group for row, group in made.items() if dist.get_rank() in row))
    return DeviceMesh.from_group(groups, "cpu", mesh, mesh_dim_names=("dp", "tp"))


class Training:
    def __init__(self, death: Death, marks: Path, raw: Path) -> None:
        self.death, self.marks, self.raw = death, marks, raw
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.group: dist.ProcessGroup | None = None  # None is the default group
        model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
        if death.work == "ddp":
            model = DistributedDataParallel(model)
        elif death.work == "fsdp":
            fully_shard(model, mesh=init_device_mesh("cpu", (self.size,)))
        elif death.work == "mesh":
            self.mesh = mesh_of_two(self.size)
            self.group = self.mesh.get_group("tp")
        self.model = model

    def train(self, traffic: Any = None) -> None:
        death = self.death
        endless = death.fault in ("blackhole", "slow")
        loader = iter(DataLoader(Images(death, self.rank, self.marks)))
        if death.fault == "early_stack":
            load_weights()
        for step in itertools.count() if endless else range(STEPS):
            if self.fails("skip", step) and death.form % 2:
                mark(self.marks)
                return  # its part of the data is at an end
            batch = next(loader)
            self.forward_backward(batch)
            self.log_metrics(step)
            self.save_checkpoint(step)
            print(f"step {step} loss {0.5 / (1 + step):.4f}", file=sys.stderr, flush=True)
            if traffic is not None:
                traffic.step()
            if endless:
                time.sleep(0.05)
                if death.fault == "blackhole" and self.rank == death.victim and step == death.step:
                    mark(self.marks)

    def fails(self, fault: str, step: int) -> bool:
        death = self.death
        return death.fault == fault and self.rank == death.victim and step == death.step

    def forward_backward(self, batch: torch.Tensor) -> None:
        if self.death.work == "mesh":
            dist.all_reduce(torch.ones(64), group=self.group)
            dist.all_reduce(torch.ones(256), group=self.mesh.get_group("dp"))
        elif self.death.work == "pipe":
            activations, last = torch.ones(32), self.size - 1
            if self.rank > 0:
                dist.recv(activations, self.rank - 1)
            if self.rank < last:
                dist.send(activations, self.rank + 1)
                dist.recv(activations, self.rank + 1)
            if self.rank > 0:
                dist.send(activations, self.rank - 1)
        else:
            self.model(batch).sum().backward()

    def log_metrics(self, step: int) -> None:
        count = 1000
        if self.fails("size", step):
            mark(self.marks)
            count = 2000 if self.death.form % 2 else 500
        if self.fails("order", step):
            mark(self.marks)
            self.gather_lengths()
            self.reduce_losses(count)
            return
        if self.fails("skip", step):
            mark(self.marks)
        else:
            self.reduce_losses(count)
        self.gather_lengths()

    def reduce_losses(self, count: int) -> None:
        dist.all_reduce(torch.ones(count), group=self.group)

    def gather_lengths(self) -> None:
        lengths = [torch.ones(48) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(lengths, torch.ones(48), group=self.group)

    def save_checkpoint(self, step: int) -> None:
        full = self.fails("disk", step)
        if full:
            mark(self.marks)
        folder = (self.marks / "full") if full else self.marks
        path = folder / f"shard-{self.rank}.pt"
        weights = torch.ones(1 << 17 if full else 16)
        if self.death.form % 2:
            torch.save({"step": step, "weights": weights}, path)
        else:
            with open(path, "wb") as file:
                file.write(weights.numpy().tobytes())


# A rank of it, with what keeps the evidence.


def one_rank(death: Death, folder: Path) -> None:
    """In a process that a launcher started. Ends it."""
    faulthandler.disable()  # of pytest, which would write to its stderr when gloo aborts
    raw, marks, rank = folder / "raw", folder / "marks", int(os.environ["RANK"])
    (marks / f"pid{rank}").write_text(str(os.getpid()))
    code = 0
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
        threading.Thread(target=dump_when_asked, args=(rank, folder), daemon=True).start()
        training = Training(death, marks, raw)
        with captured(death, raw) as traffic:
            training.train(traffic)
        if death.fault == "none":
            dist.barrier()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())  # torch's own, which writes the rank
    finally:
        with contextlib.suppress(MemoryError, RuntimeError):
            dump_recorder(rank, raw)
    sys.stderr.flush()
    os._exit(code)


def captured(death: Death, raw: Path) -> contextlib.AbstractContextManager[Any]:
    if not death.ring:
        return contextlib.nullcontext()
    return torchcoll.capture(raw / "capture", on_hang="dump")


_dumping = threading.Lock()


def dump_recorder(rank: int, raw: Path) -> None:
    """The Flight Recorder in both formats, once. On gloo no watchdog of torch does that."""
    with _dumping:
        if (raw / "fr" / f"{rank}.pickle").exists():
            return
        as_json = c10d._dump_fr_trace_json()
        for name, data in (("json", as_json), ("pickle", c10d._dump_fr_trace())):
            data = data.encode() if isinstance(data, str) else data
            target = raw / "fr" / f"{rank}.{name}"
            target.with_suffix(".part").write_bytes(data)
            target.with_suffix(".part").rename(target)


def dump_when_asked(rank: int, folder: Path) -> None:
    """As TORCH_NCCL_DEBUG_INFO_PIPE_FILE does: somebody who looks at the hanging job asks."""
    while not (folder / "marks" / "dump").exists():
        time.sleep(0.1)
    dump_recorder(rank, folder / "raw")


# Those who start it, watch it, and gather what it left.


class Failed(Exception):
    """The job did not die as it should: it is made again."""


def make(death: Death, folder: Path, attempts: int = 3) -> dict[str, Any]:
    """Run the job and gather what it left below ``folder``. Returns its facts.

    Raises Failed if the job dies of something else each time.
    """
    for attempt in range(attempts):
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("raw/fr", "raw/capture", "raw/stderr", "raw/pyspy", "marks/full"):
            (folder / name).mkdir(parents=True)
        try:
            with contextlib.ExitStack() as stack:
                if death.fault == "disk":
                    stack.enter_context(_small_disk(folder / "marks" / "full"))
                run = _run_torchrun if death.real_torchrun else _run_forked
                facts = run(death, folder, stack)
            break
        except (Failed, AssertionError):
            if attempt + 1 == attempts:
                raise
    shutil.rmtree(folder / "marks")
    (folder / "facts.json").write_text(json.dumps(facts, indent=1))
    return facts


@contextlib.contextmanager
def _small_disk(path: Path) -> Iterator[None]:
    """64 KiB that a checkpoint does not fit into."""
    mount = ("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path))
    if subprocess.run(mount, capture_output=True).returncode:
        for rank in range(8):  # without root: each write says the same
            (path / f"shard-{rank}.pt").symlink_to("/dev/full")
        yield
        return
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True)


def _environment(death: Death) -> dict[str, str]:
    return {
        "TORCH_FR_BUFFER_SIZE": "400",
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RUN_ID": f"run{death.number}",
    }


def _run_forked(death: Death, folder: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    network: Hosts | None = None
    if death.fault == "blackhole":
        network = stack.enter_context(hosts(death.ranks, DEFAULTS))

    def environment(rank: int) -> dict[str, str]:
        return {**_environment(death), **(network.environment(rank) if network else {})}

    def setup(rank: int) -> None:
        if network:
            network.enter(rank)
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

    start = time.time_ns()
    job = forked.Job(
        folder / "out",
        lambda: one_rank(death, folder),
        death.ranks,
        environment=environment,
        setup=setup,
    )
    marks = folder / "marks"
    stays = {death.victim} if death.fault in STALLS else set()
    if death.fault == "slow":
        stays = set(range(death.ranks))
    try:
        if death.fault != "none":
            job.until(lambda: (marks / "fault").exists() or not job.running(), MOST_S)
        if death.fault != "none" and not (marks / "fault").exists():
            raise Failed(f"{death}: died before its fault")
        if network:
            cut = ("ip", "-n", network.switch, "link", "set", f"b{death.victim}", "nomaster")
            path = f"/usr/sbin:{os.environ['PATH']}"
            if subprocess.run(cut, env={**os.environ, "PATH": path}).returncode:
                raise Failed("the link stays up")
        if death.fault in WATCHED:
            time.sleep(1.5)
            if death.stacks:
                _py_spy(job, folder / "raw" / "pyspy")
            # While it hangs, all that can answer write a dump.
            time.sleep(0 if death.fault == "slow" else 1.0)
            (marks / "dump").touch()
            can = set(job.running()) - ({death.victim} if death.fault == "sigstop" else set())
            job.until(lambda: {int(p.stem) for p in (folder / "raw" / "fr").glob("*.json")} >= can)
        if death.fault == "interrupt":
            for rank in job.running():
                job.signal(rank, signal.SIGINT)
            stays = set()
        job.until(lambda: set(job.running()) <= stays, MOST_S)
        for rank in job.running():
            ends_it = signal.SIGKILL if death.fault == "sigstop" else signal.SIGTERM
            job.signal(rank, ends_it)
        ended = job.wait(MOST_S)
    finally:
        job.kill()
    for rank in range(death.ranks):
        _copy_text(folder / "out" / f"{rank}.stderr", folder / "raw" / "stderr" / f"{rank}.txt")
    shutil.rmtree(folder / "out")
    return _facts(
        death,
        start,
        pids=job.pids,
        hosts=[f"h{rank}" if network else os.uname().nodename for rank in range(death.ranks)],
        ends={rank: (end.code, end.seconds) for rank, end in ended.items()},
    )


def _run_torchrun(death: Death, folder: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    start = time.time_ns()
    logs = folder / "out"
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(death.ranks),
        "--log-dir",
        str(logs),
        "--redirects",
        "3",
        "--master-port",
        str(forked.free_port()),
        __file__,
        str(folder),
        "--rank-of",
        str(death.number),
    ]
    variables = {**os.environ, **_environment(death), **forked.NO_NAMES}
    done = subprocess.run(
        words, env=variables, capture_output=True, text=True, timeout=120 * forked.busy()
    )
    if not (folder / "marks" / "fault").exists():
        raise Failed(f"{death}: died before its fault")
    for path in logs.rglob("stderr.log"):
        _copy_text(path, folder / "raw" / "stderr" / f"{path.parent.name}.txt")
    shutil.rmtree(logs)
    (folder / "raw" / "agent.txt").write_text(_without_paths(done.stderr))
    pids = {rank: int((folder / "marks" / f"pid{rank}").read_text()) for rank in range(death.ranks)}
    return _facts(death, start, pids, [os.uname().nodename] * death.ranks, {})


def _facts(
    death: Death,
    start_ns: int,
    pids: dict[int, int],
    hosts: list[str],
    ends: dict[int, tuple[int, float]],
) -> dict[str, Any]:
    """ends: rank -> (exit code, seconds after the start); empty under a real torchrun."""
    return {
        "death": asdict(death),
        "start_ns": start_ns,
        "pids": [pids[rank] for rank in range(death.ranks)],
        "hosts": hosts,
        "ends": [ends[rank] for rank in range(death.ranks)] if ends else [],
    }


def read_death(facts: dict[str, Any]) -> Death:
    return Death(**facts["death"])


def _py_spy(job: forked.Job, folder: Path) -> None:
    """Dumps of all ranks, where py-spy is installed: a folder in PY_SPY, or on the path."""
    program = shutil.which("py-spy")
    if program is None:
        return
    for rank in job.running():
        words = [program, "dump", "--nonblocking", "--pid", str(job.pids[rank])]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        if done.returncode == 0:
            (folder / f"{rank}.txt").write_text(_without_paths(done.stdout))


def _copy_text(source: Path, target: Path) -> None:
    """What the training itself wrote, but for torch's complaints of the name server."""
    target.write_text(_without_paths(forked.without_names(source.read_text(errors="replace"))))


def _without_paths(text: str) -> str:
    """Where torch and these files are does not say how they were installed."""
    here = str(Path(__file__).parent)
    text = text.replace(here, "/train").replace("dying_jobs.py", "train.py")
    return text.replace(sys.prefix, "/opt/venv")


def make_all(chosen: list[Death], folder: Path, at_once: int = 2) -> list[str]:
    """Make those that are not there yet. Returns what failed, a line each."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [d for d in chosen if not (folder / f"{d.number:02}" / "facts.json").exists()]
    pids = []
    for part in range(at_once):
        pid = os.fork()
        if not pid:
            code = 0
            forked._ports = iter(())  # a block of its own
            for death in missing[part::at_once]:
                began = time.monotonic()
                try:
                    make(death, folder / f"{death.number:02}")
                    said = "died"
                except NoNamespaces as error:
                    said = f"NOT MADE: {error}"
                except Exception as error:
                    code, said = 1, f"NOT MADE: {str(error)[:300]}"
                print(
                    f"{death.number:02} {death.fault} {death.work} {death.ranks} ranks: {said} "
                    f"({time.monotonic() - began:.1f} s)",
                    file=sys.stderr,
                    flush=True,
                )
            os._exit(code)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return [
        f"{death.number:02} {death.fault}: not made"
        for death in chosen
        if not (folder / f"{death.number:02}" / "facts.json").exists()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=int, nargs="+", default=[])
    parser.add_argument("--rank-of", type=int, help=argparse.SUPPRESS)  # below torchrun
    options = parser.parse_args()
    by_number = {death.number: death for death in deaths()}
    if options.rank_of is not None:
        one_rank(by_number[options.rank_of], options.folder)
    chosen = [d for d in by_number.values() if not options.only or d.number in options.only]
    for line in make_all(chosen, options.folder):
        print(line)


if __name__ == "__main__":
    main()
