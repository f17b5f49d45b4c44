"""capture(on_hang="dump"): the last calls of a rank survive its death, and say what it was in."""

import os
import resource
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from error_form import error_text, got
from planned_models import on_ranks
from ranks import Job
from torch.nn.parallel import DistributedDataParallel

import torchcoll
from torchcoll.cli import main as torchcoll_command
from torchcoll.core.call_ring import CAPACITY
from torchcoll.core.errors import UsageError
from torchcoll.parts.postmortem.ring_reader import read_ring
from torchcoll.parts.training import ring_file
from torchcoll.parts.training.capture import capture


def refused(**arguments):
    with pytest.raises(UsageError) as error, capture(**arguments):
        raise AssertionError("it began")
    return str(error.value)


def shown(ring):
    """(number in the group, collective, elements of float32, whether it completed) of each call."""
    return [
        (c.number, c.collective, c.bytes_in // 4, c.ended_ns is not None and not c.failed)
        for c in ring.calls
    ]


def wrong_arguments():
    return [
        *(refused(path="x", on_hang=value) for value in ("yes", True, "")),
        refused(on_hang="dump"),
        Path("x").exists(),
    ]


def ended():
    dist.all_reduce(torch.ones(1))
    with capture("ended", on_hang="dump"):
        dist.all_reduce(torch.ones(5))
        dist.broadcast(torch.ones(6), 0)


def last_ones():
    """More calls than the ring has room for."""
    with capture("last", on_hang="dump"):
        for _ in range(CAPACITY + 10):
            dist.all_reduce(torch.ones(1))


def counted_as_torch():
    """The numbers that torch's Flight Recorder would give to the calls."""
    world, pair = dist.group.WORLD, dist.new_group([0], group_desc="pair")
    counts = []
    dist.all_reduce(torch.ones(1), group=pair)
    with capture("counted", on_hang="dump"):
        for call in (
            lambda: dist.all_reduce(torch.ones(1)),
            lambda: dist.reduce_scatter_tensor(torch.ones(1), torch.ones(1)),
            lambda: dist.all_gather_object([None], 3),  # two calls
            lambda: dist.barrier(),
        ):
            call()
            counts.append(world._get_sequence_number_for_group())
        dist.all_reduce(torch.ones(1), group=pair)
        counts.append(pair._get_sequence_number_for_group())
    return counts


def sampled():
    """The ring has every step, the traffic one in two."""
    with capture("sampled", every=2, on_hang="dump") as traffic:
        for step in range(6):
            dist.all_reduce(torch.ones(step + 1))
            traffic.step()
    return [call.bytes_in // 4 for call in traffic.calls[0]]


def no_room():
    """Nothing of the ring ends the training, and its absence is one warning."""
    Path("full").mkdir()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))  # the ring takes 320 KiB
    with capture("full", on_hang="dump") as traffic:
        dist.all_reduce(torch.ones(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    return len(traffic.calls[0]), sorted(path.name for path in Path("full").iterdir())


class ChildIsOver(BaseException):
    pass


def forked():
    """A forked process leaves the block by an exception. It has no threads of gloo to call."""
    parent = os.getpid()
    try:
        with capture("forked", on_hang="dump"):
            dist.all_reduce(torch.ones(1))
            child = os.fork()
            if not child:
                raise ChildIsOver
            os.waitpid(child, 0)
            dist.all_reduce(torch.ones(3))
    finally:
        if os.getpid() != parent:
            os._exit(0)


def failed():
    with pytest.raises(ValueError), capture("failed", on_hang="dump"):
        dist.all_reduce(torch.ones(1))
        raise ValueError("of the\nloader")


CASES = {
    case.__name__: case
    for case in (
        wrong_arguments,
        ended,
        last_ones,
        counted_as_torch,
        sampled,
        no_room,
        forked,
        failed,
    )
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What each of CASES returned on one rank; and where its files are."""
    folder = tmp_path_factory.mktemp("alone")
    return {**on_ranks(folder, 1, CASES), "folder": folder}


def ring_of(alone, name):
    ring = read_ring(alone["folder"] / name / "calls-rank0.ring")
    assert ring.problems == []
    return ring


def test_what_is_refused(alone):
    *unknown, without_folder, made = alone["wrong_arguments"]
    assert [text.split(". ")[0] for text in unknown] == [
        error_text("on_hang", value, 'None or "dump"') for value in ("yes", "True", "an empty text")
    ]
    assert got("dump") in without_folder and "capture(FOLDER" in without_folder
    assert not made


def test_a_capture_that_ends(alone):
    ring = ring_of(alone, "ended")
    # torch had counted one all_reduce before.
    assert shown(ring) == [(2, "all_reduce", 5, True), (3, "broadcast", 6, True)]
    assert (ring.calls[1].root, ring.calls[0].dtype) == (0, "float32")
    assert f"{Path(__file__).name}:" in ring.calls[0].caller
    assert ring.calls[0].caller.endswith(" ended")
    assert ring.end == {"status": "complete", "reason": None, "text": None}
    assert ring.header["pid"] > 0 and ring.ranks == 1
    assert [group.ranks for group in ring.groups.values()] == [(0,)]
    assert sorted(path.name for path in (alone["folder"] / "ended").iterdir()) == [
        "calls-rank0.ring",
        "traffic-rank0.jsonl",
    ]


def test_the_last_calls_are_kept(alone):
    ring = ring_of(alone, "last_ones".removesuffix("_ones"))
    assert [call.serial for call in ring.calls] == list(range(11, CAPACITY + 11))
    assert all(call.ended_ns for call in ring.calls)


def test_numbers_are_those_of_torch(alone):
    ring = ring_of(alone, "counted")
    *counts, of_pair = alone["counted_as_torch"]
    of_group = {}
    for call in ring.calls:
        of_group.setdefault(call.group, []).append(call.number)
    world, pair = of_group.values()
    assert world == list(range(counts[0], counts[-1] + 1))
    assert pair == [of_pair] == [2]
    assert [group.description for group in ring.groups.values()] == ["default_pg", "pair"]


def test_every_step_is_in_the_ring(alone):
    assert alone["sampled"] == [2, 4, 6]
    assert [call.bytes_in // 4 for call in ring_of(alone, "sampled").calls] == [1, 2, 3, 4, 5, 6]


def test_a_disk_without_room(alone):
    assert alone["no_room"] == [1, ["traffic-rank0.jsonl"]]
    stderr = (alone["folder"] / "0.stderr").read_text().splitlines()
    (warning,) = (line for line in stderr if "calls-rank0.ring" in line)
    assert "The training goes on" in warning and "File too large" in warning


def test_a_forked_process_writes_nothing(alone):
    ring = ring_of(alone, "forked")
    assert [call.bytes_in // 4 for call in ring.calls] == [1, 3]
    assert ring.end["status"] == "complete"


def test_an_exception_of_the_program(alone):
    ring = ring_of(alone, "failed")
    assert ring.end == {
        "status": "failed",
        "reason": "ValueError",
        "text": "ValueError: of the loader",
    }


def quick(rank):
    """A setup: stacks after 0.2 s without progress."""
    ring_file.LONGEST_WAIT_S = 0.2


def rings_of(folder, ranks):
    return [read_ring(folder / f"calls-rank{rank}.ring") for rank in range(ranks)]


def test_one_of_three_ranks_is_killed(tmp_path):
    """DDP, in mid-training: the ring of the killed rank and those of the others are whole."""

    def target():
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        with torchcoll.capture(tmp_path / "ring", on_hang="dump") as traffic:
            for step in range(100_000):
                model(torch.ones(1, 4)).sum().backward()
                traffic.step()
                if step == 20:
                    (tmp_path / f"here{dist.get_rank()}").touch()

    job = Job(tmp_path / "job", target, 3)
    try:
        job.until(lambda: all((tmp_path / f"here{rank}").exists() for rank in range(3)))
        job.signal(1, signal.SIGKILL)
        killed_ns = time.time_ns()
        codes = job.codes()
        assert codes[1] == -signal.SIGKILL and codes[0] and codes[2]
    finally:
        job.kill()
    rings = rings_of(tmp_path / "ring", 3)
    dead = rings[1]
    assert (dead.rank, dead.problems, dead.end, dead.errors) == (1, [], {}, {})
    assert len(dead.calls) > 20
    later = dead.calls[10:]  # DDP makes its buckets in the first steps
    assert {call.collective for call in later} == {"all_reduce"}
    assert {call.bytes_in for call in later} == {40}  # of the 8 weights and 2 biases
    assert all(call.ended_ns for call in dead.calls[:-1])
    assert 0 < dead.alive_ns < killed_ns + 1e9
    assert dead.calls[-1].created_ns < killed_ns
    for ring in (rings[0], rings[2]):
        assert ring.problems == []
        assert 0 <= ring.calls[-1].number - dead.calls[-1].number <= 1
        assert ring.end["status"] == "failed"
    # At least the one that was connected to it says so.
    assert any("peer" in str(ring.end["text"]) for ring in (rings[0], rings[2]))
    assert torchcoll_command(["trace", str(tmp_path / "ring")]) == 0
    assert torchcoll_command(["show", str(tmp_path / "ring")]) == 0


def test_a_rank_that_never_makes_a_call(tmp_path):
    """Rank 1 stays in its own code: the others wait in call 4, its stack says where it is."""

    def stays_here():
        while True:
            time.sleep(0.01)

    def target():
        dist.init_process_group("gloo")
        with torchcoll.capture(tmp_path / "ring", on_hang="dump"):
            for call in range(1, 10):
                if dist.get_rank() == 1 and call == 4:
                    stays_here()
                dist.all_reduce(torch.ones(call))

    job = Job(tmp_path / "job", target, 3, setup=quick)
    stacks = [tmp_path / f"ring/stacks-rank{rank}.txt" for rank in range(3)]

    def all_stalled():
        """The last stacks of each rank. A slow machine may write stacks before the calls are over,
        and they may be read while they are written: an empty line ends them.
        """
        texts = [path.read_text() for path in stacks if path.exists()]
        last = ["".join(text.rpartition("torchcoll stacks")[1:]) for text in texts]
        complete = len(last) == 3 and all(
            f"number {number} of group 0" in text and text.endswith("\n\n")
            for text, number in zip(last, (4, 3, 4), strict=True)
        )
        return complete and last

    try:
        waiting, stuck, _ = job.until(all_stalled)
    finally:
        job.kill()
    rings = rings_of(tmp_path / "ring", 3)
    assert [shown(ring)[-1] for ring in rings] == [
        (4, "all_reduce", 4, False),
        (3, "all_reduce", 3, True),
        (4, "all_reduce", 4, False),
    ]
    assert all(ring.calls[-1].certain for ring in rings)
    assert not rings[1].end
    head, capture_line, stall, *lines = stuck.splitlines()
    assert head.startswith("torchcoll stacks ") and ": rank 1 of 3 on " in head
    assert capture_line == f"capture: {rings[1].header['capture']}"
    assert "no call began or ended for" in stall and "number 3 of group 0, all_reduce" in stall
    assert any(line.endswith(" in stays_here") for line in lines)
    assert "torchcoll-stall-watch" not in stuck  # the thread that writes
    assert "stays_here" not in waiting and "distributed_c10d.py" in waiting


def test_a_stopped_rank_is_not_seen_alive(tmp_path):
    def target():
        dist.init_process_group("gloo")
        with torchcoll.capture(tmp_path / "ring", on_hang="dump"):
            dist.all_reduce(torch.ones(1))
            (tmp_path / f"here{dist.get_rank()}").touch()
            signal.pause()

    job = Job(tmp_path / "job", target, 2, setup=quick)
    try:
        job.until(lambda: all((tmp_path / f"here{rank}").exists() for rank in range(2)))
        job.signal(0, signal.SIGSTOP)
        stopped_ns = time.time_ns()
        other = tmp_path / "ring/calls-rank1.ring"
        job.until(lambda: read_ring(other).alive_ns > stopped_ns + 3e8)
        alive = [ring.alive_ns for ring in rings_of(tmp_path / "ring", 2)]
    finally:
        job.kill()
    assert alive[0] < stopped_ns + 1e8 < alive[1]


def test_messages_and_asynchronous_calls(tmp_path):
    """send and recv are counted for each peer; a failed asynchronous call has not completed."""

    def target():
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
        rank = dist.get_rank()
        with torchcoll.capture(tmp_path / "ring", on_hang="dump"):
            for _ in range(2):
                (dist.send if rank else dist.recv)(torch.ones(3), 1 - rank)
            work = dist.all_reduce(torch.ones(1), async_op=True)
            work.wait()
            if rank:
                os._exit(0)
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(2), async_op=True).wait()

    job = Job(tmp_path / "job", target, 2)
    try:
        assert job.codes() == [0, 0], job.text(0)
    finally:
        job.kill()
    ring = read_ring(tmp_path / "ring/calls-rank0.ring")
    described = [(c.collective, c.peer, c.number, c.failed) for c in ring.calls]
    assert described == [
        ("recv", 1, 1, False),
        ("recv", 1, 2, False),
        ("all_reduce", None, 1, False),
        ("all_reduce", None, 2, True),
    ]
    assert all(call.ended_ns for call in ring.calls)
    assert list(ring.errors) == [4] and "peer" in ring.errors[4]
    assert ring.end["status"] == "complete"
