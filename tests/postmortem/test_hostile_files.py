"""Files of a dead job that take memory, disk or each other's name, or that cannot be read."""

import contextlib
import gzip
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from torchcoll.cli import main
from torchcoll.core.bounds import MOST_RANKS
from torchcoll.parts.postmortem import log_evidence
from torchcoll.parts.postmortem.job_folder import read_folder

STUCK = Path(__file__).parents[2] / "examples" / "stuck-rank"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An empty TMPDIR."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def stuck(tmp_path):
    return Path(shutil.copytree(STUCK, tmp_path / "job"))


@contextlib.contextmanager
def longest_file(size_bytes):
    """The system refuses to write more than so many bytes into one file, as a full disk does."""
    earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, earlier[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, earlier)


def dump(last_rank):
    entry = {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce",
        "state": "scheduled",
        "input_sizes": [[4]],
        "output_sizes": [[4]],
    }
    group = {"ranks": f"[0, {last_rank}]", "name": "0", "desc": "default_pg"}
    return {"version": "2.10", "entries": [entry], "pg_config": {"0": group}}


def nccl_log(ranks):
    return (
        f"vm:1:1 [0] NCCL INFO comm 0x55 rank 0 nranks {ranks} cudaDev 0 nvmlDev 0 busId 1000 "
        "commId 0xabc - Init COMPLETE\n"
        "vm:1:1 [0] NCCL WARN NET/IB: Got completion from peer with error 12\n"
    )


LARGE = 90_000_000
REFUSED_RANK = f"ranks: got rank {LARGE}, expected 0 to {MOST_RANKS - 1}"
REFUSED_COUNT = f"ranks: got {LARGE}, expected at most {MOST_RANKS}"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("q_rank0", json.dumps(dump(LARGE)).encode(), REFUSED_RANK),
        ("q_rank0", pickle.dumps(dump(LARGE), 2), REFUSED_RANK),
        ("nccl.log", nccl_log(LARGE).encode(), REFUSED_COUNT),
    ],
    ids=["JSON", "pickle", "log"],
)
def test_a_large_rank_is_refused_before_it_takes_memory(tmp_path, capsys, name, content, expected):
    (tmp_path / name).write_bytes(content)
    assert main(["postmortem", str(tmp_path)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{name} ({expected})" in err
    assert err.count("\n") == 1


def test_ranks_up_to_the_limit_are_a_count(tmp_path, capsys):
    (tmp_path / "q_rank0").write_text(json.dumps(dump(MOST_RANKS - 1)))
    (tmp_path / "nccl.log").write_text(nccl_log(MOST_RANKS))
    assert main(["postmortem", str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["ranks"] == MOST_RANKS


def test_two_files_that_unpack_to_one_name_are_two(tmp_path, temporary):
    """A file that is compressed without the ending .gz, as some collectors leave it, beside one of
    the same name with it. Each is read with its own content.
    """
    (tmp_path / "job").mkdir()
    for name, what in (("rank1.log", "first"), ("rank1.log.gz", "second")):
        text = (
            "[rank1]: Traceback (most recent call last):\n"
            '[rank1]:   File "train.py", line 5, in main\n'
            f"[rank1]: ValueError: {what}\n"
        )
        (tmp_path / "job" / name).write_bytes(gzip.compress(text.encode()))
    events = [event for job in read_folder(str(tmp_path / "job")).jobs for event in job.events]
    assert sorted((event.place.path, event.text) for event in events) == [
        ("rank1.log", "ValueError: first [train.py:5 main]"),
        ("rank1.log.gz", "ValueError: second [train.py:5 main]"),
    ]
    assert list(temporary.iterdir()) == []


def test_one_compressed_file_at_a_time_is_unpacked(stuck, temporary, capsys, monkeypatch):
    for path in stuck.glob("rank*.log"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    read, unpacked = log_evidence.read_evidence, []

    def spy(path, shown):
        unpacked.append(sum(each.is_file() for each in temporary.rglob("*")))
        return read(path, shown)

    monkeypatch.setattr(log_evidence, "read_evidence", spy)
    assert main(["postmortem", str(stuck), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["culprits"] == [1]
    assert unpacked == [1, 1, 1, 1]
    assert list(temporary.iterdir()) == []


def test_what_could_not_be_unpacked_is_in_the_answer_and_in_the_exit_code(stuck, temporary, capsys):
    text = (stuck / "rank0.log").read_bytes() + b"INFO step\n" * 200_000
    (stuck / "rank0.log").unlink()
    (stuck / "rank0.log.gz").write_bytes(gzip.compress(text))
    with longest_file(1 << 20):
        code = main(["postmortem", str(stuck)])
    out = capsys.readouterr().out
    assert code == 3
    headline = out.splitlines()[0]
    assert "rank 1" in headline
    files = len(list(stuck.iterdir()))
    assert f"1 of {files} files could not be read, such as rank0.log.gz (cannot be read (" in out
    with longest_file(1 << 20):
        assert main(["postmortem", str(stuck), "--format", "json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["unread"] == ["rank0.log.gz"]
    assert "1 of" in document["answer"]["details"][0]
    assert list(temporary.iterdir()) == []
    assert main(["postmortem", str(stuck), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["unread"], document["answer"]["details"]) == ([], [])


def test_foreign_files_are_no_unread_files(stuck, capsys):
    (stuck / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(range(256)) * 4)
    (stuck / "empty").touch()
    (stuck / "gone").symlink_to(stuck / "nowhere")
    assert main(["postmortem", str(stuck)]) == 0
    assert "could not be read" not in capsys.readouterr().out


@contextlib.contextmanager
def begun(arguments, temporary):
    """A command that has put a copy into TMPDIR. Its stdin has no end."""
    with subprocess.Popen(
        [sys.executable, "-m", "torchcoll", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
        # Below nohup SIGHUP is ignored, and what is ignored stays so in children.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    ) as process:
        while process.poll() is None and not list(temporary.iterdir()):
            time.sleep(0.01)
        yield process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_copy_of_stdin(temporary, number):
    """The pipe has no end, so the command waits for it."""
    with begun(["show", "-"], temporary) as process:
        assert list(temporary.iterdir())
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert process.stderr.read() == b""
    assert list(temporary.iterdir()) == []


def test_a_signal_leaves_no_unpacked_file(tmp_path, temporary):
    (tmp_path / "job").mkdir()
    line = b"[rank0]: RuntimeError: a line of a log that takes a while to be read\n"
    (tmp_path / "job" / "rank0.log.gz").write_bytes(gzip.compress(line * 500_000))
    with begun(["postmortem", str(tmp_path / "job")], temporary) as process:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert list(temporary.iterdir()) == []
