"""The file of a capture: written as the training runs, and nothing of it ends the training."""

import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from error_form import error_text, got
from planned_models import on_ranks
from ranks import Job

import torchcoll
from torchcoll.cli import main as torchcoll_command
from torchcoll.core.traffic import Traffic
from torchcoll.parts.training import recorded_calls

TRUNCATED = "truncated: the file has no end record"


def steps(traffic, count, calls=1):
    """Call k of all reduces k + 1 float32."""
    number = len(traffic.calls[dist.get_rank()])
    for _ in range(count):
        for _ in range(calls):
            number += 1
            dist.all_reduce(torch.ones(number))
        traffic.step()


def limited(size_bytes):
    """As on a disk that is full, files of this process end at so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


def full():
    with torchcoll.capture("full") as traffic:
        steps(traffic, 10)
        limited(Path("full/traffic-rank0.jsonl").stat().st_size + 1000)
        steps(traffic, 390)
        limited(resource.RLIM_INFINITY)
    return len(traffic.calls[0]), traffic.end


def full_from_the_start():
    """A job that was restarted must train all the same. Its stderr is on the same disk."""
    Path("none").mkdir()
    limited(0)
    with torchcoll.capture("none") as traffic:
        steps(traffic, 3)
    with torchcoll.capture("none", every=2) as sampled:
        steps(sampled, 4)
    limited(resource.RLIM_INFINITY)
    return len(traffic.calls[0]), len(sampled.calls[0])


def removed():
    with torchcoll.capture("gone") as traffic:
        steps(traffic, 2)
        shutil.rmtree("gone")
        Path("gone").write_text("")
    return len(traffic.calls[0])


def sampled():
    """Its steps are in the file before it ends."""
    with torchcoll.capture("sampled", every=2) as traffic:
        steps(traffic, 4)
        return Traffic.load("sampled").calls[0] == traffic.calls[0], len(traffic.calls[0])


def ended_by():
    collected = []
    for number, error in enumerate((ValueError("x"), SystemExit(0), KeyboardInterrupt())):
        with pytest.raises(type(error)), torchcoll.capture(f"ended{number}") as traffic:
            steps(traffic, 2)
            raise error
        collected.append(traffic.end)
    return collected


def forked():
    """A process that is forked inside of the block leaves it by an exception."""
    with torchcoll.capture("forked") as traffic:
        steps(traffic, 2)
        dist.all_reduce(torch.ones(3))
        child = os.fork()
        if not child:
            raise ChildIsOver
        os.waitpid(child, 0)
        steps(traffic, 2)
    return len(traffic.calls[0]), traffic.end


class ChildIsOver(BaseException):
    pass


def forked_case():
    parent = os.getpid()
    try:
        return forked()
    finally:
        if os.getpid() != parent:
            os._exit(0)


def bounded():
    """At most 10 calls are kept: 3 steps of 3."""
    recorded_calls.KEPT_CALLS = 10  # dies with this rank
    with torchcoll.capture("bounded") as traffic:
        steps(traffic, 7, calls=3)
    with torchcoll.capture() as unwritten:
        steps(unwritten, 7, calls=3)
    with torchcoll.capture("unmarked") as unmarked:
        for _ in range(12):
            dist.all_reduce(torch.ones(1))
    recorded_calls.KEPT_CALLS = 100_000
    numbers = [(call.bytes_in // 4, call.step) for call in traffic.calls[0]]
    kept = [len(traffic.steps[0]), len(unwritten.calls[0]), len(unmarked.calls[0])]
    return numbers, kept, traffic.notes, unwritten.notes


def later_facts():
    with torchcoll.capture("facts") as traffic:
        steps(traffic, 1)
        traffic.environment["ddp_buckets"] = [[1]]
    return traffic.environment


CASES = {
    case.__name__: case for case in (full, full_from_the_start, removed, sampled, ended_by, bounded)
} | {"forked": forked_case, "later_facts": later_facts}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What each of CASES returned on one rank; and where its files are."""
    folder = tmp_path_factory.mktemp("alone")
    return {**on_ranks(folder, 1, CASES), "folder": folder}


def warnings_for(alone, name):
    stderr = (alone["folder"] / "0.stderr").read_text().splitlines()
    return [
        line
        for line in stderr
        if f"/{name}/" in line and error_text("warning: capture", "") in line
    ]


def test_a_full_disk_is_one_warning_and_the_file_keeps_what_fits(alone):
    assert alone["full"] == [400, {"status": "complete"}]
    (warning,) = warnings_for(alone, "full")
    assert "File too large" in warning and "The training goes on" in warning
    traffic = Traffic.load(alone["folder"] / "full")
    sizes = [call.bytes_in // 4 for call in traffic.calls[0]]
    assert 10 <= len(sizes) < 400
    assert sizes == list(range(1, len(sizes) + 1))
    assert any(TRUNCATED in text for text in traffic.problems)


def test_a_disk_that_is_full_from_the_start(alone):
    assert alone["full_from_the_start"] == [3, 2]


def test_a_folder_that_is_removed(alone):
    assert alone["removed"] == 2
    (warning,) = warnings_for(alone, "gone")
    assert "traffic.save(PATH)" in warning


def test_a_sampled_capture_is_written_as_it_runs(alone):
    assert alone["sampled"] == [True, 2]


def test_an_exception_in_the_block_is_the_status(alone):
    assert alone["ended_by"] == [
        {"status": "failed", "reason": "ValueError", "message": "x"},
        {"status": "interrupted", "reason": "SystemExit", "message": "0"},
        {"status": "interrupted", "reason": "KeyboardInterrupt", "message": ""},
    ]
    file = alone["folder"] / "ended0/traffic-rank0.jsonl"
    last = json.loads(file.read_text().splitlines()[-1])
    assert (last["record"], last["status"], last["reason"]) == ("end", "failed", "ValueError")
    traffic = Traffic.load(file)
    assert len(traffic.calls[0]) == 2
    assert traffic.problems == [f"{file}: failed: the capture was ended by ValueError"]


def test_how_it_ended_is_kept_where_it_is_saved_again(alone, tmp_path):
    cut = tmp_path / "cut.jsonl"
    file = alone["folder"] / "ended0/traffic-rank0.jsonl"
    cut.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    for number, source in enumerate((file, cut)):
        traffic = Traffic.load(source)
        traffic.save(tmp_path / f"{number}.jsonl")
        assert Traffic.load(tmp_path / f"{number}.jsonl").end == traffic.end
        assert traffic.end.get("status") == ("failed", None)[number]


def test_a_fork_that_leaves_the_block_writes_nothing(alone):
    assert alone["forked"] == [5, {"status": "complete"}]
    folder = alone["folder"] / "forked"
    assert [path.name for path in folder.iterdir()] == ["traffic-rank0.jsonl"]
    traffic = Traffic.load(folder)
    assert [call.sequence for call in traffic.calls[0]] == [0, 1, 2, 3, 4]
    assert (traffic.problems, traffic.end) == ([], {"status": "complete"})


def test_memory_is_bounded_and_the_file_has_all(alone):
    numbers, (marked, unwritten, unmarked), notes, notes_unwritten = alone["bounded"]
    assert numbers == [[1, 0], [2, 0], [3, 0], [4, 1], [5, 1], [6, 1], [7, 2], [8, 2], [9, 2]]
    assert (marked, unwritten, unmarked) == (3, 9, 10)
    note = "memory keeps the first 3 of 7 steps, 9 of 21 calls"
    assert note in notes_unwritten
    assert any(text.startswith(f"{note}; ") for text in notes)
    (warning,) = (
        line
        for line in (alone["folder"] / "0.stderr").read_text().splitlines()
        if got("more than 10 calls") in line
    )
    assert "capture(FOLDER)" in warning
    traffic = Traffic.load(alone["folder"] / "bounded")
    sizes = [(call.bytes_in // 4, call.step) for call in traffic.calls[0]]
    assert sizes == [(k + 1, k // 3) for k in range(21)]
    assert (len(traffic.steps[0]), traffic.problems) == (7, [])
    assert not any("memory keeps" in text for text in traffic.notes)
    recorded = Traffic.load(alone["folder"] / "unmarked")
    assert [call.step for call in recorded.calls[0]] == [None] * 12
    assert recorded.steps == {}


def test_what_was_learned_after_the_header(alone):
    facts = Traffic.load(alone["folder"] / "facts").environment
    assert facts == alone["later_facts"]
    assert facts["ddp_buckets"] == [[1]]


def test_a_kill_loses_only_what_came_after_the_last_mark(tmp_path, capsys):
    """Both ranks are killed in their fourth step."""

    def target():
        dist.init_process_group("gloo")
        with torchcoll.capture(tmp_path / "killed") as traffic:
            steps(traffic, 3, calls=2)
            dist.all_reduce(torch.ones(7))
            (tmp_path / f"here{dist.get_rank()}").touch()
            signal.pause()

    job = Job(tmp_path / "job", target, 2)
    try:
        while not all((tmp_path / f"here{rank}").exists() for rank in (0, 1)):
            assert job.text(0) == ""
        for rank in (0, 1):
            job.signal(rank, signal.SIGKILL)
        assert job.codes() == [-9, -9]
    finally:
        job.kill()
    traffic = Traffic.load(tmp_path / "killed")
    for rank in (0, 1):
        marked = [(call.bytes_in // 4, call.step) for call in traffic.calls[rank]][:6]
        assert marked == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]
        assert {call.step for call in traffic.calls[rank][6:]} <= {None}
        assert len(traffic.steps[rank]) == 3
    assert sum(TRUNCATED in text for text in traffic.problems) == 2
    assert len({name for name, _ in traffic.clocks.values()}) == 1
    assert torchcoll_command(["trace", str(tmp_path / "killed")]) == 0
    assert "truncated" in " ".join(capsys.readouterr().out.split())


def test_calls_without_marks_are_written_in_batches(tmp_path):
    def target():
        dist.init_process_group("gloo")
        with torchcoll.capture(tmp_path / "killed"):
            for _ in range(600):
                dist.all_reduce(torch.ones(1))
            os.kill(os.getpid(), signal.SIGKILL)

    job = Job(tmp_path / "job", target, 1)
    try:
        assert job.codes() == [-9]
    finally:
        job.kill()
    calls = Traffic.load(tmp_path / "killed").calls[0]
    # At most a batch is lost; a slow machine also writes after a second, so batches may shift.
    assert 600 - recorded_calls.BATCH < len(calls) <= 600
    assert [call.sequence for call in calls] == list(range(len(calls)))
    assert {call.step for call in calls} == {None}


def test_a_call_that_never_ends_does_not_hold_up_the_others(tmp_path):
    """Rank 0 receives what rank 1 sends at the end: 50 calls later, of which 20 may be open."""

    def target():
        recorded_calls.OPEN_CALLS = 20
        dist.init_process_group("gloo")
        pair = dist.new_group([0, 1])
        with torchcoll.capture(tmp_path / "open") as traffic:
            works = []
            if dist.get_rank() == 0:
                works.append(dist.all_reduce(torch.ones(2), group=pair, async_op=True))
            for _ in range(50):
                dist.all_reduce(torch.ones(1))
            if dist.get_rank() == 0:
                assert len(traffic.calls[0]) == 0  # not even a batch: all wait for the first
                for _ in range(recorded_calls.BATCH):
                    dist.all_reduce(torch.ones(1))
                assert len(traffic.calls[0]) >= 50  # fewer than a batch are open again
            else:
                for _ in range(recorded_calls.BATCH):
                    dist.all_reduce(torch.ones(1))
                works.append(dist.all_reduce(torch.ones(2), group=pair, async_op=True))
            for work in works:
                work.wait()
        os._exit(0)

    job = Job(tmp_path / "job", target, 2)
    try:
        assert job.codes() == [0, 0], job.text(0)
    finally:
        job.kill()
    recorded = Traffic.load(tmp_path / "open")
    first = recorded.calls[0][0]
    assert (first.bytes_in, first.time_ns) == (8, None)
    assert len(recorded.calls[0]) == len(recorded.calls[1]) == 51 + recorded_calls.BATCH
    note = "1 calls have no duration: 20000 calls after them they had not ended"
    assert note in recorded.notes
