"""The folders that a person would have of a dead job: of its files all or a part, in many forms.

A dead job of dying_jobs.py left one file per source and rank. ``sources`` lists them, with the
lines of launcher, scheduler and kernel that its end would have caused: these are **made** here,
in the words of torchrun 2.13 (copied from real output), Slurm 23, Kubernetes and Linux. ``write``
lays some of the sources out as torchrun, srun or Kubernetes would, with formats mixed.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import signal
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dying_jobs import STALLS, read_death

STYLES = ("torchrun", "console", "tee", "files", "srun", "kubernetes")
_RULE = "=" * 60
_DASHES = "-" * 60


@dataclass(frozen=True)
class Source:
    """One piece of evidence. kind: stderr, fr, ring, stacks, traffic, py-spy, launcher or kernel.
    rank: None for the launcher and the kernel, which speak of all ranks.
    """

    kind: str
    rank: int | None = None


def sources(case: Path, facts: dict[str, Any]) -> list[Source]:
    """All that the job of this folder left, and what is made of its end."""
    raw, death = case / "raw", read_death(facts)
    found = []
    for rank in range(death.ranks):
        paths = {
            "stderr": raw / "stderr" / f"{rank}.txt",
            "fr": raw / "fr" / f"{rank}.pickle",
            "ring": raw / "capture" / f"calls-rank{rank}.ring",
            "stacks": raw / "capture" / f"stacks-rank{rank}.txt",
            "traffic": raw / "capture" / f"traffic-rank{rank}.jsonl",
            "py-spy": raw / "pyspy" / f"{rank}.txt",
        }
        found += [
            Source(kind, rank)
            for kind, path in paths.items()
            if path.exists() and path.stat().st_size
        ]
    if death.fault != "none":
        found.append(Source("launcher"))
    if death.fault in ("oom_kill", "blackhole"):
        found.append(Source("kernel"))
    return found


def style_of(facts: dict[str, Any], rng: random.Random) -> str:
    """A layout that fits how the job was started."""
    if facts["death"]["real_torchrun"]:
        return rng.choice(STYLES[:3])
    # Of a lost link torchrun and srun would see several hosts: one agent each, or srun.
    return rng.choice(STYLES[3:] if facts["death"]["fault"] == "blackhole" else STYLES)


def write(
    case: Path,
    facts: dict[str, Any],
    kept: list[Source],
    target: Path,
    style: str,
    rng: random.Random,
    mixed: bool,
) -> None:
    """Lay the sources out below ``target``. mixed: other formats and names, compressed, split."""
    target.mkdir(parents=True, exist_ok=True)
    raw = case / "raw"
    texts = {
        source.rank: (raw / "stderr" / f"{source.rank}.txt").read_text()
        for source in kept
        if source.kind == "stderr" and source.rank is not None
    }
    launcher = Source("launcher") in kept
    _write_texts(
        target, facts, style, texts, _launcher_text(case, facts, style) if launcher else ""
    )
    names = rng.choice(("nccl_trace_rank_{}", "fr/trace_rank_{}", "dumps/nccl_trace_rank_{}"))
    for source in kept:
        rank = source.rank
        if source.kind == "fr":
            as_json = rng.random() < 0.5 if mixed else False
            path = target / (names.format(rank) + (".json" if as_json else ""))
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(raw / "fr" / f"{rank}.{'json' if as_json else 'pickle'}", path)
        elif source.kind in ("ring", "stacks", "traffic"):
            name = {
                "ring": f"calls-rank{rank}.ring",
                "stacks": f"stacks-rank{rank}.txt",
                "traffic": f"traffic-rank{rank}.jsonl",
            }[source.kind]
            (target / "capture").mkdir(exist_ok=True)
            shutil.copy(raw / "capture" / name, target / "capture" / name)
        elif source.kind == "py-spy":
            (target / "py-spy").mkdir(exist_ok=True)
            shutil.copy(raw / "pyspy" / f"{rank}.txt", target / "py-spy" / f"rank{rank}.txt")
        elif source.kind == "kernel":
            (target / "kern.log").write_text(_kernel_text(facts))
    if mixed:
        _mix(target, rng)


def _write_texts(
    target: Path, facts: dict[str, Any], style: str, texts: dict[int | None, str], launcher: str
) -> None:
    number = facts["death"]["number"]
    if style == "torchrun":
        for rank, text in texts.items():
            folder = target / f"logs/run{number}_x7c1/attempt_0/{rank}"
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text(text)
        _write_some(target / "torchrun.log", launcher)
    elif style == "console":
        _write_some(target / "console.log", "".join(texts.values()) + launcher)
    elif style == "tee":
        marked = [_marked(f"[default{rank}]:", text) for rank, text in texts.items()]
        _write_some(target / "node0.log", "".join(marked) + launcher)
    elif style == "files":
        for rank, text in texts.items():
            (target / f"job-{4700 + number}-rank{rank}.err").write_text(text)
        _write_some(target / f"slurm-{4700 + number}.out", launcher)
    elif style == "srun":
        marked = [_marked(f"{rank}: ", text) for rank, text in texts.items()]
        _write_some(target / f"slurm-{4700 + number}.out", "".join(marked) + launcher)
    else:
        for rank, text in texts.items():
            stamp = _utc(facts["start_ns"]).isoformat().replace("+00:00", "000Z ")
            (target / f"train-{number}-worker-{rank}.log").write_text(_marked(stamp, text))
        _write_some(target / "describe-pods.txt", launcher)


def _write_some(path: Path, text: str) -> None:
    if text:
        path.write_text(text)


def _marked(prefix: str, text: str) -> str:
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def _mix(target: Path, rng: random.Random) -> None:
    """Compress some files, split some logs in two, and add files of other kinds."""
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        if path.suffix in (".log", ".err", ".out") and rng.random() < 0.2:
            lines = path.read_text().splitlines(keepends=True)
            # Between two lines of progress, as a rotation by size would hit them mostly.
            cuts = [i for i, line in enumerate(lines) if " loss 0." in line]
            if cuts and (cut := cuts[len(cuts) // 2]):
                path.with_name(path.name + ".1").write_text("".join(lines[:cut]))
                path.write_text("".join(lines[cut:]))
        if path.suffix != ".ring" and rng.random() < 0.2:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    others = {
        "README.md": b"# train\n\nHow to start it: torchrun --nproc-per-node 8 train.py\n",
        "config.yaml": b"model: small\nlr: 0.0003\ntimeout: 4\n",
        "requirements.txt": b"torch==2.13\nnumpy\n",
        "events.out.tfevents.1795": rng.randbytes(400),
        "model.py": b"import torch\n\n\ndef forward(x):\n    raise NotImplementedError\n",
        "loss.csv": b"step,loss\n0,0.5\n1,0.25\n",
    }
    for name in rng.sample(sorted(others), 2):
        (target / name).write_bytes(others[name])


def _utc(time_ns: float) -> datetime:
    return datetime.fromtimestamp(time_ns / 1e9, timezone.utc)


# Made lines.


def _launcher_text(case: Path, facts: dict[str, Any], style: str) -> str:
    if (case / "raw" / "agent.txt").exists():
        return (case / "raw" / "agent.txt").read_text()
    if style in ("torchrun", "console", "tee"):
        return _agent_text(facts)
    return _pods_text(facts) if style == "kubernetes" else _srun_text(facts)


def _ends(facts: dict[str, Any]) -> list[tuple[float, int, int]]:
    """(seconds, rank, exit code) of ranks, the first to end first. Ranks that somebody had to end
    come last.
    """
    return sorted((seconds, rank, code) for rank, (code, seconds) in enumerate(facts["ends"]))


def _agent_text(facts: dict[str, Any]) -> str:
    """What torchrun prints when the first rank fails; it ends the others at once."""
    death, pids = read_death(facts), facts["pids"]
    ends = [end for end in _ends(facts) if end[2]]
    if death.fault == "interrupt":  # torchrun passes Ctrl-C on
        ends = [(seconds, rank, -signal.SIGINT) for seconds, rank, _ in ends]
    first_s, root, code = ends[0]
    time_of = _utc(facts["start_ns"] + first_s * 1e9)
    stamp, clock = time_of.strftime("%m%d %H:%M:%S.%f"), time_of.strftime("%Y-%m-%d_%H:%M:%S")
    agent, api = min(pids) - 40, "torch/distributed/elastic/multiprocessing/api.py"
    late = [rank for seconds, rank, _ in ends[1:] if seconds > first_s + 0.1]
    lines = []
    from_outside = {"slow": signal.SIGTERM, "interrupt": signal.SIGINT}.get(death.fault)
    if from_outside:
        lines.append(
            f"W{stamp} {agent} torch/distributed/elastic/agent/server/api.py:741] Received "
            f"{int(from_outside)} death signal, shutting down workers"
        )
    sent = from_outside or signal.SIGTERM
    lines += [
        f"W{stamp} {agent} {api}:1028] Sending process {pids[rank]} closing signal {sent.name}"
        for rank in (range(death.ranks) if from_outside else late)
    ]
    if from_outside:
        lines += [
            "Traceback (most recent call last):",
            '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/'
            'multiprocessing/api.py", line 85, in _terminate_process_handler',
            "    raise SignalException(",
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process "
            f"{agent} got signal: {int(from_outside)}",
        ]
        return "\n".join(lines) + "\n"
    lines += [
        f"E{stamp} {agent} {api}:1002] failed (exitcode: {code}) local_rank: {root} (pid: "
        f"{pids[root]}) of binary: /opt/venv/bin/python",
        "Traceback (most recent call last):",
        '  File "/opt/venv/bin/torchrun", line 8, in <module>',
        "    sys.exit(main())",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        _RULE,
        "train.py FAILED",
        _DASHES,
        "Failures:",
    ]
    if not ends[1:]:
        lines.append("  <NO_OTHER_FAILURES>")
    for index, (_, rank, own) in enumerate(ends[1:], start=1):
        ended = own
        if rank in late:
            ended = -9 if rank == death.victim and death.fault == "sigstop" else -15
        lines += _failure(index, rank, ended, clock, facts)
    lines += [_DASHES, "Root Cause (first observed failure):"]
    lines += [*_failure(0, root, code, clock, facts), _RULE]
    return "\n".join(lines) + "\n"


def _failure(index: int, rank: int, code: int, clock: str, facts: dict[str, Any]) -> list[str]:
    pid, name = facts["pids"][rank], ""
    traceback = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    if code < 0:
        name = f"  ({signal.Signals(-code).name})"
        traceback = f"Signal {-code} ({signal.Signals(-code).name}) received by PID {pid}"
    return [
        f"[{index}]:",
        f"  time      : {clock}",
        f"  host      : {facts['hosts'][rank]}",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: {pid}){name}",
        "  error_file: <N/A>",
        f"  traceback : {traceback}",
    ]


def _srun_text(facts: dict[str, Any]) -> str:
    death, step = read_death(facts), f"{4700 + facts['death']['number']}.0"
    ends = _ends(facts)
    last = _utc(facts["start_ns"] + ends[-1][0] * 1e9).strftime("%Y-%m-%dT%H:%M:%S")
    host = facts["hosts"]
    lines = []
    ended_by_slurm = death.fault in STALLS or death.fault == "slow"
    if death.fault == "oom_kill":
        lines.append(
            f"slurmstepd: error: Detected 1 oom_kill event in StepId={step}. Some of the step "
            "tasks have been OOM Killed."
        )
    left = [r for r in range(death.ranks) if death.fault == "slow" or r == death.victim]
    for _, rank, code in ends:
        if ended_by_slurm and rank in left:
            continue
        text = {-9: "Killed", -6: "Aborted (core dumped)"}.get(
            code, f"Exited with exit code {code}"
        )
        if death.fault == "oom_kill" and rank == death.victim:
            text = "Out Of Memory"
        if code:
            lines.append(f"srun: error: {host[rank]}: task {rank}: {text}")
    if ended_by_slurm:
        lines.append(
            f"slurmstepd: error: *** STEP {step} ON {host[0]} CANCELLED AT {last} DUE TO TIME "
            "LIMIT ***"
        )
        how = "Killed" if death.fault == "sigstop" else "Terminated"
        lines += [f"srun: error: {host[rank]}: task {rank}: {how}" for rank in left]
    return "\n".join(lines) + "\n"


def _pods_text(facts: dict[str, Any]) -> str:
    """``kubectl describe pod`` of all pods, a rank each, after the ranks that could end have."""
    death, lines = read_death(facts), []
    stays = {death.victim} if death.fault in STALLS else set()
    if death.fault == "slow":
        stays = set(range(death.ranks))
    began = _utc(facts["start_ns"]).strftime("%a, %d %b %Y %H:%M:%S +0000")
    for rank, (code, seconds) in enumerate(facts["ends"]):
        finished = _utc(facts["start_ns"] + seconds * 1e9).strftime("%a, %d %b %Y %H:%M:%S +0000")
        status = "Running" if rank in stays else "Failed" if code else "Succeeded"
        lines += [
            f"Name:             train-{death.number}-worker-{rank}",
            "Namespace:        default",
            f"Node:             gpu-{rank}/10.0.0.{rank + 10}",
            f"Status:           {status}",
            "Containers:",
            "  pytorch:",
            "    Image:          registry.example/train:7",
        ]
        if rank in stays:
            lines += ["    State:          Running", f"      Started:      {began}"]
        else:
            reason = "Error" if code else "Completed"
            if death.fault == "oom_kill" and rank == death.victim:
                reason = "OOMKilled"
            lines += [
                "    State:          Terminated",
                f"      Reason:       {reason}",
                f"      Exit Code:    {code if code >= 0 else 128 - code}",
                f"      Started:      {began}",
                f"      Finished:     {finished}",
            ]
        lines += [
            "    Restart Count:  0",
            "    Environment:",
            f"      WORLD_SIZE:  {death.ranks}",
            f"      RANK:        {rank}",
            "",
        ]
    return "\n".join(lines) + "\n"


def _kernel_text(facts: dict[str, Any]) -> str:
    """Lines of the kernel of the host of the victim, as in /var/log/kern.log."""
    death = read_death(facts)
    host, pid = facts["hosts"][death.victim], facts["pids"][death.victim]
    stamp = _utc(facts["start_ns"] + 5e9).strftime("%b %d %H:%M:%S")
    start = f"{stamp} {host} kernel: [91234.56{death.number:04}]"
    if death.fault == "blackhole":
        return f"{start} mlx5_core 0000:18:00.0 v0: Link down\n"
    return (
        f"{start} python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
        f"{start} Memory cgroup out of memory: Killed process {pid} (python) total-vm:9214312kB, "
        f"anon-rss:3999228kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:9012kB "
        "oom_score_adj:0\n"
    )


def read_facts(case: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((case / "facts.json").read_text())
    return facts
