"""How a rank leaves a run that has failed: it asks the others, names who failed, and exits, in a
thread, with ``os._exit``: a rank that waits inside a collective cannot be interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from torchcoll.bench import control as exchange
from torchcoll.bench import culprit as culprits
from torchcoll.bench.control import GRACE_S, MOMENT_S, Control, dead_ranks
from torchcoll.core.errors import ExitCode
from torchcoll.core.variables import masked

if TYPE_CHECKING:
    from torchcoll.bench.watchdog import Pauses, Progress, StackSampler

# Ranks that get the same signal wait so long for each other: Open MPI kills after a second.
_LINGER_S = 0.3
_SHOWING_S = 10.0  # how long a signal waits for the table of a run that is over
_ENDED_S = 0.2  # by then the kernel has closed all of a process that it ends
_POLL_S = 0.25


class NoAnswer(RuntimeError):
    """The store does not answer: its process is stopped. A store that is gone raises at once."""


class StoreClient:
    """Asks the store in a thread of its own, for a store whose process is stopped never answers.

    The thread is joined in the end: one that returns from C++ while Python ends takes the process
    with it ('terminate called without an active exception').
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


# Called with status, exit code, event kind, text, and whether this rank reports for all ranks.
FinalReport = Callable[[str, int, str, str, bool], None]


@dataclass
class Ending:
    """How this rank ends. kind, text: of the event in the file, and of the message.

    speaks: this rank prints the message for all ranks.
    peers: ranks that rank 0 waits for before it exits, because it may serve their store.
    """

    code: int
    status: str
    kind: str
    text: str
    speaks: bool
    peers: Sequence[int] = ()


class Departure:
    """Ends this rank, once: the first thread that wants to leave does, any other one waits.

    store: a client of the store that no other thread uses. final_report: called once.
    ask_every_s: how often the store is asked for an alarm at most.
    """

    def __init__(
        self,
        control: Control,
        store: Any,
        final_report: FinalReport,
        progress: Progress,
        sampler: StackSampler,
        pauses: Pauses,
        ask_every_s: float,
    ) -> None:
        self.control = control
        self.client = StoreClient()
        # Set when this rank has nothing more to report: ranks that end are no news any more.
        self.parting = threading.Event()
        # The exit code once the account of the run is closed: nothing changes it any more.
        self.closed_code: int | None = None
        self.ending = False  # a signal ends this rank
        self.signals = -1  # the descriptor from which the watchdog reads the numbers of signals
        self._store = store
        self._final_report = final_report
        self._progress, self._sampler, self._pauses = progress, sampler, pauses

        self._ask_every_s = ask_every_s
        self._asked = 0.0  # when the store was last asked for an alarm
        self._leaving = threading.RLock()
        self._store_gone = False
        self._parent = os.getppid()

    @property
    def grace_s(self) -> float:
        """How long to wait for the answers of the other ranks."""
        return exchange.grace_s(self._pauses.latest_s) + self._ask_every_s

    def _signalled(self, limit_s: float = 0.0) -> bool:
        """Whether a signal that ends this rank has come, which the watchdog may not have read."""
        return self.ending or readable(self.signals, limit_s) or self.ending

    def others_in_trouble(self) -> bool:
        """Whether another rank has raised the alarm, or the next rank of this host has ended."""
        return self._alarmed() or (not self.parting.is_set() and self._neighbour_ended())

    def _alarmed(self) -> bool:
        if self.control.ranks == 1 or self.closed_code is not None:
            return False
        now = time.monotonic()
        if now - self._asked < self._ask_every_s:
            return False
        self._asked = now
        with contextlib.suppress(RuntimeError):
            return bool(self.client.ask(lambda: self._store.check(["alarm"]), _POLL_S))
        return False

    def _neighbour_ended(self) -> bool:
        """A rank that waits for the store does not hear of a lost rank from the library. Each rank
        checks one neighbour, and the alarm does the rest.
        """
        here = [*self.control.pids]
        if len(here) < 2:
            return False
        following = here[(here.index(self.control.rank) + 1) % len(here)]
        return bool(dead_ranks({following: self.control.pids[following]}))

    def raise_alarm(self, cause: str) -> None:
        """Tell the other ranks that this one leaves alone; their watchdogs then leave at once."""
        if self.control.ranks > 1:
            status = {**self._progress.status(), "cause": masked(cause)}
            rank = self.control.rank
            with contextlib.suppress(RuntimeError):
                self.client.ask(lambda: exchange.alarm(self._store, rank, status), GRACE_S)

    def interrupt(self, number: int) -> NoReturn:
        """Leave because of this signal. Never returns."""
        if self.closed_code is not None:  # the measuring thread still prints its table
            self.parting.wait(_SHOWING_S)
        # After a rank is lost launchers end the others: the lost rank is the news, not the signal.
        self.ending = True
        # Halted first, so that the file names the case in flight now.
        self._progress.halted = True
        control, name, doing = self.control, signal.Signals(number).name, self._progress.stated()
        if self.closed_code is None and control.ranks > 1:
            lost, buffers, still = self._lost_before(name)
            if still and number == signal.SIGTERM:
                text = culprits.pause(still, name).text(doing, control.names)
                self._leave(Ending(ExitCode.HANG, "failed", "hang", text, True))
            if lost and number == signal.SIGTERM:
                speaks = control.rank == min({*range(control.ranks)} - {*lost})
                text = f"{f'{buffers}; ' if buffers else ''}lost {control.names(lost)} in {doing}"
                self._leave(Ending(ExitCode.HANG, "failed", "lost_rank", text, speaks))
        text = f"{name} in {doing}{self._not_come()}"
        # A rank that gets the same signal later asks the store of rank 0 who has left, and why.
        peers = range(len(control.hosts))
        speaks = control.rank == 0
        self._leave(Ending(128 + number, "interrupted", "signal", text, speaks, peers))

    def _not_come(self) -> str:
        """The ranks that rank 0 still waits for, if the run ends before all have met."""
        control = self.control
        if control.hosts or control.rank:
            return ""
        with contextlib.suppress(RuntimeError):
            absent = self.client.ask(lambda: control.lacking(self._store), _LINGER_S)
            return f"; no word yet from {control.names(absent)}" if absent else ""
        return ""

    def _lost_before(self, name: str) -> tuple[list[int], str, str]:
        """What other ranks did before the signal ``name`` came, which may be its reason: the ranks
        that ended without a status, and clauses about other buffers and about standing still.
        """
        control = self.control
        here = dead_ranks(control.pids)
        status = {**self._progress.status(), "signal": name, "dead": here}
        status |= self._pauses.stated(control.timeout_s)
        status["last"] = self._progress.last()
        alone: list[dict[str, Any]] = [{}] * control.rank + [status]
        still = culprits.stood_still(alone, control.names)

        def ask() -> tuple[list[int], str, str]:
            answers = exchange.survey(
                self._store, control.rank, control.ranks, control.pids, status, _LINGER_S
            )
            dead_lists = [answer.get("dead", []) for answer in answers if answer]
            dead = {*dead_ranks(control.pids)}.union(*dead_lists)
            lost = sorted(
                rank
                for rank in dead
                if not answers[rank] and not self._store.check([f"alive/{rank}"])
            )
            exchange.record_leaving(self._store, control.rank)
            left = dead or any(answer and answer.get("hang") for answer in answers)
            buffers = culprits.other_buffers(answers, control.names)
            return lost, buffers, still if left else ""

        try:
            losses: tuple[list[int], str, str] = self.client.ask(ask, _LINGER_S + GRACE_S)
            return losses
        except RuntimeError:
            return here, culprits.other_buffers(alone, control.names), still

    def abort(
        self,
        symptom: str | None,
        kind: str = "lost_rank",
        code: int | None = None,
        waited: bool = False,
    ) -> NoReturn:
        """Ask who lives, name who is lost or out of step, and leave with exit code 5.

        symptom: what this rank has met; None if another rank has raised the alarm or has ended.
        code: the exit code of a user's mistake that this rank alone has met, for all ranks.
        waited: an exchange waited in vain for the value of a rank.
        """
        # A signal that came first ends this rank: then it is no news that other ranks leave too.
        if self.ending or not self._leaving.acquire(blocking=False):
            self._sleep_until_gone()
        self._progress.halted = True
        # The other ranks print it too, and rank 0 writes it.
        symptom = None if symptom is None else masked(symptom)
        doing = self._progress.stated()
        text = f"{symptom or culprits.ECHO} in {doing}"
        ending = Ending(code or ExitCode.HANG, "failed", kind, text, self.control.rank == 0)
        if self.control.ranks > 1 and self.closed_code is None:
            status = self._status(symptom, kind, code, waited)
            if "still_s" in status:
                ending.kind = "hang"
            try:
                ending = self._ask_others(symptom, ending.kind, doing, status)
            except RuntimeError as error:
                self._judge_alone(error, symptom, doing, status, ending)
        self._leave(ending)

    def _status(
        self, symptom: str | None, kind: str, code: int | None, waited: bool
    ) -> dict[str, Any]:
        """What this rank tells the others about itself: a Status of bench/culprit.py."""
        control = self.control
        status = {**self._progress.status(), **self._sampler.stated(control.timeout_s)}
        status["steps"] += control.steps  # both only grow, alike on all ranks
        status |= self._pauses.stated(control.timeout_s)
        status |= {"last": self._progress.last(), "ranks": control.ranks}
        hang = symptom if kind == "hang" else ""
        if kind == "store":
            status["damaged"] = symptom
        elif not hang and symptom is not None:
            status["cause"] = symptom
        return status | {"hang": hang, "waited": waited, "code": code}

    def _ask_others(
        self, symptom: str | None, kind: str, doing: str, status: dict[str, Any]
    ) -> Ending:
        """The ending that the statuses of all ranks explain. Raises RuntimeError."""
        control = self.control
        limit_s = 2 * self.grace_s + 1
        answers, first = self.client.ask(lambda: self._survey(status), limit_s)
        asker = (control.rank, symptom, kind, control.timeout_s, "still_s" in status)
        here, gone = [*control.pids], dead_ranks(control.pids)
        witness = culprits.Witness(*asker, here, gone, first, status["waited"])
        culprit = culprits.find(witness, answers, control.names)
        seen = self._seen(culprit.lost) if culprit.why is culprits.Why.LOST else ""
        asked = exchange.asked_by(
            control.rank, control.ranks, [*control.pids, first or control.rank]
        )
        speaks = all(answers[rank] is None for rank in asked if rank < control.rank)
        speaks = self._claim_report(culprit.story(control.names), speaks)
        peers = [rank for rank, answer in enumerate(answers) if answer is not None]
        name = (answers[first or 0] or {}).get("signal")
        if culprit.why is culprits.Why.MET and name and self._signalled(MOMENT_S):
            code, speaks = 128 + signal.Signals[name], control.rank == 0
            return Ending(code, "interrupted", "signal", f"{name} in {doing}", speaks, peers)
        text = culprit.text(doing, control.names, seen)
        code = culprit.code or status["code"] or ExitCode.HANG
        return Ending(code, "failed", culprit.kind, text, speaks, peers)

    def _survey(self, status: dict[str, Any]) -> tuple[list[dict[str, Any] | None], int | None]:
        """(the status of every rank, the rank that raised the alarm first)."""
        control = self.control
        status["lacks"] = control.lacking(self._store)
        if "still_s" in status:  # as its store may have, which then reads what the others wrote
            exchange.alarm(self._store, control.rank, status)
            deadline = time.monotonic() + MOMENT_S
            while time.monotonic() < deadline and not self._signalled():
                time.sleep(0.05)
        asking = (self._store, control.rank, control.ranks, control.pids)
        answers = exchange.survey(*asking, status, self.grace_s, self._signalled)
        first = self._store.get("alarm").decode(errors="replace")
        return answers, int(first) if first.isdecimal() else None

    def _seen(self, silent: Sequence[int]) -> str:
        """What the processes of silent ranks of this host do."""
        here = self.control.pids
        pids = [here[rank] for rank in silent if rank in here][:4]
        seen = dict.fromkeys(filter(None, map(seen_from_outside, pids)))
        return "".join(f"{text}; " for text in seen)

    def _claim_report(self, story: str, speaks: bool) -> bool:
        """Whether this rank, which ``speaks``, prints the story. It asks the store nothing later:
        the store may go at once, and a rank that missed it took rank 0 for lost.
        """
        control = self.control

        def ask() -> bool:
            first = speaks and exchange.claim_report(self._store, control.rank, story)
            exchange.record_leaving(self._store, control.rank)
            return first

        with contextlib.suppress(RuntimeError):
            return bool(self.client.ask(ask, GRACE_S))
        return speaks

    def _judge_alone(
        self,
        error: RuntimeError,
        symptom: str | None,
        doing: str,
        status: dict[str, Any],
        ending: Ending,
    ) -> None:
        """Complete the ending of this rank if ``error`` says that there is no store to ask."""
        control = self.control
        alone: list[dict[str, Any]] = [{}] * control.rank + [status]
        buffers = culprits.other_buffers(alone, control.names)
        lost = self._why_no_store(error)
        if still := culprits.stood_still(alone, control.names):
            ending.text = culprits.pause(still, symptom).text(doing, control.names)
        else:
            ending.text = f"{f'{buffers}; ' if buffers else ''}{lost}{ending.text}"
        # The first rank of the host speaks for it: rank 0 may be gone, or live without a store.
        first_here = min(filter(None, control.pids), default=control.rank)
        ending.speaks = control.rank in (0, first_here) or bool(buffers)
        if not ending.speaks:
            # The rank that speaks leaves first: a launcher ends all ranks once one has left.
            deadline = time.monotonic() + GRACE_S
            while time.monotonic() < deadline and first_here not in dead_ranks(control.pids):
                time.sleep(_POLL_S)

    def _why_no_store(self, error: RuntimeError) -> str:
        """Why the store of rank 0, or of torchrun's agent, cannot be asked."""
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
        server = "torchrun's agent on the first node" if of_agent else control.name(0)
        this_rank = control.name(control.rank)
        self._store_gone, text = store_gone(self._store, this_rank, server, silent)
        return f"{text}; "

    @property
    def rank_0_ended(self) -> bool:
        """Whether rank 0 is gone: by its process, or on other hosts by the store that it served."""
        control = self.control
        if not control.pids or control.rank == 0:
            return False
        if 0 in control.pids:
            return 0 in dead_ranks(control.pids)
        return self._store_gone and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def _leave(self, ending: Ending) -> NoReturn:
        """Write the final report and end the process. Never returns."""
        if not self._leaving.acquire(blocking=False):
            self._sleep_until_gone()
        self._progress.halted = True
        code, peers = int(ending.code), ending.peers
        if self.closed_code is not None:
            code, peers = self.closed_code, []
        try:
            if self.closed_code is None:
                self._final_report(ending.status, code, ending.kind, ending.text, ending.speaks)
            if self.control.rank == 0 and peers:
                with contextlib.suppress(RuntimeError):
                    grace, pids = self.grace_s, self.control.pids
                    self.client.ask(
                        lambda: exchange.wait_for_peers(self._store, peers, pids, grace), grace + 1
                    )
        finally:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(code)

    @staticmethod
    def _sleep_until_gone() -> NoReturn:
        while True:  # another thread writes the final report and ends the process
            time.sleep(1)


def readable(descriptor: int, limit_s: float) -> bool:
    """Whether there is something to read in time. ``select`` takes no descriptor from 1024 on."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * limit_s))


def store_gone(store: Any, this_rank: str, server: str, silent: bool) -> tuple[bool, str]:
    """(whether the store is gone, why this rank cannot ask it). silent: no connection broke."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    try:
        # Twice: a process that is being killed loses its connections before its listening socket.
        with contextlib.suppress(ConnectionResetError):
            socket.create_connection((store.host, store.port), timeout=1).close()
        time.sleep(_ENDED_S)
        socket.create_connection((store.host, store.port), timeout=1).close()
    except AttributeError:  # of a file
        return not silent, f"the store is gone, lost {server}?"
    except ConnectionRefusedError:
        return True, f"the store is gone, lost {server}, which serves it?"
    except OSError as error:
        gone = f"{this_rank} is cut off from the store: its own connection is gone"
        if error.errno in (errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL):
            return False, f"{gone} ({error.strerror})"
        return not silent, f"{gone}, or that of {server}, which serves it"
    if silent:  # the kernel takes connections for a process that is stopped
        return False, f"the store does not answer, lost {server}, which serves it?"
    return False, f"{this_rank} is cut off from the store, which lives: its own connection is gone"


def seen_from_outside(pid: int) -> str:
    """What a process of this host does, as the kernel sees it; '' if that is not known."""
    # Only the main thread: threads of the library may use a little CPU time at any time.
    path = f"/proc/{pid}/task/{pid}/stat"
    first = text_of(path)
    letter = state_letter(first)
    if letter in ("T", "t"):
        return "its process is stopped"
    if letter == "D":
        return "its process waits for a disk or a device"
    time.sleep(0.2)
    last = text_of(path)
    ticks = [_ticks(text) for text in (first, last)]
    if None in ticks or not letter:
        return ""
    # Its threads cannot run Python while native code keeps the lock.
    used = (ticks[1] or 0) > (ticks[0] or 0) or "R" in (letter, state_letter(last))
    return f"its process {'spins' if used else 'sleeps or waits'} in native code"


def _ticks(stat: str) -> int | None:
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else None


def state_letter(stat: str) -> str:
    """The state in the text of a file ``stat``: a letter of proc(5)."""
    return stat.rpartition(")")[2].strip()[:1]


def text_of(path: str) -> str:
    """The text of a small file; '' if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
