"""Real jobs with capture(on_hang="dump") that die, as ``torchcoll postmortem`` tells them."""

from __future__ import annotations

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
from torchcoll.core.call_ring import read_ring
from torchcoll.core.errors import UnreadableError
from torchcoll.parts.postmortem.diagnose import diagnose
from torchcoll.parts.postmortem.evidence import JobEvent, JobEvidence, Place


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


def job(*, unended, alive_s, texts, kind="peer_lost"):
    """Three ranks on one node, of which some complained at 100 s."""
    events = [
        JobEvent(kind, Place(f"{rank}"), text, rank, "n0", when_ns=100 * 10**9)
        for rank, text in texts.items()
    ]
    return JobEvidence(
        ranks=3,
        nodes=dict.fromkeys(range(3), "n0"),
        alive_ns={rank: int(s * 1e9) for rank, s in enumerate(alive_s)},
        unended=set(unended),
        events=events,
    )


LOST = {0: "Connection closed by peer", 2: "Connection reset by peer"}
TIMED_OUT = {0: "Timed out waiting 4000ms", 2: "Timed out waiting 4000ms"}


@pytest.mark.parametrize(
    ("evidence", "culprits"),
    [
        (job(unended=[1], alive_s=(100, 99.5, 100), texts=LOST), (1,)),
        (job(unended=[1], alive_s=(100, 96, 100), texts=TIMED_OUT, kind="timeout"), (1,)),
        # The launcher may have ended rank 1 when the others complained.
        (job(unended=[1], alive_s=(100, 99.5, 100), texts=TIMED_OUT, kind="timeout"), ()),
        (job(unended=[1, 2], alive_s=(100, 99.5, 100), texts={0: LOST[0]}), ()),
        (job(unended=[1], alive_s=(100, 99.5), texts=LOST), ()),  # a ring is missing
        (job(unended=[], alive_s=(100, 99.5, 100), texts=LOST), ()),
    ],
)
def test_a_record_without_an_end(evidence, culprits):
    assert diagnose(evidence).culprits == culprits
