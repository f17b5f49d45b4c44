"""SQLite files that are damaged, or that somebody made to be a store: one line, exit code 3."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import threading
from contextlib import closing
from importlib.util import find_spec

import pytest
from made_stores import made_files
from sqlalchemy import text

from torchcoll.cli import main
from torchcoll.core.errors import UnreadableError
from torchcoll.parts.fleet import connecting
from torchcoll.parts.fleet.address import parse_address
from torchcoll.parts.fleet.connecting import Database

ENDLESS = "WITH RECURSIVE r(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM r)"
COMMANDS = (
    ("nightly", "STORE", "--night", "last"),
    ("nightly", "STORE", "--night", "2026-01-02"),
    ("report", "STORE", "-o", "page.html"),
    ("collect", "--into", "STORE", "--prune", "400d", "--dry-run"),
    ("collect", "runs", "--into", "STORE"),
)
if find_spec("pyarrow"):
    COMMANDS += (("convert", "STORE", "-o", "rows.parquet"),)


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


def check_damaged(command, capsys):
    code, _, err = run_command(command, capsys)
    assert code == 3, (command, err)
    assert err.count("\n") == 1
    assert err.startswith("torchcoll: error: store: got store.sqlite")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_whole_store(folder, capsys, command):
    """None of them is refused; nightly finds nodes missing."""
    code, out, _ = run_command(command, capsys)
    assert code == (command[0] == "nightly")
    assert out or command[0] == "report"


READERS = [command for command in COMMANDS if command[0] in ("nightly", "report")]


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE environments SET facts = '{'",
        "UPDATE environments SET facts = '[1]'",
        "UPDATE environments SET facts = '{\"torch\": 5}'",
        "UPDATE case_keys SET key = '{}'",
        "UPDATE case_keys SET key = '[]'",
        "UPDATE case_keys SET key = 'null'",
        "UPDATE case_keys SET id = id + 1000000000",
        "UPDATE case_keys SET key = json_set(key, '$.ranks', 90000000)",
        "UPDATE case_keys SET key = json_set(key, '$.statistic', 5)",
        "UPDATE case_keys SET key = json_set(key, '$.case.collective', 'none')",
        "UPDATE meta SET version = 'x'",
        "UPDATE cases SET time_ns = 'x'",
        "UPDATE cases SET time_ns = x'00ff', status = 'ok'",
        "UPDATE cases SET case_key = 2147483647 WHERE case_key = 1",
        "UPDATE cases SET case_key = -1 WHERE case_key = 1",
        "UPDATE runs SET ranks = 'x'",
        "UPDATE runs SET ranks = 90000000",
        "UPDATE runs SET run_id = CAST(id AS BLOB)",
        "UPDATE runs SET run_id = CAST(x'ff' AS TEXT) || id",
        "UPDATE runs SET environment_id = 77",
        "UPDATE runs SET start_us = 'x', received_us = 'x'",
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


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    "statements",
    [
        (
            "ALTER TABLE case_keys RENAME TO other",
            f"CREATE VIEW case_keys AS {ENDLESS} SELECT r.id AS id, o.sha256, o.key, o.collective, "
            "o.size_bytes_requested, o.dtype, o.op, o.in_place, o.backend, o.mode, o.ranks, "
            "o.statistic, o.clock FROM r, other o",
        ),
        (
            "ALTER TABLE meta RENAME TO other",
            f"CREATE VIEW meta AS {ENDLESS} SELECT id AS version, 'x' AS torchcoll, "
            "0 AS created_us FROM r WHERE id < 0",
        ),
        (
            "CREATE TRIGGER slow BEFORE INSERT ON runs BEGIN "
            "UPDATE runs SET path = hex(zeroblob(1000000)); END",
        ),
        ("ALTER TABLE runs ADD COLUMN wide AS (hex(zeroblob(400000000)))",),
        (
            "ALTER TABLE files RENAME TO other",
            "CREATE VIRTUAL TABLE files USING fts5(host, path, label, signature, fingerprint, "
            "size_bytes, sha256, runs)",
        ),
    ],
    ids=["endless view", "endless meta", "trigger", "generated column", "virtual table"],
)
def test_a_schema_that_computes_is_refused(folder, capsys, command, statements):
    try:
        change(folder, *statements)
    except sqlite3.OperationalError as error:
        pytest.skip(f"this SQLite cannot make it: {error}")
    check_damaged(command, capsys)


def test_a_query_without_an_end_ends(folder, monkeypatch):
    """Of what no check of the schema finds."""
    monkeypatch.setattr(connecting, "_MOST_STEPS", 20_000_000)
    monkeypatch.setattr(connecting, "_STEPS", 1_000_000)
    database = Database(parse_address("store.sqlite"))
    with pytest.raises(UnreadableError, match="more steps"), database.reading() as connection:
        connection.execute(text(f"{ENDLESS} SELECT max(id) FROM r")).all()


def test_a_schema_that_is_no_text(folder, capsys):
    data = (folder / "store.sqlite").read_bytes()
    assert data.count(b"CREATE TABLE case_keys") == 1
    (folder / "store.sqlite").write_bytes(
        data.replace(b"CREATE TABLE case_keys", b"CREATE TABLE \xff\xfe\xfd_keys")
    )
    for command in READERS:
        check_damaged(command, capsys)


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


def test_a_signal_ends_a_query_without_an_end(folder):
    """SQLite returns to Python now and then, which may then handle a signal."""
    database = Database(parse_address("store.sqlite"))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), database.reading() as connection:
        timer.start()
        connection.execute(text(f"{ENDLESS} SELECT max(id) FROM r")).all()
