"""What is named on a command line and is no regular file: refused at once, or read to its end."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import busy

from torchcoll.cli import main
from torchcoll.core import opening
from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.metrics import check_metrics

ROOT = Path(__file__).parents[1]
RUN = ROOT / "examples/nccl_vs_oneccl/gloo-2ranks-cpu.jsonl"
FOREIGN = ROOT / "examples/nccl_vs_oneccl/oneccl-2ranks-cpu.txt"
LONG = "x" * 300

COMMANDS = [
    "show {}",
    "log {}",
    "trace {}",
    "convert {} -o a.jsonl",
    "compare {} {run}",
    "check {run} --baseline {}",
    "plot {}",
    "convert {} -o a.csv",
    "report {} -o a.html",
    "cold {}",
    "show {} --explain",
    "curve {}",
    "scaling {}",
    "algorithms {}",
    "pairs {}",
    "model predict {} --ranks 2 --sizes 8",
]


def error_of(capsys, command: str, name: str) -> tuple[int, str]:
    code = main(shlex.split(command.format(name, run=RUN)))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("torchcoll: error: ")
    return code, line


@pytest.mark.parametrize("command", COMMANDS)
def test_what_has_no_end_is_refused(in_tmp_path, capsys, command):
    os.mkfifo("fifo")  # nobody writes to it: who opens it waits
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket")
    for name, kind in (("fifo", "a FIFO"), ("socket", "a socket"), ("/dev/zero", "a device")):
        code, line = error_of(capsys, command, name)
        assert code in (2, 3) and f"{os.path.basename(name)} is {kind}" in line
    server.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_that_is_too_long(in_tmp_path, capsys, command):
    code, line = error_of(capsys, command, LONG)
    assert code in (2, 3) and "stdout" not in line and LONG[:50] in line


def test_metrics_of_a_name_that_is_too_long(in_tmp_path):
    with pytest.raises(UsageError, match="File name too long"):
        check_metrics(f"{LONG}.prom")


@pytest.mark.parametrize("shown", ["show <(cat {run})", "show <(gzip -c {foreign})"])
def test_a_substituted_process_is_read(in_tmp_path, shown):
    """What bash makes of <(...) is the path of a pipe, which can be read once."""
    command = shown.format(run=shlex.quote(str(RUN)), foreign=shlex.quote(str(FOREIGN)))
    done = subprocess.run(
        ["bash", "-c", f"{shlex.quote(sys.executable)} -m torchcoll {command} --format csv"],
        capture_output=True,
        text=True,
        timeout=60 * busy(),
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 2


def test_a_pipe_has_no_path_to_name(in_tmp_path, capsys, pipe):
    """Nobody can open the copy that was made of it again."""
    path, file = pipe
    file.write(RUN.read_bytes())
    file.close()
    assert main(["show", path, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["path"] is None


@pytest.fixture
def pipe():
    """The path of a pipe's end to read, and its other end."""
    reading, writing = os.pipe()
    with open(writing, "wb", closefd=True) as file:
        yield f"/dev/fd/{reading}", file
    os.close(reading)


@pytest.mark.parametrize("command", ["show {}", "convert {} -o a.jsonl", "show {} --explain"])
def test_a_pipe_of_another_tool(in_tmp_path, capsys, pipe, command):
    path, file = pipe
    file.write(FOREIGN.read_bytes())
    file.close()
    assert main(shlex.split(command.format(path))) == 0
    assert "torchcoll-" not in capsys.readouterr().out  # the copy's name, which is gone afterwards


def test_a_pipe_without_an_end(pipe, monkeypatch):
    monkeypatch.setattr(opening, "_MOST_COPIED_BYTES", 1000)
    path, file = pipe
    file.write(b"0" * 1001)
    file.flush()
    with pytest.raises(UnreadableError, match=r"at most .* from a pipe"):
        opening.from_stdin(path)
