"""Real jobs with capture(on_hang="dump") that die, as ``torchcoll postmortem`` tells them."""

import json
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Job, busy

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import UnreadableError
from torchcoll.parts.postmortem.ring_reader import read_ring


@pytest.mark.parametrize(("number", "timeout_s"), [(signal.SIGKILL, 30), (signal.SIGSTOP, 4)])
def test_a_rank_that_ends_within_a_call(tmp_path, capsys, number, timeout_s):
    """All ranks are in the same call: only how their records end tells which one is gone."""
    timeout_s *= busy()

    def target():
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        with torchcoll.capture(tmp_path / "ring", on_hang="dump"):
            for _ in range(100_000):
                dist.all_reduce(torch.ones(5))
                time.sleep(0.001)

    def begun(rank):
        """Whether the rank has made 20 calls; its ring may not be there, or have no header yet."""
        try:
            return len(read_ring(tmp_path / f"ring/calls-rank{rank}.ring").calls) > 20
        except UnreadableError:
            return False

    job = Job(tmp_path / "job", target, 3)
    try:
        job.until(lambda: all(begun(rank) for rank in range(3)))
        job.signal(1, number)
        job.until(lambda: {0, 2}.isdisjoint(job.running()))
    finally:
        job.kill()
    assert main(["postmortem", str(tmp_path / "ring"), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["jobs"]
    assert found["culprits"] == [1], found
