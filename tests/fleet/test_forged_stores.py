"""SQLite files that are damaged, or that somebody made to be a store: one line, exit code 3."""

import random
import shutil
import sqlite3
from contextlib import closing

import pytest
from made_stores import made_files

from torchcoll.cli import main

COMMANDS = (
    ("nightly", "STORE", "--night", "last"),
    ("nightly", "STORE", "--night", "2026-01-02"),
    ("collect", "--into", "STORE", "--prune", "400d"),
    ("collect", "runs", "--into", "STORE"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with files of 24 runs and a store of them."""
    folder = tmp_path_factory.mktemp("whole")
    made_files(folder / "runs", 24)
    assert main(["collect", str(folder / "runs"), "--into", str(folder / "store.sqlite")]) == 0
    return folder


@pytest.fixture
def folder(whole, tmp_path, monkeypatch):
    copy = shutil.copytree(whole, tmp_path / "copy")
    monkeypatch.chdir(copy)
    return copy


def change(folder, *statements):
    with closing(sqlite3.connect(folder / "store.sqlite")) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def run_command(command, capsys):
    code = main([argument.replace("STORE", "store.sqlite") for argument in command])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_whole_store(folder, capsys, command):
    """None of them is refused; nightly finds nodes missing."""
    code, out, _ = run_command(command, capsys)
    assert code == (command[0] == "nightly")
    assert out


READERS = [command for command in COMMANDS if command[0] == "nightly"]


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE environments SET facts = '{'",
        "UPDATE case_keys SET key = '{}'",
        "UPDATE case_keys SET key = json_set(key, '$.ranks', 90000000)",
        "UPDATE case_keys SET key = json_set(key, '$.case.collective', 'none')",
        "UPDATE meta SET version = 'x'",
        "UPDATE cases SET time_ns = 'x'",
        "UPDATE cases SET case_key = 2147483647 WHERE case_key = 1",
        "UPDATE runs SET run_id = CAST(x'ff' AS TEXT) || id",
        "UPDATE runs SET environment_id = 77",
        "DROP TABLE cases",
        "ALTER TABLE runs RENAME COLUMN node TO host",
    ],
)
def test_rows_that_no_store_has(folder, capsys, command, statement):
    change(folder, statement)
    code, _, err = run_command(command, capsys)
    # Overviews that need no such column may still answer.
    assert code == 3 or (code in (0, 1, 2) and "--night" in command)
    if code == 3:
        assert err.count("\n") == 1
        assert err.startswith("torchcoll: error: store: got store.sqlite, damaged: ")
        assert "expected an SQLite file as torchcoll collect writes it" in err


def test_bytes_that_were_changed(folder, capsys):
    """A damaged store ends with a code of its own, never with a traceback."""
    draws = random.Random(42)
    data = (folder / "store.sqlite").read_bytes()
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(draws.choice((1, 3, 20))):
            damaged[draws.randrange(16, len(damaged))] = draws.randrange(256)
        (folder / "store.sqlite").write_bytes(damaged)
        code, _, err = run_command(draws.choice((COMMANDS[0], COMMANDS[1])), capsys)
        assert code in (0, 1, 2, 3)
        assert err.count("\n") <= 3
