"""The result file as it is written: order of records, what is in it, and --resume."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from error_form import error_line
from ranks import Measured, of_enough_cores

from torchcoll import load
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.file import Writer
from torchcoll.core.spec import Spec


def kinds(records: list[dict]) -> list[str]:
    return [record["record"] for record in records]


def test_order_of_records(launch):
    options = "--sizes 8,16 -n 2 --label a=b"
    measured = launch("all_reduce", options, 2, setup=of_enough_cores).ended(0)
    records = measured.records()
    expected = ["header", "ranks", *["phase"] * 4, "machine", "started", "case", *["phase"] * 2]
    expected += ["started", "case", "machine", "end"]
    assert kinds(records) == expected
    header, ranks = records[0], records[1]["ranks"]
    assert header["schema"] == "torchcoll/2"
    assert (header["ranks"], header["launcher"], header["job_id"]) == (2, header["launcher"], None)
    assert header["argv"] == f"--sizes 8,16 -n 2 --label a=b --output {measured.path}".split()
    assert header["spec"]["labels"] == {"a": "b"}
    assert header["spec"]["backend"] == "gloo" and header["spec"]["device"] == "cpu"
    environment = header["environment"]
    assert environment["torch"] == torch.__version__
    assert environment["libraries"] == {"gloo": f"gloo of torch {torch.__version__}"}
    assert environment["variables"]["MASTER_PORT"] == str(measured.job.port)
    assert [member["rank"] for member in ranks] == [0, 1]
    assert [member["pid"] for member in ranks] == list(measured.job.pids.values())
    names = [record["name"] for record in records if record["record"] == "phase"]
    start_up = ["import_torch", "rendezvous", "device", "init_process_group"]
    assert names == [*start_up, "cost_timed_loop", "cost_barrier"]
    for record in records:
        if record["record"] == "phase":
            assert len(record["ns"]) == 2 and all(ns > 0 for ns in record["ns"])
    end = records[-1]
    assert (end["status"], end["exit_code"], end["reason"]) == ("complete", 0, "")
    assert 0 < end["wall_s"] < 60


def test_the_header_is_there_before_the_group(launch):
    """What init_process_group does on a bad day must leave a file that says what was asked."""

    def setup(rank: int) -> None:
        def look(*args, **kwargs):
            if rank == 0:
                path = next(p for p in os.listdir("..") if p.endswith(".jsonl"))
                shutil.copy(f"../{path}", "seen")  # stdout waits for the library's lines to pass
            os._exit(77)

        torch.distributed.init_process_group = look

    measured = launch("all_reduce", "--sizes 8 -n 2", 2, setup=setup)
    # The store goes with rank 0: how rank 1 ends depends on how far it has come.
    assert measured.job.wait()[0].code == 77, measured.stderr()
    lines = (measured.job.folder / "seen").read_text().splitlines()
    assert kinds([json.loads(line) for line in lines]) == ["header"]
    run = measured.run
    assert run.spec.sizes == (8,) and not run.complete


def test_started_is_there_before_the_case(launch):
    def setup(rank: int) -> None:
        from rank_faults import around_calls

        def leave(number, call):
            os._exit(78)

        around_calls("all_reduce", leave)

    run = launch("all_reduce", "--sizes 8 -n 2", 1, setup=setup).ended(78).run
    assert run.in_flight.size_bytes == 8
    assert run.problems[-1].endswith("in flight: all_reduce 8 float32 sum on gloo")


def test_what_differs_between_the_ranks(launch):
    def environment(rank: int) -> dict[str, str]:
        return {"NCCL_ALGO": "Tree" if rank else "Ring", "UCX_TLS": "rc"}

    run = launch("barrier", "-n 1", 2, environment=environment).ended(0).run
    assert run.environment["variables"]["NCCL_ALGO"] == "Ring"
    assert "variables_that_differ" not in run.members[0]
    assert run.members[1]["variables_that_differ"] == {"NCCL_ALGO": "Tree"}


def test_more_ranks_than_cores_is_an_event(launch):
    def setup(rank: int) -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    run = launch("barrier", "-n 1", 2, setup=setup).ended(0).run
    (event,) = run.events
    assert event["kind"] == "warning"
    assert "2 ranks share 1 core:" in event["message"]


def test_the_default_name(launch):
    """A number is added where the name is taken."""
    measured = launch("broadcast", "--sizes 8 -n 1", 2, output=False).ended(0)
    (path,) = (measured.job.folder / "torchcoll-runs").iterdir()
    assert path.name.endswith("-broadcast-gloo-2ranks.jsonl")
    assert measured.stderr(0) == f"result file: torchcoll-runs/{path.name}\n"
    assert load(path).complete


def test_a_disk_that_fills_up(launch):
    """Rank 0 cannot write its second case: one line, all leave with the same code, no hang."""

    def setup(rank: int) -> None:
        original = Writer.write

        def write(self, record, data, durable=False):
            original(self, record, data, durable)
            if record == "case":
                most = os.path.getsize(self.path)
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

        Writer.write = write

    measured = launch("all_reduce", "--sizes 8,16,32 -n 2 -T 60", 2, setup=setup)
    ended = measured.job.wait(45)
    assert ended[0].code == ended[1].code != 0
    assert len(measured.errors()) == 1
    assert "File too large" in measured.errors()[0]
    assert [r.case.size_bytes for r in measured.run.results] == [8]


def interrupted(launch, options: str, cases: int, ranks: int = 2, collective="all_reduce"):
    """A run killed when so many cases were in the file; one of a MiB or more never ends."""
    from rank_faults import running

    def endless(rank: int) -> None:
        entry = COLLECTIVES[collective]

        def prepare(dist, layout, send, recv, *rest):
            call = entry.prepare(dist, layout, send, recv, *rest)
            return call if recv.nbytes < 1 << 20 else lambda: time.sleep(100)

        COLLECTIVES[collective] = dataclasses.replace(entry, prepare=prepare)

    measured = launch(collective, options, ranks, setup=endless)
    running(measured, cases)
    for rank in range(ranks):
        measured.job.signal(rank, signal.SIGKILL)
    measured.job.wait()
    done = [r.case for r in measured.run.results]
    assert len(done) >= cases
    return measured.path, done


def test_resume(launch):
    """What is missing goes to FILE.2, then FILE.3; load merges; nothing is run twice."""
    options = "--sizes 8,16,32,8M -n 20 --label kernel=x -T 50"
    path, done = interrupted(launch, options, 2)
    first = path.read_bytes()

    def fail(rank: int) -> None:
        from rank_faults import around_calls

        def leave(number, call):
            if number == 3:
                os._exit(9)
            call()

        around_calls("all_reduce", leave)

    again = launch("all_reduce", f"--resume {path}", 2, output=False, setup=fail)
    assert again.job.codes()[0] != 0
    assert f"{path}: {len(done)} of 4 cases are done" in again.stderr(0)
    assert not load(path).complete

    last = launch("all_reduce", f"--resume {path}", 2, output=False).ended(0)
    assert path.read_bytes() == first
    second, third = load(f"{path}.2"), load(f"{path}.3")
    assert not second.results
    assert len(third.results) == 4 - len(done)
    assert f"result file: {path}.3" in last.stderr(0)
    run = load(path)
    assert run.complete
    assert [r.case.size_bytes for r in run.results] == [8, 16, 32, 8 << 20]
    assert len({r.case for r in run.results}) == 4
    assert all(len(r.time_ns["host"][0]) == 20 for r in run.results)
    assert third.spec == run.spec and run.labels == {"kernel": "x"}
    assert third.spec.timeout_s == 50


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A complete run of one case on two ranks, which no test changes."""
    folder = tmp_path_factory.mktemp("complete") / "run"
    return Measured(folder, "all_reduce", "--sizes 8 -n 2").ended(0).path


def test_resume_of_a_complete_run(launch, path):
    again = launch("all_reduce", f"--resume {path}", 2, output=False).ended(0)
    assert "1 of 1 cases are done" in again.stderr(0)
    run = load(path)
    assert run.complete and len(run.results) == 1


def test_resume_of_a_suite_needs_no_options(launch):
    """The collectives are in the file, too."""
    options = "--collectives broadcast,barrier --sizes 8 -n 2"
    path = launch(None, options, 2).ended(0).path
    for words in ("", options):
        again = launch(None, f"{words} --resume {path}", 2, output=False).ended(0)
        assert "2 of 2 cases are done" in again.stderr(0)


@pytest.mark.parametrize("asked", ["--sizes 16", "-n 3", "--dtype int32", "-c 0"])
def test_resume_with_other_options(launch, path, asked):
    measured = launch("all_reduce", f"{asked} --resume {path}", 2, output=False).ended(2)
    assert measured.errors() == [
        error_line(
            "resume",
            f"other options than {path} was measured with",
            "the same options or none. Leave them out: the file has them.",
        )
    ]


def test_resume_with_other_ranks(launch, path):
    measured = launch("all_reduce", f"--resume {path}", 3, output=False).ended(2)
    assert measured.errors() == [error_line("resume", "3 ranks", f"2 as in {path}")]


def test_resume_of_a_foreign_file(launch, tmp_path):
    (tmp_path / "foreign").write_text("hello\n")
    measured = launch("all_reduce", f"--resume {tmp_path}/foreign -T 60", 2, output=False)
    assert len(measured.ended(3, 45).errors()) == 1


def test_resume_keeps_an_explicit_output(launch, path, tmp_path):
    lines = path.read_text().splitlines(keepends=True)
    part, other = tmp_path / "part.jsonl", tmp_path / "other.jsonl"
    part.write_text("".join(line for line in lines if '"record":"case"' not in line))
    launch("all_reduce", f"--resume {part} -J {other}", 2, output=False).ended(0)
    assert other.exists() and not Path(f"{part}.2").exists()


def test_the_file_holds_the_spec(launch):
    """What was asked can be asked again from the file alone."""
    run = launch("all_gather", "--sizes 1K,3K -n 2 -d bf16 --in-place both", 2).ended(0).run
    spec = run.spec
    assert isinstance(spec, Spec)
    assert spec.cases(2) == tuple(r.case for r in run.results)
    assert time.strptime(run.header["start_utc"][:19], "%Y-%m-%dT%H:%M:%S")


def test_a_fault_of_the_display_does_not_end_the_measurement(launch):
    def break_display(rank: int) -> None:
        from torchcoll.bench.live import Reporter

        Reporter.done = lambda self, result: 1 / 0

    measured = launch("all_reduce", "--sizes 8,16 -n 1", 2, setup=break_display)
    ended = measured.job.wait()
    assert [rank.code for rank in ended.values()] == [0, 0]
    assert ended[0].stderr.count("ZeroDivisionError") == 1
    assert "torchcoll: warning: the display failed; the measurement goes on" in ended[0].stderr
    assert [result.status for result in measured.ended(0).run.results] == ["ok", "ok"]
