"""The end of a run is its end: threads are joined, and the file tells one story."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from datetime import timedelta

import pytest
from rank_faults import HANG, around_calls

from torchcoll.bench import communicators, session, watchdog
from torchcoll.core.file import Writer, append_end
from torchcoll.reading.inputs import load

pytestmark = pytest.mark.usefixtures("less_patience")


class Slow:
    """A client of the store that takes a second in C++ to say that there is no alarm."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def check(self, keys):
        if keys == ["alarm"]:
            self._store.wait(["never"], timedelta(seconds=1))
        return self._store.check(keys)


def late_rank_0(rank):
    """The others ask the store what keeps it, and are asking when it comes."""
    made, close = watchdog.Watchdog.__init__, session.Rendezvous.close

    def slow(self, control, store, *args, **options):
        made(self, control, Slow(store), *args, **options)

    def closed(self, *args):
        time.sleep(0.8 if rank == 0 else 0)
        close(self, *args)
        left = [thread.name for thread in threading.enumerate() if "torchcoll" in thread.name]
        assert not left, left

    watchdog.Watchdog.__init__ = slow
    session.Rendezvous.close = closed


def endings(measured):
    """(what ended the run, texts of events) in the file."""
    records = measured.records()
    ends = [(r["status"], r["exit_code"]) for r in records if r["record"] == "end"]
    return ends, [r["message"] for r in records if r["record"] == "event"][1:]


def test_no_question_is_left_when_python_ends(launch):
    """A thread that comes back from C++ then takes the process with it: none is left."""
    measured = launch("all_reduce", "--sizes 8 -n 3", 3, setup=late_rank_0).ended(0)
    assert endings(measured) == ([("complete", 0)], [])


def test_nothing_is_told_after_the_end(launch):
    """A launcher that ends what is left, after a rank that failed in leaving."""

    def ended(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)

    def setup(rank):
        communicators.Communicators.close = ended

    measured = launch("all_reduce", "--sizes 8 -n 3", 2, setup=setup).ended(0)
    assert endings(measured) == ([("complete", 0)], [])
    assert measured.errors() == []


# The file of a rank 0 that is gone.
EVENT = {"kind": "lost_rank", "message": "lost rank 0"}
END = {"status": "failed", "exit_code": 5, "wall_s": 1.0, "reason": "lost rank 0"}


def cut_short(launch, lines):
    """The file of a run, as rank 0 left it after so many of its last lines were not written."""
    measured = launch("all_reduce", "--sizes 8,16 -n 3", 2).ended(0)
    text = measured.path.read_text().splitlines(keepends=True)
    measured.path.write_text("".join(text[:-lines]))
    return measured.path, json.loads(text[0])["run_id"]


def test_another_rank_ends_the_file(launch):
    path, run_id = cut_short(launch, 1)
    before = path.read_bytes()
    assert not append_end(path, "another", EVENT, END)
    assert path.read_bytes() == before
    assert append_end(path, run_id, EVENT, END)
    run = load(path)
    assert [run.end[name] for name in ("status", "exit_code", "reason", "cases")] == [
        "failed",
        5,
        "lost rank 0",
        2,
    ]
    assert run.problems == ["failed: lost rank 0"]
    # Of several hosts each may have a rank that comes to do it.
    after = path.read_bytes()
    assert not append_end(path, run_id, EVENT, END)
    assert path.read_bytes() == after


def test_no_other_rank_ends_the_file_of_one_that_lives(tmp_path, monkeypatch):
    """One that has lost its connection may take it for lost; both would write at the same place."""
    monkeypatch.setattr("torchcoll.core.file._LOCK_TRIES", 2)
    path = tmp_path / "run.jsonl"
    writer = Writer(path)
    writer.write("header", {"schema": "torchcoll/2", "run_id": "1", "ranks": 2})
    before = path.read_bytes()
    assert not append_end(path, "1", EVENT, END)
    assert path.read_bytes() == before
    writer.close()
    assert append_end(path, "1", EVENT, END)


def test_a_rank_that_loses_its_connections_ends_no_file(launch):
    """Rank 0 lives, and tells the end alone."""

    def setup(rank):
        def cut(number, call):
            if number == 4:
                port = int(os.environ["MASTER_PORT"])
                for name in os.listdir("/proc/self/fd"):
                    with (
                        contextlib.suppress(OSError),
                        socket.socket(fileno=os.dup(int(name))) as one,
                    ):
                        if port == one.getpeername()[1]:
                            one.shutdown(socket.SHUT_RDWR)
            call()

        if rank == 1:
            around_calls("all_reduce", cut)

    measured = launch("all_reduce", "--sizes 8 -n 300 -T 60", 2, setup=setup).ended(HANG, 45)
    kinds = [record["record"] for record in measured.records()]
    assert kinds[-2:] == ["event", "end"] and kinds.count("end") == 1
    run = measured.run
    assert "lost rank 1" in run.end["reason"]
    assert run.problems == [f"failed: {run.end['reason']}"]


def test_a_record_that_was_cut_off_stays_alone(launch):
    path, run_id = cut_short(launch, 1)
    with open(path, "ab") as file:
        file.write(b'{"record":"case","ca')
    assert append_end(path, run_id, EVENT, END)
    run = load(path)
    assert run.end["status"] == "failed" and len(run.results) == 2
    assert len(run.problems) == 2 and "unusable record" in run.problems[0]


def test_a_file_that_is_not_to_be_reached(tmp_path):
    assert not append_end(tmp_path / "none" / "run.jsonl", "1", EVENT, END)
    assert list(tmp_path.iterdir()) == []
