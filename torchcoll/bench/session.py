"""One launch: set up, run the cases, collect the samples on rank 0.

``run`` is the public function; the command (bench/main.py) runs the same Sweep on the same Session
and adds a file and a table.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torchcoll.bench.communicators import Communicators
from torchcoll.bench.control import (
    GRACE_S,
    Control,
    DamagedError,
    alarm,
    own_part,
    store_of,
)
from torchcoll.bench.measure import measure_case
from torchcoll.bench.watchdog import Progress, Watchdog, complain, nobody
from torchcoll.core import backends
from torchcoll.core.case import NotRun, Sizing, fingerprint
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
    from torchcoll.core.backends import BackendEntry
    from torchcoll.core.result import CaseResult, Run
    from torchcoll.machine.devices import Device
    from torchcoll.machine.state import Watch

_HOSTS_NAMED = 4  # of those that have come, on the terminal
Places = list[tuple[str, str | None]]  # host and device of each rank


# -------------------------------------------------------------------------------------------------
# The state of the machines before and after a run: one rank of each host looks, all hear of it.


class Hosts:
    """The first rank of each host looks at it; ``before`` is what it saw, None on other ranks.

    places: host and device of each rank. Collective. Raises UnavailableError on all ranks with
    ``require_idle`` where others use a host.
    """

    def __init__(self, session: Session, places: Places, require_idle: bool) -> None:
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
Parts = tuple[tuple[int, ...], ...]  # ranks of the launch in each sub-group


@dataclass(frozen=True)
class SessionOptions:
    """What a program or a command asks of a launch.

    asked: a hash that must be equal on all ranks; '' is that of the spec. phases: durations that
    the caller has measured already. earlier: gives rank 0's Spec, where it comes from a file that
    only rank 0 reads. library_log: --library-log. require_idle: refuse to open where others use the
    machine. recorder: rank 0's, of one who does more with it than to keep it in memory; its run has
    the path of the result file once the header is written.

    soak_s: for so long rounds are repeated (bench/soak.py), which SIGUSR1 ends.
    told: of rank 0: is told what is being done until the first case.

    on_leaving: of a command, whose process this is: called where the process ends at once. With it
    signals are taken, and what goes wrong here alone ends the process with what is known of it.
    """

    spec: Spec
    launch: Launch | None = None
    asked: str = ""
    argv: Sequence[str] | None = None
    phases: Mapping[str, int] = field(default_factory=dict)
    earlier: Callable[[], Spec] | None = None
    library_log: bool = False
    require_idle: bool = False
    recorder: Recorder | None = None
    on_leaving: Callable[[], None] | None = None
    soak_s: float | None = None
    told: Callable[[str], None] = nobody


def run(spec: Spec, on_case: OnCase | None = None) -> Run | None:
    """Measure ``spec`` on all ranks of this launch; the Run on rank 0, None elsewhere.

    Uses the default process group when there is one (its backend, or ``spec.backend`` in a new
    group), else the launcher's variables, else one rank; leaves things as it found them.
    ``on_case`` is called on rank 0 with each CaseResult as it is ready. A rank that hangs, is lost
    or leaves by an error of its own (in ``on_case``, Ctrl-C) ends the processes of the others with
    exit code 5. Raises UsageError and UnavailableError, on all ranks.
    """
    import torch

    with opened(torch, SessionOptions(spec)) as session:
        Sweep(session, on_case=on_case).run()
        session.finish(*session.outcome())
    return session.run


@contextlib.contextmanager
def opened(torch: Any, options: SessionOptions) -> Iterator[Session]:
    """What is open, closed whatever happens; the other ranks are told where this one goes alone.

    Complete with exit code 0 unless ``finish`` has said otherwise.
    """
    meeting = Meeting(torch, options)  # where there is none, there is nobody to tell
    ours, lost = options.on_leaving is not None, False
    try:
        session = Session(meeting, options)
        yield session
        if meeting.code is None:
            session.finish()
    except TorchcollError as error:
        lost = isinstance(error, HangError)
        if lost and ours:
            kind = "store" if isinstance(error, DamagedError) else "hang"
            meeting.watchdog.trouble(str(error), kind)
        meeting.finish("failed", int(error.exit_code), str(error))
        raise
    except BaseException as error:
        # A fault of ours, or somebody's sys.exit: the others must not wait for this rank until the
        # timeout.
        lost = meeting.control.ranks > 1
        text = f"{type(error).__name__}: {error}"
        if lost and ours:
            # Whatever asks the store may be what finds it gone, torch's making of a group too.
            if isinstance(error, torch.distributed.DistNetworkError):
                meeting.watchdog.trouble(str(meeting.control.cut_off(error)), "hang")
            traceback.print_exc()
            meeting.watchdog.trouble(text)
        meeting.watchdog.raise_alarm(text)
        raise
    finally:
        meeting.close(lost)


class Meeting:
    """This rank where it has met the others: it can agree with them, is watched, and keeps the
    account of the launch, on rank 0 with a ``recorder``.

    Raises what stands against it on this rank; nothing is open then. ``undo``: what is put back in
    the end. ``file``: where rank 0 writes, and the run's id, from the header on. ``code``: the
    run's exit code, from its end on.
    """

    def __init__(self, torch: Any, options: SessionOptions) -> None:
        dist = torch.distributed
        self.torch = torch
        self.found_group = bool(dist.is_available() and dist.is_initialized())
        self.launch = options.launch or self._launch()
        self.phases = dict(options.phases)
        self.progress = Progress(told=options.told)
        self.undo = contextlib.ExitStack()
        self.file: list[str] | None = None
        self.code: int | None = None
        self._began = time.monotonic()
        self._on_leaving = options.on_leaving
        self.recorder = options.recorder
        if self.launch.rank == 0 and self.recorder is None:
            from torchcoll.bench.recorder import Recorder

            self.recorder = Recorder()
        # A world of which this process is the only rank agrees with itself.
        fake = not (options.spec.communicates or self.found_group)
        participants, limit_s = 1 if fake else self.launch.ranks, options.spec.timeout_s
        with self.phase("rendezvous"):
            store = store_of(torch, self.launch, limit_s, self.found_group, fake)
        # Until here rank 0 waits for nobody; the others wait for it, and leave where it is away.
        start_up_s = max(time.monotonic() - self._began, self.phases.get("import_torch", 0) / 1e9)
        own, client = own_part(dist, store, participants > 1)
        self.control = Control(own, self.launch.rank, participants, limit_s)
        try:
            self.watchdog = Watchdog(
                self.control,
                client,
                self.progress,
                self._last_words,
                signals=options.on_leaving is not None,
                stops=options.soak_s is not None,
                pause_s=start_up_s if self.launch.rank == 0 else 0.0,
            )
        except RuntimeError as error:
            if participants > 1:
                alarm(client, self.launch.rank, {**self.progress.word(), "cause": str(error)})
            from torchcoll.bench.meeting import no_thread

            raise no_thread(error) from None

    def _launch(self) -> Launch:
        if not self.found_group:
            return detect()
        dist, local_rank = self.torch.distributed, int(os.environ.get("LOCAL_RANK", 0))
        return Launch("process group", dist.get_rank(), dist.get_world_size(), local_rank)

    @contextlib.contextmanager
    def phase(self, name: str) -> Any:
        self.progress.step(name)
        start = time.perf_counter_ns()
        yield
        self.phases[name] = time.perf_counter_ns() - start

    def on_rank_0(self, action: Callable[[Recorder], object]) -> None:
        """What may fail on rank 0 alone (opening the file): then every rank raises its error."""
        failure = None
        if self.recorder:
            try:
                action(self.recorder)
            except TorchcollError as error:
                failure = error
        stated = self.control.decide(failure and [str(failure), int(failure.exit_code)])
        if stated:
            refusal = failure or TorchcollError(stated[0])
            refusal.exit_code = ExitCode(stated[1])
            raise refusal

    def finish(self, status: str, exit_code: int, reason: str = "") -> None:
        """The ``end`` record: nothing that comes after it is told any more."""
        self.code = int(exit_code)
        if self.recorder:
            self.recorder.end(status, exit_code, time.monotonic() - self._began, reason)
            self._account_closed()

    def _account_closed(self) -> None:
        self.watchdog.over = self.code

    def close(self, lost: bool) -> None:
        """Leave together and put back what was made here; ``lost``: without the others."""
        self.watchdog.parting.set()
        dist = self.torch.distributed
        try:
            if lost:
                return
            if not self.found_group and dist.is_available() and dist.is_initialized():
                # gloo aborts when a peer's process ends before this rank has left the group.
                with contextlib.suppress(TorchcollError, RuntimeError):
                    self.control.farewell(self._account_closed)
            else:
                # Refused by all ranks alike, or in a group that was there: the others are to read
                # rank 0's last word from its store before its program may end.
                with contextlib.suppress(TorchcollError, RuntimeError):
                    self.control.gather(None, GRACE_S)
            self.undo.close()
        finally:
            self.watchdog.close()
            del self.watchdog  # with its connection, which would stay until Python collects cycles

    def _last_words(self, status: str, code: int, kind: str, text: str, speaks: bool) -> None:
        if self.recorder:
            with contextlib.suppress(Exception):  # a full disk must not silence this rank
                if kind == "hang":
                    self.recorder.timed_out(self.launch.ranks, text)
                self.recorder.event(kind, text)
                self.finish(status, code, text)
        elif speaks and self.file and self.watchdog.rank_0_ended:
            wall_s = round(time.monotonic() - self._began, 3)
            with contextlib.suppress(ImportError):
                from torchcoll.core.file import append_end

                append_end(
                    Path(self.file[0]),
                    self.file[1],
                    {"kind": kind, "message": text, "utc": environment.utc_now()},
                    {"status": status, "exit_code": code, "wall_s": wall_s, "reason": text},
                )
        if self._on_leaving:
            self._on_leaving()
            complain(f"torchcoll: error: {text}", self.launch.rank, speaks)
        elif speaks:
            tell(f"torchcoll: error: {text}")


class Session:
    """What is open on one rank: the launch, its device and its communicators.

    Made by ``opened``, complete from then on. Making it is collective: hello, device, header,
    process groups, ranks and phases. ``recorder`` and ``run`` exist on rank 0 alone. spec, parts,
    sizings: what was asked, as it is on this launch, its sub-groups and its cases.
    """

    def __init__(self, meeting: Meeting, options: SessionOptions) -> None:
        self._meeting = meeting
        self.torch, self.dist = meeting.torch, meeting.torch.distributed
        self.launch, self.found_group = meeting.launch, meeting.found_group
        self.rank, self.ranks = meeting.launch.rank, meeting.launch.ranks
        self.control, self.progress = meeting.control, meeting.progress
        self.recorder = meeting.recorder

        argv = None if options.argv is None else masked_words(list(options.argv))
        self._hello(options.asked or fingerprint(options.spec.to_json()), argv, options.spec)
        spec = self._decided(options)
        self.control.timeout_s = spec.timeout_s
        self.library_log = _library_log() if options.library_log else None
        self.soak_s = options.soak_s
        self.entries, self.device, places = self._open_device(spec)
        self.hosts: Hosts | None = None  # where ranks communicate
        if self.entries[0].communicates:
            self.hosts = Hosts(self, places, options.require_idle)
        names = ",".join(entry.name for entry in self.entries)
        self.spec = replace(spec, backend=names, device=self.device.kind)
        self.parts: Parts = self.spec.parts(self.ranks)
        self.sizings = self.spec.sizings(max(map(len, self.parts)))
        self._write_header(argv)
        if self.library_log:
            meeting.undo.callback(self.library_log.close)
            self.library_log.start(self)
        self.communicators = Communicators(self)
        meeting.undo.callback(self.communicators.close)
        self.communicators.open(meeting.phase)
        self._exchange_members(places)

    @property
    def run(self) -> Run | None:
        return self.recorder.run if self.recorder else None

    @property
    def alone(self) -> bool:
        """Nothing is communicated: one rank, or the fake backend."""
        return self.ranks == 1 or not self.entries[0].communicates

    def on_rank_0(self, action: Callable[[Recorder], object]) -> None:
        """As of Meeting."""
        self._meeting.on_rank_0(action)

    def trouble(self, text: str, code: ExitCode | None = None) -> NoReturn:
        """What this rank met it met alone: the launch ends, and the watchdogs say where. code: of a
        mistake of the user's, which is the text alone.
        """
        self._meeting.watchdog.trouble(text, code=code)

    @property
    def asked_to_stop(self) -> bool:
        """Whether this rank got SIGUSR1, where it is taken."""
        return self._meeting.watchdog.asked_to_stop

    def finish(self, exit_code: int = ExitCode.OK, reason: str = "") -> None:
        """What was asked has run, and came to this."""
        self._meeting.finish("complete", exit_code, reason)

    def outcome(self) -> tuple[int, str]:
        """Exit code and reason of cases that came to their end, as the command has them. On ranks
        other than 0, which keep no results, 0.
        """
        if not self.run:
            return ExitCode.OK, ""
        from torchcoll.core.result import stated_shortfall

        reason = stated_shortfall(self.run.results)
        return (ExitCode.FAILED if reason else ExitCode.OK), reason

    # -- set-up ------------------------------------------------------------------------------

    def _hello(self, asked: str, argv: list[str] | None, spec: Spec) -> None:
        """Every rank says who it is and what it was asked; the odd one is named."""
        words = {
            "host": environment.hostname(),
            "pid": os.getpid(),
            "rank": self.rank,
            "asked": asked,
            "argv": " ".join(argv or []),
        }
        self.control.came = self._came(words["host"])
        self.control.members = self.control.all_gather(words)
        self.control.came = None
        self.progress.step("hello")
        if len({member["asked"] for member in self.control.members}) > 1:
            from torchcoll.bench.control import of_arguments

            raise of_arguments(self.control, spec)

    def _came(self, own: Any) -> Callable[[Sequence[Any]], None] | None:
        """What tells a terminal which ranks have come; None where there is none."""
        if self.progress.told is nobody or self.control.ranks == 1:
            return None

        def came(words: Sequence[Any]) -> None:
            hosts = list(dict.fromkeys([own, *(word["host"] for word in words)]))
            more = ", ..." if len(hosts) > _HOSTS_NAMED else ""
            where = ", ".join(hosts[:_HOSTS_NAMED]) + more
            count = f"{len(words) + 1} of {self.control.ranks}"
            self.progress.told(f"waiting for ranks: {count} here ({where})")

        return came

    def _decided(self, options: SessionOptions) -> Spec:
        """Rank 0's Spec, on every rank."""
        found = [options.spec]

        def read(recorder: Recorder) -> None:
            if options.earlier:
                found.append(options.earlier())

        self.on_rank_0(read)
        return Spec.from_json(self.control.decide(found[-1].to_json()))

    def _open_device(self, spec: Spec) -> tuple[tuple[BackendEntry, ...], Device, Places]:
        """Backends, this rank's device, and where all are; what any lacks, every rank raises."""
        refusal, where = None, None
        try:
            names, kind = spec.backend, spec.device
            if self.found_group and names is None:
                names = backends.found_backend(self.torch, kind)
            entries, kind = backends.choose_backends(self.torch, names, kind)
            if self.library_log:
                self.library_log.ask_for(entries)
            if spec.rehearse:
                from torchcoll.bench.communicators import begin

                self._meeting.undo.callback(begin(self, entries[0].name, kind))
            if any(entry.interfaces in os.environ for entry in entries):
                from torchcoll.machine.placement import check_interfaces

                check_interfaces(entries)
            with self._meeting.phase("device"):
                device = open_device(self.torch, kind, self.launch, spec.rehearse)
            where = [environment.hostname(), environment.device_place(self.torch, device)]
        except TorchcollError as error:
            refusal = error
        places: Places = [tuple(place) for place in self.control.agree(refusal, where)]
        if device.kind != "cpu" and not spec.rehearse:
            refuse_shared(places, device.described)
        return entries, device, places

    def _write_header(self, argv: list[str] | None) -> None:
        def write(recorder: Recorder) -> None:
            from torchcoll.bench.recorder import header

            recorder.header(header(self, argv))
            if path := recorder.run.path:
                self._meeting.file = [os.path.abspath(path), recorder.run.header["run_id"]]

        self.on_rank_0(write)
        self._meeting.file = self.control.decide(self._meeting.file)

    def _exchange_members(self, places: Places) -> None:
        own = environment.member(self.torch, self.launch, self.device)
        made = {
            entry.name: backends.implementation(
                self.torch, self.communicators.whole(entry.name), self.device.name
            )
            for entry in self.entries
        }
        words = {**own, "implementation": made, "variables": environment.variables()}
        words |= {"phases": self._meeting.phases, "machine": self.hosts and self.hosts.before}
        gathered = self.control.gather(words)

        def keep(recorder: Recorder) -> None:
            from torchcoll.bench.recorder import keep_members

            keep_members(self, recorder, gathered, places)

        self.on_rank_0(keep)


def _library_log() -> LibraryLog:
    from torchcoll.bench.library_log import LibraryLog

    return LibraryLog()


# -------------------------------------------------------------------------------------------------


class Sweep:
    """What runs on an open session: cases, in sub-groups ``parts``, as ``spec`` says; where they
    are left out, as the session was asked. ``on_case``: called on rank 0 with each result.
    """

    def __init__(
        self,
        session: Session,
        spec: Spec | None = None,
        parts: Parts | None = None,
        on_case: OnCase | None = None,
    ) -> None:
        self.session = session
        self.spec = spec or session.spec
        self.parts = parts or session.parts
        self.part = next(part for part in self.parts if session.rank in part)
        self.has_called = False  # some case has made all of its calls
        self._cost_known = False
        self._on_case = on_case
        self.digested = False  # --soak: what every checked call put out, bit by bit
        self.gathered: list[dict[str, Any]] = []  # rank 0: what each rank said of the last case
        self._weights = ""  # hash of the weights of uneven blocks
        if self.spec.has_splits:
            from torchcoll.core.splits import split_weights

            weights = split_weights(self.spec.splits, max(map(len, self.parts)))
            self._weights = fingerprint([list(row) for row in weights.rows])

    def run(self, which: Sequence[int] | None = None) -> None:
        """Run the session's cases of these indices (None: all)."""
        for index in range(len(self.session.sizings)) if which is None else which:
            self.one_case(self.session.sizings[index])
        self.finish(look=which != [])

    def finish(self, look: bool = True) -> None:
        """After the last case: the library's own timings; and a look at the machine."""
        session = self.session
        if session.library_log:
            session.library_log.keep_timings(session)
        if look and session.hosts:
            session.hosts.look_again()

    def one_case(self, sizing: Sizing) -> None:
        """Its results go to the recorder and ``on_case``."""
        self.session.on_rank_0(lambda recorder: recorder.started(sizing.case))
        results = self.measured(sizing)
        self.session.on_rank_0(lambda recorder: self._keep(recorder, results))
        if self.has_called and not self._cost_known:
            self._cost_of_measuring(sizing.case.backend)
            self._cost_known = True

    def measured(self, sizing: Sizing) -> list[CaseResult]:
        """Of each sub-group, on rank 0."""
        session, case = self.session, sizing.case
        start_ns, wall_us = time.perf_counter_ns(), time.time_ns() // 1000
        session.progress.step(case.describe())
        not_run = self.agree_on_case(sizing)
        results = measure_case(self, sizing, not_run)
        for result in results:
            result.start_ns, result.start_wall_us = start_ns, wall_us
            result.spent_ns["case"] = time.perf_counter_ns() - start_ns
        if session.library_log:
            session.library_log.join(self, case, results)
        return results

    def _keep(self, recorder: Recorder, results: list[CaseResult]) -> None:
        for result in results:
            recorder.case(result)
            if self._on_case:
                self._on_case(result)

    def agree_on_case(self, sizing: Sizing) -> NotRun | None:
        """None to run the case: decided by rank 0 for all. Raises UsageError where the ranks are
        not about to run the same one.
        """
        session, control = self.session, self.session.control
        seen = fingerprint([sizing.case.to_json(), sizing.count, self._weights])
        words = control.gather({"case": seen, **environment.free_memory(session.device)})
        decision: list[list[str] | None] = [None, None]
        if session.recorder:
            from torchcoll.bench.control import admit, disagreement

            not_run = admit(sizing, self.parts, words, self.spec.check)
            decision = [disagreement(sizing, words, control), list(not_run) if not_run else None]
        refusal, found = control.decide(decision)
        if refusal:
            raise UsageError(*refusal)
        return NotRun(*found) if found else None

    def _cost_of_measuring(self, backend: str) -> None:
        """Recorded after the first case that ran: a barrier before would pay for its connecting."""
        session = self.session
        align = None if session.alone else session.communicators.align(backend)
        own = cost_of_measuring(session.device, align)
        gathered = session.control.gather(own)

        def keep(recorder: Recorder) -> None:
            for name in own:
                recorder.phase(name, [costs[name] for costs in gathered])

        session.on_rank_0(keep)
