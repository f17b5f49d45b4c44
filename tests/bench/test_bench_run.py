"""``torchcoll.run``: the same numbers as the command, and things are left as they were found."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from error_form import error_text

import torchcoll
from torchcoll import Spec
from torchcoll.bench.plan import odd_ranks

HOST = socket.gethostname()


def report(**facts) -> None:
    """Tell the test, by a file in the job's folder."""
    Path(f"report{os.environ.get('RANK', 0)}.json").write_text(json.dumps(facts))


def reports(job, ranks: int) -> list[dict]:
    return [json.loads((job.folder / f"report{rank}.json").read_text()) for rank in range(ranks)]


SPEC = Spec(collectives="all_reduce,broadcast", sizes=(8, 1024), iters=3)


def handlers() -> list[str]:
    return [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo"])
def test_inside_a_process_group(jobs, tmp_path, backend):
    def target():
        dist.init_process_group(backend)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        before = (handlers(), dict(os.environ), threading.active_count(), signal.set_wakeup_fd(-1))
        descriptors = len(os.listdir("/proc/self/fd"))
        seen = []
        run = torchcoll.run(SPEC, on_case=seen.append)
        again = torchcoll.run(Spec(sizes=(16,), iters=1))
        after = (handlers(), dict(os.environ), threading.active_count(), signal.set_wakeup_fd(-1))
        assert before == after, (before, after)
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 4  # clients of the store
        assert dist.is_initialized()
        dist.all_reduce(tensor)
        report(
            sum=tensor.item(),
            statuses=run and [r.status for r in run.results],
            calls=run and [len(r.time_ns["host"][1]) for r in run.results],
            seen=[r.case.size_bytes for r in seen],
            again=again and [r.case.size_bytes for r in again.results],
            launcher=run and run.header["launcher"],
            # Before torch has its own to say: leaving a group of cpu:gloo it warns now and then.
            said=[
                Path(f"{os.environ['RANK']}.{name}").read_text() for name in ("stdout", "stderr")
            ],
        )
        dist.barrier()
        dist.destroy_process_group()

    job = jobs(tmp_path, target, 2)
    assert job.codes() == [0, 0], job.text(0) + job.text(1)
    first, second = reports(job, 2)
    assert first == {
        "sum": 4.0,  # 1 + 1, then both
        "statuses": ["ok"] * 4,
        "calls": [3] * 4,
        "seen": [8, 1024, 8, 1024],
        "again": [16],
        "launcher": "process group",
        "said": ["", ""],
    }
    assert (second["sum"], second["statuses"], second["seen"]) == (4.0, None, [])


def test_with_the_launchers_variables(jobs, tmp_path):
    """It makes its group and takes it away again; and can be called once more."""

    def target():
        for _ in range(2):
            run = torchcoll.run(SPEC)
            assert not dist.is_initialized()
        assert (run is None) == (os.environ["RANK"] != "0")
        report(ranks=run and run.ranks, complete=run and run.complete)

    job = jobs(tmp_path, target, 3)
    assert job.codes() == [0, 0, 0], job.text(0) + job.text(1)
    assert reports(job, 3)[0] == {"ranks": 3, "complete": True}


def test_one_rank(jobs, tmp_path):
    def target():
        run = torchcoll.run(Spec(sizes=(8,), iters=2))
        (result,) = run.results
        report(ranks=run.ranks, status=result.status, problems=run.problems)

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    job = jobs(tmp_path, target, 1, environment=dict.fromkeys(names))
    assert job.codes() == [0], job.text(0)
    assert reports(job, 1) == [{"ranks": 1, "status": "ok", "problems": []}]


def test_the_same_as_the_command(jobs, launch, tmp_path):
    """The Run of the function and that of the command's file have the same fields and cases."""

    def target():
        run = torchcoll.run(Spec(collectives=("all_gather",), sizes=(64, 256), iters=4))
        if run:
            torchcoll.save(run, "saved.jsonl")

    job = jobs(tmp_path / "api", target, 2)
    assert job.codes() == [0, 0], job.text(0)
    ours = torchcoll.load(job.folder / "saved.jsonl")
    theirs = launch("all_gather", "--sizes 64,256 -n 4", 2).ended(0).run
    assert [r.case for r in ours.results] == [r.case for r in theirs.results]
    assert ours.header.keys() == theirs.header.keys()
    assert ours.header["spec"] == theirs.header["spec"]
    assert ours.end.keys() == theirs.end.keys() and ours.complete
    assert [m.keys() for m in ours.members] == [m.keys() for m in theirs.members]
    assert set(theirs.phases) - set(ours.phases) == {"import_torch"}
    for mine, other in zip(ours.results, theirs.results, strict=True):
        assert mine.to_json().keys() == other.to_json().keys()
        assert (mine.count, mine.size_bytes, mine.batches) == (
            other.count,
            other.size_bytes,
            other.batches,
        )


def test_errors_are_raised(jobs, tmp_path):
    """On every rank alike, and the next run works."""

    def target():
        lines = []
        for bad in (Spec(roots=(9,), collectives="broadcast"), Spec(backend="nonsense")):
            try:
                torchcoll.run(bad)
            except torchcoll.TorchcollError as error:
                lines.append(str(error).split(",")[0])
        run = torchcoll.run(Spec(sizes=(8,), iters=1))
        report(lines=lines, ran=run and run.complete)

    job = jobs(tmp_path, target, 2)
    assert job.codes() == [0, 0], job.text(0) + job.text(1)
    first, second = reports(job, 2)
    assert first["lines"] == second["lines"]
    assert first["lines"] == [error_text("root", "9"), error_text("backend", "nonsense")]
    assert first["ran"] is True


@pytest.mark.parametrize(
    ("words", "odd"),
    [("aab", [2]), ("baa", [0]), ("abacad", [1, 3, 5]), ("aa", []), ("ab", [1]), ("abb", [0])],
)
def test_the_odd_ranks(words, odd):
    assert odd_ranks(words) == odd


def test_a_program_whose_specs_differ_is_told_in_what(tmp_path, jobs):
    sizes = [",".join(map(str, range(8, 400, 8))), "8", "8"]
    got = "sizes [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 12..."

    def target() -> None:
        dist.init_process_group("gloo")
        try:
            torchcoll.run(torchcoll.Spec(sizes=sizes[dist.get_rank()], timeout_s=60))
        finally:
            dist.destroy_process_group()

    job = jobs(tmp_path, target, 3)
    assert job.codes() == [1, 1, 1]
    for rank in range(3):
        last = job.text(rank).splitlines()[-1]
        assert error_text(f"arguments of rank 0 ({HOST})", got, "as on rank 1 (") in last
        assert last.endswith(": sizes [8]. Start all ranks with the same arguments.")


def test_an_on_case_that_fails(jobs, tmp_path):
    """The exception is the caller's; the other ranks do not wait for ever."""

    def target():
        def angry(result):
            raise ZeroDivisionError

        torchcoll.run(Spec(sizes=(8, 16), iters=1, timeout_s=60), on_case=angry)

    ended = jobs(tmp_path, target, 2).wait(45)
    assert ended[0].code == 1 and "ZeroDivisionError" in ended[0].stderr
    assert ended[1].code != 0


def test_an_on_case_that_fails_on_a_rank_alone(jobs, tmp_path):
    """There is nobody to tell: what was made is put back, and the next run works."""

    def target():
        def angry(result):
            raise ZeroDivisionError

        with contextlib.suppress(ZeroDivisionError):
            torchcoll.run(Spec(sizes=(8,), iters=1), on_case=angry)
        left = dist.is_initialized()
        run = torchcoll.run(Spec(sizes=(8,), iters=1))
        report(left=left, ran=run.complete)

    job = jobs(tmp_path, target, 1)
    assert job.codes() == [0], job.text(0)
    assert reports(job, 1) == [{"left": False, "ran": True}]


def test_a_run_that_fails_says_so(jobs, tmp_path):
    """In memory as the command does in a file: what a wrong case and a refusal come to."""

    def target():
        from torchcoll.bench import session
        from torchcoll.core.collectives import COLLECTIVES

        meetings, made = [], session.Rendezvous
        session.Rendezvous = lambda *args: meetings.append(made(*args)) or meetings[-1]
        entry = COLLECTIVES["all_reduce"]
        wrong = dataclasses.replace(
            entry, prepare=lambda dist, group, send, *args: lambda: send.fill_(7)
        )
        COLLECTIVES["all_reduce"] = wrong
        ends = []
        for spec in (Spec(sizes=(8,), iters=1), Spec(backend="nonsense")):
            with contextlib.suppress(torchcoll.TorchcollError):
                torchcoll.run(spec)
            recorder = meetings[-1].recorder
            run = recorder and recorder.run
            ends.append(run and [run.end["status"], run.end["exit_code"], run.end["reason"][:18]])
        report(ends=ends)

    job = jobs(tmp_path, target, 2)
    assert job.codes() == [0, 0], job.text(0) + job.text(1)
    ours, others = reports(job, 2)
    assert ours["ends"] == [
        ["complete", 1, "1 wrong of 1 case."],
        ["failed", 4, error_text("backend", "nonse")],
    ]
    assert others["ends"] == [None, None]
