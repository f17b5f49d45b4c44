"""No run that measured nothing is a success, and no file that was taken away is one either."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from rank_faults import HANG, around_calls
from ranks import busy

from torchcoll import load
from torchcoll.bench.sweep import Sweep
from torchcoll.core.file import save
from torchcoll.core.result import Verification
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.training import command as replay_command

pytestmark = pytest.mark.usefixtures("less_patience")

WHY = "unknown algorithm: rinng"  # what a library says of a variable that was mistyped
CASE = "all_reduce 8 float32 sum on gloo"


def refuse(number, call):
    raise RuntimeError(WHY)


def refusing(*names):
    """A library that refuses every call of these collectives, on all ranks alike."""

    def setup(rank: int) -> None:
        for name in names:
            around_calls(name, refuse)

    return setup


def stated(measured) -> str:
    (line,) = measured.errors()
    return line.removeprefix("torchcoll: error: ")


def test_an_exception_of_one_rank_alone_ends_its_file(launch):
    """Two ranks have the watchdog for that; one rank has nobody to tell, but a file."""

    def setup(rank: int) -> None:
        def fail(*_: object) -> None:
            raise KeyError("no such sample")

        Sweep.measured = fail

    measured = launch("all_reduce", "--sizes 8,16 -n 1", 1, setup=setup)
    ended = measured.job.wait(60)
    assert [each.code for each in ended.values()] == [1]
    end = measured.records()[-1]
    assert (end["record"], end["status"], end["exit_code"]) == ("end", "failed", 1)
    assert "no such sample" in end["reason"]


def test_every_call_is_refused(launch):
    measured = launch("all_reduce", "--sizes 8,16 -n 1 -T 60", 2, setup=refusing("all_reduce"))
    measured.ended(1)
    assert stated(measured) == (
        f"nothing was measured: 2 unsupported of 2 cases. First: {CASE}: {WHY}"
    )
    end = measured.run.end
    assert (end["status"], end["exit_code"], end["reason"]) == ("complete", 1, stated(measured))
    assert [r.status for r in measured.run.results] == ["unsupported"] * 2


def test_some_calls_of_a_suite_are_refused(launch):
    """What a backend cannot do is a fact of its own: the rest was measured."""
    options = "--collectives all_reduce,broadcast --sizes 8 -n 1 -T 60"
    measured = launch(None, options, 2, setup=refusing("broadcast")).ended(0)
    assert [r.status for r in measured.run.results] == ["ok", "unsupported"]
    assert measured.run.end["exit_code"] == 0


def test_all_cases_are_skipped(launch):
    measured = launch("hypercube", "--sizes 8 -n 1 -T 60", 3).ended(1)
    assert "nothing was measured: 1 skipped of 1 case. First: " in stated(measured)
    assert stated(measured).endswith("hypercube needs a power of two of ranks, here 3")


def test_resume_measures_nothing(launch):
    """Neither the file nor what --resume adds to it has a time."""
    setup = refusing("all_reduce")
    path = launch("all_reduce", "--sizes 8,16 -n 1 -T 60", 2, setup=setup).ended(1).path
    launch_again = {"output": False, "setup": setup}
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"size_bytes":16,' not in line))
    again = launch("all_reduce", f"--resume {path}", 2, **launch_again).ended(1)
    assert stated(again).startswith("nothing was measured: 2 unsupported of 2 cases. First: ")
    # ... nor where nothing is left to run.
    done = launch("all_reduce", f"--resume {path}", 2, **launch_again).ended(1)
    assert "2 of 2 cases are done; nothing is left to run" in done.stderr()
    assert stated(done) == stated(again)


def test_resume_of_a_file_with_a_wrong_case(launch):
    """It stays wrong, whatever the rest is: --resume does not measure it again."""
    path = launch("all_reduce", "--sizes 8,16 -n 1", 2).ended(0).path
    run = load(path)
    first = run.results[0]
    first.status, first.reason, first.verification = "wrong", "1 wrong", Verification(4, 1, (1,))
    for name, results in (("done", run.results), ("part", [first])):
        other = path.with_name(f"{name}.jsonl")
        save(dataclasses.replace(run, results=results), other)
        again = launch("all_reduce", f"--resume {other}", 2, output=False).ended(1)
        assert stated(again) == f"1 wrong of 2 cases. First: {first.case.describe()}: 1 wrong"
        continuation = load(other).end
        assert name == "done" or (continuation["exit_code"], continuation["cases"]) == (1, 1)


def test_others_wait_in_vain_for_the_rank_that_refuses(launch):
    """Until their own patience ends, which is no refusal."""
    timeout_s = max(2, busy())  # alone, a second is plenty to come so far

    def setup(rank: int) -> None:
        def wait(number, call):
            time.sleep(timeout_s)
            raise RuntimeError("timed out: no address of rank 0")

        around_calls("all_reduce", wait if rank else refuse)

    measured = launch("all_reduce", f"--sizes 8 -n 1 -T {timeout_s:g}", 2, setup=setup)
    line = stated(measured.ended(HANG))
    assert WHY in line and "timed out" not in line and "in all_reduce" in line, line
    end = measured.run.end
    assert (end["status"], end["exit_code"], end["reason"]) == ("failed", HANG, line)
    assert measured.run.results == []


def test_pairs_measure_nothing(launch):
    def setup(rank: int) -> None:
        def batch_isend_irecv(steps):
            raise RuntimeError(WHY)

        dist.batch_isend_irecv = batch_isend_irecv

    measured = launch("pairs", "--sizes 1K -n 2 -T 60", 2, setup=setup).ended(4)
    assert WHY in stated(measured)
    assert measured.run.end["exit_code"] == 4


def at_call(name, place, action):
    """A setup: before so many calls of a collective rank 0 does ``action``."""

    def setup(rank: int) -> None:
        count = 0

        def acting(number, call):
            nonlocal count
            count += 1
            if rank == 0 and count == place:
                action()
            call()

        around_calls(name, acting)

    return setup


def result_file(measured) -> Path:
    (line,) = [one for one in measured.stderr().splitlines() if one.startswith("result file: ")]
    return measured.job.folder / line.removeprefix("result file: ")


def rows(measured) -> list[str]:
    """The sizes in the table."""
    return re.findall(r"^ *(\d+)  .*$", measured.stdout(), re.MULTILINE)


def test_the_folder_is_removed_while_measuring(launch):
    setup = at_call("all_reduce", 7, lambda: shutil.rmtree("torchcoll-runs"))
    measured = launch("all_reduce", "--sizes 8,16,32 -n 2 -c 0", 2, output=False, setup=setup)
    measured.ended([1, 1])
    path = result_file(measured)
    name = f"torchcoll-runs/{path.name}"
    assert path == measured.job.folder / name
    assert stated(measured) == (
        f"result file {name}: removed, moved or truncated while measuring; all is in {name}"
    )
    run = load(path)
    assert [r.case.size_bytes for r in run.results] == [8, 16, 32]
    assert (run.end["exit_code"], run.end["reason"], run.problems) == (1, stated(measured), [])
    assert run.members and run.phases
    assert rows(measured) == ["8", "16", "32"]


def test_the_folder_is_removed_after_the_end(launch):
    """One story: what the file says is the exit code of rank 0."""

    def setup(rank: int) -> None:
        from torchcoll.bench.recorder import Recorder

        end = Recorder.end

        def ending(self, *words):
            end(self, *words)
            shutil.rmtree("torchcoll-runs")

        Recorder.end = ending

    measured = launch("all_reduce", "--sizes 8 -n 2 -c 0", 2, output=False, setup=setup)
    measured.ended([1, 0])
    run = load(result_file(measured))
    assert [r.case.size_bytes for r in run.results] == [8]
    assert (run.end["exit_code"], run.end["reason"], run.problems) == (1, stated(measured), [])


def test_the_file_is_truncated_while_measuring(launch, tmp_path):
    """As by logrotate's copytruncate: what was in it is gone, and the next record leaves a hole."""
    (tmp_path / "tmp").mkdir()
    path = tmp_path / "run1.jsonl"

    def truncate():
        tempfile.tempdir = str(tmp_path / "tmp")
        os.truncate(path, 100)

    setup = at_call("all_reduce", 7, truncate)
    measured = launch("all_reduce", "--sizes 8,16,32 -n 2 -c 0", 2, setup=setup).ended(1)
    again = result_file(measured)
    assert again.parent.parent == tmp_path / "tmp"
    assert stated(measured) == (
        f"result file {path}: removed, moved or truncated while measuring; all is in {again}"
    )
    assert [r.case.size_bytes for r in load(again).results] == [8, 16, 32]
    assert load(again).problems == []


def test_a_last_look_at_the_machine_that_fails_is_a_warning(launch):
    def setup(rank: int) -> None:
        from torchcoll.machine.host_watch import Watch

        def after(self):
            raise OSError(24, "Too many open files", "/sys/class/net")

        Watch.states = after

    run = launch("all_reduce", "--sizes 8,16 -n 2 -c 0", 2, setup=setup).ended(0).run
    assert [r.status for r in run.results] == ["ok", "ok"] and run.end["exit_code"] == 0
    (warning,) = [event["message"] for event in run.events if event["kind"] == "warning"]
    assert warning.startswith("no state of the machine after the run: rank 0 (")
    assert warning.endswith("[Errno 24] Too many open files: '/sys/class/net'")


def test_another_file_takes_its_name(launch, tmp_path):
    """It stays as it is; ours goes where files for a while go."""
    (tmp_path / "tmp").mkdir()
    path = tmp_path / "run1.jsonl"

    def replace():
        tempfile.tempdir = str(tmp_path / "tmp")
        path.unlink()
        path.write_text("of somebody else\n")

    setup = at_call("all_reduce", 3, replace)
    measured = launch("all_reduce", "--sizes 8,16 -n 2 -c 0", 2, setup=setup).ended(1)
    assert path.read_text() == "of somebody else\n"
    again = result_file(measured)
    assert again.name == path.name and again.parent.parent == tmp_path / "tmp"
    assert [r.case.size_bytes for r in load(again).results] == [8, 16]


def test_there_is_nowhere_to_write_it(launch, tmp_path):
    """One line; what was measured is in the table."""

    def replace():
        tempfile.tempdir = str(tmp_path / "gone")
        os.rename(tmp_path / "run1.jsonl", tmp_path / "moved.jsonl")
        (tmp_path / "run1.jsonl").mkdir()

    setup = at_call("all_reduce", 3, replace)
    measured = launch("all_reduce", "--sizes 8,16 -n 2 -c 0", 2, setup=setup).ended(1)
    assert stated(measured) == (
        f"result file {tmp_path / 'run1.jsonl'}: removed, moved or truncated while measuring, and "
        "there is nowhere to write it again"
    )
    assert "result file: " not in measured.stderr()
    assert rows(measured) == ["8", "16"]
    assert [r.case.size_bytes for r in load(tmp_path / "moved.jsonl").results] == [8, 16]


def a_step(path: Path) -> str:
    call = TrafficCall("all_reduce", 64, 64, "float32", "sum", group="0", asynchronous=False)
    calls = {rank: [call] for rank in range(2)}
    Traffic("plan", 2, calls, {"0": Group("0", (0, 1))}).save(path)
    return str(path)


def played(jobs, folder, file, setup=lambda rank: None):
    import argparse
    import sys

    def target():
        parser = argparse.ArgumentParser()
        replay_command.replay_arguments(parser)
        sys.exit(replay_command.run_replay(parser.parse_args([file, "--steps", "3"])))

    return jobs(folder, target, 2, setup=setup)


def test_a_replay_that_cannot_be_written_is_shown(jobs, tmp_path):
    file = a_step(tmp_path / "step.jsonl")

    def setup(rank: int) -> None:
        Path("torchcoll-runs").touch()

    job = played(jobs, tmp_path / "job", file, setup)
    assert job.codes() == [2, 0]
    assert "torchcoll: error: output: got torchcoll-runs/" in job.text(0)
    assert "all_reduce" in job.text(0, "stdout")
