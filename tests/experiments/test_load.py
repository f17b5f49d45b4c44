"""--load: a load that runs around each run, and what comes of one that dies."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from error_form import error_tail, error_text
from ranks import busy

from torchcoll import load
from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.machine import processes
from torchcoll.parts.experiments.blocks import make_plan
from torchcoll.parts.experiments.versus_plan import Sides, asked_of

FAKE = [sys.executable, "-S", str(Path(__file__).parents[1] / "fake_launch.py")]


@pytest.fixture(autouse=True)
def _here(in_tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    monkeypatch.setattr(processes, "_TICK_S", 0.05)
    monkeypatch.setattr(processes, "_AT_ONCE_S", 0.2 * busy())


def matrix(load, *words, runs=1):
    options = ["matrix", "-o", "D", "--quiet", "--runs", str(runs), "--load", load]
    return main([*options, "--", *FAKE, *words])


def recorded_runs():
    lines = Path("D/manifest.jsonl").read_text().splitlines()[1:]
    return {record["cell"]: record for record in map(json.loads, lines)}


def left():
    return processes.marked(f"{os.path.realpath('D')}//")


def test_with_and_without_a_load():
    """It makes a file, which it takes away when it is asked to end: so after every run."""
    text = 'trap "rm busy; exit" TERM; touch busy; while :; do sleep 0.01; done'
    assert matrix(f"none,stress=sh -c '{text}'", "look=busy") == 0
    found = recorded_runs()
    assert {name: record["status"] for name, record in found.items()} == {
        **{"none": "ok", "stress": "ok"}
    }
    assert "there: True" in Path("D", found["stress"]["log"]).read_text()
    assert "there: False" in Path("D", found["none"]["log"]).read_text()
    assert not Path("busy").exists()
    assert found["stress"]["command"].count("background:stress") == 1
    assert "--concurrent" not in found["none"]["command"]
    assert "load_log" not in found["none"]
    assert left() == []


def test_a_load_that_dies_at_once(capsys, monkeypatch):
    """Nothing is launched."""
    monkeypatch.setattr(processes, "_AT_ONCE_S", 60.0)  # however long a shell takes to start
    assert matrix("bad=sh -c 'echo no such device >&2; exit 3'") == 1
    record = recorded_runs()["bad"]
    assert (record["status"], record["file"], record["exit_code"]) == ("failed", None, None)
    ended = r"load bad ended with exit code 3 after \d+\.\d s: no such device"
    assert re.fullmatch(ended, record["reason"])
    assert not Path("D", record["log"]).exists()
    assert f"bad: {record['reason']}" in capsys.readouterr().out


def test_a_load_that_dies_while_a_launch_runs():
    text = "while ! test -s D/short-1.jsonl; do sleep 0.01; done; sleep 0.3"
    assert matrix(f"short=sh -c '{text}'", "hang") == 1
    record = recorded_runs()["short"]
    assert record["reason"].startswith("load short ended with exit code 0 after ")
    assert record["aside"] == "aside/short-1.1.jsonl"
    assert record["file"] is None
    assert left() == []


def test_a_load_that_will_not_end():
    """It ignores TERM, and has a child in a session of its own."""
    text = 'trap "" TERM; setsid sleep 60 & while :; do sleep 0.01; done'
    assert matrix(f"sh -c '{text}'") == 0
    assert recorded_runs()["sh"]["status"] == "ok"
    assert left() == []


def test_the_label_is_in_the_file(python, monkeypatch):
    """Of a real run, of one rank; comparisons then say what differs."""
    command = [python, "-m", "torchcoll.allreduce", "--sizes", "8", "-n", "2"]
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    options = ["--runs", "1", "-o", "D", "--quiet", "--load", "sleeper=sleep 60"]
    assert main(["matrix", *options, "--", *command]) == 0
    run = load("D/sleeper-1.jsonl")
    assert run.labels["concurrent"] == "background:sleeper"
    assert len(run.machine) == 2  # before and after


@pytest.mark.parametrize(
    ("load", "line"),
    [
        ("", error_text("load", "an empty text", "none or NAME=COMMAND, with commas")),
        ("none,", error_text("load", "none,", "none or NAME=COMMAND, with commas")),
        ("a=", error_text("load", "a=", "none or NAME=COMMAND, with commas")),
        ("a=sleep 1,a=sleep 2", error_text("load names", "a twice", "each value once")),
        (
            "none=sleep 1",
            error_text("load", "none=sleep 1", "another name: none is without a load"),
        ),
        ("a=no-such-program 1", error_text("load", "no-such-program", "a program in PATH")),
        ("a=sh -c 'x", error_text("load", "a=sh -c 'x", "a command (No closing quotation)")),
    ],
)
def test_what_is_no_load(load, line):
    with pytest.raises(UsageError) as caught:
        make_plan(FAKE, load=load)
    assert line in str(caught.value)


def test_one_mark_in_the_file():
    with pytest.raises(
        UsageError,
        match=error_text("^command", error_tail("--concurrent copy", "no --concurrent with")),
    ):
        make_plan([*FAKE, "--concurrent", "copy"], load="none,a=sleep 1")


def test_versus():
    """The first is the base; commas within a command are written as in all axes."""
    asked = asked_of(Sides(FAKE, load=r"none,cpu=sh -c a\,b"), "V")
    assert [(cell.name, cell.load) for cell in asked.plan.cells] == [
        ("none", ()),
        ("cpu", ("sh", "-c", "a,b")),
    ]


def test_another_load_is_another_matrix(capsys):
    assert matrix("a=sleep 60") == 0
    assert matrix("a=sleep 50") == 2
    assert (
        error_text("cell a of D", "--concurrent background:a sleep 50", "")
        in capsys.readouterr().err
    )


def test_secrets_of_a_load_are_not_in_the_manifest(capsys):
    """Neither as they were given nor as the load repeats them when it dies."""
    given = [
        'curl -H "Authorization: Bearer canary1" http://bob:canary2@h',
        "run --password canary3 --api-key=canary4",
        "X_PSK=canary5 run http://h/?sig=canary6",
    ]
    script = f"echo {given!r}; exit 3; {'; '.join(given)}".replace("'", "")
    assert matrix(f"bad=sh -c '{script}'".replace(",", r"\,")) == 1
    record = recorded_runs()["bad"]
    assert record["status"] == "failed" and "exit code 3" in record["reason"]
    text = Path("D/manifest.jsonl").read_text() + "".join(capsys.readouterr())
    assert "canary" not in text and "Bearer ***" in text
