"""Nobody hangs: a thread that ends this rank when nothing moves, or when a signal comes.

A rank that waits inside a collective cannot be interrupted from Python, so the thread leaves by
``os._exit`` after the last words are written. It watches without touching the measurement: it
reads counters in memory four times a second and asks the store only when nothing moved.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from typing import Any, NoReturn

from torchcoll.bench.control import GRACE_S, Control, alarm, dead_ranks, survey
from torchcoll.core.errors import ExitCode

_POLL_S = 0.25
_QUIET_S = 1.0  # without progress for so long, the store is asked whether another rank saw trouble
# A rank that a signal ended so long ago is not taken for lost by one that gets the same signal now.
_LINGER_S = 0.3
_ECHO = "another rank reports trouble"


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

    def beat(self) -> None:
        self.beats += 1

    def step(self, doing: str, samples: Sized = ()) -> None:
        self.doing = doing
        self.steps += 1 + len(self.samples)
        self.samples = samples

    @property
    def done(self) -> int:
        return self.steps + len(self.samples)

    def told(self) -> list[Any]:
        """[steps, text] for the others."""
        calls = f", call {len(self.samples)}" if self.samples else ""
        return [self.done, self.doing + calls]


# What the end of a run is told: status, exit code, event kind, text, and whether this rank is the
# one that speaks for all. On rank 0 it writes the file.
LastWords = Callable[[str, int, str, str, bool], None]


class Watchdog:
    """Watches ``progress`` of this rank; ``close`` ends it.

    ``last_words`` is called once, by whichever thread is first to leave. ``signals``: take SIGTERM
    and SIGINT (the command does; inside somebody's training they are not ours).
    """

    def __init__(
        self,
        control: Control,
        store: Any,
        progress: Progress,
        last_words: LastWords,
        signals: bool = False,
    ) -> None:
        self.control = control
        self.progress = progress
        self._store = store
        self._last_words = last_words
        self.parting = False  # ranks that end are no news any more
        self._leaving = threading.Lock()
        self._asking: threading.Thread | None = None
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._handlers: dict[int, Any] = {}
        if signals:
            self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, lambda *_: None)
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="torchcoll-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and give the signals back."""
        self._closed = True
        os.write(self._write, b"\0")
        self._thread.join()
        if self._handlers:
            signal.set_wakeup_fd(self._old_fd)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _watch(self) -> None:
        last, since = self._signs(), time.monotonic()
        while not self._closed:
            if select.select([self._read], [], [], _POLL_S)[0]:
                for number in os.read(self._read, 16):
                    if number in self._handlers:  # others have handlers of their own
                        self._on_signal(number)
                continue
            now = time.monotonic()
            if self._signs() != last:
                last, since = self._signs(), now
            elif now - since > self.control.timeout_s:
                self.trouble(f"no progress for {self.control.timeout_s:g} s", "hang")
            elif now - since > _QUIET_S and (
                self._alarmed() or (not self.parting and self._neighbour_ended())
            ):
                self.trouble(_ECHO)

    def _signs(self) -> tuple[int, int]:
        return self.progress.done, self.progress.beats

    def _neighbour_ended(self) -> bool:
        """Whether the next rank of this host is gone: one look each, and the alarm tells the rest.

        A rank that waits in a collective hears it from the library, one that waits for the store
        does not.
        """
        members, rank = self.control.members, self.control.rank
        here = [m["rank"] for m in members if m["host"] == members[rank]["host"]]
        if len(here) < 2:
            return False
        following = here[(here.index(rank) + 1) % len(here)]
        return bool(dead_ranks([members[rank], members[following]], 0))

    def _alarmed(self) -> bool:
        if self.control.ranks == 1 or (self._asking and self._asking.is_alive()):
            return False
        with contextlib.suppress(RuntimeError):
            return bool(self._ask(lambda: self._store.check(["alarm"]), _POLL_S))
        return False

    def _ask(self, question: Callable[[], Any], limit_s: float) -> Any:
        """The answer of the store, asked in a thread of its own: a store whose process is stopped
        never answers. Raises RuntimeError when there is none in time.
        """
        answers: list[Any] = []

        def ask() -> None:
            with contextlib.suppress(RuntimeError):
                answers.append(question())

        self._asking = threading.Thread(target=ask, name="torchcoll-store", daemon=True)
        self._asking.start()
        self._asking.join(limit_s)
        if not answers:
            raise RuntimeError("no answer from the store")
        return answers[0]

    def _on_signal(self, number: int) -> None:
        # torchrun ends the survivors with SIGTERM within 0.1 s when a rank is lost: then the lost
        # rank is the news, not the signal.
        rank = self.control.rank
        dead = dead_ranks(self.control.members, rank)
        if number == signal.SIGTERM and dead:
            speaks = rank == min({*range(self.control.ranks)} - {*dead})
            self.leave(ExitCode.HANG, "failed", "lost_rank", self._lost(dead), speaks)
        name = signal.Signals(number).name
        text = f"{name} in {self.progress.told()[1]}"
        linger_s = _LINGER_S if self.control.ranks > 1 else 0.0
        self.leave(128 + number, "interrupted", "signal", text, rank == 0, linger_s)

    def _lost(self, ranks: list[int]) -> str:
        names = ", ".join(self.control.name(rank) for rank in ranks)
        return f"lost {names} in {self.progress.told()[1]}"

    def trouble(self, symptom: str, kind: str = "lost_rank") -> NoReturn:
        """Ask who lives, name who is lost or behind, and leave with exit code 5. Never returns."""
        if not self._leaving.acquire(blocking=False):
            self._sleep_until_gone()
        control, told = self.control, self.progress.told()
        text = f"{symptom} in {told[1]}"
        speaks = control.rank == 0
        if control.ranks > 1:
            hang = symptom if kind == "hang" else ""
            words = [*told, "" if hang or symptom == _ECHO else symptom, hang]
            try:
                answers = self._ask(
                    lambda: survey(
                        self._store, control.rank, control.ranks, control.members, words
                    ),
                    2 * GRACE_S + 1,
                )
                hangs = [answer[3] for answer in answers if answer and answer[3]]
                if symptom == _ECHO and hangs:  # another rank's patience ended first
                    symptom, kind = hangs[0], "hang"
                text = self._verdict(symptom, answers)
                speaks = all(answer is None for answer in answers[: control.rank])
            except RuntimeError:
                text = f"the store is gone, lost {control.name(0)}? {text}"
                speaks = control.rank == self._first_here()
        self._leave(ExitCode.HANG, "failed", kind, text, speaks)

    def _first_here(self) -> int:
        """The rank that speaks for this host when the store is gone, and rank 0 with it."""
        members, rank = self.control.members, self.control.rank
        if not members:
            return rank
        host = members[rank]["host"]
        return min((m["rank"] for m in members if m["host"] == host and m["rank"]), default=rank)

    def _verdict(self, symptom: str, answers: list[list[Any] | None]) -> str:
        doing = self.progress.told()[1]
        # What a rank met itself explains more than that another reports trouble.
        causes = [(rank, answer[2]) for rank, answer in enumerate(answers) if answer and answer[2]]
        if causes:
            symptom = f"{self.control.name(causes[0][0])}: {causes[0][1]}"
        silent = [rank for rank, answer in enumerate(answers) if answer is None]
        if silent:
            return f"{self._lost(silent)} (no answer; {symptom})"
        done = [answer[0] for answer in answers if answer]
        behind = [rank for rank, steps in enumerate(done) if steps < max(done)]
        if behind:
            at = answers[behind[0]]
            return f"{symptom} in {doing}; behind: {self.control.names(behind)}, in {at and at[1]}"
        return f"{symptom} in {doing}{'' if causes else '; all ranks wait at the same place'}"

    def raise_alarm(self, cause: str) -> None:
        """This rank goes alone: tell the others, whose watchdogs then leave at once."""
        if self.control.ranks > 1:
            told = [*self.progress.told(), cause, ""]
            with contextlib.suppress(RuntimeError):
                self._ask(lambda: alarm(self._store, self.control.rank, told), GRACE_S)

    def leave(
        self, code: int, status: str, kind: str, text: str, speaks: bool, linger_s: float = 0.0
    ) -> NoReturn:
        """Write the last words and end the process. Never returns."""
        if not self._leaving.acquire(blocking=False):
            self._sleep_until_gone()
        self._leave(code, status, kind, text, speaks, linger_s)

    def _leave(
        self, code: int, status: str, kind: str, text: str, speaks: bool, linger_s: float = 0.0
    ) -> NoReturn:
        try:
            self._last_words(status, int(code), kind, text, speaks)
            time.sleep(linger_s)
        finally:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(int(code))

    @staticmethod
    def _sleep_until_gone() -> NoReturn:
        while True:  # another thread is writing the last words and will end the process
            time.sleep(1)


def write_error_file(message: str, rank: int) -> None:
    """Tell torchrun the message, which it repeats last, below its own report.

    torchrun shows the failure with the earliest time as the root cause; rank 0 is to be that one.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and not os.path.exists(path):
        data = {"message": message, "timestamp": int(time.time()) + (1 if rank else 0)}
        with contextlib.suppress(OSError), open(path, "w") as file:
            json.dump(data, file)
