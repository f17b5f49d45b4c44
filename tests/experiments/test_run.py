"""Runing: what is recorded, what counts, and going on after being killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from error_form import error_line, error_tail, error_text, expecting
from ranks import past

from torchcoll import load
from torchcoll.cli import main
from torchcoll.core.errors import UnreadableError
from torchcoll.machine import processes
from torchcoll.parts.experiments.folder import _is_run
from torchcoll.reading.inputs import load_all
from torchcoll.stats.sides import side

FAKE = Path(__file__).parents[1] / "fake_launch.py"


def arguments(*options, words=(), runs=1):
    command = [sys.executable, "-S", str(FAKE), *words]
    return ["matrix", "-o", "D", "--runs", str(runs), *options, "--", *command]


def matrix(*options, **how):
    return main(arguments(*options, **how))


def manifest():
    return [json.loads(line) for line in Path("D/manifest.jsonl").read_text().splitlines()]


def recorded_runs():
    return [record for record in manifest() if record["record"] == "run"]


def files(folder="D"):
    return sorted(p.name for p in Path(folder).iterdir() if p.is_file() and p.name[0] != ".")


@pytest.fixture(autouse=True)
def _here(in_tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    monkeypatch.setattr(processes, "_TICK_S", 0.05)
    for name in ("NCCL_ALGO", "NCCL_PROTO", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)


def only():
    (record,) = recorded_runs()
    return record


def test_two_cells_twice(capsys):
    assert matrix("--env", "NCCL_ALGO=,Ring", runs=2) == 0
    out, err = capsys.readouterr()
    expected = ["Ring-1.jsonl", "Ring-2.jsonl", "auto-1.jsonl", "auto-2.jsonl"]
    assert files() == [*expected, "manifest.jsonl"]
    runs = {name: load(f"D/{name}") for name in expected}
    assert runs["Ring-2.jsonl"].labels == {"cell": "Ring", "run": "2"}
    assert runs["Ring-2.jsonl"].environment["variables"]["NCCL_ALGO"] == "Ring"
    assert "NCCL_ALGO" not in runs["auto-1.jsonl"].environment["variables"]
    first = recorded_runs()[0]
    assert first["status"] == "ok" and first["exit_code"] == 0
    assert first["command"][-4:] == ["--label", f"cell={first['cell']}", "--label", "run=1"]
    assert Path("D", first["log"]).read_text() == f"fake run of cell {first['cell']}\n"
    lines = err.splitlines()
    titles = {"auto": "NCCL_ALGO unset", "Ring": "NCCL_ALGO=Ring"}
    assert [line.split(":")[0] for line in lines] == [
        f"[{n}/4] {titles[record['cell']]}, run {record['run']}"
        for n, record in enumerate(recorded_runs(), 1)
    ]
    assert all(": ok, " in line for line in lines)
    rows = [line.split() for line in out.splitlines() if line]
    assert rows[2][:4] == ["auto", "2", "of", "2"] and rows[3][:4] == ["Ring", "2", "of", "2"]
    assert rows[-2] == ["results,", "logs", "and", "manifest:", "D"]
    step = "torchcoll compare 'auto=D/auto-[0-9]*.jsonl' 'Ring=D/Ring-[0-9]*.jsonl'"
    assert out.splitlines()[-1] == f"Next: {step}"


def test_started_again_only_what_is_missing_runs(capsys):
    assert matrix("--env", "NCCL_ALGO=,Ring") == 0
    before = manifest()
    os.remove("D/Ring-1.jsonl")
    capsys.readouterr()
    assert matrix("--env", "NCCL_ALGO=,Ring", "--quiet", runs=2) == 0
    assert capsys.readouterr().err == ""
    added = manifest()[len(before) :]
    assert manifest()[: len(before)] == before
    assert [(r["cell"], r["run"]) for r in added[:1]] == [("Ring", 1)]
    assert sorted((r["cell"], r["run"]) for r in added[1:]) == [("Ring", 2), ("auto", 2)]
    assert matrix("--env", "NCCL_ALGO=,Ring", runs=2) == 0
    assert len(manifest()) == len(before) + 3
    assert capsys.readouterr().err == "4 of 4 runs are done\n"


def test_readers_take_the_folder_and_the_glob(capsys):
    assert matrix(runs=2) == 0
    assert len(side("base", "D").runs) == 2
    assert len(load_all(sorted(str(p) for p in Path("D").glob("*.jsonl")))) == 2
    capsys.readouterr()
    assert main(["show", *map(str, sorted(Path("D").glob("*.jsonl"))), "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    # The name alone makes no manifest.
    os.mkdir("E")
    os.rename("D/auto-1.jsonl", "E/manifest.jsonl")
    assert len(load_all(["E/manifest.jsonl"])) == len(side("base", "E").runs) == 1
    os.remove("D/auto-2.jsonl")
    with pytest.raises(UnreadableError, match=expecting("a folder with result files")):
        side("base", "D")


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("refuse", error_text("exit code 2: sizes", "1KB", "a number")),
        ("cut", "exit code 1: fake run of cell auto"),
        ("killed", "signal 6: fake run of cell auto"),
        ("wrong-label", "its file is of cell another, not auto"),
        ("lose=NCCL_ALGO", "NCCL_ALGO did not reach the ranks"),
        ("differ=NCCL_ALGO", "NCCL_ALGO did not reach rank 1"),
    ],
)
def test_a_launch_that_does_not_count(word, reason, capsys):
    options = ["--env", "NCCL_ALGO=Ring"] if "NCCL" in word else []
    assert matrix(*options, words=[word]) == 1
    record = only()
    assert (record["status"], record["reason"], record["file"]) == ("failed", reason, None)
    out, err = capsys.readouterr()
    title = "NCCL_ALGO=Ring" if "NCCL" in word else "auto"
    assert err.startswith(f"[1/1] {title}, run 1: failed, ")
    assert err.endswith(f" s: {reason}\n")
    assert f"{record['cell']}: {reason}" in out
    assert "without a result: 1 of 1; the same command again runs them" in out
    wrote = word not in ("refuse", "killed")
    assert files() == ["manifest.jsonl"]
    assert files("D/aside") == ([f"{record['cell']}-1.1.jsonl"] if wrote else [])
    assert record["aside"] == (f"aside/{record['cell']}-1.1.jsonl" if wrote else None)
    # It is missing, so it runs again; nothing is lost.
    assert matrix(*options, words=[word]) == 1
    assert len(recorded_runs()) == 2
    assert len(files("D/aside")) == 2 * wrote


def test_a_script_that_writes_no_file_ends_the_matrix(capsys):
    """It ends without an error, so it ignores what torchcoll adds. Two runs were asked."""
    assert matrix(words=["silent"], runs=2) == 2
    record = only()
    assert (record["status"], record["reason"]) == ("failed", "no result file")
    assert (record["exit_code"], record["file"], record["aside"]) == (0, None, None)
    assert "Its output is in D/logs/auto-1.log.\n" in capsys.readouterr().err


def test_a_silent_signal():
    command = ["/bin/sh", "-c", "kill -9 $$ # torchcoll", "torchcoll.sh"]
    Path("torchcoll.sh").write_text("# torchcoll\n")
    assert main(["matrix", "-o", "D", "--runs", "1", "--", *command]) == 1
    assert only()["reason"] == "signal 9: no result file"


def test_a_folder_that_is_removed_meanwhile(capsys):
    assert matrix(words=["remove"], runs=2) == 1
    assert capsys.readouterr().err.splitlines()[-1] == error_line(
        "folder D",
        "removed or replaced while its matrix ran",
        "one that stays. Start the matrix again.",
    )

    assert not Path("D").exists()


def test_what_lies_beside_a_file_goes_with_it():
    for attempt in (1, 2):
        assert matrix(words=["cut", "log"]) == 1
        assert recorded_runs()[-1]["aside"] == f"aside/auto-1.{attempt}.jsonl"
    names = [f"auto-1.{n}.jsonl{ending}" for n in (1, 2) for ending in ("", ".log")]
    assert sorted(path.name for path in Path("D/aside").iterdir()) == names
    assert files() == ["manifest.jsonl"]


@pytest.mark.parametrize(
    ("launcher", "hint"),
    [
        ("Open MPI", ": mpirun needs -x NCCL_ALGO"),
        ("MPICH", ": mpiexec needs -genvlist NCCL_ALGO"),
        ("srun", ": srun needs --export=ALL"),
    ],
)
def test_how_a_variable_is_passed_on(launcher, hint):
    words = ["lose=NCCL_ALGO", f"launcher={launcher}"]
    assert matrix("--env", "NCCL_ALGO=Ring", words=words) == 1
    assert only()["reason"] == f"NCCL_ALGO did not reach the ranks{hint}"


def test_a_variable_that_is_back(monkeypatch):
    """Such as a launcher's configuration that sets it."""
    (Path.cwd() / "run").write_text(
        f'#!/bin/sh\n# torchcoll\nNCCL_ALGO=Tree exec {sys.executable} -S {FAKE} "$@"\n'
    )
    os.chmod("run", 0o755)
    options = ["-o", "D", "--runs", "1", "--env", "NCCL_ALGO=,Ring"]
    assert main(["matrix", *options, "--", "./run"]) == 1
    assert {r["cell"]: r["reason"] for r in recorded_runs()} == {
        "auto": "NCCL_ALGO is Tree on rank 0, and was to be unset",
        "Ring": "NCCL_ALGO is Tree on rank 0, not Ring",
    }


def test_ranks_that_do_not_find_each_other():
    """mpiexec of another MPI: each process is rank 0 of 1."""
    words = ["ranks=1", "{nproc}"]
    assert matrix("--axis", "nproc=1,2", words=words) == 1
    assert {r["cell"]: r["reason"] for r in recorded_runs()} == {
        "nproc1": "",
        "nproc2": "nproc is 2, and 1 rank found each other",
    }


def test_wrong_cases_are_kept_and_said(capsys):
    """The file is whole, and its readers know what a wrong case is worth."""
    assert matrix(words=["wrong"]) == 1
    record = only()
    assert (record["status"], record["file"]) == ("failed", "auto-1.jsonl")
    text = "1 wrong of 1 case: all_reduce 8 float32 sum on gloo: 3 elements differ"
    assert record["reason"] == text
    assert matrix(words=["wrong"]) == 1  # done, and not right
    assert len(recorded_runs()) == 1
    assert f"auto: {text}" in capsys.readouterr().out


def test_a_launcher_that_fails_in_the_end():
    assert matrix(words=["exit=7"]) == 1
    record = only()
    assert record["reason"] == "exit code 7 although all its cases are ok"
    assert record["file"] == "auto-1.jsonl" and record["exit_code"] == 7


def test_a_program_that_cannot_be_started(in_tmp_path):
    (in_tmp_path / "torchcoll-run").write_text("#!/no/such/shell\ntorchcoll\n")
    os.chmod("torchcoll-run", 0o755)
    words = ["--runs", "1", "-o", "D", "--", "./torchcoll-run"]
    assert main(["matrix", *words]) == 1
    assert only()["reason"] == "./torchcoll-run: No such file or directory"


def test_what_the_machine_lacks_is_tried_once(capsys):
    """NCCL 2.24 and newer say so of NVLS, CollNet, ...: no failure of the matrix."""
    words = ["{how}"]
    assert matrix("--axis", "how=fine,lacking", words=words, runs=2) == 0
    found = {(r["cell"], r["run"]): r["status"] for r in recorded_runs()}
    assert found == {
        ("how_fine", 1): "ok",
        ("how_fine", 2): "ok",
        ("how_lacking", 1): "unavailable",
    }
    assert "how_lacking: NCCL has not got it on this machine" in capsys.readouterr().out
    assert matrix("--axis", "how=fine,lacking", words=words, runs=2) == 0
    assert len(recorded_runs()) == 3


@pytest.mark.parametrize(
    ("version", "backend", "ignored"),
    # gloo's torch has an NCCL too, which nobody asks.
    [("2.23.4", "nccl", True), ("2.24.3", "nccl", False), ("2.23.4", "gloo", False)],
)
def test_a_function_prefix_that_nccl_ignores(version, backend, ignored):
    words = ["mapped=/x/libnccl.so.2", f"version={version}", f"backend={backend}"]
    code = matrix("--env", "NCCL_ALGO=allreduce:tree", words=words)
    reason = "NCCL 2.23.4 ignores NCCL_ALGO=allreduce:tree: give --nccl-version 2.23.4"
    assert (code, only()["reason"]) == ((1, reason) if ignored else (0, ""))


def test_the_library_that_was_really_mapped(in_tmp_path):
    for folder in ("a", "b"):
        (in_tmp_path / folder).mkdir()
        (in_tmp_path / folder / "libucc.so.1").touch()
    a, b = (str(in_tmp_path / folder / "libucc.so.1") for folder in ("a", "b"))
    # ld.so only warns of an empty file: nothing is loaded, as of a library for other hosts.
    assert matrix("--axis", f"library={a},{b}", words=[f"mapped={a}", "version=1.2"]) == 1
    keys = ("status", "reason", "file")
    found = {r["cell"]: tuple(r[key] for key in keys) for r in recorded_runs()}
    assert found == {
        "a-libucc.so.1": ("ok", "", "a-libucc.so.1-1.jsonl"),
        "b-libucc.so.1": (
            "failed",
            f"rank 0: LD_PRELOAD did not load {b}; mapped is {a}",
            None,
        ),
    }


def test_the_environment_that_was_really_used(in_tmp_path):
    for folder in ("a", "b"):
        (in_tmp_path / folder / "bin").mkdir(parents=True)
        (in_tmp_path / folder / "bin" / "python").touch()
    a, b = in_tmp_path / "a", in_tmp_path / "b"
    torch = f"{a}/lib/libtorch_cpu.so"
    assert matrix("--axis", f"venv={a},{b}", words=[f"mapped={torch}", "version=2.13"]) == 1
    assert {r["cell"]: r["reason"] for r in recorded_runs()} == {
        "a": "",
        "b": f"rank 0: torch is mapped from {torch}, not from {b}",
    }
    assert matrix("--axis", f"venv={a}", "-o", "E") == 1
    record = json.loads(Path("E/manifest.jsonl").read_text().splitlines()[1])
    assert record["reason"] == "its file does not say which libraries were mapped"


def test_a_cell_that_hangs(capsys, monkeypatch):
    """TERM does not end it, and its rank is in a session of its own."""
    mark = f"{os.path.realpath('D')}//"

    class Time:  # ten minutes pass once the run and its rank are there, however long that takes
        sleep, passed_s = time.sleep, 0

        def monotonic(self):
            if len(processes.marked(mark)) > 1:
                self.passed_s = 600
            return time.monotonic() + self.passed_s

    monkeypatch.setattr(processes, "time", Time())
    words = ["{how}"]
    options = ["--axis", "how=stubborn,fine", "--cell-timeout", "300"]
    assert matrix(*options, words=words) == 1
    assert {r["cell"]: (r["status"], r["reason"]) for r in recorded_runs()} == {
        "how_stubborn": ("timeout", "ended after --cell-timeout 300 s"),
        "how_fine": ("ok", ""),
    }
    assert processes.marked(mark) == []
    assert files("D/aside") == ["how_stubborn-1.1.jsonl"]
    assert "how_stubborn: ended after --cell-timeout 300 s" in capsys.readouterr().out


def started(*options, words):
    """A matrix in a process of its own, once its first run hangs."""
    command = [sys.executable, "-m", "torchcoll", *arguments(*options, words=words, runs=2)]
    with open("out", "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    began = time.monotonic()
    while not any(path.stat().st_size for path in Path("D").glob("*-1.jsonl")):
        assert not past(began, 60) and process.poll() is None, Path("out").read_text()
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_and_begun_again(number):
    options = ["--env", "NCCL_ALGO=,Ring"]
    process = started(*options, words=["once=hang"])
    mark = f"{os.path.realpath('D')}//"
    assert len(processes.marked(mark)) == 1
    process.send_signal(number)
    code = process.wait()
    if number == signal.SIGKILL:
        assert code == -number
        assert len(processes.marked(mark)) == 1, "the run goes on"
        assert recorded_runs() == []
    else:
        assert code == 128 + number
        assert only()["status"] == "interrupted"
        stated = Path("out").read_text()
        assert f"interrupted by {signal.Signals(number).name}\n" in stated
        assert "without a result: 4 of 4; the same command again runs them\n" in stated
        assert processes.marked(mark) == []
    assert matrix(*options, words=["once=hang"], runs=2) == 0
    assert processes.marked(mark) == []
    counted = [(r["cell"], r["run"]) for r in recorded_runs() if r["status"] == "ok"]
    assert sorted(counted) == [("Ring", 1), ("Ring", 2), ("auto", 1), ("auto", 2)]
    # What the stopped run wrote is kept, and no reader of the folder meets it.
    assert len(files("D/aside")) == 1
    assert len(side("base", "D").runs) == 4


def test_ctrl_c_while_a_launch_is_being_started_leaves_nothing(monkeypatch):
    """The process runs already, and Popen has not returned: busy machines make that moment long."""
    children = []

    def interrupted(*words, popen=subprocess.Popen, **options):
        children.append(popen(*words, **options))
        while not processes.marked("here"):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(processes.subprocess, "Popen", interrupted)
    with open("log", "wb") as log, pytest.raises(KeyboardInterrupt):
        processes.launch(["sleep", "60"], {"PATH": os.environ["PATH"]}, "here", log)
    assert processes.marked("here") == []
    assert children[0].wait() == -signal.SIGKILL


def test_one_matrix_at_a_time(capsys):
    process = started(words=["hang"])
    try:
        assert matrix(words=["hang"]) == 2
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    line = capsys.readouterr().err
    assert line.startswith(error_line("output", f"D, in which process {process.pid} on "))
    assert line.endswith(
        error_tail("works", "one matrix at a time in a folder. Wait for it, or end it.\n")
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"words": ["other"]},
            error_text("command of D", "other", "nothing, as it was begun with. "),
        ),
        (
            {"options": ["--env", "NCCL_ALGO=Tree,Ring"]},
            error_text("cells of D", "Ring, Tree", "Ring, auto, as it was begun with. "),
        ),
        (
            {"options": ["--env", "NCCL_ALGO=,Ring", "--env", "NCCL_PROTO=LL"]},
            error_text("cells of D", "Ring, unset", "Ring, auto, as it was begun with. "),
        ),
        (
            {"options": ["--env", "NCCL_ALGO=,Ring", "--env", "FOO=1"]},
            error_text("cell auto of D", "no NCCL_ALGO FOO=1",
                "no NCCL_ALGO, as it was begun with. "),
        ),
    ],
)  # fmt: skip
def test_another_spec_on_the_same_folder(change, line, capsys):
    assert matrix("--env", "NCCL_ALGO=,Ring") == 0
    before = Path("D/manifest.jsonl").read_bytes()
    capsys.readouterr()
    options = change.get("options", ["--env", "NCCL_ALGO=,Ring"])
    assert matrix("--quiet", *options, words=change.get("words", [])) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    line = line.format(fake=FAKE)
    action = "Start with the same again, or name another folder with -o."
    assert error == f"torchcoll: error: {line}{action}"
    assert Path("D/manifest.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "spec", [[], {"command": 5, "cells": []}, {"command": ["python"], "cells": [1]}]
)
def test_a_manifest_whose_plan_was_edited(spec, capsys):
    Path("D").mkdir()
    header = {"record": "matrix", "schema": "torchcoll-matrix/1", "spec": spec}
    Path("D/manifest.jsonl").write_text(json.dumps(header) + "\n")
    assert matrix() == 3
    line = error_line("manifest", "D/manifest.jsonl", "one of torchcoll-matrix/1")
    assert capsys.readouterr().err.startswith(line)


@pytest.mark.parametrize("change", [{"cell": ["auto"]}, {"file": 5}])
def test_a_launch_in_the_manifest_that_was_edited_runs_again(change):
    assert matrix() == 0
    header, launch = manifest()
    lines = [json.dumps(header), json.dumps(launch | change)]
    Path("D/manifest.jsonl").write_text("\n".join(lines) + "\n")
    assert matrix() == 0
    assert len(manifest()) == 3


def test_a_manifest_that_was_cut_off():
    """Killed while it wrote: the run of that line runs again, the others do not."""
    assert matrix("--env", "NCCL_ALGO=,Ring") == 0
    text = Path("D/manifest.jsonl").read_text()
    last = recorded_runs()[-1]["cell"]
    Path("D/manifest.jsonl").write_text(text[:-40])
    assert matrix("--env", "NCCL_ALGO=,Ring") == 0
    lines = Path("D/manifest.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert lines[2] == text.splitlines()[2][:-39]
    assert json.loads(lines[3])["cell"] == last
    assert files("D/aside") == [f"{last}-1.1.jsonl"]
    # Killed before the first line, and within it.
    for folder, text in (("E", None), ("F", '{"record":"mat')):
        Path(folder, "logs").mkdir(parents=True)
        if text:
            Path(folder, "manifest.jsonl").write_text(text)
        assert matrix("-o", folder) == 0


NO_MANIFEST = error_text(
    "manifest",
    "D/manifest.jsonl",
    "one of torchcoll-matrix/1. Name another folder with -o, or remove the file "
    "where it is of no use.",
)


@pytest.mark.parametrize(
    ("name", "text", "code", "line"),
    [
        (
            "run.jsonl",
            "",
            2,
            error_text(
                "output",
                "D, which holds run.jsonl",
                "a new or empty folder, or that of the same matrix",
            ),
        ),
        (
            "manifest.jsonl",
            '{"schema":"torchcoll-matrix/2"}\n',
            3,
            NO_MANIFEST,
        ),
        # One line that its program did not end: not ours to remove or to write behind.
        ("manifest.jsonl", '{"name":"of another program"}', 3, NO_MANIFEST),
        (
            "manifest.jsonl",
            '{"record":"matrix","schema":"torchcoll-matrix/1","other',
            3,
            NO_MANIFEST,
        ),
    ],
)
def test_another_folder(name, text, code, line, capsys):
    Path("D").mkdir()
    Path("D", name).write_text(text)
    assert matrix() == code
    assert capsys.readouterr().err == f"torchcoll: error: {line}\n"
    assert Path("D", name).read_text() == text


def test_the_reason_is_not_what_torchrun_says_of_all_tracebacks():
    from torchcoll.parts.experiments.run import _last_error

    footer = (
        "traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    text = (
        'Traceback (most recent call last):\n  File "x.py", line 1\n'
        "RuntimeError: makeDeviceForHostname(): unsupported gloo device\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + footer
    )
    assert _last_error(text) == "RuntimeError: makeDeviceForHostname(): unsupported gloo device"
    assert _last_error(f"{error_line('device', 'none')}\n{text}") == error_text("device", "none")
    assert _last_error("nothing else\n") == "nothing else"


@pytest.mark.parametrize("seconds", ["7", -1, 1e12, {}, True, float("nan")])
def test_a_launch_whose_seconds_are_none_runs_again(seconds):
    line = {"record": "run", "cell": "a", "run": 1, "status": "ok", "reason": ""}
    assert _is_run({**line, "seconds": 7.5}) and _is_run(line)
    assert not _is_run({**line, "seconds": seconds})
