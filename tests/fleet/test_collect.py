"""collect: each run once, whatever was killed, copied, resumed, locked or deleted in between."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import made_runs
import pytest
from made_stores import SIZES, dump, made_files, made_run
from ranks import busy

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import ExitCode, UnavailableError, UnreadableError
from torchcoll.parts.fleet import writer
from torchcoll.parts.fleet.address import parse_address
from torchcoll.parts.fleet.collect import Collected, collect
from torchcoll.parts.fleet.sources import summaries_of


def collected(store: str, *paths: str | Path) -> Collected:
    return collect([str(path) for path in paths], parse_address(store, new=True))


def numbers(result: Collected) -> tuple[int, int, int, int]:
    """Runs and cases that are new, runs that were there, runs that were replaced."""
    counts = result.counts
    return tuple(counts[name] for name in ("runs", "cases", "unchanged", "replaced"))


def test_the_answer(store, tmp_path, capsys):
    made_files(tmp_path / "runs", 4)
    for expected in (
        "collected 4 runs (12 cases) from 4 files into {}; 0 were there already\n",
        "collected 0 runs (0 cases) from 4 files into {}; 4 were there already\n",
    ):
        assert main(["collect", str(tmp_path / "runs"), "--into", store]) == 0
        assert capsys.readouterr().out == expected.format(store)


def test_a_folder_for_each_night_is_read_as_one_folder(in_tmp_path, capsys):
    """Also by nightly, which reads the files itself. Of a folder without any file no store is
    made, and nothing is said to be collected.
    """
    for number in range(2):
        folder = Path(f"nights/2026-01-0{number}")
        folder.mkdir(parents=True)
        torchcoll.save(made_run(number), folder / "run.jsonl")
    assert main(["collect", "nights", "--into", "s.sqlite"]) == 0
    assert capsys.readouterr().out.startswith("collected 2 runs (6 cases) from 2 files into ")
    assert len(summaries_of(["nights"])) == len(summaries_of(["s.sqlite"]))
    Path("empty").mkdir()
    assert main(["collect", "empty", "--into", "e.sqlite"]) == ExitCode.UNREADABLE
    out, err = capsys.readouterr()
    assert out == "" and "expected a folder with result files" in err
    assert not Path("e.sqlite").exists()


def test_the_default_store(in_tmp_path, capsys):
    made_files(Path("runs"), 1)
    assert main(["collect", "runs"]) == 0
    assert capsys.readouterr().out.endswith(" into torchcoll.sqlite; 0 were there already\n")
    assert len(summaries_of(["torchcoll.sqlite"])) == 1
    assert [path.name for path in Path().iterdir() if path.is_file()] == ["torchcoll.sqlite"]


def test_a_file_that_has_not_changed_is_not_opened(store, tmp_path, monkeypatch):
    made_files(tmp_path / "runs", 4)
    assert numbers(collected(store, tmp_path / "runs")) == (4, 12, 0, 0)

    def refuse(*_: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr("torchcoll.parts.fleet.collect.runs_with_paths", refuse)
    assert numbers(collected(store, tmp_path / "runs")) == (0, 0, 4, 0)


def test_a_copy_is_no_further_run(store, tmp_path):
    made_files(tmp_path / "runs", 4)
    collected(store, tmp_path / "runs")
    before = dump(store)
    shutil.copytree(tmp_path / "runs", tmp_path / "copies")
    assert numbers(collected(store, tmp_path / "copies")) == (0, 0, 4, 0)
    assert dump(store)["runs"] == before["runs"]


def test_a_file_that_still_grows(store, tmp_path):
    """Its header, then a case more at a time, then its end."""
    (whole,) = made_files(tmp_path / "whole", 1)
    lines = Path(whole).read_text().splitlines(keepends=True)
    growing = tmp_path / "growing.jsonl"
    states = []
    for count in range(2, len(lines) + 1):
        growing.write_text("".join(lines[:count]))
        states.append((numbers(collected(store, growing)), summaries_of([store])))
    assert [each for each, _ in states] == [(1, 0, 0, 0), *[(0, 0, 0, 1)] * 4]
    assert [len(each.run) for _, each in states] == [0, 1, 2, 3, 3]
    assert [int(each.run_status[0]) for _, each in states] == [3, 3, 3, 3, 0]
    # An older copy of it takes nothing away.
    (tmp_path / "older.jsonl").write_text("".join(lines[:4]))
    assert numbers(collected(store, tmp_path / "older.jsonl")) == (0, 0, 1, 0)
    assert len(summaries_of([store]).run) == 3


def test_two_files_of_one_run_in_one_collect(store, tmp_path):
    """The one with more of it counts, in whatever order they come."""
    (whole,) = made_files(tmp_path / "runs", 1)
    lines = Path(whole).read_text().splitlines(keepends=True)
    for name in ("a.jsonl", "z.jsonl"):
        (tmp_path / "runs" / name).write_text("".join(lines[:3]))
    assert numbers(collected(store, tmp_path / "runs")) == (1, 3, 2, 0)
    assert len(summaries_of([store]).run) == 3


def test_a_resumed_run(store, tmp_path):
    """--resume leaves FILE as it was and writes FILE.2, which is a part of the same run."""
    (whole,) = made_files(tmp_path / "runs", 1)
    lines = Path(whole).read_text().splitlines(keepends=True)
    Path(whole).write_text("".join(lines[:3]))
    assert numbers(collected(store, tmp_path / "runs" / "*")) == (1, 1, 0, 0)
    rest = made_run(0, SIZES[1:], header={"run_id": "rest", "start_utc": "2026-01-02T00:00:00Z"})
    torchcoll.save(rest, f"{whole}.2")
    assert numbers(collected(store, tmp_path / "runs" / "*")) == (0, 0, 0, 1)
    assert numbers(collected(store, f"{whole}.2")) == (0, 0, 1, 0)
    summaries = summaries_of([store])
    assert summaries.run_ids == ["run-0"]
    assert sorted(key.case.size_bytes for key in summaries.keys) == list(SIZES)
    assert int(summaries.run_status[0]) == 0


def test_packed_files(store, tmp_path):
    (path,) = made_files(tmp_path / "runs", 1)
    packed = Path(f"{path}.gz")
    packed.write_bytes(gzip.compress(Path(path).read_bytes()))
    os.unlink(path)
    assert numbers(collected(store, tmp_path / "runs")) == (1, 3, 0, 0)
    assert summaries_of([store]).paths == [str(packed)]


def test_files_that_cannot_be_read_are_named_and_the_others_collected(store, tmp_path, capsys):
    made_files(tmp_path / "runs", 3)
    (tmp_path / "runs" / "broken.jsonl").write_text('{"record":"header","schema":"torchcoll/9"}\n')
    (tmp_path / "notes.md").write_text("nothing\n")
    paths = [str(tmp_path / "runs"), str(tmp_path / "gone.jsonl"), str(tmp_path / "*.md")]
    assert main(["collect", *paths, "--into", store]) == ExitCode.FAILED
    out, err = capsys.readouterr()
    assert out.startswith("collected 3 runs (9 cases) from 3 files into ")
    assert out.endswith("; 0 were there already; 2 paths could not be read\n")
    errors = [line for line in err.splitlines() if line.startswith("torchcoll: error: ")]
    assert len(errors) == 2
    assert "broken.jsonl" in errors[0] or "broken.jsonl" in errors[1]
    assert any("gone.jsonl" in line for line in errors)
    assert f"no results in 1 file, skipped: {tmp_path / 'notes.md'}" in err


@pytest.mark.parametrize("argument", ["-", "postgresql://u@h/d"])
def test_what_is_no_file(tmp_path, argument):
    with pytest.raises(UnreadableError, match="path"):
        collected(str(tmp_path / "s.sqlite"), argument)
    assert not (tmp_path / "s.sqlite").exists()


def test_nothing_to_collect_makes_no_store(tmp_path):
    assert collected(str(tmp_path / "s.sqlite"), tmp_path / "no.jsonl").unreadable
    assert not (tmp_path / "s.sqlite").exists()


def killed_after(written: int, store: str, folder: Path) -> None:
    """Collects in a process that is killed by SIGKILL while it writes its third batch of two."""
    child = os.fork()
    if child == 0:
        batches = []
        insert = writer.insert_cases

        def insert_and_die(connection, rows):
            batches.append(1)
            if len(batches) == written:
                insert(connection, rows[:2])
                os.kill(os.getpid(), signal.SIGKILL)
            insert(connection, rows)

        writer.insert_cases = insert_and_die
        sys.modules["torchcoll.parts.fleet.collect"]._FILES = 2  # type: ignore[attr-defined]
        try:
            collect([str(folder)], parse_address(store, new=True))
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_killed_collect_loses_nothing_and_doubles_nothing(store, tmp_path):
    made_files(tmp_path / "runs", 10)
    killed_after(3, store, tmp_path / "runs")
    assert sorted(summaries_of([store]).run_ids) == ["run-0", "run-1", "run-2", "run-3"]
    assert len(summaries_of([store]).run) == 12
    assert numbers(collected(store, tmp_path / "runs")) == (6, 18, 4, 0)
    clean = str(tmp_path / "clean.sqlite")
    collected(clean, tmp_path / "runs")
    assert dump(store) == dump(clean)


def test_a_collect_that_was_killed_in_its_first_batch(store, tmp_path):
    made_files(tmp_path / "runs", 4)
    killed_after(1, store, tmp_path / "runs")
    assert numbers(collected(store, tmp_path / "runs")) == (4, 12, 0, 0)


def test_several_writers_at_once(python, store, tmp_path):
    """Four processes, whose files overlap: each run is new for exactly one of them."""
    files = made_files(tmp_path / "runs", 24)
    command = [python, "-m", "torchcoll", "collect", "--into", store]
    processes = [
        subprocess.Popen([*command, *files[first : first + 12]], stdout=subprocess.PIPE, text=True)
        for first in (0, 4, 8, 12)
    ]
    answers = [process.communicate(timeout=100 * busy())[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(int(answer.split()[1]) for answer in answers) == 24
    assert sum(int(answer.partition("; ")[2].split()[0]) for answer in answers) == 24
    clean = str(tmp_path / "clean.sqlite")
    collected(clean, tmp_path / "runs")
    assert {name: rows for name, rows in dump(store).items()} == dump(clean)


def test_a_locked_store_is_waited_for(tmp_path):
    store = str(tmp_path / "store.sqlite")
    made_files(tmp_path / "runs", 2)
    collected(store, tmp_path / "runs" / "run-000.jsonl")
    holder = sqlite3.connect(store, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, holder.rollback)
    timer.start()
    assert numbers(collected(store, tmp_path / "runs")) == (1, 3, 1, 0)
    timer.join()


def test_a_store_that_stays_locked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchcoll.parts.fleet.connecting.WAIT_S", 0.2)
    store = str(tmp_path / "store.sqlite")
    made_files(tmp_path / "runs", 2)
    collected(store, tmp_path / "runs" / "run-000.jsonl")
    holder = sqlite3.connect(store, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    command = ["collect", str(tmp_path / "runs"), "--into", store]
    assert main(command) == ExitCode.UNAVAILABLE
    error = capsys.readouterr().err
    assert "locked by another program for 0.2 s" in error
    assert error.count("\n") == 1
    holder.rollback()
    assert main(command) == 0
    assert len(summaries_of([store])) == 2


@pytest.mark.postgres
def test_a_postgresql_store_that_stays_locked(postgres_store, tmp_path, monkeypatch):
    import psycopg

    monkeypatch.setattr("torchcoll.parts.fleet.connecting.WAIT_S", 0.2)
    collected(postgres_store, *made_files(tmp_path / "runs", 2)[:1])
    with psycopg.connect(postgres_store) as holder:
        holder.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(UnavailableError, match="locked by another program"):
            collected(postgres_store, tmp_path / "runs")
    assert numbers(collected(postgres_store, tmp_path / "runs")) == (1, 3, 1, 0)


def in_mid_collect(monkeypatch, act: Callable[[], None]) -> None:
    """Calls ``act`` between the first and the second batch of two runs."""
    monkeypatch.setattr("torchcoll.parts.fleet.collect._FILES", 2)
    write = writer.StoreWriter.write
    batches: list[int] = []

    def acting(self, *arguments, **options):
        batches.append(1)
        if len(batches) == 2:
            act()
        return write(self, *arguments, **options)

    monkeypatch.setattr(writer.StoreWriter, "write", acting)


def test_a_store_that_cannot_be_created(tmp_path, capsys):
    made_files(tmp_path, 1)
    # Not even root can create a file there.
    assert main(["collect", str(tmp_path), "--into", "/proc/store.sqlite"]) == 4
    assert capsys.readouterr().err == (
        "torchcoll: error: store: got /proc/store.sqlite, expected a file that can be created. "
        "Is /proc writable?\n"
    )


def test_a_store_that_is_deleted_in_mid_collect(tmp_path, monkeypatch):
    """What was written is gone with it; that is said, and the next collect has all."""
    made_files(tmp_path / "runs", 6)
    store = str(tmp_path / "store.sqlite")
    with monkeypatch.context() as patched:
        in_mid_collect(patched, lambda: os.unlink(store))
        with pytest.raises(UnavailableError, match="deleted while it was written"):
            collected(store, tmp_path / "runs")
    assert not os.path.exists(store)
    collected(store, tmp_path / "runs")
    assert len(summaries_of([store])) == 6


@pytest.mark.postgres
def test_a_connection_that_is_cut_in_mid_collect(postgres_store, tmp_path, monkeypatch):
    """The server ends all connections, as at a restart: the batch is written once more."""
    import psycopg

    made_files(tmp_path / "runs", 6)
    insert = writer.insert_cases
    cut: list[int] = []

    def cut_once(connection, rows):
        insert(connection, rows)
        if not cut:
            cut.append(1)
            with psycopg.connect(postgres_store, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )

    monkeypatch.setattr(writer, "insert_cases", cut_once)
    monkeypatch.setattr("torchcoll.parts.fleet.connecting._PAUSE_S", 0.01)
    assert numbers(collected(postgres_store, tmp_path / "runs")) == (6, 18, 0, 0)
    assert cut
    clean = str(tmp_path / "clean.sqlite")
    collected(clean, tmp_path / "runs")
    assert dump(postgres_store) == dump(clean)


def test_a_label_that_could_be_a_number_of_hosts(store, tmp_path):
    run = made_run(1, labels={"hosts": "many"})
    torchcoll.save(run, tmp_path / "run.jsonl")
    assert numbers(collected(store, tmp_path / "run.jsonl")) == (1, 3, 0, 0)
    assert list(summaries_of([store]).nodes) == ["vm"]


def test_hostile_file_names(store, tmp_path):
    name = os.fsdecode(b"it's;\"--\n\xff.jsonl")
    torchcoll.save(made_runs.run(made_runs.measured(5)), tmp_path / name)
    assert numbers(collected(store, tmp_path / name)) == (1, 1, 0, 0)
    assert numbers(collected(store, tmp_path / name)) == (0, 0, 1, 0)
    (path,) = summaries_of([store]).paths
    assert path.endswith("it's;\"--\n\\udcff.jsonl")


def test_a_store_that_is_no_store(tmp_path):
    made_files(tmp_path / "runs", 1)
    text = tmp_path / "text.sqlite"
    text.write_text("nothing of SQLite")
    with pytest.raises(UnreadableError, match="SQLite"):
        collected(str(text), tmp_path / "runs")
    assert text.read_text() == "nothing of SQLite"
