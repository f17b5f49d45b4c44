"""Links that somebody put into the folder of a matrix: refused, nothing is written through them.

The folder may be in a place that others can write to. Each link points to a file or a folder of the
user who runs the matrix, which must stay as it was.
"""

import os
import sys
from pathlib import Path

import pytest

from torchcoll.cli import main
from torchcoll.machine import processes

FAKE = Path(__file__).parents[1] / "fake_launch.py"
COMMAND = ["--", sys.executable, "-S", str(FAKE)]


@pytest.fixture(autouse=True)
def _here(in_tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    monkeypatch.setattr(processes, "_TICK_S", 0.05)


def matrix(*options):
    return main(["matrix", "-o", "D", "--runs", "1", *options, *COMMAND])


def versus(*options):
    return main(["versus", "--env", "NCCL_ALGO=Ring,Tree", "-o", "D", *options, *COMMAND])


def one_error(capsys):
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("torchcoll: error: ")]) == 1
    assert not [line for line in lines if "Traceback" in line]
    return lines[-1]


@pytest.mark.parametrize("command", [matrix, versus])
@pytest.mark.parametrize("name", [".lock", "manifest.jsonl"])
@pytest.mark.parametrize("content", ["precious", None])
def test_a_link_in_place_of_a_file(capsys, command, name, content):
    """Through one that dangles no file is made."""
    victim = Path("victim")
    if content:
        victim.write_text(content)
    os.mkdir("D")
    os.symlink("../victim", f"D/{name}")
    # versus reads the manifest first: it is none
    read = content and (command, name) == (versus, "manifest.jsonl")
    assert command() == (3 if read else 2)
    assert ("/1. Name" if read else f"{name} is a symbolic link") in one_error(capsys)
    assert (victim.read_text() if victim.exists() else None) == content


@pytest.mark.parametrize("name", ["logs", "aside"])
def test_a_link_in_place_of_a_folder(capsys, name):
    os.mkdir("elsewhere")
    os.mkdir("D")
    os.symlink("../elsewhere", f"D/{name}")
    assert matrix() == 2
    assert f"{name} is a symbolic link" in one_error(capsys)
    assert os.listdir("elsewhere") == []


def test_a_link_in_place_of_a_log(capsys):
    Path("victim").write_text("precious")
    os.makedirs("D/logs")
    os.symlink("../../victim", "D/logs/auto-1.log")
    assert matrix() == 1
    assert "1.log is a symbolic link" in one_error(capsys)
    assert Path("victim").read_text() == "precious"


def test_a_fifo_in_place_of_a_file_does_not_block(capsys):
    os.mkdir("D")
    os.mkfifo("D/.lock")
    assert matrix() == 2
    assert ".lock is a FIFO" in one_error(capsys)


def test_logs_that_become_a_link_after_the_start(capsys):
    """As somebody would do who waits for the first run."""
    os.mkdir("elsewhere")
    Path("swap.sh").write_text("mv D/logs D/was; ln -s ../elsewhere D/logs; exit 1 # torchcoll")
    words = ["--", "sh", "swap.sh"]
    assert main(["matrix", "-o", "D", "--runs", "2", *words]) == 1
    assert "logs is a symbolic link" in one_error(capsys)
    assert os.listdir("elsewhere") == []


def test_the_folder_itself_may_be_a_link():
    """It is what the user named: scratch file systems are often linked from a home."""
    os.mkdir("scratch")
    os.symlink("scratch", "D")
    assert matrix() == 0
    assert Path("scratch/manifest.jsonl").exists()
