"""A disk that refuses what is written: exit code 1, one line that is true of the command, and no
file that stands in the way of the same command.

The system refuses a file longer than a limit of the process, as a full disk does.
"""

import contextlib
import errno
import os
import resource
from pathlib import Path

import pytest
from made_runs import measured, run
from made_stores import made_files
from sqlalchemy import Engine, event

from torchcoll.cli import main
from torchcoll.core.errors import DiskFullError, UsageError
from torchcoll.core.file import save
from torchcoll.core.opening import not_written

EXAMPLES = Path(__file__).parents[1] / "examples"
LIMIT_BYTES = 100


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = [1 << n for n in range(10, 24)]
    for number in range(6):
        cases = [measured(20_000 + size + number, size_bytes=size) for size in sizes]
        save(run(*cases, header={"run_id": f"r{number}"}), tmp_path / f"run{number}.jsonl")
    return tmp_path


@contextlib.contextmanager
def full_disk():
    earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, earlier[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, earlier)


TABLE = """# nThread 1 nGpus 1 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid    100 on  vm device  0 [0x01] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid    101 on  vm device  1 [0x02] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    30.00   34.95   34.95      0
"""


@pytest.mark.parametrize(
    "command",
    [
        "report run0.jsonl -o out.html",
        "report run0.jsonl -o out.md",
        "convert run0.jsonl -o out.csv",
        "plot run0.jsonl -o out.svg",
        "plot run0.jsonl -o out.png",
        "check run0.jsonl --junit out.xml",
        "check run0.jsonl --health out.json",
        "compare run0.jsonl run1.jsonl --fail-on not-comparable --junit out.xml",
        "check run0.jsonl --metrics out.prom",
        "model fit run0.jsonl run1.jsonl run2.jsonl run3.jsonl -o out.json",
        "check --learn run0.jsonl run1.jsonl run2.jsonl run3.jsonl -o out.json",
        "convert table.txt --collective all_reduce -o out.jsonl",
        f"trace {EXAMPLES / 'stuck-rank' / 'fr_rank0.json'} -o out.jsonl",
    ],
)
def test_commands_that_write_a_file(folder, capsys, command):
    (folder / "table.txt").write_text(TABLE)
    with full_disk():
        code = main(command.split())
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 1, error
    assert error.startswith("torchcoll: error: ")
    assert "Make room, then run the same command again." in error
    assert "--resume" not in error
    assert list(folder.glob("*out*")) == []
    assert main(command.split()) == 0


def test_what_is_there_stays(folder, capsys):
    (folder / "out.csv").write_text("before")
    with full_disk():
        assert main(["convert", "run0.jsonl", "-o", "out.csv", "--force"]) == 1
    assert (folder / "out.csv").read_text() == "before"
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_several_runs_of_one_import_leave_no_cut_file(folder, capsys):
    """The first file fits, the second does not."""
    run0, out = folder / "run0.jsonl", folder / "out.jsonl"
    with full_disk(), pytest.raises(DiskFullError):
        save(run(measured(1000)), out)
    assert not out.exists()
    assert run0.exists()


def test_a_matrix(folder, capsys):
    with full_disk():
        code = main(
            [
                "matrix",
                "--env",
                "NCCL_ALGO=Ring,Tree",
                "-o",
                "m",
                "--",
                "python",
                "-m",
                "torchcoll.allreduce",
            ]
        )
    assert code == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "Make room" in error


def test_a_store(tmp_path, monkeypatch, capsys):
    """SQLite has a limit for the pages of a file, and then says that the disk is full."""
    monkeypatch.chdir(tmp_path)
    made_files(tmp_path / "runs", 200)

    def limit(connection, _):
        connection.execute("PRAGMA max_page_count = 60")

    event.listen(Engine, "connect", limit)
    try:
        code = main(["collect", "runs", "--into", "store.sqlite"])
    finally:
        event.remove(Engine, "connect", limit)
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 1
    assert error == (
        "torchcoll: error: store: got store.sqlite: database or disk is full, expected room for "
        "it on the disk. What was collected before is kept: make room, then run the command again."
    )
    assert main(["collect", "runs", "--into", "store.sqlite"]) == 0


def test_a_copy_of_stdin(folder, capsys, monkeypatch):
    with open(folder / "run0.jsonl") as pipe, full_disk():
        monkeypatch.setattr("sys.stdin", pipe)
        monkeypatch.setattr("torchcoll.core.opening._stdin", [])  # read once by each process
        assert main(["show", "-"]) == 1
    assert "Make room" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_what_a_disk_refuses(number):
    error = not_written("output", "a", OSError(number, os.strerror(number)))
    assert isinstance(error, DiskFullError)
    assert not isinstance(error, UsageError)
    assert error.exit_code == 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENAMETOOLONG])
def test_a_path_that_cannot_be_written_is_a_wrong_argument(number):
    assert not_written("output", "a", OSError(number, os.strerror(number))).exit_code == 2
