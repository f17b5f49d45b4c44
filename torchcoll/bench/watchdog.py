"""Nobody hangs: a thread that ends this rank when nothing moves, or when a signal comes.

A rank that waits inside a collective cannot be interrupted from Python, so the thread leaves by
``os._exit`` after the last words are written. It watches without touching the measurement: it
reads counters in memory four times a second and asks the store only when nothing moved.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, NoReturn

from torchcoll.bench.control import (
    ALL_ASK,
    GRACE_S,
    MOMENT_S,
    Control,
    alarm,
    asked_by,
    claim_report,
    dead_ranks,
    grace_s,
    record_leaving,
    store_gone,
    survey,
    wait_for_peers,
)
from torchcoll.bench.culprit import ECHO, Why, Witness, find, other_buffers, pause, stood_still
from torchcoll.bench.stack_sampler import StackSampler, last_calls, seen_from_outside
from torchcoll.core.errors import ExitCode, tell
from torchcoll.core.variables import masked

_POLL_S = 0.25
STOP_S = 60.0  # after SIGUSR1: a call that has not ended by then will not
_LATENESSES = 40  # looks, which are 10 s
_MOST_QUESTIONS = 8000  # for an alarm, a second, of all ranks: a store answers 20 times as many
_QUIET_S = 1.0  # without progress for so long, the store is asked whether another rank saw trouble
# Ranks that get the same signal wait so long for each other's words. Open MPI kills a second after
# its SIGTERM.
_LINGER_S = 0.3
_AFTERMATH_S = 10.0  # after a pause calls of the others may still come to their end
_SHOWING_S = 10.0  # how long a signal waits for the table of a run that is over
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # as torchrun forwards


def no_progress(_: str) -> None:
    """Where no terminal is told."""


@dataclass
class Progress:
    """How far this rank is. Equal on all ranks when they are in step, so that the least is behind.

    ``steps`` counts what is done; ``samples`` is the list that the running loop appends to, read
    by its length, so that the timed loop pays nothing for being watched.
    """

    doing: str = "start-up"
    steps: int = 0
    samples: Sized = field(default_factory=list)
    beats: int = 0  # signs of life within a step, which differ from rank to rank
    groups: Sequence[Any] = ()  # those that the case calls on: torch counts the calls
    part: int = 0  # the first rank of its sub-group
    begun: int | None = None  # calls that torch had counted in the first of them
    halted: bool = False  # this rank is leaving: nothing new is begun
    on_progress: Callable[[str], None] = no_progress  # called with the description of each step

    def begin(self) -> None:
        """A case begins on ``groups``."""
        self.begun = None
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):  # backends without
            self.begun = int(self.groups[0]._get_sequence_number_for_group())

    def last(self) -> list[str]:
        """What was given to the last calls of the case; some 0.1 s."""
        if self.begun is None or not self.groups:
            return []
        return last_calls(self.groups[0].group_name, self.begun)

    def beat(self) -> None:
        self.beats += 1

    def step(self, doing: str, samples: Sized = ()) -> None:
        while self.halted:  # else the others would go on with it, and hear of nothing
            time.sleep(1)
        self.doing = doing
        self.steps += 1 + len(self.samples)
        self.samples = samples
        self.on_progress(doing)

    @property
    def done(self) -> int:
        return self.steps + len(self.samples)

    def stated(self) -> str:
        """What this rank does, with the number of the call."""
        calls = f", call {len(self.samples)}" if self.samples else ""
        return self.doing + calls

    def status(self) -> dict[str, Any]:
        """For the others: steps, doing, part and calls of bench/stack_sampler.py."""
        status = {"steps": self.done, "doing": self.stated(), "part": self.part}
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):  # backends without
            counts = [int(group._get_sequence_number_for_group()) for group in self.groups]
            status["calls"] = sum(counts) if counts else None
        return status


class NoAnswer(RuntimeError):
    """The store says nothing: its process is stopped. Where it is gone it says so."""


class StoreClient:
    """Asks the store in a thread of its own, for a store whose process is stopped never answers.

    The thread is there from the start, when threads can be had. It is joined in the end: one that
    comes back from C++ while Python ends takes the process with it ('terminate called without an
    active exception').
    """

    def __init__(self) -> None:
        self._questions: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._answer, name="torchcoll-store", daemon=True)
        self._thread.start()

    def ask(self, question: Callable[[], Any], limit_s: float) -> Any:
        """The answer. Raises NoAnswer when there is none in time, and what ``question`` raises."""
        deadline = time.monotonic() + limit_s
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        if not self._idle.wait(limit_s):
            raise NoAnswer("no answer from the store")
        self._idle.clear()
        self._questions.put((question, answer))
        try:
            value, error = answer.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise NoAnswer("no answer from the store") from None
        if error is not None:
            raise error
        return value

    def _answer(self) -> None:
        while asked := self._questions.get():
            question, answer = asked
            try:
                answer.put((question(), None))
            except RuntimeError as error:
                answer.put((None, error))
            finally:
                self._idle.set()

    def close(self) -> None:
        self._questions.put(None)
        self._thread.join(GRACE_S)


def _readable(descriptor: int, limit_s: float) -> bool:
    """Not by ``select``, which takes none from 1024 on: rank 0 has two for every other rank."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * limit_s))


# Called at the end of a run with status, exit code, event kind, text, and whether this rank reports
# for all ranks. On rank 0 it writes the file.
FinalReport = Callable[[str, int, str, str, bool], None]


class Watchdog:
    """Watches ``progress`` of this rank, from the thread that makes it; ``close`` ends it.

    ``final_report`` is called once, by whichever thread is first to leave. ``signals``: take the
    signals that end a run (the command does; inside somebody's training they are not ours), but
    for those that are ignored. ``stops``: take
    SIGUSR1 too, with which Slurm warns (--signal): ``asked_to_stop`` is then True, and where the
    run has not ended a while later it is left as at a SIGTERM. start_up_s: how long nobody has
    looked before. Raises RuntimeError where this process can have no more threads.
    """

    def __init__(
        self,
        control: Control,
        store: Any,
        progress: Progress,
        final_report: FinalReport,
        signals: bool = False,
        stops: bool = False,
        start_up_s: float = 0.0,
    ) -> None:
        self.control = control
        self.progress = progress
        self._store = store
        self._final_report = final_report
        # From then on this rank has nothing more to say, and ranks that end are no news.
        self.parting = threading.Event()
        # Where the account of the run is closed, its exit code: nothing that comes after changes it
        self.over: int | None = None
        self._leaving = threading.RLock()
        self._store_gone = False
        self._parent = os.getppid()
        self._ending = False
        self._first = b""  # the rank that raised the alarm before all others, as the store has it
        self._where = StackSampler()
        self._late_s: deque[float] = deque(maxlen=_LATENESSES)
        # Many ranks that wait for a long call must not keep the store busy with their questions.
        self._ask_every_s = control.ranks / _MOST_QUESTIONS if control.ranks > ALL_ASK else 0.0
        self._asked = 0.0  # when the store was last asked for an alarm
        self._looked = time.monotonic()  # the last look of the thread that watches
        self._began = self._looked
        # The longest time without a look, and when it ended.
        self._pause_s, self._pause_end = start_up_s, self._began
        self._closed = False
        self._store_client = StoreClient()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._watch, name="torchcoll-watchdog", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._store_client.close()
            raise
        self._handlers: dict[int, Any] = {}
        self._old_fd: int | None = None
        self._stop_at: float | None = None  # monotonic: when SIGUSR1 came
        if signals:
            self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in (*_ENDING, *([signal.SIGUSR1] if stops else [])):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                    self._handlers[number] = signal.signal(number, lambda *_: None)

    def all_started(self) -> None:
        """Every rank has spoken since this one began to watch: the start-up of this rank, however
        long it was, made nobody leave.
        """
        if self._pause_end == self._began:
            self._pause_s = 0.0

    def close(self) -> None:
        """End the threads and give the signals back."""
        self._closed = True
        os.write(self._write, b"\0")
        self._thread.join()
        self._store_client.close()
        if self._old_fd is not None:
            signal.set_wakeup_fd(self._old_fd)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _watch(self) -> None:
        last, since = self._signs(), time.monotonic()
        while not self._closed:
            began = time.monotonic()
            signalled = _readable(self._read, _POLL_S)
            if self._look_at_clock() >= self.control.timeout_s:
                since = time.monotonic()  # a rank that stood still has waited for nobody
            if signalled:
                for number in os.read(self._read, 16):
                    if number in self._handlers:  # others have handlers of their own
                        self._on_signal(number)
                continue
            now = time.monotonic()
            if self._stop_at and now - self._stop_at > STOP_S and not self.parting.is_set():
                self._on_signal(signal.SIGUSR1)
            if now - began < self.control.timeout_s:  # else this process was paused
                self._late_s.append(now - began - _POLL_S)
            if self._signs() != last:
                last, since = self._signs(), now
                self._where.moved()
                if now - self._pause_end > _AFTERMATH_S:
                    self._pause_s = 0.0
                continue
            self._where.look()
            if now - since > self.control.timeout_s:
                self.abort(f"no progress for {self.control.timeout_s:g} s", "hang")
            elif now - since > _QUIET_S and (
                self._alarmed() or (not self.parting.is_set() and self._neighbour_ended())
            ):
                self.abort(None)

    def _signalled(self, limit_s: float = 0.0) -> bool:
        """Whether a signal that ends this rank has come: its thread may be here and not read it."""
        return self._ending or _readable(self._read, limit_s) or self._ending

    @property
    def _grace_s(self) -> float:
        return grace_s(max(self._late_s, default=0.0)) + self._ask_every_s

    def _look_at_clock(self) -> float:
        """How long ago any thread of this process looked before. The longest such pause is kept
        until there is progress that does not come of it.
        """
        now = time.monotonic()
        pause_s, self._looked = now - self._looked, now
        if pause_s > self._pause_s:
            self._pause_s, self._pause_end = pause_s, now
        return pause_s

    def _stood_still(self) -> dict[str, Any]:
        """For the word of this rank: ``still_s``, where this process stood still for longer than
        the others are patient.
        """
        self._look_at_clock()
        if self._pause_s < self.control.timeout_s:
            return {}
        return {"still_s": round(self._pause_s)}

    def _signs(self) -> tuple[int, int]:
        return self.progress.done, self.progress.beats

    def _neighbour_ended(self) -> bool:
        """Whether the next rank of this host is gone: one look each, and the alarm tells the rest.

        A rank that waits in a collective hears it from the library, one that waits for the store
        does not.
        """
        pids = self.control.pids
        if len(pids) < 2:
            return False
        here = [*pids]
        following = here[(here.index(self.control.rank) + 1) % len(here)]
        return bool(dead_ranks({following: pids[following]}))

    def _alarmed(self) -> bool:
        if self.control.ranks == 1 or self.over is not None:
            return False
        now = time.monotonic()
        if now - self._asked < self._ask_every_s:
            return False
        self._asked = now
        with contextlib.suppress(RuntimeError):
            return bool(self._store_client.ask(lambda: self._store.check(["alarm"]), _POLL_S))
        return False

    @property
    def asked_to_stop(self) -> bool:
        return self._stop_at is not None

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGUSR1:
            # This thread hears of it also where the other one is blocked in a collective. Some
            # launchers send it twice.
            self._stop_at = self._stop_at or time.monotonic()
            if time.monotonic() - self._stop_at <= STOP_S:
                return
        if self.over is not None:  # the thread that measured shows what it has measured
            self.parting.wait(_SHOWING_S)
        # Launchers end the survivors with SIGTERM when a rank is lost: then the lost rank is the
        # news, not the signal.
        self._ending = True
        # What runs now is in flight, and not what would run by the time that the others have said
        # what they know.
        self.progress.halted = True
        control, name, doing = self.control, signal.Signals(number).name, self.progress.stated()
        if self.over is None and control.ranks > 1:
            lost, buffers, still = self._lost_before(name)
            if still and number == signal.SIGTERM:
                text = pause(still, name).text(doing, control.names)
                self.leave(ExitCode.HANG, "failed", "hang", text, True)
            if lost and number == signal.SIGTERM:
                speaks = control.rank == min({*range(control.ranks)} - {*lost})
                text = f"{f'{buffers}; ' if buffers else ''}lost {control.names(lost)} in {doing}"
                self.leave(ExitCode.HANG, "failed", "lost_rank", text, speaks)
        text, speaks = f"{name} in {doing}{self._not_come()}", control.rank == 0
        # A rank that gets the same signal later asks the store of rank 0 who has left, and why.
        self.leave(128 + number, "interrupted", "signal", text, speaks, range(len(control.hosts)))

    def _not_come(self) -> str:
        """Of a run that ends before all have met, whom rank 0 still waits for."""
        control = self.control
        if control.hosts or control.rank:
            return ""
        with contextlib.suppress(RuntimeError):
            absent = self._store_client.ask(lambda: control.lacking(self._store), _LINGER_S)
            return f"; no word yet from {control.names(absent)}" if absent else ""
        return ""

    def _lost_before(self, name: str) -> tuple[list[int], str, str]:
        """Ranks that have ended without a word, as this rank sees and those of other hosts say that
        got the signal too; which gave another buffer; and that this rank stood still, where the
        others have left for that.
        """
        control = self.control
        here = dead_ranks(control.pids)
        status = {**self.progress.status(), "signal": name, "dead": here, **self._stood_still()}
        status["last"] = self.progress.last()
        alone: list[dict[str, Any]] = [{}] * control.rank + [status]
        still = stood_still(alone, control.names)

        def ask() -> tuple[list[int], str, str]:
            answers = survey(
                self._store, control.rank, control.ranks, control.pids, status, _LINGER_S
            )
            dead_lists = [answer.get("dead", []) for answer in answers if answer]
            dead = {*dead_ranks(control.pids)}.union(*dead_lists)
            lost = sorted(
                rank
                for rank in dead
                if not answers[rank] and not self._store.check([f"alive/{rank}"])
            )
            record_leaving(self._store, control.rank)
            left = dead or any(answer and answer.get("hang") for answer in answers)
            return lost, other_buffers(answers, control.names), still if left else ""

        try:
            losses: tuple[list[int], str, str] = self._store_client.ask(ask, _LINGER_S + GRACE_S)
            return losses
        except RuntimeError:
            return here, other_buffers(alone, control.names), still

    def abort(
        self,
        symptom: str | None,
        kind: str = "lost_rank",
        code: int | None = None,
        waited: bool = False,
    ) -> NoReturn:
        """Ask who lives, name who is lost or the odd one out, and leave with exit code 5. Never
        returns.

        symptom: None where another rank has raised the alarm or has ended. code: of a mistake of
        the user's, which one rank alone has met: all ranks leave with this code and the text of
        that rank. waited: an exchange waited in vain for the word of a rank.
        """
        # A signal that came first ends this rank. That the others leave for it too is no news.
        if self._ending or not self._leaving.acquire(blocking=False):
            self._sleep_until_gone()
        self.progress.halted = True
        # The other ranks print it too, and rank 0 writes it.
        symptom = None if symptom is None else masked(symptom)
        control, doing = self.control, self.progress.stated()
        text, status = f"{symptom or ECHO} in {doing}", "failed"
        speaks, peers = control.rank == 0, list[int]()
        if control.ranks > 1 and self.over is None:
            hang = symptom if kind == "hang" else ""
            answer = {**self.progress.status(), **self._where.stated(control.timeout_s)}
            answer["steps"] += control.steps  # both only grow, alike on all ranks
            answer |= self._stood_still()
            answer |= {"last": self.progress.last(), "ranks": control.ranks}
            if kind == "store":
                answer["damaged"] = symptom
            elif not hang and symptom is not None:
                answer["cause"] = symptom
            answer |= {"hang": hang, "waited": waited}
            if "still_s" in answer:
                kind = "hang"
            answer["code"] = code
            try:
                limit_s = 2 * self._grace_s + 1
                answers = self._store_client.ask(lambda: self._survey(answer), limit_s)
                witness = self._witness(symptom, kind, "still_s" in answer, waited)
                culprit = find(witness, answers, control.names)
                seen = self._seen(culprit.lost) if culprit.why is Why.LOST else ""
                text = culprit.text(doing, control.names, seen)
                kind, code = culprit.kind, culprit.code or code
                first = witness.first
                asked = asked_by(
                    control.rank, control.ranks, [*control.pids, first or control.rank]
                )
                speaks = all(answers[rank] is None for rank in asked if rank < control.rank)
                speaks = self._part(culprit.story(control.names), speaks)
                peers = [rank for rank, answer in enumerate(answers) if answer is not None]
                name = (answers[first or 0] or {}).get("signal")
                if culprit.why is Why.MET and name and self._signalled(MOMENT_S):
                    text, kind, status = f"{name} in {doing}", "signal", "interrupted"
                    code, speaks = 128 + signal.Signals[name], control.rank == 0
            except RuntimeError as error:
                alone: list[dict[str, Any]] = [{}] * control.rank + [answer]
                buffers = other_buffers(alone, control.names)
                lost = self._without_store(error)
                if still := stood_still(alone, control.names):
                    text = pause(still, symptom).text(doing, control.names)
                else:
                    text = f"{f'{buffers}; ' if buffers else ''}{lost}{text}"
                # Rank 0 may live without a store.
                speaks = control.rank in (0, self._first_here()) or bool(buffers)
                if not speaks:
                    # The rank that speaks leaves first: the first one to leave is what a launcher
                    # ends the others for.
                    rank = self._first_here()
                    deadline = time.monotonic() + GRACE_S
                    while time.monotonic() < deadline and rank not in dead_ranks(control.pids):
                        time.sleep(_POLL_S)
        self.leave(code or ExitCode.HANG, status, kind, text, speaks, peers)

    def _survey(self, status: dict[str, Any]) -> list[dict[str, Any] | None]:
        control = self.control
        status["lacks"] = control.lacking(self._store)
        if "still_s" in status:  # as its store may have, which then reads what the others wrote
            alarm(self._store, control.rank, status)
            deadline = time.monotonic() + MOMENT_S
            while time.monotonic() < deadline and not self._signalled():
                time.sleep(0.05)
        answers = survey(
            self._store,
            control.rank,
            control.ranks,
            control.pids,
            status,
            self._grace_s,
            self._signalled,
        )
        self._first = self._store.get("alarm")
        return answers

    def _part(self, story: str, speaks: bool) -> bool:
        """Whether this rank, which ``speaks``, tells the story. It asks nothing after it: the store
        may go at once, and a rank that missed it took rank 0 for lost.
        """
        control = self.control

        def ask() -> bool:
            first = speaks and claim_report(self._store, control.rank, story)
            record_leaving(self._store, control.rank)
            return first

        with contextlib.suppress(RuntimeError):
            return bool(self._store_client.ask(ask, GRACE_S))
        return speaks

    def _without_store(self, error: RuntimeError) -> str:
        """Why there is no store, which rank 0 serves or torchrun's agent."""
        control = self.control
        silent = isinstance(error, NoAnswer)
        self._store_gone = not silent
        of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if of_agent and os.getppid() != self._parent:
            return "the store is gone: torchrun's agent on this host has ended; "
        if 0 in dead_ranks(control.pids):
            return f"lost {control.name(0)}: "  # others that are gone may have left for that
        if 0 in control.pids:
            seen = seen_from_outside(control.pids[0])
            if "stopped" in seen:
                return f"lost {control.name(0)} (no answer; {seen}): "
        server = control.name(0)
        if of_agent:
            server = "torchrun's agent on the first node"
        this_rank = control.name(control.rank)
        self._store_gone, text = store_gone(self._store, this_rank, server, silent)
        return f"{text}; "

    @property
    def rank_0_ended(self) -> bool:
        """Seen on its own host; on others a store that it served is gone with it, while that of one
        that is stopped only says nothing.
        """
        control = self.control
        if not control.pids or control.rank == 0:
            return False
        if 0 in control.pids:
            return 0 in dead_ranks(control.pids)
        return self._store_gone and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def _first_here(self) -> int:
        """The rank that speaks for this host when the store is gone, and rank 0 with it."""
        return min(filter(None, self.control.pids), default=self.control.rank)

    def _witness(self, symptom: str | None, kind: str, still: bool, waited: bool) -> Witness:
        control, first = self.control, self._first.decode(errors="replace")
        return Witness(
            control.rank,
            symptom,
            kind,
            control.timeout_s,
            still,
            [*control.pids],
            dead_ranks(control.pids),
            int(first) if first.isdecimal() else None,
            waited,
        )

    def _seen(self, silent: Sequence[int]) -> str:
        """What the processes of silent ranks of this host do."""
        here = self.control.pids
        pids = [here[rank] for rank in silent if rank in here][:4]
        seen = dict.fromkeys(filter(None, map(seen_from_outside, pids)))
        return "".join(f"{text}; " for text in seen)

    def raise_alarm(self, cause: str) -> None:
        """This rank goes alone: tell the others, whose watchdogs then leave at once."""
        if self.control.ranks > 1:
            status = {**self.progress.status(), "cause": masked(cause)}
            with contextlib.suppress(RuntimeError):
                self._store_client.ask(
                    lambda: alarm(self._store, self.control.rank, status), GRACE_S
                )

    def leave(
        self,
        code: int,
        status: str,
        kind: str,
        text: str,
        speaks: bool,
        peers: Sequence[int] = (),
    ) -> NoReturn:
        """Write the last words and end the process, rank 0 after ``peers``. Never returns."""
        if not self._leaving.acquire(blocking=False):
            self._sleep_until_gone()
        self.progress.halted = True
        if self.over is not None:
            code, peers = self.over, []
        try:
            if self.over is None:
                self._final_report(status, int(code), kind, text, speaks)
            if self.control.rank == 0 and peers:
                with contextlib.suppress(RuntimeError):
                    grace, pids = self._grace_s, self.control.pids
                    self._store_client.ask(
                        lambda: wait_for_peers(self._store, peers, pids, grace), grace + 1
                    )
        finally:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(int(code))

    @staticmethod
    def _sleep_until_gone() -> NoReturn:
        while True:  # another thread is writing the last words and will end the process
            time.sleep(1)


def print_error(line: str, rank: int, speaks: bool) -> None:
    """The error of a command, in a line that one rank prints, and where torchrun looks for it.

    Secrets are masked in both.
    """
    line = masked(line)
    if speaks:
        with contextlib.suppress(OSError):  # a terminal that is gone
            tell(line)
    write_error_file(line, rank)


def write_error_file(message: str, rank: int) -> None:
    """Tell torchrun the message, which it repeats last, below its own report.

    torchrun shows the failure with the earliest time as the root cause, and of equal ones the first
    that it sees end (torch/distributed/elastic/multiprocessing/api.py). Rank 0 is to be that one:
    the others wait half a second for it (bench/main.py), which in whole seconds can be one; with
    two their time is later than any that it writes before they leave.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        data = {"message": message, "timestamp": int(time.time()) + (2 if rank else 0)}
        # Not where there is one, nor through a link.
        with contextlib.suppress(OSError), open(path, "x") as file:
            json.dump(data, file)
