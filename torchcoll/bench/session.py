"""One launch: set up, run the cases, collect the samples on rank 0.

``run`` is the public function; the command (bench/main.py) drives the same Session and adds a file
and a table.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torchcoll.bench.communicators import Communicators
from torchcoll.bench.control import GRACE_S, Control, alarm, own_part, store_of
from torchcoll.bench.measure import measure_case
from torchcoll.bench.watchdog import Progress, Watchdog
from torchcoll.core import backends
from torchcoll.core.case import Sizing, fingerprint
from torchcoll.core.errors import (
    ExitCode,
    HangError,
    TorchcollError,
    UnavailableError,
    UsageError,
    tell,
)
from torchcoll.core.spec import Spec
from torchcoll.core.variables import masked_words
from torchcoll.machine import environment
from torchcoll.machine.devices import cost_of_measuring, open_device, refuse_shared
from torchcoll.machine.launcher import Launch, detect

if TYPE_CHECKING:
    from torchcoll.bench.library_log import LibraryLog
    from torchcoll.bench.recorder import Recorder
    from torchcoll.core.result import CaseResult, Run
    from torchcoll.machine.state import Watch


# -------------------------------------------------------------------------------------------------
# The state of the machines before and after a run: one rank of each host looks, all hear of it.


class Hosts:
    """The first rank of each host looks at it; ``before`` is what it saw, None on other ranks.

    places: host and device of each rank. Collective. Raises UnavailableError on all ranks with
    ``require_idle`` where others use a host.
    """

    def __init__(
        self, session: Session, places: Sequence[tuple[str, str | None]], require_idle: bool
    ) -> None:
        self._session = session
        self._watch: Watch | None = None
        self.before: dict[str, Any] | None = None
        here, _ = places[session.rank]
        on_host = [rank for rank, (host, _) in enumerate(places) if host == here]
        busy = None
        if session.rank == on_host[0]:
            from torchcoll.machine.state import Watch

            devices = [place for rank in on_host if (place := places[rank][1])]
            pids = [session.control.members[rank]["pid"] for rank in on_host]
            self._watch = Watch(session.device.kind, devices, pids)
            self.before = self._watch.before()
            busy = self._watch.why_busy(self.before) if require_idle else None
        # Asked in any case: no phase is to begin with waiting for those who look.
        found = [text for text in session.control.all_gather(busy) if text]
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise UnavailableError(
                "require-idle",
                f"{found[0]}{more}",
                "a machine that nobody else uses",
                "Wait, end that, or leave --require-idle out.",
            )

    def look_again(self) -> None:
        """Record the state after the run, and what has changed. Collective."""
        session = self._session
        session.progress.step("state of the machine")
        states = session.control.gather(self._watch and [self.before, self._watch.after()])

        def keep(recorder: Recorder) -> None:
            from torchcoll.bench.recorder import keep_after

            keep_after(recorder, list(filter(None, states)), session.device.kind)

        session.on_rank_0(keep)


# -------------------------------------------------------------------------------------------------

OnCase = Callable[["CaseResult"], None]


def run(spec: Spec, on_case: OnCase | None = None) -> Run | None:
    """Measure ``spec`` on all ranks of this launch; the Run on rank 0, None elsewhere.

    Uses the default process group when there is one (its backend, or ``spec.backend`` in a new
    group), else the launcher's variables, else one rank; leaves things as it found them.
    ``on_case`` is called on rank 0 with each CaseResult as it is ready. A rank that hangs, is lost
    or leaves by an error of its own (in ``on_case``, Ctrl-C) ends the processes of the others with
    exit code 5. Raises UsageError and UnavailableError, on all ranks.
    """
    import torch

    session = Session(torch, spec, on_case=on_case)
    with opened(session):
        session.sweep()
    return session.run


@contextlib.contextmanager
def opened(session: Session) -> Iterator[None]:
    """``session`` open; closed whatever happens, and the other ranks told where this one goes
    alone.
    """
    lost = False
    try:
        session.open()
        yield
        session.finish("complete", *session.outcome())
    except TorchcollError as error:
        lost = isinstance(error, HangError)
        session.finish("failed", int(error.exit_code), str(error))
        raise
    except BaseException as error:
        lost = True
        if session.watchdog:
            session.watchdog.raise_alarm(f"{type(error).__name__}: {error}")
        raise
    finally:
        session.close(lost)


class Session:
    """The life of one launch on one rank. ``recorder`` and ``run`` exist on rank 0 alone.

    open -> sweep -> finish -> close. ``asked`` is a hash that must be equal on all ranks.
    ``phases`` are durations that the caller has measured already. ``on_last_words`` (exit code,
    text, whether this rank speaks for all) is the command's: with it signals are taken too.
    ``earlier`` gives rank 0's Spec, where it comes from a file that only rank 0 reads.
    ``library_log``: --library-log. ``require_idle``: refuse to open where others use the machine.
    ``result_file``: where rank 0 writes.
    """

    def __init__(
        self,
        torch: Any,
        spec: Spec,
        on_case: OnCase | None = None,
        launch: Launch | None = None,
        emit: Callable[[str, dict[str, Any]], None] = lambda record, data: None,
        asked: str = "",
        argv: list[str] | None = None,
        phases: dict[str, int] | None = None,
        earlier: Callable[[], Spec] | None = None,
        on_last_words: Callable[[int, str, bool], None] | None = None,
        library_log: LibraryLog | None = None,
        require_idle: bool = False,
        result_file: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self.torch = torch
        self.dist = torch.distributed
        self.spec = spec
        self.on_case = on_case
        self.found_group = bool(self.dist.is_available() and self.dist.is_initialized())
        self.launch = launch or self._launch()
        self.rank, self.ranks = self.launch.rank, self.launch.ranks
        self.phases = dict(phases or {})
        self.argv = None if argv is None else masked_words(argv)
        self.progress = Progress()
        self.watchdog: Watchdog | None = None
        self.communicators = Communicators(self)
        self._asked = asked or fingerprint(spec.to_json())
        self._earlier = earlier
        self._on_last_words = on_last_words
        self.library_log = library_log
        self._began = time.monotonic()
        self._code: int | None = None  # the run's exit code, once it has one
        self.has_called = False  # some case has made its first call
        self._cost_known = False
        self._rehearsal_over: Callable[[], None] | None = None
        self._weights = ""  # hash of the weights of uneven blocks
        self._require_idle = require_idle
        self._result_file = result_file
        self._file: list[str] | None = None  # where rank 0 writes, and the run's id
        self._hosts: Hosts | None = None  # where ranks communicate
        self.recorder: Recorder | None = None
        if self.rank == 0:
            from torchcoll.bench.recorder import Recorder
            from torchcoll.core.result import Run

            self.recorder = Recorder(Run(), emit)

    @property
    def run(self) -> Run | None:
        return self.recorder.run if self.recorder else None

    @property
    def _fake(self) -> bool:
        """A world of which this process is the only rank."""
        return not (self.spec.communicates or self.found_group)

    def _launch(self) -> Launch:
        if not self.found_group:
            return detect()
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        return Launch("process group", self.dist.get_rank(), self.dist.get_world_size(), local_rank)

    # -- set-up ------------------------------------------------------------------------------

    def open(self) -> None:
        """Rendezvous, hello, device, header, process groups, ranks and phases. Collective."""
        self._rendezvous()
        self._hello()
        self.on_rank_0(lambda recorder: self._read_earlier())
        self.spec = Spec.from_json(self.control.decide(self.spec.to_json()))
        self.control.timeout_s = self.spec.timeout_s
        self._open_device()
        if self.entries[0].communicates:
            self._hosts = Hosts(self, self._places, self._require_idle)
        names = ",".join(entry.name for entry in self.entries)
        self.spec = replace(self.spec, backend=names, device=self.device.kind)
        self.parts: tuple[tuple[int, ...], ...] = (tuple(range(self.ranks)),)
        if self.spec.groups:
            from torchcoll.core.case import partition

            self.parts = partition(self.spec.groups, self.ranks)
        self.part = next(part for part in self.parts if self.rank in part)
        self.sizings = self.spec.sizings(max(map(len, self.parts)))
        if self.spec.has_splits:
            from torchcoll.core.splits import split_weights

            weights = split_weights(self.spec.splits, self.sizings[0].ranks)
            self._weights = fingerprint([list(row) for row in weights.rows])
        self.on_rank_0(self._write_header)
        self._file = self.control.decide(self._file)
        if self.library_log:
            self.library_log.start(self)
        self.communicators.open(self._phase)
        self._exchange_members()

    def _write_header(self, recorder: Recorder) -> None:
        from torchcoll.bench.recorder import header

        recorder.header(header(self))
        if path := self._result_file():
            self._file = [os.path.abspath(path), recorder.run.header["run_id"]]

    def _read_earlier(self) -> None:
        if self._earlier:
            self.spec = self._earlier()

    def on_rank_0(self, action: Callable[[Recorder], object]) -> None:
        """What may fail on rank 0 alone (opening the file): then every rank raises its error."""
        failure = None
        if self.recorder:
            try:
                action(self.recorder)
            except TorchcollError as error:
                failure = error
        told = self.control.decide(failure and [str(failure), int(failure.exit_code)])
        if told:
            refusal = failure or TorchcollError(told[0])
            refusal.exit_code = ExitCode(told[1])
            raise refusal

    @contextlib.contextmanager
    def _phase(self, name: str) -> Any:
        self.progress.step(name)
        start = time.perf_counter_ns()
        yield
        self.phases[name] = time.perf_counter_ns() - start

    def _rendezvous(self) -> None:
        with self._phase("rendezvous"):
            limit_s = self.spec.timeout_s
            store = store_of(self.torch, self.launch, limit_s, self.found_group, self._fake)
        # A fake world has one participant, which agrees with itself.
        participants = 1 if self._fake else self.ranks
        self.store, client = own_part(self.dist, store, participants > 1)
        self.control = Control(self.store, self.rank, participants, self.spec.timeout_s)
        try:
            self.watchdog = Watchdog(
                self.control,
                client,
                self.progress,
                self._last_words,
                signals=self._on_last_words is not None,
            )
        except RuntimeError as error:
            if participants > 1:
                alarm(client, self.rank, {**self.progress.word(), "cause": str(error)})
            from torchcoll.bench.meeting import no_thread

            raise no_thread(error) from None

    def _hello(self) -> None:
        """Every rank says who it is and what it was asked; the odd one is named."""
        words = {
            "host": environment.hostname(),
            "pid": os.getpid(),
            "rank": self.rank,
            "asked": self._asked,
            "argv": " ".join(self.argv or []),
        }
        self.control.members = self.control.all_gather(words)
        self.progress.step("hello")
        if len({member["asked"] for member in self.control.members}) > 1:
            from torchcoll.bench.control import of_arguments

            raise of_arguments(self.control, self.spec)

    def _open_device(self) -> None:
        """Backends and this rank's device; what any rank lacks, every rank raises."""
        refusal, where = None, None
        try:
            names, kind = self.spec.backend, self.spec.device
            if self.found_group and names is None:
                names = backends.found_backend(self.torch, kind)
            self.entries, kind = backends.choose_backends(self.torch, names, kind)
            if self.library_log:
                self.library_log.ask_for(self.entries)
            if self.spec.rehearse:
                from torchcoll.bench.communicators import begin

                self._rehearsal_over = begin(self, kind)
            if any(entry.interfaces in os.environ for entry in self.entries):
                from torchcoll.machine.placement import check_interfaces

                check_interfaces(self.entries)
            with self._phase("device"):
                self.device = open_device(self.torch, kind, self.launch, self.spec.rehearse)
            where = [environment.hostname(), environment.device_place(self.torch, self.device)]
        except TorchcollError as error:
            refusal = error
        places = self.control.agree(refusal, where)
        self._places: list[tuple[str, str | None]] = [tuple(place) for place in places]
        if self.device.kind != "cpu" and not self.spec.rehearse:
            refuse_shared(self._places)

    def _exchange_members(self) -> None:
        own = environment.member(self.torch, self.launch, self.device)
        made = {
            entry.name: backends.implementation(
                self.torch, self.communicators.whole(entry.name), self.device.name
            )
            for entry in self.entries
        }
        words = {**own, "implementation": made, "variables": environment.variables()}
        words |= {"phases": self.phases, "machine": self._hosts and self._hosts.before}
        gathered = self.control.gather(words)

        def keep(recorder: Recorder) -> None:
            from torchcoll.bench.recorder import keep_members

            keep_members(self, recorder, gathered, self._places)

        self.on_rank_0(keep)

    # -- the sweep ---------------------------------------------------------------------------

    def sweep(self, which: Sequence[int] | None = None) -> None:
        """Run the cases of these indices (None: all); results go to recorder and ``on_case``."""
        for index in range(len(self.sizings)) if which is None else which:
            self.one_case(self.sizings[index])
        if self.library_log:
            self.library_log.keep_timings(self)
        if which != [] and self._hosts:
            self._hosts.look_again()

    def one_case(self, sizing: Sizing) -> None:
        case, start_ns, wall_us = sizing.case, time.perf_counter_ns(), time.time_ns() // 1000
        self.progress.step(case.describe())
        verdict = self.agree_on_case(sizing)
        self.on_rank_0(lambda recorder: recorder.started(case))
        results = measure_case(self, sizing, verdict)
        for result in results:
            result.start_ns, result.start_wall_us = start_ns, wall_us
            result.spent_ns["case"] = time.perf_counter_ns() - start_ns
        if self.library_log:
            self.library_log.join(self, case, results)
        self.on_rank_0(lambda recorder: self._keep(recorder, results))
        if self.has_called and not self._cost_known:
            self._cost_of_measuring(case.backend)

    def _keep(self, recorder: Recorder, results: list[CaseResult]) -> None:
        for result in results:
            recorder.case(result)
            if self.on_case:
                self.on_case(result)

    def agree_on_case(self, sizing: Sizing) -> list[str] | None:
        """[status, reason] where the case is not to run: decided by rank 0 for all."""
        seen = fingerprint([sizing.case.to_json(), sizing.count, self._weights])
        words = self.control.gather({"case": seen, **environment.free_memory(self.device)})
        verdict: list[str] | None = None
        if self.recorder:
            from torchcoll.bench.control import admit

            verdict = admit(sizing, self.parts, words, self.control, self.spec.check)
        verdict = self.control.decide(verdict)
        if verdict and verdict[0] == "disagreement":
            raise UsageError(*verdict[1:])
        return verdict

    def _cost_of_measuring(self, backend: str) -> None:
        """Recorded after the first case that ran: a barrier before would pay for its connecting."""
        self._cost_known = True
        align = None if self.alone else self.communicators.align(backend)
        own = cost_of_measuring(self.device, align)
        gathered = self.control.gather(own)

        def keep(recorder: Recorder) -> None:
            for name in own:
                recorder.phase(name, [costs[name] for costs in gathered])

        self.on_rank_0(keep)

    @property
    def alone(self) -> bool:
        """Nothing is communicated: one rank, or the fake backend."""
        return self.ranks == 1 or not self.entries[0].communicates

    def trouble(self, text: str) -> NoReturn:
        """What this rank met it met alone: the launch ends, and the watchdogs say where."""
        assert self.watchdog is not None
        self.watchdog.trouble(text)

    # -- the end -----------------------------------------------------------------------------

    def finish(self, status: str = "complete", exit_code: int = 0, reason: str = "") -> None:
        """The ``end`` record: nothing that comes after it is told any more."""
        self._code = int(exit_code)
        if self.recorder:
            self.recorder.end(status, exit_code, time.monotonic() - self._began, reason)
            self._account_closed()

    def outcome(self) -> tuple[int, str]:
        """Exit code and reason of a run that came to its end, as the command has them. On ranks
        other than 0, which keep no results, 0.
        """
        if not self.run or not self.run.results:  # a replay has no cases
            return ExitCode.OK, ""
        from torchcoll.core.result import told_shortfall

        reason = told_shortfall(self.run.results)
        return (ExitCode.FAILED if reason else ExitCode.OK), reason

    def _account_closed(self) -> None:
        if self.watchdog:
            self.watchdog.over = self._code

    def close(self, lost: bool = False) -> None:
        """Leave together and put back what was made here; ``lost``: without the others."""
        if self.watchdog is None:
            return
        self.watchdog.parting = True
        try:
            if lost:
                return
            if self.communicators.owns_default:
                # gloo aborts when a peer's process ends before this rank has left the group.
                with contextlib.suppress(TorchcollError, RuntimeError):
                    self.control.farewell(self._account_closed)
            elif not self.found_group:
                # Refused by all ranks alike: the others are to read that from rank 0's store.
                with contextlib.suppress(TorchcollError, RuntimeError):
                    self.control.gather(None, GRACE_S)
            self.communicators.close()
            if self.library_log:
                self.library_log.close()
            if self._rehearsal_over:
                self._rehearsal_over()
        finally:
            self.watchdog.close()
            self.watchdog = None

    def _last_words(self, status: str, code: int, kind: str, text: str, speaks: bool) -> None:
        if self.recorder:
            with contextlib.suppress(Exception):  # a full disk must not silence this rank
                if kind == "hang":
                    self.recorder.timed_out(self.ranks, text)
                self.recorder.event(kind, text)
                self.finish(status, code, text)
        elif speaks and self._file and self.watchdog and self.watchdog.rank_0_ended:
            wall_s = round(time.monotonic() - self._began, 3)
            append_end(
                Path(self._file[0]),
                self._file[1],
                {"kind": kind, "message": text, "utc": environment.utc_now()},
                {"status": status, "exit_code": code, "wall_s": wall_s, "reason": text},
            )
        if self._on_last_words:
            self._on_last_words(code, text, speaks)
        elif speaks:
            tell(f"torchcoll: error: {text}")


# -------------------------------------------------------------------------------------------------
# The end of a result file whose writer, rank 0, is gone: another rank that reaches it appends it.
#
# Loaded when that has happened.


def append_end(path: Path, run_id: str, event: dict[str, Any], end: dict[str, Any]) -> bool:
    """Whether the event and the end were written: not where the file is another's or not to be
    reached from here, and not where it has its end already.
    """
    from torchcoll.core.file import Writer

    try:
        import fcntl

        with open(path, "r+b") as file:
            # Of several hosts each has a rank that comes here: one after the other.
            fcntl.flock(file, fcntl.LOCK_EX)
            if json.loads(file.readline()).get("run_id") != run_id:
                return False
            cases = 0
            for line in file:
                if line.startswith(b'{"record":"end"'):
                    return False
                cases += line.startswith(b'{"record":"case"')
            writer = Writer(path, further=True)
            writer.write("event", event)
            writer.write("end", {**end, "cases": cases}, durable=True)
            writer.close()
    except (ImportError, OSError, ValueError, AttributeError, TorchcollError):
        return False
    return True
