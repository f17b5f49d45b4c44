"""Nobody hangs: ranks that die, stop, sleep, never come or disagree are named, and all leave."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import errno
import faulthandler
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib import metadata
from types import SimpleNamespace

import pytest
from error_form import error_line, expecting
from rank_faults import HANG, around_calls, endless, in_the_last_case, running
from ranks import Measured, busy, command, past

from torchcoll.bench import communicators, control, departure, main, session, watchdog
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.spec import Spec
from torchcoll.machine import environment

HOST = socket.gethostname()
# time.sleep of Python 3.10 is a select() without files: the kernel sees it wait, as all do.
SLEEPING = ": sleeps" if sys.version_info >= (3, 11) else ""


pytestmark = pytest.mark.usefixtures("less_patience")


def on(rank: int, action, name: str = "all_reduce"):
    """A setup that does ``action`` around the calls of one rank."""

    def setup(own: int) -> None:
        if own == rank:
            around_calls(name, action)

    return setup


def die(number, call):
    if number == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    call()


def stop(number, call):
    if number == 4:
        os.kill(os.getpid(), signal.SIGSTOP)
    call()


def stop_for(seconds: float):
    """Stopped, and continued by a process that outlives the stop."""

    def action(number, call):
        if number == 4:
            words = ["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"]
            subprocess.Popen(words, start_new_session=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        call()

    return action


def stated_lateness(setup):
    """``setup``, and stderr has how late this rank takes the threads of its machine to be."""

    def both(rank: int) -> None:
        grace_s = control.grace_s

        def stated(late_s: float) -> float:
            print(f"late by {late_s} s", file=sys.stderr)
            return grace_s(late_s)

        control.grace_s = stated
        setup(rank)

    return both


def import_slowly(rank: int) -> None:
    import_torch = main.import_torch

    def slow():
        time.sleep(TIMEOUT_S)
        return import_torch()

    if rank == 0:
        main.import_torch = slow


def stop_at_the_start(rank: int) -> None:
    """Rank 0, before it serves a store and before it is watched."""
    store_of = control.store_of

    def stopped(*args):
        stop_for(TIMEOUT_S + 2)(4, lambda: None)
        return store_of(*args)

    if rank == 0:
        control.store_of = stopped


def sleep_after(number, call):
    call()
    if number == 4:
        time.sleep(100)


def sleep_before(number, call):
    if number == 4:
        time.sleep(100)
    call()


def fail_at(when, error):
    def fail(number, call):
        if number == when:
            raise error
        call()

    return fail


def event_of(measured) -> dict:
    return measured.run.events[-1]


# Ranks that wait in vain: started before all other tests, looked at after them.
TIMEOUT_S = 6


def sees_it_later(rank: int) -> None:
    """Rank 0 is patient: that rank 1 stays behind, rank 2 sees first."""
    on(1, sleep_after)(rank)
    watch = watchdog.Watchdog._watch

    def patient(self):
        self.control = self.departure.control = copy.copy(self.control)
        self.control.timeout_s = 60
        watch(self)

    if rank == 0:
        watchdog.Watchdog._watch = patient


def kill_in(where: str, victim: int):
    """A setup that ends this rank in that step of the start-up."""

    def setup(rank: int) -> None:
        if rank == victim:
            setattr(session.Session, where, lambda *_: os.kill(os.getpid(), signal.SIGKILL))

    return setup


def sleep_in_the_exchange(victim: int):
    """In a word that rank 0 waits for, and the others for rank 0."""

    def setup(rank: int) -> None:
        gather, numbers = control.Control.gather, itertools.count()

        def late(self, *args):
            if next(numbers) == 12:
                time.sleep(100)
            return gather(self, *args)

        if rank == victim:
            control.Control.gather = late

    return setup


def stop_in_the_exchange(victim: int):
    """Before it waits for the words of the others."""

    def setup(rank: int) -> None:
        gather, numbers = control.Control.gather, itertools.count()

        def stopped(self, *args):
            if next(numbers) == 8:
                os.kill(os.getpid(), signal.SIGSTOP)
            return gather(self, *args)

        if rank == victim:
            control.Control.gather = stopped

    return setup


def sleep_with_the_lock(number, call):
    """In C, with Python's lock: its watchdog cannot say a word."""
    if number == 4:
        ctypes.PyDLL(None).sleep(1000)
    call()


def skip(number, call):
    if number != 4:
        call()


def call_twice(number, call):
    if number == 4:
        call()
    call()


def come_late(number, call):
    if number == 4:
        time.sleep(TIMEOUT_S + 0.5)
    call()


WAITING = {
    "exchange": {"setup": sleep_in_the_exchange(1)},
    "native": {"setup": on(2, sleep_with_the_lock)},
    "skipped": {"setup": on(2, skip)},
    "one more": {"setup": on(0, call_twice)},
    "late": {"setup": on(1, come_late)},
    "stopped": {"setup": on(1, stop)},
    "stopped 0": {"setup": on(0, stop)},
    "paused": {"setup": on(1, stop)},
    "paused 0": {"setup": on(0, stop)},
    "paused 0 shortly": {"setup": stated_lateness(on(0, stop_for(TIMEOUT_S + 2)))},
    "paused 0 at the start": {"setup": stop_at_the_start},
    "paused, and ended": {"setup": on(1, stop)},
    "all paused": {"setup": lambda rank: around_calls("all_reduce", stop_for(TIMEOUT_S + 2))},
    "paused 0 while waiting": {"setup": stop_in_the_exchange(0)},
    "behind": {"setup": on(1, sleep_after)},
    "same call": {"setup": on(1, sleep_before)},
    "seen by another": {"setup": sees_it_later},
    "absent": {"absent": [1]},
    "other master": {"absent": [1, 2], "environment": {"MASTER_ADDR": "192.0.2.1"}},
    "slow import": {"absent": [1, 2], "setup": import_slowly},
    "absent 0": {"absent": [0]},
    "killed": {"setup": kill_in("_hello", 1)},
    "killed 0": {"setup": kill_in("_hello", 0)},
}
STOPPED = {"stopped": [1], "stopped 0": [0], "native": [2]}
KILLED = {"killed": [1], "killed 0": [0]}
# Until the others have left.
PAUSED = {"paused": 1, "paused, and ended": 1, "paused 0": 0, "paused 0 while waiting": 0}


@pytest.fixture(scope="module", autouse=True)
def started(tmp_path_factory):
    """Jobs that run into their timeout, and a thread that sees when their ranks leave: with the
    product's own waiting times, for this fixture is older than ``less_patience``.
    """
    folder = tmp_path_factory.mktemp("waiting")
    jobs = {
        name: Measured(
            folder / name.replace(" ", "_"),
            "all_reduce",
            f"--sizes 8 -n 50 -T {TIMEOUT_S}",
            2 if name == "absent 0" else 3,
            **options,
        )
        for name, options in WAITING.items()
    }
    began, limit_s = time.monotonic(), 60

    def waits() -> bool:
        return any(jobs[name].job.running() != STOPPED.get(name, []) for name in jobs)

    def watch() -> None:
        while waits() and not past(began, limit_s):
            for name, victim in PAUSED.items():
                if jobs[name].job.running() == [victim]:
                    if name == "paused, and ended":  # as Open MPI does
                        jobs[name].job.signal(victim, signal.SIGTERM)
                    jobs[name].job.signal(victim, signal.SIGCONT)
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield jobs, watcher
    limit_s = -1
    watcher.join()
    for measured in jobs.values():
        measured.job.kill()


def test_a_killed_rank_is_named(launch):
    options = "--collectives broadcast,all_reduce --sizes 8,16 -n 3 -T 60"
    measured = launch(None, options, 3, setup=on(2, die)).ended([HANG, HANG, -9], 45)
    (line,) = measured.errors()
    assert f"lost rank 2 ({HOST})" in line and "all_reduce 8" in line
    assert line in measured.stderr(0).splitlines()
    run = measured.run
    assert [r.status for r in run.results] == ["ok"] * 0 + ["ok", "ok"]
    assert [r.case.collective for r in run.results] == ["broadcast", "broadcast"]
    assert (run.end["status"], run.end["exit_code"]) == ("failed", HANG)
    assert run.in_flight.collective == "all_reduce"
    assert event_of(measured)["kind"] == "lost_rank"
    assert "lost rank 2" in event_of(measured)["message"]


def start_slowly(rank: int) -> None:
    """Each rank on a host of its own, where importing torch took longer than --timeout."""
    environment.hostname = lambda: f"n{rank}"
    begin = session.Rendezvous.__init__

    def begin_late(self, torch, options):
        phases = {**options.phases, "import_torch": 90 * 10**9}
        begin(self, torch, dataclasses.replace(options, phases=phases))

    session.Rendezvous.__init__ = begin_late


def test_a_rank_of_another_host_that_is_killed_after_a_slow_start_is_named(launch):
    """Rank 0 waited for nobody in its start-up, and all ranks have met since."""

    def setup(rank: int) -> None:
        start_slowly(rank)
        on(1, die)(rank)

    measured = launch("all_reduce", "--sizes 8 -n 50 -T 60", 2, setup=setup).ended([HANG, -9], 45)
    (line,) = measured.errors()
    assert "lost rank 1 (n1) in all_reduce 8 " in line and "stood still" not in line
    assert event_of(measured)["kind"] == "lost_rank"


def test_rank_0_is_killed(launch):
    """It serves the store and writes the file: another says so, and ends the file."""
    options = "--collectives broadcast,all_reduce --sizes 8 -n 3 -T 60"
    measured = launch(None, options, 3, setup=on(0, die)).ended([-9, HANG, HANG], 45)
    (line,) = measured.errors()
    assert f"lost rank 0 ({HOST})" in line
    run = measured.run
    assert [r.case.collective for r in run.results] == ["broadcast"]
    reason = line.removeprefix("torchcoll: error: ")
    stated = [run.end[name] for name in ("status", "exit_code", "reason", "cases")]
    assert stated == ["failed", HANG, reason, 1] and not run.complete
    assert run.in_flight.collective == "all_reduce"
    assert (event_of(measured)["kind"], event_of(measured)["message"]) == ("lost_rank", reason)
    assert run.problems == [f"failed: {reason}"]


@pytest.mark.parametrize(
    ("where", "number", "after"),
    [
        ("gather", 1, False),
        ("gather", 6, False),
        ("gather", 9, False),
        ("gather", 4, True),
        ("decide", 4, True),
        ("decide", 9, True),
        ("decide", 5, False),
        ("init_process_group", 0, False),
        ("init_process_group", 0, True),
    ],
)
def test_rank_0_is_killed_in_an_exchange(launch, where, number, after):
    """Whichever step of the others finds the store gone, it is one line."""

    def setup(rank: int) -> None:
        import torch.distributed

        owner = torch.distributed if where == "init_process_group" else control.Control
        original, numbers = getattr(owner, where), itertools.count()

        def killed(*args, **options):
            last = next(numbers) == number
            if last and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            value = original(*args, **options)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            return value

        if rank == 0:
            setattr(owner, where, killed)

    measured = launch("all_reduce", "--sizes 8 -n 20 -T 60", 3, setup=setup)
    measured.ended([-9, HANG, HANG], 45)
    assert "Traceback" not in measured.stderr(1) + measured.stderr(2)
    lines = measured.errors()
    # Before the hello is over no rank knows who speaks for all.
    assert 1 <= len(lines) <= 2 and all("lost rank 0" in line for line in lines), lines


@pytest.mark.parametrize(
    ("writer", "key", "text"),
    [
        (0, "d13", "[" * 9999),
        (0, "d13", '["d0", null]'),
        (1, "g14/1", '{"a": 1}'),
        (1, "alive/1", "garbage"),
    ],
)
def test_a_damaged_value_in_the_store(launch, writer, key, text):
    """Who reads it is innocent, and who should have written it has."""

    def setup(rank: int) -> None:
        written = control.written
        if rank == writer:
            control.written = lambda own, value: text if own == key else written(own, value)
        if rank == 1 and key == "alive/1":
            on(1, fail_at(4, RuntimeError("boom")))(rank)

    measured = launch("all_reduce", "--sizes 8 -n 9 -T 60", 3, setup=setup).ended(HANG, 45)
    got = text if len(text) < 120 else text[:117] + "..."
    assert measured.errors() == [
        error_line(
            f"key {key} of the store",
            got,
            "what a rank of this run writes there. Another program reaches the store's "
            "port: see docs/clusters.md.",
        )
    ]
    assert "Traceback" not in "".join(map(measured.stderr, range(3)))
    if measured.path.exists():
        assert event_of(measured)["kind"] == "store"


def _torch() -> tuple[int, ...]:
    return tuple(int(number) for number in metadata.version("torch").split("+")[0].split(".")[:2])


@pytest.mark.parametrize(("victim", "given"), [(0, "8 Float"), (2, "2 Double")])
def test_another_buffer(launch, victim, given):
    """gloo ends the rank that receives too much, which is innocent: the sender is named."""

    def setup(rank: int) -> None:
        faulthandler.disable()  # pytest's, which tells the abort at length
        entry, numbers = COLLECTIVES["all_reduce"], itertools.count()

        def prepare(dist, *args):
            call, buffer = entry.prepare(dist, *args), args[1]
            other = buffer.double() if "Double" in given else buffer.repeat(4)
            return lambda: dist.all_reduce(other) if next(numbers) == 6 else call()

        if rank == victim:
            COLLECTIVES["all_reduce"] = dataclasses.replace(entry, prepare=prepare)

    measured = launch("all_reduce", "--sizes 8 -n 30 -T 60", 3, setup=setup)
    lost = (victim + 2) % 3  # of three on a ring
    measured.ended([-signal.SIGABRT if rank == lost else HANG for rank in range(3)], 45)
    if _torch() >= (2, 13):  # older ones keep no record of gloo's calls
        other = f"(all_reduce of {given}, before all_reduce of 2 Float)"
        text = f"torchcoll: error: rank {victim} ({HOST}) gave another buffer {other}"
        assert any(line.startswith(text) for line in measured.errors())
    assert f"lost rank {lost} ({HOST})" in measured.errors()[0]


def test_a_rank_without_its_connection_to_the_store(launch):
    """It says so, and does not say that rank 0 is lost."""

    def cut(number, call):
        if number == 4:
            port = int(os.environ["MASTER_PORT"])
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
                    if one.getpeername()[1:2] == (port,):
                        one.shutdown(socket.SHUT_RDWR)
        call()

    measured = launch("all_reduce", "--sizes 8 -n 30 -T 60", 3, setup=on(1, cut)).ended(HANG, 45)
    (own,) = [line for line in measured.errors() if "the store" in line]
    assert own.startswith(
        f"torchcoll: error: rank 1 ({HOST}) is cut off from the store, which lives: its own "
        "connection is gone; "
    )
    assert "lost rank 0" not in own
    assert f"rank 1 ({HOST})" in measured.run.end["reason"]


@pytest.mark.parametrize(
    ("error", "silent", "gone", "text"),
    [
        (errno.ECONNREFUSED, False, True, "the store is gone, lost A, which serves it?"),
        (errno.ENETUNREACH, False, False,
         "me is cut off from the store: its own connection is gone (Network is unreachable)"),
        (errno.EHOSTUNREACH, False, True,
         "me is cut off from the store: its own connection is gone, or that of A, which serves it"),
        (None, False, False,
         "me is cut off from the store, which lives: its own connection is gone"),
        (None, True, False, "the store does not answer, lost A, which serves it?"),
    ],
)  # fmt: skip
def test_what_one_more_connection_to_the_store_tells(monkeypatch, error, silent, gone, text):
    """The kernel's answers, which need networks that fail."""

    def connect(*_, **__):
        if error:
            raise OSError(error, os.strerror(error))
        return open(os.devnull)

    monkeypatch.setattr(socket, "create_connection", connect)
    store = SimpleNamespace(underlying_store=SimpleNamespace(host="h", port=1))
    assert departure.store_gone(store, "me", "A", silent) == (gone, text)


@pytest.mark.parametrize("first", [None, ConnectionResetError()])
def test_a_store_that_is_being_killed_does_not_live(monkeypatch, first):
    """Its connections are closed, and the socket that takes new ones is not yet."""
    answers = iter([first, ConnectionRefusedError()])

    def connect(*_, **__):
        if answer := next(answers):
            raise answer
        return open(os.devnull)

    monkeypatch.setattr(socket, "create_connection", connect)
    store = SimpleNamespace(host="h", port=1)
    gone = (True, "the store is gone, lost A, which serves it?")
    assert departure.store_gone(store, "me", "A", False) == gone


@pytest.mark.parametrize(
    ("number", "error"),
    [(0, RuntimeError("boom")), (1, TypeError("boom")), (4, MemoryError("boom"))],
)
def test_an_error_on_one_rank_alone_is_told(launch, number, error):
    """Whatever is raised, in whichever call: the others are inside theirs and cannot know."""

    def setup(rank: int) -> None:
        on(1, fail_at(number, error))(rank)
        if rank == 1:
            communicators.REFUSAL_S = (
                0.5  # for the others, which are inside their first call, in vain
            )

    measured = launch("all_reduce", "--sizes 8 -n 9 -T 60", 3, setup=setup).ended(HANG, 45)
    (line,) = measured.errors()
    assert f"rank 1 ({HOST}): " in line and "boom" in line, line
    assert "boom" in event_of(measured)["message"]


def test_a_call_that_one_rank_refuses_at_once(launch):
    """Others succeed (a broadcast does not wait): all leave with 1, and the odd one is named."""
    setup = on(0, fail_at(0, RuntimeError("no such thing")), "barrier")

    def quiet(rank: int) -> None:
        around_calls("barrier", lambda number, call: None)
        setup(rank)

    measured = launch("barrier", "-n 2 -T 60", 3, setup=quiet).ended(1, 45)
    (line,) = measured.errors()
    assert line == (
        f"torchcoll: error: barrier on gloo failed on rank 0 ({HOST}) alone: no such thing"
    )
    assert measured.run.end["reason"] == line.removeprefix("torchcoll: error: ")


def test_different_arguments_are_named(jobs, tmp_path):
    def target():
        size = "16" if os.environ["RANK"] == "2" else "8"
        command("all_reduce", f"--sizes {size} -T 60")()

    ended = jobs(tmp_path, target, 4).wait(30)
    assert [e.code for e in ended.values()] == [2] * 4
    assert ended[0].stderr == error_line(
        f"arguments of rank 2 ({HOST})",
        "--sizes 16 -T 60",
        f"as on rank 0 ({HOST}): --sizes 8 -T 60. Start all ranks with the same arguments.\n",
    )

    assert [ended[rank].stderr for rank in (1, 2, 3)] == ["", "", ""]
    assert not (tmp_path / "torchcoll-runs").exists()


def test_spelling_is_no_difference(jobs, tmp_path):
    def target():
        words = "-b 1024 -e 1024" if os.environ["RANK"] == "1" else "--min-bytes 1K -e 1K"
        command("all_reduce", f"{words} -n 1 --no-output")()

    assert jobs(tmp_path, target, 2).codes() == [0, 0]


def test_another_case_on_one_rank(launch):
    """Other versions or files on one host: found before anything can hang."""

    def setup(rank: int) -> None:
        if rank != 1:
            return
        original = Spec.sizings

        def doubled(self, ranks):
            first, *rest = original(self, ranks)
            return (first, *(dataclasses.replace(s, count=s.count * 2) for s in rest))

        Spec.sizings = doubled

    measured = launch("all_reduce", "--sizes 8,16 -n 2 -T 60", 3, setup=setup).ended(2, 45)
    (line,) = measured.errors()
    assert line == error_line(
        f"case on rank 1 ({HOST})",
        "another case than the other ranks",
        "the same on all ranks (rank 0: all_reduce 16 float32 sum on gloo). Start all "
        "ranks with the same arguments, files and torchcoll version.",
    )

    run = measured.run
    assert [r.case.size_bytes for r in run.results] == [8]
    assert (run.end["status"], run.end["exit_code"]) == ("failed", 2)


@pytest.mark.parametrize(("where", "victim"), [("_open_device", 1), ("_exchange_members", 0)])
def test_killed_during_start_up(launch, where, victim):
    """The ranks know of each other: nobody waits for the timeout."""
    measured = launch("all_reduce", "--sizes 8 -T 60", 3, setup=kill_in(where, victim))
    measured.ended([-9 if rank == victim else HANG for rank in range(3)], 45)
    (line,) = measured.errors()
    assert f"lost rank {victim}" in line
    if where == "_exchange_members":
        run = measured.run
        assert run.header["ranks"] == 3 and not run.complete and not run.results


def test_a_fault_of_ours_in_start_up(launch):
    """A bug on one rank must not leave the others waiting for the timeout."""

    def setup(rank: int) -> None:
        if rank == 1:
            environment.member = lambda *args: 1 / 0

    measured = launch("all_reduce", "--sizes 8 -T 60", 3, setup=setup).ended(HANG, 45)
    (line,) = measured.errors()
    assert f"rank 1 ({HOST}): ZeroDivisionError: division by zero" in line
    assert "Traceback" in measured.stderr(1)


def test_who_tells_it_is_one_where_the_others_hear_of_it_late(launch):
    """On a busy machine: rank 1 has waited in vain for their words, told it and left."""

    def setup(rank: int) -> None:
        if rank == 1:
            environment.member = lambda *args: 1 / 0
            control.GRACE_S = 0.1
        else:
            departure.Departure._alarmed = lambda self: False

    measured = launch("all_reduce", "--sizes 8 -T 60", 3, setup=setup).ended(HANG, 45)
    (line,) = measured.errors()
    assert f"rank 1 ({HOST}): ZeroDivisionError: division by zero" in line
    reason = measured.run.end["reason"]
    assert f"rank 1 ({HOST}): ZeroDivisionError: division by zero" in reason


def test_rank_0_serves_the_store_until_the_last_question(launch):
    """A rank that asks slowly what it asks after the words of the others does not find it gone."""

    def setup(rank: int) -> None:
        if rank == 2:
            environment.member = lambda *args: 1 / 0
        if rank == 1:
            survey = control.survey

            def slow(*args, **options):
                answers = survey(*args, **options)
                time.sleep(0.5)
                return answers

            control.survey = slow

    measured = launch("all_reduce", "--sizes 8 -T 60", 3, setup=setup).ended(HANG, 45)
    (line,) = measured.errors()
    assert f"rank 2 ({HOST}): ZeroDivisionError: division by zero" in line


def test_no_room_for_a_thread(launch):
    """One that cannot watch says so to the others, which do not take the store for lost."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    def setup(rank: int) -> None:
        if rank == 1:
            original = control.run_stores

            def run_stores(*args):
                threading.Thread.start = refuse
                return original(*args)

            control.run_stores = run_stores

    measured = launch("all_reduce", "--sizes 8 -T 60", 3, setup=setup).ended([HANG, 4, HANG], 45)
    (line,) = measured.errors()
    assert ": rank 1: can't start new thread in " in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_the_run_in_order(launch, number, monkeypatch):
    # The others get theirs a moment later; on a busy machine that is no fraction of a second.
    monkeypatch.setattr(departure, "_LINGER_S", 1.0)
    measured = launch("all_reduce", "--sizes 8,1M -n 2 -T 100", 2, setup=endless)
    in_the_last_case(measured)
    for rank in (0, 1):
        measured.job.signal(rank, number)
    measured.ended(128 + number, 100)
    run = measured.run
    assert [r.case.size_bytes for r in run.results] == [8]
    assert (run.end["status"], run.end["exit_code"]) == ("interrupted", 128 + number)
    event = run.events[-1]
    assert event["kind"] == "signal"
    assert event["message"].startswith(f"{signal.Signals(number).name} in all_reduce 1M")
    assert run.in_flight.size_bytes == 1 << 20
    assert measured.errors() == [f"torchcoll: error: {event['message']}"]
    assert "Traceback" not in measured.stderr(0) + measured.stderr(1)
    assert "   8  " in measured.stdout(0), "the rows so far are shown"


@pytest.mark.parametrize("victim", [0, 1])
def test_a_signal_that_reaches_one_rank_late_is_one_story(launch, victim, monkeypatch):
    """Another rank has left by then, for the same signal: it is not lost."""
    monkeypatch.setattr(departure, "_LINGER_S", 1.0)
    # It comes for certain, and a busy machine may take its time.
    monkeypatch.setattr(departure, "MOMENT_S", 60.0)
    monkeypatch.setattr(control, "GRACE_S", 30.0)
    measured = launch("all_reduce", "--sizes 8,1M -n 2 -T 100", 3, setup=endless)
    in_the_last_case(measured)
    for rank in {0, 1, 2} - {victim}:
        measured.job.signal(rank, signal.SIGTERM)
    measured.job.until(lambda: 2 not in measured.job.running())
    measured.job.signal(victim, signal.SIGTERM)
    measured.ended(128 + signal.SIGTERM, 100)
    end = measured.run.end
    assert (end["status"], end["exit_code"]) == ("interrupted", 128 + signal.SIGTERM)
    assert measured.errors() == [f"torchcoll: error: {end['reason']}"]
    assert end["reason"].startswith("SIGTERM in all_reduce 1M")


def test_a_signal_names_the_case_in_flight(launch, monkeypatch):
    """Not what would run by the time that the others have said what they know."""
    monkeypatch.setattr(departure, "_LINGER_S", 1.0)

    def setup(rank: int) -> None:
        begin = watchdog.Progress.begin  # of each case
        cases = itertools.count()

        def ended(self):
            begin(self)
            if next(cases) == 1:
                os.kill(os.getpid(), signal.SIGTERM)

        if rank == 0:
            watchdog.Progress.begin = ended

    measured = launch("all_reduce", "--sizes 8,16,32,64,128 -n 50 -T 60", 2, setup=setup)
    measured.ended([143, HANG], 45)
    run = measured.run
    assert run.end["reason"].startswith("SIGTERM in all_reduce 16 ")
    assert [r.case.size_bytes for r in run.results] == [8]
    assert run.in_flight.size_bytes == 16


def test_a_signal_that_was_ignored_stays_ignored(launch):
    """As of a command under nohup."""

    def setup(rank: int) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        on(0, lambda number, call: (os.kill(os.getpid(), signal.SIGHUP), call()))(rank)

    measured = launch("all_reduce", "--sizes 8 -n 5", 2, setup=setup).ended(0)
    assert measured.run.complete


def test_rank_0_alone_is_interrupted(launch):
    measured = launch("all_reduce", "--sizes 8,1M -n 2 -T 60", 3, setup=endless)
    in_the_last_case(measured)
    measured.job.signal(0, signal.SIGINT)
    measured.ended([130, HANG, HANG], 45)
    assert measured.run.end["exit_code"] == 130


def test_a_launch_that_is_ended_before_all_have_met(launch):
    """By a launcher that lost the other, or by somebody who has waited enough: for whom?"""

    def setup(rank: int) -> None:
        wait = control.Control._wait

        def ended(self, *args):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
            wait(self, *args)

        control.Control._wait = ended

    measured = launch("all_reduce", "--sizes 8 -T 60", 3, absent=[1, 2], setup=setup)
    measured.ended(128 + signal.SIGTERM, 45)
    (line,) = measured.errors()
    assert line.endswith(": SIGTERM in rendezvous; no word yet from rank 1, rank 2")


def test_torchrun_ends_the_survivors_by_signal(launch):
    """Rank 1 is lost, and SIGTERM comes at once: the lost rank is the news."""
    measured = launch("all_reduce", "--sizes 8,1M -n 2 -T 60", 3, setup=endless)
    in_the_last_case(measured)
    measured.job.signal(1, signal.SIGKILL)
    measured.job.until(lambda: 1 not in measured.job.running())
    for rank in measured.job.running():
        measured.job.signal(rank, signal.SIGTERM)
    measured.ended([HANG, -9, HANG], 45)
    (line,) = measured.errors()
    assert f"lost rank 1 ({HOST})" in line
    assert measured.run.end["exit_code"] == HANG


def test_other_signals_keep_their_handlers(launch):
    """A handler of the job's own, such as for a timer, does not end the rank."""

    def setup(rank: int) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: open("came", "w").close())
        around_calls("all_reduce", kick)

    def kick(number, call):
        if number == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        call()

    measured = launch("all_reduce", "--sizes 8 -n 300", 2, setup=setup).ended(0)
    assert (measured.job.folder / "came").exists()


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("after", [0, 3])
def test_kill_9_leaves_a_file_that_loads(launch, victim, after):
    measured = launch("all_reduce", "--sizes 8,16,32,64,8M -n 50 -T 60", 2)
    running(measured, after)
    time.sleep(0.003 * after)
    measured.job.signal(victim, signal.SIGKILL)
    measured.ended([-9, HANG] if victim == 0 else [HANG, -9], 45)
    run = measured.run
    assert after <= len(run.results) < 5
    for result in run.results:
        assert result.status == "ok"
        assert [len(row) for row in result.time_ns["host"]] == [50, 50]
    assert not run.complete and run.problems
    # a rank can be lost between two cases
    assert (run.end["status"], run.end["exit_code"]) == ("failed", HANG)
    assert f"lost rank {victim}" in run.end["reason"]


@pytest.fixture
def waiting(started):
    jobs, watcher = started
    watcher.join()
    return jobs


@pytest.mark.parametrize("name", WAITING)
def test_all_leave_in_time(waiting, name):
    """Alone on a machine it is the timeout and 10 s, with 5 of timeout; here all jobs come at once,
    and whatever else the machine does: as long again and more.
    """
    job, stopped, killed = waiting[name].job, STOPPED.get(name, []), KILLED.get(name, [])
    assert job.running() == stopped
    job.kill()
    ended = {rank: e for rank, e in job.wait().items() if rank not in stopped}
    expected = 0 if name == "all paused" else HANG
    assert {rank: e.code for rank, e in ended.items()} == {
        rank: -signal.SIGKILL if rank in killed else expected for rank in ended
    }
    assert max(e.seconds for e in ended.values()) < (TIMEOUT_S + 10 + 30) * busy()
    told_by_several = (
        "killed 0",
        *PAUSED,
        "paused 0 shortly",
        "paused 0 at the start",
        "all paused",
    )
    if name not in told_by_several:  # before the hello the ranks do not know who is to speak
        assert len(waiting[name].errors()) == 1


@pytest.mark.parametrize("name", KILLED)
def test_killed_before_the_ranks_know_of_each_other(waiting, name):
    (victim,) = KILLED[name]
    # Rank 0 was gone before they found its store, or once they had.
    rendezvous = (
        "error: rendezvous of rank ",
        "error: rendezvous: lost the store of rank 0 at once",
    )
    lines = waiting[name].errors()
    assert lines
    told = (f"lost rank {victim}", *rendezvous)
    assert all(any(text in line for text in told) for line in lines), lines
    assert not waiting[name].path.exists()


def test_a_hang_that_another_rank_sees_first(waiting):
    """Rank 0 hears of it, and writes what it would have written of its own."""
    measured = waiting["seen by another"]
    (line,) = measured.errors()
    stated = f"no progress for {TIMEOUT_S} s in all_reduce 8 float32 sum on gloo: "
    assert line.startswith(f"torchcoll: error: {stated}")
    # rank 0 has a copy of the control, from before the hello
    assert "; rank 1 is in user code (sleep_after, test_bench_faults.py:" in line
    assert [result.status for result in measured.run.results] == ["timeout"]
    assert event_of(measured)["kind"] == "hang"


def test_a_stopped_rank_is_named(waiting):
    measured = waiting["stopped"]
    (line,) = measured.errors()
    assert line in measured.stderr(0).splitlines()
    assert f"lost rank 1 ({HOST}) in all_reduce 8 float32 sum on gloo: " in line
    assert "(no answer; its process is stopped; " in line
    assert f"no progress for {TIMEOUT_S} s" in line
    (result,) = measured.run.results
    assert (result.status, result.case.size_bytes) == ("timeout", 8)
    assert measured.run.end["exit_code"] == HANG
    assert event_of(measured)["kind"] == "hang"


def test_a_stopped_rank_0_is_named(waiting):
    """It does not answer for the store either."""
    (line,) = waiting["stopped 0"].errors()
    assert f"lost rank 0 ({HOST})" in line
    assert f"no progress for {TIMEOUT_S} s in all_reduce 8 float32 sum on gloo" in line


@pytest.mark.parametrize("name", ["paused 0", "paused 0 shortly", "paused 0 while waiting"])
def test_a_paused_rank_0_says_so(waiting, name):
    """It writes the end, and reads what the others left in its store before it accuses them."""
    measured = waiting[name]
    end = measured.run.end
    assert (end["status"], end["exit_code"]) == ("failed", HANG)
    text = rf"rank 0 \({HOST}\) stood still for \d+ s in all_reduce 8 float32 sum on gloo: "
    assert re.match(text, end["reason"]), end["reason"]
    assert f"torchcoll: error: {end['reason']}" in measured.stderr(0)
    assert event_of(measured)["kind"] == "hang"
    for line in measured.errors():
        assert f"rank 0 ({HOST})" in line and "rank 1" not in line and "rank 2" not in line, line


def test_a_pause_of_a_rank_is_no_lateness_of_its_machine(waiting):
    """It would wait 30 s for the words of the others after it wakes up."""
    late_s = re.findall(r"^late by (\S+) s$", waiting["paused 0 shortly"].stderr(0), re.MULTILINE)
    assert late_s and all(float(text) < TIMEOUT_S for text in late_s)


def test_a_rank_0_that_was_paused_before_it_was_watched_says_so(waiting):
    """The others found no store, and left: it cannot hear from them, and does not accuse them."""
    measured = waiting["paused 0 at the start"]
    (line,) = [line for line in measured.stderr(0).splitlines() if "torchcoll: error" in line]
    # What follows depends on how long the others take to leave.
    text = r"torchcoll: error: rank 0 stood still for \d+ s in rendezvous; no (word from|progress) "
    assert re.match(text, line) and "lost" not in line, line
    for rank in (1, 2):
        assert expecting("rank 0 listening there") in measured.stderr(rank)


@pytest.mark.parametrize("name", ["paused", "paused, and ended"])
def test_a_paused_rank_says_so(waiting, name):
    """The others have named it and left, and rank 0 has taken the store along."""
    measured = waiting[name]
    (line,) = [line for line in measured.stderr(1).splitlines() if "torchcoll: error" in line]
    text = rf"torchcoll: error: rank 1 \({HOST}\) stood still for \d+ s in all_reduce 8 "
    assert re.match(text, line) and "rank 0" not in line, line
    assert f"lost rank 1 ({HOST})" in measured.run.end["reason"]


def test_a_pause_of_all_ranks_ends_nothing(waiting):
    """Nobody has waited meanwhile."""
    measured = waiting["all paused"]
    assert measured.run.complete and measured.errors() == []


def test_a_pause_that_is_over_is_no_cause(launch):
    """All ranks stood still and went on; what ends the run later is another rank."""
    timeout_s = 2.5 * busy()

    def setup(rank: int) -> None:
        watchdog._AFTERMATH_S = 0.1

        def action(number, call):
            if number == 4:
                stop_for(timeout_s + 0.5)(number, call)
                return
            if rank == 2 and number in (20, 40):
                time.sleep(1)  # for the others to see the progress before it
            if rank == 2 and number == 45:
                os.kill(os.getpid(), signal.SIGKILL)
            call()

        around_calls("all_reduce", action)

    measured = launch("all_reduce", f"--sizes 8 -n 50 -T {timeout_s:g}", 3, setup=setup)
    measured.ended([HANG, HANG, -9], 45)
    assert measured.run.end["reason"].startswith(f"lost rank 2 ({HOST}) in all_reduce 8 ")


@pytest.mark.parametrize(("name", "where"), [("behind", "after"), ("same call", "before")])
def test_a_rank_that_sleeps_in_a_call_is_named(waiting, name, where):
    """Behind the others or not: it is the one that waits for nobody."""
    (line,) = waiting[name].errors()
    assert f"no progress for {TIMEOUT_S} s in all_reduce 8 float32 sum on gloo: " in line
    place = f"rank 1 ({HOST}) is in user code (sleep_{where}, test_bench_faults.py:"
    assert place in line and f"{SLEEPING}), " in line
    assert line.endswith(f"rank 0 ({HOST}), rank 2 ({HOST}) wait in the collective")
    assert [r.status for r in waiting[name].run.results] == ["timeout"]


WAITS = "wait in the collective"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("exchange", f"rank 1 ({HOST}) is in user code (late, test_bench_faults.py:"),
        ("exchange", f"{SLEEPING}), rank 0 ({HOST}), rank 2 ({HOST}) wait in the control exchange"),
        ("late", f"rank 1 ({HOST}) is in user code (come_late, test_bench_faults.py:"),
        ("skipped", f"; rank 2 ({HOST}) left out a call of the library: past it, with fewer calls"),
        ("skipped", f" made; rank 0 ({HOST}), rank 1 ({HOST}) {WAITS}"),
        ("one more", f"; rank 0 ({HOST}) made a call of the library too many; rank 1 ({HOST}), "),
        ("native", f"lost rank 2 ({HOST}) in all_reduce 8 "),
        ("native", "(no answer; its process sleeps or waits in native code; no progress for "),
    ],
)
def test_the_odd_one_out_is_named(waiting, name, text):
    (line,) = waiting[name].errors()
    assert text in line
    assert "no word from" not in line  # who waits for rank 0 does not blame it


def test_a_rank_that_never_comes_is_named(waiting):
    (line,) = waiting["absent"].errors()
    assert "lost rank 1 in rendezvous" in line and f"{TIMEOUT_S} s" in line
    assert not waiting["absent"].path.exists()


def test_rank_0_looks_at_its_own_address(waiting):
    (line,) = waiting["other master"].errors()
    assert "lost rank 1, rank 2 in rendezvous" in line
    assert line.endswith(f". MASTER_ADDR=192.0.2.1 is no address of {HOST}, where rank 0 runs")


def test_a_slow_import_is_no_pause(waiting):
    """It may excuse the others, which left by then; rank 0 stood nowhere still."""
    (line,) = waiting["slow import"].errors()
    assert "lost rank 1, rank 2 in rendezvous" in line and "stood still" not in line
    text = r"\. Rank 0 took \d+ s to import torch: others may have left by then$"
    assert re.search(text, line), line


def test_rank_0_never_comes(waiting):
    """Host and port are named, by those that looked for it."""
    (line,) = waiting["absent 0"].errors()
    assert f"127.0.0.1:{waiting['absent 0'].job.port}" in line and f"within {TIMEOUT_S} s" in line
    assert line.startswith(error_line(f"rendezvous of rank 1 ({HOST})", "no store at "))
