"""``torchcoll postmortem --live`` on a real gloo job that hangs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import free_port

from torchcoll.cli import main
from torchcoll.core.errors import UnreadableError
from torchcoll.parts.postmortem.live_ranks import LiveRank, _why_no_stacks, collect, find_ranks
from torchcoll.parts.postmortem.ring_reader import read_ring

TRAINING = """
import sys, time
import torch, torch.distributed as dist
import torchcoll

def stuck_in_tokenizer():
    time.sleep(600)

dist.init_process_group("gloo")
with torchcoll.capture(sys.argv[1], on_hang="dump"):
    for step in range(20):
        dist.all_reduce(torch.ones(1000))
    open(f"{sys.argv[1]}.{dist.get_rank()}", "w").close()
    if dist.get_rank() == 1:
        stuck_in_tokenizer()
    dist.all_reduce(torch.ones(1000))
"""
SECRET = "hf_" + "Qx7Lw2Vn9Rk4Tz8Bd3"


def made_calls(capture, rank):
    try:
        return len(read_ring(capture / f"calls-rank{rank}.ring").calls)
    except UnreadableError:  # not there, or without a header yet
        return 0


@pytest.fixture(scope="module")
def hanging(tmp_path_factory):
    """The processes of three ranks, of which rank 1 does not come to call 21."""
    tmp_path = tmp_path_factory.mktemp("hanging")
    (tmp_path / "train.py").write_text(TRAINING)
    capture = tmp_path / "capture"
    shared = {
        **os.environ,
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "HF_TOKEN": SECRET,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    processes = []
    for rank in range(3):
        words = [sys.executable, str(tmp_path / "train.py"), str(capture)]
        variables = {**shared, "RANK": str(rank)}
        with (tmp_path / f"{rank}.err").open("w") as log:
            processes.append(subprocess.Popen(words, env=variables, stderr=log))
    deadline = time.monotonic() + 120
    while not (
        (tmp_path / "capture.1").exists() and made_calls(capture, 0) == 21 == made_calls(capture, 2)
    ):
        assert time.monotonic() < deadline, (tmp_path / "1.err").read_text()
        time.sleep(0.1)
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_the_rank_that_does_not_come_is_named(hanging, tmp_path, capsys, monkeypatch):
    """py-spy is played by a program that prints a stack of each rank."""
    program = tmp_path / "bin" / "py-spy"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        f"frame = 'stuck_in_tokenizer (train.py:7)' if sys.argv[-1] == '{hanging[1].pid}' else "
        "'all_reduce (torch/distributed/distributed_c10d.py:1)'\n"
        "print(f'Process {sys.argv[-1]}: python --token " + SECRET + "')\n"
        'print(f\'Python v3\\n\\nThread 1 (idle): "MainThread"\\n    {frame}\\n'
        "    <module> (train.py:20)')\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    ours = {process.pid for process in hanging}
    assert {rank.pid for rank in find_ranks()} >= ours
    monkeypatch.setattr(
        "torchcoll.parts.postmortem.live_ranks.find_ranks",
        lambda: [rank for rank in find_ranks() if rank.pid in ours],
    )
    folder = tmp_path / "live"
    assert main(["postmortem", "--live", str(folder), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    (job,) = json.loads(out)["jobs"]
    assert (job["kind"], job["culprits"], job["waiting"]) == ("user_code", [1], [0, 2])
    assert (job["collective"], job["number"], job["ranks"]) == ("all_reduce", 21, 3)
    assert "ranks 0-2 of this host: stacks of py-spy, call rings" in err
    assert all(process.poll() is None for process in hanging)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_rank_that_is_stopped(hanging, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")  # without py-spy
    hanging[1].send_signal(signal.SIGSTOP)
    ours = {process.pid for process in hanging}
    monkeypatch.setattr(
        "torchcoll.parts.postmortem.live_ranks.find_ranks",
        lambda: [rank for rank in find_ranks() if rank.pid in ours],
    )
    assert main(["postmortem", "--live", str(tmp_path / "live")]) == 0
    out, err = capsys.readouterr()
    assert "torchcoll: no stacks: py-spy is not installed. Run pip install py-spy\n" in err
    first = " ".join(out.split("\n\n")[0].split())
    assert f"rank 1 (process {hanging[1].pid}) is stopped by a signal" in first
    assert f"kill -CONT {hanging[1].pid}" in first
    hanging[1].send_signal(signal.SIGCONT)


def test_stacks_alone_name_the_call_in_which_the_others_hang(tmp_path, capsys):
    """As --live leaves them of a job without capture: rank 1 in user code, or stopped."""
    head = 'Process {}: python train.py\nPython v3\n\nThread 1 (idle): "MainThread"\n    '
    waits = "all_reduce (torch/distributed/distributed_c10d.py:2501)\n    <module> (train.py:9)\n"
    for rank in (0, 2):
        (tmp_path / f"stacks-rank{rank}.txt").write_text(head.format(100 + rank) + waits)
    own = tmp_path / "stacks-rank1.txt"
    own.write_text(head.format(101) + "tokenize (train.py:7)\n    <module> (train.py:20)\n")
    assert main(["postmortem", str(tmp_path), "--format", "line"]) == 0
    sentence = (
        "rank 1 stayed in user code: train.py:7 tokenize; the other 2 ranks waited for it in "
    )
    assert capsys.readouterr().out.startswith(f"{sentence}all_reduce (likely)")
    own.unlink()
    (tmp_path / "state-rank1.log").write_text("rank 1: process 101 is in state T (stopped)\n")
    assert main(["postmortem", str(tmp_path), "--format", "line"]) == 0
    sentence = "rank 1 (process 101) is stopped by a signal or a debugger; ranks 0 and 2 wait in "
    assert capsys.readouterr().out.startswith(f"{sentence}all_reduce. Next: let it go on")


def test_py_spy_may_not_read_the_processes(tmp_path, monkeypatch):
    """With the words of py-spy 0.4.3 without the capability SYS_PTRACE."""
    program = tmp_path / "py-spy"
    text = "Permission Denied: Try running again with elevated permissions\\nError: Failed to get"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('{text}')\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    why = _why_no_stacks(LiveRank(0, 4711, {}))
    assert why.startswith("py-spy cannot read process 4711 (Permission Denied: Try running again")
    assert why.endswith("SYS_PTRACE (docker --cap-add SYS_PTRACE)")
    assert "Failed to get" not in why


def test_a_host_without_ranks(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torchcoll.parts.postmortem.live_ranks.find_ranks", lambda: [])
    assert main(["postmortem", "--live", str(tmp_path / "live")]) == 4
    assert "RANK in its environment" in capsys.readouterr().err
    assert not (tmp_path / "live").exists()


def test_two_jobs_of_a_host_have_a_folder_each(tmp_path, monkeypatch):
    stopped = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
    ranks = [LiveRank(0, each.pid, {"SLURM_JOB_ID": str(n)}) for n, each in enumerate(stopped)]
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("torchcoll.parts.postmortem.live_ranks.find_ranks", lambda: ranks)
    collect(tmp_path)
    for number, process in enumerate(stopped):
        log = tmp_path / f"job{number}" / "state-rank0.log"
        assert log.read_text() == f"rank 0: process {process.pid} is in state T (stopped)\n"
        process.kill()
        process.wait()
